"""Random programs over the Tensor API against PyTorch, a bounded share of them; and programs that failed once."""

from __future__ import annotations

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the judge of gradients and layers, is not installed")

from tensor_fuzzer import check  # noqa: E402

from glassgrad import Tensor  # noqa: E402

SECONDS = 25


@pytest.mark.filterwarnings("ignore")
def test_random_programs(seed: int) -> None:
    """As many as fit in the time, at least ten; `python tests/tensor_fuzzer.py` goes on."""
    stop = time.monotonic() + SECONDS
    done = 0
    while done < 10 or time.monotonic() < stop and done < 300:
        report = check(seed + done)
        assert not report, report
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
