"""A contraction as register tiles of vectors. In: a product and a processor. Out: the cheapest `Tiling`; its phases.

    phase 1   pack the left factor into panels  [panel of M][K][rows of the tile]     (any view, mask, cast or
    phase 2   pack the right factor likewise    [panel of N][K][columns of the tile]   prologue is absorbed here)
    phase 3   TASK blocks of M and N: for blocks of K: for panels of N: for panels of M: a register tile; the epilogue

The first two are left out where a factor is read in place, and the second where each task packs the panels it uses
(right=near), as in large products: tasks then share only the packed left factor.

A register tile of `rows` x `vectors` accumulators reads both panels from end to end, so every line and page that is
touched is used whole. Edges are packed as zeros (or clamped rows) and dropped at the store.

Counted, not measured: every register tile that fits, with its factors packed or read in place, is priced by what it
multiplies, loads and packs (targets/cpu_costs.py). `BEAM` times the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from glassgrad.compiler.graph import ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, both, divide, index, less, modulo, multiply, operation,
                                                    substitute_index)
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, Prefetch, Statement, Store,
                                            counter, load, local, ranges_of, register)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import flat_index, nested, one
from glassgrad.compiler.optimize.product.packing import PackedFactor
from glassgrad.compiler.optimize.product.recognize import (FlatProduct, Product, count, few_rows, fit_sets, flat_axis,
                                                           image_axis, stride_along, swells)
from glassgrad.compiler.optimize.product.tiling_parameters import PanelBlocks, Tiling, blocks, square
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


@dataclass
class RegisterPlan(FlatProduct):
    """A product on flat axes, and the register tiles it can be cut into."""

    @staticmethod
    def of(p: Product, target: Target) -> RegisterPlan | None:
        """The product with lanes along N. refuses: what is short, small, or packed into many times its size; few rows,
        which are read along k"""
        limits = cpu.LIMITS["contract"]
        m, m_out = flat_axis(p.m, p.epilogue, "m")
        n, n_out = (None if p.stops else image_axis(p)) or flat_axis(p.n, p.epilogue, "n")
        if p.m[0] in p.stops:
            usual = max(min(m.size, cpu.USUAL_ROWS[-1]), m.size // 4)
            m, p = replace(m.ending(p.stops), size=usual, most=m.size), replace(p, stops={})
        plan = RegisterPlan(p, target, m, n, [*p.batch, *m_out, *n_out])
        if plan.depth < limits.least_k or plan.work < limits.least_work or min(m.size, n.size) < 2 or few_rows(p):
            return None
        large = plan.around * m.size * n.size * plan.itemsize > target.l2_bytes
        if plan.depth < cpu.SHORT_K and large and plan.why_right_not_along_n() is None:
            return None                                  # to write the result takes longest: plain loops go row by row
        if not n.pitch and (swells(p.right, p.n + p.k) or swells(p.left, p.m + p.k)):
            return None
        return plan if p.k_stop is None or plan.tiles() else None

    @staticmethod
    def cheapest(product: Product, target: Target) -> RegisterPlan | None:
        """The product with lanes along what lies side by side in the result. Where that is narrow, and the other factor
        could be read in place: with lanes along the other axis, if it is cheaper though each result is stored alone."""
        plan = RegisterPlan.of(product.with_lanes_right(), target)
        if plan is None or product.stops or plan.n.size >= cpu.NARROW_VECTORS * plan.lanes:
            return plan
        other = RegisterPlan.of(plan.product.swapped(), target)
        if other is None or other.why_right_not_along_n() is not None:
            return plan
        return min(plan, other, key=lambda either: either.cycles(min(either.tiles(), key=either.cycles)))

    @cached_property
    def itemsize(self) -> int:
        return self.product.total.dtype.itemsize

    @cached_property
    def lanes(self) -> int:
        return self.target.lanes(self.itemsize)

    def panels(self, rows: int, vectors: int, lanes: int = 0) -> tuple[int, int]:
        """How many panels of M and N such tiles make."""
        return -(-self.m.size // rows), -(-self.n.size // (vectors * (lanes or self.lanes)))

    # -- the choice ------------------------------------------------------------------------------------------
    def own(self) -> Tiling:
        """The recipe's own choice: the tile that costs the fewest cycles."""
        return self.with_blocks(min(self.tiles(), key=self.cycles))

    def others(self) -> list[Tiling]:
        """The best tile of every other number of vectors, and of other places to read from."""
        best: dict[tuple[int, str, bool], Tiling] = {}
        for tile in sorted(self.tiles(), key=self.cycles):
            best.setdefault((tile.vectors, tile.left, tile.right == "in_place"), tile)
        return [self.with_blocks(tile) for tile in best.values()]

    def tiles(self) -> list[Tiling]:
        """Every tile that the registers hold, with where its factors are read; its blocks are not decided yet."""
        right = ["in_place"] if self.why_right_not_along_n() is None else []
        right = right if self.right_streams else [*right, "packed"]
        found = []
        for vectors in (2, 1, 3, 4, 5, 6, 7):
            if vectors > max(1, -(-self.n.size // self.lanes)):
                continue
            few = self.n.size <= cpu.FEW_PANELS * vectors * self.lanes
            for rows in range(min(self.m.size, (self.target.vector_registers - vectors - 2) // vectors), 0, -1):
                if self.m.even and rows * (rows + 1) // 2 * vectors > cpu.MOST_HEIGHTS:
                    continue
                apart = self.must_pack_together(rows, vectors) is None
                left = self.left_must_be_packed(rows) is None and (
                    self.left_along_m or self.lines_apart(rows, 8) and (few or apart or self.right_streams))
                found += [Tiling("contract", rows, vectors, self.lanes, left="in_place" if left else "packed",
                                 right="near" if apart and where == "packed" else where) for where in right]
        if self.product.k_stop is None and not self.right_streams:
            return found
        in_place = [t for t in found if t.left == t.right == "in_place"]
        return in_place or (found if self.right_streams else [])

    def cycles(self, tile: Tiling) -> float:
        """About how long a tile takes, for each step of K; of several sizes of M, for each row."""
        if not self.m.even:
            return self.cycles_of(tile, self.m.size)
        sizes = [(size, -(-size // tile.rows)) for size in cpu.USUAL_ROWS]
        return sum([self.cycles_of(replace(tile, rows=-(-size // panels)), panels * -(-size // panels)) / size
                    for size, panels in sizes])

    def cycles_of(self, tile: Tiling, size: int) -> float:
        """The same, where M has this size."""
        rows, vectors = tile.rows, tile.vectors
        in_place = tile.right == "in_place"
        return cpu.contract_cycles(cpu.TileCounts(
            rows, vectors, -(-size // rows), self.panels(rows, vectors)[1], size, self.n.size, self.depth,
            left_packed=tile.left == "packed", left_far=2 * self.left_bytes > self.target.l2_bytes,
            left_apart=tile.left == "in_place" and not self.left_along_m, right=tile.right,
            right_far=self.right_bytes > self.target.l2_bytes,
            right_stays=in_place and self.right_stays_near(vectors),
            right_flows=in_place and (self.right_flows or self.right_streams
                                      or self.right_bytes <= self.target.l1_bytes),
            right_streams=self.right_streams,
            right_crosses=in_place and self.right_pitch % self.target.vector_bytes > 0,
            overlaps=self.n.size % (vectors * self.lanes) > 0,
            panel_in_l1=4 * self.panel_bytes(vectors) <= 3 * self.target.l1_bytes,
            vector_bytes=self.target.vector_bytes, accesses=self.accesses, apart=self.apart, repeats=self.repeats))

    def with_blocks(self, tile: Tiling) -> Tiling:
        """The tile with the recipe's blocks of panels and of K."""
        limits = cpu.LIMITS["contract"]
        reading = self.right_bytes // cpu.TASK_BYTES // max(1, self.around)      # of few rows, what takes the time
        wanted = max(self.tasks_wanted(limits), min(reading, limits.most_tasks, self.target.most_tasks))
        k_block = self.k_block
        at_once = k_block if self.right_streams else cpu.NEAR_K
        k_blocks = min(at_once // k_block, -(-self.depth // k_block)) if k_block else 1
        block_m, block_n = self.blocks(tile, wanted)
        in_l1 = 2 * self.right_bytes <= self.target.l1_bytes
        soon = self.m.size > cpu.MANY_PANELS * tile.rows or self.right_bytes <= cpu.FLOW_ROWS * cpu.FLOW_PITCH
        ahead = tile.right != "in_place" or not (in_l1 or soon and self.right_flows)      # else it comes by itself
        return replace(tile, block_m=block_m, block_n=block_n, ahead=ahead, k_blocks=k_blocks, k_block=k_block,
                       pitch=self.n.pitch)

    @cached_property
    def k_block(self) -> int:
        """How many products a register adds up before its sum goes to memory; 0: all of them."""
        longest = self.stream_k if self.right_streams else cpu.LIMITS["contract"].long_k
        return -(-self.depth // -(-self.depth // longest)) if self.depth > longest and not self.n.pitch else 0

    def blocks(self, tile: Tiling, wanted: int) -> tuple[int, int]:
        """Panels of M and N in one task.

        Where each task packs its panels of the right factor, it has all rows, or enough to repay that, and no more
        tasks pack the same panel than the workers need; its panels stay in half the second-level cache. Where the right
        factor streams, a block of K of all panels of a task is no larger than the first-level cache; where it flows,
        a task has as many rows as leave enough tasks. Where it is read in place and stays near, a task takes whole rows
        of the result, all tasks as many: what it writes is one piece of memory, likely to be read by rows again. Else
        blocks are as square as can be while the task's rows of the left factor (and its sums, where K is cut into
        blocks) stay in half the second-level cache."""
        rows, columns = tile.rows, tile.vectors * self.lanes
        panels_m, panels_n = self.panels(rows, tile.vectors)
        cache = self.target.l2_bytes // 2
        stays = tile.right == "in_place" and panels_m >= wanted and self.right_stays_near(tile.vectors)
        flows = tile.right == "in_place" and self.right_flows
        enough = min(wanted, cpu.WORKER_TASKS * self.target.workers) if self.target.workers > 1 else 1
        if tile.right == "near":
            fit = max(1, min(cache // self.panel_bytes(tile.vectors), panels_n // wanted))
            least = -(-cpu.NEAR_ROWS // rows)
            return blocks(panels_m, panels_n, enough, lambda m, n: 1 / m,
                          lambda m: fit if m == panels_m or m >= least else 0)
        if self.right_streams:
            fit = max(1, self.target.l1_bytes // (self.k_block * columns * self.itemsize))
            enough = min(enough, max(panels_n, 2 * self.target.workers))      # fewer rows in a task read it again
            return blocks(panels_m, panels_n, enough, lambda m, n: 1 / m, lambda m: fit)
        if flows and not stays:
            return blocks(panels_m, panels_n, wanted, lambda m, n: 1 / m)
        if stays:
            block_m, _ = blocks(panels_m, 1, wanted, lambda m, n: 1 / m, lambda m: int(panels_m % m == 0))
            return block_m, panels_n
        panel = rows * min(self.depth, cpu.NEAR_K) * self.itemsize

        def fits(m: int) -> int:
            if m > 1 and m * panel > cache:
                return 0
            return max(1, cache // (m * rows * columns * self.itemsize)) if self.depth > cpu.NEAR_K else panels_n
        return blocks(panels_m, panels_n, wanted, square(rows, columns), fits)

    # -- sizes -----------------------------------------------------------------------------------------------
    @cached_property
    def left_bytes(self) -> int:
        return self.m.size * self.depth * self.product.left.dtype.itemsize

    @cached_property
    def right_bytes(self) -> int:
        copies = count(r for r in self.outer if r in ranges_of(self.product.right))
        return copies * self.depth * self.n.size * self.product.right.dtype.itemsize

    def panel_bytes(self, vectors: int) -> int:
        return vectors * self.lanes * self.depth * self.product.right.dtype.itemsize

    @cached_property
    def accesses(self) -> int:
        """How often the epilogue reads or writes memory, for each element."""
        stores = [s for s in self.product.epilogue if isinstance(s, Store)]
        return len(stores) + sum(n.op is o.LOAD for n in toposort([s.value for s in stores]))

    @cached_property
    def apart(self) -> bool:
        """Whether neighbours along N lie apart in the result, so that each is stored alone."""
        store = self.product.epilogue[-1]
        return isinstance(store, Store) and stride_along(store.index, self.n.parts[-1]) != 1

    @cached_property
    def repeats(self) -> int:
        """About how many blocks of M have the same right factor: of loops that end at a value, half of the most."""
        blocks = [r for r in self.outer if r in self.product.stops and r not in ranges_of(self.product.right)]
        return max(1, count(blocks) // 2)

    # -- where the factors are read --------------------------------------------------------------------------
    def right_stays_near(self, vectors: int) -> bool:
        """Whether a panel of the right factor, read in place, stays in the first-level cache for all of M."""
        right = self.product.right
        if self.why_right_not_along_n() is not None or 2 * self.panel_bytes(vectors) > self.target.l1_bytes:
            return False
        step = stride_along(right.src[1], self.product.k[0]) or 0
        return fit_sets(self.depth, step * right.dtype.itemsize, 8)

    @cached_property
    def right_pitch(self) -> int:
        """Bytes from row to row of a right factor that can be read in place."""
        right = self.product.right
        return abs(stride_along(right.src[1], self.product.k[0]) or 0) * right.dtype.itemsize

    @cached_property
    def right_flows(self) -> bool:
        """Whether the right factor, read in place, comes as fast as if it were packed: both factors lie in the
        second-level cache, no vector crosses a line, and rows are short and few; more so where caches are large."""
        pitch = self.right_pitch
        in_cache = 2 * max(self.left_bytes, self.right_bytes) <= self.target.l2_bytes
        longest = cpu.FLOW_PITCH * self.target.l1_bytes * self.target.l2_bytes // cpu.FLOW_CACHES
        return in_cache and pitch <= longest and self.right_bytes <= cpu.FLOW_ROWS * longest and \
            pitch % self.target.vector_bytes == 0

    @cached_property
    def stream_k(self) -> int:
        """How many rows of the right factor a block has where it streams: lines that lie pages apart share sets, so
        one line of each row of two blocks takes a quarter of those sets of the second-level cache."""
        return self.target.l2_bytes // (8 * cpu.PAGE)

    @cached_property
    def right_streams(self) -> bool:
        """Whether the right factor is read once, where it lies, in short blocks of K: while all rows are multiplied
        with one, the next one comes from far away. The sums go to memory after each block, which costs less than
        packing where rows are few. With the rows of one tile nothing is read twice, but lines that follow one another
        come faster than those of a narrow panel."""
        if self.why_right_not_along_n() is not None or self.product.stops or self.product.k_stop is not None:
            return False
        far = 2 * self.right_bytes > self.target.l2_bytes and self.depth > self.stream_k
        return far and self.m.size * cpu.SUM_CYCLES <= cpu.PACK_CYCLES * self.lanes * self.stream_k

    def must_pack_together(self, rows: int, vectors: int) -> str | None:
        """Why tasks should share the packed right factor; None where each can pack its own part of it. That saves a
        phase, and reading what another core has just written. The left factor, which every task reads, is fetched
        ahead from wherever it is."""
        if self.n.pitch or self.product.stops or any(r not in ranges_of(self.product.right) for r in self.outer):
            return "the right factor is packed for several tasks"
        tasks = self.panels(rows, vectors)[1] * max(1, self.m.size // cpu.NEAR_ROWS) * self.around
        if tasks < min(cpu.LEAST_TASKS, max(2, self.work / cpu.NEAR_WORK)):
            return "there are too few panels and rows for a task each"
        if self.panel_bytes(vectors) > self.target.l2_bytes // 2:
            return "a panel of the right factor does not stay in the second-level cache"
        return None

    def left_must_be_packed(self, rows: int) -> str | None:
        """Why the left factor must be packed; None where it can be read in place, along k or, where K is short, along
        M."""
        if self.product.left.dtype is not self.product.total.dtype or self.n.pitch:
            return "the left factor is not read as it is"
        return None if self.left_along_m else self.why_left_not_along_k(rows)

    # -- other choices ---------------------------------------------------------------------------------------
    def refuses(self, c: Tiling) -> str | None:
        """Why this product cannot be cut so."""
        if c.lanes > self.lanes or c.lanes & (c.lanes - 1):
            return f"a vector has 1, 2, 4 .. {self.lanes} lanes"
        if c.rows > self.m.size:
            return f"there are {self.m.size} rows"
        if c.rows * c.vectors > 2 * self.target.vector_registers:
            return f"the tile takes {c.rows * c.vectors} of {self.target.vector_registers} registers"
        panels_m, panels_n = self.panels(c.rows, c.vectors, c.lanes)
        if c.block_m > panels_m or c.block_n > panels_n:
            return "a block is larger than the product"
        if c.k_blocks > max(1, -(-self.depth // max(c.k_block, 1))):
            return "there are fewer blocks of K"
        resting = c.block_m * c.rows * c.block_n * c.vectors * c.lanes
        if 0 < c.k_block * c.k_blocks < self.depth and resting > cpu.MOST_RESTING:
            return "the sums of a block do not fit a cache"
        if c.left not in ("packed", "in_place") or c.right not in ("packed", "in_place", "near"):
            return "a CPU reads factors in place or from panels"
        if self.product.k_stop is not None and not c.left == c.right == "in_place":
            return "how much there is to pack is not known"
        why = self.left_must_be_packed(c.rows) if c.left == "in_place" else None
        if c.right == "near":
            why = why or self.must_pack_together(c.rows, c.vectors)
        return why or (self.why_right_not_along_n() if c.right == "in_place" else None)


# -- the loops -------------------------------------------------------------------------------------------------------
ROWS_AHEAD = 16          # of K: how early the right factor is fetched where it is read in place
STEPS_AHEAD = 48         # of K: how early the left factor is fetched where a task goes through all of it, packed
SHORT_LOOP = 9           # taps of a window that are written out


class RegisterTile(PanelBlocks):
    """A product cut as chosen: a register tile of rows x (vectors x lanes), panels of tiles, blocks of panels."""

    def __init__(self, plan: RegisterPlan, c: Tiling, rows: int = 0):
        usual, panels_n = plan.panels(c.rows, c.vectors, c.lanes)
        panels_m = max(usual, -(-plan.m.most // c.rows))
        rests = 0 < c.k_block * c.k_blocks < plan.depth and plan.m.most > cpu.EVEN_ROWS      # sums of a block do
        block_m = panels_m if c.block_m >= usual and not rests else c.block_m
        super().__init__(panels_m, panels_n, block_m, c.block_n, plan.m.pieces(c.rows))
        self.plan, self.least_rows = plan, -(-c.rows // 2)         # of tiles that are not cut at the end of M
        self.product, self.m, self.n, self.outer = plan.product, plan.m, plan.n, plan.outer
        self.depth, self.work, self.left_along_m, self.choice = plan.depth, plan.work, plan.left_along_m, c
        self.rows, self.vectors, self.lanes, self.columns = c.rows, c.vectors, c.lanes, c.vectors * c.lanes
        self.left_in_place, self.right_in_place = c.left == "in_place", c.right == "in_place"
        self.row, self.over, self.lane = counter("mi", rows or c.rows), counter("ni", c.vectors), counter("l", c.lanes)
        self.column = add(multiply(one(self.over), self.lanes), one(self.lane))
        self.at_m = add(add(multiply(self.panel_m, rows or c.rows), self.higher(rows)), one(self.row))
        self.at_n, end_m = add(multiply(self.panel_n, self.columns), self.column), self.m.stop or index(self.m.size)
        ragged_m, ragged_n = self.m.stop is not None or self.m.size % self.rows, self.n.size % self.columns
        self.gate_m = less(self.at_m, end_m) if ragged_m and (not self.m.even or rows == self.least_rows) else None
        if self.m.even and self.gate_m is not None:
            self.at_m = operation(o.MIN, self.at_m, add(end_m, index(-1)))
        elif self.left_in_place and self.gate_m is not None:
            # the last panel starts early, so that no row is read past the end; overlapping rows are masked at the store
            nominal = multiply(self.panel_m, self.rows)
            self.at_m = add(nominal.minimum(add(end_m, index(-self.rows))), one(self.row))
            self.gate_m = less(nominal, add(self.at_m, index(1)))
        self.gate_n = moves.below(self.at_n, self.n.size) if ragged_n else None
        self.begin_n, self.read_gate = multiply(self.panel_n, self.columns), self.gate_n
        if self.right_in_place and ragged_n and self.n.size >= self.columns:
            # likewise: every read is a whole vector then, and no mask is made anew at each step of K
            nominal = self.begin_n
            self.begin_n, self.read_gate = nominal.minimum(self.n.size - self.columns), None
            self.at_n = add(self.begin_n, self.column)
            self.gate_n = less(nominal, add(self.at_n, index(1)))
        wide = tuple(r for r in (self.row, self.over, self.lane) if r.arg.size > 1)
        p, near = self.product, c.right == "near"
        self.total = register(p.total.arg, p.total.dtype, wide)
        self.left = PackedFactor("left", p.left, self.m, self.outer, p.k, self.rows, 1, self.panels_m)
        self.right = PackedFactor("right", p.right, self.n, self.outer, p.k, self.columns, self.vectors,
                                  self.block_n if near else self.panels_n, self.task_n if near else None)
        self.right_panel = one(self.in_n) if near else self.panel_n

    # -- phases ----------------------------------------------------------------------------------------------
    def phases(self) -> list[list[Statement]]:
        most = moves.PHASE_TASKS if not self.product.stops else self.work     # a loop with its own end stays one loop
        packed = [] if self.left_in_place else [self.left.pack(self.lanes, most)]
        if not self.n.pitch and self.choice.right == "packed":
            packed.append(self.right.pack(self.lanes, most))
        body = self.in_blocks_of_k() if self.choice.k_block else self.panels(RegisterTile.finished)
        if self.choice.right == "near":
            body = [*self.right.pack(self.lanes), *body]
        return [*packed, self.as_tasks(self.outer, body, self.work >= cpu.LIMITS["contract"].task_work, most)]

    def sums(self) -> list[Statement]:
        """All steps of K for the whole tile."""
        if self.n.pitch:
            return [*self.begin(), *self.over_image()]
        k = counter("k", self.depth)
        return [*self.begin(), For(k, LOOP, [*self.ahead(k), self.step(k)], self.product.k_stop)]

    def begin(self) -> list[Statement]:
        return [Assign(self.total, identity(o.ADD, self.total.dtype))]

    def step(self, k: UOp) -> Statement:
        """One step of K for the whole tile."""
        if self.left_in_place:
            a = self.left_at(self.at_m, k)
        else:
            a = load(self.left.memory, self.left.place(divide(self.at_m, self.rows), k, modulo(self.at_m, self.rows)))
        if self.right_in_place:
            b = moves.edge_gate(self.right_at(self.at_n, k), self.read_gate)
        else:
            b = load(self.right.memory, self.right.place(self.right_panel, k, self.column))
        return Accumulate(self.total, o.ADD, a * b)

    def right_at(self, n: UOp, k: UOp) -> UOp:
        return substitute_index(self.product.right, {**self.n.apart(n), self.product.k[0]: k}, {})

    def left_at(self, m: UOp, k: UOp) -> UOp:
        return substitute_index(self.product.left, {**self.m.apart(m), self.product.k[0]: k}, {})

    def ahead(self, k: UOp) -> list[Statement]:
        """What is fetched early, at every step of K. The first case that applies:

        case                                      what is prefetched                      how early
        right near, left in place along k         a line of one of the left's next rows   a panel of M
        right near, left packed                   a line of the left panel                STEPS_AHEAD steps of K
        right in place                            this panel's row of the right factor    ROWS_AHEAD steps of K
        """
        if not self.choice.ahead:
            return []
        near = self.choice.right == "near"
        if self.left_in_place and not self.left_along_m and near and self.block_m > 1:
            spot = modulo(k, cpu.CACHE_LINE // self.product.left.dtype.itemsize)
            rows = self.row.arg.size
            soon = self.left_at(add(add(multiply(add(self.panel_m, index(1)), rows), self.higher(rows)), spot),
                                add(k, multiply(spot, -1)))
            return [Prefetch(soon.src[0], soon.src[1])]
        if near and not self.left_in_place:
            return [Prefetch(self.left.memory, self.left.place(self.panel_m, add(k, index(STEPS_AHEAD)), index(0)))]
        if self.right_in_place:
            step = max(self.lanes, cpu.CACHE_LINE // self.product.right.dtype.itemsize)
            reads = [self.right_at(add(self.begin_n, index(n)), add(k, index(ROWS_AHEAD)))
                     for n in range(0, self.columns, step)]
            return [Prefetch(read.src[0], read.src[1]) for read in reads]
        return []

    def next_block(self, passes: UOp, inner: UOp) -> list[Statement]:
        """Lines of the next block of K of a right factor that is read in place; after the last one, of the first block
        of the panels that come next. Each panel of M fetches another line of a row."""
        if not self.choice.ahead:
            return []
        after = add(passes, index(1))
        k = add(multiply(modulo(after, passes.arg.size), inner.arg.size * self.choice.k_blocks), inner)
        first = add(self.begin_n, multiply(divide(after, passes.arg.size), self.columns * self.block_n))
        together = min(self.block_m, self.vectors) if self.end_m is None else 1
        lines = [add(modulo(one(self.in_m), together), index(line)) for line in range(0, self.vectors, together)]
        reads = [self.right_at(add(first, multiply(line, self.lanes)), k) for line in lines]
        return [Prefetch(read.src[0], read.src[1]) for read in reads]

    def over_image(self) -> list[Statement]:
        """Windows of an image: every tap is a vector read from the image itself, at a constant distance."""
        a = load(self.left.memory, self.left.place(self.panel_m, flat_index(self.product.k), one(self.row)))
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

        Where K is so long that panels would not stay in a cache, all tiles of the task add up some blocks of K before
        the next ones, and their sums stay in LOCAL memory in between.
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
        tile = index(0) if whole else add(multiply(one(self.in_n), self.block_m), one(self.in_m))
        end = self.product.k_stop or (index(self.depth) if self.depth % size else None)
        stop = None if end is None else add(end, multiply(number, -size))
        last = None if count % at_once == 0 or whole else add(index(count), multiply(passes, -at_once))

        def clear(t: RegisterTile) -> list[Statement]:
            return t.tile([Store(memory, t.in_tile(tile), const(0, t.total.dtype))])

        def part(t: RegisterTile) -> list[Statement]:
            ahead = t.ahead(k) if whole or not t.right_in_place else t.next_block(passes, inner)
            body: list[Statement] = [*t.begin(), For(inner, LOOP, [*ahead, t.step(k)], stop),
                                     Store(memory, t.in_tile(tile), t.total, o.ADD)]
            return t.tile([For(block, LOOP, body, last)] if block.arg.size > 1 else body)

        def finish(t: RegisterTile) -> list[Statement]:
            return t.tile(t.epilogue(load(memory, t.in_tile(tile))), LOOP if t.long_epilogue else TILE)
        if whole:
            return self.panels(lambda t: [*clear(t), *part(t), *finish(t)])
        return [*self.panels(clear), For(passes, LOOP, self.panels(part)), *self.panels(finish)]

    def panels(self, body: Callable[[RegisterTile], list[Statement]]) -> list[Statement]:
        """For all tiles of a task: panels of N outside, so that one of them serves every panel of M. Where these are as
        high as each other, for each number of rows: for the panels that have as many. Two panels have at least half the
        rows of a tile each; one alone may have fewer, which are read again instead of those past the end."""
        if not self.m.even or self.end_m is None:
            return self.over_n(self.over_m(body(self)))
        found, each = list[Statement](), counter("mh", self.block_m)
        first = multiply(one(self.task_m), self.block_m)
        for rows in range(self.rows, self.least_rows - 1, -1):
            begin = operation(o.MAX, self.higher(rows), first)
            end = operation(o.MIN, self.end_m, add(first, index(self.block_m)))
            end = end if rows == self.least_rows else operation(o.MIN, self.left_by(rows - 1), end)
            at = add(add(begin, multiply(first, -1)), each)
            tile = moves.rebuild(body(RegisterTile(self.plan, self.choice, rows)), {self.in_m: at})
            found.append(For(each, LOOP, tile, add(end, multiply(begin, -1))))
        return self.over_n(found)

    def left_by(self, rows: int) -> UOp:
        """How many rows of M are left where each panel has so many."""
        assert self.m.stop is not None and self.end_m is not None
        return add(self.m.stop, multiply(self.end_m, -rows))

    def higher(self, rows: int) -> UOp:
        """How many panels have one row more than so many, where panels are as high as each other; these come first."""
        return operation(o.MAX, self.left_by(rows), index(0)) if rows and self.m.even else index(0)

    def tile(self, body: list[Statement], rows: str = TILE) -> list[Statement]:
        """For all elements of a tile; its rows are written out, or a loop."""
        return nested([self.row], nested([self.over], nested([self.lane], body, LANE), TILE), rows)

    def in_tile(self, tile: UOp) -> UOp:
        """Where an element lies in LOCAL memory that holds whole tiles."""
        return add(multiply(add(multiply(tile, self.rows), one(self.row)), self.columns), self.column)

    @cached_property
    def long_epilogue(self) -> bool:
        """Whether the epilogue computes so much that it is not written out for each row of a tile."""
        stored = [s.value for s in self.product.epilogue if isinstance(s, Store)]
        return self.rows > 1 and sum(n.op in o.ELEMENTWISE for n in toposort(stored)) >= cpu.LONG_EPILOGUE

    def finished(self) -> list[Statement]:
        """A tile: the sums, then the epilogue. A long one takes them from LOCAL memory, row by row."""
        if not self.long_epilogue:
            return self.tile([*self.sums(), *self.epilogue(self.total)])
        memory = local("tile", self.total.dtype, self.rows * self.columns)
        at = self.in_tile(index(0))
        stored = self.tile([*self.sums(), Store(memory, at, self.total)])
        return [*stored, *self.tile(self.epilogue(load(memory, at)), LOOP)]

    def epilogue(self, result: UOp) -> list[Statement]:
        """What is stored of a finished tile; nothing past the edges."""
        gate = both(self.gate_m, both(self.gate_n, self.n.gate(self.at_n)))
        return self.product.stores(result, {**self.m.apart(self.at_m), **self.n.apart(self.at_n)}, gate)
