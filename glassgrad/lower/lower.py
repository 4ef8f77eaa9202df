"""Turn one kernel's graph into loops. In: a SINK of STOREs over PARAMs. Out: a loop tree (`Kernel`), not yet optimized.

Each output axis becomes a counter. An element's value is found by asking its node for its value at an index; movement
nodes only change the index, LOADs end the question, and a reduction becomes a loop of its own with a register, placed
as far out as the index it is asked for allows. That placement is the whole of row fusion: a softmax's maximum is asked
for at an index that knows only the row, so its loop stands once per row.

Values that cost much and are asked for by several loops of one row are kept in LOCAL memory by the first that computes
them (`_choose_kept`).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.graph import ops as o
from glassgrad.graph.arguments import Measure
from glassgrad.graph.dtype import DType, dtypes
from glassgrad.graph.index import add, both, index, size_index
from glassgrad.graph.length import Length, Size, most
from glassgrad.graph.node import toposort
from glassgrad.graph.ops import Kind
from glassgrad.graph.uop import UOp, const, identity
from glassgrad.lower.loops import (
    LOOP,
    TASK,
    Accumulate,
    Assign,
    For,
    Kernel,
    Phase,
    Statement,
    Store,
    counter,
    load,
    local,
    ranges_of,
    register,
)
from glassgrad.lower.movement import Index, flatten, source_index
from glassgrad.lower.philox import philox
from glassgrad.lower.transcendental import expand
from glassgrad.schedule.fuse import counted

KEEP_COST = 12            # a value at least this expensive (in vector instructions) is kept rather than computed again
KEEP_BYTES = 256 * 1024   # the longest row that is kept: it should stay in the second-level cache
_CURVED = (o.EXP2, o.LOG2, o.SIN)
_PASSES = (o.CAST, o.BITCAST, o.WHERE)   # defined on narrow floats as they are

Question = tuple[UOp, Index, Any]
Answer = Generator[Question, UOp, UOp]


def lower(sink: UOp, name: str = "") -> Kernel:
    """The plain loop tree of a kernel's graph."""
    kept: dict[UOp, tuple[int, ...]] = {}
    while True:
        lowering = _Lowering(sink, kept)
        kernel = lowering.run(name)
        more = lowering.choose_kept()
        if more is None:
            return kernel
        node, axes = more
        kept[node] = axes


@dataclass
class _Block:
    """A loop: its counter (None outside all loops), the statements so far, and whether it stands in its parent."""
    counter: UOp | None
    statements: list[Statement] = field(default_factory=list)
    closed: bool = False


