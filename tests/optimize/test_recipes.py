"""Every recipe keeps the answer: on ragged sizes, on views, for several processors, checked against interpreters.

Endless, random graphs for every processor by command:  python tests/optimize/test_recipes.py [first seed] [last seed]
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from graph_fuzzer import Maker
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from loop_kernels import AVX2, AVX512, NEON, TARGETS, Inputs, check, compiler, matmul

from glassgrad import Tensor
from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LOOP, TASK, For, task_loops, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.plain import gpu_loops, lanes_and_tasks, plain_loops
from glassgrad.compiler.optimize.recipes import optimize, unoptimized

FLOAT = dtypes.float32
NARROW = replace(AVX512, narrow_steps=64 << 10)
quick = hypothesis_settings(max_examples=12, deadline=None, derandomize=True,
                            suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", [*TARGETS, "narrow"])
@quick
@given(st.integers(0, 1 << 20))
def test_random_graphs(name: str, seed: int) -> None:
    maker = Maker(seed)
    sinks = [s for s in dict.fromkeys(maker.graph(6)) if s not in maker.leaves]
    if sinks:
        check(sinks, maker.leaves, compiler({**TARGETS, "narrow": NARROW}[name]), f"seed {seed} for {name}")


@pytest.mark.parametrize("shape, lanes", [((100,), 8), ((60, 60), 8), ((400, 400), 16)])
def test_little_kernels_have_narrow_vectors_where_wide_ones_lower_the_clock(shape: tuple[int, ...], lanes: int) -> None:
    values, log = Inputs(), []
    x = values.leaf(np.ones(shape, "float32"))
    for sink in (x * 2.0 + 1.0, (x * 2.0).sum([len(shape) - 1])):
        check([sink], values, compiler(NARROW, log), f"{shape}")
    assert {move[move.index("lanes="):] for move in log if "lanes=" in move} == {f"lanes={lanes})"}


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


@pytest.mark.parametrize("workers", [2, 16])
def test_a_vector_times_a_matrix_keeps_all_workers_busy(workers: int) -> None:
    """Parts of the columns go along whole rows; their number is the same for any number of workers."""
    [item] = (Tensor.rand(2000).realize() @ Tensor.rand(2000, 1500).realize()).schedule()
    kernel = optimize(lower(item.ast), replace(AVX512, workers=workers))
    loops, _ = task_loops(kernel.phases[0].body)
    assert "group(loop=k0, chunk=80)" in kernel.moves and loops[0].range.arg.size == 25, kernel.moves


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
