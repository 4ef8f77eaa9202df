"""What a jitted function may not do, each refused in words at the second trace; and what another thread does."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jit_reference import rand

from glassgrad import Tensor
from glassgrad.base.errors import GradientError, JitError
from glassgrad.jit import TinyJit

CALLS = 8


def numbers(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def _refused(function: Callable[..., Any], *words: str) -> None:
    jitted = TinyJit(function)
    with pytest.raises(JitError) as raised:
        for number in range(CALLS):
            jitted(numbers(3) + number)
    for word in words:
        assert word in str(raised.value)


def test_objects_that_a_function_exchanges() -> None:
    s = SimpleNamespace(a=SimpleNamespace(name="a"), b=SimpleNamespace(name="b"))

    def exchange(x: Tensor) -> Tensor:
        s.a, s.b = s.b, s.a
        return x * 2
    _refused(exchange, "a replay of this function would not do what it does", "the function itself changes s.")


def test_an_array_that_a_function_counts_in() -> None:
    count = np.zeros(2)

    def step(x: Tensor) -> Tensor:
        count[0] += 1
        return x * 2
    _refused(step, "the function itself changes the content of count")


@pytest.mark.parametrize("make", [lambda: iter([0, 1] * 20), lambda: (i % 2 for i in range(40)),
                                  lambda: zip([0, 1] * 20, range(40))], ids=["list", "generator", "zip"])
def test_an_iterator_in_sight(make: Callable[[], Any]) -> None:
    turns, weights = make(), [numbers(3), numbers(3)]

    def step(x: Tensor) -> Tensor:
        turn = next(turns)
        weights[turn if isinstance(turn, int) else turn[0]].assign(x * 2)
        return x + 1
    _refused(step, "the function itself changes how far turns", "has come")


class _Hidden:
    """Not reached: what is in an object of the standard library's is not looked at."""

    def __init__(self) -> None:
        self.local: Any = logging.Filter()
        self.local.kept = []


def test_new_tensors_that_are_put_out_of_sight() -> None:
    hidden = _Hidden()

    def step(x: Tensor) -> Tensor:
        hidden.local.kept.append(x * 2)
        return x + 1
    _refused(step, "the function puts a new tensor of shape (3,) where the jit does not look")


@pytest.mark.parametrize("value", [lambda w: w * 2, lambda w: w[1:], lambda w: w.detach()])
def test_new_tensors_of_weights_alone_that_are_put_out_of_sight(value: Callable[[Tensor], Tensor]) -> None:
    hidden, w = _Hidden(), numbers(3).realize()

    def step(x: Tensor) -> Tensor:
        hidden.local.kept[:] = [value(w)]
        return x + 1
    _refused(step, "the function puts a new tensor of shape (", "where the jit does not look")


def test_a_tensor_that_is_assigned_to_and_then_replaced() -> None:
    """Its views would have to keep the value that it had in between, which a replay leaves nowhere."""
    w = numbers(3).realize()

    def step(x: Tensor) -> Tensor:
        w.assign(w + 1)
        w.replace(w * x)
        return x + 1
    _refused(step, "the function assigns to a tensor of shape (3,) and then replaces it")


def test_a_tensor_that_becomes_a_trained_one_is_refused() -> None:
    """From then on a gradient of the one is the other's too, which a replay would not see."""
    w = numbers(3).realize().requires_grad_()

    def step(x: Tensor) -> Tensor:
        (x * 2).sum().backward()
        x.replace(w)
        return x
    _refused(step, "the function replaces a tensor of shape (3,) by one that is trained")


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_argument_that_is_assigned_to_and_is_a_view(is_whole: bool) -> None:
    w = numbers(3).realize()

    def step(x: Tensor) -> Tensor:
        x.assign(x * 2)
        w.replace(w * 3)
        return w + 1
    with pytest.raises(JitError, match="a view of another tensor"):
        TinyJit(step)(w[:] if is_whole else w.detach())


