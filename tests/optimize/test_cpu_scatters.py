"""Rows written by index on a CPU (plain/cpu_scatters.py): the bits of one index after another, for any threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import AVX2, NEON, Inputs, check, run_graph

from glassgrad import Context, Tensor
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.access_bounds import prove_accesses
from glassgrad.compiler.lower.loops import LANE, TASK, For, Kernel, Prefetch, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.launch_info import launch_info
from glassgrad.compiler.schedule import flat_scatters

Shape = tuple[int, ...]


def threads(count: int, target: Target = AVX2) -> Target:
    """A processor where a task is worth little work."""
    return replace(target, workers=count, task_steps=16)


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few places are not written in parts, which are added in another order."""
    monkeypatch.setattr(flat_scatters, "MUCH", 1 << 40)


class Written:
    """Rows written by index: the node, its leaves, and the value by one index after another."""

    def __init__(self, rows: int, columns: Shape, where: np.ndarray, mode: str = "sum", dtype: str = "float32"):
        rng, self.values = np.random.default_rng(rows), Inputs()
        base, given = ((rng.standard_normal(s) * 5).astype(dtype)
                       for s in ((rows, *columns), (*where.shape, *columns)))
        x, i, v = (Tensor(self.values.leaf(a)) for a in (base, where.astype(np.int32), given))
        with Context(CHECK_INDEX=0):
            made = x.index_add(0, i, v) if mode == "sum" else x.scatter(0, i, v) if mode == "set" else \
                x.scatter_reduce(0, i, v, mode)
        [self.sink] = rewrite([made.uop], ALGEBRA)
        self.wanted = base.copy()
        for at, value in zip(where, given):
            old, new = self.wanted[at].astype(np.float32), value.astype(np.float32)
            self.wanted[at] = old + new if mode == "sum" else new if mode == "set" else np.maximum(old, new)

    def kernels(self, target: Target) -> list[Kernel]:
        kernels = list[Kernel]()

        def kept(ast: UOp) -> Kernel:
            kernels.append(optimize(lower(ast), target))
            return kernels[-1]
        [got] = run_graph([self.sink], self.values, kept)
        np.testing.assert_array_equal(got, self.wanted)
        for kernel in kernels:
            prove_accesses(kernel)
        return kernels


def spread(rows: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, rows, count)


@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("rows, columns, indices", [(300, (40,), 601), (90, (7,), 257), (30, (128,), 50), (400, (), 8),
                                                    (2000, (), 700), (5, (3, 5), 64), (1, (64,), 33)])
def test_any_number_of_threads_gives_the_bits_of_one_after_another(rows: int, columns: Shape, indices: int,
                                                                   count: int) -> None:
    made = Written(rows, columns, spread(rows, indices))
    for target in (AVX2, NEON):
        made.kernels(threads(count, target))


@pytest.mark.parametrize("mode, dtype", [("set", "float32"), ("amax", "float32"), ("sum", "float16"), ("sum", "int32"),
                                         ("amax", "int32")])
def test_what_is_written_last_or_is_largest_or_small_floats(mode: str, dtype: str) -> None:
    for columns in ((), (24,)) if mode == "sum" else ((),):
        Written(1500, columns, spread(200, 500), mode, dtype).kernels(threads(8))


def test_one_row_that_gets_everything_is_one_blocks() -> None:
    for columns in ((), (16,)):
        Written(3000, columns, np.full(300, 2999)).kernels(threads(8))


def test_indices_outside_are_clamped_as_by_one_thread(rng: np.random.Generator) -> None:
    values = Inputs()
    where = rng.integers(-150, 750, 300)
    base, given = (rng.standard_normal((n, 16)).astype(np.float32) for n in (600, 300))
    with Context(CHECK_INDEX=0):
        x, i, v = (Tensor(values.leaf(a)) for a in (base, where, given))
        sinks = rewrite([x.index_add(0, i, v).uop], ALGEBRA)
    wanted = base.copy()
    np.add.at(wanted, np.clip(where, 0, 599), given)
    for count in (1, 8):
        [got] = run_graph(sinks, values, lambda ast, count=count: optimize(lower(ast), threads(count)))
        np.testing.assert_array_equal(got, wanted)


def test_rows_are_sorted_into_blocks_of_several_threads_and_done_whole() -> None:
    made = Written(1000, (64,), spread(1000, 3000))
    *_, kernel = made.kernels(threads(16))
    assert [tasks for _, tasks in launch_info(kernel).phases][1:] == [16, 16, 32]
    inside = list(walk(kernel.phases[-1].body))
    assert [s.kind for s in inside if isinstance(s, For)][0] == TASK and any(isinstance(s, Prefetch) for s in inside)
    *_, kernel = made.kernels(threads(1))
    assert [tasks for _, tasks in launch_info(kernel).phases][1:] == [1], "one thread sorts nothing"
    kinds = [(s.kind, s.range.arg.name) for s in walk(kernel.phases[-1].body) if isinstance(s, For)]
    assert kinds[0] == ("loop", "s0") and kinds[-1][0] == LANE, "a row is read once, not once for each vector of it"


