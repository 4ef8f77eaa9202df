"""Optimize CPU loops that are not contractions: lanes, partial sums and tasks. In: a plain loop nest. Out: loop nests.

Lanes run along the rows or along the columns, whichever is contiguous in memory (access_order.py); then the outer loops
become tasks. Few rows with a long reduction are first split into partial sums. (For a GPU: gpu_loops.py.)
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.lower.loops import (LOOP, TASK, For, If, Statement, loops_around, nodes_in, task_loops,
                                            version_of, walk)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.moves.cut_at_gates import branches_at_gates, branches_at_parts, cut_at_gates
from glassgrad.compiler.optimize.plain.access_order import (access_cost, columns_cost, itemsize, lane_loop, lane_loops,
                                                            only_gathers, rows_cost, stores_in_order, vectors_in_flight,
                                                            work)
from glassgrad.compiler.optimize.plain.columns import along_rows_of_slices, goes_along_rows
from glassgrad.compiler.optimize.plain.cpu_scatters import rows_among_tasks
from glassgrad.compiler.optimize.plain.gpu_scatters import scattered_along
from glassgrad.compiler.optimize.plain.lanes_and_tasks import (ADDS, FEW_ROWS, LEAST_READ, along_rows, ask_lanes,
                                                               divisible_sum, nest, partial_sums, unrolled)
from glassgrad.compiler.optimize.plain.reductions import rows_at_once, transposed
from glassgrad.compiler.optimize.product.recognize import count
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.versions_by_size import guarded_versions, replace_bound, run_only_if

MOST_CUTS = 8           # cuts of a row at its conditions: `pad` has two, `cat` of nine tensors has eight
MOST_BRANCHES = 1       # conditions that are the same for a whole row, for which there are two versions of it


def plain(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]]:
    """Give a loop nest lanes and tasks, and unroll its short sums."""
    return [unrolled(phase, cpu.SHORT_LOOP) for phase in _phases(body, target, decisions)]


def _phases(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]]:
    """The phases of a nest: one, or two if a long sum is split into partial sums."""
    loops, inner = task_loops(body)
    total, lanes = work(body), target.lanes(itemsize(body))
    if stores_in_order(inner):
        return _scatter_or_scan(loops, inner, total, lanes, target, decisions)
    blocks = transposed(loops, inner, lanes, decisions)
    if blocks is not None:
        return [nest(blocks[0], blocks[1], total, target, decisions)]
    columns = Columns.of(loops, inner, total, lanes, target)
    tasks = count(f.range for f in loops) if columns is None else columns.tasks
    reduced = divisible_sum(loops, inner) if total >= target.cut_steps and tasks < target.few_tasks else None
    if reduced is not None:
        least = target.least_chunk if columns is None else columns.least_part
        least = max(least, target.cut_steps // 4 * reduced.range.arg.size // max(total, 1))
        parts = partial_sums(loops, inner, reduced, least, target, decisions)
        if parts is not None:
            return _whole_if_short(body, reduced, parts, target, decisions)
    if columns is None:
        return [_rows(loops, inner, tasks, total, lanes, target, decisions)]
    return [_along_columns(columns, loops, inner, total, lanes, target, decisions)]


def _whole_if_short(body: list[Statement], reduced: For, parts: tuple[list[Statement], list[Statement]], target: Target,
                    decisions: Decisions) -> list[list[Statement]]:
    """The phases of a sum in parts. For a run-time length, they are preceded by a phase that computes the whole sum if
    it is so short that it has one part only."""
    in_parts = [phase for part in parts for phase in plain(part, target, decisions)]
    if reduced.stop is None:
        return in_parts
    chunk = next(s.range.arg.size for s in walk(parts[0]) if isinstance(s, For) and s.stop and s.kind == LOOP)
    short, long = map(version_of, guarded_versions({chunk: replace_bound(body, reduced.stop, chunk, reduced.stop),
                                         reduced.range.arg.size: body}, reduced.stop, -1))
    whole = [run_only_if(short[0], phase) for phase in plain(short[1], target, decisions)]
    return [*whole, *[run_only_if(long[0], phase) for phase in in_parts]]


class Columns(NamedTuple):
    """A way to put lanes along one of the outer loops."""
    free: list[For]               # the loops that lanes may go along,
    at: int                       # and which of them they go along
    tile: int                     # vectors in flight
    tasks: int                    # the most tasks possible
    least_part: int               # elements of a column from which a part of its sum is worthwhile
    in_slices: bool               # whether long columns are summed row by row (columns.py)

    @staticmethod
    def of(loops: list[For], inner: list[Statement], total: int, lanes: int, target: Target) -> Columns | None:
        """Choose the best of these loops; None if lanes along rows cost less."""
        free = lane_loops(loops, inner)
        if not free or columns_cost(free, inner, lanes) > rows_cost(inner, lanes):
            return None
        at, tile = lane_loop(free, inner), vectors_in_flight(inner)
        size = free[at].range.arg.size
        others = count(f.range for f in loops) // max(size, 1)
        if total * 4 >= target.l2_bytes and goes_along_rows(free[at], inner, others, target):
            return Columns(free, at, tile, others * -(-size // cpu.SLICE), cpu.LEAST_PART, True)
        return Columns(free, at, tile, others * -(-size // (tile * lanes)), LEAST_READ, False)


def _along_columns(columns: Columns, loops: list[For], inner: list[Statement], total: int, lanes: int, target: Target,
                   decisions: Decisions) -> list[Statement]:
    """Put the nest's lanes along one of its outer loops."""
    lanes = 1 if not target.has_gathers and only_gathers(inner, columns.free[columns.at].range) else lanes
    chosen = ask_lanes(decisions, columns.free, columns.at, columns.tile, lanes)
    loop = next(f for f in columns.free if f.range.arg.name == chosen.loop)
    others = [f for f in loops if f is not loop]
    slices = along_rows_of_slices(loop, inner, chosen.tile, chosen.lanes, count(f.range for f in others), target,
                                  decisions) if columns.in_slices else None
    if slices is not None:
        return nest([*others, slices[0]], slices[1], total, target, decisions, independent=False)
    whole = For(loop.range, LOOP, sum_moves.chunks(inner, ADDS), loop.stop)
    pieces: list[tuple[UOp | None, For]] = [(None, whole)]
    if any(n.op is o.CMPLT for n in nodes_in(inner)):
        pieces = branches_at_parts(whole, others, MOST_CUTS)
        if len(pieces) == 1:
            pieces = [each for piece in cut_at_gates(whole, MOST_CUTS)
                      for each in branches_at_gates(piece, MOST_BRANCHES)]
    body: list[Statement] = []
    for holds, piece in pieces:
        wide = moves.wide(piece, chosen.tile, chosen.lanes)
        body += wide if holds is None else [If(holds, wide)]
    return nest(others, body, total, target, decisions)


