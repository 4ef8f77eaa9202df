"""Pool the blocks of a device's memory. In: sizes, and where memory comes from. Out: blocks, not cleared.

Does not know tensors, dtypes or devices. Fresh memory is the largest cost of big elementwise work, so released blocks
are kept, by size, for the next request of that size. Small blocks are carved from slabs, larger ones are allocated by
themselves. Sizes are rounded up to eight steps per power of two, so at most an eighth of a block is lost.

Every computed value takes a block and gives one back. For small blocks that is one `pop` and one `append` of a list,
which other threads cannot interrupt: no lock is taken, and nothing is counted until `stats` is called.
"""

from __future__ import annotations

import gc
import math
import threading
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, MemoryLimitError
from glassgrad.base.fork_locks import held_at_fork
from glassgrad.base.settings import settings

MEBIBYTE = 1 << 20
FIRST = 1 << 60           # first virtual address, beyond any host address
PAGE = 4096               # virtual addresses of blocks are multiples of this

# Functions that describe what a memory holds, for out-of-memory messages; added by engine/buffer.py
describing: list[Callable[[Any], str]] = []


class MemoryBlock:
    """`nbytes` bytes at `address`; `size` is the rounded size."""
    __slots__ = ("address", "nbytes", "size")

    def __init__(self, address: int, nbytes: int, size: int):
        self.address, self.nbytes, self.size = address, nbytes, size

    def __repr__(self) -> str:
        return f"MemoryBlock({self.nbytes} bytes at {self.address:#x})" if self.address else "MemoryBlock(released)"


class VirtualAddresses(dict[int, Any]):
    """What is kept of each block, by address, for memory that is named by handles: handles have no addresses, which the
    engine needs.

    >>> blocks = VirtualAddresses()
    >>> address = blocks.reserve(100)
    >>> blocks.add(address, "a handle")
    >>> blocks.find(address + 60) == (address, "a handle")
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.next = FIRST
        self.starts: list[int] = []            # sorted addresses; replaced, never changed: `find` takes no lock

    def reserve(self, nbytes: int) -> int:
        """Return the address of a new block."""
        address = self.next
        self.next += -(-max(nbytes, 1) // PAGE) * PAGE
        return address

    def add(self, address: int, kept: Any) -> None:
        """Add a block, at a reserved address or one of its own."""
        self[address] = kept
        self.starts = sorted(self)

    def remove(self, address: int) -> Any:
        """Remove a block; return what was kept of it."""
        kept = self.pop(address)
        self.starts = sorted(self)
        return kept

    def find(self, address: int) -> tuple[int, Any] | None:
        """Return the (address, what is kept) of the last block that begins there or before; None if there is none."""
        starts = self.starts
        at = bisect_right(starts, address) - 1
        return None if at < 0 else (starts[at], self[starts[at]])


class Stats(NamedTuple):
    """Bytes in use, bytes pooled for reuse, and peak use. In the peak, slabs of small blocks count whole."""
    live: int
    pooled: int
    peak: int


@lru_cache(maxsize=1024)
def rounded(nbytes: int) -> int:
    """Return the size of the block that a request gets.

    >>> [rounded(n) for n in (0, 1, 64, 65, 1000, 1025, 100_000)]
    [0, 64, 64, 128, 1024, 1152, 106496]
    """
    if nbytes <= 512:
        return (nbytes + 63) & -64
    step = (nbytes - 1).bit_length() - 4
    return (((nbytes - 1) >> step) + 1) << step


def readable(nbytes: int) -> str:
    """Format a number of bytes for people.

    >>> readable(1000), readable(3 << 20), readable(5 << 29)
    ('1000 bytes', '3.0 MiB', '2.5 GiB')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"


