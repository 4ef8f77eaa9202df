"""Analyze the order in which a plain loop nest accesses memory. In: loops, statements. Out: costs, counts, strides.

The indices of loads and stores tell whether lanes should go along rows or columns, how many elements a GPU thread
should take, and how much work there is. Decides nothing: plain_loops.py and gpu_loops.py do.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache

from glassgrad.compiler.graph import UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, bounds_by, linear, multiply, substitute_index
from glassgrad.compiler.graph.op_arguments import Measure
from glassgrad.compiler.lower.loops import (LOOP, Accumulate, Assign, For, If, Statement, Store, counter, expressions,
                                            loads_in, ranges_of, task_loops, walk)
from glassgrad.compiler.optimize.moves import loop_moves as moves

FOLD_COST = 8.0         # of a horizontal fold, in vector instructions
WIDE_BYTES = 16         # the widest load or store of a GPU thread


def columns_cost(loops: list[For], inner: list[Statement], lanes: int) -> float:
    lane = loops[lane_loop(loops, inner)].range
    n = lane.arg.size
    return access_cost(inner, lane, lanes) / _share(n, lanes)


def rows_cost(body: list[Statement], lanes: int, times: float = 1.0) -> float:
    """The cost with lanes along the innermost loops; infinite if there is none."""
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
    """Memory instructions per iteration with lanes along this counter: a strided access is one instruction per lane."""
    cost = 0.0
    for s, times in weighted(body):
        for memory_index in _accesses(s):
            cost += times * (1 / lanes if _contiguous(memory_index, lane) else 1.0)
    return cost


def lanes_used(body: list[Statement], lanes: int) -> float:
    """The share of a vector's lanes that have work, along the loop that lanes would go along. 0 for a nested loop of
    only a few vectors, which would be folded each time."""
    loops, inner = task_loops(body)
    if loops and columns_cost(loops, inner, lanes) <= rows_cost(inner, lanes):
        n = loops[lane_loop(loops, inner)].range.arg.size
    else:
        n, nested = min((_innermost(s) for s in inner if isinstance(s, For)), default=(1, False))
        if nested and n < 4 * lanes:
            return 0.0
    return _share(n, lanes)


def _share(n: int, lanes: int) -> float:
    """The share of lanes with work, in the vectors that a loop of this size needs; 1 for an empty loop."""
    return float(n / (-(-n // lanes) * lanes)) if n else 1.0


def _innermost(loop: For, nested: bool = False) -> tuple[int, bool]:
    """The size of the shortest innermost loop, and whether another loop is around it."""
    inside = [_innermost(s, True) for s in loop.body if isinstance(s, For)]
    return min(inside) if inside else (int(loop.range.arg.size), nested)


def greatest_size(loop: For) -> int:
    return loop.range.arg.size  # type: ignore[no-any-return]


def weighted(body: list[Statement], times: float = 1.0, size: Callable[[For], int] = greatest_size) \
        -> list[tuple[Statement, float]]:
    out: list[tuple[Statement, float]] = []
    for s in body:
        if isinstance(s, For):
            out += weighted(s.body, times * size(s), size)
        elif isinstance(s, If):
            out += weighted(s.body, times, size)
        else:
            out.append((s, times))
    return out


def _accesses(statement: Statement) -> list[UOp]:
    found = [n.src[1] for e in expressions(statement) for n in toposort([e]) if n.op is o.LOAD]
    return [*found, statement.index] if isinstance(statement, Store) else found


def access_width(body: list[Statement], lane: UOp) -> int:
    """How many consecutive elements a GPU thread should take, so that it accesses 16 bytes of the smallest type read or
    stored, and at most 32 of the largest. 0 unless all accesses are contiguous, or in contiguous pieces of that
    many."""
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
    """Whether aligned pieces of `width` iterations are contiguous at all indices and within one gate, though not
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


def odd_rows(body: list[Statement], lane: UOp) -> bool:
    """Whether rows along a counter begin at odd indices in all memories: then no wide access is aligned."""
    rows = [terms for s in walk(body) for at in _accesses(s) if lane in (terms := linear(at)[1])]
    return all(any(k % 2 for atom, k in terms.items() if atom is not lane) for terms in rows)


def row_access_width(body: list[Statement]) -> int:
    """The greatest of `access_width` over all loops of a row; 0 if it is 0 for one of them."""
    found = [access_width(s.body, s.range) for s in body if isinstance(s, For)]
    return max(found, default=0) if all(found) else 0


