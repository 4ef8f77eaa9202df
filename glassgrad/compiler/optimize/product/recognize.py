"""Recognize contractions (sums of products). In: a plain loop tree. Out: `Product` and its axes.

Of the loops around the sum, those that only the left factor reads are M, those that only the right one reads are N, and
the others are the batch; the summed loops are K. Several loops are one flat axis where the output is linear in them.
Chooses no tiling: it finds the size of each axis and its strides in the factors. The target and its limits are read
only to say how many tasks are wanted and whether a factor read in place stays in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from glassgrad.compiler.graph import DType, UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, both, divide, divide_up, index, less, linear, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.lower.loops import (TASK, Accumulate, Assign, For, Statement, Store, around, counter,
                                            loops_around, nodes_in, ranges_of, register, task_loops, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.pairs import Pair, pair_of
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds


@dataclass
class Product:
    """out[batch, m, n] = epilogue(sum over k of left[m, k] * right[k, n]). Without loops of N it is a depthwise window:
    `left` is an image, `right` its few weights. With a `pair`, anything else of the two is added up (pairs.py)."""
    left: UOp
    right: UOp
    m: list[UOp]
    n: list[UOp]
    batch: list[UOp]
    k: list[UOp]
    total: UOp                    # the register that is summed into
    epilogue: list[Statement]
    stops: dict[UOp, UOp] = field(default_factory=dict)   # run-time bounds of loops of the batch or of K; of M and N
                                                          # only from `recognize_with_run_time_bounds`
    pair: Pair | None = None

    def added(self, left: UOp, right: UOp) -> UOp:
        """What the sum adds for an element of each factor."""
        return left * right if self.pair is None else self.pair.of(left, right)

    @property
    def k_stop(self) -> UOp | None:
        """The run-time bound of the sum, if it has one: then K is a single loop."""
        return self.stops.get(self.k[0])

    def with_run_time_bounds(self, phases: list[list[Statement]]) -> list[list[Statement]]:
        """The phases of a tiling, with the product's run-time bounds set on their loops."""
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
        """How many products one sum adds up: the size of K."""
        return count(self.k)

    @property
    def work(self) -> int:
        """Multiply-adds in total."""
        return count((*self.k, *self.m, *self.n, *self.batch))

    def swapped(self) -> Product:
        """The same with the factors exchanged."""
        return replace(self, left=self.right, right=self.left, m=self.n, n=self.m,
                       pair=None if self.pair is None else self.pair.swapped())

    def with_lanes_right(self) -> Product:
        """The same, or with the factors exchanged where the output's smallest stride is along a loop of the left one.
        It need not be 1: positions of one remainder are strided."""
        strides = {r: abs(stride) for r, stride in linear(self.store.index)[1].items() if r in (*self.m, *self.n)}
        return self.swapped() if min(strides, key=lambda r: strides[r], default=None) in self.m else self

    def rounded(self, dtype: DType) -> Product:
        """The same with sums of the narrower `dtype`, to which the epilogue casts them before anything else."""
        total = register(self.total.arg, dtype)
        return replace(self, total=total, epilogue=moves.rebuild(self.epilogue, {self.total.cast(dtype): total}))

    def stores(self, result: UOp, places: dict[UOp, UOp], gate: UOp | None) -> list[Statement]:
        """The epilogue for the sum `result` at the loop indices `places`. Where the gate is false nothing is stored,
        and nothing is read but the result itself, which may lie in memory."""
        out: list[Statement] = []
        for s in moves.rebuild(self.epilogue, {self.total: result, **places}):
            assert isinstance(s, Store)
            out.append(Store(s.memory, s.index, _gated(s.value, gate, result), s.combine, both(gate, s.gate)))
        return out


def _gated(value: UOp, gate: UOp | None, result: UOp) -> UOp:
    if gate is None or result.op is not o.LOAD:
        return moves.edge_gate(value, gate)
    name = register("whole", result.dtype)
    return substitute_index(moves.edge_gate(substitute_index(value, {result: name}, {}), gate), {name: result}, {})


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
    """The body as a contraction, or None. A loop over all members of all groups may be split into two loops."""
    found = _recognize(body)
    if found is not None and found.m and found.n:
        return found
    split = _groups_apart(body)
    grouped = None if split is None else _recognize(split)
    if grouped is not None and grouped.m and grouped.n:
        return grouped
    if found is None or not (found.m or found.n):
        return None
    return found if found.m else found.swapped()


