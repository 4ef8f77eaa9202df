"""Compile and cache the kernels of devices that compile text. In: kernels' graphs. Out: programs, compiled once and
stored on disk.

A warm process finds its kernels in the disk cache and loads neither the compiler nor the search. A cold one compiles in
threads (`CompileQueue`) while Python lowers the next kernel: compilers run without the GIL, LLVM and GPU compilers as
libraries, a C compiler as a process.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import Bug, FormatError
from glassgrad.base.settings import kernel_mode, settings, under_these_settings
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch_info import KernelFacts
from glassgrad.compiler.schedule.kernels import cost
from glassgrad.runtime.disk_cache import default_cache
from glassgrad.runtime.kernel_key import cache_key

if TYPE_CHECKING:
    from glassgrad.compiler.lower.loops import Kernel
    from glassgrad.compiler.pipeline import Built
    from glassgrad.runtime.search.tuning_results import Tuned

SWITCH_INTERVAL = 0.0001       # of the GIL, in seconds, while compile threads run: at the usual 0.005 they mostly wait


class CompileQueue:
    """A FIFO queue of compile jobs. Its threads end when it is empty; the interpreter waits for them at exit."""

    def __init__(self, threads: int = 1) -> None:
        self._most = threads
        self.forget()
        _queues.add(self)

    def forget(self) -> None:
        """Reset to an empty queue without threads: when it is made, and in a forked child, where its threads do not
        exist."""
        self._lock, self._jobs = threading.Lock(), deque[Callable[[], None]]()
        self._working = 0                # running threads
        self._usual = sys.getswitchinterval()

    def start(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Queue a job that runs under the present settings; return a function that waits for it and returns its result
        or raises its error."""
        work, finished = under_these_settings(work), threading.Event()
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


# -- one device's kernels ------------------------------------------------------------------------------------
class Rejected(Exception):
    """Raised for source that a device's compiler rejects; the text is the compiler's message."""


@dataclass(eq=False, kw_only=True)
class CompiledProgram(KernelFacts):
    """The base of a device's compiled kernels."""
    operations: Any = 0                # of one run, and bytes moved
    bytes: Any = 0
    speedup: float = 0.0               # over the recipe, by a search; 0: not searched


