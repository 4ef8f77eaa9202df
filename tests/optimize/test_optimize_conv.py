"""Convolutions and their gradients take the recipes made for them, and keep the answer: ragged sizes, views, strides.

Loop trees for several processors run in the kernel interpreter, against the graph's; the machine against PyTorch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from convolutions import convolve
from loop_kernels import AVX512, NEON, Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import gradients
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Accumulate, Kernel, Phase, Store, expressions, loads_in, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.moves.split_by_remainder import by_remainder
from glassgrad.compiler.optimize.plain.access_order import weighted
from glassgrad.compiler.optimize.product import conv_tile_plan, recognize as recognize_file
from glassgrad.compiler.optimize.product.recognize import count, recognize
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds
from glassgrad.compiler.schedule import joined_remainders

# batch, channels, out channels, image, kernel, what else
CASES: list[tuple[int, int, int, tuple[int, int], tuple[int, int], dict[str, Any]]] = [
    (2, 5, 9, (5, 7), (3, 3), dict(padding=1)),
    (1, 3, 17, (6, 4), (5, 2), {}),
    (2, 8, 3, (3, 2), (3, 3), dict(padding=((0, 2), (1, 0)))),
    (2, 4, 5, (7, 6), (3, 3), dict(stride=2, padding=1)),
    (1, 3, 4, (7, 8), (2, 3), dict(stride=3, dilation=2, padding=2)),
    (2, 6, 8, (4, 4), (3, 3), dict(groups=2, padding=1)),
    (3, 1, 6, (6, 6), (5, 5), {}),                                           # the first layer of a network
    (2, 7, 5, (4, 4), (1, 1), {}),
]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe without its lower limits, and with short blocks: small cases take every path."""
    monkeypatch.setitem(cpu.LIMITS, "direct", TilingThresholds(task_work=1000, most_tasks=16, long_k=40, k_block=16))
    for name in ("LEAST_USE", "PACK_IMAGE_CYCLES"):
        monkeypatch.setattr(cpu, name, 0)
    for module in (conv_tile_plan, recognize_file):
        monkeypatch.setattr(module, "REREAD", 0)


