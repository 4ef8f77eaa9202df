"""Convert Python values to bytes and back. In: numbers, nested lists, bytes, arrays. Out: `HostValue`; and lists again.

NumPy is neither needed nor imported: arrays are recognized by their attributes, and NumPy is then loaded already.
Integers become int32 (int64 if one of them does not fit), floats float32, booleans bool.
"""

from __future__ import annotations

import array
import itertools
import math
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.base.packages import loaded_class
from glassgrad.compiler.graph.axis_dependence import coordinates
from glassgrad.compiler.graph.dtype import ALL, DType, dtypes

# fp8 and bfloat16 have no name in NumPy or in Python's own formats
NUMPY_TYPES = tuple(d for d in ALL if d.in_numpy)
_CODES = {d: d.format for d in NUMPY_TYPES if d.format in array.typecodes}
_BY_FORMAT = {d.format: d for d in NUMPY_TYPES}
_BY_FORMAT.update({"l": dtypes.int64 if struct.calcsize("l") == 8 else dtypes.int32,
                   "L": dtypes.uint64 if struct.calcsize("L") == 8 else dtypes.uint32, "c": dtypes.uint8})

TORCH_TYPES = {d.name: d for d in ALL if d not in dtypes.fp8s} \
    | {name: d for name, d in vars(dtypes).items() if name.startswith("float8_")}


class HostValue(NamedTuple):
    """A row-major value in host memory."""
    data: Any                  # bytes-like
    shape: tuple[int, ...]
    dtype: DType               # of `data`; a caller that wants another type casts


def read_value(value: Any, dtype: DType | None = None) -> HostValue:
    """Read the argument of Tensor(...) as bytes, in the wanted `dtype` if bytes can be written in it.

    >>> read_value([[1, 2], [3, 4]]).shape, read_value([1, 2.5]).dtype
    ((2, 2), dtypes.float32)
    """
    if isinstance(value, (bool, int, float)):
        return _pack([value], (), dtype)
    if isinstance(value, (list, tuple, range)):
        flat, shape = _flatten(list(value))
        if flat and getattr(flat[0], "shape", ()) not in ((), (1,)) and hasattr(flat[0], "__array__"):
            shapes = dict.fromkeys(tuple(getattr(x, "shape", ())) for x in flat)        # arrays or tensors
            if len(shapes) > 1:
                raise ShapeError("cannot make a tensor of arrays of different shapes",
                                 given=", ".join(map(str, shapes)), expected="one shape",
                                 fix="pad the smaller ones, or make a tensor of each")
            return read_array(value, dtype)
        return _pack(flat, shape, dtype)
    if isinstance(value, (bytes, bytearray, memoryview, array.array)):
        view = memoryview(value)
        if view.format not in _BY_FORMAT:
            raise InputError("cannot make a tensor of memory in this format", given=f"format {view.format!r}",
                             expected=f"one of {', '.join(_BY_FORMAT)}", fix="convert it to a list or a NumPy array")
        return HostValue(view.tobytes(), tuple(view.shape or ()), _BY_FORMAT[view.format])
    if is_torch(value):
        return _read_torch(value)
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return read_array(value, dtype)
    raise _unusable(value, "")


def read_array(value: Any, dtype: DType | None = None) -> HostValue:
    """Read a NumPy array (or what becomes one) in row-major order: its own memory, or a copy if it is in another
    order."""
    import numpy  # deferred: a program that has an array has loaded it already
    found = numpy.asarray(value)
    if dtype is not None and dtype in _CODES and found.dtype.kind in "biuf":
        found = found.astype(_CODES[dtype], copy=False)
    own = numpy_dtype(found.dtype)
    if own is None:
        raise InputError("cannot make a tensor of this array", given=f"an array of {found.dtype}",
                         expected="numbers or truth values: " + ", ".join(d.name for d in NUMPY_TYPES),
                         fix='convert it first, for example with array.astype("float32")')
    native = numpy.ascontiguousarray(found, dtype=None if found.dtype.isnative else found.dtype.newbyteorder("="))
    return HostValue(native.reshape(-1).view("uint8").data, tuple(found.shape), own)


def is_torch(value: Any) -> bool:
    """Return whether this is a torch.Tensor; False if PyTorch is not loaded.

    >>> is_torch([1.0])
    False
    """
    return isinstance(value, loaded_class("torch", "Tensor"))


def _read_torch(value: Any) -> HostValue:
    """Read a torch.Tensor in row-major order: as bytes, because NumPy lacks some of its types."""
    torch, name = sys.modules["torch"], str(value.dtype).removeprefix("torch.")
    dtype = TORCH_TYPES.get(name)
    if dtype is None or value.layout is not torch.strided or value.device.type == "meta":
        where = " without values" if value.device.type == "meta" else ""
        raise InputError("cannot make a tensor of this tensor of PyTorch", given=f"{name}, {value.layout}{where}",
                         expected=", ".join(TORCH_TYPES), fix="convert it first, for example with t.to_dense().float()")
    plain = value.detach().cpu().contiguous()
    return HostValue(plain.reshape(-1).view(torch.uint8).numpy().data, tuple(plain.shape), dtype)


def numpy_dtype(dtype: Any) -> DType | None:
    """Return the DType of a NumPy dtype, or None."""
    return _BY_FORMAT.get(dtype.char)


