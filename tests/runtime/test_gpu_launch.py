"""How CUDA and AMD launch, copy and compile, on the fake drivers of fake_drivers.py, whose streams work late: a jitted
call is one graph, copies run beside kernels and in no other order than events keep, kernels are compiled in threads."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_drivers
import numpy as np
import pytest
from fake_drivers import FakeDriver, compiled
from shim_device import ShimDevice, compiler, needs_cxx

from glassgrad import Context, Device, DeviceError, IndexRangeError, Tensor, TinyJit, Variable
from glassgrad.base.errors import Bug
from glassgrad.compiler.render.gpu.dialects import CUDA, HIP
from glassgrad.compiler.render.launch_info import VALUE, BoxMap, TasksByValue
from glassgrad.engine.realize import forgotten_schedules
from glassgrad.nn import optim
from glassgrad.runtime.backend import Stopwatch
from glassgrad.runtime.gpu import cuda, cuda_hip_device, cuda_hip_memory, hip
from glassgrad.runtime.gpu.cuda_hip_device import DriverDevice
from glassgrad.runtime.gpu.gpu_device import Rejected
from glassgrad.runtime.kernel_source import build
from glassgrad.runtime.search import beam, tuning_results

pytestmark = [needs_cxx, fake_drivers.take_the_place]
Opener = Callable[..., DriverDevice]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens CUDA or AMD on a fake driver, as the device of that name."""
    shims = {dialect.name: ShimDevice(f"{dialect.name}_shim", dialect) for dialect in (HIP, CUDA)} if compiler() else {}
    monkeypatch.setattr(hip, "compile_hip", lambda source, _: compiled(shims[HIP.name], source))
    monkeypatch.setattr(cuda, "compile_cuda", lambda source, _: compiled(shims[CUDA.name], source))
    monkeypatch.setattr(cuda, "nvrtc_version", lambda: "nvrtc 0.0")
    monkeypatch.setattr(hip, "hiprtc", lambda: SimpleNamespace(version=lambda: "hiprtc 0.0"))

    def open_device(name: str = "CUDA", eager: str = "", **failures: int) -> DriverDevice:
        kind, dialect = (cuda.CudaDevice, CUDA) if name == "CUDA" else (hip.HipDevice, HIP)
        device = kind(name, FakeDriver(kind.names, dialect, eager, **failures))  # type: ignore[arg-type]
        monkeypatch.setitem(Device._devices, name, lambda _name: device)
        return device
    yield open_device


def calls_of(device: DriverDevice) -> Counter[str]:
    """What the driver was called for since this was last asked, by the names of `DriverNames`."""
    library: Any = device.library
    meaning = {name: what for what, name in device.names._asdict().items()}
    counted = Counter(meaning.get(name, name) for name in library.called)
    library.called.clear()
    return counted


class Training:
    """Steps of a small network: an index check, weights in place, arguments that are new in each call."""

    def __init__(self, device: str, batch: int = 32):
        self.device, self.batch, self.rng = device, batch, np.random.default_rng(7)
        self.w1, self.w2 = (Tensor(self.rng.standard_normal(shape).astype("float32"), device=device,
                                   requires_grad=True).realize() for shape in ((8, 16), (16, 4)))
        optimizer = optim.SGD([self.w1, self.w2], lr=0.1)

        @TinyJit
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (x @ self.w1).relu().matmul(self.w2).sparse_categorical_crossentropy(y)
            loss.backward()
            optimizer.step()
            return loss.realize()
        self.step = step

    def run(self, classes: int = 4) -> float:
        with Context(TRAINING=1):
            x = Tensor(self.rng.standard_normal((self.batch, 8)).astype("float32"), device=self.device)
            y = Tensor(self.rng.integers(classes - 4, classes, self.batch).astype("int32"), device=self.device)
            return float(self.step(x, y).item())


