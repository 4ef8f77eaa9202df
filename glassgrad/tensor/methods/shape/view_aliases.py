"""Other libraries' names for views and joins, each in terms of movement.py and joining.py. In, out: tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor.broadcast import resolve_axes, resolve_axis, shape_from, whole, working_axis
from glassgrad.tensor.methods.neural.distances import Distances

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Shapes"]


class Shapes(Distances):
    """Views and joins under other names."""
    __slots__ = ()

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Two axes swapped; `transpose`.

        >>> Tensor([[1, 2]]).swapaxes(0, 1).tolist()
        [[1], [2]]
        """
        return self.transpose(axis0, axis1)

    def t(self) -> Self:
        """A matrix with rows and columns swapped; a vector as it is.

        >>> Tensor([[1, 2]]).t().tolist()
        [[1], [2]]
        """
        if self.ndim > 2:
            raise ShapeError("t() is for matrices", given=f"shape {self.shape}", expected="at most 2 axes",
                             fix="use transpose(-2, -1)")
        return self.transpose(0, 1) if self.ndim == 2 else self

    def ravel(self) -> Self:
        """All elements as a vector; `flatten`.

        >>> Tensor([[1, 2]]).ravel().tolist()
        [1, 2]
        """
        return self.flatten()

    def tile(self, *repeats: Any) -> Self:
        """The tensor repeated along axes; missing numbers are 1.

        >>> Tensor([1, 2]).tile(2).tolist()
        [1, 2, 1, 2]
        """
        counts = shape_from(repeats, "tile")
        return self.repeat((1,) * max(0, self.ndim - len(counts)) + counts)

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """A part of an axis.

        >>> Tensor([1, 2, 3]).narrow(0, 1, 2).tolist()
        [2, 3]
        """
        axis = resolve_axis(dim, self.ndim, "narrow")
        first = start + self.shape[axis] if start < 0 else start
        return self.shrink([(first, first + length) if a == axis else None for a in range(self.ndim)])

    def select(self, dim: int, index: int) -> Self:
        """One slice of an axis, without it.

        >>> Tensor([[1, 2], [3, 4]]).select(1, 0).tolist()
        [1, 3]
        """
        return self[(slice(None),) * resolve_axis(dim, self.ndim, "select") + (index,)]

    def fliplr(self) -> Self:
        """The second axis reversed.

        >>> Tensor([[1, 2]]).fliplr().tolist()
        [[2, 1]]
        """
        return self.flip(1)

    def flipud(self) -> Self:
        """The first axis reversed.

        >>> Tensor([[1], [2]]).flipud().tolist()
        [[2], [1]]
        """
        return self.flip(0)

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Turned by k quarters in the plane of two axes, from the first toward the second.

        >>> Tensor([[1, 2], [3, 4]]).rot90().tolist()
        [[2, 4], [1, 3]]
        """
        first, second = resolve_axes(tuple(dims), self.ndim, "rot90")
        if k % 4 == 2:
            return self.flip(first, second)
        if k % 4 == 0:
            return self
        return self.flip(second).transpose(first, second) if k % 4 == 1 else self.transpose(first, second).flip(second)

    def tensor_split(self, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """So many pieces as equal as can be (the first ones longer), or cut before the places given.

        >>> [t.tolist() for t in Tensor([1, 2, 3]).tensor_split(2)]
        [[1, 2], [3]]
        """
        axis = working_axis(dim, self.ndim, "tensor_split")
        n, count = self.shape[axis], whole(indices_or_sections)
        if count is None:
            cuts = [min(max(c + n if c < 0 else c, 0), n) for c in shape_from((indices_or_sections,), "tensor_split")]
        elif count < 1:
            raise InputError("tensor_split needs at least one piece", given=str(count), expected="1 or more",
                             fix="write x.tensor_split(2), for example")
        else:
            cuts = [i * (n // count) + min(i, n % count) for i in range(1, count)]
        return tuple(self.shrink([(a, max(a, b)) if k == axis else None for k in range(self.ndim)])
                     for a, b in zip([0, *cuts], [*cuts, n]))

    def hsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` along the second axis (vectors: the only one).

        >>> [t.tolist() for t in Tensor([[1, 2]]).hsplit(2)]
        [[[1]], [[2]]]
        """
        return self.tensor_split(indices_or_sections, 0 if self.ndim <= 1 else 1)

    def vsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` along the first axis.

        >>> [t.tolist() for t in Tensor([[1], [2]]).vsplit(2)]
        [[[1]], [[2]]]
        """
        return self.tensor_split(indices_or_sections, 0)

    def pad_to(self, shape: Any, *more: Any, value: float = 0) -> Self:
        """Grown at the end of every axis to a shape; None keeps a size.

        >>> Tensor([1, 2]).pad_to(4).tolist()
        [1, 2, 0, 0]
        """
        sizes = self._sizes_for((shape, *more), "pad_to")
        return self.pad(tuple((0, m - n) for n, m in zip(self.shape, sizes)), value=value)

    def shrink_to(self, shape: Any, *more: Any) -> Self:
        """Cut at the end of every axis to a shape; None keeps a size.

        >>> Tensor([1, 2, 3]).shrink_to(2).tolist()
        [1, 2]
        """
        return self.shrink([(0, m) for m in self._sizes_for((shape, *more), "shrink_to")])

    def diag_embed(self, offset: int = 0) -> Self:
        """Matrices with the last axis as their diagonal, `offset` places above (or below, negative) the main one.

        >>> Tensor([1, 2]).diag_embed(1).tolist()
        [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
        """
        n = self.shape[working_axis(-1, self.ndim, "diag_embed")]
        size = n + abs(offset)
        spread = self.unsqueeze(-2 if offset > 0 else -1).expand(*self.shape[:-1], n, n)
        lead = [(0, 0)] * (self.ndim - 1)
        block = self.__class__.eye(n, dtype=dtypes.bool).where(spread, 0)
        after = (0, size - n)
        return block._pad_constant([*lead, *((after, after[::-1]) if offset > 0 else (after[::-1], after))], 0)

    def diagflat(self, offset: int = 0) -> Self:
        """A matrix with all elements as its diagonal.

        >>> Tensor([[1], [2]]).diagflat().tolist()
        [[1, 0], [0, 2]]
        """
        return self.flatten().diag_embed(offset)

    def sum_to_size(self, *size: Any) -> Self:
        """Summed over the axes that broadcasting to this shape would have repeated.

        >>> Tensor([[1, 2], [3, 4]]).sum_to_size(1, 2).tolist()
        [[4, 6]]
        """
        shape = shape_from(size, "sum_to_size")
        lead = self.ndim - len(shape)
        if lead < 0 or any(n not in (1, m) for n, m in zip(shape, self.shape[lead:])):
            raise ShapeError("cannot sum to this shape", given=f"{self.shape} to {shape}",
                             expected="a shape that can be broadcast to the tensor's", fix="check the sizes")
        gone = [*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and self.shape[lead + i] != 1)]
        return (self.sum(gone, keepdim=True) if gone else self).reshape(shape)

    def _sizes_for(self, shape: tuple[Any, ...], what: str) -> tuple[int, ...]:
        wish = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if len(wish) != self.ndim:
            raise ShapeError(f"{what} needs one size per axis", given=f"{wish} for shape {self.shape}",
                             expected=f"{self.ndim} sizes", fix="write None for axes to leave alone")
        return shape_from(tuple(n if m is None else m for n, m in zip(self.shape, wish)), what)
