"""Provide torch.autograd.functional: matrices of derivatives. In: a function and its arguments. Out: its derivatives
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.tensor.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "vjp"]


def jacobian(func: Callable[..., Any], inputs: Any, create_graph: bool = False, **options: Any) -> Any:
    """The derivative of each result by each argument: shape of the result, then of the argument.

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


def hessian(func: Callable[..., Any], inputs: Any, **options: Any) -> Any:
    """The second derivatives of a scalar function; for several arguments a tuple of tuples, as in PyTorch: [i][j] is
    the derivative by argument i, then by argument j.

    >>> hessian(lambda x: (x ** 3).sum(), Tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    >>> rows = hessian(lambda x, y: (x ** 2 * y).sum(), (Tensor([3.0]), Tensor([5.0])))
    >>> [[each.item() for each in row] for row in rows]
    [[10.0, 6.0], [6.0, 0.0]]
    """
    given = inputs if isinstance(inputs, tuple) else (inputs,)

    def derived(number: int) -> Callable[..., Any]:
        return lambda *own: func(*own).gradient(*own, materialize_grads=True)[number]

    rows = tuple(jacobian(derived(number), given) for number in range(len(given)))
    return rows if isinstance(inputs, tuple) else rows[0][0]


def vjp(func: Callable[..., Any], inputs: Tensor, v: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """The value, and the vector-Jacobian product with `v`."""
    own = inputs.detach().requires_grad_(True)
    value = func(own)
    return value, value.gradient(own, gradient=v, materialize_grads=True)[0]


def hvp(func: Callable[..., Any], inputs: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The value, and the product of the Hessian with `v`."""
    own = inputs.detach().requires_grad_(True)
    value = func(own)
    first = value.gradient(own, materialize_grads=True)[0]
    return value, (first * v).sum().gradient(own, materialize_grads=True)[0]
