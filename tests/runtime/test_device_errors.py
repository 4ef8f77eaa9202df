"""What a device that fails says: which device, at what, and the line of the user's program."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glassgrad import Device, DeviceError, MemoryLimitError, Tensor
from glassgrad.base.errors import Bug, DTypeError
from glassgrad.device import Allocator, Compiled, CompileError, Compiler
from glassgrad.renderer.cstyle import CStyleLanguage
from glassgrad.runtime.gpu.gpu_device import Rejected


class Parts:
    """A device whose parts fail on request; kernels do nothing."""
    fails: dict[str, Exception] = {}

    @classmethod
    def step(cls, name: str) -> None:
        if name in cls.fails:
            raise cls.fails[name]


class FailingAllocator(Allocator):
    def _alloc(self, size: int, options: Any = None) -> Any:
        Parts.step("_alloc")
        return (ctypes.c_char * size)()

    def copyin(self, dest: Any, src: memoryview) -> None:
        Parts.step("copyin")
        ctypes.memmove(dest, bytes(src), len(src))

    def copyout(self, dest: memoryview, src: Any) -> None:
        Parts.step("copyout")
        dest[:] = bytes(src)[:len(dest)]


class FailingCompiler(Compiler):
    def compile(self, src: str) -> bytes:
        Parts.step("compile")
        return src.encode()


class FailingRunner:
    def __init__(self, name: str, lib: bytes):
        Parts.step("load")

    def __call__(self, *bufs: Any, global_size: Any, local_size: Any) -> None:
        Parts.step("run")


class FailingRenderer(CStyleLanguage):
    def render(self, kernel: Any) -> str:
        Parts.step("render")
        return super().render(kernel)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    Device.register("FAILING", lambda name: Compiled(name, FailingAllocator(), FailingRenderer(), FailingCompiler(),
                                                     FailingRunner))
    monkeypatch.setattr(Parts, "fails", {})
    yield lambda name, error: Parts.fails.update({name: error})
    Parts.fails.clear()
    Device.unregister("FAILING")


def use() -> None:
    x = Tensor(np.arange(6, dtype=np.float32), device="FAILING")
    y = x * 2.718 + 0.5772
    y.numpy()


def line_of(text: str) -> str:
    return f"{__file__}:{next(n for n, line in enumerate(open(__file__), 1) if line.strip() == text)}"


@pytest.mark.parametrize("part, doing, line", [
    ("_alloc", "allocate memory", "x = Tensor(np.arange(6, dtype=np.float32), device=\"FAILING\")"),
    ("copyin", "copy memory in", "x = Tensor(np.arange(6, dtype=np.float32), device=\"FAILING\")"),
    ("copyout", "copy memory out", "y.numpy()"),
])
def test_memory_that_fails_names_the_device_and_the_line(failing: Any, part: str, doing: str, line: str) -> None:
    failing(part, OSError("the cable is out"))
    with pytest.raises(DeviceError) as error:
        use()
    assert str(error.value) == f"""\
FAILING failed to {doing}
  given:    OSError: the cable is out
  expected: a device that does what its contract says
  fix:      see the exception above; glassgrad conformance FAILING says what works, and DEV=CPU uses another device
  at:       {line_of(line)}"""
    assert isinstance(error.value.__cause__, OSError)


def test_no_memory_left_is_a_memory_error(failing: Any) -> None:
    failing("_alloc", MemoryError())
    with pytest.raises(MemoryLimitError) as error:
        use()
    assert str(error.value).partition("\n  at: ")[0] == """\
FAILING has no memory left
  given:    MemoryError
  expected: memory that is free
  fix:      use smaller batches, or let go of tensors"""


@pytest.mark.parametrize("part", ["render", "compile", "load"])
def test_a_kernel_that_does_not_compile_names_the_line_that_it_computes(failing: Any, part: str) -> None:
    failing(part, ValueError("line 3: no such function"))
    with pytest.raises(CompileError) as error:
        use()
    assert str(error.value) == f"""\
