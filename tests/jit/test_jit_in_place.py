"""Replays write weights and gradients over the old ones: never where somebody else could see it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jit_reference import numbers, rand

from glassgrad import Context, Tensor, nn
from glassgrad.base.errors import IndexRangeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, index, less
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LOOP, For, If, Store, counter, load
from glassgrad.compiler.render.read_before_written import pairs_read_first
from glassgrad.compiler.render.unroll_and_jam import Jammed
from glassgrad.compiler.schedule.partial_updates import rewrites
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.registry import registry
from glassgrad.jit import TinyJit
from glassgrad.jit.result_memory import ResultsInPlace

CALLS = 9
INTERRUPTED = "interpreted kernels can stop half-way, so they leave the old values whole"


class Model:
    """Two layers and what trains them."""

    def __init__(self, make: Callable[..., Any]) -> None:
        chance = np.random.default_rng(3)
        self.first, self.second = (Tensor(chance.standard_normal(shape).astype(np.float32))
                                   for shape in ((12, 33), (33, 5)))
        self.bias = Tensor(np.zeros(33, np.float32))
        self.optimizer = make([self.first, self.second, self.bias])

    def step(self, x: Tensor) -> Tensor:
        with Context(TRAINING=1):
            self.optimizer.zero_grad()
            loss = ((x @ self.first + self.bias).relu() @ self.second).square().mean().backward()
            return loss.realize(*self.optimizer.schedule_step())

    def tensors(self) -> list[Tensor]:
        return [self.first, self.second, self.bias]

    def state(self) -> list[np.ndarray]:
        return [np.array(t.numpy()) for w in self.tensors() for t in (w, w.grad) if t is not None]


def _sgd(parameters: list[Tensor]) -> Any:
    return nn.optim.SGD(parameters, lr=0.05)


def _agree(ours: list[np.ndarray], eager: list[np.ndarray]) -> None:
    assert len(ours) == len(eager)
    for a, b in zip(ours, eager):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.only_on("CPU", "CLANG", reason=INTERRUPTED)
def test_weights_and_gradients_stay_where_they_are() -> None:
    model = Model(_sgd)
    step = TinyJit(model.step)
    places = []
    for _ in range(CALLS):
        step(rand(8, 12))
        places.append([(w.uop.arg.address, w.grad.uop.base.arg.address) for w in model.tensors()])
    assert all(place == places[4] for place in places[4:])


@pytest.mark.only_on("CPU", "CLANG", reason=INTERRUPTED)
def test_a_step_that_nothing_else_looks_at_does_not_search_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(_sgd)
    step, x = TinyJit(model.step), rand(8, 12).realize()
    for _ in range(5):
        step(x)
    searched: list[Any] = []
    monkeypatch.setattr(ResultsInPlace, "begin", lambda self, found: searched.append(self))
    for _ in range(3):
        step(x)
    assert step._replayed == 6 and not searched


@pytest.mark.only_on("CPU", "CLANG", reason=INTERRUPTED)
def test_two_captures_in_turns_allocate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w, cache = Tensor.ones(8, 4).contiguous().realize(), Tensor.zeros(16, 4).contiguous().realize()
    w.requires_grad = True

    def step(power: int, row: int) -> Any:
        @TinyJit
        def run(x: Tensor) -> None:
            w.grad = None
            (w ** power * x).sum().backward()
            w.assign(w.detach() - w.grad * 0.25)
            cache[row] = x
        return run

    steps, x, made = [step(1, 3), step(2, 5)], Tensor([1.0, 2.0, 3.0, 4.0]).realize(), list[int]()
    initialize = Buffer.__init__

    def counted(self: Buffer, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        made.append(self.nbytes)

    monkeypatch.setattr(Buffer, "__init__", counted)
    value = np.ones((8, 4), np.float32)
    for number in range(16):
        if number == 10:
            made.clear()
        steps[number % 2](x)
        value = value - 0.25 * np.array([1, 2, 3, 4], np.float32) * (2 * value if number % 2 else 1)
    assert not made
    np.testing.assert_allclose(w.numpy(), value, rtol=1e-5)
    assert cache.numpy().sum(axis=1).nonzero()[0].tolist() == [3, 5]


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "the same node": lambda w: Tensor(w.uop), "flipped": lambda w: w.flip(0), "a view's copy": lambda w: w[1:].clone(),
    "a shown array": lambda w: np.asarray(w), "an expression": lambda w: w * 2 + 1, "a copy": lambda w: w.clone(),
    "an array": lambda w: w.numpy(), "the gradient": lambda w: w.grad, "a view of it": lambda w: w.grad.reshape(-1),
    "its array": lambda w: w.grad.numpy(), "an expression of both": lambda w: w - w.grad, "bytes": lambda w: w.data(),
}


@pytest.mark.parametrize("what", HOLDERS)
@pytest.mark.parametrize("dropped", [False, True])
def test_what_somebody_holds_stays_as_it_is(what: str, dropped: bool) -> None:
    model, twin = Model(_sgd), Model(_sgd)
    step = TinyJit(model.step)
    held: list[Any] = []
    expected: list[np.ndarray] = []
    for call in range(CALLS):
        x = rand(8, 12)
        step(x), twin.step(x)
        _agree(model.state(), twin.state())
        if call >= 3:
            for w, other in zip(model.tensors(), twin.tensors()):
                held.append(HOLDERS[what](w))
                expected.append(np.array(_array(HOLDERS[what](other))))
        if dropped and call == 5:
            held.clear()
            expected.clear()
            gc.collect()
    _agree([_array(h) for h in held], expected)


def test_a_clone_of_a_result_stays_as_it_is_where_the_result_was_computed_with_others() -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return x * 2

    results = [double(Tensor([float(i)])) for i in range(3)]
    clone = results[-1].clone()
    (results[-1] + 1).realize(results[-1])               # lists the result as a reader once more, behind its clone
    results.clear()
    for i in range(3, 7):
        assert double(Tensor([float(i)])).item() == 2 * i
        assert clone.item() == 4


@pytest.mark.parametrize("view", [lambda w: w.detach(), lambda w: w.reshape(-1)[1:], lambda w: w.data])
def test_views_of_weights_show_what_each_call_makes_of_them(view: Callable[[Tensor], Tensor]) -> None:
    model, twin = Model(_sgd), Model(_sgd)
    step = TinyJit(model.step)
    held: list[tuple[Tensor, Tensor]] = []
    for call in range(CALLS):
        held += [(view(w), other) for w, other in zip(model.tensors(), twin.tensors())] if call in (0, 2, 5) else []
        x = rand(8, 12)
        step(x), twin.step(x)
        _agree(model.state(), twin.state())
        _agree([_array(mine) for mine, _ in held], [_array(view(other)) for _, other in held])


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.numpy() if isinstance(value, Tensor) else value)


def test_a_value_of_a_weight_handed_in_as_an_argument_is_read_as_it_was() -> None:
    def build() -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        w = Tensor(np.arange(64, dtype=np.float32).reshape(8, 8))

        def function(x: Tensor) -> Tensor:
            w.assign(w * 0.5 + 1).realize()
            return (x @ x).realize()                     # after w was written
        return w, function
    (w, function), (other, plain) = build(), build()
    jitted = TinyJit(function)
    for call in range(CALLS):
        given = (w.T.clone(), w + 0, w.flip(0), rand(8, 8))[call % 4] if call > 4 else rand(8, 8)
        twin = (other.T.clone(), other + 0, other.flip(0), given)[call % 4] if call > 4 else given
        _agree([jitted(given).numpy(), w.numpy()], [plain(twin).numpy(), other.numpy()])


UPDATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "element by element": lambda w, x: w * 0.5 + x, "its own twice": lambda w, x: w * w * 0.1 - w + x,
    "turned": lambda w, x: w.T + x, "upside down": lambda w, x: w.flip(0) * 0.5,
    "shifted": lambda w, x: w.roll(1, 0) + x,
    "less its mean": lambda w, x: w - w.mean() + x,
    "less its rows' means": lambda w, x: w - w.mean(1, keepdim=True) + x,
    "a product": lambda w, x: (w @ w) * 0.1 + x, "a product and itself": lambda w, x: w + (w @ x) * 0.1,
    "running sums": lambda w, x: w.cumsum(0) * 0.1, "broadcast": lambda w, x: w[:1] + x,
    "as integers": lambda w, x: w.round(),
    "another product and itself": lambda w, x: w - (x @ x) * 0.1,
}


@pytest.mark.parametrize("how", UPDATES)
@pytest.mark.parametrize("size", [1, 7, 32])
def test_any_update_over_any_size(how: str, size: int) -> None:
    def build() -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        w = Tensor(np.random.default_rng(1).standard_normal((size, size)).astype(np.float32))

        def function(x: Tensor) -> Tensor:
            w.assign(UPDATES[how](w, x)).realize()
            return x + 1
        return w, function
    (w, function), (other, plain) = build(), build()
    jitted = TinyJit(function)
    for _ in range(CALLS):
        x = rand(size, size)
        _agree([jitted(x).numpy(), w.numpy()], [plain(x).numpy(), other.numpy()])


def test_the_old_value_is_used_after_the_new_one_is_made() -> None:
    def build() -> tuple[Tensor, Callable[[Tensor], Any]]:
        w = Tensor(np.ones((16, 16), np.float32))

        def function(x: Tensor) -> Any:
            old = w * 1.5
            w.assign(w + x).realize()
            return (old @ x).realize(), (w @ x).realize()
        return w, function
    (w, function), (other, plain) = build(), build()
    jitted = TinyJit(function)
    for _ in range(CALLS):
        x = rand(16, 16) * 0.1
        got, want = jitted(x), plain(x)
        _agree([got[0].numpy(), got[1].numpy(), w.numpy()], [want[0].numpy(), want[1].numpy(), other.numpy()])


@pytest.mark.parametrize("make", [
    _sgd, lambda p: nn.optim.SGD(p, lr=0.05, momentum=0.9), lambda p: nn.optim.SGD(p, lr=0.05, weight_decay=0.1),
    lambda p: nn.optim.Adam(p, lr=0.01), lambda p: nn.optim.LAMB(p, lr=0.01), lambda p: nn.optim.RMSprop(p, lr=0.01)])
def test_optimizers_with_state_weights_replaced_and_gradients_touched(make: Callable[..., Any]) -> None:
    model, twin = Model(make), Model(make)
    step = TinyJit(model.step)
    for call in range(14):
        x = rand(8 if call % 5 else 3, 12)                      # two captures that take turns
        if call in (6, 7):
            new = rand(33)
            model.bias.assign(new).realize(), twin.bias.assign(new).realize()
        if call == 9:
            for m in (model, twin):
                m.first.grad = rand(12, 33) * 0                 # somebody else's gradient in its place
        if call == 11:
            kept = model.first.grad
            for m in (model, twin):
                m.first.grad = None
        step(x), twin.step(x)
        _agree(model.state(), twin.state())
    assert kept is not None


def test_a_call_that_fails_at_a_bad_index_leaves_weights_alone() -> None:
    table, scale = Tensor(numbers.standard_normal((10, 4)).astype(np.float32)), Tensor([1.0])

    def train(index: Tensor) -> Tensor:
        rows = table[index]
        scale.assign(scale * 2).realize()
        table.assign(table * 0.5).realize()
        return rows.sum().realize()
    jitted = TinyJit(train)
    for _ in range(5):
        jitted(Tensor([1, 2]))
    before = [np.array(t.numpy()) for t in (table, scale)]
    with pytest.raises(IndexRangeError):
        jitted(Tensor([1, 99]))
    _agree([t.numpy() for t in (table, scale)], before)
    jitted(Tensor([1, 2]))
    _agree([t.numpy() for t in (table, scale)], [before[0] * 0.5, before[1] * 2])


def _param(slot: int, *shape: int) -> UOp:
    return UOp(o.PARAM, Tensor([1.0]).dtype, (), Param(slot, shape))


@pytest.mark.parametrize("value, fits", [
    (lambda w, x: w + x, True), (lambda w, x: x, True), (lambda w, x: w * w * x - w, True),
    (lambda w, x: w.permute((1, 0)) + x, False), (lambda w, x: w.sum((0,)).expand((3, 3)) + w, False),
    (lambda w, x: w.flip((0,)), False)])
def test_which_kernels_may_write_over_what_they_read(value: Callable[[UOp, UOp], UOp], fits: bool) -> None:
    result, other, w, x = _param(0, 3, 3), _param(1, 3, 3), _param(2, 3, 3), _param(3, 3, 3)
    node = value(w, x)
    stores = [UOp(o.STORE, node.dtype, (result, node))]
    assert rewrites(UOp(o.SINK, node.dtype, tuple(stores)), 0, 2) is fits
    stores.append(UOp(o.STORE, node.dtype, (other, w * x)))      # somebody else who reads it in this kernel
    assert rewrites(UOp(o.SINK, node.dtype, tuple(stores)), 0, 2) is False


MOMENTS = {"momentum": lambda ps: nn.optim.SGD(ps, lr=0.05, momentum=0.9),
           "Adam": lambda ps: nn.optim.Adam(ps, lr=0.01),
           "AdamW": lambda ps: nn.optim.AdamW(ps, lr=0.01),
           "RMSprop": lambda ps: nn.optim.RMSprop(ps, lr=0.01)}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments_are_written_over_the_old_ones_too(name: str) -> None:
    """One kernel reads a moment twice: for its new value, and for the weight's."""
    model, twin = Model(MOMENTS[name]), Model(MOMENTS[name])
    step = TinyJit(model.step)
    moments = [t for t in nn.state.get_state_dict(model.optimizer).values()
               if t.ndim and t.numel() >= 33 and not any(t is w for w in model.tensors())]
    places = []
    for _ in range(CALLS):
        x = rand(8, 12)
        step(x), twin.step(x)
        _agree(model.state(), twin.state())
        places.append([t.uop.base.arg.address for t in moments])
    assert len(moments) >= 3
    assert places[-1] == places[-2] == places[-3]


