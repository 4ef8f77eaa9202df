"""Tile a contraction for groups of GPU threads. In: a product. Out: loops whose groups share tiles of both factors.

    TASK blocks of M and N (and parts of K, if there are few blocks):
        read the first tile of each factor into registers     any view, mask, cast or prologue is applied here
        for steps of K:
            store both tiles to LOCAL memory                  [k][position]
            start to load the next tiles, and meanwhile
            for k of the step: every thread multiplies its rows by its columns, in registers
        the epilogue

The threads of a group form a rectangle (16 x 16; 4 x 56 for few rows), and each has `rows` x `vectors` results of the
block: in pieces of four, interleaved with those of other threads, so that threads read different banks. Edges are
copied as zeros and not stored. With two stages (double buffering), a step needs one barrier instead of two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, both, divide, divide_up, index, linear, modulo, multiply,
                                                    operation, substitute_index, times)
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, Statement, counter,
                                            current, flat_index, in_loops, load, nested, ranges_of, register_over)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis, flat_axis, lies_along_k
from glassgrad.compiler.optimize.product.gpu_matrix_unit.copied_factors import Factor, packed
from glassgrad.compiler.optimize.product.gpu_warp_tile import CopiedLines, copied_steps
from glassgrad.compiler.optimize.product.recognize import Product, count, stride_along
from glassgrad.compiler.optimize.product.split_k import Parts, RunTimeParts
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target


def group_tiles(product: Product, target: Target, decisions: Decisions) \
        -> tuple[list[list[Statement]], list[Statement]] | None:
    """The phases as tiles of thread groups, and the loops that add up parts of K. Refuses (None) types other than
    floats, and products so thin that plain loops, which read both factors for each product, are as fast."""
    if not product.n or product.pair is not None and not product.pair.adds_nothing_past_the_end:
        return None
    choice = GroupTileChoice(product.with_lanes_right(), target)
    product, m, k = choice.product, choice.m, choice.k
    if choice.short < gpu.LEAST_SIDE or k.size < gpu.LIMITS.least_k or product.total.dtype.kind != "f":
        return None
    best = choice.fastest()
    if choice.is_thin_and_slow(best):
        return None
    chosen = decisions.ask(choice.tiling(best), _refuses)
    before: list[list[Statement]] = []
    in_steps = _steps_of_one_loop(product, best.n)
    if in_steps is not None:
        k = FlatAxis.of(in_steps)
        left = packed("weights", product.left, m, k, best.outer, gpu.STEP, must_follow_k=False)
        before, product = [left.before], replace(product, left=_read_back(left))
    phases, rest = GroupTile(product, m, best.n, k, best.outer, chosen).tiled()
    product.set_run_time_bounds([*before, *phases, rest])
    return [*before, *phases], rest


class GroupTileWay(NamedTuple):
    """One way to tile a product for groups of threads."""
    n: FlatAxis
    outer: list[UOp]       # the loops around the tiles
    factor: float          # factor on the time
    tile: gpu.Tile
    parts: int             # parts of K


class GroupTileChoice:
    """The ways to tile a product for groups of threads, and the estimated time of each."""

    def __init__(self, product: Product, target: Target):
        self.product, self.target = product, target
        m, outside_m = flat_axis(product.m, product.epilogue, "m")
        in_order, outside_n = flat_axis(product.n, product.epilogue, "n")
        self.m, in_order, self.k = (axis.with_run_time_bound(product.stops)
                                    for axis in (m, in_order, FlatAxis.of(product.k)))
        self.bounded = {*product.stops} - {*product.k, *m.parts}
        # tiles over the columns of one image, stored in order; or over those of all images, if one image leaves much of
        # a tile empty
        self.columns = [(in_order, [*product.batch, *outside_m, *outside_n], 1.0)]
        if outside_n:
            self.columns.append((FlatAxis.of(product.n), [*product.batch, *outside_m], gpu.OUT_OF_ORDER))
        self.short, self.long = sorted((m.size, self.columns[-1][0].size))
        # numbers of rows to be fast for
        self.rows = [m.size] if self.m.stop is None else gpu.typical_rows(m.size, gpu.ROWS)
        self.processors = max(1, target.few_tasks // 2)
        self.copied = copy_cost(product.left, self.m, self.k), copy_cost(product.right, in_order, self.k)

    def fastest(self) -> GroupTileWay:
        """The way that is fastest for these numbers of rows."""
        ways = [GroupTileWay(n, outer, factor, tile, parts) for n, outer, factor in self.columns
                for tile in gpu.GROUP_TILES for parts in self.part_counts(n, outer, tile)]
        return gpu.best_for(ways, self.time, self.rows)

    def part_counts(self, n: FlatAxis, outer: list[UOp], tile: gpu.Tile) -> list[int]:
        """The numbers of parts that K may be split into."""
        m = self.m
        if self.bounded:
            return [1]
        if m.stop is not None:
            return gpu.block_counts(n.size, count(outer), tile, self.processors)
        return gpu.part_counts(m.size, n.size, self.typical(self.k, m.size), count(outer), tile, self.processors)

    def typical(self, axis: FlatAxis, rows: int) -> int:
        """The size of an axis if M has this many rows."""
        if axis.stop is None:
            return axis.size
        return rows if axis.stop is self.m.stop else -(-axis.size // gpu.TYPICAL)

    def parts_at(self, way: GroupTileWay, rows: int) -> int:
        """The number of parts of K for this many rows."""
        return way.parts if self.m.stop is None else gpu.parts_at(rows, way.parts, self.typical(self.k, rows), way.tile)

    def time(self, way: GroupTileWay, rows: int) -> float:
        """The estimated cycles of a way for this many rows."""
        columns, depth, around = self.typical(way.n, rows), self.typical(self.k, rows), count(way.outer)
        parts = self.parts_at(way, rows)
        joined = gpu.join_time(around * rows * columns) if parts == 1 < way.parts else 0.0
        return way.factor * gpu.tile_time(rows, columns, depth, around, way.tile, parts, self.processors,
                                          self.copied) + joined

    def is_thin_and_slow(self, best: GroupTileWay) -> bool:
        """Whether plain loops are as fast as the best way."""
        if self.short >= (gpu.LEAST_SIDE if self.long >= gpu.THREADS else gpu.THIN_SIDE):
            return False
        cycles = self.time(best, self.m.size) * self.processors
        return bool(self.bounded) or cycles * gpu.PLAIN_PRODUCTS > self.product.work

    def tiling(self, way: GroupTileWay) -> Tiling:
        """The way as a decision; with enough steps of K, the next one is copied during the current one."""
        tile, usual = way.tile, self.rows[len(self.rows) // 3]
        tiles_bytes = tile.step * (tile.height + tile.width + 2 * gpu.PAD) * self.product.total.dtype.itemsize
        two = 2 * tiles_bytes <= self.target.group_bytes and \
            self.typical(self.k, usual) // self.parts_at(way, usual) >= gpu.LEAST_STEPS * tile.step
        return Tiling("staged", tile.rows, tile.columns, tile.threads, block_m=tile.side,
                      block_n=tile.threads // tile.side, left="shared", right="shared", k_block=tile.step,
                      k_parts=way.parts, stages=2 if two else 1)


def _steps_of_one_loop(p: Product, n: FlatAxis) -> list[UOp] | None:
    """Reorder the loops of K so that a step covers iterations of the last one only: channels last, after the taps of a
    window. Then index divisions and bounds checks are the same for a whole step. Refuses (None) if no loop is a
    multiple of a step, or if the left factor, which is stored in that order first, is too large."""
    reads = {node.src[0]: node.src[1] for node in toposort([p.right]) if node.op is o.LOAD}
    if len(p.k) < 2 or p.k_stop is not None or \
            any(stride_along(at, n.parts[-1]) not in gpu.NEAR_STRIDES for at in reads.values()):
        return None
    whole = [r for r in p.k if r.arg.size % gpu.STEP == 0 and all(stride_along(at, r) for at in reads.values())]
    small = gpu.SMALL_FACTOR * count(dict.fromkeys([*ranges_of(p.left)])) <= sum(memory.size for memory in reads)
    return [*[r for r in p.k if r is not whole[-1]], whole[-1]] if whole and small else None


def _read_back(factor: Factor) -> UOp:
    """The load of a factor that was stored first."""
    line, inner = (factor.axis, factor.k) if factor.along_k else (factor.k, factor.axis)
    at = add(multiply(flat_index(line.parts), factor.pitch), flat_index(inner.parts))
    for r, stride in factor.outer:
        at = add(at, multiply(r, stride))
    return load(factor.memory, at)


def _refuses(c: Tiling) -> str | None:
    if c.stages not in (1, 2):
        return "there are one or two stages"
    if c.rows not in (1, 2, 4, 8) or c.vectors not in (1, 2, 4, 8):
        return "a thread has 1, 2, 4 or 8 rows and columns"
    return None if c.k_block in (8, 16, 32) else "steps of K are 8, 16 or 32 long"


class GroupTile:
    """A product tiled as chosen: each group has a block of M and N, each thread rows x vectors of it in registers."""

    def __init__(self, product: Product, m: FlatAxis, n: FlatAxis, k: FlatAxis, outer: list[UOp], c: Tiling):
        self.product, self.m, self.n, self.k, self.outer, self.c = product, m, n, k, outer, c
        self.lane = counter("l", c.lanes)
        self.row, self.column = counter("mi", c.rows), counter("ni", c.vectors)
        self.height, self.width = c.block_m * c.rows, c.block_n * c.vectors
        self.task_n = counter("nb", -(-n.size // self.width))
        self.block_n = current(self.task_n)
        self.round = c.stages * c.k_block                                      # steps of K per round of the loop
        self.rounds = -(-k.size // self.round)
        self.step = counter("ks", -(-self.rounds // c.k_parts))
        self.parts: RunTimeParts | None = None
        rounds = k.pieces(self.round)
        if m.stop is None:
            part, block = counter("kp", c.k_parts), counter("mb", -(-m.size // self.height))
            self.part, self.block = current(part), current(block)
            self.tasks = [*[For(r, TASK, []) for r in (*outer, part, block)],
                          For(self.task_n, TASK, [], n.pieces(self.width))]
            each = index(self.step.arg.size) if rounds is None else divide_up(rounds, c.k_parts)
        else:
            self.part, self.block, self.tasks = self.of_run_time_rows(m.stop)
            count = index(1) if self.parts is None else self.parts.number
            rounds = index(self.rounds) if rounds is None else rounds
            each = operation(o.IDIV, add(rounds, add(count, index(-1))), count)
        self.first_round = times(self.part, each)
        if rounds is None:
            whole = self.rounds % self.step.arg.size == 0
            self.stop = None if whole else add(index(self.rounds), multiply(self.first_round, -1))
        else:                                                                  # parts are of equal length at run time
            self.stop = operation(o.MIN, each, add(rounds, multiply(self.first_round, -1)))
        thread_m, thread_n = self.thread()
        self.in_m = self.position(current(self.row), c.rows, thread_m, c.block_m)
        self.in_n = self.position(current(self.column), c.vectors, thread_n, c.block_n)
        self.at_m = add(multiply(self.block, self.height), self.in_m)
        self.at_n = add(multiply(self.block_n, self.width), self.in_n)
        self.first_k = multiply(self.first_round, self.round)
        self.begin_k = add(self.first_k, multiply(self.step, self.round))
        self.total = register_over(product.total.arg, product.total.dtype, (self.row, self.column, self.lane))

    def of_run_time_rows(self, rows: UOp) -> tuple[UOp, UOp, list[For]]:
        """The part of K and the block of rows of a task, and the loops over tasks, for a run-time number of rows:

            TASK g below parts * blocks: S[g // blocks, g % blocks]

        `k_parts` is the number of groups per column of tiles. Groups that the blocks of rows do not need do further
        parts of K: few rows have many parts, and many rows one, which is stored as parts are. If N has such a bound
        too, K is not split, and columns of tiles take the place of parts."""
        blocks = operation(o.MAX, divide_up(rows, self.height), index(1))
        most, parts = -(-self.m.size // self.height), self.c.k_parts
        columns = self.n.pieces(self.width)
        if columns is not None:
            group = counter("g", most * self.task_n.arg.size)
            self.block_n = operation(o.IDIV, current(group), blocks)
            loop = For(group, TASK, [], times(columns, blocks))
            return index(0), operation(o.MOD, current(group), blocks), [loop, *[For(r, TASK, []) for r in self.outer]]
        if parts == 1:
            block = counter("mb", most)
            return index(0), current(block), [For(block, TASK, [], blocks), *self.outer_tasks()]
        group, self.step = counter("g", max(parts, most)), counter("ks", self.rounds)
        most_parts = index(self.k.size // gpu.PART) if self.k.stop is None else divide(self.k.stop, gpu.PART)
        each = operation(o.MIN, operation(o.IDIV, index(parts), blocks), most_parts)
        self.parts = RunTimeParts(operation(o.MAX, each, index(1)), multiply(blocks, self.height),
                                  group.arg.size * self.height)
        loop = For(group, TASK, [], times(self.parts.number, blocks))
        return operation(o.IDIV, group, blocks), operation(o.MOD, group, blocks), [loop, *self.outer_tasks()]

    def outer_tasks(self) -> list[For]:
        """The loops over tasks, except those of rows and parts."""
        return [For(r, TASK, []) for r in (*self.outer, self.task_n)]

    def thread(self) -> tuple[UOp, UOp]:
        """A thread's coordinates in the group's rectangle, along M and along N."""
        if self.c.vectors < gpu.PIECE:
            return divide(self.lane, self.c.block_n), modulo(self.lane, self.c.block_n)
        wide = gpu.warp_width(self.c.block_m, self.c.block_n)
        high = gpu.WARP // wide
        warp, inside, across = divide(self.lane, gpu.WARP), modulo(self.lane, gpu.WARP), self.c.block_n // wide
        row = add(modulo(inside, 2), multiply(divide(inside, 2 * wide), 2))       # in pairs of rows: 8 threads, whose
        column = modulo(divide(inside, 2), wide)  # loads are coalesced, touch 2 x 4 pieces
        return (add(multiply(divide(warp, across), high), row), add(multiply(modulo(warp, across), wide), column))

    @staticmethod
    def position(own: UOp, of: int, thread: UOp, threads: int) -> UOp:
        """The position in the block of position number `own` of a thread, which has `of` positions."""
        piece = min(of, gpu.PIECE)
        return add(multiply(divide(own, piece), threads * piece), add(multiply(thread, piece), modulo(own, piece)))

    def tiled(self) -> tuple[list[list[Statement]], list[Statement]]:
        """The phases, and the loops that add up the parts of K."""
        gate = both(self.m.inside(self.at_m), self.n.inside(self.at_n))
        p = self.product
        left = self.shared("left", p.left, self.m, self.block, self.height)
        right = self.shared("right", p.right, self.n, self.block_n, self.width)
        k = counter("k", self.c.k_block)

        def multiplied(stage: int) -> list[Statement]:
            added = p.added(left.at(self.in_m, k, stage), right.at(self.in_n, k, stage))
            return [For(k, LOOP, self.for_all([Accumulate(self.total, o.ADD, added)]))]
        first, body = copied_steps(left, right, self.first_k, self.begin_k, multiplied)
        loop: list[Statement] = [*first, For(self.step, LOOP, body, self.stop)]
        start = self.for_all([Assign(self.total, identity(o.ADD, self.total.dtype))])
        tasks = [loop for loop in self.tasks if loop.range.arg.size > 1]
        tasks.sort(key=lambda loop: loop.stop is None)            # the outermost one bounds the number of tasks
        if self.c.k_parts == 1:
            finish = p.stores(self.total, {**self.m.indices(self.at_m), **self.n.indices(self.at_n)}, gate)
            return [in_loops(tasks, [*start, *loop, *self.for_all(finish)])], []
        parts = Parts(self.total.dtype, self.c.k_parts, self.outer, self.m, self.n, p, self.parts)
        kept = self.for_all([parts.store(self.part, self.at_m, self.at_n, self.total, gate)])
        return [in_loops(tasks, [*start, *loop, *kept])], parts.joined()

    def shared(self, name: str, value: UOp, axis: FlatAxis, task: UOp, size: int) -> CopiedLines:
        """One factor's tile of a step, in shared memory: [k][position]."""
        each = size * self.c.k_block // self.c.lanes                             # elements per thread,
        piece = min(each, gpu.PIECE) if is_matrix(value, axis, self.k) else 1    # and how many of them are contiguous
        return CopiedLines(name, value, axis, self.k, (size, self.c.k_block), self.c.lanes, ("", "1")[:self.c.stages],
                           multiply(task, size), along_k=False, piece=piece, pad=gpu.PAD)

    def for_all(self, body: list[Statement]) -> list[Statement]:
        """Do the body for every position of the block: in all threads, for each thread's rows and columns."""
        return nested([self.row, self.column], nested([self.lane], body, LANE), TILE)


def is_matrix(value: UOp, axis: FlatAxis, k: FlatAxis) -> bool:
    """Whether a factor's index is linear in its position and k. A window's is not: a thread that copies several
    elements would compute an index for each."""
    if value.op is not o.LOAD or len(value.src) != 2:
        return False
    position, step = counter("position", axis.size), counter("step", k.size)
    _, terms = linear(substitute_index(value.src[1], {**axis.indices(position), **k.indices(step)}, {}))
    return all(atom.op is o.RANGE for atom in terms)


def copy_cost(value: UOp, axis: FlatAxis, k: FlatAxis) -> int:
    """How many cycles a thread takes to copy one element of a factor."""
    straight = is_matrix(value, axis, k) and not lies_along_k(value, axis, k)
    return gpu.COPIED if straight else gpu.COPIED_ACROSS
