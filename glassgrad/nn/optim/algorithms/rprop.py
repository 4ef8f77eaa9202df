"""Rprop: each number has a step of its own; of the gradient only the sign counts. In, out: see `base`."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.optim.optimizer import Optimizer, Parameters
from glassgrad.nn.optim.parameter_group import Group
from glassgrad.tensor.tensor import Tensor

__all__ = ["Rprop"]


class Rprop(Optimizer):
    """p -= sign(g) s, where s grows by etas[1] while g keeps its sign, and shrinks by etas[0] when it turns, which also
    lets p wait for a step (Riedmiller and Braun, 1993). For gradients of all the data, not of a batch.

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
        super().__init__(params, {"lr": lr, "etas": tuple(etas), "step_sizes": tuple(step_sizes),
                                  "maximize": maximize}, master_weights)

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
        self.counted(i, group)
        turned = (gradient * before).sign()
        scaled = (turned > 0).where(size * grow, (turned < 0).where(size * shrink, size))
        size.assign(scaled.clamp(*group["step_sizes"]).cast(size.dtype))
        gradient = (turned < 0).where(0.0, gradient)
        before.assign(gradient.cast(before.dtype))
        return value - gradient.sign() * size
