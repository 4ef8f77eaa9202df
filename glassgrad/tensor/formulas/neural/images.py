"""Resample and resize images on nodes (batch, channels, height, width). In, out: UOps. Does not know tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import UOp, const, dtypes, full
from glassgrad.tensor.formulas import (add, as_float, at, clamp, counting, floor, gather, is_nan, matrix_transpose,
                                       maximum, movedim, mul, repeat_interleave, stack, take, total, unsqueeze)
from glassgrad.tensor.formulas.float_remainder import toward_zero
from glassgrad.tensor.formulas.linalg.products import matmul


def affine_grid(theta: UOp, height: int, width: int, align_corners: bool) -> UOp:
    """Return where affine maps (batch, 2, 3) take the elements of an image: (batch, height, width, 2)."""
    shape = (height, width)
    x = _centres(width, theta, align_corners).reshape((1, width)).expand(shape)
    y = _centres(height, theta, align_corners).reshape((height, 1)).expand(shape)
    base = stack([x, y, full(shape, 1, theta.dtype)], 2).reshape((1, height * width, 3))
    return matmul(base, matrix_transpose(theta)).reshape((theta.shape[0], height, width, 2))


def _centres(n: int, like: UOp, align_corners: bool) -> UOp:
    """Return n positions from -1 to 1: the centres of n equal parts or, with `align_corners`, from end to end."""
    number = counting(n).cast(like.dtype)
    if align_corners:
        return number * (2 / (n - 1)) - 1 if n > 1 else number * 0
    return (number * 2 + 1) / n - 1


def grid_sample(image: UOp, grid: UOp, mode: str, padding_mode: str, align_corners: bool) -> UOp:
    """Return an image's values at the positions of a grid (batch, rows, columns, 2): x and y, from -1 to 1."""
    batch, channels, height, width = image.shape
    flat = image.reshape((batch, channels, height * width))
    grid, (rows, columns) = as_float(grid), grid.shape[1:3]

    def taps(t: UOp, n: int) -> list[tuple[UOp, UOp]]:
        """Return the elements of an axis that contribute at a position, and their weights."""
        t = (t + 1) * ((n - 1) / 2) if align_corners else ((t + 1) * n - 1) / 2
        if mode == "bicubic":
            return [(_in_range(place, n, padding_mode, align_corners), share) for place, share in _taps(t, mode)]
        t = _in_range(t, n, padding_mode, align_corners)
        return [(t.detach().round(), const(1, t.dtype))] if mode == "nearest" else _taps(t, mode)

    def value_at(column: UOp, row: UOp) -> UOp:
        inside = column.ge(0) & (column < width) & row.ge(0) & (row < height)
        row, column = [clamp(place.cast(dtypes.int32), 0, n - 1) for place, n in ((row, height), (column, width))]
        index = (row * width + column).reshape((batch, 1, rows * columns)).contiguous()      # for all channels
        index = index.expand((batch, channels, rows * columns))
        found = gather(flat, 2, index).reshape((batch, channels, rows, columns))
        return unsqueeze(inside, 1).where(found, 0)

    across, down = taps(at(grid, -1, 0), width), taps(at(grid, -1, 1), height)
    lines = [(_sum([value_at(column, row) * _per_channel(weight) for column, weight in across]), share)
             for row, share in down]
    return _sum([line * _per_channel(share) for line, share in lines])


def _in_range(t: UOp, n: int, padding_mode: str, align_corners: bool) -> UOp:
    """Return positions on an axis of n elements: those beyond it moved to its border, reflected at it, or left as they
    are."""
    if padding_mode == "zeros":
        return t
    t = is_nan(t).where(0.0, t)                  # as in PyTorch
    if padding_mode == "reflection":         # at the centres of the border elements, or at their outer edges
        low, span = (0.0, n - 1) if align_corners else (-0.5, n)
        beyond = (t - low).abs()
        rest = toward_zero(beyond, const(span, t.dtype).broadcast(t.shape)) if span else beyond * 0.0
        flips = floor(beyond.detach() / max(span, 1))
        t = ((flips * 0.5).trunc() * 2).eq(flips).where(rest, span - rest) + low
    return clamp(t, 0, n - 1)


def _per_channel(weight: UOp) -> UOp:
    """Reshape a weight (batch, rows, columns) so that it broadcasts over channels."""
    return unsqueeze(weight, 1) if weight.shape else weight


def _sum(terms: Sequence[UOp]) -> UOp:
    return functools.reduce(operator.add, terms)


