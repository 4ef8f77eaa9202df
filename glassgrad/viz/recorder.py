"""Record what the engine does. In: callbacks (engine/observer.py). Out: `Recorder`: graphs, runs, memory, time spans.

Repeated runs are added up: a step that runs ten thousand times is one `RunGroup`, whose kernels are timed natively.
Graphs are recorded when they are scheduled, which happens once for each structure. Does not depend on how any of it is
shown: page_data.py makes the page's data from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple

from glassgrad.base.call_tree import CallTree
from glassgrad.base.source_lines import Place, note_calls
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.rules.rewrite import Rule
from glassgrad.compiler.pipeline import GRAPH, GraphWork, Pass
from glassgrad.compiler.schedule.inlined_values import LEAVES
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.buffer import live_buffers
from glassgrad.engine.counters import GlobalCounters
from glassgrad.engine.observer import Launches, Observer
from glassgrad.engine.schedule_key import NormalizedGraph, with_params
from glassgrad.viz.pass_text import PassText, graph_text, nodes_text

MOST_GRAPHS, MOST_GRAPH_NODES = 200, 120_000
MOST_SPANS, DETAILED_RUNS = 12_000, 4
MOST_SAMPLES = 4_000
A_NEW_PEAK = 1.02              # factor by which the peak must grow before live values are listed again


class NodeRow(NamedTuple):
    """A node as plain values: holding the node would keep its buffers alive."""
    op: str
    kind: str
    dtype: str
    shape: tuple[Any, ...]
    sources: tuple[int, ...]
    argument: str
    place: Place | None


def node_rows(order: Sequence[UOp], places: Mapping[UOp, Place | None] | None = None) -> list[NodeRow]:
    """Return nodes, sources first, as rows; `places` overrides the places of some, such as inputs."""
    number = {node: i for i, node in enumerate(order)}
    return [NodeRow(n.op.name, n.op.kind, n.dtype.name, n.shape, tuple([number[s] for s in n.src]), _argument(n),
                    n.arg.place if n.op is o.BUFFER else places.get(n, n.place) if places else n.place) for n in order]


def _argument(n: UOp) -> str:
    if n.arg is None or n.op in (o.BUFFER, o.PARAM):
        return ""
    text = str(n.arg)
    return text if len(text) <= 120 else text[:120] + " ..."


@dataclass(eq=False)
class RecordedKernel:
    """A kernel of a schedule: the graph's nodes that it computes."""
    item: Item
    nodes: list[int]             # numbers in the graph's order
    roots: list[int]             # those of them that get memory


@dataclass(eq=False)
class RecordedGraph:
    """A graph that was scheduled: as the program wrote it, as it was compiled, and as text after each pass."""
    written: list[NodeRow]
    compiled: list[NodeRow]                      # after the passes over graphs
    sinks: list[int]
    kernels: list[RecordedKernel]
    passes: list[PassText]
    between: list[LiveValue]                     # intermediate values at the kernel where they are largest
    live: list[int]                              # bytes of intermediate values at each kernel


@dataclass(eq=False)
class RunGroup:
    """All runs of one schedule, or of one jitted call."""
    items: list[Item]
    programs: list[Any]
    costs: Callable[[], list[tuple[int, int]]]
    stopwatches: list[Any]
    replay: bool
    between: int                                 # bytes of the arena
    runs: int = 0
    nanoseconds: int = 0
    measured_runs: int = 0                       # runs with a time for each kernel
    measured: list[int] = field(default_factory=list)

    def kernel_nanoseconds(self) -> list[float]:
        """The time of each kernel in all runs, extrapolated from the runs that were timed."""
        watched = [w for w in self.stopwatches if w.timed_runs]
        if watched:
            return [total * watch.runs / max(1, watch.timed_runs) for watch in self.stopwatches
                    for total in watch.totals]
        return [total * self.runs / max(1, self.measured_runs) for total in self.measured or [0] * len(self.items)]


class TimeSpan(NamedTuple):
    """A time span of scheduling, compiling or running; `item` is the kernel, or the first one of a run."""
    kind: str                                    # "schedule", "compile", "run" or "kernel"
    start: int
    duration: int
    item: Item | None
    kernels: int = 1


class LiveValue(NamedTuple):
    """A value in memory at the peak."""
    nbytes: int
    shape: tuple[Any, ...]
    dtype: str
    place: Place | None
    between: bool = False                        # an intermediate value of a schedule, in its arena


