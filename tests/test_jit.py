"""Each promise of the jit, by a test that a lying jit fails: every call is compared with the same Python, eager."""

from __future__ import annotations

import gc
import random
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassgrad import Context, GlassgradError, JitError, Tensor, dtypes, nn
from glassgrad.engine import buffer
from glassgrad.jit import TinyJit
from glassgrad.nn import optim
from glassgrad.nn.state import get_parameters, get_state_dict, load_state_dict

CALLS = 8
_numbers = np.random.default_rng(0)


def rand(*shape: int) -> Tensor:
    return Tensor(_numbers.standard_normal(shape).astype(np.float32))


def same(ours: Any, eager: Any) -> None:
    got, want = (np.asarray(v.numpy() if isinstance(v, Tensor) else v) for v in (ours, eager))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def follow(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], calls: int = CALLS,
           change: Callable[[int], None] = lambda call: None) -> TinyJit:
    """Call a function jitted and eagerly, changing something before each call; all results must agree."""
    jitted = TinyJit(function)
    for call in range(calls):
        change(call)
        arguments = make()
        same(jitted(*arguments), function(*arguments))
    return jitted


# -- guards -------------------------------------------------------------------------------------------------------
def test_new_shapes_types_and_devices_are_captured_anew() -> None:
    double = TinyJit(lambda x: x + x)
    for call in range(4):
        for shape in ((3,), (4,), (2, 3), (0, 3), ()):
            x = rand(*shape)
            same(double(x), x + x)
        for dtype in ("int32", "float64", "uint8"):
            for device in ("CPU", "PYTHON"):
                x = Tensor([1, 2, call], dtype=dtype, device=device)
                result = double(x)
                assert (result.tolist(), result.dtype, result.device) == ([2, 4, 2 * call], x.dtype, device)


def test_plain_arguments_are_compared_by_value_and_type() -> None:
    multiply = TinyJit(lambda x, s: x * s)
    for _ in range(3):
        for s in (1, 2, 3.5, True, 1.0, -0.0, 0.0):
            x = rand(3)
            same(multiply(x, s), x * s)
            same(multiply(x, s=s), x * s)
            assert np.signbit(multiply(Tensor([1.0]), s).item()) == np.signbit(float(s))


SCALE = 1.0


def test_a_global() -> None:
    def change(call: int) -> None:
        global SCALE
        SCALE = 1.0 + call // 4
    assert follow(lambda x: x * SCALE, lambda: (rand(3),), change=change).captured


def _scaled(x: Tensor) -> Tensor:
    return x * SCALE


def test_a_global_that_another_function_sees() -> None:
    def change(call: int) -> None:
        global SCALE
        SCALE = 1.0 + call // 4
    follow(lambda x: _scaled(x) + 1, lambda: (rand(3),), change=change)


def test_closures_lists_dicts_namespaces_numbers_and_arrays() -> None:
    number, row, table, space = 1.0, [1.0], {"lr": 1.0}, types.SimpleNamespace(k=1.0)
    scalar, array, many = np.float32(2), np.ones(3, np.float32), list(range(100))

    def see(x: Tensor) -> Tensor:
        return x * number * row[0] * table["lr"] * space.k * float(scalar) * Tensor(array) * many[7]

    def change(call: int) -> None:
        nonlocal number, scalar
        if call == 3:
            number = 2.0
        if call == 5:
            row[0] = 3.0
        if call == 7:
            table["lr"] = 4.0
        if call == 9:
            space.k = 5.0
        if call == 11:
            scalar = np.float32(40)
        if call == 13:
            array[1] = 7.0
        if call == 15:
            many[7] = -1
    assert follow(see, lambda: (rand(3),), 18, change).captured


