"""Sums of products along memory: lanes on the summed axis. In: a recognised product. Out: phases, or None.

The gradient of a convolution by its weight sums over the whole image, and its right factor is the image seen through a
window: packing would write it out once for every tap. But both factors lie along the summed axis in memory, so

    phase 1   copy the left factor with the right one's row pitch, zeros in between: then rows and columns are one axis
    phase 2   TASK rows of M, channels of N: a tile of rows x taps of vector sums; each step reads one vector per row
              and one per tap (the same line, shifted), and multiplies each with each; at the end the lanes are folded

Long outer sums are taken in chunks between which the vector sums rest in LOCAL memory, so that the images of a chunk
stay in cache while the rest of the window's rows go over them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, modulo, multiply, substitute_index
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower.loops import (
    LANE,
    LOOP,
    TASK,
    TILE,
    Accumulate,
    Assign,
    For,
    Statement,
    Store,
    counter,
    fold,
    load,
    local,
    ranges_of,
    register,
)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, settled
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.contraction_axes import footprint, one, stride_along
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.targets.target import Target

LEAST_K = 512            # products per result that repay the fold
SUMS = 24                # vector sums in registers at most
NEAR = 4                 # outer steps (images) whose data stays in cache while the window's rows go over it


@dataclass(frozen=True)
class Dots(Choice):
    """A tile of rows x taps vector sums."""
    rows: int
    taps: int = settled()
    lanes: int = settled()
    pitch: int = settled()


def dots(product: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases; refuses what does not lie along memory in both factors, or is no window."""
    for p in (product, product.swapped()):
        plan = _Plan.of(p, target)
        if plan is not None:
            return replace(plan, rows=_rows(plan, target.vector_registers, decisions)).phases()
    return None


