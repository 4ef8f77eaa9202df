"""Generate random numbers on nodes. In: shapes. Out: UOps whose numbers are fixed now, although they are computed
later.

The generator is counter-based: element i of the n-th random node is a function of (seed, n, i). So the order in which
results are read has no effect, and every device gives the same numbers. Seed and n are scalars that kernels are passed
when they run, so each call runs the same compiled code. Does not know tensors.
"""

from __future__ import annotations

import math
import os

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import Cell, DType, RandomBits, UOp, dtypes, ops as o, upper_bound
from glassgrad.tensor.formulas import (along, elementary, in_accumulator, largest, minimum, part, running, topk, total,
                                       unsqueeze)


class RandomStreams:
    """The seed, and the number of random tensors drawn from it so far."""

    def __init__(self) -> None:
        self.seed: UOp | None = None
        self.count = 0

    def start(self, seed: int) -> None:
        self.seed, self.count = _scalar(seed & 0xFFFFFFFF), 0

    def _begun(self) -> UOp:
        if self.seed is None:
            chosen = settings.SEED
            self.start(chosen if chosen >= 0 else int.from_bytes(os.urandom(4), "little"))
        assert self.seed is not None
        return self.seed

    def state(self) -> tuple[int, int]:
        """Return everything that determines the numbers to come: the seed, which is chosen now if nothing was drawn
        yet, and the count."""
        return int(self._begun().arg.value), self.count

    def restore(self, seed: int, count: int) -> None:
        """Continue from a `state`."""
        self.start(seed)
        self.count = count

    def bits(self, shape: tuple[int, ...]) -> UOp:
        seed = self._begun()
        self.count += 1
        bits = RandomBits(tuple(map(upper_bound, shape)))       # an element's bits do not depend on a variable's value
        return UOp(o.RANDOM, dtypes.uint64, (seed, _scalar(self.count & 0xFFFFFFFF)), bits).shrink(
            [(0, n) for n in shape])


def _scalar(value: int) -> UOp:
    return UOp(o.SCALAR, dtypes.uint32, (), Cell(value))


streams = RandomStreams()


def _fraction(word: UOp, dtype: DType) -> UOp:
    """Return a 32-bit word as a number in [0, 1), from as many of its upper bits as the type holds exactly."""
    keep = dtype.mantissa + 1
    return (word >> (32 - keep)).cast(dtypes.int32).cast(dtype) * 2.0 ** -keep


def uniform(shape: tuple[int, ...], dtype: DType) -> UOp:
    """Numbers in [0, 1)."""
    bits = streams.bits(shape)
    if dtype is dtypes.float64:
        return (bits >> 11).cast(dtype) * 2.0 ** -53
    return _fraction(bits.cast(dtypes.uint32), dtype)


def standard_normal(shape: tuple[int, ...], dtype: DType) -> UOp:
    """Numbers of mean 0 and deviation 1, by Box and Muller: a length and an angle from the two words."""
    bits = streams.bits(shape)
    wide = dtype.accumulator
    u, v = bits.cast(dtypes.uint32), (bits >> 32).cast(dtypes.uint32)
    if wide is dtypes.float64:
        length, turn = (u.cast(wide) + 0.5) * 2.0 ** -32, v.cast(wide) * 2.0 ** -32
    else:
        length, turn = 1.0 - _fraction(u, wide), _fraction(v, wide)
    return ((elementary.log(length) * -2.0).sqrt() * ((0.25 - turn) * (2 * math.pi)).sin()).cast(dtype)


def waiting_times(shape: tuple[int, ...], dtype: DType) -> UOp:
    """Numbers of the exponential distribution with rate 1."""
    return -in_accumulator(elementary.log, 1 - uniform(shape, dtype))


def integers(shape: tuple[int, ...], low: int, high: int) -> UOp:
    """Integers from low up to, not including, high, as int64."""
    bits, span = streams.bits(shape), high - low
    if span <= 1 << 32:      # the upper half of word * span: even to one part in 2^32 / span
        chosen = ((bits & 0xFFFFFFFF) * span) >> 32
    else:
        chosen = bits % span
    return chosen.cast(dtypes.int64) + low


def weighted_draws(weights: UOp, count: int, replacement: bool) -> UOp:
    """Draw indices with the weights of each row (rows, n); without replacement, each index at most once."""
    weights = weights if weights.dtype is dtypes.float64 else weights.cast(dtypes.float32)
    rows, n = weights.shape
    if not replacement and count > 1:
        # the largest of ln(u) / w: the first of exponential clocks (Efraimidis and Spirakis, 2006)
        clocks = elementary.log(1 - uniform((rows, n), weights.dtype)) / weights
        return topk(weights.eq(0).where(-math.inf, clocks), count, 1, True)[1]
    heights = running(o.ADD, weights, 1)           # draw the index at which the running sum passes a random number
    drawn = uniform((rows, count), weights.dtype) * part(heights, 1, n - 1, n)
    passed = unsqueeze(heights, 1).le(unsqueeze(drawn, 2)).cast(dtypes.int32)
    last = largest((weights > 0).where(along(n, 1, weights.shape), 0), 1, keepdim=True)
    return minimum(total(passed, 2, dtype=dtypes.int32), last)       # limited to the last weight, despite rounding
