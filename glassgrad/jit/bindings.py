"""Where the jit finds a value, and the ways to read it again. In: holders and names. Out: `Binding`.

A way is one expression. The function that compares all values at each call (guards.py) is made of such expressions, and
reading a single value evaluates the same one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import length_hint, setitem
from typing import Any, NamedTuple

from glassgrad.base.settings import current_state
from glassgrad.jit.plain_values import PLAIN, ArrayContent

GONE = type("Gone", (), {})()   # read in place of a value that does not exist any more
MISSING = (LookupError, AttributeError, ValueError)      # no such entry, no such attribute, an empty cell


def entries(holder: Any) -> list[Any]:
    """All entries of a list or a dict."""
    return [*holder, *holder.values()] if isinstance(holder, dict) else list(holder)


def progress(holder: Any) -> tuple[Any, ...]:
    """The position of an iterator or the state of a random generator, as far as it can be read."""
    if isinstance(holder, random.Random):
        return holder.getstate()
    frame = getattr(holder, "gi_frame", None)
    if frame is not None:
        return (frame.f_lasti, *[v for v in frame.f_locals.values() if isinstance(v, PLAIN)])
    return (length_hint(holder, -1), repr(holder))


# what expressions may name besides the holder and the name
expression_names = {"GONE": GONE, "ArrayContent": ArrayContent, "entries": entries, "progress": progress,
                    "current_state": current_state}


class Way:
    """A way to read a value: an expression of its holder, {0}, and its name, {1}. `put` binds the name in a holder to
    another value, where that can be done.

    >>> MEMBER.read({"lr": 0.1}, "lr"), MEMBER.read([1, 2], 5) is GONE, SIZE.read("abc")
    (0.1, True, 3)
    """

    def __init__(self, expression: str, put: Callable[[Any, Any, Any], None] | None = None):
        self.expression = expression
        self.put: Any = put
        self._read = eval(f"lambda holder, name: {expression.format('holder', 'name')}", expression_names)

    def read(self, holder: Any, name: Any = "") -> Any:
        """What is there now."""
        try:
            return self._read(holder, name)
        except MISSING:
            return GONE


MEMBER = Way("{0}[{1}]", setitem)                              # in an object's `__dict__`, or a module's global
ITEM = Way("{0}[{1}]", setitem)                                # of a list, tuple, deque or dict
ENTRY = Way("{0}.get({1}, GONE)", setitem)                     # of a dict whose class may fill in what is missing
CELL = Way("{0}.cell_contents", object.__setattr__)            # a variable of a closure
ATTRIBUTE = Way("getattr({0}, {1})", object.__setattr__)       # of a function, or of an object with slots
CLASS_ENTRY = Way("{0}.__dict__[{1}]", type.__setattr__)       # an attribute of a class, no descriptor called
CONTEXT = Way("{0}.get(GONE)")                                 # the value of a context variable
# computed from the holder; the value that is kept is a copy
SIZE = Way("len({0})")
CONTENT = Way("{0}")                       # all entries of a set, or of a long list of plain values
ARRAY = Way("ArrayContent({0})")
ALL_ENTRIES = Way("entries({0})")          # of a large list or dict
PROGRESS = Way("progress({0})")
ENVIRONMENT = Way("current_state()")       # settings and environment variables: one object while they are the same


class Binding(NamedTuple):
    """Where a value was found: `way` reads it again, `path` is how the user would write it, `source` is the expression
    of the holder in the generated function, and `text` that of the value."""
    way: Way
    holder: Any
    name: Any
    value: Any
    path: str
    source: str
    text: str
