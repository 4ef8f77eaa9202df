"""Rows written by index on a GPU (plain/gpu_scatters.py): the same values, in the order of indices, without waits."""

from __future__ import annotations

import numpy as np
import pytest
from loop_kernels import AVX2, Inputs, check, run_graph

from glassgrad import Context, Tensor
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.index_algebra import add, index, multiply
from glassgrad.compiler.graph.op_arguments import Param, Scatter
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp, const, full
from glassgrad.compiler.lower.loops import LANE, LOOP, TASK, For, Kernel, Store, counter, load, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.moves.loop_moves import wide
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.barriers import fences, unshared_memories
from glassgrad.compiler.render.gpu.dialects import CUDA
from glassgrad.compiler.render.launch_info import launch_info

Shape = tuple[int, ...]


def gradient_of_rows(rows: int, columns: Shape, indices: Shape) -> tuple[UOp, Inputs]:
    """What a table's rows receive, some of them several times."""
    rng, values = np.random.default_rng(rows), Inputs()
    table = Tensor(values.leaf(np.zeros((rows, *columns), np.float32)))
    where = Tensor(values.leaf(rng.integers(-rows, rows, indices).astype(np.int32)))
    g = Tensor(values.leaf(rng.standard_normal((*indices, *columns)).astype(np.float32)))
    with Context(CHECK_INDEX=0):
        made = (table[where * 1] * g).sum().gradient(table)[0]
    [sink] = rewrite(written_out([made.uop]), ALGEBRA)
    return sink, values


def tree(ast: UOp) -> Kernel:
    return optimize(lower(ast), GPU)


@pytest.mark.parametrize("rows, columns, indices", [(300, (40,), (600,)), (700, (300,), (20, 30)), (50, (), (400,)),
                                                    (900, (3, 5), (257,)), (30, (7,), (20,)), (90, (5,), (4100,)),
                                                    (300, (1300,), (300,))])
def test_rows_are_added_to_in_the_order_of_their_indices(rows: int, columns: Shape, indices: Shape) -> None:
    sink, values = gradient_of_rows(rows, columns, indices)
    check([sink], values, tree)


def test_what_all_goes_to_one_row_is_no_work_for_several_groups(rng: np.random.Generator) -> None:
    values = Inputs()
    base = Tensor(values.leaf(rng.standard_normal(300).astype(np.float32)))
    given = Tensor(values.leaf(rng.standard_normal(500).astype(np.float32)))
    made = base.scatter_reduce(0, Tensor.zeros(500, dtype=dtypes.int32), given, "sum")
    check(rewrite([made.uop], ALGEBRA), values, tree)


def test_small_floats_are_added_one_by_one(rng: np.random.Generator) -> None:
    """What is stored reads the row that it is added to: it cannot be read ahead."""
    values = Inputs()
    table = Tensor(values.leaf(np.zeros((60, 5), np.float16)))
    where = Tensor(values.leaf(rng.integers(0, 60, 400).astype(np.int32)))
    g = Tensor(values.leaf(rng.standard_normal((400, 5)).astype(np.float16)))
    with Context(CHECK_INDEX=0):
        made = (table[where * 1] * g).sum().gradient(table)[0]
    check(rewrite(written_out([made.uop]), ALGEBRA), values, tree)


BATCHES = [((6, 40), 1, (6, 100)), ((6, 40), 1, (4, 30)), ((40, 6), 0, (100, 6)), ((3, 40, 5), 1, (2, 90, 4)),
           ((3, 4, 30), 2, (3, 4, 70)), ((300, 7), 1, (300, 9)), ((2, 3000), 1, (2, 2100)), ((5, 1), 1, (5, 30))]


