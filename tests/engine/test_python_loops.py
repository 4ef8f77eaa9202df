"""A loop in Python over a cell is a recurrence: it computes the same, and its length is a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassgrad import Context, GlobalCounters, Tensor, TinyJit, nn
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import joined
from glassgrad.engine.changing_sizes import equal_steps
from glassgrad.engine.changing_sizes.python_loops import with_recurrences

BATCH, INPUTS, HIDDEN, WORDS = 3, 4, 5, 6
Data = dict[str, Tensor]


def data(length: int) -> Data:
    random = np.random.default_rng(length)
    shapes = {"x": (BATCH, length, INPUTS), "first": (length, BATCH, INPUTS), "h0": (BATCH, HIDDEN),
              "w": (INPUTS, HIDDEN), "u": (HIDDEN, HIDDEN), "b": (HIDDEN,), "u2": (HIDDEN, HIDDEN),
              "head": (HIDDEN, WORDS), "y": (BATCH, length, WORDS), "encoded": (BATCH, 7, HIDDEN)}
    found = {name: Tensor(random.standard_normal(shape).astype(np.float32) * 0.5, requires_grad=True).realize()
             for name, shape in shapes.items()}
    found["mask"] = Tensor((random.random((BATCH, length)) < 0.7).astype(np.float32), requires_grad=False).realize()
    return found


def cell(d: Data, x: Tensor, h: Tensor, u: str = "u") -> Tensor:
    return (x @ d["w"] + h @ d[u] + d["b"]).tanh()


def states(d: Data, length: int) -> list[Tensor]:
    h, found = d["h0"], []
    for t in range(length):
        h = cell(d, d["x"][:, t], h)
        found.append(h)
    return found


def all_states(d: Data, n: int) -> Tensor:
    return Tensor.stack(*states(d, n), dim=1)


def last_state(d: Data, n: int) -> Tensor:
    return states(d, n)[-1]


def along_the_first_axis(d: Data, n: int) -> Tensor:
    h, found = Tensor.zeros(BATCH, HIDDEN), []
    for row in d["first"]:
        h = cell(d, row, h)
        found.append(h)
    return Tensor.stack(*found)


def from_the_end(d: Data, n: int) -> Tensor:
    h, found = d["h0"], list[Tensor]()
    for t in reversed(range(n)):
        h = cell(d, d["x"][:, t], h)
        found.insert(0, h)
    return Tensor.stack(*found, dim=1)


def both_directions(d: Data, n: int) -> Tensor:
    return all_states(d, n).cat(from_the_end(d, n), dim=2)


def a_head_at_each_step(d: Data, n: int) -> Tensor:
    return Tensor.stack(*[(h @ d["head"]).softmax(-1) for h in states(d, n)], dim=1)


def rows_of_one_axis(d: Data, n: int) -> Tensor:
    return Tensor.cat(*states(d, n), dim=0)


def a_sum_of_losses(d: Data, n: int) -> Tensor:
    losses = [(h @ d["head"] - d["y"][:, t]).square().mean() for t, h in enumerate(states(d, n))]
    return sum(losses[1:], losses[0]) / n


def a_running_sum(d: Data, n: int) -> Tensor:
    h, loss = d["h0"], Tensor(0.0)
    for t in range(n):
        h = cell(d, d["x"][:, t], h)
        loss = loss + (h @ d["head"] - d["y"][:, t]).square().mean()
    return loss


def losses_in_a_row(d: Data, n: int) -> Tensor:
    return Tensor.stack(*[(h @ d["head"] - d["y"][:, t]).abs().sum() for t, h in enumerate(states(d, n))])


def two_layers(d: Data, n: int) -> Tensor:
    h = g = d["h0"]
    found = []
    for t in range(n):
        h = cell(d, d["x"][:, t], h)
        g = (h @ d["u2"] + g @ d["u"]).tanh()
        found.append(g)
    return Tensor.stack(*found, dim=1)


def one_loop_after_another(d: Data, n: int) -> Tensor:
    below, g, found = states(d, n), d["h0"], []
    for h in below:
        g = (h @ d["u2"] + g @ d["u"]).tanh()
        found.append(g)
    return Tensor.stack(*found, dim=1)


def encoder_and_decoder(d: Data, n: int) -> Tensor:
    h, found = states(d, n)[-1], []
    for t in range(n):
        h = cell(d, d["x"][:, n - 1 - t], h, "u2")
        found.append(h @ d["head"])
    return Tensor.stack(*found, dim=1)


def no_state_at_first(d: Data, n: int) -> Tensor:
    h, found = None, []
    for t in range(n):
        seen = d["x"][:, t] @ d["w"]
        h = seen.tanh() if h is None else (seen + h @ d["u"]).tanh()
        found.append(h)
    return Tensor.stack(*found, dim=1)


def with_the_first_state(d: Data, n: int) -> Tensor:
    return Tensor.stack(d["h0"], *states(d, n), dim=1)


def masked_steps(d: Data, n: int) -> Tensor:
    h = d["h0"]
    for t in range(n):
        m = d["mask"][:, t:t + 1]
        h = m * cell(d, d["x"][:, t], h) + (1 - m) * h
    return h


def attention_in_each_step(d: Data, n: int) -> Tensor:
    h, found = d["h0"], []
    for t in range(n):
        weights = (d["encoded"] * h.unsqueeze(1)).sum(-1).softmax(-1)
        context = (weights.unsqueeze(-1) * d["encoded"]).sum(1)
        h = (cell(d, d["x"][:, t], h) + context @ d["u2"]).tanh()
        found.append(h)
    return Tensor.stack(*found, dim=1)


def detached_states(d: Data, n: int) -> Tensor:
    h, found = d["h0"], []
    for t in range(n):
        h = cell(d, d["x"][:, t], h.detach())
        found.append(h)
    return Tensor.stack(*found, dim=1)


def state_before_and_after(d: Data, n: int) -> Tensor:
    h, found = d["h0"], []
    for t in range(n):
        new = cell(d, d["x"][:, t], h)
        found.append(new * h)
        h = new
    return Tensor.stack(*found, dim=1)


def a_window_of_inputs(d: Data, n: int) -> Tensor:
    h = d["h0"]
    for t in range(1, n):
        h = cell(d, d["x"][:, t] + d["x"][:, t - 1], h)
    return h


def steps_up_to_a_length(d: Data, n: int) -> Tensor:
    h, lengths = d["h0"], Tensor([2, n - 1, n])
    for t in range(n):
        h = (lengths > t).unsqueeze(1).where(cell(d, d["x"][:, t], h), h)
    return h


ROLLED: list[Callable[[Data, int], Tensor]] = [
    all_states, last_state, along_the_first_axis, from_the_end, both_directions, a_head_at_each_step, rows_of_one_axis,
    a_sum_of_losses, a_running_sum, losses_in_a_row, two_layers, one_loop_after_another, encoder_and_decoder,
    no_state_at_first, with_the_first_state, masked_steps, attention_in_each_step, detached_states,
    state_before_and_after, a_window_of_inputs, steps_up_to_a_length]


def values(program: Callable[[Data, int], Tensor], d: Data, length: int) -> list[np.ndarray]:
    """The result, and the gradients of all that it depends on."""
    for t in d.values():
        t.grad = None
    out = program(d, length)
    out.square().sum().backward()
    grads = [t.grad for t in d.values() if t.grad is not None]
    out.realize(*grads)
    return [out.numpy(), *[g.numpy() for g in grads]]


def is_recurrence(*sinks: Tensor) -> bool:
    made = with_recurrences([t.uop for t in sinks])
    return made is not None and any(n.op is o.RECURRENCE for sink in made for n in sink.toposort())


@pytest.mark.parametrize("program", ROLLED, ids=lambda p: p.__name__)
def test_a_loop_is_a_recurrence_with_the_same_values_and_gradients(program: Callable[[Data, int], Tensor]) -> None:
    for length in (5, 6, 9, 4, 13):
        d = data(length)
        assert is_recurrence(program(d, length))
        found = values(program, d, length)
        with Context(DYNAMIC=0):
            expected = values(program, d, length)
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("program", ROLLED, ids=lambda p: p.__name__)
def test_a_loop_of_another_length_is_not_scheduled_again(program: Callable[[Data, int], Tensor]) -> None:
    for length in (5, 8, 11):
        values(program, data(length), length)
    before = GlobalCounters.schedules
    for length in (6, 10, 17, 23):
        values(program, data(length), length)
    assert GlobalCounters.schedules == before


def test_a_length_that_comes_again_has_the_values_of_its_new_data() -> None:
    for seed in (1, 2, 3):
        random = np.random.default_rng(seed)
        d = {**data(8), "x": Tensor(random.standard_normal((BATCH, 8, INPUTS)).astype(np.float32))}
        with Context(DYNAMIC=0):
            expected = values(all_states, d, 8)
        for one, other in zip(values(all_states, d, 8), expected):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("first", [0.0, 1.0, -0.5])
def test_numbers_may_differ_where_a_length_comes_again(first: float) -> None:
    d = data(6)

    def program(d: Data, n: int) -> Tensor:
        return all_states({**d, "h0": Tensor.full((BATCH, HIDDEN), first)}, n) * (first + 2)

    with Context(DYNAMIC=0):
        expected = program(d, 6).numpy()
    np.testing.assert_allclose(program(d, 6).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 1, 4, 3), (0, 1, 2, 4, 3), (1, 1, 1, 1, 1)])
def test_rows_in_any_order_are_the_right_rows(order: tuple[int, ...]) -> None:
    d = data(5)

    def program(d: Data) -> Tensor:
        h = d["h0"]
        for t in order:
            h = cell(d, d["first"][t], h)
        return h

    with Context(DYNAMIC=0):
        expected = program(d).numpy()
    for _ in range(2):
        np.testing.assert_allclose(program(d).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_memory_of_earlier_calls_is_not_kept() -> None:
    def used() -> int:
        all_states(data(30), 30).realize()
        return GlobalCounters.mem_used

    assert used() == used() == used()


def test_a_jitted_loop_computes_the_same() -> None:
    d = data(7)

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        out = all_states({**d, "x": x}, 7)
        [grad] = out.square().sum().gradient(d["u"])
        return out.realize(grad), grad

    for seed in range(4):
        x = Tensor(np.random.default_rng(seed).standard_normal((BATCH, 7, INPUTS)).astype(np.float32)).realize()
        found = [t.numpy() for t in step(x)]
        with Context(DYNAMIC=0):
            out = all_states({**d, "x": x}, 7)
            expected = [out.numpy(), out.square().sum().gradient(d["u"])[0].numpy()]
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_a_loop_over_torch_cells_has_the_same_values(torch: Any) -> None:
    ours, theirs = nn.LSTMCell(INPUTS, HIDDEN), torch.nn.LSTMCell(INPUTS, HIDDEN)
    for name, value in theirs.named_parameters():
        getattr(ours, name).assign(Tensor(value.detach().numpy())).realize()
    for length in (3, 9, 5):
        x = np.random.default_rng(length).standard_normal((BATCH, length, INPUTS)).astype(np.float32)
        for parameter in (ours.weight_hh, ours.bias_ih):
            parameter.grad = None
        theirs.zero_grad()
        outs, state = [], None
        for t in range(length):
            state = ours(Tensor(x)[:, t], state)
            outs.append(state[0])
        Tensor.stack(*outs).square().mean().backward()
        expected, state = [], None
        for t in range(length):
            state = theirs(torch.tensor(x[:, t]), state)
            expected.append(state[0])
        torch.stack(expected).square().mean().backward()
        np.testing.assert_allclose(ours.weight_hh.grad.numpy(), theirs.weight_hh.grad.numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(ours.bias_ih.grad.numpy(), theirs.bias_ih.grad.numpy(), rtol=1e-4, atol=1e-6)


# -- what is left as it is -----------------------------------------------------------------------------------
def test_other_weights_in_a_step_are_no_loop() -> None:
    d = data(6)
    h = d["h0"]
    for t in range(6):
        h = cell(d, d["x"][:, t], h, "u2" if t == 3 else "u")
    assert not is_recurrence(h)


def test_layers_with_weights_of_their_own_are_no_loop() -> None:
    h = Tensor.rand(2, 8).realize()
    for layer in [nn.Linear(8, 8) for _ in range(6)]:
        h = layer(h).relu()
    assert not is_recurrence(h)


def test_steps_without_a_reduction_stay_one_kernel() -> None:
    d = data(6)
    h = Tensor.zeros(BATCH, INPUTS)
    for t in range(6):
        h = h * 0.5 + d["x"][:, t]
    assert not is_recurrence(h)
    assert len(h.schedule()) == 1


def test_two_steps_and_a_step_that_draws_numbers_are_no_loop() -> None:
    d = data(6)
    assert not is_recurrence(all_states(d, 2))
    h = d["h0"]
    with Tensor.train():
        for t in range(6):
            h = cell(d, d["x"][:, t], h).dropout(0.5)
    assert not is_recurrence(h)


def test_the_gradient_of_a_state_on_the_way_is_that_of_this_state() -> None:
    d = data(6)

    def found() -> list[np.ndarray]:
        every = states(d, 6)
        loss = Tensor.stack(*every).square().sum()
        return [g.numpy() for g in loss.gradient(every[2], every[5], d["u"])]

    ours = found()
    with Context(DYNAMIC=0):
        expected = found()
    for one, other in zip(ours, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_one_row_is_that_of_this_row() -> None:
    d = data(6)

    def found() -> list[np.ndarray]:
        rows, h = [d["x"][:, t] for t in range(6)], d["h0"]
        for row in rows:
            h = cell(d, row, h)
        return [g.numpy() for g in h.square().sum().gradient(rows[1], rows[4])]

    ours = found()
    with Context(DYNAMIC=0):
        expected = found()
    for one, other in zip(ours, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_concatenation_of_many_values_that_are_no_steps_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def counted(parts: Any, axis: int) -> Any:
        compared.append(len(parts))
        return joined(parts, axis)

    monkeypatch.setattr(equal_steps, "joined", counted)
    x, w = Tensor.rand(60, 4).realize(), Tensor.rand(4).realize()
    assert not is_recurrence(Tensor.stack(*[x[i] * w for i in range(60)]))
    assert compared == [60]
