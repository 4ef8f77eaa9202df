"""A value whose gradient is written by hand. In: a value, its inputs, a backward function. Out: one node.

For formulas whose own derivative is slower or less stable than the known one: tanh' = 1 - tanh^2. The node computes
nothing: it is the value, and a note to `backward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import OwnGradient
from glassgrad.compiler.graph.uop import UOp

__all__ = ["own_gradient"]

Backward = Callable[..., tuple[Any, ...]]


def own_gradient(value: UOp, inputs: tuple[UOp, ...], backward: Backward) -> UOp:
    """`value`, with `backward(gradient, output, *inputs)` giving the gradient of each input.

    `backward` should be a function of a module, not made anew at each call: nodes are equal when it is the same one.

    >>> from glassgrad.compiler.graph.uop import const
    >>> own_gradient(const(4.0), (const(2.0),), lambda g, y, x: (g * x * 2.0,)).op
    Ops.DETACH
    """
    return UOp(o.DETACH, value.dtype, (value, *inputs), OwnGradient(backward))
