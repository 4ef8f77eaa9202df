"""Concatenation of nodes, and its parts found again. In: nodes. Out: a graph of WHERE and PAD; or its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.op_arguments import Shape
from glassgrad.compiler.graph.uop import UOp, full


class Concatenation(NamedTuple):
    """What `joined` made."""
    axis: int
    parts: list[UOp]
    so_far: list[UOp]            # for each part, the node with it and all before it, padded to the full length


def joined(parts: Sequence[UOp], axis: int) -> UOp:
    """Nodes of one type concatenated along an axis: each padded to the full length, the right one chosen by index."""
    parts = [p for p in parts if p.shape[axis]] or parts[:1]
    total, start = sum(p.shape[axis] for p in parts), parts[0].shape[axis]
    out = _padded(parts[0], axis, 0, total)
    for p in parts[1:]:
        out = placed(p, axis, start, out)
        start += p.shape[axis]
    return out


def placed(part: UOp, axis: int, start: int, rest: UOp) -> UOp:
    """`rest`, with a part in it from `start` on along an axis."""
    total = rest.shape[axis]
    inside = _inside(rest.shape, axis, start, part.shape[axis])
    return UOp(o.WHERE, part.dtype, (inside, _padded(part, axis, start, total), rest))


def concatenation(node: UOp) -> Concatenation | None:
    """The parts of a concatenation; None for other nodes.

    >>> x, y = full((2, 3), 1.0), full((2, 1), 2.0)
    >>> found = concatenation(joined([x, y], 1))
    >>> found.axis, found.parts == [x, y]
    (1, True)
    """
    parts, so_far = [], []
    axis, end = -1, 0
    while True:
        padded = node.src[1] if node.op is o.WHERE else node
        if padded.op is not o.PAD or not parts and node is padded:
            return None
        if not parts:
            axis = next(i for i, pair in enumerate(padded.arg.padding) if pair != (0, 0))
            end = padded.shape[axis]
        part = padded.src[0]
        start = padded.arg.padding[axis][0]
        if start + part.shape[axis] != end or padded is not _padded(part, axis, start, padded.shape[axis]):
            return None
        parts.append(part)
        so_far.append(node)
        if node is padded:
            return Concatenation(axis, parts[::-1], so_far[::-1]) if start == 0 else None
        if node.src[0] is not _inside(node.shape, axis, start, part.shape[axis]):
            return None
        node, end = node.src[2], start


def _padded(part: UOp, axis: int, start: int, total: int) -> UOp:
    return part.pad([(start, total - start - n) if a == axis else (0, 0) for a, n in enumerate(part.shape)])


def _inside(shape: Shape, axis: int, start: int, n: int) -> UOp:
    """Whether an index along the axis is one of the `n` from `start` on."""
    total = shape[axis]
    inside = full((n,), True, dtypes.bool).pad([(start, total - start - n)])
    return inside.reshape((1,) * axis + (total,) + (1,) * (len(shape) - axis - 1)).expand(shape)
