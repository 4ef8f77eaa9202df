"""Iterate over the parts of a model. In: any object. Out: the values inside, by dotted names such as `layers.0.weight`.

Descends into attributes (in `__dict__` and `__slots__`), lists, tuples, named tuples and mappings, but not into
function wrappers, such as a jit. An object reached by two paths gets both names, as tied weights do in PyTorch; one
reached again inside itself is skipped, so cycles end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from glassgrad.compiler.graph import DType, UOp
from glassgrad.tensor.tensor_base import TensorBase

# not descended into, because they hold no part of a model, or too much else
OPAQUE = (str, bytes, bytearray, bool, int, float, complex, type(None), type, ModuleType, FunctionType,
           BuiltinFunctionType, MethodType, TensorBase, UOp, DType)


class ObjectPart(NamedTuple):
    """A value and where it was found: `holder[key]`, or the attribute `key` of `holder`; None for the root."""
    name: str
    value: Any
    holder: Any
    key: Any


def walk(root: Any, prefix: str, wanted: Callable[[Any], bool]) -> Iterator[ObjectPart]:
    """Return all values inside `root` for which `wanted` holds, in the order of attributes and items.

    >>> [(p.name, p.value) for p in walk({"a": [1, 2], "b": (3,)}, "", lambda value: isinstance(value, int))]
    [('a.0', 1), ('a.1', 2), ('b.0', 3)]
    """
    inside: set[int] = set()                                # ids of the enclosing objects
    waiting: list[ObjectPart | int] = [ObjectPart(prefix, root, None, None)]
    while waiting:
        place = waiting.pop()
        if isinstance(place, int):
            inside.discard(place)
        elif wanted(place.value):
            yield place._replace(name=place.name.strip("."))
        elif not isinstance(place.value, OPAQUE) and id(place.value) not in inside and not _wraps_function(place.value):
            holder, before = place.value, place.name
            inside.add(id(holder))
            waiting.append(id(holder))
            parts = [ObjectPart(f"{before}{key}.", value, holder, key) for key, value in parts_of(holder)]
            waiting.extend(reversed(parts))


def _wraps_function(thing: Any) -> bool:
    """Return whether an object wraps a function (a jit, a cache): its attributes are no part of a model."""
    return "__wrapped__" in getattr(thing, "__dict__", ())


def parts_of(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Return the attributes of an object, or the items of a list or a mapping, by name or index."""
    if isinstance(holder, tuple) and hasattr(holder, "_fields"):
        yield from zip(holder._fields, holder)
    elif isinstance(holder, (list, tuple, deque)):
        yield from enumerate(holder)
    elif isinstance(holder, Mapping):
        yield from holder.items()
    else:
        left = getattr(holder, "passing_names", ())         # attributes set during a call are no part of a Module
        yield from ((key, value) for key, value in getattr(holder, "__dict__", {}).items() if key not in left)
        for kind in type(holder).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(holder, name):
                    yield name, getattr(holder, name)
