"""Define layers that take their number of input channels or features from the first input. In, out: as the other
layers.

`LazyLinear(4)` becomes a `Linear(n, 4)`, class included, at its first call, where n is the size of the input's axis. It
has no weights before that, so call the model once before its parameters are collected for an optimizer or a file.
"""

from __future__ import annotations

from typing import Any

from glassgrad.nn.layers.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from glassgrad.nn.layers.linear import Linear
from glassgrad.nn.layers.normalization import (BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d,
                                               InstanceNorm3d)
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.tensor import Tensor


class _Lazy(Layer):
    """A layer that turns into `becomes(size, *settings)` at its first call, with the size of an axis of the input."""
    becomes: Any                                    # the final layer class
    axis = 1

    def __init__(self, *settings: Any, **named: Any):
        self._settings, self._options, self._place = settings, named, (None, None)

    def to(self, device: Any = None, dtype: Any = None) -> Any:
        """Remember device and dtype for the tensors made later."""
        self._place = device, dtype
        return self

    def _size(self, x: Tensor) -> int:
        """Return the number of input channels or features; with `rank` set, channels are the axis before the space
        axes."""
        if not self.rank:
            return x.shape[self.axis]
        self._check_space(x)
        return x.shape[-self.rank - 1]

    def forward(self, x: Tensor) -> Any:
        made: Any = self.becomes(self._size(x), *self._settings, **self._options)
        made.to(*self._place)
        told = self.training
        vars(self).clear()
        vars(self).update(vars(made))
        self.__class__ = type(made)  # type: ignore[assignment]
        if told is not None:
            self.train(told)
        return self(x)

    def __repr__(self) -> str:
        given = [*map(repr, self._settings), *[f"{name}={value!r}" for name, value in self._options.items()]]
        return f"{type(self).__name__}({', '.join(given)})"


class LazyLinear(_Lazy, becomes=Linear, axis=-1):
    """`Linear(in_features, out_features)` without in_features.

    >>> layer = LazyLinear(4)
    >>> layer(Tensor.ones(2, 3)).shape, layer
    ((2, 4), Linear(in_features=3, out_features=4))
    """


class LazyConv1d(_Lazy, becomes=Conv1d, rank=1):
    """`Conv1d` without in_channels.

    >>> LazyConv1d(8, 3)(Tensor.ones(2, 3, 10)).shape
    (2, 8, 8)
    """


class LazyConv2d(_Lazy, becomes=Conv2d, rank=2):
    """`Conv2d` without in_channels.

    >>> LazyConv2d(8, 3, padding=1)(Tensor.ones(2, 3, 5, 7)).shape
    (2, 8, 5, 7)
    """


class LazyConv3d(_Lazy, becomes=Conv3d, rank=3):
    """`Conv3d` without in_channels.

    >>> LazyConv3d(4, 2)(Tensor.ones(2, 3, 4, 5, 6)).shape
    (2, 4, 3, 4, 5)
    """


class LazyConvTranspose1d(_Lazy, becomes=ConvTranspose1d, rank=1):
    """`ConvTranspose1d` without in_channels.

    >>> LazyConvTranspose1d(8, 4, stride=2)(Tensor.ones(2, 3, 10)).shape
    (2, 8, 22)
    """


class LazyConvTranspose2d(_Lazy, becomes=ConvTranspose2d, rank=2):
    """`ConvTranspose2d` without in_channels.

    >>> LazyConvTranspose2d(8, 2, stride=2)(Tensor.ones(2, 3, 5, 7)).shape
    (2, 8, 10, 14)
    """


class LazyConvTranspose3d(_Lazy, becomes=ConvTranspose3d, rank=3):
    """`ConvTranspose3d` without in_channels.

    >>> LazyConvTranspose3d(3, 2, stride=2)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 3, 6, 8, 10)
    """


class LazyBatchNorm1d(_Lazy, becomes=BatchNorm1d):
    """`BatchNorm1d` without num_features.

    >>> LazyBatchNorm1d()(Tensor.ones(2, 3)).shape
    (2, 3)
    """


class LazyBatchNorm2d(_Lazy, becomes=BatchNorm2d):
    """`BatchNorm2d` without num_features.

    >>> LazyBatchNorm2d()(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """


class LazyBatchNorm3d(_Lazy, becomes=BatchNorm3d):
    """`BatchNorm3d` without num_features.

    >>> LazyBatchNorm3d()(Tensor.ones(2, 3, 2, 2, 2)).shape
    (2, 3, 2, 2, 2)
    """


class LazyInstanceNorm1d(_Lazy, becomes=InstanceNorm1d, rank=1):
    """`InstanceNorm1d` without num_features.

    >>> LazyInstanceNorm1d()(Tensor.ones(2, 3, 4)).shape
    (2, 3, 4)
    """


class LazyInstanceNorm2d(_Lazy, becomes=InstanceNorm2d, rank=2):
    """`InstanceNorm2d` without num_features.

    >>> LazyInstanceNorm2d()(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """


class LazyInstanceNorm3d(_Lazy, becomes=InstanceNorm3d, rank=3):
    """`InstanceNorm3d` without num_features.

    >>> LazyInstanceNorm3d()(Tensor.ones(2, 3, 2, 2, 2)).shape
    (2, 3, 2, 2, 2)
    """
