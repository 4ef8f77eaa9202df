"""Rows that stay in the registers of a group's threads: softmax and norms read them once, and compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import HOPPER, Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel, expressions, walk
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.plain import short_rows
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets.target import GPU, Target
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch

SMALL = replace(GPU, few_tasks=1)                 # a GPU that one group keeps busy: few rows are enough
LARGE = replace(HOPPER, most_threads=1024)


def rmsnorm(x: Tensor) -> Tensor:
    return x * ((x * x).mean(-1, keepdim=True) + 1e-6).rsqrt()


def norm_gradient(x: Tensor) -> Tensor:
    return x.layernorm().square().sum().gradient(x)[0]


ROWS = {"softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1),
        "layernorm": lambda x: x.layernorm(), "rmsnorm": rmsnorm, "its gradient": norm_gradient}


def compiled(ast: UOp, target: Target, held: list[str]) -> Kernel:
    kernel = optimize(lower(ast), target)
    held += [move for move in kernel.moves if move.startswith("hold") and "held=yes" in move]
    return kernel


def kernel_of(result: Tensor, target: Target = LARGE) -> Kernel:
    return optimize(lower(result.schedule()[-1].ast), target)


def zeros(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor.zeros(*shape, dtype=dtype).contiguous().realize()


def loads(kernel: Kernel) -> list[UOp]:
    return [n for p in kernel.phases for s in walk(p.body) for n in toposort(expressions(s)) if n.op is o.LOAD]


@pytest.mark.parametrize("size", [64, 67, 257, 1000, 1031])
@pytest.mark.parametrize("name", ROWS)
def test_held_rows_compute_the_same(name: str, size: int, rng: np.random.Generator,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_rows, "LONGEST", 63)
    for dtype in ("float32", "bfloat16"):
        values, held = Inputs(), list[str]()
        x = Tensor(values.leaf(rng.standard_normal((3, size)).astype("float32")))
        sinks = rewrite(written_out([ROWS[name](x.cast(dtype) * 2).uop]), ALGEBRA)
        check(sinks, values, lambda ast: compiled(ast, SMALL, held), f"{name} of {size} {dtype}")  # noqa: B023
        assert held, "nothing is held"


def test_long_rows_compute_the_same(rng: np.random.Generator) -> None:
    kernels = list[Kernel]()

    def compiled_long(ast: UOp) -> Kernel:
        kernels.append(optimize(lower(ast), replace(SMALL, most_threads=128)))
        return kernels[-1]
    for name in ("softmax", "layernorm"):
        values = Inputs()
        x = Tensor(values.leaf(rng.standard_normal((2, 5001)).astype("float32")))
        check(rewrite(written_out([ROWS[name](x).uop]), ALGEBRA), values, compiled_long, name)
        assert "held=no" in kernels[-1].moves[0]


@pytest.mark.parametrize("view", ["transposed", "flipped", "padded"])
def test_rows_of_views_compute_the_same(view: str, rng: np.random.Generator) -> None:
    values = Inputs()
    x = Tensor(values.leaf(rng.standard_normal((130, 130)).astype("float32")))
    row = {"transposed": x.T, "flipped": x.flip(1), "padded": x.pad(((0, 0), (3, 5)))}[view]
    check(rewrite(written_out([row.softmax(-1).uop]), ALGEBRA), values, lambda ast: compiled(ast, SMALL, []), view)


@pytest.mark.parametrize("name", ["softmax", "layernorm", "rmsnorm"])
def test_each_element_is_loaded_once(name: str) -> None:
    kernel = kernel_of(ROWS[name](zeros(2000, 4096)))
    assert len(loads(kernel)) == 1 and kernel.moves[0] == f"hold(loop={'k0' if name == 'rmsnorm' else 'k2'}, " \
        f"tile=4, lanes={128 if name == 'softmax' else 256}, held=yes)"
    source, pieces = make_source(kernel, LARGE, "cuda"), 8 if name == "softmax" else 4
    assert source.count("load_f32_4(data1") == source.count("store_f32_4(data0") == pieces and "scratch" not in source


def test_threads_follow_from_the_length_of_a_row() -> None:
    def threads(rows: int, size: int, target: Target = LARGE) -> int:
        return gpu_launch(kernel_of(rmsnorm(zeros(rows, size)), target)).phases[-1][2]
    assert [threads(2000, n) for n in (768, 4096, 5000, 8192, 16384)] == [64, 256, 512, 512, 512]
    heavy = [gpu_launch(kernel_of(zeros(2000, n).softmax(-1), LARGE)).phases[-1][2] for n in (768, 4096, 8192)]
    assert heavy == [64, 128, 256], "more arithmetic: fewer threads, which wait for each other less"
    assert threads(2000, 16384, HOPPER) == 256, "a group of another GPU may have fewer threads"
    assert threads(300, 4096) == 256 and threads(264, 32768) == 1024


def test_rows_that_do_not_fit_are_read_again() -> None:
    long = kernel_of(rmsnorm(zeros(300, 50304)))
    assert long.moves[0] == "hold(loop=k0, tile=4, lanes=1024, held=no)" and len(loads(long)) == 2
    assert "load_f32_4_if(" in make_source(long, LARGE, "cuda")
    small = kernel_of(rmsnorm(zeros(300, 50304, dtype="bfloat16")))
    assert "lanes=512, held=no" in small.moves[0], "two such rows are in the cache for each processor"
    assert "hold" not in " ".join(kernel_of(rmsnorm(zeros(300, 1_000_000))).moves), "long sums are added in chunks"
    assert "hold" not in " ".join(kernel_of(rmsnorm(zeros(300, 16384)), HOPPER).moves)
    assert "hold" not in " ".join(kernel_of(zeros(300, 4096).sum(1)).moves), "a row that is read once"


def test_words_of_64_bits_take_two_registers() -> None:
    kernel = kernel_of(rmsnorm(zeros(2000, 4096, dtype="float64")))
    assert dtypes.float64 in {n.dtype for n in loads(kernel)} and "lanes=256" in kernel.moves[0]
