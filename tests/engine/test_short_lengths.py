"""Kernels for all sizes at few rows, keys or terms, and at run-time strides: what runs, by which threads; results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from changing_programs import data, general_graphs
from loop_kernels import AVX2, AVX512, TARGETS

from glassgrad import Context, Device, ShapeError, Tensor, TinyJit, Variable
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import linear
from glassgrad.compiler.lower.loops import LANE, Accumulate, For, Kernel, Store, loads_in, ranges_of, task_loops, walk
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import build, kernel_of
from glassgrad.compiler.render.launch_info import launch_info
from glassgrad.engine.changing_sizes.general_graph import GeneralGraph
from glassgrad.runtime.cpu.worker_pool import WorkerPool

pytestmark = pytest.mark.usefixtures("fresh_schedules")
LENGTHS = (5, 6, 7, 2, 8, 15, 16, 17, 31, 33, 64, 65, 100, 129, 300)
Program = Callable[[int], Tensor]


def general_for(program: Program) -> GeneralGraph:
    """What serves all lengths of a program."""
    for n in (5, 6, 7):
        program(n).realize()
    [general] = general_graphs()
    return general


def general_of(program: Program) -> GeneralGraph:
    """The same, of a program that was preceded by others."""
    before = general_graphs()
    for n in (5, 6, 7):
        program(n).realize()
    [general] = [each for each in general_graphs() if each not in before]
    return general


def kernels_of(program: Program, target: Target = AVX512) -> list[Kernel]:
    """The loop trees that serve all lengths, by default for AVX-512."""
    return [kernel_of(item.ast, target) for item in general_for(program).compiled.items]


def used_phases(kernel: Kernel, n: int) -> list[int]:
    """The phases that have tasks for a length."""
    by_value = {cut.phase: cut for cut in launch_info(kernel).by_value}
    return [phase for phase in range(len(kernel.phases)) if phase not in by_value or by_value[phase].at(n)]


def check_all_lengths(program: Callable[[Tensor], Tensor], shape: Callable[[int], tuple[int, ...]],
                      lengths: tuple[int, ...] = LENGTHS) -> None:
    for n in lengths:
        x = data(shape(n))
        got = program(Tensor(x)).numpy()
        with Context(NOOPT=1, DYNAMIC=0):
            want = program(Tensor(x)).numpy()
        rounding = 2e-5 + 1e-6 * np.abs(want).max()          # of sums in another order, whose terms may cancel
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=rounding, err_msg=f"{shape(n)}")
    assert general_graphs()


IMAGES: dict[str, tuple[Callable[[int], tuple[int, ...]], Callable[[Tensor], Tensor]]] = {
    "batches": (lambda n: (n, 4, 9, 9), lambda x: x.conv2d(WEIGHTS[2], padding=1)),
    "rows": (lambda n: (1, 4, n, 16), lambda x: x.conv2d(WEIGHTS[2], padding=1)),
    "every other row": (lambda n: (1, 4, n, 16), lambda x: x.conv2d(WEIGHTS[2], padding=1, stride=2)),
    "columns": (lambda n: (2, 4, 5, n), lambda x: x.conv2d(WEIGHTS[2], padding=(1, 2))),
    "signals": (lambda n: (3, 4, n), lambda x: x.conv2d(WEIGHTS[1], padding=2)),
    "squares": (lambda n: (1, 4, n, n), lambda x: x.conv2d(WEIGHTS[2], padding=1)),
    "every other pixel": (lambda n: (1, 4, n, n), lambda x: x.conv2d(WEIGHTS[2], padding=1, stride=2)),
    "every other column": (lambda n: (2, 4, 5, n), lambda x: x.conv2d(WEIGHTS[2], padding=1, stride=2)),
    "every other number": (lambda n: (3, 4, n), lambda x: x.conv2d(WEIGHTS[1], padding=1, stride=2)),
    "greatest of two rows": (lambda n: (2, 4, n, 10), lambda x: x.max_pool2d(2)),
    "means of two": (lambda n: (2, 4, n), lambda x: x.avg_pool2d((2,))),
    "means of three": (lambda n: (2, 4, n), lambda x: x.avg_pool2d((3,), stride=1, padding=1))}
WEIGHTS = {rank: Tensor(data((5, 4, *[3] * rank))) for rank in (1, 2)}


@pytest.mark.parametrize("name", IMAGES)
def test_windows_and_their_gradients_are_right_at_every_length(name: str) -> None:
    shape, window = IMAGES[name]

    def gradients(x: Tensor) -> Tensor:
        weight = WEIGHTS[len(x.shape) - 2]
        out = window(x)
        of_input, of_weight = (out * out).sum().gradient(x, weight) if "conv" in window.__code__.co_names else \
            (*(out * out).sum().gradient(x), Tensor([0.0]))
        return Tensor.cat(out.reshape(-1), of_input.reshape(-1), of_weight.reshape(-1))
    check_all_lengths(gradients, shape, (5, 6, 7, 2, 8, 16, 17, 33, 65))


LINES: dict[str, tuple[Callable[[int], tuple[int, ...]], Callable[[Tensor], Tensor]]] = {
    "columns": (lambda n: (2, 8, 12, n), lambda x: x.conv2d(FILTERS[3], padding=1).relu()),
    "rows and columns": (lambda n: (1, 8, n, n), lambda x: x.conv2d(FILTERS[3], padding=1)),
    "far beyond the edges": (lambda n: (1, 8, 12, n), lambda x: x.conv2d(FILTERS[7], padding=3)),
    "no edges": (lambda n: (2, 8, 12, n + 2), lambda x: x.conv2d(FILTERS[3])),
    "an edge at one end": (lambda n: (2, 8, 12, n),
                           lambda x: x.pad(((0, 0), (0, 0), (0, 0), (2, 0))).conv2d(FILTERS[3])),
    "taps apart": (lambda n: (2, 8, 12, n), lambda x: x.conv2d(FILTERS[3], padding=4, dilation=4)),
    "and an image is added": (lambda n: (2, 8, 12, n), lambda x: x.conv2d(FILTERS[3][:8], padding=1) * 2 + x),
    "signals": (lambda n: (4, 8, n), lambda x: x.conv2d(FILTERS[3][:, :, 0], padding=1)),
    "every other pixel": (lambda n: (1, 8, n, n), lambda x: x.conv2d(FILTERS[3], padding=1, stride=2)),
    "every third pixel": (lambda n: (1, 8, n + 1, n), lambda x: x.conv2d(FILTERS[3], padding=1, stride=3)),
    "every other pixel of 7": (lambda n: (1, 8, n, n), lambda x: x.conv2d(FILTERS[7], padding=3, stride=2)),
    "single pixels": (lambda n: (1, 8, n, n), lambda x: x.conv2d(FILTERS[3][:, :, :1, :1])),
    "every other single pixel": (lambda n: (2, 8, n, n), lambda x: x.conv2d(FILTERS[3][:, :, :1, :1], stride=2)),
    "long sums": (lambda n: (1, 130, 4, n), lambda x: x.conv2d(FILTERS[0], padding=1))}
FILTERS = {taps: Tensor(data((24, 8, taps, taps))) for taps in (3, 7)} | {0: Tensor(data((17, 130, 3, 3)))}


@pytest.mark.parametrize("name", LINES)
def test_images_of_any_width_are_right(name: str) -> None:
    """Widths at both ends of each version's range, and where the last tiles of a row just reach an edge or do not."""
    shape, window = LINES[name]
    lengths = (5, 6, 7, *range(2, 31), 63, 64, 65, 66, 77, 78, 79, 80, 90, 91, 92, 130, 300)
    check_all_lengths(lambda x: window(x) / 8, shape, lengths)