class _Lowering:
    def __init__(self, sink: UOp, kept: dict[UOp, tuple[int, ...]]):
        self.sink, self.kept = sink, kept    # kept: nodes to keep in LOCAL memory, with the axes that index it
        self.votes: dict[UOp, int] | None = None
        self.memo: dict[Question, UOp] = {}
        self.asked: dict[UOp, list[tuple[Index, Any]]] = {}
        self.kept_at: dict[UOp, tuple[UOp, list[_Block], Index]] = {}   # node: its LOCAL, the loops that fill it, where
        self.path: list[_Block] = [_Block(None)]
        self.names = 0
        self.reduced: list[int] = []
        nodes = toposort([sink])
        self.params = sorted((n for n in nodes if n.op is o.PARAM), key=lambda n: n.arg.slot)
        self.reductions = [n for n in nodes if n.op in o.REDUCE]
        self.values = {p.arg.symbol: p for p in self.params if isinstance(p.arg, Measure)}   # of variables
        self.extents: dict[UOp, Size] = {}    # counter: the size it counts to, where that is symbolic
        self.outputs: set[UOp | None] = {None}
        self.nesting: dict[UOp, int] = {}     # how many reductions stand one in another below a node
        for n in nodes:
            self.nesting[n] = max([self.nesting[s] for s in n.src], default=0) + (n.op in o.REDUCE)

    # -- the whole kernel ------------------------------------------------------------------------------------
    def run(self, name: str) -> Kernel:
        stores = [s for s in self.sink.src if s.op is o.STORE]
        root = stores[0].src[1]
        if root.op in (o.SCATTER, o.SCAN):
            phases = self.scatter(stores[0]) if root.op is o.SCATTER else self.scan(stores[0])
            shape = root.shape
        else:
            shape = max((s.src[1] for s in stores), key=lambda value: value.size).shape
            counters = [self.counter(f"i{axis}", n) if most(n) > 1 or isinstance(n, Length) else index(0)
                        for axis, n in enumerate(shape)]
            for c in self.row_order(counters):
                self.path.append(_Block(c))
                self.outputs.add(c)
            blocks = self.path
            for s in stores:
                target, value = s.src
                at = tuple(index(0) if n == 1 else c for c, n in zip(counters, value.shape))
                result = self.ask(value, at, None)
                depth = self.depth(at, None)
                if target.op is o.SHRINK:                # a part of what is there already
                    at, _ = source_index(target, at, self.size)
                blocks[depth].statements.append(Store(target.base, flatten(at, target.base.shape), result))
            phases = [Phase(self.close(blocks))]
        kind = root.op.name.lower() if root.op in (o.SCATTER, o.SCAN) else "reduce" if self.reductions else "map"
        sizes = "_".join([*[str(most(n)) for n in shape if most(n) > 1], *[f"r{most(n)}" for n in self.reduced]])
        written = tuple(s.src[0].base.arg.slot for s in stores)
        return Kernel(name or f"{kind}_{sizes or 1}", self.params, phases, written)

    def close(self, blocks: list[_Block]) -> list[Statement]:
        """Nest the output loops: each block's statements, then the loop inside it."""
        inside: list[Statement] = []
        for block in reversed(blocks):
            body = block.statements + inside
            inside = body if block.counter is None else [self.loop(block.counter, TASK, body)]
        return inside

    # -- sizes -----------------------------------------------------------------------------------------------
    def size(self, n: Size) -> UOp:
        """A size as an index expression."""
        return size_index(n, self.values)

    def counter(self, name: str, n: Size) -> UOp:
        """A counter of an axis of this size."""
        made = counter(name, most(n))
        if isinstance(n, Length):
            self.extents[made] = n
        return made

    def loop(self, range_: UOp | None, kind: str, body: list[Statement]) -> For:
        """A loop over an axis: up to its size as it is when the kernel runs."""
        assert range_ is not None
        extent = self.extents.get(range_)
        return For(range_, kind, body, None if extent is None else self.size(extent))

    def row_order(self, counters: list[UOp]) -> list[UOp]:
        """Output counters, those that reductions depend on outermost, so that a row's reductions stand once per row."""
        loops = [c for c in counters if c.op is o.RANGE]
        if not self.reductions:
            return loops
        probe = _Lowering(self.sink, self.kept)
        probe.path += [_Block(c) for c in loops]
        probe.extents.update(self.extents)
        votes = dict.fromkeys(loops, 0)
        probe.votes = votes
        for value in [s.src[1] for s in self.sink.src if s.op is o.STORE]:
            probe.ask(value, tuple(index(0) if n == 1 else c for c, n in zip(counters, value.shape)), None)
        return sorted(loops, key=lambda c: -votes[c])

    # -- asking for values: a recursion on an explicit stack, so that depth is no limit ----------------------
    def ask(self, node: UOp, at: Index, gate: UOp | None) -> UOp:
        """The value of `node` at `at`, as an expression; loops it needs are placed in open blocks."""
        stack: list[tuple[Question, Answer]] = []
        question: Question | None = (node, at, gate)
        answer: UOp | None = None
        while True:
            if question is not None:
                answer = self.memo.get(question)
                if answer is None:
                    stack.append((question, self.value(*question)))
            if not stack:
                assert answer is not None
                return answer
            try:
                question = stack[-1][1].send(answer)  # type: ignore[arg-type]
                answer = None
            except StopIteration as done:
                answer = done.value
                self.memo[stack.pop()[0]] = answer
                question = None
                if not stack:
                    return answer

    def value(self, node: UOp, at: Index, gate: UOp | None) -> Answer:
        op = node.op
        if op.kind in (Kind.UNARY, Kind.BINARY, Kind.TERNARY):
            self.asked.setdefault(node, []).append((at, gate))
            if self.is_filled(node):
                axes = self.kept[node]
                spot = flatten(tuple(at[a] for a in axes), tuple(node.shape[a] for a in axes))
                return load(self.kept_at[node][0], spot, gate)
            # the source with the deepest reductions first: its loops are the first to need what the others share
            src: dict[UOp, UOp] = {}
            for s in sorted(node.src, key=lambda s: -self.nesting[s]):
                src[s] = yield (s, at if s.shape != () else (), gate)
            if self.is_filled(node):      # kept by a loop that a source asked for
                return (yield (node, at, gate))
            result = _compute(node, tuple([src[s] for s in node.src]))
            if node in self.kept and node not in self.kept_at and self.outputs.isdisjoint(
                    [self.path[-1].counter, *[at[a] for a in self.kept[node]]]):
                self.keep(node, at, result)
            return result
        if op.kind == Kind.MOVEMENT:
            inner, real = source_index(node, at, self.size)
            value = yield (node.src[0], inner, both(gate, real))
            if real is None or (value.op is o.LOAD and len(value.src) == 3) or (value.op is o.CONST and value.arg == 0):
                return value    # a gated LOAD is 0 outside its gate already
            return value if real.op is o.CONST and real.arg else real.where(value, const(0, value.dtype))
        if op in o.REDUCE:
            return (yield from self.reduction(node, at, gate))
        if op is o.PARAM:
            if node.arg.scalar:
                return node
            return _load(node, flatten(at, node.shape), gate)
        if op is o.CONST:
            return node
        if op is o.LENGTH:
            return self.size(node.arg.length).cast(node.dtype)
        if op is o.GATHER:
            rows, where = node.src
            picked = yield (where, at[:len(where.shape)], gate)
            row = picked.cast(dtypes.index).maximum(0).minimum(self.size(rows.shape[0] - 1))
            return (yield (rows, (row, *at[len(where.shape):]), gate))
        if op is o.IOTA:
            return at[0].cast(node.dtype)
        if op is o.RANDOM:
            seed = yield (node.src[0], (), gate)
            stream = yield (node.src[1], (), gate)
            return philox(seed, stream, flatten(at, node.shape))
        step = counted(node)
        if step is not None:
            wide = node.dtype.accumulator
            return (add(at[node.arg.axis], index(1)).cast(wide) * step.cast(wide)).cast(node.dtype)
        if op in (o.CONTIGUOUS, o.DETACH):
            return (yield (node.src[0], at, gate))
        raise Bug(f"{op.name} cannot stand inside a kernel")

    # -- reductions ------------------------------------------------------------------------------------------
    def depth(self, at: Index, gate: UOp | None) -> int:
        """How deep in the open blocks something must stand that is asked for at this index."""
        needed = frozenset().union(*[ranges_of(i) for i in at], ranges_of(gate) if gate is not None else ())
        return max((d for d, block in enumerate(self.path) if block.counter in needed), default=0)

    def reduction(self, node: UOp, at: Index, gate: UOp | None) -> Answer:
        source, axes = node.src[0], node.arg.axes
        combine = node.op.combine
        assert combine is not None
        carried = node.dtype.accumulator
        if any(source.shape[a] == 0 for a in axes):
            return identity(combine, node.dtype)
        depth = self.depth(at, gate)
        if self.votes is not None:
            for block in self.path[1:]:
                if block.counter in self.votes and any(block.counter in ranges_of(i) for i in at):
                    self.votes[block.counter] += 1
        counters = {a: self.counter(f"k{self.fresh()}", source.shape[a]) for a in axes}
        self.reduced += [source.shape[a] for a in axes]
        total = register(f"acc{self.fresh()}", carried)
        whole_path = self.path
        inner = [_Block(counters[a]) for a in axes]
        self.path = whole_path[:depth + 1] + inner
        value = yield (source, tuple(counters.get(a, i) for a, i in enumerate(at)), gate)
        self.path = whole_path
        body: list[Statement] = [Accumulate(total, combine, value.cast(carried))]
        for block in reversed(inner):
            body = [self.loop(block.counter, LOOP, block.statements + body)]
            block.closed = True
        self.path[depth].statements += [Assign(total, identity(combine, carried)), *body]
        return total.cast(node.dtype)

    def fresh(self) -> int:
        self.names += 1
        return self.names - 1

    # -- values kept in LOCAL memory -------------------------------------------------------------------------
    def keep(self, node: UOp, at: Index, value: UOp) -> None:
        """Store a just computed value for the loops that follow."""
        inner = self.kept[node]
        shape = tuple(node.shape[a] for a in inner)
        memory = local(f"kept{len(self.kept_at)}", node.dtype, math.prod(map(most, shape)))
        self.kept_at[node] = (memory, self.path, tuple(at[a] for a in inner))
        self.path[-1].statements.append(Store(memory, flatten(tuple(at[a] for a in inner), shape), value))
        self.memo = {q: v for q, v in self.memo.items() if q[0] is not node}

    def is_filled(self, node: UOp) -> bool:
        """Whether what is asked for here stands after the loops that keep this node. Inside them, or in a loop that is
        placed before one of them, its memory holds only a part yet."""
        if node not in self.kept_at:
            return False
        _, filling, spot = self.kept_at[node]
        shared = sum(1 for mine, theirs in zip(self.path, filling) if mine is theirs)
        return shared < len(filling) and filling[shared].closed and not any(b.counter in spot for b in filling[:shared])

    def choose_kept(self) -> tuple[UOp, tuple[int, ...]] | None:
        """A costly value that several loops of one row ask for, each over the whole row; the outermost such node."""
        if not self.reductions:
            return None
        for node in reversed(toposort([self.sink])):
            asked = list(dict.fromkeys(self.asked.get(node, [])))
            if len(asked) < 2 or node in self.kept or any(gate is not None for _, gate in asked):
                continue
            if _work(node) < KEEP_COST:
                continue
            varying = tuple(a for a in range(len(node.shape)) if len({at[a] for at, _ in asked}) > 1)
            whole = all(at[a].op is o.RANGE and self.extents.get(at[a], at[a].arg.size) == node.shape[a]
                        for at, _ in asked for a in varying)
            apart = all(len({at[a] for a in varying}) == len(varying) for at, _ in asked)
            size = math.prod(most(node.shape[a]) for a in varying) * node.dtype.itemsize
            if varying and whole and apart and size <= KEEP_BYTES:
                return node, varying
        return None

    # -- the two that are kernels of their own ---------------------------------------------------------------
    def scatter(self, store: UOp) -> list[Phase]:
        """Copy the base, then place the values: one after another along the indices, apart along the rest."""
        target, node = store.src
        base, where, values = node.src
        counters = tuple(self.counter(f"i{a}", n) for a, n in enumerate(base.shape))
        self.path += [_Block(c) for c in counters]
        copied = self.ask(base, counters, None)
        self.path[-1].statements.append(Store(target, flatten(counters, base.shape), copied))
        first = Phase(self.close(self.path))
        self.path = [_Block(None)]
        rest = tuple(self.counter(f"j{a}", n) for a, n in enumerate(base.shape[1:]))
        places = tuple(self.counter(f"s{a}", n) for a, n in enumerate(where.shape))
        outer = [_Block(c) for c in rest]
        inner = [_Block(c) for c in places]
        self.path = [_Block(None), *outer, *inner]
        row = self.ask(where, places, None).cast(dtypes.index)
        value = self.ask(values, places + rest, None)
        combine = {"set": None, "add": o.ADD, "max": o.MAX}[node.arg.mode]
        spot = flatten((row.maximum(0).minimum(self.size(base.shape[0] - 1)), *rest), base.shape)
        wide = target.dtype.accumulator
        if combine is not None and wide is not target.dtype:     # narrow floats are combined in float32
            value = UOp(combine, wide, (load(target, spot).cast(wide), value.cast(wide))).cast(target.dtype)
            combine = None
        body: list[Statement] = [Store(target, spot, value, combine)]
        for block in reversed(inner):
            body = [self.loop(block.counter, LOOP, block.statements + body)]
        for block in reversed(outer):
            body = [self.loop(block.counter, TASK, block.statements + body)]
        return [first, Phase(body)]

    def scan(self, store: UOp) -> list[Phase]:
        """A running total along one axis, one row per task."""
        target, node = store.src
        source, axis, combine = node.src[0], node.arg.axis, node.arg.combine
        at = tuple(self.counter(f"i{a}" if a != axis else "k0", n) for a, n in enumerate(source.shape))
        outer = [_Block(c) for a, c in enumerate(at) if a != axis]
        along = _Block(at[axis])
        self.path = [_Block(None), *outer, along]
        total = register("acc", node.dtype.accumulator)
        value = self.ask(source, at, None).cast(total.dtype)
        along.statements += [Accumulate(total, combine, value),
                             Store(target, flatten(at, source.shape), total.cast(node.dtype))]
        body: list[Statement] = [Assign(total, identity(combine, total.dtype)),
                                 self.loop(at[axis], LOOP, along.statements)]
        for block in reversed(outer):
            body = [self.loop(block.counter, TASK, block.statements + body)]
        return [Phase(body)]


