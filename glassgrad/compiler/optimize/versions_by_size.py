"""Make versions of a loop nest for ranges of a run-time bound. In: a nest, its bound, ranges. Out: nests, one of which
runs.

    TASK i below stop: S  ->  if stop <= 16: TASK i in 16 below stop: S
                              if 16 < stop <= 64: TASK i in 64 below stop: S
                              if stop > 64: TASK i below stop: S

Each `if` is a TASK loop over `once` whose trip count is 1 or 0. When a version has been optimized, this trip count
becomes a factor of the bound of its own tasks (`run_only_if`). Does not know which version is faster for which range.
"""

from __future__ import annotations

from bisect import bisect_left

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import (add, bounds, divide, index, multiply, operation, substitute_index,
                                                    times)
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.lower.loops import (LOOP, ONCE, TASK, For, Kernel, Statement, counter, in_loops, nodes_in,
                                            numbered_loops, task_loops, version_of, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves


def replace_bound(body: list[Statement], stop: UOp, size: int, new_stop: UOp | None) -> list[Statement]:
    """Give each loop that ends at `stop` this size, and the run-time bound `new_stop` (None: no bound)."""
    loops, inner = task_loops(body)
    ends = {f.range: counter(f.range.arg.name, size) for f in (*loops, *walk(inner))
            if isinstance(f, For) and f.stop is stop}
    outside, inner = [For(f.range, TASK, [], f.stop) for f in loops], moves.rebuild(inner, ends)
    for f in (*outside, *walk(inner)):
        if isinstance(f, For) and f.range in ends:
            f.range, f.stop = ends[f.range], new_stop
    return in_loops(outside, inner)


def version_for_range(body: list[Statement], stop: UOp, lower: int, upper: int) -> list[Statement]:
    """Make the version of a nest that runs only where lower <= stop <= upper. The variable that `stop` depends on gets
    narrower bounds, which follow from these, so that conditions on it are decided at compile time. Once the version is
    optimized, `with_kernel_arguments` puts the original variable back."""
    [value] = [n for n in stop.toposort() if isinstance(n.arg, Measure)]
    low, high = bounds(value)

    def stop_at(number: int) -> int:
        return bounds(substitute_index(stop, {value: index(number)}, {}))[0]

    values = range(low, high + 1)
    symbol = value.arg.symbol._replace(low=low + bisect_left(values, lower, key=stop_at),
                                       high=low - 1 + bisect_left(values, upper + 1, key=stop_at))
    narrowed = UOp(value.op, value.dtype, (), value.arg._replace(symbol=symbol))
    [new_stop] = [substitute_index(stop, {value: narrowed}, {})]
    return replace_bound(moves.rebuild(body, {value: narrowed}), new_stop, upper, new_stop)


def with_kernel_arguments(phase: list[Statement], kernel: Kernel) -> list[Statement]:
    """Put the kernel's own arguments back in place of variables with narrower bounds."""
    narrowed = [n for n in nodes_in(phase) if isinstance(n.arg, Measure)]
    return moves.rebuild(phase, {n: kernel.params[n.arg.slot] for n in narrowed if n is not kernel.params[n.arg.slot]})


def guarded_versions(versions: dict[int, list[Statement]], stop: UOp, lower: int = 0) -> list[list[Statement]]:
    """Guard versions, given as {greatest bound: nest} in increasing order, so that one of them runs: the first whose
    greatest bound is not below `stop`. None runs for stop <= lower. With lower = -1, the first version also runs for
    stop = 0: then it stores sums of nothing, which are 0."""
    out = list[list[Statement]]()
    for upper, version in versions.items():
        above, beyond = (index(1) if n < 0 else operation(o.MIN, divide(stop, n + 1), index(1)) for n in (lower, upper))
        out.append([For(ONCE, TASK, version, times(above, add(index(1), multiply(beyond, -1))))])
        lower = upper
    return out


def run_only_if(runs: UOp | None, phase: list[Statement]) -> list[Statement]:
    """Run the phase only where `runs` is 1; where it is 0, the loop that numbers the tasks has trip count 0."""
    if runs is None:
        return phase
    loops, inner = task_loops(phase)
    if not loops:
        before, inner = version_of(phase)
        return [For(ONCE, LOOP, inner, runs if before is None else times(before, runs))]
    first = numbered_loops(phase)[0][0]
    stop = times(first.stop or index(first.range.arg.size), runs)
    return in_loops([For(f.range, f.kind, [], stop if f is first else f.stop) for f in loops], inner)
