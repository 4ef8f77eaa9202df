"""WGSL: the text of kernels. What runs through `wgpu`: test_webgpu.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from wgsl_reference import held, message

from glassgrad import DeviceError, Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import index
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LOOP, Assign, For, Kernel, Phase, Store, counter, load, register
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.launch import packed_from
from glassgrad.compiler.render.wgsl.loop_rounds import unrolled
from glassgrad.compiler.render.wgsl.wgsl_int64 import HELPERS
from glassgrad.runtime.kernel_source import kernel_of


def text_of(result: Tensor, target: Any = GPU) -> str:
    """The kernel of a result in WGSL."""
    [item] = result.schedule()
    return make_source(kernel_of(item.ast, target, products=False), target, "wgsl")


def test_the_text_of_a_sum() -> None:
    x, y = held([1, 2, 3]), held([4, 5, 6])
    assert text_of(x + y) == """\
@group(0) @binding(0) var<uniform> args: array<vec4<u32>, 3>;
@group(0) @binding(1) var<storage, read_write> data0: array<u32>;
@group(0) @binding(2) var<storage, read_write> data1: array<u32>;
@group(0) @binding(3) var<storage, read_write> data2: array<u32>;

@compute @workgroup_size(32)
fn map_3_0(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>, \
@builtin(num_workgroups) groups: vec3<u32>) {
  let thread = i32(local);
  let data1_at = i32(args[1].x) / 4;
  let data2_at = i32(args[2].x) / 4;
  let data0_at = i32(args[0].x) / 4;
  let v1 = (bitcast<f32>(data1[data1_at + thread]) + bitcast<f32>(data2[data2_at + thread]));
  if (thread < 3) { data0[data0_at + thread] = bitcast<u32>(v1); }
}
"""


def test_bytes_are_stored_by_atomic_operations_and_words_are_not() -> None:
    x = held([1, 2, 3], "uint8")
    source = text_of(x + 1)
    assert "data0: array<atomic<u32>>" in source and "data1: array<u32>" in source
    assert "atomicAnd(&data0[p" in source and "atomicOr(&data0[p" in source and "extractBits(data1[p" in source
    assert "atomic" not in text_of(x.cast("int32"))


def test_infinity_and_nan_are_no_constants() -> None:
    x = held([1.0, 2.0])
    source = text_of((x > 1.5).where(-math.inf, (x > 0.5).where(math.nan, x)))
    assert "var<private> bits_ff800000: u32 = 0xff800000u;" in source and "bitcast<f32>(bits_7fc00000)" in source


def test_what_differs_from_nan_is_written_as_not_equal() -> None:
    source = text_of(held([1.0, 2.0]).isnan())
    assert "let v1 = bitcast<f32>(data1[data1_at + thread]);" in source and "!(v1 == v1)" in source


def test_sums_that_cancel_are_kept_apart() -> None:
    """(x + c) - c is not x: rounding to integers is done that way."""
    x = held([1.5, 2.5])
    source = text_of((x + 12582912.0) - 12582912.0)
    assert "opaque((bitcast<f32>(data1[data1_at + thread]) + 12582912.0f)) - 12582912.0f" in source


def test_64_bit_integers_are_two_words_and_counters_are_not() -> None:
    source = text_of(held([1, 2, 3], "int64") * 5)
    assert "let p1 = data1_at + thread * 2;" in source
    assert "mul_64(vec2<u32>(data1[p1], data1[p1 + 1]), vec2<u32>(5u, 0u))" in source
    assert "fn mul_64" in source and "fn mul_32" in source and "fn add_64" not in source, "what is called, no more"
    sums = text_of(held(np.zeros((3, 500))).sum(1))
    assert "_64" not in sums and "vec2" not in sums, "index arithmetic is of 32 bits"


def test_more_arguments_than_bindings_are_packed() -> None:
    from dataclasses import replace
    total = held([0.0])
    for i in range(5):
        total = total + held([float(i)])
    source = text_of(total, replace(GPU, buffers=4))
    assert source.count("@binding(") == 5 and "@binding(4) var<storage, read_write> packed: array<u32>;" in source
    assert "bitcast<f32>(packed[packed_at" in source
    assert [packed_from(n, 4) for n in (3, 4, 5, 9)] == [3, 4, 3, 3]


def long_loops(*sizes: int) -> Kernel:
    """Loops inside each other that sum an argument."""
    out, x = (UOp(o.PARAM, dtypes.float32, (), Param(slot, (1,))) for slot in range(2))
    counters, total = [counter(f"k{i}", size) for i, size in enumerate(sizes)], register("acc", dtypes.float32)
    body: list[Any] = [Assign(total, load(x, counters[-1]))]
    for k in reversed(counters):
        body = [For(k, LOOP, body)]
    return Kernel("k", [out, x], [Phase([*body, Store(out, index(0), total)])], (0,))


def test_a_driver_that_ends_long_loops_gets_fewer_rounds() -> None:
    inside = long_loops(10, 1000).phases[0].body[:1]
    assert [unrolled(inside, most, "k") for most in (10_010, 5_010, 1_010)] == [1, 2, 10]
    with pytest.raises(DeviceError) as error:
        unrolled(inside, 200, "the kernel k_0")
    assert message(error) == """\
the kernel k_0 has loops that are too long for this driver
  given:    10010 rounds
  expected: at most 200 rounds of a thread, or 32 times as many in innermost loops: the driver ends a loop after that
  fix:      use another driver or device"""


def test_every_helper_of_64_bits_is_found_by_name() -> None:
    assert all(text.startswith(f"fn {name}(") and text.endswith("}") for name, text in HELPERS.items())
    assert {"add_64", "divide_i64", "modulo_u64", "float_i64", "i64_float"} <= set(HELPERS)
