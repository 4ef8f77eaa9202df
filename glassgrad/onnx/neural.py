"""Define convolutions, pooling and normalization. In: tensors of (batch, channels, ...space). Out: tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgrad import Tensor, dtypes
from glassgrad.onnx.graph import NodeCall
from glassgrad.onnx.operators import operator

Ints = Sequence[int]


def around(space: Ints, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints | None, auto_pad: str
           ) -> list[tuple[int, int]]:
    """Return (before, after) of each space axis, from `pads` or by `auto_pad`.

    >>> around([5], [2], [2], [1], None, "SAME_UPPER")
    [(0, 1)]
    """
    rank = len(space)
    if auto_pad in ("NOTSET", "", "VALID"):
        given = [0] * 2 * rank if pads is None or auto_pad == "VALID" else pads
        return list(zip(given[:rank], given[rank:]))
    pairs = []
    for size, k, s, d in zip(space, kernel, strides, dilations):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        less, more = total // 2, total - total // 2
        pairs.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return pairs


def flat(pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return pads as tensor methods take them: from the last axis backward."""
    return tuple(amount for pair in reversed(pairs) for amount in pair)


# -- convolutions ------------------------------------------------------------------------------------------------------
@operator("Conv")
def conv(x: Tensor, w: Tensor, b: Tensor | None = None, *, auto_pad: str = "NOTSET", dilations: Ints | None = None,
         group: int = 1, kernel_shape: Ints | None = None, pads: Ints | None = None, strides: Ints | None = None
         ) -> Tensor:
    kernel = w.shape[2:]
    step, spread = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    pairs = around(x.shape[2:], kernel, step, spread, pads, auto_pad)
    return x.conv2d(w, b, groups=group, stride=tuple(step), dilation=tuple(spread), padding=flat(pairs))


