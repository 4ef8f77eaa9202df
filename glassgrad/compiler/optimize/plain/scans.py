"""Compute running totals with groups of threads. In: the loops of a scan. Out: loops with all threads busy, or None.

    r = start; for k in n: r += f(k); out[k] = r

A group goes along a row in blocks. Each thread adds up `tile` neighbours. The threads' totals are added in two levels
of 16, in shared memory. Then each thread adds the total of all elements before its neighbours to them, and stores them.
Meanwhile it loads those of the next block.

    r = start
    for blocks of k:
        LANE l:  p[u] = f(4 l + u), p[u] += p[u - 1];  sums[l] = p[3]
        LANE j:  inside[16 j + i] = sums[16 j] + .. + sums[16 j + i];  tops[j] = the last of them
                 above[j] = tops[0] + .. + tops[j]
        LANE l:  out[4 l + u] = r + above[l / 16 - 1] + inside[l - 1] + p[u]
        r += above[15]

If there are too few rows to keep a GPU busy, each is cut into chunks: first the totals of chunks, then their running
totals, then each chunk by itself, starting from the total before it. The order of additions follows from sizes alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, less, modulo, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, Accumulate, Assign, For, Statement, Store, counter,
                                            current, flat_index, load, loads_in, local, loops_around, nested,
                                            piece_bound, register)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, fixed
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below, edge_gate
from glassgrad.compiler.optimize.product.recognize import stride_along
from glassgrad.compiler.optimize.targets.target import Target

TILE = 4                 # neighbours per thread: it loads and stores 16 bytes, and neighbouring threads whole lines
AHEAD = 32               # elements of its columns that a thread loads at once
SIDE = 16                # threads whose totals one thread adds up
MOST_LANES = SIDE * SIDE
LEAST_ROW = 128          # shorter rows are left to one thread each
NEIGHBOURS = 4           # columns per thread, if threads go down columns
CHUNKS = 16              # chunks per group that keeps a GPU busy: at the end, few processors are idle
LEAST_COLUMNS = 64       # columns per group: if each processor has one group, columns are not cut
LEAST_CHUNK = 64         # steps of a chunk whose rows are adjacent in memory


@dataclass(frozen=True)
class ScannedLanes(Choice, names=["scan"]):
    """A running total computed by a group of threads: how many they are decides the order of additions."""
    loop: str = fixed()
    tile: int = fixed()
    lanes: int = fixed()


@dataclass(frozen=True)
class ScannedChunks(Choice, names=["chunks"]):
    """A running total in chunks of a row."""
    loop: str = fixed()
    chunk: int = fixed()


@dataclass
class RunningTotal:
    """total = start; for loop: total = combine(total, value); and stores that read the total."""
    total: UOp
    start: UOp
    loop: For
    combine: o.Op
    value: UOp
    stores: list[Store]

    @staticmethod
    def of(body: list[Statement]) -> RunningTotal | None:
        """Recognize a body of this form and nothing else; None for others."""
        begin, loop = body if len(body) == 2 else (None, None)
        if not isinstance(begin, Assign) or not isinstance(loop, For) or loop.kind != LOOP or not loop.body:
            return None
        first, stores = loop.body[0], [s for s in loop.body[1:] if isinstance(s, Store) and s.combine is None]
        if not isinstance(first, Accumulate) or first.register is not begin.register or not stores or \
                len(stores) != len(loop.body) - 1:
            return None
        reads = [n for e in (first.value, *[s.index for s in stores]) for n in toposort([e]) if n.op is o.REGISTER]
        memories = {n.src[0] for n in loads_in(loop.body)}
        if reads or any(s.memory in memories or s.gate is not None for s in stores):
            return None
        return RunningTotal(begin.register, begin.value, loop, first.combine, first.value, stores)

    @property
    def is_along_memory(self) -> bool:
        """Whether consecutive iterations of the loop are adjacent in memory."""
        return all(abs(stride_along(s.index, self.loop.range) or 0) == 1 for s in self.stores)


def scan_in_chunks(loops: list[For], inner: list[Statement], work: int, target: Target, decisions: Decisions) \
        -> list[list[Statement]] | None:
    """The loop nests of a scan with few rows: totals of chunks, their running totals, then the chunks. Refuses (None)
    another form, many rows, and little work."""
    scan = RunningTotal.of(inner)
    if scan is None or work < target.cut_steps or any(f.stop is not None for f in (*loops, scan.loop)):
        return None
    n, rows = scan.loop.range.arg.size, [f.range for f in loops]
    count = math.prod([r.arg.size for r in rows])
    apart = count if scan.is_along_memory else -(-count // (NEIGHBOURS * MOST_LANES))       # groups without chunks
    least = TILE * MOST_LANES if scan.is_along_memory else LEAST_CHUNK
    wanted = -(-CHUNKS * target.few_tasks // apart)
    chunk = -(-n // (wanted * least)) * least
    if not scan.is_along_memory:         # whole chunks: then a thread loads ahead
        chunk = next((c for c in range(chunk, min(2 * chunk, n) + 1) if n % c == 0), chunk)
        apart = max(apart, 2 * count // LEAST_COLUMNS)
    if apart >= target.few_tasks or chunk >= n:
        return None
    name = scan.loop.range.arg.name
    chunk = decisions.ask(ScannedChunks(name, chunk), lambda c: None).chunk
    outer, k = counter(name + "c", -(-n // chunk)), counter(name, chunk)
    stop, place = piece_bound(n, chunk, outer), flat_index(rows, outer)
    part, before = (local(f"{kind}_{scan.total.arg}_{name}", scan.total.dtype, outer.arg.size * count, "shared")
                    for kind in ("part", "before"))
    body = moves.rebuild(scan.loop.body, {scan.loop.range: add(multiply(outer, chunk), k)})
    nothing = identity(scan.combine, scan.total.dtype)
    earlier = flat_index(rows, add(outer, index(-1)))
    begin = less(index(0), outer)
    start = begin.where(load(before, earlier, begin), scan.start)
    return [
        loops_around([outer, *rows], [Assign(scan.total, nothing), For(k, LOOP, body[:1], stop),
                                      Store(part, place, scan.total)], TASK),
        loops_around(rows, [Assign(scan.total, scan.start),
                            For(outer, LOOP, [Accumulate(scan.total, scan.combine, load(part, place)),
                                              Store(before, place, scan.total)])], TASK),
        loops_around([outer, *rows], [Assign(scan.total, start), For(k, LOOP, body, stop)], TASK)]


def read_ahead_of_totals(inner: list[Statement], columns: int) -> list[Statement]:
    """for k in n: r += f(k); out[k] = r  ->  for k in n/8: x0 = f(8k) .. x7 = f(8k + 7); r += x0; out[8k] = r; ..

    A thread that goes down so many columns loads several elements of each at once. refuses (returns the statements):
    another form
    """
    scan = RunningTotal.of(inner)
    if scan is None or scan.loop.stop is not None:
        return inner
    k, out = scan.loop.range, inner[:1]
    for start, count, ahead in moves.split_length(k.arg.size, max(1, AHEAD // columns)):
        block = counter(k.arg.name, count)
        read = [register(f"{scan.total.arg}_{u}", scan.total.dtype) for u in range(ahead)]
        body: list[Statement] = []
        for u, r in enumerate(read):
            here = {k: add(index(start), add(multiply(current(block), ahead), index(u)))}
            body.insert(u, Assign(r, substitute_index(scan.value, here, {})))
            body += [Accumulate(scan.total, scan.combine, r), *moves.rebuild(scan.stores, here)]
        out += nested([block], body)
    return out


def scan_in_group(loops: list[For], inner: list[Statement], decisions: Decisions) -> list[Statement] | None:
    """What a group of threads does for one row; refuses (None) another form, short rows among many others, and rows
    whose elements are not adjacent in memory."""
    scan = RunningTotal.of(inner)
    if scan is None or not scan.is_along_memory or (loops and scan.loop.range.arg.size < LEAST_ROW):
        return None
    wide = -(-scan.loop.range.arg.size // TILE)
    lanes = min(MOST_LANES, -(-wide // SIDE) * SIDE)
    chosen = decisions.ask(ScannedLanes(scan.loop.range.arg.name, TILE, lanes), lambda c: None)
    return GroupScan(scan, chosen.tile, chosen.lanes).statements()


class GroupScan:
    """A scan along memory, split as decided."""

    def __init__(self, scan: RunningTotal, tile: int, lanes: int):
        self.scan, self.tile, self.lanes, self.columns = scan, tile, lanes, lanes // SIDE
        self.lane, self.column = counter("l", lanes), counter("j", self.columns)
        self.size, self.stop = scan.loop.range.arg.size, scan.loop.stop
        self.block = counter(scan.loop.range.arg.name + "b", -(-self.size // (tile * lanes)))
        name, dtype = scan.total.arg, scan.total.dtype
        self.mine, self.next = ([register(f"{name}_{kind}{u}", dtype, (self.lane,)) for u in range(tile)]
                                for kind in ("", "next"))
        self.before = register(f"{name}_before", dtype, (self.lane,))
        self.in_column = [register(f"{name}_column{i}", dtype, (self.column,)) for i in range(SIDE)]
        self.over_columns = [register(f"{name}_top{j}", dtype) for j in range(self.columns)]
        self.sums, self.inside = (local(f"{kind}_{name}", dtype, (SIDE + 1) * self.columns)
                                  for kind in ("sums", "inside"))
        self.tops, self.above = (local(f"{kind}_{name}", dtype, self.columns) for kind in ("tops", "above"))

    def statements(self) -> list[Statement]:
        total, combine = self.scan.total, self.scan.combine
        body = [*self.own_totals(), *self.columns_of_totals(), *self.stored(),
                Accumulate(total, combine, self.over_columns[-1])]
        around: list[Statement] = [For(self.block, LOOP, body)] if self.block.arg.size > 1 else body
        return [Assign(total, self.scan.start), *self.read(index(0)), *around]

    def together(self, x: UOp, y: UOp) -> UOp:
        return UOp(self.scan.combine, x.dtype, (x, y))

    def first(self, block: UOp) -> UOp:
        """Where a thread's neighbours in a block begin."""
        return add(multiply(block, self.tile * self.lanes), multiply(self.lane, self.tile))

    def gate(self, first: UOp, u: int) -> UOp | None:
        """The condition that the u-th neighbour exists; if rows are whole tiles, the first decides for all."""
        if self.stop is None and self.size % self.tile == 0:
            return below(first, self.size)
        at = add(first, index(u))
        return both(below(at, self.size), None if self.stop is None else less(at, self.stop))

    def read(self, block: UOp) -> list[Statement]:
        """Load a thread's neighbours of a block."""
        nothing, first, body = identity(self.scan.combine, self.scan.total.dtype), self.first(block), list[Statement]()
        for u, r in enumerate(self.next):
            gate = self.gate(first, u)
            here = substitute_index(self.scan.value, {self.scan.loop.range: add(first, index(u))}, {})
            body.append(Assign(r, here if gate is None else gate.where(edge_gate(here, gate), nothing)))
        return [For(self.lane, LANE, body)]

    def own_totals(self) -> list[Statement]:
        """The running totals of a thread's own neighbours; the last one is stored where other threads read it. Also
        load the next block, while threads wait for each other. (The last block is loaded again: a branch would wait for
        its loads.)
        """
        body: list[Statement] = [*[Assign(r, n) for r, n in zip(self.mine, self.next)], *self.added(self.mine),
                                 Store(self.sums, self.padded(self.lane), self.mine[-1])]
        later = self.read(add(self.block, index(1)).minimum(self.block.arg.size - 1))
        return [For(self.lane, LANE, body), *(later if self.block.arg.size > 1 else [])]

    @staticmethod
    def padded(lane: UOp) -> UOp:
        """Where a thread's total is stored: threads that go along columns read different banks."""
        return add(lane, divide(lane, SIDE))

    def columns_of_totals(self) -> list[Statement]:
        """The running totals within each 16 threads, and of those sixteens."""
        along = [add(multiply(self.column, SIDE + 1), index(i)) for i in range(SIDE)]
        tops = [index(j) for j in range(self.columns)]
        body = [*self.running(self.in_column, self.sums, self.inside, along),
                Store(self.tops, self.column, self.in_column[-1])]
        return [For(self.column, LANE, body), *self.running(self.over_columns, self.tops, self.above, tops)]

    def running(self, into: list[UOp], source: UOp, target: UOp, at: list[UOp]) -> list[Statement]:
        """The running totals of a few elements in memory, by one thread, which loads all of them first."""
        return [*[Assign(r, load(source, i)) for r, i in zip(into, at)], *self.added(into),
                *[Store(target, i, r) for r, i in zip(into, at)]]

    def added(self, numbers: list[UOp]) -> list[Statement]:
        return [Assign(later, self.together(r, later)) for r, later in zip(numbers, numbers[1:])]

    def stored(self) -> list[Statement]:
        """Add the total before a thread's neighbours to each of them, and store them."""
        scan, column, first = self.scan, divide(self.lane, SIDE), self.first(current(self.block))
        later, further = less(index(0), column), less(index(0), modulo(self.lane, SIDE))
        above = load(self.above, add(column, index(-1)).maximum(0), later)
        inside = load(self.inside, add(self.padded(self.lane), index(-1)), further)
        body: list[Statement] = [
            Assign(self.before, later.where(self.together(scan.total, above), scan.total)),
            Assign(self.before, further.where(self.together(self.before, inside), self.before))]
        for store in scan.stores:
            for u, mine in enumerate(self.mine):
                replace = {scan.loop.range: add(first, index(u)), scan.total: self.together(self.before, mine)}
                gate = self.gate(first, u)
                own = None if store.gate is None else edge_gate(substitute_index(store.gate, replace, {}), gate)
                body.append(Store(store.memory, substitute_index(store.index, replace, {}),
                                  edge_gate(substitute_index(store.value, replace, {}), gate), None,
                                  both(gate, own)))
        return [For(self.lane, LANE, body)]
