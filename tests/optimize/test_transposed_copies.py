"""Copies across on groups of threads: blocks through memory that they share, in order on both sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from loop_kernels import HOPPER, Inputs, check

from glassgrad import Tensor
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Kernel
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.recipes import optimize
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.gpu.gpu_launch import gpu_launch

COPIES = {"transposed": lambda x: x.permute(0, 2, 1) * 2, "channels last": lambda x: x.permute(1, 2, 0) + 1,
          "beside what is in order": lambda x: x.permute(0, 2, 1) + x.permute(0, 2, 1).contiguous(),
          "padded": lambda x: x.pad(((0, 0), (2, 3), (1, 0))).permute(0, 2, 1).exp(),
          "of bytes": lambda x: x.permute(0, 2, 1).cast("int8")}


def zeros(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor.zeros(*shape, dtype=dtype).contiguous().realize()


def kernel_of(result: Tensor) -> Kernel:
    return optimize(lower(result.schedule()[-1].ast), HOPPER)


@pytest.mark.parametrize("shape", [(2, 16, 17), (3, 64, 130), (1, 67, 61)])
@pytest.mark.parametrize("name", COPIES)
def test_copies_across_compute_the_same(name: str, shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    for dtype in ("float32", "bfloat16"):
        values, moves = Inputs(), list[str]()
        x = Tensor(values.leaf((rng.standard_normal(shape) * 9).astype("float32"))).cast(dtype).contiguous()

        def compiled(ast: UOp) -> Kernel:
            kernel = optimize(lower(ast), HOPPER)
            moves.extend(kernel.moves)  # noqa: B023
            return kernel
        check(rewrite([COPIES[name](x).uop], ALGEBRA), values, compiled, f"{name} of {shape} {dtype}")
        assert name == "channels last" and shape[0] < 16 or any(m.startswith("turn") for m in moves)


def test_both_sides_are_read_and_stored_in_pieces() -> None:
    kernel = kernel_of(zeros(1000, 1000).T.contiguous())
    source = make_source(kernel, HOPPER, "cuda")
    for access in ("load_f32_4_if(", "store_f32_4_if("):
        assert sum(access in line and "aligned);" in line for line in source.splitlines()) == 4
    assert gpu_launch(kernel).phases == (("map_1000_1000_0", 256, 256, 64 * 65 * 4),)


def test_what_is_in_order_goes_no_such_way() -> None:
    x, row, column = zeros(300, 300), zeros(300), zeros(300, 1)
    for result in (x + row, x + column, x.flip(1) * 2, zeros(300, 8).T * 2):
        assert "turn" not in " ".join(kernel_of(result).moves)
    small = replace(HOPPER, group_bytes=16 << 10)
    assert "lanes=64" not in optimize(lower((x.T * 2).schedule()[-1].ast), small).moves[0], "a block does not fit"