# -- graphs ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["CUDA", "AMD"])
def test_a_jitted_step_is_one_graph_and_waits_for_no_check(opened: Opener, name: str) -> None:
    device, expected = opened(name), Training("CPU")
    training = Training(name)
    for _ in range(3):
        assert training.run() == pytest.approx(expected.run(), rel=1e-5)
    before = calls_of(device)
    assert before["make_graph"] == before["instantiate"] == 1 and before["add_kernel"] > 4
    for _ in range(3):
        training.run(), expected.run()
    made = calls_of(device)
    assert made["launch_graph"] == made["read"] == 3 and made["make_graph"] == made["add_kernel"] == 0
    assert made["launch"] == made["await_event"] == made["synchronize"] == made["copy_out"] == 0
    assert made["set_kernel"] < 3 * before["add_kernel"] / 2 + 4, "arguments that stay are not written again"
    np.testing.assert_allclose(training.w1.numpy(), expected.w1.numpy(), rtol=1e-5)


def test_a_check_that_is_waited_for_is_read_after_the_run(opened: Opener) -> None:
    device = opened()
    with Context(CHECK_INDEX=2):
        training, expected = Training("CUDA"), Training("CPU")
        for _ in range(5):
            assert training.run() == pytest.approx(expected.run(), rel=1e-5)
        calls_of(device)
        training.run()
    assert calls_of(device)["read"] == 2, "the check, then the loss"


def test_weights_are_written_in_place_and_nothing_is_set_again(opened: Opener) -> None:
    device = opened()
    w = Tensor(np.ones(16, "float32"), device="CUDA").realize()
    x = Tensor(np.full(16, 0.5, "float32"), device="CUDA").realize()

    @TinyJit
    def step() -> None:
        for _ in range(5):
            w.assign(w * x + 1).realize()
    expected = np.ones(16, "float32")
    for number in range(6):
        calls_of(device)
        step()
        for _ in range(5):
            expected = expected * 0.5 + 1
        if number > 3:
            assert calls_of(device) == {"launch_graph": 1}
    np.testing.assert_array_equal(w.numpy(), expected)


@pytest.mark.parametrize("kernels, expected", [(1, {"launch": 1}), (2, {"launch_graph": 1}), (3, {"launch_graph": 1})])
def test_from_two_launches_on_a_call_is_a_graph(opened: Opener, kernels: int, expected: dict[str, int]) -> None:
    device = opened()
    w = Tensor(np.ones(16, "float32"), device="CUDA").realize()

    @TinyJit
    def step() -> None:
        for _ in range(kernels):
            w.assign(w * 0.5 + 1).realize()
    for number in range(6):
        calls_of(device)
        step()
        if number > 3:
            assert calls_of(device) == expected
    np.testing.assert_array_equal(w.numpy(), np.full(16, 2 - 0.5 ** (6 * kernels), "float32"))


def test_without_graphs_the_bits_are_the_same(opened: Opener) -> None:
    found = []
    for graphs in (1, 0):
        device = opened()
        with Context(GPU_GRAPH=graphs):
            training = Training("CUDA")
            found.append([*[training.run() for _ in range(5)], training.w1.tolist()])
        assert (calls_of(device)["launch_graph"] > 0) == bool(graphs)
    assert found[0] == found[1]


def test_the_setting_may_change_between_calls(opened: Opener) -> None:
    opened()
    training, expected = Training("CUDA"), Training("CPU")
    for graphs in (1, 1, 1, 0, 1, 0, 1):
        with Context(GPU_GRAPH=graphs):
            assert training.run() == pytest.approx(expected.run(), rel=1e-4)


def test_numbers_that_change_are_written_into_the_graph(opened: Opener) -> None:
    device = opened()
    Tensor.manual_seed(3)

    @TinyJit
    def draw(x: Tensor) -> Tensor:
        out = x
        for _ in range(5):
            out = (out + Tensor.rand(8, device="CUDA")).realize()
        return out
    x = Tensor(np.zeros(8, "float32"), device="CUDA").realize()
    got = [draw(x).numpy() for _ in range(5)]
    assert calls_of(device)["launch_graph"] == 3
    Tensor.manual_seed(3)
    zeros = Tensor(np.zeros(8, "float32")).realize()
    for one in got:
        out = zeros
        for _ in range(5):
            out = (out + Tensor.rand(8)).realize()
        np.testing.assert_allclose(one, out.numpy(), rtol=1e-6)


