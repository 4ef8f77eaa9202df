"""Interpret a graph with NumPy: the reference for its meaning. In: UOps and arrays for their leaves. Out: arrays. Does
not know kernels.

Every element type has an array type that holds its values: its own; but bfloat16 and the fp8 types, which NumPy lacks,
are held as float32 and rounded to their grid after every op. `to_storage` and `from_storage` convert between those
values and the bits in memory. Arithmetic on floats narrower than float32 is done in float32 and rounded once, for
reductions at their end. NumPy is loaded when a function here first runs.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, identity, ops as o
from glassgrad.compiler.graph.dtype import DType, convert, dtypes, float_of_bits
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.node import concrete, toposort
from glassgrad.compiler.graph.ops import ELEMENTWISE, REDUCE, Op
from glassgrad.compiler.graph.symbolic import value_of

Array = Any    # numpy.ndarray; this file does not load NumPy

_AXIS_BY_AXIS = ELEMENTWISE | {o.PAD, o.UNWINDOW}    # ops that preserve constancy along axes other than their own


def interpret(roots: Sequence[UOp], values: Mapping[UOp, Array]) -> list[Array]:
    """Compute the values of the roots. `values` has arrays for the leaves, and may have other nodes' values too.
    Symbolic sizes are those of the variables' values.

    >>> import numpy as np
    >>> from glassgrad.compiler.graph.uop import const
    >>> x = const(3.0)
    >>> interpret([x * x + 1.0, x < 2.0], {})
    [array(10., dtype=float32), array(False)]
    """
    import numpy as np
    if any(r.symbolic for r in roots):
        plain = concrete(roots, value_of)
        roots, values = [plain[r] for r in roots], {plain.get(node, node): a for node, a in values.items()}
    roots = written_out(roots)
    order = toposort(roots)
    needed = set(roots)
    for node in reversed(order):
        if node in needed and node not in values:
            needed.update(node.src)
    uses = Counter(roots)
    for node in needed:
        if node not in values:
            uses.update(node.src)
    inside = {node: _large_parts(node, uses, values) for node in needed if node.op in REDUCE and node not in values}
    within = {part for parts in inside.values() for part in parts}
    done: dict[UOp, Array] = {}
    with np.errstate(all="ignore"):
        for node in order:
            if node not in needed or node in within:
                continue
            if node in values:
                result = np.asarray(values[node])
            else:
                parts = inside.get(node)
                sources = [done[s] for s in node.src if s not in within]
                result = _in_pieces(np, node, parts, done) if parts else _value(np, node, sources)
                for s in [s for n in (node, *(parts or ())) for s in n.src if s not in within]:
                    uses[s] -= 1
                    if not uses[s]:                    # not needed any more: keep memory small for long graphs
                        del done[s]
            if result.shape != node.shape or result.dtype != array_type(node.dtype):
                raise Bug(f"{node} has the value of an array of {result.dtype}{list(result.shape)}")
            done[node] = result
    return [done[r] for r in roots]


# -- reductions of sources too large to materialize: the products of a matrix product of 2048 are 32 GiB ---------
_LARGE = 1 << 20    # elements: pieces of this size also fit the cache


def _large_parts(node: UOp, uses: Mapping[UOp, int], values: Mapping[UOp, Array]) -> list[UOp]:
    """The large elementwise nodes under a reduction that nothing else needs, sources first; empty if the reduction
    keeps no axis to split along."""
    if all(n == 1 for n in node.shape):
        return []
    found, waiting = [], [node.src[0]]
    while waiting:
        part = waiting.pop()
        if part.op in ELEMENTWISE and part.size > _LARGE and uses[part] == 1 and part not in values:
            found.append(part)
            waiting.extend(part.src)
    return found[::-1]


def _in_pieces(np: Any, node: UOp, parts: Sequence[UOp], done: Mapping[UOp, Array]) -> Array:
    """Reduce a source that is too large to materialize: a contraction by a matrix product; otherwise split along the
    longest axis that is kept. The sums are the same, except that NumPy may add in another order."""
    product = _as_product(np, node, parts, done)
    if product is not None:
        return product
    axis = max(range(len(node.shape)), key=node.shape.__getitem__)
    count = node.shape[axis]
    step = max(1, count * _LARGE // node.src[0].size)
    result = np.empty(node.shape, array_type(node.dtype))
    for start in range(0, count, step):
        cut = (slice(None),) * axis + (slice(start, start + step),)
        here: dict[UOp, Array] = {}
        for part in parts:
            here[part] = _value(np, part, [here[s] if s in here else done[s][cut if s.shape else ()]
                                           for s in part.src])
        result[cut] = evaluate(np, node, [here[node.src[0]]])
    return result


def _as_product(np: Any, node: UOp, parts: Sequence[UOp], done: Mapping[UOp, Array]) -> Array | None:
    """Compute a contraction whose factors are smaller than the products; None for other reductions."""
    if node.op is not o.SUM or node.dtype not in (dtypes.float32, dtypes.float64) or parts[-1].op is not o.MUL:
        return None
    products, factors = {parts[-1]}, list[UOp]()
    for part in reversed(parts):                       # readers first: a product of products is one product
        for s in part.src if part in products else ():
            (products.add if s.op is o.MUL and s in parts else factors.append)(s)
    here = dict(done)
    for part in [part for part in parts if part not in products]:
        sources = [here[s] for s in part.src]
        if math.prod(n for n, used in zip(part.shape, _changing(part, sources)) if used) > node.src[0].size // 4:
            return None
        here[part] = _value(np, part, sources)
    return sum_of_products(np, [here[f] for f in factors], node.src[0].shape, node.arg.axes)


def _value(np: Any, node: UOp, sources: list[Array]) -> Array:
    """A node's value; elementwise ops are computed once along axes on which no source changes."""
    if node.op not in _AXIS_BY_AXIS:
        return evaluate(np, node, sources)
    full = np.broadcast_shapes(*(x.shape for x in sources))
    axes = _changing(node, sources)
    if all(used or n <= 1 for used, n in zip(axes, full)):
        return evaluate(np, node, sources)
    result = evaluate(np, node, [collapsed(x, axes) for x in sources])
    return np.broadcast_to(result, [n if used else whole for n, used, whole in zip(result.shape, axes, full)])


