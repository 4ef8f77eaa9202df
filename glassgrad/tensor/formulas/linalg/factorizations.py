"""Compute solutions, determinants and factors of matrices, with their gradients. In, out: UOps.

The formulas take nodes (batch, m, n) of float32 or float64. The last section, "stacks of matrices", brings stacks of
any shape and float type to that form, and checks them. Factors are computed at once (in a trace of the jit some of them
are computed with what follows), by the algorithms of `factorization_algorithms`; their gradients are lazy expressions.
Does not know tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.base.errors import DTypeError, ShapeError
from glassgrad.compiler.graph import UOp, const, ops as o, toposort
from glassgrad.engine.capture import recording
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.autograd.custom_gradient import JointResults, gradient_is, own_gradient
from glassgrad.tensor.broadcast import broadcast_shape
from glassgrad.tensor.formulas import (add, any_true, cat, elementary, eye, gather_known, matrix_transpose, mul,
                                       pad_axis, part, product, sign, square, squeeze, total, tril, triu, unsqueeze)
from glassgrad.tensor.formulas.linalg import factorization_algorithms as algorithms
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.sorting import key_of, order_of


def _device(*nodes: UOp) -> str:
    return next((n.device for n in nodes if n.device), running.default_device())


def _computed(*values: UOp) -> list[UOp]:
    """Compute the values now, so that what follows does not repeat the steps. (Inside vmap, those of one example are
    computed later.)"""
    stored = [x.contiguous() for x in values]
    return stored if any(n.op is o.PARAM for n in toposort(stored)) else running.realize(stored, _device(*values))


def _stored(*values: UOp) -> list[UOp]:
    """Compute the values now, as `_computed` does, but in a trace of the jit with what follows: a trace knows no values
    of what was left out, so each of many eliminations would repeat all steps that led to the ones before it."""
    return [x.contiguous() for x in values] if recording() is not None else _computed(*values)


def _per_matrix(x: UOp) -> UOp:
    """Reshape one number per matrix so that it broadcasts over the matrix."""
    return x.reshape((x.shape[0], 1, 1))


def _scaled(a: UOp) -> tuple[UOp, UOp]:
    """Scale matrices so that their squares neither overflow nor vanish; return them and the power of two by which each
    was divided, which is usually 1."""
    largest = a.abs().reduce(o.AMAX, (1, 2))
    limit = 2.0 ** (a.dtype.bias // 3)
    divisor = (limit < largest).where(limit ** 2, (largest < 1 / limit).where(limit ** -2, const(1.0, a.dtype)))
    return a / divisor, divisor


# -- equations -----------------------------------------------------------------------------------------------
def _solve_gradient(g: UOp, x: UOp, a: UOp, b: UOp) -> tuple[UOp, UOp]:
    to_b = solve(matrix_transpose(a), g)                           # db = A^-T g,  dA = -db x^T
    return -matmul(to_b, matrix_transpose(x)), to_b


@gradient_is(_solve_gradient, deferred=False)
def solve(a: UOp, b: UOp) -> UOp:
    """The x of a x = b; NaN where a is singular."""
    return _eliminated(a, b)


def _eliminated(a: UOp, b: UOp | None) -> UOp:
    x, pivots, _ = algorithms.eliminate(a, b)
    singular_ones = _per_matrix(any_true(pivots.eq(0.0), 1))
    return _stored(singular_ones.where(math.nan, x))[0]


def _inverse_gradient(g: UOp, y: UOp, a: UOp) -> UOp:
    y = matrix_transpose(y)
    return -matmul(matmul(y, g), y)                                # dA = -A^-T g A^-T


@gradient_is(_inverse_gradient, deferred=False)
def inverse(a: UOp) -> UOp:
    """a^-1; NaN where a is singular."""
    return _eliminated(a, None)


def _determinant_gradient(g: UOp, y: UOp, a: UOp) -> UOp:
    return _per_matrix(g * y) * matrix_transpose(inverse(a))       # d det = det tr(A^-1 dA)


@gradient_is(_determinant_gradient, deferred=False)
def determinant(a: UOp) -> UOp:
    """The determinant of each matrix (batch,)."""
    _, pivots, order = algorithms.eliminate(a, part(a, 2, 0, 0))
    return _stored(product(pivots, 1) * algorithms.parity(order))[0]


def signed_log(a: UOp) -> tuple[UOp, UOp]:
    """The sign of each determinant, and the logarithm of its absolute value."""
    _, pivots, order = algorithms.eliminate(a, part(a, 2, 0, 0))
    signs, size = _stored(product(sign(pivots), 1) * algorithms.parity(order), total(elementary.log(pivots.abs()), 1))
    return signs, own_gradient(size, (a,), _signed_log_backward)


def _signed_log_backward(g: UOp, y: UOp, a: UOp) -> tuple[UOp]:
    return (_per_matrix(g) * matrix_transpose(inverse(a)),)


# -- triangles -----------------------------------------------------------------------------------------------
def _cholesky_gradient(g: UOp, lower: UOp, a: UOp) -> UOp:
    """S = L^-T phi(L^T g) L^-1, made symmetric (Murray, 2016)."""
    upper = matrix_transpose(lower)
    inner = tril(matmul(upper, g))
    inner = inner - inner * eye(inner.shape[-1], inner.dtype) * 0.5
    left = solve(upper, inner)
    return _symmetric(matrix_transpose(solve(upper, matrix_transpose(left))))


@gradient_is(_cholesky_gradient, deferred=False)
def cholesky(a: UOp) -> UOp:
    """The lower triangle L with L L^T = a."""
    return _stored(algorithms.cholesky(a)[0])[0]


def _symmetric(x: UOp) -> UOp:
    return (x + matrix_transpose(x)) * 0.5


def orthogonal(a: UOp) -> JointResults:
    """Q (m, k) and R (k, n) with Q R = a; the rest are the m - k columns that complete Q."""
    batch, m, n = a.shape
    k = min(m, n)
    both, = _stored(algorithms.householder(a))
    q, r = matrix_transpose(part(both, 2, n, n + m)), triu(part(both, 2, 0, n))
    return JointResults((part(q, 2, 0, k), part(r, 1, 0, k)), (_q_gradient, _r_gradient),
                        part(q, 2, k, m).detach())


def complete_orthogonal(a: UOp) -> tuple[UOp, UOp]:
    """`orthogonal` with all of Q's columns, (batch, m, m), and rows of zeros below R."""
    found = orthogonal(a)
    q, r = found.nodes(a)
    below = a.shape[1] - r.shape[1]
    return (cat([q, found.rest[0]], 2), pad_axis(r, 1, 0, below)) if below else (q, r)


