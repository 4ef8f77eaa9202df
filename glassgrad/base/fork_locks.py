"""Hold locks across a fork. In: locks. Out: in a forked child all of them are free, and the data they guard is
consistent.

A fork copies the memory of a process, but only the thread that forks. A lock that another thread holds would stay
locked in the child for ever, over data that is half changed. So the thread that forks first takes all registered locks,
which waits until other threads' kernels and compilations end, and both processes release them afterwards.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

# Lock order, outermost first; any code that takes one lock while it holds another must keep it too.
ORDER = ("schedule", "node", "pool", "compiler", "cache", "memory", "counter")

_forking = threading.RLock()
_registered: list[tuple[int, weakref.ref[Any]]] = []
_taken: list[Any] = []


def held_at_fork(lock: Any, guards: str) -> Any:
    """Register a lock by what it guards, one of `ORDER`; return the lock.

    >>> lock = held_at_fork(threading.Lock(), "memory")
    >>> lock.locked()
    False
    """
    _registered.append((ORDER.index(guards), weakref.ref(lock)))
    return lock


def _take_all() -> None:
    _forking.acquire()
    _registered[:] = sorted(((level, ref) for level, ref in _registered if ref() is not None), key=lambda row: row[0])
    for _, ref in list(_registered):
        lock = ref()
        if lock is not None:
            lock.acquire()
            _taken.append(lock)


def _release_all() -> None:
    while _taken:
        _taken.pop().release()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_release_all)
