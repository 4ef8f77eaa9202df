"""Every recipe keeps the answer: on ragged sizes, on views, for several processors, checked against interpreters.

Endless, random graphs for every processor by command:  python tests/optimize/test_recipes.py [first seed] [last seed]
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_fuzzer import Maker
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from loop_kernels import AVX2, AVX512, NEON, SIZES, TARGETS, Inputs, check

from glassgrad import Tensor
from glassgrad.base.errors import Bug
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import linear
from glassgrad.compiler.graph.op_arguments import Measure, Param
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LANE, LOOP, TASK, TILE, For, Kernel, Prefetch, Store, task_loops, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.contraction_tilings import of_matrices
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.padding_copy import with_zeros
from glassgrad.compiler.optimize.plain import gpu_loops, lanes_and_tasks, plain_loops
from glassgrad.compiler.optimize.product.conv_tile import conv_tiles
from glassgrad.compiler.optimize.product.dot_product_tile import dot_tiles_of_channels
from glassgrad.compiler.optimize.product.recognize import Product, recognize
from glassgrad.compiler.optimize.recipes import optimize, unoptimized
from glassgrad.compiler.optimize.targets import cpu_costs as cpu, gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import GPU, Target

FLOAT = dtypes.float32
quick = hypothesis_settings(max_examples=12, deadline=None, derandomize=True,
                            suppress_health_check=[HealthCheck.too_slow])


def compiler(target: Target, log: list[str] | None = None) -> Any:
    def compile_kernel(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), target)
        if log is not None:
            log.extend(kernel.moves)
        return kernel
    return compile_kernel


@pytest.mark.parametrize("name", TARGETS)
@quick
@given(st.integers(0, 1 << 20))
def test_random_graphs(name: str, seed: int) -> None:
    maker = Maker(seed)
    sinks = [s for s in dict.fromkeys(maker.graph(6)) if s not in maker.leaves]
    if sinks:
        check(sinks, maker.leaves, compiler(TARGETS[name]), f"seed {seed} for {name}")


def matmul(x: UOp, y: UOp) -> UOp:
    """(.., m, k) @ (.., k, n), as expand * multiply * sum."""
    *batch, m, k = x.shape
    n = y.shape[-1]
    order = (*range(len(batch)), len(batch) + 1, len(batch))
    left = x.reshape((*batch, m, 1, k)).expand((*batch, m, n, k))
    right = y.permute(order).reshape((*batch, 1, n, k)).expand((*batch, m, n, k))
    return (left * right).sum([len(batch) + 2]).reshape((*batch, m, n))


def contraction_of(value: UOp) -> Product | None:
    param = UOp(o.PARAM, FLOAT, (), Param(9, value.shape))
    kernel = lower(UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (param, value)),)))
    return recognize(moves.merge_all(kernel.phases[0].body))


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("m, k, n", [(3, 5, 2), (64, 64, 64), (2, 2000, 3), (500, 17, 300)])
def test_no_family_of_windows_takes_a_product_of_matrices(name: str, m: int, k: int, n: int) -> None:
    """So none of them is asked."""
    target = TARGETS[name]
    for x, y in (((m, k), (k, n)), ((k, m), (k, n)), ((m, k), (n, k))):
        a, b = (UOp(o.PARAM, FLOAT, (), Param(slot, shape)) for slot, shape in ((0, x), (1, y)))
        left, right = a if x == (m, k) else a.permute((1, 0)), b if y == (k, n) else b.permute((1, 0))
        product = contraction_of(matmul(left, right))
        assert product is not None and of_matrices(product)
        assert conv_tiles(product, target, Decisions()) is None
        assert dot_tiles_of_channels(product, target, Decisions()) is None
        assert with_zeros(product, target.lanes(4)) is None


def test_a_convolution_of_one_channel_is_no_product_of_matrices() -> None:
    image, weights = (UOp(o.PARAM, FLOAT, (), Param(slot, shape)) for slot, shape in ((0, (100,)), (1, (16, 7))))
    windows = image.window(0, 7, 1, 1)
    left = windows.reshape((1, 94, 7)).expand((16, 94, 7))
    product = contraction_of((left * weights.reshape((16, 1, 7)).expand((16, 94, 7))).sum([2]))
    assert product is not None and not of_matrices(product)


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
    monkeypatch.setattr(moves.share_out, "__defaults__", (8, None, True))
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


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (100, 3), (17, 31), (2, 400), (400, 2), (1, 700), (700, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_columns_and_everything(shape: tuple[int, int], axis: int, rng: np.random.Generator,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """With small grains, so that small shapes are grouped, chunked and spread over tasks as large ones are."""
    for recipe in (lanes_and_tasks, plain_loops, gpu_loops):
        monkeypatch.setattr(recipe, "ADDS", 16)
    values, log = Inputs(), []
    x = values.leaf(rng.uniform(0.1, 1, shape).astype("float32"))
    top = x.reduce(o.AMAX, [axis])
    e = (x - top.expand(shape)).exp2()
    softmax = e / e.sum([axis]).expand(shape)
    transposed = x.permute((1, 0)).flip([0])
    for target in (replace(t, task_steps=64, cut_steps=256) for t in (AVX512, NEON)):
        for sinks in ([x.sum([axis])], [top], [softmax], [x.sum([0, 1]), x.reduce(o.AMIN, [0, 1])],
                      [transposed.sum([axis])], [transposed * 3.0]):
            check(sinks, values, compiler(target, log), f"{shape} along {axis}")
    if max(shape) >= 400:
        assert any(move.startswith("group") for move in log) and any(move.startswith("lanes") for move in log)


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_empty_and_single(name: str) -> None:
    values = Inputs()
    x, y = values.leaf(np.zeros((0, 3), "float32")), values.leaf(np.ones((1, 1), "float32"))
    check([x.sum([0]), x.reduce(o.AMAX, [0]), y.sum([0, 1]), matmul(y, y) + 1.0], values, compiler(TARGETS[name]))


def test_choices_depend_on_nothing_but_shapes_and_target() -> None:
    from glassgrad.compiler.lower.printing import show
    x = UOp(o.PARAM, FLOAT, (), Param(1, (300, 400)))
    value = x.sum([1])
    ast = UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (UOp(o.PARAM, FLOAT, (), Param(0, value.shape)), value)),))
    shown = {show(optimize(lower(ast), AVX512)) for _ in range(3)}
    assert len(shown) == 1
    assert optimize(lower(ast), AVX512).moves and optimize(lower(ast), AVX2).moves != optimize(lower(ast), AVX512).moves


@pytest.mark.parametrize("m,k,n,where", [
    (256, 256, 256, "in_place"), (64, 784, 128, "in_place"), (128, 128, 128, "in_place"),
    (200, 200, 200, "near"),                 # its rows do not begin where vectors do
    (64, 256, 512, "in_place"),              # they lie far apart, and are fetched early
    (384, 384, 384, "near"),                 # there is more of it
])
def test_a_right_factor_in_the_cache_is_read_in_place(m: int, k: int, n: int, where: str) -> None:
    move = _tiling_of(m, k, n, replace(AVX512, l2_bytes=1 << 20, workers=1))
    assert f"right={where}" in move, move


@pytest.mark.parametrize("k, blocks", [(38, [16, 4]), (24, [16, 8]), (7, [4]), (3, [])])
def test_the_rest_of_a_short_sum_is_transposed_in_registers(k: int, blocks: list[int],
                                                            rng: np.random.Generator) -> None:
    """`a @ b.T` packs rows of b: a vector of every row, then half a vector of what is left, and so on."""
    values, kernels = Inputs(), list[Kernel]()
    a, b = (values.leaf(rng.uniform(-1, 1, shape).astype("float32")) for shape in ((40, k), (320, k)))

    def compile_kernel(ast: UOp) -> Kernel:
        kernels.append(optimize(lower(ast), AVX512))
        return kernels[-1]

    check([matmul(a, b.permute((1, 0)))], values, compile_kernel)
    [kernel] = kernels
    packed = [s for phase in kernel.phases for s in walk(phase.body) if isinstance(s, For) and s.kind == LANE
              and any(isinstance(x, Store) and x.memory.op is o.LOCAL and x.memory.arg.name == "right" for x in s.body)]
    assert [s.range.arg.size for s in packed if linear(s.body[0].index)[1].get(s.range, 1) > 1] == blocks


@pytest.mark.parametrize("m,streams", [(5, True), (16, True), (64, True), (512, False)])
def test_a_right_factor_that_few_rows_use_is_not_packed(m: int, streams: bool) -> None:
    """It is read in place in short blocks of K, each of which is used by all rows before the next one."""
    move = _tiling_of(m, 768, 3072, replace(AVX512, l2_bytes=1 << 20))
    assert ("k_block=32" in move and "right=in_place" in move) is streams, move


@pytest.mark.parametrize("m,k,n,name,streams", [
    (37, 300, 1100, "avx512", True), (17, 208, 1023, "avx2", True), (9, 333, 500, "avx2", True),
    (37, 300, 1100, "neon", False), (96, 256, 1024, "avx512", False)])
def test_blocks_of_a_right_factor_that_few_rows_use(m: int, k: int, n: int, name: str, streams: bool,
                                                    rng: np.random.Generator) -> None:
    values, log = Inputs(), []
    target = replace(TARGETS[name], l2_bytes=512 << 10)
    x, y = (values.leaf(rng.uniform(-1, 1, shape).astype("float32")) for shape in ((m, k), (k, n)))
    check([matmul(x, y) + 1.0], values, compiler(target, log), f"{m} {k} {n}")
    assert ("k_block=16" in log[0]) is streams, log


@pytest.mark.parametrize("k,streams", [(48, False), (768, True)])
def test_sums_stay_in_memory_only_if_they_are_long(k: int, streams: bool) -> None:
    """They are cleared before the first block and read after the last one, however few blocks there are."""
    move = _tiling_of(64, k, (8 << 20) // k, replace(AVX512, l2_bytes=1 << 20))
    assert ("right=in_place" in move) is streams and ("k_block" in move) is streams, move


@pytest.mark.parametrize("n,where", [(784, "in_place"), (6272, "near")])
def test_a_right_factor_that_is_read_in_place_comes_from_a_near_cache(n: int, where: str) -> None:
    """Though a panel of either stays in the first-level cache."""
    move = _tiling_of(64, 64, n, replace(AVX512, l2_bytes=1 << 20, workers=1))
    assert f"right={where}" in move, move


@pytest.mark.parametrize("n,far", [(400, False), (2000, True)])
def test_a_right_factor_from_far_away_is_prefetched_as_it_is_packed(n: int, far: bool) -> None:
    kernel = _product(512, 512, n, replace(AVX512, l2_bytes=1 << 20, workers=1))
    fetched = {s.memory.arg.slot for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Prefetch)}
    assert "right=near" in kernel.moves[0] and (2 in fetched) is far, (kernel.moves, fetched)


def test_fewer_workers_pack_a_right_factor_less_often() -> None:
    """A task of fewer rows packs it again, so there are no more of them than the workers need."""
    one, few, many = (_tiling_of(1024, 1024, 1024, replace(AVX512, workers=workers)) for workers in (1, 4, 16))
    assert "block_m=171, block_n=1" in one and "block_m=57, block_n=1" in few, (one, few)
    assert "block_m=19, block_n=1" in many, many


SPACIOUS = replace(AVX512, l1_bytes=48 << 10, l2_bytes=2 << 20)


@pytest.mark.parametrize("m,k,n", [(190, 70, 287), (235, 323, 453), (251, 653, 42), (333, 555, 777), (64, 784, 128)])
@pytest.mark.parametrize("workers", [4, 16])
def test_a_product_has_enough_tasks_for_the_workers(m: int, k: int, n: int, workers: int) -> None:
    """More than one for each, since cores differ in speed; many workers do not wait for a packed factor either."""
    phases = _product(m, k, n, replace(SPACIOUS, workers=workers)).phases
    tasks = [math.prod(loop.range.arg.size for loop in task_loops(phase.body)[0]) for phase in phases]
    assert tasks[-1] >= 1.5 * workers, tasks
    assert len(tasks) == 1 or workers == 4, tasks


def test_tasks_write_whole_rows_where_rows_share_cache_lines() -> None:
    """Two tasks that wrote parts of a row would both write the line between them."""
    move, even = (_product(948, 9, n, replace(SPACIOUS, workers=8), transposed=True).moves[0] for n in (311, 320))
    assert "vectors=4" in move and "block_n=5" in move and "block_n=1" in even, (move, even)


def test_a_result_that_leaves_the_caches_is_written_row_by_row() -> None:
    """Where sums are short. Its other packed panels stay in the second-level cache meanwhile; else the next one."""
    for k, outer, inner in ((32, "mo", "no"), (600, "nb", "mo")):
        [phase] = _product(2000, k, 2000, replace(SPACIOUS, workers=1), transposed=True).phases
        loops = [s.range.arg.name for s in walk(phase.body) if isinstance(s, For)]
        assert loops.index(outer) < loops.index(inner), loops


@pytest.mark.parametrize("m,k,n", [(190, 70, 287), (235, 323, 453), (251, 653, 42), (13, 979, 35), (60, 1500, 20)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_have_the_same_blocks_of_k_for_any_number_of_workers(m: int, k: int, n: int, transposed: bool) -> None:
    """Hence the same bits."""
    targets = [replace(SPACIOUS, workers=workers) for workers in (1, 2, 4, 8, 16, 64)]
    found = [_product(m, k, n, target, transposed).moves[0] for target in targets]
    assert len({(move.split("(")[0], *re.findall(r"k_block=\d+", move)) for move in found}) == 1, found


def _tiling_of(m: int, k: int, n: int, target: Target) -> str:
    [move] = _product(m, k, n, target).moves
    return move


def _product(m: int, k: int, n: int, target: Target, transposed: bool = False) -> Kernel:
    x, y = (UOp(o.PARAM, FLOAT, (), Param(slot, shape))
            for slot, shape in ((1, (m, k)), (2, (n, k) if transposed else (k, n))))
    value = matmul(x, y.permute([1, 0]) if transposed else y)
    ast = UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (UOp(o.PARAM, FLOAT, (), Param(0, value.shape)), value)),))
    return optimize(lower(ast), target)


def test_nothing_is_packed_into_much_more_memory_than_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    x, row, column = (UOp(o.PARAM, FLOAT, (), Param(slot + 1, shape))
                      for slot, shape in enumerate([(32, 64), (1, 128), (64, 1)]))
    repeated = row.expand((64, 128)) + column.expand((64, 128))          # 8,192 elements of 192
    value = matmul(x, repeated)
    ast = UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (UOp(o.PARAM, FLOAT, (), Param(0, value.shape)), value)),))
    assert optimize(lower(ast), AVX512).moves[0].startswith("contract")
    monkeypatch.setattr(cpu, "MOST_PACKED", 4096)
    assert not any(move.startswith("contract") for move in optimize(lower(ast), AVX512).moves)


def test_unoptimized_is_one_task_of_plain_loops() -> None:
    x = UOp(o.PARAM, FLOAT, (), Param(1, (30, 40)))
    value = x.sum([1])
    ast = UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (UOp(o.PARAM, FLOAT, (), Param(0, value.shape)), value)),))
    kernel = unoptimized(lower(ast))
    assert {s.kind for p in kernel.phases for s in walk(p.body) if isinstance(s, For)} == {LOOP}
    assert kernel.moves == []


def test_tasks_are_worth_their_while() -> None:
    """Small work is one task; large work is at most `most_tasks` of at least about `task_steps` steps."""
    steps, most = AVX512.task_steps, AVX512.most_tasks
    for n, expected in ((100, 1), (steps, 1)):
        assert _tasks_of(n) == expected
    assert 8 <= _tasks_of(100 * steps) <= most
    assert _tasks_of(100_000 * steps) <= most


def test_where_tasks_are_free_every_independent_loop_is_one() -> None:
    x = UOp(o.PARAM, FLOAT, (), Param(1, (3, 4, 5, 7))).permute([1, 0, 2, 3])
    value = x.sum([3])
    ast = UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (UOp(o.PARAM, FLOAT, (), Param(0, value.shape)), value)),))
    tasks = {}
    for free in (False, True):
        loops, _ = task_loops(optimize(lower(ast), replace(AVX512, task_steps=1) if free else AVX512).phases[0].body)
        tasks[free] = math.prod(loop.range.arg.size for loop in loops)
    assert tasks == {False: 1, True: 3 * 4 * 5}


def _tasks_of(n: int) -> int:
    x = UOp(o.PARAM, FLOAT, (), Param(1, (n,)))
    ast = UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (UOp(o.PARAM, FLOAT, (), Param(0, (n,))), x + 1.0)),))
    body = optimize(lower(ast), AVX512).phases[0].body
    return body[0].range.arg.size if isinstance(body[0], For) and body[0].kind == TASK else 1


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    while len(sys.argv) < 3 or seed < int(sys.argv[2]):
        maker = Maker(seed)
        sinks = [s for s in dict.fromkeys(maker.graph(6)) if s not in maker.leaves]
        for name, target in TARGETS.items():
            try:
                check(sinks, maker.leaves, compiler(target))
            except (AssertionError, Bug) as error:
                print(f"seed {seed} for {name}: {error}", flush=True)
        seed += 1


if __name__ == "__main__":
    main()


@pytest.mark.parametrize("workers", [2, 16])
def test_a_vector_times_a_matrix_keeps_all_workers_busy(workers: int) -> None:
    """Parts of the columns go along whole rows; their number is the same for any number of workers."""
    [item] = (Tensor.rand(2000).realize() @ Tensor.rand(2000, 1500).realize()).schedule()
    kernel = optimize(lower(item.ast), replace(AVX512, workers=workers))
    loops, _ = task_loops(kernel.phases[0].body)
    assert "group(loop=k0, chunk=80)" in kernel.moves and loops[0].range.arg.size == 25, kernel.moves
