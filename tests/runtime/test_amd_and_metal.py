"""The devices AMD, METAL and CUDA, without their hardware: whole programs through their drivers' functions, which
fake_drivers.py has; what they say where something is missing; and HIP's own compiler, where ROCm's is installed."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import fake_drivers
import numpy as np
import pytest
from fake_drivers import FakeDriver, FakeMetal, compiled
from shim_device import ShimDevice, compiler, needs_cxx

from glassgrad import (Context, Device, DeviceError, DTypeError, InputError, MemoryLimitError, Tensor, TinyJit,
                       Variable, c_kernel)
from glassgrad.base.errors import Bug
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import build
from glassgrad.compiler.render.gpu.dialects import CUDA, HIP
from glassgrad.runtime.gpu import cuda, hip, metal
from glassgrad.runtime.gpu.gpu_device import Rejected

pytestmark = fake_drivers.take_the_place


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value).partition("\n  at: ")[0]


def open_hip(**failures: int) -> hip.HipDevice:
    return hip.HipDevice("AMD", FakeDriver(hip.HipDevice.names, HIP, **failures))  # type: ignore[arg-type]


def open_cuda() -> cuda.CudaDevice:
    return cuda.CudaDevice("CUDA", FakeDriver(cuda.CudaDevice.names, CUDA))  # type: ignore[arg-type]


def open_metal(**facts: int) -> metal.MetalDevice:
    fake = FakeMetal(**facts)
    return metal.MetalDevice("METAL", fake, fake.device)


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ in the place of NVIDIA's and AMD's compilers."""
    shims = {dialect.name: ShimDevice(f"{dialect.name}_shim", dialect) for dialect in (HIP, CUDA)} if compiler() else {}
    monkeypatch.setattr(hip, "compile_hip", lambda source, _: compiled(shims[HIP.name], source))
    monkeypatch.setattr(cuda, "compile_cuda", lambda source, _: compiled(shims[CUDA.name], source))
    monkeypatch.setattr(cuda, "nvrtc_version", lambda: "nvrtc 0.0")
    monkeypatch.setattr(hip, "hiprtc", lambda: SimpleNamespace(version=lambda: "hiprtc 0.0"))


