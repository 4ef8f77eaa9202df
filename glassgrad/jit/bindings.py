"""Where the jit finds a value, and the ways to read it again. In: holders and names. Out: `Binding`."""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import length_hint
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.base.settings import current_state
from glassgrad.jit.values import PLAIN, ArrayContent, is_array

__all__ = ["GONE", "Binding", "attribute", "cell", "content", "context_value", "entries", "entry", "environment",
           "item", "member", "own_entry", "progress", "size"]

GONE = type("Gone", (), {})()   # what is found where there is nothing any more


class Binding(NamedTuple):
    """Where a value was found: `get(holder, name)` reads it again, `path` is how the user would write it, `source` is
    the expression of the holder in the generated function, and `text` that of the value."""
    get: Callable[[Any, Any], Any]
    holder: Any
    name: Any
    value: Any
    path: str
    source: str = ""
    text: str = ""

    @property
    def is_variable(self) -> bool:
        """Whether it is an attribute, a global or a variable of a closure."""
        return self.get in (member, attribute, cell)

    def current(self) -> Any:
        """What is there now."""
        return self.get(self.holder, self.name)

    def put(self, holder: Any, value: Any) -> None:
        """Bind the name in this holder to another value."""
        if self.get is cell:
            holder.cell_contents = value
        elif self.get in (member, entry, item):
            holder[self.name] = value
        elif self.get in (attribute, own_entry):
            (type if isinstance(holder, type) else object).__setattr__(holder, self.name, value)
        else:
            raise Bug(f"{self.path} cannot be bound to another value")


# -- ways to read a value ----------------------------------------------------------------------------------------------
def member(holder: Any, name: Any) -> Any:
    """An attribute in an object's `__dict__`, or a module's global."""
    return holder.get(name, GONE)


def entry(holder: Any, name: Any) -> Any:
    """An entry of a dict."""
    return holder.get(name, GONE)


def item(holder: Any, name: Any) -> Any:
    """An item of a list, a tuple or a deque."""
    return holder[name] if name < len(holder) else GONE


def cell(holder: Any, name: Any) -> Any:
    """A variable of a closure."""
    try:
        return holder.cell_contents
    except ValueError:               # never filled, or deleted
        return GONE


def attribute(holder: Any, name: Any) -> Any:
    """An attribute of a function, or of an object with slots."""
    return getattr(holder, name, GONE)


def own_entry(holder: Any, name: Any) -> Any:
    """An attribute of a class, as it was written there."""
    return vars(holder).get(name, GONE)


def size(holder: Any, name: Any) -> int:
    """The number of entries."""
    return len(holder)


def content(holder: Any, name: Any) -> Any:
    """All entries of a set or of a long list, or what is in an array; the value that is kept is a copy."""
    return ArrayContent(holder) if is_array(holder) else holder


def entries(holder: Any, name: Any) -> list[Any]:
    """All entries of a large list or dict; the value that is kept is a copy."""
    return [*holder, *holder.values()] if isinstance(holder, dict) else list(holder)


def progress(holder: Any, name: Any) -> tuple[Any, ...]:
    """How far an iterator or a random generator has come, as far as that can be told."""
    if isinstance(holder, random.Random):
        return holder.getstate()
    frame = getattr(holder, "gi_frame", None)
    if frame is not None:
        return (frame.f_lasti, *[v for v in frame.f_locals.values() if isinstance(v, PLAIN)])
    return (length_hint(holder, -1), repr(holder))


def context_value(holder: Any, name: Any) -> Any:
    """The value of a context variable."""
    return holder.get(GONE)


def environment(holder: Any, name: Any) -> Any:
    """The settings and environment variables: one object while they are the same."""
    return current_state()
