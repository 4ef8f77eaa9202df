"""Lower nodes to expressions of one element. In: a node, an index. Out: an expression, and loops in the open blocks.

Movement nodes only change the index (`source_index`), so nothing is copied. A LOAD ends the recursion, and a reduction
becomes a loop with a register, placed as far out as its index allows. This placement alone gives row fusion: the
maximum of a softmax is read at an index that contains only the row, so its loop is placed once per row. A value to be
kept in LOCAL memory is stored by the first loop that computes it, and loaded by later ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import (DType, Length, Shape, Size, UOp, const, dtypes, identity, ops as o, toposort,
                                      upper_bound)
from glassgrad.compiler.graph.axis_dependence import runs
from glassgrad.compiler.graph.index_algebra import (add, both, bounds, divide, index, less, modulo, multiply, operation,
                                                    size_index, times)
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import memory_size
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, Statement, Store, counter, load, local,
                                            ranges_of, register)
from glassgrad.compiler.lower.one_hot_sums import OneTerm, one_term
from glassgrad.compiler.lower.philox import philox
from glassgrad.compiler.lower.transcendental import expand
from glassgrad.compiler.schedule.fusion import scanned_constant

Index = tuple[UOp, ...]


# -- movement: which element of the source is read -----------------------------------------------------------
def source_index(node: UOp, at: Index, size: Callable[[Size], UOp] = index) -> tuple[Index, UOp | None]:
    """The index into `node.src[0]` that element `at` of a movement node reads, and the gate outside which the element
    is 0 (padding). `size` converts a symbolic size to an index expression."""
    op, arg, shape = node.op, node.arg, node.src[0].shape
    if op is o.RESHAPE:
        return reshape_index(at, node.shape, shape, size), None
    if op is o.PERMUTE:
        return tuple(at[arg.order.index(i)] for i in range(len(shape))), None
    if op is o.EXPAND:
        return tuple(index(0) if n == 1 else i for i, n in zip(at, shape)), None
    if op is o.SHRINK:
        return tuple(add(i, size(start)) for i, (start, _) in zip(at, arg.bounds)), None
    if op is o.FLIP:
        return tuple(add(size(n - 1), multiply(i, -1)) if axis in arg.axes else i
                     for axis, (i, n) in enumerate(zip(at, shape))), None
    if op is o.WINDOW:
        inner = add(multiply(at[arg.axis], arg.stride), multiply(at[-1], arg.dilation))
        return at[:arg.axis] + (inner,) + at[arg.axis + 1:-1], None
    if op is o.PAD:
        gate: UOp | None = None
        out = []
        for i, n, (before, _) in zip(at, shape, arg.padding):
            inner = add(i, size(-before))
            gate = both(gate, both(less(index(-1), inner), less(inner, size(n))))
            out.append(inner)
        return tuple(out), gate
    if op is o.UNWINDOW:
        n = shape[arg.axis]
        offset = add(at[arg.axis], multiply(at[-1], -arg.dilation))
        gate = both(less(index(-1), offset), less(offset, size((n - 1) * arg.stride + 1)))
        if arg.stride > 1:
            gate = both(gate, less(modulo(offset, arg.stride), index(1)))
        return at[:arg.axis] + (divide(offset, arg.stride),) + at[arg.axis + 1:], gate
    raise Bug(f"{op.name} is not a movement op")


def reshape_index(at: Index, shape: Shape, source: Shape, size: Callable[[Size], UOp] = index) -> Index:
    """The index in `source` at the row-major position of `at` in `shape`; matching runs of axes map separately."""
    out: list[UOp] = []
    for i, left, j, right in runs(shape, source):
        out += _regroup(at[i:left], shape[i:left], source[j:right], size)
    return tuple(out)


def _regroup(at: Index, shape: Shape, source: Shape, size: Callable[[Size], UOp]) -> list[UOp]:
    """Map an index from one shape to another: its row-major position, split into digits. A symbolic size, unless it is
    the first, gives strides that are known only at run time."""
    if shape == source:
        return list(at)
    number, step = index(0), 1
    for i, n in zip(reversed(at), reversed(shape)):
        number = add(number, times(i, size(step)))
        step = step * n
    out: list[UOp] = []
    first = next((axis for axis, n in enumerate(source) if n != 1), 0)
    for axis, n in reversed([*enumerate(source)]):
        if n in (0, 1):
            out.append(index(0))
        elif axis == first:                          # the remaining number is below this size
            out.append(number)
        else:
            out.append(operation(o.MOD, number, size(n)))
            number = operation(o.IDIV, number, size(n))
    return out[::-1]


def flatten(at: Index, shape: Shape, size: Callable[[Size], UOp] = index) -> UOp:
    """The row-major position of an index. Memory is sized for upper bounds of symbolic sizes; of exact ones (given
    `size`), for their values."""
    total: UOp = index(0)
    step: Size = 1
    for i, n in zip(reversed(at), reversed(shape)):
        total = add(total, times(i, size(step)))
        step = step * (upper_bound(n) if size is index else memory_size(n))
    return total


# -- values --------------------------------------------------------------------------------------------------
_WITHOUT_WIDENING = (o.CAST, o.BITCAST, o.WHERE)     # computed on reduced-precision floats directly, not in float32

Request = tuple[UOp, Index, Any]  # a node, the index of one of its elements, the gate under which it is used
Computation = Generator[Request, UOp, UOp]        # yields requests, receives their values, returns its own value


@dataclass
class Block:
    """A loop being built: its counter (None outside all loops) and statements; closed once it is in its parent."""
    counter: UOp | None
    statements: list[Statement] = field(default_factory=list)
    closed: bool = False


class Values:
    """The expressions of one kernel's nodes: the values computed so far, and the open loops."""

    def __init__(self, sink: UOp, kept: dict[UOp, tuple[int, ...]]):
        self.sink, self.kept = sink, kept    # kept: node to keep in LOCAL memory -> the axes that index it
        self.votes: dict[UOp, int] | None = None     # output counter -> how many reductions depend on it, if counted
        self.memo: dict[Request, UOp] = {}
        self.requested: dict[UOp, list[tuple[Index, Any]]] = {}        # elementwise node -> its (index, gate)s
        self.kept_at: dict[UOp, tuple[UOp, list[Block], Index]] = {}   # node -> its LOCAL, loops that fill it, index
        self.open_blocks: list[Block] = [Block(None)]
        self.next_number = count().__next__         # numbers for fresh names
        self.reduced: list[int] = []          # sizes of reduced axes, which the kernel's name mentions
        nodes = toposort([sink])
        self.params = sorted((n for n in nodes if n.op is o.PARAM), key=lambda n: n.arg.slot)
        self.reductions = [n for n in nodes if n.op in o.REDUCE]
        self.measures = {p.arg.symbol: p for p in self.params if isinstance(p.arg, Measure)}     # by variable
        self.extents: dict[UOp, Size] = {}    # counter -> the size it counts to, if that is symbolic
        self.outputs: set[UOp | None] = {None}       # counters of the results' axes
        self.nesting: dict[UOp, int] = {}     # node -> how deep reductions are nested below it
        for n in nodes:
            self.nesting[n] = max([self.nesting[s] for s in n.src], default=0) + (n.op in o.REDUCE)

    # -- sizes -----------------------------------------------------------------------------------------------
    def size(self, n: Size) -> UOp:
        """A size as an index expression."""
        return size_index(n, self.measures)

    def counter(self, name: str, n: Size) -> UOp:
        """A counter for an axis of this size."""
        made = counter(name, upper_bound(n))
        if isinstance(n, Length):
            self.extents[made] = n
        return made

    def clamped(self, number: UOp, n: Size) -> UOp:
        """Clamp a computed integer to a valid index of an axis of this size."""
        return operation(o.MIN, operation(o.MAX, _as_index(number), index(0)), self.size(n - 1))

    def closed(self, blocks: list[Block], kind: str, body: list[Statement]) -> list[Statement]:
        """Close these blocks into nested loops: each block's statements, then the next loop; innermost `body`. Loops
        over axes of symbolic size get a run-time bound."""
        for block in reversed(blocks):
            assert block.counter is not None
            extent = self.extents.get(block.counter)
            body = [For(block.counter, kind, block.statements + body, None if extent is None else self.size(extent))]
            block.closed = True
        return body

    def nested(self, blocks: list[Block]) -> list[Statement]:
        """Close the output loops; the first block lies outside all of them."""
        return blocks[0].statements + self.closed(blocks[1:], TASK, [])

    # -- values on request: recursion on an explicit stack, so that depth is no limit ------------------------
    def value_at(self, node: UOp, at: Index, gate: UOp | None) -> UOp:
        """The value of `node` at index `at`, as an expression; the loops that it needs are placed in open blocks."""
        # The plain recursion would be, with each `yield request` in `computation` a call of value_at(*request):
        #     request = (node, at, gate)
        #     if request not in self.memo:
        #         self.memo[request] = self.computation(*request)
        #     return self.memo[request]
        stack: list[tuple[Request, Computation]] = []
        request: Request | None = (node, at, gate)
        value: UOp | None = None
        while True:
            if request is not None:
                value = self.memo.get(request)
                if value is None:
                    stack.append((request, self.computation(*request)))
            if not stack:
                assert value is not None
                return value
            try:
                request = stack[-1][1].send(value)  # type: ignore[arg-type]
                value = None
            except StopIteration as done:
                value = done.value
                self.memo[stack.pop()[0]] = value
                request = None

    def computation(self, node: UOp, at: Index, gate: UOp | None) -> Computation:
        """Compute one element: request elements of the sources, then return an expression over their values."""
        op = node.op
        if op in o.ELEMENTWISE:
            return (yield from self.elementwise(node, at, gate))
        if op in o.MOVEMENT:
            return (yield from self.movement(node, at, gate))
        if op in o.REDUCE:
            return (yield from self.reduction(node, at, gate))
        if op in (o.CONST, o.RANGE) or op is o.PARAM and node.arg.scalar:
            return node
        if op is o.PARAM:
            return _load(node, flatten(at, node.shape, self.size), gate)
        if op is o.LENGTH:
            return self.size(node.arg.length).cast(node.dtype)
        if op is o.GATHER:
            rows, indices = node.src
            rank = len(indices.shape)
            picked = yield (indices, at[:rank], gate)
            return (yield (rows, (self.clamped(picked, rows.shape[0]), *at[rank:]), gate))
        if op is o.IOTA:
            return at[0].cast(node.dtype)
        if op is o.RANDOM:
            seed = yield (node.src[0], (), gate)
            stream = yield (node.src[1], (), gate)
            return philox(seed, stream, flatten(at, node.shape, self.size))
        step = scanned_constant(node)
        if step is not None:
            wide = node.dtype.accumulator
            return (add(at[node.arg.axis], index(1)).cast(wide) * step.cast(wide)).cast(node.dtype)
        if op in (o.CONTIGUOUS, o.DETACH):
            return (yield (node.src[0], at, gate))
        raise Bug(f"{op.name} cannot stand inside a kernel")

    def elementwise(self, node: UOp, at: Index, gate: UOp | None) -> Computation:
        """The same element of each source, combined; or loaded, where it is kept in memory."""
        self.requested.setdefault(node, []).append((at, gate))
        if self.is_filled(node):
            axes = self.kept[node]
            position = flatten(tuple(at[a] for a in axes), tuple(node.shape[a] for a in axes))
            return load(self.kept_at[node][0], position, gate)
        # the source with the deepest reductions comes first: its loops are the first that need shared values
        src: dict[UOp, UOp] = {}
        for s in sorted(node.src, key=lambda s: -self.nesting[s]):
            src[s] = yield (s, at if s.shape != () else (), gate)
        if self.is_filled(node):      # a loop of one of its sources filled its memory
            return (yield (node, at, gate))
        result = _compute(node, tuple([src[s] for s in node.src]))
        if node in self.kept and node not in self.kept_at and self.outputs.isdisjoint(
                [self.open_blocks[-1].counter, *[at[a] for a in self.kept[node]]]):
            self.keep(node, at, result)
        return result

    def movement(self, node: UOp, at: Index, gate: UOp | None) -> Computation:
        """An element of the source at another index, and 0 in a padding."""
        inner, own_gate = source_index(node, at, self.size)
        value = yield (node.src[0], inner, both(gate, own_gate))
        zero = const(0, value.dtype)                                      # and not -0.0
        is_zero_outside = value.op is o.LOAD and len(value.src) == 3 or value is zero
        if own_gate is None or is_zero_outside or own_gate.op is o.CONST and own_gate.arg:
            return value
        return own_gate.where(value, zero)

    # -- reductions ------------------------------------------------------------------------------------------
    def depth(self, at: Index, gate: UOp | None) -> int:
        """The depth in the open blocks at which a value at this index must be placed."""
        needed = frozenset().union(*[ranges_of(i) for i in at], ranges_of(gate) if gate is not None else ())
        return max((d for d, block in enumerate(self.open_blocks) if block.counter in needed), default=0)

    def reduction(self, node: UOp, at: Index, gate: UOp | None) -> Computation:
        """Place a loop that accumulates into a register, as far out as the index allows."""
        source, axes = node.src[0], node.arg.axes
        combine = node.op.combine
        assert combine is not None
        dtype = node.dtype.accumulator
        if any(source.shape[a] == 0 for a in axes):
            return identity(combine, node.dtype)
        chosen = one_term(node) if source.op in (o.WHERE, o.NEG) else None
        if chosen is not None:
            return (yield from self.one_element(node, chosen, at, gate))
        depth = self.depth(at, gate)
        if self.votes is not None:
            for block in self.open_blocks[1:]:
                if block.counter in self.votes and any(block.counter in ranges_of(i) for i in at):
                    self.votes[block.counter] += 1
        counters = {a: self.counter(f"k{self.next_number()}", source.shape[a]) for a in axes}
        self.reduced += [source.shape[a] for a in axes]
        total = register(f"acc{self.next_number()}", dtype)
        around = self.open_blocks
        inner = [Block(counters[a]) for a in axes]
        self.open_blocks = around[:depth + 1] + inner
        value = yield (source, tuple(counters.get(a, i) for a, i in enumerate(at)), gate)
        self.open_blocks = around
        body: list[Statement] = [Accumulate(total, combine, value.cast(dtype))]
        self.open_blocks[depth].statements += [Assign(total, identity(combine, dtype)), *self.closed(inner, LOOP, body)]
        return total.cast(node.dtype)

    def one_element(self, node: UOp, chosen: OneTerm, at: Index, gate: UOp | None) -> Computation:
        """A sum with a single nonzero term is that element, without a loop."""
        [axis] = node.arg.axes
        picked = yield (chosen.number, at, gate)
        place = self.clamped(picked, node.src[0].shape[axis])
        value = yield (chosen.value, tuple(place if a == axis else i for a, i in enumerate(at)), gate)
        value, number = -value if chosen.negated else value, _as_index(picked)
        return (value if place is number else place.eq(number).where(value, const(0, value.dtype))).cast(node.dtype)

    # -- values kept in LOCAL memory -------------------------------------------------------------------------
    def keep(self, node: UOp, at: Index, value: UOp) -> None:
        """Store a value that was just computed, for the loops that follow."""
        inner = self.kept[node]
        shape = tuple(node.shape[a] for a in inner)
        memory = local(f"kept{len(self.kept_at)}", node.dtype, math.prod(map(upper_bound, shape)))
        self.kept_at[node] = (memory, self.open_blocks, tuple(at[a] for a in inner))
        self.open_blocks[-1].statements.append(Store(memory, flatten(tuple(at[a] for a in inner), shape), value))
        self.memo = {q: v for q, v in self.memo.items() if q[0] is not node}

    def is_filled(self, node: UOp) -> bool:
        """Whether the loops that fill this node's memory are complete here. Inside them, and in a loop placed before
        one of them, the memory is only partly filled."""
        if node not in self.kept_at:
            return False
        _, filling, at = self.kept_at[node]
        shared = sum(1 for mine, theirs in zip(self.open_blocks, filling) if mine is theirs)
        if shared == len(filling) or not filling[shared].closed:
            return False
        return not any(block.counter in at for block in filling[:shared])


