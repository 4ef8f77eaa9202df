"""Flatten an image with a run-time row length to one axis of positions. In: a loop nest. Out: nests of blocks.

A convolution whose result is as large as its image reads position m + offset for position m, in every row: both are
stored row after row. So vectors go along all positions, and rows need no remainder of their own. The row m // width and
the column m % width of a lane's position tell whether it is at an edge of the image: a tap outside is not added.

Blocks at both ends of the memory mask their loads, since they may read outside of it, and positions past the last one.
The other blocks load whole vectors, and mask their multiply-adds, which costs nothing. For processors that have masks.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o
from glassgrad.compiler.graph.index_algebra import (add, divide, divide_up, index, less, multiply, operation,
                                                    size_index, substitute_index, times)
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.graph.symbolic import lengths_in, memory_size
from glassgrad.compiler.lower.loops import (TASK, For, Statement, counter, in_loops, load, loads_in, nodes_in,
                                            ranges_of, task_loops, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import gated
from glassgrad.compiler.optimize.moves.move_decorator import move
from glassgrad.compiler.optimize.product.recognize import count, recognize, stride_along, usual_stride
from glassgrad.compiler.optimize.product.register_tile.register_plan import RegisterPlan
from glassgrad.compiler.optimize.targets.target import Target

TALL = 8          # channels of the result from which a tile has two vectors of positions; with fewer, it has four


@move(lambda *_: None)
def flat_positions(body: list[Statement], target: Target) -> list[list[Statement]] | None:
    """TASK i: TASK j below w: r += x[i*w + j + t] if i + a < h and j + b < w
    ->  TASK m below h*w: r += x[m + t] if m // w + a < h and m % w + b < w
    ->  TASK b between the ends: TASK m in 32: r += x[32*b + m + t], where these hold
        TASK b at the ends: TASK m in 16: r += x[16*b + m + t] if these hold and 16*b + m < h*w

    For sums of products over an image. refuses (None): the last loop has no run-time bound; an image that is read at
    other distances than the result is written; images that register tiles would not read in place, with masks
    """
    loops, inner = task_loops(body)
    if target.groups or not target.has_masks or not loops or loops[-1].stop is None:
        return None
    *outer, positions = loops
    positions = For(positions.range, TASK, inner, positions.stop)
    rows = _flat_rows(outer[-1], positions) if outer else None
    if rows is not None:
        outer, positions = outer[:-1], rows
    product = recognize(in_loops([For(f.range, TASK, []) for f in (*outer, positions)], positions.body))
    if product is None or not product.m or not product.n:
        return None
    product, lanes = product.with_lanes_right(), target.lanes(product.total.dtype.itemsize)
    blocks = _PositionBlocks(outer, positions, lanes * (2 if count(product.m) >= TALL else 4))
    tiled = recognize(blocks.all())
    plan = None if tiled is None or not tiled.n else RegisterPlan.of(tiled.with_lanes_right(), target)
    return blocks.by_ends(product.right) if plan is not None and plan.reads_windows else None


def _flat_rows(rows: For, columns: For) -> For | None:
    """for i in a: for j below w: S[i*w + j] if gate(i, j)  ->  for m below a*w: S[m] if gate(m // w, m % w)
    refuses (None): other uses of i"""
    i, j, width = rows.range, columns.range, columns.stop
    assert width is not None
    m = counter(i.arg.name, i.arg.size * j.arg.size)
    apart = {i: UOp(o.IDIV, dtypes.index, (m, width)), j: UOp(o.MOD, dtypes.index, (m, width))}
    along = {j: add(m, multiply(times(i, width), -1))}
    reads = {n: load(n.src[0], substitute_index(n.src[1], along, {}), substitute_index(n.src[2], apart, {}))
             for n in loads_in(columns.body) if len(n.src) == 3}
    body = moves.rebuild(columns.body, {**reads, **along})
    if any(n is i for n in nodes_in(body)):
        return None
    return For(m, TASK, body, times(rows.stop or index(i.arg.size), width))


class _PositionBlocks:
    """Positions in blocks of `size`; builds their loops, and the loops around them."""

    def __init__(self, outer: list[For], positions: For, size: int):
        assert positions.stop is not None
        self.outer, self.positions, self.stop, self.size = outer, positions, positions.stop, size
        name, self.number = positions.range.arg.name, divide_up(positions.stop, size)
        self.block = counter(name + "b", -(-positions.range.arg.size // size))
        self.inside = counter(name, size)

    def all(self) -> list[Statement]:
        """All blocks; nothing is read or stored past the last position."""
        return self.masked(self.block, self.number)

    def by_ends(self, image: UOp) -> list[list[Statement]]:
        """The blocks that read whole vectors, and those at the ends, of half the size; if ends are unknown, all
        blocks."""
        ends = self.ends(image)
        if ends is None:
            return [self.all()]
        first, last = ends
        whole = load(*image.src[:2])
        whole = image.src[2].where(whole, const(0, image.dtype)) if len(image.src) == 3 else whole
        body = moves.rebuild(self.positions.body, {image: whole})
        between = self.nest(add(first, self.block), add(last, multiply(first, -1)), body)
        half = _PositionBlocks(self.outer, self.positions, self.size // 2)
        # first blocks after the last ones
        after = UOp(o.MOD, dtypes.index, (add(half.block, multiply(last, 2)), half.number))
        return [between, half.masked(after, add(half.number, multiply(add(first, multiply(last, -1)), 2)))]

    def masked(self, number: UOp, times: UOp) -> list[Statement]:
        """This many blocks, each with this number, none of which goes past the last position."""
        gate = less(self.positions.range, self.stop)
        body = gated(self.positions.body, gate, {}, [self.positions.range])
        return self.nest(number, times, body)

    def nest(self, number: UOp, times: UOp, body: list[Statement]) -> list[Statement]:
        """This many blocks, each with this number."""
        body = moves.rebuild(body, {self.positions.range: add(multiply(number, self.size), self.inside)})
        return in_loops([For(self.block, TASK, [], times), *self.outer, For(self.inside, TASK, [])], body)

    def ends(self, image: UOp) -> tuple[UOp, UOp] | None:
        """The first block whose taps are all inside the memory of the image, and the one after the last of these; None
        if the memory's size is unknown."""
        memory, at, position = image.src[0], image.src[1], self.positions.range
        inside = [*self.outer, *[f for f in walk(self.positions.body) if isinstance(f, For)]]
        values = {n.arg.symbol: n for n in nodes_in([*inside, self.positions]) if isinstance(n.arg, Measure)}
        size = math.prod(map(memory_size, memory.shape)) if memory.op is o.PARAM else None
        if size is None or any(symbol not in values for length in lengths_in(size) for symbol in length.symbols):
            return None
        least, most = {position: index(0)}, {position: index(0)}
        for loop in [f for f in inside if f.range in ranges_of(at)]:
            last = add(loop.stop or index(loop.range.arg.size), index(-1))
            least[loop.range], most[loop.range] = (index(0), last) if (usual_stride(at, loop.range) or 0) >= 0 else \
                (last, index(0))
        before, step = multiply(substitute_index(at, least, {}), -1), stride_along(at, position) or 1
        after = add(size_index(size, values), multiply(substitute_index(at, most, {}), -1))
        first = divide_up(operation(o.MAX, before, index(0)), step * self.size)
        last = operation(o.MIN, self.stop, divide(add(after, index(step - 1)), step))
        return first, operation(o.MAX, divide(last, self.size), first)
