"""Compute lazy values. In: UOps. Out: UOps whose values are in memory.

What happens to a graph:
    known        replace nodes whose values are in memory by these values    glassgrad/engine/in_place.py
    in place     write a part of a value that has no other readers there     glassgrad/engine/in_place.py
    normalize    lift out buffers and numbers; the rest is the key of the schedule cache
    compile      the passes of glassgrad/compiler/pipeline.py: a schedule, and each distinct kernel once
    plan         one arena for the values between kernels                    glassgrad/engine/memory_plan.py
    run          bind addresses, launch the kernels                          glassgrad/engine/compiled_schedule.py
A graph whose structure was seen before skips compile and plan.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.base.fork_locks import held_at_fork
from glassgrad.base.settings import State, current_state, kernel_mode, settings
from glassgrad.compiler.graph import DType, Param, Shape, UOp, ops as o
from glassgrad.compiler.graph.symbolic import Symbol, upper_bound
from glassgrad.compiler.pipeline import make_schedule
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.compiler.schedule.kernels import Item, Schedule, Slot
from glassgrad.compiler.schedule.recurrent_steps import unrolled
from glassgrad.engine.capture import Record, Trace, recording
from glassgrad.engine.changing_sizes.equal_steps import LEAST_STEPS
from glassgrad.engine.changing_sizes.general_graph import ServedGraph, SizeFormulas
from glassgrad.engine.changing_sizes.growing_steps import LEAST_NODES, growing_steps, over
from glassgrad.engine.changing_sizes.kept_values import KeptRows, ScheduledGraph, keep, note
from glassgrad.engine.changing_sizes.python_loops import KnownLoops
from glassgrad.engine.changing_sizes.recurrent_schedule import RecurrentSchedule
from glassgrad.engine.changing_sizes.size_families import SizeFamilies
from glassgrad.engine.changing_sizes.size_formulas import Formula
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.counters import GlobalCounters
from glassgrad.engine.host_launches import UserCall
from glassgrad.engine.in_place import free_sources, piece_of, with_known_values
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.engine.observer import observers, prepare_observed
from glassgrad.engine.registry import registry
from glassgrad.engine.schedule_key import NormalizedGraph, name_on_disk, normalize, scalar_bytes, with_params
from glassgrad.runtime.devices import Device
from glassgrad.runtime.schedule_cache import is_cacheable, load_schedule, store_schedule

_VIEWS = frozenset((o.RESHAPE, o.PERMUTE, o.EXPAND, o.FLIP, o.DETACH))
_RESHAPES = frozenset((o.RESHAPE, o.DETACH))
_IN_MEMORY = frozenset((*o.MOVEMENT, o.BUFFER))       # ops of nodes that may be views of memory
_BUFFER, _PERMUTE = o.BUFFER, o.PERMUTE
_NONE: Collection[UOp] = ()
_REDUCING = frozenset((*o.REDUCE, o.FORMULA))         # a formula may have a reduction inside
_MOST_SCHEDULES = 1024
_running = held_at_fork(threading.RLock(), "schedule")      # the launches of a schedule are bound to one run at a time
_compiling = held_at_fork(threading.RLock(), "compilation")      # the first compilations import the compiler


def realize(nodes: Sequence[UOp], device: str | None = None, state: State | None = None,
            recompute: bool = False) -> list[UOp]:
    """Compute all of these nodes together, and return each as a view of a BUFFER. `state` are the current settings, if
    the caller has them. Values that are already in memory are computed again only with `recompute`."""
    device, state, trace = device or Device.DEFAULT, state or current_state(), recording()
    mode = state.kernel_mode, device, Device.registered
    original: dict[UOp, UOp] = {}           # where the graph is rebuilt: {new node: the program's node it stands for}
    if recompute:
        normal = normalize(_sinks(nodes))
    else:
        nodes, normal = _graph_to_compute(nodes, device, trace, original)
        if len(normal.order) >= LEAST_NODES and trace is None and (steps := _steps(normal, mode, state)):
            return _in_steps(nodes, steps, device, state)
    stored: dict[UOp, UOp] = {}
    free = free_sources(normal.sinks) if trace is None else _NONE
    if free:
        stored = _write_pieces(normal.sinks, free, mode, state)
        normal = normalize([s for s in normal.sinks if s not in stored])
    sinks = normal.sinks
    if sinks:
        results = _run(nodes, normal, mode, state, trace, free, None if free or recompute else original)
        if sinks == nodes:
            return results
        stored.update(zip(sinks, results))
    return [_rebased(n, stored) for n in nodes]


def _steps(normal: NormalizedGraph, mode: _Mode, state: State) -> list[list[UOp]]:
    """Return the steps of a graph that has no schedule yet and that is computed step by step; empty for others."""
    return growing_steps(normal) if state.dynamic and (mode, normal.key) not in _known.schedules else []


def _in_steps(nodes: Sequence[UOp], steps: Sequence[Sequence[UOp]], device: str, state: State) -> list[UOp]:
    """Compute the values of a graph step by step, each from those before."""
    stored: dict[UOp, UOp] = {}
    for step in steps:
        stored.update(zip(step, realize(over(step, stored), device, state)))
    return [_rebased(n, stored) for n in nodes]


def _run(nodes: Sequence[UOp], normal: NormalizedGraph, mode: _Mode, state: State, trace: Trace | None,
         free: Collection[UOp], original: dict[UOp, UOp] | None) -> list[UOp]:
    """Find the schedule of a graph, run it, and return the values of its sinks; the nodes are views of these. With
    `original` (see `_find_schedule`), also keep values that are likely to be needed again."""
    sinks = normal.sinks
    normal, compiled, values, kept, served = _find_schedule(
        normal, mode, state.dynamic and (trace is None or trace.any_size), original if trace is None else None)
    # a value that the caller reads through a reshape gets a buffer of that shape, so that the node is a BUFFER
    shapes = None if sinks == nodes or normal.symbols else {
        below_reshapes(node): node.shape for node in reversed(nodes) if not node.symbolic}
    with _running:
        results = compiled.run(normal, state, values, free, shapes=shapes)
    if trace is not None:
        trace.records.append(Record(compiled, normal, results, served))
    if normal.symbols:
        # memory is allocated for the upper bounds of symbolic sizes
        results = [made if made.shape == sink.shape else made.shrink([(0, n) for n in sink.shape])
                   for sink, made in zip(normal.sinks, results)]
    if kept is not None and original is not None:
        keep(kept, normal, results[len(sinks):], original)
    return results[:len(sinks)]


def _graph_to_compute(nodes: Sequence[UOp], device: str, trace: Trace | None,
                      original: dict[UOp, UOp]) -> tuple[Sequence[UOp], NormalizedGraph]:
    """Replace known values in the nodes by their memory; return the nodes, and the graph that is left to compute. Fill
    `original`."""
    if trace is not None or not registry.kept.rows:          # below kept values, graphs may be long: do not walk them
        normal = normalize(_sinks(nodes))
        if trace is None:
            known = registry.values.rows
            if not known or known.keys().isdisjoint(map(id, normal.order)):
                return nodes, normal
        elif trace.values.keys().isdisjoint(normal.order):
            return nodes, normal            # a trace uses only its own values: a replay would reuse earlier ones
    nodes = with_known_values(nodes, device, original)
    return nodes, normalize(_sinks(nodes))


def _write_pieces(sinks: Collection[UOp], free: Collection[UOp], mode: _Mode, state: State) -> dict[UOp, UOp]:
    """Compute, in place, the sinks that replace one contiguous piece of a `free` buffer; return each with its
    BUFFER."""
    stored: dict[UOp, UOp] = {}
    for sink in sinks:
        piece = piece_of(sink) if sink.op is o.WHERE and sink.src[2] in free else None
        if piece is not None:
            normal, compiled, values, _, _ = _find_schedule(normalize([piece[0]]), mode, state.dynamic)
            with _running:
                compiled.run(normal, state, values, into=piece[1])
            stored[sink] = registry.rewritten(sink.src[2])
    return stored


def schedule_of(nodes: Sequence[UOp], device: str) -> list[Item]:
    """Return the kernels that realizing these nodes would run, without running them."""
    sinks = _sinks(nodes)
    if not sinks:
        return []
    normal = normalize(sinks)
    normal = _with_recurrences(normal) or normal
    with _compiling:
        planned = _unrolled(make_schedule(*with_params(normal, ()), device, _stores_scores, _limits(device)))
    return [item for item in planned.items if planned.runs(item)]


def memory_of(nodes: Sequence[UOp], device: str) -> MemoryUse:
    """Return the memory that realizing these nodes would need. Compiles (kernels may need memory for packed factors);
    runs nothing."""
    sinks = _sinks(nodes)
    if not sinks:
        return MemoryUse(0, 0, 0, 0)
    return _find_schedule(normalize(sinks), (kernel_mode(), device, Device.registered)).compiled.memory


def _sinks(nodes: Sequence[UOp]) -> list[UOp]:
    """Return what must be computed for these nodes, each once: the values below their views that are not in
    memory yet."""
    found: dict[UOp, None] = {}
    for node in nodes:
        while node.op in _VIEWS and (node.op is not _PERMUTE or not _is_permuted_lookup(node)):
            node = node.src[0]
        if node.op not in _IN_MEMORY or node.base.op is not _BUFFER:
            found[node] = None
    return [*found]


def below_reshapes(node: UOp) -> UOp:
    """Return the node below reshapes and detaches."""
    return node.below(_RESHAPES)


def _is_permuted_lookup(view: UOp) -> bool:
    """Return whether a view is stored itself, rather than the value below it: a PERMUTE of a GATHER, whose first axes
    are those that were looked up, is stored in the permuted order."""
    return view.op is o.PERMUTE and view.src[0].op is o.GATHER


def _rebased(node: UOp, stored: dict[UOp, UOp]) -> UOp:
    """Rebuild a node's views over its stored value; return the node itself if it was in memory before."""
    out = stored.get(below_reshapes(node))
    if out is not None and out.shape == node.shape and not node.symbolic:
        return out
    views, below = [], node
    while below.op in _VIEWS and not _is_permuted_lookup(below):
        views.append(below)
        below = below.src[0]
    out = stored.get(below)
    if out is None:
        return node
    if not node.symbolic:
        out = out.reshape(below.shape)
    for view in reversed(views):
        out = out if view.op is o.DETACH else UOp(view.op, view.dtype, (out,), view.arg, view.place)
    return out


