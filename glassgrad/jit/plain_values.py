"""Compare Python values, read them again, and rebuild structures of them. In: Python values. Out: whether they are
equal, `Binding`, their form.

Plain values are equal only if their types and bits are: 1, 1.0 and True are three values, and so are 0.0 and -0.0. A
binding records where a value was found and how to read it again: as one expression, of which the generated guard
function (guards.py) is made, and which also reads a single value. A nest is a tensor, a plain value, or a list, tuple
or dict of nests. Does not know functions, traces or replays.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from operator import is_, length_hint, setitem
from typing import Any, NamedTuple

from glassgrad.base.settings import current_state
from glassgrad.compiler.graph.symbolic import Length, Symbol, replaced
from glassgrad.tensor.autograd.gradient_leaves import RESET
from glassgrad.tensor.jit_access import unread_gradient, wants_gradient
from glassgrad.tensor.tensor import Tensor

SymbolNames = dict[Symbol, Symbol]       # {variable of a trace: of a call}, or {variable: its number}, as a Symbol
PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
_BY_TEXT = (float, complex, range, slice)      # compared by repr: 0.0 == -0.0, nan != nan, and slices have no hash
_DEEPEST = 8                                   # levels of a nest


# -- equality ----------------------------------------------------------------------------------------------------------
def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array or scalar; does not import NumPy."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a string, None, or a tuple of these: immutable, so an equal one may replace it.

    >>> is_plain((1, ("a", None))), is_plain((1, [2]))
    (True, False)
    """
    return isinstance(value, PLAIN) or type(value) is tuple and all(map(is_plain, value))


def array_content(array: Any) -> tuple[Any, ...]:
    """Return what an array is compared by: its type, shape and element type, and a copy of its bits (of an array of
    objects, their text).

    >>> import numpy
    >>> a = numpy.array([1.0, 2.0])
    >>> kept = array_content(a)
    >>> a[0] = 5.0; array_content(a) == kept, array_content(numpy.array([1.0, 2.0])) == kept
    (False, True)
    """
    return (type(array), array.shape, str(array.dtype),
            repr(array.tolist()) if array.dtype.hasobject else array.tobytes())


def same(now: Any, then: Any) -> bool:
    """Whether a value is unchanged: equal for plain values, arrays and containers of these, else the identical object.

    >>> same((1, 2.5), (1, 2.5)), same([1], [True]), same({"a": 0.0}, {"a": -0.0})
    (True, False, False)
    """
    if now is then:
        return True
    kind = then.__class__
    if now.__class__ is not kind:
        return False
    if issubclass(kind, (list, tuple, deque)):
        return len(now) == len(then) and (all(map(is_, now, then)) or all(map(same, now, then)))
    if issubclass(kind, dict):
        return same(list(now), list(then)) and same(list(now.values()), list(then.values()))
    if issubclass(kind, (set, frozenset)):
        return bool(now == then) and (not then or set(zip(map(type, now), now)) == set(zip(map(type, then), then)))
    if kind in _BY_TEXT:
        return repr(now) == repr(then)
    return kind in PLAIN and bool(now == then)


# -- how values are read again -----------------------------------------------------------------------------------------
GONE = type("Gone", (), {})()   # what is read where a value no longer exists
MISSING = (LookupError, AttributeError, ValueError)      # no such entry, no such attribute, an empty cell


def progress(holder: Any) -> tuple[Any, ...]:
    """Return the position of an iterator, or the state of a random generator, as far as it can be read."""
    if isinstance(holder, random.Random):
        return holder.getstate()
    frame = getattr(holder, "gi_frame", None)
    if frame is not None:
        return (frame.f_lasti, *[v for v in frame.f_locals.values() if isinstance(v, PLAIN)])
    return (length_hint(holder, -1), repr(holder))


def iterated(iterator: Any) -> tuple[Any, ...]:
    """Return what a built-in iterator (list_iterator, zip, map) iterates over, if it says so."""
    try:
        parts = iterator.__reduce__()
    except TypeError:                    # a generator
        return ()
    return tuple(parts[1]) if isinstance(parts, tuple) else ()


def has_gradient(tensor: Tensor) -> bool:
    """Return whether a tensor has a gradient, also one that was not read yet."""
    return unread_gradient(tensor) is not None and unread_gradient(tensor) is not RESET


# names that a `Way`'s expression may use
expression_names = {"GONE": GONE, "array_content": array_content, "progress": progress, "iterated": iterated,
                    "current_state": current_state, "has_gradient": has_gradient}


class Way:
    """How to read a value: an expression of its holder, {0}, and its name, {1}. `put`, if given, binds the name in the
    holder to another value. `kept`, if given, says that the value is computed from the holder, and makes what is
    compared later: a copy, if the value can change.

    >>> MEMBER.read({"lr": 0.1}, "lr"), MEMBER.read([1, 2], 5) is GONE, SIZE.read("abc")
    (0.1, True, 3)
    """

    def __init__(self, expression: str, put: Callable[[Any, Any, Any], None] | None = None,
                 kept: Callable[[Any], Any] | None = None):
        self.expression, self.kept = expression, kept
        self.put: Any = put
        self._read = eval(f"lambda holder, name: {expression.format('holder', 'name')}", expression_names)

    def read(self, holder: Any, name: Any = "") -> Any:
        """Read the present value; `GONE` if there is none."""
        try:
            return self._read(holder, name)
        except MISSING:
            return GONE


