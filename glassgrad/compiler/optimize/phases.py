"""Phases that need no launch of their own. In: the phases of a kernel. Out: fewer, which do the same.

What prepares factors of products is stored by a phase before them. Several products of one kernel may want the same,
and two phases that do not read what the other one stores can run at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, index, less
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import (LANE, TASK, Assign, CopyBoxes, For, If, Phase, Statement, Store, counter,
                                            expressions, task_loops, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.recognize import FlatAxis


def filled_once(phases: list[Phase]) -> list[Phase]:
    """phases a: m = S, b, c: m = S  ->  a, b      (memory that has its contents already is not filled again)"""
    stored = frozenset[UOp]().union(*[_stored(phase) for phase in phases])
    kept: list[Phase] = []
    holds: dict[UOp, object] = {}                # memory, and what filled it last
    for phase in phases:
        contents = _contents(phase.body) if _copies(phase) and stored.isdisjoint(_read(phase)) else phase
        if any(holds.get(memory) != contents for memory in _stored(phase)):
            kept.append(phase)
        holds.update(dict.fromkeys(_stored(phase), contents))
    return kept


def in_one_launch(phases: list[Phase]) -> list[Phase]:
    """phases TASK a in m: S, c, TASK b in n: T  ->  TASK t in m + n: if t < m: S[a = t]; if t >= m: T[b = t - m], c
    refuses: all but stores to memory of the kernel, by groups of as many threads; what depends on phases between"""
    out: list[Phase] = []
    for phase in phases:
        at = len(out) - 1
        while at >= 0 and _threads(phase) and _independent(out[at], phase) and _threads(out[at]) != _threads(phase):
            at -= 1
        if at < 0 or not _threads(phase) or not _independent(out[at], phase):
            out.append(phase)
            continue
        (loops, first), (more, second) = task_loops(out[at].body), task_loops(phase.body)
        own, other = FlatAxis.of([f.range for f in loops]), FlatAxis.of([f.range for f in more])
        task = counter("t", own.size + other.size)
        out[at] = Phase([For(task, TASK, [
            If(less(task, index(own.size)), moves.rebuild(first, own.apart(task))),
            If(less(index(own.size - 1), task), moves.rebuild(second, other.apart(add(task, index(-own.size)))))])])
    return out


def _independent(first: Phase, second: Phase) -> bool:
    """Whether two phases can run in any order."""
    return _stored(first).isdisjoint({*_read(second), *_stored(second)}) and _stored(second).isdisjoint(_read(first))


def _threads(phase: Phase) -> int:
    """The threads of each group of a phase that fills memory of the kernel, and does nothing else; 0: it is no such."""
    loops = task_loops(phase.body)[0]
    lanes = {s.range.arg.size for s in walk(phase.body) if isinstance(s, For) and s.kind == LANE}
    fills = _copies(phase) and all(m.op is o.LOCAL for m in _stored(phase)) and loops
    return lanes.pop() if fills and len(lanes) == 1 and all(f.stop is None for f in loops) else 0


def _copies(phase: Phase) -> bool:
    return all(isinstance(s, (For, If, Assign, Store)) for s in walk(phase.body))


def _stored(phase: Phase) -> set[UOp]:
    return _seen(s.memory for s in walk(phase.body) if isinstance(s, Store))


def _read(phase: Phase) -> set[UOp]:
    every = [*walk(phase.body)]
    boxes = [box.source for s in every if isinstance(s, CopyBoxes) for box in s.boxes]
    return _seen([*boxes, *toposort([e for s in every for e in expressions(s)])])


def _seen(memories: Iterable[UOp]) -> set[UOp]:
    """Those that other tasks see."""
    return {m for m in memories if m.op is o.PARAM or m.op is o.LOCAL and m.arg.scope == "shared"}


def _contents(body: list[Statement]) -> tuple[object, ...]:
    """Statements as what can be compared."""
    return tuple([(type(s), *[_contents(v) if isinstance(v, list) else v for v in vars(s).values()]) for s in body])
