"""Whether two traces are the same work. In: `Traced`. Out: what differs, with the user's line, or nothing.

Only then is a function replayed: what one call computed and the next did not cannot be told from the arguments.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.ops import Kind
from glassgrad.compiler.graph.symbolic import Length
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.capture import Record
from glassgrad.engine.schedule_key import Normal, scalar_bytes
from glassgrad.jit.object_paths import PLAIN
from glassgrad.jit.tracing import Source, Traced
from glassgrad.tensor.tensor import Tensor

__all__ = ["Work", "difference", "narrow", "refusal"]


class Work:
    """What a call did, to be compared with another: structure and numbers, without the memory it was done in."""

    def __init__(self, traced: Traced):
        self.graphs = [record.normal.key for record in traced.trace.records]
        self.constants = [[c.arg for c in record.normal.constants] for record in traced.trace.records]
        self.sources = list(traced.sources.values())
        self.lengths = [traced.numbered(tuple(Length({(s,): 1}) for s in record.normal.symbols))
                        for record in traced.trace.records]
        self.form = _form(traced.form, traced.numbered)
        self.put = {place.key: _form(place.value, traced.numbered) for place in traced.bound}
        self.itself = traced.itself
        self.changed, self.outcome = _outcome(traced)


def difference(traced: Traced, mine: Work, theirs: Work) -> str:
    """Why a trace, which is `mine`, is not the same work as an earlier one; empty when it is."""
    if len(mine.graphs) != len(theirs.graphs):
        return f"{len(theirs.graphs)} realizes in one call, {len(mine.graphs)} in the next"
    for number, ran in enumerate(traced.trace.records):
        if mine.graphs[number] != theirs.graphs[number]:
            return f"another graph is computed{_first_difference(ran.normal, theirs.graphs[number])}"
        for x, was in zip(ran.normal.constants, theirs.constants[number]):
            if scalar_bytes(x.arg, x.dtype) != scalar_bytes(was, x.dtype):
                return f"the number {was} became {x.arg}, written at {_line_using(ran, x)}"
        if mine.lengths[number] != theirs.lengths[number]:
            return "other lengths are used"
    for now, then in zip(mine.sources, theirs.sources):
        if isinstance(now, Source) and isinstance(then, Source):
            if not now.may_be(then):
                return "other tensors are used"
        elif now != then:
            return "a tensor made inside from plain data changed its values" + (
                f", made at {now[0]}" if isinstance(now, tuple) else "")
    if {i: id(r()) for i, r in mine.itself.items()} != {i: id(r()) for i, r in theirs.itself.items()}:
        return "it is handed other tensors that it also sees by itself"
    if mine.put != theirs.put:
        return "it puts other things somewhere"
    if mine.form != theirs.form:
        return f"the function returned {theirs.form}, then {mine.form}"
    if not all(now() is then() is not None for now, then in zip(mine.changed, theirs.changed)) \
            or len(mine.changed) != len(theirs.changed):
        return "other tensors are changed"
    if mine.outcome != theirs.outcome:
        return "its values go elsewhere"
    return ""


def narrow(mine: Work, theirs: Work) -> None:
    """Of the ways in which a buffer came to two traces that agree, leave those that were open to both."""
    for now, then in zip(mine.sources, theirs.sources):
        if isinstance(now, Source) and isinstance(then, Source):
            now.narrow(then)


def _outcome(traced: Traced) -> tuple[list[weakref.ref[Tensor]], list[Any]]:
    """The tensors that a call changes, or whose gradients it does; and which of the values that it computed or was
    brought each of them, each result and each place is left with, as which view of it."""
    names: dict[UOp, tuple[str, int]] = {node: ("a source", i) for i, node in enumerate(traced.sources)}
    names |= {node: ("an argument", i) for i, node in enumerate(traced.argument_nodes)}
    made = [node for record in traced.trace.records for node in record.results]
    names |= {node: ("a result", i) for i, node in enumerate(made)}

    def view(node: UOp | None) -> Any:
        parts: list[Any] = []
        while node is not None and node not in names and node.src and node.op.kind == Kind.MOVEMENT:
            parts.append((node.op, traced.numbered(node.arg)))
            node = node.src[0]
        return parts, names.get(node) if node is not None else None

    changed = [t for t in traced.left_behind if id(t) in traced.before]
    given = [t.uop for t in (*changed, *traced.placed(), *traced.returned)]
    given += [node for _, node in (*traced.argument_updates, *traced.argument_grads)]
    grads = [None if grad is None else grad.uop for _, grad in traced.grads]
    outcome = [[i for i, _ in traced.argument_updates], [i for i, _ in traced.argument_grads], *map(view, given),
               *map(view, grads)]
    return [weakref.ref(t) for t in (*changed, *[t for t, _ in traced.grads])], outcome


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


def _first_difference(normal: Normal, earlier: tuple[Any, ...]) -> str:
    nodes = [n for n in normal.order if n.op is not o.DETACH]            # a row of the key each
    for node, row, was in zip(nodes, normal.key, earlier):
        if row != was:
            return f", first at {node.line}"
    return ""


def refusal(given: str) -> JitError:
    """The error for a function whose calls are not all the same work."""
    return JitError("this function launches other work at each call", given=given,
                    expected="the same kernels on the same constants whenever the arguments look the same",
                    fix="make what changes an argument or a tensor, or leave the jit off this function")
