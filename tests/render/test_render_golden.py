"""The text of a few canonical kernels, kept so that a change of the renderers shows its effect; and other processors.

    python tests/render/test_render_golden.py --regenerate     writes tests/render/golden/ anew
    python tests/render/test_render_golden.py --speed          measures the matrix-multiplication tile on this machine
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from render_kernels import BOOL, F32, HOST, at, matmul, param, prepare

from glassgrad.compiler.graph import index_algebra as ix, ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, Kernel, Phase, Store,
                                            counter, fold, load, register)
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.runtime.cpu.elf_loader import ElfObject

GOLDEN = Path(__file__).parent / "golden"
AVX512 = Target("x86_64", 64, 32, frozenset({"sse2", "sse4.1", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw",
                                             "avx512vl", "avx512dq"}))
AVX2 = Target("x86_64", 32, 16, frozenset({"sse2", "sse4.1", "avx", "avx2", "fma", "f16c"}))
SSE2 = Target("x86_64", 16, 16, frozenset({"sse", "sse2"}))
NEON = Target("aarch64", 16, 32, frozenset({"neon"}))


def elementwise() -> Kernel:
    """y = max(2x, 0) + 1 over 100 elements: six vectors and a tail of four."""
    x, y, i, lane, tail = param(0, F32, 100), param(1, F32, 100), counter("i", 6), counter("l", 16), counter("t", 4)

    def one(index: UOp) -> Store:
        return Store(y, index, (load(x, index) * 2.0).maximum(0.0) + 1.0)
    return Kernel("elementwise", [x, y], [Phase([
        For(i, LOOP, [For(lane, LANE, [one(at((i, 16), lane))])]), For(tail, LANE, [one(at(tail, 96))])])], (1,))


def row_sum() -> Kernel:
    """The sum of each row of 64 numbers, in two vectors of eight, folded at the end; a row is a task."""
    x, y = param(0, F32, 10, 64), param(1, F32, 10)
    r, k, t, lane = counter("r", 10), counter("k", 4), counter("t", 2), counter("l", 8)
    acc = register("acc", F32, (t, lane))
    return Kernel("row_sum", [x, y], [Phase([For(r, TASK, [
        For(t, TILE, [For(lane, LANE, [Assign(acc, const(0.0)), For(k, LOOP, [
            Accumulate(acc, o.ADD, load(x, at((r, 64), (k, 16), (t, 8), lane)))])])]),
        Store(y, r, fold(acc, o.ADD, (t, lane)))])])], (1,))


def shifted() -> Kernel:
    """Shift by three, zeros outside, in vectors that end past the array: gates become masks."""
    x, y, i, lane = param(0, F32, 20), param(1, F32, 45), counter("i", 6), counter("l", 8)
    place = at((i, 8), lane)
    inside = ix.both(ix.less(ix.index(2), place), ix.less(place, ix.index(23)))
    return Kernel("shifted", [x, y], [Phase([For(i, LOOP, [For(lane, LANE, [
        Store(y, place, load(x, at(place, -3), inside), None, ix.less(place, ix.index(45)))])])])], (1,))


def casts() -> Kernel:
    """bfloat16 doubled, a mask applied, and rounded again."""
    x, m, y = param(0, dtypes.bfloat16, 64), param(1, BOOL, 64), param(2, dtypes.bfloat16, 64)
    i, lane = counter("i", 4), counter("l", 16)
    place = at((i, 16), lane)
    value = load(m, place).where(load(x, place).cast(F32) * 2.0, const(0.0)).cast(dtypes.bfloat16)
    return Kernel("casts", [x, m, y], [Phase([For(i, LOOP, [For(lane, LANE, [Store(y, place, value)])])])], (2,))


KERNELS = {"elementwise": elementwise, "row_sum": row_sum, "shifted": shifted, "casts": casts,
           "matmul": lambda: matmul(8, 32, 100, 4, 2, 16)}
TEXTS = {"ll": "llvm", "c": "c"}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", KERNELS)
def test_text_is_as_it_was(name, kind):
    kept = (GOLDEN / f"{name}.{kind}").read_text()
    fix = "if this change is meant: python tests/render/test_render_golden.py --regenerate"
    assert make_source(KERNELS[name](), AVX512, TEXTS[kind]) == kept, fix


@pytest.mark.parametrize("target,triple,cpu", [(NEON, "aarch64-unknown-linux-gnu", "generic"),
                                               (SSE2, "x86_64-unknown-linux-gnu", "x86-64"),
                                               (AVX2, "x86_64-unknown-linux-gnu", "haswell"),
                                               (AVX512, "x86_64-unknown-linux-gnu", "skylake-avx512")],
                         ids=["neon", "sse2", "avx2", "avx512"])
def test_other_processors_need_no_library(target, triple, cpu):
    """Everything that may be missing somewhere, compiled for every kind of processor: nothing is left undefined."""
    binding = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=1, reloc="pic")
    floats = [F32, dtypes.float64, dtypes.float16, dtypes.bfloat16, *dtypes.fp8s]
    every = [BOOL, dtypes.int8, dtypes.uint8, dtypes.int64, dtypes.uint64, *floats]
    kernels = [make() for make in KERNELS.values()]
    for lanes in (1, 7, 16):
        lane, bits = counter("l", lanes), param(0, dtypes.int64, lanes)
        values = [(load(param(1 + n, d, lanes), lane), d) for n, d in enumerate(every)]
        body = [Store(param(99, to, 99), at(lane, lanes), x.cast(to)) for x, d in values for to in every if d is not to]
        body += [Store(param(98, d, 99), lane, x.trunc().sqrt().maximum(x.recip()).mulacc(x, x))
                 for x, d in values if d.bits >= 32 and d.is_float]
        body += [Store(param(97, d, 99), lane, (x // x) + (x % x) + (x << x)) for x, d in values if d.is_int]
        spread = load(bits, lane)
        body += [Store(param(96, d, 99), spread, load(param(1 + n, d, lanes), spread, spread < 3), None, spread < 3)
                 for n, d in enumerate(every)]
        kernels.append(Kernel(f"all{lanes}", [], [Phase([For(lane, LANE, body)])]))
    for kernel in kernels:
        module = binding.parse_assembly(make_source(kernel, target, "llvm"))
        module.triple = triple
        module.verify()
        assert ElfObject(machine.emit_object(module)).undefined() == [], kernel.name


def speed() -> None:
    """The register tile on packed panels that stay in the caches: one core's rate."""
    for rows, depth in ((56, 1024), (224, 1024), (112, 384)):
        kernel = matmul(rows, 256, depth, 14, 2, 16)
        rng = np.random.default_rng(0)
        a, b = rng.random((rows * depth), np.float32), rng.random((256 * depth), np.float32)
        c = np.zeros((rows, 256), np.float32)
        for how in TEXTS.values():
            start = time.perf_counter()
            make_source(kernel, HOST, how)
            rendered = time.perf_counter() - start
            start = time.perf_counter()
            launch = prepare(kernel, [a, b, c], how)
            compiled = time.perf_counter() - start - rendered
            times = []
            for _ in range(30):
                start = time.perf_counter()
                launch()
                times.append(time.perf_counter() - start)
            print(f"{rows:4} x 256 x {depth:5}  {how:4}  {2 * rows * 256 * depth / min(times) / 1e9:6.1f} GFLOPS  "
                  f"render {rendered * 1e3:.1f} ms, compile {compiled * 1e3:.1f} ms")


if __name__ == "__main__":
    if "--regenerate" in sys.argv:
        GOLDEN.mkdir(exist_ok=True)
        for name, make in KERNELS.items():
            for kind, language in TEXTS.items():
                (GOLDEN / f"{name}.{kind}").write_text(make_source(make(), AVX512, language))
    if "--speed" in sys.argv:
        speed()
