"""From graph to values: schedules found again, sums, threads, and what realize promises."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scripts import run_script

from glassgrad import Context, GlobalCounters, Tensor, dtypes
from glassgrad.compiler.graph import ops as o
from glassgrad.engine.observer import Observer, observed_by
from glassgrad.engine.realize import forgotten_schedules
from glassgrad.engine.schedule_key import normalize


@pytest.fixture(autouse=True)
def _only_schedules_of_this_test() -> Iterator[None]:
    """What other tests computed, in other sizes too, is not found again here."""
    with forgotten_schedules():
        yield


def schedules(function: Any, *args: Any) -> int:
    """How many schedules a call makes anew."""
    GlobalCounters.reset()
    function(*args)
    return GlobalCounters.schedules


@pytest.mark.parametrize("on", [True, False])
def test_no_garbage_is_searched_for_while_a_graph_is_compiled(on: bool) -> None:
    during = []

    class Noting(Observer):
        def passed(self, each: Any, work: Any) -> None:
            during.append(gc.isenabled())

    class Failing(Observer):
        def passed(self, each: Any, work: Any) -> None:
            raise KeyboardInterrupt

    before = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        with observed_by(Noting()):
            (Tensor.rand(5, 3) + 1).realize()
        assert during and not any(during) and gc.isenabled() == on
        with observed_by(Failing()), pytest.raises(KeyboardInterrupt):
            (Tensor.rand(5, 4) + 1).realize()
        assert gc.isenabled() == on, "as the user had it, after an interrupt too"
    finally:
        (gc.enable if before else gc.disable)()


# -- schedules are found again -------------------------------------------------------------------------------
def test_the_same_structure_is_scheduled_once() -> None:
    def work() -> None:
        x, y = Tensor.rand(13, 7), Tensor([float(i) for i in range(7)])
        ((x * y).relu().sum(0) + 1).realize()

    work()
    assert schedules(work) == 0, "other buffers, other random numbers, the same structure"


def test_a_second_training_step_schedules_nothing() -> None:
    w, b = Tensor.rand(20, 8).realize(), Tensor.zeros(8).contiguous().realize()
    data = Tensor.rand(64, 20).realize()

    def step(i: int) -> None:
        w.grad = b.grad = None
        x = data[16 * i:16 * i + 16]                     # another batch: another piece of the same buffer
        loss = ((x @ w + b).relu().log_softmax() ** 2).mean()
        loss.backward()
        w.assign(w - w.grad * 0.1)
        b.assign(b - b.grad * 0.1)
        Tensor.realize(loss, w, b)

    step(0)
    assert schedules(step, 1) == 0
    assert schedules(step, 2) == 0


def test_a_number_that_changes_is_generalized_once() -> None:
    x = Tensor.rand(5, 11).realize()
    values = x.numpy()

    def scaled(rate: float) -> None:
        got = (x * rate + 0.25).numpy()
        np.testing.assert_allclose(got, values * np.float32(rate) + np.float32(0.25), rtol=1e-6)

    assert schedules(scaled, 0.5) == 1
    assert schedules(scaled, 0.5) == 0
    assert schedules(scaled, 0.4) == 1, "the second number makes it an argument"
    for rate in (0.3, 0.2, 1e-8, 1e30, 0.5, float("inf")):
        assert schedules(scaled, rate) == 0, rate


def test_a_decaying_learning_rate_does_not_compile() -> None:
    w = Tensor.rand(9, 4).realize()

    def step(rate: float) -> None:
        w.grad = None
        (w ** 2).sum().backward()
        w.assign(w - w.grad * rate).realize()

    for i in range(3):
        step(0.1 / (i + 1))
    assert sum(schedules(step, 0.1 / (i + 4)) for i in range(5)) == 0


def test_numbers_that_change_one_after_another() -> None:
    """First one constant changes, then another: each is generalized when it does, and answers stay right."""
    x = Tensor([1.0, 2.0, 3.0]).realize()
    for a, b in [(2.0, 3.0), (2.5, 3.0), (2.5, 4.0), (2.0, 5.0), (7.0, 3.0)]:
        assert (x * a + b).tolist() == [1 * a + b, 2 * a + b, 3 * a + b]


def test_constants_are_told_apart_by_their_bits() -> None:
    x = Tensor([1.0, -1.0]).realize()
    zeros = (x * 0.0).numpy(), (x * -0.0).numpy()
    assert np.signbit(zeros[0]).tolist() == [False, True] and np.signbit(zeros[1]).tolist() == [True, False]
    assert (Tensor([1]) + 1).dtype is dtypes.int32 and (Tensor([1]) + 1.0).dtype is dtypes.float32
    assert (Tensor([1]) + True).tolist() == [2]


def test_which_inputs_are_the_same_buffer_is_part_of_the_structure() -> None:
    x, y = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 5.0]).realize()
    assert (x - y).tolist() == [-2.0, -3.0]
    assert (x - x).tolist() == [0.0, 0.0]
    assert (y - x).tolist() == [2.0, 3.0]
    keys = [normalize([(a - b).uop]).key for a, b in ((x, y), (y, x), (x, x))]
    assert keys[0] == keys[1] != keys[2]


def test_sources_stand_before_users_at_any_depth() -> None:
    def deep(x: Tensor) -> Tensor:
        for _ in range(700):
            x = (x.reshape(2, 1) * 1.5 + Tensor.arange(2).reshape(2, 1)).reshape(2)
        return x

    first, second = (normalize([deep(Tensor([1.0, 2.0]).realize()).uop]) for _ in range(2))
    assert first.key == second.key and first.buffers != second.buffers
    place = {node: i for i, node in enumerate(first.order)}
    assert len(place) == len(first.order) == len(first.key) - 1
    assert all(place[source] < i for node, i in place.items() for source in node.src)


def test_a_value_that_is_only_reshaped_has_a_buffer_of_that_shape() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    total = x.sum().realize()
    assert total.uop.op is o.BUFFER and total.shape == () and total.item() == 10.0
    rows = x * 2
    flat, square, transposed = rows.reshape(4), rows.reshape(1, 4), rows.T
    flat.realize(square, rows, transposed)
    assert flat.uop.op is o.BUFFER and flat.uop.arg.shape == (4,)
    assert flat.uop.base is square.uop.base is rows.uop.base is transposed.uop.base
    assert (flat.tolist(), square.tolist()) == ([2.0, 4.0, 6.0, 8.0], [[2.0, 4.0, 6.0, 8.0]])
    assert (rows.tolist(), transposed.tolist()) == ([[2.0, 4.0], [6.0, 8.0]], [[2.0, 6.0], [4.0, 8.0]])


def test_a_gradient_of_a_whole_does_not_take_its_slice_for_a_buffer() -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize()
    loss = (x[1:3] * x[1:3]).sum().backward()
    assert x.grad is not None
    loss.realize(x.grad)
    assert loss.item() == 13.0 and x.grad.tolist() == [0.0, 4.0, 6.0, 0.0]


@pytest.mark.only_on("CPU", "CLANG", reason="a driver's launch calls more")
def test_a_small_sum_calls_few_functions() -> None:
    x = Tensor([1.0, 2.0]).realize()
    called: list[str] = []
    for _ in range(3):
        (x + 1).realize()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        (x + 1).realize()
    finally:
        sys.setprofile(before)
    assert len(called) <= 44, called


@pytest.mark.parametrize("settings", [
    {"NOOPT": 1}, {"CPU_FEATURES": "-avx512f"}, {"DISABLE_RULES": "add-zero"}], ids=str)
def test_settings_that_change_kernels_are_part_of_the_key(settings: dict[str, Any]) -> None:
    x = Tensor.rand(3, 19).realize()
    x.softmax().numpy()
    with Context(**settings):
        (x + 0).softmax().numpy()
        assert schedules(lambda: (x + 0).softmax().numpy()) == 0
    assert schedules(lambda: x.softmax().numpy()) == 0


@pytest.mark.parametrize("piece, joins", [
    (lambda x, i: x[i:i + 2], True), (lambda x, i: x[i], True), (lambda x, i: x[i, 2:4], True),
    (lambda x, i: x[i:i + 1, 1:3], True), (lambda x, i: x[:, i], False), (lambda x, i: x[i:i + 2, 1:3], False),
])
def test_slices_of_one_piece_are_buffers_of_their_own(piece: Any, joins: bool) -> None:
    x = Tensor([[float(8 * i + j) for j in range(6)] for i in range(6)]).realize()
    array = x.numpy()
    keys = set()
    for i in range(3):
        y = piece(x, i) * 2 + 1
        keys.add(normalize([y.uop]).key)
        np.testing.assert_array_equal(y.numpy(), piece(array, i) * 2 + 1)
    assert (len(keys) == 1) == joins


def test_realizing_again_computes_nothing_and_keeps_equal_leaves_apart() -> None:
    x = Tensor([1.0, 2.0]).realize()
    node = x.uop
    assert schedules(lambda: x.realize()) == 0 and x.uop is node
    y = Tensor(x)                                        # another leaf of the same node
    x.realize(), y.realize()
    assert x.uop is not y.uop and x.tolist() == y.tolist() == [1.0, 2.0]


def test_values_that_are_known_are_read_and_others_computed() -> None:
    x = Tensor([1.0, 2.0]).realize()
    known, other = x * 2, x * 3
    assert known.tolist() == [2.0, 4.0]                  # the node remembers it
    GlobalCounters.reset()
    assert (other + 1).tolist() == [4.0, 7.0] and (known + other).tolist() == [5.0, 10.0]
    assert known.tolist() == [2.0, 4.0] and GlobalCounters.kernel_count == 2


# -- sums stay accurate, and do not depend on threads --------------------------------------------------------
def test_long_sums_are_accurate() -> None:
    """A naive float32 sum of 20 million ones ends at 16,777,216."""
    n = 20_000_000
    ones = Tensor.ones(n // 4, 4).contiguous().realize()
    assert ones.sum().item() == n
    assert ones.sum(0).tolist() == [n / 4] * 4, "down the columns"
    assert ones.T.sum(1).tolist() == [n / 4] * 4
    assert ones.reshape(4, n // 4).sum(1).tolist() == [n / 4] * 4, "along the rows"
    assert ones.mean().item() == 1.0
    assert (ones.reshape(1, n) @ ones.reshape(n, 1)).item() == n, "a dot product"


def test_a_long_contraction_is_accurate(rng: np.random.Generator) -> None:
    a, b = rng.uniform(0, 1, (24, 60_000)).astype("float32"), rng.uniform(0, 1, (60_000, 24)).astype("float32")
    got = (Tensor(a) @ Tensor(b)).numpy()
    np.testing.assert_allclose(got, a.astype("float64") @ b.astype("float64"), rtol=2e-6)


def test_answers_do_not_depend_on_threads() -> None:
    script = """
        import hashlib
        from glassgrad import Tensor
        Tensor.manual_seed(3)
        x, w = Tensor.randn(301, 517).realize(), Tensor.randn(517, 203).realize()
        long = Tensor.randn(3_000_017).realize()
        image = Tensor.randn(2, 5, 33, 33).realize()
        results = [x @ w, x.softmax(), x.softmax(0), x.sum(), x.sum(0), long.sum(), long.std(), (long * long).mean(),
                   x.layernorm(), image.conv2d(Tensor.randn(7, 5, 3, 3)), x.cumsum(0), long.max(), (x @ w).sum(),
                   x.reshape(301, 11, 47).transpose(0, 1).scaled_dot_product_attention(*[Tensor.ones(11, 211, 47)] * 2)]
        for r in results:
            print(hashlib.sha256(r.numpy().tobytes()).hexdigest())
    """
    answers = [run_script(script, THREADS=n)[0] for n in ("1", "2", "3")]
    assert answers[0].count("\n") == 14
    assert answers[0] == answers[1] == answers[2], "bit by bit"


def test_repeated_runs_give_the_same_bits() -> None:
    x = Tensor.rand(257, 1031).realize()
    bits = set()
    for _ in range(5):
        results = [x.sum(), (x @ x.T).sum(), x.std(0)]
        results[0].realize(*results[1:])
        bits.add(b"".join(r.numpy().tobytes() for r in results))
    assert len(bits) == 1


# -- threads and processes of the user -----------------------------------------------------------------------
def test_threads_realize_at_once() -> None:
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(40):
            value = 1000.0 * k + i
            got = (Tensor([value] * 5000) * 2 + 1).tolist()
            if got != [2 * value + 1] * 5000:
                wrong.append((k, i, got[:3]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes_and_compiles() -> None:
    script = """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from glassgrad import Tensor
        x = Tensor([1.0, 2.0, 3.0])
        big = Tensor.ones(1 << 20).contiguous().realize()
        print((x * 2).tolist(), big.sum().item(), flush=True)
        child = os.fork()
        if child == 0:
            print((x * 2 + 5).exp2().tolist(), (big * 3).sum().item(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print((x + 7).tolist(), (big * 3).sum().item())
    """
    expected = ["[2.0, 4.0, 6.0] 1048576.0", "[128.0, 512.0, 2048.0] 3145728.0", "[8.0, 9.0, 10.0] 3145728.0"]
    assert run_script(script, CACHE="0")[0].splitlines() == expected


def test_the_interpreter_ends_quietly() -> None:
    script = """
        from glassgrad import Device, Tensor
        from glassgrad.jit import TinyJit
        kept = [Tensor.rand(100, 100).realize() for _ in range(3)]
        double = TinyJit(lambda x: x * 2)
        results = [double(t) for t in kept]
        Device.kept = results
        print("end")
    """
    assert run_script(script) == ("end\n", "")


# -- realize -------------------------------------------------------------------------------------------------
@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="a GPU computes more of it again")
def test_realize_of_several_computes_shared_work_once() -> None:
    x = Tensor.rand(64, 64).realize()
    shared = x.exp()
    a, b = shared.sum(0), shared.sum(1)
    GlobalCounters.reset()
    a.realize(b)
    assert GlobalCounters.kernel_count == 3
    np.testing.assert_allclose(a.numpy(), np.exp(x.numpy()).sum(0), rtol=1e-5)


def test_results_that_are_inputs_or_each_other_get_memory_of_their_own() -> None:
    x = Tensor([1.0, 2.0]).realize()
    same, again, constant = (x * 1), (x + 0), Tensor.zeros(2) + x * 0
    same.realize(again, constant)
    nodes = {t.uop.base for t in (x, same, again)}
    assert same.tolist() == again.tolist() == [1.0, 2.0] and constant.tolist() == [0.0, 0.0]
    assert all(n.op is o.BUFFER for n in nodes)


def test_realize_drops_the_graph() -> None:
    x = Tensor.rand(8, 8).realize()
    y = ((x + 1) * 2).realize()
    assert y.uop.base.op is o.BUFFER and len(y.uop.toposort()) <= 2


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5, 2)])
def test_empty_tensors_have_values_too(shape: tuple[int, ...]) -> None:
    x = Tensor.zeros(*shape)
    assert (x + 1).numpy().shape == shape
    assert x.sum().item() == 0.0 and (x + 1).prod().item() == 1.0
    assert x.realize().schedule() == []


def test_scalars() -> None:
    x = Tensor(2.5)
    assert x.shape == () and (x * 2 + 1).item() == 6.0 and (x.reshape(1, 1) @ x.reshape(1, 1)).tolist() == [[6.25]]
