"""Blocks of a linear memory. In: sizes in bytes, and something that makes the memory longer. Out: addresses inside it.

A WebAssembly memory is one array of bytes that can grow, to 4 GiB at most, and never shrinks. Free ranges are kept in
order of their addresses; a request takes the first that is large enough, and a released block joins its neighbours.
Does not know which engine owns the memory.
"""

from __future__ import annotations

import bisect
import gc
import threading
from collections.abc import Callable
from typing import Any, Protocol

from glassgrad.base.errors import Bug, MemoryLimitError
from glassgrad.base.fork_locks import held_at_fork
from glassgrad.runtime.host_memory import MemoryBlock, Stats, readable, rounded

PAGE = 64 << 10              # bytes by which a memory grows
LIMIT = 4 << 30              # addresses have 32 bits
ALIGNMENT = 64
FIRST = PAGE                 # the first address of a block: what lies before is for the arguments of a launch
SPARE = 64                   # bytes at the end that no block has: a load of a whole vector may read past its block
LEAST_GROWTH = 4 << 20
FIRST_BYTES = 4 << 20        # that a memory has before it grows


class Stopped(Exception):
    """A function that its engine ended; the text is what the engine says."""


class Bytes(Protocol):
    """The memory itself, as an engine offers it."""

    def size(self) -> int:
        """Bytes it has now."""

    def grow(self, nbytes: int) -> bool:
        """Make it longer, by a multiple of PAGE; False where the engine cannot."""

    def read(self, address: int, nbytes: int) -> bytearray: ...

    def write(self, address: int, data: Any) -> None: ...


class LinearMemory:
    """Allocates inside one linear memory; safe to use from several threads and from finalizers. `lock` is held by
    all that uses the memory's engine: it does one thing at a time."""
    on_host, in_parts = False, True

    def __init__(self, content: Bytes, limit: int = LIMIT, describe: Callable[[], str] | None = None):
        self.content, self.limit, self.describe = content, limit, describe
        self._starts: list[int] = []          # of the free ranges, in order
        self._sizes: dict[int, int] = {}      # start: bytes
        self._end = FIRST                     # of what was ever free or in use
        self._live = self._peak = 0
        self.lock = held_at_fork(threading.RLock(), "memory")
        self._extend()

    def allocate(self, nbytes: int) -> MemoryBlock:
        """A block of at least so many bytes, not cleared."""
        size = rounded(max(nbytes, 1))        # a multiple of ALIGNMENT; few sizes leave few gaps
        with self.lock:
            address = self.reserve(size)
            self._live += size
            self._peak = max(self._peak, self._live)
        return MemoryBlock(address, nbytes, size)

    def release(self, block: MemoryBlock) -> None:
        """Take back a block that is not used any more."""
        if not block.address:
            raise Bug("a block of memory was released twice")
        with self.lock:
            self._live -= block.size
            self.free(block.address, block.size)
        block.address = 0

    def reserve(self, size: int) -> int:
        """The address of so many bytes, a multiple of ALIGNMENT, which `stats` does not count: they hold no tensor."""
        with self.lock:
            address = self._take(size)
            if address is None:
                self._grow(size)
                address = self._take(size)
            if address is None:
                gc.collect()                  # cycles of dead tensors may hold memory
                address = self._take(size)
            if address is None:
                raise self._full(size)
            return address

    def free(self, address: int, size: int) -> None:
        """Take back what was reserved."""
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

    def empty_cache(self) -> None:
        """Nothing can be given back: the memory does not shrink."""

    def stats(self) -> Stats:
        """Counts of bytes, rounding included."""
        with self.lock:
            return Stats(self._live, sum(self._sizes.values()), self._peak)

    def reset_peak(self) -> None:
        """Counts the peak from now on."""
        with self.lock:
            self._peak = self._live

    # -- free ranges -------------------------------------------------------------------------------------------
    def _take(self, size: int) -> int | None:
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
        """A range becomes free, and joins those that it touches."""
        at = bisect.bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + size:
            size += self._sizes.pop(self._starts.pop(at))
        if at and self._starts[at - 1] + self._sizes[self._starts[at - 1]] == start:
            self._sizes[self._starts[at - 1]] += size
            return
        self._starts.insert(at, start)
        self._sizes[start] = size

    def _grow(self, size: int) -> None:
        """Try to make the memory longer, by more than is needed where that is possible."""
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

    def _full(self, size: int) -> MemoryLimitError:
        held = self.describe() if self.describe else ""
        given = f"{readable(size)} more, with {readable(self._live)} in use" + (f":\n{held}" if held else "")
        return MemoryLimitError("there is not enough memory for this tensor", given=given,
                                expected=f"at most {readable(self.limit)}: WebAssembly's addresses have 32 bits",
                                fix="use smaller tensors or batches, or let go of tensors")
