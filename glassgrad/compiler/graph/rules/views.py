"""The algebra of shapes: rules of views and reductions. In: nothing. Out: lists of `Rule`s, by subject.

Views compose, constants need no views, and values are computed before they are broadcast. The rules of algebra.py
that look at values are in elementwise.py.
"""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.axis_dependence import runs
from glassgrad.compiler.graph.ops import ELEMENTWISE, MOVEMENT, REDUCE
from glassgrad.compiler.graph.rules.elementwise import is_wide, negative
from glassgrad.compiler.graph.rules.rewrite import Inexact, Rule, holes, node, some
from glassgrad.compiler.graph.symbolic import lengths_in
from glassgrad.compiler.graph.uop import UOp, const, identity

x, = holes("x")
c, = holes("c", constant=True)


# -- movement ------------------------------------------------------------------------------------------------
def _uniform(source: UOp) -> UOp | None:
    """The constant that a node broadcasts, or None."""
    while source.op in (o.EXPAND, o.RESHAPE):
        source = source.src[0]
    return source if source.op is o.CONST else None


def _permute_permute(root: UOp, inner: UOp, x: UOp) -> UOp:
    return x.permute([inner.arg.order[a] for a in root.arg.order])


def _shrink_shrink(root: UOp, inner: UOp, x: UOp) -> UOp:
    return x.shrink([(first + start, first + stop)
                     for (start, stop), (first, _) in zip(root.arg.bounds, inner.arg.bounds)])


def _pad_pad(root: UOp, inner: UOp, x: UOp) -> UOp:
    return x.pad([(a + b, c + d) for (a, c), (b, d) in zip(root.arg.padding, inner.arg.padding)])


def _shrink_pad(root: UOp, inner: UOp, x: UOp) -> UOp | None:
    """Shrink first, then pad with what remains of the padding."""
    if any(True for _ in lengths_in((x.shape, inner.arg, root.arg))):
        return None                                   # known only at run time
    cuts, padding = [], []
    for size, (before, _), (start, stop) in zip(x.shape, inner.arg.padding, root.arg.bounds):
        first, last = min(max(start - before, 0), size), min(max(stop - before, 0), size)
        cuts.append((first, last))
        left = min(max(before - start, 0), stop - start)
        padding.append((left, stop - start - left - (last - first)))
    return x.shrink(cuts).pad(padding)


def _shrink_expand(root: UOp, inner: UOp, x: UOp) -> UOp:
    cuts = [(0, 1) if size == 1 else cut for size, cut in zip(x.shape, root.arg.bounds)]
    return x.shrink(cuts).expand(root.shape)


def _permute_expand(root: UOp, inner: UOp, x: UOp) -> UOp:
    return x.permute(root.arg.order).expand(root.shape)


def _flip_expand(root: UOp, inner: UOp, x: UOp) -> UOp:
    return x.flip(a for a in root.arg.axes if x.shape[a] != 1).expand(root.shape)


def _reshape_expand(root: UOp, x: UOp) -> UOp | None:
    """Each run of axes that a reshape joins or splits must repeat as a whole, or not at all."""
    inner = root.src[0]
    shape: list[int] = []
    if 0 in root.shape:
        return None
    for i, left, j, right in runs(root.shape, inner.shape):
        if x.shape[j:right] == inner.shape[j:right]:
            shape += root.shape[i:left]
        elif all(size == 1 for size in x.shape[j:right]):
            shape += [1] * (left - i)
        else:
            return None
    return x.reshape(shape).expand(root.shape)


def _constant_operand(root: UOp) -> UOp:
    """Constants mix with any shape: no need to broadcast them, unless all operands are constants."""
    return UOp(root.op, root.dtype, tuple(_uniform(s) or s for s in root.src), root.arg)


def _expand_last(root: UOp) -> UOp | None:
    """op(expand(x), expand(y), 2)  ->  expand(op(x, y, 2)), where all repeat the same axes."""
    inner = {s.src[0].shape for s in root.src if s.op is o.EXPAND}
    if len(inner) != 1 or any(s.op is not o.EXPAND and s.shape != () for s in root.src):
        return None
    return UOp(root.op, root.dtype, tuple(s.src[0] if s.op is o.EXPAND else s for s in root.src), root.arg).expand(
        root.shape)


