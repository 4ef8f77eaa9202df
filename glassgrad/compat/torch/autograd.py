"""Provide torch.autograd: gradients with respect to given inputs. In: outputs and inputs. Out: gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.compat.torch import autograd_functional as functional
from glassgrad.compat.torch.functions import enable_grad, inference_mode, set_grad_enabled
from glassgrad.tensor.autograd.function import Function
from glassgrad.tensor.autograd.no_grad import no_grad
from glassgrad.tensor.tensor import Tensor

__all__ = ["Function", "Variable", "backward", "enable_grad", "functional", "grad", "inference_mode", "no_grad",
           "set_detect_anomaly", "set_grad_enabled"]


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None,
         create_graph: bool = False, allow_unused: bool | None = None, is_grads_batched: bool = False,
         materialize_grads: bool = False, only_inputs: bool = True) -> tuple[Any, ...]:
    """The gradient of the sum of outputs with respect to each input. Gradients are expressions themselves, so there is
    no graph to create or retain; without `create_graph` they are detached, as PyTorch's are.

    >>> x = Tensor([1.0, 2.0])
    >>> [g.tolist() for g in grad((x ** 3).sum(), x)]
    [[3.0, 12.0]]
    """
    targets, values = _several(inputs), _several(outputs)
    seeds = [None] * len(values) if grad_outputs is None else _several(grad_outputs)
    reached = set().union(*(value.uop.toposort() for value in values))
    loose = bool(allow_unused or materialize_grads)
    parts = [value.gradient(*targets, gradient=seed, materialize_grads=loose or len(values) > 1)
             for value, seed in zip(values, seeds)]
    found: list[Any] = [sum(part[1:], part[0]) for part in zip(*parts)]
    if not create_graph:
        found = [g.detach() for g in found]
    if allow_unused and not materialize_grads:
        found = [g if t.uop in reached else None for g, t in zip(found, targets)]
    return tuple(found)


def backward(tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
             **options: Any) -> None:
    """Call `backward` of each of several values."""
    values = _several(tensors)
    for value, seed in zip(values, [None] * len(values) if grad_tensors is None else _several(grad_tensors)):
        value.backward(seed, create_graph=create_graph)


def Variable(data: Tensor, requires_grad: bool = False) -> Tensor:
    """Return the tensor itself; PyTorch before 0.4 wrapped tensors in this."""
    return data.requires_grad_(True) if requires_grad else data


class set_detect_anomaly:
    """Has no effect: errors name the user's line without it."""

    def __init__(self, mode: bool = True, check_nan: bool = True): ...
    def __enter__(self) -> None: ...
    def __exit__(self, *problem: object) -> None: ...


detect_anomaly: Callable[..., Any] = set_detect_anomaly

