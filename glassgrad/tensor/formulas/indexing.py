"""Look up and write elements by index, on nodes. In: UOps, index UOps. Out: UOps.

A lookup by index tensors is one GATHER, a write one SCATTER over the flattened node. Indices are reported to
`tensor/index_range_check.py`, which finds those out of range when a result is computed. Does not know tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from glassgrad.compiler.graph import Scan, Scatter, UOp, const, dtypes, full, ops as o, upper_bound
from glassgrad.tensor import index_range_check
from glassgrad.tensor.broadcast import broadcast_shape
from glassgrad.tensor.formulas.bitcast import reread
from glassgrad.tensor.formulas.movement import along, counting, linear_indices, movedim, pad_axis, part
from glassgrad.tensor.formulas.reductions import arg_extreme
from glassgrad.tensor.formulas.sorting import FEW, SHORT, few_largest_of, key_of, kth_largest_of, largest_of, order_of
from glassgrad.tensor.memory.storage import Step, applied, refuse_repeated


# -- looking up ----------------------------------------------------------------------------------------------
def lookup(x: UOp, picks: Sequence[tuple[int, UOp]], from_end: bool = True, known: bool = False) -> UOp:
    """Look up elements with one GATHER by a linear index into the picked axes, which are moved to the front and
    flattened. `from_end`: -1 is the last index. `known`: no index can be out of range."""
    single = [(axis, index) for axis, index in picks if not index.shape]
    if 0 < len(single) < len(picks):        # scalars first: this removes their axes, and the rest may be adjacent then
        gone = [axis for axis, _ in single]
        others = [(axis - sum(g < axis for g in gone), index) for axis, index in picks if index.shape]
        return lookup(lookup(x, single, from_end, known), others, from_end, known)
    axes = [a for a, _ in picks]
    shape: tuple[int, ...] = functools.reduce(lambda a, b: broadcast_shape(a, b, o.GATHER), [i.shape for _, i in picks])
    linear: UOp | None = None
    for axis, index in picks:
        n = x.shape[axis]
        target = index.cast(dtypes.int64) if len(picks) > 1 or index.dtype.bits < 32 else index
        target = (index_range_check.from_front(target, n) if from_end else target).broadcast(shape)
        if len(picks) > 1:
            target = index_range_check.nearest(target, n)
        linear = target if linear is None else linear * n + target
    assert linear is not None
    rows_count = math.prod(x.shape[a] for a in axes)
    if not known:
        watched = [index_range_check.Pick(index, x.shape[axis], axis, from_end) for axis, index in picks]
        index_range_check.watch(linear, watched, x.shape, rows_count)
    rest = [a for a in range(len(x.shape)) if a not in axes]
    rows = x.permute(axes + rest).reshape((rows_count, *(x.shape[a] for a in rest)))
    found = UOp(o.GATHER, x.dtype, (rows, linear))
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    lead = axes[0] if together else 0               # number of remaining axes before those that are looked up
    order = [len(shape) + i for i in range(lead)] + list(range(len(shape))) + \
        [len(shape) + i for i in range(lead, len(rest))]
    return found.permute(order)


def gather(x: UOp, axis: int, index: UOp, from_end: bool = False, known: bool = False) -> UOp:
    """out[i, j] = x[index[i, j], j] for axis 0, and so on."""
    rank = len(x.shape)
    if not rank:
        return x.reshape(index.shape)
    axis = axis + rank if axis < 0 else axis
    x = x.shrink([(0, n if a == axis else i) for a, (n, i) in enumerate(zip(x.shape, index.shape))])
    picks = [(a, index if a == axis else along(n, a, index.shape, dtypes.int64)) for a, n in enumerate(index.shape)]
    return lookup(x, picks, from_end, known)


def gather_known(x: UOp, axis: int, index: UOp) -> UOp:
    """`gather` by indices that cannot be out of range."""
    return gather(x, axis, index, known=True)


def take(x: UOp, axis: int, index: UOp) -> UOp:
    """x[:, .., index] by indices that cannot be out of range."""
    return lookup(x, [(axis, index)], known=True)


def choose(x: UOp, target: UOp, axis: int, ignored: int | None = None) -> UOp:
    """Return, along an axis, the value whose index is the target, and 0 if there is none. It is computed by a
    comparison and a sum, so that its gradient needs no SCATTER."""
    classes = x.shape[axis]
    names = target.cast(dtypes.int32).reshape(target.shape[:axis] + (1,) + target.shape[axis:]).broadcast(x.shape)
    named = along(classes, axis, x.shape).eq(names)
    index_range_check.watch_classes(named, target, classes, axis, x.shape, ignored)
    chosen = named.where(x, 0)
    wide = x.dtype.accumulator
    return chosen.cast(wide).sum((axis,)).cast(x.dtype).reshape(x.shape[:axis] + x.shape[axis + 1:])


# -- order ---------------------------------------------------------------------------------------------------
def rows_of(x: UOp, axis: int) -> UOp:
    """Return x as (rows, n): one axis last, the others flattened."""
    if not x.shape:
        return x.reshape((1, 1))
    moved = movedim(x, axis, -1)
    return moved.reshape((math.prod(moved.shape[:-1]), moved.shape[-1]))


def unrows(rows: UOp, axis: int, shape: tuple[Any, ...]) -> UOp:
    """Undo `rows_of`, for rows of any length."""
    if not shape:
        return rows.reshape(())
    return movedim(rows.reshape((*shape[:axis], *shape[axis + 1:], rows.shape[-1])), -1, axis)


def argsort(x: UOp, axis: int, descending: bool = False) -> UOp:
    """The indices that sort an axis; equal values keep their order."""
    if 0 in x.shape:
        return full(x.shape, 0, dtypes.int32)
    axis = axis + len(x.shape) if axis < 0 else axis
    return unrows(order_of(key_of(rows_of(x.detach(), axis), descending)), axis, x.shape)


def sort(x: UOp, axis: int, descending: bool = False) -> tuple[UOp, UOp]:
    """An axis sorted, and the indices its values came from."""
    order = argsort(x, axis, descending)
    return (gather_known(x, axis, order) if x.shape and 0 not in x.shape else x), order


def topk(x: UOp, k: int, axis: int, largest: bool) -> tuple[UOp, UOp]:
    """The k largest or smallest values along an axis, in order, and their indices; short axes are sorted."""
    n = x.shape[axis]
    if n <= SHORT or 4 * k > n or 0 in x.shape:
        indices = part(argsort(x, axis, largest), axis, 0, k)
        return gather_known(x, axis, indices), indices
    key = key_of(rows_of(x.detach(), axis), not largest)
    few = 0 < k <= FEW and key.dtype is not dtypes.uint64
    chosen = unrows((few_largest_of if few else largest_of)(key, k), axis, x.shape)
    values = gather_known(x, axis, chosen)
    if few:
        return values, chosen
    order = argsort(values, axis, largest)
    return gather_known(values, axis, order), gather_known(chosen, axis, order)


def ranked(x: UOp, axis: int, rank: Any) -> tuple[UOp, UOp]:
    """The value of a rank along an axis, which stays with size 1, and the first index of that value. Rank 0 is the
    smallest, NaN counts as the greatest; each row may have its own rank. Long axes are not sorted."""
    rows, n = rows_of(x.detach(), axis), x.shape[axis]
    rank = (rows_of(rank, axis) if isinstance(rank, UOp) else const(rank, dtypes.int32)).broadcast((rows.shape[0], 1))
    if upper_bound(n) <= SHORT:
        index = gather_known(argsort(rows, 1), 1, rank)
    else:
        key = key_of(rows).contiguous()
        index = arg_extreme(o.AMAX, key.eq(kth_largest_of(key, n - rank)), 1, True)
    index = unrows(index, axis, x.shape)
    return gather_known(x, axis, index), index


def true_indices(mask: UOp, size: int) -> UOp:
    """The indices (row by row) where a mask is true, as int32 (size,), padded with -1."""
    count = mask.elements
    mask = mask.reshape((count,)).contiguous()
    so_far = UOp(o.SCAN, dtypes.int32, (mask.cast(dtypes.int32),), Scan(0, o.ADD))
    seat = mask.where((so_far - 1).minimum(size), size)
    base = full((size + 1,), -1, dtypes.int32)
    return UOp(o.SCATTER, dtypes.int32, (base, seat, counting(count)), Scatter("set")).shrink(((0, size),))


# -- writing -------------------------------------------------------------------------------------------------
def replace_part(x: UOp, steps: tuple[Step, ...], value: UOp, repeated: bool = False) -> UOp:
    """Return x with the elements that a view of it shows replaced; `steps` are the movement ops and bitcasts from x to
    the view. A view that shows an element several times is refused, unless the values for it are equal (`repeated`)."""
    for at, (op, arg) in enumerate(steps):
        if op is o.BITCAST:                  # replace in the other type, then read that back as the first type
            shown = applied(steps[:at], x, cuts=False)
            bits = replace_part(reread(shown, arg[1]), steps[at + 1:], value, repeated)
            return replace_part(x, steps[:at], reread(bits, arg[0]), repeated)
    replaced = _replace_view(x, applied(steps, x, cuts=False), value)
    if replaced is not None:
        return replaced
    numbers = applied(steps, linear_indices(x.shape, dtypes.int64), cuts=False)
    if not repeated:
        refuse_repeated(steps, numbers)
    return put(x, numbers, value)


def put(x: UOp, linear: UOp, value: UOp, mode: str = "set") -> UOp:
    """Return x with values written at linear indices."""
    return scatter(x, linear.reshape((math.prod(linear.shape),)), value, mode)


def _replace_view(x: UOp, view: UOp, value: UOp) -> UOp | None:
    """Return x with the part that `view` shows replaced by `value`; None if that is not a rectangular part of x (apart
    from axes of size 1, which may have been dropped or added)."""
    while view is not x and view.op is o.RESHAPE:
        view = view.src[0]
    if view is x:
        return value.reshape(x.shape)
    if view.op is not o.SHRINK or view.src[0] is not x:
        return None
    around = [(start, n - stop) for n, (start, stop) in zip(x.shape, view.arg.bounds)]
    inside = full(view.shape, True, dtypes.bool).pad(around)
    return UOp(o.WHERE, x.dtype, (inside, value.reshape(view.shape).pad(around), x))


def scatter_targets(shape: tuple[Any, ...], axis: int, index: UOp) -> UOp:
    """Return, for each element of an index, the linear index of the element that it names in a tensor of `shape`."""
    target = index.cast(dtypes.int64)
    if not shape:
        return target.reshape((1,))
    n = shape[axis]
    linear = full(index.shape, 0, dtypes.int64)
    for a, size in enumerate(shape):
        linear = linear * size + (index_range_check.nearest(target, n) if a == axis else
                                  along(index.shape[a], a, index.shape, dtypes.int64))
    index_range_check.watch(linear, [index_range_check.Pick(index, n, axis, from_end=False)], shape, math.prod(shape))
    return linear


def scatter(base: UOp, target: UOp, value: UOp, mode: str) -> UOp:
    """Write values to linear indices of a node's elements: mode "set", "add" or "max"."""
    src = base.reshape((base.elements,)), target, value.reshape(target.shape)
    return UOp(o.SCATTER, base.dtype, src, Scatter(mode)).reshape(base.shape)


