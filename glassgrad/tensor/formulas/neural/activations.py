"""Activation functions on nodes: relu and its relatives, softmax, norms, dropout, attention. In, out: UOps.

Does not know tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.compiler.graph import DType, Length, UOp, const, dtypes, ops as o, promote
from glassgrad.tensor.autograd.autocast import exact, in_autocast_dtype
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.broadcast import Axis, resolve_axes
from glassgrad.tensor.formulas import (above_diagonal, add, any_true, as_float, binary, count, divide, elementary,
                                       in_accumulator, largest, matrix_transpose, maximum, mean, mul, norm,
                                       repeat_interleave, total, where)
from glassgrad.tensor.formulas.deferred import one_node
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.random_numbers import uniform

FEW_ROWS = 16      # of a query, as where a language model makes the next word


# -- element by element --------------------------------------------------------------------------------------
def relu(x: UOp) -> UOp:
    """max(x, 0); NaN stays NaN."""
    return x.maximum(const(0, x.dtype))


def between(x: UOp, low: float, high: float) -> UOp:
    """x within limits; there is no gradient at the limits themselves."""
    return binary(o.MIN, binary(o.MAX, x, low), high)


def leaky_relu(x: UOp, slope: Any) -> UOp:
    """x where it is positive, slope x elsewhere."""
    return (x > 0).where(x, mul(x, slope))


def elu(x: UOp, alpha: float) -> UOp:
    """x where it is positive, alpha (e^x - 1) elsewhere."""
    return (x > 0.0).where(x, elementary.expm1(x.minimum(0.0)) * alpha)


def silu(x: UOp) -> UOp:
    """x sigmoid(x)."""
    return in_accumulator(lambda x: x * elementary.sigmoid(x), as_float(x))


def softplus(x: UOp, beta: float = 1.0, threshold: float = 20.0) -> UOp:
    """ln(1 + e^(beta x)) / beta, and x itself where beta x is above a threshold."""
    found = in_accumulator(lambda x: elementary.softplus(x) if beta == 1
                           else elementary.softplus(x * beta) * (1 / beta), as_float(x))
    # from 20 on the two are the same number in float32: only a lower threshold changes anything
    return found if threshold >= 20 else (x * beta > threshold).where(x, found)


def log_sigmoid(x: UOp) -> UOp:
    """ln(sigmoid(x)), without underflow."""
    return in_accumulator(lambda x: -elementary.softplus(-x), as_float(x))


def softshrink(x: UOp, limit: float) -> UOp:
    """x moved toward 0 by a limit, stopping there."""
    x = as_float(x)
    return x.abs().le(limit).where(0, (x > 0).where(x - limit, x + limit))


# -- along axes ----------------------------------------------------------------------------------------------
def _shifted(x: UOp, axis: Axis, dtype: DType | None) -> tuple[UOp, DType]:
    """Each value less the largest of its row, in a type wide enough to sum, and the type to come back to."""
    x = as_float(x)
    out = dtype or exact(x.dtype)
    x = x.cast(out.accumulator)
    return (x if 0 in x.shape else x - largest(x, axis, keepdim=True).detach()), out


def softmax(x: UOp, axis: Axis = -1, dtype: DType | None = None) -> UOp:
    """e^x over its sum along an axis."""
    return _softmax(x, resolve_axes(axis, len(x.shape), "softmax"), dtype)


@one_node
def _softmax(x: UOp, axis: Axis, dtype: DType | None) -> UOp:
    x, out = _shifted(x, axis, dtype)
    e = elementary.exp(x)
    return (e * total(e, axis, keepdim=True).recip()).cast(out)


def log_softmax(x: UOp, axis: Axis = -1, dtype: DType | None = None) -> UOp:
    """The logarithm of `softmax`."""
    return _log_softmax(x, resolve_axes(axis, len(x.shape), "log_softmax"), dtype)


@one_node
def _log_softmax(x: UOp, axis: Axis, dtype: DType | None) -> UOp:
    x, out = _shifted(x, axis, dtype)
    return (x - elementary.log(total(elementary.exp(x), axis, keepdim=True))).cast(out)


class NormGradient(NamedTuple):
    """The gradient of a norm along axes, y = c / sqrt(mean(c^2) + eps) for c = x - mean(x), or for c = x. It needs two
    means, where the rules for sums would give four: (g - mean(g) - y mean(g y)) / sqrt(..)."""
    axes: tuple[int, ...]
    eps: float
    centred: bool

    def __call__(self, g: UOp, y: UOp, x: UOp) -> tuple[UOp]:
        along = g - y * mean(g * y, self.axes, keepdim=True)
        along = along - mean(g, self.axes, keepdim=True) if self.centred else along
        return (along * self.scale(self.centre(x)),)

    def centre(self, x: UOp) -> UOp:
        """What is scaled."""
        return x - mean(x, self.axes, keepdim=True) if self.centred else x

    def scale(self, c: UOp) -> UOp:
        """What it is scaled by."""
        return elementary.rsqrt(mean(c * c, self.axes, keepdim=True) + self.eps)


@dataclass(frozen=True)
class ScaledNormGradient:
    """The gradients of y = n weight + bias, for n = (x - mean) / sqrt(variance + eps) along axes where weight and bias
    are one value: bias' is the sum of g, weight's that of g n, and x's needs no sums but these."""
    normed: NormGradient

    def __call__(self, g: UOp, y: UOp, x: UOp, weight: UOp, bias: UOp) -> tuple[UOp, UOp, UOp]:
        axes = self.normed.axes
        c = self.normed.centre(x)
        scale = self.normed.scale(c)
        n = c * scale
        of_bias, of_weight = g.sum(axes), (g * n).sum(axes)
        along = divide(of_bias + n * of_weight, count(x, axes, "batchnorm"))
        return (g - along) * (weight * scale), of_weight, of_bias


