"""Split K into parts. In: flat axes of a product. Out: memory for the partial sums, and the loops that add them up.

    TASK parts: sum of a part; parts[part, outer, m, n] = sum      then      for all results: add up the parts; epilogue

Parts are added in order, so every run gives the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.compiler.graph import DType, UOp, identity, ops as o
from glassgrad.compiler.graph.index_algebra import add, linear, multiply, times
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, Statement, Store, counter, current,
                                            flat_index, load, local, nested, register)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import Product, count, stride_along


class RunTimeParts(NamedTuple):
    """Parts whose number follows from the run-time number of rows."""
    number: UOp
    rows: UOp                     # rows of one part, in whole tiles
    most_rows: int                # the most rows of all parts together


class Parts:
    """The partial sums of all parts of K, in memory shared by all tasks. There may be one part only, if the sums are
    stored in a better order than the result's, and then copied."""

    def __init__(self, dtype: DType, parts: int, outer: list[UOp], m: FlatAxis, n: FlatAxis, product: Product,
                 at_run_time: RunTimeParts | None = None):
        self.outer, self.m, self.n, self.part = outer, m, n, counter("kp", parts)
        self.at_run_time = at_run_time
        self.product = product if dtype is product.total.dtype else product.rounded(dtype)
        self.stored_at = product.store.index
        begin, _ = linear(self.stored_at)  # part of the name: each product of a kernel has its own memory
        rows = parts * m.size if at_run_time is None else at_run_time.most_rows
        self.memory = local(f"parts{begin or ''}", dtype, rows * count(outer) * n.size, "shared")

    def at(self, part: UOp, m: UOp, n: UOp) -> UOp:
        if self.at_run_time is not None:
            _, rows, most = self.at_run_time
            first = add(multiply(flat_index(self.outer), most), times(part, rows))
            return add(multiply(add(first, m), self.n.size), n)
        return add(multiply(add(multiply(flat_index(self.outer, part), self.m.size), m), self.n.size), n)

    def store(self, part: UOp, m: UOp, n: UOp, total: UOp, gate: UOp | None) -> Store:
        """Store the partial sum of a part."""
        return Store(self.memory, self.at(part, m, n), total, None, gate)

    def joined(self) -> list[Statement]:
        """Add up the parts by plain loops: for all results: for the parts: add."""
        product = self.product
        total = register(product.total.arg, product.total.dtype)
        at = load(self.memory, self.at(current(self.part), self.m.position(), self.n.position()))
        loops = [*self.outer, *self.m.parts, *self.n.parts]
        loops.sort(key=lambda r: -abs(stride_along(self.stored_at, r) or 0))
        if self.at_run_time is not None:                 # outermost, so that it bounds the number of tasks
            loops.sort(key=lambda r: r not in self.m.parts)
        if self.part.arg.size == 1:
            return nested(loops, moves.rebuild(product.epilogue, {product.total: at}), TASK)
        body: list[Statement] = [Assign(total, identity(o.ADD, total.dtype)),
                                 For(self.part, LOOP, [Accumulate(total, o.ADD, at)],
                                     None if self.at_run_time is None else self.at_run_time.number),
                                 *moves.rebuild(product.epilogue, {product.total: total})]
        return nested(loops, body, TASK)
