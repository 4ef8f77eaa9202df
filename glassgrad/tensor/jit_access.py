"""Give the jit and optimizers access to a tensor's state. In: tensors, nodes. Out: tensors, nodes.

A replay makes its results and leaves gradients without running a method of the user's program. A step of an optimizer
computes with values, not with views that a write would have to reach. The names in this module are all that they need
of a tensor besides its public names. Does not know traces, replays or formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from glassgrad.compiler.graph import UOp
from glassgrad.tensor.autograd.gradient_leaves import is_leaf
from glassgrad.tensor.tensor import Tensor, class_of_results

GRADIENT_SLOT = "_grad"          # for generated code: the attribute that `unread_gradient` returns
WANTED_SLOT = "_requires_grad"   # for generated code: the attribute behind `requires_grad`
wants_gradient = attrgetter(WANTED_SLOT)      # `requires_grad` of a tensor, without a call of a Python function


def unread_gradient(tensor: Tensor) -> Any:
    """Return the content of a tensor's gradient slot, without making a tensor of it: a tensor, None, RESET, or an
    UnreadGradient (autograd/gradient_leaves.py)."""
    return tensor._grad


def set_unread_gradient(tensor: Tensor, gradient: Any) -> None:
    """Set a tensor's gradient slot; a trace does not record it."""
    tensor._grad = gradient


def assign_node(tensor: Tensor, node: UOp) -> None:
    """Give a tensor, and its views, a computed value."""
    tensor._rebound(node)


def computed_from(tensor: Tensor, node: UOp, *others: Tensor | None) -> Tensor:
    """Make a tensor of a node that was computed from these tensors: of the first one's class, or of a subclass among
    the others."""
    return tensor._with(node, *others)


def result_maker(kind: type[Tensor]) -> Callable[[UOp], Tensor]:
    """Return a function that makes the only tensor over a BUFFER."""
    return kind._of_result


def view_maker(tensor: Tensor) -> Callable[[UOp], Tensor]:
    """Return a function that makes a tensor like this one of a node: a leaf with its own gradient, or not a leaf."""
    kind = class_of_results(tensor)
    return (lambda node: kind(kind._of_node(node))) if is_leaf(tensor) else kind._of_node
