"""A jitted function whose arguments have another shape at each call: compiled a few times, right at every size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glassgrad import Context, GlobalCounters, Tensor, TinyJit, nn
from glassgrad.engine import realize as engine
from glassgrad.engine.changing_sizes.size_families import SEEN
from glassgrad.jit import replay as jit_replay

RANDOM = np.random.default_rng(11)
WEIGHT = RANDOM.standard_normal((6, 5)).astype(np.float32)
MOST_COMPILED = 1 + SEEN         # the first size; then as without the jit, with the kernels for all sizes


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


def test_sizes_that_come_again_are_replayed_with_kernels_for_all_sizes() -> None:
    weight = Tensor(WEIGHT).realize()
    function = TinyJit(lambda x: (x @ weight).softmax(0).realize())
    counts = []
    for n in (*range(2, 20), *range(2, 20), *range(2, 20)):
        x = rows(n)
        count, got = schedules_of(function, x)
        np.testing.assert_allclose(got, probabilities(x), rtol=1e-4, atol=1e-6)
        counts.append(count)
    assert sum(counts) <= MOST_COMPILED and function._replayed == 18


def test_a_size_that_is_replayed_often_gets_kernels_of_its_own(monkeypatch: pytest.MonkeyPatch,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(jit_replay, "FIXED_AFTER", 3)
    weight = Tensor(WEIGHT).realize()
    function = TinyJit(lambda x: (x @ weight).softmax(0).realize())
    for n in range(2, 20):
        schedules_of(function, rows(n))
    for n in (19, 12):
        counts = []
        with Context(DEBUG=1):
            for _ in range(9):
                x = rows(n)
                count, got = schedules_of(function, x)
                np.testing.assert_allclose(got, probabilities(x), rtol=1e-4, atol=1e-6)
                counts.append(count)
        # one more trace, three replays, two traces with its own kernels, replays of those
        assert counts == [0, 0, 0, 0, 1, 0, 0, 0, 0]
        assert f"DYNAMIC: size {n} was replayed 3 times: it gets kernels of its own" in capsys.readouterr().out


def test_a_replay_takes_the_memory_of_its_size() -> None:
    """Kernels for all sizes are for up to 1,024 rows, whose products are 4 MiB."""
    function = TinyJit(lambda x: ((x @ x.T).relu() @ x).relu().sum(1).realize())
    for n in (30, 41, 57, 64, 70, 70, 70):
        function(Tensor(rows(n)).realize())
    assert function.memory is not None and function._replayed == 1
    assert 4 * 70 * 70 <= function.memory.between < 1 << 20


class Model:
    """Looks up rows, compares them and says which came."""

    def __init__(self) -> None:
        Tensor.manual_seed(5)
        self.table, self.hidden, self.out = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Linear(12, 20)
        self.optimizer = nn.optim.Adam(nn.state.get_parameters(self), lr=0.01)

    def step(self, x: Tensor, labels: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        rows = self.table(x)
        read = (rows @ rows.transpose(1, 2)).softmax(-1) @ self.hidden(rows).relu()
        loss = self.out(read).reshape(-1, 20).sparse_categorical_crossentropy(labels.reshape(-1)).backward()
        return loss.realize(*self.optimizer.schedule_step())


def test_training_over_texts_of_changing_length_compiles_four_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_replay, "FIXED_AFTER", 4)
    plain, jitted = Model(), Model()
    step = TinyJit(jitted.step)
    lengths = [int(n) for n in np.random.default_rng(2).integers(3, 30, 12)]
    compiled = []
    with Tensor.train():
        for n in lengths * 8:
            text = RANDOM.integers(0, 20, (2, 4, n))
            before = GlobalCounters.schedules
            got = step(Tensor(text[0]).realize(), Tensor(text[1]).realize()).item()
            compiled.append(GlobalCounters.schedules - before)
            with Context(DYNAMIC=0):
                np.testing.assert_allclose(got, plain.step(Tensor(text[0]), Tensor(text[1])).item(), rtol=1e-3)
    assert sum(compiled[:3 * len(lengths)]) <= MOST_COMPILED and step._replayed > 60
    for x, y in zip(nn.state.get_parameters(plain), nn.state.get_parameters(jitted)):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-3, atol=1e-4)


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
