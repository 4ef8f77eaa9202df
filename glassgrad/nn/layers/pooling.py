"""Pools as layers: the maximum or mean of windows. In, out: (batch, channels, ...space), perhaps without batch."""

from __future__ import annotations

from typing import Any

from glassgrad.nn.functional.layers import interpolate
from glassgrad.nn.functional.pools import p_norm_pool
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.formulas.neural.convolution import each
from glassgrad.tensor.tensor import Tensor

__all__ = ["MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "AvgPool1d",
           "AvgPool2d", "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
           "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d",
           "LPPool1d", "LPPool2d", "LPPool3d", "Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"]


class _Pool(Layer):
    """Windows of a size over the last `rank` axes."""
    shows: tuple[str, ...] = ("kernel_size", "stride", "padding")
    rank = 2

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0):
        self.kernel_size = each(kernel_size, self.rank, "kernel_size")
        self.stride = self.kernel_size if stride is None else each(stride, self.rank, "stride")
        self.padding = each(padding, self.rank, "padding", 0)

    def _check(self, x: Tensor) -> None:
        if x.ndim not in (self.rank + 1, self.rank + 2):
            self._refuse(f"an input of shape {x.shape}", f"(batch, channels, ...space) with {self.rank} space axes",
                         "reshape the input")


class MaxPool2d(_Pool):
    """The largest value of each window; without `stride` the windows stand side by side. With `return_indices` also
    where each was found, counted over space: what `MaxUnpool2d` needs.

    >>> MaxPool2d(2)(Tensor.arange(16).reshape(1, 1, 4, 4)).tolist()
    [[[[5, 7], [13, 15]]]]
    """
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
                 return_indices: bool = False, ceil_mode: bool = False):
        super().__init__(kernel_size, stride, padding)
        self.dilation, self.ceil_mode = each(dilation, self.rank, "dilation"), ceil_mode
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        self._check(x)
        return x.max_pool2d(self.kernel_size, self.stride, self.dilation, self.padding, self.ceil_mode,
                            self.return_indices)


class MaxPool1d(MaxPool2d):
    """`MaxPool2d` over one axis.

    >>> MaxPool1d(2)(Tensor.arange(4).reshape(1, 1, 4)).tolist()
    [[[1, 3]]]
    """
    rank = 1


class MaxPool3d(MaxPool2d):
    """`MaxPool2d` over three axes.

    >>> MaxPool3d(2)(Tensor.ones(1, 1, 4, 4, 4)).shape
    (1, 1, 2, 2, 2)
    """
    rank = 3


