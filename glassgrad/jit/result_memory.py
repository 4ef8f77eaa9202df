"""Choose memory for the results of a call. In: symbols of a replay. Out: `Result`, `ResultsInPlace`: where each run
writes.

Results belong to the caller. A buffer lists its readers, so a call may write into memory that nothing can read any
more: weights and gradients are written in place (`ResultsInPlace`), other results into one of two buffers (`Result`).
Does not know functions, guards or traces.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from glassgrad.base.source_lines import user_place
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.node import concrete, substitute
from glassgrad.compiler.graph.ops import Kind
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.registry import registry
from glassgrad.engine.replay import PartialUpdate, Replay
from glassgrad.jit.plain_values import SymbolNames
from glassgrad.jit.trace import ReachedTensor, computed_node, is_lazy
from glassgrad.tensor.autograd.gradient_leaves import UnreadGradient, cut_off
from glassgrad.tensor.jit_access import assign_node, set_unread_gradient, unread_gradient
from glassgrad.tensor.memory.storage import is_shared
from glassgrad.tensor.tensor import Tensor


# -- graphs of the trace over buffers of a call ------------------------------------------------------------------------
def symbol_of(buffer: UOp, shape: tuple[int, ...]) -> UOp:
    """Make a symbol for a buffer: a BUFFER of this shape without memory, which each call binds to a buffer of
    its own."""
    return UOp(o.BUFFER, buffer.dtype, (), Buffer.from_host(None, 0, shape, buffer.dtype, buffer.arg.device))


def same_view(now: UOp, then: UOp) -> bool:
    """Return whether two nodes are the same view of buffers that may differ in their values only."""
    while now.op is then.op and (now.op is o.DETACH or now.op.kind == Kind.MOVEMENT and now.arg == then.arg):
        now, then = now.src[0], then.src[0]
    return now.op is o.BUFFER and then.op is o.BUFFER and now.shape == then.shape and now.dtype is then.dtype \
        and now.device == then.device


def substituted(node: UOp, bases: Mapping[UOp, UOp], names: SymbolNames) -> UOp:
    """Rebuild a graph of the trace over other buffers and with the variables of a call."""
    [made] = substitute([node], dict(bases))
    return concrete([made], lambda s: names.get(s, s))[made] if names else made


def rebased(node: UOp, base: UOp, names: SymbolNames | None = None) -> UOp:
    """Rebuild a view over another buffer and with the variables of a call."""
    return substituted(node, {node.base: base}, names or {})


def is_whole(node: UOp) -> bool:
    """Return whether a node is a whole buffer, reshaped or not."""
    while node.op is o.RESHAPE:
        node = node.src[0]
    return node.op is o.BUFFER


def _new_buffer(symbol: UOp, frames: int = 4) -> UOp:
    place = user_place(frames)      # above `begin`, a capture's `call` and that of the jit
    return UOp(o.BUFFER, symbol.dtype, (), Buffer(symbol.shape, symbol.dtype, symbol.arg.device, place), place)


# -- results in separate memory ----------------------------------------------------------------------------------------
class Result:
    """A result and its memory: up to two buffers, so that a caller may hold a value while the next one is computed."""

    def __init__(self, symbol: UOp, replay: Replay, is_cut_off: bool):
        """With `is_cut_off`, no gradient passes through the result."""
        self.symbol, self._pointers, self._is_cut_off = symbol, replay.pointers[symbol], is_cut_off
        self.node = self._other = symbol         # the latest value and the one before it; no memory yet

    def begin(self) -> None:
        """Choose where the next run writes: over the latest value if nothing reads it, because that memory is still in
        the caches; else over the value before it; else into new memory."""
        node = self.node
        buffer = node.arg
        if node is self.symbol or not buffer.is_free():
            node, self._other = self._other, node
            buffer = node.arg
            if node is self.symbol or not buffer.is_free():
                node = self._new_buffer()
                buffer = node.arg
            self.node = node
            for array, position, offset in self._pointers:
                array[position] = buffer.address + offset
        buffer.forget_readers()
        buffer.version += 1                    # what was found out about the integers in it no longer holds

    def _new_buffer(self) -> UOp:
        node = _new_buffer(self.symbol, 5)
        if self._is_cut_off:
            cut_off(node)
        return node

    def give_to(self, tensor: Tensor) -> None:
        """Make the result's BUFFER the node of a tensor without views, and the tensor its leaf and reader."""
        buffer, reference = self.node.arg, weakref.ref(tensor)
        tensor.uop = self.node
        buffer.leaves[:] = (reference,)
        buffer.add_reader(reference)


