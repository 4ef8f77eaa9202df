"""Compute parts of an expression from parts of what it is computed from. In: nodes and bounds. Out: nodes of the parts.

    softmax(x, 0)[:3, :3]    without this    m = max(x, 0), s = sum(exp(x - m), 0), (exp(x - m) / s)[:3, :3]
                             with this       m = max(x[:, :3], 0), and so on: three columns of x

A SHRINK goes down through operations whose part needs only parts of their sources, and stays above the others (a scan,
a sort, a reshape that mixes axes). Parts that need the same values then have the same nodes for them. Expressions whose
parts overlap in many ways are left as they are. Does not know tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.compiler.graph import UOp, full, ops as o
from glassgrad.compiler.graph.axis_dependence import runs

MOST_PARTS = 4096                   # parts of nodes; with more, expressions are left as they are
Bounds = tuple[tuple[int, int], ...]        # (start, stop) along each axis
_Part = tuple[UOp, Bounds]


def parts_of(node: UOp, wanted: Sequence[Bounds]) -> list[UOp]:
    """Return parts of a node, whose formulas and gradients are written out.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize().uop
    >>> [part] = parts_of((x + 1).sum((0,)), [((0, 1), (0, 1))])
    >>> [n.op.name for n in part.toposort()], part.src[0].src[0].shape
    (['BUFFER', 'SHRINK', 'CONST', 'ADD', 'SUM'], (2, 1))
    """
    made: dict[_Part, UOp] = {}
    waiting: list[_Part] = [(node, bounds) for bounds in wanted]
    while waiting:
        part = waiting[-1]
        below = [] if part in made else _parts_below(*part)
        missing = [] if below is None else [needed for needed in below if needed not in made]
        if part not in made and not missing:
            made[part] = part[0].shrink(part[1]) if below is None else _over(*part, [made[needed] for needed in below])
        if len(made) + len(waiting) > MOST_PARTS:
            return [node.shrink(bounds) for bounds in wanted]
        if missing:
            waiting.extend(missing)
        else:
            waiting.pop()
    return [made[node, bounds] for bounds in wanted]


def _whole(node: UOp) -> Bounds:
    return tuple([(0, n) for n in node.shape])


def _parts_below(node: UOp, bounds: Bounds) -> list[_Part] | None:
    """Return the parts of its sources that a part of a node is computed from; None if it has to be cut out of the
    node."""
    if node.symbolic or bounds == _whole(node):
        return None
    if node.op in o.ELEMENTWISE or node.op in (o.CONTIGUOUS, o.DETACH):
        sources = node.src[:1] if node.op is o.DETACH else node.src
        return [(s, bounds if s.shape else ()) for s in sources]
    if node.op in o.REDUCE:
        source = node.src[0]
        return [(source, tuple([(0, n) if a in node.arg.axes else bounds[a] for a, n in enumerate(source.shape)]))]
    below = _BOUNDS_BELOW[node.op](node, bounds) if node.op in _BOUNDS_BELOW else None
    if below is None:
        return None
    return [] if any(start >= stop for start, stop in below) else [(node.src[0], below)]


def _over(node: UOp, bounds: Bounds, below: list[UOp]) -> UOp:
    """Return a part of a node, over the parts of its sources."""
    sizes = tuple([stop - start for start, stop in bounds])
    if not below:
        return full(sizes, 0, node.dtype)                                # a part of the padding
    if node.op is o.RESHAPE:
        return below[0].reshape(sizes)
    if node.op is o.EXPAND:
        return below[0].expand(sizes)
    if node.op is o.PAD:
        return below[0].pad([(max(before - start, 0), max(stop - before - n, 0)) for (start, stop), (before, _), n in
                             zip(bounds, node.arg.padding, node.src[0].shape)])
    return below[0] if node.op in (o.SHRINK, o.DETACH) else node.over(tuple(below))


# -- which part of its source a view shows ---------------------------------------------------------------------
def _below_reshape(node: UOp, bounds: Bounds) -> Bounds | None:
    """A part along axes that the reshape keeps; None for others."""
    source = node.src[0].shape
    below = [(0, n) for n in source]
    for i, left, j, right in runs(node.shape, source):
        if any(bounds[a] != (0, node.shape[a]) for a in range(i, left)):
            mine, its = ([a for a in axes if shape[a] != 1] for axes, shape in
                         ((range(i, left), node.shape), (range(j, right), source)))
            if len(mine) != 1 or len(its) != 1:
                return None
            below[its[0]] = bounds[mine[0]]
    return tuple(below)


def _below_expand(node: UOp, bounds: Bounds) -> Bounds:
    return tuple([(0, 1) if n == 1 else part for n, part in zip(node.src[0].shape, bounds)])


def _below_permute(node: UOp, bounds: Bounds) -> Bounds:
    return tuple([bounds[node.arg.order.index(a)] for a in range(len(bounds))])


def _below_flip(node: UOp, bounds: Bounds) -> Bounds:
    return tuple([(n - stop, n - start) if a in node.arg.axes else (start, stop)
                  for a, (n, (start, stop)) in enumerate(zip(node.shape, bounds))])


def _below_shrink(node: UOp, bounds: Bounds) -> Bounds:
    return tuple([(first + start, first + stop) for (first, _), (start, stop) in zip(node.arg.bounds, bounds)])


def _below_pad(node: UOp, bounds: Bounds) -> Bounds:
    return tuple([(max(start - before, 0), min(stop - before, n)) for (start, stop), (before, _), n in
                  zip(bounds, node.arg.padding, node.src[0].shape)])


_BOUNDS_BELOW = {o.RESHAPE: _below_reshape, o.EXPAND: _below_expand, o.PERMUTE: _below_permute, o.FLIP: _below_flip,
                 o.SHRINK: _below_shrink, o.PAD: _below_pad}
