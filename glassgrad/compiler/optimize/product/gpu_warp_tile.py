"""A contraction on a unit that multiplies out of registers. In: a product, a `Target` with such a unit. Out: phases.

    TASK blocks of M and N:
        read the first tile of each factor into registers     any view, mask, cast or prologue is absorbed here
        for steps of K:
            read the next tiles, which arrive while every warp multiplies its rows by all columns of the block
            put them into the other stage of memory that the group shares
        put the sums into that memory, line by line; the epilogue reads them there

For chips whose units do not read shared memory by themselves, and where copies go through threads. A tile lies in
lines, along k or across it, as the factor lies in memory; the left one always along k. Lines are padded, so that
neighbouring ones begin in different banks. Does not know which unit it is.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, const, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, modulo, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, UNIT, Accumulate, Assign, For, Statement, Store,
                                            counter, load, local, register)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import nested, one
from glassgrad.compiler.optimize.product.gpu_matrix_unit.store_tile import tile_to_memory
from glassgrad.compiler.optimize.product.packing import narrowed
from glassgrad.compiler.optimize.product.recognize import FlatAxis, Product, count, flat_axis, stride_along
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target

PIECE = 8                # elements of 16 bits that a thread copies at once


def on_warps(product: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases; refuses (None) types without such a unit, and what is too small to repay it."""
    if product.k_stop is not None or not product.n:
        return None
    p = product.with_lanes_right()
    for unit in target.units:
        left, right = narrowed(p.left, unit.left), narrowed(p.right, unit.right)
        if unit.loads is not None and p.total.dtype is unit.total and left is not None and right is not None:
            break
    else:
        return None
    m, outside_m = flat_axis(p.m, p.epilogue, "m")
    n, outside_n = flat_axis(p.n, p.epilogue, "n")
    outer = [*p.batch, *outside_m, *outside_n]
    if min(m.size, n.size) < gpu.THIN_SIDE or p.depth < gpu.UNIT_LIMITS.least_k or p.work < gpu.UNIT_LIMITS.least_work:
        return None
    rows, columns = min(gpu.WARP_TILES, key=lambda tile: gpu.warp_tile_time(
        count(outer) * -(-m.size // tile[0]) * -(-n.size // tile[1]), tile, target.few_tasks))
    own = Tiling("warps", rows // unit.rows, columns // unit.columns, unit=unit.name, left="shared", right="shared",
                 k_block=gpu.WARP_STEP, stages=2)
    c = decisions.ask(own, _refuses)
    return product.ended(WarpTile(p, unit, (left, right), m, n, FlatAxis.of(p.k), outer, c).phases())


def _refuses(c: Tiling) -> str | None:
    return None if c.rows in (4, 8) and c.vectors in (8, 16) else "a group has 4 or 8 warps, and 8 or 16 matrices each"


class WarpTile:
    """A product cut as chosen: a block for each group, `rows` warps below each other, each with all its columns."""

    def __init__(self, product: Product, unit: MatrixUnit, factors: tuple[UOp, UOp], m: FlatAxis, n: FlatAxis,
                 k: FlatAxis, outer: list[UOp], c: Tiling):
        self.product, self.unit, self.m, self.n, self.k, self.outer = product, unit, m, n, k, outer
        self.height, self.width, self.depth = c.rows * unit.rows, c.vectors * unit.columns, c.k_block
        self.threads = c.rows * unit.threads
        self.task_m, self.task_n = counter("mb", -(-m.size // self.height)), counter("nb", -(-n.size // self.width))
        self.first_m, self.first_n = (multiply(one(self.task_m), self.height), multiply(one(self.task_n), self.width))
        self.row, self.column = counter("r", self.height), counter("c", self.width)
        self.total = register(product.total.arg, unit.total, (self.row, self.column))
        self.step = counter("ks", -(-k.size // (2 * self.depth)))
        self.left = CopiedLines("left", factors[0], m, self.first_m, self.height, self, along_k=True)
        self.right = CopiedLines("right", factors[1], n, self.first_n, self.width, self)

    def phases(self) -> list[list[Statement]]:
        begin = multiply(self.step, 2 * self.depth)
        body: list[Statement] = [*self.read(add(begin, index(self.depth))), *self.multiplied(0), *self.kept(1),
                                 *self.read(add(begin, index(2 * self.depth))), *self.multiplied(1), *self.kept(0)]
        start = nested([self.row, self.column], [Assign(self.total, const(0, self.unit.total))], UNIT)
        finish = tile_to_memory(self.product, self.total, (self.m, self.first_m), (self.n, self.first_n), self.threads,
                                over="")
        return [nested([*self.outer, self.task_m, self.task_n],
                       [*start, *self.read(index(0)), *self.kept(0), For(self.step, LOOP, body), *finish],
                       TASK)]

    def read(self, begin_k: UOp) -> list[Statement]:
        return [*self.left.read(begin_k), *self.right.read(begin_k)]

    def kept(self, stage: int) -> list[Statement]:
        return [*self.left.kept(stage), *self.right.kept(stage)]

    def multiplied(self, stage: int) -> list[Statement]:
        k = counter("k", self.depth)
        a, b = (factor.at(stage, at, k).cast(self.unit.total) for factor, at in ((self.left, self.row),
                                                                                 (self.right, self.column)))
        return nested([self.row, self.column, k], [Accumulate(self.total, o.ADD, a * b)], UNIT)


class CopiedLines:
    """One factor's part of a step, in memory that the group shares, two stages of it."""

    def __init__(self, name: str, value: UOp, axis: FlatAxis, first: UOp, size: int, tile: WarpTile,
                 along_k: bool = False):
        self.value, self.axis, self.first, self.k = value, axis, first, tile.k
        reads = [n.src[1] for n in toposort([value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
        self.reads_along_k = any(stride_along(at, tile.k.parts[-1]) == 1 for at in reads) and \
            not any(stride_along(at, axis.parts[-1]) == 1 for at in reads)
        self.along_k = along_k or self.reads_along_k
        lines, length = (size, tile.depth) if self.along_k else (tile.depth, size)
        self.pitch = length + PIECE
        self.memories = [local(f"{name}{stage}", value.dtype, lines * self.pitch) for stage in range(2)]
        across = (tile.depth if self.reads_along_k else size) // PIECE           # pieces of a line that is read
        self.times, self.each = counter("u", size * tile.depth // (PIECE * tile.threads)), counter("e", PIECE)
        self.lane = counter("l", tile.threads)
        piece = add(multiply(one(self.times), tile.threads), self.lane)
        self.line, self.begin = divide(piece, across), multiply(modulo(piece, across), PIECE)
        wide = tuple(r for r in (self.times, self.each, self.lane) if r.arg.size > 1)
        self.next = register(f"{name}_next", value.dtype, wide)

    def at(self, stage: int, position: UOp, k: UOp) -> UOp:
        return load(self.memories[stage], self.place(position, k))

    def place(self, position: UOp, k: UOp) -> UOp:
        line, inner = (position, k) if self.along_k else (k, position)
        return add(multiply(line, self.pitch), inner)

    def element(self, each: UOp) -> tuple[UOp, UOp]:
        """The position and the k of a thread's element."""
        inner = add(self.begin, each)
        return (self.line, inner) if self.reads_along_k else (inner, self.line)

    def read(self, begin_k: UOp) -> list[Statement]:
        """Read the elements of a step into registers, zeros past the edges."""
        position, k = self.element(self.each)
        at, at_k = add(self.first, position), add(begin_k, k)
        along = self.k if self.reads_along_k else self.axis
        edge, edge_k = self.element(index(0)) if along.size % PIECE == 0 else (position, k)
        gate = both(moves.below(add(self.first, edge), self.axis.size), moves.below(add(begin_k, edge_k), self.k.size))
        value = substitute_index(self.value, {**self.axis.apart(at), **self.k.apart(at_k)}, {})
        return self.for_all(Assign(self.next, moves.zero_outside(value, gate)))

    def kept(self, stage: int) -> list[Statement]:
        """Store the registers to a stage's memory."""
        return self.for_all(Store(self.memories[stage], self.place(*self.element(self.each)), self.next))

    def for_all(self, statement: Statement) -> list[Statement]:
        return nested([self.times, self.each], [For(self.lane, LANE, [statement])], TILE)
