"""Apply operators to nodes, with type promotion and broadcasting. In: UOps and plain numbers. Out: UOps.

These functions take what a user may write, also bools and numbers out of range, and report errors in the user's words
(see `tensor/broadcast.py`). Inside a formula, whose operands were checked, the operators of nodes are used instead:
they promote types and broadcast shapes. Does not know tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import DTypeError
from glassgrad.base.source_lines import Place
from glassgrad.compiler.graph import DType, UOp, const, dtypes, ops as o, promote
from glassgrad.compiler.graph.uop import new_node
from glassgrad.tensor.broadcast import VERBS, broadcast_all, broadcast_pair, broadcast_shape, number
from glassgrad.tensor.formulas import elementary, float_remainder, powers

Operand = UOp | bool | int | float          # or a symbolic length

_bool = dtypes.bool
_ON_TRUTH = {o.ADD: o.OR, o.MUL: o.AND, o.MAX: o.OR, o.MIN: o.AND}   # the meaning of these ops for bools, as in PyTorch
_INTEGER_ONLY = frozenset({o.AND, o.OR, o.XOR, o.SHL, o.SHR})


# -- operands ------------------------------------------------------------------------------------------------
def as_node(x: Any, beside: Any, op: o.Op = o.ADD) -> UOp:
    """Return an operand as a node; a number takes the type of the node beside it."""
    if isinstance(x, UOp):
        return x
    return number(x, beside.dtype if isinstance(beside, UOp) else _type_of_numbers(x, beside), op)


def _type_of_numbers(*numbers: Any) -> DType:
    """Return the type of a tensor of Python numbers: integers that do not fit into int32 are int64."""
    if any(isinstance(n, float) for n in numbers):
        return dtypes.default_float
    if all(isinstance(n, bool) for n in numbers):
        return _bool
    kind = dtypes.default_int
    return kind if all(kind.min <= n <= kind.max for n in numbers if isinstance(n, int)) else dtypes.int64


def both(x: Any, y: Any) -> tuple[UOp, UOp]:
    """Return two operands as nodes of one type."""
    x, y = as_node(x, y), as_node(y, x)
    dtype = promote(x.dtype, y.dtype)
    return x.cast(dtype), y.cast(dtype)


def broadcast(x: Any, y: Any, op: o.Op = o.ADD) -> tuple[UOp, UOp]:
    """Return two operands as nodes of one type and shape."""
    x, y = both(x, y)
    shape = broadcast_shape(x.shape, y.shape, op)
    return x.broadcast(shape), y.broadcast(shape)


def is_float(x: Any) -> bool:
    """Return whether an operand is a float number or a node of floats."""
    return x.dtype.kind == "f" if isinstance(x, UOp) else isinstance(x, float)


def as_float(x: UOp) -> UOp:
    """Return a node of floats; integers and bools become the default float type."""
    return x if x.dtype.kind == "f" else x.cast(dtypes.default_float)


def in_accumulator(formula: Callable[..., UOp], *operands: UOp) -> UOp:
    """Apply a formula of several ops to floats of one type: float16 and bfloat16 are computed in float32 and rounded
    once."""
    dtype = operands[0].dtype
    wide = dtype.accumulator
    return formula(*(x.cast(wide) for x in operands)).cast(dtype)


def rounded_once(formula: Callable[..., UOp]) -> Callable[..., UOp]:
    """Decorate a formula of several ops on nodes of any types and numbers: if the nodes promote to float16 or bfloat16,
    it is computed in float32 and rounded once."""
    @functools.wraps(formula)
    def of_operands(*operands: Any) -> UOp:
        dtype = functools.reduce(promote, [x.dtype for x in operands if isinstance(x, UOp)])
        wide = dtype.accumulator
        if wide is dtype:
            return formula(*operands)
        return formula(*(x.cast(wide) if isinstance(x, UOp) else x for x in operands)).cast(dtype)
    return of_operands


# -- two operands --------------------------------------------------------------------------------------------
def binary(op: o.Op, x: Any, y: Any, place: Place | None = None) -> UOp:
    """Apply one op to two operands, at least one of which is a node; `place` is the user's line, if the caller knows
    it."""
    if not isinstance(y, UOp):
        y = number(y, x.dtype, op)
        x = x.cast(y.dtype)
    elif not isinstance(x, UOp):
        x = number(x, y.dtype, op)
        y = y.cast(x.dtype)
    elif x.dtype is not y.dtype or y.shape and x.shape != y.shape and x.shape:
        x, y = broadcast_pair(x, y, op)
    dtype = x.dtype
    if dtype is _bool:
        op = _ON_TRUTH.get(op, op)
        if op is o.SUB:
            raise DTypeError("truth values cannot be subtracted", given="bool - bool", expected="numbers",
                             fix="use x ^ y for their difference, or cast: x.int() - y.int()")
        if op in (o.SHL, o.SHR):
            raise DTypeError("bools cannot be shifted", given=f"bool {op.sign} bool", expected="integers",
                             fix=f"cast: x.int() {op.sign} y.int()")
    elif dtype.kind == "f" and op in _INTEGER_ONLY:
        raise DTypeError(f"{VERBS[op][1]} works on integers and truth values",
                         given=f"{dtype.name} {VERBS[op][1]} {dtype.name}", expected="integer or bool tensors",
                         fix="cast first: x.int(); or compare: (x > 0) & (y > 0)")
    return new_node(UOp, op, _bool if op.compares else dtype, (x, y), None, place)


def add(x: Any, y: Any) -> UOp: return binary(o.ADD, x, y)
def sub(x: Any, y: Any) -> UOp: return binary(o.SUB, x, y)
def mul(x: Any, y: Any) -> UOp: return binary(o.MUL, x, y)
def less(x: Any, y: Any) -> UOp: return binary(o.CMPLT, x, y)
def equal(x: Any, y: Any) -> UOp: return binary(o.CMPEQ, x, y)
def not_equal(x: Any, y: Any) -> UOp: return binary(o.CMPNE, x, y)
def square(x: UOp) -> UOp: return binary(o.MUL, x, x)


def at_most(x: Any, y: Any) -> UOp:
    """x <= y. For floats this is not "not y < x", which would be true for NaN."""
    if is_float(x) or is_float(y):
        return binary(o.CMPLT, x, y) | binary(o.CMPEQ, x, y)
    return binary(o.CMPLT, y, x).logical_not()


def at_least(x: Any, y: Any) -> UOp:
    """x >= y."""
    return at_most(y, x)


def divide(x: Any, y: Any) -> UOp:
    """x / y in floats: two integers become the default float type."""
    if not is_float(x) and not is_float(y):
        x, y = (n.cast(dtypes.default_float) if isinstance(n, UOp) else n for n in (x, y))
    return binary(o.DIV, x, y)


def _of_floats(formula: Callable[[UOp, UOp], UOp], op: o.Op, x: Any, y: Any) -> UOp:
    return in_accumulator(formula, *broadcast(x, y, op))


def _as_numbers(x: Any, y: Any) -> tuple[Any, Any]:
    """Return two operands; if both are bools, the nodes among them become int32."""
    if all(x.dtype is _bool if isinstance(x, UOp) else isinstance(x, bool) for x in (x, y)):
        return tuple(x.cast(dtypes.int32) if isinstance(x, UOp) else x for x in (x, y))  # type: ignore[return-value]
    return x, y


def _floored(of_floats: Callable[[UOp, UOp], UOp], op: o.Op, x: Any, y: Any) -> UOp:
    return _of_floats(of_floats, op, x, y) if is_float(x) or is_float(y) else binary(op, *_as_numbers(x, y))


def floor_divide(x: Any, y: Any) -> UOp:
    """x // y, rounded down."""
    return _floored(float_remainder.floor_quotient, o.IDIV, x, y)


