"""Split K into parts. In: flat axes of a product. Out: memory for the partial sums, and the loops that add them up.

    TASK parts: sum of a part; parts[part, outer, m, n] = sum      then      for all results: add up the parts; epilogue

Parts are added in order: the same bits on every run.
"""

from __future__ import annotations

from glassgrad.compiler.graph import DType, UOp, identity, ops as o
from glassgrad.compiler.graph.index_algebra import add, linear, multiply
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, Statement, Store, counter, flat_index,
                                            load, local, nested, one, register)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.recognize import FlatAxis, Product, count, stride_along


class Parts:
    """The partial sums of all parts of K, in memory that all tasks see. There may be one part only, where the sums are
    stored in a better order than the result's, and copied."""

    def __init__(self, dtype: DType, parts: int, outer: list[UOp], m: FlatAxis, n: FlatAxis, product: Product):
        self.outer, self.m, self.n, self.part = outer, m, n, counter("kp", parts)
        self.product = product if dtype is product.total.dtype else product.rounded(dtype)
        self.place = product.store.index
        begin, _ = linear(self.place)                    # in the name: each product of a kernel has its own memory
        self.memory = local(f"parts{begin or ''}", dtype, parts * count(outer) * m.size * n.size, "shared")

    def at(self, part: UOp, m: UOp, n: UOp) -> UOp:
        return add(multiply(add(multiply(flat_index(self.outer, part), self.m.size), m), self.n.size), n)

    def store(self, part: UOp, m: UOp, n: UOp, total: UOp, gate: UOp | None) -> Store:
        """Store the partial sum of a part."""
        return Store(self.memory, self.at(part, m, n), total, None, gate)

    def joined(self) -> list[Statement]:
        """The sums of the parts, as plain loops: for all results: for the parts: add."""
        product = self.product
        total = register(product.total.arg, product.total.dtype)
        at = load(self.memory, self.at(one(self.part), self.m.position(), self.n.position()))
        loops = [*self.outer, *self.m.parts, *self.n.parts]
        loops.sort(key=lambda r: -abs(stride_along(self.place, r) or 0))
        if self.part.arg.size == 1:
            return nested(loops, moves.rebuild(product.epilogue, {product.total: at}), TASK)
        body: list[Statement] = [Assign(total, identity(o.ADD, total.dtype)),
                                 For(self.part, LOOP, [Accumulate(total, o.ADD, at)]),
                                 *moves.rebuild(product.epilogue, {product.total: total})]
        return nested(loops, body, TASK)
