"""Lanes, partial sums and tasks of a loop nest, as decisions. In: loops around statements. Out: the same, split.

The common part of the recipes of CPUs (plain_loops.py) and of GPUs (gpu_loops.py): how many vectors go along a loop,
how a long sum is split into parts, and how a nest is split into tasks. Each is data, so that a search can try others.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import add, bounds, index, multiply, operation, times
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, For, If, Statement, counter, each_loop,
                                            loops_around, ranges_of, walk, with_body)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, fixed
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.moves.move_decorator import move
from glassgrad.compiler.optimize.plain.access_order import access_width, greatest_within, vectors_in_flight, work
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import count
from glassgrad.compiler.optimize.targets import cpu_costs as cpu, gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

# adds per lane before a partial sum is folded: with many equal values, float32 rounds always to the same side
ADDS = 128
MOST_VECTORS = 16       # vectors in flight; more only make the code longer
FEW_ROWS = 16           # with fewer rows, they are jammed only if enough tasks are left
LONG_ARITHMETIC = 16    # operations per element from which computing it takes longer than loading it
LEAST_READ = 16         # elements of a column from which a part of its sum is worthwhile


@dataclass(frozen=True)
class Lanes(Choice):
    """Vectors along a loop of independent iterations, `tile` of them in flight."""
    loop: str
    tile: int
    lanes: int


@dataclass(frozen=True)
class FoldedLanes(Choice, names=["fold"]):
    """Vectors along a reduced loop, folded at the end: how many there are decides the order of the sum."""
    loop: str = fixed()
    tile: int = fixed()
    lanes: int = fixed()


@dataclass(frozen=True)
class PartialSums(Choice, names=["group"]):
    """Partial results over chunks of a reduced loop."""
    loop: str = fixed()
    chunk: int = fixed()


@dataclass(frozen=True)
class Tasks(Choice):
    """About how many tasks a phase is split into."""
    count: int


def ask_lanes(decisions: Decisions, loops: list[For], at: int, tile: int, lanes: int) -> Lanes:
    """Decide which of the loops vectors go along, and how many are in flight."""
    names = [f.range.arg.name for f in loops]

    def refuses(c: Lanes) -> str | None:
        if c.loop not in names:
            return f"the loops are {', '.join(names)}"
        if c.lanes > lanes:
            return f"a vector has {lanes} lanes at most"
        if c.lanes & (c.lanes - 1):
            return "vectors have 1, 2, 4, 8 .. lanes"
        return f"more than {MOST_VECTORS} vectors at once" if c.tile > max(tile, MOST_VECTORS) else None

    return decisions.ask(Lanes(names[at], tile, lanes), refuses, lambda: [Lanes(n, tile, lanes) for n in names])


def along_rows(body: list[Statement], lanes: int, decisions: Decisions, by_threads: bool, most: int = 4) \
        -> list[Statement]:
    """Put the body's lanes along the innermost loops of a row: reductions into several partial vectors (at most
    `most`), and vector stores. Lanes that are threads take consecutive elements where they can load and store them
    together."""
    def along(s: For) -> list[Statement]:
        if any(isinstance(x, For) for x in s.body):
            return [For(s.range, LOOP, along_rows(s.body, lanes, decisions, by_threads, most), s.stop)]
        consecutive = access_width(s.body, s.range) if by_threads and s.stop is None else 0
        consecutive = consecutive if s.range.arg.size % (max(consecutive, 1) * lanes) == 0 else 0
        if s.kind == TASK:
            chosen = ask_lanes(decisions, [s], 0, consecutive or vectors_in_flight(s.body), lanes)
            loop = For(s.range, LOOP, s.body, s.stop)
            return moves.wide(loop, chosen.tile, chosen.lanes, copies=False, consecutive=consecutive > 0)
        tile = consecutive or min(most, vectors_in_flight(s.body))
        wide = sum_moves.wide_reduce(s, tile, lanes, chunk=ADDS * tile * lanes, consecutive=consecutive > 0)
        if wide is not None:
            decisions.ask(FoldedLanes(s.range.arg.name, tile, lanes), lambda c: None)
        return wide or [s]
    return each_loop(body, along)


# -- partial sums ------------------------------------------------------------------------------------------------------
def divisible_sum(loops: list[For], inner: list[Statement]) -> For | None:
    """The loop of a nest's first reduction, if it can be split into parts. No other loop may have a run-time bound, and
    its own must be the same for all results."""
    reduced = next((s for s in inner if isinstance(s, For)), None)
    if reduced is None or reduced.kind != LOOP or reduced.stop is not None and ranges_of(reduced.stop):
        return None
    others = [*loops, *[f for f in walk(reduced.body) if isinstance(f, For)]]
    return reduced if all(f.stop is None for f in others) else None


def partial_sums(loops: list[For], inner: list[Statement], reduced: For, least: int, target: Target,
                 decisions: Decisions) -> tuple[list[Statement], list[Statement]] | None:
    """Split a reduction into partial results over chunks of the reduced loop, of at least `least` iterations each, and
    their combination. The chunks depend on the shape alone."""
    n = reduced.range.arg.size
    chunk = _chunk(n, least, most=8 * target.few_tasks)
    parts = sum_moves.group(inner, [f.range for f in loops], chunk) if chunk < n else None
    if parts is None:
        return None
    decisions.ask(PartialSums(reduced.range.arg.name, chunk), lambda c: None)
    first, second = parts
    return first, loops_around([f.range for f in loops], second, TASK)


def _chunk(n: int, least: int, most: int) -> int:
    """The size of a chunk: at least `least`, for at most `most` chunks, and dividing n if a nearby size does."""
    chunk = max(least, -(-n // most))
    return next((c for c in range(chunk, min(2 * chunk, n) + 1) if n % c == 0), chunk)


def one_loop(loop: For) -> For:
    """for a: for b: S  ->  for i: S[a = i // n, b = i % n]      (only a may have a run-time bound)"""
    ranges, body = [loop.range], loop.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind == LOOP:
        ranges.append(body[0].range)
        body = body[0].body
    axis = FlatAxis.of(ranges)
    if len(ranges) == 1:
        return loop
    whole = counter(loop.range.arg.name, axis.size)
    inside = axis.size // loop.range.arg.size
    return For(whole, LOOP, moves.rebuild(body, axis.indices(whole)), loop.stop and multiply(loop.stop, inside))


@move(lambda body, most: body)
def unrolled(body: list[Statement], most: int) -> list[Statement]:
    """for k in 3: r += f[k]  ->  r += f[0]; r += f[1]; r += f[2]      for up to `most` steps of nested loops"""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, (For, If)):
            s = with_body(s, unrolled(s.body, most))
        if isinstance(s, For) and s.kind == LOOP and s.stop is None and s.range.arg.size * len(s.body) <= most and \
                all(isinstance(each, Accumulate) for each in s.body):
            out += [each for at in range(s.range.arg.size) for each in moves.rebuild(s.body, {s.range: index(at)})]
        else:
            out.append(s)
    return out


