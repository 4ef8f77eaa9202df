"""Estimate where register tiles should read their factors, and the cycles they take. In: a product on flat axes, a
processor, a tile. Out: packed, near or in place; cycles, for comparing tiles.

A factor is copied into panels before the product (packed), or each task copies the panels it uses (near), or tiles read
it without a copy (in place). Which of these are possible, and what fits a cache, follows from the product:

    a @ b, 384 x 384, float32         left_must_be_packed: None (rows of `a` lie along k)
                                      must_pack_together: None (24 panels of `b`, enough for a task each)
    a.exp() @ b                       left_must_be_packed: it is computed, not read

The cycles come from a cost model, not from measurements: what a tile multiplies, loads and stores, what is packed for
it, and how long workers wait for the last task. Its constants are data of the processor (targets/cpu_costs.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from glassgrad.base.cached_property import cached_property
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.lower.loops import Store, ranges_of
from glassgrad.compiler.optimize.product.flat_axes import FlatProduct
from glassgrad.compiler.optimize.product.recognize import count, stride_along
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import cpu_costs as cpu


@dataclass
class TileCycles(FlatProduct):
    """A product on flat axes: its factors, where tiles can read them, and the cost of tiles."""

    @cached_property
    def costs(self) -> cpu.TileCosts:
        return cpu.tile_costs(self.target.arch)

    @cached_property
    def itemsize(self) -> int:
        return self.product.total.dtype.itemsize

    @cached_property
    def lanes(self) -> int:
        return self.target.lanes(self.itemsize)

    def panels(self, rows: int, vectors: int, lanes: int = 0) -> tuple[int, int]:
        """How many panels of M and N there are for tiles of this size."""
        return -(-self.m.size // rows), -(-self.n.size // (vectors * (lanes or self.lanes)))

    # -- sizes -----------------------------------------------------------------------------------------------
    @cached_property
    def left_bytes(self) -> int:
        return self.m.size * self.depth * self.product.left.dtype.itemsize

    @cached_property
    def right_bytes(self) -> int:
        return count(r for r in self.outer if r in ranges_of(self.product.right)) * self.right_bytes_at_once

    @cached_property
    def right_bytes_at_once(self) -> int:
        """As `right_bytes`, for one repetition."""
        return self.depth * self.n.size * self.product.right.dtype.itemsize

    def panel_bytes(self, vectors: int) -> int:
        return vectors * self.lanes * self.depth * self.product.right.dtype.itemsize

    @cached_property
    def right_pitch(self) -> int:
        """Bytes from row to row of a right factor that can be read in place."""
        right = self.product.right
        return abs(stride_along(right.src[1], self.product.k[0]) or 0) * right.dtype.itemsize

    # -- packed, or in place ---------------------------------------------------------------------------------
    def left_must_be_packed(self, rows: int) -> str | None:
        """Why the left factor must be packed; None if it can be read in place, along k or, if K is short, along M."""
        if self.product.left.dtype is not self.product.total.dtype or self.n.pitch:
            return "the left factor is not read as it is"
        if self.reads_windows and self.product.left.op is o.LOAD and 2 * self.left_bytes <= self.target.l2_bytes:
            return None
        return None if self.left_along_m else self.why_left_not_along_k(rows)

    @cached_property
    def packs_own_left(self) -> bool:
        """Whether each task packs the rows of the left factor that it reads: memory for the longest possible sums of
        all rows, or of all matrices, would be far too large."""
        return self.m.any_length and self.product.k_stop is not None or self.repeats_at_run_time(self.product.left)

    def must_pack_together(self, vectors: int) -> str | None:
        """Why tasks must share the packed right factor; None if each can pack its own part of it. That saves a phase,
        and reads of what another core has just written. The left factor, which every task reads, is prefetched."""
        if self.repeats_at_run_time(self.product.right):
            return None
        bounded = {*self.product.stops} - {*self.product.k, *self.outer}
        if self.n.pitch or bounded or any(r not in ranges_of(self.product.right) for r in self.outer):
            return "the right factor is packed for several tasks"
        if self.panel_bytes(vectors) > self.target.l2_bytes // 2:
            return "a panel of the right factor does not stay in the second-level cache"
        return None

    def repeats_at_run_time(self, factor: UOp) -> bool:
        """Whether the number of matrices in a factor is known only at run time. Memory for the greatest number would be
        far too large, so each task packs those that it reads. (Images with a pitch are not packed.)"""
        return not self.n.pitch and not self.product.stops.keys().isdisjoint({*self.outer} & ranges_of(factor))

    def right_stays_near(self, vectors: int) -> bool:
        """Whether a panel of the right factor, read in place, stays in the first-level cache for all of M, and comes
        from the second-level one. From further away, in pieces that are pages apart, it is better packed."""
        if self.why_right_not_along_n is not None or 2 * self.panel_bytes(vectors) > self.target.l1_bytes:
            return False
        if 2 * self.right_bytes_at_once > self.target.l2_bytes:
            return False
        return self.depth * self.right_pitch <= self.costs.reach and cpu.fit_sets(self.depth, self.right_pitch, 8)

    @cached_property
    def right_flows(self) -> bool:
        """Whether the right factor can be read in place as fast as if it were packed: both factors fit the second-level
        cache, no vector crosses a cache line, and its rows are short and few (larger caches allow more)."""
        pitch = self.right_pitch
        in_cache = 2 * max(self.left_bytes, self.right_bytes) <= self.target.l2_bytes
        longest = cpu.FLOW_PITCH * self.target.l1_bytes * self.target.l2_bytes // cpu.FLOW_CACHES
        most = min(cpu.FLOW_ROWS * longest, self.costs.reach)
        return in_cache and pitch <= longest and self.right_bytes <= most and pitch % self.target.vector_bytes == 0

    @cached_property
    def stream_k(self) -> int:
        """How many rows of the right factor a block has if it streams: lines a page apart share cache sets, so one line
        of each row of two blocks takes a quarter of those sets of the second-level cache."""
        return max(1, self.target.l2_bytes // (8 * cpu.PAGE))

    @cached_property
    def right_streams(self) -> bool:
        """Whether the right factor is read once, in place, in short blocks of K: while all rows are multiplied with one
        block, the next one is prefetched. The sums are added to memory after each block, cleared before the first and
        read after the last one. This costs less than packing if rows are few and sums are long. If all rows fit one
        tile, nothing is read twice either way, but consecutive lines are fetched faster than a narrow panel."""
        if self.why_right_not_along_n is not None or self.product.stops.keys() - {*self.product.k}:
            return False
        if self.m.any_length or self.n.stop is not None:
            return False
        uncached = 2 * self.right_bytes > self.target.l2_bytes and self.depth > self.stream_k
        again = 1 if cpu.fit_sets(self.stream_k, self.right_pitch, 8) else 2  # otherwise rows are read again, too
        of_sums = again * self.costs.add_sums / self.stream_k + cpu.FINISH_CYCLES * self.lanes / self.depth
        return uncached and self.m.size * of_sums <= cpu.PACK_CYCLES * self.lanes

    @cached_property
    def right_is_near(self) -> bool:
        """Whether a right factor that is read in place is in a near cache when it is read: it flows, streams, or fits
        the first-level cache; or it is an image, which earlier taps have read."""
        return self.reads_windows or self.right_flows or self.right_streams or self.right_bytes <= self.target.l1_bytes

    # -- cycles ----------------------------------------------------------------------------------------------
    def cycles(self, tile: Tiling) -> float:
        """Estimate the cycles of all tiles, per step of K; if M has a run-time bound, per row and summed over typical
        sizes."""
        if self.n.stop is not None:
            return self.cycles_of_columns(tile)
        if self.m.stop is None or self.m.most not in cpu.USUAL_ROWS:
            return self.cycles_of(tile, tile.rows, self.m.size)
        sizes = [(size, -(-size // tile.rows)) for size in cpu.USUAL_ROWS[self.m.most]]
        return sum([self.cycles_of(tile, rows, panels * rows) / size for size, panels in sizes
                    for rows in [-(-size // panels) if self.m.balanced else tile.rows]])

    def cycles_of(self, tile: Tiling, rows: int, size: int) -> float:
        """The cycles for one size of M and tiles of this many rows, of all workers together: those of `tile_cycles`, of
        packing, and of workers that wait. Packing is counted per element (more if other cores read it from further
        away) and per phase. A right factor that is read in place counts by its lines: once if they stay in the
        first-level cache, not at all if it flows (`right_flows`)."""
        target, costs, readers = self.target, self.costs, max(1, self.workers // self.repetitions)
        panels_m, panels_n = -(-size // rows), self.panels(rows, tile.vectors)[1]
        left_far, right_far = 2 * self.left_bytes > target.l2_bytes, self.right_bytes > target.l2_bytes
        phase = cpu.PHASE_CYCLES * self.workers / self.depth
        tiles, packing = panels_m * panels_n * self.tile_cycles(tile, rows, size), 0.0
        if tile.left == "packed":
            packing += phase + (costs.pack_left[left_far] + cpu.REMOTE_CYCLES * (min(readers, panels_n) - 1)) * size
        if tile.right == "near":                                     # again for each block of rows
            times = {min(panels_m, -(-least // panels_n)) for least in self.task_counts}
            packing += cpu.TASK_CYCLES / self.depth
            return packing + min([self.waiting(min(self.wanted, blocks_m * panels_n))
                                  * (tiles + costs.pack_near * blocks_m * self.n.size) for blocks_m in times])
        if tile.right == "packed":
            each = costs.pack_right[right_far] + cpu.REMOTE_CYCLES * (min(readers, panels_m) - 1)
            packing += (phase + each * self.n.size) / self.repeats
        elif not self.right_is_near:
            stays = self.right_stays_near(tile.vectors)
            packing += costs.read_right[right_far] * (1 if stays else panels_m) * self.n.size
        return packing + self.waiting(min(self.wanted, panels_m * panels_n)) * tiles

    def cycles_of_columns(self, tile: Tiling) -> float:
        """The cycles if N has a run-time bound, per row and column, summed over typical sizes: whole panels, and one of
        the remaining vectors."""
        sizes = (self.m.size,) if self.m.stop is None else cpu.USUAL_POSITIONS
        each = [self.tile_cycles(replace(tile, vectors=vectors), tile.rows, self.m.size)
                for vectors in range(tile.vectors + 1)]
        each, of_columns = [0, *[cycles + cpu.ROW_CYCLES * tile.rows / self.depth for cycles in each[1:]]], 0.0
        for columns in cpu.USUAL_POSITIONS:
            whole, rest = divmod(-(-columns // self.lanes), tile.vectors)
            of_columns += (whole * each[-1] + each[rest]) / columns
        return of_columns * sum([-(-rows // tile.rows) / rows for rows in sizes])

    def tile_cycles(self, tile: Tiling, rows: int, size: int) -> float:
        """Estimate the cycles of a tile of this many rows, per step of K. Counted are two multiply-adds, or a little
        under two loads, per cycle; cache lines of both panels from the second-level cache (more for rows read in
        place); vectors that cross a line; and accesses of the epilogue, double if rows past the edge are masked, and
        per element if strided."""
        vectors, target, costs = tile.vectors, self.target, self.costs
        in_place = tile.right == "in_place"
        stays = in_place and self.right_stays_near(vectors)
        read_early = vectors if in_place and not self.right_is_near else 0     # each of its lines is prefetched, too
        left_far, elements = 2 * self.left_bytes > target.l2_bytes, rows
        if target.multiplies_by_lane:
            elements = -(-rows // self.lanes)
        step = max(rows * vectors / 2, (elements + vectors + 1 + read_early) * costs.load, costs.least_step)
        if tile.left == "packed" or self.left_along_m:
            across = costs.read_left_across if tile.left == "in_place" else 0
            step += costs.left_step[1] + max(across, costs.read_panel[left_far]) * rows
        else:
            step += costs.left_step[0] + costs.read_left[left_far] * rows
        lines = vectors * target.vector_bytes / cpu.CACHE_LINE
        if not (tile.right == "near" or stays) or 4 * self.panel_bytes(vectors) > 3 * target.l1_bytes:
            step += 0.2 * lines
        if self.right_streams:                 # each block restarts a tile's rows: more than eight cost more
            overlaps = self.n.size % (vectors * self.lanes) > 0          # its last panel starts early
            step = (step + 0.1 * max(0, rows - 8)) * (1.06 if overlaps else 1)
        elif in_place and self.right_pitch % target.vector_bytes:
            step += 0.6 * lines
        each = cpu.STRIDED_STORE_CYCLES * target.vector_bytes / 4 if self.stores_strided else 2 if size % rows else 1
        written_far = self.repetitions * self.m.size * self.n.size * self.itemsize > target.l2_bytes
        writing = self.accesses * rows * vectors * each + costs.write_row[written_far] * rows
        return step + writing / self.depth

    @cached_property
    def wanted(self) -> int:
        """How many tasks each repetition should be split into, by its multiply-adds or by what it reads."""
        limits = cpu.LIMITS["contract"]
        reading = self.right_bytes // cpu.TASK_BYTES // max(1, self.repetitions)  # most if rows are few
        return max(self.tasks_wanted(limits), min(reading, limits.most_tasks, self.target.most_tasks))

    @cached_property
    def workers(self) -> int:
        """How many workers have a task."""
        return min(self.target.workers, self.wanted * self.repetitions)

    @cached_property
    def task_counts(self) -> list[int]:
        """How many tasks each repetition may be split into, where more tasks pack more: 1 to `WORKER_TASKS` per worker,
        if there is enough work."""
        if self.workers == 1:
            return [1]
        counts = [min(self.wanted, -(-n * self.workers // self.repetitions)) for n in range(1, cpu.WORKER_TASKS + 1)]
        return list(dict.fromkeys(counts))

    def waiting(self, tasks: int) -> float:
        """The time of equal tasks in each repetition, relative to the same work shared without waiting: whole rounds of
        tasks, or a part of a round, since cores differ in speed."""
        if self.workers == 1:
            return 1.0
        each = tasks * self.repetitions / self.workers
        return max(math.ceil(each), each + cpu.TASK_SPREAD) / each

    @cached_property
    def accesses(self) -> int:
        """Loads and stores of the epilogue per element."""
        stores = [s for s in self.product.epilogue if isinstance(s, Store)]
        return len(stores) + sum(n.op is o.LOAD for n in toposort([s.value for s in stores]))

    @cached_property
    def stores_strided(self) -> bool:
        """Whether the result is not contiguous along N, so that each element is stored by itself."""
        return stride_along(self.product.store.index, self.n.parts[-1]) != 1

    @cached_property
    def repeats(self) -> int:
        """About how many blocks of M share the packed right factor: half of the most that run-time bounds allow."""
        blocks = [r for r in self.outer if r in self.product.stops and r not in ranges_of(self.product.right)]
        return max(1, count(blocks) // 2)
