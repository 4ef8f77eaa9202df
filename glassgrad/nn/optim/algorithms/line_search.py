"""Search along a direction for a step size. In: the loss as a function of the step size, with its slope. Out: a point
on it.

The point must meet the strong Wolfe conditions: the loss has fallen enough for the step size, and the slope is much
flatter than at the start. First the step size grows until such a point is bracketed, then the bracket shrinks; both use
the minimum of the cubic through the ends (Nocedal and Wright, Numerical Optimization, 3.5 and 3.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from glassgrad.tensor.tensor import Tensor

FALLEN, FLAT = 1e-4, 0.9        # fractions of the first slope: decrease of the loss, remaining slope


class Point(NamedTuple):
    """The step size, loss, slope and gradient at a point."""
    at: float
    loss: float
    slope: float
    gradient: Tensor


def strong_wolfe(evaluate: Callable[[float], Point], start: Point, first: float, most: int, size: float,
                 tolerance: float = 1e-9) -> tuple[Point, int]:
    """Return a point that meets the conditions, or the best point after `most` evaluations besides the first; and the
    number of evaluations. `size` is the largest element of the direction: the search ends when the bracket times `size`
    is below `tolerance`."""
    def too_high(point: Point) -> bool: return point.loss > start.loss + FALLEN * point.at * start.slope
    def is_flat(point: Point) -> bool: return abs(point.slope) <= -FLAT * start.slope

    before, now, tried = start, evaluate(first), 0
    while tried < most:
        if too_high(now) or tried > 1 and now.loss >= before.loss:
            break
        if is_flat(now):
            return now, tried + 1
        if now.slope >= 0:
            break
        further = _lowest(before, now, now.at + 0.01 * (now.at - before.at), now.at * 10)
        before, now, tried = now, evaluate(further), tried + 1
    bracket = [start if tried == most else before, now]
    low, high = _ordered(bracket)
    stuck = False
    while tried < most and abs(bracket[1].at - bracket[0].at) * size >= tolerance:
        left, right = sorted(point.at for point in bracket)
        at, margin = _lowest(bracket[0], bracket[1], left, right), 0.1 * (right - left)
        near = min(right - at, at - left) < margin
        if near and (stuck or not left < at < right):       # a second time near an end, or beyond it: move inward
            at = right - margin if abs(at - right) < abs(at - left) else left + margin
            stuck = False
        else:
            stuck = near
        now, tried = evaluate(at), tried + 1
        if too_high(now) or now.loss >= bracket[low].loss:
            bracket[high] = now
            low, high = _ordered(bracket)
            continue
        if is_flat(now):
            return now, tried + 1
        if now.slope * (bracket[high].at - bracket[low].at) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = now
    return bracket[low], tried + 1


def _ordered(bracket: list[Point]) -> tuple[int, int]:
    return (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)


def _lowest(a: Point, b: Point, least: float, most: float) -> float:
    """Return the minimum of the cubic through two points with their slopes, clamped to the limits; their midpoint if it
    has none."""
    a, b = (a, b) if a.at <= b.at else (b, a)
    if a.at == b.at:
        return (least + most) / 2
    bend = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.at - b.at)
    inner = bend * bend - a.slope * b.slope
    if not inner >= 0:
        return (least + most) / 2
    root = math.sqrt(inner)
    below = b.slope - a.slope + 2 * root
    return min(max(b.at - (b.at - a.at) * (b.slope + root - bend) / below, least), most) if below else most
