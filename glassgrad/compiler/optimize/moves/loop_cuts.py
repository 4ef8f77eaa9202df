"""Loops without conditions on their counters. In: loops. Out: loops over a part of the iterations, or branches.

A vector whose lanes have a condition loads them one by one where they are not contiguous. So a loop is cut where a
condition changes, at a constant or at a value known at run time, and branches where one is the same for all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o
from glassgrad.compiler.graph.index_algebra import (add, all_of, both, bounds, build, divide, divide_up, index, less,
                                                    linear, multiply, operation)
from glassgrad.compiler.lower.loops import For, Statement, counter, loads_in, nodes_in, ranges_of, walk
from glassgrad.compiler.optimize.moves.loop_moves import rebuild
from glassgrad.compiler.optimize.moves.move_decorator import move


@move(lambda body: body)
def without_known_gates(body: list[Statement]) -> list[Statement]:
    """for i below stop: S if i < stop  ->  for i below stop: S"""
    ends = [f for f in walk(body) if isinstance(f, For) and f.stop is not None]
    held = {less(f.range, f.stop): const(True, dtypes.bool) for f in ends if f.stop is not None}
    return rebuild(body, {gate: true for gate, true in held.items() if gate.op is o.CMPLT}) if held else body


@move(lambda loop, most: [loop])
def cut_at_gates(loop: For, most: int) -> list[For]:
    """for i in n: S if i < c else T  ->  for i in c: S;  for i in n - c: T[i = i + c]

    For loops of independent iterations whose conditions compare i alone with constants, as in `cat` and `pad`; where n
    is known only at run time, i or a quotient of it with any bound. Refuses (returns the loop) where there would be
    more than `most` cuts (with a run-time bound: half as many, since their order is not known).
    """
    i, n = loop.range, loop.range.arg.size
    conditions = dict.fromkeys(x for x in nodes_in(loop.body) if x.op is o.CMPLT and x.src[0].dtype is dtypes.index)
    changes = {x: change for x in conditions if (change := _change(x, i)) is not None}
    if loop.stop is None:
        changes = {x: (at, first) for x, (at, first) in changes.items() if at.op is o.CONST and 0 < at.arg < n}
    if not changes or len({at for at, _ in changes.values()}) > (most if loop.stop is None else most // 4):
        return [loop]
    pieces = [_Piece(index(0), index(n) if loop.stop is None else loop.stop, {})]
    for condition, (at, first) in changes.items():
        pieces = [part for piece in pieces for part in piece.cut(condition, at, first)]
    return [piece.of(loop) for piece in pieces]


@move(lambda loop, most: [(None, loop)])
def branches_at_gates(loop: For, most: int) -> list[tuple[UOp | None, For]]:
    """for i in n: S if c else T  ->  if c: for i in n: S;  if not c: for i in n: T      (c is the same for all i)

    For conditions on loads that are not contiguous along i, which lanes with a condition would load one by one. Returns
    each condition with its loop (None: always). Refuses where there are more than `most` such conditions, or none.
    """
    i, inside = loop.range, {f.range for f in walk(loop.body) if isinstance(f, For)} | {loop.range}
    apart = [n for n in loads_in([loop]) if len(n.src) > 2 and i in ranges_of(n.src[1])
             and linear(n.src[1])[1].get(i) != 1]
    gates = dict.fromkeys(gate for n in apart for gate in all_of(n.src[2])
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
    """Iterations of a loop from `start` up to `end`, for which some conditions are known."""
    start: UOp
    end: UOp
    known: dict[UOp, bool]

    def cut(self, condition: UOp, at: UOp, first: bool) -> list[_Piece]:
        """The iterations before `at`, for which the condition is `first`, and the others; without empty pieces."""
        middle = operation(o.MIN, operation(o.MAX, at, self.start), self.end)
        found = [_Piece(self.start, middle, {**self.known, condition: first}),
                 _Piece(middle, self.end, {**self.known, condition: not first})]
        return [piece for piece in found if piece.most > 0]

    @property
    def size(self) -> UOp:
        return add(self.end, multiply(self.start, -1))

    @property
    def most(self) -> int:
        return bounds(self.size)[1]

    def of(self, loop: For) -> For:
        """The loop over these iterations alone."""
        part = counter(loop.range.arg.name, min(self.most, loop.range.arg.size))
        body = rebuild(loop.body, {condition: const(held, dtypes.bool) for condition, held in self.known.items()})
        body = rebuild(body, {loop.range: add(self.start, part)})
        return For(part, loop.kind, body, None if self.size.op is o.CONST else self.size)


def _change(condition: UOp, i: UOp) -> tuple[UOp, bool] | None:
    """The first number of the counter i for which a condition is not what it was before, and what it was before; None
    where it compares something else than i, or a quotient of i, with values that are the same for all iterations."""
    below, terms = linear(add(condition.src[0], multiply(condition.src[1], -1)))      # below + terms < 0
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
        return multiply(divide_up(multiply(rest, -1), step), divisor), True
    return multiply(add(divide(rest, -step), index(1)), divisor), False
