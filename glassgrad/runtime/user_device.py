"""A device that somebody brings along. In: allocator, renderer, compiler, runner. Out: what the engine needs.

    class MyDevice(Compiled):
        def __init__(self, device): super().__init__(device, MyAllocator(), CStyleLanguage(), MyCompiler(), MyRunner)
    Device._devices["MY"] = MyDevice

Memory is whatever `_alloc` returns; it is handed back to `copyin`, `copyout`, `_free` and the runner and never looked
into. The engine thinks in addresses, so every allocation gets a range of numbers that name it. A place inside an
allocation (a slice of a buffer, or a value between kernels) has no handle of its own and gets one when it is used.
"""

from __future__ import annotations

import bisect
import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.c.plain_c import PLAIN, plain_function, plain_launch
from glassgrad.compiler.render.launch import LaunchInfo
from glassgrad.runtime.compile_kernel import kernel_of
from glassgrad.runtime.host_memory import Block
from glassgrad.runtime.kernel_key import cost
from glassgrad.runtime.python_launcher import StepwisePlan

__all__ = ["Allocator", "MallocAllocator", "Compiler", "CompileError", "Runner", "CStyleLanguage", "Compiled"]

_APART = 1 << 40           # between the numbers of two devices' memory and any real address
_GRAIN = 256


class CompileError(DeviceError):
    """Source that a device's compiler does not take."""


class Allocator:
    """Memory of a device: four methods. Subclass it and write them; handles may be any objects."""

    def _alloc(self, size: int, options: Any = None) -> Any:
        """A handle to `size` bytes."""
        raise DeviceError("this allocator cannot allocate", given=type(self).__name__,
                          expected="a method _alloc(size, options)", fix="write it in your subclass")

    def _free(self, opaque: Any, options: Any = None) -> None:
        """The handle is not used any more."""

    def copyin(self, dest: Any, src: memoryview) -> None:
        """Bytes of the host into memory of the device."""
        raise DeviceError("this allocator cannot copy in", given=type(self).__name__,
                          expected="a method copyin(dest, memoryview)", fix="write it in your subclass")

    def copyout(self, dest: memoryview, src: Any) -> None:
        """Memory of the device into bytes of the host."""
        raise DeviceError("this allocator cannot copy out", given=type(self).__name__,
                          expected="a method copyout(memoryview, src)", fix="write it in your subclass")


class MallocAllocator(Allocator):
    """Memory of the host, as ctypes arrays: what a device that runs on the processor needs."""

    def _alloc(self, size: int, options: Any = None) -> Any: return (ctypes.c_uint8 * size)()
    def copyin(self, dest: Any, src: memoryview) -> None: ctypes.memmove(dest, bytes(src), len(src))
    def copyout(self, dest: memoryview, src: Any) -> None: dest[:] = bytes(src)[:len(dest)]


class Compiler:
    """Source to what the runner takes. The default is the source itself, as bytes."""

    def compile(self, src: str) -> bytes:
        """The compiled kernel."""
        return src.encode()


class Runner(Protocol):
    """A kernel that can be called: made from its name and what the compiler gave, called with handles."""

    def __init__(self, name: str, lib: bytes): ...

    def __call__(
        self, *bufs: Any, global_size: tuple[int, ...], local_size: tuple[int, ...], wait: bool = False
    ) -> Any: ...


class CStyleLanguage:
    """Renders a kernel as plain C. `prefix` stands before the source, `qualifier` before the kernel."""
    prefix: str = ""
    qualifier: str = ""

    def render(self, kernel: Kernel) -> str:
        """The source of a kernel: one function with its name and one pointer per buffer."""
        return plain_function(kernel, make_source(kernel, PLAIN, "c"), self.prefix, self.qualifier)


