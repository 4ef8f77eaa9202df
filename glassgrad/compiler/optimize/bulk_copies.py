"""Copy factors as boxes, into lines that a matrix unit reads. In: a factor of one block. Out: its boxes, and where they
put each element; the loops that store the factor first, if it cannot be copied from where it is.

A box is a part of a matrix in memory with one contiguous axis, whose other strides and offset are multiples of 16
bytes. Copies fill in zeros outside the matrix, so a gate that says where rows or keys end becomes the matrix's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import (add, all_of, below_limit, bounds, build, index, linear, multiply,
                                                    substitute_index, value_in)
from glassgrad.compiler.lower.group_statements import Axis, Box
from glassgrad.compiler.lower.loops import Statement, counter, load, ranges_of
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.gpu_matrix_unit.copied_factors import line_of, packed, place_in_lines
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit


class Extent(NamedTuple):
    """An axis of a factor."""
    block: int               # elements in one block
    number: UOp | None       # number of the block, if a gate says where the axis ends
    whole: int               # elements in total
    stop: UOp | None = None  # its run-time bound, if it has one


@dataclass
class BoxedTile:
    """A factor's part of a block, as boxes of a matrix in memory: lines along k, or across it."""
    source: UOp
    offset: int
    along_k: bool
    line: int                             # elements per line in shared memory
    inside: Extent                        # along a line
    lines: Extent                         # across lines
    pitch: int                            # from one line to the next
    outer: list[tuple[UOp, int]]          # other counters in the index, with their strides
    depth: int                            # elements along k, in whole steps of the unit
    before: list[Statement]               # the loops that first store it there, if needed

    @staticmethod
    def stored(name: str, value: UOp, axis: FlatAxis, k: FlatAxis, outer: list[UOp], unit: MatrixUnit,
               along_k: bool) -> BoxedTile:
        """The tile of a factor that is first stored to memory."""
        line, depth = line_of(unit), -(-k.size // unit.depth) * unit.depth
        factor = packed(name, value, axis, k, outer, line, along_k)
        inner, other = (k, axis) if factor.along_k else (axis, k)
        return BoxedTile(factor.memory, 0, factor.along_k, line, Extent(inner.size, None, inner.size),
                         Extent(other.size, None, other.size), factor.pitch, factor.outer, depth, factor.before)

    @staticmethod
    def of(value: UOp, axis: FlatAxis, k: FlatAxis, unit: MatrixUnit) -> BoxedTile | None:
        """The tile of a factor that can be copied from where it is; None if it is computed, or has another layout."""
        if value.op is not o.LOAD or value.src[0].op is not o.PARAM:
            return None
        position, step = counter("position", axis.size), counter("step", k.size)
        apart = {**axis.indices(position), **k.indices(step)}
        offset, terms = linear(substitute_index(value.src[1], apart, {}))
        ends = {c: Extent(c.arg.size, None, c.arg.size) for c in (position, step)}
        for gate in all_of(value.src[2]) if len(value.src) > 2 else []:
            found = _bound_of_gate(substitute_index(gate, apart, {}), terms, position, step)
            if found is None:
                return None
            ends[found[0]] = found[1]
        along_k = terms.get(step) == 1
        inner, other = (step, position) if along_k else (position, step)
        joined = {atom for extent in ends.values() if extent.number is not None for atom in linear(extent.number)[1]}
        outer = _merge_axes([(atom, stride) for atom, stride in terms.items() if atom not in {position, step, *joined}])
        whole = gpu.COPY_BYTES // value.dtype.itemsize
        pitch = terms.get(other, 0) or (whole if ends[other].whole == 1 else 0)  # for a single line, any pitch will do
        strides = [pitch, *[stride for _, stride in outer]]
        if terms.get(inner) != 1 or offset % whole or any(s <= 0 or s % whole for s in strides) or \
                len(outer) > gpu.COPY_AXES - 2 or any(bounds(atom)[0] < 0 for atom, _ in outer):
            return None
        depth = -(-k.size // unit.depth) * unit.depth
        return BoxedTile(value.src[0], offset, along_k, line_of(unit), ends[inner], ends[other], pitch, outer, depth,
                         [])

    def has_same_boxes(self, other: BoxedTile) -> bool:
        """Whether both tiles are copies of the same boxes, though perhaps read along different axes."""
        mine, others = ((t.source, t.offset, t.inside, t.lines, t.pitch, t.outer, t.rows) for t in (self, other))
        return mine == others and not self.before

    @property
    def rows(self) -> int:
        """Lines per box."""
        return self.lines.block if self.along_k else self.depth

    @property
    def size(self) -> int:
        """Elements in shared memory."""
        return -(-self.inside.block // self.line) * self.line * self.rows

    def boxes(self, to: UOp, block: dict[UOp, UOp]) -> list[Box]:
        """The boxes to copy for a block."""
        around = tuple([Axis(bounds(atom)[1] + 1, stride) for atom, stride in self.outer])
        at = tuple([substitute_index(atom, block, {}) for atom, _ in self.outer])
        axes = (Axis(self.inside.whole, 1, self.inside.stop), Axis(self.lines.whole, self.pitch, self.lines.stop),
                *around)
        along, across = (index(0) if e.number is None else multiply(substitute_index(e.number, block, {}), e.block)
                         for e in (self.inside, self.lines))
        counts = (self.line, self.rows, *[1] * len(around))
        return [Box(self.source, self.offset, axes, counts, (add(along, index(i)), across, *at),
                    add(to, index(i * self.rows))) for i in range(0, self.inside.block, self.line)]

    def index_of(self, position: UOp, k: UOp) -> UOp:
        """The offset in shared memory of a position and a k of the block."""
        return place_in_lines(self.line, self.rows, *((k, position) if self.along_k else (position, k)))


@dataclass
class PlacedTile:
    """A boxed tile at an offset in shared memory."""
    tile: BoxedTile
    memory: UOp
    begin: UOp

    @property
    def depth(self) -> int:
        return self.tile.depth

    def at(self, position: UOp, k: UOp) -> UOp:
        return load(self.memory, add(self.begin, self.tile.index_of(position, k)))


def _merge_axes(outer: list[tuple[UOp, int]]) -> list[tuple[UOp, int]]:
    """Indices with their strides; if there are more than a copy has axes for, two are merged where one continues the
    other."""
    for a, (atom, stride) in enumerate(outer if len(outer) > gpu.COPY_AXES - 2 else ()):
        for b, (inner, step) in enumerate(outer):
            size = bounds(inner)[1] + 1
            if a != b and stride == step * size and bounds(inner)[0] == 0:
                others = [pair for i, pair in enumerate(outer) if i not in (a, b)]
                return _merge_axes([*others, (add(multiply(atom, size), inner), step)])
    return outer


def _bound_of_gate(gate: UOp, terms: dict[UOp, int], position: UOp, step: UOp) -> tuple[UOp, Extent] | None:
    """The axis that a gate bounds, and its extent; None if the gate has another form."""
    found = below_limit(gate)
    if found is None:
        return None
    inside, limit = found
    stop = build(limit, {atom: -k for atom, k in inside.items() if not ranges_of(atom)})
    if stop.op is not o.CONST and value_in(stop) is None:
        return None
    inside = {atom: k for atom, k in inside.items() if ranges_of(atom)}
    end = bounds(stop)[1], None if stop.op is o.CONST else stop
    axes = [c for c in (position, step) if c in inside]
    if len(axes) != 1:
        return None
    [axis] = axes
    others, size = {atom: k for atom, k in inside.items() if atom is not axis}, axis.arg.size
    if inside[axis] != 1 or any(k < 0 or k % size or terms.get(atom) != terms.get(axis, 0) * k
                                for atom, k in others.items()):
        return None
    block = build(0, {atom: k // size for atom, k in others.items()}) if others else None
    return axis, Extent(size, block, *end)
