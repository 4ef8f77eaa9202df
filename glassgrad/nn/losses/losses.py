"""Losses as layers: loss = CrossEntropyLoss()(predictions, targets). In: predictions and targets. Out: one number,
or one per example with reduction="none".

Each calls the method of Tensor that has the formula.
"""

from __future__ import annotations

from typing import Any

from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.tensor import Tensor

__all__ = ["MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss", "KLDivLoss", "CrossEntropyLoss", "NLLLoss", "BCELoss",
           "BCEWithLogitsLoss",
           "CTCLoss"]


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    """The mean of losses, their sum, or the losses themselves."""
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


class _Loss(Layer):
    """A loss whose only setting is how to reduce."""
    shows: tuple[str, ...] = ("reduction",)

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction


class MSELoss(_Loss):
    """The squared difference.

    >>> MSELoss()(Tensor([1.0, 5.0]), Tensor([1.0, 3.0])).item()
    2.0
    """
    def forward(self, x: Tensor, target: Tensor) -> Tensor: return x.mse_loss(target, self.reduction)


class L1Loss(_Loss):
    """The size of the difference.

    >>> L1Loss()(Tensor([1.0, 5.0]), Tensor([1.0, 3.0])).item()
    1.0
    """
    def forward(self, x: Tensor, target: Tensor) -> Tensor: return x.l1_loss(target, self.reduction)


class HuberLoss(_Loss):
    """d^2 / 2 for differences d up to delta, delta (|d| - delta / 2) beyond.

    >>> HuberLoss("none")(Tensor([0.0, 3.0]), Tensor([1.0, 0.0])).tolist()
    [0.5, 2.5]
    """
    shows = ("reduction", "delta")

    def __init__(self, reduction: str = "mean", delta: float = 1.0):
        super().__init__(reduction)
        self.delta = delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor: return x.huber_loss(target, self.reduction, self.delta)


class SmoothL1Loss(_Loss):
    """`HuberLoss` over beta.

    >>> SmoothL1Loss("none")(Tensor([0.0, 3.0]), Tensor([1.0, 0.0])).tolist()
    [0.5, 2.5]
    """
    shows = ("reduction", "beta")

    def __init__(self, reduction: str = "mean", beta: float = 1.0):
        super().__init__(reduction)
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor: return x.smooth_l1_loss(target, self.reduction, self.beta)


class KLDivLoss(_Loss):
    """target (ln target - x), for x the logarithms of probabilities.

    >>> KLDivLoss("sum")(Tensor([0.0]), Tensor([1.0])).item()
    0.0
    """
    shows = ("reduction", "log_target")

    def __init__(self, reduction: str = "mean", log_target: bool = False):
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, x: Tensor, target: Tensor) -> Tensor: return x.kl_div(target, self.reduction, self.log_target)


class BCELoss(_Loss):
    """-(y ln p + (1 - y) ln(1 - p)) for probabilities p; `weight` says how much each example counts.

    >>> BCELoss()(Tensor([1.0, 0.0]), Tensor([1.0, 0.0])).item()
    0.0
    """
    def __init__(self, weight: Tensor | None = None, reduction: str = "mean"):
        super().__init__(reduction)
        self.weight = weight

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        if self.weight is None:
            return x.binary_crossentropy(target, self.reduction)
        return _reduced(x.binary_crossentropy(target, "none") * self.weight, self.reduction)


class BCEWithLogitsLoss(Layer):
    """`BCELoss` of sigmoid(x), without overflow; `pos_weight` multiplies the term of y = 1, `weight` all of it.

    >>> BCEWithLogitsLoss()(Tensor([1000.0]), Tensor([1.0])).item()
    0.0
    """
    shows = ("reduction",)

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None):
        self.weight, self.reduction, self.pos_weight = weight, reduction, pos_weight

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        if self.weight is None:
            return x.binary_crossentropy_logits(target, self.reduction, self.pos_weight)
        return _reduced(x.binary_crossentropy_logits(target, "none", self.pos_weight) * self.weight, self.reduction)


class NLLLoss(Layer):
    """Minus the log-probability of each target class; classes are axis 1, and `weight` says how much each counts.

    >>> NLLLoss()(Tensor([[0.0, -2.0]]), Tensor([1])).item()
    2.0
    """
    shows = ("ignore_index", "reduction")

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"):
        self.weight, self.ignore_index, self.reduction = weight, ignore_index, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return x.nll_loss(target, self.weight, self.ignore_index, self.reduction)


class CrossEntropyLoss(Layer):
    """Minus the log-probability of the targets, from scores before softmax; classes are axis 1, and `weight` says how
    much each counts.

    >>> round(CrossEntropyLoss()(Tensor([[0.0, 0.0]]), Tensor([1])).exp().item(), 6)
    2.0
    """
    shows = ("ignore_index", "reduction", "label_smoothing")

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0):
        self.weight, self.ignore_index = weight, ignore_index
        self.reduction, self.label_smoothing = reduction, label_smoothing

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return x.cross_entropy(target, reduction=self.reduction, label_smoothing=self.label_smoothing,
                               ignore_index=self.ignore_index, weight=self.weight)


class CTCLoss(Layer):
    """Minus the log-probability of all alignments of label sequences with log-probabilities (time, batch, classes).

    >>> CTCLoss()(Tensor([[[0.0, -1.0]]]), Tensor([[1]]), [1], [1]).item()
    1.0
    """
    shows = ("blank", "reduction", "zero_infinity")

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False):
        self.blank, self.reduction, self.zero_infinity = blank, reduction, zero_infinity

    def forward(self, x: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        return x.ctc_loss(targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)
