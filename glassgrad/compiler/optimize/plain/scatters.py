"""Rows written by index, on a GPU. In: a loop that stores where an index says, in order. Out: loops for many groups.

What is added to one row must be added in order, so that every run gives the same bits; rows are independent. But which
rows are written is known only when the kernel runs. So each group of threads has some rows of its own, goes through all
indices, and does what is for its rows.

    for s: y[row[s], j] += x[s, j]    ->    TASK b: for s: if row[s] is one of b's rows: y[row[s], j] += x[s, j]

Several indices are read before the first is used, because a thread waits for each of these reads.
"""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import add, both, bounds, index, less, linear, multiply, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import (LOOP, TASK, TILE, Assign, For, If, Statement, Store, counter, ranges_of,
                                            register)
from glassgrad.compiler.optimize.moves.loop_moves import nested, one, pieces, rebuild
from glassgrad.compiler.optimize.moves.steps import move
from glassgrad.compiler.optimize.targets.target import Target

GROUPS = 2             # of rows, for each group of threads that runs at once
READ_AT_ONCE = 16      # indices,
FEW_NODES = 40         # where what is stored and where has at most so many: it is written out as often


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
    body: list[Statement] = []
    at_once = READ_AT_ONCE if len(toposort([store.index, store.value])) <= FEW_NODES else 1
    for start, count, together in pieces(loop.range.arg.size, at_once):
        outer, each = counter(loop.range.arg.name, count), counter(loop.range.arg.name + "u", together)
        at = add(index(start), add(multiply(one(outer), at_once), one(each)))
        found = register("row", dtypes.index, (each,) if together > 1 else ())
        [moved] = rebuild([store], {loop.range: at})
        read = substitute_index(row, {loop.range: at}, {})
        assert isinstance(moved, Store)
        known = found.maximum(0).minimum(index(rows - 1))                    # a register alone has no bounds
        [moved] = rebuild([moved], {read: known})
        owned = both(less(index(-1), add(known, multiply(first, -1))), less(known, add(first, index(size))))
        assert owned is not None
        steps: list[Statement] = [Assign(found, read), If(owned, [moved])]
        body += nested([outer], nested([each], steps, TILE), LOOP)
    return For(block, TASK, []), body


def _row(at: UOp, outer: list[UOp]) -> UOp | None:
    """The one part of an index that is read from memory, if it has known bounds and no counter of the outer loops."""
    read = [atom for atom in linear(at)[1] if atom.op is not o.RANGE]
    if len(read) != 1 or any(r in ranges_of(read[0]) for r in outer) or bounds(read[0])[0] < 0:
        return None
    return read[0]
