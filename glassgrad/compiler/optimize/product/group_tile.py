"""A contraction on a GPU. In: a product. Out: a loop tree whose groups of threads share tiles of both factors.

    TASK blocks of M and N (and parts of K, where blocks are few):
        read the first tile of each factor into registers     any view, mask, cast or prologue is absorbed here
        for steps of K:
            put both tiles into LOCAL memory                  [k][position]
            read the next tiles, which arrive while
            for k of the step: every thread multiplies its rows by its columns, in registers
        the epilogue

A group's threads form a square of 16 x 16 (8 x 32 for few rows, 32 x 8 for few columns), and each has `rows` x
`vectors` results of the block: in pieces of four that lie side by side with its neighbours', so that threads read
different banks. Edges are copied as zeros and not stored.
"""

from __future__ import annotations

from dataclasses import replace

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, modulo, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, identity
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, Statement, Store, counter,
                                            load, local, ranges_of, register)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import flat_index, left_of, nested, one
from glassgrad.compiler.optimize.product.group_unit import Factor, packed
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
    in_order, outside_n = flat_axis(product.n, product.epilogue, "n")
    k = FlatAxis.of(product.k)
    # columns of one image, where they are stored in order; or of all, where one would leave much of a tile empty
    columns_of = [(in_order, [*product.batch, *outside_m, *outside_n], 1.0)]
    if outside_n:
        columns_of.append((FlatAxis.of(product.n), [*product.batch, *outside_m], gpu.OUT_OF_ORDER))
    processors = target.few_tasks // 2

    def time(way: tuple[FlatAxis, list[UOp], float, gpu.Tile, int]) -> float:
        n, outer, factor, tile, parts = way
        return factor * gpu.tile_time(m.size, n.size, k.size, count(outer), tile, parts, processors)
    if min(m.size, columns_of[-1][0].size) < gpu.LEAST_SIDE or k.size < gpu.LIMITS.least_k or product.total.dtype.kind != "f":
        return None
    n, outer, _, tile, parts = min(
        ((n, outer, factor, tile, parts) for n, outer, factor in columns_of for tile in gpu.EFFICIENCY
         for parts in gpu.part_counts(m.size, n.size, k.size, count(outer), tile, processors)), key=time)
    rows, columns, side = tile
    own = Tiling("staged", rows, columns, gpu.THREADS, block_m=side, block_n=gpu.THREADS // side, left="shared",
                 right="shared", k_block=gpu.STEP, k_parts=parts)
    in_steps, before = _steps_of_one_loop(product, m, n), list[list[Statement]]()
    if in_steps is not None:
        k = FlatAxis.of(in_steps)
        left = packed("weights", product.left, m, k, outer, product.left.dtype, gpu.STEP)
        before, product = [left.before], replace(product, left=_read_back(left))
    phases, rest = GroupTile(product, m, n, k, outer, decisions.ask(own, _refuses)).tiled()
    return [*before, *phases], rest


def _steps_of_one_loop(p: Product, m: FlatAxis, n: FlatAxis) -> list[UOp] | None:
    """The loops of K in an order in which all of a step belongs to one iteration of the others: channels last, after
    the taps of a window. What divides and compares is the same for a step then. Refuses (None): no loop is made of
    whole steps; or the left factor is too large to be stored in that order first."""
    reads = {node.src[0]: node.src[1] for node in toposort([p.right]) if node.op is o.LOAD}
    if len(p.k) < 2 or any(stride_along(at, n.parts[-1]) not in gpu.NEAR_STRIDES for at in reads.values()):
        return None
    whole = [r for r in p.k if r.arg.size % gpu.STEP == 0 and all(stride_along(at, r) for at in reads.values())]
    small = gpu.SMALL_FACTOR * count(dict.fromkeys([*ranges_of(p.left)])) <= sum(memory.size for memory in reads)
    return [*[r for r in p.k if r is not whole[-1]], whole[-1]] if whole and small else None


def _read_back(factor: Factor) -> UOp:
    """A factor that was stored first, as it is read."""
    line, inner = (factor.axis, factor.k) if factor.along_k else (factor.k, factor.axis)
    at = add(multiply(flat_index(line.parts), factor.pitch), flat_index(inner.parts))
    for r, stride in factor.outer:
        at = add(at, multiply(r, stride))
    return load(factor.memory, at)


def _refuses(c: Tiling) -> str | None:
    if c.rows not in (1, 2, 4, 8) or c.vectors not in (1, 2, 4, 8):
        return "a thread has 1, 2, 4 or 8 rows and columns"
    return None if c.k_block in (16, 32) else "steps of K are 16 or 32 long"


