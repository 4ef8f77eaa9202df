"""The moves: small edits of the loop tree that keep what it computes. In: statements. Out: statements.

Each shows before -> after, and refuses (returns None) where it does not apply. Recipes are lists of moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from glassgrad.graph import ops as o
from glassgrad.graph.dtype import dtypes
from glassgrad.graph.index import add, both, bounds, divide, index, less, modulo, multiply, substitute_index
from glassgrad.graph.node import toposort
from glassgrad.graph.ops import Op
from glassgrad.graph.uop import UOp, const, identity
from glassgrad.lower.loops import (
    LANE,
    LOOP,
    TASK,
    TILE,
    Accumulate,
    Assign,
    For,
    If,
    Prefetch,
    Statement,
    Store,
    counter,
    expressions,
    fold,
    load,
    local,
    ranges_of,
    register,
    walk,
)

Replace = dict[UOp, UOp]


# -- what every move is made of ------------------------------------------------------------------------------
def rebuild(body: Iterable[Statement], replace: Replace) -> list[Statement]:
    """A copy of the statements with counters, registers or other expressions exchanged."""
    memo: Replace = {}

    def new(e: UOp | None) -> UOp | None:
        return None if e is None else substitute_index(e, replace, memo)

    def copy(s: Statement) -> Statement:
        if isinstance(s, For):
            return For(s.range, s.kind, [copy(inner) for inner in s.body], new(s.stop))
        if isinstance(s, If):
            return If(new(s.condition), [copy(inner) for inner in s.body])  # type: ignore[arg-type]
        if isinstance(s, Assign):
            return Assign(new(s.register), new(s.value))  # type: ignore[arg-type]
        if isinstance(s, Accumulate):
            return Accumulate(new(s.register), s.combine, new(s.value))  # type: ignore[arg-type]
        if isinstance(s, Prefetch):
            return Prefetch(s.memory, new(s.index))  # type: ignore[arg-type]
        return Store(s.memory, new(s.index), new(s.value), s.combine, new(s.gate))  # type: ignore[arg-type]

    return [copy(s) for s in body]


def chain(body: list[Statement]) -> tuple[list[For], list[Statement]]:
    """The perfectly nested independent loops around the rest."""
    loops: list[For] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == TASK:
        loops.append(body[0])
        body = body[0].body
    return loops, body


def assigned(body: Iterable[Statement]) -> list[UOp]:
    """Registers that begin (are assigned, not only accumulated) in these statements."""
    return list(dict.fromkeys(s.register for s in walk(body) if isinstance(s, Assign)))


def accumulated(body: Iterable[Statement]) -> dict[UOp, Op]:
    """Registers that are accumulated here but begin outside, with what combines them."""
    inside = set(assigned(body))
    return {s.register: s.combine for s in walk(body) if isinstance(s, Accumulate) and s.register not in inside}


def _private_rows(body: list[Statement], lanes: int, lane: UOp) -> Replace:
    """LOCAL memory written inside a wide loop becomes one copy per lane: element e of lane l at e * lanes + l."""
    replace: Replace = {}
    memories = {s.memory for s in walk(body) if isinstance(s, Store) and s.memory.op is o.LOCAL
                and s.memory.arg.home == "worker"}
    for memory in memories:
        replace[memory] = local(memory.arg.name, memory.dtype, memory.arg.size * lanes)
    return replace


# -- moves ---------------------------------------------------------------------------------------------------
def merge(outer: For) -> For | None:
    """for i in a: for j in b: ..i..j..  ->  for m in a*b: ..m//b..m%b..      refuses: an index does not stay linear"""
    if len(outer.body) != 1 or not isinstance(outer.body[0], For):
        return None
    inner = outer.body[0]
    if inner.kind != outer.kind or inner.stop is not None:
        return None
    a, b = outer.range.arg.size, inner.range.arg.size
    whole = counter(outer.range.arg.name, a * b)
    body = rebuild(inner.body, {outer.range: divide(whole, b), inner.range: modulo(whole, b)})
    for node in toposort(e for s in walk(body) for e in expressions(s)):
        if node.op in (o.IDIV, o.MOD) and whole in ranges_of(node.src[0]) and node.src[0].dtype.name == "int64":
            return None
    return For(whole, outer.kind, body, None if outer.stop is None else multiply(outer.stop, b))


