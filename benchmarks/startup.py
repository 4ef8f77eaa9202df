"""Measure the time to the first result, cold and in a second process, and peak memory. In: a case. Out: a `Start` per
framework.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frameworks import Framework
from benchmarks.measure import not_yet
from benchmarks.peers import ROOT, environment, kill_all

__all__ = ["STARTS", "Failed", "Start", "alone", "measure_start"]

STARTS: dict[str, str] = {
    "start-sum": "(a + b).sum().item()",
    "start-mlp": "first MLP step",
    "start-cnn": "first MNIST CNN step, batch 128",
    "start-resnet18": "first ResNet-18 step, batch 8",
}
PATIENCE = 8.0      # seconds: what took longer once is not repeated


@dataclass
class Start:
    """Seconds of the import and from there to the first result, with empty caches (cold) and in a second process."""
    status: str = "ok"
    imported: float = 0.0
    cold: float = 0.0
    warm: float | None = None
    peak: float = 0.0       # bytes: the process at its largest
    before: float = 0.0     # bytes: after the import


class Failed(Exception):
    """A fresh process ended without an answer; says how."""


def alone(command: list[str], variables: dict[str, str], limit: float) -> dict[str, float]:
    """Run `python -m command` in a fresh process; what its last line says, as JSON."""
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=variables, text=True,
                               start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"timed out ({limit:g} s)") from None
    finally:
        kill_all(process)
    if process.returncode == 0:
        return json.loads(output.strip().splitlines()[-1])
    # a traceback's last unindented line with a colon names the error; an error of ours goes on for several lines
    lines = [line for line in errors.splitlines() if line and not line[0].isspace()]
    after = [n for n, line in enumerate(lines) if line.startswith("Traceback")]
    raise Failed(next(iter(lines[after[-1] + 1:] if after else lines[-1:]), f"exit status {process.returncode}"))


def _run(framework: Framework, case: str, caches: Path, threads: int, limit: float) -> dict[str, float]:
    try:
        return alone(["benchmarks.first", framework.name, case], environment(caches, threads), limit)
    except Failed as problem:
        words = str(problem)
        if words.startswith("timed out"):
            raise
        lacking = not_yet(framework.name, words.split(":")[0].rsplit(".")[-1], words)
        raise Failed(f"{'not yet' if lacking else 'failed'}: {words}") from None


def measure_start(name: str, framework: Framework, folder: Path, *, repeats: int, threads: int, limit: float) -> Start:
    """Run fresh processes, each cold one with empty caches of its own, then as many warm ones; medians."""
    case = name.removeprefix("start-")
    start = Start()
    cold: list[dict[str, float]] = []
    warm: list[dict[str, float]] = []
    caches = folder / f"{framework.name}-{name}"
    try:
        for _ in range(repeats):
            shutil.rmtree(caches, ignore_errors=True)
            cold.append(_run(framework, case, caches, threads, limit))
            if cold[-1]["first"] > PATIENCE:
                break
        for _ in range(repeats if cold[-1]["first"] <= PATIENCE else 1):
            warm.append(_run(framework, case, caches, threads, limit))
    except Failed as problem:
        if not cold:
            start.status = str(problem)
            return start
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    middle = lambda runs, key: statistics.median(run[key] for run in runs)
    start.imported, start.cold = middle(cold + warm, "import"), middle(cold, "first")
    start.warm = middle(warm, "first") if warm else None
    start.peak, start.before = middle(cold + warm, "peak"), middle(cold + warm, "before")
    return start
