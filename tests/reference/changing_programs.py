"""Programs whose sizes change, and how often they are compiled. In: nothing. Out: `PROGRAMS`, `compiled_by`.

For tests/engine/test_changing_sizes.py and test_sizes_compiled.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glassgrad import GlobalCounters, Tensor, nn
from glassgrad.engine import realize as engine
from glassgrad.engine.changing_sizes.general_graph import GeneralGraph

RANDOM = np.random.default_rng(5)
WEIGHT = RANDOM.standard_normal((8, 12)).astype(np.float32)
IMAGE = RANDOM.standard_normal((3, 2, 3, 3)).astype(np.float32)
LENGTHS = (3, 4, 6, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 131)

Program = tuple[Callable[[Tensor], Tensor], Callable[[int], tuple[int, ...]]]


def attention(x: Tensor) -> Tensor:
    places = Tensor.arange(x.shape[1])
    scores = (places.reshape(1, -1) <= places.reshape(-1, 1)).where(x @ x.transpose(1, 2) / 8 ** 0.5, -float("inf"))
    return scores.softmax(-1) @ x


QUERIES, KEYS = (RANDOM.standard_normal((2, n, 8)).astype(np.float32) for n in (40, 130))


def heads(x: Tensor) -> Tensor:
    batch, length, width = x.shape
    q, k, v = (part.reshape(batch, length, 2, width // 6).permute(0, 2, 1, 3) for part in x.chunk(3, dim=-1))
    mixed = q.scaled_dot_product_attention(k, v, is_causal=True)
    return mixed.permute(0, 2, 1, 3).reshape(batch, length, width // 3)


def among(keys: Tensor) -> Tensor:
    return Tensor(QUERIES).scaled_dot_product_attention(keys, keys)


PROGRAMS: dict[str, Program] = {
    "elementwise": (lambda x: (x * 2 + 1).relu(), lambda n: (n, 6)),
    "elementwise along rows": (lambda x: (x * 2 + 1).relu(), lambda n: (6, n)),
    "product": (lambda x: (x @ Tensor(WEIGHT)).relu(), lambda n: (n, 8)),
    "product of a batch": (lambda x: x @ Tensor(WEIGHT), lambda n: (3, n, 8)),
    "sum that ends at the size": (lambda x: Tensor(WEIGHT).T[:, :1].expand(12, x.shape[0]) @ x, lambda n: (n, 6)),
    "square": (lambda x: x @ x, lambda n: (n, n)),
    "attention with a mask": (attention, lambda n: (2, n, 8)),
    "attention of heads": (heads, lambda n: (1, n, 48)),
    "keys that change": (among, lambda n: (2, n, 8)),
    "queries that change": (lambda x: x.scaled_dot_product_attention(Tensor(KEYS), Tensor(KEYS)), lambda n: (2, n, 8)),
    "a batch of attention": (lambda x: x.scaled_dot_product_attention(x, x), lambda n: (n, 34, 8)),
    "softmax": (lambda x: x.softmax(-1), lambda n: (5, n)),
    "means of images": (lambda x: x.adaptive_avg_pool2d(1) * 2, lambda n: (2, 3, n, 7)),
    "largest of images": (lambda x: x.adaptive_max_pool2d(1) * 2, lambda n: (2, 3, n, 7)),
    "where the largest is": (lambda x: x.adaptive_max_pool1d(1, True)[1], lambda n: (3, n)),
    "gradient of the largest": (lambda x: _gradient_of_largest(x), lambda n: (2, 3, n, 7)),
    "mean": (lambda x: x.mean(0), lambda n: (n, 6)),
    "std": (lambda x: x.std(1), lambda n: (4, n)),
    "masked mean": (lambda x: ((x > 0) * x).sum(1) / (x > 0).sum(1).maximum(1), lambda n: (4, n)),
    "layer norm": (lambda x: x.layernorm(), lambda n: (n, 8)),
    "cat": (lambda x: x.cat(x[:, :1] * 2, dim=1), lambda n: (3, n)),
    "last row": (lambda x: x[-1] * 2, lambda n: (n, 3)),
    "running sum": (lambda x: x.cumsum(1), lambda n: (3, n)),
    "argmax": (lambda x: x.argmax(1), lambda n: (3, n)),
    "lower triangle": (lambda x: x.tril(), lambda n: (n, n)),
    "one axis of all": (lambda x: x.permute(1, 0).reshape(-1) * 2, lambda n: (n, 3)),
    "all axes of n by n": (lambda x: x.reshape(-1) * 2, lambda n: (n, n)),
    "transposed": (lambda x: x.T.contiguous() + 1, lambda n: (n, 24)),
    "transposed rows of a batch": (lambda x: x.transpose(1, 2).contiguous(), lambda n: (3, 20, n)),
    "flip and pad": (lambda x: x.flip(1).pad(((0, 0), (2, 1))), lambda n: (4, n)),
    "convolution": (lambda x: x.conv2d(Tensor(IMAGE), padding=1), lambda n: (1, 2, n, 8)),
    "convolution of squares": (lambda x: x.conv2d(Tensor(IMAGE), padding=1), lambda n: (1, 2, n, n)),
    "gradient": (lambda x: _gradient(x), lambda n: (n, 8)),
    "gradient of a weight": (lambda x: x[:, :24].T @ x[:, 24:], lambda n: (n, 64)),
    "LSTM": (lambda x: _recurrent(nn.LSTM, x), lambda n: (n, 2, 8)),
    "RNN in both directions": (lambda x: _recurrent(nn.RNN, x, bidirectional=True), lambda n: (n, 2, 8)),
    "a batch of sequences": (lambda x: _gradients_of(nn.LSTM, x), lambda n: (4, n, 8)),
    "gradients of an LSTM": (lambda x: _gradients_of(nn.LSTM, x), lambda n: (n, 2, 8)),
    "gradients of a GRU in two layers": (lambda x: _gradients_of(nn.GRU, x, num_layers=2), lambda n: (n, 2, 8)),
}


def _layer(kind: Any, x: Tensor, **options: Any) -> tuple[Any, list[Tensor]]:
    layer = kind(8, 12, **options)
    parameters = nn.state.get_state_dict(layer)
    for number, (name, value) in enumerate(parameters.items()):
        numbers = np.random.default_rng(number).uniform(-0.3, 0.3, value.shape).astype(np.float32)
        setattr(layer, name, Tensor(numbers, device=x.device).realize())
    return layer, [getattr(layer, name) for name in parameters]


def _recurrent(kind: Any, x: Tensor, **options: Any) -> Tensor:
    layer, _ = _layer(kind, x, **options)
    return layer(x)[0]


def _gradients_of(kind: Any, x: Tensor, **options: Any) -> Tensor:
    layer, parameters = _layer(kind, x, **options)
    layer(x)[0].square().sum().backward()
    return Tensor.cat(*[p.grad.flatten() for p in parameters])


def _gradient(x: Tensor) -> Tensor:
    x = x.detach()
    x.requires_grad = True
    (x @ Tensor(WEIGHT)).tanh().sum().backward()
    assert x.grad is not None
    return x.grad


def _gradient_of_largest(x: Tensor) -> Tensor:
    x = x.detach()
    x.requires_grad = True
    (x.adaptive_max_pool2d(1) * 2).sum().backward()
    assert x.grad is not None
    return x.grad


def data(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def general_graphs() -> list[GeneralGraph]:
    return [general for found in engine._known.size_families._general.values() for general in found]


def compiled_by(work: Callable[[], Any]) -> tuple[int, Any]:
    before = GlobalCounters.schedules
    result = work()
    return GlobalCounters.schedules - before, result


ATTENTION = ("attention with a mask", "attention of heads", "keys that change", "queries that change",
             "a batch of attention")
