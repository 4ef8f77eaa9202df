"""Pack the factors of a contraction. In: a factor and its axes. Out: the loops that copy it into panels.

For vectors, a panel holds one tile's width of positions for all of K: [panel][k][position]. For a matrix unit, rows of
`left` are contiguous along k, and `right` has words of consecutive k (targets/matrix_units.py). The pack loop absorbs
any view, padding mask, cast or fused prologue; past the end of K, and past a ragged edge, it stores zeros. Does not
know the tile that reads a panel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from glassgrad.compiler.graph import DType, UOp, const, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide, divide_up, index, less, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, For, If, Statement, Store, around, counter,
                                            flat_index, left_of, load, local, loops_around, nested, one, ranges_of)
from glassgrad.compiler.lower.missing_instructions import carrier
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below, zero_outside
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import Product, count, stride_along
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.matrix_units import WORD, MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target

READ_AT_ONCE = 1024        # bytes of a row that are worth reading together
PACKED_AT_ONCE = 8         # steps of k that are packed together: whole cache lines of a panel


class PackedFactor:
    """One factor, packed as [outer loops it depends on][panel][k][position in the panel].

    Where a `task` counter is given, each task packs only the `panels` it uses, into private memory. Of a sum with a
    run-time bound, `stop`, only the steps below it are packed.
    """

    def __init__(self, name: str, value: UOp, axis: FlatAxis, outer: list[UOp], k: list[UOp], width: int, vectors: int,
                 panels: int, task: UOp | None = None, stop: UOp | None = None):
        self.value, self.axis, self.k, self.width, self.vectors, self.panels = value, axis, k, width, vectors, panels
        self.task, self.stop = task, stop
        self.outer = [r for r in outer if r in ranges_of(value) and task is None]
        self.depth = count(k)
        self.memory = local(name, value.dtype, count(self.outer) * panels * self.depth * width,
                            "shared" if task is None else "worker")

    def place(self, panel: UOp, step: UOp, position: UOp) -> UOp:
        """The index in memory of a position of a panel, at a step of K."""
        at = add(multiply(flat_index(self.outer), self.panels), panel)
        at = add(multiply(at, self.depth), step)
        return add(multiply(at, self.width), position)

    def pack(self, lanes: int, most: int = moves.PHASE_TASKS) -> list[Statement]:
        """The loops that fill the panels, with lanes along the axis that is contiguous in memory."""
        panel, spot = counter("p", self.panels), counter("q", self.width)
        first = index(0) if self.task is None else multiply(one(self.task), self.panels)
        at = add(multiply(add(first, one(panel)), self.width), one(spot))
        end = self.axis.pieces(self.width)
        gate = self.axis.inside(at)
        value = substitute_index(self.value, self.axis.apart(at), {})
        reads = [n for n in toposort([value]) if n.op is o.LOAD]
        along_k = bool(reads) and not any(stride_along(n.src[1], spot) == 1 for n in reads) and \
            all(stride_along(n.src[1], self.k[-1]) == 1 and stride_along(n.src[1], spot) is not None for n in reads)
        value = zero_outside(value, gate)
        store: list[Statement] = [Store(self.memory, self.place(one(panel), flat_index(self.k), one(spot)), value)]
        if along_k:
            body, loops = self.across(spot, store, lanes), self.loops(self.k[:-1])
        else:
            body = moves.wide(For(spot, LOOP, store), self.vectors, lanes, copies=False) if self.width > 1 else store
            loops = self.loops(self.k)
        if self.task is not None:
            body = around(loops, body)
            stop = left_of(-(-self.axis.size // self.width), self.panels, self.task)
            return [For(panel, LOOP, body, stop)] if self.panels > 1 else body
        if not along_k and end is None:
            panel, loops, body = self.side_by_side(panel, body)
        work = count(self.outer) * self.panels * self.depth * self.width
        tasks = count((*self.outer, panel))
        more = work // cpu.PACK_WORK // tasks if tasks < most else 1
        for loop in reversed(loops):
            body = [moves.tasks(For(loop.range, LOOP, body, loop.stop), more if loop is loops[0] else 1)]
        if not loops and len(body) == 1 and isinstance(body[0], For) and body[0].kind == LOOP:
            body = [moves.tasks(body[0], more)]          # few panels, transposed: chunks of k are tasks
        if end is not None:
            return [moves.tasks(For(panel, LOOP, moves.share_out(self.outer, body, most), end), most)]
        if work >= cpu.PACK_WORK:
            return moves.share_out([*self.outer, panel], body, most)
        return nested([*self.outer, panel], body)

    def loops(self, k: list[UOp]) -> list[For]:
        """The loops over counters of K, with nothing in them."""
        return [For(r, LOOP, [], self.stop if r is self.k[0] else None) for r in k]

    def side_by_side(self, panel: UOp, body: list[Statement]) -> tuple[UOp, list[For], list[Statement]]:
        """Narrow panels in groups: for chunks of k: for the panels of a group: for k of a chunk. So whole cache lines
        are both read and written. Returns the loop over the groups, the loops inside it, and their body."""
        k, row = self.k[-1], self.panels * self.width * self.value.dtype.itemsize
        together = -(-self.panels // -(-row // READ_AT_ONCE))
        if together == 1:
            return panel, self.loops(self.k), body
        size = min(PACKED_AT_ONCE, k.arg.size)
        group, inside = counter("pg", -(-self.panels // together)), counter("p", together)
        piece, step = counter("kp", -(-k.arg.size // size)), counter("k", size)
        body = moves.rebuild(body, {panel: add(multiply(one(group), together), inside),
                                    k: add(multiply(one(piece), size), one(step))})
        left = left_of(k.arg.size if self.stop is None else self.stop, size, piece)
        body = [For(step, LOOP, body, left)] if size > 1 else body
        body = [For(inside, LOOP, body, left_of(self.panels, together, group))]
        loops = [For(piece, LOOP, [], self.stop and divide_up(self.stop, size))] if piece.arg.size > 1 else []
        return group, [*loops, *self.loops(self.k[:-1])], body

    def across(self, spot: UOp, store: list[Statement], lanes: int) -> list[Statement]:
        """Pack a factor that is contiguous along k: for chunks of k: read a vector of every row, store it transposed.

        A renderer transposes such a block in registers. Narrow panels, and the remainder of k, are stored element by
        element from a few cache lines at a time: a scatter instruction costs more than the scalar stores.
        """
        k, in_registers = self.k[-1], 2 * self.width > lanes
        chunk = lanes if in_registers else 4 * lanes

        def copied(start: int, times: int, piece: int, stop: UOp | None = None) -> list[Statement]:
            outer, inner = counter("kb", times), counter("kq", piece)
            at = add(index(start), add(multiply(one(outer), piece), inner))
            body = moves.rebuild(store, {k: at})
            if in_registers and piece == lanes:
                body = [For(spot, TILE, [For(inner, LANE, body)])]
            else:
                body = moves.wide(For(inner, LOOP, body), lanes, 1, copies=False)
                body = [For(spot, LOOP, body)] if self.width > 1 else body
            return [For(outer, LOOP, body, stop)] if times > 1 or stop is not None else body

        if self.stop is None:
            return [s for part in moves.pieces(k.arg.size, chunk) for s in copied(*part)]
        whole, rest = divide(self.stop, chunk), counter("kq", chunk)
        last = moves.rebuild(store, {k: add(multiply(whole, chunk), rest)})
        last = [For(rest, LOOP, last, add(self.stop, multiply(whole, -chunk)))]
        last = [For(spot, LOOP, last)] if self.width > 1 else last
        return [*copied(0, -(-k.arg.size // chunk), chunk, whole), *last]


# -- for a matrix unit -----------------------------------------------------------------------------------------------
FEW_TASKS = 8              # steps of K that are enough tasks, so that each can pack whole rows


def few_rows(p: Product) -> bool:
    """Whether a factor has so few rows that packing the other one would cost more than it saves: both are contiguous
    along k, and plain loops read them in place."""
    if len(p.k) != 1 or p.k_stop is not None or p.k[0].arg.size < cpu.LEAST_ROW or not all(
            f.op is o.LOAD and len(f.src) == 2 and stride_along(f.src[1], p.k[0]) == 1 for f in (p.left, p.right)):
        return False
    return any(len(few) == 1 and few[0].arg.size <= cpu.FEW_ROWS for few in (p.m, p.n))


def swells(factor: UOp, loops: list[UOp]) -> bool:
    """Whether a packed factor would be huge and much larger than the memory it reads: a window, or an expanded view."""
    packed = count(dict.fromkeys([*loops, *ranges_of(factor)]))
    read = {n.src[0] for n in toposort([factor]) if n.op is o.LOAD and n.src[0].op is o.PARAM}
    return packed > max(cpu.MOST_PACKED, 4 * sum(math.prod(m.arg.shape) for m in read))


@dataclass(frozen=True)
class UnitRanges:
    """The counters inside one instruction of a matrix unit."""
    row: UOp
    column: UOp
    word: UOp                 # of k
    piece: UOp                # of a word

    @staticmethod
    def of(unit: MatrixUnit) -> UnitRanges:
        return UnitRanges(counter("r", unit.rows), counter("c", unit.columns), counter("w", unit.words),
                          counter("b", unit.pieces))


def narrowed(value: UOp, dtype: DType) -> UOp | None:
    """The value before it was widened from the narrower `dtype`; None where it was not."""
    if value.dtype is dtype:
        return value
    if value.op is o.CAST and value.src[0].dtype is dtype:
        return value.src[0]
    if value.op is o.WHERE:
        yes, no = narrowed(value.src[1], dtype), narrowed(value.src[2], dtype)
        return None if yes is None or no is None else value.src[0].where(yes, no)
    return const(0, dtype) if value.op is o.CONST and value.arg == 0 else None


def unit_for(p: Product, target: Target, suits: Callable[[MatrixUnit], bool] = lambda unit: True) \
        -> tuple[MatrixUnit, UOp, UOp] | None:
    """The first unit that multiplies a product's types, and both factors in those types; None where there is none."""
    for unit in target.units if p.pair is None else ():
        left, right = narrowed(p.left, unit.left), narrowed(p.right, unit.right)
        if p.total.dtype is unit.total and left is not None and right is not None and suits(unit):
            return unit, left, right
    return None


