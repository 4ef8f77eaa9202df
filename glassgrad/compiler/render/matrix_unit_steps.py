"""Match statements in UNIT loops to steps of a matrix unit. In: the statement. Out: memories, offsets, row distances.

The loop tree works element by element; here it is matched to operations on small matrices, which renderers spell. An
operation that no unit has is a `Bug` of the recipe that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import DType, UOp, index_algebra as ix, ops as o
from glassgrad.compiler.lower.loops import Accumulate, Assign, ranges_of
from glassgrad.compiler.optimize.targets.matrix_units import WORD, MatrixUnit


class Rows(NamedTuple):
    """A matrix in memory: its first element at `constant` + the terms, its rows `step` elements apart."""
    memory: UOp
    constant: int
    terms: ix.Terms
    step: int
    source: UOp            # the expression this was read from: a LOAD, or the index of a store


class MatrixStep(NamedTuple):
    """total += left * right."""
    unit: MatrixUnit
    left: Rows
    right: Rows


def matrix_axes(register: UOp, units: Set[UOp]) -> tuple[UOp, UOp]:
    """The ranges that count the rows and the columns of a matrix register."""
    row, column = [r for r in register.src if r in units]
    return row, column


def rows_at(memory: UOp, index: UOp, source: UOp, register: UOp, units: Set[UOp]) -> Rows:
    """Where the elements of a register's matrix are in memory: row by row, each row contiguous."""
    row, column = matrix_axes(register, units)
    return _rows(memory, index, source, row, {column: 1}, units)


def start_of(statement: Assign, units: Set[UOp]) -> Rows | None:
    """The memory from which an assigned matrix is loaded; None if it starts as zeros."""
    register, value = statement.register, statement.value
    if value.op is o.CONST and value.arg == 0:
        return None
    if value.op is not o.LOAD:
        raise Bug("a matrix begins as zeros or comes from memory")
    return rows_at(value.src[0], value.src[1], value, register, units)


def step_of(statement: Accumulate, units: Set[UOp], known: Iterable[MatrixUnit]) -> MatrixStep:
    """Match a sum of products to one instruction of one of the known units."""
    register, value = statement.register, statement.value
    row, column = matrix_axes(register, units)
    if statement.combine is not o.ADD or value.op is not o.MUL or any(s.op is not o.CAST for s in value.src):
        raise Bug("a matrix unit adds products of two factors, each widened by a cast")
    left, right = (s.src[0] for s in value.src)
    unit = next((u for u in known if (u.left, u.right, u.total) == (left.dtype, right.dtype, register.dtype)), None)
    if unit is None:
        raise Bug(f"no matrix unit multiplies {left.dtype.name} by {right.dtype.name} into {register.dtype.name}")
    word, piece = sorted(units & ranges_of(value) - {row, column}, key=lambda r: -r.arg.size)
    if (row.arg.size, column.arg.size, word.arg.size, piece.arg.size) != (unit.rows, unit.columns, unit.words,
                                                                          unit.pieces):
        raise Bug(f"the matrices of {unit.name} have another shape")
    if left.op is o.LOAD:
        a = _rows(left.src[0], left.src[1], left, row, {word: unit.pieces, piece: 1}, units)
    else:
        a = _words(left, row, {word: 1}, piece, units)
    return MatrixStep(unit, a, _words(right, word, {column: 1}, piece, units))


def _words(element: UOp, row: UOp, within: dict[UOp, int], piece: UOp, units: Set[UOp]) -> Rows:
    """The rows of packed words that contain an element."""
    bits: DType = element.dtype
    element = element.src[0] if element.op is o.BITCAST else element
    shift = element.src[0] if element.op is o.CAST else element
    if shift.op is not o.SHR or shift.dtype is not WORD or shift.src[0].op is not o.LOAD or \
            shift.src[1].op is not o.CAST or ix.linear(shift.src[1].src[0]) != (0, {piece: bits.bits}):
        raise Bug("a matrix unit takes words apart, the first piece in the lowest bits")
    word = shift.src[0]
    return _rows(word.src[0], word.src[1], word, row, within, units)


def _rows(memory: UOp, index: UOp, source: UOp, row: UOp, within: dict[UOp, int], units: Set[UOp]) -> Rows:
    constant, terms = ix.linear(index)
    inside = {a: k for a, k in terms.items() if a in units}
    step = inside.pop(row, 0)
    if inside != within or source.op is o.LOAD and len(source.src) > 2:
        raise Bug(f"the rows of a matrix in {memory} are not laid out as a matrix unit reads them")
    return Rows(memory, constant, {a: k for a, k in terms.items() if a not in units}, step, source)
