"""Copies between devices. In: source and target. Out: `Copy`, in the place of a program.

Each copy goes through the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassgrad.runtime.devices import Device


@dataclass(eq=False)
class Copy:
    """The copy of one value from a device to another."""
    source: str
    target: str
    bytes: int
    name: str = "copy"
    operations: int = 0

    def launch(self, addresses: Sequence[int]) -> None:
        """Copy; `addresses` are the target's and the source's."""
        target, source = addresses
        Device[self.target].copy_in(target, Device[self.source].copy_out(source, self.bytes))
