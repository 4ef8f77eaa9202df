"""Choose the sizes of a register tile. In: a product and a processor. Out: the cheapest `Tiling`, others for a search.

    384 x 384 x 384, float32, AVX2  ->  contract(rows=6, vectors=2, lanes=8, block_m=16, block_n=1,
                                                 left=in_place, right=near)

A tile of 6 rows and 2 vectors of 8 lanes has 12 accumulators; with 2 vectors of the right factor and a broadcast
element of the left one, it takes 15 of 16 registers. A panel is all tiles with the same rows (of M: there are 64) or
columns (of N: there are 24). A task takes `block_m` panels of M and `block_n` panels of N: here there are 96 tasks.

Each register tile that fits, with its factors packed or read in place, has an estimated cost (tile_cycles.py). The
cheapest one is chosen; BEAM measures the others. Builds no loops: register_loops.py does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from glassgrad.base.cached_property import cached_property
from glassgrad.compiler.lower.loops import Statement
from glassgrad.compiler.optimize.product.flat_axes import flat_axis, image_axis, taps_first
from glassgrad.compiler.optimize.product.packing import few_rows, swells
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.product.register_tile.tile_cycles import TileCycles
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling, blocks, square
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


@dataclass
class RegisterPlan(TileCycles):
    """A product on flat axes, and the register tiles possible for it."""
    before: list[Statement] = field(default_factory=list)      # what each iteration of the batch does first

    @staticmethod
    def of(p: Product, target: Target) -> RegisterPlan | None:
        """The plan with lanes along N. refuses (None): a short K; little work; factors that packing would make many
        times as large; few rows (plain loops read those along k)"""
        limits = cpu.LIMITS["contract"]
        if p.depth < limits.least_k or p.work < limits.least_work or few_rows(p):
            return None
        m, m_out = flat_axis(p.m, p.epilogue, "m")
        lanes = target.lanes(p.total.dtype.itemsize)
        n, n_out = (None if p.stops.keys() - {*p.batch} else image_axis(p, lanes)) or flat_axis(p.n, p.epilogue, "n")
        if p.n[0] in p.stops:
            usual = min(n.size, cpu.USUAL_POSITIONS[-1])
            n = replace(n.with_run_time_bound(p.stops), size=usual, most=n.size)
        if p.m[0] in p.stops:
            usual = max(min(m.size, cpu.USUAL_ROWS[cpu.BALANCED_ROWS][-1]), m.size // 4) if len(p.stops) == 1 else \
                min(m.size, cpu.USUAL_POSITIONS[-1])
            m = replace(m.with_run_time_bound(p.stops), size=usual, most=m.size, any_length=len(p.stops) > 1)
        if m.stop is not None or n.stop is not None:
            p = replace(p, stops={r: stop for r, stop in p.stops.items() if r not in (*m.parts, *n.parts)})
        plan = RegisterPlan(p, target, m, n, [*p.batch, *m_out, *n_out])
        if plan.work < limits.least_work or min(m.size, n.size) < 2:
            return None
        large = plan.repetitions * m.size * n.size * plan.itemsize > target.l2_bytes
        if plan.depth < cpu.SHORT_K and large and plan.why_right_not_along_n is None:
            return None  # writing the result takes longest: plain loops write it row by row
        if plan.reads_windows:
            return replace(plan, product=replace(p, k=taps_first(p)))
        if not n.pitch and (swells(p.right, p.n + p.k) or swells(p.left, p.m + p.k)):
            return None
        return plan

    @staticmethod
    def cheapest(product: Product, target: Target) -> RegisterPlan | None:
        """The plan with lanes along the contiguous axis of the result; or, if that axis is narrow and the other factor
        can be read in place, with lanes along the other axis if that is cheaper despite scalar stores. Costs are those
        for one worker: the two may split sums into different blocks, and the bits should not depend on how many there
        are."""
        plan = RegisterPlan.of(product.with_lanes_right(), target)
        if plan is None or product.stops or plan.n.size >= cpu.NARROW_VECTORS * plan.lanes:
            return plan
        other = RegisterPlan.of(plan.product.swapped(), target)
        if other is None or other.why_right_not_along_n is not None:
            return plan
        return min(plan, other, key=RegisterPlan.cycles_of_one_worker)

    def cycles_of_one_worker(self) -> float:
        alone = replace(self, target=replace(self.target, workers=1))
        return min(map(alone.cycles, alone.tiles()))

    # -- the choice ------------------------------------------------------------------------------------------
    def own(self) -> Tiling:
        """The recipe's own choice: the tile that costs the fewest cycles."""
        return self.with_blocks(min(self.tiles(), key=self.cycles))

    def others(self) -> list[Tiling]:
        """The best tile for every number of vectors and every way to read the factors."""
        best: dict[tuple[int, str, bool], Tiling] = {}
        for tile in sorted(self.tiles(), key=self.cycles):
            best.setdefault((tile.vectors, tile.left, tile.right == "in_place"), tile)
        return [self.with_blocks(tile) for tile in best.values()]

    def tiles(self) -> list[Tiling]:
        """Every tile that fits the registers, and where its factors are read; its blocks are not decided yet."""
        found = []
        for vectors in (2, 1, 3, 4, 5, 6, 7):
            if vectors > max(1, -(-self.n.size // self.lanes)):
                continue
            ways_right = self.ways_to_read_right(vectors)
            for rows in range(min(self.m.size, self.target.vector_registers // vectors - 1), 0, -1):
                if self.m.balanced and rows * (rows + 1) // 2 * vectors > cpu.MOST_HEIGHTS:
                    continue
                found += [Tiling("contract", rows, vectors, self.lanes, left=left, right=right)
                          for left in self.ways_to_read_left(rows, vectors)
                          if self.registers(rows, vectors, left) <= self.target.vector_registers
                          for right in ways_right]
        not_copied = [t for t in found if t.left == t.right == "in_place"] if self.right_streams else []
        return not_copied or found

    def ways_to_read_left(self, rows: int, vectors: int) -> list[str]:
        """Where tiles of this size may read the left factor."""
        if self.reads_windows:
            return ["packed" if self.left_must_be_packed(rows) else "in_place"]
        few_panels = self.n.size <= cpu.FEW_PANELS * vectors * self.lanes
        if self.left_must_be_packed(rows) is not None:
            return ["packed"]
        is_near = self.left_along_m or self.lines_apart(rows, 8) and (
            few_panels or self.must_pack_together(vectors) is None or self.right_streams)
        if not is_near:
            return ["packed"]
        return ["in_place", "packed"] if self.target.multiplies_by_lane else ["in_place"]

    def ways_to_read_right(self, vectors: int) -> list[str]:
        """Where tiles with this many vectors may read the right factor."""
        if self.reads_windows:
            return ["in_place"]
        if self.n.stop is not None:
            few = self.m.stop is None and self.m.size <= cpu.UNPACKED_ROWS and self.target.has_masks
            return ["in_place"] if few and self.why_right_not_along_n is None else ["near"]
        ways = ["in_place"] if self.why_right_not_along_n is None else []
        if not self.right_streams:
            ways += ["near"] if self.must_pack_together(vectors) is None else []
            if not self.repeats_at_run_time(self.product.right):
                ways.append("packed")
        return ways

    def registers(self, rows: int, vectors: int, left: str) -> int:
        """How many registers a tile takes: its sums, a step of the right factor, elements of the left one, and one for
        the next load; one more for what joins a pair. If a multiply-add takes one lane of a vector, the elements of the
        left factor are vectors: of rows, or of steps of K for each row."""
        elements = 1 if self.product.pair is None else 2
        if self.target.multiplies_by_lane:
            elements = rows if left == "in_place" and not self.left_along_m else -(-rows // self.lanes)
        return rows * vectors + vectors + elements + 1

    # -- tasks and blocks of K -------------------------------------------------------------------------------
    def with_blocks(self, tile: Tiling) -> Tiling:
        """The tile with the recipe's blocks of panels and of K."""
        k_block = self.k_block
        at_once = k_block if self.right_streams else cpu.NEAR_K
        k_blocks = min(at_once // k_block, -(-self.depth // k_block)) if k_block else 1
        block_m, block_n = self.blocks(tile)
        in_l1 = 2 * self.right_bytes <= self.target.l1_bytes
        soon = self.m.size > cpu.MANY_PANELS * tile.rows or self.right_bytes <= cpu.FLOW_ROWS * cpu.FLOW_PITCH
        ahead = tile.right != "in_place" or not (in_l1 or soon and self.right_flows)      # else the hardware does
        if tile.right == "in_place" and not self.right_streams:
            ahead = ahead and self.depth >= 4 * cpu.ROWS_AHEAD  # otherwise too much of it is past the last row
        if self.reads_windows:
            ahead = False
        if tile.right == "near" and tile.left == "in_place":
            ahead = self.costs.prefetches_rows and self.n.stop is None
        known = self.product.k_stop is None and not self.n.pitch and not self.reads_windows      # one loop over K
        worth = self.target.multiplies_by_lane and (k_block or self.depth) >= 2 * self.lanes
        return replace(tile, block_m=block_m, block_n=block_n, ahead=ahead, k_blocks=k_blocks, k_block=k_block,
                       unroll=self.lanes if known and worth else 1, pitch=self.n.pitch)

    @cached_property
    def k_block(self) -> int:
        """How many products a register adds up before its sum goes to memory; 0: all of them."""
        longest = self.stream_k if self.right_streams else cpu.LIMITS["contract"].long_k
        return -(-self.depth // -(-self.depth // longest)) if self.depth > longest and not self.n.pitch else 0

    def blocks(self, tile: Tiling) -> tuple[int, int]:
        """Panels of M and N per task.

        If the right factor is read in place and stays in the first-level cache, each task takes the same number of
        whole rows of the result: its stores are contiguous, and probably read by rows again. If the right factor flows
        (`right_flows`), a task has as many rows as leave enough tasks. Otherwise blocks are as square as possible, as
        long as the task's rows of the left factor (and its sums, if K is blocked) fit half the second-level cache."""
        rows, columns, wanted = tile.rows, tile.vectors * self.lanes, self.wanted
        panels_m, panels_n = self.panels(rows, tile.vectors)
        if self.n.stop is not None:
            fit = max(1, 3 * self.target.l1_bytes // (4 * self.panel_bytes(tile.vectors)))
            least = max(cpu.PACKED_ROWS, 2 * cpu.LIMITS["contract"].task_work // (fit * columns * self.depth))
            tasks_m = max(1, self.m.size // least) if self.m.stop is None else 1
            return -(-panels_m // tasks_m) if self.m.stop is None else -(-least // rows), fit
        if tile.right == "near":
            return self._blocks_that_pack(tile)
        if self.right_streams:     # one block of K of a task's panels fits the first-level cache; few tasks read it
            fit = max(1, self.target.l1_bytes // (self.k_block * columns * self.itemsize))
            enough = min(wanted, cpu.WORKER_TASKS * self.target.workers, max(panels_n, 2 * self.target.workers))
            enough = enough if self.target.workers > 1 else 1
            return blocks(panels_m, panels_n, enough, lambda m, n: 1 / m, lambda m: fit)
        if tile.right == "in_place" and panels_m >= wanted and self.right_stays_near(tile.vectors):
            block_m, _ = blocks(panels_m, 1, wanted, lambda m, n: 1 / m, lambda m: int(panels_m % m == 0))
            return block_m, panels_n
        if tile.right == "in_place" and self.right_flows:
            return blocks(panels_m, panels_n, wanted, lambda m, n: 1 / m)
        cache = self.target.l2_bytes // 2
        panel = rows * min(self.depth, cpu.NEAR_K) * self.itemsize

        def fits(m: int) -> int:
            if m > 1 and m * panel > cache:
                return 0
            return max(1, cache // (m * rows * columns * self.itemsize)) if self.depth > cpu.NEAR_K else panels_n
        return blocks(panels_m, panels_n, wanted, square(rows, columns), fits)

    def _blocks_that_pack(self, tile: Tiling) -> tuple[int, int]:
        """The panels per task if each task packs its panels of the right factor: those blocks that take the least time,
        by what they multiply, pack and write, and by how long workers wait. Several panels stay in the first-level
        cache, or, if there are many, in half the second-level one. One task should have all of them, so that it writes
        whole rows, if the result does not stay in a cache, or if its rows share cache lines, which two tasks would
        write."""
        (panels_m, panels_n), panel = self.panels(tile.rows, tile.vectors), self.panel_bytes(tile.vectors)
        each, packing = self.tile_cycles(tile, tile.rows, self.m.size), self.costs.pack_near * tile.vectors * self.lanes
        row = self.n.size * self.itemsize
        piece = cpu.SHARED_CYCLES if row % cpu.CACHE_LINE and self.workers > 1 else 0.0
        if self.repetitions * self.m.size * row > self.workers * self.target.l2_bytes:      # written during other tasks
            piece = max(piece, cpu.RESULT_PIECE_CYCLES - self.depth * each / tile.rows)
        many = panels_n if piece else panels_n // self.wanted
        fit = max(1, 3 * self.target.l1_bytes // (4 * panel))
        more = max(fit, min(self.target.l2_bytes // (2 * panel), many))

        def cycles(m: int, n: int) -> float:
            tasks = -(-panels_m // m) * -(-panels_n // n)
            pieces = m * tile.rows if n < panels_n else 0
            again = cpu.REREAD_CYCLES * tile.vectors if n > fit else 0
            task = n * (m * (each + again) + packing) + (cpu.TASK_CYCLES + pieces * piece) / self.depth
            return self.waiting(tasks) * tasks * task
        found = [blocks(panels_m, panels_n, least, cycles, lambda m: fit) for least in self.task_counts]
        if more > fit:
            found += [blocks(panels_m, panels_n, least, cycles, lambda m: more) for least in self.task_counts]
        return min(found, key=lambda block: cycles(*block))

    # -- other choices ---------------------------------------------------------------------------------------
    def refuses(self, c: Tiling) -> str | None:
        """Why this product cannot be tiled like this; None if it can."""
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
        if 0 < c.k_block * c.k_blocks < self.depth and resting > cpu.MOST_WAITING_SUMS:
            return "the sums of a block do not fit a cache"
        if c.left not in ("packed", "in_place") or c.right not in ("packed", "in_place", "near"):
            return "a CPU reads factors in place or from panels"
        why = self.left_must_be_packed(c.rows) if c.left == "in_place" else None
        if self.reads_windows:
            return why or (None if c.right == "in_place" else "the image is read in place")
        if c.right == "near":
            why = why or self.must_pack_together(c.vectors)
        return why or (self.why_right_not_along_n if c.right == "in_place" else None)
