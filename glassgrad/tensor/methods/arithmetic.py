"""Operators: + - * / // % ** @, comparisons, bits, and choosing. In: tensors and numbers. Out: tensors.

`x + y` builds one node. Operands of one shape and type take the short path; the rest meet in `meeting`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import DTypeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes, promote
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.tensor.autograd.leaves import assigned, has_another_value, hold, is_held
from glassgrad.tensor.base import Core
from glassgrad.tensor.broadcast import VERBS, broadcast_shape, meet, meet_many, plain_number
from glassgrad.tensor.formulas import elementary, remainders
from glassgrad.tensor.methods.casts import Casts

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Arithmetic"]

_bool = dtypes.bool
_ON_TRUTH = {o.ADD: o.OR, o.MUL: o.AND, o.MAX: o.OR, o.MIN: o.AND}   # what these mean for truth values, as in PyTorch
_WHOLE_ONLY = frozenset({o.AND, o.OR, o.XOR, o.SHL, o.SHR})


class Arithmetic(Casts):
    """Operators and comparisons, element by element."""
    __slots__ = ()

    # -- two operands ----------------------------------------------------------------------------------------
    def _binary(self, op: Op, other: Any, swapped: bool = False) -> Self:
        x = self.uop
        place = self._device
        if isinstance(other, Arithmetic):
            y = other.uop
            if place is not other._device:
                place = self._shared_device(other)
            if x.shape != y.shape or x.dtype is not y.dtype:
                x, y = meet(x, y, op)
        else:
            if hasattr(other, "__len__"):
                return self._binary(op, self._beside(other), swapped)
            y = self._number(plain_number(other, f"beside a tensor in {VERBS[op][1]}"), x.dtype, op)
            if y.dtype is not x.dtype:
                x = x.cast(y.dtype)
        if swapped:
            x, y = y, x
        dtype = x.dtype
        if dtype is _bool:
            op = _ON_TRUTH.get(op, op)
            if op is o.SUB:
                raise DTypeError("truth values cannot be subtracted", given="bool - bool", expected="numbers",
                                 fix="use x ^ y for their difference, or cast: x.int() - y.int()")
        elif dtype.kind == "f" and op in _WHOLE_ONLY:
            raise DTypeError(f"{VERBS[op][1]} works on integers and truth values",
                             given=f"{self.uop.dtype.name} {VERBS[op][1]} "
                                   f"{other.dtype.name if isinstance(other, Core) else other}",
                             expected="integer or bool tensors",
                             fix="cast first: x.int(); or compare: (x > 0) & (y > 0)")
        node = UOp(op, _bool if op.compares else dtype, (x, y))
        made = (self if other.__class__ is self.__class__ else self._kin(other))._with(node)
        if place is not None:
            made._device = place
        return made

    def __add__(self, other: Any) -> Self: return self._binary(o.ADD, other)
    def __radd__(self, other: Any) -> Self: return self._binary(o.ADD, other, True)
    def __sub__(self, other: Any) -> Self: return self._binary(o.SUB, other)
    def __rsub__(self, other: Any) -> Self: return self._binary(o.SUB, other, True)
    def __mul__(self, other: Any) -> Self: return self._binary(o.MUL, other)
    def __rmul__(self, other: Any) -> Self: return self._binary(o.MUL, other, True)
    def __truediv__(self, other: Any) -> Self: return self._divide(other, False)
    def __rtruediv__(self, other: Any) -> Self: return self._divide(other, True)
    def __floordiv__(self, other: Any) -> Self: return self._floor_divide(other, False)
    def __rfloordiv__(self, other: Any) -> Self: return self._floor_divide(other, True)
    def __mod__(self, other: Any) -> Self: return self._remainder(other, False)
    def __rmod__(self, other: Any) -> Self: return self._remainder(other, True)
    def __and__(self, other: Any) -> Self: return self._binary(o.AND, other)
    def __rand__(self, other: Any) -> Self: return self._binary(o.AND, other, True)
    def __or__(self, other: Any) -> Self: return self._binary(o.OR, other)
    def __ror__(self, other: Any) -> Self: return self._binary(o.OR, other, True)
    def __xor__(self, other: Any) -> Self: return self._binary(o.XOR, other)
    def __rxor__(self, other: Any) -> Self: return self._binary(o.XOR, other, True)
    def __lshift__(self, other: Any) -> Self: return self._binary(o.SHL, other)
    def __rshift__(self, other: Any) -> Self: return self._binary(o.SHR, other)
    def __lt__(self, other: Any) -> Self: return self._binary(o.CMPLT, other)
    def __gt__(self, other: Any) -> Self: return self._binary(o.CMPLT, other, True)
    def __le__(self, other: Any) -> Self: return self._at_most(other, False)
    def __ge__(self, other: Any) -> Self: return self._at_most(other, True)
    def __eq__(self, other: Any) -> Self: return self._binary(o.CMPEQ, other)      # type: ignore[override]
    def __ne__(self, other: Any) -> Self: return self._binary(o.CMPNE, other)      # type: ignore[override]
    def __neg__(self) -> Self: return self.neg()
    def __pos__(self) -> Self: return self
    def __abs__(self) -> Self: return self.abs()
    def __invert__(self) -> Self: return self.bitwise_not()

    def __iadd__(self, other: Any) -> Self: return self._rebind(self + other)
    def __isub__(self, other: Any) -> Self: return self._rebind(self - other)
    def __imul__(self, other: Any) -> Self: return self._rebind(self * other)
    def __itruediv__(self, other: Any) -> Self: return self._rebind(self / other)

    __hash__ = object.__hash__   # by identity: == is elementwise

    def _rebind(self, value: Self) -> Self:
        """x += y: this tensor takes the new value; others that were computed from the old one keep it."""
        leaf, earlier = is_held(self), self.uop
        self.uop, self._device = value.uop, value._device
        if leaf:
            hold(self)
            assigned(self)
        has_another_value(self, earlier)
        return self

    def _divide(self, other: Any, swapped: bool) -> Self:
        x = self
        if x.uop.dtype.kind != "f" and (not isinstance(other, Core) or other.uop.dtype.kind != "f"):
            x = x.cast(dtypes.default_float)
            if isinstance(other, Core):
                other = other.cast(dtypes.default_float)
        return x._binary(o.DIV, other, swapped)

    def _as_numbers(self, other: Any) -> Self:
        """Truth values on both sides become int32."""
        both = isinstance(other, bool) or isinstance(other, Core) and other.uop.dtype is _bool
        return self.cast(dtypes.int32) if self.uop.dtype is _bool and both else self

    def _is_float_with(self, other: Any) -> bool:
        return (self.uop.dtype.kind == "f" or isinstance(other, float)
                or isinstance(other, Core) and other.uop.dtype.kind == "f")

    def _floor_divide(self, other: Any, swapped: bool) -> Self:
        if self._is_float_with(other):
            return self._of_floats(remainders.floor_quotient, o.IDIV, other, swapped)
        return self._as_numbers(other)._binary(o.IDIV, other, swapped)

    def _remainder(self, other: Any, swapped: bool) -> Self:
        if not self._is_float_with(other):
            return self._as_numbers(other)._binary(o.MOD, other, swapped)
        return self._of_floats(remainders.floored, o.MOD, other, swapped)

    def _of_floats(self, formula: Callable[[UOp, UOp], UOp], op: Op, other: Any, swapped: bool = False) -> Self:
        """A formula of two floats: narrow ones go through it in float32 and are rounded once."""
        x, y = self._both(other)
        shape, wide = broadcast_shape(x.shape, y.shape, op), x.dtype.accumulator
        place = x._shared_device(y)
        first, second = (t.uop.cast(wide).broadcast(shape) for t in ((y, x) if swapped else (x, y)))
        made = x._with(formula(first, second).cast(x.dtype))
        made._device = place or made._device
        return made

    def ufix(self, x: Any) -> Self:
        """What may stand beside this tensor as a tensor: a number (which takes this type), a list, or a tensor.

        >>> Tensor([1.5]).ufix(2).dtype
        dtypes.float32
        """
        if isinstance(x, Core) or hasattr(x, "__len__"):
            return self._beside(x)
        return self._with(self._number(plain_number(x, "beside a tensor"), self.uop.dtype))

    def _times(self, other: Any, alpha: Any) -> Any:
        """What is added, `alpha` times."""
        factor = plain_number(alpha, "as alpha", "a number", "multiply by it: x + alpha * other")
        return other if factor == 1 else self.ufix(other)._binary(o.MUL, factor)

    def _both(self, other: Any) -> tuple[Self, Self]:
        """This and the other as tensors of one dtype; if the other is of a subclass, this becomes one too."""
        other = self.ufix(other)
        dtype = promote(self.uop.dtype, other.uop.dtype)
        x = self.cast(dtype)
        if x.__class__ is not other.__class__:
            x = self._kin(other)._with(x.uop)
            x._device = self._device
        return x, other.cast(dtype)

    def _rounded_down(self) -> Self:
        below = self.uop.trunc()
        return self._with((self.uop < below).where(below - 1.0, below))

    def _at_most(self, other: Any, swapped: bool) -> Self:
        if self._is_float_with(other):   # not (y < x) would call NaN <= 1 true
            return self._binary(o.CMPLT, other, swapped)._binary(o.OR, self._binary(o.CMPEQ, other))
        return self._binary(o.CMPLT, other, not swapped)._unary(o.NOT)

    # -- one operand -----------------------------------------------------------------------------------------
    def _unary(self, op: Op) -> Self:
        return self._with(UOp(op, self.uop.dtype, (self.uop,)))

    def _float_unary(self, op: Op) -> Self:
        """An op that only floats have: integers become float32 first."""
        x = self.uop
        if x.dtype.kind != "f":
            x = x.cast(dtypes.default_float)
        return self._with(UOp(op, x.dtype, (x,)))

    def neg(self) -> Self:
        """The negative of each value.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        if self.uop.dtype is _bool:
            raise DTypeError("truth values have no negative", given="-x on bool", expected="numbers",
                             fix="use ~x for the opposite, or cast: -x.int()")
        return self._unary(o.NEG)

    def abs(self) -> Self:
        """The size of each value without its sign.

        >>> Tensor([1, -2]).abs().tolist()
        [1, 2]
        """
        return self if self.uop.dtype.kind in "bu" else self._unary(o.ABS)

    def bitwise_not(self) -> Self:
        """Every bit turned over; the opposite of truth values.

        >>> (~Tensor([True, False])).tolist(), (~Tensor([0, 5])).tolist()
        ([False, True], [-1, -6])
        """
        if self.uop.dtype.kind == "f":
            raise DTypeError("~ works on integers and truth values", given=f"~x on {self.uop.dtype.name}",
                             expected="an integer or bool tensor", fix="compare first: ~(x > 0), or cast: ~x.int()")
        return self._unary(o.NOT)

    def logical_not(self) -> Self:
        """Whether each value is zero.

        >>> Tensor([0.0, 2.0]).logical_not().tolist()
        [True, False]
        """
        return self.bool()._unary(o.NOT)

    # -- operators by name -----------------------------------------------------------------------------------
    def add(self, other: Any, reverse: bool = False, *, alpha: Any = 1) -> Self:
        """The sum, element by element; the same as `x + alpha * other`.

        >>> Tensor([1, 2]).add(10).tolist(), Tensor([1, 2]).add(10, alpha=3).tolist()
        ([11, 12], [31, 32])
        """
        return self._binary(o.ADD, self._times(other, alpha), reverse)

    def sub(self, other: Any, reverse: bool = False, *, alpha: Any = 1) -> Self:
        """The difference, element by element; the same as `x - alpha * other`.

        >>> Tensor([1, 2]).sub(10).tolist(), Tensor([1, 2]).sub(10, alpha=3).tolist()
        ([-9, -8], [-29, -28])
        """
        return self._binary(o.SUB, self._times(other, alpha), reverse)

    def mul(self, other: Any, reverse: bool = False) -> Self:
        """The product, element by element; the same as `x * other`.

        >>> Tensor([1, 2]).mul(10).tolist()
        [10, 20]
        """
        return self._binary(o.MUL, other, reverse)

    def div(self, other: Any, reverse: bool = False, rounding_mode: str | None = None) -> Self:
        """The quotient, a float; `rounding_mode` "trunc" or "floor" makes it whole.

        >>> Tensor([7, -7]).div(2).tolist(), Tensor([7, -7]).div(2, rounding_mode="floor").tolist()
        ([3.5, -3.5], [3, -4])
        """
        if rounding_mode is None:
            return self._divide(other, reverse)
        if rounding_mode == "floor":
            return self._floor_divide(other, reverse)
        if rounding_mode != "trunc":
            raise DTypeError("there is no such rounding mode", given=repr(rounding_mode),
                             expected='None, "trunc" or "floor"', fix='write rounding_mode="floor"')
        if self._is_float_with(other):
            return self._divide(other, reverse)._unary(o.TRUNC)
        x, y = self._both(other)
        if reverse:
            x, y = y, x
        down = x._binary(o.IDIV, y)   # rounds down; one more where the exact quotient is negative and not whole
        return down + ((down < 0) & (down * y != x)).cast(down.dtype)

    def mod(self, other: Any, reverse: bool = False) -> Self:
        """The remainder with the sign of the divisor; the same as `x % other`. As exact as `fmod`.

        >>> Tensor([7, -7]).mod(3).tolist()
        [1, 2]
        """
        return self._remainder(other, reverse)

    def fmod(self, other: Any) -> Self:
        """The remainder with the sign of the dividend, as in C; exact for quotients below 2^46 (float64: 2^104).

        >>> Tensor([7.0, -7.0]).fmod(3).tolist()
        [1.0, -1.0]
        """
        if self._is_float_with(other):
            return self._of_floats(remainders.toward_zero, o.MOD, other)
        return self - self.div(other, rounding_mode="trunc") * other

    def bitwise_and(self, other: Any, reverse: bool = False) -> Self:
        """The bits both have; the same as `x & other`.

        >>> Tensor([6]).bitwise_and(3).tolist()
        [2]
        """
        return self._binary(o.AND, other, reverse)

    def bitwise_or(self, other: Any, reverse: bool = False) -> Self:
        """The bits either has; the same as `x | other`.

        >>> Tensor([6]).bitwise_or(3).tolist()
        [7]
        """
        return self._binary(o.OR, other, reverse)

    def bitwise_xor(self, other: Any, reverse: bool = False) -> Self:
        """The bits exactly one has; the same as `x ^ other`.

        >>> Tensor([6]).bitwise_xor(3).tolist()
        [5]
        """
        return self._binary(o.XOR, other, reverse)

    def lshift(self, other: Any, reverse: bool = False) -> Self:
        """The bits moved up; the same as `x << other`.

        >>> Tensor([3]).lshift(2).tolist()
        [12]
        """
        return self._binary(o.SHL, other, reverse)

    def rshift(self, other: Any, reverse: bool = False) -> Self:
        """The bits moved down; the same as `x >> other`.

        >>> Tensor([12]).rshift(2).tolist()
        [3]
        """
        return self._binary(o.SHR, other, reverse)

    def eq(self, other: Any) -> Self:
        """Whether each pair is equal; the same as `x == other`.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        return self._binary(o.CMPEQ, other)

    def ne(self, other: Any) -> Self:
        """Whether each pair differs; the same as `x != other`.

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        return self._binary(o.CMPNE, other)

    # -- choosing --------------------------------------------------------------------------------------------
    def where(self, yes: Any, no: Any) -> Self:
        """`yes` where this tensor is true (not zero), elsewhere `no`.

        >>> x = Tensor([-1.0, 2.0])
        >>> (x > 0).where(x ** 3, x).tolist()
        [-1.0, 8.0]
        """
        condition = self.uop if self.uop.dtype is _bool else self.uop.ne(0)
        place = self._device
        sides: list[Any] = []
        for side in (yes, no):
            if not isinstance(side, Core) and hasattr(side, "__len__"):
                side = self._beside(side)
            if isinstance(side, Core):
                if place is not side._device:
                    place = self._shared_device(side)
                side = side.uop
            else:
                side = plain_number(side, "in where")
            sides.append(side)
        a, b = sides
        if not isinstance(a, UOp):
            a = self._number(a, b.dtype, o.WHERE) if isinstance(b, UOp) else const(a)
        if not isinstance(b, UOp):
            b = self._number(b, a.dtype, o.WHERE)
        dtype = promote(a.dtype, b.dtype)
        condition, a, b = meet_many([condition, a.cast(dtype), b.cast(dtype)], o.WHERE)
        made = self._kin(yes, no)._with(UOp(o.WHERE, dtype, (condition, a, b)))
        if place is not None:
            made._device = place
        return made

    def maximum(self, other: Any) -> Self:
        """The larger of each pair; NaN where either is.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self._limited(o.MAX, other)

    def minimum(self, other: Any) -> Self:
        """The smaller of each pair; NaN where either is.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self._limited(o.MIN, other)

    def _limited(self, op: Op, other: Any) -> Self:
        if self.uop.dtype.kind == "f" and type(other) in (int, float):
            return self._with(elementary.limited(op, self.uop, const(other, self.uop.dtype)))
        return self._binary(op, other)
