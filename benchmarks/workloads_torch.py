"""Define each workload in PyTorch, eager. In: arrays, parameters. Out: a function that does it once and returns the
result.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.models import MODELS
from benchmarks.workloads import Workload

VERSION = torch.__version__
torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

BUILDERS: dict[str, Callable[..., Callable[[], Any]]] = {}


def family(builder: Callable[..., Callable[[], Any]]) -> Callable[..., Callable[[], Any]]:
    BUILDERS[builder.__name__] = builder
    return builder


def build(workload: Workload, data: dict[str, np.ndarray]) -> Callable[[], Any]:
    tensors = {name: torch.from_numpy(array) for name, array in data.items()}
    step = BUILDERS[workload.family](tensors, **workload.parameters)
    return step if workload.family in ("step", "backward") else torch.inference_mode()(step)


def to_arrays(result: Any) -> list[np.ndarray]:
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [part.detach().float().numpy() if part.is_floating_point() else part.numpy() for part in parts]


# ---- single operations

@family
def matmul(d, transpose="nn", dtype="float32", **_):
    a, b = (d[name].to(getattr(torch, dtype)) for name in "ab")
    a, b = a if transpose[0] == "n" else a.mT, b if transpose[1] == "n" else b.mT
    return lambda: a @ b


@family
def elementwise(d, size):
    x, y = d["x"], d["y"]
    return lambda: ((x + y) * 2 + 1).relu()


@family
def softmax(d):
    return lambda: d["x"].softmax(-1)


@family
def layernorm(d):
    return lambda: F.layer_norm(d["x"], d["x"].shape[-1:])


@family
def rmsnorm(d):
    return lambda: F.rms_norm(d["x"], d["x"].shape[-1:], eps=1e-6)


@family
def gelu(d, approximate):
    return lambda: F.gelu(d["x"], approximate=approximate)


@family
def sum(d, axis):
    return lambda: d["x"].sum() if axis is None else d["x"].sum(axis)


@family
def copy(d):
    target = torch.empty_like(d["x"])
    return lambda: target.copy_(d["x"])


@family
def conv(d, part, stride=1, padding=0, groups=1, **_):
    x, w, g = d["x"], d["w"], d.get("g")
    if part == "forward":
        return lambda: F.conv2d(x, w, None, stride, padding, 1, groups)
    if part == "dx":
        return lambda: torch.nn.grad.conv2d_input(x.shape, w, g, stride, padding, 1, groups)
    return lambda: torch.nn.grad.conv2d_weight(x, w.shape, g, stride, padding, 1, groups)


def gradients(function: Callable[..., Any], inputs: list[torch.Tensor], g: torch.Tensor) -> Callable[[], Any]:
    """Forward and backward: the gradients of `function(*inputs)` against g."""
    for tensor in inputs:
        tensor.requires_grad_()

    def step():
        with torch.inference_mode(False), torch.enable_grad():
            return torch.autograd.grad(function(*inputs), inputs, g)
    return step


@family
def maxpool(d, part):
    if part == "forward":
        return lambda: F.max_pool2d(d["x"], 2)
    return gradients(lambda x: F.max_pool2d(x, 2), [d["x"]], d["g"])


@family
def attention(d, part):
    inputs = [d[name] for name in "qkv"]
    if part == "forward":
        return lambda: F.scaled_dot_product_attention(*inputs)
    return gradients(F.scaled_dot_product_attention, inputs, d["g"])


@family
def embedding(d, part):
    index = d["index"].long()
    if part == "forward":
        return lambda: F.embedding(index, d["table"])
    return gradients(lambda table: F.embedding(index, table), [d["table"]], d["g"])


@family
def sort(d):
    return lambda: tuple(d["x"].sort())


@family
def topk(d):
    return lambda: tuple(d["x"].topk(100))


@family
def cumsum(d):
    return lambda: d["x"].cumsum(0)


# ---- networks

class Operations:
    """The operations of models.py on tensors; batchnorm's statistics and key-value caches change in place."""

    def __init__(self, values: dict[str, torch.Tensor], training: bool = False):
        self.values, self.training = values, training

    def conv(self, name, x, channels, kernel, stride=1, padding=0, bias=True):
        return F.conv2d(x, self.values[f"{name}.weight"], self.values.get(f"{name}.bias"), stride, padding)

    def linear(self, name, x, features):
        return F.linear(x, self.values[f"{name}.weight"], self.values[f"{name}.bias"])

    def batchnorm(self, name, x):
        v = self.values
        return F.batch_norm(x, v[f"running.{name}.mean"], v[f"running.{name}.variance"], v[f"{name}.weight"],
                            v[f"{name}.bias"], self.training)

    def layernorm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.values[f"{name}.weight"], self.values[f"{name}.bias"])

    def attention(self, x, heads):
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def attention_cached(self, name, x, heads):
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in x.chunk(3, -1))
        keys, values = self.values[f"running.{name}.keys"], self.values[f"running.{name}.values"]
        keys[:, :, -1:], values[:, :, -1:] = k, v
        return F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(2)

    def relu(self, x): return x.relu()
    def gelu(self, x): return F.gelu(x, approximate="tanh")
    def add(self, x, y): return x + y
    def maxpool(self, x, kernel, stride, padding=0): return F.max_pool2d(x, kernel, stride, padding)
    def average(self, x): return x.mean((2, 3))
    def flatten(self, x): return x.flatten(1)


def trainable(d: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [value.requires_grad_() for name, value in d.items()
            if name not in ("x", "labels") and not name.startswith("running.")]


OPTIMIZERS = {"sgd": functools.partial(torch.optim.SGD, lr=0.01), "adam": functools.partial(torch.optim.Adam, lr=0.001),
              "momentum": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)}


@family
def step(d, model, optimizer, **_):
    update, operations, labels = OPTIMIZERS[optimizer](trainable(d)), Operations(d, training=True), d["labels"].long()

    def run():
        update.zero_grad()
        loss = F.cross_entropy(MODELS[model](operations, d["x"]), labels)
        loss.backward()
        update.step()
        return loss
    return run


@family
def forward(d, model, **_):
    operations = Operations(d)
    return lambda: MODELS[model](operations, d["x"])


decode = BUILDERS["decode"] = forward


@family
def backward(d, model, **_):
    operations, inputs = Operations(d), [d["x"].requires_grad_(), *trainable(d)]
    return lambda: torch.autograd.grad(MODELS[model](operations, d["x"]).square().sum(), inputs)
