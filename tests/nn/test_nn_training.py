"""Layers drawn at random, with odd settings, trained side by side with PyTorch's: outputs, gradients and every number
of the state after each step, in training and in testing; then the state goes back into PyTorch's layer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of layers, is not installed")

from nn_reference import close, flat, to_torch  # noqa: E402

from glassgrad import Tensor, nn  # noqa: E402
from glassgrad.nn.state import get_state_dict, load_state_dict  # noqa: E402

STEPS = 4


class Drawn(NamedTuple):
    """A layer by name, what it is made with, and the shapes of its inputs."""
    name: str
    sizes: tuple[Any, ...]
    options: dict[str, Any]
    shapes: list[tuple[int, ...]]


def several(r: random.Random, count: int, *choices: Any) -> tuple[Any, ...]:
    return tuple(r.choice(choices) for _ in range(count))


def convolution(r: random.Random) -> Drawn:
    rank, groups = r.choice([1, 2, 2, 3]), r.choice([1, 1, 2, 3])
    inputs = groups * r.choice([1, 2])
    padding = r.choice([0, 1, several(r, rank, 0, 1, 2), "same", "valid"])
    options = dict(stride=1 if padding == "same" else several(r, rank, 1, 2, 3), padding=padding, groups=groups,
                   dilation=several(r, rank, 1, 1, 2), bias=r.random() < 0.5,
                   padding_mode=r.choice(["zeros", "zeros", "reflect", "replicate", "circular"]))
    return Drawn(f"Conv{rank}d", (inputs, groups * r.choice([1, 2, 3]), several(r, rank, 1, 2, 3)), options,
                 [(*r.choice([(2,), ()]), inputs, *several(r, rank, 5, 6, 7))])


def transposed(r: random.Random) -> Drawn:
    rank, groups = r.choice([1, 2, 2, 3]), r.choice([1, 2])
    inputs, stride, dilation = groups * r.choice([1, 2]), several(r, rank, 1, 2, 3), several(r, rank, 1, 1, 2)
    options = dict(stride=stride, dilation=dilation, groups=groups, padding=r.choice([0, 1]), bias=r.random() < 0.5,
                   output_padding=tuple(r.randrange(max(s, d)) for s, d in zip(stride, dilation)))
    return Drawn(f"ConvTranspose{rank}d", (inputs, groups * r.choice([1, 2]), several(r, rank, 1, 2, 3)), options,
                 [(*r.choice([(2,), ()]), inputs, *several(r, rank, 3, 4))])


def batch_norm(r: random.Random) -> Drawn:
    rank, size = r.choice([1, 2, 3]), r.choice([1, 3])
    space = () if rank == 1 and r.random() < 0.5 else several(r, rank, 2, 3)
    options = dict(eps=r.choice([1e-5, 1e-2]), momentum=r.choice([0.1, None, 1.0, 0.0]), affine=r.random() < 0.7,
                   track_running_stats=r.random() < 0.7)
    return Drawn(f"BatchNorm{rank}d", (size,), options, [(4, size, *space)])


def instance_norm(r: random.Random) -> Drawn:
    rank, size = r.choice([1, 2, 3]), r.choice([1, 3])
    options = dict(momentum=r.choice([0.1, 0.3]), affine=r.random() < 0.5, track_running_stats=r.random() < 0.5)
    return Drawn(f"InstanceNorm{rank}d", (size,), options, [(*r.choice([(2,), ()]), size, *several(r, rank, 3, 4))])


def other_norm(r: random.Random) -> Drawn:
    name = r.choice(["LayerNorm", "RMSNorm", "GroupNorm"])
    if name == "GroupNorm":
        groups = r.choice([1, 2, 3])
        return Drawn(name, (groups, groups * 2), dict(affine=r.random() < 0.5), [(2, groups * 2, 3, 2)])
    shape = r.choice([(4,), (4, 3)])
    options = dict(eps=r.choice([1e-5, 1e-2]), elementwise_affine=r.random() < 0.7)
    options |= dict(bias=r.random() < 0.5) if name == "LayerNorm" else dict(eps=None) if r.random() < 0.5 else {}
    return Drawn(name, (shape,), options, [(*r.choice([(2,), (), (2, 3)]), *shape)])


def recurrent(r: random.Random) -> Drawn:
    name, inputs = r.choice(["RNN", "GRU", "LSTM"]), r.choice([1, 3])
    options: dict[str, Any] = dict(num_layers=r.choice([1, 2]), bias=r.random() < 0.7, batch_first=r.random() < 0.5,
                                   bidirectional=r.random() < 0.5)
    options |= dict(nonlinearity=r.choice(["relu", "tanh"])) if name == "RNN" else {}
    options |= dict(proj_size=2) if name == "LSTM" and r.random() < 0.5 else {}
    return Drawn(name, (inputs, 4), options, [r.choice([(3, 2, inputs), (1, 1, inputs), (3, inputs)])])


def cell(r: random.Random) -> Drawn:
    return Drawn(r.choice(["RNNCell", "GRUCell", "LSTMCell"]), (3, 2), dict(bias=r.random() < 0.5),
                 [r.choice([(2, 3), (3,)])])


def attention(r: random.Random) -> Drawn:
    keys, values = r.choice([(None, None), (3, 5)])
    first, lone = r.random() < 0.5, r.random() < 0.3
    options = dict(bias=r.random() < 0.5, add_bias_kv=r.random() < 0.5, add_zero_attn=r.random() < 0.5,
                   batch_first=first, kdim=keys, vdim=values)
    rows = [(3, 4), (5, keys or 4), (5, values or 4)]
    return Drawn("MultiheadAttention", (4, 2), options,
                 [(t, n) if lone else (2, t, n) if first else (t, 2, n) for t, n in rows])


def linear(r: random.Random) -> Drawn:
    if r.random() < 0.5:
        return Drawn("Bilinear", (2, 3, 4), dict(bias=r.random() < 0.5), [(5, 2), (5, 3)])
    return Drawn("Linear", (3, 4), dict(bias=r.random() < 0.5), [(*r.choice([(2,), (), (2, 2)]), 3)])


KINDS: list[Callable[[random.Random], Drawn]] = [convolution, transposed, batch_norm, instance_norm, other_norm,
                                                 recurrent, cell, attention, linear]


def ours_with(module: Any, drawn: Drawn) -> Any:
    """Our layer, with the state of PyTorch's: the same names in the same order."""
    layer = getattr(nn, drawn.name)(*drawn.sizes, **drawn.options)
    assert list(get_state_dict(layer)) == list(module.state_dict())
    load_state_dict(layer, module.state_dict())
    return layer


