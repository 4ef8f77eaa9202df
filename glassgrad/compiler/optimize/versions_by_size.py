"""Versions of a loop nest by a run-time bound. In: a nest, its bound, ranges of it. Out: nests, one of which runs.

    TASK i below stop: S  ->  if stop <= 16: TASK i in 16 below stop: S
                              if 16 < stop <= 64: TASK i in 64 below stop: S
                              if stop > 64: TASK i below stop: S

Each `if` is a TASK loop over `once` whose trip count is 1 or 0; an optimized version gets it as the bound of its own
tasks (`run_only_if`). Does not know what is faster for which range.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import add, divide, index, multiply, operation, times
from glassgrad.compiler.lower.loops import (LOOP, ONCE, TASK, For, Statement, around, counter, numbered_loops,
                                            task_loops, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves


def bounded(body: list[Statement], stop: UOp, most: int, now: UOp | None) -> list[Statement]:
    """The nest with each loop that ends at `stop` over `most` iterations, or as many of them as `now` says."""
    loops, inner = task_loops(body)
    ends = {f.range: counter(f.range.arg.name, most) for f in (*loops, *walk(inner))
            if isinstance(f, For) and f.stop is stop}
    outside, inner = [For(f.range, TASK, [], f.stop) for f in loops], moves.rebuild(inner, ends)
    for f in (*outside, *walk(inner)):
        if isinstance(f, For) and f.range in ends:
            f.range, f.stop = ends[f.range], now
    return around(outside, inner)


def one_of(versions: dict[int, list[Statement]], stop: UOp, least: int = 0) -> list[list[Statement]]:
    """The versions, by the largest bound of each, in order: each runs if that is the first that `stop` is not above.
    None runs where it is not above `least`; with -1, the first one does for a bound of 0 too: a sum of nothing is 0."""
    out = list[list[Statement]]()
    for most, version in versions.items():
        above, beyond = (index(1) if n < 0 else operation(o.MIN, divide(stop, n + 1), index(1)) for n in (least, most))
        out.append([For(ONCE, TASK, version, times(above, add(index(1), multiply(beyond, -1))))])
        least = most
    return out


def condition(body: list[Statement]) -> tuple[UOp | None, list[Statement]]:
    """The condition on which a version runs (an index that is 1 or 0; None: always), and its nest."""
    first = body[0]
    return (first.stop, first.body) if isinstance(first, For) and first.range is ONCE else (None, body)


def run_only_if(used: UOp | None, phase: list[Statement]) -> list[Statement]:
    """The phase, run only where `used` is 1: else the loop that bounds the number of its tasks has trip count 0."""
    if used is None:
        return phase
    loops, inner = task_loops(phase)
    if not loops:
        before, inner = condition(phase)
        return [For(ONCE, LOOP, inner, used if before is None else times(before, used))]
    first = numbered_loops(phase)[0][0]
    stop = times(first.stop or index(first.range.arg.size), used)
    return around([For(f.range, f.kind, [], stop if f is first else f.stop) for f in loops], inner)
