"""Moves on sums: lanes, chunks and groups of a reduction. In: statements. Out: statements, or None where they refuse.

The only moves that change the order in which a register adds up, so they go by sizes alone: a sum is the same to the
bit for every number of threads. What they are made of is in loop_moves.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, divide, index, multiply
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, identity
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, If, Statement, Store,
                                            counter, expressions, fold, load, local, register, walk)
from glassgrad.compiler.optimize.moves.loop_moves import Replace, accumulated, assigned, one, rebuild, steps_of, within


def wide_reduce(loop: For, tile: int, lanes: int, chunk: int = 0) -> list[Statement] | None:
    """for k in n: r += f(k)  ->  v[u,l] = 0; for o: TILE u: LANE l: v[u,l] += f((o*t + u)*v + l); r += fold(v); rest

    With a chunk, at most that many elements go into one v before it is folded: long sums stay accurate.
    refuses: loops inside, or a register accumulated here is read here
    """
    if any(isinstance(s, (For, If)) for s in loop.body):
        return None
    totals = accumulated(loop.body)
    reads = {n for s in loop.body for e in expressions(s) for n in toposort([e]) if n.op is o.REGISTER}
    if reads & set(totals):
        return None
    n, name = loop.range.arg.size, loop.range.arg.name
    if chunk and n > chunk and loop.stop is not None:
        return [_in_chunks(loop, loop.stop, chunk, lambda part: wide_reduce(part, tile, lanes) or [part])]
    if chunk and n > chunk:
        outer, inner = counter(name + "c", n // chunk), counter(name, chunk)
        part = For(inner, LOOP, rebuild(loop.body, {loop.range: add(multiply(outer, chunk), inner)}))
        out: list[Statement] = [For(outer, LOOP, wide_reduce(part, tile, lanes) or [part])]
        if n % chunk:
            rest = counter(name, n % chunk)
            part = For(rest, LOOP, rebuild(loop.body, {loop.range: add(index(n // chunk * chunk), rest)}))
            out += wide_reduce(part, tile, lanes) or [part]
        return out
    out = []
    for number, (start, count, t, v, stop) in enumerate(steps_of(loop, tile, lanes)):
        outer, over, lane = counter(name + "o", count), counter(name + "u", t), counter(name + "l", v)
        at = add(start, add(multiply(one(outer), t * v), add(multiply(one(over), v), one(lane))))
        axes = ([over] if t > 1 else []) + ([lane] if v > 1 else [])
        parts = {r: register(f"{r.arg}_{number}v", r.dtype, (*r.src, *axes)) for r in totals}
        names: Replace = {r: register(r.arg + f"_{name}", r.dtype, (*r.src, *axes)) for r in assigned(loop.body)}
        begin: list[Statement] = [Assign(parts[r], identity(combine, r.dtype)) for r, combine in totals.items()]
        body = rebuild(loop.body, {loop.range: at, **names})
        for s in body:
            if isinstance(s, Accumulate) and s.register in parts:
                s.register = parts[s.register]
        for axis, kind, size in ((lane, LANE, v), (over, TILE, t)):
            if size > 1:
                body, begin = [For(axis, kind, body)], [For(axis, kind, begin)]
        out += [*begin, *([For(outer, LOOP, body, stop)] if count > 1 or stop is not None else body)]
        out += [Accumulate(r, combine, fold(parts[r], combine, axes)) for r, combine in totals.items()]
    return out


def _in_chunks(loop: For, stop: UOp, chunk: int, inside: Callable[[For], list[Statement]]) -> For:
    """for k below stop: S  ->  for c: inside(for k in chunk, as far as stop: S[k = c*chunk + k])"""
    name, stop = loop.range.arg.name, within(stop, loop.range.arg.size)
    outer, inner = counter(name + "c", -(-loop.range.arg.size // chunk)), counter(name, chunk)
    part = For(inner, LOOP, rebuild(loop.body, {loop.range: add(multiply(outer, chunk), inner)}),
               add(stop, multiply(outer, -chunk)))
    return For(outer, LOOP, inside(part), divide(add(stop, index(chunk - 1)), chunk))


def chunks(body: list[Statement], chunk: int) -> list[Statement]:
    """for k in n: r += f(k)  ->  for c: { p = 0; for k in chunk: p += f(c*chunk + k); r += p }; and the rest

    For long float sums of one value each: no register adds more than `chunk` times, so they stay accurate.
    """
    out: list[Statement] = []
    for s in body:
        if not isinstance(s, For):
            out.append(s)
            continue
        totals = accumulated(s.body)
        n, name = s.range.arg.size, s.range.arg.name
        sums = bool(totals) and all(combine is o.ADD and r.dtype.is_float for r, combine in totals.items())
        inside = _steps_inside(s.body)
        parts = {r: register(r.arg + "p", r.dtype, r.src) for r in totals}
        begin: list[Statement] = [Assign(p, identity(o.ADD, p.dtype)) for p in parts.values()]
        end: list[Statement] = [Accumulate(r, o.ADD, p) for r, p in parts.items()]
        if sums and 1 < inside <= chunk < n * inside:      # nested loops, short each: a sum of the inner ones' sums
            out.append(For(s.range, s.kind, [*begin, *_into(s.body, parts), *end], s.stop))
            continue
        if inside > 1 or n <= chunk or not sums:
            out.append(For(s.range, s.kind, chunks(s.body, chunk), s.stop))
            continue
        if s.stop is not None:
            out.append(_in_chunks(s, s.stop, chunk, lambda part: [
                *begin, For(part.range, LOOP, _into(part.body, parts), part.stop), *end]))  # noqa: B023 - called at once
            continue
        outer, whole = counter(name + "c", n // chunk), n // chunk * chunk
        rest = counter(name, max(n - whole, 1))
        for inner, at, wrap in ((counter(name, chunk), None, True), (rest, index(whole), False)):
            if not wrap and n == whole:
                continue
            place = add(multiply(outer, chunk), inner) if at is None else add(at, inner)
            steps = _into(rebuild(s.body, {s.range: place}), parts)
            piece: list[Statement] = [*begin, For(inner, LOOP, steps), *end]
            out += [For(outer, LOOP, piece)] if wrap else piece
    return out


def _steps_inside(body: list[Statement]) -> int:
    """How often the innermost statements of a body run: 1 where it has no loop."""
    return max([s.range.arg.size * _steps_inside(s.body) for s in body if isinstance(s, For)], default=1)


def _into(body: list[Statement], parts: Replace) -> list[Statement]:
    """A copy of the statements that accumulates into other registers."""
    body = rebuild(body, {})
    for s in walk(body):
        if isinstance(s, Accumulate) and s.register in parts:
            s.register = parts[s.register]
    return body


def group(body: list[Statement], rows: list[UOp], chunk: int) -> tuple[list[Statement], list[Statement]] | None:
    """r = 0; for k in n: r += f(k); rest  ->  phase 1: TASK c: r = 0; for k in chunk: r += f(c*chunk + k); part[c] = r
                                              phase 2: r = 0; for c: r += part[c]; rest

    Both for each of the rows around them. refuses: the body does not begin with registers and their one loop
    """
    begins: list[Assign] = []
    for s in body:
        if not isinstance(s, Assign):
            break
        begins.append(s)
    at = len(begins)
    loop = body[at] if at < len(body) else None
    if not isinstance(loop, For) or loop.kind != LOOP or not begins:
        return None
    totals = accumulated(loop.body)
    if set(totals) != {b.register for b in begins} or any(
            isinstance(s, Store) and s.memory.op is o.LOCAL for s in walk(loop.body)):
        return None
    n, name = loop.range.arg.size, loop.range.arg.name
    count = -(-n // chunk)
    if count < 2:
        return None
    group_name = name + "g"
    while any(r.arg.name == group_name for r in rows):      # groups of groups: equal counters would be one node
        group_name += "g"
    outer, inner = counter(group_name, count), counter(name, chunk)
    position = add(multiply(outer, chunk), inner)
    stop = None if n % chunk == 0 else add(index(n), multiply(outer, -chunk))
    row_sizes = [r.arg.size for r in rows]
    place = outer
    for r, size in zip(rows, row_sizes):
        place = add(multiply(place, size), r)
    size = count * math.prod(row_sizes)
    first: list[Statement] = [Assign(b.register, b.value) for b in begins]
    first.append(For(inner, LOOP, rebuild(loop.body, {loop.range: position}), stop))
    second: list[Statement] = [Assign(b.register, b.value) for b in begins]
    again: list[Statement] = []
    for r, combine in totals.items():
        memory = local(f"part_{r.arg}_{group_name}", r.dtype, size, "shared")
        first.append(Store(memory, place, r))
        again.append(Accumulate(r, combine, load(memory, place)))
    for r in reversed(rows):
        first = [For(r, TASK, first)]
    return [For(outer, TASK, first)], [*second, For(outer, LOOP, again), *body[at + 1:]]
