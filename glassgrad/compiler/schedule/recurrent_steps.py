"""Schedule recurrences. In: a `Schedule` in which a RECURRENCE is one item. Out: the same with the schedule of one
step; then with that step's kernels repeated, each time on the memory of another step.

A step is scheduled once, whatever the number of steps, and all steps run the same kernels on pieces of the sequences at
different offsets. So a longer sequence compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, dtypes, ops as o
from glassgrad.compiler.graph.op_arguments import Measure, Recurrence
from glassgrad.compiler.graph.symbolic import replaced
from glassgrad.compiler.schedule.kernels import Item, Schedule, Slot

ScheduleStep = Callable[[list[UOp], list[UOp], str], Schedule]     # (sinks, PARAMs by slot, device)


def schedule_steps(planned: Schedule, inputs: Sequence[UOp], schedule: ScheduleStep) -> None:
    """Schedule one step of every item that is a recurrence; `inputs` are the PARAM leaves by slot."""
    variables = [p.arg.symbol for p in inputs if isinstance(p.arg, Measure)]
    for item in planned.items:
        if item.is_recurrence:
            nodes = item.ast.src
            what: Recurrence = nodes[0].arg
            sinks = [*what.results[:what.states],
                     *[what.results[n.arg.result] for n in nodes if n.arg.result >= what.states]]
            found = {n.arg.slot: n for sink in sinks for n in sink.toposort() if n.op is o.PARAM}
            params = [found.get(i) or source for i, source in enumerate(nodes[0].src)]
            params += [UOp(o.PARAM, dtypes.index, (), Measure(i, symbol))
                       for i, symbol in enumerate(variables, len(params))]
            item.step = schedule(sinks, params, str(item.device))
            if item.step.updates:
                raise Bug("a step of a recurrence replaces a part of a value")


def unrolled(planned: Schedule, values: Sequence[int] = ()) -> Schedule:
    """Expand recurrences into the kernels of every step. With `values` of the variables, memory gets plain sizes."""
    def plain_shape(shape: Any) -> Any:
        return replaced(shape, lambda symbol: values[int(symbol.name[1:])])

    slots = [replace(slot, shape=plain_shape(slot.shape)) for slot in planned.slots] if values else list(planned.slots)
    out = replace(planned, items=[], slots=slots)
    for item in planned.items:
        if item.step is None:
            out.items.append(item)
        else:
            step = replace(item.step, slots=[replace(slot, shape=plain_shape(slot.shape)) for slot in item.step.slots])
            out.items += _StepKernels(item, step, slots, plain_shape(_count(item.ast.src[0]))).items()
    return out


def _count(node: UOp) -> Any:
    """How many steps a RECURRENCE has."""
    return node.src[node.arg.states].shape[0]


class _StepKernels:
    """Expands one recurrence into the kernels of its `count` steps."""

    def __init__(self, item: Item, step: Schedule, slots: list[Slot], count: int):
        nodes = item.ast.src
        self.item, self.step, self.slots, self.count = item, step, slots, count
        self.what: Recurrence = nodes[0].arg
        self.kept = {n.arg.result: slot for n, slot in zip(nodes, item.slots)}      # result -> its slot in memory,
        self.last = {n.arg.result for n in nodes if n.arg.last}  # results that memory has only after the last step
        self.sources = item.slots[item.results:]
        self.own: dict[tuple[int, int], int] = {}        # memory of a single step, reused by later ones

    def items(self) -> list[Item]:
        """The kernels of all steps, in order."""
        what, step, item = self.what, self.step, self.item
        first_constant = what.states + what.sequences
        states, sequences = list(self.sources[:what.states]), self.sources[what.states:first_constant]
        results = [*range(what.states), *[index for index in self.kept if index >= what.states]]
        made: list[Item] = []
        for number in range(self.count):
            row = self.count - 1 - number if what.backwards else number
            place = dict(enumerate(states))
            for inner, slot in enumerate(sequences, what.states):
                place[inner] = self._row(slot, row, step.slots[inner])
            place.update(enumerate(self.sources[first_constant:], first_constant))
            for index, inner in zip(results, step.sinks):
                # the next step reads this state, and so writes its own to other memory
                place[inner] = self._result(index, inner, number, row)
            for inner, each in enumerate(step.slots):
                if inner not in place:
                    place[inner] = self._own(inner, 0) if each.whole is None else \
                        self._piece(place[each.whole], each.offset, each)
            states = [place[inner] for inner in step.sinks[:what.states]]
            made += [Item(kernel.ast, tuple([place[slot] for slot in kernel.slots]), kernel.results, item.device,
                          kernel.reasons, item.lines) for kernel in step.items if step.runs(kernel)]
        return made

    def _result(self, index: int, inner: int, number: int, row: int) -> int:
        """The slot where a step stores a result: the result's memory, if it has that after this step; else a step's."""
        if index not in self.kept or index in self.last and number < self.count - 1:
            return self._own(inner, number % 2)
        return self.kept[index] if index in self.last else self._row(self.kept[index], row, self.step.slots[inner])

    def _own(self, inner: int, turn: int) -> int:
        """Memory for values of single steps, shared by all steps; `turn` selects one of two."""
        if (inner, turn) not in self.own:
            self.own[inner, turn] = len(self.slots)
            self.slots.append(replace(self.step.slots[inner], device=self.item.device))
        return self.own[inner, turn]

    def _row(self, slot: int, row: int, like: Slot) -> int:
        """One row of a sequence in memory."""
        return self._piece(slot, row * like.nbytes, like)

    def _piece(self, slot: int, offset: int, like: Slot) -> int:
        whole = self.slots[slot].whole
        if whole is not None:
            slot, offset = whole, offset + self.slots[slot].offset
        self.slots.append(Slot(like.shape, like.dtype, self.item.device, slot, offset))
        return len(self.slots) - 1
