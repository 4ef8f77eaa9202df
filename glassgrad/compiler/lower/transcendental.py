"""Write EXP2, LOG2 and SIN as polynomials. In: one such node of float32 or float64. Out: a UOp of simple operations.

Every operation used (add, multiply, multiply-add, bit moves, selects) is a vector instruction on every target, so a
vector costs as much as a scalar. There are no branches: every lane pays for every case, so there are few cases. Does
not know loops or devices. The caller casts floats below float32 to float32.

                     largest error in ulp where MULACC is fused (and where it is not), vector instructions
                     float32             float64
    EXP2(x)          1.3 (1.7)   15      1.7 (2.0)   21
    EXP2(x * c)      1.7 (2.0)   16      1.5 (1.8)   22      exp(x), c = log2(e); other c: up to 2.5
    LOG2(x)          1.6 (1.8)   27      1.7 (1.8)   38      one rounding more in LOG2(x) * log(2)
    SIN(x)           1.8 (2.5)   18      1.7 (2.4)   22      88 and 185 for a vector with a large angle

Polynomials are minimax fits (least squares, reweighted by the error until it is level, computed with 60 digits).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import DType, UOp, const, ops as o
from glassgrad.compiler.graph.dtype import dtypes, round_float
from glassgrad.compiler.graph.index_algebra import bounds
from glassgrad.compiler.lower.missing_instructions import carrier

# -- exact constants, Horner's scheme ------------------------------------------------------------------------
# Marks a WHERE whose last source is costly and needed by few elements. Its condition is an integer below a constant, so
# that one maximum tells whether any lane needs it; compiler/optimize/moves/loop_moves.py turns it into a branch.
COLD_PATH = "rarely"

# Integer types with the bits of a float: its sign, exponent + bias, and the mantissa without its leading 1
SIGNED = {dtypes.float32: dtypes.int32, dtypes.float64: dtypes.int64}


def number(value: float | Fraction, dtype: DType) -> UOp:
    return const(float(value), dtype)


def pieces(value: Fraction, sizes: Sequence[int], dtype: DType) -> list[UOp]:
    """Split a value into constants that sum to it: pieces of `sizes` bits, then one of full width.

    A piece of 24 - k bits times an integer of k bits is exact in float32, so multiples of `value` can be subtracted
    piece by piece without error, whether or not the target fuses multiply and add.
    """
    found = []
    for size in sizes:
        exponent = math.frexp(float(value))[1]                       # value < 2 ** exponent
        unit = Fraction(2) ** (exponent - size)
        piece = round(value / unit) * unit
        found.append(number(piece, dtype))
        value -= piece
    return [*found, number(value, dtype)]


def horner(x: UOp, coefficients: Sequence[float]) -> UOp:
    """c[0] + c[1]*x + c[2]*x*x + ..., one multiply-add per term."""
    total = number(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        total = total.mulacc(x, number(c, x.dtype))
    return total


# -- exponential and logarithm -------------------------------------------------------------------------------
# q(r) = (e^r - 1) / r for |r| <= log(2): 1 + r*q(r) is e^r to 1.5e-8 (float32) and 1.0e-17 (float64), exactly 1 at 0.
# The coefficients were rounded one after another, the remaining ones fitted again each time.
_EXP = {
    dtypes.float32: (1.0, 0.5000003576278687, 0.1666661649942398, 0.04166119918227196, 0.008335966616868973,
                     0.001410544733516872, 0.00019630206224974245),
    dtypes.float64: (0.9999999999999999, 0.4999999999999991, 0.16666666666667318, 0.04166666666670627,
                     0.008333333333224932, 0.001388888888321441, 0.00019841269917674945, 2.4801590971914358e-05,
                     2.755729358702532e-06, 2.7556132292502143e-07, 2.5056029578697706e-08, 2.106409172348123e-09,
                     1.588021886415988e-10),
}

# log2(1 + f) / f for sqrt(1/2) <= 1 + f <= sqrt(2), to 1.4e-8 (float32, rounded coefficients) and 7.8e-18 (float64)
_LOG2 = {
    dtypes.float32: (1.4426950216293335, -0.7213475108146667, 0.48090222477912903, -0.3606829047203064,
                     0.28839796781539917, -0.2398165464401245, 0.2072681039571762, -0.19185616075992584,
                     0.17199110984802246, -0.09235012531280518),
    dtypes.float64: (1.4426950408889634, -0.7213475204444824, 0.4808983469629818, -0.36067376022184905,
                     0.28853900817924255, -0.24044917355260645, 0.2060992914544657, -0.18033687420649605,
                     0.16029944918454492, -0.14426976934051589, 0.1311543554775463, -0.1202176924959829,
                     0.1109638881426191, -0.1031532159711529, 0.09645903046245119, -0.08935680422264315,
                     0.08162793112424337, -0.08194339881920067, 0.09425480676902392, -0.08663814338722688,
                     0.03771383108108821),
}

# Constants that stand for irrational factors, with their exact inverses: exp(x) is written EXP2(x * log2(e)), where
# log2(e) is rounded to the type. With the rounded factor, exp(80) would be off by 6 ulp, in float64 exp(700) by 300.
_LN2 = Fraction("0.693147180559945309417232121458176568075500134360")
_INVERSES = {math.log2(math.e): _LN2,
             math.log2(10.0): Fraction("0.301029995663981195213738894724493026768189881462")}


def expand(node: UOp) -> UOp:
    """The node's value by simple operations. Each function below states its errors."""
    if node.op not in POLYNOMIALS:
        raise Bug(f"{node.op.name} has no line in the table POLYNOMIALS (compiler/lower/transcendental.py)")
    if node.dtype not in SIGNED:
        raise Bug(f"functions are expanded for float32 and float64, not {node.dtype.name}: cast to float32 first")
    return POLYNOMIALS[node.op](*node.src)


