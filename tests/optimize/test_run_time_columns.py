"""Products with a run-time number of columns, or of rows and terms: one loop nest of register tiles for all numbers,
right and in bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from changing_programs import data, general_graphs
from loop_kernels import AVX2, AVX512, NEON, SSE

from glassgrad import Tensor
from glassgrad.compiler.check.loop_interpreter import run_kernel
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import memory_size, replaced
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.pipeline import kernel_of
from glassgrad.compiler.render.launch_info import launch_info

pytestmark = [pytest.mark.usefixtures("fresh_schedules"), pytest.mark.only_on("CPU", reason="it names its targets")]

# the shapes of both factors for a size, and what is computed of them
PRODUCTS: dict[str, tuple[Callable[[int], list[tuple[int, ...]]], Callable[..., Tensor]]] = {
    "columns": (lambda n: [(30, 24), (24, n)], lambda x, y: x @ y),
    "a few rows": (lambda n: [(3, 40), (40, n)], lambda x, y: x @ y),
    "columns and rows": (lambda n: [(2 * n - 1, 24), (24, n)], lambda x, y: x @ y),
    "scores": (lambda n: [(2, n, 16), (2, n, 16)], lambda x, y: x @ y.transpose(-2, -1) * 0.3),
    "columns that are computed": (lambda n: [(24, 20), (24, n)], lambda x, y: (x.T.relu() @ (y * 2)).relu() + 1),
    "computed columns and rows": (lambda n: [(n, 24), (24, n + 3)], lambda x, y: x.relu() @ (y * 2)),
    "a few columns and rows": (lambda n: [(n, 24), (24, 40 - n)], lambda x, y: x @ y),
    "a long epilogue": (lambda n: [(n, 24), (24, n + 3)], lambda x, y: (x @ y).gelu(approximate="none").tanh()),
    "rows and terms": (lambda n: [(n, n), (n, 20)], lambda x, y: x @ y),
    "transposed rows and terms": (lambda n: [(2, n, n), (2, n, 40)], lambda x, y: (x * 2).transpose(1, 2) @ y),
    "a square": (lambda n: [(n, n), (n, n)], lambda x, y: x @ y),
    "long sums": (lambda n: [(9, 2300), (2300, n)], lambda x, y: x @ y)}
TARGETS = {"avx512": AVX512, "avx2": AVX2, "neon": NEON, "sse": SSE}


def kernel_for(name: str, target: Target) -> Kernel:
    """The loop tree for any number of columns."""
    shapes, program = PRODUCTS[name]
    for n in (5, 6, 7):
        program(*[Tensor(data(shape)) for shape in shapes(n)]).realize()
    [general] = general_graphs()
    [item] = general.compiled.items
    return kernel_of(item.ast, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_any_number_of_columns_is_right_and_touches_only_its_memory(name: str, target: str) -> None:
    """The interpreter raises where an address is outside memory of the number's size, or two tasks write there."""
    kernel, (shapes, program) = kernel_for(name, TARGETS[target]), PRODUCTS[name]
    for n in (2, 35) if name != "long sums" else (33,):
        factors = [data(shape) for shape in shapes(n)]
        given, arguments = iter(factors), list[Any]()
        for p in kernel.params:
            size = replaced(tuple(map(memory_size, p.shape)), lambda _: n)  # noqa: B023 - called at once
            arguments.append(n if isinstance(p.arg, Measure) else 0.3 if p.arg.scalar else
                             np.zeros(int(np.prod(size)), np.float32) if p.arg.slot == 0 else next(given).ravel())
        run_kernel(kernel, arguments)
        want = program(*[Tensor(factor) for factor in factors]).numpy()
        np.testing.assert_allclose(arguments[0].reshape(want.shape), want, rtol=1e-4, atol=1e-3, err_msg=f"{n}")


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name not in ("long sums", "a square")])
def test_one_loop_nest_serves_every_number(name: str) -> None:
    """Not blocks of constant sizes, whose tiles are narrow, and one more phase for what they leave."""
    kernel = kernel_for(name, AVX512)
    assert [move.split("(")[0] for move in kernel.moves] == ["contract"]
    wanted = "in_place" if name == "a few rows" else "near"
    assert f"right={wanted}" in kernel.moves[0] or "terms" in name
    info = launch_info(kernel)
    tasks = info.by_value[-1]
    assert tasks.phase == len(info.phases) - 1 and 1 <= tasks.at(*[2 for _ in tasks.arguments]) <= 2
