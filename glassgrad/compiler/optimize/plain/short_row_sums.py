"""Sums of many short rows by groups of threads. In: a nest that sums each row. Out: tasks of several rows, or None.

    for row: r = 0; for k: r += f(x[row, k]); S(r)       for rows by 64: threads along pieces of these rows: part[row]
                                                         threads along rows: r = sum of part[row]; S(r)

A thread for each row would have neighbouring threads read memory that lies a row apart; here they read neighbouring
pieces of 16 bytes. The parts of a row go through memory of the group. Does not know what is summed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, const, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, divide, modulo, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, Statement, Store, counter,
                                            load, local, register)
from glassgrad.compiler.optimize.decisions import Choice, Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import nested, one
from glassgrad.compiler.optimize.plain.reductions import Reduction
from glassgrad.compiler.optimize.product.recognize import FlatAxis, stride_along
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

ROWS = 64            # of a task
PIECES = (8, 16, 32)     # of a row


@dataclass(frozen=True)
class RowPieces(Choice, names=["row_pieces"]):
    """So many rows of a task, and elements that a thread reads of one at once."""
    rows: int
    piece: int


def in_pieces(loops: list[For], inner: list[Statement], target: Target, decisions: Decisions) -> list[Statement] | None:
    """The tasks of many short rows that lie one after another; refuses (None) other sums."""
    found = Reduction.of(inner)
    if found is None or len(found.begins) != 1 or len(found.loop.body) != 1 or not loops or \
            any(f.stop is not None for f in loops):
        return None
    [begin], [step], k = found.begins, found.loop.body, found.loop.range
    assert isinstance(step, Accumulate)
    reads = [n for n in toposort([step.value]) if n.op is o.LOAD]
    rows, size = math.prod(f.range.arg.size for f in loops), k.arg.size
    lie_so = all(stride_along(n.src[1], k) == 1 and stride_along(n.src[1], loops[-1].range) == size and len(n.src) == 2
                 for n in reads)
    piece = gpu.COPY_BYTES // min([n.dtype.itemsize for n in reads], default=gpu.COPY_BYTES)
    if not reads or not lie_so or step.combine is not o.ADD or size % piece or size // piece not in PIECES or \
            rows % ROWS or rows // ROWS < target.few_tasks:
        return None
    decisions.ask(RowPieces(ROWS, piece), lambda c: None if c == RowPieces(ROWS, piece) else "rows are cut in one way")
    threads, pieces = target.lanes(4), size // piece
    task, lane, row = counter("rb", rows // ROWS), counter("l", threads), counter("r", ROWS)
    times, each, which = counter("u", ROWS * pieces // threads), counter("e", piece), counter("j", pieces)
    axis = FlatAxis.of([f.range for f in loops])
    at_row = add(multiply(one(times), threads // pieces), divide(lane, pieces))
    part = local("parts", step.register.dtype, ROWS * (pieces + 1))
    wide = tuple([r for r in (times, lane) if r.arg.size > 1])
    sums, total = register("part", part.dtype, wide), register("total", part.dtype, (row,))
    replace = {**axis.apart(add(multiply(task, ROWS), at_row)), k: add(multiply(modulo(lane, pieces), piece), each)}
    value = substitute_index(step.value, replace, {})
    here = {**axis.apart(add(multiply(task, ROWS), row)), step.register: total}
    of_row = add(multiply(row, pieces + 1), which)
    spot = add(multiply(at_row, pieces + 1), modulo(lane, pieces))

    def of_lanes(statement: Statement, *tiles: UOp) -> list[Statement]:
        return nested(list(tiles), [For(lane, LANE, [statement])], TILE)

    body = [*of_lanes(Assign(sums, const(0, part.dtype)), times),
            *of_lanes(Accumulate(sums, o.ADD, value.cast(part.dtype)), times, each),
            *of_lanes(Store(part, spot, sums), times),
            For(row, LANE, [Assign(total, begin.value),
                            For(which, LOOP, [Accumulate(total, o.ADD, load(part, of_row))]),
                            *moves.rebuild(found.rest, here)])]
    return [For(task, TASK, body)]
