"""Moves on sums: lanes, chunks and groups of a reduction. In: statements. Out: statements; None where a move refuses.

Only these moves change the order in which a register adds up values. They depend on sizes alone, so a sum has the same
bits for any number of threads. Their building blocks are in loop_moves.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from glassgrad.compiler.graph import UOp, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, divide_up, index, multiply
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, Accumulate, Assign, For, If, Statement, Store, counter,
                                            each_loop, expressions, flat_index, fold, load, local, loops_around, nested,
                                            nodes_in, piece_bound, register, walk)
from glassgrad.compiler.optimize.moves.loop_moves import Replace, WideStep, accumulated, clamped, rebuild, wide_steps
from glassgrad.compiler.optimize.moves.move_decorator import move


@move(lambda body: body)
def sums_together(body: list[Statement]) -> list[Statement]:
    """r = 0; for k: r += f; S(r); q = 0; for k: q += g; T(q)  ->  r = 0; q = 0; for k: r += f, q += g; S(r); T(q)

    Loops may be nested, also inside others. Values that both f and g read are then read once. refuses: loops of
    different lengths; g reading r, or memory that S stores to
    """
    first = next((s for s in body if isinstance(s, For) and s.kind == LOOP), None)
    if first is None:
        return [For(s.range, s.kind, sums_together(s.body), s.stop) if isinstance(s, For) else s for s in body]
    if not all(isinstance(s, (For, Accumulate)) for s in walk([first])):
        return body
    ahead, behind = body[:body.index(first)], body[body.index(first) + 1:]
    begins: list[Statement] = []
    rest: list[Statement] = []
    for at, s in enumerate(behind):
        own = set(accumulated([s])) if isinstance(s, For) else set()
        starts = [b for b in rest if isinstance(b, Assign) and b.register in own]
        joined = _one_nest(first, s) if isinstance(s, For) and len(starts) == len(own) and _needs_nothing(
            s, own, [first, *behind[:at]]) else None
        if joined is None:
            rest.append(s)
        else:
            first, begins = joined, [*begins, *starts]
            rest = [b for b in rest if b not in starts]
    return [*ahead, *begins, first, *rest]


def _needs_nothing(loop: For, own: set[UOp], before: list[Statement]) -> bool:
    """Whether a sum reads no registers except its own, and nothing that statements before it store."""
    nodes = nodes_in([loop])
    stored = {s.memory for s in walk(before) if isinstance(s, Store)}
    return all(n in own for n in nodes if n.op is o.REGISTER) and stored.isdisjoint(nodes) and \
        all(isinstance(s, (For, Accumulate)) for s in walk([loop]))


def _one_nest(first: For, other: For) -> For | None:
    """Put both bodies into one nest of loops; None if the loops differ."""
    if (first.kind, first.range.arg.size) != (other.kind, other.range.arg.size) or \
            first.stop is not None or other.stop is not None:
        return None
    body = rebuild(other.body, {other.range: first.range})
    inside = [[s for s in statements if isinstance(s, For)] for statements in (first.body, body)]
    if not any(inside):
        return For(first.range, first.kind, [*first.body, *body])
    if len(first.body) != 1 or len(body) != 1 or not all(inside):
        return None
    nested = _one_nest(inside[0][0], inside[1][0])
    return None if nested is None else For(first.range, first.kind, [nested])


@move(lambda loop, *_, **__: None)
def wide_reduce(loop: For, tile: int, lanes: int, chunk: int = 0, consecutive: bool = False) -> list[Statement] | None:
    """for k in n: r += f(k)  ->  v[u,l] = 0; for o: TILE u: LANE l: v[u,l] += f((o*t + u)*v + l); r += fold(v); rest

    With a chunk, at most that many elements are added to one v before it is folded, so that long sums stay accurate.
    With `consecutive`, each lane has consecutive elements, f((o*v + l)*t + u), which a GPU thread loads together. With
    a run-time bound, the rest goes into one of the vectors, and they are folded once. refuses: a branch inside; a
    register that is accumulated here and also read here, or accumulated in a loop inside
    """
    if not folds(loop):
        return None
    if chunk and loop.range.arg.size > chunk:
        return _in_chunks(loop, chunk, lambda part: wide_reduce(part, tile, lanes, consecutive=consecutive) or [part])
    steps = wide_steps(loop, tile, lanes, consecutive)
    if loop.stop is not None and steps:
        return reduce_step(loop, steps[0], LOOP, others=steps[1:])
    return [s for number, step in enumerate(steps) for s in reduce_step(loop, step, LOOP, number)]


def reduce_step(loop: For, step: WideStep, kind: str, number: int = 0, others: Sequence[WideStep] = ()) \
        -> list[Statement]:
    """One step of a sum: initialize vectors, accumulate into them in a loop of this kind, fold them. With `others`,
    several steps accumulate into the first one's vectors: in short rows, a fold for each step would take longest."""
    totals = accumulated(loop.body)
    parts = {r: register(f"{r.arg}_{number}v", r.dtype, (*r.src, *step.axes)) for r in totals}
    out = [*step.tiled([Assign(parts[r], identity(combine, r.dtype)) for r, combine in totals.items()]),
           *step.loop(step.tiled(_into(step.body_of(loop), parts)), kind)]
    if others:
        vectors, lane = parts, [a for a in step.axes if a is step.lane]
        parts = {r: register(f"{r.arg}_{number}w", r.dtype, (*r.src, *lane)) for r in totals}
        out += nested(lane, [Assign(parts[r], fold(vectors[r], totals[r], [step.over])) for r in totals], LANE)
        out += [s for other in others for s in other.loop(other.tiled(_into(other.body_of(loop), parts)), kind)]
    return [*out, *[Accumulate(r, combine, fold(parts[r], combine, step.axes)) for r, combine in totals.items()]]


