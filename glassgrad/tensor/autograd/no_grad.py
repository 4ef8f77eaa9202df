"""Compute without gradients: `with no_grad():`. In: nodes computed in such a block. Out: the same nodes, detached.

What is computed inside is a constant for what follows: `backward` stops there. Gradients are computed only on request,
so a block saves nothing; it states an intent. A view that is taken inside is detached below its movement ops, so that
writing to it (`weight[0].fill_(0)`) still reaches the tensor that it is a view of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager

from glassgrad.base.fork_locks import held_at_fork
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.engine.in_place import over_known_values
from glassgrad.engine.registry import registry

open_blocks = 0                  # number of open blocks and jit traces in all threads; at 0 nothing is checked
_counting = held_at_fork(threading.Lock(), "counter")


class _Blocks(threading.local):
    depth = 0


_blocks = _Blocks()


class no_grad(ContextDecorator):
    """A block, or a decorated function, whose results pass no gradient on.

    >>> x = Tensor([2.0])
    >>> with no_grad():
    ...     constant = x * 3
    >>> (x * constant).sum().gradient(x)[0].tolist(), constant.requires_grad
    ([6.0], False)
    """

    def __enter__(self) -> no_grad:
        self._step(1)
        return self

    def __exit__(self, *problem: object) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        _blocks.depth += by
        _count(by)


def _count(by: int) -> None:
    global open_blocks
    with _counting:
        open_blocks += by


@contextmanager
def enable_grad() -> Iterator[None]:
    """Let results pass gradients on again, in a part of a `no_grad` block.

    >>> x = Tensor([2.0])
    >>> with no_grad():
    ...     with enable_grad(): y = (x * 3).sum()
    >>> y.gradient(x)[0].tolist()
    [3.0]
    """
    depth, _blocks.depth = _blocks.depth, 0
    try:
        yield
    finally:
        _blocks.depth = depth


@contextmanager
def traced() -> Iterator[None]:
    """Record the new tensors that are made inside the block (engine/capture.py). It counts as an open block, so that
    making a tensor has to check only one counter."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def inside() -> bool:
    """Return whether this thread is in a `no_grad` block."""
    return open_blocks > 0 and _blocks.depth > 0


def cut(node: UOp) -> UOp | None:
    """Detach a node that was just computed from its sources; return None if this thread is in no `no_grad` block."""
    if not _blocks.depth:
        return None
    if registry.kept.rows:
        node = over_known_values(node)
    if node.op.kind == o.Kind.MOVEMENT:
        return UOp(node.op, node.dtype, (ended(node.src[0]),), node.arg, node.place)
    return ended(node)


def ended(node: UOp) -> UOp:
    """Detach the node; the argument of the DETACH distinguishes it from a `detach` of the user's."""
    return UOp(o.DETACH, node.dtype, (node,), "no_grad")
