"""Where register tiles read their factors. In: a product on flat axes, and a processor. Out: packed, near or in place.

A factor is copied into panels before the product (packed), or each task copies the panels it uses (near), or tiles read
it without a copy (in place). Chooses nothing: it says which of these are possible, and what fits a cache.

    a @ b, 384 x 384, float32         left_must_be_packed: None (rows of `a` lie along k)
                                      must_pack_together: None (24 panels of `b`, enough for a task each)
    a.exp() @ b                       left_must_be_packed: it is computed, not read
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from glassgrad.compiler.lower.loops import ranges_of
from glassgrad.compiler.optimize.product.flat_axes import FlatProduct
from glassgrad.compiler.optimize.product.recognize import count, stride_along
from glassgrad.compiler.optimize.targets import cpu_costs as cpu


@dataclass
class FactorAccess(FlatProduct):
    """A product on flat axes: the sizes of its factors and their panels, and where they can be read."""

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
        """The same of one repetition."""
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
        """Why the left factor must be packed; None where it can be read in place, along k or, where K is short, along
        M."""
        if self.product.left.dtype is not self.product.total.dtype or self.n.pitch:
            return "the left factor is not read as it is"
        return None if self.left_along_m else self.why_left_not_along_k(rows)

    def must_pack_together(self, vectors: int) -> str | None:
        """Why tasks must share the packed right factor; None where each can pack its own part of it. That saves a
        phase, and reads of what another core has just written. The left factor, read by every task, is prefetched."""
        bounded = {*self.product.stops} - {*self.product.k, *self.outer}
        if self.n.pitch or bounded or any(r not in ranges_of(self.product.right) for r in self.outer):
            return "the right factor is packed for several tasks"
        if self.panel_bytes(vectors) > self.target.l2_bytes // 2:
            return "a panel of the right factor does not stay in the second-level cache"
        return None

    def right_stays_near(self, vectors: int) -> bool:
        """Whether a panel of the right factor, read in place, stays in the first-level cache for all of M, and comes
        from the second-level one: from further away, in pieces that are pages apart, it is better packed."""
        if self.why_right_not_along_n() is not None or 2 * self.panel_bytes(vectors) > self.target.l1_bytes:
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
        """How many rows of the right factor a block has where it streams: lines a page apart share cache sets, so one
        line of each row of two blocks takes a quarter of those sets of the second-level cache."""
        return max(1, self.target.l2_bytes // (8 * cpu.PAGE))

    @cached_property
    def right_streams(self) -> bool:
        """Whether the right factor is read once, in place, in short blocks of K: while all rows are multiplied with one
        block, the next one is prefetched. The sums go to memory after each block, and are cleared before the first and
        read after the last one: that costs less than packing where rows are few and sums are long. If all rows fit one
        tile nothing is read twice either way, but consecutive lines are fetched faster than those of a narrow panel."""
        if self.why_right_not_along_n() is not None or self.product.stops.keys() - {*self.product.k}:
            return False
        uncached = 2 * self.right_bytes > self.target.l2_bytes and self.depth > self.stream_k
        again = 1 if cpu.fit_sets(self.stream_k, self.right_pitch, 8) else 2         # else rows are read again, too
        of_sums = again * self.costs.add_sums / self.stream_k + cpu.FINISH_CYCLES * self.lanes / self.depth
        return uncached and self.m.size * of_sums <= cpu.PACK_CYCLES * self.lanes

    @cached_property
    def right_is_near(self) -> bool:
        """Whether a right factor that is read in place is in a near cache when it is read: it flows, streams, or fits
        the first-level cache."""
        return self.right_flows or self.right_streams or self.right_bytes <= self.target.l1_bytes
