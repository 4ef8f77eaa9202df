"""Random programs over the Tensor API against PyTorch, a bounded share of them; and programs that failed once."""

from __future__ import annotations

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of gradients and layers, is not installed")

from tensor_fuzzer import check  # noqa: E402

from glassgrad import Context, Device, Tensor  # noqa: E402

SECONDS = 25


@pytest.mark.filterwarnings("ignore")
def test_random_programs(seed: int) -> None:
    """As many as fit in the time, at least ten; `python tests/reference/tensor_fuzzer.py` goes on."""
    stop = time.monotonic() + SECONDS
    done = 0
    while done < 10 or time.monotonic() < stop and done < 300:
        report = check(seed + done)
        assert not report or " has no float64\n" in report and not Device[Device.DEFAULT].has_float64, report
        done += 1


# -- programs that failed once ------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows, columns", [(5, 3), (17, 3), (16, 8), (20, 33)])
def test_a_costly_value_is_not_kept_by_a_loop_that_still_fills_it(rows: int, columns: int, rng: np.random.Generator,
                                                                  ) -> None:
    """x^T x of sorted columns: both factors ask for the same costly indices inside one loop."""
    x = rng.uniform(-2, 2, (rows, columns))
    order = np.argsort(x, 0)
    sorted_ = Tensor(x).gather(0, Tensor(order))
    expected = np.take_along_axis(x, order, 0)
    np.testing.assert_allclose((sorted_.T @ sorted_).numpy(), expected.T @ expected)


def test_a_costly_value_is_not_read_by_a_loop_placed_before_the_one_that_keeps_it(rng: np.random.Generator) -> None:
    """The row's norm is placed outside the loop over m, whose body keeps the row."""
    x, y = rng.uniform(-2, 2, (4, 7)), rng.uniform(-2, 2, (5, 7))
    costly = Tensor(x).sin().exp()                                             # (k, j)
    products = (costly.reshape(4, 1, 7) * Tensor(y).reshape(1, 5, 7)).sum(2, keepdim=True)     # (k, m, 1)
    norms = costly.reshape(4, 1, 7).square().sum(2, keepdim=True).expand(4, 5, 1)
    e = np.exp(np.sin(x))
    np.testing.assert_allclose((products * norms).sum(1).numpy(), (e @ y.T).sum(1)[:, None] * (e * e).sum(1)[:, None])


def test_a_costly_value_is_not_read_across_while_it_is_filled_along(rng: np.random.Generator) -> None:
    """One loop over m asks for the value at (k, m), the next one inside it at (m, k): half of it is there."""
    x, w = rng.uniform(-2, 2, (1, 3)), rng.uniform(-1, 1, (2, 2))

    def scaled(v, product):
        rows = v.repeat((2, 1))
        square = product("ij,kj->ik", rows, rows) * 0.577
        return square / (square.square().mean(-1, keepdim=True) + 0.1).sqrt()

    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    with Context(NOOPT=1):                       # with algebra the kernel is another one
        (scaled(ours, Tensor.einsum) * Tensor(w)).sum().backward()
        gradient = ours.grad.numpy()
    (scaled(theirs, torch.einsum) * torch.tensor(w)).sum().backward()
    np.testing.assert_allclose(gradient, theirs.grad.numpy())


def test_the_gradient_of_std_is_zero_where_all_values_are_equal() -> None:
    values = [[1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]
    ours, theirs = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    ours.std(1).sum().backward()
    theirs.std(1).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("seed_", range(4))
def test_a_maximum_that_was_read_still_has_its_gradient(seed_: int) -> None:
    """The elements are computed again for the gradient, in a kernel that may round them in another way."""
    x = Tensor(np.random.default_rng(seed_).uniform(-2, 2, (17, 3)).astype(np.float32), requires_grad=True)
    normal = x.layernorm(eps=0.01).repeat((3, 2))
    least = normal.fmod(normal.abs() + 0.7).min(1)
    least.numpy()
    least.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


def test_the_gradient_of_clamp_does_not_depend_on_how_its_input_is_rounded() -> None:
    """The clamped value was read, so it lies in memory; its input is computed again, by the interpreter otherwise."""
    values = np.random.default_rng(0).uniform(-2, 2, (8, 17))
    x = Tensor(values, requires_grad=True)
    clamped = x.softmax(-1).clamp(min=0.1)
    clamped.numpy()
    with Context(CHECK=1):
        (clamped * Tensor(values, requires_grad=False)).sum().backward()
        found = x.grad.numpy()
    theirs = torch.tensor(values, requires_grad=True)
    (theirs.softmax(-1).clamp(min=0.1) * torch.tensor(values)).sum().backward()
    np.testing.assert_allclose(found, theirs.grad.numpy(), atol=1e-12)
