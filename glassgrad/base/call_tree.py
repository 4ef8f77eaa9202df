"""Record in which layers and calls a node was made. In: running frames. Out: `CallTree`: numbered calls, each with its
parent.

A call is a function of the user's, a layer, an optimizer's step, or a method of Tensor. Nodes made by backward belong
to the call whose gradient they compute. Reading frames takes microseconds, so the visualizer stops after many nodes
without a new graph (`renew`); the sanitizer never stops.
"""

from __future__ import annotations

import os
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, NamedTuple

from glassgrad.base.source_lines import PACKAGE, PROGRAMS, Place, calls_of, library_folders

MOST_NODES = 300_000             # nodes to note before the first graph is scheduled; after that, at least:
MOST_OLD_NODES = 30_000
FUNCTION, LAYER, OPTIMIZER, METHOD, BACKWARD = "function", "layer", "optimizer", "method", "backward"
_GRADIENT = os.path.join(PACKAGE, "compiler", "graph", "gradient.py")


class Call(NamedTuple):
    """One call: the number of the calling one (-1 if there is none), its name and kind."""
    parent: int
    name: str
    kind: str


class Noted(NamedTuple):
    """The record of a node: its call, whether it is part of a gradient, and the place of the node that it is the
    gradient of."""
    call: int
    backward: bool
    tree: CallTree
    forward: Place | None = None

    def path(self, *kinds: str) -> list[str]:
        """Return the names of the enclosing calls of the given kinds, outermost first."""
        names, number = [], self.call
        while number >= 0:
            call = self.tree.calls[number]
            if call.kind in kinds:
                names.append(call.name)
            number = call.parent
        return names[::-1]

    @property
    def words(self) -> str:
        """Return the enclosing layers, and the innermost method of Tensor, as lines of a message."""
        layers, methods = self.path(LAYER, OPTIMIZER), self.path(METHOD)
        return (f"\nin {' > '.join(layers)}" if layers else "") + (f"\nby {methods[-1]}" if methods else "")


class CallTree:
    """All calls that made nodes, in the order in which they were first seen."""

    def __init__(self, most_nodes: float = MOST_NODES) -> None:
        self.most_nodes = most_nodes
        self.calls: list[Call] = []
        self._number: dict[tuple[Any, ...], int] = {}
        self._kinds: dict[int, tuple[str | None, CodeType]] = {}      # by id: hashing a code object is slower
        self._owners: list[Any] = []        # for each call, a weak reference to its layer
        self.noted = 0

    def renew(self, nodes: int) -> None:
        """Note that a new graph of this number of nodes was scheduled, so that the next nodes are recorded too."""
        self.noted, self.most_nodes = 0, max(MOST_OLD_NODES, 4 * nodes)

    def note(self, frame: FrameType | None) -> Noted | None:
        """Return the call that a frame belongs to, found from it and its callers; None after `most_nodes` nodes."""
        self.noted += 1
        if self.noted > self.most_nodes:
            return None
        found: list[tuple[str, FrameType]] = []
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            known = kinds.get(id(code))
            kind = known[0] if known is not None else self._kind(code)
            if kind is BACKWARD:
                place = getattr(frame.f_locals.get("node"), "place", None)
                forward = calls_of(place)
                if forward is not None:
                    return Noted(forward.call, True, self, forward.forward or place)
            elif kind is not None:
                found.append((kind, frame))
            if code.co_name == "<module>":
                break
            frame = frame.f_back
        number, holder, before = -1, None, ""
        for kind, each in reversed(found):
            if not kind == before == METHOD:        # if methods call each other, only the outermost counts
                number, holder = self._enter(number, kind, each, holder)
            before = kind
        return Noted(number, False, self)

    def _enter(self, parent: int, kind: str, frame: FrameType, holder: Any) -> tuple[int, Any]:
        code = frame.f_code
        owner = frame.f_locals.get("self") if kind in (LAYER, OPTIMIZER) else None
        if owner is not None and owner is holder:           # __call__ of a layer calls its forward
            return parent, holder
        key = (parent, id(code), id(owner) if owner is not None else frame.f_back.f_lasti if frame.f_back else 0)
        number = self._number.get(key)
        if number is None or owner is not None and self._owners[number]() is not owner:     # the id was reused
            name = code.co_name if owner is None else self._layer_name(owner, holder, kind)
            number = self._number[key] = len(self.calls)
            self.calls.append(Call(parent, name, kind))
            self._owners.append(_reference(owner))
        return number, owner if owner is not None else holder

    def _layer_name(self, layer: Any, holder: Any, kind: str) -> str:
        name = type(layer).__name__
        if kind == OPTIMIZER:
            return f"{name}.step"
        where = "" if holder is None else _attribute(holder, layer)
        return f"{where}: {name}" if where else name

    def _kind(self, code: CodeType) -> str | None:
        """Return the kind of call that a function makes (cached); None if such calls are not shown."""
        kind = _kind_of(code)
        self._kinds[id(code)] = kind, code
        return kind


def _kind_of(code: CodeType) -> str | None:
    file, name = code.co_filename, code.co_name
    method = code.co_argcount > 0 and code.co_varnames[0] == "self"
    if file.startswith(PACKAGE) and file not in PROGRAMS:
        inner = file[len(PACKAGE):].replace(os.sep, "/")
        if file == _GRADIENT:
            return BACKWARD if name == "gradients" else None
        if inner.startswith("nn/optim"):
            return OPTIMIZER if method and name == "step" else None
        if inner.startswith("nn/") and method and name in ("__call__", "forward"):
            return LAYER
        return METHOD if inner.startswith("tensor/methods/") and method and not name.startswith("_") else None
    if file.startswith(library_folders()) or file.startswith("<frozen") or name.startswith("<"):
        return None
    return LAYER if method and name in ("__call__", "forward") else FUNCTION


def _reference(thing: Any) -> Any:
    try:
        return weakref.ref(thing)
    except TypeError:                      # it cannot be referred to weakly: hold the object
        return lambda: thing


def _attribute(holder: Any, layer: Any) -> str:
    """Return the name under which one layer holds another, such as `layers.3`."""
    for name, value in getattr(holder, "__dict__", {}).items():
        if isinstance(value, (list, tuple)):
            parts = {f"{name}.{number}": part for number, part in enumerate(value)}
        else:
            parts = value if isinstance(value, dict) else {name: value}
        for path, part in parts.items():
            if part is layer:
                return str(path)
    return ""


def program_name() -> str:
    """Return the running script, as it was called."""
    return " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]) if sys.argv and sys.argv[0] else "python"
