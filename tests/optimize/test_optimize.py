"""Every move keeps the answer: on ragged sizes, on loops written by hand, checked against the loop interpreter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop_kernels import AVX512

from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import (add, both, bounds, divide, index, less, multiply, operation,
                                                    substitute_index)
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Measure, Param
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.compiler.graph.uop import UOp, const, identity
from glassgrad.compiler.lower import loops as loops_module
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, If, Kernel, Phase,
                                            Statement, Store, counter, current, flat_index, in_loops, load, local,
                                            loops_around, nested, nodes_in, piece_bound, register, walk)
from glassgrad.compiler.optimize.moves import (cut_at_gates as cut_at_gates_module, loop_moves as moves,
                                               reduction_moves as sum_moves)
from glassgrad.compiler.optimize.moves.cut_at_gates import branches_at_gates, branches_at_parts, cut_at_gates
from glassgrad.compiler.optimize.plain.lanes_and_tasks import tasks_of_rows, unrolled
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.pipeline import make_source

FLOAT = dtypes.float32
RAGGED = [1, 2, 7, 8, 15, 16, 17, 33, 64, 97, 131]
WIDTHS = [(1, 1), (1, 4), (1, 16), (4, 16), (2, 8), (4, 1), (3, 5)]


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
def test_a_widened_loop_computes_the_same(n: int, tile: int, lanes: int, rng: np.random.Generator) -> None:
    params, loop = elementwise(n)
    after = moves.wide(loop, tile, lanes)
    compare(params, [loop], [after], rng)
    kinds = {s.kind for s in walk(after) if isinstance(s, For)}
    assert kinds <= {LOOP, TILE, LANE} and (LANE in kinds) == (lanes > 1 and n > 1)


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("step", [1, -1, 3, -3])
def test_a_loop_cut_at_gates_computes_the_same_without_comparing(n: int, step: int, rng: np.random.Generator) -> None:
    out, x, i = param(0, n), param(1, n), counter("i", n)
    at = multiply(i, step)
    edges = [less(at, index(limit)) for limit in (step * 5 + 1, step * 12)]
    loop = For(i, LOOP, [Store(out, i, edges[0].where(load(x, i), edges[1].where(load(x, i) * 2.0, -load(x, i))))])
    pieces = cut_at_gates(loop, 2)
    compare([out, x], [loop], [list(pieces)], rng)
    assert len(pieces) == 1 + sum(0 < cut < n for cut in ((6, 12) if step > 0 else (5, 13)))
    assert len(pieces) == 1 or not [n for n in nodes_in(pieces) if n.op in (o.WHERE, o.CMPLT)], "no piece compares"
    assert len(pieces) == 1 or cut_at_gates(loop, 0) == [loop]


def at_values(n: UOp, body: list[Statement], value: int) -> list[Statement]:
    """The statements where a run-time value is this number."""
    return moves.rebuild(body, {n: index(value)})


@pytest.mark.parametrize("divisor", [1, 2, 3])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("value", [0, 1, 2, 5, 30, 33])
def test_a_loop_is_cut_at_a_gate_known_at_run_time(value: int, sign: int, divisor: int, rng: np.random.Generator) \
        -> None:
    n, (out, x), i = run_time_value(33), (param(0, 40), param(1, 40)), counter("i", 33)
    edge = less(multiply(add(divide(i, divisor), multiply(divide(n, 2), -1)), sign), index(0))
    loop = For(i, LOOP, [Store(out, i, edge.where(load(x, i, edge), load(x, i) * 2.0))], n)
    pieces = cut_at_gates(loop, 8)
    assert len(pieces) == 2 and not [n for n in nodes_in(pieces) if n.op in (o.WHERE, o.CMPLT)], "no piece compares"
    compare([out, x], at_values(n, [loop], value), [at_values(n, list(pieces), value)], rng)
    assert cut_at_gates(loop, 3) == [loop]


def run_time_value(most: int) -> UOp:
    return UOp(o.PARAM, dtypes.int64, (), Measure(2, Symbol("n", 0, most))).cast(dtypes.index)


@pytest.mark.parametrize("n", RAGGED)
def test_rows_with_a_condition_of_their_own_are_two_loops(n: int, rng: np.random.Generator) -> None:
    out, x, row, i = param(0, 3 * n), param(1, n), counter("row", 3), counter("i", n)
    gate, at = less(row, index(2)), add(multiply(row, n), i)
    every_other = load(x, divide(i, 2), gate)
    loop = For(i, LOOP, [Store(out, at, gate.where(every_other + 1.0, const(0, FLOAT)))])
    branches = branches_at_gates(loop, 1)
    after: list[Statement] = [branch if condition is None else If(condition, [branch])
                              for condition, branch in branches]
    compare([out, x], [For(row, LOOP, [loop])], [[For(row, LOOP, after)]], rng)
    assert len(branches) == (2 if n > 2 else 1), "where i // 2 is always 0, all lanes load one element"
    assert n <= 2 or not [e for _, branch in branches for e in nodes_in([branch]) if e.op in (o.WHERE, o.CMPLT)]
    assert branches_at_gates(loop, 0) == [(None, loop)]


@pytest.mark.parametrize("n", RAGGED)
def test_rows_of_several_parts_have_a_branch_for_each(n: int, rng: np.random.Generator) -> None:
    """`cat` along an outer axis: a row loads from one part, and chooses nothing."""
    (out, x, y), row, i = (param(0, 7 * n), param(1, 3 * n), param(2, 4 * n)), counter("row", 7), counter("i", n)
    first, at = less(row, index(3)), add(multiply(row, n), i)
    later = less(index(2), row)
    value = first.where(load(x, at, first), load(y, add(at, index(-3 * n)), later))
    around, loop = For(row, LOOP, []), For(i, LOOP, [Store(out, at, value + 1.0)])
    branches = branches_at_parts(loop, [around], 8)
    assert len(branches) == 2 and not [e for _, branch in branches for e in nodes_in([branch])
                                       if e.op in (o.WHERE, o.CMPLT)]
    after: list[Statement] = [If(condition, [branch]) for condition, branch in branches if condition is not None]
    compare([out, x, y], [For(row, LOOP, [loop])], [[For(row, LOOP, after)]], rng)
    assert branches_at_parts(loop, [around], 0) == [(None, loop)] == branches_at_parts(loop, [], 8)
    padded = For(i, LOOP, [Store(out, at, load(x, at, first))])
    assert branches_at_parts(padded, [around], 8) == [(None, padded)], "a load that is 0 elsewhere is one masked load"


def test_many_parts_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`for i in range(800): s[i] = x[i]` is one kernel of 800 nested conditions; each walked all those inside it."""
    out, x, row, i = param(0, 300), param(1, 300), counter("row", 3), counter("i", 100)
    value = load(x, i)
    for k in range(1, 100):
        value = less(i, index(k)).where(load(x, add(i, index(k))), value)
    loop = For(i, LOOP, [Store(out, add(multiply(row, 100), i), value)])
    walked: list[int] = []

    def counted(*given: Any) -> list[UOp]:
        walked.append(len(toposort(*given)))
        return toposort(*given)

    for module in (cut_at_gates_module, loops_module):
        monkeypatch.setattr(module, "toposort", counted, raising=False)
    assert branches_at_parts(loop, [For(row, LOOP, [])], 8) == [(None, loop)]
    assert sum(walked) < 10 * len(nodes_in([loop]))


