"""SANITIZE=1 names the op, line, layer and index where a NaN or an infinity was made, and only where it matters."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from scripts import run_script

from glassgrad import Bug, Context, Device, DeviceError, GlobalCounters, IndexRangeError, NotFiniteError, Tensor, nn
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.check.needed_elements import BoxValues, one_element
from glassgrad.compiler.lower.access_bounds import prove_accesses
from glassgrad.compiler.lower.loops import For, Store, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.jit import TinyJit

INF, NAN = float("inf"), float("nan")
HERE = __file__


def line_here(offset: int = 0) -> str:
    """file:line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"{HERE}:{frame.f_back.f_lineno + offset}"


def devices() -> list[str]:
    found = ["CPU", "PYTHON"]
    for name in ("CLANG", "OPENCL", "CUDA"):
        try:
            Device[name]
        except DeviceError:
            continue
        found.append(name)
    return found


@pytest.fixture(autouse=True)
def sanitized():
    with Context(SANITIZE=1):
        yield


def error_of(compute) -> NotFiniteError:
    with pytest.raises(NotFiniteError) as caught:
        compute()
    return caught.value


# -- what is said --------------------------------------------------------------------------------------------
def test_the_whole_message():
    x = Tensor([1.0, 2.0, -3.0])
    where = line_here(1)
    y = (x * 2).log() + 1
    assert str(error_of(y.numpy)) == f"""a result holds a NaN
  given:    LOG2(-6) = nan at [2] of float32 (3,)
            by log
            reaches [2] of the result, (3,)
  expected: finite values in what is computed and kept, or infinities that the program writes
  fix:      give the logarithm numbers above 0: add a small one, or clip; SANITIZE=0 goes on with it
  at:       {where}"""


def test_an_input_that_holds_nan_is_named_with_its_line():
    where = line_here(1)
    weight = Tensor([[1.0, 2.0], [NAN, 4.0]]).realize()
    use = line_here(1)
    y = weight.sum(1)
    assert str(error_of(y.numpy)) == f"""the input already holds a NaN
  given:    nan at [1, 0] of a tensor float32 (2, 2) that it is computed from, made at {where}
            reaches [1] of the result, (2,)
  expected: inputs, weights and data without NaN
  fix:      look at that tensor before it is used: load_state_dict, the data, the last step
  at:       {use}"""


class Net:
    def __init__(self):
        self.first, self.layers = nn.Linear(4, 8), [nn.Linear(8, 8), Scale()]

    def __call__(self, x):
        for layer in [self.first, *self.layers]:
            x = layer(x)
        return x


class Scale:
    def __call__(self, x):
        return x * 1e30 * 1e30


def test_the_layer_is_named():
    error = error_of(Net()(Tensor.ones(2, 4)).numpy)
    assert "\n            in Net > layers.1: Scale\n" in str(error)
    assert error.where == f"{HERE}:{inspect.getsourcelines(Scale.__call__)[1] + 1}"


def test_a_gradient_names_the_forward_line():
    x = Tensor([4.0, 0.0], requires_grad=True)
    forward = line_here(1)
    y = x.sqrt().sum()
    backward = line_here(1)
    y.backward()
    error = error_of(x.grad.numpy)
    assert error.where == forward and f"in the gradient of {forward}, which {backward} computes" in error.given
    assert "DIV(1, 0) = inf at [1]" in error.given


@pytest.mark.parametrize("compute, given", [
    (lambda: Tensor([0.0, 1.0]) / Tensor([0.0, 1.0]), "DIV(0, 0) = nan at [0]"),
    (lambda: Tensor([1.0, 1000.0]).exp(), "EXP2(1442.69507) = inf at [1]"),
    (lambda: Tensor([300.0]).half() * Tensor([300.0]).half(), "MUL(300, 300) = inf at [0] of float16"),
    (lambda: Tensor([1e30]).cast("bfloat16") * 1e30, "MUL("),
    (lambda: Tensor([1.0, -1.0]).sqrt(), "SQRT(-1) = nan at [1]"),
    (lambda: (Tensor([1.0, 0.0]).log() * 0), "LOG2(0) = -inf at [1] of float32 (2,), and MUL("),
    (lambda: Tensor([[1e38] * 8]).contiguous().realize().sum(1), "SUM(9.99999968e+37, ...) = inf"),
    (lambda: Tensor.full((3,), NAN), "the constant nan"),
    (lambda: Tensor([3.0, -1.0])[Tensor([1, 0, 1])].log(), "LOG2(-1) = nan at [0]"),
])
def test_what_made_it(compute, given):
    assert given in error_of(lambda: compute().numpy()).given


