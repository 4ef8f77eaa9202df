"""Contractions with lanes along the sum. In: a product. Out: phases, or None.

Where results are few and sums long, and both factors are contiguous along the innermost summed loop, the lanes run
along it and are folded at the end. Two forms, both of gradients of a convolution by its weight:

`dots`: every image is multiplied by many rows of M. Its right factor is the image seen through a window: packing would
write it out once for every tap.

    phase 1   copy the left factor with the right one's row pitch, zeros in between: then rows and columns are one axis
    phase 2   TASK rows of M, channels of N: a tile of rows x taps of vector sums; each step reads one vector per row
              and one per tap (the same line, shifted), and multiplies each with each; at the end the lanes are folded

Long outer sums are taken in chunks between which the vector sums stay in LOCAL memory, so that the images of a chunk
stay in a cache while the rest of the window's rows go over them.

`taps`: the weights of a depthwise convolution. The results are taps, one image to each, and all of them are summed at
once: the image and the gradient that comes back are read a single time.

    for y: for x: r = 0; for n: for i: for j: r += image[n, i + y, j + x] * g[n, i, j]; S
    ->  TASK: TILE y: TILE x: LANE l:  r = 0; for n: p = 0; for i: for j by 16: p[y, x, l] += ..; r += p;  S[fold r]

Rows outside a padded image are left out (moves/padding_bounds.py), its columns by masks, only in vectors at an edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, modulo, multiply, substitute_index
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, If, Statement, Store,
                                            counter, fold, load, local, ranges_of, register)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import flat_index, left_of, loops_around, nested, one
from glassgrad.compiler.optimize.moves.padding_bounds import Edges, Region, bounded
from glassgrad.compiler.optimize.product.recognize import Product, count, flat_tasks, footprint, innermost, stride_along
from glassgrad.compiler.optimize.product.tiling import Tiling
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


def at_most(rows: int) -> Callable[[Tiling], str | None]:
    """What refuses a tile of more rows."""
    return lambda c: f"{rows} rows at most" if c.rows > rows else None


# -- dots ------------------------------------------------------------------------------------------------------------
def dots(product: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases; refuses what is not contiguous along the sum in both factors, or is no window."""
    for p in (product, product.swapped()):
        plan = DotsPlan.of(p, target)
        if plan is not None:
            taps = count(plan.taps)
            most = max(plan.rows, min((target.vector_registers - 2) // taps, plan.m.arg.size))
            own = Tiling("dots", plan.rows, taps, plan.lanes, left="padded", right="in_place", pitch=plan.pitch)
            return replace(plan, rows=decisions.ask(own, at_most(most)).rows).phases()
    return None


@dataclass
class DotsPlan:
    """A product whose factors both lie along the sum, and the tile of rows x taps it is cut into."""
    p: Product
    along: UOp                   # the innermost summed loop: columns of the image
    down: UOp | None             # the summed loop over its rows
    pitch: int                   # of the right factor's rows
    before: list[UOp]            # the other summed loops, outermost first
    taps: list[UOp]              # loops of N in the tile
    rest: list[UOp]              # the other loops of N
    rows: int                    # of M in the tile
    lanes: int

    @staticmethod
    def of(p: Product, target: Target) -> DotsPlan | None:
        if p.left.op is not o.LOAD or p.right.op is not o.LOAD or len(p.left.src) + len(p.right.src) != 4:
            return None
        along = p.k[-1]
        left, right = p.left.src[1], p.right.src[1]
        steps = [stride_along(at, r) for at in (left, right) for r in (*p.m, *p.n, *p.k)]
        if None in steps or stride_along(left, along) != 1 or stride_along(right, along) != 1 or len(p.m) != 1:
            return None
        if p.depth < cpu.LIMITS["dots"].least_k or 2 * footprint(p.right, p.k + p.n) > count(p.k + p.n):
            return None
        down, pitch = None, along.arg.size
        if len(p.k) > 1:
            step = stride_along(right, p.k[-2])
            if step is not None and along.arg.size <= step <= 2 * along.arg.size:
                down, pitch = p.k[-2], step
        lanes = target.lanes(p.total.dtype.itemsize)
        height = down.arg.size if down is not None else 1
        vectors = -(-((height - 1) * pitch + along.arg.size) // lanes)
        if 2 * height * along.arg.size < vectors * lanes:
            return None                  # the rows are too short: most lanes would multiply zeros
        taps = innermost(p.n, 9)
        if not taps:
            return None
        most = min(cpu.SUMS, target.vector_registers - 5) // count(taps)
        m = p.m[0].arg.size
        rows = min(range(1, max(1, min(most, m)) + 1), key=lambda r: (-(-m // r) * (r + 1), -r))
        return DotsPlan(p, along, down, pitch, [r for r in p.k if r is not along and r is not down], taps,
                     [r for r in p.n if r not in taps], rows, lanes)

    def __post_init__(self) -> None:
        p = self.p
        self.m = p.m[0]
        self.panels = -(-self.m.arg.size // self.rows)
        self.panel, self.row = counter("mo", self.panels), counter("mi", self.rows)
        height = self.down.arg.size if self.down is not None else 1
        self.length = (height - 1) * self.pitch + self.along.arg.size
        self.stride = -(-self.length // self.lanes) * self.lanes         # whole vectors: a row's reads are aligned
        self.outer = [r for r in p.batch if r in ranges_of(p.left)]
        self.at_m, self.lane = add(multiply(one(self.panel), self.rows), one(self.row)), counter("l", self.lanes)
        self.wide = [r for r in (self.row, *self.taps) if r.arg.size > 1]
        self.total = register(p.total.arg, p.total.dtype, (*self.wide, self.lane))
        size = count((*self.outer, *self.before)) * self.panels * self.rows * self.stride
        self.memory = local("left", p.left.dtype, size, "shared")

    def place(self, row: UOp, at: UOp) -> UOp:
        """Where the copy of the left factor keeps position `at` of a row of M: [outer, before][row][position]."""
        out = add(multiply(flat_index((*self.outer, *self.before)), self.panels * self.rows), row)
        return add(multiply(out, self.stride), at)

    # -- phases ----------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        return [self.spread(), self.multiply()]

    def spread(self) -> list[Statement]:
        """Copy the left factor with gaps of zeros, and rows of zeros up to a whole number of tiles."""
        row, at = counter("r", self.panels * self.rows), counter("q", self.stride)
        replace = {self.m: row, self.along: at}
        inside = moves.below(row, self.m.arg.size)
        if self.down is not None:
            replace[self.down], replace[self.along] = divide(at, self.pitch), modulo(at, self.pitch)
            inside = both(inside, moves.below(replace[self.along], self.along.arg.size))
        inside = both(inside, moves.below(at, self.length))
        value = moves.edge_gate(substitute_index(self.p.left, replace, {}), inside)
        store = Store(self.memory, self.place(row, at), value)
        body: list[Statement] = moves.wide(For(at, LOOP, [store]), 1, self.lanes)
        return nested([*self.outer, *self.before, row], body, TASK)

    def multiply(self) -> list[Statement]:
        rest = [r for r in self.rest if r.arg.size > 1]
        inner_rest = rest[1:]
        if inner_rest and self.before and self.before[0].arg.size > cpu.NEAR_IMAGES:
            body = self.in_chunks(self.before[0], inner_rest)
        else:
            steps = loops_around(self.before, self.vectors())
            body = self.tiled([Assign(self.total, identity(o.ADD, self.total.dtype)), *steps])
            body = loops_around(inner_rest, [*body, *self.finish()])
        return nested([*self.p.batch, *rest[:1], self.panel], body, TASK)

    def tiled(self, body: list[Statement]) -> list[Statement]:
        return nested(self.wide, [For(self.lane, LANE, body)], TILE)

    def vectors(self) -> list[Statement]:
        """All positions of one image: whole vectors, then what is left."""
        out: list[Statement] = []
        whole, last = divmod(self.length, self.lanes)
        v = counter("v", max(whole, 1))
        if whole:
            out.append(For(v, LOOP, self.step(add(multiply(one(v), self.lanes), self.lane))))
        if last:      # the lanes past the end read nothing: zeros add nothing
            position = add(index(whole * self.lanes), self.lane)
            out += self.step(position, moves.below(position, self.length))
        return out

    def step(self, position: UOp, gate: UOp | None = None) -> list[Statement]:
        """One vector of each row times one of each tap."""
        replace = {self.along: position}
        if self.down is not None:
            replace[self.down] = index(0)
        a = load(self.memory, self.place(self.at_m, position))
        b = moves.edge_gate(substitute_index(self.p.right, replace, {}), gate)
        return [Accumulate(self.total, o.ADD, a * b)]

    def finish(self) -> list[Statement]:
        """Fold the lanes, and store the results."""
        gate = moves.below(self.at_m, self.m.arg.size)
        return nested(self.wide, self.p.stores(fold(self.total, o.ADD, (self.lane,)), {self.m: self.at_m}, gate), TILE)

    def in_chunks(self, images: UOp, inner_rest: list[UOp]) -> list[Statement]:
        """for chunks of images: for the rest of the window: sums over the chunk, added to those in LOCAL memory."""
        total, held = self.total, [*inner_rest, *self.wide]
        memory = local("sums", total.dtype, count(held) * self.lanes)
        spot = add(multiply(flat_index(held), self.lanes), self.lane)
        n = images.arg.size
        chunk, image = counter("ic", -(-n // cpu.NEAR_IMAGES)), counter(images.arg.name, cpu.NEAR_IMAGES)
        steps = moves.rebuild(loops_around(self.before[1:], self.vectors()),
                              {images: add(multiply(chunk, cpu.NEAR_IMAGES), image)})
        begin = self.tiled([Store(memory, spot, const(0, total.dtype))])
        middle = self.tiled([Assign(total, identity(o.ADD, total.dtype)),
                             For(image, LOOP, steps, left_of(n, cpu.NEAR_IMAGES, chunk)),
                             Store(memory, spot, total, o.ADD)])
        end = [*self.tiled([Assign(total, load(memory, spot))]), *self.finish()]
        return [*loops_around(inner_rest, begin), For(chunk, LOOP, loops_around(inner_rest, middle)),
                *loops_around(inner_rest, end)]


# -- taps ------------------------------------------------------------------------------------------------------------
def taps(p: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phase; refuses what does not lie along the innermost sum in both factors."""
    if p.stops or any(f.op is not o.LOAD or f.dtype is not p.total.dtype for f in (p.left, p.right)):
        return None
    edges = Edges.of_factor(p.left, p.m, p.k)
    steps = [stride_along(f.src[1], r) for f in (p.left, p.right) for r in (*p.m, *p.k)]
    along = [stride_along(f.src[1], p.k[-1]) for f in (p.left, p.right)]
    lanes, limits = target.lanes(p.total.dtype.itemsize), cpu.LIMITS["taps"]
    if edges is None or None in steps or along != [1, 1] or len(p.right.src) == 3 or len(p.k) < 2:
        return None
    if p.depth < limits.least_k or p.work < limits.least_work or 2 * p.k[-1].arg.size < lanes or \
            count(p.batch) < cpu.LEAST_OUTER:
        return None
    inside = innermost(p.m, min(cpu.MOST_TAPS, (target.vector_registers - 4) // 2))
    if not inside:
        return None
    decisions.ask(Tiling("taps", 1, count(inside), lanes, left="in_place", right="in_place"), lambda c: None)
    return [TapsPlan(p, edges, inside, lanes).phase()]


@dataclass
class TapsPlan:
    """A window whose results are taps, and those of them that are summed at once."""
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
        by_row = rows.arg.size * vectors > cpu.LIMITS["taps"].long_k
        body = self.loop(rows, None, by_row)
        if not by_row:
            body = self.joined(body)
        for k in reversed(around):
            body = [s for low, high, part in self.regions(k) for s in bounded(k, low, high, self.wanted(part, body))]
        tile = self.tiled([Assign(self.total, zero), *body], [*self.inside, self.lane])
        ends = moves.rebuild(p.epilogue, {p.total: fold(self.total, o.ADD, (self.lane,))})
        body = [*tile, *self.tiled(ends, self.inside)]
        body = loops_around([m for m in p.m if m not in self.inside], body)
        return flat_tasks(p.batch, body, p.work, cpu.LIMITS["taps"])

    def joined(self, body: list[Statement]) -> list[Statement]:
        """Sums of their own, added to the total."""
        return [Assign(self.part, identity(o.ADD, self.part.dtype)), *body, Accumulate(self.total, o.ADD, self.part)]

    def loop(self, rows: UOp, wanted: UOp | None, by_row: bool) -> list[Statement]:
        """The rows, each as vectors; those that not all taps want are told apart."""
        out: list[Statement] = []
        for low, high, part in self.regions(rows):
            row = self.wanted(both(wanted, part), self.vectors())
            out += bounded(rows, low, high, self.joined(row) if by_row else row)
        return out

    def regions(self, k: UOp) -> list[Region]:
        """A loop of K as regions, for the taps that use them."""
        m = self.edges.bound.get(k)
        if m is None or m not in self.inside:
            return self.edges.regions(k, index(0) if m is None else m)
        runs = [run for piece in self.edges.pieces(k, m.arg.size) for run in piece.runs]
        return self.edges.regions(k, index(0), one(m), tuple(runs))

    def wanted(self, condition: UOp | None, body: list[Statement]) -> list[Statement]:
        return body if condition is None else [If(condition, body)]

    def vectors(self) -> list[Statement]:
        """A row: vectors at an edge of the image or of the row one by one, those between them in a loop."""
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
                steps = self.step(add(start, multiply(one(v), self.lanes)))
                out += [For(v, LOOP, steps)] if len(whole) > 1 else steps
        return out

    def unmasked(self, number: int) -> bool:
        """Whether no tap of this vector lies outside the image."""
        places = (number * self.lanes, (number + 1) * self.lanes - 1)
        return all(h.m_step * m + h.k_step * at < h.limit for h in self.edges.halves if h.k is self.along
                   for m in ((0, h.m.arg.size - 1) if h.m is not None else (0,)) for at in places)

    def step(self, start: UOp) -> list[Statement]:
        """One vector of the gradient times one for each tap."""
        p = self.p
        at = add(start, self.lane)
        inside = moves.below(at, self.along.arg.size)
        mask = inside
        for h in self.edges.halves:
            if h.k is self.along:
                mask = both(mask, h.holds(at))
        (memory, place, *_), (other, there) = p.left.src, p.right.src
        product = load(memory, place, mask) * load(other, there, inside)
        return moves.rebuild([Accumulate(self.part, o.ADD, product)], {self.along: at})

    def tiled(self, body: list[Statement], ranges: list[UOp]) -> list[Statement]:
        for r in reversed(ranges):
            body = [For(r, LANE if r is self.lane else TILE, body)] if r.arg.size > 1 else moves.rebuild(
                body, {r: index(0)})
        return body
