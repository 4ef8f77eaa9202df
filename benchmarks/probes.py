"""Measure what concerns glassgrad alone, beside the workloads. In: what a module answered. Out: its line in the page.

Each probe is a module that measures when it is run in a fresh process and prints JSON; its docstring says how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.report import limited

__all__ = ["Probe", "PROBES"]

Answer = dict[str, float]
BARRIER_GOAL, DISPATCH_GOAL, OPENING_GOAL = 2e-6, 15e-6, 0.1       # seconds


@dataclass(frozen=True)
class Probe:
    """A module to run, and how its answer reads."""
    module: str
    words: Callable[[Answer], str]


def barrier_words(measured: Answer) -> str:
    return f"{limited(measured['seconds'], BARRIER_GOAL)} until {measured['workers']:.0f} workers have met"


def dispatch_words(measured: Answer) -> str:
    return f"{limited(measured['seconds'], DISPATCH_GOAL)} a call of the jitted MLP step, its sizes all 2"


def opening_words(measured: Answer) -> str:
    return (f"{limited(measured['opened'], OPENING_GOAL)} for a safetensors file of {measured['bytes'] / 1e6:.0f} MB, "
            f"for which the process grows by {measured['grown'] / 1e6:.1f} MB")


PROBES: dict[str, Probe] = {
    "barrier": Probe("benchmarks.barrier", barrier_words),
    "dispatch": Probe("benchmarks.dispatch", dispatch_words),
    "opening": Probe("benchmarks.opening", opening_words),
}