# -- tasks -------------------------------------------------------------------------------------------------------------
def nest(loops: list[For], body: list[Statement], total: int, target: Target, decisions: Decisions,
              independent: bool = True) -> list[Statement]:
    """Wrap the body in its outer loops; as many of these, from the outside, as give tasks of a worthwhile size become
    TASK loops. If that gives few tasks, the first loop of the body becomes tasks too, if it is `independent` of the
    rest."""
    rows = count(f.range for f in loops)
    pieces = rows * (body[0].range.arg.size if independent and body and isinstance(body[0], For) else 1)
    most = pieces if target.free_tasks else target.most_tasks
    wanted = decisions.ask(Tasks(max(1, min(most, total // target.task_steps))),
                           lambda c: f"at most {most} tasks" if c.count > max(1, most) else None).count
    few_rows = gpu.SPREAD_ROWS * target.few_tasks if target.groups else cpu.SPREAD_ROWS
    if independent and body and wanted > 1 and rows < few_rows:
        body = moves.spread(body, max(1, wanted // max(rows, 1)), target.groups)
    shorter = None if target.groups or len(loops) != 1 else _times_shorter(body)
    if shorter is not None and wanted > 1 and rows > 1:
        return [tasks_of_rows(For(loops[0].range, LOOP, body, loops[0].stop), wanted, shorter)]
    return moves.loops_as_tasks([f.range for f in loops], body, wanted, {f.range: f.stop for f in loops}, target.groups)


@move(lambda loop, *_: loop)
def tasks_of_rows(loop: For, most: int, shorter: UOp) -> For:
    """for i in n: S  ->  TASK o below ceil(n / m): for i below m: S[i = o*m + i]      (the last may be shorter)

    For rows of a run-time length. A task has m rows: n / most for the longest possible rows, and `shorter` times as
    many for rows that are that many times shorter.
    """
    n, name = loop.range.arg.size, loop.range.arg.name
    least = -(-n // most)
    task, row, end = counter(name + "t", -(-n // least)), counter(name, n), loop.stop or index(n)
    rows = multiply(shorter, least)
    begin = times(task, rows)
    body = moves.rebuild(loop.body, {loop.range: add(begin, row)})
    left = add(end, multiply(begin, -1)).minimum(rows)
    return For(task, TASK, [For(row, LOOP, body, left)], operation(o.IDIV, add(end, add(rows, index(-1))), rows))


def _times_shorter(body: list[Statement]) -> UOp | None:
    """How many times less work there is than for the greatest value of a run-time size; None if the work does not
    depend on one such value alone."""
    stops = [f.stop for f in walk(body) if isinstance(f, For) and f.stop is not None]
    values = {n for stop in stops for n in stop.toposort() if isinstance(n.arg, Measure)}
    if len(values) != 1:
        return None
    [value] = values
    low, high = bounds(value)
    follows = low > 0 and greatest_within(work(body) // 4, body, value.arg) >= high // 8
    return operation(o.IDIV, index(high), value) if follows else None
