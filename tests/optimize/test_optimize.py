"""Every move and recipe keeps the answer: on ragged sizes, on views, for several processors, checked against
interpreters.

Endless, random graphs for every processor by command:  python tests/optimize/test_optimize.py [first seed] [last seed]
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_fuzzer import Maker
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from loop_kernels import AVX2, AVX512, NEON, SIZES, TARGETS, Inputs, check

from glassgrad.base.errors import Bug
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Measure, Param
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import add, index, multiply, substitute_index
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, Kernel, Phase, Statement,
                                            Store, counter, load, local, register, task_loops, walk)
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.plain import plain_loops
from glassgrad.compiler.optimize.recipes import optimize, unoptimized
from glassgrad.compiler.optimize.targets import cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import make_source

FLOAT = dtypes.float32
RAGGED = [1, 2, 7, 8, 15, 16, 17, 33, 64, 97, 131]
WIDTHS = [(1, 1), (1, 4), (1, 16), (4, 16), (2, 8), (4, 1), (3, 5)]
quick = hypothesis_settings(max_examples=12, deadline=None, derandomize=True,
                            suppress_health_check=[HealthCheck.too_slow])


# -- moves one by one, on loops written by hand --------------------------------------------------------------
def param(slot: int, size: int) -> UOp:
    return UOp(o.PARAM, FLOAT, (), Param(slot, (size,)))


def run(params: list[UOp], phases: list[list[Statement]], arrays: list[np.ndarray]) -> list[np.ndarray]:
    out = [a.copy() for a in arrays]
    run_kernel(Kernel("test", params, [Phase(p) for p in phases]), out)
    return out


def compare(params: list[UOp], before: list[Statement], after: list[list[Statement]], rng: np.random.Generator) -> None:
    """Both versions give the same, up to the order of sums."""
    arrays = [rng.uniform(-1, 1, p.arg.shape).astype("float32") for p in params]
    wanted, got = run(params, [before], arrays), run(params, after, arrays)
    for w, g in zip(wanted, got):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def elementwise(n: int) -> tuple[list[UOp], For]:
    """out[i] = (x[n-1-i] + x[i])**2, through a register and private memory."""
    out, x, i = param(0, n), param(1, n), counter("i", n)
    total, row = register("r", FLOAT), local("row", FLOAT, 2)
    other = add(index(n - 1), multiply(i, -1))
    return [out, x], For(i, LOOP, [Assign(total, load(x, i) + load(x, other)), Store(row, index(1), total * total),
                                   Store(out, i, load(row, index(1)))])


def reduction(n: int, combine: Any = o.ADD) -> tuple[list[UOp], list[Statement], For]:
    """r = identity; for k in n: r = combine(r, x[k]*y[k]); out[0] = r"""
    out, x, y, k = param(0, 1), param(1, n), param(2, n), counter("k", n)
    total = register("acc", FLOAT)
    loop = For(k, LOOP, [Accumulate(total, combine, load(x, k) * load(y, k))])
    return [out, x, y], [Assign(total, identity(combine, FLOAT)), loop, Store(out, index(0), total * 2.0)], loop


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("tile, lanes", WIDTHS)
def test_wide(n: int, tile: int, lanes: int, rng: np.random.Generator) -> None:
    params, loop = elementwise(n)
    after = moves.wide(loop, tile, lanes)
    compare(params, [loop], [after], rng)
    kinds = {s.kind for s in walk(after) if isinstance(s, For)}
    assert kinds <= {LOOP, TILE, LANE} and (LANE in kinds) == (lanes > 1 and n > 1)


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("tile, lanes", WIDTHS)
@pytest.mark.parametrize("combine", [o.ADD, o.MAX], ids=str)
def test_wide_reduce(n: int, tile: int, lanes: int, combine: Any, rng: np.random.Generator) -> None:
    params, body, loop = reduction(n, combine)
    for chunk in (0, 4 * tile * lanes, 1):
        after = sum_moves.wide_reduce(loop, tile, lanes, chunk)
        assert after is not None
        compare(params, body, [[body[0], *after, body[2]]], rng)


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("stop", [0, 1, 5, 16, 1000])
def test_wide_reduce_to_an_end_known_only_at_run_time(n: int, stop: int, rng: np.random.Generator) -> None:
    params, body, loop = reduction(n)
    j = counter("j", 1)
    loop.stop = add(index(stop), j)
    before = [For(j, LOOP, body)]
    after = sum_moves.wide_reduce(loop, 2, 8)
    assert after is not None
    compare(params, before, [[For(j, LOOP, [body[0], *after, body[2]])]], rng)


def test_wide_reduce_refuses_what_depends_on_itself() -> None:
    params, body, loop = reduction(16)
    total = body[0].register  # type: ignore[union-attr]
    running = For(loop.range, LOOP, [*loop.body, Accumulate(register("b", FLOAT), o.ADD, total)])
    assert sum_moves.wide_reduce(running, 2, 8) is None
    assert sum_moves.wide_reduce(For(counter("j", 4), LOOP, [loop]), 2, 8) is None


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_chunks(n: int, chunk: int, rng: np.random.Generator) -> None:
    params, body, _ = reduction(n)
    compare(params, body, [sum_moves.chunks(body, chunk)], rng)


@pytest.mark.parametrize("sizes", [(2, 3), (40, 30), (3, 5, 7), (13, 1, 17), (2, 200)])
@pytest.mark.parametrize("chunk", [2, 16, 64])
def test_chunks_of_nested_loops(sizes: tuple[int, ...], chunk: int, rng: np.random.Generator) -> None:
    n = math.prod(sizes)
    out, x, total = param(0, 1), param(1, n), register("acc", FLOAT)
    counters = [counter(f"k{a}", s) for a, s in enumerate(sizes)]
    at = index(0)
    for c, s in zip(counters, sizes):
        at = add(multiply(at, s), c)
    body: list[Statement] = [Accumulate(total, o.ADD, load(x, at))]
    for c in reversed(counters):
        body = [For(c, LOOP, body)]
    body = [Assign(total, const(0.0)), *body, Store(out, index(0), total)]
    compare([out, x], body, [sum_moves.chunks(body, chunk)], rng)


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("count", [1, 2, 3, 16, 5000])
def test_tasks(n: int, count: int, rng: np.random.Generator) -> None:
    params, loop = elementwise(n)
    after = moves.tasks(loop, count)
    compare(params, [loop], [[after]], rng)
    number = after.range.arg.size if after.kind == TASK else 1
    assert number <= max(count, 1) or number == n


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("kind", [LOOP, TASK, TILE])
def test_nested(n: int, kind: str, rng: np.random.Generator) -> None:
    out, x = param(0, n * 6), param(1, n * 6)
    i, j = counter("i", n), counter("j", 6)
    whole = counter("w", n * 6)
    at = moves.flat_index([i, j]) if n > 1 else j
    before: list[Statement] = [For(whole, LOOP, [Store(out, whole, load(x, whole) * 2.0)])]
    after = moves.nested([i, j], [Store(out, at, load(x, at) * 2.0)], kind)
    compare([out, x], before, [after], rng)
    assert [s.range for s in walk(after) if isinstance(s, For)] == ([i, j] if n > 1 else [j])


@pytest.mark.parametrize("n", [1, 3, 7])
def test_loops_around_keep_those_of_one_iteration(n: int, rng: np.random.Generator) -> None:
    out, x = param(0, n * 6), param(1, n * 6)
    i, j, whole = counter("i", n), counter("j", 6), counter("w", n * 6)
    at = moves.flat_index([i, j])
    before: list[Statement] = [For(whole, LOOP, [Store(out, whole, load(x, whole) * 2.0)])]
    after = moves.loops_around([i, j], [Store(out, at, load(x, at) * 2.0)], TASK)
    compare([out, x], before, [after], rng)
    assert [(s.range, s.kind) for s in walk(after) if isinstance(s, For)] == [(i, TASK), (j, TASK)]


@pytest.mark.parametrize("size, piece", [(10, 5), (11, 5), (4, 5), (5, 5), (1, 1)])
def test_left_of_a_length(size: int, piece: int) -> None:
    number = counter("b", -(-size // piece))
    stop = moves.left_of(size, piece, number)
    assert (stop is None) == (size % piece == 0)
    if stop is not None:
        left = [substitute_index(stop, {number: index(at)}, {}).arg for at in range(number.arg.size)]
        assert [min(piece, n) for n in left] == [min(piece, size - at * piece) for at in range(number.arg.size)]


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("most", [1, 2, 7, 64, 5000])
def test_share_out(n: int, most: int, rng: np.random.Generator) -> None:
    out, x = param(0, n * 6), param(1, n * 6)
    loops = [counter("i", n), counter("j", 2), counter("k", 3)]
    at = add(multiply(add(multiply(moves.one(loops[0]), 2), loops[1]), 3), loops[2])
    store: list[Statement] = [Store(out, at, load(x, at) * 2.0)]
    before = store
    for r in reversed(loops):
        before = [For(r, LOOP, before)]
    after = moves.share_out(loops, store, most)
    compare([out, x], before, [after], rng)
    number = math.prod(s.range.arg.size for s in walk(after) if isinstance(s, For) and s.kind == TASK)
    assert number <= max(most, 1) * 3, "several iterations go to one task"


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("count", [2, 3, 16])
def test_spread_runs_the_rest_once(n: int, count: int, rng: np.random.Generator) -> None:
    params, loop = elementwise(n)
    more = param(2, 3)
    rest: list[Statement] = [Store(more, index(1), const(5.0))]
    compare([*params, more], [loop, *rest], [moves.spread([loop, *rest], count)], rng)
    zeros = [np.zeros(p.arg.shape, "float32") for p in (*params, more)]
    assert run([*params, more], [moves.spread([loop, *rest], count)], zeros)[2].tolist() == [0.0, 5.0, 0.0]


@pytest.mark.parametrize("length", [0, 1, 2, 5])
@pytest.mark.parametrize("count", [2, 3, 16])
def test_spread_runs_the_rest_where_the_loop_ends_at_once(length: int, count: int, rng: np.random.Generator) -> None:
    (out, x), loop = elementwise(5)
    n, more = UOp(o.PARAM, dtypes.int64, (), Measure(2, Symbol("n", 0, 5))), param(3, 3)
    ended = For(loop.range, loop.kind, loop.body, n)
    after = moves.spread([ended, Store(more, index(1), const(5.0))], count)
    memory = [np.zeros(5, "float32"), np.ones(5, "float32"), length, np.zeros(3, "float32")]
    run_kernel(Kernel("k", [out, x, n, more], [Phase(after)], (0, 3)), memory)
    assert np.count_nonzero(memory[0]) == length and memory[3].tolist() == [0.0, 5.0, 0.0]


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
@pytest.mark.parametrize("rows", [1, 3])
def test_group(n: int, chunk: int, rows: int, rng: np.random.Generator) -> None:
    out, x, k, i = param(0, rows), param(1, n * rows), counter("k", n), counter("i", rows)
    total = register("acc", FLOAT)
    body: list[Statement] = [
        Assign(total, const(0.0)), For(k, LOOP, [Accumulate(total, o.ADD, load(x, add(multiply(k, rows), i)))]),
        Store(out, i, total + 1.0)]
    before: list[Statement] = [For(i, TASK, body)]
    grouped = sum_moves.group(body, [i], chunk)
    if -(-n // chunk) < 2:
        assert grouped is None, "nothing to group"
    else:
        assert grouped is not None
        compare([out, x], before, [grouped[0], [For(i, TASK, grouped[1])]], rng)


@pytest.mark.parametrize("rows, columns", [(331, 3), (331, 7), (127, 5)])
def test_lanes_do_not_go_along_groups_of_which_one_is_shorter(
        rows: int, columns: int, rng: np.random.Generator) -> None:
    """A vector's lanes end together: a loop that ends where the counter of the groups says cannot be inside them."""
    x, out, i, k = param(1, rows * columns), param(0, 1), counter("k0", rows), counter("k1", columns)
    total = register("acc", FLOAT)
    body: list[Statement] = [Assign(total, const(0.0)), For(i, LOOP, [For(k, LOOP, [
        Accumulate(total, o.ADD, load(x, add(i, multiply(k, rows))))])]), Store(out, index(0), total)]
    plain = Kernel("sum", [out, x], [Phase(body)], (0,))
    after = optimize(plain, replace(AVX512, task_steps=32, cut_steps=128))
    assert after.moves[0].startswith("group(loop=k0, chunk=") and rows % int(after.moves[0][:-1].split("=")[-1]), \
        f"the last group is not shorter: {after.moves}"
    compare([out, x], body, [phase.body for phase in after.phases], rng)
    make_source(after, AVX512, "llvm")