FEW_CHANNELS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "colors": ((3, 28, 28), lambda x: x.conv2d(FILTERS[3][:8, :3], padding=1).relu()),
    "no edges": ((3, 28, 28), lambda x: x.conv2d(FILTERS[3][:8, :3])),
    "wide filters": ((1, 20, 30), lambda x: x.conv2d(FILTERS[7][:6, :1], padding=3)),
    "a mean per channel is added": ((3, 20, 20), lambda x: x.conv2d(FILTERS[3][:9, :3], padding=1) + x.mean()),
    "groups": ((8, 14, 14), lambda x: x.conv2d(FILTERS[3][:8, :2], padding=1, groups=4)),
    "cast": ((3, 18, 18), lambda x: (x * 3).cast("int8").cast("float32").conv2d(FILTERS[3][:8, :3], padding=1)),
    "single pixels": ((16, 14, 14), lambda x: x.conv2d(FILTERS[3].reshape(108, 16)[:32].reshape(32, 16, 1, 1))),
    "images last": ((3, 20, 20), lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2).conv2d(
        FILTERS[3][:8, :3], padding=1))}


@pytest.mark.parametrize("name", FEW_CHANNELS)
def test_any_number_of_images_of_few_channels_is_right(name: str) -> None:
    shape, window = FEW_CHANNELS[name]
    check_all_lengths(lambda x: window(x) / 8, lambda n: (n, *shape), (5, 6, 7, 2, 8, 16, 33, 65))


