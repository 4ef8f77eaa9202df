"""Powers of numbers, those of floats rounded nearly once. In: UOps. Out: UOps of the same type.

Any power of floats: x^y is 2^(y log2 x), and the absolute error of the exponent becomes the relative error of the
result. So the exponent of a float32 power is computed in float64. That of a float64 power is a pair of floats: the
logarithm, its product with y and the leading terms of both series are pairs, whose sum is the number to about 100 bits.
Both results are right to 0.51 units in the last place.

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

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd.custom_gradient import gradient_is
from glassgrad.tensor.formulas.elementary import LN_2, LOG2_E, log, polynomial

PRODUCTS = range(-64, 65)            # exponents whose powers may be computed as products,
EXACT_PRODUCTS = range(-1, 3)        # and those whose products are rounded at most once
# of a float type: binary digits; the type with the same bits; the least number that has all digits; the power of 2
# that gives smaller ones all digits; the bits of sqrt(1/2)
_FORMATS = {dtypes.float32: (24, dtypes.int32, 2.0 ** -126, 24, 0x3F3504F3),
            dtypes.float64: (53, dtypes.int64, 2.0 ** -1022, 54, 0x3FE6A09E667F3BCD)}
Pair = tuple[UOp, UOp]                       # the float nearest to a number, and the rest of the number
_LN_2 = Fraction("0.693147180559945309417232121458176568075500134360255254")
# coefficients of series
_LOG2_TERMS = [2 / (_LN_2 * (2 * k + 1)) for k in range(15)]                # of log2((1 + s) / (1 - s)) / s, in s^2
_EXP2_TERMS = [_LN_2 ** k / math.factorial(k) for k in range(17)]           # of 2^r, in r


def computes_float64(*operands: UOp) -> bool:
    """Return whether the device of these operands has float64."""
    device = next((x.device for x in operands if x.device), Device.DEFAULT)
    return getattr(Device[device], "has_float64", True)


def leading_digits(x: UOp, count: int) -> UOp:
    """Return a float with only the first binary digits of x."""
    digits, integers = _FORMATS[x.dtype][:2]
    return (x.bitcast(integers) & const(-1 << digits - count, integers)).bitcast(x.dtype)


def leading_bits(x: UOp, parts: int = 2) -> UOp:
    """Return a float with the first 1 / `parts` of the digits of x: the product of `parts` such floats is exact."""
    return leading_digits(x, _FORMATS[x.dtype][0] // parts)


def halves(x: UOp) -> Pair:
    """Split a float into the first half of its bits and the rest."""
    first = leading_bits(x)
    return first, x - first


# -- constant exponents ----------------------------------------------------------------------------------------
@gradient_is(lambda g, y, x: const(0, x.dtype).broadcast(x.shape))
def one(x: UOp) -> UOp:
    """x^0: 1 everywhere, with a gradient of 0."""
    return const(1, x.dtype).broadcast(x.shape)


def product_power(x: UOp, n: int) -> UOp:
    """x^n by products in the type of x."""
    return by_squaring(x if n > 0 else x.recip(), abs(n)) if n else one(x)


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


def _few_factors(x: UOp, n: int) -> UOp:
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
def rsqrt(x: UOp) -> UOp:
    """1 / sqrt(x), rounded twice."""
    return x.sqrt().recip()


@gradient_is(lambda g, y, x: g * (y / x) * -0.5)
def reciprocal_root(x: UOp) -> UOp:
    """1 / sqrt(x), computed as a rounded root plus half of what its square times x lacks of 1."""
    root = x.sqrt().recip()
    (x0, x1), head = halves(x), leading_bits(root, 4)
    missing = (1.0 - x0 * head * head) - x1 * head * head - x * (root - head) * (root + head)
    value = root + root * missing * 0.5
    return value.eq(value).where(value, root)


# -- integers --------------------------------------------------------------------------------------------------
def integer_power(x: UOp, n: UOp) -> UOp:
    """x^n for integers. Beyond n = 63 every base except 0, 1 and -1 has long overflowed, the even ones to 0. For
    negative n, 1 / x^-n rounded toward 0."""
    result, square = const(1, x.dtype), x
    for bit in range(6):
        result = (n & (1 << bit)).ne(0).where(result * square, result)
        square = square * square
    to_zero = (n > 63) & (x & 1).eq(0)
    if n.dtype.kind == "i":
        to_zero = to_zero | (n < 0) & (x.eq(1) | x.eq(-1)).logical_not()
    return to_zero.where(0, result)


# -- any exponent ----------------------------------------------------------------------------------------------
def _power_gradient(g: UOp, z: UOp, x: UOp, y: UOp) -> tuple[UOp, UOp | None]:
    if y.op is o.CONST:
        return g * power(x, const(y.arg - 1.0, y.dtype)) * y, None
    to_x = y.eq(0.0).where(0.0, g * y * power(x, y - 1.0))
    return to_x, (x.eq(0.0) & (y < 0.0).logical_not()).where(0.0, g * z * log(x))


@gradient_is(_power_gradient)
def power(x: UOp, y: UOp) -> UOp:
    """x^y = 2^(y log2 |x|), with a sign for odd powers, NaN for fractional powers of negative numbers, and 1 for x = 1
    or y = 0 whatever the other is (like pow in C and in PyTorch)."""
    if y.op is o.CONST and y.arg in PRODUCTS and (known := _accurate_product(x, int(y.arg))) is not None:
        return known
    size = _power_of_size(x.abs(), y)
    odd = (y - (y * 0.5).trunc() * 2.0).abs().eq(1.0)
    has_value = y.trunc().eq(y) | x.eq(-math.inf) | x.eq(0.0)
    negative = (x < 0.0) | x.recip().eq(-math.inf)   # 1/x distinguishes -0.0 from 0.0: (-0.0)^-3 is -inf
    signed = negative.where(odd.where(-size, has_value.where(size, math.nan)), size)
    one = x.eq(1.0) | y.eq(0.0) | (x.eq(-1.0) & y.abs().eq(math.inf))
    return one.where(1.0, signed)


def _accurate_product(x: UOp, n: int) -> UOp | None:
    """x^n as a product, if that is fast and accurate enough."""
    if n in EXACT_PRODUCTS:
        return product_power(x, n)
    if x.dtype is dtypes.float32 and computes_float64(x):
        return product_power(x.cast(dtypes.float64), n).cast(x.dtype)
    if abs(n) <= (5 if x.dtype is dtypes.float64 else 3):
        return _few_factors(x, n)
    return None if x.dtype is dtypes.float64 else product_power(x, n)


def _power_of_size(x: UOp, y: UOp) -> UOp:
    """x^y for x >= 0; 0, infinities and NaN as in C."""
    if x.dtype is dtypes.float64:
        exponent = y.maximum(-2.0 ** 64).minimum(2.0 ** 64)         # beyond them: 0, 1 or inf; a NaN stays
        high, low = _log2_as_pair(x)
        size = _power_of_pair(_add(_product(exponent, high), (exponent * low, const(0.0, x.dtype))))
    elif computes_float64(x, y):
        size = _power_of_two(y.cast(dtypes.float64) * _log2(x))
    else:
        return (y * x.log2()).exp2()
    at_edge = (y < 0.0).where(x.recip(), y.eq(y).where(x, y))       # of 0, of infinities, of NaN
    return ((x > 0.0) & (x < math.inf)).where(size, at_edge)


def _exponent_and_mantissa(x: UOp) -> Pair:
    """Return (e, m) of positive numbers: x = 2^e m, sqrt(1/2) <= m < sqrt(2)."""
    digits, integers, least, raised, sqrt_half = _FORMATS[x.dtype]
    stored, denormal = digits - 1, x < least
    bits = denormal.where(x * 2.0 ** raised, x).bitcast(integers)
    above = bits - sqrt_half                             # its exponent field is e
    e = (above >> stored) - denormal.where(const(raised, integers), 0)
    return e.cast(dtypes.float64), (bits - (above & (-1 << stored))).bitcast(x.dtype)


# of float32, in float64
def _log2(x: UOp) -> UOp:
    """log2(x) of positive float32 numbers as float64, to 2^-34 of its value: e + log2(m), where log2(m) is a series in
    s = (m - 1) / (m + 1)."""
    if x.op is o.CONST and 0 < x.arg < math.inf:
        return const(math.log2(x.arg), dtypes.float64)
    e, m = _exponent_and_mantissa(x)
    m = m.cast(dtypes.float64)
    s = (m - 1.0) / (m + 1.0)
    return s * polynomial(s * s, [2 * LOG2_E / (2 * k + 1) for k in range(6)]) + e


def _power_of_two(t: UOp) -> UOp:
    """2^t of float64 as float32: 2^n times a series in t - n, to 2^-32 of its value."""
    t = t.maximum(-160.0).minimum(130.0)                 # beyond them: 0 and inf; a NaN stays
    magic = 1.5 * 2.0 ** 52 + 1023                       # adding it rounds to integers: its bits then end in n + 1023
    rounded = t + magic
    scale = (rounded.bitcast(dtypes.uint64) << 52).bitcast(t.dtype)
    series = polynomial(t - (rounded - magic), [LN_2 ** k / math.factorial(k) for k in range(9)])
    return (series * scale).cast(dtypes.float32)


# of float64, in pairs
def _log2_as_pair(x: UOp) -> Pair:
    """log2(x) of positive numbers: e + log2(m), where log2(m) is a series in s = (m - 1) / (m + 1)."""
    e, m = _exponent_and_mantissa(x)
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
    total = polynomial(z[0], [float(c) for c in coefficients[4:]])
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
