"""Give a value a gradient that is written by hand. In: a value, its inputs, a backward function. Out: one node.

This is for formulas whose own derivative is slower or less stable than the known one: tanh' = 1 - tanh^2. The node
computes nothing: it is the value, and tells `backward` which function to call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from glassgrad.compiler.graph import OwnGradient, UOp, ops as o

Backward = Callable[..., tuple[Any, ...]]


def own_gradient(value: UOp, inputs: tuple[UOp, ...], backward: Backward, name: str = "") -> UOp:
    """Return `value` as a node for which `backward(gradient, output, *inputs)` gives the gradient of each input.

    `backward` should be a module-level function, not one created at each call: nodes are equal only if it is the same
    object. If its result depends only on the nodes that it is given, give it a unique `name`: a training step then does
    not call it, because the compiler expands the gradient once for all graphs of the same structure.

    >>> from glassgrad.compiler.graph.uop import const
    >>> own_gradient(const(4.0), (const(2.0),), lambda g, y, x: (g * x * 2.0,)).op
    Ops.DETACH
    """
    return UOp(o.DETACH, value.dtype, (value, *inputs), OwnGradient(backward, name))


def gradient_is(backward: Callable[..., Any], deferred: bool = True) \
        -> Callable[[Callable[..., UOp]], Callable[..., UOp]]:
    """A decorator: the gradient of a formula is `backward(gradient, output, *inputs)`; for several inputs, a tuple.
    With `deferred` the compiler calls it, which is right if it only builds nodes, and wrong if it runs kernels at once.

    >>> from glassgrad.compiler.graph.uop import const
    >>> @gradient_is(lambda g, y, x: g * x * 2.0)
    ... def square(x): return x * x
    >>> square(const(2.0)).op
    Ops.DETACH
    """
    def of_all(*nodes: UOp) -> tuple[Any, ...]:
        found = backward(*nodes)
        return found if isinstance(found, tuple) else (found,)

    def decorate(formula: Callable[..., UOp]) -> Callable[..., UOp]:
        name = f"{formula.__module__}.{formula.__qualname__}"
        name = name if deferred and name.startswith("glassgrad.") and "<locals>" not in name else ""

        @wraps(formula)
        def call(*inputs: UOp) -> UOp:
            return own_gradient(formula(*inputs), inputs, of_all, name)
        return call
    return decorate


class JointResults:
    """Several values computed from one input (Q and R of a matrix), where the gradient of each value needs all of them:
    each of `backwards` is a function of the value's gradient, the input and all values. The `rest` are values without a
    gradient."""

    def __init__(self, values: tuple[UOp, ...], backwards: tuple[Callable[..., UOp], ...], *rest: UOp):
        self.values, self.backwards, self.rest = values, backwards, rest

    def nodes(self, source: UOp) -> tuple[UOp, ...]:
        """Return the values as nodes whose gradients reach the input."""
        return tuple([own_gradient(value, (source,), _OneOf(self, i)) for i, value in enumerate(self.values)])


@dataclass(frozen=True)
class _OneOf:
    """The backward function of one of the values. It is equal for equal values, so that their nodes are equal too."""
    results: JointResults
    number: int

    def __call__(self, g: UOp, y: UOp, source: UOp) -> tuple[UOp]:
        return (self.results.backwards[self.number](g, source, *self.results.nodes(source)),)
