"""Write SIN as a polynomial. In: a float32 or float64 source. Out: UOps. Does not know loops or devices.

sin(x) = +-sin(r) with r = x - n*pi in [-pi/2, pi/2]: the work is to find r for large x. Up to a limit, n*pi is taken
off in three exact pieces. Beyond it, x/pi is multiplied out in integers, mod 2, with the bits of 1/pi that the exponent
of x calls for, so that the result is right for every finite x. That costs much and is rarely needed: it is marked, for
compiler/optimize/moves/cold_path.py to branch around, and left out where the source is seen to stay below the limit.
cos(x) is written sin(pi/2 - x) or sin(x + pi/2): the quarter turn is recognized and added to n, where it is exact.
Errors: see transcendental.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from glassgrad.compiler.graph import UOp, const, ops as o
from glassgrad.compiler.graph.dtype import dtypes, round_float
from glassgrad.compiler.graph.index_algebra import bounds
from glassgrad.compiler.lower.polynomial_helpers import RARELY, Layout, horner, layout_of, pieces

# (sin(r) - r) / r^3 in powers of r^2 for |r| <= pi/2: sin(r) to 6.2e-9 (float32, rounded) and 2.8e-19 (float64)
_SIN = {
    dtypes.float32: (-0.16666659712791443, 0.008333069272339344, -0.00019809778314083815, 2.6061029529955704e-06),
    dtypes.float64: (-0.16666666666666666, 0.008333333333333194, -0.00019841269841209172, 2.755731921112819e-06,
                     -2.505210687190576e-08, 1.6058939658005738e-10, -7.642990177508378e-13, 2.7211605260448263e-15),
}
_LIMIT = {dtypes.float32: 2.0 ** 7, dtypes.float64: 2.0 ** 20}     # up to where three pieces of pi are enough
_WORDS = {dtypes.float32: 3, dtypes.float64: 5}                    # of 1/pi, 32 bits each, that one x needs

_LOW = 0xffffffff
_BOUNDED = (o.MUL, o.ADD, o.SUB, o.NEG, o.ABS, o.CAST, o.WHERE)


def sine(source: UOp) -> UOp:
    """sin(source) for every finite value; nan for inf."""
    layout = layout_of(source.dtype)
    x, cosine = _quarter(source)
    size = x.abs()
    usual = _signed(x, cosine, *_short_reduction(size, cosine, layout), layout)
    if magnitude(x) <= _LIMIT[x.dtype]:
        return usual
    large = _signed(x, cosine, *_long_reduction(size, cosine, layout), layout)
    right = (size < layout.number(math.inf)).where(large, layout.number(math.nan))
    # compared as integers, so that inf and nan are large too, and the maximum over lanes is a plain one
    limit = (int(math.log2(_LIMIT[x.dtype])) + layout.bias) << layout.mantissa
    short = size.bitcast(layout.signed) < const(limit, layout.signed)
    return UOp(o.WHERE, x.dtype, (short, usual, right), RARELY)


def _signed(x: UOp, cosine: bool, rest: UOp, odd: UOp, layout: Layout) -> UOp:
    """The sine of the rest of |x|, negative where n is odd, and where x is: sin is odd, cos is even."""
    square = rest * rest
    value = (rest * square).mulacc(horner(square, _SIN[x.dtype], layout), rest)
    sign = odd << layout.bits(layout.unsigned.bits - 1)
    if not cosine:                                                  # by bits: sin(-0.0) is -0.0
        sign = sign ^ (x.bitcast(layout.unsigned) & layout.bits(1 << (layout.unsigned.bits - 1)))
    return (value.bitcast(layout.unsigned) ^ sign).bitcast(x.dtype)


def _quarter(source: UOp) -> tuple[UOp, bool]:
    """x, True of pi/2 - x and x + pi/2, whose sine is the cosine of x; else the source, False."""
    if source.op in (o.ADD, o.SUB):
        x, y = source.src
        if y.op is o.CONST and source.op is o.ADD:
            x, y = y, x
        if x.op is o.CONST and x.arg == round_float(math.pi / 2, x.dtype):
            return y, True
    return source, False


def _short_reduction(x: UOp, cosine: bool, layout: Layout) -> tuple[UOp, UOp]:
    """x - n*pi (of a cosine: x - (n - 1/2)*pi) for 0 <= x <= limit, and n's bits (the last one counts)."""
    number, mantissa = layout.number, layout.mantissa
    magic = number(1.5 * 2.0 ** mantissa)                           # its last place is 1, so adding it rounds
    turns = x.mulacc(number(1 / math.pi), number(0.5)) + magic if cosine else x.mulacc(number(1 / math.pi), magic)
    minus_n = magic - turns
    if cosine:
        minus_n = minus_n + number(0.5)
    bits = int(_LIMIT[layout.dtype] / math.pi).bit_length() + 1
    rest = x
    for piece in pieces(_pi(), [mantissa + 1 - bits] * 2, layout):
        rest = minus_n.mulacc(piece, rest)
    return rest, turns.bitcast(layout.unsigned)


