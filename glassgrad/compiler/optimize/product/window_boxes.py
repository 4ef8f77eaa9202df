"""Windows of an image, copied as boxes of the image itself. In: a factor of a product. Out: a `WindowFactor`, or None.

A convolution reads image[c, h + kh - 1, w + kw - 1], and its gradient by the image reads the result's gradient with
the signs of taps reversed. For one tap (kh, kw) that is a box of the image, moved: some channels by some columns of a
row. A copy brings zeros for what lies outside a matrix, which is what padding means. So the sum over k goes tap by tap,
some channels in a step, and no window is ever stored. Proven from the index and its gates: each axis of the image has a
coordinate that is linear in the loops, and the gates say that it is inside, no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import (Terms, add, build, divide, index, linear, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Axis, Box, Statement
from glassgrad.compiler.optimize.product.recognize import FlatAxis
from glassgrad.compiler.optimize.targets import gpu

MOST_PADDED = 1.6          # columns of whole lines for each column of an image, that are worth it


@dataclass
class WindowFactor:
    """Windows as the right factor of a product, its columns those of image rows that are padded to whole lines."""
    memory: UOp
    axis: FlatAxis                         # rows and columns of the result
    k: FlatAxis                            # taps, then channels
    axes: tuple[Axis, ...]                 # of the image, innermost first,
    at: tuple[UOp, ...]                    # the coordinates along them,
    counts: tuple[int, ...]                # and how many of a box
    before: list[Statement] = field(default_factory=list)       # nothing is stored first
    in_two_lines: bool = True              # a copied line begins anywhere

    def place(self, line: int, position: UOp, k: UOp) -> UOp:
        """Where the boxes have put a position and a k, both counted from their beginning."""
        column = add(multiply(k, line), modulo(position, line))
        return add(multiply(divide(position, line), line * line), column)

    def boxes(self, line: int, to: UOp, position: UOp, size: int, k: UOp) -> list[Box]:
        """The boxes of `size` positions from `position` on, and of one step of K, which is a line long."""
        found = []
        for i in range(0, size, line):
            places = {**self.axis.apart(add(position, index(i))), **self.k.apart(k)}
            first = tuple([substitute_index(at, places, {}) for at in self.at])
            found.append(Box(self.memory, 0, self.axes, self.counts, first, add(to, index(i * line))))
        return found


def window_factor(value: UOp, n: Sequence[UOp], k: Sequence[UOp], line: int) -> WindowFactor | None:
    """A factor as windows of an image with lines of so many elements; refuses (None) anything else."""
    gates: list[UOp] = []
    if value.op is o.WHERE and value.src[2].op is o.CONST and value.src[2].arg == 0:
        gates, value = _conjuncts(value.src[0]), value.src[1]
    if value.op is not o.LOAD or value.src[0].op is not o.PARAM or len(n) < 2:
        return None
    gates += _conjuncts(value.src[2]) if len(value.src) == 3 else []
    memory, whole = value.src[0], gpu.COPY_BYTES // value.dtype.itemsize
    shape = [size for size in memory.arg.shape if size > 1]
    strides = [count_from(shape, a + 1) for a in range(len(shape))]
    coordinates = _coordinates(value.src[1], strides)
    if coordinates is None or not 3 <= len(shape) <= gpu.COPY_AXES or any(s % whole for s in strides[:-1]):
        return None
    if not _gated_inside(coordinates, shape, gates):
        return None
    rows, columns = n[-2:]
    alone = [r for r in k if any(c == (0, {r: 1}) for c in coordinates)]         # channels: an axis has nothing else
    if len(alone) != 1 or alone[0].arg.size % line or coordinates[-1][1].get(columns) != 1:
        return None
    [channel] = alone
    if any(columns in terms or channel in terms and len(terms) > 1 for _, terms in coordinates[:-1]):
        return None
    pitch = -(-columns.arg.size // line) * line
    if pitch > MOST_PADDED * columns.arg.size:
        return None
    axis = FlatAxis([rows, columns], rows.arg.size * pitch, pitch)
    order = FlatAxis.of([*[r for r in k if r is not channel], channel])
    counts = [line if channel in terms else 1 for _, terms in coordinates[:-1]] + [line]
    at = [build(constant, terms) for constant, terms in coordinates]
    axes = [Axis(size, stride) for size, stride in zip(shape, strides)]
    return WindowFactor(memory, axis, order, tuple(axes[::-1]), tuple(at[::-1]), tuple(counts[::-1]))


def count_from(shape: Sequence[int], first: int) -> int:
    total = 1
    for size in shape[first:]:
        total *= size
    return total


Coordinate = tuple[int, Terms]


def _coordinates(at: UOp, strides: Sequence[int]) -> list[Coordinate] | None:
    """An index as one linear expression for each axis of a matrix; None where a loop goes along none of them."""
    constant, terms = linear(at)
    out: list[Coordinate] = []
    for stride in strides:
        own = {r: step // stride for r, step in terms.items() if abs(step) == stride and r.op is o.RANGE}
        moved = (2 * constant + stride) // (2 * stride)          # the nearest: padding is less than half an axis
        constant -= moved * stride
        out.append((moved, own))
    return out if sum(len(own) for _, own in out) == len(terms) else None


def _gated_inside(coordinates: list[Coordinate], shape: Sequence[int], gates: list[UOp]) -> bool:
    """Whether gates hold where all coordinates are inside their axis, and only there."""
    wanted = set()
    for (constant, terms), size in zip(coordinates, shape):
        ends = [k * (r.arg.size - 1) for r, k in terms.items()]
        if constant + sum(min(0, end) for end in ends) < 0:
            wanted.add((-constant - 1, frozenset((r, -k) for r, k in terms.items())))
        if constant + sum(max(0, end) for end in ends) >= size:
            wanted.add((constant - size, frozenset(terms.items())))
    found = set()
    for gate in gates:
        if gate.op is not o.CMPLT:
            return False
        (c, left), (d, right) = linear(gate.src[0]), linear(gate.src[1])
        terms = {r: left.get(r, 0) - right.get(r, 0) for r in {**left, **right}}
        found.add((c - d, frozenset((r, k) for r, k in terms.items() if k)))
    return found == wanted


def _conjuncts(gate: UOp) -> list[UOp]:
    """The conditions that a gate joins."""
    return [g for s in gate.src for g in _conjuncts(s)] if gate.op is o.AND else [gate]
