"""Compute exponentials, logarithms, angles, hyperbolic functions and erf on nodes. In: float UOps. Out: UOps.

exp and log are computed from EXP2 and LOG2, which every device has. Where the plain formula loses digits (mostly near
0), a series takes over; its length depends on the dtype. Errors stay below 1e-6 of the value in float32, 1e-14 in
float64. Where the known derivative is better than that of the formula, it is written beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o
from glassgrad.tensor.autograd.custom_gradient import gradient_is, own_gradient
from glassgrad.tensor.formulas.deferred import one_node, same_shape

LOG2_E, LN_2 = math.log2(math.e), math.log(2.0)
HALF_PI = math.pi / 2


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """c0 + c1 x + c2 x^2 + ..., by Horner's rule, each step a multiply-add."""
    total = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        total = total.mulacc(x, c)
    return total


def terms(x: UOp, single: int, double: int) -> int:
    """Return how many terms of a series this dtype needs."""
    return double if x.dtype is dtypes.float64 else single


def with_sign_of(x: UOp, size: UOp) -> UOp:
    """Return an odd function's value at x from its value at |x|."""
    return (x < 0.0).where(-size, size)


# -- exponentials and logarithms -----------------------------------------------------------------------------
def exp(x: UOp) -> UOp:
    return (x * LOG2_E).exp2()


def log(x: UOp) -> UOp:
    return x.log2() * LN_2


@gradient_is(lambda g, y, x: g * (y + 1.0))
def expm1(x: UOp) -> UOp:
    """e^x - 1, by its series where the subtraction would lose digits."""
    series = x * polynomial(x, [1 / math.factorial(k) for k in range(1, terms(x, 9, 17))])
    return (x.abs() < 0.5).where(series, exp(x) - 1.0)


@gradient_is(lambda g, y, x: g / (x + 1.0))
def log1p(x: UOp) -> UOp:
    """ln(1 + x): the rounding of 1 + x is undone by the factor x / ((1 + x) - 1) (Kahan)."""
    u = x + 1.0
    return (u.eq(1.0) | x.eq(math.inf)).where(x, log(u) * (x / (u - 1.0)))


def _logaddexp_gradient(g: UOp, z: UOp, x: UOp, y: UOp) -> tuple[UOp, UOp]:
    apart = x.eq(y).where(0.0, x - y)                   # infinities may be equal too
    return g * sigmoid(apart), g * sigmoid(-apart)


@gradient_is(_logaddexp_gradient)
def logaddexp(x: UOp, y: UOp) -> UOp:
    """ln(e^x + e^y): the larger of both, and ln(1 + e^-|x - y|)."""
    top = x.maximum(y)
    return top.abs().eq(math.inf).where(top, top + log1p(exp(-(x - y).abs())))


@gradient_is(lambda g, y, x: g * (y * (1.0 - y)))
def sigmoid(x: UOp) -> UOp:
    """1 / (1 + e^-x)."""
    return (exp(-x) + 1.0).recip()


@gradient_is(lambda g, y, x: g * sigmoid(x))
def softplus(x: UOp) -> UOp:
    """ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)."""
    return x.maximum(0.0) + log1p(exp(-x.abs()))


@one_node(same_shape)
def gelu(x: UOp) -> UOp:
    """x (1 + erf(x / sqrt 2)) / 2."""
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)


@one_node(same_shape)
def gelu_by_tanh(x: UOp) -> UOp:
    """x (1 + tanh u) / 2 = x sigmoid(2 u) for u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return x * sigmoid(x * (x * x * 0.044715 + 1.0) * (2.0 * math.sqrt(2.0 / math.pi)))


# -- hyperbolic ----------------------------------------------------------------------------------------------
def _tanh_series(count: int) -> list[float]:
    """Coefficients of tanh x / x in powers of x^2, from tanh' = 1 - tanh^2."""
    t = [0.0] * (2 * count + 1)
    for k in range(2 * count):
        t[k + 1] = ((1.0 if k == 0 else 0.0) - sum(t[i] * t[k - i] for i in range(k + 1))) / (k + 1)
    return t[1::2]


_TANH = _tanh_series(12)


@gradient_is(lambda g, y, x: g * (1.0 - y * y))
def tanh(x: UOp) -> UOp:
    """1 - 2 / (e^2|x| + 1) with x's sign; the series below 1/4."""
    size = x.abs()
    large = 1.0 - 2.0 / (exp(size * 2.0) + 1.0)
    small = x * polynomial(x * x, _TANH[:terms(x, 5, 12)])
    return (size < 0.25).where(small, with_sign_of(x, large))


