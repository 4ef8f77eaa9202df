"""Time one workload in all frameworks. In: a workload's name and peers. Out: a `Row`. Does not know tables or files.

First each framework computes the result three times, and the results are compared: a wrong one is not timed. Then
rounds of short batches alternate (ours, a peer, ours, the next peer, ...), so that a change of the machine's speed
meets all alike. A ratio is the median, over the rounds, of a peer's batch against our batch just before it.
"""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frameworks import OURS
from benchmarks.peers import Peer, PeerFailure, TimedOut

__all__ = ["Timing", "Row", "measure", "compare", "read_digest", "explain", "not_yet"]

REFERENCES = ("torch", "jax", "tinygrad")       # who is believed when results differ


@dataclass
class Timing:
    """How one framework did: `status` is "ok" or what went wrong; seconds per call, with the middle half's ends."""
    status: str = "ok"
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    calls: int = 0
    ratio: float | None = None      # this framework's time over ours
    checked: bool = False           # compared with another framework


@dataclass
class Row:
    """One workload in all frameworks."""
    name: str
    timings: dict[str, Timing] = field(default_factory=dict)


def not_yet(framework: str, kind: str, message: str) -> bool:
    """Whether an error says that glassgrad lacks something, not that something in it is broken."""
    if framework != OURS:
        return False
    lacking = kind == "AttributeError" and re.search(r"module 'glassgrad|'Tensor'", message) is not None
    return lacking or kind in ("ImportError", "ModuleNotFoundError", "NotImplementedError")


def explain(name: str, problem: PeerFailure, limit: float) -> str:
    """What the table says about a framework that could not do a workload."""
    if isinstance(problem, TimedOut):
        return f"timed out ({limit:g} s)"
    return f"{'not yet' if not_yet(name, problem.kind, str(problem)) else 'failed'}: {problem}"


def compare(given: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> str:
    """"" when two digests (worker.digest) agree, else how they differ."""
    if len(given) != len(expected):
        return f"{len(given) // 3} results instead of {len(expected) // 3}"
    for number, (mine, right) in enumerate(zip(given, expected)):
        if number % 3 == 0:
            if mine.shape != right.shape or (mine != right).any():
                return f"shape {tuple(mine.tolist())} instead of {tuple(right.tolist())}"
            continue
        if (np.isfinite(mine) != np.isfinite(right)).any():
            return "nan or infinity in other places"
        scale = np.abs(right).max(initial=0.0, where=np.isfinite(right)) + 1e-30
        error = np.abs(mine - right).max(initial=0.0, where=np.isfinite(right)) / scale
        if error > tolerance:
            return f"off by {error:.1e} of the largest value"
    return ""


def read_digest(path: Path) -> list[np.ndarray]:
    """A digest that a worker wrote."""
    with np.load(path) as file:
        return [file[name] for name in file.files]


def _prepare(name: str, peers: dict[str, Peer], row: Row, folder: Path, limit: float) -> dict[str, float]:
    """Build the workload everywhere: the seconds each took. Failures go into the row."""
    spent: dict[str, float] = {}
    for peer_name, peer in peers.items():
        began = time.monotonic()
        row.timings[peer_name] = timing = Timing()
        try:
            peer.ask(limit, do="prepare", workload=name, results=str(folder / f"{peer_name}.npz"))
            spent[peer_name] = time.monotonic() - began
        except PeerFailure as problem:
            timing.status = explain(peer_name, problem, limit)
    return spent


def _check(row: Row, ready: list[str], folder: Path, tolerance: float) -> None:
    """Compare everybody's result with the first reference's; who differs is marked wrong."""
    reference = next((name for name in REFERENCES if name in ready), None)
    reference = reference or (ready[0] if len(ready) > 1 else None)
    if reference is None:
        return
    expected = read_digest(folder / f"{reference}.npz")
    for name in ready:
        timing = row.timings[name]
        difference = compare(read_digest(folder / f"{name}.npz"), expected, tolerance) if name != reference else ""
        timing.checked = len(ready) > 1
        if difference:
            timing.status = f"wrong result: {difference} (against {reference})"


def measure(name: str, peers: dict[str, Peer], folder: Path, *, tolerance: float, rounds: int, seconds: float,
            limit: float) -> Row:
    """Prepare, compare and time one workload. `limit` is what each framework may spend on it, in seconds."""
    row = Row(name)
    spent = _prepare(name, peers, row, folder, limit)
    _check(row, list(spent), folder, tolerance)
    active = [n for n in peers if row.timings[n].status == "ok"]
    times: dict[str, list[float]] = {n: [] for n in active}
    ratios: dict[str, list[float]] = {n: [] for n in active}

    def batch(peer_name: str) -> float | None:
        """The median of a new batch, or None when this framework has used up its time."""
        if peer_name not in active or (times[peer_name] and spent[peer_name] > limit):
            return None
        began = time.monotonic()
        try:
            answer = peers[peer_name].ask(max(limit - spent[peer_name], 1.0), do="batch", seconds=seconds)
        except PeerFailure as problem:
            active.remove(peer_name)
            if not times[peer_name] or not isinstance(problem, TimedOut):
                row.timings[peer_name].status = explain(peer_name, problem, limit)
            return None
        spent[peer_name] += time.monotonic() - began
        times[peer_name] += answer["times"]
        return statistics.median(answer["times"])

    others = [n for n in active if n != OURS]
    for _ in range(rounds):
        for other in others or active:
            ours = batch(OURS) if OURS in times else None
            theirs = batch(other) if other != OURS else None
            if ours and theirs:
                ratios[other].append(theirs / ours)
    for peer_name, samples in times.items():
        timing = row.timings[peer_name]
        if timing.status == "ok" and samples:
            timing.low, timing.median, timing.high = (float(q) for q in np.percentile(samples, (25, 50, 75)))
            timing.calls = len(samples)
            timing.ratio = statistics.median(ratios[peer_name]) if ratios[peer_name] else None
    for peer in peers.values():
        _drop(peer, limit)
    return row


def _drop(peer: Peer, limit: float) -> Any:
    if peer.process is not None:
        try:
            peer.ask(limit, do="drop")
        except PeerFailure:
            peer.end()
