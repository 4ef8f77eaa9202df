"""Resolve gates that test divisibility at compile time. In: a loop tree. Out: trees without such gates.

The gradient of a window with stride s reads x[(i - k) / s] where s divides i - k, and 0 elsewhere: of s taps, s - 1
multiply zeros. Which taps these are depends on the remainder of i alone:

    for i in n: for k in taps: if (i - k) % s == 0: S[i, k]
    ->  for each r in s:  for i in n/s: for k in the taps with (r - k) % s == 0:  S[s*i + r, k]

Each remainder becomes a separate loop nest: no gate is left, no product is wasted, and addresses have constant strides.
If the nests are not contractions, a GPU does them in one nest, so that their interleaved results are stored together.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide_up, index, less, linear, multiply, substitute_index
from glassgrad.compiler.lower.loops import (Accumulate, Assign, For, If, Statement, Store, counter, in_loops, loads_in,
                                            register, task_loops, walk, with_body)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import edge_gate
from glassgrad.compiler.optimize.moves.move_decorator import move
from glassgrad.compiler.schedule.joined_remainders import MOST_NESTS


@move(lambda body: [body])
def by_remainder(body: list[Statement]) -> list[list[Statement]]:
    """One loop nest for each remainder; only the body itself if no gate tests a remainder."""
    waiting: list[list[Statement]] = [body]
    done: list[list[Statement]] = []
    while waiting:
        first = waiting.pop(0)
        cut = _cut(first, MOST_NESTS - len(waiting) - len(done))
        if cut is None:
            done.append(first)
        else:
            waiting += cut
    return done


@move(lambda body: body)
def split_where_divided(body: list[Statement]) -> list[Statement]:
    """for i in n: S[(i + c) // s, (i + c) % s]  ->  for q: for r in s: S[q, r] where 0 <= s * q + r - c < n
    refuses: a body without sums; sums that do not divide their index along a loop like this, or use it in another
    way"""
    loops, inner = task_loops(body)
    out: list[For] = []
    for f in loops:
        found = _divided(f, inner)
        if found is None:
            out.append(f)
            continue
        begin, step = found
        i, size = f.range.arg.name, f.range.arg.size
        some, rest = counter(i, -(-(size + begin) // step)), counter(f"{i}r", step)
        at = add(add(multiply(some, step), rest), index(-begin))
        before = less(index(-1), at) if begin else None
        inside = both(before, less(at, index(size)) if (size + begin) % step else None)
        inner = [s if inside is None or not isinstance(s, Store) else
                 Store(s.memory, s.index, edge_gate(s.value, inside), s.combine, both(inside, s.gate))
                 for s in moves.rebuild(inner, {f.range: at})]
        out += [For(some, f.kind, []), For(rest, f.kind, [])]
    return in_loops(out, inner)


def _divided(f: For, inner: list[Statement]) -> tuple[int, int] | None:
    """The numbers c and s, if sums use the loop index i only as (i + c) % s and (i + c) // s; None otherwise."""
    every = list(walk(inner))
    sums = [s.value for s in every if isinstance(s, (Assign, Accumulate))]
    if any(not isinstance(s, (For, Assign, Accumulate)) and s not in inner for s in every) or \
            any(isinstance(s, For) and s.stop is not None for s in every):
        return None                      # stores must come after the sums
    found: set[tuple[int, int]] = set()

    def parts(node: UOp) -> tuple[UOp, ...]:
        if node.op in (o.MOD, o.IDIV) and node.src[1].op is o.CONST:
            constant, terms = linear(node.src[0])
            if terms == {f.range: 1}:
                found.add((constant % int(node.src[1].arg), int(node.src[1].arg)))
                return ()
        return node.src
    read = toposort(sums, parts)
    if len(found) != 1 or f.range in read or f.stop is not None or not any(n.op is o.MOD for n in read):
        return None
    [(begin, step)] = found
    return (begin, step) if 1 < step < f.range.arg.size else None


@move(lambda nests: nests)
def in_one_nest(nests: list[list[Statement]]) -> list[list[Statement]]:
    """for i: S0[2i]; for i: S1[2i + 1]  ->  for i: S0[2i]; S1[2i + 1]      (so that accesses are contiguous)
    refuses: loops of different lengths; bodies that are not sums, then stores; reads of memory that is stored to"""
    loops = [task_loops(nest)[0] for nest in nests]
    heads = [[(f.range, f.kind, f.stop) for f in own] for own in loops]
    inner = [task_loops(nest)[1] for nest in nests]
    every = [s for body in inner for s in walk(body)]
    stored = {s.memory for s in every if isinstance(s, Store)}
    read = {n.src[0] for body in inner for n in loads_in(body)}
    if len(nests) < 2 or any(other != heads[0] for other in heads) or not stored.isdisjoint(read) or \
            not all(isinstance(s, (For, Assign, Accumulate, Store)) for s in every):
        return nests
    sums: list[Statement] = []
    stores: list[Statement] = []
    for number, body in enumerate(inner):
        own = {r: register(f"{r.arg}_{number}", r.dtype, r.src) for r in moves.initialized(body)}
        begins = [s for s in body if isinstance(s, Assign)]
        steps = [s for s in body if isinstance(s, (For, Accumulate))]
        ends = [s for s in body if isinstance(s, Store)]
        if [*begins, *steps, *ends] != body:
            return nests
        terms = [s for s in steps if isinstance(s, Accumulate)]
        if terms == steps:                       # a sum with one term has no loop
            first = {s.register: s.value for s in begins}
            for term in terms:
                first[term.register] = UOp(term.combine, term.value.dtype, (first[term.register], term.value))
            stores += moves.rebuild(ends, first)
        else:
            sums += moves.rebuild([*begins, *steps], own)
            stores += moves.rebuild(ends, own)
    return [in_loops(loops[0], [*sums, *stores])]


def _cut(body: list[Statement], most: int) -> list[list[Statement]] | None:
    """One nest per remainder of one gate, at most `most` nests; None if there is no such gate between one outer loop
    and one summed loop."""
    loops, inner = task_loops(body)
    summed = {s.range for s in walk(inner) if isinstance(s, For) and s.stop is None}
    outer = {f.range: at for at, f in enumerate(loops)}
    # a gate in the epilogue of a sum saves no products: the loops stay whole
    for gate in toposort(s.value for s in walk(inner) if isinstance(s, Accumulate)):
        if gate.op is not o.CMPLT or gate.src[0].op is not o.MOD or gate.src[1] is not index(1):
            continue
        offset, modulus = gate.src[0].src
        constant, terms = linear(offset)
        along = [a for a in terms if a in outer]
        taps = [a for a in terms if a in summed]
        if modulus.op is not o.CONST or len(along) != 1 or len(taps) > 1 or len(terms) != len(along) + len(taps):
            continue
        i, s = along[0], int(modulus.arg)
        count = min(s, i.arg.size)
        if math.gcd(terms[i], s) != 1 or count > most:      # the gradient of a diagonal has a remainder per row
            continue
        nests = [_nest(loops, outer[i], r, s, inner, gate, taps) for r in range(count)]
        if all(nest is not None for nest in nests):
            return [nest for nest in nests if nest is not None]
    return None


def _nest(loops: list[For], at: int, r: int, s: int, inner: list[Statement], gate: UOp, taps: list[UOp]) \
        -> list[Statement] | None:
    """The loop nest of one remainder r, in which loop `at` goes over the positions with that remainder. refuses (None):
    terms that are not 0 where the gate is false"""
    old, stop = loops[at].range, loops[at].stop
    size = -(-(old.arg.size - r) // s)
    new, is_loop = counter(old.arg.name, size), size > 1 or stop is not None
    position = add(multiply(new, s), index(r)) if is_loop else index(r)
    body = moves.rebuild(inner, {old: position})
    if taps:
        held = [substitute_index(gate, {old: position, taps[0]: index(k)}, {}) for k in range(taps[0].arg.size)]
        wanted = [k for k, test in enumerate(held) if test.arg]
        only = _only(body, taps[0], wanted)
        if only is None:
            return None
        body = only
    until = None if stop is None else divide_up(add(stop, index(-r)), s)
    own = [For(new, loops[at].kind, [], until)] if is_loop else []
    return in_loops([*loops[:at], *own, *loops[at + 1:]], _without_zeros(body))


def _only(body: list[Statement], tap: UOp, wanted: list[int]) -> list[Statement] | None:
    """Restrict the loop over `tap` to the wanted taps, of constant stride; None if another tap adds anything but 0."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, For) and s.range is tap:
            for k in set(range(tap.arg.size)) - set(wanted):
                if _without_zeros(moves.rebuild(s.body, {tap: index(k)})):
                    return None
            if len(wanted) > 1:
                new = counter(tap.arg.name, len(wanted))
                place = add(multiply(new, wanted[1] - wanted[0]), index(wanted[0]))
                out.append(For(new, s.kind, moves.rebuild(s.body, {tap: place})))
            elif wanted:
                out += moves.rebuild(s.body, {tap: index(wanted[0])})
        elif isinstance(s, (For, If)):
            inside = _only(s.body, tap, wanted)
            if inside is None:
                return None
            out.append(with_body(s, inside))
        else:
            out.append(s)
    return out


def _without_zeros(body: list[Statement]) -> list[Statement]:
    """Remove statements that add 0, and loops that become empty."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, (For, If)):
            inside = _without_zeros(s.body)
            if inside:
                out.append(with_body(s, inside))
        elif not (isinstance(s, Accumulate) and s.combine is o.ADD and _zero(s.value)):
            out.append(s)
    return out


def _zero(value: UOp) -> bool:
    """Whether the form of a value shows that it is 0. The gate comes before the product: there is no 0 * infinity."""
    if value.op is o.CONST:
        return value.arg == 0
    if value.op is o.MUL:
        return _zero(value.src[0]) or _zero(value.src[1])
    if value.op is o.WHERE:
        return _zero(value.src[1]) and _zero(value.src[2])
    return value.op in (o.CAST, o.NEG) and _zero(value.src[0])