@pytest.fixture(params=["AMD", "METAL", "CUDA"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An opened device, under its own name."""
    opened = {"AMD": open_hip, "METAL": open_metal, "CUDA": open_cuda}[request.param]()
    monkeypatch.setitem(Device._opened, request.param, opened)
    return opened


# -- whole programs -------------------------------------------------------------------------------------------------
@needs_cxx
def test_a_program_on_the_driver(device: Any) -> None:
    x = Tensor(np.arange(12, dtype="float32").reshape(4, 3), device=device.name).realize()
    assert (x[1:3] + 1).tolist() == [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], "memory inside of a block"
    assert [(x.sum() * (0.5 + step)).item() for step in range(3)] == [33.0, 99.0, 165.0], "numbers are arguments"
    n = Variable("n", 1, 4)
    assert [x[:n.bind(k)].sum().item() for k in (1, 3)] == [3.0, 36.0]
    x[1] = 0
    assert x.sum(1).tolist() == [3.0, 0.0, 21.0, 30.0] and x.to("CPU").device == "CPU"
    rows = np.random.default_rng(0).uniform(-1, 1, (3, 700)).astype("float32")
    found = Tensor(rows, device=device.name).softmax(1).numpy()
    np.testing.assert_allclose(found, Tensor(rows).softmax(1).numpy(), rtol=1e-6, atol=1e-7), "memory of a group"


@needs_cxx
def test_a_jitted_step_and_its_times(device: Any) -> None:
    w = Tensor.ones(4, device=device.name).contiguous().realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x * w).sum().realize()
    assert [step(Tensor([1.0, 2, 3, k], device=device.name).realize()).item() for k in range(4)] == [6, 7, 8, 9]
    program = device.programs([(w + 1).schedule()[-1].ast])[0]
    plan = device.plan([program], [(0, 1)])
    blocks = [device.memory.allocate(16) for _ in range(2)]
    plan.bind([b.address for b in blocks])
    assert plan.run_one(0) == (500_000_000 if device.name == "METAL" else 2_000_000), "as the driver says"


@needs_cxx
def test_a_kernel_of_your_own(device: Any) -> None:
    source = """extern "C" __global__ void twice(float *out, const float *x, long long n) {
        long long i = blockIdx.x * 256ll + threadIdx.x;
        if (i < n) out[i] = 2 * x[i];
    }"""
    if device.name == "METAL":
        source = """#include <metal_stdlib>
using namespace metal;
kernel void twice(device float *out [[buffer(0)]], const device float *x [[buffer(1)]],
                  constant long &n [[buffer(2)]], uint t [[thread_position_in_threadgroup]],
                  uint group [[threadgroup_position_in_grid]]) {
  long i = group * 256 + t;
  if (i < n) out[i] = 2 * x[i];
}"""
    twice = c_kernel(source, "twice", shape=(300,), dtype="float32")
    x = Tensor(np.arange(300, dtype="float32"), device=device.name)
    assert twice(x).sum().item() == 300 * 299
    with pytest.raises(InputError, match="the source of f does not compile(.|\n)*expected: (HIP|Metal|CUDA), with"):
        c_kernel("kernel void f(float *out, const float *x, long long n {", "f")(x)


@needs_cxx
def test_memory_is_kept_and_given_back(device: Any) -> None:
    memory = device.memory
    blocks = [memory.allocate(n) for n in (1 << 20, 100)]
    addresses = [block.address for block in blocks]
    for block in blocks:
        memory.release(block)
    blocks = [memory.allocate(n) for n in (1 << 20, 100)]
    assert [block.address for block in blocks] == addresses, "the same again"
    for block in blocks:
        memory.release(block)
    memory.empty_cache()
    if device.name == "METAL":
        assert device.objc.held("buffer") == 0
    else:
        assert device.library.called.count(device.names.free) == 2, "the large block, and the slab of the small one"


# -- Metal ----------------------------------------------------------------------------------------------------------
@needs_cxx
def test_metal_holds_no_more_than_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_metal()
    monkeypatch.setitem(Device._opened, "METAL", device)
    x = Tensor.ones(8, device="METAL").contiguous().realize()
    for _ in range(60):
        x = (x + 1).contiguous().realize()
    assert 0 < device.objc.held("command buffer") <= 48, "as many as a queue takes"
    assert x.tolist() == [61.0] * 8
    fake = device.objc
    assert all(fake.held(kind) == 0 for kind in ("command buffer", "encoder", "string", "error", "function"))


@needs_cxx
def test_what_metal_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Device._opened, "METAL", open_metal())
    with pytest.raises(DTypeError) as error:
        (Tensor([1.0, 2.0], dtype="float64", device="METAL") + 1).numpy()
    assert message(error) == """\
METAL has no float64
  given:    a kernel that computes in float64
  expected: float32 or smaller floats, integers, bool
  fix:      convert before you move it: x.to("CPU").float().to("METAL"), or Tensor(values, dtype="float32")"""
    many = [Tensor([float(i)], device="METAL").realize() for i in range(31)]
    assert Tensor.stack(*many).numpy().ravel().tolist() == list(range(31)), "by two kernels"
    [too_many] = Tensor.stack(*[x.to("CPU").realize() for x in many]).schedule()
    with pytest.raises(DeviceError) as errors:
        Device["METAL"].programs([too_many.ast])
    assert message(errors) == """\
METAL runs no kernel of so many tensors
  given:    32 buffers
  expected: at most 31
  fix:      realize some of the tensors before: x.realize()"""


@needs_cxx
def test_metal_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryLimitError, match="the GPU has no memory left\n  given:    a request of 3.0 GiB"):
        open_metal(memory_limit=1 << 20).memory.allocate(3 << 30)
    monkeypatch.setitem(Device._opened, "METAL", open_metal(status=5))
    with pytest.raises(Bug, match="a kernel on METAL failed: the GPU was lost"):
        (Tensor([1.0], device="METAL") + 1).numpy()
    monkeypatch.setitem(Device._opened, "METAL", open_metal(width=16))
    with pytest.raises(DeviceError) as error:
        (Tensor([1.0, 2.0], device="METAL") + 1).numpy()
    assert message(error) == """\
METAL runs 16 threads in step
  given:    Apple M0, compiled by macOS Version 14.0
  expected: a GPU that runs 32, as Apple's do
  fix:      use another device: DEV=CPU"""
    with pytest.raises(Rejected, match="expected"):
        open_metal().compile_source("#include <metal_stdlib>\nkernel void f( {")


def test_metal_elsewhere_than_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal.sys, "platform", "linux")
    with pytest.raises(DeviceError) as error:
        metal.open_metal()
    assert message(error) == """\
Metal is a part of macOS
  given:    this machine runs linux
  expected: a Mac with an Apple GPU
  fix:      use another device: DEV=CPU"""
    monkeypatch.setattr(metal.sys, "platform", "darwin")

    def nothing(*_: Any) -> Any:
        raise OSError("no such library")
    monkeypatch.setattr(metal.ctypes, "CDLL", nothing)
    with pytest.raises(DeviceError, match="this Mac has no Metal\n  given:    no such library"):
        metal.open_metal()
    with pytest.raises(DeviceError, match="macOS offers no GPU"):
        metal.MetalDevice("METAL", None, None)  # type: ignore[arg-type]


# -- AMD ------------------------------------------------------------------------------------------------------------
@needs_cxx
def test_what_hip_says_of_its_gpu() -> None:
    device = open_hip()
    assert device.description == "A GPU, gfx90a:sramecc+:xnack-, compiled by hiprtc 0.0"
    assert Device.records["AMD"].names == ("AMD", "HIP") and Device.canonicalize("hip") == "AMD"


@needs_cxx
@pytest.mark.parametrize("failures, given", [({"hipInit": 100}, "hip error 100"), ({}, "none")])
def test_hip_without_a_gpu(failures: dict[str, int], given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDriver, "do_hipGetDeviceCount", lambda *_: 0)
    with pytest.raises(DeviceError) as error:
        open_hip(**failures)
    assert message(error) == f"""\
HIP finds no AMD GPU
  given:    {given}
  expected: a GPU that ROCm supports
  fix:      look at what rocminfo says, and at HIP_VISIBLE_DEVICES; or use DEV=CPU"""


@needs_cxx
def test_hip_that_names_no_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_drivers, "ARCHITECTURE", b"unknown")
    with pytest.raises(DeviceError, match="HIP does not say what its GPU is"):
        open_hip()


@needs_cxx
def test_a_hip_runtime_that_fails() -> None:
    with pytest.raises(MemoryLimitError, match="the GPU has no memory left"):
        open_hip(hipMalloc=2).memory.allocate(1 << 20)
    device = open_hip()
    device.library.failures["hipDeviceSynchronize"] = 700
    with pytest.raises(Bug, match="hipDeviceSynchronize: hip error 700"):
        device.synchronize()


@needs_cxx
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_gpu_does_not_work_in_a_forked_process() -> None:
    device = open_hip()
    child = os.fork()
    if child == 0:
        device.library.failures["hipDeviceSynchronize"] = 3            # what drivers say there: not initialized
        try:
            device.synchronize()
        except DeviceError as error:
            os._exit(7 if error.what.startswith("AMD does not work in a forked process") else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    device.synchronize()


def test_a_kernel_that_fails_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_hip()
    monkeypatch.setitem(Device._opened, "AMD", device)
    x = Tensor([1.0, 2.0], device="AMD").realize()
    device.synchronize()
    device.library.failures["hipDeviceSynchronize"] = 700
    y = (x + 1).realize()
    (y.sum() * 3).realize()
    with pytest.raises(DeviceError) as caught:
        device.synchronize()
    first = message(caught)
    assert first.startswith("a kernel failed on the GPU: hip error 700\n"
                            "  given:    one of those started since the GPU last answered:")
    assert first.count("test_amd_and_metal.py:") == 2 and "DEBUG=2 waits for each kernel" in first
    device.started.clear()
    device.library.failures["hipEventSynchronize"] = 716
    with Context(DEBUG=2), pytest.raises(DeviceError, match=r"given: +the kernel \S+  \S+test_amd_and_metal.py:\d+\n"):
        (x * 2).realize()


COMPILE_HIP, HIPRTC = hip.compile_hip, hip.hiprtc        # ROCm's own


def test_without_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip, "_loaded", lambda names, function: None)
    monkeypatch.setattr(hip, "hiprtc", HIPRTC)
    with pytest.raises(DeviceError) as error:
        hip.open_hip()
    assert message(error) == """\
there is no HIP runtime here
  given:    no library libamdhip64
  expected: an AMD GPU with ROCm
  fix:      install ROCm (Debian: apt install libamdhip64-dev), or use another device: DEV=CPU"""
    HIPRTC.cache_clear()
    with pytest.raises(DeviceError) as error:
        COMPILE_HIP("", "gfx90a")
    assert message(error) == """\
HIP's compiler is not here
  given:    no library libhiprtc
  expected: the one of ROCm
  fix:      install ROCm's hiprtc (Debian: apt install libamdhip64-dev)"""


# -- ROCm's own compiler --------------------------------------------------------------------------------------------
def rocm_is_here() -> bool:
    try:
        return bool(hip.hiprtc().version())
    except DeviceError:
        return False


needs_hiprtc = pytest.mark.skipif(not rocm_is_here(), reason="ROCm's compiler: apt install hipcc libamdhip64-dev")


@needs_hiprtc
@pytest.mark.parametrize("architecture", ["gfx90a", "gfx1030"])
def test_hiprtc_takes_the_source(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel with all that is HIP's own: shuffles, memory of a group, barriers, float16, wide accesses."""
    monkeypatch.setattr(hip, "hiprtc", HIPRTC)
    x = Tensor(np.ones((5, 1000), "float32"))
    [item] = ((x.half() * 3).softmax(1)).schedule()
    assert COMPILE_HIP(build(item.ast, GPU, HIP.name).source, architecture)[:4] == b"\x7fELF"
    with pytest.raises(Rejected, match="expected"):
        COMPILE_HIP("extern void f( {", architecture)


def test_structures_are_as_metal_declares_them() -> None:
    assert ctypes.sizeof(metal.Size) == 24