def _changing(node: UOp, sources: list[Array]) -> tuple[bool, ...]:
    """The axes along which some source changes, or the node inserts zeros."""
    working = [a for a, ends in enumerate(node.arg.padding) if any(ends)] if node.op is o.PAD else \
        [node.arg.axis, len(node.shape) - 1] if node.op is o.UNWINDOW else []
    along = [varying_axes(x) for x in sources if x.shape]
    return tuple(a in working or any(axes[a] for axes in along) for a in range(len(node.shape)))


def evaluate(np: Any, node: UOp, sources: list[Array]) -> Array:
    """A node's value from its sources' values; the loop interpreter passes arrays that broadcast."""
    op = node.op
    if op in ELEMENTWISE and op.meaning is not None:
        wide = [_widen(np, x, s.dtype) for x, s in zip(sources, node.src)]
        return _rounded(np, op.meaning(np, *wide), node.dtype)
    if op in REDUCE:
        return _reduce(np, node, sources[0])
    rule = _EVALUATE.get(op)
    if rule is None:
        raise Bug(f"the interpreter needs a value for {node}" if op in (o.BUFFER, o.PARAM)
                  else f"{op} means nothing outside a kernel")
    return rule(np, node, *sources)


def _widen(np: Any, x: Array, dtype: DType) -> Array:
    return x.astype(np.float32) if dtype is dtypes.float16 else x


def _rounded(np: Any, x: Array, dtype: DType) -> Array:
    """Convert a result to an array of its type: rounded if the arithmetic was wider."""
    x = np.asarray(x)
    if dtype is dtypes.float16:
        return x.astype(np.float16)
    return x if dtype.in_numpy else from_storage(to_storage(x, dtype), dtype)


