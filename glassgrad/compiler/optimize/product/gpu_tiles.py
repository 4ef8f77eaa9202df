"""Any sum of products on a GPU. In: a plain loop tree. Out: one whose groups of threads share tiles.

    TASK blocks of M and N (and parts of K, where blocks are few):
        read the first tile of each factor into registers     any view, mask, cast or prologue is absorbed here
        for steps of K:
            put both tiles into LOCAL memory                  [k][position]
            read the next tiles, which arrive while
            for k of the step: every thread multiplies its rows by its columns, in registers
        the epilogue

A group's threads stand in a square of 16 x 16, and each has `rows` x `columns` of the block: in pieces of four that lie
side by side with its neighbours', so that threads read different banks. Edges are copied as zeros and not stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, modulo, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
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
    load,
    local,
    ranges_of,
    register,
)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, settled
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.contraction_axes import FlatAxis, flat_axis, one, stride_along
from glassgrad.compiler.optimize.product.packed import gated
from glassgrad.compiler.optimize.product.recognize import Product, lanes_on_the_right, recognise
from glassgrad.compiler.optimize.targets.target import Target

SIDE = 16                # threads of a group along M, and along N
PIECE = 4                # neighbouring positions of a thread: one access of 16 bytes
PAD = 4                  # positions between rows of a tile: what is copied along k falls into different banks
LEAST = 16               # positions of M and of N below which a tile would be mostly edge
LEAST_K = 8
STEP = 16                # of K that are copied at once
PART = 512               # of K that are worth a part of their own
EFFICIENCY = {64: 1.0, 32: 0.8, 16: 0.6, 8: 0.4, 4: 0.25}     # of a thread's tile: products for each value read


@dataclass(frozen=True)
class Staged(Choice):
    """Tiles that a group shares: rows and columns of each thread, steps of K at once, parts of K."""
    rows: int
    columns: int
    step: int
    parts: int = settled(1)


@dataclass
class Tiled:
    """The phases of a product on a GPU, and what is left to do as plain loops."""
    phases: list[list[Statement]]
    rest: list[Statement] | None


def group_tiles(body: list[Statement], target: Target, decisions: Decisions) -> Tiled | None:
    """The body as tiles of groups; refuses (None) what is no sum of products, or too thin for tiles."""
    product = recognise(body)
    if product is None or product.stops:
        return None
    product = lanes_on_the_right(product)
    m, outside_m = flat_axis(product.m, product.epilogue, "m")
    n, outside_n = flat_axis(product.n, product.epilogue, "n")
    outer = [*product.batch, *outside_m, *outside_n]
    k = FlatAxis(product.k, math.prod(r.arg.size for r in product.k))
    if m.size < LEAST or n.size < LEAST or k.size < LEAST_K or product.total.dtype.kind != "f":
        return None
    around = math.prod(r.arg.size for r in outer)
    rows, columns = min(((r, c) for r in (8, 4, 2) for c in (8, 4, 2)),
                        key=lambda tile: _time(m.size, n.size, around, tile, target.few_tasks // 2))
    blocks = around * -(-m.size // (SIDE * rows)) * -(-n.size // (SIDE * columns))
    parts = max(1, min(target.few_tasks // (2 * blocks), k.size // PART))
    chosen = decisions.ask(Staged(rows, columns, STEP, parts), _refuses)
    return _Tiling(product, m, n, k, outer, chosen).tiled()


def _refuses(c: Staged) -> str | None:
    if c.rows not in (1, 2, 4, 8) or c.columns not in (1, 2, 4, 8):
        return "a thread has 1, 2, 4 or 8 rows and columns"
    return None if c.step in (16, 32) else "steps of K are 16 or 32 long"


def _time(m: int, n: int, around: int, tile: tuple[int, int], at_once: int) -> float:
    """How long tiles of a size take: rounds of groups that run at once, each with its work and its efficiency."""
    rows, columns = tile
    blocks = around * -(-m // (SIDE * rows)) * -(-n // (SIDE * columns))
    return -(-blocks // at_once) * rows * columns / EFFICIENCY[rows * columns]


class _Tiling:
    def __init__(self, product: Product, m: FlatAxis, n: FlatAxis, k: FlatAxis, outer: list[UOp], c: Staged):
        self.product, self.m, self.n, self.k, self.outer, self.c = product, m, n, k, outer, c
        self.lane = counter("l", SIDE * SIDE)
        self.row, self.column = counter("mi", c.rows), counter("ni", c.columns)
        self.height, self.width = SIDE * c.rows, SIDE * c.columns
        self.task_m, self.task_n = counter("mb", -(-m.size // self.height)), counter("nb", -(-n.size // self.width))
        steps = -(-k.size // c.step)
        self.part, self.step = counter("kp", c.parts), counter("ks", -(-steps // c.parts))
        self.in_m = self.position(one(self.row), c.rows, divide(self.lane, SIDE))
        self.in_n = self.position(one(self.column), c.columns, modulo(self.lane, SIDE))
        self.at_m = add(multiply(one(self.task_m), self.height), self.in_m)
        self.at_n = add(multiply(one(self.task_n), self.width), self.in_n)
        self.first_k = multiply(multiply(one(self.part), self.step.arg.size), c.step)
        self.begin_k = add(self.first_k, multiply(self.step, c.step))
        wide = tuple(r for r in (self.row, self.column, self.lane) if r.arg.size > 1)
        self.total = register(product.total.arg, product.total.dtype, wide)

    @staticmethod
    def position(own: UOp, count: int, thread: UOp) -> UOp:
        """Where a thread's own-th position lies in the block."""
        piece = min(count, PIECE)
        return add(multiply(divide(own, piece), SIDE * piece), add(multiply(thread, piece), modulo(own, piece)))

    def tiled(self) -> Tiled:
        gate = both(moves.below(self.at_m, self.m.size), moves.below(self.at_n, self.n.size))
        p = self.product
        left = _Tile("left", p.left, self.m, multiply(one(self.task_m), self.height), self.height, self)
        right = _Tile("right", p.right, self.n, multiply(one(self.task_n), self.width), self.width, self)
        k = counter("k", self.c.step)
        multiplied = Accumulate(self.total, o.ADD, left.at(k, self.in_m) * right.at(k, self.in_n))
        then = add(self.begin_k, index(self.c.step))
        body: list[Statement] = [*left.kept(), *right.kept(), *left.read(then), *right.read(then),
                                 For(k, LOOP, self.for_all([multiplied]))]
        first = [*left.read(self.first_k), *right.read(self.first_k)]
        last = -(-self.k.size // self.c.step)
        stop = None if last % self.step.arg.size == 0 else \
            add(index(last), multiply(one(self.part), -self.step.arg.size))
        loop: list[Statement] = [*first, For(self.step, LOOP, body, stop)]
        start = self.for_all([Assign(self.total, identity(o.ADD, self.total.dtype))])
        if self.c.parts == 1:
            finish = self.epilogue(self.total, self.m.apart(self.at_m), self.n.apart(self.at_n), gate)
            return Tiled([self.around([*start, *loop, *self.for_all(finish)], [])], None)
        parts = local("parts", self.total.dtype,
                      self.c.parts * math.prod(r.arg.size for r in self.outer) * self.m.size * self.n.size, "shared")
        kept = self.for_all([Store(parts, self.part_at(one(self.part), self.at_m, self.at_n), self.total, None, gate)])
        return Tiled([self.around([*start, *loop, *kept], [self.part])], self.joined(parts))

    def for_all(self, body: list[Statement]) -> list[Statement]:
        """For every position of the block: its rows and columns in each thread, in all threads."""
        for r, kind in ((self.lane, LANE), (self.column, TILE), (self.row, TILE)):
            body = [For(r, kind, body)] if r.arg.size > 1 else body
        return body

    def around(self, body: list[Statement], parts: list[UOp]) -> list[Statement]:
        for r in reversed([*self.outer, *parts, self.task_m, self.task_n]):
            body = [For(r, TASK, body)] if r.arg.size > 1 else moves.rebuild(body, {r: index(0)})
        return body

    def epilogue(self, result: UOp, m: dict[UOp, UOp], n: dict[UOp, UOp], gate: UOp | None) -> list[Statement]:
        """What is stored of a finished sum; nothing past the edges."""
        out: list[Statement] = []
        for s in moves.rebuild(self.product.epilogue, {self.product.total: result, **m, **n}):
            assert isinstance(s, Store)
            out.append(Store(s.memory, s.index, gated(s.value, gate, result), s.combine, both(gate, s.gate)))
        return out

    # -- parts of K --------------------------------------------------------------------------------------------
    def part_at(self, part: UOp, m: UOp, n: UOp) -> UOp:
        at = part
        for r in self.outer:
            at = add(multiply(at, r.arg.size), one(r))
        return add(multiply(add(multiply(at, self.m.size), m), self.n.size), n)

    def joined(self, parts: UOp) -> list[Statement]:
        """The sums of the parts, as plain loops: for all results: for the parts: add."""
        total, part = register(self.product.total.arg, self.product.total.dtype), counter("kp", self.c.parts)
        at = load(parts, self.part_at(part, _flat(self.m), _flat(self.n)))
        body: list[Statement] = [Assign(total, identity(o.ADD, total.dtype)),
                                 For(part, LOOP, [Accumulate(total, o.ADD, at)]),
                                 *moves.rebuild(self.product.epilogue, {self.product.total: total})]
        for r in reversed([*self.outer, *self.m.parts, *self.n.parts]):
            body = [For(r, TASK, body)] if r.arg.size > 1 else moves.rebuild(body, {r: index(0)})
        return body


def _flat(axis: FlatAxis) -> UOp:
    at = index(0)
    for r in axis.parts:
        at = add(multiply(at, r.arg.size), one(r))
    return at


class _Tile:
    """One factor's part of a step, in memory that the group shares: [k][position]."""

    def __init__(self, name: str, value: UOp, axis: FlatAxis, begin: UOp, size: int, tiling: _Tiling):
        self.value, self.axis, self.k, self.begin, self.size, self.tiling = value, axis, tiling.k, begin, size, tiling
        self.depth, self.pitch = tiling.c.step, size + PAD
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
        """The elements of a step into registers, zeros past the edges."""
        position, k = self.place()
        at, at_k = add(self.begin, position), add(begin_k, k)
        gate = both(moves.below(at, self.axis.size), moves.below(at_k, self.k.size))
        value = substitute_index(self.value, {**self.axis.apart(at), **self.k.apart(at_k)}, {})
        if gate is not None:
            value = moves.edge_gate(value, gate)
            if value.op is not o.LOAD:
                value = gate.where(value, const(0, value.dtype))
        return self.for_all(Assign(self.next, value))

    def kept(self) -> list[Statement]:
        """The registers into memory."""
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
