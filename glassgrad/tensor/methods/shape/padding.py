"""Change sizes at the ends of axes: pad, shrink, narrow. In: tensors. Out: views, and tensors with a border."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import ModeError, ShapeError
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.tensor.formulas.movement import joined, pad_constant, part, repeat_interleave
from glassgrad.tensor.methods import (REQUIRED, Self, TensorBase, arguments, choice, of_kind, one_row, plain_number,
                                      resolve_axis, shape_from, spelled)

Padding = Sequence[Any]     # pairs (before, after) or None for every axis, or numbers from the last axis backward


class PaddingMixin(TensorBase):
    """Methods that add elements around a tensor, or cut some off."""
    __slots__ = ()

    # -- smaller -------------------------------------------------------------------------------------------------
    def shrink(self, bounds: Sequence[tuple[int, int] | None] = REQUIRED, **spelling: Any) -> Self:
        """The part between (start, stop) on every axis; None keeps an axis whole.

        >>> Tensor([1, 2, 3, 4]).shrink(((1, 3),)).tolist()
        [2, 3]
        """
        bounds, = spelled("shrink", spelling, bounds=bounds)
        bounds = of_kind("list", "shrink", bounds=bounds)
        shape = self.uop.shape
        parts = tuple((0, n) if b is None else shape_from((b,), "shrink") for b, n in zip(bounds, shape))
        if len(bounds) != len(shape) or any(len(b) != 2 or not 0 <= b[0] <= b[1] <= n for b, n in zip(parts, shape)):
            raise ShapeError("cannot shrink to these bounds", given=f"{tuple(bounds)} of shape {shape}",
                             expected="one (start, stop) per axis with 0 <= start <= stop <= size",
                             fix="check the bounds")
        return self._view(self.uop.shrink(parts))  # type: ignore[arg-type]

    def narrow(self, dim: int = REQUIRED, start: int = REQUIRED, length: int = REQUIRED, **spelling: Any) -> Self:
        """`length` elements of an axis, from `start` on.

        >>> Tensor([1, 2, 3]).narrow(0, 1, 2).tolist()
        [2, 3]
        """
        dim, start, length = arguments("narrow", spelling, dim=dim, start=start, length=length)
        axis = resolve_axis(dim, self.ndim, "narrow")
        n = self.shape[axis] if self.ndim else 0
        first = start + n if start < 0 else start
        if not 0 <= first <= first + length <= n:
            raise ShapeError("cannot shrink to these bounds", given=f"{(first, first + length)} of an axis of {n}",
                             expected="0 <= start <= start + length <= size", fix="check the bounds")
        return self._view(part(self.uop, axis, first, first + length))

    def shrink_to(self, shape: Any = REQUIRED, *more: Any, **spelling: Any) -> Self:
        """The tensor cut at the end of every axis to a shape; None keeps a size.

        >>> Tensor([1, 2, 3]).shrink_to(2).tolist()
        [1, 2]
        """
        shape, = spelled("shrink_to", spelling, shape=shape)
        sizes = self._sizes_for((shape, *more), "shrink_to")
        if any(not 0 <= m <= n for n, m in zip(self.shape, sizes)):
            raise ShapeError("cannot shrink to these bounds", given=f"{sizes} of shape {self.shape}",
                             expected="sizes from 0 to those there are", fix="check the sizes")
        return self._view(self.uop.shrink([(0, m) for m in sizes]))

    # -- larger --------------------------------------------------------------------------------------------------
    def pad(self, padding: Padding, mode: str = "constant", value: float = 0.0) -> Self:
        """The tensor with more elements around it: ((before, after), ...) for every axis (None: none), or a flat (left,
        right, top, ...) from the last axis backward as in PyTorch; negative amounts cut. Modes: constant, reflect,
        replicate, circular.

        >>> Tensor([1, 2]).pad((1, 2)).tolist(), Tensor([1, 2]).pad(((1, 0),), value=9).tolist()
        ([0, 1, 2, 0, 0], [9, 1, 2])
        """
        x = self.uop
        amounts = _amounts(of_kind("list", "pad", padding=padding), x.shape)
        choice("there is no such way to pad", "check the spelling", mode=mode, error=ModeError,
               among=("constant", "reflect", "replicate", "circular"))
        if mode == "constant":
            return self._with(pad_constant(x, amounts, self._filler(value)))
        for axis, (before, after) in enumerate(amounts):
            x = _pad_from_inside(x, axis, before, after, mode)
        return self._with(x)

    def pad_to(self, shape: Any = REQUIRED, *more: Any, value: float = 0, **spelling: Any) -> Self:
        """The tensor padded at the end of every axis to a shape; None keeps a size.

        >>> Tensor([1, 2]).pad_to(4).tolist()
        [1, 2, 0, 0]
        """
        shape, = spelled("pad_to", spelling, shape=shape)
        sizes = self._sizes_for((shape, *more), "pad_to")
        amounts = _amounts([(0, m - n) for n, m in zip(self.shape, sizes)], self.shape)
        return self._with(pad_constant(self.uop, amounts, self._filler(value)))

    def _filler(self, value: Any) -> Any:
        """Return a number to pad with, in this tensor's type."""
        number = plain_number(value, "to pad with", "a number")
        return number if number == 0 else self._number(number, self.dtype, o.WHERE)

    def _sizes_for(self, shape: tuple[Any, ...], what: str) -> tuple[int, ...]:
        sizes = one_row(shape)
        if len(sizes) != self.ndim:
            raise ShapeError(f"{what} needs one size per axis", given=f"{sizes} for shape {self.shape}",
                             expected=f"{self.ndim} sizes", fix="write None for axes to leave alone")
        return shape_from(tuple(n if m is None else m for n, m in zip(self.shape, sizes)), what)


