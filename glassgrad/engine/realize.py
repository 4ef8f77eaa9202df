"""Make lazy values real. In: UOps. Out: UOps whose values are in memory.

The whole way of a graph, pass by pass:
    normalise    lift buffers and numbers out of the graph; the rest is the key of the schedule cache
    fold         algebra: rules as data, glassgrad/graph/rules.py            (not under NOOPT=1)
    schedule     which nodes live in memory, and the kernels between them    glassgrad/schedule
    compile      each distinct kernel once                                   glassgrad/runtime/compile.py
    plan         one arena for everything in between                         glassgrad/engine/memory_plan.py
    run          bind addresses, one foreign call
A graph of known structure starts at the last line.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassgrad.base.settings import settings
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import Record, recording
from glassgrad.engine.copies import Copy, CopyPlan
from glassgrad.engine.counters import GlobalCounters
from glassgrad.engine.memory_plan import Life, MemoryUse, place
from glassgrad.engine.normal import Normal, normalise, scalar_bytes, with_params
from glassgrad.engine.profile import profiling
from glassgrad.engine.report import check_kernel, report_kernel, report_run, show_source
from glassgrad.graph import ops as o
from glassgrad.graph.arguments import Shape
from glassgrad.graph.length import most
from glassgrad.graph.narrow import narrow
from glassgrad.graph.ops import Kind
from glassgrad.graph.rewrite import rewrite
from glassgrad.graph.rules import ALGEBRA
from glassgrad.graph.sums import join_sums
from glassgrad.graph.uop import UOp
from glassgrad.runtime.device import Device
from glassgrad.schedule.kernels import Item, Schedule, describe, schedule

if TYPE_CHECKING:
    from glassgrad.runtime.contract import DevicePlan

_VIEWS = (o.RESHAPE, o.PERMUTE, o.EXPAND, o.FLIP, o.DETACH)
_MOST_SCHEDULES = 1024
_running: threading.RLock            # a schedule's launches hold one run's addresses at a time


def _open_lock() -> None:
    global _running
    _running = threading.RLock()


_open_lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_lock)   # a thread of the parent may have held the old one


def realize(nodes: Sequence[UOp], device: str | None = None) -> list[UOp]:
    """Compute all of these at once; each comes back as a view of a BUFFER."""
    sinks = list(dict.fromkeys(base for n in nodes if (base := _to_store(n)) is not None))
    if not sinks:
        return list(nodes)
    normal = normalise(sinks)
    ready = _find(normal, Device.canonicalize(device))
    with _running:
        results = ready.run(normal)
    trace = recording()
    if trace is not None:
        trace.records.append(Record(ready, normal, results))
    stored = {sink: _of_shape(result, sink.shape) for sink, result in zip(sinks, results)}
    return [_rebased(n, stored) for n in nodes]


def schedule_of(nodes: Sequence[UOp], device: str | None = None) -> list[Item]:
    """The kernels that realizing these would run; runs nothing."""
    sinks = list(dict.fromkeys(base for n in nodes if (base := _to_store(n)) is not None))
    if not sinks:
        return []
    normal = normalise(sinks)
    planned = _schedule(normal, range(0), Device.canonicalize(device))
    return [item for item in planned.items if _runs(item, planned)]


def memory_of(nodes: Sequence[UOp], device: str | None = None) -> MemoryUse:
    """The memory that realizing these would need; compiles, because kernels pack factors, and runs nothing."""
    sinks = list(dict.fromkeys(base for n in nodes if (base := _to_store(n)) is not None))
    return _find(normalise(sinks), Device.canonicalize(device)).memory if sinks else MemoryUse(0, 0, 0, 0)


def _to_store(node: UOp) -> UOp | None:
    """What must be computed for a node: the value below its views; None when it is in memory already."""
    if node.base.op is o.BUFFER:
        return None
    while node.op in _VIEWS:
        node = node.src[0]
    return node


def _rebased(node: UOp, stored: dict[UOp, UOp]) -> UOp:
    """The node's views over its stored value."""
    if node.base.op is o.BUFFER:
        return node
    views = []
    while node.op in _VIEWS:
        views.append(node)
        node = node.src[0]
    out = stored[node]
    for view in reversed(views):
        out = out if view.op is o.DETACH else UOp(view.op, view.dtype, (out,), view.arg)
    return out


