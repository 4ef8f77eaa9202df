"""Measure what a block of code spends its time on. In: the block. Out: `Profile`: Python, scheduling, compiling,
kernels.

    with profile() as ran:
        step()
    print(ran.table())              kernels by cost, each with the user's line
    print(ran.summary())            the share of each kind of work
    ran.export("trace.json")        for https://ui.perfetto.dev or chrome://tracing
    ran.plot("time.svg")            both as bars, as a notebook shows them

Every kernel is timed, also where the jit replays many of them in one call (runtime/cpu/stopwatch.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from glassgrad.base.svg import bars
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.observer import Launches, Observer, observed_by

if TYPE_CHECKING:
    from glassgrad.engine.schedule_key import NormalizedGraph
    from glassgrad.runtime.backend import DeviceProgram

__all__ = ["KernelRow", "Profile", "Span", "profile"]

MOST_SPANS = 200_000            # kept for the export; rows and sums count everything


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
        """Bytes of operands per nanosecond; may exceed the memory's speed if operands were in a cache."""
        return self.bytes / max(self.nanoseconds, 1)


class Span(NamedTuple):
    """Something that took time; times are nanoseconds."""
    name: str
    kind: str                   # "schedule", "compile", "launch" or "kernel"
    start: int
    duration: int
    line: str = ""


@dataclass
class Profile(Observer):
    """What was measured. `rows` lists the slowest kernels first."""
    _rows: dict[tuple[str, str, str], KernelRow] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    started: int = field(default_factory=perf_counter_ns)
    ended: int | None = None
    nanoseconds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("schedule", "compile", "launch"), 0))

    @property
    def rows(self) -> list[KernelRow]:
        return sorted(self._rows.values(), key=lambda row: -row.nanoseconds)

    @property
    def kernels(self) -> int:
        """The number of kernels that ran."""
        return sum(row.times for row in self._rows.values())

    @property
    def seconds(self) -> float:
        """The total time of all kernels."""
        return sum(row.nanoseconds for row in self._rows.values()) / 1e9

    def add(self, item: Item, program: DeviceProgram, nanoseconds: int, cost: tuple[int, int]) -> None:
        """Count one run of a kernel or of a copy; `cost` are its operations and bytes."""
        name, device, line = program.name, item.device or "", item.lines[0].short if item.lines else ""
        row = self._rows.setdefault((name, device, line), KernelRow(name, device, line))
        row.times += 1
        row.nanoseconds += nanoseconds
        row.operations += cost[0]
        row.bytes += cost[1]

    # -- methods that the engine calls (observer.py) ---------------------------------------------------------
    def prepared(self, normal: NormalizedGraph, ready: Any, times: tuple[int, int, int]) -> None:
        """Record the times of scheduling and compiling."""
        start, scheduled, end = times
        name = f"{len(ready.items)} kernels"
        self._took(Span(name, "schedule", start, scheduled - start))
        self._took(Span(name, "compile", scheduled, end - scheduled))

    def ran(self, what: Launches, times: tuple[int, int], kernels: Callable[[], list[int]]) -> None:
        """Record the times of kernels; the rest of the time of the run counts as launch."""
        start, end = times
        measured = kernels()
        self._took(Span(f"run {len(what.items)} kernels", "launch", start, max(0, end - start - sum(measured))))
        for item, program, nanoseconds, cost in zip(what.items, what.programs, measured, what.costs()):
            self.add(item, program, nanoseconds, cost)
            if len(self.spans) < MOST_SPANS:
                line = item.lines[0].short if item.lines else ""
                self.spans.append(Span(program.name, "kernel", start, nanoseconds, line))
            start += nanoseconds

    def _took(self, span: Span) -> None:
        self.nanoseconds[span.kind] += span.duration
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)

    # -- results ---------------------------------------------------------------------------------------------
    def parts(self) -> dict[str, float]:
        """Return the seconds spent on each kind of work; Python is the rest of the total."""
        whole = ((perf_counter_ns() if self.ended is None else self.ended) - self.started) / 1e9
        found = {"scheduling": self.nanoseconds["schedule"] / 1e9, "compiling": self.nanoseconds["compile"] / 1e9,
                 "launches": self.nanoseconds["launch"] / 1e9, "kernels": self.seconds}
        return {"Python": max(0.0, whole - sum(found.values())), **found}

    def summary(self) -> str:
        """Return the share of each kind of work as text.

        >>> ran = Profile(started=0, ended=10_000_000, nanoseconds={"schedule": 10**6, "compile": 0, "launch": 0})
        >>> print(ran.summary())
        Python          9.0 ms   90%
        scheduling      1.0 ms   10%
        compiling       0.0 ms    0%
        launches        0.0 ms    0%
        kernels         0.0 ms    0%
        """
        parts = self.parts()
        whole = max(sum(parts.values()), 1e-12)
        return "\n".join(f"{name:<12} {seconds * 1e3:>6,.1f} ms {seconds / whole:>5.0%}"
                         for name, seconds in parts.items())

    def chrome_trace(self) -> dict[str, Any]:
        """Return the spans in Chrome's trace format, which Perfetto reads too: microseconds since the block began."""
        rows = {"schedule": 1, "compile": 1, "launch": 1, "kernel": 2}
        named = [{"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}
                 for row, name in ((1, "glassgrad"), (2, "kernels"))]
        return {"traceEvents": [*named, *[
            {"name": s.name, "cat": s.kind, "ph": "X", "pid": 1, "tid": rows[s.kind],
             "ts": (s.start - self.started) / 1e3, "dur": s.duration / 1e3, "args": {"line": s.line} if s.line else {}}
            for s in self.spans]], "displayTimeUnit": "ms"}

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for https://ui.perfetto.dev or chrome://tracing."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write an SVG file that shows where the time went, and the slowest kernels."""
        Path(path).write_text(self._repr_svg_(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        """Draw bars for notebooks: where the time went, and the slowest kernels."""
        parts = self.parts()
        named = [(name, seconds, "#2460d8" if name == "kernels" else "#8794a6") for name, seconds in parts.items()]
        named += [(f"{row.name}  {row.line}", row.nanoseconds / 1e9, "#e4572e") for row in self.rows[:10]]
        return bars(named, lambda seconds: f"{seconds * 1e3:,.1f} ms")

    def table(self, most: int = 20) -> str:
        """Return a table of the slowest kernels as text.

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


@contextmanager
def profile() -> Iterator[Profile]:
    """Measure everything that runs inside the block, kernel by kernel.

    >>> with profile() as ran:
    ...     _ = (Tensor([1.0, 2.0]) + 1).realize()
    >>> ran.kernels
    1
    """
    found = Profile()
    with observed_by(found):
        try:
            yield found
        finally:
            found.ended = perf_counter_ns()
