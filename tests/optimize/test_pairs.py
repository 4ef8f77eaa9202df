"""Sums over pairs that are no products (product/pairs.py): recognized, tiled as products are, and refused otherwise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from loop_kernels import AVX512, HOPPER, NEON, Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import Target

Join = Callable[[Tensor, Tensor], Tensor]
JOINS: dict[str, Join] = {
    "squared distance": lambda x, y: (x - y).square(),
    "distance": lambda x, y: (x - y).abs(),
    "the larger": lambda x, y: x.maximum(y),
    "of computed sides": lambda x, y: ((x * 2).relu() - y.exp()).abs(),
    "not 0 of zeros": lambda x, y: (x + y + 1).square(),
    "of one side twice": lambda x, y: (x * y - x).square(),
}
TARGETS = {"avx512": AVX512, "neon": NEON, "hopper": HOPPER}


def kernels_of(join: Join, sizes: tuple[int, int, int], target: Target, rng: np.random.Generator,
               after: Callable[[Tensor], Tensor] = Tensor.sqrt) -> list[Kernel]:
    """The kernels of a sum over pairs, after their results were compared with the graph's."""
    m, n, k = sizes
    values, seen = Inputs(), list[Kernel]()
    x, y = (Tensor(values.leaf(rng.uniform(0, 1, (rows, k)).astype("float32"))) for rows in (m, n))

    def compiled(ast: UOp) -> Kernel:
        seen.append(optimize(lower(ast, keep_bytes=target.row_bytes), target))
        return seen[-1]
    result = after(join(x.unsqueeze(1), y.unsqueeze(0)).sum(-1) + 1)
    check(rewrite(written_out([result.uop]), ALGEBRA), values, compiled, f"{sizes}")
    return seen


@pytest.mark.parametrize("sizes", [(33, 67, 17), (40, 33, 70), (5, 31, 130)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("join", JOINS)
def test_any_pair_is_tiled(join: str, target: str, sizes: tuple[int, int, int], rng: np.random.Generator) -> None:
    *_, kernel = kernels_of(JOINS[join], sizes, TARGETS[target], rng)
    if min(sizes) > 30:
        tiled = kernel.moves[0].startswith(("contract(", "staged("))
        ends_with_zeros = target == "hopper"
        assert tiled == (not ends_with_zeros or join != "not 0 of zeros"), kernel.moves


@pytest.mark.parametrize("join", [
    lambda x, y: (x - y).square() * x.exp() * y,              # x, and its exponential
    lambda x, y: (x - y).square() * Tensor.arange(64),        # varies along k alone
    lambda x, y: (x[:, :, :64] - x.transpose(0, 1)[:, :, :64]).square(),
], ids=["two of a side", "weights", "one tensor"])
def test_other_sums_are_as_before(join: Join, rng: np.random.Generator) -> None:
    kernels_of(join, (64, 64, 64), AVX512, rng)


def test_windows_of_absolute_differences(rng: np.random.Generator) -> None:
    values, seen = Inputs(), list[Kernel]()
    x = Tensor(values.leaf(rng.uniform(-1, 1, (2, 8, 12, 13)).astype("float32"))).pad((1, 1, 1, 1))
    w = Tensor(values.leaf(rng.uniform(-1, 1, (16, 8, 3, 3)).astype("float32")))
    windows = x.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5).unsqueeze(1)
    result = (windows - w.reshape(1, 16, 1, 1, 8, 3, 3)).abs().sum((-3, -2, -1))

    def compiled(ast: UOp) -> Kernel:
        seen.append(optimize(lower(ast), AVX512))
        return seen[-1]
    check(rewrite(written_out([result.uop]), ALGEBRA), values, compiled)
    assert seen[-1].moves[0].startswith("contract(")