class MaxUnpool2d(_Pool):
    """Values back at the places that `MaxPool2d(.., return_indices=True)` told, zeros elsewhere.

    >>> pool, back = MaxPool2d(2, return_indices=True), MaxUnpool2d(2)
    >>> back(*pool(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))).tolist()
    [[[[0.0, 0.0], [0.0, 4.0]]]]
    """
    def forward(self, x: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        self._check(x)
        return x.max_unpool2d(indices, self.kernel_size, self.stride, 1, self.padding, output_size)


class MaxUnpool1d(MaxUnpool2d):
    """`MaxUnpool2d` over one axis.

    >>> MaxUnpool1d(2)(*MaxPool1d(2, return_indices=True)(Tensor([[[1.0, 2.0]]]))).tolist()
    [[[0.0, 2.0]]]
    """
    rank = 1


class MaxUnpool3d(MaxUnpool2d):
    """`MaxUnpool2d` over three axes.

    >>> MaxUnpool3d(2)(*MaxPool3d(2, return_indices=True)(Tensor.ones(1, 1, 2, 2, 2))).sum().item()
    1.0
    """
    rank = 3


class AvgPool2d(_Pool):
    """The mean of each window; without `stride` the windows stand side by side. `divisor_override` is divided by in the
    place of the number of elements.

    >>> AvgPool2d(2)(Tensor.arange(16).reshape(1, 1, 4, 4)).tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None):
        super().__init__(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        return x.avg_pool2d(self.kernel_size, self.stride, 1, self.padding, self.ceil_mode, self.count_include_pad,
                            self.divisor_override)


class AvgPool1d(AvgPool2d):
    """`AvgPool2d` over one axis.

    >>> AvgPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[2.0, 6.0]]]
    """
    rank = 1


class AvgPool3d(AvgPool2d):
    """`AvgPool2d` over three axes.

    >>> AvgPool3d(2)(Tensor.ones(1, 1, 4, 4, 4)).shape
    (1, 1, 2, 2, 2)
    """
    rank = 3


class AdaptiveAvgPool2d(Layer):
    """The mean of as many nearly equal parts as asked for, along each space axis; None keeps an axis.

    >>> AdaptiveAvgPool2d(1)(Tensor.ones(2, 3, 5, 7)).shape, AdaptiveAvgPool2d((2, None))(Tensor.ones(2, 3, 5, 7)).shape
    ((2, 3, 1, 1), (2, 3, 2, 7))
    """
    shows = ("output_size",)
    rank, method = 2, "adaptive_avg_pool2d"

    def __init__(self, output_size: Any):
        self.output_size = output_size

    def _check(self, x: Tensor) -> None:
        if x.ndim not in (self.rank + 1, self.rank + 2):
            self._refuse(f"an input of shape {x.shape}", f"(batch, channels, ...space) with {self.rank} space axes",
                         "reshape the input")

    def forward(self, x: Tensor) -> Any:
        self._check(x)
        out: Tensor = getattr(x, self.method)(self.output_size)
        return out


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """`AdaptiveAvgPool2d` over one axis.

    >>> AdaptiveAvgPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[2.0, 6.0]]]
    """
    rank, method = 1, "adaptive_avg_pool1d"


class AdaptiveAvgPool3d(AdaptiveAvgPool2d):
    """`AdaptiveAvgPool2d` over three axes.

    >>> AdaptiveAvgPool3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 1, 1, 1)
    """
    rank, method = 3, "adaptive_avg_pool3d"


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """The largest value of as many nearly equal parts as asked for, along each space axis. With `return_indices` also
    where each was found, counted over space.

    >>> AdaptiveMaxPool2d(1)(Tensor.ones(2, 3, 5, 7)).shape
    (2, 3, 1, 1)
    """
    method = "adaptive_max_pool2d"

    def __init__(self, output_size: Any, return_indices: bool = False):
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        self._check(x)
        return getattr(x, self.method)(self.output_size, self.return_indices)


class AdaptiveMaxPool1d(AdaptiveMaxPool2d):
    """`AdaptiveMaxPool2d` over one axis.

    >>> AdaptiveMaxPool1d(2)(Tensor([[[1.0, 3.0, 5.0, 7.0]]])).tolist()
    [[[3.0, 7.0]]]
    """
    rank, method = 1, "adaptive_max_pool1d"


class AdaptiveMaxPool3d(AdaptiveMaxPool2d):
    """`AdaptiveMaxPool2d` over three axes.

    >>> AdaptiveMaxPool3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 1, 1, 1)
    """
    rank, method = 3, "adaptive_max_pool3d"


class LPPool2d(_Pool):
    """The p-norm of each window: (sum of x^p)^(1 / p).

    >>> LPPool2d(2, 2)(Tensor([[[[0.0, 3.0], [4.0, 0.0]]]])).tolist()
    [[[[5.0]]]]
    """
    shows = ("norm_type", "kernel_size", "stride", "ceil_mode")

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False):
        super().__init__(kernel_size, stride)
        self.norm_type, self.ceil_mode = norm_type, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        return p_norm_pool(x, self.rank, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class LPPool1d(LPPool2d):
    """`LPPool2d` over one axis.

    >>> LPPool1d(1, 2)(Tensor([[[1.0, 2.0, 3.0, 4.0]]])).tolist()
    [[[3.0, 7.0]]]
    """
    rank = 1


class LPPool3d(LPPool2d):
    """`LPPool2d` over three axes.

    >>> LPPool3d(1, 2)(Tensor.ones(1, 1, 2, 2, 2)).flatten().tolist()
    [8.0]
    """
    rank = 3


class Upsample(Layer):
    """Space resized to `size`, or by `scale_factor`.

    >>> Upsample(scale_factor=2)(Tensor([[[1.0, 3.0]]])).tolist()
    [[[1.0, 1.0, 3.0, 3.0]]]
    """
    shows = ("size", "scale_factor", "mode")

    def __init__(self, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                 align_corners: bool | None = None, recompute_scale_factor: bool | None = None):
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)


class UpsamplingNearest2d(Upsample):
    """`Upsample` by repeating pixels.

    >>> UpsamplingNearest2d(scale_factor=2)(Tensor.ones(1, 1, 2, 3)).shape
    (1, 1, 4, 6)
    """
    def __init__(self, size: Any = None, scale_factor: Any = None):
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """`Upsample` along straight lines, the corners staying where they are.

    >>> UpsamplingBilinear2d(size=(3, 3))(Tensor([[[[0.0, 2.0], [2.0, 4.0]]]]))[0, 0, 1].tolist()
    [1.0, 2.0, 3.0]
    """
    def __init__(self, size: Any = None, scale_factor: Any = None):
        super().__init__(size, scale_factor, "bilinear", True)
