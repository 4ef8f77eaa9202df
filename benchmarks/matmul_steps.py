"""Make a matrix product fast in five steps, each a few moves on the loop tree. In: a size, a target. Out: `Step`s.

Every step is the same kernel, edited by the optimizer's own moves (glassgrad/compiler/optimize). The fourth and fifth
are what the recipe makes of any contraction. docs/performance.md explains the steps; benchmarks/performance.py measures
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgrad import Tensor
from glassgrad.compiler.lower.loops import LOOP, TASK, For, If, Kernel, Phase, Statement
from glassgrad.compiler.lower.lower import lower
from glassgrad.compiler.optimize.decisions import read
from glassgrad.compiler.optimize.moves.loop_moves import wide
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.recipes import optimize, unoptimized
from glassgrad.compiler.optimize.targets.target import Target

__all__ = ["Step", "contract_of", "other_tiles", "plain_kernel", "steps"]

SCALAR_TILE = 4, 4          # rows and columns of the tile that has no vectors: 16 sums fit the registers of any target


@dataclass
class Step:
    """One step of the lesson: what it is called, the moves that make it, and the loop tree they give."""
    name: str
    moves: str
    kernel: Kernel


def plain_kernel(rows: int, inner: int, columns: int) -> Kernel:
    """The loops of `a @ b` as lowering leaves them: two of results, one that adds up."""
    a, b = Tensor.ones(rows, inner).contiguous().realize(), Tensor.ones(inner, columns).contiguous().realize()
    [item] = (a @ b).schedule()
    return lower(item.ast)


def steps(rows: int, inner: int, columns: int, target: Target) -> list[Step]:
    """The five steps for a product of these sizes on this processor; the tile is the recipe's own."""
    plain = plain_kernel(rows, inner, columns)
    fast = optimize(plain, target)
    own = contract_of(fast)
    high, across = SCALAR_TILE
    return [
        Step("naive", "none (NOOPT=1)", unoptimized(plain)),
        Step("tiled", f"tile i1 by {across}, i0 by {high}", _tiled(plain, high, across, 1)),
        Step("vectorized", f"lanes on i1 ({own.vectors} x {own.lanes}), tile i0 by {own.rows}",
             _tiled(plain, own.rows, own.vectors, own.lanes)),
        Step("packed", ", ".join(fast.moves), _on_one_core(fast)),
        Step("parallel", "the same, its outer loops as tasks", fast),
    ]


def contract_of(kernel: Kernel) -> Tiling:
    """What the recipe decided for a product: its register tile and its blocks.

    >>> avx2 = Target("x86_64", vector_bytes=32, vector_registers=16, features=frozenset({"avx2", "fma"}))
    >>> chosen = contract_of(optimize(plain_kernel(120, 120, 120), avx2))
    >>> chosen.rows, chosen.vectors, chosen.lanes
    (6, 2, 8)
    """
    chosen = read(kernel.moves[0])
    if not isinstance(chosen, Tiling):
        raise ValueError(f"the recipe packs nothing here: {kernel.moves}; take a larger product")
    return chosen


def other_tiles(rows: int, inner: int, columns: int, target: Target) -> list[Step]:
    """The packed step on one core with smaller register tiles, and with the recipe's own last: choices are data."""
    plain = plain_kernel(rows, inner, columns)
    own = contract_of(optimize(plain, target))
    found: list[Step] = []
    for high, vectors in dict.fromkeys(((1, 1), (2, 1), (4, 1), (own.rows, 1), (own.rows, own.vectors))):
        # blocks of about the same size, though of no more tiles than there are
        tile = replace(own, rows=high, vectors=vectors,
                       block_m=min(-(-own.block_m * own.rows // high), -(-rows // high)),
                       block_n=min(own.block_n * own.vectors // vectors, -(-columns // (vectors * own.lanes))))
        found.append(Step(f"{high} x {vectors * own.lanes}", str(tile),
                          _on_one_core(optimize(plain, target, given=[str(tile)]))))
    return found


def _tiled(plain: Kernel, high: int, across: int, lanes: int) -> Kernel:
    """for i0: for i1: S  ->  for i0o: TILE i0u: for i1o: TILE i1u: LANE i1l: S      (two `wide` moves, no packing)"""
    [outer] = plain.phases[0].body
    assert isinstance(outer, For)
    [inner] = outer.body
    assert isinstance(inner, For)
    columns = wide(For(inner.range, LOOP, inner.body), across, lanes)
    body = wide(For(outer.range, LOOP, columns), high, 1)
    return Kernel(plain.name, plain.params, [Phase(body)], plain.written)


def _on_one_core(kernel: Kernel) -> Kernel:
    """TASK  ->  LOOP: the same work in the same order, by one worker."""
    def serial(body: list[Statement]) -> list[Statement]:
        return [For(s.range, LOOP if s.kind == TASK else s.kind, serial(s.body), s.stop) if isinstance(s, For) else
                If(s.condition, serial(s.body)) if isinstance(s, If) else s for s in body]
    return Kernel(kernel.name, kernel.params, [Phase(serial(p.body)) for p in kernel.phases], kernel.written)
