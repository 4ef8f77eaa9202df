"""Values that are another value with a part replaced. In: a node that gets memory. Out: `Part`, or None.

A row written into a cache is a new value, as all values are: the old one, copied, and then the row. That is two
kernels. How much is copied is a variable of the first: all of it, or nothing where the result may have the old value's
memory, because nobody else knows that any more (captured.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from glassgrad.graph import ops as o
from glassgrad.graph.node import toposort
from glassgrad.graph.uop import UOp

LEAST = 16 * 1024        # elements: of less, one kernel that copies and replaces is as good


class Part(NamedTuple):
    """`whole` with what lies within `bounds` replaced by `value`."""
    whole: UOp                               # a PARAM
    value: UOp
    bounds: tuple[tuple[Any, Any], ...]


class Update(NamedTuple):
    """The slots of one: the old value, the new one, and how many elements are copied from one to the other."""
    source: int
    result: int
    copied: int
    size: int


def part_of(node: UOp) -> Part | None:
    """A node as x[bounds] = value, which `Tensor.__setitem__` writes as where(inside, padded value, x); or None."""
    if node.op is not o.WHERE:
        return None
    inside, padded, whole = node.src
    if whole.op is not o.PARAM or whole.arg.scalar or whole.symbolic or whole.size < LEAST:
        return None
    if inside.op is not o.PAD or padded.op is not o.PAD or inside.arg != padded.arg or not _is_true(inside.src[0]):
        return None
    value = padded.src[0]
    if 4 * value.size > whole.size or whole in toposort([value]):
        return None
    bounds = tuple((before, before + n) for (before, _), n in zip(padded.arg.padding, value.shape))
    return Part(whole, value, bounds)


def _is_true(node: UOp) -> bool:
    while node.op in (o.RESHAPE, o.EXPAND):
        node = node.src[0]
    return node.op is o.CONST and node.arg is True
