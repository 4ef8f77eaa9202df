"""Write rows by index on a CPU. In: loops around a store whose row is a loaded index. Out: loops split into tasks.

Values written to one row are combined in the order of the indices, so that any number of threads gives the same bits.
So rows, not indices, are split among tasks: the columns of long rows, and blocks of rows. But an index may name any
row, so indices are first sorted by block with a stable counting sort.

    TASK p: for s of part p: count[p, block of row[s]] += 1
    TASK p: next[b] = what is before block b of part p; for s of part p: order[next[block of row[s]]++] = s
    TASK c: TASK b: for i of block b: s = order[i]; LANE j of c: y[row[s], j] += x[s, j]

Rows of a single element are not read in such an order, which would read the same cache lines for many blocks. Instead,
the row's number and the value themselves are sorted. Rows are dealt to blocks in turn, because often the first rows are
written most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from glassgrad.compiler.graph import UOp, const, dtypes, ops as o
from glassgrad.compiler.graph.index_algebra import add, divide, fits, index, linear, modulo, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, If, Prefetch, Statement, Store,
                                            counter, current, in_loops, load, loads_in, local, loops_around,
                                            piece_bound, ranges_of, register, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.move_decorator import move
from glassgrad.compiler.optimize.plain.gpu_scatters import ScatterLoop

TILE = 4               # vectors of a row in flight
ROW_BYTES = 256        # of a task's columns: with 128, two x86 cores take twice as long as one
LINE_BYTES = 64        # of a cache line
AHEAD = 8              # rows that are prefetched,
MOST_LINES = 4         # and so many cache lines of each
BLOCK_BYTES = 512      # adjacent rows that belong to one block
BLOCKS = 2             # blocks per thread
SORT = 20              # cycles to sort an index,
UPDATE = 6             # and to update an element, or a vector
GAIN = 0.75            # split rows if the time becomes this share, or less


class RowTasks(NamedTuple):
    """Phases `before`, then TASK `tasks`: for `loops`: `body`."""
    before: list[list[Statement]]
    tasks: list[UOp]
    loops: list[For]
    body: list[Statement]


@move(lambda *_: None)
def rows_among_tasks(loops: list[For], inner: list[Statement], wanted: int, lanes: int) -> RowTasks | None:
    """TASK j: for s: y[row[s], j] = ..  ->  sort s by blocks; TASK c: TASK b: for s of b: LANE j of c: y[..] = ..

    For `wanted` threads. refuses (None): a loop of another form, run-time bounds
    """
    found = ScatterLoop.of(inner, [f.range for f in loops])
    steps = [s for s in walk(inner) if isinstance(s, For)]
    if found is None or any(f.stop is not None for f in (*loops, *steps)):
        return None
    has_columns = bool(loops) and linear(found.store.index)[1].get(loops[-1].range) == 1
    around_row = loops[:-1] if has_columns else loops
    wanted //= max(1, math.prod(f.range.arg.size for f in around_row))
    if not has_columns:
        order = None if around_row else _BlockOrder.of(found, wanted, 1, 1)
        return order and order.numbers() or RowTasks([], [], around_row, inner)
    column, tasks = For(loops[-1].range, LOOP, steps[-1].body), list[UOp]()
    alike = column.range not in ranges_of(found.row)
    pieces = _pieces(column.range.arg.size, ROW_BYTES // found.store.memory.dtype.itemsize, wanted)
    vectors = -(-column.range.arg.size // (pieces * lanes))
    order = None if around_row or not alike else _BlockOrder.of(found, wanted, pieces, vectors)
    if order is not None:
        column = For(column.range, LOOP, [found.store])
    if pieces > 1:
        split = moves.tasks(column, pieces)
        tasks, [column] = [split.range], [s for s in split.body if isinstance(s, For)]
    row: list[Statement] = moves.wide(column, TILE, lanes) if alike else [column]
    if order is None:
        return RowTasks([], tasks, around_row, in_loops(steps, row))
    return order.rows(tasks, row, _prefetched(column))


def _pieces(size: int, least: int, most: int) -> int:
    """Into how many pieces of equal length, at least `least` long, to split columns; at most `most`."""
    return next((n for n in range(min(most, size // least), 1, -1) if size % n == 0), 1)


def _prefetched(row: For) -> list[Statement]:
    """Prefetch the first cache lines of a row, in each memory where it is contiguous."""
    [store] = row.body
    assert isinstance(store, Store)
    places = [(store.memory, store.index), *[n.src[:2] for n in loads_in(row.body)]]
    return [Prefetch(memory, substitute_index(at, {row.range: index(first)}, {})) for memory, at in places
            if linear(at)[1].get(row.range) == 1
            for first in range(0, row.range.arg.size, LINE_BYTES // memory.dtype.itemsize)[:MOST_LINES]]


class _BlockOrder:
    """Orders the steps of a loop by the blocks of rows that they write; steps of one block keep their order."""

    @staticmethod
    def of(found: ScatterLoop, wanted: int, pieces: int, vectors: int) -> _BlockOrder | None:
        """Make an order for `wanted` threads, each with one of so many `pieces` of a row, which has so many `vectors`.
        None if that does not pay."""
        size = 1 << (-(-BLOCK_BYTES // (found.unit * found.store.memory.dtype.itemsize)) - 1).bit_length()
        blocks = min(BLOCKS * (wanted // pieces), -(-found.rows // size))
        alone = UPDATE * vectors * pieces
        pays = blocks > 1 and (SORT + alone) / wanted <= GAIN * alone / pieces
        return _BlockOrder(found, size, blocks, wanted) if pays and fits(0, found.size) else None

    def __init__(self, found: ScatterLoop, size: int, blocks: int, parts: int):
        self.found, self.length = found, -(-found.size // parts)
        self.part, self.block = counter("p", -(-found.size // self.length)), counter("b", blocks)
        self.inside = counter(found.counter.arg.name, self.length)
        self.step = add(multiply(current(self.part), self.length), self.inside)
        self.owner = modulo(divide(self.at_step(found.row), size), blocks)
        self.counts = local("counts", dtypes.int32, self.part.arg.size * blocks, "shared")
        self.starts = local("starts", dtypes.int32, blocks + 1, "shared")
        self.next = local("next", dtypes.int32, blocks)

    def at_step(self, value: UOp) -> UOp:
        return substitute_index(value, {self.found.counter: self.step}, {})

    def _tasks(self, around_block: list[UOp], ordered: dict[str, UOp], do: Callable[..., list[Statement]]) -> RowTasks:
        """Phases that sort values of the steps by block; then for each block `do`, given a position in that order and
        the memories of the values."""
        memories = [local(name, value.dtype, self.found.size, "shared") for name, value in ordered.items()]
        first, end = (load(self.starts, add(self.block, index(n))).cast(dtypes.index) for n in (0, 1))
        i = counter("i", self.found.size)
        body: list[Statement] = [For(i, LOOP, do(add(first, i), *memories), add(end, multiply(first, -1)))]
        before = [self._counted(), self._placed(dict(zip(memories, ordered.values())))]
        return RowTasks([loops_around([self.part], b, TASK) for b in before], [*around_block, self.block], [], body)

    def _counted(self) -> list[Statement]:
        """Count how many steps of a part belong to each block."""
        count = Store(self.counts, self._count(self.part), load(self.next, self.block))
        return [For(self.block, LOOP, [Store(self.next, self.block, const(0, dtypes.int32))]),
                self._steps([Store(self.next, self.owner, const(1, dtypes.int32), o.ADD)]),
                For(self.block, LOOP, [count])]

    def _placed(self, values: dict[UOp, UOp]) -> list[Statement]:
        """Place the steps of a part, after those of earlier blocks, and of earlier parts of the same block."""
        other = counter("q", self.part.arg.size)
        total, at = (register(name, dtypes.int32) for name in ("total", "at"))
        sums: list[Statement] = [
            If(self.part.eq(0), [Store(self.starts, self.block, total)]),
            For(other, LOOP, [If(other.eq(self.part), [Store(self.next, self.block, total)]),
                              Accumulate(total, o.ADD, load(self.counts, self._count(other)))])]
        return [Assign(total, const(0, dtypes.int32)), For(self.block, LOOP, sums),
                If(self.part.eq(0), [Store(self.starts, index(self.block.arg.size), total)]),
                self._steps([Assign(at, load(self.next, self.owner)), Store(self.next, self.owner, at + 1),
                             *[Store(memory, self._within(at), value) for memory, value in values.items()]])]

    def rows(self, pieces: list[UOp], body: list[Statement], soon: list[Statement]) -> RowTasks:
        """for s: S  ->  for i of a block: S[s = order[i]]      (memory of upcoming steps is prefetched)"""
        step = self.found.counter

        def do(at: UOp, order: UOp) -> list[Statement]:
            here, ahead = (self._within(load(order, self._within(add(at, index(n))))) for n in (0, AHEAD))
            return [*moves.rebuild(soon, {step: ahead}), *moves.rebuild(body, {step: here})]
        return self._tasks(pieces, {"order": self.step.cast(dtypes.int32)}, do)

    def numbers(self) -> RowTasks | None:
        """for s: y[row[s]] += x[s]  ->  for i of a block: y[rows[i]] += values[i]; None if the update has another
        form"""
        update, store = self.found.update(), self.found.store
        if update is None:
            return None
        value, combined = update

        def do(at: UOp, rows: UOp, values: UOp) -> list[Statement]:
            place, new = self.found.index_of(load(rows, self._within(at))), load(values, self._within(at))
            new = new if store.combine is not None else combined(load(store.memory, place), new)
            return [Store(store.memory, place, new, store.combine)]
        row = self.found.row.cast(dtypes.int32 if fits(0, self.found.rows) else dtypes.index)
        return self._tasks([], {"rows": self.at_step(row), "values": self.at_step(value)}, do)

    def _steps(self, body: list[Statement]) -> For:
        return For(self.inside, LOOP, body, piece_bound(self.found.size, self.length, self.part))

    def _count(self, part: UOp) -> UOp:
        return add(multiply(current(part), self.block.arg.size), self.block)

    def _within(self, at: UOp) -> UOp:
        """Clamp a loaded number of a step: loaded values have no known bounds."""
        return at.cast(dtypes.index).maximum(0).minimum(index(self.found.size - 1))
