"""Blocks that no gradient leaves: `with no_grad():`. In: nodes computed in such a block. Out: the same, cut off.

What is computed inside is a value for what comes after: `backward` ends there. Gradients are computed only on
request, so a block saves nothing; it says what is meant. A view that is taken inside is cut below its movements, so
that writing to it (`weight[0].fill_(0)`) still reaches the tensor it is a view of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager

from glassgrad.base.fork_locks import held_at_fork
from glassgrad.compiler.graph import UOp, ops as o

open_blocks = 0                  # blocks, and traces of the jit, in all threads; with none, nothing is checked
_counting = held_at_fork(threading.Lock(), "counter")


class _Blocks(threading.local):
    depth = 0


_blocks = _Blocks()


class no_grad(ContextDecorator):
    """A block, or a function as a decorator, whose results are values: no gradient passes through them.

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
        global open_blocks
        _blocks.depth += by
        with _counting:
            open_blocks += by


@contextmanager
def traced() -> Iterator[None]:
    """A block in which tensors that are made are noted (engine/capture.py): it counts among the open ones, so that
    making a tensor has one thing to check."""
    global open_blocks
    with _counting:
        open_blocks += 1
    try:
        yield
    finally:
        with _counting:
            open_blocks -= 1


def inside() -> bool:
    """Whether this thread is in such a block."""
    return open_blocks > 0 and _blocks.depth > 0


def cut(node: UOp) -> UOp | None:
    """A node that was just computed, cut off from its sources; None where this thread is in no such block."""
    if not _blocks.depth:
        return None
    if node.op.kind == o.Kind.MOVEMENT:
        return UOp(node.op, node.dtype, (ended(node.src[0]),), node.arg, node.place)
    return ended(node)


def ended(node: UOp) -> UOp:
    """A node's value, which no gradient passes. The argument tells it from a `detach` of the user's."""
    return UOp(o.DETACH, node.dtype, (node,), "no_grad")
