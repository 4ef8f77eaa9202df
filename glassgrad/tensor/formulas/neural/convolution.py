"""Take windows over the last axes, and convolve: windows, then a contraction. In, out: UOps (batch, channels,
...space).

Making windows copies nothing. A transposed convolution is written with the adjoint of the windows, so that it is one
contraction too. Does not know tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o, promote
from glassgrad.tensor.autograd.autocast import in_autocast_dtype
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.broadcast import whole
from glassgrad.tensor.formulas import add, counting, pad_constant, sum_dtype


class Windows(NamedTuple):
    """Windows of a size over the last axes. Along each axis, `stride` is the distance of windows and `dilation` that of
    taps."""
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def side_by_side(self) -> bool:
        return self.size == self.stride and all(d == 1 for d in self.dilation)

    def taps(self, seen: UOp) -> tuple[int, ...]:
        """Return the axes of the window in `seen`: the last ones."""
        return tuple(range(len(seen.shape) - self.rank, len(seen.shape)))

    def seen(self, x: UOp) -> UOp:
        """Take the windows: (.., s1, s2) becomes (.., o1, o2, k1, k2), where the last axes are the window."""
        first = len(x.shape) - self.rank
        for i in range(self.rank):
            x = x.window(first + i, self.size[i], self.stride[i], self.dilation[i])
        return x

    def spread(self, value: UOp, x: UOp) -> UOp:
        """Spread values per window of x, (.., o1, o2, k1, k2), to (.., s1, s2, k1, k2): for element s and tap k, the
        value of the window that has s as its tap k, or 0 if there is none."""
        first = len(value.shape) - 2 * self.rank
        tap = first + self.rank
        for i in range(self.rank):           # UNWINDOW takes the last axis as the taps
            value = value.permute((*range(tap), *range(tap + 1, first + 2 * self.rank), tap))
            value = value.unwindow(first + i, self.stride[i], self.dilation[i], x.shape[first + i])
        return value


@dataclass(frozen=True)
class FirstTakesAll:
    """The gradient of a maximum over windows: all of it goes to the first element that is the maximum, as in PyTorch.

    x is the windows themselves if they are side by side, else the input that they are taken from."""
    windows: Windows

    def __call__(self, g: UOp, out: UOp, x: UOp) -> tuple[UOp]:
        windows = self.windows
        seen = (x if windows.side_by_side else windows.seen(x)).detach()
        taps, count = windows.taps(seen), math.prod(windows.size)
        lead = (1,) * (len(seen.shape) - windows.rank)
        kind = dtypes.int32 if count > dtypes.uint8.max else dtypes.uint8      # the type in which taps are stored
        number = (counting(count, kind) + 1).reshape((*lead, *windows.size))           # of the taps: 1, 2, .. count
        reached = seen.eq(seen.reduce(o.AMAX, taps)) | seen.ne(seen)
        first = reached.where(number, count).reduce(o.AMIN, taps)
        mine = g.reshape((*g.shape, *(1,) * windows.rank))
        if windows.side_by_side:
            first = first.contiguous()           # stores a byte per window instead of a gradient per element
            return (first.eq(number).where(mine, 0),)
        first, mine = (windows.spread(node.expand(seen.shape), x) for node in (first, mine))   # no tap has number 0
        return (first.eq(number).where(mine, 0).sum(taps).reshape(x.shape),)


def _given(value: Any, rank: int) -> list[int | None]:
    """Return the integers of a sequence, or one integer for all axes; None for what is not an integer."""
    one = whole(value)
    return [one] * rank if one is not None else [whole(n) for n in value] if isinstance(value, (tuple, list)) else []


def each(value: Any, rank: int, what: str, least: int = 1) -> tuple[int, ...]:
    """Return one number per space axis, from one number or a sequence."""
    sizes = _given(value, rank)
    if not rank or len(sizes) != rank or any(n is None or n < least for n in sizes):
        raise InputError(f"{what} does not fit the space axes", given=f"{what}={value!r}",
                         expected=f"an integer of {least} or more, or {rank or 2} of them",
                         fix=f"write {what}={least}, for example")
    return tuple(sizes)  # type: ignore[arg-type]


def space_padding(padding: Any, rank: int) -> list[tuple[int, int]]:
    """Return padding as (before, after) per space axis, from one int, an int per axis, or two per axis, from the last
    axis backward."""
    given = _given(padding, rank)
    amounts = [n for n in given if n is not None]
    if len(amounts) == 2 * rank:
        pairs = [(amounts[i], amounts[i + 1]) for i in range(0, 2 * rank, 2)][::-1]
    else:
        pairs = [(p, p) for p in amounts]
    if len(pairs) != rank or len(amounts) != len(given):
        raise InputError("the padding does not fit the space axes", given=f"padding={padding!r}",
                         expected=f"an int, {rank} ints, or {2 * rank} ints from the last axis backward",
                         fix="write padding=1, for example")
    return pairs


def padding_in_numbers(padding: Any, kernel: Sequence[int], stride: Any, dilation: Any) -> Any:
    """Return the padding "same" or "valid" as numbers, from the last axis backward; numbers are returned as they are.

    >>> padding_in_numbers("same", (3, 4), 1, 1)
    (1, 2, 1, 1)
    """
    if not isinstance(padding, str):
        return padding
    if padding not in ("same", "valid"):
        raise InputError("there is no such padding", given=f"padding={padding!r}",
                         expected='a number, "same" or "valid"', fix="check the spelling")
    strides, apart = each(stride, len(kernel), "stride"), each(dilation, len(kernel), "dilation")
    if padding == "same" and set(strides) != {1}:
        raise InputError('padding="same" keeps the size only without strides', given=f"stride={strides}",
                         expected="stride=1", fix="write the padding as a number")
    totals = [d * (k - 1) if padding == "same" else 0 for d, k in zip(apart, kernel)]
    return tuple(side for total in reversed(totals) for side in (total // 2, total - total // 2))


def refuse_large_windows(what: str, space: Sequence[Any], pairs: list[tuple[int, int]], size: Sequence[int],
                         dilation: Sequence[int]) -> None:
    """Raise if a window does not fit into the padded input."""
    for n, (before, after), k, d in zip(space, pairs, size, dilation):
        if n + before + after < d * (k - 1) + 1:
            raise ShapeError(f"the window of {what} is larger than the padded input",
                             given=f"a window of {tuple(size)} (dilation {tuple(dilation)}) on {tuple(space)} "
                                   f"padded by {pairs}",
                             expected="a window that fits", fix="pad more, or use a smaller kernel")


def _contracted(x: UOp, w: UOp, out: DType) -> UOp:
    """Multiply (batch, group, in, ...space, ...kernel) by (group, out, in, ...kernel), and sum over in and kernel."""
    rank = len(w.shape) - 3
    x = x.permute((0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)))    # (.., ...space, in, ...kernel)
    x = x.reshape((*x.shape[:2], 1, *x.shape[2:]))
    w = w.reshape((1, *w.shape[:2], *(1,) * rank, *w.shape[2:]))
    product = x * w
    result = product.sum(range(3 + rank, len(product.shape))).cast(out)
    return result.reshape((x.shape[0], w.shape[1] * w.shape[2], *x.shape[3:3 + rank]))


def with_bias(x: UOp, bias: UOp | None) -> UOp:
    """Add a number for each channel to (batch, channels, ...space)."""
    rank = len(x.shape) - 2
    return x if bias is None else add(x, in_autocast_dtype(bias).reshape((1, bias.elements) + (1,) * rank))


@dataclass(frozen=True)
class ConvolvedGradient:
    """The gradients of a transposed convolution: that of its input is the convolution of the incoming gradient, that of
    its weight the windows of the incoming gradient times the input. The chain rule alone would sum each tap by itself:
    10 times slower."""
    windows: Windows
    padding: tuple[int, ...]

    def __call__(self, g: UOp, out: UOp, x: UOp, w: UOp) -> tuple[UOp, UOp]:
        rank, space = self.windows.rank, x.shape[3:]
        seen = self.windows.seen(pad_constant(g.cast(x.dtype), [(0, 0), (0, 0), *((p, p) for p in self.padding)]))
        bounds = [(0, n) for n in seen.shape]
        bounds[2:2 + rank] = [(0, n) for n in space]              # output_padding may add windows
        seen = seen.shrink(bounds).reshape((*x.shape[:2], w.shape[2], *space, *w.shape[3:]))
        by_input = _contracted(seen, w, x.dtype).reshape(x.shape)
        spread = x.reshape((*x.shape[:3], 1, *space, *(1,) * rank))          # (batch, group, in, out, ...space, ..)
        product = spread * seen.reshape((*seen.shape[:2], 1, *seen.shape[2:]))
        by_weight = product.sum((0, *range(4, 4 + rank))).reshape(w.shape)
        return by_input, by_weight


def _in_one_dtype(x: UOp, w: UOp, groups: int, dtype: DType | None, transposed: bool = False) -> tuple[UOp, UOp, DType]:
    """Check the input and the weight; return them in the type to sum in, and the type of the result."""
    x, w = in_autocast_dtype(x), in_autocast_dtype(w)
    rank, (first, second) = len(w.shape) - 2, ("in", "out") if transposed else ("out", "in")
    if rank < 1 or len(x.shape) != rank + 2 or groups < 1 or w.shape[0] % groups or \
            x.shape[1] != (w.shape[0] if transposed else groups * w.shape[1]):
        raise ShapeError(f"the weight does not fit the input of this {'transposed ' * transposed}convolution",
                         given=f"input {x.shape}, weight {w.shape}, groups={groups}",
                         expected=f"input (batch, in, ...space) and weight ({first}, {second} / groups, ...kernel) "
                                  f"with as many kernel axes as space axes, and {first} divisible by groups",
                         fix="check the layer's in_channels and groups; add a batch axis with x.unsqueeze(0)")
    out = dtype or sum_dtype(promote(x.dtype, w.dtype))
    return x.cast(out.accumulator), w.cast(out.accumulator), out


def convolve(x: UOp, w: UOp, bias: UOp | None, groups: int, stride: Any, dilation: Any, padding: Any,
             dtype: DType | None) -> UOp:
    """The convolution of (batch, in, ...space) with a weight of (out, in / groups, ...kernel)."""
    x, w, out = _in_one_dtype(x, w, groups, dtype)
    rank = len(w.shape) - 2
    size, strides, dilations = w.shape[2:], each(stride, rank, "stride"), each(dilation, rank, "dilation")
    pairs = space_padding(padding, rank)
    refuse_large_windows("conv2d", x.shape[2:], pairs, size, dilations)
    batch, outputs, inputs = x.shape[0], w.shape[0] // groups, w.shape[1]
    seen = Windows(size, strides, dilations).seen(pad_constant(x, [(0, 0), (0, 0), *pairs]))
    seen = seen.reshape((batch, groups, inputs, *seen.shape[2:]))
    return with_bias(_contracted(seen, w.reshape((groups, outputs, inputs, *size)), out), bias)


def convolve_transposed(x: UOp, w: UOp, bias: UOp | None, groups: int, stride: Any, dilation: Any, padding: Any,
                        output_padding: Any) -> UOp:
    """The transposed convolution of (batch, in, ...space) with a weight of (in, out / groups, ...kernel)."""
    x, w, out = _in_one_dtype(x, w, groups, None, transposed=True)
    rank = len(w.shape) - 2
    size = w.shape[2:]
    strides, dilations = each(stride, rank, "stride"), each(dilation, rank, "dilation")
    pads, extra = each(padding, rank, "padding", 0), each(output_padding, rank, "output_padding", 0)
    batch, inputs, outputs = x.shape[0], x.shape[1] // groups, w.shape[1]
    x, w = x.reshape((batch, groups, inputs, *x.shape[2:])), w.reshape((groups, inputs, outputs, *size))
    factors, backward = (x, w), ConvolvedGradient(Windows(size, strides, dilations), pads)
    for i in range(rank):    # (.., n, ..) -> (.., length, .., k): what each position receives through each tap
        length = (x.shape[3 + i] - 1) * strides[i] + dilations[i] * (size[i] - 1) + 1 + extra[i]
        x = x.reshape((*x.shape, 1)).expand((*x.shape, size[i]))
        x = x.unwindow(3 + i, strides[i], dilations[i], length)
        if pads[i] * 2 > length:
            raise ShapeError("the padding cuts away more than there is",
                             given=f"padding={pads} for {length} positions",
                             expected="a result of 0 positions or more", fix="pad less, or pass output_padding")
        x = x.shrink([(pads[i], length - pads[i]) if a == 3 + i else (0, n) for a, n in enumerate(x.shape)])
    result = _contracted(x, w.permute((0, 2, 1, *range(3, 3 + rank))), out)
    return with_bias(own_gradient(result, factors, backward, str(backward)), bias)
