"""Define angles, hyperbolic functions, special functions, divisors, running logarithms. In, out: tensors.

Most are one line here; their formulas and derivatives are in formulas/: elementary, special_functions.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import DTypeError, InputError
from glassgrad.compiler.graph import dtypes
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas import (all_true, arithmetic, as_float, both, broadcast, cat, elementary, equal,
                                       in_accumulator, mul, special_functions as special, where)
from glassgrad.tensor.methods import (Operand, Self, TensorBase, arguments, computed, fit_together, resolve_axis,
                                      working_axis)


class SpecialFunctionsMixin(TensorBase):
    """More functions of numbers."""
    __slots__ = ()

    # -- special functions -----------------------------------------------------------------------------------
    def erfc(self) -> Self:
        """1 - erf(x), with all its digits where that is nearly 0.

        >>> Tensor([0.0]).erfc().tolist()
        [1.0]
        """
        return self._formula(elementary.erfc)

    def erfinv(self) -> Self:
        """The y for which erf(y) = x.

        >>> Tensor([0.0, 1.0]).erfinv().tolist()
        [0.0, inf]
        """
        return self._formula(special.erfinv)

    def lgamma(self) -> Self:
        """ln |gamma(x)|.

        >>> Tensor([1.0, 2.0]).lgamma().tolist()
        [0.0, 0.0]
        """
        return self._formula(special.lgamma)

    def digamma(self) -> Self:
        """The derivative of `lgamma`.

        >>> round(Tensor([1.0]).digamma().item(), 4)
        -0.5772
        """
        return self._formula(special.digamma)

    def logit(self, eps: float | None = None) -> Self:
        """ln(x / (1 - x)), the inverse of sigmoid; `eps` keeps x between eps and 1 - eps.

        >>> Tensor([0.5]).logit().tolist()
        [0.0]
        """
        eps, = arguments("logit", eps=eps)
        return self._with(special.logit(self.uop if eps is None else arithmetic.clamp(self.uop, eps, 1 - eps)))

    def sinc(self) -> Self:
        """sin(pi x) / (pi x), and 1 at 0.

        >>> Tensor([0.0]).sinc().tolist()
        [1.0]
        """
        return self._with(in_accumulator(special.sinc, as_float(self.uop)))

    def xlogy(self, other: Any) -> Self:
        """x ln(other), and 0 where x is 0.

        >>> Tensor([0.0]).xlogy(Tensor([0.0])).tolist()
        [0.0]
        """
        return self._combined(lambda x, y: special.xlogy(*map(as_float, both(x, y))), other)

    def hypot(self, other: Any) -> Self:
        """sqrt(x^2 + other^2), also where the squares would be infinite or 0.

        >>> Tensor([3.0]).hypot(Tensor([4.0])).tolist()
        [5.0]
        """
        return self._combined(lambda x, y: special.hypot(*both(x, y)), other)

    def heaviside(self, values: Any) -> Self:
        """0 below 0, 1 above 0, and `values` at 0.

        >>> Tensor([-1.0, 0.0, 2.0]).heaviside(Tensor([0.5])).tolist()
        [0.0, 0.5, 1.0]
        """
        above = arithmetic.less(0, self.uop).cast(self.dtype)
        return self._combined(lambda x, at_zero: where(equal(x, 0), at_zero, above), values)

    def signbit(self) -> Self:
        """Whether the sign bit is set, also for -0.0.

        >>> Tensor([-0.0, 1.0]).signbit().tolist()
        [True, False]
        """
        return self._with(arithmetic.is_negative(self.uop))

    def isposinf(self) -> Self:
        """Whether each value is +infinity.

        >>> Tensor([float("inf"), 1.0]).isposinf().tolist()
        [True, False]
        """
        return self._with(equal(self.uop, math.inf))

    def isneginf(self) -> Self:
        """Whether each value is -infinity.

        >>> Tensor([float("-inf"), 1.0]).isneginf().tolist()
        [True, False]
        """
        return self._with(equal(self.uop, -math.inf))

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """NaN and the infinities replaced: by 0 and by the greatest and least numbers of the type, unless others are
        given.

        >>> Tensor([float("nan"), 1.0]).nan_to_num().tolist()
        [0.0, 1.0]
        """
        nan, above, below = arguments("nan_to_num", nan=nan, posinf=posinf, neginf=neginf)
        return self._with(special.finite(self.uop, nan, above, below)) if self.dtype.kind == "f" else self

    def deg2rad(self) -> Self:
        """Degrees as radians.

        >>> Tensor([0.0]).deg2rad().tolist()
        [0.0]
        """
        return self._formula(lambda x: x * (math.pi / 180))

    def rad2deg(self) -> Self:
        """Radians as degrees.

        >>> Tensor([0.0]).rad2deg().tolist()
        [0.0]
        """
        return self._formula(lambda x: x * (180 / math.pi))

    def logaddexp2(self, other: Any) -> Self:
        """log2(2^x + 2^other), without overflow.

        >>> Tensor([3.0]).logaddexp2(Tensor([3.0])).tolist()
        [4.0]
        """
        return self._combined(lambda *given: in_accumulator(special.log2_add_exp2, *map(as_float, broadcast(*given))),
                              other)

    # -- comparing -------------------------------------------------------------------------------------------
    def equal(self, other: Self) -> bool:
        """Whether the shapes and all values are the same (reads the values).

        >>> Tensor([1, 2]).equal(Tensor([1, 2]))
        True
        """
        other, = arguments("equal", other=other)
        same = self.shape == other.shape
        return same and bool(running.number_in(all_true(equal(self.uop, other.uop)), self.device))

    # -- running and summing ---------------------------------------------------------------------------------
    def logcumsumexp(self, axis: int = 0, **spelling: Any) -> Self:
        """ln of the running sum of e^x along an axis, without overflow.

        >>> Tensor([0.0, 0.0]).logcumsumexp().exp().round(decimals=6).tolist()
        [1.0, 2.0]
        """
        axis, = arguments("logcumsumexp", spelling, axis=axis)
        return self._with(special.logcumsumexp(self.uop, resolve_axis(axis, self.ndim, "logcumsumexp")))

    def diff(self, n: int = 1, dim: int = -1, prepend: Self | None = None, append: Self | None = None,
             **spelling: Any) -> Self:
        """Each element minus the one before it, n times over; `prepend` and `append` extend the axis first.

        >>> Tensor([1, 4, 9]).diff().tolist()
        [3, 5]
        """
        n, dim, prepend, append = arguments("diff", spelling, n=n, dim=dim, prepend=prepend, append=append)
        axis = working_axis(dim, self.ndim, "diff")
        if n < 0:
            raise InputError("differences are taken so many times", given=f"n={n}", expected="0 or more",
                             fix="write x.diff(), or cumsum for the opposite")
        nodes = [part.uop for part in (prepend, self, append) if part is not None]
        fit_together(nodes, axis)
        return self._with(special.differences(cat(nodes, axis), axis, n), prepend, append)

    def addcmul(self, tensor1: Operand, tensor2: Operand, value: float = 1) -> Self:
        """x + value tensor1 tensor2. float16 and bfloat16 are computed in float32 and rounded once.

        >>> Tensor([1]).addcmul(Tensor([2]), Tensor([3])).tolist()
        [7]
        """
        return computed(self, arithmetic.add_product, "addcmul", tensor1=tensor1, tensor2=tensor2, value=value)

    def addcdiv(self, tensor1: Operand, tensor2: Operand, value: float = 1) -> Self:
        """x + value tensor1 / tensor2. float16 and bfloat16 are computed in float32 and rounded once.

        >>> Tensor([1.0]).addcdiv(Tensor([6.0]), Tensor([3.0])).tolist()
        [3.0]
        """
        return computed(self, arithmetic.add_quotient, "addcdiv", tensor1=tensor1, tensor2=tensor2, value=value)

    def fmax(self, other: Any) -> Self:
        """The larger of each pair; if one is NaN, the other.

        >>> Tensor([1.0, float("nan")]).fmax(0).tolist()
        [1.0, 0.0]
        """
        return self._combined(lambda x, y: special.skipping_nan(arithmetic.maximum, *both(x, y)), other)

    def fmin(self, other: Any) -> Self:
        """The smaller of each pair; if one is NaN, the other.

        >>> Tensor([1.0, float("nan")]).fmin(3).tolist()
        [1.0, 3.0]
        """
        return self._combined(lambda x, y: special.skipping_nan(arithmetic.minimum, *both(x, y)), other)

    def float_power(self, exponent: Any) -> Self:
        """Each value to a power, computed in float64.

        >>> Tensor([2]).float_power(3).tolist()
        [8.0]
        """
        return self.cast(dtypes.float64)._combined(arithmetic.power, exponent, beside="as an exponent")

    def ldexp(self, other: Any) -> Self:
        """x times 2 to a power.

        >>> Tensor([3.0]).ldexp(Tensor([2])).tolist()
        [12.0]
        """
        x, power = map(as_float, both(self.uop, self._operand(other)))
        return self._with(mul(x, power.exp2()), other)

    # -- integers --------------------------------------------------------------------------------------------
    def gcd(self, other: Any) -> Self:
        """The greatest common divisor of integers.

        >>> Tensor([12, 7]).gcd(18).tolist()
        [6, 1]
        """
        return self._with(special.greatest_divisor(*self._integers("gcd", other)), other)

    def lcm(self, other: Any) -> Self:
        """The least common multiple of integers.

        >>> Tensor([4, 0]).lcm(6).tolist()
        [12, 0]
        """
        x, y = self._integers("lcm", other)
        divisor = special.greatest_divisor(x, y)
        shared = arithmetic.floor_divide(x, where(equal(divisor, 0), 1, divisor))
        return self._with(arithmetic.absolute(mul(shared, y)), other)

    def _integers(self, what: str, other: Any) -> Any:
        """Return this and another operand as integers of one type and shape."""
        x, y = broadcast(self.uop, self._operand(other))
        if x.dtype.kind not in "iu":
            raise DTypeError(f"{what} is of integers", given=f"{x.dtype.name} values", expected="integer tensors",
                             fix="cast first: x.int()")
        return x, y

    # -- angles and hyperbolas -------------------------------------------------------------------------------
    def sin(self) -> Self:
        """The sine of an angle in radians.

        >>> Tensor([0.0]).sin().tolist()
        [0.0]
        """
        return self._with(as_float(self.uop).sin())

    def cos(self) -> Self:
        """The cosine of an angle in radians.

        >>> Tensor([0.0]).cos().tolist()
        [1.0]
        """
        return self._formula(elementary.cos)

    def tan(self) -> Self:
        """The tangent of an angle in radians.

        >>> Tensor([0.0]).tan().tolist()
        [0.0]
        """
        return self._formula(elementary.tan)

    def asin(self) -> Self:
        """The angle from -pi/2 to pi/2 with this sine.

        >>> Tensor([0.0, 1.0]).asin().numpy()
        array([0.       , 1.5707964], dtype=float32)
        """
        return self._formula(elementary.asin)

    arcsin = asin

    def acos(self) -> Self:
        """The angle from 0 to pi with this cosine.

        >>> Tensor([1.0]).acos().tolist()
        [0.0]
        """
        return self._formula(elementary.acos)

    arccos = acos

    def atan(self) -> Self:
        """The angle from -pi/2 to pi/2 with this tangent.

        >>> Tensor([0.0, float("inf")]).atan().numpy()
        array([0.       , 1.5707964], dtype=float32)
        """
        return self._formula(elementary.atan)

    arctan = atan

    def sinh(self) -> Self:
        """The hyperbolic sine.

        >>> Tensor([0.0]).sinh().tolist()
        [0.0]
        """
        return self._formula(elementary.sinh)

    def cosh(self) -> Self:
        """The hyperbolic cosine.

        >>> Tensor([0.0]).cosh().tolist()
        [1.0]
        """
        return self._formula(elementary.cosh)

    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> Tensor([0.0, 100.0, -100.0]).tanh().tolist()
        [0.0, 1.0, -1.0]
        """
        return self._formula(elementary.tanh)

    def asinh(self) -> Self:
        """The inverse of sinh.

        >>> Tensor([0.0]).asinh().tolist()
        [0.0]
        """
        return self._formula(elementary.asinh)

    arcsinh = asinh

    def acosh(self) -> Self:
        """The inverse of cosh.

        >>> Tensor([1.0]).acosh().tolist()
        [0.0]
        """
        return self._formula(elementary.acosh)

    arccosh = acosh

    def atanh(self) -> Self:
        """The inverse of tanh.

        >>> Tensor([0.0]).atanh().tolist()
        [0.0]
        """
        return self._formula(elementary.atanh)

    arctanh = atanh

    def erf(self) -> Self:
        """The error function, 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x.

        >>> Tensor([0.0, 9.0, -9.0]).erf().tolist()
        [0.0, 1.0, -1.0]
        """
        return self._formula(elementary.erf)

    def sigmoid(self) -> Self:
        """1 / (1 + e^-x).

        >>> Tensor([0.0, 1000.0, -1000.0]).sigmoid().tolist()
        [0.5, 1.0, 0.0]
        """
        return self._formula(elementary.sigmoid)

    def atan2(self, other: Any) -> Self:
        """The angle from -pi to pi of the point (other, self).

        >>> Tensor([0.0, 1.0]).atan2(Tensor([-1.0, 0.0])).numpy()
        array([3.1415927, 1.5707964], dtype=float32)
        """
        y, x = map(as_float, broadcast(self.uop, self._operand(other)))
        return self._with(in_accumulator(elementary.atan2, y, x), other)

    arctan2 = atan2
