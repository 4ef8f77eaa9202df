"""Hold values in memory. In: a shape, a type, a device. Out: `Buffer`, which owns its memory and lists its readers.

A buffer's memory comes from the device's pool and returns there when the last node and tensor that hold the buffer are
gone. Its contents may change only while nothing else can read them (in_place.py, and the jit's replays). To know that,
`readers` lists, by weak references, every node over the buffer, every tensor whose node it is and every array that
shares its memory. A listed reader that is in fact gone costs at most a copy; an unlisted one would see its value
change, so every reader must be registered first. Does not know graphs, schedules or tensors (of a tensor, only that
`uop` is its node).
"""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError
from glassgrad.base.source_lines import Place, line_of, user_place
from glassgrad.compiler.graph import DType, Shape
from glassgrad.engine.counters import GlobalCounters
from glassgrad.runtime.devices import Device
from glassgrad.runtime.memory_pool import MemoryBlock, describing, readable

if TYPE_CHECKING:
    from glassgrad.runtime.backend import DeviceMemory

_FIRST_SWEEP = 32             # number of listed readers at which dead ones are first dropped


class Buffer:
    """A row-major value on a device.

    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> b = Buffer((2,), dtypes.int32, "CPU")
    >>> b.copy_in(b"\\x01\\0\\0\\0\\x02\\0\\0\\0")
    >>> list(b.copy_out().cast("i"))
    [1, 2]
    >>> shown = b.view()
    >>> b.is_free()
    False
    >>> del shown
    >>> b.is_free()
    True
    """
    __slots__ = ("shape", "dtype", "device", "nbytes", "address", "owner", "place", "readers", "version", "leaves",
                 "_next_sweep", "_memory", "_block", "__weakref__")

    def __init__(self, shape: Shape, dtype: DType, device: str, place: Place | None = None,
                 memory: DeviceMemory | None = None):
        self._block: MemoryBlock | None = None         # set first: if allocating fails, `__del__` still runs
        self.shape, self.dtype, self.device = shape, dtype, device
        try:
            self.nbytes = nbytes = math.prod(shape) * dtype.itemsize
        except (TypeError, AttributeError):              # tinygrad's order is device, size, type
            raise InputError("a buffer is made from its shape, type and device, in this order",
                             given=f"Buffer({shape!r}, {dtype!r}, {device!r})",
                             expected='for example Buffer((4,), dtypes.int32, "CPU")',
                             fix="put them in this order, or make a tensor: Tensor.empty(4, dtype=dtypes.int32)"
                             ) from None
        self.owner: Any = None           # what must live as long as this: a NumPy array whose memory this is
        self.place = place or user_place()
        self.readers: list[Any] = []     # weak references; this list is replaced, never shortened (see `_drop_dead`)
        self.version = 0                 # incremented by each write in place, which outdates facts about the contents
        self.leaves: list[Any] = []      # weak references to tensors that are leaves here
        self._next_sweep = _FIRST_SWEEP
        self._memory = memory = memory or Device[device].memory     # the pool that the block returns to
        self._block = block = memory.allocate(nbytes)
        self.address = block.address
        GlobalCounters.mem_used += nbytes

    @classmethod
    def from_host(cls, owner: Any, address: int, shape: Shape, dtype: DType, device: str) -> Buffer:
        """Make a buffer over memory that `owner` owns and that this buffer keeps alive. If the owner is a buffer, this
        one becomes a reader of it."""
        self = object.__new__(cls)
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        self.owner, self.address, self.place = owner, address, user_place()
        self.readers, self.version, self.leaves, self._next_sweep = [], 0, [], _FIRST_SWEEP
        self._memory = self._block = None
        if isinstance(owner, Buffer):
            owner.add_reader(weakref.ref(self))
        return self

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        block = self._block
        if block is not None and not finalizing():      # when the interpreter ends, the pool may be gone before us
            self._block = None
            GlobalCounters.mem_used -= self.nbytes
            self._memory.release(block)

    def __repr__(self) -> str:
        return f"Buffer({self.dtype.name}{list(self.shape)} on {self.device})"

    # -- readers ---------------------------------------------------------------------------------------------
    @property
    def owns_memory(self) -> bool:
        """Whether the memory belongs to the device's pool, and not to something else."""
        return self._block is not None

    def add_leaf(self, reference: Any) -> None:
        """List the tensor that a weak reference refers to as a leaf of this buffer, and as a reader."""
        leaves, readers = self.leaves, self.readers
        if leaves:
            leaves[:] = [r for r in leaves if r is not reference and r() is not None]
        leaves.append(reference)
        if not readers:
            readers.append(reference)
        elif readers[-1] is not reference:                             # a tensor may be registered again and again
            self.add_reader(reference)

    def add_reader(self, reference: Any) -> None:
        """List what a weak reference refers to as a reader, for as long as it lives: a node over this buffer, a tensor
        (a reader only while its `uop` is that node), or an array that shares the memory."""
        readers = self.readers
        readers.append(reference)
        if len(readers) > self._next_sweep:
            self._drop_dead()

    def _drop_dead(self) -> None:
        """Replace the list of readers by one without dead references. The old list gets one more entry, so that code
        that compares its length sees a change."""
        listed = self.readers
        alive = [r for r in listed if r() is not None]
        self._next_sweep = max(_FIRST_SWEEP, 2 * len(alive))
        if len(alive) < len(listed):
            self.readers = alive
            listed.append(None)

    def forget_readers(self) -> None:
        """Clear the list of readers, because the contents, which nothing can read any more, are overwritten."""
        if self.readers:
            self.readers.append(None)        # to the old list, as in `_drop_dead`
            self.readers = []

    def is_free(self, *mine: Any) -> bool:
        """Return whether nothing but `mine` can read the contents, so that they may be overwritten."""
        for reference in [*self.readers]:                # a copy: another thread may append to the list meanwhile
            thing = reference()
            if thing is not None and self._is_read_by(thing) and not any(thing is own for own in mine):
                return False
        return True

    def _is_read_by(self, thing: Any) -> bool:
        node = getattr(thing, "uop", None)              # a tensor's node may have changed; other readers stay readers
        return node is None or node.arg is self

    # -- contents --------------------------------------------------------------------------------------------
    def copy_in(self, data: Any) -> None:
        """Fill the buffer with bytes from the host."""
        Device[self.device].copy_in(self.address, data)

    def copy_out(self) -> memoryview:
        """Copy the bytes to the host."""
        return memoryview(Device[self.device].copy_out(self.address, self.nbytes))

    @property
    def size(self) -> int:
        """The number of elements (tinygrad's name)."""
        return math.prod(self.shape)

    def as_buffer(self, allow_zero_copy: bool = False, force_zero_copy: bool = False) -> memoryview:
        """Return the bytes (tinygrad's name): a copy, or the memory itself if that is allowed and possible."""
        shared = (allow_zero_copy or force_zero_copy) and self.nbytes and Device[self.device].memory.on_host
        return self.view() if shared else self.copy_out()

    def view(self) -> memoryview:
        """Return the memory itself as writable bytes, on devices that share the host's memory. The view counts as a
        reader."""
        memory = (ctypes.c_char * self.nbytes).from_address(self.address)
        memory._owner = self             # type: ignore[attr-defined]
        self.add_reader(weakref.ref(memory))
        return memoryview(memory).cast("B")


def live_buffers() -> list[Buffer]:
    """Return all buffers that own memory now, for messages and tests. They are found by the garbage collector, so that
    creating a buffer costs no entry in a list."""
    return [b for b in gc.get_objects() if type(b) is Buffer and b.owns_memory]


def largest_live(memory: DeviceMemory, count: int = 5) -> str:
    """Describe the largest live buffers in a memory and the lines that made them, for the message that it is full."""
    rows = sorted((b for b in live_buffers() if b._memory is memory), key=lambda b: -b.nbytes)[:count]
    return "\n".join(f"{readable(b.nbytes):>10}  {b.dtype.name}{list(b.shape)}  made at {line_of(b.place) or 'unknown'}"
                     for b in rows)


describing.append(largest_live)