def _exp2(source: UOp) -> UOp:
    """2^x = 2^n * 2^f with n the nearest even integer.

    With n = 2m the factor 2^n is s*s, s = 2^m, which neither overflows nor underflows before the last product does, so
    that gradual underflow, and overflow to inf, need no extra cases. The price is f in [-1, 1] instead of [-1/2, 1/2]:
    two more multiply-adds. In EXP2(x * c) the product is not rounded (see `_factor`). For n <= -2 * bias, s has no
    exponent left: it is 0, and so is the result. (A product that underflows takes a processor 100 times as long, and a
    masked softmax has many.)
    """
    dtype, mantissa, bias = source.dtype, source.dtype.mantissa, source.dtype.bias
    x, inverse = _factor(source)
    factor = float(1 / inverse)
    ends = sorted((-2 * bias / factor, (bias + 3) / factor))                # beyond these, the result is 0 or inf
    x = x.maximum(number(ends[0], dtype)).minimum(number(ends[1], dtype))   # NaN stays NaN
    # the last place of this number is 2, so adding it rounds to even integers; the sum's bits end in m + bias
    magic = number(1.5 * 2.0 ** (mantissa + 1) + 2 * bias, dtype)
    rounded = x + magic if inverse == 1 else x.mulacc(number(factor, dtype), magic)
    minus_n = magic - rounded
    scale = (rounded.bitcast(carrier(dtype)) << mantissa).bitcast(dtype)
    if inverse == 1:
        rest = x + minus_n                                                  # f, exact
    else:  # f / c; the polynomial's coefficients contain c
        bits_of_m = bias.bit_length()
        first, second = pieces(inverse, [mantissa + 1 - bits_of_m], dtype)
        rest = minus_n.mulacc(second, minus_n.mulacc(first, x))
    rate = float(_LN2 / inverse)                                            # of e^(rate * rest)
    q = horner(rest, [c * rate ** (k + 1) for k, c in enumerate(_EXP[dtype])])
    return (rest * scale).mulacc(q, scale) * scale


