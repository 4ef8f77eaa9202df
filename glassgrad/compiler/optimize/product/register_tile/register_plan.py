"""The sizes of a register tile. In: a product and a processor. Out: the cheapest `Tiling`, and others for a search.

    384 x 384 x 384, float32, AVX2  ->  contract(rows=6, vectors=2, lanes=8, block_m=32, block_n=1,
                                                 left=in_place, right=near)

A tile of 6 rows and 2 vectors of 8 lanes has 12 accumulators; with 2 vectors of the right factor and a number of the
left one beside them, 15 of 16 registers are taken. A panel is all tiles of the same rows (of M: there are 64) or
columns (of N: 24). A task takes `block_m` panels of M and `block_n` panels of N: here there are 48 tasks.

Counted, not measured: every register tile that fits, with its factors packed or read in place, is priced by what it
multiplies, loads and packs (targets/cpu_costs.py). `BEAM` times the others. Makes no loops: register_loops.py does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from glassgrad.compiler.graph import ops as o, toposort
from glassgrad.compiler.lower.loops import Store, ranges_of
from glassgrad.compiler.optimize.product.recognize import (Product, count, few_rows, flat_axis, image_axis,
                                                           stride_along, swells)
from glassgrad.compiler.optimize.product.register_tile.factor_access import FactorAccess
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling, blocks, square
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


@dataclass
class RegisterPlan(FactorAccess):
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
        """The same, where M has this size: two multiply-adds a cycle, or not quite two loads; the lines of both panels
        that come from the second-level cache (rows that are read in place cost more), and vectors that cross the end of
        one; packing an element of a factor, more where another core reads it from far away, and the phase that takes;
        the right factor's lines where it is read in place, once if they stay near, unless it flows; and what the
        epilogue reads and writes, twice as much where rows past the edge are left out, and for each number where they
        lie apart."""
        rows, vectors, target = tile.rows, tile.vectors, self.target
        panels_m, panels_n = -(-size // rows), self.panels(rows, vectors)[1]
        left_far, right_far = 2 * self.left_bytes > target.l2_bytes, self.right_bytes > target.l2_bytes
        in_place = tile.right == "in_place"
        flows = in_place and (self.right_flows or self.right_streams or self.right_bytes <= target.l1_bytes)
        stays = in_place and self.right_stays_near(vectors)
        read_early = vectors if in_place and not flows else 0            # each of its lines is asked for early, too
        step = max(rows * vectors / 2, (rows + vectors + 1 + read_early) * 0.6, 5.0)     # a sum waits 4 cycles
        if tile.left == "in_place" and not self.left_along_m:
            step += 0.1 * rows + 0.3
        else:
            step += (0.12 if left_far else 0.05) * rows
        lines = vectors * target.vector_bytes / cpu.CACHE_LINE
        if not (tile.right == "near" or stays) or 4 * self.panel_bytes(vectors) > 3 * target.l1_bytes:
            step += 0.2 * lines
        if self.right_streams:                 # a tile's rows begin anew in each block: more than eight cost more
            overlaps = self.n.size % (vectors * self.lanes) > 0          # its last panel begins early
            step = (step + 0.1 * max(0, rows - 8)) * (1.06 if overlaps else 1)
        elif in_place and self.right_pitch % target.vector_bytes:
            step += 0.6 * lines
        packing = 0.0
        if tile.left == "packed":
            packing += cpu.PHASE / self.depth + (1.2 if left_far else 0.7) * size
        if tile.right == "near":
            packing += 0.5 * self.n.size
        elif tile.right == "packed":
            packing += (cpu.PHASE / self.depth + (1.8 if right_far else 0.5) * self.n.size) / self.repeats
        elif not flows:
            packing += (0.12 if right_far else 0.08) * (1 if stays else panels_m) * self.n.size
        each = cpu.APART_CYCLES * target.vector_bytes / 4 if self.apart else 2 if size % rows else 1
        ends = self.accesses * rows * vectors * each / self.depth
        return panels_m * panels_n * (step + ends) + packing

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

    # -- tasks and blocks of K -------------------------------------------------------------------------------
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

        Where the right factor is read in place and stays near, a task takes whole rows of the result, all tasks as
        many: what it writes is one piece of memory, likely to be read by rows again. Where it flows, a task has as many
        rows as leave enough tasks. Else blocks are as square as can be while the task's rows of the left factor (and
        its sums, where K is cut into blocks) stay in half the second-level cache."""
        if tile.right == "near" or self.right_streams:
            return self._blocks_of_all_rows(tile, wanted)
        rows, columns = tile.rows, tile.vectors * self.lanes
        panels_m, panels_n = self.panels(rows, tile.vectors)
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

    def _blocks_of_all_rows(self, tile: Tiling, wanted: int) -> tuple[int, int]:
        """The same where few tasks should read the same panel of the right factor: no more than the workers need.

        Where it streams, a block of K of all panels of a task is no larger than the first-level cache. Where each task
        packs its panels, it has all rows, or enough to repay that; its panels stay in half the second-level cache."""
        panels_m, panels_n = self.panels(tile.rows, tile.vectors)
        enough = min(wanted, cpu.WORKER_TASKS * self.target.workers) if self.target.workers > 1 else 1
        if tile.right != "near":
            fit = max(1, self.target.l1_bytes // (self.k_block * tile.vectors * self.lanes * self.itemsize))
            enough = min(enough, max(panels_n, 2 * self.target.workers))      # fewer rows in a task read it again
            return blocks(panels_m, panels_n, enough, lambda m, n: 1 / m, lambda m: fit)
        fit = max(1, min(self.target.l2_bytes // 2 // self.panel_bytes(tile.vectors), panels_n // wanted))
        least = -(-cpu.NEAR_ROWS // tile.rows)
        return blocks(panels_m, panels_n, enough, lambda m, n: 1 / m,
                      lambda m: fit if m == panels_m or m >= least else 0)

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
