"""Gradients of convolutions: one sum of products, and the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import convolve
from graph_leaves import Values

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import gradients
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp

CASES = [
    dict(), dict(padding=1), dict(stride=2, padding=1), dict(dilation=2, padding=2), dict(groups=2, padding=1),
    dict(groups=4, padding=1), dict(groups=4, stride=2), dict(stride=3, padding=2), dict(padding=3)]


def prepare(values: Values, rng: np.random.Generator, **options: int) -> tuple[UOp, list[UOp]]:
    groups = options.get("groups", 1)
    x = values.leaf(rng.standard_normal((2, 4, 7, 8)))
    w = values.leaf(rng.standard_normal((4, 4 // groups, 3, 2)))
    out = convolve(x, w, **options)
    seed = values.leaf(rng.standard_normal(out.shape))
    return out, [g for g in gradients(out, seed, [x, w]) if g is not None]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_convolutions_gradients_are_one_contraction_each(options, rng):
    values = Values()
    out, parts = prepare(values, rng, **options)
    for part in parts:
        got, = join_sums(rewrite([part], ALGEBRA))
        assert [n.op for n in toposort([got])].count(o.SUM) <= 1
        assert [n.op for n in toposort([got])].count(o.MUL) == 1
        np.testing.assert_allclose(values.of(got), values.of(part), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_against_pytorch(options, rng, torch):
    """The reference of the whole: the convolution as built here, its gradients, and what joining makes of them."""
    values = Values()
    out, parts = prepare(values, rng, **options)
    (x, a), (w, b), (_, g) = list(values.items())
    a, b = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    reference = torch.nn.functional.conv2d(a, b, **options)
    reference.backward(torch.tensor(g))
    np.testing.assert_allclose(values.of(out), reference.detach().numpy(), atol=1e-10)
    for part, expected in zip(join_sums(rewrite(parts, ALGEBRA)), (a.grad, b.grad)):
        np.testing.assert_allclose(values.of(part), expected.numpy(), atol=1e-10)


def test_other_sums_are_left_alone():
    """A product that somebody reads is not computed again for a slice, a total or a transpose of it."""
    values = Values()
    a, b = values.leaf(np.ones((4, 5))), values.leaf(np.ones((5, 6)))
    left, right = a.reshape((4, 1, 5)), b.permute((1, 0)).reshape((1, 6, 5))
    product = (left.expand((4, 6, 5)) * right.expand((4, 6, 5))).sum((2,)).reshape((4, 6))
    roots = [product, product.shrink(((0, 2), (0, 6))), product.sum((0, 1)), product.permute((1, 0))]
    assert join_sums(roots) == roots


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length, size, stride", [(50, 12, 5), (9, 3, 2), (11, 2, 3), (20, 5, 5), (9, 1, 4),
                                                  (13, 13, 4)])
def test_frames_that_overlap_sum_only_the_taps_that_reach_an_element(axis, length, size, stride, rng):
    """Frames of 400 samples, 160 apart: 3 taps for each sample, where all 400, masked, took 300 times as long."""
    values = Values()
    x = values.leaf(rng.standard_normal((3, length) if axis else (length, 3)))
    frames = x.window(axis, size, stride)
    seed = values.leaf(rng.standard_normal(frames.shape))
    part, = gradients(frames, seed, [x])
    assert part is not None
    got, = join_sums([part])
    np.testing.assert_allclose(values.of(got), values.of(part), rtol=1e-12, atol=1e-12)
    for total in [n for n in toposort([got]) if n.op is o.SUM]:
        assert [total.src[0].shape[a] for a in total.arg.axes] == [-(-size // stride)]
