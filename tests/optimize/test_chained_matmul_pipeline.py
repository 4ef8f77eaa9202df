"""softmax(q k^T) v by a matrix unit whose steps run beside a group's threads: loop trees, waits, sources.

The unit's hardware is not here. Trees run in the interpreter, which checks every wait, against float64; NVRTC compiles
the sources for the chip that has the unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import compiler_report, needs_nvrtc

from glassgrad import Context, Tensor, dtypes
from glassgrad.base.errors import Bug
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.index_algebra import index
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.attention.attention_scores import something_masked
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, CopyBoxes
from glassgrad.compiler.lower.loops import Assign, For, If, Kernel, Phase, Statement, counter, register, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.decisions import Refused
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch

BF16, F16 = dtypes.bfloat16, dtypes.float16
CLOSE = {BF16: 3.2e-3, F16: 4e-4}             # relative to the norm: weights and results are rounded, scores are not
CHIP = replace(GPU, features=frozenset({"sm_90a"}), units=units_of({"sm_90a"}))
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def any_size() -> Iterator[None]:
    with Context(ONLINE_SOFTMAX=2, MATRIX_UNIT=0):
        yield


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def made(attention: Attention, shapes: tuple[tuple[int, ...], ...], dtype: DType = BF16,
         moves: list[str] | None = None, target: Target = CHIP) -> Kernel:
    """The kernel of an expression in one pass."""
    tensors = [Tensor.zeros(*shape, dtype=dtype).contiguous().realize() for shape in shapes]
    [item] = attention(*tensors).schedule()
    return optimize(lower(item.ast, blocks=target.score_blocks), target, given=moves)


def shapes_of(batch: int, rows: int, keys: int, size: int, width: int) -> tuple[tuple[int, ...], ...]:
    return (batch, rows, size), (batch, keys, size), (batch, keys, width)


def runs_beside(kernel: Kernel) -> bool:
    [move] = kernel.moves
    return "stages=4" in move


def numbers(shapes: tuple[tuple[int, ...], ...], dtype: DType) -> list[np.ndarray]:
    """Numbers that the type holds exactly, in float32."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    drawn = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    return [Tensor(x).cast(dtype).cast("float32").numpy() for x in drawn]


def run(kernel: Kernel, values: list[np.ndarray], size: int, dtype: DType = BF16) -> np.ndarray:
    """A kernel's result, as numbers."""
    out = np.zeros(size, np.dtype(dtype.format))
    stored = [x.astype(np.float16) if dtype is F16 else (x.view(np.uint32) >> 16).astype(np.uint16) for x in values]
    run_kernel(kernel, [out, *[x.ravel() for x in stored]])
    return out.astype(np.float32) if dtype is F16 else (out.astype(np.uint32) << 16).view(np.float32)


def exactly(q: np.ndarray, k: np.ndarray, v: np.ndarray, is_causal: bool = False) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got.ravel() - wanted.ravel()) / np.linalg.norm(wanted))


# -- trees -----------------------------------------------------------------------------------------------------------
SHAPES = {"one block": (2, 128, 128, 64, 64), "two blocks": (1, 130, 200, 128, 128),
          "many blocks": (1, 300, 700, 64, 64),
          "odd": (1, 40, 70, 40, 24), "sizes between": (2, 70, 300, 72, 40), "narrow": (1, 300, 130, 16, 8)}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_trees_are_right(name: str, dtype: DType, is_causal: bool) -> None:
    shapes = shapes_of(*SHAPES[name])
    kernel = made(causal if is_causal else plain, shapes, dtype)
    assert runs_beside(kernel)
    values, (batch, rows, _, _, width) = numbers(shapes, dtype), SHAPES[name]
    assert distance(run(kernel, values, batch * rows * width, dtype), exactly(*values, is_causal)) < CLOSE[dtype]


STAYING = {"as long": ((3, 200, 300, 64, 64), False), "blocks of which nothing is seen": ((2, 330, 330, 16, 16), True),
           "past the end": ((5, 130, 200, 40, 24), True), "wide": ((2, 330, 330, 96, 96), True)}


