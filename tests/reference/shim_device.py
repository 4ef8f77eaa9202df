"""Kernels for GPUs that are not here, run on the CPU. In: HIP or Metal source. Out: devices HIP_SHIM, METAL_SHIM
and CUDA_SHIM.

A kernel is compiled as C++ against a header that gives its language's words their meaning (shims/hip_shim.h,
shims/metal_stdlib) and run by shims/gpu_threads.cpp: the threads of a group as fibers, with every access to memory
followed. A race, a barrier that not all threads reach, and an access outside of a buffer are errors (`KernelFault`).

    DEVICE=HIP_SHIM ./dev test tests/tensor          the suite on one of them; compiled kernels are kept
    DEVICE=METAL_SHIM SHIM_ORDER=1 ./dev test ..     threads in another order: 0 forward, 1 backward, 2 at random
"""

from __future__ import annotations

import bisect
import ctypes
import getpass
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from glassgrad import Device, DeviceError
from glassgrad.base import source_lines
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import APPLE_GPU, GPU
from glassgrad.compiler.render.gpu.dialects import CUDA, HIP, METAL, Dialect
from glassgrad.runtime.gpu.gpu_device import GpuDevice, KernelCall, LaunchByAddress, Rejected, no_memory_left
from glassgrad.runtime.memory_pool import MemoryBlock

SHIMS = Path(__file__).resolve().parent / "shims"
CACHE = Path(os.environ.get("SHIM_CACHE") or Path(tempfile.gettempdir()) / f"gpu-shims-{getpass.getuser()}")
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-attributes",
         "-fsanitize=thread", "-nodefaultlibs")
HEADER = {name: ("-include", str(SHIMS / "hip_shim.h")) for name in (HIP.name, CUDA.name)} | \
    {METAL.name: ("-I", str(SHIMS))}
KERNEL = re.compile(r"(?:__global__ void (?:__launch_bounds__\([^)]*\) )?|\[\[kernel[^\n]*?\]\] void |^kernel void )"
                    r"(\w+)\(", re.M)
GROUP_ARRAY = re.compile(r"^(\s*)(?:__shared__|threadgroup) (\w+ \w+\[\d+\];)", re.M)
INSTRUCTION = re.compile(r'asm volatile\("(ldmatrix|mma)\.([^" ]*)[^"]*" : (.*?)( : "memory")?\);')
OPERAND = re.compile(r'"[=+]?\w"\((\w+)\)')
PLACE = 256                      # bytes: where blocks begin
source_lines._is_ours[__file__] = True       # a device's lines are none of the user's
LARGEST = 4 << 30                # bytes of a block, as on a small GPU: the memory is that of the machine that tests


class KernelFault(AssertionError):
    """What a kernel does wrong, such as a race."""


@lru_cache(maxsize=1)
def compiler() -> str | None:
    return next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)


needs_cxx = pytest.mark.skipif(compiler() is None, reason="a C++ compiler: apt install g++")


# -- compiling ------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def headers() -> bytes:
    """What every compiled kernel depends on."""
    version = subprocess.run([compiler() or "", "--version"], capture_output=True, check=True).stdout
    names = ("gpu_threads.h", "half.h", "hip_shim.h", "ptx_shim.h", "metal_stdlib")
    return version + b"".join((SHIMS / name).read_bytes() for name in names)


def _built(text: str, flags: Sequence[str]) -> Path:
    """A shared library of C++ source, made once; other source is `Rejected`."""
    name = hashlib.sha256(headers() + "\0".join([text, *flags]).encode()).hexdigest()[:32]
    library = CACHE / f"{name}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = CACHE / f"{name}.{os.getpid()}.{threading.get_ident()}"
        source = unfinished.with_suffix(unfinished.suffix + ".cpp")     # of this thread: others may compile the same
        source.write_text(text)
        done = subprocess.run([compiler() or "", *flags, "-x", "c++", str(source), "-o", str(unfinished), "-lgcc"],
                              capture_output=True, text=True)
        source.replace(CACHE / f"{name}.cpp")
        if done.returncode:
            raise Rejected(done.stderr)
        unfinished.replace(library)
    return library


@lru_cache(maxsize=1)
def runtime() -> ctypes.CDLL:
    """The threads, which kernels find by their names."""
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared", "-U_FORTIFY_SOURCE")
    library = ctypes.CDLL(str(_built((SHIMS / "gpu_threads.cpp").read_text(), (*flags, "-I", str(SHIMS)))),
                          mode=ctypes.RTLD_GLOBAL)
    library.gpu_scratch.restype = ctypes.c_void_p
    return library


def as_cpp(source: str) -> str:
    """A kernel's source as the header takes it: C++ has no word for arrays of a group, and functions need callers."""
    source = INSTRUCTION.sub(_as_call, source).replace(CUDA.read_once, "v.all = *(const uint4 *)p;")
    source = GROUP_ARRAY.sub(r"\1GROUP_MEMORY \2", source)
    return source + "".join(f"RUN_KERNEL({name})\n" for name in KERNEL.findall(source))


def _as_call(found: re.Match[str]) -> str:
    """An instruction of a matrix unit as a call of shims/ptx_shim.h."""
    name, kinds, operands = found[1], found[2].split("."), OPERAND.findall(found[3])
    if name == "ldmatrix":
        assert {"m8n8", "x4", "shared", "b16"} <= {*kinds}, kinds
        called = f"ldmatrix_x4<{'true' if 'trans' in kinds else 'false'}>"
    else:
        assert kinds[2:6] == ["m16n8k16", "row", "col", "f32"] and kinds[6] == kinds[7], kinds
        called = f"mma_m16n8k16<gpu::{kinds[6].upper()}>"
    return f"gpu::{called}({', '.join(operands)}, __LINE__);"


