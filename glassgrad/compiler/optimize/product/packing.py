"""The factors of a sum of products, packed. In: a factor and its axes. Out: the loops that lay it into panels.

A panel holds one tile's width of positions for all of K: [panel][k][position]. The pack loop absorbs any view, padding
mask, cast or fused prologue; what lies past a ragged edge is packed as zeros.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, index, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import LANE, LOOP, TILE, For, Statement, Store, counter, local, ranges_of
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.contraction_axes import FlatAxis, one, stride_along

READ_AT_ONCE = 1024        # bytes of a row that are worth reading at once
PIECE = 8                  # steps of k that are packed at once: whole lines of a panel
PACK_WORK = 32 * 1024      # elements worth a task of their own


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
            body, loops = self.across(spot, store, lanes), self.k[:-1]
        else:
            body = moves.wide(For(spot, LOOP, store), self.vectors, lanes, copies=False) if self.width > 1 else store
            loops = self.k
        if self.task is not None:
            for r in reversed(loops):
                body = [For(r, LOOP, body)]
            whole = -(-self.axis.size // self.width)
            stop = add(index(whole), multiply(first, -1)) if whole % self.panels else None
            return [For(panel, LOOP, body, stop)] if self.panels > 1 else body
        if not along_k:
            panel, loops, body = self.side_by_side(panel, body)
        work = math.prod(r.arg.size for r in self.outer) * self.panels * self.depth * self.width
        shares = math.prod(r.arg.size for r in (*self.outer, panel))
        more = work // PACK_WORK // shares if shares < most else 1
        for r in reversed(loops):
            body = [moves.tasks(For(r, LOOP, body), more if r is loops[0] else 1)]
        if not loops and len(body) == 1 and isinstance(body[0], For) and body[0].kind == LOOP:
            body = [moves.tasks(body[0], more)]          # few panels, turned: their pieces of k are shared out
        if work >= PACK_WORK:
            return moves.share_out([*self.outer, panel], body, most)
        for r in reversed([*self.outer, panel]):
            body = [For(r, LOOP, body)] if r.arg.size > 1 else body
        return body

    def side_by_side(self, panel: UOp, body: list[Statement]) -> tuple[UOp, list[UOp], list[Statement]]:
        """Narrow panels in groups: for pieces of k: for the panels of a group: for a piece of k. So lines are both read
        and written whole. Out: the loop over the groups, the loops inside it, and what they do."""
        k, row = self.k[-1], self.panels * self.width * self.value.dtype.itemsize
        together = -(-self.panels // -(-row // READ_AT_ONCE))
        if together == 1:
            return panel, self.k, body
        size = min(PIECE, k.arg.size)
        group, inside = counter("pg", -(-self.panels // together)), counter("p", together)
        piece, step = counter("kp", -(-k.arg.size // size)), counter("k", size)
        body = moves.rebuild(body, {panel: add(multiply(one(group), together), inside),
                                    k: add(multiply(one(piece), size), one(step))})
        body = [For(step, LOOP, body, rest(k.arg.size, size, piece))] if size > 1 else body
        body = [For(inside, LOOP, body, rest(self.panels, together, group))]
        return group, [piece, *self.k[:-1]] if piece.arg.size > 1 else self.k[:-1], body

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


def rest(size: int, piece: int, number: UOp) -> UOp | None:
    """Where a piece of a length ends: the last may be shorter; None where all are whole."""
    return add(index(size), multiply(one(number), -piece)) if size % piece else None
