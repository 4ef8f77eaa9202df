"""Clip gradients. In: parameters with gradients. Out: the same, with large gradients made smaller.

Call it between `loss.backward()` and `optimizer.step()`. Nothing is computed here: clipping becomes part of the step.
PyTorch's `foreach` has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from glassgrad.base.errors import GradientError
from glassgrad.tensor import checks
from glassgrad.tensor.tensor import Tensor


def _gradients(what: str, parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of a parameter and its gradient, for those that have one."""
    given = [parameters] if isinstance(parameters, Tensor) else checks.of_kind(
        "list[Tensor]", what, parameters=parameters)
    return [(p, grad) for p in given if (grad := p.grad) is not None]


def total_norm(parameters: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """Return the norm of all gradients as one vector; `norm_type` may be infinite.

    >>> x = Tensor([3.0]); y = Tensor([4.0])
    >>> _ = (x * x + y * y).sum().backward()
    >>> total_norm([x, y]).item()
    10.0
    """
    sizes = [grad.detach().cast(grad.dtype.accumulator).abs() for _, grad in _gradients("total_norm", parameters)]
    if not sizes:
        return Tensor(0.0)
    device = sizes[0].device
    if norm_type == math.inf:
        return Tensor.stack(*[g.max().to(device) for g in sizes]).max()
    total = sum(((g ** norm_type).sum().to(device) for g in sizes[1:]), (sizes[0] ** norm_type).sum())
    return total ** (1.0 / norm_type)


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False, foreach: Any = None) -> Tensor:
    """Scale all gradients by one factor so that their total norm is at most `max_norm`; return the norm before.

    >>> x = Tensor([3.0, 4.0])
    >>> _ = (x * x).sum().backward()
    >>> clip_grad_norm_([x], 1.0).item(), x.grad.numpy().round(4)
    (10.0, array([0.6, 0.8], dtype=float32))
    """
    max_norm = checks.of_kind("float", "clip_grad_norm_", max_norm=max_norm)
    norm_type = checks.of_kind("float", "clip_grad_norm_", norm_type=norm_type)
    checks.of_kind("bool", "clip_grad_norm_", error_if_nonfinite=error_if_nonfinite)
    held = _gradients("clip_grad_norm_", parameters)
    length = total_norm([p for p, _ in held], norm_type)
    if error_if_nonfinite and not math.isfinite(length.item()):
        raise GradientError("the gradients are not finite", given=f"a common length of {length.item()}",
                            expected="a finite length",
                            fix="lower the learning rate, or look for a division by 0")
    factor = (max_norm / (length + 1e-6)).minimum(1.0)
    for p, grad in held:
        p.grad = (grad * factor.to(p.device)).cast(grad.dtype)
    return length


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: Any = None) -> None:
    """Clamp every element of every gradient to between -clip_value and clip_value.

    >>> x = Tensor([3.0, -4.0])
    >>> _ = (x * x).sum().backward()
    >>> clip_grad_value_([x], 7.0); x.grad.tolist()
    [6.0, -7.0]
    """
    clip_value = checks.of_kind("float", "clip_grad_value_", clip_value=clip_value)
    for p, grad in _gradients("clip_grad_value_", parameters):
        p.grad = grad.clamp(-float(clip_value), float(clip_value))
