"""ASGD: descent whose steps shorten, and the mean of where it has been. In, out: see `base`."""

from __future__ import annotations

from typing import Any

from glassgrad.nn.optim.optimizer import Optimizer, Parameters
from glassgrad.nn.optim.parameter_group import Group
from glassgrad.tensor.tensor import Tensor

__all__ = ["ASGD"]


class ASGD(Optimizer):
    """p = (1 - lambd eta) p - eta g, with eta = lr / (1 + lambd lr t)^alpha; from step t0 on, `ax` is the mean of all p
    (Polyak and Juditsky, 1992). The mean is in `state_dict()`; what is trained is p.

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = ASGD([x], lr=0.5, lambd=0.0)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.tolist(), optimizer.ax[0].tolist()
    ([0.5, 1.5], [0.5, 1.5])
    """
    keeps = {"t": "step", "eta": "eta", "mu": "mu", "ax": "ax"}
    ax: list[Tensor]

    def __init__(self, params: Parameters, lr: float | Tensor = 0.01, lambd: float = 1e-4, alpha: float = 0.75,
                 t0: float = 1e6, weight_decay: float = 0.0, foreach: Any = None, maximize: bool = False, *,
                 fused: Any = None, master_weights: bool = True):
        super().__init__(params, {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay,
                                  "maximize": maximize}, master_weights)

    def shape(self, attribute: str, p: Tensor) -> tuple[int, ...]:
        return p.shape if attribute == "ax" else ()

    def initial(self, attribute: str, group: Group) -> float:
        return {"eta": group["lr"], "mu": 1.0}.get(attribute, 0.0)

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        lr, lambd = group.number("lr"), group["lambd"]
        t, eta, mu, ax = (self.kept(name, i, group) for name in ("t", "eta", "mu", "ax"))
        if group["weight_decay"]:
            gradient = gradient + value * group.number("weight_decay")
        value = value * (1.0 - lambd * eta) - gradient * eta
        ax.assign((mu == 1).where(value, ax + (value - ax) * mu).cast(ax.dtype))
        t = self.counted(i, group)
        eta.assign((lr / (1.0 + lambd * lr * t) ** group["alpha"]).cast(eta.dtype))
        mu.assign((t - group["t0"]).maximum(1.0).reciprocal().cast(mu.dtype))
        return value
