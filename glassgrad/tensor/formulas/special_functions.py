"""Compute special functions on nodes: the inverse of erf, the logarithm of gamma, its derivative. In: float UOps. Out:
UOps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from glassgrad.compiler.graph import UOp, const, dtypes
from glassgrad.compiler.graph.dtype import largest as greatest
from glassgrad.compiler.graph.recurrence import steps_of_items
from glassgrad.tensor.autograd.custom_gradient import gradient_is
from glassgrad.tensor.formulas import (absolute, as_float, broadcast, flatten, in_accumulator, is_infinite, is_nan,
                                       maximum, pad_axis, part, rounded_once, square)
from glassgrad.tensor.formulas.bitcast import WORDS
from glassgrad.tensor.formulas.elementary import LN_2, LOG2_E, erf, erfc, exp, log, logaddexp, polynomial, tan

# Giles (2012), "Approximating the erfinv function": two polynomials in w = -ln(1 - x^2)
_ERFINV_NEAR = (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
                3.43273939e-07, 2.81022636e-08)
_ERFINV_FAR = (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
               0.000100950558, -0.000200214257)


@gradient_is(lambda g, y, x: g * exp(y * y) * (math.sqrt(math.pi) / 2))
def erfinv(x: UOp) -> UOp:
    """erf's inverse: the polynomials, then Newton steps until the dtype's own precision."""
    w = -log((1.0 - x) * (x + 1.0))
    near = polynomial(w - 2.5, _ERFINV_NEAR)
    far = polynomial(w.maximum(5.0).sqrt() - 3.0, _ERFINV_FAR)
    y = (w < 5.0).where(near, far) * x
    for _ in range(2 if x.dtype is dtypes.float64 else 1):
        step = (erf(y) - x) * (math.sqrt(math.pi) / 2) * exp(y * y)
        y = (w < 10.0).where(y - step, y)        # close to 1 the difference has no correct digits
    if x.dtype is dtypes.float64:                # close to 1: Newton steps for ln erfc(size) = ln(1 - |x|)
        size, rest = y.abs(), 1.0 - x.abs()
        for _ in range(4):
            tail = erfc(size)
            size = size + log(tail / rest) * tail * exp(size * size) * (math.sqrt(math.pi) / 2)
        y = (w < 5.0).where(y, (x < 0.0).where(-size, size))
    return x.abs().eq(1.0).where(x * math.inf, (x.abs() > 1.0).where(math.nan, y))


# Lanczos (1964), g = 7 and nine coefficients: ln gamma to about 1e-15
_LANCZOS = (0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
            12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7)


@gradient_is(lambda g, y, x: g * digamma(x))
def lgamma(x: UOp) -> UOp:
    """ln |gamma(x)|, by Lanczos' sum above 1/2 and by reflection below."""
    below = x < 0.5
    z = below.where(1.0 - x, x) - 1.0
    total = const(_LANCZOS[0], x.dtype)
    for k, c in enumerate(_LANCZOS[1:], 1):
        total = total + c / (z + float(k))
    t = z + 7.5
    value = log(t) * (z + 0.5) - t + log(total) + 0.5 * math.log(2 * math.pi)
    turn = x - x.round()  # sin(pi x) from the distance to an integer, exactly 0 at integers
    size = turn.abs()
    # sin(pi t) / pi is t where it is tiny, and no product rounds a denormal t
    reflected = -log((size < 1e-9).where(size, (size * math.pi).sin() / math.pi)) - value
    value = below.where(reflected, value)
    value = (x.eq(1.0) | x.eq(2.0)).where(0.0, value)
    pole = (x < 0.5) & x.eq(x.trunc())
    return (x.abs().eq(math.inf) | pole).where(math.inf, value)


def digamma(x: UOp) -> UOp:
    """The derivative of lgamma: x is shifted above 6 by psi(x) = psi(x + 1) - 1/x, then the asymptotic series."""
    below = x < 0.5
    z = below.where(1.0 - x, x)
    shift = const(0.0, x.dtype)
    for k in range(8):
        shift = shift + (z + float(k)).recip()
    t = z + 8.0
    r = (t * t).recip()
    series = polynomial(r, (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12))
    value = log(t) - 0.5 / t - r * series - shift
    turn = below.where(x - x.round(), 0.5) * math.pi       # else 1 / tan is infinite at integers, its gradient NaN
    value = below.where(value - math.pi / tan(turn), value)
    value = ((x < 0.0) & x.eq(x.trunc())).where(math.nan, value)
    return x.eq(0.0).where(-x.recip(), value)


