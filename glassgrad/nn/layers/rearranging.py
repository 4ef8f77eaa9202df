"""Define reshaping as layers: flattening, channels to pixels, windows. In, out: tensors."""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.nn.functional import layers as F
from glassgrad.nn.modules.layer import FunctionLayer, Layer
from glassgrad.tensor.tensor import Tensor


class Flatten(Layer):
    """Merge neighbouring axes into one; by default all but the batch.

    >>> Flatten()(Tensor.ones(2, 3, 4)).shape
    (2, 12)
    """
    shows = ("start_dim", "end_dim")

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor: return x.flatten(self.start_dim, self.end_dim)


class Unflatten(Layer):
    """Split one axis into several.

    >>> Unflatten(1, (3, 4))(Tensor.ones(2, 12)).shape
    (2, 3, 4)
    """
    shows = ("dim", "unflattened_size")

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor: return x.unflatten(self.dim, self.unflattened_size)


class PixelShuffle(FunctionLayer, function=F.pixel_shuffle):
    """Channels become pixels: (..., channels factor^2, height, width) as (..., channels, height factor, width factor).

    >>> PixelShuffle(2)(Tensor.ones(1, 8, 3, 4)).shape
    (1, 2, 6, 8)
    """


class PixelUnshuffle(FunctionLayer, function=F.pixel_unshuffle):
    """The inverse of `PixelShuffle`.

    >>> PixelUnshuffle(2)(Tensor.ones(1, 2, 6, 8)).shape
    (1, 8, 3, 4)
    """


class ChannelShuffle(FunctionLayer, function=F.channel_shuffle):
    """Channels reordered: the first of each group, then the second of each, and so on.

    >>> ChannelShuffle(2)(Tensor([[[0], [1], [2], [3]]])).flatten().tolist()
    [0, 2, 1, 3]
    """


class Unfold(FunctionLayer, function=F.unfold, windows=2):
    """Every window as a column: (batch, channels, height, width) as (batch, channels * kernel, windows).

    >>> Unfold(2)(Tensor.arange(6).reshape(1, 1, 2, 3)).tolist()
    [[[0, 1], [1, 2], [3, 4], [4, 5]]]
    """


class Fold(FunctionLayer, function=F.fold, windows=2):
    """Columns put back at their windows and summed where these overlap: the transpose of `Unfold`.

    >>> Fold((2, 3), 2)(Unfold(2)(Tensor.ones(1, 1, 2, 3))).tolist()
    [[[[1.0, 2.0, 1.0], [1.0, 2.0, 1.0]]]]
    """
