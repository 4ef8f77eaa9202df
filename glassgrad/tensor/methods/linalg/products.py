"""Products of vectors and matrices. In, out: tensors.

There is no matmul op: it is expand, multiply, sum; the compiler sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, promote
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor.autograd.autocast import lowered
from glassgrad.tensor.broadcast import broadcast_shape, working_axis
from glassgrad.tensor.methods.random import Random
from glassgrad.tensor.methods.reduce import sum_dtype

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Linear", "contract"]


def contract(x: UOp, y: UOp, out: DType) -> UOp:
    """The sum over the last axis of x * y; narrow floats are multiplied and summed in float32, then rounded."""
    wide = out.accumulator
    return (x.cast(wide) * y.cast(wide)).sum((len(x.shape) - 1,)).cast(out)


class Linear(Random):
    """Products of vectors and matrices."""
    __slots__ = ()

    def matmul(self, other: Any, reverse: bool = False, dtype: DType | str | None = None) -> Self:
        """The matrix product; the same as `x @ other`. Vectors count as one row or column; axes before the last two
        are a stack of matrices and broadcast.

        >>> (Tensor([[1, 2], [3, 4]]) @ Tensor([[5, 6], [7, 8]])).tolist(), (Tensor([1, 2]) @ Tensor([3, 4])).item()
        ([[19, 22], [43, 50]], 11)
        """
        other = self._beside(other)
        left, right = (other, self) if reverse else (self, other)
        x, y = lowered(left.uop), lowered(right.uop)
        place = left._shared_device(right) if left._device is not right._device else left._device
        if not x.shape or not y.shape:
            raise ShapeError("cannot multiply a matrix by a single number with @", given=f"{x.shape} @ {y.shape}",
                             expected="at least 1 axis on each side", fix="use * to scale")
        inner = y.shape[-2] if len(y.shape) > 1 else y.shape[0]
        if x.shape[-1] != inner:
            raise ShapeError("cannot multiply these matrices", given=f"{x.shape} @ {y.shape}",
                             expected=f"columns of the left ({x.shape[-1]}) == rows of the right ({inner})",
                             fix="transpose one side, or check the layer's in_features")
        out = dtype_by_name(dtype) if dtype is not None else self._product_dtype(promote(x.dtype, y.dtype))
        made = left._kin(right)._with(_product(x, y, out))
        made._device = place
        return made

    def _product_dtype(self, factors: DType) -> DType:
        """The type that a matrix product of factors of this type has."""
        return sum_dtype(factors)

    def __matmul__(self, other: Any) -> Self: return self.matmul(other)
    def __rmatmul__(self, other: Any) -> Self: return self.matmul(other, True)
    def __imatmul__(self, other: Any) -> Self: return self._rebind(self.matmul(other))

    def dot(self, other: Any, dtype: DType | str | None = None) -> Self:
        """The same as `matmul`.

        >>> Tensor([1, 2]).dot(Tensor([3, 4])).item()
        11
        """
        return self.matmul(other, dtype=dtype)

    def outer(self, other: Self) -> Self:
        """Every element of this vector times every element of the other.

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        return self.reshape(-1, 1) * other.reshape(1, -1)

    def mm(self, other: Self) -> Self:
        """x @ other, for matrices.

        >>> Tensor([[1, 2]]).mm(Tensor([[3], [4]])).tolist()
        [[11]]
        """
        return self @ other

    def bmm(self, other: Self) -> Self:
        """x @ other, for stacks of matrices.

        >>> Tensor([[[1, 2]]]).bmm(Tensor([[[3], [4]]])).tolist()
        [[[11]]]
        """
        return self @ other

    def mv(self, other: Self) -> Self:
        """x @ other, for a matrix and a vector.

        >>> Tensor([[1, 2]]).mv(Tensor([3, 4])).tolist()
        [11]
        """
        return self @ other

    def vdot(self, other: Self) -> Self:
        """The product of two vectors.

        >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
        11
        """
        if self.ndim != 1 or other.ndim != 1:
            raise ShapeError("vdot is of vectors", given=f"{self.shape} and {other.shape}", expected="1 axis each",
                             fix="use x @ y for matrices")
        return self @ other

    def kron(self, other: Self) -> Self:
        """The Kronecker product: every element of this times the whole other.

        >>> Tensor([1, 10]).kron(Tensor([1, 2])).tolist()
        [1, 2, 10, 20]
        """
        rank = max(self.ndim, other.ndim)
        a, b = (1,) * (rank - self.ndim) + self.shape, (1,) * (rank - other.ndim) + other.shape
        x = self.reshape([m for n in a for m in (n, 1)]) * other.reshape([m for n in b for m in (1, n)])
        return x.reshape([n * m for n, m in zip(a, b)])

    def cross(self, other: Self, dim: int = -1) -> Self:
        """The cross product of vectors of three along an axis.

        >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]
        """
        axis = working_axis(dim, self.ndim, "cross")
        if self.shape[axis] != 3 or other.ndim != self.ndim or other.shape[axis] != 3:
            raise ShapeError(
                "a cross product is of vectors of three",
                given=f"{self.shape} and {other.shape}, dim={dim}",
                expected="3 along that axis",
                fix="choose the axis with dim=",
            )
        return self.roll(-1, axis) * other.roll(-2, axis) - self.roll(-2, axis) * other.roll(-1, axis)

    def linear(self, weight: Self, bias: Self | None = None, dtype: DType | str | None = None) -> Self:
        """x @ weight + bias, with weight (inputs, outputs); a weight with one axis multiplies element by element.
        (`nn.Linear` keeps its weight as (outputs, inputs) and transposes it.)

        >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0], [10.0]]), Tensor([0.5])).tolist()
        [[21.5]]
        """
        x = self * weight if weight.ndim == 1 else self.matmul(weight, dtype=dtype)
        return x if bias is None else x + bias._with(lowered(bias.uop))

    def sequential(self, layers: Iterable[Callable[[Self], Self]]) -> Self:
        """The result of one layer after another.

        >>> Tensor([1, 2]).sequential([lambda x: x + 1, lambda x: x * 10]).tolist()
        [20, 30]
        """
        x = self
        for layer in layers:
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
        product = mat1 @ mat2 if alpha == 1 else (mat1 @ mat2) * alpha
        return (self if beta == 1 else self * beta) + product

    def addmv(self, mat: Self, vec: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha mat @ vec.

        >>> Tensor([1]).addmv(Tensor([[1, 2]]), Tensor([3, 4])).tolist()
        [12]
        """
        return self.addmm(mat, vec, beta, alpha)

    def addr(self, vec1: Self, vec2: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha times the outer product of two vectors.

        >>> Tensor([[1, 1]]).addr(Tensor([2]), Tensor([3, 4])).tolist()
        [[7, 9]]
        """
        return self.addmm(vec1.unsqueeze(1), vec2.unsqueeze(0), beta, alpha)

    def baddbmm(self, batch1: Self, batch2: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha batch1 @ batch2, for stacks of matrices.

        >>> Tensor([[[1]]]).baddbmm(Tensor([[[2]]]), Tensor([[[3]]])).tolist()
        [[[7]]]
        """
        return self.addmm(batch1, batch2, beta, alpha)

    def addbmm(self, batch1: Self, batch2: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha times the sum of batch1 @ batch2 over the stack.

        >>> Tensor([[1]]).addbmm(Tensor([[[2]], [[1]]]), Tensor([[[3]], [[4]]])).tolist()
        [[11]]
        """
        product = (batch1 @ batch2).sum(0)
        return (self if beta == 1 else self * beta) + (product if alpha == 1 else product * alpha)


def _product(x: UOp, y: UOp, out: DType) -> UOp:
    """x (.., M, K) and y (.., K, N) to (.., M, N); a vector loses its axis again."""
    vector_left, vector_right = len(x.shape) == 1, len(y.shape) == 1
    k = x.shape[-1]
    m, n = 1 if vector_left else x.shape[-2], 1 if vector_right else y.shape[-1]
    if not vector_right:
        order = list(range(len(y.shape)))
        order[-1], order[-2] = order[-2], order[-1]
        y = y.permute(order)                                        # (.., N, K)
    stack = broadcast_shape(x.shape[:-2], y.shape[:-2])
    x = x.reshape(x.shape[:-2] + (m, 1, k)).broadcast(stack + (m, n, k))
    y = y.reshape(y.shape[:-2] + (1, n, k)).broadcast(stack + (m, n, k))
    product = contract(x, y, out)                                   # (.., M, N, 1)
    return product.reshape(stack + (() if vector_left else (m,)) + (() if vector_right else (n,)))