_SCATTERS = {"set": "set", "sum": "add", "amax": "max"}      # {reduction: mode of a single SCATTER}


def scatter_reduce(x: UOp, axis: int, index: UOp, target: UOp, value: UOp, how: str, include_self: bool) -> UOp:
    """Return the sum, prod, mean, amax or amin of everything written to an element, and of x itself if `include_self`;
    "set" keeps what was written last."""
    dtype, base = x.dtype, x
    if not include_self:
        touched = scatter(full(x.shape, False, dtypes.bool), target, full(target.shape, True, dtypes.bool), "set")
        start = {"sum": 0, "mean": 0, "prod": 1, "amax": dtype.min, "amin": dtype.max}[how]
        base = touched.where(const(start, dtype), base)
    if how in _SCATTERS:
        return scatter(base, target, value, _SCATTERS[how])
    if how == "amin":
        opposite = UOp.__neg__ if dtype.kind == "f" else UOp.logical_not     # ~x cannot overflow, -x can
        return opposite(scatter(opposite(base), target, opposite(value), "max"))
    if how == "prod":
        return base * product_at(x.shape, axis, index, target, value)
    total = scatter(base, target, value, "add")
    count = scatter(full(x.shape, int(include_self), dtype), target, full(target.shape, 1, dtype), "add")
    count = count.maximum(const(1, dtype))
    return total / count if dtype.kind == "f" else total // count


