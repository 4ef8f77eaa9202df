"""Convolutions in Winograd's tiles: the values of all products, where they pay, and what is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_kernels import HOPPER, Inputs, check

from glassgrad import Context, Tensor
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.lower.loops import For, Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import GRAPH, GraphWork, make_schedule, run_passes
from glassgrad.compiler.schedule import winograd
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS, FusionLimits
from glassgrad.compiler.schedule.winograd import to_coefficients, values_at_points, with_fewer_products
from glassgrad.engine.schedule_key import normalize, with_params

Shape = tuple[int, ...]
LARGE: list[tuple[Shape, Shape]] = [((32, 128, 56, 56), (128, 128, 3, 3)), ((32, 64, 56, 56), (64, 64, 3, 3))]


def folded(out: Tensor) -> list[UOp]:
    """A result as the passes over the graph leave it."""
    work = GraphWork([out.uop], [], "CPU")
    run_passes(work, GRAPH)
    return work.sinks


def convolved(image: Shape, weights: Shape, of: str, seed: int = 0, **options: Any) -> tuple[list[UOp], Inputs]:
    """A convolution, or its gradient of the image or of the weights, over leaves with random values."""
    rng, leaves = np.random.default_rng(seed), Inputs()
    x, w = (Tensor(leaves.leaf(rng.standard_normal(s).astype("float32"))) for s in (image, weights))
    out = x.conv2d(w, **options)
    if of:
        g = Tensor(leaves.leaf(rng.standard_normal(out.shape).astype("float32")))
        out = (out * g).sum().gradient(x if of == "image" else w)[0]
    return folded(out), leaves


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "LAUNCHES", -1 << 60)


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
def test_the_matrices_multiply_polynomials(taps: int) -> None:
    step = winograd.SIZE + 1 - taps
    rng = np.random.default_rng(taps)
    d, g = rng.standard_normal(winograd.SIZE), rng.standard_normal(taps)
    at_points = (np.array(values_at_points(taps)) @ g) * (np.array(to_coefficients()) @ d)
    np.testing.assert_allclose(np.array(values_at_points(step)).T @ at_points, np.correlate(d, g), atol=1e-12)


@pytest.mark.parametrize("of", ["", "image", "weights"])
@pytest.mark.parametrize(("image", "weights", "padding"), [
    ((2, 5, 8, 8), (7, 5, 3, 3), 1), ((2, 3, 9, 11), (4, 3, 3, 3), 1), ((1, 3, 12, 10), (16, 3, 3, 3), 0),
    ((2, 3, 13, 9), (4, 3, 3, 2), 2), ((2, 3, 13), (4, 3, 3), 1), ((3, 2, 9, 9), (1, 2, 2, 2), 0),
    ((2, 1, 7, 19), (3, 1, 3, 3), 2)])
def test_tiles_give_what_all_products_give(image: Shape, weights: Shape, padding: int, of: str, any_size: None) -> None:
    sinks, leaves = convolved(image, weights, of, padding=padding)
    tiled = with_fewer_products(sinks, 0)
    assert tiled != sinks
    [want], [got] = interpret(sinks, leaves), interpret(tiled, leaves)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) < 4e-6 * np.linalg.norm(want)


@pytest.mark.parametrize("of", ["", "image", "weights"])
def test_errors_are_those_that_the_page_of_settings_names(of: str, any_size: None, torch: Any) -> None:
    """Against float64: below 1e-6 of all products, below 2e-6 in tiles (4e-6 by the weights, whose sums are long)."""
    rng, leaves = np.random.default_rng(3), Inputs()
    arrays = [rng.standard_normal(s).astype("float32") for s in ((4, 96, 16, 16), (32, 96, 3, 3), (4, 32, 16, 16))]
    x, w, g = (Tensor(leaves.leaf(a)) for a in arrays)
    exact = [torch.tensor(a, dtype=torch.float64).requires_grad_() for a in arrays]
    out, result = x.conv2d(w, padding=1), torch.nn.functional.conv2d(*exact[:2], padding=1)
    if of:
        out = (out * g).sum().gradient(x if of == "image" else w)[0]
        [result] = torch.autograd.grad(result, exact[0 if of == "image" else 1], exact[2])
    wanted, sinks = result.detach().numpy(), folded(out)
    errors = [np.linalg.norm(interpret(way, leaves)[0] - wanted) / np.linalg.norm(wanted)
              for way in (sinks, with_fewer_products(sinks, 0))]
    assert errors[0] < 1e-6 and errors[0] < errors[1] < (4e-6 if of == "weights" else 2e-6), errors


def in_few_threads(ast: UOp) -> Kernel:
    """A kernel's loops where a group of 4 threads is worth having: small tiles go the way of large ones."""
    return optimize(lower(ast, keep_bytes=HOPPER.row_bytes), replace(HOPPER, vector_bytes=16, few_tasks=1))


@pytest.mark.parametrize("of", ["", "image", "weights"])
@pytest.mark.parametrize("image", [(2, 5, 8, 8), (1, 5, 9, 11)])
def test_loops_of_groups_give_what_the_graph_gives(image: Shape, of: str, any_size: None) -> None:
    sinks, leaves = convolved(image, (16, 5, 3, 3), of, padding=1)
    check(sinks, leaves, in_few_threads, limits=HOPPER.fusion)


def schedule(out: Tensor, limits: FusionLimits = GPU.fusion) -> list[UOp]:
    planned = make_schedule(*with_params(normalize([out.uop]), ()), "CPU", limits=limits)
    return [item.ast for item in planned.items]


