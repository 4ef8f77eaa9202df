"""A matrix product made fast in five steps, each a few moves on the loop tree. In: a size, a target. Out: `Step`s.

Every step is the same kernel, edited by the optimizer's own moves (glassgrad/optimize). The fourth and fifth are what
the recipe makes of any sum of products. docs/performance.md tells the story; benchmarks/performance.py measures it.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgrad import Tensor
from glassgrad.lower.loops import LANE, LOOP, TASK, TILE, For, If, Kernel, Phase, Statement, walk
from glassgrad.lower.lower import lower
from glassgrad.optimize.moves import wide
from glassgrad.optimize.recipes import optimize, unoptimized
from glassgrad.optimize.target import Target

__all__ = ["Step", "plain_kernel", "steps", "tile_of"]

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
    tile, vectors, lanes = tile_of(fast)
    high, across = SCALAR_TILE
    return [
        Step("naive", "none (NOOPT=1)", unoptimized(plain)),
        Step("tiled", f"tile i1 by {across}, i0 by {high}", _tiled(plain, high, across, 1)),
        Step("vectorized", f"lanes on i1 ({vectors} x {lanes}), tile i0 by {tile}",
             _tiled(plain, tile, vectors, lanes)),
        Step("packed", ", ".join(fast.moves), _on_one_core(fast)),
        Step("parallel", "the same, its outer loops as tasks", fast),
    ]


def tile_of(kernel: Kernel) -> tuple[int, int, int]:
    """The register tile of a kernel that the recipe has optimized: rows, vectors, lanes.

    >>> avx2 = Target("x86_64", vector_bytes=32, vector_registers=16, features=frozenset({"avx2", "fma"}))
    >>> tile_of(optimize(plain_kernel(120, 120, 120), avx2))
    (6, 2, 8)
    """
    sizes = {TILE: {}, LANE: {}}
    for s in walk(kernel.phases[-1].body):
        if isinstance(s, For) and s.kind in sizes:
            sizes[s.kind][s.range.arg.name] = s.range.arg.size
    return sizes[TILE].get("mi", 1), sizes[TILE].get("ni", 1), sizes[LANE].get("l", 1)


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