def test_tensors_out_of_sight_that_are_changed_in_turn() -> None:
    hidden = _Hidden()
    hidden.local.turns, hidden.local.weights = iter([0, 1, 1, 0, 0, 1, 1, 0]), [numbers(3), numbers(3)]

    def step(x: Tensor) -> Tensor:
        hidden.local.weights[0].assign(hidden.local.weights[0])
        hidden.local.weights[next(hidden.local.turns)].assign((x * 2).realize())
        return x + 1
    jitted, kept = TinyJit(step), hidden.local.weights
    jitted(numbers(3))
    jitted(numbers(3))
    assert not jitted.captured                    # another tensor was changed: not the same work
    assert kept[0].tolist() == kept[1].tolist()


@pytest.mark.parametrize("results", [
    lambda a, b, n: (a, b, *[b if n >> bit & 1 else a for bit in range(3)]),
    lambda a, b, n: dict(zip("wxyz"[n % 4:] + "wxyz"[:n % 4], (a, b, a + b, a * b))),
    lambda a, b, n: (a, [1, True, 1.0, "1", 0.0, -0.0, None, "None"][n])], ids=["tuple", "dict", "plain"])
def test_results_that_are_other_values_at_each_call(results: Callable[..., Any]) -> None:
    """Which result is which value is a part of the work; a hidden counter makes it another one at each call."""
    counter: Any = logging.Logger("counter")
    counter.calls = 0

    def step(x: Tensor) -> Any:
        counter.calls += 1
        return results(x + 1, x * 2, counter.calls - 1)
    _refused(step, "this function launches other work at each call", "the function returned", "tensor 0, float32")


def test_tensors_put_somewhere_that_are_other_values_at_each_call() -> None:
    counter: Any = logging.Logger("counter")
    counter.calls, state = 0, SimpleNamespace(last=None)

    def step(x: Tensor) -> Tensor:
        a, b, n = x + 1, x * 2, counter.calls
        counter.calls += 1
        state.last = (a, b, *[b if n >> bit & 1 else a for bit in range(3)])
        return a
    _refused(step, "this function launches other work at each call", "it assigns {'state.last': ")


def test_results_whose_structure_alternates_with_a_counter_in_sight() -> None:
    state = SimpleNamespace(calls=0)

    def step(x: Tensor) -> Any:
        state.calls += 1
        a, b = x + 1, x * 2
        return (a, b, a) if state.calls % 2 else (a, b, b)
    _refused(step, "a replay of this function would not do what it does", "the function itself changes state.calls")


def test_a_nan_that_is_returned_is_the_same_at_each_call() -> None:
    step = TinyJit(lambda x: (x + 1, float("nan")))
    assert [str(step(numbers(3))[1]) for _ in range(CALLS)] == ["nan"] * CALLS and step.captured


def test_setting_requires_grad_inside() -> None:
    w = numbers(3)

    def step(x: Tensor) -> Tensor:
        w.requires_grad = None if w.requires_grad else True
        return x * w
    _refused(step, "the function sets requires_grad of a tensor of shape (3,) to")


def test_setting_requires_grad_of_an_argument() -> None:
    def step(x: Tensor) -> Tensor:
        x.requires_grad = True
        return x * 2
    _refused(step, "the function sets requires_grad of a tensor of shape (3,) to True")


def test_a_gradient_does_not_end_silently_at_what_a_jitted_call_made() -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    jitted = TinyJit(lambda x: (x * w).sum())
    for number in range(4):
        loss = jitted(numbers(3) + number)
        with pytest.raises(GradientError) as raised:
            (loss * 2).backward()
        for part in ("a gradient cannot go back through a jitted call", "float32 values of shape",
                     "that a jitted function computed from tensors with requires_grad=True",
                     "backward() in the same function", "call backward() inside it", "value.detach()"):
            assert part in str(raised.value)
        with pytest.raises(GradientError):
            (loss * 2).gradient(w)
        assert w.grad is None and (loss.detach() * w).sum().gradient(w)[0].tolist() == [loss.item()] * 3
    inside = TinyJit(lambda x: (x * w).sum().detach())
    for number in range(4):
        (inside(numbers(3) + number) * w).sum().backward()
    hidden = SimpleNamespace(state=numbers(3))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        hidden.state = hidden.state * w + x
        return hidden.state.sum().backward()
    step(numbers(3))
    with pytest.raises(GradientError):              # plain, the gradient would go back through all calls
        step(numbers(3))


