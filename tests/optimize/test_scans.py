"""Running totals on groups of threads: trees in the interpreter, sources on the CPU with a detector of races."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import AVX512, HOPPER
from shim_device import needs_cxx

from glassgrad import Tensor
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.lower.loops import TASK, For, Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.runtime.gpu import nvrtc

FEW = replace(GPU, few_tasks=6, cut_steps=1 << 10)               # a GPU that few groups keep busy: rows are cut early
NUMPY = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate}


def kernel_of(result: Tensor, target: Target) -> Kernel:
    return optimize(lower(result.schedule()[0].ast), target)


def checked(x: np.ndarray, method: str, axis: int, target: Target) -> list[str]:
    """Compares the tree's result with NumPy's, in float64; the moves."""
    leaf = Tensor(x).realize()
    found = getattr(leaf, method)(axis)
    kernel = kernel_of(found[0] if method == "cummax" else found, target)
    out = np.full(x.size, 77, x.dtype)
    run_kernel(kernel, [out, x.ravel()])
    expected = NUMPY[method](x.astype("float64"), axis)
    np.testing.assert_allclose(out.reshape(x.shape), expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
    return kernel.moves


@pytest.mark.parametrize("method", NUMPY)
@pytest.mark.parametrize("n", [128, 131, 300, 2048, 2056, 4999])
def test_a_group_goes_along_a_row(method: str, n: int, rng: np.random.Generator) -> None:
    x = rng.uniform(0.95, 1.05, (2, n)).astype("float32")
    [scan] = checked(x, method, 1, GPU)
    assert scan.startswith("scan(loop=k0, tile=4, lanes=")


@pytest.mark.parametrize("shape, axis, count",
                         [((9000,), 0, 3), ((3, 9001), 1, 3), ((700, 40), 0, 3), ((2, 5, 700), 2, 1)])
def test_few_rows_are_cut_into_chunks(shape: tuple[int, ...], axis: int, count: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype("float32")
    moves = checked(x, "cumsum", axis, FEW)
    assert moves[0].startswith("chunks(" if count == 3 else "scan(")
    leaf = Tensor(x).realize()
    assert len(kernel_of(leaf.cumsum(axis), FEW).phases) == count


@pytest.mark.parametrize("shape", [(63, 1037), (8, 2048), (33, 999)])
def test_threads_down_columns_load_ahead_and_keep_all_processors_busy(shape: tuple[int, int],
                                                                     rng: np.random.Generator) -> None:
    checked(rng.uniform(0.95, 1.05, shape).astype("float32"), "cumsum", 0, replace(FEW, cut_steps=1 << 30))
    [(_, groups, threads, _)] = gpu_launch(kernel_of(Tensor.zeros(63, 20937).contiguous().realize().cumsum(0),
                                                     GPU)).phases
    assert groups > GPU.few_tasks // 2 and threads >= 64


def test_one_short_row_has_a_group(rng: np.random.Generator) -> None:
    assert checked(rng.standard_normal(20).astype("float32"), "cumsum", 0, GPU) == ["scan(loop=k0, tile=4, lanes=16)"]


def test_short_rows_have_a_thread_each(rng: np.random.Generator) -> None:
    moves = checked(rng.standard_normal((300, 20)).astype("float32"), "cumsum", 1, GPU)
    assert moves[0].startswith("lanes(loop=i0, ")


def test_what_is_stored_may_be_computed_and_reversed(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 700)).astype("float32")
    leaf = Tensor(x).realize()
    kernel = kernel_of((leaf.flip(1) * 2).cumsum(1), GPU)
    out = np.zeros(x.size, "float32")
    run_kernel(kernel, [out, x.ravel()])
    np.testing.assert_allclose(out.reshape(x.shape), np.cumsum(2 * x[:, ::-1].astype("float64"), 1), atol=1e-3)
    assert kernel.moves[0].startswith("scan(")


def test_integers_and_small_floats(rng: np.random.Generator) -> None:
    x = rng.integers(-9, 9, (2, 1500))
    assert checked(x, "cumsum", 1, GPU)[0].startswith("scan(")
    half = Tensor(x.astype("float16")).realize()
    kernel = kernel_of(half.cumsum(1), HOPPER)
    out = np.zeros(x.size, "float32")                   # they are added up as float32
    run_kernel(kernel, [out, x.astype("float16").ravel()])
    np.testing.assert_array_equal(out.reshape(x.shape), np.cumsum(x, 1))


@needs_cxx
def test_threads_wait_for_each_other(shims: None, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3000)).astype("float32")
    for name in ("CUDA_SHIM", "METAL_SHIM"):
        found = Tensor(x, device=name).cumsum(1).numpy()
        np.testing.assert_allclose(found, np.cumsum(x.astype("float64"), 1), atol=1e-3)


@needs_nvrtc
def test_nvidias_compiler_takes_it_and_loads_16_bytes() -> None:
    leaf = Tensor.zeros(300, 4096).contiguous().realize()
    source = make_source(kernel_of(leaf.cumsum(1), HOPPER), HOPPER, "cuda")
    assert "load_f32_4(data1" in source and "store_f32_4(data0" in source
    assert nvrtc.compile_cuda(source, "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.parametrize("shape", [(4, 512, 372), (300, 5000)])
def test_running_totals_of_columns_are_tasks_of_a_cpu(shape: tuple[int, ...]) -> None:
    """Columns are independent: vectors go along them, and workers share them."""
    kernel = kernel_of(Tensor.empty(*shape).cumsum(0), replace(AVX512, workers=16))
    [loop] = kernel.phases[0].body
    assert isinstance(loop, For) and loop.kind == TASK and loop.range.arg.size >= 16
    assert any(move.startswith("lanes(loop=i1") for move in kernel.moves)


@pytest.mark.parametrize("shape", [(3, 100), (5, 17), (7, 1), (2, 33), (40, 1000)])
@pytest.mark.parametrize("method", list(NUMPY))
def test_running_totals_of_columns_on_a_cpu(shape: tuple[int, int], method: str, rng: np.random.Generator) -> None:
    few = replace(AVX512, workers=4, task_steps=16)
    checked(rng.standard_normal(shape).astype(np.float32), method, 0, few)
