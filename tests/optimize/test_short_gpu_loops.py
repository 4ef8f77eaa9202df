"""Loops shorter than a group of threads (plain/short_gpu_loops.py): what they compute, and which way is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import HOPPER, Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.index_algebra import add, divide, modulo, multiply
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel, counter
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.plain.short_gpu_loops import GroupNest, in_threads, pieces, shared_loops
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.launch_info import launch_info
from glassgrad.runtime.gpu import nvrtc

SMALL = replace(GPU, vector_bytes=64, few_tasks=6)       # 16 threads in a group, and 6 groups keep it busy
Make = Callable[..., Tensor]


def normalized(x: Tensor) -> Tensor:
    """Batch normalization, as a formula: two sums for each channel."""
    mean = x.mean((0, 2, 3), keepdim=True)
    return (x - mean) * (((x - mean) ** 2).mean((0, 2, 3), keepdim=True) + 0.1).rsqrt()


def pooled_gradient(x: Tensor) -> Tensor:
    return (normalized(x).max_pool2d((2, 2)) ** 2).sum().gradient(x)[0]


def enlarged(x: Tensor) -> Tensor:
    """Twice as many rows and columns, each pixel mixed with its neighbours by where it lies."""
    n, c, h, w = x.shape[0], x.shape[1], x.shape[2] - 1, x.shape[3] - 1
    corners = [x[:, :, i:i + h, j:j + w].reshape(n, c, h, 1, w, 1).expand(n, c, h, 2, w, 2)
               for i in (0, 1) for j in (0, 1)]
    row, column = Tensor.arange(2).reshape(1, 1, 1, 2, 1, 1), Tensor.arange(2)
    out = corners[0] * (1 - row) + corners[1] * row * column + corners[2] * column - corners[3]
    return out.reshape(n, c, 2 * h, 2 * w)


def depthwise_gradient(x: Tensor, by_weights: bool) -> Tensor:
    channels = x.shape[1]
    weights = x[0, :, :3, :3].reshape(channels, 1, 3, 3).contiguous()
    image = (x * 2).contiguous()
    product = image.conv2d(weights, groups=channels, padding=1) * x.contiguous()
    found = product.sum().gradient(weights if by_weights else image)[0].uop
    return Tensor(join_sums(rewrite(written_out([found]), ALGEBRA))[0])


EXPRESSIONS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "sums for each channel": (lambda x: x.sum((0, 2, 3)), (40, 3, 5, 7)),
    "products of rows": (lambda x: (x * x).max((0, 2)), (30, 5, 22)),
    "sums of pixels in pieces": (lambda x: (x * (x - x[:1, :, :1, :1])).sum((0, 2, 3)), (19, 3, 6, 8)),
    "a map of short rows in pieces": (lambda x: (x - x[:1, :, :1, :1]).cast("float16"), (3, 5, 6, 4)),
    "a sum whose length is prime": (lambda x: x.sum((0, 2, 3)), (37, 2, 11, 13)),
    "two sums for each channel": (lambda x: x.sum((0, 2)) / (x * x).sum((0, 2)), (60, 3, 21)),
    "a sum of a sum": (lambda x: x.var((0, 2)), (60, 3, 21)),
    "windows": (lambda x: x.max_pool2d((2, 2)), (3, 4, 10, 6)),
    "windows that overlap": (lambda x: x.avg_pool2d((3, 3), 1), (9, 4, 10, 6)),
    "windows of all channels": (lambda x: x.conv2d(x[:1, :, :3, :3], padding=1), (15, 4, 8, 6)),
    "windows of rows that nothing divides": (lambda x: x.avg_pool2d((3, 2), 1), (5, 4, 9, 6)),
    "windows of each channel, by the image": (lambda x: depthwise_gradient(x, False), (12, 6, 8, 6)),
    "windows of each channel, by the weights": (lambda x: depthwise_gradient(x, True), (6, 40, 8, 8)),
    "normalized": (normalized, (20, 3, 6, 5)),
    "normalized, pooled, by the input": (pooled_gradient, (12, 3, 6, 4)),
    "a map with a row for each channel": (lambda x: x * x[:1, :, :1, :1] + 1, (5, 3, 4, 8)),
    "a map out of order": (lambda x: x.permute(0, 2, 1) + 1, (5, 6, 7)),
    "a sum of sums that are not read in order": (lambda x: ((x[:, :4].sum(1) + 1) ** 2).sum(), (90, 9)),
    "sums over the first axis": (lambda x: x.sum(0), (300, 7)),
    "short rows": (lambda x: x.sum(1), (70, 8)),
    "rows that two loops count": (lambda x: (x + Tensor.arange(40).reshape(1, 40, 1).sin()).sum((0, 1)), (9, 40, 300)),
    "neighbours that read the same": (enlarged, (5, 3, 9, 12)),
    "neighbours that read the same, of odd rows": (enlarged, (6, 3, 7, 5)),
    "rows that read the same": (lambda x: (x[:4].sum(0, keepdim=True) * Tensor.arange(6).reshape(6, 1, 1, 1)).exp(),
                                (4, 5, 7, 9)),
    "integers": (lambda x: x.cast("int32").sum((0, 2)), (60, 3, 21)),
}


def tree(ast: UOp, target: Target) -> Kernel:
    return optimize(lower(ast, keep_bytes=target.row_bytes), target)


def test_a_thread_has_neighbours_that_read_the_same_where_threads_are_left() -> None:
    x = Tensor(Inputs().leaf(np.zeros((5, 3, 9, 13), np.float32)))
    found = GroupNest.of(lower(enlarged(x).schedule()[-1].ast).phases[0].body)
    assert found is not None and found.results == 5 * 3 * 16 * 24

    def neighbours(few_tasks: int) -> list[int]:
        return [*shared_loops(found, replace(SMALL, few_tasks=few_tasks)).values()]
    assert neighbours(few_tasks=90) == [2, 2], "16 threads in each of 90 groups have four results"
    assert neighbours(few_tasks=91) == [2]
    assert neighbours(few_tasks=181) == []


@pytest.mark.parametrize("target", [SMALL, replace(SMALL, few_tasks=60), GPU], ids=["small", "more groups", "gpu"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_threads_along_short_loops_compute_the_same(name: str, target: Target) -> None:
    make, shape = EXPRESSIONS[name]
    values = Inputs()
    x = Tensor(values.leaf(np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)))
    check([make(x).uop], values, lambda ast: tree(ast, target), name)


def kernel(make: Make, *shape: int) -> Kernel:
    """The one kernel of an expression, for an H200."""
    [item] = make(Tensor.zeros(*shape, device="CPU").contiguous().realize()).schedule()
    return tree(item.ast, HOPPER)


def groups(made: Kernel) -> list[int]:
    return [tasks for _, tasks in launch_info(made).phases]


def test_a_long_sum_for_each_of_few_channels_is_cut_and_folded() -> None:
    """The mean of a batch: threads go along all pixels of a channel, and parts of them keep the processors busy."""
    made = kernel(lambda x: x.sum((0, 2, 3)), 512, 32, 20, 20)
    assert made.moves == ["group(loop=k0, chunk=6400)", "fold(loop=k0, tile=4, lanes=256)",
                          "fold(loop=k0g, tile=4, lanes=256)"]
    assert groups(made) == [1024, 32]


def test_sums_over_images_of_pixels_read_neighbours_at_once() -> None:
    """A part is never the whole sum, whatever divides that; and pieces divide an image."""
    x, g = (Tensor.zeros(64, 512, 14, 14, dtype="bfloat16").contiguous().realize() for _ in range(2))
    mean, scale = (Tensor.zeros(1, 512, 1, 1).contiguous().realize() for _ in range(2))
    [item] = (g.cast("float32") * ((x.cast("float32") - mean) * scale)).sum((0, 2, 3)).schedule()
    made = tree(item.ast, HOPPER)
    assert groups(made)[0] == 1024 and made.moves[1] == "fold(loop=k0, tile=4, lanes=256)"


def test_short_rows_of_a_map_share_a_group() -> None:
    image, scale = Tensor.zeros(8, 64, 14, 14, dtype="bfloat16"), Tensor.zeros(1, 64, 1, 1)
    image, scale = image.contiguous().realize(), scale.contiguous().realize()
    [item] = (image.cast("float32") * scale).cast("bfloat16").schedule()
    made = tree(item.ast, HOPPER)
    assert made.moves[0] == "lanes(loop=i0, tile=4, lanes=256)" and groups(made) == [8 * 64 * 14 * 14 // 1024]


def test_a_pooling_window_belongs_to_one_thread() -> None:
    made = kernel(lambda x: x.max_pool2d((2, 2)), 512, 32, 20, 20)
    assert made.moves[0] == "lanes(loop=i0, tile=4, lanes=256)" and groups(made) == [512 * 32 * 100 // 1024]


def test_a_pool_stores_a_byte_of_each_window_for_its_gradient() -> None:
    """Which of its elements is the largest is found with the largest, by the same thread; the gradient reads that."""
    values, made = Inputs(), list[Kernel]()
    x, g = (Tensor(values.leaf(np.random.default_rng(n).standard_normal(shape).astype(np.float32)))
            for n, shape in enumerate([(12, 5, 20, 20), (12, 5, 10, 10)]))

    def compiled(ast: UOp) -> Kernel:
        made.append(tree(ast, replace(GPU, few_tasks=6)))
        return made[-1]
    most = x.max_pool2d((2, 2))
    sinks = written_out([most.uop, most.gradient(x, gradient=g)[0].uop])
    check(join_sums(rewrite(sinks, ALGEBRA)), values, compiled, "pooled", GPU.fusion)
    assert [[k.params[n].dtype.name for n in k.written] for k in made] == [["float32", "uint8"], ["float32"]]
    assert made[0].moves[0].startswith("lanes") and math.prod(made[0].params[1].shape) == 12 * 5 * 10 * 10


def test_a_thread_reads_once_what_windows_of_its_rows_share() -> None:
    """Eight rows of a depthwise 3x3: 30 pixels and 9 weights, where each result by itself would read 9 of both."""
    x, w = Tensor.zeros(32, 256, 56, 56).contiguous().realize(), Tensor.zeros(256, 1, 3, 3).contiguous().realize()
    [item] = x.conv2d(w, groups=256, padding=1).schedule()
    made = tree(item.ast, HOPPER)
    assert made.moves[:2] == ["strips(loop=i3, rows=8)", "lanes(loop=i0, tile=1, lanes=256)"]
    source = make_source(made, HOPPER, "cuda")
    assert (source.count("data1["), source.count("data2["), source.count("fmaf(")) == (30, 9, 72)


def test_gradients_of_a_depthwise_convolution_read_windows_once() -> None:
    """By the image as forward. By the weights a thread has eight columns of all seven taps of a row: 14 pixels."""
    shapes = (32, 96, 56, 56), (96, 1, 7, 7), (32, 96, 56, 56)
    x, w, g = (Tensor.zeros(*shape).contiguous().realize() for shape in shapes)
    product = (x.conv2d(w, groups=96, padding=3) * g).sum()
    [by_image], [by_weights] = (product.gradient(leaf)[0].schedule() for leaf in (x, w))
    assert tree(by_image.ast, HOPPER).moves[0] == "strips(loop=i2, rows=8)"
    made = tree(by_weights.ast, HOPPER)
    source = make_source(made, HOPPER, "cuda")
    assert groups(made) == [96 * 7] and source.count("fmaf(") == 7 * 4 and source.count(" data2[") == 10


def test_two_sums_of_few_channels_are_cut_one_by_one() -> None:
    made = kernel(lambda x: (x * x.sum((0, 2, 3), keepdim=True)).sum((0, 2, 3)), 512, 32, 20, 20)
    assert groups(made) == [1024, 32, 1024, 32]


def test_two_sums_that_do_not_need_each_other_are_one_loop() -> None:
    made = kernel(lambda x: (x.sum((0, 2, 3)) / (x * x).sum((0, 2, 3))), 512, 32, 20, 20)
    assert groups(made) == [1024, 32]


def test_long_loops_stay_as_they_are() -> None:
    for axis in (0, 1):
        [item] = Tensor.zeros(4096, 8192).contiguous().realize().sum(axis).schedule()
        [phase] = lower(item.ast).phases
        assert in_threads(moves.merge_all(phase.body), HOPPER, Decisions()) is None


@pytest.mark.parametrize("rows, size", [(1, 20_000_003), (7, 3_000_017), (200, 110_001)])
def test_few_long_rows_are_cut_into_parts_that_keep_threads_busy(rows: int, size: int) -> None:
    x = Tensor.zeros(rows, size).contiguous().realize()
    for item in (*x.sum(-1).schedule(), *x.max(-1).schedule()):
        first, second = groups(tree(item.ast, HOPPER))
        assert 1900 <= first <= 2200 and second in (1, rows)


@pytest.mark.parametrize("size", [4096, 65536, 100_000])
def test_all_threads_of_a_group_add_to_one_sum(size: int) -> None:
    kernel = optimize(lower(Tensor.zeros(size).contiguous().realize().sum().schedule()[-1].ast), HOPPER)
    assert kernel.moves[-1].startswith("fold(") and not any(move.startswith("lanes(") for move in kernel.moves)


@pytest.mark.parametrize(("shape", "chunk"), [((3000, 7001), 10240), ((7, 4_857_142), 16384)])
def test_long_parts_are_whole_steps_whose_loads_are_all_on_their_way(shape: tuple[int, ...], chunk: int) -> None:
    """Where the last part is shorter, a loop's end varies: unrolled by more steps than it has, none would be."""
    x = Tensor.zeros(*shape).contiguous().realize()
    kernel = optimize(lower((x.sum() if shape[0] > 7 else x.sum(-1)).schedule()[-1].ast), HOPPER)
    assert kernel.moves[0] == f"group(loop=k0, chunk={chunk})"
    source = make_source(kernel, HOPPER, "cuda")
    assert f"#pragma unroll {chunk // 1024}\n  for (i32 k0o = 0; k0o < v2;" in source


