"""Float32 tiles of a group of threads (product/gpu_group_tile.py): convolutions, parts of K, which tile is chosen."""

from __future__ import annotations

from dataclasses import replace
from operator import ne

import numpy as np
import pytest
from loop_kernels import HOPPER, Inputs, check, run_kernel

from glassgrad import Tensor, Variable
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch_info import launch_info

FEW = replace(HOPPER, few_tasks=4)         # two processors: tiles are as large as on an H200 with more images

# image, weights, options of the convolution, the gradient's leaf, whether weights are stored in steps of channels first
CASES = {
    "forward": ((40, 16, 8, 8), (32, 16, 3, 3), {}, "", True),
    "padded, few rows": ((24, 16, 8, 8), (20, 16, 3, 3), {"padding": 1}, "", True),
    "strided": ((16, 16, 13, 13), (32, 16, 3, 3), {"stride": 2, "padding": 1}, "", True),
    "groups": ((26, 32, 10, 10), (64, 16, 3, 3), {"groups": 2}, "", True),
    "by the image": ((40, 32, 8, 8), (32, 32, 3, 3), {"padding": 1}, "x", True),
    "large weights": ((12, 16, 7, 7), (32, 16, 5, 5), {}, "x", False),
    "by the weights": ((16, 16, 10, 10), (32, 16, 3, 3), {}, "w", False),
    "by the weights, thin": ((16, 32, 14, 14), (32, 8, 3, 3), {"groups": 4, "padding": 1}, "w", False),
}


@pytest.mark.parametrize("name", CASES)
def test_convolutions_and_their_gradients(name: str) -> None:
    image, weights, options, leaf, stored_first = CASES[name]
    rng, values, seen = np.random.default_rng(len(name)), Inputs(), list[Kernel]()
    x, w = (Tensor(values.leaf(rng.standard_normal(shape).astype("float32"))) for shape in (image, weights))
    result = x.conv2d(w, **options)
    if leaf:
        given = Tensor(values.leaf(rng.standard_normal(result.shape).astype("float32")))
        result = (result * given).sum().gradient(x if leaf == "x" else w)[0]

    def compiled(ast: UOp) -> Kernel:
        seen.append(optimize(lower(ast, keep_bytes=FEW.row_bytes), FEW))
        return seen[-1]
    check(join_sums(rewrite(written_out([result.uop]), ALGEBRA)), values, compiled, name)
    [kernel] = seen
    in_parts = "k_parts" in kernel.moves[0]
    assert kernel.moves[0].startswith("staged(") and (in_parts or leaf != "w")
    assert len(kernel.phases) == 1 + stored_first + in_parts


@pytest.mark.parametrize("tile", [(8, 8, 64, 256), (8, 8, 16, 64), (8, 8, 4, 64), (4, 8, 16, 128), (2, 4, 32, 256)])
def test_groups_of_any_size_and_form(tile: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps of 8 or of 4 columns, in groups of 64 to 256 threads."""
    monkeypatch.setattr(gpu, "GROUP_TILES", [gpu.Tile.of(*tile)])
    rng, values, seen = np.random.default_rng(0), Inputs(), list[Kernel]()
    a, b = (Tensor(values.leaf(rng.standard_normal(shape).astype("float32"))) for shape in ((1020, 20), (20, 30)))

    def compiled(ast: UOp) -> Kernel:
        seen.append(optimize(lower(ast, keep_bytes=FEW.row_bytes), FEW))
        return seen[-1]
    check(join_sums(rewrite(written_out([(a @ b).uop]), ALGEBRA)), values, compiled, "narrow")
    assert f"lanes={tile[3]}, block_m={tile[2]}, block_n={tile[3] // tile[2]}" in seen[0].moves[0]


@pytest.mark.parametrize(("m", "n", "k", "copied", "tile", "parts"), [
    (4096, 4096, 4096, (16, 9), (8, 8, 16, 256), 1),           # a product
    (32, 204800, 800, (16, 16), (8, 8, 4, 64), 1),             # a convolution with few channels
    (64, 18432, 576, (16, 16), (8, 8, 8, 64), 3),              # 288 groups would be two or three on each processor
    (128, 1152, 100352, (16, 16), (8, 8, 16, 256), 29),        # the gradient by weights: few tiles, a long sum
    (32, 800, 204800, (16, 16), (8, 8, 4, 64), 150),           # seven tiles have 800 columns, of 896
    (65536, 32, 64, (16, 9), (8, 4, 8, 64), 1),
    (64, 128, 784, (16, 9), (2, 2, 8, 64), 8),
])
def test_tile_and_parts_are_chosen_together(m: int, n: int, k: int, copied: tuple[int, int],
                                            tile: tuple[int, int, int, int], parts: int) -> None:
    ways = [(t, p) for t in gpu.GROUP_TILES for p in gpu.part_counts(m, n, k, 1, t, 132)]
    chosen, in_parts = min(ways, key=lambda way: gpu.tile_time(m, n, k, 1, *way, 132, copied))
    assert (chosen[:4], in_parts) == (tile, parts)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("target", [FEW, replace(HOPPER, few_tasks=32)])
def test_parts_of_k_follow_a_run_time_number_of_rows(batch: int, target: Target,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """One version of the code runs for each number of rows; the fewer rows, the more parts."""
    monkeypatch.setattr(gpu, "JOIN_BEGINS", 0)         # short sums are split, too
    most, k, columns, rng = 300, 300, 40, np.random.default_rng(batch)
    shapes = ((batch, most, k), (k, columns), (batch, most, columns))
    given = [rng.integers(-8, 9, shape).astype("float32") for shape in shapes]
    x, w, more = (Tensor(values).realize() for values in given)
    length = Variable("n", 0, most).bind(5)
    out = (x[:, :length] @ w + more[:, :length]).relu()
    kernel = optimize(lower(out.schedule()[-1].ast), target)
    tilings = [move for move in kernel.moves if move.startswith("staged(")]
    assert all(map(ne, tilings, tilings[1:])) and len(tilings) > 1 and any("k_parts" in tiling for tiling in tilings)
    info, groups = launch_info(kernel, replayed=True), list[int]()
    for n in (0, 1, 16, 17, 100, 256, 257):
        result = np.zeros(shapes[2], "float32").ravel()
        run_kernel(kernel, [result, *[values.ravel() for values in given], np.array(n, np.int64)])
        left, right, added = given
        wanted = np.maximum(left[:, :n] @ right + added[:, :n], 0)
        np.testing.assert_array_equal(result.reshape(shapes[2])[:, :n], wanted, err_msg=f"{n} rows")
        assert not result.reshape(shapes[2])[:, n:].any()
        used = [tasks.at(n) for tasks in info.by_value]
        assert len(info.by_value) == len(kernel.phases) and (not n or sum(map(bool, used)) in (1, 2))
        groups.append(max(used))
    if target is not FEW:
        assert groups[1] == 9 * batch                  # one row: 3 blocks of columns, in 3 parts


def test_a_factor_that_is_transposed_on_its_way_has_the_shorter_side() -> None:
    """Groups of 128 threads, 64 x 128 or 128 x 64: an element takes longer, so fewer of them are copied."""
    high, wide = gpu.Tile.of(8, 8, 16, 128), gpu.Tile.of(8, 8, 8, 128)
    times = [gpu.tile_time(4096, 4096, 4096, 1, tile, 1, 132, copied)
             for copied in ((16, 9), (9, 16)) for tile in (wide, high)]
    assert times[0] < times[1] and times[3] < times[2]
