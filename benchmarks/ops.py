"""Ops of many kinds beside PyTorch: `python -m benchmarks.ops --device CPU --only pad`. Needs numpy and torch.

Each case of op_cases.py is one expression. PyTorch runs it eagerly; here it is compiled by `TinyJit`, through the
adapter `glassgrad.torch`. Both take turns; a ratio is PyTorch's time over ours, each the best of the rounds, calls
included: above 1, ours is faster. Results are compared first, and what differs is said. It is a search for ops that
are unexpectedly slow or wrong, not a measurement of kernels: a jitted call costs 10 to 20 us by itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import glassgrad.torch as ours
from benchmarks.op_cases import CASES, OpCase
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="CPU", choices=["CPU", "CUDA"])
    parser.add_argument("--only", default="", help="cases whose name contains a text")
    options = parser.parse_args(arguments)
    chosen = {f"gradient: {case.name}" if case.trained else case.name: case for case in CASES}
    chosen = {name: case for name, case in chosen.items() if options.only in name}
    if not chosen:
        parser.error(f"no op's name contains {options.only!r}; without --only, all are measured and named")
    print("| op | ours, us | torch, us | ratio | first call, s | |\n|---|---|---|---|---|---|")
    for name, case in chosen.items():
        mine, theirs, first, differs = measured(case, options.device, ON_GPU if options.device == "CUDA" else 1)
        remark = f"differs by {differs:.0e}" if differs > DIFFERS else ""
        figures = [f"{mine * 1e6:.0f}", f"{theirs * 1e6:.0f}", f"{theirs / mine:.2f}", f"{first:.2f}", remark]
        print("|", " | ".join([name, *figures]), "|", flush=True)


if __name__ == "__main__":
    main()
