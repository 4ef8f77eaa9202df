"""Define operators: + - * / // %, comparisons, bits, and choosing, also by name. In: tensors and numbers. Out: tensors.

`x + y` builds one node. formulas/arithmetic.py says how operands of different types and shapes are combined.

Integers divided by 0: the number 0 as a divisor is an error. Where an element of a tensor is 0, `//`, `%` and `fmod`
give 0, as in NumPy, on every device (this is known only when kernels run). Floats give inf and NaN.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import DivisionError, DTypeError, InputError
from glassgrad.base.source_lines import user_place
from glassgrad.compiler.graph import UOp, dtypes, ops as o
from glassgrad.tensor.formulas import arithmetic
from glassgrad.tensor.formulas.arithmetic import as_node, binary
from glassgrad.tensor.methods import REQUIRED, VERBS, Self, TensorBase, of_kind, plain_number, spelled

_bool = dtypes.bool
_NUMBERS = (float, int, bool)
_QUOTIENTS = (arithmetic.floor_divide, arithmetic.truncated_divide, arithmetic.remainder,
              arithmetic.truncated_remainder)


class ArithmeticMixin(TensorBase):
    """Operators and comparisons, element by element."""
    __slots__ = ()

    # -- two operands ----------------------------------------------------------------------------------------
    def _binary(self, op: o.Op, other: Any, swapped: bool = False) -> Self:
        """Apply one op to this and another operand."""
        x, place = self.uop, user_place(3)          # the user's line called our caller
        if isinstance(other, TensorBase):
            y, device = other.uop, self._device
            if other._device is not device:
                device = self._shared_device(other)
            node = binary(op, y, x, place) if swapped else binary(op, x, y, place)
            made = (self if other.__class__ is self.__class__ else self._kin(other))._with(node)
            made._device = device
            return made
        y = other if type(other) in _NUMBERS else self._operand(other, f"beside a tensor in {VERBS[op][1]}")
        y = y if isinstance(y, UOp) else self._number(y, x.dtype, op)
        return self._with(binary(op, y, x, place) if swapped else binary(op, x, y, place))

    def _divided(self, formula: Callable[[Any, Any], UOp], other: Any, swapped: bool = False) -> Self:
        """Compute a quotient or remainder."""
        if not swapped and self.uop.dtype.kind != "f" and isinstance(other, numbers.Integral) and other == 0:
            raise DivisionError("integers cannot be divided by 0", given=f"a divisor of 0 for {self.uop.dtype.name}",
                                expected="a divisor that is not 0",
                                fix="check the divisor, or divide as floats, which gives inf and NaN: x.float() // 0")
        return self._combined(formula, other, swapped)

    def __add__(self, other: Any) -> Self: return self._binary(o.ADD, other)
    def __radd__(self, other: Any) -> Self: return self._binary(o.ADD, other, True)
    def __sub__(self, other: Any) -> Self: return self._binary(o.SUB, other)
    def __rsub__(self, other: Any) -> Self: return self._binary(o.SUB, other, True)
    def __mul__(self, other: Any) -> Self: return self._binary(o.MUL, other)
    def __rmul__(self, other: Any) -> Self: return self._binary(o.MUL, other, True)
    def __truediv__(self, other: Any) -> Self: return self._combined(arithmetic.divide, other)
    def __rtruediv__(self, other: Any) -> Self: return self._combined(arithmetic.divide, other, True)
    def __floordiv__(self, other: Any) -> Self: return self._divided(arithmetic.floor_divide, other)
    def __rfloordiv__(self, other: Any) -> Self: return self._divided(arithmetic.floor_divide, other, True)
    def __mod__(self, other: Any) -> Self: return self._divided(arithmetic.remainder, other)
    def __rmod__(self, other: Any) -> Self: return self._divided(arithmetic.remainder, other, True)
    def __and__(self, other: Any) -> Self: return self._binary(o.AND, other)
    def __rand__(self, other: Any) -> Self: return self._binary(o.AND, other, True)
    def __or__(self, other: Any) -> Self: return self._binary(o.OR, other)
    def __ror__(self, other: Any) -> Self: return self._binary(o.OR, other, True)
    def __xor__(self, other: Any) -> Self: return self._binary(o.XOR, other)
    def __rxor__(self, other: Any) -> Self: return self._binary(o.XOR, other, True)
    def __lshift__(self, other: Any) -> Self: return self._binary(o.SHL, other)
    def __rlshift__(self, other: Any) -> Self: return self._binary(o.SHL, other, True)
    def __rshift__(self, other: Any) -> Self: return self._binary(o.SHR, other)
    def __rrshift__(self, other: Any) -> Self: return self._binary(o.SHR, other, True)
    def __lt__(self, other: Any) -> Self: return self._binary(o.CMPLT, other)
    def __gt__(self, other: Any) -> Self: return self._binary(o.CMPLT, other, True)
    def __le__(self, other: Any) -> Self: return self._combined(arithmetic.at_most, other)
    def __ge__(self, other: Any) -> Self: return self._combined(arithmetic.at_least, other)
    def __neg__(self) -> Self: return self.neg()
    def __pos__(self) -> Self: return self
    def __abs__(self) -> Self: return self._with(arithmetic.absolute(self.uop))
    def __invert__(self) -> Self: return self.bitwise_not()

    def __eq__(self, other: Any) -> Any:
        return False if other is None else self._binary(o.CMPEQ, other)

    def __ne__(self, other: Any) -> Any:
        return True if other is None else self._binary(o.CMPNE, other)

    def __iadd__(self, other: Any) -> Self: return self._rebind(self._binary(o.ADD, other))
    def __isub__(self, other: Any) -> Self: return self._rebind(self._binary(o.SUB, other))
    def __imul__(self, other: Any) -> Self: return self._rebind(self._binary(o.MUL, other))
    def __itruediv__(self, other: Any) -> Self: return self._rebind(self._combined(arithmetic.divide, other))
    def __ifloordiv__(self, other: Any) -> Self: return self._rebind(self._divided(arithmetic.floor_divide, other))
    def __imod__(self, other: Any) -> Self: return self._rebind(self._divided(arithmetic.remainder, other))
    def __iand__(self, other: Any) -> Self: return self._rebind(self._binary(o.AND, other))
    def __ior__(self, other: Any) -> Self: return self._rebind(self._binary(o.OR, other))
    def __ixor__(self, other: Any) -> Self: return self._rebind(self._binary(o.XOR, other))
    def __ilshift__(self, other: Any) -> Self: return self._rebind(self._binary(o.SHL, other))
    def __irshift__(self, other: Any) -> Self: return self._rebind(self._binary(o.SHR, other))

    __hash__ = object.__hash__   # by identity, because == is elementwise

    def ufix(self, x: Any) -> Self:
        """An operand beside this tensor, as a tensor: a number (which takes this tensor's type), a list, or a tensor.

        >>> Tensor([1.5]).ufix(2).dtype
        dtypes.float32
        """
        if isinstance(x, TensorBase) or hasattr(x, "__len__"):
            return self._beside(x)
        return self._with(self._number(plain_number(x, "beside a tensor"), self.uop.dtype))

    # -- one operand -----------------------------------------------------------------------------------------
    def neg(self) -> Self:
        """The negative of each value.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        if self.uop.dtype is _bool:
            raise DTypeError("truth values have no negative", given="-x on bool", expected="numbers",
                             fix="use ~x for the opposite, or cast: -x.int()")
        return self._with(-self.uop)

    negative = neg

    def positive(self) -> Self:
        """The values unchanged; `+x`.

        >>> Tensor([-1]).positive().tolist()
        [-1]
        """
        return self

    def abs(self) -> Self:
        """The absolute value of each element.

        >>> Tensor([1, -2]).abs().tolist()
        [1, 2]
        """
        return self._with(arithmetic.absolute(self.uop))

    absolute = abs

    def bitwise_not(self) -> Self:
        """Every bit inverted; for bools, logical not.

        >>> (~Tensor([True, False])).tolist(), (~Tensor([0, 5])).tolist()
        ([False, True], [-1, -6])
        """
        if self.uop.dtype.kind == "f":
            raise DTypeError("~ works on integers and truth values", given=f"~x on {self.uop.dtype.name}",
                             expected="an integer or bool tensor", fix="compare first: ~(x > 0), or cast: ~x.int()")
        return self._with(~self.uop)

    def logical_not(self) -> Self:
        """Whether each value is zero.

        >>> Tensor([0.0, 2.0]).logical_not().tolist()
        [True, False]
        """
        return self._with(self.uop.cast(_bool).logical_not())

    # -- operators by name -----------------------------------------------------------------------------------
    def _named(self, what: str, operation: o.Op | Callable[..., UOp], other: Any, reverse: bool,
               spelling: dict[str, Any]) -> Self:
        """Apply an operator under its name."""
        if spelling or other is REQUIRED:
            other, = spelled(what, spelling, other=other)
        if reverse is not False:
            reverse = of_kind("bool", what, reverse=reverse)
        if isinstance(operation, o.Op):
            return self._binary(operation, other, reverse)
        return self._divided(operation, other, reverse) if operation in _QUOTIENTS else \
            self._combined(operation, other, reverse)

    def _scaled(self, what: str, op: o.Op, other: Any, reverse: bool, alpha: Any, spelling: dict[str, Any]) -> Self:
        """Compute x + alpha * other, or x - alpha * other."""
        if type(alpha) is int and alpha == 1:
            return self._named(what, op, other, reverse, spelling)
        other, = spelled(what, spelling, other=other)
        factor = plain_number(alpha, "as alpha", "a number", "multiply by it: x + alpha * other")
        if factor == 1:
            return self._named(what, op, other, reverse, {})
        reverse = of_kind("bool", what, reverse=reverse)

        @arithmetic.rounded_once
        def combined(x: UOp, y: UOp) -> UOp:
            y = binary(o.MUL, y, self._number(factor, y.dtype, o.MUL))
            return binary(op, y, x) if reverse else binary(op, x, y)

        return self._combined(combined, self.ufix(other))

    def add(self, other: Any = REQUIRED, reverse: bool = False, *, alpha: Any = 1, **spelling: Any) -> Self:
        """The sum, element by element; the same as `x + alpha * other`.

        >>> Tensor([1, 2]).add(10).tolist(), Tensor([1, 2]).add(10, alpha=3).tolist()
        ([11, 12], [31, 32])
        """
        return self._scaled("add", o.ADD, other, reverse, alpha, spelling)

    def sub(self, other: Any = REQUIRED, reverse: bool = False, *, alpha: Any = 1, **spelling: Any) -> Self:
        """The difference, element by element; the same as `x - alpha * other`.

        >>> Tensor([1, 2]).sub(10).tolist(), Tensor([1, 2]).sub(10, alpha=3).tolist()
        ([-9, -8], [-29, -28])
        """
        return self._scaled("sub", o.SUB, other, reverse, alpha, spelling)

    subtract = sub

    def mul(self, other: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """The product, element by element; the same as `x * other`.

        >>> Tensor([1, 2]).mul(10).tolist()
        [10, 20]
        """
        return self._named("mul", o.MUL, other, reverse, spelling)

    multiply = mul

    def div(self, other: Any = REQUIRED, reverse: bool = False, rounding_mode: str | None = None,
            **spelling: Any) -> Self:
        """The quotient, a float; `rounding_mode` "trunc" or "floor" rounds it to an integer.

        >>> Tensor([7, -7]).div(2).tolist(), Tensor([7, -7]).div(2, rounding_mode="floor").tolist()
        ([3.5, -3.5], [3, -4])
        """
        ways = {None: arithmetic.divide, "floor": arithmetic.floor_divide, "trunc": arithmetic.truncated_divide}
        if not isinstance(rounding_mode, (str, type(None))) or rounding_mode not in ways:
            raise DTypeError("there is no such rounding mode", given=repr(rounding_mode),
                             expected='None, "trunc" or "floor"', fix='write rounding_mode="floor"')
        return self._named("div", ways[rounding_mode], other, reverse, spelling)

    divide = div
    true_divide = div

    def idiv(self, other: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """The quotient of integers, rounded toward zero.

        >>> Tensor([7, -7]).idiv(2).tolist()
        [3, -3]
        """
        return self._named("idiv", arithmetic.truncated_divide, other, reverse, spelling)

    def floor_divide(self, other: Any) -> Self:
        """x // other.

        >>> Tensor([7, -7]).floor_divide(2).tolist()
        [3, -4]
        """
        return self._divided(arithmetic.floor_divide, other)

    def ceildiv(self, other: Any) -> Self:
        """The quotient of integers, rounded up.

        >>> Tensor([7, -7]).ceildiv(2).tolist()
        [4, -3]
        """
        return -(-self)._divided(arithmetic.floor_divide, other)

    def mod(self, other: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """The remainder with the sign of the divisor; the same as `x % other`. As exact as `fmod`.

        >>> Tensor([7, -7]).mod(3).tolist()
        [1, 2]
        """
        return self._named("mod", arithmetic.remainder, other, reverse, spelling)

    remainder = mod

    def fmod(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """The remainder with the sign of the dividend, as in C; exact for quotients below 2^46 (float64: 2^104).

        >>> Tensor([7.0, -7.0]).fmod(3).tolist()
        [1.0, -1.0]
        """
        return self._named("fmod", arithmetic.truncated_remainder, other, False, spelling)

    def usum(self, *others: Any) -> Self:
        """x plus all the others.

        >>> Tensor([1]).usum(Tensor([2]), Tensor([3])).tolist()
        [6]
        """
        return functools.reduce(lambda x, y: x._binary(o.ADD, y), others, self)

    def uprod(self, *others: Any) -> Self:
        """x times all the others.

        >>> Tensor([1]).uprod(Tensor([2]), Tensor([3])).tolist()
        [6]
        """
        return functools.reduce(lambda x, y: x._binary(o.MUL, y), others, self)

    # -- bits ------------------------------------------------------------------------------------------------
    def bitwise_and(self, other: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """The bits that both have; the same as `x & other`.

        >>> Tensor([6]).bitwise_and(3).tolist()
        [2]
        """
        return self._named("bitwise_and", o.AND, other, reverse, spelling)

    def bitwise_or(self, other: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """The bits that at least one has; the same as `x | other`.

        >>> Tensor([6]).bitwise_or(3).tolist()
        [7]
        """
        return self._named("bitwise_or", o.OR, other, reverse, spelling)

    def bitwise_xor(self, other: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """The bits that exactly one has; the same as `x ^ other`.

        >>> Tensor([6]).bitwise_xor(3).tolist()
        [5]
        """
        return self._named("bitwise_xor", o.XOR, other, reverse, spelling)

    xor = bitwise_xor

    def lshift(self, other: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """The bits shifted left; the same as `x << other`.

        >>> Tensor([3]).lshift(2).tolist()
        [12]
        """
        return self._named("lshift", o.SHL, other, reverse, spelling)

    bitwise_left_shift = lshift

    def rshift(self, other: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """The bits shifted right; the same as `x >> other`.

        >>> Tensor([12]).rshift(2).tolist()
        [3]
        """
        return self._named("rshift", o.SHR, other, reverse, spelling)

    bitwise_right_shift = rshift

    # -- comparisons and truth -------------------------------------------------------------------------------
    def eq(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """Whether each pair is equal; the same as `x == other`.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        return self._named("eq", o.CMPEQ, other, False, spelling)

    def ne(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """Whether each pair differs; the same as `x != other`.

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        return self._named("ne", o.CMPNE, other, False, spelling)

    not_equal = ne

    def lt(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """x < other.

        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        return self._named("lt", o.CMPLT, other, False, spelling)

    less = lt

    def gt(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """x > other.

        >>> Tensor([1, 2]).gt(1).tolist()
        [False, True]
        """
        return self._named("gt", o.CMPLT, other, True, spelling)

    greater = gt

    def le(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """x <= other.

        >>> Tensor([1, 2]).le(1).tolist()
        [True, False]
        """
        return self._named("le", arithmetic.at_most, other, False, spelling)

    less_equal = le

    def ge(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """x >= other.

        >>> Tensor([1, 2]).ge(2).tolist()
        [False, True]
        """
        return self._named("ge", arithmetic.at_least, other, False, spelling)

    greater_equal = ge

    def logical_and(self, other: Any) -> Self:
        """Whether both are true (not zero).

        >>> Tensor([1, 0]).logical_and(Tensor([2, 2])).tolist()
        [True, False]
        """
        return self._of_truths(o.AND, other)

    def logical_or(self, other: Any) -> Self:
        """Whether at least one is true (not zero).

        >>> Tensor([1, 0]).logical_or(Tensor([0, 0])).tolist()
        [True, False]
        """
        return self._of_truths(o.OR, other)

    def logical_xor(self, other: Any) -> Self:
        """Whether exactly one is true (not zero).

        >>> Tensor([1, 0]).logical_xor(Tensor([1, 1])).tolist()
        [False, True]
        """
        return self._of_truths(o.XOR, other)

    def _of_truths(self, op: o.Op, other: Any) -> Self:
        """Apply an op to this and another operand as bools."""
        x, y = self.uop, as_node(self._operand(other), self.uop)
        return self._with(binary(op, x.cast(_bool), y.cast(_bool)), other)

    # -- choosing --------------------------------------------------------------------------------------------
    def where(self, yes: Any = REQUIRED, no: Any = REQUIRED, **spelling: Any) -> Self:
        """`yes` where this tensor is true (not zero), elsewhere `no`.

        >>> x = Tensor([-1.0, 2.0])
        >>> (x > 0).where(x ** 3, x).tolist()
        [-1.0, 8.0]
        """
        yes, no = spelled("where", spelling, yes=yes, no=no)
        a, b = self._operand(yes, "in where"), self._operand(no, "in where")
        if self.dtype.kind == "f" and any(isinstance(side, UOp) and side.dtype is _bool for side in (a, b)):
            raise InputError("where chooses by its first tensor, and these are values",
                             given=f"{self.dtype.name}.where(...) with bool values", expected="a bool tensor first",
                             fix="write (x > 0).where(x ** 3, x): condition.where(if true, if false)")
        if isinstance(a, UOp) is not isinstance(b, UOp):
            a = a if isinstance(a, UOp) else self._kin(no)._number(a, b.dtype, o.WHERE)
            b = b if isinstance(b, UOp) else self._kin(yes)._number(b, a.dtype, o.WHERE)
        return self._with(arithmetic.where(self.uop, a, b), yes, no)

    def maximum(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """The larger of each pair; NaN where either is.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self._named("maximum", arithmetic.maximum, other, False, spelling)

    def minimum(self, other: Any = REQUIRED, **spelling: Any) -> Self:
        """The smaller of each pair; NaN where either is.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self._named("minimum", arithmetic.minimum, other, False, spelling)
