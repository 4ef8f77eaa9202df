"""Tile contractions with lanes along the sum. In: a product. Out: phases, or None.

If results are few, sums are long, and both factors are contiguous along the innermost summed loop, the lanes run along
it and are folded at the end: gradients of a convolution by its weight, if it is depthwise or has few channels. The
results are taps, and those of one image are summed together, so that the image and the incoming gradient are read once
for each pair of channels.

    for y: for x: r = 0; for n: for i: for j: r += image[n, i + y, j + x] * g[n, i, j]; S
    ->  TASK: TILE y: TILE x: LANE l:  r = 0; for n: p = 0; for i: for j by 16: p[y, x, l] += ..; r += p;  S[fold r]

Rows outside a padded image are skipped (moves/padding_bounds.py); columns are masked, only in vectors at an edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgrad.compiler.graph import UOp, identity, ops as o
from glassgrad.compiler.graph.index_algebra import add, both, index, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, If, Statement, counter, current,
                                            fold, in_loops, load, register_over)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.moves.padding_bounds import Edges, Region, loop_between, read_in_place
from glassgrad.compiler.optimize.product.recognize import Product, count, footprint, innermost
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


def dot_tiles(p: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phase; refuses (None) what `TapsPlan.of` refuses, or `TapsPlan.of_channels` for a product with loops of N."""
    plan = TapsPlan.of_channels(p, target) if p.n else TapsPlan.of(p, target)
    if plan is None:
        return None
    decisions.ask(Tiling("taps", 1, count(plan.inside), plan.lanes, left="in_place", right="in_place"), lambda c: None)
    return [plan.phase()]


