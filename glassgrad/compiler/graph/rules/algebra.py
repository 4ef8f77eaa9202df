"""The rules of algebra. In: nothing. Out: `ALGEBRA`, rules as data for `rewrite`, each giving a cheaper expression.

A rule preserves every bit of the result, including NaN, infinities and -0.0, or is tagged `Inexact` with the domain in
which it changes only the last places. One property test fills every rule's holes with random values and compares both
sides in the interpreter. Each rule has a reason and a name, by which DISABLE_RULES turns it off. First come rules about
numbers, which hold element by element; then rules about shapes: views compose, constants need no views, and values are
computed before they are broadcast.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.axis_dependence import runs
from glassgrad.compiler.graph.dtype import DType, convert
from glassgrad.compiler.graph.ops import ELEMENTWISE, MOVEMENT, REDUCE, Ops
from glassgrad.compiler.graph.rules.rewrite import Inexact, Rule, RuleSet, each, holes, node, some
from glassgrad.compiler.graph.symbolic import lengths_in
from glassgrad.compiler.graph.uop import UOp, const, identity

x, y, z = holes("x y z")                              # any value
i, = holes("i", kinds="iu")                           # integers
n, = holes("n", kinds="iub")                          # integers and bools
f, = holes("f", kinds="f")                            # floats
s, = holes("s", kinds="if")                           # signed types
p, = holes("p", kinds="b")                            # bools
c, d = holes("c d", constant=True)                    # constants: the rules' functions see their numbers


def negative(number: float) -> bool:
    """Whether a number has its sign bit set, as -0.0 has."""
    return math.copysign(1, number) < 0


def _is_power_of_two(number: float) -> bool:
    return number != 0 and math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5


def is_wide(f: UOp) -> bool:
    """Whether the type has exponent range to spare. Rules that change intermediate results skip float16 and fp8."""
    return f.dtype.exponent >= 8


ANYWHERE = Inexact("everywhere but at the limits of the type", lambda a: (abs(a) < 2.0**8) & (abs(a) > 2.0**-8))

# -- constants -----------------------------------------------------------------------------------------------
_FOLDED = [op for op in Ops if op in ELEMENTWISE and op.constant is not None]
ROUNDED = tuple(op for op in _FOLDED if op.approximate)     # each device has its own approximation of these
EXACT = (*(op for op in _FOLDED if not op.approximate), o.CAST)


def fold(node: UOp) -> UOp | None:
    """The constant that an elementwise node of constants equals; None where it has no single exact result.

    Computed on Python floats by the op's declaration: a float64 holds sums, products, quotients and square roots of
    float32 values so precisely that rounding it to float32 gives the same result as float32 arithmetic.

    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> fold(const(0.1) + 0.2).arg, fold(const(7, dtypes.int8) * 100).arg, fold(const(1.0) / 0.0).arg
    (0.30000001192092896, -68, inf)
    """
    op, values = node.op, [s.arg for s in node.src]
    if op is o.CAST:
        return const(values[0], node.dtype)
    dtype = node.src[-1].dtype
    if op.constant is None or dtype.kind not in op.takes:
        return None
    result = op.constant(dtype, *values)
    return None if result is None else const(result, node.dtype)


CONSTANTS = [
    Rule("fold", each(EXACT, c), lambda root: fold(root), why="an operation on constants is a constant"),
    Rule("fold-rounded", each(ROUNDED, c), lambda root: fold(root),
         why="the exact result, rounded once, is better than any polynomial",
         inexact=Inexact("everywhere: exp2, log2 and sin have no exact result", lambda a: a == a, ulps=2)),
    Rule("constant-right", node((o.ADD, o.MUL, o.AND, o.OR, o.XOR, o.CMPEQ, o.CMPNE), c, x),
         lambda root: UOp(root.op, root.dtype, (root.src[1], root.src[0])),
         when=lambda root, x: root.src[0].op is o.CONST and x.op is not o.CONST,
         why="constants on the right: equal expressions become one node"),
]

# -- arithmetic ----------------------------------------------------------------------------------------------
ARITHMETIC = [
    Rule("add-zero-integer", n + 0, n, why="0 is the identity of addition"),
    Rule("add-zero", f + c, f, when=lambda c: c == 0 and not negative(c), why="adding 0.0 changes only -0.0",
         inexact=Inexact("everywhere but at -0.0, whose sign is kept", lambda a: a != 0, ulps=0)),
    Rule("subtract-zero", x - c, x, when=lambda x, c: c == 0 and not (x.dtype.kind == "f" and negative(c)),
         why="x - 0.0 is x, -0.0 included"),
    Rule("subtract-constant", i - c, lambda i, c: i + const(-c, i.dtype), why="then add-add merges constants"),
    Rule("add-negative", x + -y, x - y, why="subtraction is addition of the negative, to the bit"),
    Rule("negative-negative", node(o.NEG, -x), x, why="the sign is flipped twice"),
    Rule("multiply-by-one", x * 1, x, why="1 is the identity of multiplication"),
    Rule("multiply-by-minus-one", x * -1, -x, why="only the sign changes"),
    Rule("multiply-negative", (-x) * c, lambda x, c: x * const(-c, x.dtype), why="the sign moves to the constant"),
    Rule("add-add", (i + c) + d, lambda i, c, d: i + const(c + d, i.dtype), why="integer sums wrap, in any order"),
    Rule("multiply-multiply-float", (f * c) * d, lambda f, c, d: f * const(c * d, f.dtype),
         when=lambda f, c, d: is_wide(f) and all(2.0**-8 <= abs(v) <= 2.0**8 for v in (c, d)),
         why="one rounding instead of two; makes log(exp(x)) x", inexact=ANYWHERE),
    Rule("divide-by-one", f / 1, f, why="1 is the identity of division"),
    Rule("one-divided", 1 / f, f.recip(), why="the same operation under its own name"),
    Rule("divide-by-power-of-two", f / c, lambda f, c: f * const(1 / c, f.dtype),
         when=lambda f, c: _is_power_of_two(c) and _is_normal(1 / c, f.dtype) and _is_normal(c, f.dtype),
         why="the reciprocal is exact, and multiplying is cheaper"),
    Rule("abs-abs", x.abs().abs(), x.abs(), why="an absolute value has no sign"),
    Rule("abs-negative", (-s).abs(), s.abs(), why="the sign does not matter"),
]


def _is_normal(number: float, dtype: DType) -> bool:
    return 2.0 ** (1 - dtype.bias) <= abs(number) and convert(number, dtype) == number


# -- integer division, shifts --------------------------------------------------------------------------------
DIVISION = [
    Rule("divide-to-shift", i // c, lambda i, c: i >> const(c.bit_length() - 1, i.dtype),
         when=lambda c: c > 1 and c & (c - 1) == 0, why="an arithmetic shift rounds down"),
    Rule("modulo-to-and", i % c, lambda i, c: i & const(c - 1, i.dtype),
         when=lambda c: c > 1 and c & (c - 1) == 0, why="the low bits are the remainder, also for negative numbers"),
    Rule("shift-by-zero", node((o.SHL, o.SHR), i, 0), i, why="a shift by 0 changes nothing"),
]

# -- bits and truth ------------------------------------------------------------------------------------------
LOGIC = [
    Rule("and-zero", n & 0, 0, why="0 has no bits in common with n"),
    Rule("and-ones", n & c, n, when=lambda n, c: c == convert(-1, n.dtype), why="c has all bits set"),
    Rule("or-zero", n | 0, n, why="0 adds no bit"),
    Rule("not-unequal", ~x.ne(y), x.eq(y), why="unequal is the opposite of equal, for NaN too"),
]

# -- comparing and choosing ----------------------------------------------------------------------------------
CHOICE = [
    Rule("where-true", node(o.WHERE, True, x, y), x, why="the condition is constant"),
    Rule("where-false", node(o.WHERE, False, x, y), y, why="the condition is constant"),
    Rule("where-not", (~p).where(x, y), p.where(y, x), why="exchange the sides instead of negating"),
    Rule("where-where-yes", p.where(p.where(x, y), z), p.where(x, z), why="the outer condition decides the inner one"),
    Rule("where-where-no", p.where(x, p.where(y, z)), p.where(x, z), why="the outer condition decides the inner one"),
]


# -- conversion ----------------------------------------------------------------------------------------------
def holds_all(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is also a value of `wide`, so that the conversion loses nothing.

    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> holds_all(dtypes.float32, dtypes.int16), holds_all(dtypes.float32, dtypes.int32)
    (True, False)
    """
    if wide is narrow or narrow.kind == "b":
        return True
    if wide.kind == "b" or (narrow.kind == "f" and wide.kind != "f"):
        return False
    if narrow.kind == "f":
        return wide.bits > narrow.bits and wide.mantissa >= narrow.mantissa and wide.exponent >= narrow.exponent
    if wide.kind == "f":
        return narrow.bits - (narrow.kind == "i") <= wide.mantissa + 1
    return wide.min <= narrow.min and narrow.max <= wide.max


