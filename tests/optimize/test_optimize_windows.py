"""Windows that one row of weights goes over: depthwise convolutions and their gradients, those of a single channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import convolve
from loop_kernels import AVX512, NEON, Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.graph.gradient import gradients
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds

# batch, channels, out channels, image, kernel, what else
CASES: list[tuple[int, int, int, tuple[int, int], tuple[int, int], dict[str, Any]]] = [
    (2, 3, 3, (7, 17), (3, 3), dict(groups=3, padding=1)),
    (2, 2, 2, (9, 33), (5, 2), dict(groups=2)),
    (1, 4, 4, (4, 5), (3, 3), dict(groups=4, padding=((0, 2), (1, 0)))),
    (2, 2, 2, (9, 8), (3, 3), dict(groups=2, padding=2, dilation=2)),
    (3, 1, 5, (8, 11), (5, 5), {}),
    (2, 3, 1, (6, 6), (3, 4), dict(padding=1)),
    (4, 30, 1, (5, 5), (3, 3), dict(padding=1)),                             # a long sum
]


@pytest.mark.parametrize("target", [AVX512, NEON], ids=["avx512", "neon"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_part_keeps_its_answer(case: Any, target: Target, monkeypatch: pytest.MonkeyPatch,
                                     rng: np.random.Generator) -> None:
    monkeypatch.setitem(cpu.LIMITS, "window", TilingThresholds(task_work=500, most_tasks=64, long_k=40, k_block=20))
    monkeypatch.setattr(cpu, "LEAST_OUTER", 1)
    log: list[str] = []

    def compiled(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), target)
        log.extend(kernel.moves)
        return kernel

    batch, inside, outside, image, kernel, options = case
    values = Inputs()
    x = values.leaf(rng.uniform(-1, 1, (batch, inside, *image)).astype("float32"))
    w = values.leaf(rng.uniform(-1, 1, (outside, inside // options.get("groups", 1), *kernel)).astype("float32"))
    out = convolve(x, w, **options)
    seed = values.leaf(rng.uniform(-1, 1, out.shape).astype("float32"))
    found, = gradients(out, seed, [x])
    assert found is not None
    for part in (out.maximum(0.0) + seed, found):
        check([join_sums(rewrite([part], ALGEBRA))[0]], values, compiled, str(case))
    assert any(move.startswith("window") for move in log), f"the recipe never ran: {log}"


@pytest.mark.parametrize("long", [10, 1000], ids="rows joined over {}".format)
@pytest.mark.parametrize("target", [AVX512, NEON], ids=["avx512", "neon"])
@pytest.mark.parametrize("case", [
    (2, 3, 3, (7, 17), (3, 3), dict(groups=3, padding=1)),
    (2, 2, 2, (9, 33), (5, 2), dict(groups=2)),
    (1, 4, 4, (4, 49), (3, 3), dict(groups=4, padding=((0, 2), (1, 0)))),
    (3, 2, 2, (9, 20), (3, 5), dict(groups=2, padding=((2, 2), (4, 4)), dilation=2)),
    (2, 2, 2, (13, 11), (4, 4), dict(groups=2, padding=3))], ids=str)
def test_taps_of_one_image_each(case: Any, target: Target, long: int, monkeypatch: pytest.MonkeyPatch,
                                rng: np.random.Generator) -> None:
    monkeypatch.setitem(cpu.LIMITS, "taps", TilingThresholds(task_work=500, most_tasks=64, long_k=long))
    monkeypatch.setattr(cpu, "LEAST_OUTER", 1)
    log: list[str] = []

    def compiled(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), target)
        log.extend(kernel.moves)
        return kernel

    batch, channels, _, image, kernel, options = case
    values = Inputs()
    x = values.leaf(rng.uniform(-1, 1, (batch, channels, *image)).astype("float32"))
    w = values.leaf(rng.uniform(-1, 1, (channels, 1, *kernel)).astype("float32"))
    out = convolve(x, w, **options)
    seed = values.leaf(rng.uniform(-1, 1, out.shape).astype("float32"))
    found, = gradients(out, seed, [w])
    assert found is not None
    check([join_sums(rewrite([found * 2.0], ALGEBRA))[0]], values, compiled, str(case))
    assert any(move.startswith("taps") for move in log), f"the recipe never ran: {log}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", [
    (4, 16, 16, (13, 37), (3, 3), dict(groups=16, padding=1)),
    (2, 8, 8, (29, 16), (5, 5), dict(groups=8)),
    (3, 7, 7, (11, 50), (3, 2), dict(groups=7, dilation=(2, 3), padding=(2, 1))),
    (9, 1, 20, (23, 19), (5, 5), {}),
    (8, 60, 1, (12, 31), (5, 5), dict(padding=2)),
    (4, 16, 16, (28, 28), (5, 5), dict(groups=16, padding=2, stride=2)),
    (3, 9, 9, (29, 70), (3, 3), dict(groups=9, padding=1, stride=(2, 3))),
    (2, 8, 8, (30, 66), (7, 7), dict(groups=8, stride=4))], ids=str)
def test_on_this_machine_against_pytorch(case: Any, dtype: str, rng: np.random.Generator, torch: Any) -> None:
    """From and into views, with a bias and a relu."""
    batch, inside, outside, image, kernel, options = case
    shapes = [(batch, inside, *image), (outside, inside // options.get("groups", 1), *kernel), (outside,)]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        x = Tensor(arrays[0].transpose(order).copy()).realize()
        w, b = Tensor(arrays[1]), Tensor(arrays[2])
        theirs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
        reference = torch.nn.functional.conv2d(*theirs, **options).relu()
        seed = rng.standard_normal(reference.shape).astype(dtype)
        reference.backward(torch.tensor(seed, dtype=torch.float64))
        out = x.permute(order).conv2d(w, b, **options).relu()
        by_x, by_w = (out * Tensor(seed)).sum().gradient(x, w)
        close = 2e-5 if dtype == "float32" else 1e-11
        for found, wanted in ((out, reference), (by_x.permute(order), theirs[0].grad), (by_w, theirs[1].grad)):
            wanted = wanted.detach().numpy()
            assert np.abs(found.numpy() - wanted).max() <= close * np.abs(wanted).max()
