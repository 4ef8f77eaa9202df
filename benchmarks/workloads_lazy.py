"""Define each workload for a framework with tinygrad's interface: glassgrad and tinygrad run the same lines.

In: a framework's names (class attributes), arrays and parameters. Out: a function that does it once and returns the
computed result. What the two spell differently is in workloads_glassgrad.py and workloads_tinygrad.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.models import MODELS
from benchmarks.workloads import Workload

__all__ = ["Lazy"]


class Lazy:
    """The builders, one method per family, on the classes of one framework."""

    Tensor: Any
    Context: Any
    dtypes: Any
    nn: Any

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of tensors, to be captured and replayed."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until everything launched is done."""
        raise NotImplementedError

    def build(self, workload: Workload, data: dict[str, np.ndarray]) -> Callable[[], Any]:
        tensors = {name: self.Tensor(array).realize() for name, array in data.items()}
        return getattr(self, workload.family)(tensors, **workload.parameters)

    def to_arrays(self, result: Any) -> list[np.ndarray]:
        parts = result if isinstance(result, (tuple, list)) else [result]
        narrow = self.dtypes.bfloat16       # NumPy has no such type
        return [(part.cast(self.dtypes.float32) if part.dtype == narrow else part).numpy() for part in parts]

    def realized(self, result: Any) -> Any:
        """Compute all of a result at once."""
        if not isinstance(result, (tuple, list)):
            return result.realize()
        self.Tensor.realize(*result)
        return result

    def repeated(self, function: Callable[..., Any], *inputs: Any, jit: bool = True) -> Callable[[], Any]:
        """A function without arguments that computes `function(*inputs)` and waits for it."""
        compute = lambda *tensors: self.realized(function(*tensors))
        compute = self.jit(compute) if jit else compute

        def run() -> Any:
            result = compute(*inputs)
            self.synchronize()
            return result
        return run

    def derived(self, function: Callable[..., Any], inputs: list[Any], *others: Any) -> Callable[[], Any]:
        """The gradients, for `inputs`, of `function(*inputs, *others)`, a scalar."""
        count = len(inputs)
        return self.repeated(lambda *tensors: function(*tensors).gradient(*tensors[:count]), *inputs, *others)

    # ---- single operations

    def matmul(self, d, transpose="nn", dtype="float32", **_):
        a, b = (d[name].cast(getattr(self.dtypes, dtype)).realize() for name in "ab")
        turn = lambda t, how: t if how == "n" else t.transpose(-2, -1)
        return self.repeated(lambda a, b: turn(a, transpose[0]) @ turn(b, transpose[1]), a, b)

    def elementwise(self, d, size):
        return self.repeated(lambda x, y: ((x + y) * 2 + 1).relu(), d["x"], d["y"])

    def softmax(self, d):
        return self.repeated(lambda x: x.softmax(-1), d["x"])

    def layernorm(self, d):
        return self.repeated(lambda x: x.layernorm(), d["x"])

    def rmsnorm(self, d):
        return self.repeated(lambda x: x * ((x * x).mean(-1, keepdim=True) + 1e-6).rsqrt(), d["x"])

    def gelu(self, d, approximate):
        return self.repeated(lambda x: x.gelu(approximate), d["x"])

    def sum(self, d, axis):
        return self.repeated(lambda x: x.sum(axis), d["x"])

    def copy(self, d):
        return self.repeated(lambda x: x + 1, d["x"])

    def conv(self, d, part, stride=1, padding=0, groups=1, **_):
        convolve = lambda x, w: x.conv2d(w, groups=groups, stride=stride, padding=padding)
        x, w = d["x"], d["w"]
        if part == "forward":
            return self.repeated(convolve, x, w)
        if part == "dx":
            return self.derived(lambda x, w, g: (convolve(x, w) * g).sum(), [x], w, d["g"])
        return self.derived(lambda w, x, g: (convolve(x, w) * g).sum(), [w], x, d["g"])

    def maxpool(self, d, part):
        if part == "forward":
            return self.repeated(lambda x: x.max_pool2d((2, 2)), d["x"])
        return self.derived(lambda x, g: (x.max_pool2d((2, 2)) * g).sum(), [d["x"]], d["g"])

    def attention(self, d, part):
        inputs = [d[name] for name in "qkv"]
        if part == "forward":
            return self.repeated(lambda q, k, v: q.scaled_dot_product_attention(k, v), *inputs)
        return self.derived(lambda q, k, v, g: (q.scaled_dot_product_attention(k, v) * g).sum(), inputs, d["g"])

    def embedding(self, d, part):
        if part == "forward":
            return self.repeated(lambda table, index: table[index], d["table"], d["index"])
        return self.derived(lambda table, index, g: (table[index] * g).sum(), [d["table"]], d["index"], d["g"])

    def sort(self, d):
        return self.repeated(lambda x: x.sort(), d["x"])

    def topk(self, d):
        return self.repeated(lambda x: x.topk(100), d["x"])

    def cumsum(self, d):
        return self.repeated(lambda x: x.cumsum(0), d["x"])

    # ---- networks

    def optimizer(self, kind: str, parameters: list[Any]) -> Any:
        optim = self.nn.optim
        if kind == "adam":
            return optim.Adam(parameters, lr=0.001)
        return optim.SGD(parameters, lr=0.01, momentum=0.9 if kind == "momentum" else 0.0)

    def write(self, cache: Any, new: Any) -> Any:
        """Put the new token's keys or values into the cache's last place, and return the cache."""
        cache[:, :, -1:].assign(new).realize()
        return cache

    def step(self, d, model, optimizer, jit, **_):
        operations = Operations(self, d)
        update = self.optimizer(optimizer, trainable(d))

        def train(x, labels):
            with self.Context(TRAINING=1):
                update.zero_grad()
                loss = MODELS[model](operations, x).sparse_categorical_crossentropy(labels).backward()
                return loss.realize(*update.schedule_step(), *operations.statistics())
        return self.repeated(train, d["x"], d["labels"], jit=jit)

    def forward(self, d, model, **_):
        operations = Operations(self, d)
        return self.repeated(lambda x: MODELS[model](operations, x), d["x"])

    decode = forward

    def backward(self, d, model, **_):
        operations, parameters = Operations(self, d), trainable(d)
        return self.repeated(lambda x: MODELS[model](operations, x).square().sum().gradient(x, *parameters), d["x"])


