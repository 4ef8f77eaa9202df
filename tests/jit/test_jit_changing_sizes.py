"""A jitted function whose arguments have another shape at each call: compiled a few times, right at every size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glassgrad import Context, GlobalCounters, Tensor, TinyJit, jit as jit_module
from glassgrad.engine import realize as engine
from glassgrad.engine.changing_sizes.size_families import SEEN

RANDOM = np.random.default_rng(11)
WEIGHT = RANDOM.standard_normal((6, 5)).astype(np.float32)
MOST_COMPILED = jit_module._MANY_COMBINATIONS + SEEN         # sizes, until kernels for any size are found


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    """Each test begins without schedules."""
    with engine.forgotten_schedules():
        yield


def rows(n: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal((n, 6)).astype(np.float32)


def probabilities(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x @ WEIGHT)
    return e / e.sum(0)


def schedules_of(function: TinyJit, x: np.ndarray[Any, Any]) -> tuple[int, np.ndarray[Any, Any]]:
    given = Tensor(x).realize()
    before = GlobalCounters.schedules
    result = function(given)
    return GlobalCounters.schedules - before, result.numpy()


def test_sizes_that_come_once_are_compiled_a_few_times() -> None:
    weight = Tensor(WEIGHT).realize()
    function = TinyJit(lambda x: (x @ weight).softmax(0).realize())
    counts = []
    for n in range(2, 20):
        x = rows(n)
        count, got = schedules_of(function, x)
        np.testing.assert_allclose(got, probabilities(x), rtol=1e-4, atol=1e-6)
        counts.append(count)
    assert sum(counts) <= MOST_COMPILED and not any(counts[MOST_COMPILED:])
    assert not function.captured


def test_a_size_that_comes_again_is_captured_with_kernels_of_its_own() -> None:
    weight = Tensor(WEIGHT).realize()
    function = TinyJit(lambda x: (x @ weight).softmax(0).realize())
    for n in range(2, 20):
        schedules_of(function, rows(n))
    counts = []
    for _ in range(4):
        x = rows(19)
        count, got = schedules_of(function, x)
        np.testing.assert_allclose(got, probabilities(x), rtol=1e-4, atol=1e-6)
        counts.append(count)
    assert counts == [1, 0, 0, 0] and function._replayed == 3


def test_what_the_program_does_with_a_size_is_done_at_every_call() -> None:
    """A branch and a number that hang on the size: nothing is assumed of sizes that were not seen."""
    def plain(x: Any) -> Any:
        return (x * (2.0 if x.shape[0] < 12 else 3.0)).sum(0) / x.shape[0] ** 0.5
    function = TinyJit(lambda x: plain(x).realize())
    for n in (*range(2, 20), 5, 15, 5, 15, 5, 15):
        x = rows(n)
        np.testing.assert_allclose(function(Tensor(x)).numpy(), plain(x), rtol=1e-4, atol=1e-5)


def test_state_is_changed_once_by_each_call() -> None:
    state, total = SimpleNamespace(sum=Tensor([0.0] * 6).realize(), calls=0), np.zeros(6, np.float32)

    @TinyJit
    def add(x: Tensor) -> Tensor:
        state.calls += 1
        state.sum.assign(state.sum + x.sum(0))
        return (state.sum * 2).realize()
    sizes = [*range(2, 16), *range(2, 16), *range(2, 16)]
    for number, n in enumerate(sizes, 1):
        x = rows(n)
        total += x.sum(0)
        np.testing.assert_allclose(add(Tensor(x)).numpy(), total * 2, rtol=1e-3, atol=1e-3)
        assert state.calls == number
    np.testing.assert_allclose(state.sum.numpy(), total, rtol=1e-3, atol=1e-3)


def test_without_dynamic_every_size_is_compiled_for_itself() -> None:
    with Context(DYNAMIC=0):
        function = TinyJit(lambda x: (x * 2).sum(0).realize())
        counts = [schedules_of(function, rows(n))[0] for n in range(2, 14)]
    assert counts == [1] * 12
