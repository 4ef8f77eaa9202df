"""Tensors that are assigned expressions: equal ones have gradients of their own, and long ones are computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glassgrad import GlobalCounters, Tensor, TinyJit
from glassgrad.engine.realize import forgotten_schedules
from glassgrad.tensor.autograd.gradient_leaves import MOST_UNREAD_NODES

EXPRESSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda w: w * 3, "formula": lambda w: w.tanh(), "softmax": lambda w: w.softmax(1), "view": lambda w: w.T,
    "matmul": lambda w: w @ w.T, "contiguous": lambda w: w.T.contiguous(), "scan": lambda w: w.exp().cumsum(1)}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_tensors_that_are_assigned_equal_expressions_pass_gradients_on(expression: str) -> None:
    """The second tensor had a node of its own, which ended the gradient: `w.grad` lacked what came through it."""
    compute = EXPRESSIONS[expression]
    w = Tensor([[1.0, 2.0], [0.5, -1.0]], requires_grad=True)
    kept = []
    for factor in (1.0, 2.0, 4.0):
        x = Tensor.zeros(2, 2, requires_grad=True)
        x.assign(compute(w))
        (x * x * factor).sum().backward()
        kept.append(x)
    (expected,) = (compute(w) * compute(w) * 7.0).sum().gradient(w)
    assert w.grad is not None and w.grad.allclose(expected, rtol=1e-5).item()
    own = [x.grad / compute(w).detach() for x in kept if x.grad is not None]
    assert [round(part.mean().item(), 4) for part in own] == [2.0, 4.0, 8.0]


# -- values that are assigned and not read -------------------------------------------------------------------------
UPDATES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "assign": lambda w, step: w.assign((w - step).detach()),
    "in place": lambda w, step: w.sub_(step.detach()),
    "of a view": lambda w, step: w.detach().sub_(step),
    "of a row": lambda w, step: w.detach()[0].sub_(step[0]),
    "with its history": lambda w, step: w.assign(w - step),
}


def trained(update: Callable[[Tensor, Tensor], object], steps: int, reads: bool) -> tuple[list[float], int]:
    """Return what a weight is after some steps of descent by hand, and how many schedules they took."""
    x, y = (Tensor([[((i * 7 + j * 3) % 11 - 5) / 8 for j in range(n)] for i in range(6)]).realize() for n in (4, 3))
    w = Tensor([[0.125 * i - 0.25 * j for j in range(3)] for i in range(4)], requires_grad=True).realize()
    before = GlobalCounters.schedules
    for _ in range(steps):
        w.grad = None
        ((x @ w).tanh() - y).square().mean().backward()
        assert w.grad is not None
        update(w, w.grad * 0.25)
        if reads:
            w.realize()
    return w.flatten().tolist(), GlobalCounters.schedules - before


@pytest.mark.slow_on("PYTHON")
@pytest.mark.parametrize("update", UPDATES)
def test_steps_by_hand_that_nothing_reads_are_computed_from_time_to_time(update: str) -> None:
    """All steps were one graph: to compile that of 200 steps took 15 s."""
    expected, _ = trained(UPDATES[update], 70, True)
    with forgotten_schedules():
        found, schedules = trained(UPDATES[update], 70, False)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert 1 < schedules < 8


def test_the_expression_of_an_unread_value_stays_short() -> None:
    w, x = Tensor([1.0, 2.0]).realize(), Tensor([0.5, 0.25]).realize()
    longest = 0
    for _ in range(1000):
        w.assign((w * x + 1).detach())
        longest = max(longest, len(w.uop.toposort()))
    assert MOST_UNREAD_NODES // 2 < longest < 2 * MOST_UNREAD_NODES
    assert w.tolist() == pytest.approx([2.0, 4 / 3])


def test_a_few_updates_that_nothing_reads_are_one_kernel() -> None:
    w = Tensor([1.0, 2.0]).realize()
    before = GlobalCounters.kernel_count
    for _ in range(10):
        w.add_(1).mul_(2)
    assert GlobalCounters.kernel_count == before
    assert w.tolist() == [3070.0, 4094.0] and GlobalCounters.kernel_count == before + 1


def test_a_jit_computes_no_value_while_it_traces() -> None:
    w, x = Tensor([1.0, 2.0]).realize(), Tensor([0.5, 0.25]).realize()

    @TinyJit
    def many() -> Tensor:
        for _ in range(300):
            w.assign(w * x + 1)
        return w.sum().realize()

    assert [many().item() for _ in range(4)] == pytest.approx([10 / 3] * 4)
