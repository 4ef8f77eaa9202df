"""Run kernels on Apple's GPUs, called through the Objective-C runtime: the device METAL. In: a Mac. Out: an opened
device.

Methods are called by `objc_msgSend`, which takes the object, the selector and the arguments; a comment at each call has
the declaration in Objective-C. An object that a method named `new..` returns must be released by the caller; others
belong to an autorelease pool (`pool`).

Buffers are shared by CPU and GPU. The address of a buffer is its CPU pointer; a kernel is passed the buffer's handle
and a byte offset.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from glassgrad.base.errors import Bug, DeviceError
from glassgrad.compiler.optimize.targets.target import APPLE_GPU
from glassgrad.compiler.render.gpu.dialects import METAL
from glassgrad.runtime.gpu.gpu_device import GpuDevice, KernelCall, Launch, LaunchByAddress, Rejected
from glassgrad.runtime.gpu.handle_memory import MemoryByHandle

_RUNTIME = "/usr/lib/libobjc.A.dylib"
_FRAMEWORKS = ("/System/Library/Frameworks/Foundation.framework/Foundation",
               "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics",       # needed by the default device
               "/System/Library/Frameworks/Metal.framework/Metal")
_FAILED = 5                # status of a failed command buffer
_IN_FLIGHT = 48            # most command buffers in flight; a queue blocks beyond 64


class Size(ctypes.Structure):
    """MTLSize."""
    _fields_ = (("width", ctypes.c_uint64), ("height", ctypes.c_uint64), ("depth", ctypes.c_uint64))


def open_metal(name: str = "METAL") -> MetalDevice:
    """Open the default GPU of macOS."""
    if sys.platform != "darwin":
        raise DeviceError("Metal is a part of macOS", given=f"this machine runs {sys.platform}",
                          expected="a Mac with an Apple GPU", fix="use another device: DEV=CPU")
    try:
        runtime = ctypes.CDLL(_RUNTIME)
        *_, metal = [ctypes.CDLL(framework) for framework in _FRAMEWORKS]
    except OSError as error:
        raise DeviceError("this Mac has no Metal", given=str(error), expected="macOS 10.13 or newer",
                          fix="update macOS, or use another device: DEV=CPU") from None
    metal.MTLCreateSystemDefaultDevice.restype = ctypes.c_void_p
    return MetalDevice(name, ObjectiveC(runtime), metal.MTLCreateSystemDefaultDevice())


class ObjectiveC:
    """Calls of Objective-C methods. Arguments are ctypes values or structures; an int is an object or an NSUInteger."""

    def __init__(self, library: Any):
        self.library = library
        for function in (library.sel_registerName, library.objc_getClass):
            function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        library.objc_autoreleasePoolPush.restype = ctypes.c_void_p
        library.objc_autoreleasePoolPop.argtypes = [ctypes.c_void_p]
        self.address = ctypes.cast(library.objc_msgSend, ctypes.c_void_p).value or 0
        self.functions: dict[tuple[Any, ...], Any] = {}
        self.selectors: dict[str, int] = {}

    def send(self, receiver: int | None, method: str, *arguments: Any, returns: Any = ctypes.c_void_p) -> Any:
        """Call a method of an object, by a function pointer with the method's declared types."""
        kinds = tuple([ctypes.c_uint64 if isinstance(a, int) else type(a) for a in arguments])
        function = self.functions.get((returns, kinds))
        if function is None:
            kind = ctypes.CFUNCTYPE(returns, ctypes.c_void_p, ctypes.c_void_p, *kinds)
            function = self.functions[returns, kinds] = kind(self.address)
        selector = self.selectors.get(method)
        if selector is None:
            selector = self.selectors[method] = self.library.sel_registerName(method.encode())
        return function(receiver, selector, *arguments)

    def new(self, name: str) -> int:
        """[[Name alloc] init]"""
        made: int = self.send(self.library.objc_getClass(name.encode()), "new")
        return made

    def string(self, text: str) -> int:
        """Make an autoreleased NSString."""
        made: int = self.send(self.library.objc_getClass(b"NSString"), "stringWithUTF8String:",
                              ctypes.c_char_p(text.encode()))
        return made

    def text(self, string: int | None) -> str:
        """Return the text of an NSString."""
        held: bytes | None = self.send(string, "UTF8String", returns=ctypes.c_char_p) if string else None
        return held.decode() if held else ""

    def reason(self, error: int | None) -> str:
        """Return the message of an NSError."""
        return self.text(self.send(error, "localizedDescription")) if error else "no reason is given"

    def release(self, thing: int) -> None:
        self.send(thing, "release", returns=None)

    @contextmanager
    def pool(self) -> Iterator[None]:
        """Open an autorelease pool: objects that methods return are released at the end of the block."""
        token = self.library.objc_autoreleasePoolPush()
        try:
            yield
        finally:
            self.library.objc_autoreleasePoolPop(token)


