"""Run kernels on all cores: the worker pool. In: command lists of native functions. Out: they have run.

Does not know graphs, buffers or how kernels are made. A kernel is `void name(void **args, int64_t task, void
*scratch)`. A command runs one kernel over tasks 0 to n - 1, in any order and on any worker, and starts when the
previous command has finished. A check command ends the run if an integer in memory is below a bound. The list is run
natively (worker_pool_source.py) in one foreign call, without the GIL. Measured on two cores: 1 us for the call, 0.008
us per serial command, 0.5 us per parallel command of two tasks while the workers spin.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import lru_cache
from threading import get_ident
from typing import Any

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.base.fork_locks import held_at_fork
from glassgrad.runtime.cpu import llvm_compiler as llvm
from glassgrad.runtime.cpu.elf_loader import Image
from glassgrad.runtime.cpu.processor import available_cores, host_description, worker_count
from glassgrad.runtime.cpu.worker_pool_source import OFFSETS, SHARE
from glassgrad.runtime.disk_cache import default_cache, name_of
from glassgrad.runtime.host_memory import PAGE, map_block, round_up, unmap_pages
from glassgrad.runtime.kernel_key import source_digest

SPIN_NANOSECONDS = 100_000          # how long an idle worker spins before it sleeps: longer than between two calls
_CROWDED_SPIN_NANOSECONDS = 1_000   # the same, when there are more workers than cores


class Command(ctypes.Structure):
    """One launch in a command list, in the form that the native code reads."""
    _fields_ = (("function", ctypes.c_void_p), ("args", ctypes.c_void_p), ("tasks", ctypes.c_int64),
                ("serial", ctypes.c_int64))

    @classmethod
    def check(cls, address: int, bound: int) -> Command:
        """Make a command that ends the run if the 32-bit integer at this address is below the bound."""
        return cls(None, address, bound, 1)


class Native:
    """The machine code of the pool; a forked process shares it with its parent."""

    def __init__(self, data: bytes):
        self.image = Image(data)
        pointer, integer = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, result: Any, *kinds: Any) -> Callable[..., Any]:
            return ctypes.CFUNCTYPE(result, *kinds)(self.image.address(name))

        self.run = function("glassgrad_run", integer, pointer, pointer, integer)
        self.worker = function("glassgrad_worker", None, pointer, integer)
        self.stop = function("glassgrad_stop", None, pointer)
        self.alone = ctypes.CFUNCTYPE(integer)(self.image.address("glassgrad_alone"))     # arguments are ctypes' own
        self.spin = function("glassgrad_spin", None, integer)
        self.stamp = self.image.address("glassgrad_stamp")      # launched like a kernel: stopwatch.py
        self.pause_nanoseconds = max(min(self._time_pauses(500) for _ in range(4)) / 500, 0.1)

    def _time_pauses(self, count: int) -> int:
        start = time.perf_counter_ns()
        self.spin(count)
        return time.perf_counter_ns() - start


def native_object() -> bytes:
    """Return the object file of the pool for this machine: from the disk cache, compiled by LLVM, or by a C compiler if
    there is no llvmlite."""
    host = host_description()
    key = name_of("workers", host.key, llvm.compiler_version(), source_digest())
    data = default_cache().get(key)
    if data is None:
        from glassgrad.runtime.cpu.worker_pool_renderer import c_text, ir_text
        try:
            data = llvm.compile_ir(ir_text(host.arch))
        except DeviceError:
            from glassgrad.runtime.cpu.c_compiler import compile_c  # loads subprocess, which most users never need
            data = compile_c(c_text())
        default_cache().put(key, data)
    return data


@lru_cache(maxsize=1)
def _native() -> Native:
    return Native(native_object())


class Bells:
    """The system's semaphore functions: their addresses, and `make`, which creates a semaphore with the value zero."""
    make: Callable[[], int]

    def __init__(self) -> None:
        self._kept: list[Any] = []
        if sys.platform == "win32":
            system = ctypes.WinDLL("kernel32")
            names = ("WaitForSingleObject", "ReleaseSemaphore", "SwitchToThread")
            system.CreateSemaphoreW.restype = ctypes.c_void_p
            self.make = lambda: system.CreateSemaphoreW(None, 0, 0x7FFFFFFF, None)
        else:
            system = ctypes.CDLL(None)
            if sys.platform == "darwin":  # sem_init does not work there
                names = ("dispatch_semaphore_wait", "dispatch_semaphore_signal", "sched_yield")
                system.dispatch_semaphore_create.restype = ctypes.c_void_p
                self.make = lambda: system.dispatch_semaphore_create(ctypes.c_long(0))
            else:
                names = ("sem_wait", "sem_post", "sched_yield")
                self.make = lambda: self._posix(system)
        self.wait, self.post, self.give_way = (ctypes.cast(getattr(system, name), ctypes.c_void_p).value or 0
                                               for name in names)

    def _posix(self, system: Any) -> int:
        memory = ctypes.create_string_buffer(64)  # sem_t has 32 bytes at most
        self._kept.append(memory)
        if system.sem_init(memory, 0, 0):
            raise DeviceError("the system has no semaphore left", given="sem_init", expected="a semaphore",
                              fix="end other programs, or set THREADS=1")
        return ctypes.addressof(memory)


