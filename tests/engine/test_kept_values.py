"""A program that holds lazy values from step to step computes one step at each step, and the same values."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import held_value_fuzzer
import numpy as np
import pytest

from glassgrad import Context, GlobalCounters, Tensor, TinyJit, no_grad
from glassgrad.engine.changing_sizes import kept_values
from glassgrad.engine.realize import forgotten_schedules
from glassgrad.engine.registry import registry

STEPS = 30
Program = Callable[[int], Iterator[float]]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return Tensor((np.random.default_rng([seed, *shape]).standard_normal(shape) * 0.3).astype(np.float32))


def state_of_a_cell(steps: int) -> Iterator[float]:
    w, u, h = numbers(16, 16), numbers(8, 16), Tensor.zeros(4, 16)
    for t in range(steps):
        h = (numbers(4, 8, seed=t) @ u + h @ w).tanh()
        yield h.mean().item()


def two_states(steps: int) -> Iterator[float]:
    w, u, h = numbers(16, 64), numbers(8, 64), Tensor.zeros(4, 16)
    c = h
    for t in range(steps):
        i, f, g, o = (numbers(4, 8, seed=t) @ u + h @ w).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        yield h.mean().item()


def power_iteration(steps: int) -> Iterator[float]:
    a, s = numbers(16, 16), numbers(16, 16, seed=1)
    for _ in range(steps):
        s = (a @ s).tanh()
        yield float(s.sum())


def momentum(steps: int) -> Iterator[float]:
    w, v = numbers(8, 4), Tensor.zeros(8, 4)
    w.requires_grad = True
    for t in range(steps):
        loss = ((numbers(32, 8, seed=t) @ w - numbers(32, 4, seed=t)) ** 2).mean()
        w.grad = None
        loss.backward()
        v = 0.9 * v + w.grad
        with no_grad():
            w -= 0.05 * v
        yield loss.item()


def momentum_without_gradients(steps: int) -> Iterator[float]:
    w, v = numbers(8, 4), Tensor.zeros(8, 4)
    w.requires_grad = True
    for t in range(steps):
        loss = ((numbers(32, 8, seed=t) @ w - numbers(32, 4, seed=t)) ** 2).mean()
        w.grad = None
        loss.backward()
        with no_grad():
            v = 0.9 * v + w.grad
            w -= 0.05 * v
        yield loss.item()


def running_mean(steps: int) -> Iterator[float]:
    mean = Tensor.zeros(8)
    for t in range(steps):
        x = numbers(32, 8, seed=t)
        mean = 0.9 * mean + 0.1 * x.mean(0)
        yield ((x - mean) ** 2).sum().item()


def average_of_weights(steps: int) -> Iterator[float]:
    w, x, y = numbers(8, 4), numbers(32, 8), numbers(32, 4)
    w.requires_grad = True
    average = w.detach()
    for _ in range(steps):
        loss = ((x @ w - y) ** 2).mean()
        w.grad = None
        loss.backward()
        with no_grad():
            w -= 0.05 * w.grad
        average = 0.99 * average + 0.01 * w.detach()
        yield loss.item() + average.sum().item()


def truncated_history(steps: int) -> Iterator[float]:
    w, u, h = numbers(16, 16), numbers(8, 16), Tensor.zeros(4, 16)
    w.requires_grad = u.requires_grad = True
    for t in range(steps):
        h = (numbers(4, 8, seed=t) @ u + h.detach() @ w).tanh()
        loss = (h ** 2).mean()
        w.grad = u.grad = None
        loss.backward()
        with no_grad():
            w -= 0.1 * w.grad
            u -= 0.1 * u.grad
        yield loss.item()


def without_gradients(steps: int) -> Iterator[float]:
    with no_grad():
        yield from state_of_a_cell(steps)


def last_two_values(steps: int) -> Iterator[float]:
    before, now, a = numbers(8, 8), numbers(8, 8, seed=1), numbers(8, 8, seed=2)
    for _ in range(steps):
        before, now = now, (a @ now).sin() + 0.5 * before
        yield now.sum().item()


def read_by_two_lines(steps: int) -> Iterator[float]:
    w, u, h = numbers(16, 16), numbers(8, 16), Tensor.zeros(4, 16)
    for t in range(steps):
        h = (numbers(4, 8, seed=t) @ u + h @ w).tanh()
        yield h.mean().item() + (h.std().item() if t % 3 else 0)


def one_random_value(steps: int) -> Iterator[float]:
    Tensor.manual_seed(5)
    noise = Tensor.rand(4, 4)
    for _ in range(steps):
        noise = noise * 0.5 + Tensor.rand(4, 4)
        yield noise.sum().item()


PROGRAMS = (state_of_a_cell, two_states, power_iteration, momentum, momentum_without_gradients, running_mean,
            average_of_weights, truncated_history, without_gradients, last_two_values, read_by_two_lines,
            one_random_value)


def of_the_first_steps(program: Program, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a program reads when nothing is kept, in few steps."""
    with monkeypatch.context() as patched:
        patched.setattr("glassgrad.engine.changing_sizes.kept_values.values_to_keep", lambda *_: None)
        return list(program(7))


