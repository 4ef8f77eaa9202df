"""Tile a contraction over an image that is read in place. In: a product. Out: phases, or None.

A convolution multiplies every channel of a pixel by a vector of weights. Computed that way, the image needs no copy:
its elements are loaded as scalars, from whatever address a tap, a stride or a dilation gives them. Lanes run along the
channels of the result, so images may have any size and row length. Nor are zeros needed around an image: taps outside a
padded one are skipped (moves/padding_bounds.py), by loop bounds, or by separate tiles along its edges.

    phase 1   pack the other factor (weights) into panels   [panel of N][K][vectors of the tile]
    phase 2   TASK tiles of M, panels of N: for blocks of K: rows x vectors of sums; each step reads `rows` elements at
              constant distances and a few vectors, and multiplies each with each (an outer product)
              then the sums are transposed in LOCAL memory and stored along the result's contiguous axis

The gradient by the weight is the same with other names: its rows are taps and channels, its sum is over pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from glassgrad.compiler.graph import UOp, const, identity, ops as o
from glassgrad.compiler.graph.index_algebra import (add, both, divide_up, index, multiply, operation, substitute_index,
                                                    times)
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, If, Statement, Store, counter,
                                            current, in_loops, load, loads_in, local, nested, piece_bound, ranges_of,
                                            register_over, walk)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.moves.padding_bounds import (Region, Run, RunTimePiece, clamp_interval, in_interval,
                                                              loop_between)
from glassgrad.compiler.optimize.product.conv_tile_plan import CutLoop, ImagePlan
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.packing import PackedFactor
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.product.tiling_parameters import PanelBlocks
from glassgrad.compiler.optimize.targets.target import Target

Runs = dict[UOp, tuple[CutLoop, tuple[Run, ...]]]    # loop of K -> the loop of M whose tile bounds it, and its runs


def conv_tiles(given: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases; refuses (None) a product that is not over windows, too few channels for the lanes, and too few
    products to repay the transposition."""
    plan = ImagePlan.cheapest(given, target)
    if plan is None:
        return None
    return ImageTile(plan.chosen(decisions.ask(plan.choice(), plan.refuses, plan.others))).phases()


