"""Define linear layers: x times a matrix. In, out: tensors whose last axis has the features."""

from __future__ import annotations

from typing import Any

from glassgrad.base.source_lines import one_place
from glassgrad.nn.functional.layers import bilinear
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.new_parameters import fan_in_uniform
from glassgrad.tensor.formulas.linalg.products import linear
from glassgrad.tensor.jit_access import computed_from
from glassgrad.tensor.tensor import Tensor


class Linear(Layer):
    """x W^T + b, along the last axis; `weight` is (out_features, in_features).

    >>> layer = Linear(3, 4)
    >>> layer(Tensor.ones(2, 3)).shape, layer.weight.shape
    ((2, 4), (4, 3))
    """
    shows = ("in_features", "out_features")

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        self.in_features, self.out_features = in_features, out_features
        self.weight = fan_in_uniform((out_features, in_features), in_features)
        self.bias = fan_in_uniform((out_features,), in_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if not x.shape or x.shape[-1] != self.in_features:
            self._refuse(x, f"a last axis of {self.in_features} (in_features)",
                         "flatten or transpose the input, or make the layer with in_features="
                         f"{x.shape[-1] if x.shape else 1}")
        weight, bias = self.weight, self.bias
        with one_place():
            node = linear(x.uop, weight.uop, None if bias is None else bias.uop, None, True)
        return computed_from(x, node, weight, bias)


class Bilinear(Layer):
    """x W y + b for two inputs; `weight` is (out_features, in1_features, in2_features).

    >>> Bilinear(2, 3, 5)(Tensor.ones(4, 2), Tensor.ones(4, 3)).shape
    (4, 5)
    """
    shows = ("in1_features", "in2_features", "out_features")

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True):
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = fan_in_uniform((out_features, in1_features, in2_features), in1_features)
        self.bias = fan_in_uniform((out_features,), in1_features) if bias else None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        sizes = (*x.shape[-1:], *y.shape[-1:])
        if sizes != (self.in1_features, self.in2_features) or x.shape[:-1] != y.shape[:-1]:
            self._refuse(f"inputs of shape {x.shape} and {y.shape}",
                         f"equal shapes but for the last axes of {self.in1_features} and {self.in2_features}",
                         "check the order of the inputs")
        return bilinear(x, y, self.weight, self.bias)


class Identity(Layer):
    """The input, unchanged; takes and ignores any settings.

    >>> Identity(54)(Tensor([1, 2])).tolist()
    [1, 2]
    """

    def __init__(self, *ignored: Any, **also_ignored: Any):
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x