@pytest.mark.parametrize("a, b", [(1, 1), (3, 5), (8, 16), (7, 1), (1, 9)])
def test_merge(a: int, b: int, rng: np.random.Generator) -> None:
    out, x, i, j = param(0, a * b), param(1, a * b), counter("i", a), counter("j", b)
    at = add(multiply(i, b), j)
    nested = For(i, TASK, [For(j, TASK, [Store(out, at, load(x, at) * 2.0)])])
    merged = moves.merge(nested)
    assert merged is not None and merged.range.arg.size == a * b
    compare([out, x], [nested], [[merged]], rng)


def test_merge_refuses_where_an_index_would_need_division() -> None:
    out, x, i, j = param(0, 15), param(1, 15), counter("i", 3), counter("j", 5)
    transposed = add(multiply(j, 3), i)
    nested = For(i, TASK, [For(j, TASK, [Store(out, add(multiply(i, 5), j), load(x, transposed))])])
    assert moves.merge(nested) is None
    assert moves.merge(For(i, TASK, [For(j, LOOP, [])])) is None, "kinds differ"
    assert moves.merge(For(i, TASK, [Store(out, i, const(1.0))])) is None, "no loop inside"


# -- whole recipes -------------------------------------------------------------------------------------------
def compiler(target: Target, log: list[str] | None = None) -> Any:
    def compile_kernel(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), target)
        if log is not None:
            log.extend(kernel.moves)
        return kernel
    return compile_kernel


