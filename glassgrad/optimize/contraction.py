"""Any sum of products, fast: the packed recipe. In: a plain loop tree. Out: phases of one that packs and multiplies.

Of the loops around a sum of products, some are seen only by the left factor (M), some only by the right (N), some by
both (batch), and K is summed. Matmul in every transpose, batched matmul, convolution and both its gradients, einsum
and attention scores are all this; none is matched by name.

    phase 1   pack the left factor into panels  [panel of M][K][rows of the tile]     (any view, mask, cast or
    phase 2   pack the right factor likewise    [panel of N][K][columns of the tile]   prologue is absorbed here)
    phase 3   TASK blocks of M and N: for blocks of K: for panels of N: for panels of M: a register tile; the epilogue

A register tile of `rows` x `vectors` accumulators reads both panels from end to end, so every line and page that is
touched is used whole. Edges are packed as zeros (or clamped rows) and dropped at the store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.graph import ops as o
from glassgrad.graph.index import add, both, index, less, modulo, multiply, substitute_index
from glassgrad.graph.node import toposort
from glassgrad.graph.uop import UOp, const, identity
from glassgrad.lower.loops import (
    LANE,
    LOOP,
    TASK,
    TILE,
    Accumulate,
    Assign,
    For,
    Prefetch,
    Statement,
    Store,
    counter,
    load,
    local,
    ranges_of,
    register,
    walk,
)
from glassgrad.optimize import moves
from glassgrad.optimize.choices import Choice, Decisions, settled
from glassgrad.optimize.direct import direct
from glassgrad.optimize.dots import dots
from glassgrad.optimize.packing import FlatAxis, Operand, one, stride_along
from glassgrad.optimize.product import Product, footprint, lanes_on_the_right, recognise
from glassgrad.optimize.target import Target
from glassgrad.optimize.zeros import with_zeros

LEAST_K = 8              # shorter sums do not repay packing
LEAST_WORK = 4096        # multiply-adds below which plain loops do as well
TASK_WORK = 1024 * 1024  # multiply-adds worth a task of their own
MOST_TASKS = 32          # blocks of the output: fewer and larger ones read the panels less often
LONG_K = 1024            # sums longer than this are added up in blocks, which keeps them accurate
NEAR_K = 2048            # of K: panels that are longer no longer stay near, so all tiles share a part of them
FEW_PANELS = 16          # of N: up to so many, the left factor may be read in place, again for each of them
ROWS_AHEAD = 16          # of K: how early the right factor is fetched where it is read in place
LEAST_PANELS = 8         # of N: fewer are not handed out one by one, unless the work is small
SHORT_LOOP = 9           # taps of a window that are written out
MOST_PACKED = 1 << 28    # elements of a packed factor, where it is much larger than what it is made of
MOST_RESTING = 1 << 22   # elements of tiles that rest between blocks of K, for each worker


@dataclass(frozen=True)
class Contract(Choice):
    """A register tile of rows x (vectors x lanes); blocks of panels of tiles, one to a task."""
    rows: int
    vectors: int
    lanes: int
    block_m: int                  # panels of M in one task
    block_n: int                  # panels of N in one task
    in_place: bool = False        # the left factor is read where it lies, not packed
    right_in_place: bool = False  # and the right one
    right_near: bool = False      # each task packs the panels of the right factor that it uses
    ahead: bool = True            # the next panel of the right factor is fetched while one is used
    k_blocks: int = 1             # blocks of K that a tile adds up before the next tile has its turn
    k_block: int = settled(0)     # products added in a register before they are added to memory; 0: all of them
    pitch: int = settled(0)       # of the image that N walks over; 0: none


def contraction(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases of the packed recipe; refuses (None) what is not a sum of products or is too small to repay it."""
    product = recognise(body)
    if product is None:
        return None
    before: list[list[Statement]] = []
    if not product.stops:
        in_place = direct(product, target, decisions)
        if in_place is not None:
            return in_place
        copied = with_zeros(product, target.lanes(product.total.dtype.itemsize))
        if copied is not None:
            before, product = copied
            in_place = direct(product, target, decisions)
        along_memory = in_place or dots(product, target, decisions)
        if along_memory is not None:
            return [*before, *along_memory]
    recipe = Recipe.of(lanes_on_the_right(product), target)
    if recipe is None:
        return None
    chosen = decisions.ask(recipe.own(), recipe.refuses, recipe.others)
    phases = Tiling(recipe.product, recipe.m, recipe.n, recipe.outer, recipe.work, chosen).phases()
    for loop in [s for phase in phases for s in walk(phase) if isinstance(s, For) and s.range in product.stops]:
        loop.stop = product.stops[loop.range]
    return [*before, *phases]


