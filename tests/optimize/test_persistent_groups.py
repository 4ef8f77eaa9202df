"""Groups that stay and take tile after tile, and clusters of groups that share copies: trees, races, the source.

The hardware is not here: trees run in the interpreter, which checks every wait, and NVRTC compiles the source.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import HOPPER, Inputs, check

from glassgrad import Tensor
from glassgrad.base.errors import Bug
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.group_statements import Barrier, CopyBoxes
from glassgrad.compiler.lower.loops import Kernel, ranges_of, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.recipes import Refused, decide, optimize
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.runtime.gpu import nvrtc

BF16 = dtypes.bfloat16
FEW = replace(HOPPER, few_tasks=6)              # three processors: groups have several tiles each
TILE = "boxes(rows=2, vectors=1, unit=wgmma_m64n128k16_bf16, left=shared, right=shared, k_block=64, stages=3, {})"
SHAPES = [((512, 200), (200, 640)), ((130, 192), (192, 520)), ((5, 200, 136), (5, 136, 136)), ((400, 512), (512, 128))]


def kernel_of(ast: UOp, move: str) -> Kernel:
    return optimize(lower(ast, keep_bytes=FEW.row_bytes), FEW, given=[move])


def plain(m: int, n: int, k: int, move: str) -> Kernel:
    a, b = (Tensor.zeros(*s, dtype=BF16).contiguous().realize() for s in ((m, k), (k, n)))
    return kernel_of((a @ b).schedule()[-1].ast, TILE.format(move))


def run(kernel: Kernel) -> None:
    run_kernel(kernel, [np.zeros(p.size, np.dtype(p.dtype.format)) for p in kernel.params])


@needs_nvrtc
@pytest.mark.parametrize("move", ["stay=yes", "cluster=2"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_results_are_the_same_and_cuda_takes_the_source(shapes: tuple[tuple[int, ...], ...], move: str,
                                                        rng: np.random.Generator) -> None:
    values = Inputs()
    a, b = (Tensor(values.leaf((rng.integers(-64, 65, s) / 64).astype("float32"), BF16)) for s in shapes)

    def compiled(ast: UOp) -> Kernel:
        kernel = kernel_of(ast, TILE.format(move))
        assert nvrtc.compile_cuda(make_source(kernel, FEW, "cuda"), "sm_90a")[:4] == b"\x7fELF"
        return kernel
    check([((a @ b) * 2 + 1).uop], values, compiled)


def test_groups_that_stay_are_as_many_as_run_at_once() -> None:
    kernel = plain(1280, 1280, 256, "stay=yes")
    [(_, groups, threads, _)] = gpu_launch(kernel).phases
    assert (groups, threads) == (6, 256), "two on each of three processors"


def test_the_next_tiles_copies_begin_before_this_ones_sums_are_stored() -> None:
    kernel = plain(640, 640, 200, "stay=yes")
    first, later = [s for s in walk(kernel.phases[0].body) if isinstance(s, CopyBoxes)]
    used = {r.arg.name for box in later.boxes for e in box.first for r in ranges_of(e)}
    assert used == {"t", "g", "ks"} and first.memory is later.memory


def test_a_copy_over_sums_that_threads_may_still_read_is_a_race() -> None:
    kernel = plain(640, 640, 200, "stay=yes")
    for s in walk(kernel.phases[0].body):
        if isinstance(s, Barrier):
            s.copies = False
    with pytest.raises(Bug, match="where threads may still store or read: a barrier that copies come after is missing"):
        run(kernel)


def test_boxes_that_a_cluster_shares_are_brought_in_parts() -> None:
    kernel = plain(512, 256, 256, "cluster=2")
    source = make_source(kernel, FEW, "cuda")
    assert "__cluster_dims__(2, 1, 1)" in source and source.count("multicast::cluster") == 1
    left, right = gpu_launch(kernel).maps
    assert left.counts == (64, 128) and right.counts == (64, 32), "half of the lines of the right factor"


def test_a_cluster_is_made_of_tasks_that_follow_each_other() -> None:
    kernel = plain(512, 256, 256, "cluster=2")
    for s in walk(kernel.phases[0].body):
        if isinstance(s, CopyBoxes):
            s.cluster = next(r for r in ranges_of(s.boxes[1].first[0]) if r.arg.name == "nb")
    with pytest.raises(Bug, match="shares copies along nb, whose groups do not run at once"):
        run(kernel)


def test_a_search_may_choose_them() -> None:
    a, b = (Tensor.zeros(512, 512, dtype=BF16).contiguous().realize() for _ in range(2))
    decisions = Decisions()
    decide(lower((a @ b).schedule()[-1].ast, keep_bytes=FEW.row_bytes), FEW, decisions)
    near = [moves[0] for moves in decisions.neighbours()]
    assert any("stay=yes" in move for move in near) and any("cluster=2" in move for move in near)


@pytest.mark.parametrize(("dtype", "move", "why"), [
    (dtypes.float32, "stay=yes", "a stage holds a tile of them"),
    (BF16, "cluster=3", "clusters are two groups"),
    (BF16, "cluster=2, stay=yes", "clusters are two groups, of one tile each")])
def test_what_is_refused(dtype: object, move: str, why: str) -> None:
    a, b = (Tensor.zeros(512, 512, dtype=BF16).contiguous().realize() for _ in range(2))
    ast = a.matmul(b, dtype=dtype).schedule()[-1].ast            # type: ignore[arg-type]
    with pytest.raises(Refused, match=why):
        kernel_of(ast, TILE.format(move))


@pytest.mark.parametrize("columns", [168, 184])
def test_a_cluster_needs_as_many_lines_for_each_group(columns: int) -> None:
    a, b = (Tensor.zeros(63, n, 96, dtype=BF16).contiguous().realize() for n in (328, columns))
    ast = (a @ b.transpose(1, 2)).schedule()[-1].ast
    kernel = optimize(lower(ast), HOPPER)
    assert "cluster" not in kernel.moves[0] and "wgmma" in make_source(kernel, HOPPER, "cuda")
    with pytest.raises(Refused, match="groups cannot bring as many lines each"):
        optimize(lower(ast), HOPPER, given=[kernel.moves[0].replace(")", ", cluster=2)")])
