"""Losses: differences, cross entropies, ctc. In: predictions and targets. Out: one number, or one per example with
reduction="none"."""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor import checks, evaluate as running
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.broadcast import resolve_axis
from glassgrad.tensor.checks import REQUIRED
from glassgrad.tensor.formulas.arithmetic import absolute, divide, square, sub, where
from glassgrad.tensor.formulas.indexing import take
from glassgrad.tensor.formulas.movement import unsqueeze
from glassgrad.tensor.formulas.neural import ctc, losses
from glassgrad.tensor.formulas.neural.losses import reduced
from glassgrad.tensor.formulas.reductions import mean, total

__all__ = ["LossesMixin"]


class LossesMixin(TensorBase):
    """Losses."""
    __slots__ = ()

    # -- differences -----------------------------------------------------------------------------------------
    def mse_loss(self, target: Any, reduction: str = "mean") -> Self:
        """The squared difference.

        >>> Tensor([1.0, 5.0]).mse_loss(Tensor([1.0, 3.0])).item()
        2.0
        """
        return self._with(reduced(square(sub(self.uop, self._operand(target))), reduction), target)

    def l1_loss(self, target: Any, reduction: str = "mean") -> Self:
        """The size of the difference.

        >>> Tensor([1.0, 5.0]).l1_loss(Tensor([1.0, 3.0])).item()
        1.0
        """
        return self._with(reduced(absolute(sub(self.uop, self._operand(target))), reduction), target)

    def huber_loss(self, target: Any, reduction: str = "mean", delta: float = 1.0) -> Self:
        """d^2 / 2 for differences d up to delta, delta (|d| - delta / 2) beyond.

        >>> Tensor([0.0, 3.0]).huber_loss(Tensor([1.0, 0.0]), "none").tolist()
        [0.5, 2.5]
        """
        delta = checks.number("huber_loss", delta=delta)
        return self._with(reduced(losses.huber(self.uop, self._operand(target), delta), reduction), target)

    def smooth_l1_loss(self, target: Any, reduction: str = "mean", beta: float = 1.0) -> Self:
        """d^2 / 2 beta for differences d below beta, |d| - beta / 2 beyond.

        >>> Tensor([0.0, 3.0]).smooth_l1_loss(Tensor([1.0, 0.0]), "none").tolist()
        [0.5, 2.5]
        """
        beta, y = checks.number("smooth_l1_loss", beta=beta), self._operand(target)
        if beta == 0:
            return self._with(reduced(absolute(sub(self.uop, y)), reduction), target)
        return self._with(divide(reduced(losses.huber(self.uop, y, beta), reduction), beta), target)

    def kl_div(self, target: Self, reduction: str = "mean", log_target: bool = False) -> Self:
        """target (ln target - x), for x the logarithms of probabilities; "batchmean" divides the sum by the batch.

        >>> Tensor([0.0]).kl_div(Tensor([1.0])).tolist()
        0.0
        """
        checks.tensors("kl_div", target=target)
        checks.flags("kl_div", log_target=log_target)
        found = losses.kl_divergence(self.uop, target.uop, log_target)
        if isinstance(reduction, str) and reduction == "batchmean":
            return self._with(divide(total(found), self.shape[0] if self.ndim else 1), target)
        return self._with(reduced(found, reduction), target)

    # -- two classes -----------------------------------------------------------------------------------------
    def binary_crossentropy(self, target: Self = REQUIRED, reduction: str = "mean", **spelling: Any) -> Self:
        """-(y ln p + (1 - y) ln(1 - p)) for probabilities p; each logarithm is at least -100.

        >>> Tensor([1.0, 0.0]).binary_crossentropy(Tensor([1.0, 0.0])).item()
        0.0
        """
        target, = checks.spelled("binary_crossentropy", spelling, target=target)
        return self._two_classes("binary_crossentropy", target, reduction)

    def binary_cross_entropy(self, target: Self, reduction: str = "mean") -> Self:
        """PyTorch's name of `binary_crossentropy`.

        >>> Tensor([1.0, 0.0]).binary_cross_entropy(Tensor([1.0, 0.0])).item()
        0.0
        """
        return self._two_classes("binary_cross_entropy", target, reduction)

    def _two_classes(self, what: str, target: Self, reduction: str) -> Self:
        checks.tensors(what, target=target)
        return self._with(reduced(losses.binary_cross_entropy(self.uop, target.uop), reduction), target)

    def binary_crossentropy_logits(self, target: Self = REQUIRED, reduction: str = "mean",
                                   pos_weight: Self | None = None, **spelling: Any) -> Self:
        """`binary_crossentropy` of sigmoid(x), without overflow.

        >>> Tensor([1000.0]).binary_crossentropy_logits(Tensor([1.0])).item()
        0.0
        """
        target, = checks.spelled("binary_crossentropy_logits", spelling, target=target)
        return self._two_classes_logits("binary_crossentropy_logits", target, reduction, pos_weight)

    def binary_cross_entropy_with_logits(self, target: Self, reduction: str = "mean",
                                         pos_weight: Self | None = None) -> Self:
        """PyTorch's name of `binary_crossentropy_logits`.

        >>> Tensor([1000.0]).binary_cross_entropy_with_logits(Tensor([1.0])).item()
        0.0
        """
        return self._two_classes_logits("binary_cross_entropy_with_logits", target, reduction, pos_weight)

    def _two_classes_logits(self, what: str, target: Self, reduction: str, pos_weight: Self | None) -> Self:
        checks.tensors(what, target=target)
        checks.tensors_or_none(what, pos_weight=pos_weight)
        weight = None if pos_weight is None else pos_weight.uop
        found = losses.binary_cross_entropy_logits(self.uop, target.uop, weight)
        return self._with(reduced(found, reduction), target, pos_weight)

    # -- many classes ----------------------------------------------------------------------------------------
    def nll_loss(self, target: Self = REQUIRED, weight: Self | None = None, ignore_index: int | None = -100,
                 reduction: str = "mean", **spelling: Any) -> Self:
        """Minus the log-probability of each target class; classes are axis 1 (or the only one). `weight` says how much
        each class counts.

        >>> Tensor([[0.0, -2.0]]).nll_loss(Tensor([1])).item()
        2.0
        """
        target, = checks.spelled("nll_loss", spelling, target=target)
        checks.tensors("nll_loss", target=target)
        checks.tensors_or_none("nll_loss", weight=weight)
        ignored = checks.integer_or_none("nll_loss", ignore_index=ignore_index)
        weights = None if weight is None else weight.uop
        return self._with(losses.nll(self.uop, target.uop, weights, ignored, reduction), target, weight)

    def cross_entropy(self, target: Self = REQUIRED, reduction: str = "mean", label_smoothing: float = 0.0,
                      ignore_index: int = -100, weight: Self | None = None, **spelling: Any) -> Self:
        """Minus the log-probability of the targets: classes (integers) or probabilities (the predictions' shape).
        `weight` says how much each class counts.

        >>> round(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).exp().item(), 6)
        2.0
        """
        target, = checks.spelled("cross_entropy", spelling, target=target)
        checks.tensors("cross_entropy", target=target)
        checks.tensors_or_none("cross_entropy", weight=weight)
        ignored = checks.integer("cross_entropy", ignore_index=ignore_index)
        smooth = self._smoothing("cross_entropy", label_smoothing)
        weights = None if weight is None else weight.uop
        found = losses.cross_entropy(self.uop, target.uop, reduction, smooth, ignored, weights)
        return self._with(found, target, weight)

    def sparse_categorical_crossentropy(self, target: Self = REQUIRED, ignore_index: int = -1,
                                        label_smoothing: float = 0.0, reduction: str = "mean",
                                        **spelling: Any) -> Self:
        """Minus the log-probability of the target classes, which are the last axis here.

        >>> round(Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).exp().item(), 6)
        2.0
        """
        what = "sparse_categorical_crossentropy"
        target, = checks.spelled(what, spelling, target=target)
        checks.tensors(what, target=target)
        resolve_axis(-1, self.ndim, what)
        if not self.ndim or target.shape != self.shape[:-1]:
            raise ShapeError("the targets do not fit the predictions",
                             given=f"predictions {self.shape}, targets {target.shape}",
                             expected=f"targets of shape {self.shape[:-1]}, one class each",
                             fix="check the batch sizes")
        ignored, smooth = checks.integer(what, ignore_index=ignore_index), self._smoothing(what, label_smoothing)
        return self._with(losses.sparse_cross_entropy(self.uop, target.uop, ignored, smooth, reduction), target)

    @staticmethod
    def _smoothing(what: str, label_smoothing: Any) -> float:
        smooth = checks.number(what, label_smoothing=label_smoothing)
        if not 0 <= smooth <= 1:
            raise InputError("label_smoothing is a share", given=f"label_smoothing={smooth}",
                             expected="a number from 0 to 1", fix="write label_smoothing=0.1, for example")
        return float(smooth)

    # -- sequences -------------------------------------------------------------------------------------------
    def ctc_loss(self, targets: Self, input_lengths: Any, target_lengths: Any, blank: int = 0,
                 reduction: str = "mean", zero_infinity: bool = False) -> Self:
        """Minus the log-probability of all alignments of label sequences with log-probabilities over time.

        Here (time, batch, classes), from log_softmax; targets (batch, labels), padded, or all labels in one vector;
        lengths (batch,). Without a batch: (time, classes). "mean" divides each loss by its number of labels.

        >>> Tensor([[[-1.0, -2.0]], [[-3.0, -0.5]]]).ctc_loss(Tensor([[1]]), [2], [1]).exp().item() > 1
        True
        """
        checks.tensors("ctc_loss", targets=targets)
        blank = checks.integer("ctc_loss", blank=blank)
        checks.flags("ctc_loss", zero_infinity=zero_infinity)
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
            labels = self._cut_labels(labels, [int(n) for n in running.array_of(counts, self.device)])
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
        return self._with(reduced(found.reshape(()) if alone else found, reduction), targets)

    def _cut_labels(self, labels: UOp, sizes: list[int]) -> UOp:
        """Labels that stand one after another, cut at their lengths: (batch, longest)."""
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
        return take(labels, 0, self.__class__(rows, dtype=dtypes.int32, device=self.device).uop)

    def _lengths(self, value: Any, batch: int, what: str) -> UOp:
        """Lengths written as a number, a list or a tensor."""
        lengths = (value if isinstance(value, TensorBase) else self.__class__(value, device=self.device)).uop
        lengths = lengths.reshape((lengths.elements,))
        if lengths.dtype.kind not in "iu" or batch >= 0 and lengths.shape != (batch,):
            raise ShapeError(f"{what} has one length per sequence",
                             given=f"{lengths.dtype.name} values, shape {lengths.shape}",
                             expected=f"{batch} integers", fix="check the batch size")
        return lengths


def _refuse_longer(lengths: UOp, most: int, what: str) -> None:
    """Refuse lengths that are known already and beyond what there is."""
    for i, n in enumerate(running.few_numbers(lengths)):
        if not 0 <= n <= most:
            raise InputError("a sequence of ctc_loss is longer than the data, or shorter than nothing",
                             given=f"{what}[{i}] = {n}", expected=f"a length from 0 to {most}",
                             fix="count what belongs to each sequence, without padding")
