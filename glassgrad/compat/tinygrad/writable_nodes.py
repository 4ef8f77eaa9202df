"""Write to nodes with tinygrad's `store` and `after`. In: nodes. Out: methods of nodes, while the adapter is installed.

    cache = Tensor(cache.uop.after(cache[:, 3].uop.store(row.uop)))

writes the row, then reads the cache. Nodes here are immutable, so this means the same as `cache[:, 3].assign(row)`: the
tensors that hold the node take the new value, and `after` returns it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from glassgrad.compat.tinygrad.absent_methods import NODE_METHODS
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor.autograd.gradient_leaves import live_leaves
from glassgrad.tensor.tensor import Tensor


class Write(NamedTuple):
    """A value to assign to a node, or to the elements of a view; carried out by `after`."""
    target: UOp
    value: UOp


def store(self: UOp, value: Any) -> Write:
    """Return a write, which `after` carries out."""
    return Write(self, self._wrap(value))


def after(self: UOp, *writes: Write) -> UOp:
    """Return this node's value once the writes are done.

    >>> import glassgrad.compat
    >>> x = Tensor([1, 2, 3, 4]).realize()
    >>> y = Tensor(x.uop.after(x[1:3].uop.store(Tensor([20, 30]).uop)))
    >>> glassgrad.compat.uninstall()
    >>> y.tolist(), x.tolist()
    ([1, 20, 30, 4], [1, 20, 30, 4])
    """
    here = Tensor(self)                  # a tensor that holds the node, so that the writes reach it too
    for target, value in writes:
        node = target
        while not live_leaves((node,)) and node.src:         # for a view: its base's tensors
            node = node.src[0]
        for owner in live_leaves((node,)):
            owner._view(target).assign(Tensor._of_node(value))
    return here.uop


def item(self: UOp, index: Any) -> UOp:
    """Return node[index], with a tensor's indexing."""
    return Tensor._of_node(self)[index].uop


METHODS: dict[str, Any] = {"store": store, "after": after, "__getitem__": item, **NODE_METHODS}


def add_methods() -> None:
    """Add these methods to all nodes."""
    for name, method in METHODS.items():
        setattr(UOp, name, method)


def remove_methods() -> None:
    """Remove these methods from all nodes."""
    for name in METHODS:
        delattr(UOp, name)
