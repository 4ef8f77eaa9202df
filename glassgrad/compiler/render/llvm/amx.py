"""Intel AMX matrix units in LLVM IR. In: statements inside UNIT loops. Out: instructions on tile registers.

A register of a unit is an SSA value like any other, of type x86_amx: LLVM assigns the eight tiles, loads their shapes
where a function first uses them, and releases them where it ends. (The operating system must first permit their use:
runtime/cpu/processor.py.)
"""

from __future__ import annotations

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Accumulate, Assign, Statement, Store, ranges_of
from glassgrad.compiler.optimize.targets.matrix_units import WORD, MatrixUnit
from glassgrad.compiler.render.llvm.llvm_memory import LlvmMemory
from glassgrad.compiler.render.llvm.llvm_ops import LlvmValue
from glassgrad.compiler.render.matrix_unit_steps import MatrixStep, Rows, matrix_axes, rows_at, start_of, step_of

TILE_TYPE = "x86_amx"


class Matrices:
    """Writes a function's statements on matrices in tile registers."""

    def __init__(self, function: LlvmMemory):
        self.f = function

    def assign(self, statement: Assign) -> None:
        """Clear a matrix, or load it from memory."""
        f, register = self.f, statement.register
        start, shape = start_of(statement, f.units), self._shape(register)
        if start is None:
            f.declare(TILE_TYPE, "@llvm.x86.tilezero.internal", "i16, i16")
            result = f.put(f"call {TILE_TYPE} @llvm.x86.tilezero.internal({shape})", TILE_TYPE, 0)
        else:
            result = self._load_tile(start, shape)
        f.registers[register] = result

    def load_before(self, body: list[Statement]) -> None:
        """Load all matrices that some products read before these, so that none waits for a free tile register."""
        for statement in body:
            if isinstance(statement, Accumulate) and self.f.is_matrix(statement.register):
                self.f.scope = self.f.scopes[-1]
                self._operands(step_of(statement, self.f.units, self.f.target.units))

    def accumulate(self, statement: Accumulate) -> None:
        """total += left * right, as one instruction."""
        f, register = self.f, statement.register
        step = step_of(statement, f.units, f.target.units)
        left, right = self._operands(step)
        name = f"@llvm.x86.{step.unit.name}.internal"
        f.declare(TILE_TYPE, name, f"i16, i16, i16, {TILE_TYPE}, {TILE_TYPE}, {TILE_TYPE}")
        given = ", ".join(v.typed for v in (f.registers[register], left, right))
        f.registers[register] = f.put(
            f"call {TILE_TYPE} {name}({self._shape(register)}, i16 {_row_bytes(step.unit)}, {given})", TILE_TYPE, 0)

    def store(self, statement: Store) -> None:
        """Store a matrix in memory."""
        f, register = self.f, statement.value
        if statement.combine is not None or statement.gate is not None:
            raise Bug("a matrix goes to memory whole")
        rows = rows_at(statement.memory, statement.index, statement.index, register, f.units)
        place, step = self._place(rows)
        f.declare("void", "@llvm.x86.tilestored64.internal", f"i16, i16, ptr, i64, {TILE_TYPE}")
        f.line(f"call void @llvm.x86.tilestored64.internal({self._shape(register)}, {place.typed}, i64 {step}, "
               f"{f.registers[register].typed})")

    # -- tiles ---------------------------------------------------------------------------------------------------
    def _shape(self, register: UOp) -> str:
        row, column = matrix_axes(register, self.f.units)
        return f"i16 {row.arg.size}, i16 {column.arg.size * register.dtype.itemsize}"

    def _operands(self, step: MatrixStep) -> tuple[LlvmValue, LlvmValue]:
        unit = step.unit
        return (self._kept_tile(step.left, f"i16 {unit.rows}, i16 {_row_bytes(unit)}"),
                self._kept_tile(step.right, f"i16 {unit.words}, i16 {unit.columns * WORD.itemsize}"))

    def _kept_tile(self, rows: Rows, shape: str) -> LlvmValue:
        """A matrix from memory, loaded once for all products of a step that use it."""
        f, here = self.f, self.f.scopes[-1]
        # matrices that change in each iteration of the loop around the steps must not evict those that are reused
        streamed = any(f.open[r] == here.depth - 1 for r in ranges_of(rows.source)) and here.depth > 1
        found: LlvmValue = f.in_scope(here, ("tile", rows.source), f.reads[rows.source], self._load_tile, rows, shape,
                                      streamed)
        return found

    def _load_tile(self, rows: Rows, shape: str, streamed: bool = False) -> LlvmValue:
        """A matrix from memory; with `streamed`, it is kept out of the first-level cache."""
        place, step = self._place(rows)
        name = f"@llvm.x86.{'tileloaddt164' if streamed else 'tileloadd64'}.internal"
        self.f.declare(TILE_TYPE, name, "i16, i16, ptr, i64")
        return self.f.put(f"call {TILE_TYPE} {name}({shape}, {place.typed}, i64 {step})", TILE_TYPE, 0)

    def _place(self, rows: Rows) -> tuple[LlvmValue, int]:
        """The address of a matrix's first element, and the bytes from row to row."""
        return self.f.address(rows.memory, rows.constant, rows.terms), rows.step * rows.memory.dtype.itemsize


def _row_bytes(unit: MatrixUnit) -> int:
    """Bytes in a row of the left matrix."""
    return unit.depth * unit.left.itemsize
