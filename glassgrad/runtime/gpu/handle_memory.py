"""Memory that a device names by handles. In: sizes. Out: blocks with addresses.

The engine names memory by addresses. Handles have none, so each block gets a range of virtual addresses, which `find`
maps back to (handle, offset). Released blocks are pooled by size.

A driver's threads do not exist in a child of `os.fork()`, where a wait for them would hang: an error refuses it.
"""

from __future__ import annotations

import bisect
import os
import threading
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.base.fork_locks import held_at_fork
from glassgrad.runtime.gpu.gpu_device import block_too_large, in_forked_process, no_memory_left
from glassgrad.runtime.host_memory import MemoryBlock, rounded

FIRST = 1 << 60           # first virtual address, beyond any host address


class MemoryByHandle:
    """Blocks of device memory by virtual addresses; safe to use from several threads. A subclass provides `new_handle`,
    `write` and `read`."""
    on_host, in_parts = False, True
    smallest = 1              # least bytes of a block
    largest = 1 << 62         # most bytes of a block that the driver allows

    def __init__(self, device: str):
        self.device_name = device
        self.process = os.getpid()                                # in a forked child the driver's threads are missing
        # A finalizer may call `release` while this thread is inside `allocate`: the lock is reentrant.
        self.lock = held_at_fork(threading.RLock(), "memory")
        self.next = FIRST
        self.handles: dict[int, Any] = {}                         # address: handle of each block, pooled ones included
        self.starts: list[int] = []            # sorted addresses; replaced, never changed: `find` takes no lock
        self.kept: dict[int, list[int]] = {}                      # size: addresses of released blocks

    def new_handle(self, size: int) -> Any:
        """Allocate `size` bytes; return a handle, or None if the device is out of memory."""
        raise Bug(f"{type(self).__name__} has no new_handle")

    def write(self, address: int, view: memoryview) -> None:
        """Copy bytes, at least one, to an address."""
        raise Bug(f"{type(self).__name__} has no write")

    def read(self, address: int, nbytes: int) -> bytearray:
        """Return a copy of the bytes, at least one, at an address."""
        raise Bug(f"{type(self).__name__} has no read")

    def copy_in(self, address: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        if view.nbytes:
            self.write(address, view)

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        return self.read(address, nbytes) if nbytes else bytearray()

    def new_address(self, handle: Any, size: int) -> int:
        """Return the virtual address of a new block."""
        address = self.next
        self.next += -(-size // 4096) * 4096
        return address

    def free(self, handle: Any) -> None:
        """Free a block; by default the handle's destructor does."""

    def check_process(self) -> None:
        """Raise `DeviceError` in a forked child."""
        if os.getpid() != self.process:
            raise in_forked_process(self.device_name)

    def allocate(self, nbytes: int) -> MemoryBlock:
        self.check_process()
        size = rounded(max(nbytes, self.smallest))
        with self.lock:
            pool = self.kept.get(size)
            return MemoryBlock(pool.pop() if pool else self._new(size), nbytes, size)

    def _new(self, size: int) -> int:
        if size > self.largest:
            raise block_too_large(self.device_name, size, self.largest)
        handle = self.new_handle(size)
        if handle is None:
            self.empty_cache()
            handle = self.new_handle(size)
        if handle is None:
            raise no_memory_left(size)
        address = self.new_address(handle, size)
        self.handles[address] = handle
        starts = self.starts.copy()
        bisect.insort(starts, address)
        self.starts = starts
        return address

    def release(self, block: MemoryBlock) -> None:
        with self.lock:
            self.kept.setdefault(block.size, []).append(block.address)

    def empty_cache(self) -> None:
        with self.lock:
            kept, self.kept = self.kept, {}
            for address in (address for pool in kept.values() for address in pool):
                self.free(self.handles.pop(address))
            self.starts = sorted(self.handles)

    def find(self, address: int) -> tuple[Any, int]:
        """The (handle, byte offset) of an address."""
        self.check_process()
        starts = self.starts
        at = bisect.bisect_right(starts, address) - 1
        if at < 0:
            raise Bug(f"no memory of this device is at {address:#x}")
        start = starts[at]
        return self.handles[start], address - start
