"""Say which argument was wrong. In: a class of methods. Out: the same, whose failures name the argument and its kind.

A method handed something it was not made for (a string for an axis, a list for a weight) fails somewhere inside, with
words about the inside. Then, and only then, its arguments are compared with its signature; if one does not fit, that is
the mistake, said in the user's words. If all fit, the exception stays what it is: the fault is elsewhere.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import re
import types
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import GlassgradError, InputError
from glassgrad.graph.dtype import DType
from glassgrad.tensor.core import Core

__all__ = ["explained"]

_FAILURES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError)
_KINDS: dict[str, Callable[[Any], bool]] = {
    "Self": lambda v: isinstance(v, Core), "Tensor": lambda v: isinstance(v, Core),
    "int": lambda v: isinstance(v, numbers.Integral), "float": lambda v: isinstance(v, numbers.Real),
    "bool": lambda v: isinstance(v, (bool, int)), "str": lambda v: isinstance(v, str), "None": lambda v: v is None,
    "DType": lambda v: isinstance(v, DType), "Callable": callable, "slice": lambda v: isinstance(v, slice),
    "Axis": lambda v: v is None or isinstance(v, numbers.Integral) or _is_row(v),
    "Sequence": lambda v: _is_row(v), "Iterable": lambda v: hasattr(v, "__iter__"), "list": lambda v: _is_row(v),
    "tuple": lambda v: _is_row(v), "dict": lambda v: isinstance(v, dict)}
_NAMES = re.compile(rf"\b({'|'.join(_KINDS)})\b")
_WORDS = {"Self": "a Tensor", "Tensor": "a Tensor", "int": "a whole number", "float": "a number",
          "bool": "True or False", "str": "a string", "None": "None", "DType": "a dtype", "Callable": "a function",
          "slice": "a slice", "Axis": "an axis, or several", "Sequence": "a list", "Iterable": "a list",
          "list": "a list", "tuple": "a tuple", "dict": "a dict"}


def _is_row(value: Any) -> bool:
    """Whole numbers (or tensors, or rows of them) in a list or tuple."""
    return isinstance(value, (list, tuple, range)) and all(
        isinstance(v, (numbers.Real, Core, type(None), str)) or _is_row(v) for v in value)


def explained(cls: Any) -> Any:
    """A class whose inherited public methods explain their failures."""
    inherited = {name: found for base in reversed(cls.__mro__[1:]) for name, found in vars(base).items()}
    for name, found in inherited.items():
        if name.startswith("_") or name in vars(cls):
            continue
        if isinstance(found, types.FunctionType):
            setattr(cls, name, _wrapped(found))
        elif isinstance(found, (classmethod, staticmethod)):
            setattr(cls, name, type(found)(_wrapped(found.__func__)))
    return cls


def _wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except GlassgradError:
            raise
        except _FAILURES as problem:
            mistake = _mistake(function, args, kwargs)
            if mistake is None:
                raise
            raise mistake from problem
    return method


def _mistake(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InputError | None:
    """The first argument that does not fit the signature, as an error; None when all fit."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None                        # too many or too few: Python says so
    for name, given in bound.arguments.items():
        parameter = signature.parameters[name]
        many = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        values = list(given.values()) if isinstance(given, dict) and many else list(given) if many else [given]
        for value in values:
            if name not in ("self", "cls") and not _fits(value, parameter):
                return InputError(f"{function.__name__} cannot take this {name}",
                                  given=f"{name}={_shown(value)} ({type(value).__name__})",
                                  expected=_expected(parameter), mend=f"see help(Tensor.{function.__name__})")
    return None


def _fits(value: Any, parameter: inspect.Parameter) -> bool:
    if value is parameter.default:
        return True
    annotation = str(parameter.annotation)
    kinds = _NAMES.findall(annotation)
    if not kinds or "Any" in annotation:   # numbers, tensors, rows of them: what a method may be meant for at all
        return isinstance(value, (numbers.Real, Core, type(None), str, slice, DType, dict)) or _is_row(value) \
            or hasattr(value, "__array_interface__") or callable(value) and not isinstance(value, type)
    return any(_KINDS[k](value) for k in kinds)


def _expected(parameter: inspect.Parameter) -> str:
    kinds = _NAMES.findall(str(parameter.annotation))
    return " or ".join(dict.fromkeys(_WORDS[k] for k in kinds)) or "a number, a Tensor or a list of numbers"


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, Core) else f"a Tensor of shape {value.shape}"
    return text if len(text) < 60 else text[:57] + "..."
