"""What the kernel interpreter knows of a tree before it runs. In: statements and expressions. Out: facts about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from glassgrad.graph import ops as o
from glassgrad.graph.node import toposort
from glassgrad.graph.uop import UOp
from glassgrad.lower.loops import WIDE, Accumulate, For, If, Prefetch, Statement, expressions, walk

SUMS = (o.ADD, o.MUL, o.MAX, o.MIN)       # what a loop can accumulate as an axis


def is_sum(loop: For) -> bool:
    """Whether a LOOP does nothing but accumulate what does not depend on the sums: then it can run as an axis."""
    inner = [s for s in walk(loop.body) if not isinstance(s, Prefetch)]
    sums = [s for s in inner if isinstance(s, Accumulate)]
    if not sums or any(not (isinstance(s, For) and s.kind in WIDE) for s in inner if s not in sums):
        return False
    if any(s.combine not in SUMS or s.register.dtype.kind == "b" or s.register.dtype.accumulator is not s.register.dtype
           for s in sums):                # narrow floats are rounded at every step
        return False
    if len({(s.register, s.combine) for s in sums}) > len({s.register for s in sums}):
        return False                      # x * a + b, again and again, is not a product and a sum
    read = {n for s in sums for n in toposort([s.value]) if n.op is o.REGISTER}
    return read.isdisjoint(s.register for s in sums)


def operands(node: UOp) -> tuple[UOp, ...]:
    """The sources whose values a node takes: not memories, nor the ranges that only name axes."""
    if node.op is o.LOAD:
        return node.src[1:]
    return () if node.op in (o.REGISTER, o.FOLD) else node.src


def order(root: UOp, is_leaf: Callable[[UOp], bool]) -> list[UOp]:
    """What must be computed for an expression, operands first; leaves stand for all that is under them."""
    return toposort([root], lambda node: () if is_leaf(node) else operands(node))


def is_pure(node: UOp) -> bool:
    """Whether a value is made of counters, scalars and constants alone; iterative, so depth is no limit."""
    stack = [node]
    while stack:
        top = stack[-1]
        waiting = [s for s in top.src if _known_pure(s) is None]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        pure = top.op not in (o.LOAD, o.REGISTER, o.FOLD, o.LOCAL) and all(_known_pure(s) for s in top.src)
        top.cached("pure", lambda _, p=pure: p)
    return bool(_known_pure(node))


def _known_pure(node: UOp) -> bool | None:
    return None if node._cache is None else node._cache.get("pure")


def width(body: Iterable[Statement]) -> int:
    """How many elements the widest statement computes for one task."""
    widest = 1
    for s in body:
        folds = [n for n in toposort(expressions(s)) if n.op is o.FOLD]
        widest = max([widest, *[math.prod(r.arg.size for r in n.src[1:]) for n in folds]])
        if isinstance(s, (For, If)):
            times = s.range.arg.size if isinstance(s, For) and s.kind in WIDE else 1
            widest = max(widest, times * width(s.body))
    return widest
