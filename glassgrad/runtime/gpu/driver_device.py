"""GPUs whose driver is called directly: NVIDIA's and AMD's. In: a driver's library and its names. Out: a device.

Both drivers have the same functions under other names, so they differ by data (`DriverNames`). Everything is started on
one stream, so it runs in the order in which it was started, and memory that is given back may be used again at once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.render.launch import BoxMap
from glassgrad.runtime.gpu.gpu_device import GpuDevice, Launch, Rejected, host_bytes, no_memory_left
from glassgrad.runtime.host_memory import MemoryBlock, rounded

__all__ = ["DriverDevice", "DriverLaunch", "DriverMemory", "DriverNames", "RunTimeCompiler"]

_OUT_OF_MEMORY = 2                       # the same number in both drivers
_SLAB = 2 << 20                          # small blocks are cut from pieces of this size
_SMALL = 256 << 10


class DriverNames(NamedTuple):
    """The functions of a driver."""
    allocate: str
    free: str
    copy_in: str
    copy_out: str
    load: str
    function: str
    launch: str
    make_event: str
    record: str
    await_event: str
    elapsed: str
    synchronize: str


class DriverMemory:
    """Blocks of device memory, kept by size for the next request."""
    on_host, in_parts = False, True

    def __init__(self, device: DriverDevice):
        self.device, self.lock = device, threading.RLock()
        self.kept: dict[int, list[int]] = {}
        self.slab, self.left = 0, 0                # the piece that small blocks are cut from, and what is left of it
        self.pieces: set[int] = set()              # addresses cut from slabs, which the driver cannot free alone

    def allocate(self, nbytes: int) -> MemoryBlock:
        size = rounded(max(nbytes, 256))
        with self.lock:
            kept = self.kept.get(size)
            if kept:
                return MemoryBlock(kept.pop(), nbytes, size)
            if size > _SMALL:
                return MemoryBlock(self._new(size), nbytes, size)
            step = -(-size // 256) * 256
            if self.left < step:
                self.slab, self.left = self._new(_SLAB), _SLAB
            address = self.slab
            self.slab, self.left = self.slab + step, self.left - step
            self.pieces.add(address)
            return MemoryBlock(address, nbytes, size)

    def _new(self, size: int) -> int:
        address, name = ctypes.c_uint64(), self.device.names.allocate
        self.device.enter()
        for _ in range(2):
            result = getattr(self.device.library, name)(ctypes.byref(address), ctypes.c_size_t(size))
            if result != _OUT_OF_MEMORY:
                self.device.check(name, result)
                return address.value
            self.empty_cache()
        raise no_memory_left(size)

    def release(self, block: MemoryBlock) -> None:
        with self.lock:
            self.kept.setdefault(block.size, []).append(block.address)

    def empty_cache(self) -> None:
        with self.lock:
            self.device.synchronize()
            for size, addresses in self.kept.items():
                for address in [a for a in addresses if a not in self.pieces]:
                    self.device.call(self.device.names.free, ctypes.c_uint64(address))
                self.kept[size] = [a for a in addresses if a in self.pieces]

    def copy_in(self, address: int, data: Any) -> None:
        size = memoryview(data).nbytes
        if size:
            self.device.call(self.device.names.copy_in, ctypes.c_uint64(address), host_bytes(data),
                             ctypes.c_size_t(size))

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        out = bytearray(nbytes)
        if nbytes:
            self.device.call(self.device.names.copy_out, host_bytes(out), ctypes.c_uint64(address),
                             ctypes.c_size_t(nbytes))
        return out


class DriverDevice(GpuDevice):
    """One GPU; safe to use from several threads. A subclass finds it, and provides the names, `make_current`, `reason`
    and `compile_source`."""
    names: DriverNames

    def __init__(self, name: str, library: ctypes.CDLL):
        self.library, self._entered = library, threading.local()
        super().__init__(name, DriverMemory(self))
        self.find()
        self.events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self.events:
            self.call(self.names.make_event, ctypes.byref(event), 0)

    # -- what drivers do differently ---------------------------------------------------------------------------
    def find(self) -> None:
        """Start the driver, and set `machine`, `about` and `target`; raises `DeviceError`."""
        raise Bug(f"{type(self).__name__} has no find")

    def make_current(self) -> None:
        """Make the device this thread's."""
        raise Bug(f"{type(self).__name__} has no make_current")

    def reason(self, result: int) -> str:
        """An error's number in words."""
        raise Bug(f"{type(self).__name__} has no reason")

    # -- calling ---------------------------------------------------------------------------------------------
    def enter(self) -> None:
        """Make the device this thread's, once."""
        if not getattr(self._entered, "done", False):
            self.make_current()
            self._entered.done = True

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver; an error is a `Bug`."""
        self.enter()
        self.check(name, getattr(self.library, name)(*arguments))

    def check(self, name: str, result: int) -> None:
        if result:
            raise Bug(f"{name}: {self.reason(result)}")

    # -- kernels ---------------------------------------------------------------------------------------------
    def load(self, compiled: bytes, names: Sequence[str]) -> list[ctypes.c_void_p]:
        module = ctypes.c_void_p()
        self.call(self.names.load, ctypes.byref(module), compiled)
        functions = []
        for name in names:
            function = ctypes.c_void_p()
            self.call(self.names.function, ctypes.byref(function), module, name.encode())
            functions.append(function)
        return functions

    def prepare(self, function: Any, groups: int, threads: int, near: int, scalars: Sequence[bool],
                maps: Sequence[BoxMap] = ()) -> DriverLaunch:
        self.enter()
        return DriverLaunch(self, function, groups, threads, near, scalars)

    def time(self, launches: Sequence[Launch]) -> int:
        first, last = self.events
        self.call(self.names.record, first, None)
        for launch in launches:
            launch.start()
        self.call(self.names.record, last, None)
        self.call(self.names.await_event, last)
        milliseconds = ctypes.c_float()
        self.call(self.names.elapsed, ctypes.byref(milliseconds), first, last)
        return int(milliseconds.value * 1e6)

    def synchronize(self) -> None:
        self.call(self.names.synchronize)


class DriverLaunch:
    """A function and its arguments as the driver takes them: of each, the address where its value lies."""

    def __init__(self, device: DriverDevice, function: Any, groups: int, threads: int, near: int,
                 scalars: Sequence[bool], more: Sequence[int] = ()):
        self.device, self.scalars = device, scalars
        self._launch = getattr(device.library, device.names.launch)
        self.values = (ctypes.c_uint64 * max(1, len(scalars)))()
        first = ctypes.addressof(self.values)
        # the address of a number is where its value lies; that of memory is itself the value
        self.pointers = (ctypes.c_void_p * max(1, len(scalars) + len(more)))(
            *[0 if scalar else first + 8 * i for i, scalar in enumerate(scalars)], *more)
        self.arguments = (function, groups, 1, 1, threads, 1, 1, near, None, self.pointers, None)

    def places(self, position: int) -> tuple[Any, int]:
        return (self.pointers if self.scalars[position] else self.values), position

    def start(self) -> None:
        self.device.enter()
        result = self._launch(*self.arguments)
        if result:
            self.device.check(self.device.names.launch, result)


class RunTimeCompiler:
    """A vendor's compiler as a library, whose functions begin with a prefix: nvrtc or hiprtc."""

    def __init__(self, library: ctypes.CDLL, prefix: str, code: str):
        self.library, self.prefix, self.code = library, prefix, code

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, self.prefix + name)(*arguments)
        if result:
            describe = getattr(self.library, self.prefix + "GetErrorString")
            describe.restype = ctypes.c_char_p
            raise Bug(f"{self.prefix}{name}: {describe(result).decode()}")

    def version(self) -> str:
        """Its name and version, which compiled kernels depend on."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{self.prefix} {major.value}.{minor.value}"

    def compile(self, source: str, file: str, options: Sequence[str]) -> bytes:
        """Machine code; source that it does not take is `Rejected`."""
        program = ctypes.c_void_p()
        self.call("CreateProgram", ctypes.byref(program), source.encode(), file.encode(), 0, None, None)
        try:
            given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            if getattr(self.library, self.prefix + "CompileProgram")(program, len(options), given):
                raise Rejected(self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
            return self._bytes(program, self.code)
        finally:
            self.call("DestroyProgram", ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"Get{what}Size", program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value)
        self.call(f"Get{what}", program, out)
        return out.raw