class _Crew:
    """The threads of a pool and the memory they share. After a fork it is replaced as a whole."""

    def __init__(self, native: Native, count: int, inside: set[int]):
        self.native, self.count = native, count
        self._memory = ctypes.create_string_buffer(OFFSETS["SHARES"] + SHARE * count + 128)
        self.address = round_up(ctypes.addressof(self._memory), 128)
        self._bells = Bells()
        self._table = (ctypes.c_int64 * count)()
        self.scratch_bytes = 0
        spin = _CROWDED_SPIN_NANOSECONDS if count > available_cores() else SPIN_NANOSECONDS
        for name, value in [("SPINS", int(spin / native.pause_nanoseconds)), ("WORKERS", count),
                            ("WAIT", self._bells.wait), ("POST", self._bells.post), ("YIELD", self._bells.give_way),
                            ("BELL", self._bells.make()), ("CALLER_BELL", self._bells.make()),
                            ("SCRATCH", ctypes.addressof(self._table))]:
            ctypes.c_int64.from_address(self.address + OFFSETS[name]).value = value
        self.threads = [threading.Thread(target=self._live, args=(number, inside), daemon=True,
                                         name=f"glassgrad-worker-{number}") for number in range(1, count)]
        for number, thread in enumerate(self.threads):
            try:
                thread.start()
            except RuntimeError as wrong:      # the threads that did start must not outlive the shared memory
                del self.threads[number:]
                self.stop()
                raise DeviceError("the system starts no more threads", given=f"worker {number + 1} of {count}: {wrong}",
                                  expected=f"{count} threads of this process",
                                  fix="set THREADS=1, or raise the limit of processes (ulimit -u)") from None

    def _live(self, number: int, inside: set[int]) -> None:
        inside.add(threading.get_ident())  # a nested launch, from a kernel's callback, runs inline
        try:
            self.native.worker(self.address, number)
        finally:
            inside.discard(threading.get_ident())

    def grow(self, nbytes: int) -> None:
        """Give every worker an arena of `nbytes`; nothing may be running."""
        old, old_bytes = list(self._table), self.scratch_bytes
        self._table[:] = [map_block(nbytes) for _ in range(self.count)]
        self.scratch_bytes = nbytes
        for address in filter(None, old):
            unmap_pages(address, old_bytes)

    def stop(self) -> None:
        """End the workers, join their threads, and release their arenas."""
        self.native.stop(self.address)
        for thread in self.threads:
            thread.join()
        for address in filter(None, list(self._table)):
            unmap_pages(address, self.scratch_bytes)


