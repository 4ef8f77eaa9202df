"""Products on a unit that multiplies out of registers: trees in the interpreter, sources on the CPU and in NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc, spilled_bytes
from loop_kernels import HOPPER, Inputs, check
from shim_device import needs_cxx

from glassgrad import Tensor, Variable
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_source
from glassgrad.runtime.gpu import nvrtc

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
    return optimize(lower(ast), AMPERE)


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
    check(rewrite(written_out([make(*operands).uop]), ALGEBRA), values, compiled, name)
    assert any(kernel.moves[0].startswith("warps(") for kernel in seen), [k.moves for k in seen]


@pytest.mark.parametrize("family, dtype", [("warps", BF16), ("staged", dtypes.float32)])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("both", [False, True])
def test_rows_and_columns_may_end_at_a_value(family: str, dtype: DType, n: int, both: bool) -> None:
    """The last tile or block of 64 is gated: what lies past the value is no number, and nothing is stored."""
    most, length, rng = 200, Variable("n", 1, 200).bind(n), np.random.default_rng(n)
    shapes = ((most, 80), (most if both else 72, 80), (most, most if both else 72))
    x, w, more = (Tensor.zeros(*shape, dtype=dtype).contiguous().realize() for shape in shapes)
    columns = n if both else 72
    out = x[:length] @ (w[:length] if both else w).T + (more[:length, :length] if both else more[:length])
    kernel = tree(out.schedule()[-1].ast)
    few = ["staged"] if family == "warps" and not both else []                     # up to 16 rows
    assert [move.split("(")[0] for move in kernel.moves] == [*few, family]
    values = [(rng.integers(-8, 9, shape) / 8).astype("float32") for shape in shapes]
    a, b, c = (v.astype("float64") for v in values)
    wanted = a[:n] @ b[:columns].T + c[:n, :columns]
    for array, ends in zip(values, ((n,), (columns,), (n, columns))):
        array[ends[0]:] = np.nan
        if len(ends) == 2:
            array[:, ends[1]:] = np.nan
    stored = [v.ravel() if dtype is not BF16 else (v.ravel().view(np.uint32) >> 16).astype(np.uint16) for v in values]
    result = np.zeros(shapes[2], np.dtype(dtype.format)).ravel()
    run_kernel(kernel, [result, *stored, np.array(n, np.int64)])
    got = result.reshape(shapes[2])
    got = got if dtype is not BF16 else (got.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(got[:n, :columns], wanted, rtol=1e-2 if dtype is BF16 else 1e-5, atol=1e-5)
    assert not got[n:].any() and not got[:, columns:].any()


def test_a_chip_with_a_faster_unit_takes_that() -> None:
    a, b = (Tensor.zeros(512, 512, dtype="bfloat16").contiguous().realize() for _ in range(2))
    ast = (a @ b).schedule()[-1].ast
    assert optimize(lower(ast), HOPPER).moves[0].startswith("boxes(")
    assert optimize(lower(ast), AMPERE).moves[0].startswith("warps(")
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


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nvidias_compiler_takes_tiles_that_end_at_values(dtype: str) -> None:
    x, w = (Tensor.zeros(*shape, dtype=dtype).contiguous().realize() for shape in ((304, 96), (96, 72)))
    for out in (x[:Variable("n", 1, 304).bind(5)] @ w, w.T @ x[:Variable("n", 1, 304).bind(5)].T):
        source = make_source(optimize(lower(out.schedule()[-1].ast), AMPERE), AMPERE, "cuda")
        assert nvrtc.compile_cuda(source, "sm_80")[:4] == b"\x7fELF"
