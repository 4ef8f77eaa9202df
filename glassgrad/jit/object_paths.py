"""Places where values were found, and whether they are still there. In: `Place`s. Out: one quick question for all.

A call of a jitted function asks it before anything else, so it is compiled: `same_objects` writes a Python function
that compares every place by identity; while that says yes, little else is looked at. It never says yes wrongly: what it
cannot see at a glance (a set, an array, an entry of somebody's own kind of list) is left to `same`, which compares
values, and there 1, 1.0 and True are three values, as are 0.0 and -0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from keyword import iskeyword
from operator import is_, itemgetter, length_hint
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug

__all__ = ["PLAIN", "Content", "Place", "array_content", "attribute", "cell", "copied", "difference", "entry",
           "is_array", "item", "own_entry", "progress", "same", "same_attributes", "same_objects", "size",
           "size_without"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
_GONE = type("Gone", (), {})()                 # what is found where there is nothing any more
_BY_TEXT = (float, complex, range, slice)      # equal ones may differ: 0.0 and -0.0; and nan is itself
_MANY = 16                                     # entries of one holder that are compared by a loop, not line by line


class Place(NamedTuple):
    """Where a value was found: `get(holder, name)` finds it again; `path` is how the user would write it."""
    get: Callable[[Any, Any], Any]
    holder: Any
    name: Any
    value: Any
    path: str

    def __str__(self) -> str:
        return self.path

    @property
    def key(self) -> tuple[int, Any]:
        """What tells places apart while their holders live."""
        return (id(self.holder), self.name)

    def now(self) -> Any:
        """What is there now."""
        return self.get(self.holder, self.name)

    def put(self, value: Any) -> None:
        """Bind the place to another value."""
        if self.get is cell:
            self.holder.cell_contents = value
        elif self.get in (entry, item):
            self.holder[self.name] = value
        elif self.get is attribute:
            (type if isinstance(self.holder, type) else object).__setattr__(self.holder, self.name, value)
        else:
            raise Bug(f"{self.path} cannot be bound to another value")


# -- ways to look ------------------------------------------------------------------------------------------------------
def entry(holder: Any, name: Any) -> Any:
    """Of a dict."""
    return holder.get(name, _GONE)


def item(holder: Any, name: Any) -> Any:
    """Of a list."""
    return holder[name] if name < len(holder) else _GONE


def cell(holder: Any, name: Any) -> Any:
    """The variable of a closure."""
    try:
        return holder.cell_contents
    except ValueError:               # never filled, or deleted
        return _GONE


def attribute(holder: Any, name: Any) -> Any:
    """Of a function, a class, or an object with slots."""
    return getattr(holder, name, _GONE)


def own_entry(holder: Any, name: Any) -> Any:
    """Of a class itself, as it was written there."""
    return vars(holder).get(name, _GONE)


def size(holder: Any, name: Any) -> int:
    """How many entries there are."""
    return len(holder)


def size_without(holder: Any, name: Any) -> int:
    """How many entries there are, but for one."""
    return len(holder) - (name in holder)


def progress(holder: Any, name: Any) -> tuple[Any, ...]:
    """How far an iterator has come, as far as that can be told."""
    frame = getattr(holder, "gi_frame", None)
    if frame is not None:
        return (frame.f_lasti, *[v for v in frame.f_locals.values() if isinstance(v, PLAIN)])
    return (length_hint(holder, -1), repr(holder))


def copied(holder: Any, name: Any) -> Any:
    """All entries of a set or of a long list; the value that is kept is a copy."""
    return holder


def array_content(holder: Any, name: Any) -> Content:
    """What is in an array."""
    return Content(holder)


# -- values ------------------------------------------------------------------------------------------------------------
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
    """An array's memory as integers, as wide as they divide it."""
    flat = array.reshape(-1)
    width = next(w for w in (8, 4, 2, 1) if flat.nbytes % w == 0)
    try:
        return (flat if flat.flags.c_contiguous else flat.copy()).view(f"u{width}")
    except TypeError:                    # Python objects in it: compared as such
        return flat


def same(now: Any, then: Any) -> bool:
    """Whether a value is what it was: an equal number, text, array or group of such, or else the very same object.

    >>> same((1, 2.5), (1, 2.5)), same([1], [True]), same({"a": 0.0}, {"a": -0.0})
    (True, False, False)
    """
    if now is then:
        return True
    kind = then.__class__
    if now.__class__ is not kind:
        return False
    if issubclass(kind, (list, tuple)):
        return len(now) == len(then) and (all(map(is_, now, then)) or all(map(same, now, then)))
    if issubclass(kind, dict):
        return len(now) == len(then) and all(map(same, now, then)) and all(map(same, now.values(), then.values()))
    if issubclass(kind, (set, frozenset)):
        return bool(now == then) and (not then or set(zip(map(type, now), now)) == set(zip(map(type, then), then)))
    if kind in _BY_TEXT:
        return repr(now) == repr(then)
    return (kind in PLAIN or kind is Content) and bool(now == then)


def difference(places: Iterable[Place]) -> str:
    """The first place where something else is, in words; empty when there is none."""
    for place in places:
        get, holder, name, value, _ = place
        now = get(holder, name)
        if now is not value and not same(now, value):
            return f"{place} is no longer {_shown(value)}"
    return ""


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, PLAIN) and len(repr(value)) < 60 else f"the {type(value).__name__} it was"


