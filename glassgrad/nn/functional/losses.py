"""Provide the losses of torch.nn.functional. In: predictions and targets. Out: a number, or one per example with
reduction="none".

`size_average` and `reduce`, PyTorch's older parameters for `reduction`, are accepted too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.graph import dtypes
from glassgrad.nn.functional.fixed_arguments import public_functions
from glassgrad.tensor.formulas.neural.losses import reduced
from glassgrad.tensor.tensor import Tensor

Old = bool | None


def _reduction(size_average: Old, reduce: Old, reduction: str) -> str:
    """Return the reduction; size_average and reduce, PyTorch's older parameters, override it if they are given."""
    if size_average is None and reduce is None:
        return reduction
    return "none" if reduce is False else "sum" if size_average is False else "mean"


def _reduced(each: Tensor, reduction: str) -> Tensor:
    return each._with(reduced(each.uop, reduction))


def _weighted(loss: Callable[..., Tensor], target: Tensor, weight: Tensor | None, reduction: str, *settings: Any,
              over_weights: bool = False) -> Tensor:
    """Return the reduced loss with each value times its weight; `over_weights` divides a mean by the sum of weights."""
    if weight is None:
        return loss(target, reduction, *settings)
    total = loss(target, "none", *settings) * weight
    if reduction == "mean" and over_weights:
        return total.sum() / weight.expand(total.shape).sum()
    return _reduced(total, reduction)


# -- classes -------------------------------------------------------------------------------------------------
def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Old = None,
                  ignore_index: int = -100, reduce: Old = None, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Tensor:
    """-log softmax(input) at the target class (or weighted by target probabilities).

    >>> round(cross_entropy(Tensor([[0.0, 0.0]]), Tensor([1])).item(), 4)
    0.6931
    """
    return input.cross_entropy(target, reduction=_reduction(size_average, reduce, reduction), weight=weight,
                               ignore_index=ignore_index, label_smoothing=label_smoothing)


def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Old = None,
             ignore_index: int = -100, reduce: Old = None, reduction: str = "mean") -> Tensor:
    """-input at the target class, for log-probabilities."""
    return input.nll_loss(target, weight, ignore_index, _reduction(size_average, reduce, reduction))


def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Old = None,
                         reduce: Old = None, reduction: str = "mean") -> Tensor:
    """-(t log p + (1 - t) log(1 - p))."""
    return _weighted(input.binary_cross_entropy, target, weight, _reduction(size_average, reduce, reduction))


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None,
                                     size_average: Old = None, reduce: Old = None, reduction: str = "mean",
                                     pos_weight: Tensor | None = None) -> Tensor:
    """binary_cross_entropy of sigmoid(input), without overflow."""
    how = _reduction(size_average, reduce, reduction)
    return _weighted(input.binary_cross_entropy_with_logits, target, weight, how, pos_weight)


def multi_margin_loss(input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
                      size_average: Old = None, reduce: Old = None, reduction: str = "mean") -> Tensor:
    """The mean over the other classes of max(0, margin - input[target] + input)^p."""
    return input.multi_margin_loss(target, p, margin, weight, _reduction(size_average, reduce, reduction))


def multilabel_margin_loss(input: Tensor, target: Tensor, size_average: Old = None, reduce: Old = None,
                           reduction: str = "mean") -> Tensor:
    """The sum over targets and other classes of max(0, 1 - input[target] + input), divided by the number of classes. A
    row's targets are the classes before its first -1.

    >>> multilabel_margin_loss(Tensor([[0.1, 0.2, 0.4, 0.8]]), Tensor([[3, 0, -1, 1]])).numpy().round(4)
    np.float32(0.85)
    """
    if input.shape != target.shape or input.ndim not in (1, 2):
        raise ShapeError("the targets of multilabel_margin_loss do not fit", given=f"{input.shape} and {target.shape}",
                         expected="(batch, classes) both, or (classes,)", fix="fill the rows up with -1")
    counts = (target < 0).cumsum(-1, dtype=dtypes.int32) == 0
    place = counts.where(target, 0)
    classes = Tensor.arange(input.shape[-1], dtype=target.dtype, device=target.device)
    is_target = (counts.unsqueeze(-1) & (target.unsqueeze(-1) == classes)).any(-2)
    gap = (1 - (input.gather(-1, place).unsqueeze(-1) - input.unsqueeze(-2))).relu()       # (.., target, class)
    pairs = counts.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    return _reduced(pairs.where(gap, 0).sum((-2, -1)) / input.shape[-1], _reduction(size_average, reduce, reduction))


def multilabel_soft_margin_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Old = None,
                                reduce: Old = None, reduction: str = "mean") -> Tensor:
    """The mean over classes of a logistic loss for each."""
    return input.multilabel_soft_margin_loss(target, weight, _reduction(size_average, reduce, reduction))