A, B = counter("i", 8), counter("j", 8)
RESULT, WEIGHT, MOMENT = (_param(slot, 8) for slot in (0, 1, 2))


def _loop(*body: Any, over: UOp = A) -> For:
    return For(over, LOOP, list(body))


def _store(memory: UOp, value: UOp, at: UOp = A) -> Store:
    return Store(memory, at, value)


OLD, OLD_LATER = load(MOMENT, A), load(MOMENT, add(A, index(1)))


@pytest.mark.parametrize("pairs, body", {
    "in one scope": (((0, 2), (1, 2)), [_loop(_store(RESULT, OLD), _store(WEIGHT, OLD))]),
    "after the store": (((1, 2),), [_loop(_store(RESULT, A), _store(WEIGHT, OLD))]),
    "in another loop": ((), [_loop(_store(RESULT, OLD)), _loop(_store(WEIGHT, load(MOMENT, B), B), over=B)]),
    "in another branch": ((), [_loop(If(less(A, index(4)), [_store(RESULT, OLD)]),
                                     If(less(A, index(5)), [_store(WEIGHT, OLD)]))]),
    "another element": ((), [_loop(_store(RESULT, OLD), _store(WEIGHT, OLD_LATER))]),
    "added to memory": ((), [_loop(Store(RESULT, A, OLD, o.ADD), Store(WEIGHT, A, A, o.ADD))]),
    "in a condition": ((), [_loop(_store(RESULT, OLD), If(less(load(MOMENT, B), index(1)), [_store(WEIGHT, OLD)]))]),
}.values())
def test_which_loops_read_an_element_before_they_write_there(pairs: tuple[Any, ...], body: list[Any]) -> None:
    found = pairs_read_first([Jammed([], body, [], [])])
    assert tuple(sorted(found)) == pairs


