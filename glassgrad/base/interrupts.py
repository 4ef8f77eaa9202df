"""Defer Ctrl-C. In: a block that must not be left halfway. Out: a block that SIGINT does not end.

Python raises KeyboardInterrupt between any two of its instructions. A block that overwrites weights in place and then
updates the tensors that refer to them must complete. Inside `interrupts_deferred` a Ctrl-C waits for the end of the
block, or for a call of `take_interrupt`. Imports nothing of glassgrad.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# `_signal` has the functions of `signal` without enums, ten times as fast: a jitted call sets the handler twice.
_signal: Any = import_module("_signal" if find_spec("_signal") else "signal")
_SIGINT = int(signal.SIGINT)
_waiting: list[Callable[[], Any]] = []           # a call of the user's handler for each deferred signal


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer SIGINT to the end of the block. No effect outside the main thread, which is the only one that gets signals.

    >>> try:
    ...     with interrupts_deferred():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("the end")
    ... except KeyboardInterrupt: print("then the interrupt")
    the end
    then the interrupt
    """
    handler = _signal.getsignal(_SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):                    # SIGINT is ignored, or this is not the main thread
        yield
        return
    call = handler
    _signal.signal(_SIGINT, lambda number, frame: _waiting.append(lambda: call(number, frame)))
    try:
        yield
    finally:
        _signal.signal(_SIGINT, handler)
        take_interrupt()


def take_interrupt() -> None:
    """Call the user's handler for every deferred Ctrl-C; Python's default one raises KeyboardInterrupt."""
    while _waiting and threading.current_thread() is threading.main_thread():
        _waiting.pop()()
