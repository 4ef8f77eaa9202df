"""Pack the factors of a contraction. In: a factor and its axes. Out: the loops that copy it into panels.

A panel has one tile's width of positions, for all of K: [panel][k][position]. The packing loop applies any view,
padding mask, cast or fused prologue; past a ragged edge, it stores zeros. Does not know the tile that reads a panel.
(For a matrix unit: matrix_unit/unit_panels.py.)
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, divide, divide_up, index, multiply, substitute_index, times
from glassgrad.compiler.graph.symbolic import upper_bound
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, For, Prefetch, Statement, Store, counter, current,
                                            flat_index, in_loops, local, nested, piece_bound, ranges_of)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import zero_outside
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import Product, count, evenly_along, stride_along
from glassgrad.compiler.optimize.targets import cpu_costs as cpu

READ_AT_ONCE = 1024        # bytes of a row that are worth reading together
NEAR_STEP = 4              # distance of positions, in elements, up to which a few vector loads and shuffles read them
LONG_K = 4                 # vectors of K from which lanes go along K even if positions are at uneven distances
LEAST_BLOCK = 4            # rows and columns of a block that is worth transposing in registers
PACKED_AT_ONCE = 8         # steps of k that are packed together: whole cache lines of a panel


class PackedFactor:
    """One factor, packed as [outer loops it depends on][panel][k][position in the panel].

    With a `task` counter, each task packs only the `panels` that it uses, into private memory. If the sum has a
    run-time bound (on one loop, in `stops`), only the steps below it are packed. `far`: the factor is not in the caches
    of a core, so its next rows are prefetched.
    """

    def __init__(self, name: str, value: UOp, axis: FlatAxis, outer: list[UOp], k: list[UOp], width: int, vectors: int,
                 panels: int, task: UOp | None = None, stops: dict[UOp, UOp] | None = None, far: bool = False):
        self.value, self.axis, self.k, self.width, self.vectors, self.panels = value, axis, k, width, vectors, panels
        self.task, self.stops, self.far = task, stops or {}, far
        self.stop = self.stops.get(k[-1])
        self.outer = [r for r in outer if r in ranges_of(value) and task is None]
        self.depth = count(k)
        self.memory = local(name, value.dtype, count(self.outer) * panels * self.depth * width,
                            "shared" if task is None else "worker")

    def index_of(self, panel: UOp, step: UOp, position: UOp) -> UOp:
        """The index in memory of a position of a panel, at a step of K."""
        at = add(multiply(flat_index(self.outer), self.panels), panel)
        at = add(multiply(at, self.depth), step)
        return add(multiply(at, self.width), position)

    def step(self) -> UOp:
        """The step of K of the current loop indices; below a run-time bound, steps are consecutive too."""
        at = index(0)
        for r in self.k:
            at = add(times(at, self.stops.get(r, index(r.arg.size))), r)
        return at

    def pack(self, lanes: int, most: int = moves.PHASE_TASKS) -> list[Statement]:
        """The loops that fill the panels, with lanes along the axis that is contiguous in memory."""
        panel, spot = counter("p", self.panels), counter("q", self.width)
        first = index(0) if self.task is None else multiply(current(self.task), self.panels)
        at = add(multiply(add(first, current(panel)), self.width), current(spot))
        end = self.axis.pieces(self.width)
        gate = self.axis.inside(at)
        value = substitute_index(self.value, self.axis.indices(at), {})
        reads = [n for n in toposort([value]) if n.op is o.LOAD]
        along_k = self.is_read_along_k(reads, spot, lanes)
        value = zero_outside(value, gate)
        store: list[Statement] = [Store(self.memory, self.index_of(current(panel), self.step(), current(spot)), value)]
        if along_k:
            body, loops = self.across(spot, store, lanes), self.loops(self.k[:-1])
        else:
            body = moves.wide(For(spot, LOOP, store), self.vectors, lanes, copies=False) if self.width > 1 else store
            body = [*(self.rows_ahead(reads, spot) if self.far else []), *body]
            loops = self.loops(self.k)
        if self.task is not None:
            body = in_loops(loops, body)
            stop = piece_bound(-(-self.axis.size // self.width) if end is None else end, self.panels, self.task)
            return [For(panel, LOOP, body, stop)] if self.panels > 1 else body
        if not along_k and end is None:
            panel, loops, body = self.side_by_side(panel, body)
        return self.as_tasks(panel, loops, body, end, most)

    def is_read_along_k(self, reads: list[UOp], spot: UOp, lanes: int) -> bool:
        """Whether lanes go along K: the values are contiguous there, and not along a panel, nor near each other."""
        last, steps = self.k[-1], [stride_along(n.src[1], spot) for n in reads]
        near = last.arg.size < lanes and all(step and abs(step) <= NEAR_STEP for step in steps)
        if not reads or 1 in steps or near:
            return False
        long = last.arg.size >= LONG_K * lanes
        return all(stride_along(n.src[1], last) == 1 and (long or evenly_along(n.src[1], spot)) for n in reads)

    def as_tasks(self, panel: UOp, loops: list[For], body: list[Statement], end: UOp | None,
                 most: int) -> list[Statement]:
        """The loops over K and over all panels, or those up to a run-time end, cut into tasks."""
        work = count(self.outer) * self.panels * self.depth * self.width
        tasks = count((*self.outer, panel))
        more = work // cpu.PACK_WORK // tasks if tasks < most else 1
        for loop in reversed(loops):
            body = [moves.tasks(For(loop.range, LOOP, body, loop.stop), more if loop is loops[0] else 1)]
        if not loops and len(body) == 1 and isinstance(body[0], For) and body[0].kind == LOOP:
            body = [moves.tasks(body[0], more)]          # few panels, transposed: chunks of k become tasks
        if end is not None:
            return [moves.tasks(For(panel, LOOP, moves.loops_as_tasks(self.outer, body, most), end), most)]
        if work >= cpu.PACK_WORK:
            return moves.loops_as_tasks([*self.outer, panel], body, most)
        return nested([*self.outer, panel], body)

    def rows_ahead(self, reads: list[UOp], spot: UOp) -> list[Statement]:
        """Prefetch a later row: a panel reads little of each row, at distances that no hardware predicts."""
        found = list[Statement]()
        for read in reads:
            later = substitute_index(read.src[1], {self.k[-1]: add(self.k[-1], index(cpu.ROWS_AHEAD))}, {})
            if stride_along(later, spot) == 1:
                found += [Prefetch(read.src[0], substitute_index(later, {spot: index(first)}, {}))
                          for first in range(0, self.width, max(1, cpu.CACHE_LINE // read.dtype.itemsize))]
        return found

    def loops(self, k: list[UOp]) -> list[For]:
        """Empty loops over the counters of K."""
        return [For(r, LOOP, [], self.stops.get(r)) for r in k]

    def side_by_side(self, panel: UOp, body: list[Statement]) -> tuple[UOp, list[For], list[Statement]]:
        """Pack narrow panels in groups: for chunks of k: for the panels of a group: for k of a chunk. So whole cache
        lines are both read and written. Returns the loop over groups, the loops inside it, and their body."""
        k, row = self.k[-1], self.panels * self.width * self.value.dtype.itemsize
        together = -(-self.panels // -(-row // READ_AT_ONCE))
        if together == 1:
            return panel, self.loops(self.k), body
        size = min(PACKED_AT_ONCE, k.arg.size)
        group, inside = counter("pg", -(-self.panels // together)), counter("p", together)
        piece, step = counter("kp", -(-k.arg.size // size)), counter("k", size)
        body = moves.rebuild(body, {panel: add(multiply(current(group), together), inside),
                                    k: add(multiply(current(piece), size), current(step))})
        left = piece_bound(k.arg.size if self.stop is None else self.stop, size, piece)
        body = [For(step, LOOP, body, left)] if size > 1 else body
        body = [For(inside, LOOP, body, piece_bound(self.panels, together, group))]
        loops = [For(piece, LOOP, [], self.stop and divide_up(self.stop, size))] if piece.arg.size > 1 else []
        return group, [*loops, *self.loops(self.k[:-1])], body

    def across(self, spot: UOp, store: list[Statement], lanes: int) -> list[Statement]:
        """Pack a factor contiguous along k: for chunks of k: load a vector of every row, store the block transposed.

        A renderer transposes such a block in registers; the remainder of k uses blocks of half as many lanes, and so
        on. Narrow panels, and the last steps of k, are stored element by element from a few cache lines at a time: a
        scatter instruction costs more than the scalar stores.
        """
        k, in_registers = self.k[-1], 2 * self.width > lanes
        chunk = lanes if in_registers else 4 * lanes
        halves = [chunk >> i for i in range(chunk.bit_length()) if chunk >> i >= LEAST_BLOCK]
        blocks = halves if in_registers and halves else [chunk]

        def copied(start: int, times: int, piece: int, stop: UOp | None = None) -> list[Statement]:
            outer, inner = counter("kb", times), counter("kq", piece)
            at = add(index(start), add(multiply(current(outer), piece), inner))
            body = moves.rebuild(store, {k: at})
            if in_registers and piece in blocks:
                body = [For(spot, TILE, [For(inner, LANE, body)])]
            else:
                body = moves.wide(For(inner, LOOP, body), lanes, 1, copies=False)
                body = [For(spot, LOOP, body)] if self.width > 1 else body
            return [For(outer, LOOP, body, stop)] if times > 1 or stop is not None else body

        if self.stop is None:
            out, start = list[Statement](), 0
            for piece in (*blocks, k.arg.size % blocks[-1]):
                times = (k.arg.size - start) // piece if piece else 0
                out += copied(start, times, piece) if times else []
                start += times * piece
            return out
        whole, rest = divide(self.stop, chunk), counter("kr", chunk)     # a counter other than that of the lanes
        last = moves.rebuild(store, {k: add(multiply(whole, chunk), rest)})
        last = [For(rest, LOOP, last, add(self.stop, multiply(whole, -chunk)))]
        last = [For(spot, LOOP, last)] if self.width > 1 else last
        return [*copied(0, -(-k.arg.size // chunk), chunk, whole), *last]


# -- cases in which packing does not pay ------------------------------------------------------------------------
def few_rows(p: Product) -> bool:
    """Whether a factor has so few rows that packing the other one costs more than it saves: both are contiguous along
    k, and plain loops read them in place."""
    if len(p.k) != 1 or p.k_stop is not None or p.k[0].arg.size < cpu.LEAST_ROW or not all(
            f.op is o.LOAD and len(f.src) == 2 and stride_along(f.src[1], p.k[0]) == 1 for f in (p.left, p.right)):
        return False
    return any(len(few) == 1 and few[0].arg.size <= cpu.FEW_ROWS for few in (p.m, p.n))


def swells(factor: UOp, loops: list[UOp]) -> bool:
    """Whether a packed factor would be huge and much larger than the memory it reads: a window, or an expanded view."""
    packed = count(dict.fromkeys([*loops, *ranges_of(factor)]))
    read = {n.src[0] for n in toposort([factor]) if n.op is o.LOAD and n.src[0].op is o.PARAM}
    return packed > max(cpu.MOST_PACKED, 4 * sum(math.prod(map(upper_bound, m.arg.shape)) for m in read))
