"""Launches one after another, from Python. In: programs and the slots each one uses. Out: `StepwisePlan`.

What devices share that have no command list of their own: the interpreter, and devices that somebody brings along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["StepwisePlan"]


class StepwisePlan:
    """Numbered slots of memory, and programs over them; a subclass runs one of them."""
    uninterrupted = False        # a signal or a failing program may leave the rest undone

    def __init__(self, programs: Sequence[Any], slots: Sequence[tuple[int, ...]]):
        self.programs, self.slots = list(programs), list(slots)
        self.addresses: list[int] = []

    @property
    def scratch(self) -> int:
        """Private memory of workers: there are none."""
        return 0

    def bind(self, addresses: Sequence[int]) -> None:
        """Every slot's address, at once."""
        self.addresses = list(addresses)

    def uses_of(self, slot: int) -> list[tuple[Any, int]]:
        """Where a slot's address is written: (array, position)."""
        return [(self.addresses, slot)] if any(slot in uses for uses in self.slots) else []

    def run(self) -> None:
        """Every program, in order."""
        for number in range(len(self.programs)):
            self.run_one(number)

    def runner(self) -> Callable[[], None]:
        """What `run` does, for who runs it often."""
        return self.run

    def run_one(self, number: int) -> int:
        """One program; its nanoseconds."""
        raise NotImplementedError(f"{type(self).__name__} has no run_one")
