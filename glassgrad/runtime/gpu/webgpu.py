"""Run kernels with WebGPU: the device WEBGPU. In: the package `wgpu` and a driver for Vulkan, Metal or Direct3D 12.
Out: an opened device.

Memory is named by handles (handle_memory.py). A launch binds its arguments' buffers, each from an aligned offset on,
and a small uniform buffer with the remaining offsets and the scalars. Launches are collected in a command buffer, which
is submitted before a copy, or when it is long. One thread at a time uses the driver (`DriverErrors`).

The adapter's limits on threads, shared memory and bindings go into the `Target` that kernels are optimized for. 64-bit
types that it lacks are refused. A block is at most as large as a binding.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.render.gpu.dialects import WGSL
from glassgrad.runtime.gpu.gpu_device import GpuDevice, KernelCall, LaunchByAddress, Rejected, driver_failure
from glassgrad.runtime.gpu.handle_memory import MemoryByHandle

INSTALL = "pip install wgpu, and a driver for Vulkan: Debian's mesa-vulkan-drivers has one for the processor"
TYPES = {"shader-int64": ("int64", "uint64"), "shader-f64": ("float64",)}       # optional features, and their types
ROUNDS = {"llvmpipe": 64500}      # most loop iterations of a thread: Mesa's driver ends any loop after 65535
MOST_LAUNCHES = 64                # per command buffer: the device starts while the next is recorded
FOLD_BYTES = 8                    # shared memory per thread, for values exchanged in a fold


def open_webgpu(name: str = "WEBGPU") -> WebgpuDevice:
    """Open the adapter that wgpu prefers."""
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
    """A context manager that holds the driver's lock and translates its errors. (A class: with contextlib's decorator,
    a line of contextlib would be reported as the user's.)"""

    def __init__(self, device: WebgpuDevice, kind: type[Exception] = Bug):
        self.device, self.kind = device, kind

    def __enter__(self) -> None:
        self.device.memory.lock.acquire()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.device.memory.lock.release()
        wgpu = self.device.wgpu
        if not isinstance(error, wgpu.GPUError) or isinstance(error, wgpu.GPUOutOfMemoryError):
            return
        if "is lost" in str(error):
            raise driver_failure(self.device.name, "go on", str(error).split("\n")[-1].strip()) from None
        raise self.kind(f"{self.device.name}: {error}") from None