def recognize_pairs(body: list[Statement]) -> Product | None:
    """The body as a sum over pairs that is no contraction, or None."""
    found = _sum_in(body)
    sides = None if found is None or len(found.loops) < 2 else pair_of(found.step.value, found.loops)
    if found is None or sides is None:
        return None
    product = found.of(sides[0], sides[1])
    return replace(product, pair=sides[2]) if product is not None and product.m and product.n else None


def recognize_with_run_time_bounds(body: list[Statement]) -> Product | None:
    """As `recognize`, but loops with run-time bounds may belong to M and N; `stops` has the bounds."""
    loops, inner = task_loops(body)
    ends = {f.range: f.stop for f in loops if f.stop is not None}
    product = recognize(around([For(f.range, f.kind, []) for f in loops], inner))
    if product is None or not {*ends} <= {*product.m, *product.n} or any(ranges_of(stop) for stop in ends.values()):
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
    """A nest that only adds up: r = 0; for k: r += step; epilogue."""
    loops: list[UOp]
    stops: dict[UOp, UOp]
    k: list[UOp]
    step: Accumulate
    epilogue: list[Statement]

    def of(self, left: UOp, right: UOp) -> Product | None:
        """The sum with these factors; None where K is not in both."""
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
    total, inner, k = body[0].register, body[1], [body[1].range]
    while len(inner.body) == 1 and isinstance(inner.body[0], For):
        if inner.stop is not None or inner.body[0].stop is not None:
            return None
        inner = inner.body[0]
        k.append(inner.range)
    if inner.stop is not None:
        if ranges_of(inner.stop):
            return None
        stops[inner.range] = inner.stop
    if len(inner.body) != 1 or not isinstance(inner.body[0], Accumulate):
        return None
    step = inner.body[0]
    if step.register is not total or step.combine is not o.ADD:
        return None
    return _SumNest(loops, stops, k, step, body[2:])


# -- axes ------------------------------------------------------------------------------------------------------------


