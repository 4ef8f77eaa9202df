"""The gradient of softmax(q k^T) v, whose passes compute the scores again: loop trees for matrix units, and sources.

A schedule of a GPU runs here kernel by kernel in the interpreter, which checks every wait, against float64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import compiler_report, needs_nvrtc

from glassgrad import Context, Tensor, dtypes
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import const, ops as o, toposort
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.lower.attention.attention_backward import ComputedFactor
from glassgrad.compiler.lower.group_statements import AwaitSteps, Turn
from glassgrad.compiler.lower.loops import Accumulate, Assign, For, If, Kernel, expressions, ranges_of, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.lower.printing import show
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import units_of
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.schedule.attention_backward import FactorProduct, in_kernel
from glassgrad.compiler.schedule.kernels import Item
from glassgrad.engine.realize import schedule_of
from glassgrad.engine.schedule_key import normalize

CHIPS = {name: replace(GPU, features=frozenset({name}), units=units_of({name})) for name in ("sm_80", "sm_90a")}
Shape = tuple[int, int, int, int, int]         # batch, rows, keys, numbers of a key, numbers of a value


@pytest.fixture(autouse=True)
def any_size() -> Iterator[None]:
    with Context(ONLINE_SOFTMAX=2, MATRIX_UNIT=0):
        yield


def exactly(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, is_causal: bool) -> list[np.ndarray]:
    """The result and the gradients of q, k and v, in float64."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = weights @ v
    inner = weights * (g @ v.swapaxes(-1, -2) - (g * out).sum(-1, keepdims=True)) * scale
    return [out, inner @ k, inner.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ g]


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got.ravel() - wanted.ravel()) / np.linalg.norm(wanted))


def small(x: np.ndarray) -> np.ndarray:
    """Numbers as bfloat16."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def large(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


class Training:
    """Attention and its gradients as a GPU's schedule, of bfloat16."""

    def __init__(self, shape: Shape, is_causal: bool, target: Target, shift: float = 0.0):
        batch, rows, keys, size, width = shape
        shapes = (batch, rows, size), (batch, keys, size), (batch, keys, width), (batch, rows, width)
        rng = np.random.default_rng(sum(shape))
        self.given = [large(small(rng.standard_normal(s))) for s in shapes]
        self.given[0], self.given[1] = (large(small(x + part)) for x, part in zip(self.given, (shift, -shift)))
        q, k, v, g = self.tensors = [Tensor.zeros(*s, dtype="bfloat16").contiguous().realize() for s in shapes]
        for t in (q, k, v):
            t.requires_grad = True
        out = q.scaled_dot_product_attention(k, v, is_causal=is_causal)
        gradients = (out.cast("float32") * g.cast("float32")).sum().gradient(q, k, v)
        self.results = [out, *gradients]
        nodes = written_out([t.uop for t in self.results])
        self.items: list[Item] = schedule_of(nodes, out.device)
        buffers = normalize(nodes).buffers                  # by slot; which of the inputs each is:
        self.input_of = [[t.uop for t in self.tensors].index(buffer) for buffer in buffers]
        self.kernels: list[Kernel] = [optimize(lower(item.ast, blocks=target.score_blocks), target)
                                      for item in self.items]

    def run(self) -> list[np.ndarray]:
        """What the kernels compute of the given numbers: memory is found by the slots of the kernels."""
        memory: dict[int, np.ndarray] = {}
        for item, kernel in zip(self.items, self.kernels):
            for slot, param in zip(item.slots, kernel.params):
                if slot not in memory and slot < len(self.given):
                    memory[slot] = small(self.given[self.input_of[slot]]).ravel()
                elif slot not in memory:
                    narrow = param.dtype is dtypes.bfloat16
                    memory[slot] = np.zeros(math.prod(param.shape), np.uint16 if narrow else np.float32)
            run_kernel(kernel, [memory[slot] for slot in item.slots])
        out, of_q, of_k, of_v = (large(memory[slot]) for slot in sorted(memory) if slot >= len(self.given)
                                 and memory[slot].dtype == np.uint16)
        return [out, of_q, of_k, of_v]


CASES: dict[str, tuple[str, Shape, bool]] = {
    "one block": ("sm_90a", (1, 64, 64, 16, 16), False), "ragged": ("sm_90a", (1, 130, 200, 40, 24), False),
    "two blocks": ("sm_90a", (1, 128, 128, 64, 64), False), "eight blocks": ("sm_90a", (1, 512, 512, 32, 32), True),
    "causal": ("sm_90a", (1, 192, 192, 16, 16), True), "wide, causal": ("sm_90a", (1, 70, 130, 128, 128), True),
    "one by one": ("sm_80", (1, 70, 100, 24, 16), False), "one by one, causal": ("sm_80", (1, 130, 70, 16, 16), True)}


