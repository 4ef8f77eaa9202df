"""A softmax over many classes, rare ones by way of clusters. In: features, classes. Out: log-probabilities, a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glassgrad.base.errors import InputError
from glassgrad.nn.layers.linear import Linear
from glassgrad.nn.layers.sequential import Sequential
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.tensor import Tensor


class Adapted(NamedTuple):
    """The log-probability of each target, and minus their mean."""
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Layer):
    """Classes below cutoffs[0] and one entry for each cluster of the others share a first softmax; in each cluster
    another one is over its classes, seen through in_features / div_value^i features (Grave et al., 2016). Classes are
    in order of how often they come. Every cluster is computed for every example: sizes do not depend on values here.

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
        """The log-probability of every class."""
        first = self.head(x).log_softmax(-1)
        short = self.cutoffs[0]
        parts = [cluster(x).log_softmax(-1) + first[..., short + i:short + i + 1]
                 for i, cluster in enumerate(self.tail)]
        return first[..., :short].cat(*parts, dim=-1)

    def predict(self, x: Tensor) -> Tensor:
        """The most probable class."""
        return self.log_prob(x).argmax(-1)