@pytest.mark.parametrize("mode", ["sum", "set", "amax"])
@pytest.mark.parametrize("shape, axis, indices", BATCHES)
def test_batches_are_written_apart_and_in_order(rng: np.random.Generator, shape: Shape, axis: int, indices: Shape,
                                                mode: str) -> None:
    """One thread group for an example of a batch, or several: the bits of one value after another."""
    for kind in (np.float32, np.float16):
        values = Inputs()
        base = Tensor(values.leaf(rng.standard_normal(shape).astype(kind)))
        where = Tensor(values.leaf(rng.integers(0, shape[axis], indices).astype(np.int32)))
        given = Tensor(values.leaf(rng.standard_normal(indices).astype(kind)))
        with Context(CHECK_INDEX=0):
            made = base.scatter(axis, where, given) if mode == "set" else base.scatter_reduce(axis, where, given, mode)
        sinks, kernels = rewrite([made.uop], ALGEBRA), list[Kernel]()

        def kept(ast: UOp, kernels: list[Kernel] = kernels) -> Kernel:
            loops = [s for s in walk(lower(ast).phases[-1].body) if isinstance(s, For) and s.kind == LOOP]
            assert [s.range.arg.size for s in loops] == [indices[axis]], "in order along the axis alone"
            kernels.append(tree(ast))
            return kernels[-1]
        [got] = run_graph(sinks, values, kept)
        wanted = one_after_another(interpret([base.uop], values)[0], axis, interpret([where.uop], values)[0],
                                   interpret([given.uop], values)[0].astype(kind), mode)
        np.testing.assert_array_equal(got, wanted)
        [task, *_] = kernels[-1].phases[-1].body
        assert isinstance(task, For) and task.kind == TASK, "examples are independent"


def one_after_another(base: np.ndarray, axis: int, where: np.ndarray, given: np.ndarray, mode: str) -> np.ndarray:
    out = base.astype(given.dtype)
    for at in np.ndindex(where.shape):
        to = tuple(where[at] if a == axis else i for a, i in enumerate(at))
        old, new = np.float32(out[to]), np.float32(given[at])
        out[to] = old + new if mode == "sum" else new if mode == "set" else max(old, new)
    return out


def test_two_indices_are_one_loop_of_many_groups(rng: np.random.Generator) -> None:
    """x[rows, columns], of vectors and of a column with a row: two nested loops, whose indices are two loads."""
    for rows, columns in (((300,), (300,)), ((20, 1), (1, 30))):
        values = Inputs()
        x = Tensor(values.leaf(np.zeros((40, 50), np.float32)))
        r, c = (Tensor(values.leaf(rng.integers(-n, n, s).astype(np.int32))) for n, s in ((40, rows), (50, columns)))
        g = Tensor(values.leaf(rng.standard_normal(np.broadcast_shapes(rows, columns)).astype(np.float32)))
        with Context(CHECK_INDEX=0):
            made = (x[r * 1, c * 1] * g).sum().gradient(x)[0]
        kernels = list[Kernel]()

        def kept(ast: UOp, kernels: list[Kernel] = kernels) -> Kernel:
            kernels.append(tree(ast))
            return kernels[-1]
        check(rewrite(written_out([made.uop]), ALGEBRA), values, kept)
        assert len(kernels) == 1 and launch_info(kernels[0]).phases[-1][1] > 100


def test_a_label_of_each_row_is_written_by_a_thread_of_its_own(rng: np.random.Generator) -> None:
    values = Inputs()
    x = Tensor(values.leaf(np.zeros((600, 50), np.float32)))
    labels = Tensor(values.leaf(rng.integers(0, 50, 600).astype(np.int32)))
    g = Tensor(values.leaf(rng.standard_normal(600).astype(np.float32)))
    with Context(CHECK_INDEX=0):
        made = (x[Tensor.arange(600), labels * 1] * g).sum().gradient(x)[0]
    sinks = rewrite(written_out([made.uop]), ALGEBRA)

    def kept(ast: UOp, target: Target) -> Kernel:
        plain = lower(ast)
        assert not [s for phase in plain.phases for s in walk(phase.body) if isinstance(s, For) and s.kind == LOOP]
        return optimize(plain, target)
    for target in (GPU, AVX2):
        check(sinks, values, lambda ast, target=target: kept(ast, target))


def test_neighbours_of_two_types_are_not_read_at_once() -> None:
    """The gradient of grid_sample reads numbers and truth values side by side."""
    x, grid = Tensor.zeros(2, 3, 16, 16).contiguous().realize(), Tensor.rand(2, 16, 16, 2).realize()
    for item in x.grid_sample(grid).square().sum().gradient(x)[0].schedule():
        assert make_source(tree(item.ast), GPU, CUDA.name)


