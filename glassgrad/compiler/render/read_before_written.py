"""Find results of a kernel that may share memory with a source. In: jammed phases. Out: pairs of arguments.

An optimizer's kernel reads a moment m[i] for its new value and for the new weight. The two moments may share memory:
m[i] is read before the new moment is stored there, and stays in a register for the weight, since a scope computes each
value once (value_placement.py). A load in another scope, or of another element, would read the overwritten memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.lower.group_statements import CopyBoxes
from glassgrad.compiler.lower.loops import For, If, Statement, Store, expressions, walk
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.render.value_placement import IN_VALUES

Step = tuple[frozenset[UOp], Statement]      # the loads that a statement evaluates, and the statement


def pairs_read_first(phases: Iterable[Jammed]) -> tuple[tuple[int, int], ...]:
    """The (result, source) pairs of arguments such that the kernel reads each element of the source only in a scope
    that also stores the same element of the result, and not for the first time after that store."""
    bodies = [jammed.body for jammed in phases]
    statements = [s for body in bodies for s in walk(body)]
    results = {s.memory for s in statements if isinstance(s, Store) and s.memory.op is o.PARAM}
    scopes = [scope for body in bodies for scope in _scopes(body)]
    copied = {box.source for s in statements if isinstance(s, CopyBoxes) for box in s.boxes}
    sources = {load.src[0] for scope in scopes for loads, _ in scope for load in loads} - results - copied
    return tuple(sorted([(result.arg.slot, source.arg.slot) for result in results for source in sources
                         if source.op is o.PARAM and all(_reads_first(scope, result, source) for scope in scopes)]))


def _scopes(body: list[Statement]) -> Iterator[list[Step]]:
    """Yield the steps of each scope, in order: those of a body, without those inside its loops and branches."""
    steps: list[Step] = []

    def enter(inside: list[Statement]) -> Iterator[list[Step]]:
        for statement in inside:
            loads = [n for n in toposort(expressions(statement)) if n.op is o.LOAD]
            steps.append((frozenset(loads), statement))
            if isinstance(statement, For) and statement.kind in IN_VALUES:
                yield from enter(statement.body)
            elif isinstance(statement, (For, If)):
                yield from _scopes(statement.body)

    yield from enter(body)
    yield steps


def _reads_first(scope: list[Step], result: UOp, source: UOp) -> bool:
    """Whether a scope reads only elements of the source that it also stores in the result, and first reads each of them
    before that store."""
    read: set[UOp] = set()
    stored: set[UOp] = set()
    for loads, statement in scope:
        places = {load.src[1] for load in loads if load.src[0] is source}
        if not stored.isdisjoint(places - read):
            return False
        read |= places
        if isinstance(statement, Store) and statement.memory is result and statement.combine is None:
            stored.add(statement.index)
    return read <= stored
