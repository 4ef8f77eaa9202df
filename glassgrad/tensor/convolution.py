"""Convolutions and pools: windows, then a sum of products, a mean or a maximum. In, out: tensors.

Shapes are (batch, channels, ...space) with any number of space axes. Nothing is copied to make the windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.graph import ops as o
from glassgrad.graph.dtype import DType, dtype_by_name, dtypes, promote
from glassgrad.graph.uop import UOp, full
from glassgrad.tensor.formulas.windows import FirstTakesAll, Windows
from glassgrad.tensor.indexing import Indexing
from glassgrad.tensor.meeting import whole
from glassgrad.tensor.own_gradient import own_gradient
from glassgrad.tensor.precision import lowered
from glassgrad.tensor.reduce import sum_dtype
from glassgrad.tensor.sequence import counting

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Convolution"]

Sizes = int | Sequence[int]


def each(value: Any, rank: int, what: str, least: int = 1) -> tuple[int, ...]:
    """One number per space axis, from one number or a sequence."""
    one = whole(value)
    sizes = (one,) * rank if one is not None else \
        tuple(whole(n) for n in value) if isinstance(value, (tuple, list)) else ()
    if len(sizes) != rank or any(n is None or n < least for n in sizes):
        raise InputError(f"{what} does not fit the space axes", given=f"{what}={value!r}",
                         expected=f"one int of {least} or more, or {rank} of them",
                         mend=f"write {what}={least}, for example")
    return sizes  # type: ignore[return-value]


class Convolution(Indexing):
    """Convolutions and pools."""
    __slots__ = ()

    # -- padding ---------------------------------------------------------------------------------------------
    def _space_padding(self, padding: Any, rank: int) -> list[tuple[int, int]]:
        """Padding as (before, after) per space axis, from an int, one per axis, or two, from the last backward."""
        one = whole(padding)
        given = [one] * rank if one is not None else \
            [whole(n) for n in padding] if isinstance(padding, (tuple, list)) else []
        amounts = [n for n in given if n is not None and n >= 0]
        if len(amounts) == 2 * rank:
            pairs = [(amounts[i], amounts[i + 1]) for i in range(0, 2 * rank, 2)][::-1]
        else:
            pairs = [(p, p) for p in amounts]
        if len(pairs) != rank or len(amounts) != len(given):
            raise InputError("the padding does not fit the space axes", given=f"padding={padding!r}",
                             expected=f"an int, {rank} ints, or {2 * rank} ints from the last axis backward",
                             mend="write padding=1, for example")
        return pairs

    def _check_space(self, what: str, pairs: list[tuple[int, int]], size: Sequence[int],
                     dilation: Sequence[int]) -> None:
        space = self.shape[-len(size):]
        for n, (before, after), k, d in zip(space, pairs, size, dilation):
            if n + before + after < d * (k - 1) + 1:
                raise ShapeError(f"the window of {what} is larger than the padded input",
                                 given=f"a window of {tuple(size)} (dilation {tuple(dilation)}) on {space} "
                                       f"padded by {pairs}",
                                 expected="a window that fits", mend="pad more, or use a smaller kernel")

    # -- convolution -----------------------------------------------------------------------------------------
    def conv2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1, dilation: Sizes = 1,
               padding: Any = 0, dtype: DType | str | None = None) -> Self:
        """The convolution of (batch, in, ...space) with a weight of (out, in / groups, ...kernel).

        >>> x = Tensor.arange(9).reshape(1, 1, 3, 3)
        >>> x.conv2d(Tensor.ones(1, 1, 2, 2, dtype=dtypes.int32)).tolist()
        [[[[8, 12], [20, 24]]]]
        """
        x, w = lowered(self.uop), lowered(weight.uop)
        rank = len(w.shape) - 2
        if rank < 1 or len(x.shape) != rank + 2 or x.shape[1] != groups * w.shape[1] or w.shape[0] % groups:
            raise ShapeError("the weight does not fit the input of this convolution",
                             given=f"input {x.shape}, weight {w.shape}, groups={groups}",
                             expected="input (batch, in, ...space) and weight (out, in / groups, ...kernel) with as "
                                      "many kernel axes as space axes, and out divisible by groups",
                             mend="check the layer's in_channels and groups; add a batch axis with x.unsqueeze(0)")
        size, strides = w.shape[2:], each(stride, rank, "stride")
        dilations, pairs = each(dilation, rank, "dilation"), self._space_padding(padding, rank)
        self._check_space("conv2d", pairs, size, dilations)
        place = self._shared_device(weight) if self._device is not weight._device else self._device
        out = dtype_by_name(dtype) if dtype is not None else sum_dtype(promote(x.dtype, w.dtype))
        wide = out.accumulator
        x, w = x.cast(wide), w.cast(wide)
        batch, outputs, inputs = x.shape[0], w.shape[0] // groups, w.shape[1]
        seen = Windows(size, strides, dilations).seen(x.pad([(0, 0), (0, 0), *pairs]))
        space = seen.shape[2:2 + rank]
        # (batch, group, 1, ...space, in, ...kernel) * (1, group, out, 1.., in, ...kernel), summed over the last axes
        seen = seen.reshape((batch, groups, inputs, *space, *size))
        seen = seen.permute((0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)))
        full_shape = (batch, groups, outputs, *space, inputs, *size)
        seen = seen.reshape((batch, groups, 1, *space, inputs, *size)).expand(full_shape)
        w = w.reshape((1, groups, outputs, *(1,) * rank, inputs, *size)).expand(full_shape)
        total = (seen * w).sum(range(3 + rank, len(full_shape))).cast(out)
        made = self._with(total.reshape((batch, groups * outputs, *space)))
        made._device = place
        return made if bias is None else made + bias._with(lowered(bias.uop)).reshape((1, -1) + (1,) * rank)

    # -- pools -----------------------------------------------------------------------------------------------
    def _pooled(self, what: str, kernel_size: Any, stride: Any, dilation: Any, padding: Any, ceil_mode: bool,
                fill: Any) -> tuple[UOp, Windows]:
        """The padded input of a pool, and its windows."""
        rank = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
        if self.ndim < rank:
            raise ShapeError(f"{what} needs {rank} space axes", given=f"shape {self.shape}",
                             expected="(batch, channels, ...space)", mend="reshape it first")
        size = each(kernel_size, rank, "kernel_size")
        strides = size if stride is None else each(stride, rank, "stride")
        dilations, pairs = each(dilation, rank, "dilation"), self._space_padding(padding, rank)
        if ceil_mode:
            pairs = [_ceil_pair(n, p, k, s, d) for n, p, k, s, d in
                     zip(self.shape[-rank:], pairs, size, strides, dilations)]
        self._check_space(what, pairs, size, dilations)
        x = self._pad_constant([(0, 0)] * (self.ndim - rank) + pairs, fill).uop
        return x, Windows(size, strides, dilations)

    def avg_pool2d(self, kernel_size: Sizes = (2, 2), stride: Any = None, dilation: Sizes = 1, padding: Any = 0,
                   ceil_mode: bool = False, count_include_pad: bool = True,
                   divisor_override: int | None = None) -> Self:
        """The mean of each window; without `stride` the windows stand side by side. `divisor_override` is divided by
        in the place of the number of elements.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).avg_pool2d().tolist()
        [[[[2.5, 4.5], [10.5, 12.5]]]]
        """
        x = self if self.uop.dtype.kind == "f" else self.cast(dtypes.default_float)
        options = (kernel_size, stride, dilation, padding, ceil_mode)
        padded, windows = x._pooled("avg_pool2d", *options, 0)
        seen, rank = windows.of(padded), windows.rank
        axes = windows.taps(seen)
        total = self._with(seen).sum(axes)
        if divisor_override is not None:
            if not divisor_override:
                raise InputError("a mean cannot be divided by nothing", given="divisor_override=0",
                                 expected="a number that is not 0", mend="leave it out to divide by the window's size")
            return total / divisor_override
        if count_include_pad and not ceil_mode:
            return total / math.prod(seen.shape[-rank:])
        if count_include_pad:   # what ceil_mode added at the end never counts, the padding itself does
            pairs = x._space_padding(padding, rank)
            grown = tuple(n + b + a for n, (b, a) in zip(x.shape[-rank:], pairs))
            ones = self._with(full(grown, 1, x.dtype))
            counted = windows.of(ones._pooled("avg_pool2d", kernel_size, stride, dilation, 0, True, 0)[0])
            counted = counted.shrink([(0, n) for n in seen.shape[-2 * rank:]])
        else:
            counted = windows.of(self._with(full(x.shape[-rank:], 1, x.dtype))._pooled("avg_pool2d", *options, 0)[0])
        return total / self._with(counted).sum(tuple(range(rank, 2 * rank)))

    def max_pool2d(self, kernel_size: Sizes = (2, 2), stride: Any = None, dilation: Sizes = 1, padding: Any = 0,
                   ceil_mode: bool = False, return_indices: bool = False) -> Any:
        """The largest value of each window; without `stride` the windows stand side by side. `return_indices` gives
        also where each was found, counted over the flattened space axes.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).max_pool2d().tolist()
        [[[[5, 7], [13, 15]]]]
        """
        options = (kernel_size, stride, dilation, padding, ceil_mode)
        padded, windows = self._pooled("max_pool2d", *options, self.dtype.min)
        seen, rank = windows.of(padded), windows.rank
        axes = windows.taps(seen)
        most = seen.reduce(o.AMAX, axes)
        shape = seen.shape[:-rank]
        found = own_gradient(most.reshape(shape), (seen if windows.side_by_side else padded,), FirstTakesAll(windows))
        values = self._with(found)
        if not return_indices:
            return values
        space = self.shape[-rank:]
        place = self._with(counting(math.prod(space)).reshape(space))
        places = windows.of(place._pooled("max_pool2d", *options, dtypes.int32.max)[0])      # padding is nowhere
        reached = seen.eq(most.expand(seen.shape)) | seen.ne(seen)
        first = reached.where(places.broadcast(seen.shape), dtypes.int32.max).reduce(o.AMIN, axes)
        return values, self._with(first.reshape(shape))


def _ceil_pair(n: int, pair: tuple[int, int], k: int, s: int, d: int) -> tuple[int, int]:
    """Padding that makes room for the last, partial window, if it starts inside the input or its front padding."""
    before, after = pair
    reach = d * (k - 1) + 1
    count = -(-(n + before + after - reach) // s) + 1
    if (count - 1) * s >= n + before:
        count -= 1
    return before, after + max(0, (count - 1) * s + reach - (n + before + after))
