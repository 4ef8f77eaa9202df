"""Define padding as layers: elements added at both ends of the space axes. In, out: (batch, channels, ...space); the
batch may be left out.

`padding` is one number for all sides, or (left, right, top, bottom, front, back), from the last axis backward, as in
`Tensor.pad`; negative numbers crop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.modules.layer import Layer
from glassgrad.tensor.broadcast import whole
from glassgrad.tensor.tensor import Tensor


def _sizes(layer: Any, padding: int | Sequence[int]) -> tuple[int, ...]:
    """Return the padding at both ends of each space axis."""
    sizes = (padding,) * (2 * layer.rank) if whole(padding) is not None else \
        tuple(padding) if isinstance(padding, (tuple, list)) else ()
    if len(sizes) != 2 * layer.rank or any(whole(n) is None for n in sizes):
        raise InputError(f"{type(layer).__name__} pads {layer.rank} {'axis' if layer.rank == 1 else 'axes'}",
                         given=f"padding={padding!r}", expected=f"an integer, or {2 * layer.rank} of them",
                         fix="write one number for all sides")
    return tuple(whole(n) or 0 for n in sizes)


class _Pad(Layer):
    """The base: padding over the last `rank` axes, with a constant or with values of the input."""
    shows: tuple[str, ...] = ("padding",)
    mode, value = "constant", 0.0

    def __init__(self, padding: int | Sequence[int]):
        self.padding = _sizes(self, padding)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < self.rank or self.mode != "constant":
            self._check_space(x)
        return x.pad(self.padding, self.mode, self.value)


class _GivenValue:
    """The base of padding with a constant that is a setting."""
    shows: tuple[str, ...] = ("padding", "value")

    def __init__(self, padding: int | Sequence[int], value: float):
        self.padding, self.value = _sizes(self, padding), value


class ConstantPad1d(_GivenValue, _Pad, rank=1):
    """A constant around one axis.

    >>> ConstantPad1d(1, 7.0)(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[7.0, 1.0, 2.0, 3.0, 7.0]]]
    """


class ConstantPad2d(_GivenValue, _Pad, rank=2):
    """A constant around two axes.

    >>> ConstantPad2d(1, 7.0)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """


class ConstantPad3d(_GivenValue, _Pad, rank=3):
    """A constant around three axes.

    >>> ConstantPad3d(1, 7.0)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """


class ZeroPad1d(_Pad, rank=1):
    """Zeros around one axis.

    >>> ZeroPad1d((1, 0))(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[0.0, 1.0, 2.0, 3.0]]]
    """


class ZeroPad2d(_Pad, rank=2):
    """Zeros around two axes.

    >>> ZeroPad2d(1)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """


class ZeroPad3d(_Pad, rank=3):
    """Zeros around three axes.

    >>> ZeroPad3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """


class ReflectionPad1d(_Pad, rank=1, mode="reflect"):
    """The values mirrored at the edge around one axis.

    >>> ReflectionPad1d(1)(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[2.0, 1.0, 2.0, 3.0, 2.0]]]
    """


class ReflectionPad2d(_Pad, rank=2, mode="reflect"):
    """The values mirrored at the edge around two axes.

    >>> ReflectionPad2d(1)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """


class ReflectionPad3d(_Pad, rank=3, mode="reflect"):
    """The values mirrored at the edge around three axes.

    >>> ReflectionPad3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """


class ReplicationPad1d(_Pad, rank=1, mode="replicate"):
    """The value at the edge around one axis.

    >>> ReplicationPad1d(1)(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 3.0, 3.0]]]
    """


class ReplicationPad2d(_Pad, rank=2, mode="replicate"):
    """The value at the edge around two axes.

    >>> ReplicationPad2d(1)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """


class ReplicationPad3d(_Pad, rank=3, mode="replicate"):
    """The value at the edge around three axes.

    >>> ReplicationPad3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """


class CircularPad1d(_Pad, rank=1, mode="circular"):
    """The values of the opposite edge around one axis.

    >>> CircularPad1d(1)(Tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[3.0, 1.0, 2.0, 3.0, 1.0]]]
    """


class CircularPad2d(_Pad, rank=2, mode="circular"):
    """The values of the opposite edge around two axes.

    >>> CircularPad2d(1)(Tensor.ones(1, 2, 3, 4)).shape
    (1, 2, 5, 6)
    """


class CircularPad3d(_Pad, rank=3, mode="circular"):
    """The values of the opposite edge around three axes.

    >>> CircularPad3d(1)(Tensor.ones(1, 2, 3, 4, 5)).shape
    (1, 2, 5, 6, 7)
    """
