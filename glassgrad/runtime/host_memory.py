"""Host memory with a pool. In: sizes in bytes. Out: blocks of memory, not cleared.

Does not know tensors, dtypes or devices. Fresh pages are the largest cost of big elementwise work, so
released blocks are kept, by size, for the next request of that size. Three kinds of block:

- up to 64 KiB: carved from 1 MiB slabs, aligned to 64 bytes;
- up to 1 MiB: pages of their own;
- larger: pages of their own, aligned to 2 MiB, with a request for huge pages.

Sizes are rounded up to eight steps per power of two, so at most an eighth of a block is lost.

Every value that is computed takes a block and gives one back. For small ones that is one `pop` and one `append` of a
list, which other threads cannot interrupt: no lock is taken, and nothing is counted until `stats` is called.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, MemoryLimitError
from glassgrad.base.fork_locks import held_at_fork
from glassgrad.base.settings import settings
from glassgrad.runtime.os_pages import HUGE_PAGE, PAGE, advise_huge, map_pages, round_up, unmap_pages

SLAB = 1 << 20
_SMALL, _LARGE = 64 << 10, 1 << 20
_MEBIBYTE = 1 << 20

_nothing = ctypes.create_string_buffer(128)
# Describes what the memory holds, for out-of-memory messages; set by a later stage
describing: list[Callable[[Any], str]] = []
_NOWHERE = round_up(ctypes.addressof(_nothing), 64)  # address of empty blocks: aligned, not null


class MemoryBlock:
    """`nbytes` bytes at `address`; `size` is the rounded size."""
    __slots__ = ("address", "nbytes", "size")

    def __init__(self, address: int, nbytes: int, size: int):
        self.address, self.nbytes, self.size = address, nbytes, size

    def __repr__(self) -> str:
        return f"MemoryBlock({self.nbytes} bytes at {self.address:#x})" if self.address else "MemoryBlock(released)"


class Stats(NamedTuple):
    """Bytes in use, bytes pooled for reuse, and peak use, in which slabs of small blocks count whole."""
    live: int
    pooled: int
    peak: int


@lru_cache(maxsize=1024)
def rounded(nbytes: int) -> int:
    """The size of the block that a request gets.

    >>> [rounded(n) for n in (0, 1, 64, 65, 1000, 1025, 100_000)]
    [0, 64, 64, 128, 1024, 1152, 106496]
    """
    if nbytes <= 512:
        return (nbytes + 63) & -64
    step = (nbytes - 1).bit_length() - 4
    return (((nbytes - 1) >> step) + 1) << step


def readable(nbytes: int) -> str:
    """A size for people.

    >>> readable(1000), readable(3 << 20), readable(5 << 29)
    ('1000 bytes', '3.0 MiB', '2.5 GiB')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"


