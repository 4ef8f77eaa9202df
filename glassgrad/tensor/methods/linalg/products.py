"""Define products of vectors and matrices, norms, condition numbers and ranks. In, out: tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import DType, UOp, dtype_by_name, full, ops as o, promote
from glassgrad.tensor.autograd.autocast import in_autocast_dtype
from glassgrad.tensor.formulas import (absolute, add, as_float, at, cat, divide, flatten, largest, less, maximum, mul,
                                       norm, roll, rounded_once, running, scaled, smallest, squeeze, sub, sum_dtype,
                                       total, unsqueeze)
from glassgrad.tensor.formulas.linalg import factorizations as factors, products
from glassgrad.tensor.formulas.linalg.factorizations import inverted, of_matrices, singular_values, solved
from glassgrad.tensor.methods import (REQUIRED, Axis, Operand, Self, TensorBase, arguments, cannot_take, computed,
                                      of_kind, resolve_axes, resolve_axis, spelled, working_axis)

_MATRIX_NORMS = ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


def _matrix_norm(x: UOp, order: Any, dim: Sequence[int], keepdim: bool) -> UOp:
    if len(x.shape) < 2 or not isinstance(order, (str, int, float)) or order not in _MATRIX_NORMS:
        raise InputError("this is no norm of a matrix", given=f"ord={order!r} of shape {x.shape}",
                         expected='"fro", "nuc", inf, -inf, 1, -1, 2 or -2, of 2 axes or more',
                         fix="write x.vector_norm(ord) for a vector")
    row, column = (resolve_axis(axis, len(x.shape), "matrix_norm") for axis in dim)
    if order == "fro":
        return norm(x, 2, (row, column), keepdim)
    if order in ("nuc", 2, -2):
        rest = [a for a in range(len(x.shape)) if a not in (row, column)]
        s = singular_values(x.permute((*rest, row, column)))[1]
        found = total(s, -1) if order == "nuc" else largest(s, -1) if order == 2 else smallest(s, -1)
    else:
        sums = total(absolute(x), column if order in (math.inf, -math.inf) else row, keepdim=True)
        large = order in (1, math.inf)
        found = total(sums, (row, column)) if large and 0 in sums.shape else \
            largest(sums, (row, column)) if large else smallest(sums, (row, column))
    return unsqueeze(unsqueeze(found, min(row, column)), max(row, column)) if keepdim else found


class ProductsMixin(TensorBase):
    """Products of vectors and matrices."""
    __slots__ = ()

    def matmul(self, other: Any = REQUIRED, reverse: bool = False, dtype: DType | str | None = None,
               **spelling: Any) -> Self:
        """The matrix product; the same as `x @ other`. Vectors count as one row or column; axes before the last two
        are a stack of matrices and broadcast.

        >>> (Tensor([[1, 2], [3, 4]]) @ Tensor([[5, 6], [7, 8]])).tolist(), (Tensor([1, 2]) @ Tensor([3, 4])).item()
        ([[19, 22], [43, 50]], 11)
        """
        return self._product(*arguments("matmul", spelling, other=other, reverse=reverse, dtype=dtype))

    def _product(self, other: Any, reverse: bool = False, dtype: DType | None = None) -> Self:
        other = self._beside(other)
        left, right = (other, self) if reverse else (self, other)
        x, y = in_autocast_dtype(left.uop), in_autocast_dtype(right.uop)
        kind = dtype or left._kin(right)._product_dtype(promote(x.dtype, y.dtype))
        return left._with(products.matmul(x, y, kind), right)

    def _product_dtype(self, factors: DType) -> DType:
        """Return the type of a matrix product of factors of this type. A subclass may use another."""
        return sum_dtype(factors)

    def __matmul__(self, other: Any) -> Self: return self._product(other)
    def __rmatmul__(self, other: Any) -> Self: return self._product(other, True)
    def __imatmul__(self, other: Any) -> Self: return self._rebind(self._product(other))

    def dot(self, other: Any = REQUIRED, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The same as `matmul`.

        >>> Tensor([1, 2]).dot(Tensor([3, 4])).item()
        11
        """
        other, kind = arguments("dot", spelling, other=other, dtype=dtype)
        return self._product(other, dtype=kind)

    image_dot = dot          # tinygrad's, in textures; memory is plain here

    def outer(self, other: Self) -> Self:
        """Every element of this vector times every element of the other.

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        return computed(self, lambda x, y: mul(unsqueeze(flatten(x), 1), flatten(y)), "outer", other=other)

    ger = outer

    def mm(self, other: Self) -> Self:
        """x @ other, for matrices.

        >>> Tensor([[1, 2]]).mm(Tensor([[3], [4]])).tolist()
        [[11]]
        """
        return self._product(other)

    def bmm(self, other: Self) -> Self:
        """x @ other, for stacks of matrices.

        >>> Tensor([[[1, 2]]]).bmm(Tensor([[[3], [4]]])).tolist()
        [[[11]]]
        """
        return self._product(other)

    def mv(self, other: Self) -> Self:
        """x @ other, for a matrix and a vector.

        >>> Tensor([[1, 2]]).mv(Tensor([3, 4])).tolist()
        [11]
        """
        return self._product(other)

    def vdot(self, other: Self) -> Self:
        """The product of two vectors.

        >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
        11
        """
        other, = arguments("vdot", other=other)
        if self.ndim != 1 or other.ndim != 1:
            raise ShapeError("vdot is of vectors", given=f"{self.shape} and {other.shape}", expected="1 axis each",
                             fix="use x @ y for matrices")
        return self._product(other)

    def kron(self, other: Self) -> Self:
        """The Kronecker product: every element of this tensor times the whole other.

        >>> Tensor([1, 10]).kron(Tensor([1, 2])).tolist()
        [1, 2, 10, 20]
        """
        return computed(self, products.kron, "kron", other=other)

    def cross(self, other: Self, dim: int = -1, **spelling: Any) -> Self:
        """The cross product of vectors with three elements along an axis.

        >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]
        """
        other, dim = arguments("cross", spelling, other=other, dim=dim)
        axis = working_axis(dim, self.ndim, "cross")
        if self.shape[axis] != 3 or other.ndim != self.ndim or other.shape[axis] != 3:
            raise ShapeError("a cross product is of vectors of three", given=f"{self.shape} and {other.shape}, {dim=}",
                             expected="3 along that axis", fix="choose the axis with dim=")
        (x1, x2), (y1, y2) = ((roll(t.uop, -1, axis), roll(t.uop, -2, axis)) for t in (self, other))
        return self._with(sub(mul(x1, y2), mul(x2, y1)), other)

    def linear(self, weight: Self, bias: Self | None = None, dtype: DType | str | None = None) -> Self:
        """x @ weight + bias, with weight (inputs, outputs); a weight with one axis multiplies element by element.
        (`nn.Linear` stores its weight as (outputs, inputs) and transposes it.)

        >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0], [10.0]]), Tensor([0.5])).tolist()
        [[21.5]]
        """
        return computed(self, products.linear, "linear", weight=weight, bias=bias, dtype=dtype)

    def sequential(self, layers: Iterable[Callable[[Self], Self]] = REQUIRED, **spelling: Any) -> Self:
        """The result of applying one layer after another.

        >>> Tensor([1, 2]).sequential([lambda x: x + 1, lambda x: x * 10]).tolist()
        [20, 30]
        """
        layers, = spelled("sequential", spelling, layers=layers)
        x = self
        for layer in of_kind("list", "sequential", layers=layers):
            if not callable(layer):
                raise InputError("sequential needs layers to call", given=f"{layer!r} of type {type(layer).__name__}",
                                 expected="functions or layers", fix="check the list of layers")
            x = layer(x)
        return x

    # -- products added to something -------------------------------------------------------------------------
    def addmm(self, mat1: Self, mat2: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha mat1 @ mat2.

        >>> Tensor([[1]]).addmm(Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
        [[12]]
        """
        return self._added(products.matmul, "addmm", beta, alpha, mat1=mat1, mat2=mat2)

    def addmv(self, mat: Self, vec: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha mat @ vec.

        >>> Tensor([1]).addmv(Tensor([[1, 2]]), Tensor([3, 4])).tolist()
        [12]
        """
        return self._added(products.matmul, "addmv", beta, alpha, mat=mat, vec=vec)

    def addr(self, vec1: Self, vec2: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha times the outer product of two vectors.

        >>> Tensor([[1, 1]]).addr(Tensor([2]), Tensor([3, 4])).tolist()
        [[7, 9]]
        """
        return self._added(lambda x, y: mul(unsqueeze(flatten(x), 1), flatten(y)), "addr", beta, alpha,
                           vec1=vec1, vec2=vec2)

    def baddbmm(self, batch1: Self, batch2: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha batch1 @ batch2, for stacks of matrices.

        >>> Tensor([[[1]]]).baddbmm(Tensor([[[2]]]), Tensor([[[3]]])).tolist()
        [[[7]]]
        """
        return self._added(products.matmul, "baddbmm", beta, alpha, batch1=batch1, batch2=batch2)

    def addbmm(self, batch1: Self, batch2: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha times the sum of batch1 @ batch2 over the stack.

        >>> Tensor([[1]]).addbmm(Tensor([[[2]], [[1]]]), Tensor([[[3]], [[4]]])).tolist()
        [[11]]
        """
        return self._added(lambda x, y: total(products.matmul(x, y), 0), "addbmm", beta, alpha, batch1=batch1,
                           batch2=batch2)

    def _added(self, product: Callable[[UOp, UOp], UOp], what: str, beta: Any, alpha: Any, **factors: Any) -> Self:
        """Compute beta x + alpha times a product of two tensors."""
        first, second = arguments(what, **factors)
        beta, alpha = self._operand(beta, "as beta"), self._operand(alpha, "as alpha")
        @rounded_once
        def added(x: UOp, a: UOp, b: UOp) -> UOp:
            return add(scaled(x, beta), scaled(product(a, b), alpha))

        return self._with(added(self.uop, first.uop, second.uop), first, second)

    # -- norms -----------------------------------------------------------------------------------------------
    def _as(self, dtype: DType | str | None) -> UOp:
        return self.uop if dtype is None else self.uop.cast(dtype_by_name(dtype))

    def norm(self, p: float | str = 2, dim: Axis = None, keepdim: bool = False, dtype: DType | None = None,
             **spelling: Any) -> Self:
        """The length of a vector: (sum |x|^p)^(1/p). p may be infinite, or "fro" or "nuc", which are norms of a matrix.

        Powers are not scaled, as in PyTorch: the 2-norm of float32 (in which 16 bits are computed) is infinite for
        values above 1.8e19, and 0 for values below 1e-23. `hypot` has no such limits.

        >>> Tensor([3.0, 4.0]).norm().item(), Tensor([[3.0, 0.0], [0.0, 4.0]]).norm("nuc").item()
        (5.0, 7.0)
        """
        p, dim, keepdim, dtype = arguments("norm", spelling, p=p, dim=dim, keepdim=keepdim, dtype=dtype)
        if isinstance(p, str) and p == "nuc":
            return self._with(_matrix_norm(self._as(dtype), p, _pair("norm", dim or (-2, -1)), keepdim))
        if isinstance(p, str) and p != "fro":
            raise InputError("there is no such norm", given=f"p={p!r}", expected='a number or "fro"',
                             fix="write x.norm(2), for example")
        order = 2 if isinstance(p, str) else of_kind("float", "norm", p=p)
        return self._with(norm(self._as(dtype), order, dim, keepdim))

    def vector_norm(self, ord: float = 2, dim: Axis = None, keepdim: bool = False, *, dtype: DType | None = None,
                    **spelling: Any) -> Self:
        """(sum |x|^ord)^(1 / ord) along axes, or of all values if no axes are given; ord may be infinite, and 0 counts
        the values that are not 0.

        >>> Tensor([3.0, 4.0]).vector_norm().item()
        5.0
        """
        ord, dim, keepdim = arguments("vector_norm", spelling, ord=ord, dim=dim, keepdim=keepdim)
        return self._with(norm(self._as(dtype), ord, dim, keepdim))

    def matrix_norm(self, ord: float | str = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *,
                    dtype: DType | None = None, **spelling: Any) -> Self:
        """The norm of matrices: "fro" (the root of the sum of squares), "nuc" (the sum of singular values), 2 and -2
        (the largest and smallest), inf and -inf (the largest and smallest sum of a row), 1 and -1 (of a column).

        >>> Tensor([[3.0, 0.0], [0.0, 4.0]]).matrix_norm("nuc").item()
        7.0
        """
        ord, dim, keepdim = arguments("matrix_norm", spelling, ord=ord, dim=dim, keepdim=keepdim)
        return self._with(_matrix_norm(self._as(dtype), ord, _pair("matrix_norm", dim), keepdim))

    def cond(self, p: float | str | None = None) -> Self:
        """The condition number: the matrix' norm times that of its inverse; 0 for an empty matrix.

        >>> Tensor([[2.0, 0.0], [0.0, 1.0]]).cond().item()
        2.0
        """
        x = self.uop
        p = p if p is None or isinstance(p, str) else of_kind("float", "cond", p=p)
        if len(x.shape) > 1 and 0 in x.shape[-2:]:
            return self._with(total(as_float(x), (-2, -1)))
        if p in (None, 2, -2):
            s = singular_values(x, what="cond")[1]
            first, last = at(s, -1, 0), at(s, -1, -1)
            return self._with(divide(last, first) if p == -2 else divide(first, last))
        return self._with(mul(_matrix_norm(x, p, (-2, -1), False), _matrix_norm(inverted(x), p, (-2, -1), False)))

    def matrix_rank(self, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False) -> Self:
        """The number of singular values (eigenvalues, if `hermitian`) that are larger than atol and than rtol times the
        largest.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).matrix_rank().item()
        1
        """
        atol, rtol, hermitian = arguments("matrix_rank", atol=atol, rtol=rtol, hermitian=hermitian)
        if hermitian:
            sizes = of_matrices(factors.eigen, self.uop, "matrix_rank")[0].abs()
        else:
            sizes = singular_values(self.uop, what="matrix_rank")[1]
        share = rtol if rtol is not None else 0.0 if atol else max(self.shape[-2:]) * 2.0 ** -self.dtype.mantissa
        most = largest(sizes, -1, keepdim=True) if sizes.shape[-1] else sizes        # an empty matrix has no values
        return self._with(total(less(maximum(mul(most, share), atol or 0.0), sizes), -1))

    # -- products of several ---------------------------------------------------------------------------------
    def vecdot(self, other: Operand, dim: int = -1, **spelling: Any) -> Self:
        """The sum of products along one axis.

        >>> Tensor([[1, 2], [3, 4]]).vecdot(Tensor([1, 10])).tolist()
        [21, 43]
        """
        return computed(self, lambda x, y, axis: total(mul(x, y), axis), "vecdot", spelling, other=other, dim=dim)

    @classmethod
    def multi_dot(cls, tensors: Sequence[Self]) -> Self:
        """The product of a chain of matrices, in the order that takes the fewest multiplications; the first and last
        may be vectors.

        >>> Tensor.multi_dot([Tensor([[1, 2]]), Tensor([[3], [4]]), Tensor([[5]])]).tolist()
        [[55]]
        """
        chosen = of_kind("list[Tensor]", "multi_dot", tensors=tensors)
        if len(chosen) < 2 or any(t.ndim != 2 for t in chosen[1:-1]) or \
                any(t.ndim not in (1, 2) for t in (chosen[0], chosen[-1])):
            raise ShapeError("a chain is of two matrices or more", given=f"shapes {[t.shape for t in chosen]}",
                             expected="matrices; the first and last may be vectors", fix="use @ for stacks of them")
        first, *middle, last = [t.uop for t in chosen]
        chain = [unsqueeze(first, 0) if len(first.shape) == 1 else first, *middle,
                 unsqueeze(last, 1) if len(last.shape) == 1 else last]
        found = _multiplied(chain, 0, len(chain), {})[1]
        found = squeeze(found, -1) if len(last.shape) == 1 else found
        return chosen[0]._with(squeeze(found, 0) if len(first.shape) == 1 else found, *chosen[1:])

    def tensorinv(self, ind: int = 2) -> Self:
        """The inverse of this tensor as a linear map from its last axes to its first `ind`.

        >>> Tensor.eye(4).reshape(2, 2, 2, 2).tensorinv().shape
        (2, 2, 2, 2)
        """
        ind, = arguments("tensorinv", ind=ind)
        first, rest = self.shape[:ind], self.shape[ind:]
        square = self.uop.reshape((math.prod(first), math.prod(rest)))
        return self._with(inverted(square, "tensorinv").reshape((*rest, *first)))

    def tensorsolve(self, other: Self, dims: Sequence[int] | None = None) -> Self:
        """The x whose contraction with the last axes of this tensor is `other`; `dims` are moved to the end first.

        >>> Tensor.eye(4).reshape(2, 2, 4).tensorsolve(Tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
        [1.0, 2.0, 3.0, 4.0]
        """
        other, = arguments("tensorsolve", other=other)
        chosen = () if dims is None else of_kind("list[int]", "tensorsolve", dims=dims)
        last = resolve_axes(chosen, self.ndim, "tensorsolve")
        x, right = self.uop.permute([*(a for a in range(self.ndim) if a not in last), *last]), other.uop
        rest = x.shape[other.ndim:]
        if math.prod(x.shape[:other.ndim]) != math.prod(rest) or math.prod(rest) != right.elements:
            raise ShapeError("tensorsolve needs as many unknowns as equations",
                             given=f"{self.shape} and {other.shape}", expected="first axes of the other's shape, and "
                             "as many elements in the rest", fix="check the shapes, or pass dims")
        return self._with(solved(x.reshape((right.elements, math.prod(rest))), flatten(right)).reshape(rest), other)

    def vander(self, N: int | None = None, increasing: bool = False) -> Self:
        """Powers of each value as a row, down to 0 (or up from 0, if `increasing`).

        >>> Tensor([2, 3]).vander(3).tolist()
        [[4, 2, 1], [9, 3, 1]]
        """
        N, increasing = arguments("vander", N=N, increasing=increasing)
        x = self.uop
        if not x.shape:
            raise ShapeError("vander takes powers of a vector", given="shape ()", expected="at least 1 axis",
                             fix="give it one first: x.reshape(1)")
        count = x.shape[-1] if N is None else N
        base = unsqueeze(x, -1)
        if count < 1:
            return self._with(base.shrink([*((0, n) for n in x.shape), (0, 0)]))
        factors_ = cat([full(base.shape, 1, x.dtype), base.expand((*x.shape, count - 1))], -1)
        powers = running(o.MUL, factors_, -1, sum_dtype(x.dtype))
        return self._with(powers if increasing else powers.flip((self.ndim,)))


def _pair(what: str, dim: Any) -> Sequence[int]:
    """Return two axes; raise for any other number of them."""
    if not isinstance(dim, (tuple, list)) or len(dim) != 2:
        raise cannot_take(what, "dim", dim, "two axes")
    return dim


def _multiplied(chain: list[UOp], start: int, stop: int, known: Any) -> tuple[int, UOp]:
    """Return the fewest multiplications for chain[start:stop], and the product in that order."""
    if stop - start == 1:
        return 0, chain[start]
    if (start, stop) not in known:
        rows, columns = chain[start].shape[0], chain[stop - 1].shape[1]
        ways = []
        for middle in range(start + 1, stop):
            left, right = _multiplied(chain, start, middle, known), _multiplied(chain, middle, stop, known)
            ways.append((left[0] + right[0] + rows * chain[middle].shape[0] * columns, middle))
        cost, best = min(ways)
        known[start, stop] = cost, products.matmul(_multiplied(chain, start, best, known)[1],
                                                   _multiplied(chain, best, stop, known)[1])
    return known[start, stop]  # type: ignore[no-any-return]
