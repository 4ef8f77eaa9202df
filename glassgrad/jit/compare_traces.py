"""Whether two calls of a function were the same work. In: traces. Out: `TraceWork`, and the difference in words.

A capture is made of two traces that agree: the same graphs and constants, buffers that come from the same tensors, and
the same outcomes. Does not know replays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.compiler.graph import Length, UOp
from glassgrad.compiler.graph.ops import Kind
from glassgrad.engine.capture import Record
from glassgrad.engine.schedule_key import NormalizedGraph, scalar_bytes
from glassgrad.jit.plain_values import PLAIN
from glassgrad.jit.trace import BufferSource, SourcePaths, TracedCall, name_of
from glassgrad.tensor.tensor import Tensor

__all__ = ["TraceWork", "difference", "narrow", "refusal"]

# What is compared as it is, with the words for a difference (then, now)
_DIFFERENCES = {
    "lengths": "other lengths are used",
    "itself": "it is handed other tensors that it also sees by itself",
    "put": "it puts other things somewhere",
    "raised": "it raises numbers that it sees by {}, then by {}",
    "form": "the function returned {}, then {}",
    "changed": "other tensors are changed",
    "outcomes": "its values go elsewhere"}


class TraceWork:
    """What a call did, to be compared with another: structure and numbers, without the memory it was done in."""

    def __init__(self, traced: TracedCall):
        records = traced.trace.records
        self.graphs = [record.normal.key for record in records]
        self.constants = [[c.arg for c in record.normal.constants] for record in records]
        self.sources = [source.paths() if isinstance(source, BufferSource) else source
                        for source in traced.sources.values()]
        self.lengths = [traced.numbered(tuple(Length({(s,): 1}) for s in record.normal.symbols)) for record in records]
        self.form = _form(traced.form, traced.numbered)
        self.put = {binding.path: _form(value, traced.numbered) for binding, value in traced.bound}
        self.raised = {binding.path: by for binding, by in traced.raised}
        self.out_of_sight = {row.path: weakref.ref(row.tensor) for row in traced.out_of_sight()}
        self.itself = {i: traced.path(t) for i, t in traced.itself.items()}
        self.changed = [traced.path(t) for t in (*traced.changed, *[t for t, _ in traced.grads])]
        self.arguments = {name_of(t) for t in traced.originals}        # arguments: they need not live on
        self.outcomes = _outcomes(traced)

    def gone(self) -> set[str]:
        """Tensors out of sight that are not alive any more: another may have their name."""
        return {path for path, reference in self.out_of_sight.items() if reference() is None}


def difference(traced: TracedCall, mine: TraceWork, theirs: TraceWork) -> str:
    """Why a trace, which is `mine`, is not the same work as an earlier one; empty when it is."""
    if len(mine.graphs) != len(theirs.graphs):
        return f"{len(theirs.graphs)} realizes in one call, {len(mine.graphs)} in the next"
    for number, ran in enumerate(traced.trace.records):
        if mine.graphs[number] != theirs.graphs[number]:
            return f"another graph is computed{_first_difference(ran.normal, theirs.graphs[number])}"
        for x, was in zip(ran.normal.constants, theirs.constants[number]):
            if scalar_bytes(x.arg, x.dtype) != scalar_bytes(was, x.dtype):
                return f"the number {was} became {x.arg}, written at {_line_using(ran, x)}"
    gone = theirs.gone()
    for now, then in zip(mine.sources, theirs.sources):
        if isinstance(now, SourcePaths) and isinstance(then, SourcePaths):
            # at least one tensor holds it in both; the others may have held the value at the time (`w.detach()`)
            if now.holders.isdisjoint(then.holders - gone) and (now.holders or now != then):
                return "other tensors are used"
        elif now != then:
            return "a tensor made inside from plain data changed its values" + (
                f", made at {now[0]}" if not isinstance(now, SourcePaths) else "")
    if not gone.isdisjoint(mine.changed):
        return "other tensors are changed"
    for name, words in _DIFFERENCES.items():
        if getattr(mine, name) != getattr(theirs, name):
            return words.format(getattr(theirs, name), getattr(mine, name))
    return ""


def narrow(traced: TracedCall, theirs: TraceWork) -> None:
    """Of the tensors that held a buffer in a trace, rely on those that held it in an equal one too."""
    dropped = theirs.gone() | theirs.arguments
    for source, earlier in zip(traced.sources.values(), theirs.sources):
        if isinstance(source, BufferSource) and isinstance(earlier, SourcePaths):
            in_both = earlier.holders - dropped
            source.holders[:] = [row for row in source.holders if row.path in in_both] or source.holders


def _outcomes(traced: TracedCall) -> list[Any]:
    """Which of the values that a call computed or was brought each outcome is, as which view of it; and which tensors
    are given as themselves."""
    names: dict[UOp, tuple[str, int]] = {node: ("a source", i) for i, node in enumerate(traced.sources)}
    made = [node for record in traced.trace.records for node in record.results]
    names |= {node: ("a result", i) for i, node in enumerate(made)}

    def view(node: UOp | None) -> Any:
        parts: list[Any] = []
        while node is not None and node not in names and node.src and node.op.kind == Kind.MOVEMENT:
            parts.append((node.op, traced.numbered(node.arg)))
            node = node.src[0]
        return parts, names.get(node) if node is not None else None

    where = [(out.kind, out.place if out.kind == "given" else traced.path(out.place), view(out.node))
             for out in traced.outcomes()]
    return [where, [None if g.itself is None else traced.path(g.itself) for g in traced.given]]


def _form(value: Any, numbered: Callable[[Any], Any]) -> Any:
    """What a result looks like, apart from the tensors in it."""
    if isinstance(value, Tensor):
        return f"a {value.dtype.name} of {numbered(value.shape)}"
    if isinstance(value, Length):
        return f"the length {numbered(value)}"
    if isinstance(value, (list, tuple)):
        parts = [_form(v, numbered) for v in value]
        return type(value)(parts) if not hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {k: _form(v, numbered) for k, v in value.items()}
    return value if isinstance(value, PLAIN) else f"a {type(value).__name__} at {id(value):#x}"


def _line_using(record: Record, constant: UOp) -> str:
    user = next((n for n in record.normal.order if constant in n.src), constant)
    return str(user.line or "an unknown line")


def _first_difference(normal: NormalizedGraph, earlier: tuple[Any, ...]) -> str:
    for node, row, was in zip(normal.order, normal.key, earlier):
        if row != was:
            return f", first at {node.line}"
    return ""


def refusal(given: str) -> JitError:
    """The error for a function whose calls are not all the same work."""
    return JitError("this function launches other work at each call", given=given,
                    expected="the same kernels on the same constants whenever the arguments look the same",
                    fix="make what changes an argument or a tensor, or leave the jit off this function")