def _conversions_compose(start: DType, middle: DType, end: DType) -> bool:
    if middle.kind == "f" and start.kind != "f" and end.kind in "iu":     # a float too large for `end` does not wrap
        return holds_all(middle, start) and holds_all(end, start)
    return holds_all(middle, start) or (start.kind in "iub" and middle.kind in "iu" and end.kind in "iu"
                                        and middle.bits >= end.bits)


CONVERSION = [
    Rule("cast-cast", node(o.CAST, node(o.CAST, x, name="middle")), lambda root, x: x.cast(root.dtype),
         when=lambda root, middle, x: _conversions_compose(x.dtype, middle.dtype, root.dtype),
         why="the middle type loses nothing that the last one keeps"),
]

# -- functions and their inverses ----------------------------------------------------------------------------
INVERSES = [
    Rule("log-exp", f.exp2().log2(), f, when=is_wide, why="inverse functions",
         inexact=Inexact("|x| below the largest exponent of the type", lambda a: abs(a) < 7, ulps=8, floor=1.0)),
    Rule("exp-log", f.log2().exp2(), f, when=is_wide, why="inverse functions",
         inexact=Inexact("x > 0; of negative numbers there is no logarithm", lambda a: (a > 2.0**-6) & (a < 2.0**6),
                         ulps=24)),
]


