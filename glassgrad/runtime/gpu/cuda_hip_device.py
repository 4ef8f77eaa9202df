"""Share the code of GPUs whose driver is called directly: NVIDIA's and AMD's. In: a driver's library and its names.
Out: a device.

What both drivers do alike: calls (cuda_hip_calls.py), memory and copies (cuda_hip_memory.py), launches
(cuda_hip_launch.py), and compilers in a library. Kernels run in order on one stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from glassgrad.base.errors import Bug
from glassgrad.runtime.compiled_kernels import CompileQueue
from glassgrad.runtime.cpu.processor import available_cores
from glassgrad.runtime.gpu.cuda_hip_calls import DriverCalls
from glassgrad.runtime.gpu.cuda_hip_launch import DriverLaunch, DriverPlan, GraphPlan
from glassgrad.runtime.gpu.cuda_hip_memory import DriverMemory
from glassgrad.runtime.gpu.gpu_device import GpuDevice, GpuProgram, Launch, Rejected

MOST_THREADS = 16            # compile threads: each takes a few hundred MB


class DriverDevice(DriverCalls, GpuDevice):
    """One GPU; safe to use from several threads. A subclass provides `find`, `compile_source` and what `DriverCalls`
    asks for."""
    launch_type, compile_queue = DriverLaunch, CompileQueue(min(MOST_THREADS, available_cores()))

    def __init__(self, name: str, library: ctypes.CDLL):
        DriverCalls.__init__(self, library)
        GpuDevice.__init__(self, name, DriverMemory(self))
        self.searched_on = name
        self.find()
        self.compiler = self.about
        self.events = [self.event(timed=True) for _ in range(2)]

    def find(self) -> None:
        """Start the driver, and set `machine`, `about` and `target`; raises `DeviceError`."""
        raise Bug(f"{type(self).__name__} has no find")

    # -- kernels ---------------------------------------------------------------------------------------------
    def load(self, compiled: bytes, names: Sequence[str]) -> list[ctypes.c_void_p]:
        module = self.made(self.names.load, compiled)
        return [self.made(self.names.function, module, name.encode()) for name in names]

    def plan(self, programs: Sequence[GpuProgram], slots: Sequence[tuple[int, ...]]) -> DriverPlan:
        return DriverPlan(self, programs, slots)

    def replay_plan(self, programs: Sequence[GpuProgram], slots: Sequence[tuple[int, ...]]) -> GraphPlan:
        return GraphPlan(self, programs, slots)

    def time(self, launches: Sequence[Launch]) -> int:
        first, last = self.events
        self.call(self.names.record, first, None)
        for launch in launches:
            launch.start()
        self.call(self.names.record, last, None)
        self.call(self.names.await_event, last)
        self.started.clear()
        milliseconds = ctypes.c_float()
        self.call(self.names.elapsed, ctypes.byref(milliseconds), first, last)
        return int(milliseconds.value * 1e6)

    def synchronize(self) -> None:
        self.call(self.names.synchronize)
        self.memory.numbers.look()


class RunTimeCompiler:
    """A vendor's run-time compiler library; its functions have the prefix nvrtc or hiprtc."""

    def __init__(self, library: ctypes.CDLL, prefix: str, code: str):
        self.library, self.prefix, self.code = library, prefix, code

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, self.prefix + name)(*arguments)
        if result:
            describe = getattr(self.library, self.prefix + "GetErrorString")
            describe.restype = ctypes.c_char_p
            raise Bug(f"{self.prefix}{name}: {describe(result).decode()}")

    def version(self) -> str:
        """The compiler's name and version, for cache keys."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{self.prefix} {major.value}.{minor.value}"

    def compile(self, source: str, file: str, options: Sequence[str]) -> bytes:
        """Compile source to machine code; raises `Rejected` with the compiler's log."""
        program = ctypes.c_void_p()
        self.call("CreateProgram", ctypes.byref(program), source.encode(), file.encode(), 0, None, None)
        try:
            given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            if getattr(self.library, self.prefix + "CompileProgram")(program, len(options), given):
                raise Rejected(self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
            return self._bytes(program, self.code)
        finally:
            self.call("DestroyProgram", ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"Get{what}Size", program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value)
        self.call(f"Get{what}", program, out)
        return out.raw