@pytest.mark.parametrize("value", [0, 1, 5, 33])
def test_what_a_loop_ends_at_is_no_condition(value: int, rng: np.random.Generator) -> None:
    n, (out, x), i = run_time_value(33), (param(0, 40), param(1, 40)), counter("i", 33)
    loop = For(i, LOOP, [Store(out, i, load(x, i, both(less(i, n), less(i, index(7)))))], n)
    after = moves.without_known_gates([loop])
    assert sum(node.op is o.CMPLT for node in nodes_in(after)) == 1
    compare([out, x], at_values(n, [loop], value), [at_values(n, after, value)], rng)


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("tile, lanes", WIDTHS)
@pytest.mark.parametrize("combine", [o.ADD, o.MAX], ids=str)
def test_a_widened_reduction_computes_the_same(n: int, tile: int, lanes: int, combine: Any,
                                               rng: np.random.Generator) -> None:
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


def test_a_sum_to_an_end_known_only_at_run_time_folds_its_lanes_once() -> None:
    _, _, loop = reduction(1000)
    loop.stop = run_time_value(1000)
    after = sum_moves.wide_reduce(loop, 4, 16)
    assert after is not None
    lanes = counter(loop.range.arg.name + "l", 16)
    assert sum(n.op is o.FOLD and lanes in n.src for n in nodes_in(after)) == 1


