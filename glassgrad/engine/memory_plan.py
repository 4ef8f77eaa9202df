"""Where intermediate values lie. In: how long each lives and its size. Out: offsets in one arena.

Values whose lives do not overlap share memory. Placing the largest first, each at the lowest offset that is free for
all of its life, comes close to the least possible in practice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 64


class Life(NamedTuple):
    """A value of `nbytes` from the kernel that writes it (`first`) to the last that reads it (`last`)."""
    first: int
    last: int
    nbytes: int


def place(lives: Sequence[Life]) -> tuple[list[int], int]:
    """An offset for each value, and the arena's size.

    >>> place([Life(0, 1, 64), Life(1, 2, 64), Life(2, 3, 64)])
    ([0, 64, 0], 128)
    """
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, Life]] = []         # (offset, end, life), by offset
    total = 0
    for i in sorted(range(len(lives)), key=lambda i: (-lives[i].nbytes, lives[i].first)):
        life = lives[i]
        size = -(-life.nbytes // ALIGNMENT) * ALIGNMENT
        at = 0
        for start, end, other in placed:
            if other.last < life.first or life.last < other.first:
                continue
            if at + size <= start:
                break
            at = max(at, end)
        offsets[i] = at
        total = max(total, at + size)
        placed.append((at, at + size, life))
        placed.sort(key=lambda row: row[0])
    return offsets, total
