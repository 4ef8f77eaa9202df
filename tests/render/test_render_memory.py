"""How renderers read and write memory: steps between lanes, gates, shuffles; kernels built by hand, against NumPy."""

from __future__ import annotations

import re

import numpy as np
import pytest
from render_kernels import BOOL, F32, HOST, I32, I64, LANGUAGES, NUMPY, at, param, run

from glassgrad.compiler.check.graph_interpreter import cast_array, storage_type, to_storage
from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import LANE, LOOP, For, Kernel, Phase, Store, counter, load
from glassgrad.compiler.pipeline import make_source


@pytest.fixture(params=LANGUAGES)
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("dtype", [F32, dtypes.uint8, dtypes.int64, BOOL, dtypes.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("lanes", [1, 5, 16])
def test_steps_from_lane_to_lane(how, rng, dtype, lanes):
    """Forwards, backwards, every 2nd to 5th element, the same one: read in steps, and written in steps."""
    steps = [1, -1, 2, 3, 4, 5, -2, 0]
    n = 5 * (lanes - 1) + 1
    x, y, z = param(0, dtype, n), param(1, dtype, len(steps), n), param(2, dtype, len(steps), lanes)
    lane = counter("l", lanes)
    body, orders = [], []
    for row, step in enumerate(steps):
        first = 0 if step >= 0 else -step * (lanes - 1)
        index = at((lane, step), first)
        body.append(Store(z, at(lane, row * lanes), load(x, index)))
        orders.append(np.arange(lanes) * step + first)
        if step:
            body.append(Store(y, at(index, row * n), load(x, index)))
    kernel = Kernel("steps", [x, y, z], [Phase([For(lane, LANE, body)])], (1, 2))
    a = (rng.standard_normal(n) * 50).astype(NUMPY[dtype])
    b, c = np.zeros((len(steps), n), NUMPY[dtype]), np.zeros((len(steps), lanes), NUMPY[dtype])
    run(kernel, [a, b, c], how)
    for row, (step, order) in enumerate(zip(steps, orders)):
        expected = np.zeros(n, NUMPY[dtype])
        if step:
            expected[order] = a[order]
        np.testing.assert_array_equal(c[row], a[order], err_msg=f"step {step}")
        np.testing.assert_array_equal(b[row], expected, err_msg=f"step {step}")


@pytest.mark.parametrize("itype", [I32, I64, dtypes.uint8])
@pytest.mark.parametrize("dtype", [F32, dtypes.int8, dtypes.float64])
def test_gather_and_scatter_by_an_index(how, rng, itype, dtype):
    n, rows, width = 19, 23, 4
    x, which, y = param(0, dtype, rows, width), param(1, itype, n), param(2, dtype, n, width)
    z = param(3, dtype, rows, width)
    i, lane, tail, w = counter("i", 2), counter("l", 8), counter("t", 3), counter("w", width)

    def one(row):
        source = ix.add(ix.multiply(load(which, row).cast(I64), width), w)
        return [Store(y, at((row, width), w), load(x, source)), Store(z, source, load(x, source))]
    kernel = Kernel("gather", [x, which, y, z], [Phase([For(w, LOOP, [
        For(i, LOOP, [For(lane, LANE, one(at((i, 8), lane)))]), For(tail, LANE, one(at(tail, 16)))])])], (2, 3))
    a = (rng.standard_normal((rows, width)) * 10).astype(NUMPY[dtype])
    index = rng.permutation(rows)[:n].astype(NUMPY[itype])
    b, c = np.zeros((n, width), NUMPY[dtype]), np.zeros((rows, width), NUMPY[dtype])
    run(kernel, [a, index, b, c], how)
    np.testing.assert_array_equal(b, a[index])
    expected = np.zeros_like(a)
    expected[index] = a[index]
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("dtype", [F32, dtypes.int16, BOOL, dtypes.float64, dtypes.uint8])
@pytest.mark.parametrize("lanes", [1, 7, 8, 16])
def test_gates_pad_with_zeros_and_keep_the_rest(how, rng, dtype, lanes):
    """y[i] = x[i - 3] inside, 0 outside; stores only where i is below a limit, the array ends there."""
    size, limit = 20, 45
    x, y, flipped = param(0, dtype, size), param(1, dtype, limit), param(2, dtype, limit)
    i, lane = counter("i", -(-limit // lanes)), counter("l", lanes)
    place = at((i, lanes), lane)
    inside = ix.both(ix.less(ix.index(2), place), ix.less(place, ix.index(size + 3)))
    below = ix.less(place, ix.index(limit))
    value = load(x, at(place, -3), inside)
    backwards = load(x, at((place, -1), size + 2), inside)
    kernel = Kernel("gates", [x, y, flipped], [Phase([For(i, LOOP, [For(lane, LANE, [
        Store(y, place, value, None, below),
        Store(flipped, at((place, -1), limit - 1), backwards, None, below)])])])], (1, 2))
    a = (rng.standard_normal(size) * 50 + 1).astype(NUMPY[dtype])
    b, c = np.ones(limit, NUMPY[dtype]), np.ones(limit, NUMPY[dtype])
    run(kernel, [a, b, c], how)
    expected = np.zeros(limit, NUMPY[dtype])
    expected[3:size + 3] = a
    np.testing.assert_array_equal(b, expected)
    expected[3:size + 3] = a[::-1]
    np.testing.assert_array_equal(c, expected[::-1])


@pytest.mark.parametrize("wide, narrow", [(I32, dtypes.int16), (I32, dtypes.int8), (I64, I32), (I64, dtypes.uint8),
                                          (dtypes.int16, dtypes.int8), (F32, dtypes.bfloat16), (F32, dtypes.float16)])
@pytest.mark.parametrize("only", [0, 3, 7])
@pytest.mark.parametrize("step", [1, -1])
def test_the_one_lane_that_a_gate_lets_through_is_all_that_is_written(how, rng, wide, narrow, only, step):
    """Of a row of 8k + 1 elements the last has a vector to itself, and its neighbour another row, or another owner."""
    x, y, lane = param(0, wide, 8), param(1, narrow, 8), counter("l", 8)
    alone = ix.both(ix.less(ix.index(only - 1), lane), ix.less(lane, ix.index(only + 1)))
    kernel = Kernel("alone", [x, y], [Phase([For(lane, LANE, [
        Store(y, at((lane, step), 0 if step == 1 else 7), load(x, at(lane)).cast(narrow), None, alone)])])], (1,))
    a, b = rng.integers(-9, 0, 8).astype(NUMPY[wide]), np.full(8, 99, storage_type(narrow))
    run(kernel, [a, b], how)
    expected = np.full(8, 99, storage_type(narrow))
    expected[only if step == 1 else 7 - only] = to_storage(cast_array(a, narrow), narrow)[only]
    np.testing.assert_array_equal(b, expected)


def test_a_gate_shared_by_all_lanes(how, rng):
    x, y = param(0, F32, 2, 8), param(1, F32, 4, 8)
    i, lane = counter("i", 4), counter("l", 8)
    inside = ix.both(ix.less(ix.index(0), i), ix.less(i, ix.index(3)))
    kernel = Kernel("rows", [x, y], [Phase([For(i, LOOP, [For(lane, LANE, [
        Store(y, at((i, 8), lane), load(x, at((i, 8), lane, -8), inside), None, ix.less(i, ix.index(3)))])])])], (1,))
    a, b = rng.standard_normal((2, 8)).astype(np.float32), np.ones((4, 8), np.float32)
    run(kernel, [a, b], how)
    np.testing.assert_array_equal(b, np.concatenate([np.zeros((1, 8)), a, np.ones((1, 8))]).astype(np.float32))
    if how == "llvm":
        lines = make_source(kernel, HOST, how).splitlines()
        chosen = {line.split(" = ")[0].strip() for line in lines if " = select i1 " in line and ", ptr " in line}
        used = [re.findall(r"ptr (%\S+?),", line)[0] for line in lines if "call" in line and "llvm.masked" in line]
        assert used and chosen.issuperset(used)          # no address outside the memories is accessed


@pytest.mark.parametrize("dtype", [F32, BOOL, dtypes.float64, dtypes.uint8])
@pytest.mark.parametrize("lanes", [2, 7, 16])
@pytest.mark.parametrize("step", [2, 3, 4])
def test_gated_steps_are_vectors_too(how, rng, dtype, lanes, step):
    """y[i] = x[step * i - 3] inside, 0 outside."""
    size, limit = 40, 48
    x, y = param(0, dtype, size), param(1, dtype, limit)
    i, lane = counter("i", -(-limit // lanes)), counter("l", lanes)
    place, where = at((i, lanes), lane), at((i, lanes * step), (lane, step), -3)
    inside = ix.both(ix.less(ix.index(-1), where), ix.less(where, ix.index(size)))
    kernel = Kernel("steps", [x, y], [Phase([For(i, LOOP, [For(lane, LANE, [
        Store(y, place, load(x, where, inside), None, ix.less(place, ix.index(limit)))])])])], (1,))
    a, b = (rng.standard_normal(size) * 50 + 1).astype(NUMPY[dtype]), np.ones(limit, NUMPY[dtype])
    run(kernel, [a, b], how)
    read = np.arange(limit) * step - 3
    np.testing.assert_array_equal(b, np.where((read >= 0) & (read < size), a[read.clip(0, size - 1)], 0))
    if HOST.has_masks:
        assert "masked.gather" not in make_source(kernel, HOST, "llvm")


@pytest.mark.parametrize("dtype", [F32, BOOL, dtypes.float64, dtypes.uint8])
@pytest.mark.parametrize("lanes", [2, 7, 16])
@pytest.mark.parametrize("offset", ["lane // 2", "lane // 3", "lane % 3", "7 - lane // 2", "lane * 7 // 3",
                                    "-2 * lane + 40"])
@pytest.mark.parametrize("gated", [False, True])
def test_elements_at_known_offsets_are_vectors_and_shuffles(how, rng, dtype, lanes, offset, gated):
    """y[i] = x[i + offset(lane)]: lanes that repeat elements, skip some, or go backwards; zeros where gated."""
    steps, size = 3, 100
    x, y, i, lane = param(0, dtype, size), param(1, dtype, steps, lanes), counter("i", steps), counter("l", lanes)
    of_lane = {"lane // 2": UOp(o.IDIV, I64, (lane, ix.index(2))), "lane // 3": UOp(o.IDIV, I64, (lane, ix.index(3))),
               "lane % 3": UOp(o.MOD, I64, (lane, ix.index(3))), "-2 * lane + 40": at((lane, -2), 40),
               "7 - lane // 2": at((UOp(o.IDIV, I64, (lane, ix.index(2))), -1), 7),
               "lane * 7 // 3": UOp(o.IDIV, I64, (at((lane, 7)), ix.index(3)))}[offset]
    place = at((i, 9), of_lane)
    gate = ix.less(place, ix.index(30)) if gated else None
    kernel = Kernel("known", [x, y], [Phase([For(i, LOOP, [For(lane, LANE, [
        Store(y, at((i, lanes), lane), load(x, place, gate))])])])], (1,))
    a, b = (rng.standard_normal(size) * 50 + 1).astype(NUMPY[dtype]), np.ones((steps, lanes), NUMPY[dtype])
    run(kernel, [a, b], how)
    read = np.arange(steps)[:, None] * 9 + np.array([eval(offset, {"lane": one}) for one in range(lanes)])
    np.testing.assert_array_equal(b, np.where(gated & (read >= 30), 0, a[read]))
    if not gated:
        assert "masked.gather" not in make_source(kernel, HOST, "llvm")


def test_gated_gather(how, rng):
    x, y, lane = param(0, F32, 40), param(1, F32, 16), counter("l", 16)
    place = UOp(o.IDIV, I64, (ix.multiply(lane, 7), ix.index(3)))
    kernel = Kernel("irregular", [x, y], [Phase([For(lane, LANE, [
        Store(y, lane, load(x, place, ix.less(place, ix.index(25))))])])], (1,))
    a, b = rng.standard_normal(40).astype(np.float32), np.ones(16, np.float32)
    run(kernel, [a, b], how)
    where = np.arange(16) * 7 // 3
    np.testing.assert_array_equal(b, np.where(where < 25, a[where], 0))


@pytest.mark.parametrize("combine", [o.ADD, o.MAX])
def test_stores_that_combine(how, rng, combine):
    x, y, i, lane = param(0, F32, 3, 16), param(1, F32, 16), counter("i", 3), counter("l", 8)
    total = param(2, F32)
    half = counter("h", 2)
    value = load(x, at((i, 16), (half, 8), lane))
    kernel = Kernel("combine", [x, y, total], [Phase([For(i, LOOP, [For(half, LOOP, [For(lane, LANE, [
        Store(y, at((half, 8), lane), value, combine, ix.less(at((half, 8), lane), ix.index(13))),
        Store(total, ix.index(0), value, combine)])])])])], (1, 2))
    a, b, c = rng.standard_normal((3, 16)).astype(np.float32), np.zeros(16, np.float32), np.zeros((), np.float32)
    run(kernel, [a, b, c], how)
    meaning = np.add if combine is o.ADD else np.maximum
    expected = meaning.reduce(np.concatenate([np.zeros((1, 16), np.float32), a]))
    np.testing.assert_allclose(b, np.where(np.arange(16) < 13, expected, 0), rtol=1e-5)
    np.testing.assert_allclose(c, meaning.reduce(np.concatenate([[0], a.ravel()])), rtol=1e-4)


def test_a_load_sees_the_store_before_it(how, rng):
    """y[i+1] = y[i] * x[i]: a running product through memory; nothing may be kept across the store."""
    n = 9
    x, y, i = param(0, F32, n), param(1, F32, n + 1), counter("i", n)
    before = load(y, i)
    kernel = Kernel("running", [x, y], [Phase([
        Store(y, ix.index(0), const(1.0)),
        For(i, LOOP, [Store(y, at(i, 1), before * load(x, i)),
                      Store(y, at(i, 1), load(y, at(i, 1)) + before)])])], (1,))
    a, b = rng.standard_normal(n).astype(np.float32), np.zeros(n + 1, np.float32)
    run(kernel, [a, b], how)
    expected = [np.float32(1)]
    for v in a:
        expected.append(expected[-1] * v + expected[-1])
    np.testing.assert_allclose(b, expected, rtol=1e-4, atol=1e-6)
