"""Any sum of products, fast: the packed recipe. In: a plain loop tree. Out: phases of one that packs and multiplies.

Of the loops around a sum of products, some are seen only by the left factor (M), some only by the right (N), some by
both (batch), and K is summed. Matmul in every transpose, batched matmul, convolution and both its gradients, einsum
and attention scores are all this; none is matched by name.

    phase 1   pack the left factor into panels  [panel of M][K][rows of the tile]     (any view, mask, cast or
    phase 2   pack the right factor likewise    [panel of N][K][columns of the tile]   prologue is absorbed here)
    phase 3   TASK blocks of M and N: for blocks of K: for panels of N: for panels of M: a register tile; the epilogue

The first two are left out where a factor is read in place, and the second where each task packs the panels it uses
(`right_near`), as in large products: then tasks share nothing that one of them writes, but a packed left factor.

A register tile of `rows` x `vectors` accumulators reads both panels from end to end, so every line and page that is
touched is used whole. Edges are packed as zeros (or clamped rows) and dropped at the store.
"""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, index, less, modulo, multiply, substitute_index
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower.loops import (
    LANE,
    LOOP,
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
    register,
    walk,
)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.padding_copy import with_zeros
from glassgrad.compiler.optimize.product.contraction_axes import one
from glassgrad.compiler.optimize.product.direct import direct
from glassgrad.compiler.optimize.product.dot_products import dots
from glassgrad.compiler.optimize.product.packing import Operand
from glassgrad.compiler.optimize.product.recognize import lanes_on_the_right, recognise, recognise_window
from glassgrad.compiler.optimize.product.tiling import CACHE_LINE, TASK_WORK, Contract, Recipe
from glassgrad.compiler.optimize.product.weight_gradient import taps
from glassgrad.compiler.optimize.product.windows import windows
from glassgrad.compiler.optimize.product.work_split import hand_out, share
from glassgrad.compiler.optimize.targets.target import Target

ROWS_AHEAD = 16          # of K: how early the right factor is fetched where it is read in place
STEPS_AHEAD = 48         # of K: how early the left factor is fetched where a task goes through all of it, packed
SHORT_LOOP = 9           # taps of a window that are written out


