"""Other types on a GPU's matrix unit: bytes, whose products are exact, and float32 where a program allows rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from fake_drivers import FakeDriver
from loop_kernels import HOPPER
from shim_device import needs_cxx

from glassgrad import Context, Tensor
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.matrix_units import FOUR_WORDS, units_of
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.dialects import CUDA
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.runtime.gpu import cuda, nvrtc

FEATURES = frozenset({"sm_90a", "tf32"})
ROUNDING = replace(HOPPER, features=FEATURES, units=units_of(FEATURES))
LETTERS = {"float32": "m64n64k8.f32.tf32.tf32", "int8": "m64n64k32.s32.s8.s8", "uint8": "m64n64k32.s32.u8.u8"}


def factors(dtype: str, m: int, n: int, k: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    low = {"float32": -1000, "int8": -128, "uint8": 0}[dtype]
    a, b = (rng.integers(low, low + 256, shape).astype(dtype) for shape in ((m, k), (k, n)))
    return a, b


def product(a: np.ndarray, b: np.ndarray, right_along_k: bool, target: Target) -> Kernel:
    left, right = Tensor(a).realize(), (Tensor(np.ascontiguousarray(b.T)).realize().T if right_along_k
                                        else Tensor(b).realize())
    total = "float32" if a.dtype == np.float32 else "int32"
    return optimize(lower((left.cast(total) @ right.cast(total)).schedule()[-1].ast), target)


@pytest.mark.parametrize("dtype", LETTERS)
@pytest.mark.parametrize("m, n, k, right_along_k", [(128, 256, 256, False), (130, 100, 70, False), (64, 72, 320, True)])
def test_products_of_other_types(dtype: str, m: int, n: int, k: int, right_along_k: bool,
                                 rng: np.random.Generator) -> None:
    a, b = factors(dtype, m, n, k, rng)
    kernel = product(a, b, right_along_k, ROUNDING)
    out = np.zeros(m * n, "float32" if dtype == "float32" else "int32")
    run_kernel(kernel, [out, a.ravel(), (b.T if right_along_k else b).ravel()])
    exact = a.astype("float64") @ b.astype("float64")
    np.testing.assert_allclose(out.reshape(m, n), exact, rtol=1e-5 if dtype == "float32" else 0,
                               atol=1e-5 * np.abs(exact).max() if dtype == "float32" else 0)
    assert kernel.moves[0].startswith("boxes(") and LETTERS[dtype] in make_source(kernel, ROUNDING, "cuda")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_both_factors_lie_along_k(dtype: str, rng: np.random.Generator) -> None:
    """One that does not is transposed first: as many neighbours as memory brings at once, by each thread."""
    a, b = factors(dtype, 128, 128, 512, rng)
    assert len(product(a, b, True, ROUNDING).phases) == 1
    kernel = product(a, b, False, ROUNDING)
    assert len(kernel.phases) == 2 and "left=shared" in kernel.moves[0] and "right=shared" not in kernel.moves[0]
    assert all(m.dtype == dtype and m.strides[0] % 128 == 0 for m in gpu_launch(kernel).maps)


@pytest.mark.parametrize("m, n, k", [(128, 128, 512), (132, 100, 72), (64, 320, 96)])
@pytest.mark.parametrize("left_along_k, right_along_k", [(True, False), (False, True), (False, False)])
def test_a_factor_of_words_that_lies_across_k_is_the_left_one(
        m: int, n: int, k: int, left_along_k: bool, right_along_k: bool, rng: np.random.Generator) -> None:
    """Threads read its words, so it is not stored first; of two such factors, the right one is."""
    a, b = rng.standard_normal((m, k)).astype("float32"), rng.standard_normal((k, n)).astype("float32")
    left, right = (Tensor(x).realize() if along else Tensor(np.ascontiguousarray(x.T)).realize().T
                   for x, along in ((a, left_along_k), (b, not right_along_k)))
    kernel = optimize(lower((left @ right).schedule()[-1].ast), ROUNDING)
    assert "left=shared" in kernel.moves[0] and len(kernel.phases) == (1 if left_along_k or right_along_k else 2)
    assert "left15 = *(const u32 *)" in make_source(kernel, ROUNDING, "cuda")
    out = np.zeros(m * n, "float32")
    run_kernel(kernel, [out, (a if left_along_k else a.T).ravel(), (b.T if right_along_k else b).ravel()])
    np.testing.assert_allclose(out.reshape(m, n), a.astype("float64") @ b, rtol=1e-4, atol=1e-4)


def test_threads_read_each_word_of_a_left_factor_once() -> None:
    """As the instruction has it: register 1 is 8 rows below register 0, registers 2 and 3 are 4 further along k."""
    row, k = FOUR_WORDS.row, FOUR_WORDS.column
    places = {(row(lane, r), k(lane, r)) for lane in range(128) for r in range(FOUR_WORDS.registers)}
    assert places == {(i, j) for i in range(64) for j in range(8)}
    assert [(row(37, r), k(37, r)) for r in range(4)] == [(17, 1), (25, 1), (17, 5), (25, 5)]


def test_a_few_steps_of_the_unit_are_written_out(rng: np.random.Generator) -> None:
    """Copies that refill memory in a loop do not keep it from that."""
    source = make_source(product(*factors("int8", 128, 256, 2048, rng), True, ROUNDING), ROUNDING, "cuda")
    assert "#pragma unroll 4\n" in source


def test_float32_is_not_rounded_unless_a_program_says_so(rng: np.random.Generator) -> None:
    a, b = factors("float32", 256, 256, 256, rng)
    assert product(a, b, True, HOPPER).moves[0].startswith("staged(")
    assert product(a, b, True, ROUNDING).moves[0].startswith("boxes(")


@needs_cxx
@needs_nvrtc
def test_the_setting_decides_and_kernels_are_kept_apart() -> None:
    device = cuda.CudaDevice("CUDA", FakeDriver(cuda.CudaDevice.names, CUDA))  # type: ignore[arg-type]
    usual, machine = device.target, device.machine
    with Context(TF32=1):
        assert device.target.features == usual.features | {"tf32"} and device.machine != machine
    assert device.target is usual and device.machine == machine


@needs_nvrtc
@pytest.mark.parametrize("dtype", LETTERS)
def test_nvidias_compiler_takes_them(dtype: str, rng: np.random.Generator) -> None:
    a, b = factors(dtype, 512, 512, 512, rng)
    source = make_source(product(a, b, False, ROUNDING), ROUNDING, "cuda")
    assert nvrtc.compile_cuda(source, "sm_90a")[:4] == b"\x7fELF"
