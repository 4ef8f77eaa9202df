"""Kernels for processors that are not here, interpreted. In: a name. Out: devices HOPPER_LOOPS, AMPERE_LOOPS,
GPU_LOOPS, AVX512_LOOPS, AVX2_LOOPS and AMX_LOOPS.

Each runs whole programs as PYTHON does, but in the loops and with the matrix units of another processor. The
interpreter checks every access, every wait and every barrier; it does not see the source that is made of the loops.

    ./dev fuzz lengths --device HOPPER_LOOPS
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from loop_kernels import AMX, AVX2, AVX512, HOPPER

from glassgrad import Device
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.printing import show
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import kernel_of
from glassgrad.compiler.schedule.kernels import cost
from glassgrad.runtime.python.python_device import InterpretedProgram, PythonDevice

TARGETS = {"HOPPER_LOOPS": HOPPER, "AMPERE_LOOPS": replace(GPU, units=units_of({"sm_80"})), "GPU_LOOPS": GPU,
           "AVX512_LOOPS": AVX512, "AVX2_LOOPS": AVX2, "AMX_LOOPS": AMX}


class LoopDevice(PythonDevice):
    """The interpreter, with another processor's loops."""

    def __init__(self, name: str, target: Target):
        super().__init__(name)
        self.target = target

    def compile(self, ast: UOp) -> InterpretedProgram:
        return InterpretedProgram(self.loop_tree(ast), *cost(ast))

    def loop_tree(self, ast: UOp) -> Kernel:
        return kernel_of(ast, self.target)

    def source(self, ast: UOp) -> str:
        return show(self.loop_tree(ast))


def register() -> None:
    """Adds the devices, for a run that names one of them."""
    for name, target in TARGETS.items():
        Device.register(name, lambda name, target=target: LoopDevice(name, target), target="the interpreter",
                        dialect="loops", install="nothing")


@contextmanager
def registered() -> Iterator[None]:
    """The devices among the others, until the block ends."""
    register()
    try:
        yield
    finally:
        for name in TARGETS:
            Device.unregister(name)
