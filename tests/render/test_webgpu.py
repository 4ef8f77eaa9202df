"""The device WEBGPU: what runs through `wgpu`, within which limits, and what may be missing or go wrong.

It needs the package `wgpu` and a driver for Vulkan, Metal or Direct3D 12; Debian's `mesa-vulkan-drivers` has one that
runs on the processor. The op suite runs there too: `DEVICE=WEBGPU ./dev test tests/tensor tests/tensor_api`.
"""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from wgsl_reference import held, message

from glassgrad import Context, Device, DeviceError, DTypeError, MemoryLimitError, Tensor, Variable
from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import index
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LANE, For, Kernel, Phase, Store, counter, load, local
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.runtime.gpu import webgpu
from glassgrad.runtime.gpu.gpu_device import KernelCall, Rejected
from glassgrad.runtime.gpu.handle_memory import MemoryByHandle

needs_webgpu = pytest.mark.skipif(not Device.is_available("WEBGPU"), reason=f"WEBGPU: {webgpu.INSTALL}")
Make = Callable[..., Tensor]


# -- runs -----------------------------------------------------------------------------------------------------------
RNG = np.random.default_rng(7)
FLOATS = RNG.uniform(-2, 2, (37, 65)).astype("float32")
KERNELS: dict[str, Make] = {
    "elements": lambda x: (x * 2 + 1).relu().exp() - x.sin(),
    "rows": lambda x: x.softmax(),
    "everything": lambda x: x.sum() * x.max() - x.min(),
    "a product": lambda x: x @ x.T,
    "a long product": lambda x: x.reshape(1, -1) @ x.reshape(-1, 1),
    "views": lambda x: x.T[3:, ::2].flip(0).pad(((1, 2), (0, 3))),
    "a window": lambda x: x.reshape(1, 1, 37, 65).avg_pool2d(3),
    "indices": lambda x: x.argmax(1) + x.argmin(1),
    "sorted": lambda x: x.sort(1)[0],
    "sums of parts": lambda x: x.cumsum(1),
    "look up": lambda x: x[Tensor([3, 1, 36, 1], device=x.device)],
    "comparisons": lambda x: (x > 0.5) & (x < 1.5) | x.isnan(),
    "half": lambda x: (x.half() * 3).float() + x.bfloat16().float(),
}


@needs_webgpu
@pytest.mark.parametrize("name", KERNELS)
def test_webgpu_gives_what_the_interpreter_gives(name: str) -> None:
    there, here = (KERNELS[name](Tensor(FLOATS, device=d)).numpy() for d in ("WEBGPU", "PYTHON"))
    assert there.dtype == here.dtype
    np.testing.assert_allclose(there, here, rtol=2e-5, atol=2e-5)


@needs_webgpu
def test_negative_constants_and_loops_over_nothing() -> None:
    """u32(-1) is no constant of WGSL; an empty axis leaves no lane idle: both were found by the op suite."""
    assert Tensor.full((4,), -1, dtype="int32", device="WEBGPU").contiguous().tolist() == [-1] * 4
    assert held([-3, 1], "int8", "WEBGPU").cast("uint16").tolist() == [65533, 1]
    assert held(np.zeros((3, 0)), device="WEBGPU").topk(0)[1].shape == (3, 0)
    assert held([[2.0, 1.0], [0.0, 3.0]], device="WEBGPU")[held(np.zeros((2, 0)), "int32", "WEBGPU")].shape == (2, 0, 2)


@needs_webgpu
@pytest.mark.parametrize("noopt", [0, 1])
def test_padding_around_nothing(noopt: int) -> None:
    """An empty tensor that no kernel computes is bound nevertheless: found by random graphs."""
    with Context(NOOPT=noopt):
        x = held(FLOATS, device="WEBGPU")
        padded = (x + 1).pad(((0, 0), (0, 1)))[:2, 65:66].contiguous()
        nothing = (x * 2)[:, :0].contiguous().pad(((0, 0), (1, 2)))
        assert padded.tolist() == [[0.0], [0.0]] and nothing.numpy().tolist() == [[0.0] * 3] * 37


