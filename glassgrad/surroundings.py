"""What a function can see without being handed it. In: a function, objects. Out: `Surroundings`, compared at each call.

The names in its closure, its defaults and its globals, and whatever can be reached from there: attributes, entries of
lists and dicts, other functions and methods of the user's. Numbers, texts and arrays are compared by value, everything
else by identity, so that a weight replaced by another tensor is noticed as well as a changed learning rate. Code of
libraries is taken to stay as it is; their objects are looked into like all others. Every call pays for the comparison,
so it first asks, for all places at once and without a loop in Python, whether the same objects are there.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple

from glassgrad.base.errors import JitError
from glassgrad.tensor.tensor import Tensor

__all__ = ["PLAIN", "Content", "Place", "Surroundings", "is_array"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
_MOST_PLACES = 20_000           # more cannot be compared at each call
_LARGEST_ARRAY = 1 << 20        # bytes; larger arrays are recognised by identity
_GROUPS = (list, tuple, dict, set, frozenset)
_LONG = 64                      # lists of this many plain values are compared at once
_CLOSED = ("numpy", "torch", "threading", "logging", "_io", "_thread", "weakref")   # objects that are not looked into


class Place(NamedTuple):
    """Where a value was found: `get(holder, name)` finds it again; `path` is how the user would write it."""
    get: Callable[[Any, Any], Any]
    holder: Any
    name: Any
    value: Any
    path: str

    def __str__(self) -> str:
        return self.path

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


def _content(holder: Any, name: Any) -> Content:
    return Content(holder)


def is_array(value: Any) -> bool:
    """A NumPy array or number, without importing NumPy."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


