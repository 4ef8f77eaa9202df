"""Define convolutions and pools: weighted sums, means and maxima of windows, and their transposes. In, out: tensors.

Shapes are (.., ...space), with any number of space axes, as in PyTorch, whose names and conventions these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import DType, full
from glassgrad.tensor.formulas import scatter, scatter_targets
from glassgrad.tensor.formulas.neural.convolution import convolve, convolve_transposed, each
from glassgrad.tensor.formulas.neural.pooling import PoolOptions, adaptive_max, adaptive_mean, max_pool, mean_pool
from glassgrad.tensor.methods import Self, TensorBase, arguments, computed, of_kind, shape_from, whole

Sizes = int | Sequence[int]
OutputSize = int | Sequence[int | None] | None     # None keeps a size


class ConvolutionMixin(TensorBase):
    """Convolutions, their transposes, and pools."""
    __slots__ = ()

    def conv2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1, dilation: Sizes = 1,
               padding: Any = 0, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The convolution of (batch, in, ...space) with a weight of (out, in / groups, ...kernel).

        >>> x = Tensor.arange(9).reshape(1, 1, 3, 3)
        >>> x.conv2d(Tensor.ones(1, 1, 2, 2, dtype=dtypes.int32)).tolist()
        [[[[8, 12], [20, 24]]]]
        """
        return computed(self, convolve, "conv2d", spelling, weight=weight, bias=bias, groups=groups, stride=stride,
                        dilation=dilation, padding=padding, dtype=dtype)

    image_conv2d = conv2d          # tinygrad's, in textures; memory is plain here

    def conv_transpose2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1,
                         dilation: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0) -> Self:
        """The transposed convolution of (batch, in, ...space) with a weight of (in, out / groups, ...kernel): each
        input element adds a kernel to the output; the kernels are `stride` apart.

        >>> Tensor([[[[1, 2]]]]).conv_transpose2d(Tensor.ones(1, 1, 1, 2, dtype=dtypes.int32)).tolist()
        [[[[1, 3, 2]]]]
        """
        return computed(self, convolve_transposed, "conv_transpose2d", weight=weight, bias=bias, groups=groups,
                        stride=stride, dilation=dilation, padding=padding, output_padding=output_padding)

    # -- pools over windows ----------------------------------------------------------------------------------
    def avg_pool2d(self, kernel_size: Sizes = (2, 2), stride: Any = None, dilation: Sizes = 1, padding: Any = 0,
                   ceil_mode: bool = False, count_include_pad: bool = True,
                   divisor_override: int | None = None) -> Self:
        """The mean of each window; without `stride` the windows are side by side. `divisor_override` is the divisor
        instead of the number of elements.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).avg_pool2d().tolist()
        [[[[2.5, 4.5], [10.5, 12.5]]]]
        """
        ceil_mode, with_padding = arguments("avg_pool2d", ceil_mode=ceil_mode, count_include_pad=count_include_pad)
        divisor = of_kind("float | None", "avg_pool2d", divisor_override=divisor_override)
        if divisor == 0:
            raise InputError("a mean cannot be divided by nothing", given="divisor_override=0",
                             expected="a number that is not 0", fix="leave it out to divide by the window's size")
        options = PoolOptions(kernel_size, stride, dilation, padding, ceil_mode)
        return self._with(mean_pool(self.uop, options, with_padding, divisor))

    def max_pool2d(self, kernel_size: Sizes = (2, 2), stride: Any = None, dilation: Sizes = 1, padding: Any = 0,
                   ceil_mode: bool = False, return_indices: bool = False) -> Any:
        """The largest value of each window; without `stride` the windows are side by side. `return_indices` also
        returns where each was found, as an index into the flattened space axes.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).max_pool2d().tolist()
        [[[[5, 7], [13, 15]]]]
        """
        ceil_mode, return_indices = arguments("max_pool2d", ceil_mode=ceil_mode, return_indices=return_indices)
        options = PoolOptions(kernel_size, stride, dilation, padding, ceil_mode)
        values, indices = max_pool(self.uop, options, return_indices)
        return self._with(values) if indices is None else (self._with(values), self._with(indices))

    def max_unpool2d(self, indices: Self, kernel_size: Sizes = (2, 2), stride: Sizes | None = None,
                     dilation: Sizes = 1, padding: Sizes = 0, output_size: Sequence[int] | None = None) -> Self:
        """The inverse of `max_pool2d`: each value at the index where it was found, zeros elsewhere.

        >>> x = Tensor([[[[1, 2], [4, 3]]]])
        >>> x.max_pool2d(return_indices=True)[0].max_unpool2d(x.max_pool2d(return_indices=True)[1]).tolist()
        [[[[0, 0], [4, 0]]]]
        """
        of_kind("Self", "max_unpool2d", indices=indices)
        rank = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
        size = each(kernel_size, rank, "kernel_size")
        strides = size if stride is None else each(stride, rank, "stride")
        pads, dilations = each(padding, rank, "padding", 0), each(dilation, rank, "dilation")
        if indices.shape != self.shape or self.ndim < rank or indices.dtype.kind not in "iu":
            raise ShapeError("the indices do not fit the values",
                             given=f"values {self.shape}, {indices.dtype.name} indices {indices.shape}",
                             expected=f"one integer per value, and {rank} space axes",
                             fix="take both from max_pool2d(return_indices=True)")
        lead, space = self.shape[:self.ndim - rank], self.shape[self.ndim - rank:]
        grown = shape_from((output_size,), "max_unpool2d")[-rank:] if output_size is not None else tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(space, strides, pads, dilations, size))
        flat, empty = (math.prod(lead), math.prod(space)), (math.prod(lead), math.prod(grown))
        if any(n < 0 for n in grown):
            raise ShapeError("max_unpool2d cannot give this size", given=f"{grown}", expected="sizes of 0 or more",
                             fix="check the padding")
        place = scatter_targets(empty, 1, indices.uop.reshape(flat))
        found = scatter(full(empty, 0, self.dtype), place, self.uop, "set") if self.numel() else \
            full(empty, 0, self.dtype)
        return self._with(found.reshape((*lead, *grown)), indices)

    # -- pools of a given output size ------------------------------------------------------------------------
    def _output_sizes(self, output_size: Any, rank: int, what: str) -> tuple[int, ...]:
        row = isinstance(output_size, (tuple, list))
        sizes = tuple(n if n is None else -1 if (m := whole(n)) is None else m
                      for n in (output_size if row else (output_size,) * rank))
        if len(sizes) != rank or self.ndim < rank or any(n is not None and n < 0 for n in sizes):
            raise InputError(f"{what} cannot give this size", given=f"output_size={output_size!r} for shape "
                             f"{self.shape}", expected=f"{rank} sizes of 0 or more, and None to keep one",
                             fix=f"write {what}(1), for example")
        return tuple(n if m is None else m for n, m in zip(self.shape[-rank:], sizes))

    def adaptive_avg_pool1d(self, output_size: OutputSize) -> Self:
        """Means of `output_size` parts of the last axis.

        >>> Tensor([[[1.0, 2.0, 3.0]]]).adaptive_avg_pool1d(2).tolist()
        [[[1.5, 2.5]]]
        """
        return self._mean_parts(output_size, 1)

    def adaptive_avg_pool2d(self, output_size: OutputSize) -> Self:
        """Means of `output_size` parts along each of the last two axes.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).adaptive_avg_pool2d(1).tolist()
        [[[[7.5]]]]
        """
        return self._mean_parts(output_size, 2)

    def adaptive_avg_pool3d(self, output_size: OutputSize) -> Self:
        """Means of `output_size` parts along each of the last three axes.

        >>> Tensor.ones(1, 1, 2, 2, 2).adaptive_avg_pool3d(1).tolist()
        [[[[[1.0]]]]]
        """
        return self._mean_parts(output_size, 3)

    def adaptive_max_pool1d(self, output_size: OutputSize, return_indices: bool = False) -> Any:
        """The largest value of each of `output_size` parts of the last axis.

        >>> Tensor([[[1, 3, 2]]]).adaptive_max_pool1d(2).tolist()
        [[[3, 3]]]
        """
        return self._largest_parts(output_size, 1, return_indices)

    def adaptive_max_pool2d(self, output_size: OutputSize, return_indices: bool = False) -> Any:
        """The largest value of each of `output_size` parts along each of the last two axes. `return_indices` also
        returns where each was found, as an index into the flattened space axes.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).adaptive_max_pool2d(2).tolist()
        [[[[5, 7], [13, 15]]]]
        """
        return self._largest_parts(output_size, 2, return_indices)

    def adaptive_max_pool3d(self, output_size: OutputSize, return_indices: bool = False) -> Any:
        """The largest value of each of `output_size` parts along each of the last three axes.

        >>> Tensor.arange(8).reshape(1, 1, 2, 2, 2).adaptive_max_pool3d(1).tolist()
        [[[[[7]]]]]
        """
        return self._largest_parts(output_size, 3, return_indices)

    def _mean_parts(self, output_size: Any, rank: int) -> Self:
        return self._with(adaptive_mean(self.uop, self._output_sizes(output_size, rank, f"adaptive_avg_pool{rank}d")))

    def _largest_parts(self, output_size: Any, rank: int, return_indices: bool) -> Any:
        what = f"adaptive_max_pool{rank}d"
        return_indices, = arguments(what, return_indices=return_indices)
        found = [self._with(node) for node in adaptive_max(self.uop, self._output_sizes(output_size, rank, what))]
        return tuple(found) if return_indices else found[0]

    # -- windows added up ------------------------------------------------------------------------------------
    def fold(self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
             stride: Sizes = 1) -> Self:
        """Windows (batch, channels x kernel, windows) added up at their positions: the adjoint of taking them.

        >>> Tensor.ones(1, 4, 1).fold(2, 2).tolist()
        [[[[1.0, 1.0], [1.0, 1.0]]]]
        """
        size, kernel = each(output_size, 2, "output_size"), each(kernel_size, 2, "kernel_size")
        steps, spread, pads = each(stride, 2, "stride"), each(dilation, 2, "dilation"), each(padding, 2, "padding", 0)
        counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(size, pads, spread, kernel, steps)]
        taps = math.prod(kernel)
        if self.ndim != 3 or self.shape[1] % taps or self.shape[2] != math.prod(counts):
            raise ShapeError("these windows do not fold into this image",
                             given=f"shape {self.shape}, output_size={size}, kernel_size={kernel}",
                             expected=f"(batch, channels * {taps}, {math.prod(counts)})",
                             fix="pass the same sizes as when the windows were taken")
        batch, channels = self.shape[0], self.shape[1] // taps
        x = self.uop.reshape((batch, channels, *kernel, *counts)).permute((0, 1, 4, 5, 2, 3))
        for i in (1, 0):     # (.., counts, .., k) -> (.., length, .., k); then the taps of each element are added
            grown = max(size[i] + 2 * pads[i], (counts[i] - 1) * steps[i] + spread[i] * (kernel[i] - 1) + 1)
            x = x.unwindow(2 + i, steps[i], spread[i], grown)
            x = x.sum((len(x.shape) - 1,)).reshape(x.shape[:-1])
        bounds = [(p, p + n) for p, n in zip(pads, size)]
        return self._with(x.shrink([(0, batch), (0, channels), *bounds]))
