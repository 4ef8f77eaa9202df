"""Print a kernel's expressions and statements, and draw its loop tree as nested boxes. In: a value over counters, loads
and registers; a `Kernel`. Out: text in the usual notation; SVG text.

Statements are distinguished by their fields, not their classes: loops.py, which has the classes, imports this file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from glassgrad.base.svg import Nest, nests
from glassgrad.compiler.graph import UOp, ops as o

_LONGEST = 400
LOOPS = {"task": "#f9e4b7", "loop": "#e8eef5", "tile": "#d8efe0", "lane": "#bfe3cf", "unit": "#a6d5bb"}


def combine_text(op: o.Op) -> str:
    """The sign of an op, or its name."""
    return op.sign or op.name.lower()


def memory_text(memory: UOp) -> str:
    """The short name of a parameter or a LOCAL."""
    return f"a{memory.arg.slot}" if memory.op is o.PARAM else str(memory.arg.name)


def statement_text(s: Any) -> str:
    """A statement as text, by its fields: `acc += a1[k]`, `a0[i] = acc if i < 5`, `prefetch a1[k]`."""
    place = "" if not hasattr(s, "index") else f"{memory_text(s.memory)}[{text(s.index)}]"
    if not hasattr(s, "value"):
        return f"prefetch {place}" if place else type(s).__name__
    combine, gate = getattr(s, "combine", None), getattr(s, "gate", None)
    sign = "=" if combine is None else f"{combine_text(combine)}="
    return f"{place or text(s.register)} {sign} {text(s.value)}{'' if gate is None else f' if {text(gate)}'}"


def text(node: UOp) -> str:
    """An expression in the usual notation; very long ones are truncated."""
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


# -- as SVG ---------------------------------------------------------------------------------------------------------
def kernel_svg(kernel: Any) -> str:
    """Draw the loops of every phase, without indices."""
    return nests({kernel.name: loop_boxes(kernel)}, LOOPS)


def loop_boxes(kernel: Any) -> list[Nest | str]:
    """The loops of all phases as boxes, one below the other."""
    return [box for phase in kernel.phases for box in _nested(phase.body)]


def _nested(body: Sequence[Any]) -> list[Nest | str]:
    out: list[Nest | str] = []
    for s in body:
        if hasattr(s, "range"):
            out.append(Nest(f"{s.kind} {s.range.arg.name} in {s.range.arg.size}", LOOPS[s.kind], _nested(s.body)))
        elif hasattr(s, "condition"):
            out.append(Nest("if", "#ffffff", _nested(s.body)))
        else:
            out.append(_short(statement_text(s)))
    return out


def _short(line: str) -> str:
    """A statement without its indices: `acc1 += a1[..] * a2[..]`."""
    while re.search(r"\[[^\[\].]+\]", line):
        line = re.sub(r"\[[^\[\].]+\]", "[..]", line)
    return re.sub(r"acc\w*(\[\.\.\])?", "acc", line.partition(" if ")[0]).replace("(", "").replace(")", "")