class GroupTile:
    """A product cut as chosen: a block of M and N for each group, rows x vectors of it in each thread's registers."""

    def __init__(self, product: Product, m: FlatAxis, n: FlatAxis, k: FlatAxis, outer: list[UOp], c: Tiling):
        self.product, self.m, self.n, self.k, self.outer, self.c = product, m, n, k, outer, c
        self.lane = counter("l", gpu.THREADS)
        self.row, self.column = counter("mi", c.rows), counter("ni", c.vectors)
        self.height, self.width = c.block_m * c.rows, c.block_n * c.vectors
        self.task_m, self.task_n = counter("mb", -(-m.size // self.height)), counter("nb", -(-n.size // self.width))
        steps = -(-k.size // c.k_block)
        self.part, self.step = counter("kp", c.k_parts), counter("ks", -(-steps // c.k_parts))
        thread_m, thread_n = self.thread()
        self.in_m = self.position(one(self.row), c.rows, thread_m, c.block_m)
        self.in_n = self.position(one(self.column), c.vectors, thread_n, c.block_n)
        self.at_m = add(multiply(one(self.task_m), self.height), self.in_m)
        self.at_n = add(multiply(one(self.task_n), self.width), self.in_n)
        self.first_k = multiply(multiply(one(self.part), self.step.arg.size), c.k_block)
        self.begin_k = add(self.first_k, multiply(self.step, c.k_block))
        wide = tuple(r for r in (self.row, self.column, self.lane) if r.arg.size > 1)
        self.total = register(product.total.arg, product.total.dtype, wide)

    def thread(self) -> tuple[UOp, UOp]:
        """A thread's place among those of the group, along M and along N."""
        if self.c.block_m == SIDE:
            return divide(self.lane, SIDE), modulo(self.lane, SIDE)
        high, wide = gpu.WARP_SIDES
        warp, inside, across = divide(self.lane, gpu.WARP), modulo(self.lane, gpu.WARP), self.c.block_n // wide
        return (add(multiply(divide(warp, across), high), divide(inside, wide)),
                add(multiply(modulo(warp, across), wide), modulo(inside, wide)))

    @staticmethod
    def position(own: UOp, of: int, thread: UOp, threads: int) -> UOp:
        """Where a thread's own-th position lies in the block."""
        piece = min(of, gpu.PIECE)
        return add(multiply(divide(own, piece), threads * piece), add(multiply(thread, piece), modulo(own, piece)))

    def tiled(self) -> tuple[list[list[Statement]], list[Statement]]:
        """The phases, and the loops that add up the parts of K."""
        gate = both(moves.below(self.at_m, self.m.size), moves.below(self.at_n, self.n.size))
        p = self.product
        left = _SharedTile("left", p.left, self.m, multiply(one(self.task_m), self.height), self.height, self)
        right = _SharedTile("right", p.right, self.n, multiply(one(self.task_n), self.width), self.width, self)
        k = counter("k", self.c.k_block)
        multiplied = Accumulate(self.total, o.ADD, left.at(k, self.in_m) * right.at(k, self.in_n))
        then = add(self.begin_k, index(self.c.k_block))
        body: list[Statement] = [*left.kept(), *right.kept(), *left.read(then), *right.read(then),
                                 For(k, LOOP, self.for_all([multiplied]))]
        first = [*left.read(self.first_k), *right.read(self.first_k)]
        stop = left_of(-(-self.k.size // self.c.k_block), self.step.arg.size, self.part)
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
        self.memory = local(name, value.dtype, self.depth * self.pitch)
        self.over = counter(f"{name}_u", size * self.depth // tiling.lane.arg.size)
        wide = tuple(r for r in (self.over, tiling.lane) if r.arg.size > 1)
        self.next = register(f"{name}_next", value.dtype, wide)

    def at(self, k: UOp, position: UOp) -> UOp:
        return load(self.memory, add(multiply(k, self.pitch), position))

    def place(self) -> tuple[UOp, UOp]:
        """A thread's element as (position, k): neighbouring threads read neighbouring elements."""
        element = add(multiply(one(self.over), self.tiling.lane.arg.size), self.tiling.lane)
        if self.along_k():
            return divide(element, self.depth), modulo(element, self.depth)
        return modulo(element, self.size), divide(element, self.size)

    def read(self, begin_k: UOp) -> list[Statement]:
        """Read the elements of a step into registers, zeros past the edges."""
        position, k = self.place()
        at, at_k = add(self.begin, position), add(begin_k, k)
        gate = both(moves.below(at, self.axis.size), moves.below(at_k, self.k.size))
        value = substitute_index(self.value, {**self.axis.apart(at), **self.k.apart(at_k)}, {})
        return self.for_all(Assign(self.next, moves.zero_outside(value, gate)))

    def kept(self) -> list[Statement]:
        """Store the registers to memory."""
        position, k = self.place()
        return self.for_all(Store(self.memory, add(multiply(k, self.pitch), position), self.next))

    def for_all(self, statement: Statement) -> list[Statement]:
        body: list[Statement] = [For(self.tiling.lane, LANE, [statement])]
        return [For(self.over, TILE, body)] if self.over.arg.size > 1 else body

    def along_k(self) -> bool:
        """Whether what lies side by side in memory follows K."""
        reads = [n for n in toposort([self.value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
        inner = self.k.parts[-1]
        return any(stride_along(n.src[1], inner) == 1 for n in reads) and \
            not any(stride_along(n.src[1], self.axis.parts[-1]) == 1 for n in reads if ranges_of(n.src[1]))
