"""How a rendered kernel is launched. In: a `Kernel`. Out: `LaunchInfo`, and where its LOCAL memory is.

A phase is a function `void name_p(void **args, int64_t task, void *scratch)`. If a phase consists of perfectly nested
TASK loops, `task` counts their iterations; any other phase is one task. If the outermost of these loops has a run-time
bound, and the launch is given its value, tasks beyond it do nothing and need not be run.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import value_in, values_in
from glassgrad.compiler.lower.loops import For, Kernel, Statement, locals_written, numbered_loops, shared_locals, walk

ALIGNMENT = 64


class TasksByValue(NamedTuple):
    """The number of tasks of a phase that have work, as a formula over values that are arguments of the launch."""
    phase: int
    arguments: tuple[int, ...]       # the positions of these values among the arguments
    formula: Any                     # an int, (VALUE, a position), or (name of an op, formula, formula)
    serial_to: int = 0  # the greatest value (of a single one) for which one thread does all tasks faster than several

    def at(self, *values: int) -> int:
        """The number of tasks for these values.

        >>> TasksByValue(0, (3,), ("IDIV", ("ADD", (VALUE, 3), 7), 8)).at(20)
        3
        """
        return max(0, size_at(self.formula, dict(zip(self.arguments, values)).__getitem__))

    def is_serial(self, *values: int) -> bool:
        """Whether one thread does all tasks faster than several."""
        return len(values) == 1 and values[0] <= self.serial_to


VALUE = "value"
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "ADD": operator.add, "MUL": operator.mul, "MOD": operator.mod, "MIN": min, "MAX": max,
    "IDIV": lambda x, y: x // y if y else 0}


@dataclass(frozen=True)
class LaunchInfo:
    """What a launch must provide: functions in order, shared memory slots, scratch memory for each worker."""
    phases: tuple[tuple[str, int], ...]     # (function name, number of tasks), in execution order
    shared: tuple[int, ...]                 # the bytes of each slot after the params
    scratch_bytes: int                      # private to the worker that runs a task
    by_value: tuple[TasksByValue, ...] = ()     # for phases whose number of tasks depends on a run-time value


class BoxMap(NamedTuple):
    """A tensor map that a launch creates: it describes the matrix in an argument, and the boxes copied from it."""
    position: int                    # of the argument
    offset: int                      # of the matrix, in bytes
    dtype: str
    sizes: tuple[Any, ...]           # of the axes, innermost first: ints, or formulas over values
    strides: tuple[int, ...]         # in bytes, of all axes except the innermost
    counts: tuple[int, ...]
    swizzle: int                     # the hardware's code for the permutation of lines
    nbytes: Any                      # of the argument, an int or formula

    def sizes_at(self, value: Callable[[int], int]) -> tuple[int, ...]:
        """The sizes of the axes, given the values of arguments; at least 1, since a map cannot be empty."""
        return tuple([max(1, size_at(size, value)) for size in self.sizes])


@dataclass(eq=False, kw_only=True)
class KernelFacts:
    """Facts about a rendered kernel, stored on disk with its machine code."""
    name: str
    info: LaunchInfo                   # memory that a launch must provide
    moves: tuple[str, ...]             # the optimizer's decisions, as text
    read_first: tuple[tuple[int, int], ...] = ()     # (result, source): a result that may use the memory of a source
    scalars: tuple[bool, ...] = ()     # which arguments are scalars, if the launch needs to know
    # for a GPU: of each function its name, number of groups, threads per group and bytes of shared memory; and the
    # tensor maps, which are passed after the other arguments
    launches: tuple[tuple[str, int, int, int], ...] = ()
    maps: tuple[BoxMap, ...] = ()


def size_at(size: Any, value: Callable[[int], int]) -> int:
    """A number of tasks, or a size of a map: the value of a formula for given values of arguments."""
    if isinstance(size, int):
        return size
    if size[0] == VALUE:
        return value(size[1])
    name, left, right = size
    return _OPERATIONS[name](size_at(left, value), size_at(right, value))


def arguments_of(size: Any) -> set[int]:
    """The positions of the values in a formula."""
    if isinstance(size, int):
        return set()
    return {size[1]} if size[0] == VALUE else arguments_of(size[1]) | arguments_of(size[2])


def launch_info(kernel: Kernel, replayed: bool = False, serial_steps: int = 0) -> LaunchInfo:
    """What it takes to run a kernel: each phase with its number of tasks, shared slots and scratch. `replayed`: the
    number of tasks is computed at each launch, so that it may depend on a value that a replay changes. Phases of up to
    `serial_steps` element steps are run by one thread."""
    phases, by_value = [], []
    for number, phase in enumerate(kernel.phases):
        loops, _ = numbered_loops(phase.body)
        phases.append((function_name(kernel, number), math.prod(loop.range.arg.size for loop in loops)))
        if loops:
            by_value += _tasks_by_value(number, loops, phase.body, replayed, serial_steps)
    shared = tuple(_nbytes(m) for m in shared_locals(kernel))
    return LaunchInfo(tuple(phases), shared, scratch_bytes(kernel), tuple(by_value))


def _tasks_by_value(phase: int, loops: list[For], body: list[Statement], replayed: bool, serial_steps: int) \
        -> list[TasksByValue]:
    """The number of tasks of a phase that have work: if run-time values bound its outermost loop; or, for a phase with
    a fixed number, if such a value decides how much work there is. Users' variables may have other values in a
    replay."""
    stop, size, each = loops[0].stop, loops[0].range.arg.size, math.prod(f.range.arg.size for f in loops[1:])
    stops = [f.stop for f in walk(body) if isinstance(f, For) and f.stop is not None] if serial_steps else []
    values = [found] if stop is None and (found := next(filter(None, map(value_in, stops)), None)) else \
        [] if stop is None else values_in(stop)
    if not values or not (replayed or all([value.symbol.exact for value in values])):
        return []
    tasks = size * each if stop is None else ("MUL", ("MIN", formula_of(stop), size), each)
    serial_to = 0
    if serial_steps and len(values) == 1:
        # imported late: a process with cached kernels does not need it
        from glassgrad.compiler.optimize.plain.access_order import greatest_within
        serial_to = greatest_within(serial_steps, body, values[0])
    return [TasksByValue(phase, tuple([value.slot for value in values]), tasks, serial_to)]


def formula_of(node: UOp) -> Any:
    """Convert an expression of run-time values to data."""
    if node.op is o.CONST:
        return node.arg
    return (node.op.name, *map(formula_of, node.src)) if node.src else (VALUE, node.arg.slot)


def function_name(kernel: Kernel, phase: int) -> str:
    return f"{kernel.name}_{phase}"


class LocalLayout:
    """Where a phase finds LOCAL memory: a slot of `args`, or a byte offset into scratch memory. Each phase may use the
    whole scratch memory, since nothing of a task is needed after it."""

    def __init__(self, kernel: Kernel, phase: int):
        self.slots = shared_slots(kernel)
        self.offsets: dict[UOp, int] = {}
        self.nbytes = 0
        used = [m for m in dict.fromkeys(locals_written(kernel.phases[phase])) if m.arg.scope == "worker"]
        for memory in used:  # overlaid on another one, or after all memory of the phase so far
            under = next((m for m in used if m.arg.name == memory.arg.over), None)
            self.offsets[memory] = self.nbytes if under is None else self.offsets[under]
            self.nbytes = max(self.nbytes, self.offsets[memory] + _nbytes(memory))


def shared_slots(kernel: Kernel) -> dict[UOp, int]:
    """The slot of `args` of each LOCAL that all tasks share."""
    return {m: len(kernel.params) + i for i, m in enumerate(shared_locals(kernel))}


def scratch_bytes(kernel: Kernel) -> int:
    """Bytes of scratch memory that each worker needs."""
    return max((LocalLayout(kernel, p).nbytes for p in range(len(kernel.phases))), default=0)


def slot_of(memory: UOp, shared: dict[UOp, int]) -> int:
    """The slot of `args` of a param, or of a LOCAL that all tasks share."""
    if memory.op is o.PARAM:
        return int(memory.arg.slot)
    if memory not in shared:
        raise Bug(f"the LOCAL {memory.arg.name} is read but never written")
    return shared[memory]


def _nbytes(memory: UOp) -> int:
    return -(-memory.arg.size * memory.dtype.itemsize // ALIGNMENT) * ALIGNMENT
