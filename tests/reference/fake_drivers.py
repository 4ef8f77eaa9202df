"""The drivers of GPUs that are not here, as objects with their functions. Out: `FakeDriver`, `FakeMetal`.

Memory is the host's, kernels run by shim_device.py, and streams do their work late. So `CudaDevice`, `HipDevice` and
`MetalDevice` run whole: what they allocate, copy and launch, in which order, and what they must give back. The drivers
themselves are not checked.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections import Counter, deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from shim_device import KERNEL, KernelFault, ShimDevice, run_kernel, runtime

from glassgrad import Device
from glassgrad.compiler.render.gpu.dialects import METAL, Dialect
from glassgrad.runtime.gpu.cuda_hip_calls import DriverNames
from glassgrad.runtime.gpu.cuda_hip_device import DriverDevice
from glassgrad.runtime.gpu.gpu_device import Rejected
from glassgrad.runtime.gpu.metal import ObjectiveC, Size
from glassgrad.runtime.memory_pool import MemoryBlock

take_the_place = pytest.mark.skipif(Device.DEFAULT in ("CUDA", "AMD", "METAL"), reason="fake drivers take the place of "
                                    f"{Device.DEFAULT}, on which all other tests run now: run these without DEVICE")
ILLEGAL_ADDRESS = 700
ARCHITECTURE = b"gfx90a:sramecc+:xnack-"


def _written(pointer: Any, value: int) -> int:
    """Write what a function gives back through a pointer."""
    pointer._obj.value = value
    return 0


def compiled(shim: ShimDevice, source: str) -> bytes:
    """A kernel's source as machine code of the host, with the number of each function's arguments behind it."""
    code = shim.compile_source(source)
    counts = {name: source[start:source.index(")", start)].count(",") + 1
              for name, start in ((found[1], found.end()) for found in KERNEL.finditer(source))}
    trailer = json.dumps(counts).encode()
    return code + trailer + struct.pack("<I", len(trailer))


@dataclass
class FakeFunction:
    """A kernel, and how many arguments it takes."""
    run: Any
    count: int


@dataclass
class FakeGraph:
    """Kernels in a chain; of one that can run, with the arguments that were copied."""
    launches: list[tuple[Any, ...]] = field(default_factory=list)


class FakeDriver:
    """libcuda or libamdhip64, whose functions take the same arguments (`DriverNames`). Functions of these names fail
    with these numbers: FakeDriver(HipDevice.names, HIP, hipInit=100).

    What is started on a stream is done later: when the host waits for it, or at once where the stream is `eager`. So
    copies may come long before the kernels that were launched before them, or long after, as on a GPU; only events keep
    an order. `eager` is "kernels" (the stream None), "copies" (any other) or "" (none)."""

    def __init__(self, names: DriverNames, dialect: Dialect, eager: str = "", **failures: int):
        self.shim, self.failures, self.devices = ShimDevice(f"{dialect.name}_shim", dialect), failures, 1
        self.eager, self.breaks = eager, False       # whether a kernel's fault makes every later call fail
        self.broken = 0
        self.called: list[str] = []
        self.blocks: dict[int, MemoryBlock] = {}
        self.pinned: list[Any] = []
        self.modules: list[bytes] = []
        self.functions: list[FakeFunction] = []
        self.graphs: dict[int, FakeGraph] = {}
        self.streams: dict[int, deque[Callable[[], bool]]] = {0: deque()}      # work; it is False where it has to wait
        self.recorded: dict[int, int] = {}           # of each event, how often it was recorded, and what was reached
        self.reached: dict[int, int] = {}
        self.handles = 0
        self.meaning = {name: f"do_{what}" for what, name in names._asdict().items()}
        self.hipGetErrorString = lambda number: f"hip error {number}".encode()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("hip", "cu")) or name.endswith("R0600") or name == "cuEventElapsedTime_v2":
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.called.append(name)
            does = getattr(self, self.meaning.get(name, f"do_{name}"), lambda *_: 0)
            return int(self.broken or self.failures.get(name) or does(*arguments) or self.broken)
        return function

    def made(self, pointer: Any) -> int:
        """A new handle, written to where a pointer points."""
        self.handles += 1
        _written(pointer, self.handles)
        return self.handles

    # -- the device --------------------------------------------------------------------------------------------------
    def do_hipGetDeviceCount(self, count: Any) -> int:
        return _written(count, self.devices)

    def do_hipDeviceGetName(self, text: Any, size: int, device: Any) -> int:
        text.value = b"A GPU"
        return 0

    do_cuDeviceGetName = do_hipDeviceGetName

    def do_hipGetDeviceProperties(self, record: Any, device: int) -> int:
        ctypes.memmove(ctypes.addressof(record) + 700, ARCHITECTURE, len(ARCHITECTURE))
        return 0

    def do_cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:
        return _written(value, {75: 7, 76: 5}[number])          # sm_75: without float16 instructions, which are PTX

    # -- streams and events ------------------------------------------------------------------------------------------
    def put(self, stream: Any, work: Callable[[], bool]) -> int:
        """Start something on a stream."""
        number = stream.value if stream is not None else 0
        self.streams[number].append(work)
        if self.eager == ("copies" if number else "kernels"):
            self.advance(number)
        return 0

    def advance(self, number: int) -> bool:
        """Do what a stream can do now; whether that was anything."""
        queue, any_done = self.streams[number], False
        while queue and queue[0]():
            queue.popleft()
            any_done = True
        return any_done

    def finish(self, until: Callable[[], bool]) -> int:
        """Let all streams work until something is true."""
        while not until():
            assert any([self.advance(number) for number in self.streams]), "streams wait for each other"
        return 0

    def do_make_stream(self, stream: Any, flags: int) -> int:
        assert flags == 1, "a stream that waits for all kernels by itself is none for copies beside them"
        self.streams[self.made(stream)] = deque()
        return 0

    def do_make_event(self, event: Any, flags: int) -> int:
        number = self.made(event)
        self.recorded[number] = self.reached[number] = 0
        return 0

    def do_record(self, event: Any, stream: Any) -> int:
        self.recorded[event.value] += 1
        number, times = event.value, self.recorded[event.value]

        def reach() -> bool:
            self.reached[number] = times
            return True
        return self.put(stream, reach)

    def do_stream_awaits(self, stream: Any, event: Any, flags: int) -> int:
        number, times = event.value, self.recorded[event.value]
        return self.put(stream, lambda: self.reached[number] >= times)

    def do_await_event(self, event: Any) -> int:
        number, times = event.value, self.recorded[event.value]
        return self.finish(lambda: self.reached[number] >= times)

    def do_synchronize(self) -> int:
        return self.finish(lambda: not any(self.streams.values()))

    def do_elapsed(self, milliseconds: Any, first: Any, last: Any) -> int:
        return _written(milliseconds, 2)

    # -- memory ------------------------------------------------------------------------------------------------------
    def do_allocate(self, address: Any, size: Any) -> int:
        block = self.shim.memory.allocate(size.value)
        self.blocks[block.address] = block
        return _written(address, block.address)

    def do_free(self, address: Any) -> int:
        self.shim.memory.release(self.blocks.pop(address.value))
        return 0

    def do_allocate_host(self, address: Any, size: Any, flags: int) -> int:
        self.pinned.append(ctypes.create_string_buffer(size.value))
        return _written(address, ctypes.addressof(self.pinned[-1]))

    def is_pinned(self, address: int, size: int) -> bool:
        return any(ctypes.addressof(block) <= address and address + size <= ctypes.addressof(block) + len(block)
                   for block in self.pinned)

    def do_copy_in(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        assert self.is_pinned(source.value, size.value), "the driver would wait for all kernels first"
        return self.put(stream, partial(_moved, to.value, source.value, size.value))

    def do_copy_out(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        assert self.is_pinned(to.value, size.value), "the driver would not return before the copy is made"
        return self.put(stream, partial(_moved, to.value, source.value, size.value))

    def do_read(self, to: Any, source: Any, size: Any) -> int:
        self.put(None, partial(_moved, ctypes.addressof(to), source.value, size.value))
        return self.finish(lambda: not self.streams[0])

    # -- kernels -----------------------------------------------------------------------------------------------------
    def do_load(self, module: Any, code: bytes) -> int:
        self.modules.append(code)
        return _written(module, len(self.modules))

    def do_function(self, function: Any, module: Any, name: bytes) -> int:
        code = self.modules[module.value - 1]
        (length,) = struct.unpack("<I", code[-4:])
        counts, library = json.loads(code[-4 - length:-4]), code[:-4 - length]
        self.functions.append(FakeFunction(self.shim.load(library, [name.decode()])[0], counts[name.decode()]))
        return _written(function, len(self.functions))

    def captured(self, function: int, groups: int, threads: int, group_bytes: int, pointers: Any) -> tuple[Any, ...]:
        """A launch with its arguments copied, as the driver does before it returns."""
        kernel = self.functions[function - 1]
        values = (ctypes.c_uint64 * kernel.count)(*[ctypes.c_uint64.from_address(pointers[i]).value
                                                    for i in range(kernel.count)])
        return kernel, groups, threads, group_bytes, values

    def start(self, launch: tuple[Any, ...]) -> bool:
        kernel, groups, threads, group_bytes, values = launch
        first = ctypes.addressof(values)
        ranges = [self.shim.memory.range_of(start) for start in self.blocks]
        ranges += [(ctypes.addressof(block), ctypes.addressof(block) + len(block)) for block in self.pinned]
        ranges.append((first, first + ctypes.sizeof(values)))
        try:
            run_kernel(kernel.run, [first + 8 * i for i in range(kernel.count)], ranges, groups, threads, group_bytes)
        except KernelFault:
            if not self.breaks:
                raise
            self.broken = ILLEGAL_ADDRESS
        return True

    def do_launch(self, function: Any, groups: int, gy: int, gz: int, threads: int, ty: int, tz: int, group_bytes: int,
                  stream: None, pointers: Any, extra: None) -> int:
        launch = self.captured(function.value, groups, threads, group_bytes, pointers)
        return self.put(stream, partial(self.start, launch))

    # -- graphs ------------------------------------------------------------------------------------------------------
    def described(self, record: Any) -> tuple[Any, ...]:
        """The launch that a record of a graph's kernel describes."""
        kernel = record._obj
        assert list(kernel.groups)[1:] == list(kernel.threads)[1:] == [1, 1] and not kernel.extra
        count = self.functions[kernel.function - 1].count
        pointers = (ctypes.c_void_p * count).from_address(kernel.arguments)
        return self.captured(kernel.function, kernel.groups[0], kernel.threads[0], kernel.group_bytes, pointers)

    def do_make_graph(self, graph: Any, flags: int) -> int:
        self.graphs[self.made(graph)] = FakeGraph()
        return 0

    def do_add_kernel(self, node: Any, graph: Any, before: Any, count: Any, record: Any) -> int:
        launches = self.graphs[graph.value].launches
        assert [before[i] for i in range(count.value)] == [len(launches)][:len(launches)], "it is a chain"
        launches.append(self.described(record))
        return _written(node, len(launches))

    def do_instantiate(self, instance: Any, graph: Any, flags: Any) -> int:
        self.graphs[self.made(instance)] = FakeGraph(list(self.graphs[graph.value].launches))
        return 0

    def do_set_kernel(self, instance: Any, node: Any, record: Any) -> int:
        self.graphs[instance.value].launches[node.value - 1] = self.described(record)
        return 0

    def do_launch_graph(self, instance: Any, stream: Any) -> int:
        for launch in self.graphs[instance.value].launches:
            self.put(stream, partial(self.start, launch))
        return 0

    def do_destroy_graph(self, graph: Any) -> int:
        del self.graphs[graph.value]
        return 0

    do_destroy_instance = do_destroy_graph


