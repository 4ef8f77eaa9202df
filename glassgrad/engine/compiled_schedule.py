"""Compile a schedule, bind its memory, and run it. In: a `Schedule`. Out: `CompiledSchedule`.

Consecutive kernels of one device form one plan, which launches them together; copies between devices are plans of their
own. Each run brings the buffers and numbers of one graph, and allocates new memory for its results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

from glassgrad.base.settings import State
from glassgrad.compiler.graph import DType, Shape, UOp, dtypes, ops as o
from glassgrad.compiler.graph.symbolic import Length
from glassgrad.compiler.graph.uop import new_node
from glassgrad.compiler.schedule.kernels import Item, Schedule
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.counters import GlobalCounters
from glassgrad.engine.debug_report import report_kernel, report_run, show_source
from glassgrad.engine.host_launches import HOST_LAUNCHES, host_plan
from glassgrad.engine.memory_plan import MOST_LAYOUTS, Layout, Lifetime, MemoryLayouts, MemoryUse, lifetimes
from glassgrad.engine.observer import Launches, observers, run_timed, tell_ran
from glassgrad.engine.registry import registry
from glassgrad.engine.schedule_key import NormalizedGraph
from glassgrad.runtime.devices import Device

if TYPE_CHECKING:
    from glassgrad.runtime.backend import DevicePlan, Stopwatch

Work = tuple[int, ...]
Calls = Sequence[tuple[Callable[[Sequence[int]], None], Callable[[], Any]]]
_BUFFER = o.BUFFER


class CompiledSchedule:
    """A schedule with compiled kernels: bind buffers and numbers, and run."""

    def __init__(self, planned: Schedule, scalars: tuple[int, ...], buffers: int, programs: Sequence[Any] = ()):
        """`scalars` are the numbers of the constants that are arguments; the first `buffers` slots are the input
        buffers. With `programs`, the compiled kernels of all items, the schedule is one that a jit replays."""
        self.planned, self.scalars, self.buffers = planned, scalars, buffers
        self.items = [item for item in planned.items if planned.runs(item)]
        self._checked = False                      # whether CHECK compared the graph before and after its passes
        self._calls: dict[tuple[State, tuple[int, ...]], Calls] = {}      # by settings, and by values if `_by_value`
        self.slots = len(planned.slots)            # their number; segments add some
        self.lives = lifetimes(planned, self.items)      # by device: the slots in its arena
        self.segments = self._segments(programs)
        self._by_value = any([segment.plan.by_value for segment in self.segments])
        self.programs = [program for segment in self.segments for program in segment.programs]
        self.pieces = [(slot, s.whole, s.offset) for slot, s in enumerate(planned.slots) if s.whole is not None]
        self.layouts = MemoryLayouts(planned, self.lives)
        self.layout = self.layouts.largest
        self.cell_types = [s.dtype for s in planned.slots[buffers:planned.inputs]]
        self.cells = (ctypes.c_int64 * max(1, len(self.cell_types)))()
        self.copied = (ctypes.c_int64 * max(1, len(planned.updates)))(*[u.size for u in planned.updates])
        self._scalars = [_cell_type(dtype).from_buffer(self.cells, 8 * i) for i, dtype in enumerate(self.cell_types)]
        self._values: tuple[int, ...] = ()         # the values of variables that were last written into the cells
        # addresses of slots that are not input buffers: scalars, and memory that each run allocates (0 until then)
        self.unbound = [*map(ctypes.addressof, self._scalars), *[0] * (self.slots - planned.inputs)]
        for i, update in enumerate(planned.updates):
            self.unbound[update.copied - buffers] = ctypes.addressof(self.copied) + 8 * i
        self.work, self.work_now, self.costs = self._count_work()

    # -- what the schedule needs, once -----------------------------------------------------------------------
    def _segments(self, programs: Sequence[Any]) -> list[Segment]:
        """Compile the kernels, as segments: runs of kernels on one device, and copies between. Each memory that all
        tasks of a kernel share gets one more slot, alive while that kernel runs."""
        found = []
        for span in _spans(self.items):
            segment = Segment([self.items[i] for i in span], self.slots, self.planned, programs[span.start:span.stop])
            for number, nbytes in segment.shared:
                life = Lifetime(span[number], span[number], nbytes)
                self.lives.setdefault(segment.device, []).append((self.slots, life))
                self.slots += 1
            found.append(segment)
        return found

    def _count_work(self) -> tuple[Work, Callable[[], Work], Callable[[], list[tuple[int, int]]]]:
        """Count operations and bytes. Return the totals (number of kernels, operations, bytes), empty if they depend on
        variables; a function for the totals with the values that variables have in memory now; and a function for the
        operations and bytes of each kernel with these values."""
        costs = [(p.operations, p.bytes) for p in self.programs]
        if any([isinstance(size, Length) for cost in costs for size in cost]):
            from glassgrad.engine.changing_sizes.work_of_sizes import WorkOfSizes  # late: few schedules have variables
            cells = {slot: ctypes.c_int64.from_address(address)
                     for slot, address in enumerate(self.unbound, self.buffers) if address}
            work = WorkOfSizes(self.items, costs, self.planned.slots, cells)
            return (), work.now, work.of_each
        total = len(costs), sum([n for n, _ in costs]), sum([n for _, n in costs])
        return total, lambda: total, lambda: costs

    def for_values(self, values: tuple[int, ...]) -> CompiledSchedule:
        """Return the schedule to run for these values of the variables."""
        return self

    # -- memory ----------------------------------------------------------------------------------------------
    @property
    def memory(self) -> MemoryUse:
        """The memory that one run needs at most."""
        return self.memory_for(self.layouts.greatest)

    def memory_for(self, values: tuple[int, ...]) -> MemoryUse:
        """Return the memory that one run needs with these values of the variables."""
        sizes = self.layouts.sizes(values)
        read = sum(sizes[slot] for slot in range(self.buffers))
        made = sum(sizes[slot] for slot in set(self.planned.sinks))
        scratch = max((s.plan.scratch for s in self.segments), default=0)
        return MemoryUse(read, made, sum(total for _, total, _ in self.layouts.of(values).arenas), scratch)

    # -- running ---------------------------------------------------------------------------------------------
    def run(self, normal: NormalizedGraph, state: State, values: tuple[int, ...] = (), free: Collection[UOp] = (),
            into: Buffer | None = None, shapes: Mapping[UOp, Shape] | None = None) -> list[UOp]:
        """Compute the graph's sinks into new buffers, and return these. `state` are the settings, `values` those of the
        variables. A sink that replaces a part of one of the `free` buffers is written in place. `into` is the buffer of
        the only sink; `shapes` are shapes of result buffers that differ from the sinks' shapes."""
        addresses = normal.addresses + self.unbound
        if self.cell_types and (values != self._values or len(values) < len(self.cell_types)):
            self._values = ()                    # unknown, in case a Ctrl-C comes while the cells are written
            self.write_scalars([*[c.arg.value for c in normal.cells], *values,
                                *[normal.constants[i].arg for i in self.scalars]])
            self._values = values
        results: list[UOp] = []
        known = self._write_in_place(addresses, normal, free) if self.planned.updates else {}
        layout = self.layouts.of(values) if values else self.layout
        for sink, (slot, shape, dtype, device, memory) in zip(normal.sinks, layout.results):
            made = known.get(slot)
            if made is None:                     # equal results share one buffer
                if shapes:
                    shape = shapes.get(sink, shape)
                place = sink.place               # the line of the expression, not that of realize()
                buffer = into or Buffer(shape, dtype, device, place, memory)
                addresses[slot] = buffer.address
                known[slot] = made = new_node(UOp, _BUFFER, dtype, (), buffer, place)
            results.append(made)
        blocks: list[Any] = []
        try:
            if self.lives or self.pieces:
                self.allocate_arenas(addresses, layout, blocks)
            start = perf_counter()
            if state.is_watched or observers:
                self._launch_watched(addresses, normal, values, state)
            else:
                key = state, values if self._by_value else ()
                for rebind, launch in self._calls.get(key) or self._prepared(addresses, key):
                    rebind(addresses)
                    launch()
            elapsed = perf_counter() - start
            count_run(self.work or self.work_now(), elapsed)
            if state.debug:
                report_run(len(self.items), elapsed, self.memory_for(values))
        finally:
            for memory, block in blocks:
                memory.release(block)
        return results

    def allocate_arenas(self, addresses: list[int], layout: Layout, blocks: list[Any]) -> None:
        """Allocate the arenas, list them in `blocks` for the caller to release, and set the addresses of the slots in
        them and of the slots that are pieces of others."""
        for name, total, rows in layout.arenas:
            memory = Device[name].memory
            block = memory.allocate(total)
            blocks.append((memory, block))
            for slot, offset in rows:
                addresses[slot] = block.address + offset
        for slot, whole, offset in self.pieces:
            addresses[slot] = addresses[whole] + offset

    def write_scalars(self, numbers: Sequence[Any]) -> None:
        """Write scalars into their cells, from where kernels read them."""
        for cell, dtype, value in zip(self._scalars, self.cell_types, numbers):
            cell.value = value if dtype.kind == "f" else int(value) & ((1 << dtype.bits) - 1)

    def _write_in_place(self, addresses: list[int], normal: NormalizedGraph, free: Collection[UOp]) -> dict[int, UOp]:
        """Set how many elements of the old value each partial update copies; return the results that overwrite `free`
        buffers."""
        results: dict[int, UOp] = {}
        for i, update in enumerate(self.planned.updates):
            source = normal.buffers[update.source] if update.source < self.buffers else None
            in_place = source in free and update.result in self.planned.sinks
            self.copied[i] = 0 if in_place else update.size
            if in_place and source is not None:
                results[update.result] = registry.rewritten(source)
                addresses[update.result] = addresses[update.source]
        return results

    def stopwatches(self) -> list[Stopwatch]:
        """Return a stopwatch for each segment."""
        return [segment.plan.stopwatch() for segment in self.segments]

    def _prepared(self, addresses: Sequence[int], key: tuple[State, tuple[int, ...]]) -> Calls:
        """Return the functions that bind each segment's addresses and launch it, under the current settings and for the
        values of the variables that are in memory now."""
        if len(self._calls) >= MOST_LAYOUTS:
            self._calls.clear()
        for segment in self.segments:
            segment.plan.bind(addresses)
        found = self._calls[key] = [(segment.plan.rebind, segment.plan.runner()) for segment in self.segments]
        return found

    def _launch_watched(self, addresses: list[int], normal: NormalizedGraph, values: tuple[int, ...],
                        state: State) -> None:
        """Launch every kernel with CHECK, DEBUG or observers: checked, printed or timed."""
        if state.check and not self._checked:
            self._checked = True
            from glassgrad.engine.check.compare import check_graph  # loads the interpreter
            check_graph(normal, self.scalars)
        for segment in self.segments:
            segment.plan.bind(addresses)
        self.run_watched(self, state.debug, partial(self._checking, addresses, values) if state.check else None)

    def run_watched(self, what: Launches, debug: int, checking: Callable[..., Any] | None = None,
                    is_ended: Callable[[int], bool] = lambda number: False) -> bool:
        """Launch every kernel (their addresses are bound) and print or time it; tell observers that `what` ran. Return
        whether a check ended the run. Where kernels run one by one, `is_ended` is called before each kernel and at the
        end; `checking` is called before each kernel, and the function that it returns after it."""
        if debug < 2 and checking is None:
            return run_timed(what) if observers else any(segment.plan.runner()() for segment in self.segments)
        start, times, costs = perf_counter_ns(), list[int](), self.costs()
        for segment in self.segments:
            for i, (item, program) in enumerate(zip(segment.items, segment.programs)):
                if is_ended(len(times)):
                    return True
                check = checking(segment, item) if checking is not None else None
                times.append(segment.plan.run_one(i))
                if debug >= 2:
                    number = len(times) - 1
                    report_kernel(GlobalCounters.kernel_count + number, item, program, times[-1], costs[number])
                if debug >= 3:
                    show_source(item)
                if check is not None:
                    check()
        tell_ran(what, (start, perf_counter_ns()), lambda: times)
        return is_ended(len(times))

    def _checking(self, addresses: list[int], values: tuple[int, ...], segment: Segment, item: Item) -> \
            Callable[[], None] | None:
        """Save what is in a kernel's memory before it runs; return a function that checks the kernel by what is there
        afterwards."""
        if item.ast.op in HOST_LAUNCHES:
            return None
        sizes = self.layouts.sizes(values)
        before = segment.contents(item, addresses, sizes)

        def compare() -> None:
            from glassgrad.engine.check.compare import check_kernel
            check_kernel(item, before, segment.contents(item, addresses, sizes)[:item.results])
        return compare


