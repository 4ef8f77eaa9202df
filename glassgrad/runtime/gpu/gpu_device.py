"""Run kernels on a GPU. In: kernels' graphs. Out: programs, and plans to run them.

Common to all GPUs: kernels are lowered for very wide vectors (compiler/render/gpu/gpu_source.py), compiled once, stored
on disk, and launched in order. A subclass adds its memory, its compiler and its way to launch.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from glassgrad.base.errors import Bug, DeviceError, DTypeError, MemoryLimitError
from glassgrad.compiler.graph.symbolic import lower_bound
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.render.gpu.dialects import Dialect, Language
from glassgrad.compiler.render.launch_info import BoxMap, KernelFacts, TasksByValue
from glassgrad.runtime.backend import Backend, DevicePlan, RendererFacts
from glassgrad.runtime.compiled_kernels import CompiledKernels, CompiledProgram, Rejected as Rejected
from glassgrad.runtime.memory_pool import readable

USER_THREADS = 256        # per group, in kernels written by the user


class KernelCall(NamedTuple):
    """A kernel function with its launch configuration and the kinds of its arguments."""
    function: Any
    groups: int
    threads: int                           # per group
    group_bytes: int                       # shared memory per group
    scalars: Sequence[bool]                # which arguments are scalars
    maps: Sequence[BoxMap] = ()            # tensor maps, passed after the other arguments


class Launch(Protocol):
    """One function with its arguments, to be launched repeatedly."""

    def argument_slot(self, position: int) -> tuple[Any, int]:
        """Return the (array, position) that holds the address of an argument."""

    def start(self) -> None:
        """Launch it asynchronously, ordered after earlier launches."""

    def follow(self, tasks: TasksByValue) -> None:
        """Make the number of groups depend on the values of scalar arguments, so that no idle group is started."""

    def share_arguments(self, other: Any) -> None:
        """Use the arrays of another launch with the same arguments, if possible, so that they are bound once
        for both."""


class LaunchByAddress:
    """Base class of launches that look up the handles of their arguments by address when they start."""
    tasks: TasksByValue | None = None

    def __init__(self, device: Any, call: KernelCall):
        self.device, self.call, self.scalars, self.addresses = device, call, call.scalars, [0] * len(call.scalars)

    def argument_slot(self, position: int) -> tuple[Any, int]:
        return self.addresses, position

    def follow(self, tasks: TasksByValue) -> None:
        self.tasks = tasks

    def share_arguments(self, other: Any) -> None:
        """Do nothing: these launches keep addresses in forms of their own."""

    @property
    def groups(self) -> int:
        """The number of groups to launch now."""
        tasks = self.tasks
        if tasks is None:
            return self.call.groups
        values = [ctypes.c_int64.from_address(self.addresses[argument]).value for argument in tasks.arguments]
        return groups_at(tasks, values, self.call.groups)


def groups_at(tasks: TasksByValue, values: Sequence[int], most: int) -> int:
    """Return the number of groups to launch for values of scalars; at least 1, because drivers reject empty
    launches."""
    return max(1, min(most, tasks.at(*values)))


@dataclass(eq=False, kw_only=True)
class GpuProgram(CompiledProgram):
    """A compiled kernel: functions to launch."""
    functions: list[Any]


class GpuDevice(CompiledKernels, Backend):
    """One GPU, opened. A subclass provides the attributes, `compile_source` and `load`."""
    dialect: Language | Dialect
    launch_type: Callable[[Any, KernelCall], Any]      # device, call -> Launch
    about: str                # description for people
    target: Target = GPU
    largest_block = 1 << 62   # most bytes of a kernel's argument

    def __init__(self, name: str, memory: Any):
        super().__init__(name, memory)
        self.language = self.dialect.name
        self.missing_types = self.dialect.missing_types
        self.renderer = RendererFacts(name, self.dialect.name, has_local=True, has_shared=True, has_threads=False,
                                      missing_types=lambda: self.missing_types)

    # -- provided by each device -------------------------------------------------------------------------------
    def load(self, compiled: bytes, names: Sequence[str]) -> list[Any]:
        """Load a compiled kernel; return its functions of these names."""
        raise Bug(f"{type(self).__name__} has no load")

    def prepare(self, call: KernelCall) -> Any:
        """Make a reusable `Launch` of a function."""
        return type(self).launch_type(self, call)

    def time(self, launches: Sequence[Launch]) -> int:
        """Run these launches, wait, and return their nanoseconds; here by the host's clock."""
        self.synchronize()
        start = time.perf_counter_ns()
        for launch in launches:
            launch.start()
        self.synchronize()
        return time.perf_counter_ns() - start

    # -- compiling -------------------------------------------------------------------------------------------
    def load_program(self, facts: KernelFacts, compiled: bytes) -> GpuProgram:
        return GpuProgram(**vars(facts), functions=self.load(compiled, [name for name, *_ in facts.launches]))

    def write(self, ast: UOp, moves: Sequence[str] | None, say: bool = True) -> tuple[KernelFacts, Any]:
        from glassgrad.compiler.pipeline import build, lines_of
        from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch  # a warm process does without
        self._refuse_missing_types(ast)
        built = build(ast, self.target, self.language, moves, say)
        kernel, launch = built.kernel, gpu_launch(built.kernel, self.target.group_bytes)
        most = self.target.fusion.buffers
        if len(kernel.params) + len(launch.info.shared) > most:
            raise DeviceError(f"{self.name} runs no kernel of so many tensors",
                              given=f"{len(kernel.params) + len(launch.info.shared)} buffers",
                              expected=f"at most {most}",
                              fix="realize some of the tensors before: x.realize()", where=lines_of(ast))
        params = sorted(kernel.params, key=lambda p: p.arg.slot)
        size = max((math.prod(map(lower_bound, p.arg.shape)) * p.dtype.itemsize for p in params), default=0)
        if size > self.largest_block:
            raise block_too_large(self.name, size, self.largest_block)
        scalars = (*[p.arg.scalar for p in params], *[False] * len(launch.info.shared))
        return KernelFacts(name=kernel.name, info=launch.info, moves=tuple(kernel.moves), read_first=built.read_first,
                           scalars=scalars, launches=launch.phases, maps=launch.maps), built

    def _refuse_missing_types(self, ast: UOp) -> None:
        from glassgrad.compiler.pipeline import lines_of
        for missing in self.missing_types:
            smaller, rest = ("float32", "smaller floats, integers, bool") if missing == "float64" else \
                ("int32", "smaller integers, floats, bool")
            if any(node.dtype.name == missing for node in ast.toposort()):
                raise DTypeError(f"{self.name} has no {missing}", given=f"a kernel that computes in {missing}",
                                 expected=f"{smaller} or {rest}", where=lines_of(ast),
                                 fix=f'convert before you move it: x.to("CPU").{smaller[:-2]}().to("{self.name}"), '
                                     f'or Tensor(values, dtype="{smaller}")')

    # -- running ---------------------------------------------------------------------------------------------
    def plan(self, programs: Sequence[GpuProgram], slots: Sequence[tuple[int, ...]]) -> GpuPlan:
        """Return a plan that launches these programs in order, on numbered memory slots."""
        return GpuPlan(self, programs, slots)

    def user_kernel(self, source: str, name: str, scalars: Sequence[bool]) -> Callable[[Sequence[int], int], None]:
        """Compile a kernel that the user wrote in the device's language; return a function of its arguments' addresses
        and the least number of threads. Raises `Rejected`."""
        [function] = self.load(self.compile_source(source), [name])

        def run(addresses: Sequence[int], count: int) -> None:
            launch = self.prepare(KernelCall(function, max(1, -(-count // USER_THREADS)), USER_THREADS, 0, scalars))
            for position, address in enumerate(addresses):
                array, at = launch.argument_slot(position)
                array[at] = address
            launch.start()
            self.synchronize()
        return run

    @property
    def description(self) -> str:
        return self.about


class GpuPlan(DevicePlan):
    """A plan of asynchronous launches, in order."""

    def __init__(self, device: GpuDevice, programs: Sequence[GpuProgram], slots: Sequence[tuple[int, ...]]):
        super().__init__(programs, slots)
        self.device = device
        self.launches: list[list[Launch]] = []
        self.wires = []
        for program, uses in zip(programs, slots):
            made = [device.prepare(KernelCall(function, groups, threads, nbytes, program.scalars, program.maps))
                    for function, (_, groups, threads, nbytes) in zip(program.functions, program.launches)]
            for tasks in program.info.by_value:
                made[tasks.phase].follow(tasks)
            for launch in made[1:]:
                launch.share_arguments(made[0])
            self.launches.append(made)
            wires = [(slot, *launch.argument_slot(position)) for launch in made for position, slot in enumerate(uses)]
            self.wires += {(id(array), position): (slot, array, position) for slot, array, position in wires}.values()
        self.flat: list[Any] = [launch for made in self.launches for launch in made]

    def run(self) -> None:
        for launch in self.flat:
            launch.start()

    def run_one(self, number: int) -> int:
        return self.device.time(self.launches[number])


def driver_failure(name: str, doing: str, given: str) -> DeviceError:
    """The error for a driver failure that is unrelated to the computation."""
    return DeviceError(f"{name} failed to {doing}", given=given, expected="a device that answers",
                       fix="start the program anew; if it happens again, see the driver's messages, or use DEV=CPU")


def in_forked_process(name: str) -> DeviceError:
    """The error for a device that is used in a forked child."""
    return DeviceError(f"{name} does not work in a forked process: its driver's threads are not there",
                       given="a child of os.fork()", expected="a process that opens the device itself",
                       fix='start processes by multiprocessing.get_context("spawn"), or use DEV=CPU')


def block_too_large(name: str, size: int, largest: int) -> MemoryLimitError:
    """The error for a block that exceeds the device's largest allocation."""
    return MemoryLimitError(f"{name} has no block as large as this tensor", given=f"a request of {readable(size)}",
                            expected=f"at most {readable(largest)}, which the driver allows",
                            fix="use smaller tensors or batches")


def no_memory_left(size: int) -> MemoryLimitError:
    """The error for a device that is out of memory."""
    return MemoryLimitError("the GPU has no memory left", given=f"a request of {readable(size)}",
                            expected="memory that is free", fix="use smaller batches, or let go of tensors")
