"""Gradients of strided convolutions and transposed ones as one product: the values, where it pays, what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_kernels import HOPPER, Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.pipeline import GRAPH, GraphWork, run_passes
from glassgrad.compiler.schedule.joined_remainders import with_joined_remainders

Shape = tuple[int, ...]
UNIT = HOPPER.fusion._replace(unit_products=100)
# the image of a convolution, its weights, stride, padding
CASES: list[tuple[Shape, Shape, Any, int]] = [
    ((2, 5, 8, 8), (7, 5, 3, 3), 2, 1), ((2, 5, 8, 8), (7, 5, 4, 4), 2, 1), ((1, 3, 13, 10), (4, 3, 7, 7), 2, 3),
    ((2, 3, 9, 9), (4, 3, 1, 1), 2, 0), ((1, 3, 11, 12), (4, 3, 2, 2), 3, 0), ((1, 3, 11, 12), (4, 3, 5, 3), 3, 2),
    ((2, 3, 8, 8), (4, 3, 2, 2), 2, 0), ((1, 3, 13), (4, 3, 3), 2, 1), ((1, 2, 5, 7, 6), (3, 2, 3, 2, 3), 2, 1),
    ((1, 3, 9, 16), (4, 3, 3, 8), (1, 4), 1), ((1, 3, 9, 16), (4, 3, 1, 4), (3, 2), 1),
    ((1, 6, 9, 9), (4, 3, 3, 3), 2, 1), ((2, 1, 11, 12), (4, 1, 5, 3), 3, 2), ((2, 1, 90), (3, 1, 50), 20, 7)]


def folded(out: Tensor) -> list[UOp]:
    """A result as the passes over the graph leave it."""
    work = GraphWork([out.uop], [], "CPU")
    run_passes(work, GRAPH)
    return work.sinks


def strided(image: Shape, weights: Shape, stride: Any, padding: int, transposed: bool, dtype: str = "float32") \
        -> tuple[list[UOp], Inputs]:
    """The image's gradient of a convolution, or the transposed convolution of what would be its result."""
    rng, leaves = np.random.default_rng(0), Inputs()
    groups = image[1] // weights[1]
    x, w = (Tensor(leaves.leaf(rng.standard_normal(s).astype("float32"))).cast(dtype) for s in (image, weights))
    out = x.conv2d(w, stride=stride, padding=padding, groups=groups)
    g = Tensor(leaves.leaf(rng.standard_normal(out.shape).astype("float32"))).cast(dtype)
    if transposed:
        return folded(g.conv_transpose2d(w, stride=stride, padding=padding, groups=groups)), leaves
    return folded((out.float() * g.float()).sum().gradient(x)[0]), leaves


def has_stride(sinks: list[UOp]) -> bool:
    return any(n.op is o.UNWINDOW and n.arg.stride > 1 for n in toposort(sinks))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("image", "weights", "stride", "padding"), CASES)
def test_one_product_gives_what_the_remainders_give(image: Shape, weights: Shape, stride: Any, padding: int,
                                                    transposed: bool, dtype: str) -> None:
    sinks, leaves = strided(image, weights, stride, padding, transposed, dtype)
    joined = with_joined_remainders(sinks, lambda dtype: 100)
    # a sum that one tap spreads is none under the taps; groups of channels are one axis of the image's gradient
    assert transposed or 1 in weights[2:] or image[1] != weights[1] or not has_stride(joined)
    [want], [got] = interpret(sinks, leaves), interpret(joined, leaves)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= (1e-6 if dtype == "float32" else 4e-3) * np.linalg.norm(want)


def test_one_channel_of_a_large_stride_multiplies_no_more_than_its_taps() -> None:
    """Of 50 taps at a stride of 20, at most 3 reach a sample: a first layer over sound. On a CPU too."""
    sinks, _ = strided((2, 1, 1000), (8, 1, 50), 20, 0, False)
    assert not has_stride(with_joined_remainders(sinks, lambda dtype: 0))


def in_few_threads(ast: UOp) -> Kernel:
    """A kernel's loops where a group of 4 threads is worth having: small tiles go the way of large ones."""
    return optimize(lower(ast, keep_bytes=HOPPER.row_bytes), replace(HOPPER, vector_bytes=16, few_tasks=2))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("image", "weights", "stride", "padding"), CASES)
def test_loops_of_groups_give_what_the_graph_gives(image: Shape, weights: Shape, stride: Any, padding: int,
                                                   transposed: bool) -> None:
    sinks, leaves = strided(image, weights, stride, padding, transposed)
    check(sinks, leaves, in_few_threads, limits=UNIT)


@pytest.mark.parametrize(("weights", "stride", "padding"), [((64, 32, 3, 3), 2, 1), ((64, 32, 4, 4), 2, 1),
                                                            ((64, 32, 3, 3), 3, 1)])
def test_the_matrix_unit_stores_results_of_all_remainders(weights: Shape, stride: int, padding: int) -> None:
    sinks, leaves = strided((1, 32, 24, 24), weights, stride, padding, True, "bfloat16")
    check(sinks, leaves, lambda ast: optimize(lower(ast, keep_bytes=HOPPER.row_bytes), HOPPER), limits=UNIT)


@pytest.mark.parametrize(("channels", "taps", "stride", "padding"),
                         [(3, 4, 2, 1), (5, 8, 8, 0), (2, 16, 16, 0), (21, 16, 8, 4)])
def test_a_cpu_multiplies_few_columns_and_many_remainders_once(channels: int, taps: int, stride: int, padding: int,
                                                               rng: np.random.Generator) -> None:
    """Cut into remainders, 3 columns would fill 3 of 16 lanes, and a stride of 8 would leave products with zeros."""
    x, w = (Tensor(rng.standard_normal(shape).astype("float32")).realize()
            for shape in ((2, 24, 6, 6), (24, channels, taps, taps)))
    out = x.conv_transpose2d(w, stride=stride, padding=padding)
    sums = [n for item in out.schedule() for n in item.ast.toposort() if n.op is o.SUM]
    assert [n for n in sums if n.src[0].size > 3 * x.numel() * w.numel() // 24] == []
    torch = pytest.importorskip("torch")
    wanted = torch.nn.functional.conv_transpose2d(*map(torch.from_numpy, (x.numpy().copy(), w.numpy().copy())),
                                                  stride=stride, padding=padding)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-4, atol=1e-4)