def test_default_arguments_and_objects_handed_in() -> None:
    def scale(x: Tensor, by: float = 2.0) -> Tensor:
        return x * by

    def change_default(call: int) -> None:
        scale.__defaults__ = (2.0 + call // 4,)
    follow(scale, lambda: (rand(3),), change=change_default)
    thing = types.SimpleNamespace(k=1.0, w=rand(3))

    def change_thing(call: int) -> None:
        if call == 4:
            thing.k = 2.0
        if call == 6:
            thing.w = rand(3)
    follow(lambda x, t: x * t.k * t.w, lambda: (rand(3), thing), change=change_thing)


def test_an_array_handed_in_is_compared_by_content() -> None:
    array = np.ones(3, np.float32)

    def change(call: int) -> None:
        array[0] = call // 3
    follow(lambda x, a: x * Tensor(a), lambda: (rand(3), array), 9, change)


def test_methods_of_two_instances_and_their_attributes() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight, self.k, self.part = rand(3), 2.0, types.SimpleNamespace(z=1.0)

        def plain(self, x: Tensor) -> Tensor:
            return x * self.weight * self.k * self.part.z

        jitted = TinyJit(plain)

    one, two = Model(), Model()
    for call in range(12):
        if call == 4:
            one.k = 3.0
        if call == 7:
            one.part.z = 9.0
        x = rand(3)
        same(one.jitted(x), one.plain(x))
        same(two.jitted(x), two.plain(x))
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_the_training_switch_and_settings() -> None:
    drop = TinyJit(lambda x: x.dropout(0.9))
    for _ in range(4):
        same(drop(Tensor.ones(100)), np.ones(100))
        with Tensor.train():
            assert (drop(Tensor.ones(100)).numpy() == 0).mean() > 0.5
        with Context(NOOPT=1):
            same(drop(Tensor.ones(100)), np.ones(100))


# -- results ------------------------------------------------------------------------------------------------------
def test_results_stay_the_callers() -> None:
    ways = [lambda r: r, lambda r: r.T[1:], lambda r: r.numpy(), lambda r: r.numpy()[1:], lambda r: np.array(r.data()),
            lambda r: r + 1]
    for way in ways:
        double = TinyJit(lambda x: x * 2)
        inputs = [rand(4, 5) for _ in range(10)]
        held = [way(double(x)) for x in inputs]
        for x, result in zip(inputs, held):
            same(result, way(x * 2))


def test_what_was_read_through_a_view_of_a_result_is_not_read_again() -> None:
    follow(lambda x, y: (x @ y).sum(), lambda: (rand(3, 4), rand(4, 3)), 12)


def test_nested_results_an_argument_a_view_of_one_and_the_same_tensor_twice() -> None:
    @TinyJit
    def nest(x: Tensor) -> dict[str, Any]:
        y = x * 2
        return {"y": y, "list": [x + 1, (y, None)], "none": None, "again": y, "text": "s", "x": x, "view": x[1:],
                "t": x.T}

    for _ in range(CALLS):
        x = rand(3, 2)
        r = nest(x)
        assert (r["none"], r["list"][1][1], r["text"]) == (None, None, "s") and r["x"] is x
        for got, want in ((r["y"], x * 2), (r["list"][0], x + 1), (r["list"][1][0], x * 2), (r["again"], x * 2),
                          (r["view"], x[1:]), (r["t"], x.T)):
            same(got, want)


def test_nothing_constants_and_weights_can_be_returned() -> None:
    w = rand(3)
    nothing = TinyJit(lambda x: None)
    several = TinyJit(lambda x: (x + 1, Tensor.ones(3), Tensor.arange(4), Tensor([1.0, 2.0]), w))
    for _ in range(CALLS):
        x = rand(3)
        assert nothing(x) is None
        a, b, c, d, e = several(x)
        same(a, x + 1)
        assert (b.tolist(), c.tolist(), d.tolist()) == ([1.0] * 3, [0, 1, 2, 3], [1.0, 2.0]) and e is w


def test_a_plain_result_that_changes_is_refused() -> None:
    counts = iter(range(100))
    with pytest.raises(JitError, match="the function returned"):
        follow_count = TinyJit(lambda x: (x + 1, next(counts)))
        for _ in range(CALLS):
            follow_count(rand(3))


# -- arguments ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("function, make", [
    (lambda x, y: x * 2 + y, lambda: (lambda x: (x, x))(rand(3))),                                # one tensor twice
    (lambda x, y: x @ y, lambda: (lambda a: (a[1:4, ::2], a.T[:4, 2:5]))(rand(6, 8))),            # views
    (lambda x, y: x @ y, lambda: (lambda a: (a + 1, a.exp()))(rand(4, 4))),                       # lazy
    (lambda x, y: x * y, lambda: (rand(4), Tensor.full((4,), float(_numbers.integers(9))))),      # constants
    (lambda x, y: x * y, lambda: (rand(4), Tensor(float(_numbers.integers(9))))),                 # without axes
    (lambda d, n: d["a"] * n[0] + n[1][0], lambda: ({"a": rand(3)}, [rand(3), (rand(3),)])),      # nested
    (lambda x, s: x[s] * 2, lambda: (rand(9), slice(int(_numbers.integers(2)), 6))),              # a slice
    (lambda x, d: x.cast(d), lambda: (rand(3), dtypes.float64)),
], ids=["twice", "views", "lazy", "constants", "scalars", "nested", "slices", "types"])
def test_arguments_of_every_kind(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> None:
    jitted = TinyJit(function)
    for _ in range(12):
        arguments = make()
        same(jitted(*arguments), function(*arguments))
    assert jitted.captured


def test_keywords_in_any_order() -> None:
    def add(x: Tensor, *, y: Tensor, z: Tensor | None = None) -> Tensor:
        return x * y + (0 if z is None else z)
    jitted = TinyJit(add)
    for _ in range(CALLS):
        x, y, z = rand(3), rand(3), rand(3)
        same(jitted(x, y=y), x * y)
        same(jitted(x, y=y, z=z), x * y + z)
        same(jitted(z=z, x=x, y=y), x * y + z)


def test_an_argument_assigned_inside() -> None:
    @TinyJit
    def grow(x: Tensor, y: Tensor) -> Tensor:
        x.assign(x + 1)
        return y * 2
    for _ in range(CALLS):
        x = rand(3)
        before = x.numpy().copy()
        same(grow(x, x), before * 2)
        same(x, before + 1)


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
def test_random_numbers_are_those_of_the_eager_program() -> None:
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


# -- what is refused ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("read", [
    lambda y: y.sum().item(), lambda y: y.numpy(), lambda y: y.tolist(), str, lambda y: bool(y.sum() > 0),
    lambda y: y.data(), lambda y: float(y.sum()), lambda y: 1.0 in y, np.asarray, lambda y: y.nonzero(),
    lambda y: y.masked_select(y > 0)])
