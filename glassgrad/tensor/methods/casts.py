"""The short names of casts. In: a tensor. Out: the same values in another type.

A room of its own because its methods are called float, int, bool and type, which would hide Python's own in a larger
class.
"""

from __future__ import annotations

from typing import Any

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.tensor import checks
from glassgrad.tensor.base import Self, TensorBase

__all__ = ["CastMixin"]


class CastMixin(TensorBase):
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

    def short(self) -> Self:
        """The values as int16.

        >>> Tensor([1]).short().dtype
        dtypes.int16
        """
        return self.cast(dtypes.int16)

    def byte(self) -> Self:
        """The values as uint8.

        >>> Tensor([1]).byte().dtype
        dtypes.uint8
        """
        return self.cast(dtypes.uint8)

    def char(self) -> Self:
        """The values as int8.

        >>> Tensor([1]).char().dtype
        dtypes.int8
        """
        return self.cast(dtypes.int8)

    def bool(self) -> Self:
        """Whether each value differs from zero.

        >>> Tensor([0, 2]).bool().tolist()
        [False, True]
        """
        return self.cast(dtypes.bool)

    def type_as(self, other: Self) -> Self:
        """The values in another tensor's type.

        >>> Tensor([1]).type_as(Tensor([1.0])).dtype
        dtypes.float32
        """
        checks.tensors("type_as", other=other)
        return self.cast(other.dtype)

    def type(self, dtype: DType | str | None = None) -> Any:
        """The values in another type; without one, the name of this type.

        >>> Tensor([1]).type(dtypes.float32).tolist(), Tensor([1]).type()
        ([1.0], 'int32')
        """
        return self.dtype.name if dtype is None else self.cast(dtype)
