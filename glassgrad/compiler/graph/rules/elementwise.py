"""The algebra of numbers: rules that hold element by element. In: nothing. Out: lists of `Rule`s, by subject.

The rules of algebra.py that look at values; those that look at shapes are in views.py.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, convert
from glassgrad.compiler.graph.ops import ELEMENTWISE, Ops
from glassgrad.compiler.graph.rules.rewrite import Inexact, Rule, each, holes, node
from glassgrad.compiler.graph.uop import UOp, const, identity

x, y, z = holes("x y z")                              # any value
i, j = holes("i j", kinds="iu")                       # integers
n, m = holes("n m", kinds="iub")                      # integers and bools
f, g = holes("f g", kinds="f")                        # floats
s, = holes("s", kinds="if")                           # signed types
p, q = holes("p q", kinds="b")                        # bools
c, d = holes("c d", constant=True)                    # constants: the rules' functions see their numbers
c_int, d_int = holes("c_int d_int", kinds="iu", constant=True)
c_float, d_float = holes("c_float d_float", kinds="f", constant=True)


def negative(number: float) -> bool:
    """Whether a number has a minus sign, as -0.0 has."""
    return math.copysign(1, number) < 0


def _is_power_of_two(number: float) -> bool:
    return number != 0 and math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5


def is_wide(f: UOp) -> bool:
    """Whether the type has range to spare: rules that change intermediate results leave float16 and fp8 alone."""
    return f.dtype.exponent >= 8


ANYWHERE = Inexact("everywhere but at the limits of the type", lambda a: (abs(a) < 2.0**8) & (abs(a) > 2.0**-8))

# -- constants -----------------------------------------------------------------------------------------------
_FOLDED = [op for op in Ops if op in ELEMENTWISE and op.constant is not None]
ROUNDED = tuple(op for op in _FOLDED if op.approximate)     # every device approximates these in its own way
EXACT = (*(op for op in _FOLDED if not op.approximate), o.CAST)


def fold(node: UOp) -> UOp | None:
    """The constant that an elementwise node of constants equals, or None where it has no single exact result. Computed
    by the op's declaration on Python floats: float64 holds sums, products, quotients and square roots of float32 so
    exactly that rounding them once more gives float32's own result.

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
         why="one order for constants, so that equal nodes are one"),
]

# -- arithmetic ----------------------------------------------------------------------------------------------
ARITHMETIC = [
    Rule("add-zero-integer", n + 0, n, why="0 is the identity of addition"),
    Rule("add-minus-zero", f + c, f, when=lambda c: c == 0 and negative(c),
         why="-0.0 is the exact identity of float addition"),
    Rule("add-zero", f + c, f, when=lambda c: c == 0 and not negative(c), why="adding 0.0 changes only -0.0",
         inexact=Inexact("everywhere but at -0.0, whose sign is kept", lambda a: a != 0, ulps=0)),
    Rule("subtract-zero", x - c, x, when=lambda x, c: c == 0 and not (x.dtype.kind == "f" and negative(c)),
         why="x - 0.0 is x, -0.0 included"),
    Rule("subtract-constant", i - c, lambda i, c: i + const(-c, i.dtype), why="integers wrap: one form for shifts"),
    Rule("subtract-self", i - i, 0, why="integers have no NaN and no infinity"),
    Rule("add-negative", x + -y, x - y, why="subtraction is addition of the negative, to the bit"),
    Rule("subtract-negative", x - -y, x + y, why="subtraction is addition of the negative, to the bit"),
    Rule("negative-negative", node(o.NEG, -x), x, why="the sign is flipped twice"),
    Rule("multiply-by-one", x * 1, x, why="1 is the identity of multiplication"),
    Rule("multiply-by-zero", n * 0, 0, why="integers have no NaN and no infinity"),
    Rule("multiply-by-minus-one", x * -1, -x, why="only the sign changes"),
    Rule("multiply-negative", (-x) * c, lambda x, c: x * const(-c, x.dtype), why="the constant takes the sign"),
    Rule("add-add", (i + c) + d, lambda i, c, d: i + const(c + d, i.dtype), why="integer sums wrap, in any order"),
    Rule("multiply-multiply", (i * c) * d, lambda i, c, d: i * const(c * d, i.dtype),
         why="integer products wrap, in any order"),
    Rule("multiply-multiply-float", (f * c) * d, lambda f, c, d: f * const(c * d, f.dtype),
         when=lambda f, c, d: is_wide(f) and all(2.0**-8 <= abs(v) <= 2.0**8 for v in (c, d)),
         why="one rounding instead of two; log(exp(x)) is x by this", inexact=ANYWHERE),
    Rule("divide-by-one", f / 1, f, why="1 is the identity of division"),
    Rule("one-divided", 1 / f, f.recip(), why="the same operation under its own name"),
    Rule("divide-by-power-of-two", f / c, lambda f, c: f * const(1 / c, f.dtype),
         when=lambda f, c: _is_power_of_two(c) and _is_normal(1 / c, f.dtype) and _is_normal(c, f.dtype),
         why="the reciprocal is exact, and multiplying is cheaper"),
    Rule("abs-abs", x.abs().abs(), x.abs(), why="it has no sign left"),
    Rule("abs-negative", (-s).abs(), s.abs(), why="the sign does not matter"),
    Rule("trunc-trunc", f.trunc().trunc(), f.trunc(), why="it is whole already"),
    Rule("trunc-whole", node(o.CAST, n, name="whole").trunc(), lambda whole: whole, why="integers are whole"),
]