def is_result(node: UOp) -> bool:
    """Return whether a node is the used part of a buffer that was allocated for the upper bounds of symbolic
    lengths."""
    return node.op is o.SHRINK and node.symbolic and node.src[0].op is o.BUFFER and all(
        bound == (0, n) for bound, n in zip(node.arg.bounds, node.shape)) and \
        node.src[0].shape == tuple(map(upper_bound, node.shape))


def run_call(call: UserCall, results: Sequence[tuple[Shape, DType]], inputs: Sequence[UOp], device: str) -> list[UOp]:
    """Launch a user's function on buffers, with new buffers for its results. A trace records it as a schedule."""
    sizes = [*[(n.shape, n.dtype) for n in inputs], *results]
    slots = [Slot(shape, dtype, device) for shape, dtype in sizes]
    made = range(len(inputs), len(slots))
    order = (*made, *range(len(inputs)))                    # results first
    params = tuple(UOp(o.PARAM, slots[slot].dtype, (), Param(i, slots[slot].shape, False, device))
                   for i, slot in enumerate(order))
    dtype, node = results[0][1], UOp(o.CALL, results[0][1], tuple(inputs), call)
    item = Item(UOp(o.CALL, dtype, params, call), order, len(results), device, ("a kernel of the user's own",),
                (node.line,) if node.line is not None else ())
    compiled = CompiledSchedule(Schedule([item], slots, len(inputs), sinks=list(made)), (), len(inputs))
    key = (*[(o.BUFFER, *size) for size in sizes[:len(inputs)]], (o.CALL, call, *results))
    normal = NormalizedGraph(key, [*inputs, node], [node] * len(results), list(inputs),
                             [n.arg.address for n in inputs], [], [], [])
    found = compiled.run(normal, current_state())
    trace = recording()
    if trace is not None:
        trace.records.append(Record(compiled, normal, found))
    return found