@pytest.mark.parametrize("dynamic", [0, 1])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_held_value_is_not_computed_again_at_each_step(program: Program, dynamic: int,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    with forgotten_schedules(), Context(DYNAMIC=dynamic):
        expected = of_the_first_steps(program, monkeypatch)
        with forgotten_schedules():
            before = GlobalCounters.schedules
            found, counts, work = [], [], []
            for value in program(STEPS):
                found.append(value)
                counts.append(GlobalCounters.schedules - before)
                work.append(GlobalCounters.global_ops)
    np.testing.assert_allclose(found[:7], expected, rtol=1e-4, atol=1e-5)
    assert counts[-1] <= 8 and counts[-1] == counts[STEPS // 2], counts
    assert work[-1] - work[-4] == work[-10] - work[-13]             # each step does the same


def test_a_cache_that_grows_is_computed_row_by_row() -> None:
    def program(steps: int) -> None:
        keys, query, w = numbers(1, 8), numbers(1, 8), numbers(8, 8)
        for t in range(steps):
            keys = keys.cat(numbers(1, 8, seed=t) @ w, dim=0)
            found.append(((query @ keys.T).softmax(-1) @ keys).sum().item())

    found: list[float] = []
    with forgotten_schedules():
        before = GlobalCounters.schedules
        program(STEPS)
        assert GlobalCounters.schedules - before <= 6
    rows = np.concatenate([numbers(1, 8).numpy(), *[numbers(1, 8, seed=t).numpy() @ numbers(8, 8).numpy()
                                                    for t in range(STEPS)]])
    scores = np.exp(numbers(1, 8).numpy() @ rows.T)
    np.testing.assert_allclose(found[-1], (scores / scores.sum() @ rows).sum(), rtol=1e-4)


def memory_after(program: Program, *steps: int) -> list[int]:
    found, before = [], GlobalCounters.mem_used
    for number, _ in enumerate(program(max(steps) + 1)):
        if number in steps:
            found.append(GlobalCounters.mem_used - before)
    return found


@pytest.mark.parametrize("program", [two_states, power_iteration, last_two_values, without_gradients,
                                     momentum_without_gradients, truncated_history])
def test_memory_does_not_grow_with_the_steps(program: Program) -> None:
    if program is two_states:                            # of the others none passes a gradient to its inputs
        program = without_gradients_of_two_states
    early, late = memory_after(program, 10, 60)
    assert late == early


def without_gradients_of_two_states(steps: int) -> Iterator[float]:
    with no_grad():
        yield from two_states(steps)


def test_gradients_pass_kept_values_back_to_the_first_step() -> None:
    w, x, h = numbers(8, 8), numbers(4, 8), numbers(4, 8, seed=1)
    w.requires_grad = True
    start = h
    for _ in range(8):
        h = (x + h @ w).tanh()
        h.mean().item()
    assert h.uop in registry.values
    for twice in (1, 2):
        h.sum().backward()
        other, again = numbers(8, 8), start
        other.requires_grad = True
        for _ in range(8):
            again = (x + again @ other).tanh()
        again.sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), twice * other.grad.numpy(), rtol=1e-4, atol=1e-5)
    assert h.sum().gradient(start)[0].shape == (4, 8)


