"""Descent along the gradient, with momentum, or with a rate for each layer (LARS). In, out: see `base`."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.optim.optimizer import Optimizer, Parameters
from glassgrad.nn.optim.parameter_group import Group
from glassgrad.tensor.tensor import Tensor

__all__ = ["SGD", "LARS"]


class SGD(Optimizer):
    """g += weight_decay p;  b = momentum b + (1 - dampening) g;  p -= lr b  (nesterov: p -= lr (g + momentum b)).

    In the first step b = g. `classic` multiplies by lr before the momentum instead of after it.

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = SGD([x], lr=0.25, momentum=0.5)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     _ = x.sum().backward()
    ...     optimizer.step()
    >>> x.tolist()
    [0.375, 1.375]
    """
    keeps = {"b": "momentum_buffer", "t": "step"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.001, momentum: float = 0.0, *,
                 dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, classic: bool = False,
                 maximize: bool = False, foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, {"lr": lr, "momentum": momentum, "dampening": dampening,
                                  "weight_decay": weight_decay, "nesterov": nesterov, "classic": classic,
                                  "maximize": maximize}, master_weights)

    def check(self, group: Group) -> None:
        super().check(group)
        if group["nesterov"] and (not group["momentum"] or group["dampening"]):
            raise InputError("Nesterov's momentum needs a momentum and no dampening",
                             given=f"momentum={group['momentum']}, dampening={group['dampening']}",
                             expected="momentum above 0, dampening=0", fix="write momentum=0.9, nesterov=True")

    def wants(self, attribute: str, group: Group) -> bool:
        return bool(group["momentum"]) and (attribute != "t" or bool(group["dampening"]))

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        lr = group.number("lr")
        if group["weight_decay"]:
            gradient = gradient + value * group.number("weight_decay")
        if group["classic"]:
            gradient = gradient * lr
        if group["momentum"]:
            momentum, b = group.number("momentum"), self.kept("b", i, group)
            fresh = gradient
            if group["dampening"]:
                fresh = (self.counted(i, group) == 1).where(gradient, gradient * (1 - group["dampening"]))
            b.assign((b * momentum + fresh).cast(b.dtype))
            gradient = gradient + b * momentum if group["nesterov"] else b
        return value - (gradient if group["classic"] else gradient * lr)


class LARS(Optimizer):
    """SGD where each parameter's rate is lr tcoef |p| / (|g| + weight_decay |p|) (You et al., 2017; 1 where a
    length is 0).

    >>> x = Tensor([3.0, 4.0])
    >>> optimizer = LARS([x], lr=1.0, tcoef=0.1, weight_decay=0.0)
    >>> _ = (x * Tensor([3.0, 4.0])).sum().backward()
    >>> optimizer.step(); x.numpy()
    array([2.7, 3.6], dtype=float32)
    """
    keeps = {"b": "momentum_buffer"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.001, momentum: float = 0.9,
                 weight_decay: float = 1e-4, *, nesterov: bool = False, classic: bool = True, pre_wd: bool = True,
                 tcoef: float = 0.001, maximize: bool = False,
                 foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov,
                                  "classic": classic, "pre_wd": pre_wd, "tcoef": tcoef, "maximize": maximize},
                         master_weights)

    def wants(self, attribute: str, group: Group) -> bool:
        return bool(group["momentum"])

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        lr, decay = group.number("lr"), group.number("weight_decay")
        if group["tcoef"]:
            size, slope = value.square().sum().sqrt(), gradient.square().sum().sqrt()
            trust = ((size > 0) & (slope > 0)).where(size * group["tcoef"] / (slope + size * decay), 1.0)
        else:
            trust = 1.0  # type: ignore[assignment]
        if group["weight_decay"] and group["pre_wd"]:
            gradient = gradient + value * decay
        rate = lr * trust
        if group["classic"]:
            gradient = gradient * rate
        if group["momentum"]:
            momentum, b = group.number("momentum"), self.kept("b", i, group)
            b.assign((b * momentum + gradient).cast(b.dtype))
            gradient = gradient + b * momentum if group["nesterov"] else b
        if group["weight_decay"] and not group["pre_wd"]:       # outside the momentum, by the plain rate
            value = value * (1.0 - lr * decay)
        return value - (gradient if group["classic"] else gradient * rate)
