"""Compute attention on nodes, with its gradient. In: queries, keys, values, a mask. Out: UOps. Does not know tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from glassgrad.compiler.graph import DType, Length, Shape, UOp, const, dtypes, promote
from glassgrad.tensor.autograd.autocast import in_autocast_dtype
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.formulas import above_diagonal, add, any_true, matrix_transpose, repeat_interleave, total, where
from glassgrad.tensor.formulas.deferred import one_node
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.neural.activations import dropout, softmax

FEW_ROWS = 16      # few rows of a query, as in a language model that generates the next word


@dataclass(frozen=True)
class AttentionGradient:
    """The gradient of y = weights value with weights = softmax(scores); the gradient of the scores is weights (g
    value^T - sum(g y)). That sum is over a row of y; the chain rule would sum over a row of scores, which is longer
    (Dao et al., 2022)."""
    weights: DType
    factors: DType           # the type that the weights are rounded to before they are multiplied, and stored in

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
    """softmax(query key^T scale + mask) value; zeros for a query whose keys are all masked, as in PyTorch."""
    dtype = promote(query.dtype, key.dtype)
    if dropped or dtype.kind != "f":
        return _attention(query, key, value, mask, causal, scale, dropped)
    return _plain_attention(query, key, value, mask, causal, const(scale, dtype))


def _attention_shape(query: UOp, key: UOp, value: UOp, mask: UOp | None, causal: bool, scale: UOp) -> Shape | None:
    if mask is not None and not causal or not 2 <= len(query.shape) == len(key.shape) == len(value.shape):
        return None
    *lead, keys, width = key.shape
    fits = query.shape == (*lead, query.shape[-2], width) and value.shape == (*lead, keys, value.shape[-1])
    return (*query.shape[:-1], value.shape[-1]) if fits else None


@one_node(_attention_shape)
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
    """Attention in which neighbouring heads of the query share a head of keys and values. If they have few rows, these
    become rows of one head, so that its keys and values are read once."""
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
