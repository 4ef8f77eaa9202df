"""Copies between devices. In: source and target. Out: `Copy` and `CopyPlan`, in the place of programs and plans.

Each copy goes through the host's memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from glassgrad.runtime.backend import DevicePlan
from glassgrad.runtime.devices import Device


@dataclass(eq=False)
class Copy:
    """The copy of one value from a device to another."""
    source: str
    target: str
    bytes: int
    name: str = "copy"
    operations: int = 0


class CopyPlan(DevicePlan):
    """Runs copies in order; each has two slots, the target's and the source's."""

    def run_one(self, number: int) -> int:
        copy, (target, source) = self.programs[number], self.slots[number]
        start = time.perf_counter_ns()
        data = Device[copy.source].copy_out(self.addresses[source], copy.bytes)
        Device[copy.target].copy_in(self.addresses[target], data)
        return time.perf_counter_ns() - start
