"""The one door from tensors to the engine. In: nodes. Out: nodes whose values are in memory, and their bytes.

Reading a tensor does not change it: the node keeps its history, so `loss.item()` before `loss.backward()` is as good as
after, and remembers its value, so reading twice computes once. `realize` is the cut: it drops the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import Bug
from glassgrad.graph import ops as o
from glassgrad.graph.interpret import from_storage, interpret, to_storage
from glassgrad.graph.uop import UOp
from glassgrad.tensor.host import HostValue

__all__ = ["canonical_device", "default_device", "store", "realize", "value_of", "bytes_of", "array_of", "number_in", "share",
           "schedule"]


class Buffer:
    def __init__(self, shape, dtype, device, data=None):
        self.shape, self.dtype, self.device, self.data = shape, dtype, device, data


def canonical_device(name: str | None) -> str | None:
    """A device's proper name; None stays None."""
    return None if name is None else name.upper()


def default_device() -> str:
    return "CPU"


def store(value: HostValue, device: str) -> UOp:
    """Host memory copied into a new buffer."""
    return UOp(o.BUFFER, value.dtype, (), Buffer(value.shape, value.dtype, device, bytes(memoryview(value.data).cast("B"))))


def realize(nodes: Sequence[UOp], device: str) -> list[UOp]:
    """Compute all of these at once."""
    nodes = _with_known_values(nodes)
    leaves = {n: from_storage(n.arg.data, n.dtype).reshape(n.shape) for r in nodes for n in r.toposort() if n.op is o.BUFFER}
    out = []
    for node, value in zip(nodes, interpret(nodes, leaves)):
        base = node.base
        if base.op is o.BUFFER:
            out.append(node)
        else:
            out.append(UOp(o.BUFFER, node.dtype, (), Buffer(node.shape, node.dtype, node.device or device,
                                                         to_storage(value, node.dtype).tobytes())))
    return out


_some_values_known = False


def value_of(node: UOp, device: str) -> UOp:
    """The node's value in memory, row by row from its buffer's start; the node remembers it."""
    global _some_values_known
    if node.op is o.BUFFER:
        return node
    cache = node._cache
    if cache is not None and "value" in cache:
        return cache["value"]  # type: ignore[no-any-return]
    value = realize([node.contiguous()], device)[0]
    while value.op is o.RESHAPE:
        value = value.src[0]
    if value.op is not o.BUFFER:
        raise Bug(f"the engine answered {value} where a buffer was due")
    _some_values_known = True
    return node.cached("value", lambda _: value)  # type: ignore[no-any-return]


def bytes_of(node: UOp, device: str) -> memoryview:
    """The node's value as bytes."""
    return memoryview(value_of(node, device).arg.data)


def array_of(node: UOp, device: str) -> Any:
    """The node's value as a NumPy array: shared memory if it is in memory already, else the caller's own copy."""
    import numpy
    return numpy.frombuffer(bytearray(bytes_of(node, device)), node.dtype.format).reshape(node.shape)


def number_in(node: UOp, device: str) -> Any:
    """The one number of a node with one element."""
    return bytes_of(node, device).cast("B").cast(node.dtype.format)[0]


def share(array: Any, device: str) -> UOp | None:
    return None


def schedule(nodes: Sequence[UOp], device: str) -> list[Any]:
    return [None for n in nodes if n.base.op is not o.BUFFER]


def _with_known_values(roots: Sequence[UOp]) -> list[UOp]:
    """The roots with every node that remembers its value replaced by it."""
    if not _some_values_known:
        return list(roots)
    new: dict[UOp, UOp] = {}
    stack = [(r, False) for r in roots]
    while stack:
        node, seen = stack.pop()
        if seen:
            src = tuple([new[s] for s in node.src])
            new[node] = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
        elif node not in new:
            cache = node._cache
            if cache is not None and "value" in cache:
                new[node] = cache["value"].reshape(node.shape)
            else:
                stack.append((node, True))
                stack.extend((s, False) for s in node.src if s not in new)
    return [new[r] for r in roots]
