"""More of what a model is trained by: huber, kl_div, distances, gated activations. In, out: tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.graph.dtype import dtypes
from glassgrad.tensor import running
from glassgrad.tensor.formulas import ctc
from glassgrad.tensor.meeting import working_axis
from glassgrad.tensor.numerics import Numerics
from glassgrad.tensor.sequence import counting

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Losses"]


class Losses(Numerics):
    """More losses, distances and activations."""
    __slots__ = ()

    # -- losses ----------------------------------------------------------------------------------------------
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

    def hinge_embedding_loss(self, target: Self, margin: float = 1.0, reduction: str = "mean") -> Self:
        """x where the target is 1, max(0, margin - x) where it is -1.

        >>> Tensor([0.25, 0.25]).hinge_embedding_loss(Tensor([1.0, -1.0]), reduction="none").tolist()
        [0.25, 0.75]
        """
        return (target == 1).where(self, (margin - self).maximum(0))._reduced(reduction)

    def soft_margin_loss(self, target: Self, reduction: str = "mean") -> Self:
        """ln(1 + e^(-target x)), for targets of 1 and -1.

        >>> round(Tensor([0.0]).soft_margin_loss(Tensor([1.0])).exp().item(), 6)
        2.0
        """
        return (-target * self).softplus()._reduced(reduction)

    def gaussian_nll_loss(
        self, target: Self, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
    ) -> Self:
        """(ln var + (x - target)^2 / var) / 2, with var at least eps; `full` adds ln(2 pi) / 2.

        >>> Tensor([1.0]).gaussian_nll_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        var = self.ufix(var)
        spread = var + (var.maximum(eps) - var).detach()       # the limit changes the value, not the gradient
        losses = (spread.log() + (self - target).square() / spread) * 0.5
        return (losses + 0.9189385332046727 if full else losses)._reduced(reduction)

    def poisson_nll_loss(
        self, target: Self, log_input: bool = True, eps: float = 1e-8, reduction: str = "mean"
    ) -> Self:
        """e^x - target x, or x - target ln(x + eps) for x that is no logarithm.

        >>> Tensor([0.0]).poisson_nll_loss(Tensor([5.0])).item()
        1.0
        """
        return (self.exp() - target * self if log_input else self - target * (self + eps).log())._reduced(reduction)

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
                             mend="move time to the front: x.log_softmax(-1).permute(1, 0, 2)")
        steps, batch, _ = x.shape
        labels = targets.reshape(1, -1) if alone else targets
        if labels.ndim == 1:        # one after another: cut them at the lengths
            sizes = [int(n) for n in running.array_of(counts.uop, counts.device)]
            start = [sum(sizes[:i]) for i in range(batch)]
            longest = max(sizes, default=0)
            places = [[min(s + k, max(labels.numel() - 1, 0)) for k in range(longest)] for s in start]
            labels = labels[self.__class__(places, dtype=dtypes.int32).reshape(batch, longest)] \
                if labels.numel() else self.__class__.zeros(batch, 0, dtype=dtypes.int32)
        if labels.ndim != 2 or labels.shape[0] != batch or labels.dtype.kind not in "iu":
            raise ShapeError("the targets of ctc_loss do not fit",
                             given=f"{targets.dtype.name} targets {targets.shape} for a batch of {batch}",
                             expected="whole numbers, (batch, labels) or all in one vector",
                             mend="pad the short ones with any label; target_lengths says what counts")
        size = labels.shape[1]
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
                             expected=f"{batch} whole numbers", mend="check the batch size")
        return lengths.cast(dtypes.int32)  # type: ignore[return-value]

    # -- distances -------------------------------------------------------------------------------------------
    def cosine_similarity(self, other: Self, dim: int = 1, eps: float = 1e-8) -> Self:
        """x . other / (|x| |other|) along an axis; each length counts as at least eps.

        >>> Tensor([[3.0, 4.0]]).cosine_similarity(Tensor([[3.0, 4.0]])).tolist()
        [1.0]
        """
        return (self * other).sum(dim) / (self.norm(2, dim).maximum(eps) * other.norm(2, dim).maximum(eps))

    def pairwise_distance(self, other: Self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Self:
        """The p-norm of x - other + eps along the last axis.

        >>> Tensor([[3.0, 4.0]]).pairwise_distance(Tensor([[0.0, 0.0]]), eps=0).tolist()
        [5.0]
        """
        return (self - other + eps).norm(p, -1, keepdim)

    def cdist(self, other: Self, p: float = 2.0) -> Self:
        """The p-norm of the difference of every row here (.., m, d) to every row there (.., n, d).

        >>> Tensor([[0.0, 0.0]]).cdist(Tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]
        """
        return (self.unsqueeze(-2) - other.unsqueeze(-3)).norm(p, -1)

    # -- activations -----------------------------------------------------------------------------------------
    def softmin(self, axis: Any = -1, dtype: Any = None) -> Self:
        """softmax(-x).

        >>> Tensor([1.0, 1.0]).softmin().tolist()
        [0.5, 0.5]
        """
        return (-self).softmax(axis, dtype)

    def glu(self, dim: int = -1) -> Self:
        """An axis cut in two halves a and b: a sigmoid(b).

        >>> Tensor([4.0, 0.0]).glu().tolist()
        [2.0]
        """
        axis = working_axis(dim, self.ndim, "glu")
        if self.shape[axis] % 2:
            raise InputError(
                "glu needs an even axis",
                given=f"an axis of {self.shape[axis]}",
                expected="two equal halves",
                mend="check the layer before",
            )
        a, b = self.chunk(2, dim=axis)
        return a * b.sigmoid()

    def prelu(self, weight: Self) -> Self:
        """x where it is positive, weight x elsewhere; one weight, or one per channel (axis 1).

        >>> Tensor([-2.0, 2.0]).prelu(Tensor([0.5])).tolist()
        [-1.0, 2.0]
        """
        slope = weight.reshape(()) if weight.numel() == 1 else weight.reshape((-1,) + (1,) * max(self.ndim - 2, 0))
        return (self > 0).where(self, self * slope)

    def threshold(self, threshold: float, value: float) -> Self:
        """x where it is above a threshold, `value` elsewhere.

        >>> Tensor([0.5, 2.0]).threshold(1, 9).tolist()
        [9.0, 2.0]
        """
        return (self > threshold).where(self, value)

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """x where |x| is above lambd, 0 elsewhere; NaN stays NaN.

        >>> Tensor([0.25, -2.0]).hardshrink().tolist()
        [0.0, -2.0]
        """
        return (self.abs() <= lambd).where(0, self)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """x moved toward 0 by lambd, stopping there.

        >>> Tensor([0.25, -2.0]).softshrink().tolist()
        [0.0, -1.5]
        """
        return (self.abs() <= lambd).where(0, (self > 0).where(self - lambd, self + lambd))

    def tanhshrink(self) -> Self:
        """x - tanh(x).

        >>> Tensor([0.0]).tanhshrink().tolist()
        [0.0]
        """
        return self - self.tanh()
