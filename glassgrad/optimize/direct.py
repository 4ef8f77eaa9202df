"""Sums of products over windows: one factor is read where it lies. In: a recognised product. Out: phases, or None.

A convolution multiplies every channel of a pixel with a vector of weights. Laid out so, the image needs no copy: its
numbers are read one by one, from whatever address a tap, a stride or a dilation gives them, and the lanes go along the
channels of the result, where no image is too small or has rows of an odd length. Nor does it need zeros around it: taps
outside a padded image are left out (padding.py), by loop bounds, or by tiles of their own along its edges.

    phase 1   pack the other factor (weights) into panels   [panel of N][K][vectors of the tile]
    phase 2   TASK tiles of M, panels of N: for blocks of K: rows x vectors of sums; each step reads `rows` numbers at
              constant distances and a few vectors, and multiplies each with each
              then the sums, which lie across the result, are turned in LOCAL memory and stored along it

The gradient by the weight is the same with other names: its rows are taps and channels, its sum goes over pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from glassgrad.graph import ops as o
from glassgrad.graph.index import add, both, index, less, multiply, substitute_index
from glassgrad.graph.uop import UOp, const, identity
from glassgrad.lower.loops import (
    LANE,
    LOOP,
    TASK,
    TILE,
    Accumulate,
    Assign,
    For,
    If,
    Statement,
    Store,
    counter,
    load,
    local,
    register,
)
from glassgrad.optimize import moves
from glassgrad.optimize.axes import FlatAxis, footprint, one, stride_along
from glassgrad.optimize.choices import Choice, Decisions, settled
from glassgrad.optimize.direct_tiles import cuts
from glassgrad.optimize.packing import Operand
from glassgrad.optimize.padding import Edges, Run, between, bounded, within
from glassgrad.optimize.product import Product
from glassgrad.optimize.target import Target

LEAST_WORK = 64 * 1024   # multiply-adds below which plain loops do as well
LEAST_K = 16             # products per result that repay turning the tile
LEAST_USE = 0.4          # share of the machine's multiply-adds that must be of use: else lanes belong elsewhere
LONG_K = 1024            # longer sums go in blocks: no register adds more, and the panel of a block stays near
K_BLOCK = 512
TASK_WORK = 512 * 1024   # multiply-adds worth a task of their own
MOST_TASKS = 16
MOST_VECTORS = 4         # of a tile
REREAD = 2               # times a window must read each number for it to be one
FEW_PANELS = 8           # up to so many, what is no window is read in place too: packing it would cost more
MOST_RESTING = 1 << 22   # sums that rest between blocks of K, for each worker
MOST_SPLIT = 1 << 17     # results of which each part of K keeps sums of its own
MOST_NEAR = 12           # tiles worth trying, where somebody measures them
MOST_WRITTEN = 2048      # multiply-adds that are written out, for all the edges a tile may lie at
PACK = 1.0               # steps to pack one number of the other factor
TURN = 1.0               # steps to bring one number of a finished tile to its place
APART = 8.0              # and so many more for each piece of memory that the tile's numbers for one column lie in


@dataclass(frozen=True)
class Direct(Choice):
    """A tile of rows x (vectors x lanes); blocks of tiles, one to a task."""
    rows: str                     # neighbours along each loop of M, as in 1_2_7
    vectors: int
    block_m: int                  # tiles of M in one task
    block_n: int                  # panels of N in one task
    lanes: int = settled()
    k_block: int = settled(0)     # steps of a loop of K between which the sums rest in LOCAL memory; 0: none
    k_parts: int = settled(1)     # pieces of K, each summed by a task of its own


def direct(given: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases; refuses what is no window, or has too few channels for the lanes or products for the turning."""
    plans = [plan for p in (given, given.swapped()) if (plan := _Plan.of(p, target)) is not None]
    if not plans:
        return None
    plan = min(plans, key=lambda plan: plan.cost)
    chosen = decisions.ask(plan.choice(), plan.refuses, plan.others)
    tiles = [int(tile) for tile in chosen.rows.split("_")]
    return replace(plan.with_tile(chosen.vectors, tiles), block=(chosen.block_m, chosen.block_n)).phases()


