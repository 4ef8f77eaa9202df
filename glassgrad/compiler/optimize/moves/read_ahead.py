"""Hoist loads above computation. In: vectors of independent iterations. Out: the same, with loads first.

A GPU thread that computes long on loaded values, and only then loads the next ones, leaves memory idle: the compiler
cannot hoist the load above a store that might alias it. But we know that iterations are independent. So are the stores
of one iteration, if none of them writes what others read.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, index, less, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Assign, For, Statement, Store, counter, in_loops, load,
                                            loads_in, ranges_of, register)
from glassgrad.compiler.optimize.moves.loop_moves import rebuild
from glassgrad.compiler.optimize.moves.move_decorator import move

PIECES = 4
MOST_FIRST = 64        # elements that a thread loads for several stores before the first of them
MOST_READS = 2         # loads per element: with more, they would take too many registers


@move(lambda body, *_: body)
def read_ahead(body: list[Statement], pieces: int = PIECES, most: int = MOST_READS) -> list[Statement]:
    """for o in n: TILE u: LANE l: S(x[..])  ->  for o in n/p: TILE q in p: TILE u: LANE l: r[q,u,l] = x[..]; S(r)

    refuses (returns the body): another form; n that is no multiple of p; many reads; statements that read what others
    of them store
    """
    first = body[0] if body else None
    if not isinstance(first, For) or first.kind != LOOP or first.stop is not None or first.range.arg.size % pieces:
        return body
    wide, inner = _wide_loops(first.body)
    if not _may_read_ahead(wide, inner, _reads(inner), most):
        return body
    outer, piece = counter(first.range.arg.name, first.range.arg.size // pieces), counter("q", pieces)
    inner = rebuild(inner, {first.range: add(multiply(outer, pieces), piece)})
    return [For(outer, LOOP, _loads_first("ahead", [For(piece, TILE, []), *wide], inner, _reads(inner))), *body[1:]]


@move(lambda body, *_: body)
def read_next(body: list[Statement], most: int) -> list[Statement]:
    """for o in n: wide: S(x[o], y)  ->  wide: s = y; r = x[0]; for o in n: wide: t = x[o + 1]; S(r, s); r = t

    For long computations, where a compiler would move the loads of several pieces down to their uses. refuses (returns
    the body): as `read_ahead`, but any n above 1 will do; loads that are the same for all lanes stay where they are
    """
    first = body[0] if body else None
    if not isinstance(first, For) or first.kind != LOOP or first.stop is not None or first.range.arg.size < 2:
        return body
    (wide, inner), at = _wide_loops(first.body), first.range
    reads = [n for n in _reads(inner) if any(f.range in ranges_of(n) for f in wide)]
    if not _may_read_ahead(wide, inner, reads, most):
        return body
    axes = [f.range for f in wide]
    held, later = ({n: register(f"{name}{i}", n.dtype, axes) for i, n in enumerate(reads)}
                   for name in ("ahead", "after"))
    begin = rebuild([Assign(r, n) for n, r in held.items()], {at: index(0)})
    moving = [n for n in reads if at in ranges_of(n)]
    steps = [*[Assign(later[n], _read_after(n, at)) for n in moving], *rebuild(inner, {**held}),
             *[Assign(held[n], later[n]) for n in moving]]
    return [*in_loops(wide, begin), For(at, LOOP, in_loops(wide, steps)), *body[1:]]


def _read_after(read: UOp, at: UOp) -> UOp:
    """The load of the next iteration, gated off in the last one."""
    place, *gates = [substitute_index(e, {at: add(at, index(1))}, {}) for e in read.src[1:]]
    return load(read.src[0], place, both(less(add(at, index(1)), index(at.arg.size)), gates[0] if gates else None))


def _may_read_ahead(wide: list[For], inner: list[Statement], reads: list[UOp], most: int) -> bool:
    """Whether statements are stores with few loads: none of memory that another of them stores to, none at a loaded
    index."""
    stores = [s for s in inner if isinstance(s, Store)]
    stored, read = {s.memory for s in stores}, {n.src[0] for n in reads}
    return len(wide) >= 2 and len(stores) == len(inner) and 0 < len(reads) <= most and \
        not (len(stores) > 1 and stored & read) and all(wide[-1].range in ranges_of(n.src[1]) for n in reads) and \
        not _read_by_index(reads)


def _read_by_index(reads: list[UOp]) -> bool:
    return any(n.op is o.LOAD for read in reads for n in toposort(read.src[1:]))


def read_first(body: list[Statement], least: int = 2, most: int = MOST_FIRST) -> list[Statement]:
    """TILE u: LANE l: S(x[..]); T(y[..])  ->  TILE u: LANE l: r[u,l] = x[..]; q[u,l] = y[..]; S(r); T(q)

    The loads of several stores are in flight together, also inside loops. `least` is 1 if the TILE loops around a
    single store repeat it at strided positions.
    refuses (leaves as it is): fewer stores; too much to read; statements that read what others of them store
    """
    out: list[Statement] = []
    for s in body:
        wide, inner = _wide_loops([s])
        reads = [n for n in _reads(inner) if wide and wide[-1].range in ranges_of(n.src[1])]
        words = len(reads) * math.prod(f.range.arg.size for f in wide if f.kind == TILE)
        if not wide and isinstance(s, For):
            out.append(For(s.range, s.kind, read_first(s.body, least, most), s.stop))
            continue
        if len(inner) < least or words > most or not all(isinstance(x, Store) and x.combine is None for x in inner) or \
                {x.memory for x in inner if isinstance(x, Store)} & {n.src[0] for n in reads} or _read_by_index(reads):
            out.append(s)
            continue
        out += _loads_first("first", wide, inner, reads)
    return out


def _loads_first(name: str, wide: list[For], inner: list[Statement], reads: list[UOp]) -> list[Statement]:
    """S(x[..])  ->  TILE u: LANE l: r[u,l] = x[..]; S(r)      (in these loops)"""
    axes = [f.range for f in wide]
    held: dict[UOp, UOp] = {n: register(f"{name}{i}", n.dtype, axes) for i, n in enumerate(reads)}
    return in_loops(wide, [*[Assign(r, n) for n, r in held.items()], *rebuild(inner, held)])


def _reads(inner: list[Statement]) -> list[UOp]:
    """The loads from the device's memory in statements."""
    return [n for n in loads_in(inner) if n.src[0].op is o.PARAM]


def _wide_loops(body: list[Statement]) -> tuple[list[For], list[Statement]]:
    """The perfectly nested TILE and LANE loops of a body, and the body of the innermost one."""
    loops: list[For] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind in (TILE, LANE):
        loops.append(body[0])
        body = body[0].body
    return loops, body
