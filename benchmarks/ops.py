"""Measure ops of many kinds beside PyTorch: `python -m benchmarks.ops --device CPU --only pad`. Needs numpy and torch.

Each case of op_cases.py is one expression. PyTorch runs it eagerly; here it is compiled by `TinyJit`, through the
adapter `glassgrad.torch`. Both take turns; a ratio is PyTorch's time over ours, each the best of the rounds, calls
included: above 1, ours is faster. Results are compared first, and what differs is said. It is a search for ops that
are unexpectedly slow or wrong, not a measurement of kernels: a jitted call costs 10 to 20 us by itself.
`--random 200 --seed 3` measures cases of random_op_cases.py instead, until `--seconds` have passed, and prints them
with the slowest first.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import glassgrad.torch as ours
from benchmarks.op_cases import CASES, OpCase
from benchmarks.random_op_cases import random_cases
from glassgrad import Device, TinyJit

ROUND, ROUNDS, MOST_CALLS = 0.01, 4, 200        # seconds of a round, how many, and its most calls
SETTLING = 0.02                                 # seconds before a round: PyTorch's threads spin for half of that
DIFFERS = 1e-3                                  # of the largest number: GPUs round convolutions to tf32 in PyTorch
ON_GPU = 4                                      # times as long is the first axis there


def computed(case: OpCase, library: Any) -> Callable[..., list[Any]]:
    """What computes a case with a library: its result, or the gradients by its float inputs."""
    def run(*inputs: Any) -> list[Any]:
        if not case.trained:
            return [case.compute(library, *inputs)]
        leaves = [x.detach() for x in inputs]
        trained = [x for x in leaves if x.is_floating_point()]
        for leaf in trained:
            leaf.requires_grad_()
        case.compute(library, *leaves).sum().backward()
        return [leaf.grad for leaf in trained]
    return run


def difference(mine: Any, theirs: Any) -> float:
    """The largest difference, as a part of the largest number; of other shapes infinity."""
    a, b = np.asarray(mine.double().numpy()), theirs.double().cpu().numpy()
    return float("inf") if a.shape != b.shape else float(np.max(np.abs(a - b)) / (np.max(np.abs(b)) + 1e-9))


def times(runs: Sequence[Callable[[], object]], waits: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of a call of each, all taking turns; `waits` wait for what was started."""
    best, counts = [float("inf")] * len(runs), list[int]()
    for run, wait in zip(runs, waits):
        run()
        wait()
        start = time.perf_counter()
        run()
        wait()
        counts.append(max(1, min(MOST_CALLS, int(ROUND / (time.perf_counter() - start)))))
    for _ in range(ROUNDS):
        for i, (run, wait, count) in enumerate(zip(runs, waits, counts)):
            time.sleep(SETTLING)
            run()
            wait()
            start = time.perf_counter()
            for _ in range(count):
                run()
            wait()
            best[i] = min(best[i], (time.perf_counter() - start) / count)
    return best


def measured(case: OpCase, device: str, times_longer: int) -> tuple[float, float, float, float]:
    """Seconds of a call, ours and PyTorch's; of our first one; and how far the results differ."""
    rng = np.random.default_rng(0)
    arrays = [each.array(rng, times_longer) for each in case.inputs]
    there = "cuda" if device == "CUDA" else "cpu"
    given = [ours.from_numpy(a).to(device).realize() for a in arrays]
    theirs = [torch.from_numpy(a).to(there) for a in arrays]
    run, reference = computed(case, ours), computed(case, torch)
    start = time.perf_counter()
    for result in run(*given):
        result.realize()
    Device[device].synchronize()
    first = time.perf_counter() - start
    step = TinyJit(lambda *inputs: [result.realize() for result in run(*inputs)])
    for _ in range(3):
        results = step(*given)
    differs = max(difference(*pair) for pair in zip(results, reference(*theirs)))
    waits = [Device[device].synchronize, torch.cuda.synchronize if there == "cuda" else lambda: None]
    mine, other = times([lambda: step(*given), lambda: reference(*theirs)], waits)
    return mine, other, first, differs


def row(name: str, figures: tuple[float, float, float, float]) -> str:
    """A row of the table."""
    mine, theirs, first, differs = figures
    remark = f"differs by {differs:.0e}" if differs > DIFFERS else ""
    cells = [name, f"{mine * 1e6:.0f}", f"{theirs * 1e6:.0f}", f"{theirs / mine:.2f}", f"{first:.2f}", remark]
    return f"| {' | '.join(cells)} |"


def measure_random(device: str, count: int, seed: int, seconds: float, only: str) -> None:
    """Measure cases with random shapes; print those that are slower than PyTorch, the slowest first, and the mean."""
    found: list[tuple[str, tuple[float, float, float, float]]] = []
    start = time.perf_counter()
    for case in random_cases(seed, count, 16 if device == "CUDA" else 1):
        if time.perf_counter() - start > seconds:
            break
        name = f"gradient: {case.name}" if case.trained else case.name
        if only not in name:
            continue
        try:
            found.append((name, measured(case, device, 1)))
        except Exception as error:                # a case that fails is a finding like a slow one: the others go on
            print(f"| {name} | failed: {type(error).__name__}: {str(error)[:300]} |", flush=True)
    found.sort(key=lambda each: each[1][1] / each[1][0])
    for name, figures in found:
        if figures[1] < figures[0] or figures[3] > DIFFERS:
            print(row(name, figures), flush=True)
    if found:
        ratio = math.exp(sum(math.log(figures[1] / figures[0]) for _, figures in found) / len(found))
        print(f"{len(found)} of {count} cases measured; geometric mean of the ratios {ratio:.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="CPU", choices=["CPU", "CUDA"])
    parser.add_argument("--only", default="", help="cases whose name contains a text")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N cases with random shapes instead")
    parser.add_argument("--seed", type=int, default=0, help="of the random shapes")
    parser.add_argument("--seconds", type=float, default=600, help="after which no further random case is measured")
    options = parser.parse_args(arguments)
    print("| op | ours, us | torch, us | ratio | first call, s | |\n|---|---|---|---|---|---|")
    if options.random:
        return measure_random(options.device, options.random, options.seed, options.seconds, options.only)
    chosen = {f"gradient: {case.name}" if case.trained else case.name: case for case in CASES}
    chosen = {name: case for name, case in chosen.items() if options.only in name}
    if not chosen:
        parser.error(f"no op's name contains {options.only!r}; without --only, all are measured and named")
    for name, case in chosen.items():
        print(row(name, measured(case, options.device, ON_GPU if options.device == "CUDA" else 1)), flush=True)


if __name__ == "__main__":
    main()
