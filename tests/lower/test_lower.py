"""Lowering: graphs become loops that compute the same, reductions stand where they belong, nothing is copied."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from graph_fuzzer import Maker
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from loop_kernels import Inputs, check

from glassgrad import Context, Tensor
from glassgrad.compiler.check.graph_interpreter import interpret
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Iota, Param, RandomBits, Scan, Scatter
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.element_expressions import flatten, reshape_index, source_index
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, For, Kernel, Store, counter, expressions, ranges_of,
                                            walk)
from glassgrad.compiler.lower.lower import KEEP_BYTES, lower
from glassgrad.compiler.lower.printing import linear, show

FLOAT = dtypes.float32


def param(slot: int, shape: tuple[int, ...], dtype: Any = FLOAT) -> UOp:
    return UOp(o.PARAM, dtype, (), Param(slot, shape))


def sink(*values: UOp) -> UOp:
    """A kernel's graph: each value stored to its own PARAM."""
    return UOp(o.SINK, values[0].dtype, tuple(UOp(o.STORE, v.dtype, (param(i, v.shape, v.dtype), v))
                                             for i, v in enumerate(values)))


def loops(kernel: Kernel) -> list[For]:
    return [s for p in kernel.phases for s in walk(p.body) if isinstance(s, For)]


def inside(loop: For, kind: type) -> list[Any]:
    return [s for s in walk(loop.body) if isinstance(s, kind)]


# -- the same values -----------------------------------------------------------------------------------------
@hypothesis_settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 20))
def test_random_graphs_lower_to_what_they_mean(seed: int) -> None:
    maker = Maker(seed)
    sinks = [s for s in dict.fromkeys(maker.graph(8)) if s not in maker.leaves]
    if sinks:
        check(sinks, maker.leaves, lower, f"seed {seed}")


