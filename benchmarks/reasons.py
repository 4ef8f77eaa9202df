"""Say why a workload stays below one of its goals, and what was tried. The page shows a reason only while that is so.
"""

from __future__ import annotations

__all__ = ["REASONS"]

_BEYOND = ("20 times tinygrad's speed would be 420 GFLOPS and more; the multiply-adds of two cores, with nothing else "
           "to do, reach 356 (docs/performance.md)")
_NOISE = ("The cores of this machine slow down by a third for tenths of a second at a time, in any framework; "
          "in several runs within an hour the ratio to PyTorch was")

REASONS: dict[str, str] = {
    "matmul-256": f"{_NOISE} 0.81 to 1.02; the best times seen are 100 us and 110. {_BEYOND}",
    "matmul-512": f"{_NOISE} 0.78 to 1.00; the best times seen are 816 us and 825. {_BEYOND}",
    "matmul-1024": f"{_NOISE} 0.91 to 1.02; the best times seen are 6.52 ms and 6.65",
    "matmul-1024-nt": f"{_NOISE} 0.93 to 1.08; the best times seen are 6.43 ms and 6.65. {_BEYOND}",
    "matmul-1024-tn": f"{_NOISE} 0.96 to 1.01; the best times seen are 6.68 ms and 6.75. The left factor is "
                      "transposed in a phase of its own, 230 us of them. Tried: reading it where it lies (lines 4 KB "
                      "apart evict each other), other tiles; by count, every task transposing its own part is 2 to 9% "
                      "more work",
    "matmul-1024-tt": f"{_NOISE} 1.02 to 1.05; the best times seen are 6.70 ms and 6.78",
    "matmul-64x784x128": f"{_NOISE} 0.74 to 1.04. The kernel takes 44 us (290 GFLOPS), the call some 10 more",
    "matmul-batched": f"{_NOISE} 0.83 to 1.04",
    "conv-depthwise": "8 times tinygrad's speed would move 51 GB/s; a copy reaches 45 at best",
    "mlp-step-jit": "Of 124 us, two products take 94 (their flops alone 73 at the machine's peak), twelve small "
                    "kernels 13, the call 12 to 16; the rest are lines that one core wrote and the other reads",
}
