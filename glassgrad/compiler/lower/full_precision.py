"""Scores in full precision. In: an expression in small floats that is never stored. Out: the same in float32.

Where a product's sums are float32 and what is made of them stays in registers, rounding each step to the type that the
graph names costs instructions and makes the result less exact. So it is left out, and a positive factor of all scores
is left to the exponential, which multiplies anyway. Does not know loops.
"""

from __future__ import annotations

import math
from collections.abc import Set

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp


def in_full_precision(root: UOp, inside: Set[UOp], dtype: DType) -> UOp:
    """An expression with the ops of `inside`, which are below it, computed in a type, and no rounding between them."""
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
            new[node] = UOp(node.op, dtype if is_float else node.dtype, wide, node.arg, node.place)
        elif node.op in o.MOVEMENT:
            new[node] = UOp(node.op, sources[0].dtype, sources, node.arg, node.place)
        else:
            new[node] = UOp(node.op, node.dtype, node.src, node.arg, node.place)
    return new[root].cast(dtype)


def without_factor(scores: UOp) -> tuple[UOp, float]:
    """Scores as others times a positive constant; what is -inf stays so.

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
    if scores.op is o.WHERE:
        condition, chosen, other = scores.src
        if _is_least(chosen):
            condition, chosen, other = UOp(o.NOT, condition.dtype, (condition,)), other, chosen
        if _is_least(other):
            inner, of_chosen = without_factor(chosen)
            return UOp(o.WHERE, scores.dtype, (condition, inner, other), scores.arg, scores.place), of_chosen
    return scores, 1.0


def _is_least(node: UOp) -> bool:
    return node.op is o.CONST and node.arg == -math.inf