@pytest.mark.parametrize("name", ["colors", "one channel", "each channel by itself"])
def test_gradients_of_weights_by_any_number_of_images_are_right(name: str) -> None:
    shape, weight, groups = OF_IMAGES[name]

    def gradient(x: Tensor) -> Tensor:
        scale = (x.mean(1, keepdim=True).expand(x.shape[0], weight.shape[0], *shape[1:]) * 2).contiguous()
        return (x.conv2d(weight, padding=1, groups=groups) * scale).sum().gradient(weight)[0] / 100
    check_all_lengths(gradient, lambda n: (n, *shape), (5, 6, 7, 2, 8, 16, 33, 65))


OF_IMAGES: dict[str, tuple[tuple[int, ...], Tensor, int]] = {
    "colors": ((3, 28, 28), Tensor(data((8, 3, 3, 3))), 1),
    "one channel": ((1, 20, 33), Tensor(data((6, 1, 3, 3))), 1),
    "each channel by itself": ((16, 14, 14), Tensor(data((16, 1, 3, 3))), 16)}


@pytest.mark.parametrize("padding", [1, 0])
@pytest.mark.parametrize("name", ["colors", "each channel by itself"])
def test_images_of_few_channels_are_tiled_as_a_fixed_number_is(name: str, padding: int) -> None:
    """Each is a task, which copies it with its zeros. In blocks of images, a vector was columns of several of them, and
    each channel by itself was computed by plain loops. So was the gradient by its weights, which sums over images."""
    shape, weight, groups = OF_IMAGES[name]

    def window(n: int) -> Tensor:
        return Tensor(data((n, *shape))).realize().conv2d(weight, padding=padding, groups=groups)

    def gradient(n: int) -> Tensor:
        image, scale = Tensor(data((n, *shape))).realize(), Tensor(data(window(n).shape)).realize()
        return (image.conv2d(weight, padding=padding, groups=groups) * scale).sum().gradient(weight)[0]
    for program, start in ((window, ("window(", "contract(")), (gradient, ("taps(",))):
        with Context(DYNAMIC=0):
            [*_, fixed] = program(33).schedule()
        kernel = kernel_of(general_of(program).compiled.items[-1].ast, AVX512)
        assert kernel.moves == kernel_of(fixed.ast, AVX512).moves and kernel.moves[0].startswith(start)


def test_images_that_a_fixed_number_has_around_its_tiles_are_in_no_blocks() -> None:
    """Fewer than 16 images took up to four times as long, as their pixels were packed in vectors past the end."""
    weight = Tensor(data((32, 16, 1, 1)))

    def program(n: int) -> Tensor:
        return Tensor(data((n, 16, 14, 14))).realize().conv2d(weight)
    with Context(DYNAMIC=0):
        [fixed] = program(33).schedule()
    [kernel] = kernels_of(program)
    assert kernel.moves == kernel_of(fixed.ast, AVX512).moves and "right=in_place" in kernel.moves[0]


