"""Algorithms that factor matrices, on nodes. In: stacks of matrices (batch, m, n). Out: their factors, in memory.

Each method is a recurrence over columns or pairs of columns, whose step has the same graph every time: rows and columns
that a step must not touch are masked. The matrices are its independent items, so that all steps of a small matrix are
one task (compiler/graph/recurrence.py). They run at once, not lazily; their results have the known gradient, as an
ordinary graph.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, dtypes, full, ops as o
from glassgrad.compiler.graph.recurrence import steps_of_items
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas.indexing import gather_known, take
from glassgrad.tensor.formulas.movement import above_diagonal, counting, eye, joined, matrix_transpose, part


def _rows(n: int) -> UOp:
    """The index of each row, as a column (1, n, 1)."""
    return counting(n).reshape((1, n, 1))


def _columns(n: int) -> UOp:
    """The index of each column, as a row (1, 1, n)."""
    return counting(n).reshape((1, 1, n))


def _total(x: UOp, axis: int) -> UOp:
    return x.sum((axis,))


def _column(x: UOp, number: UOp) -> UOp:
    """One column, (batch, m, 1)."""
    return _total(_columns(x.shape[2]).eq(number).where(x, 0), 2).contiguous()


def _run(device: str, *nodes: UOp) -> list[UOp]:
    return running.realize([n.contiguous() for n in nodes], device)


def eliminate(a: UOp, b: UOp | None, device: str) -> tuple[UOp | None, UOp, UOp]:
    """Gauss-Jordan elimination with partial pivoting: the x of a x = b (None without b), the pivots (batch, n) and the
    rows they were in. Rows are not swapped: each step takes a row that no step took before."""
    batch, n, _ = a.shape
    start = a if b is None else joined([a, b], 2)
    [m, _], [order, pivots] = steps_of_items(_elimination, [start, full((batch, n, 1), 0, a.dtype)], n)
    order, pivots = (matrix_transpose(x.reshape((1, n, batch))).reshape((batch, n)) for x in (order, pivots))
    if b is None:
        pivots, order = _run(device, pivots, order)
        return None, pivots, order
    m, pivots, order = _run(device, m, pivots, order)
    x, = _run(device, gather_known(part(m, 2, n, start.shape[2]), 1, order.reshape((batch, n, 1)).expand(b.shape)))
    return x, pivots, order


def _elimination(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    m, used = states
    row = _rows(m.shape[1])
    c = _column(m, number)
    size = used.ne(0.0).where(-1.0, c.ne(c).where(math.inf, c.abs()))
    most = size.reduce(o.AMAX, (1,))
    chosen = size.eq(most).where(row, m.shape[1]).reduce(o.AMIN, (1,)).contiguous()       # (batch, 1, 1)
    is_pivot = row.eq(chosen)
    pivot = _total(is_pivot.where(c, 0), 1).contiguous()
    r = (_total(is_pivot.where(m, 0), 1) / pivot.eq(0.0).where(1.0, pivot)).contiguous()
    return [is_pivot.where(r, m - c * r), is_pivot.where(1.0, used)], [chosen, pivot]


def cholesky(a: UOp, device: str) -> UOp:
    """The lower triangle L with L L^T = a; NaN where a is not positive definite."""
    batch, n, _ = a.shape
    _, [columns] = steps_of_items(_cholesky_column, [a], n)
    lower, = _run(device, columns.reshape((n, batch, n)).permute((1, 2, 0)))
    return lower


def _cholesky_column(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    rest, row = states[0], _rows(states[0].shape[1])
    c = _column(rest, number)
    pivot = _total(row.eq(number).where(c, 0), 1)
    scaled = (row < number).where(0, c / pivot.sqrt()).contiguous()
    return [rest - scaled * matrix_transpose(scaled)], [scaled]


def householder(a: UOp, device: str) -> tuple[UOp, UOp]:
    """Q (m x m) and R (m x n) with Q R = a: reflections that clear one column after another, with LAPACK's signs. What
    makes R of a makes Q^T of the identity."""
    batch, m, n = a.shape
    both, = _run(device, steps_of_items(_reflection, [joined([a, eye(m, a.dtype).broadcast((batch, m, m))], 2)],
                                        min(m - 1, n))[0][0])
    return matrix_transpose(part(both, 2, n, n + m)), above_diagonal(a.shape, 0).where(part(both, 2, 0, n), 0)


def _reflection(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    x, row = states[0], _rows(states[0].shape[1])
    c = _column(x, number)
    head = _total(row.eq(number).where(c, 0), 1)
    below = (number < row).where(c, 0)
    length = _total(below * below, 1)
    beta = (head * head + length).sqrt()
    beta = (head < 0.0).where(beta, -beta)
    v = (below + row.eq(number).where(head - beta, 0)).contiguous()
    squared = _total(v * v, 1)
    scale = length.eq(0.0).where(0.0, 2.0 / squared.eq(0.0).where(1.0, squared)).contiguous()
    return [x - v * (_total(v * x, 1) * scale).contiguous()], []


def jacobi(a: UOp, device: str, with_rotations: bool = True) -> tuple[UOp, UOp, UOp]:
    """For m >= n, a V, V (nothing of it without `with_rotations`) and the lengths of a V's columns, which are orthogonal:
    pairs of columns are rotated until they are (Hestenes, 1958). All pairs of a round are rotated together, and a round
    robin brings every pair together once a sweep. A sweep that rotates nothing is the last one."""
    batch, m, n = a.shape
    even = n + n % 2
    sweeps = (8 if a.dtype is dtypes.float64 else 6) + max(1, n).bit_length()
    both = matrix_transpose(a)                                     # columns as rows: (batch, n, m)
    if with_rotations:
        both = joined([both, eye(n, a.dtype).broadcast((batch, n, n))], 2)
    none = full((batch, 1, 1), 0, a.dtype)
    starts = [both.pad(((0, 0), (0, even - n), (0, 0))), none, none]
    found, _ = steps_of_items(_rotations, starts, sweeps * (even - 1) if n > 1 else 0, m, until=2)
    both, = _run(device, part(found[0], 1, 0, n))                  # whole sweeps leave the columns in their order
    work = part(both, 2, 0, m)
    sizes, = _run(device, _total(work * work, 2).sqrt().reshape((batch, n)))
    return matrix_transpose(work), matrix_transpose(part(both, 2, m, both.shape[2])), sizes


def _rotations(number: UOp, states: list[UOp], m: int) -> tuple[list[UOp], list[UOp]]:
    """One round: rows i and last - i of x are rotated so that their first m elements are orthogonal, unless they are.
    Then row 0 stays, the last comes second, the others move on by one. `quiet` counts rounds without a rotation."""
    x, quiet, _ = states
    n = x.shape[1]
    work = part(x, 2, 0, m)
    p, q = part(work, 1, 0, n // 2), part(work, 1, n // 2, n).flip((1,))
    alpha, beta, gamma = (_total(product, 2).contiguous() for product in (p * p, q * q, p * q))
    limit = math.sqrt(m) * 2.0 ** -(x.dtype.mantissa + 1)
    rotates = ((gamma.abs() < alpha.sqrt() * beta.sqrt() * limit) | gamma.eq(0.0)).eq(False)       # NaN rotates
    zeta = (beta - alpha) / (rotates.where(gamma, 1.0) * 2.0)
    t = (zeta.abs() + (zeta * zeta + 1.0).sqrt()).recip()
    t = rotates.where((zeta < 0.0).where(-t, t), 0.0)
    cosine = (t * t + 1.0).sqrt().recip().contiguous()
    sine = (cosine * t).contiguous()
    row = counting(n)
    before = row.eq(0).where(0, row.eq(1).where(n - 1, row - 1))                   # the index of a row before it moves
    is_left = before < n // 2
    pair = is_left.where(before, n - 1 - before)
    turned = take(sine, 1, pair)
    turned = is_left.reshape((1, n, 1)).where(-turned, turned)
    moved = take(x, 1, before) * take(cosine, 1, pair) + take(x, 1, n - 1 - before) * turned
    quiet = rotates.cast(x.dtype).reduce(o.AMAX, (1,)).ne(0.0).where(0.0, quiet + 1.0).contiguous()
    ends = ((number + 1) % (n - 1)).eq(0) & (quiet < n - 1.0).eq(False)
    return [moved, quiet, ends.where(1.0, quiet * 0.0)], []


def parity(order: UOp) -> UOp:
    """1 or -1 for each row of indices: whether an even number of swaps puts it in order."""
    batch, n = order.shape
    later_is_smaller = (order.reshape((batch, 1, n)) < order.reshape((batch, n, 1))) & (_rows(n) < _columns(n))
    count = later_is_smaller.cast(dtypes.int32).sum((1, 2)).reshape((batch,))
    return 1 - (count % 2) * 2
