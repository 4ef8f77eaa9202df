"""How a rendered kernel is launched. In: a `Kernel`. Out: `LaunchInfo`, and where its LOCAL memory is.

One phase is one function `void name_p(void **args, int64_t task, void *scratch)`. If a phase is nothing but TASK loops
nested perfectly inside each other, `task` counts their iterations; any other phase is one task. Where the outermost of
them has a run-time bound that a launch is given, the tasks beyond it do nothing and need not be run.
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
from glassgrad.compiler.lower.loops import For, Kernel, Statement, filled, numbered_loops, shared_locals, walk

ALIGNMENT = 64


class TasksByValue(NamedTuple):
    """The number of tasks of a phase that have work, as a formula of values that are arguments of the launch."""
    phase: int
    arguments: tuple[int, ...]       # the positions of the values
    formula: Any                     # an int, (VALUE, a position), or (the name of an op, a formula, a formula)
    serial_to: int = 0               # the greatest value, of one, for which one thread does them sooner than several

    def at(self, *values: int) -> int:
        """The number of tasks for these values.

        >>> TasksByValue(0, (3,), ("IDIV", ("ADD", (VALUE, 3), 7), 8)).at(20)
        3
        """
        return max(0, size_at(self.formula, dict(zip(self.arguments, values)).__getitem__))

    def is_serial(self, *values: int) -> bool:
        """Whether one thread does the tasks sooner than several."""
        return len(values) == 1 and values[0] <= self.serial_to


VALUE = "value"
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "ADD": operator.add, "MUL": operator.mul, "MOD": operator.mod, "MIN": min, "MAX": max,
    "IDIV": lambda x, y: x // y if y else 0}


@dataclass(frozen=True)
class LaunchInfo:
    """What a launch must provide: the functions in order, the shared memory slots, the scratch of each worker."""
    phases: tuple[tuple[str, int], ...]     # (function name, number of tasks), one after another
    shared: tuple[int, ...]                 # bytes of each slot that follows the params
    scratch_bytes: int                      # private to the worker that runs a task
    by_value: tuple[TasksByValue, ...] = ()     # of phases whose number of tasks depends on a run-time value


class BoxMap(NamedTuple):
    """A tensor map that a launch makes: of the matrix in an argument, and of the boxes that are copied from it."""
    position: int                    # of the argument
    offset: int                      # bytes
    dtype: str
    sizes: tuple[Any, ...]           # of the axes, innermost first: ints, or formulas of values
    strides: tuple[int, ...]         # bytes, of all axes but the innermost
    counts: tuple[int, ...]
    swizzle: int                     # the hardware code of the permutation of lines
    nbytes: Any                      # of the argument, likewise

    def sizes_at(self, value: Callable[[int], int]) -> tuple[int, ...]:
        """The sizes of the axes, by the values of arguments; at least 1: a map cannot be empty."""
        return tuple([max(1, size_at(size, value)) for size in self.sizes])


@dataclass(eq=False, kw_only=True)
class KernelFacts:
    """What is known of a kernel once it is written; kept on disk with its machine code."""
    name: str
    info: LaunchInfo                   # the memory that a launch must provide
    moves: tuple[str, ...]             # the optimizer's decisions
    read_first: tuple[tuple[int, int], ...] = ()     # results that may share memory with sources
    scalars: tuple[bool, ...] = ()     # which arguments are scalars, where a launch must know
    # on a GPU: of each function its name, groups, threads of each and bytes that a group shares; and tensor maps, which
    # are passed after the other arguments
    launches: tuple[tuple[str, int, int, int], ...] = ()
    maps: tuple[BoxMap, ...] = ()


def size_at(size: Any, value: Callable[[int], int]) -> int:
    """A number of tasks, or a size of a map: what a formula says for the values of arguments."""
    if isinstance(size, int):
        return size
    if size[0] == VALUE:
        return value(size[1])
    name, left, right = size
    return _OPERATIONS[name](size_at(left, value), size_at(right, value))


def arguments_of(size: Any) -> set[int]:
    """The positions of the values that a formula has."""
    if isinstance(size, int):
        return set()
    return {size[1]} if size[0] == VALUE else arguments_of(size[1]) | arguments_of(size[2])


def launch_info(kernel: Kernel, replayed: bool = False, serial_steps: int = 0) -> LaunchInfo:
    """What running a kernel takes: each phase with its number of tasks, shared slots and scratch. `replayed`: each
    launch computes its number of tasks, so that it may depend on a value that a replay changes. Phases of up to
    `serial_steps` element steps are for one thread."""
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
    """The number of tasks of a phase that have work, where run-time values bound its outermost loop, or one that it
    always has, where such a value decides how much work that is. Users' variables may have other values in a replay."""
    stop, size, each = loops[0].stop, loops[0].range.arg.size, math.prod(f.range.arg.size for f in loops[1:])
    stops = [f.stop for f in walk(body) if isinstance(f, For) and f.stop is not None] if serial_steps else []
    values = [found] if stop is None and (found := next(filter(None, map(value_in, stops)), None)) else \
        [] if stop is None else values_in(stop)
    if not values or not (replayed or all([value.symbol.exact for value in values])):
        return []
    tasks = size * each if stop is None else ("MUL", ("MIN", formula_of(stop), size), each)
    serial_to = 0
    if serial_steps and len(values) == 1:
        from glassgrad.compiler.optimize.plain.access_order import greatest_within  # late: not for a warm process
        serial_to = greatest_within(serial_steps, body, values[0])
    return [TasksByValue(phase, tuple([value.slot for value in values]), tasks, serial_to)]


def formula_of(node: UOp) -> Any:
    """An expression of run-time values, as data."""
    if node.op is o.CONST:
        return node.arg
    return (node.op.name, *map(formula_of, node.src)) if node.src else (VALUE, node.arg.slot)


def function_name(kernel: Kernel, phase: int) -> str:
    return f"{kernel.name}_{phase}"


class LocalLayout:
    """Where a phase finds LOCAL memory: a slot of `args`, or an offset into the scratch, in bytes. Each phase has
    all of the scratch for itself: nothing of a task is left after it."""

    def __init__(self, kernel: Kernel, phase: int):
        self.slots = shared_slots(kernel)
        self.offsets: dict[UOp, int] = {}
        self.nbytes = 0
        used = [m for m in dict.fromkeys(filled(kernel.phases[phase])) if m.arg.scope == "worker"]
        for memory in used:                              # over another one, or after all that the phase has so far
            under = next((m for m in used if m.arg.name == memory.arg.over), None)
            self.offsets[memory] = self.nbytes if under is None else self.offsets[under]
            self.nbytes = max(self.nbytes, self.offsets[memory] + _nbytes(memory))


def shared_slots(kernel: Kernel) -> dict[UOp, int]:
    """The slot of `args` of each LOCAL that all tasks share."""
    return {m: len(kernel.params) + i for i, m in enumerate(shared_locals(kernel))}


def scratch_bytes(kernel: Kernel) -> int:
    """Bytes of scratch that each worker needs."""
    return max((LocalLayout(kernel, p).nbytes for p in range(len(kernel.phases))), default=0)


def slot_of(memory: UOp, shared: dict[UOp, int]) -> int:
    """The slot of `args` that holds a param, or a LOCAL that all tasks share."""
    if memory.op is o.PARAM:
        return int(memory.arg.slot)
    if memory not in shared:
        raise Bug(f"the LOCAL {memory.arg.name} is read but never written")
    return shared[memory]


def _nbytes(memory: UOp) -> int:
    return -(-memory.arg.size * memory.dtype.itemsize // ALIGNMENT) * ALIGNMENT