@dataclass
class MemoryNotes:
    """Bytes in use over time, and what was alive at the peak."""
    samples: list[tuple[int, int]] = field(default_factory=list)
    peak: int = 0
    peak_time: int = 0
    listed: int = 0                              # bytes in use when `values` were listed
    values: list[LiveValue] = field(default_factory=list)
    step: int = 1                                # one of `step` samples is kept
    latest: int = -1

    def sample(self, now: int, nbytes: int, count: int) -> None:
        """Record the bytes in use since the run numbered `count`."""
        self.latest = nbytes
        if count % self.step:
            return
        self.samples.append((now, nbytes))
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            self.step *= 2


class Recorder(Observer):
    """Records what the engine does until `stop`."""
    every_run = False

    def __init__(self) -> None:
        self.started = perf_counter_ns()
        self.ended: int | None = None
        self.calls = CallTree()
        self.graphs: list[RecordedGraph] = []
        self.graph_nodes = self.graphs_left_out = 0
        self.groups: list[RunGroup] = []
        self.spans: list[TimeSpan] = []
        self.memory = MemoryNotes()
        self.scheduling = self.compiling = self.running = self.run_count = 0
        self._group_of: dict[int, RunGroup] = {}              # by id(items); the group holds the list
        self._work = threading.local()
        self._noted_before: Any = None
        self._graph_of: dict[int, RecordedGraph] = {}         # by id(item); the graph holds the item

    # -- on and off ------------------------------------------------------------------------------------------
    def watch_calls(self) -> None:
        """Make new nodes record the layers and calls they are made in."""
        self._noted_before = note_calls(self.calls.note)

    def stop(self) -> None:
        """Stop recording calls, and note the time."""
        note_calls(self._noted_before)
        self.ended = perf_counter_ns()

    # -- scheduling ------------------------------------------------------------------------------------------
    def applied(self, rule: Rule, node: UOp, result: UOp) -> None:
        """Record that a rule of algebra was applied in the present pass."""
        rules = self._work.__dict__.setdefault("rules", {})
        times, first = rules.get(rule.name, (0, None))
        rules[rule.name] = (times + 1, first or (rule.why, repr(node), repr(result)))

    def passed(self, each: Pass, work: Any) -> None:
        """Store the text of a pass's result, if it differs from that of the pass before."""
        if not isinstance(work, GraphWork):
            return
        mine = self._work.__dict__
        if mine.get("work") is not work:
            mine.update(work=work, passes=[], text=None, state=None)
        rules = mine.pop("rules", {})
        state = (list(work.sinks), len(work.stored), len(work.groups), len(work.schedule.items))
        same = mine.get("state") == state and each.stage == GRAPH       # nodes are compared by identity
        text, links = ("", []) if same else graph_text(work)
        mine["passes"].append(PassText(each.name, each.stage, each.does, each.file,
                                       None if same or text == mine["text"] else text, links, rules))
        if not same:
            mine.update(state=state, text=text)

    def prepared(self, normal: NormalizedGraph, ready: Any, times: tuple[int, int, int]) -> None:
        """Store a graph that was scheduled, with its kernels."""
        start, scheduled, end = times
        self.scheduling += scheduled - start
        self.compiling += end - scheduled
        first = ready.items[0] if ready.items else None
        self._span(TimeSpan("schedule", start, scheduled - start, first, len(ready.items)))
        self._span(TimeSpan("compile", scheduled, end - scheduled, first, len(ready.items)))
        mine = self._work.__dict__
        work: GraphWork | None = mine.pop("work", None)
        passes = mine.pop("passes", [])
        if work is None:
            return
        order = toposort(list(dict.fromkeys(work.sinks)))
        self.calls.renew(len(normal.order))
        if len(self.graphs) >= MOST_GRAPHS or self.graph_nodes + len(order) > MOST_GRAPH_NODES:
            self.graphs_left_out += 1
            return
        self.graph_nodes += len(order)
        number = {node: i for i, node in enumerate(order)}
        by_slot = [*work.inputs, *work.stored]
        groups = {root: group for group in work.groups for root in group.roots}
        kernels = []
        for item in ready.items:
            written = [by_slot[slot] for slot in item.slots[:item.results] if slot < len(by_slot)]
            group = next((groups[node] for node in written if node in groups), None)
            roots = group.roots if group is not None else written
            inside = toposort(roots, lambda n, roots=roots: [  # type: ignore[misc]
                s for s in n.src if s.op not in LEAVES and (s not in work.stored or s in roots)])
            kernels.append(RecordedKernel(item, [number[n] for n in inside if n in number],
                                          [number[n] for n in roots if n in number]))
        made_at = {node: buffer.base.place for node, buffer in zip(work.inputs, normal.buffers)}
        self.graphs.append(RecordedGraph(node_rows(list(normal.order)), node_rows(order, made_at),
                                         [number[s] for s in work.sinks if s in number], kernels,
                                         _with_initial(passes, with_params(normal, ready.scalars)[0]),
                                         *_between(ready, by_slot)))
        self._graph_of.update((id(item), self.graphs[-1]) for item in ready.items)

    # -- running ---------------------------------------------------------------------------------------------
    def ran(self, what: Launches, times: tuple[int, int], kernels: Callable[[], list[int]]) -> None:
        """Add a run to the group of its schedule; the first ones are also recorded kernel by kernel."""
        start, end = times
        group = self._group_of.get(id(what.items)) or self._group(what)
        group.runs += 1
        group.nanoseconds += end - start
        self.running += end - start
        self.run_count += 1
        nbytes = GlobalCounters.mem_used + group.between
        if nbytes != self.memory.latest:
            self._memory_changed(nbytes, start, group)
        if group.runs <= DETAILED_RUNS or self.run_count < MOST_SPANS // 4:
            self._details(group, start, end, kernels)

    def _group(self, what: Launches) -> RunGroup:
        replay = not hasattr(what, "segments")
        use = getattr(what, "memory", None)
        between = use.between if use else 0
        group = RunGroup(what.items, list(what.programs), what.costs, what.stopwatches(), replay, between)
        self._group_of[id(what.items)] = group
        self.groups.append(group)
        return group

    def _details(self, group: RunGroup, start: int, end: int, kernels: Callable[[], list[int]]) -> None:
        self._span(TimeSpan("run", start, end - start, group.items[0] if group.items else None, len(group.items)))
        if group.runs > DETAILED_RUNS:
            return
        measured = kernels()
        group.measured_runs += 1
        group.measured = [a + b for a, b in zip(group.measured or [0] * len(measured), measured)]
        for item, nanoseconds in zip(group.items, measured):
            self._span(TimeSpan("kernel", start, nanoseconds, item))
            start += nanoseconds

    def _span(self, span: TimeSpan) -> None:
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)

    def _memory_changed(self, nbytes: int, now: int, group: RunGroup) -> None:
        memory = self.memory
        memory.sample(now, nbytes, self.run_count)
        if nbytes > memory.peak:
            memory.peak, memory.peak_time = nbytes, now
            if nbytes > memory.listed * A_NEW_PEAK:
                self._list_values(nbytes, group)

    def _list_values(self, nbytes: int, group: RunGroup) -> None:
        memory = self.memory
        memory.listed = nbytes
        memory.values = [LiveValue(b.nbytes, b.shape, b.dtype.name, b.place) for b in live_buffers()]
        graphs = {id(g): g for item in group.items if (g := self._graph_of.get(id(item))) is not None}
        between = max((g.between for g in graphs.values()), key=lambda found: sum(v.nbytes for v in found), default=[])
        memory.values += between
        rest = group.between - sum(v.nbytes for v in between)
        if rest > 0:
            memory.values.append(LiveValue(rest, (), "", None, True))


