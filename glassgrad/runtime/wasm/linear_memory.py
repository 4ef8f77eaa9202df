"""Allocate blocks in a linear memory. In: sizes in bytes, and a memory that can grow. Out: addresses inside it.

A WebAssembly memory is one array of bytes that can grow, to 4 GiB at most, and never shrinks. Free ranges are kept in
the order of their addresses. Allocation is first fit, and a released block is merged with adjacent free ranges. Does
not know which engine owns the memory.
"""

from __future__ import annotations

import bisect
from typing import Any, Protocol

from glassgrad.base.errors import MemoryLimitError
from glassgrad.runtime.memory_pool import MemoryPool, Stats, readable

PAGE = 64 << 10              # unit of growth, in bytes
LIMIT = 4 << 30              # addresses have 32 bits
ALIGNMENT = 64
FIRST = PAGE                 # first address of a block: the page before holds a launch's arguments
SPARE = 64                   # bytes after the last block: a vector load may read past its block
LEAST_GROWTH = 4 << 20
FIRST_BYTES = 4 << 20        # initial size of a memory


class Stopped(Exception):
    """Raised when a WebAssembly function traps; the text is the engine's message."""


class Bytes(Protocol):
    """The interface of an engine's linear memory."""

    def size(self) -> int:
        """Return its current size in bytes."""

    def grow(self, nbytes: int) -> bool:
        """Grow it by a multiple of PAGE; False if the engine cannot."""

    def read(self, address: int, nbytes: int) -> bytearray: ...

    def write(self, address: int, data: Any) -> None: ...


class LinearMemory(MemoryPool):
    """Blocks inside one linear memory; safe to use from several threads and from finalizers. Every use of the engine,
    which is single-threaded, holds `lock`. Released blocks are not pooled by size: they become free ranges."""
    on_host, in_parts = False, True
    least, most_pooled = ALIGNMENT, 0

    def __init__(self, content: Bytes, limit: int = LIMIT):
        super().__init__()
        self.content, self.limit = content, limit
        self._starts: list[int] = []          # sorted start addresses of the free ranges
        self._sizes: dict[int, int] = {}      # {start address of a free range: its bytes}
        self._end = FIRST                     # end of the part that was ever used
        self._extend()

    def take(self, size: int) -> int | None:
        address = self._first_fit(size)
        if address is None:
            self._grow(size)
            address = self._first_fit(size)
        return address

    def give_back(self, address: int, size: int) -> None:
        self._add(address, size)

    def full(self, size: int) -> MemoryLimitError:
        return self._refused(size, f"at most {readable(self.limit)}: WebAssembly's addresses have 32 bits",
                             "use smaller tensors or batches, or let go of tensors")

    def reserve(self, size: int) -> int:
        """Allocate `size` bytes, a multiple of ALIGNMENT, that `stats` does not count because they hold no tensor."""
        with self.lock:
            return self._new(size)

    def free(self, address: int, size: int) -> None:
        """Release memory of `reserve`."""
        with self.lock:
            self._add(address, size)

    def copy_in(self, address: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        if view.nbytes:
            with self.lock:
                self.content.write(address, view)

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        with self.lock:
            return self.content.read(address, nbytes) if nbytes else bytearray()

    def stats(self) -> Stats:
        """Count bytes, rounding included."""
        with self.lock:
            return Stats(self._live, self._pooled + sum(self._sizes.values()), self._peak)

    # -- free ranges -------------------------------------------------------------------------------------------
    def _first_fit(self, size: int) -> int | None:
        for at, start in enumerate(self._starts):
            free = self._sizes[start]
            if free < size:
                continue
            del self._starts[at], self._sizes[start]
            if free > size:
                self._starts.insert(at, start + size)
                self._sizes[start + size] = free - size
            return start
        return None

    def _add(self, start: int, size: int) -> None:
        """Add a free range, merged with adjacent ones."""
        at = bisect.bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + size:
            size += self._sizes.pop(self._starts.pop(at))
        if at and self._starts[at - 1] + self._sizes[self._starts[at - 1]] == start:
            self._sizes[self._starts[at - 1]] += size
            return
        self._starts.insert(at, start)
        self._sizes[start] = size

    def _grow(self, size: int) -> None:
        """Try to grow the memory, if possible by more than is needed."""
        now = self.content.size()
        for wanted in (max(size + SPARE, LEAST_GROWTH, now // 4), size + SPARE):
            more = -(-wanted // PAGE) * PAGE
            if now + more <= self.limit and self.content.grow(more):
                self._extend()
                return

    def _extend(self) -> None:
        end = (self.content.size() - SPARE) // ALIGNMENT * ALIGNMENT
        if end > self._end:
            self._add(self._end, end - self._end)
            self._end = end
