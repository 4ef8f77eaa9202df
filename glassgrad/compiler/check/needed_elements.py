"""Find which elements of its sources a part of a node needs, and their values. In: a node, a box. Out: boxes, arrays.

A box is a (start, stop) for each axis. One element of a matrix product needs a row and a column, so few values lead to
one element, however large the tensors are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassgrad.compiler.check.graph_interpreter import evaluate
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, bounds, index
from glassgrad.compiler.lower.access_bounds import numbers_at
from glassgrad.compiler.lower.element_expressions import Index, source_index
from glassgrad.compiler.lower.loops import counter

Array = Any    # numpy.ndarray; NumPy is loaded when a function here first runs
Box = tuple[tuple[int, int], ...]

_SAME = (o.CONTIGUOUS, o.DETACH, o.COPY)


def whole(shape: tuple[int, ...]) -> Box:
    return tuple((0, n) for n in shape)


def one_element(index: tuple[int, ...]) -> Box:
    return tuple((i, i + 1) for i in index)


def needed(node: UOp, box: Box) -> list[Box]:
    """For each source, a box with all the elements that a box of the node depends on.

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
    if op in o.MOVEMENT:
        if any(start == stop for start, stop in box):
            return [((0, 0),) * len(shape)]
        _, places, _ = _source_index(node, box)
        return [tuple(_clipped(*bounds(place), n) for place, n in zip(places, shape))]
    return [whole(s.shape) for s in node.src]


def _source_index(node: UOp, box: Box) -> tuple[list[UOp], Index, UOp | None]:
    """Counters over a box of a movement node, the index into its source at these, and the gate under which it is valid
    (lower/element_expressions.py)."""
    counters = [counter(f"i{axis}", stop - start) for axis, (start, stop) in enumerate(box)]
    return counters, *source_index(node, tuple([add(c, index(start)) for c, (start, _) in zip(counters, box)]))


def _clipped(first: int, last: int, n: int) -> tuple[int, int]:
    start = min(max(first, 0), n)
    return start, max(min(last + 1, n), start)


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
        """The total number of elements."""
        return sum(array.size for array in self.arrays.values())

    def part(self, node: UOp, box: Box) -> Array:
        """The values of a box within the part of a node that has been computed."""
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
        if node.op in o.MOVEMENT:
            return _moved(np, node, box, parts[0], sources[0])
        return self._cut(whole(node.shape), evaluate(np, node, sources), box)


def _around(known: Box | None, box: Box) -> Box:
    """The smallest box around two boxes."""
    if known is None or any(start == stop for start, stop in known):
        return box
    if any(start == stop for start, stop in box):
        return known
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, box))


def _moved(np: Any, node: UOp, box: Box, part: Box, x: Array) -> Array:
    """A box of a movement op, from the part of its source that it needs."""
    sizes = [stop - start for start, stop in box]
    if not x.size:
        return np.zeros(sizes, x.dtype)
    counters, places, gate = _source_index(node, box)
    given = {c: np.arange(n).reshape([-1 if c is other else 1 for other in counters]) for c, n in zip(counters, sizes)}
    where = [np.clip(numbers_at(np, place, given) - first, 0, last - first - 1)
             for place, (first, last) in zip(places, part)]
    found = np.broadcast_to(x[tuple(where)], sizes)
    return found if gate is None else np.where(numbers_at(np, gate, given), found, np.zeros((), x.dtype))
