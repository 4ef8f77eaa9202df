"""Count what has run. In: launches. Out: `GlobalCounters`. Imports nothing."""

from __future__ import annotations


class Counters:
    """Running totals over the process; `reset()` before what you want to measure.

    >>> GlobalCounters.reset()
    >>> GlobalCounters.kernel_count
    0
    """
    __slots__ = ("kernel_count", "global_ops", "global_mem", "time_sum_s", "schedules", "mem_used")

    def __init__(self) -> None:
        self.mem_used = 0          # bytes of the values in memory now; not changed by `reset`
        self.reset()

    def reset(self) -> None:
        """Set all counters to zero."""
        self.kernel_count = 0      # kernels launched
        self.global_ops = 0        # arithmetic operations in them
        self.global_mem = 0        # bytes of memory they must touch
        self.time_sum_s = 0.0      # seconds spent running them
        self.schedules = 0         # graphs that were scheduled, not found in the schedule cache


GlobalCounters = Counters()        # an instance: every run writes to it, and class attributes are slower to write
