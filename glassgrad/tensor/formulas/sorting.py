"""Find the order of numbers, on nodes, for sort and topk. In: keys (rows, n). Out: indices (rows, n).

A key is an unsigned integer; keys have the order of the values: NaN last, -0.0 equal to 0.0, as in PyTorch. Short rows
are ordered by counting how many keys come before each (one kernel). Longer rows are ordered in blocks, which are then
merged: a binary search finds how many elements of another block are smaller. The longest rows take a radix sort, two
bits at a time: a running count of each digit (SCAN) gives the position of an element, to which a SCATTER moves it, and
equal keys keep their order. The digit's position is a scalar argument, so every pass runs the same two kernels.
"""

from __future__ import annotations

from typing import Any

from glassgrad.compiler.graph import Cell, DType, Scan, Scatter, UOp, const, dtypes, full, ops as o, upper_bound
from glassgrad.compiler.graph.binary_search import passing_prefix
from glassgrad.runtime.devices import Device
from glassgrad.tensor.formulas.bitcast import WORDS
from glassgrad.tensor.formulas.movement import cat, counting, pad_axis, part

SHORT = 64                 # rows of up to this length are ordered by counting
MERGED, WAYS = 4096, 4     # rows of up to this length are merge sorted, WAYS blocks at a time;
MERGED_BY_GROUPS = 1 << 18 # on a GPU, up to this length
FEW_BITS = 16              # longer rows, and keys that differ in at most this many bits, are radix sorted
FEW = 16                   # for k up to this, the largest k of a long row are found one by one
_FIELD = 21                # bits of a running count: three of them share an int64


def key_of(x: UOp, descending: bool = False) -> UOp:
    """Return unsigned integers in the order of x; equal where x is equal, the greatest for NaN.

    >>> key_of(const(1.5)).dtype, key_of(const(True)).dtype
    (dtypes.uint32, dtypes.uint8)
    """
    if x.dtype is dtypes.bool:
        x = x.cast(dtypes.uint8)
    if x.dtype.kind == "f" and x.dtype.bits < 32:
        x = x.cast(dtypes.float32)
    word = WORDS[x.dtype.itemsize]
    top = const(1 << (word.bits - 1), word)
    if x.dtype.kind == "u":
        key = x
    elif x.dtype.kind == "i":
        key = x.bitcast(word) ^ top
    else:
        bits = x.eq(0.0).where(0.0, x).bitcast(word)
        negative = (bits & top).ne(0)
        key = x.ne(x).where(const(word.max, word), negative.where(~bits, bits | top))
    return ~key if descending else key


def order_of(key: UOp, bits: int | None = None) -> UOp:
    """Return for each row of keys (rows, n) the indices that sort it (int32); equal keys keep their order.

    `bits` is how many low bits can differ, if fewer than all of them do."""
    rows, n = key.shape
    count = key.dtype.bits if bits is None else max(bits, 1)
    if upper_bound(n) <= 1 or not upper_bound(rows):
        return full(key.shape, 0, dtypes.int32)
    if upper_bound(n) <= SHORT:
        return _by_counting(key.contiguous())
    merges = isinstance(n, int) and n <= (MERGED_BY_GROUPS if _has_groups(key) else MERGED) and count > FEW_BITS
    by_word = (lambda word, _, order: _by_merging(word, order)) if merges else _by_digits
    low = by_word(key.cast(dtypes.uint32), min(count, 32), None)
    return low if count <= 32 else by_word((key >> 32).cast(dtypes.uint32), count - 32, low)


def _has_groups(x: UOp) -> bool:
    """Return whether groups of threads compute a node: then a pass over it takes as long as its launch, not as its
    work."""
    return bool(getattr(getattr(Device[x.device or Device.DEFAULT], "target", None), "groups", False))


def _linear(within: UOp, n: int) -> UOp:
    """Return indices within rows of n as a vector of linear indices."""
    rows = within.shape[0]
    start = (counting(rows, _index_dtype(rows * n)) * n).reshape((rows, 1))
    return (start + within).reshape((within.elements,))


def _index_dtype(elements: Any) -> DType:
    """Return the index type for this many elements."""
    return dtypes.int32 if upper_bound(elements) < 1 << 31 else dtypes.int64


def _moved_to(value: UOp, within: UOp) -> UOp:
    """Permute each row by a SCATTER: out[within[i]] = value[i]."""
    flat = value.reshape((value.elements,))
    src = full(flat.shape, 0, value.dtype), _linear(within, value.shape[1]), flat
    return UOp(o.SCATTER, value.dtype, src, Scatter("permute")).reshape(value.shape)


