"""Read several pieces before the first is computed. In: vectors of independent iterations. Out: the same, read ahead.

A thread of a GPU that computes for long what it loaded, and loads only then what comes next, leaves memory idle: the
compiler cannot load it earlier, because a store between might change it. Iterations are independent, so we can. So are
the stores of one iteration, where none of them writes what others read.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, multiply
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Assign, For, Statement, Store, counter, expressions,
                                            ranges_of, register)
from glassgrad.compiler.optimize.moves.loop_moves import rebuild
from glassgrad.compiler.optimize.moves.move_limit import move

PIECES = 4
MOST_FIRST = 64        # numbers that a thread reads for several stores before the first of them
MOST_READS = 2         # of each element: more would take too many registers


@move(lambda body, *_: body)
def read_ahead(body: list[Statement], pieces: int = PIECES, most: int = MOST_READS) -> list[Statement]:
    """for o in n: TILE u: LANE l: S(x[..])  ->  for o in n/p: TILE q in p: TILE u: LANE l: r[q,u,l] = x[..]; S(r)

    refuses (returns the body): another form, n is no multiple of p, many reads, or statements that read what others
    of them store
    """
    first = body[0] if body else None
    if not isinstance(first, For) or first.kind != LOOP or first.stop is not None or first.range.arg.size % pieces:
        return body
    wide, inner = _wide_loops(first.body)
    stores = [s for s in inner if isinstance(s, Store)]
    reads = _reads(inner)
    stored, read = {s.memory for s in stores}, {n.src[0] for n in reads}
    if len(wide) < 2 or len(stores) != len(inner) or not 0 < len(reads) <= most or \
            (len(stores) > 1 and stored & read) or not all(wide[-1].range in ranges_of(n.src[1]) for n in reads):
        return body
    outer, piece = counter(first.range.arg.name, first.range.arg.size // pieces), counter("q", pieces)
    inner = rebuild(inner, {first.range: add(multiply(outer, pieces), piece)})
    reads = _reads(inner)
    if any(n.op is o.LOAD for read_ in reads for n in toposort(read_.src[1:])):      # where it reads is read, too
        return body
    axes = (piece, *[f.range for f in wide])
    held: dict[UOp, UOp] = {n: register(f"ahead{i}", n.dtype, axes) for i, n in enumerate(reads)}
    out: list[Statement] = [*[Assign(r, n) for n, r in held.items()], *rebuild(inner, held)]
    for f in reversed(wide):
        out = [For(f.range, f.kind, out)]
    return [For(outer, LOOP, [For(piece, TILE, out)]), *body[1:]]


@move(lambda body, *_: body)
def read_first(body: list[Statement], most: int = MOST_FIRST) -> list[Statement]:
    """TILE u: LANE l: S(x[..]); T(y[..])  ->  TILE u: LANE l: r[u,l] = x[..]; q[u,l] = y[..]; S(r); T(q)

    All that several stores need is on its way at once, in loops around them too.
    refuses (leaves as it is): one store alone, too much to read, statements that read what others of them store
    """
    out: list[Statement] = []
    for s in body:
        wide, inner = _wide_loops([s])
        reads = [n for n in _reads(inner) if wide and wide[-1].range in ranges_of(n.src[1])]
        words = len(reads) * math.prod(f.range.arg.size for f in wide if f.kind == TILE)
        if not wide and isinstance(s, For):
            out.append(For(s.range, s.kind, read_first(s.body, most), s.stop))
            continue
        if len(inner) < 2 or words > most or not all(isinstance(x, Store) and x.combine is None for x in inner) or \
                {x.memory for x in inner if isinstance(x, Store)} & {n.src[0] for n in reads} or \
                any(n.op is o.LOAD for read in reads for n in toposort(read.src[1:])):
            out.append(s)
            continue
        held: dict[UOp, UOp] = {n: register(f"first{i}", n.dtype, [f.range for f in wide]) for i, n in enumerate(reads)}
        made: list[Statement] = [*[Assign(r, n) for n, r in held.items()], *rebuild(inner, held)]
        for f in reversed(wide):
            made = [For(f.range, f.kind, made)]
        out += made
    return out


def _reads(inner: list[Statement]) -> list[UOp]:
    """What statements read of the device's memory."""
    nodes = toposort([e for s in inner for e in expressions(s)])
    return [n for n in nodes if n.op is o.LOAD and n.src[0].op is o.PARAM]


def _wide_loops(body: list[Statement]) -> tuple[list[For], list[Statement]]:
    """The perfectly nested TILE and LANE loops of a body, and what the innermost one holds."""
    loops: list[For] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind in (TILE, LANE):
        loops.append(body[0])
        body = body[0].body
    return loops, body