@pytest.mark.parametrize("name", STAYING)
def test_groups_that_stay_compute_the_same(name: str) -> None:
    """Two processors have several tasks each; the copies of one begin while the one before it ends."""
    (batch, rows, keys, size, width), is_causal = STAYING[name]
    shapes, attention = shapes_of(batch, rows, keys, size, width), causal if is_causal else plain
    chip = replace(CHIP, few_tasks=4)
    kernel = made(attention, shapes, target=chip)
    [move] = kernel.moves
    assert move.endswith(", stay=yes)") and gpu_launch(kernel, CHIP.group_bytes).phases[0][1] == 2
    alone = made(attention, shapes, target=chip, moves=[move.replace(", stay=yes", "")])
    assert alone.moves != kernel.moves
    values = numbers(shapes, BF16)
    got, wanted = (run(k, values, batch * rows * width) for k in (kernel, alone))
    assert distance(got, exactly(*values, is_causal)) < CLOSE[BF16]
    assert (got == wanted).all()


def test_groups_stay_where_a_task_has_as_many_blocks_as_are_on_their_way() -> None:
    shapes = shapes_of(9, 128, 128, 64, 64)
    kernel = made(plain, shapes, target=replace(CHIP, few_tasks=4))
    [move] = kernel.moves
    assert "stay" not in move                                                   # one block of keys
    with pytest.raises(Refused, match="as many blocks as are on their way"):
        made(plain, shapes, moves=[move.replace(")", ", stay=yes)")])


