"""Reductions over the smallest space that gives their value: the same answers, and far less work."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import Tensor
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import reduce_fewer_axes
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp, full


def leaf(slot: int, *shape: int) -> UOp:
    return UOp(o.PARAM, dtypes.float32, (), Param(slot, shape))


X, ROW = leaf(0, 5, 7), leaf(1, 1, 7)
GRAPHS = {
    "an axis that stays": ROW.expand((5, 7)).sum([1]),
    "an axis that goes": ROW.expand((5, 7)).sum([0]),
    "both": ROW.reshape((1, 7, 1)).expand((5, 7, 3)).sum([1, 2]),
    "through elementwise ops": (ROW.expand((5, 7)) * 2.0 + 1.0).sum([1]),
    "a maximum": ROW.expand((5, 7)).reduce(o.AMAX, [0, 1]),
    "a product": ROW.expand((5, 7)).reduce(o.PROD, [0]),
    "through views": ROW.expand((5, 7)).permute((1, 0)).flip([0]).reshape((7, 5, 1)).sum([0]),
    "nothing to narrow": (X * ROW.expand((5, 7))).sum([1]),
    "padding changes along its axis": ROW.expand((5, 7)).pad(((1, 2), (0, 0))).sum([1]),
}


@pytest.mark.parametrize("graph, expected", [
    (full((2, 3), 1).sum((0, 1)), full((1, 1), 6)), (full((2, 3), 2.0).reduce(o.AMAX, [1]), full((2, 1), 2.0)),
    (ROW.expand((5, 7)).sum([0]), ROW * 5.0),
    (ROW.cast(dtypes.int8).expand((5, 7)).sum([0]), ROW.cast(dtypes.int8) * 5)])
def test_what_is_left_is_folded(graph: UOp, expected: UOp) -> None:
    [found] = rewrite(reduce_fewer_axes([graph]), ALGEBRA)
    [wanted] = rewrite([expected], ALGEBRA)
    assert found is wanted


@pytest.mark.parametrize("name", GRAPHS)
def test_the_answer_stays(name: str) -> None:
    graph = GRAPHS[name]
    values = {X: np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32),
              ROW: np.random.default_rng(2).normal(size=(1, 7)).astype(np.float32)}
    (narrowed,) = reduce_fewer_axes([graph])
    want, got = interpret([graph, narrowed], values)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert narrowed.shape == graph.shape


def work(node: UOp) -> int:
    return sum(n.src[0].size for n in toposort([node]) if n.op in o.REDUCE)


def test_a_gradient_of_ones_is_not_multiplied_out() -> None:
    w = leaf(0, 32, 64)
    ones = leaf(1, 1, 1).expand((16, 32))
    right = w.permute((1, 0)).reshape((1, 64, 32)).expand((16, 64, 32))
    graph = (ones.reshape((16, 1, 32)).expand((16, 64, 32)) * right).sum([2])
    assert work(graph) == 16 * 64 * 32
    assert work(reduce_fewer_axes([graph])[0]) == 64 * 32


def test_sums_of_gradients_match() -> None:
    x = Tensor(np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32))
    w = Tensor(np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32))
    (x @ w).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.ones((8, 4)) @ w.numpy().T, rtol=1e-5)
    np.testing.assert_allclose(w.grad.numpy(), x.numpy().T @ np.ones((8, 4)), rtol=1e-5)
