"""Make lazy values real. In: UOps. Out: UOps whose values are in memory.

What happens to a graph:
    in place     a part of a value without other readers is written there    glassgrad/engine/in_place.py
    normalize    lift buffers and numbers out of it; the rest is the key of the schedule cache
    compile      the passes of glassgrad/compiler/pipeline.py: a schedule, and each distinct kernel once
    plan         one arena for the values between kernels                    glassgrad/engine/memory_plan.py
    run          bind addresses, launch the kernels                          glassgrad/engine/compiled_schedule.py
A graph of known structure skips compile and plan.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.base.errors import GlassgradError
from glassgrad.base.fork_locks import held_at_fork
from glassgrad.base.settings import State, current_state, kernel_mode, settings
from glassgrad.compiler.graph import DType, Param, Shape, UOp, ops as o
from glassgrad.compiler.graph.symbolic import Symbol, most
from glassgrad.compiler.pipeline import make_schedule
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.compiler.schedule.kernels import Item, Schedule, Slot
from glassgrad.compiler.schedule.recurrent_steps import unrolled
from glassgrad.engine.capture import Record, recording
from glassgrad.engine.changing_sizes.equal_steps import LEAST_STEPS
from glassgrad.engine.changing_sizes.kept_values import KeptRows, ScheduledGraph, keep, note
from glassgrad.engine.changing_sizes.python_loops import KnownLoops
from glassgrad.engine.changing_sizes.recurrent_schedule import RecurrentSchedule
from glassgrad.engine.changing_sizes.size_families import GeneralGraph, SizeFamilies, SizeFamily, SizeFormulas
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.counters import GlobalCounters
from glassgrad.engine.debug_report import report_sizes
from glassgrad.engine.host_launches import UserCall
from glassgrad.engine.in_place import free_sources, piece_of, with_known_values
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.engine.observer import observers, prepare_observed
from glassgrad.engine.registry import registry
from glassgrad.engine.schedule_key import NormalizedGraph, name_on_disk, normalize, scalar_bytes, with_params
from glassgrad.runtime.devices import Device
from glassgrad.runtime.schedule_cache import can_be_kept, keep_schedule, kept_schedule

_VIEWS = frozenset((o.RESHAPE, o.PERMUTE, o.EXPAND, o.FLIP, o.DETACH))
_RESHAPES = frozenset((o.RESHAPE, o.DETACH))
_IN_MEMORY = frozenset((*o.MOVEMENT, o.BUFFER))       # what may be no more than memory
_BUFFER, _PERMUTE, _WHERE = o.BUFFER, o.PERMUTE, o.WHERE
_NONE: Collection[UOp] = ()
_REDUCING = frozenset((*o.REDUCE, o.FORMULA))         # a formula may have a reduction inside
_MOST_SCHEDULES = 1024
_running = held_at_fork(threading.RLock(), "schedule")      # a schedule's launches are bound to one run's addresses


def realize(nodes: Sequence[UOp], device: str | None = None, state: State | None = None,
            recompute: bool = False) -> list[UOp]:
    """Compute all of these nodes together, and return each as a view of a BUFFER. `state` are the current settings,
    if the caller has them. Values that are known are not computed again, unless `recompute`."""
    device = device or Device.DEFAULT
    trace, original = recording(), dict[UOp, UOp]()
    if trace is None and registry.kept.rows and not recompute:        # what is below kept values may be long
        nodes = with_known_values(nodes, device, original)
    normal = normalize(_sinks(nodes))
    # in a trace only its own values count as known: a replay would reuse a value from before
    if original:
        has_known_values = False
    elif trace is None:
        known = registry.values.rows
        has_known_values = bool(known) and not known.keys().isdisjoint(map(id, normal.order))
    else:
        has_known_values = not trace.values.keys().isdisjoint(normal.order)
    if has_known_values and not recompute:
        nodes = with_known_values(nodes, device, original)
        normal = normalize(_sinks(nodes))
    stored: dict[UOp, UOp] = {}
    sinks, free = normal.sinks, _NONE
    for sink in sinks if trace is None else _NONE:
        if sink.op is _WHERE:                             # a part of a value, perhaps
            free = free_sources([s for s in sinks if s.op is _WHERE], sinks)
            break
    if free:
        stored = _write_pieces([s for s in sinks if s.op is _WHERE and s.src[2] in free], device)
        normal = normalize([s for s in sinks if s not in stored])
        sinks = normal.sinks
    if sinks:
        state = state or current_state()
        may_keep = trace is None and not free and not recompute
        normal, compiled, values, graph = _find_schedule(normal, device, trace is None or trace.any_size, state,
                                                         original if may_keep else None)
        # the buffer of a value that is only reshaped gets that shape, so that the node is a BUFFER
        are_sinks = sinks == nodes
        shapes = None if are_sinks or values else {
            below_reshapes(node): node.shape for node in reversed(nodes) if not node.symbolic}
        with _running:
            results = compiled.run(normal, state, values, free, shapes=shapes)
        if trace is not None:
            trace.records.append(Record(compiled, normal, results))
        if values:
            # memory is large enough for the longest of symbolic sizes
            results = [made if made.shape == sink.shape else made.shrink([(0, n) for n in sink.shape])
                       for sink, made in zip(normal.sinks, results)]
        if graph is not None:
            keep(graph, normal, results[len(sinks):], original)
            results = results[:len(sinks)]
        if are_sinks:
            return results
        stored.update(zip(sinks, results))
    return [_rebased(n, stored) for n in nodes]


def _write_pieces(sinks: Sequence[UOp], device: str) -> dict[UOp, UOp]:
    """Compute the sinks that are a buffer with one contiguous piece replaced, in place; return each with its BUFFER."""
    stored: dict[UOp, UOp] = {}
    for sink in sinks:
        piece = piece_of(sink)
        if piece is not None:
            normal, state = normalize([piece[0]]), current_state()
            normal, compiled, values, _ = _find_schedule(normal, device, True, state)
            with _running:
                compiled.run(normal, state, values, into=piece[1])
            stored[sink] = registry.rewritten(sink.src[2])
    return stored


def schedule_of(nodes: Sequence[UOp], device: str) -> list[Item]:
    """The kernels that realizing these nodes would run; runs nothing."""
    sinks = _sinks(nodes)
    if not sinks:
        return []
    normal = normalize(sinks)
    normal = _with_recurrences(normal) or normal
    planned = _unrolled(make_schedule(*with_params(normal, ()), device, _stores_scores, _limits(device)))
    return [item for item in planned.items if planned.runs(item)]


def memory_of(nodes: Sequence[UOp], device: str) -> MemoryUse:
    """The memory that realizing these nodes would need; compiles, because kernels pack factors, and runs nothing."""
    sinks = _sinks(nodes)
    if not sinks:
        return MemoryUse(0, 0, 0, 0)
    return _find_schedule(normalize(sinks), device, False, current_state()).compiled.memory


def _sinks(nodes: Sequence[UOp]) -> list[UOp]:
    """What must be computed for these nodes, each once: the values below their views that are not in memory yet."""
    found: dict[UOp, None] = {}
    for node in nodes:
        while node.op in _VIEWS and (node.op is not _PERMUTE or not _is_permuted_lookup(node)):
            node = node.src[0]
        if node.op not in _IN_MEMORY or node.base.op is not _BUFFER:
            found[node] = None
    return [*found]


def below_reshapes(node: UOp) -> UOp:
    """What a node shows, below reshapes and detaches."""
    return node.below(_RESHAPES)


def _is_permuted_lookup(view: UOp) -> bool:
    """Whether a view is stored as it is, not as the value below it: a GATHER has the axes that were looked up first,
    and is stored in the order that was asked for."""
    return view.op is o.PERMUTE and view.src[0].op is o.GATHER


def _rebased(node: UOp, stored: dict[UOp, UOp]) -> UOp:
    """The node's views over its stored value; the node, if it was in memory before."""
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
    """Whether a node is the used part of a buffer allocated for the upper bounds of its symbolic lengths."""
    return node.op is o.SHRINK and node.symbolic and node.src[0].op is o.BUFFER and all(
        bound == (0, n) for bound, n in zip(node.arg.bounds, node.shape)) and \
        node.src[0].shape == tuple(map(most, node.shape))


