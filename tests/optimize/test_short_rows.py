"""Sums of many short rows by groups of threads: the tree, its results, and what is left as it was."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import Tensor
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_source

ROWS = 64 * GPU.few_tasks


@pytest.mark.parametrize("shape", [(ROWS, 128), (ROWS, 32), (4, ROWS // 4, 64)], ids=str)
def test_threads_read_neighbouring_pieces(shape: tuple[int, ...]) -> None:
    x, y = (Tensor.zeros(*shape).contiguous().realize() for _ in range(2))
    [item] = ((x * y).sum(-1) * 2 + 1).schedule()
    kernel = optimize(lower(item.ast), GPU)
    assert kernel.moves == ["row_pieces(rows=64, piece=4)"]
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    out = np.zeros(ROWS, np.float32)
    run_kernel(kernel, [out, left.ravel(), right.ravel()])
    wanted = (left.astype(np.float64) * right).sum(-1).ravel() * 2 + 1
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    assert "load_f32_4" in make_source(kernel, GPU, "cuda")


@pytest.mark.parametrize("shape, axis", [((ROWS, 100), 1), ((ROWS // 2, 128), 1), ((ROWS + 1, 128), 1),
                                         ((128, ROWS), 0)])
def test_other_rows_are_left_as_they_are(shape: tuple[int, int], axis: int) -> None:
    [item] = Tensor.zeros(*shape).contiguous().realize().sum(axis).schedule()
    assert not any(move.startswith("row_pieces") for move in optimize(lower(item.ast), GPU).moves)
