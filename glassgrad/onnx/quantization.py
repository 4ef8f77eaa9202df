"""Define quantized operators. In: tensors of small integers with scales and zero points. Out: the same, or floats.

Products of integers are computed in int32, as the standard says; QuantizeLinear and DequantizeLinear around a float
operator are computed as they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgrad import Tensor, dtypes
from glassgrad.onnx.elementwise import LARGEST
from glassgrad.onnx.neural import conv
from glassgrad.onnx.operators import element_type, operator

Ints = Sequence[int]


def along(values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Return scales or zero points of a whole tensor, of each index of an axis or of each block of it, ready to
    broadcast."""
    if values.numel() == 1 and not block_size:
        return values.reshape(())
    if block_size:
        wide = values.repeat_interleave(block_size, dim=axis)
        return wide[(slice(None),) * (axis % x.ndim) + (slice(0, x.shape[axis]),)]
    return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


@operator("QuantizeLinear")
def quantize_linear(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0,
                    output_dtype: int = 0, precision: int = 0, saturate: int = 1) -> Tensor:
    dtype = zero.dtype if zero is not None else element_type(output_dtype) if output_dtype else dtypes.uint8
    wide = element_type(precision) if precision else scale.dtype if scale.is_floating_point() else dtypes.float32
    scaled = x.cast(wide) / along(scale, x, axis, block_size).cast(wide)
    if dtype.name in LARGEST:
        largest = LARGEST[dtype.name]
        return (scaled.clamp(-largest, largest) if saturate else scaled).cast(dtype)
    rounded = scaled.float().round()
    if zero is not None:
        rounded = rounded + along(zero, x, axis, block_size).cast(dtypes.float32)
    limits = np.iinfo(dtype.name)
    return rounded.clamp(int(limits.min), int(limits.max)).cast(dtype)


@operator("DequantizeLinear")
def dequantize_linear(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0,
                      output_dtype: int = 0) -> Tensor:
    dtype = element_type(output_dtype) if output_dtype else scale.dtype
    wide = x.cast(dtypes.float32) if x.dtype.name in LARGEST else x.cast(dtypes.int32)
    if zero is not None:
        wide = wide - along(zero, x, axis, block_size).cast(wide.dtype)
    return (wide.cast(dtypes.float32) * along(scale, x, axis, block_size).cast(dtypes.float32)).cast(dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> Any:
    low, high = x.min().minimum(0), x.max().maximum(0)
    scale = (high - low) / 255
    zero = (-low / scale).round().clamp(0, 255).cast(dtypes.uint8)
    return quantize_linear(x, scale, zero), scale, zero


def centered(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Subtract the zero point, which may be one for each index of an axis, from integers."""
    wide = x.cast(dtypes.int32)
    return wide if zero is None else wide - rows(zero, x, axis).cast(dtypes.int32)


def rows(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return one value for all, one for each index of an axis, or values that broadcast by themselves."""
    return values if values.ndim > 1 else along(values, x, axis, 0)


@operator("MatMulInteger")
def mat_mul_integer(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    return centered(a, a_zero, -2).matmul(centered(b, b_zero, -1))


@operator("QLinearMatMul")
def q_linear_mat_mul(a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
                     y_scale: Tensor, y_zero: Tensor) -> Tensor:
    product = mat_mul_integer(a, b, a_zero, b_zero).cast(dtypes.float32)
    real = product * rows(a_scale, a, -2).cast(dtypes.float32) * rows(b_scale, b, -1).cast(dtypes.float32)
    return quantize_linear(real, y_scale.cast(dtypes.float32), y_zero, axis=-1)


@operator("ConvInteger")
def conv_integer(x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, *,
                 auto_pad: str = "NOTSET", dilations: Ints | None = None, group: int = 1,
                 kernel_shape: Ints | None = None, pads: Ints | None = None, strides: Ints | None = None) -> Tensor:
    return conv(centered(x, x_zero, 1), centered(w, w_zero, 0), auto_pad=auto_pad, dilations=dilations, group=group,
                pads=pads, strides=strides)


@operator("QLinearConv")
def q_linear_conv(x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
                  y_scale: Tensor, y_zero: Tensor, b: Tensor | None = None, *, auto_pad: str = "NOTSET",
                  dilations: Ints | None = None, group: int = 1, kernel_shape: Ints | None = None,
                  pads: Ints | None = None, strides: Ints | None = None) -> Tensor:
    total = conv_integer(x, w, x_zero, w_zero, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads,
                         strides=strides)
    if b is not None:
        total = total + b.reshape(-1, *[1] * (x.ndim - 2))
    return quantize_linear(total.cast(dtypes.float32) * along(w_scale, total, 1, 0) * x_scale, y_scale, y_zero)