@pytest.mark.parametrize("name", CASES)
def test_trees_are_right(name: str) -> None:
    chip, shape, is_causal = CASES[name]
    training = Training(shape, is_causal, CHIPS[chip])
    passes = [kernel for kernel in training.kernels if kernel.name.startswith("online")]
    assert len(passes) == 3 and all(move.startswith("held(") for kernel in passes for move in kernel.moves)
    assert all(any(isinstance(s, AwaitSteps) for s in walk(kernel.phases[-1].body)) == (chip == "sm_90a")
               for kernel in passes)
    for got, wanted in zip(training.run(), exactly(*training.given, is_causal)):
        assert distance(got, wanted) < 9e-3


SEVERAL_TASKS: dict[str, Shape] = {          # of each of two groups; where rows and keys come out even, blocks are read
    "ragged": (1, 400, 400, 16, 16), "even": (3, 256, 256, 64, 64), "wide": (2, 256, 256, 128, 128)}       # ahead


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", SEVERAL_TASKS)
def test_groups_that_stay_compute_the_same(name: str, is_causal: bool) -> None:
    alone, stays = (Training(SEVERAL_TASKS[name], is_causal, target)
                    for target in (CHIPS["sm_90a"], replace(CHIPS["sm_90a"], few_tasks=4)))
    assert ["stay=yes" in kernel.moves[0] for kernel in stays.kernels] == [True, False, True, True]
    alone.kernels[1] = stays.kernels[1]                      # sums of rows, which few processors add in another order
    for got, same, wanted in zip(stays.run(), alone.run(), exactly(*stays.given, is_causal)):
        assert distance(got, wanted) < 9e-3 and (got == same).all()


def test_keys_past_the_end_have_no_weight_where_all_scores_are_far_below_zero() -> None:
    """exp2(0 - m) of them would be infinite, and infinite times the zeros that were read for them not a number."""
    training = Training((1, 64, 70, 16, 16), False, CHIPS["sm_90a"], shift=7.0)
    exact = exactly(*training.given, False)
    assert (training.given[0] @ training.given[1].swapaxes(-1, -2)).max() / 4 < -100
    for got, wanted in zip(training.run(), exact):
        assert distance(got, wanted) < 3e-2


def test_what_is_added_to_a_product_is_what_its_sums_begin_with() -> None:
    *_, kernel = Training((1, 128, 128, 16, 16), True, CHIPS["sm_90a"]).kernels
    body = kernel.phases[-1].body
    [e, e1] = [s.value for s in walk(body) if isinstance(s, Assign) and s.register.arg in ("e", "e1")][:2]
    assert e.op is o.EXP2 and e1.op is o.MUL and e1.src[0].arg == "e"           # the weights are computed once
    begins = [s.value for s in walk(body) if isinstance(s, Assign) and s.register.arg in ("tile", "tile1")][:2]
    assert [value.op is o.MUL and value.src[0].arg for value in begins] == ["begin0", "begin1"]
    masked = [s for s in walk(body) if isinstance(s, If) and any(isinstance(a, Assign) for a in walk(s.body))]
    assert len(masked) == 1                                                     # in blocks on the diagonal


def test_gradients_of_keys_and_values_share_a_kernel_that_reads_one_number_of_each_row() -> None:
    first, sums, *others = Training((1, 128, 128, 16, 16), False, CHIPS["sm_90a"]).items
    assert [item.results for item in (first, sums, *others)] == [2, 1, 1, 2]
    assert sums.reasons == ("read by each block of a softmax's scores",)
    [row_number] = set(first.slots[:first.results]) & set(others[0].slots) & set(others[1].slots)
    assert row_number == first.slots[0]


def test_left_factors_are_in_registers_where_these_suffice() -> None:
    def left_factors(size: int) -> list[str]:
        kernels = Training((1, 2048, 2048, size, size), False, CHIPS["sm_90a"]).kernels
        return [re.findall(r"left=(\w+)", kernel.moves[0])[0] for kernel in kernels if kernel.name.startswith("online")]

    for size in (64, 128):          # the first pass has 128 columns; sums of two gradients take the registers
        assert left_factors(size) == ["shared", "in_place", "shared"]


def test_numbers_of_columns_are_read_a_block_ahead_where_registers_suffice() -> None:
    def read_ahead(size: int) -> list[bool]:
        kernels = Training((1, 256, 256, size, size), True, CHIPS["sm_90a"]).kernels
        return [any(isinstance(s, Assign) and s.register.arg == "begin0" for s in walk(kernel.phases[-1].body))
                for kernel in kernels if kernel.name.startswith("online")]

    for size in (64, 128):
        assert read_ahead(size) == [False, False, True]                         # the others begin with numbers of rows


def test_threads_take_turns_at_the_unit_where_a_block_has_four_products() -> None:
    first, _, rows, keys = Training((1, 256, 256, 16, 16), False, CHIPS["sm_90a"]).kernels
    turns = [[s.ends for s in walk(kernel.phases[-1].body) if isinstance(s, Turn)] for kernel in (first, rows, keys)]
    assert turns == [[], [], [False, True]]
    assert "await a turn" in show(keys) and "end a turn" in show(keys)
    source = make_source(keys, CHIPS["sm_90a"], "cuda")
    assert source.index("if (warps == 1) turn_ends(warps, 2);") < source.index(" turn_begins(warps, 2);")


