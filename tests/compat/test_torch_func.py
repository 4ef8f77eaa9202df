"""torch.func: derivatives, their transforms, and models called with other weights, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glassgrad.torch as ours
from glassgrad import InputError

theirs = pytest.importorskip("torch")


def both(rng: np.random.Generator, program: Any) -> None:
    """Run a program with both libraries, and compare what it returns."""
    x, w = rng.standard_normal((5, 3)).astype(np.float32), rng.standard_normal((3, 2)).astype(np.float32)
    found, expected = (program(lib, lib.tensor(x), lib.tensor(w)) for lib in (ours, theirs))
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert one.shape == tuple(other.shape)
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", [
    lambda lib, f, x, w: [lib.func.jacrev(f)(x[0], w), lib.func.jacfwd(f, 1)(x[0], w)],
    lambda lib, f, x, w: lib.func.jacrev(f, (0, 1))(x[0], w),
    lambda lib, f, x, w: [lib.func.hessian(lambda x: (f(x, w) ** 2).sum())(x[0])],
    lambda lib, f, x, w: [lib.func.vmap(lib.func.hessian(lambda x: (f(x, w) ** 2).sum()))(x)],
    lambda lib, f, x, w: [lib.func.vmap(lib.func.jacrev(lambda x: f(x, w)))(x)],
    lambda lib, f, x, w: [lib.func.grad(lambda x: (lib.func.jacrev(f)(x, w) ** 2).sum())(x[0])],
    lambda lib, f, x, w: [lib.func.vjp(f, x, w)[0], *lib.func.vjp(f, x, w)[1](lib.ones(5, 2))]])
def test_derivatives(rng: np.random.Generator, program: Any) -> None:
    """`torch.func.hessian`, `jacrev`, `jacfwd` and `vjp` had no counterpart."""
    both(rng, lambda lib, x, w: program(lib, lambda x, w: lib.tanh(x @ w), x, w))


def test_a_model_with_other_weights(rng: np.random.Generator) -> None:
    """One step of learning to learn: a gradient through a step of gradient descent."""
    def program(lib: Any, x: Any, w: Any) -> list[Any]:
        net = lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.Tanh(), lib.nn.Linear(4, 1))
        with lib.no_grad():
            for p in net.parameters():
                p.copy_(lib.cos(lib.arange(float(p.numel()))).reshape(p.shape))
        start = dict(net.named_parameters())

        def loss(weights: Any) -> Any:
            return (lib.func.functional_call(net, weights, (x,)) ** 2).mean()
        first = lib.autograd.grad(loss(start), list(start.values()), create_graph=True)
        second = loss({name: p - 0.1 * g for (name, p), g in zip(start.items(), first)})
        assert all(p is q for p, q in zip(net.parameters(), start.values()))
        return [second, *lib.autograd.grad(second, list(start.values()))]
    both(rng, program)


def test_weights_of_several_names_and_mistakes() -> None:
    def net(lib: Any) -> Any:
        model = lib.nn.Sequential(lib.nn.Linear(2, 2, bias=False), lib.nn.Linear(2, 2, bias=False))
        model[1].weight = model[0].weight
        return model
    for lib in (ours, theirs):
        model = net(lib)
        assert lib.func.functional_call(model, ({"0.weight": 2 * lib.eye(2)}, {}), lib.ones(1, 2)).tolist() == [[4, 4]]
        assert model[0].weight is model[1].weight and model[0].weight.tolist() != [[2, 0], [0, 2]]
    model = net(ours)
    weight = model[0].weight
    with pytest.raises(InputError, match="the model has no tensors of these names\n  given:    2.weight\n"):
        ours.func.functional_call(model, {"2.weight": ours.eye(2)}, ours.ones(1, 2))
    with pytest.raises(Exception, match="cannot take this input"):
        ours.func.functional_call(model, {"0.weight": ours.eye(2)}, ours.ones(1, 5))
    assert model[0].weight is model[1].weight is weight
