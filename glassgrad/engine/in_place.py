"""Parts written where the old value lies. In: values that are to be computed. Out: those that need no copy.

All values are new ones: after `x[3] = row` the old x is there for whoever knows it. Mostly nobody does. Then only the
row is computed, into the old value's memory, and its node comes to stand for the new value: the one node that still
reads it, "the old value with this part replaced", is the same before and after. Whether anybody knows it is seen by
counting references, to its node and to its buffer: a tensor, a view, a lazy result or a NumPy array is one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from glassgrad.base.settings import settings
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.axes import start_of_piece
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.schedule.partial_updates import replacement
from glassgrad.engine.buffer import Buffer
from glassgrad.runtime.devices import Device

_OF_THE_NODE = ("holders", "was")             # what is kept with a node and is not derived from its value
_ALIGNED = 64                 # bytes: stores that go past the caches need it,
_LARGE = 256 * 1024           # and only results larger than this are stored so


class _Holder:
    __slots__ = ("arg",)

    def __init__(self, arg: Any):
        self.arg = arg


def _in_tuple(row: tuple[Any, ...], at: int) -> int:
    return getrefcount(row[at])


def _in_node(node: Any) -> int:
    return getrefcount(node.arg)


_ONE_TUPLE = _in_tuple((object(),), 0)        # the counts, by these very functions, of what one holder knows
_ONE_NODE = _in_node(_Holder(object())) + 1   # nodes are found again by their arguments: the table has them too


def dead_sources(sinks: Sequence[UOp]) -> set[UOp]:
    """The buffers of which nothing is known any more but that a part of them is to be replaced, by one of the sinks."""
    found = set()
    for at, sink in enumerate(sinks):
        if sink.op is not o.WHERE or sink.symbolic or sink.src[2].op is not o.BUFFER:
            continue
        # counted before anything here comes to hold it
        if _in_tuple(sink.src, 2) != _ONE_TUPLE or _in_node(sink.src[2]) != _ONE_NODE or replacement(sink) is None:
            continue
        others = [*sinks[:at], *sinks[at + 1:]]
        if _may_write(sink.src[2].arg) and not (others and sink in toposort(others)):
            found.add(sink.src[2])
    return found


def written(source: UOp) -> UOp:
    """A buffer that has another value from now on: what was found out about the old one is forgotten."""
    if source._cache is not None:
        source._cache = {key: source._cache[key] for key in _OF_THE_NODE if key in source._cache}
    return source


def _may_write(buffer: Buffer) -> bool:
    """Whether a buffer is memory of ours that kernels can write a piece of."""
    return buffer._block is not None and Device[buffer.device].memory.in_parts and not settings.CHECK


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
