"""Graphs of a trace over the memory of a call. In: nodes, and what stands for their buffers. Out: the same over those.

Each buffer that a call brings or makes has a symbol, a BUFFER node without memory: that of the trace is let go.
"""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.ops import Kind
from glassgrad.compiler.graph.symbolic import Symbol
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.buffer import Buffer

__all__ = ["Names", "exchanged", "moved", "same_view", "symbol_of"]

Names = dict[Symbol, Symbol]       # variables of the trace, and what they are in a call


def symbol_of(buffer: UOp) -> UOp:
    """A BUFFER that stands for whatever memory a call brings in its place."""
    return UOp(o.BUFFER, buffer.dtype, (), Buffer.from_host(None, 0, buffer.shape, buffer.dtype, buffer.arg.device))


def same_view(now: UOp, then: UOp) -> bool:
    """Whether two nodes are the same view of buffers that differ only in their values."""
    while now.op is then.op and (now.op is o.DETACH or now.op.kind == Kind.MOVEMENT and now.arg == then.arg):
        now, then = now.src[0], then.src[0]
    return now.op is o.BUFFER and then.op is o.BUFFER and now.shape == then.shape and now.dtype is then.dtype \
        and now.device == then.device


def exchanged(node: UOp, made: dict[UOp, UOp], names: Names) -> UOp:
    """A graph of the trace over other buffers, with the variables of this call."""
    new = dict(made)
    for n in node.toposort():
        if n not in new:
            src = tuple([new[s] for s in n.src])
            new[n] = n.named(src, lambda s: names.get(s, s)) if n.symbolic else n.over(src)
    return new[node]


def moved(node: UOp, made: dict[UOp, UOp], names: Names | None = None) -> UOp:
    """A view as it was in the trace, over the buffer and with the variables of this call."""
    if node.op is o.BUFFER:
        return made.get(node, node)
    views = []
    while node.op is not o.BUFFER:
        views.append(node)
        node = node.src[0]
    out = made.get(node, node)
    for view in reversed(views):
        out = view.named((out,), lambda s: names.get(s, s)) if names and view.symbolic else view.over((out,))
    return out