def _unwindow_one(root: UOp, x: UOp) -> UOp:
    axis, more = root.arg.axis, root.shape[root.arg.axis] - x.shape[root.arg.axis]
    x = x.shrink([(0, min(n, m)) for n, m in zip(x.shape, root.shape)])
    return x.pad([(0, max(more, 0) if a == axis else 0) for a in range(len(x.shape))])


def _rounds_transposed(root: UOp, inner: UOp, moved: UOp) -> bool:
    """Whether a value is rounded to fewer bytes after its last two axes were swapped."""
    last = len(moved.shape) - 1
    return root.dtype.itemsize < moved.dtype.itemsize and inner.arg.order == (*range(last - 1), last, last - 1)


_keep_constants = tuple(MOVEMENT - {o.EXPAND, o.PAD, o.UNWINDOW})      # of a constant these give the same constant
_compute = tuple(ELEMENTWISE - {o.BITCAST})
_broadcast = node(o.EXPAND, node(o.RESHAPE, c))               # a constant broadcast to a shape

MOVES = [
    Rule("move-constant", node(_keep_constants, _broadcast), lambda root, c: const(c, root.dtype),
         why="equal elements are equal in any place"),
    Rule("reshape-reshape", node(o.RESHAPE, node(o.RESHAPE, x)), lambda root, x: x.reshape(root.shape),
         why="only the last shape counts"),
    Rule("reshape-same", node(o.RESHAPE, x), lambda root, x: x if x.shape == root.shape else None, why="nothing moves"),
    Rule("permute-permute", node(o.PERMUTE, node(o.PERMUTE, x, name="inner")), _permute_permute, why="orders compose"),
    Rule("permute-same", node(o.PERMUTE, x), lambda x: x, why="nothing moves",
         when=lambda root: root.arg.order == tuple(range(len(root.arg.order)))),
    Rule("expand-expand", node(o.EXPAND, node(o.EXPAND, x)), lambda root, x: x.expand(root.shape),
         why="only the last shape counts"),
    Rule("expand-same", node(o.EXPAND, x), lambda root, x: x if x.shape == root.shape else None, why="nothing moves"),
    Rule("shrink-shrink", node(o.SHRINK, node(o.SHRINK, x, name="inner")), _shrink_shrink, why="slices compose"),
    Rule("shrink-same", node(o.SHRINK, x), lambda root, x: x if x.shape == root.shape else None, why="nothing is cut"),
    Rule("pad-pad", node(o.PAD, node(o.PAD, x, name="inner")), _pad_pad, why="zeros beside zeros"),
    Rule("pad-nothing", node(o.PAD, x), lambda root, x: x if x.shape == root.shape else None, why="nothing is added"),
    Rule("shrink-pad", node(o.SHRINK, node(o.PAD, x, name="inner")), _shrink_pad, why="padding that is cut off again"),
    Rule("shrink-expand", node(o.SHRINK, node(o.EXPAND, x, name="inner")), _shrink_expand, why="repeat less often"),
    Rule("permute-expand", node(o.PERMUTE, node(o.EXPAND, x, name="inner")), _permute_expand,
         why="move the small value, repeat last"),
    Rule("reshape-expand", node(o.RESHAPE, node(o.EXPAND, x)), _reshape_expand,
         why="move the small value, repeat last"),
    Rule("flip-expand", node(o.FLIP, node(o.EXPAND, x, name="inner")), _flip_expand,
         why="equal elements have no order"),
    Rule("flip-flip", node(o.FLIP, node(o.FLIP, x, name="inner")), why="reversed twice",
         replacement=lambda root, inner, x: x.flip(set(root.arg.axes) ^ set(inner.arg.axes))),
    Rule("flip-one", node(o.FLIP, x), lambda root, x: x.flip(a for a in root.arg.axes if x.shape[a] != 1),
         when=lambda root, x: any(x.shape[a] == 1 for a in root.arg.axes), why="one element has no order"),
    Rule("window-one", node(o.WINDOW, x), lambda root, x: x.reshape(root.shape),
         when=lambda root: root.arg.size == 1 and root.arg.stride == 1, why="a window of one element is the element"),
    Rule("unwindow-one", node(o.UNWINDOW, x), _unwindow_one, why="one tap of stride 1 reads the element itself",
         when=lambda root: root.shape[-1] == 1 and root.arg.stride == 1),
    Rule("spread-zeros", node((o.PAD, o.UNWINDOW), _broadcast), 0, when=lambda c: c == 0 and not negative(c),
         why="zeros among zeros"),
    Rule("constant-operand", some(_compute, _broadcast), _constant_operand, why="constants mix with any shape"),
    Rule("constant-operand-reshaped", some(_compute, node(o.RESHAPE, c)), _constant_operand,
         why="constants mix with any shape"),
    Rule("expand-last", some(_compute, node(o.EXPAND, x)), _expand_last, why="compute before repeating"),
    Rule("permute-last", node(o.CAST, node(o.PERMUTE, x, name="inner")),
         lambda root, inner, x: x.cast(root.dtype).permute(inner.arg.order),
         when=lambda x: x.op in (o.BUFFER, o.PARAM),
         why="convert what is in memory before moving it: if it is stored, it lies as it did"),
    Rule("transpose-last", node(o.CAST, node(o.PERMUTE, node(o.RESHAPE, node(o.SUM, x), name="moved"), name="inner")),
         lambda root, inner, moved: moved.cast(root.dtype).permute(inner.arg.order), when=_rounds_transposed,
         why="round a sum before its last axes are exchanged: it is stored as it is summed, and read transposed"),
    Rule("contiguous-twice", node(o.CONTIGUOUS, node(o.CONTIGUOUS, x, name="inner")), lambda inner: inner,
         why="it is stored already"),
]


