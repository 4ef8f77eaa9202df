"""Loops that are no contraction: lanes, partial sums and tasks. In: a plain loop nest and a `Target`. Out: loop nests.

Lanes run along the rows or along the columns, whichever is contiguous in memory; then the outer loops become tasks. Few
rows with a long reduction are first split into partial sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, linear, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, If, Statement, Store, counter,
                                            expressions, loads_in, loops_around, ranges_of, task_loops, walk)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, fixed
from glassgrad.compiler.optimize.moves import loop_moves as moves, reduction_moves as sum_moves
from glassgrad.compiler.optimize.moves.read_ahead import read_ahead, read_first
from glassgrad.compiler.optimize.plain.cpu_scatters import rows_among_tasks
from glassgrad.compiler.optimize.plain.gpu_scatters import rows_apart, scattered_along
from glassgrad.compiler.optimize.plain.reductions import along_slices, rows_at_once, transposed
from glassgrad.compiler.optimize.plain.rows_in_registers import Row, row_in_steps
from glassgrad.compiler.optimize.plain.scans import read_ahead_of_totals, scan_in_chunks, scan_in_group
from glassgrad.compiler.optimize.product.recognize import FlatAxis
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target

ADDS = 128              # adds per lane before a partial sum is folded: equal values round one way, so float32 wants few
FOLD_COST = 8.0         # of one horizontal fold, in vector instructions
WIDE_BYTES = 16         # of the widest load or store of a GPU thread
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
    total = work(body)
    lanes = target.lanes(_itemsize(body))
    for_groups = scatter_or_scan(loops, inner, total, target, decisions) if target.groups else None
    if for_groups is not None:
        return for_groups
    free = _lane_loops(loops, inner)
    if _stores_in_order(inner):
        threads = min(target.workers, total // target.task_steps)
        rows = None if target.groups else rows_among_tasks(loops, inner, threads, lanes)
        if rows is None:
            return [in_order(loops, inner, total, target, decisions)]
        nested = nest(rows.loops, rows.body, total, target, decisions, independent=False)
        return [*rows.before, loops_around(rows.tasks, nested, TASK)]
    blocks = None if target.groups else transposed(loops, inner, lanes, decisions)
    if blocks is not None:
        return [nest(blocks[0], blocks[1], total, target, decisions)]
    columns = bool(free) and columns_cost(free, inner, lanes) <= rows_cost(inner, lanes)
    tile = vectors_in_flight(inner)
    possible_tasks = math.prod(f.range.arg.size for f in loops)
    if columns:
        along = free[_lane_loop(free, inner)].range
        size = along.arg.size
        consecutive = neighbours(inner, along) if target.groups else 0
        if arithmetic(inner) and possible_tasks >= LONG_ROW * lanes * target.few_tasks and _odd_rows(inner, along):
            consecutive = 0
        if target.groups and tile > 1:
            tile = max(tile, AT_ONCE)
        tile, lanes = _whole_groups(size, consecutive, lanes) if consecutive else (tile, lanes)
        possible_tasks = possible_tasks // size * -(-size // (tile * lanes))
    row = Row.of(inner) if target.groups and not columns else None
    in_registers = row is not None and row.lanes(possible_tasks, target) is not None
    if total >= target.cut_steps and possible_tasks < target.few_tasks and not in_registers:
        least = LEAST_READ if columns else LEAST_FOLDED * lanes
        parts = grouped(loops, inner, total, possible_tasks * lanes // target.lanes(4), least, target, decisions)
        if parts is not None:
            return [b for part in parts for b in plain(part, target, decisions)]
    if columns:
        if consecutive:
            wanted = min(target.few_tasks // 2, total // target.task_steps)
            tile, lanes = _more_groups(possible_tasks, wanted, tile, lanes)
        lanes = 1 if not (target.groups or target.has_gathers) and _only_gathers(inner, along) else lanes
        chosen = ask_lanes(decisions, free, _lane_loop(free, inner), tile, lanes)
        loop = next(f for f in free if f.range.arg.name == chosen.loop)
        loops.remove(loop)
        others = math.prod(f.range.arg.size for f in loops)
        slices = None if consecutive else \
            along_slices(loop, inner, chosen.tile, chosen.lanes, others, target, decisions)
        if slices is not None:
            return [nest([*loops, slices[0]], slices[1], total, target, decisions, independent=False)]
        whole = For(loop.range, LOOP, sum_moves.chunks(inner, ADDS), loop.stop)
        pieces = [whole] if target.groups else moves.cut_at_gates(whole, MOST_CUTS)
        body = [s for piece in pieces
                for s in moves.wide(piece, chosen.tile, chosen.lanes, consecutive=consecutive > 0)]
        if consecutive and arithmetic(inner) >= LONG_ARITHMETIC and possible_tasks >= AHEAD_TASKS * target.few_tasks:
            body = read_ahead(body)
        body = read_first(body, least=2 if consecutive else 1) if target.groups else body
        return [nest(loops, body, total, target, decisions)]
    return [_rows(loops, inner, row, possible_tasks, total, lanes, target, decisions)]


def _rows(loops: list[For], inner: list[Statement], row: Row | None, possible_tasks: int, total: int, lanes: int,
          target: Target, decisions: Decisions) -> list[Statement]:
    """The nest with lanes along the loops of a row; of several rows at once, where enough tasks are left."""
    rows = rows_at_once(loops, inner, target)
    if rows is not None and target.groups and (rows.row.range.arg.size // rows.count < target.few_tasks
                                               or work(inner) >= gpu.LONG_ROW):
        rows = None                                      # more groups are better
    if rows is not None and rows.row.range.arg.size < FEW_ROWS and \
            possible_tasks // (rows.count * rows.width) < min(target.few_tasks, total // target.task_steps):
        rows = None                                      # tasks would be few
    if rows is None:
        steps = None if row is None else row_in_steps(row, possible_tasks, row_neighbours(inner), target, decisions)
        return nest(loops, steps or along_rows(inner, lanes, decisions, target), total, target, decisions)
    # sums of all these rows take half of the registers
    most = max(1, target.vector_registers // (2 * rows.count * rows.width))
    wide = rows.together(along_rows(inner, lanes, decisions, target, most), target, decisions)
    return nest([f for f in loops if f not in (rows.row, rows.few)], wide, total, target, decisions)


def in_order(loops: list[For], inner: list[Statement], total: int, target: Target, decisions: Decisions) \
        -> list[Statement]:
    """A nest whose stores must stay in order (a scan, a scatter); lanes along its last loop, where that pays."""
    lanes = target.lanes(_itemsize(inner))
    lane = loops[-1].range if loops and loops[-1] in _lane_loops(loops, inner) else None
    if lane is not None and (target.groups or not scattered_along(inner, lane) and
                             access_cost(inner, lane, lanes) < access_cost(inner, lane, 1)):
        consecutive = neighbours(inner, lane) if target.groups and lane.arg.size >= 4 * lanes else 0
        consecutive = 0 if _odd_rows(inner, lane) else consecutive
        tile = max(1, consecutive)
        if target.groups and lane.arg.size > tile * lanes:
            groups = math.prod(f.range.arg.size for f in loops[:-1]) * -(-lane.arg.size // (tile * lanes))
            tile, lanes = _more_groups(groups, target.few_tasks, tile, lanes)
        chosen = ask_lanes(decisions, loops[-1:], 0, tile, lanes)
        inner = read_ahead_of_totals(inner, chosen.tile) if target.groups else inner
        loop = For(lane, LOOP, inner, loops[-1].stop)
        body = moves.wide(loop, chosen.tile, chosen.lanes, consecutive=consecutive > 0)
        return nest(loops[:-1], body, total, target, decisions, independent=target.groups)
    return nest(loops, inner, total, target, decisions, independent=False)


def scatter_or_scan(loops: list[For], inner: list[Statement], total: int, target: Target, decisions: Decisions) \
        -> list[list[Statement]] | None:
    """The phases of a scatter-add or a scan, on groups of threads; refuses (None) other loops."""
    found = rows_apart(loops, inner, target, target.lanes(_itemsize(inner)))
    if found is not None or not _stores_in_order(inner):
        return None if found is None else [found]
    parts = scan_in_chunks(loops, inner, total, target, decisions)
    if parts is not None:
        return [b for part in parts for b in plain(part, target, decisions)]
    body = scan_in_group(loops, inner, decisions) if all(f.stop is None for f in loops) else None
    return None if body is None else [loops_around([f.range for f in loops], body, TASK)]


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
        least = max(target.least_chunk, target.cut_steps // 4 * n // max(total, 1))
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
    rows = math.prod(f.range.arg.size for f in loops)
    pieces = rows * (body[0].range.arg.size if independent and body and isinstance(body[0], For) else 1)
    most = pieces if target.free_tasks else target.most_tasks
    wanted = decisions.ask(Tasks(max(1, min(most, total // target.task_steps))),
                           lambda c: f"at most {most} tasks" if c.count > max(1, most) else None).count
    few_rows = SPREAD_ROWS * target.few_tasks if target.groups else 16
    if independent and body and wanted > 1 and rows < few_rows:
        body = moves.spread(body, max(1, wanted // max(rows, 1)), target.groups)
    done = 1
    shaped: list[tuple[For, int]] = []       # each loop with the number of tasks it becomes; 0 stays a loop
    for f in loops:
        size = f.range.arg.size
        take = min(size, -(-wanted // done)) if wanted > 1 and done < wanted else 0
        shaped.append((f, take))
        done *= max(take, 1) if take == size else max(take, 1) * wanted
    for f, take in reversed(shaped):
        loop = For(f.range, LOOP, body, f.stop)
        body = [moves.tasks(loop, take, target.groups) if take > 1 else loop]
    return body


# -- the order of memory accesses ----------------------------------------------------------------------------
def columns_cost(loops: list[For], inner: list[Statement], lanes: int) -> float:
    lane = loops[_lane_loop(loops, inner)].range
    n = lane.arg.size
    return access_cost(inner, lane, lanes) / _share(n, lanes)


def rows_cost(body: list[Statement], lanes: int, times: float = 1.0) -> float:
    """Cost with lanes along the innermost loops; infinite when there is none."""
    loops = [s for s in body if isinstance(s, For)]
    if not loops:
        return math.inf
    cost = 0.0
    for f in loops:
        n = f.range.arg.size
        if any(isinstance(s, For) for s in f.body):
            cost += rows_cost(f.body, lanes, times * n)
        else:
            used = _share(n, lanes)
            folds = FOLD_COST if moves.accumulated(f.body) else 0.0
            cost += times * (n * access_cost(f.body, f.range, lanes) / used + folds)
    return cost


def access_cost(body: list[Statement], lane: UOp, lanes: int) -> float:
    """Memory instructions per iteration with lanes along this counter: a strided access is one for each lane."""
    cost = 0.0
    for s, times in weighed(body):
        for memory_index in _accesses(s):
            cost += times * (1 / lanes if _contiguous(memory_index, lane) else 1.0)
    return cost


def lanes_used(body: list[Statement], lanes: int) -> float:
    """The share of a vector's lanes that have work, along the loop that lanes would go along; 0 for a nested loop of no
    more than a few vectors, which would be folded each time."""
    loops, inner = task_loops(body)
    if loops and columns_cost(loops, inner, lanes) <= rows_cost(inner, lanes):
        n = loops[_lane_loop(loops, inner)].range.arg.size
    else:
        n, nested = min((_innermost(s) for s in inner if isinstance(s, For)), default=(1, False))
        if nested and n < 4 * lanes:
            return 0.0
    return _share(n, lanes)


def _share(n: int, lanes: int) -> float:
    """The share of lanes with work, in the vectors that a loop of this size needs; 1 for an empty loop."""
    return float(n / (-(-n // lanes) * lanes)) if n else 1.0


def _innermost(loop: For, nested: bool = False) -> tuple[int, bool]:
    """The size of the shortest innermost loop, and whether another one is around it."""
    inside = [_innermost(s, True) for s in loop.body if isinstance(s, For)]
    return min(inside) if inside else (int(loop.range.arg.size), nested)


def weighed(body: list[Statement], times: float = 1.0) -> list[tuple[Statement, float]]:
    out: list[tuple[Statement, float]] = []
    for s in body:
        if isinstance(s, For):
            out += weighed(s.body, times * s.range.arg.size)
        elif isinstance(s, If):
            out += weighed(s.body, times)
        else:
            out.append((s, times))
    return out


def _accesses(statement: Statement) -> list[UOp]:
    found = [n.src[1] for e in expressions(statement) for n in toposort([e]) if n.op is o.LOAD]
    return [*found, statement.index] if isinstance(statement, Store) else found


def neighbours(body: list[Statement], lane: UOp) -> int:
    """How many consecutive elements a GPU thread should take: 16 bytes of the smallest type that is read or stored, and
    at most 32 of the largest, where all accesses are contiguous, or in pieces of that many; else 0."""
    inner = list(walk(body))
    if not all(isinstance(s, (For, Assign, Accumulate)) or isinstance(s, Store) and s.combine is None for s in inner):
        return 0
    loads = loads_in(body)
    sizes = [n.dtype.itemsize for n in loads if lane in ranges_of(n)]
    sizes += [s.memory.dtype.itemsize for s in inner if isinstance(s, Store)]
    wide = min(WIDE_BYTES // min(sizes), 2 * WIDE_BYTES // max(sizes)) if sizes else 0
    places = [at for s in inner for at in _accesses(s)]
    if all(_contiguous(at, lane) and linear(at)[1].get(lane, 1) == 1 for at in places):
        return wide
    return wide if wide > 1 and _in_pieces([*places, *[n.src[2] for n in loads if len(n.src) > 2]], lane, wide) else 0


def _in_pieces(places: list[UOp], lane: UOp, width: int) -> bool:
    """Whether aligned pieces of `width` along a counter are contiguous at all indices, and within one gate, though not
    contiguous with each other: i % 64, in pieces of 8."""
    if lane.arg.size % width:
        return False
    piece, within = counter(f"{lane.arg.name}p", lane.arg.size // width), counter(f"{lane.arg.name}w", width)
    at_piece, memo = {lane: add(multiply(piece, width), within)}, dict[UOp, UOp]()
    for at in places:
        found = substitute_index(at, at_piece, memo)
        _, terms = linear(found) if found.dtype is dtypes.index else (0, {found: 1})
        if any(within in ranges_of(atom) for atom in terms if atom is not within) or terms.get(within, 1) != 1:
            return False
    return True


def _odd_rows(body: list[Statement], lane: UOp) -> bool:
    """Whether rows along a counter begin at odd indices in all memories: then no wide access is aligned."""
    rows = [terms for s in walk(body) for at in _accesses(s) if lane in (terms := linear(at)[1])]
    return all(any(k % 2 for atom, k in terms.items() if atom is not lane) for terms in rows)


def row_neighbours(body: list[Statement]) -> int:
    """The most of `neighbours` over all loops of a row; 0 where one of them has none."""
    found = [neighbours(s.body, s.range) for s in body if isinstance(s, For)]
    return max(found, default=0) if all(found) else 0


def _only_gathers(body: list[Statement], lane: UOp) -> bool:
    """Whether all that is done is to copy elements that loaded numbers name, another one for each iteration."""
    [first, *others] = body
    return not others and isinstance(first, Store) and first.value.op is o.LOAD and \
        any(n.op is o.LOAD and lane in ranges_of(n) for n in toposort([first.value.src[1]]))


def _contiguous(at: UOp, lane: UOp) -> bool:
    _, terms = linear(at)
    return all(k in (1, -1) if atom is lane else lane not in ranges_of(atom) for atom, k in terms.items())


def _lane_loops(loops: list[For], inner: list[Statement]) -> list[For]:
    """The loops that vectors may run along: no other loop's bound depends on their counters, as lanes share bounds."""
    ends = [f.stop for f in (*loops, *walk(inner)) if isinstance(f, For) and f.stop is not None]
    return [f for f in loops if not any(f.range in ranges_of(end) for end in ends)]


