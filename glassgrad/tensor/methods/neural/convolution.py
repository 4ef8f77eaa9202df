"""Convolutions and their transposes: windows, then a sum of products. In, out: tensors.

Shapes are (batch, channels, ...space) with any number of space axes. Nothing is copied to make the windows. A
transposed convolution is written with the adjoint of the windows, so that it too is one sum of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, promote
from glassgrad.tensor.autograd.autocast import lowered
from glassgrad.tensor.broadcast import whole
from glassgrad.tensor.formulas.windows import Windows
from glassgrad.tensor.methods.reduce import sum_dtype
from glassgrad.tensor.methods.shape.indexing import Indexing

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
                         expected=f"an integer of {least} or more, or {rank} of them",
                         fix=f"write {what}={least}, for example")
    return sizes  # type: ignore[return-value]


class Convolution(Indexing):
    """Convolutions and their transposes."""
    __slots__ = ()

    # -- padding ---------------------------------------------------------------------------------------------
    def _space_padding(self, padding: Any, rank: int) -> list[tuple[int, int]]:
        """Padding as (before, after) per space axis, from an int, one per axis, or two, from the last backward."""
        one = whole(padding)
        given = [one] * rank if one is not None else \
            [whole(n) for n in padding] if isinstance(padding, (tuple, list)) else []
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

    def _check_space(self, what: str, pairs: list[tuple[int, int]], size: Sequence[int],
                     dilation: Sequence[int]) -> None:
        space = self.shape[-len(size):]
        for n, (before, after), k, d in zip(space, pairs, size, dilation):
            if n + before + after < d * (k - 1) + 1:
                raise ShapeError(f"the window of {what} is larger than the padded input",
                                 given=f"a window of {tuple(size)} (dilation {tuple(dilation)}) on {space} "
                                       f"padded by {pairs}",
                                 expected="a window that fits", fix="pad more, or use a smaller kernel")

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
                             fix="check the layer's in_channels and groups; add a batch axis with x.unsqueeze(0)")
        size, strides = w.shape[2:], each(stride, rank, "stride")
        dilations, pairs = each(dilation, rank, "dilation"), self._space_padding(padding, rank)
        self._check_space("conv2d", pairs, size, dilations)
        place = self._shared_device(weight) if self._device is not weight._device else self._device
        out = dtype_by_name(dtype) if dtype is not None else sum_dtype(promote(x.dtype, w.dtype))
        wide = out.accumulator
        x, w = x.cast(wide), w.cast(wide)
        batch, outputs, inputs = x.shape[0], w.shape[0] // groups, w.shape[1]
        seen = Windows(size, strides, dilations).seen(self._with(x)._pad_constant([(0, 0), (0, 0), *pairs], 0).uop)
        space = seen.shape[2:2 + rank]
        # (batch, group, 1, ...space, in, ...kernel) * (1, group, out, 1.., in, ...kernel), summed over the last axes
        seen = seen.reshape((batch, groups, inputs, *space, *size))
        seen = seen.permute((0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)))
        full_shape = (batch, groups, outputs, *space, inputs, *size)
        seen = seen.reshape((batch, groups, 1, *space, inputs, *size)).expand(full_shape)
        w = w.reshape((1, groups, outputs, *(1,) * rank, inputs, *size)).expand(full_shape)
        total = (seen * w).sum(range(3 + rank, len(full_shape))).cast(out)
        made = self._kin(weight)._with(total.reshape((batch, groups * outputs, *space)))
        made._device = place
        return made if bias is None else made + bias._with(lowered(bias.uop)).reshape((1, -1) + (1,) * rank)

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
                fix="check the layer's in_channels and groups; add a batch axis with x.unsqueeze(0)",
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
                    fix="pad less, or pass output_padding",
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
        made = self._kin(weight)._with(total.reshape((batch, groups * outputs, *space)))
        made._device = place
        return made if bias is None else made + bias._with(lowered(bias.uop)).reshape((1, -1) + (1,) * rank)
