"""Which elements of its sources a part of a node needs, and their values. In: a node and a box. Out: boxes, arrays.

A box is a (start, stop) for each axis. One element of a matrix product needs a row and a column, so the values on the
way to one element are few, however large the tensors are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from glassgrad.compiler.check.graph_interpreter import evaluate
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.axes_through_views import coordinates

Array = Any    # numpy.ndarray; NumPy is loaded when a function here first runs
Box = tuple[tuple[int, int], ...]

_SAME = (o.CONTIGUOUS, o.DETACH, o.COPY)


def whole(shape: tuple[int, ...]) -> Box:
    return tuple((0, n) for n in shape)


def one_element(index: tuple[int, ...]) -> Box:
    return tuple((i, i + 1) for i in index)


def needed(node: UOp, box: Box) -> list[Box]:
    """Of each source, the smallest box that has everything which a box of the node is made of.

    >>> from glassgrad.compiler.graph.uop import full
    >>> x = full((4, 6), 1.0)
    >>> needed(x.sum((1,)), ((2, 3), (0, 1))), needed(x.permute((1, 0)), ((5, 6), (2, 3)))
    ([((2, 3), (0, 6))], [((2, 3), (5, 6))])
    """
    op, arg = node.op, node.arg
    if op in o.ELEMENTWISE or op in _SAME:
        return [box if s.shape == node.shape else whole(s.shape) for s in node.src]
    if not node.src:
        return []
    shape = node.src[0].shape
    if op in o.REDUCE:
        return [tuple((0, n) if a in arg.axes else ends for a, (n, ends) in enumerate(zip(shape, box)))]
    if op is o.RESHAPE:
        return [_reshaped(box, node.shape, shape)]
    if op is o.PERMUTE:
        return [tuple(box[arg.order.index(a)] for a in range(len(shape)))]
    if op is o.EXPAND and len(shape) == len(box):
        return [tuple((0, 1) if n == 1 else ends for n, ends in zip(shape, box))]
    if op is o.PAD:
        return [tuple(_clipped(start - before, stop - before, n)
                      for (start, stop), (before, _), n in zip(box, arg.padding, shape))]
    if op is o.SHRINK:
        return [tuple((start + first, stop + first) for (start, stop), (first, _) in zip(box, arg.bounds))]
    if op is o.FLIP:
        return [tuple((n - stop, n - start) if a in arg.axes else (start, stop)
                      for a, (n, (start, stop)) in enumerate(zip(shape, box)))]
    if op is o.WINDOW:
        (first, last), (tap, taps) = box[arg.axis], box[-1]
        ends = first * arg.stride + tap * arg.dilation, (last - 1) * arg.stride + (taps - 1) * arg.dilation + 1
        return [(*box[:arg.axis], ends, *box[arg.axis + 1:-1])]
    if op is o.UNWINDOW:
        (first, last), (tap, taps) = box[arg.axis], box[-1]
        ends = _clipped(-(-(first - (taps - 1) * arg.dilation) // arg.stride),
                        (last - 1 - tap * arg.dilation) // arg.stride + 1, shape[arg.axis])
        return [(*box[:arg.axis], ends, *box[arg.axis + 1:])]
    return [whole(s.shape) for s in node.src]


def _clipped(start: int, stop: int, n: int) -> tuple[int, int]:
    start = min(max(start, 0), n)
    return start, max(min(stop, n), start)


def _reshaped(box: Box, shape: tuple[int, ...], source: tuple[int, ...]) -> Box:
    """A box around the elements from the first to the last of another one, in the order of memory."""
    if any(start == stop for start, stop in box):
        return tuple((0, 0) for _ in source)
    first = coordinates(_position([start for start, _ in box], shape), source)
    last = coordinates(_position([stop - 1 for _, stop in box], shape), source)
    found: list[tuple[int, int]] = []
    for a, n in enumerate(source):
        same = all(first[b] == last[b] for b in range(a))
        found.append((first[a], last[a] + 1) if same else (0, n))
    return tuple(found)


def _position(index: list[int], shape: tuple[int, ...]) -> int:
    """An element's number in the order of memory."""
    position = 0
    for i, n in zip(index, shape):
        position = position * n + i
    return position


