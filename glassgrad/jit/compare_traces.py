"""Whether two calls of a function were the same work. In: traces. Out: `TraceWork`, and the difference in words.

A capture is made of two traces that agree: the same graphs and constants, buffers that come from the same tensors, and
the same outcomes. Does not know replays.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from functools import partial
from typing import Any

from glassgrad.compiler.graph import Length, UOp
from glassgrad.engine.schedule_key import NormalizedGraph, normalize, scalar_bytes
from glassgrad.jit.plain_values import PLAIN, mapped
from glassgrad.jit.trace import TracedCall, name_of
from glassgrad.tensor.tensor import Tensor


class TraceWork:
    """The work of a call, to be compared with another's: graphs, constants, sources and outcomes, but no memory."""

    def __init__(self, traced: TracedCall):
        records, form, names = traced.trace.records, partial(_form, traced), _names(traced)
        self.graphs = [record.normal.key for record in records]
        self.constants = [[c.arg for c in record.normal.constants] for record in records]
        self.sources = [{row.path for row in rows} for rows in traced.sources.values()]
        self.data = list(traced.data.values())
        self.out_of_sight = {traced.path(t): weakref.ref(t) for t in traced.out_of_sight()}
        self.state = traced.state
        self.itself = {i: traced.path(t) for i, t in traced.itself.items()}
        self.changed = [traced.path(t) for t in (*traced.changed, *[t for t, _ in traced.grads])]
        self.arguments = {name_of(row.tensor) for row in traced.arguments}        # these may be freed between calls
        inputs = [_inputs(traced, record.normal, names) for record in records]
        views = [(out, normalize([out.node])) for out in traced.outcomes()]
        outcomes = [(traced.path(out.place), view.key, _inputs(traced, view, names)) for out, view in views]
        assigned = [*[(b.path, value) for b, value in traced.bound],
                    *[(f"{traced.path(t)}.grad", grad) for t, grad in traced.grads]]
        self.compared = {          # by ==; the key is the message for a difference, formatted with (then, now)
            "other tensors, or other parts of them, are used": [buffers for buffers, _ in inputs],
            "other lengths are used": [lengths for _, lengths in inputs],
            "it assigns {}, then {}": {path: mapped(value, form, others=form) for path, value in assigned},
            "the function returned {}, then {}": mapped(traced.form, form, others=form),
            "other tensors are changed": self.changed,
            "its values go elsewhere": outcomes}

    def gone(self) -> set[str]:
        """The paths of tensors out of sight that were freed: a new tensor may have got the same path."""
        return {path for path, reference in self.out_of_sight.items() if reference() is None}


def difference(traced: TracedCall, mine: TraceWork, theirs: TraceWork) -> str:
    """Why a trace, whose work is `mine`, differs from an earlier one, `theirs`; empty if it does not."""
    if len(mine.graphs) != len(theirs.graphs):
        return f"{len(theirs.graphs)} realizes in one call, {len(mine.graphs)} in the next"
    for number, ran in enumerate(traced.trace.records):
        if mine.graphs[number] != theirs.graphs[number]:
            rows = zip(ran.normal.order, ran.normal.key, theirs.graphs[number])
            where = [f", first at {node.line}" for node, now, then in rows if now != then and node.line]
            return "another graph is computed" + "".join(where[:1])
        for x, was in zip(ran.normal.constants, theirs.constants[number]):
            if scalar_bytes(x.arg, x.dtype) != scalar_bytes(was, x.dtype):
                user = next((n for n in ran.normal.order if x in n.src), x)
                return f"the number {was} became {x.arg}, written at {user.line or 'an unknown line'}"
    gone = theirs.gone()
    for now, then in zip(mine.sources, theirs.sources):
        # at least one tensor must hold it in both; others may have held it in one trace only (`w.detach()`)
        if now.isdisjoint(then - gone):
            return "other tensors are used"
    for made, was in zip(mine.data, theirs.data):
        if made != was:
            return f"a tensor made inside from plain data changed its values, made at {made[0]}"
    if not gone.isdisjoint(mine.changed):
        return "other tensors are changed"
    for words, now in mine.compared.items():
        if now != theirs.compared[words]:
            return words.format(theirs.compared[words], now)
    return ""


def narrow(traced: TracedCall, theirs: TraceWork) -> None:
    """Keep, of the tensors that held a buffer in a trace, those that held it in the equal earlier trace too."""
    dropped = theirs.gone() | theirs.arguments
    for rows, earlier in zip(traced.sources.values(), theirs.sources):
        rows[:] = [row for row in rows if row.path in earlier - dropped] or rows


def _names(traced: TracedCall) -> dict[UOp, tuple[str, int]]:
    """A name for each buffer that a call read or made: its kind, and its number among those of the kind."""
    made = [node for record in traced.trace.records for node in record.results]
    kinds: dict[str, Collection[UOp]] = {"a source": traced.sources, "data": traced.data, "a result": made}
    return {node: (kind, number) for kind, nodes in kinds.items() for number, node in enumerate(nodes)}


def _inputs(traced: TracedCall, normal: NormalizedGraph, names: dict[UOp, tuple[str, int]]) -> tuple[Any, Any]:
    """What a graph reads: the names of its buffers, with the byte at which it begins in each; and its lengths."""
    buffers = [(names.get(n.base), at - n.base.arg.address) for n, at in zip(normal.buffers, normal.addresses)]
    return buffers, traced.numbered(tuple(Length({(s,): 1}) for s in normal.symbols))


def _form(traced: TracedCall, value: Any) -> str:
    """A value in a result as text, equal in two traces if a replay may return the same: plain values by type and bits,
    tensors by path, type and shape, other objects by identity."""
    if isinstance(value, Tensor):
        return f"{traced.path(value)}, {value.dtype.name} of {traced.numbered(value.shape)}"
    if isinstance(value, Length):
        return f"the length {traced.numbered(value)}"
    return repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__} at {id(value):#x}"
