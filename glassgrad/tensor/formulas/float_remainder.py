"""Compute floor quotients and exact remainders of floats. In: float UOps of one type. Out: UOps.

As in C and in PyTorch a remainder is exact: x minus an integer multiple of y, not minus a rounded product of a rounded
quotient. So 1.0 // 0.1 is 9, because the float 0.1 is a little more than a tenth. The quotient may have any size: its
leading digits are subtracted, some at a time.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, dtypes, full, ops as o
from glassgrad.compiler.graph.recurrence import steps_of_items
from glassgrad.tensor.autograd.custom_gradient import gradient_is
from glassgrad.tensor.formulas.movement import flatten
from glassgrad.tensor.formulas.powers import computes_float64, halves, leading_digits


@gradient_is(lambda g, rest, x, y: (g, -g * (x / y).trunc()))
def toward_zero(x: UOp, y: UOp) -> UOp:
    """The remainder x - y trunc(x / y), with the sign of x (C's fmod)."""
    return _rest(x, y)


@gradient_is(lambda g, rest, x, y: (g, -g * floor_quotient(x, y)))
def floored(x: UOp, y: UOp) -> UOp:
    """The remainder x - y floor(x / y), with the sign of y."""
    rest = _rest(x, y)
    return _opposite(rest, y).where(rest + y, rest)


@gradient_is(lambda g, quotient, x, y: (full(x.shape, 0, x.dtype), full(y.shape, 0, y.dtype)))
def floor_quotient(x: UOp, y: UOp) -> UOp:
    """x / y rounded down; its gradient is 0."""
    rest = _rest(x, y)
    plain = x / y
    near = (x - rest) / y                              # an integer, except for the rounding of its last digit
    whole = _nearest(_opposite(rest, y).where(near - 1.0, near))
    signed = whole.eq(0.0).where(plain * 0.0, whole)   # -0.0 where the quotient is a little below 0
    beyond = y.eq(0.0) | (plain.abs().eq(math.inf) & (x.abs() < math.inf))
    return beyond.where(plain, signed)


def _rest(x: UOp, y: UOp) -> UOp:
    """x minus an integer times y, with the sign of x."""
    size = y.abs()
    if _is_power_of_two(y):
        rest = (x.abs() < size * 2.0 ** 60).where(x - (x * size.recip()).trunc() * size, x * 0.0)
    elif x.dtype is dtypes.float32 and computes_float64(x, y):
        rest = _in_float64(x, y)
    else:
        rest = _with_far_ones(_step(_step(x, size), size), x, size)
    step = (x < 0.0).where(-size, size)
    rest = (rest.ne(0.0) & (rest < 0.0).ne(x < 0.0)).where(rest + step, rest)     # a quotient was rounded up
    rest = (rest.abs() < size).where(rest, rest - step)                           # or down
    signed = rest.eq(0.0).where(x * 0.0, rest)         # a remainder of 0 has the sign of x, too
    return (size.eq(math.inf) & (x.abs() < math.inf)).where(x, signed)


def _is_power_of_two(y: UOp) -> bool:
    """Return whether a divisor is a constant power of two, whose products with integers, and quotients, are exact."""
    y = y.base
    return y.op is o.CONST and 2.0 ** -60 < abs(y.arg) < 2.0 ** 60 and math.frexp(abs(y.arg))[0] == 0.5


def _in_float64(x: UOp, y: UOp) -> UOp:
    """The remainder of float32 numbers, computed in float64. The product of the divisor with a quotient is exact if the
    quotient has at most as many digits as the divisor leaves free in float64; the number of steps is enough for the
    longest quotient."""
    (_, most, _), (least, _, digits) = _exponents(x), _exponents(y)
    rest, size = x.cast(dtypes.float64), y.abs().cast(dtypes.float64)
    inverse, known = size.recip(), dtypes.float64.mantissa + 1 - digits
    for _ in range(-(-max(0, most - least) // (known - 1))):
        rest = rest - leading_digits((rest * inverse).trunc(), known) * size
    return rest.cast(x.dtype)


def _exponents(x: UOp) -> tuple[int, int, int]:
    """Return bounds of a node's finite numbers except 0 (at least 2^first and below 2^second), and how many digits they
    have."""
    x = x.base
    dtype = x.src[0].dtype if x.op is o.CAST and x.src[0].dtype.kind == "f" else x.dtype
    if x.op is o.CONST and 0.0 < abs(x.arg) < math.inf:
        above = math.frexp(x.arg)[1]
        return above - 1, above, dtype.mantissa + 1
    return 1 - dtype.bias - dtype.mantissa, dtype.bias + 1, dtype.mantissa + 1


def _step(x: UOp, size: UOp) -> UOp:
    """Subtract from x the divisor times the integer part of their rounded quotient, exactly: the products of halves are
    not rounded."""
    rest, quotient = x, (x / size).trunc()
    if x.dtype is dtypes.float64:                      # the product of two 27-bit halves would have 54 bits
        quotient = (quotient.bitcast(dtypes.int64) & -2).bitcast(x.dtype)
    for part in halves(quotient):
        for piece in halves(size):
            rest = rest - part * piece
    return rest


# -- quotients beyond two steps --------------------------------------------------------------------------------
_ROW = 256            # numbers per task


def _with_far_ones(near: UOp, x: UOp, size: UOp) -> UOp:
    """Return what two steps leave; where the quotient has more digits than two steps subtract, what all steps leave, or
    NaN if sizes are variables. Blocks without such quotients take no further step."""
    digits = 2 * x.dtype.mantissa - 4
    is_far = (x.abs() < size * 2.0 ** digits).eq(False) & (x.abs() < math.inf) & size.ne(0.0)
    if x.symbolic or not x.size:
        return is_far.where(math.nan, near)
    rows = -(-x.size // _ROW)
    rest, divisor = (flatten(n).pad(((0, rows * _ROW - x.size),)).reshape((rows, _ROW, 1))
                     for n in (is_far.where(x, near), is_far.where(size, 0.0)))
    count = (2 * x.dtype.bias + x.dtype.mantissa) // (x.dtype.mantissa - 2) + 3
    [found, _, _], _ = steps_of_items(_far_step, [rest, divisor, _is_done(rest, divisor)], count, until=2)
    return flatten(found).shrink(((0, x.size),)).reshape(x.shape)


def _far_step(number: UOp, states: list[UOp]) -> tuple[list[UOp], list[UOp]]:
    rest, divisor, _ = states
    shift = 2.0 ** (700 if rest.dtype is dtypes.float64 else 100)
    multiple = divisor
    for _ in range(2):                                 # the quotient by the divisor itself may not be finite
        more = multiple * shift
        multiple = more.le(rest.abs()).where(more, multiple)
    rest = divisor.ne(0.0).where(_step(rest, multiple), rest).contiguous()
    return [rest, divisor, _is_done(rest, divisor)], []


def _is_done(rest: UOp, divisor: UOp) -> UOp:
    """Return 1 for each row in which no number is as large as its divisor."""
    goes_on = divisor.le(rest.abs()) & divisor.ne(0.0)
    return 1.0 - goes_on.cast(rest.dtype).reduce(o.AMAX, (1,))


def _opposite(rest: UOp, y: UOp) -> UOp:
    """Return whether a remainder is not 0 and has another sign than the divisor."""
    return rest.ne(0.0) & (rest < 0.0).ne(y < 0.0)


def _nearest(x: UOp) -> UOp:
    toward = x.trunc()
    down = (x < toward).where(toward - 1.0, toward)
    return (x - down > 0.5).where(down + 1.0, down)
