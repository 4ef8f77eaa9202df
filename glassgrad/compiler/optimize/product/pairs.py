"""Recognize sums over pairs that are not products. In: the summed value. Out: an element of each side, how they join.

A sum of f(left[m, k], right[n, k]) reads its sides like a sum of products, whatever f is, so the same tiles serve it:
for example, distances between all points of two sets.

    for m: for n: r = 0; for k: r += (x[m, k] - y[n, k]) * (x[m, k] - y[n, k])
    left = x[m, k], right = y[n, k], joined = (left - right) * (left - right)
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, const, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import substitute_index
from glassgrad.compiler.graph.rules.algebra import ALGEBRA
from glassgrad.compiler.graph.rules.rewrite import rewrite
from glassgrad.compiler.lower.loops import ranges_of, register

MOST_OPS = 16         # ops that join two elements: tiles gain by reading less, and more ops take longer than reading


@dataclass(frozen=True)
class Pair:
    """The summed value, as an expression of two registers that stand for an element of each side."""
    joined: UOp
    left: UOp
    right: UOp

    def of(self, left: UOp, right: UOp) -> UOp:
        """The value that is added for these two elements."""
        return substitute_index(self.joined, {self.left: left, self.right: right}, {})

    def swapped(self) -> Pair:
        """The same with the sides exchanged."""
        return Pair(self.joined, self.right, self.left)

    @property
    def adds_nothing_past_the_end(self) -> bool:
        """Whether two zeros add zero, so that sides may be padded with zeros to the end of a tile."""
        [found] = rewrite([self.of(const(0, self.left.dtype), const(0, self.right.dtype))], ALGEBRA)
        return found.op is o.CONST and found.arg == 0


def pair_of(value: UOp, loops: list[UOp]) -> tuple[UOp, UOp, Pair] | None:
    """Find the two sides of the value that is summed in these loops, and how they join. None if there are not exactly
    two, or if anything else in it varies."""
    outer = frozenset(loops)
    read = [ranges_of(n) & outer for n in toposort([value]) if n.op is o.LOAD]
    common = frozenset.intersection(*read) if read else frozenset()
    sides = {axes - common for axes in read}
    if len(sides) != 2 or not all(sides) or frozenset.intersection(*sides):
        return None
    inner = toposort([value], lambda n: n.src if _varies_with_all(n, sides) else ())
    found = [n for n in inner if ranges_of(n) and not _varies_with_all(n, sides)]
    both = [[n for n in found if not ranges_of(n).isdisjoint(side)] for side in sides]
    if [len(each) for each in both] != [1, 1] or len(found) != 2 or len(inner) > MOST_OPS:
        return None
    left, right = both[0][0], both[1][0]
    places = register("left_of_pair", left.dtype), register("right_of_pair", right.dtype)
    return left, right, Pair(substitute_index(value, {left: places[0], right: places[1]}, {}), *places)


def _varies_with_all(node: UOp, sides: set[frozenset[UOp]]) -> bool:
    return not any(ranges_of(node).isdisjoint(side) for side in sides)
