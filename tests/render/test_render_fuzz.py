"""Random loop trees: what the renderers make of them, checked against the kernel interpreter. All integers, so
exactly."""

from __future__ import annotations

import random

import numpy as np
import pytest
from render_kernels import needs_wasmtime, param, run

from glassgrad.compiler.check import loop_analysis as loop_facts
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, If, Kernel, Phase, Statement,
                                            Store, counter, fold, load, local, ranges_of, register, walk)
from glassgrad.compiler.lower.printing import show

SIZE = 1024           # elements of every memory
BLOCK = 64            # each wide iteration owns one element of every block of this many
I32 = dtypes.int32
COMBINES = (o.ADD, o.MUL, o.MAX, o.MIN)


class Maker:
    """Writes one random phase. Wide iterations touch only elements of their own, so any order of them is right."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.x, self.y = param(0, I32, SIZE), param(1, I32, SIZE)
        self.memories = [self.y, local("scratch", I32, SIZE)]
        self.names = 0
        self.loops: list[UOp] = []               # open counters of LOOPs
        self.wide: list[tuple[UOp, str]] = []    # open TILEs and LANEs
        self.values: list[UOp] = []              # registers that have a value here

    def fresh(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def own(self) -> UOp:
        """An element that belongs to this wide iteration alone, in a block that loops choose."""
        place, stride = ix.index(0), 1
        for range_, _ in self.wide:
            place = ix.add(place, ix.multiply(range_, stride))
            stride *= range_.arg.size
        block = ix.modulo(self.index(1, loops_only=True), SIZE // BLOCK)
        return ix.add(place, ix.multiply(block, BLOCK))

    def index(self, depth: int, loops_only: bool = False) -> UOp:
        r = self.random
        ranges = self.loops + ([] if loops_only else [w for w, _ in self.wide])
        if depth == 0 or not ranges:
            return r.choice([ix.index(r.randrange(7)), *ranges])
        x, y = self.index(depth - 1, loops_only), self.index(depth - 1, loops_only)
        return r.choice([lambda: ix.add(x, y), lambda: ix.multiply(x, r.randrange(1, 40)),
                         lambda: ix.divide(x, r.randrange(2, 6)), lambda: ix.modulo(x, r.randrange(2, 9)),
                         lambda: ix.add(x, ix.index(r.randrange(-5, 9)))])()

    def gate(self, loops_only: bool = False) -> UOp:
        x = self.index(2, loops_only)
        test = ix.less(x, ix.index(self.random.randrange(0, 30)))
        return load(self.x, ix.index(self.random.randrange(SIZE))) < 0 if test.op is o.CONST else test

    def value(self, depth: int) -> UOp:
        r = self.random
        kind = r.randrange(5 if depth == 0 else 9)
        if kind == 0:
            return const(r.randrange(-9, 9), I32)
        if kind == 1:
            return self.index(2).cast(I32)
        if kind == 2:
            gate = None if r.random() < 0.5 else self.gate()
            return load(self.x, ix.modulo(self.index(2), SIZE), gate)
        if kind == 3:
            return load(r.choice(self.memories), self.own(), None if r.random() < 0.7 else self.gate())
        if kind == 4:
            open_ = {w for w, _ in self.wide}
            ready = [v for v in self.values if ranges_of(v) <= open_]
            return r.choice(ready) if ready else const(3, I32)
        if kind == 5:
            return UOp(o.WHERE, I32, (self.gate(), self.value(depth - 1), self.value(depth - 1)))
        op = r.choice([o.ADD, o.SUB, o.MUL, o.XOR, o.MAX, o.MIN])
        return UOp(op, I32, (self.value(depth - 1), self.value(depth - 1)))

    def registers(self) -> list[UOp]:
        open_ = {w for w, _ in self.wide}
        return [v for v in self.values if v.op is o.REGISTER and ranges_of(v) <= open_]

    def statement(self, depth: int, out: list[Statement]) -> None:
        r = self.random
        kind = r.randrange(4 if depth == 0 else 8)
        wide = {w for w, _ in self.wide}
        if kind == 0:
            full = [v for v in self.registers() if ranges_of(v) == wide]      # as wide as the value may be
            if full:
                out.append(Assign(r.choice(full), self.value(2)))
        elif kind == 1:
            value = self.value(2)
            ready = [v for v in self.registers() if v not in value.toposort()]     # iterations are independent
            if ready:
                out.append(Accumulate(r.choice(ready), r.choice(COMBINES), value))
        elif kind in (2, 3):
            gate = None if r.random() < 0.5 else self.gate()
            combine = r.choice([None, None, o.ADD, o.MAX])
            out.append(Store(r.choice(self.memories), self.own(), self.value(2), combine, gate))
        elif kind == 4:
            condition, inner = self.gate(loops_only=True), []
            self.body(depth - 1, inner)
            out.append(If(condition, inner))
        elif kind == 5:
            self.loop(depth, out)
        else:
            self.spread(depth, out)

    def loop(self, depth: int, out: list[Statement]) -> None:
        range_ = counter(self.fresh("i"), self.random.choice([1, 2, 3, 5]))
        stop = None if self.random.random() < 0.7 else ix.add(self.index(1, loops_only=True), ix.index(-1))
        self.loops.append(range_)
        inner: list[Statement] = []
        self.body(depth - 1, inner)
        self.loops.remove(range_)
        out.append(For(range_, LOOP, inner, stop))

    def spread(self, depth: int, out: list[Statement]) -> None:
        used = 1
        for w, _ in self.wide:
            used *= w.arg.size
        kind = LANE if self.random.random() < 0.5 and all(k == TILE for _, k in self.wide) else TILE
        size = self.random.choice([1, 2, 3, 4] if kind == TILE else [2, 4, 5, 8])
        if used * size > BLOCK:
            return
        range_ = counter(self.fresh("t" if kind == TILE else "l"), size)
        self.wide.append((range_, kind))
        held = register(self.fresh("r"), I32, [w for w, _ in self.wide])
        inner: list[Statement] = [Assign(held, self.value(1))]
        before = list(self.values)
        self.values.append(held)
        self.body(depth - 1, inner)
        self.wide.pop()
        self.values = [*before, fold(held, self.random.choice(COMBINES), [range_])]
        out.append(For(range_, kind, inner))

    def body(self, depth: int, out: list[Statement]) -> None:
        before = list(self.values)
        for _ in range(self.random.randrange(2, 5)):
            self.statement(depth, out)
        self.values = before

    def kernel(self) -> Kernel:
        statements: list[Statement] = []
        fill = counter("fill", SIZE)
        statements.append(For(fill, LOOP, [Store(self.memories[1], fill, fill.cast(I32))]))
        for _ in range(2):
            held = register(self.fresh("r"), I32)
            statements.append(Assign(held, self.value(1)))
            self.values.append(held)
        for _ in range(4):
            self.statement(3, statements)
        for place, held in enumerate(v for v in self.values if not ranges_of(v)):
            statements.append(Store(self.y, ix.index(SIZE - 1 - place), held))
        return Kernel("fuzz", [self.x, self.y], [Phase(statements)], (1,))


@pytest.mark.parametrize("how,seeds", [("llvm", range(0, 25)), ("llvm", range(25, 50)), ("c", range(1000, 1010)),
                                       pytest.param("wasm", range(0, 20), marks=needs_wasmtime)])
def test_random_loop_trees(how, seeds):
    data = np.random.default_rng(0).integers(-1000, 1000, SIZE).astype(np.int32)
    for seed in seeds:
        kernel = Maker(seed).kernel()
        expected, found = np.zeros(SIZE, np.int32), np.zeros(SIZE, np.int32)
        run_kernel(kernel, [data.copy(), expected])
        run(kernel, [data.copy(), found], how)
        wrong = np.flatnonzero(found != expected)
        assert not len(wrong), f"seed {seed}: elements {wrong[:5]}\n{show(kernel)}"


def test_the_interpreter_s_loops_give_the_same_as_axes_and_one_by_one(monkeypatch, seeds=range(2000, 2040)):
    """A LOOP that only accumulates and stores may run as an axis (loop_facts.is_axis): to the same result."""
    data = np.random.default_rng(0).integers(-1000, 1000, SIZE).astype(np.int32)
    is_axis, axes = loop_facts.is_axis, []
    for seed in seeds:
        kernel = Maker(seed).kernel()
        expected, found = np.zeros(SIZE, np.int32), np.zeros(SIZE, np.int32)
        monkeypatch.setattr(loop_facts, "is_axis", {kernel.phases[0].body[0]: True}.get)      # which is long, and fills
        run_kernel(kernel, [data.copy(), expected])
        monkeypatch.setattr(loop_facts, "is_axis", is_axis)
        run_kernel(kernel, [data.copy(), found])
        wrong = np.flatnonzero(found != expected)
        assert not len(wrong), f"seed {seed}: elements {wrong[:5]}\n{show(kernel)}"
        axes += [s for s in walk(kernel.phases[0].body[1:]) if isinstance(s, For) and s.kind == LOOP and is_axis(s)]
    for kind in (Accumulate, Store):
        assert any(isinstance(s, kind) for loop in axes for s in walk(loop.body)), "some loops did run as axes"
