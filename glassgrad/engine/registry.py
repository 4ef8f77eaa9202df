"""Facts about nodes that change over time. In: nodes, tensors. Out: `registry`, the one object that holds them.

Nodes are values and never change. What changes is outside of them, and is all here: which tensors get a gradient at a
node (its leaves), which value a node was computed to have, and which leaf got another value since. So is which memory
belongs to another library, whose writes are not seen here. Nothing here keeps a node or a tensor alive. The leaves of a
BUFFER, of which there is one for each value in memory, are listed by its buffer: that costs no table.
Does not know gradients, schedules or kernels.
"""

from __future__ import annotations

import weakref
from typing import Any

from glassgrad.compiler.graph import ops as o, toposort
from glassgrad.compiler.graph.node import WeakNodeDict
from glassgrad.compiler.graph.uop import UOp, known_values

_BUFFER = o.BUFFER
Tensors = list["weakref.ref[Any]"]          # weak references to tensors


class Registry:
    """Facts about nodes, by kind.

    >>> from glassgrad.compiler.graph.uop import const
    >>> kept = Registry()
    >>> node = const(2.0) * 3.0
    >>> kept.values.get(node) is None
    True
    >>> kept.remember(node, const(6.0))
    >>> kept.values.get(node).arg
    6.0
    """

    def __init__(self) -> None:
        self.values: WeakNodeDict[UOp] = known_values     # where a node's value is: a BUFFER, or a part of one
        self.leaves: WeakNodeDict[Tensors] = WeakNodeDict()       # leaf tensors whose node it is, if it is no BUFFER
        self.former: WeakNodeDict[Tensors] = WeakNodeDict()       # whose node it was; its value is at another node
        self.replaced: WeakNodeDict[Tensors] = WeakNodeDict()     # whose node it was, and which got another value
        self.jitted: WeakNodeDict[bool] = WeakNodeDict()          # made by a jitted call: no gradient passes
        self.foreign: WeakNodeDict[bool] = WeakNodeDict()         # memory that another library may write to
        self.kept: WeakNodeDict[Any] = WeakNodeDict()             # by BUFFER: what a kept value is (kept_values.py)
        self.copies: WeakNodeDict[weakref.ref[UOp]] = WeakNodeDict()      # which node another one, over values, copies
        self.losses: WeakNodeDict[weakref.ref[Any]] = WeakNodeDict()     # where `backward` started: the tensors there
        self.gradients: WeakNodeDict[Tensors] = WeakNodeDict()    # tensors that are gradients of this value
        self.assigned: dict[int, weakref.ref[Any]] = {}     # tensors with a new value that is not computed yet

    # -- tensors ---------------------------------------------------------------------------------------------
    def add(self, table: WeakNodeDict[Tensors], node: UOp, tensor: Any) -> None:
        """Add a tensor to a node's row of a table, where each is listed once."""
        reference = weakref.ref(tensor)
        table.set(node, [*[r for r in table.get(node) or () if r is not reference and r() is not None], reference])

    def leaves_of(self, node: UOp) -> Tensors | None:
        """The list of weak references to the tensors that are leaves at a node, if there were any."""
        return node.arg.leaves if node.op is _BUFFER else self.leaves.get(node)

    # -- values ----------------------------------------------------------------------------------------------
    def remember(self, node: UOp, value: UOp) -> None:
        """Record where the value of a computed node is, for as long as the node lives; nothing is recorded if the value
        depends on memory that others write to."""
        if len(self.foreign) and self.reads_foreign(node):
            return
        base = value.base
        if base.op is _BUFFER:
            base.arg.add_reader(weakref.ref(node))
        self.values.set(node, value)

    def rewritten(self, node: UOp) -> UOp:
        """Drop all facts but the leaves of a BUFFER whose contents are overwritten; return the node."""
        node.arg.version += 1
        for table in (self.values, self.replaced, self.jitted, self.kept):
            table.pop(node)
        return node

    def reads_foreign(self, node: UOp) -> bool:
        """Whether a value depends on memory that others may write to."""
        below = toposort([node], lambda n: () if n in self.values else n.src)      # no such value is remembered
        return any(n in self.foreign for n in below if n.op is _BUFFER)


registry = Registry()