def _with_initial(passes: list[PassText], sinks: Sequence[UOp]) -> list[PassText]:
    """Return the passes, preceded by the graph as it was before them."""
    text, links = nodes_text(sinks)
    if passes and passes[0].text == text:
        passes[0].text = None
    return [PassText("graph", "graph", "The graph as the program made it.", "graph/uop.py", text, links), *passes]


def _between(ready: Any, nodes: Sequence[UOp]) -> tuple[list[LiveValue], list[int]]:
    """Return the intermediate values of a schedule at the kernel where they are largest, and their bytes at each
    kernel."""
    slots, items = ready.planned.slots, ready.items
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, item in enumerate(items):
        for n, slot in enumerate(item.slots):
            slot = slots[slot].whole if slots[slot].whole is not None else slot
            if n < item.results:
                first.setdefault(slot, at)
            last[slot] = at
    inner = [slot for slot in first if slot not in ready.planned.sinks]
    live = [sum(slots[s].nbytes for s in inner if first[s] <= at <= last[s]) for at in range(len(items))] \
        if len(inner) * len(items) < 1_000_000 else []
    worst = max(range(len(live)), key=live.__getitem__, default=-1)
    return [LiveValue(slots[s].nbytes, tuple(slots[s].shape), slots[s].dtype.name,
                      nodes[s].place if s < len(nodes) else None, True)
            for s in inner if first[s] <= worst <= last[s]], live
