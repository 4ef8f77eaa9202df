"""Attention and dropout on nodes. In, out: UOps (.., time, size). Does not know tensors."""

from __future__ import annotations

import math

from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor.formulas.arithmetic import add, mul, where
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.movement import above_diagonal, matrix_transpose
from glassgrad.tensor.formulas.neural.activations import softmax
from glassgrad.tensor.formulas.random_numbers import uniform
from glassgrad.tensor.formulas.reductions import any_true


def dropout(x: UOp, p: float) -> UOp:
    """Each value 0 with probability p, the others over 1 - p."""
    if p == 0:
        return x
    if p == 1:
        return mul(x, 0.0)
    keep = uniform(x.shape, dtypes.default_float).ge(p)
    return keep.where(x, 0) * (1.0 / (1.0 - p))


def attention(query: UOp, key: UOp, value: UOp, mask: UOp | None, causal: bool, scale: float, dropped: float) -> UOp:
    """softmax(query key^T scale + mask) value; a query that may look at nothing finds zeros, as in PyTorch."""
    scores = matmul(query, matrix_transpose(key)) * scale
    if causal:
        scores = above_diagonal(scores.shape, 1).logical_not().where(scores, -math.inf)
    if causal or mask is None:
        return matmul(dropout(softmax(scores), dropped), value)
    is_bool = mask.dtype is dtypes.bool
    allowed = mask if is_bool else mask > -math.inf
    scores = where(mask, scores, -math.inf) if is_bool else add(scores, mask)
    some = any_true(allowed, -1, keepdim=True)
    shares = some.where(softmax(some.where(scores, 0)), 0)
    return matmul(dropout(shares, dropped), value)
