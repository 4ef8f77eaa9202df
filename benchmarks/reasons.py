"""Why a workload stays below one of its goals, and what was tried. The page shows a reason only while that is so."""

from __future__ import annotations

__all__ = ["REASONS"]

_BEYOND = ("20 times tinygrad's speed would be 420 GFLOPS and more; the multiply-adds of two cores, with nothing else "
           "to do, reach 356 (docs/performance.md)")

REASONS: dict[str, str] = {
    "matmul-256": _BEYOND,
    "matmul-512": _BEYOND,
    "matmul-1024-nt": _BEYOND,
    "conv-depthwise": "8 times tinygrad's speed would move 51 GB/s; a copy reaches 45 at best",
}