def true_indices_by_axis(mask: memoryview, shape: Sequence[int]) -> list[Any]:
    """Return the indices of the true elements of a mask, one array per axis; by NumPy if it is loaded, which is faster.

    >>> [axis.tolist() for axis in true_indices_by_axis(memoryview(bytes([0, 1, 1, 1])), (2, 2))]
    [[0, 1, 1], [1, 0, 1]]
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        return [axis.astype("int64") for axis in numpy.frombuffer(mask, "?").reshape(shape).nonzero()]
    left = array.array("q", itertools.compress(range(math.prod(shape)), mask.cast("B")))
    axes = []
    for size in reversed(shape[1:]):
        axes.append(array.array("q", [index % size for index in left]))
        left = array.array("q", [index // size for index in left])
    return [left, *reversed(axes)]


def nest(flat: list[Any], shape: tuple[int, ...]) -> Any:
    """Turn a flat list into nested lists.

    >>> nest([1, 2, 3, 4, 5, 6], (2, 3))
    [[1, 2, 3], [4, 5, 6]]
    """
    if not shape:
        return flat[0]
    for i in range(len(shape) - 1, 0, -1):
        n, rows = shape[i], math.prod(shape[:i])
        flat = [flat[k * n:(k + 1) * n] for k in range(rows)]
    return flat


# -- lists ---------------------------------------------------------------------------------------------------
def _flatten(flat: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    shape = [len(flat)]
    while any(isinstance(x, (list, tuple)) for x in flat):
        n = len(flat[0]) if isinstance(flat[0], (list, tuple)) else -1
        if not all(isinstance(x, (list, tuple)) and len(x) == n for x in flat):
            raise _ragged(flat, shape)
        shape.append(n)
        flat = [x for row in flat for x in row]
    return flat, tuple(shape)


def _place(position: int, shape: list[int]) -> str:
    return "".join(f"[{i}]" for i in coordinates(position, shape))


def _ragged(rows: list[Any], shape: list[int]) -> ShapeError:
    def describe(x: Any) -> str:
        return f"{len(x)} values" if isinstance(x, (list, tuple)) else f"the single value {x!r}"
    first = describe(rows[0])
    odd = next(i for i, x in enumerate(rows) if describe(x) != first and
               (isinstance(x, (list, tuple)) or isinstance(rows[0], (list, tuple))))
    return ShapeError("cannot make a tensor of lists of different lengths",
                      given=f"value{_place(0, shape)} has {first}, value{_place(odd, shape)} has {describe(rows[odd])}",
                      expected="the same number of values in every row", fix="pad the short rows")


def _unusable(value: Any, place: str) -> InputError:
    return InputError("cannot make a tensor of this value",
                      given=f"{'value' + place + ' is ' if place else ''}{value!r} of type {type(value).__name__}",
                      expected="a number, a truth value, nested lists of them, bytes, or a NumPy array",
                      fix="convert it to numbers first")


def _pack(flat: list[Any], shape: tuple[int, ...], dtype: DType | None) -> HostValue:
    kinds = set(map(type, flat))
    if not kinds <= {bool, int, float}:
        flat = [_plain(x, i, shape) for i, x in enumerate(flat)]
        kinds = set(map(type, flat))
    if dtype is None:
        if float in kinds or not kinds:
            dtype = dtypes.default_float
        elif int in kinds:
            dtype = dtypes.default_int
            if not (dtype.min <= min(flat) and max(flat) <= dtype.max):
                dtype = dtypes.int64
        else:
            dtype = dtypes.bool
    if dtype is dtypes.bool:
        return HostValue(bytes(bytearray(1 if x else 0 for x in flat)), shape, dtype)
    if dtype not in _CODES:   # fp8 and bfloat16 are written as float32 and cast by the caller
        dtype = dtypes.float32
    if dtype.kind != "f" and float in kinds:
        flat = [_whole(x, i, shape, dtype) for i, x in enumerate(flat)]
    try:
        return HostValue(array.array(_CODES[dtype], flat), shape, dtype)
    except OverflowError:
        wrong = next(i for i, x in enumerate(flat) if isinstance(x, int)        # only integers can be out of range
                     and (abs(x) > sys.float_info.max or not dtype.min <= x <= dtype.max))
        raise InputError(f"a value does not fit into {dtype.name}",
                         given=f"value{_place(wrong, list(shape))} is {flat[wrong]}",
                         expected=f"values from {dtype.min} to {dtype.max}",
                         fix="choose a wider dtype, for example dtype=dtypes.int64" if dtype.bits < 64 else
                              "choose a float dtype: dtype=dtypes.float64") from None


def _whole(x: Any, position: int, shape: tuple[int, ...], dtype: DType) -> int:
    if isinstance(x, float) and not math.isfinite(x):
        raise InputError(f"a value does not fit into {dtype.name}",
                         given=f"value{_place(position, list(shape))} is {x}", expected="a finite number",
                         fix="choose a float dtype")
    return int(x)


def _plain(x: Any, position: int, shape: tuple[int, ...]) -> Any:
    """Return a list element that is no plain number as one: NumPy scalars and one-element tensors have a value."""
    if hasattr(x, "item") and getattr(x, "shape", None) in ((), (1,)):
        x = x.item()
    if isinstance(x, (bool, int, float)):
        return x + 0 if type(x) not in (bool, int, float) else x
    raise _unusable(x, _place(position, list(shape)))