def _moved(to: int, source: int, size: int) -> bool:
    ctypes.memmove(to, source, size)
    return True


class FakeMetal(ObjectiveC):
    """The Objective-C runtime with Metal's objects, which are numbers here. `alive` counts how often each is held."""
    POOLED = ("stringWithUTF8String:", "commandBuffer", "computeCommandEncoder", "localizedDescription", "name",
              "processInfo", "operatingSystemVersionString")
    RETURNS = {"UTF8String": ctypes.c_char_p, "threadExecutionWidth": ctypes.c_uint64, "status": ctypes.c_uint64,
               "GPUEndTime": ctypes.c_double, "GPUStartTime": ctypes.c_double}
    VOID = ("release", "setFastMathEnabled:", "commit", "waitUntilCompleted", "setComputePipelineState:", "endEncoding",
            "setBytes:length:atIndex:", "setBuffer:offset:atIndex:", "setThreadgroupMemoryLength:atIndex:",
            "dispatchThreadgroups:threadsPerThreadgroup:")

    def __init__(self, width: int = 32, memory_limit: int = 1 << 40, status: int = 4) -> None:
        self.shim, self.width, self.memory_limit, self.final_status = ShimDevice("METAL_SHIM", METAL), width, \
            memory_limit, status
        self.library = SimpleNamespace(objc_getClass=lambda name: self.made("class", text=name.decode()))
        self.objects: dict[int, SimpleNamespace] = {}
        self.alive: dict[int, int] = {}
        self.called: list[str] = []
        self.pools = 0
        self.device = self.made("device")

    def made(self, kind: str, **held: Any) -> int:
        number = len(self.objects) + 1000
        self.objects[number] = SimpleNamespace(kind=kind, number=number, **held)
        self.alive[number] = 1
        return number

    def held(self, kind: str) -> int:
        """How many objects of a kind were not released."""
        return sum(self.alive[n] > 0 for n, thing in self.objects.items() if thing.kind == kind)

    @contextmanager
    def pool(self) -> Any:
        before, self.pools = self.pools, self.pools + 1
        inside: list[int] = []
        outer, self.pooled = getattr(self, "pooled", inside), inside
        try:
            yield
        finally:
            for number in inside:
                self.alive[number] -= 1
            self.pools, self.pooled = before, outer

    def send(self, receiver: int | None, method: str, *arguments: Any, returns: Any = ctypes.c_void_p) -> Any:
        assert receiver is not None and self.alive[receiver] > 0, f"{method} of an object that was released"
        expected = None if method in self.VOID else self.RETURNS.get(method, ctypes.c_void_p)
        assert returns is expected, f"{method} returns {expected}, not {returns}"
        assert method.count(":") == len(arguments), f"{method} takes other arguments than {arguments}"
        self.called.append(method)
        found = getattr(self, "do_" + method.replace(":", "_").rstrip("_"))(self.objects[receiver], *arguments)
        if method in self.POOLED:
            assert self.pools, f"{method} outside of a pool"
            self.pooled.append(found)
        return found

    # -- objects ---------------------------------------------------------------------------------------------------
    def do_new(self, kind: Any) -> int:
        return self.made(kind.text)

    def do_retain(self, thing: Any) -> int:
        self.alive[thing.number] += 1
        return int(thing.number)

    def do_release(self, thing: Any) -> None:
        self.alive[thing.number] -= 1
        if thing.kind == "buffer" and not self.alive[thing.number]:
            self.shim.memory.release(thing.block)

    def do_stringWithUTF8String(self, kind: Any, text: Any) -> int:
        return self.made("string", text=text.value.decode())

    def do_UTF8String(self, thing: Any) -> bytes:
        return str(thing.text).encode()

    def do_name(self, thing: Any) -> int:
        return self.made("string", text="Apple M0")

    def do_processInfo(self, thing: Any) -> int:
        return self.made("process")

    def do_operatingSystemVersionString(self, thing: Any) -> int:
        return self.made("string", text="Version 14.0")

    def do_localizedDescription(self, thing: Any) -> int:
        return self.made("string", text=thing.text)

    def do_error(self, thing: Any) -> int:
        return self.made("error", text="the GPU was lost")

    # -- compiling and memory ------------------------------------------------------------------------------------------
    def do_setFastMathEnabled(self, options: Any, value: Any) -> None:
        options.fast_math = value.value

    def do_newLibraryWithSource_options_error(self, device: Any, source: int, options: int, error: Any) -> int | None:
        assert self.objects[options].fast_math is False
        try:
            return self.made("library", code=self.shim.compile_source(self.objects[source].text))
        except Rejected as wrong:
            error.contents.value = self.made("error", text=str(wrong))
            return None

    def do_newFunctionWithName(self, library: Any, name: int) -> int:
        return self.made("function", run=self.shim.load(library.code, [self.objects[name].text])[0])

    def do_newComputePipelineStateWithFunction_error(self, device: Any, function: int, error: Any) -> int:
        return self.made("pipeline", run=self.objects[function].run)

    def do_threadExecutionWidth(self, pipeline: Any) -> int:
        return self.width

    def do_newBufferWithLength_options(self, device: Any, length: int, options: int) -> int | None:
        held = sum(thing.block.size for n, thing in self.objects.items() if thing.kind == "buffer" and self.alive[n])
        if held + length > self.memory_limit:
            return None
        return self.made("buffer", block=self.shim.memory.allocate(length))

    def do_contents(self, buffer: Any) -> int:
        return int(buffer.block.address)

    # -- launching -----------------------------------------------------------------------------------------------------
    def do_newCommandQueue(self, device: Any) -> int:
        return self.made("queue")

    def do_commandBuffer(self, queue: Any) -> int:
        return self.made("command buffer", work=[], status=0)

    def do_computeCommandEncoder(self, command_buffer: Any) -> int:
        return self.made("encoder", to=command_buffer, arguments={}, group_bytes=0)

    def do_setComputePipelineState(self, encoder: Any, pipeline: int) -> None:
        encoder.run = self.objects[pipeline].run

    def do_setBytes_length_atIndex(self, encoder: Any, address: Any, length: int, index: int) -> None:
        copied = ctypes.create_string_buffer(ctypes.string_at(address.value, length), length)
        start = ctypes.addressof(copied)
        encoder.arguments[index] = copied, start, (start, start + length)

    def do_setBuffer_offset_atIndex(self, encoder: Any, buffer: int, offset: int, index: int) -> None:
        block = self.objects[buffer].block
        assert 0 <= offset <= block.size
        cell = ctypes.c_uint64(block.address + offset)
        encoder.arguments[index] = cell, ctypes.addressof(cell), (block.address, block.address + block.size)

    def do_setThreadgroupMemoryLength_atIndex(self, encoder: Any, length: int, index: int) -> None:
        assert length % 16 == 0 and index == 0
        encoder.group_bytes = length

    def do_dispatchThreadgroups_threadsPerThreadgroup(self, encoder: Any, groups: Size, threads: Size) -> None:
        given = [encoder.arguments[i] for i in range(len(encoder.arguments))]
        scratch = ctypes.c_uint64(runtime().gpu_scratch())
        encoder.to.work.append(lambda: run_kernel(
            encoder.run, [*[address for _, address, _ in given], ctypes.addressof(scratch)],
            [r for _, _, r in given], groups.width, threads.width, encoder.group_bytes))

    def do_endEncoding(self, encoder: Any) -> None:
        encoder.to.status = 1

    def do_commit(self, command_buffer: Any) -> None:
        assert command_buffer.status == 1, "the encoder has not ended"
        for work in command_buffer.work:
            work()
        command_buffer.status = self.final_status

    def do_waitUntilCompleted(self, command_buffer: Any) -> None:
        assert command_buffer.status == self.final_status

    def do_status(self, command_buffer: Any) -> int:
        return int(command_buffer.status)

    def do_GPUStartTime(self, command_buffer: Any) -> float:
        return 1.0

    def do_GPUEndTime(self, command_buffer: Any) -> float:
        return 1.5


Opener = Callable[..., DriverDevice]


def calls_of(device: DriverDevice) -> Counter[str]:
    """What the driver was called for since this was last asked, by the names of `DriverNames`."""
    library: Any = device.library
    meaning = {name: what for what, name in device.names._asdict().items()}
    counted = Counter(meaning.get(name, name) for name in library.called)
    library.called.clear()
    return counted
