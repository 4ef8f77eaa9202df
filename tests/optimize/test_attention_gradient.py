"""The gradient of softmax(q k^T) v, whose passes compute the scores again: loop trees for matrix units, and sources.

A schedule of a GPU runs here kernel by kernel in the interpreter, which checks every wait, against float64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import compiler_report, needs_nvrtc

from glassgrad import Context, Tensor, dtypes
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.lower.loops import AwaitSteps, Kernel, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.schedule.kernels import Item

CHIPS = {name: replace(GPU, features=frozenset({name}), units=units_of({name})) for name in ("sm_80", "sm_90a")}
Shape = tuple[int, int, int, int, int]         # batch, rows, keys, numbers of a key, numbers of a value


@pytest.fixture(autouse=True)
def any_size() -> Iterator[None]:
    with Context(ONLINE_SOFTMAX=2, MATRIX_UNIT=0):
        yield


def exactly(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, is_causal: bool) -> list[np.ndarray]:
    """The result and the gradients of q, k and v, in float64."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = weights @ v
    inner = weights * (g @ v.swapaxes(-1, -2) - (g * out).sum(-1, keepdims=True)) * scale
    return [out, inner @ k, inner.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ g]


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got.ravel() - wanted.ravel()) / np.linalg.norm(wanted))


def small(x: np.ndarray) -> np.ndarray:
    """Numbers as bfloat16."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def large(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


class Training:
    """Attention and its gradients as a GPU's schedule, of bfloat16."""

    def __init__(self, shape: Shape, is_causal: bool, target: Target):
        batch, rows, keys, size, width = shape
        shapes = (batch, rows, size), (batch, keys, size), (batch, keys, width), (batch, rows, width)
        rng = np.random.default_rng(sum(shape))
        self.given = [large(small(rng.standard_normal(s))) for s in shapes]
        q, k, v, g = self.tensors = [Tensor.zeros(*s, dtype="bfloat16").contiguous().realize() for s in shapes]
        for t in (q, k, v):
            t.requires_grad = True
        out = q.scaled_dot_product_attention(k, v, is_causal=is_causal)
        gradients = (out.cast("float32") * g.cast("float32")).sum().gradient(q, k, v)
        self.results = [out, *gradients]
        self.items: list[Item] = out.schedule(*gradients)
        self.kernels: list[Kernel] = [optimize(lower(item.ast, blocks=target.score_blocks), target)
                                      for item in self.items]

    def run(self) -> list[np.ndarray]:
        """What the kernels compute of the given numbers: memory is found by the slots of the kernels."""
        memory: dict[int, np.ndarray] = {}
        for item, kernel in zip(self.items, self.kernels):
            for slot, param in zip(item.slots, kernel.params):
                if slot not in memory and slot < len(self.given):
                    memory[slot] = small(self.given[slot]).ravel()
                elif slot not in memory:
                    narrow = param.dtype is dtypes.bfloat16
                    memory[slot] = np.zeros(math.prod(param.shape), np.uint16 if narrow else np.float32)
            run_kernel(kernel, [memory[slot] for slot in item.slots])
        out, of_q, of_k, of_v = (large(memory[slot]) for slot in sorted(memory) if slot >= len(self.given)
                                 and memory[slot].dtype == np.uint16)
        batch, keys, size = self.given[1].shape             # the gradient of the keys is stored transposed
        return [out, of_q, of_k.reshape(batch, size, keys).swapaxes(-1, -2), of_v]


CASES: dict[str, tuple[str, Shape, bool]] = {
    "one block": ("sm_90a", (1, 64, 64, 16, 16), False), "ragged": ("sm_90a", (1, 130, 200, 40, 24), False),
    "causal": ("sm_90a", (1, 192, 192, 16, 16), True), "wide, causal": ("sm_90a", (1, 70, 130, 128, 128), True),
    "one by one": ("sm_80", (1, 70, 100, 24, 16), False), "one by one, causal": ("sm_80", (1, 130, 70, 16, 16), True)}


@pytest.mark.parametrize("name", CASES)
def test_trees_are_right(name: str) -> None:
    chip, shape, is_causal = CASES[name]
    training = Training(shape, is_causal, CHIPS[chip])
    passes = [kernel for kernel in training.kernels if kernel.name.startswith("online")]
    assert len(passes) == 3 and all(move.startswith("held(") for kernel in passes for move in kernel.moves)
    assert all(any(isinstance(s, AwaitSteps) for s in walk(kernel.phases[-1].body)) == (chip == "sm_90a")
               for kernel in passes)
    for got, wanted in zip(training.run(), exactly(*training.given, is_causal)):
        assert distance(got, wanted) < 9e-3


@needs_nvrtc
def test_sources_of_several_products_compile_without_spills_and_with_steps_in_flight() -> None:
    kernels = Training((4, 2048, 2048, 128, 128), True, CHIPS["sm_90a"]).kernels[-2:]
    for kernel in kernels:
        report = compiler_report(make_source(kernel, CHIPS["sm_90a"], "cuda"), "sm_90a")
        assert [int(n) for n in re.findall(r"(\d+) bytes spill", report)] == [0, 0]
        assert "serialized" not in report
    assert [kernel.name for kernel in kernels] == ["online_4_2048_128_r128_r128_r2048"] * 2
