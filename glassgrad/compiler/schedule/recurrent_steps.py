"""The kernels of a recurrence. In: a `Schedule` in which a RECURRENCE is one item, with the schedule of one step. Out: the
same with the kernels of the step once for each step, on the memory of that step.

A step is scheduled once, whatever the number of steps, and its kernels are the same for all of them: each reads and
writes pieces of the sequences, at an offset. So a longer sequence compiles nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.op_arguments import Recurrence
from glassgrad.compiler.graph.symbolic import replaced
from glassgrad.compiler.schedule.kernels import Item, Schedule, Slot

ScheduleStep = Callable[[list[UOp], list[UOp], str], Schedule]     # (sinks, PARAMs by slot, device)


def schedule_steps(planned: Schedule, schedule: ScheduleStep) -> None:
    """Give every item that is a recurrence the schedule of one step."""
    for item in planned.items:
        if item.is_recurrence:
            nodes = item.ast.src
            what: Recurrence = nodes[0].arg
            sinks = [*what.results[:what.states],
                     *[what.results[n.arg.index] for n in nodes if n.arg.index >= what.states]]
            found = {n.arg.slot: n for sink in sinks for n in sink.toposort() if n.op is o.PARAM}
            params = [found.get(i) or source for i, source in enumerate(nodes[0].src)]
            item.step = schedule(sinks, params, str(item.device))
            if item.step.updates:
                raise Bug("a step of a recurrence replaces a part of a value")


def unrolled(planned: Schedule, values: Sequence[int] = ()) -> Schedule:
    """The schedule with the kernels of every step, for these values of the variables."""
    if not any(item.is_recurrence for item in planned.items):
        return planned
    out = replace(planned, items=[], slots=list(planned.slots))
    for item in planned.items:
        out.items += _Steps(item, out, values).items() if item.is_recurrence else [item]
    return out


class _Steps:
    """All steps of one recurrence."""

    def __init__(self, item: Item, out: Schedule, values: Sequence[int]):
        assert item.step is not None
        nodes = item.ast.src
        self.item, self.step, self.slots = item, item.step, out.slots
        self.what: Recurrence = nodes[0].arg
        self.results = {n.arg.index: slot for n, slot in zip(nodes, item.slots)}      # those that are kept, and where
        self.sources = item.slots[item.results:]
        self.count = int(replaced(nodes[0].shape[0], lambda symbol: values[int(symbol.name[1:])]))

    def items(self) -> list[Item]:
        what, step = self.what, self.step
        states, made = list(self.sources[:what.states]), list[Item]()
        constants = self.sources[what.states + what.sequences:]
        others = [index for index in self.results if index >= what.states]
        for number in range(self.count):
            row = self.count - 1 - number if what.backwards else number
            rows = [self._piece(slot, row, step.slots[what.states + i])
                    for i, slot in enumerate(self.sources[what.states:what.states + what.sequences])]
            place = dict(enumerate([*states, *rows, *constants]))
            for index, inner in zip((*range(what.states), *others), step.sinks):
                place[inner] = self._piece(self.results[index], row, step.slots[inner]) if index in self.results else \
                    self._new(step.slots[inner])
            for inner, slot in enumerate(step.slots):
                if inner not in place:
                    place[inner] = self._new(slot) if slot.whole is None else \
                        self._at(place[slot.whole], slot.offset, slot)
            states = [place[inner] for inner in step.sinks[:what.states]]
            made += [replace(each, slots=tuple([place[slot] for slot in each.slots]), device=self.item.device,
                             lines=self.item.lines) for each in step.items]
        return made

    def _new(self, like: Slot) -> int:
        self.slots.append(replace(like, device=self.item.device))
        return len(self.slots) - 1

    def _piece(self, slot: int, row: int, like: Slot) -> int:
        """One row of a sequence in memory."""
        return self._at(slot, row * math.prod(like.shape) * like.dtype.itemsize, like)

    def _at(self, slot: int, offset: int, like: Slot) -> int:
        whole = self.slots[slot].whole
        if whole is not None:
            slot, offset = whole, offset + self.slots[slot].offset
        self.slots.append(Slot(like.shape, like.dtype, self.item.device, slot, offset))
        return len(self.slots) - 1
