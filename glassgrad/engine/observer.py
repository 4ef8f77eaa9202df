"""Tell observers what the engine does. In: schedules made, kernels run. Out: calls of `Observer`'s methods.

The profiler (profile.py) and the visualizer are observers. While the list `observers` is empty, which the engine
checks, nothing of this file runs. Does not know what observers do with what they are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

from glassgrad.base.settings import settings
from glassgrad.compiler.pipeline import Pass, watched

if TYPE_CHECKING:
    from glassgrad.compiler.schedule.kernels import Item, Schedule
    from glassgrad.engine.schedule_key import NormalizedGraph
    from glassgrad.runtime.backend import Stopwatch


class Launches(Protocol):
    """Launches that run together: a `CompiledSchedule`, or a jitted call (`Replay`)."""
    items: list[Item]
    programs: list[Any]
    costs: Callable[[], list[tuple[int, int]]]      # the operations and bytes of each, with the sizes of the last run

    def stopwatches(self) -> list[Stopwatch]:
        """Return a stopwatch for each plan, in order."""


class Observer:
    """A receiver of what the engine does; override the methods that you need."""
    every_run = True            # whether to time each kernel of each run also on devices where that costs time

    def passed(self, each: Pass, work: Any) -> None:
        """Called after a pass of the compiler has run on a graph that is being scheduled."""

    def prepared(self, normal: NormalizedGraph, ready: Any, times: tuple[int, int, int]) -> None:
        """Called after a schedule was made and compiled. `times`: when scheduling began, when compiling began, when it
        ended."""

    def ran(self, what: Launches, times: tuple[int, int], kernels: Callable[[], list[int]]) -> None:
        """Called after kernels ran between the two `times`; `kernels()` returns the nanoseconds of each, if they were
        measured."""


observers: list[Observer] = []        # changed by `observe` and `ignore` only
_start_recording: Callable[[], None] | None = None


def when_viz_is_set(start: Callable[[], None]) -> None:
    """Register a function that is called before a graph is scheduled while VIZ is set."""
    global _start_recording
    _start_recording = start


def observe(observer: Observer) -> None:
    """Start telling an observer."""
    observers.append(observer)


def ignore(observer: Observer) -> None:
    """Stop telling an observer."""
    observers[:] = [o for o in observers if o is not observer]


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Tell an observer what happens inside the block."""
    observe(observer)
    try:
        yield
    finally:
        ignore(observer)


def prepare_observed(normal: NormalizedGraph, make_schedule: Callable[[], Schedule],
                     compile: Callable[[Schedule], Any]) -> Any:
    """Schedule and compile a graph, and tell observers how long each took."""
    if settings.VIZ and _start_recording is not None:
        _start_recording()
    now = list(observers)
    told = 0                                # nanoseconds that observers took, which do not count as scheduling

    def passed(each: Pass, work: Any) -> None:
        nonlocal told
        before = perf_counter_ns()
        for observer in now:
            observer.passed(each, work)
        told += perf_counter_ns() - before

    start = perf_counter_ns()
    with watched(passed):
        planned = make_schedule()
    scheduled = perf_counter_ns()
    ready = compile(planned)
    times = start + told, scheduled, perf_counter_ns()
    for observer in now:
        observer.prepared(normal, ready, times)
    return ready


def run_timed(what: Launches) -> bool:
    """Run launches whose addresses are bound, and time each kernel; return whether a check ended the run."""
    watches, ended = what.stopwatches(), False
    every_run = any([observer.every_run for observer in observers])
    start = perf_counter_ns()
    for watch in watches:
        if watch.run(every_run):
            ended = True
            break
    times = start, perf_counter_ns()
    tell_ran(what, times, lambda: [one for watch in watches for one in watch.latest])
    return ended


def tell_ran(what: Launches, times: tuple[int, int], kernels: Callable[[], list[int]]) -> None:
    """Tell observers that kernels ran."""
    for observer in list(observers):
        observer.ran(what, times, kernels)
