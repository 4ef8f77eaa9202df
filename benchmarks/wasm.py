"""Compare WebAssembly with machine code: `python -m benchmarks.wasm`. Out: a table, the speed of WASM as a fraction of
the CPU's.

The device CPU is limited to what WebAssembly has: vectors of 128 bits, no fused multiply-add, one thread. Both are
measured in turn, many times, in seconds of processor time, so that other programs disturb both alike. The ratio is that
of the medians (and, in brackets, that of the least times). Needs `pip install wasmtime`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

NARROW = "-avx,-avx2,-fma,-avx512f"      # of CPU_FEATURES; NEON has 128 bits as it is
ROUNDS = 30


def work() -> dict[str, Callable[..., object]]:
    """What is measured, as functions of two matrices of 512 x 512."""
    return {
        "f32 matmul 512": lambda a, b: a @ b,
        "f32 matmul 128": lambda a, b: a[:128, :128] @ b[:128, :128],
        "elements": lambda a, b: (a * b + 1).relu(),
        "exp": lambda a, b: a.exp(),
        "rows (softmax)": lambda a, b: a.softmax(-1),
        "a sum": lambda a, b: a.sum(),
        "a transposed copy": lambda a, b: a.T.contiguous(),
    }


def seconds(run: Callable[[], object]) -> float:
    """Processor time of one call."""
    began = time.process_time()
    run()
    return time.process_time() - began


def measure(rounds: int = ROUNDS) -> dict[str, tuple[float, float, float]]:
    """For each kind of work: the median seconds of WASM, the ratio CPU / WASM of medians, and of least times."""
    os.environ.setdefault("CPU_FEATURES", NARROW)
    from glassgrad import Context, Tensor
    found = {}
    with Context(THREADS=1):
        Tensor.manual_seed(0)
        first, second = Tensor.rand(512, 512).tolist(), Tensor.rand(512, 512).tolist()
        operands = {device: (Tensor(first, device=device).realize(), Tensor(second, device=device).realize())
                    for device in ("WASM", "CPU")}
        for name, compute in work().items():
            runs = {device: (lambda a=a, b=b, compute=compute: compute(a, b).realize())     # type: ignore[attr-defined]
                    for device, (a, b) in operands.items()}
            for run in runs.values():
                run()
            times = [(seconds(runs["WASM"]), seconds(runs["CPU"])) for _ in range(rounds)]
            wasm, cpu = zip(*times)
            found[name] = (statistics.median(wasm), statistics.median(cpu) / statistics.median(wasm),
                           min(cpu) / min(wasm))
    return found


if __name__ == "__main__":
    for name, (median, ratio, least) in measure().items():
        print(f"{name:<20} {median * 1e3:9.3f} ms   {ratio:.2f} of the CPU's speed ({least:.2f})")