class BoxValues:
    """The values that lead to one box of a node. `stored` has arrays for leaves, and for other nodes in memory."""

    def __init__(self, root: UOp, box: Box, stored: Mapping[UOp, Array]):
        import numpy as np
        order = toposort([root], lambda n: () if n in stored and n is not root else n.src)
        self.boxes: dict[UOp, Box] = {root: box}
        for node in reversed(order):
            if node is root or node not in stored:
                for source, part in zip(node.src, needed(node, self.boxes[node])):
                    self.boxes[source] = _around(self.boxes.get(source), part)
        self.arrays: dict[UOp, Array] = {}
        with np.errstate(all="ignore"):
            for node in order:
                self.arrays[node] = self._cut(whole(node.shape), stored[node], self.boxes[node]) \
                    if node in stored and node is not root else self._value(np, node)

    @property
    def size(self) -> int:
        """How many elements there are in all."""
        return sum(array.size for array in self.arrays.values())

    def part(self, node: UOp, box: Box) -> Array:
        """The values of a box inside what was computed of a node."""
        return self._cut(self.boxes[node], self.arrays[node], box)

    def _cut(self, have: Box, array: Array, box: Box) -> Array:
        return array[tuple(slice(start - first, stop - first) for (first, _), (start, stop) in zip(have, box))]

    def _value(self, np: Any, node: UOp) -> Array:
        box = self.boxes[node]
        parts = needed(node, box)
        sources = [self.part(source, part) for source, part in zip(node.src, parts)]
        if node.op in o.ELEMENTWISE or node.op in o.REDUCE or node.op in _SAME:
            found = evaluate(np, node, sources)
            return np.broadcast_to(found, [stop - start for start, stop in box])
        if node.op in o.MOVEMENT and len(node.src[0].shape) == len(parts[0]):
            moved = _moved(np, node, box, parts[0], sources[0])
            if moved is not None:
                return moved
        return self._cut(whole(node.shape), evaluate(np, node, sources), box)


def _around(known: Box | None, box: Box) -> Box:
    """The smallest box around two."""
    if known is None or any(start == stop for start, stop in known):
        return box
    if any(start == stop for start, stop in box):
        return known
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, box))


def _moved(np: Any, node: UOp, box: Box, part: Box, x: Array) -> Array | None:
    """A box of a movement op from the part of its source that it needs."""
    op, arg = node.op, node.arg
    sizes = [stop - start for start, stop in box]
    if op is o.RESHAPE:
        if not math.prod(sizes):
            return np.zeros(sizes, x.dtype)
        position = np.zeros(sizes, np.int64)
        for (start, stop), n, axis in zip(box, node.shape, range(len(box))):
            position = position * n + np.arange(start, stop).reshape([-1 if a == axis else 1 for a in range(len(box))])
        source = node.src[0].shape
        where = np.unravel_index(position, source) if source else ()
        return x[tuple(w - start for w, (start, _) in zip(where, part))].reshape(sizes)
    if op is o.PERMUTE:
        return x.transpose(arg.order)
    if op is o.EXPAND:
        return np.broadcast_to(x, sizes) if len(part) == len(box) else None
    if op is o.SHRINK:
        return x
    if op is o.FLIP:
        return np.flip(x, arg.axes)
    if op is o.PAD:
        out = np.zeros(sizes, x.dtype)
        begin = [first + before - start for (first, _), (before, _), (start, _) in zip(part, arg.padding, box)]
        out[tuple(slice(b, b + n) if n else slice(0, 0) for b, n in zip(begin, x.shape))] = x
        return out
    steps, taps = np.arange(*box[arg.axis])[:, None], np.arange(*box[-1])[None, :]
    if op is o.WINDOW:
        found = np.take(x, steps * arg.stride + taps * arg.dilation - part[arg.axis][0], axis=arg.axis)
        return np.moveaxis(found, arg.axis + 1, -1)
    ahead = steps - taps * arg.dilation                  # UNWINDOW
    first, last = part[arg.axis]
    there = (ahead % arg.stride == 0) & (ahead // arg.stride >= first) & (ahead // arg.stride < last)
    if first == last:
        return np.zeros(sizes, x.dtype)
    rows = np.moveaxis(x, arg.axis, -2)
    found = rows[..., np.where(there, ahead // arg.stride - first, 0), taps - box[-1][0]]
    return np.moveaxis(np.where(there, found, np.zeros((), x.dtype)), -2, arg.axis)
