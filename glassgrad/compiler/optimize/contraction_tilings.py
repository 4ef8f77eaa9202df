"""Tile contractions. In: a plain loop nest. Out: its phases, tiled by the first family that accepts it, or None.

A product is recognized once (product/recognize.py). The families are tried in order. The first that accepts it chooses
a `Tiling` and builds the loops; a family refuses (None) a product that it would not make fast. Matmul in every
transpose, batched matmul, convolution and both its gradients, einsum and attention scores are all contractions; none is
matched by name. Does not know what a processor is good at: that is data (targets/).
"""

from __future__ import annotations

from dataclasses import replace

from glassgrad.compiler.graph.index_algebra import add, divide_up, multiply
from glassgrad.compiler.lower.loops import (LOOP, TASK, For, Statement, counter, current, in_loops, piece_bound,
                                            ranges_of, task_loops, walk)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.move_decorator import move
from glassgrad.compiler.optimize.moves.padding_copy import with_zeros
from glassgrad.compiler.optimize.product.conv_tile import conv_tiles
from glassgrad.compiler.optimize.product.depthwise_tile import depthwise_tiles
from glassgrad.compiler.optimize.product.dot_product_tile import dot_tiles
from glassgrad.compiler.optimize.product.gpu_group_tile import group_tiles
from glassgrad.compiler.optimize.product.gpu_matrix_unit.tile_loops import on_gpu_matrix_unit
from glassgrad.compiler.optimize.product.gpu_warp_tile import on_warps
from glassgrad.compiler.optimize.product.matrix_unit.matrix_unit_tile import on_matrix_unit
from glassgrad.compiler.optimize.product.matrix_unit.unit_choice import unit_for
from glassgrad.compiler.optimize.product.recognize import (Product, recognize, recognize_pairs,
                                                           recognize_with_run_time_bounds)
from glassgrad.compiler.optimize.product.register_tile.register_loops import RegisterTile
from glassgrad.compiler.optimize.product.register_tile.register_plan import RegisterPlan
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.versions_by_size import run_only_if

Phases = list[list[Statement]]
BLOCKS_TOGETHER = 16            # blocks of positions of one image that a task does in sequence
MOST_RUN_TIME_TASKS = 32        # tasks of a loop with a run-time bound around another such loop


@move(lambda body, *_: None)
def contraction(body: list[Statement], target: Target, decisions: Decisions, is_version: bool = False) -> Phases | None:
    """The phases of a contraction on a CPU, by its matrix unit or its vectors. `is_version`: the nest is for a range of
    the number of rows, or of positions along a row of an image. Refuses (None) what no family accepts."""
    ends = any(isinstance(f, For) and f.stop is not None for f in walk(body))
    columns = with_run_time_columns(body, target) if ends else None
    if columns is not None:
        return by_register_tiles(columns, target, decisions)
    product = None
    if is_version:
        product = with_run_time_rows(body, target)
        positions = with_run_time_positions(body) if product is None else None
        in_place = None if positions is None else conv_tiles(positions, target, decisions)
        if in_place is not None:
            return in_place
    product = product or recognize(body) or recognize_pairs(body)
    if product is None:
        return None
    phases = on_matrix_unit(product, target, decisions) if target.units else None
    return phases or on_vectors(product, target, decisions)