class Content:
    """What is in an array, bit by bit: compared where it lies, and copied only to be kept.

    >>> import numpy
    >>> a = numpy.array([1.0, 2.0])
    >>> kept = Content(a).kept()
    >>> a[0] = 5.0; Content(a) == kept, Content(numpy.array([1.0, 2.0])) == kept
    (False, True)
    """
    __slots__ = ("array",)

    def __init__(self, array: Any):
        self.array = array

    def kept(self) -> Content:
        """The same content, whatever becomes of the array."""
        return Content(self.array.copy())

    def _form(self) -> tuple[Any, ...]:
        return (type(self.array), self.array.shape, str(self.array.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self._form() == other._form() \
            and bool((_words(self.array) == _words(other.array)).all())

    def __hash__(self) -> int:
        words = _words(self.array)
        return hash((self._form(), words[::len(words) // 64 + 1].tobytes()))


def _words(array: Any) -> Any:
    """An array's memory as whole numbers, as wide as they divide it."""
    flat = array.reshape(-1)
    width = next(w for w in (8, 4, 2, 1) if flat.nbytes % w == 0)
    try:
        return (flat if flat.flags.c_contiguous else flat.copy()).view(f"u{width}")
    except TypeError:                    # Python objects in it: compared as such
        return flat


def _same(now: Any, then: Any) -> bool:
    if now is then:
        return True
    kind = then.__class__
    return now.__class__ is kind and (kind in PLAIN or kind in _GROUPS or kind is Content) and bool(now == then)


class Surroundings:
    """Every place a function can reach, and what is there now."""

    def __init__(self, function: Any, objects: list[Any]):
        self.places: list[Place] = []
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
                                   mend="hand in the data as arguments, as tensors")
        self._group()

    def without(self, places: set[tuple[int, Any]]) -> None:
        """Stop watching some places: (id of the holder, name)."""
        self.places = [p for p in self.places if (id(p.holder), p.name) not in places]
        self._group()

    # -- comparing -----------------------------------------------------------------------------------------------------
    def _group(self) -> None:
        """Sort the places by the quickest way to look at them: whole containers, names of a dict, one attribute
        of many objects, others."""
        by_holder: dict[int, list[Place]] = {}
        for place in self.places:
            by_holder.setdefault(id(place.holder), []).append(place)
        self._whole: list[Any] = []                 # lists, and dicts' values, which stay what they are when these grow
        whole: list[Any] = []
        self._picked: list[tuple[Callable[[Any], tuple[Any, ...]], Any, tuple[Any, ...]]] = []
        attributes: dict[str, tuple[Callable[[Any], Any], list[Any], list[Any]]] = {}     # cells have one, too
        self._others: list[Place] = []
        for places in by_holder.values():
            holder = places[0].holder
            entries = [p for p in places if p.get in (_entry, _item)]
            if type(holder) in (list, dict) and len(entries) == len(holder) == len({p.name for p in entries}):
                self._whole.append(holder.values() if type(holder) is dict else holder)
                whole += [p.value for p in entries]
                places = [p for p in places if p.get not in (_entry, _item, _size)]
            elif entries and type(holder) is dict and all(p.name in holder for p in entries):
                entries = entries * 2 if len(entries) == 1 else entries          # one name alone would not give a tuple
                self._picked.append((itemgetter(*[p.name for p in entries]), holder, tuple(p.value for p in entries)))
                places = [p for p in places if p.get is not _entry]
            for place in places:
                if place.get is getattr or place.get is _cell and place.value is not None:
                    _, holders, contents = attributes.setdefault(place.name, (attrgetter(place.name), [], []))
                    holders.append(place.holder)
                    contents.append(place.value)
                else:
                    self._others.append(place)
        self._lengths = [len(w) for w in self._whole]
        self._values = whole
        self._attributes = list(attributes.values())

    def _is_untouched(self) -> bool:
        """Whether the very same objects are everywhere where it can be asked at once."""
        if self._whole and (list(map(len, self._whole)) != self._lengths
                            or not all(map(is_, chain.from_iterable(self._whole), self._values))):
            return False
        try:
            for pick, holder, values in self._picked:
                if not all(map(is_, pick(holder), values)):
                    return False
            for get, holders, contents in self._attributes:
                if not all(map(is_, map(get, holders), contents)):
                    return False
            return True
        except (KeyError, AttributeError, ValueError):      # an entry, an attribute or the content of a cell is gone
            return False

    def change(self) -> str:
        """What is not as it was; empty when all is."""
        if self._is_untouched():
            return _difference(self._others) if self._others else ""
        difference = _difference(self.places)               # other objects, but perhaps the same numbers
        if not difference:
            self.places = [p._replace(value=p.get(p.holder, p.name)) if isinstance(p.value, PLAIN) else p
                           for p in self.places]
            self._group()
        return difference

    def changed_numbers(self) -> Iterator[tuple[Place, Any]]:
        """Plain values that are not as they were, with what they are now."""
        for place in self.places:
            now = place.get(place.holder, place.name)
            if isinstance(place.value, PLAIN) and isinstance(now, PLAIN) and not _same(now, place.value):
                yield place, now

    # -- walking -----------------------------------------------------------------------------------------------------
    def _add(self, get: Callable[[Any, Any], Any], holder: Any, name: Any, path: str) -> None:
        if (id(holder), name) in self._known:               # two functions see one global
            return
        self._known.add((id(holder), name))
        value = get(holder, name)
        self.places.append(Place(get, holder, name, value, path))
        if is_array(value):
            if value.nbytes <= _LARGEST_ARRAY:
                self.places.append(Place(_content, value, name, Content(value).kept(), f"the content of {path}"))
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
        elif issubclass(kind, (list, tuple, dict, set, frozenset)):
            self._visit_container(thing, path)
        elif is_array(thing):
            if thing.nbytes <= _LARGEST_ARRAY:
                self.places.append(Place(_content, thing, "an array", Content(thing).kept(), f"the content of {path}"))
        elif hasattr(kind, "__wrapped__") or "__wrapped__" in getattr(thing, "__dict__", ()):
            self._waiting.append((thing.__wrapped__, path))            # a jit within, a cache, a decorator's object
        elif kind is not types.ModuleType and _is_open(kind):
            self._visit_object(thing, path)

    def _visit_function(self, function: Any) -> None:
        if not _is_user_code(function.__module__):
            return
        names, attributes = _names_used(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self._add(_cell, cell, "cell_contents", name)
        space = function.__globals__
        for name in names & space.keys():
            self._add(_entry, space, name, name)
            value = space[name]
            if type(value) is types.ModuleType and _is_user_code(value.__name__):
                for inner in attributes & vars(value).keys():
                    self._add(_entry, vars(value), inner, f"{name}.{inner}")
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name) is not None:
                self._add(getattr, function, name, f"{function.__name__}.{name}")

    def _visit_class(self, cls: Any) -> None:
        for base in cls.__mro__:
            if _is_user_code(base.__module__):
                for name, value in vars(base).items():
                    if isinstance(value, (types.FunctionType, staticmethod, classmethod, property)):
                        self._waiting.append((value, f"{base.__name__}.{name}"))
                    elif not (name.startswith("__") or isinstance(value, types.MemberDescriptorType)):
                        self._add(getattr, base, name, f"{base.__name__}.{name}")

    def _visit_container(self, thing: Any, path: str) -> None:
        values = list(thing.values()) if isinstance(thing, dict) else list(thing)
        if len(values) > _LONG and all(isinstance(v, PLAIN) for v in values) or isinstance(thing, (set, frozenset)):
            self.places.append(Place(_copied, thing, "", thing.copy() if hasattr(thing, "copy") else thing, path))
            return
        if isinstance(thing, tuple):                # it stays what it is: only what is in it may change
            self._waiting += [(v, f"{path}[{i}]") for i, v in enumerate(values) if not isinstance(v, PLAIN)]
            return
        self.places.append(Place(_size, thing, "", len(thing), f"the length of {path}"))
        for name in list(thing) if isinstance(thing, dict) else range(len(thing)):
            self._add(_entry if isinstance(thing, dict) else _item, thing, name, f"{path}[{name!r}]")

    def _visit_object(self, thing: Any, path: str) -> None:
        # what a class keeps for the host alone: the graph reads it from tensors (an optimizer's learning rate)
        unwatched = ("__weakref__", "__dict__", *getattr(type(thing), "__jit_unwatched__", ()))
        own = getattr(thing, "__dict__", None)
        if type(own) is dict:
            for name in list(own):
                if name not in unwatched:
                    self._add(_entry, own, name, f"{path}.{name}")
        for base in type(thing).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in unwatched and hasattr(thing, name):
                    self._add(getattr, thing, name, f"{path}.{name}")
        if _is_user_code(type(thing).__module__):
            self._waiting.append((type(thing), path))


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
        get, holder, name, value, _ = place
        now = get(holder, name)
        if now is not value and not _same(now, value):
            return f"{place} is no longer {_shown(value)}"
    return ""


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, PLAIN) and len(repr(value)) < 60 else f"the {type(value).__name__} it was"