def parts(values: Inputs, rng: np.random.Generator, case: Any) -> list[UOp]:
    """The result, after an epilogue, and both gradients."""
    batch, inside, outside, image, kernel, options = case
    x = values.leaf(rng.uniform(-1, 1, (batch, inside, *image)).astype("float32"))
    w = values.leaf(rng.uniform(-1, 1, (outside, inside // options.get("groups", 1), *kernel)).astype("float32"))
    out = convolve(x, w, **options)
    seed = values.leaf(rng.uniform(-1, 1, out.shape).astype("float32"))
    found = [g for g in gradients(out, seed, [x, w]) if g is not None]
    return [join_sums(rewrite([part], ALGEBRA))[0] for part in (out.maximum(0.0) + seed, *found)]


def test_sums_of_a_ragged_tile_are_read_without_a_mask(eager: None) -> None:
    """Only the store has one: the sums of all of a tile are in memory, and masked reads cost more."""
    x, w = Tensor.zeros(8, 2, 17, 17).contiguous().realize(), Tensor.zeros(6, 2, 3, 3).contiguous().realize()
    kernel = optimize(lower(x.conv2d(w).schedule()[0].ast), AVX512)
    assert kernel.moves[0].startswith("direct(")
    sums = [n for phase in kernel.phases for n in loads_in(phase.body) if "sums" in str(n.src[0].arg)]
    stores = [s for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Store) and s.memory.op is o.PARAM]
    assert [len(n.src) for n in sums] == [2] * len(sums) and sums
    assert any(s.gate is not None for s in stores)


@pytest.mark.parametrize("channels, lanes", [(8, 8), (5, 8), (3, 4), (13, 16), (40, 16)])
def test_vectors_along_few_channels_of_a_strided_image_are_narrow(channels: int, lanes: int) -> None:
    """Vectors along the image would read every second element of it, and rows would be packed element by element."""
    x, w = (Tensor.zeros(*shape).contiguous().realize() for shape in ((8, 16, 56, 56), (channels, 16, 3, 3)))
    kernel = optimize(lower(x.conv2d(w, stride=2, padding=1).schedule()[0].ast), AVX512)
    assert kernel.moves[0].startswith("direct(") and f"lanes={lanes}," in kernel.moves[0]


@pytest.mark.parametrize("target", [AVX512, NEON], ids=["avx512", "neon"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_part_keeps_its_answer(case: Any, target: Target, eager: None, rng: np.random.Generator) -> None:
    log: list[str] = []

    def compiled(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), target)
        log.extend(kernel.moves)
        return kernel

    values = Inputs()
    for part in parts(values, rng, case):
        check([part], values, compiled, str(case))
    assert any(move.startswith("direct") for move in log), f"the recipe never ran: {log}"


@pytest.mark.parametrize("batch", [6, 7])
@pytest.mark.parametrize("long", [20, 40, 200], ids="K in blocks over {}".format)
def test_a_weights_gradient_sums_parts_of_k(batch: int, long: int, eager: None, monkeypatch: pytest.MonkeyPatch,
                                            rng: np.random.Generator) -> None:
    """Small results of long sums: K is cut among tasks, evenly or not, and the parts are joined in their order."""
    monkeypatch.setitem(cpu.LIMITS, "direct", replace(cpu.LIMITS["direct"], task_work=4000, long_k=long))
    values = Inputs()
    log: list[str] = []

    def compiled(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), AVX512)
        log.extend(kernel.moves)
        return kernel

    _, _, by_weight = parts(values, rng, (batch, 3, 5, (5, 5), (3, 3), dict(padding=1)))
    check([by_weight], values, compiled)
    assert any("k_parts" in move for move in log) == (long < batch * 25), log


# sizes of usual layers
IN_PLACE = {
    "3x3": (128, 32, 64, (10, 10), (3, 3), {}),
    "3x3, large image": (8, 64, 64, (56, 56), (3, 3), dict(padding=1)),
    "5x5": (32, 32, 32, (28, 28), (5, 5), {}),
    "1x1": (8, 64, 64, (28, 28), (1, 1), {}),
    "stride 2": (8, 64, 64, (56, 56), (3, 3), dict(stride=2, padding=1)),
}


def leaf(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32), device="CPU")


def families(result: Tensor) -> set[str]:
    """The tilings that its kernels get on a processor with AVX-512."""
    target = replace(AVX512, l2_bytes=2 << 20)
    return {move.split("(")[0] for item in result.schedule() for move in optimize(lower(item.ast), target).moves}


@pytest.mark.parametrize("name", IN_PLACE)
def test_gradients_by_weights_read_the_image_in_place(name: str) -> None:
    """From packed factors they took 2 to 5 times as long."""
    batch, inside, outside, image, kernel, options = IN_PLACE[name]
    x, w = leaf(batch, inside, *image), leaf(outside, inside, *kernel)
    result = x.conv2d(w, **options)
    by_weights, = (result * leaf(*result.shape)).sum().gradient(w)
    assert "direct" in families(by_weights)


@pytest.mark.parametrize("batch", [1, 8])
def test_pixels_of_a_strided_1x1_convolution_fill_vectors(batch: int) -> None:
    """Though lines are short: the next one follows in the result. Each pixel is read for one tap, for all panels."""
    assert families(leaf(batch, 256, 14, 14).conv2d(leaf(512, 256, 1, 1), stride=2)) == {"contract"}


@pytest.mark.parametrize("channels,size,pitch", [(3, 32, 32), (2, 28, 32), (3, 33, 48), (1, 14, 16)])
def test_no_vector_is_in_two_lines_of_an_image(channels: int, size: int, pitch: int) -> None:
    """Where sums are short, padding costs less than storing such a vector element by element."""
    x = Tensor.zeros(8, channels, size, size).contiguous().realize()
    w = Tensor.zeros(16, channels, 3, 3).contiguous().realize()
    kernel = optimize(lower(x.conv2d(w, padding=1).schedule()[0].ast), AVX512)
    assert f"pitch={pitch}" in kernel.moves[0], kernel.moves


def test_a_line_longer_than_a_cache_is_packed() -> None:
    result = leaf(2, 256, 1, 3000).conv2d(leaf(64, 256, 1, 3))
    assert "contract" in families(result) and "direct" not in families(result)


def test_a_long_line_has_its_lanes_along_the_line() -> None:
    """Not along the 9 taps, which took 10 times as long."""
    result = leaf(8, 32, 8192).conv2d(leaf(64, 32, 9), padding=4)
    assert "contract" in families(result) and "taps" not in families(result)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_gradients_of_a_transposed_convolution_are_two_contractions(stride: int) -> None:
    """Tap by tap, the one by the input wrote 16 times as many values as it has."""
    x, w = leaf(4, 32, 28, 28), leaf(32, 16, 4, 4)
    result = x.conv_transpose2d(w, stride=stride, padding=1)
    by_input, by_weight = (result * leaf(*result.shape)).sum().gradient(x, w)
    assert len(by_input.schedule(by_weight)) == 2
    assert "direct" in families(by_input) and "direct" in families(by_weight)


def test_the_gradient_of_patches_by_their_image_is_a_contraction() -> None:
    """Windows side by side are a reshape, but the sums of products under them are joined first."""
    x, w = leaf(4, 16, 32, 32), leaf(64, 16, 4, 4)
    [by_input] = x.conv2d(w, stride=4).square().sum().gradient(x)
    assert families(by_input) & {"contract", "direct"}


def test_the_channels_of_a_group_are_one_product_in_a_strided_gradient() -> None:
    """A loop over all channels is split into groups and their channels: else each channel would be a product by itself,
    with two by two remainders as its columns."""
    x, w = leaf(6, 20, 20, 45), leaf(192, 5, 7, 7)
    [by_input] = x.conv2d(w, stride=2, padding=3, groups=4).square().sum().gradient(x)
    bodies = [lower(item.ast).phases[0].body for item in by_input.schedule()]
    *_, product = [found for body in bodies if (found := recognize(body)) is not None]
    assert count(product.batch) == 4 and sorted([count(product.m), count(product.n)]) == [5 * 2 * 2, 6 * 10 * 23]


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("size, taps, dilation", [(11, 3, 1), (9, 2, 3), (8, 4, 2), (7, 5, 1)])
def test_a_strided_gradient_multiplies_no_zeros(size: int, taps: int, dilation: int, stride: int,
                                                rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by remainders, the products are those of the forward sum, where whole windows cover the image."""
    values = Inputs()
    whole = (size - 1) * stride + dilation * (taps - 1) + 1
    x, w = values.leaf(rng.uniform(-1, 1, (2, whole)).astype("float32")), values.leaf(
        rng.uniform(-1, 1, (3, taps)).astype("float32"))
    seen = x.window(1, taps, stride, dilation).reshape((2, 1, size, taps)).expand((2, 3, size, taps))
    out = (seen * w.reshape((1, 3, 1, taps)).expand((2, 3, size, taps))).sum((3,)).reshape((2, 3, size))
    seed = values.leaf(rng.uniform(-1, 1, out.shape).astype("float32"))
    found, = gradients(out, seed, [x])
    assert found is not None
    part, = join_sums(rewrite([found], ALGEBRA))
    products: list[int] = []

    def compiled(ast: UOp) -> Kernel:
        plain = lower(ast)
        nests = [nest for phase in plain.phases for nest in by_remainder(phase.body)]
        for nest in nests:
            text = [n for s in walk(nest) for e in expressions(s) for n in toposort([e])]
            assert not any(n.op is o.MOD for n in text), "no gate asks for a remainder"
            products.extend([int(times) for s, times in weighted(nest) if isinstance(s, Accumulate)])
        return Kernel(plain.name, plain.params, [Phase(nest) for nest in nests], plain.written)

    with monkeypatch.context() as alone:                    # one product with zeros, if that costs less, is another way
        alone.setattr(joined_remainders, "with_joined_remainders", lambda sinks, _: sinks)
        check([part], values, compiled)
    inside = size + -(-dilation * (taps - 1) // stride)      # positions at which a tap may still touch the image
    assert 2 * 3 * taps * size <= sum(products) <= 2 * 3 * taps * (inside + 1)


def test_more_remainders_than_nests_build_no_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a diagonal has as many remainders as the matrix has rows. Their nests were all built, and then
    given up because they were too many: a minute for `cholesky().diagonal()` of 500 rows."""
    from glassgrad.compiler.optimize.moves import split_by_remainder
    built: list[int] = []
    monkeypatch.setattr(split_by_remainder, "_nest", lambda *given: built.append(1))
    x = leaf(40, 40)
    [found] = (x @ x).diagonal().log().sum().gradient(x)
    for item in found.schedule():
        for phase in lower(item.ast).phases:
            assert by_remainder(phase.body) == [phase.body]
    assert not built


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", [
    (3, 17, 33, (13, 11), (3, 3), dict(padding=1)),
    (2, 16, 40, (15, 29), (5, 2), {}),
    (2, 40, 37, (9, 9), (3, 3), dict(stride=2, padding=1)),
    (2, 32, 64, (14, 17), (3, 3), dict(stride=3, dilation=2, padding=2, groups=2)),
    (5, 130, 20, (7, 7), (3, 3), dict(padding=1)),
    (2, 48, 48, (17, 16), (1, 1), dict(stride=2)),
    (2, 24, 48, (16, 19), (3, 3), dict(stride=2, padding=1, groups=24)),
    (1, 3, 64, (40, 40), (7, 7), dict(stride=4, padding=3))], ids=str)
def test_on_this_machine_against_pytorch(case: Any, dtype: str, rng: np.random.Generator, torch: Any) -> None:
    """With a bias and a relu, which join the kernel, from and into views."""
    batch, inside, outside, image, kernel, options = case
    shapes = [(batch, inside, *image), (outside, inside // options.get("groups", 1), *kernel), (outside,)]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    ours = [Tensor(a.swapaxes(0, -1).copy()).realize() for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    x, w, b = (t.transpose(0, -1) if t.ndim > 1 else t for t in ours)
    out, reference = x.conv2d(w, b, **options).relu(), torch.nn.functional.conv2d(*theirs, **options).relu()
    seed = rng.standard_normal(reference.shape).astype(dtype)
    reference.backward(torch.tensor(seed))
    found = (out * Tensor(seed)).sum().gradient(*ours)
    close = 2e-5 if dtype == "float32" else 1e-11
    for got, t in ((out, reference),
                   *[(g.transpose(0, -1) if g.ndim > 1 else g, t.grad) for g, t in zip(found, theirs)]):
        wanted = t.detach().numpy()
        np.testing.assert_allclose(got.numpy(), wanted, rtol=close, atol=close * max(1.0, float(np.abs(wanted).max())))
