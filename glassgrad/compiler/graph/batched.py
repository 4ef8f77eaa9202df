"""Vectorize a graph: from one example to a batch. In: nodes, and those that differ between examples. Out: the same
graph with one more axis in front. Handles elementwise ops, reductions and movements; `vmap`
(tensor/autograd/transforms.py) adds the other ops.
"""

from __future__ import annotations

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.axis_dependence import moved_behind
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Axes, Dimension, Shape
from glassgrad.compiler.graph.uop import UOp

KNOWN = frozenset((*o.ELEMENTWISE, *o.REDUCE, *o.MOVEMENT, o.CONTIGUOUS, o.COPY, o.DETACH))


class Batched:
    """Rewrites a graph for one example into the graph for a batch."""

    def __init__(self, size: Dimension, known: dict[UOp, UOp]):
        self.size, self.made = size, dict(known)  # nodes that differ between examples -> with the batch axis in front

    def mapped(self, root: UOp) -> UOp:
        """A node with the batch axis in front; unchanged if it is the same for all examples."""
        for node in toposort([root], lambda n: () if n in self.made else n.src):
            if node not in self.made and any(s in self.made for s in node.src):
                self.made[node] = self.batched(node)
        return self.made.get(root, root)

    def full(self, node: UOp, shape: Shape) -> UOp:
        """A node as (batch, *shape), even if it does not differ between examples; a scalar is broadcast."""
        if node in self.made:
            own = self.made[node]
            if node.shape != shape:
                own = own.reshape((self.size, *(1,) * len(shape))).expand((self.size, *shape))
            return own
        if node.op is o.EXPAND and node.shape == shape:      # expand only once: then its gradient is one sum
            node = node.src[0]
        node = node.broadcast(shape) if len(node.shape) != len(shape) else node
        return node.reshape((1, *node.shape)).expand((self.size, *shape))

    def batched(self, node: UOp) -> UOp:
        """Rewrite a node of which at least one source differs between examples."""
        op, arg, kind = node.op, node.arg, node.op.kind
        if kind in (o.Kind.UNARY, o.Kind.BINARY, o.Kind.TERNARY) or op is o.DETACH:
            src = tuple(self.full(s, node.shape if op is not o.DETACH else s.shape) for s in node.src)
            return UOp(op, node.dtype, src, arg)
        x = self.full(node.src[0], node.src[0].shape)
        if kind == o.Kind.REDUCE:
            return UOp(op, node.dtype, (x,), Axes(tuple(a + 1 for a in arg.axes)))
        if kind == o.Kind.MOVEMENT:
            return moved_behind(node, x, 1)
        if op in (o.CONTIGUOUS, o.COPY):
            return UOp(op, node.dtype, (x,), arg)
        raise Bug(f"vmap does not know {op.name}")
