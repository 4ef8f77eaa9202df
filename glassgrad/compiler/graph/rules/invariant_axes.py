"""Reduce only what changes. In: sinks. Out: sinks that reduce no axis along which the source is constant.

A value repeated along an axis (a bias, a gradient of ones) need not be reduced once for every repetition:
    sum over k of x[k, *]  ==  the same for every *, so it is computed once and repeated        (a kept axis)
    sum over n equal values == n times the value; their maximum is the value                    (a reduced axis)
Which axes a value changes along is known from the graph (`axis_dependence.varies`), through any views and elementwise
ops between. The rules of algebra come after it, and merge the views that it leaves.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.axis_dependence import nontrivial, varies
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.symbolic import least
from glassgrad.compiler.graph.uop import UOp, const


def reduce_fewer_axes(sinks: list[UOp]) -> list[UOp]:
    """The sinks with every reduction over no axis along which its source is constant."""
    order = toposort(sinks)
    if not any(n.op in o.REDUCE for n in order):
        return sinks
    changes = varies(order)
    new: dict[UOp, UOp] = {}
    for n in order:
        rebuilt = n.over(tuple([new[s] for s in n.src]))
        if n.op in o.REDUCE:
            fixed = frozenset(a for a in nontrivial(n.src[0].shape) - changes[n.src[0]] if least(n.src[0].shape[a]) > 0)
            if fixed and 0 not in n.src[0].shape:
                rebuilt = _over_fewer_axes(rebuilt, fixed) or rebuilt
        new[n] = rebuilt
    return [new[s] for s in sinks]


def _over_fewer_axes(node: UOp, fixed: frozenset[int]) -> UOp | None:
    """The reduction without the axes along which its source is constant; None where it stays as it is."""
    source, axes = node.src[0], frozenset(node.arg.axes)
    gone = fixed & axes
    if gone and node.op is o.PROD:
        fixed, gone = fixed - gone, frozenset()      # powers are left as they are
        if not fixed:
            return None
    one = source.shrink([(0, 1) if a in fixed else (0, n) for a, n in enumerate(source.shape)])
    rest = tuple(sorted(axes - gone))
    value = UOp(node.op, node.dtype, (one,), node.arg._replace(axes=rest), node.place) if rest else one
    if gone and node.op is o.SUM:
        value = value * const(math.prod(source.shape[a] for a in gone), value.dtype)
    return value.expand(node.shape)
