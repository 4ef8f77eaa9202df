"""How far apart things are: distances, and losses made of them. In, out: tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import ShapeError
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.methods.neural.losses import Losses

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Distances"]


class Distances(Losses):
    """Distances, and losses made of them."""
    __slots__ = ()

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

    def dist(self, other: Any, p: float = 2) -> Self:
        """The p-norm of x - other.

        >>> Tensor([1.0, 2.0]).dist(Tensor([4.0, 6.0])).item()
        5.0
        """
        return (self - other).norm(p)
    # -- margins ---------------------------------------------------------------------------------------------
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

    def margin_ranking_loss(self, other: Self, target: Self, margin: float = 0.0, reduction: str = "mean") -> Self:
        """max(0, -target (x - other) + margin): a target of 1 wants x above the other, -1 below.

        >>> Tensor([1.0]).margin_ranking_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        return (-target * (self - other) + margin).relu()._reduced(reduction)

    def triplet_margin_loss(self, positive: Self, negative: Self, margin: float = 1.0, p: float = 2.0,
                            eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Self:
        """max(0, |x - positive| - |x - negative| + margin); `swap` takes the negative's smaller distance.

        >>> Tensor([[0.0]]).triplet_margin_loss(Tensor([[3.0]]), Tensor([[4.0]]), eps=0).item()
        0.0
        """
        near, far = self.pairwise_distance(positive, p, eps), self.pairwise_distance(negative, p, eps)
        far = far.minimum(positive.pairwise_distance(negative, p, eps)) if swap else far
        return (near - far + margin).relu()._reduced(reduction)

    def cosine_embedding_loss(self, other: Self, target: Self, margin: float = 0.0, reduction: str = "mean") -> Self:
        """1 - cos where the target is 1, max(0, cos - margin) where it is -1.

        >>> Tensor([[1.0, 0.0]]).cosine_embedding_loss(Tensor([[0.0, 1.0]]), Tensor([1])).item()
        1.0
        """
        alike = self.cosine_similarity(other, -1)
        return (target == 1).where(1 - alike, (alike - margin).relu())._reduced(reduction)

    def multi_margin_loss(self, target: Self, p: int = 1, margin: float = 1.0, weight: Self | None = None,
                          reduction: str = "mean") -> Self:
        """The mean over the other classes of max(0, margin - x[target] + x[class])^p.

        >>> Tensor([[0.0, 2.0]]).multi_margin_loss(Tensor([1])).item()
        0.0
        """
        x = self.reshape(1, -1) if self.ndim == 1 else self
        if x.ndim != 2 or target.numel() != x.shape[0]:
            raise ShapeError("the targets of multi_margin_loss do not fit",
                             given=f"predictions {self.shape}, targets {target.shape}",
                             expected="(batch, classes) and one class each", fix="check the batch sizes")
        named = target.reshape(-1)
        chosen = x._chosen(named, 1).unsqueeze(1)
        each_loss = (margin - chosen + x).relu() ** p
        if weight is not None:
            each_loss = each_loss * x._by_class(weight, 1)._chosen(named, 1).unsqueeze(1)
        places = x._with(counting(x.shape[1])).reshape(1, -1)
        found = (places == named.unsqueeze(1)).where(0, each_loss).sum(1) / x.shape[1]
        return (found if self.ndim == 2 else found.reshape(()))._reduced(reduction)

    def multilabel_soft_margin_loss(self, target: Self, weight: Self | None = None, reduction: str = "mean") -> Self:
        """The mean over classes of `binary_cross_entropy_with_logits`.

        >>> Tensor([[1000.0]]).multilabel_soft_margin_loss(Tensor([[1.0]])).item()
        0.0
        """
        found = self.binary_cross_entropy_with_logits(target, "none")
        return (found if weight is None else found * weight).mean(-1)._reduced(reduction)

    # -- distributions ---------------------------------------------------------------------------------------
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
