"""Statements of groups of GPU threads. In: nothing. Out: the types, which are part of the loop tree (loops.py).

Asynchronous copies and matrix-unit steps overlap with the statements after them. A wait is written where it is needed,
so the interpreter finds one that is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.compiler.graph import UOp


class Axis(NamedTuple):
    """An axis of a matrix in memory: its length and stride, in elements."""
    size: int
    stride: int
    stop: UOp | None = None   # its length, where a run-time value makes it shorter


class Box(NamedTuple):
    """A part of a matrix in memory, loaded by one copy: `counts[i]` elements along `axes[i]` from position `first[i]`
    on; elements outside the matrix are zeros. Axes are listed innermost first; the innermost has stride 1."""
    source: UOp
    offset: int               # of the matrix in its memory, in elements
    axes: tuple[Axis, ...]
    counts: tuple[int, ...]
    first: tuple[UOp, ...]
    to: UOp                   # where its first element goes; the others follow, innermost axis first


@dataclass(eq=False)
class CopyBoxes:
    """Starts asynchronous copies of boxes into group-shared memory, as one round; AwaitCopies(round) waits for them."""
    memory: UOp
    round: UOp
    boxes: tuple[Box, ...]
    by_last: bool = False     # starts when the last thread arrives here; no thread waits for that
    cluster: UOp | None = None      # a TASK loop whose groups run at once: boxes that do not depend on it are loaded
                                    # once for all of them, a part by each, when all have arrived here


@dataclass(eq=False)
class AwaitCopies:
    """Every thread waits until the copies of a round are complete."""
    memory: UOp
    round: UOp
    stages: int               # rounds that may be in flight at once


@dataclass(eq=False)
class AwaitSteps:
    """Every thread waits until at most `pending` of the matrix-unit steps that it started are unfinished."""
    pending: int
    ready: tuple[UOp, ...] = ()     # sums that are used only after it; none, at 0: all of them
    made: tuple[UOp, ...] = ()      # registers that are computed before it, while steps run, and used after it


@dataclass(eq=False)
class Barrier:
    """Every thread of a group waits for all the others."""
    copies: bool = False      # and copies started after it are ordered after memory accesses of threads before it


@dataclass(eq=False)
class Turn:
    """Threads that start matrix-unit steps together wait for their turn on the unit, in a ring, or (`ends`) pass it on.
    It changes no value: while some have the unit, others compute."""
    ends: bool = False