def _rows(plan: _Plan, registers: int, decisions: Decisions) -> int:
    taps = math.prod(t.arg.size for t in plan.taps)
    most = max(plan.rows, min((registers - 2) // taps, plan.m.arg.size))
    return decisions.ask(Dots(plan.rows, taps, plan.lanes, plan.pitch),
                         lambda c: f"{most} rows at most" if c.rows > most else None).rows


@dataclass
class _Plan:
    p: Product
    along: UOp                   # the innermost summed loop: columns of the image
    down: UOp | None             # the summed loop that walks its rows
    pitch: int                   # of the right factor's rows
    before: list[UOp]            # the other summed loops, outermost first
    taps: list[UOp]              # loops of N in the tile
    rest: list[UOp]              # the other loops of N
    rows: int                    # of M in the tile
    lanes: int

    @staticmethod
    def of(p: Product, target: Target) -> _Plan | None:
        if p.left.op is not o.LOAD or p.right.op is not o.LOAD or len(p.left.src) + len(p.right.src) != 4:
            return None
        along = p.k[-1]
        left, right = p.left.src[1], p.right.src[1]
        steps = [stride_along(at, r) for at in (left, right) for r in (*p.m, *p.n, *p.k)]
        if None in steps or stride_along(left, along) != 1 or stride_along(right, along) != 1 or len(p.m) != 1:
            return None
        if math.prod(r.arg.size for r in p.k) < LEAST_K or 2 * footprint(p.right, p.k + p.n) > math.prod(
                r.arg.size for r in p.k + p.n):
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
        taps: list[UOp] = []
        for r in reversed(p.n):
            if math.prod(t.arg.size for t in taps) * r.arg.size > 9:
                break
            taps.insert(0, r)
        if not taps:
            return None
        room = min(SUMS, target.vector_registers - 5) // math.prod(t.arg.size for t in taps)
        m = p.m[0].arg.size
        rows = min(range(1, max(1, min(room, m)) + 1), key=lambda r: (-(-m // r) * (r + 1), -r))
        return _Plan(p, along, down, pitch, [r for r in p.k if r is not along and r is not down], taps,
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
        sizes = [r.arg.size for r in (*self.outer, *self.before)]
        self.memory = local("left", p.left.dtype, math.prod(sizes) * self.panels * self.rows * self.stride, "shared")

    def place(self, row: UOp, at: UOp) -> UOp:
        """Where the copy of the left factor keeps position `at` of a row of M: [outer, before][row][position]."""
        out = index(0)
        for r in (*self.outer, *self.before):
            out = add(multiply(out, r.arg.size), r)
        out = add(multiply(out, self.panels * self.rows), row)
        return add(multiply(out, self.stride), at)

    # -- phases ----------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        return [self.spread(), self.multiply()]

    def spread(self) -> list[Statement]:
        """The left factor with gaps of zeros, and rows of zeros up to an integer of tiles."""
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
        for r in reversed([*self.outer, *self.before, row]):
            body = [For(r, TASK, body)] if r.arg.size > 1 else moves.rebuild(body, {r: index(0)})
        return body

    def multiply(self) -> list[Statement]:
        p = self.p
        taps = [t for t in self.taps if t.arg.size > 1]
        at_m = add(multiply(one(self.panel), self.rows), one(self.row))
        wide = [r for r in (self.row, *taps) if r.arg.size > 1]
        lane = counter("l", self.lanes)
        total = register(p.total.arg, p.total.dtype, (*wide, lane))

        def vectors() -> list[Statement]:
            """All positions of one image row pair: whole vectors, then what is left."""
            out: list[Statement] = []
            whole, last = divmod(self.length, self.lanes)
            v, tail = counter("v", max(whole, 1)), counter("l", max(last, 1))
            if whole:
                out.append(For(v, LOOP, self.step(add(multiply(one(v), self.lanes), lane), at_m, total)))
            if last:
                # the lanes past the end read nothing: zeros add nothing
                position = add(index(whole * self.lanes), lane)
                gate = moves.below(position, self.length)
                out += self.step(position, at_m, total, gate)
            del tail
            return out

        def tiled(body: list[Statement]) -> list[Statement]:
            body = [For(lane, LANE, body)]
            for r in reversed(wide):
                body = [For(r, TILE, body)]
            return body

        rest = [r for r in self.rest if r.arg.size > 1]
        inner_rest, outer_rest = rest[1:], rest[:1]
        gate = moves.below(at_m, self.m.arg.size)
        sums = [self.before[0]] if self.before else []
        if inner_rest and sums and sums[0].arg.size > NEAR:
            body = self.in_chunks(sums[0], inner_rest, total, vectors, tiled, wide, lane, at_m, gate)
        else:
            body = vectors()
            for r in reversed(self.before):
                body = [For(r, LOOP, body)]
            body = tiled([Assign(total, identity(o.ADD, total.dtype)), *body])
            body += self.finish(total, lane, wide, at_m, gate)
            for r in reversed(inner_rest):
                body = [For(r, LOOP, body)]
        for r in reversed([*p.batch, *outer_rest, self.panel]):
            body = [For(r, TASK, body)] if r.arg.size > 1 else body
        return body

    def step(self, position: UOp, at_m: UOp, total: UOp, gate: UOp | None = None) -> list[Statement]:
        """One vector of each row times one of each tap."""
        replace = {self.along: position}
        if self.down is not None:
            replace[self.down] = index(0)
        a = load(self.memory, self.place(at_m, position))
        b = moves.edge_gate(substitute_index(self.p.right, replace, {}), gate)
        return [Accumulate(total, o.ADD, a * b)]

    def finish(self, total: UOp, lane: UOp, wide: list[UOp], at_m: UOp, gate: UOp | None) -> list[Statement]:
        """Fold the lanes, and what is stored of the results."""
        body: list[Statement] = []
        for s in moves.rebuild(self.p.epilogue, {self.p.total: fold(total, o.ADD, (lane,)), self.m: at_m}):
            assert isinstance(s, Store)
            body.append(Store(s.memory, s.index, moves.edge_gate(s.value, gate), s.combine, both(gate, s.gate)))
        for r in reversed(wide):
            body = [For(r, TILE, body)]
        return body

    def in_chunks(self, images: UOp, inner_rest: list[UOp], total: UOp, vectors: object, tiled: object, wide: list[UOp],
                  lane: UOp, at_m: UOp, gate: UOp | None) -> list[Statement]:
        """for chunks of images: for the rest of the window: sums over the chunk, added to those in LOCAL memory."""
        assert callable(vectors) and callable(tiled)
        sizes = [r.arg.size for r in (*inner_rest, *wide)]
        memory = local("sums", total.dtype, math.prod(sizes) * self.lanes)
        spot = index(0)
        for r in (*inner_rest, *wide):
            spot = add(multiply(spot, r.arg.size), r)
        spot = add(multiply(spot, self.lanes), lane)
        n = images.arg.size
        count = -(-n // NEAR)
        chunk, image = counter("ic", count), counter(images.arg.name, NEAR)
        stop = None if n % NEAR == 0 else add(index(n), multiply(chunk, -NEAR))
        steps = vectors()
        for r in reversed(self.before[1:]):
            steps = [For(r, LOOP, steps)]
        steps = moves.rebuild(steps, {images: add(multiply(chunk, NEAR), image)})
        begin: list[Statement] = tiled([Store(memory, spot, const(0, total.dtype))])
        middle: list[Statement] = tiled([Assign(total, identity(o.ADD, total.dtype)), For(image, LOOP, steps, stop),
                                         Store(memory, spot, total, o.ADD)])
        end: list[Statement] = tiled([Assign(total, load(memory, spot))])
        end += self.finish(total, lane, wide, at_m, gate)
        for r in reversed(inner_rest):
            begin, middle, end = [For(r, LOOP, begin)], [For(r, LOOP, middle)], [For(r, LOOP, end)]
        return [*begin, For(chunk, LOOP, middle), *end]
