"""What a function can see without being handed it. In: a function, objects. Out: `Surroundings`, compared at each call.

The names in its closure, its defaults and its globals, and whatever can be reached from there: attributes, entries of
lists and dicts, other functions and methods of the user's. Numbers, texts and arrays are compared by value, everything
else by identity, so that a weight replaced by another tensor is noticed as well as a changed learning rate. Code of
libraries is taken to stay as it is; their objects are looked into like all others. Every call pays for the comparison,
so it first asks, for all places at once, whether the same objects are there (object_paths.py).
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Set
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.jit.methods import KEPT
from glassgrad.jit.object_paths import (
    PLAIN,
    Content,
    Place,
    array_content,
    attribute,
    cell,
    copied,
    difference,
    entry,
    is_array,
    item,
    own_entry,
    progress,
    same,
    same_objects,
    size,
    size_without,
)
from glassgrad.jit.replaced_state import is_nest
from glassgrad.tensor.tensor import Tensor

__all__ = ["Surroundings"]

_MOST_PLACES = 20_000           # more cannot be compared at each call
_LARGEST_ARRAY = 1 << 20        # bytes; larger arrays are recognised by identity
_LONG = 64                      # lists of this many plain values are compared at once
_CLOSED = ("numpy", "torch", "threading", "logging", "_io", "_thread", "weakref")   # objects that are not looked into


class Surroundings:
    """Every place a function can reach, and what is there now."""

    def __init__(self, function: Any, objects: list[Any], passing: Set[tuple[int, Any]] = frozenset()):
        """`passing` are the keys of places where tensors come and go: what is there is noted, but not looked into."""
        self.places: list[Place] = []
        self.guests: list[Place] = []                       # those of `passing` that were met
        self._passing = passing
        self.tensors: list[Tensor] = []
        self._seen: set[int] = set()
        self._known: set[tuple[int, Any]] = set()           # (holder, name): a holder lives as long as its place
        self._waiting: list[tuple[Any, str]] = [(function, "the function")]
        self._waiting += [(thing, type(thing).__name__) for thing in objects]
        while self._waiting:
            thing, path = self._waiting.pop()
            if id(thing) not in self._seen:
                self._seen.add(id(thing))
                self._visit(thing, path)
                if len(self.places) > _MOST_PLACES:
                    raise JitError("this function can see too much to be watched",
                                   given=f"more than {_MOST_PLACES} values in its closure, globals and objects",
                                   expected="a function that sees its model and little else",
                                   fix="hand in the data as arguments, as tensors")
        self._by_value: list[Place] = []                    # places where equal values come and go
        self._untouched: Callable[[], bool] | None = None   # whether all others hold what they did; None: not written
        self._others: list[Place] = []                      # those that it does not ask

    # -- comparing -----------------------------------------------------------------------------------------------------
    def change(self) -> str:
        """What is not as it was; empty when all is."""
        if self._untouched is None:
            known = {p.key for p in self._by_value}
            self._untouched, others = same_objects(p for p in self.places if p.key not in known)
            self._others = others + self._by_value
        if self._untouched():
            return difference(self._others) if self._others else ""
        change = difference(self.places)
        if not change:                       # other objects, but the same numbers: compared as such from now on
            known = {p.key for p in self._by_value}
            self._by_value += [p for p in self.places if p.now() is not p.value and p.key not in known]
            self._untouched = None
        return change

    def changed(self) -> Iterator[tuple[Place, Any]]:
        """Places where something else is than there was, with what is there now."""
        for place in (*self.places, *self.guests):
            now = place.now()
            if not same(now, place.value):
                yield place, now

    # -- walking -----------------------------------------------------------------------------------------------------
    def _add(self, get: Callable[[Any, Any], Any], holder: Any, name: Any, path: str) -> None:
        if (id(holder), name) in self._known:               # two functions see one global
            return
        self._known.add((id(holder), name))
        value = get(holder, name)
        if (id(holder), name) in self._passing and is_nest(value):
            self.guests.append(Place(get, holder, name, value, path))
            return
        self.places.append(Place(get, holder, name, value, path))
        if is_array(value):
            if value.nbytes <= _LARGEST_ARRAY:
                self.places.append(Place(array_content, value, name, Content(value).kept(), f"the content of {path}"))
        elif not isinstance(value, PLAIN):
            self._waiting.append((value, path))

    def _visit(self, thing: Any, path: str) -> None:
        kind = type(thing)
        if issubclass(kind, Tensor):
            self.tensors.append(thing)
        elif kind is types.FunctionType:
            self._visit_function(thing)
        elif kind is types.MethodType:
            self._waiting += [(thing.__func__, path), (thing.__self__, path)]
        elif kind in (staticmethod, classmethod):
            self._waiting.append((thing.__func__, path))
        elif kind is property:
            self._waiting += [(f, path) for f in (thing.fget, thing.fset) if f is not None]
        elif kind is functools.partial:
            self._waiting += [(part, path) for part in (thing.func, thing.args, thing.keywords)]
        elif issubclass(kind, type):
            self._visit_class(thing)
        elif issubclass(kind, (list, tuple, dict, set, frozenset, deque)):
            self._visit_container(thing, path)
        elif is_array(thing):
            if thing.nbytes <= _LARGEST_ARRAY:
                kept = Content(thing).kept()
                self.places.append(Place(array_content, thing, "an array", kept, f"the content of {path}"))
        elif hasattr(kind, "__next__"):
            self.places.append(Place(progress, thing, "", progress(thing, ""), f"how far {path} has come"))
            self._waiting += [(part, path) for part in gc.get_referents(thing)]       # zip and map have others in them
        elif hasattr(kind, "__wrapped__") or "__wrapped__" in getattr(thing, "__dict__", ()):
            self._waiting.append((thing.__wrapped__, path))            # a jit within, a cache, a decorator's object
        elif kind is not types.ModuleType and _is_open(kind):
            self._visit_object(thing, path)

    def _visit_function(self, function: Any) -> None:
        if not _is_user_code(function.__module__):
            return
        names, attributes = _names_used(function.__code__)
        for name, variable in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self._add(cell, variable, "cell_contents", name)
        space = function.__globals__
        for name in names & space.keys():
            self._add(entry, space, name, name)
            value = space[name]
            if type(value) is types.ModuleType and _is_user_code(value.__name__):
                for inner in attributes & vars(value).keys():
                    self._add(entry, vars(value), inner, f"{name}.{inner}")
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name) is not None:
                self._add(attribute, function, name, f"{function.__name__}.{name}")

    def _visit_class(self, cls: Any) -> None:
        for base in cls.__mro__:
            if _is_user_code(base.__module__):
                named = f"the number of {base.__name__}'s attributes"
                self.places.append(Place(size, vars(base), "", len(vars(base)), named))
                for name, value in vars(base).items():
                    if isinstance(value, (types.FunctionType, staticmethod, classmethod, property)):
                        self._add(own_entry, base, name, f"{base.__name__}.{name}")
                    elif not (name.startswith("__") or isinstance(value, types.MemberDescriptorType)):
                        self._add(attribute, base, name, f"{base.__name__}.{name}")

    def _visit_container(self, thing: Any, path: str) -> None:
        values = list(thing.values()) if isinstance(thing, dict) else list(thing)
        if len(values) > _LONG and all(isinstance(v, PLAIN) for v in values) or isinstance(thing, (set, frozenset)):
            self.places.append(Place(copied, thing, "", thing.copy() if hasattr(thing, "copy") else thing, path))
            return
        if isinstance(thing, tuple):                # it stays what it is: only what is in it may change
            self._waiting += [(v, f"{path}[{i}]") for i, v in enumerate(values) if not isinstance(v, PLAIN)]
            return
        self.places.append(Place(size, thing, "", len(thing), f"the length of {path}"))
        for name in list(thing) if isinstance(thing, dict) else range(len(thing)):
            self._add(entry if isinstance(thing, dict) else item, thing, name, f"{path}[{name!r}]")

    def _visit_object(self, thing: Any, path: str) -> None:
        # what a class keeps for the host alone: the graph reads it from tensors (an optimizer's learning rate)
        unwatched = ("__weakref__", "__dict__", KEPT, *getattr(type(thing), "__jit_unwatched__", ()))
        own = getattr(thing, "__dict__", None)
        if type(own) is dict:
            named = f"the number of {path}'s attributes"
            self.places.append(Place(size_without, own, KEPT, size_without(own, KEPT), named))
            for name in list(own):
                if name not in unwatched:
                    self._add(entry, own, name, f"{path}.{name}")
        for base in type(thing).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in unwatched and hasattr(thing, name):
                    self._add(attribute, thing, name, f"{path}.{name}")
        if _is_user_code(type(thing).__module__):
            self._waiting.append((type(thing), path))


def _is_user_code(module: str | None) -> bool:
    """Whether a module may change what it does between two calls: not one of Python's, ours, or the references'."""
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
