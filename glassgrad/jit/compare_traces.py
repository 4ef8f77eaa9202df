"""Whether two calls of a function were the same work. In: traces. Out: `TraceWork`, and the difference in words.

A capture is made of two traces that agree: the same graphs and constants, buffers that come from the same tensors, and
the same outcomes. Does not know replays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from glassgrad.compiler.graph import Length, UOp
from glassgrad.compiler.graph.ops import Kind
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.jit.plain_values import PLAIN, mapped
from glassgrad.jit.trace import TracedCall, name_of
from glassgrad.tensor.tensor import Tensor


class TraceWork:
    """What a call did, to be compared with another: structure and numbers, without the memory it was done in."""

    def __init__(self, traced: TracedCall):
        records, form, names = traced.trace.records, partial(_form, traced.numbered), _names(traced)
        self.graphs = [record.normal.key for record in records]
        self.constants = [[c.arg for c in record.normal.constants] for record in records]
        self.sources = [tuple({row.path for row in rows} for rows in source) for source in traced.sources.values()]
        self.data = list(traced.data.values())
        self.out_of_sight = {row.path: weakref.ref(row.tensor) for row in traced.out_of_sight()}
        self.itself = {i: traced.path(t) for i, t in traced.itself.items()}
        self.changed = [traced.path(t) for t in (*traced.changed, *[t for t, _ in traced.grads])]
        self.arguments = {name_of(t) for t in traced.originals}        # arguments: they need not live on
        outcomes = [(out.kind, out.place if out.kind == "given" else traced.path(out.place),
                     _view(out.node, names, traced.numbered)) for out in traced.outcomes()]
        given = [None if given.itself is None else traced.path(given.itself) for given in traced.given]
        self.others = {            # what is compared as it is, by the words for a difference (then, now)
            "other tensors are used": [[names.get(node.base) for node in record.normal.buffers] for record in records],
            "other lengths are used": [traced.numbered(tuple(Length({(s,): 1}) for s in record.normal.symbols))
                                       for record in records],
            "it puts other things somewhere": {b.path: mapped(value, form, others=form) for b, value in traced.bound},
            "it raises numbers that it sees by {}, then by {}": {b.path: by for b, by in traced.raised},
            "the function returned {}, then {}": mapped(traced.form, form, others=form),
            "other tensors are changed": self.changed,
            "its values go elsewhere": [outcomes, given]}

    def gone(self) -> set[str]:
        """Tensors out of sight that are not alive any more: another may have their name."""
        return {path for path, reference in self.out_of_sight.items() if reference() is None}


def difference(traced: TracedCall, mine: TraceWork, theirs: TraceWork) -> str:
    """Why a trace, which is `mine`, is not the same work as an earlier one; empty when it is."""
    if len(mine.graphs) != len(theirs.graphs):
        return f"{len(theirs.graphs)} realizes in one call, {len(mine.graphs)} in the next"
    for number, ran in enumerate(traced.trace.records):
        if mine.graphs[number] != theirs.graphs[number]:
            rows = zip(ran.normal.order, ran.normal.key, theirs.graphs[number])
            where = [f", first at {node.line}" for node, now, then in rows if now != then]
            return "another graph is computed" + "".join(where[:1])
        for x, was in zip(ran.normal.constants, theirs.constants[number]):
            if scalar_bytes(x.arg, x.dtype) != scalar_bytes(was, x.dtype):
                user = next((n for n in ran.normal.order if x in n.src), x)
                return f"the number {was} became {x.arg}, written at {user.line or 'an unknown line'}"
    gone = theirs.gone()
    for (now, owners), (then, their_owners) in zip(mine.sources, theirs.sources):
        # at least one tensor holds it in both; the others may have held the value at the time (`w.detach()`)
        if now.isdisjoint(then - gone) and (now or then or owners != their_owners):
            return "other tensors are used"
    for made, was in zip(mine.data, theirs.data):
        if made != was:
            return f"a tensor made inside from plain data changed its values, made at {made[0]}"
    if not gone.isdisjoint(mine.changed):
        return "other tensors are changed"
    for words, now in mine.others.items():
        if now != theirs.others[words]:
            return words.format(theirs.others[words], now)
    return ""


def narrow(traced: TracedCall, theirs: TraceWork) -> None:
    """Of the tensors that held a buffer in a trace, rely on those that held it in an equal one too."""
    dropped = theirs.gone() | theirs.arguments
    for source, (earlier, _) in zip(traced.sources.values(), theirs.sources):
        source.holders[:] = [row for row in source.holders if row.path in earlier - dropped] or source.holders


def _names(traced: TracedCall) -> dict[UOp, tuple[str, int]]:
    """The buffers that a call was brought or computed, by what they are and a number."""
    made = [node for record in traced.trace.records for node in record.results]
    kinds: dict[str, Collection[UOp]] = {"a source": traced.sources, "data": traced.data, "a result": made}
    return {node: (kind, number) for kind, nodes in kinds.items() for number, node in enumerate(nodes)}


def _view(node: UOp | None, names: dict[UOp, tuple[str, int]], numbered: Callable[[Any], Any]) -> Any:
    """Which of these values a node shows, and how."""
    parts: list[Any] = []
    while node is not None and node not in names and node.src and node.op.kind == Kind.MOVEMENT:
        parts.append((node.op, numbered(node.arg)))
        node = node.src[0]
    return parts, names.get(node) if node is not None else None


def _form(numbered: Callable[[Any], Any], value: Any) -> Any:
    """What a value in a result looks like: of a tensor, all but its contents."""
    if isinstance(value, Tensor):
        return f"a {value.dtype.name} of {numbered(value.shape)}"
    if isinstance(value, Length):
        return f"the length {numbered(value)}"
    return value if isinstance(value, PLAIN) else f"a {type(value).__name__} at {id(value):#x}"