def only_gathers(body: list[Statement], lane: UOp) -> bool:
    """Whether the body only copies elements whose index is loaded, a different one in each iteration."""
    [first, *others] = body
    return not others and isinstance(first, Store) and first.value.op is o.LOAD and \
        any(n.op is o.LOAD and lane in ranges_of(n) for n in toposort([first.value.src[1]]))


def _contiguous(at: UOp, lane: UOp) -> bool:
    _, terms = linear(at)
    return all(k in (1, -1) if atom is lane else lane not in ranges_of(atom) for atom, k in terms.items())


def lane_loops(loops: list[For], inner: list[Statement]) -> list[For]:
    """The loops that vectors may run along: lanes share bounds, so no loop's bound may depend on their counters."""
    ends = [f.stop for f in (*loops, *walk(inner)) if isinstance(f, For) and f.stop is not None]
    return [f for f in loops if not any(f.range in ranges_of(end) for end in ends)]


def lane_loop(loops: list[For], inner: list[Statement]) -> int:
    """The position of the outer loop along which stores are contiguous."""
    for s in walk(inner):
        if isinstance(s, Store) and s.memory.op is not o.LOCAL:
            _, terms = linear(s.index)
            for at in reversed(range(len(loops))):
                if terms.get(loops[at].range) == 1 and loops[at].range.arg.size >= 4:
                    return at
    return len(loops) - 1


def stores_in_order(body: list[Statement]) -> bool:
    """Whether a loop inside stores values (a scan, a scatter): it keeps its order, with lanes only around it."""
    return any(isinstance(s, Store) and (s.memory.op is not o.LOCAL or s.memory.arg.scope == "shared")
               for f in walk(body) if isinstance(f, For) and f.kind == LOOP for s in walk(f.body))


def step_cost(statement: Statement) -> float:
    """The cost of one element step."""
    cost = 1.0
    for e in expressions(statement):
        cost += 0.1 * len(moves.nodes_off_cold_paths(e))
    return cost


def work(body: list[Statement], size: Callable[[For], int] = greatest_size,
         cost: Callable[[Statement], float] = step_cost) -> int:
    """The total number of element steps, weighted by their cost."""
    return int(sum([times * cost(s) for s, times in weighted(body, 1.0, size)]))


def greatest_within(steps: int, body: list[Statement], value: Measure) -> int:
    """The greatest value of a run-time size for which statements take at most this many element steps; below the size's
    lower bound if there is none."""
    cost = lru_cache(maxsize=None)(step_cost)

    def steps_at(number: int) -> int:
        known: dict[UOp, tuple[int, int]] = {}

        def bounds_of(n: UOp) -> tuple[int, int]:
            if n not in known:
                known[n] = (number, number) if n.arg == value else bounds_by(n, bounds_of)
            return known[n]

        return work(body, lambda f: f.range.arg.size if f.stop is None else
                    max(0, min(f.range.arg.size, bounds_of(f.stop)[1])), cost)

    numbers = range(value.symbol.low, value.symbol.high + 1)
    return value.symbol.low - 1 + bisect_right(numbers, steps, key=steps_at)


def arithmetic(body: list[Statement]) -> int:
    """Arithmetic operations per element; 0 for a body with loops."""
    if any(isinstance(s, For) for s in body):
        return 0
    return sum(n.op in o.ELEMENTWISE for s in body for e in expressions(s) for n in moves.nodes_off_cold_paths(e))


def vectors_in_flight(body: list[Statement]) -> int:
    """How many vectors to keep in flight: fewer if a statement needs many registers."""
    nodes = max((len(toposort(expressions(s))) for s in walk(body) if not isinstance(s, (For, If))), default=1)
    return 4 if nodes <= 24 else 2 if nodes <= 60 else 1


def itemsize(body: list[Statement]) -> int:
    """The element size that decides how many lanes fit a register: the largest of the types that are stored or summed,
    and of float intermediates. Wide integer intermediates (random bits, addresses) take two registers, which costs less
    than fewer lanes."""
    values = [s.value for s in walk(body) if isinstance(s, (Assign, Accumulate, Store))]
    floats = [n.dtype.itemsize for e in values for n in moves.nodes_off_cold_paths(e)
              if n.dtype.is_float and n.op is not o.CONST]
    return max([4, *floats, *[e.dtype.itemsize for e in values]])
