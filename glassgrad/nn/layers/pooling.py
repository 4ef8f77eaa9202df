"""Pools as layers: the maximum or mean of windows. In, out: (batch, channels, ...space), perhaps without batch."""

from __future__ import annotations

from typing import Any

from glassgrad.nn.functional.layers import interpolate, upsample_bilinear, upsample_nearest
from glassgrad.nn.functional.pools import (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d,
                                           adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d, p_norm_pool)
from glassgrad.nn.modules.layer import FunctionLayer, Layer
from glassgrad.tensor.formulas.neural.convolution import each
from glassgrad.tensor.tensor import Tensor


def _windows(rank: int, kernel_size: Any, stride: Any, padding: Any = 0) -> list[tuple[int, ...]]:
    """The size of windows, the step between them and the padding around, along each axis of space."""
    size = each(kernel_size, rank, "kernel_size")
    return [size, size if stride is None else each(stride, rank, "stride"), each(padding, rank, "padding", 0)]


class _MaxPool(Layer):
    """The largest value of each window."""
    shows = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
                 return_indices: bool = False, ceil_mode: bool = False):
        self.kernel_size, self.stride, self.padding = _windows(self.rank, kernel_size, stride, padding)
        self.dilation, self.ceil_mode = each(dilation, self.rank, "dilation"), ceil_mode
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        self._check_space(x)
        return x.max_pool2d(self.kernel_size, self.stride, self.dilation, self.padding, self.ceil_mode,
                            self.return_indices)


class MaxPool2d(_MaxPool, rank=2):
    """The largest value of each window; without `stride` the windows stand side by side. With `return_indices` also
    where each was found, counted over space: what `MaxUnpool2d` needs.

    >>> MaxPool2d(2)(Tensor.arange(16).reshape(1, 1, 4, 4)).tolist()
    [[[[5, 7], [13, 15]]]]
    """


class MaxPool1d(_MaxPool, rank=1):
    """`MaxPool2d` over one axis.

    >>> MaxPool1d(2)(Tensor.arange(4).reshape(1, 1, 4)).tolist()
    [[[1, 3]]]
    """


class MaxPool3d(_MaxPool, rank=3):
    """`MaxPool2d` over three axes.

    >>> MaxPool3d(2)(Tensor.ones(1, 1, 4, 4, 4)).shape
    (1, 1, 2, 2, 2)
    """


