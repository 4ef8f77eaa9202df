"""RMSprop: the gradient over the root of its running mean square. In, out: see `base`."""

from __future__ import annotations

from typing import Any

from glassgrad.nn.optim.optimizer import Optimizer, Parameters
from glassgrad.nn.optim.parameter_group import Group
from glassgrad.tensor.tensor import Tensor

__all__ = ["RMSprop"]


class RMSprop(Optimizer):
    """v = alpha v + (1 - alpha) g^2;  p -= lr g / (sqrt(v) + eps); `centered` subtracts the square of the running
    mean of g from v, `momentum` averages the steps.

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = RMSprop([x], lr=0.1)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([0., 1.], dtype=float32)
    """
    keeps = {"t": "step", "v": "square_avg", "mean": "grad_avg", "b": "momentum_buffer"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.01, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False, *,
                 maximize: bool = False, foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay,
                                  "momentum": momentum, "centered": centered, "maximize": maximize}, master_weights)

    def wants(self, attribute: str, group: Group) -> bool:
        return {"mean": bool(group["centered"]), "b": bool(group["momentum"])}.get(attribute, True)

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        alpha, v = group["alpha"], self.kept("v", i, group)
        self.counted(i, group)
        if group["weight_decay"]:
            gradient = gradient + value * group.number("weight_decay")
        v.assign((v * alpha + gradient.square() * (1 - alpha)).cast(v.dtype))
        spread = v
        if group["centered"]:
            mean = self.kept("mean", i, group)
            mean.assign((mean + (gradient - mean) * (1 - alpha)).cast(mean.dtype))
            spread = v - mean.square()
        step = gradient / (spread.sqrt() + group["eps"])
        if group["momentum"]:
            b = self.kept("b", i, group)
            step = b.assign((b * group.number("momentum") + step).cast(b.dtype))
        return value - step * group.number("lr")
