"""Find the function that computes an ONNX operator of an opset: the table of operators. In: functions decorated with
`operator`. Out: `find`, element types. Does not know graphs.

An operator's function takes the node's inputs in their order (None for one that is left out) and the node's attributes
as keywords, whose defaults are those of the standard:

    @operator("LeakyRelu")
    def leaky_relu(x, *, alpha=0.01):
        return x.leaky_relu(alpha)

Inputs are Tensors. Inputs whose numbers are in `host` are NumPy arrays: axes, shapes, sizes, which must be known before
anything runs. A function with a keyword `node` gets a `NodeCall`, for its opset, its outputs or its graphs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from glassgrad import DType, Tensor, dtypes
from glassgrad.base.errors import DTypeError, GlassgradError

Function = TypeVar("Function", bound=Callable[..., Any])


class MissingOperatorError(GlassgradError, NotImplementedError):
    """A model uses operators that glassgrad does not have: the message has all of them."""


class Operator(NamedTuple):
    """How an operator is computed from an opset on."""
    function: Callable[..., Any]
    since: int
    host: frozenset[int]                # numbers of the inputs that are NumPy arrays; -1: all inputs as they come
    attributes: frozenset[str]
    repeatable: bool                    # whether equal inputs give equal results: constants may be computed once
    takes_node: bool


TABLE: dict[tuple[str, str], list[Operator]] = {}


def operator(*names: str, since: int = 1, host: tuple[int, ...] = (), domain: str = "", repeatable: bool = True
             ) -> Callable[[Function], Function]:
    """Register a function as the meaning of operators, from an opset on (until that of a later entry).

    >>> @operator("Twice", domain="example")
    ... def twice(x, *, bias=0.0):
    ...     return x * 2 + bias
    >>> find("example", "Twice", opset=1).attributes
    frozenset({'bias'})
    """
    def enter(function: Function) -> Function:
        keywords = {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
        attributes = frozenset(keywords - {"node"})
        entry = Operator(function, since, frozenset(host), attributes, repeatable, "node" in keywords)
        for name in names:
            entries = [old for old in TABLE.get((domain, name), []) if old.since != since]
            TABLE[domain, name] = sorted([*entries, entry], key=lambda known: known.since)
        return function
    return enter


def find(domain: str, name: str, opset: int) -> Operator | None:
    """Return the entry of an operator for an opset, or None."""
    entries = [entry for entry in TABLE.get((domain, name), ()) if entry.since <= opset]
    return entries[-1] if entries else None


def onnx_package() -> ModuleType:
    """Return the package `onnx`, which reads the files."""
    try:
        import onnx
        import onnx.reference
    except ImportError as problem:
        raise MissingPackageError("ONNX files are read with the package onnx, which is not installed",
                                  given=str(problem), fix="pip install 'glassgrad[onnx]'") from None
    return onnx


class MissingPackageError(GlassgradError, ImportError):
    """A package that must be installed first."""


# -- element types: ONNX's number, its name, ours ----------------------------------------------------------------------
ELEMENT_TYPES = {
    1: dtypes.float32, 2: dtypes.uint8, 3: dtypes.int8, 4: dtypes.uint16, 5: dtypes.int16, 6: dtypes.int32,
    7: dtypes.int64, 9: dtypes.bool, 10: dtypes.float16, 11: dtypes.float64, 12: dtypes.uint32, 13: dtypes.uint64,
    16: dtypes.bfloat16, 17: dtypes.fp8e4m3, 18: dtypes.fp8e4m3fnuz, 19: dtypes.fp8e5m2, 20: dtypes.fp8e5m2fnuz}
ONNX_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
BY_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e4m3fnuz": "uint8", "float8_e5m2": "uint8",
           "float8_e5m2fnuz": "uint8"}           # NumPy has these types from the package ml_dtypes
OF_ML_DTYPES = {"bfloat16": dtypes.bfloat16, "float8_e4m3fn": dtypes.fp8e4m3, "float8_e4m3fnuz": dtypes.fp8e4m3fnuz,
                "float8_e5m2": dtypes.fp8e5m2, "float8_e5m2fnuz": dtypes.fp8e5m2fnuz}


def element_type(number: int, what: str = "a value") -> DType:
    """Return our element type for ONNX's number of it.

    >>> element_type(1), element_type(10)
    (dtypes.float32, dtypes.float16)
    """
    if number not in ELEMENT_TYPES:
        name = onnx_package().TensorProto.DataType.Name(number)
        raise DTypeError(f"{what} has an element type that tensors do not have", given=name,
                         expected=", ".join(str(d).removeprefix("dtypes.") for d in ELEMENT_TYPES.values()),
                         fix="convert the model to one of these")
    return ELEMENT_TYPES[number]


def to_tensor(array: np.ndarray[Any, Any], device: str | None = None, stored: bool = False) -> Tensor:
    """Return a tensor with an array's values and element type. Unless it is to be stored, a single number becomes a
    constant of the kernels that use it.

    >>> to_tensor(np.float32(2.0).reshape(1, 1)).shape
    (1, 1)
    """
    if array.dtype.name in BY_BITS:
        bits = Tensor(np.asarray(array, order="C").view(BY_BITS[array.dtype.name]), device=device)
        return bits.bitcast(OF_ML_DTYPES[array.dtype.name])
    if array.dtype.name not in {dtype.name for dtype in ELEMENT_TYPES.values()}:
        raise DTypeError("an array has an element type that tensors do not have", given=array.dtype.name,
                         expected="numbers or truth values", fix="convert the model to another type")
    if array.size == 1 and not stored:
        return Tensor.full(array.shape, array.item(), dtype=array.dtype.name, device=device, buffer=False)
    return Tensor(np.asarray(array, order="C"), device=device)
