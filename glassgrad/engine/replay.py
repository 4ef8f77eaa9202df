"""Run a trace again as one list of commands. In: a `Trace`, and where its inputs come from. Out: `Replay`.

Every buffer of the trace gets a symbol. What never changes (memory between kernels, constants) is bound once; inputs
and results that outlive the call are bound anew each time, by writing their address into the launches that use them.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import Cell, DType, UOp, ops as o
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.compiler.schedule.partial_updates import rewrites
from glassgrad.engine.capture import Record, RunCheck, Trace
from glassgrad.engine.counters import count_run
from glassgrad.engine.custom_calls import HOST_PLANS, one_device_each
from glassgrad.engine.debug_report import report_parts, report_run, run_reported
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.engine.observer import observing, run_timed, tell_ran
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.runtime import backend
from glassgrad.runtime.devices import Device

if TYPE_CHECKING:
    from glassgrad.runtime.backend import Stopwatch


class ReplayedKernel(NamedTuple):
    """One launch; `slots` has the slots of its results first."""
    device: str
    program: Any
    slots: tuple[int, ...]
    item: Item

    @property
    def results(self) -> tuple[int, ...]:
        return self.slots[:self.item.results]


class PartialUpdate(NamedTuple):
    """A result that is an earlier value with a part replaced, and the number of elements copied for it."""
    source: UOp
    copied: Any                              # ctypes.c_int64
    size: int


class Replay:
    """The launches of a trace. `outside` are the buffers to be bound each time, with the symbols they are bound by; all
    else is bound here, and the trace is let go. `renewed` are the buffers that results of a call replace."""

    def __init__(self, trace: Trace, outside: dict[UOp, UOp], renewed: Set[UOp]):
        self._kept: list[Any] = []                            # constants, and what lies between two schedules
        self._slots: dict[UOp, dict[int, int]] = {s: {} for s in outside.values()}    # of symbols, with byte offsets
        self._plans: list[tuple[str, Any, Sequence[int]]] = []
        self.numbers: list[tuple[Cell | Symbol, DType, int]] = []    # cells and variables, and the address of the value
        self.streams: set[Cell] = set()                       # cells that count random streams
        self._addresses = [0] * sum(record.compiled.slots for record in trace.records)
        self._memory_of: dict[int, Any] = {}                  # what lies at a slot: a buffer's node, or the slot itself
        self._arenas = self._claim(trace)
        first = 0
        updates: list[tuple[int, int, int, Any]] = []
        launches: list[ReplayedKernel] = []
        for record in trace.records:
            compiled, normal = record.compiled, record.normal
            for i, node in enumerate(normal.buffers):
                self._place(first + i, node, normal.addresses[i], outside)
            self._place_numbers(record, first + len(normal.buffers))
            for update in compiled.planned.updates:
                copied = ctypes.c_int64(update.size)
                self._kept.append(copied)
                self._addresses[first + update.copied] = ctypes.addressof(copied)
                updates.append((first + update.source, first + update.result, first + update.copied, copied))
            for slot, node in zip(compiled.planned.sinks, record.results):
                self._place(first + slot, node, node.arg.address, outside)
            for name, _, rows in compiled.arenas:
                for slot, offset in rows:
                    self._addresses[first + slot] = self._arenas[name][1].address + offset
                    self._memory_of[first + slot] = first + slot
            self._place_pieces(compiled.pieces, first)
            for segment in compiled.segments:
                shared = dict(segment.shared)
                at = segment.first_shared
                for number, (item, program) in enumerate(zip(segment.items, segment.programs)):
                    own = tuple(range(at, at + len(shared.get(number, ()))))
                    at += len(own)
                    slots = tuple(first + s for s in (*item.slots, *own))
                    launches.append(ReplayedKernel(segment.device, program, slots, item))
            first += compiled.slots
        self._launches = self._without_unread(launches, {*outside, *[
            n for record in trace.records for n in record.results if any(n.arg is f.buffer for f in trace.flags)]})
        self._memory_of.clear()                               # the trace's own buffers are not kept
        self.items = [launch.item for launch in self._launches]
        self.programs = [launch.program for launch in self._launches]
        self.operations = sum(program.operations for program in self.programs)
        self.bytes = sum(program.bytes for program in self.programs)
        self.is_long = max(self.operations, backend.OPERATIONS_PER_BYTE * self.bytes) > backend.LONG_WORK
        self._make_plans()
        self._flags: list[tuple[int, int]] = []               # (address, bound) of values that can end a run
        self.pause = 0                                        # launches that run before the flags are checked
        self.updates = self._updates(updates)
        self.memory = self._memory(trace, renewed)

    # -- memory --------------------------------------------------------------------------------------------
    def _claim(self, trace: Trace) -> dict[str, Any]:
        """Allocate one arena per device, large enough for the largest schedule."""
        most: dict[str, int] = {}
        for record in trace.records:
            for name, total, _ in record.compiled.arenas:
                most[name] = max(most.get(name, 0), total)
        memories = {name: Device[name].memory for name in most}            # a name may come to mean another device
        return {name: (memories[name], memories[name].allocate(total)) for name, total in most.items()}

    def _memory(self, trace: Trace, renewed: Set[UOp]) -> MemoryUse:
        """The memory of a call: arena, inputs, and results twice, because those of the call before are alive. Weights
        that a call replaces count as results."""
        made = {node for record in trace.records for node in record.results}
        given = {node.base for record in trace.records for node in record.normal.buffers} - made - renewed
        kept = {node for node in self._kept if isinstance(node, UOp)} & made
        total = lambda nodes: sum(node.arg.nbytes for node in nodes)
        scratch = max((s.plan.scratch for record in trace.records for s in record.compiled.segments), default=0)
        return MemoryUse(total(given), 2 * total(made - kept),
                         sum(block.nbytes for _, block in self._arenas.values()) + total(kept), scratch)

    def stays(self, nbytes: int) -> None:
        """Count these bytes of results once: they are written in place."""
        self.memory = self.memory._replace(results=self.memory.results - nbytes)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            for memory, block in getattr(self, "_arenas", {}).values():
                memory.release(block)

    def _place(self, slot: int, node: UOp, address: int, outside: dict[UOp, UOp]) -> None:
        """Bind a slot to the buffer under `node` (a piece of it begins at `address`)."""
        base = node.base
        if base in outside:
            self._slots[outside[base]][slot] = address - base.arg.address
        else:                                # made and used up inside the call, or a constant of it
            self._kept.append(base)
        self._addresses[slot] = address
        self._memory_of[slot] = base

    def _place_pieces(self, pieces: Sequence[tuple[int, int, int]], first: int) -> None:
        """Bind slots that are pieces of others, at an offset to these; also where those are symbols'."""
        for slot, whole, offset in pieces:
            self._addresses[first + slot] = self._addresses[first + whole] + offset
            self._memory_of[first + slot] = self._memory_of.get(first + whole)
            for places in self._slots.values():
                if first + whole in places:
                    places[first + slot] = places[first + whole] + offset

    def _place_numbers(self, record: Record, first: int) -> None:
        """Allocate the scalars of a schedule: cells and variables, which each call writes, and constants."""
        normal, compiled = record.normal, record.compiled
        numbers = [*[n.arg for n in normal.cells], *normal.symbols]
        constants = [Cell(normal.constants[i].arg) for i in compiled.scalars]
        memory = (ctypes.c_int64 * (len(numbers) + len(constants)))()
        self._kept.append(memory)
        addresses = [ctypes.addressof(memory) + 8 * i for i in range(len(memory))]
        self._addresses[first:first + len(memory)] = addresses
        for number, dtype, address in zip([*numbers, *constants], compiled.cell_types, addresses):
            ctypes.memmove(address, scalar_bytes(number.value, dtype), 8)
        self.numbers += zip(numbers, compiled.cell_types, addresses)
        self.streams |= {n.src[1].arg for n in normal.order if n.op is o.RANDOM and n.src[1] in normal.cells}

    def _without_unread(self, launches: list[ReplayedKernel], needed: set[Any]) -> list[ReplayedKernel]:
        """The launches without those whose results neither a later launch nor the caller can read. `needed` are the
        buffers that outlive the call, and the flags."""
        kept = []
        for launch in reversed(launches):
            if not needed.isdisjoint(map(self._memory_of.get, launch.results)):
                needed.update(map(self._memory_of.get, launch.slots))
                kept.append(launch)
        return kept[::-1]

    def _make_plans(self) -> None:
        """Make a plan of each run of consecutive launches on one device: on the CPU, one foreign call."""
        for span in one_device_each(self.items):
            launches = [self._launches[i] for i in span]
            device = launches[0].device
            make = HOST_PLANS.get(launches[0].item.ast.op, Device[device].replay_plan)
            plan = make([launch.program for launch in launches], [launch.slots for launch in launches])
            plan.bind(self._addresses)
            plan.lines = [launch.item.lines for launch in launches]
            self._plans.append((device, plan, span))
        only: Any = self._plans[0][1] if len(self._plans) == 1 else None
        self.at_once = only is not None and only.uninterrupted       # one foreign call: nothing comes in between
        self.ends_early = self.at_once and only.ends_early           # a flag can end a run in the middle
        self._pointers = {symbol: [(array, position, offset) for slot, offset in places.items()
                                   for _, plan, _ in self._plans for array, position in plan.uses_of(slot)]
                          for symbol, places in self._slots.items()}

    def _updates(self, found: list[tuple[int, int, int, Any]]) -> dict[UOp, PartialUpdate]:
        """The results that may be written over the value they replace a part of: nothing reads it afterwards."""
        symbols = {slot: symbol for symbol, places in self._slots.items() for slot, offset in places.items()
                   if not offset}
        updates = {}
        for source, result, cell, copied in found:
            if source in symbols and result in symbols:
                first = next(i for i, launch in enumerate(self._launches) if cell in launch.slots)
                if not self._read_after(first, symbols[source]):
                    updates[symbols[result]] = PartialUpdate(symbols[source], copied, copied.value)
        return updates

    def _read_after(self, number: int, symbol: UOp) -> bool:
        return any(not self._slots[symbol].keys().isdisjoint(launch.slots) for launch in self._launches[number + 1:])

    def check(self, flags: Sequence[RunCheck]) -> None:
        """Let a run end early if the flags, once they are written, report an error. Where a plan cannot end early, the
        caller checks them after each run, and no result counts as written after the check."""
        if not self.ends_early:
            self.pause = len(self.items) + 1
            return
        self._flags = [(flag.buffer.address + 4 * i, bound) for flag in flags for i, bound in enumerate(flag.bounds)]
        places = {flag.buffer.address for flag in flags}
        writers = [i for i, launch in enumerate(self._launches)
                   if any(self._addresses[slot] in places for slot in launch.results)]
        self.pause = writers[-1] + 1 if writers else len(self.items)
        self._plans[0][1].check(self.pause, self._flags)

    def keep_together(self, symbols: Iterable[UOp]) -> None:
        """These results are written over values that a failed call must leave whole: once the first of them is written,
        the run is not interrupted."""
        first = [number for symbol in symbols for number in self._writers(symbol)]
        if first and self.at_once:
            self._plans[0][1].keep_together(min(first))

    def _writers(self, symbol: UOp) -> list[int]:
        return [i for i, launch in enumerate(self._launches)
                if not self._slots[symbol].keys().isdisjoint(launch.results)]

    def waits(self, symbol: UOp) -> bool:
        """Whether a result is written only after the flags are checked."""
        return min(self._writers(symbol), default=-1) >= self.pause

    def rewrites(self, source: UOp, result: UOp) -> bool:
        """Whether one symbol's value may be written over another's: nothing reads the old one afterwards, and the
        launch that writes the new one reads of it just the element that it writes."""
        writers = self._writers(result)
        if len(writers) != 1 or self._read_after(writers[0], source):
            return False
        launch = self._launches[writers[0]]
        reads, writes = ([at for at, slot in enumerate(launch.slots) if slot in self._slots[symbol]]
                         for symbol in (source, result))
        return len(writes) == 1 and all(rewrites(launch.item.ast, writes[0], at) for at in reads)

    # -- running ---------------------------------------------------------------------------------------------
    def bind(self, symbol: UOp, address: int) -> None:
        """Write the address of a symbol's buffer into all launches that use it."""
        for array, position, offset in self._pointers[symbol]:
            array[position] = address + offset

    def prepare(self) -> None:
        """Take the settings as they are now; `run` does not look at them."""
        runners = [plan.runner() for _, plan, _ in self._plans]
        self._run = runners[0] if len(runners) == 1 else lambda: any(run() for run in runners)
        self._debug = settings.DEBUG
        if self._debug:
            report_parts([(device, [self.items[number] for number in span]) for device, _, span in self._plans])

    def run(self) -> bool:
        """Run every launch, in order; return whether a flag ended the run."""
        start = time.perf_counter()
        if self._debug >= 2:
            ended = self._run_one_by_one()
        elif observing():
            ended = run_timed(self)
        else:
            ended = self._run()
        if not ended:
            elapsed = time.perf_counter() - start
            count_run(len(self.items), self.operations, self.bytes, elapsed)
            if self._debug:
                report_run(len(self.items), elapsed, self.memory)
        return ended

    def stopwatches(self) -> list[Stopwatch]:
        """A stopwatch for each plan, for the settings of now."""
        return [plan.stopwatch() for _, plan, _ in self._plans]

    def _run_one_by_one(self) -> bool:
        start, times = time.perf_counter_ns(), []
        for _, plan, span in self._plans:
            for i, number in enumerate(span):
                if number == self.pause and self._is_flagged():
                    return True
                times.append(run_reported(plan, i, number, self.items[number], self.programs[number], self._debug))
        tell_ran(self, (start, time.perf_counter_ns()), lambda: times)
        return self.pause == len(self.items) and self._is_flagged()

    def _is_flagged(self) -> bool:
        device = Device[self._plans[0][0]]
        return any(int.from_bytes(device.copy_out(address, 4), "little", signed=True) < bound
                   for address, bound in self._flags)
