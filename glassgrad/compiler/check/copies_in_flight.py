"""Track asynchronous copies and matrix-unit steps in flight. In: what kernels start and wait for. Out: a `Bug` where a
wait is missing (a race), or never ends (a deadlock).

All threads of a group run the same statements, so one record serves them all. A copy has arrived for the threads that
have waited for its round. A step of a matrix unit has finished for a thread that has waited for it, and for all threads
after a barrier.
"""

from __future__ import annotations

import numpy as np

from glassgrad.base.errors import Bug
from glassgrad.compiler.check.named_arrays import Array
from glassgrad.compiler.graph.uop import UOp

NEVER = -1


class InFlight:
    """The copies and steps in flight in the groups that run now."""

    def __init__(self, title: str):
        self.title = title
        self.rounds: dict[UOp, Array] = {}        # memory -> for each element, the round that is copying it, or NEVER
        self.readers: dict[UOp, Array] = {}  # memory -> for each element, the number of the last step that reads it
        self.started = self.finished = self.agreed = 0  # step numbers: begun; finished for each thread; for all threads
        self.adds: dict[str, int] = {}            # matrix in registers -> the last step that adds to it,
        self.multiplies: dict[str, int] = {}      # matrix in registers -> the last step that reads it as a factor
        self.used: dict[UOp, Array] = {}          # memory -> elements that threads have read since they last waited
        self.stored: dict[UOp, Array] = {}  # memory -> elements that they stored since a barrier that orders copies

    def copy(self, memory: UOp, index: Array, round_: int) -> None:
        """Record that a copy of a round into these elements begins."""
        rounds, readers = self._of(memory)
        last = int(readers[index].max(initial=0))
        if last > self.agreed:
            why = "a barrier" if last <= self.finished else "a wait for that step, and a barrier,"
            raise Bug(f"{self.title} copies round {round_} into {memory.arg.name} while step {last - 1} of the matrix "
                      f"unit may still read it: {why} is missing between them")
        waiting = int(rounds[index].max(initial=NEVER))
        if waiting != NEVER:
            raise Bug(f"{self.title} copies round {round_} of {memory.arg.name} over round {waiting}, which was not "
                      f"waited for")
        if any(memory in of and of[memory][index].any() for of in (self.used, self.stored)):
            raise Bug(f"{self.title} copies round {round_} into {memory.arg.name} where threads may still store or "
                      f"read: a barrier that copies come after is missing")
        rounds[index] = round_

    def use(self, memory: UOp, index: Array, stored: bool) -> None:
        """Record that threads themselves store or read these elements."""
        rounds, readers = self._of(memory)
        waiting, last = int(rounds[index].max(initial=NEVER)), int(readers[index].max(initial=0))
        if waiting != NEVER or last > self.agreed:
            what = f"round {waiting}" if waiting != NEVER else f"step {last - 1} of the matrix unit"
            raise Bug(f"{self.title} uses {memory.arg.name} while {what} may still do so: a wait is missing")
        (self.stored if stored else self.used).setdefault(memory, np.zeros(memory.arg.size, bool))[index] = True

    def await_copies(self, memory: UOp, round_: int) -> None:
        rounds, _ = self._of(memory)
        if not (rounds == round_).any():
            raise Bug(f"{self.title} waits forever: no copy of round {round_} into {memory.arg.name} was started")
        rounds[rounds == round_] = NEVER

    def step(self, sums: str, reads: list[tuple[UOp, Array]], held: list[str]) -> None:
        """Record that a step of the matrix unit begins, which reads these elements, and matrices in registers."""
        self.started += 1
        self.adds[sums] = self.started
        self.multiplies.update(dict.fromkeys(held, self.started))
        for memory, index in reads:
            rounds, readers = self._of(memory)
            waiting = int(rounds[index].max(initial=NEVER))
            if waiting != NEVER:
                raise Bug(f"{self.title} reads {memory.arg.name} while the copies of round {waiting} may still be on "
                          f"their way: a wait for that round is missing")
            readers[index] = self.started

    def await_steps(self, pending: int) -> None:
        self.finished = max(self.finished, self.started - pending)

    def barrier(self, copies: bool = False) -> None:
        """Record a barrier: steps that have finished for each thread have finished for all."""
        self.agreed = self.finished
        self.used.clear()
        if copies:
            self.stored.clear()

    def assign(self, name: str) -> None:
        """Record that a matrix in registers is written."""
        last = max(self.adds.get(name, 0), self.multiplies.get(name, 0))
        if last > self.finished:
            raise Bug(f"{self.title} assigns to {name} while step {last - 1} of the matrix unit may still use it: "
                      f"a wait for that step is missing")

    def read_sums(self, name: str) -> None:
        if self.finished < self.adds.get(name, 0):
            running = self.started - self.finished
            raise Bug(f"{self.title} reads the sums {name} while {running} steps of the matrix unit may still run: "
                      f"a wait for them is missing")

    def _of(self, memory: UOp) -> tuple[Array, Array]:
        if memory not in self.rounds:
            self.rounds[memory] = np.full(memory.arg.size, NEVER)
            self.readers[memory] = np.zeros(memory.arg.size, np.int64)
        return self.rounds[memory], self.readers[memory]
