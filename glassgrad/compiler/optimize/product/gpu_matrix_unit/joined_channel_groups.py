"""Groups of few channels as one product. In: a product. Out: one with fewer groups, whose left factor has zeros.

A convolution of 32 groups of 4 channels would use 4 of a unit's 64 rows. Sixteen groups side by side are 64 rows and 64
channels, of which a sixteenth of the products count: the left factor, the weights, is zero between different groups.
"""

from __future__ import annotations

from dataclasses import replace

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, less, modulo, multiply, substitute_index
from glassgrad.compiler.lower.loops import counter, ranges_of
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import one
from glassgrad.compiler.optimize.product.recognize import Product, count, stride_along
from glassgrad.compiler.optimize.targets import gpu_costs as gpu


def joined_groups(p: Product, most: int) -> Product | None:
    """for g in 32: for m in 4: for k in 4: left[g, m, k] * right[4 g + k, n]
    ->  for g in 2: for m in 64: for k in 64: (left[16 g + m//4, m%4, k%4] if m//4 == k//4) * right[64 g + k, n]

    refuses (None): no loop of K follows a loop of groups in the right factor; a left factor that is not small beside
    the right one; groups that leave no room for another one in so many rows and channels
    """
    reads = [node for node in toposort([p.right]) if node.op is o.LOAD]
    for g in p.batch:
        for k in [r for r in p.k if g in ranges_of(p.left) and r in ranges_of(p.left)]:
            follows = all((stride_along(n.src[1], g) or 0) == r_step * k.arg.size != 0
                          for n in reads for r_step in [stride_along(n.src[1], k) or 0])
            room = most // max(count(p.m), k.arg.size)
            together = next((n for n in range(min(room, g.arg.size), 1, -1) if g.arg.size % n == 0), 1)
            small = gpu.SMALL_FACTOR * count([*ranges_of(p.left)]) <= sum(n.src[0].size for n in reads)
            if reads and follows and small and together > 1:
                return _joined(p, g, k, together)
    return None


def _joined(p: Product, g: UOp, k: UOp, together: int) -> Product:
    """The product with so many groups at once."""
    block, own = counter(g.arg.name + "b", g.arg.size // together), counter(g.arg.name + "i", together)
    wide = counter(k.arg.name + "w", together * k.arg.size)
    of_right, inside = divide(wide, k.arg.size), modulo(wide, k.arg.size)
    first = multiply(one(block), together)
    diagonal = both(less(of_right, add(own, index(1))), less(own, add(of_right, index(1))))
    left = substitute_index(p.left, {g: add(first, own), k: inside}, {})
    return replace(p, left=moves.zero_outside(left, diagonal), m=[own, *p.m], k=[wide if r is k else r for r in p.k],
                   right=substitute_index(p.right, {g: add(first, of_right), k: inside}, {}),
                   batch=[block if r is g else r for r in p.batch if r is not g or block.arg.size > 1],
                   epilogue=moves.rebuild(p.epilogue, {g: add(first, own)}))
