"""How far apart things are, as layers: distances, and losses made of them. In: tensors. Out: one number, or one per
example with reduction="none".

Each calls the method of Tensor, or the function of `functional`, that has the formula.
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.nn.functional.losses import (multi_margin_loss, multilabel_margin_loss, poisson_nll_loss,
                                            triplet_margin_with_distance_loss)
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.tensor import Tensor

__all__ = ["CosineSimilarity", "PairwiseDistance", "CosineEmbeddingLoss", "MarginRankingLoss", "HingeEmbeddingLoss",
           "SoftMarginLoss", "MultiLabelSoftMarginLoss", "TripletMarginLoss", "PoissonNLLLoss", "GaussianNLLLoss",
           "MultiMarginLoss", "MultiLabelMarginLoss", "TripletMarginWithDistanceLoss"]


class CosineSimilarity(Layer):
    """The cosine of the angle between two vectors along `dim`.

    >>> CosineSimilarity()(Tensor([[1.0, 0.0]]), Tensor([[0.0, 2.0]])).tolist()
    [0.0]
    """
    shows = ("dim", "eps")

    def __init__(self, dim: int = 1, eps: float = 1e-8):
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor: return x1.cosine_similarity(x2, self.dim, self.eps)


class PairwiseDistance(Layer):
    """The p-norm of the difference along the last axis.

    >>> PairwiseDistance(eps=0.0)(Tensor([[3.0, 4.0]]), Tensor([[0.0, 0.0]])).tolist()
    [5.0]
    """
    shows = ("p", "eps", "keepdim")

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
        self.p, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return x1.pairwise_distance(x2, self.p, self.eps, self.keepdim)


class _MarginLoss(Layer):
    """A loss with a margin."""
    shows: tuple[str, ...] = ("margin", "reduction")

    def __init__(self, margin: float = 0.0, reduction: str = "mean"):
        self.margin, self.reduction = margin, reduction


class CosineEmbeddingLoss(_MarginLoss):
    """1 - cosine where the target is 1, the cosine above the margin where it is -1.

    >>> CosineEmbeddingLoss()(Tensor([[1.0, 0.0]]), Tensor([[1.0, 0.0]]), Tensor([-1])).item()
    1.0
    """
    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return x1.cosine_embedding_loss(x2, target, self.margin, self.reduction)


class MarginRankingLoss(_MarginLoss):
    """max(0, -target (x1 - x2) + margin).

    >>> MarginRankingLoss()(Tensor([1.0]), Tensor([3.0]), Tensor([1])).item()
    2.0
    """
    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return x1.margin_ranking_loss(x2, target, self.margin, self.reduction)


class HingeEmbeddingLoss(_MarginLoss):
    """x where the target is 1, max(0, margin - x) where it is -1.

    >>> HingeEmbeddingLoss(reduction="none")(Tensor([0.25, 0.25]), Tensor([1, -1])).tolist()
    [0.25, 0.75]
    """
    def __init__(self, margin: float = 1.0, reduction: str = "mean"):
        super().__init__(margin, reduction)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return x.hinge_embedding_loss(target, self.margin, self.reduction)


class SoftMarginLoss(Layer):
    """ln(1 + e^(-target x)), for targets of 1 and -1.

    >>> round(SoftMarginLoss()(Tensor([0.0]), Tensor([1.0])).exp().item(), 6)
    2.0
    """
    shows = ("reduction",)

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor: return x.soft_margin_loss(target, self.reduction)


class MultiLabelSoftMarginLoss(Layer):
    """Binary cross entropy of sigmoid(x), averaged over the classes; `weight` says how much each class counts.

    >>> round(MultiLabelSoftMarginLoss()(Tensor([[0.0, 0.0]]), Tensor([[1.0, 0.0]])).exp().item(), 6)
    2.0
    """
    shows = ("reduction",)

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean"):
        self.weight, self.reduction = weight, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return x.multilabel_soft_margin_loss(target, self.weight, self.reduction)


class TripletMarginLoss(Layer):
    """How much nearer an anchor is to a positive than to a negative example: max(0, d(a, p) - d(a, n) + margin).

    >>> TripletMarginLoss()(Tensor([[0.0]]), Tensor([[0.0]]), Tensor([[3.0]])).item()
    0.0
    """
    shows = ("margin", "p", "swap", "reduction")

    def __init__(self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
                 reduction: str = "mean"):
        self.margin, self.p, self.eps, self.swap, self.reduction = margin, p, eps, swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return anchor.triplet_margin_loss(positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction)


class TripletMarginWithDistanceLoss(Layer):
    """`TripletMarginLoss` with a distance of your own.

    >>> nearer = TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(-1))
    >>> nearer(Tensor([[0.0]]), Tensor([[2.0]]), Tensor([[2.5]])).item()
    0.5
    """
    shows = ("margin", "swap", "reduction")

    def __init__(self, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
                 swap: bool = False, reduction: str = "mean"):
        self.distance_function, self.margin, self.swap, self.reduction = distance_function, margin, swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return triplet_margin_with_distance_loss(anchor, positive, negative, distance_function=self.distance_function,
                                                 margin=self.margin, swap=self.swap, reduction=self.reduction)


class MultiMarginLoss(Layer):
    """The mean over the other classes of max(0, margin - x[target] + x)^p; `weight` says how much each class counts.

    >>> MultiMarginLoss()(Tensor([[0.0, 2.0]]), Tensor([0])).item()
    1.5
    """
    shows = ("p", "margin", "reduction")

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean"):
        self.p, self.margin, self.weight, self.reduction = p, margin, weight, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return multi_margin_loss(x, target, self.p, self.margin, self.weight, reduction=self.reduction)


class MultiLabelMarginLoss(Layer):
    """The same for several classes a row: those before the first -1 of the target.

    >>> MultiLabelMarginLoss()(Tensor([[0.0, 2.0]]), Tensor([[0, -1]])).item()
    1.5
    """
    shows = ("reduction",)

    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return multilabel_margin_loss(x, target, reduction=self.reduction)


class PoissonNLLLoss(Layer):
    """e^x - target x, or x - target ln(x + eps) for x that is no logarithm; `full` adds Stirling's estimate of
    ln(target!) where the target is above 1.

    >>> PoissonNLLLoss()(Tensor([0.0]), Tensor([5.0])).item()
    1.0
    """
    shows = ("log_input", "reduction")

    def __init__(self, log_input: bool = True, full: bool = False, *, eps: float = 1e-8, reduction: str = "mean"):
        self.log_input, self.full, self.eps, self.reduction = log_input, full, eps, reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return poisson_nll_loss(x, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction)


class GaussianNLLLoss(Layer):
    """(ln var + (x - target)^2 / var) / 2, with var at least eps; `full` adds ln(2 pi) / 2.

    >>> GaussianNLLLoss()(Tensor([1.0]), Tensor([3.0]), Tensor([1.0])).item()
    2.0
    """
    shows = ("full", "eps", "reduction")

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean"):
        self.full, self.eps, self.reduction = full, eps, reduction

    def forward(self, x: Tensor, target: Tensor, var: Tensor) -> Tensor:
        return x.gaussian_nll_loss(target, var, self.full, self.eps, self.reduction)
