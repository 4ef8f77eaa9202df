"""Compile in threads, while Python lowers the next kernel. In: functions that compile. Out: `CompileQueue`.

Compilers run without the GIL: LLVM and GPU compilers as libraries, a C compiler as a process.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["SWITCH_INTERVAL", "CompileQueue"]

SWITCH_INTERVAL = 0.0001       # seconds while compile threads run: at the usual 0.005 they mostly wait for the GIL


class CompileQueue:
    """A FIFO queue of compile jobs. Its threads end when it is empty; the interpreter waits for them at exit."""

    def __init__(self, threads: int = 1) -> None:
        self._most = threads
        self.forget()
        _queues.add(self)

    def forget(self) -> None:
        """Reset to an empty queue without threads, at first and in a forked child, where the threads do not exist."""
        self._lock, self._jobs = threading.Lock(), deque[Callable[[], None]]()
        self._working = 0                # running threads
        self._usual = sys.getswitchinterval()

    def start(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Queue a job; return a function that waits for the job and returns its result or raises its error."""
        finished = threading.Event()
        outcome: list[tuple[Any, BaseException | None]] = []

        def job() -> None:
            try:
                outcome.append((work(), None))
            except BaseException as wrong:      # re-raised in `wait`
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
                sys.setswitchinterval(min(SWITCH_INTERVAL, self._usual))
            self._working += 1
        try:
            threading.Thread(target=self._work, name="glassgrad-compile").start()
        except RuntimeError:      # no more threads, or the interpreter is exiting: compile in this one
            self._work()
        return wait

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._working -= 1
                    if not self._working:                # restore the usual switch interval
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
