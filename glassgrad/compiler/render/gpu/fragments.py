"""Matrices in the registers of a group's threads. In: a phase with UNIT loops. Out: the same with one variable for each
register of a thread.

A unit says where an element of its sums lies (`Fragments`): a function from (thread, register) to (row, column). So a
statement about a whole matrix is one statement for each register, in all threads. Steps of the unit stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, divide, index, modulo, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import UNIT, Accumulate, Assign, For, If, Statement, Store, counter, register, walk
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.render.matrix_unit_steps import is_matrix, matrix_axes
from glassgrad.compiler.render.unroll_and_jam import Jammed


def unit_of(statement: Accumulate, ranges: frozenset[UOp], known: Iterable[MatrixUnit]) -> MatrixUnit:
    """The unit that multiplies what a statement multiplies; a group of threads may have several of them, one below the
    other."""
    row, column = matrix_axes(statement.register, ranges)
    types = [n.dtype for n in toposort([statement.value]) if n.op is o.LOAD]
    for unit in known:
        if set(types) == {unit.left, unit.right} and unit.columns == column.arg.size and row.arg.size % unit.rows == 0:
            return unit
    raise Bug(f"no matrix unit adds products of {types} into {row.arg.size} x {column.arg.size} sums")


def spread(jammed: Jammed, known: Iterable[MatrixUnit]) -> Jammed:
    """The phase with matrices as registers of threads. Nothing changes where there are none."""
    ranges = frozenset(jammed.units)
    steps = [s for s in walk(jammed.body) if isinstance(s, Accumulate) and is_matrix(s.register, ranges)]
    if not steps:
        return jammed
    units = {s.register: unit_of(s, ranges, known) for s in steps}
    rows = matrix_axes(steps[0].register, ranges)[0].arg.size
    unit = units[steps[0].register]
    thread = counter("t", rows // unit.rows * unit.threads)
    body = _Spread(ranges, units, thread).statements(jammed.body)
    return Jammed(jammed.tasks, body, [*jammed.lanes, thread], jammed.units)


def registers_of(matrix: UOp, unit: MatrixUnit) -> list[UOp]:
    """The variables of each thread that hold its part of a matrix."""
    assert unit.sums is not None
    return [register(matrix.arg, matrix.dtype, (index(r),)) for r in range(unit.sums.registers)]


class _Spread:
    def __init__(self, ranges: frozenset[UOp], units: dict[UOp, MatrixUnit], thread: UOp):
        self.ranges, self.units, self.thread = ranges, units, thread

    def statements(self, body: list[Statement]) -> list[Statement]:
        out: list[Statement] = []
        for s in body:
            if isinstance(s, For) and s.kind == UNIT:
                inner = self.statements(s.body)
                out += [For(s.range, UNIT, inner)] if any(isinstance(i, Accumulate) for i in walk(inner)) else inner
            elif isinstance(s, For):
                out.append(For(s.range, s.kind, self.statements(s.body), s.stop))
            elif isinstance(s, If):
                out.append(If(s.condition, self.statements(s.body)))
            elif isinstance(s, Assign) and s.register in self.units:
                out += [Assign(r, s.value) for r in registers_of(s.register, self.units[s.register])]
            elif isinstance(s, Store) and s.value in self.units:
                out += self.stores(s)
            else:
                out.append(s)
        return out

    def stores(self, s: Store) -> list[Statement]:
        """A store of a matrix: of every register, at the row and the column that it holds."""
        unit = self.units[s.value]
        out: list[Statement] = []
        assert unit.sums is not None
        row, column = matrix_axes(s.value, self.ranges)
        lane = modulo(self.thread, unit.threads)
        above = multiply(divide(self.thread, unit.threads), unit.rows)
        for number, held in enumerate(registers_of(s.value, unit)):
            at = {row: add(above, unit.sums.row(lane, number)), column: unit.sums.column(lane, number)}
            gate = None if s.gate is None else substitute_index(s.gate, at, {})
            out.append(Store(s.memory, substitute_index(s.index, at, {}), held, s.combine, gate))
        return out