def test_long_rows_are_split_by_columns() -> None:
    *_, kernel = Written(40, (1024,), spread(40, 60)).kernels(threads(4))
    assert [tasks for _, tasks in launch_info(kernel).phases][1:] == [4], "no index is sorted"


def test_single_numbers_pay_for_a_sort_from_several_threads_on() -> None:
    made = Written(5000, (), spread(5000, 4000))
    phases = [len(made.kernels(threads(count))[-1].phases) for count in (1, 2, 4, 8, 16)]
    assert phases == [2, 2, 2, 4, 4]


def test_elements_by_an_index_each_are_read_row_by_row(rng: np.random.Generator) -> None:
    """scatter_add along the first axis: neighbours are read together, and no two tasks share a cache line."""
    values = Inputs()
    base = rng.standard_normal((50, 128)).astype(np.float32)
    where, given = rng.integers(0, 50, (70, 128)), rng.standard_normal((70, 128)).astype(np.float32)
    leaves = [Tensor(values.leaf(a)) for a in (base, where.astype(np.int32), given)]
    with Context(CHECK_INDEX=0):
        sinks = rewrite([leaves[0].scatter_add(0, leaves[1], leaves[2]).uop], ALGEBRA)
    wanted = base.copy()
    for row in range(70):
        wanted[where[row], np.arange(128)] += given[row]
    for count, tasks in ((1, 1), (2, 2), (16, 2)):
        kernels = list[Kernel]()

        def kept(ast: UOp, kernels: list[Kernel] = kernels, count: int = count) -> Kernel:
            kernels.append(optimize(lower(ast), threads(count)))
            return kernels[-1]
        np.testing.assert_array_equal(run_graph(sinks, values, kept)[0], wanted)
        assert launch_info(kernels[-1]).phases[-1][1] == tasks
        loops = [s.range.arg.name for s in walk(kernels[-1].phases[-1].body) if isinstance(s, For)]
        assert loops[-2:] == ["s0", "s1"]


def test_two_indices_and_no_index(rng: np.random.Generator) -> None:
    """The gradient of x[rows, columns], of a column with a row: nested loops; and one of a table that nothing reads."""
    for rows, columns in (((30, 1), (1, 40)), ((0,), (0,))):
        values = Inputs()
        x = Tensor(values.leaf(np.zeros((40, 50), np.float32)))
        at = [rng.integers(0, n, s) for n, s in ((40, rows), (50, columns))]
        shape = np.broadcast_shapes(rows, columns)
        given = rng.standard_normal(shape).astype(np.float32)
        r, c = (Tensor(values.leaf(a.astype(np.int32))) for a in at)
        g = Tensor(values.leaf(given))
        with Context(CHECK_INDEX=0):
            sinks = rewrite(written_out([(x[r * 1, c * 1] * g).sum().gradient(x)[0].uop]), ALGEBRA)
        wanted = np.zeros((40, 50), np.float32)
        np.add.at(wanted, (np.broadcast_to(at[0], shape), np.broadcast_to(at[1], shape)), given)
        for count in (1, 8):
            [got] = run_graph(sinks, values, lambda ast, count=count: optimize(lower(ast), threads(count)))
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("device", ["CPU", "CLANG"])
def test_compiled_kernels_give_the_same_bits_for_any_number_of_threads(device: str, rng: np.random.Generator) -> None:
    where = rng.integers(0, 700, 20_000)
    for columns in ((), (40,)):
        base, given = (rng.standard_normal((n, *columns)).astype(np.float32) for n in (700, 20_000))
        wanted = base.copy()
        np.add.at(wanted, where, given)
        for count in (1, 3, 8):
            with Context(THREADS=count):
                x, i, v = (Tensor(a, device=device) for a in (base, where, given))
                np.testing.assert_array_equal(x.index_add(0, i, v).numpy(), wanted)


def test_named_elements_are_copied_one_by_one_where_no_instruction_gathers(rng: np.random.Generator) -> None:
    values = Inputs()
    x, where = (Tensor(values.leaf(a)) for a in (rng.standard_normal((20, 60)).astype(np.float32),
                                                 rng.integers(0, 60, (20, 37))))
    with Context(CHECK_INDEX=0):
        copied, computed = (rewrite([made.uop], ALGEBRA) for made in (x.gather(1, where), x.gather(1, where).exp()))
    for target, sinks, wide in ((NEON, copied, False), (AVX2, copied, True), (NEON, computed, True)):
        kernels = list[Kernel]()

        def kept(ast: UOp, kernels: list[Kernel] = kernels, target: Target = target) -> Kernel:
            kernels.append(optimize(lower(ast), target))
            return kernels[-1]
        check(sinks, values, kept)
        kinds = [s.kind for s in walk(kernels[0].phases[0].body) if isinstance(s, For)]
        assert (LANE in kinds) == wide
