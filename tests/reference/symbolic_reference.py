"""Numbers and comparisons that the tests of symbolic lengths share."""

from __future__ import annotations

from typing import Any

import numpy as np

from glassgrad import Tensor, TinyJit

MOST = 70
VALUES = (1, 2, 3, 16, 17, 37, 64, 69, 70)
DEVICES = ("CPU", "CLANG", "PYTHON")
NUMBERS = np.random.default_rng(0)
DATA = NUMBERS.standard_normal((MOST, 12)).astype(np.float32)
STACK = NUMBERS.standard_normal((3, MOST, 4)).astype(np.float32)


def near(got: Any, want: Any, tolerance: float = 1e-4) -> None:
    got = got.numpy() if isinstance(got, Tensor) else np.asarray(got)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def captured_once(function: TinyJit) -> None:
    assert [len(combination.replays) for combination in function._known.values()] == [1]


def soft(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)