def test_values_before_a_write_stay_what_they_were() -> None:
    a, s = numbers(8, 8), numbers(8, 8, seed=1)
    seen = []
    matrix, state = a.numpy(), s.numpy()
    for t in range(10):
        s = (a @ s).sin()
        state = np.sin(matrix @ state)
        s.mean().item()
        seen.append((s, state))
        if t == 5:
            a[0] = 2.0
            matrix = matrix.copy()
            matrix[0] = 2.0
        if t == 7:
            s = s + 0
            s[1:3] = 1.0
            state = state.copy()
            state[1:3] = 1.0
    for held, expected in seen:                          # also those whose values were dropped
        np.testing.assert_allclose(held.numpy(), expected, rtol=1e-3, atol=1e-4)


def test_a_kept_value_that_was_read_is_not_dropped() -> None:
    a, s, read = numbers(8, 8), numbers(8, 8, seed=1), []
    for _ in range(10):
        s = (a @ s).sin()
        s.mean().item()
        s.numpy()
        read.append(s)
    before = GlobalCounters.kernel_count
    for held in read:
        held.numpy()
    assert GlobalCounters.kernel_count == before


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="elsewhere memory of the host is copied")
def test_memory_of_others_that_changes_is_seen() -> None:
    shared = np.ones((4, 4), np.float32)
    x, s = Tensor.from_numpy(shared), numbers(4, 4)
    expected = s.numpy()
    for _ in range(6):
        s = s * 0.5 + x
        s.mean().item()
    shared[:] = 3
    for _ in range(6):
        expected = expected * 0.5 + 3
    np.testing.assert_allclose(s.numpy(), expected, rtol=1e-5)


def test_three_readings_of_one_value_keep_nothing() -> None:
    x = numbers(8, 8) * 2 + 1
    kept = len(registry.kept)
    read = [x.mean().item(), x.sum().item(), x.max().item(), x.std().item(), x.min().item()]
    assert np.isfinite(read).all()
    assert len(registry.kept) == kept and x.uop not in registry.values


def test_graphs_that_share_nothing_but_views_of_memory_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(kept_values, "_same_rows", lambda *graphs: compared.append(graphs) or {})
    turned = numbers(8, 4).realize().T                  # its node lives on, as those of a model's weights do
    with forgotten_schedules():
        for n in (2, 3, 5, 7):
            (numbers(n, 4) @ turned).tanh().sum().item()
    assert not compared
    with forgotten_schedules():
        held = numbers(8, 4).tanh()
        for n in (2, 3, 5, 7):
            (numbers(n, 8) @ held).sum().item()
    assert compared, "a value that each of them computes"


def test_nothing_is_kept_in_a_trace() -> None:
    a = numbers(8, 8)

    @TinyJit
    def step(s: Tensor) -> Tensor:
        for _ in range(4):
            s = (a @ s).sin()
            total = s.sum().realize()
        return total

    for t in range(5):
        s = numbers(8, 8, seed=t)
        kept = len(registry.kept)
        found = step(s.realize()).item()
        assert len(registry.kept) == kept
        state = s.numpy()
        for _ in range(4):
            state = np.sin(a.numpy() @ state)
        assert found == pytest.approx(state.sum(), rel=1e-3, abs=1e-4)


def test_what_is_kept_is_said_at_debug_1(capfd: pytest.CaptureFixture[str]) -> None:
    with forgotten_schedules(), Context(DEBUG=1):
        a, s = numbers(7, 7), numbers(7, 7, seed=1)
        for _ in range(6):
            s = (a @ s).tanh()
            s.sum().item()
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("kept:")]
    here = re.escape(__file__)
    assert len(lines) == 2
    assert re.fullmatch(rf"kept: float32\[7, 7\] made at {here}:\d+, was computed again by {here}:\d+", lines[0])


def test_threads_that_go_on_from_one_state_do_not_disturb_each_other() -> None:
    a, s = numbers(8, 8), numbers(8, 8, seed=1)
    for _ in range(5):
        s = (a @ s).sin()
        s.mean().item()
    found: dict[int, list[float]] = {}

    def go_on(thread: int) -> None:
        mine, found[thread] = s, []
        for _ in range(15):
            mine = (a @ mine).sin() + thread
            found[thread].append(mine.mean().item())

    threads = [threading.Thread(target=go_on, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, values in found.items():
        state = s.numpy()
        for value in values:
            state = np.sin(a.numpy() @ state) + number
            assert value == pytest.approx(state.mean(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_random_loops_that_hold_values_agree_with_pytorch(seed: int) -> None:
    assert held_value_fuzzer.check(seed) == ""
