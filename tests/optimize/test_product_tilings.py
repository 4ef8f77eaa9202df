"""Which tiling a contraction gets: its family, where its factors are read, its blocks and tasks."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import AVX512, TARGETS, Inputs, check, compiler, matmul

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import linear
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LANE, For, Kernel, Prefetch, Store, task_loops, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.padding_copy import with_zeros
from glassgrad.compiler.optimize.product.conv_tile import conv_tiles
from glassgrad.compiler.optimize.product.dot_product_tile import dot_tiles
from glassgrad.compiler.optimize.product.recognize import Product, recognize
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target

FLOAT = dtypes.float32


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
        assert product is not None and product.of_matrices
        assert conv_tiles(product, target, Decisions()) is None
        assert dot_tiles(product, target, Decisions()) is None
        assert with_zeros(product, target.lanes(4)) is None


def test_a_convolution_of_one_channel_is_no_product_of_matrices() -> None:
    image, weights = (UOp(o.PARAM, FLOAT, (), Param(slot, shape)) for slot, shape in ((0, (100,)), (1, (16, 7))))
    windows = image.window(0, 7, 1, 1)
    left = windows.reshape((1, 94, 7)).expand((16, 94, 7))
    product = contraction_of((left * weights.reshape((16, 1, 7)).expand((16, 94, 7))).sum([2]))
    assert product is not None and not product.of_matrices


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
