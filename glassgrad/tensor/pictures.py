"""Picture elements moved, resampled and put together again. In, out: tensors.

Pictures are (batch, channels, height, width), as in PyTorch, whose names and numbers these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.graph.dtype import dtypes
from glassgrad.tensor.convolution import each
from glassgrad.tensor.sequence import counting
from glassgrad.tensor.statistics import Statistics

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Pictures"]

Sizes = int | Sequence[int]


class Pictures(Statistics):
    """Picture elements."""
    __slots__ = ()

    # -- moved -----------------------------------------------------------------------------------------------
    def _shuffles(self, parts: int, by: int, what: str, whole: bool) -> None:
        if self.ndim < 3 or by < 1 or not whole:
            raise ShapeError(f"{what} does not come out even", given=f"shape {self.shape}, a factor of {by}",
                             expected=f"(.., channels, height, width) that can be divided by {parts}",
                             mend="check the number of channels and the size of the picture")

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
                             mend="pass the same sizes as when the windows were taken")
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
                             mend="check the shapes")

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
                             mend="check the shapes")
        if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border"):
            raise InputError("there is no such way to sample", given=f"mode={mode!r}, padding_mode={padding_mode!r}",
                             expected='"bilinear" or "nearest"; "zeros" or "border"', mend="check the spelling")
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

    def local_response_norm(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Self:
        """x / (k + alpha times the mean square of `size` neighbouring channels)^beta (Krizhevsky et al., 2012).

        >>> Tensor([[[0.0], [2.0]]]).local_response_norm(1, alpha=1, beta=1, k=0).flatten().tolist()[1]
        0.5
        """
        if self.ndim < 3 or size < 1:
            raise ShapeError("local_response_norm is over channels", given=f"shape {self.shape}, size={size}",
                             expected="(batch, channels, ...space) and a size of 1 or more",
                             mend="add the missing axes with unsqueeze")
        pads = [(0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (self.ndim - 2)]
        near = self.square()._pad_constant(pads, 0).unfold(1, size, 1).mean(-1)
        return self / (near * alpha + k) ** beta


def _places(like: Pictures, n: int, align_corners: bool) -> Pictures:
    """The middles of n parts from -1 to 1, or n places with both ends."""
    at = like._with(counting(n)).cast(like.dtype)
    if align_corners:
        return at * (2 / (n - 1)) - 1 if n > 1 else at * 0
    return (at * 2 + 1) / n - 1
