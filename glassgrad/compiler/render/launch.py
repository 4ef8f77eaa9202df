"""How a rendered kernel is launched. In: a `Kernel`. Out: `LaunchInfo`, and where its LOCAL memory is.

One phase is one function `void name_p(void **args, int64_t task, void *scratch)`. If a phase is nothing but TASK loops
nested perfectly inside each other, `task` counts their iterations; any other phase is one task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel, shared_locals, task_loops, worker_locals

ALIGNMENT = 64


@dataclass(frozen=True)
class LaunchInfo:
    """What a launch must provide: the functions in order, the shared memory slots, the scratch of each worker."""
    phases: tuple[tuple[str, int], ...]     # (function name, number of tasks), one after another
    shared: tuple[int, ...]                 # bytes of each slot that follows the params
    scratch_bytes: int                      # private to the worker that runs a task


class BoxMap(NamedTuple):
    """A tensor map that a launch makes: of the matrix in an argument, and of the boxes that are copied from it."""
    position: int                    # of the argument
    offset: int                      # bytes
    dtype: str
    sizes: tuple[int, ...]           # of the axes, innermost first
    strides: tuple[int, ...]         # bytes, of all axes but the innermost
    counts: tuple[int, ...]
    swizzle: int                     # the copy's number of the permutation of lines
    nbytes: int                      # of the argument


def launch_info(kernel: Kernel) -> LaunchInfo:
    """What running a kernel takes: each phase with its number of tasks, shared slots and scratch."""
    phases = tuple((function_name(kernel, p), math.prod(loop.range.arg.size for loop in task_loops(phase.body)[0]))
                   for p, phase in enumerate(kernel.phases))
    shared = tuple(_padded(m.arg.size * m.dtype.itemsize) for m in shared_locals(kernel))
    return LaunchInfo(phases, shared, LocalLayout(kernel).scratch_bytes)


def packed_from(count: int, most: int) -> int:
    """Of so many arguments in memory, the first that shares the last binding with those after it."""
    return count if count <= most else most - 1


def function_name(kernel: Kernel, phase: int) -> str:
    return f"{kernel.name}_{phase}"


class LocalLayout:
    """Where a kernel's LOCAL memory is found: a slot of `args`, or an offset into the scratch, in bytes."""

    def __init__(self, kernel: Kernel):
        self.slots: dict[UOp, int] = {m: len(kernel.params) + i for i, m in enumerate(shared_locals(kernel))}
        self.offsets: dict[UOp, int] = {}
        self.scratch_bytes = 0
        begins: dict[str, int] = {}
        for memory in worker_locals(kernel):
            begin = begins[memory.arg.over] if memory.arg.over else self.scratch_bytes
            self.offsets[memory] = begins[memory.arg.name] = begin
            self.scratch_bytes = max(self.scratch_bytes, begin + _padded(memory.arg.size * memory.dtype.itemsize))


def slot_of(memory: UOp, shared: dict[UOp, int]) -> int:
    """The slot of `args` that holds a param, or a LOCAL that all tasks share."""
    if memory.op is o.PARAM:
        return int(memory.arg.slot)
    if memory not in shared:
        raise Bug(f"the LOCAL {memory.arg.name} is read but never written")
    return shared[memory]


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
