"""Adafactor: Adam's second moment of a matrix kept as one number a row and one a column. In, out: see `base`."""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.optim.optimizer import Optimizer, Parameters
from glassgrad.nn.optim.parameter_group import Group
from glassgrad.tensor.tensor import Tensor

__all__ = ["Adafactor"]


class Adafactor(Optimizer):
    """p -= a u / max(1, rms(u) / d), with u = g / sqrt(v) and a = max(eps[1], rms(p)) min(lr, 1 / sqrt(t))
    (Shazeer and Stern, 2018). v runs towards g^2 by t^beta2_decay a step; of a matrix only the means of its rows and
    columns are kept, and v = row column / mean(row). eps[0] is that of the parameter's type if it is None.

    >>> x = Tensor([[3.0, 4.0]])
    >>> optimizer = Adafactor([x], lr=0.5)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([[1.2322, 2.2322]], dtype=float32)
    """
    keeps = {"t": "step", "row": "row_var", "column": "col_var", "v": "variance"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.01, beta2_decay: float = -0.8,
                 eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
                 foreach: Any = None, maximize: bool = False, fused: Any = None, master_weights: bool = True):
        super().__init__(params, {"lr": lr, "beta2_decay": beta2_decay, "eps": tuple(eps), "d": d,
                                  "weight_decay": weight_decay, "maximize": maximize}, master_weights)

    def check(self, group: Group) -> None:
        super().check(group)
        if len(group["eps"]) != 2 or any(e is not None and not e >= 0 for e in group["eps"]) \
                or not group["beta2_decay"] <= 0 or not group["d"] >= 1:
            raise InputError("Adafactor cannot work with these settings",
                             given=f"eps={group['eps']}, beta2_decay={group['beta2_decay']}, d={group['d']}",
                             expected="two eps from 0 (the first may be None), beta2_decay up to 0, d from 1",
                             fix="leave them at their defaults")

    def shape(self, attribute: str, p: Tensor) -> tuple[int, ...]:
        """Axes that the kept tensor has the mean of are of size 1."""
        if attribute == "row":
            return (*p.shape[:-1], 1)
        return (*p.shape[:-2], 1, p.shape[-1]) if attribute == "column" else p.shape

    def wants_for(self, attribute: str, p: Tensor) -> bool:
        return attribute == "t" or (attribute == "v") == (p.ndim < 2)

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        lr, t, p = group.number("lr"), self.counted(i, group), self.params[i]
        small = 2.0 ** -p.dtype.mantissa if group["eps"][0] is None else group["eps"][0]
        share = t ** group["beta2_decay"]
        rate = _rms(value).maximum(group["eps"][1]) * (t ** -0.5).minimum(lr)
        if group["weight_decay"]:
            value = value * (1.0 - lr * group.number("weight_decay"))
        if p.ndim > 1:
            row, column = (self._moved(name, i, gradient.square().mean(axis, keepdim=True), share, group)
                           for name, axis in (("row", -1), ("column", -2)))
            v = row * column / row.mean(-2, keepdim=True).maximum(small)
        else:
            v = self._moved("v", i, gradient.square(), share, group)
        step = v.maximum(small * small).rsqrt() * gradient
        return value - step * (rate / (_rms(step) / group["d"]).maximum(1.0))

    def _moved(self, name: str, i: int, seen: Tensor, share: Tensor, group: Group) -> Tensor:
        kept = self.kept(name, i, group)
        return kept.assign((kept + (seen - kept) * share).cast(kept.dtype))


def _rms(x: Tensor) -> Tensor:
    return x.square().sum().sqrt() / math.sqrt(x.numel())
