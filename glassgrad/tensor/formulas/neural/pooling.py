"""Pool on nodes: the mean or maximum of windows, of a given size or of a given number. In, out: UOps.

Making windows copies nothing. Does not know tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.graph import UOp, dtypes, full, ops as o
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.formulas import (arg_extreme, as_float, counting, divide, flatten, gather_known, linear_indices,
                                       pad_constant, squeeze, take, total)
from glassgrad.tensor.formulas.neural.convolution import (FirstTakesAll, Windows, each, refuse_large_windows,
                                                          space_padding)


class PoolOptions(NamedTuple):
    """The windows of a pool, as a user writes them."""
    kernel_size: Any
    stride: Any = None
    dilation: Any = 1
    padding: Any = 0
    ceil_mode: bool = False

    @property
    def rank(self) -> int:
        return len(self.kernel_size) if isinstance(self.kernel_size, (tuple, list)) else 2

    def padded(self, what: str, x: UOp, fill: Any) -> tuple[UOp, Windows]:
        """Return the padded input of a pool, and its windows."""
        rank = self.rank
        if len(x.shape) < rank:
            raise ShapeError(f"{what} needs {rank} space axes", given=f"shape {x.shape}",
                             expected="(batch, channels, ...space)", fix="reshape it first")
        size = each(self.kernel_size, rank, "kernel_size")
        strides = size if self.stride is None else each(self.stride, rank, "stride")
        dilations, pairs = each(self.dilation, rank, "dilation"), space_padding(self.padding, rank)
        space = x.shape[len(x.shape) - rank:]
        _refuse_windows_of_padding(what, space, pairs, size, dilations)
        if self.ceil_mode:
            pairs = [_ceil_pair(n, p, k, s, d) for n, p, k, s, d in zip(space, pairs, size, strides, dilations)]
        refuse_large_windows(what, space, pairs, size, dilations)
        return pad_constant(x, [(0, 0)] * (len(x.shape) - rank) + pairs, fill), Windows(size, strides, dilations)


def _refuse_windows_of_padding(what: str, space: Sequence[Any], pairs: list[tuple[int, int]], size: Sequence[int],
                               dilation: Sequence[int]) -> None:
    """Raise if the first or last window may hold nothing but padding, which has no maximum."""
    for pair, k, d in zip(pairs, size, dilation):
        if max(pair) > d * (k - 1):
            raise ShapeError(f"a window of {what} holds nothing but padding",
                             given=f"a window of {tuple(size)} (dilation {tuple(dilation)}) on {tuple(space)} "
                                   f"padded by {pairs}",
                             expected="on each side less padding than a window is long",
                             fix="pad by half a window at most, or pad the input first: x.pad(..)")


def _ceil_pair(n: int, pair: tuple[int, int], k: int, s: int, d: int) -> tuple[int, int]:
    """Return the padding for the last, partial window, if it starts inside the input or its front padding. It may be
    more than that window needs, so that it is the same for every length."""
    before, after = pair
    last = (n + before + after - d * (k - 1) - 2 + s) // s * s              # where a partial window would start
    return before, after + (s - 1 if last < n + before else 0)


# -- pools over windows --------------------------------------------------------------------------------------
def mean_pool(x: UOp, options: PoolOptions, count_padding: bool = True, divisor: float | None = None) -> UOp:
    """The mean of each window, also if its sum would be too large for the type."""
    x = as_float(x)
    padded, windows = options.padded("avg_pool2d", x, 0)
    seen, rank = windows.seen(padded), windows.rank
    wide = x.dtype.accumulator
    sums = total(seen.cast(wide), windows.taps(seen))
    if divisor is not None:
        return divide(sums, divisor).cast(x.dtype)
    if count_padding and not options.ceil_mode:
        return divide(sums, math.prod(seen.shape[len(seen.shape) - rank:])).cast(x.dtype)
    # elements that ceil_mode added at the end never count; padding counts with `count_padding`
    space, pairs = x.shape[len(x.shape) - rank:], space_padding(options.padding, rank)
    starts, ends = zip(*((0, b + n + a) if count_padding else (b, b + n) for n, (b, a) in zip(space, pairs)))
    ones = full(tuple(end - start for start, end in zip(starts, ends)), 1, wide)
    counted = windows.seen(ones.pad([(start, n - end) for start, end, n in zip(starts, ends, padded.shape[-rank:])]))
    return divide(sums, total(counted, tuple(range(rank, 2 * rank)))).cast(x.dtype)


def max_pool(x: UOp, options: PoolOptions, with_indices: bool = False) -> tuple[UOp, UOp | None]:
    """The largest value of each window, and its index in the flattened space axes."""
    padded, windows = options.padded("max_pool2d", x, x.dtype.min)
    seen, rank = windows.seen(padded), windows.rank
    axes = windows.taps(seen)
    most = seen.reduce(o.AMAX, axes)
    shape = seen.shape[:-rank]
    found = own_gradient(most.reshape(shape), (seen if windows.side_by_side else padded,), FirstTakesAll(windows))
    if not with_indices:
        return found, None
    space = x.shape[len(x.shape) - rank:]
    # padding has no index
    indices = windows.seen(options.padded("max_pool2d", linear_indices(space), dtypes.int32.max)[0])
    reached = seen.eq(most) | seen.ne(seen)
    first = reached.where(indices, dtypes.int32.max).reduce(o.AMIN, axes)
    return found, first.reshape(shape)


# -- pools of a given number of parts ------------------------------------------------------------------------
def _no_parts(x: UOp, sizes: tuple[int, ...]) -> UOp | None:
    """Return the empty result if an axis has no parts; None if there are some. Refuse parts of nothing."""
    lead, space = x.shape[:len(x.shape) - len(sizes)], x.shape[len(x.shape) - len(sizes):]
    if 0 in space:
        raise ShapeError("parts without elements have no mean and no maximum", given=f"space axes {space}",
                         expected="1 element or more along each of them", fix="check what made the input empty")
    if 0 not in sizes:
        return None
    return x.shrink([*[(0, n) for n in lead], *[(0, 0) for _ in space]]).reshape((*lead, *sizes))


def _parts(x: UOp, axis: int, count: int) -> tuple[UOp, UOp, UOp]:
    """Split an axis into `count` parts, as a new axis behind it. Return their elements, which of them count, and how
    many do. Part i runs from floor(i n / count) to ceil((i + 1) n / count)."""
    n = x.shape[axis]
    number = counting(count)
    first, end = number * n // count, ((number + 1) * n + (count - 1)) // count
    longest = max(-(-(i + 1) * n // count) - i * n // count for i in range(count)) if count < n else min(n, 2)
    offset = counting(longest).reshape((1, longest))
    lengths = (end - first).reshape((count, 1))
    found = take(x, axis, (first.reshape((count, 1)) + offset).minimum(n - 1))
    tail = (1,) * (len(x.shape) - axis - 1)
    inside = (offset < lengths).reshape((count, longest, *tail))
    return found, inside, lengths.reshape((count, *tail))


def adaptive_mean(x: UOp, sizes: tuple[int, ...]) -> UOp:
    """The means of `sizes` parts of the last axes."""
    rank = len(sizes)
    if (empty := _no_parts(x, sizes)) is not None:
        return as_float(empty)
    space = x.shape[len(x.shape) - rank:]
    if all(n % m == 0 for n, m in zip(space, sizes)):
        x = as_float(x)
        sums = total(*_split(x.cast(x.dtype.accumulator), sizes))
        return divide(sums, math.prod(n // m for n, m in zip(space, sizes))).cast(x.dtype)
    x = as_float(x)
    means = x.cast(x.dtype.accumulator)
    for i, count in enumerate(sizes):
        axis = len(x.shape) - rank + i
        found, inside, lengths = _parts(means, axis, count)
        means = total(inside.where(found, 0), axis + 1) / lengths.cast(means.dtype)
    return means.cast(x.dtype)


def _split(x: UOp, sizes: tuple[int, ...]) -> tuple[UOp, tuple[int, ...]]:
    """Split each of the last axes into `sizes` equal parts, (.., m1 k1, m2 k2) -> (.., m1, k1, m2, k2); return the axes
    within parts too. (Windows would do the same; but their size is a number in the graph, and each length of an axis
    would be another program.)"""
    lead = len(x.shape) - len(sizes)
    pairs = [n for whole, m in zip(x.shape[lead:], sizes) for n in (m, whole // m)]
    split = x.reshape((*x.shape[:lead], *pairs))
    return split, tuple(range(lead + 1, len(split.shape), 2))


def _largest_of_equal_parts(x: UOp, sizes: tuple[int, ...]) -> tuple[UOp, UOp]:
    """The largest value of each part, and its index, each in the shape (.., m1, 1, m2, 1)."""
    seen, axes = _split(x, sizes)
    places, _ = _split(linear_indices(x.shape[len(x.shape) - len(sizes):]), sizes)
    most = seen.reduce(o.AMAX, axes)
    reached = seen.eq(most) | seen.ne(seen)
    return most, reached.where(places, dtypes.int32.max).reduce(o.AMIN, axes)


@dataclass(frozen=True)
class FirstOfEqualParts:
    """The gradient of the maximum of each of so many equal parts: all of it goes to the first element that is it."""
    sizes: tuple[int, ...]

    def __call__(self, g: UOp, out: UOp, x: UOp) -> tuple[UOp]:
        _, first = _largest_of_equal_parts(x.detach(), self.sizes)
        places, _ = _split(linear_indices(x.shape[len(x.shape) - len(self.sizes):]), self.sizes)
        first = first.contiguous()               # an index per part is stored, instead of a gradient per element
        return (first.eq(places).where(g.reshape(first.shape), 0).reshape(x.shape),)


def adaptive_max(x: UOp, sizes: tuple[int, ...]) -> tuple[UOp, UOp]:
    """The largest value of each of `sizes` parts of the last axes, and its index in the flattened space axes."""
    rank = len(sizes)
    if (empty := _no_parts(x, sizes)) is not None:
        return empty, empty.cast(dtypes.int32)
    lead, space = x.shape[:len(x.shape) - rank], x.shape[len(x.shape) - rank:]
    if all(n % m == 0 for n, m in zip(space, sizes)):
        most, indices = (node.reshape((*lead, *sizes)) for node in _largest_of_equal_parts(x, sizes))
        return own_gradient(most, (x,), FirstOfEqualParts(sizes)), indices
    most, indices = x.detach(), linear_indices(space).broadcast(x.shape)
    for axis in range(len(x.shape) - 1, len(lead) - 1, -1):       # last axis first, to find the first of equal values
        (seen, inside, _), (places, _, _) = (_parts(node, axis, sizes[axis - len(lead)]) for node in (most, indices))
        best = arg_extreme(o.AMAX, inside.where(seen, x.dtype.min), axis + 1, True)
        most, indices = (squeeze(gather_known(node, axis + 1, best), axis + 1) for node in (seen, places))
    # the gradient goes to what was found, and to no equal value
    values = gather_known(x.reshape((*lead, math.prod(space))), -1, flatten(indices, len(lead)))
    return values.reshape(indices.shape), indices
