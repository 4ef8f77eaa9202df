"""Products on a matrix unit of a group of threads: layouts, loop trees, what the interpreter reports, the source.

The unit's hardware is not here: trees run in the interpreter, which checks every wait, and NVRTC compiles the source.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_compiler import needs_nvrtc
from loop_kernels import HOPPER, Inputs, check

import glassgrad
from glassgrad import Tensor, Variable
from glassgrad.base.errors import Bug
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.index_algebra import index, substitute_index
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, CopyBoxes
from glassgrad.compiler.lower.loops import (LANE, For, If, Kernel, Phase, Statement, counter, expressions, ranges_of,
                                            rewritten, walk)
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.lower.printing import linear, show
from glassgrad.compiler.optimize.recipes import Refused, optimize
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import AMX, MMA_SYNC, WGMMA, MatrixUnit, units_of
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch
from glassgrad.runtime.gpu import nvrtc

BF16, F16, F32 = dtypes.bfloat16, dtypes.float16, dtypes.float32
Make = Callable[..., Tensor]



# name: expression, shapes, dtype
KERNELS: dict[str, tuple[Make, tuple[tuple[int, ...], ...], DType]] = {
    "a product": (lambda a, b: a @ b, ((128, 256), (256, 192)), BF16),
    "of float16": (lambda a, b: a @ b, ((96, 128), (128, 136)), F16),
    "into float32": (lambda a, b: a.matmul(b, dtype=F32), ((128, 64), (64, 128)), BF16),
    "left transposed": (lambda a, b: a.T @ b, ((192, 136), (192, 128)), BF16),
    "right transposed": (lambda a, b: a @ b.T, ((136, 192), (128, 192)), BF16),
    "both transposed": (lambda a, b: a.T @ b.T, ((192, 136), (128, 192)), BF16),
    "a batch": (lambda a, b: a @ b, ((3, 72, 128), (3, 128, 64)), BF16),
    "one factor for a batch": (lambda a, b: a @ b, ((3, 72, 128), (128, 64)), BF16),
    "heads": (lambda a, b: a.reshape(2, 40, 3, 64).transpose(1, 2) @ b.reshape(2, 40, 3, 64).permute(0, 2, 3, 1),
              ((2, 40, 192), (2, 40, 192)), BF16),
    "the sum over heads": (lambda a, b: a.transpose(1, 2).reshape(256, 192) @ b, ((2, 3, 128, 64), (192, 128)), BF16),
    "a side of heads": (lambda a, b: a.permute(1, 3, 0, 2).reshape(192, 256) @ b, ((2, 3, 128, 64), (256, 128)), BF16),
    "heads in pieces of no whole lines": (lambda a, b: a.transpose(1, 2).reshape(80, 120) @ b,
                                          ((2, 3, 40, 40), (120, 72)), BF16),
    "ragged": (lambda a, b: a @ b, ((133, 111), (111, 97)), BF16),
    "ragged, along the other axis": (lambda a, b: a.T @ b.T, ((111, 133), (97, 111)), BF16),
    "bias and activation": (lambda a, b, c: (a @ b + c).gelu(), ((130, 72), (72, 104), (104,)), BF16),
    "a residual": (lambda a, b, c: a @ b + c, ((70, 80), (80, 90), (70, 90)), BF16),
    "a prologue": (lambda a, b: (a * 2 + 1).relu() @ b, ((96, 128), (128, 64)), BF16),
    "a cut": (lambda a, b: a[3:99, 5:105] @ b[:100], ((101, 128), (128, 72)), BF16),
    "a padded factor": (lambda a, b: a.pad(((2, 3), (0, 0))) @ b, ((60, 128), (128, 64)), BF16),
    "rounded first": (lambda a, b: a.cast(BF16) @ b.cast(BF16), ((96, 128), (128, 64)), F32),
}


def graph(name: str) -> tuple[UOp, Inputs]:
    make, shapes, dtype = KERNELS[name]
    rng, values = np.random.default_rng(len(name)), Inputs()       # all types hold these numbers exactly
    operands = [Tensor(values.leaf((rng.integers(-64, 65, shape) / 64).astype("float32"), dtype)) for shape in shapes]
    [sink] = join_sums(rewrite(written_out([make(*operands).uop]), ALGEBRA))
    return sink, values


def tree(ast: UOp) -> Kernel:
    return optimize(lower(ast, keep_bytes=HOPPER.row_bytes), HOPPER)


def is_on_unit(kernel: Kernel) -> bool:
    return any(m.startswith("boxes(") for m in kernel.moves)


def one_kernel(m: int = 128, n: int = 128, k: int = 256) -> Kernel:
    """The tree of a plain product."""
    a, b = (Tensor.zeros(*s, dtype=BF16).contiguous().realize() for s in ((m, k), (k, n)))
    return tree((a @ b).schedule()[-1].ast)


# -- the unit, as data -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("unit", WGMMA, ids=lambda u: u.name)
def test_sums_are_spread_over_threads_one_to_one(unit: MatrixUnit) -> None:
    assert unit.sums is not None
    held = [(unit.sums.row(lane, r), unit.sums.column(lane, r))
            for lane in range(unit.threads) for r in range(unit.sums.registers)]
    assert sorted(held) == list(itertools.product(range(unit.rows), range(unit.columns)))


def test_where_a_sum_lies_is_the_same_for_numbers_and_for_index_expressions() -> None:
    unit, lane = WGMMA[0], counter("lane", 128)
    assert unit.sums is not None
    for number, register in itertools.product((0, 1, 33, 77, 127), (0, 1, 2, 5, 127)):
        for place in (unit.sums.row, unit.sums.column):
            assert substitute_index(place(lane, register), {lane: index(number)}, {}).arg == place(number, register)


@pytest.mark.parametrize("unit", WGMMA, ids=lambda u: u.name)
def test_lines_are_permuted_one_to_one_and_fall_into_different_banks(unit: MatrixUnit) -> None:
    lines = unit.lines
    assert lines is not None
    at = [lines.address(line, byte) for line in range(64) for byte in range(lines.line_bytes)]
    assert sorted(at) == list(range(64 * lines.line_bytes))
    for chunk, first in itertools.product(range(8), range(0, 64, 8)):
        assert len({lines.address(first + line, chunk * 16) // 16 % 8 for line in range(8)}) == 8


def test_the_sums_of_one_product_are_the_left_factor_of_the_next_in_the_same_threads() -> None:
    """What attention needs: two neighbouring sums are one word of the left factor, as the unit would take it."""
    unit = WGMMA[0]
    assert unit.sums is not None
    for lane, register in itertools.product(range(128), range(0, 128, 2)):
        first, second = (unit.sums.column(lane, register + i) for i in range(2))
        assert second == first + 1 and first % 16 == 2 * (lane % 4) + 8 * (register // 4 % 2)


def test_units_are_named_in_their_description_alone() -> None:
    """A recipe or a renderer that names a unit could not take another one. (One renderer's file spells AMX.)"""
    root = Path(glassgrad.__file__).parent
    spelled = {root / "compiler/optimize/targets/matrix_units.py", root / "compiler/render/llvm/amx.py"}
    words = ["wgmma", "mma_sync", "mma.sync", "mma_m16", "ldmatrix", *sorted({re.escape(u.name) for u in AMX})]
    names = re.compile("|".join(words))
    found = [str(f.relative_to(root)) for f in root.rglob("*.py") if f not in spelled and names.search(f.read_text())]
    assert not found


def test_a_processor_has_the_units_of_its_features() -> None:
    assert units_of({"sm_75"}) == () and units_of({"sm_80"}) == units_of({"sm_100"}) == MMA_SYNC
    assert set(units_of({"sm_90a", "tf32"})) == {*WGMMA, *MMA_SYNC}
    assert {u.name for u in WGMMA} - {u.name for u in units_of({"sm_90a"})} == \
        {f"wgmma_m64n{columns}k8_tf32" for columns in (64, 128, 192, 256)}


# -- trees -------------------------------------------------------------------------------------------------------------
def checked(name: str) -> list[Kernel]:
    """The kernels of a graph, after their results were compared."""
    sink, values = graph(name)
    seen: list[Kernel] = []

    def compiled(ast: UOp) -> Kernel:
        seen.append(tree(ast))
        return seen[-1]
    check([sink], values, compiled, name)
    return seen


@pytest.mark.parametrize("name", KERNELS)
def test_trees_compute_the_same(name: str) -> None:
    seen = checked(name)
    assert any(is_on_unit(kernel) for kernel in seen), [k.moves for k in seen]


@pytest.mark.parametrize(("name", "phases"), [("the sum over heads", 1), ("a side of heads", 1),
                                              ("heads in pieces of no whole lines", 2)])
def test_heads_are_axes_of_boxes_where_they_are_whole_lines(name: str, phases: int) -> None:
    assert len(checked(name)[-1].phases) == phases


@pytest.mark.parametrize(("m", "n", "k"), [(130, 520, 70), (270, 200, 200), (64, 64, 640), (16, 2048, 128)])
def test_every_tile_computes_the_same(m: int, n: int, k: int, rng: np.random.Generator) -> None:
    values = Inputs()
    a, b = (Tensor(values.leaf(rng.standard_normal(s).astype("float32"), BF16)) for s in ((m, k), (k, n)))
    own: list[str] = []

    def compiled(ast: UOp) -> Kernel:
        own.append(tree(ast).moves[0])
        return tree(ast)
    check([(a @ b).uop], values, compiled)
    tried = 0
    for unit, rows in itertools.product([u.name for u in WGMMA if "bf16" in u.name], (1, 2)):
        moves = [re.sub(r"unit=\w+", f"unit={unit}", re.sub("rows=[0-9]+", f"rows={rows}", own[0]))]
        moves = [re.sub(r"stages=\d+", "stages=2", moves[0])]
        try:
            check([(a @ b).uop], values, lambda ast, moves=moves: optimize(
                lower(ast, keep_bytes=HOPPER.row_bytes), HOPPER, given=moves))
        except Refused:
            continue
        tried += 1
    assert tried >= 6


def test_what_lies_in_order_is_copied_as_it_lies_and_the_rest_is_packed() -> None:
    def chosen(make: Make, *shapes: tuple[int, ...]) -> str:
        leaves = [Tensor.zeros(*s, dtype=BF16).contiguous().realize() for s in shapes]
        return tree(make(*leaves).schedule()[-1].ast).moves[0]
    assert "left=shared, right=shared" in chosen(lambda a, b: a.T @ b, (256, 128), (256, 128))
    assert "right=shared" in chosen(lambda a, b: a @ b, (128, 111), (111, 128))
    assert "left=shared" not in chosen(lambda a, b: a @ b, (128, 111), (111, 128))
    assert "shared" not in chosen(lambda a, b: (a * 2) @ b, (128, 128), (128, 111))


def test_products_that_the_unit_cannot_do_keep_their_tiles() -> None:
    def moves(make: Make, dtype: DType, *shapes: tuple[int, ...], target: object = HOPPER) -> list[str]:
        leaves = [Tensor.zeros(*s, dtype=dtype).contiguous().realize() for s in shapes]
        ast = make(*leaves).schedule()[-1].ast
        return optimize(lower(ast, keep_bytes=HOPPER.row_bytes), target).moves   # type: ignore[arg-type]
    square = ((256, 256), (256, 256))
    assert moves(lambda a, b: a @ b, F32, *square)[0].startswith("staged(")
    assert moves(lambda a, b: a @ b, BF16, *square, target=GPU)[0].startswith("staged(")
    assert not moves(lambda a, b: a @ b, BF16, (1, 4096), (4096, 256))[0].startswith("boxes(")
    assert moves(lambda a, b: a @ b, BF16, (8, 256), (256, 256))[0].startswith("boxes(")
    assert moves(lambda a, b: a @ b, BF16, *square)[0].startswith("boxes(")


def test_large_products_take_large_tiles_and_few_rows_many_small_ones() -> None:
    def tile(m: int, n: int, k: int) -> str:
        move = one_kernel(m, n, k).moves[0]
        return f"{64 * int(re.findall(r'rows=(.)', move)[0])}x{re.findall(r'n([0-9]+)k16', move)[0]}"  # noqa: RUF100
    assert tile(4096, 4096, 4096) == "128x256" and tile(3072, 3072, 3072) == "128x192"
    assert tile(1024, 1024, 1024) == "128x64" and tile(512, 512, 512) == "64x64"


def test_the_time_of_tiles_counts_rounds_and_ends() -> None:
    one_round = gpu.unit_tile_time(132, 64, (128, 256, 1), 132)
    assert gpu.unit_tile_time(133, 64, (128, 256, 1), 132) == 2 * one_round
    alone, together = (gpu.unit_tile_time(1320, 1, (128, 128, n), 132) for n in (1, 2))
    assert together < 0.85 * alone, "two groups wait for their first copies together"
    staying = gpu.unit_stay_time(1320, 1, (128, 128), 132, (False, False))
    assert staying < together, "and one that stays waits once"


def test_the_tree_can_be_read() -> None:
    text = show(one_kernel())
    assert "await copies of round ks" in text and "barrier" in text and "await steps, all but 1" in text
    assert re.search(r"copy stages\[.*\] = a1\[.* \+ 64, .* \+ 64\] as round", text)
    assert "COPYBOXES" in linear(one_kernel()) and "BARRIER" in linear(one_kernel())


# -- what the interpreter reports ------------------------------------------------------------------------------------
def without(kernel: Kernel, kind: type, keep: Callable[[Statement], bool] = lambda s: False) -> Kernel:
    """The kernel without its statements of a kind."""
    def left(body: list[Statement]) -> list[Statement]:
        out: list[Statement] = []
        for s in body:
            if isinstance(s, kind) and not keep(s):
                continue
            if isinstance(s, For):
                s = For(s.range, s.kind, left(s.body), s.stop)
            elif isinstance(s, If):
                s = If(s.condition, left(s.body))
            out.append(s)
        return out
    return replace(kernel, phases=[Phase(left(p.body)) for p in kernel.phases])


def one_copy() -> tuple[Kernel, CopyBoxes]:
    """A kernel, and its copy of the first round for the first tile."""
    kernel = one_kernel()
    copy = next(s for s in walk(kernel.phases[0].body) if isinstance(s, CopyBoxes))
    ranges = {r: index(0) for e in expressions(copy) for r in ranges_of(e)}
    return kernel, rewritten(copy, lambda e: substitute_index(e, ranges, {}))


def run(kernel: Kernel) -> None:
    run_kernel(kernel, [np.zeros(p.size, np.dtype(p.dtype.format)) for p in kernel.params])


def test_a_whole_tree_has_no_races() -> None:
    run(one_kernel())


def test_a_missing_barrier_is_a_race() -> None:
    with pytest.raises(Bug, match=r"copies round \d+ into stages while step \d+ of the matrix unit may still read it: "
                                  r"a barrier is missing between them"):
        run(without(one_kernel(64, 64, 1024), Barrier))


def test_a_missing_wait_for_steps_is_a_race() -> None:
    kernel = one_kernel(64, 64, 1024)
    with pytest.raises(Bug, match="a wait for that step, and a barrier, is missing between them"):
        run(without(kernel, AwaitSteps, lambda s: isinstance(s, AwaitSteps) and s.pending == 0))
    with pytest.raises(Bug, match="reads the sums .* while 1 steps of the matrix unit may still run"):
        run(without(kernel, AwaitSteps, lambda s: isinstance(s, AwaitSteps) and s.pending == 1))


def test_a_missing_wait_for_copies_is_a_race() -> None:
    with pytest.raises(Bug, match="reads stages while the copies of round 0 may still be on their way"):
        run(without(one_kernel(), AwaitCopies))


def test_copies_over_a_round_that_was_not_waited_for_are_a_race() -> None:
    kernel, copy = one_copy()
    with pytest.raises(Bug, match="copies round 0 of stages over round 0, which was not waited for"):
        run(replace(kernel, phases=[Phase([copy, copy])]))


def test_a_barrier_that_some_threads_do_not_reach_is_a_deadlock() -> None:
    lane = counter("l", 128)
    body: list[Statement] = [For(lane, LANE, [If(lane < 64, [Barrier()])])]
    with pytest.raises(Bug, match="waits forever: a condition on l keeps some threads of a group from a wait of all"):
        run_kernel(Kernel("k", [], [Phase(body)]), [])


def test_a_wait_for_copies_that_nothing_started_is_a_deadlock() -> None:
    with pytest.raises(Bug, match="waits forever: no copy of round 0 into stages was started"):
        run(without(one_kernel(), CopyBoxes))


def test_a_box_outside_its_memory_is_reported() -> None:
    kernel, copy = one_copy()
    wrong = CopyBoxes(copy.memory, copy.round, (copy.boxes[0]._replace(offset=1 << 20),))
    with pytest.raises(Bug, match=r"copies param 1\[1048576\], outside its 32768 elements"):
        run(replace(kernel, phases=[Phase([wrong])]))


# -- source ------------------------------------------------------------------------------------------------------------
@needs_nvrtc
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_takes_the_source(name: str) -> None:
    sink, values = graph(name)

    def compiled(ast: UOp) -> Kernel:
        kernel = tree(ast)
        assert nvrtc.compile_cuda(make_source(kernel, HOPPER, "cuda"), "sm_90a")[:4] == b"\x7fELF"
        return kernel
    check([sink], values, compiled, name)


@needs_nvrtc
def test_large_tiles_of_short_sums_have_the_registers_they_need() -> None:
    """Two groups would have room in shared memory, but not for their sums."""
    a, b = (Tensor.zeros(*shape, dtype="float16").contiguous().realize() for shape in ((256, 128), (128, 512)))
    [item] = (a @ b).schedule()
    given = ["boxes(rows=2, vectors=1, unit=wgmma_m64n256k16_f16, left=shared, right=shared, k_block=64, stages=2)"]
    kernel = optimize(lower(item.ast, keep_bytes=HOPPER.row_bytes), HOPPER, given=given)
    source = make_source(kernel, HOPPER, "cuda")
    assert "__launch_bounds__(256, 1)" in source and nvrtc.compile_cuda(source, "sm_90a")


def test_the_source_has_a_step_for_each_part_of_a_line() -> None:
    kernel = one_kernel(4096, 4096, 4096)
    source = make_source(kernel, HOPPER, "cuda")
    assert source.count("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16") == 4
    assert source.count("wgmma.commit_group.sync.aligned;") == 1 and source.count("wgmma.wait_group.sync.aligned") == 2
    assert "__launch_bounds__(256, 1)" in source and "store_u16_2_by_round_pair_bf16_aligned(stages" in source
    assert "store_u16_8(data0" in source


def test_a_launch_says_which_boxes_are_copied() -> None:
    launch = gpu_launch(one_kernel(4096, 4096, 2048))
    left, right = launch.maps
    assert (left.position, left.sizes, left.strides, left.counts) == (1, (2048, 4096), (4096,), (64, 128))
    assert (right.position, right.sizes, right.strides, right.counts) == (2, (4096, 2048), (8192,), (64, 64))
    assert left.dtype == "bfloat16" and left.nbytes == 4096 * 2048 * 2 and left.swizzle == 3
    [(_, groups, threads, near)] = launch.phases
    assert (groups, threads) == (132, 256), "one on each processor, and each takes several tiles"
    assert near == 3 * 128 * (256 + gpu.UNIT_PAD) * 2, "a stage holds a tile of sums"


def test_only_the_phase_that_multiplies_takes_much_memory_of_a_group() -> None:
    launch = gpu_launch(one_kernel(1000, 1000, 1111))
    assert [near > 0 for *_, near in launch.phases] == [False, True]


# -- sizes that are known when it runs -----------------------------------------------------------------------------
# name: expression of (x, w, more, the length), shapes of memory, and which axes of each end at the length
ENDED: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, int], ...], tuple[str, ...]]] = {
    "rows": (lambda x, w, more, n: x[:n] @ w + more[:n], ((304, 136), (136, 72), (304, 72)), ("r", "", "r")),
    "rows, right transposed": (lambda x, w, more, n: x[:n] @ w.T + more[:n], ((304, 136), (72, 136), (304, 72)),
                               ("r", "", "r")),
    "columns": (lambda x, w, more, n: x @ w[:, :n] + more[:, :n], ((72, 136), (136, 304), (72, 304)), ("", "c", "c")),
    "rows and columns": (lambda x, w, more, n: x[:n] @ w[:n].T + more[:n, :n], ((304, 136), (304, 136), (304, 304)),
                         ("r", "r", "rc")),
    "the sum": (lambda x, w, more, n: x[:, :n] @ w[:n] + more, ((136, 304), (304, 72), (136, 72)), ("c", "r", "")),
    "the sum across": (lambda x, w, more, n: x[:n].T @ w[:n] + more, ((304, 136), (304, 72), (136, 72)),
                       ("r", "r", "")),
    "a long sum": (lambda x, w, more, n: x[:n] @ w + more[:n], ((304, 3080), (3080, 72), (304, 72)), ("r", "", "r")),
    "many rows": (lambda x, w, more, n: x[:n] @ w + more[:n], ((2400, 64), (64, 72), (2400, 72)), ("r", "", "r")),
}


