"""Define operators that move elements: views, joins, gathers and scatters. In: tensors, sizes as arrays. Out: tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassgrad import Tensor, dtypes
from glassgrad.onnx.graph import NodeCall, Value, known
from glassgrad.onnx.operators import operator

Ints = Sequence[int]


# -- views -------------------------------------------------------------------------------------------------------------
@operator("Reshape", since=5, host=(1,))
def reshape(x: Tensor, shape: Any, *, allowzero: int = 0) -> Tensor:
    sizes = [x.shape[i] if size == 0 and not allowzero else int(size) for i, size in enumerate(shape)]
    if -1 in sizes and 0 in x.shape:                     # a size for -1 cannot be found: it would be 0 / 0
        rest = math.prod(size for size in sizes if size != -1)
        sizes = [(0 if rest == 0 else x.numel() // rest) if size == -1 else size for size in sizes]
    return x.reshape(sizes)


@operator("Reshape")
def reshape_by_attribute(x: Tensor, *, shape: Ints) -> Tensor:
    return reshape(x, shape)


@operator("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    axis += x.ndim * (axis < 0)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Transpose")
def transpose(x: Tensor, *, perm: Ints | None = None) -> Tensor:
    return x.permute(*(range(x.ndim)[::-1] if perm is None else perm)) if x.ndim else x


@operator("Squeeze", since=13, host=(1,))
def squeeze(x: Tensor, axes: Any = None) -> Tensor:
    given = [i for i, size in enumerate(x.shape) if size == 1] if axes is None else np.atleast_1d(axes)
    chosen = [int(axis) % x.ndim for axis in given]
    return x.reshape([size for i, size in enumerate(x.shape) if i not in chosen])


@operator("Squeeze")
def squeeze_by_attribute(x: Tensor, *, axes: Ints | None = None) -> Tensor:
    return squeeze(x, axes)


@operator("Unsqueeze", since=13, host=(1,))
def unsqueeze(x: Tensor, axes: Any) -> Tensor:
    axes = np.atleast_1d(axes)
    rank = x.ndim + len(axes)
    added = {int(axis) % rank for axis in axes}
    sizes = iter(x.shape)
    return x.reshape([1 if i in added else next(sizes) for i in range(rank)])


@operator("Unsqueeze")
def unsqueeze_by_attribute(x: Tensor, *, axes: Ints) -> Tensor:
    return unsqueeze(x, axes)


@operator("Expand", host=(1,))
def expand(x: Tensor, shape: Any) -> Tensor:
    return x.expand(*np.broadcast_shapes(tuple(x.shape), tuple(int(size) for size in shape)))


@operator("Slice", since=10, host=(1, 2, 3, 4))
def slice_(x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    chosen = [slice(None)] * x.ndim
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps):
        size = x.shape[int(axis)]
        first, stop, step = slice(int(start), int(end), int(step)).indices(size)
        chosen[int(axis)] = slice(first, stop if stop >= 0 else None, step) if len(range(first, stop, step)) else \
            slice(0, 0)
    return x[tuple(chosen)]


@operator("Slice")
def slice_by_attributes(x: Tensor, *, starts: Ints, ends: Ints, axes: Ints | None = None) -> Tensor:
    return slice_(x, starts, ends, axes)


@operator("Split", since=13, host=(1,))
def split_parts(x: Tensor, sizes: Any = None, *, axis: int = 0, num_outputs: int | None = None, node: NodeCall) -> Any:
    if sizes is None:
        count, size = num_outputs or len(node.outputs), x.shape[axis]
        part = -(-size // count)
        sizes = [min(part, size - part * i) for i in range(count)]
    return tuple(x.split([int(size) for size in sizes], dim=axis))


@operator("Split")
def split_by_attribute(x: Tensor, sizes: Any = None, *, axis: int = 0, split: Ints | None = None, node: NodeCall
                       ) -> Any:
    return split_parts(x, split if sizes is None else sizes, axis=axis, node=node)


@operator("Tile", host=(1,))
def tile(x: Tensor, repeats: Any) -> Tensor:
    return x.repeat(*[int(count) for count in repeats]) if x.ndim else x


@operator("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        parts = x.reshape(n, b, b, c // b ** 2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // b ** 2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // b ** 2, h * b, w * b)


@operator("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(*order).reshape(n, c * b ** 2, h // b, w // b)


# -- joins and pads ----------------------------------------------------------------------------------------------------
@operator("Concat")
def concat(*inputs: Tensor, axis: int = 1) -> Tensor:
    return Tensor.cat(*inputs, dim=axis)


@operator("Pad", since=11, host=(1, 2, 3))
def pad(x: Tensor, pads: Any, value: Any = None, axes: Any = None, *, mode: str = "constant") -> Tensor:
    axes = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    around = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        around[axis] = int(pads[i]), int(pads[i + len(axes)])
    # a negative pad cuts off
    x = x[tuple(slice(max(0, -a), size - max(0, -b)) for (a, b), size in zip(around, x.shape))] if x.ndim else x
    grown = [(max(0, a), max(0, b)) for a, b in around]
    if mode == "constant":
        return x.pad(grown, value=0 if value is None else np.asarray(value).item()) if x.ndim else x
    for axis, (before, after) in enumerate(grown):
        if before or after:
            indices = np.pad(np.arange(x.shape[axis]), (before, after), mode=mode)          # type: ignore[call-overload]
            x = x.index_select(axis, Tensor(indices, device=x.device))
    return x


@operator("Pad")
def pad_by_attributes(x: Tensor, *, pads: Ints, mode: str = "constant", value: float = 0.0) -> Tensor:
    return pad(x, pads, np.float64(value), mode=mode)


@operator("Col2Im", host=(1, 2))
def col2im(x: Tensor, image: Any, block: Any, *, dilations: Ints | None = None, pads: Ints | None = None,
           strides: Ints | None = None) -> Tensor:
    rank = len(image)
    dilation, stride = dilations or [1] * rank, strides or [1] * rank
    before, after = (pads or [0] * 2 * rank)[:rank], (pads or [0] * 2 * rank)[rank:]
    grown = [int(n) + a + b for n, a, b in zip(image, before, after)]
    counts = [(n - d * (int(k) - 1) - 1) // s + 1 for n, k, d, s in zip(grown, block, dilation, stride)]
    parts = x.reshape(x.shape[0], -1, math.prod(int(k) for k in block), *counts)
    total: Tensor | None = None
    for number, offsets in enumerate(np.ndindex(*[int(k) for k in block])):
        part = parts[:, :, number]
        for axis in range(rank):
            part = spread(part, axis + 2, stride[axis])
            start = offsets[axis] * dilation[axis]
            around = [(0, 0)] * part.ndim
            around[axis + 2] = start, grown[axis] - start - part.shape[axis + 2]
            part = part.pad(around)
        total = part if total is None else total + part
    assert total is not None
    return total[(slice(None), slice(None), *[slice(a, a + int(n)) for a, n in zip(before, image)])]


def spread(x: Tensor, axis: int, stride: int) -> Tensor:
    """Insert stride - 1 zeros between the elements of an axis.

    >>> spread(Tensor([1, 2, 3]), 0, 2).tolist()
    [1, 0, 2, 0, 3]
    """
    size = x.shape[axis]
    around = [(0, 0)] * (x.ndim + 1)
    around[axis + 1] = 0, stride - 1
    wide = x.unsqueeze(axis + 1).pad(around).reshape(*x.shape[:axis], size * stride, *x.shape[axis + 1:])
    return wide[(slice(None),) * axis + (slice(0, (size - 1) * stride + 1),)]


# -- gathers and scatters ----------------------------------------------------------------------------------------------
def from_the_front(indices: Tensor, size: int) -> Tensor:
    """Return indices counted from the front; negative ones count from the end."""
    wide = indices.cast(dtypes.int64)
    return (wide < 0).where(wide + size, wide)


@operator("Gather", host=(-1,))
def gather(data: Value, indices: Value, *, axis: int = 0, node: NodeCall) -> Any:
    x, array = node.tensor(data), known(indices)
    before = (slice(None),) * (axis % x.ndim)
    if array is not None and known(data) is not None:
        return np.take(known(data), array, axis=axis)                # type: ignore[arg-type]
    if array is not None and array.ndim == 0:                        # a view
        return x[(*before, int(array))]
    return x[(*before, from_the_front(node.tensor(indices), x.shape[axis]))]


@operator("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return x.gather(axis, from_the_front(indices, x.shape[axis]))


def flat_indices(indices: Tensor, sizes: Ints) -> Tensor:
    """Return rows with one index for each axis as indices into these axes flattened."""
    total: Any = 0
    for position, size in enumerate(sizes):
        total = total * size + from_the_front(indices[..., position], size)
    return total


@operator("GatherND")
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth, b = indices.shape[-1], batch_dims
    batches = math.prod(x.shape[:b])
    inner, outer = x.shape[b:b + depth], x.shape[b + depth:]
    found = flat_indices(indices, inner).reshape(batches, -1)                          # (batch, picked)
    found = (Tensor.arange(batches, device=x.device).cast(dtypes.int64) * math.prod(inner)).reshape(-1, 1) + found
    rows = x.reshape(batches * math.prod(inner), *outer)
    return rows[found.reshape(-1)].reshape(*indices.shape[:-1], *outer)


REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scattered(x: Tensor, axis: int, indices: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x.scatter(axis, indices, updates)
    return x.scatter_reduce(axis, indices, updates, REDUCE[reduction])


@operator("Scatter", "ScatterElements")
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    return scattered(x, axis, from_the_front(indices, x.shape[axis]), updates, reduction)


@operator("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = indices.shape[-1]
    rows = x.reshape(math.prod(x.shape[:depth]), math.prod(x.shape[depth:]))
    new = updates.reshape(-1, rows.shape[1])
    where = flat_indices(indices, x.shape[:depth]).reshape(-1, 1).expand(*new.shape)
    return scattered(rows, 0, where, new, reduction).reshape(x.shape)


@operator("TensorScatter", host=(2,))
def tensor_scatter(cache: Tensor, update: Tensor, starts: Any = None, *, axis: int = -2, mode: str = "linear"
                   ) -> Tensor:
    axis, length = axis % cache.ndim, update.shape[axis]
    rows = []
    for batch in range(cache.shape[0]):
        start = 0 if starts is None else int(starts[batch])
        where = (np.arange(length) + start) % cache.shape[axis]
        shape = [length if i == axis else 1 for i in range(1, cache.ndim)]
        indices = Tensor(where, device=cache.device).reshape(shape).expand(*update.shape[1:])
        rows.append(cache[batch].scatter(axis - 1, indices, update[batch]))
    return Tensor.stack(*rows)


@operator("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    time = Tensor.arange(x.shape[time_axis], device=x.device).cast(dtypes.int64)
    shape = [x.shape[i] if i in (batch_axis, time_axis) else 1 for i in range(x.ndim)]
    along_time = time.reshape([size if i == time_axis else 1 for i, size in enumerate(shape)])
    long = lengths.cast(dtypes.int64).reshape([size if i == batch_axis else 1 for i, size in enumerate(shape)])
    return x.gather(time_axis, (along_time < long).where(long - 1 - along_time, along_time).expand(*x.shape))


@operator("OneHot", host=(1,))
def one_hot(indices: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    count = int(np.asarray(depth).item())
    axis = axis % (indices.ndim + 1)
    classes = Tensor.arange(count, device=indices.device).cast(dtypes.int64).reshape(
        [count if i == axis else 1 for i in range(indices.ndim + 1)])
    return (from_the_front(indices, count).unsqueeze(axis) == classes).where(values[1], values[0])


@operator("Trilu", host=(1,))
def trilu(x: Tensor, k: Any = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(np.asarray(k).item())
    return x.triu(diagonal) if upper else x.tril(diagonal)


@operator("Compress", host=(1,))
def compress(x: Tensor, condition: Any, *, axis: int | None = None) -> Tensor:
    chosen = Tensor(np.flatnonzero(condition).astype(np.int64), device=x.device)
    return x.reshape(-1)[chosen] if axis is None else x.index_select(axis % x.ndim, chosen)


@operator("NonZero")
def non_zero(x: Tensor) -> Tensor:
    return x.nonzero().transpose(0, 1).cast(dtypes.int64)


@operator("Unique", host=(0,))
def unique(x: Any, *, axis: int | None = None, sorted: int = 1, node: NodeCall) -> Any:                # noqa: A002
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    found = [first, inverse, counts]
    return tuple(Tensor(array, device=node.device) for array in [values, *[a.astype(np.int64) for a in found]])


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(x: Tensor, indices: Tensor) -> Tensor:
    return x[..., indices.reshape(-1)]


@operator("Binarizer", domain="ai.onnx.ml")
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    return (x > threshold).cast(x.dtype)