@pytest.mark.parametrize("graphs", [1, 0])
def test_an_index_out_of_range_ends_a_replay_before_weights_change(opened: Opener, graphs: int) -> None:
    opened()
    with Context(GPU_GRAPH=graphs, CHECK_INDEX=2):
        training = Training("CUDA")
        for _ in range(4):
            training.run()
        before = training.w1.numpy()
        with pytest.raises(IndexRangeError, match="a target names a class that the predictions do not have"):
            training.run(classes=8)
        np.testing.assert_array_equal(training.w1.numpy(), before)
        training.run()
        assert (training.w1.numpy() != before).any()


# -- checks that are not waited for ---------------------------------------------------------------------------------
def rows_of_table() -> tuple[TinyJit, Callable[[int], Tensor]]:
    """A jitted lookup that was called three times, and an index tensor of one bad element."""
    table = Tensor(np.arange(10, dtype="float32"), device="CUDA").realize()

    @TinyJit
    def look_up(index: Tensor) -> Tensor:
        return (table[index] + 1).realize()

    def given(number: int) -> Tensor:
        return Tensor(np.array([3, number, 5], "int32"), device="CUDA").realize()
    for number in range(3):
        assert look_up(given(number)).tolist() == [4, number + 1, 6]
    return look_up, given


LATE = """\
the index is out of bounds
  given:    index 10 on axis 0 of (10,), at [1] of the index tensor
            found after the run that used it; CHECK_INDEX=2 raises it in that call
  expected: an index from -10 to 9
  fix:      check how the index is computed; CHECK_INDEX=0 clamps it silently"""


def test_a_bad_index_is_reported_when_a_result_is_read(opened: Opener) -> None:
    opened()
    look_up, given = rows_of_table()
    look_up(given(10))
    last = look_up(given(4))
    with pytest.raises(IndexRangeError) as error:
        last.tolist()
    assert str(error.value).partition("\n  at: ")[0] == LATE and "test_gpu_launch.py" in str(error.value)
    assert last.tolist() == [4, 5, 6], "it is reported once"


def test_a_bad_index_is_reported_by_the_next_call_once_it_is_known(opened: Opener) -> None:
    opened("CUDA", "kernels")
    look_up, given = rows_of_table()
    look_up(given(-11))
    with pytest.raises(IndexRangeError, match="index -11 on axis 0"):
        look_up(given(4))
    assert look_up(given(4)).tolist() == [4, 5, 6]


def test_a_bad_index_is_reported_when_the_host_waits(opened: Opener) -> None:
    device = opened()
    look_up, given = rows_of_table()
    look_up(given(10))
    with pytest.raises(IndexRangeError, match="index 10 on axis 0"):
        device.synchronize()


def test_a_bad_index_outside_of_a_jit_is_reported_later_too(opened: Opener) -> None:
    opened()
    table = Tensor(np.arange(10, dtype="float32"), device="CUDA").realize()
    picked = table[Tensor(np.array([3, 10], "int32"), device="CUDA").realize()].realize()
    with pytest.raises(IndexRangeError, match="index 10 on axis 0 of .10,., at .1."):
        picked.tolist()
    assert picked.tolist() == [3, 9]
    with Context(CHECK_INDEX=2), pytest.raises(IndexRangeError, match=r"at \[0\] of the index tensor\n  expected"):
        table[Tensor(np.array([10], "int32"), device="CUDA").realize()].realize()


def test_what_nothing_was_read_after_is_reported_at_the_end(opened: Opener, capsys: pytest.CaptureFixture[str]) -> None:
    device = opened()
    look_up, given = rows_of_table()
    for number in (10, 4, 11):
        look_up(given(number))
    device.memory.numbers.report_all()
    said = capsys.readouterr().err
    assert said.count("found when the process ended: IndexRangeError") == 2 and "index 11 on axis 0" in said


