"""Powers of floats, rounded nearly once. In: float32 or float64 UOps. Out: UOps of that type.

Any power of float64: x^y is 2^(y log2 x), and the absolute error of the exponent becomes the relative error of the
result. So the logarithm, its product with y and the leading terms of both series are pairs of floats, whose sum is the
number to about 100 bits. The result is right to 0.51 units in the last place.

A few constant exponents, in a tenth of that time: a product of rounded products would be wrong by more than one unit in
the last place, x * x * x by up to 1.3, 1 / (x * x) by 1.5. Here a number is split into a head, with so few leading bits
that the head's own power is exact, and a tail. What the tail adds to the power is small, so its rounding hardly
matters: the result is right to 0.55 units in the last place, or 1 where it is a denormal number.

Products of parts of floats are exact, so it does not matter whether a compiler rounds a product before it adds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from glassgrad.compiler.graph import UOp, const, dtypes
from glassgrad.tensor.autograd.custom_gradient import gradient_is

_DIGITS = {dtypes.float32: (24, dtypes.int32), dtypes.float64: (53, dtypes.int64)}      # binary digits
Pair = tuple[UOp, UOp]                       # the float nearest to a number, and the rest of the number
_LN_2 = Fraction("0.693147180559945309417232121458176568075500134360255254")
_SQRT_HALF = 0x3FE6A09E667F3BCD              # the bits of sqrt(1/2); below, coefficients of series
_LOG2_TERMS = [2 / (_LN_2 * (2 * k + 1)) for k in range(15)]                # of log2((1 + s) / (1 - s)) / s, in s^2
_EXP2_TERMS = [_LN_2 ** k / math.factorial(k) for k in range(17)]           # of 2^r, in r


def leading_digits(x: UOp, count: int) -> UOp:
    """Return a float with only the first binary digits of x."""
    digits, bits = _DIGITS[x.dtype]
    return (x.bitcast(bits) & const(-1 << digits - count, bits)).bitcast(x.dtype)


def leading_bits(x: UOp, parts: int = 2) -> UOp:
    """Return a float with the first 1 / `parts` of the digits of x: the product of `parts` such floats is exact."""
    return leading_digits(x, _DIGITS[x.dtype][0] // parts)


def halves(x: UOp) -> Pair:
    """Split a float into the first half of its bits and the rest."""
    first = leading_bits(x)
    return first, x - first


# -- constant exponents ----------------------------------------------------------------------------------------
def by_squaring(x: UOp, n: int, times: Callable[[UOp, UOp], UOp] = UOp.__mul__) -> UOp:
    """x times itself, n >= 1 times."""
    result: UOp | None = None
    while n:
        if n & 1:
            result = x if result is None else times(result, x)
        n >>= 1
        if n:
            x = times(x, x)
    assert result is not None
    return result


def few_factors(x: UOp, n: int) -> UOp:
    """x^n for an integer n, 2 <= |n| <= 3, or up to 5 in float64; for larger n the tail would not be small.

    head^n + tail (base^(n - 1) + base^(n - 2) head + ... + head^(n - 1)), where base is x or 1 / x."""
    base = x if n > 0 else x.recip()
    head = leading_bits(base, abs(n))
    tail = base - head if n > 0 else (base - head) + base * _missing(x, base)
    power, slope = base, base + head
    for _ in range(abs(n) - 2):
        power = power * base
        slope = slope * head + power
    value = by_squaring(head, abs(n)) + tail * slope
    return ((value.abs() < math.inf) & value.ne(0.0)).where(value, by_squaring(base, abs(n)))


def _missing(x: UOp, y: UOp) -> UOp:
    """1 - x y, where x y is nearly 1."""
    (x0, x1), (y0, y1) = halves(x), halves(y)
    return ((1.0 - x0 * y0) - (x0 * y1 + x1 * y0)) - x1 * y1


@gradient_is(lambda g, y, x: g * (y / x) * -0.5)
def reciprocal_root(x: UOp) -> UOp:
    """1 / sqrt(x), computed as a rounded root plus half of what its square times x lacks of 1."""
    root = x.sqrt().recip()
    (x0, x1), head = halves(x), leading_bits(root, 4)
    missing = (1.0 - x0 * head * head) - x1 * head * head - x * (root - head) * (root + head)
    value = root + root * missing * 0.5
    return value.eq(value).where(value, root)


# -- any exponent ----------------------------------------------------------------------------------------------
def power_of_size(x: UOp, y: UOp) -> UOp:
    """x^y of float64, for x >= 0; 0, infinities and NaN as in C."""
    exponent = y.maximum(-2.0 ** 64).minimum(2.0 ** 64)             # beyond them: 0, 1 or inf; a NaN stays
    high, low = _log2_as_pair(x)
    size = _power_of_pair(_add(_product(exponent, high), (exponent * low, const(0.0, x.dtype))))
    at_edge = (y < 0.0).where(x.recip(), y.eq(y).where(x, y))       # of 0, of infinities, of NaN
    return ((x > 0.0) & (x < math.inf)).where(size, at_edge)


def _log2_as_pair(x: UOp) -> Pair:
    """log2(x) of positive numbers: e + log2(m), sqrt(1/2) <= m < sqrt(2), where log2(m) is a series in
    s = (m - 1) / (m + 1)."""
    denormal = x < 2.0 ** -1022
    bits = denormal.where(x * 2.0 ** 54, x).bitcast(dtypes.int64)
    above = bits - _SQRT_HALF                            # its exponent field is e
    e = ((above >> 52) - denormal.where(const(54, dtypes.int64), 0)).cast(x.dtype)
    m = (bits - (above & (-1 << 52))).bitcast(x.dtype)
    divisor = m + 1.0
    rounded = m - (divisor - 1.0)                        # the rounding error of m + 1
    s = (m - 1.0) / divisor
    near, rest = _product(s, divisor)
    pair = s, ((m - 1.0 - near) - rest - s * rounded) / divisor
    return _add((e, const(0.0, x.dtype)), _times(pair, _series(_times(pair, pair), _LOG2_TERMS)))


def _power_of_pair(t: Pair) -> UOp:
    """2^t: 2^n times a series in t - n."""
    high = t[0].maximum(-1100.0).minimum(1030.0)         # beyond them: 0 and inf; a NaN stays
    magic = 1.5 * 2.0 ** 52                              # adding it rounds to integers: its bits then end in n
    rounded = high + magic
    n = (rounded.bitcast(dtypes.int64) << 12) >> 12
    series = _series((high - (rounded - magic), high.eq(t[0]).where(t[1], 0.0)), _EXP2_TERMS)[0]
    half = n >> 1                                        # two factors, because 2^n itself may not be a normal number
    return series * _scale(half) * _scale(n - half)


def _scale(n: UOp) -> UOp:
    return ((n + 1023) << 52).bitcast(dtypes.float64)


# -- pairs ---------------------------------------------------------------------------------------------------
def _series(z: Pair, coefficients: Sequence[Fraction]) -> Pair:
    """c0 + c1 z + c2 z^2 + ..., by Horner's rule; the first four terms as pairs, the others, which are small, as
    floats."""
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
    (x0, x1), (y0, y1) = halves(x), halves(y)
    first, middle = x0 * y0, x0 * y1 + x1 * y0
    near = first + middle
    return _as_pair(near, (middle - (near - first)) + x1 * y1)


def _as_pair(near: UOp, rest: UOp) -> Pair:
    """near + rest, where |near| is much larger."""
    total = near + rest
    return total, rest - (total - near)
