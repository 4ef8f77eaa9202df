"""Run kernels with NumPy: the device PYTHON. In: kernels' graphs. Out: plans that interpret them, slowly and checked.

It interprets the same loop trees that other devices compile, and checks every access, so it is their reference. It
needs no compiler. To keep the Python loops short, its "registers" have 2048 elements, and iterations are tasks wherever
they are independent.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassgrad.compiler.check.loop_interpreter import elements_of, run_kernel
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import Size, Symbol
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.printing import show
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import kernel_of
from glassgrad.compiler.render.launch_info import LaunchInfo
from glassgrad.compiler.schedule.kernels import cost
from glassgrad.runtime.backend import Backend, RendererFacts
from glassgrad.runtime.host_memory import HostMemory

WIDE = Target(arch="python", vector_bytes=8192, vector_registers=32, tiled_products=False, task_steps=1,
              most_tasks=1 << 62)


@dataclass(eq=False)
class InterpretedProgram:
    """A kernel that is ready to be interpreted."""
    kernel: Kernel
    operations: Size
    bytes: Size

    def __post_init__(self) -> None:
        self.name = self.kernel.name
        self.info = LaunchInfo((), (), 0)      # the interpreter allocates LOCAL memory itself


class PythonDevice(Backend):
    """The interpreter as a device, over the host's memory."""
    description = "an interpreter: slow, and needs nothing"

    def __init__(self, name: str = "PYTHON"):
        super().__init__(name, HostMemory())
        self.renderer = RendererFacts(name, "python", has_threads=False)

    def compile(self, ast: UOp) -> InterpretedProgram:
        return InterpretedProgram(kernel_of(ast, WIDE, say=True), *cost(ast))

    def launch(self, program: InterpretedProgram, addresses: Sequence[int]) -> None:
        arguments: list[Any] = [None] * len(addresses)
        values: dict[Symbol, int] = {}
        for param in sorted(program.kernel.params, key=lambda p: not p.arg.scalar):    # scalars give sizes
            found = arguments[param.arg.slot] = _argument(param, addresses[param.arg.slot], values)
            if isinstance(param.arg, Measure):
                values[param.arg.symbol] = int(found)
        run_kernel(program.kernel, arguments)

    def loop_tree(self, ast: UOp) -> Kernel:
        """Return the optimized loop tree of a kernel, lowered again: what `launch` interprets."""
        return kernel_of(ast, WIDE)

    def source(self, ast: UOp) -> str:
        """Return the loop tree as text."""
        return show(self.loop_tree(ast))


def _argument(param: UOp, address: int, values: dict[Symbol, int]) -> Any:
    import numpy as np
    if param.arg.scalar:
        code = param.dtype.format if param.dtype.in_numpy else "f"
        return struct.unpack_from("<" + code, ctypes.string_at(address, 8))[0]
    nbytes = elements_of(param, values) * param.dtype.itemsize
    if not nbytes:
        return np.zeros(0, np.dtype(param.dtype.format))
    return np.frombuffer(memoryview((ctypes.c_char * nbytes).from_address(address)), np.dtype(param.dtype.format))
