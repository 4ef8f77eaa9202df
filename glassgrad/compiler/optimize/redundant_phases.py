"""Remove redundant phases. In: the phases of a kernel. Out: those that change memory.

A phase may prepare a factor for a product; several products of a kernel may need the same prepared factor.
"""

from __future__ import annotations

from collections.abc import Iterable

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.lower.loops import Assign, For, Phase, Statement, Store, expressions, walk


def without_redundant_fills(phases: list[Phase]) -> list[Phase]:
    """phases a: m = S, b, c: m = S  ->  a, b      (memory is not filled again with the contents that it has)"""
    stored = frozenset[UOp]().union(*[_stored(phase) for phase in phases])
    kept: list[Phase] = []
    holds: dict[UOp, object] = {}                # memory -> what filled it last
    for phase in phases:
        contents = _contents(phase.body) if _copies(phase) and stored.isdisjoint(_read(phase)) else phase
        if any(holds.get(memory) != contents for memory in _stored(phase)):
            kept.append(phase)
        holds.update(dict.fromkeys(_stored(phase), contents))
    return kept


def _copies(phase: Phase) -> bool:
    return all(isinstance(s, (For, Assign, Store)) for s in walk(phase.body))


def _stored(phase: Phase) -> set[UOp]:
    return _seen(s.memory for s in walk(phase.body) if isinstance(s, Store))


def _read(phase: Phase) -> set[UOp]:
    return _seen(toposort([e for s in walk(phase.body) for e in expressions(s)]))


def _seen(memories: Iterable[UOp]) -> set[UOp]:
    """Those memories that other tasks can see."""
    return {m for m in memories if m.op is o.PARAM or m.op is o.LOCAL and m.arg.scope == "shared"}


def _contents(body: list[Statement]) -> tuple[object, ...]:
    """Convert statements to tuples, which can be compared."""
    return tuple([(type(s), *[_contents(v) if isinstance(v, list) else v for v in vars(s).values()]) for s in body])
