"""Find a layer's path in the user's model. In: a layer, during its call. Out: a name such as `model.blocks.3.fc`.

Layers are plain objects without a reference to the model that holds them. When one raises an error, the local
variables of the running functions are searched for it. Only errors need this, so it costs nothing otherwise.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

from glassgrad.base.source_lines import PACKAGE, library_folders
from glassgrad.nn.modules.object_tree import OPAQUE, parts_of

_MOST_OBJECTS = 5000     # visited per running function


def path_of(layer: object) -> str | None:
    """Return the longest path to a layer from a local variable of a running user function, or None.

    >>> class Model:
    ...     def __init__(self): self.blocks = [object(), object()]
    >>> model = Model()
    >>> path_of(model.blocks[1])
    'model.blocks.1'
    """
    found: str | None = None
    for frame in _user_frames(sys._getframe(1)):
        for start, value in list(frame.f_locals.items()):
            if start.startswith("__"):
                continue
            path = _search(start, value, layer)
            if path is not None and (found is None or path.count(".") >= found.count(".")):
                found = path
    return found


def _user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the user's running frames, innermost first, without ours, up to the first of a library."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            if file.startswith(library_folders()):
                return
            yield frame
        frame = frame.f_back


def _search(start: str, value: object, layer: object) -> str | None:
    """Return the shortest path from a variable to the layer through attributes, lists and dictionaries."""
    waiting: deque[tuple[str, Any]] = deque([(start, value)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        path, holder = waiting.popleft()
        if holder is layer:
            return path
        if id(holder) not in seen and not isinstance(holder, OPAQUE):
            seen.add(id(holder))
            waiting.extend((f"{path}.{name}", part) for name, part in parts_of(holder))
    return None
