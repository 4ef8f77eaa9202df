"""Register tiles for direct.py: which there are, and what each has to do. In: a product and a tile. Out: counts.

A tile takes neighbours along one or two loops of M. Along the edges of a padded image it takes fewer of them to a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from glassgrad.graph.uop import UOp
from glassgrad.lower.loops import Store
from glassgrad.optimize.axes import stride_along
from glassgrad.optimize.padding import Edges
from glassgrad.optimize.product import Product


def pieces_in_result(p: Product, tiles: list[int]) -> int:
    """In how many pieces a tile's rows lie in the result; 1 where columns lie closer together than rows do."""
    store = p.epilogue[-1]
    assert isinstance(store, Store)
    steps = {r: abs(stride_along(store.index, r) or 0) for r in (*p.m, *p.n) if r.arg.size > 1}
    nearest = min(filter(None, steps.values()), default=0)
    if nearest not in [steps.get(r) for r in p.m]:
        return 1
    along, goes_on = 1, True
    while goes_on:
        at = next((i for i, r in enumerate(p.m) if steps.get(r) == along * nearest and tiles[i] > 1), None)
        goes_on = at is not None and tiles[at] == p.m[at].arg.size
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
