"""The device WEBGPU. In: the package `wgpu` and a driver for Vulkan, Metal or Direct3D 12. Out: an opened device.

Memory is named by handles (handle_memory.py). A launch binds its arguments' blocks, each from an aligned byte on, and
writes a small uniform buffer with what remains: distances, and the bytes of numbers. Launches are collected in a
command buffer, which is submitted before a copy, or when it is long; threads take turns (`DriverErrors`).

Limits are those of the adapter: threads and memory of a group go into the `Target` that kernels are written for; an
argument that is larger than one binding is refused. A kernel with more arguments than bindings gets the last ones
packed: copied into one buffer before it runs, and what it wrote copied back. (Splitting such kernels in the scheduler
would make the kernels of every device depend on one device's limit.)
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from glassgrad.base.errors import Bug, DeviceError, MemoryLimitError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.symbolic import most
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.render.gpu.dialects import WGSL
from glassgrad.compiler.render.launch import BoxMap, packed_from
from glassgrad.runtime.gpu.gpu_device import GpuDevice, GpuProgram, Rejected
from glassgrad.runtime.gpu.handle_memory import MemoryByHandle
from glassgrad.runtime.host_memory import readable

__all__ = ["WebgpuDevice", "open_webgpu"]

INSTALL = "pip install wgpu, and a driver for Vulkan: Debian's mesa-vulkan-drivers has one for the processor"
USED = ("max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x", "max-compute-workgroup-storage-size",
        "max-compute-workgroups-per-dimension", "max-storage-buffers-per-shader-stage", "max-buffer-size",
        "max-storage-buffer-binding-size", "min-storage-buffer-offset-alignment")
MOST_LAUNCHES = 64        # in one command buffer: the device begins while others are written
ROUNDS_TRIED = 70_000     # of a loop; its end depends on what it stores, so that it is not computed at once
ROUNDS = """
@group(0) @binding(0) var<uniform> args: array<vec4<u32>, 1>;
@group(0) @binding(1) var<storage, read_write> done: array<u32>;
@compute @workgroup_size(1) fn rounds() {{
  for (var i = 0u; i < {rounds}u + args[0].w; i++) {{ done[0] = i + 1u; }}
}}
"""
FOLD_BYTES = 8            # of a group's memory for each thread: values that threads exchange


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

    def __init__(self, device: WebgpuDevice, kind: type[Exception]):
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
        self.device = device

    def new_handle(self, size: int) -> Any:
        limit = self.device.limits["max-buffer-size"]
        if size > limit:
            raise MemoryLimitError("a buffer of WebGPU cannot be so large", given=readable(size),
                                   expected=f"at most {readable(limit)}", fix="use smaller batches, or another device")
        return self.device.new_buffer(size)

    def copy_in(self, address: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        before, after = address % 4, -(address + view.nbytes) % 4
        if not view.nbytes:
            return
        with self.device.errors():
            if before or after:
                begin = address - before
                words = self.copy_out(begin, before + view.nbytes + after)
                words[before:before + view.nbytes] = view
                address, view = begin, memoryview(words)
            handle, at = self.find(address)
            self.device.submit()
            self.device.queue.write_buffer(handle, at, view)

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        if not nbytes:
            return bytearray()
        handle, at = self.find(address)
        before, after = at % 4, -(at + nbytes) % 4
        with self.device.errors():
            self.device.submit()
            words = self.device.queue.read_buffer(handle, at - before, before + nbytes + after)
        return bytearray(words[before:before + nbytes])


@dataclass(eq=False)
class EntryPoint:
    """A compiled entry point, and what its arguments are: a size in bytes, whether it stores there."""
    pipeline: Any
    layout: Any
    sizes: tuple[int, ...] = ()
    stores: tuple[bool, ...] = ()


class WebgpuDevice(GpuDevice):
    """One adapter. `limits` are the adapter's, or smaller ones."""
    dialect = WGSL
    packs_arguments = True

    def __init__(self, name: str, wgpu: Any, adapter: Any, limits: dict[str, int] | None = None):
        self.wgpu, self.limits = wgpu, {key: adapter.limits[key] for key in USED} | (limits or {})
        self.device = adapter.request_device_sync(required_limits=self.limits)
        self.queue = self.device.queue
        self.encoder: Any = None
        self.compute: Any = None                      # the open pass of the encoder
        self.waiting: set[WebgpuLaunch] = set()       # launches in the encoder
        super().__init__(name, WebgpuMemory(self, name))
        self.target, self.clock = GPU, self.new_buffer(4)
        threads = min(GPU.vector_bytes, self.limits[USED[0]], self.limits[USED[1]])
        group_bytes = self.limits["max-compute-workgroup-storage-size"] - FOLD_BYTES * threads
        self.target = replace(GPU, vector_bytes=threads, row_bytes=group_bytes, group_bytes=group_bytes,
                              buffers=self.limits["max-storage-buffers-per-shader-stage"], most_rounds=self.rounds())
        about = adapter.info
        self.machine = f"{about['device']} {about['description']} {about['backend_type']} {wgpu.__version__} " \
                       f"{self.limits}"
        self.about = f"{about['device']}, {about['description']}, through {about['backend_type']}"

    def errors(self, kind: type[Exception] = Bug) -> DriverErrors:
        """Around calls of the driver: what it reports is raised as our errors, of this kind unless it is lost."""
        return DriverErrors(self, kind)

    def new_buffer(self, size: int, usage: str = "STORAGE") -> Any:
        """A buffer of so many bytes, or None."""
        use = self.wgpu.BufferUsage
        try:
            with self.errors():
                return self.device.create_buffer(size=-(-size // 4) * 4,
                                                 usage=use[usage] | use.COPY_DST | use.COPY_SRC)
        except self.wgpu.GPUOutOfMemoryError:
            return None

    def rounds(self) -> int:
        """How many rounds of loops a thread may run (render/wgsl/loop_rounds.py): a loop is run to find out."""
        source = ROUNDS.format(rounds=ROUNDS_TRIED)
        [function] = self.load(source.encode(), ["rounds"])
        function.sizes = (4,)
        block = self.memory.allocate(4)
        launch = WebgpuLaunch(self, function, 1, [False])
        launch.addresses[0] = block.address
        launch.start()
        done = int.from_bytes(self.memory.copy_out(block.address, 4), "little")
        self.memory.release(block)
        return GPU.most_rounds if done == ROUNDS_TRIED else done

    # -- compiling -------------------------------------------------------------------------------------------
    def compile(self, ast: UOp) -> GpuProgram:
        nodes, program = toposort([ast]), super().compile(ast)
        params = {n.arg.slot: math.prod(map(most, n.arg.shape)) * n.dtype.itemsize for n in nodes if n.op is o.PARAM}
        written = {n.arg.slot for s in nodes if s.op is o.STORE for n in toposort([s.src[0]]) if n.op is o.PARAM}
        shared = program.info.shared
        sizes = (*[params[slot] for slot in sorted(params)], *shared)
        for function in program.functions:
            function.sizes = sizes
            function.stores = (*[slot in written for slot in sorted(params)], *[True] * len(shared))
        return program

    def compile_source(self, source: str) -> bytes:
        """WGSL stays WGSL: drivers compile it when it is loaded. Here it is checked."""
        with self.errors(Rejected):
            self.device.create_shader_module(code=source)
        return source.encode()

    def load(self, compiled: bytes, names: Sequence[str]) -> list[Any]:
        source, stage = compiled.decode(), self.wgpu.ShaderStage.COMPUTE
        bound = source.count("var<storage, read_write>")
        entries = [{"binding": 0, "visibility": stage, "buffer": {"type": "uniform"}}]
        entries += [{"binding": i + 1, "visibility": stage, "buffer": {"type": "storage"}} for i in range(bound)]
        with self.errors():
            module = self.device.create_shader_module(code=source)
            layout = self.device.create_bind_group_layout(entries=entries)
            whole = self.device.create_pipeline_layout(bind_group_layouts=[layout])
            return [EntryPoint(self.device.create_compute_pipeline(
                layout=whole, compute={"module": module, "entry_point": name}), layout) for name in names]

    # -- running ---------------------------------------------------------------------------------------------
    def prepare(self, function: Any, groups: int, threads: int, group_bytes: int, scalars: Sequence[bool],
                maps: Sequence[BoxMap] = ()) -> WebgpuLaunch:
        return WebgpuLaunch(self, function, groups, scalars)

    def open_pass(self) -> Any:
        """The pass that launches are written into."""
        if self.compute is None:
            self.encoder = self.encoder or self.device.create_command_encoder()
            self.compute = self.encoder.begin_compute_pass()
        return self.compute

    def close_pass(self) -> Any:
        """The encoder, to write copies into."""
        if self.compute is not None:
            self.compute.end()
            self.compute = None
        self.encoder = self.encoder or self.device.create_command_encoder()
        return self.encoder

    def submit(self) -> None:
        """Start what was collected."""
        self.memory.check_process()
        if self.encoder is not None:
            encoder = self.close_pass()
            self.encoder = None
            self.waiting.clear()
            self.queue.submit([encoder.finish()])

    def synchronize(self) -> None:
        with self.errors():
            self.submit()
            self.queue.read_buffer(self.clock, 0, 4)          # which waits for all that was submitted before


class WebgpuLaunch:
    """An entry point with the addresses of its arguments, their bindings while these stay the same, and its uniform
    buffer."""

    def __init__(self, device: WebgpuDevice, function: EntryPoint, groups: int, scalars: Sequence[bool]):
        self.device, self.function, self.scalars = device, function, scalars
        most_groups = device.limits["max-compute-workgroups-per-dimension"]
        self.groups = (min(groups, most_groups), -(-groups // most_groups))
        self.addresses = [0] * len(scalars)
        self.arguments = device.new_buffer(16 * max(1, len(scalars)), "UNIFORM")
        self.bound: list[int] = []                    # addresses that `group` binds
        self.values = b""                             # what the uniform buffer holds
        self.distances = [0] * len(scalars)
        self.packed: list[tuple[Any, int, Any, int, int, bool]] = []      # copies in and, where it stores, out
        self.group: Any = None

    def places(self, position: int) -> tuple[Any, int]:
        return self.addresses, position

    def start(self) -> None:
        device = self.device
        with device.errors():
            if self.addresses != self.bound:
                self.bind()
            values = b"".join([ctypes.string_at(a, 8) + bytes(8) if scalar else struct.pack("<4I", at, 0, 0, 0)
                               for a, scalar, at in zip(self.addresses, self.scalars, self.distances)])
            if values != self.values:
                if self in device.waiting:            # with the values of before
                    device.submit()
                device.queue.write_buffer(self.arguments, 0, values)
                self.values = values
            for theirs, at, ours, there, nbytes, _ in self.packed:
                device.close_pass().copy_buffer_to_buffer(theirs, at, ours, there, nbytes)
            into = device.open_pass()
            into.set_pipeline(self.function.pipeline)
            into.set_bind_group(0, self.group)
            into.dispatch_workgroups(*self.groups)
            for theirs, at, ours, there, nbytes, stores in self.packed:
                if stores:
                    device.close_pass().copy_buffer_to_buffer(ours, there, theirs, at, nbytes)
            device.waiting.add(self)
            if len(device.waiting) >= MOST_LAUNCHES:
                device.submit()

    def bind(self) -> None:
        """A bind group for the addresses of now."""
        device, align = self.device, self.device.limits["min-storage-buffer-offset-alignment"]
        memories = [i for i, scalar in enumerate(self.scalars) if not scalar]
        last = packed_from(len(memories), device.target.buffers)
        entries = [{"binding": 0, "resource": {"buffer": self.arguments, "offset": 0, "size": self.arguments.size}}]
        for number, i in enumerate(memories[:last]):
            handle, distance = device.memory.find(self.addresses[i])
            begin = distance // align * align
            self.distances[i] = distance - begin
            size = self.bytes_of(i, handle, begin, self.distances[i])
            self.check(size)
            entries.append({"binding": number + 1, "resource": {"buffer": handle, "offset": begin, "size": size}})
        if memories[last:]:
            entries.append({"binding": last + 1, "resource": self.pack(memories[last:])})
        self.group = device.device.create_bind_group(layout=self.function.layout, entries=entries)
        self.bound = list(self.addresses)

    def bytes_of(self, argument: int, handle: Any, begin: int, distance: int) -> int:
        """How much of a buffer an argument needs from `begin` on. A size that changes from call to call counts with the
        most that it can be: the buffer of this call may be smaller."""
        needed = -(-(distance + max(self.function.sizes[argument], 4)) // 8) * 8
        return min(needed, handle.size - begin)

    def pack(self, arguments: list[int]) -> dict[str, Any]:
        """One buffer for several arguments, and the copies to it and back."""
        device, total = self.device, 0
        sources = []
        for i in arguments:
            handle, distance = device.memory.find(self.addresses[i])
            begin = distance // 8 * 8
            nbytes = self.bytes_of(i, handle, begin, distance - begin)
            self.distances[i] = total + distance - begin
            sources.append((handle, begin, total, nbytes, self.function.stores[i]))
            total += nbytes
        self.check(total)
        whole = device.new_buffer(total)
        self.packed = [(handle, begin, whole, at, nbytes, stores) for handle, begin, at, nbytes, stores in sources]
        return {"buffer": whole, "offset": 0, "size": total}

    def check(self, size: int) -> None:
        limit = self.device.limits["max-storage-buffer-binding-size"]
        if size > limit:
            raise MemoryLimitError("a kernel's argument is larger than WebGPU binds here", given=readable(size),
                                   expected=f"at most {readable(limit)}",
                                   fix="use smaller batches, or another device")
