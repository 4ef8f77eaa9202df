"""Find equal steps in a graph. In: a graph. Out: pairs of nodes that may be the same value in two steps; and for such a
pair all steps, compared node by node (`EqualSteps`). See python_loops.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.uop import joined

LEAST_STEPS = 3          # loops with fewer steps are left as they are
FEW = 200                # the most nodes of a step that are computed from rows alone and that other steps read too


# -- guess ---------------------------------------------------------------------------------------------------
def guesses(order: Sequence[UOp], sinks: Sequence[UOp]) -> Iterator[tuple[UOp, UOp]]:
    """Yield pairs of nodes that may be the same value in two steps, the node of the later step first."""
    depth: dict[UOp, int] = {}
    for node in order:
        depth[node] = 1 + max([depth[s] for s in node.src], default=0)
    path = [max(sinks, key=depth.__getitem__)]
    while path[-1].src:
        path.append(max(path[-1].src, key=depth.__getitem__))
    labels = [(n.op, n.dtype, n.shape, *[s.base for s in n.src if s.base.op is o.BUFFER]) for n in path]
    at: dict[object, list[int]] = {}
    for i, label in enumerate(labels):
        if path[i].op is o.FORMULA or path[i].op in o.REDUCE:
            at.setdefault(label, []).append(i)
    for places in at.values():
        for turns in (1, 2):                     # how many nodes of a step look the same
            if len(places) > 2 * turns and places[2 * turns] - places[turns] == places[turns] - places[0]:
                top, period = places[0], places[turns] - places[0]
                while top and labels[top - 1] == labels[top - 1 + period]:
                    top -= 1
                yield path[top], path[top + period]
    for node in reversed(order):
        values = values_of_steps(node)
        if values is not None:
            first, last = values.values[:2], values.values[-2:]
            yield (last[1], last[0]) if depth[last[1]] > depth[first[0]] else (first[0], first[1])


class JoinedValues(NamedTuple):
    """A concatenation or a sum of several values."""
    values: list[UOp]
    so_far: list[UOp]            # for each value, the node that joins it and all values before it
    axis: int | None             # the axis of the concatenation; None for a sum


def values_of_steps(node: UOp) -> JoinedValues | None:
    """Return the values that a node joins, if there are at least `LEAST_STEPS`."""
    found = _concatenated(node) if node.op is o.WHERE else _added(node) if node.op is o.ADD else None
    return None if found is None or len(found.values) < LEAST_STEPS else found


def _added(node: UOp) -> JoinedValues | None:
    """Return the terms of a sum."""
    values: list[UOp] = []
    so_far: list[UOp] = []
    while node.op is o.ADD and node.src[1].shape == node.shape and node.dtype.kind == "f":
        values.append(node.src[1])
        so_far.append(node)
        node = node.src[0]
    if not values or node.shape != values[0].shape:
        return None
    return JoinedValues([node, *values[::-1]], [node, *so_far[::-1]], None)


def _concatenated(node: UOp) -> JoinedValues | None:
    """Return the parts of a concatenation."""
    values: list[UOp] = []
    so_far: list[UOp] = []
    axis = 0
    while node.op in (o.WHERE, o.PAD):
        padded = node.src[1] if node.op is o.WHERE else node
        if padded.op is not o.PAD:
            return None
        axis = next(i for i, pair in enumerate(padded.arg.padding) if pair != (0, 0))
        if not values and padded.arg.padding[axis][1]:
            return None                          # the first parts of a longer concatenation
        values.append(padded.src[0])
        so_far.append(node)
        if node is padded:
            break
        node = node.src[2]
    found = JoinedValues(values[::-1], so_far[::-1], axis)
    return found if joined(found.values, axis) is so_far[0] else None


# -- compare -------------------------------------------------------------------------------------------------
class StepRow(NamedTuple):
    """What the last step reads of a sequence: a SHRINK of one row, or a CONST that counts steps."""
    axis: int | None             # the axis of the sequence; None for a CONST
    back: Any                    # what each step back adds to the row's index, or to the number


def _row(node: UOp, before: UOp) -> StepRow | None:
    """Return the sequence of which two nodes are neighbouring rows, or the count of which they are neighbouring
    numbers; None if they are neither."""
    if node.op is o.CONST and before.op is o.CONST and node.dtype is before.dtype and node.dtype.kind in "iu":
        return StepRow(None, before.arg - node.arg)
    if node.op is not o.SHRINK or before.op is not o.SHRINK or node.src[0] is not before.src[0]:
        return None
    pairs = list(zip(node.arg.bounds, before.arg.bounds))
    different = [axis for axis, (one, other) in enumerate(pairs) if one != other]
    if len(different) != 1:
        return None
    (start, stop), (other, other_stop) = pairs[different[0]]
    if stop - start != 1 or other_stop - other != 1 or abs(start - other) != 1:
        return None
    return StepRow(different[0], other - start)


def _is_row(row: StepRow, node: UOp, other: UOp, back: int) -> bool:
    """Return whether a step reads this row in the place where the last step, `back` steps later, reads `node`."""
    if row.axis is None:
        return other.op is o.CONST and other.dtype is node.dtype and other.arg == node.arg + row.back * back
    bounds = list(node.arg.bounds)
    start = bounds[row.axis][0] + row.back * back
    bounds[row.axis] = (start, start + 1)
    return other.op is o.SHRINK and other.src[0] is node.src[0] and other.arg.bounds == tuple(bounds)


def _alike(node: UOp, other: UOp) -> bool:
    """Return whether two nodes compute the same function of their sources."""
    if node.op is not other.op or node.dtype is not other.dtype or len(node.src) != len(other.src):
        return False
    if node.op is o.DETACH:
        return len(node.src) == 1 or bool(node.arg.name) and node.arg.name == other.arg.name
    return bool(node.arg == other.arg) and node.op not in (o.BUFFER, o.CONST, o.GRADIENT)


def _compared_steps(last: UOp, before: UOp, ends: Collection[UOp], known: Mapping[UOp, UOp], most: int = 1 << 30) -> \
        tuple[dict[UOp, UOp], dict[UOp, StepRow], list[UOp]] | None:
    """Compare the last step with the one before it. Return {node of the last step: the same node one step before},
    those of these nodes that are rows, and the states, where the step ends: nodes among `ends` that are not computed
    from rows alone. `known` gives pairs that were found before. None if the two steps differ, or have more than `most`
    nodes."""
    pairs: dict[UOp, UOp] = {}
    rows: dict[UOp, StepRow] = {}
    states: list[UOp] = []
    waiting = [(last, before)]
    while waiting:
        node, other = waiting.pop()
        expected = known.get(node) or pairs.get(node)
        if expected is not None or node is other:
            if (expected or node) is not other:
                return None
            continue
        pairs[node] = other
        row = _row(node, other)
        if row is not None:
            rows[node] = row
        elif node in ends:
            of_rows = _compared_steps(node, other, (), {}, FEW)
            if of_rows is None:
                states.append(node)
            else:
                pairs.update(of_rows[0])
                rows.update(of_rows[1])
        elif len(pairs) > most or not _alike(node, other):
            return None
        else:
            waiting.extend(zip(node.src, other.src))
    return pairs, rows, states


def equal_steps(last: UOp, before: UOp) -> EqualSteps | None:
    """Return the loop in which these two nodes are the same value of two steps, the later one first; None if there is
    none."""
    earlier = set(toposort([before]))
    found = None if last in earlier else _compared_steps(last, before, earlier, {})
    if found is None:
        return None
    pairs, rows, states = found
    later = {other: node for node, other in pairs.items() if node not in earlier}
    if not states or any(s not in later for s in states):
        return None
    loop = EqualSteps(states, [later[s] for s in states], rows)
    return loop if len(loop.steps) >= LEAST_STEPS else None


class EqualSteps:
    """The steps of a loop: the graph of the last step, and its nodes in each of the others."""

    def __init__(self, states: list[UOp], updates: list[UOp], rows: dict[UOp, StepRow]):
        self.states, self.updates, self.rows = states, updates, rows      # nodes of the last step
        self.varying = {*states, *rows}                                   # its nodes that differ between steps
        self.order: list[UOp] = []                                        # those without states and rows, in order
        for node in toposort(updates, lambda n: () if n in self.varying else n.src):
            if node not in self.varying and any([s in self.varying for s in node.src]):
                self.varying.add(node)
                self.order.append(node)
        self.steps = [{n: n for n in self.varying}]                       # the last step first
        now = states
        while True:
            found = self.compared(zip(updates, now), len(self.steps), {})
            if found is None or any(s not in found for s in states):
                break
            self.steps.append(found)
            now = [found[s] for s in states]
        self.starts = now

    def compared(self, roots: Iterable[tuple[UOp, UOp]], back: int, known: dict[UOp, UOp]) -> dict[UOp, UOp] | None:
        """Return {node of the last step: the same node `back` steps earlier}; None if that step differs. `known` gives
        pairs that were found before."""
        same: dict[UOp, UOp] = {}
        states, rows, varying = set(self.states), self.rows, self.varying
        waiting = list(roots)
        while waiting:
            node, other = waiting.pop()
            expected = same.get(node) or known.get(node)
            if expected is not None or node not in varying:
                if (expected or node) is not other:
                    return None
                continue
            same[node] = other
            if node in states:
                if (node.shape, node.dtype) != (other.shape, other.dtype) or other.device not in (node.device, None):
                    return None
            elif node in rows:
                if not _is_row(rows[node], node, other, back):
                    return None
            elif not _alike(node, other):
                return None
            else:
                waiting.extend(zip(node.src, other.src))
        return same

    def extend_by(self, values: Sequence[UOp]) -> bool:
        """Return whether the values, from the last one back, are the same value of the last step, of the one before,
        and so on to the first step. If they are, their graph is added to the steps."""
        found = _compared_steps(values[-1], values[-2], (), self.steps[1]) if len(values) >= len(self.steps) else None
        if found is None:
            return False
        before, (new, rows, _) = (self.varying, self.rows), found
        self.varying, self.rows = self.varying | new.keys(), {**self.rows, **rows}
        added = [{n: n for n in new}]
        for back in range(1, len(self.steps)):
            same = self.compared([(values[-1], values[-1 - back])], back, self.steps[back])
            if same is None:
                self.varying, self.rows = before
                return False
            added.append(same)
        for step, more in zip(self.steps, added):
            step.update(more)
        order = toposort([values[-1]], lambda n: n.src if n in new and n not in rows else ())
        self.order += [n for n in order if n in new and n not in rows]
        return True
