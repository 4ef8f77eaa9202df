"""Sums of products along a loop whose end is known only when the kernel runs. In: a loop tree. Out: trees.

Tiles and panels are cut to sizes that are known. So the loop is cut first, into blocks of a known size and the rest:

    TASK i below stop: S  ->  TASK b below stop // 64: TASK i in 64: S[64*b + i]
                              TASK r below stop % 64: S[stop // 64 * 64 + r]

The blocks are a product with one more loop around it, which the packed recipe takes; the rest takes the plain one.
"""

from __future__ import annotations

from glassgrad.compiler.graph.index_algebra import add, divide, modulo, multiply
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import TASK, For, Statement, counter, task_loops
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.recognize import recognise

BLOCK = 64         # rows or columns: a few register tiles


def in_blocks(body: list[Statement], done: frozenset[UOp] = frozenset()) -> list[list[Statement]]:
    """The body cut along every such loop that one factor of a product alone sees; itself where there is none."""
    loops, inner = task_loops(body)
    ends = [f for f in loops if f.stop is not None and f.range not in done and f.range.arg.size >= 2 * BLOCK]
    product = recognise(_nest([For(f.range, TASK, []) for f in loops], inner)) if ends else None
    if product is None:
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
