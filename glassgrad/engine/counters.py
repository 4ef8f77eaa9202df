"""What has run so far. In: launches. Out: `GlobalCounters`. Imports nothing."""

from __future__ import annotations


class GlobalCounters:
    """Running totals over the process; `reset()` before what you want to measure.

    >>> GlobalCounters.reset()
    >>> GlobalCounters.kernel_count
    0
    """
    kernel_count: int = 0      # kernels launched
    global_ops: int = 0        # arithmetic operations in them
    global_mem: int = 0        # bytes of memory they must touch
    time_sum_s: float = 0.0    # seconds spent running them
    schedules: int = 0         # graphs scheduled anew (a cached schedule does not count)
    mem_used: int = 0          # bytes of the values in memory now; `reset` leaves it

    @classmethod
    def reset(cls) -> None:
        """Set all counters to zero."""
        cls.kernel_count = cls.global_ops = cls.global_mem = cls.schedules = 0
        cls.time_sum_s = 0.0
