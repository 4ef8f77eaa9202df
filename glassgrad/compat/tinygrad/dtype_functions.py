"""Provide tinygrad.dtype's functions of single numbers: rounding to a type, bits of narrow floats, types of other
libraries.

In: Python numbers and types. Out: the same. PyTorch's types are available when PyTorch is loaded.
"""

from __future__ import annotations

import functools
import math
import struct
import sys
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import DTypeError
from glassgrad.compiler.graph.dtype import ALL, DType, bits_of, convert, dtypes, float_of_bits, largest, promote
from glassgrad.compiler.graph.rules.algebra import holds_all
from glassgrad.tensor.memory.python_values import TORCH_TYPES

DTYPES_DICT: dict[str, DType] = {d.name: d for d in ALL}
INVERSE_DTYPES_DICT: dict[str, str] = {d.name: d.name for d in ALL}
# {type: a function that rounds or wraps a number to it}
truncate: dict[DType, Callable[[Any], Any]] = {d: functools.partial(convert, dtype=d) for d in ALL}


def truncate_fp16(x: float) -> float:
    """A number rounded to float16.

    >>> truncate_fp16(0.1), truncate_fp16(1e6)
    (0.0999755859375, inf)
    """
    return float(convert(x, dtypes.float16))


def truncate_bf16(x: float) -> float:
    """A number rounded to bfloat16.

    >>> truncate_bf16(0.1)
    0.10009765625
    """
    return float(convert(x, dtypes.bfloat16))


def float_to_fp16(x: float) -> float: return truncate_fp16(x)
def float_to_bf16(x: float) -> float: return truncate_bf16(x)


def fp8_to_float(x: int, dtype: DType) -> float:
    """The value of an 8-bit float, given by its bits.

    >>> fp8_to_float(0x7E, dtypes.fp8e4m3), fp8_to_float(0x7C, dtypes.fp8e5m2)
    (448.0, inf)
    """
    return float_of_bits(x % (1 << dtype.bits), dtype)


def float_to_fp8(x: float, dtype: DType) -> int:
    """The bits of the nearest 8-bit float, ties to even. Finite numbers saturate; infinity and NaN get the codes above
    the greatest finite one.

    >>> float_to_fp8(448.0, dtypes.fp8e4m3), float_to_fp8(-1e9, dtypes.fp8e5m2), float_to_fp8(-0.0, dtypes.fp8e5m2fnuz)
    (126, 251, 0)
    """
    greatest = bits_of(largest(dtype), dtype)
    if x != x:
        code = 0x7E if dtype is dtypes.fp8e5m2 else dtype.nan
    elif math.isinf(x):
        code = greatest + 1
    else:
        code = min(range(greatest + 1), key=lambda code: (abs(float_of_bits(code, dtype) - abs(x)), code & 1))
    return code | 0x80 if math.copysign(1.0, x) < 0 and (code or dtype.has_negative_zero) else code


def from_storage_scalar(x: Any, dtype: DType) -> Any:
    """The value of a stored scalar: bfloat16 and fp8 are stored as bits, other types as themselves.

    >>> from_storage_scalar(0x3F80, dtypes.bfloat16), from_storage_scalar(5, dtypes.int32)
    (1.0, 5)
    """
    return x if dtype.in_numpy else fp8_to_float(int(x), dtype)


def to_storage_scalar(x: Any, dtype: DType) -> Any:
    """The inverse of `from_storage_scalar`.

    >>> hex(to_storage_scalar(1.0, dtypes.bfloat16))
    '0x3f80'
    """
    if dtype is dtypes.bfloat16:
        return bits_of(x, dtype)
    return float_to_fp8(float(convert(x, dtypes.float32)), dtype) if dtype in dtypes.fp8s else x


def bitcast(x: Any, in_dtype: DType, out_dtype: DType) -> Any:
    """A number's bits, read as another type of the same size.

    >>> bitcast(1.0, dtypes.float32, dtypes.int32) == 0x3F800000
    True
    """
    for kind in (in_dtype, out_dtype):
        if not kind.in_numpy:
            raise DTypeError("this type's bits have no name in Python", given=repr(kind),
                             expected="a type of struct's: float16, float32, float64 or integers",
                             fix="use Tensor.bitcast, which has all types")
    return struct.unpack(out_dtype.format, struct.pack(in_dtype.format, x))[0]


def can_lossless_cast(dt0: DType, dt1: DType) -> bool:
    """Whether every value of the first type is one of the second.

    >>> can_lossless_cast(dtypes.uint8, dtypes.int16), can_lossless_cast(dtypes.int32, dtypes.float32)
    (True, False)
    """
    return holds_all(dt1, dt0)


def can_safe_cast(dt0: DType, dt1: DType) -> bool:
    """Return whether promoting the two types gives the second (an older name)."""
    return promote(dt0, dt1) is dt1


def _to_torch_dtype(kind: DType) -> Any:
    """The PyTorch dtype with this memory layout; as in tinygrad, 8-bit floats are uint8."""
    name = "uint8" if kind in dtypes.fp8s else kind.name
    return getattr(sys.modules.get("torch"), name, None)     # the caller has imported it


def _from_torch_dtype(kind: Any) -> DType:
    found = TORCH_TYPES.get(str(kind).removeprefix("torch."))
    if found is None:
        raise DTypeError("this PyTorch type has no counterpart", given=str(kind),
                         expected="numbers or truth values", fix="convert it first: t.float()")
    return found
