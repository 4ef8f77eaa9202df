"""The device WEBGPU. In: the package `wgpu` and a driver for Vulkan, Metal or Direct3D 12. Out: an opened device.

Memory is named by handles (handle_memory.py). A launch binds its arguments' blocks, each from an aligned byte on, and a
small uniform buffer with what remains: distances, and the bytes of numbers. Launches are collected in a command buffer,
which is submitted before a copy, or when it is long; threads take turns (`DriverErrors`).

What the adapter has is asked when it is opened: threads, memory and arguments of a group go into the `Target` that
kernels are written for; 64-bit numbers that it lacks are refused; so is an argument that is larger than one binding.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassgrad.base.errors import Bug, DeviceError, MemoryLimitError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.symbolic import most
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.render.gpu.dialects import WGSL
from glassgrad.compiler.render.launch import BoxMap
from glassgrad.runtime.gpu.gpu_device import GpuDevice, GpuProgram, LaunchByAddress, Rejected
from glassgrad.runtime.gpu.handle_memory import MemoryByHandle
from glassgrad.runtime.host_memory import readable

__all__ = ["WebgpuDevice", "open_webgpu"]

INSTALL = "pip install wgpu, and a driver for Vulkan: Debian's mesa-vulkan-drivers has one for the processor"
USED = ("max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x", "max-compute-workgroup-storage-size",
        "max-compute-workgroups-per-dimension", "max-storage-buffers-per-shader-stage", "max-buffer-size",
        "max-storage-buffer-binding-size", "min-storage-buffer-offset-alignment")
TYPES = {"shader-int64": ("int64", "uint64"), "shader-f64": ("float64",)}       # that an adapter may have
ROUNDS = {"llvmpipe": 65535}      # of all loops of a thread: Mesa's driver for the processor ends them then
MOST_LAUNCHES = 64                # in one command buffer: the device begins while others are written
FOLD_BYTES = 8                    # of a group's memory for each thread: values that threads exchange


def open_webgpu(name: str = "WEBGPU") -> WebgpuDevice:
    """The adapter that wgpu prefers."""
    try:
        import wgpu
        from wgpu.backends.wgpu_native.extras import set_instance_extras
    except ImportError:
        raise DeviceError("WebGPU needs the package wgpu", given="no wgpu", expected="wgpu and a driver",
                          fix=INSTALL) from None
    with contextlib.suppress(RuntimeError):            # another part of the program has chosen already
        set_instance_extras(backends=["Primary"])      # not OpenGL, which lacks what is needed here
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except RuntimeError as error:
        raise DeviceError("WebGPU has no adapter", given=str(error), expected="a driver for Vulkan, Metal or Direct3D",
                          fix=INSTALL) from None
    return WebgpuDevice(name, wgpu, adapter)


class DriverErrors:
    """A block in which one thread at a time calls the driver, and the driver's errors become ours. (Where contextlib
    raises them, its line is taken for the user's.)"""

    def __init__(self, device: WebgpuDevice, kind: type[Exception] = Bug):
        self.device, self.kind = device, kind

    def __enter__(self) -> None:
        self.device.memory.lock.acquire()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.device.memory.lock.release()
        wgpu = self.device.wgpu
        if not isinstance(error, wgpu.GPUError) or isinstance(error, wgpu.GPUOutOfMemoryError):
            return
        if "is lost" not in str(error):
            raise self.kind(f"{self.device.name}: {error}") from None
        raise DeviceError(f"the GPU of {self.device.name} is lost", given=str(error).split("\n")[-1].strip(),
                          expected="a device that goes on working",
                          fix="start the program anew; if it happens again, see the messages of the graphics driver"
                          ) from None


