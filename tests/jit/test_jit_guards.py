"""What a jitted function puts where: tensors that come and go, plain values, places that are there or not. Each program
is run jitted and plain; results, what is left where, and what the caller kept must be the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from jitted_and_plain import Program, Slotted, bits, numbers, outcome, plain

from glassgrad import Tensor, nn
from glassgrad.jit import TinyJit


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