class WebgpuMemory(MemoryByHandle):
    """Buffers. The driver copies whole 32-bit words, so words that a write covers in part are read first."""

    def __init__(self, device: WebgpuDevice, name: str):
        super().__init__(name)
        self.device = device
        self.largest = min(device.limits["max-buffer-size"], device.limits["max-storage-buffer-binding-size"])

    def new_handle(self, size: int) -> Any:
        use, words = self.device.wgpu.BufferUsage, -(-size // 4) * 4
        try:
            with self.device.errors:
                return self.device.device.create_buffer(size=words, usage=use.STORAGE | use.COPY_DST | use.COPY_SRC)
        except self.device.wgpu.GPUOutOfMemoryError:
            return None

    def write(self, address: int, view: memoryview) -> None:
        before, after = address % 4, -(address + view.nbytes) % 4
        with self.device.errors:
            if before or after:
                words = self.read(address - before, before + view.nbytes + after)
                words[before:before + view.nbytes] = view
                view = memoryview(words)
            self.device.submit()
            self.device.queue.write_buffer(*self.find(address - before), view)

    def read(self, address: int, nbytes: int) -> bytearray:
        before, after = address % 4, -(address + nbytes) % 4
        with self.device.errors:
            self.device.submit()
            words = self.device.queue.read_buffer(*self.find(address - before), before + nbytes + after)
        return bytearray(words[before:before + nbytes])


class WebgpuLaunch(LaunchByAddress):
    """An entry point with the addresses of its arguments; its bind group is reused while these stay the same."""

    def __init__(self, device: WebgpuDevice, call: KernelCall):
        super().__init__(device, call)
        self.pipeline, self.layout, self.numbers = call.function
        self.most_in_row = device.limits["max-compute-workgroups-per-dimension"]
        self.bound: list[int | bytes] = [-1]          # addresses and scalars that `group` binds
        self.group: Any = None

    def start(self) -> None:
        given = [ctypes.string_at(a, 8) if scalar else a for a, scalar in zip(self.addresses, self.scalars)]
        with self.device.errors:
            if given != self.bound:
                self.group, self.bound = self.bind(given), given
            rows = min(self.groups, self.most_in_row), -(-self.groups // self.most_in_row)
            self.device.collected.append((self.pipeline, self.group, rows))
            if len(self.device.collected) >= MOST_LAUNCHES:
                self.device.submit()

    def bind(self, given: Sequence[int | bytes]) -> Any:
        """Make a bind group of these addresses and scalars: each buffer from an aligned offset on. (Bindings beyond the
        last argument alias it: the memory that a launch provides for its groups.)"""
        device, words, usage = self.device, b"", self.device.wgpu.BufferUsage.UNIFORM
        align, resources = device.limits["min-storage-buffer-offset-alignment"], []
        for value in given:
            handle, at = (None, 0) if isinstance(value, bytes) else device.memory.find(value)
            begin = at // align * align
            words += value + bytes(8) if isinstance(value, bytes) else struct.pack("<4I", at - begin, 0, 0, 0)
            resources.append({"buffer": handle, "offset": begin})
        resources.insert(0, {"buffer": device.device.create_buffer_with_data(data=words, usage=usage)})
        entries = [{"binding": number, "resource": resources[min(number, len(given))]} for number in self.numbers]
        return device.device.create_bind_group(layout=self.layout, entries=entries)


class WebgpuDevice(GpuDevice):
    """One adapter; `limits` and `features` may restrict it to less than it offers."""
    dialect, launch_type = WGSL, WebgpuLaunch

    def __init__(self, name: str, wgpu: Any, adapter: Any, limits: dict[str, int] | None = None,
                 features: Sequence[str] = tuple(TYPES)):
        self.wgpu, self.limits = wgpu, adapter.limits | (limits or {})
        features = [feature for feature in features if feature in adapter.features]
        self.device = adapter.request_device_sync(required_limits=self.limits, required_features=features)
        self.queue, self.errors = self.device.queue, DriverErrors(self)
        self.collected: list[tuple[Any, Any, tuple[int, int]]] = []      # pipelines, arguments, groups
        super().__init__(name, WebgpuMemory(self, name))
        self.largest_block = self.memory.largest
        self.missing_types = tuple([name for feature in TYPES if feature not in features for name in TYPES[feature]])
        threads = min(GPU.vector_bytes, self.limits["max-compute-invocations-per-workgroup"],
                      self.limits["max-compute-workgroup-size-x"])
        group_bytes = self.limits["max-compute-workgroup-storage-size"] - FOLD_BYTES * threads
        about = adapter.info
        fusion = GPU.fusion._replace(buffers=self.limits["max-storage-buffers-per-shader-stage"],
                                     products_per_byte=0)      # no Winograd: its tiles may not fit a block
        self.target = replace(GPU, vector_bytes=threads, row_bytes=group_bytes, group_bytes=group_bytes, fusion=fusion,
                              iteration_limit=ROUNDS.get(about["vendor"], GPU.iteration_limit))
        self.about = f"{about['device']}, {about['description']}, through {about['backend_type']}"
        self.machine = f"{self.about} {wgpu.__version__} {self.limits} {features}"

    # -- compiling -------------------------------------------------------------------------------------------
    def compile_source(self, source: str) -> bytes:
        """Validate WGSL and return it unchanged: drivers compile it when it is loaded."""
        with DriverErrors(self, Rejected):
            self.device.create_shader_module(code=source)
        return source.encode()

    def load(self, compiled: bytes, names: Sequence[str]) -> list[Any]:
        """Return for each function its pipeline, its bind group layout, and its binding numbers."""
        source, stage = compiled.decode(), self.wgpu.ShaderStage.COMPUTE
        bound = [(int(number), kind) for number, kind in re.findall(r"@binding\((\d+)\) var<(\w+)", source)]
        entries = [{"binding": number, "visibility": stage, "buffer": {"type": kind}} for number, kind in bound]
        with self.errors:
            module = self.device.create_shader_module(code=source)
            layout = self.device.create_bind_group_layout(entries=entries)
            whole = self.device.create_pipeline_layout(bind_group_layouts=[layout])
            return [(self.device.create_compute_pipeline(layout=whole, compute={"module": module, "entry_point": name}),
                     layout, [number for number, _ in bound]) for name in names]

    # -- running ---------------------------------------------------------------------------------------------
    def submit(self) -> None:
        """Submit the collected launches."""
        self.memory.check_process()
        launches, self.collected = self.collected, []
        if launches:
            encoder = self.device.create_command_encoder()
            into = encoder.begin_compute_pass()
            for pipeline, arguments, groups in launches:
                into.set_pipeline(pipeline)
                into.set_bind_group(0, arguments)
                into.dispatch_workgroups(*groups)
            into.end()
            self.queue.submit([encoder.finish()])

    def synchronize(self) -> None:
        with self.errors:
            self.submit()
            use = self.wgpu.BufferUsage.COPY_SRC          # a read waits for all that was submitted before
            self.queue.read_buffer(self.device.create_buffer_with_data(data=bytes(4), usage=use))
