"""A contraction on a GPU. In: a product. Out: a loop tree whose groups of threads share tiles of both factors.

    TASK blocks of M and N (and parts of K, where blocks are few):
        read the first tile of each factor into registers     any view, mask, cast or prologue is absorbed here
        for steps of K:
            put both tiles into LOCAL memory                  [k][position]
            read the next tiles, which arrive while
            for k of the step: every thread multiplies its rows by its columns, in registers
        the epilogue

A group's threads form a square of 16 x 16, and each has `rows` x `vectors` results of the block: in pieces of four that
lie side by side with its neighbours', so that threads read different banks. Edges are copied as zeros and not stored.
With two stages, the next tiles go to other memory than those that are multiplied, and threads wait for each other once
in a step, not twice.
"""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, modulo, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, identity
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, Statement, Store, counter,
                                            load, local, ranges_of, register)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import flat_index, left_of, nested, one
from glassgrad.compiler.optimize.product.recognize import FlatAxis, Product, count, flat_axis, stride_along
from glassgrad.compiler.optimize.product.tiling import Tiling
from glassgrad.compiler.optimize.targets import gpu
from glassgrad.compiler.optimize.targets.gpu import SIDE
from glassgrad.compiler.optimize.targets.target import Target


def group_tiles(product: Product, target: Target, decisions: Decisions) \
        -> tuple[list[list[Statement]], list[Statement]] | None:
    """The phases as tiles of groups, and the loops that add up parts of K; refuses (None) what is too thin for tiles,
    or not of floats."""
    if product.stops or not product.n:
        return None
    product = product.with_lanes_right()
    m, outside_m = flat_axis(product.m, product.epilogue, "m")
    n, outside_n = flat_axis(product.n, product.epilogue, "n")
    outer, k = [*product.batch, *outside_m, *outside_n], FlatAxis.of(product.k)
    if min(m.size, n.size) < gpu.LEAST_SIDE or k.size < gpu.LIMITS.least_k or product.total.dtype.kind != "f":
        return None
    around = count(outer)
    rows, columns = min(((r, c) for r in (8, 4, 2) for c in (8, 4, 2)),
                        key=lambda tile: gpu.tile_time(m.size, n.size, around, tile, target.few_tasks // 2))
    groups = around * -(-m.size // (SIDE * rows)) * -(-n.size // (SIDE * columns))
    parts = max(1, min(target.few_tasks // (2 * groups), k.size // gpu.PART))
    tiles_bytes = gpu.STEP * (SIDE * (rows + columns) + 2 * gpu.PAD) * product.total.dtype.itemsize
    two = 2 * tiles_bytes <= target.group_bytes and k.size // parts >= gpu.LEAST_STEPS * gpu.STEP
    own = Tiling("staged", rows, columns, SIDE * SIDE, block_m=SIDE, block_n=SIDE, left="shared", right="shared",
                 k_block=gpu.STEP, k_parts=parts, stages=2 if two else 1)
    return GroupTile(product, m, n, k, outer, decisions.ask(own, _refuses)).tiled()


def _refuses(c: Tiling) -> str | None:
    if c.stages not in (1, 2):
        return "there are one or two stages"
    if c.rows not in (1, 2, 4, 8) or c.vectors not in (1, 2, 4, 8):
        return "a thread has 1, 2, 4 or 8 rows and columns"
    return None if c.k_block in (16, 32) else "steps of K are 16 or 32 long"


class GroupTile:
    """A product cut as chosen: a block of M and N for each group, rows x vectors of it in each thread's registers."""

    def __init__(self, product: Product, m: FlatAxis, n: FlatAxis, k: FlatAxis, outer: list[UOp], c: Tiling):
        self.product, self.m, self.n, self.k, self.outer, self.c = product, m, n, k, outer, c
        self.lane = counter("l", SIDE * SIDE)
        self.row, self.column = counter("mi", c.rows), counter("ni", c.vectors)
        self.height, self.width = SIDE * c.rows, SIDE * c.vectors
        self.task_m, self.task_n = counter("mb", -(-m.size // self.height)), counter("nb", -(-n.size // self.width))
        self.round = c.stages * c.k_block                                      # of K, in one round of the loop
        self.rounds = -(-k.size // self.round)
        self.part, self.step = counter("kp", c.k_parts), counter("ks", -(-self.rounds // c.k_parts))
        self.in_m = self.position(one(self.row), c.rows, divide(self.lane, SIDE))
        self.in_n = self.position(one(self.column), c.vectors, modulo(self.lane, SIDE))
        self.at_m = add(multiply(one(self.task_m), self.height), self.in_m)
        self.at_n = add(multiply(one(self.task_n), self.width), self.in_n)
        self.first_k = multiply(multiply(one(self.part), self.step.arg.size), self.round)
        self.begin_k = add(self.first_k, multiply(self.step, self.round))
        wide = tuple(r for r in (self.row, self.column, self.lane) if r.arg.size > 1)
        self.total = register(product.total.arg, product.total.dtype, wide)

    @staticmethod
    def position(own: UOp, of: int, thread: UOp) -> UOp:
        """Where a thread's own-th position lies in the block."""
        piece = min(of, gpu.PIECE)
        return add(multiply(divide(own, piece), SIDE * piece), add(multiply(thread, piece), modulo(own, piece)))

    def tiled(self) -> tuple[list[list[Statement]], list[Statement]]:
        """The phases, and the loops that add up the parts of K."""
        gate = both(moves.below(self.at_m, self.m.size), moves.below(self.at_n, self.n.size))
        p = self.product
        left = _SharedTile("left", p.left, self.m, multiply(one(self.task_m), self.height), self.height, self)
        right = _SharedTile("right", p.right, self.n, multiply(one(self.task_n), self.width), self.width, self)
        first, body = self.steps(left, right)
        stop = left_of(self.rounds, self.step.arg.size, self.part)
        loop: list[Statement] = [*first, For(self.step, LOOP, body, stop)]
        start = self.for_all([Assign(self.total, identity(o.ADD, self.total.dtype))])
        blocks = [self.task_m, self.task_n]
        if self.c.k_parts == 1:
            finish = p.stores(self.total, {**self.m.apart(self.at_m), **self.n.apart(self.at_n)}, gate)
            return [nested([*self.outer, *blocks], [*start, *loop, *self.for_all(finish)], TASK)], []
        parts = local("parts", self.total.dtype,
                      self.c.k_parts * count(self.outer) * self.m.size * self.n.size, "shared")
        kept = self.for_all([Store(parts, self.part_at(one(self.part), self.at_m, self.at_n), self.total, None, gate)])
        return [nested([*self.outer, self.part, *blocks], [*start, *loop, *kept], TASK)], self.joined(parts)

    def steps(self, left: _SharedTile, right: _SharedTile) -> tuple[list[Statement], list[Statement]]:
        """What comes before the loop over K, and one round of it."""
        k, step = counter("k", self.c.k_block), self.c.k_block

        def read(at: UOp) -> list[Statement]:
            return [*left.read(at), *right.read(at)]

        def kept(stage: int) -> list[Statement]:
            return [*left.kept(stage), *right.kept(stage)]

        def multiplied(stage: int) -> Statement:
            product = left.at(stage, k, self.in_m) * right.at(stage, k, self.in_n)
            return For(k, LOOP, self.for_all([Accumulate(self.total, o.ADD, product)]))
        if self.c.stages == 1:
            return read(self.first_k), [*kept(0), *read(add(self.begin_k, index(step))), multiplied(0)]
        return [*read(self.first_k), *kept(0)], [
            *read(add(self.begin_k, index(step))), multiplied(0), *kept(1),
            *read(add(self.begin_k, index(2 * step))), multiplied(1), *kept(0)]

    def for_all(self, body: list[Statement]) -> list[Statement]:
        """For every position of the block: its rows and columns in each thread, in all threads."""
        return nested([self.row, self.column], nested([self.lane], body, LANE), TILE)

    # -- parts of K --------------------------------------------------------------------------------------------
    def part_at(self, part: UOp, m: UOp, n: UOp) -> UOp:
        at = flat_index(self.outer, part)
        return add(multiply(add(multiply(at, self.m.size), m), self.n.size), n)

    def joined(self, parts: UOp) -> list[Statement]:
        """The sums of the parts, as plain loops: for all results: for the parts: add."""
        total, part = register(self.product.total.arg, self.product.total.dtype), counter("kp", self.c.k_parts)
        at = load(parts, self.part_at(part, flat_index(self.m.parts), flat_index(self.n.parts)))
        body: list[Statement] = [Assign(total, identity(o.ADD, total.dtype)),
                                 For(part, LOOP, [Accumulate(total, o.ADD, at)]),
                                 *moves.rebuild(self.product.epilogue, {self.product.total: total})]
        return nested([*self.outer, *self.m.parts, *self.n.parts], body, TASK)


class _SharedTile:
    """One factor's part of a step, in memory that the group shares: [k][position]."""

    def __init__(self, name: str, value: UOp, axis: FlatAxis, begin: UOp, size: int, tiling: GroupTile):
        self.value, self.axis, self.k, self.begin, self.size, self.tiling = value, axis, tiling.k, begin, size, tiling
        self.depth, self.pitch = tiling.c.k_block, size + gpu.PAD
        self.memories = [local(f"{name}{stage or ''}", value.dtype, self.depth * self.pitch)
                         for stage in range(tiling.c.stages)]
        each = size * self.depth // tiling.lane.arg.size                         # elements of a thread,
        self.beside = counter(f"{name}_e", min(each, gpu.PIECE))                 # of which so many are neighbours
        self.over = counter(f"{name}_u", each // self.beside.arg.size)
        wide = tuple(r for r in (self.over, self.beside, tiling.lane) if r.arg.size > 1)
        self.next = register(f"{name}_next", value.dtype, wide)

    def at(self, stage: int, k: UOp, position: UOp) -> UOp:
        return load(self.memories[stage], add(multiply(k, self.pitch), position))

    def place(self) -> tuple[UOp, UOp]:
        """A thread's element as (position, k): neighbouring threads read neighbouring pieces."""
        along, piece = (self.depth if self.along_k() else self.size), self.beside.arg.size
        number = add(multiply(one(self.over), self.tiling.lane.arg.size), self.tiling.lane)
        line = divide(number, along // piece)
        inner = add(multiply(modulo(number, along // piece), piece), one(self.beside))
        return (line, inner) if self.along_k() else (inner, line)

    def read(self, begin_k: UOp) -> list[Statement]:
        """Read the elements of a step into registers, zeros past the edges."""
        position, k = self.place()
        at, at_k = add(self.begin, position), add(begin_k, k)
        gate = both(moves.below(at, self.axis.size), moves.below(at_k, self.k.size))
        value = substitute_index(self.value, {**self.axis.apart(at), **self.k.apart(at_k)}, {})
        return self.for_all(Assign(self.next, moves.zero_outside(value, gate)))

    def kept(self, stage: int) -> list[Statement]:
        """Store the registers to a stage's memory."""
        position, k = self.place()
        return self.for_all(Store(self.memories[stage], add(multiply(k, self.pitch), position), self.next))

    def for_all(self, statement: Statement) -> list[Statement]:
        return nested([self.over, self.beside], [For(self.tiling.lane, LANE, [statement])], TILE)

    def along_k(self) -> bool:
        """Whether what lies side by side in memory follows K."""
        reads = [n for n in toposort([self.value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
        inner = self.k.parts[-1]
        return any(stride_along(n.src[1], inner) == 1 for n in reads) and \
            not any(stride_along(n.src[1], self.axis.parts[-1]) == 1 for n in reads if ranges_of(n.src[1]))
