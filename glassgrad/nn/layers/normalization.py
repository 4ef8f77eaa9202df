"""Define normalization layers: by the statistics of a batch, or of each example by itself. In, out: tensors.

In training, batch norm uses the batch's mean and variance and averages them into the running ones; otherwise it uses
the running ones. `Tensor.train()` switches. The other layers normalize over an example's last axes, its channels or
groups of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.base.settings import settings
from glassgrad.nn.functional import layers as F
from glassgrad.nn.modules import pending_statistics as pending
from glassgrad.nn.modules.layer import FunctionLayer, Layer
from glassgrad.nn.modules.new_parameters import ones, running_statistics, scale_and_shift
from glassgrad.tensor.broadcast import shape_from
from glassgrad.tensor.tensor import Tensor


# -- by the statistics of a batch ----------------------------------------------------------------------------
class BatchNorm(Layer):
    """(x - mean) / sqrt(variance + eps) weight + bias for each channel (axis 1). `momentum` is the weight of the newest
    batch in the running statistics; None averages all batches equally. The arguments may also come in tinygrad's order:
    size, eps, affine, track_running_stats, momentum.

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
        self.weight, self.bias = scale_and_shift(bool(affine), bias, num_features)
        self.running_mean, self.running_var, self.num_batches_tracked = \
            running_statistics(num_features if track_running_stats else None)

    def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and (biased) variance to normalize with: the batch's in training, else the running ones."""
        if not settings.TRAINING and self.running_mean is not None and self.running_var is not None:
            return self.running_mean, self.running_var
        axes = tuple(i for i in range(x.ndim) if i != 1)
        return x.mean(axes), x.var(axes, correction=0)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        mean, variance = self.calc_stats(x.cast(x.dtype.accumulator))
        if settings.TRAINING and self.track_running_stats:
            self._track(mean, variance, x.numel() // self.num_features)
        has_own = type(self).calc_stats is not BatchNorm.calc_stats            # a subclass overrides it
        if has_own or not settings.TRAINING and self.track_running_stats:
            return F.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps)
        return F.batch_norm(x, None, None, self.weight, self.bias, eps=self.eps)        # by the batch's statistics

    def _check(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.num_features:
            self._refuse(x, f"2 or more axes, the second of size {self.num_features} (num_features)",
                         "check the layer before it, and that channels are axis 1")
        if settings.TRAINING and x.numel() == x.shape[1] and x.numel():
            self._refuse(f"an input of shape {x.shape}, while training",
                         "more than 1 value per channel: a single one has no variance",
                         "use a larger batch, or leave training with Tensor.test()")

    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Average the batch's statistics into the running ones, where the variance is unbiased (over n - 1)."""
        pending.remember(self.running_mean, self.running_var, self.num_batches_tracked)
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)
        share: Any = self.momentum
        if share is None:
            share = 1.0 / self.num_batches_tracked.cast(self.running_mean.dtype)
        pending.average_into(self.running_mean, mean, share)
        pending.average_into(self.running_var, variance * (count / max(1, count - 1)), share)


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


# -- by the statistics of each example -----------------------------------------------------------------------
def _sizes(given: int | Sequence[int], what: str) -> tuple[int, ...]:
    return shape_from(tuple(given) if isinstance(given, Sequence) else (given,), what)


