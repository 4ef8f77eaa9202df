"""Prepare factors for bulk copies to shared memory. In: a factor, its axes. Out: boxes to copy, loops that run before.

A factor that is a matrix in memory, with one contiguous axis and lines aligned to 16 bytes, is copied from there. Any
other factor (computed, masked) is first stored in padded lines. Does not know units or tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (Terms, add, both, divide, index, linear, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.lower.group_statements import Axis, Box
from glassgrad.compiler.lower.loops import (LANE, TASK, TILE, Assign, For, Statement, Store, counter, current,
                                            flat_index, local, loops_around, nested, ranges_of, register_over)
from glassgrad.compiler.optimize.moves.gates import below, zero_outside
from glassgrad.compiler.optimize.plain.transposed_copies import CopyAcross
from glassgrad.compiler.optimize.product.conv_line_copies import LineAxis
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import count, to_neighbour
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit


class Digit(NamedTuple):
    """A digit of a flat counter with a stride of its own: counter // begin % size."""
    begin: int
    size: int
    stride: int


@dataclass
class Factor:
    """A factor as a matrix in memory with one contiguous axis: K, or its own axis (M or N). Both axes may be split into
    several strides, as heads are; then these are further axes of its boxes."""
    memory: UOp
    offset: int
    axis: FlatAxis
    k: FlatAxis
    along_k: bool
    own: list[Digit]                      # the digits of its own axis, smallest stride first,
    sum: list[Digit]                      # and those of K
    outer: list[tuple[UOp, int]]          # other loops that it depends on, with its stride along each: those around
                                                                                    # everything; and for a padded K,
                                                                                    # all except the last
    before: list[Statement]               # the loops that first store it there, if needed

    @property
    def pitch(self) -> int:
        """Elements from one line to the next."""
        return (self.own if self.along_k else self.sum)[0].stride

    @property
    def in_two_lines(self) -> bool:
        """Whether a copied line may straddle two cache lines."""
        strides = [self.pitch, *[d.stride for d in (*self.own[1:], *self.sum[1:])]]
        return any(s * self.memory.dtype.itemsize % gpu.CACHE_LINE for s in strides)

    def lines(self, line: int, size: int) -> int:
        """Lines of one box of a tile with `size` positions: no more than the axis has, rounded up."""
        if not self.along_k:
            return line
        if len(self.own) > 1:
            return math.gcd(size, self.own[0].size)
        return min(size, -(-self.axis.size // gpu.PERMUTED) * gpu.PERMUTED)

    def boxes(self, line: int, to: UOp, position: UOp, size: int, k: UOp) -> list[Box]:
        """The boxes of `size` positions from `position` on, for one step of K, which is one line long."""
        padded = self.k.indices(k) if self.k.pitch else {}
        k = padded.get(self.k.parts[-1], k)
        outer = [(Axis(r.arg.size, stride), padded.get(r, r)) for r, stride in self.outer]
        at_once = self.lines(line, size)
        if self.along_k and len(self.own) == 1:
            size = at_once
        found = []
        for i in range(0, size, at_once):
            own, sums = _along(self.own, add(position, index(i)), self.axis), _along(self.sum, k, self.k)
            first, second = (sums, own) if self.along_k else (own, sums)
            sides = [first[0], second[0], *first[1:], *second[1:], *outer]
            counts = (line, at_once, *[1] * (len(sides) - 2))
            found.append(Box(self.memory, self.offset, tuple([axis for axis, _ in sides]), counts,
                             tuple([at for _, at in sides]), add(to, index(i * line))))
        return found


def in_place(value: UOp, axis: FlatAxis, k: FlatAxis, outer: Sequence[UOp], line: int) -> Factor | None:
    """A factor that can be copied from where it is: a matrix with one contiguous axis whose other strides and offset
    are multiples of 16 bytes; its axes have one stride each, or are split at whole lines. None for others."""
    if value.op is not o.LOAD or len(value.src) != 2 or value.src[0].op is not o.PARAM or isinstance(k, LineAxis):
        return None
    position, step = counter("position", axis.size), counter("step", k.row)
    places = {**axis.indices(position), **({k.parts[-1]: step} if k.pitch else k.indices(step))}
    offset, terms = linear(substitute_index(value.src[1], places, {}))
    used = [r for r in (*outer, *(k.parts[:-1] if k.pitch else ())) if r in terms]
    own, sums = digits(terms, position, line), digits(terms, step, line)
    if not own or not sums or len(own) + len(sums) + len(used) < len(terms) or len(terms) > gpu.COPY_AXES:
        return None
    along_k = sums[0].stride == 1
    if not along_k and own[0].stride != 1:
        return None
    whole = gpu.COPY_BYTES // value.dtype.itemsize
    found = Factor(value.src[0], offset, axis, k, along_k, own, sums, [(r, terms[r]) for r in used], [])
    strides = [found.pitch, *[d.stride for d in (*own[1:], *sums[1:])], *[terms[r] for r in used]]
    return None if offset % whole or any(s <= 0 or s % whole for s in strides) else found


def digits(terms: Terms, whole: UOp, line: int) -> list[Digit]:
    """The digits of a counter in an index: the counter itself, or its quotients and remainders, if together they cover
    it and are split at whole lines; empty for others."""
    found = []
    for atom, stride in terms.items():
        inner, begin, size = atom, 1, whole.arg.size
        if inner.op is o.MOD and inner.src[1].op is o.CONST:
            inner, size = inner.src[0], inner.src[1].arg
        if inner.op is o.IDIV and inner.src[1].op is o.CONST:
            inner, begin = inner.src[0], inner.src[1].arg
        if inner is whole:
            found.append(Digit(begin, min(size, -(-whole.arg.size // begin)), stride))
    found.sort()
    ends = [d.begin * d.size for d in found]
    follow = [d.begin for d in found] == [1, *ends[:-1]] and ends[-1] >= whole.arg.size if found else False
    return found if follow and all(end % line == 0 for end in ends[:-1]) else []


def _along(parts: list[Digit], at: UOp, axis: FlatAxis) -> list[tuple[Axis, UOp]]:
    """The axes of a box along a counter, and where the box begins on each; on the last, maybe past the end."""
    places = [divide(at, d.begin) for d in parts]
    inside = [modulo(place, d.size) for place, d in zip(places[:-1], parts)]
    stops = [*[None] * len(inside), axis.pieces(parts[-1].begin)]
    return [(Axis(d.size, d.stride, stop), place) for d, place, stop in zip(parts, [*inside, places[-1]], stops)]


def packed(name: str, value: UOp, axis: FlatAxis, k: FlatAxis, outer: Sequence[UOp], line: int, must_follow_k: bool) \
        -> Factor:
    """A factor that is first stored in padded lines: along its contiguous axis; or, if `must_follow_k`, along k, for
    which it may have to be transposed, in blocks."""
    dtype = value.dtype
    reads = [n.src[1] for n in toposort([value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
    whole = [at for at in reads if not ranges_of(at).isdisjoint(k.parts) and not ranges_of(at).isdisjoint(axis.parts)]
    reads = whole or reads                                        # without loads that are broadcast along an axis
    along_k = any(to_neighbour(at, k.parts[-1]) == 1 for at in reads) and \
        not any(to_neighbour(at, axis.parts[-1]) == 1 for at in reads)
    across = must_follow_k and not along_k                        # the copy transposes it
    along_k = along_k or must_follow_k
    lines, inner = (axis, k) if along_k else (k, axis)
    used = [r for r in outer if r in ranges_of(value)]
    pitch = -(-inner.size // line) * line
    memory = local(name, dtype, count(used) * lines.size * pitch, "shared")

    def copy(at_line: UOp, at: UOp, gate: UOp | None) -> tuple[UOp, UOp]:
        """The index at which an element is stored, and the element: zero where the gate is false, and in padding."""
        to = add(multiply(add(multiply(flat_index(used), lines.size), at_line), pitch), at)
        inside = both(gate, k.gate(at if along_k else at_line))
        return to, zero_outside(substitute_index(value, {**lines.indices(at_line), **inner.indices(at)}, {}), inside)

    at_line, at = counter("pl", lines.size), counter("pk", inner.size)
    blocks = CopyAcross.of(loops_around([*used, at_line, at], [Store(memory, *copy(at_line, at, None))], TASK))
    strides = [count(used[i + 1:]) * lines.size * pitch for i in range(len(used))]
    stored_k = FlatAxis(k.parts, k.size)                          # a padded K is stored with its padding
    own, sums = ([Digit(1, of.size, pitch if of is lines else 1)] for of in (axis, k))
    stored = Factor(memory, 0, axis, stored_k, along_k, own, sums, list(zip(used, strides)), [])
    if blocks is not None:
        return replace(stored, before=blocks.blocks())
    plain = value.op is o.LOAD and len(value.src) == 2            # otherwise loads are scalar
    most = 1 if across else gpu.COPY_BYTES // dtype.itemsize if plain else 2
    piece = next(n for n in (8, 4, 2, 1) if n <= most and inner.parts[-1].arg.size % n == 0)
    rows = gpu.SECTOR // dtype.itemsize if across else gpu.PACK_ROWS // max(1, piece // 2)
    before = _in_rows(memory, used, (lines.size, inner.size), rows, piece, copy)
    return replace(stored, before=before)


def _in_rows(memory: UOp, used: list[UOp], size: tuple[int, int], rows_at_once: int, piece: int,
             copy: Callable[[UOp, UOp, UOp | None], tuple[UOp, UOp]]) -> list[Statement]:
    """The loops that store lines: a thread stores a piece of each of several lines, a group several short lines."""
    lines, inner = size
    per_line = min(gpu.PACK_LANES, -(-inner // piece))            # threads per line
    while rows_at_once > 1 and count(used) * lines * inner < gpu.PACK_GROUPS * gpu.PACK_LANES * piece * rows_at_once:
        rows_at_once //= 2                                        # more groups, whose threads wait for fewer loads
    at_once = rows_at_once * (gpu.PACK_LANES // per_line)
    some, block = counter("p", -(-lines // at_once)), counter("pb", -(-inner // (per_line * piece)))
    rows, each, lane = counter("pr", rows_at_once), counter("pe", piece), counter("l", gpu.PACK_LANES)
    in_group = add(multiply(divide(lane, per_line), rows_at_once), current(rows))
    at_line = add(multiply(current(some), at_once), in_group)
    begin = multiply(add(multiply(current(block), per_line), modulo(lane, per_line)), piece)
    gate = both(below(at_line, lines), below(begin, inner))
    gate = both(gate, below(in_group, at_once))
    to, value = copy(at_line, add(begin, current(each)), gate)
    held = register_over(f"{memory.arg.name}_next", memory.dtype, (rows, each, lane))
    body: list[Statement] = [Assign(held, value), Store(memory, to, held, None, gate)]  # all loads before the stores
    return nested([*used, some, block], nested([rows, each], [For(lane, LANE, body)], TILE), TASK)


def line_of(unit: MatrixUnit) -> int:
    """Elements in one line of memory that the unit reads: the step of K."""
    assert unit.lines is not None
    return unit.lines.line_bytes // unit.left.itemsize


def place_in_lines(line: int, lines: int, along: UOp, across: UOp) -> UOp:
    """The offset of an element in boxes of this many lines, from its position along a line and its line's number."""
    within = add(multiply(across, line), modulo(along, line))
    return add(multiply(divide(along, line), line * lines), within)