def contraction(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases of the packed recipe; refuses (None) what is not a sum of products or is too small to repay it."""
    product = recognise(body)
    if product is None:
        window = recognise_window(body)
        return None if window is None else windows(window, target, decisions) or taps(window, target, decisions)
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
    phases = Tiling(recipe, chosen).phases()
    for loop in [s for phase in phases for s in walk(phase) if isinstance(s, For) and s.range in product.stops]:
        loop.stop = product.stops[loop.range]
    return [*before, *phases]


class Tiling:
    """A product cut as chosen: a register tile of rows x (vectors x lanes), panels of tiles, blocks of panels."""

    def __init__(self, recipe: Recipe, c: Contract):
        self.product, self.m, self.n, self.outer = recipe.product, recipe.m, recipe.n, recipe.outer
        self.depth, self.work, self.choice = recipe.depth, recipe.work, c
        self.rows, self.vectors, self.lanes, self.in_place = c.rows, c.vectors, c.lanes, c.in_place
        self.turned = recipe.turned
        self.block_m, self.block_n = c.block_m, c.block_n
        self.columns = self.vectors * self.lanes
        self.panels_m, self.panels_n = recipe.panels(c.rows, c.vectors, c.lanes)
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
        self.begin_n, self.read_gate = multiply(self.panel_n, self.columns), self.gate_n
        if c.right_in_place and ragged_n and self.n.size >= self.columns:
            # likewise: every read is a whole vector then, and no mask is made anew at each step of K
            nominal = self.begin_n
            self.begin_n, self.read_gate = nominal.minimum(self.n.size - self.columns), None
            self.at_n = add(self.begin_n, self.column)
            self.gate_n = less(nominal, add(self.at_n, index(1)))
        wide = tuple(r for r in (self.row, self.over, self.lane) if r.arg.size > 1)
        self.total = register(self.product.total.arg, self.product.total.dtype, wide)
        self.left = Operand("left", self.product.left, self.m, self.outer, self.product.k, self.rows, 1, self.panels_m)
        near = self.choice.right_near
        self.right = Operand("right", self.product.right, self.n, self.outer, self.product.k, self.columns,
                             self.vectors, self.block_n if near else self.panels_n, self.task_n if near else None)
        self.right_panel = one(self.in_n) if near else self.panel_n

    # -- phases ----------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        most = moves.MOST_TASKS if not self.product.stops else self.work      # a loop with its own end stays one loop
        packed = [] if self.in_place else [self.left.pack(self.lanes, most)]
        if not self.n.pitch and not self.choice.right_in_place and not self.choice.right_near:
            packed.append(self.right.pack(self.lanes, most))
        if self.n.pitch:
            body = self.panels([*self.begin(), *self.over_image(), *self.epilogue(self.total)])
        elif not self.choice.k_block:
            k = counter("k", self.depth)
            products = For(k, LOOP, [*self.ahead(k), self.step(k)], self.product.k_stop)
            body = self.panels([*self.begin(), products, *self.epilogue(self.total)])
        else:
            body = self.in_blocks_of_k()
        if self.choice.right_near:
            body = [*self.right.pack(self.lanes), *body]
        return [*packed, hand_out(self.outer, [self.task_m, self.task_n], body, self.work >= TASK_WORK, most)]

    def begin(self) -> list[Statement]:
        return [Assign(self.total, identity(o.ADD, self.total.dtype))]

    def step(self, k: UOp) -> Statement:
        """One product of the packed panels, for the whole tile."""
        if self.in_place:
            a = self.left_at(self.at_m, k)
        else:
            a = load(self.left.memory, self.left.place(self.panel_m, k, one(self.row)))
        if self.choice.right_in_place:
            b = moves.edge_gate(self.right_at(self.at_n, k), self.read_gate)
        else:
            b = load(self.right.memory, self.right.place(self.right_panel, k, self.column))
        return Accumulate(self.total, o.ADD, a * b)

    def right_at(self, n: UOp, k: UOp) -> UOp:
        return substitute_index(self.product.right, {**self.n.apart(n), self.product.k[0]: k}, {})

    def left_at(self, m: UOp, k: UOp) -> UOp:
        return substitute_index(self.product.left, {**self.m.apart(m), self.product.k[0]: k}, {})

    def ahead(self, k: UOp) -> list[Statement]:
        """What is fetched early. Where a task goes through all rows of the left factor in place: those that come next,
        a line at every step, so that as many steps as a line is long bring a piece of as many rows; packed: what is
        used some steps later, panel after panel. Of the right factor, packed: the next panel while this one is used,
        a line at every step, so that a few panels of M bring all of it near. In place: this panel, a few steps ahead.
        """
        if not self.choice.ahead:
            return []
        if self.in_place and not self.turned and self.choice.right_near and self.block_m > 1:
            spot = modulo(k, CACHE_LINE // self.product.left.dtype.itemsize)
            soon = self.left_at(add(multiply(add(self.panel_m, index(1)), self.rows), spot), add(k, multiply(spot, -1)))
            return [Prefetch(soon.src[0], soon.src[1])]
        if self.choice.right_near and not self.in_place:
            return [Prefetch(self.left.memory, self.left.place(self.panel_m, add(k, index(STEPS_AHEAD)), index(0)))]
        if self.choice.right_in_place:
            reads = [self.right_at(add(self.begin_n, index(v * self.lanes)), add(k, index(ROWS_AHEAD)))
                     for v in range(self.vectors)]
            return [Prefetch(read.src[0], read.src[1]) for read in reads]
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
        end = self.product.k_stop or (index(self.depth) if self.depth % size else None)
        stop = None if end is None else add(end, multiply(number, -size))
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
        return share(self.in_n, self.task_n, self.panels_n, share(self.in_m, self.task_m, self.panels_m, body))

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
