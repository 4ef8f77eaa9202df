"""torch.autograd.functional: matrices of derivatives. In: a function and its arguments. Out: its derivatives there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.tensor.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "vjp"]


def jacobian(func: Callable[..., Any], inputs: Any, create_graph: bool = False, **options: Any) -> Any:
    """How each result changes with each argument: shape of the result, then of the argument.

    >>> jacobian(lambda x: x ** 2, Tensor([1.0, 3.0])).tolist()
    [[2.0, 0.0], [0.0, 6.0]]
    """
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    own = [x.detach().requires_grad_(True) for x in given]
    value = func(*own)
    flat, shape = value.reshape(-1), value.shape
    rows = [flat[i].gradient(*own, materialize_grads=True) for i in range(flat.shape[0])]
    found = tuple(Tensor.stack(*[row[k] for row in rows]).reshape(*shape, *own[k].shape) for k in range(len(own)))
    return found if isinstance(inputs, tuple) else found[0]


def hessian(func: Callable[..., Any], inputs: Tensor, **options: Any) -> Tensor:
    """The second derivatives of a single value.

    >>> hessian(lambda x: (x ** 3).sum(), Tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    found: Tensor = jacobian(lambda x: func(x).gradient(x, materialize_grads=True)[0], inputs)
    return found


def vjp(func: Callable[..., Any], inputs: Tensor, v: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """The value, and the gradient that `v` of it sends back."""
    own = inputs.detach().requires_grad_(True)
    value = func(own)
    return value, value.gradient(own, gradient=v, materialize_grads=True)[0]


def hvp(func: Callable[..., Any], inputs: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The value, and the second derivatives times `v`."""
    own = inputs.detach().requires_grad_(True)
    value = func(own)
    first = value.gradient(own, materialize_grads=True)[0]
    return value, (first * v).sum().gradient(own, materialize_grads=True)[0]
