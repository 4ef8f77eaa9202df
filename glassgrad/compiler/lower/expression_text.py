"""Expressions of a kernel as text. In: a value over counters, loads and registers. Out: the usual notation."""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import UOp

_LONGEST = 400


def combine_text(op: o.Op) -> str:
    """The sign of an op, or its name."""
    return op.sign or op.name.lower()


def memory_text(memory: UOp) -> str:
    """A parameter or a LOCAL by its short name."""
    return f"a{memory.arg.slot}" if memory.op is o.PARAM else str(memory.arg.name)


def text(node: UOp) -> str:
    """An expression in the usual notation; very long ones are cut."""
    def write(n: UOp, depth: int) -> str:
        if n.op is o.CONST:
            return str(n.arg)
        if n.op is o.RANGE:
            return str(n.arg.name)
        if n.op is o.PARAM:
            return f"a{n.arg.slot}"
        if depth > 24:
            return "..."
        if n.op is o.REGISTER:
            return str(n.arg) + (f"[{','.join(r.arg.name for r in n.src)}]" if n.src else "")
        if n.op is o.LOAD:
            gate = f" if {write(n.src[2], depth + 1)}" if len(n.src) > 2 else ""
            return f"{memory_text(n.src[0])}[{write(n.src[1], depth + 1)}{gate}]"
        parts = [write(s, depth + 1) for s in n.src]
        if n.op.sign:
            return f"({parts[0]} {n.op.sign} {parts[1]})"
        name = n.dtype.name if n.op is o.CAST else n.op.name.lower()
        return f"{name}({', '.join(parts)})"

    out = write(node, 0)
    return out if len(out) <= _LONGEST else out[:_LONGEST] + " ..."
