"""What a jitted function puts where: tensors that come and go, plain values, places that are there or not. Each program
is run jitted and plain; results, what is left where, and what the caller kept must be the same, bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glassgrad import Tensor, nn, no_grad
from glassgrad.jit import TinyJit

Program = Callable[[Callable[..., Any]], tuple[Any, Callable[[int], Any]]]
CALLS = 8


def numbers(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def seen(value: Any) -> Any:
    """A value with its tensors as bytes."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.requires_grad, value.numpy().tobytes()
    if isinstance(value, (list, tuple, deque)):
        return [seen(v) for v in value]
    if isinstance(value, dict):
        return {k: seen(v) for k, v in value.items()}
    if isinstance(value, Slotted):
        return seen(value.hidden)
    return seen(vars(value)) if isinstance(value, SimpleNamespace) else value


def outcome(program: Program, wrap: Callable[..., Any]) -> list[Any]:
    Tensor.manual_seed(7)
    state, call = program(wrap)
    results = []
    found = []
    for number in range(CALLS):
        results.append(call(number))
        found.append((seen(results[-1]), seen(state)))
    return [found, seen(results)]          # what was handed out, looked at again at the end


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class Slotted:
    __slots__ = ("hidden", "__weakref__")


# -- tensors that come and go -----------------------------------------------------------------------------------------
def hidden_in_an_attribute(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(hidden=numbers(3))

    @wrap
    def step(x: Tensor) -> Tensor:
        s.hidden = (s.hidden * 0.5 + x).realize()
        return s.hidden

    def call(number: int) -> Any:
        if number == 4:
            s.hidden = Tensor.ones(3)                # what somebody puts there is what the next call reads
        if number == 6:
            s.hidden = numbers(5)[1:4] * 3           # a view, lazy
        return step(numbers(3) + number)
    return s, call


def hidden_left_lazy(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(hidden=None)

    @wrap
    def step(x: Tensor) -> Tensor:
        s.hidden = x if s.hidden is None else s.hidden * 0.5 + x
        return s.hidden * 2
    return s, lambda number: step(numbers(3) + number)


def hidden_in_slots(wrap: Callable[..., Any]) -> Any:
    s = Slotted()
    s.hidden = numbers(3)

    @wrap
    def step(x: Tensor) -> Tensor:
        s.hidden = s.hidden * 0.5 + x
        return x + 1
    return s, lambda number: step(numbers(3) + number)


def pair_in_a_tuple(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(state=(numbers(3), numbers(3)), seen=[])

    @wrap
    def step(x: Tensor) -> Tensor:
        hidden, cell = s.state
        cell = cell * 0.5 + x
        s.state = (cell.tanh(), cell)
        return s.state[0]

    def call(number: int) -> Any:
        return step(numbers(3) + number), s.state
    return s, call


def dictionary_made_anew(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(state={"hidden": numbers(3), "size": 3})

    @wrap
    def step(x: Tensor) -> Tensor:
        s.state = {"hidden": s.state["hidden"] * 0.5 + x, "size": s.state["size"]}
        return s.state["hidden"] * 2

    def call(number: int) -> Any:
        if number == 5:
            s.state["hidden"] = Tensor.zeros(3)
        return step(numbers(3) + number)
    return s, call


def entries_of_a_dictionary(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(averages={"a": numbers(3), "b": numbers(3)})

    @wrap
    def step(x: Tensor) -> Tensor:
        for name in s.averages:
            s.averages[name] = (s.averages[name] * 0.9 + x).realize()
        return s.averages["a"] + s.averages["b"]
    return s, lambda number: step(numbers(3) + number)


def variable_of_a_closure(wrap: Callable[..., Any]) -> Any:
    hidden = numbers(3)

    @wrap
    def step(x: Tensor) -> Tensor:
        nonlocal hidden
        hidden = hidden * 0.5 + x
        return hidden * 2
    return None, lambda number: (step(numbers(3) + number), hidden)


def two_change_places(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(a=numbers(3), b=numbers(3) + 1)

    @wrap
    def step(x: Tensor) -> Tensor:
        y = s.a * x
        s.a, s.b = s.b, s.a
        return y
    return s, lambda number: step(numbers(3) + number)


def argument_kept_for_the_next_call(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(before=numbers(3))

    @wrap
    def step(x: Tensor) -> Tensor:
        difference = x - s.before
        s.before = x
        return difference

    def call(number: int) -> Any:
        x = numbers(3) * (number + 1)
        result = step(x if number % 2 else x.realize())
        x.assign(x + 100)                            # it is the tensor that is kept, not its value
        return result, s.before is x
    return s, call


def old_one_returned(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(hidden=numbers(3))

    @wrap
    def step(x: Tensor) -> Tensor:
        old = s.hidden
        s.hidden = (old * 0.5 + x).realize()
        return old

    def call(number: int) -> Any:
        before = s.hidden
        return step(numbers(3) + number) is before
    return s, call


def one_tensor_in_two_places(wrap: Callable[..., Any]) -> Any:
    first = numbers(3)
    s = SimpleNamespace(hidden=first, cell=first)

    @wrap
    def step(x: Tensor) -> Tensor:
        s.hidden = (s.hidden + x).realize()
        s.cell = (s.cell * s.hidden).realize()
        return s.cell + 1

    def call(number: int) -> Any:
        if number == 4:
            s.hidden = s.cell
        return step(numbers(3) * 0.1)
    return s, call


def a_weight_put_where_the_state_is(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(w=numbers(3))
    s.hidden = s.w

    @wrap
    def step(x: Tensor) -> Tensor:
        s.w.assign(s.w + 1)
        s.hidden = (s.hidden * 0.5 + x).realize()
        return s.hidden + s.w

    def call(number: int) -> Any:
        if number in (3, 6):
            s.hidden = s.w
        return step(numbers(3) * 0.1)
    return s, call


def view_of_a_result_that_was_read(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(hidden=numbers(3))

    @wrap
    def step(x: Tensor) -> Tensor:
        both = (s.hidden.expand(2, 3) + x).realize()
        s.hidden = both[1]
        return both
    return s, lambda number: step(numbers(2, 3) * (number + 1))


def written_by_one_read_by_another(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(memory=None)

    @wrap
    def encode(x: Tensor) -> Tensor:
        s.memory = x * 2
        return x.sum()

    @wrap
    def decode(y: Tensor) -> Tensor:
        return s.memory + y
    return s, lambda number: (encode(numbers(3) + number), decode(numbers(3)))


def replaced_before_every_call(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(w=numbers(3))
    step = wrap(lambda x: s.w * x)

    def call(number: int) -> Any:
        s.w = numbers(3) * number if number % 2 else (numbers(3) + number).realize()
        return step(numbers(3) + number)
    return s, call


def trained_with_a_detached_state(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(hidden=numbers(3), w=Tensor([1.0, 2.0, 3.0], requires_grad=True))
    optimizer = nn.optim.SGD([s.w], lr=0.1)

    @wrap
    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            hidden = (s.hidden * s.w + x).tanh()
            loss = hidden.sum().backward()
            optimizer.step()
            s.hidden = hidden.detach()
            return loss.realize()
    return s, lambda number: step(numbers(3) * number)


def random_state(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(hidden=numbers(3))

    @wrap
    def step() -> Tensor:
        s.hidden = s.hidden * 0.5 + Tensor.rand(3)
        return s.hidden.dropout(0.5)

    def call(number: int) -> Any:
        with Tensor.train(number % 3 != 0):
            return step()
    return s, call


def changed_in_place_and_replaced(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(hidden=numbers(3))
    kept = []

    @wrap
    def step(x: Tensor) -> Tensor:
        s.hidden.assign(s.hidden + 1)                # seen by the caller who holds the old one
        s.hidden = (s.hidden * 0.5 + x).realize()
        return s.hidden * 2

    def call(number: int) -> Any:
        if number != 5:
            kept.append(s.hidden)
        return step(numbers(3) + number), list(kept)
    return s, call


def taken_away(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(item=None)

    @wrap
    def step(x: Tensor) -> Tensor:
        y = x * 2 + s.item
        s.item = None
        return y

    def call(number: int) -> Any:
        s.item = (numbers(3) * number).realize()
        return step(numbers(3))
    return s, call


def bits(program: Program) -> Any:
    """A program whose last bits a C compiler decides: it fuses products and sums where it finds them side by side."""
    return pytest.param(program, marks=pytest.mark.only_on("CPU", "PYTHON", "CUDA", reason="it compares the last bits"))


STATES = [hidden_in_an_attribute, hidden_left_lazy, hidden_in_slots, pair_in_a_tuple, dictionary_made_anew,
          entries_of_a_dictionary, variable_of_a_closure, two_change_places, argument_kept_for_the_next_call,
          old_one_returned, bits(one_tensor_in_two_places), a_weight_put_where_the_state_is,
          bits(view_of_a_result_that_was_read), written_by_one_read_by_another, replaced_before_every_call,
          trained_with_a_detached_state, random_state, changed_in_place_and_replaced, taken_away]


@pytest.mark.parametrize("program", STATES)
def test_tensors_that_come_and_go(program: Program) -> None:
    made: list[TinyJit] = []

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        made.append(TinyJit(function))
        return made[-1]
    assert outcome(program, wrap) == outcome(program, plain)
    assert all(jitted._replayed for jitted in made)


def test_a_method_that_keeps_its_state_in_its_object() -> None:
    class Average:
        def __init__(self) -> None:
            self.value = Tensor.zeros(2)

        @TinyJit
        def __call__(self, x: Tensor) -> Tensor:
            self.value = self.value * 0.5 + x
            return self.value

    first, second, wanted = Average(), Average(), [0.0, 0.0]
    for number in range(6):
        for i, average in enumerate((first, second)):
            wanted[i] = wanted[i] * 0.5 + number + i
            assert average(Tensor([float(number + i)] * 2)).tolist() == [wanted[i]] * 2 == average.value.tolist()
    assert Average.__dict__["__call__"].__get__(first, Average)._replayed >= 3


# -- what a replay would get wrong ------------------------------------------------------------------------------------
def values_known_before_the_trace(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(w=numbers(3))
    double = s.w * 2
    double.numpy()                                   # from here on this expression remembers its value
    step = wrap(lambda x: x + s.w * 2)

    def call(number: int) -> Any:
        if number == 4:
            s.w.assign(s.w + 1)
        return step(numbers(3) + number), double
    return s, call


def lazy_tensors_keep_the_value_they_were_made_from(wrap: Callable[..., Any]) -> Any:
    w = numbers(3)
    s = SimpleNamespace(double=w * 2)
    step = wrap(lambda x: x + s.double + w)

    def call(number: int) -> Any:
        if number in (3, 5):
            w.assign(w + 1).realize()
        if number == 6:
            s.double = w * 2
        return step(numbers(3) + number)
    return None, call


def gradients_through_a_lazy_tensor_in_sight(wrap: Callable[..., Any]) -> Any:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    s = SimpleNamespace(double=w * 2, data=numbers(3) * 2)
    step = wrap(lambda x: (s.double * x + s.data).sum().backward().realize())

    def call(number: int) -> Any:
        if number in (3, 5, 6):
            s.double, s.data = w * (number + 1), numbers(3) * number
        w.grad = None
        return step(numbers(3) + number), w.grad
    return None, call


def view_that_shows_another_part(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(w=numbers(6))
    s.part = s.w[1:4]
    step = wrap(lambda x: x + s.part + s.w[:3])

    def call(number: int) -> Any:
        if number in (3, 5):
            s.part.replace(s.w[3:6] if number == 3 else s.w[0:3])
        return step(numbers(3) + number)
    return s, call


def methods_replaced(wrap: Callable[..., Any]) -> Any:
    class Model:
        def scale(self, x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.scale(x) + 1
    model: Any = Model()
    step = wrap(model.forward)

    def call(number: int) -> Any:
        if number == 3:
            Model.scale = lambda self, x: x * 3      # type: ignore[method-assign]
        if number == 6:
            model.scale = lambda x: x * 5
        return step(numbers(3) + number)
    return None, call


def attributes_that_appear(wrap: Callable[..., Any]) -> Any:
    class Model:
        pass
    model: Any = Model()
    step = wrap(lambda x: x * (3 if getattr(model, "three", False) else 2 + getattr(model, "more", 0)))

    def call(number: int) -> Any:
        if number == 2:
            model.three = True
        if number == 4:
            del model.three
        if number == 6:
            Model.more = 5                           # type: ignore[attr-defined]
        return step(numbers(3) + number)
    return None, call


def results_that_ask_for_a_gradient(wrap: Callable[..., Any]) -> Any:
    @wrap
    def step(x: Tensor) -> Tensor:
        y = (x * 2).realize()
        y.requires_grad = True
        return y

    def call(number: int) -> Any:
        y = step(numbers(3) + number)
        (y * y).sum().backward()
        return y, y.grad
    return None, call


def results_in_a_block_without_gradients(wrap: Callable[..., Any]) -> Any:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    step = wrap(lambda x: x * w)

    def call(number: int) -> Any:
        with no_grad():
            y = step(numbers(3) + number)
        w.grad = None
        (y * w).sum().backward()
        return y, w.grad
    return None, call


def weights_that_are_frozen(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(first=numbers(3), second=numbers(3), out_of_sight=numbers(3))
    for tensor in vars(s).values():
        tensor.requires_grad = True
    found = {id(s.out_of_sight): s.out_of_sight}.get
    number_of_it = id(s.out_of_sight)
    first, second = s.first, s.second

    @wrap
    def step(x: Tensor) -> None:
        hidden = found(number_of_it)
        assert hidden is not None
        first.grad = second.grad = hidden.grad = None
        (x * first * second * hidden).sum().backward()

    def call(number: int) -> Any:
        if number == 3:
            first.requires_grad = False
        if number == 6:
            s.out_of_sight.requires_grad = False
        step(numbers(3) + number)
        return first.grad, second.grad, s.out_of_sight.grad
    return None, call


def an_assigned_value_that_was_there_already(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(kept=numbers(3).realize(), given=(numbers(3) + 1).realize(), counted=numbers(3).realize())

    @wrap
    def step(x: Tensor) -> Tensor:
        s.kept.assign(s.given.detach())
        s.counted.assign(s.counted)
        return x + 1

    def call(number: int) -> Any:
        if number > 2:
            s.kept.assign(s.kept * 2)
            s.counted.assign(s.counted + 1)
        return step(numbers(3) + number)
    return s, call


_written = Tensor([0.0])


def a_global_that_is_only_written(wrap: Callable[..., Any]) -> Any:
    w = numbers(3).realize()

    @wrap
    def step(x: Tensor) -> Tensor:
        global _written
        _written = w * 2
        w.assign(w * 0.5)
        return x + 1

    def call(number: int) -> Any:
        return step(numbers(3) + number), _written
    return None, call


@pytest.mark.parametrize("program", [
    a_global_that_is_only_written, weights_that_are_frozen, an_assigned_value_that_was_there_already,
    values_known_before_the_trace, lazy_tensors_keep_the_value_they_were_made_from,
    bits(gradients_through_a_lazy_tensor_in_sight), view_that_shows_another_part,
    methods_replaced, attributes_that_appear, results_that_ask_for_a_gradient, results_in_a_block_without_gradients])
def test_what_a_replay_must_see(program: Program) -> None:
    assert outcome(program, TinyJit) == outcome(program, plain)
