"""Analyze the scores of a softmax. In: an expression of scores. Out: where a loop over blocks may end; the same in
float32.

A score that is `where(k < q + 1, .., -inf)` is -inf for all keys after the row. The comparison is linear in the
counters, so the index algebra finds the block from which on it fails for all rows and keys of the block.

If the sums of a product are float32 and values computed from them stay in registers, then rounding each step to the
type that the graph names costs instructions and makes the result less exact. So these roundings are omitted, and a
positive factor of all scores is left to the exponential, which has a factor anyway. A value added to a sum becomes the
initial value of its accumulator, which takes no instruction and no register. Does not know how scores are computed.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import NamedTuple

from glassgrad.compiler.graph import DType, UOp, const, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, all_of, both, bounds, build, divide_up, index, less, linear,
                                                    multiply)
from glassgrad.compiler.lower.loops import ranges_of


def blocks_to_run(score: UOp, block: UOp, inner: list[UOp]) -> UOp | None:
    """The number of blocks that a loop must run, if all later ones score -inf; None: all. `inner`: counters in a
    block."""
    for below_zero in _kept_where(score):
        constant, terms = linear(_least(below_zero, inner))
        step, rest = terms.get(block, 0), {atom: k for atom, k in terms.items() if atom is not block}
        if step > 0:                # kept where step * block + rest < 0
            return divide_up(multiply(build(constant, rest), -1), step)
    return None


def kept_below(score: UOp, inner: list[UOp]) -> UOp | None:
    """The condition outside of which a score is -inf for all values of the inner counters; None if there is none."""
    for below_zero in _kept_where(score):
        seen = less(_least(below_zero, inner), index(0))
        if seen.op is not o.CONST or not seen.arg:
            return seen
    return None


def something_masked(score: UOp, kept: UOp, inner: list[UOp]) -> UOp | None:
    """The condition under which a score that is `kept` or -inf is -inf for some values of the inner counters; None if
    the score has another form."""
    wanted: UOp | None = const(True)
    while score is not kept:
        if score.op is not o.WHERE or not _is_minus_infinity(score.src[2]):
            return None
        condition, score, _ = score.src
        for part in all_of(condition):
            found = _holds_where(part, True)
            if len(found) != 1:
                return None
            greatest = multiply(_least(multiply(found[0], -1), inner), -1)
            wanted = both(wanted, less(greatest, index(0)))
    return None if wanted is None else UOp(o.NOT, dtypes.bool, (wanted,))


def _kept_where(score: UOp) -> list[UOp]:
    """Index expressions, each of which is below 0 wherever the score is not -inf."""
    if score.op is o.CAST or score.op is o.MUL and score.src[1].op is o.CONST and score.src[1].arg > 0:
        return _kept_where(score.src[0])
    if score.op is o.WHERE:
        condition, chosen, other = score.src
        if _is_minus_infinity(other):
            return _holds_where(condition, True) + _kept_where(chosen)
        return _holds_where(condition, False) + _kept_where(other) if _is_minus_infinity(chosen) else []
    return []


def _is_minus_infinity(node: UOp) -> bool:
    return node.op is o.CONST and node.arg == -math.inf


def _holds_where(condition: UOp, holds: bool) -> list[UOp]:
    """Index expressions that are below 0 wherever the condition holds (or, with `holds` False, fails)."""
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
    """Convert an integer to an index expression, if it consists of counters: positions in a tensor do not overflow."""
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
    """The least value of an index expression over all values of the inner counters."""
    constant, terms = linear(expression)
    free = {atom: k for atom, k in terms.items() if not ranges_of(atom).isdisjoint(inner)}
    low = sum(min(k * end for end in bounds(atom)) for atom, k in free.items())
    return build(constant + low, {atom: k for atom, k in terms.items() if atom not in free})


# -- initial values of sums --------------------------------------------------------------------------------------------
class ShiftedSum(NamedTuple):
    """(total + begin) * factor where the mask holds, else -inf."""
    begin: UOp | None
    factor: float
    mask: UOp | None

    def over(self, total: UOp) -> UOp:
        """total + begin under the mask, without the factor."""
        value = total if self.begin is None else total + self.begin
        return value if self.mask is None else self.mask.where(value, const(-math.inf, value.dtype))


def shifted_sum(value: UOp, total: UOp) -> ShiftedSum | None:
    """A value derived from a total by additions, constant factors and masks, as a ShiftedSum; None for other values.

    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> from glassgrad.compiler.lower.loops import register
    >>> total, shift = register("total", dtypes.float32), register("shift", dtypes.float32)
    >>> found = shifted_sum((total * 2.0 - shift) * 4.0, total)
    >>> found.factor, found.begin is shift * -0.5, found.mask
    (8.0, True, None)
    """
    if value is total:
        return ShiftedSum(None, 1.0, None)
    if value.op is o.WHERE and _is_minus_infinity(value.src[2]):
        found = shifted_sum(value.src[1], total)
        return None if found is None or found.factor < 0 else found._replace(mask=both(found.mask, value.src[0]))
    if value.op not in (o.ADD, o.SUB, o.MUL):
        return None
    inner, other = value.src
    if value.op is not o.SUB and total in toposort([other]):
        inner, other = other, inner
    found = shifted_sum(inner, total)
    if found is None:
        return None
    if value.op is o.MUL:
        usable = other.op is o.CONST and 0 < abs(other.arg) < math.inf and (other.arg > 0 or found.mask is None)
        return found._replace(factor=found.factor * other.arg) if usable else None
    if total in toposort([other]):
        return None
    share = (1 if value.op is o.ADD else -1) / found.factor
    term = other if share == 1 else other * share
    return found._replace(begin=term if found.begin is None else found.begin + term)


# -- without rounding -------------------------------------------------------------------------------------------------
def in_full_precision(root: UOp, inside: Set[UOp], dtype: DType) -> UOp:
    """Compute the ops of `inside`, which are below an expression, in `dtype`, without rounding between them."""
    new: dict[UOp, UOp] = {}
    for node in toposort([root], lambda n: n.src if n in inside and n.op not in o.REDUCE else ()):
        sources = tuple([new.get(s, s) for s in node.src])
        is_float = node.dtype.is_float
        if node not in inside or node.op in o.REDUCE:
            new[node] = node
        elif node.op is o.CAST and is_float and node.src[0].dtype.is_float:
            new[node] = sources[0].cast(dtype)
        elif node.op in o.ELEMENTWISE and node.op is not o.BITCAST:
            wide = tuple([s.cast(dtype) if s.dtype.is_float else s for s in sources])
            if node.op is o.WHERE and wide[1].op is o.CONST and wide[1].arg in (0, -math.inf):  # a mask is applied last
                wide = UOp(o.NOT, dtypes.bool, (wide[0],)), wide[2], wide[1]
            new[node] = UOp(node.op, dtype if is_float else node.dtype, wide, node.arg, node.place)
        elif node.op in o.MOVEMENT:
            new[node] = UOp(node.op, sources[0].dtype, sources, node.arg, node.place)
        else:
            new[node] = UOp(node.op, node.dtype, node.src, node.arg, node.place)
    return new[root].cast(dtype)


def without_factor(scores: UOp) -> tuple[UOp, float]:
    """Split a value into another value and a positive constant factor; masked elements stay -inf, or 0.

    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> from glassgrad.compiler.graph.uop import UOp, const
    >>> x = UOp(o.RANGE, dtypes.float32, (), None)
    >>> without_factor(x * 0.5)[0] is x, without_factor(x * 0.5)[1], without_factor(x * -2.0)[1]
    (True, 0.5, 1.0)
    """
    if scores.op is o.MUL:
        for other, factor in (scores.src, scores.src[::-1]):
            if factor.op is o.CONST and 0 < factor.arg < math.inf:
                inner, more = without_factor(other)
                return inner, more * factor.arg
    if scores.op in (o.RESHAPE, o.PERMUTE, o.EXPAND):
        inner, of_inner = without_factor(scores.src[0])
        return UOp(scores.op, scores.dtype, (inner,), scores.arg, scores.place), of_inner
    if scores.op is o.WHERE:
        condition, chosen, other = scores.src
        if _is_minus_infinity(chosen):
            condition, chosen, other = UOp(o.NOT, condition.dtype, (condition,)), other, chosen
        if _is_minus_infinity(other) or other.op is o.CONST and other.arg == 0:
            inner, of_chosen = without_factor(chosen)
            return UOp(o.WHERE, scores.dtype, (condition, inner, other), scores.arg, scores.place), of_chosen
    return scores, 1.0