def scaled_norm(x: UOp, weight: UOp, bias: UOp, axes: tuple[int, ...], eps: float) -> UOp:
    """(x - mean) / sqrt(variance + eps) weight + bias; weight and bias have the shape of x, with 1 along the axes."""
    normed = NormGradient(axes, eps, centred=True)
    c = normed.centre(x)
    value = c * normed.scale(c) * weight.expand(x.shape) + bias.expand(x.shape)
    return own_gradient(value, (x, weight, bias), ScaledNormGradient(normed))


def layer_norm(x: UOp, axis: Axis, eps: float, centred: bool = True) -> UOp:
    """(x - mean) / sqrt(variance + eps), where the variance is over n; not centred, x / sqrt(mean(x^2) + eps)."""
    axes = resolve_axes(axis, len(x.shape), "layernorm" if centred else "rms_norm")
    return _layer_norm(as_float(x), NormGradient(axes, eps, centred))


@one_node
def _layer_norm(x: UOp, norm_of: NormGradient) -> UOp:
    wide = x.cast(x.dtype.accumulator)
    c = norm_of.centre(wide)
    value = own_gradient(c * norm_of.scale(c), (wide,), norm_of)  # type: ignore[arg-type]
    return value.cast(exact(x.dtype))


@one_node
def weighted(x: UOp, weight: UOp | None, bias: UOp | None) -> UOp:
    """x weight + bias, element by element, as what was normalized is scaled and moved."""
    x = x if weight is None else mul(x, weight)
    return x if bias is None else add(x, bias)


def normalize(x: UOp, p: float, axis: Axis, eps: float) -> UOp:
    """x over its length along an axis, but at least eps; float16 and bfloat16 in float32."""
    if x.dtype.kind == "f" and x.dtype.accumulator is not x.dtype:
        return normalize(x.cast(x.dtype.accumulator), p, axis, eps).cast(x.dtype)
    return divide(x, maximum(norm(x, p, axis, keepdim=True), eps))


# -- dropout and attention -----------------------------------------------------------------------------------
def dropout(x: UOp, p: float) -> UOp:
    """Each value 0 with probability p, the others over 1 - p."""
    if p == 0:
        return x
    if p == 1:
        return mul(x, 0.0)
    keep = uniform(x.shape, dtypes.default_float).ge(p)
    return keep.where(x, 0) * (1.0 / (1.0 - p))


