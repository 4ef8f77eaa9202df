"""What targets lack, as plain arithmetic. In: casts of floats, shifts, comparisons of booleans. Out: other UOps.

No target needs a library for them this way, and lanes stay lanes. The meaning is PyTorch's: every cast of a
reduced-precision float goes through float32 and rounds to nearest, ties to even; what is too large becomes infinity, or
in types without it what `DType.overflow` says. Of floats to integers, renderers have casts to int32 and int64, which
round towards zero and give the least integer for what does not fit; all others are made of these.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

from glassgrad.compiler.graph import DType, UOp, const, dtypes, ops as o

SMALL_FLOATS = frozenset((*dtypes.fp8s, dtypes.float16, dtypes.bfloat16))


def carrier(dtype: DType) -> DType:
    """The unsigned integer type that holds a float type's bits."""
    return {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[dtype.itemsize]


def held(dtype: DType) -> DType:
    """The type in which a renderer without small floats carries values of a type: small floats as their bits."""
    return carrier(dtype) if dtype in SMALL_FLOATS else dtype


def in_memory(dtype: DType) -> DType:
    """The type of an element in memory: a boolean is a byte."""
    return dtypes.uint8 if dtype is dtypes.bool else held(dtype)


class Instructions(NamedTuple):
    """What some targets have an instruction for, and others do not."""
    small_floats: frozenset[DType] = frozenset()       # that are converted to and from float32
    rounding: bool = False                             # of a float to an integer


def cast(x: UOp, dtype: DType, native: frozenset[DType] = frozenset()) -> UOp:
    """x in another type, where one of the two types is a reduced-precision float."""
    if x.dtype in SMALL_FLOATS:
        x = x.cast(dtypes.float32) if x.dtype in native else widen(x)
    if dtype not in SMALL_FLOATS:
        return to_integer(x, dtype) if dtype.kind in "iu" else x.cast(dtype)
    x = x.cast(dtypes.float32)
    return x.cast(dtype) if dtype in native else round_to(x, dtype)


def widen(x: UOp) -> UOp:
    """A small float as float32: its exponent and mantissa moved into place, then scaled by the difference in bias."""
    dtype = x.dtype
    bits = x.bitcast(carrier(dtype)).cast(dtypes.uint32)
    shift = 23 - dtype.mantissa
    if dtype is dtypes.bfloat16:
        return (bits << 16).bitcast(dtypes.float32)
    sign = (bits & (1 << (dtype.bits - 1))) << (32 - dtype.bits)
    size = (bits & ((1 << (dtype.bits - 1)) - 1)) << shift
    value = size.bitcast(dtypes.float32) * const(2.0 ** (127 - dtype.bias), dtypes.float32)
    if dtype.has_infinities:               # the largest exponent is kept for infinity and NaN
        special = const(dtype.overflow - 1 << shift, dtypes.uint32) < size
        value = special.where((size | 0x7F800000).bitcast(dtypes.float32), value)
    else:                                  # one code is NaN: with either sign, or where -0.0 would be
        special = size.eq(dtype.nan << shift) if dtype.has_negative_zero else bits.eq(dtype.nan)
        value = special.where(const(math.nan, dtypes.float32), value)
    return (value.bitcast(dtypes.uint32) | sign).bitcast(dtypes.float32)


def round_to(x: UOp, dtype: DType) -> UOp:
    """A float32 rounded to a reduced-precision float."""
    bits = x.bitcast(dtypes.uint32)
    if dtype is dtypes.bfloat16:           # the upper half of a float32, rounded: exponents need no care
        half = (bits + ((bits >> 16) & 1) + const(0x7FFF, dtypes.uint32)) >> 16
        return x.ne(x).where(const(dtype.nan, dtypes.uint32), half).cast(dtypes.uint16).bitcast(dtype)
    shift, bias = 23 - dtype.mantissa, dtype.bias
    size = bits & 0x7FFFFFFF
    sign = (bits >> (32 - dtype.bits)) & (1 << (dtype.bits - 1))
    # half of the last place that stays, less one, plus its lowest bit: rounds to nearest, ties to even
    rounding = ((size >> shift) & 1) + const((1 << (shift - 1)) - 1, dtypes.uint32)
    normal = (size + rounding - ((127 - bias) << 23)) >> shift
    result = normal.minimum(dtype.overflow)
    # adding a number whose last place is the smallest such float makes the adder round for us
    magic = (1 - bias - dtype.mantissa + 23 + 127) << 23
    adder = const(struct.unpack("<f", struct.pack("<I", magic))[0], dtypes.float32)
    tiny = (size.bitcast(dtypes.float32) + adder).bitcast(dtypes.uint32) - const(magic, dtypes.uint32)
    result = (size < ((128 - bias) << 23)).where(tiny, result)
    result = (const(0x7F800000, dtypes.uint32) < size).where(const(dtype.nan, dtypes.uint32), result)
    if not dtype.has_negative_zero:
        sign = result.eq(0).where(const(0, dtypes.uint32), sign)
    return (result | sign).cast(carrier(dtype)).bitcast(dtype)


def shift(node: UOp, has: Instructions) -> UOp:
    """A shift by any distance, from one that is in range, which is all that instructions define: 0 where the distance
    is negative or not below the number of bits."""
    x, y = node.src
    bits, none = x.dtype.bits, const(0, x.dtype)
    if y.op is o.CONST:
        return node if 0 <= y.arg < bits else none
    inside = y.bitcast(carrier(y.dtype)) < bits
    return inside.where(UOp(node.op, x.dtype, (x, y & (bits - 1))), none)


def to_integer(x: UOp, dtype: DType) -> UOp:
    """A float32 or float64 as an integer, by way of a signed one of 32 or 64 bits."""
    signed = dtypes.int64 if dtype.bits == 64 else dtypes.int32
    if dtype not in (dtypes.uint32, dtypes.uint64):
        return x.cast(signed).cast(dtype)
    half = 2.0 ** (dtype.bits - 1)
    below = half * (1 - 2.0 ** -(x.dtype.mantissa + 1))              # the next float
    large = const(below, x.dtype) < x                                # the upper half is converted less 2^(bits - 1)
    low = large.where(x - half, x).cast(signed)
    return large.where(low ^ const(signed.min, signed), low).bitcast(dtype)


def truncate(node: UOp, has: Instructions) -> UOp:
    """A float without its fraction, by way of integers: for processors that cannot round."""
    if has.rounding:
        return node
    x, dtype = node.src[0], node.dtype
    whole = const(2.0 ** dtype.mantissa, dtype)          # from here on floats have no fraction
    integer = dtypes.int32 if dtype is dtypes.float32 else dtypes.int64
    near = x.abs() < whole
    cut = near.where(x, const(0.0, dtype)).cast(integer).cast(dtype).bitcast(carrier(dtype))
    sign = x.bitcast(carrier(dtype)) & (1 << (dtype.bits - 1))
    return near.where((cut | sign).bitcast(dtype), x)


def round_even(node: UOp, has: Instructions) -> UOp:
    """A float rounded to the nearest integer, halves to the even one, by an addition: for processors that cannot."""
    if has.rounding:
        return node
    x, dtype = node.src[0], node.dtype
    whole = const(2.0 ** dtype.mantissa, dtype)          # between it and its double, floats are the integers
    nearest = (x.abs() + whole - whole).bitcast(carrier(dtype))
    sign = x.bitcast(carrier(dtype)) & (1 << (dtype.bits - 1))
    return (x.abs() < whole).where((nearest | sign).bitcast(dtype), x)


def _converted(node: UOp, has: Instructions) -> UOp:
    """A cast of a small float that the target does not convert, or of a float to an integer; others as they are."""
    x, dtype = node.src[0], node.dtype
    if dtype in SMALL_FLOATS or x.dtype in SMALL_FLOATS:
        return cast(x, dtype, has.small_floats)
    return to_integer(x, dtype) if x.dtype.kind == "f" and dtype.kind in "iu" else node


# By op and kind of the first source: what a target may lack, and how it is written instead.
LACKING: dict[tuple[o.Op, str], Callable[[UOp, Instructions], UOp]] = {
    (o.CMPLT, "b"): lambda node, has: ~node.src[0] & node.src[1],
    (o.CMPEQ, "b"): lambda node, has: ~(node.src[0] ^ node.src[1]),
    (o.TRUNC, "f"): truncate,
    (o.ROUND, "f"): round_even,
    **{(o.CAST, kind): _converted for kind in "biuf"},
    **{(op, kind): shift for op in (o.SHL, o.SHR) for kind in "iu"},
}
