"""Non-temporal (streaming) stores of large results. In: the phases of a kernel. Out: the slots to store that way.

An ordinary store first fetches the cache line it writes to. A streaming store writes full lines straight to memory:
that saves a third of the traffic of `y = f(x)`, and the caches keep their contents. A result that fits a cache is
better left there. On a Xeon with 2 MB of second-level cache, y = 1.5 x and a sum of y, together: 8 MB 11% faster, 16 MB
16%, 64 MB 27%; 4 MB is 30% slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.symbolic import least
from glassgrad.compiler.lower.loops import Statement, Store, expressions, walk
from glassgrad.compiler.optimize.decisions import Choice, Decisions
from glassgrad.compiler.optimize.targets.target import Target

FAR = 8        # times the second-level cache: a result of that size is evicted before it is read


@dataclass(frozen=True)
class Past(Choice):
    """Large results are written by streaming stores, past the caches."""
    caches: bool


def streamed_slots(bodies: Sequence[list[Statement]], target: Target, decisions: Decisions) -> tuple[int, ...]:
    """The slots of large results that these statements write and never read."""
    statements = [s for body in bodies for s in walk(body)]
    stores = [s for s in statements if isinstance(s, Store) and s.memory.op is o.PARAM]
    large = {s.memory for s in stores if _bytes(s.memory) >= FAR * target.l2_bytes}
    if not large:
        return ()
    read = {n.src[0] for n in toposort(e for s in statements for e in expressions(s)) if n.op is o.LOAD}
    changed = {s.memory for s in stores if s.combine is not None}
    far = sorted(memory.arg.slot for memory in large - read - changed)
    return tuple(far) if far and decisions.ask(Past(True), lambda c: None).caches else ()


def _bytes(memory: UOp) -> int:
    """The least size of a result in bytes."""
    return math.prod(map(least, memory.shape)) * memory.dtype.itemsize
