"""Turn padding into loop bounds. In: the gate of a padded factor. Out: which iterations of its loops multiply no zeros.

A padded image is 0 outside its edges, and a window that reaches over them multiplies zeros. Which taps do so depends on
the position alone. So the zeros need not be stored, and no tap needs a test:

    for i: for k in taps: if 0 <= i + k - 1 < n: S        ->  for i: for k from max(0, 1 - i) below n + 1 - i: S

If consecutive positions share a register tile, the loop is split into runs of iterations that the same positions use:

    TILE t in 4: for k in taps: if 0 <= t + k - 1: S      ->  TILE t in 4: k = 0: if 0 < t: S;  for k from 1: S

The same works for a sum over positions whose results are taps: the gradient of a convolution by its weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from glassgrad.base.cached_property import cached_property
from glassgrad.compiler.graph import DType, UOp, ops as o
from glassgrad.compiler.graph.index_algebra import (add, all_of, below_limit, both, bounds, build, close_bounds, divide,
                                                    divide_up, index, less, multiply, operation)
from glassgrad.compiler.lower.loops import LOOP, For, Statement, counter, ranges_of
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.recognize import usual_stride

Region = tuple[UOp, UOp, UOp | None]  # first iteration, end, and the condition for using an iteration (None: always)


@dataclass(frozen=True)
class EdgeCondition:
    """One edge of an image: m_step * m + k_step * k < limit, for a loop of M (None: for none) and one of K."""
    m: UOp | None
    k: UOp
    m_step: int
    k_step: int
    limit: UOp                  # a constant, or a run-time value

    def holds(self, k: UOp, place: UOp | None = None) -> UOp:
        """The condition, at an iteration of the loop of K, and an index of the loop of M (None: its counter)."""
        place = place or self.m
        along_m = index(0) if place is None else multiply(place, self.m_step)
        return less(add(along_m, multiply(k, self.k_step)), self.limit)


class UsedIterations(NamedTuple):
    """The iterations of a loop of K that an index of M uses: `low` <= k < `high`, of which `surely_low` <= k <
    `surely_high` are used whatever the run-time sizes are."""
    low: int
    high: int
    surely_low: int
    surely_high: int

    @staticmethod
    def always(low: int, high: int) -> UsedIterations:
        return UsedIterations(low, high, low, high)


@dataclass(frozen=True)
class Run:
    """Iterations low <= k < high, used by the positions first <= t < last of a register tile. With
    `is_conditional`, each is used only if it is inside the image, which is known only at run time."""
    low: int
    high: int
    first: int
    last: int
    is_conditional: bool = False


@dataclass(frozen=True)
class Piece:
    """`count` consecutive register tiles with the same runs, from number `start` on."""
    start: int
    count: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class RunTimePiece:
    """Consecutive register tiles along a loop with a run-time bound. The one with number t begins at position
    `begin + t * tile`; positions before `done + t * tile` are done by another piece."""
    start: UOp                   # number of the first tile
    most: int                    # upper bound of the number of the tiles
    stop: UOp                    # their number at run time
    begin: UOp
    done: UOp
    runs: tuple[Run, ...]


class Edges:
    """The edges of a padded factor. Each loop of K is bounded by at most one loop of M, and each of M bounds at most
    one. `stops` are the run-time bounds of loops."""

    def __init__(self, conditions: list[EdgeCondition], stops: dict[UOp, UOp] | None = None):
        self.conditions, self.stops = conditions, stops or {}
        self._counted: dict[tuple[UOp, int], list[Piece]] = {}
        self._inside: dict[UOp, list[tuple[int, int]]] = {}

    @staticmethod
    def of(gate: UOp, m: list[UOp], k: list[UOp], stops: dict[UOp, UOp] | None = None) -> Edges | None:
        """Read the edges from a gate's conditions; None if one has another form."""
        conditions: list[EdgeCondition] = []
        for condition in map(below_limit, all_of(gate)):
            if condition is None:
                return None
            every, limit = condition
            terms = {atom: step for atom, step in every.items() if ranges_of(atom)}
            known = {atom: -step for atom, step in every.items() if atom not in terms}
            outside, summed = [r for r in terms if r in m], [r for r in terms if r in k]
            if len(outside) > 1 or len(summed) != 1 or len(outside) + 1 != len(terms):
                return None
            by = outside[0] if outside else None
            conditions.append(EdgeCondition(by, summed[0], terms[by] if by is not None else 0, terms[summed[0]],
                                    build(limit, known)))
        pairs = {(h.m, h.k) for h in conditions}
        apart = len({k for _, k in pairs}) == len(pairs) == len({m if m is not None else k for m, k in pairs})
        return Edges(conditions, stops) if apart else None

    @cached_property
    def bound(self) -> dict[UOp, UOp | None]:
        """The bounded loops of K, each with the loop of M that bounds it."""
        return {h.k: h.m for h in self.conditions}

    def end(self, k: UOp) -> UOp:
        """How many iterations a loop has."""
        return self.stops.get(k, index(k.arg.size))

    def is_known(self, k: UOp) -> bool:
        """Whether the iterations of a bounded loop that multiply no zeros are known at compile time."""
        return k not in self.stops and self.bound[k] not in self.stops and \
            all(h.limit.op is o.CONST for h in self.conditions if h.k is k)

    def taps_first(self, k: list[UOp], steps: dict[UOp, int]) -> list[UOp]:
        """Order the loops of K so that they can be split: taps outside, those of the smallest stride outermost. Then a
        run of taps is a separate loop nest."""
        taps = [r for r in k if (m := self.bound.get(r)) is not None and r.arg.size <= m.arg.size]
        return [*sorted(taps, key=lambda r: abs(steps[r])), *[r for r in k if r not in taps]]

    def interval(self, k: UOp, place: UOp) -> tuple[UOp, UOp]:
        """The first iteration and the end of a bounded loop, at an index of its loop of M."""
        low, high = index(0), self.end(k)
        for h in self.conditions:
            if h.k is not k:
                continue
            left = add(h.limit, multiply(place, -h.m_step))        # k_step * k < left
            if h.k_step > 0:
                high = operation(o.MIN, high, divide_up(left, h.k_step))
            else:
                low = operation(o.MAX, low, add(divide(multiply(left, -1), -h.k_step), index(1)))
        return low, high

    def regions(self, k: UOp, place: UOp, inside: UOp | None = None, runs: tuple[Run, ...] = ()) -> list[Region]:
        """Split a loop of K into regions (begin, end, condition): one region for a single index of its loop of M; for
        several indices of it in a register tile, one for each of the `runs`."""
        if inside is not None:
            found = list[Region]()
            for run in runs:
                wanted = in_interval(index(run.first), inside, index(run.last))
                for h in [h for h in self.conditions if run.is_conditional and h.k is k]:
                    wanted = both(wanted, h.holds(k, place))
                found.append((index(run.low), index(run.high), wanted))
            return found
        return [(*(self.interval(k, place) if k in self.bound else (index(0), self.end(k))), None)]

    def share(self, k: UOp) -> float:
        """The fraction of a bounded loop's iterations that multiply no zeros."""
        m = self.bound[k]
        if not self.is_known(k):
            return 1.0
        if m is None:
            low, high = self.interval(k, index(0))
            return max(0, high.arg - low.arg) / k.arg.size
        return sum([high - low for low, high in self._intervals(k)]) / (m.arg.size * k.arg.size)

    def pieces(self, k: UOp, tile: int) -> list[Piece]:
        """Group the tiles of `tile` indices along the loop of M by equal runs; the last tile starts early, to end with
        the loop."""
        found = self._counted.get((k, tile))
        if found is not None:
            return found
        m = self.bound[k]
        assert m is not None
        size = m.arg.size
        out: list[Piece] = []
        for number in range(-(-size // tile)):
            runs = self._runs(k, min(number * tile, size - tile), tile)
            if out and out[-1].runs == runs:
                out[-1] = Piece(out[-1].start, out[-1].count + 1, runs)
            else:
                out.append(Piece(number, 1, runs))
        self._counted[k, tile] = out
        return out

    def run_time_pieces(self, m: UOp, tile: int) -> list[RunTimePiece]:
        """Cut a loop of M with a run-time bound into tiles of `tile` indices: those at each edge, and those in between,
        which no edge cuts. The last tiles start early, so that they end with the loop. Empty if the loop is too short
        for that, or an edge is at an unknown distance."""
        stop, zero = self.stops[m], index(0)
        near_start, near_end = self._reach(m, zero, 1, tile), self._reach(m, add(stop, index(-1)), -1, tile + 1)
        if near_start is None or near_end is None:
            return []
        last = 1 if near_end < 2 else 2                     # tiles at the end that may reach the edge
        if close_bounds(stop)[0] < (tile if last == 1 else max(2 * tile + near_start, tile + near_end)):
            return []
        first = 1 if near_start else 0
        whole = divide(add(stop, index(-near_end)), tile)          # tiles from the start on that do not reach it,
        whole = operation(o.MAX, whole, index(first))              # except the first one, which may
        rest = add(stop, multiply(whole, -tile))
        pieces = [self._piece(m, tile, zero, 1, index(1), zero, zero)] if first else []
        begin, all_taps = index(first * tile), self._runs_of([self._used(m)] * tile)
        pieces.append(RunTimePiece(index(first), bounds(whole)[1] - first, add(whole, index(-first)), begin, begin,
                                   all_taps))
        for number in range(last):
            after = (last - number) * tile
            used = operation(o.MIN, add(rest, index(tile - after)), index(1))
            pieces.append(self._piece(m, tile, add(whole, index(number)), 1, used, add(stop, index(-after)),
                                      multiply(whole, tile)))
        return [piece for piece in pieces if piece.most > 0]

    def _piece(self, m: UOp, tile: int, start: UOp, most: int, stop: UOp, begin: UOp, done: UOp) -> RunTimePiece:
        """A piece, with the runs of the tile that begins there."""
        runs = self._runs_of([self._used(m, add(begin, index(t))) for t in range(tile)])
        return RunTimePiece(start, most, stop, begin, done, runs)

    def _used(self, m: UOp, place: UOp | None = None) -> UsedIterations:
        """The iterations that multiply no zeros at an index of a loop of M; None (near no edge): all."""
        k = next((k for k, by in self.bound.items() if by is m), None)
        if k is None or place is None:
            return UsedIterations.always(0, 0 if k is None else k.arg.size)
        (low, surely_low), (surely_high, high) = (0, 0), (k.arg.size, k.arg.size)
        for h in [h for h in self.conditions if h.k is k]:
            least, most = close_bounds(add(h.limit, multiply(place, -h.m_step)))        # of k_step * k
            if h.k_step > 0:
                surely_high, high = min(surely_high, -(-least // h.k_step)), min(high, -(-most // h.k_step))
            else:
                low, surely_low = max(low, most // h.k_step + 1), max(surely_low, least // h.k_step + 1)
        return UsedIterations(low, max(low, high), surely_low, surely_high)

    def _reach(self, m: UOp, edge: UOp, step: int, most: int) -> int | None:
        """How many indices near an edge of M may not use all taps because of it; None for more than `most`."""
        own = [h for h in self.conditions if h.m is m and (h.limit.op is o.CONST) == (step > 0)]
        ends = Edges(own, self.stops)
        found = (n for n in range(most + 1) if ends._used(m, add(edge, index(step * n))) == self._used(m))
        return next(found, None)

    def _runs(self, k: UOp, start: int, tile: int) -> tuple[Run, ...]:
        return self._runs_of([UsedIterations.always(*ends) for ends in self._intervals(k)[start:start + tile]])

    @staticmethod
    def _runs_of(places: list[UsedIterations]) -> tuple[Run, ...]:
        """The runs of a tile, from the iterations that each of its indices uses."""
        marks = sorted({mark for place in places for mark in place})
        out: list[Run] = []
        for low, high in zip(marks, marks[1:]):
            wanted = [t for t, used in enumerate(places) if used.low <= low < used.high]
            if not wanted:
                continue
            is_conditional = not all([places[t].surely_low <= low < places[t].surely_high for t in wanted])
            run = Run(low, high, wanted[0], wanted[-1] + 1, is_conditional)
            if out and out[-1] == replace(run, low=out[-1].low, high=low):
                run = replace(run, low=out.pop().low)
            out.append(run)
        return tuple(out)

    def _intervals(self, k: UOp) -> list[tuple[int, int]]:
        """For each index of the loop of M, the iterations of a loop of K bounded by it that multiply no zeros."""
        found = self._inside.get(k)
        if found is None:
            m = self.bound[k]
            assert m is not None
            ends = [self.interval(k, index(place)) for place in range(m.arg.size)]
            found = self._inside[k] = [(low.arg, max(low.arg, high.arg)) for low, high in ends]
        return found


def read_in_place(image: UOp, dtype: DType, m: list[UOp], k: list[UOp], stops: dict[UOp, UOp] | None = None) \
        -> tuple[Edges, dict[UOp, int]] | None:
    """The edges of an image that is read from memory (none if it is read without a gate), and its strides along the
    loops of M and K. None for an image that is computed, of another type, or without constant strides."""
    if image.op is not o.LOAD or image.dtype is not dtype:
        return None
    edges = Edges.of(image.src[2], m, k, stops) if len(image.src) == 3 else Edges([], stops)
    steps = {r: step for r in (*m, *k) if (step := usual_stride(image.src[1], r)) is not None}
    return None if edges is None or len(steps) < len(m) + len(k) else (edges, steps)


def in_interval(low: UOp, at: UOp, high: UOp) -> UOp | None:
    """The condition low <= at < high; None if it always holds."""
    return both(less(low, add(at, index(1))), less(at, high))


def loop_between(k: UOp, low: UOp, high: UOp, body: list[Statement]) -> list[Statement]:
    """for k: S  ->  for k from low below high: S"""
    if low is index(0) and high is index(k.arg.size):
        return [For(k, LOOP, body)]
    trips = add(high, multiply(low, -1))
    most = min(k.arg.size, bounds(trips)[1])
    inner = counter(k.arg.name, most)
    if trips is index(1):
        return moves.rebuild(body, {k: low})
    return [For(inner, LOOP, moves.rebuild(body, {k: add(low, inner)}), None if trips is index(most) else trips)] \
        if most > 0 else []


def clamp_interval(low: UOp, high: UOp, start: UOp, size: int) -> tuple[UOp, UOp]:
    """An interval relative to `start`, clamped to the next `size` iterations."""
    back = multiply(start, -1)
    return operation(o.MAX, add(low, back), index(0)), operation(o.MIN, add(high, back), index(size))
