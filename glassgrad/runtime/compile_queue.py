"""Compile in threads, while Python lowers the next kernel. In: functions that compile. Out: `CompileQueue`.

Compilers work outside Python's lock: LLVM and those of GPUs in libraries, a C compiler as a process.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["TURN", "CompileQueue"]

TURN = 0.0001       # seconds that a thread waits for Python's lock at each call; the usual 0.005 would stop it


class CompileQueue:
    """Jobs in the order they came, in threads that live while there are any: Python waits for them at the end."""

    def __init__(self, threads: int = 1) -> None:
        self._most = threads
        self.forget()
        _queues.add(self)

    def forget(self) -> None:
        """Start over without threads: a new queue, or that of a fork, in which they do not exist."""
        self._lock, self._jobs = threading.Lock(), deque[Callable[[], None]]()
        self._working = 0                # threads
        self._usual = sys.getswitchinterval()

    def start(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Begin this as soon as a thread is free; call the answer to wait for what it returns."""
        finished = threading.Event()
        outcome: list[tuple[Any, BaseException | None]] = []

        def job() -> None:
            try:
                outcome.append((work(), None))
            except BaseException as wrong:      # raised again where the result is waited for
                outcome.append((None, wrong))
            finished.set()

        def wait() -> Any:
            finished.wait()
            [(made, wrong)] = outcome
            if wrong is not None:
                raise wrong
            return made

        with self._lock:
            self._jobs.append(job)
            if self._working >= self._most:
                return wait
            if not self._working:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN, self._usual))
            self._working += 1
        try:
            threading.Thread(target=self._work, name="glassgrad-compile").start()
        except RuntimeError:      # the system starts no more threads, or Python ends: compile here
            self._work()
        return wait

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._working -= 1
                    if not self._working:                # threads take turns as they did before
                        sys.setswitchinterval(self._usual)
                    return
                job = self._jobs.popleft()
            job()


_queues: weakref.WeakSet[CompileQueue] = weakref.WeakSet()


def _after_fork() -> None:
    for queue in _queues:
        if queue._working:
            sys.setswitchinterval(queue._usual)
        queue.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
