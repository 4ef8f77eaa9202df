"""Loops whose value grows and is read only at the end: computed step by step, by kernels for all lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glassgrad import Context, GlobalCounters, Tensor, nn
from glassgrad.compiler.graph import ops as o
from glassgrad.engine.changing_sizes.growing_steps import LEAST_NODES, growing_steps, over
from glassgrad.engine.schedule_key import NormalizedGraph, normalize

pytestmark = pytest.mark.usefixtures("fresh_schedules")


class Writer:
    """A small language model, whose weights are computed when they are first needed."""

    def __init__(self) -> None:
        self.words, self.places, self.out = nn.Embedding(70, 8), nn.Embedding(64, 8), nn.Linear(8, 70)
        self.inner = [nn.Linear(8, 24) for _ in range(2)]

    def __call__(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        x = self.words(tokens) + self.places(Tensor.arange(n))
        for inner in self.inner:
            q, k, v = inner(x.layernorm()).chunk(3, dim=-1)
            x = x + (q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.out(x[:, -1])


def written(count: int, at_once: bool = True) -> Tensor:
    """Tokens of a random model; not computed yet, or read after each step."""
    Tensor.manual_seed(3)
    model, tokens = Writer(), Tensor([[3, 5]])
    for _ in range(count):
        following = (model(tokens) * 5).softmax(-1).multinomial(1).cast("int32")
        tokens = tokens.cat(following, dim=1)
        tokens = tokens if at_once else tokens.realize()
    return tokens


def joined(count: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """A factor, rows that are computed from those before, and a result of each step."""
    rng = np.random.default_rng(0)
    w, x = (Tensor(rng.normal(size=(n, 4)).astype(np.float32)) for n in (4, 2))
    means = []
    for _ in range(count):
        scores = (x @ w @ x.T).softmax(-1)
        x = x.cat(((scores @ x).layernorm() @ w).tanh().max(axis=0, keepdim=True), dim=0)
        means.append(scores.mean(0))
    return w, x, means


def graph_of(x: Tensor) -> NormalizedGraph:
    return normalize([x.contiguous().uop])


def test_a_lazy_text_is_written_with_kernels_for_all_lengths() -> None:
    assert written(12).tolist() == written(12, at_once=False).tolist()
    before = GlobalCounters.schedules
    longer = written(24).tolist()
    assert GlobalCounters.schedules <= before + 1, "only the copy that tolist makes is of a new length"
    assert longer == written(24, at_once=False).tolist() and len(set(longer[0])) > 4


def test_the_steps_are_the_values_that_grow() -> None:
    normal = graph_of(written(8))
    steps = growing_steps(normal)
    assert len(normal.order) > LEAST_NODES and normal.sinks[0] in steps[-1]
    ends = [step[-1] for step in steps[:-1]]
    assert [end.shape for end in ends] == [(1, n) for n in range(3, 11)], "the first too is the text, not its token"
    [alone] = over([ends[-1]], {ends[-2]: Tensor.zeros(1, 9, dtype="int32").uop})
    assert alone.shape == (1, 10) and ends[-2] not in alone.toposort() and ends[-2] in ends[-1].toposort()


def elementwise(count: int) -> Tensor:
    x = Tensor.ones(2, 4)
    for _ in range(count):
        x = x.cat((x.exp() + x.sin().tanh()).sqrt()[:1], dim=0)
    return x


def same_length(count: int) -> Tensor:
    x = Tensor.ones(4, 4)
    for _ in range(count):
        x = (x.softmax(0) + x.sin().tanh()).sqrt().layernorm()
    return x


@pytest.mark.parametrize("program", [lambda: elementwise(80), lambda: same_length(80), lambda: written(3)],
                         ids=["without a reduction", "of one length", "of three steps"])
def test_other_loops_are_one_graph(program: Callable[[], Tensor]) -> None:
    assert growing_steps(graph_of(program())) == []


def test_gradients_are_one_graph() -> None:
    w, x, _ = joined(20)
    assert growing_steps(graph_of(x))
    x.square().mean().backward()
    assert w.grad is not None and w.grad.uop.op is o.GRADIENT and growing_steps(graph_of(w.grad)) == []


def test_values_and_gradients_are_those_of_one_graph() -> None:
    found = []
    for dynamic in (1, 0):
        with Context(DYNAMIC=dynamic, DEV="PYTHON"):
            w, x, means = joined(8)
            loss = x.square().mean()
            x.realize(*means)
            loss.backward()
            assert w.grad is not None
            found.append([t.numpy() for t in (x, *means, w.grad)])
    for mine, expected in zip(*found, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-3, atol=1e-5)