class UnitPanels:
    """One factor, packed as [outer loops it depends on][panel][step of K] and then, for `left`, [row][k], for `right`,
    [word of k][column]. A left factor that is not contiguous along k is packed in words, too: [row][word of k]."""

    def __init__(self, name: str, value: UOp, axis: FlatAxis, outer: list[UOp], k: list[UOp], unit: MatrixUnit,
                 tiles: int, panels: int, in_words: bool):
        self.value, self.axis, self.unit, self.panels, self.right = value, axis, unit, panels, in_words
        self.k = FlatAxis.of(k)
        self.outer = [r for r in outer if r in ranges_of(value)]
        self.across = unit.columns if in_words else unit.rows       # positions of one matrix
        self.width = tiles * self.across
        self.steps = -(-self.k.size // unit.depth)
        self.along_k = self._lies_along(k[-1])
        self.words = in_words or not self.along_k
        size = count(self.outer) * panels * self.steps * self.width * unit.words
        self.memory = local(name, WORD, size, "shared") if self.words else \
            local(name, value.dtype, size * unit.pieces, "shared")

    def _lies_along(self, along: UOp) -> bool:
        """Whether the factor is contiguous along this counter, and not along its own axis."""
        spot = self.axis.parts[-1]
        reads = [n.src[1] for n in toposort([self.value]) if n.op is o.LOAD]
        return bool(reads) and all(stride_along(at, along) == 1 and stride_along(at, spot) != 1 for at in reads)

    # -- where elements are ----------------------------------------------------------------------------------
    def place(self, panel: UOp, step: UOp, position: UOp, k: UOp) -> UOp:
        """The index in memory of a position of a panel; k counts words of the step, or elements if not in words."""
        at = add(multiply(add(multiply(flat_index(self.outer), self.panels), panel), self.steps), step)
        if self.right:
            return add(multiply(add(multiply(at, self.unit.words), k), self.width), position)
        along = self.unit.words if self.words else self.unit.depth
        return add(multiply(add(multiply(at, self.width), position), along), k)

    def element(self, panel: UOp, step: UOp, tile: UOp, position: UOp, inside: UnitRanges) -> UOp:
        """An element that the unit reads, in the factor's type: extracted from its word, or loaded as it is."""
        position = add(multiply(tile, self.across), position)
        if not self.words:
            k = add(multiply(inside.word, self.unit.pieces), inside.piece)
            return load(self.memory, self.place(panel, step, position, k))
        word = load(self.memory, self.place(panel, step, position, inside.word))
        dtype = self.value.dtype
        piece = word >> multiply(inside.piece, dtype.bits).cast(WORD)
        return _as(piece.cast(carrier_of(dtype)), dtype)

    # -- packing ---------------------------------------------------------------------------------------------
    def pack(self, lanes: int) -> list[Statement]:
        """The loops that fill the panels, lanes along what is contiguous in memory."""
        panel, whole = counter("p", self.panels), self.k.size // self.unit.depth
        copies = count(self.outer)
        kind = TASK if copies * self.panels * self.steps * self.width * self.unit.depth >= cpu.PACK_WORK else LOOP
        body: list[Statement] = []
        if self.right and not self.along_k and self.panels > 1 and copies * self.steps >= FEW_TASKS:
            body = self.by_rows(panel, whole, kind, lanes)
        else:
            if whole:
                step = counter("ks", whole)
                inner = self.one_step(one(panel), one(step), lanes, False)
                body += [For(step, LOOP, inner)] if whole > 1 else inner
            if whole < self.steps:
                body += self.one_step(one(panel), index(whole), lanes, True)
            body = [For(panel, kind, body)] if self.panels > 1 else body
        return loops_around(self.outer, body, kind)

    def by_rows(self, panel: UOp, whole: int, kind: str, lanes: int) -> list[Statement]:
        """for steps of K: for words: for panels: pack      (memory is read in whole rows, a part for each panel)"""
        def rows(step: UOp, ragged: bool) -> list[Statement]:
            [words] = self.one_step(panel, step, lanes, ragged)
            assert isinstance(words, For)
            return [For(words.range, LOOP, [For(panel, LOOP, words.body)])]
        step = counter("ks", self.steps)
        if self.steps == 1:
            return rows(index(0), whole == 0)
        if whole == self.steps:
            return [For(step, kind, rows(step, False))]
        last = less(index(whole - 1), step)
        return [For(step, kind, [If(less(step, index(whole)), rows(step, False)), If(last, rows(index(whole), True))])]

    def one_step(self, panel: UOp, step: UOp, lanes: int, ragged: bool) -> list[Statement]:
        """One step of K of one panel; `ragged`: K ends within it."""
        spot = counter("q", self.width)
        word, k = counter("w", self.unit.words), counter("k", self.unit.depth)
        if not self.words:
            value = self.at(panel, spot, add(multiply(step, self.unit.depth), k), ragged, clamp=True)
            store: list[Statement] = [Store(self.memory, self.place(panel, step, spot, k), value)]
            return [For(spot, LOOP, moves.wide(For(k, LOOP, store), -(-self.unit.depth // lanes), lanes))]
        value = const(0, WORD)
        for i in range(self.unit.pieces):
            at = add(add(multiply(step, self.unit.depth), multiply(word, self.unit.pieces)), index(i))
            bits = _as(self.at(panel, spot, at, ragged, clamp=self.along_k), carrier_of(self.value.dtype)).cast(WORD)
            value = bits << (i * self.value.dtype.bits) | value if i else bits
        store = [Store(self.memory, self.place(panel, step, spot, word), value)]
        if self.right and not self.along_k:
            return [For(word, LOOP, moves.wide(For(spot, LOOP, store), -(-self.width // lanes), lanes))]
        # contiguous along the other axis than wanted: square blocks are transposed in registers
        across, over = (word, spot) if self.right else (spot, word)
        return self.transposed(store, across, over, lanes)

    def transposed(self, store: list[Statement], across: UOp, over: UOp, lanes: int) -> list[Statement]:
        """for o: for a: S  ->  for blocks: TILE o in lanes: LANE a in lanes: S"""
        blocks_a, blocks_o = -(-across.arg.size // lanes), -(-over.arg.size // lanes)
        block_a, block_o = counter("qa", blocks_a), counter("qo", blocks_o)
        lane, tile = counter("l", min(lanes, across.arg.size)), counter("t", min(lanes, over.arg.size))
        body = moves.rebuild(store, {across: add(multiply(one(block_a), lanes), lane),
                                     over: add(multiply(one(block_o), lanes), tile)})
        return nested([block_o, block_a], nested([tile], nested([lane], body, LANE), TILE))

    def at(self, panel: UOp, spot: UOp, k: UOp, ragged: bool, clamp: bool) -> UOp:
        """The factor at a position of a panel and an element of K: zero past the end of K. Past the edge of its own
        axis any value will do: the last position again (`clamp`), or zero, cheaper for vectors of positions."""
        position = add(multiply(panel, self.width), spot)
        gate = below(k, self.k.size) if ragged else None
        if clamp and self.axis.size % self.width:
            position = position.minimum(self.axis.size - 1)
        elif self.axis.size % self.width:
            gate = both(gate, below(position, self.axis.size))
        value = substitute_index(self.value, {**self.axis.apart(position), **self.k.apart(k)}, {})
        return zero_outside(value, gate)


def carrier_of(dtype: DType) -> DType:
    """The unsigned type of an element's bits."""
    return carrier(dtype) if dtype.is_float else dtypes.uint8


def _as(value: UOp, dtype: DType) -> UOp:
    return value if value.dtype is dtype else value.bitcast(dtype)
