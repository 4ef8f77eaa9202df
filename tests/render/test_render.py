"""The CPU renderers: kernels built by hand, run as LLVM IR and as C, checked against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from render_kernels import BOOL, F32, HOST, I64, LANGUAGES, NUMPY, at, matmul, param, run

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import const, identity
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, If, Kernel, Phase,
                                            Prefetch, Store, counter, fold, load, local, register)
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.launch_info import launch_info
from glassgrad.runtime.cpu.llvm_compiler import assembly


@pytest.fixture(params=LANGUAGES)
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- loops, lanes, tiles ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 2, 7, 16, 17, 31, 100])
def test_elementwise_with_a_tail(how, rng, n):
    x, y = param(0, F32, n), param(1, F32, n)
    i, lane, tail = counter("i", n // 16), counter("l", 16), counter("t", n % 16)

    def one(index):
        return Store(y, index, (load(x, index) * 2.0).maximum(0.0) + 1.0)
    kernel = Kernel("elementwise", [x, y], [Phase([
        For(i, LOOP, [For(lane, LANE, [one(at((i, 16), lane))])]),
        For(tail, LANE, [one(at(tail, n // 16 * 16))])])], (1,))
    a, b = rng.standard_normal(n).astype(np.float32), np.zeros(n, np.float32)
    run(kernel, [a, b], how)
    np.testing.assert_array_equal(b, np.maximum(a * 2, 0) + 1)


@pytest.mark.parametrize("combine,dtype", [(o.ADD, F32), (o.MAX, F32), (o.MIN, dtypes.float64), (o.ADD, dtypes.int64),
                                           (o.MAX, dtypes.uint8), (o.MUL, F32), (o.XOR, dtypes.uint32), (o.AND, BOOL),
                                           (o.OR, BOOL)])
@pytest.mark.parametrize("lanes", [1, 3, 7, 8, 16])
def test_row_reduction(how, rng, combine, dtype, lanes):
    rows, tiles, steps = 3, 4, 5
    n = tiles * steps * lanes
    x, y = param(0, dtype, rows, n), param(1, dtype, rows)
    r, k, t, lane = counter("r", rows), counter("k", steps), counter("t", tiles), counter("l", lanes)
    acc = register("acc", dtype, (t, lane))
    first = identity(combine, dtype) if combine.identity is not None else const(combine is o.AND, dtype)
    kernel = Kernel("reduce", [x, y], [Phase([For(r, TASK, [
        For(t, TILE, [For(lane, LANE, [
            Assign(acc, first),
            For(k, LOOP, [Accumulate(acc, combine, load(x, at((r, n), (k, tiles * lanes), (t, lanes), lane)))])])]),
        Store(y, r, fold(acc, combine, (t, lane)))])])], (1,))
    a = (rng.standard_normal((rows, n)) * (1 if dtype.is_float else 100)).astype(NUMPY[dtype])
    if dtype is BOOL:
        a[0], a[1] = True, False
    b = np.zeros(rows, NUMPY[dtype])
    run(kernel, [a, b], how)
    meaning = {o.ADD: np.add, o.MAX: np.maximum, o.MIN: np.minimum, o.MUL: np.multiply, o.XOR: np.bitwise_xor,
               o.AND: np.logical_and, o.OR: np.logical_or}[combine]
    np.testing.assert_allclose(b, meaning.reduce(a, axis=1, dtype=NUMPY[dtype]), rtol=1e-4, atol=1e-4)
    assert launch_info(kernel).phases == (("reduce_0", rows),)


def test_a_scalar_register_takes_all_lanes(how, rng):
    x, y, k, lane = param(0, F32, 80), param(1, F32), counter("k", 10), counter("l", 8)
    acc = register("acc", F32)
    kernel = Kernel("narrow", [x, y], [Phase([
        Assign(acc, const(0.0)), For(k, LOOP, [For(lane, LANE, [Accumulate(acc, o.ADD, load(x, at((k, 8), lane)))])]),
        Store(y, ix.index(0), acc)])], (1,))
    a, b = rng.standard_normal(80).astype(np.float32), np.zeros((), np.float32)
    run(kernel, [a, b], how)
    np.testing.assert_allclose(b, a.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(14, 32, 5, 14, 2, 16), (6, 21, 3, 3, 1, 7), (4, 4, 1, 2, 2, 1)])
def test_matmul_tile(how, rng, sizes):
    rows, columns, depth, height, vectors, lanes = sizes
    a = rng.standard_normal((rows // height, depth, height)).astype(np.float32)
    b = rng.standard_normal((columns // (vectors * lanes), depth, vectors * lanes)).astype(np.float32)
    c = np.zeros((rows, columns), np.float32)
    run(matmul(*sizes), [a, b, c], how)
    np.testing.assert_allclose(c, np.einsum("mkr,nkv->mrnv", a, b).reshape(rows, columns), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif("avx512f" not in HOST.features, reason="needs 32 registers of 16 floats")
def test_matmul_inner_loop_has_nothing_to_spare():
    text = assembly(make_source(matmul(14, 32, 100, 14, 2, 16), HOST, "llvm"))
    loops, block = [], []
    for line in text.splitlines():
        if line.startswith(".LBB"):
            block = []
        elif line.startswith("\t") and not line.startswith("\t."):
            block.append(line.split()[0])
            if line.split()[0].startswith("j") and any(w.startswith("vfmadd") for w in block):
                loops.append(block)
                block = []
    (inner,) = loops
    count = {w: sum(i.startswith(w) for i in inner) for w in ("vfmadd", "vmovups", "vbroadcastss")}
    assert count == {"vfmadd": 28, "vmovups": 2, "vbroadcastss": 14}
    assert len(inner) - sum(count.values()) <= 5, inner          # counting, and one pointer per operand
    assert "(%rsp)" not in text                                   # nothing spilled


def test_staged_panel_in_worker_memory_and_spilled_sums(how, rng):
    """For each column block: copy a panel of B transposed into LOCAL memory, then use it for every row."""
    rows, columns, depth, lanes = 5, 24, 9, 8
    a, b, c = param(0, F32, rows, depth), param(1, F32, columns, depth), param(2, F32, rows, columns)
    panel, sums = local("panel", F32, depth * lanes), local("sums", F32, rows * lanes)
    j, i, k, kk, lane, p = (counter("j", columns // lanes), counter("i", rows), counter("k", depth), counter("kk", 3),
                            counter("l", lanes), counter("p", lanes))
    acc = register("acc", F32, (lane,))
    k3 = counter("k3", depth // 3)
    kernel = Kernel("staged", [a, b, c], [Phase([For(j, TASK, [
        For(k, LOOP, [For(p, LANE, [Store(panel, at((k, lanes), p), load(b, at((j, lanes * depth), (p, depth), k)))])]),
        For(k3, LOOP, [For(i, LOOP, [For(lane, LANE, [
            Assign(acc, (k3.eq(0)).where(const(0.0), load(sums, at((i, lanes), lane), ix.less(ix.index(0), k3)))),
            For(kk, LOOP, [Accumulate(acc, o.ADD, load(a, at((i, depth), (k3, 3), kk)) *
                                      load(panel, at((k3, 3 * lanes), (kk, lanes), lane)))]),
            Store(sums, at((i, lanes), lane), acc),
            If(k3.eq(depth // 3 - 1), [Store(c, at((i, columns), (j, lanes), lane), load(sums, at((i, lanes), lane)))]),
        ])])])])])], (2,))
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    y = rng.standard_normal((columns, depth)).astype(np.float32)
    z = np.zeros((rows, columns), np.float32)
    run(kernel, [x, y, z], how)
    np.testing.assert_allclose(z, x @ y.T, rtol=1e-4, atol=1e-5)
    info = launch_info(kernel)
    assert info.phases == (("staged_0", 3),) and info.scratch_bytes == 320 + 192 and info.shared == ()


def test_phases_share_memory_and_count_nested_tasks(how, rng):
    x, y = param(0, F32, 4, 6, 5), param(1, F32, 4)
    part, scale = local("part", F32, 24, "shared"), local("scale", F32, 4, "shared")
    i, j, k = counter("i", 4), counter("j", 6), counter("k", 5)
    acc = register("acc", F32)
    kernel = Kernel("phases", [x, y], [
        Phase([For(i, TASK, [For(j, TASK, [
            Assign(acc, const(0.0)), For(k, LOOP, [Accumulate(acc, o.ADD, load(x, at((i, 30), (j, 5), k)))]),
            Store(part, at((i, 6), j), acc)])])]),
        Phase([For(i, TASK, [Store(scale, i, i.cast(F32) + 1.0)]), Assign(acc, const(0.0))]),
        Phase([For(i, TASK, [Assign(acc, const(0.0)), For(j, LOOP, [Accumulate(acc, o.ADD, load(part, at((i, 6), j)))]),
                             Store(y, i, acc * load(scale, i))])])], (1,))
    a, b = rng.standard_normal((4, 6, 5)).astype(np.float32), np.zeros(4, np.float32)
    run(kernel, [a, b], how)
    np.testing.assert_allclose(b, a.sum((1, 2)) * np.arange(1, 5), rtol=1e-4, atol=1e-5)
    info = launch_info(kernel)
    assert info.phases == (("phases_0", 24), ("phases_1", 1), ("phases_2", 4))
    assert info.shared == (128, 64) and info.scratch_bytes == 0


def test_memories_of_a_phase_do_not_overlap_where_others_had_them_before(how, rng):
    """Each of two memories is first used beside a smaller one, then both are used together."""
    out, small, large = param(0, F32, 3), 8, 64
    a, b, c, d = (local(name, F32, size) for name, size in (("a", small), ("b", large), ("c", large), ("d", small)))
    i, s, t = counter("i", 1), counter("s", small), counter("t", large)

    def phase(number: int, *memories):
        """Fill each memory with its own number, then store the sum of their first and last elements."""
        total = sum((load(m, ix.index(0)) + load(m, ix.index(m.arg.size - 1)) for m in memories), const(0.0))
        return Phase([For(i, TASK, [*[For(s if m.arg.size == small else t, LOOP, [
            Store(m, s if m.arg.size == small else t, const(float(10 ** n)))]) for n, m in enumerate(memories)],
            Store(out, ix.index(number), total)])])
    kernel = Kernel("phases", [out], [phase(0, a, b), phase(1, c, d), phase(2, c, b)], (0,))
    found = np.zeros(3, np.float32)
    run(kernel, [found], how)
    np.testing.assert_array_equal(found, [22, 22, 22])
    assert launch_info(kernel).scratch_bytes == 512, "the scratch of the largest phase"


# -- registers and control --------------------------------------------------------------------------------------------
def test_loops_have_names_of_their_own(how):
    """Whatever their counters are called, and however many there are before them."""
    y, total = param(0, I64), register("total", I64)
    loops = [counter(name, 2) for name in ("k1", "v", "k", *("k",) * 30, "k12", "t.1", "t_1")]
    kernel = Kernel("names", [y], [Phase([
        Assign(total, const(0, I64)), *(For(k, LOOP, [Accumulate(total, o.ADD, k)]) for k in loops),
        Store(y, ix.index(0), total)])], (0,))
    b = np.zeros((), np.int64)
    run(kernel, [b], how)
    assert b == len(loops)


def test_registers_through_loops_and_branches(how):
    """Counts, sums and a last value that pass through nested loops, branches and loops that run zero times."""
    y, i, j = param(0, I64, 4), counter("i", 6), counter("j", 10)
    count, last, total, fresh = (register(n, I64) for n in ("count", "last", "total", "fresh"))
    kernel = Kernel("registers", [y], [Phase([
        Assign(count, const(0, I64)), Assign(last, const(-1, I64)), Assign(total, const(0, I64)),
        For(i, LOOP, [
            Assign(fresh, i * i),
            For(j, LOOP, [
                Accumulate(fresh, o.ADD, j), Accumulate(count, o.ADD, const(1, I64)),
                If((j % 3).eq(1), [Assign(last, i * 100 + j), If(i < 3, [Accumulate(total, o.ADD, last)])]),
            ], stop=ix.add(ix.multiply(i, 2), ix.index(-3))),
            Accumulate(total, o.ADD, fresh)]),
        Store(y, ix.index(0), count), Store(y, ix.index(1), last), Store(y, ix.index(2), total),
        Store(y, ix.index(3), fresh)])], (0,))
    b = np.zeros(4, np.int64)
    run(kernel, [b], how)
    n = t = f = 0
    last_value = -1
    for p in range(6):
        f = p * p
        for q in range(min(10, max(0, 2 * p - 3))):
            f, n = f + q, n + 1
            if q % 3 == 1:
                last_value = p * 100 + q
                if p < 3:
                    t += last_value
        t += f
    assert b.tolist() == [n, last_value, t, f]


def test_tiles_decide_gates_and_stops(how):
    y, t, k = param(0, I64, 4), counter("t", 4), counter("k", 9)
    acc = register("acc", I64, (t,))
    kernel = Kernel("stops", [y], [Phase([For(t, TILE, [
        Assign(acc, const(0, I64)),
        For(k, LOOP, [Accumulate(acc, o.ADD, k)], stop=ix.multiply(t, 2)),
        If(ix.less(ix.index(1), t), [Accumulate(acc, o.ADD, const(100, I64))]),
        Store(y, t, acc, None, ix.less(t, ix.index(3)))])])], (0,))
    b = np.full(4, -5)
    run(kernel, [b], how)
    assert b.tolist() == [0, 1, 106, -5]


def test_scalar_arguments(how):
    x, rate, flag, y = param(0, F32, 8), param(1, F32), param(2, BOOL), param(3, F32, 8)
    lane = counter("l", 8)
    kernel = Kernel("cells", [x, rate, flag, y], [Phase([For(lane, LANE, [
        Store(y, lane, flag.where(load(x, lane) * rate, load(x, lane)))])])], (3,))
    a, b = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    cell = np.zeros(8, np.uint8)
    cell[:4] = np.frombuffer(np.float32(2.5).tobytes(), np.uint8)
    for on in (0, 1):
        run(kernel, [a, cell, np.array([on], np.uint64), b], how)
        np.testing.assert_array_equal(b, a * 2.5 if on else a)


def test_deep_expressions_are_no_limit(how):
    x, y = param(0, F32, 8), param(1, F32, 8)
    lane = counter("l", 8)
    value = load(x, lane)
    for i in range(3000 if how == "llvm" else 300):
        value = value + float(i % 3)
    kernel = Kernel("deep", [x, y], [Phase([For(lane, LANE, [Store(y, lane, value)])])], (1,))
    a, b = np.zeros(8, np.float32), np.zeros(8, np.float32)
    run(kernel, [a, b], how)
    assert b.tolist() == [3000.0 if how == "llvm" else 300.0] * 8


def test_what_is_wrong_is_said():
    x, y, k, lane = param(0, F32, 8), param(1, F32, 8), counter("k", 8), counter("l", 8)
    acc = register("acc", F32)

    def text(*body):
        return make_source(Kernel("bad", [x, y], [Phase(list(body))], (1,)), HOST, "llvm")
    with pytest.raises(Bug, match="register acc.* read before it is assigned"):
        text(Store(y, ix.index(0), acc))
    with pytest.raises(Bug, match="whose loops are not open"):
        text(Store(y, k, const(0.0)))
    with pytest.raises(Bug, match="lanes would overwrite each other"):
        text(For(lane, LANE, [Store(y, ix.index(0), load(x, lane))]))
    with pytest.raises(Bug, match="narrower than the value"):
        text(For(lane, LANE, [Assign(acc, load(x, lane))]))
    with pytest.raises(Bug, match="EXP2 of float32 reached"):
        text(For(k, LOOP, [Store(y, k, load(x, k).exp2())]))
    with pytest.raises(Bug, match="lane loop l has a stop"):
        text(For(k, LOOP, [For(lane, LANE, [Store(y, lane, load(x, lane))], stop=k)]))


# -- blocks stored across, and hints -----------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [F32, dtypes.float64, dtypes.int8, dtypes.uint16, BOOL, dtypes.float16])
@pytest.mark.parametrize("rows,lanes,pitch", [(16, 16, 16), (14, 16, 14), (9, 16, 20), (3, 16, 5), (33, 16, 33),
                                              (8, 8, 8), (3, 4, 3), (5, 8, 3), (7, 6, 7)])
def test_a_block_stored_across(how, rng, dtype, rows, lanes, pitch):
    """Rows are read along lanes and stored a pitch apart: turned in registers where that is possible."""
    k = 2 * lanes
    x, y = param(0, dtype, rows * k), param(1, dtype, k * pitch + rows)
    outer, row, lane = counter("kb", 2), counter("r", rows), counter("l", lanes)
    place = at((outer, lanes), lane)
    store = For(lane, LANE, [Store(y, at((place, pitch), row), load(x, at((row, k), place)))])
    rows_of = For(row, TILE if pitch >= rows else LOOP, [store])
    kernel = Kernel("turn", [x, y], [Phase([For(outer, LOOP, [rows_of])])], (1,))
    a = rng.integers(0, 2 if dtype is BOOL else 100, (rows, k)).astype(NUMPY[dtype])
    b = np.zeros(k * pitch + rows, NUMPY[dtype])
    expected = b.copy()
    for i in range(2):
        for r in range(rows):
            for column in range(i * lanes, (i + 1) * lanes):
                expected[column * pitch + r] = a[r, column]
    run(kernel, [a, b], how)
    np.testing.assert_array_equal(b, expected)
    if how == "llvm" and pitch >= rows and 2 * rows > lanes and lanes != 6:
        assert "scatter" not in make_source(kernel, HOST, "llvm") or rows % lanes


def test_a_block_that_is_read_again_is_stored_in_order(how, rng):
    """The second store's value is what the first one has stored: they must not be written as one."""
    x, y = param(0, F32, 16), param(1, F32, 64)
    lane = counter("l", 16)
    body = [Store(y, at((lane, 2)), load(x, lane) + 1.0), Store(y, at((lane, 2), 1), load(y, at((lane, 2))) * 2.0)]
    a, b = rng.standard_normal(16).astype(np.float32), np.zeros(64, np.float32)
    run(Kernel("again", [x, y], [Phase([For(lane, LANE, body)])], (1,)), [a, b], how)
    np.testing.assert_array_equal(b[:32:2], a + 1)
    np.testing.assert_array_equal(b[1:32:2], (a + 1) * 2)


def test_a_prefetch_means_nothing(how, rng):
    """Not even where it points outside the memory."""
    x, y, i = param(0, F32, 100), param(1, F32, 100), counter("i", 100)
    kernel = Kernel("hint", [x, y], [Phase([For(i, LOOP, [Prefetch(x, at((i, 1 << 20), 1 << 30)),
                                                         Store(y, i, load(x, i) + 1.0)])])], (1,))
    a, b = rng.standard_normal(100).astype(np.float32), np.zeros(100, np.float32)
    run(kernel, [a, b], how)
    np.testing.assert_array_equal(b, a + 1)
