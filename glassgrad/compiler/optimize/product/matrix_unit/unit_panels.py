"""Pack the factors of a product for a matrix unit. In: a factor and its axes. Out: the loops that copy it into panels.

Rows of `left` are contiguous along k, and `right` has words of consecutive k (targets/matrix_units.py). As in
packing.py, the packing loop applies views, casts and prologues; past the end of K it stores zeros. Does not know the
tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph import DType, UOp, const, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, index, less, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, For, If, Statement, Store, counter, current,
                                            flat_index, load, local, loops_around, nested, ranges_of)
from glassgrad.compiler.lower.missing_instructions import carrier
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below, zero_outside
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import count, stride_along
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.matrix_units import WORD, MatrixUnit

FEW_TASKS = 8              # steps of K that make enough tasks, so that each can pack whole rows


@dataclass(frozen=True)
class UnitRanges:
    """The counters inside one instruction of a matrix unit."""
    row: UOp
    column: UOp
    word: UOp                 # word along k
    piece: UOp                # element of a word

    @staticmethod
    def of(unit: MatrixUnit) -> UnitRanges:
        return UnitRanges(counter("r", unit.rows), counter("c", unit.columns), counter("w", unit.words),
                          counter("b", unit.pieces))


class UnitPanels:
    """One factor, packed as [outer loops it depends on][panel][step of K] and then, for `left`, [row][k], for `right`,
    [word of k][column]. A left factor that is not contiguous along k is packed in words too: [row][word of k]."""

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

    # -- addresses -------------------------------------------------------------------------------------------
    def index_of(self, panel: UOp, step: UOp, position: UOp, k: UOp) -> UOp:
        """The index in memory of a position of a panel; k counts words of the step, or elements."""
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
            return load(self.memory, self.index_of(panel, step, position, k))
        word = load(self.memory, self.index_of(panel, step, position, inside.word))
        dtype = self.value.dtype
        piece = word >> multiply(inside.piece, dtype.bits).cast(WORD)
        return _as(piece.cast(carrier_of(dtype)), dtype)

    # -- packing ---------------------------------------------------------------------------------------------
    def pack(self, lanes: int) -> list[Statement]:
        """The loops that fill the panels, with lanes along the axis that is contiguous in memory."""
        panel, whole = counter("p", self.panels), self.k.size // self.unit.depth
        copies = count(self.outer)
        kind = TASK if copies * self.panels * self.steps * self.width * self.unit.depth >= cpu.PACK_WORK else LOOP
        body: list[Statement] = []
        if self.right and not self.along_k and self.panels > 1 and copies * self.steps >= FEW_TASKS:
            body = self.by_rows(panel, whole, kind, lanes)
        else:
            if whole:
                step = counter("ks", whole)
                inner = self.one_step(current(panel), current(step), lanes, False)
                body += [For(step, LOOP, inner)] if whole > 1 else inner
            if whole < self.steps:
                body += self.one_step(current(panel), index(whole), lanes, True)
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
        """Pack one step of K of one panel; `ragged`: K ends within it."""
        spot = counter("q", self.width)
        word, k = counter("w", self.unit.words), counter("k", self.unit.depth)
        if not self.words:
            value = self.at(panel, spot, add(multiply(step, self.unit.depth), k), ragged, clamp=True)
            store: list[Statement] = [Store(self.memory, self.index_of(panel, step, spot, k), value)]
            return [For(spot, LOOP, moves.wide(For(k, LOOP, store), -(-self.unit.depth // lanes), lanes))]
        value = const(0, WORD)
        for i in range(self.unit.pieces):
            at = add(add(multiply(step, self.unit.depth), multiply(word, self.unit.pieces)), index(i))
            bits = _as(self.at(panel, spot, at, ragged, clamp=self.along_k), carrier_of(self.value.dtype)).cast(WORD)
            value = bits << (i * self.value.dtype.bits) | value if i else bits
        store = [Store(self.memory, self.index_of(panel, step, spot, word), value)]
        if self.right and not self.along_k:
            return [For(word, LOOP, moves.wide(For(spot, LOOP, store), -(-self.width // lanes), lanes))]
        # contiguous along the other axis: square blocks are transposed in registers
        across, over = (word, spot) if self.right else (spot, word)
        return self.transposed(store, across, over, lanes)

    def transposed(self, store: list[Statement], across: UOp, over: UOp, lanes: int) -> list[Statement]:
        """for o: for a: S  ->  for blocks: TILE o in lanes: LANE a in lanes: S"""
        blocks_a, blocks_o = -(-across.arg.size // lanes), -(-over.arg.size // lanes)
        block_a, block_o = counter("qa", blocks_a), counter("qo", blocks_o)
        lane, tile = counter("l", min(lanes, across.arg.size)), counter("t", min(lanes, over.arg.size))
        body = moves.rebuild(store, {across: add(multiply(current(block_a), lanes), lane),
                                     over: add(multiply(current(block_o), lanes), tile)})
        return nested([block_o, block_a], nested([tile], nested([lane], body, LANE), TILE))

    def at(self, panel: UOp, spot: UOp, k: UOp, ragged: bool, clamp: bool) -> UOp:
        """The factor at a position of a panel and an element of K; zero past the end of K. Past the edge of its own
        axis, any value will do: the last position again (`clamp`), or zero, which is cheaper for vectors of
        positions."""
        position = add(multiply(panel, self.width), spot)
        gate = below(k, self.k.size) if ragged else None
        if clamp and self.axis.size % self.width:
            position = position.minimum(self.axis.size - 1)
        elif self.axis.size % self.width:
            gate = both(gate, below(position, self.axis.size))
        value = substitute_index(self.value, {**self.axis.indices(position), **self.k.indices(k)}, {})
        return zero_outside(value, gate)


def carrier_of(dtype: DType) -> DType:
    """The unsigned integer type with the bits of an element."""
    return carrier(dtype) if dtype.is_float else dtypes.uint8


def _as(value: UOp, dtype: DType) -> UOp:
    return value if value.dtype is dtype else value.bitcast(dtype)