def merge_all(body: list[Statement]) -> list[Statement]:
    """Merge every pair of nested loops that can be merged, inside out."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, For):
            s = For(s.range, s.kind, merge_all(s.body), s.stop)
            s = merge(s) or s
        elif isinstance(s, If):
            s = If(s.condition, merge_all(s.body))
        out.append(s)
    return out


def wide(loop: For, tile: int, lanes: int, copies: bool = True) -> list[Statement]:
    """for i in n: S  ->  for o in n/(t*v): TILE u in t: LANE l in v: S[i = (o*t + u)*v + l]; and the rest the same way

    For loops of independent iterations. Registers that begin inside become one per (u, l), and so does LOCAL memory
    that is written inside; without `copies`, it is indexed by i already.
    """
    name = loop.range.arg.name
    out: list[Statement] = []
    for start, count, t, v, stop in _steps_of(loop, tile, lanes):
        outer, over, lane = counter(name + "o", count), counter(name + "u", t), counter(name + "l", v)
        at = add(start, add(multiply(_one(outer, count), t * v), add(multiply(_one(over, t), v), _one(lane, v))))
        axes = ([over] if t > 1 else []) + ([lane] if v > 1 else [])
        names: Replace = {r: register(r.arg + f"_{name}", r.dtype, (*r.src, *axes)) for r in assigned(loop.body)}
        memories = _private_rows(loop.body, t * v, lane) if copies else {}
        body = rebuild(loop.body, {loop.range: at, **names})
        if memories:
            body = _spread_rows(body, memories, t * v, add(multiply(_one(over, t), v), _one(lane, v)))
        if v > 1:
            body = [For(lane, LANE, body)]
        if t > 1:
            body = [For(over, TILE, body)]
        out += [For(outer, loop.kind, body, stop)] if count > 1 or stop is not None else body
    return out


def _steps_of(loop: For, tile: int, lanes: int) -> list[tuple[UOp, int, int, int, UOp | None]]:
    """A loop's elements as (where they start, how many times at most, vectors, lanes, how many times as it runs).

    Where the end is known only when the loop runs: whole tiles, then whole vectors, then one element at a time.
    """
    n, stop = loop.range.arg.size, loop.stop
    if stop is None:
        out: list[tuple[UOp, int, int, int, UOp | None]] = []
        start = 0
        for count, t, v in _steps(n, tile, lanes):
            out.append((index(start), count, t, v, None))
            start += count * t * v
        return out
    stop = _within(stop, n)
    whole, vectors = divide(stop, tile * lanes), divide(stop, lanes)
    steps = [(index(0), n // (tile * lanes), tile, lanes, whole),
             (multiply(whole, tile * lanes), min(tile - 1, n // lanes), 1, lanes, modulo(vectors, tile)),
             (multiply(vectors, lanes), min(lanes - 1, n), 1, 1, modulo(stop, lanes))]
    return [step for step in steps if step[1] > 0]


def _within(stop: UOp, size: int) -> UOp:
    """A stop that is not beyond the size, where it would not count."""
    return stop if bounds(stop)[1] <= size else UOp(o.MIN, dtypes.index, (stop, index(size)))


def _steps(n: int, tile: int, lanes: int) -> list[tuple[int, int, int]]:
    """n elements as (how many times, vectors, lanes): whole tiles, the vectors left over at once, the lanes left over.

    >>> _steps(1000, 4, 16)
    [(15, 4, 16), (1, 2, 16), (1, 1, 8)]
    """
    tiles, rest = divmod(n, tile * lanes)
    vectors, last = divmod(rest, lanes)
    return [step for step in ((tiles, tile, lanes), (1, vectors, lanes), (1, 1, last)) if math.prod(step)]


def _one(range_: UOp, size: int) -> UOp:
    return range_ if size > 1 else index(0)


def _spread_rows(body: list[Statement], memories: Replace, copies: int, at: UOp) -> list[Statement]:
    nodes = toposort(e for s in walk(body) for e in expressions(s))
    loads = [n for n in nodes if n.op is o.LOAD and n.src[0] in memories]
    body = rebuild(body, {n: load(memories[n.src[0]], add(multiply(n.src[1], copies), at), *n.src[2:]) for n in loads})
    for s in walk(body):
        if isinstance(s, Store) and s.memory in memories:
            s.memory, s.index = memories[s.memory], add(multiply(s.index, copies), at)
    return body


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
    for number, (start, count, t, v, stop) in enumerate(_steps_of(loop, tile, lanes)):
        outer, over, lane = counter(name + "o", count), counter(name + "u", t), counter(name + "l", v)
        at = add(start, add(multiply(_one(outer, count), t * v), add(multiply(_one(over, t), v), _one(lane, v))))
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
    name, stop = loop.range.arg.name, _within(stop, loop.range.arg.size)
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


def spread(body: list[Statement], count: int) -> list[Statement]:
    """for i in n: S; rest  ->  TASK t in count: { for i in n/count: S; if t is the last: rest }"""
    loop = body[0]
    if not isinstance(loop, For) or count < 2 or loop.range.arg.size < 2 or loop.kind not in (LOOP, TASK):
        return body
    split = tasks(For(loop.range, LOOP, loop.body, loop.stop), count)
    if split.kind != TASK:
        return body
    if len(body) > 1:
        last = less(index(split.range.arg.size - 2), split.range)
        inner = split.body if isinstance(split.body[0], For) and split.body[0].kind == LOOP else split.body
        split.body = [*inner, If(last, body[1:])]
    return [split]


def tasks(loop: For, count: int) -> For:
    """for i in n: S  ->  TASK o in count: for i in n/count: S[i = o*n/count + i]      (the last may be shorter)"""
    n, name = loop.range.arg.size, loop.range.arg.name
    if count >= n:
        return For(loop.range, TASK, loop.body, loop.stop)
    step = -(-n // max(count, 1))
    count = -(-n // step)
    if count == 1:
        return For(loop.range, LOOP, loop.body, loop.stop)
    if loop.stop is not None:              # dealt out in turn: every task gets its share, however many there are
        outer, inner = counter(name + "t", count), counter(name, step)
        body = rebuild(loop.body, {loop.range: add(multiply(inner, count), outer)})
        left = divide(add(loop.stop, add(index(count - 1), multiply(outer, -1))), count)
        return For(outer, TASK, [For(inner, LOOP, body, left)])
    outer, inner = counter(name + "t", count), counter(name, step)
    body = rebuild(loop.body, {loop.range: add(multiply(outer, step), inner)})
    stop = None if n % step == 0 else add(index(n), multiply(outer, -step))
    return For(outer, TASK, [For(inner, LOOP, body, stop)])


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
    size = count
    for s_ in row_sizes:
        size *= s_
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


def edge_gate(expression: UOp, gate: UOp | None, memo: Replace | None = None) -> UOp:
    """The expression with every LOAD gated too: nothing is read past a ragged edge."""
    if gate is None:
        return expression
    replace: Replace = {}
    for n in toposort([expression]):
        if n.op is o.LOAD:                        # its index may be loaded too: a gather
            at, *gates = (substitute_index(s, replace, {}) for s in n.src[1:])
            replace[n] = UOp(o.LOAD, n.dtype, (n.src[0], at, _and(tuple(gates), gate)))
    return substitute_index(expression, replace, {})


def _and(gates: tuple[UOp, ...], gate: UOp) -> UOp:
    joined = both(gates[0] if gates else None, gate)
    return const(True) if joined is None else joined


def below(at: UOp, size: int) -> UOp | None:
    """at < size, or None where it always holds."""
    condition = less(at, index(size))
    return None if condition.op is o.CONST and condition.arg else condition
