"""Find where the threads of a group must wait for each other. In: a phase without TILEs. Out: statements to wait
before.

The lanes of a vector run in lockstep, so the next statement can read what a lane has stored. The threads of a group do
not: between a store and another thread's access to the same memory, all of them must arrive at a barrier. All threads
of a group take the same loops and branches, so a barrier may come before any statement.

A loop counts as one access to everything that it touches inside: a value that does not change in the loop may be loaded
before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import linear
from glassgrad.compiler.lower.loops import LANE, UNIT, For, If, Statement, Store, expressions, loads_in, walk

Memories = frozenset[UOp]
NONE: Memories = frozenset()


def fences(body: list[Statement]) -> set[int]:
    """The ids of the statements before which all threads wait."""
    found: set[int] = set()
    shared = {s.memory for s in walk(body) if isinstance(s, Store)}
    _Fences(shared - unshared_memories(body), found).straight(body, _Touched())
    return found


def unshared_memories(body: list[Statement]) -> set[UOp]:
    """Memories of which no element is accessed by two threads: y[row * 768 + thread] += .., for any row. This is known
    if the memory is never loaded, and each index modulo one divisor is the thread plus a constant."""
    read = {n.src[0] for n in loads_in(body)}
    stores: dict[UOp, list[tuple[int, int, int] | None]] = {}
    for lane, s in _stores(body):
        stores.setdefault(s.memory, []).append(None if lane is None else _remainder(s.index, lane))
    return {memory for memory, found in stores.items()
            if memory.op is o.PARAM and memory not in read and _apart([f for f in found if f], len(found))}


def _stores(body: list[Statement], lane: UOp | None = None) -> Iterator[tuple[UOp | None, Store]]:
    """Yield all stores, each with the counter of the threads that execute it."""
    for s in body:
        if isinstance(s, Store):
            yield lane, s
        elif isinstance(s, (For, If)):
            yield from _stores(s.body, s.range if isinstance(s, For) and s.kind == LANE else lane)


def _remainder(at: UOp, lane: UOp) -> tuple[int, int, int] | None:
    """(d, r, n) if an index modulo d is r + lane, for n lanes; None otherwise."""
    constant, terms = linear(at)
    divisor = math.gcd(*[k for atom, k in terms.items() if atom is not lane])
    if terms.get(lane) != 1 or divisor < lane.arg.size:
        return None
    return divisor, constant % divisor, int(lane.arg.size)


def _apart(found: list[tuple[int, int, int]], stores: int) -> bool:
    """Whether the remainder ranges of all stores are equal or disjoint, so that each element belongs to one thread."""
    if len(found) != stores or len({d for d, _, _ in found}) != 1:
        return False
    return all(r == q or r + n <= q or q + m <= r for _, r, n in found for _, q, m in found) and \
        all(r + n <= d for d, r, n in found)


class _Touched(NamedTuple):
    """The memories read and written since the threads last waited. `scattered` are those written at a loaded index,
    where two threads may use the same element; in other stores of one phase, each element belongs to one thread."""
    read: Memories = NONE
    written: Memories = NONE
    scattered: Memories = NONE

    def conflicts(self, later: _Touched) -> bool:
        return bool(self.written & later.read or self.read & later.written
                    or self.scattered & later.written or self.written & later.scattered)

    def and_then(self, later: _Touched) -> _Touched:
        return _Touched(self.read | later.read, self.written | later.written, self.scattered | later.scattered)


class _Fences:
    def __init__(self, shared: set[UOp], found: set[int]):
        self.shared, self.found = shared, found         # memories that one thread stores to and another may access
        self.known: dict[int, _Touched] = {}            # statement -> its accesses: loops are traversed twice

    def reads(self, s: Statement) -> Memories:
        """The memories that a statement reads itself, without the statements inside it."""
        return frozenset(n.src[0] for n in toposort(expressions(s)) if n.op is o.LOAD and n.src[0] in self.shared)

    def touches(self, s: Statement) -> _Touched:
        """The memories that a statement and all statements inside it read and write."""
        if id(s) not in self.known:
            read = self.reads(s)
            touched = _Touched(read)
            if isinstance(s, Store) and s.memory in self.shared:
                mine, scattered = frozenset((s.memory,)), any(n.op is o.LOAD for n in toposort([s.index]))
                touched = _Touched(read | mine if s.combine is not None else read, mine, mine if scattered else NONE)
            for inner in s.body if isinstance(s, (For, If)) else ():
                touched = touched.and_then(self.touches(inner))
            self.known[id(s)] = touched
        return self.known[id(s)]

    def straight(self, body: list[Statement], before: _Touched) -> _Touched:
        """Find the waits in a list of statements; takes and returns what was touched since the last wait."""
        for s in body:
            if isinstance(s, For) and s.kind in (LANE, UNIT):          # the same statements in all threads
                before = self.straight(s.body, before)
                continue
            mine = self.touches(s)
            if id(s) in self.found or before.conflicts(mine):
                self.found.add(id(s))
                before = _Touched()
            if isinstance(s, If):
                self.straight(s.body, before.and_then(_Touched(self.reads(s))))       # its condition
            elif isinstance(s, For):
                # an iteration also comes after the accesses of the previous one since its last wait
                self.straight(s.body, before.and_then(self.straight(s.body, before)))
            before = before.and_then(mine)
        return before