def run_call(call: UserCall, results: Sequence[tuple[Shape, DType]], inputs: Sequence[UOp], device: str) -> list[UOp]:
    """Launch a user's function on buffers, with new buffers for its results; a trace records it as a schedule."""
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
    """The schedules of one structure: one for the constants it was first seen with, and one that takes as arguments
    the constants that were seen to change."""
    constants: list[UOp]         # equal numbers are one node, to the bit
    first: CompiledSchedule
    varying: tuple[int, ...] = ()
    general: CompiledSchedule | None = None

    def fitting(self, normal: NormalizedGraph, device: str) -> CompiledSchedule:
        """The schedule for the numbers of this graph."""
        if normal.constants == self.constants:
            return self.first
        changed = tuple(i for i, (new, old) in enumerate(zip(normal.constants, self.constants))
                        if i in self.varying or scalar_bytes(new.arg, new.dtype) != scalar_bytes(old.arg, new.dtype))
        if self.general is None or changed != self.varying:
            self.varying, self.general = changed, _compile(normal, changed, device)
        return self.general


_Mode = tuple[Any, str, int]      # settings that decide about kernels, a device, the version of the table of devices
_schedules: dict[tuple[_Mode, Any], _ScheduleVariants] = {}      # by the graph's key
_kept_rows = KeptRows(_MOST_SCHEDULES)
_size_families = SizeFamilies(_MOST_SCHEDULES)
_loops = KnownLoops(_MOST_SCHEDULES)
_ignore_disk = False             # whether schedules on disk are not used


