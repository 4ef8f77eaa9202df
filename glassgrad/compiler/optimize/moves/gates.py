"""Conditions on what is read and stored. In: expressions or statements, a gate. Out: the same where the gate holds.

A gate is a condition on counters: it keeps accesses inside a ragged edge or a padded image. A LOAD whose gate is false
is 0 and reads nothing; a Store whose gate is false stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from glassgrad.compiler.graph import UOp, const, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import both, index, less, substitute_index
from glassgrad.compiler.lower.loops import Accumulate, Assign, For, If, Statement, Store, load, ranges_of, with_body


def edge_gate(expression: UOp, gate: UOp | None, along: frozenset[UOp] = frozenset()) -> UOp:
    """The expression with the gate on every LOAD: nothing is read past a ragged edge. With `along`, only on loads that
    differ along one of these counters: the gate holds for some of their numbers."""
    if gate is None:
        return expression
    replace: dict[UOp, UOp] = {}
    for n in toposort([expression]):
        if n.op is o.LOAD and (not along or not along.isdisjoint(ranges_of(n))):   # its index may be loaded: a gather
            at, *gates = (substitute_index(s, replace, {}) for s in n.src[1:])
            replace[n] = load(n.src[0], at, both(gates[0] if gates else None, gate))
    return substitute_index(expression, replace, {})


def zero_outside(value: UOp, gate: UOp | None) -> UOp:
    """The value where the gate holds, and 0 elsewhere; nothing is read there."""
    inside = edge_gate(value, gate)
    return inside if gate is None or inside.op is o.LOAD else gate.where(inside, const(0, inside.dtype))


def below(at: UOp, size: int) -> UOp | None:
    """at < size, or None where it always holds."""
    condition = less(at, index(size))
    return None if condition.op is o.CONST and condition.arg else condition


def gated(body: list[Statement], gate: UOp, totals: dict[UOp, o.Op], along: Iterable[UOp] = ()) -> list[Statement]:
    """A copy of statements that does nothing where the gate is false: no read, no store, nothing added to `totals`.
    `along`: as for `edge_gate`."""
    along = frozenset(along)
    out: list[Statement] = []
    for s in body:
        if isinstance(s, (For, If)):
            s = with_body(s, gated(s.body, gate, totals, along))
        elif isinstance(s, Assign):
            s = Assign(s.register, edge_gate(s.value, gate, along))
        elif isinstance(s, Accumulate):
            value = edge_gate(s.value, gate, along)
            if s.register in totals:
                value = gate.where(value, identity(s.combine, value.dtype))
            s = Accumulate(s.register, s.combine, value)
        elif isinstance(s, Store):
            # where the loads in an index are the same for all iterations, the index stays linear in the lanes
            varies = [n for n in toposort([s.index]) if n.op is o.LOAD and not ranges_of(gate).isdisjoint(ranges_of(n))]
            at = edge_gate(s.index, gate, along) if varies else s.index
            s = Store(s.memory, at, edge_gate(s.value, gate, along), s.combine, both(gate, s.gate))
        out.append(s)
    return out
