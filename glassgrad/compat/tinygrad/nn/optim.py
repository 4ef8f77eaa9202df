"""Provide tinygrad.nn.optim: glassgrad's optimizers, which warn once about a step outside training; and tinygrad's
Muon.
"""

from __future__ import annotations

import sys
from typing import Any

import glassgrad.nn.optim
from glassgrad.compat.tinygrad.nn import ADAPTER
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.nn.optim import Optimizer
from glassgrad.tensor.tensor import Tensor

__all__ = ["NOTICE", "StepNotice"]

NOTICE = ("glassgrad: optimizer.step() outside training: dropout and batch norm are in evaluation mode; "
          "`with Tensor.train():` around the step, or `Tensor.training = True` before it, trains them")


class StepNotice:
    """Prints once, on standard error, that a step is taken while dropout and batch norm are in evaluation mode."""
    said = False

    def schedule_step(self, *args: Any, **kwargs: Any) -> Any:
        """Return the step as a graph that is not computed yet."""
        if not Tensor.training and not StepNotice.said:
            StepNotice.said = True
            print(NOTICE, file=sys.stderr)
        return super().schedule_step(*args, **kwargs)    # type: ignore[misc]

    @property
    def device(self) -> str:
        """The device of the parameters."""
        return self.params[0].device                     # type: ignore[attr-defined,no-any-return]


class UnscaledMuon(glassgrad.nn.optim.Muon):
    """Muon as in tinygrad: the iteration in float32, a scale of 1, and vectors count as columns."""

    def __init__(self, params: Any, lr: Any = 0.001, momentum: float = 0.95, weight_decay: float = 0.1,
                 ns_steps: int = 5, ns_coefficients: Any = (3.4445, -4.775, 2.0315), nesterov: bool = True,
                 **options: Any):
        super().__init__(params, lr, momentum, weight_decay, ns_steps, ns_coefficients, nesterov,
                         **{"adjust_lr_fn": "unscaled", "ns_dtype": dtypes.float32, **options})


def _adapted(base: type) -> type:
    return ADAPTER.classes.get(base) or ADAPTER.made_class(base, {"__module__": __name__}, StepNotice)


def __getattr__(name: str) -> Any:
    """Return an optimizer of glassgrad's, as a subclass that prints the notice."""
    found = UnscaledMuon if name == "Muon" else getattr(glassgrad.nn.optim, name)
    is_optimizer = isinstance(found, type) and issubclass(found, Optimizer) and found is not Optimizer
    return _adapted(found) if is_optimizer else found


def __dir__() -> list[str]:
    return [name for name in dir(glassgrad.nn.optim) if not name.startswith("_")]