def _cell_type(dtype: DType) -> Any:
    """Return the ctypes type of a scalar in the memory that kernels read; all but floats are 64-bit integers."""
    return ctypes.c_double if dtype is dtypes.float64 else ctypes.c_float if dtype.kind == "f" else ctypes.c_int64


def count_run(work: tuple[int, ...], seconds: float) -> None:
    """Count one run of a schedule or of a replay. `work`: the number of kernels, operations and bytes."""
    totals = GlobalCounters
    kernels, operations, nbytes = work
    totals.kernel_count += kernels
    totals.global_ops += operations
    totals.global_mem += nbytes
    totals.time_sum_s += seconds


def _spans(items: Sequence[Item]) -> list[range]:
    """Return the longest runs of consecutive items that one plan can launch: kernels of one device, or one host
    launch."""
    plans = [(item.device, at if item.ast.op in HOST_LAUNCHES else None) for at, item in enumerate(items)]
    starts = [at for at, plan in enumerate(plans) if at == 0 or plan != plans[at - 1]]
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(items)])]


class Segment:
    """Kernels on one device that run without a break; or one copy between devices, or one call of a user's function."""

    def __init__(self, items: Sequence[Item], slots: int, planned: Schedule, programs: Sequence[Any] = ()):
        """The first `slots` slots are in use already; the slots after them are for memory that a kernel's tasks share
        (`shared`)."""
        self.items, self.device = list(items), items[0].device or ""
        self.shared: list[tuple[int, int]] = []            # for each of these slots: its item's number, and bytes
        if items[0].ast.op in HOST_LAUNCHES:
            self.plan: DevicePlan = host_plan(items[0], planned.slots)
            self.programs: Sequence[Any] = self.plan.programs
            return
        opened = Device[self.device]
        self.programs = programs or opened.programs([item.ast for item in items])
        uses = []
        for number, (item, program) in enumerate(zip(items, self.programs)):
            first = slots + len(self.shared)
            self.shared += [(number, nbytes) for nbytes in program.info.shared]
            uses.append((*item.slots, *range(first, slots + len(self.shared))))
        self.plan = (opened.replay_plan if programs else opened.plan)(self.programs, uses)
        self.plan.lines = [item.lines for item in items]

    def contents(self, item: Item, addresses: list[int], sizes: Mapping[int, int]) -> list[bytes]:
        """Return what is in the memory of a kernel's parameters now, its results first. `sizes` are the bytes of slots
        whose size is not that of the parameter."""
        found = [b""] * len(item.slots)
        for n in item.ast.toposort():
            if n.op is o.PARAM:
                slot = item.slots[n.arg.slot]
                nbytes = sizes.get(slot, n.size * n.dtype.itemsize)
                found[n.arg.slot] = ctypes.string_at(addresses[slot], 8) if n.arg.scalar else bytes(
                    Device[self.device].copy_out(addresses[slot], nbytes))      # scalars are in host memory
        return found
