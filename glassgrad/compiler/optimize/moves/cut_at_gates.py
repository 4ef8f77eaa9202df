"""Cut loops where a condition on their counter changes. In: a loop of independent iterations. Out: loops without it.

`cat`, `pad` and windows at the edges of an image have such conditions. Without them, loads are of whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o
from glassgrad.compiler.graph.index_algebra import (add, all_of, both, bounds, build, divide, divide_up, index, less,
                                                    linear, multiply, operation)
from glassgrad.compiler.lower.loops import LOOP, For, Statement, counter, loads_in, nodes_in, ranges_of, walk
from glassgrad.compiler.optimize.moves.loop_moves import rebuild
from glassgrad.compiler.optimize.moves.move_decorator import move


@move(lambda loop, most: [loop])
def cut_at_gates(loop: For, most: int) -> list[For]:
    """for i in n: S if i < c else T  ->  for i in c: S;  for i in n - c: T[i = i + c]

    For loops of independent iterations with conditions that compare i alone with constants, as in `cat` and `pad`. If n
    is known only at run time, the condition may also compare i or a quotient of it with any bound, and i plus a tap
    (the counter k of an inner loop): then the loop is cut where the condition holds for all taps, as in the middle of a
    padded row. Refuses (returns the loop) more than `most` cuts (a quarter as many with a run-time bound, since their
    order is not known).
    """
    pieces = _pieces(loop, loop.body, most)
    return [piece.of(loop) for piece in pieces] if len(pieces) > 1 else [loop]


def _pieces(loop: For, body: list[Statement], most: int) -> list[_Piece]:
    """Split a loop's iterations where conditions in the body change; a single piece if they change never, or too
    often."""
    i, n = loop.range, loop.range.arg.size
    conditions = dict.fromkeys(x for x in nodes_in(body) if x.op is o.CMPLT and x.src[0].dtype is dtypes.index)
    inside = [] if loop.stop is None else [s for s in walk(body) if isinstance(s, For) and s.kind == LOOP]
    changes = {x: change for x in conditions if (change := _change(x, i, {s.range for s in inside})) is not None}
    if loop.stop is None:
        changes = {x: c for x, c in changes.items() if c.at.op is o.CONST and 0 < c.at.arg < n}
    pieces = [_Piece(index(0), index(n) if loop.stop is None else loop.stop, {})]
    if len({c.at for c in changes.values()}) <= (most if loop.stop is None else most // 4):
        for condition, change in changes.items():
            pieces = [part for piece in pieces for part in piece.cut(condition, change)]
    return pieces


@move(lambda loop, *_: [(None, loop)])
def branches_at_parts(loop: For, around: list[For], most: int) -> list[tuple[UOp | None, For]]:
    """for j: for i in n: y = a[i, j] if j < c else b[i, j - c]
    ->  for j: if j < c: for i in n: y = a[i, j];  if c <= j: for i in n: y = b[i, j - c]

    For results that consist of several parts (`cat`), along a loop around this one: lanes would load from all parts,
    and keep one value. Returns each condition with its loop. Refuses bodies that do not choose between several loads,
    and conditions that change more than `most` times.
    """
    values = _of_several_loads(loop.body) if around else []
    for outer in around:
        chosen = any(outer.range in ranges_of(n.src[0]) for n in values)
        if chosen and len(pieces := _pieces(outer, loop.body, most)) > 1:
            return [(both(less(add(piece.start, index(-1)), outer.range), less(outer.range, piece.end)),
                     For(loop.range, loop.kind, rebuild(loop.body, piece.facts), loop.stop)) for piece in pieces]
    return [(None, loop)]


def _of_several_loads(body: list[Statement]) -> list[UOp]:
    """Return the WHEREs whose values both need a load."""
    loading: set[UOp] = set()
    found: list[UOp] = []
    for node in nodes_in(body):                      # sources first
        if node.op is o.LOAD or any([s in loading for s in node.src]):
            loading.add(node)
        if node.op is o.WHERE and all([side in loading for side in node.src[1:]]):
            found.append(node)
    return found


@move(lambda loop, most: [(None, loop)])
def branches_at_gates(loop: For, most: int) -> list[tuple[UOp | None, For]]:
    """for i in n: S if c else T  ->  if c: for i in n: S;  if not c: for i in n: T      (c is the same for all i)

    For conditions on loads that are not contiguous along i, which lanes with a condition would load one by one. Returns
    each condition with its loop (None: always). Refuses more than `most` such conditions, or none.
    """
    i, inside = loop.range, {f.range for f in walk(loop.body) if isinstance(f, For)} | {loop.range}
    strided = [n for n in loads_in([loop]) if len(n.src) > 2 and i in ranges_of(n.src[1])
               and linear(n.src[1])[1].get(i) != 1]
    gates = dict.fromkeys(gate for n in strided for gate in all_of(n.src[2])
                          if gate.op is o.CMPLT and inside.isdisjoint(ranges_of(gate)))
    if not 0 < len(gates) <= most:
        return [(None, loop)]
    branches: list[tuple[UOp | None, dict[UOp, UOp]]] = [(None, {})]
    for gate in gates:
        x, y = gate.src
        branches = [(both(before, condition), {**known, gate: const(held, dtypes.bool)}) for before, known in branches
                    for condition, held in ((gate, True), (less(y, add(x, index(1))), False))]
    return [(condition, For(i, loop.kind, rebuild(loop.body, known), loop.stop)) for condition, known in branches]


@dataclass
class _Piece:
    """Iterations of a loop from `start` up to `end`, for which the values of some conditions are known."""
    start: UOp
    end: UOp
    known: dict[UOp, bool]

    def cut(self, condition: UOp, change: _Change) -> list[_Piece]:
        """Split into the iterations before a change and those after it, each with the known value of its condition;
        without empty pieces."""
        middle = operation(o.MIN, operation(o.MAX, change.at, self.start), self.end)
        before, after = ({condition: held} if held or change.for_all else {}
                         for held in (change.first, not change.first))
        found = [_Piece(self.start, middle, {**self.known, **before}),
                 _Piece(middle, self.end, {**self.known, **after})]
        return [piece for piece in found if piece.most > 0]

    @property
    def facts(self) -> dict[UOp, UOp]:
        return {condition: const(held, dtypes.bool) for condition, held in self.known.items()}

    @property
    def size(self) -> UOp:
        return add(self.end, multiply(self.start, -1))

    @property
    def most(self) -> int:
        return bounds(self.size)[1]

    def of(self, loop: For) -> For:
        """The loop over these iterations alone."""
        part = counter(loop.range.arg.name, min(self.most, loop.range.arg.size))
        body = rebuild(rebuild(loop.body, self.facts), {loop.range: add(self.start, part)})
        return For(part, loop.kind, body, None if self.size.op is o.CONST else self.size)


class _Change(NamedTuple):
    """The number from which on a condition on a counter has another value."""
    at: UOp               # the first number with the other value
    first: bool           # the value before it
    # whether the value is exact for all taps; otherwise, a condition that is not True may hold for some of them
    for_all: bool


def _change(condition: UOp, i: UOp, taps: set[UOp]) -> _Change | None:
    """Where a condition on the counter i changes; for a condition on i and taps, where it begins or ceases to hold for
    all taps. None for conditions that compare anything but i, or a quotient of i, with values that are the same for all
    iterations."""
    below, terms = linear(add(condition.src[0], multiply(condition.src[1], -1)))      # below + terms < 0
    some = {atom: k for atom, k in terms.items() if atom in taps}
    below += bounds(build(0, some))[1]
    terms = {atom: k for atom, k in terms.items() if atom not in some}
    along = [atom for atom in terms if i in ranges_of(atom)]
    if len(along) != 1 or any(ranges_of(atom) for atom in terms if atom is not along[0]):
        return None
    [atom], step = along, terms[along[0]]
    rest = build(below, {other: k for other, k in terms.items() if other is not atom})
    divisor = 1
    if atom.op is o.IDIV and atom.src[0] is i and atom.src[1].op is o.CONST:
        divisor = atom.src[1].arg
    elif atom is not i:
        return None
    if step > 0:                                         # atom < -rest / step
        return _Change(multiply(divide_up(multiply(rest, -1), step), divisor), True, not some)
    return _Change(multiply(add(divide(rest, -step), index(1)), divisor), False, not some)
