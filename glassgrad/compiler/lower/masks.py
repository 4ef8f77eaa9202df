"""What a mask leaves: blocks of scores, or one term of a sum. In: an expression of scores, or a SUM. Out: where a loop
over blocks may end, or the only term (`OneTerm`).

A score that is `where(k < q + 1, .., -inf)` is -inf for all keys after the row. The comparison is linear in the
counters, so the index algebra tells from which block on it fails for all rows and keys of the block. Does not know
where scores come from.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import add, build, divide, index, less, linear, multiply
from glassgrad.compiler.graph.uop import UOp


def blocks_in_sight(score: UOp, block: UOp, inner: list[UOp]) -> UOp | None:
    """How many blocks a loop has to do: the score of all others is -inf; None: all. `inner` are the counters inside."""
    for below_zero in _kept_where(score):
        constant, terms = linear(_least(below_zero, inner))
        step, rest = terms.get(block, 0), {atom: k for atom, k in terms.items() if atom is not block}
        if step > 0:                # kept where step * block + rest < 0
            return divide(add(multiply(build(constant, rest), -1), index(step - 1)), step)
    return None


def kept_below(score: UOp, inner: list[UOp]) -> UOp | None:
    """The condition under which a score is not -inf for all values of the inner counters; None: it may always be."""
    for below_zero in _kept_where(score):
        seen = less(_least(below_zero, inner), index(0))
        if seen.op is not o.CONST or not seen.arg:
            return seen
    return None


def _kept_where(score: UOp) -> list[UOp]:
    """Index expressions, each of which is below 0 wherever the score is not -inf."""
    if score.op is o.CAST or score.op is o.MUL and score.src[1].op is o.CONST and score.src[1].arg > 0:
        return _kept_where(score.src[0])
    if score.op is o.WHERE:
        condition, chosen, other = score.src
        if _is_least(other):
            return _holds_where(condition, True) + _kept_where(chosen)
        return _holds_where(condition, False) + _kept_where(other) if _is_least(chosen) else []
    return []


def _is_least(node: UOp) -> bool:
    return node.op is o.CONST and node.arg == -math.inf


def _holds_where(condition: UOp, holds: bool) -> list[UOp]:
    """Index expressions that are below 0 wherever the condition holds (or, does not hold)."""
    if condition.op is o.NOT:
        return _holds_where(condition.src[0], not holds)
    if condition.op is o.AND and holds:
        return [found for s in condition.src for found in _holds_where(s, holds)]
    if condition.op is not o.CMPLT:
        return []
    x, y = (_as_index(s) for s in condition.src)
    if x is None or y is None:
        return []
    return [add(x, multiply(y, -1)) if holds else add(add(y, multiply(x, -1)), index(-1))]


def _as_index(value: UOp) -> UOp | None:
    """An integer as an index expression, where it is made of counters: positions in a tensor do not overflow."""
    if value.dtype is dtypes.index:
        return value
    if value.op is o.CONST and value.dtype.kind == "i":
        return index(value.arg)
    if value.op is o.CAST and value.dtype.kind == "i" and value.dtype.itemsize >= 4:
        return _as_index(value.src[0]) if value.src[0].dtype.kind == "i" else None
    if value.op not in (o.ADD, o.SUB):
        return None
    x, y = (_as_index(s) for s in value.src)
    if x is None or y is None:
        return None
    return add(x, y if value.op is o.ADD else multiply(y, -1))


def _least(expression: UOp, inner: list[UOp]) -> UOp:
    """The least value of an index expression for all values of the inner counters."""
    constant, terms = linear(expression)
    low = sum(min(0, terms.get(r, 0) * (r.arg.size - 1)) for r in inner)
    return build(constant + low, {atom: k for atom, k in terms.items() if atom not in inner})


class OneTerm(NamedTuple):
    """The only term of a sum that is not 0: `value`, or minus it, at the position `number` along the summed axis."""
    number: UOp
    value: UOp
    negated: bool


def one_term(node: UOp) -> OneTerm | None:
    """sum over k of where(k == number, value, 0), as a loss has it and its gradient: it needs no loop. None for others.
    `number` does not depend on k: at any of its positions it is the same."""
    if node.op is not o.SUM or len(node.arg.axes) != 1:
        return None
    [axis], source = node.arg.axes, node.src[0]
    negated = source.op is o.NEG
    source = source.src[0] if negated else source
    if source.op is not o.WHERE or source.src[0].op is not o.CMPEQ or source.src[1].shape == () or \
            source.src[2].op is not o.CONST or source.src[2].arg != 0:
        return None
    left, right = source.src[0].src
    for position, number in ((left, right), (right, left)):
        if _counts(position, axis) and number.op is o.EXPAND and number.src[0].shape[axis] == 1:
            return OneTerm(number, source.src[1], negated)
    return None


def _counts(node: UOp, axis: int) -> bool:
    """Whether a node's elements are their positions along an axis."""
    shape = node.shape
    while node.op in (o.EXPAND, o.RESHAPE):
        if node.op is o.EXPAND and node.src[0].shape[axis:axis + 1] != shape[axis:axis + 1]:
            return False
        if node.op is o.RESHAPE and [n for n in node.shape if n != 1] != list(node.src[0].shape):
            return False
        node = node.src[0]
    return node.op is o.IOTA and node.shape == shape[axis:axis + 1]
