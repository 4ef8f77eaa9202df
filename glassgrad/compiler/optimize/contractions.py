"""Contractions made fast. In: a plain loop nest. Out: its phases as one family of tilings cuts it, or None.

A product is recognized once (product/recognize.py). The families are tried in order, and the first that takes it
decides its `Tiling` and makes the loops; each refuses (None) what it does not do well. Matmul in every transpose,
batched matmul, convolution and both its gradients, einsum and attention scores are all contractions; none is matched by
name. Does not know what pays on a processor: that is data (targets/).
"""

from __future__ import annotations

from glassgrad.compiler.graph.index_algebra import add, divide, modulo, multiply
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import TASK, For, Statement, counter, task_loops, walk
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.padding_copy import with_zeros
from glassgrad.compiler.optimize.moves.steps import move
from glassgrad.compiler.optimize.product.group_tile import group_tiles
from glassgrad.compiler.optimize.product.group_unit import on_group_unit
from glassgrad.compiler.optimize.product.image_tile import direct
from glassgrad.compiler.optimize.product.recognize import Product, recognize
from glassgrad.compiler.optimize.product.register_tile import RegisterPlan, RegisterTile
from glassgrad.compiler.optimize.product.sum_tile import dots, taps
from glassgrad.compiler.optimize.product.unit_tile import on_matrix_unit
from glassgrad.compiler.optimize.product.windows import windows
from glassgrad.compiler.optimize.targets.target import Target

Phases = list[list[Statement]]
BLOCK = 64         # rows or columns of a loop with a symbolic end: a few register tiles


@move(lambda body, *_: None)
def contraction(body: list[Statement], target: Target, decisions: Decisions) -> tuple[Phases, list[Statement]] | None:
    """The phases of a contraction, and a loop nest that is left to do in plain loops (on a GPU, where K is cut into
    parts; else empty). Refuses (None) what is no contraction, and what no family takes."""
    product = recognize(body)
    if product is None:
        return None
    if target.groups:
        on_unit = on_group_unit(product, target, decisions)
        return group_tiles(product, target, decisions) if on_unit is None else (on_unit, [])
    phases = on_matrix_unit(product, target, decisions) or on_vectors(product, target, decisions)
    return None if phases is None else (phases, [])


def on_vectors(product: Product, target: Target, decisions: Decisions) -> Phases | None:
    """The phases on a CPU's vectors: windows, images read in place, lanes along the sum, packed register tiles."""
    if not product.n:
        return windows(product, target, decisions) or taps(product, target, decisions)
    before: Phases = []
    if not product.stops:
        in_place = direct(product, target, decisions)
        if in_place is not None:
            return in_place
        copied = with_zeros(product, target.lanes(product.total.dtype.itemsize))
        if copied is not None:
            before, product = copied
            in_place = direct(product, target, decisions)
        along_memory = in_place or dots(product, target, decisions)
        if along_memory is not None:
            return [*before, *along_memory]
    plan = RegisterPlan.of(product.with_lanes_right(), target)
    if plan is None:
        return None
    phases = RegisterTile(plan, decisions.ask(plan.own(), plan.refuses, plan.others)).phases()
    for loop in [s for phase in phases for s in walk(phase) if isinstance(s, For) and s.range in product.stops]:
        loop.stop = product.stops[loop.range]
    return [*before, *phases]


@move(lambda body, *_: [body])
def in_blocks(body: list[Statement], done: frozenset[UOp] = frozenset()) -> list[list[Statement]]:
    """TASK i below stop: S  ->  TASK b below stop // 64: TASK i in 64: S[64*b + i]
                              TASK r below stop % 64: S[stop // 64 * 64 + r]

    For every loop of M or N that ends at a value: tiles are cut to sizes that are known. The blocks are a contraction
    with one more loop around it; the rest is left to plain loops. refuses (returns the body): there is no such loop
    """
    loops, inner = task_loops(body)
    ends = [f for f in loops if f.stop is not None and f.range not in done and f.range.arg.size >= 2 * BLOCK]
    product = recognize(_nest([For(f.range, TASK, []) for f in loops], inner)) if ends else None
    if product is None or not product.n:
        return [body]
    for f in ends:
        if f.range in product.m or f.range in product.n:
            block, whole, rest = _cut(loops, f, inner)
            return [*in_blocks(whole, done | {block}), rest]
    return [body]


def _cut(loops: list[For], loop: For, inner: list[Statement]) -> tuple[UOp, list[Statement], list[Statement]]:
    """The blocks' counter, the tree of the blocks, and that of the rest."""
    name, n, stop = loop.range.arg.name, loop.range.arg.size, loop.stop
    assert stop is not None
    block, inside, left = counter(name + "b", n // BLOCK), counter(name, BLOCK), counter(name + "r", BLOCK - 1)
    count = divide(stop, BLOCK)
    whole = _nest([For(block, TASK, [], count), *[For(inside, TASK, []) if f is loop else f for f in loops]],
                  moves.rebuild(inner, {loop.range: add(multiply(block, BLOCK), inside)}))
    rest = _nest([For(left, TASK, [], modulo(stop, BLOCK)) if f is loop else f for f in loops],
                 moves.rebuild(inner, {loop.range: add(multiply(count, BLOCK), left)}))
    return block, whole, rest


def _nest(loops: list[For], inner: list[Statement]) -> list[Statement]:
    for f in reversed(loops):
        inner = [For(f.range, f.kind, inner, f.stop)]
    return inner