# -- reductions ----------------------------------------------------------------------------------------------
def _reduce_reduce(root: UOp, inner: UOp, x: UOp) -> UOp:
    return x.reduce(root.op, {*root.arg.axes, *inner.arg.axes})


def _sum_pad(root: UOp, x: UOp) -> UOp | None:
    padding = root.src[0].arg.padding
    kept = [(0, 0) if a in root.arg.axes else pad for a, pad in enumerate(padding)]
    return x.pad(kept).reduce(root.op, root.arg.axes) if kept != list(padding) else None


_REORDERED = Inexact("where no partial sum overflows", lambda a: (abs(a) < 2.0**3) & (abs(a) > 2.0**-3), ulps=16)

REDUCTIONS = [
    Rule("reduce-nothing", node(REDUCE, x), lambda root: identity(root.op.combine, root.dtype),
         when=lambda root, x: any(x.shape[a] == 0 for a in root.arg.axes),
         why="the fold of nothing is where it starts"),
    Rule("extreme-extreme", node((o.AMAX, o.AMIN), node((o.AMAX, o.AMIN), x, name="inner")), _reduce_reduce,
         when=lambda root, inner: root.op is inner.op, why="the greatest of the greatest"),
    Rule("sum-sum", node(o.SUM, node(o.SUM, x, name="inner")), _reduce_reduce, inexact=_REORDERED,
         when=lambda x: not (x.op is o.MUL and o.EXPAND in (x.src[0].op, x.src[1].op)),
         why="one fold over both axes, in any order; but a matrix product is best summed after"),
    Rule("product-product", node(o.PROD, node(o.PROD, x, name="inner")), _reduce_reduce, inexact=_REORDERED,
         when=lambda x: x.dtype.kind != "f" or is_wide(x), why="one fold over both axes"),
    Rule("sum-pad", node(o.SUM, node(o.PAD, x)), _sum_pad, why="zeros do not count", inexact=_REORDERED),
]

SHAPE_RULES = [*MOVES, *REDUCTIONS]