SHAPES = [(), (1,), (5,), (0,), (3, 1), (4, 7), (0, 3), (2, 3, 5), (1, 6, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_views_of_every_kind_and_size(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    values = Inputs()
    x = values.leaf(rng.standard_normal(shape).astype("float32"))
    rank, size = len(shape), math.prod(shape)
    views = [x, x.reshape((size,)), x.reshape((1, size, 1)), x.permute(range(rank)[::-1]), x.flip(range(rank)),
             x.pad([(1, 2)] * rank), x.pad([(0, 3)] * rank).permute(range(rank)[::-1]),
             x.reshape((1, *shape)).expand((3, *shape)),
             x.reshape((*shape, 1)).expand((*shape, 4)).reshape((size * 4,))]
    if size:
        views += [x.shrink([(n // 2, n) for n in shape]),
                  x.flip(range(rank)).shrink([(0, (n + 1) // 2) for n in shape]),
                  x.pad([(2, 2)] * rank).shrink([(1, n + 3) for n in shape]).flip(range(rank)).reshape(
                      (math.prod(n + 2 for n in shape),))]
    for i, view in enumerate(views):
        check([view * 2.0 + 1.0], values, lower, f"view {i} of {shape}")
        if view.shape:
            check([view.sum(range(len(view.shape))), view.reduce(o.AMAX, [0]) if view.shape[0] else view * 1.0], values,
                  lower, f"reductions of view {i} of {shape}")


WINDOWS = [(n, k, s, d) for n, k, s, d in itertools.product((1, 5, 8, 13), (1, 2, 3), (1, 2, 3), (1, 2))
           if n > d * (k - 1)]


@pytest.mark.parametrize("n, size, stride, dilation", WINDOWS)
def test_windows_and_their_adjoints(n: int, size: int, stride: int, dilation: int, rng: np.random.Generator) -> None:
    values = Inputs()
    x = values.leaf(rng.standard_normal((3, n, 2)).astype("float32"))
    windows = x.window(1, size, stride, dilation)
    spread = windows.unwindow(1, stride, dilation, n)
    check([windows + 0.5, windows.sum([3]), spread.sum([3])], values, lower)


@pytest.mark.parametrize("combine", [o.ADD, o.MAX, o.MUL, o.MIN], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scans(combine: Any, axis: int, rng: np.random.Generator) -> None:
    values = Inputs()
    x = values.leaf(rng.uniform(0.5, 1.5, (3, 5, 4)).astype("float32"))
    check([UOp(o.SCAN, FLOAT, (x.permute((1, 2, 0)) * 1.5,), Scan(axis, combine))], values, lower)


@pytest.mark.parametrize("mode", ["set", "add", "max"])
def test_scatter_takes_indices_one_after_another_and_drops_those_outside(mode: str, rng: np.random.Generator) -> None:
    values = Inputs()
    base = values.leaf(rng.standard_normal((4, 3)).astype("float32"))
    where = values.leaf(np.array([2, 0, 2, -1, 3, 7, 2], "int32"))
    given_values = values.leaf(rng.standard_normal((7, 3)).astype("float32"))
    check([UOp(o.SCATTER, FLOAT, (base, where, given_values), Scatter(mode))], values, lower)


def test_gather_clamps(rng: np.random.Generator) -> None:
    values = Inputs()
    rows = values.leaf(rng.standard_normal((4, 3)).astype("float32"))
    where = values.leaf(np.array([[0, 3], [-5, 9], [2, 2]], "int32"))
    check([UOp(o.GATHER, FLOAT, (rows, where)) * 2.0], values, lower)


def test_random_bits_and_counts() -> None:
    seed, stream = const(7, dtypes.uint32), const(3, dtypes.uint32)
    bits = UOp(o.RANDOM, dtypes.uint64, (seed, stream), RandomBits((5, 7)))
    count = UOp(o.IOTA, dtypes.int32, (), Iota((9,)))
    check([bits, bits.permute((1, 0)), count * 2], {}, lower)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "fp8e4m3", "fp8e5m2", "fp8e4m3fnuz"])
def test_narrow_floats_compute_in_float32(name: str, rng: np.random.Generator) -> None:
    dtype = getattr(dtypes, name)
    x = param(1, (3, 40), dtype)
    body = lower(sink((x * x + x).sum([1]))).phases[0].body
    assert {s.register.dtype for s in walk(body) if isinstance(s, Accumulate)} == {FLOAT}
    operations = [n for s in walk(body) for n in toposort(expressions(s)) if n.op in (o.ADD, o.MUL)]
    assert {n.dtype for n in operations if n.dtype.is_float} == {FLOAT}
    if name in ("float16", "bfloat16"):
        values = Inputs()
        y = values.leaf(rng.uniform(-2, 2, (3, 40)).astype("float32"), dtype)
        check([y * y + y, (y + 1.0).sum([1])], values, lower)


# -- where an element comes from -----------------------------------------------------------------------------
def value_at(index: tuple[UOp, ...], counters: dict[UOp, int]) -> tuple[int, ...]:
    values = {c: np.asarray(v, "int64") for c, v in counters.items()}
    return tuple(int(v) for v in interpret(list(index), values))


@pytest.mark.parametrize("source, target", [
    ((6,), (2, 3)), ((2, 3), (6,)), ((4, 6), (2, 2, 6)), ((4, 6), (8, 3)), ((2, 3, 4), (4, 6)), ((1, 6, 1), (3, 1, 2)),
    ((5, 1), (5,)), ((3, 4, 5), (5, 4, 3)),
])
def test_reshape_index_is_row_major(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    counters = tuple(counter(f"i{a}", n) for a, n in enumerate(target))
    index = reshape_index(counters, target, source)
    for at in np.ndindex(*target):
        found = value_at(index, dict(zip(counters, at)))
        assert found == np.unravel_index(np.ravel_multi_index(at, target), source)
        assert value_at((flatten(counters, target),), dict(zip(counters, at)))[0] == np.ravel_multi_index(at, target)


def test_axes_that_a_reshape_leaves_alone_stay_plain_counters() -> None:
    counters = tuple(counter(f"i{a}", n) for a, n in enumerate((4, 6, 5)))
    assert reshape_index(counters, (4, 6, 5), (4, 2, 3, 5))[0] is counters[0]
    assert reshape_index(counters, (4, 6, 5), (4, 2, 3, 5))[3] is counters[2]


def test_padding_becomes_a_gate_and_nothing_else_does() -> None:
    x = param(1, (4, 6))
    at = (counter("i", 6), counter("j", 6))
    index, gate = source_index(x.pad([(1, 1), (0, 0)]), at)
    assert gate is not None and ranges_of(gate) == {at[0]} and index[1] is at[1]
    for view in (x.permute((1, 0)), x.flip([0]), x.shrink([(1, 3), (0, 6)]), x.reshape((24,)), x.window(1, 3)):
        place = tuple(counter(f"c{a}", n) for a, n in enumerate(view.shape))
        assert source_index(view, place)[1] is None


# -- where reductions stand ----------------------------------------------------------------------------------
def softmax(x: UOp, axis: int = 1) -> UOp:
    top = x.reduce(o.AMAX, [axis]).expand(x.shape)
    e = (x - top).exp2()
    return e * e.sum([axis]).recip().expand(x.shape)


def test_a_softmax_reduces_once_per_row_and_keeps_its_row() -> None:
    kernel = lower(sink(softmax(param(1, (8, 32)))))
    assert len(kernel.phases) == 1 and len(kernel.phases[0].body) == 1
    rows = kernel.phases[0].body[0]
    assert isinstance(rows, For) and rows.kind == TASK and rows.range.arg.size == 8
    inner = [s for s in rows.body if isinstance(s, For)]
    assert [f.kind for f in inner] == [LOOP, LOOP, TASK], "the maximum, the sum, the result: beside each other"
    assert all(f.range.arg.size == 32 for f in inner)
    kept = [s for s in walk(rows.body) if isinstance(s, Store) and s.memory.op is o.LOCAL]
    assert len(kept) == 1 and kept[0].memory.arg.size == 32, "exp2 is computed once, and kept for the last loop"
    result = inside(inner[2], Store)[0]
    assert not any(n.op in (o.BITCAST, o.SHL) for n in toposort([result.value])), "no second exp2 there"


def test_a_softmax_along_the_first_axis_has_the_columns_outside() -> None:
    kernel = lower(sink(softmax(param(1, (32, 8)), axis=0)))
    outer = kernel.phases[0].body[0]
    assert isinstance(outer, For) and outer.range.arg.size == 8, "what reductions depend on stands outside"


def test_rows_too_long_to_keep_are_computed_again() -> None:
    n = KEEP_BYTES // 4 + 1
    kernel = lower(sink(softmax(param(1, (2, n)))))
    assert not any(s.memory.op is o.LOCAL for s in walk(kernel.phases[0].body) if isinstance(s, Store))


def test_a_whole_reduction_used_everywhere_stands_outside_all_loops() -> None:
    x = param(1, (5, 7))
    kernel = lower(sink(x / x.sum([0, 1]).expand(x.shape)))
    kinds = [type(s).__name__ for s in kernel.phases[0].body]
    assert kinds == ["Assign", "For", "For"], "begin, sum, divide"


def test_two_results_share_their_loops() -> None:
    x = param(2, (6, 9))
    kernel = lower(UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (param(0, (6, 9)), x + 1.0)),
                                       UOp(o.STORE, FLOAT, (param(1, (6, 9)), x * 2.0)))))
    assert len(loops(kernel)) == 2 and len(inside(loops(kernel)[1], Store)) == 2
    assert kernel.written == (0, 1)


def test_a_matmul_is_three_loops_and_no_copies() -> None:
    m, n, k = 4, 5, 6
    x = param(1, (m, k)).reshape((m, 1, k)).expand((m, n, k))
    y = param(2, (k, n)).permute((1, 0)).reshape((1, n, k)).expand((m, n, k))
    kernel = lower(sink((x * y).sum([2])))
    assert show(kernel) == """\
reduce_4_5_r6(a0: float32[4, 5, 1], a1: float32[4, 6], a2: float32[6, 5])
  task i0 in 4
    task i1 in 5
      acc1 = 0.0
      loop k0 in 6
        acc1 += (a1[((i0 * 6) + k0)] * a2[(i1 + (k0 * 5))])
      a0[((i0 * 5) + i1)] = acc1"""


def test_masks_are_conditions_on_what_is_read() -> None:
    kernel = lower(sink(param(1, (3,)).pad([(1, 2)]) + 1.0))
    store = next(s for s in walk(kernel.phases[0].body) if isinstance(s, Store))
    loads = [n for n in toposort([store.value]) if n.op is o.LOAD]
    assert len(loads) == 1 and len(loads[0].src) == 3 and store.gate is None, "zeros are stored too"


def test_names_say_kind_and_sizes() -> None:
    x = param(1, (4, 1, 6))
    assert lower(sink(x + 1.0)).name == "map_4_6"
    assert lower(sink(x.sum([2]))).name == "reduce_4_r6"
    assert lower(sink(x.sum([0, 2]))).name == "reduce_r4_r6"
    assert lower(sink(UOp(o.SCAN, FLOAT, (x,), Scan(2, o.ADD)))).name == "scan_4_6"
    assert lower(sink(const(1.0))).name == "map_1"


def test_the_linear_listing_has_every_expression_once() -> None:
    kernel = lower(sink(softmax(param(1, (8, 32)))))
    rows = linear(kernel).splitlines()
    assert [int(r[:4]) for r in rows] == list(range(len(rows)))
    assert sum(" FOR " in r for r in rows) == sum(" END " in r for r in rows) == len(loops(kernel))
    nodes = toposort(e for s in walk(kernel.phases[0].body) for e in expressions(s))
    words = (" FOR ", " END ", " STORE ", " ASSIGN ", " ACCUMULATE ")
    assert sum(not any(w in r for w in words) for r in rows) == sum(n.op is not o.RANGE for n in nodes)


def test_depth_is_no_limit() -> None:
    x = y = param(1, (3,))
    for _ in range(20_000):
        y = y + x
    assert len(loops(lower(sink(y)))) == 1


@pytest.mark.parametrize("noopt", [0, 1])
@pytest.mark.parametrize("value", [0, 1, -3])
def test_a_running_sum_of_a_constant_is_read_by_another_op(value: int, noopt: int) -> None:
    """It needs no scan, and of zeros no counter either: (i + 1) * 0 still mentions a loop that is gone."""
    for n in (1, 3, 37):
        with Context(NOOPT=noopt):
            running = Tensor.full((n,), value, dtype="int64").cumsum(0)
            assert running.maximum(0).tolist() == np.maximum(np.cumsum(np.full(n, value)), 0).tolist()
            assert (running * 0 + 2).minimum(7).tolist() == [2] * n
