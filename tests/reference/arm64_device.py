"""Kernels for ARM64 processors, run in an emulator. In: kernels' graphs. Out: the device ARM64_SHIM.

Python and LLVM run on this machine, as fast as ever: LLVM writes machine code for a Neoverse N1. A small program in
qemu-user (shims/arm64_runner.c) shares a file of memory with this process and executes the code, task after task.
So the whole suite can run on NEON code; `./dev arm64` emulates everything instead, loading and threads included.

    DEVICE=ARM64_SHIM ./dev test tests/tensor        needs what INSTALL says
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from glassgrad import DeviceError
from glassgrad.compiler.graph.symbolic import Size
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import build, kernel_of
from glassgrad.compiler.render.launch_info import LaunchInfo
from glassgrad.compiler.schedule.kernels import cost
from glassgrad.runtime.backend import Backend, RendererFacts
from glassgrad.runtime.cpu.elf_loader import ElfObject
from glassgrad.runtime.wasm.linear_memory import FIRST, FIRST_BYTES, LIMIT, LinearMemory

RUNNER = Path(__file__).resolve().parent / "shims" / "arm64_runner.c"
INSTALL = "apt install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
TRIPLE = "aarch64-unknown-linux-gnu"
NEOVERSE_N1 = Target("aarch64", 16, 32, frozenset({"neon", "lse", "dotprod", "fullfp16"}), 64 << 10, 1 << 20)
BASE = 0x20_0000_0000            # where the emulated program has the file; addresses of blocks are distances from it
CODE, CODE_BYTES = LIMIT, 1 << 30       # the file's last part
TASK_BYTES = 1 << 20             # scratch memory


def is_here() -> bool:
    """Whether the emulator and the compiler of its program are installed."""
    return bool(shutil.which("qemu-aarch64-static") and shutil.which("aarch64-linux-gnu-gcc"))


@lru_cache(maxsize=1)
def _machine() -> Any:
    from llvmlite import binding
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding.Target.from_triple(TRIPLE).create_target_machine(cpu="neoverse-n1", opt=1, reloc="pic",
                                                                    codemodel="small")


def compiled(source: str) -> ElfObject:
    """LLVM IR as an object for ARM64."""
    from llvmlite import binding
    module = binding.parse_assembly(source)
    module.triple, module.data_layout = TRIPLE, str(_machine().target_data)
    module.verify()
    return ElfObject(_machine().emit_object(module))


class Emulator:
    """The file of memory, and the program in the emulator that executes what lies in it."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="arm64-")
        program, file = Path(self.folder.name) / "runner", Path(self.folder.name) / "memory"
        subprocess.run(["aarch64-linux-gnu-gcc", "-O1", "-static", str(RUNNER), "-o", str(program)], check=True)
        with open(file, "w+b") as opened:
            opened.truncate(CODE + CODE_BYTES)                   # what is not written takes no space
            self.memory = mmap.mmap(opened.fileno(), CODE + CODE_BYTES)
        words = ["qemu-aarch64-static", "-cpu", "neoverse-n1", str(program), str(file), hex(BASE),
                 hex(CODE + CODE_BYTES)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.bytes, self.code = FIRST_BYTES, CODE

    # -- as LinearMemory needs it ----------------------------------------------------------------------------
    def size(self) -> int:
        return self.bytes

    def grow(self, nbytes: int) -> bool:
        self.bytes += nbytes
        return True

    def read(self, address: int, nbytes: int) -> bytearray:
        return bytearray(self.memory[address:address + nbytes])

    def write(self, address: int, data: Any) -> None:
        self.memory[address:address + len(data)] = bytes(data)

    # -- code ------------------------------------------------------------------------------------------------
    def load(self, linked: ElfObject) -> dict[str, int]:
        """Put an object where none was before; the addresses of its functions."""
        at, self.code = self.code, self.code + -(-linked.size // 4096) * 4096
        assert self.code <= CODE + CODE_BYTES, "too many kernels"
        self.write(at, linked.link(BASE + at))
        return {s.name: BASE + at + s.place for s in linked.symbols if s.name and s.place >= 0}

    def call(self, function: int, args: int, tasks: int, scratch: int) -> None:
        """Run a function to its end."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(struct.pack("<4Q", function, BASE + args, tasks, BASE + scratch))
            done = self.process.stdout.read(1)
        except BrokenPipeError:
            done = b""
        if not done:
            raise DeviceError("the emulated program ended", given=f"status {self.process.wait()}",
                              expected="a kernel that runs to its end", fix="look at the kernel: DEBUG=4")


@dataclass(eq=False)
class Arm64Program:
    """A kernel whose code lies in the emulator's memory."""
    name: str
    phases: tuple[tuple[int, int], ...]       # address of the function, number of tasks
    info: LaunchInfo
    scalars: tuple[bool, ...]
    operations: Size
    bytes: Size


class Arm64Device(Backend):
    """An emulated processor with one core."""

    def __init__(self, name: str):
        if not is_here():
            raise DeviceError(f"{name} runs kernels in an emulator", given="no qemu-aarch64-static, or no compiler",
                              expected="both", fix=INSTALL)
        self.emulator, self.target, self.scratch = Emulator(), NEOVERSE_N1, (0, 0)
        super().__init__(name, LinearMemory(self.emulator))
        self.renderer = RendererFacts(name, "llvm", has_threads=False)

    @property
    def description(self) -> str:
        return "a Neoverse N1 in qemu-user, compiled by llvmlite"

    def compile(self, ast: UOp) -> Arm64Program:
        built = build(ast, self.target, "llvm")
        linked = compiled(built.source)
        assert linked.undefined() == [], built.name
        places = self.emulator.load(linked)
        params = sorted(built.kernel.params, key=lambda p: p.arg.slot)
        phases = tuple((places[function], tasks) for function, tasks in built.info.phases)
        return Arm64Program(built.name, phases, built.info, tuple(p.arg.scalar for p in params), *cost(ast))

    def loop_tree(self, ast: UOp) -> Any:
        return kernel_of(ast, self.target)

    def launch(self, program: Arm64Program, addresses: Sequence[int]) -> None:
        """The table of arguments and the values of numbers lie before the first block."""
        with self.memory.lock:
            table, numbers = [], b""
            for position, address in enumerate(addresses):
                scalar = position < len(program.scalars) and program.scalars[position]
                table.append(BASE + (8 * len(addresses) + len(numbers) if scalar else address))
                numbers += ctypes.string_at(address, 8) if scalar else b""
            content = struct.pack(f"<{len(table)}Q", *table) + numbers
            assert len(content) <= FIRST
            self.emulator.write(0, content)
            scratch = self._scratch(program.info.scratch_bytes)
            for function, tasks in program.phases:
                self.emulator.call(function, 0, tasks, scratch)

    def _scratch(self, nbytes: int) -> int:
        address, size = self.scratch
        if size < nbytes or not size:
            size = max(-(-nbytes // 64) * 64, TASK_BYTES)
            address = self.memory.reserve(size)                # the smaller one before stays reserved
            self.scratch = address, size
        return address
