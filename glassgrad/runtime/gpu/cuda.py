"""The device CUDA: NVIDIA's driver, called directly. In: a driver that is installed. Out: an opened device.

Everything is started on one stream, so it runs in the order in which it was started, and memory that is given back
may be used again at once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.render.gpu.dialects import CUDA
from glassgrad.compiler.render.launch import BoxMap
from glassgrad.runtime.gpu.gpu_device import GpuDevice, Launch, host_bytes, no_memory_left
from glassgrad.runtime.gpu.nvrtc import compile_cuda, nvrtc_version
from glassgrad.runtime.host_memory import MemoryBlock, rounded

__all__ = ["open_cuda"]

_MAJOR, _MINOR = 75, 76                  # numbers of the driver's attributes: compute capability
_DYNAMIC_NEAR = 8                        # a function's attribute: bytes that a group may share
_USUAL_NEAR = 32 << 10                   # bytes that a group may share without saying so: 48 KB, some of them fixed
_OUT_OF_MEMORY = 2
_SLAB = 2 << 20                          # small blocks are cut from pieces of this size
_SMALL = 256 << 10


def open_cuda(name: str = "CUDA") -> CudaDevice:
    """The first GPU that the driver offers."""
    for library in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return CudaDevice(name, ctypes.CDLL(library))
        except OSError:
            continue
    raise DeviceError("there is no NVIDIA driver here", given="no library libcuda", expected="a machine with one",
                      fix="install NVIDIA's driver, or use another device: DEV=CPU")


class CudaMemory:
    """Blocks of device memory, kept by size for the next request."""
    on_host, in_parts = False, True

    def __init__(self, device: CudaDevice):
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
        address = ctypes.c_uint64()
        self.device.enter()
        for _ in range(2):
            result = self.device.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
            if result != _OUT_OF_MEMORY:
                self.device.check("cuMemAlloc", result)
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
                    self.device.call("cuMemFree_v2", ctypes.c_uint64(address))
                self.kept[size] = [a for a in addresses if a in self.pieces]

    def copy_in(self, address: int, data: Any) -> None:
        size = memoryview(data).nbytes
        if size:
            self.device.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), host_bytes(data), ctypes.c_size_t(size))

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        out = bytearray(nbytes)
        if nbytes:
            self.device.call("cuMemcpyDtoH_v2", host_bytes(out), ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return out


class CudaDevice(GpuDevice):
    """One GPU with its own context; safe to use from several threads."""
    dialect = CUDA

    def __init__(self, name: str, library: ctypes.CDLL):
        self.library, self._entered = library, threading.local()
        result = library.cuInit(0)
        if result:
            raise DeviceError("NVIDIA's driver does not start", given=self.reason(result),
                              expected="a working driver and a GPU", fix="look at what nvidia-smi says")
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        if library.cuDeviceGet(ctypes.byref(device), 0):
            raise DeviceError("NVIDIA's driver reports no GPU", given="none", expected="one",
                              fix="look at what nvidia-smi says, and at CUDA_VISIBLE_DEVICES")
        self.check("cuDevicePrimaryCtxRetain", library.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        major, minor = (self._attribute(device, a) for a in (_MAJOR, _MINOR))
        self.architecture = f"sm_{major}{minor}" + "a" * ((major, minor) == (9, 0))      # a: with its matrix unit
        self.target = replace(GPU, features=frozenset((self.architecture,)), units=units_of((self.architecture,)))
        self.machine = f"{self.architecture} {nvrtc_version()}"
        model = ctypes.create_string_buffer(100)
        self.check("cuDeviceGetName", library.cuDeviceGetName(model, len(model), device))
        self.about = f"{model.value.decode()}, {self.architecture}, compiled by {nvrtc_version()}"
        super().__init__(name, CudaMemory(self))
        self.events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self.events:
            self.call("cuEventCreate", ctypes.byref(event), 0)

    # -- calling ---------------------------------------------------------------------------------------------
    def enter(self) -> None:
        """Make the context current in this thread."""
        if not getattr(self._entered, "done", False):
            self.check("cuCtxSetCurrent", self.library.cuCtxSetCurrent(self.context))
            self._entered.done = True

    def call(self, name: str, *arguments: object) -> None:
        """Call the driver; an error is a `Bug`."""
        self.enter()
        self.check(name, getattr(self.library, name)(*arguments))

    def check(self, name: str, result: int) -> None:
        if result:
            raise Bug(f"{name}: {self.reason(result)}")

    def reason(self, result: int) -> str:
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(result, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {result}"

    def _attribute(self, device: ctypes.c_int, number: int) -> int:
        value = ctypes.c_int()
        self.check("cuDeviceGetAttribute", self.library.cuDeviceGetAttribute(ctypes.byref(value), number, device))
        return value.value

    # -- kernels ---------------------------------------------------------------------------------------------
    def compile_source(self, source: str) -> bytes:
        return compile_cuda(source, self.architecture)

    def load(self, compiled: bytes, names: Sequence[str]) -> list[ctypes.c_void_p]:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), compiled)
        functions = []
        for name in names:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            functions.append(function)
        return functions

    def prepare(self, function: Any, groups: int, threads: int, near: int, scalars: Sequence[bool],
                maps: Sequence[BoxMap] = ()) -> CudaLaunch:
        self.enter()
        if near > _USUAL_NEAR:
            self.call("cuFuncSetAttribute", function, _DYNAMIC_NEAR, near)
        if maps:
            return CudaLaunchWithMaps(self, function, groups, threads, near, scalars, maps)
        return CudaLaunch(self, function, groups, threads, near, scalars)

    def time(self, launches: Sequence[Launch]) -> int:
        first, last = self.events
        self.call("cuEventRecord", first, None)
        for launch in launches:
            launch.start()
        self.call("cuEventRecord", last, None)
        self.call("cuEventSynchronize", last)
        milliseconds = ctypes.c_float()
        name = "cuEventElapsedTime_v2" if hasattr(self.library, "cuEventElapsedTime_v2") else "cuEventElapsedTime"
        self.call(name, ctypes.byref(milliseconds), first, last)
        return int(milliseconds.value * 1e6)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")


class CudaLaunch:
    """A function and its arguments as the driver takes them: of each, the address where its value lies."""

    def __init__(self, device: CudaDevice, function: Any, groups: int, threads: int, near: int,
                 scalars: Sequence[bool], more: Sequence[int] = ()):
        self.device, self.scalars, self._launch = device, scalars, device.library.cuLaunchKernel
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
            self.device.check("cuLaunchKernel", result)


_MAP_BYTES, _MAP_ALIGNED, _COPY_ALIGNED = 128, 64, 16
_MAP_TYPES = {"float16": 6, "bfloat16": 9}           # numbers of the driver's element types
_LINES_FETCHED = 2                                   # a line of 128 bytes at a time


class CudaLaunchWithMaps(CudaLaunch):
    """A launch some of whose arguments are tensor maps. A map holds the address of its matrix, so it is written again
    where that has changed; a matrix that does not begin at a multiple of 16 bytes is copied to one first."""

    def __init__(self, device: CudaDevice, function: Any, groups: int, threads: int, near: int,
                 scalars: Sequence[bool], maps: Sequence[BoxMap]):
        self.maps = maps
        self.memory = ctypes.create_string_buffer(_MAP_BYTES * len(maps) + _MAP_ALIGNED)
        first = -(-ctypes.addressof(self.memory) // _MAP_ALIGNED) * _MAP_ALIGNED
        self.map_addresses = [first + _MAP_BYTES * i for i in range(len(maps))]
        self.described = [0] * len(maps)             # the address that each map holds
        self.copies: dict[int, MemoryBlock] = {}     # argument: where it is copied to
        super().__init__(device, function, groups, threads, near, scalars, self.map_addresses)

    def start(self) -> None:
        self.device.enter()
        for number, box in enumerate(self.maps):
            address = self.values[box.position]
            if address % _COPY_ALIGNED:
                address = self.copied(box, address)
            if address != self.described[number]:
                self.describe(number, box, address)
        super().start()

    def describe(self, number: int, box: BoxMap, address: int) -> None:
        """Write a tensor map."""
        rank = len(box.sizes)
        many = ctypes.c_uint64 * rank
        counts = (ctypes.c_uint32 * rank)
        self.device.call("cuTensorMapEncodeTiled", ctypes.c_void_p(self.map_addresses[number]), _MAP_TYPES[box.dtype],
                         rank, ctypes.c_void_p(address + box.offset), many(*box.sizes),
                         (ctypes.c_uint64 * (rank - 1))(*box.strides), counts(*box.counts), counts(*[1] * rank), 0,
                         box.swizzle, _LINES_FETCHED, 0)
        self.described[number] = address

    def copied(self, box: BoxMap, address: int) -> int:
        """The address of a copy that begins at a multiple of 16 bytes."""
        if box.position not in self.copies:
            self.copies[box.position] = self.device.memory.allocate(box.nbytes)
        to = self.copies[box.position].address
        self.device.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(address),
                         ctypes.c_size_t(box.nbytes), None)
        return to
