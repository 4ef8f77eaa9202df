"""How a rendered kernel is launched. In: a `Kernel`. Out: `LaunchInfo`, and where its LOCAL memory is.

One phase is one function `void name_p(void **args, int64_t task, void *scratch)`. If a phase is nothing but TASK loops
nested perfectly inside each other, `task` counts their iterations; any other phase is one task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def launch_info(kernel: Kernel) -> LaunchInfo:
    """What running a kernel takes: each phase with its number of tasks, shared slots and scratch."""
    phases = tuple((function_name(kernel, p), math.prod(loop.range.arg.size for loop in task_loops(phase.body)[0]))
                   for p, phase in enumerate(kernel.phases))
    shared = tuple(_padded(m.arg.size * m.dtype.itemsize) for m in shared_locals(kernel))
    return LaunchInfo(phases, shared, sum(_padded(m.arg.size * m.dtype.itemsize) for m in worker_locals(kernel)))


def function_name(kernel: Kernel, phase: int) -> str:
    return f"{kernel.name}_{phase}"


class Places:
    """Where a kernel's LOCAL memory is found: a slot of `args`, or an offset into the scratch, in bytes."""

    def __init__(self, kernel: Kernel):
        self.slots: dict[UOp, int] = {m: len(kernel.params) + i for i, m in enumerate(shared_locals(kernel))}
        self.offsets: dict[UOp, int] = {}
        place = 0
        for memory in worker_locals(kernel):
            self.offsets[memory] = place
            place += _padded(memory.arg.size * memory.dtype.itemsize)


def slot_of(memory: UOp, shared: dict[UOp, int]) -> int:
    """The slot of `args` that holds a param, or a LOCAL that all tasks share."""
    if memory.op is o.PARAM:
        return int(memory.arg.slot)
    if memory not in shared:
        raise Bug(f"the LOCAL {memory.arg.name} is read but never written")
    return shared[memory]


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
