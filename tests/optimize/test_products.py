"""Contractions keep the answer: of every size, view and type, for several processors, checked against interpreters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from loop_kernels import AVX2, AVX512, NEON, SIZES, TARGETS, Inputs, check, compiler, matmul

from glassgrad import Tensor
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import linear
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LOOP, TILE, For, Kernel, Store, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import cpu_costs as cpu, gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import GPU

FLOAT = dtypes.float32
sizes = st.sampled_from(SIZES)


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
@hypothesis_settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(m=sizes, n=sizes, k=sizes, views=st.integers(0, 63), seed=st.integers(0, 99))
def test_matmul_of_every_size_and_view(name: str, m: int, n: int, k: int, views: int, seed: int) -> None:
    """Transposed, flipped, padded and sliced operands, prologues and epilogues."""
    rng, values = np.random.default_rng(seed), Inputs()

    def operand(rows: int, columns: int, how: int) -> UOp:
        shape = (columns, rows) if how & 1 else (rows, columns)
        x = values.leaf(rng.uniform(-1, 1, (shape[0] + 2, shape[1] + 2)).astype("float32"))
        x = x.shrink([(1, shape[0] + 1), (1, shape[1] + 1)])
        x = x.permute((1, 0)) if how & 1 else x
        x = x.flip([1]) if how & 2 else x
        return x * 2.0 + 1.0 if how & 4 else x

    product = matmul(operand(m, k, views & 7), operand(k, n, views >> 3))
    bias = values.leaf(rng.uniform(-1, 1, (1, n)).astype("float32")).expand((m, n))
    what = f"{m} x {n} x {k}, views {views}, seed {seed}"
    check([(product + bias).maximum(0.0)], values, compiler(TARGETS[name]), what)


@pytest.mark.parametrize("m, n, k", [(29, 67, 83), (1, 64, 64), (64, 1, 64), (64, 64, 1), (2, 4, 512), (97, 33, 8),
                                     (14, 32, 64), (15, 33, 65), (5, 7, 1100), (30, 70, 1030)])
@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_matmul_of_awkward_sizes(m: int, n: int, k: int, name: str, rng: np.random.Generator) -> None:
    values, log = Inputs(), []
    x = values.leaf(rng.uniform(-1, 1, (m, k)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (k, n)).astype("float32"))
    check([matmul(x, y)], values, compiler(TARGETS[name], log))
    if min(m, n) >= 5 and k >= 8:
        assert log[0].startswith("contract("), log


@pytest.mark.parametrize("across", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("m, n, most", [(29, 67, 83), (70, 40, 64), (23, 36, 2100)])
@pytest.mark.parametrize("name", ["avx512", "avx2", "neon", "gpu"])
def test_products_whose_sum_has_a_run_time_bound(name: str, m: int, n: int, most: int, across: tuple[bool, bool],
                                                 rng: np.random.Generator) -> None:
    """Every way to read the factors, at lengths of K that end in a chunk, at its end and before the first one."""
    x, y = (Tensor(rng.uniform(-1, 1, shape[::-1] if turned else shape).astype("float32")).realize()
            for shape, turned in zip(((m, most), (most, n)), across))
    [item] = ((x.T if across[0] else x) @ (y.T if across[1] else y)).schedule()
    kernel = lower(item.ast)
    length = UOp(o.PARAM, dtypes.int64, (), Measure(len(kernel.params), Symbol("k", 0, most)))
    sums = [s for phase in kernel.phases for s in walk(phase.body) if isinstance(s, For) and s.kind == LOOP]
    assert len(sums) == 1
    sums[0].stop = length
    kernel.params.append(length)
    target = GPU if name == "gpu" else replace(TARGETS[name], l1_bytes=8 << 10, l2_bytes=64 << 10)     # small caches
    own = optimize(kernel, target)
    thin = name == "gpu" and m < gpu.THIN_SIDE                   # plain loops are as fast there
    assert thin or own.moves[0].startswith("staged(" if name == "gpu" else "contract(")
    memory = [t.numpy().reshape(-1) for t in (x, y)]
    for k in (0, 1, 5, 16, 47, 64, most) if most < 100 else (5, 1030):
        result = np.zeros(m * n, "float32")
        run_kernel(own, [result, *memory, k])
        left, right = x.numpy().T if across[0] else x.numpy(), y.numpy().T if across[1] else y.numpy()
        np.testing.assert_allclose(result.reshape(m, n), left[:, :k] @ right[:k], rtol=1e-4, atol=1e-4, err_msg=f"{k}")


@pytest.mark.parametrize("m, n, k", [(17, 40, 24), (8, 16, 32), (19, 33, 2100)])
@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_a_long_epilogue_is_a_loop_over_the_rows_of_a_tile(m: int, n: int, k: int, name: str,
                                                           rng: np.random.Generator) -> None:
    values = Inputs()
    x = values.leaf(rng.uniform(-1, 1, (m, k)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (k, n)).astype("float32"))
    result = matmul(x, y)
    for i in range(cpu.LONG_EPILOGUE // 2):
        result = (result * 0.5).maximum(0.125 * i)
    kernels: list[Kernel] = []

    def compile_kernel(ast: UOp) -> Kernel:
        kernels.append(optimize(lower(ast), TARGETS[name]))
        return kernels[-1]

    check([result], values, compile_kernel)
    loops = [s for phase in kernels[0].phases for s in walk(phase.body) if isinstance(s, For)]
    assert {f.kind for f in loops if f.range.arg.name == "mi"} == {TILE, LOOP}


@pytest.mark.parametrize("few, many, k", [(1, 16, 64), (2, 17, 97), (3, 131, 64), (8, 40, 131), (5, 16, 2100),
                                           (2, 2, 700), (7, 6, 200), (5, 12, 333)])
@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_products_with_few_rows_along_k(few: int, many: int, k: int, name: str, rng: np.random.Generator) -> None:
    """Whichever factor has them, with a batch around it and an epilogue: nothing is turned, rows are read at once."""
    values, log = Inputs(), []
    x = values.leaf(rng.uniform(-1, 1, (3, few, k)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (3, many, k)).astype("float32"))
    bias = values.leaf(rng.uniform(-1, 1, (1, 1, many)).astype("float32")).expand((3, few, many))
    check([(matmul(x, y.permute((0, 2, 1))) + bias).maximum(0.0)], values, compiler(TARGETS[name], log))
    check([matmul(y, x.permute((0, 2, 1)))], values, compiler(TARGETS[name], log))
    assert [move.split("(")[0] for move in log] == ["fold", "rows", "tasks"] * 2


@pytest.mark.parametrize("m, n, k, across", [(300, 3, 300, True), (554, 3, 117, True), (97, 2, 64, True),
                                             (71, 11, 426, True), (48, 13, 1924, True), (200, 31, 31, False)])
def test_a_narrow_product_has_lanes_along_its_left_factor(m: int, n: int, k: int, across: bool,
                                                          rng: np.random.Generator) -> None:
    """Which lies along M, and is read in place; the results of a vector are stored one by one."""
    values, kernels = Inputs(), []
    x = values.leaf(rng.uniform(-1, 1, (2, k, m)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (2, k, n)).astype("float32"))
    bias = values.leaf(rng.uniform(-1, 1, (1, 1, n)).astype("float32")).expand((2, m, n))

    def compile_kernel(ast: UOp) -> Kernel:
        kernels.append(optimize(lower(ast), TARGETS["avx512"]))
        return kernels[-1]

    check([(matmul(x.permute((0, 2, 1)), y) + bias).maximum(0.0)], values, compile_kernel)
    assert kernels[0].moves[0].startswith("contract("), kernels[0].moves
    stores = [s for phase in kernels[0].phases for s in walk(phase.body)
              if isinstance(s, Store) and s.memory.op is o.PARAM]
    lanes = [atom for s in stores for atom in linear(s.index)[1] if atom.op is o.RANGE and atom.arg.name == "l"]
    assert {linear(stores[0].index)[1][lane] for lane in lanes} == {n if across else 1}


@pytest.mark.parametrize("m, n, k", [(300, 90, 7), (573, 8, 5), (48, 306, 4), (8, 3, 600), (300, 3, 70)])
@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_short_sums_and_narrow_results_are_tiles_of_registers(m: int, n: int, k: int, name: str,
                                                              rng: np.random.Generator) -> None:
    """A right factor that does not lie along N is packed; lanes would have to gather it."""
    values, log = Inputs(), []
    x = values.leaf(rng.uniform(-1, 1, (m, k)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (n, k)).astype("float32"))
    z = values.leaf(rng.uniform(-1, 1, (k, n)).astype("float32"))
    check([matmul(x, z)], values, compiler(TARGETS[name], log))
    if k < cpu.LEAST_ROW:
        check([matmul(x, y.permute((1, 0)))], values, compiler(TARGETS[name], log))
    assert all(move.startswith("contract(") for move in log), log


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
def test_matmul_of_other_types(dtype: str, rng: np.random.Generator) -> None:
    values, kind = Inputs(), getattr(dtypes, dtype)
    a, b = rng.integers(-4, 5, (19, 23)), rng.integers(-4, 5, (23, 37))
    x, y = values.leaf(a.astype("float32" if kind.is_float else "int32"), kind), \
        values.leaf(b.astype("float32" if kind.is_float else "int32"), kind)
    wide = kind.accumulator
    for target in (AVX512, AVX2, NEON):
        check([matmul(x.cast(wide), y.cast(wide)).cast(kind)], values, compiler(target))


def test_many_small_products(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of them to a task: here 8 tasks for 77 x 3 products."""
    monkeypatch.setattr(moves.loops_as_tasks, "__defaults__", (8, None, True))
    monkeypatch.setattr(moves, "PHASE_TASKS", 8)
    values = Inputs()
    x = values.leaf(rng.uniform(-1, 1, (77, 3, 17, 19)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (77, 3, 19, 21)).astype("float32"))
    for target in (AVX512, NEON):
        check([matmul(x, y), matmul(x.permute((0, 1, 3, 2)), x)], values, compiler(target))