def _factor(source: UOp) -> tuple[UOp, Fraction]:
    """Split a source x * c, with a constant c whose powers are in range, into (x, 1/c); otherwise (source, 1).

    Instead of multiplying x by c, n is divided by c exactly: x - n/c is exact where x*c - n would not be.
    """
    if source.op is o.MUL:
        for x, c in (source.src, source.src[::-1]):
            if c.op is o.CONST and 2.0 ** -8 <= abs(c.arg) <= 2.0 ** 8:
                for meant, inverse in _INVERSES.items():
                    if abs(c.arg) == round_float(meant, c.dtype):
                        return x, inverse if c.arg > 0 else -inverse
                return x, 1 / Fraction(c.arg)
    return source, Fraction(1)


def _log2(x: UOp) -> UOp:
    """log2(x) = e + log2(m), sqrt(1/2) <= m < sqrt(2), so that the relative error is small near 1 too.

    The result for 0 is -inf, for negative numbers nan, and right for denormals.
    """
    dtype, mantissa, bias = x.dtype, x.dtype.mantissa, x.dtype.bias
    denormal = x < 2.0 ** (1 - bias)
    normal = denormal.where(x * 2.0 ** (mantissa + 1), x)
    lift = denormal.where(number(-(mantissa + 1), dtype), number(0.0, dtype))
    bits = normal.bitcast(SIGNED[dtype])
    half_root = (bias << mantissa) - (1 << mantissa) + math.isqrt(1 << (2 * mantissa + 1)) - (1 << mantissa)
    above = bits - half_root                                                # its exponent field is e
    power = (above >> mantissa).cast(dtype) + lift
    m = (bits - (above & (-1 << mantissa))).bitcast(dtype)
    f = m - 1.0                                                             # exact
    result = f.mulacc(horner(f, _LOG2[dtype]), power)
    finite = (x < math.inf).where(result, x)                                # for inf and nan, x itself
    zero = number(0.0, dtype)
    return (zero < x).where(finite, x.eq(zero).where(number(-math.inf, dtype), number(math.nan, dtype)))


# -- sine ----------------------------------------------------------------------------------------------------
# sin(x) = +-sin(r) with r = x - n*pi in [-pi/2, pi/2]. The work is to find r for large x. Up to a limit, n*pi is
# subtracted in three exact pieces. Beyond it, x/pi mod 2 is computed in integers, with the bits of 1/pi that the
# exponent of x selects, so that the result is right for every finite x. That is costly and rarely needed, so it is
# marked as a cold path, around which compiler/optimize/moves/loop_moves.py branches, and omitted where the source is
# seen to stay below the limit. cos(x) is written sin(pi/2 - x) or sin(x + pi/2): the quarter turn is recognized and
# added to n, where it is exact.

# (sin(r) - r) / r^3 in powers of r^2 for |r| <= pi/2: sin(r) to 6.2e-9 (float32, rounded) and 2.8e-19 (float64)
_SIN = {
    dtypes.float32: (-0.16666659712791443, 0.008333069272339344, -0.00019809778314083815, 2.6061029529955704e-06),
    dtypes.float64: (-0.16666666666666666, 0.008333333333333194, -0.00019841269841209172, 2.755731921112819e-06,
                     -2.505210687190576e-08, 1.6058939658005738e-10, -7.642990177508378e-13, 2.7211605260448263e-15),
}
_LIMIT = {dtypes.float32: 2.0 ** 7, dtypes.float64: 2.0 ** 20}     # up to here, three pieces of pi are enough
_WORDS = {dtypes.float32: 3, dtypes.float64: 5}                    # words of 32 bits of 1/pi that one x needs

_LOW = 0xffffffff
_BOUNDED = (o.MUL, o.ADD, o.SUB, o.NEG, o.ABS, o.CAST, o.WHERE)


def sine(source: UOp) -> UOp:
    """sin(source) for every finite value; nan for inf."""
    x, cosine = _quarter(source)
    size, dtype = x.abs(), x.dtype
    usual = _signed(x, cosine, *_short_reduction(size, cosine))
    if magnitude(x) <= _LIMIT[dtype]:
        return usual
    large = _signed(x, cosine, *_long_reduction(size, cosine))
    right = (size < math.inf).where(large, number(math.nan, dtype))
    # compared as integers: then inf and nan are large too, and the maximum over lanes is an ordinary one
    limit = (int(math.log2(_LIMIT[dtype])) + dtype.bias) << dtype.mantissa
    short = size.bitcast(SIGNED[dtype]) < limit
    return UOp(o.WHERE, dtype, (short, usual, right), COLD_PATH)


