"""Algorithms that factor matrices, on nodes. In: stacks of matrices (batch, m, n). Out: their factors, in memory.

Each method is a loop over columns whose step has the same kernels every time: the column's number is a scalar argument,
and rows or columns that a step must not touch are masked. So a step is compiled once, however large the matrix. The
steps run at once, not lazily; their results have the known gradient, as an ordinary graph.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import Cell, UOp, dtypes, full, ops as o
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas.indexing import gather_known
from glassgrad.tensor.formulas.movement import above_diagonal, counting, eye, halves, joined, matrix_transpose, part


def _step(number: int) -> UOp:
    return UOp(o.SCALAR, dtypes.int32, (), Cell(number))


def _rows(n: int) -> UOp:
    """The index of each row, as a column (1, n, 1)."""
    return counting(n).reshape((1, n, 1))


def _columns(n: int) -> UOp:
    """The index of each column, as a row (1, 1, n)."""
    return counting(n).reshape((1, 1, n))


def _total(x: UOp, axis: int) -> UOp:
    return x.sum((axis,))


def _run(device: str, *nodes: UOp) -> list[UOp]:
    return running.realize([n.contiguous() for n in nodes], device)


def eliminate(a: UOp, b: UOp, device: str) -> tuple[UOp, UOp, UOp]:
    """Gauss-Jordan elimination with partial pivoting: the x of a x = b, the pivots (batch, n) and the rows they were
    in. Rows are not swapped: each step takes a row that no step took before."""
    batch, n, _ = a.shape
    width = n + b.shape[2]
    row, column, number = _rows(n), _columns(width), counting(n).reshape((1, n))
    used = full((batch, n, 1), False, dtypes.bool)
    order, pivots = full((batch, n), 0, dtypes.int32), full((batch, n), 0, a.dtype)
    m, used, order, pivots = _run(device, joined([a, b], 2), used, order, pivots)
    for k in range(n):
        step = _step(k)
        c = _total(column.eq(step).where(m, 0), 2)                                    # (batch, n, 1)
        size = used.where(-1.0, c.ne(c).where(math.inf, c.abs()))
        most = size.reduce(o.AMAX, (1,))
        chosen = size.eq(most).where(row, n).reduce(o.AMIN, (1,)).contiguous()        # (batch, 1, 1)
        is_pivot = row.eq(chosen)
        pivot = _total(is_pivot.where(c, 0), 1).contiguous()
        r = (_total(is_pivot.where(m, 0), 1) / pivot.eq(0.0).where(1.0, pivot)).contiguous()
        m = is_pivot.where(r, m - c.contiguous() * r)
        here = number.eq(step)
        order = here.where(chosen.reshape((batch, 1)), order)
        pivots = here.where(pivot.reshape((batch, 1)), pivots)
        m, used, order, pivots = _run(device, m, used | is_pivot, order, pivots)
    x, = _run(device, gather_known(part(m, 2, n, width), 1, order.reshape((batch, n, 1)).expand(b.shape)))
    return x, pivots, order


def cholesky(a: UOp, device: str) -> UOp:
    """The lower triangle L with L L^T = a; NaN where a is not positive definite."""
    n = a.shape[2]
    row, column = _rows(n), _columns(n)
    rest, lower = _run(device, a, full(a.shape, 0, a.dtype))
    for k in range(n):
        step = _step(k)
        c = _total(column.eq(step).where(rest, 0), 2).contiguous()
        pivot = _total(row.eq(step).where(c, 0), 1)
        scaled = (row < step).where(0, c / pivot.sqrt()).contiguous()
        rest, lower = _run(device, rest - scaled * matrix_transpose(scaled), column.eq(step).where(scaled, lower))
    return lower


def householder(a: UOp, device: str) -> tuple[UOp, UOp]:
    """Q (m x m) and R (m x n) with Q R = a: reflections that clear one column after another, with LAPACK's signs."""
    batch, m, n = a.shape
    row, column = _rows(m), _columns(n)
    r, q = _run(device, a, eye(m, a.dtype).broadcast((batch, m, m)))
    for k in range(min(m - 1, n)):
        step = _step(k)
        c = _total(column.eq(step).where(r, 0), 2).contiguous()
        head = _total(row.eq(step).where(c, 0), 1)
        below = (step < row).where(c, 0)
        length = _total(below * below, 1)
        beta = (head * head + length).sqrt()
        beta = (head < 0.0).where(beta, -beta)
        v = (below + row.eq(step).where(head - beta, 0)).contiguous()
        squared = _total(v * v, 1)
        scale = length.eq(0.0).where(0.0, 2.0 / squared.eq(0.0).where(1.0, squared)).contiguous()
        from_r = (_total(v * r, 1) * scale).contiguous()                                 # (batch, 1, n)
        from_q = (_total(q * matrix_transpose(v), 2) * scale).contiguous()               # (batch, m, 1)
        r, q = _run(device, r - v * from_r, q - from_q * matrix_transpose(v))
    return q, above_diagonal(a.shape, 0).where(r, 0)


