"""Read the same memory as another element type. In: a node and a type. Out: a node, lazily, on any device.

Between types of one size this is one BITCAST. Between sizes, words are split into parts or assembled from them with
shifts of unsigned integers, the lowest bits first (little-endian, as every supported processor is). Bits have no
gradient: a gradient through them is an error.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from glassgrad.base.errors import DTypeError, GradientError, ShapeError
from glassgrad.compiler.graph import DType, OwnGradient, UOp, const, dtypes, ops as o
from glassgrad.compiler.graph.gradient import reached_from
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.formulas.movement import counting

floats_were_reread = False                  # set by the first bitcast between floats: then gradients must be checked
WORDS = {word.itemsize: word for word in dtypes.uints}


def reread(x: UOp, dtype: DType) -> UOp:
    """Return the bits of x as elements of `dtype`; the last axis grows or shrinks with the size of an element.

    >>> from glassgrad.compiler.graph.uop import full
    >>> reread(full((2, 6), 1.0, dtypes.float32), dtypes.int8).shape
    (2, 24)
    """
    if dtype is x.dtype:
        return x
    made = _reread(x, dtype)
    if not x.dtype.kind == dtype.kind == "f":
        return made                      # integers have no gradient anyway; between floats there might be one
    global floats_were_reread
    floats_were_reread = True
    return own_gradient(made, (x,), _no_gradient)


def _reread(x: UOp, dtype: DType) -> UOp:
    given, wanted = x.dtype.itemsize, dtype.itemsize
    if given == wanted:
        return _as_values(_as_words(x), dtype) if dtypes.bool in (x.dtype, dtype) else x.bitcast(dtype)
    if not x.shape:
        raise DTypeError("a single number keeps its size under bitcast", given=_sizes(x.dtype, dtype),
                         expected="a last axis whose size can change, or two types of the same size",
                         fix="give it an axis first: x.reshape(1); or use cast to convert values")
    if wanted < given:
        return _as_values(_cut(_as_words(x), WORDS[wanted]), dtype)
    count, last = wanted // given, x.shape[-1]
    if last // count * count != last:
        raise ShapeError("the last axis does not divide into elements of this size",
                         given=f"shape {x.shape}, {_sizes(x.dtype, dtype)}",
                         expected=f"a last axis whose size is a multiple of {count}",
                         fix="cut the last axis to such a size, x[..., :size], or pad it")
    return _as_values(_join(_as_words(x), WORDS[wanted]), dtype)


def _no_gradient(g: UOp, y: UOp, x: UOp) -> tuple[None]:
    return (None,)


def refuse_bits(root: UOp, targets: Sequence[UOp]) -> None:
    """Raise if the gradient of one of `targets` would pass through a bitcast between floats. Data without a gradient
    may be read as bits."""
    for node in reached_from([root]):
        bits = node.op is o.DETACH and type(node.arg) is OwnGradient and node.arg.backward is _no_gradient
        if bits and not set(targets).isdisjoint(reached_from([node])):
            raise GradientError("bits have no gradient",
                                given=f"a gradient through bitcast from {node.src[1].dtype.name} to {node.dtype.name}",
                                expected="a value that changes smoothly with its input",
                                fix="use cast to convert values; or x.detach() before bitcast, where no gradient is "
                                     "meant")


def next_after(x: UOp, y: UOp) -> UOp:
    """The next representable number from x toward y, of the same float type: the bits of |x|, plus or minus 1."""
    word, sign = WORDS[x.dtype.itemsize], 1 << (x.dtype.bits - 1)
    bits = x.bitcast(word)
    grows = (x < y).eq(const(0.0, x.dtype) < x)                          # whether |x| grows
    stepped = grows.where(bits + 1, bits - 1)
    smallest = (y < 0.0).where(const(sign + 1, word), const(1, word))    # next to zero
    found = (bits & (sign - 1)).eq(0).where(smallest, stepped).bitcast(x.dtype)
    return x.eq(y).where(y, (x.ne(x) | y.ne(y)).where(x + y, found))


def _cut(x: UOp, part: DType) -> UOp:
    """(..., n) words -> (..., n * count) parts"""
    count = x.dtype.itemsize // part.itemsize
    parts = x.reshape((*x.shape, 1)) >> (counting(count, x.dtype) * part.bits)
    return parts.cast(part).reshape((*x.shape[:-1], x.shape[-1] * count))


def _join(x: UOp, word: DType) -> UOp:
    """(..., n * count) parts -> (..., n) words"""
    count = word.itemsize // x.dtype.itemsize
    shape = (*x.shape[:-1], x.shape[-1] // count)
    grouped = x.reshape((*shape, count)).cast(word)
    rows = tuple((0, n) for n in shape)
    parts = (grouped.shrink((*rows, (i, i + 1))) << (i * x.dtype.bits) for i in range(count))
    return functools.reduce(operator.or_, parts).reshape(shape)


def _as_words(x: UOp) -> UOp:
    word = WORDS[x.dtype.itemsize]
    return x.cast(word) if x.dtype is dtypes.bool else x.bitcast(word)


def _as_values(words: UOp, dtype: DType) -> UOp:
    return words.ne(0) if dtype is dtypes.bool else words.bitcast(dtype)


def _sizes(given: DType, wanted: DType) -> str:
    def size(dtype: DType) -> str:
        return f"{dtype.name} ({dtype.itemsize} byte{'s' * (dtype.itemsize > 1)})"
    return f"{size(given)} as {size(wanted)}"
