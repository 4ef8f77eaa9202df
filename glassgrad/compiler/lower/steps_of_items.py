"""Lower all steps of a recurrence of independent items to one kernel. In: its graph, kernels of a step. Out: a loop
tree.

    task item:                                  for example a matrix of a batch
      state = start[item]
      loop step:                                to the last one, or until a state says that nothing changes any more
        the loops of each kernel of a step, over LOCAL memory
      result[item] = state

The kernels of a step are those that would otherwise be launched one after another; here they read and write the task's
own memory. A state is updated in place if each element is computed from the same element of the old state alone.
Otherwise it has two copies: a step reads one and writes the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, index, modulo, multiply, substitute_index
from glassgrad.compiler.graph.node import substitute
from glassgrad.compiler.graph.op_arguments import Recurrence
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, If, Kernel, Phase, Statement, Store,
                                            counter, current, expressions, load, local, loops_around, nodes_in,
                                            register, rewritten, walk)
from glassgrad.compiler.schedule.kernels import Item, Schedule

ScheduleStep = Callable[[list[UOp], list[UOp]], Schedule]          # (sinks, PARAMs by slot)


class Place(NamedTuple):
    """The location of a value of a step: a memory, and the index at which it starts."""
    memory: UOp
    start: UOp


class StepsOfItems:
    """Builds the loops of one kernel."""

    def __init__(self, sink: UOp, schedule: ScheduleStep, lower: Callable[[UOp], Kernel]):
        stores = sink.src
        node = stores[0].src[1]
        self.what: Recurrence = node.arg
        self.sources, self.targets = node.src, {s.src[1].arg.result: s.src[0] for s in stores}
        self.params = sorted((n for n in toposort([sink]) if n.op is o.PARAM), key=lambda n: n.arg.slot)
        states, count = self.what.states, node.src[self.what.states].shape[0]
        self.item, self.number = counter("item", self.what.results[0].shape[0]), counter("step", count)
        self.results = [*range(states), *[i for i in self.targets if i >= states]]
        sinks = [self.what.item[i] for i in self.results]
        inner = {n.arg.slot: n for n in toposort(sinks) if n.op is o.PARAM}
        self.step = schedule(sinks, [inner.get(i) or n for i, n in enumerate(node.src)])
        self.kernels = [(item, lower(self._numbered(item))) for item in self.step.items if self.step.runs(item)]
        self.taken = local("taken", dtypes.int32, 1)

    def _numbered(self, item: Item) -> UOp:
        """A kernel's graph, with this kernel's own counter as the number of the step."""
        numbers = {n: self.number.cast(n.dtype) for n in item.ast.toposort()
                   if n.op is o.PARAM and item.slots[n.arg.slot] == self.what.states}
        return substitute([item.ast], numbers)[0]

    def kernel(self) -> Kernel:
        """The kernel: its only phase has a task for each item."""
        what = self.what
        self.in_place = [self._is_in_place(i) for i in range(what.states)]
        self.memories = [local(f"state{i}", n.dtype, self._size(i) * (1 if alone else 2))
                         for i, (n, alone) in enumerate(zip(what.item, self.in_place))]
        body: list[Statement] = []
        for i in range(what.states):
            start = Place(self.sources[i], multiply(current(self.item), self._size(i)))
            body += self._copied(i, start, self._state(i, index(0)))
        body += self._all_steps()
        steps = index(self.number.arg.size) if what.until is None else self._taken()
        for i, target in self.targets.items():
            if i < what.states:
                found = Place(target, multiply(current(self.item), self._size(i)))
                body += self._copied(i, self._state(i, steps), found)
        shape = what.item[0].shape
        name = "_".join(["steps", str(self.number.arg.size), *[str(n) for n in shape if n > 1]])
        written = tuple([target.arg.slot for target in self.targets.values()])
        return Kernel(name, self.params, [Phase(loops_around([self.item], body, TASK))], written)

    def _all_steps(self) -> list[Statement]:
        """The loop over the steps; it counts the steps done, if it may leave some out."""
        nests: list[Statement] = []
        places = self._places()
        for number, (item, kernel) in enumerate(self.kernels):
            given = {p: places[item.slots[p.arg.slot]] for p in kernel.params}
            for phase in kernel.phases:
                body = _placed(phase.body, given, str(number))
                nests += body if all(isinstance(s, For) for s in body) else [_once(body)]
        if self.what.until is None:
            return [For(self.number, LOOP, nests)]
        flag, done = self._state(self.what.until, self._taken()), add(self.number, index(1)).cast(dtypes.int32)
        nests.append(_once([Store(self.taken, index(0), done)]))
        return [_once([Store(self.taken, index(0), const(0, dtypes.int32))]),
                For(self.number, LOOP, [If(load(flag.memory, flag.start).eq(0), nests)])]

    def _taken(self) -> UOp:
        """How many steps were done so far."""
        return load(self.taken, index(0)).cast(dtypes.index)

    # -- memory ----------------------------------------------------------------------------------------------
    def _size(self, result: int) -> int:
        return math.prod(self.what.item[result].shape)

    def _state(self, number: int, steps: UOp) -> Place:
        """The location of a state after this many steps."""
        return Place(self.memories[number], index(0) if self.in_place[number] else
                     multiply(modulo(steps, 2), self._size(number)))

    def _places(self) -> dict[int, Place]:
        """The location of each slot of the step's schedule."""
        what, step = self.what, self.step
        places = {i: self._state(i, self.number) for i in range(what.states)}
        places.update((i, Place(n, index(0))) for i, n in enumerate(self.sources) if i > what.states)
        for result, slot in zip(self.results, step.sinks):
            row = add(multiply(self.number, self.item.arg.size), current(self.item))
            places[slot] = self._state(result, add(self.number, index(1))) if result < what.states else \
                Place(self.targets[result], multiply(row, self._size(result)))
        for i, each in enumerate(step.slots):
            if i not in places and each.whole is None:
                places[i] = Place(local(f"value{i}", each.dtype, math.prod(each.shape)), index(0))
        for i, each in enumerate(step.slots):
            if each.whole is not None:
                whole = places[each.whole]
                places[i] = Place(whole.memory, add(whole.start, index(each.offset // each.dtype.itemsize)))
        return places

    def _is_in_place(self, state: int) -> bool:
        """Whether the kernel that computes a new state is the last reader of the old one, and reads from it only the
        element that it stores, in that statement or an earlier one."""
        target, is_written = self.step.sinks[state], False
        for item, kernel in self.kernels:
            statements = list(walk([s for phase in kernel.phases for s in phase.body]))
            for s in statements:
                read = [n for n in toposort(expressions(s)) if n.op is o.LOAD and
                        item.slots[n.src[0].arg.slot if n.src[0].op is o.PARAM else -1] == state]
                own = [x for x in statements if isinstance(x, Store) and x.memory.op is o.PARAM
                       and item.slots[x.memory.arg.slot] == target]
                if read and (is_written or own and any(n.src[1] is not own[0].index for n in read)):
                    return False
                is_written = is_written or s in own
        return True

    def _copied(self, state: int, source: Place, target: Place) -> list[Statement]:
        i = counter("i", self._size(state))
        value = load(source.memory, add(source.start, i))
        return [For(i, TASK, [Store(target.memory, add(target.start, i), value)])]


def _once(body: list[Statement]) -> Statement:
    """Wrap statements in a nest of one iteration."""
    return For(counter("once", 1), TASK, body)


def _placed(body: list[Statement], places: dict[UOp, Place], suffix: str) -> list[Statement]:
    """Copy a kernel's statements, with its memories at other locations and its registers renamed."""
    locals_ = {m: local(m.arg.name + suffix, m.dtype, m.arg.size) for m in
               [s.memory for s in walk(body) if isinstance(s, Store)] if m.op is o.LOCAL}
    places = {**places, **{m: Place(new, index(0)) for m, new in locals_.items()}}
    replace: dict[UOp, UOp] = {r: register(f"{r.arg}_{suffix}", r.dtype) for r in
                               [s.register for s in walk(body) if isinstance(s, (Assign, Accumulate))]}
    for n in nodes_in(body):
        if n.op is o.LOAD:
            at, *gates = [substitute_index(s, replace, {}) for s in n.src[1:]]
            memory, start = places[n.src[0]]
            replace[n] = load(memory, add(start, at), *gates)
    memo: dict[UOp, UOp] = {}

    def copied(s: Statement) -> Statement:
        made = rewritten(s, lambda e: substitute_index(e, replace, memo))
        if isinstance(made, (For, If)):
            made.body = [copied(inner) for inner in made.body]
        elif isinstance(made, (Assign, Accumulate)):
            made.register = replace[made.register]
        elif isinstance(made, Store):
            memory, start = places[made.memory]
            made.memory, made.index = memory, add(start, made.index)
        return made

    return [copied(s) for s in body]