LONG = np.array([0, 1, -1, 5, -7, 2**31, -2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, -2**63, 1 << 40, -(3 << 33)],
                dtype="int64")


@needs_webgpu
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_arithmetic_of_64_bits(dtype: str) -> None:
    x, y = (g.ravel() for g in np.meshgrid(LONG.astype(dtype), LONG.astype(dtype)))
    a, b = Tensor(x, device="WEBGPU"), Tensor(y, device="WEBGPU")
    with np.errstate(all="ignore"):
        pairs = {"+": (a + b, x + y), "-": (a - b, x - y), "*": (a * b, x * y), "<": (a < b, x < y),
                 "==": (a == b, x == y), "max": (a.maximum(b), np.maximum(x, y)), "&": (a & b, x & y),
                 "^": (a ^ b, x ^ y), "//": (a // b, np.where(y == 0, 0, x // np.where(y == 0, 1, y))),
                 "%": (a % b, np.where(y == 0, 0, x % np.where(y == 0, 1, y))),
                 "float": (a.float(), x.astype("float32")), "<<": (a << 33, x << np.array(33, dtype)),
                 ">>": (a >> 3, x >> np.array(3, dtype)), "int": (a.cast("int32"), x.astype("int32"))}
    for name, (ours, theirs) in pairs.items():
        np.testing.assert_array_equal(ours.numpy(), theirs, err_msg=f"{name} of {dtype}")


@needs_webgpu
def test_floats_to_integers_of_64_bits_and_back() -> None:
    x = np.array([0.0, -0.75, 1.5, -1e10, 3e18, 9.2e18, -9.3e18, 1e30, math.nan, -math.inf], "float32")
    there, here = (Tensor(x, device=d).cast("int64").tolist() for d in ("WEBGPU", "PYTHON"))
    assert there == here
    assert Tensor(np.array([1.8e19, 2.5], "float32"), device="WEBGPU").cast("uint64").tolist() == [
        int(np.float32(1.8e19)), 2]


@needs_webgpu
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "bool"])
def test_small_integers_share_words_without_harm(dtype: str) -> None:
    values = RNG.integers(-300, 300, 1001).astype(dtype)
    x = Tensor(values, device="WEBGPU")
    y = x ^ True if dtype == "bool" else x * 3 + 5
    np.testing.assert_array_equal(y.numpy(), values ^ True if dtype == "bool" else (values * 3 + 5).astype(dtype))
    x = x.contiguous().realize()
    x[5:11] = Tensor(values[:6], device="WEBGPU")
    values[5:11] = values[:6].copy()
    np.testing.assert_array_equal(x.numpy(), values)
    assert x[3:6].tolist() == values[3:6].tolist() and x[-1:].tolist() == values[-1:].tolist()


@needs_webgpu
def test_a_small_integer_is_read_before_its_bits_are_cleared() -> None:
    x, j = Tensor(np.array([7, -4, -7, -6, 2, 6], "int16")), Tensor([2, 3, 0, 5, 4, 1])
    there, here = (x.to(d).scatter_add(0, j.to(d), x.to(d)).tolist() for d in ("WEBGPU", "PYTHON"))
    assert there == here == [0, 2, 0, -10, 4, 0]


@needs_webgpu
def test_nan_infinity_and_negative_zero() -> None:
    x = Tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40], device="WEBGPU")
    assert x.isnan().tolist() == [True, False, False, False, False, False]
    assert (x != x).tolist() == [True, False, False, False, False, False]
    assert x.maximum(1.0).isnan().tolist()[0] and x.minimum(1.0).isnan().tolist()[0]
    np.testing.assert_array_equal((x - x).numpy()[:4], [math.nan, math.nan, math.nan, 0.0])
    np.testing.assert_array_equal((x * 0).numpy()[:3], [math.nan] * 3)
    y = x + x
    np.testing.assert_array_equal((y - y).numpy()[:3], [math.nan] * 3, "hidden from a driver, and one value")
    Device["WEBGPU"].synchronize()
    np.testing.assert_array_equal((1 / x).numpy()[1:5], [0.0, -0.0, -math.inf, math.inf])
    assert math.copysign(1, (1 / x).tolist()[2]) == -1 and math.copysign(1, (-x).tolist()[4]) == -1