def remainder(x: Any, y: Any) -> UOp:
    """x % y, with the sign of y."""
    return _floored(float_remainder.floored, o.MOD, x, y)


def truncated_divide(x: Any, y: Any) -> UOp:
    """x / y rounded toward zero."""
    if is_float(x) or is_float(y):
        return divide(x, y).trunc()
    x, y = both(x, y)
    down = binary(o.IDIV, x, y)     # rounded down: add 1 where the exact quotient is negative and not an integer
    return down + (less(down, 0) & (down * y).ne(x)).cast(down.dtype)


def truncated_remainder(x: Any, y: Any) -> UOp:
    """The remainder of `truncated_divide`, with the sign of x (fmod in C)."""
    if is_float(x) or is_float(y):
        return _of_floats(float_remainder.toward_zero, o.MOD, x, y)
    x, y = both(*_as_numbers(x, y))
    floored = binary(o.MOD, x, y)     # has the sign of y: one y too much where x has the other sign
    return floored - (floored.ne(0) & less(x, 0).ne(less(y, 0))).where(y, 0)


def _limited(op: o.Op, x: Any, y: Any) -> UOp:
    if isinstance(x, UOp) and x.dtype.kind == "f" and type(y) in (int, float):
        return elementary.limited(op, x, const(y, x.dtype))
    return binary(op, x, y)


