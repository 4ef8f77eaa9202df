"""Run schedules with a changing number of steps. In: a `Schedule`. Out: a `CompiledSchedule` for each number of steps,
all with the same kernels.
"""

from __future__ import annotations

from glassgrad.compiler.graph.symbolic import lengths_in
from glassgrad.compiler.schedule.kernels import Schedule
from glassgrad.compiler.schedule.recurrent_steps import unrolled
from glassgrad.engine.compiled_schedule import CompiledSchedule
from glassgrad.engine.memory_plan import MOST_LAYOUTS


class RecurrentSchedule(CompiledSchedule):
    """A schedule with recurrences whose number of steps is a variable. It is itself the schedule for the least number
    of steps, for which all its kernels are compiled; `for_values` makes schedules of the same kernels for other
    numbers."""

    def __init__(self, planned: Schedule, scalars: tuple[int, ...], buffers: int):
        self.for_any = planned
        self._for_values: dict[tuple[int, ...], CompiledSchedule] = {}
        super().__init__(unrolled(planned, _least(planned)), scalars, buffers)

    def for_values(self, values: tuple[int, ...]) -> CompiledSchedule:
        if values not in self._for_values:
            if len(self._for_values) >= MOST_LAYOUTS:
                self._for_values.pop(next(iter(self._for_values)))
            self._for_values[values] = CompiledSchedule(unrolled(self.for_any, values), self.scalars, self.buffers)
        return self._for_values[values]


def _least(planned: Schedule) -> tuple[int, ...]:
    """Return the least values of a schedule's variables."""
    lows = {int(symbol.name[1:]): symbol.low for slot in planned.slots for length in lengths_in(slot.shape)
            for symbol in length.symbols}
    return tuple([lows.get(i, 0) for i in range(max(lows, default=-1) + 1)])
