"""Allocate host memory that finds stray accesses (GUARD_PAGES=1). In: sizes in bytes. Out: blocks between forbidden
pages.

Each block ends where a forbidden page begins, and another lies before it. A kernel that reads or writes beyond a block
dies at that instruction with a segmentation fault, and `python -X faulthandler` shows the line that started it. A
released block is not used again: its pages become forbidden too, so that a use after release is found. The oldest
released blocks are returned to the system once they take more than POOL_MB.

Blocks are rounded up to 64 bytes, and an access inside that rounding is not found. With GUARD_PAGES=2, blocks of up to
256 KiB end at the exact byte, as arrays of other libraries may. (Streaming stores to larger ones rely on the
alignment.)
"""

from __future__ import annotations

from collections import deque

from glassgrad.base.settings import settings
from glassgrad.runtime.host_memory import PAGE, HostMemory, forbid_access, map_pages, round_up, unmap_pages
from glassgrad.runtime.memory_pool import MEBIBYTE, MemoryBlock

_ALIGNMENT = 64
_MOST_RELEASED = 10_000        # a process may have about 65,000 mappings, and each block is up to three


class GuardedMemory(HostMemory):
    """Memory whose blocks lie between inaccessible pages."""

    def __init__(self) -> None:
        super().__init__()
        self._released: deque[tuple[int, int]] = deque()       # (first page, length), oldest first

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Allocate a block that ends where a forbidden page begins."""
        if nbytes <= 0:
            return super().allocate(nbytes)
        size = round_up(nbytes, 1 if settings.GUARD_PAGES > 1 and nbytes <= MEBIBYTE // 4 else _ALIGNMENT)
        self._check_limit(size)
        inner = round_up(size, PAGE)
        start = map_pages(inner + 2 * PAGE)
        forbid_access(start, PAGE)
        forbid_access(start + PAGE + inner, PAGE)
        with self.lock:
            self._count(size)
        return MemoryBlock(start + PAGE + inner - size, nbytes, size)

    def release(self, block: MemoryBlock) -> None:
        """Make a block inaccessible; its pages are returned to the system much later."""
        if not block.address or not block.size:
            super().release(block)                 # raises for a second release; an empty block needs nothing
            return
        address, size, block.address = block.address, block.size, 0
        inner = round_up(size, PAGE)
        start = address + size - inner - PAGE
        forbid_access(start, inner + 2 * PAGE)
        with self.lock:
            self._live -= size
            self._pooled += inner
            self._released.append((start, inner + 2 * PAGE))
        self._trim(self._limit())

    def empty_cache(self) -> None:
        """Return all released blocks to the system."""
        self._trim(0)

    def _trim(self, limit: float) -> None:
        with self.lock:
            while self._released and (self._pooled > limit or len(self._released) > _MOST_RELEASED):
                start, length = self._released.popleft()
                self._pooled -= length - 2 * PAGE
                unmap_pages(start, length)
