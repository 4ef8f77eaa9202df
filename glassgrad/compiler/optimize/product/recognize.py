"""Recognize contractions (sums of products). In: a plain loop tree. Out: `Product`, or None.

Loops around the sum are classified by their use: those that only the left factor reads are M, those that only the right
one reads are N, the others are the batch. The summed loops are K. Knows no target and chooses no tiling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

from glassgrad.compiler.graph import DType, UOp, ops as o
from glassgrad.compiler.graph.index_algebra import add, both, bounds, index, linear, multiply, substitute_index, times
from glassgrad.compiler.lower.loops import (TASK, Accumulate, Assign, For, Statement, Store, counter, in_loops,
                                            loops_around, nodes_in, ranges_of, register, task_loops, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import edge_gate
from glassgrad.compiler.optimize.product.pairs import Pair, pair_of

REREAD = 2           # how often each element is read, at least, for a factor to be a window
USUAL = 4            # a run-time size is assumed to be this part of its greatest value


@dataclass
class Product:
    """out[batch, m, n] = epilogue(sum over k of left[m, k] * right[k, n]). Without loops of N, it is a depthwise
    window: `left` is an image, `right` its few weights. With a `pair`, another expression is summed (pairs.py)."""
    left: UOp
    right: UOp
    m: list[UOp]
    n: list[UOp]
    batch: list[UOp]
    k: list[UOp]
    total: UOp                    # the register that accumulates the sum
    epilogue: list[Statement]
    # run-time bounds of loops of the batch or of K; those of M and N only from `recognize_with_run_time_bounds`
    stops: dict[UOp, UOp] = field(default_factory=dict)
    pair: Pair | None = None

    def added(self, left: UOp, right: UOp) -> UOp:
        """The value that the sum adds for an element of each factor."""
        return left * right if self.pair is None else self.pair.of(left, right)

    @property
    def k_stop(self) -> UOp | None:
        """How many products a sum has at run time, if one of its loops has a run-time bound; otherwise None."""
        stops = [self.stops[r] for r in self.k if r in self.stops]
        return reduce(times, stops, index(count([r for r in self.k if r not in self.stops]))) if stops else None

    def set_run_time_bounds(self, phases: list[list[Statement]]) -> list[list[Statement]]:
        """Set the product's run-time bounds on the loops of a tiling's phases, and return the phases."""
        for loop in [s for phase in phases for s in walk(phase) if isinstance(s, For) and s.range in self.stops]:
            loop.stop = self.stops[loop.range]
        return phases

    @property
    def store(self) -> Store:
        """The last store of the epilogue."""
        store = self.epilogue[-1]
        assert isinstance(store, Store)
        return store

    @property
    def depth(self) -> int:
        """The size of K: how many products one sum has."""
        return count(self.k)

    @property
    def work(self) -> int:
        """The total number of multiply-adds."""
        return count((*self.k, *self.m, *self.n, *self.batch))

    @property
    def of_matrices(self) -> bool:
        """Whether both factors are plain matrices in memory, not windows of an image."""
        return all(factor.op is o.LOAD and len(factor.src) == 2 and len(own) == len(self.k) == 1
                   and REREAD * footprint(factor, own + self.k) > count(own + self.k)
                   for factor, own in ((self.left, self.m), (self.right, self.n)))

    def swapped(self) -> Product:
        """The same product with its factors exchanged."""
        return replace(self, left=self.right, right=self.left, m=self.n, n=self.m,
                       pair=None if self.pair is None else self.pair.swapped())

    def with_lanes_right(self) -> Product:
        """The same product, with its factors exchanged if the output's smallest stride is along a loop of the left one.
        That stride need not be 1: positions of one remainder are strided."""
        strides = {r: abs(stride) for r, stride in linear(self.store.index)[1].items() if r in (*self.m, *self.n)}
        return self.swapped() if min(strides, key=lambda r: strides[r], default=None) in self.m else self

    def rounded(self, dtype: DType) -> Product:
        """The same product with sums of the narrower `dtype`, to which its epilogue casts them first."""
        total = register(self.total.arg, dtype)
        return replace(self, total=total, epilogue=moves.rebuild(self.epilogue, {self.total.cast(dtype): total}))

    def stores(self, result: UOp, places: dict[UOp, UOp], gate: UOp | None) -> list[Statement]:
        """The epilogue for the sum `result` at the loop indices `places`. Where the gate is false, nothing is stored,
        and nothing is read except the result, which may be in memory."""
        out: list[Statement] = []
        for s in moves.rebuild(self.epilogue, {self.total: result, **places}):
            assert isinstance(s, Store)
            out.append(Store(s.memory, s.index, _gated(s.value, gate, result), s.combine, both(gate, s.gate)))
        return out


def _gated(value: UOp, gate: UOp | None, result: UOp) -> UOp:
    if gate is None or result.op is not o.LOAD:
        return edge_gate(value, gate)
    name = register("whole", result.dtype)
    return substitute_index(edge_gate(substitute_index(value, {result: name}, {}), gate), {name: result}, {})


def masked(factor: UOp) -> tuple[UOp | None, UOp]:
    """Split a factor into the condition under which it is nonzero, and a load that reads memory elsewhere too."""
    if factor.op is o.WHERE and factor.src[1].op is o.LOAD and factor.src[2].op is o.CONST and factor.src[2].arg == 0:
        return factor.src[0], factor.src[1]
    return None, factor


def count(loops: Iterable[UOp]) -> int:
    """The product of the loops' sizes."""
    return math.prod([r.arg.size for r in loops])


