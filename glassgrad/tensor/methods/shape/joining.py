"""Putting tensors together and taking them apart: cat, stack, split, roll, unfold. In, out: tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassgrad.base.errors import AxisError, InputError, ShapeError
from glassgrad.compiler.graph.dtype import promote
from glassgrad.compiler.graph.uop import full
from glassgrad.tensor.broadcast import resolve_axis, shape_from, whole, working_axis
from glassgrad.tensor.methods.creation import Creation
from glassgrad.tensor.methods.shape.movement import joined

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Joining", "several"]


class Joining(Creation):
    """Putting tensors together and taking them apart."""
    __slots__ = ()

    def cat(self, *others: Self, dim: int = 0) -> Self:
        """Tensors one after another along an axis; also `Tensor.cat(x, y, z, dim=0)`.

        >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
        [1, 2, 3]
        """
        tensors = several(self, others, "cat")
        first = tensors[0]
        if not first.ndim:
            raise AxisError("single numbers have no axis to be put along", given="cat of shape ()",
                            expected="at least 1 axis", fix="use Tensor.stack, which makes one")
        axis = resolve_axis(dim, first.ndim, "cat")
        dtype, place = first.dtype, first._device
        for i, t in enumerate(tensors):
            if t.ndim != first.ndim or any(
                    a != b for k, (a, b) in enumerate(zip(t.shape, first.shape)) if k != axis):
                raise ShapeError("cannot put these tensors one after another",
                                 given=f"shape {first.shape} first, shape {t.shape} at place {i}, along axis {axis}",
                                 expected="the same number of axes and the same sizes, except along "
                                          "that axis",
                                 fix="check the shapes, or use Tensor.stack for a new axis")
            dtype = promote(dtype, t.dtype)
            if t._device is not place:
                place = first._shared_device(t)
        made = first._kin(*tensors)._with(joined([t.uop.cast(dtype) for t in tensors], axis))
        made._device = place
        return made

    def stack(self, *others: Self, dim: int = 0) -> Self:
        """Tensors of one shape side by side along a new axis; also `Tensor.stack(x, y, z, dim=0)`.

        >>> Tensor([1, 2]).stack(Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        """
        tensors = several(self, others, "stack")
        for i, t in enumerate(tensors):
            if t.shape != tensors[0].shape:
                raise ShapeError("cannot stack tensors of different shapes",
                                 given=f"shape {tensors[0].shape} first, shape {t.shape} at place {i}",
                                 expected="one shape", fix="use Tensor.cat to put them one after another")
        axis = resolve_axis(dim, tensors[0].ndim, "stack", extra=1)
        return tensors[0].unsqueeze(axis).cat(*[t.unsqueeze(axis) for t in tensors[1:]], dim=axis)

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Pieces of a size (the last may be smaller), or of the sizes given, along an axis.

        >>> [t.tolist() for t in Tensor([1, 2, 3, 4, 5]).split(2)]
        [[1, 2], [3, 4], [5]]
        """
        axis = working_axis(dim, self.ndim, "split")
        n, size = self.shape[axis], whole(sizes)
        if size is None:
            parts = shape_from((sizes,), "split")
        elif size <= 0:
            raise InputError("split needs pieces of at least one element", given=str(size), expected="1 or more",
                             fix="write x.split(2), for example")
        else:
            parts = tuple(min(size, n - start) for start in range(0, max(n, 1), size))
        if sum(parts) != n or any(part < 0 for part in parts):
            raise ShapeError("the pieces do not add up to the axis", given=f"{parts} for an axis of {n}",
                             expected=f"sizes whose sum is {n}", fix="check the sizes")
        pieces, start = [], 0
        for size in parts:
            bounds = [(0, m) for m in self.shape]
            bounds[axis] = (start, start + size)
            pieces.append(self._with(self.uop.shrink(bounds)))
            start += size
        return tuple(pieces)

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """At most so many equal pieces along an axis (the last may be smaller).

        >>> [t.tolist() for t in Tensor([1, 2, 3, 4, 5]).chunk(2)]
        [[1, 2, 3], [4, 5]]
        """
        if (whole(chunks) or 0) <= 0:
            raise InputError("chunk needs at least one piece", given=str(chunks), expected="1 or more",
                             fix="write x.chunk(2), for example")
        n = self.shape[working_axis(dim, self.ndim, "chunk")]
        return list(self.split(math.ceil(n / chunks) if n else [0] * chunks, dim))

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The slices along an axis, without it.

        >>> [t.tolist() for t in Tensor([[1, 2], [3, 4]]).unbind()]
        [[1, 2], [3, 4]]
        """
        axis = working_axis(dim, self.ndim, "unbind")
        shape = self.shape[:axis] + self.shape[axis + 1:]
        return tuple(t.reshape(shape) for t in self.split(1, axis)) if self.shape[axis] else ()

    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Self:
        """Elements moved along axes, those that leave at one end coming in at the other.

        >>> Tensor([1, 2, 3]).roll(1).tolist()
        [3, 1, 2]
        """
        if dims is None:
            return self.flatten().roll(shifts, 0).reshape(self.shape)
        by, along = shape_from((shifts,), "roll"), shape_from((dims,), "roll")
        if len(by) != len(along):
            raise InputError("roll needs one shift per axis", given=f"{len(by)} shifts for {len(along)} axes",
                             expected="as many of one as of the other", fix="write roll((1, 2), (0, 1)), for example")
        x = self
        for shift, dim in zip(by, along):
            axis = resolve_axis(dim, x.ndim, "roll")
            n = x.shape[axis] if x.ndim else 0
            if n and shift % n:
                head, tail = x.split([n - shift % n, shift % n], axis)
                x = tail.cat(head, dim=axis)
        return x

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """All windows of a size along an axis, `step` apart; the window is the new last axis.

        >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
        [[1, 2], [2, 3], [3, 4]]
        """
        axis = resolve_axis(dim, self.ndim, "unfold")
        n = self.shape[axis] if self.ndim else 1
        if not 0 <= size <= n or step < 1:
            raise ShapeError("the window does not fit the axis", given=f"size={size}, step={step} on an axis of {n}",
                             expected="a size of at most the axis, and a step of at least 1", fix="check the numbers")
        x = self.uop if self.ndim else self.uop.reshape((1,))
        return self._with(x.window(axis, size, step))

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The diagonal of two axes, as a new last axis; `offset` places above (or below, negative) the main one.

        >>> Tensor([[1, 2], [3, 4]]).diagonal().tolist(), Tensor([[1, 2], [3, 4]]).diagonal(1).tolist()
        ([1, 4], [2])
        """
        row, column = resolve_axis(dim1, self.ndim, "diagonal"), resolve_axis(dim2, self.ndim, "diagonal")
        if self.ndim < 2 or row == column:
            raise ShapeError("diagonal needs two axes", given=f"dim1={dim1}, dim2={dim2}, shape {self.shape}",
                             expected="two different axes of a matrix or a stack of them",
                             fix="write x.diagonal(0, -2, -1)")
        lead = [a for a in range(self.ndim) if a not in (row, column)]
        x = self.uop.permute([*lead, row, column])
        stack, (rows, columns) = x.shape[:-2], x.shape[-2:]
        top, left = max(-offset, 0), max(offset, 0)
        n = max(0, min(rows - top, columns - left))
        if n == 0:
            return self._with(full((*stack, 0), 0, self.dtype))
        lead_bounds = [(0, m) for m in stack]
        x = x.shrink([*lead_bounds, (top, top + n), (left, left + n)]).reshape((*stack, n * n))
        x = x.pad([*[(0, 0) for _ in stack], (0, n)]).reshape((*stack, n, n + 1))
        return self._with(x.shrink([*lead_bounds, (0, n), (0, 1)]).reshape((*stack, n)))

    def diag(self, diagonal: int = 0) -> Self:
        """A matrix with this vector as a diagonal, `diagonal` places above (or below, negative) the main one; of a
        matrix, that diagonal.

        >>> Tensor([1, 2]).diag().tolist(), Tensor([[1, 2], [3, 4]]).diag().tolist()
        ([[1, 0], [0, 2]], [1, 4])
        """
        if self.ndim == 2:
            return self.diagonal(diagonal)
        if self.ndim != 1:
            raise ShapeError("diag needs a vector or a matrix", given=f"shape {self.shape}", expected="1 or 2 axes",
                             fix="for stacks of matrices use x.diagonal(0, -2, -1), of vectors x.diag_embed()")
        n = self.shape[0]
        rows = self.uop.reshape((n, 1)).pad(((0, 0), (0, n)))     # n x (n + 1): each row starts one place later
        square = rows.reshape((n * (n + 1),)).shrink(((0, n * n),)).reshape((n, n))
        right, down = max(diagonal, 0), max(-diagonal, 0)
        return self._with(square.pad(((down, right), (right, down))))


def several(first: Joining | Sequence[Joining], others: Sequence[Joining], what: str) -> list:  # type: ignore[type-arg]
    """The tensors of f(a, b, c) or of f([a, b, c]), as PyTorch writes it."""
    if isinstance(first, (list, tuple)) and any(isinstance(t, Joining) for t in others):
        raise InputError(f"{what} takes tensors, or one list of them", given="a list, and tensors beside it",
                         expected="one of the two", fix=f"write Tensor.{what}(*tensors, x)")
    tensors = [*first, *others] if isinstance(first, (list, tuple)) else [first, *others]
    wrong = next((t for t in tensors if not isinstance(t, Joining)), None)
    if not tensors or wrong is not None:
        raise InputError(f"{what} needs tensors", given="none" if not tensors else f"{type(wrong).__name__} {wrong!r}",
                         expected="one or more tensors", fix=f"write Tensor.{what}(x, y), for example")
    return tensors
