"""Matrix units in C: what their instructions do, in plain loops. In: statements inside UNIT loops. Out: helper calls.

It is the readable view of a kernel that runs on a matrix unit: each call here is one instruction there, and its helper
says in C what that computes. Little-endian, as every machine with such a unit is.
"""

from __future__ import annotations

from typing import Any

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Accumulate, Assign, Store
from glassgrad.compiler.lower.reduced_precision import SMALL_FLOATS
from glassgrad.compiler.optimize.targets.matrix_units import WORD, MatrixUnit
from glassgrad.compiler.render.matrix_unit_steps import Rows, matrix_axes, rows_at, start_of, step_of


class CMatrices:
    """What a `CFunction` does with small matrices: arrays of rows."""
    matrix_units: tuple[MatrixUnit, ...]
    units: frozenset[UOp]                  # ranges that count inside of a matrix unit,
    is_matrix: Any                         # whether a register has such,
    type: Any                              # and of the function: the name of a type,
    define: Any                            # a helper,
    line: Any                              # where text goes,
    register: Any                          # the value of a register,
    sum: Any                               # that of an index,
    place: Any                             # and where an element lies

    def dimensions(self, register: UOp) -> str:
        """What follows the name of a matrix register where it is declared."""
        return "".join(f"[{r.arg.size}]" for r in matrix_axes(register, self.units)) if self.is_matrix(register) else ""

    def assign_matrix(self, statement: Assign) -> None:
        register = statement.register
        kind, loops, dimensions = self.type(register.dtype), self._loops(register), self.dimensions(register)
        start = start_of(statement, self.units)
        if start is None:
            name = self.define(f"clear_{kind}", "void", f"{kind} matrix{dimensions}", f"{loops} matrix[r][c] = 0;")
            self.line(f"{name}({self.register(register).text});")
        else:
            name = self.define(f"load_{kind}", "void", f"{kind} matrix{dimensions}, const {kind} *p, i64 step",
                               f"{loops} matrix[r][c] = p[r * step + c];")
            self.line(f"{name}({self.register(register).text}, {self._at(start)}, {start.step});")

    def store_matrix(self, statement: Store) -> None:
        register = statement.value
        kind, loops, dimensions = self.type(register.dtype), self._loops(register), self.dimensions(register)
        rows = rows_at(statement.memory, statement.index, statement.index, register, self.units)
        name = self.define(f"store_{kind}", "void", f"const {kind} matrix{dimensions}, {kind} *p, i64 step",
                           f"{loops} p[r * step + c] = matrix[r][c];")
        self.line(f"{name}({self.register(register).text}, {self._at(rows)}, {rows.step});")

    def accumulate_matrix(self, statement: Accumulate) -> None:
        step = step_of(statement, self.units, self.matrix_units)
        unit, register = step.unit, statement.register
        total, left, right = self.type(unit.total), self.type(unit.left), self.type(unit.right)
        word, bits, pieces = self.type(WORD), unit.right.bits, unit.pieces
        a = self._widened(unit.left, f"left[r * left_step + w * {pieces} + b]")
        b = self._widened(unit.right, f"({right})(right[w * right_step + c] >> b * {bits})")
        name = self.define(
            unit.name, "void", f"{total} total{self.dimensions(register)}, const {left} *left, i64 left_step, "
            f"const {word} *right, i64 right_step", self._loops(register),
            f"  for (int w = 0; w < {unit.words}; w++)", f"    for (int b = 0; b < {pieces}; b++)",
            f"      total[r][c] += {a} * {b};")
        place, distance = self._at(step.left), step.left.step
        if step.left.memory.dtype is WORD:                      # words hold the elements in order
            place, distance = f"(const {left} *)({place})", distance * pieces
        self.line(f"{name}({self.register(register).text}, {place}, {distance}, {self._at(step.right)}, "
                  f"{step.right.step});")

    def _at(self, rows: Rows) -> str:
        return self.place(rows.memory, self.sum(rows.constant, rows.terms, 0))

    def _loops(self, register: UOp) -> str:
        row, column = (r.arg.size for r in matrix_axes(register, self.units))
        return f"for (int r = 0; r < {row}; r++) for (int c = 0; c < {column}; c++)"

    def _widened(self, dtype: DType, element: str) -> str:
        """An element of a factor as the total's type: bfloat16 is the upper half of a float32."""
        if dtype not in SMALL_FLOATS:
            return element
        word, wide = self.type(WORD), self.type(dtypes.float32)
        name = self.define("widen_bf16", wide, f"{self.type(dtype)} x", f"{word} bits = ({word})x << 16;",
                           f"{wide} r;", "__builtin_memcpy(&r, &bits, 4);", "return r;")
        return f"{name}({element})"
