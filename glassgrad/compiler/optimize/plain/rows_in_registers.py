"""Keep rows in registers of a thread group. In: the loops over one row. Out: the same, reading the row once; or None.

A softmax or a norm iterates over its row two or three times. A group of threads does so in the same steps each time, so
that each thread gets the same elements every time, and keeps them in registers.

    r = 0; for k: r += f(x[k]); for i: y[i] = g(x[i], r)
    ->  TILE o, u: LANE l: held[o, u, l] = x[..]; r += fold(f(held)); TILE o, u: LANE l: y[..] = g(held, r)

Values that one loop stores for another in shared memory (`kept`) are held in registers too. A group has so many threads
that each has few elements. The order of sums follows from sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import bounds, index, less, linear, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LOOP, TASK, TILE, Assign, For, If, Statement, Store, load, loads_in,
                                            nodes_in, ranges_of, register_over, task_loops, walk)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, fixed
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.moves.gates import edge_gate
from glassgrad.compiler.optimize.moves.loop_moves import WideStep
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.versions_by_size import guarded_versions, replace_bound


@dataclass(frozen=True)
class RowSteps(Choice, names=["hold"]):
    """The threads for a row that its group reads several times, and whether they hold it in registers. Their number
    decides the order of sums."""
    loop: str = fixed()
    tile: int = fixed()
    lanes: int = fixed()
    held: bool = fixed()


@dataclass
class Row:
    """The loops over one row, with a common counter and possibly a run-time bound; the loads that several of them do
    (`reads`), and memory that only they use, at that counter (`kept`)."""
    body: list[Statement]
    counter: UOp
    stop: UOp | None
    reads: list[UOp]
    kept: set[UOp]

    @staticmethod
    def of(body: list[Statement]) -> Row | None:
        """Recognize a row that is read more than once, by loops of one length; None for others."""
        loops = [s for s in body if isinstance(s, For)]
        inside = [s for f in loops for s in walk(f.body)]
        if len(loops) < 2 or len({(f.range.arg.size, f.stop) for f in loops}) > 1 or \
                any(isinstance(s, For) for s in inside) or not all(_can_be_wide(f) for f in loops):
            return None
        counter = loops[0].range
        body = moves.rebuild(body, {f.range: counter for f in loops})
        for s in body:
            if isinstance(s, For):
                s.range = counter
        stores = [s for s in walk(body) if isinstance(s, Store)]
        stored = {s.memory for s in stores}
        readers: dict[UOp, set[int]] = {}
        for at, s in enumerate(body):
            for node in loads_in([s]):
                readers.setdefault(node, set()).add(at)
        own = {m for m in stored if m.op is o.LOCAL and m.arg.scope == "worker"}
        used = [(n.src[0], n.src[1]) for n in readers] + [(s.memory, s.index) for s in stores]
        kept = {m for m in own if all(at is counter for memory, at in used if memory is m)}
        reads = [n for n, places in readers.items() if len(places) > 1 and n.src[0] not in stored
                 and counter in ranges_of(n.src[1])]
        return Row(body, counter, loops[0].stop, reads, kept) if reads or kept else None

    @property
    def size(self) -> int:
        return int(self.counter.arg.size)

    @property
    def is_light(self) -> bool:
        """Whether there are few operations per element, and all elements read have 4 bytes."""
        nodes = nodes_in(self.body)
        return sum(n.op in o.ELEMENTWISE for n in nodes) <= gpu.LIGHT_ROW and not self.kept and \
            all(n.dtype.itemsize == 4 for n in self.reads)

    @property
    def bytes(self) -> int:
        """How many bytes are read more than once."""
        return self.size * sum(n.dtype.itemsize for n in self.reads)

    def lanes(self, rows: int, target: Target) -> int | None:
        """How many threads a group has, for `rows` rows; None if a row is too long for their registers."""
        most = target.most_threads or target.lanes(4)
        words = sum(-(-n.dtype.itemsize // 4) for n in self.reads) or len(self.kept)
        lanes = gpu.LEAST_ROW_THREADS
        while lanes < most and (self.size * words > gpu.HELD_WORDS * lanes or
                                rows * lanes < gpu.THREADS * target.few_tasks and self.size > gpu.WARP * lanes // 4):
            lanes *= 2
        held = self.size * words / lanes
        if gpu.HELD_WORDS < 2 * held <= 2 * gpu.HELD_WORDS and self.is_light:
            lanes = max(lanes, min(2 * lanes, most, gpu.MOST_LIGHT_THREADS))
        return lanes if self.size * words <= gpu.HELD_WORDS * lanes and self.size >= max(lanes, gpu.LEAST_ROW) else None


def rows_by_length(body: list[Statement]) -> list[list[Statement]]:
    """Versions of a nest for rows that a warp can hold, and for longer ones; refuses (returns the nest) rows without a
    run-time bound."""
    row = Row.of(task_loops(body)[1])
    if row is None or row.stop is None:
        return [body]
    few = gpu.HELD_WORDS * gpu.WARP
    numbers = [few, row.size] if bounds(row.stop)[0] <= few < row.size else [row.size]
    return guarded_versions({n: replace_bound(body, row.stop, n, row.stop) for n in numbers}, row.stop, -1)


def _can_be_wide(loop: For) -> bool:
    return loop.kind == TASK or loop.kind == LOOP and sum_moves.folds(loop) and bool(moves.accumulated(loop.body))


def row_in_steps(row: Row, rows: int, consecutive: int, target: Target, decisions: Decisions) -> list[Statement] | None:
    """Iterate over one of `rows` rows with all loops in the same steps: with the row in registers; or, if it is too
    long, with few rows in flight, so that they are still cached when they are read again. A thread takes `consecutive`
    consecutive elements, if these are aligned. Refuses (None) other rows."""
    lanes = row.lanes(rows, target)
    held = lanes is not None
    if lanes is None and row.size >= gpu.LONG_ROW and row.stop is None:
        lanes = target.most_threads // (2 if row.bytes <= gpu.ROW_OF_TWO else 1)
    if not lanes:
        return None
    wide = consecutive > 0 and row.size >= consecutive * lanes and _even(row, consecutive)
    tile = consecutive if wide else min(4, row.size // lanes)
    steps = -(-row.size // (tile * lanes))
    if not held and steps > gpu.MOST_ROW_STEPS:
        return None
    chosen = decisions.ask(RowSteps(row.counter.arg.name, tile, lanes, held), lambda c: None)
    end = index(row.size) if row.stop is None and row.size % (tile * lanes) else row.stop
    step = WideStep(row.counter.arg.name, index(0), steps, chosen.tile, chosen.lanes, None, wide, end)
    return hold(row if chosen.held else replace(row, reads=[], kept=set()), step, TILE if chosen.held else LOOP)


def hold(row: Row, step: WideStep, kind: str) -> list[Statement]:
    """for k: r += x[k]; .. for i: y[i] = x[i]  ->  TILE k: h[k] = x[k]; r += h[k]; .. TILE k: y[k] = h[k]

    All loops use the same steps, in loops of this kind (TILE: unrolled). In the last step some lanes may be past the
    end, and no thread does steps past a run-time end.
    """
    reads = [*row.reads, *[load(m, row.counter) for m in row.kept]]
    at_step = [edge_gate(substitute_index(n, {row.counter: step.at}, {}), step.is_inside) for n in reads]
    held = {n: register_over(f"row{number}", n.dtype, (step.outer, step.over, step.lane))
            for number, n in enumerate(at_step)}
    stored = {n.src[0]: held[n] for n in at_step if n.src[0] in row.kept}
    waiting = [n for n in at_step if n.src[0] not in row.kept]
    out: list[Statement] = []
    for s in row.body:
        if not isinstance(s, For):
            out.append(s)
            continue
        loops = step.loop(step.tiled(step.body_of(s)), kind) if s.kind == TASK else sum_moves.reduce_step(s, step, kind)
        for loop in loops:
            inside = set(nodes_in([loop]))
            first = [Assign(held[n], n) for n in waiting if n in inside]
            waiting = [n for n in waiting if n not in inside]
            loop = _in_registers(loop, first, held, stored)
            if row.stop is not None and isinstance(loop, For) and loop.range is step.outer:
                loop.body = [If(less(multiply(step.outer, step.width), row.stop), loop.body)]
            out.append(loop)
    return out


def _in_registers(loop: Statement, first: Sequence[Statement], held: dict[UOp, UOp], stored: dict[UOp, UOp]) \
        -> Statement:
    """A step's loops, over registers: the first loads go into registers; stores to `kept` memory become assignments."""
    if isinstance(loop, For) and len(loop.body) == 1 and isinstance(loop.body[0], For):
        return For(loop.range, loop.kind, [_in_registers(loop.body[0], first, held, stored)])
    replace = dict(held)
    new: list[Statement] = [*first]
    for s in loop.body if isinstance(loop, For) else [loop]:
        [made] = moves.rebuild([s], replace)
        if isinstance(s, Store) and isinstance(made, Store) and s.memory in stored:
            made = Assign(stored[s.memory], made.value)
            replace[s.value] = stored[s.memory]
        new.append(made)
    if isinstance(loop, For):
        return For(loop.range, loop.kind, new)
    [only] = new
    return only


def _even(row: Row, width: int) -> bool:
    """Whether all rows that are read and stored are aligned to a width."""
    loads = [n.src[1] for n in loads_in(row.body)]
    for at in [*loads, *[s.index for s in walk(row.body) if isinstance(s, Store)]]:
        constant, terms = linear(at)
        if row.counter in terms and any(k % width for k in (constant, *[k for a, k in terms.items()
                                                                      if a is not row.counter])):
            return False
    return True
