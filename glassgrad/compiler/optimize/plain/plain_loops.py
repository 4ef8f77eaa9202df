"""Loops that are no contraction: lanes, partial sums and tasks. In: a plain loop nest and a `Target`. Out: loop nests.

Lanes run along the rows or along the columns, whichever is contiguous in memory (access_order.py); then the outer loops
become tasks. Few rows with a long reduction are first split into partial sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.compiler.graph.index_algebra import multiply
from glassgrad.compiler.lower.loops import (LOOP, TASK, For, Statement, counter, loops_around, ranges_of, task_loops,
                                            walk)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, fixed
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.moves.read_ahead import read_ahead, read_first
from glassgrad.compiler.optimize.plain.access_order import (access_cost, arithmetic, columns_cost, itemsize, lane_loop,
                                                            lane_loops, neighbours, odd_rows, only_gathers,
                                                            row_neighbours, rows_cost, stores_in_order,
                                                            vectors_in_flight, weighed, work)
from glassgrad.compiler.optimize.plain.columns import along_rows_of_slices, goes_along_rows
from glassgrad.compiler.optimize.plain.cpu_scatters import rows_among_tasks
from glassgrad.compiler.optimize.plain.gpu_scatters import rows_apart, scattered_along
from glassgrad.compiler.optimize.plain.reductions import rows_at_once, transposed
from glassgrad.compiler.optimize.plain.rows_in_registers import Row, row_in_steps
from glassgrad.compiler.optimize.plain.scans import read_ahead_of_totals, scan_in_chunks, scan_in_group
from glassgrad.compiler.optimize.product.recognize import FlatAxis, count
from glassgrad.compiler.optimize.targets import cpu_costs as cpu, gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

ADDS = 128              # adds per lane before a partial sum is folded: equal values round one way, so float32 wants few
MOST_VECTORS = 16       # in flight: more only make the code longer
LONG_ARITHMETIC = 16    # operations per element from which a GPU thread loads what comes next before it computes,
AHEAD_TASKS = 16        # if there are at least this many times `few_tasks` groups
FEWEST_LANES = 64       # of a group, however few there are
LONG_ROW = 4            # a row of this many times a group's width has a negligible remainder
FEW_ROWS = 16           # below which rows are jammed only where enough tasks are left
LEAST_READ = 16         # elements that a GPU thread adds up for a part of a sum;
LEAST_FOLDED = 8        # the same where the threads of a group share the part, and fold their sums
SPREAD_ROWS = 64        # times `few_tasks`: up to this many rows, a GPU splits each row into several tasks
MOST_CUTS = 8           # of a row at its conditions: `pad` has two, `cat` of nine has eight
AT_ONCE = 4             # strided elements that a GPU thread loads before it computes


@dataclass(frozen=True)
class Lanes(Choice):
    """Vectors along a loop of independent iterations, `tile` of them in flight."""
    loop: str
    tile: int
    lanes: int


@dataclass(frozen=True)
class FoldedLanes(Choice, names=["fold"]):
    """Vectors along a reduced loop, folded at the end: their number decides the order of the sum."""
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


def plain(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]]:
    """The loop nest with lanes and tasks: one phase, or two where a long sum is split into partial sums."""
    loops, inner = task_loops(body)
    total, lanes = work(body), target.lanes(itemsize(body))
    apart = rows_apart(loops, inner, target, lanes) if target.groups else None
    if apart is not None:
        return [apart]
    if stores_in_order(inner):
        return scatter_or_scan(loops, inner, total, lanes, target, decisions)
    blocks = None if target.groups else transposed(loops, inner, lanes, decisions)
    if blocks is not None:
        return [nest(blocks[0], blocks[1], total, target, decisions)]
    columns = Columns.of(loops, inner, lanes, target)
    tasks = count(f.range for f in loops) if columns is None else columns.tasks
    row = Row.of(inner) if target.groups and columns is None else None
    in_registers = row is not None and row.lanes(tasks, target) is not None
    if total >= target.cut_steps and tasks < target.few_tasks and not in_registers:
        width, least = lanes, LEAST_FOLDED * lanes if target.groups else target.least_chunk
        if columns is not None:
            width, least = columns.lanes, columns.least_part
        parts = grouped(loops, inner, total, tasks * width // target.lanes(4), least, target, decisions)
        if parts is not None:
            return [b for part in parts for b in plain(part, target, decisions)]
    if columns is None:
        return [_rows(loops, inner, row, tasks, total, lanes, target, decisions)]
    return [_along_columns(columns, loops, inner, total, target, decisions)]


class Columns(NamedTuple):
    """Lanes along one of the outer loops, `tile` vectors of them at once."""
    free: list[For]               # the loops that lanes may go along,
    at: int                       # and which of them they do
    consecutive: int              # elements that a thread of a GPU takes; 0: a vector has consecutive ones
    tile: int
    lanes: int
    tasks: int                    # the most that there can be
    least_part: int               # elements of a column that are worth a part of its sum

    @staticmethod
    def of(loops: list[For], inner: list[Statement], lanes: int, target: Target) -> Columns | None:
        """The best of these loops; None where lanes along rows cost less."""
        free, tasks, tile = lane_loops(loops, inner), count(f.range for f in loops), vectors_in_flight(inner)
        if not free or columns_cost(free, inner, lanes) > rows_cost(inner, lanes):
            return None
        at = lane_loop(free, inner)
        along, size = free[at].range, free[at].range.arg.size
        consecutive = neighbours(inner, along) if target.groups else 0
        if arithmetic(inner) and tasks >= LONG_ROW * lanes * target.few_tasks and odd_rows(inner, along):
            consecutive = 0
        if target.groups and tile > 1:
            tile = max(tile, AT_ONCE)
        tile, lanes = _whole_groups(size, consecutive, lanes) if consecutive else (tile, lanes)
        others = tasks // max(size, 1)
        if goes_along_rows(free[at], inner, others, target):
            return Columns(free, at, consecutive, tile, lanes, others * -(-size // cpu.SLICE), cpu.LEAST_PART)
        return Columns(free, at, consecutive, tile, lanes, others * -(-size // (tile * lanes)), LEAST_READ)


def _along_columns(columns: Columns, loops: list[For], inner: list[Statement], total: int, target: Target,
                   decisions: Decisions) -> list[Statement]:
    """The nest with lanes along one of its outer loops."""
    free, at, consecutive, tile, lanes, tasks, _ = columns
    if consecutive:
        tile, lanes = _more_groups(tasks, min(target.few_tasks // 2, total // target.task_steps), tile, lanes)
    lanes = 1 if not (target.groups or target.has_gathers) and only_gathers(inner, free[at].range) else lanes
    chosen = ask_lanes(decisions, free, at, tile, lanes)
    loop = next(f for f in free if f.range.arg.name == chosen.loop)
    around = [f for f in loops if f is not loop]
    slices = None if consecutive else \
        along_rows_of_slices(loop, inner, chosen.tile, chosen.lanes, count(f.range for f in around), target, decisions)
    if slices is not None:
        return nest([*around, slices[0]], slices[1], total, target, decisions, independent=False)
    whole = For(loop.range, LOOP, sum_moves.chunks(inner, ADDS), loop.stop)
    pieces = [whole] if target.groups else moves.cut_at_gates(whole, MOST_CUTS)
    body = [s for piece in pieces for s in moves.wide(piece, chosen.tile, chosen.lanes, consecutive=consecutive > 0)]
    if consecutive and arithmetic(inner) >= LONG_ARITHMETIC and tasks >= AHEAD_TASKS * target.few_tasks:
        body = read_ahead(body)
    body = read_first(body, least=2 if consecutive else 1) if target.groups else body
    return nest(around, body, total, target, decisions)


def _rows(loops: list[For], inner: list[Statement], row: Row | None, tasks: int, total: int, lanes: int,
          target: Target, decisions: Decisions) -> list[Statement]:
    """The nest with lanes along the loops of a row; of several rows at once, where enough tasks are left."""
    rows = rows_at_once(loops, inner, target)
    if rows is not None and target.groups and (rows.row.range.arg.size // rows.count < target.few_tasks
                                               or work(inner) >= gpu.LONG_ROW):
        rows = None                                      # more groups are better
    if rows is not None and rows.row.range.arg.size < FEW_ROWS and \
            tasks // (rows.count * rows.width) < min(target.few_tasks, total // target.task_steps):
        rows = None                                      # tasks would be few
    if rows is None:
        steps = None if row is None else row_in_steps(row, tasks, row_neighbours(inner), target, decisions)
        return nest(loops, steps or along_rows(inner, lanes, decisions, target), total, target, decisions)
    # sums of all these rows take half of the registers
    most = max(1, target.vector_registers // (2 * rows.count * rows.width))
    wide = rows.together(along_rows(inner, lanes, decisions, target, most), target, decisions)
    return nest([f for f in loops if f not in (rows.row, rows.few)], wide, total, target, decisions)


def in_order(loops: list[For], inner: list[Statement], total: int, target: Target, decisions: Decisions) \
        -> list[Statement]:
    """A nest whose stores must stay in order (a scan, a scatter); lanes along its last loop, where that pays."""
    lanes = target.lanes(itemsize(inner))
    lane = loops[-1].range if loops and loops[-1] in lane_loops(loops, inner) else None
    if lane is not None and (target.groups or not scattered_along(inner, lane) and
                             access_cost(inner, lane, lanes) < access_cost(inner, lane, 1)):
        consecutive = neighbours(inner, lane) if target.groups and lane.arg.size >= 4 * lanes else 0
        consecutive = 0 if odd_rows(inner, lane) else consecutive
        tile = max(1, consecutive)
        if target.groups and lane.arg.size > tile * lanes:
            groups = count(f.range for f in loops[:-1]) * -(-lane.arg.size // (tile * lanes))
            tile, lanes = _more_groups(groups, target.few_tasks, tile, lanes)
        chosen = ask_lanes(decisions, loops[-1:], 0, tile, lanes)
        inner = read_ahead_of_totals(inner, chosen.tile) if target.groups else inner
        loop = For(lane, LOOP, inner, loops[-1].stop)
        body = moves.wide(loop, chosen.tile, chosen.lanes, consecutive=consecutive > 0)
        return nest(loops[:-1], body, total, target, decisions, independent=target.groups)
    return nest(loops, inner, total, target, decisions, independent=False)


def scatter_or_scan(loops: list[For], inner: list[Statement], total: int, lanes: int, target: Target,
                    decisions: Decisions) -> list[list[Statement]]:
    """The phases of a nest whose stores must stay in order."""
    if not target.groups:
        rows = rows_among_tasks(loops, inner, min(target.workers, total // target.task_steps), lanes)
        if rows is None:
            return [in_order(loops, inner, total, target, decisions)]
        nested = nest(rows.loops, rows.body, total, target, decisions, independent=False)
        return [*rows.before, loops_around(rows.tasks, nested, TASK)]
    parts = scan_in_chunks(loops, inner, total, target, decisions)
    if parts is not None:
        return [b for part in parts for b in plain(part, target, decisions)]
    body = scan_in_group(loops, inner, decisions) if all(f.stop is None for f in loops) else None
    if body is None:
        return [in_order(loops, inner, total, target, decisions)]
    return [loops_around([f.range for f in loops], body, TASK)]


def ask_lanes(decisions: Decisions, loops: list[For], at: int, tile: int, lanes: int) -> Lanes:
    """Which of the loops the vectors go along, and how many are in flight."""
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


def grouped(loops: list[For], inner: list[Statement], total: int, possible_tasks: int, read: int, target: Target,
            decisions: Decisions) -> tuple[list[Statement], list[Statement]] | None:
    """Partial results over chunks of the reduced axis, and their combination; the chunks depend on the shape alone. On
    a GPU they are short enough that, with `possible_tasks` groups of threads for each chunk, all processors are busy,
    but have at least `read` elements."""
    reduced = next((s for s in inner if isinstance(s, For)), None)
    if reduced is None or reduced.kind != LOOP or any(f.stop is not None for f in (*loops, *walk(reduced.body))
                                                      if isinstance(f, For)):
        return None
    if reduced.stop is not None and ranges_of(reduced.stop):
        return None
    if target.groups and max(times for _, times in weighed(reduced.body)) > target.least_chunk:
        whole = one_loop(reduced)                    # one iteration of the outermost loop would be too long for a part
        inner, reduced = [whole if s is reduced else s for s in inner], whole
    n = reduced.range.arg.size
    if target.groups:
        inside = int(max(times for _, times in weighed(reduced.body)))
        if n * inside <= target.least_chunk:
            return None
        busy = n * inside * max(possible_tasks, 1) // target.few_tasks
        least = -(-max(read, min(target.least_chunk, busy)) // inside)
    else:
        least = max(read, target.cut_steps // 4 * n // max(total, 1))
    chunk = _chunk(n, least, most=8 * target.few_tasks)
    parts = sum_moves.group(inner, [f.range for f in loops], chunk) if chunk < n else None
    if parts is None:
        return None
    decisions.ask(PartialSums(reduced.range.arg.name, chunk), lambda c: None)
    first, second = parts
    return first, loops_around([f.range for f in loops], second, TASK)


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
    return For(whole, LOOP, moves.rebuild(body, axis.apart(whole)), loop.stop and multiply(loop.stop, inside))


def _chunk(n: int, least: int, most: int) -> int:
    """A chunk of at least `least`, at most `most` chunks, dividing n where a nearby size does."""
    chunk = max(least, -(-n // most))
    return next((c for c in range(chunk, min(2 * chunk, n) + 1) if n % c == 0), chunk)


def along_rows(body: list[Statement], lanes: int, decisions: Decisions, target: Target, most: int = 4) \
        -> list[Statement]:
    """The body with lanes along the innermost loops of a row: reductions into several partial vectors (at most `most`),
    vector stores. A GPU thread takes consecutive elements where it can load and store them together."""
    out: list[Statement] = []
    for s in body:
        if not isinstance(s, For):
            out.append(s)
            continue
        if any(isinstance(x, For) for x in s.body):
            out.append(For(s.range, LOOP, along_rows(s.body, lanes, decisions, target, most), s.stop))
            continue
        consecutive = neighbours(s.body, s.range) if target.groups and s.stop is None else 0
        consecutive = consecutive if s.range.arg.size % (max(consecutive, 1) * lanes) == 0 else 0
        if s.kind == TASK:
            chosen = ask_lanes(decisions, [s], 0, consecutive or vectors_in_flight(s.body), lanes)
            loop = For(s.range, LOOP, s.body, s.stop)
            out += moves.wide(loop, chosen.tile, chosen.lanes, copies=False, consecutive=consecutive > 0)
        else:
            tile = consecutive or min(most, vectors_in_flight(s.body))
            wide = sum_moves.wide_reduce(s, tile, lanes, chunk=ADDS * tile * lanes, consecutive=consecutive > 0)
            if wide is not None:
                decisions.ask(FoldedLanes(s.range.arg.name, tile, lanes), lambda c: None)
            out += wide or [s]
    return out


def nest(loops: list[For], body: list[Statement], total: int, target: Target, decisions: Decisions,
         independent: bool = True) -> list[Statement]:
    """The outer loops around the body, the outermost of them as tasks of a worthwhile size. Where these are few, the
    first loop of the body becomes tasks too, if it is `independent` of the rest."""
    rows = count(f.range for f in loops)
    pieces = rows * (body[0].range.arg.size if independent and body and isinstance(body[0], For) else 1)
    most = pieces if target.free_tasks else target.most_tasks
    wanted = decisions.ask(Tasks(max(1, min(most, total // target.task_steps))),
                           lambda c: f"at most {most} tasks" if c.count > max(1, most) else None).count
    few_rows = SPREAD_ROWS * target.few_tasks if target.groups else 16
    if independent and body and wanted > 1 and rows < few_rows:
        body = moves.spread(body, max(1, wanted // max(rows, 1)), target.groups)
    return moves.share_out([f.range for f in loops], body, wanted, {f.range: f.stop for f in loops}, target.groups)


def _whole_groups(size: int, tile: int, lanes: int) -> tuple[int, int]:
    """Elements per thread and threads per group that divide a short loop, so that there is no remainder with fewer
    elements per thread; unchanged where none divide it."""
    if size >= LONG_ROW * tile * lanes:
        return tile, lanes
    found = [(t, v) for t in (tile, tile // 2, tile // 4) for v in (lanes, lanes // 2, lanes // 4)
             if t > 1 and v >= FEWEST_LANES and size % (t * v) == 0]
    return found[0] if found else (tile, lanes)


def _more_groups(groups: int, most: int, tile: int, lanes: int) -> tuple[int, int]:
    """Fewer elements per thread, then fewer threads per group, until there are about `most` groups: with fewer, most of
    a GPU would be idle."""
    while 2 * groups <= most and tile * lanes > FEWEST_LANES:
        groups, tile, lanes = 2 * groups, max(1, tile // 2), lanes if tile > 1 else lanes // 2
    return tile, lanes