@dataclass
class FlatAxis:
    """Several loops flattened into one of `size` positions; division and modulo recover the loop indices (`apart`).

    With a pitch, each row of the last loop (columns of an image) takes `pitch` positions: those past its last column
    are padding, which `gate` masks off. With a height, the loop before it is padded to that many rows, likewise.
    """
    parts: list[UOp]
    size: int
    pitch: int = 0
    height: int = 0
    stop: UOp | None = None       # its run-time bound, if it has one:
    most: int = 0                 # at most this; `size` is a typical value then

    @staticmethod
    def of(loops: list[UOp]) -> FlatAxis:
        return FlatAxis(loops, count(loops))

    def with_run_time_bound(self, stops: dict[UOp, UOp]) -> FlatAxis:
        """The same axis with the run-time bound of its outermost loop, if that has one."""
        first = self.parts[0]
        return self if first not in stops else \
            replace(self, stop=multiply(stops[first], self.size // first.arg.size))

    def inside(self, at: UOp) -> UOp | None:
        """The condition that a position is below the end; None where it always is."""
        return moves.below(at, self.size) if self.stop is None else less(at, self.stop)

    def pieces(self, size: int) -> UOp | None:
        """How many pieces of `size` it has at run time; None where it has no run-time bound."""
        return None if self.stop is None else divide_up(self.stop, size)

    @property
    def balanced(self) -> bool:
        """Whether it is split into pieces whose lengths differ by at most one: where it is short, with a run-time
        bound."""
        return self.stop is not None and self.most <= cpu.EVEN_ROWS

    @property
    def row(self) -> int:
        """The length of a run of positions without padding: the last loop's where there is a pitch, else all."""
        return int(self.parts[-1].arg.size) if self.pitch else self.size

    def gate(self, at: UOp) -> UOp | None:
        """The condition that a position is not padding; None where there is no padding."""
        places, gate = self.apart(at), None
        for r, size in reversed(self.sizes.items()):
            gate = both(gate, moves.below(places[r], r.arg.size)) if size > r.arg.size else gate
        return gate

    @property
    def sizes(self) -> dict[UOp, int]:
        """The loops with their padded sizes."""
        sizes = [int(r.arg.size) for r in self.parts]
        sizes[-1:] = [self.pitch or n for n in sizes[-1:]]
        sizes[-2:-1] = [self.height or n for n in sizes[-2:-1]]
        return dict(zip(self.parts, sizes))

    def position(self) -> UOp:
        """The flat position of the current loop indices."""
        at = index(0)
        for r, size in self.sizes.items():
            at = add(multiply(at, size), r)
        return at

    def apart(self, at: UOp) -> dict[UOp, UOp]:
        """The index of each loop at a flat position."""
        out, step = {}, 1
        for r, size in reversed(self.sizes.items()):
            whole = divide(at, step)
            out[r] = whole if r is self.parts[0] else modulo(whole, size)
            step *= size
            if self.pitch and r is self.parts[-1] or self.height and r is self.parts[-2]:
                at, step = divide(at, step), 1                   # the loops around it are unpadded
        return out


@dataclass
class FlatProduct:
    """A product and its flat axes."""
    product: Product
    target: Target
    m: FlatAxis
    n: FlatAxis
    outer: list[UOp]              # loops around everything: batch, and loops of M and N that do not flatten

    @cached_property
    def depth(self) -> int:
        """How many products one sum adds up: the size of K."""
        return self.product.depth

    @cached_property
    def work(self) -> int:
        """Multiply-adds in total."""
        return self.product.work // count(self.m.parts) * self.m.size

    @cached_property
    def around(self) -> int:
        """How many times the outer loops repeat the product."""
        return count(self.outer)

    def tasks_wanted(self, limits: TilingThresholds) -> int:
        """How many tasks each repetition should be split into."""
        most = min(limits.most_tasks, self.target.most_tasks)
        return max(1, min(most, self.work // limits.task_work) // max(1, self.around))

    def why_left_not_along_k(self, rows: int) -> str | None:
        """Why the left factor must be packed; None where its rows are contiguous along k and can be read in place."""
        left = self.product.left
        if left.op is not o.LOAD or len(left.src) != 2:
            return "the left factor is computed, not read"
        if len(self.product.k) != 1 or len(self.m.parts) != 1 or rows > self.m.size:
            return "the left factor is not a matrix"
        if not evenly_along(left.src[1], self.m.parts[0]) or stride_along(left.src[1], self.product.k[0]) != 1:
            return "the left factor does not lie along k"
        return None

    @cached_property
    def left_along_m(self) -> bool:
        """Whether the left factor is contiguous along M, and the cache lines and pages that a tile reads along k stay
        in the first-level cache and the TLB."""
        left = self.product.left
        if left.op is not o.LOAD or len(left.src) != 2 or len(self.product.k) != 1 or len(self.m.parts) != 1:
            return False
        step = stride_along(left.src[1], self.product.k[0])
        if step is None or stride_along(left.src[1], self.m.parts[0]) != 1:
            return False
        pitch = step * left.dtype.itemsize
        return 4 * cpu.CACHE_LINE * self.depth <= self.target.l1_bytes and \
            abs(pitch) * self.depth <= cpu.NEAR_BYTES and fit_sets(self.depth, pitch, 8)

    def why_right_not_along_n(self) -> str | None:
        """Why the right factor must be packed; None where it is contiguous along N and can be read in place."""
        right = self.product.right
        if right.op is not o.LOAD or len(right.src) != 2 or right.dtype is not self.product.total.dtype:
            return "the right factor is computed, not read"
        if self.n.pitch or len(self.product.k) != 1 or len(self.n.parts) != 1:
            return "the right factor is not a matrix"
        if stride_along(right.src[1], self.n.parts[0]) != 1 or not evenly_along(right.src[1], self.product.k[0]):
            return "the right factor does not lie along N"
        return None

    def lines_apart(self, rows: int, ways: int) -> bool:
        """Whether a line of each of `rows` rows of the left factor fits a first-level cache without set conflicts."""
        left = self.product.left
        step = stride_along(left.src[1], self.m.parts[0]) or 0
        return fit_sets(rows, step * left.dtype.itemsize, ways)


def fit_sets(lines: int, step: int, ways: int) -> bool:
    """Whether cache lines `step` bytes apart fit a first-level cache together without conflicts, if each set has `ways`
    ways to spare: lines 4096 bytes apart share a set."""
    return lines * math.gcd(step, 4096) <= ways * 4096


def flat_axis(loops: list[UOp], epilogue: list[Statement], name: str) -> tuple[FlatAxis, list[UOp]]:
    """The innermost loops as one flat axis in which the output index is linear, and the loops left outside."""
    best = FlatAxis.of(loops[-1:])
    for start in range(len(loops) - 2, -1, -1):
        axis = FlatAxis.of(loops[start:])
        whole = counter(name, axis.size)
        split = axis.apart(whole)
        stores = [substitute_index(s.index, split, {}) for s in epilogue if isinstance(s, Store)]
        if any(n.op in (o.IDIV, o.MOD) for n in toposort(stores)):
            break
        best = axis
    if best.size < 8 and len(best.parts) < len(loops):
        return FlatAxis.of(loops), []
    return best, loops[:len(loops) - len(best.parts)]


def image_axis(p: Product) -> tuple[FlatAxis, list[UOp]] | None:
    """The last two loops of N as one axis with the pitch of the image they go over: then each tap of a window is one
    contiguous read at a constant offset. For images that are read many times; refuses (None) anything else."""
    if len(p.n) < 2 or p.right.op is not o.LOAD or len(p.right.src) != 2:
        return None
    rows, columns = p.n[-2:]
    at = p.right.src[1]
    steps = [stride_along(at, r) for r in (rows, columns, *p.k)]
    if None in steps or steps[1] != 1:
        return None
    pitch = steps[0]
    if pitch is None or not columns.arg.size <= pitch <= 2 * columns.arg.size:
        return None
    image = [*p.k, rows, columns]                    # one image: in a batch, other channel groups lie in between
    if 2 * footprint(p.right, image) > count(image):
        return None
    return FlatAxis([rows, columns], (rows.arg.size - 1) * pitch + columns.arg.size, pitch), p.n[:-2]


def few_rows(p: Product) -> bool:
    """Whether a factor has so few rows that packing the other one would cost more than it saves: both are contiguous
    along k, and plain loops read them in place."""
    if len(p.k) != 1 or p.k_stop is not None or p.k[0].arg.size < cpu.LEAST_ROW or not all(
            f.op is o.LOAD and len(f.src) == 2 and stride_along(f.src[1], p.k[0]) == 1 for f in (p.left, p.right)):
        return False
    return any(len(few) == 1 and few[0].arg.size <= cpu.FEW_ROWS for few in (p.m, p.n))


def swells(factor: UOp, loops: list[UOp]) -> bool:
    """Whether a packed factor would be huge and much larger than the memory it reads: a window, or an expanded view."""
    packed = count(dict.fromkeys([*loops, *ranges_of(factor)]))
    read = {n.src[0] for n in toposort([factor]) if n.op is o.LOAD and n.src[0].op is o.PARAM}
    return packed > max(cpu.MOST_PACKED, 4 * sum(math.prod(m.arg.shape) for m in read))


def stride_along(at: UOp, along: UOp) -> int | None:
    """The stride of an address along a counter; None where it is not a constant."""
    _, terms = linear(at)
    if any(along in ranges_of(atom) and atom is not along for atom in terms):
        return None
    return terms.get(along, 0)


def to_neighbour(at: UOp, along: UOp) -> int | None:
    """The distance of an address between a counter's values 0 and 1; None where it is not a constant."""
    first, second = (linear(substitute_index(at, {along: index(n)}, {})) for n in (0, 1))
    return second[0] - first[0] if first[1] == second[1] else None


def lies_along_k(value: UOp, axis: FlatAxis, k: FlatAxis) -> bool:
    """Whether a factor is contiguous along K, and not along its own axis."""
    reads = [n.src[1] for n in toposort([value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
    return any(stride_along(at, k.parts[-1]) == 1 for at in reads) and \
        not any(stride_along(at, axis.parts[-1]) == 1 for at in reads)


def evenly_along(at: UOp, along: UOp) -> bool:
    """Whether an address has one stride along a counter: a constant, or a value known at run time."""
    for atom in linear(at)[1]:
        if atom is along or along not in ranges_of(atom):
            continue
        others = [s for s in atom.src if s is not along]
        if atom.op is not o.MUL or len(others) != 1 or along in ranges_of(others[0]):
            return False
    return True


def footprint(factor: UOp, loops: list[UOp]) -> int:
    """An upper bound on the elements of memory that a factor reads while these loops run."""
    return 1 + sum([abs(stride_along(factor.src[1], r) or 0) * (r.arg.size - 1) for r in loops])