def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
             reduction: str = "mean", zero_infinity: bool = False) -> Tensor:
    """Connectionist temporal classification."""
    return log_probs.ctc_loss(targets, input_lengths, target_lengths, blank, reduction, zero_infinity)


# -- values --------------------------------------------------------------------------------------------------
def mse_loss(input: Tensor, target: Tensor, size_average: Old = None, reduce: Old = None, reduction: str = "mean",
             weight: Tensor | None = None) -> Tensor:
    """(input - target)^2.

    >>> mse_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    2.0
    """
    return _weighted(input.mse_loss, target, weight, _reduction(size_average, reduce, reduction), over_weights=True)


def l1_loss(input: Tensor, target: Tensor, size_average: Old = None, reduce: Old = None, reduction: str = "mean",
            weight: Tensor | None = None) -> Tensor:
    """|input - target|."""
    return _weighted(input.l1_loss, target, weight, _reduction(size_average, reduce, reduction), over_weights=True)


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0,
               weight: Tensor | None = None) -> Tensor:
    """d^2 / 2 for differences d up to delta, delta (|d| - delta / 2) beyond."""
    return _weighted(input.huber_loss, target, weight, reduction, delta, over_weights=True)


def smooth_l1_loss(input: Tensor, target: Tensor, size_average: Old = None, reduce: Old = None,
                   reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """The Huber loss divided by beta."""
    return input.smooth_l1_loss(target, _reduction(size_average, reduce, reduction), beta)


def kl_div(input: Tensor, target: Tensor, size_average: Old = None, reduce: Old = None, reduction: str = "mean",
           log_target: bool = False) -> Tensor:
    """target (log target - input), for log-probabilities."""
    return input.kl_div(target, _reduction(size_average, reduce, reduction), log_target)


def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool = True, full: bool = False,
                     size_average: Old = None, eps: float = 1e-8, reduce: Old = None,
                     reduction: str = "mean") -> Tensor:
    """exp(input) - target input, or without exp; `full` adds Stirling's approximation of log target!."""
    each = input.poisson_nll_loss(target, log_input, eps, "none")
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        each = each + (target > 1).where(stirling, 0.0)
    return _reduced(each, _reduction(size_average, reduce, reduction))


def gaussian_nll_loss(input: Tensor, target: Tensor, var: Tensor, full: bool = False, eps: float = 1e-6,
                      reduction: str = "mean") -> Tensor:
    """(log var + (input - target)^2 / var) / 2."""
    return input.gaussian_nll_loss(target, var, full, eps, reduction)


def soft_margin_loss(input: Tensor, target: Tensor, size_average: Old = None, reduce: Old = None,
                     reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target input)), for targets of 1 and -1."""
    return input.soft_margin_loss(target, _reduction(size_average, reduce, reduction))


# -- pairs ---------------------------------------------------------------------------------------------------
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis."""
    return x1.cosine_similarity(x2, dim, eps)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis."""
    return x1.pairwise_distance(x2, p, eps, keepdim)


def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0,
                          size_average: Old = None, reduce: Old = None, reduction: str = "mean") -> Tensor:
    """1 - cos for pairs that belong together (target 1), max(0, cos - margin) for others (target -1)."""
    return input1.cosine_embedding_loss(input2, target, margin, _reduction(size_average, reduce, reduction))


def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0,
                        size_average: Old = None, reduce: Old = None, reduction: str = "mean") -> Tensor:
    """max(0, margin - target (input1 - input2))."""
    return input1.margin_ranking_loss(input2, target, margin, _reduction(size_average, reduce, reduction))


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, size_average: Old = None,
                         reduce: Old = None, reduction: str = "mean") -> Tensor:
    """x for targets of 1, max(0, margin - x) for targets of -1."""
    return input.hinge_embedding_loss(target, margin, _reduction(size_average, reduce, reduction))


def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
                        eps: float = 1e-6, swap: bool = False, size_average: Old = None, reduce: Old = None,
                        reduction: str = "mean") -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin)."""
    return anchor.triplet_margin_loss(positive, negative, margin, p, eps, swap,
                                      _reduction(size_average, reduce, reduction))


def triplet_margin_with_distance_loss(anchor: Tensor, positive: Tensor, negative: Tensor, *,
                                      distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
                                      margin: float = 1.0, swap: bool = False, reduction: str = "mean") -> Tensor:
    """`triplet_margin_loss` with a custom distance function."""
    distance = distance_function or pairwise_distance
    far = distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return _reduced((distance(anchor, positive) - far + margin).relu(), reduction)

__all__ = public_functions(globals())
