"""Products on a unit that multiplies out of registers: trees in the interpreter, sources on the CPU and in NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc, spilled_bytes
from loop_kernels import HOPPER, Inputs, check
from shim_device import needs_cxx

from glassgrad import Tensor
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_source

AMPERE = replace(GPU, features=frozenset({"sm_80"}), units=units_of({"sm_80"}))
BF16, F16 = dtypes.bfloat16, dtypes.float16
KERNELS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], DType]] = {
    "a product": (lambda a, b: a @ b, ((128, 256), (256, 192)), BF16),
    "left transposed": (lambda a, b: a.T @ b, ((192, 136), (192, 128)), F16),
    "right transposed": (lambda a, b: a @ b.T, ((136, 192), (128, 192)), BF16),
    "both transposed": (lambda a, b: a.T @ b.T, ((192, 136), (128, 192)), F16),
    "a batch": (lambda a, b: a @ b, ((3, 72, 128), (3, 128, 64)), BF16),
    "ragged": (lambda a, b: a @ b, ((133, 111), (111, 97)), BF16),
    "bias and activation": (lambda a, b, c: (a @ b + c).relu(), ((130, 72), (72, 104), (104,)), BF16),
    "into float32": (lambda a, b: a.matmul(b, dtype=dtypes.float32), ((128, 64), (64, 128)), BF16),
    "a prologue": (lambda a, b: (a * 2 + 1).relu() @ b, ((96, 128), (128, 64)), BF16),
}


def tree(ast: UOp) -> Kernel:
    return optimize(lower(ast), AMPERE, products=False)


def large(dtype: str = "bfloat16") -> Kernel:
    a, b = (Tensor.zeros(4096, 4096, dtype=dtype).contiguous().realize() for _ in range(2))
    return tree((a @ b).schedule()[-1].ast)


@pytest.mark.parametrize("name", KERNELS)
def test_trees_compute_the_same(name: str) -> None:
    make, shapes, dtype = KERNELS[name]
    rng, values, seen = np.random.default_rng(len(name)), Inputs(), list[Kernel]()       # types hold these exactly
    operands = [Tensor(values.leaf((rng.integers(-64, 65, shape) / 64).astype("float32"), dtype)) for shape in shapes]

    def compiled(ast: UOp) -> Kernel:
        seen.append(tree(ast))
        return seen[-1]
    check(rewrite([make(*operands).uop], ALGEBRA), values, compiled, name)
    assert any(kernel.moves[0].startswith("warps(") for kernel in seen), [k.moves for k in seen]


def test_a_chip_with_a_faster_unit_takes_that() -> None:
    a, b = (Tensor.zeros(512, 512, dtype="bfloat16").contiguous().realize() for _ in range(2))
    ast = (a @ b).schedule()[-1].ast
    assert optimize(lower(ast), HOPPER, products=False).moves[0].startswith("boxes(")
    assert optimize(lower(ast), AMPERE, products=False).moves[0].startswith("warps(")
    assert large().moves == ["warps(rows=8, vectors=16, unit=mma_m16n8k16_bf16, left=shared, right=shared, k_block=32, "
                             "stages=2)"]


@needs_cxx
def test_the_source_computes_the_same_without_races(shims: None, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-8, 9, shape).astype("float32") for shape in ((70, 50), (50, 72)))
    found = Tensor(a, device="CUDA_SHIM").cast("float16") @ Tensor(b, device="CUDA_SHIM").cast("float16")
    np.testing.assert_array_equal(found.float().numpy(), a @ b)


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_nvidias_compiler_keeps_all_in_registers(dtype: str) -> None:
    """All but a few words, where memory does not begin at multiples of 16 bytes."""
    source = make_source(large(dtype), AMPERE, "cuda")
    assert "load_u16_8(data1" in source and max(spilled_bytes(source, "sm_80")) <= 64
