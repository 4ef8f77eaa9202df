"""Apply gates to loads and stores. In: expressions or statements, a gate. Out: the same where the gate holds.

A gate is a condition on counters that keeps accesses inside a ragged edge or a padded image. A LOAD whose gate is false
is 0 and reads nothing; a Store whose gate is false stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from glassgrad.compiler.graph import UOp, const, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import both, index, less, substitute_index
from glassgrad.compiler.lower.loops import Accumulate, Assign, For, If, Statement, Store, load, ranges_of, with_body


def edge_gate(expression: UOp, gate: UOp | None, along: frozenset[UOp] = frozenset()) -> UOp:
    """Add the gate to every LOAD in an expression, so that nothing is read past a ragged edge. With `along`, only to
    loads that depend on one of these counters: the gate then holds for some of their values."""
    if gate is None:
        return expression
    replace: dict[UOp, UOp] = {}
    for n in toposort([expression]):
        if n.op is o.LOAD and (not along or not along.isdisjoint(ranges_of(n))):   # loads in its index too: a gather
            at, *gates = (substitute_index(s, replace, {}) for s in n.src[1:])
            replace[n] = load(n.src[0], at, both(gates[0] if gates else None, gate))
    return substitute_index(expression, replace, {})


def zero_outside(value: UOp, gate: UOp | None) -> UOp:
    """The value where the gate holds, and 0 elsewhere, where nothing is read."""
    inside = edge_gate(value, gate)
    return inside if gate is None or inside.op is o.LOAD else gate.where(inside, const(0, inside.dtype))


def below(at: UOp, size: int) -> UOp | None:
    """The condition at < size; None if it always holds."""
    condition = less(at, index(size))
    return None if condition.op is o.CONST and condition.arg else condition


def gated(body: list[Statement], gate: UOp, totals: dict[UOp, o.Op], along: Iterable[UOp] = ()) -> list[Statement]:
    """Copy statements so that they do nothing where the gate is false: no read, no store, nothing added to `totals`.
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
            # an index stays linear in the lanes if its own loads are the same for all iterations
            varies = [n for n in toposort([s.index]) if n.op is o.LOAD and not ranges_of(gate).isdisjoint(ranges_of(n))]
            at = edge_gate(s.index, gate, along) if varies else s.index
            s = Store(s.memory, at, edge_gate(s.value, gate, along), s.combine, both(gate, s.gate))
        out.append(s)
    return out