def test_wide_reduce_refuses_what_depends_on_itself() -> None:
    params, body, loop = reduction(16)
    total = body[0].register  # type: ignore[union-attr]
    running = For(loop.range, LOOP, [*loop.body, Accumulate(register("b", FLOAT), o.ADD, total)])
    assert sum_moves.wide_reduce(running, 2, 8) is None
    assert sum_moves.wide_reduce(For(counter("j", 4), LOOP, [loop]), 2, 8) is None


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_a_sum_of_chunks_is_the_same_sum(n: int, chunk: int, rng: np.random.Generator) -> None:
    params, body, _ = reduction(n)
    compare(params, body, [sum_moves.chunks(body, chunk)], rng)


@pytest.mark.parametrize("sizes", [(2, 3), (40, 30), (3, 5, 7), (13, 1, 17), (2, 200)])
@pytest.mark.parametrize("chunk", [2, 16, 64])
def test_nested_sums_in_chunks_are_the_same_sum(sizes: tuple[int, ...], chunk: int, rng: np.random.Generator) -> None:
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
def test_a_loop_spread_over_tasks_computes_the_same(n: int, count: int, rng: np.random.Generator) -> None:
    params, loop = elementwise(n)
    after = moves.tasks(loop, count)
    compare(params, [loop], [[after]], rng)
    number = after.range.arg.size if after.kind == TASK else 1
    assert number <= max(count, 1) or number == n


@pytest.mark.parametrize("value", [1, 2, 5, 16, 32, 33])
@pytest.mark.parametrize("count", [1, 3, 16, 50])
@pytest.mark.parametrize("ends", [False, True])
def test_a_task_has_more_rows_of_a_shorter_length(value: int, count: int, ends: bool, rng: np.random.Generator) -> None:
    """Of 50 rows, or as many as they are long; with 33 columns a task has as many as without a run-time bound."""
    n, (out, x), i, j = run_time_value(33), (param(0, 50 * 33), param(1, 50 * 33)), counter("i", 50), counter("j", 33)
    at = add(multiply(i, 33), j)
    loop = For(i, LOOP, [For(j, LOOP, [Store(out, at, load(x, at) * 2.0)], n)], n if ends else None)
    [after] = at_values(n, [tasks_of_rows(loop, count, operation(o.IDIV, index(33), n))], value)
    [usual] = at_values(n, [moves.tasks(loop, count, False)], value)
    compare([out, x], at_values(n, [loop], value), [[after]], rng)
    rows, step = value if ends else 50, -(-50 // count)
    if count > 1:
        assert isinstance(after, For) and isinstance(usual, For)
        assert bounds(after.stop)[1] == -(-rows // (step * (33 // value)))
        assert value < 33 or bounds(after.stop)[1] == bounds(usual.stop or index(usual.range.arg.size))[1]


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (3, 3), (1, 1), (4, 3), (10,)])
def test_a_short_sum_is_written_out(sizes: tuple[int, ...], rng: np.random.Generator) -> None:
    size = math.prod(sizes)
    params, body, _ = reduction(size)
    total, counters = register("acc", FLOAT), [counter(f"k{i}", n) for i, n in enumerate(sizes)]
    at = flat_index(counters)
    steps: list[Statement] = [Accumulate(total, o.ADD, load(params[1], at) * load(params[2], at))]
    after = unrolled([body[0], *loops_around(counters, steps, LOOP), body[2]], 9)
    compare(params, body, [after], rng)
    loops = [s.range for s in walk(after) if isinstance(s, For)]
    assert loops == ([] if size <= 9 else counters[:1]), "of 4 x 3 steps, the inner three are written out"


