"""Build a device from parts that the user writes. In: allocator, renderer, compiler, runner. Out: `Compiled`, a
backend.

    class MyDevice(Compiled):
        def __init__(self, device): super().__init__(device, MyAllocator(), CStyleLanguage(), MyCompiler(), MyRunner)
    Device.register("MY", MyDevice)

Memory is whatever `_alloc` returns: a handle, which is passed back to `copyin`, `copyout`, `_free` and the runner. The
engine uses addresses, so every allocation gets a range of virtual addresses. An address inside an allocation (a slice
of a buffer, or a value between kernels) has no handle, so a separate one is made when it is used.

The methods may have other names and signatures that tinygrad's releases gave them (`_copyin` is `copyin`); `Compiled`
inspects them once, when it is made.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from glassgrad.base.errors import Bug, DeviceError, GlassgradError, MemoryLimitError
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.pipeline import kernel_of, lines_of, make_source
from glassgrad.compiler.render.c.c_source import PLAIN, plain_function, plain_launch
from glassgrad.compiler.render.launch_info import LaunchInfo
from glassgrad.compiler.schedule.kernels import cost
from glassgrad.runtime.backend import Backend
from glassgrad.runtime.memory_pool import MemoryBlock, VirtualAddresses


class CompileError(DeviceError):
    """Raised for source that a device's compiler rejects."""


class SignatureError(DeviceError, TypeError):
    """Raised for a part of a device whose method has the wrong parameters."""


def device_failure(device: str, doing: str, error: Exception) -> Exception:
    """Wrap an exception of a device's own code or driver in a `DeviceError` that names the device, what it failed at,
    and the user's line. An error that already does is returned as it is.

    >>> print(device_failure("MY", "copy memory in", OSError("the cable is out")).advice)
    MY failed to copy memory in
      given:    OSError: the cable is out
      expected: a device that does what its contract says
      fix:      see the exception above; glassgrad conformance MY says what works, and DEV=CPU uses another device
    """
    if isinstance(error, (GlassgradError, Bug)):
        return error
    given = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, MemoryError):
        return MemoryLimitError(f"{device} has no memory left", given=given, expected="memory that is free",
                                fix="use smaller batches, or let go of tensors")
    return DeviceError(f"{device} failed to {doing}", given=given, expected="a device that does what its contract says",
                       fix=f"see the exception above; glassgrad conformance {device} says what works, and DEV=CPU uses "
                           "another device")


class Allocator:
    """Memory of a device. Subclass it and write its four methods; handles may be any objects."""

    def __init__(self, device: Any = None):
        """Accept the device, which allocators of some texts are given; it is not needed."""

    def _alloc(self, size: int, options: Any = None) -> Any:
        """Allocate `size` bytes; return a handle."""
        raise DeviceError("this allocator cannot allocate", given=type(self).__name__,
                          expected="a method _alloc(size, options)", fix="write it in your subclass")

    def _free(self, opaque: Any, options: Any = None) -> None:
        """Free a handle's memory."""

    def copyin(self, dest: Any, src: memoryview) -> None:
        """Copy host bytes to device memory."""
        raise DeviceError("this allocator cannot copy in", given=type(self).__name__,
                          expected="a method copyin(dest, memoryview)", fix="write it in your subclass")

    def copyout(self, dest: memoryview, src: Any) -> None:
        """Copy device memory to host bytes."""
        raise DeviceError("this allocator cannot copy out", given=type(self).__name__,
                          expected="a method copyout(memoryview, src)", fix="write it in your subclass")


class MallocAllocator(Allocator):
    """Host memory as ctypes arrays, for a device that runs on the CPU."""

    def _alloc(self, size: int, options: Any = None) -> Any: return (ctypes.c_uint8 * size)()
    def copyin(self, dest: Any, src: memoryview) -> None: ctypes.memmove(dest, bytes(src), len(src))
    def copyout(self, dest: memoryview, src: Any) -> None: dest[:] = bytes(src)[:len(dest)]


class Compiler:
    """Compile source to bytes for the runner; by default the bytes are the source itself, encoded."""

    def __init__(self, cachekey: str | None = None):
        """Accept a key for tinygrad's cache, which is not used: each kernel is compiled once per process."""

    def compile(self, src: str) -> bytes:
        """Compile a kernel's source."""
        return src.encode()


class Runner(Protocol):
    """A callable kernel: made from its name and the compiler's output, called with handles."""

    def __init__(self, name: str, lib: bytes): ...

    def __call__(
        self, *bufs: Any, global_size: tuple[int, ...], local_size: tuple[int, ...], wait: bool = False
    ) -> Any: ...