@operator("ConvTranspose")
def conv_transpose(x: Tensor, w: Tensor, b: Tensor | None = None, *, auto_pad: str = "NOTSET",
                   dilations: Ints | None = None, group: int = 1, kernel_shape: Ints | None = None,
                   output_padding: Ints | None = None, output_shape: Ints | None = None, pads: Ints | None = None,
                   strides: Ints | None = None) -> Tensor:
    kernel, space = w.shape[2:], x.shape[2:]
    rank = len(kernel)
    step, spread, more = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
    whole = [s * (n - 1) + m + d * (k - 1) + 1 for n, k, s, d, m in zip(space, kernel, step, spread, more)]
    wanted = list(output_shape)[-rank:] if output_shape else None
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [n * s for n, s in zip(space, step)]
    if wanted is None:
        pairs = around(space, kernel, step, spread, pads, auto_pad)
    else:
        totals = [n - size for n, size in zip(whole, wanted)]
        pairs = [(t // 2, t - t // 2) if auto_pad == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]
    y = x.conv_transpose2d(w, None, groups=group, stride=tuple(step), dilation=tuple(spread))
    grown = [(-before, n - size - after) for (before, after), n, size in zip(pairs, whole, y.shape[2:])]
    y = y.pad([(0, 0), (0, 0), *grown])
    return y if b is None else y + b.reshape(-1, *[1] * rank)


# -- pooling -----------------------------------------------------------------------------------------------------------
class PoolWindows:
    """The windows of a pooling node: sizes, steps, and pads that make them fit."""

    def __init__(self, space: Ints, kernel_shape: Ints, strides: Ints | None, dilations: Ints | None,
                 pads: Ints | None, auto_pad: str, ceil_mode: int):
        rank = len(space)
        self.kernel, self.step = list(kernel_shape), list(strides or [1] * rank)
        self.spread = list(dilations or [1] * rank)
        self.pairs = around(space, self.kernel, self.step, self.spread, pads, auto_pad)
        self.reach = [d * (k - 1) + 1 for k, d in zip(self.kernel, self.spread)]
        self.counts, self.grown = [], []
        for n, (before, after), s, r in zip(space, self.pairs, self.step, self.reach):
            room = n + before + after - r
            count = (-(-room // s) if ceil_mode else room // s) + 1
            if ceil_mode and (count - 1) * s >= n + before:        # a window must not begin in the padding at the end
                count -= 1
            self.counts.append(count)
            self.grown.append((before, max(after, (count - 1) * s + r - n - before)))

    def pool(self, x: Tensor, largest: bool, **more: Any) -> Any:
        method = Tensor.max_pool2d if largest else Tensor.avg_pool2d
        return method(x, tuple(self.kernel), tuple(self.step), tuple(self.spread), flat(self.grown), **more)

    def sums(self, x: Tensor) -> Tensor:
        """Return the sum of each window."""
        return self.pool(x, False) * math.prod(self.kernel)

    def elements(self, space: Ints, with_padding: bool) -> np.ndarray[Any, Any]:
        """Return how many elements each window has, padding included or not."""
        total = np.ones((1,), np.float32)
        axes = zip(space, self.pairs, self.step, self.kernel, self.spread, self.counts)
        for n, (before, after), s, k, d, count in axes:
            places = np.arange(count)[:, None] * s + np.arange(k) * d
            inside = places < n + before + after if with_padding else (places >= before) & (places < n + before)
            total = np.multiply.outer(total, inside.sum(1).astype(np.float32))
        return total


@operator("MaxPool")
def max_pool(x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Ints | None = None,
             kernel_shape: Ints, pads: Ints | None = None, storage_order: int = 0, strides: Ints | None = None,
             node: NodeCall) -> Any:
    space = x.shape[2:]
    windows = PoolWindows(space, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if len(node.outputs) < 2 or not node.outputs[1]:
        return windows.pool(x, True)
    values, indices = windows.pool(x, True, return_indices=True)
    indices = indices.cast(dtypes.int64)
    if storage_order:                                               # columns first
        rows, columns = space
        indices = indices // columns + indices % columns * rows
    images = Tensor.arange(x.shape[0] * x.shape[1], device=x.device).cast(dtypes.int64) * math.prod(space)
    return values, indices + images.reshape(x.shape[0], x.shape[1], *[1] * len(space))


@operator("AveragePool")
def average_pool(x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
                 dilations: Ints | None = None, kernel_shape: Ints, pads: Ints | None = None,
                 strides: Ints | None = None) -> Tensor:
    windows = PoolWindows(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    elements = windows.elements(x.shape[2:], bool(count_include_pad))
    if (elements == math.prod(kernel_shape)).all():
        return windows.pool(x, False)
    return windows.sums(x) / Tensor(elements, device=x.device).cast(x.dtype)


@operator("LpPool")
def lp_pool(x: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Ints | None = None,
            kernel_shape: Ints, p: int = 2, pads: Ints | None = None, strides: Ints | None = None) -> Tensor:
    windows = PoolWindows(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return windows.sums(x.abs().pow(p)).pow(1 / p)


@operator("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.max(tuple(range(2, x.ndim)), keepdim=True)


@operator("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return x.abs().pow(p).sum(tuple(range(2, x.ndim)), keepdim=True).pow(1 / p)


@operator("MaxUnpool", host=(2,))
def max_unpool(x: Tensor, indices: Tensor, output_shape: Any = None, *, kernel_shape: Ints, pads: Ints | None = None,
               strides: Ints | None = None) -> Tensor:
    rank = len(kernel_shape)
    step, cut = strides or [1] * rank, pads or [0] * 2 * rank
    space = [(n - 1) * s - cut[i] - cut[i + rank] + k
             for i, (n, s, k) in enumerate(zip(x.shape[2:], step, kernel_shape))]
    shape = [*x.shape[:2], *space]
    size = math.prod(shape)
    values = Tensor.zeros(size, dtype=x.dtype, device=x.device).scatter(0, indices.reshape(-1), x.reshape(-1))
    y = values.reshape(shape)
    return y if output_shape is None else y.pad([(0, int(n) - m) for n, m in zip(output_shape, shape)])


# -- normalization -----------------------------------------------------------------------------------------------------
def per_channel(values: Tensor, rank: int) -> Tensor:
    return values.reshape(1, -1, *[1] * (rank - 2))


@operator("BatchNormalization", since=14)
def batch_normalization(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
                        momentum: float = 0.9, training_mode: int = 0) -> Any:
    if not training_mode:
        factor = scale * (var + epsilon).rsqrt()
        return (x * per_channel(factor, x.ndim) + per_channel(bias - mean * factor, x.ndim)).cast(x.dtype)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    now, spread = x.mean(axes), x.var(axes, correction=0)
    centered = (x - per_channel(now, x.ndim)) * per_channel((spread + epsilon).rsqrt(), x.ndim)
    y = centered * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)
    return y.cast(x.dtype), mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum)


@operator("BatchNormalization")
def batch_normalization_at_inference(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *,
                                     epsilon: float = 1e-5, momentum: float = 0.9, spatial: int = 1,
                                     is_test: int = 0) -> Tensor:
    if not spatial:                                                 # statistics of each element, before opset 9
        return (x - mean) * (var + epsilon).rsqrt() * scale + bias
    return batch_normalization(x, scale, bias, mean, var, epsilon=epsilon)


@operator("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    y = x.layernorm(tuple(range(2, x.ndim)), epsilon)
    return y * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)


@operator("LayerNormalization")
def layer_normalization(x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5,
                        stash_type: int = 1, node: NodeCall) -> Any:
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.float() if stash_type == 1 and x.dtype.itemsize < 4 else x
    y = wide.layernorm(axes, epsilon).cast(x.dtype) * scale
    y = y if bias is None else y + bias
    if len(node.outputs) == 1:
        return y
    mean = wide.mean(axes, keepdim=True)
    return y, mean, ((wide - mean).square().mean(axes, keepdim=True) + epsilon).rsqrt()


@operator("GroupNormalization", since=21)
def group_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int,
                        stash_type: int = 1) -> Tensor:
    y = x.reshape(x.shape[0], num_groups, -1).layernorm(-1, epsilon).reshape(x.shape)
    return y * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)


@operator("GroupNormalization", since=18)
def group_normalization_by_groups(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int
                                  ) -> Tensor:
    each = x.shape[1] // num_groups
    wide = [values.reshape(-1, 1).expand(num_groups, each).reshape(-1) for values in (scale, bias)]
    return group_normalization(x, *wide, epsilon=epsilon, num_groups=num_groups)


@operator("LRN")
def local_response_normalization(x: Tensor, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
                                 ) -> Tensor:
    before = (size - 1) // 2
    padded = x.square().pad([(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    total: Any = sum(padded[:, i:i + x.shape[1]] for i in range(size))
    return x / (total * (alpha / size) + bias).pow(beta)
