"""How GPU kernels divide, round and move values: instructions that are not exact, pairs of small floats, addresses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import HOPPER
from shim_device import ShimDevice, needs_cxx, run_kernel, runtime

from glassgrad import Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import Kernel, Store, counter, load
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.dialects import HIP
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.compiler.render.gpu.skipped_rounding import is_ordinary, rounded_divisions
from glassgrad.runtime.gpu import nvrtc

SMALL = (dtypes.float16, dtypes.bfloat16)
MEMORY = UOp(o.LOCAL, dtypes.float32, (), None)


def optimized(make: Callable[[Tensor], Tensor], dtype: str, *shape: int) -> Kernel:
    leaf = Tensor.zeros(*shape, dtype=dtype).contiguous().realize()
    return optimize(lower(make(leaf).schedule()[-1].ast), HOPPER)


def source_of(make: Callable[[Tensor], Tensor], dtype: str, *shape: int) -> str:
    return make_source(optimized(make, dtype, *shape), HOPPER, "cuda")


# -- divisions -------------------------------------------------------------------------------------------------------
def test_a_division_is_exact_unless_every_use_of_it_is_rounded() -> None:
    x, y = (load(MEMORY, counter(name, 8)) for name in "xy")
    quotient = x / y
    rounded, inverse = (quotient * 2.0).cast(dtypes.bfloat16), (x + 1.0).recip()

    def found(*values: UOp) -> set[UOp]:
        return rounded_divisions([Store(MEMORY, counter("i", 8), value) for value in values], SMALL)
    assert found(rounded) == {quotient}
    assert found(rounded, quotient) == set()                                   # stored as float32 too
    assert found((quotient < 1.0).where(x, y).cast(dtypes.float16)) == set()   # a comparison sees every bit
    assert found(quotient.alu(o.TRUNC).cast(dtypes.float16)) == set()
    assert found((quotient < 1.0).where(inverse, y).cast(dtypes.float16)) == {inverse}
    assert rounded_divisions([Store(MEMORY, counter("i", 8), rounded)], ()) == set()


def square(x: UOp) -> UOp:
    return x * x


@pytest.mark.parametrize("value, ordinary", [
    (lambda x: square(x.maximum(-4.0).minimum(4.0)) + 1.0, True),
    (lambda x: square(x) + 1.0, False),                       # infinite where x is
    (lambda x: x.maximum(-4.0).minimum(4.0) + 3.0, False),    # 0 at -3
    (lambda x: x.maximum(1e-35), False),
    (lambda x: x.maximum(0.5).minimum(2.0).mulacc(const(2.0, dtypes.float32), const(1.0, dtypes.float32)), True),
])
def test_what_is_known_of_a_denominator(value: Callable[[UOp], UOp], ordinary: bool) -> None:
    assert is_ordinary(value(load(MEMORY, counter("x", 8)))) is ordinary


def test_gelu_of_small_floats_takes_no_exact_division() -> None:
    exact, rounded = (source_of(lambda x: x.gelu(), dtype, 64, 1024) for dtype in ("float32", "bfloat16"))
    assert "reciprocal" not in exact and ") / " in exact
    assert "ordinary_reciprocal(" in rounded and ") / " not in rounded
    assert "fmaf(fmaf(fmaf(" in rounded
    assert "quotient(" in source_of(lambda x: x / (x + 3), "float16", 64, 1024)
    assert "reciprocal(" in source_of(lambda x: x.sigmoid(), "bfloat16", 64, 1024)


# -- wide accesses ---------------------------------------------------------------------------------------------------
def test_small_floats_are_rounded_in_pairs_where_they_are_stored() -> None:
    source = source_of(lambda x: x * 2, "bfloat16", 512, 4096)
    assert "cvt.rn.bf16x2.f32" in source and "cvt.rn.bf16.f32" not in source
    assert "cvt.rn.f16x2.f32" in source_of(lambda x: x * 2, "float16", 512, 4096)


def test_truth_values_are_read_and_stored_many_at_once() -> None:
    stored = source_of(lambda x: x > 0, "float32", 512, 4096)
    assert "store_u8_8(data0" in stored and stored.count("load_f32_4(data1") == 2
    assert "load_u8_8(data1" in source_of(lambda x: x.where(1.0, 0.0).cast("bfloat16"), "bool", 512, 4096)
    assert "store_u8_16(data0" in source_of(lambda x: x.logical_not(), "bool", 512, 4096)


def test_where_memory_begins_is_looked_at_once() -> None:
    source = source_of(lambda x: x.sum(0), "float32", 4096, 4096)
    assert source.count("% 16 == 0") == 1 and "load_f32_4_once(data1" in source
    product = Tensor.zeros(512, 512, dtype="bfloat16").contiguous().realize()
    kernel = optimize(lower((product @ product).schedule()[-1].ast), HOPPER)
    assert make_source(kernel, HOPPER, "cuda").count("const bool aligned = ") == 1


@needs_cxx
@pytest.mark.parametrize("begin", [0, 1, 2, 3])
def test_memory_may_begin_anywhere(begin: int) -> None:
    """A kernel with wide accesses, on arrays that begin at multiples of 16 bytes or not."""
    n = 4096
    kernel = optimized(lambda x: x * 2 + 1, "float32", n)
    source = make_source(kernel, GPU, "hip")
    shim = ShimDevice("HIP_SHIM", HIP)
    [(name, groups, threads, group_bytes)] = gpu_launch(kernel).phases
    [function] = shim.load(shim.compile_source(source), [name])
    memory = np.zeros(2 * n + 16, np.float32)
    first = -memory.ctypes.data % 16 // 4
    x, out = memory[first + begin:][:n], memory[first + n + 4:][:n]
    x[:] = np.arange(n)
    values = np.array([out.ctypes.data, x.ctypes.data, runtime().gpu_scratch()], np.uint64)
    ranges = [(memory.ctypes.data, memory.ctypes.data + memory.nbytes)]
    run_kernel(function, [values.ctypes.data + 8 * i for i in range(3)], ranges, groups, threads, group_bytes)
    np.testing.assert_array_equal(out, np.arange(n) * 2 + 1)


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_nvidias_compiler_takes_them(architecture: str) -> None:
    for make in (lambda x: x.gelu(), lambda x: (x / (x + 3)).sigmoid().relu(), lambda x: x.sum(0)):
        assert nvrtc.compile_cuda(source_of(make, "bfloat16", 256, 2048), architecture)[:4] == b"\x7fELF"