def _lane_loop(loops: list[For], inner: list[Statement]) -> int:
    """The position of the outer loop along which stores are contiguous."""
    for s in walk(inner):
        if isinstance(s, Store) and s.memory.op is not o.LOCAL:
            _, terms = linear(s.index)
            for at in reversed(range(len(loops))):
                if terms.get(loops[at].range) == 1 and loops[at].range.arg.size >= 4:
                    return at
    return len(loops) - 1


def _stores_in_order(body: list[Statement]) -> bool:
    """Whether a loop stores inside (a scan, a scatter): it must keep its order, with lanes only around it."""
    return any(isinstance(s, Store) and (s.memory.op is not o.LOCAL or s.memory.arg.scope == "shared")
               for f in walk(body) if isinstance(f, For) and f.kind == LOOP for s in walk(f.body))


def work(body: list[Statement]) -> int:
    """Element steps in total, weighted by their cost."""
    total = 0.0
    for s, times in weighed(body):
        cost = 1.0
        for e in expressions(s):
            cost += 0.1 * len(moves.usual_nodes(e))
        total += times * cost
    return int(total)


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


def arithmetic(body: list[Statement]) -> int:
    """Arithmetic operations per element; 0 for a body with loops."""
    if any(isinstance(s, For) for s in body):
        return 0
    return sum(n.op in o.ELEMENTWISE for s in body for e in expressions(s) for n in moves.usual_nodes(e))


def vectors_in_flight(body: list[Statement]) -> int:
    """How many vectors to keep in flight: fewer where a statement needs many registers."""
    nodes = max((len(toposort(expressions(s))) for s in walk(body) if not isinstance(s, (For, If))), default=1)
    return 4 if nodes <= 24 else 2 if nodes <= 60 else 1


def _itemsize(body: list[Statement]) -> int:
    """The element size that decides how many lanes fit a register: the largest of what is stored or summed and of float
    intermediates. Wide integer intermediates (random bits, addresses) take two registers: cheaper than fewer lanes."""
    values = [s.value for s in walk(body) if isinstance(s, (Assign, Accumulate, Store))]
    floats = [n.dtype.itemsize for e in values for n in moves.usual_nodes(e)
              if n.dtype.is_float and n.op is not o.CONST]
    return max([4, *floats, *[e.dtype.itemsize for e in values]])
