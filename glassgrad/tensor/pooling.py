"""Space the other way round: transposed convolutions, unpooling, resizing, pools of a wished size. In, out: tensors.

Shapes are (.., ...space). A transposed convolution is the adjoint of a convolution, written with the adjoint of its
windows, so the compiler sees one sum of products; resizing looks up along one axis after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.graph.dtype import dtypes, promote
from glassgrad.graph.uop import full
from glassgrad.tensor.convolution import each
from glassgrad.tensor.einsum import Einsum
from glassgrad.tensor.meeting import shape_from, whole
from glassgrad.tensor.precision import lowered
from glassgrad.tensor.reduce import sum_dtype
from glassgrad.tensor.sequence import counting

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Pooling"]

Sizes = int | Sequence[int]
Wish = int | Sequence[int | None] | None     # None keeps a size


class Pooling(Einsum):
    """Space the other way round."""
    __slots__ = ()

    def conv_transpose2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1,
                         dilation: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0) -> Self:
        """The transposed convolution of (batch, in, ...space) with a weight of (in, out / groups, ...kernel): each
        input element writes a kernel, `stride` apart.

        >>> Tensor([[[[1, 2]]]]).conv_transpose2d(Tensor.ones(1, 1, 1, 2, dtype=dtypes.int32)).tolist()
        [[[[1, 3, 2]]]]
        """
        x, w = lowered(self.uop), lowered(weight.uop)
        rank = len(w.shape) - 2
        if rank < 1 or len(x.shape) != rank + 2 or x.shape[1] != w.shape[0] or w.shape[0] % groups:
            raise ShapeError(
                "the weight does not fit the input of this transposed convolution",
                given=f"input {x.shape}, weight {w.shape}, groups={groups}",
                expected="input (batch, in, ...space) and weight (in, out / groups, ...kernel) with as many "
                "kernel axes as space axes, and in divisible by groups",
                mend="check the layer's in_channels and groups; add a batch axis with x.unsqueeze(0)",
            )
        size = w.shape[2:]
        strides, dilations = each(stride, rank, "stride"), each(dilation, rank, "dilation")
        pads, extra = each(padding, rank, "padding", 0), each(output_padding, rank, "output_padding", 0)
        place = self._shared_device(weight) if self._device is not weight._device else self._device
        out = sum_dtype(promote(x.dtype, w.dtype))
        x, w = x.cast(out.accumulator), w.cast(out.accumulator)
        batch, inputs, outputs = x.shape[0], x.shape[1] // groups, w.shape[1]
        x = x.reshape((batch, groups, inputs, *x.shape[2:]))
        for i in range(rank):    # (.., n, ..) to (.., length, .., k): what each place receives through each tap
            length = (x.shape[3 + i] - 1) * strides[i] + dilations[i] * (size[i] - 1) + 1 + extra[i]
            x = x.reshape((*x.shape, 1)).expand((*x.shape, size[i]))
            x = x.unwindow(3 + i, strides[i], dilations[i], length)
            if pads[i] * 2 >= length:
                raise ShapeError(
                    "the padding cuts away more than there is",
                    given=f"padding={pads} for {length} places",
                    expected="a result with at least one place",
                    mend="pad less, or pass output_padding",
                )
            x = x.shrink([(pads[i], length - pads[i]) if a == 3 + i else (0, n) for a, n in enumerate(x.shape)])
        space = x.shape[3:3 + rank]
        # (batch, group, 1, ...space, in, ...kernel) * (1, group, out, 1.., in, ...kernel), summed over the last axes
        full_shape = (batch, groups, outputs, *space, inputs, *size)
        x = x.permute((0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)))
        x = x.reshape((batch, groups, 1, *space, inputs, *size)).expand(full_shape)
        w = w.reshape((groups, inputs, outputs, *size)).permute((0, 2, 1, *range(3, 3 + rank)))
        w = w.reshape((1, groups, outputs, *(1,) * rank, inputs, *size)).expand(full_shape)
        total = (x * w).sum(range(3 + rank, len(full_shape))).cast(out)
        made = self._with(total.reshape((batch, groups * outputs, *space)))
        made._device = place
        return made if bias is None else made + bias._with(lowered(bias.uop)).reshape((1, -1) + (1,) * rank)

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
                             expected="one place per value", mend="take both from max_pool2d(return_indices=True)")
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
                mend=f"write {what}(1), for example",
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

    # -- resizing --------------------------------------------------------------------------------------------
    def interpolate(
        self, size: Sizes | None = None, mode: str = "linear", align_corners: bool = False,
        scale_factor: float | Sequence[float] | None = None
    ) -> Self:
        """The last axes resized: "linear" (also "bilinear", "trilinear"), "bicubic", "nearest", "nearest-exact" or
        "area". `align_corners` lets the first and last elements stay where they are. With `scale_factor`, places are
        counted by the factor itself, also where it does not give whole sizes, as in PyTorch.

        >>> Tensor([[[1.0, 3.0]]]).interpolate((4,)).tolist()
        [[[1.0, 1.5, 2.5, 3.0]]]
        """
        steps: list[float] = []
        if size is None and scale_factor is not None:
            factors = (
                (scale_factor,) * (self.ndim - 2) if isinstance(scale_factor, (int, float)) else tuple(scale_factor)
            )
            size = tuple(math.floor(n * f) for n, f in zip(self.shape[2:], factors))
            steps = [1 / f if n * f != count else n / count for n, f, count in zip(self.shape[2:], factors, size)]
        row = size if isinstance(size, (tuple, list)) else () if size is None else (size,) * max(self.ndim - 2, 1)
        sizes = tuple(whole(n) or 0 for n in row)
        if not sizes or len(sizes) > self.ndim or any(n < 1 for n in sizes):
            raise InputError(
                "interpolate cannot give this size",
                given=f"size={size!r} for shape {self.shape}",
                expected="one size of 1 or more for each of the last axes",
                mend="write interpolate((32, 32))",
            )
        if mode not in ("linear", "bilinear", "trilinear", "bicubic", "nearest", "nearest-exact", "area"):
            raise InputError("there is no such way to interpolate", given=f"mode={mode!r}",
                             expected='"linear", "bicubic", "nearest", "nearest-exact" or "area"',
                             mend="check the spelling")
        if mode == "area":
            return self._adaptive_mean(sizes)
        x = self
        for i, count in enumerate(sizes):
            axis = x.ndim - len(sizes) + i
            x = x._resized(axis, count, mode, align_corners, steps[i] if steps else x.shape[axis] / count)
        return x.cast(self.dtype)

    def _resized(self, axis: int, count: int, mode: str, align_corners: bool, step: float) -> Self:
        """One axis with `count` elements, `step` of the old ones apart."""
        n = self.shape[axis]
        at = self._with(counting(count))
        front = (slice(None),) * axis
        if mode.startswith("nearest"):
            if step == n / count:           # exactly, in whole numbers
                place = at * n // count if mode == "nearest" else (at * 2 + 1) * n // (2 * count)
            else:
                place = ((at if mode == "nearest" else at + 0.5) * step).floor().int().minimum(n - 1)
            return self[(*front, place)]
        x = self if self.dtype.kind == "f" else self.cast(dtypes.default_float)
        wide = x.dtype.accumulator
        x = x.cast(wide)
        if align_corners:
            source = at.cast(wide) * ((n - 1) / (count - 1) if count > 1 else 0.0)
        else:
            source = (at.cast(wide) + 0.5) * step - 0.5
        column = (count, *(1,) * (x.ndim - axis - 1))
        if mode == "bicubic":
            first = source.floor()
            taps = [x[(*front, (first.int() + k).clamp(0, n - 1))] * _cubic(source - first - k).reshape(column)
                    for k in (-1, 0, 1, 2)]
            return taps[0] + taps[1] + taps[2] + taps[3]
        source = source.maximum(0)
        low = source.int().minimum(n - 1)
        high = (low + 1).minimum(n - 1)
        weight = (source - low.cast(wide)).reshape(column)
        return x[(*front, low)] * (1 - weight) + x[(*front, high)] * weight


def _cubic(distance: Any) -> Any:
    """How much an element counts at a distance of up to 2, in cubic convolution (Keys, 1981) with a = -0.75."""
    d = distance.abs()
    return (d <= 1).where((1.25 * d - 2.25) * d * d + 1, ((-0.75 * d + 3.75) * d - 6) * d + 3)
