"""Where the threads of a group wait for each other. In: a phase without TILE loops. Out: statements to wait before.

A vector's lanes run in step, so what one lane stored the next statement can read. The threads of a group do not, so
between a store and another thread's access to the same memory all of them must arrive at one point. Every loop and
branch runs alike for all threads of a group, so any statement is such a point.

A loop counts as one access to everything that it touches inside: a value that does not change in the loop may be read
before it.
"""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LANE, UNIT, For, If, Statement, Store, expressions, walk

__all__ = ["fences"]

Memories = frozenset[UOp]
NONE: Memories = frozenset()


def fences(body: list[Statement]) -> set[int]:
    """The identities of the statements that all threads wait before."""
    found: set[int] = set()
    shared = {s.memory for s in walk(body) if isinstance(s, Store)}
    _Fences(shared, found).straight(body, _Touched())
    return found


class _Touched:
    """The memories read and written since the threads last waited; `placed` are those written where a loaded number
    says, where two threads may use one place. Other stores of one phase never do: each place has one thread."""
    __slots__ = ("placed", "read", "written")

    def __init__(self, read: Memories = NONE, written: Memories = NONE, placed: Memories = NONE):
        self.read, self.written, self.placed = read, written, placed

    def conflicts(self, later: _Touched) -> bool:
        return bool(self.written & later.read or self.read & later.written
                    or self.placed & later.written or self.written & later.placed)

    def and_then(self, later: _Touched) -> _Touched:
        return _Touched(self.read | later.read, self.written | later.written, self.placed | later.placed)


class _Fences:
    def __init__(self, shared: set[UOp], found: set[int]):
        self.shared, self.found = shared, found         # memories that are stored to: only they can change

    def touches(self, statement: Statement) -> _Touched:
        """What a statement and all inside it read and write."""
        read: set[UOp] = set()
        written: set[UOp] = set()
        placed: set[UOp] = set()
        for s in walk([statement]):
            read |= {n.src[0] for n in toposort(expressions(s)) if n.op is o.LOAD and n.src[0] in self.shared}
            if isinstance(s, Store):
                written.add(s.memory)
                read |= {s.memory} if s.combine is not None else set()
                placed |= {s.memory} if any(n.op is o.LOAD for n in toposort([s.index])) else set()
        return _Touched(frozenset(read), frozenset(written), frozenset(placed))

    def straight(self, body: list[Statement], before: _Touched) -> _Touched:
        """Statements one after another; `before` is what was touched since the last wait, and so is the result."""
        for s in body:
            if isinstance(s, For) and s.kind in (LANE, UNIT):          # the same statements, in all threads
                before = self.straight(s.body, before)
                continue
            mine = self.touches(s)
            if id(s) in self.found or before.conflicts(mine):
                self.found.add(id(s))
                before = _Touched()
            if isinstance(s, If):
                self.straight(s.body, before)
            elif isinstance(s, For):
                # what the last round touched since its last wait comes before what this one does
                self.straight(s.body, before.and_then(self.straight(s.body, before)))
            before = before.and_then(mine)
        return before
