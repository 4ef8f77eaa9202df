"""Write rows by index on a GPU. In: a loop that stores at a loaded index, in order. Out: loops for many groups.

Values added to one row must be added in order, so that every run gives the same bits; different rows are independent.
But the rows are known only when the kernel runs. There are two ways, and their combination:

Each group of threads owns some rows. Its threads scan the indices together and list those of the group's rows: a
running total of how many were found (scans.py) says where in the list each belongs, so the list is in order. Then the
group does the listed steps. If a batch is split over enough groups, one group owns all rows of an example, and needs no
list; nor do groups if the indices are in bins (schedule/flat_scatters.py).

    for s: y[row[s], j] += x[s, j]    ->    TASK b: for blocks of s: list = [s where row[s] is one of b's rows]
                                                for i < length of list: LANE j: y[row[list[i]], j] += x[list[i], j]

A row with one element has no columns for the threads. There, threads take consecutive indices, one each, and the first
thread of those with the same row adds the values of all of them, in order.

    for s: y[row[s]] += x[s]    ->    for blocks of s:
                                          LANE l: rows[l] = row[s + l], values[l] = x[s + l]
                                          LANE l: r = y[rows[l]]
                                                  for o: if rows[o] == rows[l]: r += values[o] if o >= l else not mine
                                                  y[rows[l]] = r if mine
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, both, bounds, build, divide, divide_up, exact, fits, index,
                                                    less, linear, modulo, multiply, substitute_index)
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, Assign, For, Statement, Store, counter, current, load,
                                            local, loops_around, piece_bound, ranges_of, register, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below, edge_gate
from glassgrad.compiler.optimize.moves.loop_moves import rebuild
from glassgrad.compiler.optimize.moves.move_decorator import move
from glassgrad.compiler.optimize.plain.scans import MOST_LANES, TILE, GroupScan, RunningTotal
from glassgrad.compiler.optimize.targets.target import Target

GROUPS = 4             # groups that own rows, for each group of threads that runs at once
LISTED = 2 * TILE * MOST_LANES     # indices that are scanned at a time: as many may be listed
MOST_TILE = 4          # columns per thread
READ_AHEAD = 4         # listed steps whose loads are done ahead
FEWEST = 8             # indices; fewer are done one after another
COMPARED = 32          # indices of one example that are compared with each other


@dataclass
class ScatterLoop:
    """for counter: memory[unit * row + ..] = .., in order. The row is a loaded value plus what the counter adds."""
    counter: UOp
    store: Store
    row: UOp
    unit: int
    stop: UOp | None = None        # of the counter, if smaller than its size

    @staticmethod
    def of(inner: list[Statement], outer: list[UOp]) -> ScatterLoop | None:
        """Recognize nested loops around one store as one loop. None for others, few steps, and rows without known
        bounds."""
        counters, body, stop = list[UOp](), inner, None
        while len(body) == 1 and isinstance(body[0], For) and body[0].kind == LOOP and stop is None:
            counters.append(body[0].range)
            stop, body = body[0].stop, body[0].body
        if len(body) != 1 or not isinstance(body[0], Store) or body[0].memory.op is o.LOCAL or \
                not counters or math.prod(r.arg.size for r in counters) < FEWEST:
            return None
        if stop is not None and len(counters) > 1:
            return None
        whole = counter(counters[0].arg.name, math.prod(r.arg.size for r in counters))
        at, into = whole, dict[UOp, UOp]()
        for r in reversed(counters):
            into[r], at = modulo(at, r.arg.size), divide(at, r.arg.size)
        [store] = rebuild(body, into)
        assert isinstance(store, Store)
        own = {atom: k for atom, k in linear(store.index)[1].items() if atom not in outer}
        unit = math.gcd(*own.values())
        row = build(0, {atom: k // unit for atom, k in own.items()})
        if all(atom.op is o.RANGE for atom in own) or bounds(row)[0] < 0 or not exact(row):
            return None
        return ScatterLoop(whole, store, row, unit, stop)

    @property
    def size(self) -> int:
        return int(self.counter.arg.size)

    @property
    def rows(self) -> int:
        return bounds(self.row)[1] + 1

    @property
    def reads_itself(self) -> bool:
        return any(n.op is o.LOAD and n.src[0] is self.store.memory for n in toposort([self.store.value]))

    def index_of(self, row: UOp) -> UOp:
        """Where a row, held by a register, is stored. Clamped, since loaded values have no known bounds."""
        others = add(self.store.index, multiply(self.row, -self.unit))
        return add(others, multiply(row.cast(dtypes.index).maximum(0).minimum(index(self.rows - 1)), self.unit))

    def update(self) -> tuple[UOp, Callable[[UOp, UOp], UOp]] | None:
        """What is stored, and how it is combined with the old value; None if these cannot be separated."""
        store = self.store
        if store.combine is not None:
            combine = store.combine
            return store.value, lambda old, new: UOp(combine, new.dtype, (old, new))
        if not self.reads_itself:
            return store.value, lambda old, new: new
        total = store.value.src[0]                        # cast(cast(memory[..]) + new)
        if store.value.op is not o.CAST or len(total.src) != 2:
            return None
        there, value = load(store.memory, store.index), total.src[1]
        if total.src[0] is not there.cast(total.dtype):
            return None
        return value, lambda old, new: UOp(total.op, total.dtype, (old.cast(total.dtype), new)).cast(store.value.dtype)


@move(lambda loops, inner, *_: None)
def rows_apart(loops: list[For], inner: list[Statement], target: Target, lanes: int) -> list[Statement] | None:
    """for j: for s: y[row[s], j] += ..  ->  TASK b: for blocks of s: list those of b's rows; for each: for j: y[..] +=

    refuses (None): a loop of another form; few steps; few rows; threads that already have adjacent rows
    """
    found = ScatterLoop.of(inner, [f.range for f in loops])
    if found is None or any(f.stop is not None for f in loops):
        return None
    last = loops[-1] if loops else None
    if found.stop is not None and (last is None or last.range not in ranges_of(found.stop)):
        return None
    if last is None or last.range in ranges_of(found.row) or \
            linear(found.store.index)[1].get(last.range) != 1 and found.update() is not None:
        return _by_elements(loops, found, target, lanes)
    columns = last.range.arg.size
    tile = min(MOST_TILE, -(-columns // lanes))
    pieces = -(-columns // (tile * lanes))                       # pieces of a row, each done by other groups
    around = [f.range for f in loops[:-1]]
    owned, block = _owned(found, pieces * math.prod(r.arg.size for r in around), target)
    if owned is None:                                            # one group owns all rows
        return None
    split = moves.tasks(For(last.range, LOOP, [found.store]), pieces)
    column = split.body[0] if pieces > 1 else split
    assert isinstance(column, For) and isinstance(column.body[0], Store)
    part = replace(found, store=column.body[0])

    def along_columns(stores: list[Statement]) -> list[Statement]:
        return moves.wide(For(column.range, LOOP, stores, column.stop), tile, lanes)
    body = _listed(part, owned, lambda steps: _in_turn(part, steps, along_columns))
    return loops_around([block, *around, *([split.range] if pieces > 1 else [])], body, TASK)


def _by_elements(loops: list[For], found: ScatterLoop, target: Target, lanes: int) -> list[Statement] | None:
    """Rows of one element: a group owns all rows of an example of a batch, or some of them, or those of a bin."""
    examples = math.prod(f.range.arg.size for f in loops)
    contiguous = bool(loops) and linear(found.store.index)[1].get(loops[-1].range) == 1
    if found.update() is None or contiguous and examples >= lanes * target.few_tasks:
        return None
    around = [f.range for f in loops]
    if found.stop is not None:                                   # a bin belongs to one group
        total = register("found", dtypes.index)
        body = _compared(found, _Steps(found.size, total, lambda at, gate: at), COMPARED)
        return loops_around(around, [Assign(total, found.stop), *body], TASK)
    owned, block = _owned(found, GROUPS * examples, target)      # fewer groups, since each scans all indices
    if owned is None and not loops:                              # one group owns all rows
        return None
    if owned is None:
        body = _compared(found, _Steps(found.size, None, lambda at, gate: at), COMPARED)
    else:
        body = _listed(found, owned, lambda steps: _compared(found, steps, MOST_LANES))
    return loops_around([block, *around], body, TASK)


def _owned(found: ScatterLoop, others: int, target: Target) -> tuple[UOp | None, UOp]:
    """The condition that a step's row is owned by the group (None: all rows are), and the counter of the groups that
    own rows; for each of them, `others` groups do other parts of the work."""
    size = -(-found.rows // max(1, GROUPS * target.few_tasks // others))
    block = counter("b", -(-found.rows // size))
    first = multiply(current(block), size)
    return both(less(index(-1), add(found.row, multiply(first, -1))), less(found.row, add(first, index(size)))), block


@dataclass
class _Steps:
    """The steps of a loop that a group does: at most `size`, or as many as `total` says."""
    size: int
    total: UOp | None
    of: Callable[[UOp, UOp | None], UOp]        # (number, gate) -> the loop's counter at that step

    def gate(self, at: UOp) -> UOp | None:
        return below(at, self.size) if self.total is None else less(at, self.total)


def _listed(found: ScatterLoop, owned: UOp, done: Callable[[_Steps], list[Statement]]) -> list[Statement]:
    """for s: S  ->  for parts of s: list = the owned of them; for i < length of list: S[s = list[i]]"""
    n, name = min(found.size, LISTED), found.counter.arg.name
    part = counter(name + "p", -(-found.size // LISTED))
    inside, total = counter(name, n), register("found", dtypes.index)
    names = local("listed", dtypes.int32, n)
    here = substitute_index(owned, {found.counter: add(multiply(current(part), n), inside)}, {})
    scan = RunningTotal(total, index(0), For(inside, LOOP, [], piece_bound(found.size, n, part)), o.ADD,
                        here.where(index(1), index(0)),
                        [Store(names, add(total, index(-1)).maximum(0), inside.cast(dtypes.int32), None, here)])

    def step(at: UOp, gate: UOp | None) -> UOp:
        read = load(names, at, *([gate] if gate is not None else [])).cast(dtypes.index)
        return add(multiply(current(part), n), read.maximum(0).minimum(index(n - 1)))      # its bounds are unknown
    body = [*GroupScan(scan, TILE, MOST_LANES).statements(), *done(_Steps(n, total, step))]
    return [For(part, LOOP, body)] if part.arg.size > 1 else body


def _in_turn(found: ScatterLoop, steps: _Steps, wide: Callable[[list[Statement]], list[Statement]]) -> list[Statement]:
    """for i < total: S[s = list[i]]  ->  for i by 4: x0 = .., x3 = ..; y[row0] += x0; .. y[row3] += x3

    Stored values are loaded ahead of the stores, which wait for each other if they go to one row.
    """
    store, total = found.store, steps.total
    assert total is not None
    count = 1 if found.reads_itself or steps.size % READ_AHEAD else READ_AHEAD
    block = counter("i", steps.size // count)
    rows, values, stores = list[Statement](), list[Statement](), list[Statement]()
    for u in range(count):
        at = add(multiply(block, count), index(u))
        gate = less(at, total) if u else None
        here = {found.counter: steps.of(at, gate)}
        there, value = register(f"row{u}", dtypes.index), register(f"value{u}", store.value.dtype)
        place = found.index_of(there)
        stored = substitute_index(store.value, {load(store.memory, store.index): load(store.memory, place), **here}, {})
        rows.append(Assign(there, edge_gate(substitute_index(found.row, here, {}), gate)))
        if count > 1:
            values.append(Assign(value, edge_gate(stored, gate)))
        stores.append(Store(store.memory, place, value if count > 1 else stored, store.combine, gate))
    stop = divide_up(total, count)
    return [For(block, LOOP, [*rows, *wide([*values, *stores])], stop)]


def _compared(found: ScatterLoop, steps: _Steps, lanes: int) -> list[Statement]:
    """for i: y[row] += x  ->  for blocks of i: load the rows and values of all threads; the first thread of each row
    adds those of its row"""
    update, memory = found.update(), found.store.memory
    assert update is not None
    added, combined = update
    lanes = min(lanes, -(-steps.size // 32) * 32)
    lane, other, block = counter("l", lanes), counter("o", lanes), counter("i", -(-steps.size // lanes))
    kind = dtypes.int32 if fits(0, found.rows) else dtypes.index
    rows, values = local("rows", kind, lanes), local("values", added.dtype, lanes)
    row, result, first = (register(name, dtype, (lane,)) for name, dtype in
                          (("row", kind), ("result", found.store.value.dtype), ("first", dtypes.bool)))
    at = add(multiply(current(block), lanes), lane)
    gate = steps.gate(at)
    here = {found.counter: steps.of(at, gate)}
    own = edge_gate(substitute_index(found.row, here, {}), gate).cast(kind)
    reads = found.store.combine is not None or found.reads_itself
    inside, same, earlier = row.ne(-1), load(rows, other).eq(row), less(other, lane)
    body: list[Statement] = [
        For(lane, LANE, [Assign(row, own if gate is None else gate.where(own, const(-1, kind))), Store(rows, lane, row),
                         Store(values, lane, edge_gate(substitute_index(added, here, {}), gate))]),
        For(lane, LANE, [
            Assign(result, load(memory, found.index_of(row), inside) if reads else const(0, result.dtype)),
            Assign(first, inside),
            For(other, LOOP, [
                Assign(first, first & (same & earlier).logical_not()),
                Assign(result, (same & earlier.logical_not()).where(combined(result, load(values, other)), result))],
                None if steps.total is None or lanes <= COMPARED else
                add(steps.total, multiply(current(block), -lanes))),
            Store(memory, found.index_of(row), result, None, first)])]
    stop = None if steps.total is None else divide_up(steps.total, lanes)
    return [For(block, LOOP, body, stop)] if block.arg.size > 1 else body


def scattered_along(body: list[Statement], counter_: UOp) -> bool:
    """Whether neighbouring iterations of a loop store at loaded indices."""
    return any(atom.op is not o.RANGE and counter_ in ranges_of(atom)
               for s in walk(body) if isinstance(s, Store) for atom in linear(s.index)[1])
