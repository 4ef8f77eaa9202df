"""What pays on a GPU: the shape of a group's tile, limits, and how long tiles take. In: counts. Out: rounds of groups.

A group of threads shares a tile of each factor. Does not know loops, nor a GPU's make.
"""

from __future__ import annotations

from glassgrad.compiler.optimize.targets.limits import Limits

LIMITS = Limits(least_k=8)
SIDE = 16                # threads of a group along M, and along N
PIECE = 4                # neighbouring positions of a thread: one access of 16 bytes
PAD = 4                  # positions between rows of a tile: what is copied along k falls into different banks
LEAST_SIDE = 16          # positions of M and of N below which a tile would be mostly edge
STEP = 16                # of K that are copied at once
PART = 512               # of K that are worth a part of their own
EFFICIENCY = {64: 1.0, 32: 0.8, 16: 0.6, 8: 0.4, 4: 0.25}     # of a thread's tile: products for each value read


def tile_time(m: int, n: int, around: int, tile: tuple[int, int], at_once: int) -> float:
    """How long tiles of a size take: rounds of groups that run at once, each with its work and its efficiency."""
    rows, columns = tile
    blocks = around * -(-m // (SIDE * rows)) * -(-n // (SIDE * columns))
    return -(-blocks // at_once) * rows * columns / EFFICIENCY[rows * columns]
