"""Tile windows with one row of weights. In: a product without loops of N. Out: one phase, or None.

In a depthwise convolution, a blur, or the gradient of a first layer by its only channel, every element of the image is
multiplied by few weights, so there are no channels for the lanes (conv_tile.py), and packing does not pay. Lanes run
along the image, and registers share the image's rows: a vector that is loaded once is a tap for several rows of the
result.

    for i: for j: r = 0; for c: for taps y: for taps x: r += image[c, i + y, j + x] * w[c, y, x]; S
    ->  TASK: for i by 4: for j by 32:  TILE i in 4: TILE 2: LANE j in 16:  r = 0
              for c: every tap x: every tap y: r[i, j] += image[c, i + y, j + x] * w[c, y, x]        S[r]

Taps are unrolled, so the load of row i + y is shared by all (i, y) with the same sum. Rows outside a padded image are
skipped (moves/padding_bounds.py); columns are masked.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, identity, ops as o
from glassgrad.compiler.graph.index_algebra import add, both, index, less, multiply, operation
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, If, Statement, counter, current,
                                            load, loops_around, nested, register_over)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.moves.padding_bounds import Edges, Piece, Run, in_interval, read_in_place
from glassgrad.compiler.optimize.product.recognize import Product, count, stride_along
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


def depthwise_tiles(p: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phase; refuses (None) products that are not windows over rows that are contiguous along the lanes."""
    plan = WindowPlan.of(p, target)
    if plan is None:
        return None
    chosen = decisions.ask(plan.own(), plan.refuses)
    return [plan.phase(chosen.rows, chosen.vectors)]