FAILING does not compile the kernel map_6
  given:    ValueError: line 3: no such function
  expected: source that the device's compiler and runner take
  fix:      DEBUG=3 prints the source
  at:       {line_of("y = x * 2.718 + 0.5772")}"""


def test_a_kernel_that_fails_while_it_runs(failing: Any) -> None:
    failing("run", RuntimeError("the device is lost"))
    with pytest.raises(DeviceError) as error:
        use()
    assert str(error.value).startswith("FAILING failed to run the kernel map_6\n  given:    RuntimeError: the device")
    assert str(error.value).endswith(f"  at:       {line_of('y.numpy()')}")


def test_an_error_of_the_devices_own_words_stays(failing: Any) -> None:
    failing("copyin", DeviceError("plug it in", fix="the blue cable"))
    with pytest.raises(DeviceError, match="plug it in"):
        use()


# -- OpenCL --------------------------------------------------------------------------------------------------
@pytest.fixture
def opencl() -> Any:
    try:
        return Device["OPENCL"]
    except DeviceError as error:
        pytest.skip(f"{error.what}: pip install pyopencl pocl-binary-distribution")


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value).partition("\n  at: ")[0]


def test_opencl_with_no_block_as_large(opencl: Any) -> None:
    with pytest.raises(MemoryLimitError) as error:
        Tensor.empty(1 << 44, device="OPENCL").contiguous().realize()
    assert "OPENCL has no block as large as this tensor\n  given:    a request of 65536.0 GiB" in str(error.value)
    assert __file__ in str(error.value)


def failing_queue(opencl: Any, monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """The device's `cl` with other functions in the place of some."""
    real = opencl.cl
    replaced = SimpleNamespace(**{name: getattr(real, name) for name in dir(real) if not name.startswith("__")})
    for name, function in functions.items():
        setattr(replaced, name, function)
    monkeypatch.setattr(opencl, "cl", replaced)
    monkeypatch.setattr(opencl.memory, "cl", replaced)


def test_opencl_whose_device_is_lost(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor([1.0, 2.0], device="OPENCL").realize()
    (x + 3).realize()                                                  # compiled

    class Lost(opencl.cl.RuntimeError):                                # type: ignore[name-defined,misc]
        def __str__(self) -> str: return "clEnqueue failed: DEVICE_NOT_AVAILABLE"

    def lost(*_: Any, **__: Any) -> None:
        raise Lost

    failing_queue(opencl, monkeypatch, enqueue_nd_range_kernel=lost, enqueue_copy=lost)
    for act, doing in ((lambda: (x + 3).realize(), "launch the kernel map_2_0"), (lambda: x.numpy(), "copy memory out"),
                       (lambda: Tensor([1.0], device="OPENCL").realize(), "copy memory in")):
        with pytest.raises(DeviceError) as error:
            act()
        assert message(error) == f"""\
OPENCL failed to {doing}
  given:    clEnqueue failed: DEVICE_NOT_AVAILABLE
  expected: a device that answers
  fix:      start the program anew; if it happens again, see the driver's messages, or use DEV=CPU"""


def test_opencl_that_finds_out_about_memory_when_it_copies(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(opencl.cl.MemoryError):                                 # type: ignore[name-defined,misc]
        def __str__(self) -> str: return "MEM_OBJECT_ALLOCATION_FAILURE"

    def full(*_: Any, **__: Any) -> None:
        raise Full

    failing_queue(opencl, monkeypatch, enqueue_copy=full)
    with pytest.raises(MemoryLimitError, match="the GPU has no memory left"):
        Tensor([1.0], device="OPENCL").realize()


def test_opencl_without_float64_refuses_it_by_name(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl, "missing_types", ("float64",))
    assert opencl.missing_types == ("float64",)
    x = Tensor(np.ones(3), device="OPENCL")
    with pytest.raises(DTypeError) as error:
        (x * 7.25).realize()
    assert message(error).startswith("OPENCL has no float64\n  given:    a kernel that computes in float64\n")
    assert __file__ in str(error.value)


def test_a_kernel_that_the_driver_rejects_names_the_line(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def rejects(source: str) -> bytes:
        raise Rejected("unexpected token")

    monkeypatch.setattr(opencl, "compile_source", rejects)
    x = Tensor([1.0, 2.0, 3.0], device="OPENCL").realize()
    with pytest.raises(Bug, match="OPENCL does not take a kernel: unexpected token") as error:
        (x * 9.125 - 0.375).realize()
    assert __file__ in str(error.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("device", ["OPENCL", "WEBGPU"])
@pytest.mark.parametrize("use", [Tensor.numpy, lambda x: (x + 1).realize(), lambda x: Device[x.device].synchronize()],
                         ids=["read", "compute", "synchronize"])
def test_a_forked_process_says_that_its_driver_is_not_there_and_does_not_hang(device: str,
                                                                              use: Callable[[Tensor], Any]) -> None:
    if not Device.is_available(device):
        pytest.skip(f"no {device} here: {Device.records[device].install}")
    x = Tensor([1.0, 2.0], device=device).realize()
    child = os.fork()
    if child == 0:
        signal.alarm(60)                       # what hangs is ended, with another status
        try:
            use(x)
        except DeviceError as error:
            expected = f"{device} does not work in a forked process: its driver's threads are not there"
            os._exit(7 if error.what == expected else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert x.tolist() == [1.0, 2.0], "the process that forked goes on"
