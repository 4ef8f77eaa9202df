"""Launch what the host does itself: copies between devices, and calls of a user's function. In: a kernel's item. Out:
`HostLaunch`, which takes the place of a program; `host_plan`.

Each such launch is a plan of its own. So it is counted and reported like a kernel, and a jit that recorded it launches
it again. A copy goes through the host's memory. Does not know what a user's function computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.schedule.kernels import Item, Slot
from glassgrad.runtime.backend import DevicePlan
from glassgrad.runtime.devices import Device

HOST_LAUNCHES = frozenset((o.COPY, o.CALL))


@dataclass(frozen=True)
class UserCall:
    """A user's function over memory. `launch` takes the addresses of its results, then those of its inputs. Two calls
    with the same key do the same work."""
    name: str
    key: Any
    launch: Callable[[Sequence[int]], None] = field(compare=False, repr=False)


@dataclass(eq=False)
class HostLaunch:
    """A launch in the place of a compiled program: `launch` takes the addresses of its results, then those of its
    inputs."""
    name: str
    bytes: int
    launch: Callable[[Sequence[int]], None]
    operations: int = 0


def _host_launch(item: Item, slots: Sequence[Slot]) -> HostLaunch:
    """Make the launch of a copy or of a call whose memory is among `slots`."""
    if item.ast.op is o.CALL:
        call: UserCall = item.ast.arg
        return HostLaunch(call.name, sum(slots[slot].nbytes for slot in item.slots), call.launch)
    source = slots[item.slots[-1]]
    target_device, source_device, nbytes = item.device or "", source.device or "", source.nbytes

    def copy(addresses: Sequence[int]) -> None:
        target, begin = addresses
        Device[target_device].copy_in(target, Device[source_device].copy_out(begin, nbytes))
    return HostLaunch("copy", nbytes, copy)


def host_plan(item: Item, slots: Sequence[Slot]) -> DevicePlan:
    """Make the plan of one host launch."""
    return DevicePlan([_host_launch(item, slots)], [item.slots], lambda launch, addresses: launch.launch(addresses))
