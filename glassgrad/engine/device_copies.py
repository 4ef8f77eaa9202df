"""Copies between devices. In: which device's memory goes where. Out: what stands in a schedule as kernels do.

A copy is a program of no arithmetic, and its plan launches it by way of the host.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from glassgrad.runtime.backend import DevicePlan
from glassgrad.runtime.devices import Device


@dataclass(eq=False)
class Copy:
    """One value, from a device to another."""
    source: str
    target: str
    bytes: int
    name: str = "copy"
    operations: int = 0


class CopyPlan(DevicePlan):
    """Copies one after another; each has two slots, where to and where from."""

    def run_one(self, number: int) -> int:
        copy, (target, source) = self.programs[number], self.slots[number]
        start = time.perf_counter_ns()
        data = Device[copy.source].copy_out(self.addresses[source], copy.bytes)
        Device[copy.target].copy_in(self.addresses[target], data)
        return time.perf_counter_ns() - start
