"""Devices that run on a GPU. In: kernels' graphs, a driver. Out: programs, and plans to run them.

A driver is what differs between CUDA and OpenCL: memory, a compiler, and a way to launch. What they share stands here:
kernels are lowered for very wide vectors (compiler/render/gpu/gpu_source.py), compiled once, kept on disk, and
launched in order.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from glassgrad.base.errors import Bug, MemoryLimitError
from glassgrad.base.settings import kernel_mode, settings
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.render.gpu.dialects import Dialect
from glassgrad.compiler.render.launch import LaunchInfo
from glassgrad.runtime.disk_cache import default_cache
from glassgrad.runtime.host_memory import readable
from glassgrad.runtime.kernel_key import cache_key, cost
from glassgrad.runtime.python_launcher import StepwisePlan
from glassgrad.runtime.renderer_info import RendererFacts

__all__ = ["Driver", "GpuDevice", "Launch", "Rejected"]

USER_THREADS = 256        # of each group, where a kernel is the user's own


class Rejected(Exception):
    """Source that the driver's compiler does not take; the text is what the compiler says."""


class Launch(Protocol):
    """One function with its arguments, to be started often."""

    def places(self, position: int) -> tuple[Any, int]:
        """Where the address of an argument is written: (array, position)."""

    def start(self) -> None:
        """Start it behind whatever was started before; it may still run when this returns."""


class Driver(Protocol):
    """One GPU, opened."""
    dialect: Dialect
    memory: Any
    machine: str              # what a compiled kernel depends on: processor, driver, compiler
    description: str          # what it is, for people

    def compile(self, source: str) -> bytes:
        """Source to what `load` takes; raises `Rejected`."""

    def load(self, compiled: bytes, names: Sequence[str]) -> list[Any]:
        """The functions of a compiled kernel."""

    def launch(self, function: Any, groups: int, threads: int, near: int, scalars: Sequence[bool]) -> Launch:
        """A function with a place for each argument; a scalar's address is one of the host's."""

    def time(self, launches: Sequence[Launch]) -> int:
        """Run these to their end; the nanoseconds it took."""

    def copy_in(self, address: int, data: Any) -> None: ...
    def copy_out(self, address: int, nbytes: int) -> bytearray: ...
    def synchronize(self) -> None: ...


@dataclass(eq=False)
class GpuProgram:
    """A compiled kernel: functions to launch, and the memory that brings along."""
    name: str
    functions: list[Any]
    phases: tuple[tuple[str, int, int], ...]
    near: int
    info: LaunchInfo
    scalars: tuple[bool, ...]                    # which of the arguments are numbers
    operations: int
    bytes: int