def test_many_calls_may_be_on_their_way(opened: Opener) -> None:
    device = opened()
    look_up, given = rows_of_table()
    good, bad = given(4), given(10)
    look_up(bad)
    calls_of(device)
    with pytest.raises(IndexRangeError, match="index 10 on axis 0"):
        for _ in range(300):
            look_up(good)
    assert calls_of(device)["synchronize"] == 1
    assert look_up(good).tolist() == [4, 5, 6]


def test_an_index_that_is_no_longer_there(opened: Opener) -> None:
    """The index is a weight that the call itself changes: of a past run only the position is known."""
    opened()
    table = Tensor(np.arange(10, dtype="float32"), device="CUDA").realize()
    place = Tensor(np.array([6], "int32"), device="CUDA").realize()

    @TinyJit
    def next_one() -> Tensor:
        found = (table[place] + 0).realize()
        place.assign((place + 1) % 12).realize()
        return found
    results = [next_one() for _ in range(3)]
    assert results[-1].item() == 8
    for _ in range(4):
        last = next_one()
    for _ in range(2):                # 10 and 11
        with pytest.raises(IndexRangeError, match="index no longer known on axis 0 of .10,., at .0. of the index"):
            last.item()
    last.item()


def test_debug_says_what_is_a_graph_and_what_divides_one(opened: Opener, capsys: pytest.CaptureFixture[str]) -> None:
    opened()
    w = Tensor(np.arange(16, dtype="float32"), device="CUDA").realize()

    @TinyJit
    def there_and_back(x: Tensor) -> Tensor:
        for _ in range(5):
            x = (x + w).realize()
        return (x.to("CPU") * 2).realize()
    with Context(DEBUG=1):
        for _ in range(3):
            there_and_back(w)
    said = capsys.readouterr().out
    assert "GPU_GRAPH: 5 launches on CUDA are one graph\n" in said
    assert "jit: a replay is in parts: 5 kernels on CUDA, a copy between devices, 1 kernel on CPU\n" in said


def test_kernels_are_timed_one_by_one_and_checked_still(opened: Opener, capsys: pytest.CaptureFixture[str]) -> None:
    opened()
    training = Training("CUDA")
    for _ in range(3):
        training.run()
    with Context(DEBUG=2):
        training.run()
        before = training.w2.numpy()
        with pytest.raises(IndexRangeError):
            training.run(classes=8)
    assert capsys.readouterr().out.count("*** CUDA") > 8
    np.testing.assert_array_equal(training.w2.numpy(), before)


def test_a_driver_without_graphs(opened: Opener) -> None:
    opened(cuGraphInstantiateWithFlags=801)
    training = Training("CUDA")
    training.run(), training.run()
    with pytest.raises(DeviceError) as error:
        training.run()
    assert str(error.value).partition("\n  at: ")[0] == """\
the driver makes no graph of a jitted function's kernels
  given:    cuGraphInstantiateWithFlags: error 801
  expected: a driver with graphs: CUDA 12 or ROCm 6, or newer
  fix:      GPU_GRAPH=0 starts the kernels one by one"""


def test_graphs_are_given_back(opened: Opener) -> None:
    device = opened()
    training = Training("CUDA")
    for _ in range(4):
        training.run()
    library: Any = device.library
    assert len(library.graphs) == 2, "a graph, and the one that can run"
    del training
    gc.collect()
    assert not library.graphs


@pytest.mark.parametrize("name", ["CUDA", "AMD"])
@pytest.mark.parametrize("graphs", [0, 1])
def test_a_replay_starts_the_groups_that_its_length_needs(opened: Opener, name: str, graphs: int) -> None:
    """Rows of a softmax are a group each: of 3 rows 3 groups, however many the variable may have."""
    device, started = opened(name), list[int]()
    library: Any = device.library
    run = library.start
    library.start = lambda launch: started.append(launch[1]) or run(launch)
    values = np.random.default_rng(3).standard_normal((300, 700)).astype("float32")
    x, n = Tensor(values, device=name).realize(), Variable("n", 1, 300)
    rows = TinyJit(lambda x, n: (x[:n].softmax(1).realize(), x[:n].sum(1).realize()))
    with Context(GPU_GRAPH=graphs):
        for length in (3, 3, 3, 40, 300, 1, 40):
            device.synchronize()
            started.clear()
            soft, total = rows(x, n.bind(length))
            device.synchronize()
            assert started == [length, length]
            exact = np.exp(values[:length] - values[:length].max(1, keepdims=True))
            np.testing.assert_allclose(soft.numpy(), exact / exact.sum(1, keepdims=True), rtol=1e-4)
            np.testing.assert_allclose(total.numpy(), values[:length].sum(1), rtol=1e-3, atol=1e-4)


