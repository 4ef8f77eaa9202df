"""Lay matrices out in the registers of a group's threads. In: a phase with UNIT loops. Out: the same with one variable
for each register of a thread.

A unit says where elements of its sums are (`Fragments`): a function from (thread, register) to (row, column). So a
statement about a whole matrix becomes one statement per register, in all threads; a statement about a value per row,
one for each row of which a thread has a part. Combining along a row is done within each thread first, then between the
threads that share the row. Steps of the unit stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, less, modulo, multiply, substitute_index
from glassgrad.compiler.graph.op_arguments import FoldOver
from glassgrad.compiler.lower.group_statements import AwaitSteps
from glassgrad.compiler.lower.loops import (UNIT, Accumulate, Assign, For, If, Statement, Store, counter, expressions,
                                            ranges_of, register, walk)
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.render.matrix_unit_steps import matrix_axes
from glassgrad.compiler.render.unroll_and_jam import Jammed, is_step


def units_here(body: list[Statement], known: Iterable[MatrixUnit]) -> list[MatrixUnit]:
    """The units that a phase may use: asynchronous ones if it waits for steps, otherwise synchronous ones."""
    waits = any(isinstance(s, AwaitSteps) for s in walk(body))
    return [u for u in known if u.text is not None and bool(u.text.wait) == waits]


def unit_of(statement: Accumulate, ranges: frozenset[UOp], known: Iterable[MatrixUnit]) -> MatrixUnit:
    """The unit for the types and sizes of a statement's product. A thread group may have several of its matrices, one
    below the other, and, if the unit loads its factors, side by side."""
    row, column = matrix_axes(statement.register, ranges)
    factors = [s.src[0] if s.op is o.CAST else s for s in statement.value.src]
    for unit in known:
        if [f.dtype for f in factors] == [unit.left, unit.right] and row.arg.size % unit.rows == 0 and \
                (column.arg.size == unit.columns or unit.loads is not None and column.arg.size % unit.columns == 0):
            return unit
    types = [f.dtype for f in factors]
    raise Bug(f"no matrix unit adds products of {types} into {row.arg.size} x {column.arg.size} sums")


def spread(jammed: Jammed, known: Iterable[MatrixUnit]) -> Jammed:
    """The phase with matrices as registers of threads; unchanged if there are none."""
    ranges = frozenset(jammed.units)
    steps = [s for s in walk(jammed.body) if isinstance(s, Accumulate) and is_step(s, ranges)]
    if not steps:
        return jammed
    unit = unit_of(steps[0], ranges, units_here(jammed.body, known))
    layout = layout_of(unit, matrix_axes(steps[0].register, ranges)[0].arg.size)
    body = _Spread(ranges, layout).statements(jammed.body)
    return Jammed(jammed.tasks, body, [*jammed.lanes, layout.thread], jammed.units)


class FragmentLayout:
    """Where the elements of matrices with `rows` rows are, in the registers of a group's threads."""

    def __init__(self, unit: MatrixUnit, rows: int):
        assert unit.sums is not None
        self.unit, self.sums = unit, unit.sums
        self.thread = counter("t", rows // unit.rows * unit.threads)
        self.lane = modulo(self.thread, unit.threads)
        self.above = multiply(divide(self.thread, unit.threads), unit.rows)
        first = [unit.sums.row(0, number) for number in range(unit.sums.registers)]
        self.row_numbers = [first.index(row) for row in dict.fromkeys(first)]      # the first register of each row
        self.slots = [list(dict.fromkeys(first)).index(row) for row in first]
        self.rows = [add(self.above, unit.sums.row(self.lane, number)) for number in range(unit.sums.registers)]
        self.columns = [unit.sums.column(self.lane, number) for number in range(unit.sums.registers)]

    @property
    def sharing(self) -> int:
        """The number of adjacent threads that share a row."""
        return sum(self.sums.row(lane, 0) == self.sums.row(0, 0) for lane in range(self.unit.threads))

    def row(self, number: int) -> UOp:
        return self.rows[number % self.sums.registers]

    def column(self, number: int) -> UOp:
        piece, inside = divmod(number, self.sums.registers)
        return add(index(piece * self.unit.columns), self.columns[inside])

    def numbers(self, columns: int) -> range:
        """The registers of each thread for a matrix with `columns` columns."""
        return range(per_thread(columns, self.unit))

    def slot(self, number: int) -> int:
        """Which of a thread's rows one of its registers belongs to."""
        return self.slots[number % self.sums.registers]


@lru_cache(maxsize=64)
def layout_of(unit: MatrixUnit, rows: int) -> FragmentLayout:
    """The layout of matrices with `rows` rows; cached for all kernels."""
    return FragmentLayout(unit, rows)


def registers_of(matrix: UOp, unit: MatrixUnit, ranges: frozenset[UOp]) -> list[UOp]:
    """The variables of each thread that hold its part of a matrix, or of a value per row."""
    row, *columns = [r for r in matrix.src if r in ranges]
    count = per_thread(columns[0].arg.size, unit) if columns else len(layout_of(unit, row.arg.size).row_numbers)
    return [register(matrix.arg, matrix.dtype, (index(r),)) for r in range(count)]


def per_thread(columns: int, unit: MatrixUnit) -> int:
    """The elements per thread of a matrix with `columns` columns: units that differ only in columns have the same
    layout of sums."""
    return unit.rows * columns // unit.threads


class _Spread:
    def __init__(self, ranges: frozenset[UOp], layout: FragmentLayout):
        self.ranges, self.layout = ranges, layout

    def statements(self, body: list[Statement]) -> list[Statement]:
        out: list[Statement] = []
        for s in body:
            if isinstance(s, For) and s.kind == UNIT:
                inner = self.statements(s.body)
                has_step = any(isinstance(i, Accumulate) and is_step(i, self.ranges) for i in walk(inner))
                out += [For(s.range, UNIT, inner)] if has_step else inner
            elif isinstance(s, For):
                out.append(For(s.range, s.kind, self.statements(s.body), s.stop))
            elif isinstance(s, If):
                out.append(If(s.condition, self.statements(s.body)))
            elif isinstance(s, (Assign, Accumulate, Store)) and not (isinstance(s, Accumulate) and
                                                                    is_step(s, self.ranges)):
                out += self.elements(s)
            else:
                out.append(s)
        return out

    def elements(self, s: Assign | Accumulate | Store) -> list[Statement]:
        """A statement about elements of matrices and rows, as statements about the registers of a thread."""
        involved = [*expressions(s), *([] if isinstance(s, Store) else [s.register])]
        wide = frozenset().union(*[ranges_of(e) for e in involved]) & self.ranges
        if not wide:
            return [s]
        row, column = self.axes(involved, wide)
        numbers = self.layout.row_numbers if column is None else list(self.layout.numbers(column.arg.size))
        if isinstance(s, Store):
            first = less(modulo(self.layout.thread, self.layout.sharing), index(1)) if column is None else None
            gates = [both(first, None if s.gate is None else self.at(s.gate, row, column, n)) for n in numbers]
            return [Store(s.memory, self.at(s.index, row, column, n), self.at(s.value, row, column, n), s.combine, gate)
                    for n, gate in zip(numbers, gates)]  # the first of the threads that share a row stores its value
        if isinstance(s, Assign):
            return [Assign(self.at(s.register, row, column, n), self.at(s.value, row, column, n)) for n in numbers]
        if column is None or column in s.register.src:
            return [Accumulate(self.at(s.register, row, column, n), s.combine, self.at(s.value, row, column, n))
                    for n in numbers]
        return self.along_rows(s, row, column, numbers)

    def axes(self, involved: list[UOp], wide: frozenset[UOp]) -> tuple[UOp, UOp | None]:
        """The ranges of a statement that count rows and columns; rows are the first range of every register."""
        found = [n.src for e in involved for n in toposort([e]) if n.op is o.REGISTER and n.src and n.src[0] in wide]
        row = found[0][0]
        others = [r for r in wide if r is not row]
        if any(src[0] is not row for src in found) or len(others) > 1:
            raise Bug("a statement about matrices has one range of rows and one of columns")
        return row, others[0] if others else None

    def along_rows(self, s: Accumulate, row: UOp, column: UOp, numbers: list[int]) -> list[Statement]:
        """Combine the elements of a row: those of a thread, then those of its neighbours, then the register itself."""
        parts = [register(f"{s.register.arg}_part", s.register.dtype, (index(i),))
                 for i in range(len(self.layout.row_numbers))]
        seen: set[int] = set()
        out: list[Statement] = []
        for n in numbers:
            slot, value = self.layout.slot(n), self.at(s.value, row, column, n)
            out.append(Accumulate(parts[slot], s.combine, value) if slot in seen else Assign(parts[slot], value))
            seen.add(slot)
        for slot, n in enumerate(self.layout.row_numbers):
            whole = UOp(o.FOLD, s.register.dtype, (parts[slot], self.layout.thread),
                        FoldOver(s.combine, self.layout.sharing))
            out.append(Accumulate(self.at(s.register, row, column, n), s.combine, whole))
        return out

    def at(self, node: UOp, row: UOp, column: UOp | None, number: int) -> UOp:
        """An expression for one register: at the row and column that it holds."""
        replace = {row: self.layout.row(number)}
        if column is not None:
            replace[column] = self.layout.column(number)
        for n in toposort([node]):
            if n.op is o.REGISTER and row in n.src:
                mine = number if len(n.src) > 1 else self.layout.slot(number)
                replace[n] = register(n.arg, n.dtype, (index(mine),))
        return substitute_index(node, replace, {})
