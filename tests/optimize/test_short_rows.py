"""Many short rows by groups of threads: the tree, its results, and what is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from glassgrad import Tensor
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.plain import short_rows
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_source

SMALL = replace(GPU, few_tasks=1)            # few rows are many
CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1) * 2 + 1, "max": lambda x: x.max(-1), "argmax": lambda x: x.argmax(-1),
    "var": lambda x: x.var(-1), "softmax": lambda x: x.softmax(-1), "layernorm": lambda x: x.layernorm(),
    "log_softmax": lambda x: x.log_softmax(-1)}


def compiled(make: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: str = "float32", target: Target = SMALL) \
        -> Kernel:
    tensors = [Tensor.zeros(*shape, dtype=dtype).contiguous().realize() for shape in shapes]
    [item] = make(*tensors).schedule()
    return optimize(lower(item.ast), target)


def shares_rows(kernel: Kernel) -> bool:
    return len(kernel.moves) == 1 and kernel.moves[0].startswith("parts(")


@pytest.mark.parametrize("rows, size", [(700, 5), (513, 13), (260, 37), (256, 64), (65, 100), (64, 128), (41, 199)])
@pytest.mark.parametrize("chain", CHAINS)
def test_rows_share_groups_and_compute_the_same(chain: str, rows: int, size: int, rng: np.random.Generator) -> None:
    kernel = compiled(CHAINS[chain], (rows, size))
    assert shares_rows(kernel), kernel.moves
    x = rng.standard_normal((rows, size)).astype(np.float32)
    wanted = CHAINS[chain](Tensor(x, device="CPU")).numpy()
    out = np.zeros(wanted.size, wanted.dtype)
    run_kernel(kernel, [out, x.ravel()])
    np.testing.assert_allclose(out, wanted.ravel(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 66, 64), (2, 3, 50, 36)], ids=str)
def test_rows_of_several_axes_and_several_inputs(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    weights = shape[-1:]
    kernel = compiled(lambda x, y, w: (x * w + y).softmax(-1), shape, shape, weights)
    assert shares_rows(kernel), kernel.moves
    x, y, w = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape, weights))
    out = np.zeros(x.size, np.float32)
    run_kernel(kernel, [out, x.ravel(), w.ravel(), y.ravel()])
    powers = np.exp(x.astype(np.float64) * w + y)
    np.testing.assert_allclose(out, (powers / powers.sum(-1, keepdims=True)).ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype, size, reads", [("float32", 64, "load_f32_4"), ("bfloat16", 64, "load_u16_8"),
                                                ("float32", 38, "load_f32_2"), ("float32", 37, "data1[thread")])
def test_rows_are_copied_in_pieces_that_divide_them(dtype: str, size: int, reads: str) -> None:
    kernel = compiled(lambda x: x.softmax(-1), (GPU.few_tasks * 64, size), dtype=dtype, target=GPU)
    assert shares_rows(kernel)
    assert reads in make_source(kernel, GPU, "cuda")


@pytest.mark.parametrize("shape, axis, why", [
    ((GPU.few_tasks, 100), 1, "few rows"), ((GPU.few_tasks * 64, 4), 1, "a thread reads a row at once"),
    ((GPU.few_tasks * 64, short_rows.LONGEST + 1), 1, "long rows"), ((128, GPU.few_tasks * 64), 0, "columns")])
def test_other_rows_are_left_as_they_are(shape: tuple[int, int], axis: int, why: str) -> None:
    assert not shares_rows(compiled(lambda x: x.sum(axis), shape, target=GPU)), why


def test_a_group_has_no_more_threads_than_the_device_allows() -> None:
    kernel = compiled(lambda x: x.softmax(-1), (700, 37), target=replace(SMALL, vector_bytes=4 * 64))
    assert kernel.moves == ["parts(threads=64, parts=4)"]


def test_rows_that_do_not_follow_one_another_are_left_as_they_are() -> None:
    assert not shares_rows(compiled(lambda x: x[:, :40].softmax(-1), (300, 64)))
