"""Join and split tensors: cat, stack, split, roll, unfold, diagonals. In, out: tensors."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.base.errors import AxisError, InputError, ShapeError
from glassgrad.compiler.graph import UOp
from glassgrad.tensor.formulas import (at, cat, diagonal, diagonal_matrix, flatten, movement, pad_axis, part, roll,
                                       stack, take, total, unsqueeze)
from glassgrad.tensor.methods import (REQUIRED, Self, TensorBase, arguments, broadcast_shape, broadcasts_to, choice,
                                      fit_together, of_kind, resolve_axis, shape_from, spelled, whole, working_axis)

MOST_PIECES = 1 << 20            # tensors that a method returns: a minute's work
MOST_INDICES = 1 << 28           # indices that are listed one by one


def _several(first: Any, others: Sequence[Any], what: str) -> list[Any]:
    """Return the tensors of f(a, b, c), or of f([a, b, c]) as in PyTorch."""
    if isinstance(first, (list, tuple)) and any(isinstance(t, TensorBase) for t in others):
        raise InputError(f"{what} takes tensors, or one list of them", given="a list, and tensors beside it",
                         expected="one of the two", fix=f"write Tensor.{what}(*tensors, x)")
    tensors = [*first, *others] if isinstance(first, (list, tuple)) else [first, *others]
    wrong = [t for t in tensors if not isinstance(t, TensorBase)]
    if not tensors or wrong:
        raise InputError(f"{what} needs tensors",
                         given=f"{type(wrong[0]).__name__} {wrong[0]!r}" if wrong else "none",
                         expected="one or more tensors", fix=f"write Tensor.{what}(x, y), for example")
    return tensors


def _at_least(x: UOp, rank: int) -> UOp:
    """Return a node with at least `rank` axes: a number as a vector, a vector as one row, a matrix as a block of depth
    1."""
    if not x.shape and rank:
        x = x.reshape((1,))
    if len(x.shape) < 2 <= rank:
        x = unsqueeze(x, 0)
    return unsqueeze(x, -1) if len(x.shape) < 3 <= rank else x


def _refuse_many(what: str, count: int) -> None:
    """Raise if a method would return more tensors than anybody waits for."""
    if count > MOST_PIECES:
        raise InputError(f"{what} would make too many tensors", given=f"{count:,} pieces",
                         expected=f"at most {MOST_PIECES:,}",
                         fix="choose fewer pieces; x.unfold shows equal ones in one tensor")


class JoiningMixin(TensorBase):
    """Methods that join and split tensors."""
    __slots__ = ()

    # -- together --------------------------------------------------------------------------------------------
    def cat(self, *others: Self, dim: int = 0, **spelling: Any) -> Self:
        """Tensors concatenated along an axis; also `Tensor.cat(x, y, z, dim=0)`.

        >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
        [1, 2, 3]
        """
        return _joined(self, others, "cat", *spelled("cat", spelling, dim=dim))

    concat = cat
    concatenate = cat

    def stack(self, *others: Self, dim: int = 0, **spelling: Any) -> Self:
        """Tensors of one shape concatenated along a new axis; also `Tensor.stack(x, y, z, dim=0)`.

        >>> Tensor([1, 2]).stack(Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        """
        dim, = spelled("stack", spelling, dim=dim)
        tensors = _several(self, others, "stack")
        for i, t in enumerate(tensors):
            if t.shape != tensors[0].shape:
                raise ShapeError("cannot stack tensors of different shapes",
                                 given=f"shape {tensors[0].shape} first, shape {t.shape} at index {i}",
                                 expected="one shape", fix="use Tensor.cat to put them one after another")
        axis = resolve_axis(dim, tensors[0].ndim, "stack", extra=1)
        return tensors[0]._with(stack([t.uop for t in tensors], axis), *tensors[1:])  # type: ignore[no-any-return]

    def hstack(self, *others: Self) -> Self:
        """Tensors joined along the second axis; vectors along their only one.

        >>> Tensor([1]).hstack(Tensor([2])).tolist()
        [1, 2]
        """
        first = _several(self, others, "hstack")[0]
        return _joined(self, others, "hstack", 0 if first.ndim < 2 else 1, lambda x: _at_least(x, 1))

    def vstack(self, *others: Self) -> Self:
        """Tensors joined along the first axis; vectors count as rows.

        >>> Tensor([1, 2]).vstack(Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        """
        return _joined(self, others, "vstack", 0, lambda x: _at_least(x, 2))

    row_stack = vstack

    def dstack(self, *others: Self) -> Self:
        """Tensors joined along the third axis, which vectors and matrices get.

        >>> Tensor([1, 2]).dstack(Tensor([3, 4])).tolist()
        [[[1, 3], [2, 4]]]
        """
        return _joined(self, others, "dstack", 2, lambda x: _at_least(x, 3))

    def column_stack(self, *others: Self) -> Self:
        """Vectors as the columns of a matrix; matrices side by side.

        >>> Tensor([1, 2]).column_stack(Tensor([3, 4])).tolist()
        [[1, 3], [2, 4]]
        """
        return _joined(self, others, "column_stack", 1,
                       lambda x: x.reshape((x.elements, 1)) if len(x.shape) < 2 else x)

    def block_diag(self, *others: Self) -> Self:
        """A matrix with these along its diagonal, and zeros elsewhere.

        >>> Tensor([[1, 2]]).block_diag(Tensor([[3]])).tolist()
        [[1, 2, 0], [0, 0, 3]]
        """
        tensors = _several(self, others, "block_diag")
        blocks = [_at_least(t.uop, 2) for t in tensors]
        if any(len(block.shape) != 2 for block in blocks):
            raise ShapeError("blocks are matrices", given=f"shapes {[block.shape for block in blocks]}",
                             expected="at most 2 axes each", fix="reshape them, or stack the results")
        width, before, rows = sum(block.shape[1] for block in blocks), 0, []
        for block in blocks:
            rows.append(pad_axis(block, 1, before, width - before - block.shape[1]))
            before += block.shape[1]
        return tensors[0]._with(cat(rows), *tensors[1:])  # type: ignore[no-any-return]

    # -- to one rank or shape --------------------------------------------------------------------------------
    def atleast_1d(self) -> Self:
        """A number as a vector of one element; anything else unchanged.

        >>> Tensor(3).atleast_1d().tolist()
        [3]
        """
        return self._view(_at_least(self.uop, 1)) if self.ndim < 1 else self

    def atleast_2d(self) -> Self:
        """A vector as a matrix of one row; matrices and larger tensors unchanged.

        >>> Tensor([1, 2]).atleast_2d().tolist()
        [[1, 2]]
        """
        return self._view(_at_least(self.uop, 2)) if self.ndim < 2 else self

    def atleast_3d(self) -> Self:
        """A matrix as a block of depth 1, which is its last axis.

        >>> Tensor([[1, 2]]).atleast_3d().shape
        (1, 2, 1)
        """
        return self._view(_at_least(self.uop, 3)) if self.ndim < 3 else self

    def broadcast_tensors(self, *others: Self) -> tuple[Self, ...]:
        """All tensors in the shape that they broadcast to.

        >>> [t.tolist() for t in Tensor([1, 2]).broadcast_tensors(Tensor([[3], [4]]))]
        [[[1, 2], [1, 2]], [[3, 3], [4, 4]]]
        """
        tensors = _several(self, others, "broadcast_tensors")
        shape = functools.reduce(broadcast_shape, [t.shape for t in tensors])
        return tuple(t._view(t.uop.broadcast(shape)) for t in tensors)

    def meshgrid(self, *others: Self, indexing: str = "ij") -> tuple[Self, ...]:
        """The coordinates of a grid, as views of the values along its axes: the first varies along rows ("ij") or
        columns ("xy").

        >>> [t.tolist() for t in Tensor([1, 2]).meshgrid(Tensor([3, 4]))]
        [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
        """
        choice("meshgrid has two orders", 'write indexing="ij"', indexing=indexing, among=("ij", "xy"))
        axes = _several(self, others, "meshgrid")
        if len(axes) == 1:
            return (axes[0],)
        return tuple(t._view(node) for t, node in zip(axes, _grid([t.uop for t in axes], indexing)))

    def cartesian_prod(self, *others: Self) -> Self:
        """Every combination of one value from each vector, as rows.

        >>> Tensor([1, 2]).cartesian_prod(Tensor([3, 4])).tolist()
        [[1, 3], [1, 4], [2, 3], [2, 4]]
        """
        vectors = _several(self, others, "cartesian_prod")
        if len(vectors) == 1:
            return vectors[0]  # type: ignore[no-any-return]
        grids = [flatten(grid) for grid in _grid([t.uop for t in vectors], "ij")]
        return vectors[0]._with(stack(grids, -1), *vectors[1:])  # type: ignore[no-any-return]

    def combinations(self, r: int = 2, with_replacement: bool = False) -> Self:
        """Every combination of r values of a vector, in order, as rows; each value once, or several times
        `with_replacement`.

        >>> Tensor([1, 2, 3]).combinations().tolist()
        [[1, 2], [1, 3], [2, 3]]
        """
        r, with_replacement = arguments("combinations", r=r, with_replacement=with_replacement)
        if self.ndim != 1 or r < 0:
            raise ShapeError("combinations are of a vector's values", given=f"shape {self.shape}, r={r}",
                             expected="1 axis, and r of 0 or more", fix="flatten it first: x.flatten()")
        choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
        n = self.numel()
        count = math.comb(max(n + r - 1, 0), r) if with_replacement else math.comb(n, r)
        if count * r > MOST_INDICES:
            raise InputError("there are too many combinations", given=f"{count:,} of {r} values",
                             expected=f"at most {MOST_INDICES:,} values in all", fix="choose a smaller r")
        rows = list(choose(range(n), r)) if count else []
        if not rows or not r:
            return self._with(part(self.uop, 0, 0, 0).reshape((0,) if not r else (0, r)))
        return self._with(take(self.uop, 0, self._table(rows)))

    # -- split -----------------------------------------------------------------------------------------------
    def _pieces(self, axis: int, cuts: Sequence[tuple[int, int]]) -> tuple[Self, ...]:
        return tuple(self._view(part(self.uop, axis, start, stop)) for start, stop in cuts)

    def split(self, sizes: int | Sequence[int] = REQUIRED, dim: int = 0, **spelling: Any) -> tuple[Self, ...]:
        """Pieces of one size (the last may be smaller), or of the given sizes, along an axis.

        >>> [t.tolist() for t in Tensor([1, 2, 3, 4, 5]).split(2)]
        [[1, 2], [3, 4], [5]]
        """
        sizes, dim = spelled("split", spelling, sizes=sizes, dim=dim)
        axis = working_axis(dim, self.ndim, "split")
        n, size = self.shape[axis], whole(sizes)
        if size is None:
            parts = shape_from((sizes,), "split")
        elif size <= 0:
            raise InputError("split needs pieces of at least one element", given=str(size), expected="1 or more",
                             fix="write x.split(2), for example")
        else:
            starts = range(0, max(n, 1), size)
            _refuse_many("split", len(starts))
            parts = tuple(min(size, n - start) for start in starts)
        if sum(parts) != n or any(part < 0 for part in parts):
            raise ShapeError("the pieces do not add up to the axis", given=f"{parts} for an axis of {n}",
                             expected=f"sizes whose sum is {n}", fix="check the sizes")
        ends = list(itertools.accumulate(parts))
        return self._pieces(axis, [(end - size, end) for end, size in zip(ends, parts)])

    split_with_sizes = split

    def chunk(self, chunks: int, dim: int = 0, **spelling: Any) -> list[Self]:
        """At most `chunks` equal pieces along an axis (the last may be smaller).

        >>> [t.tolist() for t in Tensor([1, 2, 3, 4, 5]).chunk(2)]
        [[1, 2, 3], [4, 5]]
        """
        dim, = spelled("chunk", spelling, dim=dim)
        count = whole(chunks) or 0
        if count <= 0:
            raise InputError("chunk needs at least one piece", given=repr(chunks), expected="1 or more",
                             fix="write x.chunk(2), for example")
        n = self.shape[working_axis(dim, self.ndim, "chunk")]
        _refuse_many("chunk", min(n, count) if n else count)
        return list(self.split(math.ceil(n / count) if n else [0] * count, dim))

    def tensor_split(self, indices_or_sections: int | Sequence[int], dim: int = 0, **spelling: Any
                     ) -> tuple[Self, ...]:
        """A number of pieces that are as equal as possible (the first ones longer), or pieces split before the given
        indices.

        >>> [t.tolist() for t in Tensor([1, 2, 3]).tensor_split(2)]
        [[1, 2], [3]]
        """
        dim, = spelled("tensor_split", spelling, dim=dim)
        return self._tensor_split(indices_or_sections, dim, "tensor_split")

    def _tensor_split(self, indices_or_sections: Any, dim: int, what: str) -> tuple[Self, ...]:
        axis = working_axis(dim, self.ndim, what)
        n, count = self.shape[axis], whole(indices_or_sections)
        if count is None:
            cuts = [min(max(c + n if c < 0 else c, 0), n) for c in shape_from((indices_or_sections,), what)]
        elif count < 1:
            raise InputError("tensor_split needs at least one piece", given=str(count), expected="1 or more",
                             fix="write x.tensor_split(2), for example")
        else:
            _refuse_many(what, count)
            cuts = [i * (n // count) + min(i, n % count) for i in range(1, count)]
        return self._pieces(axis, [(a, max(a, b)) for a, b in zip([0, *cuts], [*cuts, n])])

    def hsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` along the second axis (vectors: the only one).

        >>> [t.tolist() for t in Tensor([[1, 2]]).hsplit(2)]
        [[[1]], [[2]]]
        """
        return self._tensor_split(indices_or_sections, 0 if self.ndim <= 1 else 1, "hsplit")

    def vsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` along the first axis.

        >>> [t.tolist() for t in Tensor([[1], [2]]).vsplit(2)]
        [[[1]], [[2]]]
        """
        return self._tensor_split(indices_or_sections, 0, "vsplit")

    def dsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` along the third axis.

        >>> [t.tolist() for t in Tensor([[[1, 2]]]).dsplit(2)]
        [[[[1]]], [[[2]]]]
        """
        return self._tensor_split(indices_or_sections, 2, "dsplit")

    def unbind(self, dim: int = 0, **spelling: Any) -> tuple[Self, ...]:
        """The slices along an axis, without the axis.

        >>> [t.tolist() for t in Tensor([[1, 2], [3, 4]]).unbind()]
        [[1, 2], [3, 4]]
        """
        dim, = spelled("unbind", spelling, dim=dim)
        axis = working_axis(dim, self.ndim, "unbind")
        rows = range(self.shape[axis])
        _refuse_many("unbind", len(rows))
        return tuple(self._view(at(self.uop, axis, i)) for i in rows)

    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None, **spelling: Any) -> Self:
        """Elements moved along axes; those that leave at one end enter at the other.

        >>> Tensor([1, 2, 3]).roll(1).tolist()
        [3, 1, 2]
        """
        dims, = spelled("roll", spelling, dims=dims)
        x = flatten(self.uop) if dims is None else self.uop
        by, along = shape_from((shifts,), "roll"), (0,) if dims is None else shape_from((dims,), "roll")
        if len(by) != len(along):
            raise InputError("roll needs one shift per axis", given=f"{len(by)} shifts for {len(along)} axes",
                             expected="as many of one as of the other", fix="write roll((1, 2), (0, 1)), for example")
        for shift, dim in zip(by, along):
            x = roll(x, shift, resolve_axis(dim, len(x.shape), "roll"))
        return self._with(x.reshape(self.shape))

    def unfold(self, dim: int = REQUIRED, size: int = REQUIRED, step: int = REQUIRED, **spelling: Any) -> Self:
        """All windows of a size along an axis, `step` apart; the window is the new last axis.

        >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
        [[1, 2], [2, 3], [3, 4]]
        """
        dim, size, step = arguments("unfold", spelling, dim=dim, size=size, step=step)
        axis = resolve_axis(dim, self.ndim, "unfold")
        n = self.shape[axis] if self.ndim else 1
        if not 0 <= size <= n or step < 1:
            raise ShapeError("the window does not fit the axis", given=f"size={size}, step={step} on an axis of {n}",
                             expected="a size of at most the axis, and a step of at least 1", fix="check the numbers")
        return self._view((self.uop if self.ndim else self.uop.reshape((1,))).window(axis, size, step))

    # -- diagonals -------------------------------------------------------------------------------------------
    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The diagonal of two axes, as a new last axis; `offset` elements above (or below, negative) the main one.

        >>> Tensor([[1, 2], [3, 4]]).diagonal().tolist(), Tensor([[1, 2], [3, 4]]).diagonal(1).tolist()
        ([1, 4], [2])
        """
        offset, = arguments("diagonal", offset=offset)
        row, column = resolve_axis(dim1, self.ndim, "diagonal"), resolve_axis(dim2, self.ndim, "diagonal")
        if self.ndim < 2 or row == column:
            raise ShapeError("diagonal needs two axes", given=f"dim1={dim1}, dim2={dim2}, shape {self.shape}",
                             expected="two different axes of a matrix or a stack of them",
                             fix="write x.diagonal(0, -2, -1)")
        return self._view(diagonal(self.uop, offset, row, column))

    def diag(self, diagonal: int = 0) -> Self:
        """A matrix with this vector as a diagonal, `diagonal` elements above (or below, negative) the main one; for a
        matrix, that diagonal.

        >>> Tensor([1, 2]).diag().tolist(), Tensor([[1, 2], [3, 4]]).diag().tolist()
        ([[1, 0], [0, 2]], [1, 4])
        """
        offset = of_kind("int", "diag", diagonal=diagonal)
        if self.ndim not in (1, 2):
            raise ShapeError("diag needs a vector or a matrix", given=f"shape {self.shape}", expected="1 or 2 axes",
                             fix="for stacks of matrices use x.diagonal(0, -2, -1), of vectors x.diag_embed()")
        return self._with(movement.diagonal(self.uop, offset) if self.ndim == 2 else diagonal_matrix(self.uop, offset))

    def diag_embed(self, offset: int = 0) -> Self:
        """Matrices with the last axis as their diagonal, `offset` elements above (or below, negative) the main one.

        >>> Tensor([1, 2]).diag_embed(1).tolist()
        [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
        """
        working_axis(-1, self.ndim, "diag_embed")
        return self._with(diagonal_matrix(self.uop, *arguments("diag_embed", offset=offset)))

    def diagflat(self, offset: int = 0) -> Self:
        """A matrix with all elements as its diagonal.

        >>> Tensor([[1], [2]]).diagflat().tolist()
        [[1, 0], [0, 2]]
        """
        return self._with(diagonal_matrix(flatten(self.uop), *arguments("diagflat", offset=offset)))

    def sum_to_size(self, *size: Any) -> Self:
        """The tensor summed to a shape: over the axes that broadcasting that shape to this tensor's would repeat.

        >>> Tensor([[1, 2], [3, 4]]).sum_to_size(1, 2).tolist()
        [[4, 6]]
        """
        shape = shape_from(size, "sum_to_size")
        lead = self.ndim - len(shape)
        if not broadcasts_to(shape, self.shape):
            raise ShapeError("cannot sum to this shape", given=f"{self.shape} to {shape}",
                             expected="a shape that can be broadcast to the tensor's", fix="check the sizes")
        gone = [*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and self.shape[lead + i] != 1)]
        return self._with((total(self.uop, gone, keepdim=True) if gone else self.uop).reshape(shape))


def _joined(first: Any, others: Sequence[Any], what: str, dim: int, ready: Callable[[UOp], UOp] = lambda x: x) -> Any:
    """Concatenate tensors along an axis, after `ready` has reshaped each."""
    tensors = _several(first, others, what)
    nodes = [ready(t.uop) for t in tensors]
    if not nodes[0].shape:
        raise AxisError("single numbers have no axis to be put along", given=f"{what} of shape ()",
                        expected="at least 1 axis", fix="use Tensor.stack, which makes one")
    axis = resolve_axis(dim, len(nodes[0].shape), what)
    fit_together(nodes, axis)
    return tensors[0]._with(cat(nodes, axis), *tensors[1:])


def _grid(axes: list[UOp], indexing: str) -> list[UOp]:
    """Return the coordinates of a grid, each in the grid's shape."""
    order = list(range(len(axes)))
    if indexing == "xy":
        order[0], order[1] = 1, 0
    shape = tuple(axes[i].elements for i in order)
    return [x.reshape(tuple(x.elements if i == order.index(k) else 1 for i in range(len(axes)))).expand(shape)
            for k, x in enumerate(axes)]