def maximum(x: Any, y: Any) -> UOp:
    """The larger of each pair; NaN where either is."""
    return _limited(o.MAX, x, y)


def minimum(x: Any, y: Any) -> UOp:
    """The smaller of each pair; NaN where either is."""
    return _limited(o.MIN, x, y)


def where(condition: UOp, yes: Any, no: Any) -> UOp:
    """`yes` where the condition is true, else `no`, in the type that holds both."""
    if condition.dtype is not _bool:
        condition = condition.ne(0)
    yes = as_node(yes, no, o.WHERE)
    no = as_node(no, yes, o.WHERE)
    dtype = promote(yes.dtype, no.dtype)
    condition, yes, no = broadcast_all([condition, yes.cast(dtype), no.cast(dtype)], o.WHERE)
    return UOp(o.WHERE, dtype, (condition, yes, no))


# -- powers --------------------------------------------------------------------------------------------------
def power(x: Any, y: Any) -> UOp:
    """x^y; an integer for integers."""
    if isinstance(x, UOp) and not isinstance(y, UOp):
        return _constant_power(x, y)
    if is_float(x) or is_float(y):
        return in_accumulator(powers.power, *broadcast(x, y))
    return powers.integer_power(*broadcast(*_as_numbers(x, y)))


def _constant_power(x: UOp, n: Any) -> UOp:
    if isinstance(n, int) and x.dtype.kind != "f":
        if n < 0:
            raise DTypeError("integers have no negative powers", given=f"{x.dtype.name} ** {n}",
                             expected="an exponent of 0 or more, or floats", fix="cast first: x.float() ** -1")
        return powers.product_power(x.cast(dtypes.default_int) if x.dtype is _bool else x, n)
    x = as_float(x)
    narrow = x.dtype.accumulator is not x.dtype          # computed in a wider type, so with digits to spare
    if n == 0.5:
        return x.sqrt()
    if n == -0.5:
        return in_accumulator(powers.rsqrt if narrow else powers.reciprocal_root, x)
    if n in powers.EXACT_PRODUCTS or narrow and n in powers.PRODUCTS:
        return in_accumulator(lambda x: powers.product_power(x, int(n)), x)
    return in_accumulator(lambda x: powers.power(x, const(n, x.dtype)), x)


# -- one operand ---------------------------------------------------------------------------------------------
def absolute(x: UOp) -> UOp:
    """|x|."""
    return x if x.dtype.kind in "bu" else x.abs()


def sign(x: UOp) -> UOp:
    """-1, 0 or 1; 0 for NaN."""
    if x.dtype is _bool:
        return x
    zero, one = const(0, x.dtype), const(1, x.dtype)
    return (zero < x).where(one, (x < zero).where(const(-1, x.dtype), zero))


