"""Each promise of the jit about what a function is handed, sees and returns, by a test that a lying jit fails."""

from __future__ import annotations

import gc
import random
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jit_reference import CALLS, follow, numbers, rand, same

from glassgrad import Context, GlassgradError, JitError, Tensor, dtypes
from glassgrad.jit import TinyJit
from glassgrad.jit.plain_values import array_content


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


def test_closures_lists_dicts_namespacesnumbers_and_arrays() -> None:
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


def test_a_global_that_a_decorated_method_sees() -> None:
    class Model:
        @TinyJit
        def scale(self, x: Tensor) -> Tensor:
            return x * SCALE

    global SCALE
    model = Model()
    for call in range(CALLS):
        SCALE = 1.0 + call // 4
        x = rand(3)
        same(model.scale(x), x * SCALE)


def test_a_dict_and_keywords_are_two_ways_to_call() -> None:
    def add(x: Tensor, table: Any = None, **more: Tensor) -> Tensor:
        return x * table["y"] if table else x + more["y"]
    jitted = TinyJit(add)
    for _ in range(CALLS):
        x, y = rand(3), rand(3)
        same(jitted(x, {"y": y}), x * y)
        same(jitted(x, y=y), x + y)


def test_equal_numbers_that_are_other_objects_and_entries_that_come_and_go() -> None:
    space, table, row = types.SimpleNamespace(k=1000.5, part=None), {"a": 2.5}, [1000.5]

    def change(call: int) -> None:
        space.k = float("1000.5")            # an object of its own each time
        if call == 4:
            space.new = 3                    # not looked at by the function
        if call == 5:
            table["b"] = 4.0
        if call == 7:
            del table["b"]
        if call == 8:
            row[0], table["a"] = 3.0, 1.5
    assert follow(lambda x: x * space.k * sum(table.values()) * row[0], lambda: (rand(3),), 12, change).captured


def test_a_cell_that_is_emptied_and_filled_again() -> None:
    factor = 2.0

    def scale(x: Tensor) -> Tensor:
        return x * factor

    def change(call: int) -> None:
        nonlocal factor
        if call == 4:
            del factor
            with pytest.raises(NameError):
                jitted(rand(3))
            factor = 3.0
    jitted = TinyJit(scale)
    for call in range(CALLS):
        change(call)
        x = rand(3)
        same(jitted(x), x * (2.0 if call < 4 else 3.0))


def test_environment_variables_set_by_the_program_count(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = TinyJit(lambda x: x.dropout(0.9))
    for _ in range(3):
        monkeypatch.setenv("TRAINING", "0")
        same(drop(Tensor.ones(100)), np.ones(100))
        monkeypatch.setenv("TRAINING", "1")
        assert (drop(Tensor.ones(100)).numpy() == 0).mean() > 0.5


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.float32), np.arange(12, dtype=np.int8).reshape(3, 4)[:, 1:], np.array(3.0),
    np.zeros((0, 3), np.float32), np.array([np.nan, 1.0]), np.array(["a", "b"]), np.array([1, "b"], dtype=object)],
    ids=["floats", "a view", "no axes", "empty", "nan", "texts", "objects"])
def test_arrays_are_compared_bit_by_bit(array: np.ndarray) -> None:
    kept = array_content(array)
    assert array_content(array) == kept and hash(array_content(array)) == hash(kept)
    assert array_content(array) != array_content(array.reshape(-1, 1))
    if array.size:
        array[...] = np.roll(array.reshape(-1), 1).reshape(array.shape) if array.size > 1 else array + 1
        assert array_content(array) != kept


def test_what_always_changes_is_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.weight, self.count = rand(3), 0

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            return x * self.weight

    trainer = Trainer()
    for _ in range(24):
        trainer.count += 1                   # outside of the function, but in its sight
        x = rand(3)
        same(trainer.step(x), x * trainer.weight)
    said = capfd.readouterr().err.splitlines()
    assert said == ["glassgrad: jit: step was captured 16 times and hardly ever replayed: Trainer.count changes "
                    "between calls; keep it in a tensor, or where the function cannot reach it"]
    add = TinyJit(lambda x, number: x + number)
    for call in range(20):
        add(rand(3), call)
    assert "its plain arguments or shapes change between calls" in capfd.readouterr().err
    for call in range(20):
        add(rand(3), call % 4)               # few combinations, replayed often: nothing to say
    assert capfd.readouterr().err == ""


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
    (lambda x, y: x * y, lambda: (rand(4), Tensor.full((4,), float(numbers.integers(9))))),      # constants
    (lambda x, y: x * y, lambda: (rand(4), Tensor(float(numbers.integers(9))))),                 # without axes
    (lambda d, n: d["a"] * n[0] + n[1][0], lambda: ({"a": rand(3)}, [rand(3), (rand(3),)])),      # nested
    (lambda x, s: x[s] * 2, lambda: (rand(9), slice(int(numbers.integers(2)), 6))),              # a slice
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
        twin = Tensor(before)
        same(grow(x, x), grow.function(twin, twin))         # y is x, and has its new value
        same(twin, before + 1)
        same(x, before + 1)


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
    for function, words in ((counts, "the function itself changes"), (logs, "the length of log"),
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


def test_pieces_of_what_a_call_brings_and_makes() -> None:
    """Kernels begin inside other values' memory: in a replay as in the call."""
    weight = Tensor.rand(6, 4).realize()

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).contiguous()
        z = y[0]
        for i in range(1, 6):
            z = (z + y[i]).exp().sum(0, keepdim=True) * weight[i] * 0.01
        weight.assign(weight * 0.5 + y)
        return z.realize(), y

    value = weight.numpy()
    for n in range(6):
        x = np.random.default_rng(n).random((6, 4)).astype("float32")
        y = x * 2
        want = y[0]
        for i in range(1, 6):
            want = np.exp(want + y[i]).sum(0, keepdims=True) * value[i] * np.float32(0.01)
        got, twice = step(Tensor(x))
        value = value * np.float32(0.5) + y
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4)
        np.testing.assert_allclose(twice.numpy(), y, rtol=1e-6)
        np.testing.assert_allclose(weight.numpy(), value, rtol=1e-5)
    assert step.captured
