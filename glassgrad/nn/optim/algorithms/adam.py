"""Define Adam, AdamW, Adamax, NAdam, RAdam and LAMB: step sizes from the history of gradients. In, out: see
`optimizer`.

1 - beta^t is computed as -expm1(t ln beta), because in float32 the subtraction would lose four digits at the first
steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import dtypes
from glassgrad.nn.optim.optimizer import Group, Optimizer, Parameters
from glassgrad.tensor.tensor import Tensor

Betas = tuple[float, float]


# functions of the two betas that the formulas use, computed in float64 and rounded to float32
def _beta1(betas: Betas) -> float: return betas[0]
def _beta2(betas: Betas) -> float: return betas[1]
def _rest1(betas: Betas) -> float: return 1 - betas[0]
def _rest2(betas: Betas) -> float: return 1 - betas[1]
def _log1(betas: Betas) -> float: return math.log(betas[0]) if betas[0] else -math.inf
def _log2(betas: Betas) -> float: return math.log(betas[1]) if betas[1] else -math.inf
def _longest(betas: Betas) -> float: return 2 / (1 - betas[1]) - 1


def _pair(b1: Any, b2: float, betas: Betas | None) -> Betas:
    """Return both betas, from b1 and b2 as in tinygrad, or from a pair as in PyTorch."""
    if isinstance(b1, (tuple, list)) and b2 not in (0.999, 0.0):       # PyTorch's order: after the pair comes eps
        raise InputError("betas came as a pair, and something more behind it", given=f"{tuple(b1)}, {b2}",
                         expected="the other settings by name", fix=f"write eps={b2}")
    pair = tuple(betas) if betas is not None else tuple(b1) if isinstance(b1, (tuple, list)) else (b1, b2)
    if len(pair) != 2 or not all(0 <= b < 1 for b in pair):
        raise InputError("betas are two numbers from 0 up to, not including, 1", given=str(pair),
                         expected="such as (0.9, 0.999)",
                         fix="check the order of the arguments")
    return pair  # type: ignore[return-value]


class _Moments(Optimizer):
    """Running means of the gradient (m) and of its square (v), corrected for starting at 0."""
    keeps = {"t": "step", "m": "exp_avg", "v": "exp_avg_sq"}

    def check(self, group: Group) -> None:
        super().check(group)
        _pair(group["betas"], 0.0, None)

    @property
    def b1_t(self) -> Tensor:
        """beta1^t of the first parameter, as a tensor of one element (tinygrad's name).

        >>> Adam([Tensor([1.0])]).b1_t.tolist()
        [1.0]
        """
        return self._power(_log1)

    @property
    def b2_t(self) -> Tensor:
        """beta2^t of the first parameter, like `b1_t`."""
        return self._power(_log2)

    def _power(self, logarithm: Callable[[Betas], float]) -> Tensor:
        group = self.param_groups[0]
        return (self.kept("t", group.indices[0], group) * group.number("betas", logarithm)).exp().reshape(1)

    def moments(self, i: int, gradient: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return m and v after this gradient, and the corrections 1 - beta1^t and 1 - beta2^t."""
        t, m, v = self.counted(i, group), self.kept("m", i, group), self.kept("v", i, group)
        number = lambda of: group.number("betas", of)
        m.assign((m * number(_beta1) + gradient * number(_rest1)).cast(m.dtype))
        v.assign((v * number(_beta2) + gradient.square() * number(_rest2)).cast(v.dtype))
        key = t.uop, id(group)
        if key not in self.shared:
            self.shared[key] = -(t * number(_log1)).expm1(), -(t * number(_log2)).expm1()
        return m, v, *self.shared[key]


class Adam(_Moments):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr m' / (sqrt(v') + eps), with m' = m / (1 - b1^t) and
    v' likewise (Kingma and Ba, 2014). `weight_decay` adds weight_decay p to g; `amsgrad` divides by the largest v
    so far.

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = Adam([x], lr=0.5)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([0.5, 1.5], dtype=float32)
    """
    keeps = {"t": "step", "m": "exp_avg", "v": "exp_avg_sq", "v_max": "max_exp_avg_sq"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.001, b1: float | Betas = 0.9, b2: float = 0.999,
                 eps: float = 1e-8, weight_decay: float = 0.0, *, betas: Betas | None = None, amsgrad: bool = False,
                 maximize: bool = False, foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, {"lr": lr, "betas": _pair(b1, b2, betas), "eps": eps, "weight_decay": weight_decay,
                                  "amsgrad": amsgrad, "maximize": maximize}, master_weights)

    def wants(self, attribute: str, group: Group, p: Tensor) -> bool:
        return attribute != "v_max" or bool(group["amsgrad"])

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        value, gradient = self.decayed(value, gradient, group)
        m, v, correction1, correction2 = self.moments(i, gradient, group)
        if group["amsgrad"]:
            v_max = self.kept("v_max", i, group)
            v = v_max.assign(v_max.maximum(v))
        return value - (group.number("lr") / correction1) * (m / (v.sqrt() / correction2.sqrt() + group["eps"]))


class AdamW(Adam):
    """Adam whose weight decay acts on the parameter itself: p -= lr weight_decay p (Loshchilov and Hutter, 2017).

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = AdamW([x], lr=0.5, weight_decay=0.5)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([0.25, 1.  ], dtype=float32)
    """
    decoupled = True

    def __init__(self, params: Parameters, lr: float | Tensor = 0.001, b1: float | Betas = 0.9, b2: float = 0.999,
                 eps: float = 1e-8, weight_decay: float = 0.01, *, betas: Betas | None = None, amsgrad: bool = False,
                 maximize: bool = False, foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, lr, b1, b2, eps, weight_decay, betas=betas, amsgrad=amsgrad, maximize=maximize,
                         master_weights=master_weights)


class Adamax(_Moments):
    """m = b1 m + (1 - b1) g;  u = max(b2 u, |g| + eps);  p -= lr / (1 - b1^t) m / u (Kingma and Ba, 2014).

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = Adamax([x], lr=0.5)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([0.5, 1.5], dtype=float32)
    """
    keeps = {"t": "step", "m": "exp_avg", "u": "exp_inf"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.002, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, *, maximize: bool = False, foreach: Any = None, fused: Any = None,
                 master_weights: bool = True):
        super().__init__(params, locals())

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        number = lambda of: group.number("betas", of)
        t, m, u = self.counted(i, group), self.kept("m", i, group), self.kept("u", i, group)
        value, gradient = self.decayed(value, gradient, group)
        m.assign((m * number(_beta1) + gradient * number(_rest1)).cast(m.dtype))
        u.assign((u * number(_beta2)).maximum(gradient.abs() + group["eps"]).cast(u.dtype))
        return value - (group.number("lr") / -(t * number(_log1)).expm1()) * (m / u)


class NAdam(_Moments):
    """Adam with Nesterov momentum: p -= lr ((1 - c) g / (1 - C) + c' m / (1 - C c')) / (sqrt(v') + eps), where c = b1
    (1 - 0.96^(t momentum_decay) / 2), c' is the c of the next step, and C the product of all c so far (Dozat, 2016).

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = NAdam([x], lr=0.5)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([0.4718, 1.4718], dtype=float32)
    """
    keeps = {"t": "step", "c": "mu_product", "m": "exp_avg", "v": "exp_avg_sq"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.002, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum_decay: float = 0.004, decoupled_weight_decay: bool = False, *,
                 maximize: bool = False, foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, locals())

    def _filled(self, attribute: str, p: Tensor, group: Group) -> Tensor:
        if attribute == "c":                         # one number for a parameter of any shape
            return Tensor(1.0, dtype=p.dtype.accumulator, device=p.device, requires_grad=False)
        return super()._filled(attribute, p, group)

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        value, gradient = self.decayed(value, gradient, group)
        m, v, _, correction2 = self.moments(i, gradient, group)
        t, product, pace = self.kept("t", i, group), self.kept("c", i, group), math.log(0.96) * group["momentum_decay"]
        now, after = (((t + ahead) * pace).exp() * -0.5 + 1.0 for ahead in (0.0, 1.0))
        now, after = now * group.number("betas", _beta1), after * group.number("betas", _beta1)
        product.assign((product * now).cast(product.dtype))
        step = gradient * ((1 - now) / (1 - product)) + m * (after / (1 - product * after))
        return value - group.number("lr") * step / ((v / correction2).sqrt() + group["eps"])


class RAdam(_Moments):
    """Adam that divides by v only when v is reliable: p -= lr m' r / (sqrt(v') + eps) where rho > 5, else p -= lr m'.
    rho = R - 2 t b2^t / (1 - b2^t) is the effective number of gradients that v is the mean of, R = 2 / (1 - b2) - 1 its
    limit, and r^2 = (rho - 4) (rho - 2) R / ((R - 4) (R - 2) rho) (Liu et al., 2019).

    >>> x = Tensor([1.0, 2.0])
    >>> optimizer = RAdam([x], lr=0.5)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([0.5, 1.5], dtype=float32)
    """
    def __init__(self, params: Parameters, lr: float | Tensor = 0.001, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, decoupled_weight_decay: bool = False, *, maximize: bool = False,
                 foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, locals())

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        value, gradient = self.decayed(value, gradient, group)
        m, v, correction1, correction2 = self.moments(i, gradient, group)
        wanted, rectified = self._rectified(i, group)
        step = wanted.where(rectified * correction2.sqrt() / (v.sqrt() + group["eps"]), 1.0)
        return value - (group.number("lr") / correction1) * m * step

    def _rectified(self, i: int, group: Group) -> tuple[Tensor, Tensor]:
        """Return whether rho > 5, and r; in float64, because rho is a small difference of numbers near 2,000."""
        t = self.kept("t", i, group)
        key = "rectified", t.uop, id(group)
        if key not in self.shared:
            steps, last = t.cast(dtypes.float64), group.number("betas", _longest)
            rho = last - 2.0 * steps / (-(steps * group.number("betas", _log2))).expm1()
            square = (rho - 4.0) * (rho - 2.0) * last / ((last - 4.0) * (last - 2.0) * rho)
            self.shared[key] = rho > 5.0, (rho > 5.0).where(square, 1.0).sqrt().cast(t.dtype)
        return self.shared[key]  # type: ignore[no-any-return]


class LAMB(_Moments):
    """Adam's direction r = m' / (sqrt(v') + eps) + weight_decay p, with a step of lr |p| / |r| for each parameter (You
    et al., 2019; lr where a length is 0). With `adam`, the step is lr.

    >>> x = Tensor([3.0, 4.0])
    >>> optimizer = LAMB([x], lr=0.1)
    >>> _ = x.sum().backward()
    >>> optimizer.step(); x.numpy().round(4)
    array([2.6464, 3.6464], dtype=float32)
    """
    def __init__(self, params: Parameters, lr: float | Tensor = 0.001, b1: float | Betas = 0.9, b2: float = 0.999,
                 eps: float = 1e-6, weight_decay: float = 0.0, adam: bool = False, *, betas: Betas | None = None,
                 maximize: bool = False, foreach: Any = None, fused: Any = None, master_weights: bool = True):
        super().__init__(params, {"lr": lr, "betas": _pair(b1, b2, betas), "eps": eps, "weight_decay": weight_decay,
                                  "adam": adam, "maximize": maximize}, master_weights)

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        m, v, correction1, correction2 = self.moments(i, gradient, group)
        step = (m / correction1) / ((v / correction2).sqrt() + group["eps"])
        if group["weight_decay"]:
            step = step + value * group.number("weight_decay")
        rate = group.number("lr")
        if not group["adam"]:
            size, length = value.square().sum().sqrt(), step.square().sum().sqrt()
            rate = rate * ((size > 0) & (length > 0)).where(size / length, 1.0)
        return value - rate * step
