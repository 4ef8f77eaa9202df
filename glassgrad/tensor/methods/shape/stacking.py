"""Tensors brought to one rank or shape and put together: stacks by their second names, blocks, products of sets.

In: several tensors. Out: one, or as many. Each takes `Tensor.hstack(x, y)`, `x.hstack(y)` and PyTorch's list.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor.methods.shape.joining import several
from glassgrad.tensor.methods.shape.view_aliases import Shapes

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Stacking"]


class Stacking(Shapes):
    """Tensors put together."""
    __slots__ = ()

    # -- to one rank or shape --------------------------------------------------------------------------------
    def atleast_1d(self) -> Self:
        """A number as a vector of one; anything else as it is.

        >>> Tensor(3).atleast_1d().tolist()
        [3]
        """
        return self.reshape(1) if self.ndim == 0 else self

    def atleast_2d(self) -> Self:
        """A vector as a matrix of one row; a matrix, or more, as it is.

        >>> Tensor([1, 2]).atleast_2d().tolist()
        [[1, 2]]
        """
        return self.atleast_1d().unsqueeze(0) if self.ndim < 2 else self

    def atleast_3d(self) -> Self:
        """A matrix as a block of depth 1, its last axis.

        >>> Tensor([[1, 2]]).atleast_3d().shape
        (1, 2, 1)
        """
        return self.atleast_2d().unsqueeze(-1) if self.ndim < 3 else self

    def broadcast_tensors(self, *others: Self) -> tuple[Self, ...]:
        """All of them in the shape that they would meet in.

        >>> [t.tolist() for t in Tensor([1, 2]).broadcast_tensors(Tensor([[3], [4]]))]
        [[[1, 2], [1, 2]], [[3, 3], [4, 4]]]
        """
        tensors = several(self, others, "broadcast_tensors")
        rank = max(t.ndim for t in tensors)
        shapes = [(1,) * (rank - t.ndim) + t.shape for t in tensors]
        wide = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*shapes))
        return tuple(t.expand(wide) for t in tensors)

    # -- stacks ----------------------------------------------------------------------------------------------
    def hstack(self, *others: Self) -> Self:
        """Joined along the second axis (vectors: the only one).

        >>> Tensor([1]).hstack(Tensor([2])).tolist()
        [1, 2]
        """
        first, *rest = (t.atleast_1d() for t in several(self, others, "hstack"))
        return first.cat(*rest, dim=0 if first.ndim == 1 else 1)

    def vstack(self, *others: Self) -> Self:
        """Joined along the first axis; vectors count as rows.

        >>> Tensor([1, 2]).vstack(Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        """
        first, *rest = (t.atleast_2d() for t in several(self, others, "vstack"))
        return first.cat(*rest)

    row_stack = vstack

    def dstack(self, *others: Self) -> Self:
        """Joined along the third axis; vectors and matrices get one.

        >>> Tensor([1, 2]).dstack(Tensor([3, 4])).tolist()
        [[[1, 3], [2, 4]]]
        """
        first, *rest = (t.atleast_3d() for t in several(self, others, "dstack"))
        return first.cat(*rest, dim=2)

    def column_stack(self, *others: Self) -> Self:
        """Vectors as the columns of a matrix; matrices side by side.

        >>> Tensor([1, 2]).column_stack(Tensor([3, 4])).tolist()
        [[1, 3], [2, 4]]
        """
        first, *rest = (t.reshape(-1, 1) if t.ndim < 2 else t for t in several(self, others, "column_stack"))
        return first.cat(*rest, dim=1)

    def dsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Self, ...]:
        """`tensor_split` along the third axis.

        >>> [t.tolist() for t in Tensor([[[1, 2]]]).dsplit(2)]
        [[[[1]]], [[[2]]]]
        """
        return self.tensor_split(indices_or_sections, 2)

    def block_diag(self, *others: Self) -> Self:
        """A matrix with these along its diagonal, and zeros elsewhere.

        >>> Tensor([[1, 2]]).block_diag(Tensor([[3]])).tolist()
        [[1, 2, 0], [0, 0, 3]]
        """
        blocks = [t.atleast_2d() for t in several(self, others, "block_diag")]
        if any(block.ndim != 2 for block in blocks):
            raise ShapeError("blocks are matrices", given=f"shapes {[block.shape for block in blocks]}",
                             expected="at most 2 axes each", fix="reshape them, or stack the results")
        width, before, rows = sum(block.shape[1] for block in blocks), 0, []
        for block in blocks:
            after = width - before - block.shape[1]
            rows.append(block.pad(((0, 0), (before, after))))
            before += block.shape[1]
        return rows[0].cat(*rows[1:])

    # -- products of sets ------------------------------------------------------------------------------------
    def cartesian_prod(self, *others: Self) -> Self:
        """Every choice of one value from each vector, as rows.

        >>> Tensor([1, 2]).cartesian_prod(Tensor([3, 4])).tolist()
        [[1, 3], [1, 4], [2, 3], [2, 4]]
        """
        vectors: Any = several(self, others, "cartesian_prod")
        if len(vectors) == 1:
            return vectors[0]  # type: ignore[no-any-return]
        grids = [grid.flatten() for grid in type(vectors[0]).meshgrid(*vectors)]
        return grids[0].stack(*grids[1:], dim=-1)  # type: ignore[no-any-return]

    def combinations(self, r: int = 2, with_replacement: bool = False) -> Self:
        """Every choice of r values of a vector, in order, as rows; each value once, or again `with_replacement`.

        >>> Tensor([1, 2, 3]).combinations().tolist()
        [[1, 2], [1, 3], [2, 3]]
        """
        if self.ndim != 1:
            raise ShapeError("combinations are of a vector's values", given=f"shape {self.shape}", expected="1 axis",
                             fix="flatten it first: x.flatten()")
        choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
        rows = list(choose(range(self.shape[0]), r))
        if not rows or not r:
            return self[:0] if not r else self[:0].reshape(0, r)
        return self[self.__class__(rows, dtype=dtypes.int32, device=self.device)]
