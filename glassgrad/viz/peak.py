"""How fast this machine is at best. In: a device. Out: `Peak`: GFLOPS and GB/s, measured with kernels of our own.

A matrix product measures arithmetic, a sum of two large arrays memory. Kernels are compared with these two numbers, so
a share of peak says what is still to be had here, not on paper.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from glassgrad.base.errors import GlassgradError
from glassgrad.base.settings import Context
from glassgrad.engine.profile import profile
from glassgrad.tensor.tensor import Tensor

ROUNDS = 4


class Peak(NamedTuple):
    """The best that was measured; 0 where nothing could be."""
    gflops: float
    gigabytes_per_second: float

    @property
    def ridge(self) -> float:
        """Operations per byte above which arithmetic is the limit."""
        return self.gflops / self.gigabytes_per_second if self.gigabytes_per_second else 0.0


@lru_cache(maxsize=8)
def measured_peak(device: str) -> Peak:
    """Measure a device; takes about a quarter of a second on a CPU."""
    size, elements = (1024, 1 << 24) if device in ("CPU", "CLANG") else (64, 1 << 12) if device == "PYTHON" else \
        (4096, 1 << 27)
    try:
        with Context(DEBUG=0, CHECK=0, TRAINING=0):
            a, b = (Tensor.full((size, size), 0.5, device=device).contiguous().realize() for _ in range(2))
            arithmetic = _best(lambda: (a @ b).realize())[0]
            x, y = (Tensor.full((elements,), 0.5, device=device).contiguous().realize() for _ in range(2))
            memory = _best(lambda: (x + y).realize())[1]
        return Peak(arithmetic, memory)
    except GlassgradError:                  # no memory for it, or a device that does not run kernels
        return Peak(0.0, 0.0)


def _best(run: object) -> tuple[float, float]:
    """The most GFLOPS and GB/s of a few runs of one kernel."""
    gflops = gigabytes = 0.0
    for _ in range(ROUNDS):
        with profile() as ran:
            run()  # type: ignore[operator]
        for row in ran.rows[:1]:
            gflops, gigabytes = max(gflops, row.gflops), max(gigabytes, row.gigabytes_per_second)
    return gflops, gigabytes