def _rows(loops: list[For], inner: list[Statement], tasks: int, total: int, lanes: int, target: Target,
          decisions: Decisions) -> list[Statement]:
    """Put the nest's lanes along the loops of a row, with several rows at once if enough tasks are left."""
    rows = rows_at_once(loops, inner, target)
    if rows is not None and rows.row.range.arg.size < FEW_ROWS and \
            tasks // (rows.count * rows.width) < min(target.few_tasks, total // target.task_steps):
        rows = None                                      # there would be few tasks
    if rows is None:
        return nest(loops, along_rows(inner, lanes, decisions, by_threads=False), total, target, decisions)
    wide = along_rows(inner, lanes, decisions, by_threads=False, most=rows.most_vectors(target))
    wide = rows.together(wide, target, decisions)
    return nest([f for f in loops if f not in (rows.row, rows.few)], wide, total, target, decisions)


def _scatter_or_scan(loops: list[For], inner: list[Statement], total: int, lanes: int, target: Target,
                     decisions: Decisions) -> list[list[Statement]]:
    """The phases of a nest whose stores must stay in order; lanes go along its last loop if that pays."""
    rows = rows_among_tasks(loops, inner, min(target.workers, total // target.task_steps), lanes)
    if rows is not None:
        nested = nest(rows.loops, rows.body, total, target, decisions, independent=False)
        return [*rows.before, loops_around(rows.tasks, nested, TASK)]
    lane = loops[-1].range if loops and loops[-1] in lane_loops(loops, inner) else None
    along = lane is not None and lane.arg.size > 1 and not scattered_along(inner, lane) and \
        access_cost(inner, lane, lanes) < access_cost(inner, lane, 1)
    if lane is not None and along:
        chosen = ask_lanes(decisions, loops[-1:], 0, 1, lanes)
        inner = moves.wide(For(lane, LOOP, inner, loops[-1].stop), chosen.tile, chosen.lanes)
        loops = loops[:-1]
    return [nest(loops, inner, total, target, decisions, independent=along)]