class LayerNorm(Layer):
    """(x - mean) / sqrt(variance + eps) weight + bias over the last axes, whose sizes are `normalized_shape`.

    >>> layer = LayerNorm(4)
    >>> layer(Tensor([[1.0, 2.0, 3.0, 4.0]])).numpy().round(2)
    array([[-1.34, -0.45,  0.45,  1.34]], dtype=float32)
    """
    shows: tuple[str, ...] = ("normalized_shape", "eps", "elementwise_affine")

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True):
        shape = _sizes(normalized_shape, "LayerNorm")
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight, self.bias = scale_and_shift(elementwise_affine, bias, *shape)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(LayerNorm):
    """`LayerNorm` over the channels of (batch, channels, height, width), at each pixel.

    >>> LayerNorm2d(3)(Tensor.randn(2, 3, 4, 5)).shape
    (2, 3, 4, 5)
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1:2] != self.normalized_shape:
            self._refuse(x, f"(batch, {self.normalized_shape[0]}, height, width)",
                         "check the layer before it, and that channels are axis 1")
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm(Layer):
    """x / sqrt(mean(x^2) + eps) weight over the last axes. `eps=None` takes the machine epsilon of x's type, at most
    float32's, as PyTorch does.

    >>> RMSNorm(2, eps=0.0)(Tensor([[3.0, -3.0]])).tolist()
    [[1.0, -1.0]]
    """
    shows = ("normalized_shape", "eps", "elementwise_affine")

    def __init__(self, dim: int | Sequence[int], eps: float | None = 1e-6, elementwise_affine: bool = True):
        shape = _sizes(dim, "RMSNorm")
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight = ones(*shape) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Layer):
    """Each group of neighbouring channels of an example is normalized by its own mean and variance.

    >>> GroupNorm(2, 6)(Tensor.randn(4, 6, 5)).shape
    (4, 6, 5)
    """
    shows: tuple[str, ...] = ("num_groups", "num_channels", "eps", "affine")

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, bias: bool = True):
        if num_groups < 1 or num_channels % num_groups:
            raise InputError("the channels cannot be divided into these groups",
                             given=f"num_groups={num_groups}, num_channels={num_channels}",
                             expected="a number of groups that divides the channels", fix="choose a divisor")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.weight, self.bias = scale_and_shift(bool(affine), bias, num_channels)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            self._refuse(x, f"(batch, {self.num_channels}, ...)",
                         "check the layer before it, and that channels are axis 1")
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _TrackedInstanceNorm(Layer):
    """`InstanceNorm` with PyTorch's settings, over `rank` axes of space."""
    shows: tuple[str, ...] = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    buffer_names = ("running_mean", "running_var", "num_batches_tracked")

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False, bias: bool = True):
        self.num_features, self.eps, self.affine = num_features, eps, affine
        self.momentum, self.track_running_stats = momentum, track_running_stats
        self.weight, self.bias = scale_and_shift(bool(affine), bias, num_features)
        self.running_mean, self.running_var, self.num_batches_tracked = \
            running_statistics(num_features if track_running_stats else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.rank and x.ndim == self.rank + 1 and x.shape[0] == self.num_features:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if x.ndim < 3 or x.shape[1] != self.num_features:
            self._refuse(x, f"(batch, {self.num_features}, ...space)",
                         "check the layer before it; channels are axis 1, and space follows")
        own = bool(settings.TRAINING) or not self.track_running_stats       # by the example's own statistics
        out = F.instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias, own, self.momentum,
                              self.eps)
        if own and self.track_running_stats:
            pending.remember(self.running_mean, self.running_var)
        return out


class InstanceNorm(_TrackedInstanceNorm):
    """Each channel of an example is normalized by its own mean and variance over space. PyTorch's layers with a number
    in their name also take one example without a batch.

    >>> InstanceNorm(3)(Tensor.randn(2, 3, 4, 5)).shape
    (2, 3, 4, 5)
    """
    shows = ("num_features", "eps", "affine")

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True, bias: bool = True):
        super().__init__(num_features, eps, affine=affine, bias=bias)


class InstanceNorm2d(_TrackedInstanceNorm, rank=2):
    """`InstanceNorm` with PyTorch's settings: weight and bias only with `affine`, running statistics with
    `track_running_stats`.

    >>> InstanceNorm2d(3).weight is None, InstanceNorm2d(3, affine=True).weight.shape
    (True, (3,))
    """


class InstanceNorm1d(_TrackedInstanceNorm, rank=1):
    """`InstanceNorm2d` for (batch, channels, length).

    >>> InstanceNorm1d(3)(Tensor.randn(2, 3, 4)).shape
    (2, 3, 4)
    """


class InstanceNorm3d(_TrackedInstanceNorm, rank=3):
    """`InstanceNorm2d` for (batch, channels, depth, height, width).

    >>> InstanceNorm3d(3)(Tensor.randn(2, 3, 4, 5, 6)).shape
    (2, 3, 4, 5, 6)
    """


class LocalResponseNorm(FunctionLayer, function=F.local_response_norm):
    """x / (k + alpha mean of the squares over `size` neighbouring channels)^beta.

    >>> LocalResponseNorm(3)(Tensor.ones(1, 4, 2, 2)).shape
    (1, 4, 2, 2)
    """