class GpuDevice:
    """A device over a driver."""

    def __init__(self, name: str, driver: Driver):
        self.name, self.driver, self.memory = name, driver, driver.memory
        self._programs: dict[tuple[UOp, tuple[Any, ...]], GpuProgram] = {}
        self.copy_in, self.copy_out, self.synchronize = driver.copy_in, driver.copy_out, driver.synchronize

    @property
    def renderer(self) -> RendererFacts:
        return RendererFacts(self.name, self.driver.dialect.name, has_local=True, has_shared=True, has_threads=False)

    # -- compiling -------------------------------------------------------------------------------------------
    def programs(self, kernels: Sequence[UOp]) -> list[GpuProgram]:
        """Compiled kernels, each distinct one once."""
        mode = kernel_mode()
        for ast in kernels:
            if (ast, mode) not in self._programs:
                self._programs[ast, mode] = self._program(ast)
        return [self._programs[ast, mode] for ast in kernels]

    def _program(self, ast: UOp) -> GpuProgram:
        cache = default_cache() if settings.CACHE and settings.DEBUG < 4 else None
        key = cache_key(ast, self.driver.machine, self.driver.dialect.name) if cache else ""
        stored = cache.get(key) if cache else None
        if stored is None:
            stored = self._build(ast)
            if cache:
                cache.put(key, stored)
        (length,) = struct.unpack_from("<I", stored)
        name, phases, near, shared, scalars = json.loads(stored[4:4 + length])
        functions = self.driver.load(stored[4 + length:], [phase[0] for phase in phases])
        return GpuProgram(name, functions, tuple(map(tuple, phases)), near, LaunchInfo((), tuple(shared), 0),
                          (*scalars, *[False] * len(shared)), *cost(ast))

    def _build(self, ast: UOp) -> bytes:
        from glassgrad.compiler.render.gpu.gpu_source import gpu_launch  # a warm process does without
        from glassgrad.runtime.compile_kernel import build
        built = build(ast, GPU, self.driver.dialect.name, contract=False)
        kernel, launch = built.kernel, gpu_launch(built.kernel)
        try:
            compiled = self.driver.compile(built.source)
        except Rejected as error:
            raise Bug(f"{self.name} does not take a kernel: {error}\n{built.source}") from None
        params = sorted(kernel.params, key=lambda p: p.arg.slot)
        head = json.dumps([kernel.name, launch.phases, launch.near, launch.info.shared,
                           [p.arg.scalar for p in params]]).encode()
        return struct.pack("<I", len(head)) + head + compiled

    def loop_tree(self, ast: UOp) -> Kernel:
        """A kernel's loop tree as it is rendered."""
        from glassgrad.runtime.compile_kernel import kernel_of
        return kernel_of(ast, GPU, contract=False)

    def source(self, ast: UOp) -> str:
        """The kernel as this device compiles it."""
        from glassgrad.runtime.compile_kernel import build
        return build(ast, GPU, self.driver.dialect.name, contract=False, say=False).source

    # -- running ---------------------------------------------------------------------------------------------
    def plan(self, programs: Sequence[GpuProgram], slots: Sequence[tuple[int, ...]]) -> GpuPlan:
        """Launches of these programs one after another, on numbered slots of memory."""
        return GpuPlan(self.driver, programs, slots)

    def user_kernel(self, source: str, name: str, scalars: Sequence[bool]) -> Callable[[Sequence[int], int], None]:
        """A kernel in the device's own language: called with its arguments' addresses, and how many threads it needs at
        least. Raises `Rejected`."""
        [function] = self.driver.load(self.driver.compile(source), [name])

        def run(addresses: Sequence[int], count: int) -> None:
            launch = self.driver.launch(function, max(1, -(-count // USER_THREADS)), USER_THREADS, 0, scalars)
            for position, address in enumerate(addresses):
                array, at = launch.places(position)
                array[at] = address
            launch.start()
            self.synchronize()
        return run

    def empty_cache(self) -> None:
        """Give pooled memory back to the system."""
        self.memory.empty_cache()


class GpuPlan(StepwisePlan):
    """Launches one after another, none of which is waited for."""

    def __init__(self, driver: Driver, programs: Sequence[GpuProgram], slots: Sequence[tuple[int, ...]]):
        super().__init__(programs, slots)
        self.driver = driver
        self.launches: list[list[Launch]] = []
        self.wires: dict[int, list[tuple[Any, int]]] = {}          # slot: where its address is written
        for program, uses in zip(programs, slots):
            made = [driver.launch(function, groups, threads, program.near, program.scalars)
                    for function, (_, groups, threads) in zip(program.functions, program.phases)]
            self.launches.append(made)
            for launch in made:
                for position, slot in enumerate(uses):
                    self.wires.setdefault(slot, []).append(launch.places(position))
        self.all = [launch.start for made in self.launches for launch in made]

    def bind(self, addresses: Sequence[int]) -> None:
        for slot, places in self.wires.items():
            for array, position in places:
                array[position] = addresses[slot]

    def uses_of(self, slot: int) -> list[tuple[Any, int]]:
        return self.wires.get(slot, [])

    def run(self) -> None:
        for start in self.all:
            start()

    def run_one(self, number: int) -> int:
        return self.driver.time(self.launches[number])


def host_bytes(data: Any) -> Any:
    """Bytes of the host as something that C functions take, without a copy where that is possible."""
    view = memoryview(data).cast("B")
    return (ctypes.c_char * view.nbytes).from_buffer(view) if not view.readonly else bytes(view)


def no_memory_left(size: int) -> MemoryLimitError:
    """What is said when a device cannot give so many bytes."""
    return MemoryLimitError("the GPU has no memory left", given=f"a request of {readable(size)}",
                            expected="memory that is free", fix="use smaller batches, or let go of tensors")
