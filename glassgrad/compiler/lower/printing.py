"""Print kernels for people to read. In: a `Kernel`. Out: its loop nest, or its linear list of UOps."""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, toposort
from glassgrad.compiler.lower.expression_text import memory_text, statement_text, text
from glassgrad.compiler.lower.group_statements import AwaitCopies, AwaitSteps, Barrier, Box, CopyBoxes, Turn
from glassgrad.compiler.lower.loops import (Accumulate, Assign, For, If, Kernel, Prefetch, Statement, Store,
                                            expressions, walk)


def show(kernel: Kernel) -> str:
    """Print the loop nest, one statement per line.

    >>> from glassgrad.compiler.graph import ops as o
    >>> from glassgrad.compiler.lower.loops import Phase, counter, load
    >>> from glassgrad.compiler.graph.op_arguments import Param
    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> out, x = (UOp(o.PARAM, dtypes.float32, (), Param(s, (4,))) for s in (0, 1))
    >>> i = counter("i", 4)
    >>> print(show(Kernel("double", [out, x], [Phase([For(i, "loop", [Store(out, i, load(x, i) + load(x, i))])])])))
    double(a0: float32[4], a1: float32[4])
      loop i in 4
        a0[i] = (a1[i] + a1[i])
    """
    params = ", ".join(f"a{p.arg.slot}: {p.dtype.name}{list(p.shape)}" for p in kernel.params)
    lines = [f"{kernel.name}({params})"]
    for number, phase in enumerate(kernel.phases):
        if len(kernel.phases) > 1:
            lines.append(f"  phase {number}")
        _body(phase.body, 2 if len(kernel.phases) > 1 else 1, lines)
    return "\n".join(lines)


def rows_of(kernel: Kernel) -> dict[Statement, int]:
    """The line of `show` that each statement is on, from 0."""
    rows: dict[Statement, int] = {}
    at = 1
    for phase in kernel.phases:
        at += len(kernel.phases) > 1
        for s in walk(phase.body):
            rows[s] = at
            at += len(s.boxes) if isinstance(s, CopyBoxes) else 1
    return rows


def _body(body: list[Statement], depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for s in body:
        if isinstance(s, For):
            stop = "" if s.stop is None else f" while < {text(s.stop)}"
            lines.append(f"{pad}{s.kind} {s.range.arg.name} in {s.range.arg.size}{stop}")
            _body(s.body, depth + 1, lines)
        elif isinstance(s, If):
            lines.append(f"{pad}if {text(s.condition)}")
            _body(s.body, depth + 1, lines)
        elif isinstance(s, CopyBoxes):
            last = ", by the last thread" if s.by_last else ""
            last += f", once for all {s.cluster.arg.name} where it can" if s.cluster is not None else ""
            lines += [f"{pad}copy {memory_text(s.memory)}[{text(box.to)}] = {_box(box)} as round {text(s.round)}{last}"
                      for box in s.boxes]
        elif isinstance(s, AwaitCopies):
            lines.append(f"{pad}await copies of round {text(s.round)}")
        elif isinstance(s, AwaitSteps):
            lines.append(f"{pad}await steps, all but {s.pending}")
        elif isinstance(s, Barrier):
            lines.append(f"{pad}barrier" + ", for copies too" * s.copies)
        elif isinstance(s, Turn):
            lines.append(f"{pad}{'end' if s.ends else 'await'} a turn")
        else:
            lines.append(pad + statement_text(s))


def _box(box: Box) -> str:
    ranges = [f"{text(first)} + {count}" for first, count in zip(box.first, box.counts)]
    return f"{memory_text(box.source)}[{', '.join(reversed(ranges))}]"


def linear(kernel: Kernel) -> str:
    """The kernel flattened: every UOp once, before it is used, with loops as RANGE and END."""
    lines: list[str] = []
    number: dict[UOp, int] = {}

    def emit(node: UOp) -> int:
        for top in toposort([node], lambda n: [s for s in n.src if s not in number]):
            if top not in number:
                number[top] = len(lines)
                arg = "" if top.arg is None else str(getattr(top.arg, "name", top.arg))
                sources = [number[s] for s in top.src]
                lines.append(f"{len(lines):4d} {top.op.name:<9} {top.dtype.name:<9} {sources} {arg}")
        return number[node]

    def say(what: str, of: str, more: object = "") -> None:
        lines.append(f"{len(lines):4d} {what:<9} {of:<9} {more}".rstrip())

    def walk_body(body: list[Statement]) -> None:
        for s in body:
            uses = [emit(e) for e in expressions(s)]
            name = type(s).__name__.upper()
            if isinstance(s, For):
                say("FOR", s.kind, f"{s.range.arg.name} < {s.range.arg.size}")
                number[s.range] = len(lines) - 1
            elif isinstance(s, (Prefetch, Store)):
                say(name, memory_text(s.memory), uses)
            else:
                say(name, text(s.register) if isinstance(s, (Assign, Accumulate)) else "", uses)
            if isinstance(s, (For, If)):
                walk_body(s.body)
                say("END", *((s.kind, s.range.arg.name) if isinstance(s, For) else ("if",)))

    for phase in kernel.phases:
        walk_body(phase.body)
    return "\n".join(lines)
