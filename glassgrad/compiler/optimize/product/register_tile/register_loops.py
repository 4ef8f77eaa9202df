"""The loops of a register tile. In: a `RegisterPlan` and the `Tiling` chosen from it. Out: the phases of the product.

    phase 1   pack the left factor into panels  [panel of M][K][rows of the tile]     (any view, mask, cast or
    phase 2   pack the right factor likewise    [panel of N][K][columns of the tile]   prologue is applied here)
    phase 3   TASK blocks of M and N: for panels of N: for panels of M: a register tile:

        TILE mi in rows: TILE ni in vectors: LANE l in lanes:
          total[mi, ni, l] = 0
          for k: total[mi, ni, l] += left[panel of M, k, mi] * right[panel of N, k, ni * lanes + l]
          out[..] = epilogue(total[mi, ni, l])

A factor that is read in place needs no packing phase; nor does the right factor if each task packs the panels it uses
(right=near), as in large products, so that tasks share only the packed left factor.

A register tile reads both panels from beginning to end, so every cache line and page is used whole. Edges are packed as
zeros, or the last tile overlaps the one before it; stores of positions past an edge, or computed twice, are masked off.

A run-time number of columns is whole panels, and one panel with as many vectors as are left over (`over_widths`).
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.base.cached_property import cached_property
from glassgrad.compiler.graph import UOp, const, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, both, divide, divide_up, index, less, modulo, multiply,
                                                    operation, substitute_index)
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, Prefetch, Statement, Store,
                                            counter, current, flat_index, load, local, nested, ranges_of, register_over)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below, edge_gate
from glassgrad.compiler.optimize.product.packing import PackedFactor
from glassgrad.compiler.optimize.product.recognize import masked
from glassgrad.compiler.optimize.product.register_tile.register_plan import RegisterPlan
from glassgrad.compiler.optimize.product.tiling_parameters import PanelBlocks, Tiling
from glassgrad.compiler.optimize.targets import cpu_costs as cpu

STEPS_AHEAD = 48         # prefetch distance, in steps of K, for a packed left factor that each task reads whole


class RegisterTile(PanelBlocks):
    """A product tiled as chosen: register tiles of rows x (vectors x lanes), panels of tiles, blocks of panels. `rows`
    and `vectors` give the size of this tile if panels differ in height or width; 0: as chosen."""

    def __init__(self, plan: RegisterPlan, c: Tiling, rows: int = 0, vectors: int = 0):
        usual, panels_n = plan.panels(c.rows, c.vectors, c.lanes)
        self.pitch, self.is_rest = c.vectors * c.lanes, vectors > 0          # columns of a whole panel
        panels_m, panels_n = max(usual, -(-plan.m.most // c.rows)), max(panels_n, -(-plan.n.most // self.pitch))
        sums_wait = 0 < c.k_block * c.k_blocks < plan.depth and plan.m.most > cpu.BALANCED_ROWS      # in memory
        block_m = panels_m if c.block_m >= usual and not sums_wait and not plan.m.any_length else c.block_m
        super().__init__(panels_m, panels_n, block_m, c.block_n, plan.m.pieces(c.rows), plan.n.pieces(self.pitch))
        self.plan, self.least_rows = plan, -(-c.rows // 2)         # for panels of balanced height
        self.product, self.m, self.n, self.outer = plan.product, plan.m, plan.n, plan.outer
        self.depth, self.work, self.left_along_m, self.choice = plan.depth, plan.work, plan.left_along_m, c
        self.rows, self.vectors, self.lanes = c.rows, vectors or c.vectors, c.lanes
        self.columns = self.vectors * self.lanes
        self.left_in_place, self.right_in_place = c.left == "in_place", c.right == "in_place"
        self.row, self.over = counter("mi", rows or c.rows), counter("ni", self.vectors)
        self.lane = counter("l", c.lanes)
        self.column = add(multiply(current(self.over), self.lanes), current(self.lane))
        self.set_rows(rows)
        self.set_columns()
        p, near = self.product, c.right == "near"
        self.total = register_over(p.total.arg, p.total.dtype, (self.row, self.over, self.lane))
        own = self.left_is_own = (self.task_m.arg.size == 1 or plan.m.any_length) and plan.packs_own_left
        self.left = PackedFactor("left", p.left, self.m, self.outer, p.k, self.rows, 1,
                                 self.block_m if own else self.panels_m, self.task_m if own else None, p.stops)
        self.right_panel = current(self.in_n) if near else self.panel_n
        self.right_column, width = self.column, self.pitch
        if self.end_n is not None:           # each vector of a panel is packed by itself: no more vectors than exist
            self.right_panel = add(multiply(self.right_panel, c.vectors), current(self.over))
            self.right_column, width = current(self.lane), c.lanes
        panels = (self.block_n if near else self.panels_n) * self.pitch // width
        self.right = PackedFactor("right", p.right, self.n, self.outer, p.k, width, width // c.lanes, panels,
                                  self.task_n if near else None, p.stops, plan.right_bytes > plan.target.l2_bytes)

    def set_rows(self, rows: int) -> None:
        """Set the position of a tile's row on M (`at_m`), and the condition for storing it (`gate_m`)."""
        begin = add(multiply(self.panel_m, rows or self.rows), self.taller_panels(rows))
        self.at_m = add(begin, current(self.row))
        end = index(self.m.size) if self.m.stop is None else self.m.stop
        ragged = self.m.stop is not None or self.m.size % self.rows != 0
        self.gate_m = less(self.at_m, end) if ragged and (not self.m.balanced or rows == self.least_rows) else None
        if self.gate_m is None:
            return
        if self.m.balanced or self.m.any_length and self.left_in_place:      # there may be fewer rows than in one tile
            self.at_m = operation(o.MIN, self.at_m, add(end, index(-1)))
        elif self.left_in_place:
            # the last panel starts early, so that no row past the end is read; overlapping rows are masked at the store
            nominal = multiply(self.panel_m, self.rows)
            self.at_m = add(nominal.minimum(add(end, index(-self.rows))), current(self.row))
            self.gate_m = less(nominal, add(self.at_m, index(1)))

    def set_columns(self) -> None:
        """Set the position of a tile's column on N (`at_n`), the conditions for storing it (`gate_n`) and for reading
        it (`read_gate`), and where the tile begins (`begin_n`)."""
        self.begin_n = multiply(self.panel_n, self.pitch)
        self.at_n = add(self.begin_n, self.column)
        if self.end_n is not None:
            self.gate_n = self.read_gate = self.n.inside(self.at_n) if self.is_rest else None
            return
        ragged = self.n.size % self.columns != 0
        self.gate_n = self.read_gate = below(self.at_n, self.n.size) if ragged else None
        if self.right_in_place and ragged and self.n.size >= self.columns:
            # as for rows: then every read is a whole vector, and no mask is computed at each step of K
            nominal = self.begin_n
            self.begin_n, self.read_gate = nominal.minimum(self.n.size - self.columns), None
            self.at_n = add(self.begin_n, self.column)
            self.gate_n = less(nominal, add(self.at_n, index(1)))

    # -- phases ----------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        most = moves.PHASE_TASKS if not self.product.stops else self.work     # loops with run-time bounds stay whole
        packed = [] if self.left_in_place or self.left_is_own else [self.left.pack(self.lanes, most)]
        if not self.n.pitch and self.choice.right == "packed":
            packed.append(self.right.pack(self.lanes, most))
        body = self.in_blocks_of_k() if self.choice.k_block else self.panels(RegisterTile.finished)
        if self.choice.right == "near":
            body = [*self.right.pack(self.lanes), *body]
        if self.left_is_own and not self.left_in_place:
            body = [*self.left.pack(self.lanes), *body]
        if self.plan.before:
            rest = [r for r in self.outer if r not in self.product.batch]
            body = [*self.plan.before, *nested([*rest, self.task_m, self.task_n], body)]
            return [*packed, moves.loops_as_tasks(self.product.batch, body, most)]
        return [*packed, self.as_tasks(self.outer, body, self.work >= cpu.LIMITS["contract"].task_work, most)]

    def sums(self) -> list[Statement]:
        """All steps of K for the whole tile."""
        if self.n.pitch or self.plan.reads_windows:
            return [*self.begin(), *self.over_image()]
        return [*self.begin(), *self.over_k(self.depth, self.product.k_stop, index(0), self.ahead)]

    def over_k(self, size: int, stop: UOp | None, first: UOp,
               ahead: Callable[[UOp], list[Statement]]) -> list[Statement]:
        """The steps of K from `first` on: for k in size / unroll: prefetches, `unroll` steps; then the rest."""
        together = self.choice.unroll
        k, left = counter("k", size // together), counter("kr", together - 1)
        at = add(first, multiply(k, together))
        body = [*ahead(at), *[self.step(add(at, index(i))) for i in range(together)]]
        if together == 1:
            return [For(k, LOOP, body, stop)]
        end = index(size) if stop is None else operation(o.MIN, stop, index(size))
        whole, rest = divide(end, together), modulo(end, together)
        found: list[Statement] = [For(k, LOOP, body, whole)]
        if rest is not index(0):
            found.append(For(left, LOOP, [self.step(add(first, add(multiply(whole, together), current(left))))], rest))
        return found

    def begin(self) -> list[Statement]:
        return [Assign(self.total, identity(o.ADD, self.total.dtype))]

    def step(self, k: UOp) -> Statement:
        """One step of K for the whole tile."""
        if self.left_in_place:
            a = self.left_at(self.at_m, k)
        else:
            panel, row = divide(self.at_m, self.rows), modulo(self.at_m, self.rows)
            a = load(self.left.memory, self.left.index_of(current(self.in_m) if self.left_is_own else panel, k, row))
        if self.right_in_place:
            b = edge_gate(self.right_at(self.at_n, k), self.read_gate)
        else:
            b = load(self.right.memory, self.right.index_of(self.right_panel, k, self.right_column))
        return Accumulate(self.total, o.ADD, self.product.added(a, b))

    def right_at(self, n: UOp, k: UOp) -> UOp:
        return substitute_index(self.product.right, {**self.n.indices(n), self.product.k[0]: k}, {})

    def left_at(self, m: UOp, k: UOp) -> UOp:
        return substitute_index(self.product.left, {**self.m.indices(m), self.product.k[0]: k}, {})

    def ahead(self, k: UOp) -> list[Statement]:
        """The prefetches for `unroll` steps of K. The first case that applies:

        case                                      what is prefetched                      distance
        right near, left in place along k         a line of one of the left's next rows   a panel of M
        right near, left packed                   a line of the left panel                STEPS_AHEAD steps of K
        right in place                            this panel's row of the right factor    cpu.ROWS_AHEAD steps of K
        """
        if not self.choice.ahead:
            return []
        near, together = self.choice.right == "near", self.choice.unroll
        if self.left_in_place and not self.left_along_m and near and self.block_m > 1:
            line, rows = cpu.CACHE_LINE // self.product.left.dtype.itemsize, self.row.arg.size
            spot = divide(modulo(k, line), together)
            first = add(add(multiply(add(self.panel_m, index(1)), rows), self.taller_panels(rows)), spot)
            reads = [self.left_at(add(first, index(row)), add(k, multiply(spot, -together)))
                     for row in range(0, min(rows, line), line // together)]
            return [Prefetch(read.src[0], read.src[1]) for read in reads]
        if near and not self.left_in_place:
            line, soon = cpu.CACHE_LINE // self.left.value.dtype.itemsize, add(k, index(STEPS_AHEAD))
            return [Prefetch(self.left.memory, self.left.index_of(self.panel_m, soon, index(spot)))
                    for spot in range(0, (together - 1) * self.rows + 1, line)]
        if self.right_in_place:
            step = max(self.lanes, cpu.CACHE_LINE // self.product.right.dtype.itemsize)
            reads = [self.right_at(add(self.begin_n, index(n)), add(k, index(cpu.ROWS_AHEAD + i)))
                     for i in range(together) for n in range(0, self.columns, step)]
            return [Prefetch(read.src[0], read.src[1]) for read in reads]
        return []

    def next_block(self, passes: UOp, inner: UOp) -> list[Statement]:
        """Prefetch the next block of K of a right factor that is read in place; during the last block, the first block
        of the next panels. Each panel of M prefetches another cache line of a row."""
        if not self.choice.ahead:
            return []
        after = add(passes, index(1))
        k = add(multiply(modulo(after, passes.arg.size), self.choice.k_block * self.choice.k_blocks), inner)
        first = add(self.begin_n, multiply(divide(after, passes.arg.size), self.columns * self.block_n))
        together = min(self.block_m, self.vectors) if self.end_m is None else 1
        lines = [add(modulo(current(self.in_m), together), index(line)) for line in range(0, self.vectors, together)]
        reads = [self.right_at(add(first, multiply(line, self.lanes)), add(k, index(i)))
                 for i in range(self.choice.unroll) for line in lines]
        return [Prefetch(read.src[0], read.src[1]) for read in reads]

    def over_image(self) -> list[Statement]:
        """The sums over windows of an image: every tap is a vector load from the image itself, at a constant offset."""
        a = load(self.left.memory, self.left.index_of(self.panel_m, flat_index(self.product.k), current(self.row)))
        if self.left_in_place:
            a = substitute_index(self.product.left, self.m.indices(self.at_m), {})
        b = edge_gate(substitute_index(self.product.right, self.n.indices(self.at_n), {}), self.read_gate)
        gate, b = masked(b)
        value = self.product.added(a, b)
        value = value if gate is None else gate.where(value, const(0, value.dtype))
        body: list[Statement] = [Accumulate(self.total, o.ADD, value)]
        count, unrolled = 1, {*self.product.k}
        if self.plan.reads_windows:             # masks are loop-invariant in loops that they do not depend on
            unrolled &= {*ranges_of(gate or (b.src[2] if len(b.src) == 3 else index(0))), self.product.k[-1]}
        for r in reversed(self.product.k):
            count *= r.arg.size if r in unrolled else 1
            if r in unrolled and count <= cpu.SHORT_LOOP and len(self.product.k) > 1:
                body = [s for i in range(r.arg.size) for s in moves.rebuild(body, {r: index(i)})]
            else:
                body = [For(r, LOOP, body)]
        return body

    def in_blocks_of_k(self) -> list[Statement]:
        """Long sums: no register adds more than `k_block` products before its tile is added to LOCAL memory.

        If K is so long that panels would not stay in a cache, all tiles of the task do `k_blocks` blocks of K before
        any does the next ones; meanwhile their sums are in LOCAL memory.
        """
        size, at_once = self.choice.k_block, self.choice.k_blocks
        count = -(-self.depth // size)
        whole = at_once >= count
        passes, block = counter("kp", -(-count // at_once)), counter("kb", min(at_once, count))
        number = add(multiply(current(passes), at_once), current(block))
        first = multiply(number, size)
        tiles = 1 if whole else self.block_m * self.block_n
        memory = local("tiles", self.total.dtype, tiles * self.rows * self.columns)
        tile = index(0) if whole else add(multiply(current(self.in_n), self.block_m), current(self.in_m))
        end = self.product.k_stop or (index(self.depth) if self.depth % size else None)
        stop = None if end is None else add(end, multiply(number, -size))
        last = None if count % at_once == 0 or whole else add(index(count), multiply(passes, -at_once))
        rounds = None
        if self.product.k_stop is not None:
            used = divide_up(self.product.k_stop, size)                 # the number of blocks that are not empty
            last, rounds = add(used, multiply(current(passes), -at_once)), divide_up(used, at_once)

        def clear(t: RegisterTile) -> list[Statement]:
            return t.tile([Store(memory, t.in_tile(tile), const(0, t.total.dtype))])

        def part(t: RegisterTile) -> list[Statement]:
            def next_rows(k: UOp) -> list[Statement]:
                return t.next_block(passes, add(k, multiply(first, -1)))
            ahead = t.ahead if whole or not t.right_in_place else next_rows
            body: list[Statement] = [*t.begin(), *t.over_k(size, stop, first, ahead),
                                     Store(memory, t.in_tile(tile), t.total, o.ADD)]
            return t.tile([For(block, LOOP, body, last)] if block.arg.size > 1 else body)

        def finish(t: RegisterTile) -> list[Statement]:
            return t.tile(t.epilogue(load(memory, t.in_tile(tile))), LOOP if t.long_epilogue else TILE)
        if whole:
            return self.panels(lambda t: [*clear(t), *part(t), *finish(t)])
        return [*self.panels(clear), For(passes, LOOP, self.panels(part), rounds), *self.panels(finish)]

    def panels(self, body: Callable[[RegisterTile], list[Statement]]) -> list[Statement]:
        """Do the body for all tiles of a task. Panels of N are the outer loop, so that each is reused by every panel of
        M; panels of M are outside if several panels of N, packed by the task, stay in a cache, or if there are few
        steps of K and rows longer than a page, so that rows are written in order. Panels of M of balanced height
        (`FlatAxis.balanced`) are one loop per height. Two or more panels have at least half a tile's rows each; a
        single one may have fewer, and then rereads its last row instead of rows past the end."""
        if self.end_n is not None:
            return self.over_m(self.over_widths(body))
        if not self.m.balanced or self.end_m is None:
            row = self.block_n * self.columns * self.product.right.dtype.itemsize
            few = self.depth <= cpu.FEW_STEPS and row >= cpu.PAGE and 2 * self.depth * row <= self.plan.target.l2_bytes
            by_rows = self.block_n > 1 and (self.choice.right == "near" or few and self.right_in_place)
            return self.over_m(self.over_n(body(self))) if by_rows else self.over_n(self.over_m(body(self)))
        found, each = list[Statement](), counter("mh", self.block_m)
        first = multiply(current(self.task_m), self.block_m)
        for rows in range(self.rows, self.least_rows - 1, -1):
            begin = operation(o.MAX, self.taller_panels(rows), first)
            end = operation(o.MIN, self.end_m, add(first, index(self.block_m)))
            end = end if rows == self.least_rows else operation(o.MIN, self.rows_left_over(rows - 1), end)
            at = add(add(begin, multiply(first, -1)), each)
            tile = moves.rebuild(body(RegisterTile(self.plan, self.choice, rows)), {self.in_m: at})
            found.append(For(each, LOOP, tile, add(end, multiply(begin, -1))))
        return self.over_n(found)

    def over_widths(self, body: Callable[[RegisterTile], list[Statement]]) -> list[Statement]:
        """Do the body for the whole panels of a run-time number of columns, then for one panel of the other vectors."""
        assert self.n.stop is not None
        first, most = multiply(current(self.task_n), self.block_n * self.pitch), self.block_n * self.pitch
        columns = operation(o.MIN, add(self.n.stop, multiply(first, -1)), index(most))
        whole, left_over = divide(columns, self.pitch), divide_up(modulo(columns, self.pitch), self.lanes)
        found: list[Statement] = [For(self.in_n, LOOP, body(self), whole)]
        for vectors in range(1, self.vectors + 1):
            panel = moves.rebuild(body(RegisterTile(self.plan, self.choice, vectors=vectors)), {self.in_n: whole})
            as_many, more = (divide(left_over, n).minimum(1) for n in (vectors, vectors + 1))
            found.append(For(counter("nr", 1), LOOP, panel, add(as_many, multiply(more, -1))))
        return found

    def rows_left_over(self, rows: int) -> UOp:
        """How many rows of M remain if each panel has `rows`; negative if there are fewer rows."""
        assert self.m.stop is not None and self.end_m is not None
        return add(self.m.stop, multiply(self.end_m, -rows))

    def taller_panels(self, rows: int) -> UOp:
        """How many panels have `rows + 1` rows, if panels are of balanced height: these come first."""
        return operation(o.MAX, self.rows_left_over(rows), index(0)) if rows and self.m.balanced else index(0)

    def tile(self, body: list[Statement], rows: str = TILE) -> list[Statement]:
        """Do the body for all elements of a tile; its rows are unrolled (`rows`=TILE) or a loop (LOOP)."""
        return nested([self.row], nested([self.over], nested([self.lane], body, LANE), TILE), rows)

    def in_tile(self, tile: UOp) -> UOp:
        """The index of an element in LOCAL memory that holds whole tiles."""
        return add(multiply(add(multiply(tile, self.rows), current(self.row)), self.pitch), self.column)

    @cached_property
    def long_epilogue(self) -> bool:
        """Whether the epilogue computes so much that it is not unrolled over the rows of a tile."""
        stored = [s.value for s in self.product.epilogue if isinstance(s, Store)]
        return self.rows > 1 and sum(n.op in o.ELEMENTWISE for n in toposort(stored)) >= cpu.LONG_EPILOGUE

    def finished(self) -> list[Statement]:
        """Compute a tile: the sums, then the epilogue. A long epilogue reads the sums from LOCAL memory, row by row."""
        if not self.long_epilogue:
            return self.tile([*self.sums(), *self.epilogue(self.total)])
        memory = local("tile", self.total.dtype, self.rows * self.pitch)
        at = self.in_tile(index(0))
        stored = self.tile([*self.sums(), Store(memory, at, self.total)])
        return [*stored, *self.tile(self.epilogue(load(memory, at)), LOOP)]

    def epilogue(self, result: UOp) -> list[Statement]:
        """The stores of a finished tile, masked off past the edges."""
        gate = both(self.gate_m, both(self.gate_n, self.n.gate(self.at_n)))
        return self.product.stores(result, {**self.m.indices(self.at_m), **self.n.indices(self.at_n)}, gate)
