"""Adagrad: the gradient over the root of the sum of its squares. In, out: see `base`."""

from __future__ import annotations

from typing import Any

from glassgrad.nn.optim.optimizer import Optimizer, Parameters
from glassgrad.nn.optim.parameter_group import Group
from glassgrad.tensor.tensor import Tensor

__all__ = ["Adagrad"]


class Adagrad(Optimizer):
    """s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi et al., 2011).

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = Adagrad([x], lr=0.5)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([0.5, 1.5], dtype=float32)
    """
    keeps = {"t": "step", "s": "sum"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.01, lr_decay: float = 0.0,
                 weight_decay: float = 0.0, initial_accumulator_value: float = 0.0, eps: float = 1e-10, *,
                 maximize: bool = False, foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay,
                                  "initial_accumulator_value": initial_accumulator_value, "eps": eps,
                                  "maximize": maximize}, master_weights)

    def initial(self, attribute: str, group: Group) -> float:
        return float(group["initial_accumulator_value"])

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        t, s, lr = self.counted(i, group), self.kept("s", i, group), group.number("lr")
        if group["weight_decay"]:
            gradient = gradient + value * group.number("weight_decay")
        s.assign((s + gradient.square()).cast(s.dtype))
        rate = lr / ((t - 1) * group["lr_decay"] + 1) if group["lr_decay"] else lr
        return value - rate * (gradient / (s.sqrt() + group["eps"]))