# -- movement ------------------------------------------------------------------------------------------------
def _uniform(source: UOp) -> UOp | None:
    """The constant that a node broadcasts, or None for other nodes."""
    source = source.below((o.EXPAND, o.RESHAPE))
    return source if source.op is o.CONST else None


def _permute_permute(root: UOp, inner: UOp, x: UOp) -> UOp:
    return x.permute([inner.arg.order[a] for a in root.arg.order])


def _pad_pad(root: UOp, inner: UOp, x: UOp) -> UOp:
    return x.pad([(a + b, c + d) for (a, c), (b, d) in zip(root.arg.padding, inner.arg.padding)])


def _shrink_pad(root: UOp, inner: UOp, x: UOp) -> UOp | None:
    """shrink(pad(x))  ->  pad(shrink(x)), with the part of the padding that is left."""
    if any(True for _ in lengths_in((x.shape, inner.arg, root.arg))):
        return None                                   # a size or padding known only at run time
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


def _reshape_expand(root: UOp, x: UOp) -> UOp | None:
    """Move a reshape below an expand. Each run of axes that the reshape joins or splits must be repeated as a whole, or
    not at all."""
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
    """Use the scalar constant in place of its broadcast: scalars combine with any shape. If all operands are, one keeps
    its shape."""
    return UOp(root.op, root.dtype, tuple(_uniform(s) or s for s in root.src), root.arg)


def _expand_last(root: UOp) -> UOp | None:
    """op(expand(x), expand(y), 2)  ->  expand(op(x, y, 2)), where all repeat the same axes."""
    inner = {s.src[0].shape for s in root.src if s.op is o.EXPAND}
    if len(inner) != 1 or any(s.op is not o.EXPAND and s.shape != () for s in root.src):
        return None
    return UOp(root.op, root.dtype, tuple(s.src[0] if s.op is o.EXPAND else s for s in root.src), root.arg).expand(
        root.shape)


def _shrink_unwindow(root: UOp, inner: UOp, x: UOp) -> UOp:
    ends = {inner.arg.axis, len(x.shape) - 1}
    x = x.shrink([(0, n) if a in ends else bound for a, (n, bound) in enumerate(zip(x.shape, root.arg.bounds))])
    return x.unwindow(*inner.arg)


def _unwindow_one(root: UOp, x: UOp) -> UOp:
    axis, more = root.arg.axis, root.shape[root.arg.axis] - x.shape[root.arg.axis]
    x = x.shrink([(0, min(n, m)) for n, m in zip(x.shape, root.shape)])
    return x.pad([(0, max(more, 0) if a == axis else 0) for a in range(len(x.shape))])


def _rounds_transposed(root: UOp, inner: UOp, moved: UOp) -> bool:
    """Whether a value is converted to a smaller type after its last two axes were swapped."""
    last = len(moved.shape) - 1
    return root.dtype.itemsize < moved.dtype.itemsize and inner.arg.order == (*range(last - 1), last, last - 1)


_keep_constants = tuple(MOVEMENT - {o.EXPAND, o.PAD, o.UNWINDOW})      # applied to a constant, these give it again
_compute = tuple(ELEMENTWISE - {o.BITCAST})
_broadcast = node(o.EXPAND, node(o.RESHAPE, c))               # a constant broadcast to a shape

