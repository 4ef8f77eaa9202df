"""Rows written by index, on a GPU. In: a loop that stores where an index says, in order. Out: loops for many groups.

What is added to one row must be added in order, so that every run gives the same bits; rows are independent. But which
rows are written is known only when the kernel runs. So each group of threads has some rows of its own, goes through all
indices, and does what is for its rows.

    for s: y[row[s], j] += x[s, j]    ->    TASK b: for s: if row[s] is one of b's rows: y[row[s], j] += x[s, j]
"""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, both, bounds, index, less, linear, multiply
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LOOP, TASK, For, If, Statement, Store, counter, ranges_of
from glassgrad.compiler.optimize.moves.steps import move
from glassgrad.compiler.optimize.targets.target import Target

GROUPS = 2             # of rows, for each group of threads that runs at once


@move(lambda loops, inner, *_: None)
def rows_apart(loops: list[For], inner: list[Statement], target: Target,
               lanes: int) -> tuple[For, list[Statement]] | None:
    """for j: for s: y[row[s], j] += ..  ->  for b: for j: for s: if b*size <= row[s] < (b + 1)*size: y[row[s], j] += ..

    Gives the loop over b, and what is inside the others.

    refuses (None): a loop of another form, few steps, or rows that depend on the outer loops
    """
    [loop] = inner if len(inner) == 1 else [None]
    if not isinstance(loop, For) or loop.kind != LOOP or len(loop.body) != 1 or \
            any(f.stop is not None for f in (*loops, loop)):
        return None
    [store] = loop.body
    if not isinstance(store, Store) or store.memory.op is o.LOCAL or loop.range.arg.size < lanes:
        return None
    row = _row(store.index, [f.range for f in loops])
    if row is None:
        return None
    rows = bounds(row)[1] + 1
    columns = loops[-1].range.arg.size if loops else 1
    size = -(-rows // max(1, GROUPS * target.few_tasks // -(-columns // lanes)))
    block = counter("b", -(-rows // size))
    first = multiply(block, size)
    owned = both(less(index(-1), add(row, multiply(first, -1))), less(row, add(first, index(size))))
    assert owned is not None
    return For(block, TASK, []), [For(loop.range, LOOP, [If(owned, [store])])]


def _row(at: UOp, outer: list[UOp]) -> UOp | None:
    """The one part of an index that is read from memory, where it has known bounds and no counter of the outer loops."""
    read = [atom for atom in linear(at)[1] if atom.op is not o.RANGE]
    if len(read) != 1 or any(r in ranges_of(read[0]) for r in outer) or bounds(read[0])[0] < 0:
        return None
    return read[0]