# -- finding a schedule again --------------------------------------------------------------------------------
@dataclass(eq=False)
class _ScheduleVariants:
    """The schedules of one graph structure: one for the constants it was first seen with, and one that takes the
    constants that were seen to change as arguments."""
    constants: list[UOp]         # equal numbers are one node, to the bit
    first: CompiledSchedule
    varying: tuple[int, ...] = ()
    general: CompiledSchedule | None = None

    def for_constants(self, normal: NormalizedGraph, device: str) -> CompiledSchedule:
        """Return the schedule for a graph whose constants differ from those of the first schedule."""
        changed = tuple(i for i, (new, old) in enumerate(zip(normal.constants, self.constants))
                        if i in self.varying or scalar_bytes(new.arg, new.dtype) != scalar_bytes(old.arg, new.dtype))
        if self.general is None or changed != self.varying:
            self.varying, self.general = changed, _compile(normal, changed, device)
        return self.general


# What a schedule depends on besides its graph: the settings that decide about kernels, the device (for its limits of
# fusion, too), and the version of the table of devices
_Mode = tuple[Any, str, int]


class _KnownGraphs:
    """Schedules and other results that were computed for earlier graphs."""

    def __init__(self, uses_disk: bool = True):
        self.schedules: dict[tuple[_Mode, Any], _ScheduleVariants | ServedGraph] = {}      # by the graph's key
        self.kept_rows, self.loops = KeptRows(_MOST_SCHEDULES), KnownLoops(_MOST_SCHEDULES)
        self.size_families = SizeFamilies(_MOST_SCHEDULES)
        self.uses_disk = uses_disk             # whether schedules are read from the disk cache, and written there


