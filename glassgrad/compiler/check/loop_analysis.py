"""Facts about a loop tree, for the loop interpreter. In: statements and expressions. Out: facts about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.lower.loops import (WIDE, Accumulate, For, If, Prefetch, Statement, Store, expressions,
                                            loads_in, walk)


def is_axis(loop: For) -> bool:
    """Whether a LOOP only accumulates and stores, and its iterations are independent, except for stores that read the
    sums so far: then it can run as a NumPy axis, each statement for all iterations before the next. (Whether it loads
    memory that it stores to is checked at run time: two memories may alias.)"""
    inner = [s for s in walk(loop.body) if not isinstance(s, Prefetch)]
    sums = [s for s in inner if isinstance(s, Accumulate)]
    if not all(isinstance(s, (Accumulate, Store)) or isinstance(s, For) and s.kind in WIDE for s in inner):
        return False
    types = [s.register.dtype for s in sums]
    if any(s.combine.ufunc is None for s in sums) or any(t.kind == "b" or t.accumulator is not t for t in types):
        return False                      # floats below float32 are rounded at every step
    growing = {s.register for s in sums}
    if len(growing) < len(sums):
        return False                      # x * a + b in each iteration is not a product and a sum
    grown: set[UOp] = set()               # accumulated registers, which stores may read
    for s in inner:
        read = {n for n in toposort(expressions(s)) if n.op is o.REGISTER} & growing
        if not read <= (grown if isinstance(s, Store) else set()):
            return False
        if isinstance(s, Accumulate):
            grown.add(s.register)
    return True


def memories(loop: For) -> tuple[list[UOp], list[UOp]]:
    """The memories that a loop stores to, once per store, and those that it loads from."""
    loaded = list(dict.fromkeys(n.src[0] for n in loads_in([loop])))
    return [s.memory for s in walk([loop]) if isinstance(s, Store)], loaded


def operands(node: UOp) -> tuple[UOp, ...]:
    """The sources whose values a node uses: not memories, nor the ranges that only name axes."""
    if node.op is o.LOAD:
        return node.src[1:]
    return () if node.op in (o.REGISTER, o.FOLD) else node.src


def order(root: UOp, is_leaf: Callable[[UOp], bool]) -> list[UOp]:
    """The nodes to compute for an expression, operands first; nothing under a leaf is visited."""
    return toposort([root], lambda node: () if is_leaf(node) else operands(node))


def is_pure(node: UOp) -> bool:
    """Whether a value consists of counters, scalars and constants alone; iterative, so depth is no limit."""
    known = _known_pure(node)
    if known is not None:
        return known
    for top in toposort([node], lambda n: [s for s in n.src if _known_pure(s) is None]):
        top.pure = top.op not in (o.LOAD, o.REGISTER, o.FOLD, o.LOCAL) and all(_known_pure(s) for s in top.src)
    return bool(_known_pure(node))


def _known_pure(node: UOp) -> bool | None:
    return getattr(node, "pure", None)


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
