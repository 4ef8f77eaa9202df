"""Padding as loop bounds, and as zeros in memory: both keep the answer, and the first multiplies no zeros."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from convolutions import convolve
from loop_kernels import AMX, AVX512, Inputs, check

from glassgrad import Context, Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.gradient import gradients
from glassgrad.compiler.graph.index_algebra import add, both, bounds, index, less, multiply, substitute_index
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.reductions import join_sums
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LOOP, TILE, Accumulate, Assign, For, If, Kernel, Phase, Store, counter,
                                            load, local, register, task_loops, walk)
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.lower.missing_instructions import Instructions
from glassgrad.compiler.optimize.moves import padding_copy as zeros
from glassgrad.compiler.optimize.moves.padding_bounds import Edges
from glassgrad.compiler.optimize.product import conv_tile_plan
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.render.unroll_and_jam import jam

WINDOWS = [(m, k, stride, dilation, before, size)                    # of `size` numbers, after `before` zeros
           for m, k, stride, dilation, before, size in (
               (7, 3, 1, 1, 1, 7), (1, 3, 1, 1, 1, 1), (5, 4, 2, 1, 3, 6), (11, 5, 1, 2, 4, 11), (13, 2, 3, 3, 0, 30),
               (3, 17, 1, 1, 1, 17), (10, 3, 1, 1, 2, 8), (4, 1, 1, 1, 2, 1), (6, 3, 1, 1, 6, 3))]


def edges_of(m: UOp, k: UOp, stride: int, dilation: int, before: int, size: int) -> Edges:
    at = add(add(multiply(m, stride), multiply(k, dilation)), index(-before))
    gate = both(less(index(-1), at), less(at, index(size)))
    edges = Edges.of(gate, [m], [k]) if gate is not None and gate.op is not o.CONST else Edges([])
    assert edges is not None
    return edges


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_bounds_leave_out_the_zeros_and_nothing_else(window: tuple[int, ...]) -> None:
    sizes, (stride, dilation, before, size) = window[:2], window[2:]
    m, k = counter("m", sizes[0]), counter("k", sizes[1])
    edges = edges_of(m, k, stride, dilation, before, size)
    real = {(i, j) for i in range(sizes[0]) for j in range(sizes[1]) if 0 <= i * stride + j * dilation - before < size}
    if k not in edges.bound:
        assert len(real) == sizes[0] * sizes[1]
        return
    low, high = edges.interval(k, m)
    found = set()
    for i in range(sizes[0]):
        first, last = (bounds(substitute_index(e, {m: index(i)}, {})) for e in (low, high))
        assert first[0] == first[1] and last[0] == last[1], "bounds are decided where the position is known"
        found |= {(i, j) for j in range(first[0], last[0])}
    assert found == real
    if edges.bound[k] is None:
        return
    assert edges.share(k) == pytest.approx(len(real) / (sizes[0] * sizes[1]))
    for tile in range(1, sizes[0] + 1):
        pieces = edges.pieces(k, tile)
        assert sum(p.count for p in pieces) == -(-sizes[0] // tile)
        written = [(min(number * tile, sizes[0] - tile) + t, j)
                   for p in pieces for number in range(p.start, p.start + p.count)
                   for run in p.runs for j in range(run.low, run.high) for t in range(run.first, run.last)]
        assert set(written) == real


def test_other_gates_are_not_edges() -> None:
    m, n, k = counter("m", 4), counter("n", 4), counter("k", 4)
    flag = less(UOp(o.MUL, dtypes.index, (m, k)), index(3))
    assert Edges.of(flag, [m], [k]) is None
    assert Edges.of(less(add(add(m, n), k), index(3)), [m, n], [k]) is None
    assert Edges.of(less(m, index(3)), [m], [k]) is None
    two = both(less(add(m, k), index(3)), less(add(n, k), index(3)))
    assert two is not None and Edges.of(two, [m, n], [k]) is None


# batch, channels, out channels, image, kernel, what else
CASES: list[tuple[int, int, int, tuple[int, int], tuple[int, int], dict[str, Any]]] = [
    (2, 5, 9, (5, 7), (3, 3), dict(padding=1)),
    (2, 8, 3, (3, 2), (3, 3), dict(padding=((0, 2), (1, 0)))),
    (1, 3, 4, (7, 8), (2, 3), dict(stride=3, dilation=2, padding=2)),
    (3, 2, 17, (1, 1), (3, 3), dict(padding=((1, 1), (1, 1)))),
    (2, 3, 5, (11, 4), (3, 4), dict(padding=((0, 0), (3, 3)))),
]


def parts(values: Inputs, rng: np.random.Generator, case: Any) -> list[UOp]:
    batch, inside, outside, image, kernel, options = case
    x = values.leaf(rng.uniform(-1, 1, (batch, inside, *image)).astype("float32"))
    w = values.leaf(rng.uniform(-1, 1, (outside, inside, *kernel)).astype("float32"))
    out = convolve(x, w, **options)
    seed = values.leaf(rng.uniform(-1, 1, out.shape).astype("float32"))
    found = [g for g in gradients(out, seed, [x, w]) if g is not None]
    return [join_sums(rewrite([part], ALGEBRA))[0] for part in (out, *found)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_stored_zeros_keep_the_answer(case: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """What the recipe that stops at the edges does not take, another one takes from a copy."""
    monkeypatch.setitem(cpu.LIMITS, "direct", replace(cpu.LIMITS["direct"], least_work=1 << 40))
    monkeypatch.setitem(cpu.LIMITS, "contract", replace(cpu.LIMITS["contract"], least_work=1, least_k=1))
    monkeypatch.setattr(zeros, "REREAD", 0)
    copied: list[str] = []

    def compiled(ast: UOp) -> Kernel:
        kernel = optimize(lower(ast), AVX512)
        copied.extend({s.memory.arg.name for p in kernel.phases for s in walk(p.body)
                       if isinstance(s, Store) and s.memory.op is o.LOCAL and s.memory.arg.name.startswith("padded")})
        return kernel

    values = Inputs()
    for part in parts(values, rng, case):
        check([part], values, compiled, str(case))
    assert copied, "no copy was made"


@pytest.mark.parametrize("target, recipe", [(AMX, "unit"), (AVX512, "direct")], ids=["amx", "avx512"])
@pytest.mark.parametrize("padding", [0, 1, ((0, 3), (2, 1))], ids=str)
def test_narrow_images_are_padded_as_they_are_or_widened_once(target: Target, recipe: str, padding: Any,
                                                              rng: np.random.Generator) -> None:
    values = Inputs()
    leaves = [values.leaf(rng.integers(-3, 4, shape).astype("float32"), dtypes.bfloat16)
              for shape in ((2, 16, 9, 13), (40, 16, 3, 3))]
    x, w = (leaf.cast(dtypes.float32) for leaf in leaves)
    kernels: list[Kernel] = []

    def compiled(ast: UOp) -> Kernel:
        kernels.append(optimize(lower(ast), target))
        return kernels[-1]

    check([convolve(x, w, padding=padding)], values, compiled)
    assert [move.split("(")[0] for kernel in kernels for move in kernel.moves] == [recipe]
    copies = {s.memory for p in kernels[0].phases for s in walk(p.body) if isinstance(s, Store)
              and s.memory.op is o.LOCAL and s.memory.arg.name.startswith("padded")}
    types = {dtypes.bfloat16 if recipe == "unit" else dtypes.float32}
    assert {m.dtype for m in copies} == (types if padding or recipe == "direct" else set())


TILES = ["1_1_3", "2_1_3", "4_1_5", "3_2_4", "1_5_1", "4_1_1", "1_1_11"]


@pytest.mark.parametrize("rows", TILES)
@pytest.mark.parametrize("taps", [3, 5])
def test_every_tile_at_every_edge(rows: str, taps: int, monkeypatch: pytest.MonkeyPatch, torch: Any,
                                  rng: np.random.Generator) -> None:
    """On this machine: tiles along one loop and along two, inside, at one edge, over both."""
    tile = [int(t) for t in rows.split("_")]
    monkeypatch.setattr(cpu, "LEAST_USE", 0.0)
    monkeypatch.setattr(cpu, "MOST_UNROLLED", 1 << 30)
    monkeypatch.setattr(conv_tile_plan, "tilings", lambda sizes, most, cut=2: iter([tile] if len(sizes) == 3 else []))
    batch = 4 + TILES.index(rows)                     # kernels of their own, in every cache
    g = rng.standard_normal((batch, 20, 12 - taps, 12 - taps)).astype("float32")
    w = rng.standard_normal((20, 32, taps, taps)).astype("float32")
    x = Tensor.zeros(batch, 32, 11, 11).contiguous().realize()
    with Context(CACHE=0):
        found = (x.conv2d(Tensor(w)) * Tensor(g)).sum().gradient(x)[0].numpy()
    wanted = torch.nn.functional.conv_transpose2d(torch.tensor(g, dtype=torch.float64), torch.tensor(
        w, dtype=torch.float64)).numpy()
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_a_branch_on_an_inner_tile_binds_every_range_to_its_own_value() -> None:
    a, b, k = counter("a", 2), counter("b", 3), counter("k", 8)
    memory = local("x", dtypes.float32, 1000)
    total = register("acc", dtypes.float32, (a, b))
    add_one = Accumulate(total, o.ADD, load(memory, add(add(multiply(a, 100), multiply(b, 10)), k)))
    phase = Phase([For(a, TILE, [For(b, TILE, [Assign(total, const(0.0, dtypes.float32)), For(k, LOOP, [add_one]),
                                               For(k, LOOP, [If(less(index(0), b), [add_one])])])])])
    text = jam(phase, Instructions())
    for s in walk(text.body):
        if isinstance(s, Accumulate):
            at_a, at_b = (r.arg for r in s.register.src)
            assert s.value.src[1] is add(index(100 * at_a + 10 * at_b), k)


def test_a_copy_with_zeros_is_a_task_for_thousands_of_elements() -> None:
    x, w = Tensor.empty(8, 64, 56, 56).contiguous(), Tensor.empty(64, 8, 3, 3).contiguous()
    *_, item = x.conv2d(w, padding=1, groups=8).schedule()
    copy, *_ = optimize(lower(item.ast), AVX512).phases
    loops, _ = task_loops(copy.body)
    tasks, elements = math.prod(loop.range.arg.size for loop in loops), 8 * 64 * 58 * 58
    assert AVX512.workers <= tasks <= 2 * elements // zeros.TASK_ELEMENTS
