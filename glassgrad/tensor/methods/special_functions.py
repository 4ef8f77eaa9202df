"""More functions of numbers: special functions, divisors, running logarithms, sums that skip NaN. In, out: tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import DTypeError, InputError
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor import evaluate as running
from glassgrad.tensor.broadcast import resolve_axis, working_axis
from glassgrad.tensor.formulas import special
from glassgrad.tensor.methods.neural.pooling import Pooling

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Numerics"]


class Numerics(Pooling):
    """More functions of numbers."""
    __slots__ = ()

    # -- special functions -----------------------------------------------------------------------------------
    def erfc(self) -> Self:
        """1 - erf(x).

        >>> Tensor([0.0]).erfc().tolist()
        [1.0]
        """
        return 1 - self.erf()

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
        x = self if eps is None else self.clamp(eps, 1 - eps)
        return x.log() - (1 - x).log()

    def sinc(self) -> Self:
        """sin(pi x) / (pi x), and 1 at 0.

        >>> Tensor([0.0]).sinc().tolist()
        [1.0]
        """
        x = self._with(self._float_node()) * math.pi
        nothing = x == 0
        return nothing.where(1, x.sin() / nothing.where(1, x))

    def xlogy(self, other: Any) -> Self:
        """x ln(other), and 0 where x is 0.

        >>> Tensor([0.0]).xlogy(Tensor([0.0])).tolist()
        [0.0]
        """
        x, y = self._with(self._float_node())._both(other)
        nothing = (x == 0) & ~y.isnan()
        return nothing.where(0, x * nothing.where(1, y).log())

    def hypot(self, other: Any) -> Self:
        """sqrt(x^2 + other^2), also where the squares would overflow.

        >>> Tensor([3.0]).hypot(Tensor([4.0])).tolist()
        [5.0]
        """
        x, y = self._both(other)
        largest = x.abs().maximum(y.abs()).detach()
        scale = ((largest > 0) & (largest < math.inf)).where(largest, 1)
        size = ((x / scale).square() + (y / scale).square()).sqrt() * scale
        return (x.isinf() | y.isinf()).where(math.inf, size)     # whatever the other is, NaN too

    def heaviside(self, values: Any) -> Self:
        """0 below 0, 1 above, and `values` at 0.

        >>> Tensor([-1.0, 0.0, 2.0]).heaviside(Tensor([0.5])).tolist()
        [0.0, 0.5, 1.0]
        """
        return (self == 0).where(values, (self > 0).cast(self.dtype))

    def signbit(self) -> Self:
        """Whether the sign is a minus; of -0.0 too.

        >>> Tensor([-0.0, 1.0]).signbit().tolist()
        [True, False]
        """
        return (self < 0) | ((self == 0) & (self.reciprocal() < 0)) if self.dtype.kind == "f" else self < 0

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

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """NaN and the infinities replaced: by 0 and the greatest and least numbers, unless others are given.

        >>> Tensor([float("nan"), 1.0]).nan_to_num().tolist()
        [0.0, 1.0]
        """
        if self.dtype.kind != "f":
            return self
        most = _greatest(self.dtype.name)
        x = self.isnan().where(nan, self)
        x = (x == math.inf).where(most if posinf is None else posinf, x)
        return (x == -math.inf).where(-most if neginf is None else neginf, x)

    def deg2rad(self) -> Self:
        """Degrees as radians.

        >>> Tensor([0.0]).deg2rad().tolist()
        [0.0]
        """
        return self * (math.pi / 180)

    def rad2deg(self) -> Self:
        """Radians as degrees.

        >>> Tensor([0.0]).rad2deg().tolist()
        [0.0]
        """
        return self * (180 / math.pi)

    def logaddexp2(self, other: Any) -> Self:
        """log2(2^x + 2^other), without overflow.

        >>> Tensor([3.0]).logaddexp2(Tensor([3.0])).tolist()
        [4.0]
        """
        return (self * math.log(2)).logaddexp(self.ufix(other) * math.log(2)) * (1 / math.log(2))

    # -- comparing -------------------------------------------------------------------------------------------
    def allclose(self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Self:
        """Whether all of |x - other| <= atol + rtol |other|: one truth value, a tensor (`bool()` reads it).

        >>> bool(Tensor([1.0, 2.0]).allclose(Tensor([1.0, 2.0])))
        True
        """
        return self.isclose(other, rtol, atol, equal_nan).all()

    def equal(self, other: Self) -> bool:
        """Whether shape and all values are the same (reads them).

        >>> Tensor([1, 2]).equal(Tensor([1, 2]))
        True
        """
        return self.shape == other.shape and bool(running.number_in((self == other).all().uop, self.device))

    # -- running and summing ---------------------------------------------------------------------------------
    def logcumsumexp(self, axis: int = 0) -> Self:
        """ln of the running sum of e^x along an axis, without overflow.

        >>> Tensor([0.0, 0.0]).logcumsumexp().exp().round(decimals=6).tolist()
        [1.0, 2.0]
        """
        where = resolve_axis(axis, self.ndim, "logcumsumexp")
        if not self.ndim or not self.numel():
            return self._with(self._float_node())
        x, step, n = self._with(self._float_node()), 1, self.shape[where]
        while step < n:      # after it, each element holds the last 2 * step sums
            cut = x.shrink([(0, n - step) if a == where else (0, m) for a, m in enumerate(x.shape)])
            before = cut._pad_constant([(step, 0) if a == where else (0, 0) for a in range(x.ndim)], -math.inf)
            x, step = x.logaddexp(before), step * 2
            x = x._with(x.uop.contiguous())
        return x

    def nansum(self, axis: Any = None, keepdim: bool = False) -> Self:
        """The sum of all that is not NaN.

        >>> Tensor([1.0, float("nan"), 2.0]).nansum().item()
        3.0
        """
        return self.isnan().where(0, self).sum(axis, keepdim)

    def nanmean(self, axis: Any = None, keepdim: bool = False) -> Self:
        """The mean of all that is not NaN.

        >>> Tensor([1.0, float("nan"), 2.0]).nanmean().item()
        1.5
        """
        return self.nansum(axis, keepdim) / (~self.isnan()).cast(self.dtype).sum(axis, keepdim)

    def diff(self, n: int = 1, dim: int = -1, prepend: Self | None = None, append: Self | None = None) -> Self:
        """Each element less the one before it, n times over; of an axis that may be longer by others at its ends.

        >>> Tensor([1, 4, 9]).diff().tolist()
        [3, 5]
        """
        axis = working_axis(dim, self.ndim, "diff")
        if n < 0:
            raise InputError("differences are taken so many times", given=f"n={n}", expected="0 or more",
                             fix="write x.diff(), or cumsum for the opposite")
        parts = [part for part in (prepend, self, append) if part is not None]
        x = parts[0].cat(*parts[1:], dim=axis)
        for _ in range(min(n, x.shape[axis])):      # then nothing is left
            size = x.shape[axis]
            cut = [(0, m) for m in x.shape]
            later, earlier = list(cut), list(cut)
            later[axis], earlier[axis] = (min(1, size), size), (0, max(size - 1, 0))
            x = (
                x.shrink(later) - x.shrink(earlier)
                if x.dtype is not dtypes.bool
                else x.shrink(later) ^ x.shrink(earlier)
            )
        return x

    def addcmul(self, tensor1: Self, tensor2: Self, value: float = 1) -> Self:
        """x + value tensor1 tensor2.

        >>> Tensor([1]).addcmul(Tensor([2]), Tensor([3])).tolist()
        [7]
        """
        return self + (tensor1 * tensor2 if value == 1 else tensor1 * tensor2 * value)

    def addcdiv(self, tensor1: Self, tensor2: Self, value: float = 1) -> Self:
        """x + value tensor1 / tensor2.

        >>> Tensor([1.0]).addcdiv(Tensor([6.0]), Tensor([3.0])).tolist()
        [3.0]
        """
        return self + tensor1 / tensor2 * value

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

    # -- integers ---------------------------------------------------------------------------------------
    def gcd(self, other: Any) -> Self:
        """The greatest common divisor of integers, by Euclid: enough steps for the widest numbers of the type.

        >>> Tensor([12, 7]).gcd(18).tolist()
        [6, 1]
        """
        x, y = self._broadcasted(other)
        if x.dtype.kind not in "iu":
            raise DTypeError("gcd is of integers", given=f"{x.dtype.name} values", expected="integer tensors",
                             fix="cast first: x.int()")
        x, y = x.abs(), y.abs()
        for _ in range(math.ceil(x.dtype.bits * 1.4405)):       # Lame: Fibonacci numbers take the longest
            nothing = y == 0
            x, y = nothing.where(x, y), nothing.where(0, x % nothing.where(1, y))
            y = y._with(y.uop.contiguous())
        return x

    def lcm(self, other: Any) -> Self:
        """The least common multiple of integers.

        >>> Tensor([4, 0]).lcm(6).tolist()
        [12, 0]
        """
        x, y = self._broadcasted(other)
        divisor = x.gcd(y)
        return (x // (divisor == 0).where(1, divisor) * y).abs()


def _greatest(name: str) -> float:
    """The greatest finite number of a float type."""
    return {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "float16": 65504.0,
            "bfloat16": 3.3895313892515355e38, "fp8e4m3": 448.0, "fp8e5m2": 57344.0}[name]
