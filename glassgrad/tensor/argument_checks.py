"""Say which argument was wrong. In: functions and classes. Out: the same, whose failures name the argument.

A method handed something it was not made for (a string for an axis, a list for a weight) fails somewhere inside, with
words about the inside. Then, and only then, its arguments are compared with its signature; if one does not fit, that is
the mistake, said in the user's words. If all fit, the exception stays what it is: the fault is elsewhere. A call that
Python refuses is tried once more with the keywords of other libraries (`keywords`).
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

from glassgrad.base.errors import GlassgradError, InputError
from glassgrad.compiler.graph.dtype import DType
from glassgrad.tensor.base import Core
from glassgrad.tensor.broadcast import whole
from glassgrad.tensor.parameter_names import translated

__all__ = ["explained", "explaining", "explaining_class"]

_FAILURES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, MemoryError)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) or isinstance(value, Core)


# what an annotation admits, and how to say so
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "Self": (lambda v: isinstance(v, Core), "a Tensor"),
    "Tensor": (lambda v: isinstance(v, Core), "a Tensor"),
    "int": (lambda v: whole(v) is not None, "an integer"),
    "float": (_is_number, "a number"),
    "bool": (lambda v: isinstance(v, (bool, int)), "True or False"),
    "str": (lambda v: isinstance(v, str), "a string"),
    "None": (lambda v: v is None, "None"),
    "DType": (lambda v: isinstance(v, DType), "a dtype"),
    "Callable": (callable, "a function"),
    "type": (lambda v: isinstance(v, type), "a type"),
    "slice": (lambda v: isinstance(v, slice), "a slice"),
    "dict": (lambda v: isinstance(v, dict), "a dict"),
    "Mapping": (lambda v: isinstance(v, Mapping), "a dict"),
    "MutableMapping": (lambda v: isinstance(v, Mapping), "a dict"),
    "PathLike": (lambda v: isinstance(v, (str, os.PathLike)), "a path"),
    "bytes": (lambda v: isinstance(v, (bytes, bytearray, memoryview)), "bytes"),
    "IO": (lambda v: hasattr(v, "read"), "an open file"),
    "Sequence": (lambda v: isinstance(v, (list, tuple, range)), "a list"),
    "Iterable": (lambda v: hasattr(v, "__iter__") and not isinstance(v, type), "a list"),
    "list": (lambda v: isinstance(v, (list, tuple)), "a list"),
    "tuple": (lambda v: isinstance(v, (list, tuple)), "a tuple"),
}
_ALIASES = {"Axis": "int | Sequence[int] | None", "Sizes": "int | Sequence[int]",
            "Wish": "int | Sequence[int | None] | None",
            "Padding": "Sequence[int | Sequence[int] | None]", "Parameters": "Iterable[Tensor] | Tensor",
            "Readable": "PathLike | bytes | IO | Tensor", "Betas": "Sequence[float]", "Coefficients": "Sequence[float]"}


def explained(cls: Any) -> Any:
    """A class whose public methods explain their failures."""
    for name, found in {n: f for base in reversed(cls.__mro__) for n, f in vars(base).items()}.items():
        if name.startswith("_") and name not in ("__getitem__", "__setitem__", "__pow__", "__matmul__"):
            continue
        if isinstance(found, types.FunctionType):
            setattr(cls, name, explaining(found))
        elif isinstance(found, (classmethod, staticmethod)):
            setattr(cls, name, type(found)(explaining(found.__func__)))
    return cls


def explaining_class(cls: Any, room: str) -> None:
    """A class of ours that is made with arguments, and a layer that is called with them."""
    for name in ("__init__", "forward"):
        if name in vars(cls) and cls.__module__.startswith("glassgrad."):
            setattr(cls, name, explaining(vars(cls)[name], room))


def explaining(function: Any, room: str = "Tensor") -> Any:
    """A function that explains its failures; `room` is where help on it is found."""
    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except GlassgradError:
            raise
        except _FAILURES as failure:
            problem = failure
        signature, name = inspect.signature(function), function.__name__
        if name in ("__init__", "forward"):
            name = type(args[0]).__name__
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as refusal:
            again = translated(signature, args, kwargs)
            if again is not None:
                return method(*again[0], **again[1])
            raise InputError(f"{name} cannot be called like this", given=str(refusal),
                             expected=_call(name, signature), fix=f"see help({room}.{name})") from problem
        mistake = _mistake(name, room, bound)
        raise mistake or problem from (problem if mistake else problem.__cause__)
    return method


def _call(name: str, signature: inspect.Signature) -> str:
    """How a method is called: its parameters without their types."""
    parameters = [str(p.replace(annotation=p.empty)) for p in signature.parameters.values()
                  if p.name not in ("self", "cls")]
    return f"{name}({', '.join(parameters)})"


def _mistake(name: str, room: str, bound: inspect.BoundArguments) -> InputError | None:
    """The first argument that does not fit the signature, as an error; None when all fit."""
    for argument, given in bound.arguments.items():
        parameter = bound.signature.parameters[argument]
        values = given if parameter.kind is parameter.VAR_POSITIONAL else \
            given.values() if parameter.kind is parameter.VAR_KEYWORD else (given,)
        for value in values:
            if argument not in ("self", "cls") and not _fits(value, parameter, room):
                return InputError(f"{name} cannot take this {argument}",
                                  given=f"{argument}={_shown(value)} ({type(value).__name__})",
                                  expected=_words(str(parameter.annotation)), fix=f"see help({room}.{name})")
    return None


# -- annotations, read as they are written -------------------------------------------------------------------
def _alternatives(annotation: str) -> list[tuple[str, str]]:
    """"int | Sequence[int]" as [("int", ""), ("Sequence", "int")]."""
    found = []
    for part in _parts(annotation, "|"):
        name, _, inside = part.removeprefix("os.").partition("[")
        if name in _ALIASES:
            found += _alternatives(_ALIASES[name])
        else:
            found.append((name, _parts(inside.removesuffix("]"), ",")[0]))
    return found


def _parts(text: str, mark: str) -> list[str]:
    """The text cut at a mark, but not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == mark and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _fits(value: Any, parameter: inspect.Parameter, room: str) -> bool:
    annotation = str(parameter.annotation)
    if parameter.annotation is parameter.empty or value is parameter.default:
        return True
    if annotation == "Any" and room != "Tensor":       # a model, an optimizer's state: whatever the user has
        return True
    return _matches(value, annotation)


