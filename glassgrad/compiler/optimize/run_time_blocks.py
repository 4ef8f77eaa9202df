"""Tile contractions with an axis of run-time length. In: a loop nest. Out: nests of constant sizes.

Register tiles need sizes known at compile time. So a loop of N is cut into blocks of a constant size, with smaller
blocks for the rest, and loops of M get versions of the code for ranges of their length (versions_by_size.py).
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.compiler.graph import UOp
from glassgrad.compiler.graph.index_algebra import (add, both, bounds, close_bounds, divide, divide_up, index, less,
                                                    modulo, multiply, times, value_in)
from glassgrad.compiler.lower.loops import (TASK, For, Statement, Store, counter, in_loops, loads_in, ranges_of,
                                            task_loops)
from glassgrad.compiler.optimize.contraction_tilings import (contraction_by_groups, with_images_apart,
                                                             with_run_time_columns, with_run_time_positions,
                                                             with_run_time_rows)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.flat_positions import flat_positions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import gated
from glassgrad.compiler.optimize.moves.move_decorator import move
from glassgrad.compiler.optimize.product.conv_tile_plan import ImagePlan
from glassgrad.compiler.optimize.product.dot_product_tile import TapsPlan
from glassgrad.compiler.optimize.product.matrix_unit.unit_choice import unit_for
from glassgrad.compiler.optimize.product.packing import few_rows
from glassgrad.compiler.optimize.product.recognize import Product, recognize
from glassgrad.compiler.optimize.product.register_tile.register_plan import RegisterPlan
from glassgrad.compiler.optimize.targets import cpu_costs as cpu, gpu_costs as gpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.versions_by_size import guarded_versions, replace_bound, version_for_range

BLOCK = 64         # rows or columns in a block of a loop with a run-time bound: a few register tiles
SMALL = 16         # columns in a block of the remainder: the lanes of vectors


@move(lambda body, *_: [body])
def in_blocks(body: list[Statement], target: Target) -> list[list[Statement]]:
    """TASK i below stop: S  ->  TASK b below stop // 64: TASK i in 64: S[64*b + i]
                              TASK b below ceil(stop % 64 / 16): TASK i in 16: S[begin + i]    the last one overlaps
                              TASK b below ceil(stop / 16): TASK i in 16: S[16*b + i] if that is below stop
                                                                                               if stop < 16

    For a loop of N with a run-time bound: tiles need sizes known at compile time. The blocks are contractions with one
    more loop around them. The last small block begins 16 before the end, so that no column lies past it; columns that
    it shares with the block before it are stored once. If several loops have run-time bounds, all are split into blocks
    of 16 only: each case is more code to compile. For the rows M of a result, there are versions by their number
    (`_by_rows`).
    refuses (returns the body): no such loop; groups of threads, whose tiles may go past the end
    """
    loops, inner = task_loops(body)
    ends = [f for f in loops if f.stop is not None and f.range.arg.size >= 2 * BLOCK]
    product = recognize(in_loops([For(f.range, TASK, []) for f in loops], inner)) if ends else None
    if product is None or not product.n:
        return [body]
    flat = flat_positions(body, target)
    if flat is not None:
        return flat
    if _in_place(body, target):
        return [body]
    ends = [f for f in ends if f.range in product.m or f.range in product.n]
    if not ends or _around_tiles(product, ends, target):
        return [body]
    if with_run_time_columns(body, target) is not None:
        return [body]
    rows = with_run_time_rows(body, target)
    if rows is not None:
        return _by_rows(body, rows, target)
    by_positions = _by_positions(body, target)
    if by_positions:
        return by_positions
    if target.groups:
        return [body]
    if len(ends) > 1:
        return _small_blocks(loops, ends, inner, 0, target)
    return [_large_blocks(loops, ends[0], inner), *_small_blocks(loops, ends, inner, BLOCK, target)]


@move(lambda body, *_: [body])
def by_terms(body: list[Statement], target: Target) -> list[list[Statement]]:
    """for k below stop: r += f  ->  if stop <= 64: for k in 64 below stop: r += f;  if stop > 64: the same for all

    For a sum of products with a run-time bound: few terms take less time than packing for many, or than writing the
    result; and up to 1,024 need no blocks of K, whose sums would wait in memory.
    refuses (returns the body): no such sum, or the same tiles for all numbers of terms; groups of threads, whose parts
    of K have equal lengths at run time
    """
    product = None if target.groups or not target.tiled_products else recognize(body)
    loop = None if product is None or not product.n else next((r for r in product.k if r in product.stops), None)
    if product is None or loop is None or _in_place(body, target):
        return [body]

    def tile_of(version: list[Statement]) -> tuple[object, ...] | None:
        few = recognize(version)
        plan = None if few is None else RegisterPlan.cheapest(few, target)
        tile = None if plan is None else plan.own()
        return None if tile is None else (tile.rows, tile.vectors, tile.left, tile.right, tile.k_block > 0)
    stop, size = product.stops[loop], int(loop.arg.size)
    numbers = [max(1, terms * size // product.depth) for terms in cpu.FEW_TERMS]
    versions = {most: replace_bound(body, stop, most, stop) for most in numbers if most < size}
    return guarded_versions(_with_other_tiles({**versions, size: body}, tile_of), stop, -1) if tile_of(body) else [body]


def _in_place(body: list[Statement], target: Target) -> bool:
    """Whether an image is read in place, its rows or images one after the other: their number does not matter."""
    product = None if target.groups else recognize(body)
    ways = (ImagePlan.cheapest, TapsPlan.of_channels, with_images_apart)
    return product is not None and bool(product.n) and any(way(product, target) is not None for way in ways)


def _around_tiles(product: Product, ends: list[For], target: Target) -> bool:
    """Whether loops with a run-time bound would be around the register tiles even if their sizes were known."""
    plan = None if target.groups else RegisterPlan.of(product.with_lanes_right(), target)
    return plan is not None and {f.range for f in ends} <= {*plan.outer}


def _by_positions(body: list[Statement], target: Target) -> list[list[Statement]]:
    """Versions for ranges of the number of positions along a row of an image, if it is read in place; otherwise none.
    The version for few positions treats the rows as images."""
    product = None if target.groups else with_run_time_positions(body)
    stop = None if product is None else product.stops[[r for r in product.stops if r not in product.batch][-1]]
    if stop is None or value_in(stop) is None:
        return []
    (least, greatest), versions = close_bounds(stop), dict[int, list[Statement]]()
    for most in (*[n for n in cpu.POSITIONS if least <= n < greatest], greatest):
        version = version_for_range(body, stop, least, most)
        product = with_run_time_positions(version)
        if product is None or ImagePlan.cheapest(product, target) is None:
            continue
        versions[most], least = version, most + 1
    return guarded_versions(versions, stop) if greatest in versions else []


def _by_rows(body: list[Statement], product: Product, target: Target) -> list[list[Statement]]:
    """Versions for ranges of the number of rows; the ranges are data of the target. If plain loops do few rows faster
    than tiles (`few_rows`), there is a version for each number of these: if stop == 3: TASK i in 3: S."""
    loop = product.m[0]
    stop = product.stops[loop]
    few_of = recognize(replace_bound(body, stop, cpu.FEW_ROWS, None))
    few = 0 if target.groups or few_of is None or not few_rows(few_of) else cpu.FEW_ROWS
    up_to = (*range(1, few + 1), cpu.BALANCED_ROWS) if few else cpu.TILE_ROWS
    if target.groups:
        up_to = gpu.ROWS if unit_for(product, target) is None else gpu.UNIT_ROWS
    numbers = [n for n in (*up_to, loop.arg.size) if bounds(stop)[0] <= n <= loop.arg.size]
    versions = {most: replace_bound(body, stop, most, None if most <= few else stop) for most in numbers}

    def tile_of(version: list[Statement]) -> list[str]:
        recipe = Decisions(None)
        contraction_by_groups(version, target, recipe, is_version=True)
        return recipe.moves
    return guarded_versions(_with_other_tiles(versions, tile_of) if target.groups else versions, stop)


def _with_other_tiles(versions: dict[int, list[Statement]], tile_of: Callable[[list[Statement]], object]) \
        -> dict[int, list[Statement]]:
    """Drop versions with the same tiles as the next one, which then serves both."""
    tiles = {most: tile_of(body) for most, body in versions.items()}
    return {most: body for (most, body), more in zip(versions.items(), [*[*versions][1:], 0])
            if tiles[most] != tiles.get(more)}


def _large_blocks(loops: list[For], loop: For, inner: list[Statement]) -> list[Statement]:
    assert loop.stop is not None
    name, n = loop.range.arg.name, loop.range.arg.size
    block, row = counter(name + "b", n // BLOCK), counter(name, BLOCK)
    body = moves.rebuild(inner, {loop.range: add(multiply(block, BLOCK), row)})
    inside = [For(row, TASK, []) if f is loop else f for f in loops]
    return in_loops([For(block, TASK, [], divide(loop.stop, BLOCK)), *inside], body)


def _small_blocks(loops: list[For], ends: list[For], inner: list[Statement], rest_of: int, target: Target) \
        -> list[list[Statement]]:
    """The loops of small blocks: over all positions, or over the remainder of blocks of `rest_of`. For sizes below one
    block, add blocks that go past the end, where nothing is read or stored. Or keep the loops as they were, if such
    blocks would add a condition on a padded image, and the loops are tiled as they are, or masks cost much."""
    enough, gate, size = index(1), None, SMALL
    places: dict[UOp, UOp] = {}
    past_the_end: dict[UOp, UOp] = {}
    counts: dict[UOp, UOp] = {}                 # counter of small blocks -> their number
    rows: dict[UOp, UOp] = {}
    for f in ends:
        name, n, stop = f.range.arg.name, f.range.arg.size, f.stop
        assert stop is not None
        left = modulo(stop, rest_of) if rest_of else stop
        small, row = counter(name + "s", -(-(rest_of or n) // size)), counter(name, size)
        begin = add(add(stop, multiply(left, -1)), multiply(small, size))
        at = add(begin.minimum(add(stop, index(-size))), row)
        gate = both(gate, less(begin, add(at, index(1))))
        enough = times(enough, divide(stop, size).minimum(1))                # 0 if there is no whole block
        counts[small] = divide_up(left, size)
        places[f.range], past_the_end[f.range], rows[f.range] = at, add(begin, row), row
    # every loop gets `enough` as a factor: the loops that pack a factor run over the blocks of one of them only
    cut = moves.rebuild(inner, places)
    for store in [s for s in cut if isinstance(s, Store)]:
        store.gate = both(gate, store.gate)
    inside = [For(rows[f.range], TASK, []) if f in ends else f for f in loops]
    nests = [in_loops([*[For(small, TASK, [], times(count, enough)) for small, count in counts.items()], *inside], cut)]
    too_short = add(index(1), multiply(enough, -1))
    if any(len(n.src) > 2 for n in loads_in(inner)):
        short = [For(f.range, TASK, [], f.stop and times(f.stop, too_short)) if f is ends[0] else f for f in loops]
        nest = in_loops(short, inner)
        product = recognize(nest)
        is_tiled = product is not None and bool(product.n) and RegisterPlan.cheapest(product, target) is not None
        if is_tiled or not target.has_masks:
            return [*nests, nest]
    for f in ends:
        at = past_the_end[f.range]
        inner = gated(moves.rebuild(inner, {f.range: at}), less(at, f.stop or index(0)), {}, ranges_of(at))
    short = [*[For(small, TASK, [], times(count, too_short)) for small, count in counts.items()], *inside]
    return [*nests, in_loops(short, inner)]