def _is_normal(number: float, dtype: DType) -> bool:
    return 2.0 ** (2 - (1 << (dtype.exponent - 1))) <= abs(number) and convert(number, dtype) == number


# -- integer division, shifts --------------------------------------------------------------------------------
DIVISION = [
    Rule("divide-integer-by-one", i // 1, i, why="1 is the identity of division"),
    Rule("modulo-one", i % 1, 0, why="nothing is left over"),
    Rule("div-div", (i // c) // d, lambda i, c, d: i // const(c * d, i.dtype),
         when=lambda i, c, d: c > 0 and d > 0 and c * d <= i.dtype.max,
         why="floor division composes when the second divisor is positive"),
    Rule("divide-to-shift", i // c, lambda i, c: i >> const(c.bit_length() - 1, i.dtype),
         when=lambda c: c > 1 and c & (c - 1) == 0, why="rounding down is what an arithmetic shift does"),
    Rule("modulo-to-and", i % c, lambda i, c: i & const(c - 1, i.dtype),
         when=lambda c: c > 1 and c & (c - 1) == 0, why="the low bits are what is left over, for negative numbers too"),
    Rule("shift-by-zero", node((o.SHL, o.SHR), i, 0), i, why="nothing moves"),
]

# -- bits and truth ------------------------------------------------------------------------------------------
LOGIC = [
    Rule("and-zero", n & 0, 0, why="no bit is in both"),
    Rule("and-ones", n & c, n, when=lambda n, c: c == convert(-1, n.dtype), why="every bit is in the other"),
    Rule("or-zero", n | 0, n, why="0 adds no bit"),
    Rule("xor-zero", n ^ 0, n, why="0 flips no bit"),
    Rule("same-twice", node((o.AND, o.OR, o.MAX, o.MIN), x, x), x, why="these are idempotent"),
    Rule("not-not", ~(~n), n, why="every bit is flipped twice"),
    Rule("not-equal", ~x.eq(y), x.ne(y), why="unequal is the opposite of equal, for NaN too"),
    Rule("not-unequal", ~x.ne(y), x.eq(y), why="unequal is the opposite of equal, for NaN too"),
    Rule("cast-truth-not-zero", node(o.CAST, p).ne(0), p, why="true became 1, false 0"),
]

# -- comparing and choosing ----------------------------------------------------------------------------------
CHOICE = [
    Rule("less-than-self", x < x, False, why="nothing is less than itself, nor is NaN"),
    Rule("equal-to-self", n.eq(n), True, why="integers have no NaN"),
    Rule("unequal-to-self", n.ne(n), False, why="integers have no NaN"),
    Rule("choose-identity", node((o.MAX, o.MIN), x, c), x,
         when=lambda root, x, c: const(c, x.dtype) is identity(root.op, x.dtype),
         why="the limit of the type never wins"),
    Rule("choose-choose", node((o.MAX, o.MIN), node((o.MAX, o.MIN), x, c, name="inner"), d),
         lambda root, inner, x, c, d: UOp(root.op, root.dtype, (x, const(max(c, d) if root.op is o.MAX else min(c, d),
                                                                       root.dtype))),
         when=lambda root, inner, c, d: root.op is inner.op and c == c and d == d
         and not (c == d == 0 and negative(c) != negative(d)),
         why="the greatest of three; two zeros may differ in sign"),
    Rule("where-same", p.where(x, x), x, why="both ways lead to the same"),
    Rule("where-true", node(o.WHERE, True, x, y), x, why="decided"),
    Rule("where-false", node(o.WHERE, False, x, y), y, why="decided"),
    Rule("where-not", (~p).where(x, y), p.where(y, x), why="exchange the sides instead"),
    Rule("where-truth", p.where(True, False), p, why="it says it itself", when=lambda root: root.dtype.kind == "b"),
    Rule("where-where-yes", p.where(p.where(x, y), z), p.where(x, z), why="inside, the condition is decided"),
    Rule("where-where-no", p.where(x, p.where(y, z)), p.where(x, z), why="inside, the condition is decided"),
]


# -- conversion ----------------------------------------------------------------------------------------------
def holds_all(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is one of `wide`, so that converting there loses nothing.

    >>> from glassgrad.compiler.graph.dtype import dtypes
    >>> holds_all(dtypes.float32, dtypes.int16), holds_all(dtypes.float32, dtypes.int32)
    (True, False)
    """
    if wide is narrow or narrow.kind == "b":
        return True
    if wide.kind == "b" or (narrow.kind == "f" and wide.kind != "f"):
        return False
    if narrow.kind == "f":
        return wide.mantissa >= narrow.mantissa and wide.exponent >= narrow.exponent
    if wide.kind == "f":
        return narrow.bits - (narrow.kind == "i") <= wide.mantissa + 1
    return wide.min <= narrow.min and narrow.max <= wide.max


def _conversions_compose(start: DType, middle: DType, end: DType) -> bool:
    if middle.kind == "f" and start.kind != "f" and end.kind in "iu":     # a float too large for `end` does not wrap
        return holds_all(middle, start) and holds_all(end, start)
    return holds_all(middle, start) or (start.kind in "iub" and middle.kind in "iu" and end.kind in "iu"
                                        and middle.bits >= end.bits)


CONVERSION = [
    Rule("cast-same", node(o.CAST, x), lambda root, x: x if x.dtype is root.dtype else None, why="it is that already"),
    Rule("cast-cast", node(o.CAST, node(o.CAST, x, name="middle")), lambda root, x: x.cast(root.dtype),
         when=lambda root, middle, x: _conversions_compose(x.dtype, middle.dtype, root.dtype),
         why="the type between loses nothing that the last one keeps"),
    Rule("bitcast-bitcast", node(o.BITCAST, node(o.BITCAST, x, name="middle")), lambda root, x: x.bitcast(root.dtype),
         when=lambda middle: middle.dtype.kind in "iu", why="the bits stay the same"),
]

# -- functions and their inverses ----------------------------------------------------------------------------
INVERSES = [
    Rule("log-exp", f.exp2().log2(), f, when=is_wide, why="inverse functions",
         inexact=Inexact("|x| below the largest exponent of the type", lambda a: abs(a) < 7, ulps=8, floor=1.0)),
    Rule("exp-log", f.log2().exp2(), f, when=is_wide, why="inverse functions",
         inexact=Inexact("x > 0; of negative numbers there is no logarithm", lambda a: (a > 2.0**-6) & (a < 2.0**6),
                         ulps=24)),
    Rule("square-of-root", f.sqrt() * f.sqrt(), f, when=is_wide, why="inverse functions",
         inexact=Inexact("x >= 0; negative numbers have no root", lambda a: (a > 2.0**-8) & (a < 2.0**8))),
]

NUMBER_RULES = [*CONSTANTS, *ARITHMETIC, *DIVISION, *LOGIC, *CHOICE, *CONVERSION, *INVERSES]
