"""Leaves for graph tests: BUFFER nodes without a device, and arrays of awkward values for every element type."""

from __future__ import annotations

import platform

import numpy as np

from glassgrad.compiler.check.graph_interpreter import array_type, cast_array, interpret
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import ALL, DType, dtype_by_name, dtypes, largest
from glassgrad.compiler.graph.uop import UOp

FLOATS = [d for d in ALL if d.kind == "f"]
INTEGERS = [d for d in ALL if d.kind in "iu"]


class Stored:
    """What a BUFFER node needs of its buffer: a shape, a type, a device, an identity, its readers and its leaves."""

    def __init__(self, shape: tuple[int, ...], dtype: DType, device: str | None = None):
        self.shape, self.dtype, self.device = shape, dtype, device
        self.readers: list[object] = []
        self.leaves: list[object] = []

    def add_reader(self, reference: object) -> None:
        """Nothing is written over here, so who reads it does not matter."""

    def add_leaf(self, reference: object) -> None:
        """Nor which tensors show it."""


def buffer(shape: tuple[int, ...], dtype: DType = dtypes.float32, device: str | None = None) -> UOp:
    return UOp(o.BUFFER, dtype, (), Stored(tuple(shape), dtype, device))


class Values(dict):
    """The arrays of a test's leaves: `x = values.leaf(array)` makes one."""

    def leaf(self, array: object, dtype: DType | None = None) -> UOp:
        array = np.asarray(array)
        if dtype is None:
            dtype = dtype_by_name(array.dtype.name)
        node = buffer(array.shape, dtype)
        self[node] = cast_array(array, dtype) if array.dtype != array_type(dtype) else array
        return node

    def of(self, node: UOp) -> np.ndarray:
        return interpret([node], self)[0]


def awkward(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Random values of a type, many of them the ones that break things: inf, nan, -0.0, limits, halves."""
    size = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "f":
        top, tiny = largest(dtype), 2.0 ** (1 - dtype.bias)
        special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, 2.5, -2.5, 3.0, top, -top, tiny, -tiny, tiny / 2,
                   np.inf, -np.inf, np.nan]
        ordinary = rng.standard_normal(size) * 4.0 ** rng.integers(-3, 4, size)
        mixed = np.where(rng.random(size) < 0.4, rng.choice(special, size), ordinary)
        return cast_array(mixed.reshape(shape), dtype)
    low, high = int(dtype.min), int(dtype.max)
    special_integers = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7] + ([-1, -2, -3, -7] if low < 0 else [])
    chosen = [int(rng.choice(len(special_integers))) for _ in range(size)]
    small = rng.integers(max(low, -20), 21, size)
    picked = [special_integers[c] if rng.random() < 0.5 else int(s) for c, s in zip(chosen, small)]
    return np.array(picked, dtype=array_type(dtype)).reshape(shape)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in shape, type and bits, where every NaN equals every other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a) & ~np.isnan(a),
                                                                        np.signbit(b) & ~np.isnan(b)))


def conversion_is_defined(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Where PyTorch's conversion does not depend on the processor: C leaves a float beyond an integer type open. On x86
    it wraps, which is the meaning of CAST here on every processor; on ARM PyTorch's saturates. NaN of a *fnuz* type
    becomes 0 in some of PyTorch's integer types."""
    if source.kind != "f" or target.kind not in "iu":
        return np.ones(x.shape, bool)
    if platform.machine() in ("x86_64", "AMD64"):
        return np.ones(x.shape, bool) if source.has_negative_zero else ~np.isnan(x)
    low, high = (0, 2 ** target.bits) if target.kind == "u" else (-2 ** (target.bits - 1), 2 ** (target.bits - 1))
    with np.errstate(invalid="ignore"):
        whole = np.trunc(x.astype(np.float64))
    return (whole >= low) & (whole < high)