def test_a_matrix_product_that_overflows_is_found_without_its_products_in_memory():
    a = Tensor.full((512, 512), 1.0).contiguous().realize()
    b = Tensor.full((512, 512), 2e38).contiguous().realize()
    before = GlobalCounters.mem_used
    error = error_of((a @ b).numpy)
    assert "SUM(" in error.given and "[0, 0" in error.given
    assert GlobalCounters.mem_used - before < 512 * 512 * 4 * 8


# -- what is not said ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("compute, expected", [
    (lambda: Tensor([True, False]).where(Tensor([1.0, 2.0]), -INF), [1.0, -INF]),
    (lambda: Tensor.full((2,), INF), [INF, INF]),
    (lambda: Tensor([1.0, -INF]) + 1, [2.0, -INF]),
    (lambda: (Tensor([1.0, -1.0]) > 0).where(Tensor([1.0, -1.0]).log(), 5.0), [0.0, 5.0]),
    (lambda: Tensor([True, False]).where(Tensor([2.0, 3.0]), -INF).softmax(), [1.0, 0.0]),
    (lambda: Tensor([1.0, NAN]).isnan().float(), [0.0, 1.0]),
    (lambda: Tensor([1.0, NAN]), [1.0, NAN]),
    (lambda: Tensor([-INF, -INF]).max().reshape(1), [-INF]),
    (lambda: Tensor([1, 2]) + 1, [2, 3]),
    (lambda: Tensor([]), []),
])
def test_what_is_meant_stays(compute, expected):
    for _ in range(2):
        np.testing.assert_array_equal(compute().numpy(), np.array(expected, "float32"))


def test_off_means_off():
    with Context(SANITIZE=0):
        GlobalCounters.reset()
        assert np.isnan(Tensor([-1.0, -2.0]).log().numpy()).all()
        assert GlobalCounters.kernel_count == 1
    GlobalCounters.reset()
    assert Tensor([1.0, 1.0]).log().numpy().tolist() == [0.0, 0.0]
    assert GlobalCounters.kernel_count == 2


# -- under the jit -------------------------------------------------------------------------------------------
def test_a_replay_is_checked_and_later_calls_go_on():
    @TinyJit
    def step(x):
        return (x.sum(1) * 2).log().realize()

    for value in (1.0, 2.0, 3.0, 4.0):
        step(Tensor.full((2, 3), value).contiguous().realize())
    assert step.captured
    error = error_of(lambda: step(Tensor([[1.0, 1.0, 1.0], [1.0, -5.0, 1.0]]).realize()))
    assert "LOG2(-6) = nan at [1]" in error.given and step.captured
    np.testing.assert_allclose(step(Tensor.full((2, 3), 3.0).contiguous().realize()).numpy(), np.log([18.0, 18.0]),
                               rtol=1e-6)


def test_a_failed_training_step_leaves_the_weights():
    layer = nn.Linear(4, 2)
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1)

    @TinyJit
    def step(x):
        optimizer.zero_grad()
        loss = layer(x).abs().log().mean()
        loss.backward()
        optimizer.step()
        return loss.realize()

    with Tensor.train():
        for seed in range(4):
            step(Tensor(np.random.default_rng(seed).random((8, 4)).astype("float32")).realize())
        assert step.captured
        before = layer.weight.numpy().copy()
        wrong = np.ones((8, 4), "float32")
        wrong[3, 1] = NAN
        error = error_of(lambda: step(Tensor(wrong).realize()))
        np.testing.assert_array_equal(layer.weight.numpy(), before)
        assert error.what == "the input already holds a NaN"
        assert "nan at [3, 1] of a tensor float32 (8, 4)" in error.given
        step(Tensor.ones(8, 4).contiguous().realize())
        assert (layer.weight.numpy() != before).any()