_known = _KnownGraphs()


@contextmanager
def forgotten_schedules() -> Iterator[None]:
    """Make graphs be scheduled anew inside the block, so that observers see it; compiled kernels are still reused."""
    global _known
    before, _known = _known, _KnownGraphs(uses_disk=False)
    try:
        yield
    finally:
        _known = before


class _Found(NamedTuple):
    """A compiled schedule, and what to run it with."""
    normal: NormalizedGraph                 # the graph that it computes: may have recurrences in place of Python loops
    compiled: CompiledSchedule
    values: tuple[int, ...]                 # of its variables
    kept: ScheduledGraph | None = None      # set if the run keeps values for later graphs: the last sinks
    served: ServedGraph | None = None       # set if its kernels serve all sizes


def _find_schedule(normal: NormalizedGraph, mode: _Mode, any_size: bool = False,
                   original: Mapping[UOp, UOp] | None = None) -> _Found:
    """Return the compiled schedule of a graph; one is made for each new structure, and for new constants. With
    `any_size`, it may be a schedule that serves graphs of other sizes too. With `original` ({new node: the node it
    stands for}, where the graph was rebuilt), the schedule may keep values for later graphs."""
    variants = _known.schedules.get((mode, normal.key))
    kept = None
    if type(variants) is ServedGraph:
        if any_size and not registry.kept.rows and variants.serves(normal):
            return _served(normal, variants)
        variants = None
    if original is not None and (variants is None or registry.kept.rows):
        kept = _known.kept_rows.of(normal, original, variants is None)
        if kept is not None:
            normal = normal.with_sinks(kept.kept)
            variants = _known.schedules.get((mode, normal.key))
    if type(variants) is _ScheduleVariants:
        same = normal.constants == variants.constants
        compiled = variants.first if same else variants.for_constants(normal, mode[1])
        return _Found(normal, compiled, normal.values if normal.symbols else (), kept)
    return _new_schedule(normal, mode, any_size, original)._replace(kept=kept)


def _new_schedule(normal: NormalizedGraph, mode: _Mode, any_size: bool, original: Mapping[UOp, UOp] | None) -> _Found:
    """Make the schedule of a graph of new structure: with recurrences, for loops of any length; else one that serves
    all sizes of a family of graphs; else one for its own sizes."""
    of_any_length = _with_recurrences(normal)
    if of_any_length is None and any_size and not normal.symbols:
        served = _known.size_families.schedule_for(normal, mode, _compile_for_all_sizes)
        if served is not None:
            _known.size_families.keep(_known.schedules, (mode, normal.key), served)
            return _served(normal, served)
    if original is not None:
        note(normal, original)
    if of_any_length is not None:
        return _find_schedule(of_any_length, mode, any_size)
    schedules = _known.schedules
    if len(schedules) >= _MOST_SCHEDULES:
        schedules.pop(next(iter(schedules)))
    compiled = _compile(normal, (), mode[1])
    schedules[mode, normal.key] = _ScheduleVariants(normal.constants, compiled)
    return _Found(normal, compiled, normal.values)


def _served(normal: NormalizedGraph, served: ServedGraph) -> _Found:
    return _Found(normal, served.general.compiled.for_values(served.values), served.values, None, served)


