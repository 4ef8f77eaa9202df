"""Hold locks across a fork. In: locks. Out: in a forked child all of them are free, and the data they guard is
consistent.

A fork copies the memory of a process, but only the thread that forks. A lock that another thread holds would stay
locked in the child for ever, over data that is half changed. So the thread that forks first takes all registered locks,
which waits until other threads' kernels and compilations end, and both processes release them afterwards.

Python's own locks are not among them. One is held while a module is imported: a child waits for ever when it imports a
module that another thread was importing. So code that imports late, and may run in a thread, does so under a registered
lock: compiling a graph, opening a device, loading LLVM.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

# Lock order, outermost first; any code that takes one lock while it holds another must keep it too.
ORDER = ("schedule", "compilation", "device", "node", "pool", "compiler", "cache", "memory", "counter")

_forking = threading.RLock()
_registered: dict[weakref.ref[Any], int] = {}       # lock -> its place in the order
_taken: list[Any] = []


def held_at_fork(lock: Any, guards: str) -> Any:
    """Register a lock by what it guards, one of `ORDER`; return the lock.

    >>> lock = held_at_fork(threading.Lock(), "memory")
    >>> lock.locked()
    False
    """
    _registered[weakref.ref(lock, _registered.pop)] = ORDER.index(guards)
    return lock


def _next_lock() -> Any:
    """Return the outermost registered lock that is not taken yet; None if all are."""
    rows = [(level, lock) for ref, level in [*_registered.items()] if (lock := ref()) is not None]
    left = [(level, lock) for level, lock in rows if not any(lock is taken for taken in _taken)]
    return min(left, key=lambda row: row[0], default=(0, None))[1]


def _take_all() -> None:
    _forking.acquire()
    while (lock := _next_lock()) is not None:       # looked up each time: other threads go on, and may make locks
        lock.acquire()
        _taken.append(lock)


def _release_all() -> None:
    while _taken:
        _taken.pop().release()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_release_all)