def leaf(*shape: int, dtype: str = "float32") -> Tensor:
    """A tensor of any size that has no memory."""
    return Tensor(Inputs().leaf(np.broadcast_to(np.zeros((), dtype), shape)))


def large(of: str, image: Shape, weights: Shape, dtype: str = "float32", **options: Any) -> Tensor:
    x, w = leaf(*image, dtype=dtype), leaf(*weights, dtype=dtype)
    out = x.conv2d(w, **options)
    if of:
        out = (out * leaf(*out.shape)).sum().gradient(x if of == "image" else w)[0]
    return out


@pytest.mark.parametrize("of", ["", "image", "weights"])
@pytest.mark.parametrize(("image", "weights"), LARGE)
def test_large_convolutions_are_four_kernels_on_a_gpu_and_one_elsewhere(image: Shape, weights: Shape, of: str) -> None:
    out = large(of, image, weights, padding=1)
    assert [len(ast.src) for ast in schedule(out)] == [1, 1, 1, 1], "two transforms, the products, the way back"
    assert len(schedule(out, CPU_LIMITS)) == 1
    with Context(WINOGRAD=0):
        assert len(schedule(out)) == 1


@pytest.mark.parametrize("of", ["", "image", "weights"])
def test_a_thread_has_all_results_of_a_tile(of: str) -> None:
    kernels = [optimize(lower(ast), GPU) for ast in schedule(large(of, *LARGE[0], padding=1))]
    images = [k for k in kernels if k.name.startswith("map") and "32" in k.name.split("_")]
    assert images
    for kernel in images:                        # 32 * 128 * 14 * 14 tiles, 256 in a group
        assert [f.range.arg.size for phase in kernel.phases for f in phase.body if isinstance(f, For)] == [3136]


OTHERS: dict[str, Callable[[], Tensor]] = {
    "strides": lambda: large("", *LARGE[0], padding=1, stride=2),
    "dilation": lambda: large("", *LARGE[0], padding=2, dilation=2),
    "each channel by itself": lambda: large("", (32, 256, 56, 56), (256, 1, 3, 3), padding=1, groups=256),
    "few channels": lambda: large("", (32, 16, 56, 56), (16, 16, 3, 3), padding=1),
    "few pixels": lambda: large("", (4, 64, 28, 28), (64, 64, 3, 3), padding=1),
    "five taps": lambda: large("", (32, 64, 56, 56), (64, 64, 5, 5), padding=2),
    "seven taps": lambda: large("", (8, 64, 56, 56), (64, 64, 7, 7), padding=3),
    "types of a matrix unit": lambda: large("", *LARGE[0], dtype="float16", padding=1),
    "float64": lambda: large("", *LARGE[0], dtype="float64", padding=1)}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_left_as_it_was(what: str) -> None:
    out = OTHERS[what]()
    assert [node.op for ast in schedule(out) for node in toposort([ast])] == \
        [node.op for ast in schedule(out, GPU.fusion._replace(products_per_byte=0)) for node in toposort([ast])]


def test_parts_of_a_product_are_not_computed_apart() -> None:
    x, w = leaf(512, 512), leaf(512, 1536)
    parts = (x @ w).split(512, dim=1)
    image = leaf(1, 1, 8, 8).conv2d(leaf(1, 1, 3, 3)).sum()              # there are windows somewhere
    sinks = [node for part in parts for node in folded(part.relu())] + folded(image)
    assert with_fewer_products(sinks, 6) == sinks


def test_a_result_that_others_read_whole_is_not_cut(any_size: None) -> None:
    rng, leaves = np.random.default_rng(0), Inputs()
    x, w = (Tensor(leaves.leaf(rng.standard_normal(s).astype("float32"))) for s in ((1, 2, 9, 9), (3, 2, 3, 3)))
    out = x.conv2d(w)
    sinks = [*folded(out[:, :, 1:6, 1:6].relu()), *folded(out.exp())]
    tiled = with_fewer_products(sinks, 0)
    assert sum(node.op is o.SUM for node in toposort(tiled)) == 1
    for got, want in zip(interpret(tiled, leaves), interpret(sinks, leaves)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_what_follows_element_by_element_is_in_the_last_kernel() -> None:
    x, w = leaf(*LARGE[0][0]), leaf(*LARGE[0][1])
    out = x.conv2d(w, leaf(128), padding=1).relu() + leaf(32, 128, 56, 56)
    assert len(schedule(out)) == 4
    kernel = optimize(lower(schedule(out)[-1]), GPU)
    assert [f.range.arg.size for phase in kernel.phases for f in phase.body if isinstance(f, For)] == [3136]
    out = x.conv2d(w, padding=1)
    kernels = schedule(out.relu() + out.sum((0, 2, 3), keepdim=True))
    assert [ast.src[0].size for ast in kernels[3:]] == [32 * 128 * 56 * 56, 128, 32 * 128 * 56 * 56], "it is stored"


@pytest.mark.parametrize("image", [(2, 5, 8, 8), (1, 5, 9, 11)])
def test_bias_and_relu_give_what_the_graph_gives(image: Shape, any_size: None) -> None:
    rng, leaves = np.random.default_rng(1), Inputs()
    x, w, bias = (Tensor(leaves.leaf(rng.standard_normal(s).astype("float32"))) for s in (image, (16, 5, 3, 3), (16,)))
    sinks = folded(x.conv2d(w, bias, padding=1).relu())
    check(sinks, leaves, in_few_threads, limits=HOPPER.fusion)
