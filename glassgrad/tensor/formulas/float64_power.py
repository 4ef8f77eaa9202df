"""Powers of float64 numbers. In: nodes of |x| and y. Out: a node of |x|^y, to 0.51 last places.

x^y is 2^(y log2 x), and the absolute error of an exponent is the relative error of the result. So the logarithm, its
product with y and the leading terms of both series are pairs of floats whose sum is the number, to about 100 bits.
Products of halves are exact, so it does not matter whether a compiler rounds a product before it adds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from glassgrad.compiler.graph import UOp, const, dtypes

Pair = tuple[UOp, UOp]                       # a number's nearest float, and what is left of the number
_LN_2 = Fraction("0.693147180559945309417232121458176568075500134360255254")
_SQRT_HALF = 0x3FE6A09E667F3BCD              # the bits of sqrt(1/2)
_LOG2_TERMS = [2 / (_LN_2 * (2 * k + 1)) for k in range(15)]                # of log2((1 + s) / (1 - s)) / s, in s^2
_EXP2_TERMS = [_LN_2 ** k / math.factorial(k) for k in range(17)]           # of 2^r


def power_of_size(x: UOp, y: UOp) -> UOp:
    """x^y of float64, x >= 0; 0, infinities and NaN as in C."""
    exponent = y.maximum(-2.0 ** 64).minimum(2.0 ** 64)             # beyond them: 0, 1 or inf; a NaN stays
    high, low = _log2(x)
    size = _power_of_two(_add(_product(exponent, high), (exponent * low, const(0.0, x.dtype))))
    at_edge = (y < 0.0).where(x.recip(), y.eq(y).where(x, y))       # of 0, of infinities, of NaN
    return ((x > 0.0) & (x < math.inf)).where(size, at_edge)


def _log2(x: UOp) -> Pair:
    """log2(x) of positive numbers: e + log2(m), sqrt(1/2) <= m < sqrt(2), where log2(m) is a series in
    s = (m - 1) / (m + 1)."""
    denormal = x < 2.0 ** -1022
    bits = denormal.where(x * 2.0 ** 54, x).bitcast(dtypes.int64)
    above = bits - _SQRT_HALF                            # its exponent field is e
    e = ((above >> 52) - denormal.where(const(54, dtypes.int64), 0)).cast(x.dtype)
    m = (bits - (above & (-1 << 52))).bitcast(x.dtype)
    divisor = m + 1.0
    rounded = m - (divisor - 1.0)                        # what m + 1 lost
    s = (m - 1.0) / divisor
    near, rest = _product(s, divisor)
    pair = s, ((m - 1.0 - near) - rest - s * rounded) / divisor
    return _add((e, const(0.0, x.dtype)), _times(pair, _series(_times(pair, pair), _LOG2_TERMS)))


def _power_of_two(t: Pair) -> UOp:
    """2^t: 2^n times a series in t - n."""
    high = t[0].maximum(-1100.0).minimum(1030.0)         # beyond them: 0 and inf; a NaN stays
    magic = 1.5 * 2.0 ** 52                              # adding it rounds to integers: its bits then end in n
    rounded = high + magic
    n = (rounded.bitcast(dtypes.int64) << 12) >> 12
    series = _series((high - (rounded - magic), high.eq(t[0]).where(t[1], 0.0)), _EXP2_TERMS)[0]
    half = n >> 1                                        # two factors: 2^n itself may be no normal number
    return series * _scale(half) * _scale(n - half)


def _scale(n: UOp) -> UOp:
    return ((n + 1023) << 52).bitcast(dtypes.float64)


# -- pairs ---------------------------------------------------------------------------------------------------
def _series(z: Pair, coefficients: Sequence[Fraction]) -> Pair:
    """c0 + c1 z + c2 z^2 + ..., by Horner's rule; the first four terms as pairs, the rest is small."""
    total = const(float(coefficients[-1]), z[0].dtype)
    for c in reversed(coefficients[4:-1]):
        total = total.mulacc(z[0], float(c))
    pair = total, const(0.0, total.dtype)
    for c in reversed(coefficients[:4]):
        near = float(c)
        pair = _add((const(near, total.dtype), const(float(c - Fraction(near)), total.dtype)), _times(z, pair))
    return pair


def _add(x: Pair, y: Pair) -> Pair:
    """x + y, where |x| >= |y| or x is 0."""
    total = x[0] + y[0]
    return _as_pair(total, (y[0] - (total - x[0])) + (x[1] + y[1]))


def _times(x: Pair, y: Pair) -> Pair:
    near, rest = _product(x[0], y[0])
    return _as_pair(near, rest + (x[0] * y[1] + x[1] * y[0]))


def _product(x: UOp, y: UOp) -> Pair:
    """The product of two floats."""
    (x0, x1), (y0, y1) = _halves(x), _halves(y)
    first, middle = x0 * y0, x0 * y1 + x1 * y0
    near = first + middle
    return _as_pair(near, (middle - (near - first)) + x1 * y1)


def _as_pair(near: UOp, rest: UOp) -> Pair:
    """near + rest, where |near| is much larger."""
    total = near + rest
    return total, rest - (total - near)


def _halves(x: UOp) -> Pair:
    """The first 26 bits of a float, and the others: products of such parts are exact."""
    first = (x.bitcast(dtypes.int64) & (-1 << 27)).bitcast(x.dtype)
    return first, x - first