class WorkerPool:
    """Threads that run command lists. The calling thread is worker 0, so a pool of one starts no thread."""

    def __init__(self, threads: int, scratch_bytes: int = 1 << 16, native: Native | None = None):
        if threads < 1:
            raise Bug(f"a worker pool needs at least one worker, not {threads}")
        self.threads = threads
        self.native = native or _native()
        self._scratch_bytes = round_up(max(scratch_bytes, PAGE), PAGE)
        self._closed = False
        self._lock = held_at_fork(threading.RLock(), "pool")
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        """Start over without threads: in a new pool, and in a forked child, where the threads do not exist."""
        self._crew: _Crew | None = None
        self._caller = 0                    # id of the thread whose commands run; 0: none
        self._inside: set[int] = set()      # ids of the worker threads

    def ensure_scratch(self, nbytes: int) -> None:
        """Make every worker's arena at least `nbytes` large, from the next launch on."""
        if nbytes > self._scratch_bytes:
            self._scratch_bytes = round_up(nbytes, PAGE)

    def run(self, commands: Any, count: Any) -> int:
        """Run the `count` commands at address `commands` in order; return how many a check left undone. Calls from
        several threads run one at a time. Both arguments are ints or ctypes values, which a repeated call need not
        convert."""
        me = get_ident()
        if me == self._caller or me in self._inside or self._closed:
            return self._run_inline(commands, count)
        with self._lock:
            if not self._closed:            # another thread may have closed it while this one waited
                crew = self._crew
                if crew is None or crew.scratch_bytes < self._scratch_bytes:
                    crew = self._prepare()
                if crew is not None:
                    self._caller = me
                    try:
                        return self.native.run(crew.address, commands, count)      # type: ignore[no-any-return]
                    finally:
                        self._caller = 0
        return self._run_inline(commands, count)

    def _prepare(self) -> _Crew | None:
        """Start the threads, if needed, and give them enough scratch memory. If the process is ending (from Python 3.12
        on, no thread can be started then), close the pool and return None."""
        if self._crew is None:
            try:
                self._crew = _Crew(self.native, self.threads, self._inside)
            except DeviceError as refused:
                if "interpreter shutdown" not in str(refused):
                    raise
                self._closed = True
                return None
        self._crew.grow(self._scratch_bytes)
        return self._crew

    def _run_inline(self, commands: Any, count: Any) -> int:
        nbytes = self._scratch_bytes         # read once: a nested launch or another thread may raise it meanwhile
        arena = map_block(nbytes)           # the pool's arenas are in use by the outer launch
        alone, table = ctypes.create_string_buffer(OFFSETS["SHARES"]), ctypes.c_int64(arena)     # no workers
        ctypes.c_int64.from_buffer(alone, OFFSETS["SCRATCH"]).value = ctypes.addressof(table)
        try:
            return self.native.run(ctypes.addressof(alone), commands, count)      # type: ignore[no-any-return]
        finally:
            unmap_pages(arena, nbytes)

    def close(self) -> None:
        """End the threads. Later launches run on the calling thread alone."""
        with self._lock:
            self._closed = True
            crew, self._crew = self._crew, None
            if crew is not None:
                crew.stop()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be gone by then
        if not finalizing() and getattr(self, "_crew", None) is not None:
            self.close()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
open_pools: dict[int, WorkerPool] = {}      # by number of workers
_open_pools_lock = held_at_fork(threading.RLock(), "pool")


def worker_pool() -> WorkerPool:
    """Return the pool for THREADS workers; by default one per core that this process may use."""
    count = worker_count()
    found = open_pools.get(count)
    if found is None:
        with _open_pools_lock:
            found = open_pools.get(count) or open_pools.setdefault(count, WorkerPool(count))
    return found


def _after_fork() -> None:
    for pool in list(_pools):
        pool._forget()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


atexit.register(_close_all)  # workers must leave native code before interpreter shutdown
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
