"""What a model is trained by: differences, cross entropies, ctc. In: predictions and targets. Out: one number,
or one per example with reduction="none".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor import evaluate as running, index_check
from glassgrad.tensor.broadcast import resolve_axis
from glassgrad.tensor.formulas import ctc
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.methods.special_functions import Numerics

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Losses"]


class Losses(Numerics):
    """Losses."""
    __slots__ = ()

    # -- differences -----------------------------------------------------------------------------------------
    def _reduced(self, reduction: str) -> Self:
        if reduction not in ("mean", "sum", "none"):
            raise InputError("there is no such reduction", given=f"reduction={reduction!r}",
                             expected='"mean", "sum" or "none"', fix='write reduction="mean"')
        return self.mean() if reduction == "mean" else self.sum() if reduction == "sum" else self

    def mse_loss(self, target: Any, reduction: str = "mean") -> Self:
        """The squared difference.

        >>> Tensor([1.0, 5.0]).mse_loss(Tensor([1.0, 3.0])).item()
        2.0
        """
        return (self - target).square()._reduced(reduction)

    def l1_loss(self, target: Any, reduction: str = "mean") -> Self:
        """The size of the difference.

        >>> Tensor([1.0, 5.0]).l1_loss(Tensor([1.0, 3.0])).item()
        1.0
        """
        return (self - target).abs()._reduced(reduction)

    def huber_loss(self, target: Any, reduction: str = "mean", delta: float = 1.0) -> Self:
        """d^2 / 2 for differences d up to delta, delta (|d| - delta / 2) beyond.

        >>> Tensor([0.0, 3.0]).huber_loss(Tensor([1.0, 0.0]), "none").tolist()
        [0.5, 2.5]
        """
        size = (self - target).abs()
        return (size < delta).where(size * size * 0.5, (size - delta * 0.5) * delta)._reduced(reduction)

    def smooth_l1_loss(self, target: Any, reduction: str = "mean", beta: float = 1.0) -> Self:
        """d^2 / 2 beta for differences d below beta, |d| - beta / 2 beyond.

        >>> Tensor([0.0, 3.0]).smooth_l1_loss(Tensor([1.0, 0.0]), "none").tolist()
        [0.5, 2.5]
        """
        return self.l1_loss(target, reduction) if beta == 0 else self.huber_loss(target, reduction, beta) / beta

    def kl_div(self, target: Self, reduction: str = "mean", log_target: bool = False) -> Self:
        """target (ln target - x), for x the logarithms of probabilities; "batchmean" divides the sum by the batch.

        >>> Tensor([0.0]).kl_div(Tensor([1.0])).tolist()
        0.0
        """
        losses = target.exp() * (target - self) if log_target else target.xlogy(target) - target * self
        if reduction == "batchmean":
            return losses.sum() / self.shape[0]
        return losses._reduced(reduction)

    # -- two classes -----------------------------------------------------------------------------------------
    def binary_crossentropy(self, target: Self, reduction: str = "mean") -> Self:
        """-(y ln p + (1 - y) ln(1 - p)) for probabilities p; each logarithm is at least -100.

        >>> Tensor([1.0, 0.0]).binary_crossentropy(Tensor([1.0, 0.0])).item()
        0.0
        """
        losses = -(target * self.log().maximum(-100) + (1 - target) * (1 - self).log().maximum(-100))
        return losses._reduced(reduction)

    def binary_crossentropy_logits(self, target: Self, reduction: str = "mean", pos_weight: Self | None = None) -> Self:
        """`binary_crossentropy` of sigmoid(x), without overflow.

        >>> Tensor([1000.0]).binary_crossentropy_logits(Tensor([1.0])).item()
        0.0
        """
        weighted = target * self.logsigmoid() if pos_weight is None else target * pos_weight * self.logsigmoid()
        return (-(weighted + (1 - target) * (-self).logsigmoid()))._reduced(reduction)

    def binary_cross_entropy(self, target: Self, reduction: str = "mean") -> Self:
        """PyTorch's name of `binary_crossentropy`.

        >>> Tensor([1.0, 0.0]).binary_cross_entropy(Tensor([1.0, 0.0])).item()
        0.0
        """
        return self.binary_crossentropy(target, reduction)

    def binary_cross_entropy_with_logits(
        self, target: Self, reduction: str = "mean", pos_weight: Self | None = None
    ) -> Self:
        """PyTorch's name of `binary_crossentropy_logits`.

        >>> Tensor([1000.0]).binary_cross_entropy_with_logits(Tensor([1.0])).item()
        0.0
        """
        return self.binary_crossentropy_logits(target, reduction, pos_weight)

    # -- many classes ----------------------------------------------------------------------------------------
    def nll_loss(self, target: Self, weight: Self | None = None, ignore_index: int | None = -100,
                 reduction: str = "mean") -> Self:
        """Minus the log-probability of each target class; classes are axis 1 (or the only one). `weight` says how much
        each class counts.

        >>> Tensor([[0.0, -2.0]]).nll_loss(Tensor([1])).item()
        2.0
        """
        axis = self._class_axis(target, "nll_loss")
        chosen = self._chosen(target, axis, ignore_index)
        return self._weighed(-chosen, target, axis, weight, ignore_index, reduction)

    def cross_entropy(self, target: Self, reduction: str = "mean", label_smoothing: float = 0.0,
                      ignore_index: int = -100, weight: Self | None = None) -> Self:
        """Minus the log-probability of the targets: classes (integers) or probabilities (the predictions' shape).
        `weight` says how much each class counts.

        >>> round(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).exp().item(), 6)
        2.0
        """
        axis = 0 if self.ndim == 1 else 1
        logs = self.log_softmax(axis)
        smooth = label_smoothing
        if not 0 <= smooth <= 1:
            raise InputError("label_smoothing is a share", given=f"label_smoothing={smooth}",
                             expected="a number from 0 to 1", fix="write label_smoothing=0.1, for example")
        if target.dtype.kind == "f":
            if target.shape != self.shape:
                raise ShapeError("the target probabilities do not fit the predictions",
                                 given=f"predictions {self.shape}, targets {target.shape}", expected="one shape",
                                 fix="for classes, hand in integers: target.int()")
            target = target * (1 - smooth) + smooth / self.shape[axis] if smooth else target
            if weight is not None:
                logs = logs * self._by_class(weight, axis)
            losses = -(logs * target).sum(axis)
            if reduction == "mean":
                return losses.sum() / max(1, losses.numel())
            return losses._reduced(reduction)
        self._class_axis(target, "cross_entropy")
        chosen = logs._chosen(target, axis, ignore_index)
        if not smooth:
            return self._weighed(-chosen, target, axis, weight, ignore_index, reduction)
        spread = logs if weight is None else logs * self._by_class(weight, axis)
        counted = target.ne(ignore_index)
        named = self._weighed(-chosen, target, axis, weight, ignore_index, "none")
        losses = named * (1 - smooth) - counted.where(spread.mean(axis), 0) * smooth
        if reduction != "mean":
            return losses._reduced(reduction)
        share = counted.cast(losses.dtype)
        share = share if weight is None else share * self._by_class(weight, axis)._chosen(target, axis, ignore_index)
        return losses.sum() / share.sum()

    def sparse_categorical_crossentropy(self, target: Self, ignore_index: int = -1, label_smoothing: float = 0.0,
                                        reduction: str = "mean") -> Self:
        """Minus the log-probability of the target classes, which are the last axis here.

        >>> round(Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).exp().item(), 6)
        2.0
        """
        axis = resolve_axis(-1, self.ndim, "sparse_categorical_crossentropy")
        if target.shape != self.shape[:-1]:
            raise ShapeError("the targets do not fit the predictions",
                             given=f"predictions {self.shape}, targets {target.shape}",
                             expected=f"targets of shape {self.shape[:-1]}, one class each",
                             fix="check the batch sizes")
        logs = self.log_softmax(-1)
        losses = -logs._chosen(target, axis, ignore_index)
        if label_smoothing:
            losses = losses * (1 - label_smoothing) - logs.mean(-1) * label_smoothing
        return self._weighed(losses, target, axis, None, ignore_index, reduction)

    def _class_axis(self, target: Self, what: str) -> int:
        axis = 0 if self.ndim == 1 else 1
        if target.shape != self.shape[:axis] + self.shape[axis + 1:]:
            raise ShapeError(f"the targets of {what} do not fit the predictions",
                             given=f"predictions {self.shape}, targets {target.shape}",
                             expected=f"targets of shape {self.shape[:axis] + self.shape[axis + 1:]}, one class each",
                             fix="check the batch sizes; classes are axis 1 of the predictions")
        return axis

    def _chosen(self, target: Self, axis: int, ignored: int | None = None) -> Self:
        """Along an axis, the value whose place the target names; 0 where it names none."""
        classes = self.shape[axis]
        at = counting(classes, dtypes.int32).reshape((classes,) + (1,) * (self.ndim - axis - 1)).broadcast(self.shape)
        named = self._with(at) == target.cast(dtypes.int32).unsqueeze(axis)
        index_check.watch_classes(named.uop, target.uop, classes, axis, self.shape, ignored)
        return named.where(self, 0).sum(axis)

    def _weighed(self, losses: Self, target: Self, axis: int, weight: Self | None, ignore_index: int | None,
                 reduction: str) -> Self:
        """Losses with those that do not count left out, and each class counting as much as it should."""
        counted = target.ne(ignore_index) if ignore_index is not None else target.eq(target)
        share = counted.cast(losses.dtype)
        if weight is not None:
            share = share * self._by_class(weight, axis)._chosen(target, axis, ignore_index)
            losses = losses * share
        losses = counted.where(losses, 0)
        return losses.sum() / share.sum() if reduction == "mean" else losses._reduced(reduction)

    def _by_class(self, weight: Self, axis: int) -> Self:
        """One weight per class, in the shape of the predictions."""
        if weight.shape != (self.shape[axis],):
            raise ShapeError("there is one weight per class", given=f"weight {weight.shape}, predictions {self.shape}",
                             expected=f"shape ({self.shape[axis]},)", fix="check the number of classes")
        return weight.reshape((-1,) + (1,) * (self.ndim - axis - 1)).expand(self.shape)

    def ctc_loss(self, targets: Self, input_lengths: Any, target_lengths: Any, blank: int = 0,
                 reduction: str = "mean", zero_infinity: bool = False) -> Self:
        """Minus the log-probability of all alignments of label sequences with log-probabilities over time.

        Here (time, batch, classes), from log_softmax; targets (batch, labels), padded, or all labels in one vector;
        lengths (batch,). Without a batch: (time, classes). "mean" divides each loss by its number of labels.

        >>> Tensor([[[-1.0, -2.0]], [[-3.0, -0.5]]]).ctc_loss(Tensor([[1]]), [2], [1]).exp().item() > 1
        True
        """
        alone = self.ndim == 2
        x = self.unsqueeze(1) if alone else self
        lengths, counts = (self._lengths(v, x.shape[1] if x.ndim == 3 else -1, w) for v, w in (
            (input_lengths, "input_lengths"), (target_lengths, "target_lengths")))
        if x.ndim != 3 or not x.shape[0] or not 0 <= blank < x.shape[2]:
            raise ShapeError("ctc_loss needs log-probabilities over time", given=f"shape {self.shape}, blank={blank}",
                             expected="(time, batch, classes), at least one step, and blank one of the classes",
                             fix="move time to the front: x.log_softmax(-1).permute(1, 0, 2)")
        steps, batch, _ = x.shape
        labels = targets.reshape(1, -1) if alone else targets
        if labels.ndim == 1:        # one after another: cut them at the lengths
            sizes = [int(n) for n in running.array_of(counts.uop, counts.device)]
            start = [sum(sizes[:i]) for i in range(batch)]
            longest = max(sizes, default=0)
            if sum(sizes) > labels.numel():
                raise InputError("ctc_loss has too few labels for these target_lengths",
                                 given=f"{labels.numel()} labels, lengths that add up to {sum(sizes)}",
                                 expected=f"{sum(sizes)} labels, one sequence after another",
                                 fix="join the labels of all sequences, without padding")
            places = [[min(s + k, max(labels.numel() - 1, 0)) for k in range(longest)] for s in start]
            labels = labels[self.__class__(places, dtype=dtypes.int32).reshape(batch, longest)] \
                if labels.numel() else self.__class__.zeros(batch, 0, dtype=dtypes.int32)
        if labels.ndim != 2 or labels.shape[0] != batch or labels.dtype.kind not in "iu":
            raise ShapeError("the targets of ctc_loss do not fit",
                             given=f"{targets.dtype.name} targets {targets.shape} for a batch of {batch}",
                             expected="integers, (batch, labels) or all in one vector",
                             fix="pad the short ones with any label; target_lengths says what counts")
        size = labels.shape[1]
        self._refuse_longer(lengths, steps, "input_lengths")
        self._refuse_longer(counts, size, "target_lengths")
        lengths, counts = lengths.cast(dtypes.int32), counts.cast(dtypes.int32)
        used = self._with(counting(size)).reshape(1, size) < counts.reshape(batch, 1)
        labels = used.where(labels.cast(dtypes.int32), blank)
        blanks = labels.full_like(blank)
        chain = blanks.stack(labels, dim=2).reshape(batch, 2 * size)._pad_constant([(0, 0), (0, 1)], blank)
        before = chain._pad_constant([(0, 0), (2, 0)], blank).shrink([(0, batch), (0, 2 * size + 1)])
        skips = (chain != blank) & (chain != before)
        logs = x.gather(2, chain.unsqueeze(0).expand(steps, batch, 2 * size + 1))
        found = self._with(ctc.losses(logs.uop, skips.uop, lengths.uop, (counts * 2).uop))
        if zero_infinity:
            found = (found == math.inf).where(0, found)
        if reduction == "mean":
            return (found / counts.maximum(1).cast(found.dtype)).mean()
        return (found.reshape(()) if alone else found)._reduced(reduction)

    def _lengths(self, value: Any, batch: int, what: str) -> Self:
        """Lengths written as a number, a list or a tensor."""
        lengths = self.__class__(value) if not isinstance(value, Losses) else value
        lengths = lengths.reshape(-1)
        if lengths.dtype.kind not in "iu" or batch >= 0 and lengths.shape != (batch,):
            raise ShapeError(f"{what} has one length per sequence",
                             given=f"{lengths.dtype.name} values, shape {lengths.shape}",
                             expected=f"{batch} integers", fix="check the batch size")
        return lengths  # type: ignore[return-value]

    def _refuse_longer(self, lengths: Self, most: int, what: str) -> None:
        """Refuse lengths that are known already and beyond what there is."""
        for i, n in enumerate(running.few_numbers(lengths.uop)):
            if not 0 <= n <= most:
                raise InputError("a sequence of ctc_loss is longer than the data, or shorter than nothing",
                                 given=f"{what}[{i}] = {n}", expected=f"a length from 0 to {most}",
                                 fix="count what belongs to each sequence, without padding")
