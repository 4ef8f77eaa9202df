"""Compute connectionist temporal classification (Graves et al., 2006). In: log-probabilities by time, labels. Out:
losses.

The labels with a blank before, between and after them are the states of a chain. In each step a path stays in its
state, moves on by one, or skips a blank between two different labels. Two recurrences add up the probabilities of
paths, as logarithms: of those that lead to state s at time t, and of those that go on from there. Their product,
divided by the sum over all paths, is the share of the paths that are in state s at time t, and this share is the
gradient. A loss costs O(time x states).
"""

from __future__ import annotations

import functools
import math
import operator

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, const, dtypes, full
from glassgrad.compiler.graph.recurrence import recurrence
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.formulas import at, counting, gather, pad_axis, part, stack
from glassgrad.tensor.formulas.elementary import exp, log
from glassgrad.tensor.formulas.reductions import logsumexp


def from_labels(x: UOp, labels: UOp, lengths: UOp, counts: UOp, blank: int) -> UOp:
    """Return the loss of each sequence: x (time, batch, classes) are log-probabilities, labels (batch, size) are
    padded."""
    steps, batch, _ = x.shape
    size = labels.shape[1]
    used = counting(size) < counts.reshape((batch, 1))
    labels = used.where(labels.cast(dtypes.int32), blank)
    blanks = full((batch, size), blank, dtypes.int32)
    chain = stack([blanks, labels], 2).reshape((batch, 2 * size))
    chain = pad_axis(chain, 1, 0, 1, blank)                                  # blank, label, blank, .., label, blank
    states = 2 * size + 1
    before = part(pad_axis(chain, 1, 2, 0, blank), 1, 0, states)
    skips = chain.ne(blank) & chain.ne(before)           # whether a path may skip the state before this one
    logs = gather(x, 2, chain.reshape((1, batch, states)).expand((steps, batch, states))).contiguous()
    ends = counts.reshape((batch, 1)) * 2                # the last state of each sequence
    total = _total(_paths(logs, skips, lengths, full((batch, 1), 0, dtypes.int32))[0], ends)
    return own_gradient(-total, (logs, skips, lengths, ends), _backward)


def _backward(g: UOp, loss: UOp, logs: UOp, skips: UOp, lengths: UOp, ends: UOp) -> tuple[UOp | None, ...]:
    """d loss / d logs[t, s] = -(the share of the paths that are in state s at time t)."""
    up_to, _ = _paths(logs, skips, lengths, ends * 0)
    _, further = _paths(logs, _moved(skips, -2, False), lengths, ends, backwards=True)
    batch = logs.shape[1]
    share = exp(up_to + further + loss.reshape((1, batch, 1)))
    g = g.reshape((1, batch, 1))
    counts = _in_time(logs, lengths) & g.ne(0)         # an infinite loss, without a path, may have the gradient 0
    return counts.where(-share * g, 0), None, None, None


def _paths(logs: UOp, skips: UOp, lengths: UOp, first: UOp, backwards: bool = False) -> list[UOp]:
    """Return, for each time, ln of the sum over the paths that lead to each state, from before the first time into a
    state of `first`: with the log-probability of the state itself, and without. Beyond its length a sequence keeps its
    values."""
    by = -1 if backwards else 1

    def step(states: list[UOp], rows: list[UOp]) -> tuple[list[UOp], list[UOp]]:
        [paths], [row, counts] = states, rows
        skipping = skips.where(_moved(paths, 2 * by), -math.inf)
        reached = _sum_of(paths, _moved(paths, by), skipping)
        return [counts.where(reached + row, paths)], [reached]

    start = counting(logs.shape[2]).eq(first).where(const(0.0, logs.dtype), -math.inf)
    found = recurrence(step, [start], [logs, _in_time(logs, lengths)], backwards)
    if found is None:
        raise Bug("the paths of a chain are no recurrence")
    return found


def _in_time(logs: UOp, lengths: UOp) -> UOp:
    """Return whether each time is within the length of each sequence, (time, batch, 1)."""
    steps, batch, _ = logs.shape
    return counting(steps).reshape((steps, 1, 1)) < lengths.reshape((1, batch, 1))


def _total(paths: UOp, ends: UOp) -> UOp:
    """Return ln of the sum over all complete paths: those that are in the last state or the one before it after the
    last time."""
    state = counting(paths.shape[2])
    return logsumexp((state.eq(ends) | state.eq(ends - 1)).where(at(paths, 0, -1), -math.inf), 1)


def _moved(x: UOp, by: int, fill: float = -math.inf) -> UOp:
    """Move states up (or down, if negative); `fill` enters."""
    n = x.shape[1]
    by = max(-n, min(by, n))
    return pad_axis(part(x, 1, max(-by, 0), n - max(by, 0)), 1, max(by, 0), max(-by, 0), fill)


def _sum_of(*parts: UOp) -> UOp:
    """ln of the sum of e^x, without overflow."""
    most = functools.reduce(UOp.maximum, parts)
    most = most.eq(-math.inf).where(0.0, most)
    return log(functools.reduce(operator.add, [exp(x - most) for x in parts])) + most