def test_infinities_that_are_meant_stay_under_the_jit():
    mask = Tensor([True, False, True])

    @TinyJit
    def masked(x):
        return mask.where(x * 2, -INF).realize()

    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        got = masked(Tensor.full((3,), value).contiguous().realize())
        np.testing.assert_array_equal(got.numpy(), [2 * value, -INF, 2 * value])
    assert masked.captured


def test_a_capture_is_for_its_setting():
    @TinyJit
    def log(x):
        return x.log().realize()

    with Context(SANITIZE=0):
        for _ in range(4):
            assert np.isnan(log(Tensor([-1.0]).realize()).numpy()).all()
    error_of(lambda: log(Tensor([-1.0]).realize()))


# -- devices, bounds -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", devices())
def test_every_device_reports_where_a_nan_was_made(device):
    x = Tensor([[4.0, 1.0], [-2.0, 9.0]], device=device).realize()
    error = error_of(lambda: (x * 1).sqrt().sum(1).numpy())
    assert "SQRT(-2) = nan at [1, 0]" in error.given
    call = TinyJit(lambda x: x.sqrt().sum(1).realize())
    for _ in range(4):
        call(Tensor([[4.0, 1.0], [2.0, 9.0]], device=device).realize())
    assert call.captured and "SQRT(-2) = nan at [1, 0]" in error_of(lambda: call(x)).given


class Words:
    def __init__(self, device):
        self.table = nn.Embedding(10, 4)
        self.table.weight = self.table.weight.to(device).realize()

    def __call__(self, index):
        return self.table(index)


def columns(index):
    """An index as gather and scatter take it."""
    return index.reshape(-1, 1).expand(len(index), 5)


@pytest.mark.parametrize("check_index", [0, 1])
@pytest.mark.parametrize("device", devices())
def test_an_index_out_of_range_names_the_op_the_line_and_the_layer(device, check_index):
    """Whatever CHECK_INDEX says: stored, computed, and in a replay."""
    words = Words(device)
    where = f"{HERE}:{inspect.getsourcelines(Words.__call__)[1] + 1}"
    good, bad = (Tensor(np.array(row, "int32"), device=device).realize() for row in ([0, 1, 2], [0, 1, 50]))
    with Context(CHECK_INDEX=check_index):
        call = TinyJit(lambda index: words(index).sum().realize())
        for _ in range(4):
            call(good)
        assert call.captured
        for compute in (lambda: words(bad).numpy(), lambda: words(bad * 2 - bad).numpy(), lambda: call(bad)):
            with pytest.raises(IndexRangeError) as caught:
                compute()
            assert str(caught.value) == f"""the index is out of bounds
  given:    index 50 on axis 0 of (10, 4), at [2] of the index tensor
            of GATHER
            in Words > table: Embedding
            by index_select
  expected: an index from 0 to 9
  fix:      check how the index is computed; CHECK_INDEX=0 clamps it silently
  at:       {where}"""


@pytest.mark.parametrize("use, op", [
    (lambda x, i: x[i], "GATHER"), (lambda x, i: x[i, i], "GATHER"),
    (lambda x, i: x.gather(0, columns(i)), "GATHER\nby gather"),
    (lambda x, i: x.scatter(0, columns(i), x[:3]), "SCATTER\nby scatter"),
    (lambda x, i: x.index_select(0, i), "GATHER\nby index_select")])
def test_every_use_of_an_index_is_checked_whatever_check_index_says(use, op):
    x = Tensor.rand(6, 5).realize()
    good, bad = (Tensor(np.array(row, "int32")).realize() for row in ([0, 1, 2], [0, 1, 50]))
    with Context(CHECK_INDEX=0):
        call = TinyJit(lambda index: use(x, index).realize())
        for _ in range(4):
            call(good)
        assert call.captured
        for compute in (lambda: use(x, bad).numpy(), lambda: use(x, bad * 2 - bad).numpy(), lambda: call(bad)):
            with pytest.raises(IndexRangeError) as caught:
                compute()
            assert caught.value.given.startswith("index 50 on axis 0 of (6, 5), at [2") and \
                caught.value.given.endswith(f"of {op}")


