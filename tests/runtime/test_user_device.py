"""A device written by a user: gcc, ctypes, and memory that the engine knows nothing of."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from glassgrad import Context, Device, Tensor, dtypes
from glassgrad.base.errors import Bug, DeviceError
from glassgrad.device import Allocator, Compiled, Compiler
from glassgrad.jit import TinyJit
from glassgrad.nn.optim import SGD
from glassgrad.renderer.cstyle import CStyleLanguage
from glassgrad.runtime.backend import Backend, DeviceMemory, DevicePlan, DeviceProgram
from glassgrad.runtime.python.python_device import PythonDevice

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


class Memory:
    """A handle with nothing to see from outside."""

    def __init__(self, size):
        self.bytes = (ctypes.c_uint8 * size)()


class MyAllocator(Allocator):
    live = 0

    def _alloc(self, size, options=None):
        MyAllocator.live += 1
        return Memory(size)

    def _free(self, opaque, options=None):
        MyAllocator.live -= 1

    def copyin(self, dest, src):
        dest.bytes[:len(src)] = src.tolist()

    def copyout(self, dest, src):
        dest[:] = bytes(src.bytes)[:len(dest)]


class MyCompiler(Compiler):
    compiled = 0

    def compile(self, src):
        MyCompiler.compiled += 1
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "kernel.so"
            done = subprocess.run(
                ["gcc", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-x", "c", "-", "-o", str(out), "-lm"],
                input=src.encode(),
                capture_output=True,
            )
            assert done.returncode == 0, done.stderr.decode() + src
            return out.read_bytes()


class MyRunner:
    calls = 0

    def __init__(self, name, lib):
        with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
            file.write(lib)
        self.function = ctypes.CDLL(file.name)[name]
        Path(file.name).unlink()

    def __call__(self, *bufs, global_size, local_size, wait=False):
        MyRunner.calls += 1
        assert all(isinstance(b, Memory) for b in bufs)
        self.function(*[b.bytes for b in bufs])


class MyDevice(Compiled):
    def __init__(self, device):
        super().__init__(device, MyAllocator(), CStyleLanguage(), MyCompiler(), MyRunner)


@pytest.fixture(autouse=True, scope="module")
def device():
    Device._devices["MY"] = MyDevice
    yield
    gc.collect()                       # buffers go before their device does
    Device._devices.pop("MY")


def test_the_first_sum():
    total = Tensor([1, 2, 3], device="MY") + Tensor([4, 5, 6], device="MY")
    assert total.tolist() == [5, 7, 9] and total.device == "MY"


def test_matmul_softmax_and_gradients():
    rng = np.random.default_rng(0)
    a, b = rng.random((5, 7)).astype("float32"), rng.random((7, 3)).astype("float32")
    x, y = Tensor(a, device="MY"), Tensor(b, device="MY")
    out = (x @ y).softmax()
    expected = np.exp(a @ b)
    np.testing.assert_allclose(out.numpy(), expected / expected.sum(1, keepdims=True), rtol=1e-5)
    (x @ y).relu().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(b.sum(1), a.shape), rtol=1e-5)


def test_slices_values_between_kernels_and_numbers():
    x = Tensor(np.arange(12, dtype="float32").reshape(4, 3), device="MY").realize()
    assert (x[1:3] + 1).tolist() == [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    assert (x[2] * 2).tolist() == [12.0, 14.0, 16.0]
    for step in range(3):    # the second time the number is an argument
        assert (x.sum() * (0.5 + step)).item() == 66 * (0.5 + step)
    y = (x @ x.T).contiguous().sum(0).contiguous() + (x * 2).contiguous().sum()
    array = np.arange(12, dtype="float32").reshape(4, 3)
    np.testing.assert_allclose(y.numpy(), (array @ array.T).sum(0) + (array * 2).sum())


def test_types_random_numbers_and_copies():
    Tensor.manual_seed(3)
    mine = Tensor.rand(10, device="MY").tolist()
    Tensor.manual_seed(3)
    assert Tensor.rand(10).tolist() == mine
    assert Tensor([1, 2], device="MY").to("CPU").tolist() == [1, 2] and Tensor([1, 2]).to("MY").device == "MY"
    assert Tensor([1.5, -2.5], device="MY").cast(dtypes.float16).int().tolist() == [1, -2]
    assert Tensor([[3, 1, 2]], device="MY").sort()[0].tolist() == [[1, 2, 3]]
    assert Tensor([5, 6, 7], device="MY")[Tensor([2, 0], device="MY")].tolist() == [7, 5]
    assert Tensor([1.0, 2.0], device="MY").exp().log().numpy().round(4).tolist() == [1.0, 2.0]


def test_training_and_jit():
    w = Tensor([[0.0], [0.0]], device="MY", requires_grad=True)
    optimizer = SGD([w], lr=0.1)

    @TinyJit
    def step(x, y):
        optimizer.zero_grad()
        loss = ((x @ w - y) ** 2).mean().backward()
        optimizer.step()
        return loss.realize()

    rng = np.random.default_rng(1)
    losses = []
    for _ in range(60):
        a = rng.normal(size=(8, 2)).astype("float32")
        losses.append(
            step(
                Tensor(a, device="MY").realize(), Tensor(a @ [[1.0], [-2.0]], device="MY", dtype="float32").realize()
            ).item()
        )
    assert losses[-1] < 1e-3 < losses[0]


@pytest.mark.parametrize("there, back", [("MY", "CPU"), ("CPU", "MY")])
def test_copies_between_devices_in_a_jitted_function(there, back):
    @TinyJit
    def step(x):
        return ((x * 2).to(back) + 1).realize()

    for i in range(4):
        with Context(CHECK=i % 2):
            x = Tensor([float(i), 2.0], device=there).contiguous().realize()
            y = step(x)
        assert y.device == back and y.tolist() == [2 * i + 1, 5.0]


def test_memory_is_given_back():
    before = MyAllocator.live
    x = (Tensor([1, 2, 3], device="MY") + 1).realize()
    assert MyAllocator.live > before and x.tolist() == [2, 3, 4]
    del x
    assert MyAllocator.live == before


@pytest.mark.parametrize("name", ["CPU", "PYTHON", "MY"])
def test_every_device_fulfils_the_contract(name):
    device = Device[name]
    x = Tensor([1.0, 2.0], device=name)
    programs = device.programs([x.sum().schedule()[0].ast])
    assert isinstance(device, Backend)
    parts = {Backend: device, DeviceMemory: device.memory, DeviceProgram: programs[0],
             DevicePlan: device.plan(programs, [(0, 1)])}
    missing = [f"{kind.__name__}.{part}" for kind, made in parts.items()
               for part in {*vars(kind), *getattr(kind, "__annotations__", ())}
               if not part.startswith("_") and not hasattr(made, part)]
    assert not missing


# -- older, shorter signatures -----------------------------------------------------------------------------------
class SizeOnly(MyAllocator):
    def _alloc(self, size): return super()._alloc(size)
    def _free(self, buf): super()._free(buf)


class WithOptions(MyAllocator):
    def _alloc(self, size, options): return super()._alloc(size, options)
    def _free(self, buf, options): super()._free(buf, options)


class WithoutWait(MyRunner):
    def __call__(self, *bufs, global_size, local_size):
        assert (global_size, local_size) == ((1, 1, 1), (1, 1, 1))
        super().__call__(*bufs, global_size=global_size, local_size=local_size)


class AnyKeywords(MyRunner):
    def __call__(self, *bufs, **keywords):
        assert set(keywords) == {"global_size", "local_size", "wait"}
        super().__call__(*bufs, **keywords)


class Underscored(Allocator):
    """As in tinygrad from 0.9.2 on."""
    def __init__(self, dev):
        super().__init__(dev)

    def _alloc(self, size, options): return MyAllocator._alloc(self, size)
    def _free(self, opaque, options): MyAllocator._free(self, opaque)
    def _copyin(self, dest, src): MyAllocator.copyin(self, dest, src)
    def _copyout(self, dest, src): MyAllocator.copyout(self, dest, src)


@pytest.mark.parametrize("allocator", [MyAllocator, SizeOnly, WithOptions, lambda: Underscored("OLD")])
@pytest.mark.parametrize("runner", [MyRunner, WithoutWait, AnyKeywords, lambda name, lib: WithoutWait(name, lib)])
def test_older_shorter_signatures(allocator, runner):
    Device.register("OLD", lambda: Compiled("OLD", allocator(), CStyleLanguage(), MyCompiler(), runner))
    try:
        gc.collect()                                     # what earlier tests left
        before = MyAllocator.live
        x = Tensor([1, 2, 3], device="OLD") + Tensor([4, 5, 6], device="OLD")
        assert x.tolist() == [5, 7, 9] and (x[1:] * 2).tolist() == [14, 18]
        del x
        assert MyAllocator.live <= before, "_free was called for each _alloc"
    finally:
        Device.unregister("OLD")


class NoSize(MyAllocator):
    def _alloc(self): ...


class ThreeArguments(MyAllocator):
    def _free(self, buf, size, options): ...


class OneArgument(MyAllocator):
    def copyin(self, dest): ...


class UnderscoredOneArgument(MyAllocator):
    copyin = Allocator.copyin

    def _copyin(self, dest): ...


class NoAllocator:
    """Not an allocator at all."""


class FixedArguments(MyRunner):
    def __call__(self, out, a, b): ...


class NeedsMore(MyRunner):
    def __call__(self, *bufs, global_size, local_size, vals): ...


class OnlyName(MyRunner):
    def __init__(self, name): ...


@pytest.mark.parametrize("allocator, runner, given, expected", [
    (NoSize, MyRunner, "NoSize._alloc(self)", "_alloc(self, size) or _alloc(self, size, options=None)"),
    (ThreeArguments, MyRunner, "ThreeArguments._free(self, buf, size, options)",
     "_free(self, handle) or _free(self, handle, options=None)"),
    (OneArgument, MyRunner, "OneArgument.copyin(self, dest)", "copyin(self, dest, src)"),
    (UnderscoredOneArgument, MyRunner, "UnderscoredOneArgument._copyin(self, dest)", "_copyin(self, dest, src)"),
    (NoAllocator, MyRunner, "NoAllocator without _alloc", "_alloc(self, size) or _alloc(self, size, options=None)"),
    (MyAllocator, FixedArguments, "FixedArguments.__call__(self, out, a, b)", ""),
    (MyAllocator, NeedsMore, "NeedsMore.__call__(self, *bufs, global_size, local_size, vals)", ""),
    (MyAllocator, OnlyName, "OnlyName.__init__(self, name)", "__init__(self, name, lib)"),
])
def test_a_wrong_signature_is_shown_with_the_right_one(allocator, runner, given, expected):
    expected = expected or "__call__(self, *bufs, global_size, local_size, wait=False) or " \
                           "__call__(self, *bufs, global_size, local_size)"
    with pytest.raises(DeviceError) as error:
        Compiled("BAD", allocator(), CStyleLanguage(), MyCompiler(), runner)
    assert isinstance(error.value, TypeError)
    assert str(error.value).partition("\n  at: ")[0] == f"""\