@gradient_is(lambda g, y, x: g * cosh(x))
def sinh(x: UOp) -> UOp:
    """(e^|x| - e^-|x|) / 2 with x's sign; computed from e^|x| - 1 where the difference would lose digits."""
    size = x.abs()
    half, less = _half_exp(size), expm1(size)
    near, far = (less + less / (less + 1.0)) * 0.5, half - 0.25 / half
    return with_sign_of(x, (size < 1.0).where(near, far))


@gradient_is(lambda g, y, x: g * sinh(x))
def cosh(x: UOp) -> UOp:
    """(e^x + e^-x) / 2."""
    half = _half_exp(x.abs())
    return half + 0.25 / half


def _half_exp(x: UOp) -> UOp:
    """e^x / 2, which overflows at a slightly larger x than e^x."""
    far = x > 80.0                                     # where halving the exponent loses no digits of e^-x
    return far.where(exp(x - 1.0) * (math.e / 2), exp(x) * 0.5)


@gradient_is(lambda g, y, x: g / (x * x + 1.0).sqrt())
def asinh(x: UOp) -> UOp:
    """ln(t + sqrt(t^2 + 1)) for t = |x|, with x's sign; ln(2 t) for large t, where t^2 would overflow."""
    t = x.abs()
    near = log1p(t + t * t / ((t * t + 1.0).sqrt() + 1.0))
    return with_sign_of(x, (t < 1e9).where(near, log(t) + LN_2))


@gradient_is(lambda g, y, x: g / (x * x - 1.0).sqrt())
def acosh(x: UOp) -> UOp:
    """ln(x + sqrt(x^2 - 1)), computed from x - 1; ln(2 x) for large x, where the sum would overflow."""
    t = x - 1.0
    return (x > 1e9).where(log(x) + LN_2, log1p(t + t.sqrt() * (t + 2.0).sqrt()))


@gradient_is(lambda g, y, x: g / (1.0 - x * x))
def atanh(x: UOp) -> UOp:
    """ln((1 + t) / (1 - t)) / 2 for t = |x|, with x's sign."""
    t = x.abs()
    return with_sign_of(x, log1p(t * 2.0 / (1.0 - t)) * 0.5)


# -- angles --------------------------------------------------------------------------------------------------
@gradient_is(lambda g, y, x: -g * x.sin())
def cos(x: UOp) -> UOp:
    """sin(pi/2 - x)."""
    return (HALF_PI - x).sin()


@gradient_is(lambda g, y, x: g * (y * y + 1.0))
def tan(x: UOp) -> UOp:
    return x.sin() / (HALF_PI - x).sin()


@gradient_is(lambda g, y, x: g / (x * x + 1.0))
def atan(x: UOp) -> UOp:
    """The angle with the tangent x, from -pi/2 to pi/2. It is computed from 1/x for |x| above 1, and the angle is
    halved twice, so that the series is needed only below 0.42, where it converges quickly."""
    size = x.abs()
    inverted = size > 1.0
    t = inverted.where(size.recip(), size)
    half = t / ((t * t + 1.0).sqrt() + 1.0)
    angle = half * polynomial(half * half, [2.0 * (-1) ** k / (2 * k + 1) for k in range(terms(x, 11, 22))])
    return with_sign_of(x, inverted.where(HALF_PI - angle, angle))


@gradient_is(lambda g, y, x: g / (1.0 - x * x).sqrt())
def asin(x: UOp) -> UOp:
    """atan(x / sqrt(1 - x^2))."""
    return atan(x / ((1.0 - x) * (x + 1.0)).sqrt())


@gradient_is(lambda g, y, x: -g / (1.0 - x * x).sqrt())
def acos(x: UOp) -> UOp:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    return atan(((1.0 - x) / (x + 1.0)).sqrt()) * 2.0


def _atan2_gradient(g: UOp, angle: UOp, y: UOp, x: UOp) -> tuple[UOp, UOp]:
    square = x * x + y * y
    scaled = g / square.eq(0.0).where(1.0, square)       # the gradient at the origin is 0, as in PyTorch
    return scaled * x, -scaled * y


@gradient_is(_atan2_gradient)
def atan2(y: UOp, x: UOp) -> UOp:
    """The angle of the point (x, y), from -pi to pi."""
    both_infinite = x.abs().eq(math.inf) & y.abs().eq(math.inf)
    ratio = (x.eq(0.0) & y.eq(0.0)).where(0.0, both_infinite.where(1.0, (y / x).abs()))
    negative_x, negative_y = (x < 0.0) | x.recip().eq(-math.inf), (y < 0.0) | y.recip().eq(-math.inf)
    angle = atan(ratio)
    angle = negative_x.where(math.pi - angle, angle)
    return negative_y.where(-angle, angle)


