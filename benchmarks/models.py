"""The networks, written once for all frameworks. In: an object with the operations (`Operations`). Out: the result.

Each framework brings its own `Operations`; `Shapes` below is one that computes nothing: it collects the shapes of
the parameters and counts the arithmetic. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

__all__ = ["MODELS", "Operations", "Shapes", "initial_values", "GPT2_WIDTH", "GPT2_HEADS"]

GPT2_WIDTH, GPT2_HEADS = 768, 12


class Operations(Protocol):
    """What a framework must know to run the networks. `name` finds the parameters of a layer."""

    def conv(self, name: str, x: Any, channels: int, kernel: int, stride: int = 1, padding: int = 0,
             bias: bool = True) -> Any: ...
    def linear(self, name: str, x: Any, features: int) -> Any: ...
    def batchnorm(self, name: str, x: Any) -> Any: ...
    def layernorm(self, name: str, x: Any) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def gelu(self, x: Any) -> Any: ...
    def add(self, x: Any, y: Any) -> Any: ...
    def maxpool(self, x: Any, kernel: int, stride: int, padding: int = 0) -> Any: ...
    def average(self, x: Any) -> Any: ...
    def flatten(self, x: Any) -> Any: ...
    def attention(self, x: Any, heads: int) -> Any: ...
    def attention_cached(self, name: str, x: Any, heads: int) -> Any: ...


# ---- the networks

def mlp(o: Operations, x: Any) -> Any:
    """784-128-10."""
    return o.linear("l2", o.relu(o.linear("l1", x, 128)), 10)


def cnn(o: Operations, x: Any) -> Any:
    """Two 5x5 and two 3x3 convolutions with batchnorm, for 28x28 digits."""
    x = o.relu(o.conv("c1", x, 32, 5))
    x = o.relu(o.conv("c2", x, 32, 5))
    x = o.maxpool(o.batchnorm("b1", x), 2, 2)
    x = o.relu(o.conv("c3", x, 64, 3))
    x = o.relu(o.conv("c4", x, 64, 3))
    x = o.maxpool(o.batchnorm("b2", x), 2, 2)
    return o.linear("l1", o.flatten(x), 10)


def _residual(o: Operations, name: str, x: Any, channels: int, stride: int) -> Any:
    y = o.relu(o.batchnorm(f"{name}.b1", o.conv(f"{name}.c1", x, channels, 3, stride, 1, bias=False)))
    y = o.batchnorm(f"{name}.b2", o.conv(f"{name}.c2", y, channels, 3, 1, 1, bias=False))
    if stride != 1:
        x = o.batchnorm(f"{name}.b3", o.conv(f"{name}.c3", x, channels, 1, stride, bias=False))
    return o.relu(o.add(y, x))


def resnet18(o: Operations, x: Any) -> Any:
    """He et al. 2015, for 224x224 pictures and 1000 classes."""
    x = o.relu(o.batchnorm("b1", o.conv("c1", x, 64, 7, 2, 3, bias=False)))
    x = o.maxpool(x, 3, 2, 1)
    for stage, channels in enumerate((64, 128, 256, 512)):
        x = _residual(o, f"s{stage}.0", x, channels, 1 if stage == 0 else 2)
        x = _residual(o, f"s{stage}.1", x, channels, 1)
    return o.linear("fc", o.average(x), 1000)


def gpt2_block(o: Operations, x: Any, name: str = "h", cached: bool = False) -> Any:
    """One block of GPT-2 small: causal attention with 12 heads, then 768-3072-768."""
    y = o.linear(f"{name}.qkv", o.layernorm(f"{name}.n1", x), 3 * GPT2_WIDTH)
    y = o.attention_cached(name, y, GPT2_HEADS) if cached else o.attention(y, GPT2_HEADS)
    x = o.add(x, o.linear(f"{name}.out", y, GPT2_WIDTH))
    y = o.gelu(o.linear(f"{name}.up", o.layernorm(f"{name}.n2", x), 4 * GPT2_WIDTH))
    return o.add(x, o.linear(f"{name}.down", y, GPT2_WIDTH))


def gpt2_decode(o: Operations, x: Any) -> Any:
    """The twelve blocks of GPT-2 small for one new token, whose keys and values join a cache."""
    for layer in range(12):
        x = gpt2_block(o, x, f"h{layer}", cached=True)
    return x


MODELS: dict[str, Callable[[Any, Any], Any]] = {f.__name__: f for f in (mlp, cnn, resnet18, gpt2_block, gpt2_decode)}


# ---- their shapes

class Shapes:
    """Runs a network on shapes alone: `parameters`, `running` (batchnorm's statistics) and `flops` of one forward.

    >>> shapes = Shapes(); mlp(shapes, (64, 784)), shapes.parameters["l1.weight"]
    ((64, 10), (128, 784))
    """

    def __init__(self) -> None:
        self.parameters: dict[str, tuple[int, ...]] = {}
        self.running: dict[str, tuple[int, ...]] = {}
        self.flops = 0

    def conv(self, name, x, channels, kernel, stride=1, padding=0, bias=True):
        batch, inside, height, width = x
        self.parameters[f"{name}.weight"] = (channels, inside, kernel, kernel)
        if bias:
            self.parameters[f"{name}.bias"] = (channels,)
        height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
        self.flops += 2 * batch * channels * height * width * inside * kernel * kernel
        return (batch, channels, height, width)

    def linear(self, name, x, features):
        self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"] = (features, x[-1]), (features,)
        self.flops += 2 * int(np.prod(x)) * features
        return (*x[:-1], features)

    def batchnorm(self, name, x):
        for part in ("weight", "bias"):
            self.parameters[f"{name}.{part}"] = (x[1],)
        for part in ("mean", "variance"):
            self.running[f"{name}.{part}"] = (x[1],)
        return x

    def layernorm(self, name, x):
        self.parameters[f"{name}.weight"] = self.parameters[f"{name}.bias"] = (x[-1],)
        return x

    def attention(self, x, heads):
        batch, time, width = x
        self.flops += 4 * batch * time * time * (width // 3)
        return (batch, time, width // 3)

    def attention_cached(self, name, x, heads):
        return (*x[:-1], x[-1] // 3)

    def relu(self, x): return x
    def gelu(self, x): return x
    def add(self, x, y): return x
    def maxpool(self, x, kernel, stride, padding=0):
        return (*x[:2], *((n + 2 * padding - kernel) // stride + 1 for n in x[2:]))
    def average(self, x): return x[:2]
    def flatten(self, x): return (x[0], int(np.prod(x[1:])))


def initial_values(model: str, shape: tuple[int, ...], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Values for all parameters and running statistics of a network that is given an input of this shape."""
    shapes = Shapes()
    MODELS[model](shapes, shape)
    values: dict[str, np.ndarray] = {}
    for name, size in shapes.parameters.items():
        noise = random.standard_normal(size, dtype=np.float32)
        if len(size) > 1:
            gain = 2.0 if len(size) == 4 else 1.0
            values[name] = noise * np.float32((gain / np.prod(size[1:])) ** 0.5)
        elif name.endswith("weight"):
            values[name] = 1 + np.float32(0.05) * noise     # the scale of a normalization
        else:
            values[name] = np.float32(0.01) * noise
    for name, size in shapes.running.items():
        values[f"running.{name}"] = np.full(size, 1.0 if name.endswith("variance") else 0.0, np.float32)
    return values
