"""Split large scatters for parallel execution. In: sinks. Out: sinks, whose SCATTERs many groups of threads can share.

Values written to one position are combined in a fixed order, so that every run gives the same bits. But any index may
name any position, and a group responsible for some positions would have to look through all indices. Two ways around
that:

*Few positions*: split the indices into parts, give each part a copy of all positions, and combine the copies.

    y[row[s]] += x[s]   ->   z[p, row[p, s]] += x[p, s];   y += sum of z[p]

*Many positions*: split the positions into bins. Sort the indices by bin with a stable radix sort of a few bits; a
binary search finds where each bin starts, and each bin is the work of one group.

    for s: y[row[s]] += x[s]   ->   for each bin b: for s in start[b] .. start[b + 1]: y[row[order[s]]] += x[order[s]]

A position that is written very often makes its bin long. So a long bin is cut into pieces, each with a copy of the
bin's positions, combined as above.

*Rows* of several columns have a bin each: the values added to one are summed in registers (lower/lower.py).
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, const, dtypes, full, identity, ops as o, toposort
from glassgrad.compiler.graph.binary_search import passing_prefix
from glassgrad.compiler.graph.node import rebuilt
from glassgrad.compiler.graph.op_arguments import Iota, Scan, Scatter
from glassgrad.compiler.schedule.fusion import scanned_constant
from glassgrad.compiler.schedule.inlined_values import FusionLimits

FEWEST = 1 << 14         # indices: looking through fewer takes little time
PARTS = 16               # parts, for each row that keeps a device busy
LEAST_PARTS = 64         # with fewer parts, bins are faster
LEAST_PART = 128         # indices per part
CPU_PARTS = 32           # parts on any CPU, so that all give the same bits
MANY = 8 * CPU_PARTS     # indices per position from which a copy of the positions per part costs next to nothing
MUCH = 1 << 16           # values to write: fewer are not worth another kernel
BINS = 8                 # bins, for each row that keeps a device busy
LEAST_PIECE = 4096       # indices of a bin that are worth a copy of its positions,
ROW_PIECE = 64           # and the same for a bin of one row, which adds its values one after another
DIGIT = 6                # bits of the bin's number that are sorted at a time
BLOCK = 64               # numbers that a sort compares with each other


def with_flat_scatters_cut(sinks: list[UOp], limits: FusionLimits) -> list[UOp]:
    """Rewrite SCATTERs of many values into one axis to use parts or bins."""
    pays = _pays if limits.few_rows else _pays_on_cpu
    if not any(pays(node) for node in toposort(sinks)):
        return sinks
    cut = rebuilt(sinks, lambda node, over: _cut(over, limits) if pays(node) else None)
    # a result that has become a view is stored, not copied
    return [new.contiguous() if new.op in o.MOVEMENT and s.op is o.SCATTER else new for s, new in zip(sinks, cut)]


def _pays(node: UOp) -> bool:
    """Whether a node writes many values, or adds to many rows, by index."""
    return _by_index(node) and FEWEST <= node.src[1].elements < 1 << 30 and \
        (math.prod(node.shape[1:]) == 1 or node.arg.mode in ("add", "max"))


def _pays_on_cpu(node: UOp) -> bool:
    """Whether a node writes many values to few positions. For many positions, loops are split
    (optimize/plain/cpu_scatters.py)."""
    return _by_index(node) and node.arg.mode in ("add", "max") and \
        node.src[1].elements >= MANY * node.shape[0] and node.src[1].elements * math.prod(node.shape[1:]) >= MUCH


def _by_index(node: UOp) -> bool:
    """Whether a node writes to positions of one axis by indices that only memory has. (In a batch, part of the index is
    known.)"""
    if node.op is not o.SCATTER or node.arg.mode == "permute" or len(node.src) > 3:
        return False
    base, index = node.src[:2]
    if not all(isinstance(n, int) for n in (*base.shape, *index.shape)) or base.shape[0] < 2:
        return False
    computed = toposort([index], lambda n: n.src if n.op in o.ELEMENTWISE or n.op in o.MOVEMENT else ())
    return not any(n.op is o.IOTA or scanned_constant(n) is not None for n in computed)


def _cut(node: UOp, limits: FusionLimits) -> UOp:
    """Rewrite a SCATTER to use parts or bins."""
    base, index, value = node.src
    n, places = index.elements, base.shape[0]
    kind = dtypes.int32 if places < 1 << 31 else dtypes.int64
    index = index.cast(kind if index.dtype is dtypes.int32 else dtypes.int64)
    index = index.reshape((n,)).maximum(0).minimum(places - 1).cast(kind)
    value = value.broadcast((*node.src[1].shape, *base.shape[1:])).reshape((n, *base.shape[1:]))
    if not limits.few_rows:
        return _in_parts(node, index, value, CPU_PARTS)
    if math.prod(base.shape[1:]) > 1:
        return _in_bins(node, index, value, places)
    parts = min(n // places, PARTS * limits.few_rows, n // LEAST_PART)
    if node.arg.mode in ("add", "max") and parts >= LEAST_PARTS:
        return _in_parts(node, index, value, parts)
    return _in_bins(node, index, value.reshape((n,)), BINS * limits.few_rows)


# -- few positions -------------------------------------------------------------------------------------------
def _in_parts(node: UOp, index: UOp, value: UOp, parts: int) -> UOp:
    """Write each part of the indices to its own copy of the positions, then combine the copies."""
    base, n, (places, *rest) = node.src[0], index.elements, node.shape
    length = -(-n // parts)
    parts = -(-n // length)
    combine, fold = (o.ADD, o.SUM) if node.arg.mode == "add" else (o.MAX, o.AMAX)
    wide = node.dtype.accumulator
    nothing = const(identity(combine, wide).arg, wide)
    index = _padded(index, parts * length, const(0, index.dtype)).reshape((parts, length))
    value = _padded(value.cast(wide), parts * length, nothing).reshape((parts, length, *rest))
    first = (_counting(parts).cast(dtypes.int64) * places).reshape((parts, 1)).broadcast((parts, length))
    own = UOp(o.SCATTER, wide, (full((parts * places, *rest), nothing.arg, wide), first + index, value), node.arg)
    total = own.reshape((parts, places, *rest)).reduce(fold, (0,)).reshape(base.shape)
    return UOp(combine, wide, (base.cast(wide), total)).cast(node.dtype)


def _padded(x: UOp, size: int, filler: UOp) -> UOp:
    """Pad to `size` rows with a filler."""
    if x.shape[0] == size:
        return x
    shape = (size, *x.shape[1:])
    inside = (_counting(size) < x.shape[0]).reshape((size, *[1] * len(shape[1:]))).broadcast(shape)
    return inside.where(x.pad(((0, size - x.shape[0]), *[(0, 0)] * len(shape[1:]))), filler.broadcast(shape))


def _counting(n: int) -> UOp:
    return UOp(o.IOTA, dtypes.int32, (), Iota((n,)))


# -- many positions ------------------------------------------------------------------------------------------
def _in_bins(node: UOp, index: UOp, value: UOp, most: int) -> UOp:
    """Sort the indices into at most `most` bins, each of adjacent positions, and scatter bin by bin."""
    (n, *columns), places = value.shape, node.shape[0]
    base = node.src[0].reshape((places, *columns))
    least = -(-places // most)
    size = next((k for k in range(least, 2 * least) if places % k == 0), least)
    count = -(-places // size)
    index = index.contiguous()
    bins = (index // size).cast(dtypes.int32).contiguous() if size > 1 else index
    order = _order(bins, count)
    bins, index, value = _taken(bins, order), _taken(index, order), _taken(value, order)
    ends = _below(bins.contiguous(), _counting(count + 1)).contiguous()  # of bin i - 1, which is the start of bin i
    if node.arg.mode == "set" or columns and places > n:
        return UOp(o.SCATTER, node.dtype, (base, index, value, ends), node.arg).reshape(node.shape)
    # cut long bins into pieces: each `length` indices of one bin have a copy of its positions
    length = ROW_PIECE if columns else max(LEAST_PIECE, -(-n // count))
    pieces, before = count + -(-n // length), _counting(n) // length
    first = (_counting(count + 1) + ends // length).contiguous()              # first piece of each bin
    bin_of = (_below(first, _counting(pieces + 1) + 1) - 1).minimum(count - 1).contiguous()
    begins = ((_counting(pieces + 1) - bin_of) * length).maximum(_taken(ends, bin_of)).minimum(_taken(ends, bin_of + 1))
    wide, combine = node.dtype.accumulator, o.ADD if node.arg.mode == "add" else o.MAX
    nothing = full((pieces * size, *columns), identity(combine, wide).arg, wide)
    sources = nothing, index + before.cast(dtypes.int64) * size, value.cast(wide), begins.contiguous()
    own = UOp(o.SCATTER, wide, sources, node.arg)
    rest = (*([size] if size > 1 else []), *columns)
    base = base.cast(wide).pad(((0, count * size - places), *[(0, 0)] * len(columns)))
    sources = base.reshape((count, *rest)), bin_of.shrink(((0, pieces),)), own.reshape((pieces, *rest)), first
    total = UOp(o.SCATTER, wide, sources, node.arg).reshape((count * size, *columns))
    return total.shrink(((0, places), *[(0, n) for n in columns])).cast(node.dtype).reshape(node.shape)


def _taken(x: UOp, index: UOp) -> UOp:
    return UOp(o.GATHER, x.dtype, (x, index))


def _order(numbers: UOp, count: int) -> UOp:
    """The positions of numbers below `count` in sorted order; a stable radix sort."""
    n = numbers.elements
    bits = max(1, (count - 1).bit_length())
    width = -(-bits // -(-bits // DIGIT))
    order = _counting(n)
    for first in range(0, bits, width):
        digit = ((_taken(numbers, order) if first else numbers) >> first) & ((1 << width) - 1)
        sources = full((n,), 0, dtypes.int32), _places(digit, 1 << width), order
        order = UOp(o.SCATTER, dtypes.int32, sources, Scatter("permute"))
    return order


def _places(digits: UOp, count: int) -> UOp:
    """The position of each digit (below `count`) in sorted order: after all smaller digits, after equal ones of earlier
    blocks, and after equal ones before it in its block."""
    n = digits.elements
    blocks = -(-n // BLOCK)
    digits = _padded(digits, blocks * BLOCK, const(count, digits.dtype)).contiguous().reshape((blocks, BLOCK))
    pairs, each_of = (blocks, BLOCK, BLOCK), (blocks, count, BLOCK)
    own, other = digits.reshape((blocks, BLOCK, 1)).expand(pairs), digits.reshape((blocks, 1, BLOCK)).expand(pairs)
    at = _counting(BLOCK)
    earlier = (at.reshape((1, 1, BLOCK)).expand(pairs) < at.reshape((1, BLOCK, 1)).expand(pairs))
    rank = (own.eq(other) & earlier).cast(dtypes.int32).sum((2,)).reshape((blocks, BLOCK))
    each = _counting(count).reshape((1, count, 1)).expand(each_of)
    counts = digits.reshape((blocks, 1, BLOCK)).expand(each_of).eq(each).cast(dtypes.int32).sum((2,))
    running = counts.reshape((blocks, count)).permute((1, 0)).reshape((count * blocks,))
    running = UOp(o.SCAN, dtypes.int32, (running,), Scan(0, o.ADD))
    before = digits * blocks + _counting(blocks).reshape((blocks, 1)).expand((blocks, BLOCK)) - 1
    smaller = (before < 0).where(0, _taken(running, before))
    return (smaller + rank).reshape((blocks * BLOCK,)).shrink(((0, n),))


def _below(ordered: UOp, limits: UOp) -> UOp:
    """How many numbers are below each limit."""
    return passing_prefix(ordered, limits.shape, lambda number: number < limits)