def innermost(loops: list[UOp], most: int) -> list[UOp]:
    """As many of the innermost loops as have at most `most` iterations together."""
    found: list[UOp] = []
    for r in reversed(loops):
        if count(found) * r.arg.size > most:
            break
        found.insert(0, r)
    return found


def recognize(body: list[Statement]) -> Product | None:
    """Recognize the body as a contraction, or return None. A loop over all members of all groups is split into two
    loops if the members then belong to one factor alone."""
    found, split = _recognize(body), _groups_apart(body)
    grouped = None if split is None else _recognize(split)
    if grouped is not None and grouped.m and grouped.n and \
            (found is None or not found.m or not found.n or count(grouped.batch) < count(found.batch)):
        return grouped
    if found is None or not (found.m or found.n):
        return None
    return found if found.m else found.swapped()


def recognize_pairs(body: list[Statement]) -> Product | None:
    """Recognize the body as a sum over pairs that is not a contraction, or return None."""
    found = _sum_in(body)
    sides = None if found is None or len(found.loops) < 2 else pair_of(found.step.value, found.loops)
    if found is None or sides is None:
        return None
    product = found.of(sides[0], sides[1])
    return replace(product, pair=sides[2]) if product is not None and product.m and product.n else None


def recognize_with_run_time_bounds(body: list[Statement]) -> Product | None:
    """As `recognize`, but loops with run-time bounds may belong to M and N; `stops` has these bounds."""
    loops, inner = task_loops(body)
    ends = {f.range: f.stop for f in loops if f.stop is not None}
    product = recognize(in_loops([For(f.range, f.kind, []) for f in loops], inner))
    counters = [f.range for f in loops]
    if product is None or not {*ends} <= {*product.m, *product.n} or any(
            not ranges_of(stop).isdisjoint(counters) for stop in ends.values()):
        return None
    return replace(product, stops={**product.stops, **ends})