@pytest.mark.parametrize("images,rows", [(4, 16), (1, 0)])
def test_images_of_any_width_are_read_in_place(images: int, rows: int) -> None:
    """As one for a single width is, without masks."""
    weight = Tensor(data((32, 16, 3, 3)))
    [kernel] = kernels_of(lambda n: Tensor(data((images, 16, rows or n, n))).realize().conv2d(weight, padding=1), AVX2)
    assert {move.split("(")[0] for move in kernel.moves} == {"direct"}
    assert 2 <= len(kernel.moves) <= 1 + len(cpu.POSITIONS), "one range may be too little work for a version"
    used = [used_phases(kernel, n) for n in (3, 4, 7, 8, 13, 14, 63, 64, 1000)]
    assert all(used[i] == used[i + 1] for i in (1, 3, 5, 7)), "each width runs one version,"
    assert len({tuple(phases) for phases in used}) == len(kernel.moves), "of its range"


@pytest.mark.parametrize("shape", [(4, 16, 0), (4, 16, 16, 0), (1, 16, 0, 0)])
@pytest.mark.parametrize("taps", [3, 5])
def test_positions_of_all_rows_are_one_axis_where_vectors_are_masked(shape: tuple[int, ...], taps: int) -> None:
    """Blocks whose taps are all in memory, and those at its ends; no versions by the width, no tiles for the edges of
    rows. With these, squares of 33 to 100 took 1.1 to 1.5 times the time of a kernel for a single size, and those of
    fewer positions than a tile has 3 to 8 times."""
    weight = Tensor(data((32, 16, *[taps for _ in shape[2:]])))
    [kernel] = kernels_of(lambda n: Tensor(data(tuple([size or n for size in shape]))).realize().conv2d(
        weight, padding=taps // 2))
    assert kernel.moves == [
        "contract(rows=8, vectors=2, lanes=16, block_m=4, block_n=1, left=in_place, right=in_place, ahead=no)",
        "contract(rows=16, vectors=1, lanes=16, block_m=2, block_n=1, left=in_place, right=in_place, ahead=no)"]
    assert [used_phases(kernel, n) for n in (2, 300)] == [[1], [0, 1]]
    between, ends = (loads_in(phase.body) for phase in kernel.phases)
    assert not any(len(n.src) == 3 for n in between) and any(len(n.src) == 3 for n in ends)


def test_a_task_goes_along_one_image_for_some_blocks() -> None:
    """Of rows of 1000, tasks of a block each that changed images took 1.8 times as long as a kernel for that length."""
    weight = Tensor(data((8, 4, 3, 3)))

    def convolution(x: Tensor) -> Tensor:
        return x.conv2d(weight, padding=1)
    [kernel] = kernels_of(lambda n: convolution(Tensor(data((3, 4, 5, n)))))
    tasks, [along] = task_loops(kernel.phases[0].body)
    assert len(tasks) == 2 and tasks[1].range.arg.size == 3 and isinstance(along, For)
    check_all_lengths(convolution, lambda n: (3, 4, 5, n), (33, 34, 35, 5, 102, 103, 204, 310, 205))


def test_every_other_position_of_a_signal_is_read_in_place() -> None:
    """Windows were packed: 1.2 to 1.3 times the time of a kernel for a single length, from 17 on; now 0.95 to 1.15."""
    weight = Tensor(data((32, 16, 3)))
    [kernel] = kernels_of(lambda n: Tensor(data((4, 16, n))).realize().conv2d(weight, padding=1, stride=2))
    assert len(kernel.moves) == 2 and all("left=in_place, right=in_place" in move for move in kernel.moves)


def test_every_other_pixel_of_an_image_is_read_in_place() -> None:
    """Where the last tap of a row is depends on the remainder of its length. Windows were packed in blocks of 16, or
    with masks below: squares of 8 to 101 took 3 to 17 times the time of a kernel for a single size, now 1 to 2."""
    weight = Tensor(data((32, 16, 3, 3)))

    def program(n: int) -> Tensor:
        return Tensor(data((1, 16, n, n))).realize().conv2d(weight, padding=1, stride=2)
    [kernel] = kernels_of(program)
    assert {move.split("(")[0] for move in kernel.moves} == {"direct"}
    check_all_lengths(lambda x: x.conv2d(weight, padding=1, stride=2), lambda n: (1, 16, n, n), (2, 3, 8, 31, 33, 65))


def test_a_gradient_by_weights_of_square_images_reads_them_in_place() -> None:
    """A sum over rows and columns of two run-time numbers was done by plain loops: 3 to 13 times the time of a kernel
    for a single size, now 1.1 to 1.8."""
    weight = Tensor(data((16, 16, 3, 3))).realize()

    def gradient(n: int) -> Tensor:
        image, scale = (Tensor(data((1, 16, n, n))).realize() for _ in range(2))
        return (image.conv2d(weight, padding=1) * scale).sum().gradient(weight)[0]
    [kernel] = kernels_of(gradient)
    assert [move.split("(")[0] for move in kernel.moves] == ["direct"]


def test_single_pixels_of_square_images_are_the_columns_of_a_product() -> None:
    """In blocks of rows and columns they took 1.6 to 4.5 times the time of a kernel for a single size."""
    weight = Tensor(data((64, 32, 1, 1)))
    [kernel] = kernels_of(lambda n: Tensor(data((1, 32, n, n))).realize().conv2d(weight))
    assert len(kernel.moves) == 1 and len(kernel.phases) == 1


def test_every_other_single_pixel_is_a_product_of_columns_for_each_row() -> None:
    """In blocks of rows and columns they took 1.3 to 5 times the time of a kernel for a single size, now 0.9 to 2;
    pixels of transposed convolutions, which are stored apart, up to 5, now 0.8 to 3."""
    weight = Tensor(data((64, 32, 1, 1)))
    [kernel] = kernels_of(lambda n: Tensor(data((1, 32, n, n))).realize().conv2d(weight, stride=2))
    assert len(kernel.moves) == 1 and len(kernel.phases) == 1


def test_what_lies_past_an_edge_is_not_added() -> None:
    """In the middle of an image, lanes whose tap is past the end of a row read the next row: that may be infinite."""
    weight = data((8, 4, 3, 3))
    for n in (30, 31, 33, 40):
        image = data((2, 4, n, n))
        image[..., 0] = np.inf
        got = Tensor(image).conv2d(Tensor(weight), padding=1).numpy()
        assert np.isfinite(got[..., 2:]).all() and not np.isfinite(got[..., :2]).any()
    assert general_graphs()


@pytest.mark.parametrize("taps", [3, 5])
def test_no_counter_is_both_lanes_and_a_loop(taps: int) -> None:
    """What is left over of a run-time sum was packed by whole vectors, over what other tasks had packed."""
    weight = Tensor(data((4, 1, taps, taps)))

    def gradient(n: int) -> Tensor:
        image, scale = (Tensor(data((1, channels, 12, n))).realize() for channels in (1, 4))
        return (image.conv2d(weight, padding=taps // 2) * scale).sum().gradient(weight)[0]
    for kernel in kernels_of(gradient):
        loops = [s for phase in kernel.phases for s in walk(phase.body) if isinstance(s, For)]
        assert {s.range for s in loops if s.kind == LANE}.isdisjoint(s.range for s in loops if s.kind != LANE)


def test_a_gradient_of_few_weights_reads_its_image_in_place() -> None:
    """One for all lengths, as one for a single length does: neither the image nor its windows are copied."""
    weight = Tensor(data((16, 8, 3, 3)))

    def gradient(n: int) -> Tensor:
        return Tensor(data((n, 8, 14, 14))).conv2d(weight, padding=1).square().sum().gradient(weight)[0]
    moves = [move for kernel in kernels_of(gradient) for move in kernel.moves]
    assert sum(move.startswith("direct(") for move in moves) == 2 and not any("contract(" in move for move in moves)


def test_a_gradient_by_weights_sums_only_the_parts_that_a_length_has() -> None:
    """All 16 parts were cleared and added up for 17 rows too, and the scales were packed one by one: 1.6 times the time
    of a kernel for 17 rows."""
    def gradient(n: int) -> Tensor:
        image, scale = (Tensor(data((1, 16, n, 16))).realize() for _ in range(2))
        return (image.conv2d(weight, padding=1) * scale).sum().gradient(weight)[0]
    weight = Tensor(data((16, 16, 3, 3))).realize()
    [kernel] = kernels_of(gradient)
    info = launch_info(kernel)
    [parts] = [cut for cut in info.by_value if info.phases[cut.phase][1] == 16]
    assert [parts.at(n) for n in (2, 17, 32, 33, 200, 1000)] == [1, 1, 1, 2, 7, 16]
    packing, _, joined = ([s for s in walk(phase.body) if isinstance(s, For)] for phase in kernel.phases)
    [lanes] = [s for s in packing if s.kind == LANE]
    [read] = loads_in(lanes.body)
    assert linear(read.src[1])[1][lanes.range] == 1, "vectors of a row are transposed in registers"
    assert [s.stop is not None for s in joined if s.range.arg.name == "kt"] == [True]


def test_a_condition_that_ends_a_vector_is_a_branch_on_a_gpu() -> None:
    weight = Tensor(data((1, 1, 3, 3)))
    general = general_for(lambda n: Tensor(data((n, 1, 2, 2))).conv2d(weight, padding=1))
    assert "if (" in build(general.compiled.items[-1].ast, GPU, "hip").source


TRANSPOSED: dict[str, Callable[[int], tuple[int, ...]]] = {
    "rows": lambda n: (n, 70), "columns": lambda n: (70, n), "both": lambda n: (n, n),
    "of a batch": lambda n: (3, n, 40)}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_transposed_copy_is_right_at_every_length(name: str) -> None:
    check_all_lengths(lambda x: (x.transpose(-1, -2) * 2).contiguous(), TRANSPOSED[name])


def test_a_transposed_copy_with_a_run_time_stride_is_stored_by_rows() -> None:
    """One element at a time it took two to three times as long."""
    [item] = general_for(lambda n: Tensor(data((n, 64))).T.contiguous()).compiled.items
    source = build(item.ast, AVX512, "llvm").source
    assert "llvm.masked.scatter" not in source and "shufflevector" in source


def test_a_load_that_all_lanes_share_has_no_gate() -> None:
    """A gate made a gather of it."""
    [kernel] = kernels_of(lambda n: Tensor(data((4, n, 32))).realize() @ Tensor(data((4, 32, n))).realize())
    gated = [n for phase in kernel.phases for n in loads_in(phase.body) if len(n.src) > 2]
    assert gated and all(not ranges_of(n.src[2]).isdisjoint(linear(n.src[1])[1]) for n in gated)


@pytest.mark.parametrize("columns", [40, 768])
def test_a_sum_of_few_terms_is_not_cut_into_parts(columns: int) -> None:
    check_all_lengths(lambda x: x.sum(0), lambda n: (n, columns))


def test_the_parts_of_a_sum_are_left_out_for_few_terms() -> None:
    [kernel] = kernels_of(lambda n: Tensor(data((n, 768))).sum(0))
    assert [used_phases(kernel, n)[0] for n in (2, 64, 65, 1000)] == [0, 0, 1, 1]


@pytest.mark.skipif(Device.DEFAULT != "CPU", reason="about a kernel for a CPU")
def test_a_product_of_few_terms_packs_no_left_factor() -> None:
    """Versions for up to 64 terms, up to 128 and more."""
    [kernel] = kernels_of(lambda n: Tensor(data((n, 128))).T @ Tensor(data((n, 512))))
    few, some, many = kernel.moves
    assert "left=in_place" in few and "left" not in some + many, "packed is not said"
    multiply = [i for i, phase in enumerate(kernel.phases) if any(s.memory.op is o.PARAM for s in walk(phase.body)
                                                                  if isinstance(s, Store))]
    used = [[i for i in used_phases(kernel, n) if i in multiply] for n in (2, 64, 65, 128, 129, 1000)]
    assert used == [[i] for i in multiply for _ in range(2)]


@pytest.mark.skipif(Device.DEFAULT != "CPU", reason="about a kernel for a CPU")
def test_a_product_of_few_terms_has_no_blocks_of_its_sum() -> None:
    [kernel] = kernels_of(lambda n: Tensor(data((n, 64))).T @ Tensor(data((n, 512))))
    *short, long = kernel.moves
    assert "k_block" in long and not any("k_block" in each for each in short)
    few, more, many = [used_phases(kernel, n) for n in (2, 128, 129)]
    assert few == used_phases(kernel, 64) and many == used_phases(kernel, 1000) and more != many


@pytest.mark.parametrize("columns", [96, 512])
def test_a_product_of_any_number_of_terms_is_right(columns: int) -> None:
    check_all_lengths(lambda x: x[:, :columns // 4].T @ x, lambda n: (n, columns))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_few_rows_is_right(causal: bool) -> None:
    check_all_lengths(lambda x: x.scaled_dot_product_attention(x * 2, x + 1, is_causal=causal),
                      lambda n: (1, 3, n, 20))


@pytest.mark.only_on("CPU", "CLANG", reason="a GPU computes the values and sums of attention in several kernels")
def test_attention_has_small_blocks_for_rows_left_over() -> None:
    """Blocks of 48 rows, and up to two of 16, of which the last may go past the end."""
    [kernel] = kernels_of(lambda n: (x := Tensor(data((1, 3, n, 20))).realize()).scaled_dot_product_attention(x, x))
    large, small = launch_info(kernel).by_value
    blocks = {n: (large.at(n) / 3, small.at(n) / 3) for n in (2, 16, 17, 33, 48, 49, 300)}
    assert blocks == {2: (0, 1), 16: (0, 1), 17: (0, 2), 33: (1, 0), 48: (1, 0), 49: (1, 1), 300: (6, 1)}


@pytest.mark.only_on("CPU", "CLANG", reason="a GPU computes the values and sums of attention in several kernels")
@pytest.mark.parametrize("causal", [False, True])
def test_attention_computes_no_score_of_a_key_past_the_last_one(causal: bool) -> None:
    """Nor of one that no row of the block sees. Keys and values are read in place, without conditions."""
    [kernel] = kernels_of(lambda n: (x := Tensor(data((1, 3, n, 20))).realize()).scaled_dot_product_attention(
        x * 1, x + 0, is_causal=causal))
    assert sum(move.startswith("contract") for move in kernel.moves) == 4
    tiles = [s for phase in kernel.phases for s in walk(phase.body)
             if isinstance(s, Accumulate) and s.combine is o.ADD and s.value.op is o.MUL]
    assert len(tiles) == 4
    for factor in [f for s in tiles for f in s.value.src if f.op is o.LOAD and f.src[0].op is o.PARAM]:
        assert len(factor.src) == 2, "no condition"
    keys = [s for phase in kernel.phases for s in walk(phase.body) if isinstance(s, For) and s.range.arg.name == "j"]
    assert keys and all(s.stop is not None for s in keys)
    counters = {r.arg.name for s in keys if s.stop is not None for r in ranges_of(s.stop)}
    assert counters == ({"kb", "qb"} if causal else {"kb"})


@pytest.mark.only_on("CPU", "CLANG", reason="a GPU computes the values and sums of attention in several kernels")
@pytest.mark.parametrize("target", ["avx2", "neon"])
def test_attention_is_right_where_tiles_do_not_divide_a_block_of_keys(target: str) -> None:
    """AVX2 has tiles of 5 keys, and blocks have 64. The interpreter checks every address."""
    [item] = general_for(lambda n: (x := Tensor(data((1, 2, n, 20))).realize()).scaled_dot_product_attention(
        x, x, is_causal=True)).compiled.items
    kernel = kernel_of(item.ast, TARGETS[target])
    for n in (3, 49, 130):
        x, out = data((2, n, 20)), np.zeros((2, n, 20), np.float32)
        run_kernel(kernel, [out.reshape(-1), x.reshape(-1), n])
        scores = np.where(np.tril(np.ones((n, n), bool)), x @ x.transpose(0, 2, 1) / np.sqrt(20), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(out, weights @ x / weights.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 16, 3), (32, 16, 3, 3)])
def test_a_convolution_of_changing_width_is_right(shape: tuple[int, ...]) -> None:
    weight = Tensor(data(shape)).realize()
    check_all_lengths(lambda x: x.conv2d(weight, padding=1), lambda n: (2, 16, *[6 for _ in shape[3:]], n))


def test_the_greatest_value_with_little_work_is_known() -> None:
    [kernel] = kernels_of(lambda n: Tensor(data((n, 256))).T.contiguous())
    [none] = launch_info(kernel).by_value or [None]
    [cut] = launch_info(kernel, serial_steps=1 << 16).by_value
    [more] = launch_info(kernel, serial_steps=1 << 18).by_value
    assert none is None and cut.at(2) == cut.at(1000) == 16, "as many tasks at every length"
    assert 2 <= cut.serial_to < more.serial_to < 1000


@pytest.mark.only_on("CPU", "CLANG", reason="it reads the commands of native code")
def test_little_work_wakes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def launches_of_pool(n: int) -> int:
        x, before = Tensor(data((n, 256))).realize(), len(given)
        x.T.contiguous().realize()
        return len(given) - before

    given: list[int] = []
    run = WorkerPool.run
    monkeypatch.setattr(WorkerPool, "run", lambda pool, commands, count: given.append(1) or run(pool, commands, count))
    with Context(THREADS=2):
        general_for(lambda n: Tensor(data((n, 256))).realize().T.contiguous())
        assert [launches_of_pool(n) for n in (2, 1000, 3, 1000, 2)] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("program", [lambda x: x.sum(0), lambda x: x.T @ x, lambda x: (x * 2 + 1).max(1).sum()])
def test_a_sum_of_nothing_is_zero(program: Callable[[Tensor], Tensor]) -> None:
    n, x = Variable("n", 0, 1000), Tensor(data((1000, 96))).realize()
    for number in (3, 0, 200, 0):
        got = program(x[:n.bind(number)]).numpy()
        want = program(Tensor(x.numpy()[:number])).numpy() if number else np.zeros_like(got)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("name", ["std", "var", "logsumexp", "softmax", "log_softmax", "mean"])
def test_a_length_that_is_nothing_now_gives_what_an_empty_tensor_gives(name, count):
    x = Tensor.arange(12).float().reshape(4, 3).contiguous().realize()
    for options in ({}, {"axis": 0}):
        found = getattr(x[:Variable("n", 0, 4).bind(count)], name)(**options).numpy()
        np.testing.assert_allclose(found, getattr(x[:count], name)(**options).numpy(), rtol=1e-6)


def test_groups_of_threads_store_the_result_of_a_row_of_nothing(shims: None) -> None:
    x = Tensor.arange(12, device="CUDA_SHIM").float().reshape(4, 3).contiguous().realize()
    assert x[:Variable("n", 0, 4).bind(0)].logsumexp().item() == float("-inf")


def test_a_jitted_extreme_of_a_length_that_becomes_nothing_is_an_error():
    x, n = Tensor.arange(6).float().contiguous().realize(), Variable("n", 0, 6)
    largest = TinyJit(lambda n: x[:n].max().realize())
    assert [largest(n.bind(count)).item() for count in (3, 4, 5, 6, 1)] == [2.0, 3.0, 4.0, 5.0, 0.0]
    with pytest.raises(ShapeError, match="max of no values has no answer"):
        largest(n.bind(0))