class CStyleLanguage:
    """Render a kernel as plain C. `prefix` goes before the source, `qualifier` before the kernel."""
    prefix: str = ""
    qualifier: str = ""

    def render(self, kernel: Kernel) -> str:
        """Return the source of a kernel: one function with its name and one pointer per buffer."""
        return plain_function(kernel, make_source(kernel, PLAIN, "plain c"), self.prefix, self.qualifier)


# -- signatures ----------------------------------------------------------------------------------------------
SIZES = {"global_size": (1, 1, 1), "local_size": (1, 1, 1)}      # a kernel is one task that contains all its loops


def _accepts(function: Any, *args: Any, **keywords: Any) -> bool:
    """Return whether a function accepts these arguments; true for a function without a signature that can be
    inspected."""
    try:
        inspect.signature(function).bind(*args, **keywords)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _refuse(owner: Any, method: str, expected: str) -> NoReturn:
    kind = owner if isinstance(owner, type) else type(owner)
    function = getattr(kind, method, None)
    given = f"{kind.__name__}.{method}{inspect.signature(function)}" if function is not None \
        else f"{kind.__name__} without {method}"
    raise SignatureError("a part of a device has a method with the wrong parameters", given=given, expected=expected,
                         fix=f"write def {expected.partition(' or ')[0]}")


def _method(allocator: Any, method: str, arguments: str, options: bool = False) -> Callable[..., Any]:
    """Return an allocator's method as a function of `arguments`; with `options`, the method may take options too. Where
    the class does not write it, but the same with an underscore before its name, that is the one."""
    if getattr(type(allocator), method, None) is getattr(Allocator, method, None) and hasattr(allocator, f"_{method}"):
        method = f"_{method}"
    function, given = getattr(allocator, method, None), [None] * len(arguments.split(", "))
    if function is not None and _accepts(function, *given):
        return function      # type: ignore[no-any-return]
    if function is not None and options and _accepts(function, *given, None):
        return lambda *values: function(*values, None)
    older = f" or {method}(self, {arguments}, options=None)" if options else ""
    _refuse(allocator, method, f"{method}(self, {arguments})" + older)


