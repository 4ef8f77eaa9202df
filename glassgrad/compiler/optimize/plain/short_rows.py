"""Process many short rows by groups of threads. In: loops over rows read a few times. Out: tasks of rows, or None.

A group of threads per row of 40 elements would leave most threads idle; with a thread per row, accesses of consecutive
threads would be a row apart. So a group copies several consecutive rows to shared memory. A few threads per row read it
from there into registers, and combine their partial sums. Values stored along the row go back the same way.

    for row: r = 0; for k: r += f(x[row, k]); for k: y[row, k] = g(x[row, k], r)
    ->  TASK rows by 32: threads along all their elements: m = x; threads along (row, part): h[u] = m[row, k];
        r = sum of the parts' f(h); m[row, k] = g(h, r); threads along all elements: y = m         (k = 8 u + part)

The order of sums follows from the length of a row alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, linear, modulo, multiply
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, Accumulate, Assign, For, Statement, Store, counter,
                                            current, expressions, load, local, nested, nodes_in, ranges_of, register,
                                            register_over, task_loops)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, fixed
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import below, edge_gate, gated
from glassgrad.compiler.optimize.moves.loop_moves import WideStep
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

MOST_HELD = 24           # elements that a thread holds
MOST_PARTS = 16          # threads per row: each adds up the partial sums of all of them
LONGEST = 256            # elements per row; longer rows keep a group busy
BANK_BYTES = 4           # width of a bank of shared memory
COPIES = 4               # copies that a thread has in flight, if it copies single elements
LEAST_BYTES = 16         # bytes of rows that are only read: shorter ones stay cached while one thread reads them
GROUP_SIZES = (256, 128, 64, 32)


@dataclass(frozen=True)
class RowParts(Choice, names=["parts"]):
    """The threads of a group, and of each short row (`parts`), which decide the order of sums."""
    threads: int
    parts: int = fixed()


def short_rows(body: list[Statement], target: Target, decisions: Decisions) -> list[Statement] | None:
    """The tasks of many short, consecutive rows; refuses (None) other loops."""
    rows = ShortRows.of(body)
    if rows is None:
        return None

    def refuses(c: RowParts) -> str | None:
        return None if c.threads in fitting else f"a group has {fitting} threads"
    fitting = [n for n in GROUP_SIZES if rows.parts <= n <= target.lanes(4) and
               rows.bytes(n // rows.parts) <= target.group_bytes and rows.count * rows.parts >= n * target.few_tasks]
    return rows.tasks(decisions.ask(RowParts(fitting[0], rows.parts), refuses).threads) if fitting else None


@dataclass
class ShortRows:
    """`count` rows of `size` elements, and the statements for the row of index `row`."""
    row: UOp
    size: int
    body: list[Statement]
    read: list[UOp]          # memories whose rows are read whole,
    stored: list[UOp]        # memories whose rows are stored,
    kept: list[UOp]          # and private rows that are not used afterwards

    @staticmethod
    def of(body: list[Statement]) -> ShortRows | None:
        """Recognize a nest of this form; None for others."""
        loops, inner = task_loops(body)
        along = [s for s in inner if isinstance(s, For)]
        sizes = {f.range.arg.size for f in along}
        if not loops or len(sizes) != 1 or any(f.stop is not None for f in (*loops, *along)) or not all(
                isinstance(s, (Assign, For)) or isinstance(s, Store) and s.combine is None for s in inner) or not all(
                isinstance(s, Accumulate) or isinstance(s, Store) and s.combine is None for f in along for s in f.body):
            return None
        axis, [size] = FlatAxis.of([f.range for f in loops]), sizes
        row = counter("row", axis.size)
        found = ShortRows(row, size, moves.serial(moves.rebuild(inner, axis.indices(row))), [], [], [])
        return found if 1 < size <= LONGEST and found.is_in_rows() else None

    def is_in_rows(self) -> bool:
        """Whether everything read or stored along a row is contiguous; also records these memories."""
        for s in self.body:
            loop, inside = (s.range, s.body) if isinstance(s, For) else (None, list[Statement]([s]))
            if loop is not None and set(moves.accumulated(inside)) & _registers(inside):
                return False
            for at_store, memory, at, gate in _accesses(inside):
                found = self.stored if at_store else self.read
                if memory.op is o.LOCAL and memory.arg.scope == "worker":
                    if loop is None or at is not loop or gate is not None:
                        return False
                    found = self.kept
                elif loop is None or not at_store and not {loop, self.row} <= ranges_of(at):
                    continue
                elif linear(at) != (0, {self.row: self.size, loop: 1}) or gate is not None:
                    return False
                if memory not in found:
                    found.append(memory)
        longest = max([self.size * m.dtype.itemsize for m in (*self.read, *self.stored)], default=0)
        return (longest > LEAST_BYTES or bool(self.stored)) and not set(self.read) & set(self.stored)

    @property
    def count(self) -> int:
        return int(self.row.arg.size)

    @property
    def parts(self) -> int:
        """How many threads share a row: so many that each holds few elements."""
        held = self.size * max(1, len(self.read) + len(self.kept))
        return min(MOST_PARTS, 1 << max(0, math.ceil(math.log2(held / MOST_HELD))))

    @property
    def steps(self) -> WideStep:
        """The elements of a row that its threads take: element k by thread k % parts."""
        end = index(self.size) if self.size % self.parts else None
        return WideStep("k", index(0), 1, -(-self.size // self.parts), self.parts, None, end=end)

    def pitch(self, memory: UOp) -> int:
        """The distance of rows in shared memory, such that threads read different banks and copies are aligned."""
        chunk = max(self.parts, self.copied(memory), BANK_BYTES // memory.dtype.itemsize)
        return chunk * (-(-self.size // chunk) | 1)

    def copied(self, memory: UOp) -> int:
        """How many contiguous elements a thread copies together."""
        return math.gcd(self.size, gpu.COPY_BYTES // memory.dtype.itemsize)

    def places(self, rows: int) -> dict[UOp, UOp]:
        """Shared memory for `rows` rows of each memory that is read or stored. Stored rows reuse the memory of read
        rows of the same type, which are in registers by then."""
        out: dict[UOp, UOp] = {}
        for number, memory in enumerate([*self.read, *self.stored]):
            free = [m for read, m in out.items() if read in self.read and memory in self.stored and
                    m.dtype is memory.dtype and m not in [out.get(s) for s in self.stored]]
            out[memory] = free[0] if free else local(f"rows{number}", memory.dtype, rows * self.pitch(memory))
        return out

    def bytes(self, rows: int) -> int:
        """Bytes of shared memory for `rows` rows."""
        sums = sum(s.register.dtype.itemsize for s in self.body if isinstance(s, Assign)) * self.parts * rows
        return sums + sum(m.arg.size * m.dtype.itemsize for m in set(self.places(rows).values()))

    def tasks(self, threads: int) -> list[Statement]:
        """All rows, `threads // parts` in each task; the last task may have fewer."""
        rows = threads // self.parts
        task, places = counter("rowt", -(-self.count // rows)), self.places(rows)
        first = multiply(current(task), rows)
        body: list[Statement] = []
        for memory in self.read:
            body += self.copies(memory, places[memory], rows, first, threads)
        body += GroupRows(self, places, threads, first).statements()
        for memory in self.stored:
            body += self.copies(memory, places[memory], rows, first, threads)
        return [For(task, TASK, body)]

    def copies(self, memory: UOp, place: UOp, rows: int, first: UOp, threads: int) -> list[Statement]:
        """Copy rows of a memory to shared memory, or back, with threads along all of their elements."""
        each = counter("e", rows * self.size)
        row, far, width = divide(each, self.size), add(multiply(first, self.size), each), self.copied(memory)
        near = add(multiply(row, self.pitch(memory)), modulo(each, self.size))
        gate = self.is_row(add(first, row)) if width > 1 else below(far, self.count * self.size)
        copy = Store(place, near, load(memory, far, gate)) if memory in self.read else \
            Store(memory, far, load(place, near), None, gate)
        return moves.wide(For(each, LOOP, [copy]), width if width > 1 else COPIES, threads, copies=False,
                          consecutive=width > 1)

    def is_row(self, row: UOp) -> UOp | None:
        """The condition that a row exists; None if it always does."""
        return below(row, self.count)


class GroupRows:
    """Builds the statements for rows in shared memory, with `parts` threads for each."""

    def __init__(self, rows: ShortRows, places: dict[UOp, UOp], threads: int, first: UOp):
        self.rows, self.places, self.lane, self.step = rows, places, counter("l", threads), rows.steps
        self.in_group, self.part = divide(self.lane, rows.parts), modulo(self.lane, rows.parts)
        self.row = add(first, self.in_group)
        self.held = {m: register_over(f"row{i}", m.dtype, (self.step.over, self.lane))
                     for i, m in enumerate([*rows.read, *rows.kept])}
        self.own = {r: self.of_thread(r, "") for r in moves.initialized(rows.body)}

    def of_thread(self, r: UOp, kind: str) -> UOp:
        return register(r.arg + kind, r.dtype, [self.lane])

    def statements(self) -> list[Statement]:
        """Load rows into registers, then do the statements for each of them."""
        out: list[Statement] = []
        for memory in self.rows.read:
            k = counter("k", self.rows.size)
            number = load(self.places[memory], self.near(memory, k))
            out += self.along(For(k, LOOP, [Assign(self.held[memory], number)]))
        for s in self.rows.body:
            if isinstance(s, For):
                out += self.loop(s)
                continue
            [made] = self.by_row([s], self.own)
            if isinstance(made, Store):                        # done by one of the row's threads
                made.gate = both(self.rows.is_row(self.row), both(made.gate, below(self.part, 1)))
            out.append(For(self.lane, LANE, [made]))
        return out

    def by_row(self, body: list[Statement], replace: dict[UOp, UOp]) -> list[Statement]:
        """The statements for a thread's row; they read nothing past the last row."""
        body, gate = moves.rebuild(body, {**replace, self.rows.row: self.row}), self.rows.is_row(self.row)
        for s in body:
            if gate is not None and isinstance(s, (Assign, Accumulate, Store)):
                s.value = edge_gate(s.value, gate)
        return body

    def near(self, memory: UOp, k: UOp) -> UOp:
        """The index in shared memory of element k of a thread's row."""
        return add(multiply(self.in_group, self.rows.pitch(memory)), k)

    def along(self, loop: For) -> list[Statement]:
        """for k: S  ->  TILE u: LANE l: S[k = u * parts + l % parts]"""
        body, gate = moves.rebuild(loop.body, {loop.range: self.step.at}), self.step.is_inside
        body = body if gate is None else gated(body, gate, moves.accumulated(body))
        return nested([self.step.over], [For(self.lane, LANE, moves.rebuild(body, {self.step.lane: self.part}))], TILE)

    def loop(self, loop: For) -> list[Statement]:
        """A loop along the row, which is in registers: threads compute partial sums and combine them."""
        rows, k = self.rows, loop.range
        sums = moves.accumulated(loop.body)
        mine = {r: self.of_thread(r, "_part") for r in sums}
        held: dict[UOp, UOp] = {load(m, add(multiply(rows.row, rows.size), k)): self.held[m] for m in rows.read}
        held |= {load(m, k): self.held[m] for m in rows.kept}
        body: list[Statement] = []
        for s in self.by_row(loop.body, {**held, **self.own, **mine}):
            if isinstance(s, Store):
                s = Assign(self.held[s.memory], s.value) if s.memory in rows.kept else \
                    Store(self.places[s.memory], self.near(s.memory, k), s.value)
            body.append(s)
        out: list[Statement] = [For(self.lane, LANE, [Assign(mine[r], identity(c, r.dtype)) for r, c in sums.items()])]
        out += self.along(For(k, LOOP, body))
        for r, combine in sums.items():
            out += self.added(r, mine[r], combine)
        return out

    def added(self, r: UOp, mine: UOp, combine: o.Op) -> list[Statement]:
        """Combine the partial sums of a row's threads, so that each of them has the result."""
        if self.rows.parts == 1:
            return [For(self.lane, LANE, [Accumulate(self.own[r], combine, mine)])]
        parts, p = local(f"parts_{r.arg}", r.dtype, self.lane.arg.size), counter("p", self.rows.parts)
        at = add(multiply(self.in_group, self.rows.parts), p)
        return [For(self.lane, LANE, [Store(parts, self.lane, mine),
                                      For(p, LOOP, [Accumulate(self.own[r], combine, load(parts, at))])])]


def _accesses(body: list[Statement]) -> Iterator[tuple[bool, UOp, UOp, UOp | None]]:
    """The accesses of statements as (whether it is a store, memory, index, gate)."""
    for s in body:
        if isinstance(s, Store):
            yield True, s.memory, s.index, s.gate
        for n in toposort(expressions(s)):
            if n.op is o.LOAD:
                yield False, n.src[0], n.src[1], n.src[2] if len(n.src) > 2 else None


def _registers(body: list[Statement]) -> set[UOp]:
    return {n for n in nodes_in(body) if n.op is o.REGISTER}