@dataclass
class WindowPlan:
    """A window, and the register tiles of rows x vectors possible for it."""
    p: Product                   # the product; its left factor is the image
    edges: Edges
    down: UOp                    # the loop over rows of the result,
    along: UOp                   # and over the elements of a row
    taps: UOp                    # the loop of K that goes down the image
    across: list[UOp]            # the loops of K that go along its rows
    outer: list[UOp]             # the loops around the window
    sums: list[UOp]              # the other loops of K, outermost first
    lanes: int
    registers: int

    @staticmethod
    def of(p: Product, target: Target) -> WindowPlan | None:
        found = read_in_place(p.left, p.total.dtype, p.m, p.k)
        if found is None or p.stops.keys() - {*p.batch} or len(p.m) < 2 or \
                p.right.op is not o.LOAD or p.right.dtype is not p.total.dtype or len(p.right.src) == 3:
            return None
        (edges, steps), (down, along) = found, p.m[-2:]
        step = steps[down]
        if steps[along] != 1 or stride_along(p.store.index, along) != 1 or step < 1:
            return None
        taps = sorted([k for k in p.k if steps[k] and steps[k] % step == 0 and edges.bound.get(k, down) is down
                       and abs(steps[k]) < step * down.arg.size], key=lambda k: abs(steps[k]))[:1]
        across = [k for k in p.k if 0 < abs(steps[k]) < step]
        outer = [*p.batch, *p.m[:-2]]
        if not taps or p.work < cpu.LIMITS["window"].least_work or count(outer) < cpu.LEAST_OUTER:
            return None
        if any(k not in (*taps, *across) for k in edges.bound):
            return None
        lanes = target.lanes(p.total.dtype.itemsize)
        sums = [k for k in p.k if k is not taps[0] and k not in across]
        plan = WindowPlan(p, edges, down, along, taps[0], across, outer, sums, lanes, target.vector_registers)
        return plan if plan.rows_for(plan.most_vectors()) else None

    def most_vectors(self) -> int:
        return min(2, -(-self.along.arg.size // self.lanes))

    def rows_for(self, vectors: int) -> int:
        """The number of rows with the fewest loads, whose sums, elements and weights fit the registers; 0: none."""
        taps, size = self.taps.arg.size, self.down.arg.size
        fits = [r for r in range(1, min(size, self.registers) + 1) if self.written(r, vectors) <= cpu.MOST_UNROLLED
                and (2 * r + taps - 1) * vectors + taps + 1 <= self.registers]
        return min(fits, key=lambda r: (-(-size // r) * (r * taps + r + taps - 1), -r), default=0)

    def written(self, rows: int, vectors: int) -> int:
        """The number of unrolled multiply-adds for tiles of this size."""
        return len(self.pieces(rows)) * rows * vectors * self.taps.arg.size * count(self.across)

    def own(self) -> Tiling:
        vectors = self.most_vectors()
        return Tiling("window", self.rows_for(vectors), vectors, self.lanes, left="in_place", right="in_place")

    def refuses(self, c: Tiling) -> str | None:
        """Why the window cannot be tiled like this; None if it can."""
        if c.rows > self.down.arg.size or c.vectors > -(-self.along.arg.size // self.lanes):
            return "the tile is larger than the image"
        if c.rows * c.vectors >= self.registers:
            return f"the tile takes {c.rows * c.vectors} of {self.registers} registers"
        return "too much would be written out" if self.written(c.rows, c.vectors) > 2 * cpu.MOST_UNROLLED else None

    def pieces(self, rows: int) -> list[Piece]:
        """The tiles of rows, grouped if they have the same code."""
        if self.taps in self.edges.bound:
            return self.edges.pieces(self.taps, rows)
        size = self.down.arg.size
        whole = (Run(0, self.taps.arg.size, 0, rows),)
        return [Piece(0, -(-size // rows), whole)]

    # -- the loops -----------------------------------------------------------------------------------------------
    def phase(self, rows: int, vectors: int) -> list[Statement]:
        p = self.p
        self.row, self.over, self.lane = counter("ri", rows), counter("vi", vectors), counter("l", self.lanes)
        columns = counter("vo", -(-self.along.arg.size // (vectors * self.lanes)))
        self.column = add(multiply(current(columns), vectors * self.lanes), add(
            multiply(current(self.over), self.lanes), self.lane))
        self.total = register_over(p.total.arg, p.total.dtype, (self.row, self.over, self.lane))
        body: list[Statement] = []
        for piece in self.pieces(rows):
            number = counter("ro", piece.count)
            first = multiply(add(index(piece.start), current(number)), rows)
            ragged = (piece.start + piece.count) * rows > self.down.arg.size
            begin = operation(o.MIN, first, index(self.down.arg.size - rows)) if ragged else first
            fresh = less(first, add(add(begin, current(self.row)), index(1))) if ragged else None
            tile = self.tile(begin, fresh, piece.runs)
            body += [For(number, LOOP, tile)] if piece.count > 1 else tile
        body = [For(columns, LOOP, body)] if columns.arg.size > 1 else body
        return moves.loops_as_tasks(self.outer, body, cpu.LIMITS["window"].tasks(self.p.work), {**self.p.stops})

    def tile(self, begin: UOp, fresh: UOp | None, runs: tuple[Run, ...]) -> list[Statement]:
        """One tile of the result, from row `begin` on; rows that the previous tile has stored are not stored again."""
        p = self.p
        place = {self.down: add(begin, current(self.row)), self.along: self.column}
        inside = below(self.column, self.along.arg.size)
        body = [*self.summed(self.taps_of(place, inside, runs)), *p.stores(self.total, place, both(fresh, inside))]
        return nested([self.row, self.over], nested([self.lane], body, LANE), TILE)

    def taps_of(self, place: dict[UOp, UOp], inside: UOp | None, runs: tuple[Run, ...]) -> list[Statement]:
        """Every tap, unrolled: taps along rows outside, so that taps down the image share their loads."""
        p = self.p
        mask = inside
        for half in self.edges.conditions:
            if half.k is not self.taps:
                mask = both(mask, half.holds(half.k))
        memory, at, *_ = p.left.src
        image = load(memory, at, mask)
        body: list[Statement] = []
        for run in runs:
            wanted = in_interval(index(run.first), current(self.row), index(run.last))
            for tap in range(run.low, run.high):
                step: Statement = Accumulate(self.total, o.ADD, image * p.right)
                step = If(wanted, [step]) if wanted is not None else step
                body += moves.rebuild([step], {self.taps: index(tap)})
        for k in reversed(self.across):
            body = [s for at in range(k.arg.size) for s in moves.rebuild(body, {k: index(at)})]
        return moves.rebuild(body, place)

    def summed(self, taps: list[Statement]) -> list[Statement]:
        """The sum of all products; a long one is a sum of sums."""
        depth, limits = self.p.depth, cpu.LIMITS["window"]
        body = [Assign(self.total, identity(o.ADD, self.total.dtype)), *loops_around(self.sums, taps)]
        together = limits.k_block * count(self.sums) // depth               # iterations of the loops around the taps
        return body if depth <= limits.long_k else sum_moves.chunks(body, max(1, together))