def _named(device: str, doing: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of the user's device, so that its exceptions become errors that name the device and the user's
    line."""
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise device_failure(device, doing, error) from error
    return call


def _keywords_of(call: Any, owner: Any, *first: Any) -> dict[str, Any]:
    """Return the keyword arguments that a runner is called with, besides the handles."""
    for keywords in ({**SIZES, "wait": True}, SIZES):
        if _accepts(call, *first, None, None, None, **keywords):
            return keywords
    _refuse(owner, "__call__", "__call__(self, *bufs, global_size, local_size, wait=False) or "
                               "__call__(self, *bufs, global_size, local_size)")


# -- memory by address ---------------------------------------------------------------------------------------
class AllocatorMemory:
    """Allocations of an `Allocator`, by virtual addresses."""
    on_host = in_parts = False

    def __init__(self, device: str, allocator: Any):
        self.alloc = _named(device, "allocate memory", _method(allocator, "_alloc", "size", options=True))
        self.free = _named(device, "release memory", _method(allocator, "_free", "handle", options=True))
        self.to_device = _named(device, "copy memory in", _method(allocator, "copyin", "dest, src"))
        self.to_host = _named(device, "copy memory out", _method(allocator, "copyout", "dest, src"))
        self.blocks = VirtualAddresses()
        self.handles: dict[int, tuple[Any, int]] = {}            # address of a block or of a part: (handle, size)

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Reserve a range of virtual addresses; memory is allocated on first use."""
        block = MemoryBlock(self.blocks.reserve(nbytes), nbytes, nbytes)
        self.blocks.add(block.address, block)
        return block

    def release(self, block: MemoryBlock) -> None:
        """Free a block and every handle inside it."""
        self.blocks.remove(block.address)
        for address in [a for a in self.handles if block.address <= a < block.address + max(block.nbytes, 1)]:
            self.free(self.handles.pop(address)[0])

    def block_of(self, address: int) -> MemoryBlock | None:
        found = self.blocks.find(address)
        return found[1] if found is not None and address < found[0] + max(found[1].nbytes, 1) else None

    def to_write(self, address: int, nbytes: int) -> Any:
        """Return the handle for a kernel that writes `nbytes`: of a whole block, or of a value inside one."""
        block = self.block_of(address)
        if block is None:
            raise Bug(f"no memory of this device is at {address:#x}")
        size = block.nbytes if block.address == address else nbytes
        found = self.handles.get(address)
        if found is None or found[1] < size:
            if found is not None:
                self.free(found[0])
            found = self.handles[address] = (self.alloc(max(size, 1)), size)
        return found[0]

    def to_read(self, address: int, nbytes: int) -> tuple[Any, bool]:
        """Return (handle, is_copy) for a kernel that reads; a copy must be freed after the launch."""
        if address in self.blocks or address in self.handles:
            return self.handles[address][0] if address in self.handles else self.to_write(address, nbytes), False
        # a slice of a buffer, or a scalar in host memory: copy it
        copied = self.alloc(max(nbytes, 1))
        self.to_device(copied, memoryview(self.copy_out(address, nbytes)))
        return copied, True

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        """Copy bytes from a device address, or from a host address."""
        block = self.block_of(address)
        if block is None or not nbytes:
            return bytearray(ctypes.string_at(address, nbytes)) if nbytes else bytearray()
        first = address if address in self.handles else block.address
        handle = self.to_write(first, 0)
        out = bytearray(self.handles[first][1])
        self.to_host(memoryview(out), handle)
        return out[address - first:address - first + nbytes]

    def copy_in(self, address: int, data: Any) -> None:
        """Copy host bytes to a device address."""
        view = memoryview(data).cast("B")
        if view.nbytes:
            self.to_device(self.to_write(address, view.nbytes),
                           view if not view.readonly else memoryview(bytearray(view)))

    def empty_cache(self) -> None:
        """Do nothing: there is no pool."""


# -- the device ----------------------------------------------------------------------------------------------
@dataclass(eq=False)
class CalledProgram:
    """A compiled kernel that Python calls, and its parameters."""
    name: str
    run: Any
    keywords: dict[str, Any]
    kernel: Kernel
    info: LaunchInfo
    operations: Any
    bytes: Any

    def __post_init__(self) -> None:
        self.sizes = {p.arg.slot: 8 if p.arg.scalar else p.size * p.dtype.itemsize for p in self.kernel.params}
        own = dict(enumerate(self.info.shared, len(self.sizes)))       # memory that a launch provides
        self.sizes |= own
        self.written = {*self.kernel.written, *own}


class Compiled(Backend):
    """A device that is assembled from its parts; `runtime(name, lib)` makes a kernel that can be called."""

    def __init__(self, device: str, allocator: Any, renderer: Any = None, compiler: Any = None,
                 runtime: Callable[..., Any] | None = None, *_more: Any):
        if runtime is None:
            raise DeviceError(
                "a device needs something that runs kernels",
                given=f"{device} without a runtime",
                expected="Compiled(device, allocator, renderer, compiler, Runner)",
                fix="pass your Runner class",
            )
        super().__init__(device, AllocatorMemory(device, allocator))
        self.dname = self.device = device
        self.allocator, self.renderer, self.compiler, self.runtime = allocator, renderer or CStyleLanguage(), \
            compiler or Compiler(), runtime
        self._keywords: dict[str, Any] | None = None
        if isinstance(runtime, type):            # else the first runner made is inspected
            if not _accepts(runtime, "name", b""):
                _refuse(runtime, "__init__", "__init__(self, name, lib)")
            self._keywords = _keywords_of(getattr(runtime, "__call__", None), runtime, None)      # noqa: B004

    def compile(self, ast: UOp) -> CalledProgram:
        """Lower a kernel to plain loops; render, compile and load it by the device's parts."""
        with one_place():
            kernel = self.loop_tree(ast)
            run = self._load(ast, kernel)
            if self._keywords is None:
                self._keywords = _keywords_of(run, run)
            return CalledProgram(kernel.name, run, self._keywords, kernel, plain_launch(kernel), *cost(ast))

    def _load(self, ast: UOp, kernel: Kernel) -> Any:
        """Render, compile and load a kernel; an error names the user's lines that it computes."""
        try:
            return self.runtime(kernel.name, self.compiler.compile(self.renderer.render(kernel)))
        except (GlassgradError, Bug):
            raise
        except Exception as error:
            raise CompileError(f"{self.name} does not compile the kernel {kernel.name}",
                               given=f"{type(error).__name__}: {error}".rstrip(": "),
                               expected="source that the device's compiler and runner take",
                               fix="DEBUG=3 prints the source", where=lines_of(ast)) from error

    def launch(self, program: CalledProgram, addresses: Sequence[int]) -> None:
        """Call a kernel with the handles of its memory."""
        handles, copied = [], []
        for position, address in enumerate(addresses):
            if position in program.written:
                handles.append(self.memory.to_write(address, program.sizes[position]))
            else:
                handle, is_copy = self.memory.to_read(address, program.sizes.get(position, 1))
                handles.append(handle)
                copied += [handle] if is_copy else []
        try:
            program.run(*handles, **program.keywords)
        except Exception as error:
            raise device_failure(self.name, f"run the kernel {program.name}", error) from error
        for handle in copied:
            self.memory.free(handle)

    def source(self, ast: UOp) -> str:
        """Return the source that this device compiles for a kernel."""
        return str(self.renderer.render(self.loop_tree(ast)))

    def loop_tree(self, ast: UOp) -> Kernel:
        """Return the kernel's loop tree, without optimizations."""
        return kernel_of(ast, PLAIN, plain=True)
