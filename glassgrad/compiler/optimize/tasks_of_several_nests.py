"""Optimize tasks that consist of several loop nests. In: a loop nest over such tasks. Out: the same, tiled.

A task that goes block by block through softmax(scores) times values, or through a part of its gradient
(lower/attention/attention_blocks.py), is a list of nests over LOCAL memory: contractions, and operations on each row.
Each is optimized as if in a kernel of its own, but for one worker and in list order: contractions become register tiles
that read both factors in place, other nests get lanes. Does not know what the nests compute.
"""

from __future__ import annotations

import math
from dataclasses import replace

from glassgrad.compiler.graph import ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, multiply
from glassgrad.compiler.lower.loops import (LOOP, TASK, Accumulate, Assign, For, If, Statement, Store, counter,
                                            flat_index, in_loops, load, local, loops_around, task_loops)
from glassgrad.compiler.optimize.bulk_copy_tasks import in_boxes
from glassgrad.compiler.optimize.chained_matmuls import in_registers
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.plain.access_order import arithmetic, columns_cost, rows_cost, vectors_in_flight
from glassgrad.compiler.optimize.plain.lanes_and_tasks import FEW_ROWS, LONG_ARITHMETIC, along_rows, ask_lanes
from glassgrad.compiler.optimize.plain.reductions import transposed
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import Product, recognize_with_run_time_bounds, stride_along
from glassgrad.compiler.optimize.product.register_tile.register_loops import RegisterTile
from glassgrad.compiler.optimize.product.register_tile.register_plan import RegisterPlan
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target

MOST_PARTS = 8      # threads that share a row's sum: one of them adds up the parts


def nests(body: list[Statement], target: Target, decisions: Decisions) -> list[list[Statement]]:
    """for tasks: nests  ->  TASK ..: nests, each with tiles or lanes, or on a GPU with matrices in registers"""
    if target.groups:
        boxed = in_boxes(body, target, decisions)
        if boxed is not None:
            return boxed
        held = in_registers(body, target, decisions)
        if held is not None:
            return [held]
    loops, inner = task_loops(body)
    stops = {f.range: f.stop for f in loops}
    return [moves.loops_as_tasks([f.range for f in loops], _in_turn(inner, target, decisions), stops=stops)]


def _in_turn(body: list[Statement], target: Target, decisions: Decisions) -> list[Statement]:
    out: list[Statement] = []
    for s in body:
        if isinstance(s, If):
            out.append(If(s.condition, _in_turn(s.body, target, decisions)))
        elif isinstance(s, For) and s.kind == LOOP:
            out.append(For(s.range, LOOP, _in_turn(s.body, target, decisions), s.stop))
        else:
            product = recognize_with_run_time_bounds([s])
            tiled = None if product is None or not product.n else _tiles(product, target, decisions)
            out += tiled or _lanes([s], target, decisions)
    return out


def _tiles(product: Product, target: Target, decisions: Decisions) -> list[Statement] | None:
    """A contraction as register tiles; refuses (None) if the right factor would have to be packed."""
    product = product.with_lanes_right()
    if any(r in product.stops for r in (*product.n, *product.m[1:])):
        return None
    before: list[Statement] = []
    plan, tiles = _tiles_in_place(product, target)
    if plan is not None and not tiles and len(product.m) == len(product.k) == 1:
        copy, product = _copied(product, target)
        before = _lanes(copy, target, decisions)
        plan, tiles = _tiles_in_place(product, target)
    if plan is None or not tiles:
        return None
    own = plan.with_blocks(min(tiles, key=plan.cycles))
    packs = "a nest among others packs nothing"
    chosen = decisions.ask(own, lambda c: plan.refuses(c) or (None if c.left == c.right == "in_place" else packs))
    [phase] = RegisterTile(plan, chosen).phases()
    return [*before, *moves.serial(phase)]


def _tiles_in_place(product: Product, target: Target) -> tuple[RegisterPlan | None, list[Tiling]]:
    plan = RegisterPlan.of(product, replace(target, most_tasks=1))      # it is part of a task
    # one code for all sizes: a task of many nests takes long to compile
    if plan is not None and plan.m.stop is not None:
        plan = replace(plan, m=replace(plan.m, size=plan.m.most, any_length=True))
    return plan, [] if plan is None else [t for t in plan.tiles() if t.left == t.right == "in_place"]