@dataclass(frozen=True)
class AttentionGradient:
    """The gradient of y = weights value, for weights = softmax(scores): weights (g value^T - sum(g y)) of the scores.
    The sum is over a row of y; the rules for sums would add up a row of scores, which is longer (Dao et al., 2022)."""
    weights: DType
    factors: DType           # that the weights are rounded to before they are multiplied, and kept in

    def __call__(self, g: UOp, y: UOp, scores: UOp, value: UOp) -> tuple[UOp, UOp]:
        weights, wide = softmax(scores, -1, self.weights).cast(self.factors), self.weights.accumulator
        along = total(g.cast(wide) * y.cast(wide), -1, keepdim=True, dtype=wide)
        of_weights = matmul(g, matrix_transpose(value), wide) - along
        return ((weights.cast(wide) * of_weights).cast(scores.dtype),
                matmul(matrix_transpose(weights), g, value.dtype))


def _attended(scores: UOp, value: UOp, dropped: float) -> UOp:
    """softmax(scores) value."""
    weights, value = softmax(scores), in_autocast_dtype(value)
    if dropped or scores.shape[:-2] != value.shape[:-2]:
        return matmul(dropout(weights, dropped), value)
    factors = in_autocast_dtype(weights)
    return own_gradient(matmul(factors, value), (scores, value), AttentionGradient(weights.dtype, factors.dtype))


def attention(query: UOp, key: UOp, value: UOp, mask: UOp | None, causal: bool, scale: float, dropped: float) -> UOp:
    """softmax(query key^T scale + mask) value; a query that may look at nothing finds zeros, as in PyTorch."""
    dtype = promote(query.dtype, key.dtype)
    if dropped or dtype.kind != "f":
        return _attention(query, key, value, mask, causal, scale, dropped)
    return _plain_attention(query, key, value, mask, causal, const(scale, dtype))


@one_node
def _plain_attention(query: UOp, key: UOp, value: UOp, mask: UOp | None, causal: bool, scale: UOp) -> UOp:
    return _attention(query, key, value, mask, causal, in_autocast_dtype(scale), 0.0)


def _attention(query: UOp, key: UOp, value: UOp, mask: UOp | None, causal: bool, scale: Any, dropped: float) -> UOp:
    scores = matmul(query, matrix_transpose(key)) * scale
    if causal:
        scores = above_diagonal(scores.shape, 1).logical_not().where(scores, -math.inf)
    if causal or mask is None:
        return _attended(scores, value, dropped)
    is_bool = mask.dtype is dtypes.bool
    allowed = mask if is_bool else mask > -math.inf
    scores = where(mask, scores, -math.inf) if is_bool else add(scores, mask)
    some = any_true(allowed, -1, keepdim=True)
    shares = some.where(softmax(some.where(scores, 0)), 0)
    return matmul(dropout(shares, dropped), value)


def grouped_attention(query: UOp, key: UOp, value: UOp, mask: UOp | None, causal: bool, scale: float,
                      dropped: float) -> UOp:
    """Attention in which neighbouring heads of the query share a head of keys and values. Few rows of such heads are
    rows of one head, so that its keys and values are read once."""
    (heads, rows), shared = query.shape[-3:-1], key.shape[-3]
    if causal or isinstance(rows, Length) or rows > FEW_ROWS or heads % shared or value.shape[-3] != shared:
        key, value = (repeat_interleave(x, heads // x.shape[-3], -3) for x in (key, value))
        return attention(query, key, value, mask, causal, scale, dropped)
    query = query.reshape((*query.shape[:-3], shared, heads // shared * rows, query.shape[-1]))
    if mask is not None:
        *lead, keys = (1,) * (3 - len(mask.shape)) + mask.shape
        mask = mask.reshape((*lead, keys)).expand((*lead[:-2], heads, rows, keys))
        mask = mask.reshape((*lead[:-2], shared, heads // shared * rows, keys))
    mixed = attention(query, key, value, mask, causal, scale, dropped)
    return mixed.reshape((*mixed.shape[:-3], heads, rows, mixed.shape[-1]))
