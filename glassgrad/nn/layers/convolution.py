"""Define convolutions and their transposes over one, two or three space axes. In, out: (batch, channels, ...space).

The batch axis may be left out, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.functional import layers as F
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.new_parameters import fan_in_uniform
from glassgrad.tensor import checks
from glassgrad.tensor.formulas.neural.convolution import each, padding_in_numbers
from glassgrad.tensor.tensor import Tensor

Sizes = int | tuple[int, ...]


class _ChannelWindows:
    """The base of convolutions and transposed convolutions: channels, windows, parameters."""
    rank: int
    _refuse: Any

    def _set_sizes(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes, dilation: Sizes,
                   groups: int) -> None:
        """Set channels and windows. `Conv2d` and `ConvTranspose2d` take their rank from kernel_size."""
        if self.rank == 2 and isinstance(kernel_size, (tuple, list)) and len(kernel_size) in (1, 2, 3):
            self.rank = len(kernel_size)
        self.kernel_size = each(kernel_size, self.rank, "kernel_size", 1)
        self.stride = each(stride, self.rank, "stride", 1)
        self.dilation = each(dilation, self.rank, "dilation", 1)
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise InputError("the channels cannot be divided into these groups",
                             given=f"in_channels={in_channels}, out_channels={out_channels}, groups={groups}",
                             expected="a number of groups that divides both",
                             fix="write groups=1 for an ordinary convolution")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups

    def _set_parameters(self, rows: int, columns: int, bias: bool) -> None:
        """Make a weight of (rows, columns, ...kernel), and perhaps a bias. As in PyTorch, the fan-in is that of the
        columns, even for a transposed convolution."""
        fan_in = columns * math.prod(self.kernel_size)
        self.weight = fan_in_uniform((rows, columns, *self.kernel_size), fan_in)
        self.bias = fan_in_uniform((self.out_channels,), fan_in) if bias else None

    def _check(self, x: Tensor) -> None:
        if x.ndim not in (self.rank + 1, self.rank + 2) or x.shape[-self.rank - 1] != self.in_channels:
            space = ", ".join(("length",) if self.rank == 1 else ("depth", "height", "width")[3 - self.rank:])
            self._refuse(x, f"(batch, {self.in_channels}, {space}), or without the batch",
                         "check in_channels, and that channels come before space: x.permute moves axes")


class _Convolution(_ChannelWindows, Layer):
    """A convolution over the last `rank` axes."""
    shows = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros"):
        self._set_sizes(in_channels, out_channels, kernel_size, stride, dilation, groups)
        self.padding, self.padding_mode = padding, padding_mode
        self.pads = self._pads(padding)
        checks.choice("there is no such way to pad", "check the spelling", padding_mode=padding_mode,
                      among=("zeros", "reflect", "replicate", "circular"))
        self._set_parameters(out_channels, in_channels // groups, bias)

    def _pads(self, padding: Sizes | str) -> tuple[int, ...]:
        """Return padding as (left, right, top, bottom, ...) from the last axis backward."""
        if isinstance(padding, str):
            pads: tuple[int, ...] = padding_in_numbers(padding, self.kernel_size, self.stride, self.dilation)
            return pads
        if isinstance(padding, (tuple, list)) and len(padding) == 2 * self.rank and self.rank > 1:
            return tuple(padding)
        return tuple(n for p in reversed(each(padding, self.rank, "padding", 0)) for n in (p, p))

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        pads = self.pads
        if self.padding_mode != "zeros":
            x, pads = x.pad(pads, mode=self.padding_mode), (0,) * len(pads)
        return F.CONVOLUTIONS[self.rank - 1](x, self.weight, self.bias, self.stride, pads, self.dilation, self.groups)


class Conv2d(_Convolution, rank=2):
    """A convolution over two axes (or as many as `kernel_size` has); `weight` is (out, in / groups, ...kernel).

    >>> layer = Conv2d(3, 8, kernel_size=3, padding=1)
    >>> layer(Tensor.ones(2, 3, 5, 7)).shape, layer.weight.shape
    ((2, 8, 5, 7), (8, 3, 3, 3))
    """


class Conv1d(_Convolution, rank=1):
    """A convolution over one axis; `weight` is (out, in / groups, kernel).

    >>> Conv1d(3, 8, kernel_size=3)(Tensor.ones(2, 3, 10)).shape
    (2, 8, 8)
    """


class Conv3d(_Convolution, rank=3):
    """A convolution over three axes; `weight` is (out, in / groups, ...kernel).

    >>> Conv3d(3, 4, kernel_size=2)(Tensor.ones(2, 3, 4, 5, 6)).shape
    (2, 4, 3, 4, 5)
    """


class _TransposedConvolution(_ChannelWindows, Layer):
    """The transpose of a convolution over the last `rank` axes."""
    shows = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "dilation",
             "groups")

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
                 output_padding: Sizes = 0, groups: int = 1, bias: bool | int = True, dilation: Sizes | bool = 1,
                 padding_mode: str = "zeros"):
        if type(bias) is int:    # tinygrad's order of the last three: dilation, groups, bias
            dilation, groups, bias = groups, bias, True if dilation == 1 else bool(dilation)
        self._set_sizes(in_channels, out_channels, kernel_size, stride, dilation, groups)
        if padding_mode != "zeros":
            raise InputError("a transposed convolution cannot be padded so", given=f"padding_mode={padding_mode!r}",
                             expected='"zeros"', fix="leave padding_mode out")
        self.padding = each(padding, self.rank, "padding", 0)
        self.output_padding = each(output_padding, self.rank, "output_padding", 0)
        if any(o >= max(s, d) for o, s, d in zip(self.output_padding, self.stride, self.dilation)):
            raise InputError("output_padding is larger than what a stride leaves open",
                             given=f"output_padding={output_padding}",
                             expected=f"less than the stride {self.stride} or the dilation {self.dilation}",
                             fix="write output_padding=stride - 1 at most")
        self._set_parameters(in_channels, out_channels // groups, bool(bias))

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        self._check(x)
        extra = self.output_padding if output_size is None else self._extra(x, output_size)
        return F.TRANSPOSED_CONVOLUTIONS[self.rank - 1](x, self.weight, self.bias, self.stride, self.padding, extra,
                                                        self.groups, self.dilation)

    def _extra(self, x: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """Return the output_padding that gives a requested output size."""
        wanted = tuple(output_size)[-self.rank:]
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in
                 zip(x.shape[-self.rank:], self.stride, self.padding, self.dilation, self.kernel_size)]
        extra = tuple(w - n for w, n in zip(wanted, least))
        if len(wanted) != self.rank or any(not 0 <= e < s for e, s in zip(extra, self.stride)):
            self._refuse(f"an input of shape {x.shape} with output_size={tuple(output_size)}",
                         f"sizes from {least} to {[n + s - 1 for n, s in zip(least, self.stride)]}",
                         "choose a size between")
        return extra


class ConvTranspose2d(_TransposedConvolution, rank=2):
    """The transpose of a convolution: each input element adds a kernel to the output; `weight` is (in, out / groups,
    ...kernel).

    >>> layer = ConvTranspose2d(3, 8, kernel_size=2, stride=2)
    >>> layer(Tensor.ones(2, 3, 5, 7)).shape, layer.weight.shape
    ((2, 8, 10, 14), (3, 8, 2, 2))
    """


class ConvTranspose1d(_TransposedConvolution, rank=1):
    """The transpose of a convolution over one axis; `weight` is (in, out / groups, kernel).

    >>> ConvTranspose1d(3, 8, kernel_size=4, stride=2)(Tensor.ones(2, 3, 10)).shape
    (2, 8, 22)
    """


class ConvTranspose3d(_TransposedConvolution, rank=3):
    """The transpose of a convolution over three axes; `weight` is (in, out / groups, ...kernel).

    >>> ConvTranspose3d(2, 3, kernel_size=2, stride=2)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 3, 6, 8, 10)
    """
