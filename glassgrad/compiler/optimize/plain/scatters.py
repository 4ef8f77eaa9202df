"""Rows written by index, on a GPU. In: a loop that stores where an index says, in order. Out: loops for many groups.

What is added to one row must be added in order, so that every run gives the same bits; rows are independent. But which
rows are written is known only when the kernel runs. So each group of threads has some rows of its own. Its threads look
through the indices together and list those of the group's rows: a running total of how many were found (scans.py) says
where in the list each of them belongs, so the list is in order. Then the group does what is listed.

    for s: y[row[s], j] += x[s, j]    ->    TASK b: for blocks of s: list = [s where row[s] is one of b's rows]
                                                for i < length of list: LANE j: y[row[list[i]], j] += x[list[i], j]
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.compiler.graph import UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, both, bounds, divide, index, less, linear, multiply,
                                                    substitute_index)
from glassgrad.compiler.lower.loops import (LOOP, TASK, Assign, For, Statement, Store, counter, load, local, ranges_of,
                                            register, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import left_of, loops_around, one, rebuild
from glassgrad.compiler.optimize.moves.move_limit import move
from glassgrad.compiler.optimize.plain.scans import MOST_LANES, TILE, GroupScan, RunningTotal
from glassgrad.compiler.optimize.targets.target import Target

GROUPS = 4             # with rows of their own, for each group of threads that runs at once
LISTED = 2 * TILE * MOST_LANES     # indices that are looked through at a time: so many may be listed
MOST_TILE = 4          # columns of a thread
READ_AHEAD = 4         # of those that are listed
FEWEST = 8             # indices; fewer are done in turn


@move(lambda loops, inner, *_: None)
def rows_apart(loops: list[For], inner: list[Statement], target: Target, lanes: int) -> list[Statement] | None:
    """for j: for s: y[row[s], j] += ..  ->  TASK b: for blocks of s: list those of b's rows; for each: for j: y[..] +=

    refuses (None): a loop of another form, few steps, few rows, or rows that depend on the outer loops
    """
    [loop] = inner if len(inner) == 1 else [None]
    if not isinstance(loop, For) or loop.kind != LOOP or len(loop.body) != 1 or \
            any(f.stop is not None for f in (*loops, loop)):
        return None
    [store] = loop.body
    if not isinstance(store, Store) or store.memory.op is o.LOCAL or loop.range.arg.size < FEWEST:
        return None
    row = _row(store.index, [f.range for f in loops])
    if row is None:
        return None
    columns = loops[-1].range.arg.size if loops else 1
    tile = min(MOST_TILE, -(-columns // lanes))
    pieces = -(-columns // (tile * lanes))                       # of a row, each done by other groups
    rows = bounds(row)[1] + 1
    size = -(-rows // max(1, GROUPS * target.few_tasks // pieces))
    block, part = counter("b", -(-rows // size)), counter(loop.range.arg.name + "p", -(-loop.range.arg.size // LISTED))
    owned = both(less(index(-1), add(row, multiply(one(block), -size))),
                 less(row, multiply(add(one(block), index(1)), size)))
    if owned is None:                                            # all rows are one group's
        return None
    around = [f.range for f in loops[:-1]]
    if not loops:
        return loops_around([block], _listed(loop, store, owned, part, row, lambda stores: stores), TASK)
    split = moves.tasks(For(loops[-1].range, LOOP, [store]), pieces)
    column = split.body[0] if pieces > 1 else split
    assert isinstance(column, For) and isinstance(column.body[0], Store)

    def along_columns(stores: list[Statement]) -> list[Statement]:
        return moves.wide(For(column.range, LOOP, stores, column.stop), tile, lanes)
    body = _listed(loop, column.body[0], owned, part, row, along_columns)
    return loops_around([block, *around, *([split.range] if pieces > 1 else [])], body, TASK)


def _listed(loop: For, store: Store, owned: UOp, part: UOp, row: UOp,
            wide: Callable[[list[Statement]], list[Statement]]) -> list[Statement]:
    """for s: S  ->  for parts of s: list = the owned of them; for i < length of list: S[s = list[i]]"""
    n, whole = min(loop.range.arg.size, LISTED), loop.range.arg.size
    inside, total = counter(loop.range.arg.name, n), register("found", dtypes.index)
    names = local("listed", dtypes.int32, n)
    at = add(multiply(one(part), n), inside)
    here = substitute_index(owned, {loop.range: at}, {})
    scan = RunningTotal(total, index(0), For(inside, LOOP, [], left_of(whole, n, part)), o.ADD,
                        here.where(index(1), index(0)),
                        [Store(names, add(total, index(-1)).maximum(0), inside.cast(dtypes.int32), None, here)])
    body = [*GroupScan(scan, TILE, MOST_LANES).statements(),
            *_in_turn(store, loop.range, part, names, total, row, wide)]
    return [For(part, LOOP, body)] if part.arg.size > 1 else body


def _in_turn(store: Store, counter_: UOp, part: UOp, names: UOp, total: UOp, row: UOp,
             wide: Callable[[list[Statement]], list[Statement]]) -> list[Statement]:
    """for i < total: S[s = list[i]]  ->  for i by 4: x0 = .., x3 = ..; y[row0] += x0; .. y[row3] += x3

    What is stored is read ahead of the stores, which wait for each other where they go to one row.
    """
    size = names.arg.size
    reads_itself = any(n.op is o.LOAD and n.src[0] is store.memory for n in toposort([store.value]))
    count = 1 if reads_itself or size % READ_AHEAD else READ_AHEAD
    block = counter("i", size // count)
    rows, values, stores = list[Statement](), list[Statement](), list[Statement]()
    for u in range(count):
        at = add(multiply(block, count), index(u))
        gate = less(at, total) if u else None
        step = load(names, at, *([gate] if gate is not None else [])).cast(dtypes.index)
        step = step.maximum(0).minimum(index(size - 1))                        # memory alone has no bounds
        here = {counter_: add(multiply(one(part), size), step)}
        there, value = register(f"row{u}", dtypes.index), register(f"value{u}", store.value.dtype)
        read = substitute_index(row, here, {})
        [moved] = rebuild([store], here)
        [moved] = rebuild([moved], {read: there.maximum(0).minimum(index(bounds(row)[1]))})
        assert isinstance(moved, Store)
        rows.append(Assign(there, moves.edge_gate(read, gate)))
        if count > 1:
            values.append(Assign(value, moves.edge_gate(moved.value, gate)))
        stores.append(Store(moved.memory, moved.index, value if count > 1 else moved.value, moved.combine, gate))
    stop = divide(add(total, index(count - 1)), count)
    return [For(block, LOOP, [*rows, *wide([*values, *stores])], stop)]


def scattered_along(body: list[Statement], counter_: UOp) -> bool:
    """Whether neighbours of a loop are stored where loaded numbers say."""
    return any(atom.op is not o.RANGE and counter_ in ranges_of(atom)
               for s in walk(body) if isinstance(s, Store) for atom in linear(s.index)[1])


def _row(at: UOp, outer: list[UOp]) -> UOp | None:
    """The one part of an index that is read from memory, if it has known bounds and no counter of the outer loops."""
    read = [atom for atom in linear(at)[1] if atom.op is not o.RANGE]
    if len(read) != 1 or any(r in ranges_of(read[0]) for r in outer) or bounds(read[0])[0] < 0:
        return None
    return read[0]
