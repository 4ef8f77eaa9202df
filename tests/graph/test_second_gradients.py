"""The gradient of a gradient, for every smooth kind of method, checked against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch_reference import seeded, torch

from glassgrad import Tensor, dtypes

F = torch.nn.functional
CALLS: dict[str, Any] = {
    name: (lambda x, name=name: getattr(x, name)()) for name in (
        "exp", "log", "sin", "cos", "tan", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "square", "atan", "asinh",
        "expm1", "log1p", "erf", "sinh", "cosh", "exp2", "log2", "lgamma", "logit", "softmax", "log_softmax",
        "logsumexp", "std", "var", "prod", "cumsum", "cumprod", "norm", "mean", "relu", "abs")}
CALLS |= {
    "pow": lambda x: x ** 2.5, "div": lambda x: 1 / (x * x + 1), "matmul": lambda x: x @ x.T @ x,
    "max": lambda x: x.amax(1), "gather": lambda x: x[[1, 0, 1]] ** 3, "flip": lambda x: (x.flip(0) * x) ** 2,
    "hypot": lambda x: x.hypot(x * x),
    "cross": lambda x: (x.unsqueeze(0) - x.unsqueeze(1)) ** 3, "atan2": lambda x: x.atan2(x * x + 1),
    "cummax": lambda x: x.cummax(1)[0] ** 3, "sort": lambda x: x.sort(1)[0] ** 3,
    "logaddexp": lambda x: x.logaddexp(x * x),
}
NO_AXIS = {"softmax", "log_softmax", "logsumexp", "cumsum", "cumprod"}
THEIRS = {name: (lambda x, name=name: getattr(x, name)(-1 if "soft" in name else 0)) for name in NO_AXIS}
THEIRS["logsumexp"] = lambda x: x.logsumexp((0, 1))


@pytest.mark.parametrize("name", CALLS)
def test_second_gradients(name: str) -> None:
    array = seeded("second", name).uniform(0.2, 0.8, (3, 4))
    x, y = Tensor(array, dtype=dtypes.float64), torch.tensor(array, requires_grad=True)
    theirs = THEIRS.get(name, CALLS[name])(y)
    [first] = torch.autograd.grad((theirs * theirs).sum(), y, create_graph=True)
    ours = CALLS[name](x)
    [mine] = (ours * ours).sum().gradient(x)
    np.testing.assert_allclose(mine.numpy(), first.detach().numpy(), rtol=1e-6, atol=1e-8)
    [second] = torch.autograd.grad((first ** 2).sum(), y)
    [again] = (mine * mine).sum().gradient(x)
    np.testing.assert_allclose(again.numpy(), second.numpy(), rtol=1e-5, atol=1e-7)


def test_a_convolution_and_a_loss() -> None:
    rng = seeded("second", "conv")
    array, kernel = rng.normal(size=(2, 2, 5, 5)), rng.normal(size=(3, 2, 3, 3))
    x, w = Tensor(array, dtype=dtypes.float64), Tensor(kernel, dtype=dtypes.float64)
    a, b = torch.tensor(array, requires_grad=True), torch.tensor(kernel, requires_grad=True)
    [first] = torch.autograd.grad((F.conv2d(a, b, padding=1).tanh() ** 2).sum(), b, create_graph=True)
    [second] = torch.autograd.grad((first ** 2).sum(), a)
    [mine] = (x.conv2d(w, padding=1).tanh() ** 2).sum().gradient(w)
    [again] = (mine * mine).sum().gradient(x)
    np.testing.assert_allclose(mine.numpy(), first.detach().numpy(), rtol=1e-8)
    np.testing.assert_allclose(again.numpy(), second.numpy(), rtol=1e-8, atol=1e-9)