def _of_shape(buffer: UOp, shape: Shape) -> UOp:
    """A result as large as it is: memory has room for the longest of symbolic sizes."""
    return buffer if buffer.shape == shape else buffer.shrink([(0, n) for n in shape])


def is_result(node: UOp) -> bool:
    """Whether a node is the used part of a buffer that has room for the longest of its lengths."""
    return node.op is o.SHRINK and node.symbolic and node.src[0].op is o.BUFFER and all(
        bound == (0, n) for bound, n in zip(node.arg.bounds, node.shape)) and \
        node.src[0].shape == tuple(map(most, node.shape))


# -- finding a schedule again --------------------------------------------------------------------------------
@dataclass(eq=False)
class _Known:
    """All schedules of one structure: by their constants, and one that takes the constants that were seen to change."""
    variants: dict[bytes, Ready]
    first: list[float]
    varying: tuple[int, ...] = ()
    general: Ready | None = None

    def still_open(self) -> bool:
        """Whether the names of devices mean what they meant: a plan runs on the device it was made for."""
        first = next(iter(self.variants.values()), None)
        return first is None or all(Device[name] is opened for name, opened in first.opened)


_known: dict[Any, _Known] = {}


def _find(normal: Normal, device: str) -> Ready:
    """The compiled schedule of a graph: made once for its structure and constants."""
    mode = (settings.NOOPT, settings.DISABLE_RULES, settings.CPU_FEATURES, settings.MATRIX_UNIT, settings.BEAM, device)
    known = _known.get((mode, normal.key))
    bits = normal.constant_bits()
    if known is not None and not known.still_open():
        known = None
    if known is None:
        if len(_known) >= _MOST_SCHEDULES:
            _known.pop(next(iter(_known)))
        known = _known[mode, normal.key] = _Known({}, [c.arg for c in normal.constants])
        known.variants[bits] = _prepare(normal, (), device)
    exact = known.variants.get(bits)
    if exact is not None:
        return exact
    # the same graph with other numbers: from now on, those that change are arguments
    changed = tuple(i for i, (c, was) in enumerate(zip(normal.constants, known.first))
                    if i in known.varying or scalar_bytes(c.arg, c.dtype) != scalar_bytes(was, c.dtype))
    if known.general is None or changed != known.varying:
        known.varying, known.general = changed, _prepare(normal, changed, device)
    return known.general


def _schedule(normal: Normal, scalars: Sequence[int], device: str) -> Schedule:
    sinks, params = with_params(normal, scalars)
    debug = settings.DEBUG
    if debug >= 4:
        print("--- initial\n" + _listing(sinks))
    if not settings.NOOPT:
        sinks = join_sums(narrow(rewrite(sinks, ALGEBRA)))
        if debug >= 4:
            print("--- folded\n" + _listing(sinks))
    # algebra may find that a result is an input, or another result: each still gets memory of its own
    asked = [s if s.op.kind not in (Kind.LEAF, Kind.MOVEMENT) and sinks.index(s) == i
             else UOp(o.CONTIGUOUS, s.dtype, (s,)) for i, s in enumerate(sinks)]
    unique = list(dict.fromkeys(asked))
    planned = schedule(unique, params)
    planned.sinks = [planned.results[s] for s in asked]
    for slot in planned.slots:
        slot.device = slot.device or device
    for item in planned.items:
        item.device = item.device or device
    return planned


def _listing(sinks: Sequence[UOp]) -> str:
    return describe(Item(UOp(o.SINK, sinks[0].dtype, tuple(sinks)), (), 0, None))


def _runs(item: Item, planned: Schedule) -> bool:
    return planned.slots[item.slots[0]].nonempty


