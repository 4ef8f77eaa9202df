"""What a function can see without being handed it. In: a function, objects. Out: `Surroundings`, compared at each call.

The names in its closure, its defaults and its globals, and whatever can be reached from there: attributes, entries of
lists and dicts, other functions and methods of the user's. Numbers, texts and arrays are compared by value, everything
else by identity, so that a weight replaced by another tensor is noticed as well as a changed learning rate. Code of
libraries is taken to stay as it is; their objects are looked into like all others.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any, NamedTuple

from glassgrad.base.errors import JitError
from glassgrad.tensor.tensor import Tensor

__all__ = ["PLAIN", "Place", "Surroundings"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
_MOST_PLACES = 20_000           # more cannot be compared at each call
_LARGEST_ARRAY = 1 << 20        # bytes; larger arrays are recognised by identity
_GROUPS = (list, tuple, dict, set, frozenset)
_LONG = 64                      # lists of this many plain values are compared at once
_CLOSED = ("numpy", "torch", "threading", "logging", "_io", "_thread", "weakref")   # objects that are not looked into


class Place(NamedTuple):
    """Where a value was found: `get(holder, name)` finds it again."""
    get: Callable[[Any, Any], Any]
    holder: Any
    name: Any
    value: Any

    def __str__(self) -> str:
        return f"{self.name if self.get not in (_cell, _item) else 'a value it can see'}"

    def put(self, value: Any) -> bool:
        """Bind the place to another value; whether it could be."""
        if self.get is _cell:
            self.holder.cell_contents = value
        elif self.get in (_entry, _item):
            self.holder[self.name] = value
        else:
            return False
        return True


def _entry(holder: Any, name: Any) -> Any:
    return holder.get(name)


def _item(holder: Any, name: Any) -> Any:
    return holder[name] if name < len(holder) else None


def _cell(holder: Any, name: Any) -> Any:
    try:
        return holder.cell_contents
    except ValueError:               # a cell that was never filled
        return None


def _size(holder: Any, name: Any) -> int:
    return len(holder)


def _copied(holder: Any, name: Any) -> Any:
    return holder


def _content(holder: Any, name: Any) -> bytes:
    data: bytes = holder.tobytes()
    return data


def is_array(value: Any) -> bool:
    """A NumPy array or number, without importing NumPy."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def _same(now: Any, then: Any) -> bool:
    if now is then:
        return True
    kind = then.__class__
    return now.__class__ is kind and (kind in PLAIN or kind in _GROUPS) and bool(now == then)