class MemoryPool:
    """Blocks by address, pooled; safe to use from several threads and from finalizers. A subclass provides `take` and
    `give_back`, and says where blocks are carved from slabs."""
    small, slab = 0, 0        # blocks of up to `small` bytes are carved from slabs of `slab` bytes
    least = 1                 # bytes of the smallest block; blocks in a slab begin at multiples of it
    nowhere = 0               # the address of empty blocks, if these need no memory
    most_pooled = math.inf    # bytes of released blocks to keep, unless POOL_MB is set; on a GPU, all of its memory

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}   # size -> addresses, the last released last
        self._order: dict[int, int] = {}        # address -> size of pooled blocks outside of slabs, oldest first
        self._slabs: dict[int, list[int]] = {}  # size -> slabs, by address
        self._live = self._peak = 0             # bytes in use, in which slabs count whole
        self._pooled = 0                        # bytes of pooled blocks outside of slabs
        # A finalizer may call `release` while this thread is inside `allocate`: the lock is reentrant.
        self.lock = held_at_fork(threading.RLock(), "memory")

    # -- provided by each memory -----------------------------------------------------------------------------
    def take(self, size: int) -> int | None:
        """Return the address of `size` new bytes; None if there is no memory left."""
        raise Bug(f"{type(self).__name__} has no take")

    def give_back(self, address: int, size: int) -> None:
        """Return bytes of `take` to the system."""
        raise Bug(f"{type(self).__name__} has no give_back")

    def wait_for_kernels(self) -> None:
        """Wait until nothing uses the released blocks, before they are returned to the system. On the host, kernels
        have already run."""

    def full(self, size: int) -> MemoryLimitError:
        """Return the error for memory that is used up."""
        return self._refused(size, "the system has no more", "use smaller tensors or batches")

    # -- blocks ----------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> MemoryBlock:
        """Return an uninitialized block of at least `nbytes` bytes."""
        if nbytes < self.least:
            return self._smallest_block(nbytes)
        size = rounded(nbytes)
        if size > self.small:
            address = self._large(size)
        else:
            try:
                address = self._free[size].pop()
            except LookupError:
                address = self._carve(size)
        return MemoryBlock(address, nbytes, size)

    def _smallest_block(self, nbytes: int) -> MemoryBlock:
        if nbytes < 0:
            raise Bug(f"a block cannot have {nbytes} bytes")
        if not nbytes and self.nowhere:
            return MemoryBlock(self.nowhere, 0, 0)
        block = self.allocate(self.least)
        block.nbytes = nbytes
        return block

    def release(self, block: MemoryBlock) -> None:
        """Take a block back into the pool or, above POOL_MB, return it to the system."""
        address, size = block.address, block.size
        if not address:
            raise Bug("a block of memory was released twice")
        block.address = 0
        if size > self.small:
            with self.lock:
                self._live -= size
                self._pooled += size
                self._order[address] = size      # first: once it is in `_free`, a finalizer's allocation may take it
                self._free[size].append(address)
                limit = self._limit()
                if self._pooled > limit:
                    self.wait_for_kernels()
                    self._trim(limit)
        elif size:
            self._free[size].append(address)

    def empty_cache(self) -> None:
        """Return all pooled memory to the system."""
        with self.lock:
            self.wait_for_kernels()
            self._trim(0)
            for size, slabs in self._slabs.items():
                self._free_slabs(size, slabs)

    def stats(self) -> Stats:
        """Count bytes, rounding included."""
        with self.lock:
            idle = sum([size * len(free) for size, free in self._free.items() if size <= self.small])
            return Stats(self._live - idle, self._pooled + idle, self._peak)

    def reset_peak(self) -> None:
        """Measure the peak from now on."""
        with self.lock:
            self._peak = self._live

    def _large(self, size: int) -> int:
        """Allocate a block outside of slabs, from the pool or new."""
        if settings.MEMORY_MB:
            self._check_limit(size)
        with self.lock:
            free = self._free.get(size)
            if free:
                address = free.pop()
                self._pooled -= self._order.pop(address)
            else:
                address = self._new(size)
                self._free.setdefault(size, [])
            self._count(size)
        return address

    def _carve(self, size: int) -> int:
        """Allocate a slab; return its first block and put the others into the pool."""
        self._check_limit(self.slab)
        with self.lock:
            slab = self._new(self.slab)
            insort(self._slabs.setdefault(size, []), slab)
            step = self._step(size)
            blocks = list(range(slab, slab + self.slab - step + 1, step))
            blocks.reverse()  # the pool returns its last block first: blocks are used in rising order
            self._count(size * len(blocks))
            address = blocks.pop()
            self._free.setdefault(size, []).extend(blocks)
        return address

    def _step(self, size: int) -> int:
        """Return the distance between blocks of a size in a slab."""
        return -(-size // self.least) * self.least

    def _count(self, nbytes: int) -> None:
        self._live += nbytes
        if self._live > self._peak:
            self._peak = self._live

    def _new(self, size: int) -> int:
        address = self.take(size)
        if address is None:
            self.empty_cache()
            gc.collect()  # cycles of dead tensors may hold memory
            self.empty_cache()
            address = self.take(size)
        if address is None:
            raise self.full(size)
        return address

    # -- limits ----------------------------------------------------------------------------------------------
    def _check_limit(self, size: int) -> None:
        limit = settings.MEMORY_MB * MEBIBYTE
        if not limit or self.stats().live + size <= limit:
            return
        gc.collect()  # cycles of dead tensors may hold memory
        if self.stats().live + size > limit:
            raise self._refused(size, f"at most {readable(limit)} in use (MEMORY_MB={settings.MEMORY_MB})",
                                "use smaller tensors or batches, or raise MEMORY_MB")

    def _refused(self, size: int, expected: str, fix: str) -> MemoryLimitError:
        held = "".join([f":\n{text}" for describe in describing if (text := describe(self))])
        given = f"{readable(size)} more, with {readable(self.stats().live)} in use" + held
        return MemoryLimitError("there is not enough memory for this tensor", given=given, expected=expected,
                                fix=fix)

    def _limit(self) -> float:
        """Return the number of bytes of released blocks to keep at most."""
        return self.most_pooled if settings.POOL_MB < 0 else settings.POOL_MB * MEBIBYTE

    def _trim(self, limit: float) -> None:
        """Return the blocks that were released longest ago to the system, until the pool fits."""
        while self._pooled > limit and self._order:
            address = next(iter(self._order))
            size = self._order.pop(address)
            self._free[size].remove(address)
            self._pooled -= size
            self.give_back(address, size)

    def _free_slabs(self, size: int, slabs: list[int]) -> None:
        """Return the slabs of one size in which every block is free to the system."""
        free, taken = self._free[size], list[int]()
        for _ in range(len(free)):               # one by one: other threads take and release blocks meanwhile
            with suppress(IndexError):
                taken.append(free.pop())
        slab_of = {address: slabs[bisect_right(slabs, address) - 1] for address in taken}
        counts, each = Counter(slab_of.values()), self.slab // self._step(size)
        empty = {slab for slab in slabs if counts[slab] == each}
        slabs[:] = [slab for slab in slabs if slab not in empty]
        free.extend([address for address in reversed(taken) if slab_of[address] not in empty])
        self._live -= size * each * len(empty)
        for slab in empty:
            self.give_back(slab, self.slab)
