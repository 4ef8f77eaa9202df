"""Gradients of what a jitted function is handed, and of what it finds: what is added, reset, dropped, returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassgrad import GlobalCounters, Tensor, nn
from glassgrad.base.errors import JitError
from glassgrad.jit import TinyJit
from glassgrad.jit.replay import CapturedCall


def trained(jit: bool, argument: Callable[[Tensor], Tensor]) -> list[Any]:
    """The weight after each of five steps of `(x * x + w).sum()`, x made from the weight outside."""
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    optimizer = nn.optim.SGD([w], lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        (x * x + w).sum().backward()
        optimizer.step()
        return (x + 1).realize()

    call = TinyJit(step) if jit else step
    out = []
    for _ in range(5):
        call(argument(w))
        out.append(w.tolist())
    return out


@pytest.mark.parametrize("argument", [lambda w: w.detach() * 2, lambda w: (w * 2).realize(), lambda w: w,
                                      lambda w: Tensor([3.0, 4.0])[:2]], ids=["detached", "realized", "itself", "data"])
def test_no_gradient_passes_these(argument: Callable[[Tensor], Tensor]) -> None:
    assert trained(True, argument) == trained(False, argument)


@pytest.mark.parametrize("argument", [lambda w: w * 2, lambda w: w.flip(0), lambda w: Tensor(w.uop)],
                         ids=["computed", "view", "node"])
def test_a_gradient_that_would_end_at_an_argument(argument: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(JitError) as error:
        trained(True, argument)
    assert str(error.value).partition("\n  at: ")[0] == """\
