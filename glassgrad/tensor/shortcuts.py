"""The same things under the names other libraries use. In, out: tensors. Nothing here computes on its own account.

tinygrad's names of older and newer releases and PyTorch's, each one line to the method it stands for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.graph.dtype import DType, dtypes
from glassgrad.graph.ops import Kind, Op
from glassgrad.tensor.meeting import working_axis
from glassgrad.tensor.sharding import Sharding

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Shortcuts"]


class Shortcuts(Sharding):
    """Other libraries' names."""
    __slots__ = ()

    def __rlshift__(self, other: Any) -> Self: return self._both(other)[1] << self
    def __rrshift__(self, other: Any) -> Self: return self._both(other)[1] >> self
    def __iand__(self, other: Any) -> Self: return self._rebind(self & other)
    def __ior__(self, other: Any) -> Self: return self._rebind(self | other)
    def __ixor__(self, other: Any) -> Self: return self._rebind(self ^ other)
    def __ilshift__(self, other: Any) -> Self: return self._rebind(self << other)
    def __irshift__(self, other: Any) -> Self: return self._rebind(self >> other)
    def __ifloordiv__(self, other: Any) -> Self: return self._rebind(self // other)
    def __imod__(self, other: Any) -> Self: return self._rebind(self % other)

    # -- comparisons and truth -------------------------------------------------------------------------------
    def lt(self, other: Any) -> Self:
        """x < other.

        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        return self < other

    def gt(self, other: Any) -> Self:
        """x > other.

        >>> Tensor([1, 2]).gt(1).tolist()
        [False, True]
        """
        return self > other

    def le(self, other: Any) -> Self:
        """x <= other.

        >>> Tensor([1, 2]).le(1).tolist()
        [True, False]
        """
        return self <= other

    def ge(self, other: Any) -> Self:
        """x >= other.

        >>> Tensor([1, 2]).ge(2).tolist()
        [False, True]
        """
        return self >= other

    def logical_and(self, other: Any) -> Self:
        """Whether both are true (not zero).

        >>> Tensor([1, 0]).logical_and(Tensor([2, 2])).tolist()
        [True, False]
        """
        return self.bool() & self.ufix(other).bool()

    def logical_or(self, other: Any) -> Self:
        """Whether at least one is true (not zero).

        >>> Tensor([1, 0]).logical_or(Tensor([0, 0])).tolist()
        [True, False]
        """
        return self.bool() | self.ufix(other).bool()

    def logical_xor(self, other: Any) -> Self:
        """Whether exactly one is true (not zero).

        >>> Tensor([1, 0]).logical_xor(Tensor([1, 1])).tolist()
        [False, True]
        """
        return self.bool() ^ self.ufix(other).bool()

    # -- arithmetic ------------------------------------------------------------------------------------------
    def idiv(self, other: Any, reverse: bool = False) -> Self:
        """The quotient of whole numbers, rounded toward zero.

        >>> Tensor([7, -7]).idiv(2).tolist()
        [3, -3]
        """
        return self.div(other, reverse, rounding_mode="trunc")

    def floor_divide(self, other: Any) -> Self:
        """x // other.

        >>> Tensor([7, -7]).floor_divide(2).tolist()
        [3, -4]
        """
        return self // other

    def remainder(self, other: Any) -> Self:
        """x % other.

        >>> Tensor([7, -7]).remainder(3).tolist()
        [1, 2]
        """
        return self % other

    def ceildiv(self, other: Any) -> Self:
        """The quotient of whole numbers, rounded up.

        >>> Tensor([7, -7]).ceildiv(2).tolist()
        [4, -3]
        """
        return -(-self // other)

    def xor(self, other: Any, reverse: bool = False) -> Self:
        """x ^ other.

        >>> Tensor([6]).xor(3).tolist()
        [5]
        """
        return self ^ other

    def negative(self) -> Self:
        """-x.

        >>> Tensor([1]).negative().tolist()
        [-1]
        """
        return -self

    def amax(self, dim: Any = None, keepdim: bool = False) -> Self:
        """The largest along axes; `max`.

        >>> Tensor([1, 3, 2]).amax().item()
        3
        """
        return self.max(dim, keepdim)

    def amin(self, dim: Any = None, keepdim: bool = False) -> Self:
        """The smallest along axes; `min`.

        >>> Tensor([1, 3, 2]).amin().item()
        1
        """
        return self.min(dim, keepdim)

    def usum(self, *others: Any) -> Self:
        """x plus all the others.

        >>> Tensor([1]).usum(Tensor([2]), Tensor([3])).tolist()
        [6]
        """
        total = self
        for other in others:
            total = total + other
        return total

    def uprod(self, *others: Any) -> Self:
        """x times all the others.

        >>> Tensor([1]).uprod(Tensor([2]), Tensor([3])).tolist()
        [6]
        """
        total = self
        for other in others:
            total = total * other
        return total

    # -- products --------------------------------------------------------------------------------------------
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

    def addmm(self, mat1: Self, mat2: Self, beta: float = 1, alpha: float = 1) -> Self:
        """beta x + alpha mat1 @ mat2.

        >>> Tensor([[1]]).addmm(Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
        [[12]]
        """
        product = mat1 @ mat2 if alpha == 1 else (mat1 @ mat2) * alpha
        return (self if beta == 1 else self * beta) + product

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
                mend="choose the axis with dim=",
            )
        return self.roll(-1, axis) * other.roll(-2, axis) - self.roll(-2, axis) * other.roll(-1, axis)

    # -- types and values ------------------------------------------------------------------------------------
    def short(self) -> Self:
        """The values as int16.

        >>> Tensor([1]).short().dtype
        dtypes.int16
        """
        return self.cast(dtypes.int16)

    def type_as(self, other: Self) -> Self:
        """The values in another tensor's type.

        >>> Tensor([1]).type_as(Tensor([1.0])).dtype
        dtypes.float32
        """
        return self.cast(other.dtype)

    def const_like(self, value: Any, dtype: Any = None) -> Self:
        """One value in this tensor's shape; `full_like`.

        >>> Tensor([1, 2]).const_like(7).tolist()
        [7, 7]
        """
        return self.full_like(value, dtype=dtype)

    def empty_like(self, dtype: Any = None, device: str | None = None, **kwargs: Any) -> Self:
        """A tensor of this shape whose values do not matter yet (they are zeros).

        >>> Tensor([1, 2]).empty_like().shape
        (2,)
        """
        return self.full_like(0, dtype, device, **kwargs)

    def contiguous_backward(self) -> Self:
        """The same values; their gradient is stored where it passes here. (Kernels choose well without it.)

        >>> Tensor([1, 2]).contiguous_backward().tolist()
        [1, 2]
        """
        return self

    def max_numel(self) -> int:
        """The number of elements, where every symbolic size is at its largest.

        >>> Tensor([1, 2]).max_numel()
        2
        """
        return math.prod(self.max_shape)

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The shape, where every symbolic size is at its largest.

        >>> Tensor([1, 2]).max_shape
        (2,)
        """
        return tuple(self.shape)

    @property
    def is_param(self) -> bool:
        """Whether a gradient was asked for; `requires_grad`, which can be set too.

        >>> Tensor([1.0], requires_grad=True).is_param
        True
        """
        return bool(self.requires_grad)

    @is_param.setter
    def is_param(self, is_param: bool) -> None:
        self.requires_grad = is_param

    def is_param_(self, is_param: bool = True) -> Self:
        """Ask for a gradient: `requires_grad_`.

        >>> Tensor([1.0]).is_param_().requires_grad
        True
        """
        return self.requires_grad_(is_param)

    def alu(self, op: Op, *src: Self) -> Self:
        """One operation of the graph by its name, on this and others of one shape and type.

        >>> from glassgrad.graph.ops import Ops
        >>> Tensor([1, 2]).alu(Ops.ADD, Tensor([3, 4])).tolist()
        [4, 6]
        """
        if not isinstance(op, Op) or op.kind not in (Kind.UNARY, Kind.BINARY, Kind.TERNARY):
            raise InputError("alu takes an operation on elements", given=repr(op),
                             expected="an op of one, two or three operands, such as Ops.ADD",
                             mend="write the operation itself: x + y")
        if op.kind is Kind.TERNARY:
            return self.where(*src)
        return self._unary(op) if op.kind is Kind.UNARY else self._binary(op, src[0])

    # -- making ----------------------------------------------------------------------------------------------
    @classmethod
    def const(cls, b: Any, dtype: Any = None, device: str | None = None) -> Self:
        """One number as a tensor without axes. (Older texts give the type first.)

        >>> Tensor.const(3).item(), Tensor.const(3, dtypes.float32).dtype
        (3, dtypes.float32)
        """
        if isinstance(b, DType):
            b, dtype = dtype, b
        return cls.full((), b, dtype, device)

    @classmethod
    def logspace(cls, start: float, end: float, steps: int, base: float = 10.0, **kwargs: Any) -> Self:
        """base to the powers from start to end, both included.

        >>> Tensor.logspace(0, 2, 3, base=2).tolist()
        [1.0, 2.0, 4.0]
        """
        return (cls.linspace(start, end, steps, **kwargs) * math.log2(base)).exp2()

    @classmethod
    def tri(cls, n: int, m: int | None = None, diagonal: int = 0, **kwargs: Any) -> Self:
        """Ones on and below a diagonal, zeros above.

        >>> Tensor.tri(2).tolist()
        [[1.0, 0.0], [1.0, 1.0]]
        """
        return cls.ones(n, n if m is None else m, **kwargs).tril(diagonal)

    @classmethod
    def tril_indices(cls, row: int, col: int, offset: int = 0) -> Self:
        """The places on and below a diagonal of a row x col matrix, as (2, count).

        >>> Tensor.tril_indices(2, 2).tolist()
        [[0, 1, 1], [0, 0, 1]]
        """
        places = [(i, j) for i in range(row) for j in range(min(max(i + offset + 1, 0), col))]
        return cls([[p[k] for p in places] for k in range(2)], dtype=dtypes.int32)

    @classmethod
    def triu_indices(cls, row: int, col: int, offset: int = 0) -> Self:
        """The places on and above a diagonal of a row x col matrix, as (2, count).

        >>> Tensor.triu_indices(2, 2).tolist()
        [[0, 0, 1], [0, 1, 1]]
        """
        places = [(i, j) for i in range(row) for j in range(min(max(i + offset, 0), col), col)]
        return cls([[p[k] for p in places] for k in range(2)], dtype=dtypes.int32)
