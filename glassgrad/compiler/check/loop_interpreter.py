"""Run a kernel's loop tree with NumPy, exactly as compiler/lower/loops.py defines it: the reference for every generated
kernel.

In: a `Kernel` and its arguments. Out: the arguments' arrays, with stored results. Does not know renderers or devices.

Values have named axes (named_arrays.py): one for all tasks, and one for each wide range they depend on. So tasks and
wide loops run as NumPy arrays, every statement for all iterations before the next, which is what "jammed" means. Only
LOOPs run in Python, and not even those that merely accumulate and store. If iterations differ in what they run (a
`stop`, an If), a mask says which of them do. Every access is checked: see checked_memory.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from glassgrad.base.errors import Bug
from glassgrad.compiler.check import loop_analysis as facts
from glassgrad.compiler.check.checked_memory import CheckedMemory, Watch, poisoned
from glassgrad.compiler.check.copies_in_flight import InFlight
from glassgrad.compiler.check.graph_interpreter import array_type, evaluate
from glassgrad.compiler.check.named_arrays import Array, Axis, NamedAxes, Wide, any_over, binary, constant, fold, last
from glassgrad.compiler.graph import UOp, identity, ops as o, toposort
from glassgrad.compiler.graph.dtype import convert
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.ops import ELEMENTWISE
from glassgrad.compiler.graph.symbolic import Symbol, memory_size, replaced
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, Box, CopyBoxes, Turn
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, UNIT, WIDE, Accumulate, Assign, For, If, Kernel,
                                            Phase, Statement, Store, expressions, ranges_of, shared_locals, task_loops,
                                            walk)
from glassgrad.compiler.render.unroll_and_jam import is_step

AT_ONCE = 1 << 22       # index-space elements that are computed together: bounds the memory used
TASKS = "tasks"         # the axis of all tasks; every other axis is a RANGE
ALWAYS = Wide(np.asarray(True))
COPY_BYTES = 16           # a box must begin at a multiple of this along its innermost axis, as the hardware demands
WAITS = (CopyBoxes, AwaitCopies, AwaitSteps, Barrier, Turn)


def run_kernel(kernel: Kernel, arguments: Sequence[Any]) -> None:
    """Run a kernel. `arguments[slot]` is a flat array of the PARAM's storage type, or a number for a scalar.

    Raises `Bug`, naming kernel, memory, index and iteration, if the tree is wrong: an access outside its memory, tasks
    that use the same element, a register read before it is assigned.
    """
    memories: dict[UOp, CheckedMemory] = {}
    scalars: dict[UOp, Wide] = {}
    values = {p.arg.symbol: int(arguments[p.arg.slot]) for p in kernel.params if isinstance(p.arg, Measure)}
    for param in kernel.params:
        argument, name = arguments[param.arg.slot], f"param {param.arg.slot}"
        if param.arg.scalar:
            scalars[param] = Wide(np.asarray(convert(argument, param.dtype), array_type(param.dtype)))
            continue
        wanted, size = np.dtype(param.dtype.format), elements_of(param, values)
        if argument.dtype != wanted or argument.shape != (size,):
            raise Bug(f"{name} of kernel {kernel.name} takes a flat array of {size} {wanted}, "
                      f"not {argument.dtype}{list(argument.shape)}")
        memories[param] = CheckedMemory(name, param.dtype, argument)
    for memory in shared_locals(kernel):
        memories[memory] = CheckedMemory(memory.arg.name, memory.dtype, poisoned(memory.dtype, (memory.arg.size,)))
    for number, phase in enumerate(kernel.phases):
        with np.errstate(all="ignore"):
            _PhaseRun(kernel, number, phase, memories, scalars).run()


def elements_of(param: UOp, values: dict[Symbol, int]) -> int:
    """How many elements a PARAM's memory has, for these values of the variables."""
    return math.prod(replaced(tuple([memory_size(n) for n in param.shape]), values.__getitem__))