def _prepare(normal: Normal, scalars: tuple[int, ...], device: str) -> Ready:
    GlobalCounters.schedules += 1
    return Ready(_schedule(normal, scalars, device), scalars, len(normal.buffers))


# -- a schedule that can run ---------------------------------------------------------------------------------
class Ready:
    """A compiled schedule: bind buffers and numbers, and run."""

    def __init__(self, planned: Schedule, scalars: tuple[int, ...], buffers: int):
        self.planned, self.scalars, self.buffers = planned, scalars, buffers
        items = [item for item in planned.items if _runs(item, planned)]
        self.items = items
        self.segments: list[_Segment] = []          # runs of kernels on one device; copies stand between
        asked = set(planned.sinks)
        slots = len(planned.slots)
        lives: dict[str, list[tuple[int, Life]]] = {}
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for at, item in enumerate(items):
            for n, slot in enumerate(item.slots):
                whole = planned.slots[slot].whole
                slot = slot if whole is None else whole
                if n < item.results:
                    first.setdefault(slot, at)
                last[slot] = at
        for slot, begin in first.items():
            if slot not in asked:
                s = planned.slots[slot]
                lives.setdefault(s.device or "", []).append((slot, Life(begin, last[slot], s.nbytes)))
        at = 0
        while at < len(items):
            stop = at + 1
            if items[at].ast.op is not o.COPY:
                while stop < len(items) and items[stop].ast.op is not o.COPY and items[stop].device == items[at].device:
                    stop += 1
            segment = _Segment(items[at:stop], slots, planned)
            for number, sizes in segment.shared:
                for nbytes in sizes:
                    lives.setdefault(segment.device, []).append((slots, Life(at + number, at + number, nbytes)))
                    slots += 1
            self.segments.append(segment)
            at = stop
        self.opened = [(name, Device[name]) for name in dict.fromkeys(s.device for s in self.segments)]
        self.slots = slots
        self.pieces = [(slot, s.whole, s.offset) for slot, s in enumerate(planned.slots) if s.whole is not None]
        self.arenas: list[tuple[str, int, list[tuple[int, int]]]] = []
        for name, rows in lives.items():
            offsets, total = place([life for _, life in rows])
            self.arenas.append((name, total, [(slot, offset) for (slot, _), offset in zip(rows, offsets)]))
        cells = [planned.slots[i] for i in range(buffers, planned.inputs)]
        self.cell_types = [c.dtype for c in cells]
        self.cells = (ctypes.c_char * (8 * max(1, len(cells))))()
        self.copied = (ctypes.c_int64 * max(1, len(planned.updates)))(*[u.size for u in planned.updates])
        programs = [program for segment in self.segments for program in segment.programs]
        self.operations = sum(p.operations for p in programs)
        self.bytes = sum(p.bytes for p in programs)

    @property
    def memory(self) -> MemoryUse:
        """What one run needs."""
        given = sum(slot.nbytes for slot in self.planned.slots[:self.buffers])
        made = sum(self.planned.slots[slot].nbytes for slot in set(self.planned.sinks))
        scratch = max((s.plan.scratch for s in self.segments), default=0)
        return MemoryUse(given, made, sum(total for _, total, _ in self.arenas), scratch)

    def run(self, normal: Normal) -> list[UOp]:
        """Compute the graph's sinks; new buffers for each."""
        planned = self.planned
        addresses = [0] * self.slots
        addresses[:len(normal.addresses)] = normal.addresses
        values = [*[c.arg.value for c in normal.cells], *[s.value for s in normal.symbols],
                  *[normal.constants[i].arg for i in self.scalars]]
        base = ctypes.addressof(self.cells)
        for i, (value, dtype) in enumerate(zip(values, self.cell_types)):
            ctypes.memmove(base + 8 * i, scalar_bytes(value, dtype), 8)
            addresses[self.buffers + i] = base + 8 * i
        for i, update in enumerate(planned.updates):
            addresses[update.copied] = ctypes.addressof(self.copied) + 8 * i
        results: dict[int, UOp] = {}
        for slot, sink in zip(planned.sinks, normal.sinks):
            if slot not in results:
                s = planned.slots[slot]
                buffer = Buffer(tuple(map(most, s.shape)), s.dtype, s.device or "")
                buffer.place = sink.place            # the line of the expression says more than that of realize()
                addresses[slot] = buffer.address
                results[slot] = UOp(o.BUFFER, s.dtype, (), buffer)
        blocks = []
        try:
            for name, total, rows in self.arenas:
                memory = Device[name].memory
                block = memory.allocate(total)
                blocks.append((memory, block))
                for slot, offset in rows:
                    addresses[slot] = block.address + offset
            for slot, whole, offset in self.pieces:
                addresses[slot] = addresses[whole] + offset
            self._launch(addresses)
        finally:
            for memory, block in blocks:
                memory.release(block)
        return [results[slot] for slot in planned.sinks]

    def _launch(self, addresses: list[int]) -> None:
        debug, check, profile = settings.DEBUG, settings.CHECK, profiling()
        start = time.perf_counter()
        number = 0
        for segment in self.segments:
            segment.plan.bind(addresses)
            if debug < 2 and not check and profile is None:
                segment.plan.run()
                continue
            for i, item in enumerate(segment.items):
                before = segment.snapshot(i, addresses) if check and item.ast.op is not o.COPY else None
                nanoseconds = segment.plan.run_one(i)
                if profile is not None:
                    profile.add(item, segment.programs[i], nanoseconds)
                if debug >= 2:
                    report_kernel(GlobalCounters.kernel_count + number, item, segment.programs[i], nanoseconds)
                if debug >= 3:
                    show_source(item)
                if before is not None:
                    check_kernel(item, before, segment.results(i, addresses))
                number += 1
        elapsed = time.perf_counter() - start
        GlobalCounters.kernel_count += len(self.items)
        GlobalCounters.global_ops += self.operations
        GlobalCounters.global_mem += self.bytes
        GlobalCounters.time_sum_s += elapsed
        if debug >= 1:
            report_run(len(self.items), elapsed, self.memory)


