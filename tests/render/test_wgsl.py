"""WGSL: the text of kernels. What runs through `wgpu`: test_webgpu.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wgsl_reference import held, message

from glassgrad import DeviceError, Tensor
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LOOP, Accumulate, Assign, For, Kernel, Phase, Store, counter, load,
                                            register, walk)
from glassgrad.compiler.lower.missing_instructions import Instructions
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import kernel_of, make_source
from glassgrad.compiler.render.gpu.loop_iteration_limit import limit_iterations, unroll_factor
from glassgrad.compiler.render.unroll_and_jam import jam


def text_of(result: Tensor, target: Any = GPU) -> str:
    """The kernel of a result in WGSL."""
    [item] = result.schedule()
    return make_source(kernel_of(item.ast, target), target, "wgsl")


def test_the_text_of_a_sum() -> None:
    x, y = held([1, 2, 3]), held([4, 5, 6])
    assert text_of(x + y) == """\
@group(0) @binding(0) var<uniform> args: array<vec4<u32>, 3>;
@group(0) @binding(1) var<storage, read_write> data0: array<f32>;
@group(0) @binding(2) var<storage, read_write> data1: array<f32>;
@group(0) @binding(3) var<storage, read_write> data2: array<f32>;

@compute @workgroup_size(32)
fn map_3_0(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>, \
@builtin(num_workgroups) groups: vec3<u32>) {
  let thread = i32(local);
  let data1_at = i32(args[1].x) / 4;
  let data2_at = i32(args[2].x) / 4;
  let data0_at = i32(args[0].x) / 4;
  for (var task = i32(group.y * groups.x + group.x); task < 1; task += 1) {
    if (thread < 3) { data0[data0_at + thread] = data1[data1_at + thread] + data2[data2_at + thread]; }
  }
}
"""


def test_bytes_are_stored_by_atomic_operations_and_words_are_not() -> None:
    x = held([1, 2, 3], "uint8")
    source = text_of(x + 1)
    assert "data0: array<atomic<u32>>" in source and "data1: array<u32>" in source
    assert "atomicAnd(&data0[at / 4], ~(255u << (u32(at % 4) * 8u)));" in source
    assert "return atomicOr(&data0[at / 4], (x & 255u) << (u32(at % 4) * 8u));" in source
    assert "return extractBits(data1[at / 4], u32(at % 4) * 8u, 8u);" in source
    assert "atomic" not in text_of(x.cast("int32"))


def test_infinity_and_nan_are_no_constants() -> None:
    x = held([1.0, 2.0])
    source = text_of((x > 1.5).where(-math.inf, (x > 0.5).where(math.nan, x)))
    assert "-bitcast<f32>(0x7f800000u | args[0].w)" in source and "bitcast<f32>(0x7fc00000u | args[0].w)" in source


def test_what_differs_from_nan_is_written_as_not_equal() -> None:
    source = text_of(held([1.0, 2.0]).isnan())
    assert "let v1 = data1[data1_at + thread];" in source and "!(v1 == v1)" in source


def test_sums_that_cancel_are_kept_apart() -> None:
    """(x + c) - c is not x: rounding to integers is done that way."""
    x = held([1.5, 2.5])
    source = text_of((x + 12582912.0) - 12582912.0)
    assert "opaque_f32(data1[data1_at + thread] + 12582912.0f) - 12582912.0f" in source


def test_64_bit_integers_are_of_64_bits_and_counters_of_32() -> None:
    source = text_of(held([1, 2, 3], "int64") * 5)
    assert "data0: array<i64>" in source and "= data1[data1_at + thread] * 5;" in source
    sums = text_of(held(np.zeros((3, 500))).sum(1))
    assert "i64" not in sums and "u64" not in sums, "index arithmetic is of 32 bits"
    rows = held(np.zeros((30, 5)))[held([3, 1, -2], "int32")]
    assert "i64" not in text_of(rows), "and so are rows that are looked up by an int32"


def test_the_steps_of_a_product_are_not_written_out_in_each_other() -> None:
    """Each of them reads the one before it twice: of 300 rows, nine steps were 500 copies of the first one."""
    x, rows = held(np.ones((300, 4))), held(np.zeros((300, 4)), "int32")
    sources = [make_source(kernel_of(item.ast, GPU), GPU, "wgsl")
               for item in x.scatter_reduce(0, rows, x, "prod").schedule()]
    assert max(map(len, sources)) < 30_000


def long_loops(*sizes: int) -> Kernel:
    """Loops inside each other that sum an argument, with a running product beside it."""
    out, x = (UOp(o.PARAM, dtypes.float32, (), Param(slot, (max(sizes),))) for slot in range(2))
    counters, total = [counter(f"k{i}", size) for i, size in enumerate(sizes)], register("acc", dtypes.float32)
    body: list[Any] = [Accumulate(total, o.ADD, load(x, counters[-1])), Store(out, counters[-1], total)]
    for k in reversed(counters):
        body = [For(k, LOOP, body)]
    return Kernel("k", [out, x], [Phase([Assign(total, const(0, dtypes.float32)), *body])], (0,))


def test_a_driver_that_ends_long_loops_gets_fewer_rounds() -> None:
    inside = long_loops(10, 1000).phases[0].body[1:]
    assert [unroll_factor(inside, most, "k") for most in (10_010, 5_010, 1_010)] == [1, 2, 10]
    with pytest.raises(DeviceError) as error:
        unroll_factor(inside, 200, "the kernel k_0")
    assert message(error) == """\
the kernel k_0 has loops that are too long for this driver
  given:    10010 iterations
  expected: at most 200 iterations of a thread, or 32 times as many in innermost loops: the driver ends longer ones
  fix:      use another driver or device"""


@pytest.mark.parametrize("sizes, most", [((100,), 50), ((101,), 50), ((3, 67), 63), ((7,), 1)], ids=str)
def test_loops_that_are_partly_written_out_compute_the_same(sizes: tuple[int, ...], most: int) -> None:
    """By the loop interpreter, which runs both trees."""
    kernel = long_loops(*sizes)
    jammed = [jam(phase, Instructions()) for phase in kernel.phases]
    [shorter] = limit_iterations(jammed, kernel, replace(GPU, iteration_limit=most))
    x = np.random.default_rng(1).standard_normal(max(sizes), np.float32)
    found = []
    for body in (jammed[0].body, shorter.body):
        out = np.zeros_like(x)
        run_kernel(Kernel("k", kernel.params, [Phase(body)], (0,)), [out, x])
        found.append(out)
    rounds = [s.range.arg.size for s in walk(shorter.body) if isinstance(s, For)]
    assert math.prod(rounds) <= most and found[0].any()
    np.testing.assert_array_equal(found[0], found[1])