a gradient ends at the edge of this function
  given:    argument 0 of shape (2,), computed from what is trained; backward() ran inside
  expected: arguments that gradients need not pass
  fix:      compute it inside the function, or pass x.detach(); this call went without that gradient"""


@pytest.mark.parametrize("resets", [True, False])
def test_the_gradient_of_an_argument_is_reset_as_the_function_does(resets: bool) -> None:
    """Without a reset it is added to the earlier one."""
    x, w = Tensor([[1.0, 2.0]], requires_grad=True), Tensor([[1.0, 1.0], [2.0, 2.0]], requires_grad=True)

    def step(x: Tensor, w: Tensor) -> Tensor:
        if resets:
            x.grad = w.grad = None
        return (x @ w.T).sum().backward()
    jitted = TinyJit(step)
    for call in range(1, 6):
        jitted(x, w)
        times = 1 if resets else call
        assert x.grad.tolist() == [[3.0 * times, 3.0 * times]]
        assert w.grad.tolist() == [[1.0 * times, 2.0 * times]] * 2


def test_a_gradient_of_an_argument_that_is_only_reset() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)

    @TinyJit
    def double(x: Tensor) -> Tensor:
        x.grad = None
        return x * 2
    for _ in range(4):
        x.grad = Tensor([5.0, 5.0])
        assert double(x).tolist() == [2.0, 4.0] and x.grad is None


@pytest.mark.parametrize("resets", [True, False])
def test_a_gradient_that_is_dropped_leaves_the_earlier_one_unless_the_function_resets_that(resets: bool) -> None:
    w, seen, x = Tensor([1.0, 2.0], requires_grad=True), Tensor([5.0, 6.0]), Tensor([3.0, 4.0])

    @TinyJit
    def step(x: Tensor) -> Tensor:
        if resets:
            x.grad = seen.grad = None
        return (x * w * seen).sum().backward()
    for _ in range(5):
        x.grad, seen.grad = Tensor([7.0, 7.0]), Tensor([8.0, 8.0])
        step(x)
        for tensor, earlier in ((x, 7.0), (seen, 8.0)):
            assert tensor.grad is None if resets else tensor.grad is not None and tensor.grad.tolist() == [earlier] * 2


def test_gradients_of_arguments_that_are_returned_hold_no_memory_of_earlier_calls() -> None:
    x, w = (Tensor.rand(64, 64, requires_grad=True).realize() for _ in range(2))

    @TinyJit
    def gradients(*given: Tensor) -> list[Tensor]:
        for tensor in given:
            tensor.grad = None
        (given[0] @ given[1]).sum().backward()
        return [tensor.grad.realize() for tensor in given]
    for call in range(20):
        found = gradients(x, w)
        assert all(np.array_equal(g.numpy(), t.grad.numpy()) for g, t in zip(found, (x, w)))
        if call == 4:
            used = GlobalCounters.mem_used
    assert GlobalCounters.mem_used <= used


@pytest.mark.parametrize("earlier", [True, False])
def test_a_gradient_that_is_added_to_an_arguments_and_returned_is_that_gradient(earlier: bool) -> None:
    def run(wrap: Callable[..., Any]) -> list[Any]:
        @wrap
        def gradient(x: Tensor) -> Tensor:
            (x * x).sum().backward()
            return x.grad.realize()
        seen = []
        for call in range(7):
            x = Tensor([1.0, call], requires_grad=True)
            if earlier:
                x.grad = Tensor([5.0, 7.0]) * call
            given = gradient(x)
            seen.append((given.tolist(), given is x.grad))
        return seen
    assert run(TinyJit) == run(lambda function: function)


@pytest.mark.parametrize("moved", [False, True])
def test_a_gradient_that_was_not_computed_before_the_call(moved: bool) -> None:
    """It is another expression at each call: a replay computes only the one that the trace computed."""
    def run(wrap: Callable[..., Any]) -> list[Any]:
        w, x = Tensor([1.0, 2.0], requires_grad=True).realize(), Tensor([3.0, 4.0]).realize()

        @wrap
        def step() -> None:
            w.assign(w.detach() - w.grad * 0.25)
        seen = []
        for call in range(9):
            w.grad = None
            (w * w * x * (3.0 if call in (4, 5) else 1.0)).sum().backward()
            if moved and call in (5, 7):
                w.assign(w.detach() + 1)
            step()
            seen.append(w.tolist())
        return seen
    if moved:                                    # each call computes the gradient of another value
        with pytest.raises(JitError, match="another graph is computed"):
            run(TinyJit)
    else:
        assert run(TinyJit) == run(lambda function: function)


def test_a_gradient_that_is_changed_in_place() -> None:
    def run(wrap: Callable[..., Any]) -> list[Any]:
        w = Tensor([1.0, 2.0], requires_grad=True).realize()

        @wrap
        def clip() -> None:
            w.grad.assign(w.grad * 0.5)
        seen = []
        for call in range(6):
            w.grad = Tensor([1.0, call]).realize()
            kept = w.grad
            clip()
            seen.append((w.grad.tolist(), kept is w.grad))
        return seen
    assert run(TinyJit) == run(lambda function: function)


@pytest.mark.parametrize("held", ["nothing", "the gradient", "its array", "a view of it", "an expression of it"])
def test_a_gradient_that_one_jitted_call_leaves_and_another_changes(held: str) -> None:
    """The second call writes it in place, unless the program holds what would change with it."""
    holding: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda g: None, "the gradient": lambda g: g, "its array": lambda g: g.numpy(),
        "a view of it": lambda g: g[1:], "an expression of it": lambda g: g * 2}

    def run(wrap: Callable[..., Any]) -> list[Any]:
        w = Tensor([1.0, 2.0], requires_grad=True).realize()

        @wrap
        def step(x: Tensor) -> None:
            w.grad = None
            (w * w * x).sum().backward()

        @wrap
        def halve() -> None:
            w.grad.assign(w.grad * 0.5)
        seen, kept = [], []
        for call in range(10):
            step(Tensor([1.0, call]).realize())
            if call in (3, 5, 6, 8):
                kept.append(holding[held](w.grad))
            halve()
            seen.append(w.grad.tolist())
        return [seen, [None if k is None else np.asarray(k.numpy() if isinstance(k, Tensor) else k).tolist()
                       for k in kept]]
    assert run(TinyJit) == run(lambda function: function)


def test_gradients_that_add_up_are_replayed_without_following_them_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    w, x = Tensor([1.0, 2.0], requires_grad=True).realize(), Tensor([3.0, 4.0]).realize()

    @TinyJit
    def step() -> None:
        (w * x).sum().backward()
    for _ in range(5):
        step()
    compared: list[Any] = []
    monkeypatch.setattr(CapturedCall, "_compare", lambda self, found, steady: compared.append(steady))
    for _ in range(3):
        step()
    assert not compared and w.grad is not None and w.grad.tolist() == [24.0, 32.0]
