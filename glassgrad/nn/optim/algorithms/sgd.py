"""Define SGD, LARS, ASGD and Rprop: steps along the gradient, or its sign. In, out: see `optimizer`."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.optim.optimizer import Group, Optimizer, Parameters
from glassgrad.tensor.tensor import Tensor


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
        super().__init__(params, locals())

    def check(self, group: Group) -> None:
        super().check(group)
        if group["nesterov"] and (not group["momentum"] or group.get("dampening")):
            raise InputError("Nesterov's momentum needs a momentum and no dampening",
                             given=f"momentum={group['momentum']}, dampening={group.get('dampening', 0.0)}",
                             expected="momentum above 0, dampening=0", fix="write momentum=0.9, nesterov=True")

    def wants(self, attribute: str, group: Group, p: Tensor) -> bool:
        return bool(group["momentum"]) and (attribute != "t" or bool(group["dampening"]))

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        value, gradient = self.decayed(value, gradient, group)
        return value - self.momentum_step(i, gradient, group.number("lr"), group)

    def momentum_step(self, i: int, gradient: Tensor, rate: Any, group: Group) -> Tensor:
        """Return the step to subtract from a parameter: the rate times its gradient with momentum."""
        if group["classic"]:
            gradient = gradient * rate
        if group["momentum"]:
            momentum, b = group.number("momentum"), self.kept("b", i, group)
            fresh = gradient
            if group.get("dampening"):
                fresh = (self.counted(i, group) == 1).where(gradient, gradient * (1 - group["dampening"]))
            b.assign((b * momentum + fresh).cast(b.dtype))
            gradient = gradient + b * momentum if group["nesterov"] else b
        return gradient if group["classic"] else gradient * rate


class LARS(SGD):
    """SGD in which each parameter's rate is lr tcoef |p| / (|g| + weight_decay |p|) (You et al., 2017; 1 where a length
    is 0).

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
        Optimizer.__init__(self, params, locals())

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        lr, decay = group.number("lr"), group.number("weight_decay")
        rate = lr
        if group["tcoef"]:
            size, slope = value.square().sum().sqrt(), gradient.square().sum().sqrt()
            rate = lr * ((size > 0) & (slope > 0)).where(size * group["tcoef"] / (slope + size * decay), 1.0)
        if group["weight_decay"] and group["pre_wd"]:
            gradient = gradient + value * decay
        step = self.momentum_step(i, gradient, rate, group)
        if group["weight_decay"] and not group["pre_wd"]:       # outside the momentum, at the unscaled rate
            value = value * (1.0 - lr * decay)
        return value - step


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
        super().__init__(params, locals())

    def shape(self, attribute: str, p: Tensor) -> tuple[int, ...]:
        return p.shape if attribute == "ax" else ()

    def initial(self, attribute: str, group: Group) -> float:
        return {"eta": group["lr"], "mu": 1.0}.get(attribute, 0.0)

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        lr, lambd = group.number("lr"), group["lambd"]
        t, eta, mu, ax = (self.kept(name, i, group) for name in ("t", "eta", "mu", "ax"))
        value, gradient = self.decayed(value, gradient, group)
        rate = (t == 0).where(lr, eta)                    # a schedule may have changed lr before the first step
        value = value * (1.0 - lambd * rate) - gradient * rate
        ax.assign((mu == 1).where(value, ax + (value - ax) * mu).cast(ax.dtype))
        t = self.counted(i, group)
        eta.assign((lr / (1.0 + lambd * lr * t) ** group["alpha"]).cast(eta.dtype))
        mu.assign((t - group["t0"]).maximum(1.0).reciprocal().cast(mu.dtype))
        return value


class Rprop(Optimizer):
    """p -= sign(g) s, where s grows by etas[1] while g keeps its sign, and shrinks by etas[0] when the sign changes; p
    then skips a step (Riedmiller and Braun, 1993). For full-batch gradients.

    >>> x = Tensor([1.0, -2.0])
    >>> optimizer = Rprop([x], lr=0.25)
    >>> _ = (x * x).sum().backward()
    >>> optimizer.step(); x.tolist()
    [0.75, -1.75]
    """
    keeps = {"t": "step", "before": "prev", "size": "step_size"}

    def __init__(self, params: Parameters, lr: float | Tensor = 0.01, etas: tuple[float, float] = (0.5, 1.2),
                 step_sizes: tuple[float, float] = (1e-6, 50.0), *, maximize: bool = False, foreach: Any = None,
                 fused: Any = None, master_weights: bool = True):
        super().__init__(params, locals())

    def check(self, group: Group) -> None:
        super().check(group)
        if len(group["etas"]) != 2 or not 0 < group["etas"][0] < 1 < group["etas"][1]:
            raise InputError("etas are what shrinks a step and what lengthens it", given=f"etas={group['etas']}",
                             expected="one number between 0 and 1, and one above 1", fix="write etas=(0.5, 1.2)")

    def initial(self, attribute: str, group: Group) -> float:
        return group["lr"] if attribute == "size" else 0.0  # type: ignore[no-any-return]

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        shrink, grow = group["etas"]
        before, size = self.kept("before", i, group), self.kept("size", i, group)
        now = (self.counted(i, group) == 1).where(group.number("lr"), size)     # a schedule may have changed lr
        agrees = (gradient * before).sign()               # -1: the gradient has changed its sign
        scaled = (agrees > 0).where(now * grow, (agrees < 0).where(now * shrink, now))
        size.assign(scaled.clamp(*group["step_sizes"]).cast(size.dtype))
        gradient = (agrees < 0).where(0.0, gradient)
        before.assign(gradient.cast(before.dtype))
        return value - gradient.sign() * size
