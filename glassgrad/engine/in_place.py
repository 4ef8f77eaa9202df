"""Write partial updates in place, and replace nodes whose values are known. In: nodes to compute. Out: what is left to
compute.

After `x[3] = row` the old value of x still exists for everything that reads it. Usually nothing does. Then only the row
is computed, into the memory of the old value, and the node of that memory stands for the new value. The one node that
still reads it, "the old value with this part replaced", has the same value before and after. Which nodes read the old
value is listed by its buffer (buffer.py). Does not know tensors.
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
_ALIGNED = 64                 # bytes: the alignment that non-temporal stores need,
_LARGE = 256 * 1024           # which are used only for results larger than this
_FEW = 64                     # the most nodes that one operation makes
_WHOLE = frozenset((o.DETACH, o.GRADIENT))       # ops whose sources are not replaced
_SAME_ORDER = frozenset((o.RESHAPE, o.DETACH, o.SHRINK))


def free_sources(sinks: Sequence[UOp]) -> Collection[UOp]:
    """Return the buffers of which a sink replaces a part and that nothing but this sink reads. A partial update is
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
    """Return the value that such a sink writes into its source, and the memory it goes to; None if that is not
    contiguous."""
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


def buffer_of(node: UOp) -> UOp | None:
    """Return a BUFFER that holds the values of a view, in order: the one that it reshapes, or one over the contiguous
    piece (such as a row) of the memory that it shows. None if a kernel must run for the values, and for pieces on
    devices whose addresses do not reach into a block."""
    begin, is_piece, source = 0, False, node
    while source.op in _SAME_ORDER:
        if source.op is o.SHRINK:
            start = start_of_piece(source)
            if start is None:
                return None
            begin, is_piece = begin + start * source.dtype.itemsize, True
        source = source.src[0]
    if source.op is not o.BUFFER or not is_piece:
        return source if source.op is o.BUFFER else None
    whole: Buffer = source.arg
    if not Device[whole.device].memory.in_parts:
        return None
    part = Buffer.from_host(whole, whole.address + begin, node.shape, node.dtype, whole.device)
    return UOp(o.BUFFER, node.dtype, (), part, part.place)


# -- values that are known -----------------------------------------------------------------------------------
def with_known_values(roots: Sequence[UOp], device: str, original: dict[UOp, UOp] | None = None) -> list[UOp]:
    """Rebuild the roots with every node whose value is known replaced by that value. Fill `original`: {node of the
    result: the node under the roots that it stands for}.

    A node without a device of its own (random numbers, counts) may have been computed on another device. In that case,
    and where values are copied between devices, it is computed anew."""
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
    if gradients:         # write out those that are not known; some of what they are computed from may be known
        kept = {n for n in gradients if value(n) is not None}
        if registry.kept.rows:                  # the history of a kept value is long: walk only what gradients pass
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
    """Rebuild a value that no gradient passes over the known values that it is computed from. With its whole
    expression, `w -= rate * w.grad` would keep the graphs of all earlier steps, if the loss was read before the
    update."""
    below = toposort([node], lambda n: () if n.op is o.GRADIENT or value_in_memory(n) is not None else n.src)
    made = {n: n for n in below if n.op is o.GRADIENT and value_in_memory(n) is None}
    [found] = _replaced_by_values([node], value_in_memory, made)
    if registry.kept.rows:
        _note_copies(made)
    return found


def over_known_values(node: UOp) -> UOp:
    """Rebuild a value that was just made, and that no gradient passes, over the known values that it reads directly, so
    that these values do not keep alive what they were computed from."""
    new: dict[UOp, UOp] = {}
    for below in toposort([node], lambda n: () if n.op in _WHOLE or value_in_memory(n) is not None else n.src):
        if len(new) == _FEW:                   # a larger expression than one operation makes: leave it
            return node
        known = value_in_memory(below.src[0] if below.op is o.DETACH else below)
        new[below] = known.reshape(below.shape) if known is not None else below if below.op in _WHOLE else \
            below.over(tuple([new[s] for s in below.src]))
    _note_copies(new)
    return new[node]


def _note_copies(new: dict[UOp, UOp]) -> None:
    """Record which nodes are rebuilt copies of others: a value that is kept for one of the two is also the value of the
    other."""
    for before, made in new.items():
        if made is not before and made.src:
            registry.copies.set(made, registry.copies.get(before) or weakref.ref(before))


def value_in_memory(node: UOp) -> UOp | None:
    """Return the value of a node, if it is known and in the memory of the node's own device."""
    found = registry.values.get(node) if recording() is None else None
    return found if found is not None and found.device == node.device and not node.symbolic else None


def _replaced_by_values(roots: Sequence[UOp], value: Callable[[UOp], UOp | None], new: dict[UOp, UOp]) -> list[UOp]:
    """Rebuild the roots with every node that has a value replaced by it. Fill `new`: {node: what it became}; nodes that
    are in it already keep what they have there."""
    found: dict[UOp, UOp] = {}                # each value is looked up once: another thread may drop it meanwhile

    def sources(node: UOp) -> Sequence[UOp]:
        known = None if node in new else value(node)
        if known is not None:
            found[node] = known
        return () if node in new or known is not None else node.src

    for node in toposort(roots, sources):
        if node in found:
            new[node] = found[node].reshape(node.shape)
        elif node not in new:              # a leaf's own DETACH is not needed, as no gradient passes any more
            src = tuple([new[s] for s in node.src])
            new[node] = src[0] if node.op is o.DETACH and src[0] is src[-1] and len(src) > 1 else node.over(src)
    return [new[r] for r in roots]
