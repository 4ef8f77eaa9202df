"""How groups of threads read memory: neighbours at once, several pieces ahead of long arithmetic, groups enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import HOPPER, Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LANE, TILE, Assign, For, Kernel, Store, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch

SMALL = replace(GPU, few_tasks=2)                 # a GPU that two groups keep busy: small cases take every path


def kernel_of(result: Tensor, target: object = HOPPER) -> Kernel:
    return optimize(lower(result.schedule()[-1].ast), target)  # type: ignore[arg-type]


def zeros(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor.zeros(*shape, dtype=dtype).contiguous().realize()


def reads_ahead(kernel: Kernel) -> bool:
    return any(isinstance(s, Assign) and str(s.register.arg).startswith("ahead") for p in kernel.phases
               for s in walk(p.body))


def test_long_arithmetic_reads_ahead() -> None:
    kernel = kernel_of(zeros(4096, 4096, dtype="bfloat16").gelu())
    tiles = [s.range.arg.size for s in walk(kernel.phases[0].body) if isinstance(s, For) and s.kind == TILE]
    assert reads_ahead(kernel) and tiles == [4, 8]
    source = make_source(kernel, HOPPER, "cuda")
    assert source.count("load_u16_8(data1") == 4 and source.count("store_u16_8_by_round_pair_bf16(data0") == 4
    assert source.rindex("load_u16_8(data1") < source.index("round_pair_bf16(data0")
    assert not reads_ahead(kernel_of(zeros(4096, 4096) * 2 + 1)), "short arithmetic"
    assert not reads_ahead(kernel_of(zeros(64, 64).gelu())), "too few groups are left"


@pytest.mark.parametrize("n, ahead", [(4096 * 64, True), (4096 * 33, True), (4096 * 64 + 40, True), (2048 * 33, False)])
def test_what_is_read_ahead_is_the_same(n: int, ahead: bool, rng: np.random.Generator) -> None:
    values = Inputs()
    x = Tensor(values.leaf(rng.standard_normal(n).astype("float32")))
    seen: list[Kernel] = []

    def compiled(ast: UOp) -> Kernel:
        seen.append(optimize(lower(ast), SMALL))
        return seen[-1]
    check(rewrite(written_out([x.gelu().uop]), ALGEBRA), values, compiled, f"gelu of {n}")
    assert [reads_ahead(kernel) for kernel in seen] == [ahead]


@pytest.mark.parametrize("n", [64, 1000, 4096 * 5 + 3])
def test_what_several_stores_need_is_read_first_and_the_same(n: int, rng: np.random.Generator) -> None:
    values = Inputs()
    x, y, z = (Tensor(values.leaf(rng.standard_normal(n).astype("float32"))) for _ in range(3))
    seen: list[Kernel] = []

    def compiled(ast: UOp) -> Kernel:
        seen.append(optimize(lower(ast), SMALL))
        return seen[-1]
    mean = x * 0.5 + y * 0.5
    check(rewrite([mean.uop, (mean * z).uop], ALGEBRA), values, compiled, f"two stores of {n}")
    if len(seen) == 1:                       # both in one kernel
        [innermost, *_] = [f.body for f in walk(seen[0].phases[0].body) if isinstance(f, For) and f.kind == LANE]
        assert [type(s) for s in innermost] == [Assign] * 3 + [Store] * 2


def test_rows_are_read_and_stored_by_neighbours() -> None:
    source = make_source(kernel_of(zeros(300, 4096, dtype="bfloat16").softmax(-1)), HOPPER, "cuda")
    assert "load_u16_8(data1" in source and "store_u16_8_by_round_pair_bf16(data0" in source
    assert "load_f32_4(data1" in make_source(kernel_of(zeros(300, 4096).layernorm()), HOPPER, "cuda")
    assert "load_f32_4(" not in make_source(kernel_of(zeros(300, 4001).layernorm()), HOPPER, "cuda"), "odd rows"


def test_few_columns_are_spread_over_more_groups() -> None:
    kernel = kernel_of(zeros(1, 4096, dtype="bfloat16") @ zeros(4096, 14336, dtype="bfloat16"))
    parts, joined = gpu_launch(kernel).phases
    assert parts[1:3] == (224, 256) and joined[1:3] == (112, 128)
    assert gpu_launch(kernel_of(zeros(8192, 8192) + 1)).phases[0][2] == 256


@pytest.mark.parametrize("columns, width", [(768, 256), (3072, 1024), (2304, 256), (1000, 2048)])
def test_sums_over_few_columns_are_cut_until_a_gpu_is_busy(columns: int, width: int) -> None:
    """A part has as few rows as keep all processors at work; threads have as many neighbours as divide a row."""
    kernel = kernel_of(zeros(8192, columns, dtype="bfloat16").float().sum(0))
    _, groups, threads, _ = gpu_launch(kernel).phases[0]
    assert groups * threads >= 132 * 256 and (f"tile={width // threads}," in kernel.moves[1] or columns % width)


def test_what_is_read_once_is_not_kept_by_a_processors_cache() -> None:
    """Where sums read it: of a vector times a matrix the matrix; not of convolutions, nor where as much is stored."""
    x, image = zeros(1024, 4096), zeros(8, 64, 56, 56)
    for value, once in ((x.sum(0), True), (x.sum(1), True), (zeros(1, 1024) @ x, True), (x * 2, False),
                        (x.softmax(-1), False), (image.conv2d(zeros(64, 1, 3, 3), padding=1, groups=64), False)):
        assert ("L1::no_allocate" in make_source(kernel_of(value), HOPPER, "cuda")) == once


def test_threads_that_are_left_over_read_nothing() -> None:
    source = make_source(kernel_of(zeros(100_000, 72)[:, :64].sum(1)), HOPPER, "cuda")
    reads = [line.strip() for line in source.splitlines() if line.strip().startswith("load_") and "data1" in line]
    assert len(reads) == 2 and reads[1].startswith("load_f32_4_if(thread < 160, data1")


@pytest.mark.parametrize("rows, held, together", [(300, 8192, True), (200, 8192, True), (200, 69, False)])
def test_reductions_of_the_same_rows_share_a_kernel(rows: int, held: int, together: bool,
                                                    rng: np.random.Generator) -> None:
    """A norm's mean and deviation, which its gradient needs too; few rows that no group of threads holds would be cut
    into parts, each by itself."""
    values = Inputs()
    x = Tensor(values.leaf(rng.standard_normal((rows, 70)).astype("float32")))
    y = (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True) + 1e-5).rsqrt()
    seen: list[Kernel] = []

    def compiled(ast: UOp) -> Kernel:
        seen.append(optimize(lower(ast), GPU))
        return seen[-1]
    sums = [x.mean(-1), (x - x.mean(-1, keepdim=True)).square().sum(-1), x.max(-1), y.sum(0)]
    check(rewrite([t.uop for t in sums], ALGEBRA), values, compiled, limits=GPU.fusion._replace(held_row=held))
    assert any(len(kernel.written) > 1 and "r70_r70" in kernel.name for kernel in seen) == together


def test_float32_tiles_have_two_stages_where_they_fit() -> None:
    a, b = zeros(512, 512), zeros(512, 512)
    assert "stages=2" in kernel_of(a @ b).moves[0] and make_source(kernel_of(a @ b), HOPPER, "cuda").count(
        "__syncthreads();") == 3                                          # before the loop, and once in each of 2 steps
    assert "stages=1" in kernel_of(a @ b, replace(HOPPER, group_bytes=10 << 10)).moves[0]
    assert "stages=1" in kernel_of(zeros(512, 64) @ zeros(64, 512)).moves[0]


@pytest.mark.parametrize(("rows", "size"), [(300, 20001), (2048, 5003)])
def test_a_long_row_of_a_map_is_several_tasks_which_read_four_numbers_first(rows: int, size: int) -> None:
    kernel = kernel_of((lambda x: (x - x[:, :1]).exp() * 0.5)(zeros(rows, size)))
    assert gpu_launch(kernel).phases[0][1] >= rows * (size // 1024)
    assert kernel.moves[0] == "lanes(loop=i1, tile=4, lanes=256)"
