"""List what is measured. In: nothing. Out: `TABLE`, name -> Workload: sizes, data, arithmetic, goals. Knows no
framework.

A workload belongs to a family ("matmul", "conv", ...). Each framework has one small builder per family, called with the
data below and the workload's parameters.
"""

from __future__ import annotations

import fnmatch
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.models import GPT2_HEADS, GPT2_WIDTH, MODELS, Shapes, initial_values

__all__ = ["Workload", "TABLE", "PEAKS", "QUICK", "select"]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Workload:
    """One line of the table. `reads` and `writes` are the bytes that must cross memory at least once."""
    name: str
    group: str
    family: str
    description: str
    make: Callable[..., Arrays]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    flops: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    tolerance: float = 1e-3     # largest difference between frameworks, as a share of the largest value
    goals: Mapping[str, float] = field(default_factory=dict)      # peer -> the ratio to reach

    def data(self) -> Arrays:
        """The inputs: the same numbers in every framework and every run."""
        return self.make(np.random.default_rng(zlib.crc32(self.name.encode())), **self.parameters)


TABLE: dict[str, Workload] = {}
PEAKS: dict[str, Workload] = {}
QUICK = ("matmul-512", "matmul-64x784x128", "elementwise", "softmax", "layernorm", "sum-axis-0", "conv-3x3-56",
         "mlp-step", "mlp-step-jit", "start-sum")


def _add(name: str, group: str, family: str, description: str, make: Callable[..., Arrays], into: dict | None = None,
         **rest: Any) -> None:
    table = TABLE if into is None else into
    assert name not in table, name
    table[name] = Workload(name, group, family, description, make, **rest)


def _normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32)


# ---- matrix products

def _matmul_data(random, m, k, n, batch=(), transpose="nn", dtype="float32"):
    a = (*batch, m, k) if transpose[0] == "n" else (*batch, k, m)
    b = (*batch, k, n) if transpose[1] == "n" else (*batch, n, k)
    return {"a": _normal(random, *a), "b": _normal(random, *b)}


def _add_matmul(name, description, m, k, n, goals, into=None, **more):
    batch, size = more.get("batch", ()), 2 if more.get("dtype") == "bfloat16" else 4
    count = int(np.prod(batch)) if batch else 1
    _add(name, "matmul", "matmul", description, _matmul_data, into, parameters={"m": m, "k": k, "n": n, **more},
         flops=2.0 * count * m * k * n, reads=size * count * (m * k + k * n), writes=size * count * m * n, goals=goals,
         tolerance=2e-2 if size == 2 else 1e-3)


_square = {"torch": 1.0, "jax": 1.0, "tinygrad": 20.0}
for _n in (256, 512, 1024, 2048):
    _add_matmul(f"matmul-{_n}", f"{_n}x{_n} @ {_n}x{_n}", _n, _n, _n, _square)
for _kind, _text in (("nt", "a @ b.T"), ("tn", "a.T @ b"), ("tt", "a.T @ b.T")):
    _add_matmul(f"matmul-1024-{_kind}", f"{_text}, 1024", 1024, 1024, 1024, _square, transpose=_kind)
_add_matmul("matmul-64x784x128", "64x784 @ 784x128", 64, 784, 128, {"torch": 1.0, "jax": 1.0})
_add_matmul("matmul-batched", "32 times 128x64 @ 64x128", 128, 64, 128, {"torch": 1.0, "jax": 1.0}, batch=(32,))
_add_matmul("matmul-1x4096", "1x4096 @ 4096x4096", 1, 4096, 4096, {"torch": 1.0, "jax": 1.0, "tinygrad": 10.0})
_add_matmul("matmul-bf16-1024", "1024x1024 @ 1024x1024 in bfloat16", 1024, 1024, 1024, {"torch": 0.8}, dtype="bfloat16")


# ---- memory-bound work

_MANY = 16 * 1024 * 1024
_rows = {"torch": 3.0, "jax": 1.5, "tinygrad": 1.2}


def _square_data(random, size=4096, **_):
    return {"x": _normal(random, size, size)}


