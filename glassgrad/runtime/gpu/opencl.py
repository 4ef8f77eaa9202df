"""Run kernels with OpenCL: the device OPENCL. In: the package `pyopencl` and a platform. Out: an opened device.

OpenCL names memory by handles (handle_memory.py): a kernel is passed a handle and a byte offset.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassgrad.base.errors import DeviceError, MemoryLimitError
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.render.gpu.dialects import OPENCL
from glassgrad.runtime.gpu.gpu_device import GpuDevice, KernelCall, LaunchByAddress, Rejected, driver_failure
from glassgrad.runtime.gpu.handle_memory import MemoryByHandle

FOLD_BYTES = 8 * 256    # shared memory of a group, for values that its threads exchange in a fold


def open_opencl(name: str = "OPENCL") -> OpenclDevice:
    """Open the first GPU that OpenCL lists, or else the first device of any kind."""
    try:
        import pyopencl as cl
    except ImportError:
        raise DeviceError("OpenCL needs the package pyopencl", given="no pyopencl", expected="pyopencl and a platform",
                          fix="pip install pyopencl, and pocl-binary-distribution to run on the processor") from None
    try:
        platforms = cl.get_platforms()
        found = [d for platform in platforms for d in platform.get_devices()]
    except cl.LogicError as error:
        raise DeviceError("OpenCL has no platform", given=str(error), expected="a driver for OpenCL",
                          fix="install your graphics driver's OpenCL part, or pip install pocl-binary-distribution"
                          ) from None
    if not found:
        given = f"no device of {', '.join(p.name for p in platforms)}" if platforms else "no platform"
        raise DeviceError("OpenCL has no device", given=given, expected="a platform with a GPU or a processor",
                          fix="install your graphics driver's OpenCL part, or pip install pocl-binary-distribution")
    chosen = next((d for d in found if d.type & cl.device_type.GPU), found[0])
    return OpenclDevice(name, cl, chosen)


class OpenclMemory(MemoryByHandle):
    """OpenCL buffers by virtual addresses."""

    def __init__(self, name: str, cl: Any, context: Any, queue: Any):
        super().__init__(name)
        self.cl, self.context, self.queue = cl, context, queue
        self.largest = queue.device.max_mem_alloc_size

    def new_handle(self, size: int) -> Any:
        try:
            return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, size)
        except self.cl.MemoryError:
            return None

    def write(self, address: int, view: memoryview) -> None:
        handle, at = self.find(address)
        try:
            self.cl.enqueue_copy(self.queue, handle, view, dst_offset=at)
        except self.cl.Error as error:
            raise failure(self.cl, error, "copy memory in") from None

    def read(self, address: int, nbytes: int) -> bytearray:
        (handle, at), out = self.find(address), bytearray(nbytes)
        try:
            self.cl.enqueue_copy(self.queue, out, handle, src_offset=at)
        except self.cl.Error as error:
            raise failure(self.cl, error, "copy memory out") from None
        return out


def failure(cl: Any, error: Exception, doing: str) -> Exception:
    """Translate a driver's error to one for the user's line: out of memory, or a lost device."""
    if isinstance(error, cl.MemoryError):        # drivers may allocate a block when it is first used
        return MemoryLimitError("the GPU has no memory left", given=str(error), expected="memory that is free",
                                fix="use smaller batches, or let go of tensors")
    return driver_failure("OPENCL", doing, str(error))


class OpenclLaunch(LaunchByAddress):
    """A kernel object of its own, and the addresses of its arguments."""

    def __init__(self, device: OpenclDevice, call: KernelCall):
        super().__init__(device, call)
        self.kernel = device.cl.Kernel(call.function.program, call.function.function_name)
        self.event: Any = None

    def start(self) -> None:
        memory, at = self.device.memory, 0
        set_arg = self.kernel.set_arg
        for address, scalar in zip(self.addresses, self.scalars):
            if scalar:
                set_arg(at, ctypes.string_at(address, 8))
                at += 1
            else:
                handle, distance = memory.find(address)
                set_arg(at, handle)
                set_arg(at + 1, distance.to_bytes(8, "little"))
                at += 2
        cl, threads = self.device.cl, self.call.threads
        if self.call.group_bytes:
            set_arg(at, cl.LocalMemory(self.call.group_bytes))
        try:
            self.event = cl.enqueue_nd_range_kernel(self.device.queue, self.kernel, (self.groups * threads,),
                                                    (threads,))
        except cl.Error as error:
            raise failure(cl, error, f"launch the kernel {self.kernel.function_name}") from None


class OpenclDevice(GpuDevice):
    """One device of one platform."""
    dialect, launch_type = OPENCL, OpenclLaunch

    def __init__(self, name: str, cl: Any, device: Any):
        self.cl, self.device = cl, device
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        super().__init__(name, OpenclMemory(name, cl, self.context, self.queue))
        self.missing_types = () if "cl_khr_fp64" in device.extensions else ("float64",)
        group_bytes = min(GPU.group_bytes, device.local_mem_size - FOLD_BYTES)
        self.target = replace(GPU, row_bytes=group_bytes, group_bytes=group_bytes)
        options = os.environ.get("PYOPENCL_BUILD_OPTIONS", "")        # pyopencl adds them to every build
        self.machine = f"{device.platform.name} {device.name} {device.driver_version} {options}"
        self.about = f"{device.name}, compiled by {device.platform.name} {device.driver_version}"

    def compile_source(self, source: str) -> bytes:
        try:
            built = self.cl.Program(self.context, source).build(["-cl-std=CL1.2"], cache_dir=False)
        except self.cl.RuntimeError as error:
            raise Rejected(str(error)) from None
        return bytes(built.binaries[0])

    def load(self, compiled: bytes, names: Sequence[str]) -> list[Any]:
        program = self.cl.Program(self.context, [self.device], [compiled]).build(cache_dir=False)
        return [self.cl.Kernel(program, name) for name in names]

    def time(self, launches: Sequence[Any]) -> int:
        self.synchronize()
        for launch in launches:
            launch.start()
        self.synchronize()
        return sum(launch.event.profile.end - launch.event.profile.start for launch in launches)

    def synchronize(self) -> None:
        self.memory.check_process()
        try:
            self.queue.finish()
        except self.cl.Error as error:
            raise failure(self.cl, error, "run what was launched") from None