MEMBER = Way("{0}[{1}]", setitem)                              # in an object's `__dict__`, or a module's global
ITEM = Way("{0}[{1}]", setitem)                                # of a list, tuple, deque or dict
ENTRY = Way("{0}.get({1}, GONE)", setitem)                     # of a dict subclass (a defaultdict would add the entry)
CELL = Way("{0}.cell_contents", object.__setattr__)            # a variable of a closure
ATTRIBUTE = Way("getattr({0}, {1})", object.__setattr__)       # of a function, or of an object with slots
CLASS_ENTRY = Way("{0}.__dict__[{1}]", type.__setattr__)       # an attribute of a class, without calling descriptors
CONTEXT = Way("{0}.get(GONE)")                                 # the value of a context variable
PART = Way("{1}")                                              # the name is an expression of the holder
WEAKLY = Way("{1}()")                                          # the name is a weak reference
GRADIENT = Way("{0}.grad", lambda tensor, _, gradient: setattr(tensor, "grad", gradient))
HAS_GRADIENT = Way("has_gradient({0})", kept=bool)
SIZE = Way("len({0})", kept=int)
CONTENT = Way("{0}", kept=copy)                                # all entries of a set, or of a long list or dict
ARRAY = Way("array_content({0})", kept=tuple)
PROGRESS = Way("progress({0})", kept=tuple)
# settings and environment variables: `current_state()` returns the same object while they are unchanged
ENVIRONMENT = Way("current_state()", kept=lambda state: state)


class Binding(NamedTuple):
    """A place where a value was found: `way` reads it again from its holder; `path` is how the user would write it."""
    way: Way
    holder: Any
    name: Any
    value: Any
    path: str


# -- nests -------------------------------------------------------------------------------------------------------------
def mapped(value: Any, change: Callable[[Any], Any], kind: type = Tensor,
           others: Callable[[Any], Any] | None = None) -> Any:
    """Copy a nest with every tensor (or value of another `kind`) replaced by `change`, and every other leaf by
    `others`, if given."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        parts = [mapped(v, change, kind, others) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: mapped(v, change, kind, others) for k, v in value.items()}
    return value if others is None else others(value)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nest."""
    found: list[Tensor] = []
    mapped(value, found.append)
    return found


def is_nest(value: Any, deep: int = 0) -> bool:
    """Return whether a value is a tensor, a plain value, or a list, tuple or dict of these, so that a replay can
    rebuild it.

    >>> is_nest((Tensor([1.0]), {"steps": 3})), is_nest([object()])
    (True, False)
    """
    if isinstance(value, (Tensor, *PLAIN)):
        return True
    kind = type(value)
    if kind in (list, dict) or issubclass(kind, tuple) and (kind is tuple or hasattr(kind, "_fields")):
        return deep < _DEEPEST and all(is_nest(v, deep + 1) for v in (value.values() if kind is dict else value))
    return False


class TensorNumber(int):
    """The number that stands for a tensor in a nest.

    >>> nest = mapped({"pair": (Tensor([1.0]), 2), "steps": 3}, lambda tensor: TensorNumber(1))
    >>> mapped(nest, ["first", "second"].__getitem__, TensorNumber)
    {'pair': ('second', 2), 'steps': 3}
    """


class Increment(NamedTuple):
    """Stands for a number that each call increments by this much."""
    by: float


def describe(values: Iterable[Any], form: list[Any], tensors: dict[Tensor, int], objects: list[Any],
             symbols: SymbolNames) -> None:
    """Append to `form` what arguments are recognized by: tensors by shape, type and device, plain values and arrays by
    value, other objects by identity (the guards compare their contents). Of symbolic lengths only their order and
    bounds count. Tensors are numbered, so that a tensor passed twice is one argument."""
    for value in values:
        if isinstance(value, Tensor):
            node = value.uop
            shape = _numbered(node.shape, symbols) if node.symbolic else node.shape
            form += (tensors.setdefault(value, len(tensors)), value.__class__, shape, node.dtype,
                     node.device or value.device, wants_gradient(value))
        elif isinstance(value, PLAIN):
            form += (type(value), repr(value) if isinstance(value, _BY_TEXT) else value)
        elif isinstance(value, (list, tuple)):
            form += (type(value), len(value))
            describe(value, form, tensors, objects, symbols)
        elif isinstance(value, dict):
            form += (dict, len(value), *value)
            describe(value.values(), form, tensors, objects, symbols)
        elif isinstance(value, Length):
            form += (Length, _numbered(value, symbols))
        elif is_array(value):
            form += array_content(value)
        else:
            objects.append(value)
            form += (type(value), id(value))


def _numbered(value: Any, symbols: SymbolNames) -> Any:
    """Replace the variables of a shape or a length by their numbers, in the order in which they occur."""
    return replaced(value, lambda s: symbols.setdefault(s, Symbol(f"argument {len(symbols)}", s.low, s.high)))
