"""Floor quotients and exact remainders of floats. In: float UOps of one type. Out: UOps.

As in C and in PyTorch a remainder is exact: x minus an integer multiple of y, not minus a rounded product of a rounded
quotient. So 1.0 // 0.1 is 9, because the float 0.1 is a little more than a tenth. Exact up to quotients of 2^46 in
float32 and 2^104 in float64.
"""

from __future__ import annotations

import math

from glassgrad.compiler.graph import UOp, dtypes, full
from glassgrad.tensor.autograd.custom_gradient import gradient_is
from glassgrad.tensor.formulas.powers import halves


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
    near = (x - rest) / y                              # an integer, but for the rounding of its last digit
    whole = _nearest(_opposite(rest, y).where(near - 1.0, near))
    signed = whole.eq(0.0).where(plain * 0.0, whole)   # -0.0 where the quotient is a little below 0
    beyond = y.eq(0.0) | (plain.abs().eq(math.inf) & (x.abs() < math.inf))
    return beyond.where(plain, signed)


def _rest(x: UOp, y: UOp) -> UOp:
    """x minus an integer times y, in two steps: the first leaves so little that the second is exact."""
    rest = _step(_step(x, y), y)
    size = y.abs()
    step = (x < 0.0).where(-size, size)
    rest = (rest.ne(0.0) & (rest < 0.0).ne(x < 0.0)).where(rest + step, rest)     # a quotient was rounded up
    rest = (rest.abs() < size).where(rest, rest - step)                           # or down
    signed = rest.eq(0.0).where(x * 0.0, rest)         # a remainder of 0 has the sign of x, too
    return (size.eq(math.inf) & (x.abs() < math.inf)).where(x, signed)


def _step(x: UOp, y: UOp) -> UOp:
    """x minus y times the integer part of their rounded quotient, exactly: products of halves are not rounded."""
    rest, quotient = x, (x / y).trunc()
    if x.dtype is dtypes.float64:                      # halves of 27 and 27 bits would have a product of 54
        quotient = (quotient.bitcast(dtypes.int64) & -2).bitcast(x.dtype)
    for part in halves(quotient):
        for piece in halves(y):
            rest = rest - part * piece
    return rest


def _opposite(rest: UOp, y: UOp) -> UOp:
    """Whether a remainder is not 0 and its sign is not the divisor's."""
    return rest.ne(0.0) & (rest < 0.0).ne(y < 0.0)


def _nearest(x: UOp) -> UOp:
    toward = x.trunc()
    down = (x < toward).where(toward - 1.0, toward)
    return (x - down > 0.5).where(down + 1.0, down)
