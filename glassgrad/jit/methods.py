"""Jitted methods, one jit for each object. In: a decorated method, an object. Out: the object's own `TinyJit`.

An object must not live longer because one of its methods is jitted. So the function knows its object weakly, and the
jits are kept outside of it, where they do not hold it. But a capture holds what it watches; where that leads back to
the object (`self.child.parent is self`), only the object itself can hold its jits: then it gets an entry in its
`__dict__`, and the circle is garbage like any other.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import JitError

__all__ = ["KEPT", "Bound", "Methods"]

KEPT = "__glassgrad_jits__"          # the name of that entry
_MOST_OBJECTS = 200_000              # to look at before it is taken for granted that there is a way back


class Bound:
    """A method that does not keep its object alive."""

    def __init__(self, function: Callable[..., Any], instance: Any):
        self.function, self.instance = function, weakref.ref(instance)
        self.__wrapped__ = function
        self.__name__, self.__doc__ = getattr(function, "__name__", "method"), function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.instance(), *args, **kwargs)


class Methods:
    """The jits of one decorated method, by object: by identity, since objects may be equal or have no hash."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Callable[[], Any]]] = {}      # object, what gives its jit

    def of(self, instance: Any, make: Callable[[Bound], Any], function: Callable[..., Any]) -> Any:
        """The object's jit of this function; made where there is none."""
        known = self._known.get(id(instance))
        jit = known[1]() if known is not None and known[0]() is instance else None
        if jit is not None:
            return jit
        try:
            made = make(Bound(function, instance))
        except TypeError:
            raise JitError("a jitted method needs an object that can be referred to weakly",
                           given=f"a {type(instance).__name__}", expected="an object with __weakref__",
                           fix='add "__weakref__" to its __slots__, or jit a function instead') from None
        table, key = self._known, id(instance)
        self._known[key] = (weakref.ref(instance, lambda _: table.pop(key, None)), lambda: made)
        return made

    def captured(self, instance: Any, jit: Any) -> None:
        """The object's jit has come to hold something: if that leads to the object, the object is to hold the jit."""
        known = self._known.get(id(instance))
        own = getattr(instance, "__dict__", None)
        if known is not None and type(own) is dict and known[1]() is jit and _leads_to(jit, instance):
            own.setdefault(KEPT, _Kept()).jits.append(jit)
            self._known[id(instance)] = (known[0], weakref.ref(jit))


class _Kept:
    """The jits that an object holds; a copy of the object has none."""

    def __init__(self) -> None:
        self.jits: list[Any] = []
        self.__wrapped__ = None          # nothing that walks over objects need look in here

    def __reduce__(self) -> Any:
        return (_Kept, ())


def _leads_to(start: Any, end: Any) -> bool:
    """Whether one object keeps another alive. What a program holds anyhow (modules and their names, classes) is not
    followed."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        thing = waiting.pop()
        if thing is end:
            return True
        if id(thing) in seen or isinstance(thing, (type, types.ModuleType)) or _is_namespace(thing):
            continue
        seen.add(id(thing))
        if len(seen) > _MOST_OBJECTS:
            return True
        held = gc.get_referents(thing) if type(thing) is not types.FunctionType else \
            [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
        waiting += filter(gc.is_tracked, held)               # the others hold nothing
    return False


def _is_namespace(thing: Any) -> bool:
    """Whether a dict holds the names of a module."""
    return type(thing) is dict and "__name__" in thing and \
        getattr(sys.modules.get(str(thing["__name__"])), "__dict__", None) is thing
