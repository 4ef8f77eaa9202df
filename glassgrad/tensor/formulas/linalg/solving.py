"""Stacks of matrices of any shape and float type, brought to the form that factors expect. In, out: UOps (.., m, n).

Checks shapes and types in the user's words; `factors.py` computes. Does not know tensors.
"""

from __future__ import annotations

import math

from glassgrad.base.errors import DTypeError, ShapeError
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor.broadcast import broadcast_shape
from glassgrad.tensor.formulas.linalg import factors
from glassgrad.tensor.formulas.movement import cat, matrix_transpose, squeeze, unsqueeze


def matrices(x: UOp, what: str, square: bool = True) -> tuple[UOp, tuple[int, ...]]:
    """A node as (batch, m, n) of float32 or float64, and its axes before the last two."""
    if len(x.shape) < 2 or square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{what} needs a {'square ' if square else ''}matrix", given=f"shape {x.shape}",
                         expected="(.., n, n)" if square else "(.., m, n)",
                         fix="check the tensor's shape: print(x.shape)")
    if x.dtype.kind != "f":
        raise DTypeError(f"{what} needs floats", given=f"{x.dtype.name} values", expected="a float tensor",
                         fix="cast first: x.float()")
    lead = x.shape[:-2]
    return x.cast(x.dtype.accumulator).reshape((math.prod(lead), *x.shape[-2:])), lead


def solved(x: UOp, other: UOp) -> UOp:
    """The solution of x @ solution = other, a matrix of columns or one vector."""
    vector = len(other.shape) == 1 or len(other.shape) == len(x.shape) - 1 and other.shape == x.shape[:-1]
    right = unsqueeze(other, -1) if vector else other
    if len(x.shape) < 2 or len(right.shape) < 2 or right.shape[-2] != x.shape[-2]:
        raise ShapeError("the right side does not fit the matrix", given=f"{x.shape} and {other.shape}",
                         expected="as many rows on both sides", fix="transpose the right side")
    lead = broadcast_shape(x.shape[:-2], right.shape[:-2])
    a, _ = matrices(x.broadcast((*lead, *x.shape[-2:])), "solve")
    b, _ = matrices(right.cast(x.dtype).broadcast((*lead, *right.shape[-2:])), "solve", False)
    found = factors.solve(a, b).cast(x.dtype).reshape((*lead, *right.shape[-2:]))
    return squeeze(found, -1) if vector else found


def inverted(x: UOp, what: str = "inv") -> UOp:
    """The inverse of square matrices."""
    return factors.inverse(matrices(x, what)[0]).cast(x.dtype).reshape(x.shape)


def singular_values(x: UOp, full_matrices: bool = False) -> tuple[UOp, UOp, UOp]:
    """U, S and V with U diag(S) V equal to x."""
    m, n = x.shape[-2:] if len(x.shape) >= 2 else (0, 0)
    if m < n:
        u, s, v = singular_values(matrix_transpose(x), full_matrices)
        return matrix_transpose(v), s, matrix_transpose(u)
    a, lead = matrices(x, "svd", False)
    found = factors.singular(a)
    u, s, v = found.nodes(a)
    left = cat([u, found.rest[0]], 2) if full_matrices and m > n else u
    return tuple(t.cast(x.dtype).reshape((*lead, *t.shape[1:]))            # type: ignore[return-value]
                 for t in (left, s, matrix_transpose(v)))
