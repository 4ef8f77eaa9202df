"""Show the same elements under other indices, on nodes. In: UOps, axes counted from the front or the end. Out: UOps.

Nothing here copies or checks what a user wrote: the methods do. Does not know tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import DType, Iota, Shape, Size, UOp, dtypes, full, ops as o, promote, upper_bound
from glassgrad.compiler.graph.uop import joined
from glassgrad.tensor.broadcast import number


def counting(n: Size, dtype: DType = dtypes.int32) -> UOp:
    """0, 1, ..., n - 1.

    >>> counting(3).shape
    (3,)
    """
    return UOp(o.IOTA, dtype, (), Iota((upper_bound(n),))).shrink(((0, n),))


def linear_indices(shape: Shape, dtype: DType = dtypes.int32) -> UOp:
    """0, 1, 2, ... row by row, in the given shape.

    >>> Tensor(linear_indices((2, 3))).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    return counting(math.prod(shape), dtype).reshape(shape)


def _from_front(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


# -- axes ----------------------------------------------------------------------------------------------------
def transpose(x: UOp, a: int, b: int) -> UOp:
    """Two axes exchanged."""
    order = list(range(len(x.shape)))
    if order:
        order[a], order[b] = order[b], order[a]
    return x.permute(order)


def matrix_transpose(x: UOp) -> UOp:
    """The last two axes exchanged."""
    return transpose(x, -2, -1)


def movedim(x: UOp, source: int, destination: int) -> UOp:
    """One axis moved to another position, the others in their order."""
    rank = len(x.shape)
    source = _from_front(source, rank)
    order = [axis for axis in range(rank) if axis != source]
    order.insert(_from_front(destination, rank), source)
    return x.permute(order)


def unsqueeze(x: UOp, axis: int) -> UOp:
    """x with a new axis of size 1."""
    axis = _from_front(axis, len(x.shape) + 1)
    return x.reshape(x.shape[:axis] + (1,) + x.shape[axis:])


def squeeze(x: UOp, axis: int) -> UOp:
    """x without an axis, if its size is 1."""
    axis = _from_front(axis, len(x.shape))
    return x.reshape(x.shape[:axis] + x.shape[axis + 1:]) if x.shape and x.shape[axis] == 1 else x


def flatten(x: UOp, first: int = 0) -> UOp:
    """The axes from `first` on as one."""
    return x.reshape((*x.shape[:first], math.prod(x.shape[first:])))


# -- parts ---------------------------------------------------------------------------------------------------
def part(x: UOp, axis: int, start: Any, stop: Any) -> UOp:
    """The elements from start up to stop along an axis."""
    axis = _from_front(axis, len(x.shape))
    return x.shrink([(start, stop) if a == axis else (0, n) for a, n in enumerate(x.shape)])


def at(x: UOp, axis: int, index: int) -> UOp:
    """The slice at one index of an axis, without that axis; a negative index counts from the end."""
    axis = _from_front(axis, len(x.shape))
    index = _from_front(index, x.shape[axis])
    return squeeze(part(x, axis, index, index + 1), axis)


def halves(x: UOp, axis: int) -> tuple[UOp, UOp]:
    """The two halves of an axis of even size."""
    size = x.shape[axis]
    return part(x, axis, 0, size // 2), part(x, axis, size // 2, size)


def roll(x: UOp, shift: int, axis: int) -> UOp:
    """Elements moved along an axis; those that leave at one end enter at the other."""
    n = x.shape[axis] if x.shape else 0
    if not n or not shift % n:
        return x
    cut = n - shift % n
    return joined([part(x, axis, cut, n), part(x, axis, 0, cut)], _from_front(axis, len(x.shape)))


def repeat_interleave(x: UOp, times: int, axis: int) -> UOp:
    """Each element of an axis repeated `times` times in a row."""
    axis = _from_front(axis, len(x.shape))
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1:]
    return x.reshape((*before, n, 1, *after)).expand((*before, n, times, *after)).reshape((*before, n * times, *after))


def every(x: UOp, axis: int, step: int) -> UOp:
    """Every step-th element along an axis, as windows of one element."""
    if step == 1:
        return x
    seen = x.window(axis, 1, step)
    return seen.reshape(seen.shape[:-1])


# -- together ------------------------------------------------------------------------------------------------
def cat(parts: Sequence[UOp], axis: int = 0) -> UOp:
    """Nodes concatenated along an axis, in the type that holds all."""
    dtype = functools.reduce(promote, [p.dtype for p in parts])
    with one_place():                                  # each part takes several nodes
        return joined([p.cast(dtype) for p in parts], _from_front(axis, len(parts[0].shape)))


def stack(parts: Sequence[UOp], axis: int = 0) -> UOp:
    """Nodes of one shape concatenated along a new axis."""
    axis = _from_front(axis, len(parts[0].shape) + 1)
    with one_place():
        return cat([unsqueeze(p, axis) for p in parts], axis)


# -- borders -------------------------------------------------------------------------------------------------
def pad_constant(x: UOp, amounts: Sequence[tuple[int, int]], value: Any = 0) -> UOp:
    """(before, after) more elements of one value along each axis; negative amounts cut."""
    if any(b < 0 or a < 0 for b, a in amounts):
        x = x.shrink([(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, amounts)])
    grown = [(max(b, 0), max(a, 0)) for b, a in amounts]
    padded = x.pad(grown)
    if padded is x or not isinstance(value, UOp) and value == 0:
        return padded
    filler = value if isinstance(value, UOp) else number(value, x.dtype, o.WHERE)
    inside = full(x.shape, True, dtypes.bool).pad(grown)
    return UOp(o.WHERE, filler.dtype, (inside, padded.cast(filler.dtype), filler))


def pad_axis(x: UOp, axis: int, before: int, after: int, value: Any = 0) -> UOp:
    """`pad_constant` along one axis."""
    axis = _from_front(axis, len(x.shape))
    return pad_constant(x, [(before, after) if a == axis else (0, 0) for a in range(len(x.shape))], value)


# -- diagonals -----------------------------------------------------------------------------------------------
def along(n: Any, axis: int, shape: Sequence[Any], dtype: DType = dtypes.int32) -> UOp:
    """Each element's index along one axis of a shape."""
    axis = _from_front(axis, len(shape))
    return counting(n, dtype).reshape(tuple(n if a == axis else 1 for a in range(len(shape)))).expand(tuple(shape))


def above_diagonal(shape: Sequence[Any], diagonal: int) -> UOp:
    """Whether column - row >= diagonal, over the last two axes of a shape."""
    rows, columns = shape[-2:]
    diagonal = max(-upper_bound(rows), min(diagonal, upper_bound(columns)))     # so that sums of indices fit their type
    row, column = along(rows, 0, (rows, columns)), along(columns, 1, (rows, columns))
    return (column < row + diagonal).logical_not().broadcast(tuple(shape))


def triu(x: UOp, diagonal: int = 0) -> UOp:
    """Matrices with zeros below a diagonal."""
    return above_diagonal(x.shape, diagonal).where(x, 0)


def tril(x: UOp, diagonal: int = 0) -> UOp:
    """Matrices with zeros above a diagonal."""
    return above_diagonal(x.shape, diagonal + 1).where(0, x)


def eye(n: int, dtype: DType, columns: int | None = None) -> UOp:
    """Ones on the diagonal, zeros elsewhere."""
    shape = (n, n if columns is None else columns)
    return along(shape[0], 0, shape).eq(along(shape[1], 1, shape)).cast(dtype)


def diagonal(x: UOp, offset: int = 0, row: int = 0, column: int = 1) -> UOp:
    """The diagonal of two axes as a new last axis."""
    rank = len(x.shape)
    row, column = _from_front(row, rank), _from_front(column, rank)
    x = x.permute([*(a for a in range(rank) if a not in (row, column)), row, column])
    lead, (rows, columns) = x.shape[:-2], x.shape[-2:]
    top, left = min(max(-offset, 0), rows), min(max(offset, 0), columns)
    n = min(rows - top, columns - left)
    bounds = [(0, m) for m in lead]
    x = x.shrink([*bounds, (top, top + n), (left, left + n)]).reshape((*lead, n * n))
    x = x.pad([*[(0, 0) for _ in lead], (0, n)]).reshape((*lead, n, n + 1))
    return x.shrink([*bounds, (0, n), (0, 1)]).reshape((*lead, n))


def diagonal_matrix(x: UOp, offset: int = 0) -> UOp:
    """Matrices with the last axis as their diagonal, `offset` above the main one."""
    lead, n = x.shape[:-1], x.shape[-1]
    rows = unsqueeze(x, -1).pad([*[(0, 0) for _ in lead], (0, 0), (0, n)])   # n x (n + 1); as n x n, rows shift by one
    square = part(rows.reshape((*lead, n * (n + 1))), -1, 0, n * n).reshape((*lead, n, n))
    right, down = max(offset, 0), max(-offset, 0)
    return square.pad([*[(0, 0) for _ in lead], (down, right), (right, down)])
