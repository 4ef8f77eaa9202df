"""How the panels of a product are shared out to tasks. In: how many there are and are wanted. Out: blocks, and loops.

A task takes a block: some panels of M and some of N. Every recipe of products cuts its blocks here, and says itself
what a block costs to read and how much of it fits.
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.compiler.graph.index_algebra import add, index, multiply
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import LOOP, For, Statement
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.contraction_axes import one


def blocks(panels_m: int, panels_n: int, wanted: int, reads: Callable[[int, int], float],
           room: Callable[[int], int] | None = None) -> tuple[int, int]:
    """Panels of M and N in one task: as many tasks as are wanted, or as near to that as can be; of the ways to do so,
    the one that `reads` least. `room` says how many panels of N fit beside so many of M; 0: that is too many of M.

    >>> blocks(16, 16, 4, reads=lambda m, n: 1 / m + 1 / n)                                   # as square as can be
    (8, 8)
    >>> blocks(16, 16, 4, reads=lambda m, n: 1 / m + 1 / n, room=lambda m: 16 // m)           # a block of 16 fits
    (4, 4)
    >>> blocks(16, 16, 4, reads=lambda m, n: 1 / m)                                           # M is best left whole
    (16, 4)
    """
    found: list[tuple[int, float, int, int]] = []
    for tasks_m in range(1, panels_m + 1):
        block_m = -(-panels_m // tasks_m)
        most = panels_n if room is None else min(room(block_m), panels_n)
        if most < 1:
            continue
        tasks_m = -(-panels_m // block_m)
        tasks_n = max(min(-(-wanted // tasks_m), panels_n), -(-panels_n // most))
        block_n = -(-panels_n // tasks_n)
        lacking = max(0, wanted - tasks_m * -(-panels_n // block_n))
        found.append((lacking, round(reads(block_m, block_n), 6), block_m, block_n))
        if tasks_m > 4 * wanted:
            break
    return min(found, key=lambda way: way[:2])[2:]


def square(rows: int, columns: int) -> Callable[[int, int], float]:
    """What a block reads for each of its products: less, the nearer to a square it is."""
    return lambda block_m, block_n: 1 / (block_m * rows) + 1 / (block_n * columns)


def share(panel: UOp, task: UOp, whole: int, body: list[Statement]) -> list[Statement]:
    """for the panels of one task: body      (the last of the tasks may have fewer: there are `whole` in all)"""
    size = panel.arg.size
    stop = None if whole % size == 0 else add(index(whole), multiply(one(task), -size))
    return [For(panel, LOOP, body, stop)] if size > 1 else body


def hand_out(outer: list[UOp], tasks: list[UOp], body: list[Statement], worth: bool,
             most: int = moves.MOST_TASKS) -> list[Statement]:
    """for outer loops: TASK blocks: body      (a repetition is handed out too where all the work is `worth` it)"""
    if worth:
        return moves.share_out([*outer, *tasks], body, most)
    body = moves.share_out(tasks, body, most)
    for r in reversed(outer):
        body = [For(r, LOOP, body)] if r.arg.size > 1 else body
    return body
