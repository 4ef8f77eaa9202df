"""Multiply vectors and matrices, on nodes. In, out: UOps.

There is no matmul op: a product is expand, multiply, sum (a contraction), which the compiler recognizes. Does not know
tensors.
"""

from __future__ import annotations

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.graph import DType, Shape, UOp, promote
from glassgrad.tensor.autograd.autocast import in_autocast_dtype
from glassgrad.tensor.broadcast import broadcast_shape
from glassgrad.tensor.formulas import add, matrix_transpose, mul, sum_dtype
from glassgrad.tensor.formulas.deferred import one_node


def matmul(x: UOp, y: UOp, dtype: DType | None = None, by_rows: bool = False) -> UOp:
    """x (.., M, K) @ y (.., K, N); a vector counts as one row or column, and loses its axis again. With `by_rows`, y is
    (.., N, K).

    Floats of 16 bits are multiplied and summed in float32, then rounded. They are converted before they are repeated,
    so that the gradients, which are sums of products too, are also rounded once.
    """
    x, y = in_autocast_dtype(x), in_autocast_dtype(y)
    if not x.shape or not y.shape:
        raise ShapeError("cannot multiply a matrix by a single number with @", given=f"{x.shape} @ {y.shape}",
                         expected="at least 1 axis on each side", fix="use * to scale")
    inner = y.shape[-2] if len(y.shape) > 1 and not by_rows else y.shape[-1]
    if x.shape[-1] != inner:
        raise ShapeError("cannot multiply these matrices", given=f"{x.shape} @ {y.shape}",
                         expected=f"columns of the left ({x.shape[-1]}) == rows of the right ({inner})",
                         fix="transpose one side, or check the layer's in_features")
    out = dtype or sum_dtype(promote(x.dtype, y.dtype))
    x, y = x.cast(out.accumulator), y.cast(out.accumulator)
    vector_left, vector_right = len(x.shape) == 1, len(y.shape) == 1
    k = x.shape[-1]
    if not vector_right and not by_rows:
        y = matrix_transpose(y)                                     # (.., N, K)
    m, n = 1 if vector_left else x.shape[-2], 1 if vector_right else y.shape[-2]
    lead = broadcast_shape(x.shape[:-2], y.shape[:-2])
    x = x.reshape(x.shape[:-2] + (m, 1, k)).broadcast(lead + (m, n, k))
    y = y.reshape(y.shape[:-2] + (1, n, k)).broadcast(lead + (m, n, k))
    product = (x * y).sum((len(lead) + 2,)).cast(out)               # (.., M, N, 1)
    return product.reshape(lead + (() if vector_left else (m,)) + (() if vector_right else (n,)))


def _linear_shape(x: UOp, weight: UOp, bias: UOp | None, dtype: DType | None = None, by_rows: bool = False) -> \
        Shape | None:
    if len(weight.shape) != 2 or not x.shape or x.shape[-1] != weight.shape[by_rows]:
        return None
    outputs = weight.shape[not by_rows]
    return (*x.shape[:-1], outputs) if bias is None or bias.shape == (outputs,) else None


@one_node(_linear_shape)
def linear(x: UOp, weight: UOp, bias: UOp | None = None, dtype: DType | None = None, by_rows: bool = False) -> UOp:
    """x @ weight + bias, or with `by_rows` x @ weight.T + bias; a weight with one axis multiplies element by
    element."""
    x = mul(x, weight) if len(weight.shape) == 1 else matmul(x, weight, dtype, by_rows)
    return x if bias is None else add(x, in_autocast_dtype(bias))


def kron(x: UOp, y: UOp) -> UOp:
    """The Kronecker product: every element of x times the whole of y."""
    rank = max(len(x.shape), len(y.shape))
    a, b = (1,) * (rank - len(x.shape)) + x.shape, (1,) * (rank - len(y.shape)) + y.shape
    spread = mul(x.reshape([m for n in a for m in (n, 1)]), y.reshape([m for n in b for m in (1, n)]))
    return spread.reshape([n * m for n, m in zip(a, b)])
