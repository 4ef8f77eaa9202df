"""Gates that test divisibility, decided before the kernel runs. In: a loop tree. Out: trees without such gates.

The gradient of a window with a stride s reads x[(i - k) / s] where s divides i - k, and 0 elsewhere: of s taps, s - 1
multiply zeros. But which taps count depends on the remainder of i alone:

    for i in n: for k in taps: if (i - k) % s == 0: S[i, k]
    ->  for each r in s:  for i in n/s: for k in the taps with (r - k) % s == 0:  S[s*i + r, k]

Each remainder is a loop nest of its own: no gate is left, no product is wasted, and addresses step evenly again.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, index, linear, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Accumulate, For, If, Statement, counter, task_loops, walk, with_body
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.move_limit import move

MOST = 16                # loop nests that a kernel is cut into: each is compiled for itself


@move(lambda body: [body])
def residues(body: list[Statement]) -> list[list[Statement]]:
    """The body as one loop nest for each remainder; itself where no gate tests one."""
    waiting: list[list[Statement]] = [body]
    done: list[list[Statement]] = []
    while waiting:
        first = waiting.pop(0)
        cut = _cut(first)
        if cut is None or len(waiting) + len(done) + len(cut) > MOST:
            done.append(first)
        else:
            waiting += cut
    return done


def _cut(body: list[Statement]) -> list[list[Statement]] | None:
    """One nest per remainder of one gate; None where there is no gate between one outer and one summed loop."""
    loops, inner = task_loops(body)
    summed = {s.range for s in walk(inner) if isinstance(s, For) and s.stop is None}
    outer = {f.range: at for at, f in enumerate(loops) if f.stop is None}
    # a gate on what is done with a sum saves no product: there the loops stay whole
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
        if math.gcd(terms[i], s) != 1:
            continue
        nests = [_nest(loops, outer[i], r, s, inner, gate, taps) for r in range(min(s, i.arg.size))]
        if all(nest is not None for nest in nests):
            return [nest for nest in nests if nest is not None]
    return None


def _nest(loops: list[For], at: int, r: int, s: int, inner: list[Statement], gate: UOp, taps: list[UOp]) \
        -> list[Statement] | None:
    """The loops around the taps of one remainder, with loop `at` over the positions that have it. refuses: what is
    summed is not 0 where the gate is false"""
    old = loops[at].range
    size = -(-(old.arg.size - r) // s)
    new = counter(old.arg.name, size)
    position = add(multiply(new, s), index(r)) if size > 1 else index(r)
    body = moves.rebuild(inner, {old: position})
    if taps:
        held = [substitute_index(gate, {old: position, taps[0]: index(k)}, {}) for k in range(taps[0].arg.size)]
        wanted = [k for k, test in enumerate(held) if test.arg]
        only = _only(body, taps[0], wanted)
        if only is None:
            return None
        body = only
    body = _without_zeros(body)
    for f in reversed(loops):
        if f.range is not old:
            body = [For(f.range, f.kind, body, f.stop)]
        elif size > 1:
            body = [For(new, f.kind, body)]
    return body


def _only(body: list[Statement], tap: UOp, wanted: list[int]) -> list[Statement] | None:
    """The statements with the loop over `tap` going over the wanted taps only, which lie evenly."""
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
    """The statements without those that add 0, and without the loops that are empty then."""
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
    """Whether a value is 0 by its form. The gate decides before the product is made, so no infinity takes part."""
    if value.op is o.CONST:
        return value.arg == 0
    if value.op is o.MUL:
        return _zero(value.src[0]) or _zero(value.src[1])
    if value.op is o.WHERE:
        return _zero(value.src[1]) and _zero(value.src[2])
    return value.op in (o.CAST, o.NEG) and _zero(value.src[0])
