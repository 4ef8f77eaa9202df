"""The kernel interpreter, checked against NumPy on kernels written by hand; and that it catches kernels that are
wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

import glassgrad.compiler.check.loop_interpreter as interpreter
from glassgrad.base.errors import Bug
from glassgrad.compiler.check.graph_interpreter import from_storage, philox as philox_by_numpy, to_storage
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.op_arguments import Param
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, If, Kernel, Phase,
                                            Statement, Store, counter, fold, load, local, register)
from glassgrad.compiler.lower.philox import philox

FLOAT, INT = dtypes.float32, dtypes.int32


def param(slot: int, size: int, dtype: DType = FLOAT) -> UOp:
    return UOp(o.PARAM, dtype, (), Param(slot, (size,)))


def kernel(params: list[UOp], *phases: list[Statement]) -> Kernel:
    return Kernel("test", params, [Phase(p) for p in phases])


def at(*terms: tuple[UOp, int]) -> UOp:
    total = ix.index(0)
    for counter_, step in terms:
        total = ix.add(total, ix.multiply(counter_, step))
    return total


def elementwise(n: int, lanes: int = 8, gated: bool = True) -> Kernel:
    """out[i] = 2*x[i] + 1 in vectors, the last of them gated."""
    out, x = param(0, n), param(1, n)
    i, lane = counter("i", -(-n // lanes)), counter("l", lanes)
    place = at((i, lanes), (lane, 1))
    gate = ix.less(place, ix.index(n)) if gated else None
    value = load(x, place, gate) * 2.0 + 1.0
    return kernel([out, x], [For(i, TASK, [For(lane, LANE, [Store(out, place, value, gate=gate)])])])


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000])
def test_elementwise_with_lanes_and_a_gated_tail(rng, n):
    x, out = rng.normal(size=n).astype(np.float32), np.zeros(n, np.float32)
    run_kernel(elementwise(n), [out, x])
    np.testing.assert_array_equal(out, x * 2 + 1)


def test_tasks_in_chunks_give_the_same(rng, monkeypatch):
    monkeypatch.setattr(interpreter, "AT_ONCE", 64)
    x, out = rng.normal(size=1000).astype(np.float32), np.zeros(1000, np.float32)
    run_kernel(elementwise(1000), [out, x])
    np.testing.assert_array_equal(out, x * 2 + 1)


def row_sums(rows: int, n: int, tile: int, lanes: int, combine: o.Op = o.ADD) -> Kernel:
    """out[r] = the combination of x[r, :] with tile x lanes partial results and a fold; the rest one by one."""
    out, x = param(0, rows), param(1, rows * n)
    row, k, u, lane = counter("r", rows), counter("k", n // (tile * lanes)), counter("u", tile), counter("l", lanes)
    part, total = register("part", FLOAT, (u, lane)), register("total", FLOAT)
    last = counter("last", max(n % (tile * lanes), 1))
    start = identity(combine, FLOAT)
    body: list[Statement] = [
        Assign(total, start), For(u, TILE, [For(lane, LANE, [Assign(part, start)])]),
        For(k, LOOP, [For(u, TILE, [For(lane, LANE, [
            Accumulate(part, combine, load(x, at((row, n), (k, tile * lanes), (u, lanes), (lane, 1))))])])]),
        Accumulate(total, combine, fold(part, combine, (u, lane)))]
    if n % (tile * lanes):
        rest = ix.add(at((row, n), (last, 1)), ix.index(n // (tile * lanes) * tile * lanes))
        body.append(For(last, LOOP, [Accumulate(total, combine, load(x, rest))]))
    return kernel([out, x], [For(row, TASK, [*body, Store(out, row, total)])])


@pytest.mark.parametrize("combine,reference", [(o.ADD, np.sum), (o.MUL, np.prod), (o.MAX, np.max), (o.MIN, np.min)])
@pytest.mark.parametrize("n,tile,lanes", [(32, 2, 4), (37, 2, 4), (5, 1, 2), (21, 3, 7), (1, 1, 4)])
def test_row_reduction_with_tiles_and_a_fold(rng, combine, reference, n, tile, lanes):
    x, out = rng.uniform(0.5, 1.5, (6, n)).astype(np.float32), np.zeros(6, np.float32)
    run_kernel(row_sums(6, n, tile, lanes, combine), [out, x.ravel()])
    np.testing.assert_allclose(out, reference(x, axis=1), rtol=1e-5)


def test_the_fold_is_a_tree_of_pairs_then_halves_of_lanes():
    """In float32 the order shows: (a + b) differs from a then b where one swallows the other."""
    x = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
    out = np.zeros(1, np.float32)
    run_kernel(row_sums(1, 4, 1, 4), [out, x])
    assert out[0] == np.float32(np.float32(1e8) + np.float32(-1e8)) + np.float32(2.0)      # lanes: 0+2, 1+3
    run_kernel(row_sums(1, 4, 4, 1), [out, x])
    assert out[0] == 0.0                                                                    # tiles: 0+1, 2+3


def matmul(m: int, n: int, depth: int, rows: int, lanes: int) -> Kernel:
    """Two phases that pack both operands into zero-padded panels of shared memory, then register tiles over them."""
    out, a, b = param(0, m * n), param(1, m * depth), param(2, depth * n)
    panels_m, panels_n = -(-m // rows), -(-n // lanes)
    left, right = (local("left", FLOAT, panels_m * depth * rows, "shared"),
                   local("right", FLOAT, panels_n * depth * lanes, "shared"))
    i, row, j, lane, k = (counter("i", panels_m), counter("row", rows), counter("j", panels_n), counter("l", lanes),
                          counter("k", depth))
    at_m, at_n = at((i, rows), (row, 1)), at((j, lanes), (lane, 1))
    in_m, in_n = ix.less(at_m, ix.index(m)), ix.less(at_n, ix.index(n))
    in_left, in_right = at((i, depth * rows), (k, rows), (row, 1)), at((j, depth * lanes), (k, lanes), (lane, 1))
    total = register("total", FLOAT, (row, lane))
    pack_left = For(i, TASK, [For(k, LOOP, [For(row, LOOP, [
        Store(left, in_left, load(a, ix.add(ix.multiply(at_m, depth), k), in_m))])])])
    pack_right = For(j, TASK, [For(k, LOOP, [For(lane, LANE, [
        Store(right, in_right, load(b, ix.add(ix.multiply(k, n), at_n), in_n))])])])
    multiply = For(i, TASK, [For(j, LOOP, [For(row, TILE, [For(lane, LANE, [
        Assign(total, const(0.0)),
        For(k, LOOP, [Accumulate(total, o.ADD, load(left, in_left) * load(right, in_right))]),
        Store(out, ix.add(ix.multiply(at_m, n), at_n), total, gate=ix.both(in_m, in_n))])])])])
    return kernel([out, a, b], [pack_left], [pack_right], [multiply])


@pytest.mark.parametrize("m,n,depth", [(8, 16, 5), (7, 13, 11), (1, 1, 1)])
def test_matrix_multiplication_with_packed_panels(rng, m, n, depth):
    a, b = rng.normal(size=(m, depth)).astype(np.float32), rng.normal(size=(depth, n)).astype(np.float32)
    out = np.zeros(m * n, np.float32)
    run_kernel(matmul(m, n, depth, rows=3, lanes=8), [out, a.ravel(), b.ravel()])
    np.testing.assert_allclose(out.reshape(m, n), a @ b, rtol=1e-5, atol=1e-6)


def test_gather_and_a_scatter_that_adds(rng):
    table, index = rng.normal(size=10).astype(np.float32), rng.integers(0, 10, 50).astype(np.int32)
    out, places = param(0, 50), param(2, 50, INT)
    i = counter("i", 50)
    gathered = np.zeros(50, np.float32)
    run_kernel(kernel([out, param(1, 10), places],
                      [For(i, TASK, [Store(out, i, load(param(1, 10), load(places, i).cast(dtypes.index)))])]),
               [gathered, table, index])
    np.testing.assert_array_equal(gathered, table[index])

    sums, values, lane = np.zeros(10, np.float32), param(1, 50), counter("i", 50)
    for kind in (LOOP, TILE, LANE):        # wide iterations that meet in one element add one after another
        sums[:] = 0
        target = param(0, 10)
        spot = load(places, lane).cast(dtypes.index)
        add = Store(target, spot, load(values, lane), o.ADD)
        run_kernel(kernel([target, values, places], [For(lane, kind, [add])]), [sums, gathered, index])
        expected = np.zeros(10, np.float32)
        np.add.at(expected, index, gathered)
        np.testing.assert_array_equal(sums, expected)


def softmax_rows(rows: int, n: int) -> Kernel:
    """exp2(x - max) kept in memory private to the task, then divided by its sum."""
    out, x = param(0, rows * n), param(1, rows * n)
    row, k, lane = counter("r", rows), counter("k", n), counter("l", n)
    kept, largest, total = local("kept", FLOAT, n), register("largest", FLOAT), register("total", FLOAT)
    element = load(x, at((row, n), (k, 1)))
    shifted = (element - largest).exp2()
    return kernel([out, x], [For(row, TASK, [
        Assign(largest, identity(o.MAX, FLOAT)), For(k, LOOP, [Accumulate(largest, o.MAX, element)]),
        Assign(total, const(0.0)),
        For(k, LOOP, [Store(kept, k, shifted), Accumulate(total, o.ADD, load(kept, k))]),
        For(lane, LANE, [Store(out, at((row, n), (lane, 1)), load(kept, lane) / total)])])])


@pytest.mark.parametrize("at_once", [1 << 22, 10])
def test_rows_kept_in_private_memory(rng, monkeypatch, at_once):
    monkeypatch.setattr(interpreter, "AT_ONCE", at_once)
    x, out = rng.normal(size=(5, 7)).astype(np.float32), np.zeros(35, np.float32)
    run_kernel(softmax_rows(5, 7), [out, x.ravel()])
    expected = np.exp2(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out.reshape(5, 7), expected / expected.sum(1, keepdims=True), rtol=1e-6)


def test_loops_that_stop_earlier_in_some_tasks(rng):
    """out[t] = the sum of x[t*4 : min(t*4 + 4, 10)]"""
    out, x, t, k = param(0, 3), param(1, 10), counter("t", 3), counter("k", 4)
    total = register("total", FLOAT)
    stop = ix.add(ix.index(10), ix.multiply(t, -4))
    values, sums = rng.normal(size=10).astype(np.float32), np.zeros(3, np.float32)
    run_kernel(kernel([out, x], [For(t, TASK, [Assign(total, const(0.0)), For(k, LOOP, [
        Accumulate(total, o.ADD, load(x, at((t, 4), (k, 1))))], stop), Store(out, t, total)])]), [sums, values])
    np.testing.assert_allclose(sums, [values[:4].sum(), values[4:8].sum(), values[8:].sum()], rtol=1e-6)


@pytest.mark.parametrize("at_once", [1 << 22, 5])
@pytest.mark.parametrize("dtype", [FLOAT, INT, dtypes.uint8, dtypes.float16])
def test_a_loop_of_sums_adds_one_after_another(rng, monkeypatch, at_once, dtype):
    """It runs as an axis, but rounds and wraps as the loop would; wide sums inside it too."""
    monkeypatch.setattr(interpreter, "AT_ONCE", at_once)
    x, out, wide, t, k, u = (param(2, 60, dtype), param(0, 2, dtype), param(1, 6, dtype), counter("t", 2),
                             counter("k", 10), counter("u", 3))
    values = (rng.normal(size=60) * 100).astype(dtype.format)
    total, part = register("total", dtype), register("part", dtype, (u,))
    element = load(x, at((t, 30), (k, 3), (u, 1)))
    sums, parts = np.zeros(2, dtype.format), np.zeros(6, dtype.format)
    run_kernel(kernel([out, wide, x], [For(t, TASK, [
        Assign(total, const(1, dtype)), For(u, TILE, [Assign(part, const(2, dtype))]),
        For(k, LOOP, [For(u, TILE, [Accumulate(part, o.ADD, element)]),
                      Accumulate(total, o.ADD, load(x, at((t, 30), (k, 1))))]),
        Store(out, t, total), For(u, TILE, [Store(wide, at((t, 3), (u, 1)), part)])])]), [sums, parts, values])
    rows = values.reshape(2, 10, 3)
    expected, expected_parts = np.full(2, 1, dtype.format), np.full((2, 3), 2, dtype.format)
    for i in range(10):
        expected = (expected + values.reshape(2, 30)[:, i]).astype(dtype.format)
        expected_parts = (expected_parts + rows[:, i]).astype(dtype.format)
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(parts.reshape(2, 3), expected_parts)


@pytest.mark.parametrize("at_once", [1 << 22, 6])
def test_a_loop_that_stores_the_sums_so_far(rng, monkeypatch, at_once):
    """A scan of rows, the second of which ends earlier; the sum is still there after the loop."""
    monkeypatch.setattr(interpreter, "AT_ONCE", at_once)
    out, ends, x, t, k = param(0, 20), param(1, 2), param(2, 20), counter("t", 2), counter("k", 10)
    total, place = register("total", FLOAT), at((t, 10), (k, 1))
    values, scans, lasts = rng.normal(size=20).astype(np.float32), np.full(20, 9, np.float32), np.zeros(2, np.float32)
    run_kernel(kernel([out, ends, x], [For(t, TASK, [
        Assign(total, const(1.0)), For(k, LOOP, [Accumulate(total, o.ADD, load(x, place)), Store(out, place, total)],
                                       at((t, -4)) + ix.index(10)), Store(ends, t, total)])]), [scans, lasts, values])
    expected = np.add.accumulate(np.concatenate([np.ones((2, 1), np.float32), values.reshape(2, 10)], 1), 1)[:, 1:]
    expected[1, 6:] = 9
    np.testing.assert_array_equal(scans.reshape(2, 10), expected)
    np.testing.assert_array_equal(lasts, [expected[0, 9], expected[1, 5]])


@pytest.mark.parametrize("at_once", [1 << 22, 6])
def test_of_what_a_loop_stores_to_one_element_the_last_stays(rng, monkeypatch, at_once):
    """out[index[k], u] = x[k, u]: the iterations of the loop come one after another, those of the tile agree."""
    monkeypatch.setattr(interpreter, "AT_ONCE", at_once)
    out, x, places, k, u = param(0, 12), param(1, 60), param(2, 20, INT), counter("k", 20), counter("u", 3)
    values, index, found = rng.normal(size=60).astype(np.float32), rng.integers(0, 4, 20).astype(np.int32), zeros(12)
    spot = load(places, k).cast(dtypes.index)
    run_kernel(kernel([out, x, places], [For(k, LOOP, [For(u, TILE, [
        Store(out, spot * 3 + u, load(x, at((k, 3), (u, 1))))])])]), [*found, values, index])
    expected = np.zeros((4, 3), np.float32)
    for row, spot_ in zip(values.reshape(20, 3), index):
        expected[spot_] = row
    np.testing.assert_array_equal(found[0].reshape(4, 3), expected)
    refuses(kernel([out, x, places], [For(k, LOOP, [For(u, TILE, [
        Store(out, spot, load(x, at((k, 3), (u, 1))))])])]), [*zeros(12), values, index],
        f"stores to param 0[{index[0]}] different values from independent iterations, at k=0, u=0 and at k=0, u=1")


def test_a_loop_that_reads_what_it_stored_before():
    """x[k + 1] = x[k] * 2, under one name and under two."""
    out, x, k = param(0, 9), param(1, 9), counter("k", 8)
    for memory in (out, x):
        values = np.ones(9, np.float32)
        run_kernel(kernel([out, x], [For(k, LOOP, [Store(out, k + 1, load(memory, k) * 2.0)])]), [values, values])
        np.testing.assert_array_equal(values, 2.0 ** np.arange(9))


def test_two_statements_that_add_to_one_sum_take_turns():
    out, x, k, total = param(0, 1), param(1, 8), counter("k", 4), register("total", FLOAT)
    add = [Accumulate(total, o.ADD, load(x, at((k, 2)) + ix.index(n))) for n in range(2)]
    found, values = zeros(1), np.array([1e8, -1e8, 1, 1e8, -1e8, 1, 1, 1], np.float32)
    run_kernel(kernel([out, x], [Assign(total, const(0.0)), For(k, LOOP, add), Store(out, ix.index(0), total)]),
               [*found, values])
    assert found[0] == [np.add.accumulate(values)[-1]] != [np.add.accumulate(values.reshape(4, 2).T.ravel())[-1]]


@pytest.mark.parametrize("kind", [TASK, LOOP, TILE, LANE])
def test_a_stop_cuts_every_kind_of_loop(kind):
    out, i = param(0, 10), counter("i", 10)
    values = np.zeros(10, np.float32)
    run_kernel(kernel([out], [For(i, kind, [Store(out, i, const(1.0))], ix.index(7))]), [values])
    np.testing.assert_array_equal(values, [1] * 7 + [0] * 3)


def test_a_condition_runs_its_body_only_where_it_holds():
    out, t, k = param(0, 6), counter("t", 6), counter("k", 5)
    total = register("total", FLOAT)
    values = np.full(6, -1.0, np.float32)
    run_kernel(kernel([out], [For(t, TASK, [Assign(total, const(0.0)), For(k, LOOP, [
        If(ix.less(k, t), [Accumulate(total, o.ADD, const(1.0)), Store(out, t, total)])])])]), [values])
    np.testing.assert_array_equal(values, [-1, 1, 2, 3, 4, 5])


def test_statements_in_a_tile_run_for_all_iterations_before_the_next():
    """a[i] = i; then b[i] = a[5 - i]: written one after another, half of a would not be there yet."""
    a, b, i = param(0, 6, INT), param(1, 6, INT), counter("i", 6)
    first, second = np.zeros(6, np.int32), np.zeros(6, np.int32)
    turned = ix.add(ix.index(5), ix.multiply(i, -1))
    body: list[Statement] = [Store(a, i, i.cast(INT)), Store(b, i, load(a, turned))]
    run_kernel(kernel([a, b], [For(i, TILE, body)]), [first, second])
    np.testing.assert_array_equal(second, [5, 4, 3, 2, 1, 0])


def test_tasks_inside_rows_are_independent_and_see_the_row_s_registers(rng, monkeypatch):
    """for r: total = sum x[r, :]; for j: out[r, j] = x[r, j] / total, as plain lowering writes it"""
    out, x, row, k, j = param(0, 12), param(1, 12), counter("r", 3), counter("k", 4), counter("j", 4)
    total, scaled = register("total", FLOAT), register("scaled", FLOAT)
    tree = kernel([out, x], [For(row, TASK, [
        Assign(total, const(0.0)), For(k, LOOP, [Accumulate(total, o.ADD, load(x, at((row, 4), (k, 1))))]),
        For(j, TASK, [Assign(scaled, load(x, at((row, 4), (j, 1))) / total),
                      Store(out, at((row, 4), (j, 1)), scaled)])])])
    values = rng.uniform(1, 2, (3, 4)).astype(np.float32)
    for at_once in (1 << 22, 6, 1):
        monkeypatch.setattr(interpreter, "AT_ONCE", at_once)
        result = np.zeros(12, np.float32)
        run_kernel(tree, [result, values.ravel()])
        np.testing.assert_allclose(result.reshape(3, 4), values / values.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, *dtypes.fp8s, dtypes.float16])
def test_narrow_floats_are_bits_in_memory(rng, dtype):
    x, out, i = param(1, 20, dtype), param(0, 20, dtype), counter("i", 20)
    codes = to_storage(rng.normal(size=20).astype(np.float32), dtype)
    result = np.zeros_like(codes)
    value = (load(x, i).cast(FLOAT) * 1.5).cast(dtype)
    run_kernel(kernel([out, x], [For(i, TASK, [Store(out, i, value)])]), [result, codes])
    expected = from_storage(codes, dtype).astype(np.float32) * np.float32(1.5)
    np.testing.assert_array_equal(result, to_storage(expected, dtype))


def test_scalars_and_random_bits():
    out, i = param(0, 5, dtypes.uint64), counter("i", 5)
    seed, stream = (UOp(o.PARAM, dtypes.uint32, (), Param(slot, (), scalar=True)) for slot in (1, 2))
    bits = philox(seed, stream, i)
    result = np.zeros(5, np.uint64)
    run_kernel(kernel([out, seed, stream], [For(i, TASK, [Store(out, i, bits)])]), [result, 7, 9])
    first, second = philox_by_numpy(np.arange(5, dtype=np.uint64), np.uint64(9), np.uint64(7))
    np.testing.assert_array_equal(result, first | second << np.uint64(32))


def test_an_accumulator_narrower_than_the_value_takes_all_its_iterations(rng):
    x, out, u, lane = param(1, 24), param(0, 1), counter("u", 3), counter("l", 8)
    values, result, total = rng.normal(size=24).astype(np.float32), np.zeros(1, np.float32), register("total", FLOAT)
    add = Accumulate(total, o.ADD, load(x, at((u, 8), (lane, 1))))
    run_kernel(kernel([out, x], [Assign(total, const(0.0)), For(u, TILE, [For(lane, LANE, [add])]),
                                 Store(out, ix.index(0), total)]), [result, values])
    np.testing.assert_allclose(result, values.sum(), rtol=1e-5)


def test_a_constant_in_a_wide_register_is_folded_as_many_values():
    u, lane, out = counter("u", 3), counter("l", 4), param(0, 1)
    part, result = register("part", FLOAT, (u, lane)), np.zeros(1, np.float32)
    run_kernel(kernel([out], [For(u, TILE, [For(lane, LANE, [Assign(part, const(2.0))])]),
                              Store(out, ix.index(0), fold(part, o.ADD, (u, lane)))]), [result])
    assert result[0] == 24.0


# -- kernels that are wrong ----------------------------------------------------------------------------------------
def refuses(tree: Kernel, arguments: list, *words: str) -> None:
    with pytest.raises(Bug) as caught:
        run_kernel(tree, arguments)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def zeros(*sizes: int) -> list[np.ndarray]:
    return [np.zeros(n, np.float32) for n in sizes]


def test_a_load_outside_its_memory_is_named():
    refuses(elementwise(9, gated=False), zeros(9, 9),
            "phase 0 of kernel test loads param 1[9], outside its 9 elements, at i=1, l=1")


def test_a_store_outside_its_memory_is_named():
    out, t, k = param(0, 4), counter("t", 2), counter("k", 3)
    refuses(kernel([out], [For(t, TASK, [For(k, LOOP, [Store(out, at((t, 3), (k, 1)), const(1.0))])])]), zeros(4),
            "stores to param 0[4], outside its 4 elements, at t=1, k=1")
    refuses(kernel([out], [For(k, LOOP, [Store(out, ix.add(k, ix.index(-1)), const(1.0))])]), zeros(4), "param 0[-1]")


def test_what_a_gate_or_a_condition_keeps_off_is_not_outside():
    out, i = param(0, 4), counter("i", 8)
    result = zeros(4)
    inside = ix.less(i, ix.index(4))
    run_kernel(kernel([out], [For(i, TASK, [If(inside, [Store(out, i, load(out, i) + 1.0)])])]), result)
    np.testing.assert_array_equal(result[0], np.ones(4))


def test_two_tasks_that_store_the_same_element():
    out, i = param(0, 4), counter("i", 8)
    half = ix.divide(i, 2)
    refuses(kernel([out], [For(i, TASK, [Store(out, half, const(1.0))])]), zeros(4),
            "stores where another task stored in the same phase: param 0[0], at i=0; the other is task i=1")
    refuses(kernel([out], [For(i, TASK, [Store(out, half, const(1.0), o.ADD)])]), zeros(4), "stores where another task")
    refuses(kernel([out], [For(i, TASK, [Store(out, ix.index(2), const(1.0))])]), zeros(4), "param 0[2]")
    result = zeros(4)
    run_kernel(kernel([out], [For(i, LOOP, [Store(out, half, const(1.0), o.ADD)])]), result)
    np.testing.assert_array_equal(result[0], [2, 2, 2, 2])


@pytest.mark.parametrize("at_once", [1 << 22, 1])
def test_a_task_that_reads_what_another_stores(monkeypatch, at_once):
    monkeypatch.setattr(interpreter, "AT_ONCE", at_once)
    out, i = param(0, 9), counter("i", 8)
    after = ix.add(i, ix.index(1))
    refuses(kernel([out], [For(i, TASK, [Store(out, i, load(out, after))])]), zeros(9), "same phase", "param 0[")
    refuses(kernel([out], [For(i, TASK, [Store(out, after, load(out, i))])]), zeros(9), "same phase", "param 0[")
    whole = kernel([out], [For(i, TASK, [Store(out, i, const(1.0))])],
                   [For(i, TASK, [Store(out, i, load(out, i) + 1.0)])])
    result = zeros(9)
    run_kernel(whole, result)
    np.testing.assert_array_equal(result[0], [2.0] * 8 + [0.0])


def test_a_race_through_two_parameters_that_are_one_array():
    out, x, i = param(0, 8), param(1, 8), counter("i", 8)
    turned = ix.add(ix.index(7), ix.multiply(i, -1))
    tree = kernel([out, x], [For(i, TASK, [Store(out, i, load(x, turned))])])
    run_kernel(tree, zeros(8, 8))
    shared = np.zeros(8, np.float32)
    refuses(tree, [shared, shared[:]], "stores what another task loads in the same phase")
    run_kernel(kernel([out, x], [For(i, TASK, [Store(out, i, load(x, i) + 1.0)])]), [shared, shared])


def test_iterations_that_disagree_about_an_element():
    out, i = param(0, 4), counter("i", 8)
    for kind in (TILE, LANE):
        refuses(kernel([out], [For(i, kind, [Store(out, ix.divide(i, 2), i.cast(FLOAT))])]), zeros(4),
                "stores to param 0[0] different values from independent iterations, at i=0 and at i=1")


def test_memory_that_was_never_filled_shows_as_nan():
    out, i = param(0, 4), counter("i", 4)
    for scope in ("worker", "shared"):
        memory = local("m", FLOAT, 4, scope)
        result = zeros(4)
        run_kernel(kernel([out], [For(i, LOOP, [Store(memory, i, const(1.0), gate=ix.less(i, ix.index(2))),
                                                Store(out, i, load(memory, i))])]), result)
        np.testing.assert_array_equal(result[0], [1, 1, math.nan, math.nan])


def test_other_faults_of_a_tree_are_named():
    out, i, u = param(0, 4), counter("i", 4), counter("u", 2)
    total, narrow = register("total", FLOAT), register("narrow", FLOAT)
    refuses(kernel([out], [Store(out, i, const(1.0))]), zeros(4), "uses i, whose loop is not open")
    refuses(kernel([out], [Store(out, ix.index(0), total)]), zeros(4), "reads register total before")
    refuses(kernel([out], [Accumulate(total, o.ADD, const(1.0))]), zeros(4), "reads register total before")
    refuses(kernel([out], [Assign(total, const(1, INT))]), zeros(4), "puts int32 into register total of float32")
    refuses(kernel([out], [Store(out, ix.index(0), const(1, INT))]), zeros(4), "stores int32 to param 0")
    refuses(kernel([out], [For(u, TILE, [Assign(narrow, u.cast(FLOAT))])]), zeros(4), "once for each u")
    refuses(kernel([out], [For(i, LOOP, [For(i, LOOP, [Store(out, i, const(1.0))])])]), zeros(4), "inside itself")
    refuses(kernel([out], [Store(out, ix.index(0), load(local("m", FLOAT, 4), ix.index(0)))]), zeros(4), "never stored")
    refuses(kernel([out], [Store(out, i, const(1.0))]), zeros(5), "takes a flat array of 4 float32, not float32[5]")
    other = Kernel("test", [out, param(1, 4)], [Phase([Store(out, ix.index(0), const(1.0))])], written=(1,))
    refuses(other, zeros(4, 4), "does not list as written")
    refuses(kernel([out], [Assign(total, const(0.0)), For(u, TILE, [If(ix.less(u, ix.index(1)), [
        Accumulate(total, o.ADD, const(1.0))])])]), zeros(4), "where a condition on u holds")