def test_pieces_of_memory_that_a_warp_touches() -> None:
    lane = counter("lane", 1024)
    assert pieces(lane, lane, 4) == 4 and pieces(lane, lane, 2) == 2
    assert pieces(multiply(lane, 2), lane, 4) == 8 and pieces(multiply(lane, 100), lane, 4) == 32
    assert pieces(divide(lane, 8), lane, 4) == 1 and pieces(counter("other", 9), lane, 4) == 1
    assert pieces(add(multiply(divide(lane, 4), 400), modulo(lane, 4)), lane, 4) == 8


@needs_nvrtc
@pytest.mark.parametrize("name", ["normalized, pooled, by the input", "a sum of a sum"])
def test_the_sources_compile(name: str) -> None:
    make, shape = EXPRESSIONS[name]
    for item in make(Tensor.zeros(64, *shape[1:]).contiguous().realize()).schedule():
        assert nvrtc.compile_cuda(make_source(tree(item.ast, HOPPER), HOPPER, "cuda"), "sm_90a")


OVERLAPPING = {"even": ((2, 3, 12, 8), 1), "odd": ((2, 3, 11, 8), 2)}     # an image, and phases of its gradient


@pytest.mark.parametrize("name", OVERLAPPING)
def test_remainders_of_a_pooled_gradient_are_side_by_side(name: str) -> None:
    """Every second row and column has taps of its own: those of equal length are one nest."""
    shape, phases = OVERLAPPING[name]
    values, made = Inputs(), list[Kernel]()
    x = Tensor(values.leaf(np.random.default_rng(5).standard_normal(shape).astype(np.float32)))

    def compiled(ast: UOp) -> Kernel:
        made.append(tree(ast, GPU))
        return made[-1]
    gradient = (normalized(x).max_pool2d(3, 2, padding=1) ** 2).sum().gradient(x)[0]
    check([gradient.uop], values, compiled, name, GPU.fusion)
    strided = [k for k in made if k.params[0].shape == shape and k.name.endswith("r3_r3")]
    assert [len(k.phases) for k in strided] == [phases]


def test_a_window_reads_its_image_without_the_padding() -> None:
    """What a pooling window reads is stored as it is, not with the values around it."""
    values, shapes = Inputs(), list[tuple[int, ...]]()
    x = Tensor(values.leaf(np.random.default_rng(6).standard_normal((2, 3, 12, 8)).astype(np.float32)))

    def compiled(ast: UOp) -> Kernel:
        shapes.append(tree(ast, GPU).params[0].shape)
        return tree(ast, GPU)
    check([x.exp().max_pool2d(3, 2, padding=1).uop], values, compiled, "padded", GPU.fusion)
    assert (2, 3, 12, 8) in shapes and (2, 3, 14, 10) not in shapes
