"""Divide a graph that has all steps of a loop whose value grows. In: a graph. Out: what to compute, step by step.

    for _ in range(40):
        tokens = tokens.cat(following(tokens), dim=1)      # nothing is read before the loop ends

The graph has 40 models of 40 lengths, and none of its kernels serves two of them. Computed one after the other, as if
the loop had read each value, the steps are graphs of one program with changing sizes, which compiles three times.

A value ends a step if everything after it depends on what came before through this value alone, apart from memory,
numbers, and values that most of the graph shares, such as weights that are not computed yet. Does not compute anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.engine.schedule_key import NormalizedGraph

LEAST_NODES = 600        # smaller graphs compile fast enough as they are
_LEAST_STEPS = 4         # a program serves all sizes from its third one on
_LEAST_STEP = 40         # nodes of a step; a step also has a reduction, else storing its value costs more than it saves
_VIEWS = frozenset((*o.MOVEMENT, o.DETACH))
_REDUCING = frozenset((*o.REDUCE, o.FORMULA))


def growing_steps(normal: NormalizedGraph) -> list[list[UOp]]:
    """Return the values to compute together, step by step, up to the first sink; the other sinks are computed in the
    steps whose values they read. Empty if there is no such loop."""
    if len(normal.order) < LEAST_NODES or normal.symbols or any(n.op is o.GRADIENT for n in normal.order):
        return []
    order = toposort(normal.sinks[:1])
    last_use = {source: at for at, node in enumerate(order) for source in node.src}      # a later one replaces it
    leaves: set[UOp] = set()                  # memory and numbers, and views of them
    pending: set[UOp] = set()                 # computed values that a later node reads, without shared ones
    sinks = set(normal.sinks)
    steps: list[list[UOp]] = []
    ends: list[int] = []                      # where in the order each of them ends
    also: list[UOp] = []                      # what else is computed in this step
    before: UOp | None = None
    begun = reductions = 0
    for at, node in enumerate(order):
        reductions += node.op in _REDUCING
        pending.difference_update([s for s in node.src if last_use[s] == at])
        end = last_use.get(node, at)
        if not node.src or node.op in _VIEWS and node.src[0] in leaves:
            leaves.add(node)
        elif end - at > len(order) // 2 or node in sinks:
            also.append(node)
        elif end > at:
            pending.add(node)
        if pending == {node} and len(steps) == 1 and not reductions and at - begun < _LEAST_STEP:
            steps[0][-1:] = [*also, node]     # the first step ends at tokens.cat(token), not at the token
            ends[0], also, before, begun = at, [], node, at
        if pending == {node} and reductions and at - begun >= _LEAST_STEP:
            grows = before is None or _grows(before, node)
            if not grows and len(steps) > 1:
                continue
            if not grows:                     # that was a value within the first step
                also = steps.pop() + also
                ends.pop()
            steps.append([*also, node])
            ends.append(at)
            also, before, begun, reductions = [], node, at, 0
    if len(steps) < _LEAST_STEPS:
        return []
    steps.append(also)
    positions = {node: at for at, node in enumerate(order)}
    for sink in normal.sinks:
        if sink not in positions:
            read = toposort([sink], lambda n: () if n in positions else n.src)
            steps[bisect_left(ends, max([positions.get(n, 0) for n in read]))].insert(0, sink)
    return [step for step in steps if step]


def over(nodes: Sequence[UOp], known: Mapping[UOp, UOp]) -> list[UOp]:
    """Return nodes over the values that were computed for earlier steps."""
    new: dict[UOp, UOp] = {}
    for below in toposort(nodes, lambda n: () if n in known else n.src):
        new[below] = known[below] if below in known else below.over(tuple([new[s] for s in below.src]))
    return [new[node] for node in nodes]


def _grows(before: UOp, after: UOp) -> bool:
    """Return whether a value has the axes of an earlier one, and one of them is longer."""
    changed = [(m, n) for m, n in zip(before.shape, after.shape) if m != n]
    return len(before.shape) == len(after.shape) and len(changed) == 1 and changed[0][0] < changed[0][1]