@pytest.mark.parametrize("name", TARGETS)
@quick
@given(st.integers(0, 1 << 20))
def test_random_graphs(name: str, seed: int) -> None:
    maker = Maker(seed)
    sinks = [s for s in dict.fromkeys(maker.graph(6)) if s not in maker.leaves]
    if sinks:
        check(sinks, maker.leaves, compiler(TARGETS[name]), f"seed {seed} for {name}")


def matmul(x: UOp, y: UOp) -> UOp:
    """(.., m, k) @ (.., k, n), as expand * multiply * sum."""
    *batch, m, k = x.shape
    n = y.shape[-1]
    order = (*range(len(batch)), len(batch) + 1, len(batch))
    left = x.reshape((*batch, m, 1, k)).expand((*batch, m, n, k))
    right = y.permute(order).reshape((*batch, 1, n, k)).expand((*batch, m, n, k))
    return (left * right).sum([len(batch) + 2]).reshape((*batch, m, n))


sizes = st.sampled_from(SIZES)


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
@hypothesis_settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(m=sizes, n=sizes, k=sizes, views=st.integers(0, 63), seed=st.integers(0, 99))
def test_matmul_of_every_size_and_view(name: str, m: int, n: int, k: int, views: int, seed: int) -> None:
    """Transposed, flipped, padded and sliced operands, prologues and epilogues."""
    rng, values = np.random.default_rng(seed), Inputs()

    def operand(rows: int, columns: int, how: int) -> UOp:
        shape = (columns, rows) if how & 1 else (rows, columns)
        x = values.leaf(rng.uniform(-1, 1, (shape[0] + 2, shape[1] + 2)).astype("float32"))
        x = x.shrink([(1, shape[0] + 1), (1, shape[1] + 1)])
        x = x.permute((1, 0)) if how & 1 else x
        x = x.flip([1]) if how & 2 else x
        return x * 2.0 + 1.0 if how & 4 else x

    product = matmul(operand(m, k, views & 7), operand(k, n, views >> 3))
    bias = values.leaf(rng.uniform(-1, 1, (1, n)).astype("float32")).expand((m, n))
    what = f"{m} x {n} x {k}, views {views}, seed {seed}"
    check([(product + bias).maximum(0.0)], values, compiler(TARGETS[name]), what)