_EVALUATE: dict[Op, Callable[..., Array]] = {
    o.CONST: lambda np, node: np.asarray(node.arg, array_type(node.dtype)),
    o.SCALAR: lambda np, node: np.asarray(convert(node.arg.value, node.dtype), array_type(node.dtype)),
    o.LENGTH: lambda np, node: np.asarray(node.arg.length, array_type(node.dtype)),
    o.IOTA: lambda np, node: np.arange(node.size).astype(array_type(node.dtype)),
    o.CONTIGUOUS: lambda np, node, x: x,
    o.COPY: lambda np, node, x: x,
    o.DETACH: lambda np, node, x, *others: x,          # the others matter to gradients only
    o.CAST: lambda np, node, x: cast_array(x, node.dtype),
    o.BITCAST: lambda np, node, x: from_storage(
        to_storage(x, node.src[0].dtype).view(storage_type(node.dtype)), node.dtype),
    o.RESHAPE: lambda np, node, x: x.reshape(node.arg.shape),
    o.PERMUTE: lambda np, node, x: x.transpose(node.arg.order),
    o.EXPAND: lambda np, node, x: np.broadcast_to(x, node.arg.shape),
    o.PAD: lambda np, node, x: np.pad(x, node.arg.padding),
    o.SHRINK: lambda np, node, x: x[tuple(slice(start, stop) for start, stop in node.arg.bounds)],
    o.FLIP: lambda np, node, x: np.flip(x, node.arg.axes),
}


def _means(*ops: Op) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    def declare(evaluate: Callable[..., Array]) -> Callable[..., Array]:
        _EVALUATE.update(dict.fromkeys(ops, evaluate))
        return evaluate
    return declare


# -- conversion ----------------------------------------------------------------------------------------------
def array_type(dtype: DType) -> Any:
    """The NumPy type of arrays that hold values of `dtype`."""
    import numpy as np
    return np.dtype(dtype.name if dtype.in_numpy else np.float32)


def storage_type(dtype: DType) -> Any:
    """The NumPy type of arrays that hold the bits of `dtype` as in memory."""
    import numpy as np
    return np.dtype(dtype.format)


def cast_array(x: Array, dtype: DType) -> Array:
    """Convert values to another type, as PyTorch on x86 does (`dtype.convert` does so for a single value)."""
    import numpy as np
    with np.errstate(all="ignore"):
        if dtype.kind == "b":
            return np.asarray(x != 0)
        if dtype.kind == "f":
            small = dtype.bits < 32
            return _rounded(np, x.astype(np.float32 if small else dtype.name), dtype)
        return _truncate(np, x.astype(np.float64), dtype) if x.dtype.kind == "f" else x.astype(dtype.name)


def _truncate(np: Any, x: Array, dtype: DType) -> Array:
    lowest = -(1 << 31) if dtype.bits < 32 or dtype is dtypes.int32 else -(1 << 63)
    fits = (x > lowest - 1) & (x < -lowest)            # false for NaN
    whole = np.where(fits, np.where(fits, x, 0.0).astype(np.int64), np.int64(lowest))
    if dtype is dtypes.uint64:
        above = (x >= 2.0 ** 63) & (x < 2.0 ** 64)
        upper = np.where(above, x - 2.0 ** 63, 0.0).astype(np.uint64) + np.uint64(1 << 63)
        return np.where(x >= 2.0 ** 63, np.where(above, upper, np.uint64(0)), whole.astype(np.uint64))
    return whole.astype(dtype.name)


# -- conversion to and from the bits in memory ---------------------------------------------------------------
def to_storage(values: Array, dtype: DType) -> Array:
    """Convert values to their form in memory: the array itself; for a type that NumPy lacks, codes, rounded to nearest
    even.

    >>> import numpy as np
    >>> [hex(code) for code in to_storage(np.array([1.0, 3.14159], np.float32), dtypes.bfloat16)]
    ['0x3f80', '0x4049']
    """
    import numpy as np
    values = np.asarray(values)
    if dtype.in_numpy:
        return values.astype(dtype.name, copy=False)
    values = values.astype(np.float32, copy=False)
    if dtype is dtypes.bfloat16:
        bits = values.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.asarray(np.where(np.isnan(values), np.uint32(dtype.nan), rounded), np.uint16)
    mantissa, smallest = dtype.mantissa, 1 - dtype.bias
    size = np.abs(np.where(np.isfinite(values), values, np.float32(0)).astype(np.float64))
    power = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, smallest), smallest)
    codes = np.rint(np.ldexp(size, mantissa - power)).astype(np.int64) + ((power - smallest) << mantissa)
    codes = np.where(np.isinf(values), dtype.overflow, np.minimum(codes, dtype.overflow))
    codes = np.where(np.isnan(values), dtype.nan, codes)
    negative = np.signbit(values) if dtype.has_negative_zero else np.signbit(values) & (codes > 0)
    return np.asarray(codes | negative << 7, np.uint8)


