"""Positions of an image as one axis, where its rows have a run-time length. In: a loop nest. Out: a nest of blocks.

A convolution whose result is as large as its image reads position m + offset for position m, in every row: both lie row
after row in memory. So vectors go along all positions, and no row has a remainder of its own. Which lanes are at an
edge of the image follows from the row and the column of each, m // width and m % width: a tap is masked there, and so
is what is past the last position. For processors on which masks cost little.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, dtypes, ops as o
from glassgrad.compiler.graph.index_algebra import add, divide_up, index, less, multiply, substitute_index, times
from glassgrad.compiler.lower.loops import (TASK, For, Statement, around, counter, load, loads_in, nodes_in, ranges_of,
                                            task_loops)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import gated
from glassgrad.compiler.optimize.moves.move_decorator import move
from glassgrad.compiler.optimize.product.recognize import count, recognize
from glassgrad.compiler.optimize.product.register_tile.register_plan import RegisterPlan
from glassgrad.compiler.optimize.targets.target import Target

TALL = 8          # channels of the result from which a tile has two vectors of positions; of fewer, it has four


@move(lambda *_: None)
def flat_positions(body: list[Statement], target: Target) -> list[Statement] | None:
    """TASK i: TASK j below w: S[i*w + j] if i + a < h and j + b < w
    ->  TASK m below h*w: S[m] if m // w + a < h and m % w + b < w
    ->  TASK b below ceil(h*w / 32): TASK m in 32: S[32*b + m] if these hold and 32*b + m < h*w

    For sums of products over a padded image. refuses (None): the last loop has no run-time bound; an image that is read
    at other distances than the result is written; what register tiles do not read in place, with masks
    """
    loops, inner = task_loops(body)
    if target.groups or not target.has_masks or not loops or loops[-1].stop is None:
        return None
    *outer, last = loops
    last = For(last.range, TASK, inner, last.stop)
    rows = _flat_rows(outer[-1], last) if outer else None
    if rows is not None:
        outer, last = outer[:-1], rows
    product = recognize(around([For(f.range, TASK, []) for f in (*outer, last)], last.body))
    if product is None or not product.m or not product.n:
        return None
    channels, lanes = count(product.with_lanes_right().m), target.lanes(product.total.dtype.itemsize)
    nest = _in_blocks(outer, last, lanes * (2 if channels >= TALL else 4))
    tiled = recognize(nest)
    plan = None if tiled is None or not tiled.n else RegisterPlan.of(tiled.with_lanes_right(), target)
    return nest if plan is not None and plan.reads_windows else None


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


def _in_blocks(outer: list[For], positions: For, size: int) -> list[Statement]:
    """The nest with the positions in blocks of `size`, past whose last one nothing is read or stored."""
    name, stop = positions.range.arg.name, positions.stop
    assert stop is not None
    block, inside = counter(name + "b", -(-positions.range.arg.size // size)), counter(name, size)
    at = add(multiply(block, size), inside)
    body = moves.rebuild(positions.body, {positions.range: at})
    body = gated(body, less(at, stop), {}, ranges_of(at))
    return around([For(block, TASK, [], divide_up(stop, size)), *outer, For(inside, TASK, [])], body)
