"""Plan how a contraction over an image is tiled. In: a product. Out: an `ImagePlan`, or None.

The plan says which factor is read in place, the register tile with the fewest cycles, blocks of tiles per task, and
blocks and parts of K. A tile extends along one or two loops of M; at the edges of a padded image, steps use only some
of its rows. conv_tile.py builds the loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from glassgrad.compiler.graph import UOp
from glassgrad.compiler.graph.index_algebra import add, close_bounds, index, less, multiply
from glassgrad.compiler.lower.loops import counter, current, ranges_of
from glassgrad.compiler.optimize.moves.padding_bounds import Edges, Piece, RunTimePiece, read_in_place
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis, flat_axis
from glassgrad.compiler.optimize.product.recognize import (REREAD, USUAL, Product, count, footprint, stride_along,
                                                           usual_stride)
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling, blocks
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


@dataclass(frozen=True)
class Cut:
    """A way to split M into register tiles, and the work of these, for any number of vectors."""
    tiles: list[int]              # a tile's extent along each loop of M
    rows: int                     # per tile
    count: int                    # tiles in total
    steps: dict[int, float]       # rows used by a step of K -> the number of such steps
    written: int                  # copies of a step in the code, for all edges that a tile may be at
    pieces: int                   # contiguous pieces of the result that a tile's rows are in

    def cycles(self, depth: int, panels: int, vectors: int, lanes: int, load: float, again: float,
               repeats: int) -> float:
        """Estimate the cycles of the product. A step of K takes two multiply-adds per cycle, or a little under two
        loads (`load` cycles each), and `again` cycles to read each vector of the panel from the second-level cache.
        Then each tile is transposed into the result. The other factor is packed, once for all of its `repeats`."""
        more = 0.5 + again * vectors
        steps = sum([times * (max(n * vectors / 2, (n + vectors) * load, 4) + more) for n, times in self.steps.items()])
        turn = self.count * (self.rows + cpu.PIECE_STORE_CYCLES * self.pieces) * cpu.TRANSPOSE_CYCLES * vectors * lanes
        return panels * (steps + turn + cpu.PACK_IMAGE_CYCLES * depth * vectors * lanes / repeats)

    def lines(self, step: int) -> float:
        """The cache lines that a step of K reads, if neighbours along the last loop of M are `step` bytes apart."""
        return self.rows / self.tiles[-1] * (1 + (self.tiles[-1] - 1) * min(1.0, step / cpu.CACHE_LINE))


def cuts(p: Product, edges: Edges, most: int) -> list[Cut]:
    """All ways to split M into tiles of at most `most` rows."""
    depth = p.depth
    strides = {r: abs(usual_stride(p.store.index, r) or 0) for r in (*p.m, *p.n) if r.arg.size > 1}
    out: list[Cut] = []
    whole = {m for k, m in edges.bound.items() if not edges.is_known(k)}         # a tile has one row along these
    known = {r: [tile for tile in range(1, min(most, close_bounds(stop)[0]) + 1) if edges.run_time_pieces(r, tile)]
             for r, stop in edges.stops.items() if r in p.m}                     # run-time bound: the possible tiles
    sizes = [max(known[r], default=1) if r in known else 1 if r in whole or known else r.arg.size for r in p.m]
    for tiles in tilings(sizes, most):
        if any(r in known and t not in known[r] for r, t in zip(p.m, tiles)):
            continue
        count = math.prod([tiles_along(edges, r, t) for r, t in zip(p.m, tiles)])
        steps, written = steps_of(edges, dict(zip(p.m, tiles)), depth * count)
        out.append(Cut(tiles, math.prod(tiles), count, steps, written, pieces_in_result(p.m, strides, tiles)))
    return out


def tiles_along(edges: Edges, loop: UOp, tile: int) -> int:
    """The number of tiles along a loop. With a run-time bound: its greatest value times the number of tiles per
    position, averaged over typical values."""
    low, high = close_bounds(edges.stops.get(loop, index(loop.arg.size)))
    usual = [n for n in cpu.USUAL_POSITIONS if low <= n <= high] if low < high else []
    usual = usual or [high]
    return math.ceil(high * sum([-(-n // tile) / n for n in usual]) / len(usual))


def pieces_in_result(loops: list[UOp], strides: dict[UOp, int], tiles: list[int]) -> int:
    """How many contiguous pieces of the result a tile's rows are in, given the strides of its loops; 1 if columns have
    the smallest stride."""
    nearest = min(filter(None, strides.values()), default=0)
    if not nearest or nearest not in [strides.get(r) for r in loops]:
        return 1
    along, goes_on = 1, True
    while goes_on:
        at = next((i for i, r in enumerate(loops) if tiles[i] > 1 and strides.get(r) == along * nearest), None)
        goes_on = at is not None and tiles[at] == loops[at].arg.size
        along *= tiles[at] if at is not None else 1
    return math.prod(tiles) // along


def steps_of(edges: Edges, tiles: dict[UOp, int], whole: int) -> tuple[dict[int, float], int]:
    """How many of `whole` steps of K use each number of rows; and how many copies of a step are in the code."""
    run_time = [edges.run_time_pieces(m, tile) for m, tile in tiles.items() if m in edges.stops]
    steps = {math.prod(tiles.values()): float(whole)}
    written = math.prod([sum(len(piece.runs) for piece in pieces) for pieces in run_time])
    for k, m in edges.bound.items():
        if m is None or tiles.get(m, 1) == 1 or m in edges.stops:
            steps = {rows: times * edges.share(k) for rows, times in steps.items()}
            continue
        pieces, tile = edges.pieces(k, tiles[m]), tiles[m]
        written *= sum(len(piece.runs) for piece in pieces)
        shares: dict[int, float] = {}
        for run, alike in [(run, piece.count) for piece in pieces for run in piece.runs]:
            length = run.last - run.first
            shares[length] = shares.get(length, 0.0) + alike * (run.high - run.low)
        all_steps = -(-m.arg.size // tile) * k.arg.size
        joined: dict[int, float] = {}
        for (rows, times), (length, share) in product(steps.items(), shares.items()):
            part = rows // tile * length
            joined[part] = joined.get(part, 0.0) + times * share / all_steps
        steps = joined
    return steps, written


def tilings(sizes: list[int], most: int, cut: int = 2) -> Iterator[list[int]]:
    """The extents of all tiles of at most `most` rows that extend along at most `cut` of the loops."""
    if not sizes:
        yield []
        return
    for tile in range(1, (min(sizes[0], most) if cut else 1) + 1):
        for rest in tilings(sizes[1:], most // tile, cut - (tile > 1)):
            yield [tile, *rest]


# -- whether an image is read in place ---------------------------------------------------------------------------------
def takes_tiles(p: Product, m: list[UOp], run_time: list[UOp]) -> bool:
    """Whether a product has enough work for tiles, and vectors belong along N."""
    depth, wide, limits = p.depth, count(p.n), cpu.LIMITS["direct"]
    if depth < limits.least_k or depth * wide * count(m) < limits.least_work:
        return False
    if p.stops and (any(r in p.n for r in p.stops) or depth * wide > cpu.MOST_PACKED):
        return False
    return not any(r in ranges_of(p.right) or stride_along(p.store.index, r) == 1 for r in run_time)


def is_reread(p: Product, m: list[UOp], steps: dict[UOp, int], lanes: int) -> bool:
    """Whether the image's elements are read often enough: by several taps of a window, or contiguously, once for each
    of a few panels."""
    window = REREAD * footprint(p.left, p.k + m) <= p.depth * count(m)
    return window or len(p.k) > 1 and steps[p.k[-1]] == 1 and count(p.n) <= cpu.FEW_WINDOW_PANELS * lanes


def stays_in_cache(image: UOp, elements: int, target: Target) -> bool:
    """Whether this many elements of an image stay in the second-level cache; panels take the other half of it."""
    return 2 * elements * image.dtype.itemsize <= target.l2_bytes


def between_taps(p: Product) -> int:
    """How many elements of the image are read between a tap and the next one that reads the same line; 0: no taps."""
    line = p.m[-1]
    taps = [k for k in p.k if footprint(p.left, [k, line]) < count([k, line]) and k.arg.size < line.arg.size]
    return count([k for k in p.k if k not in taps]) * footprint(p.left, [*taps, line]) if taps else 0


def cycles_if_packed(p: Product, of_one_lane: float, lanes: int) -> float:
    """Estimate the cycles of the product with lanes along the image, and of copying it; `of_one_lane` are the cycles of
    multiply-adds with a single lane."""
    size, width = flat_axis(p.m, p.epilogue, "m")[0].size, p.m[-1].arg.size
    copy = cpu.STRIDED_STORE_CYCLES if width < size and width % lanes else cpu.PACK_IMAGE_CYCLES
    return of_one_lane * -(-size // lanes) / size + p.depth * count(p.m) * copy


def priced_tiles(p: Product, edges: Edges, target: Target, lanes: int, line_step: int, reread: bool,
                 repeats: int) -> list[tuple[float, int, list[int]]]:
    """All register tiles that the registers hold, as (cycles, vectors, rows along each loop of M), cheapest first;
    neighbours along the last loop of M are `line_step` elements apart."""
    depth, wide, itemsize = p.depth, count(p.n), p.left.dtype.itemsize
    load, all_cuts = cpu.tile_costs(target.arch).load, cuts(p, edges, target.vector_registers - 2)
    ways = []
    for vectors in range(1, min(cpu.MOST_VECTORS, -(-wide // lanes)) + 1):
        panels = -(-wide // (vectors * lanes))
        panel_bytes = min(depth, cpu.LIMITS["direct"].long_k) * vectors * lanes * itemsize
        again = cpu.REREAD_CYCLES if reread and panel_bytes > target.l1_bytes else 0.0
        most = (target.vector_registers - vectors - 1) // vectors
        for cut in all_cuts:
            if vectors > 1 and cut.rows > most or cut.written * cut.rows * vectors > cpu.MOST_UNROLLED:
                continue
            cost = cut.cycles(depth, panels, vectors, lanes, load, again, repeats)
            if not reread:
                cost += panels * cut.count * depth * cut.lines(line_step * itemsize) * cpu.LINE_CYCLES
            ways.append((cost, vectors, cut.tiles))
    return sorted(ways, key=lambda way: way[0])


# -- the plan --------------------------------------------------------------------------------------------------------
@dataclass
class CutLoop:
    """How a loop of M is split: every `tile` iterations are one register tile. With a run-time bound, the tile's piece
    (of `pieces`) says where it begins, and what is done before it."""
    loop: UOp
    tile: int
    pieces: list[RunTimePiece] = field(default_factory=list)

    def __post_init__(self) -> None:
        size, name = self.loop.arg.size, self.loop.arg.name
        self.count = -(-size // self.tile) + (1 if self.pieces else 0)
        self.over, self.inside = counter(name + "o", self.count), counter(name + "i", self.tile)
        self.begin, self.done = counter(name + "b", size), counter(name + "d", size)

    def index_of(self, inside: UOp) -> UOp:
        """The index in the loop; the last tile starts early, so that nothing past the end is read."""
        if self.pieces:
            return add(self.begin, inside)
        nominal = multiply(current(self.over), self.tile)
        ragged = self.loop.arg.size % self.tile
        return add(nominal.minimum(self.loop.arg.size - self.tile) if ragged else nominal, inside)

    def gate(self, inside: UOp) -> UOp | None:
        """The condition that the previous tile has not stored this row; None if no tiles overlap."""
        if self.pieces:
            return less(self.done, add(self.index_of(inside), index(1)))
        if self.loop.arg.size % self.tile == 0:
            return None
        return less(multiply(self.over, self.tile), add(self.index_of(inside), index(1)))


def rows_of(p: Product, edges: Edges, tiles: list[int]) -> list[CutLoop]:
    """The loops of M, split into tiles of these extents."""
    return [CutLoop(r, t, edges.run_time_pieces(r, t) if r in edges.stops else []) for r, t in zip(p.m, tiles)]


@dataclass
class ImagePlan:
    p: Product                   # the product; its left factor is the image, read in place
    edges: Edges                 # where the image ends
    rows: list[CutLoop]             # loops of M, outermost first
    vectors: int
    lanes: int
    cost: float                  # estimated steps, for comparing plans
    registers: int               # of the target
    alternatives: list[tuple[float, int, list[int]]]     # the cheapest tiles: (cost, vectors, rows along each loop)
    block: tuple[int, int] = (0, 0)      # tiles of M and panels of N per task; 0: as many as suit the shape

    @staticmethod
    def cheapest(p: Product, target: Target) -> ImagePlan | None:
        """The plan with either of the factors as the image; None for plain matrices, among others."""
        plans = [plan for each in (p, p.swapped()) if p.m and p.n and p.pair is None and not p.of_matrices
                 and (plan := ImagePlan.of(each, target)) is not None]
        return min(plans, key=lambda plan: plan.cost, default=None)

    @staticmethod
    def of(p: Product, target: Target) -> ImagePlan | None:
        """The plan with the left factor as the image; None if other tilings suit the product better."""
        run_time = [r for r in p.batch if r in p.stops]             # rows or images; positions are loops of M
        m, lanes = [*run_time, *p.m], target.lanes(p.total.dtype.itemsize)
        found = read_in_place(p.left, p.total.dtype, m, p.k, p.stops) if takes_tiles(p, m, run_time) else None
        if found is None:
            return None
        edges, steps = found
        reread = is_reread(p, m, steps, lanes)
        if not (reread or len(m) > 1 and stays_in_cache(p.left, footprint(p.left, p.k + m[1:]), target)):
            return None                  # elements far apart that are read only a few times are better packed
        if not stays_in_cache(p.left, between_taps(p), target):
            return None                  # and so is a line too long to stay in the cache until its next tap
        p = replace(p, k=edges.taps_first(p.k, steps))
        wide, tall, line_step, all_lanes = count(p.n), count(p.m), abs(steps[p.m[-1]]), lanes
        if line_step > 1 and wide < lanes:
            lanes = max(cpu.LEAST_LANES, 1 << (wide - 1).bit_length())  # lanes along the image would not be contiguous
        ways = priced_tiles(p, edges, target, lanes, line_step, reread, max(1, count(run_time) // USUAL))
        useful = p.depth * tall * wide / (2 * lanes) * math.prod(edges.share(k) for k in edges.bound)
        least_use = 0 if any(r in p.m for r in p.stops) else cpu.LEAST_USE       # otherwise blocks, with masks
        if not ways or useful < least_use * ways[0][0] or \
                not reread and cycles_if_packed(p, useful * lanes, all_lanes) < ways[0][0]:
            return None
        cost, vectors, tiles = ways[0]
        return ImagePlan(p, edges, rows_of(p, edges, tiles), vectors, lanes, cost, target.vector_registers,
                         ways[:cpu.MOST_SEARCHED])

    def with_tile(self, vectors: int, tiles: list[int]) -> ImagePlan:
        """The same plan with another register tile, and the blocks that suit it."""
        return replace(self, rows=rows_of(self.p, self.edges, tiles), vectors=vectors, block=(0, 0))

    def others(self) -> list[Tiling]:
        """The tiles with the next lowest costs."""
        return [self.with_tile(vectors, tiles).choice() for _, vectors, tiles in self.alternatives]

    def choice(self) -> Tiling:
        return Tiling("direct", self.height, self.vectors, self.lanes, "_".join(str(r.tile) for r in self.rows),
                      block_m=self.block[0], block_n=self.block[1], left="in_place", k_block=self.k_chunk,
                      k_parts=self.parts)

    def chosen(self, c: Tiling) -> ImagePlan:
        """The same plan, tiled as chosen."""
        return replace(self.with_tile(c.vectors, [int(t) for t in c.along.split("_")]), block=(c.block_m, c.block_n))

    def refuses(self, c: Tiling) -> str | None:
        """Why this product cannot be tiled like this; None if it can."""
        parts, sizes = c.along.split("_"), [r.loop.arg.size for r in self.rows]
        if len(parts) != len(sizes) or not all(t.isdigit() and 1 <= int(t) <= n for t, n in zip(parts, sizes)):
            return f"the rows are tiles of {' x '.join(map(str, sizes))}"
        other = self.with_tile(c.vectors, [int(t) for t in parts])
        if c.rows != other.height:
            return f"{c.along} are {other.height} rows"
        if (other.height + 1) * c.vectors >= 2 * self.registers:
            return f"the tile takes {other.height * c.vectors} of {self.registers} registers"
        if c.block_m > other.tiles or c.block_n > other.panels:
            return "a block is larger than the product"
        if other.parts > 1 and (c.block_m, c.block_n) != other.block:
            return "a task that sums a part of K has all of the result"
        held = c.block_m * c.block_n * other.strip * other.height * c.vectors * self.lanes
        return "the sums of a block do not fit a cache" if c.k_block and held > cpu.MOST_WAITING_SUMS else None

    # -- sizes ---------------------------------------------------------------------------------------------------
    def __post_init__(self) -> None:
        p = self.p
        self.columns = self.vectors * self.lanes
        self.n = FlatAxis.of(p.n)
        self.panels = -(-self.n.size // self.columns)
        self.height = math.prod(r.tile for r in self.rows)
        self.depth = p.depth
        cut = {m: k for k, m in self.edges.bound.items()}
        self.edged: list[tuple[CutLoop, Sequence[Piece | RunTimePiece]]] = [
            (r, r.pieces or self.edges.pieces(cut[r.loop], r.tile)) for r in self.rows
            if r.pieces or r.loop in cut and r.tile > 1]
        # along these, tiles at edges have code of their own
        self.strips = [r for r, pieces in self.edged if len(pieces) > 1]
        self.flat = [r for r in self.rows if r not in self.strips]
        self.tiles = math.prod(r.count for r in self.flat)
        self.strip = math.prod(r.count for r in self.strips)
        self.k_loops, self.k_chunk = self.k_blocks()
        self.parts = self.parts_of_k()
        if not all(self.block):
            self.block = (self.tiles, self.panels) if self.parts > 1 else self.blocks()

    def wanted(self) -> int:
        """How many tasks are worth their cost."""
        return max(1, cpu.LIMITS["direct"].tasks(self.p.work) // count(self.p.batch))

    def parts_of_k(self) -> int:
        """How many parts K is split into, each a task: if the result is small, the factors are then read only once.
        Depends on the product's sizes alone, not on the tile, because it decides the order of the sums."""
        p = self.p
        if not self.k_chunk or p.batch:
            return 1
        rows, columns = count(p.m), count(p.n)
        image, weights, wanted = footprint(p.left, p.m + p.k), self.depth * columns, self.wanted()
        unsplit = min(-(-wanted // n) * weights + n * image for n in range(1, -(-columns // self.lanes) + 1))
        pieces = self.k_loops[0].arg.size
        pieces = -(-pieces // self.k_chunk) if len(self.k_loops) == 1 else pieces
        parts = -(-pieces // -(-pieces // max(1, min(wanted, pieces))))
        whole = rows * columns <= cpu.MOST_SPLIT and 2 * parts >= wanted
        return parts if whole and weights + image + 2 * parts * rows * columns < unsplit else 1

    def blocks(self) -> tuple[int, int]:
        """Tiles of M and panels of N per task: enough tasks, with as little as possible read more than once."""
        p, wanted = self.p, self.wanted()
        image, weights = footprint(p.left, p.m + p.k), self.depth * self.panels * self.columns
        return blocks(self.tiles, self.panels, wanted, lambda block_m, block_n:
                      -(-self.tiles // block_m) * weights + -(-self.panels // block_n) * image)

    def k_blocks(self) -> tuple[list[UOp], int]:
        """The loops of K outside a block, and the chunk into which the last of them is split; 0: one block."""
        limits = cpu.LIMITS["direct"]
        if self.depth <= limits.long_k:
            return [], 0
        inner = self.depth
        for at, r in enumerate(self.p.k):
            inner //= r.arg.size
            if inner <= limits.long_k:
                return self.p.k[:at + 1], max(1, limits.k_block // inner)
        return self.p.k[:1], 1
