"""Find the line of the user's program that is running. In: nothing. Out: `Line`. Imports nothing of glassgrad."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NamedTuple

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
PROGRAMS = tuple(os.path.join(PACKAGE, "cli", name) for name in ("demo.py", "train.py"))   # count as user code
Place = tuple[Any, ...]         # (code object, instruction offset[, result of the function set by `note_calls`])


@lru_cache(maxsize=1)
def library_folders() -> tuple[str, ...]:
    """Return the folders of libraries: Python's own, and those of sys.path that packages were installed into."""
    own = [path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))]
    own += [path for path in sys.path if os.path.isdir(path) and any(".dist-info" in n for n in os.listdir(path))]
    return tuple({os.path.abspath(path) + os.sep for path in own})


class _Files(dict[str, bool]):
    """Whether a file belongs to glassgrad, cached by its name, because hashing a code object would walk its
    constants."""

    def __missing__(self, file: str) -> bool:
        ours = self[file] = file.startswith(PACKAGE) and file not in PROGRAMS
        return ours


_is_ours = _Files()


_held: dict[int, Place | None] = {}         # by thread: the place of the innermost `one_place` block
_note_calls: Callable[[FrameType], Any] | None = None


def note_calls(note: Callable[[FrameType], Any] | None) -> Callable[[FrameType], Any] | None:
    """Set a function that is called with the innermost frame and whose result, the layers and calls around it, becomes
    part of places. Return the function that was set before."""
    global _note_calls
    before, _note_calls = _note_calls, note
    return before


def calls_are_noted() -> bool:
    """Return whether new places record the calls around them."""
    return _note_calls is not None


def calls_of(place: Place | None) -> Any:
    """Return the calls recorded with a place; None if there are none."""
    return place[2] if place is not None and len(place) > 2 else None


class Line(NamedTuple):
    """A line of a source file."""
    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"

    @property
    def short(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}"


def user_place(inner: int = 2) -> Place | None:
    """Return the place in the innermost running frame outside this package; cheap enough for every node of a graph. The
    `inner` innermost frames are known to be in this package: each frame that is not examined saves a tenth of a
    microsecond."""
    if _held and (thread := get_ident()) in _held:
        return _held[thread]
    frame = sys._getframe(inner)
    code = frame.f_code
    while _is_ours[code.co_filename]:
        if frame.f_back is None:
            return None
        frame = frame.f_back
        code = frame.f_code
    if _note_calls is not None:
        return (code, frame.f_lasti, _note_calls(sys._getframe(1)))
    return (code, frame.f_lasti)


class one_place:
    """Make `user_place()` on this thread return the given place, or that of the block, within the block: a compiler
    makes a thousand nodes for one line."""
    __slots__ = ("place", "thread", "is_outermost", "before")

    def __init__(self, place: Place | None = None):
        self.place = place or user_place()

    def __enter__(self) -> None:
        self.thread = thread = get_ident()
        self.is_outermost, self.before = thread not in _held, _held.get(thread)
        _held[thread] = self.place

    def __exit__(self, *_: object) -> None:
        if self.is_outermost:
            del _held[self.thread]
        else:
            _held[self.thread] = self.before


def line_of(place: Place | None) -> Line | None:
    """Return the line of a place, from the code's line table."""
    if place is None:
        return None
    code: CodeType = place[0]
    instruction: int = place[1]
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            return Line(code.co_filename, number)
    return Line(code.co_filename, code.co_firstlineno)


def user_line() -> Line | None:
    """Return the innermost running line outside this package, or None if there is none.

    >>> user_line() is None or user_line().number > 0
    True
    """
    return line_of(user_place())
