"""Find values of which only the upper bits are kept. In: a phase's statements. Out: nodes that need no exact rounding.

    out[i] = bfloat16(x / (1.0 + y))        the quotient in float32 has 24 bits, of which 8 are stored

A correctly rounded division takes ten instructions and a branch; one with an error of two units of the last place takes
a few. The latter is enough if every path from the quotient to memory goes through a cast to a small float, and
operations on the path only scale an error or add to it. A comparison, a truncation or a bit pattern would expose every
bit: their operands are exact, and so are values that sums and registers take. All this depends on the expression alone,
so equal expressions have equal bits in every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o, toposort
from glassgrad.compiler.lower.loops import Statement, expressions, walk

DIVISIONS = frozenset((o.DIV, o.RECIP))
LARGE = 2.0 ** 100             # a float32 between this and its inverse is normal, and so is its reciprocal
SMOOTH = DIVISIONS | {o.NEG, o.ABS, o.SQRT, o.ADD, o.SUB, o.MUL, o.MULACC, o.MAX, o.MIN, o.WHERE}


def rounded_divisions(body: list[Statement], small: Iterable[DType]) -> set[UOp]:
    """The float32 divisions in a phase whose values are only read by casts to these small types."""
    small = frozenset(small)
    roots = [e for s in walk(body) for e in expressions(s)] if small else []
    order = toposort(roots)
    if not any(node.op in DIVISIONS for node in order):
        return set()
    exact, rounded = set(roots), set[UOp]()
    for node in reversed(order):                       # users come before their sources
        for position, source in enumerate(node.src):
            is_rounded = node.op is o.CAST and node.dtype in small or \
                node.op in SMOOTH and node not in exact and not (node.op is o.WHERE and position == 0)
            (rounded if is_rounded else exact).add(source)
    return {node for node in rounded - exact if node.op in DIVISIONS and node.dtype is dtypes.float32}


def is_ordinary(value: UOp) -> bool:
    """Whether a float32 is known to be positive, and neither very small nor very large (or NaN)."""
    known: dict[UOp, tuple[float, float]] = {}
    for node in toposort([value]):
        known[node] = _bounds(node, [known[s] for s in node.src])
    least, most = known[value]
    return 1 / LARGE <= least and most <= LARGE


def _bounds(node: UOp, of: list[tuple[float, float]]) -> tuple[float, float]:
    """The least and the greatest value of a node whose sources have these bounds; infinite if nothing is known."""
    found = (-math.inf, math.inf)
    if node.op is o.CONST and node.dtype.kind == "f":
        found = (node.arg, node.arg)
    elif node.op in (o.MAX, o.MIN):
        pick = max if node.op is o.MAX else min
        found = (pick(of[0][0], of[1][0]), pick(of[0][1], of[1][1]))
    elif node.op is o.MUL:
        found = _product(of[0], of[1], node.src[0] is node.src[1])
    elif node.op is o.MULACC:
        least, most = _product(of[0], of[1], node.src[0] is node.src[1])
        found = (least + of[2][0], most + of[2][1])
    elif node.op is o.ADD:
        found = (of[0][0] + of[1][0], of[0][1] + of[1][1])
    return (-math.inf, math.inf) if any(math.isnan(end) for end in found) else found


def _product(x: tuple[float, float], y: tuple[float, float], is_square: bool) -> tuple[float, float]:
    ends = [a * b for a in x for b in y]
    if any(math.isnan(end) for end in ends):
        return -math.inf, math.inf
    return 0.0 if is_square and x[0] <= 0 <= x[1] else min(ends), max(ends)