def _load(memory: UOp, at: UOp, gate: UOp | None) -> UOp:
    if gate is not None and gate.op is o.CONST:
        return load(memory, at) if gate.arg else const(0, memory.dtype)
    return load(memory, at, gate)


def _compute(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """One elementwise op on values: narrow floats by way of float32, curves as polynomials."""
    op, dtype = node.op, node.dtype
    narrow: DType | None = next((s.dtype for s in src if s.dtype.kind == "f" and s.dtype.bits < 32), None)
    if narrow is not None and op not in _PASSES:
        wide = tuple(s.cast(dtypes.float32) if s.dtype is narrow else s for s in src)
        result = _compute(UOp(op, dtypes.float32 if dtype is narrow else dtype, wide, node.arg), wide)
        return result.cast(narrow) if dtype is narrow else result
    if op is o.CAST:
        if src[0].dtype.kind == "f" and src[0].dtype.bits < 32 and dtype is not dtypes.float32:
            return src[0].cast(dtypes.float32).cast(dtype)       # narrow floats go through float32 ...
        if dtype.kind == "f" and dtype.bits < 32 and src[0].dtype not in (dtypes.float32, dtypes.float64):
            return src[0].cast(dtypes.float32).cast(dtype)       # ... both ways
    result = UOp(op, dtype, src, node.arg)
    return expand(result) if op in _CURVED else result


def _work(node: UOp) -> int:
    """What computing one element costs, down to the loads and reductions below."""
    seen: set[UOp] = set()
    stack, total = [node], 0
    while stack:
        n = stack.pop()
        if n in seen or n.op in o.REDUCE:
            continue
        seen.add(n)
        total += n.op.cost if n.op in o.ELEMENTWISE else 60 if n.op is o.RANDOM else 0
        stack.extend(n.src)
    return total
