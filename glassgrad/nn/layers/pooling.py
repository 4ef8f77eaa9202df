"""Define pools as layers: the maximum or mean of windows. In, out: (batch, channels, ...space); the batch may be left
out.
"""

from __future__ import annotations

from typing import Any

from glassgrad.nn.functional import layers, pooling as F
from glassgrad.nn.modules.layer import FunctionLayer
from glassgrad.tensor.tensor import Tensor

_SHOWN = "kernel_size", "stride", "padding"
# the length of `kernel_size` is the rank; unlike in the function, `return_indices` comes before `ceil_mode`
_MAX: Any = {"function": F.max_pool2d, "shows": _SHOWN,
             "settings": (*_SHOWN, "dilation", "return_indices", "ceil_mode")}
_UNPOOL: Any = {"function": F.max_unpool2d, "settings": _SHOWN}


class MaxPool2d(FunctionLayer, rank=2, **_MAX):
    """The largest value of each window; without `stride` the windows do not overlap. `return_indices` also returns the
    flat index of each in space, for `MaxUnpool2d`.

    >>> MaxPool2d(2)(Tensor.arange(16).reshape(1, 1, 4, 4)).tolist()
    [[[[5, 7], [13, 15]]]]
    """


class MaxPool1d(FunctionLayer, rank=1, **_MAX):
    """`MaxPool2d` over one axis.

    >>> MaxPool1d(2)(Tensor.arange(4).reshape(1, 1, 4)).tolist()
    [[[1, 3]]]
    """


class MaxPool3d(FunctionLayer, rank=3, **_MAX):
    """`MaxPool2d` over three axes.

    >>> MaxPool3d(2)(Tensor.ones(1, 1, 4, 4, 4)).shape
    (1, 1, 2, 2, 2)
    """


