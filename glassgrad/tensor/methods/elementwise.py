"""Functions of one number, element by element: powers, exponentials, logarithms, rounding. In, out: tensors.

Integers become float32 where the result is not whole. How they are computed is in `formulas`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import DTypeError, InputError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const, full
from glassgrad.tensor.base import Core
from glassgrad.tensor.broadcast import plain_number
from glassgrad.tensor.formulas import elementary
from glassgrad.tensor.methods.shape.movement import Movement

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Elementwise"]


class Elementwise(Movement):
    """Functions of one number."""
    __slots__ = ()

    def _float_node(self) -> UOp:
        x = self.uop
        return x if x.dtype.kind == "f" else x.cast(dtypes.default_float)

    def _formula(self, formula: Callable[[UOp], UOp]) -> Self:
        """A formula of several ops: narrow floats go through it in float32 and are rounded once."""
        x = self._float_node()
        return self._with(formula(x.cast(x.dtype.accumulator)).cast(x.dtype))

    # -- exponentials and logarithms -------------------------------------------------------------------------
    def exp(self) -> Self:
        """e to the power of each value.

        >>> Tensor([0.0, float("-inf")]).exp().tolist()
        [1.0, 0.0]
        """
        return self._formula(elementary.exp)

    def exp2(self) -> Self:
        """2 to the power of each value.

        >>> Tensor([0.0, 3.0]).exp2().tolist()
        [1.0, 8.0]
        """
        return self._float_unary(o.EXP2)

    def expm1(self) -> Self:
        """e^x - 1, exact near 0.

        >>> Tensor([0.0, 1e-10]).expm1().numpy()
        array([0.e+00, 1.e-10], dtype=float32)
        """
        return self._formula(elementary.expm1)

    def log(self) -> Self:
        """The natural logarithm.

        >>> Tensor([1.0, 0.0]).log().tolist()
        [0.0, -inf]
        """
        return self._formula(elementary.log)

    def log2(self) -> Self:
        """The logarithm to base 2.

        >>> Tensor([1.0, 8.0]).log2().tolist()
        [0.0, 3.0]
        """
        return self._float_unary(o.LOG2)

    def log10(self) -> Self:
        """The logarithm to base 10.

        >>> Tensor([1.0, 0.0]).log10().tolist()
        [0.0, -inf]
        """
        return self._formula(lambda x: x.log2() * math.log10(2.0))

    def log1p(self) -> Self:
        """ln(1 + x), exact near 0.

        >>> Tensor([0.0, 1e-10]).log1p().numpy()
        array([0.e+00, 1.e-10], dtype=float32)
        """
        return self._formula(elementary.log1p)

    def logaddexp(self, other: Any) -> Self:
        """ln(e^x + e^y) without overflow.

        >>> Tensor([1000.0]).logaddexp(Tensor([float("-inf")])).tolist()
        [1000.0]
        """
        x, y = self._both(other)
        top = x.maximum(y)
        top = top.abs().eq(math.inf).where(0.0, top).detach()
        return ((x - top).exp() + (y - top).exp()).log() + top

    def detach(self) -> Self:
        """The same values, where gradients stop.

        >>> x = Tensor([2.0])
        >>> (x * x.detach()).sum().gradient(x)[0].tolist()
        [2.0]
        """
        made = self._with(self.uop.detach())
        made._requires_grad = False
        return made

    # -- powers and roots ------------------------------------------------------------------------------------
    def square(self) -> Self:
        """Each value times itself.

        >>> Tensor([3, -4]).square().tolist()
        [9, 16]
        """
        return self * self

    def sqrt(self) -> Self:
        """The square root; NaN for negative values.

        >>> Tensor([4.0, 9.0]).sqrt().tolist()
        [2.0, 3.0]
        """
        return self._float_unary(o.SQRT)

    def rsqrt(self) -> Self:
        """One over the square root.

        >>> Tensor([4.0, 16.0]).rsqrt().tolist()
        [0.5, 0.25]
        """
        return self._formula(elementary.rsqrt)

    def reciprocal(self) -> Self:
        """One over each value.

        >>> Tensor([2, 4]).reciprocal().tolist()
        [0.5, 0.25]
        """
        return self._float_unary(o.RECIP)

    def pow(self, exponent: Any, reverse: bool = False) -> Self:
        """Each value to a power; the same as `x ** exponent`.

        >>> Tensor([2, 3]).pow(2).tolist(), Tensor([4.0, 9.0]).pow(0.5).tolist(), (2 ** Tensor([1.0, 3.0])).tolist()
        ([4, 9], [2.0, 3.0], [2.0, 8.0])
        """
        if reverse:
            return self._both(exponent)[1]._power_of(self)
        return self._power_of(exponent)

    def __pow__(self, exponent: Any) -> Self: return self._power_of(exponent)
    def __rpow__(self, base: Any) -> Self: return self.pow(base, True)
    def __ipow__(self, exponent: Any) -> Self: return self._rebind(self._power_of(exponent))

    def _power_of(self, exponent: Any) -> Self:
        if not isinstance(exponent, Core):
            if hasattr(exponent, "__len__"):
                exponent = self._beside(exponent)
            else:
                return self._constant_power(plain_number(exponent, "as an exponent"))
        if self._is_float_with(exponent):
            x, y = self._broadcasted(exponent)
            wide = x.dtype.accumulator
            return x._with(elementary.power(x.uop.cast(wide), y.uop.cast(wide)).cast(x.dtype))
        base, left = self._as_numbers(exponent)._broadcasted(exponent)
        return base._with(elementary.integer_power(base.uop, left.uop))

    def _constant_power(self, n: Any) -> Self:
        x = self.uop
        if isinstance(n, float) and n.is_integer() and x.dtype.kind == "f":
            n = int(n)
        if isinstance(n, int) and abs(n) <= 64:
            if n < 0 and x.dtype.kind != "f":
                raise DTypeError("integers have no negative powers", given=f"{x.dtype.name} ** {n}",
                                 expected="an exponent of 0 or more, or floats", fix="cast first: x.float() ** -1")
            if x.dtype is dtypes.bool:
                x = x.cast(dtypes.default_int)
            wide = x.cast(x.dtype.accumulator)
            made = elementary.whole_power(wide, abs(n)) if n else elementary.one(wide)
            return self._with((made if n >= 0 else made.recip()).cast(x.dtype))
        if n == 0.5:
            return self.sqrt()
        if n == -0.5:
            return self.rsqrt()
        return self._formula(lambda x: elementary.power(x, const(n, x.dtype)))

    # -- rounding --------------------------------------------------------------------------------------------
    def trunc(self) -> Self:
        """Rounded toward zero.

        >>> Tensor([1.7, -1.7]).trunc().tolist()
        [1.0, -1.0]
        """
        return self._unary(o.TRUNC) if self.uop.dtype.kind == "f" else self

    def floor(self) -> Self:
        """Rounded down.

        >>> Tensor([1.7, -1.7]).floor().tolist()
        [1.0, -2.0]
        """
        return self._rounded_down() if self.uop.dtype.kind == "f" else self

    def ceil(self) -> Self:
        """Rounded up.

        >>> Tensor([1.2, -1.7]).ceil().tolist()
        [2.0, -1.0]
        """
        if self.uop.dtype.kind != "f":
            return self
        above = self.uop.trunc()
        return self._with((above < self.uop).where(above + 1.0, above))

    def round(self, decimals: int = 0) -> Self:
        """Rounded to the nearest integer, halves to the even one; or to so many decimals.

        >>> Tensor([0.5, 1.5, 2.5, -0.7]).round().tolist(), Tensor([1.25, 2.5]).round(decimals=1).tolist()
        ([0.0, 2.0, 2.0, -1.0], [1.2000000476837158, 2.5])
        """
        if self.uop.dtype.kind != "f":
            return self
        if decimals:
            scale = 10.0 ** abs(decimals)
            return (self * scale).round() / scale if decimals > 0 else (self / scale).round() * scale
        x = self.uop
        toward_zero = x.trunc()
        rest = (x - toward_zero).abs()
        half = toward_zero * 0.5
        away = (rest > 0.5) | (rest.eq(0.5) & half.trunc().ne(half))
        return self._with(away.where((x < 0.0).where(toward_zero - 1.0, toward_zero + 1.0), toward_zero))

    def frac(self) -> Self:
        """What `trunc` leaves over.

        >>> Tensor([1.5, -1.25]).frac().tolist()
        [0.5, -0.25]
        """
        return self - self.trunc()

    # -- signs and limits ------------------------------------------------------------------------------------
    def sign(self) -> Self:
        """-1, 0 or 1; of NaN 0, as in PyTorch.

        >>> Tensor([-3.0, 0.0, 5.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        x = self.uop
        if x.dtype is dtypes.bool:
            return self
        zero, one = const(0, x.dtype), const(1, x.dtype)
        return self._with((zero < x).where(one, (x < zero).where(const(-1, x.dtype), zero)))

    def copysign(self, other: Any) -> Self:
        """The size of this with the sign of the other; -0.0 counts as negative.

        >>> Tensor([1.0, 2.0]).copysign(Tensor([-3.0, 3.0])).tolist()
        [-1.0, 2.0]
        """
        x, y = self.cast(self._float_node().dtype)._both(other)
        negative = (y < 0) | (y.eq(0) & (y.reciprocal() < 0))
        return negative.where(-x.abs(), x.abs())

    def clamp(self, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Self:
        """Values below `min_` become `min_`, values above `max_` become `max_`.

        >>> Tensor([-3, 1, 9]).clamp(0, 5).tolist()
        [0, 1, 5]
        """
        low, high = min_ if min_ is not None else min, max_ if max_ is not None else max
        if low is None and high is None:
            raise InputError("clamp needs a limit", given="neither min_ nor max_", expected="at least one of them",
                             fix="write x.clamp(0) or x.clamp(max_=1)")
        if self.uop.dtype.kind == "f" and not isinstance(low, Core) and not isinstance(high, Core):
            limits = [None if n is None else const(plain_number(n, "in clamp"), self.uop.dtype) for n in (low, high)]
            return self._with(elementary.clamp(self.uop, *limits))
        x = self if low is None else self.maximum(low)
        return x if high is None else x.minimum(high)

    def clip(self, min_: Any = None, max_: Any = None) -> Self:
        """The same as `clamp`.

        >>> Tensor([-3, 1, 9]).clip(0, 5).tolist()
        [0, 1, 5]
        """
        return self.clamp(min_, max_)

    def lerp(self, end: Self, weight: Any) -> Self:
        """From this (weight 0) to `end` (weight 1), in a straight line.

        >>> Tensor([0.0, 10.0]).lerp(Tensor([10.0, 20.0]), 0.5).tolist()
        [5.0, 15.0]
        """
        return self + (end - self) * weight

    # -- asking ----------------------------------------------------------------------------------------------
    def isnan(self) -> Self:
        """Whether each value is NaN.

        >>> Tensor([1.0, float("nan")]).isnan().tolist()
        [False, True]
        """
        return self != self

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Whether each value is infinite.

        >>> Tensor([1.0, float("inf")]).isinf().tolist()
        [False, True]
        """
        x = self._with(self._float_node())
        if detect_positive and detect_negative:
            return x.abs().eq(math.inf)
        if not (detect_positive or detect_negative):
            return x._with(full(x.shape, False, dtypes.bool))
        return x.eq(math.inf if detect_positive else -math.inf)

    def isfinite(self) -> Self:
        """Whether each value is neither infinite nor NaN.

        >>> Tensor([1.0, float("inf"), float("nan")]).isfinite().tolist()
        [True, False, False]
        """
        return self._with(self._float_node()).abs() < math.inf

    def isclose(self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
        """Whether |x - other| <= atol + rtol |other|.

        >>> Tensor([1.0, 2.0]).isclose(Tensor([1.0, 2.1])).tolist()
        [True, False]
        """
        other = self.ufix(other)
        near = ((self - other).abs() <= atol + rtol * other.abs()) & other.isfinite() | (self == other)
        return near | (self.isnan() & other.isnan()) if equal_nan else near