def test_what_is_stored_in_a_loop_or_ends_at_run_time_is_not_written_out() -> None:
    params, loop = elementwise(3)
    _, _, reduced = reduction(3)
    to_an_end = For(reduced.range, LOOP, reduced.body, run_time_value(3))
    for each in (loop, to_an_end):
        assert [type(s) for s in unrolled([each], 9)] == [For]


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("kind", [LOOP, TASK, TILE])
def test_nested_leaves_out_loops_of_one_iteration(n: int, kind: str, rng: np.random.Generator) -> None:
    out, x = param(0, n * 6), param(1, n * 6)
    i, j = counter("i", n), counter("j", 6)
    whole = counter("w", n * 6)
    at = flat_index([i, j]) if n > 1 else j
    before: list[Statement] = [For(whole, LOOP, [Store(out, whole, load(x, whole) * 2.0)])]
    after = nested([i, j], [Store(out, at, load(x, at) * 2.0)], kind)
    compare([out, x], before, [after], rng)
    assert [s.range for s in walk(after) if isinstance(s, For)] == ([i, j] if n > 1 else [j])


@pytest.mark.parametrize("n", [1, 3, 7])
def test_around_keeps_kinds_and_ends(n: int, rng: np.random.Generator) -> None:
    out, x = param(0, n * 6), param(1, n * 6)
    i, j = counter("i", n), counter("j", 8)
    whole = counter("w", n * 6)
    at = add(multiply(i, 6), j)
    before: list[Statement] = [For(whole, LOOP, [Store(out, whole, load(x, whole) * 2.0)])]
    after = in_loops([For(i, TASK, []), For(j, LOOP, [], index(6))], [Store(out, at, load(x, at) * 2.0)])
    compare([out, x], before, [after], rng)
    found = [(s.range, s.kind, s.stop) for s in walk(after) if isinstance(s, For)]
    assert found == [(i, TASK, None), (j, LOOP, index(6))]


@pytest.mark.parametrize("n", [1, 3, 7])
def test_loops_around_keep_those_of_one_iteration(n: int, rng: np.random.Generator) -> None:
    out, x = param(0, n * 6), param(1, n * 6)
    i, j, whole = counter("i", n), counter("j", 6), counter("w", n * 6)
    at = flat_index([i, j])
    before: list[Statement] = [For(whole, LOOP, [Store(out, whole, load(x, whole) * 2.0)])]
    after = loops_around([i, j], [Store(out, at, load(x, at) * 2.0)], TASK)
    compare([out, x], before, [after], rng)
    assert [(s.range, s.kind) for s in walk(after) if isinstance(s, For)] == [(i, TASK), (j, TASK)]


