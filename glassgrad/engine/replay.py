"""Run a trace again as one list of commands. In: a `Trace`, and where its inputs come from. Out: `Replay`.

The schedules of a trace are merged into one, which is compiled like any other. What never changes (memory between
kernels, constants) is bound once; buffers of inputs and results that outlive the call have symbols, and are bound anew
each time, by writing their address into the launches that use them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import Cell, UOp, ops as o
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.compiler.schedule.kernels import Item, Schedule, Slot
from glassgrad.compiler.schedule.partial_updates import Update, rewrites
from glassgrad.engine.capture import Record, RunCheck, Trace
from glassgrad.engine.compiled_schedule import CompiledSchedule, count_run
from glassgrad.engine.debug_report import report_parts, report_run
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.engine.observer import observers
from glassgrad.runtime import backend
from glassgrad.runtime.devices import Device

if TYPE_CHECKING:
    from glassgrad.runtime.backend import Stopwatch


class PartialUpdate(NamedTuple):
    """A result that is an earlier value with a part replaced, and the number of elements copied for it."""
    source: UOp
    copied: Any                              # ctypes.c_int64
    size: int


class _MergedSchedules:
    """All schedules of a trace as one. Each buffer and each scalar has a slot; the slots that schedules have for it are
    pieces of that."""

    def __init__(self, records: Sequence[Record]):
        self.buffers = list(dict.fromkeys(n.base for r in records for n in (*r.normal.buffers, *r.results)))
        self.numbers = [number for record in records for number in _numbers(record)]
        slots = [Slot(base.shape, base.dtype, base.device) for base in self.buffers]
        slots += [Slot((), dtype, None) for record in records for dtype in record.compiled.cell_types]
        self.slot_of = {base: slot for slot, base in enumerate(self.buffers)}
        self.planned = Schedule([], slots, len(slots), sinks=[self.slot_of[n] for r in records for n in r.results])
        self.programs: list[Any] = []
        self.items: list[Item] = []              # as the schedules have them; observers know these
        cells = len(self.buffers)
        for record in records:
            self._add(record, range(cells, cells + len(record.compiled.cell_types)))
            cells += len(record.compiled.cell_types)

    def _add(self, record: Record, cells: Sequence[int]) -> None:
        """Add a schedule, whose scalars have the slots `cells` here."""
        compiled, slots, first = record.compiled, self.planned.slots, len(self.planned.slots)
        wholes = [(self.slot_of[node.base], address - node.base.arg.address)
                  for node, address in zip(record.normal.buffers, record.normal.addresses)]
        wholes += [(cell, 0) for cell in cells]
        results = {slot: self.slot_of[node] for slot, node in zip(compiled.planned.sinks, record.results)}
        for i, slot in enumerate(compiled.planned.slots):
            whole, offset = wholes[i] if i < len(wholes) else (results.get(i), 0)
            if slot.whole is not None:
                upon = slots[first + slot.whole]
                whole = first + slot.whole if upon.whole is None else upon.whole
                offset = upon.offset + slot.offset
            shape = slot.shape if record.served is None else compiled.layouts.shape(i, record.served.values)
            slots.append(replace(slot, shape=shape, whole=whole, offset=offset))
        self.planned.items += [replace(item, slots=tuple([first + slot for slot in item.slots]))
                               for item in compiled.items]
        self.planned.updates += [Update(first + u.source, first + u.result, first + u.copied, u.size)
                                 for u in compiled.planned.updates]
        self.programs += compiled.programs
        self.items += compiled.items

    def whole(self, slot: int) -> int:
        """The slot that another is a piece of; itself, if it is none."""
        whole = self.planned.slots[slot].whole
        return slot if whole is None else whole

    def drop_unread(self, needed: set[int]) -> None:
        """Drop the launches whose results neither a later launch nor the caller can read. `needed` are the slots of
        buffers that outlive the call, and of flags."""
        kept = []
        for number, item in reversed(list(enumerate(self.planned.items))):
            if not needed.isdisjoint(map(self.whole, item.slots[:item.results])):
                needed.update(map(self.whole, item.slots))
                kept.append(number)
        self.items, self.programs, self.planned.items = (
            [rows[number] for number in sorted(kept)] for rows in (self.items, self.programs, self.planned.items))


def _numbers(record: Record) -> list[tuple[Cell | Symbol | None, Any]]:
    """The scalars of a schedule with their values: cells and variables, which each call writes, and what is the same in
    all calls: the sizes that kernels for all sizes run with, and constants."""
    normal = record.normal
    written: list[Cell | Symbol] = [*[n.arg for n in normal.cells], *normal.symbols]
    same = [*(record.served.values if record.served is not None else ()),
            *[normal.constants[i].arg for i in record.compiled.scalars]]
    return [*[(number, number.value) for number in written], *[(None, value) for value in same]]


class Replay:
    """The launches of a trace as one compiled schedule. `outside` are the buffers to be bound each time, with the
    symbols they are bound by; all else is bound here. `renewed` are the buffers that results of a call replace."""

    def __init__(self, trace: Trace, outside: dict[UOp, UOp], renewed: Set[UOp]):
        merged = _MergedSchedules(trace.records)
        made = {node for record in trace.records for node in record.results}
        flags = {flag.buffer for flag in trace.flags}
        merged.drop_unread({slot for slot, base in enumerate(merged.buffers) if base in outside or base.arg in flags})
        self.compiled = compiled = CompiledSchedule(merged.planned, (), len(merged.buffers), merged.programs)
        self.items, self.programs, self.costs = merged.items, compiled.programs, compiled.costs
        self.is_long = sum(map(backend.longest_work, self.programs)) > backend.LONG_WORK
        self._kept = [base for base in merged.buffers if base not in outside]     # constants, and between two schedules
        self.streams = {n.src[1].arg for record in trace.records for n in record.normal.order
                        if n.op is o.RANDOM and n.src[1].op is o.SCALAR}       # cells that count random streams
        self._place(merged)
        self._find_slots(merged, outside)
        self._bind_plans()
        self._flags: list[tuple[int, int]] = []               # (address, bound) of values that can end a run
        self.pause = 0                                        # launches that run before the flags are checked
        self.updates = self._updates()
        self.memory = self._memory({*merged.buffers} - renewed, made)

    def _place(self, merged: _MergedSchedules) -> None:
        """Find the addresses of all that is bound once, and of the scalars that each call writes (`numbers`)."""
        buffers, compiled = merged.buffers, self.compiled
        self._blocks: list[Any] = []                          # the arenas
        self._addresses = [base.arg.address for base in buffers] + compiled.unbound
        compiled.write_numbers([value for _, value in merged.numbers])
        compiled.allocate_arenas(self._addresses, compiled.layout, self._blocks)
        # cells and variables, with the address of the value
        rows = zip(merged.numbers, compiled.cell_types, self._addresses[len(buffers):])
        self.numbers = [(number, dtype, address) for (number, _), dtype, address in rows if number is not None]

    def _find_slots(self, merged: _MergedSchedules, outside: dict[UOp, UOp]) -> None:
        """Find the slots of each symbol, with byte offsets."""
        self._slots: dict[UOp, dict[int, int]] = {symbol: {} for symbol in outside.values()}
        for slot, row in enumerate(merged.planned.slots):
            whole = merged.whole(slot)
            if whole < len(merged.buffers) and merged.buffers[whole] in outside:
                self._slots[outside[merged.buffers[whole]]][slot] = row.offset

    # -- memory --------------------------------------------------------------------------------------------
    def _memory(self, given: Set[UOp], made: Set[UOp]) -> MemoryUse:
        """The memory of a call: arena, inputs, and results twice, because those of the call before are alive. Weights
        that a call replaces count as results."""
        total = lambda nodes: sum(node.arg.nbytes for node in nodes)
        kept = made & {*self._kept}
        between = sum(block.nbytes for _, block in self._blocks) + total(kept)
        return MemoryUse(total(given - made), 2 * total(made - kept), between, self.compiled.memory.scratch)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            for memory, block in getattr(self, "_blocks", ()):
                memory.release(block)

    def _bind_plans(self) -> None:
        """Bind what never changes, and find where the addresses of symbols are written: on the CPU, one plan."""
        self._plans: list[Any] = [segment.plan for segment in self.compiled.segments]
        for plan in self._plans:
            plan.bind(self._addresses)
        only: Any = self._plans[0] if len(self._plans) == 1 else None
        self.at_once = only is not None and only.uninterrupted       # one foreign call: nothing comes in between
        self.ends_early = self.at_once and only.ends_early           # a flag can end a run in the middle
        uses = [plan.uses() for plan in self._plans]
        self.pointers = {symbol: [(array, position, offset) for slot, offset in places.items()
                                  for by_slot in uses for array, position in by_slot.get(slot, ())]
                         for symbol, places in self._slots.items()}

    def _updates(self) -> dict[UOp, PartialUpdate]:
        """The results that may be written over the value they replace a part of: nothing reads it afterwards."""
        symbols = {slot: symbol for symbol, places in self._slots.items() for slot, offset in places.items()
                   if not offset}
        updates = {}
        for i, update in enumerate(self.compiled.planned.updates):
            source, result = symbols.get(update.source), symbols.get(update.result)
            if source is not None and result is not None:
                first = next(number for number, item in enumerate(self.compiled.items) if update.copied in item.slots)
                if not self._read_after(first, source):
                    copied = ctypes.c_int64.from_buffer(self.compiled.copied, 8 * i)
                    updates[result] = PartialUpdate(source, copied, update.size)
        return updates

    def _read_after(self, number: int, symbol: UOp) -> bool:
        return any(not self._slots[symbol].keys().isdisjoint(item.slots) for item in self.compiled.items[number + 1:])

    def check(self, flags: Sequence[RunCheck]) -> None:
        """Let a run end early if the flags, once they are written, report an error. Where a plan cannot end early, the
        caller checks them after each run, and no result counts as written after the check."""
        if not self.ends_early:
            self.pause = len(self.items) + 1
            return
        self._flags = [(flag.buffer.address + 4 * i, bound) for flag in flags for i, bound in enumerate(flag.bounds)]
        places = {flag.buffer.address for flag in flags}
        writers = [i for i, item in enumerate(self.compiled.items)
                   if any(self._addresses[slot] in places for slot in item.slots[:item.results])]
        self.pause = writers[-1] + 1 if writers else len(self.items)
        self._plans[0].check(self.pause, self._flags)

    def stays(self, symbols: Collection[UOp]) -> None:
        """These results are written in place: their bytes count once, and as a failed call must leave the values there
        whole, a run is not interrupted once the first of them is written."""
        self.memory = self.memory._replace(results=self.memory.results - sum(s.arg.nbytes for s in symbols))
        first = [number for symbol in symbols for number in self._writers(symbol)]
        if first and self.at_once:
            self._plans[0].keep_together(min(first))

    def _writers(self, symbol: UOp) -> list[int]:
        return [i for i, item in enumerate(self.compiled.items)
                if not self._slots[symbol].keys().isdisjoint(item.slots[:item.results])]

    def waits(self, symbol: UOp) -> bool:
        """Whether a result is written only after the flags are checked."""
        return min(self._writers(symbol), default=-1) >= self.pause

    def rewrites(self, source: UOp, result: UOp) -> bool:
        """Whether one symbol's value may be written over another's: nothing reads the old one afterwards, and the
        launch that writes the new one reads of it just the element that it writes."""
        writers = self._writers(result)
        if len(writers) != 1 or self._read_after(writers[0], source):
            return False
        item = self.compiled.items[writers[0]]
        reads, writes = ([at for at, slot in enumerate(item.slots) if slot in self._slots[symbol]]
                         for symbol in (source, result))
        read_first = getattr(self.compiled.programs[writers[0]], "read_first", ())
        return len(writes) == 1 and all((writes[0], at) in read_first or rewrites(item.ast, writes[0], at)
                                        for at in reads)

    # -- running ---------------------------------------------------------------------------------------------
    def bind(self, symbol: UOp, address: int) -> None:
        """Write the address of a symbol's buffer into all launches that use it."""
        for array, position, offset in self.pointers[symbol]:
            array[position] = address + offset

    def prepare(self) -> None:
        """Take the settings as they are now; `run` does not look at them."""
        runners = [plan.runner() for plan in self._plans]
        self._run = runners[0] if len(runners) == 1 else lambda: any(run() for run in runners)
        self._debug = settings.DEBUG
        if self._debug:
            report_parts([(segment.device, segment.items) for segment in self.compiled.segments])

    def run(self) -> bool:
        """Run every launch, in order; return whether a flag ended the run."""
        start = perf_counter()
        watched = self._debug or observers
        ended = self.compiled.run_watched(self, self._debug, None, self._is_flagged) if watched else self._run()
        if not ended:
            elapsed = perf_counter() - start
            count_run(self.compiled.work or self.compiled.work_now(), elapsed)
            if self._debug:
                report_run(len(self.items), elapsed, self.memory)
        return ended

    def stopwatches(self) -> list[Stopwatch]:
        """A stopwatch for each plan, for the settings of now."""
        return self.compiled.stopwatches()

    def _is_flagged(self, number: int) -> bool:
        """Whether the flags, which are checked before the kernel of this number, report an error."""
        return number == self.pause and any(
            int.from_bytes(Device[self.compiled.segments[0].device].copy_out(address, 4), "little", signed=True) < bound
            for address, bound in self._flags)