def _q_gradient(g: UOp, a: UOp, q: UOp, r: UOp) -> UOp:
    """(g + Q copyltu(-g^T Q)) R^-T (Walter et al., 2010), for the first columns of a wide matrix, which determine Q."""
    k = q.shape[2]
    inner = _mirrored(-matmul(matrix_transpose(g), q))
    return pad_axis(_over_triangle(g + matmul(q, inner), part(r, 2, 0, k)), 2, 0, a.shape[2] - k)


def _r_gradient(g: UOp, a: UOp, q: UOp, r: UOp) -> UOp:
    """Q copyltu(R g^T) R^-T. The other columns of R, for a wide matrix, are Q^T A, so their gradient passes through Q
    too."""
    k, n = q.shape[2], a.shape[2]
    square = part(r, 2, 0, k)
    inner = _mirrored(matmul(square, matrix_transpose(part(g, 2, 0, k))))
    first = _over_triangle(matmul(q, inner), square)
    if n == k:
        return first
    further = part(g, 2, k, n)
    through = _q_gradient(matmul(part(a, 2, k, n), matrix_transpose(further)), a, q, r)
    return cat([first, matmul(q, further)], 2) + through


def _mirrored(x: UOp) -> UOp:
    """A symmetric matrix from its lower triangle."""
    return tril(x) + matrix_transpose(tril(x, -1))


def _over_triangle(x: UOp, r: UOp) -> UOp:
    """x R^-T."""
    return matrix_transpose(solve(r, matrix_transpose(x)))


# -- singular values -----------------------------------------------------------------------------------------
def _descending(sizes: UOp) -> UOp:
    """The indices of each row's numbers, the largest first."""
    return order_of(key_of(sizes, True))


def singular(a: UOp) -> JointResults:
    """U (m, n), S (n) and V (n, n) with U diag(S) V^T = a; the rest are the m - n columns that complete U."""
    batch, m, n = a.shape
    a, divisor = _scaled(a)
    both, divisor = _computed(algorithms.jacobi(a), divisor)       # (batch, n, m + n)
    sizes = total(square(part(both, 2, 0, m)), 2).sqrt()
    order = _descending(sizes)
    s, both = _computed(gather_known(sizes, 1, order), gather_known(both, 1, unsqueeze(order, 2).expand(both.shape)))
    limit = part(s, 1, 0, 1) * (m * 2.0 ** -(a.dtype.mantissa))
    has_length = unsqueeze(limit < s, 1)
    u = has_length.where(matrix_transpose(part(both, 2, 0, m)) / has_length.where(unsqueeze(s, 1), 1), 0)
    complete = matrix_transpose(part(algorithms.householder(u), 2, n, n + m))      # zero columns become orthogonal ones
    u, rest = _computed(has_length.where(u, part(complete, 2, 0, n)), part(complete, 2, n, m))
    backwards = (_left_gradient, _size_gradient, _right_gradient)
    s = s * squeeze(divisor, 2)
    return JointResults((u, s, matrix_transpose(part(both, 2, m, m + n))), backwards, rest.detach())


