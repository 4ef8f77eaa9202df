"""Allocate and copy memory of GPUs whose driver is called directly. In: sizes, bytes of the host. Out: blocks, and
copies.

Kernels run on one stream, so a released block may be reused at once: later launches run later. Copies go through pinned
host memory, asynchronously:

    copy_in     the bytes are staged in pinned memory, from where a second stream copies them concurrently with kernels.
                Kernels launched later wait for the copy; the copy waits for kernels that may still use its memory
    copy_out    on the kernels' stream, in pieces, pipelined: one is copied while the one before is read. A few bytes
                are read by one synchronous call

Results of checks (`LateNumbers`) are written to pinned memory by the kernels themselves.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from glassgrad.runtime.gpu.cuda_hip_calls import DriverCalls
from glassgrad.runtime.gpu.gpu_device import no_memory_left
from glassgrad.runtime.memory_pool import MemoryBlock, MemoryPool

_OUT_OF_MEMORY = 2                       # the same number in both drivers
_PIECE, _PIECES = 1 << 20, 16            # pinned staging buffers: bytes of each, and how many
_AHEAD = 3                               # copies in flight to the host while a piece is read
_SMALL_COPY = 64 << 10                   # up to this size, copies use the kernels' stream, which costs less
_NUMBERS, _NOT_YET = 256, -1             # integers allocated at a time, and their value until a kernel writes one
_NON_BLOCKING = 1                        # flag of a stream that does not wait for the default one, in both drivers


def _uninitialized(nbytes: int) -> memoryview:
    """Return uninitialized host memory. A bytearray is zeroed, which takes as long as the copy because it touches every
    page first; `numpy.empty`, if NumPy is loaded, is not zeroed, and uses huge pages."""
    numpy = sys.modules.get("numpy")
    if numpy is None or nbytes < _SMALL_COPY:
        return memoryview(bytearray(nbytes))
    fresh: memoryview = numpy.empty(nbytes, "uint8").data
    return fresh


class PinnedPiece(NamedTuple):
    """A piece of pinned memory, and the event that says when its last copy is done."""
    address: int
    view: memoryview
    event: Any


class PinnedMemory:
    """A ring of pinned staging buffers."""

    def __init__(self, driver: DriverCalls):
        address = driver.made(driver.names.allocate_host, ctypes.c_size_t(_PIECE * _PIECES), 0).value or 0
        whole = memoryview((ctypes.c_char * (_PIECE * _PIECES)).from_address(address)).cast("B")
        self.driver, self._turn = driver, 0
        self._pieces = [PinnedPiece(address + i * _PIECE, whole[i * _PIECE:(i + 1) * _PIECE], driver.event())
                        for i in range(_PIECES)]

    def next(self) -> PinnedPiece:
        """Return the next piece of the ring, after waiting for its last copy."""
        piece = self._pieces[self._turn % _PIECES]
        if self._turn >= _PIECES:
            self.driver.call(self.driver.names.await_event, piece.event)
        self._turn += 1
        return piece


class LateNumbers:
    """Non-negative 32-bit results of checks, which kernels write to pinned host memory. They are polled without
    waiting: whenever another one is taken, and when the host synchronizes anyway. The rest is read when the process
    exits."""

    def __init__(self, driver: DriverCalls):
        self.driver = driver
        self._free: list[Any] = []                 # unused integers in pinned memory
        self._expected: deque[tuple[Any, Callable[[int], None]]] = deque()
        self._looking = threading.Lock()
        self._process = 0                          # id of the process that allocated them

    def take(self) -> Any:
        """Return a ctypes integer that kernels can write to; synchronize if all are in use."""
        self.look()
        if not self._free and self._expected:
            self.driver.call(self.driver.names.synchronize)
            self.look()
        return self._unused()

    def _unused(self) -> Any:
        if not self._free:
            atexit.unregister(self.report_all)
            atexit.register(self.report_all)
            size = ctypes.c_size_t(4 * _NUMBERS)
            address = self.driver.made(self.driver.names.allocate_host, size, 0).value or 0
            self._free += [ctypes.c_int32.from_address(address + 4 * i) for i in range(_NUMBERS)]
            self._process = os.getpid()
        number = self._free.pop()
        number.value = _NOT_YET
        return number

    def expect(self, number: Any, settle: Callable[[int], None]) -> None:
        """Have `look` call `settle(value)` once the launched kernel has written the number. `settle` may raise."""
        self._expected.append((number, settle))

    def copied(self, address: int) -> Any:
        """Start copying a 32-bit integer to the host. Does not poll: an earlier run's error would hide this one."""
        number = self._unused()
        self.driver.call(self.driver.names.copy_out, ctypes.c_void_p(ctypes.addressof(number)),
                         ctypes.c_uint64(address), ctypes.c_size_t(4), None)
        self.driver.launched += 1
        return number

    def look(self) -> None:
        """Poll: call `settle` for the numbers that have been written. Raise the first error; later ones are raised by
        the next call."""
        if self._expected and self._looking.acquire(blocking=False):     # not reentrant
            try:
                while self._expected and self._expected[0][0].value != _NOT_YET:
                    number, settle = self._expected.popleft()
                    value = number.value
                    self._free.append(number)
                    settle(value)
            finally:
                self._looking.release()

    def report_all(self) -> None:
        """At process exit, wait for the remaining checks and print their errors."""
        if self._process != os.getpid():                 # a forked child: the numbers are its parent's
            return
        if self._expected:
            self.driver.call(self.driver.names.synchronize)
        while self._expected and self._expected[0][0].value != _NOT_YET:
            try:
                self.look()
            except Exception as error:                   # go on with the others
                print(f"found when the process ended: {type(error).__name__}: {error}", file=sys.stderr)


