"""CHECK=1 tells rounding from faults: an ill-conditioned value may be off, a well-conditioned one beside it may not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from glassgrad import Bug, Context, Tensor, nn
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.engine.check import compare
from glassgrad.engine.check.compare import differs, rounding

CANCELLING = np.array([1000.25, -1000.25 + 2.0 ** -14, 3.5, -3.5], "float32")     # their sum is about a rounding error


def values_of(tensor: Tensor, leaves: Sequence[Tensor]) -> tuple[dict[Any, Any], Any]:
    given = {leaf.uop: leaf.numpy() for leaf in leaves}
    return given, interpret([tensor.uop], given)[0]


def test_a_sum_of_what_adds_up_stays_and_one_of_what_cancels_does_not() -> None:
    x = Tensor(np.stack([np.abs(CANCELLING), CANCELLING])).realize()
    direction = (total := x.sum(1)) / (total * total).sqrt()
    given, want = values_of(direction, [x])
    slack = rounding(direction.uop, given, want)
    assert slack[0] < 1e-6 and slack[1] > 1.0
    assert not differs(direction.uop, want * [1.0, -1.0], want, given)
    assert differs(direction.uop, want * [1.001, 1.0], want, given)


def test_a_comparison_is_undetermined_where_both_sides_are_equal_but_for_rounding() -> None:
    x = Tensor(np.array([[1.0, 2.0], [3.0, 3.0000001], [np.nan, 1.0]], "float32")).realize()
    less = x[:, 0] < x[:, 1]
    given, want = values_of(less, [x])
    assert rounding(less.uop, given, want).tolist() == [0.0, np.inf, 0.0]


def test_what_may_be_a_nan_is_undetermined() -> None:
    x = Tensor(np.array([[1.0, 2.0], CANCELLING[:2], [4.0, np.nan]], "float32")).realize()
    root = x.sum(1).sqrt()
    given, want = values_of(root, [x])
    slack = rounding(root.uop, given, want)
    assert slack[0] < 1e-5 and slack[1] == np.inf and slack[2] == 0.0


def test_integers_that_follow_from_no_float_are_exact() -> None:
    x = Tensor([3, 4, 5]).realize()
    given, want = values_of(x * 2, [x])
    assert differs((x * 2).uop, want + [0, 1, 0], want, given)


@pytest.mark.parametrize("optimizer", [nn.optim.Adam, nn.optim.AdamW])
def test_steps_made_of_rounding_errors_are_no_fault(optimizer: Any) -> None:
    """The gradient of a bias before batch normalization is 0 but for rounding; Adam divides it by its own size."""
    Tensor.manual_seed(3)
    layer, norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
    steps = optimizer(nn.state.get_parameters([layer, norm]), lr=0.01)
    x = Tensor(np.random.default_rng(0).random((8, 1, 8, 8)).astype("float32")).realize()
    with Context(CHECK=1), Tensor.train():
        for _ in range(3):
            steps.zero_grad()
            (norm(layer(x)).relu() ** 2).mean().backward()
            steps.step()


def test_a_fault_beside_rounding_errors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.stack([CANCELLING, np.abs(CANCELLING)])).realize()
    total = x.sum(1)
    wanted = (total / (total * total).sqrt()).contiguous()
    written = compare._written
    monkeypatch.setattr(compare, "_written", lambda *args: written(*args) * np.array([-1.0, 1.0], "float32"))
    with Context(CHECK=1):
        wanted.realize()
    monkeypatch.setattr(compare, "_written", lambda *args: written(*args) + np.array([0.0, 0.01], "float32"))
    with Context(CHECK=1), pytest.raises(Bug, match=r"a kernel differs from the interpreter at \(1,\) of result 0"):
        (total / (total * total).sqrt()).contiguous().realize()
