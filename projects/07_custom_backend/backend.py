"""Project 7: a device of your own, in three parts. Run it: python projects/07_custom_backend/backend.py [benchmark]

Allocator gives memory, Compiler turns C into a library, Runner calls a function in it; all else is glassgrad's.
Its page is docs/guide/07_custom_backend.md.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

from glassgrad import Device, Tensor
from glassgrad.device import Allocator, Compiled, Compiler, Runner
from glassgrad.renderer.cstyle import CStyleLanguage

CC = os.environ.get("CC", "cc")


class MyAllocator(Allocator):
    """Memory by way of ctypes. A handle is whatever `_alloc` returns; the runner gets it back."""

    def _alloc(self, size: int, options: Any = None) -> Any:
        return (ctypes.c_char * max(size, 1))()

    def _free(self, handle: Any, options: Any = None) -> None:
        """The array dies with its last reference."""

    def copyin(self, handle: Any, data: memoryview) -> None:
        ctypes.memmove(handle, bytes(data), data.nbytes)

    def copyout(self, data: memoryview, handle: Any) -> None:
        data.cast("B")[:] = memoryview(handle).cast("B")[:data.nbytes]


class MyCompiler(Compiler):
    """C in, the bytes of a shared library out."""

    flags: tuple[str, ...] = ("-O3", "-march=native")

    def compile(self, src: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "kernel.so")
            command = [CC, "-x", "c", "-", "-shared", "-fPIC", "-w", *self.flags, "-o", path]
            done = subprocess.run(command, input=src.encode(), capture_output=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{done.stderr.decode()}\n{src}")
            with open(path, "rb") as file:
                return file.read()


class MyRunner(Runner):
    """One function of a compiled library, ready to be called."""

    def __init__(self, name: str, lib: bytes):
        self.name = name
        file, path = tempfile.mkstemp(suffix=".so")
        os.write(file, lib)
        os.close(file)
        self.library = ctypes.CDLL(path)                    # mapped now, so its name may go
        os.unlink(path)
        self.function = self.library[name]
        self.function.restype = None

    def __call__(self, *bufs: Any, global_size: Any = None, local_size: Any = None, wait: bool = False) -> float | None:
        start = time.perf_counter()
        self.function(*bufs)
        return time.perf_counter() - start if wait else None


class MyDevice(Compiled):
    def __init__(self, device: str = "MY"):
        super().__init__(device, MyAllocator(), CStyleLanguage(), MyCompiler(), MyRunner)


# -- an extension: the outermost loop on all cores ---------------------------------------------------------------------
class OpenMPCompiler(MyCompiler):
    """The same C, with one line more in front of loops that may run in any order."""

    flags = (*MyCompiler.flags, "-fopenmp")

    def compile(self, src: str) -> bytes:
        return super().compile(parallel(src))


def parallel(src: str) -> str:
    """A pragma before each outermost loop over results (i0, ...); one that adds up (k0, ...) stays in order."""
    return re.sub(r"^(?:static )?void .*?^}", _parallel_function, src, flags=re.M | re.S)


def _parallel_function(function: re.Match[str]) -> str:
    text = function.group()
    if "scratch +" in text:                 # memory that all rounds of the loop share: they cannot run side by side
        return text
    # accumulators are declared in front of the loops, so each thread needs its own
    own = ", ".join(re.findall(r"^  \w+ (acc\w*(?:, acc\w*)*);", text, re.M))
    pragma = "  #pragma omp parallel for" + (f" private({own})" if own else "") + "\n"
    return re.sub(r"^  for \(\w+ i\d+ ", lambda loop: pragma + loop.group(), text, flags=re.M)


class MyParallelDevice(Compiled):
    def __init__(self, device: str = "MYOMP"):
        super().__init__(device, MyAllocator(), CStyleLanguage(), OpenMPCompiler(), MyRunner)


Device.register("MY", MyDevice)
Device.register("MYOMP", MyParallelDevice)


def best_seconds(function: Any, times: int) -> float:
    function()
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def benchmark(size: int = 256) -> None:
    """A matrix product on every device, launch and all; then what a launch costs by itself."""
    for device in ("MY", "MYOMP", "CLANG", "CPU", *(["CUDA"] if Device.is_available("CUDA") else [])):
        a, b = (Tensor.rand(size, size).to(device).realize() for _ in range(2))
        print(f"  {device:<6} {2 * size ** 3 / best_seconds(lambda a=a, b=b: (a @ b).realize(), 3) / 1e9:8.2f} GFLOPS")
    empty = MyRunner("nothing", MyCompiler().compile("void nothing(void *a) {}"))
    handle = MyAllocator()._alloc(4)
    overhead = best_seconds(lambda: empty(handle), 1000) * 1e6
    print(f"  calling an empty kernel through the Python runner: {overhead:.1f} us")


if __name__ == "__main__":
    total = Tensor([1, 2, 3], device="MY") + Tensor([4, 5, 6], device="MY")
    print(f"[1, 2, 3] + [4, 5, 6] on {total.device}: {total.tolist()}")
    assert total.tolist() == [5, 7, 9]
    if "benchmark" in sys.argv[1:]:
        benchmark()
