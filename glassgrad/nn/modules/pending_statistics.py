"""Values that a forward pass changed and that are not computed yet: running means and variances. In, out: tensors.

A lazy running mean remembers the whole pass it came from. `optimizer.step()` computes the pending ones together
with the parameters, so that the pass runs once; without an optimizer they are computed after a few passes, so that
graphs end.
"""

from __future__ import annotations

import weakref
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.tensor.tensor import Tensor

_MOST_PASSES = 4


class _Pending:
    """A tensor, without keeping it alive, and how many updates it carries."""
    __slots__ = ("tensor", "passes")

    def __init__(self, tensor: Tensor):
        self.tensor, self.passes = weakref.ref(tensor), 0


_pending: dict[int, _Pending] = {}


def is_computed(tensor: Tensor) -> bool:
    """Whether a tensor's values are in memory.

    >>> is_computed(Tensor([1.0])), is_computed(Tensor([1.0]) + 1)
    (True, False)
    """
    return tensor.uop.base.op is o.BUFFER


def remember(*tensors: Tensor) -> None:
    """These have a new value that waits to be computed.

    >>> mean = Tensor([1.0]) + 1
    >>> remember(mean); [tensor.tolist() for tensor in take()]
    [[2.0]]
    """
    long = False
    for tensor in tensors:
        entry: Any = _pending.get(id(tensor))
        if entry is None or entry.tensor() is not tensor:
            entry = _pending[id(tensor)] = _Pending(tensor)
        entry.passes += 1
        long = long or entry.passes > _MOST_PASSES
    if long:
        waiting = take()
        if waiting:
            waiting[0].realize(*waiting[1:])


def take() -> list[Tensor]:
    """The tensors that wait, which the caller now computes.

    >>> take()
    []
    """
    found = [t for t in (entry.tensor() for entry in _pending.values()) if t is not None and not is_computed(t)]
    _pending.clear()
    return found
