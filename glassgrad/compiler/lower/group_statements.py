"""Statements for groups of GPU threads. In: nothing. Out: the types, which are part of the loop tree (loops.py).

Asynchronous copies and matrix-unit steps overlap with the statements after them. Waits are explicit statements, so that
the interpreter detects a missing one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.compiler.graph import UOp


class Axis(NamedTuple):
    """An axis of a matrix in memory: its length and its stride, in elements."""
    size: int
    stride: int
    stop: UOp | None = None   # the length where a run-time value makes it shorter


class Box(NamedTuple):
    """A part of a matrix in memory, loaded by one copy: `counts[i]` elements along `axes[i]` from position `first[i]`
    on; elements outside the matrix are zeros. Axes are listed innermost first; the innermost has stride 1."""
    source: UOp
    offset: int               # of the matrix in its memory, in elements
    axes: tuple[Axis, ...]
    counts: tuple[int, ...]
    first: tuple[UOp, ...]
    to: UOp                   # destination of its first element; the others follow, innermost axis first


@dataclass(eq=False)
class CopyBoxes:
    """Start asynchronous copies of boxes into group-shared memory, as one round; AwaitCopies(round) waits for them."""
    memory: UOp
    round: UOp
    boxes: tuple[Box, ...]
    by_last: bool = False     # starts when the last thread of the group arrives here; no thread waits
    cluster: UOp | None = None      # a TASK loop whose groups run at once: boxes that do not depend on it are loaded
                                                                        # once for all these groups, a part by each,
                                                                        # when all have arrived here


@dataclass(eq=False)
class AwaitCopies:
    """Every thread waits until the copies of a round are complete."""
    memory: UOp
    round: UOp
    stages: int               # how many rounds may be in flight


@dataclass(eq=False)
class AwaitSteps:
    """Every thread waits until at most `pending` of the matrix-unit steps that it started are unfinished."""
    pending: int
    ready: tuple[UOp, ...] = ()     # sums that are read only after the wait; () with 0 pending: all sums
    made: tuple[UOp, ...] = ()      # registers computed before the wait, while steps run, and read after it


@dataclass(eq=False)
class Barrier:
    """Every thread of a group waits for all the others."""
    copies: bool = False      # also order later copies after memory accesses before it


@dataclass(eq=False)
class Turn:
    """Threads that start matrix-unit steps together wait for their turn on the unit, in a ring, or (`ends`) pass it on.
    It changes no value: while some use the unit, others compute."""
    ends: bool = False