@pytest.mark.parametrize("size, piece", [(10, 5), (11, 5), (4, 5), (5, 5), (1, 1)])
def test_the_last_piece_ends_where_the_length_does(size: int, piece: int) -> None:
    number = counter("b", -(-size // piece))
    stop = piece_bound(size, piece, number)
    assert (stop is None) == (size % piece == 0)
    if stop is not None:
        left = [substitute_index(stop, {number: index(at)}, {}).arg for at in range(number.arg.size)]
        assert [min(piece, n) for n in left] == [min(piece, size - at * piece) for at in range(number.arg.size)]


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("most", [1, 2, 7, 64, 5000])
def test_loops_shared_out_to_few_tasks_compute_the_same(n: int, most: int, rng: np.random.Generator) -> None:
    out, x = param(0, n * 6), param(1, n * 6)
    loops = [counter("i", n), counter("j", 2), counter("k", 3)]
    at = add(multiply(add(multiply(current(loops[0]), 2), loops[1]), 3), loops[2])
    store: list[Statement] = [Store(out, at, load(x, at) * 2.0)]
    before = store
    for r in reversed(loops):
        before = [For(r, LOOP, before)]
    after = moves.loops_as_tasks(loops, store, most)
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
@pytest.mark.parametrize("interleaved", [True, False])
def test_spread_runs_the_rest_where_the_loop_ends_at_once(length: int, count: int, interleaved: bool) -> None:
    (out, x), loop = elementwise(5)
    n, more = UOp(o.PARAM, dtypes.int64, (), Measure(2, Symbol("n", 0, 5))), param(3, 3)
    ended = For(loop.range, loop.kind, loop.body, n)
    after = moves.spread([ended, Store(more, index(1), const(5.0))], count, interleaved)
    memory = [np.zeros(5, "float32"), np.ones(5, "float32"), length, np.zeros(3, "float32")]
    run_kernel(Kernel("k", [out, x, n, more], [Phase(after)], (0, 3)), memory)
    assert np.count_nonzero(memory[0]) == length and memory[3].tolist() == [0.0, 5.0, 0.0]


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_sum_by_groups_of_rows_is_the_same_sum(n: int, chunk: int, rows: int, rng: np.random.Generator) -> None:
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


@pytest.mark.parametrize("length", [0, 1, 7, 8, 20, 33])
@pytest.mark.parametrize("chunk", [7, 16])
def test_group_of_a_loop_with_a_run_time_bound(length: int, chunk: int) -> None:
    out, x, total, k = param(0, 1), param(1, 33), register("acc", FLOAT), counter("k", 33)
    n = UOp(o.PARAM, dtypes.int64, (), Measure(2, Symbol("n", 0, 33)))
    body: list[Statement] = [Assign(total, const(0.0)), For(k, LOOP, [Accumulate(total, o.ADD, load(x, k))], n),
                             Store(out, index(0), total + 1.0)]
    grouped = sum_moves.group(body, [], chunk)
    assert grouped is not None
    memory = [np.zeros(1, "float32"), np.ones(33, "float32"), length]
    run_kernel(Kernel("k", [out, x, n], [Phase(part) for part in grouped], (0,)), memory)
    assert memory[0] == length + 1


def two_sums(n: int, m: int, other: int = 0, needs: bool = False) -> tuple[list[UOp], list[Statement]]:
    """for i: r = 0; for k: for j: r += x; out[i] = r; q = 0; for k: for j: q += x * y; more[i] = q"""
    i, ranges = counter("i", 3), [counter(f"k{a}", size) for a, size in enumerate((n, m, n, m + other))]
    out, more, x, y = param(0, 3), param(1, 3), param(2, 3 * n * (m + other)), param(3, 3 * n * (m + other))
    body: list[Statement] = []
    for number, (k, j) in enumerate((ranges[:2], ranges[2:])):
        total, at = register(f"acc{number}", FLOAT), add(multiply(i, n * m), add(multiply(k, m), j))
        value = load(x, at) if number == 0 else load(x, at) * (load(out, i) if needs else load(y, at))
        body += [Assign(total, const(0.0)), For(k, LOOP, [For(j, LOOP, [Accumulate(total, o.ADD, value)])]),
                 Store((out, more)[number], i, total)]
    return [out, more, x, y], [For(i, TASK, body)]


@pytest.mark.parametrize("n", [1, 7, 16])
@pytest.mark.parametrize("m", [1, 5, 33])
def test_sums_over_the_same_loops_become_one_nest(n: int, m: int, rng: np.random.Generator) -> None:
    params, before = two_sums(n, m)
    after = sum_moves.sums_together(before)
    assert sum(isinstance(s, For) for s in walk(after)) == 3, "one nest of two loops in the loop of results"
    compare(params, before, [after], rng)


def test_sums_of_other_lengths_and_sums_that_need_each_other_stay_apart(rng: np.random.Generator) -> None:
    for params, before in (two_sums(7, 5, other=1), two_sums(7, 5, needs=True)):
        after = sum_moves.sums_together(before)
        assert sum(isinstance(s, For) for s in walk(after)) == 5
        compare(params, before, [after], rng)


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
def test_merged_loops_compute_the_same(a: int, b: int, rng: np.random.Generator) -> None:
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
