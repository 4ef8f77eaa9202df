"""Products of matrices beside PyTorch's: `python -m benchmarks.products --threads 1 4 16 --count 20`.

Measures the products that are named, as in `256x256x256` (M x N x K), `64x128x784nt` (the right factor transposed) or
`8*32x32x64`, and some of random sizes: 1 to 2000, evenly on a logarithmic scale, factors as they are or transposed,
some in batches. Each is compiled by `TinyJit` and compared with float64. A ratio is PyTorch's time over ours: above 1,
ours is faster.

The two take turns in blocks of calls. PyTorch's threads spin for about 10 ms after a call, on cores that ours need, so
all threads get the time to fall asleep before a block; its first calls, which wake them, are not counted. A block
counts with the median of its calls, a library with its best block: other programs only ever add time.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from glassgrad import Context, Device, Tensor, TinyJit
from glassgrad.runtime.cpu.native_device import NativeProgram

NAMED = "256x256x256 64x128x784 512x512x512 1024x1024x1024 2048x2048x2048 333x777x555".split()
LARGEST = 2000
SETTLING, WAKING, BLOCK = 0.02, 0.002, 0.008      # seconds: before a block, of its calls that do not count, that count
KINDS = ("nn", "nn", "nt", "tn")     # which factors are transposed


@dataclass(frozen=True)
class Shape:
    """A batch of products (m, k) @ (k, n); `kind` says of each factor whether it is transposed ("t")."""
    m: int
    n: int
    k: int
    kind: str = "nn"
    batch: int = 1

    @staticmethod
    def read(text: str) -> Shape:
        """The shape written as text."""
        found = re.fullmatch(r"(?:(\d+)\*)?(\d+)x(\d+)x(\d+)([nt]{2})?", text)
        if found is None:
            raise SystemExit(f"given {text!r}, expected a product such as 256x256x256, 64x784x128nt or 8*32x32x64")
        batch, m, n, k, kind = found.groups()
        return Shape(int(m), int(n), int(k), kind or "nn", int(batch or 1))

    @staticmethod
    def drawn(rng: np.random.Generator) -> Shape:
        """One of random sizes, worth less than 2 ** 31 multiply-adds."""
        while True:
            m, n, k = (int(math.exp(rng.uniform(0, math.log(LARGEST)))) for _ in range(3))
            batch = int(rng.integers(2, 33)) if rng.random() < 0.15 else 1
            if batch * m * n * k < 1 << 31:
                return Shape(m, n, k, str(rng.choice(KINDS)), batch)

    def __str__(self) -> str:
        batch = f"{self.batch}*" if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.n}x{self.k}{self.kind if self.kind != 'nn' else ''}"

    def factors(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Both factors as they lie in memory."""
        sizes = [(self.m, self.k), (self.k, self.n)]
        sizes = [size[::-1] if kind == "t" else size for size, kind in zip(sizes, self.kind)]
        around = (self.batch,) if self.batch > 1 else ()
        return [rng.standard_normal((*around, *size), np.float32) for size in sizes]


def transposed(shape: Shape, a: Any, b: Any) -> list[Any]:
    """The factors as the product takes them."""
    return [f.transpose(-1, -2) if kind == "t" else f for f, kind in zip((a, b), shape.kind)]


