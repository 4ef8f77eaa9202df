"""What a replay would get wrong if it took what the traces found for what is there now: values known before, lazy
tensors, views, settings, gradients that change between calls. Each program is run jitted and plain: both agree."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jit_fuzzer
import pytest
from jitted_and_plain import Program, bits, numbers, outcome, plain

from glassgrad import GlobalCounters, Tensor, no_grad
from glassgrad.jit import TinyJit
from glassgrad.jit.replay import CapturedCall


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


def a_replaced_tensor_whose_views_are_held(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(w=numbers(4).realize(), held=[])

    @wrap
    def step(x: Tensor) -> Tensor:
        s.w.replace(s.w * 0.5 + x)
        return s.w.sum()

    def call(number: int) -> Any:
        view = s.w[1:3]
        s.held = [*s.held, view][-3:]
        step(numbers(4) + number)
        return view
    return s, call


def a_replaced_argument_whose_views_are_held(wrap: Callable[..., Any]) -> Any:
    step = wrap(lambda x: x.replace(x.clone()).sum())

    def call(number: int) -> Any:
        x = (numbers(4) + number).realize()
        view = x[1:3]
        result = step(x)
        view.assign(view * 2)
        return result, view, x
    return None, call


def a_tensor_that_becomes_a_view_of_another(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(w=numbers(4).realize(), other=numbers(4).realize())

    @wrap
    def step(x: Tensor) -> Tensor:
        s.w.assign(s.w * 0.5 + x)
        return s.other * 2

    def call(number: int) -> Any:
        if number == 4:
            s.other = s.w.reshape(4)
        return step(numbers(4) + number)
    return s, call


def a_view_with_separate_memory(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(w=numbers(4).realize())
    step = wrap(lambda x: s.w.assign(s.w * 0.5 + x))

    def call(number: int) -> Any:
        view = s.w.detach()
        view.realize()
        step(numbers(4) + number)
        return view
    return s, call


def views_of_arguments_that_were_reshaped(wrap: Callable[..., Any]) -> Any:
    step = wrap(lambda x: x.T)
    return None, lambda number: step((numbers(6) + number).realize().reshape(2, 3))


def a_leaf_that_gets_the_value_of_another(wrap: Callable[..., Any]) -> Any:
    s = SimpleNamespace(u=numbers(3).realize())
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()
    step = wrap(lambda x: (s.u * x).sum().backward().realize())

    def call(number: int) -> Any:
        if number == 4:
            s.u.replace(w)
        step(numbers(3) + number)
        return w.grad if number > 4 else None
    return None, call


@pytest.mark.parametrize("program", [
    a_replaced_tensor_whose_views_are_held, a_replaced_argument_whose_views_are_held,
    a_tensor_that_becomes_a_view_of_another, a_view_with_separate_memory, views_of_arguments_that_were_reshaped,
    bits(a_leaf_that_gets_the_value_of_another),
    a_global_that_is_only_written, weights_that_are_frozen, an_assigned_value_that_was_there_already,
    values_known_before_the_trace, lazy_tensors_keep_the_value_they_were_made_from,
    bits(gradients_through_a_lazy_tensor_in_sight), view_that_shows_another_part,
    methods_replaced, attributes_that_appear, results_that_ask_for_a_gradient, results_in_a_block_without_gradients])
def test_what_a_replay_must_see(program: Program) -> None:
    assert outcome(program, TinyJit) == outcome(program, plain)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_gradient_that_is_returned_is_the_tensors_gradient(earlier: bool) -> None:
    w, kept = Tensor([1.0, 2.0], requires_grad=True), SimpleNamespace(gradient=None)

    @TinyJit
    def step(x: Tensor) -> Any:
        if not earlier:
            w.grad = None
        (w * w * x).sum().backward()
        kept.gradient = w.grad
        return w.grad, x * 2

    held = []
    for _ in range(6):
        gradient, _ = step(Tensor([1.0, 1.0]))
        assert gradient is w.grad is kept.gradient
        held.append(gradient)
        step(Tensor([1.0, 1.0]))                   # one that is not held
    times = [2 * number + 1 if earlier else 1 for number in range(6)]
    assert [gradient.tolist() for gradient in held] == [[2.0 * n, 4.0 * n] for n in times]
    assert step.captured


def test_a_gradient_of_an_argument_that_is_returned_is_the_arguments() -> None:
    @TinyJit
    def step(x: Tensor) -> Any:
        (x * x).sum().backward()
        return x.grad

    for number in range(5):
        x = Tensor([1.0, float(number)], requires_grad=True)
        assert step(x) is x.grad and x.grad is not None and x.grad.tolist() == [2.0, 2.0 * number]
    assert step.captured


def test_what_a_call_that_fails_keeps_of_its_arguments_is_theirs() -> None:
    class Model:
        last: Any = None
        bad = True

        @TinyJit
        def forward(self, x: Tensor) -> Tensor:
            self.last = (x, [x])
            if self.bad:
                raise ValueError("bad")
            return x + 1

    model, x = Model(), Tensor([1.0])
    with pytest.raises(ValueError):
        model.forward(x)
    assert model.last[0] is x and model.last[1][0] is x


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_random_programs_do_the_same_with_and_without_the_jit(first: int) -> None:
    reports = [jit_fuzzer.check(seed) for seed in range(first, first + 25)]
    assert not any(reports), "\n\n".join(filter(None, reports))


def test_a_wrong_replay_is_reported_with_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator can fail: a replay that assigns nothing is found."""
    monkeypatch.setattr(CapturedCall, "_run", lambda self, arguments, found, holders: self.replay.run() or found[0])
    assert "def f(x):" in jit_fuzzer.check(0) + jit_fuzzer.check(1)


def test_a_replay_of_many_inversions_computes_each_step_once() -> None:
    """Each inverse was computed at once, with all the steps that led to it: a filter's 16 steps took 216 kernels."""
    def kernels(steps: int) -> int:
        @TinyJit
        def chain(a: Tensor) -> Tensor:
            x = a
            for _ in range(steps):
                x = (a @ x + x.inv()).tanh()
            return x
        a = Tensor.eye(4).contiguous().realize()
        first = [chain(a).tolist() for _ in range(2)]
        before = GlobalCounters.kernel_count
        replayed = chain(a)
        assert GlobalCounters.kernel_count > before and first == [replayed.tolist()] * 2
        return GlobalCounters.kernel_count - before
    assert kernels(16) == 2 * kernels(8) - 1 == 4 * kernels(4) - 3


# -- devices -------------------------------------------------------------------------------------------------
def test_what_depends_on_no_value_of_an_argument_is_computed_on_its_device() -> None:
    def gradient(x: Tensor) -> Tensor:
        x = x.detach()
        x.requires_grad = True
        (x * 3).sum().backward()
        assert x.grad is not None
        return x.grad.realize()

    step, x = TinyJit(gradient), Tensor([1.0, 2.0], device="PYTHON").realize()
    for _ in range(4):
        assert step(x).device == "PYTHON"
    assert step(x).zero_().device == "PYTHON"
