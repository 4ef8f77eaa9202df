"""Values in memory. In: a shape, a type, a device. Out: `Buffer`, which owns its memory and gives it back.

A buffer is a value: as long as anybody knows it it does not change, so graphs may hold it without fear of aliasing. (A
part may be written where nobody else does: in_place.py, and in_place_results.py for replays.) Its memory comes
from the device's pool and returns there when the last graph and tensor that know it are gone.
"""

from __future__ import annotations

import ctypes
import gc
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from glassgrad.base.source_lines import Place, line_of, user_place
from glassgrad.compiler.graph.arguments import Shape
from glassgrad.compiler.graph.dtype import DType
from glassgrad.engine.counters import GlobalCounters
from glassgrad.runtime.devices import Device
from glassgrad.runtime.host_memory import HostMemory, MemoryBlock, readable

if TYPE_CHECKING:
    from glassgrad.runtime.backend import DeviceMemory


class Buffer:
    """A row-major value on a device.

    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> b = Buffer((2,), dtypes.int32, "CPU")
    >>> b.copy_in(b"\\x01\\0\\0\\0\\x02\\0\\0\\0")
    >>> list(memoryview(b.copy_out()).cast("i"))
    [1, 2]
    """
    __slots__ = ("shape", "dtype", "device", "nbytes", "address", "owner", "place", "_memory", "_block", "__weakref__")

    def __init__(self, shape: Shape, dtype: DType, device: str, place: Place | None = None):
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        self.owner: Any = None           # what else must live as long: a NumPy array whose memory this is
        self.place = place or user_place()
        memory = Device[device].memory
        if isinstance(memory, HostMemory) and memory.describe is None:
            memory.describe = partial(largest_live, device)
        block = memory.allocate(self.nbytes)
        self._memory: DeviceMemory | None = memory     # gives it back, even if the name has come to mean another device
        self._block: MemoryBlock | None = block
        self.address = block.address
        GlobalCounters.mem_used += self.nbytes

    @classmethod
    def from_host(cls, owner: Any, address: int, shape: Shape, dtype: DType, device: str) -> Buffer:
        """Memory that somebody else owns and that this buffer keeps alive."""
        self = object.__new__(cls)
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        self.owner, self.address, self.place = owner, address, user_place()
        self._memory = self._block = None
        return self

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        block = getattr(self, "_block", None)
        if block is not None and not finalizing():      # when the interpreter ends, the pool may be gone before us
            self._block = None
            GlobalCounters.mem_used -= self.nbytes
            assert self._memory is not None
            self._memory.release(block)

    def __repr__(self) -> str:
        return f"Buffer({self.dtype.name}{list(self.shape)} on {self.device})"

    def copy_in(self, data: Any) -> None:
        """Fill from host bytes."""
        Device[self.device].copy_in(self.address, data)

    def copy_out(self) -> bytearray:
        """The bytes, copied to the host."""
        return Device[self.device].copy_out(self.address, self.nbytes)

    @property
    def size(self) -> int:
        """The number of elements, as tinygrad asks for it."""
        return math.prod(self.shape)

    def as_buffer(self, allow_zero_copy: bool = False, force_zero_copy: bool = False) -> memoryview:
        """The bytes, as tinygrad asks for them: copied, or the memory itself where that is allowed and can be."""
        shared = (allow_zero_copy or force_zero_copy) and self.nbytes and Device[self.device].memory.on_host
        return self.view() if shared else memoryview(self.copy_out())

    def view(self) -> memoryview:
        """The memory itself as writable bytes, on devices that share the host's."""
        memory = (ctypes.c_char * self.nbytes).from_address(self.address)
        memory._owner = self             # type: ignore[attr-defined]
        return memoryview(memory).cast("B")


def live_buffers() -> list[Buffer]:
    """All that own memory now. Nobody keeps a list of them: it would cost every buffer something, for a message."""
    return [b for b in gc.get_objects() if type(b) is Buffer and getattr(b, "_block", None) is not None]


def largest_live(device: str, count: int = 5) -> str:
    """The largest buffers alive on a device and the lines that made them, for the message that memory is full."""
    rows = sorted((b for b in live_buffers() if b.device == device), key=lambda b: -b.nbytes)[:count]
    return "\n".join(f"{readable(b.nbytes):>10}  {b.dtype.name}{list(b.shape)}  made at {line_of(b.place) or 'unknown'}"
                     for b in rows)
