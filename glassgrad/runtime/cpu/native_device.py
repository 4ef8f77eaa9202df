"""Run machine code on this processor: the devices CPU and CLANG. In: kernels' graphs. Out: `NativeProgram`s, and plans
that run them.

`CPU` compiles LLVM IR in the process, `CLANG` compiles C with the system's compiler. Both load the object file
themselves and run it on the worker pool. A compiled kernel is cached in memory by its graph and on disk by its
structure, so a warm process neither lowers kernels nor loads a compiler.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

from glassgrad.base.cached_property import cached_property
from glassgrad.base.interrupts import take_interrupt
from glassgrad.base.settings import settings
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch_info import KernelFacts, TasksByValue
from glassgrad.runtime import backend
from glassgrad.runtime.backend import Backend, DevicePlan, RendererFacts
from glassgrad.runtime.compiled_kernels import CompiledKernels, CompiledProgram, CompileQueue
from glassgrad.runtime.cpu import llvm_compiler as llvm
from glassgrad.runtime.cpu.elf_loader import Image
from glassgrad.runtime.cpu.processor import HostTarget, available_cores, host_description, worker_count
from glassgrad.runtime.cpu.stopwatch import NativeStopwatch
from glassgrad.runtime.cpu.worker_pool import Command, open_pools, worker_pool
from glassgrad.runtime.guarded_memory import GuardedMemory
from glassgrad.runtime.host_memory import HostMemory

ALIGNMENT = 64
LITTLE_SCRATCH = 1 << 16       # bytes of scratch memory that a plan may keep for launches without the worker pool
MOST_INLINE_COMMANDS = 8       # up to this many serial commands run without opening the worker pool
_FUNCTION = ctypes.CFUNCTYPE(None)        # without argtypes, a call with ctypes values converts nothing


@dataclass(eq=False, kw_only=True)
class NativeProgram(CompiledProgram):
    """A compiled kernel: the functions of its phases."""
    image: Image

    def __post_init__(self) -> None:
        self.phases = [(self.image.address(name), tasks) for name, tasks in self.info.phases]


@lru_cache(maxsize=8)
def _target(host: HostTarget, workers: int, language: str) -> Target:
    """Return what kernels in a language are optimized for; C can express neither matrix units nor masks."""
    target = replace(Target.of(host), workers=workers)
    return target if language == "llvm" else replace(target, units=(), masks=False)


class NativeDevice(CompiledKernels, Backend):
    """The device CPU (language "llvm") or CLANG (language "c")."""

    def __init__(self, name: str, language: str):
        super().__init__(name, GuardedMemory() if settings.GUARD_PAGES else HostMemory())
        self.language, self.renderer = language, RendererFacts(name, language)
        self.searched_on = "CPU" if language == "llvm" else "CLANG"

    @property
    def target(self) -> Target:      # type: ignore[override]
        return _target(host_description(), worker_count(), self.language)

    @cached_property
    def compile_queue(self) -> CompileQueue:      # type: ignore[override]
        return CompileQueue(1 if self.language == "llvm" else available_cores())  # LLVM serves one thread at a time

    @property
    def machine(self) -> str:      # type: ignore[override]
        return f"{host_description().key} {worker_count()} {self.compiler}"

    @property
    def compiler(self) -> str:      # type: ignore[override]
        return f"{self.language} {self._compiler_name()}"

    @property
    def description(self) -> str:
        if self.language == "c":
            return f"the same processor, compiled by {self._compiler_name()}"
        host = host_description()
        return (f"{host.cpu}, {available_cores()} cores, {host.vector_bytes * 8}-bit vectors, "
                f"compiled by {self._compiler_name()}")

    def _compiler_name(self) -> str:
        if self.language == "llvm":
            return llvm.compiler_version()
        from glassgrad.runtime.cpu.c_compiler import compiler_version  # loads subprocess, which most users never need
        return compiler_version()

    # -- compiling -------------------------------------------------------------------------------------------
    def write(self, ast: UOp, moves: Sequence[str] | None, say: bool = True) -> tuple[KernelFacts, Any]:
        from glassgrad.compiler.pipeline import build  # late: a warm process does not load the compiler
        built = build(ast, self.target, self.language, moves, say)
        return KernelFacts(name=built.name, info=built.info, moves=tuple(built.kernel.moves),
                           read_first=built.read_first), built

    def compile_source(self, source: str) -> bytes:
        if self.language == "llvm":
            return llvm.compile_ir(source)
        from glassgrad.runtime.cpu.c_compiler import compile_c
        return compile_c(source)

    def load_program(self, facts: KernelFacts, compiled: bytes) -> NativeProgram:
        return NativeProgram(**vars(facts), image=Image(compiled))

    def source(self, ast: UOp) -> str:
        """Return the kernel as readable C, whatever the device compiles."""
        from glassgrad.compiler.pipeline import build
        return build(ast, self.target, "c", self.moves(ast) or None, say=False).source

    # -- running ---------------------------------------------------------------------------------------------
    def plan(self, programs: Sequence[NativeProgram], slots: Sequence[tuple[int, ...]]) -> NativePlan:
        """Return a command list that runs these programs in order, on numbered memory slots."""
        return NativePlan(programs, slots)


class NativePlan(DevicePlan):
    """A command list over slots: `bind` writes the slots' addresses into it, and `run` runs it in one foreign call. A
    long list is split into several calls, so that Python handles Ctrl-C between two of them. If numbers of tasks depend
    on scalars, `bind` makes a list for the values of these; all lists share one array of arguments."""
    uninterrupted = ends_early = True                   # except where a check ends a run

    def __init__(self, programs: Sequence[NativeProgram], slots: Sequence[tuple[int, ...]]):
        self.programs = list(programs)
        self.scratch_bytes = max([p.info.scratch_bytes for p in programs], default=0)
        self.spans: list[tuple[int, int]] = []          # (first command, count) of each program
        used = [slot for uses in slots for slot in uses]      # of all programs' arguments, concatenated
        array = (ctypes.c_void_p * max(1, len(used)))()
        self.wires = [(slot, array, position) for position, slot in enumerate(used)]
        self._pack = partial(struct.Struct(f"{len(used)}P").pack_into, array, 0)
        self._gather = itemgetter(*used) if len(used) > 1 else lambda addresses: [addresses[slot] for slot in used]
        # {(formula of a number of tasks, slots of its scalars): the phases it is for, as (program, phase)}
        self._cuts: dict[tuple[TasksByValue, tuple[int, ...]], list[tuple[int, int]]] = {}
        rows: list[Command] = []
        arguments = ctypes.addressof(array)
        for number, (program, uses) in enumerate(zip(programs, slots)):
            self.spans.append((len(rows), len(program.phases)))
            for cut in program.info.by_value:
                key = cut._replace(phase=0), tuple([uses[argument] for argument in cut.arguments])
                self._cuts.setdefault(key, []).append((number, cut.phase))
            rows += [Command(address, arguments, tasks, int(tasks <= 1)) for address, tasks in program.phases]
            arguments += ctypes.sizeof(ctypes.c_void_p) * len(uses)
        self.by_value = bool(self._cuts)
        self._values: tuple[int, ...] = ()              # the values of scalars that the numbers of tasks are for
        self._value_slots = list(dict.fromkeys([slot for _, slots in self._cuts for slot in slots]))
        self._together = len(programs)                  # from this program on, one uninterrupted foreign call
        self._stopwatch: NativeStopwatch | None = None
        self._write(rows)

    def _write(self, rows: list[Command]) -> None:
        self._commands: Any = (Command * max(1, len(rows)))(*rows)
        self._count = len(rows)
        self._stopwatch = None

    def check(self, before: int, numbers: Sequence[tuple[int, int]]) -> None:
        """Insert checks: a run ends before program `before` if one of the 32-bit integers is below its bound."""
        at = self.spans[before][0] if before < len(self.spans) else self._count
        rows = self._commands[:self._count]
        self._write([*rows[:at], *[Command.check(address, bound) for address, bound in numbers], *rows[at:]])
        self.spans = [(first + len(numbers) * (first >= at), count) for first, count in self.spans]

    def keep_together(self, first: int) -> None:
        """Do not interrupt a run once it has reached this program."""
        self._together = first

    def _pieces(self) -> list[tuple[Any, ctypes.c_int64]]:
        """Split the command list into foreign calls; return (pointer, number of commands) of each as ctypes values."""
        cuts, work = [0], 0
        for number, program in enumerate(self.programs[:-1]):
            work += backend.longest_work(program)
            if work > backend.LONG_WORK and number < self._together:
                cuts.append(self.spans[number + 1][0])
                work = 0
        return [(ctypes.byref(self._commands[at]), ctypes.c_int64(end - at))
                for at, end in zip(cuts, [*cuts[1:], self._count])]

    @property
    def scratch(self) -> int:
        """The bytes of scratch memory, over all workers."""
        return self.scratch_bytes * worker_count()

    def bind(self, addresses: Sequence[int]) -> None:
        """Write the slots' addresses into the launches, and choose the commands for the values of scalars there."""
        self.rebind(addresses)
        if self._cuts:
            values = tuple([ctypes.c_int64.from_address(addresses[slot]).value for slot in self._value_slots])
            if values != self._values:
                self._values = ()                       # unknown, in case a Ctrl-C comes in between
                self._commands = self._commands_for(values)
                self._values = values

    def rebind(self, addresses: Sequence[int]) -> None:
        """Write the addresses of the slots into the launches; the scalars must be unchanged."""
        self._pack(*self._gather(addresses))

    def _commands_for(self, values: tuple[int, ...]) -> Any:
        """Return the commands with the numbers of tasks for these values of scalars, so that no idle tasks are
        started."""
        commands = type(self._commands).from_buffer_copy(self._commands)
        value_of = dict(zip(self._value_slots, values))
        for (cut, slots), phases in self._cuts.items():
            own = [value_of[slot] for slot in slots]
            count = cut.at(*own)
            serial = int(count <= 1 or cut.is_serial(*own))
            for number, phase in phases:
                command = commands[self.spans[number][0] + phase]
                command.tasks, command.serial = count, serial
        return commands

    def run(self) -> None:
        """Run all kernels in order."""
        self.runner()()

    def runner(self) -> Callable[[], int]:
        """Return a function that does `run` on the worker pool of the current settings, for repeated calls with the
        scalar values that were bound last. If these leave no work for other threads, it runs in the calling thread."""
        rows, pieces, is_little = self._commands[:self._count], self._pieces(), self.scratch_bytes <= LITTLE_SCRATCH
        is_alone = len(pieces) == 1 and (worker_count() == 1 or all([row.serial for row in rows]))
        if is_alone and len(rows) <= (1 if open_pools else MOST_INLINE_COMMANDS) and (is_little or not open_pools) and \
                all([row.tasks == 1 or not row.function for row in rows]):
            return self._inline_runner()
        pool = worker_pool()
        if is_alone and is_little:
            return partial(pool.native.alone, *pieces[0], self._own_scratch)
        if self.scratch_bytes:
            pool.ensure_scratch(self.scratch_bytes)
        return partial(_run_pieces, pool.run, pieces) if len(pieces) > 1 else partial(pool.run, *pieces[0])

    @cached_property
    def _own_scratch(self) -> Any:
        """The scratch memory for launches without the worker pool."""
        memory = ctypes.create_string_buffer(self.scratch_bytes + ALIGNMENT)
        return ctypes.byref(memory, -ctypes.addressof(memory) % ALIGNMENT)

    def _inline_runner(self) -> Callable[[], int]:
        """Return a function that runs the commands, all small, in this thread. Opening a pool would cost a compilation,
        and a call of an open pool costs more than a single command."""
        task, scratch = ctypes.c_int64(0), self._own_scratch
        steps = [(_FUNCTION(command.function) if command.function else None, ctypes.c_void_p(command.args),
                  command.tasks) for command in self._commands[:self._count]]

        if len(steps) == 1 and steps[0][0] is not None:
            only = partial(steps[0][0], steps[0][1], task, scratch)
            only.held = self  # type: ignore[attr-defined]       # its arguments live as long as the function
            return only

        def run(held: Any = self) -> int:
            for number, (function, args, bound) in enumerate(steps):
                if function is not None:
                    function(args, task, scratch)
                elif ctypes.c_int32.from_address(args.value or 0).value < bound:
                    return len(steps) - number
            return 0
        return run

    def run_one(self, number: int) -> int:
        """Run one kernel and return its nanoseconds."""
        pool = worker_pool()
        pool.ensure_scratch(self.scratch_bytes)
        first, count = self.spans[number]
        start = time.perf_counter_ns()
        pool.run(ctypes.byref(self._commands[first]), ctypes.c_int64(count))
        return time.perf_counter_ns() - start

    def stopwatch(self) -> NativeStopwatch:
        """Return a timed copy of this command list, with clock reads between kernels, on the pool of the current
        settings."""
        if self._stopwatch is None:
            every = [Command.from_buffer_copy(command) for command in self._commands[:self._count]]
            for (first, _), program in zip(self.spans, self.programs):
                for number, (_, tasks) in enumerate(program.phases, first):       # all: it serves other values too
                    every[number].tasks, every[number].serial = tasks, int(tasks <= 1)
            self._stopwatch = NativeStopwatch(every, self.spans, self.scratch_bytes)
        self._stopwatch.prepare()
        return self._stopwatch


def _run_pieces(run: Callable[[Any, Any], int], pieces: list[tuple[Any, ctypes.c_int64]]) -> int:
    """Run a split command list, and take interrupts between the calls. If a check ends one call, the rest does
    not run."""
    for commands, count in pieces:
        take_interrupt()
        undone = run(commands, count)
        if undone:
            return undone
    return 0