def trainable(d: dict[str, Any]) -> list[Any]:
    return [value for name, value in d.items() if name not in ("x", "labels") and not name.startswith("running.")]


class Operations:
    """The operations of models.py on lazy tensors. Batchnorm is the framework's own layer."""

    def __init__(self, lazy: Lazy, values: dict[str, Any]):
        self.lazy, self.values = lazy, values
        self.norms: dict[str, Any] = {}
        for name in values:
            if name.startswith("running.") and name.endswith(".mean"):
                self.norms[name[8:-5]] = self.norm_layer(name[8:-5])

    def norm_layer(self, name: str) -> Any:
        layer = self.lazy.nn.BatchNorm(self.values[f"{name}.weight"].shape[0])
        for part in ("weight", "bias"):
            getattr(layer, part).assign(self.values[f"{name}.{part}"])
            # the layer's own tensor is the parameter from now on: gradients and the optimizer must see the same one
            self.values[f"{name}.{part}"] = getattr(layer, part).realize()
        return layer

    def statistics(self) -> list[Any]:
        """What a training step changes besides the parameters."""
        parts = ("running_mean", "running_var", "num_batches_tracked")
        return [getattr(layer, part) for layer in self.norms.values() for part in parts]

    def conv(self, name, x, channels, kernel, stride=1, padding=0, bias=True):
        return x.conv2d(self.values[f"{name}.weight"], self.values.get(f"{name}.bias"), stride=stride, padding=padding)

    def linear(self, name, x, features):
        return x.linear(self.values[f"{name}.weight"].transpose(0, 1), self.values[f"{name}.bias"])

    def batchnorm(self, name, x):
        return self.norms[name](x)

    def layernorm(self, name, x):
        return x.layernorm() * self.values[f"{name}.weight"] + self.values[f"{name}.bias"]

    def heads(self, x, heads):
        return (t.reshape(*t.shape[:2], heads, -1).transpose(1, 2) for t in x.chunk(3, -1))

    def attention(self, x, heads):
        q, k, v = self.heads(x, heads)
        y = q.scaled_dot_product_attention(k, v, is_causal=True)
        return y.transpose(1, 2).reshape(*x.shape[:2], -1)

    def attention_cached(self, name, x, heads):
        q, k, v = self.heads(x, heads)
        keys = self.lazy.write(self.values[f"running.{name}.keys"], k)
        values = self.lazy.write(self.values[f"running.{name}.values"], v)
        return q.scaled_dot_product_attention(keys, values).transpose(1, 2).reshape(*x.shape[:2], -1)

    def relu(self, x): return x.relu()
    def gelu(self, x): return x.gelu("tanh")
    def add(self, x, y): return x + y
    def maxpool(self, x, kernel, stride, padding=0): return x.max_pool2d((kernel, kernel), stride, 1, padding)
    def average(self, x): return x.mean((2, 3))
    def flatten(self, x): return x.flatten(1)