class MetalMemory(MemoryByHandle):
    """Buffers shared with the CPU; their addresses are CPU pointers."""
    least = 256

    def __init__(self, device: MetalDevice, name: str):
        super().__init__(name)
        self.device = device

    def new_handle(self, size: int) -> int | None:
        # - (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;  0: shared
        made: int | None = self.device.objc.send(self.device.handle, "newBufferWithLength:options:", size, 0)
        return made

    def new_address(self, handle: int, size: int) -> int:
        address: int = self.device.objc.send(handle, "contents")
        return address

    def free(self, handle: int) -> None:
        self.device.objc.release(handle)

    def wait_for_kernels(self) -> None:
        self.device.synchronize()

    def write(self, address: int, view: memoryview) -> None:
        self.device.synchronize()
        ctypes.memmove(address, bytes(view) if view.readonly else
                       (ctypes.c_char * view.nbytes).from_buffer(view), view.nbytes)

    def read(self, address: int, nbytes: int) -> bytearray:
        self.device.synchronize()
        return bytearray(ctypes.string_at(address, nbytes))


class MetalLaunch(LaunchByAddress):
    """A pipeline and the addresses of its arguments."""

    def __init__(self, device: MetalDevice, call: KernelCall):
        super().__init__(device, call)
        self.pipeline, self.group_bytes = call.function, -(-call.group_bytes // 16) * 16
        self.threads = Size(call.threads, 1, 1)

    def start(self) -> None:
        device, send, memory = self.device, self.device.objc.send, self.device.memory
        with device.objc.pool():
            command_buffer = send(device.queue, "commandBuffer")
            encoder = send(command_buffer, "computeCommandEncoder")
            send(encoder, "setComputePipelineState:", self.pipeline, returns=None)
            for number, (address, scalar) in enumerate(zip(self.addresses, self.scalars)):
                if scalar:
                    # - (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
                    send(encoder, "setBytes:length:atIndex:", ctypes.c_void_p(address), 8, number, returns=None)
                else:
                    # - (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
                    send(encoder, "setBuffer:offset:atIndex:", *memory.find(address), number, returns=None)
            if self.group_bytes:
                send(encoder, "setThreadgroupMemoryLength:atIndex:", self.group_bytes, 0, returns=None)
            # - (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads;
            send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:", Size(self.groups, 1, 1), self.threads,
                 returns=None)
            send(encoder, "endEncoding", returns=None)
            device.commit(command_buffer)


