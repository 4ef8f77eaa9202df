"""Provide the layers of torch.nn.functional: products, convolutions, normalizations, tables, attention, shapes. In,
out: tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.base.errors import ShapeError
from glassgrad.base.settings import Context
from glassgrad.base.source_lines import one_place
from glassgrad.nn.functional.fixed_arguments import for_each_rank, public_functions
from glassgrad.nn.modules.pending_statistics import average_into
from glassgrad.tensor.broadcast import in_kind
from glassgrad.tensor.formulas.neural.convolution import Windows, each, padding_in_numbers
from glassgrad.tensor.formulas.neural.normalization import scaled_norm, weighted
from glassgrad.tensor.jit_access import computed_from
from glassgrad.tensor.tensor import Tensor

Sizes = int | Sequence[int]
Maybe = Tensor | None


# -- products ------------------------------------------------------------------------------------------------
def linear(input: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
    """input @ weight.T + bias: the weight is (out, in), where `x.linear` takes (in, out).

    >>> linear(Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]])).tolist()
    [[11.0]]
    """
    return input.linear(weight.transpose(0, -1), bias)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
    """x1 W x2 for each output's matrix W."""
    return _scaled(Tensor.einsum("...i,oij,...j->...o", input1, weight, input2), None, bias)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Maybe = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """softmax(query key^T scale + mask) value. As in PyTorch, `dropout_p` is applied in training and otherwise."""
    with Context(TRAINING=int(dropout_p > 0)):
        return query.scaled_dot_product_attention(key, value, attn_mask, dropout_p, is_causal, enable_gqa, scale=scale)


