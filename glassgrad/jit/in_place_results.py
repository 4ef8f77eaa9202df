"""Results of a replay that stay where they are: weights, their gradients, caches. In: what a call puts in whose place.
Out: `Standing`, asked before and after each run.

All values are new ones; but while nobody except its own tensor knows the one that the call before made, the new one may
have its memory. That is known by counting references: to nodes, buffers and gradient tensors, when they are handed out
and again at the next call. Where the counts differ somebody has come to know a value; that call writes into new memory,
and what he holds stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.registry import registry
from glassgrad.engine.replay import Replacing, Replay
from glassgrad.jit.buffer_substitution import Names, moved, same_view
from glassgrad.jit.object_paths import same_attributes
from glassgrad.jit.replaced_state import Reference
from glassgrad.jit.tracing import Source
from glassgrad.tensor.autograd.leaves import hold
from glassgrad.tensor.tensor import Tensor

__all__ = ["Row", "Standing", "Weight"]


class Weight:
    """A buffer that the function reads without being handed it, and the tensors that bring it."""
    __slots__ = ("symbol", "source", "node", "only", "number", "row", "pinned", "_views")

    def __init__(self, symbol: UOp, source: Source, node: UOp, views: list[tuple[Reference, UOp]], pinned: bool):
        """`views` is what each of the tensors showed of it, where they are several. It is `pinned` if lazy tensors in
        sight read it too: they go on with it when its tensor has another one."""
        self.pinned = pinned
        self.symbol, self.source, self.node = symbol, source, node     # `node`: what they stood for at the last look
        self._views = views
        alone = len(source.tensors) == 1 and not source.owners and not node.symbolic
        self.only = source.tensors[0] if alone else None               # the one tensor, where it is one
        self.number = -1                                               # its place among those
        self.row: Row | None = None                                    # the result that takes its place


    def views_are(self, names: Names) -> bool:
        """Whether each of its tensors shows what it did."""
        return all(tensor is None or same_view(tensor.uop, moved(view, {}, names) if view.symbolic else view)
                   for tensor, view in ((reference(), view) for reference, view in self._views))


class Row:
    """A result (`symbol`) that takes the place of a weight, or that is the gradient of a tensor, seen as `view`."""

    def __init__(self, symbol: UOp, tensor: Reference, weight: Weight | None, view: UOp,
                 replacing: Replacing | None = None):
        self.symbol, self.tensor, self.weight, self.view, self.replacing = symbol, tensor, weight, view, replacing
        self.node: UOp | None = None           # its value, by the call before
        self.gradient: Tensor | None = None    # the tensor that was handed out
        self.span = slice(0, 0)                # where its references are counted
        self.lost = True                       # that value is not where it was put

    def things(self) -> list[Any]:
        """Whatever somebody might hold who knows the value."""
        if self.node is None:
            return []
        if self.gradient is None:
            return [self.node, self.node.arg]
        return [self.node, self.node.arg, *[n for n in self.gradient.uop.toposort() if n is not self.node],
                self.gradient]


class Standing:
    """All such results of a capture."""

    def __init__(self, replay: Replay, rows: Sequence[Row], seen: list[UOp]):
        self.replay, self.rows, self.seen = replay, list(rows), seen       # `seen`: what the weights stand for
        self._gradients = [row for row in rows if row.weight is None]
        self._gradients_are = same_attributes([row.tensor for row in self._gradients], "_grad")
        self._handed: list[Any] = list(self._gradients)         # gradient tensors, or rows where there is none yet
        self._things: list[Any] = []
        self._counted: list[int] = []
        self._moved: list[Row] = []            # those that this call puts elsewhere
        self._views: list[UOp] = []
        self.disturbed = bool(rows)            # some row is lost
        self._in_place = False                 # the gradients that were handed out are where they were put

    def begin(self) -> None:
        """Find the memory of this call's values."""
        counts = list(map(getrefcount, self._things))
        if counts == self._counted and not self.disturbed and self._in_place:
            return
        for row, handed in zip(self._gradients, self._handed):
            tensor = row.tensor()
            row.lost = row.lost or tensor is None or tensor._grad is not handed
        self._moved = [row for row in self.rows if row.lost or counts[row.span] != self._counted[row.span]]
        for row in self._moved:
            row.lost = True                    # until it is handed out
            row.node = UOp(o.BUFFER, row.symbol.dtype, (), Buffer(row.symbol.shape, row.symbol.dtype,
                                                                  row.symbol.arg.device))
            self.replay.bind(row.symbol, row.node.arg.address)
            if row.replacing is not None:
                row.replacing.copied.value = row.replacing.size
        self.disturbed = True

    def gradients_are_in_place(self) -> bool:
        """Whether each tensor has the very gradient that the call before left; asked before `begin`."""
        self._in_place = self._gradients_are(self._handed)
        return self._in_place

    def end(self) -> None:
        """Hand out the values that are not where their tensors look for them."""
        if self.disturbed:
            for row in self._moved:
                self._hand_out(row)
            self._count()
        for node in self._views:               # what was read through them is that of an earlier call
            registry.values.pop(node)

    def _hand_out(self, row: Row) -> None:
        tensor, node = row.tensor(), row.node
        if tensor is None or node is None:
            return
        if row.weight is None:
            row.gradient = tensor._grad = tensor._with(_over(row.view, node))
        else:
            tensor.uop = row.weight.node = self.seen[row.weight.number] = node
            hold(tensor)
            self.replay.bind(row.weight.symbol, node.arg.address)
        if row.replacing is not None:
            row.replacing.copied.value = 0
        row.lost = False

    def _count(self) -> None:
        """References as they are when nobody else knows anything; of rows that stayed, as they were then."""
        before = {id(row): self._counted[row.span] for row in self.rows}
        self._things, self._views = [], []
        for row in self.rows:
            things = row.things()
            row.span = slice(len(self._things), len(self._things) + len(things))
            self._things += things
        self._views = [thing for thing in self._things if type(thing) is UOp and thing.op is not o.BUFFER]
        self._handed = [row if row.gradient is None else row.gradient for row in self._gradients]
        things = []                            # nothing here may hold any of them while they are counted
        self._counted = list(map(getrefcount, self._things))
        moved = {id(row) for row in self._moved}
        for row in self.rows:
            if id(row) not in moved:
                self._counted[row.span] = before[id(row)]
        self._moved, self.disturbed = [], any(row.lost for row in self.rows)


def _over(view: UOp, node: UOp) -> UOp:
    """A view of the symbol, over the memory of this call."""
    return node if view.op is o.BUFFER else view.over((_over(view.src[0], node),))