def jacobi(a: UOp, device: str) -> tuple[UOp, UOp, UOp]:
    """For m >= n, a V, V and the lengths of a V's columns, which are orthogonal: pairs of columns are rotated until
    they are (Hestenes, 1958). All pairs of a round are rotated together, and a round robin brings every pair together
    once a sweep. An odd number of columns gets one more, of length -1."""
    batch, m, n = a.shape
    even = n + n % 2
    start = eye(n, a.dtype, even).broadcast((batch, n, even))
    both, = _run(device, joined([a.pad(((0, 0), (0, 0), (0, even - n))), start], 1))     # (batch, m + n, even)
    sweeps = 6 + max(1, n).bit_length() if a.dtype is not dtypes.float64 else 8 + max(1, n).bit_length()
    for _ in range(sweeps if n > 1 else 0):
        for _ in range(max(1, even - 1)):
            both, = _run(device, _next_pairs(_rotated(both, m)))
    work, v = part(both, 1, 0, m), part(both, 1, m, m + n)
    sizes = _total(work * work, 1).sqrt().reshape((batch, even))
    added = _total(v * v, 1).eq(0.0).reshape((batch, even))        # the column that made the number even goes last
    work, v, sizes = _run(device, work, v, added.where(-1.0, sizes))
    return work, v, sizes


def _rotated(both: UOp, m: int) -> UOp:
    """Columns i and last - i, rotated in their plane so that their upper parts are orthogonal."""
    left, right = halves(both, 2)
    right = right.flip((2,))
    p, q = part(left, 1, 0, m), part(right, 1, 0, m)
    alpha, beta, gamma = (_total(x, 1).contiguous() for x in (p * p, q * q, p * q))
    nothing = gamma.eq(0.0)
    zeta = (beta - alpha) / (nothing.where(1.0, gamma) * 2.0)
    t = (zeta.abs() + (zeta * zeta + 1.0).sqrt()).recip()
    t = nothing.where(0.0, (zeta < 0.0).where(-t, t))
    cosine = (t * t + 1.0).sqrt().recip().contiguous()
    sine = (cosine * t).contiguous()
    return joined([left * cosine - right * sine, (left * sine + right * cosine).flip((2,))], 2)


def _next_pairs(x: UOp) -> UOp:
    """The columns in the order of the next round: the first stays, the last comes second, the others move on by one."""
    n = x.shape[2]
    return joined([part(x, 2, 0, 1), part(x, 2, n - 1, n), part(x, 2, 1, n - 1)], 2) if n > 2 else x


def parity(order: UOp) -> UOp:
    """1 or -1 for each row of indices: whether an even number of swaps puts it in order."""
    batch, n = order.shape
    later_is_smaller = (order.reshape((batch, 1, n)) < order.reshape((batch, n, 1))) & (_rows(n) < _columns(n))
    count = later_is_smaller.cast(dtypes.int32).sum((1, 2)).reshape((batch,))
    return 1 - (count % 2) * 2
