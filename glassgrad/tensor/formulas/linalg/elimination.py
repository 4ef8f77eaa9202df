"""How matrices are taken apart, on nodes. In: stacks of matrices (batch, m, n). Out: their factors, in memory.

Each method is a loop over columns whose step has the same kernels every time: the column's number is a scalar argument,
and rows or columns that a step must not touch are masked. So a step is compiled once, however large the matrix. The
steps run at once, not lazily; what they give has the known gradient, as an ordinary graph.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Cell
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const, full
from glassgrad.tensor import evaluate as running
from glassgrad.tensor.formulas.counting import counting

__all__ = ["eliminate", "cholesky", "householder", "jacobi", "parity"]


def _step(number: int) -> UOp:
    return UOp(o.SCALAR, dtypes.int32, (), Cell(number))


def _along(n: int, axis: int, shape: tuple[int, ...]) -> UOp:
    """0, 1, ... along an axis of a shape."""
    return counting(n).reshape(tuple(n if a == axis else 1 for a in range(len(shape)))).expand(shape)


def _total(x: UOp, axis: int) -> UOp:
    return x.sum((axis,))


def _run(device: str, *nodes: UOp) -> list[UOp]:
    return running.realize([n.contiguous() for n in nodes], device)


def eliminate(a: UOp, b: UOp, device: str) -> tuple[UOp, UOp, UOp]:
    """Gauss and Jordan, the largest of a column as its pivot: the x of a x = b, the pivots (batch, n) and the rows they
    were in. Rows are not swapped: each step takes a row that no step took before."""
    batch, n, _ = a.shape
    width = n + b.shape[2]
    tall, whole = (batch, n, 1), (batch, n, width)
    m = UOp(o.WHERE, a.dtype, (_inside(whole, 2, 0, n), a.pad(((0, 0), (0, 0), (0, b.shape[2]))),
                               b.pad(((0, 0), (0, 0), (n, 0)))))
    row, column, place = _along(n, 1, tall), _along(width, 2, whole), _along(n, 1, (batch, n))
    used = full(tall, False, dtypes.bool)
    order, pivots = full((batch, n), 0, dtypes.int32), full((batch, n), 0, a.dtype)
    m, used, order, pivots = _run(device, m, used, order, pivots)
    for k in range(n):
        step = _step(k)
        c = _total(column.eq(step).where(m, 0), 2)                                    # (batch, n, 1)
        size = used.where(-1.0, c.ne(c).where(math.inf, c.abs()))
        most = size.reduce(o.AMAX, (1,)).expand(tall)
        chosen = size.eq(most).where(row, n).reduce(o.AMIN, (1,)).contiguous()        # (batch, 1, 1)
        is_pivot = row.eq(chosen.expand(tall))
        pivot = _total(is_pivot.where(c, 0), 1).contiguous()
        r = _total(is_pivot.expand(whole).where(m, 0), 1) / pivot.eq(0.0).where(1.0, pivot).expand((batch, 1, width))
        r = r.contiguous().expand(whole)
        c = c.contiguous()
        m = is_pivot.expand(whole).where(r, m - c.expand(whole) * r)
        here = place.eq(step)
        order = here.where(chosen.reshape((batch, 1)).expand((batch, n)), order)
        pivots = here.where(pivot.reshape((batch, 1)).expand((batch, n)), pivots)
        m, used, order, pivots = _run(device, m, used | is_pivot, order, pivots)
    right = m.shrink(((0, batch), (0, n), (n, width))).reshape((batch * n, width - n))
    start = (counting(batch, dtypes.int64) * n).reshape((batch, 1)).expand((batch, n))
    x = UOp(o.GATHER, a.dtype, (right, (start + order.cast(dtypes.int64)).reshape((batch * n,)))).reshape(b.shape)
    x, = _run(device, x)
    return x, pivots, order


def _inside(shape: tuple[int, ...], axis: int, start: int, stop: int) -> UOp:
    at = _along(shape[axis], axis, shape)
    return (at < start).logical_not() & (at < stop)


def cholesky(a: UOp, device: str) -> UOp:
    """The lower triangle L with L L^T = a; NaN where a is not positive definite."""
    batch, n, _ = a.shape
    whole, tall = a.shape, (batch, n, 1)
    row, column = _along(n, 1, tall), _along(n, 2, whole)
    rest, lower = _run(device, a, full(whole, 0, a.dtype))
    for k in range(n):
        step = _step(k)
        c = _total(column.eq(step).where(rest, 0), 2).contiguous()
        pivot = _total(row.eq(step).where(c, 0), 1)
        part = (row < step).where(0, c / pivot.sqrt().expand(tall)).contiguous()
        wide = part.expand(whole)
        rest, lower = _run(
            device, rest - wide * part.permute((0, 2, 1)).expand(whole), column.eq(step).where(wide, lower)
        )
    return lower


def householder(a: UOp, device: str) -> tuple[UOp, UOp]:
    """Q (m x m) and R (m x n) with Q R = a: reflections that clear one column after another, with LAPACK's signs."""
    batch, m, n = a.shape
    tall = (batch, m, 1)
    row, column = _along(m, 1, tall), _along(n, 2, a.shape)
    square = (batch, m, m)
    q = _along(m, 1, square).eq(_along(m, 2, square)).cast(a.dtype)
    r, q = _run(device, a, q)
    for k in range(min(m - 1, n)):
        step = _step(k)
        c = _total(column.eq(step).where(r, 0), 2).contiguous()
        head = _total(row.eq(step).where(c, 0), 1)
        below = (step < row).where(c, 0)
        length = _total(below * below, 1)
        beta = (head * head + length).sqrt()
        beta = (head < 0.0).where(beta, -beta)
        v = (below + row.eq(step).where((head - beta).expand(tall), 0)).contiguous()
        squared = _total(v * v, 1)
        scale = length.eq(0.0).where(0.0, 2.0 / squared.eq(0.0).where(1.0, squared)).contiguous()
        seen = _total(v.expand(a.shape) * r, 1) * scale.expand((batch, 1, n))            # (batch, 1, n)
        turned = _total(q * v.permute((0, 2, 1)).expand(square), 2) * scale.expand(tall)
        r, q = _run(device, r - v.expand(a.shape) * seen.contiguous().expand(a.shape),
                    q - turned.contiguous().expand(square) * v.permute((0, 2, 1)).expand(square))
    return q, (_along(n, 2, a.shape) < _along(m, 1, a.shape)).where(0, r)


