"""Measure the peak speed of a device. In: a device. Out: `Peak`: GFLOPS and GB/s, measured with generated kernels.

A matrix product measures arithmetic, a sum of two large arrays measures memory. Kernels are compared with these two
numbers, so a share of peak is relative to what was measured here, not to a data sheet.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from glassgrad.base.errors import GlassgradError
from glassgrad.base.settings import Context
from glassgrad.engine.profile import KernelRow, profile
from glassgrad.engine.realize import realize
from glassgrad.tensor.tensor import Tensor

ROUNDS, LEAST_ROUNDS = 5, 3
ENOUGH_NANOSECONDS = 8_000_000       # larger sizes are tried until a kernel takes this long
SIZES = (128, 512, 1024, 4096)       # of square matrices
ELEMENTS = (1 << 14, 1 << 20, 1 << 24, 1 << 27)


class Peak(NamedTuple):
    """The best rates measured; 0 if a rate could not be measured."""
    gflops: float
    gigabytes_per_second: float


@lru_cache(maxsize=8)
def measured_peak(device: str) -> Peak:
    """Measure a device; takes about a quarter of a second on a CPU."""
    gflops = gigabytes = 0.0
    try:
        with Context(DEBUG=0, CHECK=0, TRAINING=0):
            for size in SIZES:
                a, b = (_filled((size, size), device) for _ in range(2))
                best = _best(a @ b)
                gflops = max(gflops, best.gflops)
                if best.nanoseconds > ENOUGH_NANOSECONDS:
                    break
            for elements in ELEMENTS:
                x, y = (_filled((elements,), device) for _ in range(2))
                best = _best(x + y)
                gigabytes = best.gigabytes_per_second      # of the last size: smaller ones fit the caches
                if best.nanoseconds > ENOUGH_NANOSECONDS:
                    break
    except GlassgradError:                  # no memory for it, or a device that does not run kernels
        pass
    return Peak(gflops, gigabytes)


def _filled(shape: tuple[int, ...], device: str) -> Tensor:
    return Tensor.full(shape, 0.5, device=device).contiguous().realize()


def _best(lazy: Tensor) -> KernelRow:
    """Return the fastest of a few runs of a tensor's kernel, because other programs may slow down single runs."""
    found: list[KernelRow] = []
    while len(found) < ROUNDS:
        with profile() as ran:
            realize([lazy.uop], recompute=True)
        found.append(ran.rows[0])
        if len(found) >= LEAST_ROUNDS and sum(row.nanoseconds for row in found) > 30 * ENOUGH_NANOSECONDS:
            break
    return min(found, key=lambda row: row.nanoseconds)
