"""Run a trace again as one list of commands. In: a `Trace`, and where its inputs come from. Out: `Replay`.

Every buffer of the trace gets a symbol. What never changes (memory between kernels, constants) is bound once; inputs
and results that outlive the call are bound anew each time, by writing their address into the launches that use them.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import Cell, DType, UOp, ops as o
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.compiler.schedule.partial_updates import rewrites
from glassgrad.engine.capture import RunCheck, Trace
from glassgrad.engine.counters import GlobalCounters
from glassgrad.engine.custom_calls import HOST_PLANS, one_device_each
from glassgrad.engine.debug_report import report_parts, report_run, run_reported
from glassgrad.engine.memory_plan import MemoryUse
from glassgrad.engine.observer import observing, run_timed, tell_ran
from glassgrad.engine.schedule_key import scalar_bytes
from glassgrad.runtime import backend
from glassgrad.runtime.devices import Device

if TYPE_CHECKING:
    from glassgrad.runtime.backend import Stopwatch

_Use = tuple[str, Any, tuple[int, ...], Item]      # a launch: its device, program, slots and kernel
Write = tuple[Any, int, int]       # an array of addresses, a position in it, and the address to write there


class PartialUpdate(NamedTuple):
    """A result that is an earlier value with a part replaced, and the number of elements copied for it."""
    source: UOp
    result: UOp
    copied: Any                              # ctypes.c_int64
    size: int


class Replay:
    """The launches of a trace. `outside` are the buffers to be bound each time, with the symbols they are bound by; all
    else is bound here, and the trace is let go. `renewed` are the buffers that a call puts its results in place of."""

    def __init__(self, trace: Trace, outside: dict[UOp, UOp], renewed: Set[UOp]):
        self.items: list[Item] = []
        self.programs: list[Any] = []
        self.operations = self.bytes = 0
        self._kept: list[Any] = []                            # constants, and what lies between two schedules
        self._symbols: dict[UOp, list[tuple[int, int]]] = {s: [] for s in outside.values()}    # (slot, byte offset)
        self._plans: list[tuple[str, Any, Sequence[int]]] = []
        self._watches: list[Stopwatch] = []                   # made when something observes
        self.cells: list[tuple[Cell, DType, int, bool]] = []  # (cell, type, address, is a random stream)
        self.sizes: list[tuple[Symbol, int]] = []             # variables, and the address of their value
        size = sum(r.compiled.slots for r in trace.records)
        self._addresses = [0] * size
        self._memory_of: dict[int, Any] = {}                  # what lies at a slot: a buffer's node, or the slot itself
        self._arenas = self._claim(trace)
        first = 0
        updates: list[tuple[int, int, int, Any]] = []
        uses: list[_Use] = []
        for record in trace.records:
            compiled, normal = record.compiled, record.normal
            for i, node in enumerate(normal.buffers):
                self._place(first + i, node, normal.addresses[i], outside)
            self._cells_of(record, first + len(normal.buffers))
            for update in compiled.planned.updates:
                copied = ctypes.c_int64(update.size)
                self._kept.append(copied)
                self._addresses[first + update.copied] = ctypes.addressof(copied)
                updates.append((first + update.source, first + update.result, first + update.copied, copied))
            for slot, node in zip(compiled.planned.sinks, record.results):
                self._place(first + slot, node, node.arg.address, outside)
            for name, _, rows in compiled.arenas:
                for slot, offset in rows:
                    self._addresses[first + slot] = self._arenas[name].address + offset
                    self._memory_of[first + slot] = first + slot
            self._place_pieces(compiled.pieces, first)
            for segment in compiled.segments:
                shared = dict(segment.shared)
                at = segment.first_shared
                for number, (item, program) in enumerate(zip(segment.items, segment.programs)):
                    own = tuple(range(at, at + len(shared.get(number, ()))))
                    at += len(own)
                    uses.append((segment.device, program, tuple(first + s for s in (*item.slots, *own)), item))
            first += compiled.slots
        uses = self._without_unread(uses, {*outside, *[n for record in trace.records for n in record.results
                                                       if any(n.arg is flag.buffer for flag in trace.flags)]})
        self._memory_of.clear()                               # the trace's own buffers are not kept
        self.operations = sum(program.operations for _, program, _, _ in uses)
        self.bytes = sum(program.bytes for _, program, _, _ in uses)
        self.is_long = max(self.operations, backend.OPERATIONS_PER_BYTE * self.bytes) > backend.LONG_WORK
        self._make_plans(uses)
        self._flags: list[tuple[int, int]] = []               # (address, bound) of numbers that end a run
        self.pause = 0                                        # launches that run before they are looked at
        self._slots = [u[2] for u in uses]
        self.updates = list(self._updates(updates))
        self.memory = self._memory(trace, renewed)

    # -- where things lie ------------------------------------------------------------------------------------
    def _claim(self, trace: Trace) -> dict[str, Any]:
        """One arena per device, large enough for each schedule in turn."""
        most: dict[str, int] = {}
        for record in trace.records:
            for name, total, _ in record.compiled.arenas:
                most[name] = max(most.get(name, 0), total)
        self._memories = {name: Device[name].memory for name in most}      # a name may come to mean another device
        return {name: self._memories[name].allocate(total) for name, total in most.items()}

    def _memory(self, trace: Trace, renewed: Set[UOp]) -> MemoryUse:
        """What a call needs: the arena, what it brings, and results twice, because those of the call before are alive;
        weights that it renews are among them."""
        made = {node for record in trace.records for node in record.results}
        given = {node.base for record in trace.records for node in record.normal.buffers} - made - renewed
        kept = {node for node in self._kept if isinstance(node, UOp)} & made
        total = lambda nodes: sum(node.arg.nbytes for node in nodes)
        scratch = max((s.plan.scratch for record in trace.records for s in record.compiled.segments), default=0)
        return MemoryUse(total(given), 2 * total(made - kept),
                         sum(block.nbytes for block in self._arenas.values()) + total(kept), scratch)

    def stays(self, nbytes: int) -> None:
        """So many bytes of results lie where those of the call before did: they are needed once."""
        self.memory = self.memory._replace(results=self.memory.results - nbytes)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            for name, block in getattr(self, "_arenas", {}).items():
                self._memories[name].release(block)

    def _place(self, slot: int, node: UOp, address: int, outside: dict[UOp, UOp]) -> None:
        """Bind a slot to the buffer under `node` (a piece of it begins at `address`)."""
        base = node.base
        if base in outside:
            self._symbols[outside[base]].append((slot, address - base.arg.address))
        else:                                # made and used up inside the call, or a constant of it
            self._kept.append(base)
        self._addresses[slot] = address
        self._memory_of[slot] = base

    def _place_pieces(self, pieces: Sequence[tuple[int, int, int]], first: int) -> None:
        """Bind slots that are pieces of others; those of symbols follow them."""
        outside = {slot: (symbol, start) for symbol, places in self._symbols.items() for slot, start in places} \
            if pieces else {}
        for slot, whole, offset in pieces:
            self._addresses[first + slot] = self._addresses[first + whole] + offset
            self._memory_of[first + slot] = self._memory_of.get(first + whole)
            if first + whole in outside:
                symbol, start = outside[first + whole]
                self._symbols[symbol].append((first + slot, start + offset))

    def _cells_of(self, record: Any, first: int) -> None:
        normal, compiled = record.normal, record.compiled
        streams = {n.src[1] for n in normal.order if n.op is o.RANDOM}
        values = [(n.arg, n in streams) for n in normal.cells]
        values += [(Cell(s.value), False) for s in normal.symbols]
        values += [(Cell(normal.constants[i].arg), False) for i in compiled.scalars]
        memory = (ctypes.c_char * (8 * max(1, len(values))))()
        self._kept.append(memory)
        for i, ((cell, stream), dtype) in enumerate(zip(values, compiled.cell_types)):
            address = ctypes.addressof(memory) + 8 * i
            self._addresses[first + i] = address
            ctypes.memmove(address, scalar_bytes(cell.value, dtype), 8)
            if i < len(normal.cells):
                self.cells.append((cell, dtype, address, stream))
            elif i < len(normal.cells) + len(normal.symbols):
                self.sizes.append((normal.symbols[i - len(normal.cells)], address))

    def _without_unread(self, uses: list[_Use], needed: set[Any]) -> list[_Use]:
        """The launches without those whose results neither a later launch nor the caller can read. `needed` are the
        buffers that outlive the call, and the flags."""
        kept = []
        for use in reversed(uses):
            memory = [self._memory_of.get(slot) for slot in use[2]]
            if not needed.isdisjoint(memory[:use[3].results]):
                needed.update(memory)
                kept.append(use)
        return kept[::-1]

    def _make_plans(self, uses: list[_Use]) -> None:
        """Neighbours on one device become one plan: on the CPU, one foreign call."""
        self.items = [u[3] for u in uses]
        self.programs = [u[1] for u in uses]
        for span in one_device_each(self.items):
            device, _, _, item = uses[span[0]]
            make = HOST_PLANS.get(item.ast.op, Device[device].replay_plan)
            plan = make([uses[i][1] for i in span], [uses[i][2] for i in span])
            plan.bind(self._addresses)
            plan.lines = [uses[i][3].lines for i in span]
            self._plans.append((device, plan, span))
        self._pointers = {symbol: [(array, position, offset) for slot, offset in places
                                   for _, plan, _ in self._plans for array, position in plan.uses_of(slot)]
                          for symbol, places in self._symbols.items()}

    def _updates(self, found: list[tuple[int, int, int, Any]]) -> Iterator[PartialUpdate]:
        """Results that may take the place of the value they replace a part of: nothing reads that afterwards."""
        symbols = {slot: symbol for symbol, places in self._symbols.items() for slot, offset in places if not offset}
        for source, result, cell, copied in found:
            if source in symbols and result in symbols:
                first = next(i for i, slots in enumerate(self._slots) if cell in slots)
                if not self._read_after(first, symbols[source]):
                    yield PartialUpdate(symbols[source], symbols[result], copied, copied.value)

    def _read_after(self, launch: int, symbol: UOp) -> bool:
        places = {slot for slot, _ in self._symbols[symbol]}
        return any(not places.isdisjoint(slots) for slots in self._slots[launch + 1:])

    def check(self, flags: Sequence[RunCheck]) -> None:
        """Once the flags are written, in the middle of a run, go on only if all is well. Where a plan cannot end there,
        the caller looks at them after each run, and no result counts as written behind them."""
        if not self.ends_early:
            self.pause = len(self.items) + 1
            return
        self._flags = [(flag.buffer.address + 4 * i, bound) for flag in flags for i, bound in enumerate(flag.bounds)]
        places = {flag.buffer.address for flag in flags}
        writers = [i for i, (slots, item) in enumerate(zip(self._slots, self.items))
                   if any(self._addresses[slot] in places for slot in slots[:item.results])]
        self.pause = writers[-1] + 1 if writers else len(self.items)
        self._plans[0][1].check(self.pause, self._flags)
        self._watches = []

    def keep_together(self, symbols: Iterable[UOp]) -> None:
        """These results are written over values that a failed call must leave whole: once the first of them is written,
        the run is not interrupted."""
        first = [number for symbol in symbols for number in self._writers(symbol)]
        if first and self.at_once:
            self._plans[0][1].keep_together(min(first))

    def _writers(self, symbol: UOp) -> list[int]:
        places = {slot for slot, _ in self._symbols[symbol]}
        return [i for i, (slots, item) in enumerate(zip(self._slots, self.items))
                if not places.isdisjoint(slots[:item.results])]

    def waits(self, symbol: UOp) -> bool:
        """Whether a result is written only after the pause."""
        return min(self._writers(symbol), default=-1) >= self.pause

    def rewrites(self, source: UOp, result: UOp) -> bool:
        """Whether one symbol's value may be written over another's: nothing reads the old one afterwards, and the
        launch that writes the new one reads of it just the element that it writes."""
        old, new = ({slot for slot, _ in self._symbols[symbol]} for symbol in (source, result))
        writers = self._writers(result)
        if len(writers) != 1 or self._read_after(writers[0], source):
            return False
        slots = self._slots[writers[0]]
        reads, writes = ([at for at, slot in enumerate(slots) if slot in places] for places in (old, new))
        return len(writes) == 1 and all(rewrites(self.items[writers[0]].ast, writes[0], at) for at in reads)

    @property
    def at_once(self) -> bool:
        """Whether all of it is one foreign call: nothing can come in between, or fail halfway."""
        return len(self._plans) == 1 and bool(self._plans[0][1].uninterrupted)

    @property
    def ends_early(self) -> bool:
        """Whether a flag can end a run in the middle."""
        return self.at_once and bool(self._plans[0][1].ends_early)

    # -- running ---------------------------------------------------------------------------------------------
    def bind(self, symbol: UOp, address: int) -> None:
        """The buffer that was `symbol` in the trace is at this address from now on."""
        for array, position, offset in self._pointers[symbol]:
            array[position] = address + offset

    def pointers(self, symbol: UOp) -> list[tuple[Any, int, int]]:
        """Where a buffer's address is written: (array, position, byte offset)."""
        return self._pointers[symbol]

    def writes(self, symbol: UOp, address: int) -> list[Write]:
        """What `bind` would write."""
        return [(array, position, address + offset) for array, position, offset in self._pointers[symbol]]

    def prepare(self) -> None:
        """Take the settings as they are now; `run` does not look at them."""
        self._runners, self._watches = [plan.runner() for _, plan, _ in self._plans], []
        self._debug = settings.DEBUG
        if self._debug:
            report_parts([(device, [self.items[number] for number in span]) for device, _, span in self._plans])

    def run(self) -> bool:
        """Every launch, in order; whether a flag ended it."""
        if self._debug or observing():
            return self._run_watched(self._debug)
        start = time.perf_counter()
        for run in self._runners:
            if run():
                return True
        GlobalCounters.count_run(len(self.items), self.operations, self.bytes, time.perf_counter() - start)
        return False

    def _run_watched(self, debug: int) -> bool:
        """The same, shown or timed."""
        start = time.perf_counter()
        if debug < 2 and not observing():
            for run in self._runners:
                if run():
                    return True
        elif debug < 2:
            if run_timed(self):
                return True
        elif self._run_one_by_one(debug):
            return True
        elapsed = time.perf_counter() - start
        GlobalCounters.count_run(len(self.items), self.operations, self.bytes, elapsed)
        if debug:
            report_run(len(self.items), elapsed, self.memory)
        return False

    def stopwatches(self) -> list[Stopwatch]:
        """A stopwatch for each plan, for the settings that `prepare` took."""
        if not self._watches:
            self._watches = [plan.stopwatch() for _, plan, _ in self._plans]
        return self._watches

    def _run_one_by_one(self, debug: int) -> bool:
        start, times = time.perf_counter_ns(), []
        for _, plan, span in self._plans:
            for i, number in enumerate(span):
                if number == self.pause and self._is_flagged():
                    return True
                times.append(run_reported(plan, i, number, self.items[number], self.programs[number], debug))
        tell_ran(self, (start, time.perf_counter_ns()), lambda: times)
        return self.pause == len(self.items) and self._is_flagged()

    def _is_flagged(self) -> bool:
        device = Device[self._plans[0][0]]
        return any(int.from_bytes(device.copy_out(address, 4), "little", signed=True) < bound
                   for address, bound in self._flags)
