"""Each promise of the jit about what lasts: weights, state, training, random numbers, devices, threads, memory."""

from __future__ import annotations

import gc
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jit_reference import CALLS, follow, rand, same

from glassgrad import Context, Device, JitError, Tensor, jit as jit_module, nn
from glassgrad.engine import buffer
from glassgrad.jit import TinyJit
from glassgrad.nn import optim
from glassgrad.nn.state import get_parameters, get_state_dict, load_state_dict
from glassgrad.runtime.python.python_device import PythonDevice


# -- weights and state --------------------------------------------------------------------------------------------
def test_weights_assigned_replaced_loaded_and_exchanged() -> None:
    model, other = types.SimpleNamespace(w=rand(3, 3), rows=[rand(3, 3)], layer=nn.Linear(3, 3)), nn.Linear(3, 3)
    kept = []

    def change(call: int) -> None:
        if call == 3:
            model.w.assign(rand(3, 3))
        if call == 4:
            model.w.assign(rand(3, 3) * 2)
        if call == 5:
            model.w.replace(rand(3, 3))
        if call == 7:
            kept.append(model.w)
            model.w = rand(3, 3)
        if call == 9:
            kept.append(model.rows[0])
            model.rows[0] = rand(3, 3)
        if call == 11:
            load_state_dict(model.layer, get_state_dict(other), verbose=False)
    assert follow(lambda x: model.layer(x @ model.w @ model.rows[0]), lambda: (rand(2, 3),), 14, change).captured


@pytest.mark.parametrize("way", ["assign", "replace"])
def test_a_weight_that_is_assigned_to_between_calls_is_still_changed_by_later_ones(way: str) -> None:
    def values(wrap: Callable[..., Any]) -> list[Any]:
        w = Tensor([8.0, 16.0]).realize()

        def update() -> None:
            getattr(w, way)(w * 0.5 + 1)
        step = wrap(update)
        found = []
        for call in range(CALLS):
            if call == 4:
                w.assign(w + 1)            # computed when the next call reads it
            step()
            found.append(w.tolist())
        return found
    assert values(TinyJit) == values(lambda function: function)


def test_two_tensors_of_one_value_part_ways() -> None:
    first = rand(3).realize()
    second = first.detach()

    def change(call: int) -> None:
        if call in (4, 6):
            first.assign(rand(3))
        if call == 8:
            second.assign(rand(3))
    follow(lambda x: x * second, lambda: (rand(3),), 11, change)


def test_a_weight_chosen_by_hidden_state_is_refused() -> None:
    weights = [rand(3), rand(3)]
    turn = iter([0, 1] * 50)
    choose = TinyJit(lambda x: x * weights[next(turn)])
    seen = []
    for call in range(6):
        x = rand(3)
        try:
            seen.append(np.allclose(choose(x).numpy(), (x * weights[call % 2]).numpy()))
        except JitError:
            break
    assert all(seen[:2])


def test_state_assigned_inside_and_a_cache_written_by_row() -> None:
    total, cache, expected = Tensor([0.0]), Tensor.zeros(4, 3).contiguous().realize(), np.zeros((4, 3), np.float32)

    @TinyJit
    def collect(x: Tensor, row: int) -> Tensor:
        total.assign(total + x.sum())
        cache[row] = x
        return cache.sum()

    known = 0.0
    for call in range(16):
        x = rand(3)
        result = collect(x, call % 4)
        known += x.sum().item()
        expected[call % 4] = x.numpy()
        same(total, [known])
        same(cache, expected)
        same(result, expected.sum())


def test_a_tensor_put_into_an_attribute_is_a_new_one_each_time() -> None:
    model = types.SimpleNamespace(hidden=None)

    @TinyJit
    def keep(x: Tensor) -> Tensor:
        model.hidden = x * 2
        return model.hidden.sum()

    held, wanted = [], []
    for _ in range(CALLS):
        x = rand(3)
        keep(x)
        held.append(model.hidden)
        wanted.append((x * 2).numpy())
    for tensor, value in zip(held, wanted):
        same(tensor, value)


def test_batchnorm_statistics_follow() -> None:
    eager, layer = nn.BatchNorm(4), nn.BatchNorm(4)
    jitted = TinyJit(lambda x: layer(x))
    for call in range(12):
        with Tensor.train(call % 6 < 4):
            x = rand(5, 4, 3, 3)
            same(jitted(x), eager(x))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            same(getattr(layer, name), getattr(eager, name))


# -- training -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [
    lambda p: optim.SGD(p, lr=0.1), lambda p: optim.SGD(p, lr=0.1, momentum=0.9), lambda p: optim.Adam(p, lr=0.01),
    lambda p: optim.AdamW(p, lr=0.01), lambda p: optim.RMSprop(p, lr=0.01)],
    ids=["SGD", "momentum", "Adam", "AdamW", "RMSprop"])