@pytest.mark.parametrize("view", [lambda x: x.reshape(4), lambda x: x.T, lambda x: x[0], lambda x: [x, x[:, 1:]][1]])
def test_a_gradient_does_not_end_silently_at_a_view_of_an_argument(view: Callable[[Tensor], Tensor]) -> None:
    w = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    for argument in (lambda: w, lambda: w * 2, lambda: w.T):
        jitted = TinyJit(view)
        for _ in range(4):
            x = argument()
            made = jitted(x)
            assert made.tolist() == view(x).tolist()
            with pytest.raises(GradientError, match="a gradient cannot go back through a jitted call"):
                (made * 2).sum().backward()
        assert jitted.captured and w.grad is None
    same, data = TinyJit(lambda x: x), TinyJit(view)
    for _ in range(4):
        w.grad = None
        (same(w) * 2).sum().backward()                      # the argument itself
        assert w.grad is not None and w.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]
        (data(numbers(2, 2)) * w[0, 0]).sum().backward()     # a view of what is not trained stays a view


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_gradient_does_not_end_silently_at_what_a_jitted_call_made_for_a_tensor_in_sight(is_lazy: bool) -> None:
    trained, weight = [Tensor([1.0, 2.0, 3.0], requires_grad=True).realize() for _ in range(2)]
    state, made = SimpleNamespace(now=None), TinyJit(lambda x: x * trained)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (state.now * weight * x).sum().backward()
    for number in range(4):
        state.now = made(numbers(3) + number) * 2 if is_lazy else made(numbers(3) + number)
        with pytest.raises(GradientError, match="a gradient cannot go back through a jitted call"):
            step(numbers(3))


def test_a_gradient_does_not_end_silently_at_a_replay_that_finds_a_trained_value_where_there_was_data() -> None:
    weight, state = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize(), SimpleNamespace(now=numbers(3))
    scaled, x = TinyJit(lambda x: state.now * x), numbers(3)
    for _ in range(3):
        scaled(x)
    state.now = weight * 2
    for _ in range(3):
        with pytest.raises(GradientError, match="a gradient cannot go back through a jitted call"):
            (scaled(numbers(3)) * x).sum().backward()
    assert weight.grad is None


def test_a_gradient_outside_passes_a_lazy_tensor_that_a_jitted_function_read() -> None:
    data, x = numbers(3).realize(), numbers(3)
    doubled = data * 2
    added = TinyJit(lambda x: doubled + x)
    for _ in range(4):
        added(x)
        data.grad = None
        (doubled * 3).sum().backward()
        assert data.grad is not None and data.grad.tolist() == [6.0, 6.0, 6.0]


def test_a_function_that_reads_other_rows_at_each_call_is_refused() -> None:
    table, out_of_sight = Tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]).realize(), threading.Thread()
    out_of_sight.row = 0  # type: ignore[attr-defined]

    @TinyJit
    def lookup(x: Tensor) -> Tensor:
        out_of_sight.row += 1  # type: ignore[attr-defined]
        return x + table[out_of_sight.row]  # type: ignore[attr-defined]
    for row in (1, 2, 3):
        assert lookup(Tensor([0.0])).tolist() == [row + 1.0]
    with pytest.raises(JitError) as raised:
        lookup(Tensor([0.0]))
    for part in ("this function launches other work at each call", "other tensors, or other parts of them, are used"):
        assert part in str(raised.value)


def test_what_other_threads_change_is_no_part_of_a_trace() -> None:
    """A trace looks at all tensors there are; it must tell those that it changed from those that changed meanwhile."""
    mine, theirs = SimpleNamespace(w=numbers(3)), numbers(3)
    theirs.grad = None
    begun, done = threading.Event(), threading.Event()

    def other() -> None:
        for _ in range(2):
            begun.wait(10)
            begun.clear()
            theirs.assign(theirs + 1).realize()
            theirs.grad = theirs * 2                    # lazy: not this trace's to drop
            done.set()

    thread = threading.Thread(target=other)
    thread.start()

    def step(x: Tensor) -> Tensor:
        mine.w.assign(mine.w * 0.5 + x)
        if thread.is_alive():
            begun.set()
            done.wait(10)
            done.clear()
        return mine.w * 2
    jitted = TinyJit(step)
    for _ in range(2):
        jitted(numbers(3))
        assert theirs.grad is not None
    thread.join(10)
    assert jitted.captured
    after, weight = theirs.tolist(), mine.w.numpy()
    assert theirs.grad.tolist() == [2 * value for value in after]
    jitted(numbers(3))
    np.testing.assert_allclose(mine.w.numpy(), weight * 0.5 + numbers(3).numpy(), rtol=1e-6)
    assert theirs.tolist() == after


