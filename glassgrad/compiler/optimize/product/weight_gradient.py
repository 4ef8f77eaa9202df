"""Sums over positions whose results are taps, one image to each. In: a recognised product. Out: one phase, or None.

The gradient of a depthwise convolution by its weights has few results, and each is a sum over all positions of one
channel. Both factors lie along the summed rows, so the lanes go along them, and all taps are summed at once: the image
and what comes back are read a single time.

    for y: for x: r = 0; for n: for i: for j: r += image[n, i + y, j + x] * g[n, i, j]; S
    ->  TASK: TILE y: TILE x: LANE l:  r = 0; for n: p = 0; for i: for j by 16: p[y, x, l] += ..; r += p;  S[fold r]

Rows outside a padded image are left out (padding.py), its columns by masks, in the vectors that meet an edge alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, index, less, multiply
from glassgrad.compiler.graph.uop import UOp, identity
from glassgrad.compiler.lower.loops import (
    LANE,
    LOOP,
    TILE,
    Accumulate,
    Assign,
    For,
    If,
    Statement,
    counter,
    fold,
    load,
    register,
)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, settled
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.padding_bounds import Edges, between, bounded
from glassgrad.compiler.optimize.product.contraction_axes import FlatAxis, one, stride_along
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.targets.target import Target

LEAST_K = 256               # products per result that repay the fold
LEAST_WORK = 64 * 1024      # multiply-adds below which plain loops do as well
LEAST_OUTER = 8             # channels to share out; fewer are left to recipes that share out the sum
GRAIN = 64 * 1024           # multiply-adds worth a task
MOST_TASKS = 64
MOST_TAPS = 10              # summed at once: each takes two registers
LONG_SUM = 1024             # products that one lane adds up before they join the rest


@dataclass(frozen=True)
class Taps(Choice):
    """How many taps are summed at once, in vectors along the rows."""
    count: int = settled()
    lanes: int = settled()


def taps(p: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phase; refuses what does not lie along the innermost sum in both factors."""
    if p.stops or any(f.op is not o.LOAD or f.dtype is not p.total.dtype for f in (p.left, p.right)):
        return None
    edges = Edges.of(p.left.src[2], p.m, p.k) if len(p.left.src) == 3 else Edges([])
    steps = [stride_along(f.src[1], r) for f in (p.left, p.right) for r in (*p.m, *p.k)]
    along = [stride_along(f.src[1], p.k[-1]) for f in (p.left, p.right)]
    lanes, depth = target.lanes(p.total.dtype.itemsize), math.prod(r.arg.size for r in p.k)
    outer, count = math.prod(r.arg.size for r in p.batch), math.prod(r.arg.size for r in p.m)
    if edges is None or None in steps or along != [1, 1] or len(p.right.src) == 3 or len(p.k) < 2:
        return None
    if depth < LEAST_K or depth * count * outer < LEAST_WORK or outer < LEAST_OUTER or 2 * p.k[-1].arg.size < lanes:
        return None
    inside: list[UOp] = []
    for r in reversed(p.m):
        if math.prod(m.arg.size for m in inside) * r.arg.size > min(MOST_TAPS, (target.vector_registers - 4) // 2):
            break
        inside.insert(0, r)
    if not inside:
        return None
    decisions.ask(Taps(math.prod(r.arg.size for r in inside), lanes), lambda c: None)
    return [_Plan(p, edges, inside, lanes).phase()]


@dataclass
class _Plan:
    p: Product                   # its left factor is the image, whose loops of M are taps
    edges: Edges
    inside: list[UOp]            # taps that are summed at once
    lanes: int

    def __post_init__(self) -> None:
        self.along = self.p.k[-1]
        self.lane = counter("l", self.lanes)
        wide = [*[r for r in self.inside if r.arg.size > 1], self.lane]
        self.total = register(self.p.total.arg, self.p.total.dtype, wide)
        self.part = register(self.p.total.arg + "p", self.p.total.dtype, wide)

    def phase(self) -> list[Statement]:
        p = self.p
        zero = identity(o.ADD, self.total.dtype)
        *around, rows = p.k[:-1]
        vectors = -(-self.along.arg.size // self.lanes)
        by_row = rows.arg.size * vectors > LONG_SUM
        body = self.loop(rows, None, by_row)
        if not by_row:
            body = self.joined(body)
        for k in reversed(around):
            body = [s for low, high, part in self.regions(k) for s in bounded(k, low, high, self.wanted(part, body))]
        tile = self.tiled([Assign(self.total, zero), *body], [*self.inside, self.lane])
        ends = moves.rebuild(p.epilogue, {p.total: fold(self.total, o.ADD, (self.lane,))})
        body = [*tile, *self.tiled(ends, self.inside)]
        for r in reversed([m for m in p.m if m not in self.inside]):
            body = [For(r, LOOP, body)]
        count = math.prod(r.arg.size for r in p.batch)
        work = count * math.prod(r.arg.size for r in (*p.m, *p.k))
        flat = counter("b", count)
        body = moves.rebuild(body, FlatAxis(p.batch, count).apart(flat))
        return [moves.tasks(For(flat, LOOP, body), max(1, min(MOST_TASKS, work // GRAIN)))]

    def joined(self, body: list[Statement]) -> list[Statement]:
        """Sums of their own, that join the total."""
        return [Assign(self.part, identity(o.ADD, self.part.dtype)), *body, Accumulate(self.total, o.ADD, self.part)]

    def loop(self, rows: UOp, wanted: UOp | None, by_row: bool) -> list[Statement]:
        """The rows, each as vectors; those that not all taps want are told apart."""
        out: list[Statement] = []
        for low, high, part in self.regions(rows):
            row = self.wanted(both(wanted, part), self.vectors())
            out += bounded(rows, low, high, self.joined(row) if by_row else row)
        return out

    def regions(self, k: UOp) -> list[tuple[UOp, UOp, UOp | None]]:
        """A loop of K as pieces (begin, end, which of the taps want it; None: all)."""
        if k not in self.edges.bound:
            return [(index(0), index(k.arg.size), None)]
        m = self.edges.bound[k]
        if m not in self.inside or m is None:
            return [(*self.edges.interval(k, index(0) if m is None else m), None)]
        return [(index(run.low), index(run.high), between(index(run.first), one(m), index(run.last)))
                for piece in self.edges.pieces(k, m.arg.size) for run in piece.runs]

    def wanted(self, condition: UOp | None, body: list[Statement]) -> list[Statement]:
        return body if condition is None else [If(condition, body)]

    def vectors(self) -> list[Statement]:
        """A row: vectors that meet an edge of the image or of the row one by one, those between them in a loop."""
        size = self.along.arg.size
        count = -(-size // self.lanes)
        whole = [number for number in range(count) if (number + 1) * self.lanes <= size and self.unmasked(number)]
        out: list[Statement] = []
        for number in range(count):
            if number not in whole:
                out += self.step(multiply(index(number), self.lanes))
            elif number == whole[0]:
                v = counter("v", len(whole))
                start = index(number * self.lanes)
                steps = self.step(add(start, multiply(one(v), self.lanes)))
                out += [For(v, LOOP, steps)] if len(whole) > 1 else steps
        return out

    def unmasked(self, number: int) -> bool:
        """Whether no tap of this vector lies outside the image."""
        places = (number * self.lanes, (number + 1) * self.lanes - 1)
        return all(h.m_step * m + h.k_step * at < h.limit for h in self.edges.halves if h.k is self.along
                   for m in ((0, h.m.arg.size - 1) if h.m is not None else (0,)) for at in places)

    def step(self, start: UOp) -> list[Statement]:
        """One vector of what comes back times one for each tap."""
        p = self.p
        at = add(start, self.lane)
        inside = moves.below(at, self.along.arg.size)
        mask = inside
        for h in self.edges.halves:
            if h.k is self.along:
                tap = index(0) if h.m is None else multiply(h.m, h.m_step)
                mask = both(mask, less(add(tap, multiply(at, h.k_step)), index(h.limit)))
        (memory, place, *_), (other, there) = p.left.src, p.right.src
        product = load(memory, place, mask) * load(other, there, inside)
        return moves.rebuild([Accumulate(self.part, o.ADD, product)], {self.along: at})

    def tiled(self, body: list[Statement], ranges: list[UOp]) -> list[Statement]:
        for r in reversed(ranges):
            body = [For(r, LANE if r is self.lane else TILE, body)] if r.arg.size > 1 else moves.rebuild(
                body, {r: index(0)})
        return body