MOVES = [
    Rule("move-constant", node(_keep_constants, _broadcast), lambda root, c: const(c, root.dtype),
         why="moving equal elements changes nothing"),
    Rule("reshape-reshape", node(o.RESHAPE, node(o.RESHAPE, x)), lambda root, x: x.reshape(root.shape),
         why="only the last shape counts"),
    Rule("permute-permute", node(o.PERMUTE, node(o.PERMUTE, x, name="inner")), _permute_permute, why="orders compose"),
    Rule("expand-expand", node(o.EXPAND, node(o.EXPAND, x)), lambda root, x: x.expand(root.shape),
         why="only the last shape counts"),
    Rule("pad-pad", node(o.PAD, node(o.PAD, x, name="inner")), _pad_pad, why="paddings add up"),
    Rule("shrink-pad", node(o.SHRINK, node(o.PAD, x, name="inner")), _shrink_pad, why="padding cut off again"),
    Rule("shrink-expand", node(o.SHRINK, node(o.EXPAND, x, name="inner")), _shrink_expand, why="repeat less often"),
    Rule("reshape-expand", node(o.RESHAPE, node(o.EXPAND, x)), _reshape_expand,
         why="move the small value, and repeat afterwards"),
    Rule("shrink-unwindow", node(o.SHRINK, node(o.UNWINDOW, x, name="inner")), _shrink_unwindow,
         when=lambda root, inner: all(root.arg.bounds[a] == (0, inner.shape[a]) for a in (inner.arg.axis, -1)),
         why="slice the small value along other axes, and spread afterwards"),
    Rule("flip-one", node(o.FLIP, x), lambda root, x: x.flip(a for a in root.arg.axes if x.shape[a] != 1),
         when=lambda root, x: any(x.shape[a] == 1 for a in root.arg.axes), why="reversing one element changes nothing"),
    Rule("unwindow-one", node(o.UNWINDOW, x), _unwindow_one, why="one tap of stride 1 reads the element itself",
         when=lambda root: root.shape[-1] == 1 and root.arg.stride == 1),
    Rule("spread-zeros", node((o.PAD, o.UNWINDOW), _broadcast), 0, when=lambda c: c == 0 and not negative(c),
         why="zeros spread among zeros"),
    Rule("constant-operand", some(_compute, _broadcast), _constant_operand, why="scalars combine with any shape"),
    Rule("constant-operand-reshaped", some(_compute, node(o.RESHAPE, c)), _constant_operand,
         why="scalars combine with any shape"),
    Rule("expand-last", some(_compute, node(o.EXPAND, x)), _expand_last, why="compute before repeating"),
    Rule("permute-last", node(o.CAST, node(o.PERMUTE, x, name="inner")),
         lambda root, inner, x: x.cast(root.dtype).permute(inner.arg.order),
         when=lambda x: x.op in (o.BUFFER, o.PARAM),
         why="convert values in memory before moving them: if the result is stored, it keeps their layout"),
    Rule("transpose-last", node(o.CAST, node(o.PERMUTE, node(o.RESHAPE, node(o.SUM, x), name="moved"), name="inner")),
         lambda root, inner, moved: moved.cast(root.dtype).permute(inner.arg.order), when=_rounds_transposed,
         why="round a sum before transposing it: it is stored in the order of summation, and read transposed"),
]


# -- reductions ----------------------------------------------------------------------------------------------
def _sum_pad(root: UOp, x: UOp) -> UOp | None:
    padding = root.src[0].arg.padding
    kept = [(0, 0) if a in root.arg.axes else pad for a, pad in enumerate(padding)]
    return x.pad(kept).reduce(root.op, root.arg.axes) if kept != list(padding) else None


def _sum_side_by_side(root: UOp, inner: UOp) -> UOp:
    x, axis, length, last = inner.src[0], inner.arg.axis, inner.arg.length, len(inner.shape) - 1
    x = x.permute((*range(axis + 1), last, *range(axis + 1, last)))
    size = x.shape[axis] * x.shape[axis + 1]
    x = x.reshape((*x.shape[:axis], size, *x.shape[axis + 2:]))
    x = x.shrink([(0, min(size, length) if a == axis else n) for a, n in enumerate(x.shape)])
    return x.pad([(0, max(length - size, 0) if a == axis else 0) for a in range(last)]).reshape(root.shape)


_REORDERED = Inexact("where no partial sum overflows", lambda a: (abs(a) < 2.0**3) & (abs(a) > 2.0**-3), ulps=16)

REDUCTIONS = [
    Rule("reduce-nothing", node(REDUCE, x), lambda root: identity(root.op.combine, root.dtype),
         when=lambda root, x: any(x.shape[a] == 0 for a in root.arg.axes),
         why="reducing no elements gives the identity"),
    Rule("sum-pad", node(o.SUM, node(o.PAD, x)), _sum_pad, why="zeros add nothing", inexact=_REORDERED),
    Rule("sum-side-by-side", node(o.SUM, node(o.UNWINDOW, node(o.EXPAND, x), name="inner")), _sum_side_by_side,
         when=lambda root, inner: root.arg.axes == (len(inner.shape) - 1,) and not root.symbolic and
         inner.arg.stride == inner.shape[-1] and inner.arg.dilation == 1,
         why="windows do not overlap: each element is in at most one"),
]

ALGEBRA = RuleSet([*CONSTANTS, *ARITHMETIC, *DIVISION, *LOGIC, *CHOICE, *CONVERSION, *INVERSES, *MOVES, *REDUCTIONS])
