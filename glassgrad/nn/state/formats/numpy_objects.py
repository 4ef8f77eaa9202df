"""Resolve the globals in NumPy's pickles. In: names of globals and their arguments. Out: arrays as tensors, scalars as
numbers.

Checkpoints hold a loss or a step that NumPy computed, and sometimes an array. A type is made from a short string (`f8`)
and then given its byte order by BUILD. An array is made empty and then given its shape, type and bytes by BUILD, except
with protocol 5, which makes it at once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from glassgrad.compiler.graph import DType, dtypes
from glassgrad.nn.state.formats.byte_source import MOST_AXES, is_size
from glassgrad.nn.state.formats.pickle_reader import Maker, PickleReader, Unfinished
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.memory.python_values import NUMPY_TYPES, HostValue
from glassgrad.tensor.tensor import Tensor

PRICE_OF_AN_ARRAY = 50      # cost of making its nodes, in instructions of a pickle

_TYPES = {f"{d.kind}{d.itemsize}": d for d in NUMPY_TYPES}       # "f4": float32


class _Type(Unfinished):
    """numpy.dtype("f8"). Its state is a tuple of a version, the byte order, and more that plain types do not use."""
    __slots__ = ("dtype",)

    def __init__(self, dtype: DType):
        self.dtype = dtype

    def learn(self, reader: PickleReader, state: Any) -> None:
        reader.expect(isinstance(state, tuple) and len(state) >= 2 and state[1] in ("<", "|", "="),
                      "a NumPy type has another byte order, or is described wrongly")


class _Array(Unfinished, Tensor):
    """An empty array, whose state is (version, shape, type, whether it is column-major, bytes)."""
    __slots__ = ()

    def learn(self, reader: PickleReader, state: Any) -> None:
        reader.expect(isinstance(state, tuple) and len(state) == 5, "a NumPy array is described wrongly")
        made = _array(reader, state[4], state[2], state[1], bool(state[3]))
        self.replace(made)  # type: ignore[arg-type]
        self.__class__ = Tensor  # type: ignore[assignment]


def _array(reader: PickleReader, data: Any, kind: Any, shape: Any, columns_first: bool) -> Tensor:
    reader.pay(PRICE_OF_AN_ARRAY)
    if not (isinstance(data, (bytes, bytearray)) and isinstance(kind, _Type) and isinstance(shape, tuple)
            and len(shape) <= MOST_AXES and all(map(is_size, shape))
            and math.prod(shape) * kind.dtype.itemsize == len(data)
            and math.prod(n or 1 for n in shape) < 1 << 60):
        raise reader.damaged("a NumPy array is described wrongly")
    if kind.dtype is dtypes.bool:
        data = bytes(byte != 0 for byte in data)
    laid_out = shape[::-1] if columns_first else shape
    place = running.canonical_device(reader.device) or running.default_device()
    made = Tensor(running.store(HostValue(bytes(data), laid_out, kind.dtype), place), device=place)
    return made.permute(tuple(reversed(range(len(shape))))) if columns_first else made


# -- functions of the table ------------------------------------------------------------------------------------------
def _type(reader: PickleReader, arguments: tuple[Any, ...]) -> _Type:
    name = arguments[0] if arguments and isinstance(arguments[0], str) else None
    if name not in _TYPES:
        raise reader.damaged(f"it holds a NumPy type that is no plain number: {str(name)[:40]!r}")
    return _Type(_TYPES[name])


def _scalar(reader: PickleReader, arguments: tuple[Any, ...]) -> bool | int | float:
    if len(arguments) != 2 or not isinstance(arguments[0], _Type) or not isinstance(arguments[1], bytes) \
            or len(arguments[1]) != arguments[0].dtype.itemsize:
        raise reader.damaged("a NumPy number is described wrongly")
    kind, data = arguments[0].dtype, arguments[1]
    number: bool | int | float = struct.unpack("<" + (kind.format if kind is not dtypes.bool else "?"), data)[0]
    return number


def _empty(reader: PickleReader, arguments: tuple[Any, ...]) -> _Array:
    reader.pay(PRICE_OF_AN_ARRAY)
    return _Array([])       # (numpy.ndarray, (0,), b"b"): BUILD has the content


def _whole(reader: PickleReader, arguments: tuple[Any, ...]) -> Tensor:
    """(bytes, type, shape, order)"""
    reader.expect(len(arguments) == 4 and arguments[3] in ("C", "F"), "a NumPy array is described wrongly")
    data, kind, shape, order = arguments
    return _array(reader, data, kind, shape, order == "F")


def _class(reader: PickleReader, arguments: tuple[Any, ...]) -> Any:
    raise reader.damaged("a NumPy array is made in a way that is not known")       # only named, never called


_FUNCTIONS: dict[str, Callable[[PickleReader, tuple[Any, ...]], Any]] = {
    "multiarray.scalar": _scalar, "multiarray._reconstruct": _empty, "numeric._frombuffer": _whole}
MAKERS = {
    ("numpy", "dtype"): Maker("numpy.dtype", _type), ("numpy", "ndarray"): Maker("numpy.ndarray", _class),
    **{(f"numpy.{core}.{module}", name): Maker(f"numpy.{core}.{full}", make) for core in ("core", "_core")
       for full, make in _FUNCTIONS.items() for module, _, name in [full.partition(".")]},
}