# -- all places at once ------------------------------------------------------------------------------------------------
def same_objects(places: Iterable[Place]) -> tuple[Callable[[], bool], list[Place]]:
    """A function that says whether the very same objects are at these places, and the places that it does not ask.

    >>> settings, layers = {"rate": object()}, [object(), object()]
    >>> untouched, _ = same_objects([Place(entry, settings, "rate", settings["rate"], "rate"),
    ...                              Place(item, layers, 0, layers[0], "0"), Place(item, layers, 1, layers[1], "1"),
    ...                              Place(size, layers, "", 2, "the length")])
    >>> before = untouched(); layers[1] = object(); before, untouched()
    (True, False)
    """
    by_holder: dict[int, list[Place]] = {}
    for place in places:
        by_holder.setdefault(id(place.holder), []).append(place)
    writer, others = _Writer(), []
    for group in by_holder.values():
        others += writer.compare(group)
    return writer.function(), others


def same_attributes(references: Sequence[Callable[[], Any]], name: str) -> Callable[[list[Any]], bool]:
    """A function that says whether this attribute of each object is the very one in a list; of a dead one it is not.

    >>> import weakref
    >>> class Point: x = y = 0
    >>> point = Point()
    >>> at = same_attributes([weakref.ref(point)], "x")
    >>> before = at([0]); point.x = 5; before, at([0]), at([5])
    (True, False, True)
    """
    if not 0 < len(references) <= _MANY:
        def compare(values: list[Any]) -> bool:
            try:
                return all(map(is_, [getattr(reference(), name) for reference in references], values))
            except AttributeError:
                return False
        return compare
    values = ", ".join(f"v{i}" for i in range(len(references)))
    tests = " and ".join(f"r{i}().{name} is v{i}" for i in range(len(references)))
    text = (f"def same(values):\n    {values}, = values\n    try: return {tests}\n"
            "    except AttributeError: return False\n")           # None has no such attribute
    names: dict[str, Any] = {f"r{i}": reference for i, reference in enumerate(references)}
    exec(compile(text, "<places>", "exec"), names)
    return names["same"]       # type: ignore[no-any-return]


class _Writer:
    """The text of a function, and the objects that it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"all": all, "map": map, "is_": is_, "len": len}

    def name(self, value: Any) -> str:
        """A new name for an object."""
        name = f"v{len(self.names)}"
        self.names[name] = value
        return name

    def compare(self, places: list[Place]) -> list[Place]:
        """Write the comparison of one holder's places; those that are not in it."""
        holder = places[0].holder
        entries = [p for p in places if p.get is entry or p.get is item]
        whole = len(entries) == len({p.name for p in entries}) and any(p.get is size for p in places) \
            and len(holder) == len(entries)
        asked: list[int] = []
        if type(holder) is list and whole and [p.name for p in entries] == list(range(len(entries))):
            self._compare_list(holder, entries)
            asked = [id(p) for p in places if p.get is item or p.get is size]
        elif type(holder) is dict and entries and all(p.name in holder for p in entries):
            self._compare_entries(holder, entries, whole)
            asked = [id(p) for p in places if p.get is entry or whole and p.get is size]
        return [p for p in places if id(p) not in asked and not self._compare_one(p)]

    def _compare_list(self, holder: list[Any], places: list[Place]) -> None:
        values = [p.value for p in places]
        at = self.name(holder)
        if not 0 < len(values) <= _MANY:
            self._unless(f"len({at}) == {len(values)} and all(map(is_, {at}, {self.name(values)}))")
        else:
            found = [f"x{i}" for i in range(len(values))]
            self.lines.append(f"{', '.join(found)}, = {at}")           # a list of another length raises ValueError
            self._unless(" and ".join(f"{x} is {self.name(v)}" for x, v in zip(found, values)))

    def _compare_entries(self, holder: dict[Any, Any], places: list[Place], whole: bool) -> None:
        at = self.name(holder)
        tests = [f"len({at}) == {len(places)}"] if whole else []
        if len(places) > _MANY:
            pick = self.name(itemgetter(*[p.name for p in places]))
            tests.append(f"all(map(is_, {pick}({at}), {self.name([p.value for p in places])}))")
        else:
            tests += [f"{at}[{repr(p.name) if type(p.name) is str else self.name(p.name)}] is {self.name(p.value)}"
                      for p in places]
        self._unless(" and ".join(tests))

    def _compare_one(self, place: Place) -> bool:
        get, holder, name, value, _ = place
        if get is size:
            self._unless(f"len({self.name(holder)}) == {value}")
        elif get is size_without:
            self._unless(f"len({self.name(holder)}) - ({name!r} in {self.name(holder)}) == {value}")
        elif get is own_entry:
            self._unless(f"{self.name(holder)}.__dict__[{name!r}] is {self.name(value)}")
        elif get is copied and type(holder) in (set, frozenset) and all(type(v) is str for v in value):
            self._unless(f"{self.name(holder)} == {self.name(value)}")     # nothing but a text equals a text
        elif value is not _GONE and (get is cell or get is attribute and name.isidentifier() and not iskeyword(name)):
            self._unless(f"{self.name(holder)}.{name} is {self.name(value)}")
        else:
            return False
        return True

    def _unless(self, test: str) -> None:
        self.lines.append(f"if not ({test}): return False")

    def function(self) -> Callable[[], bool]:
        """What was written, compiled."""
        body = "\n        ".join([*self.lines, "return True"])
        text = ("def untouched():\n    try:\n        " + body + "\n"
                # an entry or an attribute is gone, a cell is empty, a list is longer or shorter
                "    except (KeyError, AttributeError, ValueError):\n        return False\n")
        exec(compile(text, "<places>", "exec"), self.names)
        return self.names["untouched"]       # type: ignore[no-any-return]