class DriverMemory(MemoryPool):
    """Blocks of device memory."""
    on_host, in_parts = False, True
    small, slab, least = 256 << 10, 2 << 20, 256
    full = staticmethod(no_memory_left)

    def __init__(self, driver: DriverCalls):
        super().__init__()
        self.driver, self._copying = driver, threading.RLock()
        self.numbers = LateNumbers(driver)
        self._released: dict[int, int] = {}        # pooled block: launch count at its release
        self._newest = (0, 0, 0)                   # last allocated block: address, launch counts at release, allocation
        self._pinned: PinnedMemory | None = None   # created at the first copy
        self._stream: Any = None                   # for copies concurrent with kernels
        self._reached: Any = None                  # event on the kernels' stream, and the launch count when recorded
        self._reached_at = -1

    # -- blocks ----------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> MemoryBlock:
        block = super().allocate(nbytes)
        self._newest = block.address, self._released.pop(block.address, 0), self.driver.launched
        return block

    def release(self, block: MemoryBlock) -> None:
        self._released[block.address] = self.driver.launched
        super().release(block)

    def take(self, size: int) -> int | None:
        address, name = ctypes.c_uint64(), self.driver.names.allocate
        self.driver.enter()
        result = getattr(self.driver.library, name)(ctypes.byref(address), ctypes.c_size_t(size))
        if result == _OUT_OF_MEMORY:
            return None
        self.driver.check(name, result)
        return address.value

    def give_back(self, address: int, size: int) -> None:
        self.driver.call(self.driver.names.free, ctypes.c_uint64(address))

    def wait_for_kernels(self) -> None:
        self.driver.call(self.driver.names.synchronize)

    # -- copies ----------------------------------------------------------------------------------------------
    def copy_in(self, address: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        if not view.nbytes:
            return
        driver, names = self.driver, self.driver.names
        with self._copying:
            pinned = self._open()
            stream = None if view.nbytes <= _SMALL_COPY else self._copy_stream(address)
            for at in range(0, view.nbytes, _PIECE):
                part, piece = view[at:at + _PIECE], pinned.next()
                piece.view[:part.nbytes] = part
                driver.call(names.copy_in, ctypes.c_uint64(address + at), ctypes.c_void_p(piece.address),
                            ctypes.c_size_t(part.nbytes), stream)
                driver.call(names.record, piece.event, stream)
            if stream is not None:
                driver.call(names.stream_awaits, None, piece.event, 0)
                driver.call(names.record, self._reached, None)
                self._reached_at = driver.launched

    def _copy_stream(self, address: int) -> Any:
        """Return the copy stream, after making it wait for the kernels that may use this memory: for a newly allocated
        block, those launched before its last release; for any other, all launched so far."""
        driver, names = self.driver, self.driver.names
        newest, released, launched = self._newest
        needed = released if newest == address and launched == driver.launched else driver.launched
        if needed > self._reached_at:
            driver.call(names.record, self._reached, None)
            self._reached_at = driver.launched
        driver.call(names.stream_awaits, self._stream, self._reached, 0)
        return self._stream

    def copy_out(self, address: int, nbytes: int) -> memoryview:
        """Copy bytes to the host, after all kernels."""
        out = _uninitialized(nbytes)
        if 0 < nbytes < _SMALL_COPY:
            self.driver.call(self.driver.names.read, (ctypes.c_char * nbytes).from_buffer(out),
                             ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        else:
            self._copy_pieces(address, out)
        self.numbers.look()
        return out

    def _copy_pieces(self, address: int, out: memoryview) -> None:
        driver, names, waiting = self.driver, self.driver.names, deque[tuple[PinnedPiece, int, int]]()

        def read() -> None:
            piece, at, size = waiting.popleft()
            driver.call(names.await_event, piece.event)
            out[at:at + size] = piece.view[:size]

        with self._copying:
            pinned = self._open()
            for at in range(0, out.nbytes, _PIECE):
                piece, size = pinned.next(), min(_PIECE, out.nbytes - at)
                driver.call(names.copy_out, ctypes.c_void_p(piece.address), ctypes.c_uint64(address + at),
                            ctypes.c_size_t(size), None)
                driver.call(names.record, piece.event, None)
                waiting.append((piece, at, size))
                if len(waiting) > _AHEAD:
                    read()
            while waiting:
                read()

    def _open(self) -> PinnedMemory:
        if self._pinned is None:
            self._pinned = PinnedMemory(self.driver)
            self._stream = self.driver.made(self.driver.names.make_stream, _NON_BLOCKING)
            self._reached = self.driver.event()
        return self._pinned