@contextmanager
def forgotten_schedules() -> Iterator[None]:
    """Inside, graphs are scheduled anew, so that observers see it; compiled kernels are still found again."""
    global _schedules, _kept_rows, _size_families, _ignore_disk
    before = _schedules, _kept_rows, _size_families, _ignore_disk
    _schedules, _kept_rows, _size_families = {}, KeptRows(_MOST_SCHEDULES), SizeFamilies(_MOST_SCHEDULES)
    _ignore_disk = True
    try:
        yield
    finally:
        _schedules, _kept_rows, _size_families, _ignore_disk = before


class _Found(NamedTuple):
    """How a graph is computed."""
    normal: NormalizedGraph          # what to run the schedule with: loops in Python may be recurrences in it
    compiled: CompiledSchedule
    values: tuple[int, ...]          # of its variables
    graph: ScheduledGraph | None     # if it keeps values, which are then the last sinks


def _find_schedule(normal: NormalizedGraph, device: str, any_size: bool, state: State,
                   original: Mapping[UOp, UOp] | None = None) -> _Found:
    """The compiled schedule of a graph, made once for its structure and constants. With `any_size`, it may be one that
    serves graphs of other sizes too. `state` are the settings. With `original` (the node that each node stands for,
    where the graph was rebuilt), it may keep values."""
    # what the names of devices mean is a part: a plan runs on the device it was made for, within its limits of fusion,
    # which an open device does not change
    mode: _Mode = (state.kernel_mode, device, Device.registered)
    variants, graph = _schedules.get((mode, normal.key)), None
    if original is not None:
        graph = _kept_rows.of(normal, original, variants is None)
        if graph is not None:
            normal = normal.with_sinks(graph.kept)
            variants = _schedules.get((mode, normal.key))
    if variants is None:
        of_any_length = _with_recurrences(normal)
        if of_any_length is None and any_size:
            found = _find_general(normal, mode)
            if found is not None:
                return _Found(normal, *found, graph)
        if original is not None:
            note(normal, original)
        if of_any_length is not None:
            return _find_schedule(of_any_length, device, any_size, state)._replace(graph=graph)
        if len(_schedules) >= _MOST_SCHEDULES:
            _schedules.pop(next(iter(_schedules)))
        variants = _schedules[mode, normal.key] = _ScheduleVariants(normal.constants, _compile(normal, (), device))
    return _Found(normal, variants.fitting(normal, device), normal.values if normal.symbols else (), graph)


def _with_recurrences(normal: NormalizedGraph) -> NormalizedGraph | None:
    """The graph with recurrences in the place of loops in Python; None if there are none."""
    reductions = sum([n.op in _REDUCING for n in normal.order])        # each step of a loop has one
    if not settings.DYNAMIC or settings.NOOPT or normal.symbols or reductions < LEAST_STEPS:
        return None
    sinks = _loops.found(normal)
    return None if sinks is None else normalize(sinks)


def _find_general(normal: NormalizedGraph, mode: _Mode) -> tuple[CompiledSchedule, tuple[int, ...]] | None:
    """The schedule for changing sizes that a graph fits, and the size; None where it is compiled for its own sizes:
    too few sizes were seen yet, no variable fits them, or this size comes so often that its own kernels pay."""
    if not settings.DYNAMIC or normal.symbols:
        return None
    found = _size_families.find(normal, mode)
    if found is None:
        family = _size_families.family(normal, mode)
        sizes = None if family.given_up else family.formulas(normal)
        found = None if sizes is None else _compile_general(normal, mode, family, sizes)
        if found is None:
            return None
    general, value = found
    if general.gets_own_kernels(value):
        return None
    return general.compiled.for_values((value,)), (value,)


