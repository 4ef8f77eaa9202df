"""Define dropout: in training random values become 0, and the others are scaled so that the mean is preserved. In, out:
tensors.

`Tensor.train()` switches it on. Each call draws new numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.base.settings import settings
from glassgrad.nn.functional import activations as F
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor import checks
from glassgrad.tensor.tensor import Tensor


class _Dropout(Layer):
    """The base class: calls a function of `nn.functional` that drops values with probability p, in training."""
    shows = ("p",)
    drop: Callable[..., Tensor]                     # a function of nn.functional
    least_axes, instead = 0, ""                     # minimum rank of an input, and the layer to use for a lower rank

    def __init__(self, p: float = 0.5, inplace: bool = False):
        checks.fraction("Dropout", "dropout needs a probability", "write Dropout(0.5), for example", p=p)
        self.p, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < self.least_axes:
            self._refuse(x, "(batch, channels, ...space)", f"use {self.instead} for single values")
        return self.drop(x, self.p, bool(settings.TRAINING), self.inplace)


class Dropout(_Dropout, drop=staticmethod(F.dropout)):
    """In training, each value becomes 0 with probability p and the others are divided by 1 - p; else the input.

    >>> Dropout(0.5)(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """


class Dropout2d(_Dropout, drop=staticmethod(F.dropout2d), least_axes=3, instead="Dropout"):
    """`Dropout` of whole channels of (batch, channels, ...space).

    >>> with Tensor.train():
    ...     y = Dropout2d(0.5)(Tensor.ones(2, 3, 4, 4))
    >>> set(y.flatten(2).var(-1).flatten().tolist())
    {0.0}
    """


class Dropout1d(_Dropout, drop=staticmethod(F.dropout1d), least_axes=3, instead="Dropout"):
    """`Dropout` of whole channels of (batch, channels, length).

    >>> Dropout1d(0.5)(Tensor.ones(2, 3, 4)).shape
    (2, 3, 4)
    """


class Dropout3d(_Dropout, drop=staticmethod(F.dropout3d), least_axes=3, instead="Dropout"):
    """`Dropout` of whole channels of (batch, channels, depth, height, width).

    >>> Dropout3d(0.5)(Tensor.ones(1, 2, 3, 3, 3)).shape
    (1, 2, 3, 3, 3)
    """


class AlphaDropout(_Dropout, drop=staticmethod(F.alpha_dropout)):
    """Dropout for `SELU`: in training, dropped values get SELU's lowest value, and all are shifted and scaled so that
    mean 0 and variance 1 are preserved (Klambauer et al., 2017).

    >>> AlphaDropout(0.5)(Tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """


class FeatureAlphaDropout(_Dropout, drop=staticmethod(F.feature_alpha_dropout), least_axes=2, instead="AlphaDropout"):
    """`AlphaDropout` of whole channels of (batch, channels, ...space).

    >>> FeatureAlphaDropout(0.5)(Tensor.ones(1, 2, 3)).shape
    (1, 2, 3)
    """