@pytest.mark.parametrize("m, n, k", [(29, 67, 83), (1, 64, 64), (64, 1, 64), (64, 64, 1), (2, 4, 512), (97, 33, 8),
                                     (14, 32, 64), (15, 33, 65), (5, 7, 1100), (30, 70, 1030)])
@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_matmul_of_awkward_sizes(m: int, n: int, k: int, name: str, rng: np.random.Generator) -> None:
    values, log = Inputs(), []
    x = values.leaf(rng.uniform(-1, 1, (m, k)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (k, n)).astype("float32"))
    check([matmul(x, y)], values, compiler(TARGETS[name], log))
    if min(m, n) >= 5 and k >= 8:
        assert log[0].startswith("contract("), log


@pytest.mark.parametrize("few, many, k", [(1, 16, 64), (2, 17, 97), (3, 131, 64), (8, 40, 131), (5, 16, 2100)])
@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_products_with_few_rows_along_k(few: int, many: int, k: int, name: str, rng: np.random.Generator) -> None:
    """Whichever factor has them, with a batch around it and an epilogue: nothing is turned, rows are read at once."""
    values, log = Inputs(), []
    x = values.leaf(rng.uniform(-1, 1, (3, few, k)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (3, many, k)).astype("float32"))
    bias = values.leaf(rng.uniform(-1, 1, (1, 1, many)).astype("float32")).expand((3, few, many))
    check([(matmul(x, y.permute((0, 2, 1))) + bias).maximum(0.0)], values, compiler(TARGETS[name], log))
    check([matmul(y, x.permute((0, 2, 1)))], values, compiler(TARGETS[name], log))
    assert [move.split("(")[0] for move in log] == ["fold", "rows", "tasks"] * 2


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
def test_matmul_of_other_types(dtype: str, rng: np.random.Generator) -> None:
    values, kind = Inputs(), getattr(dtypes, dtype)
    a, b = rng.integers(-4, 5, (19, 23)), rng.integers(-4, 5, (23, 37))
    x, y = values.leaf(a.astype("float32" if kind.is_float else "int32"), kind), \
        values.leaf(b.astype("float32" if kind.is_float else "int32"), kind)
    wide = kind.accumulator
    for target in (AVX512, AVX2, NEON):
        check([matmul(x.cast(wide), y.cast(wide)).cast(kind)], values, compiler(target))