def product_at(shape: tuple[Any, ...], axis: int, index: UOp, target: UOp, value: UOp) -> UOp:
    """The product of all values written to each element of a tensor of `shape`, 1 where none is. The index is sorted,
    and the values of one element, now adjacent, are multiplied in doubling steps."""
    if not index.shape:
        return value
    dtype, elements, n = value.dtype, math.prod(shape), shape[axis]
    key = rows_of(index, axis).cast(dtypes.int64)
    order = order_of(key.cast(dtypes.uint32), max(1, (n - 1).bit_length()))
    rows, count = key.shape
    names, products = gather_known(key, 1, order).contiguous(), gather_known(rows_of(value, axis), 1, order)
    step = 1
    while step < count:      # after each pass, an element holds the product of the last 2 * step values of its index
        before = pad_axis(part(products, 1, 0, count - step), 1, step, 0, 1)
        same = pad_axis(part(names, 1, 0, count - step), 1, step, 0, -1).eq(names)
        products = same.where(products * before, products).contiguous()      # else a kernel would repeat all steps
        step *= 2
    after = pad_axis(part(names, 1, 1, count), 1, 0, 1, -1)
    last = after.ne(names).where(index_range_check.nearest(names, n), n)     # n, dropped below, if not the last one
    linear = along(rows, 0, last.shape, dtypes.int64) * (n + 1) + last
    flat = UOp(o.SCATTER, dtype, (full((rows * (n + 1),), 1, dtype), linear, products), Scatter("set"))
    index_range_check.watch_for(flat, target, elements)
    found = unrows(flat.reshape((rows, n + 1)).shrink(((0, rows), (0, n))), axis, index.shape)
    for a, (size, named) in enumerate(zip(shape, index.shape)):
        found = pad_axis(found, a, 0, size - named, 1) if a != axis else found
    return found


def scatter_slices(x: UOp, axis: int, index: UOp, source: UOp, mode: str, from_end: bool = False) -> UOp:
    """Return x with slices written, or added, along an axis at the indices in a vector."""
    moved, slices = movedim(x, axis, 0), movedim(source.cast(x.dtype), axis, 0)
    target = index.reshape((index.elements,)).cast(dtypes.int64)
    n = moved.shape[0]
    target = index_range_check.from_front(target, n) if from_end else target
    index_range_check.watch(target, [index_range_check.Pick(index, n, axis, from_end)], x.shape, n)
    return movedim(UOp(o.SCATTER, x.dtype, (moved, target, slices), Scatter(mode)), 0, axis)
