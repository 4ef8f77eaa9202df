"""Reduce columns by going along rows. In: a loop over columns with the passes down each. Out: loops over slices.

Down a column of a large matrix, every element is on another page, which defeats caches and prefetches. So a task takes
a slice of the columns, and each pass goes along the rows of the slice, with a value of each column in LOCAL memory.

    for n: r = 0; for k: r += x[k, n]; S(r)     ->  for slices of n: for n: m[n] = 0
                                                      for k by 8: for n: m[n] += x[k, n] + ... + x[k + 7, n]
                                                      for n: S(m[n])

The same works for several passes, of which later ones read results of earlier ones, as in softmax down columns. The
elements of a column are added in the same order, whatever the width of a slice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, identity, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, multiply
from glassgrad.compiler.lower.loops import (LOOP, Accumulate, Assign, For, Statement, Store, counter, current,
                                            expressions, load, loads_in, local, nodes_in, piece_bound, ranges_of)
from glassgrad.compiler.optimize.decisions import Choice, Decisions, fixed
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.recognize import stride_along
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target


@dataclass(frozen=True)
class Slices(Choice):
    """How a reduction of columns goes along rows: the width of a slice, and how many rows are added together."""
    loop: str = fixed()
    width: int = fixed()
    rows: int = fixed()


def goes_along_rows(columns: For, body: list[Statement], others: int, target: Target) -> bool:
    """Whether passes down columns should go along rows: they are long, and the matrix is larger than a cache. `others`:
    how often the loop over columns runs."""
    passes = [s for s in body if isinstance(s, For)]
    if target.groups or columns.stop is not None or not passes or not all(map(_is_pass, passes)):
        return False
    if not all(isinstance(s, (For, Assign)) or isinstance(s, Store) and s.combine is None for s in body):
        return False
    size, depth = columns.range.arg.size, max(p.range.arg.size for p in passes)
    far = any(stride_along(n.src[1], columns.range) == 1 and (stride_along(n.src[1], p.range) or 0) >= size
              for p in passes for n in loads_in(p.body))
    large = others * size * depth * 4 >= target.l2_bytes
    return far and large and size >= cpu.LEAST_SLICE and depth >= cpu.LEAST_COLUMN


def along_rows_of_slices(columns: For, body: list[Statement], tile: int, lanes: int, others: int, target: Target,
                         decisions: Decisions) -> tuple[For, list[Statement]] | None:
    """Turn passes down columns into (loop over slices, the statements of one slice). None if that does not pay, or if
    float32 sums would be too long to be accurate."""
    if not goes_along_rows(columns, body, others, target):
        return None
    passes = [s for s in body if isinstance(s, For)]
    if len(passes) > 1 and tile * lanes * 4 >= cpu.WHOLE_LINES:
        return None
    if any(p.range.arg.size > cpu.LONGEST_COLUMN * (cpu.READ_ROWS if _only_sums(p) else 1) for p in passes):
        return None
    size, depth = columns.range.arg.size, max(p.range.arg.size for p in passes)
    most = cpu.SLICE if len(passes) == 1 else min(cpu.SLICE, target.l2_bytes // (8 * depth))    # read again from there
    narrowest = min(cpu.NARROWEST_SLICE, cpu.LEAST_SLICE)
    if most < narrowest:
        return None
    count = max(-(-size // most), -(-target.workers // others))
    width = min(size, max(narrowest, -(-size // (count * lanes)) * lanes))
    chosen = decisions.ask(Slices(columns.range.arg.name, width, cpu.READ_ROWS), lambda c: None)
    return _slices(columns, body, chosen.width, chosen.rows, tile, lanes)


def _is_pass(loop: For) -> bool:
    """Whether a loop only accumulates and stores, and reads nothing that it accumulates."""
    simple = all(isinstance(s, Accumulate) or isinstance(s, Store) and s.combine is None for s in loop.body)
    return simple and moves.accumulated(loop.body).keys().isdisjoint(nodes_in(loop.body))


def _only_sums(loop: For) -> bool:
    return all(isinstance(s, Accumulate) for s in loop.body)


def _slices(columns: For, body: list[Statement], width: int, rows: int, tile: int, lanes: int) \
        -> tuple[For, list[Statement]]:
    size, name = columns.range.arg.size, columns.range.arg.name
    outer, inner = counter(name + "s", -(-size // width)), counter(name, width)
    place, left = {columns.range: add(multiply(current(outer), width), inner)}, piece_bound(size, width, outer)
    values = {r: local(f"of_columns_{r.arg}", r.dtype, width) for r in moves.initialized(body)}
    read = {r: load(memory, inner) for r, memory in values.items()}

    def along(statements: list[Statement]) -> list[Statement]:
        return moves.wide(For(inner, LOOP, moves.rebuild(statements, place), left), tile, lanes, copies=False)

    def in_memory(statement: Statement) -> Statement:
        if not isinstance(statement, (Assign, Accumulate)):
            return statement
        combine = statement.combine if isinstance(statement, Accumulate) else None
        return Store(values[statement.register], inner, statement.value, combine)

    out: list[Statement] = []
    for s in moves.copies_per_iteration(body, width, inner):
        if not isinstance(s, For):
            out += along(moves.rebuild([in_memory(s)], read))
            continue
        known = dict(read)
        for value in _of_a_column(s):                    # computed once for all rows
            memory = local(f"of_columns_{len(values)}", value.dtype, width)
            out += along(moves.rebuild([Store(memory, inner, value)], read))
            values[value], known[value] = memory, load(memory, inner)
        if _only_sums(s):
            out += _sums(s, values, known, rows, inner, along)
        else:
            out.append(For(s.range, LOOP, along(moves.rebuild([in_memory(x) for x in s.body], known)), s.stop))
    return For(outer, columns.kind, []), out


def _of_a_column(loop: For) -> list[UOp]:
    """The largest expressions in a pass that read registers and do not depend on the row."""
    def invariant(node: UOp) -> bool:
        return loop.range not in ranges_of(node) and node.op is not o.REGISTER and \
            any(n.op is o.REGISTER for n in toposort([node]))

    found = [e for s in loop.body for e in expressions(s)]
    inside = toposort(found, lambda node: () if invariant(node) else node.src)
    return [node for node in inside if invariant(node)]


def _sums(loop: For, values: dict[UOp, UOp], read: dict[UOp, UOp], rows: int, column: UOp,
          along: Callable[[list[Statement]], list[Statement]]) -> list[Statement]:
    """for k: r += f(k)  ->  for k by rows: for n: r = 0; TILE u: r += f(k + u); m[n] += r"""
    out: list[Statement] = []
    combines = moves.accumulated(loop.body)
    earlier = {r: value for r, value in read.items() if r not in combines}
    known = For(loop.range, LOOP, moves.rebuild(loop.body, earlier), loop.stop)
    begin: list[Statement] = [Assign(r, identity(combine, r.dtype)) for r, combine in combines.items()]
    end: list[Statement] = [Store(values[r], column, r, combine) for r, combine in combines.items()]
    for step in moves.wide_steps(known, rows, 1):
        out += step.loop(along([*begin, *step.tiled(step.body_of(known)), *end]), LOOP)
    return out
