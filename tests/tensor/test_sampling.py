"""Values drawn in place: the distributions PyTorch draws from, by their quantiles; and diagonals that are filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassgrad import Tensor, dtypes
from glassgrad.base.errors import InputError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")

CONTINUOUS = [
    lambda x: x.normal_(1.0, 2.0), lambda x: x.uniform_(-1.0, 3.0), lambda x: x.exponential_(0.5),
    lambda x: x.cauchy_(1.0, 0.5), lambda x: x.log_normal_(0.5, 0.25),
]
IN_STEPS = [lambda x: x.geometric_(0.3), lambda x: x.bernoulli_(0.3), lambda x: x.random_(10),
            lambda x: x.random_(-3, 4)]


def both(draw: Any) -> tuple[Any, Any]:
    Tensor.manual_seed(3), torch.manual_seed(3)
    x = Tensor.zeros(40_000).contiguous().realize()
    assert draw(x) is x
    return x.numpy(), draw(torch.zeros(40_000)).numpy()


@pytest.mark.parametrize("draw", CONTINUOUS)
def test_values_are_drawn_from_pytorchs_distributions(draw: Any) -> None:
    ours, theirs = (np.quantile(a, np.linspace(0.1, 0.9, 9)) for a in both(draw))
    assert (np.abs(ours - theirs) <= 0.03 * (theirs[-1] - theirs[0])).all()


@pytest.mark.parametrize("draw", IN_STEPS)
def test_each_integer_comes_as_often_as_pytorchs(draw: Any) -> None:
    ours, theirs = both(draw)
    for value in np.unique(np.concatenate([ours, theirs])):
        assert abs((ours == value).mean() - (theirs == value).mean()) < 0.015


def test_draws_keep_the_type() -> None:
    for dtype in (dtypes.float64, dtypes.float16, dtypes.int32, dtypes.bool):
        x = Tensor.zeros(500, dtype=dtype).contiguous().realize()
        assert x.random_().dtype is dtype and len(set(x.tolist())) > 1
    drawn = Tensor.randint(3, 5, (2, 300))
    assert drawn.shape == (2, 300) and set(drawn.flatten().tolist()) == {3, 4}
    chances = Tensor([0.0, 1.0, 0.0])
    assert chances.bernoulli().tolist() == Tensor.bernoulli(chances).tolist() == [0.0, 1.0, 0.0]
    assert Tensor.ones(3).contiguous().bernoulli_(chances).tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(InputError, match="there is no number to draw"):
        Tensor.zeros(3).random_(5, 5)


@pytest.mark.parametrize("shape, wrap", [((3, 5), False), ((7, 3), False), ((7, 3), True), ((3, 3, 3), False),
                                         ((2, 2, 2, 2), True), ((9, 2), True), ((0, 3), False)])
def test_diagonals_are_filled(shape: tuple[int, ...], wrap: bool) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x, t = Tensor(values), torch.tensor(values)
    assert x.fill_diagonal_(-1.0, wrap) is x
    assert x.tolist() == t.fill_diagonal_(-1.0, wrap).tolist()
    with pytest.raises(ShapeError, match="this has no diagonal to fill"):
        Tensor.zeros(2, 3, 2).fill_diagonal_(1.0)


def test_exponential_in_place_draws_what_exponential_draws():
    Tensor.manual_seed(5)
    drawn = Tensor.exponential(50, lambd=2.0).numpy()
    Tensor.manual_seed(5)
    np.testing.assert_array_equal(Tensor.zeros(50).exponential_(2.0).numpy(), drawn)
