"""Dropout: in training some values are 0, and the others are larger by as much. In, out: tensors.

`Tensor.train()` switches it on. Each call draws new numbers.
"""

from __future__ import annotations

from glassgrad.base.errors import InputError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.tensor import Tensor

__all__ = ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"]


class Dropout(Layer):
    """In training: each value 0 with probability p, the others over 1 - p; else the input.

    >>> Dropout(0.5)(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    shows = ("p",)

    def __init__(self, p: float = 0.5, inplace: bool = False):
        if not 0 <= p <= 1:
            raise InputError("dropout needs a probability", given=f"p={p}", expected="a number from 0 to 1",
                             fix="write Dropout(0.5), for example")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return x.dropout(self.p)


class Dropout2d(Dropout):
    """`Dropout` of whole channels of (batch, channels, ...space).

    >>> with Tensor.train():
    ...     y = Dropout2d(0.5)(Tensor.ones(2, 3, 4, 4))
    >>> set(y.flatten(2).var(-1).flatten().tolist())
    {0.0}
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3:
            self._refuse(f"an input of shape {x.shape}", "(batch, channels, ...space)",
                         "use Dropout for single values")
        if not settings.TRAINING or self.p == 0:
            return x
        if self.p == 1:
            return x * 0.0
        keep = Tensor.rand(*x.shape[:2], *(1,) * (x.ndim - 2), device=x.device, dtype=dtypes.float32) >= self.p
        return keep.where(x, 0) * (1.0 / (1.0 - self.p))


class AlphaDropout(Dropout):
    """Dropout for `SELU`: in training, dropped values take SELU's lowest value, and all are moved and scaled so that
    mean 0 and variance 1 stay (Klambauer et al., 2017).

    >>> AlphaDropout(0.5)(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    lowest = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717      # of SELU

    def forward(self, x: Tensor) -> Tensor:
        if not settings.TRAINING or self.p == 0:
            return x
        if self.p == 1:
            return x * 0.0
        scale = ((1 - self.p) * (1 + self.p * self.lowest ** 2)) ** -0.5
        keep = Tensor.rand(*self._drawn(x), device=x.device, dtype=dtypes.float32) >= self.p
        return keep.where(x, self.lowest) * scale - scale * self.lowest * self.p

    def _drawn(self, x: Tensor) -> tuple[int, ...]:
        """The shape of what is drawn: a number for each value."""
        return x.shape


class FeatureAlphaDropout(AlphaDropout):
    """`AlphaDropout` of whole channels of (batch, channels, ...space).

    >>> FeatureAlphaDropout(0.5)(Tensor.ones(1, 2, 3)).shape
    (1, 2, 3)
    """
    def _drawn(self, x: Tensor) -> tuple[int, ...]:
        if x.ndim < 2:
            self._refuse(f"an input of shape {x.shape}", "(batch, channels, ...space)",
                         "use AlphaDropout for single values")
        return (*x.shape[:2], *(1,) * (x.ndim - 2))


class Dropout1d(Dropout2d):
    """`Dropout` of whole channels of (batch, channels, length).

    >>> Dropout1d(0.5)(Tensor.ones(2, 3, 4)).shape
    (2, 3, 4)
    """


class Dropout3d(Dropout2d):
    """`Dropout` of whole channels of (batch, channels, depth, height, width).

    >>> Dropout3d(0.5)(Tensor.ones(1, 2, 3, 3, 3)).shape
    (1, 2, 3, 3, 3)
    """