def _taken(value: UOp, within: UOp) -> UOp:
    """Pick from each row by a GATHER: out[i] = value[within[i]]."""
    at = _linear(within, value.shape[1])
    return UOp(o.GATHER, value.dtype, (value.reshape((value.elements,)), at)).reshape(within.shape)


def _by_counting(key: UOp) -> UOp:
    """Sort by counting: rank[i] is how many keys are smaller, or equal and earlier; then element i goes to its rank."""
    rows, n = key.shape
    mine, other, index = key.reshape((rows, n, 1)), key.reshape((rows, 1, n)), counting(n)
    earlier = index.reshape((1, 1, n)) < index.reshape((1, n, 1))
    before = (other < mine) | (other.eq(mine) & earlier)
    rank = before.cast(dtypes.int32).sum((2,)).reshape((rows, n))
    return _moved_to(index.broadcast((rows, n)), rank)


def _by_digits(key: UOp, bits: int, order: UOp | None) -> UOp:
    """Radix sort 32-bit keys, permuted by `order` first (None: as they are); equal keys keep their order."""
    rows, n = key.shape
    index = counting(n).broadcast((rows, n)) if order is None else order
    if order is not None:
        key = _taken(key, order)
    # key and index share a word: one SCATTER per pass
    packed = ((key.cast(dtypes.uint64) << 32) | index.cast(dtypes.uint64)).contiguous()
    pairs = n < 1 << _FIELD
    for first in range(0, bits, 2 if pairs else 1):
        shift = UOp(o.SCALAR, dtypes.uint64, (), Cell(32 + first))
        packed = _moved_to(packed, (_by_two_bits if pairs else _by_one_bit)(packed, shift, n))
    return (packed & 0xFFFFFFFF).cast(dtypes.int32)


