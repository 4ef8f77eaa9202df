"""HIP and Metal without their GPUs: kernels compiled as C++ and run on the CPU by tests/reference/shim_device.py.

First the shim itself, by kernels written by hand whose results, or whose faults, are known. Then kernels of the
compiler: what they compute, and that none of their barriers can be left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import graph_fuzzer
import numpy as np
import pytest
from shim_device import DIALECT_OF, KernelFault, ShimDevice, needs_cxx, run_kernel, runtime

from glassgrad import Context, GlobalCounters, Tensor
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.compiler.schedule import flat_scatters
from glassgrad.runtime.gpu.gpu_device import Rejected

pytestmark = needs_cxx
ORDERS = (0, 1, 2)
FORWARD = 0


@lru_cache(maxsize=2)
def device(name: str) -> ShimDevice:
    return ShimDevice(name, DIALECT_OF[name])


def run(name: str, source: str, arrays: list[np.ndarray], groups: int = 1, threads: int = 64, group_bytes: int = 0,
        order: int = FORWARD, function_name: str = "k") -> None:
    """A kernel on arrays."""
    [function] = device(name).load(device(name).compile_source(source), [function_name])
    values = np.array([*[a.ctypes.data for a in arrays], runtime().gpu_scratch()], np.uint64)
    places = [values.ctypes.data + 8 * i for i in range(len(values))]
    ranges = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays]
    run_kernel(function, places, ranges, groups, threads, group_bytes, order)


def fault(*given: Any, **more: Any) -> str:
    with pytest.raises(KernelFault) as error:
        run(*given, **more)
    return str(error.value)


HIP_REVERSE = """
extern "C" __global__ void k(float *out, const float *x) {
  __shared__ float row[64];
  unsigned t = threadIdx.x, base = blockIdx.x * 64;
  row[t] = x[base + t];
  __syncthreads();
  out[base + t] = row[63 - t];
}
"""
METAL_REVERSE = """
#include <metal_stdlib>
using namespace metal;
kernel void k(device float *out [[buffer(0)]], const device float *x [[buffer(1)]],
              threadgroup float *row [[threadgroup(0)]], uint t [[thread_position_in_threadgroup]],
              uint group [[threadgroup_position_in_grid]]) {
  row[t] = x[group * 64 + t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[group * 64 + t] = row[63 - t];
}
"""
NAMES = ("HIP_SHIM", "METAL_SHIM")
REVERSE = {"HIP_SHIM": (HIP_REVERSE, "  __syncthreads();\n", 0),
           "METAL_SHIM": (METAL_REVERSE, "  threadgroup_barrier(mem_flags::mem_threadgroup);\n", 256)}


# -- the shim ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_group_reverses_its_row(name: str, order: int) -> None:
    source, _, group_bytes = REVERSE[name]
    x, out = np.arange(192, dtype="float32"), np.zeros(192, "float32")
    run(name, source, [out, x], groups=3, group_bytes=group_bytes, order=order)
    np.testing.assert_array_equal(out.reshape(3, 64), x.reshape(3, 64)[:, ::-1])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_barrier_is_found_in_any_order(name: str, order: int) -> None:
    source, barrier, group_bytes = REVERSE[name]
    assert barrier in source
    arrays = [np.zeros(64, "float32"), np.ones(64, "float32")]
    said = fault(name, source.replace(barrier, ""), arrays, group_bytes=group_bytes, order=order)
    assert said.startswith("k: a race in the group's memory: thread ") and said.endswith(", with no barrier between")
    if order == FORWARD:
        assert "thread 32 of group 0 writes what is read by thread 31" in said


def test_a_barrier_after_reading_is_as_necessary() -> None:
    """Each thread reads its neighbour, then writes its own: the write may come first."""
    source = HIP_REVERSE.replace("  out[base + t] = row[63 - t];", "  float y = row[63 - t];\n  row[t] = y;")
    said = fault("HIP_SHIM", source, [np.zeros(64, "float32"), np.ones(64, "float32")])
    assert "thread 32 of group 0 reads what is written by thread 31" in said
    ends = source.replace("row[t] = y;", "__syncthreads();\n  row[t] = y;\n  out[base + t] = y;")
    out = np.zeros(64, "float32")
    run("HIP_SHIM", ends, [out, np.arange(64, dtype="float32")])
    assert out[0] == 63


def test_a_barrier_that_some_threads_do_not_reach() -> None:
    branch = """extern "C" __global__ void k(float *out) {
      if (threadIdx.x < 16)
        __syncthreads();
      out[threadIdx.x] = 1;
    }"""
    assert fault("HIP_SHIM", branch, [np.zeros(64, "float32")]) == \
        "k: threads of group 0 wait for ever: thread 0 waits at the barrier in line 3, thread 16 has ended"
    two = branch.replace("        __syncthreads();", "        __syncthreads();\n      else\n        __syncthreads();")
    assert "thread 0 waits at the barrier in line 3, thread 16 waits at the barrier in line 5" in \
        fault("HIP_SHIM", two, [np.zeros(64, "float32")])


@pytest.mark.parametrize("order", ORDERS)
def test_threads_of_a_warp_exchange_registers(order: int) -> None:
    source = """extern "C" __global__ void k(float *sums, int *neighbours) {
      float x = threadIdx.x;
      for (int step = 16; step; step /= 2) x += __shfl_down(x, step, 32);
      if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
      neighbours[threadIdx.x] = __shfl_xor((int)threadIdx.x, 1, 32);
    }"""
    sums, neighbours = np.zeros(2, "float32"), np.zeros(64, "int32")
    run("HIP_SHIM", source, [sums, neighbours], order=order)
    assert sums.tolist() == [sum(range(32)), sum(range(32, 64))]
    np.testing.assert_array_equal(neighbours, np.arange(64) ^ 1)


def test_an_exchange_needs_the_whole_warp() -> None:
    source = """extern "C" __global__ void k(float *out) {
      float x = 1;
      if (threadIdx.x != 5)
        x = __shfl_down(x, 1, 32);
      out[threadIdx.x] = x;
    }"""
    assert fault("HIP_SHIM", source, [np.zeros(64, "float32")]) == \
        "k: threads of group 0 wait for ever: thread 0 waits in the exchange in line 4, thread 5 has ended"


def test_groups_do_not_wait_for_each_other() -> None:
    writes = 'extern "C" __global__ void k(int *out) { out[threadIdx.x] = blockIdx.x; }'
    assert "a race in the device's memory: thread 0 of group 1 writes what was written by a thread of another group" \
        in fault("HIP_SHIM", writes, [np.zeros(64, "int32")], groups=2)
    reads = """extern "C" __global__ void k(int *out, int *x) {
      int y = x[threadIdx.x];
      out[blockIdx.x * 64 + threadIdx.x] = y;
      if (blockIdx.x == 1) x[threadIdx.x] = y;
    }"""
    arrays = [np.zeros(128, "int32"), np.ones(64, "int32")]
    assert "thread 0 of group 1 writes what is read by a thread of another group" in \
        fault("HIP_SHIM", reads, arrays, groups=2)
    run("HIP_SHIM", reads, arrays, groups=1)


def test_a_group_has_its_own_memory_which_is_not_cleared() -> None:
    source = """extern "C" __global__ void k(float *out) {
      __shared__ float row[64];
      out[blockIdx.x * 64 + threadIdx.x] = row[threadIdx.x];
      __syncthreads();
      row[threadIdx.x] = 1;
    }"""
    out = np.zeros(128, "float32")
    run("HIP_SHIM", source, [out], groups=2)
    assert np.isnan(out).all()


def test_an_access_outside_of_all_buffers() -> None:
    source = 'extern "C" __global__ void k(int *out) { out[threadIdx.x] = 1; }'
    assert "thread 63 of group 0 writes 4 bytes at 0x" in fault("HIP_SHIM", source, [np.zeros(63, "int32")])


def test_metals_barriers_order_the_memory_that_they_name() -> None:
    source = """
    #include <metal_stdlib>
    using namespace metal;
    kernel void k(device float *x [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
      x[t] = t;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      float y = x[63 - t];
      threadgroup_barrier(mem_flags::mem_device);
      x[t] = y;
    }""".replace("    kernel", "kernel")
    assert "a race in the device's memory" in fault("METAL_SHIM", source, [np.zeros(64, "float32")])
    x = np.zeros(64, "float32")
    run("METAL_SHIM", source.replace("mem_flags::mem_threadgroup", "mem_flags::mem_device"), [x])
    assert x.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("body, wrong", [
    ("double y = 1;", "there_is_no_double_in_metal"),
    ("x[0] = simd_shuffle_down((long)t, 1);", "Shuffled<long"),
    ("x[0] = simd_shuffle_down(t == 0, 1);", "Shuffled<bool"),
    ("int thread = 3; x[0] = thread;", "expected"),
    ("threadgroup float *row = x;", "invalid conversion|may not"),
], ids=["float64", "64 bits", "bool", "a word of the language", "address spaces"])
def test_what_metal_has_not_the_shim_has_not(body: str, wrong: str) -> None:
    source = "#include <metal_stdlib>\nusing namespace metal;\nkernel void k(device float *x [[buffer(0)]], " \
             f"uint t [[thread_position_in_threadgroup]]) {{ {body} }}\n"
    if "row" in body:
        source = source.replace("row = x;", "row = x; device float *y = row;")
    with pytest.raises(Rejected, match=wrong):
        device("METAL_SHIM").compile_source(source)


# -- kernels of the compiler ------------------------------------------------------------------------------------------
def x_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


@pytest.mark.parametrize("name", DIALECT_OF)
def test_what_kernels_compute(name: str, shims: None) -> None:
    """Rows, a product with a long sum (several phases), long rows, small floats, integers that wrap, and numbers;
    copies across and running totals, whose threads exchange values."""
    def everything(on: str) -> list[np.ndarray]:
        x, a, b = (Tensor(x_of(*shape), device=on) for shape in ((5, 700), (20, 3000), (3000, 33)))
        long_rows = Tensor(x_of(2, 9_000), device=on)
        small = (x.half() * 3).bfloat16().exp()
        return [t.numpy() for t in (x.softmax(1), (a @ b).gelu(), long_rows.layernorm(), small, x.argmax(1), x * 2.5,
                                    ((x * 2e9).int() * 3 + 5).sum(1), (x > 0).all(1), a.T * 2, x.cumsum(1))]
    for found, expected in zip(everything(name), everything("CPU")):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_float16_rounds_as_numpy_does(name: str, shims: None) -> None:
    x = np.concatenate([x_of(500), x_of(300) * 7e4, x_of(300) * 1e-7, [0.0, -0.0, np.inf, -np.inf, 65519.9, 65520.0]])
    x = x.astype("float32")
    with np.errstate(over="ignore"):
        half = x.astype("float16")
    found = Tensor(x, device=name).half()
    np.testing.assert_array_equal(found.numpy().view("uint16"), half.view("uint16"))
    np.testing.assert_array_equal(found.float().numpy(), half.astype("float32"))


@pytest.mark.parametrize("kind", ["rows", "a product"])
@pytest.mark.parametrize("name", NAMES)
def test_no_barrier_can_be_left_out(name: str, kind: str, shims: None) -> None:
    """Of a kernel with reductions and of a staged product: without any one of its barriers there is a race."""
    values = [x_of(5, 700)] if kind == "rows" else [x_of(40, 70), x_of(70, 40)]
    inputs = [Tensor(v) for v in values]
    ast: UOp = (inputs[0].sum(1) if kind == "rows" else inputs[0] @ inputs[1]).schedule()[-1].ast
    source, launch = device(name).source(ast), gpu_launch(device(name).loop_tree(ast))
    [(function, groups, threads, group_bytes)] = launch.phases
    arrays = [np.zeros((5,) if kind == "rows" else (40, 40), "float32"), *values]
    run(name, source, arrays, groups, threads, group_bytes, function_name=function)
    barriers = [m.start() for m in re.finditer(re.escape(DIALECT_OF[name].wait), source)]
    assert len(barriers) >= 2
    for at in barriers:
        without = source[:at] + source[at + len(DIALECT_OF[name].wait):]
        assert "a race in the group's memory" in \
            fault(name, without, arrays, groups, threads, group_bytes, function_name=function)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_thread_that_stores_reads_there(name: str, shims: None) -> None:
    """A scatter that keeps the larger number reads and writes in one statement, by the first thread: found by random
    graphs, where all threads read."""
    x, places = np.linspace(-1, 1, 8).astype("float32"), np.array([3, 1, 3, 7])

    def scattered(on: str) -> np.ndarray:
        source = Tensor(x, device=on).bfloat16()
        index = Tensor(places, device=on)
        return source.scatter_reduce(0, index, source.gather(0, index) * 0.5, "amax").float().numpy()
    np.testing.assert_array_equal(scattered(name), scattered("CPU"))


@needs_cxx
def test_rows_are_sorted_by_index_and_summed(shims: None, monkeypatch: pytest.MonkeyPatch,
                                             rng: np.random.Generator) -> None:
    """What is added to a row is in a bin of its own, which several groups may share: CUDA, for groups of threads."""
    monkeypatch.setattr(flat_scatters, "FEWEST", 256)
    where = np.where(rng.random(400) < 0.5, 7, rng.integers(0, 30, 400))
    base, given = (rng.standard_normal((n, 40)).astype("float32") for n in (30, 400))
    x, i, v = (Tensor(a, device="CUDA_SHIM") for a in (base, where, given))
    np.add.at(base, where, given)
    np.testing.assert_allclose(x.index_add(0, i, v).numpy(), base, rtol=1e-5, atol=1e-5)


def test_sums_over_two_numbers_known_at_run_time_are_in_no_blocks(shims: None) -> None:
    """The gradient of a weight by rows of a changing number of texts: found by random programs on a GPU, where blocks
    were cut along the first of the two and went past the second."""
    weight = x_of(33, 25)
    for texts, rows in ((17, 2), (17, 3), (3, 15), (5, 7), (9, 16)):
        x = x_of(texts, rows, 33)
        w = Tensor(weight, device="HIP_SHIM", requires_grad=True).realize()
        (Tensor(x, device="HIP_SHIM").realize() @ w).square().sum().backward()
        flat = x.reshape(-1, 33)
        np.testing.assert_allclose(w.grad.numpy(), 2 * flat.T @ (flat @ weight), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(5, 3, 8), (13, 17, 16), (5, 8)])
def test_a_thread_without_a_row_loads_none(shape: tuple[int, ...], shims: None) -> None:
    """Running totals of fewer rows than a group has threads, whose numbers are loaded four at a time: found by random
    graphs, where threads beyond the last row read outside of the buffer."""
    x = x_of(*shape)
    np.testing.assert_allclose(Tensor(x, device="HIP_SHIM").cumsum(-1).numpy(), x.cumsum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", [21083, 21680])
def test_a_reduction_that_reads_no_neighbours(seed: int, shims: None) -> None:
    """The greatest of a number that is gathered again and again, and of rows between zeros: random graphs where the
    compiler stopped."""
    graph_fuzzer.check_seed(seed, ("METAL_SHIM",))


@needs_cxx
@pytest.mark.parametrize("name", DIALECT_OF)
def test_a_read_with_a_gate_stays_in_the_branch_that_makes_it_safe(name: str, shims: None) -> None:
    """A gate that cuts a row's end says nothing of the rows: those end where a size of the launch says."""
    for shape in [(4, 4, 88, 128), (5, 5, 80, 80)]:
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        np.testing.assert_array_equal((Tensor(x, device=name).realize() * 2).numpy(), x * 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(800, 48), (2500, 40)], ids=str)
def test_products_of_a_changing_number_of_rows(name: str, shape: tuple[int, int], shims: None) -> None:
    """The versions of the code for other numbers of rows do nothing, and parts of a long sum follow that number."""
    w, before = x_of(*shape), GlobalCounters.schedules
    weight = Tensor(w, device=name).realize()
    for n in (66, 20, 9, 2, 16, 17, 65, 70):
        x = x_of(n, shape[0])
        np.testing.assert_allclose((Tensor(x, device=name).realize() @ weight).numpy(), x @ w, rtol=2e-4, atol=2e-4)
    assert GlobalCounters.schedules - before == 3


CHANGING_SQUARES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scores": lambda x, y: (x @ y.transpose(-1, -2)).relu() + 1,
    "softmax of scores": lambda x, y: (x @ y.transpose(-1, -2)).softmax(-1),
    "attention": lambda x, y: (x @ y.transpose(-1, -2)).softmax(-1) @ y,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("program", CHANGING_SQUARES)
def test_rows_columns_and_sums_of_one_changing_length(name: str, program: str, shims: None) -> None:
    """Products with two run-time bounds, and rows of a run-time length, shorter and longer than a warp holds."""
    make = CHANGING_SQUARES[program]
    for n in (66, 20, 2, 65, 1030):
        x, y = x_of(n, 24), x_of(n, 24)
        got = make(Tensor(x, device=name).realize(), Tensor(y, device=name).realize()).numpy()
        with Context(DYNAMIC=0, NOOPT=1):
            wanted = make(Tensor(x), Tensor(y)).numpy()
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5, err_msg=f"{n}")


@pytest.mark.parametrize("name", ["CUDA_SHIM", "METAL_SHIM"])
def test_remainders_are_exact_with_and_without_float64(name: str, shims: None, rng: np.random.Generator) -> None:
    x, y = rng.integers(0, 256, (2, 600, 4), dtype=np.uint8).view("float32")[..., 0]
    x[:3], y[:3] = 3e38, 1e-45
    found = Tensor(x, device=name).fmod(Tensor(y, device=name)).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.fmod(x, y))
