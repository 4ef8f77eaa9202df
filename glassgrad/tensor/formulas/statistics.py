"""Statistics of nodes: the most frequent value, histograms, areas, covariances. In, out: UOps.

Does not know tensors.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor.formulas.arithmetic import add, as_float, clamp, divide, floor, mul
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.formulas.indexing import gather_known, sort
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.movement import along, diagonal, matrix_transpose, movedim, pad_axis, part, unsqueeze
from glassgrad.tensor.formulas.reductions import arg_extreme, mean, norm, running, total
from glassgrad.tensor.formulas.special import differences


def mode(x: UOp, axis: int) -> tuple[UOp, UOp]:
    """The most frequent value along an axis, which stays with size 1 (of equally frequent ones the smallest), and its
    last index."""
    moved = movedim(x, axis, -1)
    n = moved.shape[-1]
    values, indices = sort(moved, len(moved.shape) - 1)
    at = along(n, -1, moved.shape)
    starts = pad_axis(part(values, -1, 1, n).ne(part(values, -1, 0, n - 1)), -1, 1, 0, True)
    first = running(o.MAX, starts.where(at, 0), -1)            # where the run of equal values began
    best = arg_extreme(at - first, o.AMAX, -1, True, "mode")   # the end of the longest run, the earliest of them
    return tuple(movedim(gather_known(node, -1, best), -1, axis)  # type: ignore[return-value]
                 for node in (values, indices))


def histogram(x: UOp, bins: int, low: float, high: float) -> UOp:
    """How many values of a vector fall into each of so many equal parts from low to high."""
    x = as_float(x)
    bin_of = floor((x - low) * (bins / (high - low)))
    inside = x.ge(low) & x.le(high)
    bin_of = inside.where(clamp(bin_of, 0, bins - 1), bins).cast(dtypes.int32)
    counted = counting(bins).reshape((bins, 1)).eq(bin_of.reshape((1, x.shape[0])))
    return total(counted.cast(x.dtype), 1)


def trapezoids(y: UOp, x: UOp | None, dx: float, axis: int) -> UOp:
    """The area between each two neighbours along an axis and 0; they are dx apart, or at positions x."""
    n = y.shape[axis]
    middle = divide(add(part(y, axis, 1, n), part(y, axis, 0, n - 1)), 2) if n > 1 else part(y, axis, 0, 0)
    if x is None:
        return mul(middle, dx)
    apart = differences(x, axis if len(x.shape) == len(y.shape) else len(x.shape) - 1, 1)
    if len(apart.shape) == 1 and len(y.shape) > 1:
        apart = apart.reshape(tuple(apart.shape[0] if a == axis else 1 for a in range(len(y.shape))))
    return mul(middle, apart)


def renorm(x: UOp, p: float, axis: int, limit: float) -> UOp:
    """Every slice along an axis whose p-norm is above a limit, scaled to it."""
    sizes = norm(x, p, tuple(a for a in range(len(x.shape)) if a != axis), keepdim=True)
    return (sizes > limit).where(x * (limit / (sizes + 1e-7)), x)


def covariance(x: UOp, correction: int = 1) -> UOp:
    """The covariance of variables (rows) over their observations (columns)."""
    rows = x.reshape((1, x.elements)) if len(x.shape) < 2 else x
    centred = rows - mean(rows, 1, keepdim=True)
    products, n = matmul(centred, matrix_transpose(centred)), rows.shape[1]
    found = products / float(n - correction) if n > correction else products * math.nan
    return found if len(x.shape) == 2 else found.reshape(())


def correlation(x: UOp) -> UOp:
    """The covariance of variables over both deviations."""
    found = covariance(x)
    if not found.shape:
        return found / found
    size = diagonal(found).sqrt()
    return clamp(found / unsqueeze(size, 1) / unsqueeze(size, 0), -1, 1)