@move(lambda phase: phase)
def blocks_together(phase: list[Statement]) -> list[Statement]:
    """TASK b below n: TASK i: S(b)  ->  TASK c below ceil(n/16): TASK i: for d in 16, 16*c + d below n: S(16*c + d)

    For blocks of positions in several images: each task stays in one image. refuses (returns the phase): a single image
    """
    loops, body = task_loops(phase)
    stop, images = (loops[0].stop, loops[1:]) if loops else (None, [])
    if stop is None or not images:
        return phase
    block = loops[0]
    name, size = block.range.arg.name, block.range.arg.size
    task, each = counter(name + "t", -(-size // BLOCKS_TOGETHER)), counter(name, BLOCKS_TOGETHER)
    at = add(multiply(current(task), BLOCKS_TOGETHER), each)
    body = [For(each, LOOP, moves.rebuild(body, {block.range: at}), piece_bound(stop, BLOCKS_TOGETHER, task))]
    return in_loops([For(task, TASK, [], divide_up(stop, BLOCKS_TOGETHER)), *images], body)


@move(lambda body, *_: None)
def contraction_by_groups(body: list[Statement], target: Target, decisions: Decisions,
                          is_version: bool = False) -> tuple[Phases, list[Statement]] | None:
    """The phases of a contraction on groups of threads, and the loop nest left for plain loops: with split K, the sum
    of the parts; otherwise empty. `is_version`: as for `contraction`. Refuses (None) what no family accepts."""
    bounded_axes = with_run_time_axes(body, target)
    product = bounded_axes or recognize(body) or recognize_pairs(body)
    if product is None or len([r for r in product.k if r in product.stops]) > 1:  # blocks are cut along one loop only
        return None
    stops = product.stops
    product = replace(product, k=sorted(product.k, key=lambda r: r not in stops))     # the run-time bound first
    in_place = None if is_version or bounded_axes is None else recognize_with_run_time_bounds(body)
    return on_gpu_matrix_unit(in_place or product, target, decisions) or on_warps(product, target, decisions) or \
        group_tiles(product, target, decisions)


def with_run_time_axes(body: list[Statement], target: Target) -> Product | None:
    """The contraction with M and N reduced to their loops with a run-time bound (one loop of M; the innermost of N),
    and their other loops moved to the batch. None where neither M nor N has such a loop."""
    some = any(loop.stop is not None for loop in task_loops(body)[0])
    product = recognize_with_run_time_bounds(body) if some else None
    product = None if product is None else product.with_lanes_right()
    if product is None or not product.m or not product.n:
        return None
    m, n = ([r for r in axis if r in product.stops] for axis in (product.m, product.n))
    if len(m) > 1 or len(n) > 1 and target.groups:
        return None
    m, n = m or product.m, n[-1:] or product.n
    rest = [r for r in (*product.m, *product.n) if r not in (*m, *n)]
    return replace(product, m=m, n=n, batch=[*product.batch, *rest])


def with_run_time_rows(body: list[Statement], target: Target) -> Product | None:
    """As `with_run_time_axes`, where M has the run-time bound and its versions are code of their own. Refuses (None)
    another axis with a run-time bound on a CPU or a matrix unit."""
    product = with_run_time_axes(body, target)
    if product is None or product.m[0] not in product.stops:
        return None
    alone = len(product.stops) == 1
    return product if alone or target.groups and unit_for(product, target) is None else None


def with_run_time_columns(body: list[Statement], target: Target) -> Product | None:
    """As `with_run_time_axes`, where N has the run-time bound, or M and K both have one: a CPU's register tiles take
    any number of rows, and have code for each number of left-over vectors. Refuses (None) another loop of N with a
    fixed size, and windows, because images are read in place."""
    product = with_run_time_axes(body, target)
    if product is None or len(product.k) > 1 or target.groups or unit_for(product, target) is not None:
        return None
    if product.n[0] not in product.stops and not {product.m[0], *product.k} <= product.stops.keys():
        return None
    plan = RegisterPlan.of(product, target)
    fixed = {r for r in product.batch if r not in product.stops}
    if plan is None or fixed & ranges_of(product.right) - ranges_of(product.left):
        return None
    if product.k_stop is None:
        return product
    tile = plan.own()                        # what a task packs has memory for the longest possible sums
    packs_left, packs_right = tile.left == "packed", tile.right == "near"
    if packs_left and (plan.n.stop is not None or plan.n.size > cpu.FEW_PANELS * plan.lanes):
        return None
    rows = packs_left * tile.block_m * tile.rows
    packed = (rows + packs_right * tile.block_n * tile.vectors * tile.lanes) * plan.depth * plan.itemsize
    return product if packed <= 4 * target.l2_bytes else None


def with_run_time_positions(body: list[Statement]) -> Product | None:
    """The contraction with M and N reduced to the innermost loop with a run-time bound, and the other such loops in the
    batch: for images with run-time sizes, the positions along a row. None where no loop of M or N has such a bound."""
    product = recognize_with_run_time_bounds(body)
    ends = [f.range for f in task_loops(body)[0] if f.stop is not None]
    if product is None or not ends:
        return None
    m, n = ([r for r in axis if r not in ends[:-1]] for axis in (product.m, product.n))
    return replace(product, m=m, n=n, batch=[*product.batch, *ends[:-1]])


def on_vectors(product: Product, target: Target, decisions: Decisions) -> Phases | None:
    """The phases for a CPU's vectors: window tiles, images read in place, lanes along the sum, or register tiles."""
    if not product.n:                      # lanes along the longer one of M and K
        of_sums = dot_tiles(product, target, decisions) if product.m[-1].arg.size < product.k[-1].arg.size else None
        return of_sums or depthwise_tiles(product, target, decisions) or dot_tiles(product, target, decisions)
    copies_padding: Phases = []
    in_place = None
    if product.pair is None and not product.of_matrices:
        in_place = on_images(product, target, decisions)
        padded = None
        if in_place is None and not product.stops:
            padded = with_zeros(product, target.lanes(product.total.dtype.itemsize))
        if padded is not None:
            copies_padding, product = padded
            in_place = on_images(product, target, decisions)
    if in_place is not None:
        return [*copies_padding, *in_place]
    phases = by_register_tiles(product, target, decisions)
    return None if phases is None else [*copies_padding, *phases]


def by_register_tiles(product: Product, target: Target, decisions: Decisions) -> Phases | None:
    """The phases of register tiles. Refuses (None) what no tile would make fast."""
    plan = with_images_apart(product, target) or RegisterPlan.cheapest(product, target)
    if plan is None:
        return None
    chosen = decisions.ask(plan.own(), plan.refuses, plan.others)
    *packing, last = product.set_run_time_bounds(RegisterTile(plan, chosen).phases())
    packing = [skip_unused_packing(phase, product) for phase in packing]
    if plan.reads_windows:
        last = blocks_together(last)
    return [*map(limit_tasks, [*packing, last])]


def on_images(product: Product, target: Target, decisions: Decisions) -> Phases | None:
    """The phases of a product whose factors are images read in place, with lanes along channels or along the sum."""
    return conv_tiles(product, target, decisions) or dot_tiles(product, target, decisions)


def with_images_apart(product: Product, target: Target) -> RegisterPlan | None:
    """The register tiles of a product with a run-time number of images, if N is one image with its own row pitch. Each
    task then copies padded images with their zeros. None for any other product."""
    if not product.n or not product.stops or product.pair is not None:
        return None
    product = product.with_lanes_right()
    if not product.stops.keys() <= {*product.batch} & ranges_of(product.right):
        return None
    copies, copied = with_zeros(product, target.lanes(product.total.dtype.itemsize)) or ([], product)
    plan = RegisterPlan.cheapest(copied, target)
    if plan is None or not plan.n.pitch or copied.left is not product.left:
        return None
    return replace(plan, before=[s for copy in copies for s in copy])


def skip_unused_packing(packing: list[Statement], product: Product) -> list[Statement]:
    """TASK i in n: pack  ->  TASK i below n * min(1, stop): pack      for each run-time bound of a loop that it lacks

    A factor is packed for all blocks of the other one. If the other one has no blocks at run time, nothing is packed.
    """
    inside = {s.range for s in walk(packing) if isinstance(s, For)}
    if len(packing) == 1 and isinstance(packing[0], For) and packing[0].stop is None:
        for stop in [stop for loop, stop in product.stops.items() if loop not in inside]:
            packing = run_only_if(stop.minimum(1), packing)
    return packing


def limit_tasks(phase: list[Statement]) -> list[Statement]:
    """TASK a below m: TASK b below n: TASK c: S  ->  TASK c: TASK t in 32: for a below m, every 32nd: for b below n: S

    For nested loops with run-time bounds: one task per iteration at their largest sizes would give mostly empty tasks.
    """
    loops, body = task_loops(phase)
    ends = [f for f in loops if f.stop is not None]
    if len(ends) < 2:
        return phase
    body = in_loops([For(f.range, LOOP, [], f.stop) for f in ends[1:]], body)
    body = [moves.tasks(For(ends[0].range, LOOP, body, ends[0].stop), MOST_RUN_TIME_TASKS)]
    return in_loops([f for f in loops if f.stop is None], body)