def _some(x: np.ndarray, axes: str, n: int) -> np.ndarray:
    return x[:n if "r" in axes else None, :n if "c" in axes else None]


@pytest.mark.parametrize("n", [1, 7, 8, 63, 64, 65, 127, 128, 129, 304])
@pytest.mark.parametrize("name", ENDED)
def test_axes_may_end_at_a_value(name: str, n: int) -> None:
    """What lies past the value is no number: nothing is read there into a sum, and nothing is stored."""
    make, shapes, axes = ENDED[name]
    rng, length = np.random.default_rng(n), Variable("n", 1, 2400 if name == "many rows" else 304)
    x, w, more = (Tensor.zeros(*shape, dtype=BF16).contiguous().realize() for shape in shapes)
    kernel = optimize(lower(make(x, w, more, length.bind(n)).schedule()[-1].ast), HOPPER)
    tilings = [move for move in kernel.moves if move.startswith("boxes(")]
    assert len(tilings) == 1 or name in ("a long sum", "many rows")
    assert ("k_parts=4" in tilings[0]) == (name == "a long sum") and "k_parts" not in tilings[-1]
    values = [(rng.integers(-8, 9, shape) / 8).astype("float32") for shape in shapes]
    zeros = [Tensor(_some(v, ends, n).astype("float64")) for v, ends in zip(values, axes)]
    whole = make(*zeros, 10 ** 6).numpy()
    stored = []
    for v, ends in zip(values, axes):
        kept = np.full_like(v, np.nan)
        _some(kept, ends, n)[...] = _some(v, ends, n)
        stored.append((kept.ravel().view(np.uint32) >> 16).astype(np.uint16))
    result = np.zeros(shapes[2], np.uint16).ravel()
    run_kernel(kernel, [result, *stored, np.array(n, np.int64)])
    got = (result.reshape(shapes[2]).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(_some(got, axes[2], n), whole, rtol=1e-2, atol=1e-5)
    _some(got, axes[2], n)[...] = 0
    assert not got.any(), "nothing is stored past the value"


def test_groups_and_maps_follow_the_value() -> None:
    """A launch counts the tiles that have rows, and a map is as long as there are rows to read."""
    x, w = (Tensor.zeros(*shape, dtype=BF16).contiguous().realize() for shape in ((1024, 768), (768, 768)))
    kernel = optimize(lower((x[:Variable("n", 1, 1024).bind(5)] @ w).schedule()[-1].ast), HOPPER)
    launch = gpu_launch(kernel, HOPPER.group_bytes)
    assert all(move.startswith("boxes(rows=1, vectors=1, unit=wgmma_m64n64k16_bf16") for move in kernel.moves)
    assert [groups for _, groups, _, _ in launch.phases] == [8 * 12, 16 * 12], "for up to 512 rows, and for more"
    assert [[tasks.at(n) for n in (1, 64, 65, 333, 512, 513, 1024)] for tasks in launch.info.by_value] == \
        [[12, 12, 24, 72, 96, 0, 0], [0, 0, 0, 0, 0, 108, 192]], "only one of the two has tasks"
    left, right = launch.maps
    assert [left.sizes_at(lambda _, n=n: n) for n in (1, 333)] == [(768, 1), (768, 333)]
    assert right.sizes == (768, 768)


@needs_nvrtc
@pytest.mark.parametrize("name", ["rows", "rows and columns", "the sum across"])
def test_nvidias_compiler_takes_tiles_that_end_at_values(name: str) -> None:
    make, shapes, _ = ENDED[name]
    x, w, more = (Tensor.zeros(*shape, dtype=BF16).contiguous().realize() for shape in shapes)
    kernel = optimize(lower(make(x, w, more, Variable("n", 1, 304).bind(5)).schedule()[-1].ast), HOPPER)
    assert nvrtc.compile_cuda(make_source(kernel, HOPPER, "cuda"), "sm_90a")
