"""Philox random bits by integer operations. In: a key and a counter. Out: 64 bits that depend on nothing else.

The generator has no state: element i of a random tensor is computed where it is used, in any order, on any device.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, const, dtypes

_MULTIPLIER, _WEYL, _ROUNDS = 0xD256D193, 0x9E3779B9, 10


def philox(seed: UOp, stream: UOp, element: UOp) -> UOp:
    """64 random bits: two 32-bit words, the first one lowest, for key `seed` and counter (element's low 32 bits,
    stream).

    Philox2x32 with ten rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011): a
    bijection of 64-bit counters under a 32-bit key, so that element i is drawn without drawing the others. A round is
    one 32x32 -> 64 bit product, written as a product of uint64s whose upper halves are zero, which vector units have,
    about 7 operations in all. With a constant or scalar seed, the ten keys are the same for all lanes.
    """
    low_half = const(0xFFFFFFFF, dtypes.uint64)
    first = element.cast(dtypes.uint64) & low_half
    second = stream.cast(dtypes.uint64) & low_half
    for i in range(_ROUNDS):
        key = (seed.cast(dtypes.uint32) + const(i * _WEYL, dtypes.uint32)).cast(dtypes.uint64)   # wraps, as it should
        product = first * const(_MULTIPLIER, dtypes.uint64)
        first, second = (product >> 32) ^ (key ^ second), product & low_half
    return first | (second << 32)