class _MaxUnpool(Layer):
    """Values back where a pool found them."""
    shows = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0):
        self.kernel_size, self.stride, self.padding = _windows(self.rank, kernel_size, stride, padding)

    def forward(self, x: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        self._check_space(x)
        return x.max_unpool2d(indices, self.kernel_size, self.stride, 1, self.padding, output_size)


class MaxUnpool2d(_MaxUnpool, rank=2):
    """Values back at the indices that `MaxPool2d(.., return_indices=True)` gave, zeros elsewhere.

    >>> pool, back = MaxPool2d(2, return_indices=True), MaxUnpool2d(2)
    >>> back(*pool(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))).tolist()
    [[[[0.0, 0.0], [0.0, 4.0]]]]
    """


class MaxUnpool1d(_MaxUnpool, rank=1):
    """`MaxUnpool2d` over one axis.

    >>> MaxUnpool1d(2)(*MaxPool1d(2, return_indices=True)(Tensor([[[1.0, 2.0]]]))).tolist()
    [[[0.0, 2.0]]]
    """


class MaxUnpool3d(_MaxUnpool, rank=3):
    """`MaxUnpool2d` over three axes.

    >>> MaxUnpool3d(2)(*MaxPool3d(2, return_indices=True)(Tensor.ones(1, 1, 2, 2, 2))).sum().item()
    1.0
    """


class _AvgPool(Layer):
    """The mean of each window."""
    shows = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None):
        self.kernel_size, self.stride, self.padding = _windows(self.rank, kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        self._check_space(x)
        return x.avg_pool2d(self.kernel_size, self.stride, 1, self.padding, self.ceil_mode, self.count_include_pad,
                            self.divisor_override)


class AvgPool2d(_AvgPool, rank=2):
    """The mean of each window; without `stride` the windows stand side by side. `divisor_override` is divided by in the
    place of the number of elements.

    >>> AvgPool2d(2)(Tensor.arange(16).reshape(1, 1, 4, 4)).tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """


class AvgPool1d(_AvgPool, rank=1):
    """`AvgPool2d` over one axis.

    >>> AvgPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[2.0, 6.0]]]
    """


class AvgPool3d(_AvgPool, rank=3):
    """`AvgPool2d` over three axes.

    >>> AvgPool3d(2)(Tensor.ones(1, 1, 4, 4, 4)).shape
    (1, 1, 2, 2, 2)
    """


class AdaptiveAvgPool2d(FunctionLayer, function=adaptive_avg_pool2d, rank=2):
    """The mean of `output_size` nearly equal parts, along each space axis; None keeps an axis.

    >>> AdaptiveAvgPool2d(1)(Tensor.ones(2, 3, 5, 7)).shape, AdaptiveAvgPool2d((2, None))(Tensor.ones(2, 3, 5, 7)).shape
    ((2, 3, 1, 1), (2, 3, 2, 7))
    """


class AdaptiveAvgPool1d(FunctionLayer, function=adaptive_avg_pool1d, rank=1):
    """`AdaptiveAvgPool2d` over one axis.

    >>> AdaptiveAvgPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[2.0, 6.0]]]
    """


class AdaptiveAvgPool3d(FunctionLayer, function=adaptive_avg_pool3d, rank=3):
    """`AdaptiveAvgPool2d` over three axes.

    >>> AdaptiveAvgPool3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 1, 1, 1)
    """


class AdaptiveMaxPool2d(FunctionLayer, function=adaptive_max_pool2d, rank=2, shows=("output_size",)):
    """The largest value of `output_size` nearly equal parts, along each space axis. With `return_indices` also
    where each was found, counted over space.

    >>> AdaptiveMaxPool2d(1)(Tensor.ones(2, 3, 5, 7)).shape
    (2, 3, 1, 1)
    """


class AdaptiveMaxPool1d(FunctionLayer, function=adaptive_max_pool1d, rank=1, shows=("output_size",)):
    """`AdaptiveMaxPool2d` over one axis.

    >>> AdaptiveMaxPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[3.0, 7.0]]]
    """


class AdaptiveMaxPool3d(FunctionLayer, function=adaptive_max_pool3d, rank=3, shows=("output_size",)):
    """`AdaptiveMaxPool2d` over three axes.

    >>> AdaptiveMaxPool3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 1, 1, 1)
    """


class _LPPool(Layer):
    """The p-norm of each window."""
    shows = ("norm_type", "kernel_size", "stride", "ceil_mode")

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False):
        self.kernel_size, self.stride, _ = _windows(self.rank, kernel_size, stride)
        self.norm_type, self.ceil_mode = norm_type, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        self._check_space(x)
        return p_norm_pool(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode, rank=self.rank)


class LPPool2d(_LPPool, rank=2):
    """The p-norm of each window: (sum of x^p)^(1 / p).

    >>> LPPool2d(2, 2)(Tensor([[[[0.0, 3.0], [4.0, 0.0]]]])).tolist()
    [[[[5.0]]]]
    """


class LPPool1d(_LPPool, rank=1):
    """`LPPool2d` over one axis.

    >>> LPPool1d(1, 2)(Tensor([[[1.0, 2.0, 3.0, 4.0]]])).tolist()
    [[[3.0, 7.0]]]
    """


class LPPool3d(_LPPool, rank=3):
    """`LPPool2d` over three axes.

    >>> LPPool3d(1, 2)(Tensor.ones(1, 1, 2, 2, 2)).flatten().tolist()
    [8.0]
    """


class Upsample(FunctionLayer, function=interpolate, shows=("size", "scale_factor", "mode"), settings=(
        "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")):
    """Space resized to `size`, or by `scale_factor`.

    >>> Upsample(scale_factor=2)(Tensor([[[1.0, 3.0]]])).tolist()
    [[[1.0, 1.0, 3.0, 3.0]]]
    """


class UpsamplingNearest2d(FunctionLayer, function=upsample_nearest):
    """`Upsample` by repeating pixels.

    >>> UpsamplingNearest2d(scale_factor=2)(Tensor.ones(1, 1, 2, 3)).shape
    (1, 1, 4, 6)
    """


class UpsamplingBilinear2d(FunctionLayer, function=upsample_bilinear):
    """`Upsample` along straight lines, the corners staying where they are.

    >>> UpsamplingBilinear2d(size=(3, 3))(Tensor([[[[0.0, 2.0], [2.0, 4.0]]]]))[0, 0, 1].tolist()
    [1.0, 2.0, 3.0]
    """
