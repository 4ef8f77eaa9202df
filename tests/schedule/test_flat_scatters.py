"""Many numbers written by index into one axis, on a GPU: in parts, or in bins of places; in a fixed order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import AVX2, HOPPER, Inputs, check, run_graph

from glassgrad import Context, Tensor
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.op_arguments import Scatter
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.lower.access_bounds import prove_accesses
from glassgrad.compiler.lower.loops import LOOP, TASK, For, Kernel, Store, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU
from glassgrad.compiler.pipeline import make_schedule, make_source
from glassgrad.compiler.render.gpu.dialects import CUDA
from glassgrad.compiler.schedule import flat_scatters
from glassgrad.compiler.schedule.flat_scatters import with_flat_scatters_cut
from glassgrad.compiler.schedule.inlined_values import CPU_LIMITS
from glassgrad.engine.schedule_key import normalize, with_params

LIMITS = GPU.fusion


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_scatters, "FEWEST", 256)
    monkeypatch.setattr(flat_scatters, "LEAST_PART", 4)
    monkeypatch.setattr(flat_scatters, "LEAST_PARTS", 8)
    monkeypatch.setattr(flat_scatters, "LEAST_PIECE", 32)
    monkeypatch.setattr(flat_scatters, "ROW_PIECE", 16)


class Written:
    """Numbers written by index: the node, and the arrays it is made of."""

    def __init__(self, places: int, count: int, mode: str, dtype: str = "float32", often: float = 0.0):
        rng, self.values = np.random.default_rng(places), Inputs()
        self.base, self.given = ((rng.standard_normal(n) * 5).astype(dtype) for n in (places, count))
        self.where = np.where(rng.random(count) < often, places // 2, rng.integers(0, places, count)).astype(np.int32)
        if dtype != "int32":
            self.given[3] = np.nan
        base, where, given = (Tensor(self.values.leaf(a)) for a in (self.base, self.where, self.given))
        with Context(CHECK_INDEX=0):
            made = base.scatter(0, where, given) if mode == "set" else base.scatter_reduce(0, where, given, mode)
        [self.sink] = rewrite([made.uop], ALGEBRA)


def tree(ast: UOp) -> Kernel:
    return optimize(lower(ast), GPU)


@pytest.mark.parametrize("mode", ["sum", "set", "amax"])
@pytest.mark.parametrize("places, count", [(300, 400), (5000, 301), (2, 256), (7, 900), (2113, 320)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_what_is_cut_has_the_values_of_one_after_another(places: int, count: int, mode: str, dtype: str) -> None:
    made = Written(places, count, mode, dtype)
    check([made.sink], made.values, tree, limits=LIMITS)


@pytest.mark.parametrize("places", [300, 5000])
@pytest.mark.parametrize("mode", ["sum", "amax", "set"])
def test_one_place_that_is_written_most_often_has_several_groups(places: int, mode: str) -> None:
    made = Written(places, 700, mode, often=0.7)
    check([made.sink], made.values, tree, limits=LIMITS)


@pytest.mark.parametrize("places, mode, groups", [(20, "sum", []), (20, "amax", []), (20, "set", [20]),
                                                  (400, "sum", [400 + 16, 400]), (5000, "sum", [1250 + 16, 1250])])
def test_few_places_are_written_in_parts_and_many_in_bins(places: int, mode: str, groups: list[int]) -> None:
    cut = with_flat_scatters_cut([Written(places, 500, mode).sink], LIMITS)
    found = [n for n in toposort(cut) if n.op is o.SCATTER and n.arg.mode != "permute"]
    assert [n.src[3].shape[0] - 1 for n in found if len(n.src) > 3] == groups


@pytest.mark.parametrize("mode, columns", [("sum", ()), ("amax", ()), ("sum", (5,))])
def test_a_cpu_writes_much_to_few_places_in_parts(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, mode: str,
                                                  columns: tuple[int, ...]) -> None:
    """As many parts on every CPU: the same bits for any number of threads."""
    monkeypatch.setattr(flat_scatters, "MUCH", 1000)
    values, parts = Inputs(), list[int]()
    base, given = (Tensor(values.leaf(rng.standard_normal((n, *columns)).astype(np.float32))) for n in (4, 1100))
    where = Tensor(values.leaf(rng.integers(0, 4, 1100).astype(np.int32)))
    with Context(CHECK_INDEX=0):
        made = base.index_add(0, where, given) if mode == "sum" else base.scatter_reduce(0, where, given, mode)
    sinks = rewrite([made.uop], ALGEBRA)

    def kept(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), replace(AVX2, task_steps=16))
        parts.append(max([s.range.arg.size for s in walk(kernel.phases[-1].body) if isinstance(s, For)
                          and s.kind == TASK], default=0))
        return kernel
    check(sinks, values, kept)
    assert parts[0] == flat_scatters.CPU_PARTS


def test_a_cpu_writes_to_many_places_as_they_are() -> None:
    for places, count, mode in ((400, 5000, "sum"), (4, 5000, "set")):
        sinks = [Written(places, count, mode).sink]
        assert with_flat_scatters_cut(sinks, CPU_LIMITS) == sinks


def test_values_of_a_bin_are_added_in_the_order_of_their_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_scatters, "LEAST_PIECE", 1024)
    made = Written(50, 300, "sum")
    wanted = np.zeros_like(made.base)
    for at, value in zip(made.where, made.given):
        wanted[at] += value
    [got] = run_graph([made.sink], made.values, tree, LIMITS)
    np.testing.assert_array_equal(got, made.base + wanted)


def test_no_group_looks_through_the_indices_of_others() -> None:
    """Of indices by two arrays: a group reads those of its bin, from where it starts."""
    x, g = Tensor.zeros(400, 50).contiguous().realize(), Tensor.zeros(3000).contiguous().realize()
    rows, columns = (Tensor.zeros(3000, dtype="int32").contiguous().realize() for _ in range(2))
    with Context(CHECK_INDEX=0):
        [sink] = rewrite(written_out([(x[rows, columns] * g).sum().gradient(x)[0].uop]), ALGEBRA)
    work = make_schedule(*with_params(normalize([sink]), ()), "CPU", limits=LIMITS)
    kernels = [tree(item.ast) for item in work.items]
    [task] = kernels[-2].phases[-1].body
    assert isinstance(task, For) and task.kind == TASK and task.range.arg.size == 2000 + 94
    [loop] = [s for s in task.body if isinstance(s, For) and s.kind == LOOP]
    assert loop.stop is not None, "as many as its bin has"
    for kernel in kernels:
        prove_accesses(kernel)
        assert make_source(kernel, HOPPER, CUDA.name)


def rows_written(places: int, columns: tuple[int, ...], count: int, often: float, dtype: str,
                 mode: str) -> tuple[list[UOp], Inputs]:
    """Rows written by index, many of them to one place."""
    rng, values = np.random.default_rng(places), Inputs()
    base, given = ((rng.standard_normal((n, *columns)) * 5).astype(dtype) for n in (places, count))
    where = np.where(rng.random(count) < often, places // 2, rng.integers(0, places, count)).astype(np.int32)
    leaves = tuple(values.leaf(a) for a in (base, where, given))
    return [UOp(o.SCATTER, leaves[0].dtype, leaves, Scatter(mode))], values


@pytest.mark.parametrize("places, columns, count", [(300, (40,), 600), (20, (5,), 700), (2000, (3, 2), 300),
                                                    (2, (130,), 257), (700, (1300,), 300)])
@pytest.mark.parametrize("mode, dtype, often", [("add", "float32", 0.0), ("add", "float32", 0.7), ("add", "int32", 1.0),
                                                ("max", "float32", 0.1), ("add", "float16", 0.3)])
def test_rows_have_a_bin_each(places: int, columns: tuple[int, ...], count: int, mode: str, dtype: str,
                              often: float) -> None:
    sinks, values = rows_written(places, columns, count, often, dtype, mode)
    kernels = list[Kernel]()

    def kept(ast: UOp) -> Kernel:
        kernels.append(tree(ast))
        return kernels[-1]
    check(sinks, values, kept, limits=LIMITS)
    for kernel in [kernel for kernel in kernels if kernel.name.startswith("scatter")][-1 if places > count else -2:]:
        prove_accesses(kernel)
        [phase] = kernel.phases
        in_loops = [s for f in walk(phase.body) if isinstance(f, For) and f.kind == LOOP and f.stop is not None
                    for s in walk(f.body)]
        assert in_loops and not any(isinstance(s, Store) for s in in_loops), "summed in registers, stored once"
        assert make_source(kernel, HOPPER, CUDA.name)


def test_rows_that_are_replaced_and_batches_are_left_alone() -> None:
    x = Tensor.zeros(300, 40).contiguous().realize()
    where = Tensor.zeros(600, dtype="int32").contiguous().realize()
    replaced = UOp(o.SCATTER, x.dtype, (x.uop, where.uop, Tensor.zeros(600, 40).uop), Scatter("set"))
    assert with_flat_scatters_cut([replaced], LIMITS) == [replaced]
    base, where = Tensor.zeros(6, 40).contiguous().realize(), Tensor.zeros(6, 100, dtype="int32").contiguous().realize()
    made = base.scatter_add(1, where, Tensor.zeros(6, 100))
    assert with_flat_scatters_cut([made.uop], LIMITS) == [made.uop]
    x = Tensor.zeros(20, 40).contiguous().realize()
    sinks = rewrite(written_out([x.cummax(1)[0].square().sum().gradient(x)[0].uop]), ALGEBRA)
    assert with_flat_scatters_cut(sinks, LIMITS) == sinks
