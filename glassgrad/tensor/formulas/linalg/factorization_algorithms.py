"""Factor matrices, on nodes. In: stacks of matrices (batch, m, n). Out: their factors.

Each method is a recurrence over columns or pairs of columns, whose step has the same graph every time: rows and columns
that a step must not touch are masked. The matrices are the recurrence's independent items, so that all steps of a small
matrix are one task (compiler/graph/recurrence.py). None of them has a gradient; the gradients of the factors are known
formulas (factorizations.py).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, dtypes, full, ops as o
from glassgrad.compiler.graph.recurrence import steps_of_items
from glassgrad.tensor.formulas.indexing import gather_known, take
from glassgrad.tensor.formulas.linalg.products import matmul
from glassgrad.tensor.formulas.movement import counting, eye, joined, matrix_transpose, part

BLOCK = 64       # columns that are eliminated step by step; the rest of a larger matrix is updated by products


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


def eliminate(a: UOp, b: UOp | None) -> tuple[UOp, UOp, UOp]:
    """Gauss-Jordan elimination with partial pivoting. Return the x of a x = b, or without b the inverse of a; the
    pivots (batch, n); and the rows they were in.

    Rows are not swapped: each step takes a row that no step took before. A large matrix is eliminated in panels of
    columns. A panel is eliminated in place, so that each finished column is replaced by a column of the transformation,
    which is then applied to the columns that are left."""
    batch, n, _ = a.shape
    m, used = a if b is None else joined([a, b], 2), full((batch, n, 1), 0, a.dtype)
    if n <= BLOCK:
        [m, _], found = steps_of_items(_elimination, [m, used], n, b is None)
        pivots, order = (_by_matrix(x) for x in found)
        m = m if b is None else part(m, 2, n, m.shape[2])
    else:
        panels = [_Panel(used, m)]
        while len(panels) * BLOCK < n + BLOCK:
            panels.append(panels[-1].next(min(BLOCK, n - (len(panels) - 1) * BLOCK)))
        pivots, order = (joined([_by_matrix(x) for x in found], 1) for found in zip(*[p.found for p in panels[1:]]))
        m = panels[-1].m if b is None else part(panels[-1].m, 2, 0, b.shape[2])
    m = gather_known(m, 1, order.reshape((batch, n, 1)).expand(m.shape))
    if b is None:
        place = _total(order.reshape((batch, n, 1)).eq(_columns(n)).where(_rows(n), 0), 1)   # position of each row
        m = gather_known(m, 2, place.expand(a.shape))
    return m, pivots, order


def _by_matrix(x: UOp) -> UOp:
    """Reshape a number of each step, (steps, batch, 1, 1), to (batch, steps)."""
    return x.reshape(x.shape[:2]).permute((1, 0))


class _Panel(NamedTuple):
    """The state of an elimination after a panel: the columns that are left, and after them those of the
    transformation."""
    used: UOp
    m: UOp
    found: tuple[UOp, ...] = ()        # the pivots and their rows

    def next(self, size: int) -> _Panel:
        """Return the state after the next panel of `size` columns."""
        batch, n, width = self.m.shape
        start = [part(self.m, 2, 0, size).contiguous(), self.used]
        [panel, used], found = steps_of_items(_elimination, start, size, True)
        rest = part(self.m, 2, size, width)
        rows = _by_matrix(found[1]).reshape((batch, size, 1)).expand((batch, size, width - size))
        left = used.eq(self.used).where(rest, 0) + matmul(panel, gather_known(rest, 1, rows))
        return _Panel(used, joined([left, panel], 2), tuple(found))


def _elimination(number: UOp, states: list[UOp], in_place: bool) -> tuple[list[UOp], list[UOp]]:
    m, used = states
    row = _rows(m.shape[1])
    c = _column(m, number)
    size = used.ne(0.0).where(-1.0, c.ne(c).where(math.inf, c.abs()))
    most = size.reduce(o.AMAX, (1,))
    chosen = size.eq(most).where(row, m.shape[1]).reduce(o.AMIN, (1,)).contiguous()       # (batch, 1, 1)
    is_pivot = row.eq(chosen)
    pivot = _total(is_pivot.where(c, 0), 1).contiguous()
    r = _total(is_pivot.where(m, 0), 1)
    if in_place:
        here = _columns(m.shape[2]).eq(number)
        r, m = here.where(1.0, r), here.where(0.0, m)
    r = (r / pivot.eq(0.0).where(1.0, pivot)).contiguous()
    return [is_pivot.where(r, m - c * r), is_pivot.where(1.0, used)], [pivot, chosen]


def cholesky(a: UOp, with_inverse: bool = False) -> tuple[UOp, UOp | None]:
    """The lower triangle L with L L^T = a, NaN where a is not positive definite; and its inverse. A large matrix is
    factored in four blocks, of which the lower left one of L is a21 (L11^-1)^T."""
    batch, n, _ = a.shape
    if n <= BLOCK:
        start = joined([a, eye(n, a.dtype).broadcast(a.shape)], 2) if with_inverse else a
        _, [rows] = steps_of_items(_cholesky_row, [start], n)
        rows = rows.reshape((n, batch, start.shape[2])).permute((1, 0, 2))
        return matrix_transpose(part(rows, 2, 0, n)), part(rows, 2, n, start.shape[2]) if with_inverse else None
    half = -(-n // (2 * BLOCK)) * BLOCK
    left, right = part(a, 2, 0, half), part(a, 2, half, n)
    l11, i11 = cholesky(part(left, 1, 0, half), True)
    assert i11 is not None
    l21 = matmul(part(left, 1, half, n), matrix_transpose(i11)).contiguous()
    l22, i22 = cholesky(part(right, 1, half, n) - matmul(l21, matrix_transpose(l21)), with_inverse)
    lower = _below(l11, l21, l22)
    return lower, None if i22 is None else _below(i11, -matmul(matmul(i22, l21), i11), i22)


def _below(first: UOp, left: UOp, last: UOp) -> UOp:
    """A lower triangle of blocks."""
    return joined([first.pad(((0, 0), (0, 0), (0, last.shape[1]))), joined([left, last], 2)], 1)


def _cholesky_row(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    """Compute the next row of L^T, and of L^-1 if the identity is beside the matrix."""
    rest, n = states[0], states[0].shape[1]
    r = _total(_rows(n).eq(number).where(rest, 0), 1).contiguous()                        # (batch, 1, width)
    pivot = _total(_columns(n).eq(number).where(part(r, 2, 0, n), 0), 2)
    scaled = (_columns(r.shape[2]) < number).where(0, r / pivot.sqrt()).contiguous()
    return [rest - matrix_transpose(part(scaled, 2, 0, n)) * scaled], [scaled]


def householder(a: UOp) -> UOp:
    """R and Q^T side by side, (batch, m, n + m), with Q R = a: reflections that clear one column after another, with
    LAPACK's signs. The same reflections turn a into R and the identity into Q^T. Below R's diagonal there are rounding
    errors."""
    batch, m, n = a.shape
    start = joined([a, eye(m, a.dtype).broadcast((batch, m, m))], 2)
    return steps_of_items(_reflection, [start], min(max(m - 1, 0), n))[0][0]


def _reflection(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    x, row = states[0], _rows(states[0].shape[1])
    c = (row < number).where(0, _column(x, number))
    largest = c.abs().reduce(o.AMAX, (1,))
    c = (c / largest.eq(0.0).where(1.0, largest)).contiguous()     # so that no square overflows or vanishes
    head = _total(row.eq(number).where(c, 0), 1)
    below = (number < row).where(c, 0)
    length = _total(below * below, 1)
    beta = (head * head + length).sqrt()
    beta = (head < 0.0).where(beta, -beta)
    v = (below + row.eq(number).where(head - beta, 0)).contiguous()
    squared = _total(v * v, 1)
    scale = length.eq(0.0).where(0.0, 2.0 / squared.eq(0.0).where(1.0, squared)).contiguous()
    return [x - v * (_total(v * x, 1) * scale).contiguous()], []


def jacobi(a: UOp, with_rotations: bool = True) -> UOp:
    """For m >= n, the orthogonal columns of a V, as rows (batch, n, m), and those of V beside them if asked for. Pairs
    of columns are rotated until all are orthogonal (Hestenes, 1958). All pairs of a round are rotated together, and a
    round robin tournament brings every pair together once in a sweep. The last sweep is one that rotates nothing."""
    batch, m, n = a.shape
    even = n + n % 2
    sweeps = (8 if a.dtype is dtypes.float64 else 6) + max(1, n).bit_length()
    both = matrix_transpose(a)
    if with_rotations:
        both = joined([both, eye(n, a.dtype).broadcast((batch, n, n))], 2)
    none = full((batch, 1, 1), 0, a.dtype)
    starts = [both.pad(((0, 0), (0, even - n), (0, 0))), none, none]
    found, _ = steps_of_items(_rotations, starts, sweeps * (even - 1) if n > 1 else 0, m, until=2)
    return part(found[0], 1, 0, n)                                 # after whole sweeps the columns are in order again


def _rotations(number: UOp, states: list[UOp], m: int) -> tuple[list[UOp], list[UOp]]:
    """Do one round: rotate the rows i and last - i of x so that their first m elements are orthogonal, unless they are.
    Then row 0 stays, the last row becomes the second, and the others move on by one. `quiet` counts rounds without a
    rotation."""
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
    cosine = (t * t + 1.0).sqrt().recip()
    sine = (cosine * t).contiguous()
    half = (sine / (cosine + 1.0)).contiguous()                    # the tangent of half the angle
    row = counting(n)
    before = row.eq(0).where(0, row.eq(1).where(n - 1, row - 1))                   # the index of a row before it moves
    is_left = before < n // 2
    pair = is_left.where(before, n - 1 - before)
    sine, half = (is_left.reshape((1, n, 1)).where(-side, side) for side in (take(sine, 1, pair), take(half, 1, pair)))
    old = take(x, 1, before)
    moved = old + sine * (take(x, 1, n - 1 - before) - half * old)      # c x + s y, for a cosine c that may round to 1
    quiet = rotates.cast(x.dtype).reduce(o.AMAX, (1,)).ne(0.0).where(0.0, quiet + 1.0).contiguous()
    ends = ((number + 1) % (n - 1)).eq(0) & (quiet < n - 1.0).eq(False)
    return [moved, quiet, ends.where(1.0, quiet * 0.0)], []


def parity(order: UOp) -> UOp:
    """Return 1 or -1 for each row of indices: whether an even or an odd number of swaps sorts it."""
    batch, n = order.shape
    later_is_smaller = (order.reshape((batch, 1, n)) < order.reshape((batch, n, 1))) & (_rows(n) < _columns(n))
    count = later_is_smaller.cast(dtypes.int32).sum((1, 2)).reshape((batch,))
    return 1 - (count % 2) * 2
