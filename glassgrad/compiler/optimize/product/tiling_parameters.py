"""`Tiling`: how a contraction is tiled, as one decision for every family and target; and how blocks become tasks.

In: panels, and how much a block of them reads. Out: blocks, the counters inside one, and the loops around its body. A
task takes a block: some panels of M and some of N. Does not know what a tile computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass
from typing import Any

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import add, divide_up, index, multiply, operation, times
from glassgrad.compiler.lower.loops import LOOP, For, Statement, counter, current, nested, piece_bound
from glassgrad.compiler.optimize.decisions import Choice, one_of
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.tiling_families import FAMILIES


@dataclass(frozen=True)
class Tiling(Choice, names=FAMILIES):
    """How a contraction is tiled. Its text begins with the family, and omits fields that have their default value.

    >>> print(Tiling("contract", rows=6, vectors=2, lanes=8, block_m=64, block_n=1, left="in_place", right="near"))
    contract(rows=6, vectors=2, lanes=8, block_m=64, block_n=1, left=in_place, right=near)
    """
    family: str
    rows: int                 # per tile: results along M; or matrices of a unit; or results of each GPU thread
    vectors: int  # per tile along N: vectors; or matrices of a unit; or results of each GPU thread; or taps of a window
    lanes: int = 0            # lanes per vector, or threads per group
    along: str = ""           # the extent of the rows along each loop of M, as in 1_2_7
    unit: str = ""            # the instruction of the matrix unit
    block_m: int = 0          # panels of M per task, or threads of a group along M
    block_n: int = 0          # panels of N per task, or threads of a group along N
    left: str = one_of("packed", "in_place", "shared")
    right: str = one_of("packed", "in_place", "near", "shared")
    ahead: bool = True        # whether upcoming reads are prefetched
    k_blocks: int = 1         # consecutive blocks of K that one tile does before the next tile
    k_block: int = 0          # products that a register adds up before they go to memory, or copied at once; 0: all
    unroll: int = 1           # steps of K per iteration of their loop
    k_parts: int = 1          # parts of K, each summed by a separate task; with run-time rows, times the blocks of rows
    pitch: int = 0            # positions between rows of an image; 0: not an image
    stages: int = 0           # steps of K whose copies are in memory or in flight
    cluster: int = 1          # groups of a cluster, with consecutive tiles of M, which share copies of the right factor
    stay: bool = False        # persistent groups: each does tile after tile, with copies for the next one in flight

    def is_fixed(self, field_: Field[Any]) -> bool:
        return field_.name not in FAMILIES[self.family]


# -- work split ------------------------------------------------------------------------------------------------------
def blocks(panels_m: int, panels_n: int, wanted: int, reads: Callable[[int, int], float],
           fits: Callable[[int], int] | None = None) -> tuple[int, int]:
    """Choose how many panels of M and N a task has: so that there are as many tasks as wanted, or nearly; and of these
    ways, the one that `reads` least. `fits` gives the most panels of N in a block with m panels of M; 0: m is too many.

    >>> blocks(16, 16, 4, reads=lambda m, n: 1 / m + 1 / n)                                   # as square as possible
    (8, 8)
    >>> blocks(16, 16, 4, reads=lambda m, n: 1 / m + 1 / n, fits=lambda m: 16 // m)           # a block of 16 fits
    (4, 4)
    >>> blocks(16, 16, 4, reads=lambda m, n: 1 / m)                                           # M is best left whole
    (16, 4)
    """
    found: list[tuple[int, float, int, int]] = []
    for tasks_m in range(1, panels_m + 1):
        block_m = -(-panels_m // tasks_m)
        most = panels_n if fits is None else min(fits(block_m), panels_n)
        if most < 1:
            continue
        tasks_m = -(-panels_m // block_m)
        tasks_n = max(min(-(-wanted // tasks_m), panels_n), -(-panels_n // most))
        for block_n in dict.fromkeys((-(-panels_n // tasks_n), panels_n // tasks_n)):
            lacking = max(0, wanted - tasks_m * -(-panels_n // block_n))
            found.append((lacking, round(reads(block_m, block_n), 6), block_m, block_n))
        if tasks_m > 4 * wanted:
            break
    return min(found, key=lambda way: way[:2])[2:]


def square(rows: int, columns: int) -> Callable[[int, int], float]:
    """How much a block reads per product: the less, the closer it is to a square."""
    return lambda block_m, block_n: 1 / (block_m * rows) + 1 / (block_n * columns)


class PanelBlocks:
    """The counters of panels in blocks: `task_m` and `task_n` number the blocks, `in_m` and `in_n` the panels of one
    block. `end_m` and `end_n` are the numbers of panels of M and N if these are known only at run time."""

    def __init__(self, panels_m: int, panels_n: int, block_m: int, block_n: int, end_m: UOp | None = None,
                 end_n: UOp | None = None):
        self.panels_m, self.panels_n, self.end_m, self.end_n = panels_m, panels_n, end_m, end_n
        self.block_m, self.block_n = block_m, block_n
        self.task_m, self.in_m = counter("mb", -(-panels_m // block_m)), counter("mo", block_m)
        self.task_n, self.in_n = counter("nb", -(-panels_n // block_n)), counter("no", block_n)
        self.panel_m = add(multiply(current(self.task_m), block_m), current(self.in_m))
        self.panel_n = add(multiply(current(self.task_n), block_n), current(self.in_n))

    def over_m(self, body: list[Statement]) -> list[Statement]:
        """for the panels of M of one task: body      (the last task may have fewer)"""
        return _over(self.in_m, self.task_m, self.panels_m if self.end_m is None else self.end_m, body)

    def over_n(self, body: list[Statement]) -> list[Statement]:
        """for the panels of N of one task: body      (the last task may have fewer)"""
        return _over(self.in_n, self.task_n, self.panels_n, body)

    def as_tasks(self, outer: list[UOp], body: list[Statement], worth: bool,
                 most: int = moves.PHASE_TASKS) -> list[Statement]:
        """for outer loops: TASK blocks: body      (the outer loops become tasks too if `worth` it)"""
        if self.end_n is not None:
            tasks_m = index(self.task_m.arg.size) if self.end_m is None else \
                operation(o.MAX, divide_up(self.end_m, self.block_m), index(1))
            number = counter("t", self.task_m.arg.size * self.task_n.arg.size)
            body = moves.rebuild(nested([] if worth else outer, body), {
                self.task_n: operation(o.IDIV, number, tasks_m), self.task_m: operation(o.MOD, number, tasks_m)})
            rest = moves.loops_as_tasks(outer if worth else [], body, most)
            return [moves.tasks(For(number, LOOP, rest, times(divide_up(self.end_n, self.block_n), tasks_m)), most)]
        if self.end_m is not None:
            stop = divide_up(self.end_m, self.block_m)
            body = nested([] if worth else outer, body)
            rest = moves.loops_as_tasks([*(outer if worth else []), self.task_n], body, most)
            return [moves.tasks(For(self.task_m, LOOP, rest, stop), most)]
        blocks = [self.task_m, self.task_n]
        if worth:
            return moves.loops_as_tasks([*outer, *blocks], body, most)
        return nested(outer, moves.loops_as_tasks(blocks, body, most))


def _over(panel: UOp, task: UOp, panels: int | UOp, body: list[Statement]) -> list[Statement]:
    size = panel.arg.size
    return [For(panel, LOOP, body, piece_bound(panels, size, task))] if size > 1 else body
