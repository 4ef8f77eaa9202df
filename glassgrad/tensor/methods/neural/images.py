"""Rearrange, resize and resample images: pixel_shuffle, grid_sample, interpolate. In, out: tensors.

Images are (batch, channels, height, width), as in PyTorch, whose names and conventions these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import dtypes
from glassgrad.tensor.formulas import clamp
from glassgrad.tensor.formulas.neural import images
from glassgrad.tensor.formulas.neural.pooling import adaptive_mean
from glassgrad.tensor.methods import Self, TensorBase, arguments, cannot_take, choice, of_kind, whole

Sizes = int | Sequence[int]


class ImagesMixin(TensorBase):
    """Methods that rearrange, resize and resample images."""
    __slots__ = ()

    # -- rearranged ------------------------------------------------------------------------------------------
    def _refuse_uneven(self, what: str, by: int, parts: int, *axes: int) -> None:
        if self.ndim < 3 or by < 1 or any(self.shape[axis] % parts for axis in axes):
            raise ShapeError(f"{what} does not come out even", given=f"shape {self.shape}, a factor of {by}",
                             expected=f"(.., channels, height, width) that can be divided by {parts}",
                             fix="check the number of channels and the size of the image")

    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """Groups of channels rearranged into an image that is `upscale_factor` times as high and wide.

        >>> Tensor([[[1]], [[2]], [[3]], [[4]]]).pixel_shuffle(2).tolist()
        [[[1, 2], [3, 4]]]
        """
        r, = arguments("pixel_shuffle", upscale_factor=upscale_factor)
        self._refuse_uneven("pixel_shuffle", r, r * r, -3)
        *lead, channels, height, width = self.shape
        split = (math.prod(lead), channels // (r * r), r, r, height, width)
        return self._with(images.shuffle(self.uop, split, (0, 1, 4, 2, 5, 3),
                                         (*lead, channels // (r * r), height * r, width * r)))

    def pixel_unshuffle(self, downscale_factor: int) -> Self:
        """The inverse of `pixel_shuffle`.

        >>> Tensor([[[1, 2], [3, 4]]]).pixel_unshuffle(2).tolist()
        [[[1]], [[2]], [[3]], [[4]]]
        """
        r = of_kind("int", "pixel_unshuffle", downscale_factor=downscale_factor)
        self._refuse_uneven("pixel_unshuffle", r, r, -2, -1)
        *lead, channels, height, width = self.shape
        split = (math.prod(lead), channels, height // r, r, width // r, r)
        return self._with(images.shuffle(self.uop, split, (0, 1, 3, 5, 2, 4),
                                         (*lead, channels * r * r, height // r, width // r)))

    def channel_shuffle(self, groups: int) -> Self:
        """The channels of the groups interleaved: the first of each group, then the second of each, ...

        >>> Tensor([[[1], [2], [3], [4]]]).channel_shuffle(2).flatten().tolist()
        [1, 3, 2, 4]
        """
        groups = of_kind("int", "channel_shuffle", groups=groups)
        self._refuse_uneven("channel_shuffle", groups, groups, 1)
        batch, channels, *space = self.shape
        split = (batch, groups, channels // groups, *space)
        return self._with(images.shuffle(self.uop, split, (0, 2, 1, *range(3, len(split))), self.shape))

    # -- resampled -------------------------------------------------------------------------------------------
    @classmethod
    def affine_grid(cls, theta: Self, size: Sequence[int], align_corners: bool = False) -> Self:
        """Where an affine map (batch, 2, 3) takes the elements of an image of this size, for `grid_sample`.

        >>> Tensor.affine_grid(Tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]), (1, 1, 1, 2)).tolist()
        [[[[-0.5, 0.0], [0.5, 0.0]]]]
        """
        theta, align_corners = arguments("affine_grid", theta=theta, align_corners=align_corners)
        sizes = of_kind("list[int]", "affine_grid", size=size)
        if len(sizes) != 4 or theta.shape != (sizes[0], 2, 3):
            raise ShapeError("affine_grid is for images", given=f"theta {theta.shape}, size {sizes}",
                             expected="theta (batch, 2, 3) and a size (batch, channels, height, width)",
                             fix="check the shapes")
        return theta._with(images.affine_grid(theta.uop, sizes[2], sizes[3], align_corners))

    def grid_sample(self, grid: Self, mode: str = "bilinear", padding_mode: str = "zeros",
                    align_corners: bool = False) -> Self:
        """The image's values at the points of a grid (batch, height, width, 2): x and y, from -1 to 1.

        >>> Tensor([[[[1.0, 2.0]]]]).grid_sample(Tensor([[[[-0.5, 0.0], [0.5, 0.0]]]])).tolist()
        [[[[1.0, 2.0]]]]
        """
        grid, align_corners = arguments("grid_sample", grid=grid, align_corners=align_corners)
        if self.ndim != 4 or grid.ndim != 4 or grid.shape[0] != self.shape[0] or grid.shape[3] != 2:
            raise ShapeError("grid_sample does not fit", given=f"image {self.shape}, grid {grid.shape}",
                             expected="(batch, channels, height, width) and (batch, rows, columns, 2)",
                             fix="check the shapes")
        wrong = "there is no such way to sample", "check the spelling"
        choice(*wrong, mode=mode, among=("bilinear", "nearest", "bicubic"))
        choice(*wrong, padding_mode=padding_mode, among=("zeros", "border", "reflection"))
        return self._with(images.grid_sample(self.uop, grid.uop, mode, padding_mode, align_corners), grid)

    # -- resizing --------------------------------------------------------------------------------------------
    def interpolate(self, size: Sizes | None = None, mode: str = "linear", align_corners: bool = False,
                    scale_factor: float | Sequence[float] | None = None, antialias: bool = False) -> Self:
        """The last axes resized: "linear" (also "bilinear", "trilinear"), "bicubic", "nearest", "nearest-exact" or
        "area". `align_corners` keeps the first and last elements in their places. With `scale_factor`, positions are
        computed from the factor itself, even if it does not give integer sizes, as in PyTorch.

        >>> Tensor([[[1.0, 3.0]]]).interpolate((4,)).tolist()
        [[[1.0, 1.5, 2.5, 3.0]]]
        """
        align_corners, antialias = arguments("interpolate", align_corners=align_corners, antialias=antialias)
        steps: list[float] = []
        if size is None and scale_factor is not None:
            factors = (of_kind("float", "interpolate", scale_factor=scale_factor),) * (self.ndim - 2) \
                if not isinstance(scale_factor, (tuple, list)) else \
                of_kind("list[float]", "interpolate", scale_factor=scale_factor)
            if len(factors) != self.ndim - 2 or not all(math.isfinite(f) and f > 0 for f in factors):
                raise cannot_take("interpolate", "scale_factor", scale_factor,
                                  f"{self.ndim - 2} finite numbers above 0, or one for all")
            size = tuple(math.floor(n * f) for n, f in zip(self.shape[2:], factors))
            steps = [1 / f if n * f != count else n / count for n, f, count in zip(self.shape[2:], factors, size)]
        row = size if isinstance(size, (tuple, list)) else () if size is None else (size,) * max(self.ndim - 2, 1)
        sizes = tuple(whole(n) or 0 for n in row)
        if not sizes or len(sizes) > self.ndim or any(n < 1 for n in sizes):
            raise InputError("interpolate cannot give this size", given=f"size={size!r} for shape {self.shape}",
                             expected="one size of 1 or more for each of the last axes",
                             fix="write interpolate((32, 32))")
        choice("there is no such way to interpolate", "check the spelling", mode=mode,
               among=("linear", "bilinear", "trilinear", "bicubic", "nearest", "nearest-exact", "area"))
        if antialias and (mode not in ("linear", "bilinear", "bicubic") or len(sizes) != 2 or self.dtype.kind != "f"):
            raise InputError("interpolate cannot smooth here",
                             given=f"antialias=True, mode={mode!r}, {len(sizes)} axes of {self.dtype.name}",
                             expected='"bilinear" or "bicubic" on two axes of floats', fix="leave antialias out")
        if mode == "area":
            return self._with(adaptive_mean(self.uop, sizes))
        x, pixels = self.uop, self.dtype is dtypes.uint8 and not mode.startswith("nearest")
        # PyTorch rounds the last axis of pixels to bytes before it resizes the one before
        for i, count in reversed(list(enumerate(sizes))) if pixels else enumerate(sizes):
            axis = self.ndim - len(sizes) + i
            step = steps[i] if steps else x.shape[axis] / count
            if align_corners and not mode.startswith("nearest"):
                step = (x.shape[axis] - 1) / (count - 1) if count > 1 else 0.0
            if antialias:
                x = images.resize_smoothly(x, axis, count, mode, step)
            elif pixels and mode != "bicubic":
                x = images.resize_pixels(x, axis, count, align_corners, step, self._table)
            else:
                x = images.resize(x, axis, count, mode, align_corners, step)
                x = clamp(x.round(), 0, 255).cast(dtypes.uint8) if pixels else x
        return self._with(x.cast(self.dtype))
