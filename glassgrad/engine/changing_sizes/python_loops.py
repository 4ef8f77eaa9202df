"""Replace loops written in Python by recurrences. In: sinks of a graph in which the steps of a loop are written out.
Out: the same values, computed by RECURRENCE nodes.

    for t in range(x.shape[1]):
        h = cell(x[:, t], h)
        outs.append(h)
    y = Tensor.stack(*outs, dim=1)

writes out the graph of a step once per step, so each length is another graph. As a recurrence it is one graph in which
the length is a size (compiler/graph/recurrence.py). A loop is found in three steps; the first two are in
equal_steps.py:

    guess     two nodes that may be the same value in two steps, on the longest path of the graph or next to each other
              in a concatenation. What the later node depends on and the earlier one does not is one step.
    compare   this step with the earlier ones, from the last one back, as long as they differ only in the state that
              they read and in the row of a sequence (x[:, 4], x[:, 3], ..). What the first of them reads is the start.
    replace   what other nodes read of the loop: concatenations and sums of a value of every step, and single values.

Nothing is assumed about nodes that were not compared. Of a step, only what depends on the state and is needed for the
next state is computed step by step; the rest is computed for all steps at once. Does not know devices or schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.batched import KNOWN, Batched
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.node import substitute
from glassgrad.compiler.graph.op_arguments import Iota, Param
from glassgrad.compiler.graph.recurrence import recurrence, states_before
from glassgrad.compiler.graph.uop import placed
from glassgrad.engine.changing_sizes.equal_steps import (LEAST_STEPS, EqualSteps, JoinedValues, StepRow, equal_steps,
                                                         guesses, values_of_steps)
from glassgrad.engine.schedule_key import NormalizedGraph

MOST_SINGLE = 4          # values of single steps that others may read; with more, the graph would depend on the length
MOST_GUESSES = 8
_STANDS_IN = -(1 << 21)  # the slot of the first PARAM that stands in for a state, a row or a leaf; the next are below


def _may_have_loops(order: Iterable[UOp]) -> bool:
    """Return whether several nodes of one op read the same value, as each step reads the weights. A quick test that is
    false for most graphs."""
    read: dict[tuple[UOp, o.Op], int] = {}
    for node in order:
        if len(node.src) > 1:
            for source in node.src:
                if source.op is not o.CONST:
                    count = read[source, node.op] = read.get((source, node.op), 0) + 1
                    if count >= LEAST_STEPS:
                        return True
    return False


class KnownLoops:
    """Graphs in which loops were found, with their replacements, so that a length that comes again is not searched
    again."""

    def __init__(self, most: int):
        self._most = most
        self._found: dict[Any, list[UOp]] = {}           # the replaced sinks, over PARAMs for the graph's leaves

    def found(self, normal: NormalizedGraph) -> list[UOp] | None:
        """Return the sinks of a graph with each loop replaced by a recurrence; None if there is none."""
        if not _may_have_loops(normal.order):
            return None
        leaves = [n for n in (*normal.buffers, *normal.cells) if not n.src]
        stands_in = [UOp(o.PARAM, n.dtype, (), Param(_STANDS_IN - i, n.shape, False, n.device))
                     for i, n in enumerate(leaves)]
        # besides the graph's key: which buffer each slice is a piece of, and the numbers
        number = {n: i for i, n in enumerate(leaves)}
        pieces = [(number[n.base], address - n.base.arg.address)
                  for n, address in zip(normal.buffers, normal.addresses) if n.src]
        key = (normal.key, tuple(pieces), tuple(normal.constants))
        known = self._found.get(key)
        if known is not None:
            return substitute(known, dict(zip(stands_in, leaves)))
        sinks = with_recurrences(normal.sinks)
        if sinks is not None:
            if len(self._found) >= self._most:
                self._found.pop(next(iter(self._found)))
            self._found[key] = substitute(sinks, dict(zip(leaves, stands_in)))
        return sinks


def with_recurrences(sinks: Sequence[UOp]) -> list[UOp] | None:
    """Return the sinks with each loop replaced by a recurrence; None if there is none.

    >>> from glassgrad.compiler.graph import full
    >>> x, w, h = full((5, 2, 3), 1.0), full((2, 3, 3), 0.5), full((2, 3), 0.0)
    >>> for t in range(5):
    ...     row = x.shrink([(t, t + 1), (0, 2), (0, 3)]).reshape((2, 3))
    ...     h = row + (h.reshape((2, 1, 3)).expand((2, 3, 3)) * w).sum((2,)).reshape((2, 3))
    >>> [new] = with_recurrences([h])
    >>> [n.op.name for n in new.toposort()][-3:]             # the last row of all states
    ['RECURRENCE', 'SHRINK', 'RESHAPE']
    """
    found: list[UOp] | None = None
    while True:
        made = _with_one(found or sinks)
        if made is None:
            return found
        found = made


def _with_one(sinks: Sequence[UOp]) -> list[UOp] | None:
    order = toposort(sinks)
    if not _may_have_loops(order):
        return None
    tried: set[tuple[UOp, UOp]] = set()
    for pair in guesses(order, sinks):
        if pair not in tried:
            tried.add(pair)
            loop = equal_steps(*pair)
            made = None if loop is None else _Replacement(loop, sinks).sinks()
            if made is not None:
                return made
        if len(tried) >= MOST_GUESSES:
            break
    return None


# -- replace -------------------------------------------------------------------------------------------------
class _Use(NamedTuple):
    """A concatenation or a sum whose last values are a value of every step."""
    values: JoinedValues
    last: UOp                    # the value of the last step
    reverse: bool                # whether the values are in reverse order, that of the last step first


class _Replacement:
    """The sinks of a graph with one loop replaced."""

    def __init__(self, loop: EqualSteps, sinks: Sequence[UOp]):
        self.loop, self.old, self.count = loop, sinks, len(loop.steps)
        self.uses: dict[UOp, _Use] = {}
        self.inner: set[UOp] = set()             # nodes inside of concatenations and sums that were examined
        self.inside: dict[UOp, tuple[UOp, int]] = {}      # {node of a step: (same node of the last step, steps back)}
        of_states = _depending(loop.order, loop.states)
        for back, step in enumerate(loop.steps):
            self.inside.update([(step[n], (n, back)) for n in loop.order if n in of_states])

    def sinks(self) -> list[UOp] | None:
        """Return the sinks over a recurrence; None if there can be none or it would not pay."""
        order = toposort(self.old, self._sources)
        single = [n for n in order if n in self.inside]
        if len(single) > MOST_SINGLE or not self._gradients_pass(order):
            return None
        wanted = list(dict.fromkeys([*[self.inside[n][0] for n in single],
                                     *[use.last for use in self.uses.values()]]))
        made = _sequences(self.loop, wanted)
        if made is None:
            return None
        of_steps = dict(zip(wanted, made))
        new: dict[UOp, UOp] = {}
        for node in order:
            if node in self.inside:
                last, back = self.inside[node]
                new[node] = _rows(of_steps[last], self.count - 1 - back, self.count - back).reshape(node.shape)
            elif node in self.uses:
                use = self.uses[node]
                rest = self._rest(use)
                new[node] = _joined(use, of_steps[use.last], new[rest[0]] if rest else None)
            else:
                new[node] = node.over(tuple([new[s] for s in node.src]))
        return [new[sink] for sink in self.old]

    def _rest(self, use: _Use) -> tuple[UOp, ...]:
        """Return what comes before the values of the steps in a concatenation or a sum; empty if nothing does."""
        values = use.values
        return (values.so_far[-1 - self.count],) if self.count < len(values.values) else ()

    def _sources(self, node: UOp) -> Sequence[UOp]:
        """Return the sources of a node that are outside of the loop; for a concatenation or a sum of values of steps,
        what comes before these values."""
        if node in self.inside:
            return ()
        if node in self.uses:
            return self._rest(self.uses[node])
        if node not in self.inner and (node.op is o.WHERE or node.op is o.ADD):
            use = self._use(node)
            if use is not None:
                self.uses[node] = use
                return self._rest(use)
        return node.src

    def _use(self, node: UOp) -> _Use | None:
        """Return how a node joins values of all steps; None if it does not."""
        values = values_of_steps(node)
        if values is None:
            return None
        self.inner.update(values.so_far)
        for reverse in (False, True):
            found = values.values[::-1] if reverse else values.values
            if (not reverse or len(found) == self.count) and self.loop.extend_by(found):
                return _Use(values, found[-1], reverse)
        return None

    def _gradients_pass(self, order: Sequence[UOp]) -> bool:
        """Return whether every node that a gradient is taken of still exists."""
        targets = [n.src[0] for n in order if n.op is o.GRADIENT]
        if not targets:
            return True
        replaced = {node for step in self.loop.steps for node in step.values()} - set(self.loop.starts)
        return not any(t.op in o.MOVEMENT or t in replaced or t in self.inner for t in targets)


def _rows(sequence: UOp, start: int, stop: int) -> UOp:
    return sequence.shrink([(start, stop), *[(0, n) for n in sequence.shape[1:]]])


def _joined(use: _Use, sequence: UOp, rest: UOp | None) -> UOp:
    """Build a concatenation or a sum from the values of all steps and what comes before them."""
    values = use.values
    if values.axis is None:
        total = sequence.sum((0,)).reshape(sequence.shape[1:])
        return total if rest is None else rest + total
    axis, sequence = values.axis, sequence.flip((0,)) if use.reverse else sequence
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(sequence.shape))]
    shape = values.values[-1].shape
    part = sequence.permute(order).reshape((*shape[:axis], sequence.shape[0] * shape[axis], *shape[axis + 1:]))
    return part if rest is None else placed(part, axis, rest.shape[axis] - part.shape[axis], rest)


def _sequences(loop: EqualSteps, wanted: list[UOp]) -> list[UOp] | None:
    """Compute nodes of a step for all steps, each as one node with a leading time axis; None if that is not
    possible."""
    ends = [*loop.states, *loop.rows]
    stands_in = {n: UOp(o.PARAM, n.dtype, (), Param(_STANDS_IN - i, n.shape, False, n.device))
                 for i, n in enumerate(ends)}
    new = dict(stands_in)
    for node in loop.order:
        new[node] = node.over(tuple([new.get(s, s) for s in node.src]))
    made = written_out([*[new[u] for u in loop.updates], *[new[n] for n in wanted]])
    states = [stands_in[s] for s in loop.states]
    updates, results = made[:len(states)], made[len(states):]
    order = toposort(made)
    of_states = _depending(order, states)
    varying = of_states | _depending(order, [stands_in[n] for n in loop.rows])
    needed = [n for n in toposort(updates) if n in of_states]
    if any(n.op not in KNOWN and n.op is not o.PARAM for n in varying) or any(n not in of_states for n in updates) or \
            not any(n.op in o.REDUCE for n in needed):
        return None
    batch = Batched(len(loop.steps), {stands_in[n]: _sequence(n, row, len(loop.steps)) for n, row in loop.rows.items()})
    # what the steps read is stored once; each step makes its own views of it
    read = [s for n in needed for s in n.src if s in varying and s not in of_states]
    before = dict.fromkeys([s.below(o.MOVEMENT) for s in read])
    if not before:
        return None
    sequences = [batch.mapped(n) for n in before]
    in_step = set(needed)
    after = [n for n in order if n in varying and n not in in_step and n.op is not o.PARAM]
    read = [*[s for n in after for s in n.src], *results]
    others = list(dict.fromkeys([n for n in read if n in in_step and n not in updates and n not in states]))

    def step(states_now: list[UOp], rows: list[UOp]) -> tuple[list[UOp], list[UOp]]:
        found = substitute([*updates, *others], {**dict(zip(states, states_now)), **dict(zip(before, rows))})
        return found[:len(states)], found[len(states):]

    found = recurrence(step, loop.starts, sequences)
    if found is None:
        return None
    for state, start, after_step in zip(states, loop.starts, found):
        batch.made[state] = states_before(start, after_step, False)
    batch.made.update(zip([*updates, *others], found))
    return [batch.mapped(n) for n in results]


def _depending(order: Sequence[UOp], on: Sequence[UOp]) -> set[UOp]:
    found = set(on)
    for node in order:
        if any([s in found for s in node.src]):
            found.add(node)
    return found


def _sequence(node: UOp, row: StepRow, count: int) -> UOp:
    """Return the rows that the steps read as one node with a leading time axis, the first step's row first."""
    if row.axis is None:
        steps = UOp(o.IOTA, node.dtype, (), Iota((count,)))
        return node + row.back * (count - 1) - steps * row.back
    bounds = list(node.arg.bounds)
    last = bounds[row.axis][0]
    first = last + row.back * (count - 1)
    bounds[row.axis] = (min(first, last), max(first, last) + 1)
    whole = node.src[0].shrink(bounds)
    rest = [a for a in range(len(bounds)) if a != row.axis]
    found = whole.permute([row.axis, *rest]).reshape((count, *node.shape))
    return found.flip((0,)) if row.back > 0 else found