def _groups_apart(body: list[Statement]) -> list[Statement] | None:
    """for i in n: ..i // c..  ->  for g in n/c: for i in c: ..g..      refuses: no loop index is divided"""
    loops, inner = task_loops(body)
    if any(f.stop is not None for f in loops):
        return None
    ranges = [f.range for f in loops]
    for node in nodes_in(inner):
        if node.op is not o.IDIV or node.src[0] not in ranges or node.src[1].op is not o.CONST:
            continue
        i, members = node.src[0], int(node.src[1].arg)
        if i.arg.size % members:
            continue
        group, member = counter(i.arg.name + "g", i.arg.size // members), counter(i.arg.name, members)
        inner = moves.rebuild(inner, {i: add(multiply(group, members), member)})
        apart = [r for f in loops for r in ([group, member] if f.range is i else [f.range])]
        return loops_around(apart, inner, TASK)
    return None


def _recognize(body: list[Statement]) -> Product | None:
    found = _sum_in(body)
    return found.of(*found.step.value.src) if found is not None and found.step.value.op is o.MUL else None


class _SumNest(NamedTuple):
    """A nest that only computes a sum: r = 0; for k: r += step; epilogue."""
    loops: list[UOp]
    stops: dict[UOp, UOp]
    k: list[UOp]
    step: Accumulate
    epilogue: list[Statement]

    def of(self, left: UOp, right: UOp) -> Product | None:
        """The sum as a product of these factors; None if not all of K is in both."""
        in_left, in_right = ranges_of(left), ranges_of(right)
        if not all(r in in_left and r in in_right for r in self.k):
            return None
        m = [r for r in self.loops if r in in_left and r not in in_right and r not in self.stops]
        n = [r for r in self.loops if r in in_right and r not in in_left and r not in self.stops]
        batch = [r for r in self.loops if r not in m and r not in n]
        return Product(left, right, m, n, batch, self.k, self.step.register, self.epilogue, self.stops)


def _sum_in(body: list[Statement]) -> _SumNest | None:
    around, body = task_loops(body)
    loops = [f.range for f in around]
    stops = {f.range: f.stop for f in around if f.stop is not None}      # not in M or N: tiles need constant sizes
    if len(body) < 3 or not isinstance(body[0], Assign) or not isinstance(body[1], For):
        return None
    if not all(isinstance(s, Store) for s in body[2:]):
        return None
    total, inner = body[0].register, body[1]
    summed = [inner]
    while len(inner.body) == 1 and isinstance(inner.body[0], For):
        inner = inner.body[0]
        summed.append(inner)
    k, ends = [f.range for f in summed], {f.range: f.stop for f in summed if f.stop is not None}
    if any(not ranges_of(stop).isdisjoint(loops + k) for stop in ends.values()):
        return None
    stops.update(ends)
    if len(inner.body) != 1 or not isinstance(inner.body[0], Accumulate):
        return None
    step = inner.body[0]
    if step.register is not total or step.combine is not o.ADD:
        return None
    return _SumNest(loops, stops, k, step, body[2:])


# -- strides of addresses ------------------------------------------------------------------------------------
def stride_along(at: UOp, along: UOp) -> int | None:
    """The stride of an address along a counter; None where it is not a constant."""
    _, terms = linear(at)
    if any(along in ranges_of(atom) and atom is not along for atom in terms):
        return None
    return terms.get(along, 0)


def usual_stride(at: UOp, along: UOp) -> int | None:
    """As `stride_along`; for a run-time stride, a quarter of its greatest value."""
    terms = linear(at)[1]
    mixed = [atom for atom in terms if along in ranges_of(atom) and atom is not along]
    if not mixed or not evenly_along(at, along):
        return stride_along(at, along)
    found = terms.get(along, 0)
    for atom in mixed:
        [other] = [s for s in atom.src if s is not along]
        found += terms[atom] * -(-bounds(other)[1] // USUAL)
    return found


def to_neighbour(at: UOp, along: UOp) -> int | None:
    """The distance of the addresses at a counter's values 0 and 1; None if it is not a constant."""
    first, second = (linear(substitute_index(at, {along: index(n)}, {})) for n in (0, 1))
    return second[0] - first[0] if first[1] == second[1] else None


def evenly_along(at: UOp, along: UOp) -> bool:
    """Whether an address has one stride along a counter: a constant, or a run-time value."""
    for atom in linear(at)[1]:
        if atom is along or along not in ranges_of(atom):
            continue
        others = [s for s in atom.src if s is not along]
        if atom.op is not o.MUL or len(others) != 1 or along in ranges_of(others[0]):
            return False
    return True


def footprint(factor: UOp, loops: list[UOp]) -> int:
    """An upper bound of the elements of memory that a factor reads while these loops run."""
    return 1 + sum([abs(usual_stride(factor.src[1], r) or 0) * (r.arg.size - 1) for r in loops])