def _copied(product: Product, target: Target) -> tuple[list[Statement], Product]:
    """for m: for k: left  ->  for m: for k: copy = left, before the product

    For a left factor that is computed, or whose cache lines conflict. The copy is contiguous along the loop that the
    factor is read along, and its rows are an odd number of cache lines apart."""
    [m], [k] = product.m, product.k
    reads = [n.src[1] for n in toposort([product.left]) if n.op is o.LOAD]
    outer, inner = (m, k) if any(stride_along(at, k) == 1 for at in reads) else (k, m)
    line = cpu.CACHE_LINE // product.left.dtype.itemsize
    pitch = (-(-inner.arg.size // line) | 1) * line
    memory = local(f"left_{product.total.arg}", product.left.dtype, outer.arg.size * pitch)
    at = add(multiply(outer, pitch), inner)
    copy = in_loops([For(r, TASK, [], product.stops.get(r)) for r in (outer, inner)], [Store(memory, at, product.left)])
    return copy, replace(product, left=load(memory, at))


def _lanes(body: list[Statement], target: Target, decisions: Decisions) -> list[Statement]:
    """Give the nest vectors along its innermost loop of independent iterations; or along the loops inside, if those are
    read in order; or in square blocks of a transpose."""
    loops, inner = task_loops(body)
    lanes = target.lanes(4)
    parts = _parts_of_sums(loops, inner, lanes) if target.groups else None
    if parts is not None:
        return [s for part in parts for s in _columns(*task_loops(part), target, decisions)]
    blocks = transposed(loops, inner, lanes, decisions)
    if blocks is not None:
        return moves.serial(in_loops(*blocks))
    if rows_cost(inner, lanes) < columns_cost(loops, inner, lanes):
        sums, rest = _sums_apart(loops, inner)
        return [*moves.serial(in_loops(loops, along_rows(sums, lanes, decisions, target.groups))),
                *(_columns(loops, rest, target, decisions) if rest else [])]
    return _columns(loops, inner, target, decisions)


def _columns(loops: list[For], inner: list[Statement], target: Target, decisions: Decisions) -> list[Statement]:
    """Give the nest vectors along its innermost loop; a group of threads takes short loops all together."""
    lanes = target.lanes(4)
    if target.groups and len(loops) > 1 and loops[-1].range.arg.size < lanes and all(f.stop is None for f in loops):
        axis = FlatAxis.of([f.range for f in loops])
        whole = counter(loops[0].range.arg.name, axis.size)
        loops, inner = [For(whole, TASK, [])], moves.rebuild(inner, axis.indices(whole))
    chosen = ask_lanes(decisions, loops, len(loops) - 1, vectors_in_flight(inner), lanes)
    along = next(f for f in loops if f.range.arg.name == chosen.loop)
    wide = moves.wide(For(along.range, LOOP, inner, along.stop), chosen.tile, chosen.lanes, copies=False)
    return moves.serial(in_loops([f for f in loops if f is not along], wide))


def _parts_of_sums(loops: list[For], inner: list[Statement], lanes: int) -> list[list[Statement]] | None:
    """for row: { r = 0; for k: r += f; S }
    ->  for row: for part: { r = 0; for u: r += f[k = u * parts + part]; memory[row, part] = r },
        for row: { r = 0; for part: r += memory[row, part]; S }

    For few short rows, so that all threads of a group have a part of one; refuses (None) others."""
    rows, lengths = math.prod(f.range.arg.size for f in loops), [s.range.arg.size for s in inner if isinstance(s, For)]
    if rows < 2 or len(inner) < 2 or len(lengths) != 1:
        return None
    start, loop, parts = inner[0], inner[1], math.gcd(lengths[0], MOST_PARTS)
    if not isinstance(start, Assign) or not isinstance(loop, For) or loop.stop is not None or len(loop.body) != 1:
        return None
    total = loop.body[0]
    if not isinstance(total, Accumulate) or total.register is not start.register or parts < 2 or rows * parts > lanes:
        return None
    part, k = counter("part", parts), counter(loop.range.arg.name, loop.range.arg.size // parts)
    memory = local(f"parts_{start.register.arg}", start.register.dtype, rows * parts)
    at = flat_index([*[f.range for f in loops], part])
    piece = moves.rebuild(loop.body, {loop.range: add(multiply(k, parts), part)})
    first: list[Statement] = [start, For(k, LOOP, piece), Store(memory, at, start.register)]
    second = For(part, LOOP, [Accumulate(start.register, total.combine, load(memory, at))])
    ranges = [f.range for f in loops]
    return [loops_around([*ranges, part], first, TASK), loops_around(ranges, [start, second, *inner[2:]], TASK)]


def _sums_apart(loops: list[For], inner: list[Statement]) -> tuple[list[Statement], list[Statement]]:
    """for row: { sums; S }  ->  for row: { sums; memory[row] = sums }, for row: S[memory[row]]

    The second nest gets lanes along the rows. It is empty if S is short, or there are few rows."""
    last = max(i for i, s in enumerate(inner) if isinstance(s, For)) + 1
    rest, rows = inner[last:], math.prod(f.range.arg.size for f in loops)
    if rows < FEW_ROWS or arithmetic(rest) < LONG_ARITHMETIC:
        return inner, []
    at = flat_index([f.range for f in loops])
    memories = {r: local(f"rows_{r.arg}", r.dtype, rows) for r in moves.initialized(inner[:last])}
    stores: list[Statement] = [Store(memory, at, r) for r, memory in memories.items()]
    return [*inner[:last], *stores], moves.rebuild(rest, {r: load(memory, at) for r, memory in memories.items()})
