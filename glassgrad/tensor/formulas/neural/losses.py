"""Compute losses on nodes: differences, cross entropies, margins. In: predictions and targets. Out: one loss per
example.

`reduced` reduces losses to one number. Does not know tensors.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.base.source_lines import user_line
from glassgrad.compiler.graph import UOp, promote
from glassgrad.tensor.autograd.custom_gradient import gradient_is
from glassgrad.tensor.formulas import (absolute, add, along, as_float, broadcast, choose, divide, elementary, equal,
                                       flatten, in_accumulator, maximum, mean, minimum, mul, norm, not_equal, power,
                                       square, sub, total, unsqueeze, where)
from glassgrad.tensor.formulas.neural.activations import log_sigmoid, log_softmax, relu
from glassgrad.tensor.formulas.special_functions import xlogy

REDUCTIONS = ("mean", "sum", "none")
# names of the losses in which each element has a target
ELEMENTWISE = frozenset(("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "kl_div", "binary_crossentropy",
                         "binary_crossentropy_logits", "hinge_embedding_loss", "soft_margin_loss",
                         "multilabel_soft_margin_loss", "gaussian_nll_loss", "poisson_nll_loss"))
_warned: dict[Any, Any] = {}          # Python's registry of warnings, so that each line warns once


def warn_of_broadcasting(what: str, x: UOp, target: Any) -> None:
    """Warn, at the user's line, if predictions and targets are broadcast: shapes (4, 1) and (4,) give 16 losses, not 4.
    One number as the target of all predictions is assumed to be intended."""
    if isinstance(target, UOp) and target.shape not in ((), x.shape):
        text = ShapeError(f"{what} broadcasts predictions and targets of different shapes",
                          given=f"predictions {x.shape}, targets {target.shape}", expected="one shape",
                          fix="reshape one of them, or expand it if broadcasting is meant").advice
        line = user_line()
        warnings.warn_explicit(text, UserWarning, line.file if line else "?", line.number if line else 0,
                               registry=_warned)


def reduced(losses: UOp, reduction: str) -> UOp:
    """Return the mean of losses, their sum, or the losses themselves."""
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        raise InputError("there is no such reduction", given=f"reduction={reduction!r}",
                         expected='"mean", "sum" or "none"', fix='write reduction="mean"')
    return mean(losses) if reduction == "mean" else total(losses) if reduction == "sum" else losses


def _exp(x: UOp) -> UOp: return in_accumulator(elementary.exp, as_float(x))
def _log(x: UOp) -> UOp: return in_accumulator(elementary.log, as_float(x))


# -- differences ---------------------------------------------------------------------------------------------
def huber(x: UOp, target: Any, delta: float) -> UOp:
    """d^2 / 2 for differences d up to delta, delta (|d| - delta / 2) beyond."""
    size = absolute(sub(x, target))
    return (size < delta).where(size * size * 0.5, (size - delta * 0.5) * delta)


def kl_divergence(x: UOp, target: UOp, log_target: bool) -> UOp:
    """target (ln target - x), for x the logarithms of probabilities."""
    if log_target:
        return _exp(target) * sub(target, x)
    return xlogy(as_float(target), as_float(target)) - mul(target, x)


# -- two classes ---------------------------------------------------------------------------------------------
def binary_cross_entropy(x: UOp, target: UOp) -> UOp:
    """-(y ln p + (1 - y) ln(1 - p)); each logarithm is at least -100."""
    return _of_probabilities(*broadcast(as_float(x), as_float(target)))


def _logs(x: UOp) -> tuple[UOp, UOp]: return _log(x).maximum(-100.0), _log(1 - x).maximum(-100.0)


def _of_probabilities_backward(g: UOp, out: UOp, x: UOp, target: UOp) -> tuple[UOp, UOp]:
    """Compute a gradient that is finite also for the probabilities 0 and 1, which a sigmoid in float32 reaches. In a
    narrower type a 1 may be a number below 1 that was rounded up; the sigmoid's own gradient uses the unrounded
    number."""
    wide = x.dtype.accumulator
    rounded_away = 0.0 if wide is x.dtype else 2.0 ** -(x.dtype.mantissa + 2)
    g, p, y = g.cast(wide), x.cast(wide), target.cast(wide)
    yes, no = _logs(p)
    slope = (p * (1 - p).maximum(rounded_away)).maximum(1e-12)
    return (g * (p - y) / slope).cast(x.dtype), (g * (no - yes)).cast(target.dtype)


@gradient_is(_of_probabilities_backward)
def _of_probabilities(x: UOp, target: UOp) -> UOp:
    p, y = x.cast(x.dtype.accumulator), target.cast(x.dtype.accumulator)
    yes, no = _logs(p)
    return (-(y * yes + (1 - y) * no)).cast(x.dtype)


def binary_cross_entropy_logits(x: UOp, target: UOp, pos_weight: UOp | None = None) -> UOp:
    """`binary_cross_entropy` of sigmoid(x), without overflow."""
    target = as_float(target)
    weight = target if pos_weight is None else mul(target, pos_weight)
    return -(mul(weight, log_sigmoid(x)) + (1 - target) * log_sigmoid(-as_float(x)))


# -- many classes --------------------------------------------------------------------------------------------
def class_axis(x: UOp, target: UOp, what: str, last: bool = False) -> int:
    """Return the axis of the classes: 1, or the only axis; or the last one."""
    axis = len(x.shape) - 1 if last or len(x.shape) == 1 else 1
    if not x.shape or target.shape != x.shape[:axis] + x.shape[axis + 1:]:
        raise ShapeError(f"the targets of {what} do not fit the predictions",
                         given=f"predictions {x.shape}, targets {target.shape}",
                         expected=f"targets of shape {x.shape[:axis] + x.shape[axis + 1:]}, one class each",
                         fix=f"check the batch sizes; classes are axis {max(axis, 0)} of the predictions")
    return axis


def by_class(x: UOp, weight: UOp, axis: int) -> UOp:
    """Reshape one weight per class so that it broadcasts over the predictions."""
    if weight.shape != (x.shape[axis],):
        raise ShapeError("there is one weight per class", given=f"weight {weight.shape}, predictions {x.shape}",
                         expected=f"shape ({x.shape[axis]},)", fix="check the number of classes")
    return weight.reshape((weight.elements,) + (1,) * (len(x.shape) - axis - 1)).broadcast(x.shape)


def of_classes(x: UOp, logs: UOp, target: UOp, axis: int, weight: UOp | None, ignored: int | None, smooth: float,
               reduction: str) -> UOp:
    """Minus the log-probability of each target class, smoothed by the mean over all classes, weighted by class, and 0
    where the target is ignored. The mean is over the weights of targets that are not ignored."""
    counted = not_equal(target, ignored) if ignored is not None else target.eq(target)
    losses = -choose(logs, target, axis, ignored)
    share = counted.cast(losses.dtype)
    if weight is not None:
        weights = by_class(x, weight, axis)
        share = share * choose(weights, target, axis, ignored)
        losses, logs = losses * share, logs * weights
    if smooth:
        losses = losses * (1 - smooth) - mean(logs, axis) * smooth
    losses = counted.where(losses, 0)
    return divide(total(losses), total(share)) if reduction == "mean" else reduced(losses, reduction)


def nll(x: UOp, target: UOp, weight: UOp | None, ignored: int | None, reduction: str) -> UOp:
    """Minus the log-probability of each target class."""
    x = as_float(x)
    return of_classes(x, x, target, class_axis(x, target, "nll_loss"), weight, ignored, 0.0, reduction)


def cross_entropy(x: UOp, target: UOp, reduction: str, smooth: float, ignored: int, weight: UOp | None) -> UOp:
    """Minus the log-probability of target classes, or of target probabilities."""
    axis = 0 if len(x.shape) == 1 else 1
    logs = log_softmax(x, axis)
    if target.dtype.kind == "f":
        if target.shape != x.shape:
            raise ShapeError("the target probabilities do not fit the predictions",
                             given=f"predictions {x.shape}, targets {target.shape}", expected="one shape",
                             fix="for classes, pass integers: target.int()")
        target = target * (1 - smooth) + smooth / x.shape[axis] if smooth else target
        logs = logs if weight is None else logs * by_class(x, weight, axis)
        losses = -total(logs * target, axis)
        return total(losses) / max(1, losses.elements) if reduction == "mean" else reduced(losses, reduction)
    class_axis(x, target, "cross_entropy")
    return of_classes(x, logs, target, axis, weight, ignored, smooth, reduction)


def sparse_cross_entropy(x: UOp, target: UOp, ignored: int, smooth: float, reduction: str) -> UOp:
    """Minus the log-probability of target classes, for predictions whose last axis has the classes."""
    axis = class_axis(x, target, "sparse_categorical_crossentropy", last=True)
    return of_classes(x, log_softmax(x, axis), target, axis, None, ignored, smooth, reduction)


# -- distances and margins -----------------------------------------------------------------------------------
def cosine_similarity(x: UOp, y: UOp, axis: int, eps: float) -> UOp:
    """x . y / (|x| |y|) along an axis; each length counts as at least eps."""
    def cosine(x: UOp, y: UOp) -> UOp:
        return total(mul(x, y), axis) / (maximum(norm(x, 2, axis), eps) * maximum(norm(y, 2, axis), eps))

    dtype = promote(as_float(x).dtype, y.dtype)
    return in_accumulator(cosine, x.cast(dtype), y.cast(dtype))


def pairwise_distance(x: UOp, y: Any, p: float, eps: float, keepdim: bool = False) -> UOp:
    """The p-norm of x - y + eps along the last axis."""
    return norm(sub(x, y) + eps, p, -1, keepdim)


def triplet_margin(x: UOp, positive: UOp, negative: UOp, margin: float, p: float, eps: float, swap: bool) -> UOp:
    """max(0, |x - positive| - |x - negative| + margin)."""
    near, far = pairwise_distance(x, positive, p, eps), pairwise_distance(x, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return relu(near - far + margin)


def cosine_embedding(x: UOp, y: UOp, target: UOp, margin: float) -> UOp:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1, 0 for all other targets."""
    alike = cosine_similarity(x, y, -1, 1e-8)
    return where(equal(target, 1), 1 - alike, where(equal(target, -1), relu(alike - margin), 0))


