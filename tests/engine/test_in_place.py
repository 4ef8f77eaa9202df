"""x[i] = v writes the part alone where nothing else reads the old value, and leaves that alone where something does."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import GlobalCounters, IndexRangeError, Tensor, TinyJit, no_grad

LARGE, SMALL = (160, 128), (6, 5)          # parts of large values have kernels of their own, pieces of any value do


def address(x: Tensor) -> int:
    return x.uop.base.arg.address


def start(shape: tuple[int, ...]) -> tuple[Tensor, np.ndarray]:
    values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    return Tensor(values).realize(), values


@pytest.mark.parametrize("shape", [LARGE, SMALL], ids=str)
def test_a_row_costs_a_row_and_every_row_has_one_kernel(shape):
    x, expected = start(shape)
    before = address(x)
    for i in range(5):
        if i == 2:                                   # from the third number on, the number is an argument
            GlobalCounters.reset()
        x[i] = i + 0.5
        x.realize()
        expected[i] = i + 0.5
    assert address(x) == before and GlobalCounters.kernel_count == 3
    assert GlobalCounters.global_mem <= 3 * (shape[1] * 4 + 16) and GlobalCounters.schedules == 0
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("key", [(slice(None), 3), (slice(2, 4), slice(1, 3)), (1, slice(2, 4)), (slice(0, 2),),
                                 (5, 4)], ids=str)
@pytest.mark.parametrize("shape", [LARGE, SMALL], ids=str)
def test_parts_of_all_kinds(shape, key):
    x, expected = start(shape)
    before, part = address(x), -expected[key]
    x[key] = Tensor(part)
    x.realize()
    expected[key] = part
    np.testing.assert_array_equal(x.numpy(), expected)
    assert address(x) == before or shape == SMALL and key[0] in (slice(None), slice(2, 4))


KNOWN = {
    "a lazy result": lambda x: x * 2, "a row times two": lambda x: x[0] * 2, "the same value": Tensor,
    "the negative": lambda x: -x.detach(), "a sum": lambda x: x.sum(0), "an array": lambda x: x.numpy(),
    "a shown array": lambda x: np.asarray(x), "a flipped copy": lambda x: x.flip(0), "bytes": lambda x: x.data(),
    "a result that was read": lambda x: (lambda y: (y.numpy(), y)[1])(x + 1),
    "a replaced copy": lambda x: x.select_scatter(x[1] * 3, 0, 2),
}
VIEWS = {"a view": lambda x: x[1:], "a row": lambda x: x[0], "detached": lambda x: x.detach(),
         "a list": lambda x: [x.T]}


@pytest.mark.parametrize("shape", [LARGE, SMALL], ids=str)
@pytest.mark.parametrize("name", KNOWN)
def test_what_reads_the_old_value_keeps_it(name, shape):
    def values(known):
        known = known[0] if isinstance(known, list) else known
        return known.numpy().copy() if isinstance(known, Tensor) else np.array(known)

    (x, expected), (other, _) = start(shape), start(shape)
    known, wanted = KNOWN[name](x), values(KNOWN[name](other))
    x[0] = 5
    x.realize()
    x[1:3] = x[2:4] + 1                              # the value needs the old one itself
    x.realize()
    expected[0] = 5
    expected[1:3] = expected[2:4] + 1
    np.testing.assert_array_equal(values(known), wanted)
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("shape", [LARGE, SMALL], ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_the_new_value_and_costs_no_copy(name, shape):
    x, expected = start(shape)
    view, before = VIEWS[name](x), address(x)
    for i in range(3):
        x[i] = 5.0 + i
        x.realize()
        expected[i] = 5 + i
    assert address(x) == before
    shown = VIEWS[name](expected) if name != "detached" else expected
    for mine, wanted in zip(view, shown) if isinstance(view, list) else [(view, shown)]:
        np.testing.assert_array_equal(mine.numpy(), wanted)


def test_a_result_computed_from_the_new_value_before_it_was_there():
    x, expected = start(LARGE)
    x[3] = 7
    later = x * 2
    x.realize()
    x[3] = 8                                         # `later` reads the value before
    x[4] = 9
    x.realize()
    expected[3] = 7
    np.testing.assert_array_equal(later.numpy(), expected * 2)
    expected[3], expected[4] = 8, 9
    np.testing.assert_array_equal(x.numpy(), expected)


def test_memory_of_others_is_copied_first():
    array = np.zeros(LARGE, "float32")
    x = Tensor.from_numpy(array)
    x[0] = 5
    x.realize()
    assert not array.any() and x[0].numpy().all()


def test_what_was_found_out_about_the_old_value_is_forgotten():
    x = Tensor(np.diag(np.arange(1.0, 7.0)).astype("float32")).realize()
    assert x.svd()[1].numpy().max() == pytest.approx(6.0)
    x[5] = 0.0
    x.realize()
    assert x.svd()[1].numpy().max() == pytest.approx(5.0)
    rows, places = Tensor(np.zeros((4, 2), "float32")).realize(), Tensor([0, 1, 2], dtype="int64").realize()
    assert rows[places].numpy().shape == (3, 2)
    places[1] = 9
    places.realize()
    with pytest.raises(IndexRangeError):
        rows[places].numpy()


def test_gradients_of_what_was_written():
    x, w = Tensor(np.zeros(LARGE, "float32")).realize(), Tensor([2.0, 3.0], requires_grad=True)
    x[1, :2] = w * w
    (x * x).sum().backward()
    assert w.grad.tolist() == [32.0, 108.0]          # 4 w^3
    x.realize()
    assert x[1, :2].tolist() == [4.0, 9.0]


def test_a_jitted_function_sees_what_was_written_outside():
    x, expected = start(LARGE)
    total = TinyJit(lambda: x.sum().realize())
    for i in range(6):
        x[i] = float(i)
        x.realize()
        expected[i] = i
        assert total().item() == pytest.approx(float(expected.sum(dtype="float64")), rel=1e-6)


# -- values that are assigned, and not asked for ----------------------------------------------------------------------
def _in_no_grad(w: Tensor) -> None:
    with no_grad():
        w -= 0.02 * w.grad


@pytest.mark.parametrize("update, is_cut", [
    (_in_no_grad, True),
    (lambda w: w.assign((w - 0.02 * w.grad).detach()), True),
    (lambda w: w.assign(w - 0.02 * w.grad), False),          # a gradient passes: to x
])
def test_steps_by_hand_are_scheduled_once(update, is_cut):
    """The loss is read after the update: its parameters are computed then too, not again by every later step."""
    x, w = Tensor.rand(6, 4).realize(), Tensor.rand(4, 1).realize()
    matrix, expected = x.numpy().astype(np.float64), w.numpy().astype(np.float64)
    scheduled = []
    for _ in range(6):
        before = GlobalCounters.schedules
        loss = (x @ w).square().sum().backward()
        update(w)
        w.grad = None
        np.testing.assert_allclose(loss.item(), ((matrix @ expected) ** 2).sum(), rtol=1e-4)
        expected = expected - 0.04 * matrix.T @ (matrix @ expected)
        scheduled.append(GlobalCounters.schedules - before)
    assert scheduled[3:] == [0, 0, 0]
    assert (len(w.uop.toposort()) < 5) == is_cut
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-3, atol=1e-6)


def test_an_average_that_is_never_read_keeps_no_old_values():
    w, average = Tensor.rand(1000).realize(), Tensor.zeros(1000).contiguous().realize()
    expected = np.zeros(1000)
    for step in range(8):
        w = (w * 0.5 + step).realize()
        average.assign(average * 0.9 + w.detach() * 0.1)
        expected = expected * 0.9 + w.numpy() * 0.1
        if step == 3:
            w.sum().item()
            used = GlobalCounters.mem_used
        w.sum().item()                                       # reads w, and so does the average
    assert GlobalCounters.mem_used <= used + 4000
    assert len(average.uop.toposort()) < 5
    np.testing.assert_allclose(average.numpy(), expected, rtol=1e-4)


def test_a_gradient_passes_what_was_assigned_and_read_on_the_way():
    w, x = Tensor([3.0], requires_grad=True), Tensor.zeros(2)
    x[:1] = w * w
    assert (x * 2).sum().item() == 18.0
    (x * 5).sum().backward()
    assert w.grad.tolist() == [30.0]
