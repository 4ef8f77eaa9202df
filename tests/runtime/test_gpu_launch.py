"""How CUDA and AMD launch, on the fake drivers of fake_drivers.py, whose streams work late: a jitted call is one graph,
no check of indices is waited for, and launches and tensor maps follow the values of sizes."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import fake_drivers
import numpy as np
import pytest
from fake_drivers import Opener, calls_of
from shim_device import needs_cxx

from glassgrad import Context, DeviceError, IndexRangeError, Tensor, TinyJit, Variable
from glassgrad.compiler.render.launch_info import VALUE, BoxMap, TasksByValue
from glassgrad.nn import optim
from glassgrad.runtime.gpu import cuda
from glassgrad.runtime.gpu.gpu_device import KernelCall

pytestmark = [needs_cxx, fake_drivers.take_the_place]


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
    launch = cuda.CudaLaunchWithMaps(device, KernelCall(None, 1, 32, 0, (False, False), (box,)))  # type: ignore[arg-type]
    encoded = []
    for address in (4096, 4096, 8192, 4096, 8200):
        launch.values[1] = address
        encoded.append((launch.settle(), calls_of(device)["cuTensorMapEncodeTiled"]))
    assert encoded == [(True, 1), (True, 0), (True, 1), (True, 0), (False, 0)], \
        "a map is kept; 8200 is no multiple of 16: a copy comes first"


def test_a_map_that_was_kept_is_the_one_of_its_matrix(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    box = BoxMap(1, 0, "float16", (64, 8), (128,), (64, 8), 3, 1024)
    launch = cuda.CudaLaunchWithMaps(opened(), KernelCall(None, 1, 32, 0, (False, False), (box,)))  # type: ignore[arg-type]
    monkeypatch.setattr(launch, "encode", lambda at, box, address, sizes:
                        ctypes.memmove(at, address.to_bytes(8, "little") * 16, 128))
    for address in (4096, 8192, 4096, *range(1 << 20, (1 << 20) + 6400, 64), 8192):
        launch.values[1] = address
        assert launch.settle()
        assert ctypes.string_at(launch.map_addresses[0], 128) == address.to_bytes(8, "little") * 16
    assert len(launch.encoded) <= 64


def test_tensor_maps_and_groups_follow_a_value(opened: Opener) -> None:
    """A matrix with as many rows as an argument says, in tiles of 64; where there are none, nothing is launched."""
    device, cell = opened(), ctypes.c_int64()
    box = BoxMap(1, 0, "float16", (64, (VALUE, 2)), (128,), (64, 8), 3, 1 << 16)
    scalars = (False, False, True)
    launch = cuda.CudaLaunchWithMaps(device, KernelCall(None, 8, 32, 0, scalars, (box,)))  # type: ignore[arg-type]
    launch.follow(TasksByValue(0, (2,), ("IDIV", ("ADD", (VALUE, 2), 63), 64)))
    launch.values[1], launch.pointers[2] = 4096, ctypes.addressof(cell)
    found = []
    for cell.value in (100, 100, 64, 500, 0):
        assert launch.settle()
        found.append((launch.groups, launch.described[0][1], calls_of(device)["cuTensorMapEncodeTiled"]))
    assert found == [(2, (64, 100), 1), (2, (64, 100), 0), (1, (64, 64), 1), (8, (64, 500), 1), (1, (64, 500), 0)]


def test_launches_that_share_their_maps_see_what_another_has_written(opened: Opener) -> None:
    """Two versions of a kernel, for up to 64 rows and for more, called back and forth on the same two matrices."""
    device, cell = opened(), ctypes.c_int64()
    box = BoxMap(1, 0, "float16", (64, (VALUE, 2)), (128,), (64, 8), 3, 1 << 16)
    call = KernelCall(None, 8, 32, 0, (False, False, True), (box,))
    small, large = (cuda.CudaLaunchWithMaps(device, call) for _ in range(2))      # type: ignore[arg-type]
    more = ("MIN", ("IDIV", (VALUE, 2), 65), 1)
    small.follow(TasksByValue(0, (2,), ("ADD", 1, ("MUL", more, -1))))
    large.follow(TasksByValue(1, (2,), more))
    large.share_arguments(small)
    small.pointers[2] = ctypes.addressof(cell)
    for cell.value, address in ((40, 4096), (100, 8192), (40, 4096), (100, 8192), (100, 4096), (40, 4096)):
        small.values[1] = address
        assert small.settle() and large.settle()
        assert small.described == [(address, (64, cell.value))], "the map is that of this matrix"


def test_a_launch_that_finds_no_memory_for_a_copy_makes_it_the_next_time(opened: Opener,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened()
    box = BoxMap(1, 0, "float16", (64, 8), (128,), (64, 8), 3, 1024)
    launch = cuda.CudaLaunchWithMaps(device, KernelCall(None, 1, 32, 0, (False, False), (box,)))  # type: ignore[arg-type]
    launch.values[1] = 4096
    launch.bring_up_to_date()
    launch.values[1] = 8200
    with monkeypatch.context() as full:
        full.setattr(device.memory, "allocate", lambda _: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            launch.bring_up_to_date()
    for _ in range(2):
        calls_of(device)
        launch.bring_up_to_date()
        assert launch.described[0][0] == launch.copies[1].address and calls_of(device)["cuMemcpyDtoDAsync_v2"] == 1