def few_at_once(p: Product, target: Target) -> Product:
    """Remove the loops of N from a product: as many iterations of the last one as registers allow become further taps,
    all others become tasks."""
    most, last = most_taps(target), p.n[-1]
    inside = innermost(p.m, most)
    rows = next(r for r in range(most // count(inside), 0, -1) if last.arg.size % r == 0)
    outer, row = counter(last.arg.name + "o", last.arg.size // rows), counter(last.arg.name, rows)
    place = {last: add(multiply(current(outer), rows), current(row))}
    return replace(p, right=substitute_index(p.right, place, {}), epilogue=moves.rebuild(p.epilogue, place), n=[],
                   m=[*[r for r in p.m if r not in inside], row, *inside], batch=[*p.batch, *p.n[:-1], outer])


def most_taps(target: Target) -> int:
    """How many sums fit the registers; each takes two."""
    return (target.vector_registers - 4) // 2


@dataclass
class TapsPlan:
    """A window whose results are taps, and the taps that are summed together."""
    p: Product                   # the product; its left factor is the image, whose loops of M are taps
    edges: Edges
    inside: list[UOp]            # taps that are summed together
    lanes: int

    @staticmethod
    def of(p: Product, target: Target) -> TapsPlan | None:
        """The plan; None if a factor is not contiguous along the innermost summed loop."""
        left, right = (read_in_place(f, p.total.dtype, p.m, p.k) for f in (p.left, p.right))
        if left is None or right is None or len(p.right.src) == 3 or len(p.k) < 2:
            return None
        (edges, steps), (_, others) = left, right
        lanes, limits = target.lanes(p.total.dtype.itemsize), cpu.LIMITS["taps"]
        if steps[p.k[-1]] != 1 or others[p.k[-1]] != 1 or p.stops.keys() - ({*p.batch, *p.k[:-2]} - edges.bound.keys()):
            return None
        inside = innermost(p.m, most_taps(target))
        if p.depth < limits.least_k or p.work < limits.least_work or 2 * p.k[-1].arg.size < lanes or not inside or \
                count((*p.batch, *p.m)) < cpu.LEAST_OUTER * count(inside):
            return None
        return TapsPlan(p, edges, inside, lanes)

    @staticmethod
    def of_channels(product: Product, target: Target) -> TapsPlan | None:
        """The plan for every channel of an image and a few of a gradient. None for products that are not windows, and
        for windows with sums along the taps: there the line is longer, and its elements are the results."""
        for p in (product, product.swapped()):
            if p.left.op is o.LOAD and 2 * footprint(p.left, p.m + p.k) <= count(p.m + p.k) and \
                    p.m[-1].arg.size <= p.k[-1].arg.size:
                plan = TapsPlan.of(few_at_once(p, target), target)
                if plan is not None:
                    return plan
        return None

    def __post_init__(self) -> None:
        self.along = self.p.k[-1]
        self.lane = counter("l", self.lanes)
        name, dtype, wide = self.p.total.arg, self.p.total.dtype, [*self.inside, self.lane]
        self.total, self.part = register_over(name, dtype, wide), register_over(name + "p", dtype, wide)

    def phase(self) -> list[Statement]:
        p = self.p
        zero = identity(o.ADD, self.total.dtype)
        *around, rows = p.k[:-1]
        vectors = -(-self.along.arg.size // self.lanes)
        by_row = rows.arg.size * vectors > cpu.LIMITS["taps"].long_k
        body = self.loop(rows, None, by_row)
        if not by_row:
            body = self.joined(body)
        for k in reversed(around):
            body = [For(k, LOOP, body, p.stops[k])] if k in p.stops else [
                s for low, high, part in self.regions(k) for s in loop_between(k, low, high, self.wanted(part, body))]
        tile = self.tiled([Assign(self.total, zero), *body], [*self.inside, self.lane])
        ends = moves.rebuild(p.epilogue, {p.total: fold(self.total, o.ADD, (self.lane,))})
        outer = [*p.batch, *[m for m in p.m if m not in self.inside]]
        return moves.loops_as_tasks(outer, [*tile, *self.tiled(ends, self.inside)], cpu.LIMITS["taps"].tasks(p.work),
                                    {**p.stops})

    def joined(self, body: list[Statement]) -> list[Statement]:
        """Accumulate the body into separate partial sums, which are then added to the total."""
        return [Assign(self.part, identity(o.ADD, self.part.dtype)), *body, Accumulate(self.total, o.ADD, self.part)]

    def loop(self, rows: UOp, wanted: UOp | None, by_row: bool) -> list[Statement]:
        """The loop over rows, each as vectors; rows that only some taps use are separate loops."""
        out: list[Statement] = []
        for low, high, part in self.regions(rows):
            row = self.wanted(both(wanted, part), self.vectors())
            out += loop_between(rows, low, high, self.joined(row) if by_row else row)
        return out

    def regions(self, k: UOp) -> list[Region]:
        """Split a loop of K into regions, by the taps that use them."""
        m = self.edges.bound.get(k)
        if m is None or m not in self.inside:
            return self.edges.regions(k, index(0) if m is None else m)
        runs = [run for piece in self.edges.pieces(k, m.arg.size) for run in piece.runs]
        return self.edges.regions(k, index(0), current(m), tuple(runs))

    def wanted(self, condition: UOp | None, body: list[Statement]) -> list[Statement]:
        return body if condition is None else [If(condition, body)]

    def vectors(self) -> list[Statement]:
        """One row: vectors at an edge of the image or of the row are unrolled, those between them are a loop."""
        size = self.along.arg.size
        vectors = -(-size // self.lanes)
        whole = [number for number in range(vectors) if (number + 1) * self.lanes <= size and self.unmasked(number)]
        out: list[Statement] = []
        for number in range(vectors):
            if number not in whole:
                out += self.step(multiply(index(number), self.lanes))
            elif number == whole[0]:
                v = counter("v", len(whole))
                start = index(number * self.lanes)
                steps = self.step(add(start, multiply(current(v), self.lanes)))
                out += [For(v, LOOP, steps)] if len(whole) > 1 else steps
        return out

    def unmasked(self, number: int) -> bool:
        """Whether no tap of this vector lies outside the image."""
        places = (number * self.lanes, (number + 1) * self.lanes - 1)
        return all(h.m_step * m + h.k_step * at < h.limit.arg for h in self.edges.conditions if h.k is self.along
                   for m in ((0, h.m.arg.size - 1) if h.m is not None else (0,)) for at in places)

    def step(self, start: UOp) -> list[Statement]:
        """One vector of the gradient times one vector for each tap."""
        p = self.p
        at = add(start, self.lane)
        inside = below(at, self.along.arg.size)
        mask = inside
        for h in self.edges.conditions:
            if h.k is self.along:
                mask = both(mask, h.holds(at))
        (memory, place, *_), (other, there) = p.left.src, p.right.src
        product = load(memory, place, mask) * load(other, there, inside)
        return moves.rebuild([Accumulate(self.part, o.ADD, product)], {self.along: at})

    def tiled(self, body: list[Statement], ranges: list[UOp]) -> list[Statement]:
        return in_loops([For(r, LANE if r is self.lane else TILE, []) for r in ranges], body)
