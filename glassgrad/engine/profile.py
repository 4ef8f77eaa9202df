"""Which kernels ran, how often and how fast. In: a block of code. Out: `Profile`, a row per kernel and line.

    with profile() as ran:
        step()
    print(ran.table())

Inside the block kernels are launched one by one, each timed, also where the jit would replay them in one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glassgrad.compiler.schedule.kernels import Item

if TYPE_CHECKING:
    from glassgrad.runtime.backend import DeviceProgram

__all__ = ["KernelRow", "Profile", "profile", "profiling"]


@dataclass
class KernelRow:
    """All runs of one kernel for one line of the user's program."""
    name: str
    device: str
    line: str
    times: int = 0
    nanoseconds: int = 0
    operations: int = 0
    bytes: int = 0

    @property
    def gflops(self) -> float:
        """Arithmetic operations per nanosecond."""
        return self.operations / max(self.nanoseconds, 1)

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes of operands per nanosecond; above the memory's speed where they were in a cache."""
        return self.bytes / max(self.nanoseconds, 1)


@dataclass
class Profile:
    """What was measured. `rows` holds the slowest first."""
    _rows: dict[tuple[str, str, str], KernelRow] = field(default_factory=dict)

    @property
    def rows(self) -> list[KernelRow]:
        return sorted(self._rows.values(), key=lambda row: -row.nanoseconds)

    @property
    def kernels(self) -> int:
        """How many kernels ran."""
        return sum(row.times for row in self._rows.values())

    @property
    def seconds(self) -> float:
        """The time they took together."""
        return sum(row.nanoseconds for row in self._rows.values()) / 1e9

    def add(self, item: Item, program: DeviceProgram, nanoseconds: int) -> None:
        """One more run of a kernel, or of a copy."""
        name, device, line = program.name, item.device or "", item.lines[0].short if item.lines else ""
        row = self._rows.setdefault((name, device, line), KernelRow(name, device, line))
        row.times += 1
        row.nanoseconds += nanoseconds
        row.operations += program.operations
        row.bytes += program.bytes

    def table(self, most: int = 20) -> str:
        """The slowest kernels as text.

        >>> row = KernelRow("reduce_8", "CPU", "a.py:3", times=4, nanoseconds=2_000_000, operations=6_000_000)
        >>> ran = Profile({("reduce_8", "CPU", "a.py:3"): row})
        >>> print(ran.table())
        kernel    times  total ms  share  GFLOPS  GB/s  line
        reduce_8      4       2.0   100%     3.0   0.0  a.py:3
        """
        rows, total = self.rows, max(self.seconds * 1e9, 1)
        shown = rows[:most]
        cells = [("kernel", "times", "total ms", "share", "GFLOPS", "GB/s", "line")]
        cells += [(r.name, f"{r.times:,}", f"{r.nanoseconds / 1e6:,.1f}", f"{r.nanoseconds / total:.0%}",
                   f"{r.gflops:.1f}", f"{r.gigabytes_per_second:.1f}", r.line) for r in shown]
        if len(rows) > most:
            rest = rows[most:]
            time = sum(r.nanoseconds for r in rest)
            cells.append((f"({len(rest)} others)", f"{sum(r.times for r in rest):,}", f"{time / 1e6:,.1f}",
                          f"{time / total:.0%}", "", "", ""))
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        last = len(widths) - 1
        return "\n".join("  ".join(text.ljust(width) if i in (0, last) else text.rjust(width)
                                   for i, (text, width) in enumerate(zip(row, widths))).rstrip() for row in cells)


_current: Profile | None = None


def profiling() -> Profile | None:
    """The profile being taken now, if any."""
    return _current


@contextmanager
def profile() -> Iterator[Profile]:
    """Everything that runs inside is also measured, kernel by kernel. A profile inside another takes its place."""
    global _current
    before, found = _current, Profile()
    _current = found
    try:
        yield found
    finally:
        _current = before
