"""Define losses and distances as layers: loss = CrossEntropyLoss()(predictions, targets). In: predictions and targets,
or pairs of tensors. Out: one number, or one per example with reduction="none".

Each calls the function of `nn.functional` that has its formula and settings. The adaptive softmax over many classes,
with rare ones in clusters, is a loss with parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glassgrad.base.errors import InputError
from glassgrad.nn.functional import losses as F
from glassgrad.nn.layers.linear import Linear
from glassgrad.nn.layers.sequential import Sequential
from glassgrad.nn.modules.layer import FunctionLayer, Layer
from glassgrad.tensor.tensor import Tensor


# -- classes -------------------------------------------------------------------------------------------------
class NLLLoss(FunctionLayer, function=F.nll_loss):
    """Minus the log-probability of each target class; classes are axis 1, and `weight` is the weight of each class.

    >>> NLLLoss()(Tensor([[0.0, -2.0]]), Tensor([1])).item()
    2.0
    """


class CrossEntropyLoss(FunctionLayer, function=F.cross_entropy):
    """Minus the log-probability of the targets, from scores before softmax; classes are axis 1, and `weight` is the
    weight of each class.

    >>> round(CrossEntropyLoss()(Tensor([[0.0, 0.0]]), Tensor([1])).exp().item(), 6)
    2.0
    """


class BCELoss(FunctionLayer, function=F.binary_cross_entropy):
    """-(y ln p + (1 - y) ln(1 - p)) for probabilities p; `weight` is the weight of each example.

    >>> BCELoss()(Tensor([1.0, 0.0]), Tensor([1.0, 0.0])).item()
    0.0
    """


class BCEWithLogitsLoss(FunctionLayer, function=F.binary_cross_entropy_with_logits):
    """`BCELoss` of sigmoid(x), without overflow; `pos_weight` multiplies the term of y = 1, `weight` all of it.

    >>> BCEWithLogitsLoss()(Tensor([1000.0]), Tensor([1.0])).item()
    0.0
    """


class MultiMarginLoss(FunctionLayer, function=F.multi_margin_loss):
    """The mean over the other classes of max(0, margin - x[target] + x)^p; `weight` is the weight of each class.

    >>> MultiMarginLoss()(Tensor([[0.0, 2.0]]), Tensor([0])).item()
    1.5
    """


class MultiLabelMarginLoss(FunctionLayer, function=F.multilabel_margin_loss):
    """`MultiMarginLoss` for several classes per row: those before the first -1 of the target.

    >>> MultiLabelMarginLoss()(Tensor([[0.0, 2.0]]), Tensor([[0, -1]])).item()
    1.5
    """


class MultiLabelSoftMarginLoss(FunctionLayer, function=F.multilabel_soft_margin_loss):
    """Binary cross entropy of sigmoid(x), averaged over the classes; `weight` is the weight of each class.

    >>> round(MultiLabelSoftMarginLoss()(Tensor([[0.0, 0.0]]), Tensor([[1.0, 0.0]])).exp().item(), 6)
    2.0
    """


class CTCLoss(FunctionLayer, function=F.ctc_loss, settings=("blank", "reduction", "zero_infinity")):
    """Minus the log-probability of all alignments of label sequences with log-probabilities (time, batch, classes).

    >>> CTCLoss()(Tensor([[[0.0, -1.0]]]), Tensor([[1]]), [1], [1]).item()
    1.0
    """


# -- values --------------------------------------------------------------------------------------------------
class MSELoss(FunctionLayer, function=F.mse_loss, settings=("reduction",)):
    """The squared difference.

    >>> MSELoss()(Tensor([1.0, 5.0]), Tensor([1.0, 3.0])).item()
    2.0
    """


class L1Loss(FunctionLayer, function=F.l1_loss, settings=("reduction",)):
    """The absolute difference.

    >>> L1Loss()(Tensor([1.0, 5.0]), Tensor([1.0, 3.0])).item()
    1.0
    """


class HuberLoss(FunctionLayer, function=F.huber_loss, settings=("reduction", "delta")):
    """d^2 / 2 for differences d up to delta, delta (|d| - delta / 2) beyond.

    >>> HuberLoss("none")(Tensor([0.0, 3.0]), Tensor([1.0, 0.0])).tolist()
    [0.5, 2.5]
    """


class SmoothL1Loss(FunctionLayer, function=F.smooth_l1_loss):
    """`HuberLoss` divided by beta.

    >>> SmoothL1Loss("none")(Tensor([0.0, 3.0]), Tensor([1.0, 0.0])).tolist()
    [0.5, 2.5]
    """


class KLDivLoss(FunctionLayer, function=F.kl_div):
    """target (ln target - x), for x the logarithms of probabilities.

    >>> KLDivLoss("sum")(Tensor([0.0]), Tensor([1.0])).item()
    0.0
    """


class SoftMarginLoss(FunctionLayer, function=F.soft_margin_loss):
    """ln(1 + e^(-target x)), for targets of 1 and -1.

    >>> round(SoftMarginLoss()(Tensor([0.0]), Tensor([1.0])).exp().item(), 6)
    2.0
    """


class PoissonNLLLoss(FunctionLayer, function=F.poisson_nll_loss, shows=("log_input", "reduction")):
    """e^x - target x, or, without `log_input`, x - target ln(x + eps); `full` adds Stirling's estimate of ln(target!)
    where the target is above 1.

    >>> PoissonNLLLoss()(Tensor([0.0]), Tensor([5.0])).item()
    1.0
    """


class GaussianNLLLoss(FunctionLayer, function=F.gaussian_nll_loss):
    """(ln var + (x - target)^2 / var) / 2, with var at least eps; `full` adds ln(2 pi) / 2.

    >>> GaussianNLLLoss()(Tensor([1.0]), Tensor([3.0]), Tensor([1.0])).item()
    2.0
    """


# -- pairs ---------------------------------------------------------------------------------------------------
class CosineSimilarity(FunctionLayer, function=F.cosine_similarity):
    """The cosine of the angle between two vectors along `dim`.

    >>> CosineSimilarity()(Tensor([[1.0, 0.0]]), Tensor([[0.0, 2.0]])).tolist()
    [0.0]
    """


class PairwiseDistance(FunctionLayer, function=F.pairwise_distance):
    """The p-norm of the difference along the last axis.

    >>> PairwiseDistance(eps=0.0)(Tensor([[3.0, 4.0]]), Tensor([[0.0, 0.0]])).tolist()
    [5.0]
    """


class CosineEmbeddingLoss(FunctionLayer, function=F.cosine_embedding_loss):
    """1 - cosine where the target is 1, max(0, cosine - margin) where it is -1.

    >>> CosineEmbeddingLoss()(Tensor([[1.0, 0.0]]), Tensor([[1.0, 0.0]]), Tensor([-1])).item()
    1.0
    """


class MarginRankingLoss(FunctionLayer, function=F.margin_ranking_loss):
    """max(0, -target (x1 - x2) + margin).

    >>> MarginRankingLoss()(Tensor([1.0]), Tensor([3.0]), Tensor([1])).item()
    2.0
    """


class HingeEmbeddingLoss(FunctionLayer, function=F.hinge_embedding_loss):
    """x where the target is 1, max(0, margin - x) where it is -1.

    >>> HingeEmbeddingLoss(reduction="none")(Tensor([0.25, 0.25]), Tensor([1, -1])).tolist()
    [0.25, 0.75]
    """


class TripletMarginLoss(FunctionLayer, function=F.triplet_margin_loss, shows=("margin", "p", "swap", "reduction")):
    """max(0, d(a, p) - d(a, n) + margin): how much farther an anchor is from a positive example than from a negative
    one.

    >>> TripletMarginLoss()(Tensor([[0.0]]), Tensor([[0.0]]), Tensor([[3.0]])).item()
    0.0
    """


class TripletMarginWithDistanceLoss(FunctionLayer, function=F.triplet_margin_with_distance_loss):
    """`TripletMarginLoss` with a custom distance function.

    >>> nearer = TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(-1))
    >>> nearer(Tensor([[0.0]]), Tensor([[2.0]]), Tensor([[2.5]])).item()
    0.5
    """


class Adapted(NamedTuple):
    """The log-probability of each target, and minus their mean."""
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Layer):
    """A softmax over many classes, in order of frequency (Grave et al., 2016). A first softmax is over the classes
    below cutoffs[0] and one entry for each cluster of the others; cluster i has another softmax over its classes, from
    in_features / div_value^i features. Every cluster is computed for every example, because shapes do not depend on
    values here.

    >>> layer = AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs=[4, 10])
    >>> x = Tensor.randn(3, 8)
    >>> layer(x, Tensor([0, 5, 19])).output.shape, layer.log_prob(x).shape, layer.predict(x).shape
    ((3,), (3, 20), (3,))
    """
    shows = ("in_features", "n_classes", "cutoffs", "div_value", "head_bias")

    def __init__(self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
                 head_bias: bool = False):
        marks = list(cutoffs)
        if not marks or marks != sorted({int(mark) for mark in marks}) or marks[0] < 1 or marks[-1] >= n_classes:
            raise InputError("cutoffs part the classes", given=f"cutoffs={marks} of {n_classes} classes",
                             expected=f"integers from 1 to {n_classes - 1}, each larger than the one before",
                             fix="write cutoffs=[100, 1000], for example")
        self.in_features, self.n_classes, self.div_value, self.head_bias = in_features, n_classes, div_value, head_bias
        self.cutoffs = [*marks, n_classes]
        self.head = Linear(in_features, marks[0] + len(marks), bias=head_bias)
        self.tail = [Sequential(Linear(in_features, narrow := int(in_features // div_value ** (i + 1)), bias=False),
                                Linear(narrow, end - start, bias=False))
                     for i, (start, end) in enumerate(zip(self.cutoffs, self.cutoffs[1:]))]

    def forward(self, x: Tensor, target: Tensor) -> Adapted:
        if x.ndim != target.ndim + 1 or x.ndim not in (1, 2) or x.shape[:-1] != target.shape:
            self._refuse(f"an input of shape {x.shape} and targets of shape {target.shape}",
                         f"(batch, {self.in_features}) and (batch,), or both without the batch",
                         "flatten other axes into the batch")
        found = self.log_prob(x).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return Adapted(found, -found.mean())

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-probability of every class."""
        first = self.head(x).log_softmax(-1)
        short = self.cutoffs[0]
        parts = [cluster(x).log_softmax(-1) + first[..., short + i:short + i + 1]
                 for i, cluster in enumerate(self.tail)]
        return first[..., :short].cat(*parts, dim=-1)

    def predict(self, x: Tensor) -> Tensor:
        """Return the most probable class."""
        return self.log_prob(x).argmax(-1)