def floor(x: UOp) -> UOp:
    """x rounded down."""
    below = x.trunc()
    return (x < below).where(below - 1.0, below)


def ceil(x: UOp) -> UOp:
    """x rounded up."""
    above = x.trunc()
    return (above < x).where(above + 1.0, above)


def clamp(x: UOp, low: Any, high: Any) -> UOp:
    """x limited to a range; either limit may be None."""
    if x.dtype.kind == "f" and not isinstance(low, UOp) and not isinstance(high, UOp):
        return elementary.clamp(x, *(None if n is None else const(n, x.dtype) for n in (low, high)))
    if x.dtype.kind != "f":
        x = x if low is None else maximum(x, low)
        return x if high is None else minimum(x, high)
    if low is not None:                  # where x equals a limit, it gets all of the gradient; limits may be NaN
        x = where(at_least(x, low), x, maximum(x, low))
    return x if high is None else where(at_most(x, high), x, minimum(x, high))


def is_nan(x: UOp) -> UOp: return x.ne(x)
def is_finite(x: UOp) -> UOp: return x.cast(as_float(x).dtype.accumulator).abs() < math.inf


def is_infinite(x: UOp) -> UOp:
    """Whether each value is +inf or -inf. Types without infinities are cast to one that has them, as above."""
    return x.cast(as_float(x).dtype.accumulator).abs().eq(math.inf)


def is_negative(x: UOp) -> UOp:
    """Whether the sign bit is set, also for -0.0."""
    return less(x, 0) | (x.eq(0) & (x.recip() < 0)) if x.dtype.kind == "f" else less(x, 0)


# -- formulas of several operators ---------------------------------------------------------------------------
def round_to(x: UOp, decimals: int) -> UOp:
    """x rounded to a number of decimals; a negative number rounds to tens, hundreds, ..."""
    if not decimals:
        return x.round()
    scale = 10.0 ** min(abs(decimals), 308)                        # the largest power that is a float
    return in_accumulator(lambda x: (x * scale).round() / scale if decimals > 0 else divide(x, scale).round() * scale,
                          x)


def scaled(x: UOp, factor: Any) -> UOp:
    """A node times a factor, which costs nothing where it is the number 1."""
    return x if not isinstance(factor, UOp) and factor == 1 else mul(x, factor)


@rounded_once
def add_product(x: UOp, y: Any, z: Any, factor: Any) -> UOp:
    """x + factor y z."""
    y, z = both(y, z)
    return add(x, mul(scaled(y, factor), z))


@rounded_once
def add_quotient(x: UOp, y: Any, z: Any, factor: Any) -> UOp:
    """x + factor y / z."""
    y, z = both(y, z)
    return add(x, divide(scaled(y, factor), z))


@rounded_once
def lerp(x: UOp, end: Any, weight: Any) -> UOp:
    """Linear interpolation from x (weight 0) to `end` (weight 1), from the nearer of the two: both are exact."""
    way = sub(end, x)
    if isinstance(weight, (int, float)):
        return add(x, mul(way, weight)) if abs(weight) < 0.5 else sub(end, mul(way, 1 - weight))
    return where(less(absolute(weight), 0.5), add(x, mul(way, weight)), sub(end, mul(way, sub(1, weight))))


def is_close(x: UOp, y: UOp, rtol: float, atol: float, equal_nan: bool) -> UOp:
    """Whether |x - y| <= atol + rtol |y|."""
    x, y = broadcast(x, y)
    near = (absolute(sub(x, y)).le(atol + rtol * absolute(y)) & is_finite(y)) | x.eq(y)
    return near | (is_nan(x) & is_nan(y)) if equal_nan else near


def logaddexp(x: UOp, y: UOp) -> UOp:
    """ln(e^x + e^y) without overflow."""
    return in_accumulator(elementary.logaddexp, *broadcast(as_float(x), as_float(y)))
