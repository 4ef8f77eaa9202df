"""Run kernels on NVIDIA's GPUs, with the driver called directly: the device CUDA. In: an installed driver. Out: an
opened device.

What it shares with AMD is in cuda_hip_device.py. Specific to CUDA are contexts, and tensor maps for bulk copies.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

from glassgrad.base.errors import DeviceError
from glassgrad.base.settings import settings
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.render.gpu.dialects import CUDA
from glassgrad.compiler.render.launch_info import BoxMap, arguments_of, size_at
from glassgrad.runtime.gpu.cuda_hip_calls import DriverNames
from glassgrad.runtime.gpu.cuda_hip_device import DriverDevice
from glassgrad.runtime.gpu.cuda_hip_launch import DriverLaunch
from glassgrad.runtime.gpu.gpu_device import KernelCall
from glassgrad.runtime.gpu.nvrtc import compile_cuda, nvrtc_version
from glassgrad.runtime.memory_pool import MemoryBlock

_MOST_THREADS = 1024                     # per group (thread block)
_ROW_BYTES = 128 << 10                   # longest row of float32 that the registers of a group can hold
_MAJOR, _MINOR = 75, 76                  # device attributes: compute capability
_GROUP_BYTES_ATTRIBUTE = 8               # function attribute: most dynamic shared memory
_USUAL_GROUP_BYTES = 32 << 10            # shared memory that needs no attribute: 48 KB, less static use


def open_cuda(name: str = "CUDA") -> CudaDevice:
    """Open the first GPU that the driver lists."""
    for library in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return CudaDevice(name, ctypes.CDLL(library))
        except OSError:
            continue
    raise DeviceError("there is no NVIDIA driver here", given="no library libcuda", expected="a machine with one",
                      fix="install NVIDIA's driver, or use another device: DEV=CPU")


class CudaKernel(ctypes.Structure):
    """The driver's record of a kernel node in a graph (CUDA_KERNEL_NODE_PARAMS_v2)."""
    _fields_ = (("function", ctypes.c_void_p), ("groups", ctypes.c_uint * 3), ("threads", ctypes.c_uint * 3),
                ("group_bytes", ctypes.c_uint), ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p),
                ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p))


