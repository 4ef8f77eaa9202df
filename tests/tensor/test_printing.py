"""The text of a tensor: the values at the ends of its axes, computed alone, and never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from glassgrad import Tensor, dtypes


def whole(x: Tensor) -> str:
    """The text, from all of the values."""
    body = np.array2string(x.numpy(), separator=", ", prefix="Tensor(", threshold=1000, edgeitems=3)
    return f"Tensor({body}, dtype={x.dtype.name}, device={x.device})"


@pytest.mark.parametrize("shape", [(), (1,), (0, 3000), (1000,), (1001,), (6, 6, 6, 6), (7, 200), (2, 3000), (3000, 2),
                                   (40, 1, 50), (5, 9, 6, 8), (7, 7, 7, 7), (300, 300), (2, 40000)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_the_ends_are_shown_as_numpy_shows_them(shape: tuple[int, ...], dtype: str) -> None:
    x = (Tensor.rand(*shape) * 1000).cast(dtype)
    assert repr(x) == whole(x) == repr(x.realize())
    assert repr(x.T) == whole(x.T)


def test_the_ends_of_sums() -> None:
    x, y = Tensor.arange(900 * 80).reshape(900, 80).float().realize(), Tensor.eye(80).realize()
    assert repr(x @ y) == whole(x) and repr((x @ y).cumsum(0)) == whole(x.cumsum(0))


@pytest.mark.parametrize("make,shown", [
    (lambda: Tensor.zeros(10**13), "[0., 0., 0., ..., 0., 0., 0.]"),
    (lambda: Tensor.arange(10**12, dtype=dtypes.int64) % 7, "[0, 1, 2, ..., 5, 6, 0]"),
    (lambda: Tensor.full((10**13, 2), 5), "[[5, 5], [5, 5], [5, 5], ..., [5, 5], [5, 5], [5, 5]]"),
    (lambda: Tensor.rand(10**6, 10**6) < 2, "[[True, True, True, ..., True, True, True],")])
def test_what_no_memory_holds_is_shown(make: Callable[[], Tensor], shown: str) -> None:
    assert shown in re.sub(r"\s+", " ", repr(make())).replace("[ True", "[True").replace(",  True", ", True")


def test_only_the_ends_of_a_product_are_computed() -> None:
    x = Tensor.ones(10**6, 3).contiguous().realize()
    assert repr(x @ x.T).count("3., 3., 3., ..., 3., 3., 3.") == 6


def test_showing_never_raises() -> None:
    x = Tensor.ones(10**7, 10**7).contiguous().sort(0)[0]
    assert repr(x) == "Tensor(<cannot be computed: there is not enough memory for this tensor>, " \
        f"shape=(10000000, 10000000), dtype=float32, device={x.device})"