def _long_reduction(x: UOp, cosine: bool, layout: Layout) -> tuple[UOp, UOp]:
    """The same for any finite x >= limit: x/pi mod 2 by long multiplication in words of 32 bits.

    x is M * 2^e with an integer M. Bits of 1/pi worth 2^(1-e) or more make multiples of 2, so they are left out; the
    words taken begin right after them, and the product's top bit is n's last.
    """
    mantissa, words = layout.mantissa, _WORDS[layout.dtype]
    bits = x.bitcast(layout.unsigned)
    whole = (bits & layout.bits((1 << mantissa) - 1)) | layout.bits(1 << mantissa)
    smallest = int(math.log2(_LIMIT[layout.dtype])) + layout.bias    # the exponent field that takes the table's start
    start = ((bits >> layout.bits(mantissa)) - layout.bits(smallest)).cast(dtypes.uint32)
    window = _window(start, _inverse_pi(layout), words)
    if mantissa < 32:
        limbs = [whole.cast(dtypes.uint64)]
    else:
        limbs = [whole & layout.bits(_LOW), whole >> layout.bits(32)]
    *lower, top = [word.cast(dtypes.uint32) for word in _multiply(limbs, window, keep=len(limbs) + 1)]
    if cosine:
        top = top + 0x40000000
    odd = (top + 0x40000000) >> 31                                   # a fraction of 1/2 or more belongs to the next n
    fraction = top << 1                                              # as a signed number it runs from -1/2 to 1/2
    if mantissa < 32:                                                # 24 bits convert exactly, then the next 31
        fraction, parts = fraction & 0xffffff00, [(((top & 0x7f) << 24) | (lower[-1] >> 8), 2.0 ** -55)]
    else:
        parts = [(word, 2.0 ** (-63 - 32 * k)) for k, word in enumerate(reversed(lower))]
    whole_part = fraction.bitcast(dtypes.int32).cast(layout.dtype)
    high_pi, low_pi = pieces(_pi() / 2 ** 32, [mantissa + 1], layout)
    rest = whole_part * low_pi
    for word, worth in reversed(parts):
        value = word.bitcast(dtypes.int32).cast(layout.dtype) if mantissa < 32 else word.cast(layout.dtype)
        rest = value.mulacc(layout.number(math.pi * worth), rest)
    rest = whole_part.mulacc(high_pi, rest)
    return rest, odd.cast(layout.unsigned)


def _window(start: UOp, table: Sequence[int], words: int) -> list[UOp]:
    """`words` words of the table from bit `start` on, highest first. Lanes differ, so it is chosen by halves."""
    steps = [1 << k for k in range(len(table)) if 1 << k < len(table) - words]
    chosen = [const(word, dtypes.uint32) for word in table]
    for step in reversed(steps):
        here = (start & (32 * step)).ne(0)
        needed = words + 1 + sum(s for s in steps if s < step)
        chosen = [here.where(chosen[i + step], chosen[i]) for i in range(needed)]
    shift = start & 31
    back = 31 - shift                                                # and 1 more, so that no shift is by 32
    return [(a << shift) | ((b >> 1) >> back) for a, b in zip(chosen[:words], chosen[1:words + 1])]


def _multiply(limbs: Sequence[UOp], window: Sequence[UOp], keep: int) -> list[UOp]:
    """The product of two numbers in words of 32 bits, of which the `keep` highest words of the window's length."""
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
def _inverse_pi(layout: Layout) -> tuple[int, ...]:
    """The words of 1/pi that some x at or above the limit needs; the first bit is worth 2^(mantissa - log2(limit))."""
    first = layout.mantissa - int(math.log2(_LIMIT[layout.dtype]))
    exponents = layout.bias + 1 - int(math.log2(_LIMIT[layout.dtype]))
    count = (exponents - 1) // 32 + _WORDS[layout.dtype] + 1
    number = int(Fraction(2) ** (32 * count - 1 - first) / _pi())
    return tuple((number >> (32 * (count - 1 - i))) & _LOW for i in range(count))


def magnitude(node: UOp, depth: int = 8) -> float:
    """A bound on |node| that can be seen from a few levels of its expression; inf where none can (NaN aside).

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