@pytest.mark.parametrize("keep", [lambda w: w.detach(), lambda w: w.clone()], ids=["views", "copies"])
def test_what_is_kept_from_call_to_call_does_not_hinder_a_capture(keep: Callable[[Tensor], Tensor]) -> None:
    """`before = w.detach()` shares the weight's buffer while the call is traced, with another tensor each time."""
    model, twin = Model(_sgd), Model(_sgd)
    step = TinyJit(model.step)
    for _ in range(CALLS):
        before, expected = ([keep(w) for w in m.tensors()] for m in (model, twin))
        x = rand(8, 12)
        step(x), twin.step(x)
        _agree(model.state(), twin.state())
        _agree([w.numpy() for w in before], [w.numpy() for w in expected])
    assert step._replayed >= 4


def test_which_of_two_equal_tensors_a_function_sees_is_still_told_apart() -> None:
    first, hidden = Tensor([1.0, 2.0]).realize(), threading.local()
    hidden.other = first.detach()

    def function(x: Tensor) -> Tensor:
        return x * first + hidden.other
    jitted = TinyJit(function)
    for call in range(CALLS):
        if call == 5:
            first.assign(Tensor([5.0, 6.0])).realize()
        x = rand(2)
        _agree([jitted(x).numpy()], [function(x).numpy()])


