"""Hold facts about nodes that change over time. In: nodes, tensors. Out: `registry`, the one object that has them.

Nodes are values and never change. What does change about them is all here: which tensors get a gradient at a node (its
leaves), which value a node was computed to have, which leaf was given another value since, and which memory another
library may write to unseen. Nothing here keeps a node or a tensor alive. Only the leaves of a BUFFER are listed by its
buffer instead: there is one for each value in memory, and this way it costs no table. Does not know gradients,
schedules or kernels.
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
    """Facts about nodes, in one table for each kind of fact.

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
        self.leaves: WeakNodeDict[Tensors] = WeakNodeDict()       # leaf tensors at a node that is no BUFFER
        self.former: WeakNodeDict[Tensors] = WeakNodeDict()       # leaf tensors that moved to another node
        self.replaced: WeakNodeDict[Tensors] = WeakNodeDict()     # leaf tensors that were given another value
        self.jitted: WeakNodeDict[bool] = WeakNodeDict()          # values made by a jitted call: no gradient passes
        self.foreign: WeakNodeDict[bool] = WeakNodeDict()         # memory that another library may write to
        self.kept: WeakNodeDict[Any] = WeakNodeDict()             # by BUFFER: what a kept value is (kept_values.py)
        self.copies: WeakNodeDict[weakref.ref[UOp]] = WeakNodeDict()     # {a node rebuilt over known values: original}
        self.losses: WeakNodeDict[weakref.ref[Any]] = WeakNodeDict()     # the tensors at which `backward` started
        self.gradients: WeakNodeDict[Tensors] = WeakNodeDict()    # tensors that are gradients of this value
        # by id: a tensor whose value is not computed yet, and how many values it was assigned since one was computed; 0
        # of a parameter that has its initial value
        self.assigned: dict[int, tuple[weakref.ref[Any], int]] = {}

    # -- tensors ---------------------------------------------------------------------------------------------
    def add(self, table: WeakNodeDict[Tensors], node: UOp, tensor: Any) -> None:
        """Add a tensor to a node's row of a table, in which each tensor is listed once."""
        reference = weakref.ref(tensor)
        table.set(node, [*[r for r in table.get(node) or () if r is not reference and r() is not None], reference])

    def leaves_of(self, node: UOp) -> Tensors | None:
        """Return the weak references to the tensors that are leaves at a node; None if there never were any."""
        return node.arg.leaves if node.op is _BUFFER else self.leaves.get(node)

    # -- values ----------------------------------------------------------------------------------------------
    def remember(self, node: UOp, value: UOp) -> None:
        """Record where the value of a computed node is, for as long as the node lives. Record nothing if the value
        depends on memory that another library may write to."""
        if self.reads_foreign(node):
            return
        base = value.base
        if base.op is _BUFFER:
            base.arg.add_reader(weakref.ref(node))
        self.values.set(node, value)

    def rewritten(self, node: UOp) -> UOp:
        """Drop all facts except the leaves of a BUFFER whose contents are overwritten; return the node."""
        node.arg.version += 1
        for table in (self.values, self.replaced, self.jitted, self.kept):
            table.pop(node)
        return node

    def reads_foreign(self, node: UOp) -> bool:
        """Return whether a value depends on memory that another library may write to."""
        if not self.foreign.rows:
            return False
        below = toposort([node], lambda n: () if n in self.values else n.src)      # known values do not depend on it
        return any(n in self.foreign for n in below if n.op is _BUFFER)


registry = Registry()