def _amounts(padding: Sequence[Any], shape: tuple[Any, ...]) -> list[tuple[int, int]]:
    """Return padding as (before, after) for every axis."""
    rank = len(shape)
    amounts: list[tuple[int, int]]
    if all(p is None or isinstance(p, (tuple, list)) for p in padding) and len(padding):
        pairs = [(0, 0) if p is None else shape_from((p,), "pad") for p in padding]
        fits = len(pairs) == rank and all(len(p) == 2 for p in pairs)
        amounts = [(p[0], p[1]) for p in pairs] if fits else []
    else:
        flat = shape_from((padding,), "pad")
        fits = len(flat) % 2 == 0 and len(flat) <= 2 * rank
        backward = list(zip(flat[::2], flat[1::2]))[::-1]
        amounts = [(0, 0)] * (rank - len(backward)) + backward
    if not fits:
        raise ShapeError("the padding does not fit the axes", given=f"{tuple(padding)} for shape {shape}",
                         expected=f"{rank} pairs (before, after), or at most {2 * rank} numbers from the last axis "
                                  "backward", fix="write None for axes to leave alone: (None, (1, 1))")
    if any(n + b + a < 0 for n, (b, a) in zip(shape, amounts)):
        raise ShapeError("the padding cuts away more than there is", given=f"{amounts} for shape {shape}",
                         expected="sizes of 0 or more", fix="cut less")
    return amounts


def _pad_from_inside(x: UOp, axis: int, before: int, after: int, mode: str) -> UOp:
    """Pad an axis by reflecting, repeating or wrapping around its own elements."""
    n = x.shape[axis]
    if before < 0 or after < 0:
        grown = max(before, 0), max(after, 0)
        cut = [(min(before, 0), min(after, 0)) if i == axis else (0, 0) for i in range(len(x.shape))]
        if mode == "circular":      # wraps around what is left after cropping; other modes copy from the whole axis
            return _pad_from_inside(pad_constant(x, cut), axis, *grown, mode)
        return pad_constant(_pad_from_inside(x, axis, *grown, mode), cut)
    if before == after == 0:
        return x
    reach = {"reflect": n - 1, "circular": n, "replicate": before + after if n else 0}[mode]
    if max(before, after) > reach:
        raise ShapeError(f"cannot pad with mode={mode!r} by more than there is to copy",
                         given=f"({before}, {after}) on an axis of size {n}", expected=f"at most {reach} on each side",
                         fix='pad less, or use mode="replicate"')
    if mode == "reflect":
        left, right = part(x, axis, 1, before + 1).flip((axis,)), part(x, axis, n - 1 - after, n - 1).flip((axis,))
    elif mode == "circular":
        left, right = part(x, axis, n - before, n), part(x, axis, 0, after)
    else:
        left, right = (repeat_interleave(part(x, axis, start, start + 1), times, axis)
                       for start, times in ((0, before), (n - 1, after)))
    return joined([left, x, right], axis)