def test_tensor_maps_follow_their_matrix(opened: Opener) -> None:
    device = opened()
    box = BoxMap(1, 0, "float16", (64, 8), (128,), (64, 8), 3, 1024)
    launch = cuda.CudaLaunchWithMaps(device, None, 1, 32, 0, (False, False), (box,))  # type: ignore[arg-type]
    encoded = []
    for address in (4096, 4096, 8192, 4096, 8200):
        launch.values[1] = address
        encoded.append((launch.settle(), calls_of(device)["cuTensorMapEncodeTiled"]))
    assert encoded == [(True, 1), (True, 0), (True, 1), (True, 0), (False, 0)], \
        "a map is kept; 8200 is no multiple of 16: a copy comes first"


def test_a_map_that_was_kept_is_the_one_of_its_matrix(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    box = BoxMap(1, 0, "float16", (64, 8), (128,), (64, 8), 3, 1024)
    launch = cuda.CudaLaunchWithMaps(opened(), None, 1, 32, 0, (False, False), (box,))  # type: ignore[arg-type]
    monkeypatch.setattr(launch, "encode", lambda at, box, address, sizes:
                        ctypes.memmove(at, address.to_bytes(8, "little") * 16, 128))
    for address in (4096, 8192, 4096, *range(1 << 20, (1 << 20) + 6400, 64), 8192):
        launch.values[1] = address
        assert launch.settle()
        assert ctypes.string_at(launch.map_addresses[0], 128) == address.to_bytes(8, "little") * 16
    assert len(launch.encoded) <= 64


def test_tensor_maps_and_groups_follow_a_value(opened: Opener) -> None:
    """A matrix with as many rows as an argument says, in tiles of 64."""
    device, cell = opened(), ctypes.c_int64()
    box = BoxMap(1, 0, "float16", (64, (2, VALUE)), (128,), (64, 8), 3, 1 << 16)
    scalars = (False, False, True)
    launch = cuda.CudaLaunchWithMaps(device, None, 8, 32, 0, scalars, (box,))  # type: ignore[arg-type]
    launch.follow(TasksByValue(0, 2, ("IDIV", ("ADD", VALUE, 63), 64)))
    launch.values[1], launch.pointers[2] = 4096, ctypes.addressof(cell)
    found = []
    for cell.value in (100, 100, 64, 500, 0):
        assert launch.settle()
        found.append((launch.groups, launch.described[0][1], calls_of(device)["cuTensorMapEncodeTiled"]))
    assert found == [(2, (64, 100), 1), (2, (64, 100), 0), (1, (64, 64), 1), (8, (64, 500), 1), (1, (64, 1), 1)]


# -- copies ---------------------------------------------------------------------------------------------------------
def batches(device: str, steps: int = 8) -> list[float]:
    """Each step copies 128 KiB in while kernels of the step before may run, and drops the last batch."""
    rng, out = np.random.default_rng(5), []
    total = Tensor(np.zeros(1, "float32"), device=device).realize()
    for _ in range(steps):
        x = Tensor(rng.integers(0, 9, 32768).astype("float32"), device=device).realize()
        total = (total + (x * 2).sum()).realize()
        out.append(total)
    return [float(t.item()) for t in out]


@pytest.mark.parametrize("eager", ["", "copies", "kernels"])
def test_copies_beside_kernels_change_no_result(opened: Opener, eager: str) -> None:
    device, wanted = opened("CUDA", eager), batches("CPU")
    assert batches("CUDA") == wanted
    made = calls_of(device)
    assert made["copy_in"] == 9 and made["stream_awaits"] == 2 * 8, "one each way"
    assert made["synchronize"] == 0


def test_the_fake_driver_finds_a_copy_that_does_not_wait(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_hip_memory.DriverMemory, "_beside_kernels", lambda self, address: self._stream)
    opened("CUDA", "copies")
    assert batches("CUDA") != batches("CPU")


def test_memory_in_use_is_not_written_before_kernels_have_read_it(opened: Opener) -> None:
    opened("CUDA", "copies")
    values = np.arange(32768, dtype="float32")
    x = Tensor(values, device="CUDA").realize()
    y = (x + 1).realize()
    x.uop.base.arg.copy_in(np.zeros_like(values))
    np.testing.assert_array_equal(y.numpy(), values + 1)
    np.testing.assert_array_equal(x.numpy(), 0 * values)


def test_copies_larger_than_all_pinned_memory(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_hip_memory, "_PIECE", 4096)
    device = opened()
    values = np.random.default_rng(0).standard_normal(70_001).astype("float32")
    values.flags.writeable = False
    block = device.memory.allocate(values.nbytes)
    device.memory.copy_in(block.address, memoryview(values))
    assert bytes(device.memory.copy_out(block.address, values.nbytes)) == values.tobytes()
    assert bytes(device.memory.copy_out(block.address + 4, 8)) == values[1:3].tobytes()
    assert device.memory.copy_out(block.address, 0) == b"" and len(device.library.pinned) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1, 5, 40_000, 600_000])