# -- memory by numbers ---------------------------------------------------------------------------------------
class Handles:
    """Allocations by the numbers the engine knows them by."""
    on_host = in_parts = False

    def __init__(self, allocator: Any, first: int):
        self.allocator, self.next = allocator, first
        self.starts: list[int] = []                              # of all blocks, in order
        self.blocks: dict[int, Block] = {}
        self.whole: dict[int, Any] = {}                          # the handle of a block, by its start
        self.inside: dict[int, tuple[Any, int]] = {}             # handles of values inside a block, with their size

    def allocate(self, nbytes: int) -> Block:
        """A range of numbers; memory is asked for when it is first used."""
        block = Block(self.next, nbytes, nbytes)
        self.next += -(-max(nbytes, 1) // _GRAIN) * _GRAIN
        self.starts.append(block.address)
        self.blocks[block.address] = block
        return block

    def release(self, block: Block) -> None:
        """Give back a block and every handle inside it."""
        at = bisect.bisect_left(self.starts, block.address)
        del self.starts[at]
        del self.blocks[block.address]
        if block.address in self.whole:
            self.allocator._free(self.whole.pop(block.address), None)
        for place in [p for p in self.inside if block.address <= p < block.address + max(block.nbytes, 1)]:
            self.allocator._free(self.inside.pop(place)[0], None)

    def block_of(self, address: int) -> Block | None:
        at = bisect.bisect_right(self.starts, address) - 1
        block = self.blocks[self.starts[at]] if at >= 0 else None
        return block if block is not None and address < block.address + max(block.nbytes, 1) else None

    def handle(self, address: int) -> Any:
        """The handle of a whole block."""
        found = self.whole.get(address)
        if found is None:
            found = self.whole[address] = self.allocator._alloc(max(self.blocks[address].nbytes, 1), None)
        return found

    def to_write(self, address: int, nbytes: int) -> Any:
        """Where a kernel may write `nbytes`."""
        block = self.block_of(address)
        if block is None:
            raise Bug(f"no memory of this device is at {address:#x}")
        if block.address == address:
            return self.handle(address)
        found = self.inside.get(address)
        if found is None or found[1] < nbytes:
            if found is not None:
                self.allocator._free(found[0], None)
            found = self.inside[address] = (self.allocator._alloc(max(nbytes, 1), None), nbytes)
        return found[0]

    def to_read(self, address: int, nbytes: int) -> tuple[Any, bool]:
        """What a kernel may read, and whether it was copied for this purpose (and is to be freed)."""
        block = self.block_of(address)
        if block is not None and block.address == address:
            return self.handle(address), False
        if block is not None and address in self.inside:
            return self.inside[address][0], False
        # a slice of a buffer, or a number in the host's memory: copied
        data = self.read(address, nbytes) if block is not None else ctypes.string_at(address, nbytes)
        copied = self.allocator._alloc(max(nbytes, 1), None)
        self.allocator.copyin(copied, memoryview(bytearray(data)))
        return copied, True

    def read(self, address: int, nbytes: int) -> bytearray:
        """Bytes of the device."""
        block = self.block_of(address)
        if block is None or not nbytes:
            return bytearray(ctypes.string_at(address, nbytes)) if nbytes else bytearray()
        if address in self.inside:
            out = bytearray(self.inside[address][1])
            self.allocator.copyout(memoryview(out), self.inside[address][0])
            return out[:nbytes]
        start = address - block.address
        out = bytearray(block.nbytes)
        self.allocator.copyout(memoryview(out), self.handle(block.address))
        return out[start:start + nbytes]

    def write(self, address: int, data: Any) -> None:
        """Bytes of the host into the device."""
        view = memoryview(data).cast("B")
        if view.nbytes:
            self.allocator.copyin(
                self.to_write(address, view.nbytes), view if not view.readonly else memoryview(bytearray(view))
            )

    def empty_cache(self) -> None:
        """Nothing is kept back."""


# -- the device ----------------------------------------------------------------------------------------------
@dataclass(eq=False)
class PluginProgram:
    """A compiled kernel and its parameters."""
    name: str
    run: Any
    kernel: Kernel
    info: LaunchInfo
    operations: int
    bytes: int

    def __post_init__(self) -> None:
        self.sizes = {p.arg.slot: 8 if p.arg.scalar else p.size * p.dtype.itemsize for p in self.kernel.params}
        self.written = set(self.kernel.written)


class Compiled:
    """A device assembled from its parts; `runtime(name, lib)` makes a kernel that can be called."""
    _count = 0

    def __init__(self, device: str, allocator: Any, renderer: Any = None, compiler: Any = None,
                 runtime: Callable[..., Any] | None = None, *_more: Any):
        if runtime is None:
            raise DeviceError(
                "a device needs something that runs kernels",
                given=f"{device} without a runtime",
                expected="Compiled(device, allocator, renderer, compiler, Runner)",
                fix="pass your Runner class",
            )
        Compiled._count += 1
        self.name = self.dname = self.device = device
        self.allocator, self.renderer, self.compiler, self.runtime = allocator, renderer or CStyleLanguage(), \
            compiler or Compiler(), runtime
        self.memory = Handles(allocator, Compiled._count * _APART << 8)
        self._programs: dict[UOp, PluginProgram] = {}

    def programs(self, kernels: Sequence[UOp]) -> list[PluginProgram]:
        """Compiled kernels, each distinct one once."""
        for ast in kernels:
            if ast not in self._programs:
                with one_place():
                    kernel = self.loop_tree(ast)
                    lib = self.compiler.compile(self.renderer.render(kernel))
                    self._programs[ast] = PluginProgram(kernel.name, self.runtime(kernel.name, lib), kernel,
                                                        plain_launch(kernel), *cost(ast))
        return [self._programs[ast] for ast in kernels]

    def source(self, ast: UOp) -> str:
        """The kernel as this device compiles it."""
        return str(self.renderer.render(self.loop_tree(ast)))

    def loop_tree(self, ast: UOp) -> Kernel:
        """The kernel's plain loop tree."""
        return kernel_of(ast, PLAIN, plain=True)

    def plan(self, programs: Sequence[PluginProgram], slots: Sequence[tuple[int, ...]]) -> PluginPlan:
        """Launches one after another over numbered slots."""
        return PluginPlan(self.memory, programs, slots)

    def copy_in(self, address: int, data: Any) -> None: self.memory.write(address, data)
    def copy_out(self, address: int, nbytes: int) -> bytearray: return self.memory.read(address, nbytes)
    def empty_cache(self) -> None: self.memory.empty_cache()

    def synchronize(self) -> None:
        """Everything launched has run; a device that runs behind the caller's back overrides this."""


class PluginPlan(StepwisePlan):
    """Launches on a plugged-in device."""

    def __init__(self, memory: Handles, programs: Sequence[PluginProgram], slots: Sequence[tuple[int, ...]]):
        super().__init__(programs, slots)
        self.memory = memory

    def run_one(self, number: int) -> int:
        program, uses = self.programs[number], self.slots[number]
        handles, copied = [], []
        for position, slot in enumerate(uses):
            address = self.addresses[slot]
            own = position - len(uses) + len(program.info.shared)       # memory that the launch brings along
            if own >= 0:
                handles.append(self.memory.to_write(address, program.info.shared[own]))
            elif position in program.written:
                handles.append(self.memory.to_write(address, program.sizes[position]))
            else:
                handle, is_copy = self.memory.to_read(address, program.sizes.get(position, 1))
                handles.append(handle)
                copied += [handle] if is_copy else []
        start = time.perf_counter_ns()
        program.run(*handles, global_size=(1, 1, 1), local_size=(1, 1, 1), wait=True)
        elapsed = time.perf_counter_ns() - start
        for handle in copied:
            self.memory.allocator._free(handle, None)
        return elapsed
