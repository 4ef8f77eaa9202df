"""The device PYTHON: kernels interpreted with NumPy. In: kernels' graphs. Out: plans that run them, slowly and checked.

It runs the same loop trees as the other devices, every access checked, so it is their reference. It needs no
compiler. Wide "registers" of 2048 elements, and tasks wherever iterations are independent, keep the Python loops short.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassgrad.base.settings import settings
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.printing import show
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch import LaunchInfo
from glassgrad.runtime.compile_kernel import kernel_of
from glassgrad.runtime.cpu.native_device import NativeDevice
from glassgrad.runtime.host_memory import HostMemory
from glassgrad.runtime.kernel_key import cost
from glassgrad.runtime.python_launcher import StepwisePlan
from glassgrad.runtime.renderer_info import RendererFacts

WIDE = Target(arch="python", vector_bytes=8192, vector_registers=32, task_steps=1, most_tasks=1 << 62)


@dataclass(eq=False)
class Interpreted:
    """A kernel ready to be interpreted."""
    kernel: Kernel
    operations: int
    bytes: int

    def __post_init__(self) -> None:
        self.name = self.kernel.name
        self.info = LaunchInfo((), (), 0)      # the interpreter brings its own LOCAL memory


class PythonDevice:
    """Allocator, compiler and runner in one, over the host's memory."""

    def __init__(self, name: str = "PYTHON"):
        self.name = name
        self.memory = HostMemory()
        self._programs: dict[tuple[UOp, int], Interpreted] = {}

    @property
    def renderer(self) -> RendererFacts:
        return RendererFacts(self.name, "python", has_threads=False)

    def programs(self, kernels: Sequence[UOp]) -> list[Interpreted]:
        return [self._program(ast) for ast in kernels]

    def _program(self, ast: UOp) -> Interpreted:
        key = (ast, settings.NOOPT)
        found = self._programs.get(key)
        if found is None:
            kernel = kernel_of(ast, WIDE, contract=False, say=True)
            found = self._programs[key] = Interpreted(kernel, *cost(ast))
        return found

    def loop_tree(self, ast: UOp) -> Kernel:
        """The optimized loop tree of a kernel: what runs, made anew."""
        return kernel_of(ast, WIDE, contract=False)

    def source(self, ast: UOp) -> str:
        """The loop tree itself is what runs."""
        return show(self.loop_tree(ast))

    def plan(self, programs: Sequence[Interpreted], slots: Sequence[tuple[int, ...]]) -> PythonPlan:
        return PythonPlan(programs, slots)

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def empty_cache(self) -> None:
        """Give pooled memory back to the system."""
        self.memory.empty_cache()

    copy_in = staticmethod(NativeDevice.copy_in)
    copy_out = staticmethod(NativeDevice.copy_out)


class PythonPlan(StepwisePlan):
    """Kernels, interpreted one after another."""

    def run_one(self, number: int) -> int:
        start = time.perf_counter_ns()
        program, uses = self.programs[number], self.slots[number]
        arguments: list[Any] = [None] * len(uses)
        for param in program.kernel.params:
            arguments[param.arg.slot] = _argument(param, self.addresses[uses[param.arg.slot]])
        run_kernel(program.kernel, arguments)
        return time.perf_counter_ns() - start


def _argument(param: UOp, address: int) -> Any:
    import numpy as np
    if param.arg.scalar:
        code = {"bfloat16": "f", "fp8e4m3": "f", "fp8e5m2": "f"}.get(param.dtype.name, param.dtype.format)
        return struct.unpack_from("<" + code, ctypes.string_at(address, 8))[0]
    nbytes = param.size * param.dtype.itemsize
    if not nbytes:
        return np.zeros(0, np.dtype(param.dtype.format))
    return np.frombuffer(memoryview((ctypes.c_char * nbytes).from_address(address)), np.dtype(param.dtype.format))
