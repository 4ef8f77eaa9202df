"""A user's function as a launch of a schedule. In: a `UserCall`. Out: its program; `host_plan`.

A call has a separate plan, as a copy between devices has. So it is counted and reported as kernels are, and a jit
that recorded it launches it again. Does not know what the function computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.runtime.backend import DevicePlan

__all__ = ["HOST_LAUNCHES", "CallProgram", "UserCall", "host_plan"]

HOST_LAUNCHES = frozenset((o.COPY, o.CALL))       # launches that the host does itself, each in a separate plan


@dataclass(frozen=True)
class UserCall:
    """A function over memory. `launch` takes the addresses of its results, then those of its inputs; two calls of one
    key do the same work."""
    name: str
    key: Any
    launch: Callable[[Sequence[int]], None] = field(compare=False, repr=False)


@dataclass(eq=False)
class CallProgram:
    """The program of a user's call in a schedule."""
    call: UserCall
    bytes: int
    operations: int = 0

    @property
    def name(self) -> str:
        return self.call.name

    def launch(self, addresses: Sequence[int]) -> None:
        """Call the function."""
        self.call.launch(addresses)


def host_plan(program: Any, slots: tuple[int, ...]) -> DevicePlan:
    """The plan of a copy between devices or of a user's call."""
    return DevicePlan([program], [slots], lambda program, addresses: program.launch(addresses))