# -- resizing ------------------------------------------------------------------------------------------------
def resize_pixels(x: UOp, axis: int, count: int, align_corners: bool, step: float, table: Any) -> UOp:
    """Resize one axis of uint8 linearly, in PyTorch's integer arithmetic: weights of at most 15 bits, halves rounded
    up. `table` stores a list of integers."""
    n = x.shape[axis]
    if count > 1 << 28:
        raise InputError("interpolate lists the weights of bytes one by one", given=f"a size of {count:,}",
                         expected="at most 2^28", fix="resize floats: x.float().interpolate(..)")
    sources = [max(i * step if align_corners else (i + 0.5) * step - 0.5, 0.0) for i in range(count)]
    lows = [min(int(source), n - 1) for source in sources]
    shares = [(1 - source + low, source - low) for source, low in zip(sources, lows)]
    most = max(max(pair) for pair in shares)
    bits = next(b for b in range(16) if int(0.5 + most * (1 << b + 1)) >= 1 << 15)
    result: UOp = const(1 << bits - 1, dtypes.int32)
    for side in (0, 1):
        index = table([min(low + side, n - 1) for low in lows])
        weight = table([int(0.5 + pair[side] * (1 << bits)) for pair in shares])
        weight = weight.reshape((count, *(1,) * (len(x.shape) - axis - 1)))
        result = add(result, mul(take(x, axis, index).cast(dtypes.int32), weight))
    return (result >> bits).cast(dtypes.uint8)


def resize(x: UOp, axis: int, count: int, mode: str, align_corners: bool, step: float) -> UOp:
    """Resample one axis to `count` elements, which are `step` old elements apart."""
    n = x.shape[axis]
    number = counting(count)
    if mode.startswith("nearest"):
        times = count // n if n and count % n == 0 else 0
        if times and times & (times - 1) == 0 and step * times == 1:         # other steps are rounded, as in PyTorch
            return repeat_interleave(x, times, axis)
        index = floor((number + (0.5 if mode == "nearest-exact" else 0.0)) * step).cast(dtypes.int32)
        return take(x, axis, index.minimum(n - 1))
    x = as_float(x)
    wide = x.dtype.accumulator
    x = x.cast(wide)
    source = number.cast(wide) * step if align_corners else (number.cast(wide) + 0.5) * step - 0.5
    column = (count, *(1,) * (len(x.shape) - axis - 1))
    source = source if mode == "bicubic" else maximum(source, 0)
    return _sum([take(x, axis, clamp(place, 0, n - 1).cast(dtypes.int32)) * share.reshape(column)
                 for place, share in _taps(source, mode)])


def _taps(t: UOp, mode: str) -> list[tuple[UOp, UOp]]:
    """Return the elements around a position, and their weights: four for cubic interpolation, two for linear."""
    first = floor(t.detach())
    if mode == "bicubic":
        return [(first + k, _cubic(t - first - k, -0.75)) for k in (-1, 0, 1, 2)]
    return [(first, 1 - (t - first)), (first + 1, t - first)]


def resize_smoothly(x: UOp, axis: int, count: int, mode: str, step: float) -> UOp:
    """Resize one axis with a filter as wide as the step (antialias): an element of the result is a weighted mean of all
    elements that it covers."""
    width, radius = max(step, 1.0), 2.0 if mode == "bicubic" else 1.0
    x = as_float(x)
    wide = x.cast(x.dtype.accumulator)
    centre = ((counting(count).cast(wide.dtype) + 0.5) * step).reshape((count, 1))
    element = counting(x.shape[axis]).cast(wide.dtype)
    distance = (element + 0.5 - centre) / width
    covered = element.ge((centre - radius * width + 0.5).trunc()) & (element < (centre + radius * width + 0.5).trunc())
    weights = covered.where(_cubic(distance, -0.5) if mode == "bicubic" else maximum(1 - distance.abs(), 0), 0)
    weights = weights / total(weights, 1, keepdim=True)                        # (count, n)
    return movedim(matmul(movedim(wide, axis, -1), matrix_transpose(weights)), -1, axis)


def _cubic(distance: UOp, a: float) -> UOp:
    """Return the weight of an element at a distance, in cubic convolution (Keys, 1981); 0 from 2 on."""
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return d.le(1).where(near, d.ge(2).where(0, far))


def shuffle(x: UOp, shape: Sequence[int], order: Sequence[int], out: Sequence[int]) -> UOp:
    """Split axes, permute the parts and join them again."""
    return x.reshape(tuple(shape)).permute(tuple(order)).reshape(tuple(out))
