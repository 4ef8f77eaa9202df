"""Convolutions and their transposes. In, out: tensors (batch, channels, ...space) with any number of space axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.compiler.graph.dtype import DType
from glassgrad.tensor import checks
from glassgrad.tensor.base import Self, TensorBase
from glassgrad.tensor.formulas.neural.convolution import convolve, convolve_transposed

__all__ = ["ConvolutionMixin"]

Sizes = int | Sequence[int]


class ConvolutionMixin(TensorBase):
    """Convolutions and their transposes."""
    __slots__ = ()

    def conv2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1, dilation: Sizes = 1,
               padding: Any = 0, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The convolution of (batch, in, ...space) with a weight of (out, in / groups, ...kernel).

        >>> x = Tensor.arange(9).reshape(1, 1, 3, 3)
        >>> x.conv2d(Tensor.ones(1, 1, 2, 2, dtype=dtypes.int32)).tolist()
        [[[[8, 12], [20, 24]]]]
        """
        dtype, = checks.spelled("conv2d", spelling, dtype=dtype)
        checks.tensors("conv2d", weight=weight)
        checks.tensors_or_none("conv2d", bias=bias)
        added, groups = None if bias is None else bias.uop, checks.integer("conv2d", groups=groups)
        return self._with(convolve(self.uop, weight.uop, added, groups, stride, dilation, padding,
                                   checks.dtype_or_none(dtype)), weight, bias)

    def conv_transpose2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Sizes = 1,
                         dilation: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0) -> Self:
        """The transposed convolution of (batch, in, ...space) with a weight of (in, out / groups, ...kernel): each
        input element writes a kernel, `stride` apart.

        >>> Tensor([[[[1, 2]]]]).conv_transpose2d(Tensor.ones(1, 1, 1, 2, dtype=dtypes.int32)).tolist()
        [[[[1, 3, 2]]]]
        """
        checks.tensors("conv_transpose2d", weight=weight)
        checks.tensors_or_none("conv_transpose2d", bias=bias)
        added, groups = None if bias is None else bias.uop, checks.integer("conv_transpose2d", groups=groups)
        return self._with(convolve_transposed(self.uop, weight.uop, added, groups, stride, dilation, padding,
                                              output_padding), weight, bias)
