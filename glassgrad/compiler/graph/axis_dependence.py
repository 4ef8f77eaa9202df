"""Follow axes through movement ops: along which does a value change? In: shapes, nodes, axes. Out: sets of axes.

A value that is constant along an axis can be computed once for all of it; fusion and contractions depend on this.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.op_arguments import Shape
from glassgrad.compiler.graph.symbolic import upper_bound
from glassgrad.compiler.graph.uop import UOp

AxisSet = frozenset[int]
Run = tuple[int, int, int, int]     # axes [i, left) of one shape hold the same elements as [j, right) of the other


@lru_cache(maxsize=4096)
def runs(shape: Shape, source: Shape) -> tuple[Run, ...]:
    """Split two shapes of equal size into the shortest runs of axes with equal products.

    >>> runs((6, 4), (2, 3, 4))
    ((0, 1, 0, 2), (1, 2, 2, 3))
    """
    out: list[Run] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        left, right = i, j
        size_left = size_right = whole_left = whole_right = 1       # by upper bounds of sizes, which side to extend
        while whole_left != whole_right or (left == i and right == j):
            if (size_left <= size_right and left < len(shape)) or right == len(source):
                if left == len(shape):
                    break
                size_left *= upper_bound(shape[left])
                whole_left *= shape[left]
                left += 1
            else:
                size_right *= upper_bound(source[right])
                whole_right *= source[right]
                right += 1
        out.append((i, left, j, right))
        i, j = left, right
    return tuple(out)


def nontrivial(shape: Shape) -> AxisSet:
    return frozenset(a for a, n in enumerate(shape) if n != 1)


def carried(node: UOp, axes: AxisSet, exact: bool) -> AxisSet | None:
    """Map a set of axes of `node.src[0]` to axes of `node`, a movement or reduction.

    A reshape may merge axes in the set with others. Then there is no exact answer: with `exact` return None, otherwise
    the axes of the result that contain any of them.
    """
    op, arg, source = node.op, node.arg, node.src[0].shape
    if op is o.PERMUTE:
        return frozenset(arg.order.index(a) for a in axes)
    if op is o.RESHAPE:
        out: set[int] = set()
        for i, left, j, right in runs(node.shape, source):
            inside = {a for a in range(j, right) if source[a] != 1}
            if not inside & axes:
                continue
            if exact and not inside <= axes:
                return None
            out |= {a for a in range(i, left) if node.shape[a] != 1}
        return frozenset(out)
    if op is o.WINDOW or op is o.UNWINDOW:
        return axes | {len(node.shape) - 1} if arg.axis in axes else axes
    if op in o.REDUCE:
        return axes - frozenset(arg.axes)
    return axes


def moved_behind(move: UOp, x: UOp, lead: int) -> UOp:
    """Apply the movement of a node to x, leaving the first `lead` axes of x unchanged."""
    op, arg, front = move.op, move.arg, x.shape[:lead]
    if op is o.RESHAPE:
        return x.reshape((*front, *arg.shape))
    if op is o.PERMUTE:
        return x.permute((*range(lead), *[lead + a for a in arg.order]))
    if op is o.EXPAND:
        return x.expand((*front, *arg.shape))
    if op is o.PAD:
        return x.pad((*[(0, 0)] * lead, *arg.padding))
    if op is o.SHRINK:
        return x.shrink((*[(0, n) for n in front], *arg.bounds))
    if op is o.FLIP:
        return x.flip([lead + a for a in arg.axes])
    return UOp(op, x.dtype, (x,), arg._replace(axis=lead + arg.axis))        # WINDOW, UNWINDOW


def start_of_piece(node: UOp) -> int | None:
    """The offset in its source at which a contiguous SHRINK begins; None for one that is not contiguous.

    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> from glassgrad.compiler.graph.uop import full
    >>> x = full((4, 3, 2), 0.0, dtypes.float32)
    >>> [start_of_piece(x.shrink(bounds)) for bounds in (((1, 3), (0, 3), (0, 2)), ((2, 3), (1, 2), (0, 2)))]
    [6, 14]
    >>> start_of_piece(x.shrink(((0, 4), (0, 1), (0, 2))))
    """
    if node.symbolic:
        return None
    begin, step, whole = 0, 1, True
    for (start, stop), size in zip(reversed(node.arg.bounds), reversed(node.src[0].shape)):
        if not whole and stop - start != 1:
            return None
        whole = whole and (start, stop) == (0, size)
        begin += start * step
        step *= size
    return begin


def varies(order: list[UOp], known: dict[UOp, AxisSet] | None = None) -> dict[UOp, AxisSet]:
    """Map each node (in topological order) to the axes along which its value may change. `known`, which has the nodes
    below, is extended."""
    found: dict[UOp, AxisSet] = {} if known is None else known
    for node in order:
        if node.op in o.ELEMENTWISE:
            inner = [found[s] for s in node.src if s.shape != ()]
            found[node] = frozenset().union(*inner) if node.shape else frozenset()
        elif node.op in o.MOVEMENT or node.op in o.REDUCE:
            found[node] = (carried(node, found[node.src[0]], exact=False) or frozenset()) | _edges(node)
        elif node.op in (o.CONTIGUOUS, o.DETACH, o.COPY):
            found[node] = found[node.src[0]]
        else:
            found[node] = nontrivial(node.shape)
    return found


def varies_along(node: UOp, known: dict[UOp, AxisSet]) -> AxisSet:
    """The axes along which a value may change; `known` caches those of every node below."""
    if node not in known:
        varies(toposort([node], lambda n: [s for s in n.src if s not in known]), known)
    return known[node]


def _edges(node: UOp) -> AxisSet:
    """The axes along which a node inserts zeros: it changes along these even if its source does not."""
    if node.op is o.PAD:
        return frozenset(a for a, zeros in enumerate(node.arg.padding) if zeros != (0, 0))
    return frozenset((node.arg.axis, len(node.shape) - 1)) if node.op is o.UNWINDOW else frozenset()


def coordinates(position: int, shape: Sequence[int]) -> list[int]:
    """The index of an element along each axis, given its row-major position.

    >>> coordinates(7, (2, 5))
    [1, 2]
    """
    found = []
    for n in reversed(shape):
        position, i = divmod(position, n)
        found.append(i)
    return found[::-1]