def test_values_of_the_call_that_are_used_in_another_order_are_refused() -> None:
    choices = queue.SimpleQueue[bool]()          # an object of Python's library: the jit does not look into it
    a, b = rand(3).realize(), rand(3).realize()

    def function(x: Tensor) -> Tensor:
        first, second = (x + a).realize(), (x + b).realize()
        return ((first if choices.get() else second) * 2).realize()
    for choice in (True, False, True, False, True):
        choices.put(choice)
    jitted = TinyJit(function)
    jitted(rand(3))
    jitted(rand(3))
    assert not jitted.captured
    jitted(rand(3))                              # the same as the first one
    assert jitted.captured


def test_a_context_variable_that_is_set_to_another_tensor_is_refused() -> None:
    held: contextvars.ContextVar[Tensor] = contextvars.ContextVar("held")
    held.set(rand(3).realize())
    jitted = TinyJit(lambda x: (held.set((x * 2).realize()), (x + held.get()).realize())[1])
    with pytest.raises(JitError, match="the function itself changes held"):
        for _ in range(4):
            jitted(rand(3))


@pytest.mark.parametrize("in_sight", [True, False])
@pytest.mark.parametrize("is_reset", [True, False])
@pytest.mark.parametrize("plain_calls", [0, 3])
def test_a_gradient_that_would_leave_through_an_argument(in_sight: bool, is_reset: bool, plain_calls: int) -> None:
    """Also if what is trained cannot be reached, in a call that would be a replay, and if the function drops what the
    argument itself got."""
    weight, other = [Tensor([1.0, 2.0], requires_grad=True).realize() for _ in range(2)]

    @TinyJit
    def step(x: Tensor) -> None:
        weight.grad = None
        (x * weight).sum().backward()
        if is_reset:
            x.grad = None

    for _ in range(plain_calls):
        step(Tensor([1.0, 2.0]) * 2)
    for _ in range(2):
        with pytest.raises(JitError, match="a gradient ends at the edge"):
            step((weight if in_sight else other) * 2)
    step(((weight if in_sight else other) * 2).detach())
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 4.0]


def test_a_result_that_is_detached_passes_no_gradient() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        y = x * weight
        y.sum().backward()
        return y

    x = Tensor([1.0, 1.0])
    for _ in range(5):
        x = step(x).detach()
    assert weight.grad is not None and (x.tolist(), weight.grad.tolist()) == ([1.0, 32.0], [1.0, 16.0])
    with pytest.raises(JitError, match="a gradient ends at the edge"):
        step(step(x))


@pytest.mark.parametrize(("plain_calls", "way"), [
    (0, "the result of a jitted call"), (3, "the result of a jitted call"), (0, "computed from a hidden weight"),
    (3, "computed from a hidden weight"), (0, "reachable")])
def test_no_gradient_passes_a_result_of_what_is_trained(plain_calls: int, way: str) -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    state = SimpleNamespace(now=Tensor([1.0, 2.0]))
    first, second = TinyJit(lambda x: x * weight), TinyJit(lambda x: x * 3)

    @TinyJit
    def doubled() -> None:
        state.now = state.now * 2

    for _ in range(plain_calls):
        second(Tensor([1.0, 2.0]))
    for _ in range(4):
        if way == "reachable":
            state.now = weight
            doubled()
            doubled()
            result = state.now
        else:
            result = second(first(Tensor([1.0, 2.0])) if way == "the result of a jitted call" else weight * 2)
        with pytest.raises(GradientError, match="jitted"):
            (result * result).sum().backward()
