"""The factors of a sum of products, packed. In: a factor and its axes. Out: the loops that lay it into panels.

A panel holds one tile's width of positions for all of K: [panel][k][position]. The pack loop absorbs any view, padding
mask, cast or fused prologue; what lies past a ragged edge is packed as zeros.
"""

from __future__ import annotations

import math

from glassgrad.graph import ops as o
from glassgrad.graph.index import add, index, multiply, substitute_index
from glassgrad.graph.node import toposort
from glassgrad.graph.uop import UOp, const
from glassgrad.lower.loops import LANE, LOOP, TILE, For, Statement, Store, counter, local, ranges_of
from glassgrad.optimize import moves
from glassgrad.optimize.axes import FlatAxis, one, stride_along

AT_ONCE = 192              # bytes of a row that are worth reading at once
PACK_WORK = 32 * 1024      # elements worth packing by several workers


class Operand:
    """One factor, packed as [outer loops it depends on][panel][k][position in the panel].

    Where a `task` is given, each of its tasks packs the `panels` it uses, and no others, into memory of its own.
    """

    def __init__(self, name: str, value: UOp, axis: FlatAxis, outer: list[UOp], k: list[UOp], width: int, vectors: int,
                 panels: int, task: UOp | None = None):
        self.value, self.axis, self.k, self.width, self.vectors, self.panels = value, axis, k, width, vectors, panels
        self.task = task
        self.outer = [r for r in outer if r in ranges_of(value) and task is None]
        self.depth = math.prod(r.arg.size for r in k)
        copies = math.prod(r.arg.size for r in self.outer)
        self.memory = local(name, value.dtype, copies * panels * self.depth * width,
                            "shared" if task is None else "worker")

    def place(self, panel: UOp, step: UOp, position: UOp) -> UOp:
        at = index(0)
        for r in self.outer:
            at = add(multiply(at, r.arg.size), r)
        at = add(multiply(at, self.panels), panel)
        at = add(multiply(at, self.depth), step)
        return add(multiply(at, self.width), position)

    def pack(self, lanes: int, most: int = moves.MOST_TASKS) -> list[Statement]:
        """The loops that fill the panels: lanes along the axis that is contiguous in memory."""
        panel, spot = counter("p", self.panels), counter("q", self.width)
        flat = index(0)
        for r in self.k:
            flat = add(multiply(flat, r.arg.size), r)
        first = index(0) if self.task is None else multiply(one(self.task), self.panels)
        at = add(multiply(add(first, one(panel)), self.width), one(spot))
        gate = moves.below(at, self.axis.size)
        value = substitute_index(self.value, self.axis.apart(at), {})
        reads = [n for n in toposort([value]) if n.op is o.LOAD]
        along_k = bool(reads) and not any(stride_along(n.src[1], spot) == 1 for n in reads) and \
            all(stride_along(n.src[1], self.k[-1]) == 1 and stride_along(n.src[1], spot) is not None for n in reads)
        if gate is not None:
            value = moves.edge_gate(value, gate)
            if value.op is not o.LOAD:
                value = gate.where(value, const(0, value.dtype))
        store: list[Statement] = [Store(self.memory, self.place(one(panel), flat, one(spot)), value)]
        if along_k:
            body = self.across(spot, store, lanes)
            inner_k = self.k[:-1]
        else:
            body = moves.wide(For(spot, LOOP, store), self.vectors, lanes, copies=False) if self.width > 1 else store
            inner_k = self.k
        narrow = self.width * self.value.dtype.itemsize
        together = 1 if along_k or self.task is not None else min(max(1, AT_ONCE // narrow), self.panels)
        if together > 1:      # narrow panels side by side, so that lines are read whole
            group, inside = counter("pg", -(-self.panels // together)), counter("p", together)
            end = add(index(self.panels), multiply(group, -together)) if self.panels % together else None
            body = moves.rebuild(body, {panel: add(multiply(one(group), together), inside)})
            body = [For(inside, LOOP, body, end)]
            panel = group
        for r in reversed(inner_k):
            body = [For(r, LOOP, body)]
        work = math.prod(r.arg.size for r in self.outer) * self.panels * self.depth * self.width
        if work >= PACK_WORK and self.task is None:
            return moves.share_out([*self.outer, panel], body, most)
        if panel.arg.size > 1:
            whole = -(-self.axis.size // self.width)
            ragged = self.task is not None and whole % self.panels
            body = [For(panel, LOOP, body, add(index(whole), multiply(first, -1)) if ragged else None)]
        for r in reversed(self.outer):
            body = [For(r, LOOP, body)]
        return body

    def across(self, spot: UOp, store: list[Statement], lanes: int) -> list[Statement]:
        """Packing what lies along k: for pieces of k: read a vector of every row; they are stored across.

        A renderer turns such a block in registers. Narrow panels, and what is left of k, are written element by element
        from a few cache lines at a time: a scatter instruction costs more than the scalar stores.
        """
        k = self.k[-1]
        out: list[Statement] = []
        start = 0
        turned = 2 * self.width > lanes
        for count, piece in pieces(k.arg.size, lanes if turned else 4 * lanes):
            outer, inner = counter("kb", count), counter("kq", piece)
            at = add(index(start), add(multiply(one(outer), piece), inner))
            body = moves.rebuild(store, {k: at})
            if turned and piece == lanes:
                body = [For(spot, TILE, [For(inner, LANE, body)])]
            else:
                body = moves.wide(For(inner, LOOP, body), lanes, 1, copies=False)
                body = [For(spot, LOOP, body)] if self.width > 1 else body
            out += [For(outer, LOOP, body)] if count > 1 else body
            start += count * piece
        return out


def pieces(size: int, piece: int) -> list[tuple[int, int]]:
    """A length as whole pieces and the rest: (how many, how long).

    >>> pieces(100, 16)
    [(6, 16), (1, 4)]
    """
    return [(count, length) for count, length in ((size // piece, piece), (1, size % piece)) if count and length]