@pytest.mark.only_on("CPU", "CLANG", reason=INTERRUPTED)
@pytest.mark.parametrize("debug", [0, 2])
def test_a_step_that_checks_its_targets_writes_in_place_once_they_are_known_to_be_good(
        debug: int, capsys: pytest.CaptureFixture[str]) -> None:
    weight = Tensor(numbers.standard_normal((12, 33)).astype(np.float32))
    optimizer = nn.optim.SGD([weight], lr=0.05)

    def train(x: Tensor, labels: Tensor) -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = (x @ weight).sparse_categorical_crossentropy(labels).backward()
            return loss.realize(*optimizer.schedule_step())
    jitted, places = TinyJit(train), []
    x, good = rand(4, 12).realize(), Tensor([0, 5, 32, 1]).realize()
    for _ in range(CALLS):
        jitted(x, good)
        places.append((weight.uop.arg.address, weight.grad.uop.base.arg.address))
    assert all(place == places[4] for place in places[4:])
    before = [np.array(t.numpy()) for t in (weight, weight.grad)]
    with Context(DEBUG=debug), pytest.raises(IndexRangeError):
        jitted(x, Tensor([0, 5, 33, 1]).realize())
    _agree([t.numpy() for t in (weight, weight.grad)], before)
    jitted(x, good)
    assert not np.allclose(weight.numpy(), before[0]), "it goes on afterwards"
    capsys.readouterr()