def _size_gradient(g: UOp, a: UOp, u: UOp, s: UOp, v: UOp) -> UOp:
    """U diag(g) V^T: the gradient by way of the singular values (Townsend, 2016). Those by way of U and V are below."""
    return matmul(u * unsqueeze(g, 1), matrix_transpose(v))


def _left_gradient(g: UOp, a: UOp, u: UOp, s: UOp, v: UOp) -> UOp:
    """(U (F o (U^T g - g^T U)) S + (I - U U^T) g S^-1) V^T, with F as in `_gaps`."""
    crossed = matmul(matrix_transpose(u), g)
    skew = _gaps(s) * (crossed - matrix_transpose(crossed))
    inner = matmul(u, skew * unsqueeze(s, 1))
    outside = (g - matmul(u, crossed)) / unsqueeze(s, 1)
    return matmul(inner + outside, matrix_transpose(v))


def _right_gradient(g: UOp, a: UOp, u: UOp, s: UOp, v: UOp) -> UOp:
    """U S (F o (V^T g - g^T V)) V^T."""
    crossed = matmul(matrix_transpose(v), g)
    skew = _gaps(s) * (crossed - matrix_transpose(crossed))
    return matmul(matmul(u, unsqueeze(s, 2) * skew), matrix_transpose(v))


def _gaps(s: UOp) -> UOp:
    """F_ij = 1 / (s_j^2 - s_i^2) off the diagonal, 0 on it."""
    one = eye(s.shape[-1], s.dtype)
    squares = square(s)
    return (1 - one) / (unsqueeze(squares, 1) - unsqueeze(squares, 2) + one)


# -- eigenvalues ---------------------------------------------------------------------------------------------
def eigen(a: UOp) -> JointResults:
    """The eigenvalues (batch, n) and eigenvectors (batch, n, n) of symmetric matrices, of which only the lower triangle
    is read. A multiple of the identity is added to make the matrix positive, so that the orthogonal columns that
    `algorithms.jacobi` finds are multiples of the eigenvectors; their Rayleigh quotients are the eigenvalues."""
    n = a.shape[-1]
    whole, divisor = _scaled(_mirrored(a))
    shift = total(square(whole), (1, 2), keepdim=True).sqrt()
    raised = whole + eye(n, a.dtype) * (shift * 2 + shift.eq(0).cast(a.dtype))
    multiples, divisor = _computed(algorithms.jacobi(raised, with_rotations=False), divisor)       # as rows
    sizes = total(square(multiples), 2, keepdim=True).sqrt()
    order = _descending(squeeze(sizes, 2)).flip((1,))
    vectors = matrix_transpose(gather_known(multiples / sizes, 1, unsqueeze(order, 2).expand(a.shape)))
    values = total(vectors * matmul(whole, vectors), 1) * squeeze(divisor, 2)
    return JointResults(tuple(_computed(values, vectors)), (_value_gradient, _vector_gradient))


def _value_gradient(g: UOp, a: UOp, values: UOp, v: UOp) -> UOp:
    """V diag(g) V^T."""
    return matmul(v * unsqueeze(g, 1), matrix_transpose(v))


def _vector_gradient(g: UOp, a: UOp, values: UOp, v: UOp) -> UOp:
    """V ((V^T g) / (l_j - l_i) off the diagonal) V^T, made symmetric (Magnus, 1985)."""
    one = eye(a.shape[-1], a.dtype)
    gaps = unsqueeze(values, 1) - unsqueeze(values, 2) + one
    inner = matmul(matrix_transpose(v), g) / gaps * (1 - one)
    return _symmetric(matmul(matmul(v, inner), matrix_transpose(v)))