class MetalDevice(GpuDevice):
    """One GPU with one queue."""
    dialect, target, launch_type = METAL, APPLE_GPU, MetalLaunch

    def __init__(self, name: str, objc: ObjectiveC, handle: int | None):
        if handle is None:
            raise DeviceError("macOS offers no GPU", given="MTLCreateSystemDefaultDevice gives none",
                              expected="a Mac with an Apple GPU", fix="use another device: DEV=CPU")
        self.objc, self.handle, self.lock = objc, handle, threading.RLock()
        self.libraries: dict[str, int] = {}              # source: compiled library
        self.started: list[int] = []                     # command buffers in flight
        super().__init__(name, MetalMemory(self, name))
        self.queue = objc.send(handle, "newCommandQueue")
        with objc.pool():
            model = objc.text(objc.send(handle, "name"))
            system = objc.text(objc.send(objc.send(objc.library.objc_getClass(b"NSProcessInfo"), "processInfo"),
                                         "operatingSystemVersionString"))
        self.machine = f"{model} macOS {system}"
        self.about = f"{model}, compiled by macOS {system}"

    # -- kernels ---------------------------------------------------------------------------------------------
    def compile_source(self, source: str) -> bytes:
        """Check that source compiles and return it unchanged: macOS has its own cache of machine code."""
        self._library(source)
        return source.encode()

    def _library(self, source: str) -> int:
        found = self.libraries.get(source)
        if found is not None:
            return found
        objc, error = self.objc, ctypes.c_void_p()
        options = objc.new("MTLCompileOptions")
        objc.send(options, "setFastMathEnabled:", ctypes.c_bool(False), returns=None)
        with objc.pool():
            # - (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options
            #                                  error:(NSError **)error;
            made: int | None = objc.send(self.handle, "newLibraryWithSource:options:error:", objc.string(source),
                                         options, ctypes.pointer(error))
            said = "" if made else objc.reason(error.value)
        objc.release(options)
        if made is None:
            raise Rejected(said)
        self.libraries[source] = made
        return made

    def load(self, compiled: bytes, names: Sequence[str]) -> list[int]:
        library = self._library(compiled.decode())
        with self.objc.pool():
            return [self._pipeline(library, name) for name in names]

    def _pipeline(self, library: int, name: str) -> int:
        objc, error = self.objc, ctypes.c_void_p()
        function = objc.send(library, "newFunctionWithName:", objc.string(name))
        # - (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
        #                                                              error:(NSError **)error;
        made: int | None = objc.send(self.handle, "newComputePipelineStateWithFunction:error:", function,
                                     ctypes.pointer(error))
        objc.release(function)
        if made is None:
            raise Bug(f"{name}: {objc.reason(error.value)}")
        width = objc.send(made, "threadExecutionWidth", returns=ctypes.c_uint64)
        if width % METAL.warp:
            raise DeviceError(f"{self.name} runs {width} threads in step", given=self.about,
                              expected=f"a GPU that runs {METAL.warp}, as Apple's do",
                              fix="use another device: DEV=CPU")
        return made

    # -- running ---------------------------------------------------------------------------------------------
    def commit(self, command_buffer: int) -> None:
        """Submit a command buffer, retained until it has completed."""
        with self.lock:
            self.objc.send(command_buffer, "retain")
            self.objc.send(command_buffer, "commit", returns=None)
            self.started.append(command_buffer)
            if len(self.started) > _IN_FLIGHT:
                self._await(self.started.pop(0))

    def _await(self, command_buffer: int) -> None:
        objc = self.objc
        objc.send(command_buffer, "waitUntilCompleted", returns=None)
        failed = objc.send(command_buffer, "status", returns=ctypes.c_uint64) == _FAILED
        said = objc.reason(objc.send(command_buffer, "error")) if failed else ""
        objc.release(command_buffer)
        if failed:
            raise Bug(f"a kernel on {self.name} failed: {said}")

    def synchronize(self) -> None:
        with self.lock, self.objc.pool():
            while self.started:
                self._await(self.started.pop(0))

    def time(self, launches: Sequence[Launch]) -> int:
        objc = self.objc
        with self.lock:
            self.synchronize()
            for launch in launches:
                launch.start()
            ran = [objc.send(b, "retain") for b in self.started]
            self.synchronize()
            seconds = sum(objc.send(b, "GPUEndTime", returns=ctypes.c_double)
                          - objc.send(b, "GPUStartTime", returns=ctypes.c_double) for b in ran)
            for command_buffer in ran:
                objc.release(command_buffer)
            return int(seconds * 1e9)
