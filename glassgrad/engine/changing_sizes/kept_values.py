"""Keep values that each step of a program would compute again. In: graphs without a schedule. Out: which values to
keep.

    for x in batches:
        h = cell(x, h)                    # lazy: computed from all the steps before
        print(h.mean().item())            # computes a mean, but does not store h

Without keeping h, each run would have a longer graph. Only graphs that have no schedule yet are examined, and for each
schedule the first graph that reads a kept value. In the steady state neither occurs.

    start      a value that this graph has in common with earlier graphs and that new nodes read: what a step starts
               from. Here it is the h of the step before.
    successor  the value that takes the place of that start in this graph: here the new h. The two graphs are compared
               from their sinks down. A value that is its own successor makes no graph longer, and is left alone.
    keep       from the third graph in a row on, a successor is one more result of the run. It is remembered for its
               node, like a value that was read: the next step starts from memory, and gradients pass as before.

A schedule knows which of its rows are kept, so that each run of it keeps them. A value is dropped when the second value
after it was computed without it. An elementwise value that is larger than what it is computed from is not kept; its
sources are. Does not know tensors. Nothing is kept in a trace of the jit, nor in graphs of symbolic sizes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.node import WeakNodeDict
from glassgrad.engine.registry import registry
from glassgrad.engine.schedule_key import NormalizedGraph

_SEEN = 2                # number of graphs before the first one that keeps values
_LINES = 4               # for each node, this many of the last graphs that computed it are remembered
_VIEWS = frozenset((*o.MOVEMENT, o.DETACH))
_ELEMENTWISE = frozenset((o.Kind.UNARY, o.Kind.BINARY, o.Kind.TERNARY))


@dataclass(eq=False)
class ScheduledGraph:
    """The structure of a graph that was scheduled: an op and the rows of its sources for each row."""
    rows: list[tuple[o.Op, list[int]]]
    sinks: list[int]
    earlier: int = 0                 # number of graphs before it in a chain: each starts from values of the last
    kept: Sequence[int] = ()         # rows whose values each run keeps


class _Row(NamedTuple):
    graph: ScheduledGraph
    row: int


class KeptValue(NamedTuple):
    """A value that was kept: the row it was computed at, the nodes it is the value of, and the BUFFERs of other kept
    values that it was computed from."""
    computed: _Row
    nodes: list[weakref.ref[UOp]]
    read: list[weakref.ref[UOp]]


_computed: WeakNodeDict[tuple[_Row, ...]] = WeakNodeDict()       # {node: the rows that computed it, the last one first}


class KeptRows:
    """Which values each run keeps, by the structure of the graph."""

    def __init__(self, most: int):
        self._most = most
        self._found: dict[Any, ScheduledGraph | None] = {}

    def of(self, normal: NormalizedGraph, original: Mapping[UOp, UOp], is_new: bool) -> ScheduledGraph | None:
        """Return the structure of a graph that keeps values; None if it keeps none. Values to keep are searched if the
        graph has no schedule (`is_new`) and some of its nodes were computed before, and when it first reads a kept
        value."""
        if normal.key in self._found:
            return self._found[normal.key]
        reads_kept = any([n.base in registry.kept for n in normal.buffers])
        if not reads_kept and not (is_new and _is_noted(normal, original)):
            return None
        graph = values_to_keep(normal, original)
        if reads_kept or graph is not None:
            if len(self._found) >= self._most:
                self._found.pop(next(iter(self._found)))
            self._found[normal.key] = graph
        return graph


def note(normal: NormalizedGraph, original: Mapping[UOp, UOp]) -> None:
    """Remember the nodes of a graph that is scheduled, because a later graph may compute them again."""
    if not normal.symbols and not _is_noted(normal, original):
        _note_nodes(_structure(normal), normal, original)


def _structure(normal: NormalizedGraph) -> ScheduledGraph:
    leaves, row_of = {*normal.buffers, *normal.cells}, {node: row for row, node in enumerate(normal.order)}
    return ScheduledGraph([(n.op, [] if n in leaves else [row_of[s] for s in n.src]) for n in normal.order],
                          [row_of[n] for n in normal.sinks])


def _note_nodes(graph: ScheduledGraph, normal: NormalizedGraph, original: Mapping[UOp, UOp]) -> None:
    """Remember the row that computes each node, except views of leaves: every graph that reads the weights has the same
    ones."""
    is_computed: list[bool] = []
    for row, (node, (op, src)) in enumerate(zip(normal.order, graph.rows)):
        is_computed.append(bool(src) and (op not in _VIEWS or is_computed[src[0]]))
        for each in _nodes_of(node, original) if is_computed[row] else ():
            _computed.set(each, (_Row(graph, row), *(_computed.get(each) or ())[:_LINES - 1]))


def _is_noted(normal: NormalizedGraph, original: Mapping[UOp, UOp]) -> bool:
    """Return whether some nodes of a graph may have been computed before."""
    return len(registry.copies) > 0 or not _computed.rows.keys().isdisjoint(map(id, original.values() or normal.order))


def values_to_keep(normal: NormalizedGraph, original: Mapping[UOp, UOp]) -> ScheduledGraph | None:
    """Remember the nodes of a graph that has no schedule; return its structure if some of its values are to be kept.
    `original` maps the nodes of a graph that was rebuilt over known values to the nodes they stand for."""
    if normal.symbols:
        return None
    graph, order = _structure(normal), list(normal.order)
    starts = _starts(graph, order, original)
    found: dict[int, None] = {}
    for earlier in dict.fromkeys([at.graph for places in starts.values() for at in places]):
        same = _same_rows(earlier, graph)
        moved = [same[at.row] for row, places in starts.items() for at in places
                 if at.graph is earlier and same.get(at.row, row) != row]
        if moved:
            graph.earlier = max(graph.earlier, earlier.earlier + 1)
            found.update(dict.fromkeys([row for at in moved for row in _storable(graph, order, at)]))
    _note_nodes(graph, normal, original)
    if graph.earlier < _SEEN:
        return None
    graph.kept = [row for row in found if row not in graph.sinks and any(_nodes_of(order[row], original))]
    if settings.DEBUG >= 1:
        for row in graph.kept:
            node = order[row]
            print(f"kept: {node.dtype.name}{list(node.shape)} made at {node.line}, was computed again by "
                  f"{normal.sinks[0].line}")
    return graph if graph.kept else None


def keep(graph: ScheduledGraph, normal: NormalizedGraph, values: Sequence[UOp], original: Mapping[UOp, UOp]) -> None:
    """Remember the values that a run of a schedule has kept; drop older ones that the next runs no longer need."""
    read = {n.base: kept for n in normal.buffers if (kept := registry.kept.get(n.base)) is not None}
    references = [weakref.ref(buffer) for buffer in read]
    for row, node, value in zip(graph.kept, normal.sinks[-len(graph.kept):], values):
        nodes = [*_nodes_of(node, original)]
        for each in nodes:
            registry.remember(each, value)
        registry.kept.set(value.base, KeptValue(_Row(graph, row), [weakref.ref(each) for each in nodes], references))
    for kept in read.values():
        for reference in kept.read:
            before = reference()
            if before is not None and before not in read:
                _drop(before)


def never_drop(value: UOp) -> None:
    """Exempt a value that the program read from being dropped: reading it again must not compute it again."""
    kept = registry.kept.get(value.base)
    if kept is not None:
        registry.kept.set(value.base, kept._replace(nodes=[]))


def _drop(buffer: UOp) -> None:
    kept = registry.kept.get(buffer)
    for reference in kept.nodes if kept is not None else ():
        node = reference()
        value = registry.values.get(node) if node is not None else None
        if value is not None and value.base is buffer:
            registry.values.pop(node)


def _nodes_of(node: UOp, original: Mapping[UOp, UOp]) -> Iterator[UOp]:
    """Yield the nodes of the program that have the value of a graph's node: the node itself or the one that it stands
    for, and the one that this is a copy of."""
    first = original.get(node) if original else node
    if first is not None:
        yield first
        copied = registry.copies.get(first)
        second = None if copied is None else copied()
        if second is not None:
            yield second


def _starts(graph: ScheduledGraph, order: Sequence[UOp], original: Mapping[UOp, UOp]) -> dict[int, tuple[_Row, ...]]:
    """Return the rows at which new nodes read what was computed before: {row: the rows of earlier graphs that computed
    it}."""
    before: dict[int, tuple[_Row, ...]] = {}
    for row, node in enumerate(order):
        if graph.rows[row][1]:
            known = next((f for n in _nodes_of(node, original) if (f := _computed.get(n)) is not None), None)
        else:
            kept = registry.kept.get(node.base)
            known = None if kept is None else (kept.computed,)
        if known is not None:
            before[row] = known
    return {s: before[s] for row, (_, src) in enumerate(graph.rows) if row not in before for s in src if s in before}


def _same_rows(earlier: ScheduledGraph, graph: ScheduledGraph) -> dict[int, int]:
    """Map rows of an earlier graph to the rows of this one that are at the same position, seen from the sinks."""
    same: dict[int, int] = {}
    waiting = deque(zip(earlier.sinks, graph.sinks))
    while waiting:
        old, new = waiting.popleft()
        (old_op, old_src), (op, src) = earlier.rows[old], graph.rows[new]
        if old not in same and op is old_op and len(src) == len(old_src):
            same[old] = new
            waiting.extend(zip(old_src, src))
    return same


def _storable(graph: ScheduledGraph, order: Sequence[UOp], row: int) -> Iterator[int]:
    """Yield the rows to store for a row: the value below its views; or, for an elementwise value that is larger than
    all that it is computed from, its sources."""
    row = _below_views(graph, order, row)
    src = graph.rows[row][1]
    below = {_below_views(graph, order, s) for s in src}
    if order[row].op.kind in _ELEMENTWISE and order[row].size > sum([order[s].size for s in below]):
        for source in below:
            yield from _storable(graph, order, source)
    elif src and order[row].size:
        yield row


def _below_views(graph: ScheduledGraph, order: Sequence[UOp], row: int) -> int:
    """Return the row of the value below the views of a row. (A DETACH with several sources is a value with its own
    gradient, not a view.)"""
    while len(graph.rows[row][1]) == 1 and order[row].op in _VIEWS:
        row = graph.rows[row][1][0]
    return row
