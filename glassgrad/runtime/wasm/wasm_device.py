"""Run kernels as WebAssembly: the device WASM. In: kernels' graphs. Out: modules, run by an engine in this process, on
one thread.

All modules share one linear memory, so an address is a 32-bit offset in it. A launch writes the addresses of its
arguments, and after them the values of scalars, into a table at the beginning of the memory, and calls the module's one
function. Needs neither NumPy nor llvmlite nor a compiler.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import WASM
from glassgrad.compiler.render.launch_info import KernelFacts
from glassgrad.compiler.render.wasm.module_encoding import ARGS_AT, SCRATCH_AT
from glassgrad.runtime.backend import Backend, DevicePlan, RendererFacts
from glassgrad.runtime.compiled_kernels import CompiledKernels, CompiledProgram
from glassgrad.runtime.wasm.linear_memory import FIRST, LinearMemory, Stopped


@dataclass(eq=False, kw_only=True)
class WasmProgram(CompiledProgram):
    """A module that is ready to be called; its scalars are in host memory."""
    run: Callable[[], None]


class WasmDevice(CompiledKernels, Backend):
    """A WebAssembly engine and its memory."""
    language, machine, target = "wasm", "wasm32", WASM

    def __init__(self, name: str = "WASM", engine: Any = None):
        self.engine = engine or _engine()
        super().__init__(name, LinearMemory(self.engine))
        self.renderer = RendererFacts(name, "wasm", has_threads=False)
        self._scratch = (0, 0)                         # address and size of the scratch memory that launches reuse

    @property
    def description(self) -> str:
        return f"WebAssembly with vectors of 128 bits, one thread, run by {self.engine.version}"

    # -- compiling ---------------------------------------------------------------------------------------------
    def write(self, ast: UOp, moves: Sequence[str] | None, say: bool = True) -> tuple[KernelFacts, Any]:
        from glassgrad.compiler.pipeline import build  # late: a warm process does not load the compiler
        built = build(ast, WASM, "wasm", moves, say)
        params = sorted(built.kernel.params, key=lambda p: p.arg.slot)
        return KernelFacts(name=built.name, info=built.info, moves=tuple(built.kernel.moves),
                           read_first=built.read_first, scalars=tuple([p.arg.scalar for p in params])), built

    def compile_source(self, source: bytes) -> bytes:
        """Return the module unchanged: it is compiled when it is loaded."""
        return source

    def load_program(self, facts: KernelFacts, compiled: bytes) -> WasmProgram:
        with self.memory.lock:
            return WasmProgram(**vars(facts), run=self.engine.load(compiled))

    def source(self, ast: UOp) -> str:
        """Return the module in WebAssembly's text format."""
        from glassgrad.compiler.pipeline import build
        return build(ast, WASM, "wat", say=False).source

    # -- running -----------------------------------------------------------------------------------------------
    def launch(self, program: WasmProgram, addresses: Sequence[int]) -> None:
        """Write the table of arguments, and call the module's function."""
        with self.memory.lock:
            self.memory.copy_in(SCRATCH_AT, self._table(program, addresses))
            try:
                program.run()
            except Stopped as stop:
                raise DeviceError("a kernel was stopped by the WebAssembly engine", given=f"{program.name}: {stop}",
                                  expected="a kernel that runs to its end", fix="run it on another device; if "
                                  "it is right there, this is a fault of the device WASM: please report it") from None

    def plan(self, programs: Sequence[WasmProgram], slots: Sequence[tuple[int, ...]]) -> WasmPlan:
        """Return a plan that launches these programs in order, on numbered memory slots."""
        return WasmPlan(programs, slots, self.launch)

    def _table(self, program: WasmProgram, addresses: Sequence[int]) -> bytes:
        """Encode the argument table: addresses of scratch memory and arguments, then the values of scalars."""
        places = list(addresses)
        numbers: list[bytes] = []
        first = ARGS_AT + -(-len(places) // 2) * 8
        for position, scalar in enumerate(program.scalars):
            if scalar:
                places[position] = first + 8 * len(numbers)
                numbers.append(ctypes.string_at(addresses[position], 8))
        head = struct.pack(f"<II{len(places)}I", self._scratch_for(program), 0, *places)
        table = head.ljust(first - SCRATCH_AT, b"\0") + b"".join(numbers)
        if SCRATCH_AT + len(table) > FIRST:
            raise Bug(f"{program.name} has {len(places)} arguments, more than the table holds")
        return table

    def _scratch_for(self, program: WasmProgram) -> int:
        """Return the address of the scratch memory, enlarged if a launch needs more."""
        address, size = self._scratch
        if size < program.info.scratch_bytes:
            if size:
                self._scratch = (0, 0)
                self.memory.free(address, size)
            size = program.info.scratch_bytes
            address = self.memory.reserve(size)
            self._scratch = (address, size)
        return address


class WasmPlan(DevicePlan):
    """A plan that launches programs in order."""

    @property
    def scratch(self) -> int:
        return max([program.info.scratch_bytes for program in self.programs], default=0)


def _engine() -> Any:
    """Return the engine of this process: JavaScript's if Python itself runs in it, else wasmtime."""
    if sys.platform == "emscripten":
        from glassgrad.runtime.wasm.browser_engine import BrowserEngine
        return BrowserEngine()
    from glassgrad.runtime.wasm.wasmtime_engine import WasmtimeEngine
    return WasmtimeEngine()