# -- the error function --------------------------------------------------------------------------------------
# erf(x) / x = P(x^2) / Q(x^2) up to 3.925, where erf is 1 in float32; fitted by weighted least squares to 2e-8. From
# there to 4.1, where x P / Q is 1 + 6e-7, it lies above 1.
_ERF_P = (1.128379146, 0.1905948738, 0.05276945007, 0.003772599333, 0.0002848448616, 2.04602164e-06)
_ERF_Q = (1.0, 0.5022430393, 0.1141831876, 0.01498329601, 0.001163870135, 3.80477847e-05)


def _erf_series(count: int) -> list[float]:
    """Coefficients of erf(x) sqrt(pi) e^(x^2) / 2x in powers of x^2: 2^k / (1 * 3 * ... * (2k + 1)). All are positive,
    so no digits cancel."""
    series = [1.0]
    for k in range(1, count):
        series.append(series[-1] * 2 / (2 * k + 1))
    return series


def _erfc_fraction(levels: int) -> tuple[list[float], list[float]]:
    """1/(1 + z/(1 + 2z/(1 + 3z/...))) as P(z) / Q(z): erfc(x) sqrt(pi) x e^(x^2) for z = 1 / 2x^2."""
    top, bottom = [1.0], [1.0]
    for k in range(levels, 0, -1):
        grown = [0.0] + [k * c for c in top]
        grown += [0.0] * (len(bottom) - len(grown))
        top, bottom = bottom, [c + (bottom[i] if i < len(bottom) else 0.0) for i, c in enumerate(grown)]
    return top, bottom


@gradient_is(lambda g, y, x: g * exp(-x * x) * (2.0 / math.sqrt(math.pi)))
def erf(x: UOp) -> UOp:
    """2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    if x.dtype is not dtypes.float64:
        x = x.maximum(-4.1).minimum(4.1)
        near = x * (polynomial(x * x, _ERF_P) / polynomial(x * x, _ERF_Q))
        return near.maximum(-1.0).minimum(1.0)
    size, fall = x.abs(), exp(-x * x)
    near = x * fall * polynomial(x * x, _erf_series(50)) * (2.0 / math.sqrt(math.pi))
    top, bottom = _erfc_fraction(20)
    z = 0.5 / (x * x)
    far = 1.0 - fall / (size * math.sqrt(math.pi)) * (polynomial(z, top) / polynomial(z, bottom))
    return (size < 3.0).where(near, with_sign_of(x, far))


@gradient_is(lambda g, y, x: g * exp(-x * x) * (-2.0 / math.sqrt(math.pi)))
def erfc(x: UOp) -> UOp:
    """1 - erf(x), without that subtraction where erf is nearly 1."""
    size = x.abs()
    top, bottom = _erfc_fraction(40)
    z = 0.5 / (x * x)
    tail = exp(-x * x) / (size * math.sqrt(math.pi)) * (polynomial(z, top) / polynomial(z, bottom))
    far = size.ge(2.0 if x.dtype is dtypes.float64 else 1.0)
    return far.where((x < 0.0).where(2.0 - tail, tail), 1.0 - erf(x))


# -- limits ---------------------------------------------------------------------------------------------------
def clamp(x: UOp, low: UOp | None, high: UOp | None) -> UOp:
    """max(min(x, high), low); the gradient passes where x is within the limits, including the limits themselves."""
    value = x if low is None else x.maximum(low)
    value = value if high is None else value.minimum(high)
    if low is None or high is None:
        limit, backward = (low, _above_backward) if high is None else (high, _below_backward)
        return value if limit is None else own_gradient(value, (x, limit), backward, backward.__name__)
    return own_gradient(value, (x, low, high), _between_backward, "_between_backward")


def limited(op: o.Op, x: UOp, limit: UOp) -> UOp:
    """The larger or the smaller of x and a limit, which takes half of the gradient where they are equal."""
    backward = _larger_backward if op is o.MAX else _smaller_backward
    return own_gradient(UOp(op, x.dtype, (x, limit)), (x, limit), backward, backward.__name__)


# x is compared with the limits, not with y: recomputed, x may be rounded differently
def _above_backward(g: UOp, y: UOp, x: UOp, low: UOp) -> tuple[UOp, None]: return low.le(x).where(g, 0.0), None
def _below_backward(g: UOp, y: UOp, x: UOp, high: UOp) -> tuple[UOp, None]: return x.le(high).where(g, 0.0), None


def _larger_backward(g: UOp, y: UOp, x: UOp, limit: UOp) -> tuple[UOp, None]:
    return (x < limit).where(0.0, x.eq(limit).where(g * 0.5, g)), None


def _smaller_backward(g: UOp, y: UOp, x: UOp, limit: UOp) -> tuple[UOp, None]:
    return (limit < x).where(0.0, x.eq(limit).where(g * 0.5, g)), None


def _between_backward(g: UOp, y: UOp, x: UOp, low: UOp, high: UOp) -> tuple[UOp, None, None]:
    return (low.le(x) & x.le(high)).where(g, 0.0), None, None