def loss_of(outputs: list[Any]) -> Any:
    return sum((y * y).sum() * (i + 1) + y.sum() for i, y in enumerate(outputs))


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_trained_side_by_side(kind, number):
    r = random.Random(f"{kind.__name__} {number}")
    rng, drawn = np.random.default_rng(number), kind(r)
    torch.manual_seed(number)
    module = getattr(torch.nn, drawn.name)(*drawn.sizes, **drawn.options)
    layer = ours_with(module, drawn)
    parameters = dict(module.named_parameters())
    if parameters:
        state = get_state_dict(layer)
        ours = nn.optim.SGD([state[name] for name in parameters], lr=0.05, momentum=0.9)
        theirs = torch.optim.SGD(parameters.values(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        what = f"{drawn}, step {step}: "
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in drawn.shapes]
        mine, other = [Tensor(a) for a in arrays], [to_torch(a, requires_grad=True) for a in arrays]
        module.train()
        with Tensor.train():
            outputs, expected = flat(layer(*mine)), flat(module(*other))
            assert len(outputs) == len(expected)
            for a, b in zip(outputs, expected):
                close(a, b, what + "output", 1e-3, 3e-5)
            if parameters:
                ours.zero_grad()
                theirs.zero_grad()
            loss_of(outputs).backward()
            loss_of(expected).backward()
            for a, b in zip(mine, other):
                close(a.grad, b.grad, what + "gradient of an input", 2e-3, 3e-4)
            if parameters:
                nn.optim.clip_grad_norm_(ours.params, 1.0)
                torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
                ours.step()
                theirs.step()
        state = get_state_dict(layer)
        for name, tensor in module.state_dict().items():
            close(state[name], tensor, what + name, 1e-3, 3e-5)
        module.eval()
        with torch.no_grad():
            for a, b in zip(flat(layer(*mine)), flat(module(*other))):
                close(a, b, what + "output in testing", 1e-3, 3e-5)
    again = getattr(torch.nn, drawn.name)(*drawn.sizes, **drawn.options)
    again.load_state_dict({name: tensor.torch() for name, tensor in get_state_dict(layer).items()})
    for name, tensor in again.state_dict().items():
        close(state[name], tensor, name, 0, 0)