# -- functions that are 0 / 0 somewhere ----------------------------------------------------------------------
@rounded_once
def logit(x: UOp) -> UOp:
    """ln(x / (1 - x))."""
    x = as_float(x)
    return log(x) - log(1 - x)


def sinc(x: UOp) -> UOp:
    """sin(pi x) / (pi x), and 1 at 0."""
    x = x * math.pi
    nothing = x.eq(0)
    return nothing.where(1, x.sin() / nothing.where(1, x))


def xlogy(x: UOp, y: UOp) -> UOp:
    """x ln(y), and 0 where x is 0."""
    x, y = broadcast(x, y)
    nothing = x.eq(0) & is_nan(y).logical_not()
    return nothing.where(0, x * in_accumulator(log, nothing.where(1, y)))


@rounded_once
def hypot(x: UOp, y: UOp) -> UOp:
    """sqrt(x^2 + y^2), also where the squares would overflow."""
    x, y = broadcast(as_float(x), as_float(y))
    most = maximum(x.abs(), y.abs()).detach()
    scale = ((most > 0) & (most < math.inf)).where(most, 1)
    size = (square(x / scale) + square(y / scale)).sqrt() * scale
    return (is_infinite(x) | is_infinite(y)).where(math.inf, size)     # even if the other is NaN


def log2_add_exp2(x: UOp, y: UOp) -> UOp:
    """log2(2^x + 2^y) without overflow."""
    return logaddexp(x * LN_2, y * LN_2) * LOG2_E


def finite(x: UOp, nan: float, above: float | None, below: float | None) -> UOp:
    """x with NaN and the infinities replaced; infinities become the greatest and least numbers of the type, unless
    others are given."""
    most = greatest(x.dtype)
    x = is_nan(x).where(nan, x)
    x = x.eq(math.inf).where(most if above is None else above, x)
    return x.eq(-math.inf).where(-most if below is None else below, x)


def skipping_nan(extreme: Callable[[UOp, UOp], UOp], x: UOp, y: UOp) -> UOp:
    """The larger or smaller of each pair; if one is NaN, the other."""
    if x.dtype.kind != "f":
        return extreme(x, y)
    return is_nan(x).where(y, is_nan(y).where(x, extreme(x, y)))


# -- along an axis -------------------------------------------------------------------------------------------
@rounded_once
def logcumsumexp(x: UOp, axis: int) -> UOp:
    """ln of the running sum of e^x along an axis, without overflow, in doubling steps."""
    x = as_float(x)
    if not x.shape or 0 in x.shape:
        return x
    step, n = 1, x.shape[axis]
    while step < n:      # after each pass, an element holds the sum of the last 2 * step elements
        before = pad_axis(part(x, axis, 0, n - step), axis, step, 0, -math.inf)
        x, step = logaddexp(x, before).contiguous(), step * 2
    return x


def differences(x: UOp, axis: int, times: int) -> UOp:
    """Each element minus the one before it, repeated `times` times."""
    for _ in range(min(times, x.shape[axis])):      # then nothing is left
        size = x.shape[axis]
        later, earlier = part(x, axis, min(1, size), size), part(x, axis, 0, max(size - 1, 0))
        x = later ^ earlier if x.dtype is dtypes.bool else later - earlier
    return x


_ROW = 256            # numbers whose steps are one task: they stay in the cache


def greatest_divisor(x: UOp, y: UOp) -> UOp:
    """The greatest common divisor of integers, by Stein's algorithm: halving and subtracting, which vector instructions
    can do, instead of division. The type is unsigned, because the absolute value of the least signed integer does not
    fit its type."""
    dtype, shape = x.dtype, x.shape
    x, y = (flatten(absolute(n).cast(WORDS[dtype.itemsize])) for n in (x, y))
    bits = x | y
    unit = bits & (0 - bits)                                 # the largest power of two that divides both
    is_odd = (y & unit).ne(0)
    [count], rows = x.shape, -(-x.size // _ROW)
    start = [n.pad(((0, rows * _ROW - count),)).reshape((rows, _ROW, 1))
             for n in (is_odd.where(x, y), is_odd.where(y, x), unit)]
    [_, divisor, _], _ = steps_of_items(_halved, start, 2 * x.dtype.bits)
    return divisor.reshape((rows * _ROW,)).shrink(((0, count),)).reshape(shape).cast(dtype)


def _halved(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    """Halve x or, if x is odd, the difference of x and y, until x is 0; y stays an odd multiple of the unit, x any
    multiple."""
    x, y, unit = states
    is_odd, less = (x & unit).ne(0), x.minimum(y)
    return [is_odd.where(x.maximum(y) - less, x) >> 1, is_odd.where(less, y), unit], []