def hinge_embedding(x: UOp, target: UOp, margin: float) -> UOp:
    """x where the target is 1, max(0, margin - x) where it is -1, both where it is neither."""
    return add(where(equal(target, -1), 0, x), where(equal(target, 1), 0, maximum(sub(margin, x), 0)))


def multi_margin(x: UOp, target: UOp, p: int, margin: float, weight: UOp | None) -> UOp:
    """The mean over the other classes of max(0, margin - x[target] + x[class])^p, of (batch, classes) or one row."""
    rows = x if len(x.shape) != 1 else unsqueeze(x, 0)
    if len(rows.shape) != 2 or target.elements != rows.shape[0]:
        raise ShapeError("the targets of multi_margin_loss do not fit",
                         given=f"predictions {x.shape}, targets {target.shape}",
                         expected="(batch, classes) and one class each", fix="check the batch sizes")
    target = flatten(target)
    losses = power(relu(margin - unsqueeze(choose(rows, target, 1), 1) + rows), p)
    if weight is not None:
        losses = losses * unsqueeze(choose(by_class(rows, weight, 1), target, 1), 1)
    is_target = along(rows.shape[1], 1, rows.shape).eq(unsqueeze(target, 1))
    found = divide(total(is_target.where(0, losses), 1), rows.shape[1])
    return found.reshape(x.shape[:-1])


# -- distributions -------------------------------------------------------------------------------------------
def gaussian(x: UOp, target: UOp, var: UOp, full: bool, eps: float) -> UOp:
    """(ln var + (x - target)^2 / var) / 2, with var at least eps; `full` adds ln(2 pi) / 2."""
    if x.shape and var.shape == x.shape[:-1]:               # one variance for each row
        var = unsqueeze(var, -1)
    spread = var + (maximum(var, eps) - var).detach()       # the limit changes the value, not the gradient
    losses = (_log(spread) + square(sub(x, target)) / spread) * 0.5
    return losses + 0.5 * math.log(2 * math.pi) if full else losses


def poisson(x: UOp, target: UOp, log_input: bool, eps: float) -> UOp:
    """e^x - target x, or, without `log_input`, x - target ln(x + eps)."""
    return _exp(x) - mul(target, x) if log_input else x - mul(target, _log(x + eps))
