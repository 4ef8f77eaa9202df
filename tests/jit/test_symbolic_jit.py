"""Symbolic lengths under the jit: one capture for all values, and caches written in place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from symbolic_reference import DATA, DEVICES, MOST, NUMBERS, captured_once, near, soft

from glassgrad import (Context, GlobalCounters, IndexRangeError, InputError, JitError, ShapeError, Tensor, TinyJit,
                       Variable)


# -- under the jit ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", DEVICES)
def test_one_capture_serves_every_value(device: str) -> None:
    @TinyJit
    def function(t: Tensor, n: Any) -> Any:
        return t[:n].softmax(0).realize(), (t[:n * 2 + 1] * n).sum(0)

    v, t = Variable("v", 1, 34), Tensor(DATA, device=device).realize()
    for n in (3, 5, 34, 1, 17, 16, 2):
        rows, total = function(t, v.bind(n))
        assert rows.shape == (v.bind(n), 12)
        near(rows, soft(DATA[:n], 0))
        near(total, (DATA[:2 * n + 1] * n).sum(0))
        near(rows.sum(1), soft(DATA[:n], 0).sum(1))
    captured_once(function)


def test_results_of_a_jitted_call_stay_as_they_are() -> None:
    function = TinyJit(lambda t, n: t[:n] * 2)
    v, t = Variable("v", 1, MOST), Tensor(DATA).realize()
    kept = [(n, function(t, v.bind(n))) for n in (3, 5, 7, 9, 2)]
    for n, result in kept:
        near(result, DATA[:n] * 2)


def test_a_symbolic_tensor_as_an_argument() -> None:
    function = TinyJit(lambda x, n: (x * 2, x.sum(0) + n))
    v, t = Variable("v", 1, MOST), Tensor(DATA).realize()
    for n in (4, 6, 1, MOST, 33):
        b = v.bind(n)
        for x in (t[:b], t[:b].exp().realize().log()):
            doubled, total = function(x, b)
            near(doubled, DATA[:n] * 2)
            near(total, DATA[:n].sum(0) + n)
    captured_once(function)


def test_two_variables_and_equal_values_under_the_jit() -> None:
    function = TinyJit(lambda t, a, b: t[:a].sum(0) * t[:b].mean(0))
    v, w, t = Variable("v", 1, MOST), Variable("w", 1, MOST), Tensor(DATA).realize()
    for n, m in ((3, 3), (3, 3), (3, 4), (9, 2), (5, 5), (MOST, 1)):
        near(function(t, v.bind(n), w.bind(m)), DATA[:n].sum(0) * DATA[:m].mean(0))
        near(function(t, v.bind(n), v.bind(m)), DATA[:n].sum(0) * DATA[:m].mean(0))


def test_one_variable_in_two_places() -> None:
    function = TinyJit(lambda t, pair, n: t[:pair["length"]].T @ t[:n])
    v, t = Variable("v", 1, MOST), Tensor(DATA).realize()
    for n in (3, 4, 20, MOST):
        near(function(t, {"length": v.bind(n)}, n=v.bind(n)), DATA[:n].T @ DATA[:n], 1e-3)


def test_what_a_jitted_function_may_not_do_with_a_length() -> None:
    v, t = Variable("v", 1, MOST), Tensor(DATA).realize()
    seen = v.bind(5)

    def again(function: Callable[..., Any]) -> None:
        jitted = TinyJit(function)
        for n in (5, 5, 6):
            jitted(t, v.bind(n))

    other = Variable("other", 1, MOST).bind(5)      # no argument brings it, so nobody would ask it again
    for read, words in ((lambda t, n: t[:int(n)], r"int\(v = 5\)"), (lambda t, n: t * n.val, "the value of v = 5"),
                        (lambda t, n: t[:n] if other > 5 else t[:n],
                         "whether other - 5 > 0, which is true for some values only")):
        with pytest.raises(JitError, match=words):
            again(read)
    with pytest.raises(JitError, match="bound again inside a jitted function"):
        again(lambda t, n: t[:n].sum(0) + t[:v.bind(5)].sum(0))
    with pytest.raises(JitError, match="it sees the length v = 5"):
        again(lambda t, n: t[:n].sum(0) + t[:seen].sum(0))
    with pytest.raises(JitError, match="returns the length v = 5"):
        again(lambda t, n: (t[:n].sum(0), n))
    with pytest.raises(InputError, match="outside the variable's bounds"):
        TinyJit(lambda t, n: t[:n].sum(0))(t, v.bind(MOST + 1))


def test_what_a_function_asked_of_a_length_is_asked_again_at_each_call() -> None:
    """A branch, and slices that fit for some values only: each answer has its capture, or its error."""
    t, v = Tensor(DATA).realize(), Variable("v", 0, MOST)
    branch = TinyJit(lambda t, n: t[:n].sum(0) if n > 5 else (t[:n] * 2).sum(0) if n else t[0] * 3)
    longer = TinyJit(lambda t, n: t[:n + 2].sum(0))
    inside = TinyJit(lambda t, n: t.shrink(((n, n + 1), None)) + 1)
    for n in (3, 9, 4, 8, 0, 5, 6, 0, MOST - 1, MOST, 0, 1, MOST, MOST - 1, MOST - 2, 2):
        near(branch(t, v.bind(n)), DATA[:n].sum(0) * (1 if n > 5 else 2) if n else DATA[0] * 3)
        with pytest.raises(IndexRangeError, match="does not fit its axis") if n + 2 > MOST else nullcontext():
            near(longer(t, v.bind(n)), DATA[:n + 2].sum(0))
        with pytest.raises(ShapeError, match="cannot shrink") if n + 1 > MOST else nullcontext():
            near(inside(t, v.bind(n)), DATA[n:n + 1] + 1)
    assert [sum(len(c.replays) for c in jitted._known.values()) for jitted in (branch, longer, inside)] == [3, 1, 1]


def test_a_tensor_left_with_a_symbolic_shape() -> None:
    state = {"last": Tensor(DATA[:1]).realize()}

    @TinyJit
    def remember(t: Tensor, n: Any) -> Tensor:
        state["last"] = (t[:n] * 2).realize()
        return state["last"].sum(0)

    v, t = Variable("v", 1, MOST), Tensor(DATA).realize()
    for n in (3, 5, 9, MOST, 2):
        near(remember(t, v.bind(n)), DATA[:n].sum(0) * 2)
        near(state["last"], DATA[:n] * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_decoding_with_a_cache_is_attention(device: str) -> None:
    length, heads, size = 12, 2, 4
    cache = Tensor.zeros(2, 1, heads, length, size, device=device).contiguous().realize()

    @TinyJit
    def step(q: Tensor, k: Tensor, w: Tensor, start: Any) -> Tensor:
        cache[:, :, :, start:start + 1] = Tensor.stack(k, w)
        keys, values = cache[0, :, :, :start + 1], cache[1, :, :, :start + 1]
        return q.scaled_dot_product_attention(keys, values).realize()

    place = Variable("start_pos", 0, length - 1)
    rows = NUMBERS.standard_normal((3, 1, heads, length, size)).astype(np.float32)
    for i in range(length):
        now = [Tensor(r[:, :, i:i + 1], device=device) for r in rows]
        q, k, w = rows[0][:, :, i:i + 1], rows[1][:, :, :i + 1], rows[2][:, :, :i + 1]
        near(step(*now, place.bind(i)), soft(q @ k.swapaxes(2, 3) / size ** 0.5, -1) @ w)
    captured_once(step)


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="on a GPU starting a kernel costs more")
def test_cost_grows_with_the_length() -> None:
    """Ten rows of 4,096 must not cost what all of them do."""
    import time
    t = Tensor(NUMBERS.standard_normal((4096, 256)).astype(np.float32)).realize()
    v = Variable("v", 1, 4096)
    step = TinyJit(lambda t, n: (t[:n].exp().sum(0), t[:n].softmax(0).sum(1).max()))
    for n in (4096, 10, 11):
        step(t, v.bind(n))

    def seconds(n: int) -> float:
        bound, best = v.bind(n), float("inf")
        for _ in range(20):
            start = time.perf_counter()
            step(t, bound)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(10) < seconds(4096) / 4

# -- a part replaced, in place where nobody can tell --------------------------------------------------------------
ROOM = (2, 128, 80)                # large enough to be worth it


def cache_and_step(device: str | None = None) -> tuple[Tensor, TinyJit]:
    cache = Tensor.zeros(*ROOM, device=device).contiguous().realize()

    @TinyJit
    def step(x: Tensor, n: Any) -> Tensor:
        cache[:, n:n + 1] = x
        return cache[:, :n + 1].sum(1)

    return cache, step


def rows(count: int) -> list[np.ndarray]:
    return [NUMBERS.standard_normal((2, 1, 80)).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_large_cache_is_written_eagerly(device: str) -> None:
    v = Variable("v", 0, 127)
    cache, reference = Tensor.zeros(*ROOM, device=device).contiguous().realize(), np.zeros(ROOM, np.float32)
    with Context(CHECK=int(device == "CPU")):
        for n, new in zip((0, 127, 5, 5), rows(4)):
            old, was = cache + 0, reference.copy()
            cache[:, v.bind(n):v.bind(n) + 1] = Tensor(new, device=device) * 2
            reference[:, n:n + 1] = new * 2
            near(cache, reference)
            near(old, was)
        cache[1, 3:9] = 7
        reference[1, 3:9] = 7
        near(cache, reference)


@pytest.mark.parametrize("device", DEVICES)
def test_a_jitted_cache_stays_where_it_is(device: str) -> None:
    v, reference = Variable("v", 0, 127), np.zeros(ROOM, np.float32)
    cache, step = cache_and_step(device)
    places = []
    for n, new in zip((0, 1, 127, 3, 4, 3), rows(6)):
        near(step(Tensor(new, device=device), v.bind(n)), reference[:, :n].sum(1) + new[:, 0], 1e-3) if n < 127 else \
            step(Tensor(new, device=device), v.bind(n))
        reference[:, n:n + 1] = new
        near(cache, reference)
        places.append(cache.uop.base.arg.address)
    assert len(set(places[2:])) == 1                    # after two traces and one copy: in place


@pytest.mark.parametrize("keep", [
    lambda cache: cache * 2, lambda cache: (cache * 2).realize(), lambda cache: cache.numpy(),
    lambda cache: cache.clone(), lambda cache: cache[0] * 1, lambda cache: memoryview(cache.data()),
    lambda cache: Tensor(cache.uop), lambda cache: [cache.flip(0)]])
def test_a_value_that_somebody_knows_is_not_written_over(keep: Callable[[Tensor], Any]) -> None:
    def read(value: Any) -> np.ndarray:
        value = value[0] if isinstance(value, list) else value
        return np.array(value.numpy() if isinstance(value, Tensor) else value)

    v, reference = Variable("v", 0, 127), np.zeros(ROOM, np.float32)
    cache, step = cache_and_step()
    for n, new in zip(range(10), rows(10)):
        known = keep(cache) if step.captured else np.zeros(1)        # while it is traced, the jit counts who shares it
        was = read(known).copy()
        step(Tensor(new), v.bind(n))
        reference[:, n:n + 1] = new
        assert (read(known) == was).all()
        near(cache, reference)


def test_a_cache_handed_in_as_well_is_the_one_that_is_written() -> None:
    cache = Tensor.zeros(*ROOM).contiguous().realize()
    other = Tensor.zeros(4).contiguous().realize()

    @TinyJit
    def step(whole: Tensor, x: Tensor, n: Any) -> Tensor:
        cache[:, n:n + 1] = x
        cache.realize()
        return whole.sum() + other.sum()

    v, reference = Variable("v", 0, 127), np.zeros(ROOM, np.float32)
    for n, new in zip(range(8), rows(8)):
        reference[:, n:n + 1] = new
        near(step(cache, Tensor(new), v.bind(n)), reference.sum(), 1e-2)
        near(cache, reference)


def test_a_cache_read_after_it_was_written() -> None:
    cache = Tensor.zeros(*ROOM).contiguous().realize()

    @TinyJit
    def step(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
        before = cache * 1
        cache[:, n:n + 1] = x
        cache.realize()
        return before.sum(1), cache[0]

    v, reference, kept = Variable("v", 0, 127), np.zeros(ROOM, np.float32), []
    for n, new in zip(range(8), rows(8)):
        before, after = step(Tensor(new), v.bind(n))
        near(before, reference.sum(1), 1e-3)
        reference[:, n:n + 1] = new
        kept += [(after, reference[0].copy())] if step.captured else []
        del after                      # while it is traced, the jit counts who shares the cache
    assert len(kept) > 4
    for got, want in kept:
        near(got, want)


def test_two_jits_share_a_cache_and_a_user_replaces_it() -> None:
    v, reference = Variable("v", 0, 127), np.zeros(ROOM, np.float32)
    cache, first = cache_and_step()
    second = TinyJit(first.function)
    for n, new in zip(range(16), rows(16)):
        (first if n % 5 < 3 else second)(Tensor(new), v.bind(n))
        reference[:, n:n + 1] = new
        if n == 11:
            cache.assign(cache * 2)
            reference *= 2
        near(cache, reference)

@pytest.mark.parametrize("device", DEVICES)
def test_two_caches_of_which_the_result_alone_is_realized(device: str) -> None:
    keys, values = (Tensor.zeros(*ROOM, device=device).contiguous().realize() for _ in range(2))
    weight = Tensor(NUMBERS.standard_normal((80, 80)).astype(np.float32), device=device).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        new = x @ weight
        keys[:, -1:] = new
        values[:, -1:] = new * 2
        return (keys * values).sum((1, 2)).realize()

    places = []
    for new in rows(6):
        made = new @ weight.numpy()
        near(step(Tensor(new, device=device)), (made * made * 2).sum((1, 2)), 1e-2)
        near(keys[:, -1:], made, 1e-4)
        near(values[:, -1:], made * 2, 1e-4)
        assert not keys[:, :-1].numpy().any()
        places.append((keys.uop.base.arg.address, values.uop.base.arg.address))
    assert len(set(places[2:])) == 1                    # each by itself: a copy of nothing, and the part
    before = GlobalCounters.kernel_count
    step(Tensor(new, device=device))
    assert GlobalCounters.kernel_count - before == 1 + 2 * 2 + 1        # the product runs once, not for each cache


def test_a_length_as_a_number_beside_tensors_under_the_jit() -> None:
    v, x = Variable("v", 1, 10), Tensor(DATA[0]).realize()
    for number in (lambda t, n: n * t, lambda t, n: n - t, lambda t, n: n / (t * t + 1),
                   lambda t, n: Tensor.full((3,), n).sum() + t,
                   lambda t, n: Tensor.arange(n, n + 3, dtype="float32").sum() * t):
        jitted = TinyJit(number)
        for i in (2, 3, 9, 1):
            near(jitted(x, v.bind(i)), number(x, i).numpy())
        captured_once(jitted)
    with pytest.raises(InputError, match="300"):
        Tensor.full((2,), Variable("n", 1, 300).bind(5), dtype="uint8")
