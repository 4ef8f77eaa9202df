"""Define each workload in JAX, jitted. In: arrays, parameters. Out: a function that does it once and returns the
result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.models import MODELS
from benchmarks.workloads import Workload

VERSION = jax.__version__
BUILDERS: dict[str, Callable[..., Callable[[], Any]]] = {}


def family(builder: Callable[..., Callable[[], Any]]) -> Callable[..., Callable[[], Any]]:
    BUILDERS[builder.__name__] = builder
    return builder


def build(workload: Workload, data: dict[str, np.ndarray]) -> Callable[[], Any]:
    arrays = {name: jnp.asarray(array) for name, array in data.items()}
    return BUILDERS[workload.family](arrays, **workload.parameters)


def to_arrays(result: Any) -> list[np.ndarray]:
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(part.astype(jnp.float32) if part.dtype == jnp.bfloat16 else part) for part in parts]


def jitted(function: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*inputs))


# ---- single operations

@family
def matmul(d, transpose="nn", dtype="float32", **_):
    def multiply(a, b):
        return (a if transpose[0] == "n" else a.mT) @ (b if transpose[1] == "n" else b.mT)
    return jitted(multiply, d["a"].astype(dtype), d["b"].astype(dtype))


@family
def elementwise(d, size):
    return jitted(lambda x, y: jax.nn.relu((x + y) * 2 + 1), d["x"], d["y"])


@family
def softmax(d):
    return jitted(jax.nn.softmax, d["x"])


@family
def layernorm(d):
    def normalize(x):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return jitted(normalize, d["x"])


@family
def rmsnorm(d):
    return jitted(lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6), d["x"])


@family
def gelu(d, approximate):
    return jitted(lambda x: jax.nn.gelu(x, approximate=approximate == "tanh"), d["x"])


@family
def sum(d, axis):
    return jitted(lambda x: x.sum(axis), d["x"])


def convolve(x, w, stride=1, padding=0, groups=1):
    return lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2, feature_group_count=groups,
                                    dimension_numbers=("NCHW", "OIHW", "NCHW"))


@family
def conv(d, part, stride=1, padding=0, groups=1, **_):
    apply = lambda x, w: convolve(x, w, stride, padding, groups)
    x, w, g = d["x"], d["w"], d.get("g")
    if part == "forward":
        return jitted(apply, x, w)
    if part == "dx":        # jit drops the forward, whose result is not needed
        return jitted(lambda x, w, g: jax.vjp(lambda x: apply(x, w), x)[1](g)[0], x, w, g)
    return jitted(lambda x, w, g: jax.vjp(lambda w: apply(x, w), w)[1](g)[0], x, w, g)


def pool(x, kernel, stride, padding=0):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, kernel, kernel), (1, 1, stride, stride),
                             [(0, 0), (0, 0), (padding, padding), (padding, padding)])


@family
def maxpool(d, part):
    if part == "forward":
        return jitted(lambda x: pool(x, 2, 2), d["x"])
    return jitted(lambda x, g: jax.vjp(lambda x: pool(x, 2, 2), x)[1](g)[0], d["x"], d["g"])


def attend(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -jnp.inf)) @ v


@family
def attention(d, part):
    inputs = [d[name] for name in "qkv"]
    if part == "forward":
        return jitted(attend, *inputs)
    return jitted(lambda q, k, v, g: jax.vjp(attend, q, k, v)[1](g), *inputs, d["g"])


@family
def embedding(d, part):
    table, index = d["table"], d["index"]
    if part == "forward":
        return jitted(lambda table, index: table[index], table, index)
    return jitted(lambda table, index, g: jax.vjp(lambda table: table[index], table)[1](g)[0], table, index, d["g"])


@family
def sort(d):
    return jitted(lambda x: lax.sort((x, lax.iota(jnp.int32, x.size)), num_keys=1), d["x"])


@family
def topk(d):
    return jitted(lambda x: tuple(lax.top_k(x, 100)), d["x"])


@family
def cumsum(d):
    return jitted(jnp.cumsum, d["x"])


# ---- networks

class Operations:
    """The operations of models.py on arrays; what changes is put back into `values`, for the caller to return."""

    def __init__(self, values: dict[str, Any], training: bool = False):
        self.values, self.training = dict(values), training

    def conv(self, name, x, channels, kernel, stride=1, padding=0, bias=True):
        y = convolve(x, self.values[f"{name}.weight"], stride, padding)
        return y + self.values[f"{name}.bias"][:, None, None] if bias else y

    def linear(self, name, x, features):
        return x @ self.values[f"{name}.weight"].T + self.values[f"{name}.bias"]

    def batchnorm(self, name, x):
        v = self.values
        mean, variance = v[f"running.{name}.mean"], v[f"running.{name}.variance"]
        if self.training:
            batch_mean, batch_variance, count = x.mean((0, 2, 3)), x.var((0, 2, 3)), x.size // x.shape[1]
            v[f"running.{name}.mean"] = 0.9 * mean + 0.1 * batch_mean
            v[f"running.{name}.variance"] = 0.9 * variance + 0.1 * batch_variance * count / (count - 1)
            mean, variance = batch_mean, batch_variance
        scale = v[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
        return (x - mean[:, None, None]) * scale[:, None, None] + v[f"{name}.bias"][:, None, None]

    def layernorm(self, name, x):
        y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return y * self.values[f"{name}.weight"] + self.values[f"{name}.bias"]

    def heads(self, x, heads):
        return (t.reshape(*t.shape[:2], heads, -1).swapaxes(1, 2) for t in jnp.split(x, 3, -1))

    def attention(self, x, heads):
        y = attend(*self.heads(x, heads), mask=jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)))
        return y.swapaxes(1, 2).reshape(*x.shape[:2], -1)

    def attention_cached(self, name, x, heads):
        q, k, v = self.heads(x, heads)
        for part, new in (("keys", k), ("values", v)):
            cache = self.values[f"running.{name}.{part}"]
            self.values[f"running.{name}.{part}"] = cache.at[:, :, -1:].set(new)
        y = attend(q, self.values[f"running.{name}.keys"], self.values[f"running.{name}.values"])
        return y.swapaxes(1, 2).reshape(*x.shape[:2], -1)

    def relu(self, x): return jax.nn.relu(x)
    def gelu(self, x): return jax.nn.gelu(x, approximate=True)
    def add(self, x, y): return x + y
    def maxpool(self, x, kernel, stride, padding=0): return pool(x, kernel, stride, padding)
    def average(self, x): return x.mean((2, 3))
    def flatten(self, x): return x.reshape(x.shape[0], -1)


Values = dict[str, Any]


def parted(d: Values) -> tuple[Values, Values]:
    """Parameters, and what else changes (running statistics, caches)."""
    changing = {name: value for name, value in d.items() if name.startswith("running.")}
    return {name: value for name, value in d.items() if name not in {"x", "labels", *changing}}, changing


def updated(kind: str, parameters: Values, gradients: Values, memory: dict[str, Any]) -> tuple[Values, dict[str, Any]]:
    """One step of an optimizer: the new parameters, and its memory."""
    each = lambda function, *trees: jax.tree.map(function, *trees)
    if kind == "sgd":
        return each(lambda p, g: p - 0.01 * g, parameters, gradients), memory
    if kind == "momentum":
        speed = each(lambda b, g: 0.9 * b + g, memory["speed"], gradients)
        return each(lambda p, b: p - 0.01 * b, parameters, speed), {**memory, "speed": speed}
    time = memory["time"] + 1
    first = each(lambda m, g: 0.9 * m + 0.1 * g, memory["first"], gradients)
    second = each(lambda v, g: 0.999 * v + 0.001 * g * g, memory["second"], gradients)
    move = lambda p, m, v: p - 0.001 * (m / (1 - 0.9 ** time)) / (jnp.sqrt(v / (1 - 0.999 ** time)) + 1e-8)
    return each(move, parameters, first, second), {"time": time, "first": first, "second": second}


def fresh_memory(kind: str, parameters: Values) -> dict[str, Any]:
    zeros = lambda: jax.tree.map(jnp.zeros_like, parameters)
    if kind == "adam":
        return {"time": jnp.zeros(()), "first": zeros(), "second": zeros()}
    return {"speed": zeros()} if kind == "momentum" else {}


@family
def step(d, model, optimizer, **_):
    def loss_of(parameters, running, x, labels):
        operations = Operations({**parameters, **running}, training=True)
        chances = jax.nn.log_softmax(MODELS[model](operations, x))
        loss = -jnp.take_along_axis(chances, labels[:, None], 1).mean()
        return loss, {name: operations.values[name] for name in running}

    def train(parameters, running, memory, x, labels):
        (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, running, x, labels)
        parameters, memory = updated(optimizer, parameters, gradients, memory)
        return parameters, running, memory, loss

    compiled = jax.jit(train, donate_argnums=(0, 1, 2))
    state = [*parted(d), fresh_memory(optimizer, parted(d)[0])]

    def run():
        *state[:], loss = jax.block_until_ready(compiled(*state, d["x"], d["labels"]))
        return loss
    return run


@family
def forward(d, model, **_):
    return jitted(lambda values, x: MODELS[model](Operations(values), x), {**parted(d)[0], **parted(d)[1]}, d["x"])


@family
def decode(d, model, **_):
    def token(parameters, running, x):
        operations = Operations({**parameters, **running})
        y = MODELS[model](operations, x)
        return y, {name: operations.values[name] for name in running}

    compiled = jax.jit(token, donate_argnums=1)
    parameters, state = parted(d)[0], [parted(d)[1]]

    def run():
        y, state[0] = jax.block_until_ready(compiled(parameters, state[0], d["x"]))
        return y
    return run


@family
def backward(d, model, **_):
    def loss_of(x, parameters):
        y = MODELS[model](Operations(parameters), x)
        return (y * y).sum()

    names = list(parted(d)[0])

    def derive(x, parameters):
        of_x, of_parameters = jax.grad(loss_of, argnums=(0, 1))(x, parameters)
        return [of_x, *(of_parameters[name] for name in names)]
    return jitted(derive, d["x"], parted(d)[0])
