"""Connectionist temporal classification (Graves et al., 2006). In: log-probabilities by time, labels. Out: losses.

The labels with a blank before, between and after them are the states of a chain; in each step a path stays, moves on by
one, or skips a blank between two different labels. alpha[t, s] is the logarithm of the sum of all paths that are in
state s at time t, beta[t, s] of all paths on from there; alpha + beta over their sum is the share of state s, and that
share is the gradient. Time is a scalar that kernels are passed when they run, so every step runs the same compiled
code, and a loss costs O(time x states).
"""

from __future__ import annotations

import functools
import math
import operator

from glassgrad.compiler.graph import Cell, UOp, const, dtypes, full, ops as o
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.formulas import counting, gather, joined, pad_axis, part, stack
from glassgrad.tensor.formulas.elementary import exp, log

_WIDE = 16        # how many steps are stacked at once


def from_labels(x: UOp, labels: UOp, lengths: UOp, counts: UOp, blank: int) -> UOp:
    """The loss of each sequence: x (time, batch, classes) holds log-probabilities, labels (batch, size) are padded."""
    steps, batch, _ = x.shape
    size = labels.shape[1]
    used = counting(size) < counts.reshape((batch, 1))
    labels = used.where(labels.cast(dtypes.int32), blank)
    blanks = full((batch, size), blank, dtypes.int32)
    chain = stack([blanks, labels], 2).reshape((batch, 2 * size))
    chain = pad_axis(chain, 1, 0, 1, blank)                                  # blank, label, blank, .., label, blank
    states = 2 * size + 1
    before = part(pad_axis(chain, 1, 2, 0, blank), 1, 0, states)
    skips = chain.ne(blank) & chain.ne(before)           # whether a path may come from two states before
    logs = gather(x, 2, chain.reshape((1, batch, states)).expand((steps, batch, states))).contiguous()
    ends = counts * 2                                    # the last states
    total = _total(_alphas(logs, skips, lengths)[-1], lengths, ends)
    return own_gradient(-total, (logs, skips, lengths, ends), _backward)


def _backward(g: UOp, loss: UOp, logs: UOp, skips: UOp, lengths: UOp, ends: UOp) -> tuple[UOp | None, ...]:
    """d loss / d logs[t, s] = -(the share of the paths that are in state s at time t)."""
    steps = logs.shape[0]
    alphas, betas = _stacked(_alphas(logs, skips, lengths)), _stacked(_betas(logs, skips, lengths, ends))
    batch = logs.shape[1]
    counts = counting(steps, dtypes.int64).reshape((steps, 1, 1)) < lengths.reshape((1, batch, 1))
    share = exp(alphas + betas + loss.reshape((1, batch, 1)))
    g = g.reshape((1, batch, 1))
    return (counts & g.ne(0)).where(-share * g, 0), None, None, None     # a loss that no path reaches may count for 0


def _alphas(logs: UOp, skips: UOp, lengths: UOp) -> list[UOp]:
    """For each time, ln of the sum of the paths that are in each state; sequences that have ended keep their values."""
    alpha = (_states(logs) < 2).where(_at(logs, 0), -math.inf).contiguous()
    found = [alpha]
    for t in range(1, logs.shape[0]):
        by_two = skips.where(_moved(alpha, 2), -math.inf)
        reached = _sum_of(alpha, _moved(alpha, 1), by_two) + _at(logs, t)
        alpha = (_time(t) < _column(lengths)).where(reached, alpha).contiguous()
        found.append(alpha)
    return found


def _betas(logs: UOp, skips: UOp, lengths: UOp, ends: UOp) -> list[UOp]:
    """For each time, ln of the sum of the paths that go on from each state, its own log-probability not included."""
    state, end, length = _states(logs), _column(ends), _column(lengths)
    final = (state.eq(end) | state.eq(end - 1)).where(const(0.0, logs.dtype), -math.inf)
    beta = final.contiguous()
    found = [beta]
    may_skip = _moved(skips.cast(dtypes.int32), -2, 0).ne(0)
    for t in range(logs.shape[0] - 2, -1, -1):
        later = beta + _at(logs, t + 1)
        on = _sum_of(later, _moved(later, -1), may_skip.where(_moved(later, -2), -math.inf))
        beta = (_time(t + 1) < length).where(on, final).contiguous()
        found.append(beta)
    return found[::-1]


def _total(alpha: UOp, lengths: UOp, ends: UOp) -> UOp:
    """ln of the sum of all complete paths: those in the last state or the one before it."""
    state, end = _states(alpha), _column(ends)
    ending = (state.eq(end) | state.eq(end - 1)).where(alpha, -math.inf)
    most = ending.reduce(o.AMAX, (1,))
    most = most.eq(-math.inf).where(0.0, most)
    total = (log(exp(ending - most).sum((1,))) + most).reshape((alpha.shape[0],))
    nothing = ends.eq(0).where(const(0.0, alpha.dtype), -math.inf)     # no time: only no labels fit
    return (lengths < 1).where(nothing, total)


# -- pieces --------------------------------------------------------------------------------------------------
def _time(t: int) -> UOp:
    return UOp(o.SCALAR, dtypes.int64, (), Cell(t))


def _at(logs: UOp, t: int) -> UOp:
    return UOp(o.GATHER, logs.dtype, (logs, _time(t)))


def _states(x: UOp) -> UOp:
    """The index of each state, along the last axis of x."""
    return counting(x.shape[-1], dtypes.int64)


def _column(x: UOp) -> UOp:
    """One number per sequence, as a column."""
    return x.cast(dtypes.int64).reshape((x.elements, 1))


def _moved(x: UOp, by: int, fill: float = -math.inf) -> UOp:
    """States moved up (or down, negative), `fill` coming in."""
    n = x.shape[1]
    by = max(-n, min(by, n))
    return pad_axis(part(x, 1, max(-by, 0), n - max(by, 0)), 1, max(by, 0), max(-by, 0), fill)


def _sum_of(*parts: UOp) -> UOp:
    """ln of the sum of e^x, without overflow."""
    most = functools.reduce(UOp.maximum, parts)
    most = most.eq(-math.inf).where(0.0, most)
    return log(functools.reduce(operator.add, [exp(x - most) for x in parts])) + most


def _stacked(rows: list[UOp]) -> UOp:
    """Rows (batch, states) stacked to (time, batch, states), _WIDE at a time, then the results, until one is left."""
    level = [row.reshape((1, *row.shape)) for row in rows]
    while len(level) > 1:
        level = [joined(level[i:i + _WIDE], 0).contiguous() for i in range(0, len(level), _WIDE)]
    return level[0]
