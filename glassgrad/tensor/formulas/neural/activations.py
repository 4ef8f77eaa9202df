"""Compute activation functions on nodes: relu and its relatives, softmax, dropout. In, out: UOps. Does not know
tensors.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.compiler.graph import DType, UOp, const, dtypes, ops as o
from glassgrad.tensor.autograd.autocast import exact
from glassgrad.tensor.autograd.custom_gradient import gradient_is
from glassgrad.tensor.broadcast import Axis, resolve_axes
from glassgrad.tensor.formulas import as_float, binary, elementary, in_accumulator, mul, total
from glassgrad.tensor.formulas.deferred import one_node, same_shape
from glassgrad.tensor.formulas.random_numbers import uniform
from glassgrad.tensor.formulas.reductions import reduce


# -- element by element --------------------------------------------------------------------------------------
def relu(x: UOp) -> UOp:
    """max(x, 0); NaN stays NaN."""
    return x.maximum(const(0, x.dtype))


def between(x: UOp, low: float, high: float) -> UOp:
    """x limited to a range; at the limits themselves the gradient is 0."""
    return binary(o.MIN, binary(o.MAX, x, low), high)


def leaky_relu(x: UOp, slope: Any) -> UOp:
    """x where it is positive, slope * x elsewhere."""
    return (x > 0).where(x, mul(x, slope))


def _elu_backward(g: UOp, y: UOp, x: UOp, alpha: UOp, rate: UOp) -> tuple[UOp, None, None]:
    above = x > 0.0                                      # at 0 itself the slope is that from below
    return g * above.where(1.0, elementary.exp(above.where(0.0, x) * rate) * (alpha * rate)), None, None


@gradient_is(_elu_backward)
def _elu(x: UOp, alpha: UOp, rate: UOp) -> UOp:
    below = x < 0.0
    return below.where(elementary.expm1(below.where(x, 0.0) * rate) * alpha, x)


def elu(x: UOp, alpha: float, rate: float = 1.0) -> UOp:
    """alpha (e^(rate x) - 1) where x is negative, x elsewhere, whatever alpha is."""
    return _elu(x, const(alpha, x.dtype), const(rate, x.dtype))


def silu(x: UOp) -> UOp:
    """x sigmoid(x)."""
    return in_accumulator(lambda x: x * elementary.sigmoid(x), as_float(x))


def softplus(x: UOp, beta: float = 1.0, threshold: float = 20.0) -> UOp:
    """ln(1 + e^(beta x)) / beta, or x itself where beta x is above a threshold."""
    found = in_accumulator(lambda x: elementary.softplus(x) if beta == 1
                           else elementary.softplus(x * beta) * (1 / beta), as_float(x))
    # from 20 on the two are the same number in float32, so only a lower threshold has an effect, and an infinite beta
    # (0 times infinity)
    changes = threshold < 20 or x.dtype is dtypes.float64 or math.isinf(beta)
    return (x * beta > threshold).where(x, found) if changes else found


def log_sigmoid(x: UOp) -> UOp:
    """ln(sigmoid(x)), without underflow."""
    return in_accumulator(lambda x: -elementary.softplus(-x), as_float(x))


def softshrink(x: UOp, limit: float) -> UOp:
    """x moved toward 0 by a limit, stopping there."""
    return x.abs().le(limit).where(0, (x > 0).where(x - limit, x + limit))


# -- along axes ----------------------------------------------------------------------------------------------
def _shifted(x: UOp, axis: Axis, dtype: DType | None) -> tuple[UOp, DType]:
    """Return each value minus the largest of its row, in a type wide enough for the sum, and the type of the result."""
    x = as_float(x)
    out = dtype or exact(x.dtype)
    x = x.cast(out.accumulator)
    return x - reduce(o.AMAX, x, axis, True).detach(), out


def softmax(x: UOp, axis: Axis = -1, dtype: DType | None = None) -> UOp:
    """e^x over its sum along an axis."""
    return _softmax(x, resolve_axes(axis, len(x.shape), "softmax"), dtype)


@one_node(same_shape)
def _softmax(x: UOp, axis: Axis, dtype: DType | None) -> UOp:
    x, out = _shifted(x, axis, dtype)
    e = elementary.exp(x)
    return (e * total(e, axis, keepdim=True).recip()).cast(out)


def log_softmax(x: UOp, axis: Axis = -1, dtype: DType | None = None) -> UOp:
    """The logarithm of `softmax`."""
    return _log_softmax(x, resolve_axes(axis, len(x.shape), "log_softmax"), dtype)


@one_node(same_shape)
def _log_softmax(x: UOp, axis: Axis, dtype: DType | None) -> UOp:
    x, out = _shifted(x, axis, dtype)
    return (x - elementary.log(total(elementary.exp(x), axis, keepdim=True))).cast(out)


# -- at random -----------------------------------------------------------------------------------------------
def dropout(x: UOp, p: float, drawn_axes: int | None = None, low: float = 0.0) -> UOp:
    """Set each value to `low` with probability p; all values at one index of the first `drawn_axes` share one draw.
    Then the values are scaled so that the mean is unchanged or, if low is not 0, shifted and scaled so that mean 0 and
    variance 1 are unchanged."""
    if p == 0:
        return x
    if p == 1:
        return mul(x, 0.0)
    shape = x.shape if drawn_axes is None else x.shape[:drawn_axes] + (1,) * (len(x.shape) - drawn_axes)
    kept = uniform(shape, dtypes.default_float).ge(p)
    if low == 0:
        return kept.where(x, 0) * (1.0 / (1.0 - p))
    scale = ((1 - p) * (1 + p * low ** 2)) ** -0.5
    return kept.where(x, low) * scale - scale * low * p
