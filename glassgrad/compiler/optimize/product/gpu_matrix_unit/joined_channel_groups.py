"""Join groups of few channels. In: a product. Out: one with fewer, block-diagonal groups.

A convolution of 32 groups of 4 channels would use 4 of a unit's 64 rows. Sixteen joined groups are 64 rows and 64
channels, of which only the products on the diagonal, a sixteenth, count. If channels are summed, the left factor (the
weights) is zero off the diagonal. In the gradient by the weights they are not summed: only the diagonal is stored.
"""

from __future__ import annotations

from dataclasses import replace

from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, less, modulo, multiply, substitute_index
from glassgrad.compiler.lower.loops import Store, counter, current, ranges_of
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.gates import zero_outside
from glassgrad.compiler.optimize.product.recognize import Product, count, stride_along
from glassgrad.compiler.optimize.targets import gpu_costs as gpu


def joined_groups(p: Product, most: int) -> Product | None:
    """for g in 32: for m in 4: for k in 4: left[g, m, k] * right[4 g + k, n]
    ->  for g in 2: for m in 64: for k in 64: (left[16 g + m//4, m%4, k%4] if m//4 == k//4) * right[64 g + k, n]

    for g in 32: for m in 4: for n in 4: out[g, m, n] = left[4 g + m, k] * right[4 g + n, k]
    ->  for g in 2: for m in 64: for n in 64: out[16 g + m//4, m%4, n%4] = .. if m//4 == n//4

    refuses (None): no loop of K or N that is nested in a loop of groups in the right factor's memory; a left factor
    that is stored with zeros and not small compared to the right one; groups of which not even two fit `most` channels
    """
    for g in p.batch:
        for r in (*p.k, *p.n):
            if g not in ranges_of(p.left) or not _follows(p.right, g, r):
                continue
            if r in p.k:
                room = most // max(count(p.m), r.arg.size)
                fits = gpu.SMALL_FACTOR * count([*ranges_of(p.left)]) <= sum(n.src[0].size for n in _reads(p.right))
            else:
                room = most // min(count(p.m), r.arg.size)
                fits = len(p.m) == 1 and _follows(p.left, g, p.m[0])
            together = next((n for n in range(min(room, g.arg.size), 1, -1) if g.arg.size % n == 0), 1)
            if fits and together > 1:
                return _joined(p, g, r, together)
    return None


def _reads(factor: UOp) -> list[UOp]:
    return [node for node in toposort([factor]) if node.op is o.LOAD]


def _follows(factor: UOp, groups: UOp, members: UOp) -> bool:
    """Whether a factor's groups are adjacent in memory: a group's stride is its members times theirs."""
    steps = [(stride_along(n.src[1], groups) or 0, stride_along(n.src[1], members) or 0) for n in _reads(factor)]
    return bool(steps) and all(of_group == step * members.arg.size != 0 for of_group, step in steps)


def _joined(p: Product, g: UOp, r: UOp, together: int) -> Product:
    """The product with every `together` groups joined."""
    block = counter(g.arg.name + "b", g.arg.size // together)
    first = multiply(current(block), together)

    def in_one(members: UOp) -> tuple[UOp, UOp, UOp]:
        """A loop over the members of all joined groups, with the group and the member at its index."""
        wide = counter(members.arg.name + "w", together * members.arg.size)
        return wide, divide(wide, members.arg.size), modulo(wide, members.arg.size)
    wide, of_right, inside = in_one(r)
    own = counter(g.arg.name + "i", together)
    m, left = [own, *p.m], {g: add(first, own), r: inside}
    if r in p.n:
        [member] = p.m
        row, own, left[member] = in_one(member)
        m, left[g] = [row], add(first, own)
    diagonal = both(less(of_right, add(own, index(1))), less(own, add(of_right, index(1))))
    value, epilogue = substitute_index(p.left, left, {}), moves.rebuild(p.epilogue, left)
    if r in p.k:
        value = zero_outside(value, diagonal)
    else:
        epilogue = [replace(s, gate=both(diagonal, s.gate)) for s in epilogue if isinstance(s, Store)]
    return replace(p, left=value, right=substitute_index(p.right, {g: add(first, of_right), r: inside}, {}), m=m,
                   n=[wide if n is r else n for n in p.n], k=[wide if k is r else k for k in p.k],
                   batch=[block if b is g else b for b in p.batch if b is not g or block.arg.size > 1],
                   epilogue=epilogue)