@dataclass
class _Row:
    """How a loop of M is cut: `tile` neighbours belong to one register tile."""
    loop: UOp
    tile: int

    def __post_init__(self) -> None:
        size, name = self.loop.arg.size, self.loop.arg.name
        self.count = -(-size // self.tile)
        self.over, self.inside = counter(name + "o", self.count), counter(name + "i", self.tile)

    def place(self, inside: UOp) -> UOp:
        """The position in the loop; the last tile starts early, so that nothing past the end is read."""
        nominal = multiply(one(self.over), self.tile)
        ragged = self.loop.arg.size % self.tile
        return add(nominal.minimum(self.loop.arg.size - self.tile) if ragged else nominal, inside)

    def gate(self, inside: UOp) -> UOp | None:
        """What the tile before has stored already is not stored again."""
        if self.loop.arg.size % self.tile == 0:
            return None
        return less(multiply(self.over, self.tile), add(self.place(inside), index(1)))


Runs = dict[UOp, tuple[_Row, tuple[Run, ...]]]       # of a loop of K: the row whose tile it is cut for, and how


@dataclass
class _Plan:
    p: Product                   # its left factor is the one read in place
    edges: Edges                 # and these are where it ends
    rows: list[_Row]             # loops of M, outermost first
    vectors: int
    lanes: int
    cost: float                  # estimated steps, for choosing
    registers: int               # of the target
    near: list[tuple[float, int, list[int]]]     # the cheapest tiles: estimated steps, vectors, rows along each loop
    block: tuple[int, int] = (0, 0)      # tiles of M and panels of N in one task; 0: as many as suit the shape

    @staticmethod
    def of(p: Product, target: Target) -> _Plan | None:
        image = p.left
        if image.op is not o.LOAD or image.dtype is not p.total.dtype:
            return None
        edges = Edges.of(image.src[2], p.m, p.k) if len(image.src) == 3 else Edges([])
        steps = {r: stride_along(image.src[1], r) for r in (*p.m, *p.k)}
        if edges is None or None in steps.values():
            return None
        depth, wide = math.prod(r.arg.size for r in p.k), math.prod(r.arg.size for r in p.n)
        tall = math.prod(r.arg.size for r in p.m)
        lanes = target.lanes(p.total.dtype.itemsize)
        if depth < LEAST_K or depth * wide * tall < LEAST_WORK:
            return None
        window = REREAD * footprint(image, p.k + p.m) <= depth * tall
        along = len(p.k) > 1 and steps[p.k[-1]] == 1 and wide <= FEW_PANELS * lanes
        near = len(p.m) > 1 and 2 * footprint(image, p.k + p.m[1:]) * image.dtype.itemsize <= target.l2_bytes
        if not (window or along or near):
            return None                  # numbers far apart that are read but a few times are better packed
        p = replace(p, k=edges.taps_first(p.k, {r: step or 0 for r, step in steps.items()}))
        width = p.m[-1].arg.size
        ideal = depth * tall * wide / (2 * lanes) * math.prod(edges.share(k) for k in edges.bound)
        packed = ideal * (-(-width // lanes) * lanes / width) + depth * tall      # lanes along the image, and its copy
        found: list[tuple[float, int, list[int]]] = []
        all_cuts = cuts(p, edges, target.vector_registers - 2)
        for vectors in range(1, min(MOST_VECTORS, -(-wide // lanes)) + 1):
            panels = -(-wide // (vectors * lanes))
            most = (target.vector_registers - vectors - 1) // vectors
            for cut in all_cuts:
                if vectors > 1 and cut.rows > most or cut.written * cut.rows * vectors > MOST_WRITTEN:
                    continue
                halves = sum([times * (max(n * vectors, n + vectors, 8) + 1) for n, times in cut.steps.items()])
                turn = cut.count * (cut.rows + APART * cut.pieces) * TURN * vectors * lanes
                cost = panels * (halves / 2 + turn + PACK * depth * vectors * lanes)   # two of a kind in a cycle
                found.append((cost, vectors, cut.tiles))
        found.sort(key=lambda tile: tile[0])
        if not found or ideal < LEAST_USE * found[0][0] or not (window or along) and packed < found[0][0]:
            return None
        cost, vectors, tiles = found[0]
        return _Plan(p, edges, [_Row(r, t) for r, t in zip(p.m, tiles)], vectors, lanes, cost,
                     target.vector_registers, found[:MOST_NEAR])

    def with_tile(self, vectors: int, tiles: list[int]) -> _Plan:
        """The same with another register tile, and the blocks that suit it."""
        return replace(self, rows=[_Row(r, t) for r, t in zip(self.p.m, tiles)], vectors=vectors, block=(0, 0))

    def others(self) -> list[Direct]:
        """Tiles that should cost little more."""
        return [self.with_tile(vectors, tiles).choice() for _, vectors, tiles in self.near]

    def choice(self) -> Direct:
        return Direct("_".join(str(r.tile) for r in self.rows), self.vectors, *self.block, self.lanes, self.k_chunk,
                      self.parts)

    def refuses(self, c: Direct) -> str | None:
        """Why another way to cut it would not do."""
        parts, sizes = c.rows.split("_"), [r.loop.arg.size for r in self.rows]
        if len(parts) != len(sizes) or not all(t.isdigit() and 1 <= int(t) <= n for t, n in zip(parts, sizes)):
            return f"the rows are tiles of {' x '.join(map(str, sizes))}"
        other = self.with_tile(c.vectors, [int(t) for t in parts])
        if (other.height + 1) * c.vectors >= 2 * self.registers:
            return f"the tile takes {other.height * c.vectors} of {self.registers} registers"
        if c.block_m > other.tiles or c.block_n > other.panels:
            return "a block is larger than the product"
        if other.parts > 1 and (c.block_m, c.block_n) != other.block:
            return "a task that sums a part of K has all of the result"
        held = c.block_m * c.block_n * other.strip * other.height * c.vectors * self.lanes
        return "a block's sums would not rest in any cache" if c.k_block and held > MOST_RESTING else None

    # -- counters ------------------------------------------------------------------------------------------------
    def __post_init__(self) -> None:
        p = self.p
        self.columns = self.vectors * self.lanes
        self.n = FlatAxis(p.n, math.prod(r.arg.size for r in p.n))
        self.panels = -(-self.n.size // self.columns)
        self.height = math.prod(r.tile for r in self.rows)
        self.depth = math.prod(r.arg.size for r in p.k)
        cut = {m: k for k, m in self.edges.bound.items()}
        self.edged = [(r, self.edges.pieces(cut[r.loop], r.tile)) for r in self.rows if r.loop in cut and r.tile > 1]
        self.strips = [r for r, pieces in self.edged if len(pieces) > 1]      # along these, tiles are told apart
        self.flat = [r for r in self.rows if r not in self.strips]
        self.tiles = math.prod(r.count for r in self.flat)
        self.strip = math.prod(r.count for r in self.strips)
        self.right = Operand("right", p.right, self.n, p.batch, p.k, self.columns, self.vectors, self.panels)
        self.k_loops, self.k_chunk = self.k_blocks()
        self.parts = self.parts_of_k()
        if not all(self.block):
            self.block = (self.tiles, self.panels) if self.parts > 1 else self.blocks()
        self.block_m, self.block_n = self.block
        self.task_m, self.in_m = counter("mb", -(-self.tiles // self.block_m)), counter("mo", self.block_m)
        self.task_n, self.in_n = counter("nb", -(-self.panels // self.block_n)), counter("no", self.block_n)
        self.panel = add(multiply(one(self.task_n), self.block_n), one(self.in_n))
        self.over, self.lane = counter("ni", self.vectors), counter("l", self.lanes)
        self.column = add(multiply(one(self.over), self.lanes), self.lane)
        self.inside = [r.inside for r in self.rows if r.tile > 1]
        wide = [*self.inside, *([self.over] if self.vectors > 1 else []), self.lane]
        self.total = register(p.total.arg, p.total.dtype, wide)
        held = self.block_m * self.block_n * self.strip if self.k_chunk and self.parts == 1 else 1
        self.sums = local("sums", p.total.dtype, held * self.height * self.columns)
        self.size = self.tiles * self.strip * self.panels * self.height * self.columns
        self.partial = local("partial", p.total.dtype, self.parts * self.size, "shared")
        self.held = add(multiply(one(self.in_m), self.block_n), one(self.in_n))
        for r in self.strips:
            self.held = add(multiply(self.held, r.count), r.over)

    def wanted(self) -> int:
        """Tasks that are worth their while."""
        p = self.p
        work = self.depth * math.prod(r.arg.size for r in (*p.m, *p.n, *p.batch))
        return max(1, min(MOST_TASKS, work // TASK_WORK) // math.prod(r.arg.size for r in p.batch))

    def parts_of_k(self) -> int:
        """Into how many pieces K is cut, each for a task of its own: where the result is small, the factors are then
        read but once. Decided by the product's sizes alone, not by the tile, for it decides the order of the sums."""
        p = self.p
        if not self.k_chunk or p.batch:
            return 1
        rows, columns = math.prod(r.arg.size for r in p.m), math.prod(r.arg.size for r in p.n)
        image, weights, wanted = footprint(p.left, p.m + p.k), self.depth * columns, self.wanted()
        apart = min(-(-wanted // n) * weights + n * image for n in range(1, -(-columns // self.lanes) + 1))
        count = self.k_loops[0].arg.size
        count = -(-count // self.k_chunk) if len(self.k_loops) == 1 else count
        parts = -(-count // -(-count // max(1, min(wanted, count))))
        whole = rows * columns <= MOST_SPLIT and 2 * parts >= wanted
        return parts if whole and weights + image + 2 * parts * rows * columns < apart else 1

    def blocks(self) -> tuple[int, int]:
        """Tiles of M and panels of N in one task: enough tasks, and as little as can be read more than once."""
        p, wanted = self.p, self.wanted()
        image, weights = footprint(p.left, p.m + p.k), self.depth * self.panels * self.columns
        best: tuple[int, int, int] | None = None
        for tasks_m in range(1, min(wanted, self.tiles) + 1):
            tasks_n = min(self.panels, -(-wanted // tasks_m))
            if tasks_m * tasks_n < wanted and tasks_n < self.panels:
                continue
            reads = tasks_m * weights + tasks_n * image
            if tasks_m * tasks_n < min(wanted, self.tiles * self.panels):
                reads *= 8
            if best is None or reads < best[0]:
                best = reads, -(-self.tiles // tasks_m), -(-self.panels // tasks_n)
        assert best is not None
        return best[1:]

    def k_blocks(self) -> tuple[list[UOp], int]:
        """The loops of K outside a block, the last of them cut into chunks of the second result; 0: one block."""
        if self.depth <= LONG_K:
            return [], 0
        inner = self.depth
        for at, r in enumerate(self.p.k):
            inner //= r.arg.size
            if inner <= LONG_K:
                return self.p.k[:at + 1], max(1, K_BLOCK // inner)
        return self.p.k[:1], 1

    # -- phases --------------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        if self.parts > 1:
            return [self.right.pack(self.lanes), self.in_parts(), self.joined()]
        body = self.in_blocks() if self.k_chunk else self.at_once()
        for r in (self.task_n, self.task_m, *reversed(self.p.batch)):
            body = [For(r, TASK, body)] if r.arg.size > 1 else body
        return [self.right.pack(self.lanes), body]

    def at_once(self) -> list[Statement]:
        """A tile is summed, turned and stored before the next one."""
        def tile(runs: Runs) -> list[Statement]:
            return [*self.tiled([Assign(self.total, identity(o.ADD, self.total.dtype)), *self.steps(self.p.k, runs),
                                 Store(self.sums, self.spot(index(0)), self.total)]), *self.finish(index(0))]
        return self.all_tiles(tile)

    def in_blocks(self) -> list[Statement]:
        """Long sums: for a block of K at a time, all tiles of the task; between blocks they rest in LOCAL memory."""
        loops, body = self.blocks_of_k(self.sums, self.spot(self.held))
        for r in reversed(loops):
            body = [For(r, LOOP, body)] if r.arg.size > 1 else moves.rebuild(body, {r: index(0)})
        zero = Store(self.sums, self.spot(self.held), const(0, self.total.dtype))
        return [*self.all_tiles(lambda _: self.tiled([zero])), *body,
                *self.all_tiles(lambda _: self.finish(self.held))]

    def in_parts(self) -> list[Statement]:
        """The same for a part of K, whose sums stay in memory."""
        part = counter("kt", self.parts)
        spot = add(multiply(part, self.size), self.spot(self.held))
        (first, *rest), body = self.blocks_of_k(self.partial, spot)
        for r in reversed(rest):
            body = [For(r, LOOP, body)] if r.arg.size > 1 else moves.rebuild(body, {r: index(0)})
        count = first.arg.size
        step = -(-count // self.parts)
        own = counter(first.arg.name + "t", step)
        stop = None if count % step == 0 else add(index(count), multiply(part, -step))
        body = moves.rebuild(body, {first: add(multiply(part, step), one(own))})
        body = [For(own, LOOP, body, stop)] if step > 1 else body
        zero = Store(self.partial, spot, const(0, self.total.dtype))
        return [For(part, TASK, [*self.all_tiles(lambda _: self.tiled([zero])), *body])]

    def joined(self) -> list[Statement]:
        """The sums of all parts of K, in their order, and what is stored of them."""
        part = counter("kt", self.parts)
        addend = load(self.partial, add(multiply(part, self.size), self.spot(self.held)))
        tile = [*self.tiled([Assign(self.total, identity(o.ADD, self.total.dtype)),
                             For(part, LOOP, [Accumulate(self.total, o.ADD, addend)]),
                             Store(self.sums, self.spot(index(0)), self.total)]), *self.finish(index(0))]
        return self.all_tiles(lambda _: tile, TASK)

    def blocks_of_k(self, memory: UOp, spot: UOp) -> tuple[list[UOp], list[Statement]]:
        """The loops over blocks of K, outermost first, and what is done in one: all tiles of the task are added to."""
        *outer, cut = self.k_loops
        rest = self.p.k[len(self.k_loops):]
        size, chunk = cut.arg.size, self.k_chunk
        block, inner = counter(cut.arg.name + "b", -(-size // chunk)), counter(cut.arg.name, min(chunk, size))
        before = multiply(one(block), chunk)

        def tile(runs: Runs) -> list[Statement]:
            out: list[Statement] = []
            for regions in product(*[self.regions(r, runs) for r in outer]):
                around, condition = None, None
                for r, (low, high, wanted) in zip(outer, regions):
                    around, condition = both(around, between(low, r, high)), both(condition, wanted)
                steps: list[Statement] = []
                for low, high, wanted in self.regions(cut, runs):
                    body = moves.rebuild(self.steps(rest, runs, both(condition, wanted)), {cut: add(before, inner)})
                    steps += bounded(inner, *within(low, high, before, inner.arg.size), body)
                body = self.tiled([Assign(self.total, identity(o.ADD, self.total.dtype)), *steps,
                                   Store(memory, spot, self.total, o.ADD)])
                out += body if around is None else [If(around, body)]
            return out
        return [*outer, block], self.all_tiles(tile)

    def steps(self, loops: list[UOp], runs: Runs, wanted: UOp | None = None) -> list[Statement]:
        """The products of these loops of K, for the whole tile, or as much of it as is wanted."""
        if loops:                        # not written out: neighbouring taps share numbers, which would fill registers
            first, *rest = loops
            return [s for low, high, part in self.regions(first, runs)
                    for s in bounded(first, low, high, self.steps(rest, runs, both(wanted, part)))]
        flat = index(0)
        for r in self.p.k:
            flat = add(multiply(flat, r.arg.size), r)
        a = substitute_index(load(*self.p.left.src[:2]), {r.loop: r.place(one(r.inside)) for r in self.rows}, {})
        b = load(self.right.memory, self.right.place(self.panel, flat, self.column))
        step = Accumulate(self.total, o.ADD, a * b)
        return [step] if wanted is None else [If(wanted, [step])]

    def regions(self, k: UOp, runs: Runs) -> list[tuple[UOp, UOp, UOp | None]]:
        """A loop of K as pieces (begin, end, which rows of the tile want it; None: all)."""
        if k in runs:
            row, pieces = runs[k]
            return [(index(run.low), index(run.high),
                     between(index(run.first), row.inside, index(run.last))) for run in pieces]
        if k not in self.edges.bound:
            return [(index(0), index(k.arg.size), None)]
        place = next((r.place(index(0)) for r in self.rows if r.loop is self.edges.bound[k]), index(0))
        return [(*self.edges.interval(k, place), None)]

    def spot(self, held: UOp) -> UOp:
        """Where LOCAL memory keeps a sum: [held tile][row][column]."""
        at = held
        for r in self.rows:
            at = add(multiply(at, r.tile), one(r.inside))
        return add(multiply(at, self.columns), self.column)

    def tiled(self, body: list[Statement]) -> list[Statement]:
        for r, kind in ((self.lane, LANE), (self.over, TILE), *[(r, TILE) for r in reversed(self.inside)]):
            body = [For(r, kind, body)] if r.arg.size > 1 else body
        return body

    def all_tiles(self, tile: Callable[[Runs], list[Statement]], kind: str = LOOP) -> list[Statement]:
        """For the task's tiles of M, for its panels of N; those at an edge of the image are told apart."""
        body: list[Statement] = []
        for pieces in product(*[pieces for _, pieces in self.edged]):
            at = [(r, piece) for (r, _), piece in zip(self.edged, pieces)]
            part = tile({next(k for k, m in self.edges.bound.items() if m is r.loop): (r, piece.runs)
                         for r, piece in at})
            for row, piece in reversed(at):
                if row in self.strips:
                    number = counter(row.over.arg.name, piece.count)
                    part = moves.rebuild(part, {row.over: add(index(piece.start), one(number))})
                    part = [For(number, LOOP, part)] if piece.count > 1 else part
            body += part
        for r, task, whole in ((self.in_n, self.task_n, self.panels), (self.in_m, self.task_m, self.tiles)):
            size = r.arg.size
            if size > 1:
                stop = None if whole % size == 0 else add(index(whole), multiply(one(task), -size))
                body = [For(r, kind if r is self.in_m else LOOP, body, stop)]
        flat = add(multiply(one(self.task_m), self.block_m), one(self.in_m))
        apart = FlatAxis([r.over for r in self.flat], self.tiles).apart(flat)
        return moves.rebuild(body, apart)

    def finish(self, held: UOp) -> list[Statement]:
        """What is stored of a finished tile: column by column, lanes along its rows."""
        p = self.p
        column = counter("c", self.columns)
        at_n = add(multiply(self.panel, self.columns), column)
        gate = moves.below(at_n, self.n.size)
        lane = counter("q", self.height)
        apart = FlatAxis([r.inside for r in self.rows], self.height).apart(lane)
        value = load(self.sums, add(multiply(add(multiply(held, self.height), lane), self.columns), column))
        replace = {p.total: value, **self.n.apart(at_n),
                   **{r.loop: r.place(apart.get(r.inside, index(0))) for r in self.rows}}
        for r in self.rows:
            gate = both(gate, r.gate(apart.get(r.inside, index(0))))
        body: list[Statement] = []
        for s in moves.rebuild(p.epilogue, replace):
            assert isinstance(s, Store)
            body.append(Store(s.memory, s.index, moves.edge_gate(s.value, gate), s.combine, both(gate, s.gate)))
        return [For(column, LOOP, moves.wide(For(lane, LOOP, body), 1, self.lanes))]