class CudaDevice(DriverDevice):
    """One GPU with its own context."""
    dialect, kernel_record = CUDA, CudaKernel
    names = DriverNames(
        allocate="cuMemAlloc_v2", free="cuMemFree_v2", allocate_host="cuMemHostAlloc", copy_in="cuMemcpyHtoDAsync_v2",
        copy_out="cuMemcpyDtoHAsync_v2", read="cuMemcpyDtoH_v2", load="cuModuleLoadData",
        function="cuModuleGetFunction", launch="cuLaunchKernel", make_stream="cuStreamCreate",
        make_event="cuEventCreate", record="cuEventRecord", await_event="cuEventSynchronize",
        stream_awaits="cuStreamWaitEvent", elapsed="cuEventElapsedTime",
        synchronize="cuCtxSynchronize", make_graph="cuGraphCreate", add_kernel="cuGraphAddKernelNode_v2",
        instantiate="cuGraphInstantiateWithFlags", set_kernel="cuGraphExecKernelNodeSetParams_v2",
        launch_graph="cuGraphLaunch", destroy_graph="cuGraphDestroy", destroy_instance="cuGraphExecDestroy")

    def find(self) -> None:
        library = self.library
        result = library.cuInit(0)
        if result:
            raise DeviceError("NVIDIA's driver does not start", given=self.reason(result),
                              expected="a working driver and a GPU", fix="look at what nvidia-smi says")
        if hasattr(library, "cuEventElapsedTime_v2"):
            self.names = self.names._replace(elapsed="cuEventElapsedTime_v2")
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        if library.cuDeviceGet(ctypes.byref(device), 0):
            raise DeviceError("NVIDIA's driver reports no GPU", given="none", expected="one",
                              fix="look at what nvidia-smi says, and at CUDA_VISIBLE_DEVICES")
        self.check("cuDevicePrimaryCtxRetain", library.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        major, minor = (self._attribute(device, a) for a in (_MAJOR, _MINOR))
        self.architecture = f"sm_{major}{minor}" + "a" * ((major, minor) == (9, 0))      # sm_90a: with its matrix unit
        units = units_of((self.architecture,))
        features = frozenset((self.architecture, "tf32"))
        target = replace(GPU, features=frozenset((self.architecture,)), units=units, most_threads=_MOST_THREADS,
                         row_bytes=_ROW_BYTES, fusion=GPU.fusion._replace(unit_products=100 if units else 0,
                                                                          held_row=32 * _MOST_THREADS))
        self.targets = [target, replace(target, features=features, units=units_of(features),
                                        fusion=target.fusion._replace(products_per_byte=0))]
        model = ctypes.create_string_buffer(100)
        self.check("cuDeviceGetName", library.cuDeviceGetName(model, len(model), device))
        self.about = f"{model.value.decode()}, {self.architecture}, compiled by {nvrtc_version()}"

    # `target` and `machine` depend on the setting TF32.
    @property
    def target(self) -> Target:      # type: ignore[override]
        return self.targets[bool(settings.TF32)]

    @property
    def machine(self) -> str:      # type: ignore[override]
        return f"{self.architecture} {nvrtc_version()}" + (" with tf32" if settings.TF32 else "")

    def make_current(self) -> None:
        self.check("cuCtxSetCurrent", self.library.cuCtxSetCurrent(self.context))

    def reason(self, result: int) -> str:
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(result, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {result}"

    def _attribute(self, device: ctypes.c_int, number: int) -> int:
        value = ctypes.c_int()
        self.check("cuDeviceGetAttribute", self.library.cuDeviceGetAttribute(ctypes.byref(value), number, device))
        return value.value

    def compile_source(self, source: str) -> bytes:
        return compile_cuda(source, self.architecture)

    def prepare(self, call: KernelCall) -> DriverLaunch:
        if call.group_bytes > _USUAL_GROUP_BYTES:
            self.call("cuFuncSetAttribute", call.function, _GROUP_BYTES_ATTRIBUTE, call.group_bytes)
        return CudaLaunchWithMaps(self, call) if call.maps else DriverLaunch(self, call)


_MAP_BYTES, _MAP_ALIGNED, _COPY_ALIGNED = 128, 64, 16
# CUtensorMapDataType by element type; float32 is copied as TF32, rounded for the matrix unit.
_MAP_TYPES = {"int8": 0, "uint8": 0, "float16": 6, "bfloat16": 9, "float32": 11}
_LINES_FETCHED = 2                                   # L2 promotion: 128 bytes
_MOST_KEPT = 64                                      # encoded maps that a launch caches, for alternating inputs


class CudaLaunchWithMaps(DriverLaunch):
    """A launch some of whose arguments are tensor maps. A map holds the address of its matrix, so it is encoded again
    when the address changes. A matrix that is not 16-byte aligned is first copied to aligned memory."""
    driver: CudaDevice

    def __init__(self, device: CudaDevice, call: KernelCall):
        maps = self.maps = call.maps
        self.memory = ctypes.create_string_buffer(_MAP_BYTES * len(maps) + _MAP_ALIGNED)
        first = -(-ctypes.addressof(self.memory) // _MAP_ALIGNED) * _MAP_ALIGNED
        self.map_addresses = [first + _MAP_BYTES * i for i in range(len(maps))]
        self.described: list[Any] = [None] * len(maps)        # (address, sizes) that each map holds now
        self.lengths = sorted({argument for box in maps for size in box.sizes for argument in arguments_of(size)})
        self.encoded: dict[tuple[Any, ...], bytes] = {}       # (map's number, address, sizes): encoded map
        self.given: list[int] = []                   # addresses and scalars that the maps are encoded for
        self.copies: dict[int, MemoryBlock] = {}     # argument's position: its aligned copy
        super().__init__(device, call, self.map_addresses)
        self.call = self.call_settled

    def share_arguments(self, other: Any) -> None:
        self.memory, self.map_addresses, self.described = other.memory, other.map_addresses, other.described
        self.encoded, self.copies, self.given = other.encoded, other.copies, other.given
        super().share_arguments(other)
        self.call = self.call_settled

    def settle(self) -> bool:
        if any(self.values[box.position] % _COPY_ALIGNED for box in self.maps):
            return False
        return super().settle()

    def bring_up_to_date(self) -> None:
        """Update the tensor maps whose address or sizes have changed."""
        super().bring_up_to_date()
        if not self.has_work:
            return
        given = [*[self.values[box.position] for box in self.maps], *map(self.number, self.lengths)]
        if given == self.given:
            return
        self.given.clear()                           # until all maps are written
        for number, box in enumerate(self.maps):
            address = self.copied(box, given[number]) if given[number] % _COPY_ALIGNED else given[number]
            described = address, box.sizes_at(self.number)
            if described != self.described[number]:
                self.describe(number, box, *described)
        if not any(address % _COPY_ALIGNED for address in given[:len(self.maps)]):     # else copy again at each launch
            self.given[:] = given

    def describe(self, number: int, box: BoxMap, address: int, sizes: tuple[int, ...]) -> None:
        """Write a tensor map, if possible from the cache: encoding one takes the driver longer than a launch."""
        at, key = self.map_addresses[number], (number, address, sizes)
        known = self.encoded.get(key)
        if known is None:
            self.encode(at, box, address, sizes)
            if len(self.encoded) >= _MOST_KEPT:
                self.encoded.clear()
            self.encoded[key] = ctypes.string_at(at, _MAP_BYTES)
        else:
            ctypes.memmove(at, known, _MAP_BYTES)
        self.described[number] = address, sizes

    def encode(self, at: int, box: BoxMap, address: int, sizes: tuple[int, ...]) -> None:
        rank = len(sizes)
        many, counts = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        self.driver.call("cuTensorMapEncodeTiled", ctypes.c_void_p(at), _MAP_TYPES[box.dtype],
                         rank, ctypes.c_void_p(address + box.offset), many(*sizes),
                         (ctypes.c_uint64 * (rank - 1))(*box.strides), counts(*box.counts), counts(*[1] * rank), 0,
                         box.swizzle, _LINES_FETCHED, 0)

    def copied(self, box: BoxMap, address: int) -> int:
        """Copy a matrix to aligned memory; return the address of the copy."""
        nbytes, block = size_at(box.nbytes, self.number), self.copies.get(box.position)
        if block is not None and block.nbytes < nbytes:
            self.driver.memory.release(self.copies.pop(box.position))
        if box.position not in self.copies:
            self.copies[box.position] = self.driver.memory.allocate(nbytes)
        to = self.copies[box.position].address
        self.driver.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(address),
                         ctypes.c_size_t(nbytes), None)
        return to
