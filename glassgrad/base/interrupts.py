"""Defer Ctrl-C. In: a block that must not be left halfway. Out: a block that SIGINT does not end.

Python raises KeyboardInterrupt between any two of its instructions. A block that overwrites weights in place and then
updates the tensors that refer to them must complete. Inside `interrupts_deferred` a Ctrl-C waits for the end of the
block, or for a call of `take_interrupt`. Imports nothing of glassgrad.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# `_signal` has the functions of `signal` without enums, ten times as fast: a jitted call sets the handler twice.
_signal: Any = import_module("_signal" if find_spec("_signal") else "signal")
_SIGINT = int(signal.SIGINT)
_waiting: list[tuple[int, Any]] = []             # the arguments of the user's handler, for each signal that came
_handlers: list[Any] = []                        # the user's handler, while a block is open


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer SIGINT to the end of the block; of nested blocks, to the end of the outermost. No effect outside the main
    thread, which alone gets signals.

    >>> try:
    ...     with interrupts_deferred():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("the end")
    ... except KeyboardInterrupt: print("then the interrupt")
    the end
    then the interrupt
    """
    handler = _signal.getsignal(_SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler) or handler is _note:      # SIGINT is ignored, another thread, or a block inside a block
        yield
        return
    _handlers.append(handler)
    _signal.signal(_SIGINT, _note)
    try:
        yield
    finally:
        _signal.signal(_SIGINT, _handlers.pop())
        take_interrupt()


def _note(number: int, frame: Any) -> None:
    _waiting.append((number, frame))


def take_interrupt() -> None:
    """Call the user's handler for every deferred Ctrl-C; Python's default one raises KeyboardInterrupt. A handler may
    set another one, which then is the user's: the block stays protected."""
    while _waiting and threading.current_thread() is threading.main_thread():
        call = _handlers[-1] if _handlers else _signal.getsignal(_SIGINT)
        arguments = _waiting.pop()
        try:
            if callable(call):
                call(*arguments)
        finally:
            if _handlers and _signal.getsignal(_SIGINT) is not _note:
                _handlers[-1] = _signal.getsignal(_SIGINT)
                _signal.signal(_SIGINT, _note)
