"""What tinygrad's nodes can do and ours cannot: be written to. In: nodes. Out: methods of nodes, while installed.

    cache = Tensor(cache.uop.after(cache[:, 3].uop.store(row.uop)))

says there: write the row, then read the cache. Nodes here are values, which never change, so it means what
`cache[:, 3].assign(row)` means: the tensors that hold the node take the new value, and `after` gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor.autograd.gradient_leaves import holders
from glassgrad.tensor.tensor import Tensor


class Write(NamedTuple):
    """A value for a node, or for the part of one that a view shows; `after` does it."""
    target: UOp
    value: UOp


def store(self: UOp, value: Any) -> Write:
    """A write, to be done by `after`."""
    return Write(self, self._wrap(value))


def after(self: UOp, *writes: Write) -> UOp:
    """This node's value once the writes are done.

    >>> import glassgrad.compat
    >>> x = Tensor([1, 2, 3, 4]).realize()
    >>> y = Tensor(x.uop.after(x[1:3].uop.store(Tensor([20, 30]).uop)))
    >>> glassgrad.compat.uninstall()
    >>> y.tolist(), x.tolist()
    ([1, 20, 30, 4], [1, 20, 30, 4])
    """
    here = Tensor(self)                  # it holds the node, so what is written there arrives here too
    for target, value in writes:
        node = target
        while not holders((node,)) and node.src:         # of a view, the tensors that it is a view of
            node = node.src[0]
        for owner in holders((node,)):
            owner._view(target).assign(Tensor._of_node(value))
    return here.uop


def item(self: UOp, index: Any) -> UOp:
    """node[index], as of a tensor."""
    return Tensor._of_node(self)[index].uop


METHODS: dict[str, Callable[..., Any]] = {"store": store, "after": after, "__getitem__": item}


def add_methods() -> None:
    """Give them to every node."""
    for name, method in METHODS.items():
        setattr(UOp, name, method)


def remove_methods() -> None:
    """Take them away again."""
    for name in METHODS:
        delattr(UOp, name)
