"""Decide whether two calls of a function did the same work. In: traces. Out: `TraceWork`, and the difference in words.

A capture is made once two traces agree: they computed the same graphs with the same constants, read buffers that come
from the same tensors, and left the same outcomes. The work of a call is a list of facts, in the same order for every
call, so that one loop compares two calls. Does not know replays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from operator import eq
from typing import Any, NamedTuple

from glassgrad.compiler.graph import Length, UOp
from glassgrad.engine.schedule_key import NormalizedGraph, normalize, scalar_bytes
from glassgrad.jit.plain_values import PLAIN, mapped
from glassgrad.jit.trace import TracedCall
from glassgrad.tensor.tensor import Tensor


class Fact(NamedTuple):
    """One fact about the work of a call: a value that holds no memory, what to say if an earlier call had another
    value, and a function that says whether two values mean the same work."""
    value: Any
    words: Callable[[Any, Any], str]             # (earlier value, this value) -> the difference in words
    equal: Callable[[Any, Any], bool] = eq


class TraceWork:
    """The work of a call, kept to be compared with later calls. It keeps neither tensors nor graphs alive."""

    def __init__(self, traced: TracedCall, facts: Sequence[Fact]):
        self.values = [fact.value for fact in facts]
        self.state = traced.state
        self.argument_paths = traced.argument_paths
        self.sources = [{row.path for row in rows} for rows in traced.sources.values()]
        self.arguments = {traced.name_of(row.tensor) for row in traced.arguments}        # may be freed between calls
        self._named = traced.named               # while these live, no other tensor can get the name of one of them


def difference(facts: Sequence[Fact], earlier: TraceWork) -> str:
    """Say how the work of a call, given as facts, differs from that of an earlier one; empty if it does not."""
    rows = zip(facts, earlier.values)
    return next((now.words(then, now.value) for now, then in rows if not now.equal(then, now.value)), "")


def facts_of(traced: TracedCall) -> Iterator[Fact]:
    """Yield the facts about a call's work. Two calls may be compared fact by fact only up to the first difference:
    those after it may be of other kinds."""
    records, form, names = traced.trace.records, partial(_form, traced), _names(traced)
    yield Fact(len(records), "{} realizes in one call, {} in the next".format)
    for normal in [record.normal for record in records]:
        yield Fact(normal.key, partial(_other_graph, normal.order))
        for x in normal.constants:
            yield Fact(x.arg, partial(_other_number, normal.order, x), partial(_same_bits, x))
    yield Fact(len(traced.sources), "other tensors are used".format)
    for rows in traced.sources.values():
        # some tensor must hold the buffer in both traces; others (`w.detach()`) may have held it in one of them only
        yield Fact({row.path for row in rows}, "other tensors are used".format, lambda then, now: bool(then & now))
    for made in traced.data.values():
        yield Fact(made, f"a tensor made inside from plain data changed its values, made at {made[0]}".format)
    inputs = [_inputs(traced, record.normal, names) for record in records]
    yield Fact([buffers for buffers, _ in inputs], "other tensors, or other parts of them, are used".format)
    yield Fact([lengths for _, lengths in inputs], "other lengths are used".format)
    yield Fact({b.path: mapped(value, form, others=form) for b, value in traced.bound}, "it assigns {}, then {}".format)
    yield Fact(mapped(traced.form, form, others=form), "the function returned {}, then {}".format)
    yield Fact([traced.path(t) for t in traced.changed], "other tensors are changed".format)
    views = [(tensor, normalize([node])) for tensor, node in traced.outcomes().items()]
    yield Fact([(traced.path(tensor), view.key, _inputs(traced, view, names)) for tensor, view in views],
               "its values go elsewhere".format)


def _other_graph(order: Collection[UOp], then: Sequence[Any], now: Sequence[Any]) -> str:
    where = [f", first at {node.line}" for node, new, old in zip(order, now, then) if new != old and node.line]
    return "another graph is computed" + "".join(where[:1])


def _other_number(order: Collection[UOp], x: UOp, then: Any, now: Any) -> str:
    user = next((n for n in order if x in n.src), x)
    return f"the number {then} became {now}, written at {user.line or 'an unknown line'}"


def _same_bits(x: UOp, then: Any, now: Any) -> bool:
    return scalar_bytes(then, x.dtype) == scalar_bytes(now, x.dtype)


def keep_common_holders(traced: TracedCall, theirs: TraceWork) -> None:
    """Drop the tensors that held a buffer in this trace but not in the equal earlier one."""
    for rows, earlier in zip(traced.sources.values(), theirs.sources):
        rows[:] = [row for row in rows if row.path in earlier - theirs.arguments] or rows


def _names(traced: TracedCall) -> dict[UOp, tuple[str, int]]:
    """Name each buffer that a call read or made by its kind and its number among the buffers of that kind."""
    made = [node for record in traced.trace.records for node in record.results]
    kinds: dict[str, Collection[UOp]] = {"a source": traced.sources, "data": traced.data, "a result": made}
    return {node: (kind, number) for kind, nodes in kinds.items() for number, node in enumerate(nodes)}


def _inputs(traced: TracedCall, normal: NormalizedGraph, names: dict[UOp, tuple[str, int]]) -> tuple[Any, Any]:
    """Return what a graph reads: for each of its buffers, the name and the byte offset where it begins; and the
    lengths."""
    buffers = [(names.get(n.base), at - n.base.arg.address) for n, at in zip(normal.buffers, normal.addresses)]
    return buffers, traced.numbered(tuple(Length({(s,): 1}) for s in normal.symbols))


def _form(traced: TracedCall, value: Any) -> str:
    """Describe a value in a result as text. The texts of two traces are equal if a replay may return the same value:
    plain values by type and bits, tensors by path, type and shape, other objects by identity."""
    if isinstance(value, Tensor):
        return f"{traced.path(value)}, {value.dtype.name} of {traced.numbered(value.shape)}"
    if isinstance(value, Length):
        return f"the length {traced.numbered(value)}"
    return repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__} at {id(value):#x}"
