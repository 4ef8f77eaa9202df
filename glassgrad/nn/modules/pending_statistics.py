"""Update running statistics in forward passes, and compute them later. In, out: tensors.

A lazy running mean holds the graph of its whole forward pass. `optimizer.step()` computes the pending ones together
with the parameters, so that the pass runs once. Without an optimizer they are computed after a few passes, to bound the
graphs.
"""

from __future__ import annotations

import weakref

from glassgrad.compiler.graph import ops as o
from glassgrad.tensor.tensor import Tensor

_MOST_PASSES = 4


_pending: dict[int, tuple[weakref.ref[Tensor], int]] = {}        # id -> tensor, number of its pending updates


def is_computed(tensor: Tensor) -> bool:
    """Return whether a tensor's values are in memory.

    >>> is_computed(Tensor([1.0])), is_computed(Tensor([1.0]) + 1)
    (True, False)
    """
    return tensor.uop.base.op is o.BUFFER


def average_into(running: Tensor | None, new: Tensor, share: float | Tensor) -> None:
    """Average a new value into a running statistic, if there is one, with the weight `share`.

    >>> mean = Tensor([1.0])
    >>> average_into(mean, Tensor([2.0]), 0.25); mean.tolist()
    [1.25]
    """
    if running is not None:
        running.assign((running * (1 - share) + new.detach() * share).cast(running.dtype))


def remember(*tensors: Tensor) -> None:
    """Add tensors that are about to be updated to the pending ones. After `_MOST_PASSES` updates, compute all first.

    >>> mean = Tensor([1.0]) + 1
    >>> remember(mean); [tensor.tolist() for tensor in take()]
    [[2.0]]
    """
    longest = 0
    for tensor in tensors:
        known, passes = _pending.get(id(tensor), (None, 0))
        if known is None or known() is not tensor or is_computed(tensor):      # the id was reused, or a jit computed it
            passes = 0
        _pending[id(tensor)] = weakref.ref(tensor), passes + 1
        longest = max(longest, passes)
    if longest >= _MOST_PASSES and (waiting := take()):
        waiting[0].realize(*waiting[1:])
        remember(*tensors)


def take() -> list[Tensor]:
    """Remove and return the pending tensors, for the caller to compute.

    >>> take()
    []
    """
    found = [t for t in (held() for held, _ in _pending.values()) if t is not None and not is_computed(t)]
    _pending.clear()
    return found
