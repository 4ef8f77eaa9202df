"""Find sums with one nonzero term, as in classification losses and gradients. In: a SUM node. Out: `OneTerm`, or
None."""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.compiler.graph import UOp, ops as o


class OneTerm(NamedTuple):
    """The only nonzero term of a sum: `value` (or its negative), at position `number` along the summed axis."""
    number: UOp
    value: UOp
    negated: bool


def one_term(node: UOp) -> OneTerm | None:
    """Match sum over k of where(k == number, value, 0), where `number` does not depend on k: it needs no loop. None for
    other sums."""
    if node.op is not o.SUM or len(node.arg.axes) != 1:
        return None
    [axis], source = node.arg.axes, node.src[0]
    negated = source.op is o.NEG
    source = source.src[0] if negated else source
    if source.op is not o.WHERE or source.src[1].shape == () or \
            source.src[2].op is not o.CONST or source.src[2].arg != 0:
        return None
    condition = source.src[0]
    while condition.op is o.EXPAND and condition.src[0].shape[axis] == condition.shape[axis]:
        condition = condition.src[0]
    if condition.op is not o.CMPEQ:
        return None
    left, right = condition.src
    for position, number in ((left, right), (right, left)):
        if _counts(position, axis) and number.op is o.EXPAND and number.src[0].shape[axis] == 1:
            return OneTerm(number, source.src[1], negated)
    return None


def _counts(node: UOp, axis: int) -> bool:
    """Whether each element of a node is its own position along an axis."""
    shape = node.shape
    while node.op in (o.EXPAND, o.RESHAPE):
        if node.op is o.EXPAND and node.src[0].shape[axis:axis + 1] != shape[axis:axis + 1]:
            return False
        if node.op is o.RESHAPE and [n for n in node.shape if n != 1] != list(node.src[0].shape):
            return False
        node = node.src[0]
    return node.op is o.IOTA and node.shape == shape[axis:axis + 1]
