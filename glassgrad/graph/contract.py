"""The gradient of a window is one contraction. In: nothing. Out: `CONTRACTIONS`, rules for `rewrite` after the algebra.

The gradient of a convolution's input arrives as sums of UNWINDOWs of sums of products, one nested in the other, each of
them as large as all windows together. UNWINDOW only moves elements, so it commutes with a sum over other axes, and of
a product it needs to move only the factor that changes along its axis. What remains is a single sum of products:

    sum_k unwindow(sum_c g[c, o] * w[c, k])   ->   sum_{c,k} unwindow(g)[c, i, k] * w[c, k]

The rules leave all other sums alone: a sum that somebody else reads too would be computed twice.
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.graph import ops as o
from glassgrad.graph.axes import runs
from glassgrad.graph.rewrite import Inexact, Rule, RuleSet, holes, node
from glassgrad.graph.rules import MOVES
from glassgrad.graph.uop import UOp

x, = holes("x", kinds="f")
_INSIDE = Inexact("where all factors are finite: a zero beside an infinite factor was 0, and is NaN",
                  lambda a: (abs(a) < 8) & (abs(a) > 0.125), ulps=16)


# -- following axes ---------------------------------------------------------------------------------------------------
def _still(value: UOp, axis: int) -> bool:
    """Whether a value is seen not to change along an axis."""
    while True:
        if value.shape == () or value.shape[axis] == 1:
            return True
        if value.op is o.PERMUTE:
            axis = value.arg.order[axis]
        elif value.op is o.RESHAPE:
            here, there = next(((i, left), (j, right)) for i, left, j, right in runs(value.shape, value.src[0].shape)
                               if i <= axis < left)
            inner = [a for a in range(*there) if value.src[0].shape[a] != 1]
            if sum(value.shape[a] != 1 for a in range(*here)) != 1 or len(inner) != 1:
                return False                           # axes are mixed
            axis, = inner
        elif value.op is o.PAD and value.arg.padding[axis] != (0, 0) \
                or value.op is o.UNWINDOW and axis in (value.arg.axis, len(value.shape) - 1) \
                or value.op is o.WINDOW and axis == len(value.shape) - 1 \
                or value.op not in (o.PAD, o.UNWINDOW, o.WINDOW, o.EXPAND, o.SHRINK, o.FLIP):
            return False
        value = value.src[0]


def _unwinds(value: UOp) -> bool:
    """Whether movement ops on top of a value include an UNWINDOW."""
    while value.op in o.MOVEMENT:
        if value.op is o.UNWINDOW:
            return True
        value = value.src[0]
    return False


# -- the rules' right sides -------------------------------------------------------------------------------------------
def _outside_sum(root: UOp, move: Callable[[UOp, UOp], tuple[UOp, UOp] | None]) -> UOp | None:
    """root = move(sum of products)  ->  sum of moved products. The factors handed to `move` have the axes that root's
    source has, and the summed ones after them; what it gives back has root's axes, and the summed ones after them."""
    total, chain = root.src[0], []
    while total.op in (o.RESHAPE, o.PERMUTE):
        chain.append(total)
        total = total.src[0]
    product, summed = (total.src[0], total.arg.axes) if total.op is o.SUM else (total, ())
    if product.op is not o.MUL:
        return None
    order = [a for a in range(len(product.shape)) if a not in summed] + list(summed)
    sizes = [product.shape[a] for a in summed]

    def lift(factor: UOp) -> UOp:
        factor = factor.broadcast(product.shape).permute(order).reshape((*total.shape, *sizes))
        for step in reversed(chain):
            rank = len(step.shape)
            factor = factor.permute([*step.arg.order, *range(rank, rank + len(sizes))]) if step.op is o.PERMUTE \
                else factor.reshape((*step.shape, *sizes))
        return factor
    moved = move(*map(lift, product.src))
    if moved is None:
        return None
    rank = len(root.shape)
    return (moved[0] * moved[1]).sum(range(rank, rank + len(sizes))).reshape(root.shape)


def _unwindow_sum(root: UOp) -> UOp | None:
    axis, stride, dilation, length = root.arg
    rank, count = len(root.shape), root.src[0].shape[axis]

    def move(left: UOp, right: UOp) -> tuple[UOp, UOp] | None:
        for turned in (False, True):
            changing, still = (right, left) if turned else (left, right)
            if count == 0 or not _still(still, axis):
                continue
            taps_last = [a for a in range(len(changing.shape)) if a != rank - 1] + [rank - 1]
            back = [taps_last.index(a) for a in range(len(taps_last))]
            changing = changing.permute(taps_last).unwindow(axis, stride, dilation, length).permute(back)
            still = still.shrink([(0, 1 if a == axis else n) for a, n in enumerate(still.shape)]).expand(changing.shape)
            return (still, changing) if turned else (changing, still)
        return None
    return _outside_sum(root, move)


def _shrink_sum(root: UOp) -> UOp | None:
    def move(left: UOp, right: UOp) -> tuple[UOp, UOp] | None:
        if not (_unwinds(left) or _unwinds(right)):
            return None
        bounds = [*root.arg.bounds, *((0, n) for n in left.shape[len(root.shape):])]
        return left.shrink(bounds), right.shrink(bounds)
    return _outside_sum(root, move)


def _sum_sum(root: UOp) -> UOp | None:
    def move(left: UOp, right: UOp) -> tuple[UOp, UOp] | None:
        return (left, right) if _unwinds(left) or _unwinds(right) else None
    inner = _outside_sum(UOp(o.CONTIGUOUS, root.dtype, root.src), move)        # the source, as one plain sum
    if inner is None:
        return None
    total = inner.src[0] if inner.op is o.RESHAPE else inner
    return total.src[0].sum({*total.arg.axes, *root.arg.axes}).reshape(root.shape)


CONTRACTIONS = RuleSet([
    *MOVES,
    Rule("unwindow-sum", node(o.UNWINDOW, x), _unwindow_sum, inexact=_INSIDE,
         why="moving elements commutes with summing others, and moves one factor of a product"),
    Rule("shrink-unwindow-sum", node(o.SHRINK, node(o.RESHAPE, node(o.SUM, x))), _shrink_sum, inexact=_INSIDE,
         why="do not compute what is cut off"),
    Rule("sum-unwindow-sum", node(o.SUM, node(o.RESHAPE, node(o.SUM, x))), _sum_sum, inexact=_INSIDE,
         why="one sum over all axes"),
])