def _by_merging(key: UOp, order: UOp | None) -> UOp:
    """Merge sort 32-bit keys, permuted by `order` first: short blocks by counting, then merged WAYS at a time."""
    rows, n = key.shape
    if order is not None:
        key = _taken(key, order)
    blocks = 1 << (-(-n // SHORT) - 1).bit_length()
    width = min(n // blocks + 1, SHORT)
    # pad with the greatest key to whole blocks, by at least one element, so that all lengths have the same nodes
    key = part(pad_axis(key, 1, 0, blocks + 1, key.dtype.max), 1, 0, blocks * width)
    # key and index share a word, so no two are equal
    packed = (key.cast(dtypes.uint64) << 32) | counting(blocks * width, dtypes.int64).cast(dtypes.uint64)
    packed = packed.contiguous().reshape((rows * blocks, width))
    mine, other = packed.reshape((rows * blocks, width, 1)), packed.reshape((rows * blocks, 1, width))
    packed = _moved_to(packed, (other < mine).cast(dtypes.int32).sum((2,)).reshape(packed.shape))
    while blocks > 1:
        ways = min(WAYS, blocks)
        packed, blocks = _merged(packed, ways), blocks // ways
    index = (packed.shrink(((0, rows), (0, n))) & 0xFFFFFFFF).cast(dtypes.int32)
    return index if order is None else _taken(order, index)


def _merged(blocks: UOp, ways: int) -> UOp:
    """Merge every `ways` adjacent sorted blocks: an element's position is its index in its own block plus the number of
    smaller elements in each other block."""
    count, width = blocks.shape
    block = counting(count, _index_dtype(count * width)).reshape((count, 1))
    first, place = block - block % ways, counting(width).broadcast((count, width))
    for step in range(1, ways):
        place = place + passing_prefix(blocks, blocks.shape, lambda read: read < blocks,
                                       row=first + (block + step) % ways)
    joined = (count // ways, ways * width)
    return _moved_to(blocks.reshape(joined), place.reshape(joined))


def _running(x: UOp) -> UOp:
    return UOp(o.SCAN, x.dtype, (x,), Scan(1, o.ADD))


def _totals(running: UOp) -> UOp:
    """Return the last of each row's running sums (rows, 1)."""
    rows, n = running.shape
    return running.shrink(((0, rows), (n - 1, n)))


def _by_one_bit(packed: UOp, shift: UOp, n: int) -> UOp:
    """Return each element's new index within its row, with elements whose bit is 0 first."""
    one = ((packed >> shift) & 1).ne(0)
    ones = _running(one.cast(dtypes.int32))
    return one.where((n - 1) - _totals(ones) + ones, counting(n) - ones)


def _by_two_bits(packed: UOp, shift: UOp, n: int) -> UOp:
    """Return each element's new index for a digit of two bits; the running counts of 0, 1 and 2 are three fields of one
    integer."""
    digit = ((packed >> shift) & 3).cast(dtypes.int64)
    field = digit * _FIELD
    counts = _running(digit.eq(3).where(0, const(1, dtypes.int64) << field))
    totals = _totals(counts)
    mask = (1 << _FIELD) - 1

    def part(x: UOp, number: int) -> UOp:
        return (x >> (number * _FIELD)) & mask

    index = counting(n, dtypes.int64)
    seen, below = [part(counts, d) for d in range(3)], [part(totals, d) for d in range(3)]
    threes = index - seen[0] - seen[1] - seen[2] + below[0] + below[1] + below[2]
    twos, ones = below[0] + below[1] + seen[2] - 1, below[0] + seen[1] - 1
    return digit.eq(0).where(seen[0] - 1, digit.eq(1).where(ones, digit.eq(2).where(twos, threes)))


# -- the first k of many -------------------------------------------------------------------------------------
def few_largest_of(key: UOp, k: int) -> UOp:
    """Return the indices of each row's k largest 32-bit keys, the largest first (rows, k), int32: one pass over the row
    each.

    Key and index share a word, which is larger for an earlier index: each pass finds the largest word below that of the
    last pass."""
    rows, n = key.shape
    last = (1 << 32) - 1
    packed = (key.cast(dtypes.uint64) << 32) | (last - counting(n, dtypes.int64)).cast(dtypes.uint64)
    found = [packed.reduce(o.AMAX, (1,))]
    while len(found) < k:
        found.append((packed < found[-1]).where(packed, 0).reduce(o.AMAX, (1,)))
    return (last - (cat(found, 1) & last).cast(dtypes.int64)).cast(dtypes.int32)


def kth_largest_of(key: UOp, k: Any) -> UOp:
    """Return the k-th largest key of each row (rows, 1); k is a number, or one for each row (rows, 1).

    The key is found bit by bit, from the top: a bit belongs to it if at least k keys reach the value with that bit set.
    (A GPU finds two bits at once.) So it takes as many passes over a row as a key has bits, whereas a sort moves every
    element."""
    rows, n = key.shape
    key, word = key.contiguous(), key.dtype
    limit = full((rows, 1), 0, word)
    raised, width = (_by_three_counts, 2) if _has_groups(key) and upper_bound(n) < 1 << _FIELD else (_by_one_count, 1)
    for bit in range(word.bits - width, -1, -width):
        limit = raised(key, limit, UOp(o.SCALAR, word, (), Cell(1 << bit)), k).contiguous()
    return limit


def largest_of(key: UOp, k: int) -> UOp:
    """Return the indices of each row's k largest keys, in ascending order of index (rows, k), int32.

    All keys above the k-th largest are taken, and the first of those equal to it; running counts give their
    positions."""
    rows, n = key.shape
    key = key.contiguous()
    limit = kth_largest_of(key, k)
    above, level = limit < key, key.eq(limit)
    left = k - above.cast(dtypes.int32).sum((1,)).contiguous()      # how many of the equal ones are taken
    # both running counts share an integer: the count of keys above is its high half
    half, count = (16, dtypes.int32) if upper_bound(n) < 1 << 15 else (32, dtypes.int64)
    counts = _running((above.cast(count) << half) | level.cast(count))

    def before(reached: UOp) -> UOp:
        return (reached >> half) + (reached & ((1 << half) - 1)).minimum(left.cast(count)) < wanted
    wanted = (counting(k, count) + 1).reshape((1, k)).broadcast((rows, k))
    return passing_prefix(counts, (rows, k), before, row=counting(rows, _index_dtype(rows * n)).reshape((rows, 1)))


def _by_one_count(key: UOp, limit: UOp, bit: UOp, k: Any) -> UOp:
    """Return the limit with a bit added, if at least k keys of the row reach that."""
    tried = (limit | bit).contiguous()
    reach = (key < tried).logical_not().cast(dtypes.int32).sum((1,))
    return (reach < k).where(limit, tried)


def _by_three_counts(key: UOp, limit: UOp, bit: UOp, k: Any) -> UOp:
    """Return the limit with a bit, the next bit, both or none added: the largest that at least k keys of the row reach.
    The keys that reach each are counted in fields of one number."""
    digit = full(limit.shape, 0, key.dtype)
    reach = [(key < limit + bit * times).logical_not().cast(dtypes.int64) for times in (1, 2, 3)]
    counts = (reach[0] | (reach[1] << _FIELD) | (reach[2] << 2 * _FIELD)).sum((1,))
    for place in range(3):
        count = (counts >> place * _FIELD) & ((1 << _FIELD) - 1)
        digit = (count < k).where(digit, place + 1)
    return limit + bit * digit