a part of a device has a method with the wrong parameters
  given:    {given}
  expected: {expected}
  fix:      write def {expected.partition(" or ")[0]}"""


def test_check_checks_a_device_of_ones_own():
    class Wrong(MyRunner):
        def __call__(self, *bufs, global_size, local_size, wait=False):
            super().__call__(*bufs, global_size=global_size, local_size=local_size)
            bufs[0].bytes[0] ^= 1

    Device._devices["WRONG"] = lambda: Compiled("WRONG", MyAllocator(), CStyleLanguage(), MyCompiler(), Wrong)
    try:
        with Context(CHECK=1), pytest.raises(Bug, match="so render, the compiler or the launch is wrong"):
            (Tensor([1, 2, 3], device="WRONG") + 1).realize()
    finally:
        Device._devices.pop("WRONG")


def test_source_is_plain_c():
    source = Device["MY"].source((Tensor([1, 2, 3], device="MY") + 1).schedule()[0].ast)
    assert "int *data0" in source and "for (" in source


def test_a_device_in_few_lines():
    text = Path(__file__).read_text()
    start, end = text.index("class Memory"), text.index("@pytest.fixture")
    assert len(text[start:end].splitlines()) < 150


def test_a_name_given_anew_means_the_new_device():
    x = Tensor([1, 2, 3], device="MY") + 1
    assert x.tolist() == [2, 3, 4]
    kept = Tensor([7, 8], device="MY")
    Device._devices["MY"] = PythonDevice
    assert (Tensor([1, 2, 3], device="MY") + 1).tolist() == [2, 3, 4], "the schedule found again was the old device's"
    del kept, x          # memory goes back to the device it came from
    gc.collect()
    assert isinstance(Device["MY"], PythonDevice)
