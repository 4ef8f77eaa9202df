"""Register tiles for direct.py: which there are, and what each has to do. In: a product and a tile. Out: counts.

A tile takes neighbours along one or two loops of M. Along the edges of a padded image it takes fewer of them to a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Store
from glassgrad.compiler.optimize.moves.padding_bounds import Edges
from glassgrad.compiler.optimize.product.contraction_axes import stride_along
from glassgrad.compiler.optimize.product.recognize import Product


@dataclass(frozen=True)
class Cut:
    """A way to cut M into register tiles, and what these have to do however many vectors they are wide."""
    tiles: list[int]              # neighbours along each loop of M
    rows: int                     # of a tile
    count: int                    # tiles in all
    steps: dict[int, float]       # how often a step of K is taken with so many of a tile's rows
    written: int                  # how often such a step is written out, for all the edges a tile may lie at
    pieces: int                   # in which a tile's rows lie in the result


def cuts(p: Product, edges: Edges, most: int) -> list[Cut]:
    """All ways to cut M into tiles of at most so many rows."""
    depth = math.prod(r.arg.size for r in p.k)
    store = p.epilogue[-1]
    assert isinstance(store, Store)
    apart = {r: abs(stride_along(store.index, r) or 0) for r in (*p.m, *p.n) if r.arg.size > 1}
    out: list[Cut] = []
    for tiles in tilings([r.arg.size for r in p.m], most):
        count = math.prod([-(-r.arg.size // t) for r, t in zip(p.m, tiles)])
        steps, written = steps_of(edges, dict(zip(p.m, tiles)), depth * count)
        out.append(Cut(tiles, math.prod(tiles), count, steps, written, pieces_in_result(p.m, apart, tiles)))
    return out


def pieces_in_result(loops: list[UOp], apart: dict[UOp, int], tiles: list[int]) -> int:
    """In how many pieces a tile's rows lie in the result, whose loops step so far; 1 where columns lie closer together
    than rows do."""
    nearest = min(filter(None, apart.values()), default=0)
    if nearest not in [apart.get(r) for r in loops]:
        return 1
    along, goes_on = 1, True
    while goes_on:
        at = next((i for i, r in enumerate(loops) if tiles[i] > 1 and apart.get(r) == along * nearest), None)
        goes_on = at is not None and tiles[at] == loops[at].arg.size
        along *= tiles[at] if at is not None else 1
    return math.prod(tiles) // along


def steps_of(edges: Edges, tiles: dict[UOp, int], whole: int) -> tuple[dict[int, float], int]:
    """How often a tile takes a step of K with so many of its rows, of `whole` steps; and how often one is written."""
    steps, written = {math.prod(tiles.values()): float(whole)}, 1
    for k, m in edges.bound.items():
        if m is None or tiles[m] == 1:
            steps = {rows: times * edges.share(k) for rows, times in steps.items()}
            continue
        pieces, tile = edges.pieces(k, tiles[m]), tiles[m]
        written *= sum(len(piece.runs) for piece in pieces)
        shares: dict[int, float] = {}
        for run, count in [(run, piece.count) for piece in pieces for run in piece.runs]:
            length = run.last - run.first
            shares[length] = shares.get(length, 0.0) + count * (run.high - run.low)
        all_steps = -(-m.arg.size // tile) * k.arg.size
        joined: dict[int, float] = {}
        for (rows, times), (length, share) in product(steps.items(), shares.items()):
            part = rows // tile * length
            joined[part] = joined.get(part, 0.0) + times * share / all_steps
        steps = joined
    return steps, written


def tilings(sizes: list[int], most: int, cut: int = 2) -> Iterator[list[int]]:
    """Ways to take neighbours along at most `cut` of the loops into one tile of at most so many rows."""
    if not sizes:
        yield []
        return
    for tile in range(1, (min(sizes[0], most) if cut else 1) + 1):
        for rest in tilings(sizes[1:], most // tile, cut - (tile > 1)):
            yield [tile, *rest]
