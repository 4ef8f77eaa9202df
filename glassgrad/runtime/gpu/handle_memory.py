"""Pool the memory of a driver that names it by handles. In: sizes. Out: blocks with virtual addresses.

Kernels of such a driver take a handle and an offset: `find` returns both. A driver's threads do not exist in a child of
`os.fork()`, where waiting for them would hang: an error refuses it.
"""

from __future__ import annotations

import os
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.runtime.gpu.gpu_device import block_too_large, in_forked_process, no_memory_left
from glassgrad.runtime.memory_pool import MemoryPool, VirtualAddresses


class MemoryByHandle(MemoryPool):
    """Blocks of device memory by virtual addresses. A subclass provides `new_handle`, `write` and `read`."""
    on_host, in_parts = False, True
    largest = 1 << 62         # most bytes of a block that the driver allows
    full = staticmethod(no_memory_left)

    def __init__(self, device: str):
        super().__init__()
        self.device_name = device
        self.process = os.getpid()                                # in a forked child the driver's threads are missing
        self.handles = VirtualAddresses()                    # of all blocks, pooled ones included

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
        """Return the address of a new block."""
        return self.handles.reserve(size)

    def free(self, handle: Any) -> None:
        """Free a block; by default the handle's destructor does."""

    def check_process(self) -> None:
        """Raise `DeviceError` in a forked child."""
        if os.getpid() != self.process:
            raise in_forked_process(self.device_name)

    def take(self, size: int) -> int | None:
        self.check_process()
        if size > self.largest:
            raise block_too_large(self.device_name, size, self.largest)
        handle = self.new_handle(size)
        if handle is None:
            return None
        address = self.new_address(handle, size)
        self.handles.add(address, handle)
        return address

    def give_back(self, address: int, size: int) -> None:
        self.free(self.handles.remove(address))

    def find(self, address: int) -> tuple[Any, int]:
        """Return the (handle, byte offset) of an address."""
        self.check_process()
        found = self.handles.find(address)
        if found is None:
            raise Bug(f"no memory of this device is at {address:#x}")
        return found[1], address - found[0]