def _compile_general(normal: NormalizedGraph, mode: _Mode, family: SizeFamily,
                     sizes: SizeFormulas) -> tuple[GeneralGraph, int] | None:
    """Kernels for all sizes, and this graph's value; None where that is refused."""
    made: list[tuple[Symbol, Sequence[Any]]] = []       # the variable, and a formula for each size
    device = str.__str__(mode[1])                    # as in `_compile`

    def make() -> tuple[Schedule, Any]:
        symbol, graph = sizes.graph(normal)
        planned = make_schedule(graph.sinks, graph.params, device, _stores_scores, _limits(device))
        return planned, (symbol, graph.formulas)

    def schedule() -> Schedule:
        planned, second = _kept_or_made(normal, sizes.scalars, device, (mode[0], device, sizes), make)
        made.append(second)
        return planned

    try:
        compiled = _prepared(normal, schedule, sizes.scalars)
    except GlassgradError as why:
        family.refuse(sizes, str(why).splitlines()[0])
        return None
    general = GeneralGraph(normal, family.parts, sizes, *made[0], compiled)
    _size_families.add(normal, mode, family, general)
    low, high = general.symbol.low, general.symbol.high
    report_sizes(f"a size changes: kernels for all sizes from {low} to {high}, made at {normal.sinks[0].line}")
    value = general.value_for(normal)
    return None if value is None else (general, value)


def _limits(device: str) -> FusionLimits:
    """What pays on a device; where it has no target, as on a CPU."""
    target = getattr(Device[device], "target", None)
    return CPU_LIMITS if target is None else target.fusion


def _stores_scores(device: str, dtype: DType, width: int) -> str | None:
    """Why a device should store the scores of a softmax in memory, for factors of this type; None if it should not."""
    target = getattr(Device[device], "target", None)
    return None if target is None else target.why_scores_are_stored(dtype, width)


def _compile(normal: NormalizedGraph, scalars: tuple[int, ...], device: str) -> CompiledSchedule:
    device = str.__str__(device)                     # plain, where an adapter has names of a class of its own

    def make() -> tuple[Schedule, None]:
        return make_schedule(*with_params(normal, scalars), device, _stores_scores, _limits(device)), None

    parts = kernel_mode(), scalars
    return _prepared(normal, lambda: _unrolled(_kept_or_made(normal, scalars, device, parts, make)[0]), scalars)


def _unrolled(planned: Schedule) -> Schedule:
    return unrolled(planned) if planned.has_recurrence else planned


def _prepared(normal: NormalizedGraph, schedule: Callable[[], Schedule], scalars: tuple[int, ...]) -> CompiledSchedule:
    """Schedule and compile a graph. Meanwhile Python's garbage collector is off: there are few dead cycles, and to
    go through all nodes that a compilation makes, again and again, takes an eighth of its time."""
    def compiled(planned: Schedule) -> CompiledSchedule:
        kind = RecurrentSchedule if planned.has_recurrence else CompiledSchedule
        return kind(planned, scalars, len(normal.buffers))

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


def _kept_or_made(normal: NormalizedGraph, scalars: tuple[int, ...], device: str, parts: tuple[Any, ...],
                  make: Callable[[], tuple[Schedule, Any]]) -> tuple[Schedule, Any]:
    """A schedule from the disk cache, or made and kept there; and the second value that `make` returned. `parts` are
    what it depends on besides the graph and its devices."""
    if not settings.CACHE or _ignore_disk or observers or not can_be_kept(normal.order):
        return make()
    devices = {device, *[n.device or device for n in normal.buffers]}
    name = name_on_disk(normal, scalars, (*parts, _limits(device), *map(_units, sorted(devices))))
    order = list(normal.order)
    found = kept_schedule(name, order)
    if found is None:
        found = make()
        keep_schedule(name, *found, order)
    return found


def _units(device: str) -> tuple[Any, ...]:
    """What of a device's target `_stores_scores` depends on."""
    target = getattr(Device[device], "target", None)
    return (device,) if target is None else (device, target.groups, *[unit.name for unit in target.units])