def test_groups_have_rows_of_their_own_and_do_not_wait() -> None:
    kernels: list[Kernel] = []

    def kept(ast: UOp) -> Kernel:
        kernels.append(tree(ast))
        return kernels[-1]
    sink, values = gradient_of_rows(700, (768,), (512,))
    check([sink], values, kept)
    listed = [s for s in walk(kernels[-1].phases[-1].body) if isinstance(s, For) and s.stop is not None]
    assert len(listed) == 1, "how many rows are a group's is known when it runs"
    source = make_source(kernels[-1], GPU, CUDA.name)
    assert "blockIdx" in source and "__syncthreads" not in source[source.rindex("for (i64 i = 0"):]


@pytest.mark.parametrize("stride, waits", [(256, False), (300, False), (255, True), (1, True)])
def test_threads_wait_where_two_of_them_may_add_to_one_place(stride: int, waits: bool) -> None:
    memory, rows = (UOp(o.PARAM, dtype, (), Param(i, (1 << 20,))) for i, dtype in
                    enumerate((dtypes.float32, dtypes.int32)))
    step, lane = counter("s", 8), counter("l", 256)
    row = load(rows, step).cast(dtypes.index).maximum(0).minimum(index(99))
    store = Store(memory, add(multiply(row, stride), lane), const(1.0, dtypes.float32), o.ADD)
    body = [For(step, LOOP, [For(lane, LANE, [store])])]
    assert bool(fences(body)) == waits and (memory in unshared_memories(body)) != waits


def test_a_scatter_of_no_rows_is_a_loop_of_no_rounds() -> None:
    """The indices of what is not zero, of an array without elements."""
    for item in Tensor(np.zeros(0, np.int32)).nonzero().contiguous().schedule():
        kernel = optimize(lower(item.ast), GPU)
        assert 0 in [s.range.arg.size for phase in kernel.phases for s in walk(phase.body) if isinstance(s, For)]


@pytest.mark.parametrize("size", [3000, 1333])
def test_a_permutation_is_one_store_for_each_element(rng: np.random.Generator, size: int) -> None:
    """Each element is written just once: threads need no order, and what was there is not copied."""
    values, kernels = Inputs(), list[Kernel]()

    def kept(ast: UOp) -> Kernel:
        kernels.append(tree(ast))
        return kernels[-1]
    where = Tensor(values.leaf(rng.permutation(size).astype(np.int32))).uop
    given = Tensor(values.leaf(rng.standard_normal(size).astype(np.float32))).uop
    check([UOp(o.SCATTER, given.dtype, (full(given.shape, 0, given.dtype), where, given), Scatter("permute"))], values,
          kept)
    assert [len(kernel.phases) for kernel in kernels] == [1] and launch_info(kernels[0]).phases[0][1] == size // 1024
    loops = [s for s in walk(kernels[0].phases[0].body) if isinstance(s, For) and s.kind == LOOP]
    assert all(loop.range.arg.size <= 4 for loop in loops)


def test_sort_and_topk_move_nothing_by_looking_through_all_indices() -> None:
    """Passes over the rows, each by all threads: no group reads the indices of the others' rows."""
    x = Tensor.zeros(20, 3000).contiguous().realize()
    for made, scatters in ((x.sort()[0], 4), (x.topk(5)[0], 0), (x.topk(20)[0], 1), (x.cast("uint8").sort()[0], 4)):
        asts = [item.ast for item in made.schedule()]
        found = [ast for ast in asts if any(n.op is o.SCATTER for n in ast.toposort())]
        assert len(found) == scatters and all(len(tree(ast).phases) == 1 for ast in found)


def test_threads_behind_a_ragged_end_read_no_index() -> None:
    memory, rows, end = (UOp(o.PARAM, dtype, (), Param(i, (1 << 12,))) for i, dtype in
                         enumerate((dtypes.float32, dtypes.int32, dtypes.int64)))
    step = counter("s", 1 << 12)
    row = load(rows, step).cast(dtypes.index).maximum(0).minimum(index(99))
    store = Store(memory, row, const(1.0, dtypes.float32))
    made = wide(For(step, LOOP, [store], load(end, index(0)).cast(dtypes.index)), 4, 256)
    stores = [s for s in walk(made) if isinstance(s, Store) and s.gate is not None]
    assert stores and all(len(n.src) == 3 for s in stores for n in s.index.toposort()
                          if n.op is o.LOAD and n.src[0] is rows)
