"""What a device is, as types. In: nothing. Out: what the engine asks of a device, its memory, programs and plans.

The engine knows devices by these four alone. Memory is known by addresses: numbers that name a place on the device, and
that only the device itself looks behind. The address of a scalar PARAM is always one of the host's, of eight bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.render.launch import LaunchInfo
from glassgrad.runtime.host_memory import Block

__all__ = ["DeviceMemory", "DevicePlan", "DeviceProgram", "OpenDevice"]


class DeviceMemory(Protocol):
    """Blocks of bytes."""
    on_host: bool           # whether an address is one of the host's, so that NumPy and files can share it
    in_parts: bool          # whether a kernel can be given an address inside a block, and write from there

    def allocate(self, nbytes: int) -> Block:
        """A block whose contents are whatever they were."""

    def release(self, block: Block) -> None:
        """The block is not used any more."""

    def empty_cache(self) -> None:
        """Give back to the system what is kept for later."""


class DeviceProgram(Protocol):
    """A compiled kernel."""
    name: str
    info: LaunchInfo        # the memory that a launch must bring along
    operations: int         # what a run costs: operations, and bytes moved
    bytes: int


class DevicePlan(Protocol):
    """Programs one after another over numbered slots of memory; may be run often."""
    uninterrupted: bool     # once begun, all run: no signal and no failing program leaves the rest undone; one that is
                            # so has `check(before, numbers)` as well, which ends a run before one of the programs if a
                            # 32-bit number in memory is below a bound: pairs of (address, bound)

    @property
    def scratch(self) -> int:
        """Bytes of private memory that running takes, of all workers together."""

    def bind(self, addresses: Sequence[int]) -> None:
        """Every slot's address, at once."""

    def uses_of(self, slot: int) -> list[tuple[Any, int]]:
        """Where a slot's address is written, as (array, position): a replay changes it there."""

    def run(self) -> None:
        """Every program in order; it may return before they are done."""

    def runner(self) -> Callable[[], Any]:
        """What `run` does, for who runs it often under the settings of now; true is answered where a check ended it."""

    def run_one(self, number: int) -> int:
        """One program, to its end; its nanoseconds."""


class OpenDevice(Protocol):
    """A device, opened."""
    name: str

    @property
    def memory(self) -> DeviceMemory:
        """Its memory."""

    def programs(self, kernels: Sequence[UOp]) -> Sequence[Any]:
        """A `DeviceProgram` for each kernel's graph, each distinct one compiled once."""

    def plan(self, programs: Any, slots: Sequence[tuple[int, ...]]) -> DevicePlan:
        """Launches of its own programs: of each, the slots of its PARAMs, then those of `info.shared`."""

    def copy_in(self, address: int, data: Any) -> None:
        """Bytes of the host into its memory, after whatever was launched before."""

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        """Bytes of its memory to the host, after whatever was launched before."""

    def synchronize(self) -> None:
        """Everything that was launched has run."""

    def empty_cache(self) -> None:
        """Give back memory that is kept for later."""

    def source(self, ast: UOp) -> str:
        """A kernel as text to read."""

    def loop_tree(self, ast: UOp) -> Kernel:
        """A kernel's loop tree as it is rendered, which CHECK interprets to find the pass that is wrong."""