def across(x: Tensor) -> Tensor:
    """Another view of the same numbers: memory holds them transposed."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1]).transpose(-1, -2)


def heads_apart(x: Tensor) -> Tensor:
    """(1, rows, heads * size) as (heads, rows, size)."""
    return x.reshape(x.shape[1], 4, -1).transpose(0, 1)


VIEWS: dict[str, tuple[Attention, tuple[tuple[int, ...], ...], Callable[..., np.ndarray]]] = {
    "keys and values lie across": (
        lambda q, k, v: plain(q, across(k), across(v)), shapes_of(2, 70, 136, 40, 24),
        lambda q, k, v: exactly(q, *[x.reshape(2, -1, 136).swapaxes(-1, -2) for x in (k, v)])),
    "heads side by side": (
        lambda q, k, v: causal(*[heads_apart(x) for x in (q, k, v)]), ((1, 200, 96),) * 3,
        lambda q, k, v: exactly(*[x.reshape(200, 4, 24).swapaxes(0, 1) for x in (q, k, v)], is_causal=True)),
    "heads that share keys": (
        lambda q, k, v: q.scaled_dot_product_attention(k, v, enable_gqa=True),
        ((2, 6, 70, 32), (2, 2, 140, 32), (2, 2, 140, 32)),
        lambda q, k, v: exactly(q, *[np.repeat(x, 3, axis=1) for x in (k, v)])),
    "a part of longer keys": (
        lambda q, k, v: plain(q, k[:, 8:141], v[:, 8:141]), ((2, 64, 32), (2, 150, 32), (2, 150, 32)),
        lambda q, k, v: exactly(q, k[:, 8:141], v[:, 8:141])),
}


@pytest.mark.parametrize("name", VIEWS)
def test_boxes_bring_views_as_they_lie(name: str) -> None:
    attention, shapes, reference = VIEWS[name]
    kernel = made(attention, shapes)
    assert runs_beside(kernel)
    values = numbers(shapes, BF16)
    wanted = reference(*values)
    assert distance(run(kernel, values, wanted.size), wanted) < CLOSE[BF16]


STORED_FIRST: dict[str, tuple[Attention, tuple[tuple[int, ...], ...], Callable[..., np.ndarray], int]] = {
    "computed keys": (lambda q, k, v: plain(q, k * 2, v), shapes_of(1, 70, 140, 32, 32),
                      lambda q, k, v: exactly(q, k * 2, v), 2),
    "computed queries that lie across": (
        lambda q, k, v: causal(across(q) + 1, k, v), shapes_of(2, 70, 70, 32, 32),
        lambda q, k, v: exactly(np.swapaxes(q.reshape(2, 32, 70), -1, -2) + 1, k, v, is_causal=True), 2),
    "rows that begin anywhere": (plain, shapes_of(2, 70, 140, 36, 20), exactly, 4),
}


@pytest.mark.parametrize("name", STORED_FIRST)
def test_factors_that_no_box_can_bring_are_stored_first(name: str) -> None:
    attention, shapes, reference, phases = STORED_FIRST[name]
    kernel = made(attention, shapes)
    assert runs_beside(kernel) and len(kernel.phases) == phases
    values = numbers(shapes, BF16)
    wanted = reference(*values)
    assert distance(run(kernel, values, wanted.size), wanted) < CLOSE[BF16] * 1.2         # what is computed is rounded


# -- waits -----------------------------------------------------------------------------------------------------------
def without(body: list[Statement], left_out: Statement) -> list[Statement]:
    out: list[Statement] = []
    for s in body:
        if isinstance(s, (For, If)):
            s = replace(s, body=without(s.body, left_out))
        if s is not left_out:
            out.append(s)
    return out


def test_none_of_the_waits_can_be_left_out() -> None:
    shapes = shapes_of(1, 130, 600, 16, 16)
    kernel, values = made(plain, shapes), numbers(shapes, BF16)
    body = kernel.phases[0].body
    waits = [s for s in walk(body) if isinstance(s, (AwaitCopies, AwaitSteps, Barrier))]
    kinds = [type(s).__name__ for s in waits]
    assert (kinds.count("AwaitCopies"), kinds.count("AwaitSteps"), kinds.count("Barrier")) == (4, 4, 1)
    for wait in waits[:-1]:                       # the last is for threads: results go where factors were
        with pytest.raises(Bug, match="a wait for|which was not waited for"):
            run(replace(kernel, phases=[Phase(without(body, wait))]), values, 130 * 16)


def test_copies_start_when_the_last_thread_is_done_with_the_stage() -> None:
    shapes = shapes_of(1, 130, 600, 16, 16)
    kernel = made(plain, shapes)
    copies = [s for s in walk(kernel.phases[0].body) if isinstance(s, CopyBoxes)]
    assert [s.by_last for s in copies] == [False] * 4 + [True] * 3
    for copy in copies[4:]:
        copy.by_last = False
        with pytest.raises(Bug, match="a barrier is missing between them"):
            run(kernel, numbers(shapes, BF16), 130 * 16)
        copy.by_last = True
    run(kernel, numbers(shapes, BF16), 130 * 16)


def test_weights_are_not_overwritten_while_a_step_reads_them() -> None:
    """The wait between the steps that read the weights of one block and the next weights."""
    shapes = shapes_of(1, 64, 200, 16, 16)
    kernel = made(plain, shapes)
    body = kernel.phases[0].body
    [loop] = [s for s in walk(body) if isinstance(s, For) and s.range.arg.name == "kn"]
    [wait] = [s for s in loop.body if isinstance(s, AwaitSteps) and s.pending == 0]
    changed = replace(kernel, phases=[Phase(without(body, wait))])
    with pytest.raises(Bug, match="assigns to tile_left while step 2 of the matrix unit may still use it"):
        run(changed, numbers(shapes, BF16), 64 * 16)


# -- masks -----------------------------------------------------------------------------------------------------------
def test_a_mask_runs_in_the_blocks_that_it_changes() -> None:
    kernel = made(causal, shapes_of(1, 1024, 1024, 64, 64))
    masked = [s for s in walk(kernel.phases[0].body) if isinstance(s, If)
              and any(isinstance(a, Assign) and a.register.arg == "tile" for a in walk(s.body))]
    assert len(masked) == 2                                    # in the first block, and in the others


@pytest.mark.parametrize("keys, boxed, processors", [(256, 4, 132), (256, 4, 1), (252, 3, 132)])
def test_a_mask_of_whole_rows_is_left_to_the_result(keys: int, boxed: int, processors: int) -> None:
    """Rows that see no key are 0. Neither the scores nor the weights of a block are selected for that. What is added to
    scores comes as boxes, unless its lines do not begin at multiples of 16 bytes."""
    shapes = (*shapes_of(1, 300, keys, 16, 24), (300, keys))           # all of different sizes
    chip = replace(CHIP, few_tasks=2 * processors)
    tensors = [Tensor.zeros(*shape, dtype=BF16).contiguous().realize() for shape in shapes]
    q, k, v, mask = tensors
    rows, item = q.scaled_dot_product_attention(k, v, attn_mask=mask).schedule()
    kernels = [optimize(lower(each.ast, blocks=chip.score_blocks), chip) for each in (rows, item)]
    copies = [s for s in walk(kernels[1].phases[-1].body) if isinstance(s, CopyBoxes)]
    assert len({box.source for s in copies for box in s.boxes}) == boxed
    assert ("stay=yes" in kernels[1].moves[0]) == (processors == 1)
    values = numbers(shapes, BF16)
    values[3][5] = -np.inf
    given = {x.size: (x.view(np.uint32) >> 16).astype(np.uint16).ravel() for x in values}
    memory: dict[int, np.ndarray] = {}
    for each, kernel in zip((rows, item), kernels):
        for slot, param in zip(each.slots, kernel.params):
            size = math.prod(param.shape)
            empty = np.zeros(size, np.bool_ if param.dtype.kind == "b" else np.uint16)
            memory.setdefault(slot, given[size] if slot < len(values) else empty)
        run_kernel(kernel, [memory[slot] for slot in each.slots])
    got = (memory[item.slots[0]].astype(np.uint32) << 16).view(np.float32).reshape(300, 24)
    x, y, z, added = (a.astype(np.float64) for a in values)
    with np.errstate(invalid="ignore"):
        scores = x[0] @ y[0].T / 4 + added
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = np.nan_to_num(weights / weights.sum(-1, keepdims=True)) @ z[0]
    assert (got[5] == 0).all() and distance(got, wanted) < CLOSE[BF16]
    made_of_sums = [s.value for s in walk(kernels[1].phases[-1].body) if isinstance(s, Assign)
                    and s.register.arg in ("tile", "tile_left") and s.value.op is not o.CONST]
    assert {value.op for value in made_of_sums} == {o.MULACC if keys == 256 else o.WHERE, o.CAST}    # the last keys


def test_what_is_masked_is_read_from_comparisons() -> None:
    row, column, block = counter("r", 64), counter("c", 32), counter("b", 9)
    kept, least = register("x", dtypes.float32, (row, column)), const(-math.inf, dtypes.float32)
    below = UOp(o.CMPLT, dtypes.bool, (column, row + index(1)))
    score = UOp(o.WHERE, dtypes.float32, (below, kept, least))
    condition = something_masked(score, kept, [row, column])
    assert condition is not None and condition.op is o.NOT and condition.src[0].arg is False      # column 1 of row 0
    apart = UOp(o.CMPLT, dtypes.bool, (column, block * 32))
    condition = something_masked(UOp(o.WHERE, dtypes.float32, (apart, kept, least)), kept, [row, column])
    assert condition is not None and condition.op is o.NOT and condition.src[0].op is o.CMPLT
    assert something_masked(kept * 2.0, kept, [row, column]) is None


# -- sources, for the chip -------------------------------------------------------------------------------------------
@needs_nvrtc
@pytest.mark.parametrize("size, is_causal, rows", [(64, True, 256), (128, False, 128), (80, False, 128)])
def test_sources_compile_without_spills_and_with_steps_in_flight(size: int, is_causal: bool, rows: int) -> None:
    kernel = made(causal if is_causal else plain, ((20, 2000, size),) * 3)
    report = compiler_report(make_source(kernel, CHIP, "cuda"), "sm_90a")
    assert [int(n) for n in re.findall(r"(\d+) bytes spill", report)] == [0, 0]
    assert "serialized" not in report
    [(_, groups, threads, near)] = gpu_launch(kernel, CHIP.group_bytes).phases
    assert (groups, threads) == (132, 2 * rows) and near <= 224 << 10
