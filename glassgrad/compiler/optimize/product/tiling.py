"""How a sum of products is cut. In: a product and a processor. Out: the `Contract` that costs the fewest cycles.

Counted, not measured: every register tile that fits, with its factors packed or read in place, is priced by what it
multiplies, loads and packs for each step of K. `BEAM` times the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.lower.loops import Store, ranges_of
from glassgrad.compiler.optimize.decisions import Choice, settled
from glassgrad.compiler.optimize.plain.reductions import few_rows
from glassgrad.compiler.optimize.product import work_split as shares
from glassgrad.compiler.optimize.product.contraction_axes import (
    FlatProduct,
    flat_axis,
    image_axis,
    leave_room,
    stride_along,
    swells,
)
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.targets.target import Target

PHASE = 20_000           # cycles: two workers that wait for each other, once more
LEAST_K = 8              # shorter sums do not repay packing
LEAST_WORK = 4096        # multiply-adds below which plain loops do as well
TASK_WORK = 1024 * 1024  # multiply-adds worth a task of their own
TASK_BYTES = 192 * 1024  # of the right factor, likewise: reading them takes as long
MOST_TASKS = 32          # blocks of the output: fewer and larger ones read the panels less often
LONG_K = 1024            # sums longer than this are added up in blocks, which keeps them accurate
NEAR_K = 2048            # of K: panels that are longer no longer stay near, so all tiles share a part of them
FEW_PANELS = 16          # of N: up to so many, the left factor may be read in place, again for each of them
LEAST_PANELS = 8         # of N: fewer are not handed out one by one, unless the work is small
NEAR_ROWS = 1024         # of M: a task with fewer does not repay packing the right factor once more
CACHE_LINE = 64          # bytes that come together
NEAR_BYTES = 256 * 1024  # from a factor's first line to its last: 64 pages; twice as many cost more than packing
MOST_RESTING = 1 << 22   # elements of tiles that rest between blocks of K, for each worker

assert LONG_K <= NEAR_K, "what stays near of K holds at least one block: a tile adds up k_blocks >= 1 of them"


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


class Tile(NamedTuple):
    """A register tile, and where its factors are read."""
    rows: int
    vectors: int
    left_in_place: bool
    right_in_place: bool


@dataclass
class Recipe(FlatProduct):
    """A product on flat axes, and how it would be cut."""

    @staticmethod
    def of(p: Product, target: Target) -> Recipe | None:
        m, m_out = flat_axis(p.m, p.epilogue, "m")
        n, n_out = (None if p.stops else image_axis(p)) or flat_axis(p.n, p.epilogue, "n")
        recipe = Recipe(p, target, m, n, [*p.batch, *m_out, *n_out])
        if recipe.depth < LEAST_K or recipe.work < LEAST_WORK or n.size < 4 or m.size < 2 or few_rows(p):
            return None
        if not n.pitch and (swells(p.right, p.n + p.k) or swells(p.left, p.m + p.k)):
            return None
        return recipe if p.k_stop is None or recipe.tiles() else None

    @property
    def itemsize(self) -> int:
        return self.product.total.dtype.itemsize

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.itemsize)

    def panels(self, rows: int, vectors: int, lanes: int = 0) -> tuple[int, int]:
        """How many panels of M and N such tiles make."""
        return -(-self.m.size // rows), -(-self.n.size // (vectors * (lanes or self.lanes)))

    # -- the choice ------------------------------------------------------------------------------------------
    def own(self) -> Contract:
        """What the recipe does when nobody knows better: the tile that costs the fewest cycles."""
        return self.with_tile(min(self.tiles(), key=self.cycles))

    def others(self) -> list[Contract]:
        """The best tile of every other number of vectors, and of other places to read from."""
        best: dict[tuple[int, bool, bool], Tile] = {}
        for tile in sorted(self.tiles(), key=self.cycles):
            best.setdefault(tile[1:], tile)
        return [self.with_tile(tile) for tile in best.values()]

    def tiles(self) -> list[Tile]:
        """Every tile that the registers hold."""
        right = [True, False] if self.right_must_be_packed() is None else [False]
        found = []
        for vectors in (2, 1, 3, 4, 5, 6, 7):
            if vectors > max(1, -(-self.n.size // self.lanes)):
                continue
            few = self.n.size <= FEW_PANELS * vectors * self.lanes
            for rows in range(min(self.m.size, (self.target.vector_registers - vectors - 2) // vectors), 0, -1):
                left = self.left_must_be_packed(rows) is None and (self.turned or self.lines_apart(rows, 8) and (
                    few or self.must_pack_together(rows, vectors) is None))
                found += [Tile(rows, vectors, left, in_place) for in_place in right]
        return found if self.product.k_stop is None else [t for t in found if t.left_in_place and t.right_in_place]

    def cycles(self, tile: Tile) -> float:
        """About how long a tile's choice takes, for each step of K: two multiply-adds a cycle, or not quite two loads;
        what both panels' lines cost that come from the second-level cache (rows that are read in place more); packing
        an element of a factor, more where another core reads it from far away, and the phase that takes; the right
        one's lines that are far apart, where it is read in place, once if they stay near; and what the epilogue reads
        and writes, which takes twice as long where rows past the edge must be left out."""
        rows, vectors = tile.rows, tile.vectors
        panels_m, panels_n = self.panels(rows, vectors)
        near = self.packs_near(tile)
        far = 2 * self.left_bytes() > self.target.l2_bytes
        stays = tile.right_in_place and self.right_stays_near(vectors)
        step = max(rows * vectors / 2, (rows + vectors + 1) * 0.6, 5.0)      # a sum waits for the last one: 4 cycles
        apart = tile.left_in_place and not self.turned
        step += 0.1 * rows + 0.3 if apart else (0.12 if far else 0.05) * rows
        if not (near or stays) or 4 * self.panel_bytes(vectors) > 3 * self.target.l1_bytes:
            step += 0.2 * vectors * self.target.vector_bytes / 64
        packing = 0.0
        if not tile.left_in_place:
            packing += PHASE / self.depth + (1.2 if far else 0.7) * self.m.size
        if near:
            packing += 0.4 * self.n.size
        elif not tile.right_in_place:
            packing += PHASE / self.depth + (1.8 if self.right_bytes() > self.target.l2_bytes else 0.4) * self.n.size
        lines = 0.12 * (1 if stays else panels_m) * self.n.size if tile.right_in_place else 0
        ends = self.accesses() * rows * vectors * (2 if self.m.size % rows else 1) / self.depth
        return panels_m * panels_n * (step + ends) + packing + lines

    def with_tile(self, tile: Tile) -> Contract:
        """The recipe's blocks for a tile of any size."""
        rows, vectors = tile.rows, tile.vectors
        reading = self.right_bytes() // TASK_BYTES // max(1, self.around)      # of few rows, what takes the time
        wanted = max(self.tasks_wanted(TASK_WORK, MOST_TASKS), min(reading, MOST_TASKS))
        k_block = 0 if self.depth <= LONG_K or self.n.pitch else -(-self.depth // -(-self.depth // LONG_K))
        k_blocks = min(NEAR_K // k_block, -(-self.depth // k_block)) if k_block else 1
        near = self.packs_near(tile)
        ahead = not tile.right_in_place or self.right_bytes() > self.target.l2_bytes      # what is near is not fetched
        return Contract(rows, vectors, self.lanes, *self.blocks(tile, near, wanted), tile.left_in_place,
                        tile.right_in_place, near, ahead, k_blocks, k_block, self.n.pitch)

    def blocks(self, tile: Tile, near: bool, wanted: int) -> tuple[int, int]:
        """Panels of M and N in one task.

        Where each task packs its panels of the right factor, it has all rows, or enough to repay that, and panels that
        stay in half the second-level cache. Where the right factor is read in place and stays near, a task takes whole
        rows of the result, all tasks as many: what it writes is one piece of memory, likely to be read by rows again.
        Else blocks are as square as can be while the task's rows of the left factor (and its resting tiles, where K is
        blocked) stay in half the second-level cache."""
        rows, columns = tile.rows, tile.vectors * self.lanes
        panels_m, panels_n = self.panels(rows, tile.vectors)
        cache = self.target.l2_bytes // 2
        if near:
            fit = max(1, cache // self.panel_bytes(tile.vectors))
            least = -(-NEAR_ROWS // rows)
            return shares.blocks(panels_m, panels_n, wanted, lambda m, n: 1 / m,
                                 lambda m: fit if m == panels_m or m >= least else 0)
        if tile.right_in_place and panels_m >= wanted and self.right_stays_near(tile.vectors):
            block_m, _ = shares.blocks(panels_m, 1, wanted, lambda m, n: 1 / m, lambda m: int(panels_m % m == 0))
            return block_m, panels_n
        panel = rows * min(self.depth, NEAR_K) * self.itemsize

        def room(m: int) -> int:
            if m > 1 and m * panel > cache:
                return 0
            return max(1, cache // (m * rows * columns * self.itemsize)) if self.depth > NEAR_K else panels_n
        return shares.blocks(panels_m, panels_n, wanted, shares.square(rows, columns), room)

    # -- places ----------------------------------------------------------------------------------------------
    def left_bytes(self) -> int:
        return self.m.size * self.depth * self.product.left.dtype.itemsize

    def right_bytes(self) -> int:
        copies = math.prod(r.arg.size for r in self.outer if r in ranges_of(self.product.right))
        return copies * self.depth * self.n.size * self.product.right.dtype.itemsize

    def panel_bytes(self, vectors: int) -> int:
        return vectors * self.lanes * self.depth * self.product.right.dtype.itemsize

    def right_stays_near(self, vectors: int) -> bool:
        """Whether a panel of the right factor, read where it lies, stays in the first-level cache for all of M."""
        right = self.product.right
        if self.right_must_be_packed() is not None or 2 * self.panel_bytes(vectors) > self.target.l1_bytes:
            return False
        step = stride_along(right.src[1], self.product.k[0]) or 0
        return leave_room(self.depth, step * right.dtype.itemsize, 8)

    def accesses(self) -> int:
        """How often the epilogue reads or writes memory, for each element."""
        stores = [s for s in self.product.epilogue if isinstance(s, Store)]
        return len(stores) + sum(n.op is o.LOAD for n in toposort([s.value for s in stores]))

    def packs_near(self, tile: Tile) -> bool:
        """Whether each task packs its own part of the right factor."""
        return not tile.right_in_place and self.work >= 2 * TASK_WORK and \
            self.must_pack_together(tile.rows, tile.vectors) is None

    def must_pack_together(self, rows: int, vectors: int) -> str | None:
        """Why tasks should share the packed right factor; None where each can pack its own part of it. That saves a
        phase, and reading what another core has just written. The left factor, which every task reads, is fetched
        ahead from wherever it is."""
        if self.n.pitch or self.product.stops or any(r not in ranges_of(self.product.right) for r in self.outer):
            return "the right factor is packed for several tasks"
        tasks = self.panels(rows, vectors)[1] * self.around
        if tasks < min(LEAST_PANELS, max(2, self.work // TASK_WORK / 2)):
            return "there are too few panels to hand them out one by one"
        if self.panel_bytes(vectors) > self.target.l2_bytes // 2:
            return "a panel of the right factor does not stay in the second-level cache"
        return None

    def left_must_be_packed(self, rows: int) -> str | None:
        """Why the left factor must be packed; None where it can be read where it lies, along k or, where K is short,
        along M."""
        if self.product.left.dtype is not self.product.total.dtype or self.n.pitch:
            return "the left factor is not read as it is"
        return None if self.turned else self.left_off_k(rows)

    @cached_property
    def turned(self) -> bool:
        """Whether the left factor lies along M, with so few lines and pages along k that those of a tile stay near."""
        left = self.product.left
        if left.op is not o.LOAD or len(left.src) != 2 or len(self.product.k) != 1 or len(self.m.parts) != 1:
            return False
        step = stride_along(left.src[1], self.product.k[0])
        if step is None or stride_along(left.src[1], self.m.parts[0]) != 1:
            return False
        pitch = step * left.dtype.itemsize
        return 4 * CACHE_LINE * self.depth <= self.target.l1_bytes and abs(pitch) * self.depth <= NEAR_BYTES and \
            leave_room(self.depth, pitch, 8)

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

    # -- what others may choose ------------------------------------------------------------------------------
    def refuses(self, c: Contract) -> str | None:
        """Why a way to cut this product would not do."""
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
        if 0 < c.k_block * c.k_blocks < self.depth and resting > MOST_RESTING:
            return "a block's tiles would not rest in any cache"
        if c.right_near and c.right_in_place:
            return "the right factor is either packed or read in place"
        if self.product.k_stop is not None and not (c.in_place and c.right_in_place):
            return "nobody knows how much to pack"
        why = self.left_must_be_packed(c.rows) if c.in_place else None
        if c.right_near:
            why = why or self.must_pack_together(c.rows, c.vectors)
        return why or (self.right_must_be_packed() if c.right_in_place else None)
