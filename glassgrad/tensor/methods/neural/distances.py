"""Distances, and losses made of them. In, out: tensors."""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import ShapeError
from glassgrad.tensor import checks
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.checks import REQUIRED
from glassgrad.tensor.formulas.arithmetic import add, as_node, equal, maximum, mul, sub, where
from glassgrad.tensor.formulas.movement import unsqueeze
from glassgrad.tensor.formulas.neural import losses
from glassgrad.tensor.formulas.neural.activations import relu, softplus
from glassgrad.tensor.formulas.neural.losses import reduced
from glassgrad.tensor.formulas.reductions import mean, norm

__all__ = ["DistancesMixin"]


class DistancesMixin(TensorBase):
    """Distances, and losses made of them."""
    __slots__ = ()

    def cosine_similarity(self, other: Self = REQUIRED, dim: int = 1, eps: float = 1e-8, **spelling: Any) -> Self:
        """x . other / (|x| |other|) along an axis; each length counts as at least eps.

        >>> Tensor([[3.0, 4.0]]).cosine_similarity(Tensor([[3.0, 4.0]])).tolist()
        [1.0]
        """
        other, dim = checks.spelled("cosine_similarity", spelling, other=other, dim=dim)
        checks.tensors("cosine_similarity", other=other)
        eps = checks.number("cosine_similarity", eps=eps)
        return self._with(losses.cosine_similarity(self.uop, other.uop, dim, eps), other)

    def pairwise_distance(self, other: Self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Self:
        """The p-norm of x - other + eps along the last axis.

        >>> Tensor([[3.0, 4.0]]).pairwise_distance(Tensor([[0.0, 0.0]]), eps=0).tolist()
        [5.0]
        """
        checks.flags("pairwise_distance", keepdim=keepdim)
        p, eps = checks.number("pairwise_distance", p=p), checks.number("pairwise_distance", eps=eps)
        return self._with(losses.pairwise_distance(self.uop, self._operand(other), p, eps, keepdim), other)

    def cdist(self, other: Self, p: float = 2.0) -> Self:
        """The p-norm of the difference of every row here (.., m, d) to every row there (.., n, d).

        >>> Tensor([[0.0, 0.0]]).cdist(Tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]
        """
        checks.tensors("cdist", other=other)
        checks.two_axes("cdist", self.shape, other.shape)
        apart = sub(unsqueeze(self.uop, -2), unsqueeze(other.uop, -3))
        return self._with(norm(apart, checks.number("cdist", p=p), -1), other)

    def dist(self, other: Any, p: float = 2) -> Self:
        """The p-norm of x - other.

        >>> Tensor([1.0, 2.0]).dist(Tensor([4.0, 6.0])).item()
        5.0
        """
        return self._with(norm(sub(self.uop, self._operand(other)), checks.number("dist", p=p)), other)

    # -- margins ---------------------------------------------------------------------------------------------
    def hinge_embedding_loss(self, target: Self, margin: float = 1.0, reduction: str = "mean") -> Self:
        """x where the target is 1, max(0, margin - x) where it is -1.

        >>> Tensor([0.25, 0.25]).hinge_embedding_loss(Tensor([1.0, -1.0]), reduction="none").tolist()
        [0.25, 0.75]
        """
        checks.tensors("hinge_embedding_loss", target=target)
        far = maximum(sub(checks.number("hinge_embedding_loss", margin=margin), self.uop), 0)
        return self._with(reduced(where(equal(target.uop, 1), self.uop, far), reduction), target)

    def soft_margin_loss(self, target: Self, reduction: str = "mean") -> Self:
        """ln(1 + e^(-target x)), for targets of 1 and -1.

        >>> round(Tensor([0.0]).soft_margin_loss(Tensor([1.0])).exp().item(), 6)
        2.0
        """
        checks.tensors("soft_margin_loss", target=target)
        return self._with(reduced(softplus(-mul(target.uop, self.uop)), reduction), target)

    def margin_ranking_loss(self, other: Self, target: Self, margin: float = 0.0, reduction: str = "mean") -> Self:
        """max(0, -target (x - other) + margin): a target of 1 wants x above the other, -1 below.

        >>> Tensor([1.0]).margin_ranking_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        checks.tensors("margin_ranking_loss", target=target)
        margin = checks.number("margin_ranking_loss", margin=margin)
        found = relu(add(-mul(target.uop, sub(self.uop, self._operand(other))), margin))
        return self._with(reduced(found, reduction), other, target)

    def triplet_margin_loss(self, positive: Self, negative: Self, margin: float = 1.0, p: float = 2.0,
                            eps: float = 1e-6, swap: bool = False, reduction: str = "mean") -> Self:
        """max(0, |x - positive| - |x - negative| + margin); `swap` takes the negative's smaller distance.

        >>> Tensor([[0.0]]).triplet_margin_loss(Tensor([[3.0]]), Tensor([[4.0]]), eps=0).item()
        0.0
        """
        what = "triplet_margin_loss"
        checks.tensors(what, positive=positive, negative=negative)
        checks.flags(what, swap=swap)
        options = checks.number(what, margin=margin), checks.number(what, p=p), checks.number(what, eps=eps)
        found = losses.triplet_margin(self.uop, positive.uop, negative.uop, *options, bool(swap))
        return self._with(reduced(found, reduction), positive, negative)

    def cosine_embedding_loss(self, other: Self, target: Self, margin: float = 0.0, reduction: str = "mean") -> Self:
        """1 - cos where the target is 1, max(0, cos - margin) where it is -1.

        >>> Tensor([[1.0, 0.0]]).cosine_embedding_loss(Tensor([[0.0, 1.0]]), Tensor([1])).item()
        1.0
        """
        checks.tensors("cosine_embedding_loss", other=other, target=target)
        margin = checks.number("cosine_embedding_loss", margin=margin)
        found = losses.cosine_embedding(self.uop, other.uop, target.uop, margin)
        return self._with(reduced(found, reduction), other, target)

    def multi_margin_loss(self, target: Self, p: int = 1, margin: float = 1.0, weight: Self | None = None,
                          reduction: str = "mean") -> Self:
        """The mean over the other classes of max(0, margin - x[target] + x[class])^p.

        >>> Tensor([[0.0, 2.0]]).multi_margin_loss(Tensor([1])).item()
        0.0
        """
        checks.tensors("multi_margin_loss", target=target)
        checks.tensors_or_none("multi_margin_loss", weight=weight)
        p, margin = checks.integer("multi_margin_loss", p=p), checks.number("multi_margin_loss", margin=margin)
        x = self.uop.reshape((1, self.numel())) if self.ndim == 1 else self.uop
        if len(x.shape) != 2 or target.numel() != x.shape[0]:
            raise ShapeError("the targets of multi_margin_loss do not fit",
                             given=f"predictions {self.shape}, targets {target.shape}",
                             expected="(batch, classes) and one class each", fix="check the batch sizes")
        weights = None if weight is None else weight.uop
        found = losses.multi_margin(x, target.uop.reshape((target.numel(),)), p, margin, weights)
        return self._with(reduced(found if self.ndim == 2 else found.reshape(()), reduction), target, weight)

    def multilabel_soft_margin_loss(self, target: Self, weight: Self | None = None, reduction: str = "mean") -> Self:
        """The mean over classes of `binary_cross_entropy_with_logits`.

        >>> Tensor([[1000.0]]).multilabel_soft_margin_loss(Tensor([[1.0]])).item()
        0.0
        """
        checks.tensors("multilabel_soft_margin_loss", target=target)
        checks.tensors_or_none("multilabel_soft_margin_loss", weight=weight)
        found = losses.binary_cross_entropy_logits(self.uop, target.uop)
        found = found if weight is None else mul(found, weight.uop)
        return self._with(reduced(mean(found, -1), reduction), target, weight)

    # -- distributions ---------------------------------------------------------------------------------------
    def gaussian_nll_loss(self, target: Self, var: Any, full: bool = False, eps: float = 1e-6,
                          reduction: str = "mean") -> Self:
        """(ln var + (x - target)^2 / var) / 2, with var at least eps; `full` adds ln(2 pi) / 2.

        >>> Tensor([1.0]).gaussian_nll_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        checks.tensors("gaussian_nll_loss", target=target)
        checks.flags("gaussian_nll_loss", full=full)
        spread = as_node(self._operand(var), self.uop)
        eps = checks.number("gaussian_nll_loss", eps=eps)
        found = losses.gaussian(self.uop, target.uop, spread, bool(full), eps)
        return self._with(reduced(found, reduction), target, var)

    def poisson_nll_loss(self, target: Self, log_input: bool = True, eps: float = 1e-8,
                         reduction: str = "mean") -> Self:
        """e^x - target x, or x - target ln(x + eps) for x that is no logarithm.

        >>> Tensor([0.0]).poisson_nll_loss(Tensor([5.0])).item()
        1.0
        """
        checks.tensors("poisson_nll_loss", target=target)
        checks.flags("poisson_nll_loss", log_input=log_input)
        found = losses.poisson(self.uop, target.uop, bool(log_input), checks.number("poisson_nll_loss", eps=eps))
        return self._with(reduced(found, reduction), target)