@needs_webgpu
def test_slices_numbers_lengths_and_parts() -> None:
    x = Tensor(np.arange(12, dtype="float32").reshape(4, 3), device="WEBGPU").realize()
    assert (x[1:3] + 1).tolist() == [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    assert [(x.sum() * (0.5 + step)).item() for step in range(3)] == [33.0, 99.0, 165.0], "numbers are arguments"
    n = Variable("n", 1, 4)
    assert [x[:n.bind(k)].sum().item() for k in (1, 3)] == [3.0, 36.0]
    x[1] = 0
    assert x.sum(1).tolist() == [3.0, 0.0, 21.0, 30.0] and x.to("CPU").device == "CPU"


@needs_webgpu
@pytest.mark.parametrize("count", [1, 12])
def test_a_length_that_changes_binds_no_more_than_its_buffer_has(count: int, rng: np.random.Generator) -> None:
    """Twelve arguments are more than are bound one by one where an adapter has few bindings."""
    for length in (5, 31, 257, 300, 65_537, 1000):
        values = [rng.standard_normal(length, np.float32) for _ in range(count)]
        total, expected = Tensor(values[0], device="WEBGPU") * 1.25, values[0] * 1.25
        for value in values[1:]:
            total, expected = total * 0.5 + Tensor(value, device="WEBGPU"), expected * 0.5 + value
        np.testing.assert_allclose(total.numpy(), expected, rtol=1e-5, atol=1e-5)


@needs_webgpu
def test_a_long_loop_runs_to_its_end() -> None:
    assert Tensor.arange(100_000, device="WEBGPU").cumsum()[-1].item() == 4999950000


@needs_webgpu
def test_a_network_is_trained() -> None:
    def losses(device: str) -> list[float]:
        rng = np.random.default_rng(3)
        x, y = (Tensor(rng.uniform(-1, 1, s).astype("float32"), device=device) for s in ((32, 8), (32, 1)))
        w, v = (Tensor(rng.uniform(-1, 1, s).astype("float32"), device=device, requires_grad=True).realize()
                for s in ((8, 16), (16, 1)))
        found = []
        for _ in range(4):
            loss = (((x @ w).relu() @ v - y) ** 2).mean()
            for p, g in zip((w, v), loss.gradient(w, v)):
                p.assign(p.detach() - 0.1 * g).realize()
            found.append(loss.item())
        return found
    np.testing.assert_allclose(losses("WEBGPU"), losses("CPU"), rtol=1e-5)


# -- limits -----------------------------------------------------------------------------------------------------------
LEAST = {"max-storage-buffers-per-shader-stage": 8, "max-compute-workgroup-storage-size": 16384,
         "max-compute-invocations-per-workgroup": 256, "max-compute-workgroup-size-x": 256,
         "min-storage-buffer-offset-alignment": 256, "max-storage-buffer-binding-size": 1 << 20}


@pytest.fixture
def least() -> Iterator[webgpu.WebgpuDevice]:
    """A device named LEAST with the limits that every WebGPU has, and bindings of 1 MiB."""
    usual = Device["WEBGPU"]
    device = webgpu.WebgpuDevice("LEAST", usual.wgpu, usual.wgpu.gpu.request_adapter_sync(), LEAST)
    Device.register("LEAST", lambda name: device)
    yield device
    Device.unregister("LEAST")


@needs_webgpu
def test_the_least_limits_are_enough(least: webgpu.WebgpuDevice) -> None:
    assert least.target.vector_bytes == 256 and least.target.fusion.buffers == 8 and least.target.group_bytes < 16384
    for name in ("everything", "a product", "rows", "comparisons"):
        there, here = (KERNELS[name](Tensor(FLOATS, device=d)).numpy() for d in ("LEAST", "CPU"))
        np.testing.assert_allclose(there, here, rtol=2e-5, atol=2e-5)
    long = RNG.uniform(-1, 1, (3, 9000)).astype("float32")
    there, here = (Tensor(long, device=d).softmax().numpy() for d in ("LEAST", "CPU"))
    np.testing.assert_allclose(there, here, rtol=1e-4)


@needs_webgpu
def test_a_kernel_with_twenty_arguments(least: webgpu.WebgpuDevice) -> None:
    """The scheduler cuts it into several that are given eight buffers each."""
    arrays = [RNG.integers(0, 100, 50).astype(d) for d in ("float32", "int64", "uint8", "int16", "int32") * 4]
    total: Any = 0
    for a in arrays:
        total = total + held(a, a.dtype.name, "LEAST").float()
    np.testing.assert_array_equal(total.numpy(), sum(a.astype("float32") for a in arrays))
    x = [held(np.arange(6.0) + i, device="LEAST") for i in range(6)]
    results = [a * 2 + x[0] for a in x]
    Tensor.realize(*results)
    assert [r.tolist()[5] for r in results] == [2 * (5.0 + i) + 5.0 for i in range(6)]


@needs_webgpu
def test_what_does_not_fit_a_binding_or_a_buffer_is_refused(least: webgpu.WebgpuDevice) -> None:
    x = Tensor.zeros(1 << 19, device="LEAST").contiguous()
    with pytest.raises(MemoryLimitError) as error:
        x.realize()
    assert message(error) == """\
LEAST has no block as large as this tensor
  given:    a request of 2.0 MiB
  expected: at most 1.0 MiB, which the driver allows
  fix:      use smaller tensors or batches"""
    with pytest.raises(MemoryLimitError, match="LEAST has no block as large as this tensor"):
        least.memory.allocate(1 << 40)


def run_kernel(device: webgpu.WebgpuDevice, kernel: Kernel, *arrays: np.ndarray) -> list[np.ndarray]:
    """A hand-written kernel on arrays: what they hold afterwards."""
    launch = gpu_launch(kernel, device.target.group_bytes)
    names = [phase[0] for phase in launch.phases]
    functions = device.load(device.compile_source(make_source(kernel, device.target, "wgsl")), names)
    sizes = (*[a.nbytes for a in arrays], *launch.info.shared)
    blocks = [device.memory.allocate(size) for size in sizes]
    for block, array in zip(blocks, arrays):
        device.copy_in(block.address, array.tobytes())
    for function, (_, groups, threads, group_bytes) in zip(functions, launch.phases):
        started = device.prepare(KernelCall(function, groups, threads, group_bytes, [False] * len(sizes)))
        started.addresses[:] = [block.address for block in blocks]
        started.start()
    return [np.frombuffer(device.copy_out(b.address, a.nbytes), a.dtype) for b, a in zip(blocks, arrays)]


def params(count: int) -> list[UOp]:
    return [UOp(o.PARAM, dtypes.float32, (), Param(slot, (count,))) for slot in range(2)]


@needs_webgpu
def test_long_rows_lie_in_the_devices_memory() -> None:
    """What a group cannot share it is given a piece of, and as many groups run as there are pieces."""
    device, (out, x) = Device["WEBGPU"], params(3000)
    row = local("row", dtypes.float32, device.target.group_bytes // 4 + 1)
    task, lane = counter("t", 3000), counter("l", 64)
    body: list[Any] = [For(lane, LANE, [Store(row, lane, load(x, task))]), Store(out, task, load(row, index(3)))]
    values = np.arange(3000, dtype="float32")
    result = run_kernel(device, Kernel("k", [out, x], [Phase([For(task, "task", body)])], (0,)), values * 0, values)
    np.testing.assert_array_equal(result[0], values)


@needs_webgpu
def test_more_groups_than_an_axis_has() -> None:
    out, x = params(70_000)
    task = counter("t", 70_000)
    body: list[Any] = [For(task, "task", [Store(out, task, load(x, task))])]
    values = np.arange(70_000, dtype="float32")
    result = run_kernel(Device["WEBGPU"], Kernel("k", [out, x], [Phase(body)], (0,)), values * 0, values)
    np.testing.assert_array_equal(result[0], values)


@needs_webgpu
@pytest.mark.parametrize("shape, axis", [((2, 7, 16, 17), 1), ((3, 5, 300), 1), ((8, 8, 16, 3), 0)], ids=str)
def test_a_vector_and_its_rest_keep_their_rows_apart(shape: tuple[int, ...], axis: int) -> None:
    """Found by random graphs: both memories had one name, and the array was the smaller one's."""
    x = np.random.default_rng(3).uniform(-2, 2, shape).astype(np.float32)
    powers = np.exp(x - x.max(axis, keepdims=True))
    got = Tensor(x, device="WEBGPU").softmax(axis).numpy()
    np.testing.assert_allclose(got, powers / powers.sum(axis, keepdims=True), rtol=1e-5)


@needs_webgpu
@pytest.mark.parametrize("rows", [12, 70])
def test_values_that_are_multiplied_into_places(rows: int) -> None:
    """Found by calling every method, where 64-bit divisions took more rounds of a loop than the driver runs. The steps
    of 70 rows were one kernel of 220 KB, which did not compile within five minutes."""
    random = np.random.default_rng(5)
    x, y = (random.uniform(0.9, 1.1, (rows, 4)).astype(np.float32) for _ in range(2))
    places = random.integers(0, 3, (rows, 4))
    want = x.copy()
    np.multiply.at(want, (places, np.arange(4)), y)
    on_gpu = [Tensor(array, device="WEBGPU") for array in (x, places, y)]
    got = on_gpu[0].scatter_reduce(0, on_gpu[1], on_gpu[2], "prod")
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4)


@needs_webgpu
def test_many_folds_are_not_too_many_rounds() -> None:
    """Found by random graphs: 3,584 times two folds of 224 threads were counted as more than a driver runs."""
    x = np.random.default_rng(4).uniform(-2, 2, (32, 7, 16)).astype(np.float32)
    powers = np.exp(x - x.max((0, 1), keepdims=True))
    y = Tensor(x, device="WEBGPU")
    e = (y - y.max((0, 1), keepdim=True)).exp()
    got = (e / e.sum((0, 1), keepdim=True)).min().item()
    np.testing.assert_allclose(got, (powers / powers.sum((0, 1), keepdims=True)).min(), rtol=1e-5)


# -- what may be missing, and what may go wrong -----------------------------------------------------------------------
@needs_webgpu
def test_an_adapter_without_64_bit_numbers() -> None:
    usual = Device["WEBGPU"]
    device = webgpu.WebgpuDevice("PLAIN", usual.wgpu, usual.wgpu.gpu.request_adapter_sync(), features=())
    Device.register("PLAIN", lambda name: device)
    try:
        for name in ("rows", "everything", "a product", "views", "indices", "look up", "half"):
            there, here = (KERNELS[name](Tensor(FLOATS, device=d)).numpy() for d in ("PLAIN", "CPU"))
            np.testing.assert_allclose(there, here, rtol=2e-5, atol=2e-5)
        with pytest.raises(DTypeError) as error:
            (Tensor(np.zeros(3, "int64"), device="PLAIN") + 1).realize()
        assert message(error) == """\
PLAIN has no int64
  given:    a kernel that computes in int64
  expected: int32 or smaller integers, floats, bool
  fix:      convert before you move it: x.to("CPU").int().to("PLAIN"), or Tensor(values, dtype="int32")"""
        with pytest.raises(DTypeError, match="PLAIN has no int64"):
            KERNELS["sorted"](Tensor(FLOATS, device="PLAIN")).realize()
        float64_is_refused("PLAIN")
    finally:
        Device.unregister("PLAIN")


def float64_is_refused(device: str) -> None:
    with pytest.raises(DTypeError) as error:
        (Tensor(np.zeros(3), device=device) + 1).realize()
    assert message(error) == """\
PLAIN has no float64
  given:    a kernel that computes in float64
  expected: float32 or smaller floats, integers, bool
  fix:      convert before you move it: x.to("CPU").float().to("PLAIN"), or Tensor(values, dtype="float32")"""
    assert f"{__file__}:" in str(error.value)
    assert Tensor(np.ones(3), device=device).tolist() == [1.0, 1.0, 1.0], "memory is memory"


@needs_webgpu
def test_what_is_not_wgsl_is_rejected_in_nagas_words(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device["WEBGPU"]
    with pytest.raises(Rejected, match="expected identifier"):
        device.compile_source("fn f( {")

    def reject(source: str) -> bytes:
        raise Rejected("in words of naga's")
    monkeypatch.setattr(device, "compile_source", reject)
    monkeypatch.setenv("CACHE", "0")
    with pytest.raises(Bug, match="WEBGPU does not take a kernel: in words of naga's") as error:
        (Tensor([1.0, 2.0, 3.5], device="WEBGPU") * 0.731).realize()
    assert re.search(rf"at: {re.escape(__file__)}:[0-9]+", str(error.value))


@needs_webgpu
def test_a_lost_device_and_full_memory(least: webgpu.WebgpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor([1.0, 2.0], device="LEAST").realize()

    def full(**_: Any) -> Any:
        raise least.wgpu.GPUOutOfMemoryError("Not enough memory left")
    with monkeypatch.context() as patched:
        patched.setattr(least.device, "create_buffer", full)
        with pytest.raises(MemoryLimitError, match="the GPU has no memory left"):
            least.memory.allocate(3 << 18)
    least.device.destroy()
    with pytest.raises(DeviceError) as error:
        (x + 1).tolist()
    assert message(error).startswith("LEAST failed to go on\n  given:    Parent device is lost\n")
    assert f"{__file__}:" in str(error.value)


@needs_webgpu
def test_threads_take_turns() -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            x = Tensor([float(number), 1.0, 2.0], device="WEBGPU").realize()
            for i in range(12):
                got = (x * 2 + Tensor([float(i)], device="WEBGPU")).tolist()
                if got != [2.0 * number + i, 2.0 + i, 4.0 + i]:
                    wrong.append((number, i, got))
        except Exception as error:  # noqa: BLE001 - whatever it is, this thread alone would not show it
            wrong.append(error)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_by_handle_keeps_what_is_used() -> None:
    class Blocks(MemoryByHandle):
        def new_handle(self, size: int) -> Any:
            return f"{size} bytes" if len(self.handles) < 4 else None
    memory = Blocks("NOWHERE")
    first, second, third = (memory.allocate(n) for n in (100, 5000, 100))
    assert len({first.address, second.address, third.address}) == 3
    assert memory.find(second.address + 4999) == (memory.find(second.address)[0], 4999)
    kept, gone = first.address, second.address
    memory.release(first)
    assert memory.allocate(100).address == kept, "kept for a request of its size"
    memory.release(second)
    fourth, fifth = memory.allocate(9000), memory.allocate(20000)
    assert memory.find(fifth.address + 1)[1] == 1 and memory.find(third.address + 7)[1] == 7, "second was let go"
    assert gone not in memory.handles and fourth.address in memory.handles
    with pytest.raises(MemoryLimitError, match="the GPU has no memory left"):
        memory.allocate(1)
    with pytest.raises(Bug, match="no memory of this device is at 0x7"):
        memory.find(7)


def test_without_wgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(DeviceError) as error:
        webgpu.open_webgpu()
    assert message(error) == """\
WebGPU needs the package wgpu
  given:    no wgpu
  expected: wgpu and a driver
  fix:      pip install wgpu, and a driver for Vulkan: Debian's mesa-vulkan-drivers has one for the processor"""


def test_without_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    def request_adapter_sync(**_: Any) -> Any:
        raise RuntimeError("Request adapter failed (2): no suitable adapter")
    wgpu = SimpleNamespace(gpu=SimpleNamespace(request_adapter_sync=request_adapter_sync))
    extras = SimpleNamespace(set_instance_extras=lambda **_: None)
    for name, module in (("wgpu", wgpu), ("wgpu.backends", extras), ("wgpu.backends.wgpu_native", extras),
                         ("wgpu.backends.wgpu_native.extras", extras)):
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(DeviceError) as error:
        webgpu.open_webgpu()
    assert message(error) == """\
WebGPU has no adapter
  given:    Request adapter failed (2): no suitable adapter
  expected: a driver for Vulkan, Metal or Direct3D
  fix:      pip install wgpu, and a driver for Vulkan: Debian's mesa-vulkan-drivers has one for the processor"""


def test_its_names() -> None:
    assert Device.flags["WEBGPU"] == Device.flags["WGPU"] == "WEBGPU" and Device.canonicalize("wgpu") == "WEBGPU"
