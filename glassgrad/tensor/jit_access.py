"""What the jit and optimizers need of a tensor besides its public names. In: tensors, nodes. Out: tensors, nodes.

A replay makes its results and leaves gradients without running a method of the user's program. A step of an optimizer
computes with values, not with views that a write would have to reach. The names here are all that they need to know of
a tensor's state. Does not know traces, replays or formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from glassgrad.compiler.graph import UOp
from glassgrad.tensor.autograd.gradient_leaves import is_held
from glassgrad.tensor.tensor import Tensor, class_of_results

GRADIENT_SLOT = "_grad"          # the attribute with what `unread_gradient` returns, for generated code
WANTED_SLOT = "_requires_grad"   # the attribute behind `requires_grad`, for generated code
wants_gradient = attrgetter(WANTED_SLOT)      # `requires_grad` of a tensor, without a call of Python's


def unread_gradient(tensor: Tensor) -> Any:
    """The content of a tensor's gradient slot, without making a tensor of it: a tensor, None, RESET, or an
    UnreadGradient (autograd/gradient_leaves.py)."""
    return tensor._grad


def set_unread_gradient(tensor: Tensor, gradient: Any) -> None:
    """Set a tensor's gradient slot; a trace does not record it."""
    tensor._grad = gradient


def assign_node(tensor: Tensor, node: UOp) -> None:
    """Give a tensor, and its views, a value that was computed."""
    tensor._rebound(node)


def computed_from(tensor: Tensor, node: UOp, *others: Tensor | None) -> Tensor:
    """A tensor of a node computed from these tensors: of the first one's class, or of a subclass among the others."""
    return tensor._with(node, *others)


def result_maker(kind: type[Tensor]) -> Callable[[UOp], Tensor]:
    """A function of a BUFFER that makes the one tensor over it."""
    return kind._of_result


def view_maker(tensor: Tensor) -> Callable[[UOp], Tensor]:
    """A function of a node that makes a tensor like this one: a leaf with a gradient of its own, or not a leaf."""
    kind = class_of_results(tensor)
    return (lambda node: kind(kind._of_node(node))) if is_held(tensor) else kind._of_node
