"""Simplify reductions. In: sinks. Out: sinks that reduce no axis along which the source is constant, with nested sums
of products merged into one.

A value repeated along an axis (a bias, a gradient of ones) need not be reduced again for each repetition:
    sum over k of x[k, *]  ==  the same for every *, so it is computed once and repeated        (a kept axis)
    sum over n equal values == n times the value; their maximum is the value                    (a reduced axis)
`axis_dependence.varies` tells along which axes a value changes, through views and elementwise ops. The rules of algebra
run afterwards, and merge the views that this leaves.

The chain rule gives the gradient of a convolution by its input as a sum over channels, then for each spatial axis a
movement (UNWINDOW) and a sum over the window. Computed in this order, the first sum has as many results as the image
has elements times the window's size. But
    movement(sum over R of a * b) == sum over R of movement(a) * movement(b)     a movement does not touch the axes of R
    sum over A of sum over R == sum over A and R
so it is one sum of products over channels and window, which the contraction recipe makes fast. A factor that does not
change along the moved axis needs no mask: the zeros of the other factor are enough.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.axis_dependence import AxisSet, moved_behind, nontrivial, runs, varies, varies_along
from glassgrad.compiler.graph.node import rebuilt, toposort
from glassgrad.compiler.graph.op_arguments import Unwindow
from glassgrad.compiler.graph.symbolic import lower_bound
from glassgrad.compiler.graph.uop import UOp, const


def reduce_fewer_axes(sinks: list[UOp]) -> list[UOp]:
    """Rewrite reductions so that none goes along an axis on which its source is constant."""
    changes = varies(toposort(sinks))

    def fewer(node: UOp, over: UOp) -> UOp | None:
        if node.op not in o.REDUCE or 0 in node.src[0].shape:
            return None
        shape = node.src[0].shape
        fixed = frozenset(a for a in nontrivial(shape) - changes[node.src[0]] if lower_bound(shape[a]) > 0)
        return _over_fewer_axes(over, fixed) if fixed else None
    return rebuilt(sinks, fewer)


def _over_fewer_axes(node: UOp, fixed: frozenset[int]) -> UOp | None:
    """The reduction without the axes along which its source is constant; None to leave it unchanged."""
    source, axes = node.src[0], frozenset(node.arg.axes)
    gone = fixed & axes
    if gone and node.op is o.PROD:
        fixed, gone = fixed - gone, frozenset()      # a product of equal values is a power: left as it is
        if not fixed:
            return None
    one = source.shrink([(0, 1) if a in fixed else (0, n) for a, n in enumerate(source.shape)])
    rest = tuple(sorted(axes - gone))
    value = UOp(node.op, node.dtype, (one,), node.arg._replace(axes=rest), node.place) if rest else one
    if gone and node.op is o.SUM:
        value = value * const(math.prod(source.shape[a] for a in gone), value.dtype)
    return value.expand(node.shape)


# -- sums of sums of products: the gradient of a convolution by its input -------------------------------------
_THROUGH = (o.RESHAPE, o.PERMUTE, o.PAD, o.SHRINK, o.FLIP, o.UNWINDOW)


def join_sums(sinks: list[UOp]) -> list[UOp]:
    """Merge each sum of a moved sum of products into one sum of products."""
    readers: dict[UOp, int] = {}
    for n in toposort(sinks):
        for s in n.src:
            readers[s] = readers.get(s, 0) + 1
    known: dict[UOp, AxisSet] = {}       # node -> axes along which its values change

    def joined(n: UOp, over: UOp) -> UOp | None:
        if n.op is not o.SUM:
            return None
        return (_merged_sum(over, known) if _has_one_reader(n, readers) else None) or _sum_of_taps(over)
    return rebuilt(sinks, joined)


def _has_one_reader(node: UOp, readers: dict[UOp, int]) -> bool:
    """Whether the inner sum has no other reader; otherwise merging would compute it twice."""
    inner = node.src[0]
    while inner.op in _THROUGH and readers.get(inner, 0) == 1:
        inner = inner.src[0]
    return readers.get(inner, 0) == 1


def _merged_sum(node: UOp, known: dict[UOp, AxisSet]) -> UOp | None:
    moves: list[UOp] = []
    inner = node.src[0]
    while inner.op in _THROUGH:
        moves.append(inner)
        inner = inner.src[0]
    product = inner.src[0] if inner.op is o.SUM else inner           # depthwise convolution: no inner sum
    if product.op is not o.MUL or not any(m.op is o.UNWINDOW for m in moves):
        return None
    left, right = product.src
    if left.shape != right.shape:
        return None
    axes = inner.arg.axes if inner is not product else ()
    others = tuple(a for a in range(len(inner.shape)) if a not in axes)
    sizes = tuple(left.shape[a] for a in axes)
    # permute the summed axes to the front, where movements of the other axes do not touch them
    factors = [f.permute((*axes, *others)).reshaped((*sizes, *inner.shape)) for f in (left, right)]
    for move in reversed(moves):
        factors = _moved_factors(move, factors, len(sizes), known)
    rank = len(sizes)
    summed = tuple(range(rank)) + tuple(a + rank for a in node.arg.axes)
    total = UOp(o.SUM, node.dtype, (factors[0] * factors[1],), node.arg._replace(axes=summed), node.place)
    return total.reshaped(node.shape)


def _sum_of_taps(node: UOp) -> UOp | None:
    """Rewrite the sum over the taps of a strided UNWINDOW. Only taps k = s t + r reach an element i = s q + r:
        sum over k of x[(i - k) / s, k] == sum over t of x[q - t, s t + r]
    which is an UNWINDOW of stride 1 over the taps t for each remainder r. The other taps would be masked, and s times
    the work."""
    spread = node.src[0]
    last = len(spread.shape) - 1
    if spread.op is not o.UNWINDOW or node.arg.axes != (last,) or spread.arg.stride == 1 or spread.arg.dilation != 1:
        return None
    x, (axis, stride, _, length) = spread.src[0], spread.arg
    taps, rows = -(-x.shape[last] // stride), -(-length // stride)
    x = x.pad([(0, 0)] * last + [(0, taps * stride - x.shape[last])])
    x = x.reshaped((*x.shape[:last], taps, stride)).permute((*range(last), last + 1, last))
    total = x.unwindow(axis, 1, 1, rows).sum((last + 1,))
    total = total.reshaped(total.shape[:-1]).permute((*range(axis + 1), last, *range(axis + 1, last)))
    total = total.reshaped((*total.shape[:axis], rows * stride, *total.shape[axis + 2:]))
    return total.shrink([(0, n) for n in node.shape[:last]]).reshaped(node.shape)


def _moved_factors(move: UOp, factors: list[UOp], lead: int, known: dict[UOp, AxisSet]) -> list[UOp]:
    """Apply a movement to both factors of a product, leaving their first `lead` axes unchanged."""
    if move.op is not o.UNWINDOW:
        moved = [moved_behind(move, f, lead) for f in factors]
        return [f.reshaped(f.shape) for f in moved]              # merges consecutive reshapes
    arg = move.arg
    axis, last = lead + arg.axis, len(factors[0].shape) - 1
    out: list[UOp] = []
    masked = False
    # factors that change along the axis first
    for f in sorted(factors, key=lambda f: axis not in varies_along(f, known)):
        changes = varies_along(f, known)
        if axis not in changes and masked:
            moved_shape = tuple(arg.length if a == axis else n for a, n in enumerate(f.shape))
            out.append(f.shrink([(0, 1) if a == axis else (0, n) for a, n in enumerate(f.shape)]).expand(moved_shape))
        elif last not in changes:
            spread = _as_window if arg.stride == 1 else _padded_unwindow
            out.append(spread(f, axis, arg))
            masked = True
        else:
            out.append(moved_behind(move, f, lead))
            masked = True
    return out


def _as_window(node: UOp, axis: int, arg: Unwindow) -> UOp:
    """UNWINDOW of stride 1, of a value that is the same for every tap  ->  WINDOW of the padded value, taps
    reversed."""
    last = len(node.shape) - 1
    taps = node.shape[last]
    wide = padded(one_tap(node), axis, arg.dilation * (taps - 1), arg.length - node.shape[axis])
    return wide.window(axis, taps, 1, arg.dilation).flip([last])


def _padded_unwindow(node: UOp, axis: int, arg: Unwindow) -> UOp:
    """Pad the source of a strided UNWINDOW, of a value that is the same for every tap, so that no tap is out of bounds.
    The remaining test, divisibility by the stride, is handled by compiler/optimize/moves/split_by_remainder.py."""
    taps, stride = node.shape[-1], arg.stride
    before = -(-arg.dilation * (taps - 1) // stride)
    after = max(0, -(-(arg.length - 1) // stride) + 1 - node.shape[axis])
    wide = padded(one_tap(node), axis, before, after)
    wide = wide.reshaped((*wide.shape, 1)).expand((*wide.shape, taps))
    spread = wide.unwindow(axis, stride, arg.dilation, arg.length + before * stride)
    bounds = [(before * stride, n) if a == axis else (0, n) for a, n in enumerate(spread.shape)]
    return spread.shrink(bounds)


def one_tap(node: UOp) -> UOp:
    """Remove the last axis, of taps, from a value that is the same for every tap."""
    last = len(node.shape) - 1
    one = node.shrink([(0, 1) if a == last else (0, n) for a, n in enumerate(node.shape)])
    return one.reshaped(one.shape[:-1])


def padded(node: UOp, axis: int, before: int, after: int) -> UOp:
    """Pad a node along one axis, pushing the padding down through views to where the value is smallest."""
    op, arg = node.op, node.arg
    if op is o.PERMUTE:
        return padded(node.src[0], arg.order[axis], before, after).permute(arg.order)
    if op is o.EXPAND and node.src[0].shape[axis] == node.shape[axis]:
        inner = padded(node.src[0], axis, before, after)
        return inner.expand(node.shape[:axis] + (inner.shape[axis],) + node.shape[axis + 1:])
    if op in (o.WINDOW, o.UNWINDOW) and axis not in (arg.axis, len(node.shape) - 1):
        inner = padded(node.src[0], axis, before, after)
        return inner.window(*arg) if op is o.WINDOW else inner.unwindow(*arg)
    if op is o.FLIP and axis not in arg.axes:
        return padded(node.src[0], axis, before, after).flip(arg.axes)
    if op is o.SHRINK and node.src[0].shape[axis] == node.shape[axis]:
        inner = padded(node.src[0], axis, before, after)
        return inner.shrink([(0, inner.shape[a]) if a == axis else b for a, b in enumerate(arg.bounds)])
    if op is o.RESHAPE:
        for i, left, j, right in runs(node.shape, node.src[0].shape):
            if i <= axis < left and left - i == 1 and right - j == 1:
                inner = padded(node.src[0], j, before, after)
                return inner.reshaped(node.shape[:axis] + (inner.shape[j],) + node.shape[axis + 1:])
    if op is o.PAD:
        pairs = [(b + before, a + after) if n == axis else (b, a) for n, (b, a) in enumerate(arg.padding)]
        return node.src[0].pad(pairs)
    return node.pad([(before, after) if a == axis else (0, 0) for a in range(len(node.shape))])
