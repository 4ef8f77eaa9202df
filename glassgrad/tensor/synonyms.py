"""PyTorch's other names for the same thing, and its small combinations. In, out: tensors.

A synonym is the method itself under a second name; what follows below is one line each in terms of the rooms beneath.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import DTypeError, InputError, ShapeError
from glassgrad.graph.dtype import DType, dtypes
from glassgrad.tensor.linalg import LinearAlgebra
from glassgrad.tensor.meeting import resolve_axis, shape_from, whole, working_axis

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Synonyms"]


class Synonyms(LinearAlgebra):
    """PyTorch's other names."""
    __slots__ = ()

    absolute = LinearAlgebra.abs
    arccos = LinearAlgebra.acos
    arccosh = LinearAlgebra.acosh
    arcsin = LinearAlgebra.asin
    arcsinh = LinearAlgebra.asinh
    arctan = LinearAlgebra.atan
    arctan2 = LinearAlgebra.atan2
    arctanh = LinearAlgebra.atanh
    multiply = LinearAlgebra.mul
    subtract = LinearAlgebra.sub
    divide = LinearAlgebra.div
    true_divide = LinearAlgebra.div
    greater = LinearAlgebra.gt
    greater_equal = LinearAlgebra.ge
    less = LinearAlgebra.lt
    less_equal = LinearAlgebra.le
    not_equal = LinearAlgebra.ne
    bitwise_left_shift = LinearAlgebra.lshift
    bitwise_right_shift = LinearAlgebra.rshift
    sgn = LinearAlgebra.sign
    fix = LinearAlgebra.trunc
    moveaxis = LinearAlgebra.movedim
    swapdims = LinearAlgebra.transpose
    ger = LinearAlgebra.outer
    nelement = LinearAlgebra.numel
    ndimension = LinearAlgebra.dim
    split_with_sizes = LinearAlgebra.split
    pinverse = LinearAlgebra.pinv

    # -- numbers ---------------------------------------------------------------------------------------------
    def clamp_min(self, min: Any) -> Self:
        """At least `min`.

        >>> Tensor([1, 5]).clamp_min(3).tolist()
        [3, 5]
        """
        return self.clamp(min)

    def clamp_max(self, max: Any) -> Self:
        """At most `max`.

        >>> Tensor([1, 5]).clamp_max(3).tolist()
        [1, 3]
        """
        return self.clamp(None, max)

    def fmax(self, other: Any) -> Self:
        """The larger of each pair; where one is NaN, the other.

        >>> Tensor([1.0, float("nan")]).fmax(0).tolist()
        [1.0, 0.0]
        """
        x, y = self._both(other)
        return x.isnan().where(y, y.isnan().where(x, x.maximum(y))) if x.dtype.kind == "f" else x.maximum(y)

    def fmin(self, other: Any) -> Self:
        """The smaller of each pair; where one is NaN, the other.

        >>> Tensor([1.0, float("nan")]).fmin(3).tolist()
        [1.0, 3.0]
        """
        x, y = self._both(other)
        return x.isnan().where(y, y.isnan().where(x, x.minimum(y))) if x.dtype.kind == "f" else x.minimum(y)

    def float_power(self, exponent: Any) -> Self:
        """x to a power, computed in float64.

        >>> Tensor([2]).float_power(3).tolist()
        [8.0]
        """
        return self.cast(dtypes.float64).pow(exponent)

    def ldexp(self, other: Any) -> Self:
        """x times 2 to a power.

        >>> Tensor([3.0]).ldexp(Tensor([2])).tolist()
        [12.0]
        """
        return self * self.ufix(other).cast(self._float_node().dtype).exp2()

    def isposinf(self) -> Self:
        """Whether each value is +infinity.

        >>> Tensor([float("inf"), 1.0]).isposinf().tolist()
        [True, False]
        """
        return self == math.inf

    def isneginf(self) -> Self:
        """Whether each value is -infinity.

        >>> Tensor([float("-inf"), 1.0]).isneginf().tolist()
        [True, False]
        """
        return self == -math.inf

    def positive(self) -> Self:
        """The values as they are; `+x`.

        >>> Tensor([-1]).positive().tolist()
        [-1]
        """
        return self

    def gcd(self, other: Any) -> Self:
        """The greatest common divisor of whole numbers, by Euclid: enough steps for the widest numbers of the type.

        >>> Tensor([12, 7]).gcd(18).tolist()
        [6, 1]
        """
        x, y = self._broadcasted(other)
        if x.dtype.kind not in "iu":
            raise DTypeError("gcd is of whole numbers", given=f"{x.dtype.name} values", expected="integer tensors",
                             mend="cast first: x.int()")
        x, y = x.abs(), y.abs()
        for _ in range(math.ceil(x.dtype.bits * 1.4405)):       # Lame: Fibonacci numbers take the longest
            nothing = y == 0
            x, y = nothing.where(x, y), nothing.where(0, x % nothing.where(1, y))
            y = y._with(y.uop.contiguous())
        return x

    def lcm(self, other: Any) -> Self:
        """The least common multiple of whole numbers.

        >>> Tensor([4, 0]).lcm(6).tolist()
        [12, 0]
        """
        x, y = self._broadcasted(other)
        divisor = x.gcd(y)
        return (x // (divisor == 0).where(1, divisor) * y).abs()

    # -- matrices --------------------------------------------------------------------------------------------
    def inner(self, other: Self) -> Self:
        """Products summed over the last axis of both.

        >>> Tensor([1, 2]).inner(Tensor([3, 4])).item()
        11
        """
        return self * other if not (self.ndim and other.ndim) else self.tensordot(other, ([-1], [-1]))

    def vdot(self, other: Self) -> Self:
        """The product of two vectors.

        >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
        11
        """
        if self.ndim != 1 or other.ndim != 1:
            raise ShapeError("vdot is of vectors", given=f"{self.shape} and {other.shape}", expected="1 axis each",
                             mend="use x @ y for matrices")
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

    def dist(self, other: Any, p: float = 2) -> Self:
        """The p-norm of x - other.

        >>> Tensor([1.0, 2.0]).dist(Tensor([4.0, 6.0])).item()
        5.0
        """
        return (self - other).norm(p)

    # -- shapes ----------------------------------------------------------------------------------------------
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
                             mend="write x.tensor_split(2), for example")
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
                             expected="a shape that can be broadcast to the tensor's", mend="check the sizes")
        gone = [*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and self.shape[lead + i] != 1)]
        return (self.sum(gone, keepdim=True) if gone else self).reshape(shape)

    def take_along_dim(self, indices: Self, dim: int | None = None) -> Self:
        """`gather` with this and the places broadcast to each other; without an axis, of the flattened tensor.

        >>> Tensor([[3, 1]]).take_along_dim(Tensor([[1], [0]]), 1).tolist()
        [[1], [3]]
        """
        if dim is None:
            return self.flatten().gather(0, indices.flatten())
        axis = resolve_axis(dim, self.ndim, "take_along_dim")
        if indices.ndim != self.ndim:
            raise ShapeError("the index of take_along_dim does not fit", given=f"{indices.shape} for {self.shape}",
                             expected=f"{self.ndim} axes", mend="insert axes of size 1 with unsqueeze")
        wide = [max(n, m) if 0 not in (n, m) else 0 for n, m in zip(self.shape, indices.shape)]
        own = [self.shape[a] if a == axis else n for a, n in enumerate(wide)]
        its = [indices.shape[a] if a == axis else n for a, n in enumerate(wide)]
        return self.expand(own).gather(axis, indices.expand(its))

    # -- types and values ------------------------------------------------------------------------------------
    def byte(self) -> Self:
        """The values as uint8.

        >>> Tensor([1]).byte().dtype
        dtypes.uint8
        """
        return self.cast(dtypes.uint8)

    def char(self) -> Self:
        """The values as int8.

        >>> Tensor([1]).char().dtype
        dtypes.int8
        """
        return self.cast(dtypes.int8)

    def type(self, dtype: DType | str | None = None) -> Any:
        """The values in another type; without one, the name of this type.

        >>> Tensor([1]).type(dtypes.float32).tolist(), Tensor([1]).type()
        ([1.0], 'int32')
        """
        return self.dtype.name if dtype is None else self.cast(dtype)

    def new_full(self, size: int | Sequence[int], fill_value: float, **kwargs: Any) -> Self:
        """One value everywhere, in this tensor's type and on its device.

        >>> Tensor([1.5]).new_full((2,), 3).tolist()
        [3.0, 3.0]
        """
        return self.__class__.full(size, fill_value, **{"dtype": self.dtype, "device": self.device, **kwargs})

    def new_zeros(self, *size: Any, **kwargs: Any) -> Self:
        """Zeros, in this tensor's type and on its device.

        >>> Tensor([1]).new_zeros(2).tolist()
        [0, 0]
        """
        return self.new_full(shape_from(size, "new_zeros"), 0, **kwargs)

    def new_ones(self, *size: Any, **kwargs: Any) -> Self:
        """Ones, in this tensor's type and on its device.

        >>> Tensor([1]).new_ones(2).tolist()
        [1, 1]
        """
        return self.new_full(shape_from(size, "new_ones"), 1, **kwargs)

    def new_empty(self, *size: Any, **kwargs: Any) -> Self:
        """Values that do not matter yet (zeros), in this tensor's type and on its device.

        >>> Tensor([1]).new_empty(2).shape
        (2,)
        """
        return self.new_full(shape_from(size, "new_empty"), 0, **kwargs)

    def new_tensor(self, data: Any, **kwargs: Any) -> Self:
        """A tensor of new values, in this tensor's type and on its device.

        >>> Tensor([1.5]).new_tensor([1, 2]).tolist()
        [1.0, 2.0]
        """
        return self.__class__(data, **{"dtype": self.dtype, "device": self.device, **kwargs})