def test_reading_inside_is_refused_and_all_stays_usable(read: Callable[[Tensor], Any]) -> None:
    def look(x: Tensor) -> Tensor:
        y = x * 2
        read(y)
        return y
    with pytest.raises(JitError, match="a value is read inside a jitted function"):
        TinyJit(look)(rand(3))
    follow(lambda x: x + 1, lambda: (rand(3),), 4)
    read(rand(3))


def test_a_function_that_changes_what_it_sees_is_refused() -> None:
    count, log = [0], []

    def counts(x: Tensor) -> Tensor:
        count[0] += 1
        return x * 2

    def logs(x: Tensor) -> Tensor:
        log.append(1)
        return x * 2
    for function, words in ((counts, "the function itself changes"), (logs, "the length of a list"),
                            (lambda x: x * random.choice([2.0]), "Python's random")):
        with pytest.raises(JitError, match=words):
            jitted = TinyJit(function)
            for _ in range(4):
                jitted(rand(3))


def test_work_that_differs_at_each_call_is_refused() -> None:
    factors = iter(range(100))
    with pytest.raises(JitError, match="the number 2.0 became 3.0"):
        jitted = TinyJit(lambda x: x * float(next(factors)))
        for _ in range(CALLS):
            jitted(rand(3))


def test_an_exception_inside_leaves_everything_usable() -> None:
    fails = [True]

    @TinyJit
    def maybe(x: Tensor) -> Tensor:
        if fails[0]:
            raise KeyError("mine")
        return x * 2
    for _ in range(3):
        with pytest.raises(KeyError):
            maybe(rand(3))
    fails[0] = False
    for _ in range(6):
        x = rand(3)
        same(maybe(x), x * 2)
    assert issubclass(JitError, GlassgradError)


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


def test_no_memory_stays_behind() -> None:
    total = TinyJit(lambda x, k: (x * 2).sum() + k)
    for _ in range(6):
        total(rand(100), 0).item()
    gc.collect()
    before = len(buffer._live)
    for call in range(90):
        total(rand(100), call % 80).item()         # a new combination each time: the oldest are forgotten
    total.reset()
    gc.collect()
    assert len(buffer._live) <= before