# -- results in place of earlier values --------------------------------------------------------------------------------
class Weight:
    """A buffer that the function reads and that is not an argument's, with the numbers of the tensors that hold it."""

    def __init__(self, symbol: UOp, rows: Sequence[ReachedTensor], numbers: Mapping[int, int], pinned: bool):
        """`numbers` are the tensors' numbers, by id. A weight is `pinned` if the call computes lazy tensors from it:
        they still read this buffer when its own tensor has another one."""
        self.symbol, self.pinned = symbol, pinned
        self.holders = [numbers[id(row.tensor)] for row in rows]
        self.views = [rebased(row.node, symbol) for row in rows]       # the view of the buffer that each of them is
        self.node = rows[0].node                 # the node of the first of them at the last call

    def is_unread_without(self, numbers: Collection[int]) -> bool:
        """Return whether nothing reads the buffer any more once the tensors of these numbers hold another one."""
        return not self.pinned and set(self.holders) <= set(numbers)

    def nodes(self, found: Sequence[Tensor]) -> list[UOp]:
        """Return the present nodes of its tensors, computed: views of one buffer, unless one of the tensors was
        replaced."""
        tensors = [found[i] for i in self.holders]
        made = [computed_node(t) if is_lazy(t) else t.uop for t in tensors]
        # computing one tensor may store another's value too, which then is no longer lazy: its node is read last
        return [node if is_lazy(t) else t.uop for t, node in zip(tensors, made)]


class ResultInPlace:
    """A result that overwrites a weight, or the gradient that the call before left; `view` is the node of its
    tensor."""

    def __init__(self, symbol: UOp, number: int, weight: Weight | None, view: UOp, update: PartialUpdate | None = None):
        self.symbol, self.number, self.weight, self.view, self.update = symbol, number, weight, view, update
        self.node = symbol                       # the value that the call before left; no memory yet
        self.gradient = UnreadGradient(lambda: symbol)       # of a gradient, what the call before left on the tensor
        self.is_new = False                      # whether `node` is new memory that was not given to the tensor yet

    def can_overwrite(self, tensor: Tensor) -> bool:
        """Return whether the present value may be overwritten: its tensor has no views, and nothing else can read it.
        For a gradient this also requires that it is the one that the call before left. If it was read, but the tensor
        that showed it is gone, it is marked as unread again."""
        if self.weight is not None:
            node = tensor.uop
            return node.op is o.BUFFER and node.arg.owns_memory and node.arg.is_free(tensor) and not is_shared(tensor)
        left, now = self.gradient, unread_gradient(tensor)
        made = left.made
        if now is left or made is None or now is not made():
            return now is left and made is None
        set_unread_gradient(tensor, left)
        now = None                               # drop our reference: does anything else keep the gradient alive?
        kept = made()
        if kept is not None:
            set_unread_gradient(tensor, kept)
            return False
        left.made = None
        return bool(self.node.arg.is_free())

    def is_spare(self, tensor: Tensor) -> bool:
        """Return whether nothing holds the gradient of the call before any more, because another jitted call left one
        in its place."""
        return self.weight is None and self.node is not self.symbol and unread_gradient(tensor) is not self.gradient \
            and bool(self.node.arg.is_free())


class ResultsInPlace:
    """All results of a capture that are written in place."""

    def __init__(self, replay: Replay, rows: Sequence[ResultInPlace]):
        self.replay, self.rows = replay, list(rows)
        self.counted: list[Buffer] = []                        # of integers, whose `version` each write increments
        self.readers: list[list[Any]] = []                     # the readers of each weight's buffer at the last call,
        self.lengths: list[int] = []                           # and how many there were
        self.disturbed = bool(rows)                            # whether some value may not be written in place now

    def begin(self, found: Sequence[Tensor]) -> None:
        """Choose memory for the values of this call: in place, or new where something else can read the old value."""
        for row in self.rows:
            tensor = found[row.number]
            row.is_new = row.is_new or not row.can_overwrite(tensor)       # a failed call leaves it True
            if row.is_new and not row.is_spare(tensor):
                row.node = _new_buffer(row.symbol)
                if row.update is not None:
                    row.update.copied.value = row.update.size
            elif row.weight is not None and row.node is not tensor.uop:
                row.node = registry.rewritten(tensor.uop)          # another call, or the user, gave it this value
            self.replay.bind(row.symbol, row.node.arg.address)
        self.disturbed = True

    def end(self, found: Sequence[Tensor], seen: list[Any]) -> None:
        """Give the tensors the values that were written to new memory."""
        for buffer in self.counted:
            buffer.version += 1
        if self.disturbed:
            for row in self.rows:
                if row.is_new:
                    self._give(row, found[row.number], seen)
            weights = [row for row in self.rows if row.weight is not None]
            # while a tensor has views, each call writes to new memory, and the views get nodes over that
            self.disturbed = any(is_shared(found[row.number]) for row in weights)
            buffers = [row.node.arg for row in weights]
            self.counted = [buffer for buffer in buffers if buffer.dtype.kind != "f"]
            self.readers = [buffer.readers for buffer in buffers]
            self.lengths = list(map(len, self.readers))

    def _give(self, row: ResultInPlace, tensor: Tensor, seen: list[Any]) -> None:
        if row.weight is None:
            before, row.gradient = row.gradient, UnreadGradient(partial(rebased, row.view, row.node))
            set_unread_gradient(tensor, row.gradient)
            seen[seen.index(before)] = row.gradient
        else:
            row.weight.node = seen[row.number] = row.node
            assign_node(tensor, row.node)
            self.replay.bind(row.weight.symbol, row.node.arg.address)
        if row.update is not None:
            row.update.copied.value = 0
        row.is_new = False