class Surroundings:
    """Every place a function can reach, and what is there now."""

    def __init__(self, function: Any, objects: list[Any]):
        self.places: list[Place] = []
        self.tensors: list[Tensor] = []
        self._seen: set[int] = set()
        self._waiting: list[Any] = [function, *objects]
        while self._waiting:
            thing = self._waiting.pop()
            if id(thing) not in self._seen:
                self._seen.add(id(thing))
                self._visit(thing)
                if len(self.places) > _MOST_PLACES:
                    raise JitError("this function can see too much to be watched",
                                   given=f"more than {_MOST_PLACES} values in its closure, globals and objects",
                                   expected="a function that sees its model and little else",
                                   mend="hand in the data as arguments, as tensors")
        self._group()

    def without(self, places: set[tuple[int, Any]]) -> None:
        """Stop watching some places: (id of the holder, name)."""
        self.places = [p for p in self.places if (id(p.holder), p.name) not in places]
        self._group()

    def _group(self) -> None:
        """Lists and dicts of which every entry is watched are compared whole, the rest one by one."""
        by_holder: dict[int, list[Place]] = {}
        for place in self.places:
            by_holder.setdefault(id(place.holder), []).append(place)
        self._whole: list[tuple[Any, list[Any], list[Place]]] = []
        self._single: list[Place] = []
        for places in by_holder.values():
            holder = places[0].holder
            entries = [p for p in places if p.get in (_entry, _item)]
            if type(holder) in (list, dict) and len(entries) == len(holder) == len({p.name for p in entries}):
                self._whole.append((holder, [p.value for p in entries], places))
            else:
                self._single += places

    def change(self) -> str:
        """What is not as it was; empty when all is."""
        for holder, values, places in self._whole:
            now = holder.values() if holder.__class__ is dict else holder
            if len(now) != len(values) or not all(map(is_, now, values)):
                difference = _difference(places)          # other objects, but perhaps the same numbers
                if difference:
                    return difference
        return _difference(self._single)

    def changed_numbers(self) -> Iterator[tuple[Place, Any]]:
        """Plain values that are not as they were, with what they are now."""
        for place in self.places:
            now = place.get(place.holder, place.name)
            if isinstance(place.value, PLAIN) and isinstance(now, PLAIN) and not _same(now, place.value):
                yield place, now

    # -- walking -----------------------------------------------------------------------------------------------------
    def _add(self, get: Callable[[Any, Any], Any], holder: Any, name: Any) -> None:
        value = get(holder, name)
        if is_array(value):
            self.places.append(Place(get, holder, name, value))
            if value.nbytes <= _LARGEST_ARRAY:
                self.places.append(Place(_content, value, name, value.tobytes()))
            return
        self.places.append(Place(get, holder, name, value))
        if not isinstance(value, PLAIN):
            self._waiting.append(value)

    def _visit(self, thing: Any) -> None:
        kind = type(thing)
        if issubclass(kind, Tensor):
            self.tensors.append(thing)
        elif kind is types.FunctionType:
            self._visit_function(thing)
        elif kind is types.MethodType:
            self._waiting += [thing.__func__, thing.__self__]
        elif kind in (staticmethod, classmethod):
            self._waiting.append(thing.__func__)
        elif kind is property:
            self._waiting += [f for f in (thing.fget, thing.fset) if f is not None]
        elif kind is functools.partial:
            self._waiting += [thing.func, thing.args, thing.keywords]
        elif issubclass(kind, type):
            self._visit_class(thing)
        elif issubclass(kind, (list, tuple, dict, set, frozenset)):
            self._visit_container(thing)
        elif is_array(thing):
            if thing.nbytes <= _LARGEST_ARRAY:
                self.places.append(Place(_content, thing, "an array", thing.tobytes()))
        elif kind is not types.ModuleType and _is_open(kind):
            self._visit_object(thing)

    def _visit_function(self, function: Any) -> None:
        if not _is_user_code(function.__module__):
            return
        names, attributes = _names_used(function.__code__)
        for cell in function.__closure__ or ():
            self._add(_cell, cell, "cell_contents")
        space = function.__globals__
        for name in names & space.keys():
            self._add(_entry, space, name)
            value = space[name]
            if type(value) is types.ModuleType and _is_user_code(value.__name__):
                for inner in attributes & vars(value).keys():
                    self._add(_entry, vars(value), inner)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name) is not None:
                self._add(getattr, function, name)

    def _visit_class(self, cls: Any) -> None:
        for base in cls.__mro__:
            if _is_user_code(base.__module__):
                for name, value in vars(base).items():
                    if isinstance(value, (types.FunctionType, staticmethod, classmethod, property)):
                        self._waiting.append(value)
                    elif not (name.startswith("__") or isinstance(value, types.MemberDescriptorType)):
                        self._add(getattr, base, name)

    def _visit_container(self, thing: Any) -> None:
        values = list(thing.values()) if isinstance(thing, dict) else list(thing)
        if len(values) > _LONG and all(isinstance(v, PLAIN) for v in values) or isinstance(thing, (set, frozenset)):
            self.places.append(Place(_copied, thing, "a list", thing.copy() if hasattr(thing, "copy") else thing))
            return
        if isinstance(thing, tuple):                # it stays what it is: only what is in it may change
            self._waiting += [v for v in values if not isinstance(v, PLAIN)]
            return
        self.places.append(Place(_size, thing, "the length of a list", len(thing)))
        if isinstance(thing, dict):
            for key in list(thing):
                self._add(_entry, thing, key)
        else:
            for i in range(len(thing)):
                self._add(_item, thing, i)

    def _visit_object(self, thing: Any) -> None:
        # what a class keeps for the host alone: the graph reads it from tensors (an optimizer's learning rate)
        unwatched = ("__weakref__", "__dict__", *getattr(type(thing), "__jit_unwatched__", ()))
        own = getattr(thing, "__dict__", None)
        if type(own) is dict:
            for name in list(own):
                if name not in unwatched:
                    self._add(_entry, own, name)
        for base in type(thing).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in unwatched and hasattr(thing, name):
                    self._add(getattr, thing, name)
        if _is_user_code(type(thing).__module__):
            self._waiting.append(type(thing))


def _is_user_code(module: str | None) -> bool:
    """Whether a module may change what it does between two calls: not one of Python's, ours, or the judges'."""
    room = (module or "").split(".")[0]
    return room not in ("glassgrad", "numpy", "torch", "builtins") and (
        room == "__main__" or room not in sys.stdlib_module_names)


def _is_open(kind: type) -> bool:
    """Whether an object's attributes are looked at: not machinery, of which nothing in a function depends."""
    module = kind.__module__ or ""
    if module.split(".")[0] == "glassgrad":
        return module.startswith("glassgrad.nn")
    return module.split(".")[0] not in _CLOSED


def _names_used(code: Any) -> tuple[set[str], set[str]]:
    """The globals and the attributes that a function's code names, with those of the functions inside it."""
    reads = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    attributes = set(code.co_names) - reads
    for inner in code.co_consts:
        if hasattr(inner, "co_code"):
            more = _names_used(inner)
            reads, attributes = reads | more[0], attributes | more[1]
    return reads, attributes


def _difference(places: list[Place]) -> str:
    for place in places:
        get, holder, name, value = place
        now = get(holder, name)
        if now is not value and not _same(now, value):
            return f"{place} is no longer {_shown(value)}"
    return ""


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, PLAIN) and len(repr(value)) < 60 else f"the {type(value).__name__} it was"
