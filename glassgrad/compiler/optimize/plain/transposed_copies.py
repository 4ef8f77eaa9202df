"""Transpose copies with thread groups. In: loops that read along one axis and store along another. Out: square blocks.

Loads and stores of consecutive threads must be contiguous. So a group reads a block along the axis that is contiguous
in the source, keeps it in shared memory, and stores it along the other axis.

    for i: for j: y[i, j] = f(x[j, i], z[i, j])
    ->  TASK blocks: block[j, i] = x[j, i], threads along i; y[i, j] = f(block[j, i], z[i, j]), threads along j
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide, modulo, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, TASK, TILE, Assign, For, Statement, Store, counter, current, load,
                                            loads_in, local, nested, register_over, task_loops)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below, edge_gate
from glassgrad.compiler.optimize.plain.reductions import Transpose
from glassgrad.compiler.optimize.product.recognize import stride_along
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

SIDE = 64                # of a block
LEAST_SIDE = 16          # of a copied axis: shorter ones leave most of a block empty


def across_group(body: list[Statement], target: Target, decisions: Decisions) -> list[Statement] | None:
    """The blocks of a loop nest; refuses (None) those that read and store along one axis, or do more than store."""
    copy = CopyAcross.of(body)
    if copy is None or sum(SIDE * (SIDE + 1) * n.dtype.itemsize for n in copy.crossed) > target.group_bytes:
        return None
    decisions.ask(Transpose(copy.read.arg.name, SIDE), lambda c: None if c == Transpose(copy.read.arg.name, SIDE) else
                  f"a group has blocks of {SIDE} along {copy.read.arg.name}")
    return copy.blocks()


@dataclass
class CopyAcross:
    """Stores that are contiguous along one loop, of loads that are contiguous along another."""
    outer: list[UOp]
    read: UOp
    stored: UOp
    crossed: list[UOp]       # the loads that are contiguous along `read`
    stores: list[Statement]

    @staticmethod
    def of(body: list[Statement]) -> CopyAcross | None:
        """Recognize a nest of this form; None for others."""
        loops, inner = task_loops(body)
        ranges = [f.range for f in loops if f.range.arg.size >= LEAST_SIDE]
        stores = [s for s in inner if isinstance(s, Store) and s.combine is None]
        if len(stores) != len(inner) or any(f.stop is not None for f in loops):
            return None
        reads = loads_in(inner)
        stored = [r for r in ranges if all(stride_along(s.index, r) == 1 for s in stores)]
        if not stored or any(n.src[0] in {s.memory for s in stores} for n in reads):
            return None
        for read in [r for r in ranges if r is not stored[-1]]:
            crossed = [n for n in reads if stride_along(n.src[1], read) == 1
                       and abs(stride_along(n.src[1], stored[-1]) or 0) > 1]
            if crossed and not any(n.op is o.LOAD for c in crossed for n in toposort(c.src[1:])):
                outer = [f.range for f in loops if f.range not in (read, stored[-1])]
                return CopyAcross(outer, read, stored[-1], crossed, inner)
        return None

    def blocks(self) -> list[Statement]:
        """The loops over blocks, and a group's statements for one block."""
        block_read, block_stored = (counter(r.arg.name + "b", -(-r.arg.size // SIDE)) for r in (self.read, self.stored))
        widest = min(SIDE, gpu.COPY_BYTES // min(n.dtype.itemsize for n in self.crossed))
        line, place, axes = self.shared_out(widest)
        first = {self.read: multiply(current(block_read), SIDE), self.stored: multiply(current(block_stored), SIDE)}
        filled: list[Statement] = []
        kept: list[Statement] = []
        there: dict[UOp, UOp] = {}
        for number, n in enumerate(self.crossed):
            memory = local(f"block{number}", n.dtype, SIDE * (SIDE + 1))
            held = register_over(f"across{number}", n.dtype, axes)
            at = {self.read: add(first[self.read], place), self.stored: add(first[self.stored], line)}
            filled.append(Assign(held, edge_gate(substitute_index(n, at, {}), self.inside(at, widest))))
            kept.append(Store(memory, add(multiply(line, SIDE + 1), place), held))
            there[n] = load(memory, add(multiply(place, SIDE + 1), line))
        at = {self.read: add(first[self.read], line), self.stored: add(first[self.stored], place)}
        gate, stores = self.inside(at, widest), list[Statement]()
        for s in moves.rebuild(self.stores, {**there, **at}):
            assert isinstance(s, Store)
            stores.append(Store(s.memory, s.index, edge_gate(s.value, gate), None, both(gate, s.gate)))
        *tiles, lane = axes
        body = [*nested(tiles, [For(lane, LANE, [*filled, *kept])], TILE),
                *nested(tiles, [For(lane, LANE, stores)], TILE)]
        return nested([*self.outer, block_read, block_stored], body, TASK)

    @staticmethod
    def shared_out(widest: int) -> tuple[UOp, UOp, list[UOp]]:
        """The line of a block and the position in it, from (round, element, thread); a thread has `widest` elements."""
        rounds, each = counter("r", SIDE * SIDE // (widest * gpu.THREADS)), counter("u", widest)
        lane = counter("l", gpu.THREADS)
        at = add(multiply(current(rounds), gpu.THREADS), lane)
        return divide(at, SIDE // widest), add(multiply(modulo(at, SIDE // widest), widest), current(each)), \
            [rounds, each, lane]

    def inside(self, at: dict[UOp, UOp], widest: int) -> UOp | None:
        """The condition that an element exists; if possible, the same for all elements of a thread."""
        gate = None
        for r, place in at.items():
            if r.arg.size % SIDE:
                together = {counter("u", widest): multiply(counter("u", widest), 0)} if r.arg.size % widest == 0 else {}
                gate = both(gate, below(substitute_index(place, together, {}), r.arg.size))
        return gate
