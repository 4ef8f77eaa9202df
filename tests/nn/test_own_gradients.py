"""Formulas whose gradient is written by hand (norms, attention): first and second derivatives, beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from glassgrad import Context, Tensor, dtypes, nn
from glassgrad.nn.optim import autocast

Ours, Theirs = Callable[..., Any], Callable[..., Any]


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    layer = nn.BatchNorm(weight.shape[0])
    layer.weight, layer.bias = weight, bias
    with Context(TRAINING=1):
        return layer(x)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def plain_attention(torch: Any, q: Any, k: Any, v: Any, masked: bool) -> Any:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if masked:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -float("inf"))
    return scores.softmax(-1) @ v


CASES: dict[str, tuple[Ours, Theirs, tuple[tuple[int, ...], ...]]] = {
    "layer norm": (lambda x: x.layernorm(), lambda t, x: t.nn.functional.layer_norm(x, x.shape[-1:]), ((5, 7),)),
    "layer norm of two axes": (lambda x: x.layernorm((-2, -1)),
                               lambda t, x: t.nn.functional.layer_norm(x, x.shape[-2:]), ((3, 4, 5),)),
    "rms norm": (lambda x: x.rms_norm(), lambda t, x: t.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6), ((5, 7),)),
    "batch norm": (batch_norm, lambda t, x, w, b: t.nn.functional.batch_norm(x, None, None, w, b, True),
                   ((4, 3, 5), (3,), (3,))),
    "attention": (lambda q, k, v: q.scaled_dot_product_attention(k, v),
                  lambda t, q, k, v: plain_attention(t, q, k, v, False), ((2, 6, 4), (2, 5, 4), (2, 5, 3))),
    "causal attention": (causal, lambda t, q, k, v: plain_attention(t, q, k, v, True), ((2, 6, 4),) * 3),
    "attention of keys for all": (lambda q, k, v: q.scaled_dot_product_attention(k, v),
                                  lambda t, q, k, v: plain_attention(t, q, k, v, False), ((2, 6, 4), (5, 4), (5, 3)))}


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives(name: str, torch: ModuleType, rng: np.random.Generator) -> None:
    ours, theirs, shapes = CASES[name]
    arrays = [rng.standard_normal(shape) for shape in shapes]
    inputs = [Tensor(a, dtype=dtypes.float64, requires_grad=True) for a in arrays]
    others = [torch.tensor(a, requires_grad=True) for a in arrays]
    first = (ours(*inputs) ** 3).sum().gradient(*inputs)
    wanted = torch.autograd.grad((theirs(torch, *others) ** 3).sum(), others, create_graph=True)
    for found, want in zip(first, wanted):
        np.testing.assert_allclose(found.numpy(), want.detach().numpy(), rtol=1e-6, atol=1e-8)
    total = sum(((g * g).sum() for g in first[1:]), (first[0] * first[0]).sum())
    second = torch.autograd.grad(sum((g * g).sum() for g in wanted), others)
    for found, want in zip(total.gradient(*inputs), second):
        np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-5, atol=1e-7)


def test_attention_in_mixed_precision(torch: ModuleType, rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal((2, 12, 8)).astype(np.float32) for _ in range(3)]
    inputs = [Tensor(a, requires_grad=True) for a in arrays]
    others = [torch.tensor(a, requires_grad=True) for a in arrays]
    with autocast(dtype=dtypes.bfloat16):
        result = causal(*inputs)
    assert result.dtype is dtypes.bfloat16
    wanted = torch.autograd.grad(plain_attention(torch, *others, True).sum(), others)
    for found, want in zip(result.float().sum().gradient(*inputs), wanted):
        assert found.dtype is dtypes.float32
        assert np.abs(found.numpy() - want.numpy()).max() < 2e-2 * np.abs(want.numpy()).max() + 2e-2


def test_a_subclass_of_batch_norm_may_have_statistics_of_its_own() -> None:
    class Doubled(nn.BatchNorm):
        def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean, variance = super().calc_stats(x)
            return mean, variance * 4
    x = Tensor.randn(16, 3, 5, 5)
    with Tensor.train():
        plain, doubled = nn.BatchNorm(3, eps=0.0)(x), Doubled(3, eps=0.0)(x)
    np.testing.assert_allclose(doubled.numpy() * 2, plain.numpy(), rtol=1e-5, atol=1e-6)
