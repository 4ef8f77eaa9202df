"""Reduce many values to one, on nodes: sums, products, extremes, running sums. In: UOps, axes as users write them. Out:
UOps.

Sums, products and running sums of 16-bit floats are computed in float32 and rounded once. Does not know tensors.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import ShapeError
from glassgrad.base.source_lines import user_place
from glassgrad.compiler.graph import DType, Length, Scan, UOp, const, dtypes, ops as o
from glassgrad.tensor.autograd.autocast import exact
from glassgrad.tensor.broadcast import Axis, number, resolve_axes, resolve_axis
from glassgrad.tensor.formulas import elementary
from glassgrad.tensor.formulas.arithmetic import (absolute, as_float, divide, in_accumulator, is_nan, maximum, power,
                                                  square)
from glassgrad.tensor.formulas.movement import along, flatten

_WORDS = {o.SUM: "sum", o.PROD: "prod", o.AMAX: "max", o.AMIN: "min"}


def sum_dtype(dtype: DType) -> DType:
    """Return the type of a sum: small integers and bools are summed in 32 bits."""
    if dtype.kind == "f" or dtype.bits >= 32:
        return dtype
    return dtypes.uint32 if dtype.kind == "u" else dtypes.int32


def reduce(op: o.Op, x: UOp, axis: Axis = None, keepdim: bool = False, dtype: DType | None = None) -> UOp:
    """Reduce axes by an op; they stay with size 1 if `keepdim`."""
    axes = resolve_axes(axis, len(x.shape), _WORDS[op])
    out = dtype or x.dtype
    wide = out.accumulator if op is o.SUM or op is o.PROD else out
    place = user_place()
    y = x.cast(wide).reduce(op, axes, place).cast(out)
    return y if keepdim else y.reshape(tuple([n for i, n in enumerate(x.shape) if i not in axes]), place)


def count(x: UOp, axis: Axis, what: str) -> Any:
    """Return how many values a reduction combines into one."""
    return math.prod(x.shape[a] for a in resolve_axes(axis, len(x.shape), what))


def refuse_empty(x: UOp, axis: Axis, what: str) -> None:
    """Raise for an extreme of no values, which does not exist."""
    if (x.symbolic or 0 in x.shape) and count(x, axis, what) < 1:
        raise ShapeError(f"{what} of no values has no answer", given=f"shape {x.shape}, axis={axis}",
                         expected="at least one value to choose from", fix="check for empty tensors before this line")


# -- sums ----------------------------------------------------------------------------------------------------
def total(x: UOp, axis: Axis = None, keepdim: bool = False, dtype: DType | None = None) -> UOp:
    """The sum."""
    return reduce(o.SUM, x, axis, keepdim, dtype or exact(sum_dtype(x.dtype)))


def product(x: UOp, axis: Axis = None, keepdim: bool = False, dtype: DType | None = None) -> UOp:
    """The product."""
    return reduce(o.PROD, x, axis, keepdim, dtype or exact(sum_dtype(x.dtype)))


def mean(x: UOp, axis: Axis = None, keepdim: bool = False) -> UOp:
    """The average; a float for integers."""
    x = as_float(x)
    wide = x.cast(x.dtype.accumulator)
    return divide(reduce(o.SUM, wide, axis, keepdim), count(x, axis, "mean")).cast(exact(x.dtype))


def variance(x: UOp, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> UOp:
    """The mean of squared distances from the mean, over n - correction."""
    x = as_float(x)
    wide = x.cast(x.dtype.accumulator)
    squares = total(square(wide - mean(wide, axis, keepdim=True)), axis, keepdim)
    left: Any = count(x, axis, "var") - correction                 # 0 or less gives NaN
    left = maximum(number(left, wide.dtype, o.DIV), 0) if isinstance(left, Length) else max(0, left)
    return divide(squares, left).cast(x.dtype)


def standard_deviation(x: UOp, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> UOp:
    """The square root of the variance; 0 for equal values, with a gradient of 0."""
    x = as_float(x)
    spread = variance(x.cast(x.dtype.accumulator), axis, keepdim, correction)
    flat = spread.eq(0)                                            # where the slope of the root is infinite
    return flat.where(0.0, flat.where(1.0, spread).sqrt()).cast(x.dtype)


def norm(x: UOp, p: float = 2, axis: Axis = None, keepdim: bool = False) -> UOp:
    """(sum |x|^p)^(1/p); p may be infinite, and 0 counts the values that are not 0. Powers, sums and roots of float16
    and bfloat16 are taken in float32; those of integers too, because their squares soon do not fit into integers."""
    x = as_float(x)
    if x.dtype.accumulator is not x.dtype:
        return norm(x.cast(x.dtype.accumulator), p, axis, keepdim).cast(exact(x.dtype))
    size = absolute(x)
    if p == 2:
        return total(square(size), axis, keepdim).sqrt()
    if p == math.inf or p == -math.inf:
        return largest(size, axis, keepdim) if p > 0 else smallest(size, axis, keepdim)
    if p == 0:
        return total(size.ne(0).cast(x.dtype), axis, keepdim)
    if p == 1:
        return total(size, axis, keepdim)
    return power(total(power(size, p), axis, keepdim), 1.0 / p)


def limited_norm(x: UOp, p: float, axis: int, limit: float) -> UOp:
    """Every slice along an axis, scaled to a p-norm of `limit` where it is above that."""
    sizes = norm(x, p, [a for a in range(len(x.shape)) if a != axis], keepdim=True)
    return (sizes > limit).where(x * (limit / (sizes + 1e-7)), x)


def logsumexp(x: UOp, axis: Axis = None, keepdim: bool = False) -> UOp:
    """ln of the sum of e^x, without overflow."""
    x = as_float(x)
    top = reduce(o.AMAX, x, axis, True).detach()
    top = top.abs().eq(math.inf).where(0.0, top)
    found = in_accumulator(elementary.log, total(in_accumulator(elementary.exp, x - top), axis, keepdim))
    return found + top.reshape(found.shape).cast(found.dtype)


# -- extremes ------------------------------------------------------------------------------------------------
def largest(x: UOp, axis: Axis = None, keepdim: bool = False) -> UOp:
    """The largest value; NaN if there is one."""
    refuse_empty(x, axis, "max")
    return reduce(o.AMAX, x, axis, keepdim)


def smallest(x: UOp, axis: Axis = None, keepdim: bool = False) -> UOp:
    """The smallest value; NaN if there is one."""
    refuse_empty(x, axis, "min")
    return reduce(o.AMIN, x, axis, keepdim)


def arg_extreme(op: o.Op, x: UOp, axis: int | None, keepdim: bool = False) -> UOp:
    """The index of the extreme along an axis, the first of equal ones; without an axis, in the flattened node."""
    if axis is None:
        found = arg_extreme(op, flatten(x), 0)
        return found.reshape((1,) * len(x.shape)) if keepdim else found
    at = resolve_axis(axis, len(x.shape), f"arg{_WORDS[op]}")
    if not x.shape:
        return const(0, dtypes.default_int)
    refuse_empty(x, at, f"arg{_WORDS[op]}")
    n = x.shape[at]
    chosen = x.eq(x.reduce(op, (at,)).expand(x.shape))
    if x.dtype.kind == "f":
        chosen = chosen | is_nan(x)          # a NaN is the extreme, but does not equal itself
    first = chosen.where(along(n, at, x.shape, dtypes.default_int), n).reduce(o.AMIN, (at,))
    return first if keepdim else first.reshape(x.shape[:at] + x.shape[at + 1:])


def any_true(x: UOp, axis: Axis = None, keepdim: bool = False) -> UOp:
    """Whether any value differs from zero."""
    return reduce(o.AMAX, x.cast(dtypes.bool), axis, keepdim)


def all_true(x: UOp, axis: Axis = None, keepdim: bool = False) -> UOp:
    """Whether all values differ from zero."""
    return reduce(o.AMIN, x.cast(dtypes.bool), axis, keepdim)


# -- running -------------------------------------------------------------------------------------------------
def running(op: o.Op, x: UOp, axis: int, dtype: DType | None = None) -> UOp:
    """Each value combined with all values before it along an axis."""
    out = dtype or x.dtype
    names = {o.ADD: "cumsum", o.MUL: "cumprod", o.MAX: "cummax", o.MIN: "cummin"}
    at = resolve_axis(axis, len(x.shape), names[op])
    x = x.cast(out)
    return UOp(o.SCAN, out.accumulator, (x.cast(out.accumulator),), Scan(at, op)).cast(out) if x.shape else x


def running_extreme(op: o.Op, x: UOp, axis: int) -> tuple[UOp, UOp]:
    """The extreme so far along an axis, and its index (of equal values the latest)."""
    found = running(op, x, axis)
    if not x.shape:
        return found, const(0, dtypes.int32)
    at = resolve_axis(axis, len(x.shape), "cummax")
    reached = x.eq(found) | is_nan(x) if x.dtype.kind == "f" else x.eq(found)
    return found, running(o.MAX, reached.where(along(x.shape[at], at, x.shape), 0), at)


# -- skipping NaN --------------------------------------------------------------------------------------------
def nan_sum(x: UOp, axis: Axis = None, keepdim: bool = False) -> UOp:
    """The sum of all values that are not NaN."""
    return total(is_nan(x).where(0, x), axis, keepdim)


def nan_mean(x: UOp, axis: Axis = None, keepdim: bool = False) -> UOp:
    """The mean of all values that are not NaN."""
    x = as_float(x)
    wide = x.cast(x.dtype.accumulator)
    counted = is_nan(wide).logical_not().cast(wide.dtype)
    return divide(nan_sum(wide, axis, keepdim), total(counted, axis, keepdim)).cast(x.dtype)
