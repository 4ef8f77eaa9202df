"""Unroll and jam TILE loops. In: a phase. Out: the same program in LOOPs, LANEs, Ifs and single statements.

    for i in tile 2:                      acc[0] += x[k]
        acc[i] += x[k + i]        ->      acc[1] += x[k + 1]

A statement inside TILE loops is written once for each combination of the tile values it depends on, all of them before
the next statement. Known tile values fold into the index arithmetic, so addresses become base + constant, and gates
that they decide disappear. Loops of one iteration are unrolled too. Folds over tiles become trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from itertools import product

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, index_algebra as ix, ops as o, toposort
from glassgrad.compiler.graph.op_arguments import FoldOver
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, UNIT, WIDE, Accumulate, Assign, For, If, Phase, Prefetch,
                                            Statement, Store, numbered_loops, ranges_of, rewritten, walk)
from glassgrad.compiler.lower.missing_instructions import LACKING, Instructions

Binding = dict[UOp, UOp]      # tile range -> its value, a CONST


@dataclass
class Jammed:
    """A phase without TILE loops: `tasks` are spread over workers, each of which runs `body` for its tasks."""
    tasks: list[UOp]          # the ranges that the task number counts, outermost first
    body: list[Statement]
    lanes: list[UOp]          # the ranges that are vectors
    units: list[UOp]          # the ranges inside one instruction of a matrix unit


def jam(phase: Phase, has: Instructions, origins: dict[Statement, Statement] | None = None) -> Jammed:
    """Unroll and jam a phase, and use only operations that the target has. `origins`, if given, is filled with the
    original statement of each generated one. Steps of a matrix unit are not unrolled: each is one instruction."""
    loops, body = numbered_loops(phase.body)
    wide = {kind: {s.range for s in walk(phase.body) if isinstance(s, For) and s.kind == kind} for kind in (LANE, UNIT)}
    writer = _Jam(has, wide[LANE], wide[UNIT], origins)
    for loop in reversed(loops):
        if loop.stop is not None:      # a task beyond the stop does nothing
            body = [If(ix.less(loop.range, loop.stop), body)]
    writer.open.update((loop.range, 1) for loop in loops if loop.range.arg.size == 1)
    out: list[Statement] = []
    writer.write(body, {}, out)
    tasks = [loop.range for loop in loops]
    return Jammed(tasks, out, sorted(writer.lanes, key=ix.order_key), sorted(writer.units, key=ix.order_key))


class _Jam:
    """Unrolls statements; `binding` has the values of the tile ranges that are fixed so far."""
    def __init__(self, has: Instructions, lanes: set[UOp], units: set[UOp],
                 origins: dict[Statement, Statement] | None):
        self.has, self.units, self.origins = has, units, origins
        self.lanes = {r for r in lanes if r.arg.size > 1}
        self.open: dict[UOp, int] = {}  # TILE ranges around the current statement -> iterations
        self.prepared: dict[UOp, UOp] = {}
        self.bound: dict[tuple[tuple[UOp, UOp], ...], dict[UOp, UOp]] = {}     # values of tile ranges -> memo

    # -- statements ----------------------------------------------------------------------------------------------
    def write(self, body: Iterable[Statement], binding: Binding, out: list[Statement]) -> None:
        """Append these statements to `out`, each for all values of the tile ranges that it depends on."""
        for statement in body:
            written = len(out)
            if isinstance(statement, For):
                self.loop(statement, binding, out)
            elif isinstance(statement, If):
                self.branch(statement, binding, out)
            elif isinstance(statement, (Assign, Accumulate)):
                self.assignment(statement, binding, out)
            elif isinstance(statement, Prefetch):
                place = self.bind(self.prepare(statement.index), dict.fromkeys(self.lanes, ix.index(0)))
                for each in self.combinations((place,), binding):
                    out.append(Prefetch(statement.memory, self.bind(place, each)))
            elif isinstance(statement, Store):
                self.store(statement, binding, out)
            else:                                            # asynchronous statements, and waits
                out.append(rewritten(statement, lambda e: self.bind(self.prepare(e), binding)))
            if self.origins is not None:
                for made in walk(out[max(0, written - 1):]):       # a store may have been merged into the previous If
                    self.origins.setdefault(made, statement)

    def branch(self, statement: If, binding: Binding, out: list[Statement]) -> None:
        condition = self.prepare(statement.condition)
        for each in self.combinations((condition,), binding):
            test = self.bind(condition, each)
            inner: list[Statement] = []
            if test.op is not o.CONST or test.arg:
                self.write(statement.body, each, inner)
            if inner:
                out.extend(inner) if test.op is o.CONST else out.append(If(test, inner))

    def assignment(self, statement: Assign | Accumulate, binding: Binding, out: list[Statement]) -> None:
        register = statement.register
        is_unit_step = isinstance(statement, Accumulate) and is_step(statement, self.units)
        value = statement.value if is_unit_step else self.prepare(statement.value)
        if isinstance(statement, Accumulate):
            value = self.folded(value, statement.combine, register)
        for each in self.combinations((register, value), binding):
            target, source = self.bind(register, each), self.bind(value, each)
            out.append(Assign(target, source) if isinstance(statement, Assign)
                       else Accumulate(target, statement.combine, source))

    def loop(self, statement: For, binding: Binding, out: list[Statement]) -> None:
        range_, kind, stop = statement.range, statement.kind, statement.stop
        stop = None if stop is None else self.prepare(stop)
        for each in self.combinations(() if stop is None else (stop,), binding):
            limit = None if stop is None else self.bind(stop, each)
            size: int = range_.arg.size
            if limit is not None and ix.bounds(limit)[0] >= size:
                limit = None
            if limit is not None and limit.op is o.CONST:
                size, limit = int(limit.arg), None
            if size <= 0:
                continue
            if limit is not None and kind in WIDE or kind in (LANE, UNIT) and size != range_.arg.size:
                raise Bug(f"the {kind} loop {range_.arg.name} has a stop; wide loops are cut by gates")
            if kind == TILE or size == 1 and limit is None and kind != UNIT:
                self.open[range_] = size
                self.write(statement.body, each, out)
                del self.open[range_]
            else:
                inner: list[Statement] = []
                self.write(statement.body, each, inner)
                if inner:
                    shorter = ix.index(size) if limit is None and size < range_.arg.size else limit
                    out.append(For(range_, kind if kind in (LANE, UNIT) else LOOP, inner, shorter))

    def store(self, statement: Store, binding: Binding, out: list[Statement]) -> None:
        index, value = self.prepare(statement.index), self.prepare(statement.value)
        if statement.combine is not None:
            value = self.folded(value, statement.combine, index)
        gate = None if statement.gate is None else self.prepare(statement.gate)
        for each in self.combinations((index, value) if gate is None else (index, value, gate), binding):
            test = None if gate is None else self.bind(gate, each)
            if test is not None and test.op is o.CONST:
                if not test.arg:
                    continue
                test = None
            condition, mask = self.split_gate(test)
            store = Store(statement.memory, self.bind(index, each), self.bind(value, each), statement.combine, mask)
            last = out[-1] if out else None
            if condition is None:
                out.append(store)
            elif isinstance(last, If) and last.condition is condition and not _changes(condition):
                last.body.append(store)
            else:
                out.append(If(condition, [store]))

    def folded(self, value: UOp, combine: o.Op, target: UOp) -> UOp:
        """Fold a value over those lanes that the target, into which it is combined, does not have."""
        lanes = tuple([r for r in self.lanes if r in ranges_of(value) and r not in ranges_of(target)])
        return UOp(o.FOLD, value.dtype, (value, *lanes), FoldOver(combine)) if lanes else value

    def split_gate(self, gate: UOp | None) -> tuple[UOp | None, UOp | None]:
        """Split a gate into (the part that is the same for all lanes, the part that differs): a branch and a mask."""
        if gate is None or (self.lanes | self.units).isdisjoint(ranges_of(gate)):
            return gate, None
        if gate.op is o.AND:
            (a, b), (c, d) = self.split_gate(gate.src[0]), self.split_gate(gate.src[1])
            return ix.both(a, c), ix.both(b, d)
        return None, gate

    # -- expressions ---------------------------------------------------------------------------------------------
    def combinations(self, expressions: tuple[UOp, ...], binding: Binding) -> Iterable[Binding]:
        """Extend the binding by every combination of values of the open tile ranges that the expressions depend on."""
        free = [r for r in self.open if r not in binding and any(r in ranges_of(e) for e in expressions)]
        if not free:
            return (binding,)
        choices = [[ix.index(v) for v in range(self.open[r])] for r in free]
        return [{**binding, **dict(zip(free, values))} for values in product(*choices)]

    def bind(self, root: UOp, binding: Binding) -> UOp:
        """The expression with tile ranges replaced by their values, simplified again."""
        wide = ranges_of(root)
        values = tuple([(r, value) for r, value in binding.items() if r in wide])
        if not values:
            return root
        replace = dict(values)

        def known(node: UOp) -> UOp | None:          # parts with fewer tile ranges are bound once for all others
            return None if replace.keys() <= ranges_of(node) else self.bind(node, replace)
        return ix.substitute_index(root, replace, self.bound.setdefault(values, {}), known)

    def prepare(self, root: UOp) -> UOp:
        """The expression with its folds over tiles unrolled, in operations that the target has."""
        done = self.prepared
        found = done.get(root)
        if found is not None:
            return found
        for node in toposort((root,)):
            if node in done:
                continue
            new = node.over(tuple([done[s] for s in node.src]))
            lacking = LACKING.get((new.op, new.src[0].dtype.kind)) if new.src else None
            done[node] = self.unfold(new) if new.op is o.FOLD else new if lacking is None else lacking(new, self.has)
        return done[root]

    def unfold(self, node: UOp) -> UOp:
        """A FOLD over tile ranges as a tree of its values; a FOLD over lanes stays."""
        value, *wide = node.src
        tiles = [r for r in wide if r not in self.lanes]
        lanes = tuple(r for r in wide if r in self.lanes)
        if tiles:
            choices = [[ix.index(v) for v in range(r.arg.size)] for r in tiles]
            value = pairwise(node.arg.combine, [self.bind(value, dict(zip(tiles, c))) for c in product(*choices)])
        return UOp(o.FOLD, node.dtype, (value, *lanes), node.arg) if lanes else value


def is_step(statement: Accumulate, units: Set[UOp]) -> bool:
    """Whether a statement is a step of a matrix unit, which adds products to a matrix as a single instruction."""
    own = [r for r in statement.register.src if r in units]
    return len(own) == 2 and statement.value.op is o.MUL and not units.isdisjoint(ranges_of(statement.value) - {*own})


def pairwise(combine: o.Op, values: list[UOp]) -> UOp:
    """Combine values in pairs, then pairs of pairs, and so on: short dependency chains, always in the same order."""
    while len(values) > 1:
        pairs = [UOp(combine, values[0].dtype, (a, b)) for a, b in zip(values[::2], values[1::2])]
        values = pairs + values[len(pairs) * 2:]
    return values[0]


def _changes(node: UOp) -> bool:
    """Whether a value reads memory or registers, and so may change."""
    return any(n.op in (o.LOAD, o.REGISTER) for n in toposort((node,)))
