"""Tiles of products for ARM64, by counting the instructions of their innermost loops. Reference: the tile's own shape;
the interpreter for their sums.

LLVM compiles for AArch64 on any machine, so no machine code is executed here: `./dev arm64` does that, and an ARM64
processor.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import Inputs, check, compiler, matmul

from glassgrad import Tensor, dtypes
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import make_source

binding = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed")
TRIPLE = "aarch64-unknown-linux-gnu"
NEOVERSE_N1 = Target("aarch64", 16, 32, frozenset({"neon", "lse", "dotprod", "fullfp16"}), 64 << 10, 1 << 20)
BRANCH_BACK = re.compile(r"\t(?:b\.\w+|cbn?z|tbn?z)\t.*?(\.L\w+)$")


def assembly(source: str) -> list[str]:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(TRIPLE).create_target_machine(cpu="neoverse-n1", opt=1, reloc="pic",
                                                                       codemodel="small")
    module = binding.parse_assembly(source)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    return str(machine.emit_assembly(module)).splitlines()


def innermost_loops(lines: list[str]) -> list[list[str]]:
    """The instructions of each loop that has no label, and so no loop, inside."""
    labels: dict[str, int] = {}
    loops = []
    for number, line in enumerate(lines):
        if line.startswith(".L"):
            labels[line.partition(":")[0]] = number
        back = BRANCH_BACK.match(line)
        if back and back[1] in labels:
            body = lines[labels[back[1]] + 1:number + 1]
            if not any(inside.startswith(".L") for inside in body):
                loops.append([inside.strip() for inside in body if inside.startswith("\t") and inside[1] not in "./"])
    return loops


def filled(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor.full(shape, 0.5, dtype=dtype, device="CPU").contiguous().realize()


def square(n: int, dtype: DType = dtypes.float32) -> Tensor:
    return filled(n, n, dtype=dtype) @ filled(n, n, dtype=dtype)


PRODUCTS = {
    "512": (lambda: square(512), "4s"), "64": (lambda: square(64), "4s"), "37": (lambda: square(37), "4s"),
    "transposed left": (lambda: filled(256, 256).T @ filled(256, 256), "4s"),
    "transposed right": (lambda: filled(256, 256) @ filled(256, 256).T, "4s"),
    "float64": (lambda: square(128, dtypes.float64), "2d"), "float16": (lambda: square(128, dtypes.float16), "4s"),
    "bfloat16": (lambda: square(128, dtypes.bfloat16), "4s"),
    "convolution": (lambda: filled(4, 16, 28, 28).conv2d(filled(32, 16, 3, 3)), "4s"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_step_of_a_product_is_one_multiply_add_for_each_vector_of_its_tile(name: str) -> None:
    make, lanes = PRODUCTS[name]
    kernel = optimize(lower(make().schedule()[-1].ast), NEOVERSE_N1)
    tile = next(move for move in kernel.moves if move.startswith(("contract(", "direct(")))
    rows, vectors, steps = (int((re.search(rf"{field}=(\d+)", tile) or "11")[1])
                            for field in ("rows", "vectors", "unroll"))
    loops = innermost_loops(assembly(make_source(kernel, NEOVERSE_N1, "llvm")))
    loop = max(loops, key=lambda body: sum(line.startswith("fmla\t") for line in body))
    counts = Counter(line.split("\t")[0] for line in loop)
    products = [line for line in loop if line.startswith("fmla\t")]
    assert len(products) == rows * vectors * steps, tile
    assert all(re.match(rf"fmla\tv\d+\.{lanes}, ", line) for line in products), "whole vectors are multiplied"
    assert len({line.split(",")[0] for line in products}) == rows * vectors, "each sum has a register of its own"
    assert not counts.keys() & {"str", "stp", "st1", "dup", "bl"}, f"nothing is stored, spilled or called: {counts}"
    loads = sum(count for word, count in counts.items() if word.startswith("ld"))
    if tile.startswith("direct("):
        assert loads <= rows + vectors and counts.total() <= 2.2 * len(products), counts
    else:
        assert not counts.keys() & {"ld1r", "ld1"}, f"loads that copy to all lanes take a multiplier's time: {counts}"
        assert steps == (2 if lanes == "2d" else 4), "as many steps of K as a vector has lanes"
        assert loads <= steps * vectors + rows and counts.total() <= 1.5 * len(products), counts


def test_a_packed_panel_of_the_left_factor_is_prefetched_into_the_first_level_cache() -> None:
    """Into the second level alone, a Neoverse N1 is a fifth slower than without prefetches."""
    kernel = optimize(lower((filled(256, 256).T @ filled(256, 256)).schedule()[-1].ast), NEOVERSE_N1)
    text = "\n".join(assembly(make_source(kernel, NEOVERSE_N1, "llvm")))
    assert "pldl1keep" in text and "pldl2keep" not in text


@pytest.mark.parametrize("k", [7, 8, 31, 130])
@pytest.mark.parametrize("views", ["nn", "tn", "nt"])
def test_unrolled_steps_of_k_and_those_left_over_are_the_same_sum(
        k: int, views: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cpu.LIMITS, "contract", replace(cpu.LIMITS["contract"], long_k=50))    # 130: in blocks of 44
    values, log = Inputs(), list[str]()
    shapes = [size[::-1] if view == "t" else size for size, view in zip(((37, k), (k, 29)), views)]
    leaves = [values.leaf(rng.uniform(-1, 1, shape).astype("float32")) for shape in shapes]
    factors = [x.permute((1, 0)) if view == "t" else x for x, view in zip(leaves, views)]
    check([matmul(*factors)], values, compiler(NEOVERSE_N1, log))
    assert [("unroll=4" in move, "k_block=44" in move) for move in log] == [(k >= 8, k == 130)]


def test_a_loop_over_elements_and_a_sum_work_on_whole_vectors() -> None:
    for value, word in (((filled(4096) * 2 + filled(4096)), "fadd"), (filled(1 << 16).sum(), "fadd")):
        kernel = optimize(lower(value.schedule()[-1].ast), NEOVERSE_N1)
        [loop] = innermost_loops(assembly(make_source(kernel, NEOVERSE_N1, "llvm")))
        vectors = [line for line in loop if line.startswith(word + "\t")]
        assert len(vectors) >= 4 and all(re.match(rf"{word}\tv\d+\.4s, ", line) for line in vectors)


def test_few_rows_are_read_together_where_a_set_of_the_first_level_cache_has_four_lines() -> None:
    kernel = optimize(lower(filled(4096, 4096).sum(1).schedule()[-1].ast), NEOVERSE_N1)
    assert "rows(count=2)" in kernel.moves


@pytest.mark.parametrize("shape", [(4099, 1009), (1000, 4099), (4096, 1000)])
def test_a_vector_times_a_matrix_goes_along_rows_whatever_their_length(shape: tuple[int, int]) -> None:
    """Its factor is one lane of a vector for whole vectors, and a scalar for the last columns."""
    kernel = optimize(lower((filled(shape[0]) @ filled(*shape)).schedule()[-1].ast), NEOVERSE_N1)
    assert [move.partition("(")[0] for move in kernel.moves][:3] == ["group", "lanes", "slices"]
    assert assembly(make_source(kernel, NEOVERSE_N1, "llvm"))
