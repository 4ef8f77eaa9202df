"""The short names of casts. In: a tensor. Out: the same values in another type.

A room of its own because its methods are called float, int and bool, which would hide Python's own in a larger class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassgrad.graph.dtype import dtypes
from glassgrad.tensor.core import Core

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Casts"]


class Casts(Core):
    """x.float(), x.half(), x.int(), ..."""
    __slots__ = ()

    def float(self) -> Self:
        """The values as float32.

        >>> Tensor([1, 2]).float().tolist()
        [1.0, 2.0]
        """
        return self.cast(dtypes.float32)

    def half(self) -> Self:
        """The values as float16.

        >>> Tensor([0.5]).half().dtype
        dtypes.float16
        """
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """The values as bfloat16.

        >>> Tensor([0.5]).bfloat16().dtype
        dtypes.bfloat16
        """
        return self.cast(dtypes.bfloat16)

    def double(self) -> Self:
        """The values as float64.

        >>> Tensor([0.5]).double().dtype
        dtypes.float64
        """
        return self.cast(dtypes.float64)

    def int(self) -> Self:
        """The values as int32, rounded toward zero.

        >>> Tensor([-1.5]).int().tolist()
        [-1]
        """
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """The values as int64, rounded toward zero.

        >>> Tensor([2.5]).long().tolist()
        [2]
        """
        return self.cast(dtypes.int64)

    def bool(self) -> Self:
        """Whether each value differs from zero.

        >>> Tensor([0, 2]).bool().tolist()
        [False, True]
        """
        return self.cast(dtypes.bool)