def best_blocks(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of a call of each, all taking turns in blocks."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, medians in zip(calls, found):
            time.sleep(SETTLING)
            times_of_calls(call, WAKING)
            medians.append(statistics.median(times_of_calls(call, BLOCK)))
    return [min(medians) for medians in found]


def times_of_calls(call: Callable[[], object], seconds: float) -> list[float]:
    """The times of consecutive calls, for so many seconds in all; of two at least."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < until:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def measured(shape: Shape, dtype: str, rounds: int, moves: bool, kernel: bool) -> tuple[float, float, str]:
    """Seconds of one call: ours and PyTorch's; and how our kernels were optimized."""
    x, y = shape.factors(np.random.default_rng(0))
    a, b = (Tensor(f).cast(dtype).contiguous().realize() for f in (x, y))
    given = [torch.from_numpy(f).to(getattr(torch, dtype)) for f in (x, y)]
    ours = TinyJit(lambda a, b: (lambda p, q: p @ q)(*transposed(shape, a, b)).realize())
    for _ in range(3):
        result = ours(a, b)
    p, q = transposed(shape, *given)
    out = torch.matmul(p, q)
    exact = np.matmul(*(f.astype(np.float64) for f in turned_arrays(shape, x, y)))
    worst = float(np.abs(result.cast("float32").numpy() - exact).max() / math.sqrt(shape.k))
    assert worst < (1e-4 if dtype == "float32" else 0.5), f"{shape} is wrong by {worst}"
    program, run = kernel_of(shape, x, y, dtype)
    found = "; ".join(program.moves) if moves else ""
    # a call of either gives a new tensor; a kernel alone writes into the same memory again, and so does PyTorch then
    calls = [run, lambda: torch.matmul(p, q, out=out)] if kernel else [lambda: ours(a, b), lambda: torch.matmul(p, q)]
    ours_took, theirs_took = best_blocks(calls, rounds)
    return ours_took, theirs_took, found


def turned_arrays(shape: Shape, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """The same of NumPy's arrays."""
    return [f.swapaxes(-1, -2) if kind == "t" else f for f, kind in zip((x, y), shape.kind)]


def kernel_of(shape: Shape, x: np.ndarray, y: np.ndarray, dtype: str) -> tuple[NativeProgram, Callable[[], object]]:
    """The kernel of a product, and what runs it without Python's part of a call."""
    a, b = (Tensor(f).cast(dtype).contiguous().realize() for f in (x, y))
    p, q = transposed(shape, a, b)
    device = Device["CPU"]
    [program] = device.programs([item.ast for item in (p @ q).schedule()])
    factors = [aligned(f) for f in (a, b)]
    memory = [np.zeros(n + 64, np.uint8) for n in (4 * shape.batch * shape.m * shape.n, *program.info.shared)]
    starts = [m.ctypes.data + -m.ctypes.data % 64 for m in memory]
    slots = [starts[0], *[f.ctypes.data for f in factors], *starts[1:]]
    plan = device.plan([program], [tuple(range(len(slots)))])
    plan.bind(slots)
    run = plan.runner()

    def call(kept: object = (memory, factors, plan)) -> None:
        run()
    return program, call


def aligned(given: Tensor) -> np.ndarray:
    """A tensor's bytes at the beginning of a cache line."""
    data = np.frombuffer(given.data(), np.uint8)
    raw = np.zeros(data.size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    raw[start:start + data.size] = data
    return raw[start:start + data.size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    parser.add_argument("--shapes", nargs="*", default=NAMED)
    parser.add_argument("--count", type=int, default=20, help="products of random sizes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each product")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--moves", action="store_true", help="show how each was optimized")
    parser.add_argument("--kernel", action="store_true", help="time the kernel alone, not the call of TinyJit")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    shapes = [*map(Shape.read, options.shapes), *[Shape.drawn(rng) for _ in range(options.count)]]
    ratios: dict[str, list[float]] = {str(shape): [] for shape in shapes}
    for threads in options.threads:
        torch.set_num_threads(threads)
        print(f"{threads} threads: PyTorch's time over ours, our time, PyTorch's")
        with Context(THREADS=threads):
            for shape in shapes:
                ours, theirs, moves = measured(shape, options.dtype, options.rounds, options.moves, options.kernel)
                ratios[str(shape)].append(theirs / ours)
                rate = 2e-9 * shape.batch * shape.m * shape.n * shape.k / ours
                print(f"{theirs / ours:6.2f}  {str(shape):22} {ours * 1e6:9.1f} {theirs * 1e6:9.1f} us "
                      f"{rate:7.1f} GFLOPS  {moves}", flush=True)
    print(table(options.threads, ratios))


def table(threads: list[int], ratios: dict[str, list[float]]) -> str:
    """PyTorch's time over ours for each product and number of threads, in Markdown; last their geometric means."""
    means = [math.exp(statistics.fmean(map(math.log, column))) for column in zip(*ratios.values())]
    rows = [["M x N x K", *[f"{count} thread{'s' * (count > 1)}" for count in threads]], ["---"] * (1 + len(threads))]
    for name, row in (*ratios.items(), ("geometric mean", means)):
        rows.append([name, *[f"{ratio:.2f}" for ratio in row]])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