# -- convolutions --------------------------------------------------------------------------------------------
def _batched(input: Tensor, rank: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of a batch to an input that may lack the batch axis."""
    return function(input.unsqueeze(0)).squeeze(0) if input.ndim == rank - 1 else function(input)


def _check_rank(input: Tensor, weight: Tensor, rank: int, what: str) -> None:
    if weight.ndim != rank + 2:
        raise ShapeError(f"the weight of {what} has another number of space axes",
                         given=f"input {input.shape}, weight {weight.shape}",
                         expected=f"a weight of {rank + 2} axes: channels, channels, and {rank} of space",
                         fix="use the function whose name has your number of space axes")


def _conv(input: Tensor, weight: Tensor, bias: Maybe = None, stride: Sizes = 1, padding: Any = 0, dilation: Sizes = 1,
          groups: int = 1, *, rank: int) -> Tensor:
    """A convolution: of (batch, channels, ...space), or without the batch, by (out, in / groups, ...kernel).

    >>> conv2d(Tensor.ones(1, 1, 3, 3), Tensor.ones(1, 1, 2, 2)).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    _check_rank(input, weight, rank, f"conv{rank}d")
    pads = padding_in_numbers(padding, weight.shape[2:], stride, dilation)
    return _batched(input, weight.ndim, lambda x: x.conv2d(weight, bias, groups, stride, dilation, pads))


def _conv_transpose(input: Tensor, weight: Tensor, bias: Maybe = None, stride: Sizes = 1, padding: Sizes = 0,
                    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, rank: int) -> Tensor:
    """The transpose of a convolution; the weight is (in, out / groups, ...kernel)."""
    _check_rank(input, weight, rank, f"conv_transpose{rank}d")
    return _batched(input, weight.ndim, lambda x: x.conv_transpose2d(
        weight, bias, groups, stride, dilation, padding, output_padding))


CONVOLUTIONS = conv1d, conv2d, conv3d = tuple(for_each_rank("conv", _conv))
TRANSPOSED_CONVOLUTIONS = conv_transpose1d, conv_transpose2d, conv_transpose3d = \
    tuple(for_each_rank("conv_transpose", _conv_transpose))


# -- normalizations ------------------------------------------------------------------------------------------
def _scaled(x: Tensor, weight: Maybe, bias: Maybe) -> Tensor:
    if weight is None and bias is None:
        return x
    with one_place():
        node = weighted(x.uop, None if weight is None else weight.uop, None if bias is None else bias.uop)
    return computed_from(x, node, weight, bias)


def layer_norm(input: Tensor, normalized_shape: Sizes, weight: Maybe = None, bias: Maybe = None,
               eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over the last axes."""
    return _scaled(input.layernorm(_last(input, normalized_shape), eps), weight, bias)


def rms_norm(input: Tensor, normalized_shape: Sizes, weight: Maybe = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last axes; `eps=None` takes the machine epsilon of x's type, at most
    float32's."""
    small = 2.0 ** -input.dtype.accumulator.mantissa if eps is None else eps
    return _scaled(input.rms_norm(_last(input, normalized_shape), small), weight, None)


def _last(input: Tensor, normalized_shape: Sizes) -> tuple[int, ...]:
    """Return the last axes, after checking that they have the sizes of normalized_shape."""
    sizes = tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    if not sizes or tuple(input.shape[-len(sizes):]) != sizes:
        raise ShapeError("the last axes have other sizes", given=f"an input of shape {input.shape}",
                         expected=f"last axes of {sizes} (normalized_shape)",
                         fix=f"check where the input comes from, or write normalized_shape={input.shape[-1:]}")
    return tuple(range(-len(sizes), 0))


def group_norm(input: Tensor, num_groups: int, weight: Maybe = None, bias: Maybe = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over groups of channels."""
    grouped = input.reshape(input.shape[0], num_groups, math.prod(input.shape[1:]) // num_groups)
    return _scaled(grouped.layernorm(-1, eps).reshape(input.shape), _per_channel(weight, input),
                   _per_channel(bias, input))


def _per_channel(values: Maybe, input: Tensor) -> Maybe:
    """Return one value for each channel, in a shape that broadcasts over (batch, channels, ...space)."""
    return None if values is None else values.reshape(1, input.shape[1], *(1,) * (input.ndim - 2))


def batch_norm(input: Tensor, running_mean: Maybe, running_var: Maybe, weight: Maybe = None, bias: Maybe = None,
               training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) for each channel: in training with the batch's statistics, which are averaged
    into the running ones; otherwise with the running statistics."""
    if input.dtype.kind != "f":
        input = input.float()
    axes, wide = tuple(axis for axis in range(input.ndim) if axis != 1), input.cast(input.dtype.accumulator)
    if not training and running_mean is not None and running_var is not None:
        return wide.batchnorm(weight, bias, running_mean, (running_var + eps).rsqrt()).cast(input.dtype)
    if training:
        n = math.prod(input.shape[axis] for axis in axes)
        average_into(running_mean, wide.mean(axes), momentum)
        average_into(running_var, wide.var(axes, correction=0) * (n / max(1, n - 1)), momentum)
    weight, bias = _per_channel(weight, input), _per_channel(bias, input)
    if weight is None or bias is None:
        return _scaled(wide.layernorm(axes, eps), weight, bias).cast(input.dtype)
    weight, bias = weight.cast(wide.dtype), bias.cast(wide.dtype)
    return computed_from(wide, scaled_norm(wide.uop, weight.uop, bias.uop, axes, eps), weight, bias).cast(input.dtype)


def instance_norm(input: Tensor, running_mean: Maybe = None, running_var: Maybe = None, weight: Maybe = None,
                  bias: Maybe = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """Each channel of each example normalized by itself, or by the running statistics."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    flat = input.flatten(2).cast(input.dtype.accumulator)
    average_into(running_mean, flat.mean(-1).mean(0), momentum)
    average_into(running_var, flat.var(-1).mean(0), momentum)
    return group_norm(input, input.shape[1], weight, bias, eps)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x divided by a power of the mean square of neighbouring channels."""
    return input.local_response_norm(size, alpha, beta, k)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norm along an axis."""
    return input.normalize(p, dim, eps)


# -- tables --------------------------------------------------------------------------------------------------
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """1 at each index, 0 elsewhere, along a new last axis."""
    return tensor.one_hot(num_classes)


# -- shapes --------------------------------------------------------------------------------------------------
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Add elements around the input: `pad` has a pair for each axis, the last axis first.

    >>> pad(Tensor([[1, 2]]), (1, 0)).tolist()
    [[0, 1, 2]]
    """
    return input.pad(tuple(pad), mode, 0.0 if value is None else in_kind(value, input.dtype))


def interpolate(input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
                antialias: bool = False) -> Tensor:
    """Resize the space axes."""
    if recompute_scale_factor and scale_factor is not None:       # positions are computed from the size, not the factor
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * (input.ndim - 2)
        size, scale_factor = tuple(math.floor(n * f) for n, f in zip(input.shape[2:], factors)), None
    return input.interpolate(size, mode, bool(align_corners), scale_factor, antialias)


def upsample(input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
             align_corners: bool | None = None) -> Tensor:
    """The older name of interpolate."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """The older name of interpolate(mode="nearest")."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """The older name of interpolate(mode="bilinear", align_corners=True)."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Every window of (batch, channels, height, width) as a column: (batch, channels x window, windows).

    >>> unfold(Tensor.arange(9).reshape(1, 1, 3, 3).float(), 2).shape
    (1, 4, 4)
    """
    kernel, apart, step = (each(n, 2, name) for name, n in (
        ("kernel_size", kernel_size), ("dilation", dilation), ("stride", stride)))
    around = each(padding, 2, "padding", 0)
    reach = [d * (k - 1) for d, k in zip(apart, kernel)]
    if input.ndim not in (3, 4) or any(n + 2 * p <= r for n, p, r in zip(input.shape[-2:], around, reach)):
        raise ShapeError("the windows do not fit the input", given=f"an input of shape {input.shape}",
                         expected="(batch, channels, height, width), or without the batch, with room for a window",
                         fix="check kernel_size, dilation and padding")
    single = input.ndim == 3
    x = (input.unsqueeze(0) if single else input).pad((around[1], around[1], around[0], around[0]))
    seen = x._with(Windows(kernel, step, apart).seen(x.uop))              # (batch, channels, rows, columns, ...window)
    found = seen.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)
    return found.squeeze(0) if single else found


def fold(input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
         stride: Sizes = 1) -> Tensor:
    """Put columns back at their windows, and add them up where windows overlap: the transpose of `unfold`."""
    return input.fold(output_size, kernel_size, dilation, padding, stride)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor: return input.pixel_shuffle(upscale_factor)
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor: return input.pixel_unshuffle(downscale_factor)
def channel_shuffle(input: Tensor, groups: int) -> Tensor: return input.channel_shuffle(groups)


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The input coordinates of each output element under affine maps, for `grid_sample`."""
    return Tensor.affine_grid(theta, size, align_corners or False)


def grid_sample(input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
                align_corners: bool | None = None) -> Tensor:
    """The input, interpolated at coordinates from -1 to 1."""
    return input.grid_sample(grid, mode, padding_mode, align_corners or False)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distance of every pair of rows, each pair once."""
    first, second = Tensor.triu_indices(input.shape[0], input.shape[0], 1)
    return (input[first] - input[second]).norm(p, -1)

__all__ = public_functions(globals())