def _pair_data(random, size):
    return {"x": _normal(random, size), "y": _normal(random, size)}


_add("elementwise", "memory", "elementwise", "relu((x + y) * 2 + 1), 16M", _pair_data, parameters={"size": _MANY},
     flops=4.0 * _MANY, reads=8.0 * _MANY, writes=4.0 * _MANY, goals=_rows)
for _name, _family, _text, _parameters, _flops in (
        ("softmax", "softmax", "softmax of rows", {}, 5), ("layernorm", "layernorm", "layernorm of rows", {}, 7),
        ("rmsnorm", "rmsnorm", "rmsnorm of rows", {}, 4),
        ("gelu-tanh", "gelu", "gelu (tanh)", {"approximate": "tanh"}, 8),
        ("gelu-erf", "gelu", "gelu (erf)", {"approximate": "none"}, 5)):
    _add(_name, "memory", _family, f"{_text}, 4096x4096", _square_data, parameters=_parameters,
         flops=float(_flops * _MANY), reads=4.0 * _MANY, writes=4.0 * _MANY, goals=_rows)
for _name, _axis in (("sum-all", None), ("sum-axis-0", 0), ("sum-axis-1", 1)):
    _add(_name, "memory", "sum", "sum of all, 4096x4096" if _axis is None else f"sum over axis {_axis}, 4096x4096",
         _square_data, parameters={"axis": _axis}, flops=float(_MANY), reads=4.0 * _MANY,
         writes=4.0 if _axis is None else 4.0 * 4096, goals={"torch": 1.0, "jax": 1.0})


# ---- convolution and pooling