def test_a_weight_that_was_viewed_costs_the_same_at_each_replay() -> None:
    """A view of a weight that is gone leaves nothing behind: neither a longer path nor a list that grows."""
    weight = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True).realize()
    _ = weight.T.sum().item()

    @TinyJit
    def step() -> Tensor:
        return weight.assign(weight @ weight * 0.1)

    nodes = set()
    for _ in range(40):
        step()
        nodes.add(weight.uop)
    rows = [registry.replaced.get(node) or [] for node in nodes]
    assert max(map(len, rows)) <= 1


@pytest.mark.only_on("CPU", "CLANG", reason=INTERRUPTED)
def test_a_gradient_that_was_held_during_a_call_that_failed() -> None:
    weight = Tensor(rand(5, 3).numpy(), requires_grad=True)

    @TinyJit
    def step(index: Tensor, scale: Tensor) -> Tensor:
        picked = weight.detach()[index].sum().realize()
        weight.grad = None
        (weight * scale).sum().backward()
        return picked.realize(weight.grad)
    for _ in range(5):
        step(Tensor([0, 1]), Tensor(3.0))
    held: Any = weight.grad
    with pytest.raises(IndexRangeError):
        step(Tensor([0, 9]), Tensor(4.0))
    del held
    for scale in (5.0, 6.0):
        step(Tensor([0, 1]), Tensor(scale))
        np.testing.assert_array_equal(weight.grad.numpy(), np.full((5, 3), scale, np.float32))


def test_a_result_that_was_dropped_is_written_over_by_the_next_call() -> None:
    double = TinyJit(lambda x: x * 2)
    inputs = [(rand(40) + i).realize() for i in range(6)]
    for x in inputs[:3]:
        double(x)
    addresses = {double(x).uop.base.arg.address for x in inputs}
    assert len(addresses) == 1


def test_results_that_are_held_keep_their_values_however_many_there_are() -> None:
    double = TinyJit(lambda x: x * 2)
    inputs = [(rand(40) + i).realize() for i in range(8)]
    for _ in range(3):
        double(inputs[0])
    held = [double(x) for x in inputs]
    arrays = [t.numpy() for t in held[:2]]
    shown = held[2].reshape(8, 5)[1:]
    del held[:3]
    others = [double(x) for x in inputs]
    for x, result in zip(inputs, others):
        np.testing.assert_array_equal(result.numpy(), 2 * x.numpy())
    for x, result in zip(inputs[3:], held):
        np.testing.assert_array_equal(result.numpy(), 2 * x.numpy())
    for x, array in zip(inputs, arrays):
        np.testing.assert_array_equal(array, 2 * x.numpy())
    np.testing.assert_array_equal(shown.numpy(), 2 * inputs[2].numpy().reshape(8, 5)[1:])


def test_a_result_that_is_an_argument_of_the_next_call_is_not_written_over() -> None:
    double = TinyJit(lambda x: x + x.flip(0))
    x = rand(40).realize()
    expected = x.numpy()
    for _ in range(6):
        x, expected = double(x), expected + expected[::-1]
        np.testing.assert_array_equal(x.numpy(), expected)
    nested = double(double(double(x)))
    np.testing.assert_array_equal(nested.numpy(), 4 * (expected + expected[::-1]))