def test_an_optimizer_inside(make: Callable[..., Any]) -> None:
    def train(wrap: Callable[..., Any]) -> tuple[list[float], list[np.ndarray]]:
        Tensor.manual_seed(7)
        numbers = np.random.default_rng(5)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = make(get_parameters(model))

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss
        step = wrap(step)
        with Tensor.train():
            losses = [step(Tensor(numbers.standard_normal((4, 6)).astype(np.float32)),
                           Tensor(numbers.integers(0, 3, 4))) for _ in range(CALLS)]
        return [loss.item() for loss in losses], [p.numpy() for p in get_parameters(model)]

    (losses, weights), (expected, eager) = train(TinyJit), train(lambda f: f)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for a, b in zip(weights, eager):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reset", [(), (5,), (1, 3, 5, 7), (3, 4, 8)])
def test_gradients_accumulate_until_reset(reset: tuple[int, ...]) -> None:
    def gather(wrap: Callable[..., Any]) -> list[Any]:
        w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
        step = wrap(lambda x: (w * x).sum().backward())
        seen = []
        for call in range(12):
            if call in reset:
                w.grad = None
            step(Tensor([1.0 * call, 2.0, 3.0]))
            assert w.grad is not None
            seen.append(w.grad)
        return [g.tolist() for g in seen]
    assert gather(TinyJit) == gather(lambda f: f)


def test_gradients_of_arguments_and_of_others() -> None:
    @TinyJit
    def square(x: Tensor) -> Tensor:
        return (x * x).sum().backward()
    other = Tensor([1.0, 2.0])
    for call in range(CALLS):
        (other * call).sum().backward()
        x = Tensor([1.0 * call, 2.0], requires_grad=True)
        square(x)
        assert x.grad is not None and x.grad.tolist() == [2.0 * call, 4.0]
        square(x)
        assert x.grad.tolist() == [4.0 * call, 8.0]
        assert other.grad is not None and other.grad.tolist() == [float(call)] * 2      # not this function's to drop
        other.grad = None


# -- random numbers -----------------------------------------------------------------------------------------------
def test_randomnumbers_are_those_of_the_eager_program() -> None:
    noise = TinyJit(lambda x: x + Tensor.rand(5))
    for seed in (1, 2, 1):
        Tensor.manual_seed(seed)
        mixed = []
        for _ in range(6):
            mixed += [noise(Tensor.zeros(5)).tolist(), Tensor.rand(5).tolist()]
        Tensor.manual_seed(seed)
        assert np.allclose(mixed, [Tensor.rand(5).tolist() for _ in range(12)])
    with Tensor.train():
        drop = TinyJit(lambda x: x.dropout(0.5))
        assert len({tuple(drop(Tensor.ones(50)).tolist()) for _ in range(CALLS)}) == CALLS


def test_the_message_that_there_is_a_new_random_seed(capsys: pytest.CaptureFixture[str]) -> None:
    @TinyJit
    def noise(x: Tensor) -> Tensor: return x + Tensor.rand(5)
    for _ in range(3):
        noise(Tensor.zeros(5))
    Tensor.manual_seed(4)
    with Context(DEBUG=1):
        noise(Tensor.zeros(5))
    assert "jit: noise is captured anew: the random seed is no longer what it was\n" in capsys.readouterr().out


# -- jits within, devices, threads, memory --------------------------------------------------------------------------
def test_a_jit_inside_another() -> None:
    inner = TinyJit(lambda x: x * 2)
    outer = TinyJit(lambda x: inner(x) + 1)
    for _ in range(CALLS):
        x = rand(3)
        same(outer(x), x * 2 + 1)
        same(inner(x), x * 2)


def test_two_devices_inside() -> None:
    jitted = TinyJit(lambda x: (x * 2).to("PYTHON") + 1)
    for _ in range(6):
        x = rand(3)
        result = jitted(x)
        assert result.device == "PYTHON"
        same(result, x * 2 + 1)


def test_a_device_registered_anew_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def make(name: str) -> Callable[[], Any]:
        class Device_(PythonDevice):
            def plan(self, programs: Any, slots: Any) -> Any:
                ran.append(name)
                return super().plan(programs, slots)
        return lambda: Device_("MINE")
    double = TinyJit(lambda x: (x * 2).to("PYTHON"))
    for name in ("first", "second"):
        monkeypatch.setitem(Device._devices, "MINE", make(name))
        for call in range(4):
            assert double(Tensor([1.0, call], device="MINE")).tolist() == [2.0, 2.0 * call]
        assert ran[-1] == name


def test_threads_capture_and_replay_apart() -> None:
    shared = TinyJit(lambda x, k: (x * k).sum())
    wrong: list[Any] = []

    def work(k: float) -> None:
        try:
            own = TinyJit(lambda x: (x * k).sum())
            for call in range(8):
                x = Tensor(np.full(4, call, np.float32))
                assert own(x).item() == shared(x, k).item() == 4 * call * k
        except Exception as problem:
            wrong.append(problem)
    threads = [threading.Thread(target=work, args=(k,)) for k in (2.0, 3.0)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong


def test_no_memory_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_module, "_MOST_COMBINATIONS", 8)
    total = TinyJit(lambda x, k: (x * 2).sum() + k)
    for _ in range(6):
        total(rand(100), 0).item()
    gc.collect()
    before = len(buffer.live_buffers())
    for call in range(20):
        total(rand(100), call % 15).item()         # a new combination each time: the oldest are forgotten
    total.reset()
    gc.collect()
    assert len(buffer.live_buffers()) <= before