def _load(memory: UOp, at: UOp, gate: UOp | None) -> UOp:
    if gate is not None and gate.op is o.CONST:
        return load(memory, at) if gate.arg else const(0, memory.dtype)
    return load(memory, at, gate)


def _compute(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """Apply an elementwise op: reduced-precision floats via float32, transcendental functions as polynomials."""
    op, dtype = node.op, node.dtype
    reduced: DType | None = next((s.dtype for s in src if s.dtype.kind == "f" and s.dtype.bits < 32), None)
    if reduced is not None and op not in _WITHOUT_WIDENING:
        wide = tuple(s.cast(dtypes.float32) if s.dtype is reduced else s for s in src)
        result = _compute(UOp(op, dtypes.float32 if dtype is reduced else dtype, wide, node.arg), wide)
        return result.cast(reduced) if dtype is reduced else result
    if op is o.CAST:
        if dtype is dtypes.index:
            return _as_index(src[0])
        if src[0].dtype.kind == "f" and src[0].dtype.bits < 32 and dtype is not dtypes.float32:
            return src[0].cast(dtypes.float32).cast(dtype)       # casts from reduced precision go through float32 ...
        if dtype.kind == "f" and dtype.bits < 32 and src[0].dtype not in (dtypes.float32, dtypes.float64):
            return src[0].cast(dtypes.float32).cast(dtype)       # ... and so do casts to it
    result = UOp(op, dtype, src, node.arg, node.place)
    return expand(result) if op.approximate else result


def _as_index(number: UOp) -> UOp:
    """Convert a number to an index; if it was cast from an index, return that index."""
    if number.op is o.CAST and number.src[0].dtype is dtypes.index:
        low, high = bounds(number.src[0])
        if number.dtype.min <= low and high <= number.dtype.max:
            return number.src[0]
    return number.cast(dtypes.index)