def _signed(x: UOp, cosine: bool, rest: UOp, odd: UOp) -> UOp:
    """The sine of the remainder of |x|: negated where n is odd, and where x is negative (sin is odd, cos is even)."""
    square, first = rest * rest, x.dtype.bits - 1
    value = (rest * square).mulacc(horner(square, _SIN[x.dtype]), rest)
    sign = odd << first
    if not cosine:                                                  # by bits: sin(-0.0) is -0.0
        sign = sign ^ (x.bitcast(carrier(x.dtype)) & (1 << first))
    return (value.bitcast(carrier(x.dtype)) ^ sign).bitcast(x.dtype)


def _quarter(source: UOp) -> tuple[UOp, bool]:
    """(x, True) for a source pi/2 - x or x + pi/2, whose sine is the cosine of x; otherwise (source, False)."""
    if source.op in (o.ADD, o.SUB):
        x, y = source.src
        if y.op is o.CONST and source.op is o.ADD:
            x, y = y, x
        if x.op is o.CONST and x.arg == round_float(math.pi / 2, x.dtype):
            return y, True
    return source, False


def _short_reduction(x: UOp, cosine: bool) -> tuple[UOp, UOp]:
    """x - n*pi (for a cosine x - (n - 1/2)*pi) for 0 <= x <= limit; and the bits of n, of which the lowest is used."""
    dtype = x.dtype
    magic = number(1.5 * 2.0 ** dtype.mantissa, dtype)  # its last place is 1, so adding it rounds to an integer
    inverse, half = number(1 / math.pi, dtype), number(0.5, dtype)
    turns = x.mulacc(inverse, half) + magic if cosine else x.mulacc(inverse, magic)
    minus_n = magic - turns + half if cosine else magic - turns
    bits = int(_LIMIT[dtype] / math.pi).bit_length() + 1
    rest = x
    for piece in pieces(_pi(), [dtype.mantissa + 1 - bits] * 2, dtype):
        rest = minus_n.mulacc(piece, rest)
    return rest, turns.bitcast(carrier(dtype))


def _long_reduction(x: UOp, cosine: bool) -> tuple[UOp, UOp]:
    """As `_short_reduction`, for any finite x >= limit: x/pi mod 2 by long multiplication in words of 32 bits.

    x is M * 2^e with an integer M. Bits of 1/pi worth 2^(1-e) or more give multiples of 2, so they are skipped; the
    words used begin right after them, and the top bit of the product is the lowest bit of n.
    """
    dtype, mantissa = x.dtype, x.dtype.mantissa
    bits = x.bitcast(carrier(dtype))
    whole = (bits & ((1 << mantissa) - 1)) | (1 << mantissa)
    smallest = int(math.log2(_LIMIT[dtype])) + dtype.bias  # the exponent field for which the table's start is used
    start = ((bits >> mantissa) - smallest).cast(dtypes.uint32)
    window = _window(start, _inverse_pi(dtype), _WORDS[dtype])
    limbs = [whole.cast(dtypes.uint64)] if mantissa < 32 else [whole & _LOW, whole >> 32]
    *lower, top = [word.cast(dtypes.uint32) for word in _multiply(limbs, window, keep=len(limbs) + 1)]
    if cosine:
        top = top + 0x40000000
    odd = (top + 0x40000000) >> 31                                   # a fraction of 1/2 or more rounds up to the next n
    fraction = top << 1                                              # as a signed number, from -1/2 to 1/2
    if mantissa < 32:                                                # 24 bits convert exactly, then the next 31 bits
        fraction, parts = fraction & 0xffffff00, [(((top & 0x7f) << 24) | (lower[-1] >> 8), 2.0 ** -55)]
    else:
        parts = [(word, 2.0 ** (-63 - 32 * k)) for k, word in enumerate(reversed(lower))]
    whole_part = fraction.bitcast(dtypes.int32).cast(dtype)
    high_pi, low_pi = pieces(_pi() / 2 ** 32, [mantissa + 1], dtype)
    rest = whole_part * low_pi
    for word, worth in reversed(parts):
        value = (word.bitcast(dtypes.int32) if mantissa < 32 else word).cast(dtype)
        rest = value.mulacc(number(math.pi * worth, dtype), rest)
    return whole_part.mulacc(high_pi, rest), odd.cast(carrier(dtype))