@dataclass
class Recipe:
    """A product and its flat axes, and how it would be cut."""
    product: Product
    target: Target
    m: FlatAxis
    n: FlatAxis
    outer: list[UOp]              # loops around everything: batch, and parts of M and N that do not flatten
    depth: int
    work: int

    @staticmethod
    def of(p: Product, target: Target) -> Recipe | None:
        depth = math.prod(r.arg.size for r in p.k)
        work = depth * math.prod(r.arg.size for r in p.m + p.n + p.batch)
        m, m_out = flat_axis(p.m, p.epilogue, "m")
        n, n_out = (None if p.stops else image_axis(p)) or flat_axis(p.n, p.epilogue, "n")
        if depth < LEAST_K or work < LEAST_WORK or n.size < 4 or m.size < 2:
            return None
        if not n.pitch and (swells(p.right, p.n + p.k) or swells(p.left, p.m + p.k)):
            return None
        return Recipe(p, target, m, n, [*p.batch, *m_out, *n_out], depth, work)

    def own(self) -> Contract:
        """What the recipe does when nobody knows better: the tile that costs the fewest cycles."""
        return self.with_tile(*min(self.tiles(), key=self.cycles))

    def tiles(self) -> list[tuple[int, int, bool, bool]]:
        """Every tile that the registers hold, as (rows, vectors, left in place, right in place)."""
        lanes = self.target.lanes(self.product.total.dtype.itemsize)
        found = []
        for vectors in (2, 1, 3, 4, 5, 6, 7):
            if vectors > max(1, -(-self.n.size // lanes)):
                continue
            right = [True, False] if self.right_must_be_packed() is None else [False]
            for rows in range(min(self.m.size, (self.target.vector_registers - vectors - 2) // vectors), 0, -1):
                few = self.n.size <= FEW_PANELS * vectors * lanes
                near = few and self.left_must_be_packed(rows) is None and self.lines_apart(rows)
                found += [(rows, vectors, near, in_place) for in_place in right]
        return found

    def cycles(self, tile: tuple[int, int, bool, bool]) -> float:
        """About how long a tile's choice takes, for each step of K: two multiply-adds a cycle, or not quite two loads;
        packing an element of a factor, more where the copy leaves the caches; and the right one's lines that are far
        apart, where it is read in place."""
        rows, vectors, left_in_place, right_in_place = tile
        columns = vectors * self.target.lanes(self.product.total.dtype.itemsize)
        panels_m, panels_n = -(-self.m.size // rows), -(-self.n.size // columns)
        step = max(rows * vectors / 2, (rows + vectors) * 0.6, 4.0) + 0.25 * vectors
        around = math.prod(r.arg.size for r in self.outer if r in ranges_of(self.product.right))
        far = around * self.depth * self.n.size * self.product.right.dtype.itemsize > self.target.l2_bytes
        packing = (0 if left_in_place else 0.7 * self.m.size) + \
            (0 if right_in_place else (1.2 if far else 0.4) * self.n.size)
        apart = 0.12 * panels_m * self.n.size if right_in_place else 0
        return panels_m * panels_n * step + packing + apart

    def with_tile(self, rows: int, vectors: int, in_place: bool, right_in_place: bool) -> Contract:
        """The recipe's blocks for a tile of any size."""
        itemsize = self.product.total.dtype.itemsize
        lanes = self.target.lanes(itemsize)
        panels_m, panels_n = -(-self.m.size // rows), -(-self.n.size // (vectors * lanes))
        wanted = max(1, min(MOST_TASKS, self.work // TASK_WORK) // max(1, math.prod(r.arg.size for r in self.outer)))
        blocks = _blocks(panels_m, panels_n, rows, vectors * lanes, self.depth, itemsize, wanted, self.target)
        k_block = 0 if self.depth <= LONG_K or self.n.pitch else -(-self.depth // -(-self.depth // LONG_K))
        k_blocks = min(NEAR_K // k_block, -(-self.depth // k_block)) if k_block else 1
        near = not right_in_place and self.must_pack_together(panels_n) is None and self.work >= 2 * TASK_WORK
        if near:
            blocks = panels_m, -(-panels_n // min(wanted, panels_n))
        return Contract(rows, vectors, lanes, *blocks, in_place, right_in_place, near, True, k_blocks, k_block,
                        self.n.pitch)

    def must_pack_together(self, panels_n: int) -> str | None:
        """Why tasks should share the packed right factor; None where each can pack its own part of it, and all of the
        left factor stays near meanwhile. It saves a phase, and reading what another core has just written."""
        if self.n.pitch or self.product.stops or any(r not in ranges_of(self.product.right) for r in self.outer):
            return "the right factor is packed for several tasks"
        tasks = panels_n * math.prod(r.arg.size for r in self.outer)
        if tasks < min(LEAST_PANELS, self.work // TASK_WORK / 2):
            return "there are too few panels to hand them out one by one"
        if self.m.size * self.depth * self.product.left.dtype.itemsize > self.target.l2_bytes // 2:
            return "the left factor does not stay in the second-level cache"
        return None

    def others(self) -> list[Contract]:
        """The best tile of every other number of vectors, and of other places to read from."""
        best: dict[tuple[int, bool, bool], tuple[int, int, bool, bool]] = {}
        for tile in sorted(self.tiles(), key=self.cycles):
            best.setdefault(tile[1:], tile)
        return [self.with_tile(*tile) for tile in best.values()]

    def refuses(self, c: Contract) -> str | None:
        """Why a way to cut this product would not do."""
        lanes = self.target.lanes(self.product.total.dtype.itemsize)
        if c.lanes > lanes or c.lanes & (c.lanes - 1):
            return f"a vector has 1, 2, 4 .. {lanes} lanes"
        if c.rows > self.m.size:
            return f"there are {self.m.size} rows"
        if c.rows * c.vectors > 2 * self.target.vector_registers:
            return f"the tile takes {c.rows * c.vectors} of {self.target.vector_registers} registers"
        if c.block_m > -(-self.m.size // c.rows) or c.block_n > -(-self.n.size // (c.vectors * c.lanes)):
            return "a block is larger than the product"
        if c.k_blocks > max(1, -(-self.depth // max(c.k_block, 1))):
            return "there are fewer blocks of K"
        resting = c.block_m * c.rows * c.block_n * c.vectors * c.lanes
        if 0 < c.k_block * c.k_blocks < self.depth and resting > MOST_RESTING:
            return "a block's tiles would not rest in any cache"
        why = self.left_must_be_packed(c.rows) if c.in_place else None
        if c.right_near and (c.right_in_place or c.block_m < -(-self.m.size // c.rows)):
            return "a task that packs its own part of the right factor takes all rows"
        if c.right_near:
            why = why or self.must_pack_together(-(-self.n.size // (c.vectors * c.lanes)))
        return why or (self.right_must_be_packed() if c.right_in_place else None)

    def left_must_be_packed(self, rows: int) -> str | None:
        """Why the left factor must be packed; None where it can be read where it lies, its rows along k."""
        left = self.product.left
        if left.op is not o.LOAD or len(left.src) != 2 or left.dtype is not self.product.total.dtype:
            return "the left factor is computed, not read"
        if self.n.pitch or len(self.product.k) != 1 or len(self.m.parts) != 1 or rows > self.m.size:
            return "the left factor is not a matrix"
        if stride_along(left.src[1], self.m.parts[0]) is None or stride_along(left.src[1], self.product.k[0]) != 1:
            return "the left factor does not lie along k"
        return None

    def right_must_be_packed(self) -> str | None:
        """Why the right factor must be packed; None where its rows lie along N and can be read where they are."""
        right = self.product.right
        if right.op is not o.LOAD or len(right.src) != 2 or right.dtype is not self.product.total.dtype:
            return "the right factor is computed, not read"
        if self.n.pitch or len(self.product.k) != 1 or len(self.n.parts) != 1:
            return "the right factor is not a matrix"
        if stride_along(right.src[1], self.n.parts[0]) != 1 or stride_along(right.src[1], self.product.k[0]) is None:
            return "the right factor does not lie along N"
        return None

    def lines_apart(self, rows: int) -> bool:
        """Whether the lines of a tile's rows leave room for each other in the sets of the first-level cache."""
        left = self.product.left
        step = stride_along(left.src[1], self.m.parts[0]) or 0
        return rows * math.gcd(step * left.dtype.itemsize, 4096) <= 8 * 4096      # lines 4096 bytes apart share a set


@dataclass
class Tiling:
    """A product cut as chosen: a register tile of rows x (vectors x lanes), panels of tiles, blocks of panels."""
    product: Product
    m: FlatAxis
    n: FlatAxis
    outer: list[UOp]
    work: int
    choice: Contract

    # -- counters --------------------------------------------------------------------------------------------
    def __post_init__(self) -> None:
        c = self.choice
        self.rows, self.vectors, self.lanes, self.in_place = c.rows, c.vectors, c.lanes, c.in_place
        self.block_m, self.block_n = c.block_m, c.block_n
        self.columns = self.vectors * self.lanes
        self.panels_m, self.panels_n = -(-self.m.size // self.rows), -(-self.n.size // self.columns)
        self.depth = math.prod(r.arg.size for r in self.product.k)
        self.row, self.over = counter("mi", self.rows), counter("ni", self.vectors)
        self.lane = counter("l", self.lanes)
        self.column = add(multiply(one(self.over), self.lanes), one(self.lane))
        blocks_m, blocks_n = -(-self.panels_m // self.block_m), -(-self.panels_n // self.block_n)
        self.task_m, self.task_n = counter("mb", blocks_m), counter("nb", blocks_n)
        self.in_m, self.in_n = counter("mo", self.block_m), counter("no", self.block_n)
        self.panel_m = add(multiply(one(self.task_m), self.block_m), one(self.in_m))
        self.panel_n = add(multiply(one(self.task_n), self.block_n), one(self.in_n))
        self.at_m = add(multiply(self.panel_m, self.rows), one(self.row))
        self.at_n = add(multiply(self.panel_n, self.columns), self.column)
        ragged_m, ragged_n = self.m.size % self.rows, self.n.size % self.columns
        self.gate_m = moves.below(self.at_m, self.m.size) if ragged_m else None
        if self.in_place and ragged_m:
            # the last panel starts early, so that no row is read past the end; what it has in common is stored once
            nominal = multiply(self.panel_m, self.rows)
            self.at_m = add(nominal.minimum(self.m.size - self.rows), one(self.row))
            self.gate_m = less(nominal, add(self.at_m, index(1)))
        self.gate_n = moves.below(self.at_n, self.n.size) if ragged_n else None
        wide = tuple(r for r in (self.row, self.over, self.lane) if r.arg.size > 1)
        self.total = register(self.product.total.arg, self.product.total.dtype, wide)
        self.left = Operand("left", self.product.left, self.m, self.outer, self.product.k, self.rows, 1, self.panels_m)
        near = self.choice.right_near
        self.right = Operand("right", self.product.right, self.n, self.outer, self.product.k, self.columns,
                             self.vectors, self.block_n if near else self.panels_n, self.task_n if near else None)
        self.right_panel = one(self.in_n) if near else self.panel_n

    # -- phases ----------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        packed = [] if self.in_place else [self.left.pack(self.lanes)]
        if not self.n.pitch and not self.choice.right_in_place and not self.choice.right_near:
            packed.append(self.right.pack(self.lanes))
        if self.n.pitch:
            body = self.panels([*self.begin(), *self.over_image(), *self.epilogue(self.total)])
        elif not self.choice.k_block:
            k = counter("k", self.depth)
            products = For(k, LOOP, [*self.ahead(k), self.step(k)])
            body = self.panels([*self.begin(), products, *self.epilogue(self.total)])
        else:
            body = self.in_blocks_of_k()
        if self.choice.right_near:
            body = [*self.right.pack(self.lanes), *body]
        around = [(self.task_n, TASK), (self.task_m, TASK), *[(r, self.outer_kind()) for r in reversed(self.outer)]]
        for r, kind in around:
            body = [For(r, kind, body)] if r.arg.size > 1 else body
        return [*packed, body]

    def outer_kind(self) -> str:
        return TASK if self.work >= TASK_WORK else LOOP

    def begin(self) -> list[Statement]:
        return [Assign(self.total, identity(o.ADD, self.total.dtype))]

    def step(self, k: UOp) -> Statement:
        """One product of the packed panels, for the whole tile."""
        if self.in_place:
            a = substitute_index(self.product.left, {**self.m.apart(self.at_m), self.product.k[0]: k}, {})
        else:
            a = load(self.left.memory, self.left.place(self.panel_m, k, one(self.row)))
        if self.choice.right_in_place:
            b = moves.edge_gate(self.right_at(self.at_n, k), self.gate_n)
        else:
            b = load(self.right.memory, self.right.place(self.right_panel, k, self.column))
        return Accumulate(self.total, o.ADD, a * b)

    def right_at(self, n: UOp, k: UOp) -> UOp:
        return substitute_index(self.product.right, {**self.n.apart(n), self.product.k[0]: k}, {})

    def ahead(self, k: UOp) -> list[Statement]:
        """What of the right factor is fetched early. Packed: the next panel while this one is used, a line at every
        step, so that a few panels of M bring all of it near. In place: this panel, a few steps ahead."""
        if not self.choice.ahead:
            return []
        if self.choice.right_in_place:
            begin = add(multiply(self.panel_n, self.columns), index(0))
            soon = [self.right_at(add(begin, index(v * self.lanes)), add(k, index(ROWS_AHEAD)))
                    for v in range(self.vectors)]
            return [Prefetch(read.src[0], read.src[1]) for read in soon]
        if self.block_n == 1 or self.block_m < self.vectors:
            return []
        line = multiply(modulo(one(self.in_m), self.vectors), self.lanes)
        return [Prefetch(self.right.memory, self.right.place(add(self.right_panel, index(1)), k, line))]

    def over_image(self) -> list[Statement]:
        """Windows of an image: every tap is a vector read from the image itself, at a constant distance."""
        flat = index(0)
        for r in self.product.k:
            flat = add(multiply(flat, r.arg.size), r)
        a = load(self.left.memory, self.left.place(self.panel_m, flat, one(self.row)))
        b = moves.edge_gate(substitute_index(self.product.right, self.n.apart(self.at_n), {}), self.gate_n)
        body: list[Statement] = [Accumulate(self.total, o.ADD, a * b)]
        count = 1
        for r in reversed(self.product.k):
            count *= r.arg.size
            if count <= SHORT_LOOP and len(self.product.k) > 1:
                body = [s for i in range(r.arg.size) for s in moves.rebuild(body, {r: index(i)})]
            else:
                body = [For(r, LOOP, body)]
        return body

    def in_blocks_of_k(self) -> list[Statement]:
        """Long sums: no register adds more than `k_block` products before its tile is added to LOCAL memory.

        Where K is so long that panels would not stay near, all tiles of the task have their turn at some blocks of K
        before the next ones, and rest in between.
        """
        size, at_once = self.choice.k_block, self.choice.k_blocks
        count = -(-self.depth // size)
        whole = at_once >= count
        passes, block = counter("kp", -(-count // at_once)), counter("kb", min(at_once, count))
        inner = counter("k", size)
        number = add(multiply(one(passes), at_once), one(block))
        k = add(multiply(number, size), inner)
        tiles = 1 if whole else self.block_m * self.block_n
        memory = local("tiles", self.total.dtype, tiles * self.rows * self.columns)
        at = index(0) if whole else add(multiply(one(self.in_n), self.block_m), one(self.in_m))
        at = add(multiply(add(multiply(at, self.rows), one(self.row)), self.columns), self.column)
        stop = None if self.depth % size == 0 else add(index(self.depth), multiply(number, -size))
        last = None if count % at_once == 0 or whole else add(index(count), multiply(passes, -at_once))
        clear: list[Statement] = [Store(memory, at, const(0, self.total.dtype))]
        part: list[Statement] = [*self.begin(), For(inner, LOOP, [*self.ahead(k), self.step(k)], stop),
                                 Store(memory, at, self.total, o.ADD)]
        if block.arg.size > 1:
            part = [For(block, LOOP, part, last)]
        finish = self.epilogue(load(memory, at))
        if whole:
            return self.panels([*clear, *part, *finish])
        return [*self.panels(clear), For(passes, LOOP, self.panels(part)), *self.panels(finish)]

    def panels(self, body: list[Statement]) -> list[Statement]:
        """For all tiles of a task: panels of N outside, so that one of them serves every panel of M."""
        for r, kind in ((self.lane, LANE), (self.over, TILE), (self.row, TILE)):
            body = [For(r, kind, body)] if r.arg.size > 1 else body
        for r, task, whole in ((self.in_m, self.task_m, self.panels_m), (self.in_n, self.task_n, self.panels_n)):
            size = r.arg.size
            if size > 1:
                stop = None if whole % size == 0 else add(index(whole), multiply(task, -size))
                body = [For(r, LOOP, body, stop)]
        return body

    def epilogue(self, result: UOp) -> list[Statement]:
        """What is stored of a finished tile; nothing past the edges."""
        p = self.product
        replace = {p.total: result, **self.m.apart(self.at_m), **self.n.apart(self.at_n)}
        gate = both(self.gate_m, both(self.gate_n, self.n.gate(self.at_n)))
        out: list[Statement] = []
        for s in moves.rebuild(p.epilogue, replace):
            assert isinstance(s, Store)
            out.append(Store(s.memory, s.index, gated(s.value, gate, result), s.combine, both(gate, s.gate)))
        return out


def gated(value: UOp, gate: UOp | None, result: UOp) -> UOp:
    """The epilogue's own reads stay inside the edges; the tile itself is whole."""
    if gate is None or result.op is not o.LOAD:
        return moves.edge_gate(value, gate)
    name = register("whole", result.dtype)
    return substitute_index(moves.edge_gate(substitute_index(value, {result: name}, {}), gate), {name: result}, {})


def swells(factor: UOp, loops: list[UOp]) -> bool:
    """Whether a packed factor would be huge, and much larger than the memory it is made of: a window, a repetition."""
    packed = math.prod(r.arg.size for r in dict.fromkeys([*loops, *ranges_of(factor)]))
    read = {n.src[0] for n in toposort([factor]) if n.op is o.LOAD and n.src[0].op is o.PARAM}
    return packed > max(MOST_PACKED, 4 * sum(math.prod(m.arg.shape) for m in read))


def _blocks(panels_m: int, panels_n: int, rows: int, columns: int, depth: int, itemsize: int, wanted: int,
            target: Target) -> tuple[int, int]:
    """Panels of M and N in one task: about as many tasks as wanted, as square as can be, so that the panels are read
    the fewest times, while a task's packed rows (and its resting tiles, where K is blocked) stay in half the
    second-level cache."""
    blocked = depth > NEAR_K
    near = target.l2_bytes // 2
    best: tuple[float, int, int] | None = None
    for tasks_m in range(1, panels_m + 1):
        block_m = -(-panels_m // tasks_m)
        if block_m * rows * min(depth, NEAR_K) * itemsize > near and block_m > 1:
            continue
        tasks_n = min(panels_n, max(1, -(-wanted // -(-panels_m // block_m))))
        if blocked:
            tasks_n = max(tasks_n, -(-panels_n * block_m * rows * columns * itemsize // near))
        block_n = -(-panels_n // min(tasks_n, panels_n))
        if -(-panels_m // block_m) * -(-panels_n // block_n) < wanted and block_m > 1:
            continue
        reads = 1 / (block_m * rows) + 1 / (block_n * columns)
        if best is None or reads < best[0] * 0.999:
            best = (reads, block_m, block_n)
        if tasks_m > 4 * wanted and best is not None:
            break
    assert best is not None
    return best[1:]


# -- axes ----------------------------------------------------------------------------------------------------
def flat_axis(loops: list[UOp], epilogue: list[Statement], name: str) -> tuple[FlatAxis, list[UOp]]:
    """The innermost loops that flatten to one axis linear in the output, and the loops left outside."""
    def joined(parts: list[UOp]) -> FlatAxis:
        return FlatAxis(parts, math.prod(r.arg.size for r in parts))

    best = joined(loops[-1:])
    for start in range(len(loops) - 2, -1, -1):
        axis = joined(loops[start:])
        whole = counter(name, axis.size)
        split = axis.apart(whole)
        stores = [substitute_index(s.index, split, {}) for s in epilogue if isinstance(s, Store)]
        if any(n.op in (o.IDIV, o.MOD) for n in toposort(stores)):
            break
        best = axis
    if best.size < 8 and len(best.parts) < len(loops):
        return joined(loops), []
    return best, loops[:len(loops) - len(best.parts)]


def image_axis(p: Product) -> tuple[FlatAxis, list[UOp]] | None:
    """The last two loops of N laid out with the pitch of the image they walk over: then each tap of a window is one
    contiguous read, at a constant distance. For images that are read many times over; refuses anything else."""
    if len(p.n) < 2 or p.right.op is not o.LOAD or len(p.right.src) != 2:
        return None
    rows, columns = p.n[-2:]
    at = p.right.src[1]
    steps = [stride_along(at, r) for r in (rows, columns, *p.k)]
    if None in steps or steps[1] != 1:
        return None
    pitch = steps[0]
    reads = math.prod(r.arg.size for r in p.k + p.n)
    if pitch is None or not columns.arg.size <= pitch <= 2 * columns.arg.size:
        return None
    if 2 * footprint(p.right, p.k + p.n) > reads:
        return None
    return FlatAxis([rows, columns], (rows.arg.size - 1) * pitch + columns.arg.size, pitch), p.n[:-2]