def folds(loop: For) -> bool:
    """Whether a loop's iterations can be split into partial sums that are combined at the end."""
    totals, inside = accumulated(loop.body), list(walk(loop.body))
    reads = {n for s in inside for e in expressions(s) for n in toposort([e]) if n.op is o.REGISTER}
    deeper = {r for s in inside if isinstance(s, For) for r in accumulated(s.body)}
    return not any(isinstance(s, If) for s in inside) and not (reads | deeper) & set(totals)


def _in_chunks(loop: For, chunk: int, inside: Callable[[For], list[Statement]]) -> list[Statement]:
    """for k in n: S  ->  for c: inside(for k in chunk: S[k = c*chunk + k]); inside(for k in the rest: S)

    With a run-time bound, there is no remainder loop: the last chunk is shorter.
    """
    n, name = loop.range.arg.size, loop.range.arg.name
    stop = None if loop.stop is None else clamped(loop.stop, n)
    outer, inner = counter(name + "c", n // chunk if stop is None else -(-n // chunk)), counter(name, chunk)
    whole = rebuild(loop.body, {loop.range: add(multiply(outer, chunk), inner)})
    if stop is not None:
        part = For(inner, LOOP, whole, add(stop, multiply(outer, -chunk)))
        return [For(outer, LOOP, inside(part), divide_up(stop, chunk))]
    out: list[Statement] = [For(outer, LOOP, inside(For(inner, LOOP, whole)))]
    if n % chunk:
        rest = counter(name, n % chunk)
        out += inside(For(rest, LOOP, rebuild(loop.body, {loop.range: add(index(n // chunk * chunk), rest)})))
    return out


@move(lambda body, chunk: body)
def chunks(body: list[Statement], chunk: int) -> list[Statement]:
    """for k in n: r += f(k)  ->  for c: { p = 0; for k in chunk: p += f(c*chunk + k); r += p }; and the rest

    For long float sums of one value each: no register adds more than `chunk` values, so sums stay accurate.
    """
    def cut(s: For) -> list[Statement]:
        totals, n = accumulated(s.body), s.range.arg.size
        sums = bool(totals) and all(combine is o.ADD and r.dtype.is_float for r, combine in totals.items())
        inside = _steps_inside(s.body)
        parts = {r: register(r.arg + "p", r.dtype, r.src) for r in totals}
        begin: list[Statement] = [Assign(p, identity(o.ADD, p.dtype)) for p in parts.values()]
        end: list[Statement] = [Accumulate(r, o.ADD, p) for r, p in parts.items()]
        if sums and 1 < inside <= chunk < n * inside:      # nested short loops: each inner loop is one term
            return [For(s.range, s.kind, [*begin, *_into(s.body, parts), *end], s.stop)]
        if inside > 1 or n <= chunk or not sums:
            return [For(s.range, s.kind, chunks(s.body, chunk), s.stop)]
        return _in_chunks(s, chunk, lambda part: [
            *begin, For(part.range, LOOP, _into(part.body, parts), part.stop), *end])
    return each_loop(body, cut)


def _steps_inside(body: list[Statement]) -> int:
    """The trip count of a body's innermost statements; 1 if it has no loop."""
    return max([s.range.arg.size * _steps_inside(s.body) for s in body if isinstance(s, For)], default=1)


def _into(body: list[Statement], parts: Replace) -> list[Statement]:
    """Copy statements, accumulating into other registers."""
    body = rebuild(body, {})
    for s in walk(body):
        if isinstance(s, Accumulate) and s.register in parts:
            s.register = parts[s.register]
    return body


def leading(body: list[Statement]) -> list[Assign]:
    """The assignments at the beginning of a body."""
    out: list[Assign] = []
    for s in body:
        if not isinstance(s, Assign):
            break
        out.append(s)
    return out


@move(lambda body, rows, chunk: None)
def group(body: list[Statement], rows: list[UOp], chunk: int) -> tuple[list[Statement], list[Statement]] | None:
    """r = 0; for k in n: r += f(k); rest  ->  phase 1: TASK c: r = 0; for k in chunk: r += f(c*chunk + k); part[c] = r
                                              phase 2: r = 0; for c: r += part[c]; rest

    Both are inside the loops over `rows`. With a run-time bound, only the chunks below it run, and the last is shorter.
    refuses: a body that is not registers, the one loop that sums them, and the rest
    """
    begins = leading(body)
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
    stop = None if loop.stop is None else clamped(loop.stop, n)
    group_name = name + "g"
    while any(r.arg.name == group_name for r in rows):      # for groups of groups: equal counters would be one node
        group_name += "g"
    outer, inner = counter(group_name, count), counter(name, chunk)
    position = add(multiply(outer, chunk), inner)
    place = flat_index(rows, outer)
    size = count * math.prod([r.arg.size for r in rows])
    first: list[Statement] = [Assign(b.register, b.value) for b in begins]
    left = piece_bound(n if stop is None else stop, chunk, outer)
    first.append(For(inner, LOOP, rebuild(loop.body, {loop.range: position}), left))
    second: list[Statement] = [Assign(b.register, b.value) for b in begins]
    again: list[Statement] = []
    for r, combine in totals.items():
        memory = local(f"part_{r.arg}_{group_name}", r.dtype, size, "shared")
        first.append(Store(memory, place, r))
        again.append(Accumulate(r, combine, load(memory, place)))
    started = stop and divide_up(stop, chunk)
    return [For(outer, TASK, loops_around(rows, first, TASK), started)], \
        [*second, For(outer, LOOP, again, started), *body[at + 1:]]