class _PhaseRun:
    """Runs one phase: its tasks in chunks, each chunk by one walk over the statements."""

    def __init__(self, kernel: Kernel, number: int, phase: Phase, memories: dict[UOp, CheckedMemory],
                 scalars: dict[UOp, Wide]):
        self.title = f"phase {number} of kernel {kernel.name}"
        self.written = [p for p in kernel.params if p.arg.slot in kernel.written] if kernel.written else kernel.params
        self.memories, self.scalars = dict(memories), scalars
        self.task_loops, self.body = task_loops(phase.body)
        body = self.body
        loops = [s for s in walk(body) if isinstance(s, For)]
        self.kinds = {s.range: s.kind for kind in (LOOP, TASK, TILE, LANE, UNIT) for s in loops if s.kind == kind}
        self.units = {r for r, kind in self.kinds.items() if kind == UNIT}
        self.stepped = {s.range for s in loops if s.kind not in WIDE}      # counters that are not always a whole axis
        self.private = list(dict.fromkeys(s.memory for s in walk(body) if isinstance(s, (Store, CopyBoxes))
                                          and s.memory.op is o.LOCAL and s.memory.arg.scope == "worker"))
        self.waits = any(isinstance(s, WAITS) for s in walk(body))       # whether anything is asynchronous
        self.as_axes = {s for s in loops if s.kind == LOOP and facts.is_axis(s) and self._stores_unaliased(s)}
        # expression -> (node, whether it is fixed) in the order to compute
        self.plans: dict[UOp, list[tuple[UOp, bool]]] = {}
        self.axes = NamedAxes()
        # while running
        self.first_task = 0
        self.tasks = Wide(np.arange(1), (TASKS,))          # positions in the current chunk
        self.counters: dict[UOp, Wide] = {}
        self.open_wide: list[UOp] = []                     # wide and inner TASK ranges around the current statement
        self.along: list[UOp] = []                         # the LOOP that runs as an axis, if any
        self.registers: dict[UOp, Wide] = {}
        self.fixed: dict[UOp, Wide] = {}                   # values that are the same for the whole chunk

    def run(self) -> None:
        sizes = [loop.range.arg.size for loop in self.task_loops]
        count = math.prod(sizes)
        stored = [self._memory(s.memory) for s in walk(self.body)
                  if isinstance(s, Store) and s.memory not in self.private]
        watches = {m.address: Watch(m.size) for m in stored} if count > 1 else {}
        for memory in self.memories.values():              # two params may be the same memory: one watch for both
            memory.watch = watches.get(memory.address)
        scratch = max([m.arg.size for m in self.private], default=1)
        chunk = max(1, AT_ONCE // max(facts.width(self.body), scratch))
        if self.waits and self._tasks_differ():
            chunk = 1
        for first in range(0, count, chunk):
            self._run_tasks(first, min(chunk, count - first), sizes)

    def _tasks_differ(self) -> bool:
        """Whether tasks have different rounds of copies, so that one record cannot serve them all."""
        tasks = {loop.range for loop in self.task_loops}
        parts = [e for s in walk(self.body) if isinstance(s, (For, If, AwaitCopies)) for e in expressions(s)]
        return any(not tasks.isdisjoint(ranges_of(e)) for e in parts)

    def _run_tasks(self, first: int, count: int, sizes: Sequence[int]) -> None:
        self.first_task, self.tasks = first, Wide(np.arange(count), (TASKS,))
        self.counters, self.registers, self.fixed = {}, {}, {}
        self.in_flight, self.in_step = InFlight(self.title), False
        mask = None
        for loop, values in zip(self.task_loops, np.unravel_index(first + self.tasks.array, sizes) if sizes else ()):
            self.counters[loop.range] = Wide(values.astype(np.int64), (TASKS,))
            mask = self._before_stop(loop, mask)
        for memory in self.private:
            self.memories[memory] = CheckedMemory(memory.arg.name, memory.dtype,
                                           poisoned(memory.dtype, (count, memory.arg.size)), private=True)
        self._run(self.body, mask)

    # -- statements ------------------------------------------------------------------------------------------
    def _run(self, body: Iterable[Statement], mask: Wide | None) -> None:
        if mask is not None:
            if not mask.array.any():
                return
            mask = None if mask.array.all() else mask
        for s in body:
            if isinstance(s, For):
                self._loop(s, mask)
            elif isinstance(s, If):
                self._run(s.body, self.axes.both(mask, self._value(s.condition, mask)))
            elif isinstance(s, Assign):
                self._assign(s, mask)
            elif isinstance(s, Accumulate):
                self._accumulate(s, mask)
            elif isinstance(s, Store):
                self._store(s, mask)
            elif isinstance(s, WAITS):
                self._wait(s, mask)

    def _before_stop(self, loop: For, mask: Wide | None) -> Wide | None:
        if loop.stop is None:
            return mask
        return self.axes.both(mask, self.axes.apply(np.less, self.counters[loop.range], self._value(loop.stop, mask)))

    def _loop(self, loop: For, mask: Wide | None) -> None:
        range_, size = loop.range, loop.range.arg.size
        if range_ in self.counters:
            raise Bug(f"{self.title} opens the loop {range_.arg.name} inside itself")
        step = max(1, AT_ONCE // self._open_size() // facts.width(loop.body))
        if loop.kind in WIDE:
            self._slice(loop, mask, 0, size, self.open_wide)
        elif loop in self.as_axes:
            for start in range(0, size, step):
                self._slice(loop, mask, start, min(size, start + step), self.along)
                self.registers = {r: last(v, range_) for r, v in self.registers.items()}
        elif loop.kind == TASK and not any(isinstance(s, Store) and s.memory in self.private for s in walk(loop.body)):
            for start in range(0, size, step):
                self._slice(loop, mask, start, min(size, start + step), self.open_wide)
                # these registers end here
                self.registers = {r: v for r, v in self.registers.items() if range_ not in v.axes}
        else:
            stop = Wide(np.asarray(size)) if loop.stop is None else self._value(loop.stop, mask)
            for i in range(min(size, int(stop.array.max()))):
                self.counters[range_] = Wide(np.asarray(i))
                self._run(loop.body, mask if i < stop.array.min() else self._before_stop(loop, mask))
            self.counters.pop(range_, None)

    def _slice(self, loop: For, mask: Wide | None, start: int, stop: int, opened: list[UOp]) -> None:
        """Run some iterations of a loop at once, as an axis."""
        self.counters[loop.range] = Wide(np.arange(start, stop), (loop.range,))
        opened.append(loop.range)
        self._run(loop.body, self._before_stop(loop, mask))
        opened.pop()
        del self.counters[loop.range]

    def _open_size(self) -> int:
        return self.tasks.array.size * math.prod(self.counters[r].array.size for r in self.open_wide)

    def _assign(self, s: Assign, mask: Wide | None) -> None:
        register, value = s.register, self._typed(s.register, s.value, mask)
        if self.waits and not self.units.isdisjoint(register.src):
            self.in_flight.assign(register.arg)
        extra = [r for r in self._spread_over(s.value) if r not in self._own(register)]
        if extra:
            raise Bug(f"{self.title} assigns register {register.arg} once for each {extra[0].arg.name}, "
                      f"which it does not have as an axis")
        if mask is not None:
            nothing = Wide(np.asarray(math.nan if register.dtype.is_float else 0, array_type(register.dtype)))
            old = self.registers.get(register, nothing)
            value = self.axes.apply(np.where, any_over(mask, self._own(register)), value, old)
        self.registers[register] = value

    def _wait(self, s: CopyBoxes | AwaitCopies | AwaitSteps | Barrier | Turn, mask: Wide | None) -> None:
        """Run a statement by which a group of threads starts something together, or waits for it."""
        counters = [axis for axis in mask.axes if isinstance(axis, UOp)] if mask is not None else []
        threads = [counter for counter in counters if self.kinds.get(counter) in WIDE]
        if threads:
            raise Bug(f"{self.title} waits forever: a condition on {threads[0].arg.name} keeps some threads of a group "
                      f"from a wait of all")
        if isinstance(s, CopyBoxes):
            round_ = self._value(s.round, mask).array.item()
            if s.by_last:
                self.in_flight.barrier()
            if s.cluster is not None and s.cluster is not self.task_loops[-1].range:
                raise Bug(f"{self.title} shares copies along {s.cluster.arg.name}, whose groups do not run at once: it "
                          f"is not the innermost loop of tasks")
            for box in s.boxes:
                self._copy_box(s.memory, box, round_, mask)
        elif isinstance(s, AwaitCopies):
            self.in_flight.await_copies(s.memory, self._value(s.round, mask).array.item())
        elif isinstance(s, AwaitSteps):
            self.in_flight.await_steps(s.pending)
        elif isinstance(s, Barrier):
            self.in_flight.barrier(s.copies)

    def _copy_box(self, memory: UOp, box: Box, round_: int, mask: Wide | None) -> None:
        """Copy a box of a matrix, with zeros for elements outside of it."""
        to = self._value(box.to, mask).array.item() + np.arange(math.prod(box.counts))
        self.in_flight.copy(memory, to, round_)
        at, inside = np.asarray(box.offset), np.asarray(True)
        offsets = np.meshgrid(*[np.arange(n) for n in reversed(box.counts)], indexing="ij")
        for axis, first, offset in zip(box.axes, box.first, reversed(offsets)):
            (begin,), _ = self.axes.align([self._spread(self._value(first, mask), [TASKS])])
            position = begin.reshape(-1, 1) + offset.reshape(1, -1)
            if axis is box.axes[0] and (position[:, 0] * box.source.dtype.itemsize % COPY_BYTES).any():
                raise Bug(f"{self.title} copies a box that does not begin at a multiple of {COPY_BYTES} bytes")
            size = axis.size if axis.stop is None else self._value(axis.stop, mask).array.item()
            at, inside = at + position * axis.stride, inside & (0 <= position) & (position < size)
        source, target = self._memory(box.source), self._memory(memory)
        runs = np.ones(len(at), bool) if mask is None else self._spread(mask, [TASKS]).array.reshape(-1)
        outside = inside & ((at < 0) | (at >= source.size)) & runs.reshape(-1, 1)
        if outside.any():
            raise Bug(f"{self.title} copies {source.name}[{at[outside][0]}], outside its {source.size} elements")
        values = np.where(inside, source.array.reshape(-1)[np.where(inside, at, 0)], source.array.dtype.type(0))
        target.array[np.ix_(runs, to)] = values[runs]

    def _start_step(self, s: Accumulate, mask: Wide | None) -> None:
        """Start an asynchronous step of a matrix unit."""
        loads = [n for n in toposort([s.value]) if n.op is o.LOAD]
        held = [n.arg for n in toposort([s.value]) if n.op is o.REGISTER]
        self.in_flight.step(s.register.arg, [(n.src[0], np.unique(self._value(n.src[1], mask).array)) for n in loads],
                            held)

    def _accumulate(self, s: Accumulate, mask: Wide | None) -> None:
        self.in_step = bool(self.waits) and is_step(s, self.units)
        if self.in_step:
            self._start_step(s, mask)
        if s.register not in self.registers:
            raise Bug(f"{self.title} reads register {s.register.arg} before anything is assigned to it")
        register, old, own = s.register, self.registers[s.register], self._own(s.register)
        value = self._spread(self._typed(register, s.value, mask), [*self._spread_over(s.value), *self.along])
        self.in_step = False
        if mask is not None:
            self._no_stray(mask, [*own, *value.axes], f"accumulates into register {register.arg}")
            value = self.axes.apply(np.where, mask, value, constant(identity(s.combine, register.dtype)))
        step = binary(s.combine, register.dtype)
        value = self._fold(value, step, [a for a in value.axes if a not in (*own, *self.along)])
        if self.along:                         # in sequence, as the loop would
            (start, values), axes = self.axes.align([old, value])
            at = axes.index(self.along[0])
            whole = np.broadcast_shapes(start.shape, values.shape)
            steps = np.concatenate([np.broadcast_to(start, (*whole[:at], 1, *whole[at + 1:])),
                                    np.broadcast_to(values, whole)], at)
            sums = getattr(np, str(s.combine.ufunc)).accumulate(steps, at, steps.dtype)
            result = Wide(sums[(slice(None),) * at + (slice(1, None),)], axes)
        else:
            result = self._apply(step, [old, value])
        if mask is not None:
            result = self.axes.apply(np.where, any_over(mask, own), result, old)
        self.registers[register] = result

    def _store(self, s: Store, mask: Wide | None) -> None:
        memory = self._memory(s.memory)
        if s.memory.op is o.PARAM and s.memory not in self.written:
            raise Bug(f"{self.title} stores to {memory.name}, which the kernel does not list as written")
        if s.value.dtype is not s.memory.dtype:
            raise Bug(f"{self.title} stores {s.value.dtype.name} to {memory.name}, which holds {s.memory.dtype.name}")
        active = mask if s.gate is None else self.axes.both(mask, self._value(s.gate, mask))
        index, value = self._value(s.index, mask), self._value(s.value, active)
        if s.memory in self.in_flight.rounds:
            self.in_flight.use(s.memory, np.unique(index.array), stored=True)
        apart: list[Axis] = [*self.along, TASKS]
        if s.combine is not None:              # each iteration combines its own value, even if equal
            apart += [r for e in expressions(s) for r in self._spread_over(e)]
            apart += [r for r in self.open_wide if self.kinds[r] == TASK]
            self._no_stray(active or ALWAYS, apart, f"combines into {memory.name}")
        parts = [index, value, active or ALWAYS, self.tasks]
        arrays, axes = self.axes.align([self._spread(p, apart) for p in parts])
        if self.along:                         # in sequence, as the loop would
            order = sorted(range(len(axes)), key=lambda i: axes[i] not in self.along)
            arrays, axes = [a.transpose(order) for a in arrays], tuple(axes[i] for i in order)
        at, values, runs, tasks = np.broadcast_arrays(*arrays)
        memory.check(at, runs, f"{self.title} stores to", lambda n: self._place(n, at.shape, axes))
        chosen = np.flatnonzero(runs)
        spots, tasks = at.ravel()[chosen], tasks.ravel()[chosen]

        def place(n: int) -> str:
            return self._place(int(chosen[n]), at.shape, axes)
        if memory.watch is not None:
            memory.watch.store(spots, tasks + self.first_task, self._race(memory, spots, place))
        moments = chosen // at[0].size if self.along else None
        memory.store(spots, tasks, values.ravel()[chosen], moments, s.combine, f"{self.title} stores to", place)

    # -- values ----------------------------------------------------------------------------------------------
    def _value(self, root: UOp, mask: Wide | None) -> Wide:
        """The current value of an expression. Loads are checked where the mask holds."""
        done: dict[UOp, Wide] = {}
        plan = self.plans.get(root)
        if plan is None:
            plan = self.plans[root] = [(node, self._is_fixed(node)) for node in facts.order(root, self._is_fixed)]
        for node, fixed in plan:
            if not fixed:
                done[node] = self._node(node, [done[s] for s in facts.operands(node)], mask)
                continue
            if node not in self.fixed:
                inner: dict[UOp, Wide] = {}
                for n in toposort([node]):
                    inner[n] = self._node(n, [inner[s] for s in n.src], None)
                self.fixed[node] = inner[node]
            done[node] = self.fixed[node]
        return done[root]

    def _is_fixed(self, node: UOp) -> bool:
        """Whether a value depends only on counters that are whole axes."""
        return facts.is_pure(node) and self.stepped.isdisjoint(ranges_of(node))

    def _node(self, node: UOp, sources: list[Wide], mask: Wide | None) -> Wide:
        op = node.op
        if op in ELEMENTWISE:
            return self._apply(node, sources)
        if op is o.CONST:
            return constant(node)
        if op is o.RANGE:
            if node not in self.counters:
                raise Bug(f"{self.title} uses {node.arg.name}, whose loop is not open")
            return self.counters[node]
        if op is o.LOAD:
            return self._load(node, sources, mask)
        if op is o.REGISTER:
            return self._register(node)
        if op is o.FOLD:
            return self._folded(node, mask)
        if op is o.PARAM and node in self.scalars:
            return self.scalars[node]
        raise Bug(f"{self.title} cannot compute {node}")

    def _apply(self, node: UOp, sources: list[Wide]) -> Wide:
        value = self.axes.apply(lambda *arrays: evaluate(np, node, list(arrays)), *sources)
        if value.array.dtype != array_type(node.dtype):
            raise Bug(f"{self.title} computes {node} as {value.array.dtype}: its sources have other types")
        return value

    def _load(self, node: UOp, sources: list[Wide], mask: Wide | None) -> Wide:
        memory = self._memory(node.src[0])
        gate = sources[1] if len(sources) > 1 else None
        (at, rows), axes = self.axes.align([sources[0], self.tasks if memory.private else Wide(np.asarray(0))])
        if memory.watch is not None or at.size and not 0 <= at.min() <= at.max() < memory.size:
            active = self.axes.both(mask, gate) or ALWAYS
            arrays, wide = self.axes.align([sources[0], active, self.tasks])
            where, runs, tasks = np.broadcast_arrays(*arrays)
            memory.check(where, runs, f"{self.title} loads", lambda n: self._place(n, runs.shape, wide))
            if memory.watch is not None:
                chosen = np.flatnonzero(runs)
                spots = where.ravel()[chosen]
                memory.watch.load(spots, tasks.ravel()[chosen] + self.first_task, self._race(
                    memory, spots, lambda n: self._place(int(chosen[n]), runs.shape, wide)))
        if node.src[0] in self.in_flight.rounds and not self.in_step:
            self.in_flight.use(node.src[0], np.unique(at), stored=False)
        value = Wide(memory.load(at, rows), axes)
        return value if gate is None else self.axes.apply(np.where, gate, value, Wide(value.array.dtype.type(0)))

    def _register(self, node: UOp) -> Wide:
        if self.waits and not self.units.isdisjoint(node.src):
            self.in_flight.read_sums(node.arg)
        if node not in self.registers:
            raise Bug(f"{self.title} reads register {node.arg} before anything is assigned to it")
        return self.registers[node]

    def _folded(self, node: UOp, mask: Wide | None) -> Wide:
        """A FOLD over all iterations of its ranges, whether or not their loops are open here."""
        value, *over = node.src
        before = dict(self.counters)
        self.counters.update((r, Wide(np.arange(r.arg.size), (r,))) for r in over)
        if mask is not None:
            mask = any_over(mask, [a for a in mask.axes if a not in over])
        whole = self._spread(self._value(value, mask), over)
        self.counters = before
        return self._fold(whole, binary(node.arg.combine, node.dtype), over)

    def _fold(self, value: Wide, node: UOp, over: Sequence[Axis]) -> Wide:
        lanes = [r for r in over if self.kinds.get(r) == LANE]
        return fold(value, node, [r for r in over if r not in lanes], lanes)

    # -- axes ------------------------------------------------------------------------------------------------
    def _spread(self, value: Wide, over: Iterable[Axis]) -> Wide:
        """The value broadcast to the current sizes of these axes."""
        sizes = {a: (self.tasks if a == TASKS else self.counters[a]).array.size for a in over}
        return self.axes.broadcast(value, sizes)

    def _spread_over(self, expression: UOp) -> list[UOp]:
        return [r for r in self.open_wide if r in ranges_of(expression) and self.kinds[r] != TASK]

    def _own(self, register: UOp) -> list[Axis]:
        """The axes that a register may have: its wide ranges, and the tasks, each of which has its own."""
        return [TASKS, *register.src, *[r for r in self.open_wide if self.kinds[r] == TASK]]

    # -- errors ----------------------------------------------------------------------------------------------
    def _no_stray(self, mask: Wide, known: Iterable[Axis], what: str) -> None:
        stray = [a for a in mask.axes if a not in list(known)]
        if stray:
            raise Bug(f"{self.title} {what} where a condition on {stray[0].arg.name} holds, "
                      f"but nothing else in the statement depends on that")

    def _memory(self, node: UOp) -> CheckedMemory:
        if node not in self.memories and node not in self.private:
            raise Bug(f"{self.title} uses {node}, which is no parameter and never stored to")
        return self.memories[node]

    def _stores_unaliased(self, loop: For) -> bool:
        """Whether each memory that a loop stores to has no other access in it, not even through an alias."""
        stored, loaded = facts.memories(loop)
        used = [*stored, *loaded]
        return not any(a is b or a in self.memories and b in self.memories
                       and np.may_share_memory(self.memories[a].array, self.memories[b].array)
                       for i, a in enumerate(stored) for b in used[i + 1:])

    def _typed(self, register: UOp, source: UOp, mask: Wide | None) -> Wide:
        if source.dtype is not register.dtype:
            raise Bug(f"{self.title} puts {source.dtype.name} into register {register.arg} of {register.dtype.name}")
        return self._value(source, mask)

    def _task_name(self, task: int) -> str:
        parts = np.unravel_index(task, [loop.range.arg.size for loop in self.task_loops])
        return ", ".join(f"{loop.range.arg.name}={v}" for loop, v in zip(self.task_loops, parts))

    def _place(self, position: int, shape: tuple[int, ...], axes: tuple[Axis, ...]) -> str:
        """Say which iteration an element of an array with these axes belongs to."""
        spots = dict(zip(axes, np.unravel_index(position, shape))) if shape else {}
        names = [self._task_name(self.first_task + int(spots.get(TASKS, 0)))] if self.task_loops else []
        for r, counter in self.counters.items():
            if not counter.axes:
                names.append(f"{r.arg.name}={counter.array}")
            elif r in spots:
                names.append(f"{r.arg.name}={counter.array[spots[r]]}")
        return ", ".join(names) or "the only iteration"

    def _race(self, memory: CheckedMemory, index: Array, place: Callable[[int], str]) -> Callable[[int, int, str], Bug]:
        def fail(at: int, other: int, what: str) -> Bug:
            who = "several tasks" if other < 0 else f"task {self._task_name(other)}"
            return Bug(f"{self.title} {what}: {memory.name}[{index[at]}], at {place(at)}; the other is {who}")
        return fail
