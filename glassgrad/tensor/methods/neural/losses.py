"""Define losses and distances: differences, cross entropies, ctc, margins. In: predictions and targets. Out: one
number, or one per example with reduction="none".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import UOp, dtypes, full
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas import (absolute, add, as_float, as_node, divide, mean, mul, norm, square, sub, take,
                                       unsqueeze, where)
from glassgrad.tensor.formulas.neural import ctc, losses
from glassgrad.tensor.formulas.neural.activations import relu, softplus
from glassgrad.tensor.methods import REQUIRED, Operand, Self, TensorBase, arguments, computed, fraction, two_axes

_SMOOTHING = "label_smoothing is a share", "write label_smoothing=0.1, for example"


def _not_below_zero(what: str, **given: float) -> None:
    (name, value), = given.items()
    if not value >= 0:
        raise InputError(f"{what} changes its form at a distance", given=f"{name}={value}", expected="0 or more",
                         fix=f"write {name}=1.0, for example")


def _difference(x: UOp, target: Any) -> UOp:
    """Subtract in floats: the difference of integers, and its square, may not fit into their type."""
    return sub(as_float(x), target)


class LossesMixin(TensorBase):
    """Losses and distances."""
    __slots__ = ()

    def _loss(self, formula: Callable[..., UOp], what: str, reduction: str, spelling: dict[str, Any] | None = None, /,
              **own: Any) -> Self:
        """Compute a formula that gives one loss per example, and the mean or sum of them."""
        def reduced(x: UOp, target: Any, *given: Any) -> UOp:
            if what in losses.ELEMENTWISE:
                losses.warn_of_broadcasting(what, x, target)
            return losses.reduced(formula(x, target, *given), reduction)

        return computed(self, reduced, what, spelling, **own)

    # -- differences -----------------------------------------------------------------------------------------
    def mse_loss(self, target: Operand, reduction: str = "mean") -> Self:
        """The squared difference.

        >>> Tensor([1.0, 5.0]).mse_loss(Tensor([1.0, 3.0])).item()
        2.0
        """
        return self._loss(lambda x, y: square(_difference(x, y)), "mse_loss", reduction, target=target)

    def l1_loss(self, target: Operand, reduction: str = "mean") -> Self:
        """The absolute difference.

        >>> Tensor([1.0, 5.0]).l1_loss(Tensor([1.0, 3.0])).item()
        1.0
        """
        return self._loss(lambda x, y: absolute(_difference(x, y)), "l1_loss", reduction, target=target)

    def huber_loss(self, target: Operand, reduction: str = "mean", delta: float = 1.0) -> Self:
        """d^2 / 2 for differences d up to delta, delta (|d| - delta / 2) beyond.

        >>> Tensor([0.0, 3.0]).huber_loss(Tensor([1.0, 0.0]), "none").tolist()
        [0.5, 2.5]
        """
        delta, = arguments("huber_loss", delta=delta)
        _not_below_zero("huber_loss", delta=delta)
        return self._loss(losses.huber, "huber_loss", reduction, target=target, delta=delta)

    def smooth_l1_loss(self, target: Operand, reduction: str = "mean", beta: float = 1.0) -> Self:
        """d^2 / 2 beta for differences d below beta, |d| - beta / 2 beyond.

        >>> Tensor([0.0, 3.0]).smooth_l1_loss(Tensor([1.0, 0.0]), "none").tolist()
        [0.5, 2.5]
        """
        beta, = arguments("smooth_l1_loss", beta=beta)
        _not_below_zero("smooth_l1_loss", beta=beta)
        return self._loss(lambda x, y: divide(losses.huber(x, y, beta), beta) if beta else absolute(sub(x, y)),
                          "smooth_l1_loss", reduction, target=target)

    def kl_div(self, target: Self, reduction: str = "mean", log_target: bool = False) -> Self:
        """target (ln target - x), for x the logarithms of probabilities; "batchmean" divides the sum by the batch.

        >>> Tensor([0.0]).kl_div(Tensor([1.0])).tolist()
        0.0
        """
        if isinstance(reduction, str) and reduction == "batchmean":
            found = self._loss(losses.kl_divergence, "kl_div", "sum", target=target, log_target=log_target)
            return found._with(divide(found.uop, self.shape[0] if self.ndim else 1))
        return self._loss(losses.kl_divergence, "kl_div", reduction, target=target, log_target=log_target)

    # -- two classes -----------------------------------------------------------------------------------------
    def binary_crossentropy(self, target: Self = REQUIRED, reduction: str = "mean", **spelling: Any) -> Self:
        """-(y ln p + (1 - y) ln(1 - p)) for probabilities p; each logarithm is at least -100.

        >>> Tensor([1.0, 0.0]).binary_crossentropy(Tensor([1.0, 0.0])).item()
        0.0
        """
        return self._loss(losses.binary_cross_entropy, "binary_crossentropy", reduction, spelling, target=target)

    binary_cross_entropy = binary_crossentropy          # PyTorch's name

    def binary_crossentropy_logits(self, target: Self = REQUIRED, reduction: str = "mean",
                                   pos_weight: Self | None = None, **spelling: Any) -> Self:
        """`binary_crossentropy` of sigmoid(x), without overflow.

        >>> Tensor([1000.0]).binary_crossentropy_logits(Tensor([1.0])).item()
        0.0
        """
        return self._loss(losses.binary_cross_entropy_logits, "binary_crossentropy_logits", reduction, spelling,
                          target=target, pos_weight=pos_weight)

    binary_cross_entropy_with_logits = binary_crossentropy_logits

    # -- many classes ----------------------------------------------------------------------------------------
    def nll_loss(self, target: Self = REQUIRED, weight: Self | None = None, ignore_index: int | None = -100,
                 reduction: str = "mean", **spelling: Any) -> Self:
        """Minus the log-probability of each target class; classes are axis 1 (or the only one). `weight` is the weight
        of each class.

        >>> Tensor([[0.0, -2.0]]).nll_loss(Tensor([1])).item()
        2.0
        """
        return computed(self, losses.nll, "nll_loss", spelling, target=target, weight=weight, ignore_index=ignore_index,
                        reduction=reduction)

    def cross_entropy(self, target: Self = REQUIRED, reduction: str = "mean", label_smoothing: float = 0.0,
                      ignore_index: int = -100, weight: Self | None = None, **spelling: Any) -> Self:
        """Minus the log-probability of the targets: classes (integers) or probabilities (in the predictions' shape).
        `weight` is the weight of each class.

        >>> round(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).exp().item(), 6)
        2.0
        """
        smooth = fraction("cross_entropy", *_SMOOTHING, label_smoothing=label_smoothing)
        return computed(self, losses.cross_entropy, "cross_entropy", spelling, target=target, reduction=reduction,
                        label_smoothing=smooth, ignore_index=ignore_index, weight=weight)

    def sparse_categorical_crossentropy(self, target: Self = REQUIRED, ignore_index: int = -1,
                                        label_smoothing: float = 0.0, reduction: str = "mean",
                                        **spelling: Any) -> Self:
        """Minus the log-probability of the target classes, for predictions whose last axis has the classes.

        >>> round(Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).exp().item(), 6)
        2.0
        """
        what = "sparse_categorical_crossentropy"
        smooth = fraction(what, *_SMOOTHING, label_smoothing=label_smoothing)
        return computed(self, losses.sparse_cross_entropy, what, spelling, target=target, ignore_index=ignore_index,
                        label_smoothing=smooth, reduction=reduction)

    # -- distances -------------------------------------------------------------------------------------------
    def cosine_similarity(self, other: Self = REQUIRED, dim: int = 1, eps: float = 1e-8, **spelling: Any) -> Self:
        """x . other / (|x| |other|) along an axis; each length counts as at least eps. Where a length is infinite (see
        `norm`) it is NaN; PyTorch gives 0.

        >>> Tensor([[3.0, 4.0]]).cosine_similarity(Tensor([[3.0, 4.0]])).tolist()
        [1.0]
        """
        return computed(self, losses.cosine_similarity, "cosine_similarity", spelling, other=other, dim=dim, eps=eps)

    def pairwise_distance(self, other: Operand, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Self:
        """The p-norm of x - other + eps along the last axis.

        >>> Tensor([[3.0, 4.0]]).pairwise_distance(Tensor([[0.0, 0.0]]), eps=0).tolist()
        [5.0]
        """
        return computed(self, losses.pairwise_distance, "pairwise_distance", other=other, p=p, eps=eps, keepdim=keepdim)

    def cdist(self, other: Self, p: float = 2.0) -> Self:
        """The p-norm of the difference between every row of this tensor (.., m, d) and every row of the other (.., n,
        d).

        >>> Tensor([[0.0, 0.0]]).cdist(Tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]
        """
        other, p = arguments("cdist", other=other, p=p)
        two_axes("cdist", self.shape, other.shape)
        if self.shape[-1] != other.shape[-1]:
            raise ShapeError("cdist compares rows of one length", given=f"{self.shape} and {other.shape}",
                             expected="the same size of the last axis", fix="put the coordinates along the last axis")
        return self._with(norm(sub(unsqueeze(self.uop, -2), unsqueeze(other.uop, -3)), p, -1), other)

    def dist(self, other: Operand, p: float = 2) -> Self:
        """The p-norm of x - other.

        >>> Tensor([1.0, 2.0]).dist(Tensor([4.0, 6.0])).item()
        5.0
        """
        return computed(self, lambda x, y, p: norm(sub(x, y), p), "dist", other=other, p=p)

    # -- margins ---------------------------------------------------------------------------------------------
    def hinge_embedding_loss(self, target: Self, margin: float = 1.0, reduction: str = "mean") -> Self:
        """x where the target is 1, max(0, margin - x) where it is -1, both where it is neither.

        >>> Tensor([0.25, 0.25]).hinge_embedding_loss(Tensor([1.0, -1.0]), reduction="none").tolist()
        [0.25, 0.75]
        """
        return self._loss(losses.hinge_embedding, "hinge_embedding_loss", reduction, target=target, margin=margin)

    def soft_margin_loss(self, target: Self, reduction: str = "mean") -> Self:
        """ln(1 + e^(-target x)), for targets of 1 and -1.

        >>> round(Tensor([0.0]).soft_margin_loss(Tensor([1.0])).exp().item(), 6)
        2.0
        """
        return self._loss(lambda x, y: softplus(-mul(y, x)), "soft_margin_loss", reduction, target=target)

    def margin_ranking_loss(self, other: Operand, target: Self, margin: float = 0.0, reduction: str = "mean") -> Self:
        """max(0, -target (x - other) + margin): with the target 1, x should be above the other, with -1 below.

        >>> Tensor([1.0]).margin_ranking_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        return self._loss(lambda x, other, y, margin: relu(add(-mul(y, sub(x, other)), margin)),
                          "margin_ranking_loss", reduction, other=other, target=target, margin=margin)

    def triplet_margin_loss(self, positive: Self, negative: Self, margin: float = 1.0, p: float = 2.0,
                            eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Self:
        """max(0, |x - positive| - |x - negative| + margin); with `swap`, |positive - negative| is used where it is
        smaller than |x - negative|.

        >>> Tensor([[0.0]]).triplet_margin_loss(Tensor([[3.0]]), Tensor([[4.0]]), eps=0).item()
        0.0
        """
        return self._loss(losses.triplet_margin, "triplet_margin_loss", reduction, positive=positive, negative=negative,
                          margin=margin, p=p, eps=eps, swap=swap)

    def cosine_embedding_loss(self, other: Self, target: Self, margin: float = 0.0, reduction: str = "mean") -> Self:
        """1 - cos where the target is 1, max(0, cos - margin) where it is -1, 0 where it is anything else.

        >>> Tensor([[1.0, 0.0]]).cosine_embedding_loss(Tensor([[0.0, 1.0]]), Tensor([1])).item()
        1.0
        """
        return self._loss(losses.cosine_embedding, "cosine_embedding_loss", reduction, other=other, target=target,
                          margin=margin)

    def multi_margin_loss(self, target: Self, p: int = 1, margin: float = 1.0, weight: Self | None = None,
                          reduction: str = "mean") -> Self:
        """The mean over the other classes of max(0, margin - x[target] + x[class])^p.

        >>> Tensor([[0.0, 2.0]]).multi_margin_loss(Tensor([1])).item()
        0.0
        """
        return self._loss(losses.multi_margin, "multi_margin_loss", reduction, target=target, p=p, margin=margin,
                          weight=weight)

    def multilabel_soft_margin_loss(self, target: Self, weight: Self | None = None, reduction: str = "mean") -> Self:
        """The mean over classes of `binary_cross_entropy_with_logits`.

        >>> Tensor([[1000.0]]).multilabel_soft_margin_loss(Tensor([[1.0]])).item()
        0.0
        """
        def of_labels(x: UOp, y: UOp, weight: UOp | None) -> UOp:
            found = losses.binary_cross_entropy_logits(x, y)
            return mean(found if weight is None else mul(found, weight), -1)

        return self._loss(of_labels, "multilabel_soft_margin_loss", reduction, target=target, weight=weight)

    # -- distributions ---------------------------------------------------------------------------------------
    def gaussian_nll_loss(self, target: Self, var: Operand, full: bool = False, eps: float = 1e-6,
                          reduction: str = "mean") -> Self:
        """(ln var + (x - target)^2 / var) / 2, with var at least eps; `full` adds ln(2 pi) / 2.

        >>> Tensor([1.0]).gaussian_nll_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        return self._loss(lambda x, y, var, full, eps: losses.gaussian(x, y, as_node(var, x), full, eps),
                          "gaussian_nll_loss", reduction, target=target, var=var, full=full, eps=eps)

    def poisson_nll_loss(self, target: Self, log_input: bool = True, eps: float = 1e-8,
                         reduction: str = "mean") -> Self:
        """e^x - target x, or, without `log_input`, x - target ln(x + eps).

        >>> Tensor([0.0]).poisson_nll_loss(Tensor([5.0])).item()
        1.0
        """
        return self._loss(losses.poisson, "poisson_nll_loss", reduction, target=target, log_input=log_input, eps=eps)

    # -- sequences -------------------------------------------------------------------------------------------
    def ctc_loss(self, targets: Self, input_lengths: Any, target_lengths: Any, blank: int = 0,
                 reduction: str = "mean", zero_infinity: bool = False) -> Self:
        """Minus the log-probability of all alignments of label sequences with log-probabilities over time.

        The log-probabilities are (time, batch, classes), from log_softmax; targets are (batch, labels), padded, or all
        labels in one vector; lengths are (batch,). Without a batch: (time, classes). "mean" divides each loss by its
        number of labels.

        >>> Tensor([[[-1.0, -2.0]], [[-3.0, -0.5]]]).ctc_loss(Tensor([[1]]), [2], [1]).exp().item() > 1
        True
        """
        targets, blank, zero_infinity = arguments("ctc_loss", targets=targets, blank=blank, zero_infinity=zero_infinity)
        alone = self.ndim == 2
        x = unsqueeze(self.uop, 1) if alone else self.uop
        batch = x.shape[1] if len(x.shape) == 3 else -1
        lengths, counts = (self._lengths(value, batch, what) for value, what in (
            (input_lengths, "input_lengths"), (target_lengths, "target_lengths")))
        if len(x.shape) != 3 or not x.shape[0] or not 0 <= blank < x.shape[2]:
            raise ShapeError("ctc_loss needs log-probabilities over time", given=f"shape {self.shape}, blank={blank}",
                             expected="(time, batch, classes), at least one step, and blank one of the classes",
                             fix="move time to the front: x.log_softmax(-1).permute(1, 0, 2)")
        labels = targets.uop.reshape((1, targets.numel())) if alone else targets.uop
        if len(labels.shape) == 1:
            labels = self._cut_labels(labels, list(running.numbers_of(counts, self.device)))
        if len(labels.shape) != 2 or labels.shape[0] != batch or labels.dtype.kind not in "iu":
            raise ShapeError("the targets of ctc_loss do not fit",
                             given=f"{targets.dtype.name} targets {targets.shape} for a batch of {batch}",
                             expected="integers, (batch, labels) or all in one vector",
                             fix="pad the short ones with any label; target_lengths says what counts")
        _refuse_longer(lengths, x.shape[0], "input_lengths")
        _refuse_longer(counts, labels.shape[1], "target_lengths")
        counts = counts.cast(dtypes.int32)
        found = ctc.from_labels(x, labels, lengths.cast(dtypes.int32), counts, blank)
        if zero_infinity:
            found = where(found.eq(math.inf), 0, found)
        if reduction == "mean":
            return self._with(mean(divide(found, counts.maximum(1).cast(found.dtype))), targets)
        return self._with(losses.reduced(found.reshape(()) if alone else found, reduction), targets)

    def _cut_labels(self, labels: UOp, sizes: list[int]) -> UOp:
        """Split concatenated labels by their lengths: (batch, longest)."""
        count, longest = labels.shape[0], max(sizes, default=0)
        if sum(sizes) > count:
            raise InputError("ctc_loss has too few labels for these target_lengths",
                             given=f"{count} labels, lengths that add up to {sum(sizes)}",
                             expected=f"{sum(sizes)} labels, one sequence after another",
                             fix="join the labels of all sequences, without padding")
        if not count or not longest:
            return full((len(sizes), 0), 0, dtypes.int32)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        rows = [[min(start + k, count - 1) for k in range(longest)] for start in starts]
        return take(labels, 0, self._table(rows))

    def _lengths(self, value: Any, batch: int, what: str) -> UOp:
        """Return lengths that were given as a number, a list or a tensor."""
        lengths = (value if isinstance(value, TensorBase) else self._made_of(value, device=self.device)).uop
        lengths = lengths.reshape((lengths.elements,))
        if lengths.dtype.kind not in "iu" or batch >= 0 and lengths.shape != (batch,):
            raise ShapeError(f"{what} has one length per sequence",
                             given=f"{lengths.dtype.name} values, shape {lengths.shape}",
                             expected=f"{batch} integers", fix="check the batch size")
        return lengths


def _refuse_longer(lengths: UOp, most: int, what: str) -> None:
    """Raise if a length that is known already is above a maximum."""
    for i, n in enumerate(running.host_values(lengths)):
        if not 0 <= n <= most:
            raise InputError("a sequence of ctc_loss is longer than the data, or shorter than nothing",
                             given=f"{what}[{i}] = {n}", expected=f"a length from 0 to {most}",
                             fix="count what belongs to each sequence, without padding")