def newton_schulz(x: UOp, steps: int, params: Sequence[float], kept: Callable[[UOp], UOp]) -> UOp:
    """Bring the singular values of a matrix of norm 1 toward 1: `steps` times p0 x + (p1 A + p2 A^2 + ..) x, where A =
    x x^T. `kept` is applied to each matrix between products, to store or round it."""
    p0, p1, *others = params if len(params) > 1 else (*params, 0.0)
    tall = x.shape[-2] > x.shape[-1]
    x = matrix_transpose(x) if tall else x                        # the smaller side first, so that x x^T is smaller
    for _ in range(steps):
        power = gram = kept(matmul(x, matrix_transpose(x)))
        polynomial = mul(gram, p1)
        for p in others:
            power = matmul(power, gram)
            polynomial = add(polynomial, mul(power, p))
        x = kept(add(mul(x, p0), matmul(kept(polynomial), x)))
    return matrix_transpose(x) if tall else x


# -- stacks of matrices --------------------------------------------------------------------------------------
def refuse_other_shapes(x: UOp, what: str, square: bool = True) -> None:
    """Raise if a node is not a stack of matrices, or of square ones."""
    if len(x.shape) < 2 or square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{what} needs a {'square ' if square else ''}matrix", given=f"shape {x.shape}",
                         expected="(.., n, n)" if square else "(.., m, n)",
                         fix="check the tensor's shape: print(x.shape)")


def matrices(x: UOp, what: str, square: bool = True) -> tuple[UOp, tuple[int, ...]]:
    """Reshape a node to (batch, m, n) and cast it to float32 or float64; return it and its axes before the last two."""
    refuse_other_shapes(x, what, square)
    if x.dtype.kind != "f":
        raise DTypeError(f"{what} needs floats", given=f"{x.dtype.name} values", expected="a float tensor",
                         fix="cast first: x.float()")
    lead = x.shape[:-2]
    return x.cast(x.dtype.accumulator).reshape((math.prod(lead), *x.shape[-2:])), lead


def solved(x: UOp, other: UOp) -> UOp:
    """The solution of x @ solution = other, a matrix of columns or one vector."""
    right, vector = as_columns(x, other)
    if len(x.shape) < 2 or len(right.shape) < 2 or right.shape[-2] != x.shape[-2]:
        raise ShapeError("the right side does not fit the matrix", given=f"{x.shape} and {other.shape}",
                         expected="as many rows on both sides", fix="transpose the right side")
    lead = broadcast_shape(x.shape[:-2], right.shape[:-2])
    a, _ = matrices(x.broadcast((*lead, *x.shape[-2:])), "solve")
    b, _ = matrices(right.cast(x.dtype).broadcast((*lead, *right.shape[-2:])), "solve", False)
    found = solve(a, b).cast(x.dtype).reshape((*lead, *right.shape[-2:]))
    return squeeze(found, -1) if vector else found


def as_columns(x: UOp, other: UOp) -> tuple[UOp, bool]:
    """Return the right side of equations as matrices, and whether it was a vector, or a stack of vectors."""
    vector = len(other.shape) == 1 or len(other.shape) == len(x.shape) - 1 and other.shape == x.shape[:-1]
    return (unsqueeze(other, -1) if vector else other), vector


def least_squares(x: UOp, other: UOp) -> UOp:
    """The y for which x @ y is nearest to other: R y = Q^T other."""
    right, vector = as_columns(x, other)
    q, r = of_matrices(orthogonal, x, "lstsq", False)
    found = solved(r, matmul(matrix_transpose(q), right))
    return squeeze(found, -1) if vector else found


def of_matrices(formula: Callable[[UOp], Any], x: UOp, what: str, square: bool = True) -> list[UOp]:
    """Apply a formula of nodes (batch, m, n) to a stack of any shape; return its results as stacks of that shape and
    type."""
    a, lead = matrices(x, what, square)
    found = formula(a)
    nodes = [found] if isinstance(found, UOp) else found.nodes(a) if isinstance(found, JointResults) else found
    return [node.cast(x.dtype).reshape((*lead, *node.shape[1:])) for node in nodes]


def inverted(x: UOp, what: str = "inv") -> UOp:
    """The inverse of square matrices."""
    return of_matrices(inverse, x, what)[0]


def singular_values(x: UOp, full_matrices: bool = False, what: str = "svd") -> Sequence[UOp]:
    """U, S and V with U diag(S) V equal to x."""
    m, n = x.shape[-2:] if len(x.shape) >= 2 else (0, 0)
    if m < n:
        u, s, v = singular_values(matrix_transpose(x), full_matrices, what)
        return matrix_transpose(v), s, matrix_transpose(u)

    def factors(a: UOp) -> tuple[UOp, UOp, UOp]:
        found = singular(a)
        u, s, v = found.nodes(a)
        return cat([u, found.rest[0]], 2) if full_matrices and m > n else u, s, matrix_transpose(v)

    return of_matrices(factors, x, what, False)
