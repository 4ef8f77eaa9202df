"""Express operations that a target lacks. In: casts of floats, shifts, comparisons of booleans. Out: other UOps.

So no target needs a library for them, and lanes stay lanes. The meaning is PyTorch's: every cast of a reduced-precision
float goes through float32 and rounds to nearest, ties to even; a value that is too large becomes infinity, or
`DType.overflow` in types without infinities. For floats to integers, renderers have casts to int32 and int64, which
round towards zero and give the least integer for values out of range; all others are built from these.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

from glassgrad.compiler.graph import DType, UOp, const, dtypes, ops as o

SMALL_FLOATS = frozenset((*dtypes.fp8s, dtypes.float16, dtypes.bfloat16))


def carrier(dtype: DType) -> DType:
    """The unsigned integer type with the bits of a float type."""
    return {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[dtype.itemsize]


def held(dtype: DType) -> DType:
    """The type in which a renderer without small floats holds values of a type: small floats as their bits."""
    return carrier(dtype) if dtype in SMALL_FLOATS else dtype


def in_memory(dtype: DType) -> DType:
    """The type of an element in memory: a bool is stored as a byte."""
    return dtypes.uint8 if dtype is dtypes.bool else held(dtype)


class Instructions(NamedTuple):
    """Instructions that some targets have and others do not."""
    small_floats: frozenset[DType] = frozenset()       # types that it converts to and from float32
    rounding: bool = False                             # of a float to an integer


def cast(x: UOp, dtype: DType, native: frozenset[DType] = frozenset()) -> UOp:
    """Cast x, where one of the two types is a reduced-precision float."""
    if x.dtype in SMALL_FLOATS:
        x = x.cast(dtypes.float32) if x.dtype in native else widen(x)
    if dtype not in SMALL_FLOATS:
        return to_integer(x, dtype) if dtype.kind in "iu" else x.cast(dtype)
    x = x.cast(dtypes.float32)
    return x.cast(dtype) if dtype in native else round_to(x, dtype)


def widen(x: UOp) -> UOp:
    """Convert a small float to float32: move exponent and mantissa into place, then scale for the other bias."""
    dtype = x.dtype
    bits = x.bitcast(carrier(dtype)).cast(dtypes.uint32)
    shift = 23 - dtype.mantissa
    if dtype is dtypes.bfloat16:
        return (bits << 16).bitcast(dtypes.float32)
    sign = (bits & (1 << (dtype.bits - 1))) << (32 - dtype.bits)
    size = (bits & ((1 << (dtype.bits - 1)) - 1)) << shift
    value = size.bitcast(dtypes.float32) * const(2.0 ** (127 - dtype.bias), dtypes.float32)
    if dtype.has_infinities:               # the largest exponent means infinity or NaN
        special = const(dtype.overflow - 1 << shift, dtypes.uint32) < size
        value = special.where((size | 0x7F800000).bitcast(dtypes.float32), value)
    else:                                  # one code is NaN: the largest with either sign, or that of -0.0
        special = size.eq(dtype.nan << shift) if dtype.has_negative_zero else bits.eq(dtype.nan)
        value = special.where(const(math.nan, dtypes.float32), value)
    return (value.bitcast(dtypes.uint32) | sign).bitcast(dtypes.float32)


def round_to(x: UOp, dtype: DType) -> UOp:
    """Round a float32 to a reduced-precision float."""
    bits = x.bitcast(dtypes.uint32)
    if dtype is dtypes.bfloat16:           # the upper half of a float32, rounded
        half = (bits + ((bits >> 16) & 1) + const(0x7FFF, dtypes.uint32)) >> 16
        return x.ne(x).where(const(dtype.nan, dtypes.uint32), half).cast(dtypes.uint16).bitcast(dtype)
    shift, bias = 23 - dtype.mantissa, dtype.bias
    size = bits & 0x7FFFFFFF
    sign = (bits >> (32 - dtype.bits)) & (1 << (dtype.bits - 1))
    # add half of the last kept place, minus one, plus the lowest kept bit: rounds to nearest, ties to even
    rounding = ((size >> shift) & 1) + const((1 << (shift - 1)) - 1, dtypes.uint32)
    normal = (size + rounding - ((127 - bias) << 23)) >> shift
    result = normal.minimum(dtype.overflow)
    # adding a number whose last place is the smallest such float makes the adder round
    magic = (1 - bias - dtype.mantissa + 23 + 127) << 23
    adder = const(struct.unpack("<f", struct.pack("<I", magic))[0], dtypes.float32)
    tiny = (size.bitcast(dtypes.float32) + adder).bitcast(dtypes.uint32) - const(magic, dtypes.uint32)
    result = (size < ((128 - bias) << 23)).where(tiny, result)
    result = (const(0x7F800000, dtypes.uint32) < size).where(const(dtype.nan, dtypes.uint32), result)
    if not dtype.has_negative_zero:
        sign = result.eq(0).where(const(0, dtypes.uint32), sign)
    return (result | sign).cast(carrier(dtype)).bitcast(dtype)


def shift(node: UOp, has: Instructions) -> UOp:
    """A shift by any distance, built from shifts in range, which are all that instructions define: 0 where the distance
    is negative or not below the number of bits."""
    x, y = node.src
    bits, none = x.dtype.bits, const(0, x.dtype)
    if y.op is o.CONST:
        return node if 0 <= y.arg < bits else none
    inside = y.bitcast(carrier(y.dtype)) < bits
    return inside.where(UOp(node.op, x.dtype, (x, y & (bits - 1))), none)


def to_integer(x: UOp, dtype: DType) -> UOp:
    """Convert a float32 or float64 to an integer, via a signed one of 32 or 64 bits."""
    signed = dtypes.int64 if dtype.bits == 64 else dtypes.int32
    if dtype not in (dtypes.uint32, dtypes.uint64):
        return x.cast(signed).cast(dtype)
    half = 2.0 ** (dtype.bits - 1)
    below = half * (1 - 2.0 ** -(x.dtype.mantissa + 1))              # the largest float below it
    large = const(below, x.dtype) < x                                # convert the upper half minus 2^(bits - 1)
    low = large.where(x - half, x).cast(signed)
    return large.where(low ^ const(signed.min, signed), low).bitcast(dtype)


def truncate(node: UOp, has: Instructions) -> UOp:
    """Truncate a float to an integral value via integers: for processors without rounding instructions."""
    if has.rounding:
        return node
    x, dtype = node.src[0], node.dtype
    whole = const(2.0 ** dtype.mantissa, dtype)          # from here on, floats have no fraction
    integer = dtypes.int32 if dtype is dtypes.float32 else dtypes.int64
    near = x.abs() < whole
    cut = near.where(x, const(0.0, dtype)).cast(integer).cast(dtype).bitcast(carrier(dtype))
    sign = x.bitcast(carrier(dtype)) & (1 << (dtype.bits - 1))
    return near.where((cut | sign).bitcast(dtype), x)


def round_even(node: UOp, has: Instructions) -> UOp:
    """Round a float to the nearest integer, ties to even, by an addition, if there is no instruction for it."""
    if has.rounding:
        return node
    x, dtype = node.src[0], node.dtype
    whole = const(2.0 ** dtype.mantissa, dtype)          # between this and twice this, floats are the integers
    nearest = (x.abs() + whole - whole).bitcast(carrier(dtype))
    sign = x.bitcast(carrier(dtype)) & (1 << (dtype.bits - 1))
    return (x.abs() < whole).where((nearest | sign).bitcast(dtype), x)


def _converted(node: UOp, has: Instructions) -> UOp:
    """Express a cast of a small float that the target lacks, or of a float to an integer; others are unchanged."""
    x, dtype = node.src[0], node.dtype
    if dtype in SMALL_FLOATS or x.dtype in SMALL_FLOATS:
        return cast(x, dtype, has.small_floats)
    return to_integer(x, dtype) if x.dtype.kind == "f" and dtype.kind in "iu" else node


# (op, kind of the first source's type) -> how to express an operation that a target may lack
LACKING: dict[tuple[o.Op, str], Callable[[UOp, Instructions], UOp]] = {
    (o.CMPLT, "b"): lambda node, has: ~node.src[0] & node.src[1],
    (o.CMPEQ, "b"): lambda node, has: ~(node.src[0] ^ node.src[1]),
    (o.TRUNC, "f"): truncate,
    (o.ROUND, "f"): round_even,
    **{(o.CAST, kind): _converted for kind in "biuf"},
    **{(op, kind): shift for op in (o.SHL, o.SHR) for kind in "iu"},
}
