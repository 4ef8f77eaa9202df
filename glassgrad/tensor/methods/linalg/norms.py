"""How large matrices are, and products of several: norms, conditions, ranks, chains. In, out: tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import DType
from glassgrad.tensor.broadcast import resolve_axis
from glassgrad.tensor.methods.linalg.eigenvalues import Eigen

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Norms"]


class Norms(Eigen):
    """Norms and chains of matrices."""
    __slots__ = ()

    def norm(self, p: float | str = 2, dim: Any = None, keepdim: bool = False, dtype: DType | None = None) -> Self:
        """The length of a vector: (sum |x|^p)^(1/p); p may be infinite, or "fro" or "nuc", the sizes of a matrix.

        >>> Tensor([3.0, 4.0]).norm().item(), Tensor([[3.0, 0.0], [0.0, 4.0]]).norm("nuc").item()
        (5.0, 7.0)
        """
        x = self if dtype is None else self.cast(dtype)
        return x.matrix_norm(p, dim or (-2, -1), keepdim) if p == "nuc" else super(Norms, x).norm(p, dim, keepdim)

    def vector_norm(self, ord: float = 2, dim: Any = None, keepdim: bool = False, *,
                    dtype: DType | None = None) -> Self:
        """(sum |x|^ord)^(1 / ord) along axes, of all values if none are given; ord may be infinite, and 0 counts what
        is not 0.

        >>> Tensor([3.0, 4.0]).vector_norm().item()
        5.0
        """
        return (self if dtype is None else self.cast(dtype)).norm(ord, dim, keepdim)

    def matrix_norm(self, ord: float | str = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False, *,
                    dtype: DType | None = None) -> Self:
        """The size of matrices: "fro" (the root of the sum of squares), "nuc" (the sum of singular values), 2 and -2
        (the largest and smallest), inf and -inf (the largest and smallest sum of a row), 1 and -1 (of a column).

        >>> Tensor([[3.0, 0.0], [0.0, 4.0]]).matrix_norm("nuc").item()
        7.0
        """
        x = self if dtype is None else self.cast(dtype)
        if self.ndim < 2 or ord not in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
            raise InputError("this is no norm of a matrix", given=f"ord={ord!r} of shape {self.shape}",
                             expected='"fro", "nuc", inf, -inf, 1, -1, 2 or -2, of 2 axes or more',
                             fix="write x.vector_norm(ord) for a vector")
        row, column = (resolve_axis(axis, self.ndim, "matrix_norm") for axis in dim)
        if ord == "fro":
            return x.norm(2, (row, column), keepdim)
        if ord in ("nuc", 2, -2):
            s = x.movedim((row, column), (-2, -1)).svdvals()
            found = s.sum(-1) if ord == "nuc" else s.amax(-1) if ord == 2 else s.amin(-1)
        else:
            sums = x.abs().sum(column if ord in (math.inf, -math.inf) else row, keepdim=True)
            largest = ord in (1, math.inf)
            found = sums.sum((row, column)) if largest and not sums.numel() else \
                sums.amax((row, column)) if largest else sums.amin((row, column))
        return found.unsqueeze(min(row, column)).unsqueeze(max(row, column)) if keepdim else found

    def svdvals(self) -> Self:
        """The singular values, in descending order.

        >>> Tensor([[3.0, 0.0], [0.0, 4.0]]).svdvals().tolist()
        [4.0, 3.0]
        """
        return self.svd(False)[1]

    def cond(self, p: float | str | None = None) -> Self:
        """How much solving with this matrix can enlarge an error: its norm times that of its inverse.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).cond().item()
        2.0
        """
        if p in (None, 2, -2):
            s = self.svdvals()
            return s[..., 0] / s[..., -1] if p != -2 else s[..., -1] / s[..., 0]
        return self.matrix_norm(p) * self.inv().matrix_norm(p)                # type: ignore[arg-type]

    def matrix_rank(self, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False) -> Self:
        """How many singular values (eigenvalues, if `hermitian`) are larger than atol and than rtol times the largest.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).matrix_rank().item()
        1
        """
        sizes = self.eigvalsh().abs() if hermitian else self.svdvals()
        share = rtol if rtol is not None else 0.0 if atol else max(self.shape[-2:]) * 2.0 ** -self.dtype.mantissa
        return (sizes > (sizes.amax(-1, keepdim=True) * share).maximum(atol or 0.0)).sum(-1)

    # -- products --------------------------------------------------------------------------------------------
    def vecdot(self, other: Self, dim: int = -1) -> Self:
        """The sum of products along one axis.

        >>> Tensor([[1, 2], [3, 4]]).vecdot(Tensor([1, 10])).tolist()
        [21, 43]
        """
        return (self * other).sum(dim)

    @classmethod
    def multi_dot(cls, tensors: Sequence[Self]) -> Self:
        """The product of a chain of matrices, in the order that takes the fewest multiplications; the first and last
        may be vectors.

        >>> Tensor.multi_dot([Tensor([[1, 2]]), Tensor([[3], [4]]), Tensor([[5]])]).tolist()
        [[55]]
        """
        if len(tensors) < 2 or any(t.ndim != 2 for t in tensors[1:-1]) or \
                any(t.ndim not in (1, 2) for t in (tensors[0], tensors[-1])):
            raise ShapeError("a chain is of two matrices or more", given=f"shapes {[t.shape for t in tensors]}",
                             expected="matrices; the first and last may be vectors", fix="use @ for stacks of them")
        first, *middle, last = tensors
        chain = [first.unsqueeze(0) if first.ndim == 1 else first, *middle,
                 last.unsqueeze(1) if last.ndim == 1 else last]
        found = _multiplied(chain, 0, len(chain), {})[1]
        found = found.squeeze(-1) if last.ndim == 1 else found
        return found.squeeze(0) if first.ndim == 1 else found

    def tensorinv(self, ind: int = 2) -> Self:
        """The inverse of the map that this is from its last axes to its first `ind`.

        >>> Tensor.eye(4).reshape(2, 2, 2, 2).tensorinv().shape
        (2, 2, 2, 2)
        """
        first, rest = self.shape[:ind], self.shape[ind:]
        return self.reshape(math.prod(first), -1).inv().reshape(*rest, *first)

    def tensorsolve(self, other: Self, dims: Sequence[int] | None = None) -> Self:
        """The x for which the sum of products of this' last axes with x is `other`; `dims` are moved to the end first.

        >>> Tensor.eye(4).reshape(2, 2, 4).tensorsolve(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [1.0, 2.0, 3.0, 4.0]
        """
        x = self if dims is None else self.movedim(tuple(dims), tuple(range(-len(dims), 0)))
        rest = x.shape[other.ndim:]
        return x.reshape(other.numel(), -1).solve(other.flatten()).reshape(rest)

    def vander(self, N: int | None = None, increasing: bool = False) -> Self:
        """Powers of each value as a row, down to 0 (or up from it, if `increasing`).

        >>> Tensor([2, 3]).vander(3).tolist()
        [[4, 2, 1], [9, 3, 1]]
        """
        count = self.shape[-1] if N is None else N
        if count < 1:
            return self.unsqueeze(-1)[..., :0]
        base = self.unsqueeze(-1)
        powers = base.ones_like().cat(base.expand(*self.shape, count - 1), dim=-1).cumprod(-1)
        return powers if increasing else powers.flip(-1)


def _multiplied(chain: list[Any], start: int, stop: int, known: Any) -> tuple[int, Any]:
    """The fewest multiplications for chain[start:stop], and its product by them."""
    if stop - start == 1:
        return 0, chain[start]
    if (start, stop) not in known:
        rows, columns = chain[start].shape[0], chain[stop - 1].shape[1]
        ways = []
        for middle in range(start + 1, stop):
            left, right = _multiplied(chain, start, middle, known), _multiplied(chain, middle, stop, known)
            ways.append((left[0] + right[0] + rows * chain[middle].shape[0] * columns, middle))
        cost, best = min(ways)
        known[start, stop] = cost, _multiplied(chain, start, best, known)[1] @ _multiplied(chain, best, stop, known)[1]
    return known[start, stop]  # type: ignore[no-any-return]
