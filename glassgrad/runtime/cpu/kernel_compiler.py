"""Compile kernels. In: a kernel's graph, a target, a language. Out: machine code, now or soon.

LLVM works outside Python's lock, so it compiles one kernel in a thread while Python lowers the next; a C compiler is
a process, so there are as many as there are cores. This module loads the whole compiler; devices open it only when a
kernel is not in the cache. What writes and compiles C is loaded when a device compiles C.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.base.errors import Bug, FormatError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.decisions import Refused
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch_info import LaunchInfo
from glassgrad.runtime.cpu import llvm_compiler as llvm
from glassgrad.runtime.cpu.processor import available_cores
from glassgrad.runtime.kernel_source import build

Made = tuple[str, LaunchInfo, bytes, tuple[str, ...]]      # a kernel's name, how to launch it, object file, moves
TURN = 0.0001       # seconds that LLVM's thread waits for Python's lock at each call; the usual 0.005 would stop it


class _Job:
    """Something to compile, and what came of it."""

    def __init__(self, work: Callable[[], Made]):
        self._work, self._finished = work, threading.Event()
        self._made: Made | None = None
        self._wrong: BaseException | None = None

    def run(self) -> None:
        try:
            self._made = self._work()
        except BaseException as wrong:      # raised again where the result is waited for
            self._wrong = wrong
        self._finished.set()

    def result(self) -> Made:
        """Wait for it."""
        self._finished.wait()
        if self._made is None:
            raise self._wrong or Bug("a compile ended without a result")
        return self._made


class _Queue:
    """Jobs in the order they came, in threads that live while there are any: Python waits for them at the end."""

    def __init__(self, threads: int = 1) -> None:
        self._lock, self._jobs = threading.Lock(), deque[_Job]()
        self._most, self._working = threads, 0           # threads
        self._usual = sys.getswitchinterval()

    def put(self, job: _Job) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._working >= self._most:
                return
            if not self._working:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN, self._usual))
            self._working += 1
        try:
            threading.Thread(target=self._work, name="glassgrad-compile").start()
        except RuntimeError:      # the system starts no more threads: compile here
            self._work()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._working -= 1
                    if not self._working:                # threads take turns as they did before
                        sys.setswitchinterval(self._usual)
                    return
                job = self._jobs.popleft()
            job.run()

    def forked(self) -> _Queue:
        """An empty one for a process that has none of these threads."""
        if self._working:
            sys.setswitchinterval(self._usual)
        return _Queue(self._most)


_queues = {"llvm": _Queue(), "c": _Queue(available_cores())}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _queues.update({key: queue.forked() for key, queue in _queues.items()}))


def start(ast: UOp, target: Target, language: str, finished: Callable[[Made], None],
          moves: Sequence[str] | None = None) -> Callable[[], Made]:
    """Begin compiling a kernel, by the recipe or by the given moves; call the answer to wait for it. `finished` sees
    the result as soon as it is there."""
    try:
        built = build(ast, target, language, moves)
    except Refused as why:
        raise FormatError("what a tuning file says of a kernel does not fit it", given=str(why),
                          expected="moves as a search found them",
                          fix="glassgrad tune clear, and search again") from None
    features = settings.CPU_FEATURES      # read here: a Context belongs to the thread that entered it

    def work() -> Made:
        if language == "llvm":
            compiled = llvm.compile_ir(built.source, features)
        else:
            from glassgrad.runtime.cpu.c_compiler import compile_c
            compiled = compile_c(built.source, features)
        made = (built.name, built.info, compiled, tuple(built.kernel.moves))
        finished(made)
        return made

    job = _Job(work)
    _queues[language].put(job)
    return job.result


def source(ast: UOp, target: Target, moves: Sequence[str] | None = None) -> str:
    """A kernel as readable C."""
    return build(ast, target, "c", moves, say=False).source


def compiled_source(ast: UOp, target: Target, language: str, moves: Sequence[str] | None = None,
                    rows: bool = False) -> Any:
    """The text that is really compiled: LLVM IR or C; with `rows`, IR with the rows of the loop tree behind it."""
    return build(ast, target, language, moves, rows=rows).source