class ImageTile(PanelBlocks):
    """A product tiled as planned: register tiles of rows x vectors, blocks of tiles, blocks and parts of K."""

    def __init__(self, plan: ImagePlan):
        super().__init__(plan.tiles, plan.panels, *plan.block)
        p = self.p = plan.p
        self.plan, self.edges, self.rows, self.lanes, self.columns = \
            plan, plan.edges, plan.rows, plan.lanes, plan.columns
        self.right = PackedFactor("right", p.right, plan.n, p.batch, p.k, self.columns, plan.vectors, plan.panels,
                                  stops=p.stops)
        self.over, self.lane = counter("ni", plan.vectors), counter("l", self.lanes)
        self.column = add(multiply(current(self.over), self.lanes), self.lane)
        self.inside = [r.inside for r in self.rows if r.tile > 1]
        self.total = register_over(p.total.arg, p.total.dtype, [*self.inside, self.over, self.lane])
        held = self.block_m * self.block_n * plan.strip if plan.k_chunk and plan.parts == 1 else 1
        self.sums = local("sums", p.total.dtype, held * plan.height * self.columns)
        self.size = plan.tiles * plan.strip * plan.panels * plan.height * self.columns
        self.partial = local("partial", p.total.dtype, plan.parts * self.size, "shared")
        self.held = add(multiply(current(self.in_m), self.block_n), current(self.in_n))
        for r in plan.strips:
            self.held = add(multiply(self.held, r.count), r.over)

    # -- phases --------------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        if self.plan.parts > 1:
            return [self.right.pack(self.lanes), self.in_parts(), self.joined()]
        body = self.in_blocks() if self.plan.k_chunk else self.at_once()
        return [self.right.pack(self.lanes),
                moves.loops_as_tasks([*self.p.batch, self.task_m, self.task_n], body, stops={**self.p.stops})]

    def at_once(self) -> list[Statement]:
        """Sum, transpose and store each tile before the next one."""
        def tile(runs: Runs) -> list[Statement]:
            return [*self.tiled([Assign(self.total, identity(o.ADD, self.total.dtype)), *self.steps(self.p.k, runs),
                                 Store(self.sums, self.spot(index(0)), self.total)]), *self.finish(index(0))]
        return self.all_tiles(tile)

    def in_blocks(self) -> list[Statement]:
        """Long sums: all tiles of the task do one block of K at a time; in between, the sums stay in LOCAL memory."""
        loops, body = self.blocks_of_k(self.sums, self.spot(self.held))
        zero = Store(self.sums, self.spot(self.held), const(0, self.total.dtype))
        return [*self.all_tiles(lambda _: self.tiled([zero])), *in_loops(loops, body),
                *self.all_tiles(lambda _: self.finish(self.held))]

    def in_parts(self) -> list[Statement]:
        """As `in_blocks`, where each part of K is a task whose partial sums stay in memory."""
        part = counter("kt", self.plan.parts)
        spot = add(multiply(part, self.size), self.spot(self.held))
        (first, *rest), body = self.blocks_of_k(self.partial, spot)
        most = -(-first.range.arg.size // self.plan.parts)
        own = counter(first.range.arg.name + "t", most)
        step = index(most) if first.stop is None else divide_up(first.stop, self.plan.parts)
        before = times(part, step)
        body = moves.rebuild(in_loops(rest, body), {first.range: add(before, current(own))})
        left = piece_bound(first.range.arg.size, most, part) if first.stop is None else \
            operation(o.MIN, step, add(first.stop, multiply(before, -1)))
        body = [For(own, LOOP, body, left)] if most > 1 or left is not None else body
        zero = Store(self.partial, spot, const(0, self.total.dtype))
        return moves.loops_as_tasks([part], [*self.all_tiles(lambda _: self.tiled([zero])), *body],
                                    stops={part: self.used_parts()})

    def used_parts(self) -> UOp | None:
        """How many parts of K are used at run time; None if all are."""
        first, *rest = self.plan.k_loops
        stop = self.p.stops.get(first)
        return stop and operation(o.MIN, stop if rest else divide_up(stop, self.plan.k_chunk), index(self.plan.parts))

    def joined(self) -> list[Statement]:
        """Add up the partial sums of all parts of K, in order, and store the results."""
        part = counter("kt", self.plan.parts)
        addend = load(self.partial, add(multiply(part, self.size), self.spot(self.held)))
        tile = [*self.tiled([Assign(self.total, identity(o.ADD, self.total.dtype)),
                             For(part, LOOP, [Accumulate(self.total, o.ADD, addend)], self.used_parts()),
                             Store(self.sums, self.spot(index(0)), self.total)]), *self.finish(index(0))]
        return moves.spread(self.all_tiles(lambda _: tile), moves.PHASE_TASKS)

    def blocks_of_k(self, memory: UOp, spot: UOp) -> tuple[list[For], list[Statement]]:
        """The loops over blocks of K, outermost first, and the body of a block, which adds to all tiles of a task."""
        *outer, cut = self.plan.k_loops
        rest = self.p.k[len(self.plan.k_loops):]
        size, chunk = cut.arg.size, self.plan.k_chunk
        block, inner = counter(cut.arg.name + "b", -(-size // chunk)), counter(cut.arg.name, min(chunk, size))
        before = multiply(current(block), chunk)

        def tile(runs: Runs) -> list[Statement]:
            out: list[Statement] = []
            for regions in product(*[self.regions(r, runs) for r in outer]):
                around, condition = None, None
                for r, (low, high, wanted) in zip(outer, regions):
                    around, condition = both(around, in_interval(low, r, high)), both(condition, wanted)
                steps: list[Statement] = []
                for low, high, wanted in self.regions(cut, runs):
                    body = moves.rebuild(self.steps(rest, runs, both(condition, wanted)), {cut: add(before, inner)})
                    steps += loop_between(inner, *clamp_interval(low, high, before, inner.arg.size), body)
                body = self.tiled([Assign(self.total, identity(o.ADD, self.total.dtype)), *steps,
                                   Store(memory, spot, self.total, o.ADD)])
                out += body if around is None else [If(around, body)]
            return out
        stops = self.p.stops
        blocks = divide_up(stops[cut], chunk) if cut in stops else None
        return [*[For(r, LOOP, [], stops.get(r)) for r in outer], For(block, LOOP, [], blocks)], self.all_tiles(tile)

    def steps(self, loops: list[UOp], runs: Runs, wanted: UOp | None = None) -> list[Statement]:
        """The products of these loops of K, for the whole tile, or for the rows for which `wanted` holds."""
        if loops:                        # not unrolled: elements shared by consecutive taps would fill the registers
            first, *rest = loops
            return [s for low, high, part in self.regions(first, runs)
                    for s in loop_between(first, low, high, self.steps(rest, runs, both(wanted, part)))]
        a = substitute_index(load(*self.p.left.src[:2]), {r.loop: r.index_of(current(r.inside)) for r in self.rows}, {})
        b = load(self.right.memory, self.right.index_of(self.panel_n, self.right.step(), self.column))
        step = Accumulate(self.total, o.ADD, a * b)
        return [step] if wanted is None else [If(wanted, [step])]

    def regions(self, k: UOp, runs: Runs) -> list[Region]:
        """Split a loop of K into regions, by the rows of the tile that use them."""
        if k in runs:
            row, used = runs[k]
            return self.edges.regions(k, row.index_of(current(row.inside)), row.inside, used)
        bound_by = self.edges.bound.get(k) or index(0)
        return self.edges.regions(k, next((r.index_of(index(0)) for r in self.rows if r.loop is bound_by), bound_by))

    def spot(self, held: UOp) -> UOp:
        """The index of a sum in LOCAL memory: [held tile][row][column]."""
        at = held
        for r in self.rows:
            at = add(multiply(at, r.tile), current(r.inside))
        return add(multiply(at, self.columns), self.column)

    def tiled(self, body: list[Statement]) -> list[Statement]:
        return nested([*self.inside, self.over], nested([self.lane], body, LANE), TILE)

    def all_tiles(self, tile: Callable[[Runs], list[Statement]]) -> list[Statement]:
        """The loops over a task's tiles of M and panels of N; tiles at an edge of the image have code of their own."""
        body: list[Statement] = []
        for pieces in product(*[pieces for _, pieces in self.plan.edged]):
            at = [(r, piece) for (r, _), piece in zip(self.plan.edged, pieces)]
            part = tile({k: (r, piece.runs) for r, piece in at for k, m in self.edges.bound.items() if m is r.loop})
            for row, piece in reversed(at):
                if isinstance(piece, RunTimePiece):
                    part = run_time_tiles(row, piece, part)
                elif row in self.plan.strips:
                    number = counter(row.over.arg.name, piece.count)
                    part = moves.rebuild(part, {row.over: add(index(piece.start), current(number))})
                    part = [For(number, LOOP, part)] if piece.count > 1 else part
            body += part
        tiles = FlatAxis([r.over for r in self.plan.flat], self.plan.tiles)
        return moves.rebuild(self.over_m(self.over_n(body)), tiles.indices(self.panel_m))

    def finish(self, held: UOp) -> list[Statement]:
        """The stores of a finished tile: one vector of columns after another, each for all rows together. A renderer
        stores such a block by columns."""
        at_n = add(multiply(self.panel_n, self.columns), self.column)
        gate = below(at_n, self.plan.n.size)
        places = {**self.plan.n.indices(at_n), **{r.loop: r.index_of(current(r.inside)) for r in self.rows}}
        for r in [r for r in self.rows if not r.pieces or self.reads_along(r)]:
            gate = both(gate, r.gate(current(r.inside)))
        body = self.p.stores(load(self.sums, self.spot(held)), places, gate)
        return nested([self.over], nested(self.inside, nested([self.lane], body, LANE), TILE))

    def reads_along(self, row: CutLoop) -> bool:
        """Whether the epilogue reads memory along a loop of M. Then a result must not be stored twice, since it might
        be read in between; otherwise overlapping tiles may store the same results."""
        return any(row.loop in ranges_of(n) for n in loads_in(self.p.epilogue)) or \
            any(isinstance(s, Store) and s.combine is not None for s in self.p.epilogue)


def run_time_tiles(row: CutLoop, piece: RunTimePiece, body: list[Statement]) -> list[Statement]:
    """Do the body for the tiles of a piece of a loop with a run-time bound."""
    number = counter(row.over.arg.name, piece.most)
    before = multiply(current(number), row.tile)
    body = moves.rebuild(body, {row.over: add(piece.start, current(number)), row.begin: add(piece.begin, before),
                                row.done: add(piece.done, before)})
    for store in [s for s in walk(body) if isinstance(s, Store)]:
        store.gate = both(store.gate, None)                     # always true if no earlier piece overlaps
    return body if piece.stop is index(1) else [For(number, LOOP, body, piece.stop)]
