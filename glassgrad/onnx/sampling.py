"""Define Resize, and samples at points and in boxes of images. In: tensors of (batch, channels, ...space). Out:
tensors.

If the points follow from sizes alone (Resize), indices and weights are computed in NumPy; each axis is then a weighted
sum of a few gathers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgrad import Tensor, dtypes
from glassgrad.base.errors import InputError
from glassgrad.onnx.graph import NodeCall
from glassgrad.onnx.operators import operator

Ints = Sequence[int]
Array = np.ndarray[Any, Any]


# -- Resize ------------------------------------------------------------------------------------------------------------
def source_points(out: int, size: int, scale: float, mode: str, roi: tuple[float, float]) -> Array:
    """Return where the elements of a resized axis lie on the original axis."""
    x = np.arange(out, dtype=np.float64)
    exact = size * scale                                  # the length by the scale, which may be a fraction
    if mode == "align_corners":
        return np.zeros(out) if out == 1 else x * (size - 1) / (exact - 1 if exact != out else out - 1)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        return start * (size - 1) + x * (end - start) * (size - 1) / (out - 1) if out > 1 else \
            np.full(1, 0.5 * (start + end) * (size - 1))
    if mode == "pytorch_half_pixel" and out == 1:
        return np.full(1, -0.5)
    if mode == "half_pixel_symmetric":
        adjusted = out / exact
        return size / 2 * (1 - adjusted) + (x + 0.5) / scale - 0.5
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    return (x + 0.5) / scale - 0.5                        # half_pixel


def nearest(points: Array, mode: str) -> Array:
    """Round points by `nearest_mode`."""
    if mode in ("floor", "ceil"):
        return np.floor(points) if mode == "floor" else np.ceil(points)
    return np.ceil(points - 0.5) if mode == "round_prefer_floor" else np.floor(points + 0.5)


def tap_weights(distance: Array, mode: str, a: float) -> Array:
    """Return the weight of an element at a distance from the point."""
    d = np.abs(distance)
    if mode == "linear":
        return np.clip(1 - d, 0, None)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def taps(points: Array, size: int, scale: float, mode: str, a: float, exclude_outside: int, antialias: int
         ) -> tuple[Array, Array]:
    """Return, for each point, the elements that it depends on and their weights: (points, taps) each."""
    shrunk = min(scale, 1.0) if antialias else 1.0
    support = math.ceil((1 if mode == "linear" else 2) / shrunk)
    indices = np.floor(points)[:, None] + np.arange(1 - support, support + 1)
    weights = tap_weights((indices - points[:, None]) * shrunk, mode, a)
    if exclude_outside:
        weights = np.where((indices >= 0) & (indices < size), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    return np.clip(indices, 0, size - 1).astype(np.int64), weights.astype(np.float32)


def resized_axis(x: Tensor, axis: int, indices: Array, weights: Array | None) -> Tensor:
    if weights is None:
        return x.index_select(axis, Tensor(indices, device=x.device))
    shape = [1] * (x.ndim - axis - 1)
    total: Any = 0
    for k in range(indices.shape[1]):
        if weights[:, k].any():
            factor = Tensor(weights[:, k].copy(), device=x.device).cast(x.dtype).reshape(-1, *shape)
            total = x.index_select(axis, Tensor(indices[:, k].copy(), device=x.device)) * factor + total
    return total


@operator("Resize", since=11, host=(1, 2, 3))
def resize(x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, *, antialias: int = 0,
           axes: Ints | None = None, coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
           exclude_outside: int = 0, extrapolation_value: float = 0.0, keep_aspect_ratio_policy: str = "stretch",
           mode: str = "nearest", nearest_mode: str = "round_prefer_floor") -> Tensor:
    chosen = [axis % x.ndim for axis in axes] if axes is not None else list(range(x.ndim))
    given = [x.shape[axis] for axis in chosen]
    if sizes is not None and len(sizes):
        factors = [int(out) / n for out, n in zip(sizes, given)]
        outs = [int(out) for out in sizes]
        if keep_aspect_ratio_policy != "stretch":
            one = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
            factors, outs = [one] * len(outs), [int(math.floor(one * n + 0.5)) for n in given]
    else:
        factors = [float(scale) for scale in scales]
        outs = [int(math.floor(n * scale)) for n, scale in zip(given, factors)]
    outside: Any = None
    for number, (axis, out, scale) in enumerate(zip(chosen, outs, factors)):
        cropped = coordinate_transformation_mode == "tf_crop_and_resize"
        part = (float(roi[number]), float(roi[number + len(chosen)])) if cropped else (0.0, 1.0)
        if out == given[number] and scale == 1 and part == (0.0, 1.0):
            continue
        size = given[number]
        points = source_points(out, size, scale, coordinate_transformation_mode, part)
        if cropped and ((points < 0) | (points > size - 1)).any():
            beyond = Tensor((points < 0) | (points > size - 1), device=x.device).reshape(-1, *[1] * (x.ndim - axis - 1))
            outside = beyond if outside is None else outside | beyond
        if mode == "nearest":
            found = np.clip(nearest(points, nearest_mode), 0, size - 1).astype(np.int64)
            x = resized_axis(x, axis, found, None)
        else:
            x = resized_axis(x, axis, *taps(points, size, scale, mode, cubic_coeff_a, exclude_outside, antialias))
    return x if outside is None else outside.where(extrapolation_value, x).cast(x.dtype)


@operator("Resize", since=10, host=(1,))
def resize_asymmetric(x: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    return resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@operator("Upsample", since=9, host=(1,))
def upsample(x: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    return resize_asymmetric(x, scales, mode="linear" if mode == "bilinear" else mode)


@operator("Upsample")
def upsample_by_attribute(x: Tensor, *, scales: Sequence[float], mode: str = "nearest") -> Tensor:
    return upsample(x, scales, mode=mode)


# -- samples at points -------------------------------------------------------------------------------------------------
def reflected(point: Tensor, low: float, high: float) -> Tensor:
    """Mirror points beyond the limits at the limits until they are inside."""
    span = high - low
    if span == 0:
        return point * 0 + low
    away = (point - low).abs()
    folded = away - (away / (2 * span)).floor() * (2 * span)
    return (folded > span).where(2 * span - folded, folded) + low


def picked(image: Tensor, places: Sequence[Tensor], mode: str, align_corners: int) -> Tensor:
    """Return the elements of (batch, channels, ...space) at integer places of (batch, points), as (batch, channels,
    points)."""
    space = image.shape[2:]
    index: Any = 0
    inside: Any = None
    for place, size in zip(places, space):
        if mode == "reflection":
            low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
            place = reflected(place, low, high)
        fits = (place >= 0) & (place <= size - 1)
        inside = fits if inside is None else inside & fits
        index = index * size + place.clamp(0, size - 1).cast(dtypes.int64)
    n, c = image.shape[:2]
    wide = index.unsqueeze(1).expand(n, c, index.shape[1])
    found = image.reshape(n, c, math.prod(space)).gather(2, wide)
    return inside.unsqueeze(1).where(found, 0).cast(image.dtype) if mode == "zeros" else found


@operator("GridSample")
def grid_sample(x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
                ) -> Tensor:
    space, rank = x.shape[2:], x.ndim - 2
    n = x.shape[0]
    points = []
    for axis, size in enumerate(space):                 # the grid's last axis begins with the last space axis
        u = grid[..., rank - 1 - axis].reshape(n, -1)
        points.append((u + 1) / 2 * (size - 1) if align_corners else ((u + 1) * size - 1) / 2)
    if padding_mode == "border":
        points = [p.clamp(0, size - 1) for p, size in zip(points, space)]
    elif padding_mode == "reflection":
        points = [reflected(p, *((0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)))
                  for p, size in zip(points, space)]
    if mode == "nearest":
        y = picked(x, [p.round() for p in points], padding_mode, align_corners)
        return y.reshape(n, x.shape[1], *grid.shape[1:-1])
    first = [p.floor() for p in points]
    offsets = (0, 1) if "linear" in mode else (-1, 0, 1, 2)
    total: Any = 0
    for corner in itertools.product(offsets, repeat=rank):
        places = [f + o for f, o in zip(first, corner)]
        weight: Any = 1
        for p, place in zip(points, places):
            weight = weight * point_weight((p - place).abs(), mode)
        total = picked(x, places, padding_mode, align_corners) * weight.unsqueeze(1) + total
    return total.reshape(n, x.shape[1], *grid.shape[1:-1]).cast(x.dtype)


def point_weight(d: Tensor, mode: str, a: float = -0.75) -> Tensor:
    if "linear" in mode:
        return 1 - d
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return (d <= 1).where(near, (d < 2).where(far, 0))


@operator("RoiAlign", host=(1, 2))
def roi_align(x: Tensor, rois: Any, batch_indices: Any, *, coordinate_transformation_mode: str = "half_pixel",
              mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
              spatial_scale: float = 1.0, node: NodeCall) -> Tensor:
    """Means of samples in boxes, as products with a matrix for each axis that holds the samples' weights. The number of
    samples depends on the boxes, so these are read."""
    if mode != "avg":
        raise InputError("RoiAlign computes means only", given=f"mode={mode!r}", expected="'avg'", fix="export it so")
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" and node.opset >= 16 else 0.0
    boxes = np.asarray(rois, np.float64) * spatial_scale - shift
    matrices = []
    for axis, (size, out) in enumerate(zip(x.shape[2:], (output_height, output_width))):
        start, length = boxes[:, 1 - axis], boxes[:, 3 - axis] - boxes[:, 1 - axis]
        length = length if shift else np.maximum(length, 1.0)
        matrix = np.zeros((len(boxes), out, size), np.float32)
        for box, bins in enumerate(length / out):
            count = sampling_ratio or max(1, math.ceil(bins))
            points = start[box] + bins * (np.arange(out * count) + 0.5) / count
            inside = (points >= -1) & (points <= size)
            points = np.clip(points, 0, size - 1)
            weights = np.clip(1 - np.abs(points[:, None] - np.arange(size)), 0, None) * inside[:, None]
            matrix[box] = weights.reshape(out, count, size).mean(1)
        matrices.append(Tensor(matrix, device=x.device).cast(x.dtype))
    images = x[Tensor(np.asarray(batch_indices, np.int64), device=x.device)]                # (boxes, channels, h, w)
    rows, columns = matrices
    return rows.unsqueeze(1).matmul(images).matmul(columns.unsqueeze(1).transpose(2, 3))


@operator("DeformConv")
def deform_conv(x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None, *,
                dilations: Ints | None = None, group: int = 1, kernel_shape: Ints | None = None, offset_group: int = 1,
                pads: Ints | None = None, strides: Ints | None = None) -> Tensor:
    """A convolution whose taps are moved by offsets: samples of each tap, then a product with the weight."""
    (n, c, h, wide), (kh, kw), (oh, ow) = x.shape, w.shape[2:], offset.shape[2:]
    step, spread, around = strides or [1, 1], dilations or [1, 1], pads or [0, 0, 0, 0]
    taps_per_group, g = kh * kw, offset_group
    moves = offset.reshape(n * g, taps_per_group, 2, oh, ow)
    images = x.reshape(n * g, c // g, h, wide)
    columns = []
    for tap, (i, j) in enumerate(itertools.product(range(kh), range(kw))):
        y = np.arange(oh, dtype=np.float32)[:, None] * step[0] + i * spread[0] - around[0]
        z = np.arange(ow, dtype=np.float32)[None, :] * step[1] + j * spread[1] - around[1]
        points = [(moves[:, tap, k] + Tensor(base, device=x.device)).reshape(n * g, oh * ow)
                  for k, base in enumerate((y, z))]
        first = [p.floor() for p in points]
        total: Any = 0
        for corner in itertools.product((0, 1), repeat=2):
            places = [f + o for f, o in zip(first, corner)]
            weight = (1 - (points[0] - places[0]).abs()) * (1 - (points[1] - places[1]).abs())
            total = picked(images, places, "zeros", 1) * weight.unsqueeze(1) + total
        if mask is not None:
            total = total * mask.reshape(n * g, taps_per_group, 1, oh * ow)[:, tap]
        columns.append(total.reshape(n, c, oh * ow))
    gathered = Tensor.stack(*columns, dim=2).reshape(n, group, c // group * taps_per_group, oh * ow)
    y_out = w.reshape(1, group, w.shape[0] // group, -1).matmul(gathered).reshape(n, w.shape[0], oh, ow)
    return y_out if b is None else y_out + b.reshape(-1, 1, 1)


# -- boxes -------------------------------------------------------------------------------------------------------------
@operator("NonMaxSuppression", host=(0, 1, 2, 3, 4))
def non_max_suppression(boxes: Any, scores: Any, most: Any = None, iou: Any = None, score: Any = None, *,
                        center_point_box: int = 0) -> Tensor:
    """Per batch and class, the best boxes that overlap no better one. It is computed on the host, because their number
    depends on the values."""
    limit = int(np.asarray(most).item()) if most is not None else 0
    overlap = float(np.asarray(iou).item()) if iou is not None else 0.0
    least = float(np.asarray(score).item()) if score is not None else -math.inf
    if center_point_box:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        boxes = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    areas = (high - low).prod(-1)
    chosen = []
    for batch, label in np.ndindex(*scores.shape[:2]):
        kept: list[int] = []
        for i in np.argsort(-scores[batch, label], kind="stable"):
            if len(kept) >= limit or scores[batch, label, i] <= least:
                break
            sides = np.minimum(high[batch, i], high[batch, kept]) - np.maximum(low[batch, i], low[batch, kept])
            shared = np.clip(sides, 0, None).prod(-1)
            if not (shared > overlap * (areas[batch, i] + areas[batch, kept] - shared)).any():
                kept.append(int(i))
        chosen += [(batch, label, i) for i in kept]
    return Tensor(np.asarray(chosen, np.int64).reshape(-1, 3))
