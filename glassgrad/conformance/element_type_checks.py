"""Check element types: one set of cases for each dtype, against the device PYTHON. Out: cases.

A device that lacks a type refuses it by name (`DeviceError` or `DTypeError`); the report lists it as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.conformance.case import REFERENCE, Case, Compared, on, seeded
from glassgrad.tensor.tensor import Tensor

Formula = Callable[[Tensor, Tensor], Tensor]
FORMULAS: dict[str, tuple[Formula, float]] = {              # formula, and how often it rounds
    "there and back": (lambda x, y: x, 1),
    "arithmetic and comparison": (lambda x, y: (x < y).where(x * y + x, y), 2),
    "sum and maximum": (lambda x, y: x.max(0) + y.sum(1), 4),
    "product of matrices": (lambda x, y: x[:5] @ y, 4),
    "to float32 and back": (lambda x, y: (x.float() * 0.5).cast(x.dtype), 1),
    "a view": (lambda x, y: x.T.flip(0).pad(((1, 0), (0, 2))), 1),
}


def element_types() -> Iterator[Case]:
    """Return a case for every dtype and each formula."""
    for dtype in dtypes.all:
        for name, (formula, factor) in FORMULAS.items():
            yield Case(f"{dtype.name}: {name}", partial(_compare, dtype=dtype, formula=formula, factor=factor))
        if dtypes.is_int(dtype):
            yield Case(f"{dtype.name}: limits", partial(_limits, dtype=dtype))


def _operands(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of values that the type can hold."""
    if dtype is dtypes.bool:
        return seeded(7, 7, dtype="bool"), seeded(7, 7, dtype="bool", seed=1)
    low, kind = (0 if dtypes.is_unsigned(dtype) else -9, dtype.name) if dtypes.is_int(dtype) else (-2, "float32")
    return seeded(7, 7, low=low, high=9, dtype=kind), seeded(7, 7, low=low, high=9, dtype=kind, seed=1)


def _compare(device: str, dtype: DType, formula: Formula, factor: float) -> Compared:
    arrays = _operands(dtype)
    got, expected = (formula(*[on(name, array, dtype) for array in arrays]) for name in (device, REFERENCE))
    return Compared(f"{dtype.name}[7, 7], {dtype.name}[7, 7]", got, expected.numpy(), factor)


def _limits(device: str, dtype: DType) -> Compared:
    """Double the smallest and largest integer, which wraps around, and compare and shift them."""
    array = np.array([dtype.min, dtype.max, 0, 1, 5], dtype.name)
    got, expected = ((x * 2).cat((x >> 1), (x < 5).cast(dtype)) for x in (on(d, array) for d in (device, REFERENCE)))
    return Compared(f"{dtype.name}: {array.tolist()}", got, expected.numpy())
