"""Normalization of each example by itself: over its last axes, its channels or groups of them. In, out: tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassgrad.base.errors import InputError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.nn.modules import running_statistics as pending
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.new_parameters import buffer, ones, zeros
from glassgrad.tensor.tensor import Tensor

__all__ = ["LayerNorm", "LayerNorm2d", "RMSNorm", "GroupNorm", "InstanceNorm", "InstanceNorm1d", "InstanceNorm2d",
           "InstanceNorm3d", "LocalResponseNorm"]


class LayerNorm(Layer):
    """(x - mean) / sqrt(variance + eps) weight + bias over the last axes, whose sizes are `normalized_shape`.

    >>> layer = LayerNorm(4)
    >>> layer(Tensor([[1.0, 2.0, 3.0, 4.0]])).numpy().round(2)
    array([[-1.34, -0.45,  0.45,  1.34]], dtype=float32)
    """
    shows: tuple[str, ...] = ("normalized_shape", "eps", "elementwise_affine")

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True):
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight = ones(*shape) if elementwise_affine else None
        self.bias = zeros(*shape) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self._normalized(x)

    def _normalized(self, x: Tensor) -> Tensor:
        rank = len(self.normalized_shape)
        if x.shape[-rank:] != self.normalized_shape:
            self._refuse(f"an input of shape {x.shape}", f"last axes of {self.normalized_shape} (normalized_shape)",
                         "check the layer before it, or the shape this one was made with")
        x = x.layernorm(tuple(range(-rank, 0)), self.eps)
        x = x if self.weight is None else x * self.weight
        return x if self.bias is None else x + self.bias


class LayerNorm2d(LayerNorm):
    """`LayerNorm` over the channels of (batch, channels, height, width), at each place.

    >>> LayerNorm2d(3)(Tensor.randn(2, 3, 4, 5)).shape
    (2, 3, 4, 5)
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1:2] != self.normalized_shape:
            self._refuse(f"an input of shape {x.shape}", f"(batch, {self.normalized_shape[0]}, height, width)",
                         "check the layer before it, and that channels are axis 1")
        return self._normalized(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm(Layer):
    """x / sqrt(mean(x^2) + eps) weight over the last axes. `eps=None` takes the smallest step at 1 of x's type, as
    PyTorch does.

    >>> RMSNorm(2, eps=0.0)(Tensor([[3.0, -3.0]])).tolist()
    [[1.0, -1.0]]
    """
    shows = ("normalized_shape", "eps", "elementwise_affine")

    def __init__(self, dim: int | Sequence[int], eps: float | None = 1e-6, elementwise_affine: bool = True):
        shape = (dim,) if isinstance(dim, int) else tuple(dim)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight = ones(*shape) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        rank = len(self.normalized_shape)
        if x.shape[-rank:] != self.normalized_shape:
            self._refuse(f"an input of shape {x.shape}", f"last axes of {self.normalized_shape}",
                         "check the layer before it, or the shape this one was made with")
        eps = self.eps if self.eps is not None else 2.0 ** -x.dtype.mantissa
        x = x.rms_norm(tuple(range(-rank, 0)), eps)
        return x if self.weight is None else x * self.weight


class GroupNorm(Layer):
    """Each group of neighbouring channels of an example normalized by its own mean and variance.

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
        self.weight = ones(num_channels) if affine else None
        self.bias = zeros(num_channels) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            self._refuse(f"an input of shape {x.shape}", f"(batch, {self.num_channels}, ...)",
                         "check the layer before it, and that channels are axis 1")
        grouped = x.reshape(x.shape[0], self.num_groups, math.prod(x.shape[1:]) // self.num_groups)
        return _scaled(grouped.layernorm(-1, self.eps).reshape(x.shape), self.weight, self.bias)


class InstanceNorm(Layer):
    """Each channel of an example normalized by its own mean and variance over space. PyTorch's layers with a number in
    their name also take one example without a batch.

    >>> InstanceNorm(3)(Tensor.randn(2, 3, 4, 5)).shape
    (2, 3, 4, 5)
    """
    shows: tuple[str, ...] = ("num_features", "eps", "affine")

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True, bias: bool = True):
        self.num_features, self.eps, self.affine = num_features, eps, affine
        self.weight = ones(num_features) if affine else None
        self.bias = zeros(num_features) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or x.shape[1] != self.num_features:
            self._refuse(f"an input of shape {x.shape}", f"(batch, {self.num_features}, ...space)",
                         "check the layer before it; channels are axis 1, and space follows")
        return _scaled(x.layernorm(tuple(range(2, x.ndim)), self.eps), self.weight, self.bias)


class InstanceNorm2d(InstanceNorm):
    """`InstanceNorm` with PyTorch's settings: no weight and bias unless `affine`, running statistics if asked for.

    >>> InstanceNorm2d(3).weight is None, InstanceNorm2d(3, affine=True).weight.shape
    (True, (3,))
    """
    shows = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    buffer_names = ("running_mean", "running_var", "num_batches_tracked")
    rank = 2                                        # axes of space

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False, bias: bool = True):
        super().__init__(num_features, eps, affine, bias)
        self.momentum, self.track_running_stats = momentum, track_running_stats
        if track_running_stats:
            self.running_mean, self.running_var = buffer(0.0, num_features), buffer(1.0, num_features)
            self.num_batches_tracked = buffer(0, dtype=dtypes.int64)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == self.rank + 1 and x.shape[0] == self.num_features:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if not self.track_running_stats:
            return super().forward(x)
        if not settings.TRAINING:
            wide = x.cast(x.dtype.accumulator)
            return wide.batchnorm(self.weight, self.bias, self.running_mean,
                                  (self.running_var + self.eps).rsqrt()).cast(x.dtype)
        out = super().forward(x)
        axes, wide = tuple(range(2, x.ndim)), x.detach().cast(x.dtype.accumulator)
        for running, new in ((self.running_mean, wide.mean(axes)), (self.running_var, wide.var(axes))):
            running.assign((running * (1 - self.momentum) + new.mean(0) * self.momentum).cast(running.dtype))
        pending.remember(self.running_mean, self.running_var)
        return out


class InstanceNorm1d(InstanceNorm2d):
    """`InstanceNorm2d` for (batch, channels, length).

    >>> InstanceNorm1d(3)(Tensor.randn(2, 3, 4)).shape
    (2, 3, 4)
    """
    rank = 1


class InstanceNorm3d(InstanceNorm2d):
    """`InstanceNorm2d` for (batch, channels, depth, height, width).

    >>> InstanceNorm3d(3)(Tensor.randn(2, 3, 4, 5, 6)).shape
    (2, 3, 4, 5, 6)
    """
    rank = 3


class LocalResponseNorm(Layer):
    """x / (k + alpha mean of the squares over `size` neighbouring channels)^beta.

    >>> LocalResponseNorm(3)(Tensor.ones(1, 4, 2, 2)).shape
    (1, 4, 2, 2)
    """
    shows = ("size", "alpha", "beta", "k")

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor: return x.local_response_norm(self.size, self.alpha, self.beta, self.k)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x weight + bias, one of each per channel (axis 1)."""
    shape = (1, -1) + (1,) * (x.ndim - 2)
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)