def _with_recurrences(normal: NormalizedGraph) -> NormalizedGraph | None:
    """Replace loops that were written in Python by recurrences; return None if there are none."""
    reductions = sum([n.op in _REDUCING for n in normal.order])        # each step of a loop has one
    if not settings.DYNAMIC or settings.NOOPT or normal.symbols or reductions < LEAST_STEPS:
        return None
    sinks = _known.loops.found(normal)
    return None if sinks is None else normalize(sinks)


def _compile_for_all_sizes(normal: NormalizedGraph, sizes: SizeFormulas, mode: _Mode) -> \
        tuple[CompiledSchedule, tuple[Sequence[Symbol], Sequence[Formula]]]:
    """Compile a schedule that serves all sizes of a family of graphs; return it with its variables and a formula for
    each size."""
    device = str.__str__(mode[1])                    # as in `_compile`
    variables: tuple[Sequence[Symbol], Sequence[Formula]]

    def make() -> tuple[Schedule, Any]:
        symbols, graph = sizes.graph(normal)
        planned = make_schedule(graph.sinks, graph.params, device, _stores_scores, _limits(device))
        return planned, (symbols, graph.formulas)

    def schedule() -> Schedule:
        nonlocal variables
        planned, variables = _cached_schedule(normal, sizes.scalars, device, (mode[0], device, sizes), make)
        return planned

    return _prepared(normal, schedule, sizes.scalars), variables


def _limits(device: str) -> FusionLimits:
    """Return the limits of fusion that pay on a device; those of CPUs if it has no target."""
    target = getattr(Device[device], "target", None)
    return CPU_LIMITS if target is None else target.fusion


def _stores_scores(device: str, dtype: DType, width: int) -> str | None:
    """Say why a device should store the scores of a softmax in memory, for factors of this type; None if it
    should not."""
    target = getattr(Device[device], "target", None)
    return None if target is None else target.why_scores_are_stored(dtype, width)


def _compile(normal: NormalizedGraph, scalars: tuple[int, ...], device: str) -> CompiledSchedule:
    device = str.__str__(device)                     # a plain str: the device names of an adapter may be a subclass

    def make() -> tuple[Schedule, None]:
        return make_schedule(*with_params(normal, scalars), device, _stores_scores, _limits(device)), None

    parts = kernel_mode(), scalars
    return _prepared(normal, lambda: _unrolled(_cached_schedule(normal, scalars, device, parts, make)[0]), scalars)


def _unrolled(planned: Schedule) -> Schedule:
    return unrolled(planned) if planned.has_recurrence else planned


def _prepared(normal: NormalizedGraph, schedule: Callable[[], Schedule], scalars: tuple[int, ...]) -> CompiledSchedule:
    """Schedule and compile a graph, with Python's garbage collector switched off: a compilation makes many nodes and
    few dead cycles, and going through all the nodes again and again takes an eighth of its time."""
    def compiled(planned: Schedule) -> CompiledSchedule:
        kind = RecurrentSchedule if planned.has_recurrence else CompiledSchedule
        return kind(planned, scalars, len(normal.buffers))

    with _compiling:
        GlobalCounters.schedules += 1
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            if settings.VIZ or observers:
                return prepare_observed(normal, schedule, compiled)
            return compiled(schedule())
        finally:
            if was_enabled:
                gc.enable()


def _cached_schedule(normal: NormalizedGraph, scalars: tuple[int, ...], device: str, parts: tuple[Any, ...],
                  make: Callable[[], tuple[Schedule, Any]]) -> tuple[Schedule, Any]:
    """Read a schedule, and the second value that `make` returned with it, from the disk cache, or make and store them.
    `parts` are what the schedule depends on besides the graph and its devices."""
    if not settings.CACHE or not _known.uses_disk or observers or not is_cacheable(normal.order):
        return make()
    devices = {device, *[n.device or device for n in normal.buffers]}
    name = name_on_disk(normal, scalars, (*parts, _limits(device), *map(_matrix_units, sorted(devices))))
    order = list(normal.order)
    found = load_schedule(name, order)
    if found is None:
        found = make()
        store_schedule(name, *found, order)
    return found


def _matrix_units(device: str) -> tuple[Any, ...]:
    """Return what `_stores_scores` depends on of a device's target."""
    target = getattr(Device[device], "target", None)
    return (device,) if target is None else (device, target.groups, *[unit.name for unit in target.units])
