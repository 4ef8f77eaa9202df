"""Partial updates in place, and nodes whose values are known. In: nodes to compute. Out: what is left to compute.

After `x[3] = row` the old value of x is there for everything that reads it. Mostly nothing does: then only the row is
computed, into the old value's memory, and its node stands for the new value. The one node that still reads it, "the old
value with this part replaced", has the same value before and after. What reads it is listed by the buffer (buffer.py).
Does not know tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.axis_dependence import start_of_piece
from glassgrad.compiler.graph.gradient import passes_to, written_out
from glassgrad.compiler.schedule.partial_updates import replacement
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import recording
from glassgrad.engine.registry import registry
from glassgrad.runtime.devices import Device

_WHERE = o.WHERE
_ALIGNED = 64                 # bytes: non-temporal stores need it,
_LARGE = 256 * 1024           # and only results larger than this are stored so
_FEW = 64                     # nodes of one operation
_WHOLE = frozenset((o.DETACH, o.GRADIENT))       # whose sources stay


def free_sources(sinks: Sequence[UOp]) -> Collection[UOp]:
    """The buffers that a sink replaces a part of, and that nothing but this sink still reads. A partial update is
    written as a WHERE."""
    found = []
    for sink in sinks:
        if sink.op is not _WHERE or sink.symbolic or sink.src[2].op is not o.BUFFER:
            continue
        source: UOp = sink.src[2]
        buffer: Buffer = source.arg                # a tensor's, in our memory, of which kernels can write a part?
        if not (buffer.leaves and buffer.owns_memory and Device[buffer.device].memory.in_parts) or settings.CHECK or \
                replacement(sink) is None or not buffer.is_free(sink):
            continue
        others = [other for other in sinks if other is not sink]
        if not (others and sink in toposort(others)):
            found.append(source)
    return found


def piece_of(sink: UOp) -> tuple[UOp, Buffer] | None:
    """The value that such a sink writes into its source, and the memory it goes to; None if that is not contiguous."""
    part = replacement(sink)
    if part is None or not part.value.size:
        return None
    source: Buffer = sink.src[2].arg
    begin = start_of_piece(sink.src[2].shrink(part.bounds))
    if begin is None:
        return None
    address = source.address + begin * source.dtype.itemsize
    if part.value.size * source.dtype.itemsize > _LARGE and address % _ALIGNED:
        return None
    memory = Buffer.from_host(source, address, part.value.shape, source.dtype, source.device)
    return UOp(o.CONTIGUOUS, part.value.dtype, (part.value,)), memory


# -- values that are known -----------------------------------------------------------------------------------
def with_known_values(roots: Sequence[UOp], device: str, original: dict[UOp, UOp] | None = None) -> list[UOp]:
    """The roots with every node whose value is known replaced by it. What has no device of its own (random numbers,
    counts) may have been read on another one; there, and where values go from device to device, it is computed anew.
    `original` is filled: a node of the result -> the node under the roots that it stands for."""
    trace = recording()
    known: Callable[[UOp], UOp | None] = registry.values.get if trace is None else trace.values.get
    replaced: dict[UOp, UOp] = {}
    order = toposort(roots, lambda n: () if known(n) is not None else n.src) if registry.kept.rows else toposort(roots)
    devices = {n.device for n in order} - {None} | {r.device or device for r in roots}
    common = devices.pop() if len(devices) == 1 else None

    def value(node: UOp) -> UOp | None:
        found = known(replaced.get(node, node))
        return found if found is not None and found.device == (node.device or common) else None

    gradients = {n for n in order if n.op is o.GRADIENT}
    if gradients:         # one that is known is not written out; of what others are computed from, some may be known
        kept = {n for n in gradients if value(n) is not None}
        if registry.kept.rows:                  # the history of a kept value is long: only what passes it is walked
            passed = set(toposort([s for n in gradients - kept for s in n.src], passes_to))
            kept |= {n for n in order if n not in passed and value(n) is not None}
        roots = written_out(roots, replaced, kept=kept)
    made: dict[UOp, UOp] = {}
    found = _replaced_by_values(roots, value, made)
    if original is not None:
        mine = set(order)
        original.update((new, before) for node, new in made.items() if (before := replaced.get(node, node)) in mine)
    return found


def without_history(node: UOp) -> UOp:
    """A value that no gradient passes, over the known values of what it is computed from: the whole expression of
    `w -= rate * w.grad` would keep the graphs of all steps before, if the loss was read before the update."""
    below = toposort([node], lambda n: () if n.op is o.GRADIENT or value_in_memory(n) is not None else n.src)
    made = {n: n for n in below if n.op is o.GRADIENT and value_in_memory(n) is None}
    [found] = _replaced_by_values([node], value_in_memory, made)
    if registry.kept.rows:
        _note_copies(made)
    return found


def over_known_values(node: UOp) -> UOp:
    """A value that was just made and that no gradient passes, over the known values that it reads directly, so that
    these do not keep what they were computed from."""
    new: dict[UOp, UOp] = {}
    for below in toposort([node], lambda n: () if n.op in _WHOLE or value_in_memory(n) is not None else n.src):
        if len(new) == _FEW:                   # an expression that was made before, and is walked each time
            return node
        known = value_in_memory(below.src[0] if below.op is o.DETACH else below)
        new[below] = known.reshape(below.shape) if known is not None else below if below.op in _WHOLE else \
            below.over(tuple([new[s] for s in below.src]))
    _note_copies(new)
    return new[node]


def _note_copies(new: dict[UOp, UOp]) -> None:
    """Record which nodes are others over known values: a value that is kept for one is that of the other too."""
    for before, made in new.items():
        if made is not before and made.src:
            registry.copies.set(made, registry.copies.get(before) or weakref.ref(before))


def value_in_memory(node: UOp) -> UOp | None:
    """The value of a node, if it is known and in memory of the node's own device."""
    found = registry.values.get(node) if recording() is None else None
    return found if found is not None and found.device == node.device and not node.symbolic else None


def _replaced_by_values(roots: Sequence[UOp], value: Callable[[UOp], UOp | None], new: dict[UOp, UOp]) -> list[UOp]:
    """The roots with every node that has a value replaced by it. `new` is filled: what each node became; what is in it
    already stays."""
    found: dict[UOp, UOp] = {}                # asked once: another thread may drop a value meanwhile

    def sources(node: UOp) -> Sequence[UOp]:
        known = None if node in new else value(node)
        if known is not None:
            found[node] = known
        return () if node in new or known is not None else node.src

    for node in toposort(roots, sources):
        if node in found:
            new[node] = found[node].reshape(node.shape)
        elif node not in new:              # an assigned leaf's own node is not needed: no gradient passes any more
            src = tuple([new[s] for s in node.src])
            new[node] = src[0] if node.op is o.DETACH and src[0] is src[-1] and len(src) > 1 else node.over(src)
    return [new[r] for r in roots]