# -- launching ------------------------------------------------------------------------------------------------------
class Range(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64))


class LaunchDescription(ctypes.Structure):
    _fields_ = (("args", ctypes.c_void_p), ("groups", ctypes.c_uint), ("threads", ctypes.c_uint),
                ("group_bytes", ctypes.c_uint), ("order", ctypes.c_int), ("ranges", ctypes.POINTER(Range)),
                ("count", ctypes.c_uint))


def run_kernel(function: Any, addresses: Sequence[int], ranges: Sequence[tuple[int, int]], groups: int, threads: int,
               group_bytes: int = 0, order: int = 0) -> None:
    """Runs a function; of each argument, the address where its value lies. Raises `KernelFault`."""
    args = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
    spans = (Range * max(1, len(ranges)))(*ranges)
    what = LaunchDescription(ctypes.addressof(args), groups, threads, group_bytes, order, spans, len(ranges))
    function.restype = ctypes.c_char_p
    wrong = function(ctypes.byref(what))
    if wrong:
        raise KernelFault(f"{function.__name__.removeprefix('run_')}: {wrong.decode()}")


class ShimMemory:
    """Blocks of host memory that nothing but kernels and copies may use."""
    on_host, in_parts = False, True

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.blocks: dict[int, tuple[Any, int]] = {}

    def allocate(self, nbytes: int) -> MemoryBlock:
        if nbytes > LARGEST:
            raise no_memory_left(nbytes)
        memory = ctypes.create_string_buffer(nbytes + PLACE)
        address = -(-ctypes.addressof(memory) // PLACE) * PLACE
        ctypes.memset(address, 0xff, nbytes)                         # nothing is there: floats are not numbers
        bisect.insort(self.starts, address)
        self.blocks[address] = memory, nbytes
        return MemoryBlock(address, nbytes, nbytes)

    def release(self, block: MemoryBlock) -> None:
        del self.starts[bisect.bisect_left(self.starts, block.address)]
        del self.blocks[block.address]

    def empty_cache(self) -> None:
        """Nothing is kept."""

    def range_of(self, address: int) -> tuple[int, int]:
        """The block that an address lies in."""
        start = self.starts[bisect.bisect_right(self.starts, address) - 1]
        return start, start + self.blocks[start][1]

    def copy_in(self, address: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        ctypes.memmove(address, bytes(view), view.nbytes)

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        return bytearray(ctypes.string_at(address, nbytes))


class ShimDevice(GpuDevice):
    """A dialect on the CPU."""
    memory: ShimMemory

    def __init__(self, name: str, dialect: Dialect):
        if compiler() is None:
            raise DeviceError(f"{name} compiles kernels as C++", given="no g++ and no clang++", expected="one of them",
                              fix="apt install g++")
        self.dialect, self.target = dialect, TARGET_OF.get(dialect.name, GPU)
        self.about = f"{dialect.name} on the CPU, compiled by {compiler()}"
        self.machine = f"{name} {hashlib.sha256(headers()).hexdigest()}"
        self.order = int(os.environ.get("SHIM_ORDER", "0"))
        runtime()
        super().__init__(name, ShimMemory())

    def compile_source(self, source: str) -> bytes:
        return _built(as_cpp(source), (*FLAGS, *HEADER[self.dialect.name])).read_bytes()

    def load(self, compiled: bytes, names: Sequence[str]) -> list[Any]:
        library = CACHE / f"{hashlib.sha256(compiled).hexdigest()[:32]}.load.so"
        if not library.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            unfinished = library.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
            unfinished.write_bytes(compiled)
            unfinished.replace(library)
        loaded = ctypes.CDLL(str(library))
        return [getattr(loaded, f"run_{name}") for name in names]

    def prepare(self, call: KernelCall) -> ShimLaunch:
        return ShimLaunch(self, call)


class ShimLaunch(LaunchByAddress):
    """A function and the addresses of its arguments: of numbers those of their cells."""

    def __init__(self, device: ShimDevice, call: KernelCall):
        super().__init__(device, call)
        self.function, self.shape = call.function, (call.threads, call.group_bytes)
        self.addresses = self.values = (ctypes.c_uint64 * (len(call.scalars) + 1))()
        self.values[len(call.scalars)] = runtime().gpu_scratch()          # an argument where the dialect has one

    def start(self) -> None:
        first, values, memory = ctypes.addressof(self.values), self.values, self.device.memory
        addresses = [values[i] if scalar else first + 8 * i for i, scalar in enumerate((*self.scalars, False))]
        ranges = [(values[i], values[i] + 8) if scalar else memory.range_of(values[i])
                  for i, scalar in enumerate(self.scalars)]
        run_kernel(self.function, addresses, ranges, self.groups, *self.shape, order=self.device.order)


# CUDA's has a unit, but no features: casts are arithmetic, which a CPU has too.
TARGET_OF = {METAL.name: APPLE_GPU, CUDA.name: replace(GPU, units=units_of({"sm_80"}))}
DIALECT_OF = {"HIP_SHIM": HIP, "METAL_SHIM": METAL, "CUDA_SHIM": CUDA}


def register() -> None:
    """Adds the devices, for a run that names one of them."""
    for name, dialect in DIALECT_OF.items():
        Device.register(name, lambda name, dialect=dialect: ShimDevice(name, dialect), target="the CPU",
                        dialect=dialect.name, install="apt install g++")


@contextmanager
def registered() -> Iterator[None]:
    """The shims among the devices, until the block ends."""
    before = Device.records
    register()
    try:
        yield
    finally:
        for name in DIALECT_OF.keys() - before.keys():
            Device.unregister(name)
