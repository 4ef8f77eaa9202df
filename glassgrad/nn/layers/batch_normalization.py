"""Normalization by the statistics of a batch. In, out: (batch, channels, ...).

In training the batch's own mean and variance are used and averaged into the running ones, which are used otherwise.
`Tensor.train()` switches.
"""

from __future__ import annotations

from typing import Any

from glassgrad.base.settings import settings
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.nn.modules import running_statistics as pending
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.new_parameters import buffer, ones, zeros
from glassgrad.tensor.tensor import Tensor

__all__ = ["BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]


class BatchNorm(Layer):
    """(x - mean) / sqrt(variance + eps) weight + bias for each channel (axis 1). `momentum` is the share of the
    newest batch in the running statistics; None averages all batches alike. The arguments may also come in
    tinygrad's order: size, eps, affine, track_running_stats, momentum.

    >>> layer = BatchNorm(3)
    >>> with Tensor.train():
    ...     y = layer(Tensor.randn(8, 3, 4, 4) * 5 + 2)
    >>> y.shape, abs(y.mean().item()) < 1e-5, layer.num_batches_tracked.item()
    ((8, 3, 4, 4), True, 1)
    """
    shows = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    buffer_names = ("running_mean", "running_var", "num_batches_tracked")

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool | float = True,
                 track_running_stats: bool | float = True, bias: bool = True):
        if isinstance(momentum, bool):
            momentum, affine, track_running_stats = \
                (0.1 if track_running_stats is True else track_running_stats), momentum, affine
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = bool(affine), bool(track_running_stats)
        self.weight = ones(num_features) if affine else None
        self.bias = zeros(num_features) if affine and bias else None
        self.running_mean = buffer(0.0, num_features) if track_running_stats else None
        self.running_var = buffer(1.0, num_features) if track_running_stats else None
        self.num_batches_tracked = buffer(0, dtype=dtypes.int64) if track_running_stats else None

    def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and variance (over n) to normalize with: the batch's in training, else the running ones."""
        if not settings.TRAINING and self.running_mean is not None and self.running_var is not None:
            return self.running_mean, self.running_var
        axes = tuple(i for i in range(x.ndim) if i != 1)
        return x.mean(axes), x.var(axes, correction=0)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        wide = x.cast(x.dtype.accumulator)
        mean, variance = self.calc_stats(wide)
        if settings.TRAINING and self.track_running_stats:
            self._track(mean.detach(), variance.detach(), x.numel() // self.num_features)
        return wide.batchnorm(self.weight, self.bias, mean, (variance + self.eps).rsqrt()).cast(x.dtype)

    def _check(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.num_features:
            self._refuse(f"an input of shape {x.shape}",
                         f"2 or more axes, the second of size {self.num_features} (num_features)",
                         "check the layer before it, and that channels are axis 1")
        if settings.TRAINING and x.numel() == x.shape[1] and x.numel():
            self._refuse(f"an input of shape {x.shape}, while training",
                         "more than 1 value per channel: a single one has no variance",
                         "use a larger batch, or leave training with Tensor.test()")

    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Average the batch's statistics into the running ones; the variance there is over n - 1."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)
        share: Any = self.momentum
        if share is None:
            share = 1.0 / self.num_batches_tracked.cast(self.running_mean.dtype)
        for running, new in ((self.running_mean, mean), (self.running_var, variance * (count / max(1, count - 1)))):
            running.assign((running * (1 - share) + new * share).cast(running.dtype))
        pending.remember(self.running_mean, self.running_var, self.num_batches_tracked)


class BatchNorm1d(BatchNorm):
    """`BatchNorm` for (batch, channels) or (batch, channels, length).

    >>> BatchNorm1d(3)(Tensor.ones(2, 3)).shape
    (2, 3)
    """


class BatchNorm2d(BatchNorm):
    """`BatchNorm` for (batch, channels, height, width).

    >>> BatchNorm2d(3)(Tensor.ones(2, 3, 4, 5)).shape
    (2, 3, 4, 5)
    """


class BatchNorm3d(BatchNorm):
    """`BatchNorm` for (batch, channels, depth, height, width).

    >>> BatchNorm3d(3)(Tensor.ones(2, 3, 4, 5, 6)).shape
    (2, 3, 4, 5, 6)
    """
