"""Run a check in a forked child. In: a function. Out: the exit status of the child."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def in_child(check: Callable[[], bool]) -> int:
    """Fork, run a check in the child, and return its exit status; 9 if it does not end."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 3)
        finally:
            os._exit(4)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 9