class CompiledKernels:
    """A mixin for `Backend`s. A device provides the attributes and the first three methods."""
    name: str
    language: str                          # source language of its kernels
    machine: str                           # cache key of the machine and compiler that a binary is valid for
    compiler: str                          # what tuning results depend on besides the CPU: compiler or GPU
    target: Target                         # what kernels are optimized for
    compile_queue: CompileQueue | None = None    # compile threads; None: compile in the calling thread
    searched_on = ""                       # device that the BEAM worker process opens; empty: no search
    _programs: dict[tuple[UOp, tuple[Any, ...]], Any]

    # -- provided by each device -------------------------------------------------------------------------------
    def write(self, ast: UOp, moves: Sequence[str] | None, say: bool = True) -> tuple[KernelFacts, Built]:
        """Return a kernel's facts and its source, by the recipe or the given moves."""
        raise Bug(f"{type(self).__name__} has no write")

    def compile_source(self, source: Any) -> bytes:
        """Compile source to the bytes that `load_program` takes; raises `Rejected`."""
        raise Bug(f"{type(self).__name__} has no compile_source")

    def load_program(self, facts: KernelFacts, compiled: bytes) -> CompiledProgram:
        """Load a compiled kernel."""
        raise Bug(f"{type(self).__name__} has no load_program")

    # -- compiling ---------------------------------------------------------------------------------------------
    def programs(self, kernels: Sequence[UOp]) -> list[Any]:
        """Return compiled kernels, each distinct one compiled once. Those not on disk are lowered one by one, while
        the compile queue works on those already lowered."""
        mode = kernel_mode()
        missing = [ast for ast in dict.fromkeys(kernels) if (ast, mode) not in self._programs]
        if self.is_searched():
            self.search(missing)
        cancelled = threading.Event()
        try:
            waiting = {ast: self._begin(ast, cancelled) for ast in missing}
            for ast, wait in waiting.items():
                self._programs[ast, mode] = self._loaded(ast, wait())
        finally:
            cancelled.set()                # after an error, queued jobs are skipped
        return [self._programs[ast, mode] for ast in kernels]

    def _begin(self, ast: UOp, cancelled: threading.Event) -> Callable[[], bytes]:
        """Look a kernel up in the disk cache, or queue its compilation; return a function that waits for the bytes."""
        cache = default_cache() if settings.CACHE and settings.DEBUG < 4 else None
        moves = self.moves(ast)
        key = cache_key(ast, self.machine, self.language, moves) if cache else ""
        stored = cache.get(key) if cache else None
        if stored is not None:
            return lambda: stored
        from glassgrad.compiler.optimize.decisions import Refused
        try:
            facts, built = self.write(ast, moves or None)
        except Refused as why:
            raise FormatError("what a tuning file says of a kernel does not fit it", given=str(why),
                              expected="moves as a search found them",
                              fix="glassgrad tune clear, and search again") from None
        here = one_place()

        def work() -> bytes:
            if cancelled.is_set():
                return b""
            with here:
                made = pickle.dumps((facts, self._compiled(ast, built.source or built.binary)))
            if cache:
                cache.put(key, made)
            return made
        return self.compile_queue.start(work) if self.compile_queue is not None else work

    def _compiled(self, ast: UOp, source: Any) -> bytes:
        try:
            return self.compile_source(source)
        except Rejected as error:
            from glassgrad.compiler.pipeline import lines_of
            raise Bug(f"{self.name} does not take a kernel: {error}\n{source}\n"
                      f"  at: {lines_of(ast) or 'unknown'}") from None

    def _loaded(self, ast: UOp, stored: bytes) -> Any:
        program = self.load_program(*pickle.loads(stored))
        program.operations, program.bytes = cost(ast)
        tuned = self.tuned(ast)
        program.speedup = tuned.speedup if tuned is not None else 0.0
        return program

    def source(self, ast: UOp) -> str:
        """The source that this device compiles for a kernel."""
        return self.write(ast, self.moves(ast) or None, say=False)[1].source

    def loop_tree(self, ast: UOp) -> Kernel:
        """The loop tree that is rendered for a kernel."""
        from glassgrad.compiler.pipeline import kernel_of
        return kernel_of(ast, self.target, moves=self.moves(ast) or None)

    # -- searching ---------------------------------------------------------------------------------------------
    def is_searched(self) -> bool:
        """Whether BEAM is on for this device."""
        return settings.BEAM > 0 and not settings.NOOPT and bool(self.searched_on)

    def search(self, kernels: Sequence[UOp]) -> None:
        """Search for faster moves (BEAM), unless BEAM_SECONDS is 0 or a search as wide and as long is stored."""
        if settings.BEAM_SECONDS <= 0:
            return
        known = {ast: self.tuned(ast) for ast in kernels}
        wanted = [ast for ast, tuned in known.items()
                  if tuned is None or not tuned.covers(settings.BEAM, settings.BEAM_SECONDS)]
        if wanted:
            from glassgrad.runtime.search.beam import search  # late: loads the whole compiler and subprocess
            search(wanted, self)

    def tuned(self, ast: UOp) -> Tuned | None:
        """The stored search result of a kernel; None if there is none or BEAM is off."""
        if not self.is_searched():
            return None
        from glassgrad.runtime.search.tuning_results import find
        return find(ast, self.compiler)

    def moves(self, ast: UOp) -> tuple[str, ...]:
        """The moves that a search found to be faster than the recipe's; empty: use the recipe."""
        tuned = self.tuned(ast)
        return tuned.moves if tuned is not None else ()
