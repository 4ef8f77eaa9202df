"""Products of vectors and matrices. In, out: tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import DType, promote
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor import checks
from glassgrad.tensor.autograd.autocast import in_autocast_dtype
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.broadcast import working_axis
from glassgrad.tensor.checks import REQUIRED, arguments, computed
from glassgrad.tensor.formulas.linalg import products
from glassgrad.tensor.formulas.movement import unsqueeze
from glassgrad.tensor.formulas.reductions import total


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
        other, kind = arguments("matmul", spelling, other=other, dtype=dtype)
        reverse, = arguments("matmul", reverse=reverse)
        return self._product(other, reverse, kind)

    def _product(self, other: Any, reverse: bool = False, dtype: DType | None = None) -> Self:
        other = self._beside(other)
        left, right = (other, self) if reverse else (self, other)
        x, y = in_autocast_dtype(left.uop), in_autocast_dtype(right.uop)
        kind = dtype or left._kin(right)._product_dtype(promote(x.dtype, y.dtype))
        return left._with(products.matmul(x, y, kind), right)

    def _product_dtype(self, factors: DType) -> DType:
        """The type that a matrix product of factors of this type has. A subclass may say another."""
        return products.product_dtype(factors)

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

    def outer(self, other: Self) -> Self:
        """Every element of this vector times every element of the other.

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        return computed(self, products.outer, "outer", other=other)

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
        """The Kronecker product: every element of this times the whole other.

        >>> Tensor([1, 10]).kron(Tensor([1, 2])).tolist()
        [1, 2, 10, 20]
        """
        return computed(self, products.kron, "kron", other=other)

    def cross(self, other: Self, dim: int = -1, **spelling: Any) -> Self:
        """The cross product of vectors of three along an axis.

        >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]
        """
        other, dim = arguments("cross", spelling, other=other, dim=dim)
        axis = working_axis(dim, self.ndim, "cross")
        if self.shape[axis] != 3 or other.ndim != self.ndim or other.shape[axis] != 3:
            raise ShapeError("a cross product is of vectors of three", given=f"{self.shape} and {other.shape}, {dim=}",
                             expected="3 along that axis", fix="choose the axis with dim=")
        return self._with(products.cross(self.uop, other.uop, axis), other)

    def linear(self, weight: Self, bias: Self | None = None, dtype: DType | str | None = None) -> Self:
        """x @ weight + bias, with weight (inputs, outputs); a weight with one axis multiplies element by element.
        (`nn.Linear` keeps its weight as (outputs, inputs) and transposes it.)

        >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0], [10.0]]), Tensor([0.5])).tolist()
        [[21.5]]
        """
        return computed(self, products.linear, "linear", weight=weight, bias=bias, dtype=dtype)

    def sequential(self, layers: Iterable[Callable[[Self], Self]] = REQUIRED, **spelling: Any) -> Self:
        """The result of one layer after another.

        >>> Tensor([1, 2]).sequential([lambda x: x + 1, lambda x: x * 10]).tolist()
        [20, 30]
        """
        layers, = checks.spelled("sequential", spelling, layers=layers)
        x = self
        for layer in checks.items("sequential", layers=layers):
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
        def product(x: UOp, y: UOp) -> UOp:
            return products.matmul(unsqueeze(x, 1 if x.shape else 0), unsqueeze(y, 0))

        return self._added(product, "addr", beta, alpha, vec1=vec1, vec2=vec2)

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
        """beta x + alpha times a product of two tensors."""
        first, second = arguments(what, **factors)
        beta, alpha = self._operand(beta, "as beta"), self._operand(alpha, "as alpha")
        return self._with(products.scaled_sum(self.uop, beta, product(first.uop, second.uop), alpha), first, second)
