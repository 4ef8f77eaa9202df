"""Statistics of sorted axes: median, quantile, search. In, out: UOps.

NaN counts as greater than every number. Does not know tensors.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const, full
from glassgrad.tensor.formulas.arithmetic import (at_most, ceil, floor, is_nan, lerp, less, maximum, minimum,
                                                  round_half_even)
from glassgrad.tensor.formulas.indexing import gather_known, rows_of, sort, take
from glassgrad.tensor.formulas.movement import flatten
from glassgrad.tensor.formulas.reductions import all_true, any_true, total


def median(x: UOp, axis: int, skip_nan: bool) -> tuple[UOp, UOp]:
    """The lower of the middle values along an axis, which stays with size 1, and its index. With a NaN the median is
    the first of them, or NaN are left out."""
    n = x.shape[axis]
    values, indices = sort(x, axis)
    at: Any = const((n - 1) // 2, dtypes.int32)
    if x.dtype.kind == "f":
        counted = total(is_nan(x).logical_not().cast(dtypes.int32), axis, keepdim=True, dtype=dtypes.int32)
        at = maximum((counted - 1) // 2, 0) if skip_nan else (counted < n).where(counted, (n - 1) // 2)
    at = at.broadcast(tuple(1 if a == axis else m for a, m in enumerate(x.shape)))
    return gather_known(values, axis, at), gather_known(indices, axis, at)


def quantile(x: UOp, shares: UOp, axis: int | None, keepdim: bool, interpolation: str, skip_nan: bool) -> UOp:
    """The values below which shares of an axis are; a new first axis for several shares."""
    rank = len(x.shape)
    whole = axis is None
    x, axis = (flatten(x), 0) if axis is None else (x, axis)
    rows = rows_of(x, axis)
    ordered = sort(rows, 1)[0]                                          # NaN comes last
    nan = is_nan(rows)
    last: Any = rows.shape[-1] - 1
    if skip_nan:
        last = maximum(total(nan.logical_not(), 1, keepdim=True).cast(x.dtype) - 1, 0)
    at = shares.reshape((1, shares.elements)).cast(x.dtype) * last
    low, high = floor(at), ceil(at)
    if interpolation == "midpoint":
        at = (low + high) / 2
    elif interpolation != "linear":
        at = low = high = {"lower": low, "higher": high, "nearest": round_half_even(at)}[interpolation]
    shape = (rows.shape[0], shares.elements)
    below, above = (gather_known(ordered, 1, index.cast(dtypes.int32).broadcast(shape)) for index in (low, high))
    found = lerp(below, above, at - low)
    found = (all_true if skip_nan else any_true)(nan, 1, keepdim=True).where(math.nan, found)
    others = () if whole else x.shape[:axis] + x.shape[axis + 1:]
    kept = (1,) * rank if whole else x.shape[:axis] + (1,) + x.shape[axis + 1:]
    return found.permute((1, 0)).reshape((*shares.shape, *(kept if keepdim else others)))


def search_sorted(rows: UOp, values: UOp, right: bool) -> UOp:
    """Where each value would go into a sorted vector, or each row of values into its own row: before equal ones, or
    after them (`right`). The range is halved for all values at once."""
    n = rows.shape[-1]
    low, high = full(values.shape, 0, dtypes.int32), full(values.shape, n, dtypes.int32)
    for _ in range(n.bit_length()):
        middle = (low + high) // 2
        inside = minimum(middle, n - 1)
        at = take(rows, 0, inside) if len(rows.shape) == 1 else gather_known(rows, -1, inside)
        below = (at_most(at, values) if right else less(at, values)) & (low < high)
        low, high = below.where(middle + 1, low), below.where(high, middle)
    return low
