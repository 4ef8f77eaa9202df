"""Adadelta: the gradient over the root of its mean square, times that of the steps so far. In, out: see `base`."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.optim.optimizer import Optimizer, Parameters
from glassgrad.nn.optim.parameter_group import Group
from glassgrad.tensor.tensor import Tensor

__all__ = ["Adadelta"]


class Adadelta(Optimizer):
    """v = rho v + (1 - rho) g^2;  d = sqrt(u + eps) / sqrt(v + eps) g;  u = rho u + (1 - rho) d^2;  p -= lr d
    (Zeiler, 2012).

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = Adadelta([x], lr=100.0)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(3)
    array([0.684, 1.684], dtype=float32)
    """
    keeps = {"t": "step", "v": "square_avg", "u": "acc_delta"}

    def __init__(self, params: Parameters, lr: float | Tensor = 1.0, rho: float = 0.9, eps: float = 1e-6,
                 weight_decay: float = 0.0, *, maximize: bool = False, foreach: Any = None, fused: Any = None,
                 master_weights: bool = True):
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay,
                                  "maximize": maximize}, master_weights)

    def check(self, group: Group) -> None:
        super().check(group)
        if not 0 <= group["rho"] <= 1:
            raise InputError("rho is a share of what was there before", given=f"rho={group['rho']}",
                             expected="a number from 0 to 1", fix="write rho=0.9, for example")

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        rho, eps = group["rho"], group["eps"]
        v, u = self.kept("v", i, group), self.kept("u", i, group)
        self.counted(i, group)
        if group["weight_decay"]:
            gradient = gradient + value * group.number("weight_decay")
        v.assign((v * rho + gradient.square() * (1 - rho)).cast(v.dtype))
        step = (u + eps).sqrt() / (v + eps).sqrt() * gradient
        u.assign((u * rho + step.square() * (1 - rho)).cast(u.dtype))
        return value - group.number("lr") * step