def _matches(value: Any, annotation: str) -> bool:
    for name, inside in _alternatives(annotation):
        if name not in _KINDS and name != "Any":
            if any(kind.__name__ == name for kind in type(value).__mro__):
                return True
        elif name == "Any":            # numbers, tensors, rows of them: what a method may be meant for at all
            if _is_number(value) or value is None or isinstance(value, (str, slice, DType, dict)) or _is_array(value) \
                    or _is_row(value) or callable(value) and not isinstance(value, type):
                return True
        elif _KINDS[name][0](value) and (
                not inside or name not in ("Sequence", "list", "tuple") or all(_matches(v, inside) for v in value)):
            return True
    return False


def _is_row(value: Any) -> bool:
    """Numbers, tensors, or rows of them, in a list or tuple."""
    return isinstance(value, (list, tuple, range)) and all(
        _is_number(v) or v is None or isinstance(v, str) or _is_row(v) for v in value)


def _words(annotation: str) -> str:
    """What an annotation asks for, in words.

    >>> _words("int | Sequence[int] | None")
    'an integer or a list of integers or None'
    """
    said = []
    for name, inside in _alternatives(annotation):
        if name == "Any":
            return "a number, a Tensor or a list of numbers"
        if name not in _KINDS:
            said.append(f"of type {name}")
            continue
        word, what = _KINDS[name][1], _alternatives(inside)[0][0] if inside else ""
        many = {"int": " of integers", "float": " of numbers", "Self": " of Tensors", "Tensor": " of Tensors",
                "str": " of strings"}
        said.append(word + (many.get(what, "") if name in ("Sequence", "list", "tuple", "Iterable") else ""))
    return " or ".join(dict.fromkeys(said))


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, Core) else f"a Tensor of shape {value.shape}"
    return text if len(text) < 60 else text[:57] + "..."
