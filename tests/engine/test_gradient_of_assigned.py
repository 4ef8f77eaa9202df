"""Gradients of tensors that were assigned the same expression: each has its own, and what it was computed from all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glassgrad import Tensor

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
