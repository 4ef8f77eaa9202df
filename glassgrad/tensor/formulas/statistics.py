"""Compute statistics of nodes: the most frequent value, histograms, areas, covariances, medians, quantiles. In, out:
UOps.

In ranks, NaN counts as greater than every number. Does not know tensors.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.compiler.graph import UOp, dtypes, ops as o
from glassgrad.compiler.graph.binary_search import passing_prefix
from glassgrad.tensor.formulas import (add, all_true, along, any_true, arg_extreme, as_float, at_most, cat, ceil, clamp,
                                       counting, diagonal, divide, flatten, floor, gather_known, is_nan, lerp, less,
                                       matrix_transpose, maximum, mean, movedim, mul, pad_axis, part, ranked, rows_of,
                                       running, sort, total, unsqueeze)
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.special_functions import differences

FEW_SHARES = 4             # up to this many quantiles are found one by one; for more, rows are sorted


def mode(x: UOp, axis: int) -> tuple[UOp, UOp]:
    """The most frequent value along an axis, which stays with size 1 (of equally frequent ones the smallest), and its
    last index."""
    moved = movedim(x, axis, -1)
    n = moved.shape[-1]
    values, indices = sort(moved, len(moved.shape) - 1)
    at = along(n, -1, moved.shape)
    starts = pad_axis(part(values, -1, 1, n).ne(part(values, -1, 0, n - 1)), -1, 1, 0, True)
    first = running(o.MAX, starts.where(at, 0), -1)            # where the run of equal values began
    best = arg_extreme(o.AMAX, at - first, -1, True)   # the end of the longest run, the earliest of them
    return tuple(movedim(gather_known(node, -1, best), -1, axis)  # type: ignore[return-value]
                 for node in (values, indices))


def histogram(x: UOp, bins: int, low: float, high: float) -> UOp:
    """Return how many values of a vector fall into each of `bins` equal parts from low to high."""
    x = as_float(x)
    bin_of = floor((x - low) * (bins / (high - low)))
    inside = x.ge(low) & x.le(high)
    bin_of = inside.where(clamp(bin_of, 0, bins - 1), bins).cast(dtypes.int32)
    counted = counting(bins).reshape((bins, 1)).eq(bin_of.reshape((1, x.shape[0])))
    return total(counted.cast(x.dtype), 1)


def trapezoids(y: UOp, x: UOp | None, dx: float, axis: int) -> UOp:
    """The area under the line between each two adjacent values along an axis; they are dx apart, or at positions x."""
    n = y.shape[axis]
    middle = divide(add(part(y, axis, 1, n), part(y, axis, 0, n - 1)), 2) if n > 1 else part(y, axis, 0, 0)
    if x is None:
        return mul(middle, dx)
    apart = differences(x, axis if len(x.shape) == len(y.shape) else len(x.shape) - 1, 1)
    if len(apart.shape) == 1 and len(y.shape) > 1:
        apart = apart.reshape(tuple(apart.shape[0] if a == axis else 1 for a in range(len(y.shape))))
    return mul(middle, apart)


def covariance(x: UOp, correction: int = 1) -> UOp:
    """The covariance of variables (rows) over their observations (columns)."""
    rows = x.reshape((1, x.elements)) if len(x.shape) < 2 else x
    centred = rows - mean(rows, 1, keepdim=True)
    products, n = matmul(centred, matrix_transpose(centred)), rows.shape[1]
    found = products / float(n - correction) if n > correction else products * math.nan
    return found if len(x.shape) == 2 else found.reshape(())


def correlation(x: UOp) -> UOp:
    """The covariance of variables divided by both standard deviations."""
    found = covariance(x)
    if not found.shape:
        return found / found
    size = diagonal(found).sqrt()
    return clamp(found / unsqueeze(size, 1) / unsqueeze(size, 0), -1, 1)


# -- of ranks ------------------------------------------------------------------------------------------
def median(x: UOp, axis: int, skip_nan: bool) -> tuple[UOp, UOp]:
    """The lower of the middle values along an axis, which stays with size 1, and its index. If there is a NaN, it is
    the first NaN, unless `skip_nan` leaves them out."""
    n = x.shape[axis]
    rank: Any = (n - 1) // 2
    if x.dtype.kind == "f":
        counted = total(is_nan(x).logical_not().cast(dtypes.int32), axis, keepdim=True, dtype=dtypes.int32)
        rank = maximum((counted - 1) // 2, 0) if skip_nan else (counted < n).where(counted, rank)
    return ranked(x, axis, rank)


def quantile(x: UOp, shares: UOp, axis: int | None, keepdim: bool, interpolation: str, skip_nan: bool) -> UOp:
    """The quantiles of an axis at the given shares; a new first axis for several shares."""
    rank = len(x.shape)
    whole = axis is None
    x, axis = (flatten(x), 0) if axis is None else (x, axis)
    rows = rows_of(x, axis)
    nan = is_nan(rows)
    last: Any = rows.shape[-1] - 1
    if skip_nan:
        last = maximum(total(nan.logical_not(), 1, keepdim=True).cast(x.dtype) - 1, 0)
    at = shares.reshape((1, shares.elements)).cast(x.dtype) * last
    low, high = floor(at), ceil(at)
    if interpolation == "midpoint":
        at = (low + high) / 2
    elif interpolation != "linear":
        at = low = high = {"lower": low, "higher": high, "nearest": at.round()}[interpolation]
    count = shares.elements
    ranks = cat([index.cast(dtypes.int32).broadcast((rows.shape[0], count)) for index in (low, high)], 1)
    if count == 0 or count > FEW_SHARES:
        both = gather_known(sort(rows, 1)[0], 1, ranks)                 # NaN comes last
    else:
        both = cat([ranked(rows, 1, part(ranks, 1, i, i + 1))[0] for i in range(2 * count)], 1)
    below, above = part(both, 1, 0, count), part(both, 1, count, 2 * count)
    found = below if low is high else lerp(below, above, at - low)         # inf - inf would be NaN
    found = (all_true if skip_nan else any_true)(nan, 1, keepdim=True).where(math.nan, found)
    others = () if whole else x.shape[:axis] + x.shape[axis + 1:]
    kept = (1,) * rank if whole else x.shape[:axis] + (1,) + x.shape[axis + 1:]
    return found.permute((1, 0)).reshape((*shares.shape, *(kept if keepdim else others)))


def search_sorted(rows: UOp, values: UOp, right: bool) -> UOp:
    """Return where each value would be inserted into a sorted vector, or each row of values into its own row: before
    equal values, or after them (`right`). NaN comes after all numbers, as in `sort`."""
    def goes_before(at: UOp) -> UOp:
        before = at_most(at, values) if right else less(at, values)
        if values.dtype.kind != "f":
            return before
        return before | (is_nan(values) if right else is_nan(values) & at.eq(at))

    lead, n = rows.shape[:-1], rows.shape[-1]
    row = counting(math.prod(lead), dtypes.int64).reshape((*lead, 1))
    return passing_prefix(rows.reshape((math.prod(lead), n)), values.shape, goes_before, row)