def test_batched_matmul(rng: np.random.Generator) -> None:
    values = Inputs()
    x = values.leaf(rng.uniform(-1, 1, (3, 2, 17, 19)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (3, 2, 19, 21)).astype("float32"))
    for target in (AVX512, NEON):
        check([matmul(x, y), matmul(x.permute((0, 1, 3, 2)), x)], values, compiler(target))


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_matmul_of_gathered_rows(name: str, rng: np.random.Generator) -> None:
    """An index that is loaded is not loaded past a ragged edge either."""
    values = Inputs()
    rows = values.leaf(rng.uniform(-1, 1, (11, 19)).astype("float32"))
    where = values.leaf(rng.integers(0, 11, 67).astype("int32"))
    y = values.leaf(rng.uniform(-1, 1, (19, 21)).astype("float32"))
    picked = UOp(o.GATHER, FLOAT, (rows, where))
    check([matmul(picked, y), matmul(y.permute((1, 0)), picked.permute((1, 0)))], values, compiler(TARGETS[name]))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("image, kernel", [((9, 11), (3, 3)), ((8, 8), (1, 1)), ((13, 7), (5, 2)), ((16, 33), (3, 1))])
def test_convolution_and_its_gradients(image: tuple[int, int], kernel: tuple[int, int], stride: int,
                                       rng: np.random.Generator) -> None:
    """Windows of windows times weights; the gradients are what `compiler/graph/gradient.py` makes of it."""
    from glassgrad.compiler.graph.gradient import gradients
    values, (h, w), (kh, kw) = Inputs(), image, kernel
    x = values.leaf(rng.uniform(-1, 1, (2, 3, h, w)).astype("float32"))
    weight = values.leaf(rng.uniform(-1, 1, (5, 3, kh, kw)).astype("float32"))
    windows = x.pad([(0, 0), (0, 0), (1, 1), (1, 1)]).window(2, kh, stride).window(3, kw, stride)
    _, _, oh, ow, _, _ = windows.shape                              # (2, 3, oh, ow, kh, kw)
    left = windows.reshape((2, 1, 3, oh, ow, kh, kw)).expand((2, 5, 3, oh, ow, kh, kw))
    right = weight.reshape((1, 5, 3, 1, 1, kh, kw)).expand((2, 5, 3, oh, ow, kh, kw))
    out = (left * right).sum([2, 5, 6]).reshape((2, 5, oh, ow))
    up = values.leaf(rng.uniform(-1, 1, out.shape).astype("float32"))
    found = [g for g in gradients(out, up, [x, weight]) if g is not None]
    assert len(found) == 2
    target = AVX512 if stride == 1 else NEON
    check([out.maximum(0.0)], values, compiler(target))
    check([found[0]], values, compiler(target))
    check([found[1]], values, compiler(target))