def _window(start: UOp, table: Sequence[int], words: int) -> list[UOp]:
    """`words` words of the table from bit `start` on, highest first. Lanes have different starts: each bit of the start
    selects between the words and those further on."""
    steps = [1 << k for k in range(len(table)) if 1 << k < len(table) - words]
    chosen = [const(word, dtypes.uint32) for word in table]
    for step in reversed(steps):
        here = (start & (32 * step)).ne(0)
        needed = words + 1 + sum(s for s in steps if s < step)
        chosen = [here.where(chosen[i + step], chosen[i]) for i in range(needed)]
    shift = start & 31
    back = 31 - shift                                                # shifted once more by 1, so that no shift is by 32
    return [(a << shift) | ((b >> 1) >> back) for a, b in zip(chosen[:words], chosen[1:words + 1])]


def _multiply(limbs: Sequence[UOp], window: Sequence[UOp], keep: int) -> list[UOp]:
    """The product of two numbers in words of 32 bits; of a result as long as the window, the `keep` highest words."""
    factors = [word.cast(dtypes.uint64) for word in reversed(window)]
    total: list[UOp | None] = [None] * len(factors)
    for i, limb in enumerate(limbs):
        carry: UOp | None = None
        for k, factor in enumerate(factors[:len(factors) - i]):
            term = limb * factor                                     # with both additions still below 2^64
            for more in (total[i + k], carry):
                term = term if more is None else term + more
            total[i + k], carry = term & _LOW, term >> 32
    return [word for word in total[-keep:] if word is not None]


@lru_cache(maxsize=1)
def _pi() -> Fraction:
    """pi to 1500 bits, by Machin's formula 16 arctan(1/5) - 4 arctan(1/239)."""
    one = 1 << 1600

    def arctan_inverse(n: int) -> int:
        power, total, k = one // n, 0, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total
    return Fraction(16 * arctan_inverse(5) - 4 * arctan_inverse(239), one)


@lru_cache(maxsize=2)
def _inverse_pi(dtype: DType) -> tuple[int, ...]:
    """The words of 1/pi that any x at or above the limit needs; the first bit is worth 2^(mantissa - log2(limit))."""
    limit = int(math.log2(_LIMIT[dtype]))
    count = (dtype.bias - limit) // 32 + _WORDS[dtype] + 1
    first = dtype.mantissa - limit
    number = int(Fraction(2) ** (32 * count - 1 - first) / _pi())
    return tuple((number >> (32 * (count - 1 - i))) & _LOW for i in range(count))


def magnitude(node: UOp, depth: int = 8) -> float:
    """A bound on |node| that a few levels of its expression show; inf if they show none (NaN is not considered).

    >>> magnitude(const(200, dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.float32) * 0.25)
    32.0
    """
    op, src, kind = node.op, node.src, node.dtype.kind
    if op is o.CONST:
        return abs(float(node.arg))
    if depth == 0:
        return math.inf
    inner: list[float] = [magnitude(s, depth - 1) for s in src] if op in _BOUNDED else []
    if op is o.SIN:
        return 1.0
    if kind == "f" and inner:
        if op is o.MUL:
            return inner[0] * inner[1] if 0.0 not in inner else math.inf      # 0 * inf is nan
        return sum(inner) if op in (o.ADD, o.SUB) else max(inner[-2:])
    if kind == "u" and op is o.SHR and src[1].op is o.CONST:
        return magnitude(src[0], depth - 1) / float(1 << src[1].arg)
    return math.inf if kind == "f" else float(max(abs(b) for b in bounds(node)))


POLYNOMIALS: dict[o.Op, Callable[..., UOp]] = {o.EXP2: _exp2, o.LOG2: _log2, o.SIN: sine}    # all `approximate` ops