def test_an_array_of_values_is_memory_of_its_own(opened: Opener, size: int) -> None:
    opened()
    values = np.random.default_rng(size).standard_normal(size).astype("float32")
    x = Tensor(values, device="CUDA").realize()
    first = x.numpy()
    np.testing.assert_array_equal(first, values)
    first[:] = 0
    second = x.numpy()
    np.testing.assert_array_equal(second, values)
    assert x[0].item() == values[0] and x[:3].tolist() == values[:3].tolist() and not np.shares_memory(first, second)


# -- compiling ------------------------------------------------------------------------------------------------------
def test_kernels_of_a_schedule_are_compiled_at_the_same_time(opened: Opener, monkeypatch: pytest.MonkeyPatch,
                                                             tmp_path: Path) -> None:
    device = opened()
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda_hip_device, "available_cores", lambda: 2)
    real, together, count = cuda.compile_cuda, threading.Barrier(2, timeout=60), Counter[str]()

    def compile_cuda(source: str, architecture: str) -> bytes:
        count[threading.current_thread().name[:17]] += 1
        together.wait()                          # both are here at once, or it fails
        return real(source, architecture)
    monkeypatch.setattr(cuda, "compile_cuda", compile_cuda)
    x = Tensor(np.arange(12, dtype="float32").reshape(3, 4), device="CUDA").realize()

    def program() -> list[float]:
        with forgotten_schedules():
            return list(((x.sum(0).contiguous() + 3.25) * x.max()).tolist())
    wanted = ((np.arange(12).reshape(3, 4).sum(0) + 3.25) * 11).tolist()
    assert program() == wanted and count == {"glassgrad-compile": 2 * (count.total() // 2)} and count
    again = opened()
    x = Tensor(np.arange(12, dtype="float32").reshape(3, 4), device="CUDA").realize()
    known = count.total()
    assert program() == wanted and count.total() == known, "another device finds the machine code on disk"
    assert calls_of(again)["load"] == calls_of(device)["load"] == known


def test_kernels_compile_while_python_ends(opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened()
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    x = Tensor(np.arange(12, dtype="float32"), device="CUDA").realize()
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    with forgotten_schedules():
        assert (x * 2.625).tolist() == (np.arange(12) * 2.625).tolist()


def test_source_that_the_compiler_refuses(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opened()

    def refuse(source: str, architecture: str) -> bytes:
        raise Rejected("kernel.cu(1): error: it is Monday")
    monkeypatch.setattr(cuda, "compile_cuda", refuse)
    with Context(CACHE=0), pytest.raises(Bug, match="CUDA does not take a kernel: .*it is Monday"):
        (Tensor(np.ones(7, "float32"), device="CUDA") * 5.125).realize()


# -- searching ------------------------------------------------------------------------------------------------------
def at_the_start(source: str, line: str) -> str:
    """A kernel with one line more."""
    return re.sub(r"^  (?=i(32|64) task = blockIdx.x;)", f"  {line}\n  ", source, flags=re.M)


def loop(source: str) -> str:
    return at_the_start(source, "for (volatile int on = 1; on;);")


def stray(source: str) -> str:
    return at_the_start(source, "data0[1 << 30] = 1;")


def wrong(source: str) -> str:
    return at_the_start(source, "return;")


def test_a_search_measures_on_the_gpu_and_survives_its_candidates(opened: Opener) -> None:
    device = opened()
    x = Tensor(np.arange(8192, dtype="float32"), device="CUDA").realize()
    worker = beam.Worker([sys.executable, str(Path(fake_drivers.__file__).with_name("fake_gpu_worker.py"))])
    try:
        with Context(BEAM=1, BEAM_SECONDS=400.0):
            one = beam.Search((x * 1.75 + 3).schedule()[-1].ast, *device.searched, worker, "CUDA")
        one.begin()
        assert one.recipe_ns == 2_000_000, "as the driver says"
        one.deadline = time.monotonic() + 1000
        near = [tuple(moves) for moves in one._decided[one.recipe].neighbours()]
        assert len(one.pairs_of(near[0])) >= 2 and not (one.wrong or one.killed)
        real = one.built
        for number, (change, outcome) in enumerate([(wrong, (1, 0)), (stray, (1, 1)), (loop, (1, 2))], 1):
            one.built = lambda moves, change=change: _changed(real(moves), change)  # type: ignore[method-assign]
            one.seconds = 8.0 if change is loop else 400.0           # what never ends is given two seconds
            assert one.pairs_of(near[number]) == [] and (one.wrong, one.killed) == outcome, change.__name__
            one.built, one.seconds = real, 400.0  # type: ignore[method-assign]
        assert len(one.pairs_of(near[4])) >= 2, "the search goes on in a new process"
    finally:
        worker.close()


def _changed(built: tuple[Any, str, Any], change: Callable[[str], str]) -> tuple[Any, str, Any]:
    moves, source, how = built
    assert change(source) != source
    return moves, change(source), how


def test_what_a_search_found_is_what_runs(opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = opened()
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning_results, "_known", {})
    asked = []

    def search(kernels: Any, target: Any, language: str, compiler: str, name: str) -> None:
        asked.append((language, compiler, name))
        for ast in kernels:
            decided = build(ast, target, language, say=False).decisions
            assert decided is not None
            tuning_results.keep(tuning_results.Tuned("k", tuning_results.digest_of(ast), compiler, 1, 1.0, True, 1, (),
                                                     2.0, tuple(decided.neighbours()[0]), 1.0))
    monkeypatch.setattr(beam, "search", search)
    x = Tensor(np.arange(8192, dtype="float32"), device="CUDA").realize()
    [ast] = [item.ast for item in (x * 2.5).schedule()]
    [recipe] = device.programs([ast])
    with Context(BEAM=1):
        [tuned] = device.programs([ast])
        np.testing.assert_array_equal((x * 2.5).numpy(), np.arange(8192, dtype="float32") * 2.5)
        assert tuned.moves == device.moves(ast) != recipe.moves and tuned.speedup == 2.0
        assert device.loop_tree(ast).moves == list(tuned.moves)
    assert asked == [("cuda", "A GPU, sm_75, compiled by nvrtc 0.0", "CUDA")]
    assert recipe.speedup == 0.0 and device.moves(ast) == ()


def test_the_first_timed_run_stands_for_itself_alone() -> None:
    times = iter([9000, 10, 20, 30])

    class Plan:
        programs, runner = [None], lambda self: lambda: 0
        run_one = staticmethod(lambda number: next(times))
    watch = Stopwatch(Plan())                    # type: ignore[arg-type]
    watch.run(every=False)
    assert (watch.totals, watch.timed_runs) == ([9000], 1)
    for _ in range(4):
        watch.run(every=False)
    assert (watch.totals, watch.timed_runs, watch.runs) == ([60], 3, 5)
