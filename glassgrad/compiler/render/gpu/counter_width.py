"""Decide whether 32 bits hold every counter of a function, and every index computed from counters. In: a jammed phase.

GPUs compute in 32 bits: a 64-bit index takes two registers and carries, and a division by a constant six times the
work. Values of variables have bounds, like counters, and are narrowed together with them if everything computed from
them fits. Users' integers are never narrowed: if an operation occurs that indices do not have, or a result is too
large, all counters stay as they are.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import bounds, linear
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.lower.loops import Statement, nodes_in

LIMIT = 1 << 31
_OF_INDICES = (o.RANGE, o.CONST, o.ADD, o.SUB, o.MUL, o.IDIV, o.MOD, o.MAX, o.MIN)


def of_counters(node: UOp, values: bool) -> bool:
    """Whether an index depends on counters and constants only; with `values`, also on values of variables."""
    return node.dtype is dtypes.index and all(n.op in _OF_INDICES or is_kept_counter(n) or values and is_value(n)
                                              for n in sources_of([node]))


def is_value(node: UOp) -> bool:
    """Whether a node is the value of a variable."""
    return node.op is o.PARAM and isinstance(node.arg, Measure)


def is_kept_counter(node: UOp) -> bool:
    """Whether an index is a 32-bit register modulo a constant, and so as small as a counter."""
    if node.op is not o.MOD or node.src[0].op is not o.CAST or node.src[1].op is not o.CONST:
        return False
    kept = node.src[0].src[0]
    return kept.op is o.REGISTER and kept.dtype is dtypes.int32


def sources_of(nodes: list[UOp]) -> list[UOp]:
    """The nodes from which indices are computed, down to counters."""
    return toposort(nodes, lambda n: () if is_kept_counter(n) else n.src)


def fit_32_bits(body: list[Statement], values: bool) -> bool:
    """Whether every index computed from counters fits 32 bits, with all intermediate results; with `values`, also those
    computed from values of variables."""
    known: set[UOp] = set()                      # nodes computed from counters only
    for node in nodes_in(body):
        if is_kept_counter(node):
            known.add(node)
            continue
        value = values and is_value(node)
        if node.op not in (o.RANGE, o.CONST) and not value and not (node.src and all(s in known for s in node.src)):
            continue
        if node.dtype is not dtypes.index:
            continue
        if node.op not in _OF_INDICES and not value or not _fits(node):
            return False
        known.add(node)
    return True


def _fits(node: UOp) -> bool:
    if max(map(abs, bounds(node))) >= LIMIT:
        return False
    constant, terms = linear(node)
    return abs(constant) + sum(abs(k) * max(map(abs, bounds(atom))) for atom, k in terms.items()) < LIMIT
