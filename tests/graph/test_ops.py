"""The table of ops, and the tables that have a line for each: a missing line is named."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.gradient import FLAT, GRADIENTS
from glassgrad.compiler.graph.ops import ELEMENTWISE, Kind, Op, Ops
from glassgrad.compiler.graph.uop import const
from glassgrad.compiler.lower.transcendental import POLYNOMIALS, expand
from glassgrad.compiler.render.c.c_ops import C_OPS, CArithmetic
from glassgrad.compiler.render.gpu.gpu_ops import GPU_OPS
from glassgrad.compiler.render.llvm.llvm_ops import LLVM_OPS, LlvmArithmetic
from glassgrad.compiler.render.wasm.wasm_ops import WASM_OPS, WasmArithmetic

COMPUTED = [op for op in Ops if op in ELEMENTWISE and not op.converts]       # conversions are not lines: cast, bitcast
WRITTEN = [op for op in COMPUTED if not op.approximate]                     # what reaches a renderer
TABLES: dict[str, tuple[Collection[Op], list[Op]]] = {
    "GRADIENTS or FLAT (compiler/graph/gradient.py)": (
        {*GRADIENTS, *FLAT}, [*COMPUTED, *(op for op in Ops if op.combine)]),
    "POLYNOMIALS (compiler/lower/transcendental.py)": (POLYNOMIALS, [op for op in COMPUTED if op.approximate]),
    "C_OPS (compiler/render/c/c_ops.py)": (C_OPS, WRITTEN),
    "GPU_OPS (compiler/render/gpu/gpu_ops.py)": (GPU_OPS, WRITTEN),
    "LLVM_OPS (compiler/render/llvm/llvm_ops.py)": (LLVM_OPS, WRITTEN),
    "WASM_OPS (compiler/render/wasm/wasm_ops.py)": (WASM_OPS, WRITTEN),
}


def missing(table: Collection[Op], ops: list[Op], name: str) -> list[str]:
    return [f"op {op.name} has no line in table {name}" for op in ops if op not in table]


@pytest.mark.parametrize("name", TABLES)
def test_every_op_has_a_line_in_every_table(name: str) -> None:
    assert missing(*TABLES[name], name) == []


@pytest.mark.parametrize("op", COMPUTED, ids=lambda op: op.name)
def test_every_op_declares_its_meaning_for_arrays_and_for_constants(op: Op) -> None:
    assert op.meaning is not None, f"op {op.name} has no meaning in NumPy"
    assert op.constant is not None, f"op {op.name} has no meaning for plain numbers"
    assert op.takes and set(op.takes) <= set("bfiu"), f"op {op.name} says no types that it takes"


def test_an_op_without_a_line_is_named() -> None:
    cube = o.Op("CUBE", Kind.UNARY, lambda np, x: x * x * x, {"takes": "f"})
    assert missing(C_OPS, [o.ADD, cube], "C_OPS") == ["op CUBE has no line in table C_OPS"]
    x = const(2.0)
    for renderer, language in ((CArithmetic(), "C"), (LlvmArithmetic(), "LLVM"), (WasmArithmetic(), "WASM")):
        with pytest.raises(Bug, match=f"CUBE of float32 reached the {language} renderer; it must be lowered before"):
            renderer.apply(cube, dtypes.float32, x)
    with pytest.raises(Bug, match="ADD has no line in the table POLYNOMIALS"):
        expand(x + x)


def test_a_renderer_refuses_types_that_the_declaration_does_not_take() -> None:
    with pytest.raises(Bug, match="DIV of int32 reached the C renderer; it must be lowered before"):
        CArithmetic().apply(o.DIV, dtypes.int32)
    with pytest.raises(Bug, match="ADD of float16 reached the LLVM renderer; it must be computed in float32"):
        LlvmArithmetic().apply(o.ADD, dtypes.float16)