class WebgpuMemory(MemoryByHandle):
    """Buffers. Copies are of whole words: what a copy covers in part is read first."""

    def __init__(self, device: WebgpuDevice, name: str):
        super().__init__(name)
        self.device, self.largest = device, device.limits["max-buffer-size"]

    def new_handle(self, size: int) -> Any:
        return self.device.new_buffer(size)

    def copy_in(self, address: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        before, after = address % 4, -(address + view.nbytes) % 4
        if not view.nbytes:
            return
        with self.device.errors:
            if before or after:
                words = self.copy_out(address - before, before + view.nbytes + after)
                words[before:before + view.nbytes] = view
                view = memoryview(words)
            self.device.submit()
            self.device.queue.write_buffer(*self.find(address - before), view)

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        if not nbytes:
            return bytearray()
        before, after = address % 4, -(address + nbytes) % 4
        with self.device.errors:
            self.device.submit()
            words = self.device.queue.read_buffer(*self.find(address - before), before + nbytes + after)
        return bytearray(words[before:before + nbytes])


class WebgpuDevice(GpuDevice):
    """One adapter. `limits` are the adapter's, or smaller ones; so are `features`."""
    dialect = WGSL

    def __init__(self, name: str, wgpu: Any, adapter: Any, limits: dict[str, int] | None = None,
                 features: Sequence[str] = tuple(TYPES)):
        self.wgpu, self.limits = wgpu, {key: adapter.limits[key] for key in USED} | (limits or {})
        features = [feature for feature in features if feature in adapter.features]
        self.device = adapter.request_device_sync(required_limits=self.limits, required_features=features)
        self.queue, self.errors = self.device.queue, DriverErrors(self)
        self.encoder: Any = None
        self.compute: Any = None                      # the open pass of the encoder
        self.launches = 0                             # in it
        super().__init__(name, WebgpuMemory(self, name))
        self.lacking = tuple([dtype for feature in TYPES if feature not in features for dtype in TYPES[feature]])
        self.has_float64, self.clock = "float64" not in self.lacking, self.new_buffer(4)
        threads = min(GPU.vector_bytes, self.limits[USED[0]], self.limits[USED[1]])
        group_bytes = self.limits["max-compute-workgroup-storage-size"] - FOLD_BYTES * threads
        about = adapter.info
        self.target = replace(GPU, vector_bytes=threads, row_bytes=group_bytes, group_bytes=group_bytes,
                              fusion=GPU.fusion._replace(buffers=self.limits["max-storage-buffers-per-shader-stage"]),
                              most_rounds=ROUNDS.get(about["vendor"], GPU.most_rounds))
        self.machine = f"{about['device']} {about['description']} {about['backend_type']} {wgpu.__version__} " \
                       f"{self.limits} {features}"
        self.about = f"{about['device']}, {about['description']}, through {about['backend_type']}"

    @property
    def missing_types(self) -> tuple[str, ...]:
        return self.lacking

    def new_buffer(self, size: int, usage: str = "STORAGE") -> Any:
        """A buffer of so many bytes, or None."""
        use = self.wgpu.BufferUsage
        try:
            with self.errors:
                return self.device.create_buffer(size=-(-size // 4) * 4,
                                                 usage=use[usage] | use.COPY_DST | use.COPY_SRC)
        except self.wgpu.GPUOutOfMemoryError:
            return None

    def check_binding(self, size: int) -> None:
        limit = self.limits["max-storage-buffer-binding-size"]
        if size > limit:
            raise MemoryLimitError("a kernel's argument is larger than WebGPU binds here", given=readable(size),
                                   expected=f"at most {readable(limit)}",
                                   fix="use smaller batches, or another device")

    # -- compiling -------------------------------------------------------------------------------------------
    def compile(self, ast: UOp) -> GpuProgram:
        params = sorted([n for n in toposort([ast]) if n.op is o.PARAM], key=lambda n: n.arg.slot)
        sizes = [math.prod(map(most, n.arg.shape)) * n.dtype.itemsize for n in params]
        self.check_binding(max([n for n, p in zip(sizes, params) if all(isinstance(s, int) for s in p.arg.shape)]))
        program = super().compile(ast)
        sizes += program.info.shared
        program.functions = [(*function, sizes) for function in program.functions]
        return program

    def compile_source(self, source: str) -> bytes:
        """WGSL stays WGSL: drivers compile it when it is loaded. Here it is checked."""
        with DriverErrors(self, Rejected):
            self.device.create_shader_module(code=source)
        return source.encode()

    def load(self, compiled: bytes, names: Sequence[str]) -> list[Any]:
        """A pipeline and the layout of its arguments for each function."""
        source, stage = compiled.decode(), self.wgpu.ShaderStage.COMPUTE
        bound = re.findall(r"@binding\((\d+)\) var<(\w+)", source)
        with self.errors:
            module = self.device.create_shader_module(code=source)
            layout = self.device.create_bind_group_layout(entries=[
                {"binding": int(number), "visibility": stage, "buffer": {"type": kind}} for number, kind in bound])
            whole = self.device.create_pipeline_layout(bind_group_layouts=[layout])
            return [(self.device.create_compute_pipeline(
                layout=whole, compute={"module": module, "entry_point": name}), layout) for name in names]

    # -- running ---------------------------------------------------------------------------------------------
    def prepare(self, function: Any, groups: int, threads: int, group_bytes: int, scalars: Sequence[bool],
                maps: Sequence[BoxMap] = ()) -> WebgpuLaunch:
        return WebgpuLaunch(self, function, groups, scalars)

    def open_pass(self) -> Any:
        """The pass that launches are written into."""
        if self.compute is None or self.launches >= MOST_LAUNCHES:
            self.submit()
            self.encoder = self.device.create_command_encoder()
            self.compute = self.encoder.begin_compute_pass()
        self.launches += 1
        return self.compute

    def submit(self) -> None:
        """Start what was collected."""
        self.memory.check_process()
        if self.compute is not None:
            self.compute.end()
            self.compute, self.launches = None, 0
            self.queue.submit([self.encoder.finish()])

    def synchronize(self) -> None:
        with self.errors:
            self.submit()
            self.queue.read_buffer(self.clock, 0, 4)          # which waits for all that was submitted before


class WebgpuLaunch(LaunchByAddress):
    """An entry point with the addresses of its arguments, and their bindings while these stay the same."""

    def __init__(self, device: WebgpuDevice, function: tuple[Any, ...], groups: int, scalars: Sequence[bool]):
        super().__init__(device, scalars)
        self.pipeline, self.layout, self.sizes = function
        most_groups = device.limits["max-compute-workgroups-per-dimension"]
        self.groups = (min(groups, most_groups), -(-groups // most_groups))
        self.bound: list[int | bytes] = [-1]          # addresses and numbers that `group` binds
        self.group: Any = None

    def start(self) -> None:
        given = [ctypes.string_at(a, 8) if scalar else a for a, scalar in zip(self.addresses, self.scalars)]
        with self.device.errors:
            if given != self.bound:
                self.group, self.bound = self.bind(given), given
            into = self.device.open_pass()
            into.set_pipeline(self.pipeline)
            into.set_bind_group(0, self.group)
            into.dispatch_workgroups(*self.groups)

    def bind(self, given: Sequence[int | bytes]) -> Any:
        """A bind group of these addresses and numbers. Of a buffer it binds what an argument needs; one whose size
        changes from call to call counts with the most that it can be, and the buffer of this call may be smaller."""
        device, words, entries = self.device, b"", []
        align = device.limits["min-storage-buffer-offset-alignment"]
        for number, value in enumerate(given):
            if isinstance(value, bytes):
                words += value + bytes(8)
                continue
            handle, at = device.memory.find(value)
            distance = at % align
            size = min(-(-(distance + max(self.sizes[number], 4)) // 8) * 8, handle.size - at + distance)
            device.check_binding(size)
            words += struct.pack("<4I", distance, 0, 0, 0)
            bound = {"buffer": handle, "offset": at - distance, "size": size}
            entries.append({"binding": number + 1, "resource": bound})
        numbers = device.new_buffer(max(16, len(words)), "UNIFORM")
        device.queue.write_buffer(numbers, 0, words)
        entries.append({"binding": 0, "resource": {"buffer": numbers, "offset": 0, "size": numbers.size}})
        return device.device.create_bind_group(layout=self.layout, entries=entries)
