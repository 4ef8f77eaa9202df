"""Define casts by their short names, and predicates. In: a tensor. Out: its values in another type, or a plain answer.

The casts have a class of their own because they are called float, int, bool and type, which would hide Python's own
names in the annotations of other methods.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.graph import DType, dtypes, full
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas.movement import matrix_transpose
from glassgrad.tensor.methods import Self, TensorBase, arguments, two_axes, working_axis


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
        return self.cast(arguments("type_as", other=other)[0].dtype)

    def type(self, dtype: DType | str | None = None) -> Any:
        """The values in another type; without one, the name of this type.

        >>> Tensor([1]).type(dtypes.float32).tolist(), Tensor([1]).type()
        ([1.0], 'int32')
        """
        return self.dtype.name if dtype is None else self.cast(dtype)


class PredicatesMixin(TensorBase):
    """Plain answers about a tensor. There are no complex numbers, so every value is real and its own conjugate, and the
    only memory layout is row by row."""
    __slots__ = ()

    def is_complex(self) -> bool:
        """False: there are no complex numbers here.

        >>> Tensor([1.0]).is_complex()
        False
        """
        return False

    def is_signed(self) -> bool:
        """Whether its type has negative numbers.

        >>> Tensor([1]).is_signed(), Tensor([True]).is_signed()
        (True, False)
        """
        return self.dtype.kind in "if"

    def is_nonzero(self) -> bool:
        """Whether its only element is not zero.

        >>> Tensor([0.0]).is_nonzero()
        False
        """
        if self.numel() != 1:
            raise ShapeError("several values are not one truth", given=f"a tensor of shape {self.shape}",
                             expected="1 element", fix="ask x.any() or x.all()")
        return bool(running.number_in(self.uop.reshape(()).cast(dtypes.bool), self.device))

    def is_same_size(self, other: Self) -> bool:
        """Whether both have the same shape.

        >>> Tensor([1, 2]).is_same_size(Tensor([3, 4]))
        True
        """
        return bool(self.shape == arguments("is_same_size", other=other)[0].shape)

    def is_contiguous(self) -> bool:
        """True: values are read row by row, whatever order they were computed in.

        >>> Tensor([[1, 2]]).T.is_contiguous()
        True
        """
        return True

    def isreal(self) -> Self:
        """Whether each value is a real number: all are.

        >>> Tensor([1.0]).isreal().tolist()
        [True]
        """
        return self._with(full(self.shape, True, dtypes.bool))

    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """The row-major stride of each axis (or of `dim`), in elements.

        >>> Tensor.zeros(2, 3).stride(), Tensor.zeros(2, 3).stride(0)
        ((3, 1), 3)
        """
        steps = tuple(math.prod(max(n, 1) for n in self.shape[axis + 1:]) for axis in range(self.ndim))
        return steps if dim is None else steps[working_axis(dim, self.ndim, "stride")]

    @property
    def itemsize(self) -> int:
        """Bytes per element.

        >>> Tensor([1.0]).itemsize
        4
        """
        return self.element_size()

    @property
    def is_cpu(self) -> bool:
        """Whether the values are in the memory of the host.

        >>> Tensor([1.0]).to("CPU").is_cpu
        True
        """
        return self.device in ("CPU", "CLANG", "PYTHON")

    # -- operations on complex numbers -----------------------------------------------------------------------
    @property
    def mH(self) -> Self:
        """Matrices with rows and columns exchanged; `mT`, for real numbers.

        >>> Tensor([[1, 2], [3, 4]]).mH.tolist()
        [[1, 3], [2, 4]]
        """
        two_axes("the transpose of matrices", self.shape)
        return self._view(matrix_transpose(self.uop))

    @property
    def H(self) -> Self:
        """A matrix with rows and columns exchanged; `T`, for real numbers.

        >>> Tensor([[1, 2]]).H.tolist()
        [[1], [2]]
        """
        return self._view(matrix_transpose(self.uop)) if self.ndim > 1 else self

    def adjoint(self) -> Self:
        """Matrices with rows and columns exchanged; `mT`, for real numbers.

        >>> Tensor([[1, 2]]).adjoint().tolist()
        [[1], [2]]
        """
        return self.mH

    def conj(self) -> Self:
        """The values themselves: they are real.

        >>> Tensor([1.0]).conj().tolist()
        [1.0]
        """
        return self