# -- a state that each call replaces ---------------------------------------------------------------------------------
def _replace(m: Any, x: Tensor) -> Tensor:
    m.h = (m.h * 0.5 + x).realize()
    return m.h * 2


def _replace_lazily(m: Any, x: Tensor) -> Tensor:
    m.h = m.h * 0.5 + x
    return m.h + 1


def _replace_two(m: Any, x: Tensor) -> Tensor:
    m.h = (m.p + x).realize()
    m.p = (m.h * 0.5).realize()
    return m.h - m.p


def _replace_with_one(m: Any, x: Tensor) -> Tensor:
    m.h = m.p = (m.h * 0.5 + m.p + x).realize()
    return m.h


def _replace_window(m: Any, x: Tensor) -> Tensor:
    m.h = m.h.cat(x)[1:3].realize()
    return m.h.flip(0)


def _replace_in_a_dict(m: Any, x: Tensor) -> Tensor:
    m.states["h"] = (m.states["h"] * 0.5 + x).realize()
    return m.states["h"] * 1


@pytest.mark.parametrize("function", [_replace, _replace_lazily, _replace_two, _replace_with_one, _replace_window,
                                      _replace_in_a_dict])
def test_a_state_that_each_call_replaces(function: Any) -> None:
    """self.h = f(self.h): another tensor each time, found where the call before put it. Old ones are whoever's."""
    def model() -> Any:
        h, p = (Tensor([value, value]).realize() for value in (1.0, 3.0))
        return types.SimpleNamespace(h=h, p=p, states={"h": Tensor([5.0, 6.0]).realize()})

    def shown(m: Any) -> list[Any]:
        return [m.h.tolist(), m.p.tolist(), m.states["h"].tolist()]

    jitted, plain = model(), model()
    step, kept = TinyJit(lambda x: function(jitted, x)), []
    for i in range(8):
        x = Tensor([float(i), 2.0]).realize()
        if i == 6:                                       # somebody else may replace it too
            for m in (jitted, plain):
                m.h = Tensor([100.0, 200.0]).realize()
        assert step(x).tolist() == function(plain, x).tolist() and shown(jitted) == shown(plain), i
        kept.append((jitted.h, jitted.h.tolist()))
    assert all(tensor.tolist() == value for tensor, value in kept)
    assert step._replayed >= 3


def test_what_else_a_function_may_put_in_the_place_of_a_state() -> None:
    def again(function: Any) -> None:
        m = types.SimpleNamespace(h=Tensor([1.0, 2.0]).realize(), p=Tensor([3.0, 4.0]).realize(), t=())
        step = TinyJit(lambda x: function(m, x))
        for i in range(4):
            step(Tensor([float(i), 2.0]).realize())

    def keep_argument(m: Any, x: Tensor) -> Tensor:
        m.h = x
        return x + 1

    def keep_old(m: Any, x: Tensor) -> Tensor:
        m.p, m.h = m.h, (m.h + x).realize()
        return m.h * 1

    def tuple_of_them(m: Any, x: Tensor) -> Tensor:
        m.h = (m.h + x).realize()
        m.t = (m.h,)
        return m.h * 1

    for function in (keep_argument, keep_old, tuple_of_them):
        again(function)


def test_a_replaced_state_that_is_also_handed_in() -> None:
    def run(wrap: Callable[..., Any]) -> list[Any]:
        m = types.SimpleNamespace(h=Tensor([1.0, 2.0]).realize())

        @wrap
        def step(a: Tensor, x: Tensor) -> Tensor:
            a.assign(a + x)
            m.h = (m.h * 2).realize()
            return m.h * 1

        seen = []
        for call in range(12):
            a = m.h if call in (4, 5, 6, 7, 9) else Tensor([1.0, 1.0]).realize()
            seen.append([step(a, Tensor([1.0, 2.0]).realize()), a, m.h])
        return [[t.tolist() for t in row] for row in seen]
    assert run(TinyJit) == run(lambda function: function)


def test_a_part_of_a_weight_that_is_put_somewhere_is_a_value_in_traces_and_in_replays() -> None:
    model = types.SimpleNamespace(weight=Tensor([0.0, 2.0]).realize(), first=Tensor([0.0]))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        model.first = model.weight[0:1]
        return x + 1

    seen = []
    for call in range(1, 6):
        step(Tensor([1.0]))
        model.weight.assign(Tensor([float(call), 2.0])).realize()
        seen.append(model.first.item())
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0] and step.captured