class _WithOutputSize:
    """The base of layers that may be given the size of their output, after the indices."""

    def forward(self, x: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return super().forward(x, indices, output_size=output_size)  # type: ignore[misc,no-any-return]


class MaxUnpool2d(_WithOutputSize, FunctionLayer, rank=2, **_UNPOOL):
    """Values put back at the indices that `MaxPool2d(.., return_indices=True)` returned, with zeros elsewhere.

    >>> pool, back = MaxPool2d(2, return_indices=True), MaxUnpool2d(2)
    >>> back(*pool(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))).tolist()
    [[[[0.0, 0.0], [0.0, 4.0]]]]
    """


class MaxUnpool1d(_WithOutputSize, FunctionLayer, rank=1, **_UNPOOL):
    """`MaxUnpool2d` over one axis.

    >>> MaxUnpool1d(2)(*MaxPool1d(2, return_indices=True)(Tensor([[[1.0, 2.0]]]))).tolist()
    [[[0.0, 2.0]]]
    """


class MaxUnpool3d(_WithOutputSize, FunctionLayer, rank=3, **_UNPOOL):
    """`MaxUnpool2d` over three axes.

    >>> MaxUnpool3d(2)(*MaxPool3d(2, return_indices=True)(Tensor.ones(1, 1, 2, 2, 2))).sum().item()
    1.0
    """


class AvgPool2d(FunctionLayer, rank=2, function=F.avg_pool2d, shows=_SHOWN):
    """The mean of each window; without `stride` the windows do not overlap. `divisor_override` replaces the number of
    elements as divisor.

    >>> AvgPool2d(2)(Tensor.arange(16).reshape(1, 1, 4, 4)).tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """


class AvgPool1d(FunctionLayer, rank=1, function=F.avg_pool2d, shows=_SHOWN):
    """`AvgPool2d` over one axis.

    >>> AvgPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[2.0, 6.0]]]
    """


class AvgPool3d(FunctionLayer, rank=3, function=F.avg_pool2d, shows=_SHOWN):
    """`AvgPool2d` over three axes.

    >>> AvgPool3d(2)(Tensor.ones(1, 1, 4, 4, 4)).shape
    (1, 1, 2, 2, 2)
    """


class AdaptiveAvgPool2d(FunctionLayer, function=F.adaptive_avg_pool2d, rank=2):
    """The mean of `output_size` nearly equal parts along each space axis; None keeps an axis.

    >>> AdaptiveAvgPool2d(1)(Tensor.ones(2, 3, 5, 7)).shape, AdaptiveAvgPool2d((2, None))(Tensor.ones(2, 3, 5, 7)).shape
    ((2, 3, 1, 1), (2, 3, 2, 7))
    """


class AdaptiveAvgPool1d(FunctionLayer, function=F.adaptive_avg_pool1d, rank=1):
    """`AdaptiveAvgPool2d` over one axis.

    >>> AdaptiveAvgPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[2.0, 6.0]]]
    """


class AdaptiveAvgPool3d(FunctionLayer, function=F.adaptive_avg_pool3d, rank=3):
    """`AdaptiveAvgPool2d` over three axes.

    >>> AdaptiveAvgPool3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 1, 1, 1)
    """


class AdaptiveMaxPool2d(FunctionLayer, function=F.adaptive_max_pool2d, rank=2, shows=("output_size",)):
    """The largest value of `output_size` nearly equal parts along each space axis. `return_indices` also returns the
    flat index of each in space.

    >>> AdaptiveMaxPool2d(1)(Tensor.ones(2, 3, 5, 7)).shape
    (2, 3, 1, 1)
    """


class AdaptiveMaxPool1d(FunctionLayer, function=F.adaptive_max_pool1d, rank=1, shows=("output_size",)):
    """`AdaptiveMaxPool2d` over one axis.

    >>> AdaptiveMaxPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[3.0, 7.0]]]
    """


class AdaptiveMaxPool3d(FunctionLayer, function=F.adaptive_max_pool3d, rank=3, shows=("output_size",)):
    """`AdaptiveMaxPool2d` over three axes.

    >>> AdaptiveMaxPool3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 1, 1, 1)
    """


class LPPool2d(FunctionLayer, rank=2, function=F.lp_pool2d):
    """The p-norm of each window: (sum of x^p)^(1 / p).

    >>> LPPool2d(2, 2)(Tensor([[[[0.0, 3.0], [4.0, 0.0]]]])).tolist()
    [[[[5.0]]]]
    """


class LPPool1d(FunctionLayer, rank=1, function=F.lp_pool2d):
    """`LPPool2d` over one axis.

    >>> LPPool1d(1, 2)(Tensor([[[1.0, 2.0, 3.0, 4.0]]])).tolist()
    [[[3.0, 7.0]]]
    """


class LPPool3d(FunctionLayer, rank=3, function=F.lp_pool2d):
    """`LPPool2d` over three axes.

    >>> LPPool3d(1, 2)(Tensor.ones(1, 1, 2, 2, 2)).flatten().tolist()
    [8.0]
    """


class Upsample(FunctionLayer, function=layers.interpolate, shows=("size", "scale_factor", "mode"), settings=(
        "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")):
    """The space axes resized to `size`, or by `scale_factor`.

    >>> Upsample(scale_factor=2)(Tensor([[[1.0, 3.0]]])).tolist()
    [[[1.0, 1.0, 3.0, 3.0]]]
    """


class UpsamplingNearest2d(FunctionLayer, function=layers.upsample_nearest):
    """`Upsample` by repeating pixels.

    >>> UpsamplingNearest2d(scale_factor=2)(Tensor.ones(1, 1, 2, 3)).shape
    (1, 1, 4, 6)
    """


class UpsamplingBilinear2d(FunctionLayer, function=layers.upsample_bilinear):
    """`Upsample` by bilinear interpolation with aligned corners.

    >>> UpsamplingBilinear2d(size=(3, 3))(Tensor([[[[0.0, 2.0], [2.0, 4.0]]]]))[0, 0, 1].tolist()
    [1.0, 2.0, 3.0]
    """
