"""When a Ctrl-C is taken. In: a block that must not be left halfway. Out: a block that SIGINT does not end.

Python raises KeyboardInterrupt between any two of its instructions. A block that writes weights where they are and then
says where they are must come to its end. Inside `interrupts_deferred` a Ctrl-C waits for that end, or for a place that
calls `take_interrupt`. Imports nothing of glassgrad.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# The functions of `signal` without its enums, in a tenth of the time: a jitted call sets the handler twice.
_signal: Any = import_module("_signal" if find_spec("_signal") else "signal")
_SIGINT = int(signal.SIGINT)
_waiting: list[Callable[[], Any]] = []           # the user's handler, for each signal that came


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """A block that a Ctrl-C does not end: it is taken after it. Only the main thread takes any.

    >>> try:
    ...     with interrupts_deferred():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("the end")
    ... except KeyboardInterrupt: print("then the interrupt")
    the end
    then the interrupt
    """
    handler = _signal.getsignal(_SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):                    # ignored, or another thread's business
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
    """Let a Ctrl-C that came inside `interrupts_deferred` do what it does: mostly, it raises KeyboardInterrupt."""
    while _waiting and threading.current_thread() is threading.main_thread():
        _waiting.pop()()
