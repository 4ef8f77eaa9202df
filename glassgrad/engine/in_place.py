"""Parts written where the old value lies. In: values that are to be computed. Out: those that need no copy.

After `x[3] = row` the old value of x is there for everything that reads it. Mostly nothing does: then only the row is
computed, into the old value's memory, and its node stands for the new value. The one node that still reads it, "the old
value with this part replaced", has the same value before and after. What reads it is listed by the buffer (buffer.py).
Does not know tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.axes_through_views import start_of_piece
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.schedule.partial_updates import replacement
from glassgrad.engine.buffer import Buffer
from glassgrad.runtime.devices import Device

_ALIGNED = 64                 # bytes: non-temporal stores need it,
_LARGE = 256 * 1024           # and only results larger than this are stored so


def free_sources(sinks: Sequence[UOp]) -> set[UOp]:
    """The buffers that nothing reads any more but one of the sinks, which replaces a part of them."""
    found = set()
    for at, sink in enumerate(sinks):
        if sink.op is not o.WHERE or sink.symbolic or sink.src[2].op is not o.BUFFER:
            continue
        source: UOp = sink.src[2]
        if replacement(sink) is None or not _may_write(source.arg) or not source.arg.is_free(sink):
            continue
        others = [*sinks[:at], *sinks[at + 1:]]
        if not (others and sink in toposort(others)):
            found.add(source)
    return found


def _may_write(buffer: Buffer) -> bool:
    """Whether a buffer is a tensor's memory, of ours, that kernels can write a piece of."""
    return buffer.held and buffer.owns_memory and Device[buffer.device].memory.in_parts and not settings.CHECK


def piece_of(sink: UOp) -> tuple[UOp, Buffer] | None:
    """The value that such a sink puts into its source, and the memory it goes to, if that is one piece; else None."""
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