class _Segment:
    """Kernels on one device that run without a break, or one copy between devices."""

    def __init__(self, items: Sequence[Item], slots: int, planned: Schedule):
        self.items, self.device, self.first_shared = list(items), items[0].device or "", slots
        self.shared: list[tuple[int, tuple[int, ...]]] = []
        self.programs: Sequence[Any]
        self.plan: DevicePlan
        if items[0].ast.op is o.COPY:
            source = planned.slots[items[0].slots[-1]]
            self.programs = [Copy(source.device or "", self.device, source.nbytes)]
            self.plan = CopyPlan(self.programs, [items[0].slots])
            return
        opened = Device[self.device]
        self.programs = opened.programs([item.ast for item in items])
        uses = []
        for number, (item, program) in enumerate(zip(items, self.programs)):
            own = tuple(range(slots, slots + len(program.info.shared)))
            slots += len(own)
            uses.append((*item.slots, *own))
            if own:
                self.shared.append((number, program.info.shared))
        self.plan = opened.plan(self.programs, uses)

    def snapshot(self, number: int, addresses: list[int]) -> list[bytes]:
        """The kernel's inputs, before it runs."""
        return [self._bytes(number, i, addresses) for i in range(len(self.items[number].slots))]

    def results(self, number: int, addresses: list[int]) -> list[bytes]:
        return [self._bytes(number, i, addresses) for i in range(self.items[number].results)]

    def _bytes(self, number: int, position: int, addresses: list[int]) -> bytes:
        item = self.items[number]
        params = {n.arg.slot: n for n in item.ast.toposort() if n.op is o.PARAM}
        param = params.get(position)
        if param is None:
            return b""
        address = addresses[item.slots[position]]
        if param.arg.scalar:                       # a number, which the host keeps
            return ctypes.string_at(address, 8)
        return bytes(Device[self.device].copy_out(address, param.size * param.dtype.itemsize))
