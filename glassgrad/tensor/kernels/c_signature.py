"""Read the parameters that a C function declares. In: source text. Out: `Parameter`s, and arguments checked against
them.

Only the line that declares the function is read. A type that is not in the table (a typedef of the user's, void) is not
checked.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from glassgrad.base.errors import DTypeError, InputError
from glassgrad.compiler.graph import DType, dtypes
from glassgrad.tensor.tensor_base import TensorBase

C_NAMES = {dtypes.bool: "_Bool", dtypes.int8: "signed char", dtypes.uint8: "unsigned char", dtypes.int16: "short",
           dtypes.uint16: "unsigned short", dtypes.int32: "int", dtypes.uint32: "unsigned", dtypes.int64: "long long",
           dtypes.uint64: "unsigned long long", dtypes.float16: "_Float16", dtypes.float32: "float",
           dtypes.float64: "double"}
_LONG_IS_64 = ctypes.sizeof(ctypes.c_long) == 8
_DTYPES = {name: dtype for dtype, name in C_NAMES.items()} | {
    "bool": dtypes.bool, "char": dtypes.int8, "signed": dtypes.int32,
    "long": dtypes.int64 if _LONG_IS_64 else dtypes.int32,
    "unsigned long": dtypes.uint64 if _LONG_IS_64 else dtypes.uint32, "size_t": dtypes.uint64,
    "__half": dtypes.float16, "half": dtypes.float16, "__nv_bfloat16": dtypes.bfloat16,
    **{f"{dtype.name}_t": dtype for dtype in C_NAMES if dtype.kind in "iu"}}
_NUMBERS = {dtype: getattr(ctypes, f"c_{dtype.name}") for dtype in C_NAMES if dtype.kind != "f"} | {
    dtypes.float32: ctypes.c_float, dtypes.float64: ctypes.c_double}
_QUALIFIERS = {"const", "volatile", "restrict", "__restrict", "__restrict__", "register"}
_TYPE_WORDS = {word for name in _DTYPES for word in name.split()} | {"void"}


class Parameter(NamedTuple):
    """One parameter of a C function."""
    text: str                      # its declaration
    dtype: DType | None            # None if its type is not in the table
    is_pointer: bool


def parameters_of(source: str, name: str) -> list[Parameter] | None:
    """Return the parameters of a function; None if the source has no such function, or it is not understood.

    >>> [(p.dtype, p.is_pointer) for p in parameters_of("void f(float *out, const int32_t *x, long long n) {}", "f")]
    [(dtypes.float32, True), (dtypes.int32, True), (dtypes.int64, False)]
    """
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", " ", source, flags=re.DOTALL)
    declared = re.search(rf"\b{re.escape(name)}\s*\(([^()]*)\)\s*\{{", plain)
    return None if declared is None else [_parameter(text) for text in declared[1].split(",")]


def _parameter(text: str) -> Parameter:
    words = [word for word in re.findall(r"\w+", text.split("[")[0]) if word not in _QUALIFIERS]
    if len(words) > 1 and words[-1] not in _TYPE_WORDS:
        words.pop()                                       # its name
    dtype = _DTYPES.get(" ".join(words).removesuffix(" int"))
    return Parameter(" ".join(text.split()), dtype, "*" in text or "[" in text)


def check_kinds(name: str, args: Sequence[Any]) -> None:
    """Raise if an argument is neither a tensor nor a number."""
    for value in args:
        if not isinstance(value, (TensorBase, bool, int, float)):
            raise InputError("a C kernel takes tensors and numbers",
                             given=f"{value!r} of type {type(value).__name__} for {name}",
                             expected="a Tensor, an int or a float",
                             fix="make it a tensor, or a number with float() or int()")


def check_arguments(name: str, parameters: Sequence[Parameter], args: Sequence[Any]) -> None:
    """Raise unless the function declares a result, these arguments and a number of elements, and tensors have the
    declared types."""
    if len(parameters) != len(args) + 2:
        raise InputError(f"the C kernel {name} declares other arguments than it is given",
                         given=f"{len(args)} for ({', '.join(p.text for p in parameters)})",
                         expected="a pointer to the result, one parameter per argument, then the number of elements",
                         fix="change the call, or the parameters of the function")
    for parameter, value in zip(parameters[1:], args):
        if parameter.is_pointer != isinstance(value, TensorBase):
            given = "a tensor" if isinstance(value, TensorBase) else repr(value)
            raise InputError(f"the C kernel {name} declares an argument otherwise",
                             given=f"{given} for `{parameter.text}`",
                             expected="a tensor" if parameter.is_pointer else "a number",
                             fix="declare a tensor as a pointer and a number as a plain parameter")
        declared = parameter.dtype
        if isinstance(value, TensorBase) and declared is not None and declared is not value.dtype:
            word = C_NAMES.get(value.dtype)
            declare = f", or declare the parameter as {word} *" if word else ""
            raise DTypeError(f"the C kernel {name} reads another type",
                             given=f"{value.dtype.name} values for `{parameter.text}`",
                             expected=f"a tensor of {declared.name}",
                             fix=f"cast it: x.cast(dtypes.{declared.name}){declare}")


def check_result(name: str, parameter: Parameter, dtype: DType) -> None:
    """Raise unless the result has the declared type."""
    declared = parameter.dtype
    if declared is not None and declared is not dtype:
        raise DTypeError(f"the C kernel {name} writes another type than its result has",
                         given=f"dtype={dtype.name} for `{parameter.text}`",
                         expected=f"dtype={declared.name}, or no dtype at all",
                         fix=f"leave dtype out, or declare the result as {C_NAMES.get(dtype, dtype.name)} *")


def number_for(name: str, parameter: Parameter | None, value: Any) -> Any:
    """Return a number as a ctypes value: of the declared type, else an int as long long and a float as double."""
    default = dtypes.float64 if isinstance(value, float) else dtypes.int64
    declared = default if parameter is None or parameter.dtype not in _NUMBERS else parameter.dtype
    if isinstance(value, float) and declared.kind != "f":
        raise InputError(f"the C kernel {name} declares an integer",
                         given=f"{value!r} for `{parameter.text if parameter else ''}`", expected="an int",
                         fix="pass int(value), or declare the parameter as double")
    if declared.kind in "iu" and not declared.min <= value <= declared.max:
        raise InputError(f"the C kernel {name} declares a smaller integer",
                         given=f"{value!r} for `{parameter.text if parameter else ''}`",
                         expected=f"an int from {declared.min} to {declared.max}",
                         fix="declare the parameter as long long")
    return _NUMBERS[declared](value)  # type: ignore[arg-type]
