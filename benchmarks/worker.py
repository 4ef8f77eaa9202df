"""Run one framework in a process: `python -m benchmarks.worker MODULE`. In: JSON requests. Out: answers, a line each.

MODULE holds `VERSION`, `build(workload, data) -> step` (a call of `step()` does the work once, waits for it and
returns the result) and `to_arrays(result) -> list of NumPy arrays`. Requests:

    {"do": "prepare", "workload": NAME, "results": FILE}     build, call three times, write what came out
    {"do": "batch", "seconds": S}                            call for S seconds: the time of each call
    {"do": "drop"}                                           forget the workload

The first answer comes without a request: {"version": ...}. After a failure the answer is {"error": one line, "kind":
name of the exception}.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workloads import PEAKS, TABLE

__all__ = ["digest", "one_line"]

CHECKED_CALLS = 3       # a training step changes its weights, a jit captures in the first calls and replays later
SAMPLES = 65_536
MOST_CALLS = 2_000


def one_line(problem: BaseException) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0]}" if lines else type(problem).__name__


def digest(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Enough of some arrays to compare them: for each its shape, evenly spread values, and the first two moments."""
    parts: list[np.ndarray] = []
    for array in arrays:
        flat = np.asarray(array).reshape(-1)
        places = np.linspace(0, flat.size - 1, min(flat.size, SAMPLES)).astype(np.int64)
        wide = flat.astype(np.float64)
        moments = [wide.mean(), np.sqrt((wide * wide).mean())] if flat.size else [0.0, 0.0]
        parts += [np.array(np.shape(array)), wide[places], np.array(moments)]
    return parts


class Worker:
    """Holds one framework's module and at most one workload."""

    def __init__(self, module: Any):
        self.module = module
        self.step: Callable[[], Any] | None = None
        self.slow = False

    def prepare(self, workload: str, results: str) -> dict[str, Any]:
        self.drop()
        spec = TABLE.get(workload) or PEAKS.get(workload)
        step = self.module.build(spec, spec.data() if spec else {})
        arrays: list[np.ndarray] = []
        for _ in range(CHECKED_CALLS):
            began = time.perf_counter()
            result = step()
            self.slow = time.perf_counter() - began > 0.5
            arrays += [np.array(array) for array in self.module.to_arrays(result)]
            del result
        np.savez(results, *digest(arrays))
        self.step = step
        return {}

    def batch(self, seconds: float) -> dict[str, Any]:
        step, clock = self.step, time.perf_counter
        assert step is not None, "a batch needs a prepared workload"
        times: list[float] = []
        gc.collect()
        gc.disable()
        try:
            if not self.slow:
                step()          # other processes had the caches and the cores meanwhile
            end = clock() + seconds
            while len(times) < MOST_CALLS:
                began = clock()
                step()
                now = clock()
                times.append(now - began)
                if now >= end:
                    break
        finally:
            gc.enable()
        return {"times": times}

    def drop(self) -> dict[str, Any]:
        self.step = None
        gc.collect()
        return {}


def die_with_parent() -> None:
    """A stopped process outlives its parent for ever; ask Linux to end it instead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))     # PR_SET_PDEATHSIG


def main(name: str) -> None:
    die_with_parent()
    # Answers go to the real standard output; whatever a framework prints goes where errors go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        sys.path.insert(0, os.getcwd())
        worker = Worker(importlib.import_module(name))
    except Exception as problem:
        answer({"error": one_line(problem), "kind": type(problem).__name__})
        return
    answer({"version": worker.module.VERSION})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(getattr(worker, request.pop("do"))(**request))
        except Exception as problem:
            answer({"error": one_line(problem), "kind": type(problem).__name__})
            worker.drop()


if __name__ == "__main__":
    main(sys.argv[1])