def _conv_sizes(batch, inside, outside, size, kernel, stride=1, padding=0, groups=1):
    out = (size + 2 * padding - kernel) // stride + 1
    return (batch, inside, size, size), (outside, inside // groups, kernel, kernel), (batch, outside, out, out)


def _conv_data(random, part, **sizes):
    x, w, out = _conv_sizes(**sizes)
    data = {"x": _normal(random, *x), "w": _normal(random, *w) / np.float32(np.prod(w[1:])) ** np.float32(0.5)}
    return data if part == "forward" else {**data, "g": _normal(random, *out)}


_conv_goal = {"torch": 0.9, "jax": 1.0, "tinygrad": 8.0}
for _name, _text, _sizes in (
        ("conv-5x5-1", "5x5, 1 -> 32, 28x28, batch 128",
         {"batch": 128, "inside": 1, "outside": 32, "size": 28, "kernel": 5}),
        ("conv-5x5-32", "5x5, 32 -> 32, 24x24, batch 128",
         {"batch": 128, "inside": 32, "outside": 32, "size": 24, "kernel": 5}),
        ("conv-3x3-32", "3x3, 32 -> 64, 10x10, batch 128",
         {"batch": 128, "inside": 32, "outside": 64, "size": 10, "kernel": 3}),
        ("conv-3x3-56", "3x3, 64 -> 64, 56x56, batch 8",
         {"batch": 8, "inside": 64, "outside": 64, "size": 56, "kernel": 3, "padding": 1}),
        ("conv-1x1", "1x1, 256 -> 64, 56x56, batch 8",
         {"batch": 8, "inside": 256, "outside": 64, "size": 56, "kernel": 1}),
        ("conv-depthwise", "3x3 depthwise, 128, 56x56, batch 8",
         {"batch": 8, "inside": 128, "outside": 128, "size": 56, "kernel": 3, "padding": 1, "groups": 128}),
        ("conv-stride-2", "3x3 stride 2, 64 -> 128, 56x56, batch 8",
         {"batch": 8, "inside": 64, "outside": 128, "size": 56, "kernel": 3, "padding": 1, "stride": 2})):
    _bytes = [4.0 * np.prod(shape) for shape in _conv_sizes(**_sizes)]
    for _part, _suffix, _written in (("forward", "", 2), ("dx", "-dx", 0), ("dw", "-dw", 1)):
        _sense = {"forward": "", "dx": ", gradient of the input", "dw": ", gradient of the weight"}[_part]
        _, _weight, _out = _conv_sizes(**_sizes)
        _add(_name + _suffix, "conv", "conv", _text + _sense, _conv_data, parameters={"part": _part, **_sizes},
             flops=2.0 * np.prod(_out) * np.prod(_weight[1:]), reads=sum(_bytes) - _bytes[_written],
             writes=_bytes[_written], goals=_conv_goal)


def _pool_data(random, part, **_):
    data = {"x": _normal(random, 32, 64, 56, 56)}
    return data if part == "forward" else {**data, "g": _normal(random, 32, 64, 28, 28)}


_pooled = 4.0 * 32 * 64 * 56 * 56
_add("maxpool", "conv", "maxpool", "max-pool 2x2, 32x64x56x56", _pool_data, parameters={"part": "forward"},
     flops=_pooled / 4, reads=_pooled, writes=_pooled / 4, goals={"torch": 1.0, "jax": 1.0})
_add("maxpool-backward", "conv", "maxpool", "the same, forward and backward", _pool_data, parameters={"part": "dx"},
     flops=_pooled / 2, reads=1.25 * _pooled, writes=_pooled, goals={"torch": 1.0, "jax": 1.0})


# ---- parts of language models

def _attention_data(random, part):
    return {name: _normal(random, 8, 12, 256, 64) for name in ("qkv" if part == "forward" else "qkvg")}


_heads, _scores = 4.0 * 8 * 12 * 256 * 64, 4.0 * 8 * 12 * 256 * 256 * 64
_block_goal = {"torch": 0.9, "jax": 1.0, "tinygrad": 10.0}
_add("attention", "language", "attention", "attention, 8x12x256x64", _attention_data, parameters={"part": "forward"},
     flops=_scores, reads=3 * _heads, writes=_heads, goals=_block_goal)
_add("attention-backward", "language", "attention", "the same, forward and backward", _attention_data,
     parameters={"part": "backward"}, flops=3.5 * _scores, reads=4 * _heads, writes=4 * _heads, goals=_block_goal)


def _embedding_data(random, part):
    index = random.integers(0, 50_000, (8, 256), dtype=np.int32)
    data = {"table": _normal(random, 50_000, 256), "index": index}
    return data if part == "forward" else {**data, "g": _normal(random, 8, 256, 256)}


_add("embedding", "language", "embedding", "embedding, 8x256 of 50,000 words, 256 wide", _embedding_data,
     parameters={"part": "forward"}, reads=4.0 * 8 * 256 * 256, writes=4.0 * 8 * 256 * 256, goals={"torch": 0.67})
_add("embedding-backward", "language", "embedding", "its gradient, dense", _embedding_data,
     parameters={"part": "backward"}, reads=4.0 * 8 * 256 * 256, writes=4.0 * 50_000 * 256, goals={"torch": 0.67})


# ---- whole networks

def _network_data(random, model, batch, shape, classes=0, **_):
    data = initial_values(model, (batch, *shape), random)
    data["x"] = _normal(random, batch, *shape)
    if classes:
        data["labels"] = random.integers(0, classes, batch, dtype=np.int32)
    return data


def _decode_data(random, model, batch, shape, past, **_):
    data = _network_data(random, model, batch, shape)
    size = (batch, GPT2_HEADS, past, GPT2_WIDTH // GPT2_HEADS)
    for layer in range(12):
        for part in ("keys", "values"):
            data[f"running.h{layer}.{part}"] = _normal(random, *size)
    return data


def _add_network(name, group, family, description, model, batch, shape, passes, goals, make=_network_data,
                 tolerance=2e-3, extra_flops=0.0, **more):
    shapes = Shapes()
    MODELS[model](shapes, (batch, *shape))
    weights = 4.0 * sum(int(np.prod(size)) for size in shapes.parameters.values())
    _add(name, group, family, description, make, parameters={"model": model, "batch": batch, "shape": shape, **more},
         flops=passes * shapes.flops + extra_flops, reads=weights, writes=weights if passes > 1 else 0.0,
         tolerance=tolerance, goals=goals)


_picture, _digit, _text_shape = (3, 224, 224), (1, 28, 28), (256, GPT2_WIDTH)
_mlp = {"model": "mlp", "batch": 64, "shape": (784,), "passes": 3, "classes": 10, "optimizer": "sgd"}
_add_network("mlp-step", "networks", "step", "MLP 784-128-10, batch 64, SGD step, un-jitted here and in tinygrad",
             **_mlp, jit=False, goals={"torch": 0.12, "tinygrad": 10.0})
_add_network("mlp-step-jit", "networks", "step", "the same, jitted", **_mlp, jit=True,
             goals={"torch": 3.0, "jax": 2.0, "tinygrad": 10.0})
_add_network("cnn-step", "networks", "step", "MNIST CNN, batch 128, Adam step", "cnn", 128, _digit, 3, classes=10,
             optimizer="adam", jit=True, tolerance=1e-2, goals={"torch": 1.0, "jax": 1.0, "tinygrad": 10.0})
_add_network("resnet18-step", "networks", "step", "ResNet-18, batch 8, 224x224, SGD with momentum", "resnet18", 8,
             _picture, 3, classes=1000, optimizer="momentum", jit=True, tolerance=2e-2, goals=_block_goal)
_add_network("resnet18-inference", "networks", "forward", "ResNet-18 inference, batch 1", "resnet18", 1, _picture, 1,
             goals={"torch": 0.9, "jax": 1.0, "tinygrad": 10.0})
_add_network("gpt2-block", "language", "forward", "GPT-2 small block, 4x256 tokens", "gpt2_block", 4, _text_shape, 1,
             goals=_block_goal)
_add_network("gpt2-block-backward", "language", "backward", "the same, forward and backward", "gpt2_block", 4,
             _text_shape, 3, goals=_block_goal)
_add_network("gpt2-decode", "language", "decode", "GPT-2 small, 12 blocks, one token after 255 with a KV cache",
             "gpt2_decode", 1, (1, GPT2_WIDTH), 1, make=_decode_data, past=256,
             extra_flops=12 * 4.0 * 256 * GPT2_WIDTH, goals=_block_goal)


# ---- order and scans

_MILLION = 1_000_000


def _million_data(random, **_):
    return {"x": random.permutation(_MILLION).astype(np.float32) / 4 - 1000}    # no ties, and exact


for _name, _text in (("sort", "sort, values and places"), ("topk", "100 largest, values and places"),
                     ("cumsum", "cumsum")):
    _add(_name, "order", _name, f"{_text}, 1M", _million_data, reads=4.0 * _MILLION,
         writes={"sort": 8.0 * _MILLION, "topk": 800.0, "cumsum": 4.0 * _MILLION}[_name], goals={"torch": 0.2})


# ---- what the machine can do at best: the measure for "of peak"

_add_matmul("peak-float32", "float32 matrix product, 2048", 2048, 2048, 2048, {}, into=PEAKS)
_add_matmul("peak-bfloat16", "bfloat16 matrix product, 2048", 2048, 2048, 2048, {}, into=PEAKS, dtype="bfloat16")
_ones = lambda random, **_: {"x": np.ones(4 * _MANY, np.float32)}
_add("peak-copy", "peak", "copy", "copy of 256 MB", _ones, into=PEAKS, reads=16.0 * _MANY, writes=16.0 * _MANY)
_add("peak-read", "peak", "sum", "sum of 256 MB", _ones, into=PEAKS, parameters={"axis": None}, reads=16.0 * _MANY)


def select(names: list[str], table: Mapping[str, Workload] = TABLE, more: tuple[str, ...] = ()) -> list[str]:
    """The workloads that names, groups or patterns mean, in the order of the table.

    >>> select(["matmul-51*", "order"])
    ['matmul-512', 'sort', 'topk', 'cumsum']
    """
    everything = [*table, *more]
    chosen: set[str] = set()
    for wish in names:
        found = {n for n in everything if fnmatch.fnmatchcase(n, wish) or (n in table and table[n].group == wish)
                 or (n in more and wish == "start")}
        if not found:
            raise SystemExit(f"benchmarks: no workload is called {wish!r}; --list shows them")
        chosen |= found
    return [name for name in everything if name in chosen]
