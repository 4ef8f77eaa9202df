"""Define Muon: steps along an orthogonalized momentum. In, out: see `optimizer`; its parameters have 2 axes or more."""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import DType, dtypes
from glassgrad.nn.optim.optimizer import Group, Optimizer, Parameters
from glassgrad.tensor import checks
from glassgrad.tensor.formulas.linalg.factorizations import newton_schulz
from glassgrad.tensor.tensor import Tensor

Coefficients = tuple[float, float, float]
# chosen for a steep slope at 0 (Jordan, 2024): singular values end between 0.7 and 1.2
COEFFICIENTS: Coefficients = (3.4445, -4.775, 2.0315)


def orthogonal(matrix: Tensor, steps: int = 5, coefficients: Coefficients = COEFFICIENTS, eps: float = 1e-7,
               dtype: DType = dtypes.bfloat16) -> Tensor:
    """Return a matrix with the same singular vectors and singular values near 1, by the iteration of
    `Tensor.newton_schulz`. Matrices between products are rounded to `dtype`, sums are float32.

    >>> orthogonal(Tensor([[2.0, 0.0], [0.0, 1.0]])).numpy().round(1)
    array([[0.7, 0. ],
           [0. , 1.1]], dtype=float32)
    """
    wide = matrix.dtype.accumulator
    rounded = lambda x: x.cast(dtype).cast(wide)
    x = rounded(matrix)
    x = rounded(x / rounded(x.square().sum().sqrt()).maximum(eps))
    return x._with(newton_schulz(x.uop, steps, coefficients, rounded))


class Muon(Optimizer):
    """b = momentum b + (1 - momentum) g;  p -= lr (weight_decay p + scale orthogonal(b)), where nesterov mixes g
    and b once more.

    The scale is sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns)) with adjust_lr_fn="match_rms_adamw".
    For biases and embeddings use AdamW, and join the two with OptimizerGroup. The matrices of the iteration are
    rounded to bfloat16, as PyTorch's are; `ns_dtype=dtypes.float32` is the paper's formula without that. With
    adjust_lr_fn="unscaled" the scale is 1, and vectors are columns.

    >>> w = Tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> optimizer = Muon([w], lr=0.1, weight_decay=0.0)
    >>> _ = (w * w).sum().backward()
    >>> optimizer.step(); w.numpy().round(1)
    array([[0.9, 0. ],
           [0. , 0.9]], dtype=float32)
    """
    keeps = {"b": "momentum_buffer"}
    decoupled = True

    def __init__(self, params: Parameters, lr: float | Tensor = 0.001, momentum: float = 0.95,
                 weight_decay: float = 0.1, ns_steps: int = 5, ns_coefficients: Coefficients = COEFFICIENTS,
                 nesterov: bool = True, *, eps: float = 1e-7, adjust_lr_fn: str | None = None,
                 ns_dtype: DType = dtypes.bfloat16, maximize: bool = False, foreach: Any = None, fused: Any = None,
                 master_weights: bool = True):
        super().__init__(params, locals())

    def check(self, group: Group) -> None:
        super().check(group)
        flat = next((p for p in group["params"] if p.ndim < 2), None)
        if flat is not None and group["adjust_lr_fn"] != "unscaled":
            raise InputError("Muon optimizes matrices", given=f"a parameter of shape {flat.shape}",
                             expected="2 axes or more",
                             fix="give biases to another optimizer: OptimizerGroup(Muon(matrices), AdamW(rest))")
        checks.choice("there is no such scale", "check the spelling", adjust_lr_fn=group["adjust_lr_fn"],
                      among=(None, "unscaled", "original", "match_rms_adamw"))

    def update(self, i: int, value: Tensor, gradient: Tensor, group: Group) -> Tensor:
        lr, momentum, b = group.number("lr"), group.number("momentum"), self.kept("b", i, group)
        b.assign((b * momentum + gradient * (1 - momentum)).cast(b.dtype))
        step = gradient * (1 - momentum) + b * momentum if group["nesterov"] else b
        rows, columns = value.shape[0], math.prod(value.shape[1:])
        made = orthogonal(step.reshape(rows, columns), group["ns_steps"], group["ns_coefficients"], group["eps"],
                          group["ns_dtype"])
        scale = {"unscaled": 1.0, "match_rms_adamw": 0.2 * math.sqrt(max(rows, columns))}.get(
            group["adjust_lr_fn"], math.sqrt(max(1, rows / columns)))
        value, gradient = self.decayed(value, gradient, group)
        return value - lr * scale * made.reshape(value.shape)