def test_groups_have_256_rows_where_sums_are_narrow_and_all_processors_have_some() -> None:
    def threads(times: int, size: int) -> list[str]:
        kernels = Training((times, 1024, 1024, size, size), True, CHIPS["sm_90a"]).kernels
        return [re.findall(r"lanes=(\d+)", k.moves[0])[0] for k in kernels if k.name.startswith("online")]

    assert threads(33, 64) == ["512", "512", "256"]                             # two gradients have 128 columns
    assert threads(32, 64) == threads(33, 96) == ["256", "256", "256"]


def test_the_scores_of_exponentials_come_last_in_a_turn() -> None:
    *_, kernel = Training((1, 256, 256, 64, 64), False, CHIPS["sm_90a"]).kernels
    [loop] = [s for s in walk(kernel.phases[-1].body) if isinstance(s, For) and s.range.arg.name == "kn"]
    steps = [s.register.arg for s in walk(loop.body) if isinstance(s, Accumulate)]
    assert steps == ["tile1", "tile", "out1", "out"]


def test_numbers_of_rows_and_of_keys_are_read_without_each_others_gates() -> None:
    """Past the end of either, nothing is kept of a score."""
    *_, rows, keys = Training((1, 200, 200, 32, 32), False, CHIPS["sm_90a"]).kernels

    def counters(kernel: Kernel) -> set[str]:
        """Those of the loads of numbers in float32."""
        nodes = [n for s in walk(kernel.phases[-1].body) for n in toposort(expressions(s))]
        reads = [n for n in nodes if n.op is o.LOAD and n.src[0].op is o.PARAM and n.dtype is dtypes.float32]
        return {r.arg.name for n in reads for r in ranges_of(n)}

    assert "r" in counters(rows) and "tile_c" not in counters(rows)
    assert "tile_c" in counters(keys) and "r" not in counters(keys)


def test_equal_queries_keys_and_values_have_one_gradient() -> None:
    rng = np.random.default_rng(1)
    x = Tensor(rng.standard_normal((1, 64, 16)).astype(np.float32), requires_grad=True)
    [found] = x.scaled_dot_product_attention(x, x).square().sum().gradient(x)
    given = x.numpy()
    out, *_ = exactly(given, given, given, given, False)
    wanted = sum(exactly(given, given, given, 2 * out, False)[1:])
    assert distance(found.numpy(), np.asarray(wanted)) < 1e-5


@needs_nvrtc
def test_sources_of_several_products_compile_without_spills_and_with_steps_in_flight() -> None:
    kernels = Training((9, 2048, 2048, 128, 128), True, CHIPS["sm_90a"]).kernels[-2:]
    for kernel in kernels:
        report = compiler_report(make_source(kernel, CHIPS["sm_90a"], "cuda"), "sm_90a")
        assert [int(n) for n in re.findall(r"(\d+) bytes spill", report)] == [0, 0]
        assert "serialized" not in report
    assert [kernel.name for kernel in kernels] == ["online_9_2048_128_r128_r128_r2048"] * 2


def test_what_copies_bring_is_read_after_their_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of it does not depend on the task; it was written before the loop over tasks, as if nothing changed it."""
    monkeypatch.setattr(gpu, "HELD_WORK", 1)
    chip = replace(CHIPS["sm_90a"], few_tasks=4)
    kernel = Training((2, 488, 488, 128, 128), False, chip).kernels[2]
    assert "left=in_place" in kernel.moves[0] and "stay=yes" in kernel.moves[0]
    before, _, after = make_source(kernel, chip, "cuda").partition("__global__")[2].partition("round_wait(")
    assert "stages[" not in before and "aligned(stages" not in before and "aligned(stages" in after


def test_what_is_rounded_to_does_not_depend_on_the_order_of_nodes() -> None:
    """Of two types of 16 bits the one that has fewer digits is chosen, whichever comes first in a set."""
    tensors = [Tensor.zeros(1, 64, 16, dtype="bfloat16").contiguous().realize() for _ in range(3)]
    out = tensors[0].scaled_dot_product_attention(*tensors[1:])
    gradients = out.cast("float32").square().sum().gradient(*tensors)
    items = schedule_of(written_out([t.uop for t in gradients]), out.device)
    sink, chain = next((item.ast, found) for item in items for found in in_kernel(item.ast)
                       if isinstance(found, FactorProduct))
    inside = [*chain.inside, const(1.0, dtypes.float16).reshape((1,))]
    for order in (inside, inside[::-1]):
        chain.inside = dict.fromkeys(order).keys()  # type: ignore[assignment]
        assert ComputedFactor(sink, [chain], GPU.score_blocks).rounded is dtypes.bfloat16
