"""Optimize GPU loops that are not contractions. In: a plain loop nest. Out: loop nests for groups of threads.

A vector is a group of 256 threads. Transposing copies go through shared memory (transposed_copies.py); loops shorter
than a group are flattened (short_gpu_loops.py). Otherwise lanes run along the rows or along the columns, whichever is
contiguous in memory (access_order.py), and a thread takes consecutive elements, which it loads together. A group is a
task: if there would be few, rows and sums are split.
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.compiler.lower.loops import LOOP, TASK, For, Statement, loops_around, task_loops
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.moves.read_ahead import read_ahead, read_first
from glassgrad.compiler.optimize.plain.access_order import (access_width, arithmetic, columns_cost, itemsize, lane_loop,
                                                            lane_loops, odd_rows, row_access_width, rows_cost,
                                                            stores_in_order, vectors_in_flight, weighted, work)
from glassgrad.compiler.optimize.plain.gpu_scatters import rows_apart
from glassgrad.compiler.optimize.plain.lanes_and_tasks import (ADDS, FEW_ROWS, LEAST_READ, LONG_ARITHMETIC, along_rows,
                                                               ask_lanes, divisible_sum, nest, one_loop, partial_sums)
from glassgrad.compiler.optimize.plain.reductions import rows_at_once
from glassgrad.compiler.optimize.plain.rows_in_registers import Row, row_in_steps
from glassgrad.compiler.optimize.plain.scans import read_ahead_of_totals, scan_in_chunks, scan_in_group
from glassgrad.compiler.optimize.plain.short_gpu_loops import in_threads
from glassgrad.compiler.optimize.plain.transposed_copies import across_group
from glassgrad.compiler.optimize.product.recognize import count
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

AHEAD_TASKS = 16        # times `few_tasks` groups, from which a thread loads its next elements before it computes
FEWEST_LANES = 64       # threads of a group
LONG_ROW = 4            # times a group's width: a row this long has a negligible remainder
AT_ONCE = 4             # strided elements that a thread loads before it computes


def group_loops(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]]:
    """The phases of a loop nest that is not a contraction."""
    across = across_group(body, target, decisions)
    short = in_threads(body, target, decisions) if across is None else [across]
    return _long_loops(body, target, decisions) if short is None else short


def _long_loops(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]]:
    """The phases of a nest with a loop that is long enough for a group."""
    loops, inner = task_loops(body)
    total, lanes = work(body), target.lanes(itemsize(body))
    apart = rows_apart(loops, inner, target, lanes)
    if apart is not None:
        return [apart]
    if stores_in_order(inner):
        return _scatter_or_scan(loops, inner, total, lanes, target, decisions)
    columns = GroupColumns.of(loops, inner, lanes, target)
    tasks = count(f.range for f in loops) if columns is None else columns.tasks
    row = Row.of(inner) if columns is None else None
    in_registers = row is not None and row.lanes(tasks, target) is not None
    if total >= target.cut_steps and tasks < target.few_tasks and not in_registers:
        parts = _parts(loops, inner, tasks, lanes, columns, target, decisions)
        if parts is not None:
            return [phase for part in parts for phase in _long_loops(part, target, decisions)]
    if columns is None:
        return [_rows(loops, inner, row, tasks, total, lanes, target, decisions)]
    return [_along_columns(columns, loops, inner, total, target, decisions)]


class GroupColumns(NamedTuple):
    """A way to put threads along one of the outer loops, each with a few elements of it."""
    free: list[For]               # the loops that threads may go along,
    at: int                       # and which of them they go along
    consecutive: int  # consecutive elements that a thread takes; 0: neighbouring threads have neighbouring elements
    tile: int                     # elements per thread
    lanes: int                    # threads per group
    tasks: int                    # the most groups possible

    @staticmethod
    def of(loops: list[For], inner: list[Statement], lanes: int, target: Target) -> GroupColumns | None:
        """Choose the best of these loops; None if threads along rows cost less."""
        free, tasks, tile = lane_loops(loops, inner), count(f.range for f in loops), vectors_in_flight(inner)
        if not free or columns_cost(free, inner, lanes) > rows_cost(inner, lanes):
            return None
        at = lane_loop(free, inner)
        along, size = free[at].range, free[at].range.arg.size
        consecutive = access_width(inner, along)
        if arithmetic(inner) and tasks >= LONG_ROW * lanes * target.few_tasks and odd_rows(inner, along):
            consecutive = 0
        tile = max(tile, AT_ONCE) if tile > 1 else tile
        tile, lanes = _whole_groups(size, consecutive, lanes) if consecutive else (tile, lanes)
        return GroupColumns(free, at, consecutive, tile, lanes, tasks // max(size, 1) * -(-size // (tile * lanes)))


def _along_columns(columns: GroupColumns, loops: list[For], inner: list[Statement], total: int, target: Target,
                   decisions: Decisions) -> list[Statement]:
    """Put threads along one of the nest's outer loops."""
    free, at, consecutive, tile, lanes, tasks = columns
    if consecutive:
        tile, lanes = _more_groups(tasks, min(target.few_tasks // 2, total // target.task_steps), tile, lanes)
    chosen = ask_lanes(decisions, free, at, tile, lanes)
    loop = next(f for f in free if f.range.arg.name == chosen.loop)
    whole = For(loop.range, LOOP, sum_moves.chunks(inner, ADDS), loop.stop)
    body = moves.wide(whole, chosen.tile, chosen.lanes, consecutive=consecutive > 0)
    if consecutive and arithmetic(inner) >= LONG_ARITHMETIC and tasks >= AHEAD_TASKS * target.few_tasks:
        body = read_ahead(body)
    body = read_first(body, least=2 if consecutive else 1)
    return nest([f for f in loops if f is not loop], body, total, target, decisions)


def _rows(loops: list[For], inner: list[Statement], row: Row | None, tasks: int, total: int, lanes: int,
          target: Target, decisions: Decisions) -> list[Statement]:
    """Put threads along the loops of a row, with several rows at once if enough groups are left."""
    rows = rows_at_once(loops, inner, target)
    if rows is not None:
        size, groups = rows.row.range.arg.size, tasks // (rows.count * rows.width)
        few = size < FEW_ROWS and groups < min(target.few_tasks, total // target.task_steps)
        rows = None if few or size // rows.count < target.few_tasks or work(inner) >= gpu.LONG_ROW else rows
    if rows is None:
        steps = None if row is None else row_in_steps(row, tasks, row_access_width(inner), target, decisions)
        return nest(loops, steps or along_rows(inner, lanes, decisions, by_threads=True), total, target, decisions)
    wide = along_rows(inner, lanes, decisions, by_threads=True, most=rows.most_vectors(target))
    wide = rows.together(wide, target, decisions)
    return nest([f for f in loops if f not in (rows.row, rows.few)], wide, total, target, decisions)


def _parts(loops: list[For], inner: list[Statement], tasks: int, lanes: int, columns: GroupColumns | None,
           target: Target, decisions: Decisions) -> tuple[list[Statement], list[Statement]] | None:
    """Split a sum into parts so short that all processors are busy, given `tasks` groups for each part."""
    reduced = divisible_sum(loops, inner)
    if reduced is None:
        return None
    read = gpu.LEAST_FOLDED * lanes
    if columns is not None:
        lanes, read = columns.lanes, LEAST_READ
    if _steps(reduced.body) > target.least_chunk:        # one iteration of the outermost loop would take too long
        whole = one_loop(reduced)
        inner, reduced = [whole if s is reduced else s for s in inner], whole
    n, inside = reduced.range.arg.size, _steps(reduced.body)
    if n * inside <= target.least_chunk:
        return None
    busy = n * inside * max(tasks * lanes // target.lanes(4), 1) // target.few_tasks
    least = -(-max(read, min(target.least_chunk, busy)) // inside)
    return partial_sums(loops, inner, reduced, least, target, decisions)


def _steps(body: list[Statement]) -> int:
    """How often the innermost statement of a body runs."""
    return int(max(times for _, times in weighted(body)))


def _scatter_or_scan(loops: list[For], inner: list[Statement], total: int, lanes: int, target: Target,
                     decisions: Decisions) -> list[list[Statement]]:
    """The phases of a nest whose stores must stay in order."""
    parts = scan_in_chunks(loops, inner, total, target, decisions)
    if parts is not None:
        return [phase for part in parts for phase in _long_loops(part, target, decisions)]
    body = scan_in_group(loops, inner, decisions) if all(f.stop is None for f in loops) else None
    if body is not None:
        return [loops_around([f.range for f in loops], body, TASK)]
    if not loops or loops[-1].range.arg.size == 1 or loops[-1] not in lane_loops(loops, inner):
        return [nest(loops, inner, total, target, decisions, independent=False)]
    lane = loops[-1].range
    consecutive = access_width(inner, lane) if lane.arg.size >= 4 * lanes and not odd_rows(inner, lane) else 0
    tile = max(1, consecutive)
    if lane.arg.size > tile * lanes:
        groups = count(f.range for f in loops[:-1]) * -(-lane.arg.size // (tile * lanes))
        tile, lanes = _more_groups(groups, target.few_tasks, tile, lanes)
    chosen = ask_lanes(decisions, loops[-1:], 0, tile, lanes)
    loop = For(lane, LOOP, read_ahead_of_totals(inner, chosen.tile), loops[-1].stop)
    wide = moves.wide(loop, chosen.tile, chosen.lanes, consecutive=consecutive > 0)
    return [nest(loops[:-1], wide, total, target, decisions)]


def _whole_groups(size: int, tile: int, lanes: int) -> tuple[int, int]:
    """The elements per thread and threads per group that divide a short loop, so that no remainder has fewer elements
    per thread; unchanged if none divide it."""
    if size >= LONG_ROW * tile * lanes:
        return tile, lanes
    found = [(t, v) for t in (tile, tile // 2, tile // 4) for v in (lanes, lanes // 2, lanes // 4)
             if t > 1 and v >= FEWEST_LANES and size % (t * v) == 0]
    return found[0] if found else (tile, lanes)


def _more_groups(groups: int, most: int, tile: int, lanes: int) -> tuple[int, int]:
    """Reduce the elements per thread, then the threads per group, until there are about `most` groups: with fewer, most
    of a GPU would be idle."""
    while 2 * groups <= most and tile * lanes > FEWEST_LANES:
        groups, tile, lanes = 2 * groups, max(1, tile // 2), lanes if tile > 1 else lanes // 2
    return tile, lanes