class HostMemory:
    """Memory of this machine, pooled; safe to use from several threads and from finalizers.

    >>> memory = HostMemory()
    >>> block = memory.allocate(1000)
    >>> memory.stats()
    Stats(live=1024, pooled=1047552, peak=1048576)
    >>> memory.release(block)
    >>> memory.empty_cache()
    >>> memory.stats()
    Stats(live=0, pooled=0, peak=1048576)
    """
    on_host = in_parts = True

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}   # size -> addresses, the last released last
        self._order: dict[int, int] = {}        # address -> size of pooled blocks above 64 KiB, oldest first
        self._slabs: dict[int, list[int]] = {}  # size -> slabs
        self._live = self._peak = 0             # bytes in use, in which slabs count whole
        self._pooled = 0                        # bytes of pooled blocks above 64 KiB
        # A finalizer may call `release` while this thread is inside `allocate`: the lock is reentrant.
        self._lock = held_at_fork(threading.RLock(), "memory")

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Return an uninitialized block of at least `nbytes` bytes."""
        if nbytes <= 0:
            if nbytes < 0:
                raise Bug(f"a block cannot have {nbytes} bytes")
            return MemoryBlock(_NOWHERE, 0, 0)
        size = rounded(nbytes)
        if size > _SMALL:
            address = self._large(size)
        else:
            try:
                address = self._free[size].pop()
            except LookupError:
                address = self._carve(size)
        return MemoryBlock(address, nbytes, size)

    def release(self, block: MemoryBlock) -> None:
        """Gives a block back, to the pool or, above POOL_MB, to the system."""
        address, size = block.address, block.size
        if not address:
            raise Bug("a block of memory was released twice")
        block.address = 0
        if size > _SMALL:
            limit = settings.POOL_MB * _MEBIBYTE
            with self._lock:
                self._live -= size
                self._pooled += size
                self._order[address] = size      # before it can be taken again, by a finalizer
                self._free[size].append(address)
                if self._pooled > limit:
                    self._trim(limit)
        elif size:
            self._free[size].append(address)

    def copy_in(self, address: int, data: Any) -> None:
        """Copies bytes to an address."""
        view = memoryview(data).cast("B")
        if view.nbytes:
            memoryview((ctypes.c_char * view.nbytes).from_address(address)).cast("B")[:] = view

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        """Copies the bytes at an address."""
        return bytearray((ctypes.c_char * nbytes).from_address(address))

    def empty_cache(self) -> None:
        """Gives all pooled memory back to the system."""
        with self._lock:
            self._trim(0)
            for size, slabs in self._slabs.items():
                self._free_slabs(size, slabs)

    def stats(self) -> Stats:
        """Counts of bytes, rounding included."""
        with self._lock:
            idle = sum([size * len(free) for size, free in self._free.items() if size <= _SMALL])
            return Stats(self._live - idle, self._pooled + idle, self._peak)

    def reset_peak(self) -> None:
        """Counts the peak from now on."""
        with self._lock:
            self._peak = self._live

    def _large(self, size: int) -> int:
        """Take a block above 64 KiB, from the pool or from the system."""
        if settings.MEMORY_MB:
            self._check_limit(size)
        with self._lock:
            free = self._free.get(size)
            if free:
                address = free.pop()
                self._pooled -= self._order.pop(address)
            else:
                address = self._map(size, HUGE_PAGE if size >= _LARGE else PAGE)
                if size >= _LARGE:
                    advise_huge(address, size)
                self._free.setdefault(size, [])
            self._count(size)
        return address

    def _carve(self, size: int) -> int:
        """Map a new slab; return its first block and put the others into the pool."""
        self._check_limit(SLAB)
        with self._lock:
            slab = self._map(SLAB, SLAB)
            self._slabs.setdefault(size, []).append(slab)
            blocks = list(range(slab, slab + SLAB - size + 1, size))
            blocks.reverse()  # the pool returns its last block first: blocks are used in rising order
            self._count(size * len(blocks))
            address = blocks.pop()
            self._free.setdefault(size, []).extend(blocks)
        return address

    def _count(self, nbytes: int) -> None:
        self._live += nbytes
        if self._live > self._peak:
            self._peak = self._live

    def _map(self, size: int, alignment: int) -> int:
        try:
            return map_pages(size, alignment)
        except MemoryError:
            self.empty_cache()
        gc.collect()  # cycles of dead tensors may hold memory
        self.empty_cache()
        try:
            return map_pages(size, alignment)
        except MemoryError:
            raise self._full(size, "the system has no more", "use smaller tensors or batches") from None

    def _check_limit(self, size: int) -> None:
        limit = settings.MEMORY_MB * _MEBIBYTE
        if not limit or self.stats().live + size <= limit:
            return
        gc.collect()  # cycles of dead tensors may hold memory
        if self.stats().live + size > limit:
            raise self._full(size, f"at most {readable(limit)} in use (MEMORY_MB={settings.MEMORY_MB})",
                             "use smaller tensors or batches, or raise MEMORY_MB")

    def _full(self, size: int, expected: str, fix: str) -> MemoryLimitError:
        held = "".join([f":\n{text}" for describe in describing if (text := describe(self))])
        given = f"{readable(size)} more, with {readable(self.stats().live)} in use" + held
        return MemoryLimitError("there is not enough memory for this tensor", given=given, expected=expected,
                                fix=fix)

    def _trim(self, limit: int) -> None:
        """Unmaps the blocks that were released longest ago, until the pool fits."""
        while self._pooled > limit and self._order:
            address = next(iter(self._order))
            size = self._order.pop(address)
            self._free[size].remove(address)
            self._pooled -= size
            unmap_pages(address, size)

    def _free_slabs(self, size: int, slabs: list[int]) -> None:
        """Unmaps the slabs of one size in which every block is free."""
        free, taken = self._free[size], list[int]()
        for _ in range(len(free)):               # one by one: other threads take and release blocks meanwhile
            with suppress(IndexError):
                taken.append(free.pop())
        counts = Counter([address & -SLAB for address in taken])
        empty = {slab for slab in slabs if counts[slab] == SLAB // size}
        slabs[:] = [slab for slab in slabs if slab not in empty]
        free.extend([address for address in reversed(taken) if address & -SLAB not in empty])
        self._live -= size * (SLAB // size) * len(empty)
        for slab in empty:
            unmap_pages(slab, SLAB)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # not at interpreter exit: module globals may be gone, and the system frees all memory anyway
        if getattr(self, "_lock", None) is not None and not finalizing():
            self.empty_cache()
