"""Padding as layers: more elements at both ends of the axes of space. In, out: (batch, channels, ...space), perhaps
without batch.

`padding` is one number for all sides, or (left, right, top, bottom, front, back), from the last axis backward, as
`Tensor.pad` takes it; negative numbers cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.base.errors import InputError
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.broadcast import whole
from glassgrad.tensor.tensor import Tensor

__all__ = ["ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "ReflectionPad1d",
           "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
           "CircularPad1d", "CircularPad2d", "CircularPad3d"]


class _Pad(Layer):
    """Padding over the last `rank` axes."""
    shows: tuple[str, ...] = ("padding",)
    rank, mode = 2, "constant"

    def __init__(self, padding: int | Sequence[int]):
        sizes = (padding,) * (2 * self.rank) if whole(padding) is not None else \
            tuple(padding) if isinstance(padding, (tuple, list)) else ()
        if len(sizes) != 2 * self.rank or any(whole(n) is None for n in sizes):
            raise InputError(f"{type(self).__name__} pads {self.rank} {'axis' if self.rank == 1 else 'axes'}",
                             given=f"padding={padding!r}", expected=f"an integer, or {2 * self.rank} of them",
                             fix="write one number for all sides")
        self.padding, self.value = tuple(whole(n) or 0 for n in sizes), 0.0

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < self.rank or self.mode != "constant" and x.ndim not in (self.rank + 1, self.rank + 2):
            self._refuse(f"an input of shape {x.shape}", f"(batch, channels, ...space) with {self.rank} space axes",
                         "reshape the input")
        return x.pad(self.padding, mode=self.mode, value=self.value)


class _ConstantPad(_Pad):
    """Padding with a value."""
    shows = ("padding", "value")

    def __init__(self, padding: int | Sequence[int], value: float):
        super().__init__(padding)
        self.value = value


class ConstantPad1d(_ConstantPad):
    """A value around one axis.

    >>> ConstantPad1d(1, 7.0)(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[7.0, 1.0, 2.0, 3.0, 7.0]]]
    """
    rank = 1


class ConstantPad2d(_ConstantPad):
    """A value around two axes.

    >>> ConstantPad2d(1, 7.0)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """


class ConstantPad3d(_ConstantPad):
    """A value around three axes.

    >>> ConstantPad3d(1, 7.0)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """
    rank = 3


class ZeroPad1d(_Pad):
    """Zeros around one axis.

    >>> ZeroPad1d((1, 0))(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[0.0, 1.0, 2.0, 3.0]]]
    """
    rank = 1


class ZeroPad2d(_Pad):
    """Zeros around two axes.

    >>> ZeroPad2d(1)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """


class ZeroPad3d(_Pad):
    """Zeros around three axes.

    >>> ZeroPad3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """
    rank = 3


class ReflectionPad1d(_Pad):
    """The values mirrored at the edge around one axis.

    >>> ReflectionPad1d(1)(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[2.0, 1.0, 2.0, 3.0, 2.0]]]
    """
    rank, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """The values mirrored at the edge around two axes.

    >>> ReflectionPad2d(1)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """
    rank, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """The values mirrored at the edge around three axes.

    >>> ReflectionPad3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """
    rank, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The value at the edge around one axis.

    >>> ReplicationPad1d(1)(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 3.0, 3.0]]]
    """
    rank, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The value at the edge around two axes.

    >>> ReplicationPad2d(1)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """
    rank, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The value at the edge around three axes.

    >>> ReplicationPad3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """
    rank, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """The values of the other side around one axis.

    >>> CircularPad1d(1)(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[3.0, 1.0, 2.0, 3.0, 1.0]]]
    """
    rank, mode = 1, "circular"


class CircularPad2d(_Pad):
    """The values of the other side around two axes.

    >>> CircularPad2d(1)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """
    rank, mode = 2, "circular"


class CircularPad3d(_Pad):
    """The values of the other side around three axes.

    >>> CircularPad3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """
    rank, mode = 3, "circular"
