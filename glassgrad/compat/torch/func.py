"""Provide torch.func: function transforms. In: a function of tensors. Out: its gradient, or the function over a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.tensor.autograd.transforms import grad, jvp, value_and_grad, vmap as _vmap

__all__ = ["grad", "grad_and_value", "jvp", "vmap"]


def grad_and_value(func: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    """Return a function that returns the gradient, then the value."""
    both = value_and_grad(func, argnums)
    return lambda *args: tuple(reversed(both(*args)))


def vmap(func: Callable[..., Any], in_dims: Any = 0, out_dims: int = 0, **options: Any) -> Callable[..., Any]:
    """Map a function written for one example over a batch."""
    return _vmap(func, in_dims, out_dims)
