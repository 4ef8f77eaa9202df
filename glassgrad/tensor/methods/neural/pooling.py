"""Pools: the mean or the largest of windows, the way back, and pools of a wished size. In, out: tensors.

Shapes are (.., ...space), with any number of space axes. Nothing is copied to make the windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.broadcast import shape_from, whole
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.formulas.windows import FirstTakesAll, Windows
from glassgrad.tensor.methods.neural.convolution import each
from glassgrad.tensor.methods.shape.einsum import Einsum

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Pooling"]

Sizes = int | Sequence[int]
Wish = int | Sequence[int | None] | None     # None keeps a size


class Pooling(Einsum):
    """Pools, and the way back."""
    __slots__ = ()

    # -- pools over windows ----------------------------------------------------------------------------------
    def _pooled(self, what: str, kernel_size: Any, stride: Any, dilation: Any, padding: Any, ceil_mode: bool,
                fill: Any) -> tuple[UOp, Windows]:
        """The padded input of a pool, and its windows."""
        rank = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
        if self.ndim < rank:
            raise ShapeError(f"{what} needs {rank} space axes", given=f"shape {self.shape}",
                             expected="(batch, channels, ...space)", fix="reshape it first")
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
                                 expected="a number that is not 0", fix="leave it out to divide by the window's size")
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

    def max_unpool2d(self, indices: Self, kernel_size: Sizes = (2, 2), stride: Sizes | None = None,
                     dilation: Sizes = 1, padding: Sizes = 0, output_size: Sequence[int] | None = None) -> Self:
        """The opposite of `max_pool2d`: each value where it was found, zeros elsewhere.

        >>> x = Tensor([[[[1, 2], [4, 3]]]])
        >>> x.max_pool2d(return_indices=True)[0].max_unpool2d(x.max_pool2d(return_indices=True)[1]).tolist()
        [[[[0, 0], [4, 0]]]]
        """
        rank = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
        size = each(kernel_size, rank, "kernel_size")
        strides = size if stride is None else each(stride, rank, "stride")
        pads, dilations = each(padding, rank, "padding", 0), each(dilation, rank, "dilation")
        if indices.shape != self.shape:
            raise ShapeError("the places do not fit the values", given=f"values {self.shape}, places {indices.shape}",
                             expected="one place per value", fix="take both from max_pool2d(return_indices=True)")
        lead, space = self.shape[:-rank], self.shape[-rank:]
        grown = shape_from((output_size,), "max_unpool2d")[-rank:] if output_size is not None else tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(space, strides, pads, dilations, size))
        flat = (math.prod(lead), math.prod(space))
        empty = self._with(full((flat[0], math.prod(grown)), 0, self.dtype))
        return empty.scatter(1, indices.reshape(flat), self.reshape(flat)).reshape(*lead, *grown)

    # -- pools of a wished size ------------------------------------------------------------------------------
    def _adaptive(self, output_size: Any, rank: int, what: str) -> tuple[int, ...]:
        row = isinstance(output_size, (tuple, list))
        sizes = tuple(n if n is None else whole(n) or 0 for n in (output_size if row else (output_size,) * rank))
        if len(sizes) != rank or self.ndim < rank or any(n is not None and n < 1 for n in sizes):
            raise InputError(
                f"{what} cannot give this size",
                given=f"output_size={output_size!r} for shape {self.shape}",
                expected=f"{rank} sizes of 1 or more, and None to keep one",
                fix=f"write {what}(1), for example",
            )
        return tuple(n if m is None else m for n, m in zip(self.shape[-rank:], sizes))

    def _adaptive_windows(self, axis: int, count: int) -> tuple[Self, Self, Self]:
        """The parts of an axis, as a new axis behind it: elements, which of them count, and how many do. Part i runs
        from floor(i n / count) to ceil((i + 1) n / count)."""
        n = self.shape[axis]
        part = self._with(counting(count))
        first, end = part * n // count, ((part + 1) * n + count - 1) // count
        longest = max(-(-(i + 1) * n // count) - i * n // count for i in range(count)) if count < n else min(n, 2)
        offset = self._with(counting(longest)).reshape(1, longest)
        lengths = (end - first).reshape(count, 1)
        found = self[(slice(None),) * axis + ((first.reshape(count, 1) + offset).minimum(n - 1),)]
        tail = (1,) * (self.ndim - axis - 1)
        return found, (offset < lengths).reshape(count, longest, *tail), lengths.reshape(count, *tail)

    def adaptive_avg_pool2d(self, output_size: Wish) -> Self:
        """Means of parts, as many as wished along each of the last two axes.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).adaptive_avg_pool2d(1).tolist()
        [[[[7.5]]]]
        """
        return self._adaptive_mean(self._adaptive(output_size, 2, "adaptive_avg_pool2d"))

    def adaptive_avg_pool1d(self, output_size: Wish) -> Self:
        """Means of parts, as many as wished along the last axis.

        >>> Tensor([[[1.0, 2.0, 3.0]]]).adaptive_avg_pool1d(2).tolist()
        [[[1.5, 2.5]]]
        """
        return self._adaptive_mean(self._adaptive(output_size, 1, "adaptive_avg_pool1d"))

    def adaptive_avg_pool3d(self, output_size: Wish) -> Self:
        """Means of parts, as many as wished along each of the last three axes.

        >>> Tensor.ones(1, 1, 2, 2, 2).adaptive_avg_pool3d(1).tolist()
        [[[[[1.0]]]]]
        """
        return self._adaptive_mean(self._adaptive(output_size, 3, "adaptive_avg_pool3d"))

    def _adaptive_mean(self, sizes: tuple[int, ...]) -> Self:
        space = self.shape[-len(sizes):]
        if all(n % m == 0 for n, m in zip(space, sizes)):
            return self.avg_pool2d(tuple(n // m for n, m in zip(space, sizes)))
        x = self if self.dtype.kind == "f" else self.cast(dtypes.default_float)
        for i, count in enumerate(sizes):
            axis = x.ndim - len(sizes) + i
            found, counts, lengths = x._adaptive_windows(axis, count)
            x = counts.where(found, 0).sum(axis + 1) / lengths.cast(x.dtype)
        return x

    def adaptive_max_pool2d(self, output_size: Wish, return_indices: bool = False) -> Any:
        """The largest of parts, as many as wished along each of the last two axes. `return_indices` gives also where
        each was found, counted over the flattened space axes.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).adaptive_max_pool2d(2).tolist()
        [[[[5, 7], [13, 15]]]]
        """
        return self._adaptive_most(self._adaptive(output_size, 2, "adaptive_max_pool2d"), return_indices)

    def adaptive_max_pool1d(self, output_size: Wish, return_indices: bool = False) -> Any:
        """The largest of parts, as many as wished along the last axis.

        >>> Tensor([[[1, 3, 2]]]).adaptive_max_pool1d(2).tolist()
        [[[3, 3]]]
        """
        return self._adaptive_most(self._adaptive(output_size, 1, "adaptive_max_pool1d"), return_indices)

    def adaptive_max_pool3d(self, output_size: Wish, return_indices: bool = False) -> Any:
        """The largest of parts, as many as wished along each of the last three axes.

        >>> Tensor.arange(8).reshape(1, 1, 2, 2, 2).adaptive_max_pool3d(1).tolist()
        [[[[[7]]]]]
        """
        return self._adaptive_most(self._adaptive(output_size, 3, "adaptive_max_pool3d"), return_indices)

    def _adaptive_most(self, sizes: tuple[int, ...], return_indices: bool) -> Any:
        rank = len(sizes)
        lead, space = self.shape[:-rank], self.shape[-rank:]
        if all(n % m == 0 for n, m in zip(space, sizes)):
            return self.max_pool2d(tuple(n // m for n, m in zip(space, sizes)), return_indices=return_indices)
        place: Any = self._with(counting(math.prod(space)).reshape(space))
        inside: Any = True
        for i, count in enumerate(sizes):           # (c1, l1, c2, l2, ..): the parts, and the places in each
            place, here, _ = place._adaptive_windows(2 * i, count)
            inside = here.reshape(*here.shape[:2], *(1, 1) * (rank - i - 1)) & inside
        order = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
        place, inside = (t.expand(place.shape).permute(order).flatten(rank) for t in (place, inside))
        flat = self.reshape(*lead, math.prod(space))
        best = inside.where(flat.detach()[..., place], self.dtype.min).argmax(-1, keepdim=True)
        places = place.expand(*lead, *place.shape).gather(-1, best).squeeze(-1)
        # the first of equal ones gets the gradient, as in PyTorch
        most = flat.gather(-1, places.flatten(len(lead))).reshape(places.shape)
        return (most, places) if return_indices else most


def _ceil_pair(n: int, pair: tuple[int, int], k: int, s: int, d: int) -> tuple[int, int]:
    """Padding that makes room for the last, partial window, if it starts inside the input or its front padding."""
    before, after = pair
    reach = d * (k - 1) + 1
    count = -(-(n + before + after - reach) // s) + 1
    if (count - 1) * s >= n + before:
        count -= 1
    return before, after + max(0, (count - 1) * s + reach - (n + before + after))
