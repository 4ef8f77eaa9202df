"""Time every kernel of a command list. In: a plan's commands. Out: `NativeStopwatch`: nanoseconds per kernel.

A command that reads the system's clock follows each kernel, so a timed run is still one foreign call; it adds about
30 ns per kernel. Totals are accumulated natively, and Python reads them on demand.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from glassgrad.runtime.backend import Stopwatch
from glassgrad.runtime.cpu.worker_pool import Command, worker_pool


class Stamp(ctypes.Structure):
    """The record that `glassgrad_stamp` (worker_pool_source.py) reads and updates: one clock read."""
    _fields_ = (("clock", ctypes.c_int64), ("first", ctypes.c_int64), ("second", ctypes.c_int64),
                ("seconds", ctypes.c_int64), ("rest", ctypes.c_int64), ("scale", ctypes.c_int64),
                ("last", ctypes.c_int64), ("latest", ctypes.c_int64), ("total", ctypes.c_int64))


class Clock(NamedTuple):
    """The system's clock function: its address, the arguments before the output pointer, and the tick."""
    function: int
    before: tuple[int, ...]
    scale: int                       # factor of the first integer it writes; the second is added
    nanoseconds: float               # per tick


@lru_cache(maxsize=1)
def clock() -> Clock:
    """Return the clock of this system."""
    address = lambda function: ctypes.cast(function, ctypes.c_void_p).value or 0
    if sys.platform == "win32":
        system = ctypes.WinDLL("kernel32")
        frequency = ctypes.c_int64()
        system.QueryPerformanceFrequency(ctypes.byref(frequency))
        return Clock(address(system.QueryPerformanceCounter), (), 1, 1e9 / frequency.value)
    monotonic = 8 if sys.platform == "darwin" else 1
    return Clock(address(ctypes.CDLL(None).clock_gettime), (monotonic,), 1_000_000_000, 1.0)


class NativeStopwatch(Stopwatch):
    """A command list with a clock read before the first kernel and after each kernel."""

    def __init__(self, commands: Sequence[Command], spans: Sequence[tuple[int, int]], scratch_bytes: int):
        pool = worker_pool()
        self._scratch_bytes = scratch_bytes
        self._stamps: Any = (Stamp * (len(spans) + 1))()
        self._last = ctypes.c_int64(0)
        self.runs = self.timed_runs = 0
        for stamp in self._stamps:
            self._set(stamp)
        marks = [Command(pool.native.stamp, ctypes.addressof(stamp), 1, 1) for stamp in self._stamps]
        ends: dict[int, list[Command]] = {}
        for mark, (first, count) in zip(marks[1:], spans):
            ends.setdefault(first + count, []).append(mark)
        rows = [marks[0]]
        for number, command in enumerate(commands):
            rows.append(command)
            rows += ends.get(number + 1, [])
        self._commands = (Command * len(rows))(*rows)
        self._run: Callable[[], int]

    def _set(self, stamp: Stamp) -> None:
        ticks = clock()
        arguments = [*ticks.before, ctypes.addressof(stamp) + Stamp.seconds.offset, 0]
        stamp.clock, stamp.first, stamp.second, stamp.scale = ticks.function, arguments[0], arguments[1], ticks.scale
        stamp.last = ctypes.addressof(self._last)

    def prepare(self) -> None:
        """Bind `run` to the worker pool of the current settings."""
        pool = worker_pool()
        if self._scratch_bytes:
            pool.ensure_scratch(self._scratch_bytes)
        self._run = partial(pool.run, ctypes.addressof(self._commands), len(self._commands))

    def run(self, every: bool = True) -> int:
        """Run all kernels; return how many commands a check left undone."""
        self.runs += 1
        self.timed_runs += 1
        return self._run()

    @property
    def latest(self) -> list[int]:
        """Nanoseconds of each kernel in the latest run."""
        tick = clock().nanoseconds
        return [int(stamp.latest * tick) for stamp in self._stamps[1:]]

    @property
    def totals(self) -> list[int]:
        """Nanoseconds of each kernel in all timed runs."""
        tick = clock().nanoseconds
        return [int(stamp.total * tick) for stamp in self._stamps[1:]]