def jacobi(a: UOp, device: str) -> tuple[UOp, UOp, UOp]:
    """For m >= n, a V, V and the lengths of a V's columns, which stand at right angles: pairs of columns are turned
    until they do (Hestenes, 1958). All pairs of a round are turned together, and a round robin brings every pair
    together once a sweep. An odd number of columns gets one more, of length -1."""
    batch, m, n = a.shape
    even = n + n % 2
    half = even // 2
    square = (batch, n, even)
    eye = _along(n, 1, square).eq(_along(even, 2, square)).cast(a.dtype)
    both = _stacked(a.pad(((0, 0), (0, 0), (0, even - n))), eye)                         # (batch, m + n, even)
    both, = _run(device, both)
    sweeps = 6 + max(1, n).bit_length() if a.dtype is not dtypes.float64 else 8 + max(1, n).bit_length()
    for _ in range(sweeps if n > 1 else 0):
        for _ in range(max(1, even - 1)):
            both, = _run(device, _seated(_turned(both, m, half)))
    work, v = both.shrink(((0, batch), (0, m), (0, even))), both.shrink(((0, batch), (m, m + n), (0, even)))
    sizes = _total(work * work, 1).sqrt().reshape((batch, even))
    added = _total(v * v, 1).eq(0.0).reshape((batch, even))        # the column that made the number even goes last
    work, v, sizes = _run(device, work, v, added.where(-1.0, sizes))
    return work, v, sizes


def _stacked(top: UOp, bottom: UOp) -> UOp:
    m, n = top.shape[1], bottom.shape[1]
    shape = (top.shape[0], m + n, top.shape[2])
    return UOp(o.WHERE, top.dtype, (_inside(shape, 1, 0, m), top.pad(((0, 0), (0, n), (0, 0))),
                                    bottom.pad(((0, 0), (m, 0), (0, 0)))))


def _turned(both: UOp, m: int, half: int) -> UOp:
    """Columns i and last - i, turned in their plane so that their upper parts stand at right angles."""
    batch, rows, even = both.shape
    left = both.shrink(((0, batch), (0, rows), (0, half)))
    right = both.shrink(((0, batch), (0, rows), (half, even))).flip((2,))
    p, q = (x.shrink(((0, batch), (0, m), (0, half))) for x in (left, right))
    alpha, beta, gamma = (_total(x, 1).contiguous() for x in (p * p, q * q, p * q))
    nothing = gamma.eq(0.0)
    zeta = (beta - alpha) / (nothing.where(1.0, gamma) * 2.0)
    t = (zeta.abs() + (zeta * zeta + 1.0).sqrt()).recip()
    t = nothing.where(0.0, (zeta < 0.0).where(-t, t))
    cosine = (t * t + 1.0).sqrt().recip().contiguous()
    sine = (cosine * t).contiguous()
    cosine, sine = cosine.expand(left.shape), sine.expand(left.shape)
    turned = left * cosine - right * sine, left * sine + right * cosine
    whole = both.shape
    return UOp(o.WHERE, both.dtype, (_inside(whole, 2, 0, half), turned[0].pad(((0, 0), (0, 0), (0, half))),
                                     turned[1].flip((2,)).pad(((0, 0), (0, 0), (half, 0)))))


def _seated(x: UOp) -> UOp:
    """The columns in their new seats: the first stays, the last comes second, the others move on by one."""
    batch, rows, even = x.shape
    if even <= 2:
        return x
    first = x.shrink(((0, batch), (0, rows), (0, 1))).pad(((0, 0), (0, 0), (0, even - 1)))
    last = x.shrink(((0, batch), (0, rows), (even - 1, even))).pad(((0, 0), (0, 0), (1, even - 2)))
    others = x.shrink(((0, batch), (0, rows), (1, even - 1))).pad(((0, 0), (0, 0), (2, 0)))
    at = _along(even, 2, x.shape)
    return at.eq(0).where(first, at.eq(1).where(last, others))


def parity(order: UOp) -> UOp:
    """1 or -1 for each row of places: whether an even number of swaps puts it in order."""
    batch, n = order.shape
    whole = (batch, n, n)
    a, b = order.reshape((batch, n, 1)).expand(whole), order.reshape((batch, 1, n)).expand(whole)
    wrong = ((b < a) & (_along(n, 1, whole) < _along(n, 2, whole))).cast(dtypes.int32)
    count = wrong.sum((1, 2)).reshape((batch,))
    return const(1, dtypes.int32) - (count % 2) * 2