def from_storage(codes: Array | bytes | memoryview, dtype: DType) -> Array:
    """Convert memory contents to values: an array of codes, or raw bytes (one axis).

    >>> from_storage(bytes([0x49, 0x40]), dtypes.bfloat16)
    array([3.140625], dtype=float32)
    """
    import numpy as np
    if not isinstance(codes, np.ndarray):
        codes = np.frombuffer(codes, storage_type(dtype))
    if dtype is dtypes.bfloat16:
        return np.asarray(codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return codes if dtype.in_numpy else np.asarray(_fp8_values(dtype)[codes])


@functools.cache
def _fp8_values(dtype: DType) -> Array:
    """All 256 values of an fp8 type, by code."""
    import numpy as np
    return np.array([float_of_bits(code, dtype) for code in range(256)], np.float32)


# -- reductions and scans ------------------------------------------------------------------------------------
def _reduce(np: Any, node: UOp, x: Array) -> Array:
    axes = node.arg.axes
    if any(x.shape[a] == 0 for a in axes):             # an empty reduction gives the identity
        assert node.op.combine is not None
        return np.full(node.shape, identity(node.op.combine, node.dtype).arg, array_type(node.dtype))
    assert node.op.meaning is not None
    return _rounded(np, node.op.meaning(np, _widen(np, x, node.dtype), axes), node.dtype)


@_means(o.SCAN)
def _(np: Any, node: UOp, x: Array) -> Array:
    combine = getattr(np, node.arg.combine.ufunc)
    wide = _widen(np, x, node.dtype)
    return _rounded(np, combine.accumulate(wide, axis=node.arg.axis, dtype=wide.dtype), node.dtype)


# -- movement ------------------------------------------------------------------------------------------------
@_means(o.WINDOW)
def _(np: Any, node: UOp, x: Array) -> Array:
    axis, size, stride, dilation = node.arg
    span = (size - 1) * dilation + 1
    if not 0 < span <= x.shape[axis]:
        return np.zeros(node.shape, x.dtype)           # no window fits, or each is empty
    windows = np.lib.stride_tricks.sliding_window_view(x, span, axis)      # a view: no window is copied
    return windows[(slice(None),) * axis + (slice(None, None, stride),)][..., ::dilation]


@_means(o.UNWINDOW)
def _(np: Any, node: UOp, x: Array) -> Array:
    axis, stride, dilation, length = node.arg
    out = np.zeros((*x.shape[:axis], length, *x.shape[axis + 1:]), x.dtype)
    source, target = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
    for k in range(x.shape[-1]):                       # x[o, k] goes to index o*stride + k*dilation, if in bounds
        start = k * dilation
        count = min(len(source), max(-(-(length - start) // stride), 0))
        target[start:start + count * stride:stride, ..., k] = source[:count, ..., k]
    return out


# -- ops that cannot be expressed by the others ----------------------------------------------------------------
@_means(o.GATHER)
def _(np: Any, node: UOp, rows: Array, index: Array) -> Array:
    if not len(rows):
        return np.zeros(node.shape, rows.dtype)
    return rows[np.clip(index, 0, len(rows) - 1)]


@_means(o.SCATTER)
def _(np: Any, node: UOp, base: Array, index: Array, value: Array, starts: Array | None = None) -> Array:
    if not len(base):
        return base
    out = _widen(np, base, node.dtype).copy()
    index = np.clip(index, 0, len(base) - 1).ravel()
    value = np.broadcast_to(_widen(np, value, node.dtype), node.src[1].shape + base.shape[1:])
    value = value.reshape(index.shape + base.shape[1:])
    if node.arg.mode in ("set", "permute"):            # of several values for one index, the last one stays
        out[index] = value
    else:
        {"add": np.add, "max": np.maximum}[node.arg.mode].at(out, index, value)
    return _rounded(np, out, node.dtype)


@_means(o.RECURRENCE)
def _(np: Any, node: UOp, *sources: Array) -> Array:
    what = node.arg
    last, params = what.states + what.sequences, {n for r in what.results for n in r.toposort() if n.op is o.PARAM}
    count = node.src[what.states].shape[0]
    shape = node.shape[1:] if not what.last else node.shape
    states, found = list(sources[:what.states]), np.zeros((count, *shape), array_type(node.dtype))
    for t in range(count)[::-1 if what.backwards else 1]:
        given = [*states, *[x[t] for x in sources[what.states:last]], *sources[last:]]
        made = interpret(what.results, {p: given[p.arg.slot] for p in params})
        states, found[t] = made[:what.states], made[what.result]
    return found[0 if what.backwards else -1] if what.last else found


@_means(o.RANDOM)
def _(np: Any, node: UOp, seed: Array, stream: Array) -> Array:
    count = np.arange(node.size, dtype=np.uint64) & np.uint64(0xFFFFFFFF)
    first, second = philox(count, stream, seed)
    return (first | second << np.uint64(32)).reshape(node.shape)


def philox(low: Array, high: Array, key: Array) -> tuple[Array, Array]:
    """Philox2x32 of ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): two random 32-bit
    words, as uint64, for each counter (low, high) under a key."""
    import numpy as np
    multiplier, weyl, mask = np.uint64(0xD256D193), np.uint64(0x9E3779B9), np.uint64(0xFFFFFFFF)
    low, high, key = (np.asarray(word).astype(np.uint64) & mask for word in (low, high, key))
    for _ in range(10):
        product = low * multiplier
        low, high = (product >> np.uint64(32)) ^ key ^ high, product & mask
        key = (key + weyl) & mask
    return low, high


# -- large sums of products, by NumPy's matrix product ------------------------------------------------------
# Term by term, one convolution would be billions of elements. An array has stride 0 along axes that were expanded, so
# arrays themselves tell `numpy.einsum` which axes a factor has. Sums are computed in float64, closer to the truth than
# any order of float32 additions; if a product of float32 might be infinite, the caller must go term by term.

def varying_axes(array: Array) -> tuple[bool, ...]:
    """The axes along which an array changes, as far as its strides tell.

    >>> import numpy as np
    >>> varying_axes(np.broadcast_to(np.arange(3.0)[:, None], (3, 4)))
    (True, False)
    """
    return tuple(stride != 0 and n > 1 for n, stride in zip(array.shape, array.strides))


def collapsed(array: Array, axes: Sequence[bool]) -> Array:
    """The array cut to one element along every axis that is False in `axes`; a scalar is unchanged."""
    return array[tuple(slice(None) if used else slice(1) for used in axes)] if array.shape else array


def sum_of_products(np: Any, factors: Sequence[Array], shape: tuple[int, ...], axes: Sequence[int]) -> Array | None:
    """The product of float arrays that broadcast to `shape`, summed over `axes`, which keep size 1. None if it might
    overflow on the way.

    >>> import numpy as np
    >>> x, y = np.ones((2, 1, 3), np.float32), np.full((1, 4, 3), 0.5, np.float32)
    >>> sum_of_products(np, [x, y], (2, 4, 3), [2])[:, :, 0].tolist()
    [[1.5, 1.5, 1.5, 1.5], [1.5, 1.5, 1.5, 1.5]]
    """
    factors = [np.broadcast_to(f, shape) for f in factors]
    largest = math.prod(float(np.max(np.abs(collapsed(f, varying_axes(f))), initial=1.0)) for f in factors)
    if not largest * math.prod(shape[a] for a in axes) < np.finfo(factors[0].dtype).max:     # false if it is NaN, too
        return None
    operands: list[Any] = []                   # for each factor, an array without repeated elements, and its axes
    for factor in factors:
        own = [a for a, used in enumerate(varying_axes(factor)) if used]
        operands += [collapsed(factor, varying_axes(factor)).reshape([shape[a] for a in own]).astype(np.float64), own]
    found = {a for own in operands[1::2] for a in own}
    kept = [a for a in range(len(shape)) if a in found and a not in axes]
    total = np.einsum(*operands, kept, optimize=True) * math.prod(shape[a] for a in axes if a not in found)
    result = total.reshape([n if a in kept else 1 for a, n in enumerate(shape)]).astype(factors[0].dtype)
    return np.broadcast_to(result, [1 if a in axes else n for a, n in enumerate(shape)])