def test_accesses_are_proven_and_a_wrong_one_is_named():
    [item] = Tensor.rand(4, 6).realize().pad(((1, 1), (0, 0))).sum(1).schedule()
    kernel = lower(item.ast)
    prove_accesses(kernel)
    [store] = [s for s in walk(kernel.phases[0].body) if isinstance(s, Store)]
    store.index = store.index + 1
    with pytest.raises(Bug, match=r"stores a0\[.*\], which can be outside its 6 elements"):
        prove_accesses(kernel)
    store.index = store.index - 1
    loop = next(s for s in walk(kernel.phases[0].body) if isinstance(s, For))
    store.gate = loop.range < 3
    store.index = store.index + 3
    prove_accesses(kernel)                          # 3 + i0 is inside where i0 < 3
    store.gate = loop.range < 4
    with pytest.raises(Bug, match="outside its 6 elements at .*=3"):
        prove_accesses(kernel)


def test_the_environment_variable_counts():
    _, said = run_script("from glassgrad import Tensor\nprint(Tensor([-1.0]).log().numpy())", fails=True, SANITIZE="1")
    assert "NotFiniteError: a result holds a NaN" in said


# -- the part of a graph that leads to one element -----------------------------------------------------------
def boxed() -> dict[str, tuple[Tensor, list[Tensor]]]:
    x = Tensor.rand(3, 4, 8, 8, requires_grad=True).realize()
    w = Tensor.rand(5, 4, 3, 3, requires_grad=True).realize()
    (x.conv2d(w, padding=1, stride=2).relu() ** 2).sum().backward()
    return {"convolution": (x.conv2d(w, padding=1, stride=2), [x, w]), "softmax": (x.reshape(12, 64).softmax(), [x]),
            "pool": (x.max_pool2d(), [x]), "sum so far": (x.cumsum(1), [x]),
            "views": (x.flip(1).pad(((0, 0), (1, 2), (0, 0), (1, 0))).permute(1, 0, 3, 2).reshape(42, -1), [x]),
            "product": ((x.reshape(12, 64) @ x.reshape(64, 12)).log(), [x]), "gradient of x": (x.grad, [x, w]),
            "gradient of w": (w.grad, [x, w]), "rows": (x[Tensor([2, 0])], [x])}


def test_values_of_one_element_are_those_of_the_whole():
    random = np.random.default_rng(3)
    for name, (tensor, leaves) in boxed().items():
        stored = {n: interpret([n], {leaf.uop: leaf.numpy() for leaf in leaves})[0] if n.op.name != "BUFFER" else
                  next((leaf.numpy() for leaf in leaves if leaf.uop is n), np.array([2, 0], "int32"))
                  for n in tensor.uop.toposort() if n.op.name == "BUFFER"}
        whole = interpret([tensor.uop], stored)[0]
        for _ in range(5):
            index = tuple(int(random.integers(n)) for n in whole.shape)
            found = BoxValues(tensor.uop, one_element(index), stored)
            np.testing.assert_allclose(found.arrays[tensor.uop].reshape(()), whole[index], rtol=1e-4, err_msg=name)
            if name in ("convolution", "product"):
                assert found.size < 3000


@pytest.mark.parametrize("values", [[0, 5, 1], [0, -1, 2]])
def test_one_hot_of_a_value_outside(values):
    with Context(SANITIZE=0):
        assert Tensor(values).one_hot(3).tolist()[1] == [0, 0, 0]
    with Context(SANITIZE=1):
        assert Tensor([2, 0]).one_hot(3).tolist() == [[0, 0, 1], [1, 0, 0]]
        with pytest.raises(IndexRangeError) as error:
            Tensor(values).one_hot(3).realize()
        line = line_here(-1)
    assert str(error.value) == f"""\
the index is out of bounds
  given:    index {values[1]} on axis 1 of (3, 3), at [1] of the index tensor
            of CMPEQ
            by one_hot
  expected: an index from 0 to 2{"; only x[index], take and put count from the end" * (values[1] == -1)}
  fix:      check how the index is computed
  at:       {line}"""
