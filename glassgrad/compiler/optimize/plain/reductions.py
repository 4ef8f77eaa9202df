"""Make reductions as fast as memory. In: the loops of a reduction. Out: the same, reading several rows together.

Memory bandwidth is limited by the number of cache lines in flight, and hardware prefetches only within a page. So a sum
over rows (lanes along k) jams several rows, each of which is a separate stream. (Sums over columns: columns.py.)

    for i: r = 0; for k: r += x[i, k]; S        ->  for i by 8: TILE 8: r = 0; for k: r += x[i, k]; S
    for j in 2: for i: .. r += x[i, k] * y[j, k]..  ->  for i by 8: TILE 8: TILE j: .. the same

Copies that read along one axis and store along another use square blocks, which renderers transpose in registers.

    for i: for j: y[i, j] = x[j, i]             ->  for i by 16: for j by 16: TILE j: LANE i: y[i, j] = x[j, i]
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.lower.loops import (LANE, LOOP, TILE, Accumulate, Assign, For, Statement, Store, loads_in,
                                            nested, nodes_in)
from glassgrad.compiler.optimize.decisions import Choice, Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.recognize import stride_along
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


@dataclass(frozen=True)
class ReadRows(Choice, names=["rows"]):
    """How many rows of a reduction are read together (unroll and jam)."""
    count: int


@dataclass(frozen=True)
class Transpose(Choice, names=["turn"]):
    """Square blocks of a transposed copy: vectors along the loop of contiguous loads, as many along that of stores."""
    loop: str
    lanes: int


@dataclass
class Reduction:
    """One sum (or maximum, ..): the initialized registers, the loop that accumulates them, and the stores after it."""
    begins: list[Assign]
    loop: For
    rest: list[Statement]

    @staticmethod
    def of(body: list[Statement]) -> Reduction | None:
        """Recognize a body of this form and nothing else; None for others."""
        begins = [s for s in body if isinstance(s, Assign)]
        loops = [s for s in body if isinstance(s, For)]
        rest = [s for s in body if isinstance(s, Store)]
        if len(loops) != 1 or body != [*begins, *loops, *rest] or loops[0].kind != LOOP or loops[0].stop is not None:
            return None
        if not all(isinstance(s, Accumulate) for s in loops[0].body) or not begins:
            return None
        if set(moves.accumulated(loops[0].body)) != {s.register for s in begins}:
            return None
        reads = any(n.op is o.REGISTER for n in nodes_in(loops[0].body))
        return None if reads else Reduction(begins, loops[0], [*rest])


def rows_at_once(loops: list[For], inner: list[Statement], target: Target) -> RowsAtOnce | None:
    """Choose the loop over rows of a reduction to read together, and a short loop that reuses these rows. None for rows
    that are short, or not contiguous along k in memory."""
    reduction = Reduction.of(inner)
    if reduction is None or reduction.loop.range.arg.size < cpu.LEAST_ROW:
        return None
    k, fixed = reduction.loop.range, [f for f in loops if f.stop is None]
    for row in reversed(fixed):
        along_k = [at for at in _reads(reduction) if stride_along(at, k) == 1 and stride_along(at, row.range)]
        if along_k:
            same = [f for f in fixed if f is not row and 1 < f.range.arg.size <= cpu.FEW_ROWS
                    and all(stride_along(at, f.range) == 0 for at in along_k)]
            few = same[-1] if same else None
            width = few.range.arg.size if few is not None else 1
            loads = loads_in(reduction.loop.body)
            pitches = [(stride_along(n.src[1], row.range) or 0) * n.dtype.itemsize for n in loads]
            share_a_set = any(pitch and pitch % cpu.PAGE == 0 for pitch in pitches)
            rows = cpu.ROWS_OF_A_SET.get(target.arch, cpu.READ_ROWS) if share_a_set else cpu.READ_ROWS
            most = min(rows, target.vector_registers // (2 * max(width, 2)))
            return RowsAtOnce(row, min(most, row.range.arg.size), few, width)
    return None


@dataclass
class RowsAtOnce:
    """`count` rows of the loop `row`, each for all `width` iterations of the loop `few`."""
    row: For
    count: int
    few: For | None
    width: int

    def most_vectors(self, target: Target) -> int:
        """How many vectors of each row's sum are in flight: those of all rows take half of the registers."""
        return max(1, target.vector_registers // (2 * self.count * self.width))

    def together(self, wide: list[Statement], target: Target, decisions: Decisions) -> list[Statement]:
        """for row: for few: S  ->  for rows by count: TILE count: TILE few: S      (S is the reduction, with lanes)"""
        most = target.vector_registers // 2
        chosen = decisions.ask(ReadRows(self.count), lambda c: f"at most {most} rows" if c.count > most else None)
        if self.few is not None:
            wide = moves.wide(For(self.few.range, LOOP, wide), self.width, 1)
        return moves.wide(For(self.row.range, LOOP, wide), chosen.count, 1)


def transposed(loops: list[For], inner: list[Statement], lanes: int, decisions: Decisions) \
        -> tuple[list[For], list[Statement]] | None:
    """Turn a transposed copy into (loops, blocks); refuses (None) reads contiguous along the loop of stores."""
    if not all(isinstance(s, Store) and s.gate is None and s.combine is None for s in inner) or lanes < 4:
        return None
    stored = [f for f in loops if all(stride_along(s.index, f.range) == 1 for s in inner if isinstance(s, Store))]
    places = [n.src[1] for n in loads_in(inner)]
    if not stored or stored[-1].range.arg.size < lanes:
        return None
    along = stored[-1]
    read = [f for f in loops if f is not along and f.range.arg.size >= lanes
            and any(stride_along(at, f.range) == 1 and stride_along(at, along.range) != 0 for at in places)
            and all(stride_along(at, f.range) in (0, 1) and stride_along(at, along.range) != 1 for at in places)]
    if not read:
        return None
    names = [f.range.arg.name for f in read]

    def refuses(c: Transpose) -> str | None:
        if c.loop not in names:
            return f"the loops are {', '.join(names)}"
        return None if c.lanes <= lanes and c.lanes & (c.lanes - 1) == 0 else f"a vector has 1, 2, 4 .. {lanes} lanes"

    chosen = decisions.ask(Transpose(names[-1], lanes), refuses)
    across = read[names.index(chosen.loop)]
    # the loop of contiguous reads is outside, so that consecutive blocks continue each stored row
    rows = For(along.range, LOOP, inner, along.stop)
    body = moves.wide(rows, chosen.lanes, 1, copies=False) if along.stop is None else _masked_tiles(rows, chosen.lanes)
    return [f for f in loops if f not in (along, across)], _within(across, body, chosen.lanes)


def _masked_tiles(loop: For, width: int) -> list[Statement]:
    """for j below stop: S  ->  for jo: TILE j: S; and for the remainder: TILE j: S, masked off past the stop"""
    return [s for step in moves.wide_steps(loop, 1, width)
            for s in step.loop(nested([step.lane], step.body_of(loop), TILE), LOOP)]


def _within(loop: For, body: list[Statement], lanes: int) -> list[Statement]:
    """for i in n: for jo: TILE j: S  ->  for io: for jo: TILE j: LANE i: S"""
    def lane_inside(s: Statement, lane: UOp) -> Statement:
        if isinstance(s, For) and s.kind in (LOOP, TILE):
            return For(s.range, s.kind, [lane_inside(x, lane) for x in s.body], s.stop)
        return For(lane, LANE, [s])

    out: list[Statement] = []
    for step in moves.wide_steps(loop, 1, lanes):
        block = step.body_of(For(loop.range, LOOP, body))
        out += step.loop([lane_inside(s, step.lane) for s in block] if step.lanes > 1 else block, LOOP)
    return out


def _reads(reduction: Reduction) -> list[UOp]:
    """The indices at which the reduction reads memory."""
    return [n.src[1] for n in loads_in(reduction.loop.body)]
