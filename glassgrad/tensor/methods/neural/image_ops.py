"""Picture elements moved, resized, resampled and put together again. In, out: tensors.

Pictures are (batch, channels, height, width), as in PyTorch, whose names and numbers these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.tensor.broadcast import whole
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.methods.neural.convolution import each
from glassgrad.tensor.methods.predicates import Questions

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Pictures"]

Sizes = int | Sequence[int]


class Pictures(Questions):
    """Picture elements."""
    __slots__ = ()

    # -- moved -----------------------------------------------------------------------------------------------
    def _shuffles(self, parts: int, by: int, what: str, whole: bool) -> None:
        if self.ndim < 3 or by < 1 or not whole:
            raise ShapeError(f"{what} does not come out even", given=f"shape {self.shape}, a factor of {by}",
                             expected=f"(.., channels, height, width) that can be divided by {parts}",
                             fix="check the number of channels and the size of the picture")

    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """Groups of channels spread into a picture `upscale_factor` times as high and wide.

        >>> Tensor([[[1]], [[2]], [[3]], [[4]]]).pixel_shuffle(2).tolist()
        [[[1, 2], [3, 4]]]
        """
        r = upscale_factor
        self._shuffles(r * r, r, "pixel_shuffle", self.ndim > 2 and r > 0 and self.shape[-3] % (r * r) == 0)
        *lead, channels, height, width = self.shape
        x = self.reshape(-1, channels // (r * r), r, r, height, width).permute(0, 1, 4, 2, 5, 3)
        return x.reshape(*lead, channels // (r * r), height * r, width * r)

    def pixel_unshuffle(self, downscale_factor: int) -> Self:
        """The opposite of `pixel_shuffle`.

        >>> Tensor([[[1, 2], [3, 4]]]).pixel_unshuffle(2).tolist()
        [[[1]], [[2]], [[3]], [[4]]]
        """
        r = downscale_factor
        self._shuffles(r, r, "pixel_unshuffle",
                       self.ndim > 2 and r > 0 and self.shape[-1] % r == 0 and self.shape[-2] % r == 0)
        *lead, channels, height, width = self.shape
        x = self.reshape(-1, channels, height // r, r, width // r, r).permute(0, 1, 3, 5, 2, 4)
        return x.reshape(*lead, channels * r * r, height // r, width // r)

    def channel_shuffle(self, groups: int) -> Self:
        """Channels dealt out from groups, one of each in turn.

        >>> Tensor([[[1], [2], [3], [4]]]).channel_shuffle(2).flatten().tolist()
        [1, 3, 2, 4]
        """
        self._shuffles(groups, groups, "channel_shuffle", self.ndim > 2 and groups > 0 and self.shape[1] % groups == 0)
        x = self.reshape(self.shape[0], groups, -1, *self.shape[2:])
        return x.transpose(1, 2).reshape(self.shape)

    # -- put together again ----------------------------------------------------------------------------------
    def fold(self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
             stride: Sizes = 1) -> Self:
        """The sum of windows (batch, channels x kernel, windows) where they stood: the adjoint of taking them.

        >>> Tensor.ones(1, 4, 1).fold(2, 2).tolist()
        [[[[1.0, 1.0], [1.0, 1.0]]]]
        """
        size, kernel = each(output_size, 2, "output_size"), each(kernel_size, 2, "kernel_size")
        steps, spread, pads = each(stride, 2, "stride"), each(dilation, 2, "dilation"), each(padding, 2, "padding", 0)
        counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(size, pads, spread, kernel, steps)]
        taps = math.prod(kernel)
        if self.ndim != 3 or self.shape[1] % taps or self.shape[2] != math.prod(counts):
            raise ShapeError("these windows do not fold into this picture",
                             given=f"shape {self.shape}, output_size={size}, kernel_size={kernel}",
                             expected=f"(batch, channels * {taps}, {math.prod(counts)})",
                             fix="pass the same sizes as when the windows were taken")
        batch, channels = self.shape[0], self.shape[1] // taps
        x = self.uop.reshape((batch, channels, *kernel, *counts)).permute((0, 1, 4, 5, 2, 3))
        for i in (1, 0):     # (.., counts, .., k) to (.., length, .., k), then the taps of each place are added
            grown = max(size[i] + 2 * pads[i], (counts[i] - 1) * steps[i] + spread[i] * (kernel[i] - 1) + 1)
            x = x.unwindow(2 + i, steps[i], spread[i], grown)
            x = x.sum((len(x.shape) - 1,)).reshape(x.shape[:-1])
        bounds = [(p, p + n) for p, n in zip(pads, size)]
        return self._with(x.shrink([(0, batch), (0, channels), *bounds]))

    # -- resampled -------------------------------------------------------------------------------------------
    @classmethod
    def affine_grid(cls, theta: Self, size: Sequence[int], align_corners: bool = False) -> Self:
        """Where an affine map (batch, 2, 3) takes the elements of a picture of this size, for `grid_sample`.

        >>> Tensor.affine_grid(Tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]), (1, 1, 1, 2)).tolist()
        [[[[-0.5, 0.0], [0.5, 0.0]]]]
        """
        if len(size) != 4 or theta.shape != (size[0], 2, 3):
            raise ShapeError("affine_grid is for pictures", given=f"theta {theta.shape}, size {tuple(size)}",
                             expected="theta (batch, 2, 3) and a size (batch, channels, height, width)",
                             fix="check the shapes")

        height, width = size[2:]
        x = _places(theta, width, align_corners).reshape(1, width).expand(height, width)
        y = _places(theta, height, align_corners).reshape(height, 1).expand(height, width)
        base = x.stack(y, x.ones_like(), dim=2).reshape(1, height * width, 3)
        return theta._with((base @ theta.transpose(1, 2)).reshape(size[0], height, width, 2).uop)

    def grid_sample(self, grid: Self, mode: str = "bilinear", padding_mode: str = "zeros",
                    align_corners: bool = False) -> Self:
        """The picture's values at the places of a grid (batch, height, width, 2): x and y, from -1 to 1.

        >>> Tensor([[[[1.0, 2.0]]]]).grid_sample(Tensor([[[[-0.5, 0.0], [0.5, 0.0]]]])).tolist()
        [[[[1.0, 2.0]]]]
        """
        if self.ndim != 4 or grid.ndim != 4 or grid.shape[0] != self.shape[0] or grid.shape[3] != 2:
            raise ShapeError("grid_sample does not fit", given=f"picture {self.shape}, grid {grid.shape}",
                             expected="(batch, channels, height, width) and (batch, rows, columns, 2)",
                             fix="check the shapes")
        if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border"):
            raise InputError("there is no such way to sample", given=f"mode={mode!r}, padding_mode={padding_mode!r}",
                             expected='"bilinear" or "nearest"; "zeros" or "border"', fix="check the spelling")
        batch, channels, height, width = self.shape

        def scaled(t: Self, n: int) -> Self:
            t = (t + 1) * ((n - 1) / 2) if align_corners else ((t + 1) * n - 1) / 2
            return t.clamp(0, n - 1) if padding_mode == "border" else t

        x, y = scaled(grid[..., 0], width), scaled(grid[..., 1], height)
        flat = self.reshape(batch, channels, height * width)

        def at(column: Self, row: Self) -> Self:
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).cast(dtypes.int32)
            place = place.reshape(batch, 1, -1).expand(batch, channels, place.shape[1] * place.shape[2])
            found = flat.gather(2, place).reshape(batch, channels, *column.shape[1:])
            return inside.unsqueeze(1).where(found, 0)

        if mode == "nearest":
            return at(x.detach().round(), y.detach().round())
        left, top = x.detach().floor(), y.detach().floor()
        right, low = (x - left).unsqueeze(1), (y - top).unsqueeze(1)
        upper = at(left, top) * (1 - right) + at(left + 1, top) * right
        return upper * (1 - low) + (at(left, top + 1) * (1 - right) + at(left + 1, top + 1) * right) * low

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
                fix="write interpolate((32, 32))",
            )
        if mode not in ("linear", "bilinear", "trilinear", "bicubic", "nearest", "nearest-exact", "area"):
            raise InputError("there is no such way to interpolate", given=f"mode={mode!r}",
                             expected='"linear", "bicubic", "nearest", "nearest-exact" or "area"',
                             fix="check the spelling")
        if mode == "area":
            return self._adaptive_mean(sizes)
        x, pixels = self, self.dtype is dtypes.uint8 and not mode.startswith("nearest")
        # PyTorch turns the last axis of pixels into bytes again before it resizes the one before
        for i, count in reversed(list(enumerate(sizes))) if pixels else enumerate(sizes):
            axis = x.ndim - len(sizes) + i
            step = steps[i] if steps else x.shape[axis] / count
            if pixels and mode != "bicubic":
                x = x._resized_pixels(axis, count, align_corners, step)
            else:
                x = x._resized(axis, count, mode, align_corners, step)
                x = x.round().clamp(0, 255).cast(dtypes.uint8) if pixels else x
        return x.cast(self.dtype)

    def _resized_pixels(self, axis: int, count: int, align_corners: bool, step: float) -> Self:
        """One axis of bytes, linearly, in the integers of PyTorch: weights of at most 15 bits, halves up."""
        n = self.shape[axis]
        if align_corners:
            step = (n - 1) / (count - 1) if count > 1 else 0.0
        sources = [max(i * step if align_corners else (i + 0.5) * step - 0.5, 0.0) for i in range(count)]
        lows = [min(int(source), n - 1) for source in sources]
        shares = [(1 - source + low, source - low) for source, low in zip(sources, lows)]
        largest = max(max(pair) for pair in shares)
        bits = next(b for b in range(16) if int(0.5 + largest * (1 << b + 1)) >= 1 << 15)
        total = self.zeros(1, dtype=dtypes.int32, device=self.device) + (1 << bits - 1)
        for side in (0, 1):
            place = self.__class__([min(low + side, n - 1) for low in lows], dtype=dtypes.int32, device=self.device)
            weight = self.__class__([int(0.5 + pair[side] * (1 << bits)) for pair in shares], dtype=dtypes.int32,
                                    device=self.device).reshape(count, *(1,) * (self.ndim - axis - 1))
            total = total + self[(*(slice(None),) * axis, place)].cast(dtypes.int32) * weight
        return (total >> bits).cast(dtypes.uint8)

    def _resized(self, axis: int, count: int, mode: str, align_corners: bool, step: float) -> Self:
        """One axis with `count` elements, `step` of the old ones apart."""
        n = self.shape[axis]
        at = self._with(counting(count))
        front = (slice(None),) * axis
        if mode.startswith("nearest"):
            if step == n / count:           # exactly, in integers
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


def _places(like: Pictures, n: int, align_corners: bool) -> Pictures:
    """The middles of n parts from -1 to 1, or n places with both ends."""
    at = like._with(counting(n)).cast(like.dtype)
    if align_corners:
        return at * (2 / (n - 1)) - 1 if n > 1 else at * 0
    return (at * 2 + 1) / n - 1


def _cubic(distance: Any) -> Any:
    """How much an element counts at a distance of up to 2, in cubic convolution (Keys, 1981) with a = -0.75."""
    d = distance.abs()
    return (d <= 1).where((1.25 * d - 2.25) * d * d + 1, ((-0.75 * d + 3.75) * d - 6) * d + 3)