def test_many_small_products(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of them to a task: here 8 tasks for 77 x 3 products."""
    monkeypatch.setattr(moves.share_out, "__defaults__", (8,))
    monkeypatch.setattr(moves, "PHASE_TASKS", 8)
    values = Inputs()
    x = values.leaf(rng.uniform(-1, 1, (77, 3, 17, 19)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (77, 3, 19, 21)).astype("float32"))
    for target in (AVX512, NEON):
        check([matmul(x, y), matmul(x.permute((0, 1, 3, 2)), x)], values, compiler(target))


def test_batched_matmul(rng: np.random.Generator) -> None:
    values = Inputs()
    x = values.leaf(rng.uniform(-1, 1, (3, 2, 17, 19)).astype("float32"))
    y = values.leaf(rng.uniform(-1, 1, (3, 2, 19, 21)).astype("float32"))
    for target in (AVX512, NEON):
        check([matmul(x, y), matmul(x.permute((0, 1, 3, 2)), x)], values, compiler(target))


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_matmul_of_gathered_rows(name: str, rng: np.random.Generator) -> None:
    """An index that is loaded is not loaded past a ragged edge either."""
    values = Inputs()
    rows = values.leaf(rng.uniform(-1, 1, (11, 19)).astype("float32"))
    where = values.leaf(rng.integers(0, 11, 67).astype("int32"))
    y = values.leaf(rng.uniform(-1, 1, (19, 21)).astype("float32"))
    picked = UOp(o.GATHER, FLOAT, (rows, where))
    check([matmul(picked, y), matmul(y.permute((1, 0)), picked.permute((1, 0)))], values, compiler(TARGETS[name]))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("image, kernel", [((9, 11), (3, 3)), ((8, 8), (1, 1)), ((13, 7), (5, 2)), ((16, 33), (3, 1))])
def test_convolution_and_its_gradients(image: tuple[int, int], kernel: tuple[int, int], stride: int,
                                       rng: np.random.Generator) -> None:
    """Windows of windows times weights; the gradients are what `compiler/graph/gradient.py` makes of it."""
    from glassgrad.compiler.graph.gradient import gradients
    values, (h, w), (kh, kw) = Inputs(), image, kernel
    x = values.leaf(rng.uniform(-1, 1, (2, 3, h, w)).astype("float32"))
    weight = values.leaf(rng.uniform(-1, 1, (5, 3, kh, kw)).astype("float32"))
    windows = x.pad([(0, 0), (0, 0), (1, 1), (1, 1)]).window(2, kh, stride).window(3, kw, stride)
    _, _, oh, ow, _, _ = windows.shape                              # (2, 3, oh, ow, kh, kw)
    left = windows.reshape((2, 1, 3, oh, ow, kh, kw)).expand((2, 5, 3, oh, ow, kh, kw))
    right = weight.reshape((1, 5, 3, 1, 1, kh, kw)).expand((2, 5, 3, oh, ow, kh, kw))
    out = (left * right).sum([2, 5, 6]).reshape((2, 5, oh, ow))
    up = values.leaf(rng.uniform(-1, 1, out.shape).astype("float32"))
    found = [g for g in gradients(out, up, [x, weight]) if g is not None]
    assert len(found) == 2
    target = AVX512 if stride == 1 else NEON
    check([out.maximum(0.0)], values, compiler(target))
    check([found[0]], values, compiler(target))
    check([found[1]], values, compiler(target))


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (100, 3), (17, 31), (2, 400), (400, 2), (1, 700), (700, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_columns_and_everything(shape: tuple[int, int], axis: int, rng: np.random.Generator,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """With small grains, so that small shapes are grouped, chunked and spread over tasks as large ones are."""
    monkeypatch.setattr(plain_loops, "ADDS", 16)
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


@pytest.mark.parametrize("m,k,n,where", [
    (256, 256, 256, "in_place"), (64, 784, 128, "in_place"), (128, 128, 128, "in_place"),
    (200, 200, 200, "near"),                 # its rows do not begin where vectors do
    (64, 256, 512, "near"),                  # they lie far apart
    (384, 384, 384, "near"),                 # there is more of it
])
def test_a_right_factor_in_the_cache_is_read_in_place(m: int, k: int, n: int, where: str) -> None:
    x, y = UOp(o.PARAM, FLOAT, (), Param(1, (m, k))), UOp(o.PARAM, FLOAT, (), Param(2, (k, n)))
    value = matmul(x, y)
    ast = UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (UOp(o.PARAM, FLOAT, (), Param(0, value.shape)), value)),))
    [move] = optimize(lower(ast), replace(AVX512, l2_bytes=1 << 20)).moves
    assert f"right={where}" in move, move


def test_nothing_is_packed_into_much_more_memory_than_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    x, row, column = (UOp(o.PARAM, FLOAT, (), Param(slot + 1, shape))
                      for slot, shape in enumerate([(32, 64), (1, 128), (64, 1)]))
    repeated = row.expand((64, 128)) + column.expand((64, 128))          # 8,192 elements of 192
    value = matmul(x, repeated)
    ast = UOp(o.SINK, FLOAT, (UOp(o.STORE, FLOAT, (UOp(o.PARAM, FLOAT, (), Param(0, value.shape)), value)),))
    assert optimize(lower(ast), AVX512).moves[0].startswith("contract")
    monkeypatch.setattr(cpu, "MOST_PACKED", 4096)
    assert not any(move.startswith("contract") for move in optimize(lower(ast), AVX512).moves)


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
