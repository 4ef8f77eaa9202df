"""Define Adagrad, Adadelta, RMSprop and Adafactor: the gradient divided by the root of a mean of its squares. In, out:
see `optimizer`.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.optim.optimizer import Group, Optimizer, Parameters
from glassgrad.tensor import checks
from glassgrad.tensor.tensor import Tensor


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
        super().__init__(params, locals())

    def initial(self, attribute: str, group: Group) -> float:
        return float(group["initial_accumulator_value"])

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        t, s, lr = self.counted(i, group), self.kept("s", i, group), group.number("lr")
        value, gradient = self.decayed(value, gradient, group)
        s.assign((s + gradient.square()).cast(s.dtype))
        rate = lr / ((t - 1) * group["lr_decay"] + 1) if group["lr_decay"] else lr
        return value - rate * (gradient / (s.sqrt() + group["eps"]))


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
        super().__init__(params, locals())

    def check(self, group: Group) -> None:
        super().check(group)
        checks.fraction("Adadelta", "rho is a share of what was there before", "write rho=0.9, for example",
                     rho=group["rho"])

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        rho, eps = group["rho"], group["eps"]
        v, u = self.kept("v", i, group), self.kept("u", i, group)
        self.counted(i, group)
        value, gradient = self.decayed(value, gradient, group)
        v.assign((v * rho + gradient.square() * (1 - rho)).cast(v.dtype))
        step = (u + eps).sqrt() / (v + eps).sqrt() * gradient
        u.assign((u * rho + step.square() * (1 - rho)).cast(u.dtype))
        return value - group.number("lr") * step


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
        super().__init__(params, locals())

    def wants(self, attribute: str, group: Group, p: Tensor) -> bool:
        return {"mean": bool(group["centered"]), "b": bool(group["momentum"])}.get(attribute, True)

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        alpha, v = group["alpha"], self.kept("v", i, group)
        self.counted(i, group)
        value, gradient = self.decayed(value, gradient, group)
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


class Adafactor(Optimizer):
    """p -= a u / max(1, rms(u) / d), with u = g / sqrt(v) and a = max(eps[1], rms(p)) min(lr, 1 / sqrt(t)) (Shazeer and
    Stern, 2018). v moves towards g^2 by the fraction t^beta2_decay in each step. For a matrix only the means of its
    rows and columns are stored, and v = row column / mean(row). If eps[0] is None, it is the epsilon of the parameter's
    type.

    >>> x = Tensor([[3.0, 4.0]])
    >>> optimizer = Adafactor([x], lr=0.5)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([[1.2322, 2.2322]], dtype=float32)
    """
    keeps = {"t": "step", "row": "row_var", "column": "col_var", "v": "variance"}
    decoupled = True

    def __init__(self, params: Parameters, lr: float | Tensor = 0.01, beta2_decay: float = -0.8,
                 eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
                 foreach: Any = None, maximize: bool = False, fused: Any = None, master_weights: bool = True):
        super().__init__(params, locals())

    def check(self, group: Group) -> None:
        super().check(group)
        if len(group["eps"]) != 2 or any(e is not None and not e >= 0 for e in group["eps"]) \
                or not group["beta2_decay"] <= 0 or not group["d"] >= 1:
            raise InputError("Adafactor cannot work with these settings",
                             given=f"eps={group['eps']}, beta2_decay={group['beta2_decay']}, d={group['d']}",
                             expected="two eps from 0 (the first may be None), beta2_decay up to 0, d from 1",
                             fix="leave them at their defaults")

    def shape(self, attribute: str, p: Tensor) -> tuple[int, ...]:
        """Return the parameter's shape, with size 1 along the axes that the stored tensor is a mean over."""
        if attribute == "row":
            return (*p.shape[:-1], 1)
        return (*p.shape[:-2], 1, p.shape[-1]) if attribute == "column" else p.shape

    def wants(self, attribute: str, group: Group, p: Tensor) -> bool:
        return attribute == "t" or (attribute == "v") == (p.ndim < 2)

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        lr, t, p = group.number("lr"), self.counted(i, group), self.params[i]
        small = 2.0 ** -p.dtype.mantissa if group["eps"][0] is None else group["eps"][0]
        share = t ** group["beta2_decay"]
        rate = _rms(value).maximum(group["eps"][1]) * (t ** -0.5).minimum(lr)
        value, gradient = self.decayed(value, gradient, group)
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
