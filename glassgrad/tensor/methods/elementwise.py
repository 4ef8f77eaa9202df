"""Define functions of one number, element by element: powers, exponentials, logarithms, rounding. In, out: tensors.

Integers become float32 if the result is not an integer. The formulas are in formulas/.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import dtypes, full
from glassgrad.engine.in_place import value_in_memory
from glassgrad.tensor.formulas import all_true, arithmetic, as_float, as_node, both, elementary, powers, where
from glassgrad.tensor.formulas.bitcast import next_after
from glassgrad.tensor.methods import REQUIRED, Operand, Self, TensorBase, arguments, computed, spelled


class ElementwiseMixin(TensorBase):
    """Functions of one number."""
    __slots__ = ()

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
        return self._with(as_float(self.uop).exp2())

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
        return self._with(as_float(self.uop).log2())

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
        return self._combined(lambda x, y: arithmetic.logaddexp(*both(x, y)), other)

    def detach(self) -> Self:
        """The same values, through which no gradient passes.

        >>> x = Tensor([2.0])
        >>> (x * x.detach()).sum().gradient(x)[0].tolist()
        [2.0]
        """
        made = self._view(self.uop.detach())
        made._requires_grad = False
        if (value := value_in_memory(self.uop)) is not None:         # then the expression is not kept alive
            made.uop = value.reshape(self.shape).detach()
        return made

    # -- powers and roots ------------------------------------------------------------------------------------
    def square(self) -> Self:
        """Each value times itself.

        >>> Tensor([3, -4]).square().tolist()
        [9, 16]
        """
        return self._with(arithmetic.square(self.uop))

    def sqrt(self) -> Self:
        """The square root; NaN for negative values.

        >>> Tensor([4.0, 9.0]).sqrt().tolist()
        [2.0, 3.0]
        """
        return self._with(as_float(self.uop).sqrt())

    def rsqrt(self) -> Self:
        """One over the square root.

        >>> Tensor([4.0, 16.0]).rsqrt().tolist()
        [0.5, 0.25]
        """
        return self._formula(powers.rsqrt)

    def reciprocal(self) -> Self:
        """One over each value.

        >>> Tensor([2, 4]).reciprocal().tolist()
        [0.5, 0.25]
        """
        return self._with(as_float(self.uop).recip())

    def _power(self, exponent: Any, reverse: bool = False) -> Self:
        x, y = self.uop, self._operand(exponent, "as an exponent")
        return self._with(arithmetic.power(as_node(y, x), x) if reverse else arithmetic.power(x, y), exponent)

    def pow(self, exponent: Any = REQUIRED, reverse: bool = False, **spelling: Any) -> Self:
        """Each value to a power; the same as `x ** exponent`.

        Floats are accurate to one unit in the last place, and exact where the result is representable, if the device
        has float64.

        >>> Tensor([2, 3]).pow(2).tolist(), Tensor([4.0, 9.0]).pow(0.5).tolist(), (2 ** Tensor([1.0, 3.0])).tolist()
        ([4, 9], [2.0, 3.0], [2.0, 8.0])
        """
        return self._power(*arguments("pow", spelling, exponent=exponent, reverse=reverse))

    def __pow__(self, exponent: Any) -> Self: return self._power(exponent)
    def __rpow__(self, base: Any) -> Self: return self._power(base, True)
    def __ipow__(self, exponent: Any) -> Self: return self._rebind(self._power(exponent))

    # -- rounding --------------------------------------------------------------------------------------------
    def trunc(self) -> Self:
        """Rounded toward zero.

        >>> Tensor([1.7, -1.7]).trunc().tolist()
        [1.0, -1.0]
        """
        return self._with(self.uop.trunc()) if self.uop.dtype.kind == "f" else self

    fix = trunc

    def floor(self) -> Self:
        """Rounded down.

        >>> Tensor([1.7, -1.7]).floor().tolist()
        [1.0, -2.0]
        """
        return self._with(arithmetic.floor(self.uop)) if self.uop.dtype.kind == "f" else self

    def ceil(self) -> Self:
        """Rounded up.

        >>> Tensor([1.2, -1.7]).ceil().tolist()
        [2.0, -1.0]
        """
        return self._with(arithmetic.ceil(self.uop)) if self.uop.dtype.kind == "f" else self

    def round(self, decimals: int = 0) -> Self:
        """Rounded to the nearest integer, halves to the even one; or to a number of decimals.

        >>> Tensor([0.5, 1.5, 2.5, -0.7]).round().tolist(), Tensor([1.25, 2.5]).round(decimals=1).tolist()
        ([0.0, 2.0, 2.0, -1.0], [1.2000000476837158, 2.5])
        """
        decimals, = arguments("round", decimals=decimals)
        return self._with(arithmetic.round_to(self.uop, decimals)) if self.uop.dtype.kind == "f" else self

    def frac(self) -> Self:
        """The fractional part, with the sign of the value: x - trunc(x).

        >>> Tensor([1.5, -1.25]).frac().tolist()
        [0.5, -0.25]
        """
        x = self.uop
        return self._with(x - x.trunc() if x.dtype.kind == "f" else arithmetic.sub(x, x))

    # -- signs and limits ------------------------------------------------------------------------------------
    def sign(self) -> Self:
        """-1, 0 or 1; 0 for NaN, as in PyTorch.

        >>> Tensor([-3.0, 0.0, 5.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        return self._with(arithmetic.sign(self.uop))

    sgn = sign

    def copysign(self, other: Any) -> Self:
        """The absolute value of this with the sign of the other; -0.0 counts as negative.

        >>> Tensor([1.0, 2.0]).copysign(Tensor([-3.0, 3.0])).tolist()
        [-1.0, 2.0]
        """
        x, y = map(as_float, both(self.uop, self._operand(other)))
        size = x.abs()
        return self._with(where(arithmetic.is_negative(y), -size, size), other)

    def nextafter(self, other: Any) -> Self:
        """The next number of this type toward the other. It has no gradient.

        >>> (Tensor([1.0]).nextafter(2.0) - 1).item() == 2.0 ** -23
        True
        """
        x, y = both(as_float(self.uop), self._operand(other))
        return self._with(next_after(x, y), other)

    def clamp(self, min_: Any = None, max_: Any = None, **spelling: Any) -> Self:
        """Values below `min_` become `min_`, values above `max_` become `max_`.

        >>> Tensor([-3, 1, 9]).clamp(0, 5).tolist()
        [0, 1, 5]
        """
        low, high = spelled("clamp", spelling, min_=min_, max_=max_)
        if low is None and high is None:
            raise InputError("clamp needs a limit", given="neither min_ nor max_", expected="at least one of them",
                             fix="write x.clamp(0) or x.clamp(max_=1)")
        limits = [None if limit is None else self._operand(limit, "in clamp") for limit in (low, high)]
        return self._with(arithmetic.clamp(self.uop, *limits), low, high)

    clip = clamp

    def clamp_min(self, min: Any) -> Self:
        """The values, but at least `min`.

        >>> Tensor([1, 5]).clamp_min(3).tolist()
        [3, 5]
        """
        return self.clamp(min)

    def clamp_max(self, max: Any) -> Self:
        """The values, but at most `max`.

        >>> Tensor([1, 5]).clamp_max(3).tolist()
        [1, 3]
        """
        return self.clamp(None, max)

    def lerp(self, end: Operand, weight: Operand) -> Self:
        """Linear interpolation from this tensor (weight 0) to `end` (weight 1). float16 and bfloat16 are computed in
        float32 and rounded once.

        >>> Tensor([0.0, 10.0]).lerp(Tensor([10.0, 20.0]), 0.5).tolist()
        [5.0, 15.0]
        """
        return computed(self, arithmetic.lerp, "lerp", end=end, weight=weight)

    # -- predicates ------------------------------------------------------------------------------------------
    def isnan(self) -> Self:
        """Whether each value is NaN.

        >>> Tensor([1.0, float("nan")]).isnan().tolist()
        [False, True]
        """
        return self._with(arithmetic.is_nan(self.uop))

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Whether each value is infinite.

        >>> Tensor([1.0, float("inf")]).isinf().tolist()
        [False, True]
        """
        positive, negative = arguments("isinf", detect_positive=detect_positive, detect_negative=detect_negative)
        x = as_float(self.uop)
        if positive and negative:
            return self._with(arithmetic.is_infinite(x))
        if not (positive or negative):
            return self._with(full(x.shape, False, dtypes.bool))
        return self._with(x.eq(math.inf if positive else -math.inf))

    def isfinite(self) -> Self:
        """Whether each value is neither infinite nor NaN.

        >>> Tensor([1.0, float("inf"), float("nan")]).isfinite().tolist()
        [True, False, False]
        """
        return self._with(arithmetic.is_finite(self.uop))

    def isclose(self, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
        """Whether |x - other| <= atol + rtol |other|.

        >>> Tensor([1.0, 2.0]).isclose(Tensor([1.0, 2.1])).tolist()
        [True, False]
        """
        return computed(self, arithmetic.is_close, "isclose", other=other, rtol=rtol, atol=atol, equal_nan=equal_nan)

    def allclose(self, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
        """Whether |x - other| <= atol + rtol |other| holds for all elements: one boolean, as a tensor (`bool()` reads
        it).

        >>> bool(Tensor([1.0, 2.0]).allclose(Tensor([1.0, 2.0])))
        True
        """
        return computed(self, lambda *given: all_true(arithmetic.is_close(*given)), "allclose", other=other, rtol=rtol,
                        atol=atol, equal_nan=equal_nan)
