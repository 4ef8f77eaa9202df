"""Arrays with named axes. In: NumPy arrays and the ranges of their axes. Out: arrays aligned by axis.

The loop interpreter computes with these: the range that an axis stands for, not its position, decides which elements
are combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from glassgrad.compiler.check.graph_interpreter import array_type, evaluate
from glassgrad.compiler.graph import DType, UOp, identity
from glassgrad.compiler.graph.ops import Op

Array = np.ndarray
Axis = Any              # a name: any hashable object


class Wide(NamedTuple):
    """An array and the names of its axes, in the order of its `NamedAxes`."""
    array: Array
    axes: tuple[Axis, ...] = ()


class NamedAxes:
    """Every axis seen so far, in the order of first use, so that aligning never transposes."""

    def __init__(self) -> None:
        self.order: dict[Axis, int] = {}

    def align(self, values: Sequence[Wide]) -> tuple[list[Array], tuple[Axis, ...]]:
        """The arrays with the union of their axes, of size 1 where an array did not have one."""
        first = values[0].axes
        if all(v.axes == first for v in values):
            return [v.array for v in values], first
        for v in values:
            for axis in v.axes:
                self.order.setdefault(axis, len(self.order))
        axes = tuple(sorted({a for v in values for a in v.axes}, key=self.order.__getitem__))
        arrays = []
        for v in values:
            sizes = dict(zip(v.axes, v.array.shape))
            arrays.append(v.array.reshape([sizes.get(a, 1) for a in axes]))
        return arrays, axes

    def broadcast(self, value: Wide, sizes: dict[Axis, int]) -> Wide:
        """The value with these axes at their full size: a constant in a register of 16 lanes becomes 16 values."""
        missing = [Wide(np.empty(n, np.bool_), (a,)) for a, n in sizes.items() if a not in value.axes]
        if not missing:
            return value
        arrays, axes = self.align([value, *missing])
        return Wide(np.broadcast_arrays(*arrays)[0], axes)

    def both(self, x: Wide | None, y: Wide | None) -> Wide | None:
        """The AND of two masks; None is a mask that holds everywhere."""
        if x is None or y is None:
            return y if x is None else x
        return self.apply(np.logical_and, x, y)

    def apply(self, function: Callable[..., Any], *values: Wide) -> Wide:
        """Apply a NumPy function to values, element by element."""
        arrays, axes = self.align(values)
        return Wide(np.asarray(function(*arrays)), axes)


def any_over(mask: Wide, keep: Iterable[Axis]) -> Wide:
    """Reduce a mask by any() over the axes that are not kept."""
    keep = list(keep)
    gone = tuple(i for i, a in enumerate(mask.axes) if a not in keep)
    return Wide(np.asarray(mask.array.any(axis=gone)), tuple(a for a in mask.axes if a in keep)) if gone else mask


def last(value: Wide, axis: Axis) -> Wide:
    """The value at the end of an axis; unchanged if it does not have that axis."""
    if axis not in value.axes:
        return value
    at = value.axes.index(axis)
    return Wide(value.array.take(-1, at), value.axes[:at] + value.axes[at + 1:])


def fold(value: Wide, node: UOp, tiles: Sequence[Axis], lanes: Sequence[Axis]) -> Wide:
    """Reduce the value over some axes by `node`, a binary op.

    Tiles first, in pairs and pairs of pairs; then lanes, the upper half onto the lower half, as compiled kernels do.
    """
    for group, pair in ((tiles, _neighbours), (lanes, _halves)):
        if group:
            rest = tuple(a for a in value.axes if a not in group)
            moved = value.array.transpose([value.axes.index(a) for a in (*group, *rest)])
            rows = list(moved.reshape(-1, *moved.shape[len(group):]))
            while len(rows) > 1:
                rows = [evaluate(np, node, p) if len(p) == 2 else p[0] for p in pair(rows)]
            value = Wide(np.asarray(rows[0]), rest)
    return value


def constant(node: UOp) -> Wide:
    """The value of a CONST, the same for all iterations."""
    return Wide(np.asarray(node.arg, array_type(node.dtype)))


def binary(combine: Op, dtype: DType) -> UOp:
    """A node of `combine` over two values of a type."""
    nothing = identity(combine, dtype)
    return UOp(combine, dtype, (nothing, nothing))


def _neighbours(rows: list[Array]) -> list[list[Array]]:
    return [rows[i:i + 2] for i in range(0, len(rows), 2)]


def _halves(rows: list[Array]) -> list[list[Array]]:
    half = len(rows) // 2
    return [*[[rows[i], rows[half + i]] for i in range(half)], *[[r] for r in rows[2 * half:]]]
