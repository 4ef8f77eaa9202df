"""Merge a trace into one list of launches that can run again. In: a `Trace`, and where its inputs come from. Out:
`Replay`.

The schedules of a trace are merged into one, which is compiled like any other. What never changes (memory between
kernels, constants) is bound once. The buffers of inputs and of results that outlive the call have symbols: each call
binds them anew by writing their addresses into the launches that use them.
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
    """A result that is an earlier value with a part replaced, and the number of elements that are copied from that
    value (0 if the part is written in place)."""
    source: UOp
    copied: Any                              # ctypes.c_int64
    size: int


class _MergedSchedules:
    """All schedules of a trace as one. Each buffer and each scalar has a slot; the slots that the single schedules have
    for it are pieces of that slot."""

    def __init__(self, records: Sequence[Record]):
        self.buffers = list(dict.fromkeys(n.base for r in records for n in (*r.normal.buffers, *r.results)))
        self.scalars = [number for record in records for number in _scalars_of(record)]
        slots = [Slot(base.shape, base.dtype, base.device) for base in self.buffers]
        slots += [Slot((), dtype, None) for record in records for dtype in record.compiled.cell_types]
        self.slot_of = {base: slot for slot, base in enumerate(self.buffers)}
        self.planned = Schedule([], slots, len(slots), sinks=[self.slot_of[n] for r in records for n in r.results])
        self.programs: list[Any] = []
        self.items: list[Item] = []              # the items of the single schedules, which observers were told about
        cells = len(self.buffers)
        for record in records:
            self._add(record, range(cells, cells + len(record.compiled.cell_types)))
            cells += len(record.compiled.cell_types)

    def _add(self, record: Record, cells: Sequence[int]) -> None:
        """Add a schedule, whose scalars get the slots `cells`."""
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
        """Return the slot that this one is a piece of, or the slot itself."""
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


def _scalars_of(record: Record) -> list[tuple[Cell | Symbol | None, Any]]:
    """Return the scalars of a schedule with their values: cells and variables, which each call writes, and those (as
    None) that are the same in all calls: constants, and the sizes that kernels for all sizes run with."""
    normal = record.normal
    written: list[Cell | Symbol] = [*[n.arg for n in normal.cells], *normal.symbols]
    same = [*(record.served.values if record.served is not None else ()),
            *[normal.constants[i].arg for i in record.compiled.scalars]]
    return [*[(number, number.value) for number in written], *[(None, value) for value in same]]


class Replay:
    """The launches of a trace as one compiled schedule. `outside` has the buffers that each call binds, with their
    symbols; all other memory is bound once. `updated` are the buffers of weights and gradients that a call gives a new
    value."""

    def __init__(self, trace: Trace, outside: dict[UOp, UOp], updated: Set[UOp]):
        merged = _MergedSchedules(trace.records)
        made = {node for record in trace.records for node in record.results}
        flags = {flag.buffer for flag in trace.flags}
        merged.drop_unread({slot for slot, base in enumerate(merged.buffers) if base in outside or base.arg in flags})
        self.compiled = compiled = CompiledSchedule(merged.planned, (), len(merged.buffers), merged.programs)
        self.items, self.programs, self.costs = merged.items, compiled.programs, compiled.costs
        self.is_long = sum(map(backend.longest_work, self.programs)) > backend.LONG_WORK
        self._kept = [base for base in merged.buffers if base not in outside]     # keeps their memory alive
        self.streams = {n.src[1].arg for record in trace.records for n in record.normal.order
                        if n.op is o.RANDOM and n.src[1].op is o.SCALAR}       # cells that count random streams
        self._place(merged)
        self._find_slots(merged, outside)
        self._bind_plans()
        self._flags: list[tuple[int, int]] = []               # (address, bound): a value below its bound ends the run
        self.pause = 0                                        # number of launches before the flags are checked
        self.updates = self._updates()
        self.memory = self._memory({*merged.buffers} - updated, made)

    def _place(self, merged: _MergedSchedules) -> None:
        """Find the addresses of all that is bound once, and of the scalars that each call writes (`scalars`)."""
        buffers, compiled = merged.buffers, self.compiled
        self._blocks: list[Any] = []                          # the arenas
        self._addresses = [base.arg.address for base in buffers] + compiled.unbound
        compiled.write_scalars([value for _, value in merged.scalars])
        compiled.allocate_arenas(self._addresses, compiled.layout, self._blocks)
        # (cell or variable, its type, the address of its value)
        rows = zip(merged.scalars, compiled.cell_types, self._addresses[len(buffers):])
        self.scalars = [(number, dtype, address) for (number, _), dtype, address in rows if number is not None]

    def _find_slots(self, merged: _MergedSchedules, outside: dict[UOp, UOp]) -> None:
        """Find the slots of each symbol, with their byte offsets in its buffer."""
        self._slots: dict[UOp, dict[int, int]] = {symbol: {} for symbol in outside.values()}
        for slot, row in enumerate(merged.planned.slots):
            whole = merged.whole(slot)
            if whole < len(merged.buffers) and merged.buffers[whole] in outside:
                self._slots[outside[merged.buffers[whole]]][slot] = row.offset

    # -- memory --------------------------------------------------------------------------------------------
    def _memory(self, given: Set[UOp], made: Set[UOp]) -> MemoryUse:
        """Return the memory of a call: arena, inputs, and results twice, because those of the call before are still
        alive. Weights that a call replaces count as results."""
        total = lambda nodes: sum(node.arg.nbytes for node in nodes)
        kept = made & {*self._kept}
        between = sum(block.nbytes for _, block in self._blocks) + total(kept)
        return MemoryUse(total(given - made), 2 * total(made - kept), between, self.compiled.memory.scratch)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            for memory, block in getattr(self, "_blocks", ()):
                memory.release(block)

    def _bind_plans(self) -> None:
        """Bind what never changes, and find where the launches have the addresses of symbols. On the CPU there is one
        plan."""
        self._plans: list[Any] = [segment.plan for segment in self.compiled.segments]
        for plan in self._plans:
            plan.bind(self._addresses)
        only: Any = self._plans[0] if len(self._plans) == 1 else None
        self.is_one_call = only is not None and only.uninterrupted       # a run can complete as one foreign call
        self.ends_early = self.is_one_call and only.ends_early           # a flag can end a run in the middle
        uses = [plan.uses() for plan in self._plans]
        self.pointers = {symbol: [(array, position, offset) for slot, offset in places.items()
                                  for by_slot in uses for array, position in by_slot.get(slot, ())]
                         for symbol, places in self._slots.items()}

    def _updates(self) -> dict[UOp, PartialUpdate]:
        """Find the results that replace a part of a value and may overwrite it, because nothing reads the old value
        afterwards."""
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
        """Let a run end early if the flags report an error once they are written. If the plan cannot end early, the
        caller checks the flags after each run, and no result counts as written after the check."""
        if not self.ends_early:
            self.pause = len(self.items) + 1
            return
        self._flags = [(flag.buffer.address + 4 * i, bound) for flag in flags for i, bound in enumerate(flag.bounds)]
        places = {flag.buffer.address for flag in flags}
        writers = [i for i, item in enumerate(self.compiled.items)
                   if any(self._addresses[slot] in places for slot in item.slots[:item.results])]
        self.pause = writers[-1] + 1 if writers else len(self.items)
        self._plans[0].check(self.pause, self._flags)

    def write_in_place(self, symbols: Collection[UOp]) -> None:
        """Declare that these results are written in place. Their bytes then count once, and a run is not interrupted
        from the first of them on, because a failed call must leave the old values whole."""
        self.memory = self.memory._replace(results=self.memory.results - sum(s.arg.nbytes for s in symbols))
        first = [number for symbol in symbols for number in self._writers(symbol)]
        if first and self.is_one_call:
            self._plans[0].keep_together(min(first))

    def _writers(self, symbol: UOp) -> list[int]:
        return [i for i, item in enumerate(self.compiled.items)
                if not self._slots[symbol].keys().isdisjoint(item.slots[:item.results])]

    def waits_for_checks(self, symbol: UOp) -> bool:
        """Return whether a result is written only after the flags are checked."""
        return min(self._writers(symbol), default=-1) >= self.pause

    def may_overwrite(self, source: UOp, result: UOp) -> bool:
        """Return whether one symbol's value may be written over another's: nothing reads the old value afterwards, and
        the launch that writes an element of the new value reads just that element of the old one."""
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
        """Take over the present settings; `run` does not look at settings."""
        runners = [plan.runner() for plan in self._plans]
        self._run = runners[0] if len(runners) == 1 else lambda: any(run() for run in runners)
        self._debug = settings.DEBUG
        if self._debug:
            report_parts([(segment.device, segment.items) for segment in self.compiled.segments])

    def run(self) -> bool:
        """Run all launches in order; return whether a flag ended the run."""
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
        """Return a stopwatch for each plan, under the present settings."""
        return self.compiled.stopwatches()

    def _is_flagged(self, number: int) -> bool:
        """Return whether the flags report an error, if they are checked before the kernel of this number."""
        return number == self.pause and any(
            int.from_bytes(Device[self.compiled.segments[0].device].copy_out(address, 4), "little", signed=True) < bound
            for address, bound in self._flags)
