"""Write EXP2, LOG2 and SIN as polynomials. In: one such node of float32 or float64. Out: a UOp of simple operations.

Every operation used (add, multiply, multiply-add, bit moves, selects) is a vector instruction everywhere, so a vector
costs what a scalar costs. There are no branches: every lane pays for every case, so cases are few. SIN is in sine.py.
Does not know loops or devices. Floats below float32 are cast to float32 by the caller.

                     largest error in ulp where MULACC is fused (and where it is not), vector instructions
                     float32             float64
    EXP2(x)          1.3 (1.7)   15      1.7 (2.0)   21
    EXP2(x * c)      1.7 (2.0)   16      1.5 (1.8)   22      exp(x), c = log2(e); other c: up to 2.5
    LOG2(x)          1.6 (1.8)   27      1.7 (1.8)   38      one rounding more in LOG2(x) * log(2)
    SIN(x)           1.8 (2.5)   18      1.7 (2.4)   22      88 and 185 for a vector with a large angle

Polynomials are minimax fits (least squares, reweighted by the error until it is level, in 60 digits).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.dtype import dtypes, round_float
from glassgrad.compiler.lower.polynomial_helpers import horner, layout_of, pieces
from glassgrad.compiler.lower.sine import sine

# q(r) = (e^r - 1) / r for |r| <= log(2): 1 + r*q(r) is e^r to 1.5e-8 (float32) and 1.0e-17 (float64), exactly 1 at 0.
# Coefficients were rounded one after another, the rest fitted anew each time.
_EXP = {
    dtypes.float32: (1.0, 0.5000003576278687, 0.1666661649942398, 0.04166119918227196, 0.008335966616868973,
                     0.001410544733516872, 0.00019630206224974245),
    dtypes.float64: (0.9999999999999999, 0.4999999999999991, 0.16666666666667318, 0.04166666666670627,
                     0.008333333333224932, 0.001388888888321441, 0.00019841269917674945, 2.4801590971914358e-05,
                     2.755729358702532e-06, 2.7556132292502143e-07, 2.5056029578697706e-08, 2.106409172348123e-09,
                     1.588021886415988e-10),
}

# log2(1 + f) / f for sqrt(1/2) <= 1 + f <= sqrt(2), to 1.4e-8 (float32, rounded coefficients) and 7.8e-18 (float64)
_LOG2 = {
    dtypes.float32: (1.4426950216293335, -0.7213475108146667, 0.48090222477912903, -0.3606829047203064,
                     0.28839796781539917, -0.2398165464401245, 0.2072681039571762, -0.19185616075992584,
                     0.17199110984802246, -0.09235012531280518),
    dtypes.float64: (1.4426950408889634, -0.7213475204444824, 0.4808983469629818, -0.36067376022184905,
                     0.28853900817924255, -0.24044917355260645, 0.2060992914544657, -0.18033687420649605,
                     0.16029944918454492, -0.14426976934051589, 0.1311543554775463, -0.1202176924959829,
                     0.1109638881426191, -0.1031532159711529, 0.09645903046245119, -0.08935680422264315,
                     0.08162793112424337, -0.08194339881920067, 0.09425480676902392, -0.08663814338722688,
                     0.03771383108108821),
}

# Factors that stand for irrational numbers, and the inverse they mean: exp(x) is written EXP2(x * log2(e)), where
# log2(e) is rounded to the type. Taken at its word, exp(80) would be 6 ulp off, in float64 exp(700) 300 ulp.
_LN2 = Fraction("0.693147180559945309417232121458176568075500134360")
_INVERSES = {math.log2(math.e): _LN2,
             math.log2(10.0): Fraction("0.301029995663981195213738894724493026768189881462")}


def expand(node: UOp) -> UOp:
    """The node's value by simple operations. The errors are stated at each function."""
    if node.op not in POLYNOMIALS:
        raise Bug(f"{node.op.name} has no line in the table POLYNOMIALS (compiler/lower/transcendental.py)")
    return POLYNOMIALS[node.op](*node.src)


def _exp2(source: UOp) -> UOp:
    """2^x = 2^n * 2^f with n the nearest even integer.

    With n = 2m the factor 2^n is s*s, s = 2^m, which neither overflows nor underflows before the last product does:
    gradual underflow and overflow to inf need no cases of their own. The price is f in [-1, 1] instead of half of it:
    two more multiply-adds. In EXP2(x * c) the product is not rounded (see `_factor`).
    """
    layout = layout_of(source.dtype)
    number, mantissa, bias = layout.number, layout.mantissa, layout.bias
    x, inverse = _factor(source)
    factor = float(1 / inverse)
    ends = sorted((-(bias + mantissa + 2) / factor, (bias + 3) / factor))   # beyond them: 0 and inf
    x = x.maximum(number(ends[0])).minimum(number(ends[1]))                 # a NaN stays
    # Adding this rounds to even integers, because that is its last place; its bits then end in m + bias.
    magic = number(1.5 * 2.0 ** (mantissa + 1) + 2 * bias)
    rounded = x + magic if inverse == 1 else x.mulacc(number(factor), magic)
    minus_n = magic - rounded
    scale = (rounded.bitcast(layout.unsigned) << layout.bits(mantissa)).bitcast(source.dtype)
    if inverse == 1:
        rest = x + minus_n                                                  # f, exact
    else:                                                                   # f / c, and the polynomial absorbs c
        bits_of_m = ((bias + mantissa + 2) // 2).bit_length()
        first, second = pieces(inverse, [mantissa + 1 - bits_of_m], layout)
        rest = minus_n.mulacc(second, minus_n.mulacc(first, x))
    rate = float(_LN2 / inverse)                                            # of e^(rate * rest)
    q = horner(rest, [c * rate ** (k + 1) for k, c in enumerate(_EXP[source.dtype])], layout)
    return (rest * scale).mulacc(q, scale) * scale


def _factor(source: UOp) -> tuple[UOp, Fraction]:
    """x and 1/c of a source x * c with a constant c whose powers are in range; else the source and 1.

    Then c is not multiplied with x but divided out of n, exactly: x - n/c loses nothing where x*c - n would.
    """
    if source.op is o.MUL:
        for x, c in (source.src, source.src[::-1]):
            if c.op is o.CONST and 2.0 ** -8 <= abs(c.arg) <= 2.0 ** 8:
                for meant, inverse in _INVERSES.items():
                    if abs(c.arg) == round_float(meant, c.dtype):
                        return x, inverse if c.arg > 0 else -inverse
                return x, 1 / Fraction(c.arg)
    return source, Fraction(1)


def _log2(x: UOp) -> UOp:
    """log2(x) = e + log2(m), sqrt(1/2) <= m < sqrt(2), so that the error is relative near 1 too.

    0 gives -inf, negatives nan, denormals their logarithm.
    """
    layout = layout_of(x.dtype)
    number, mantissa = layout.number, layout.mantissa
    denormal = x < number(2.0 ** (1 - layout.bias))
    normal = denormal.where(x * number(2.0 ** (mantissa + 1)), x)
    lift = denormal.where(number(-(mantissa + 1)), number(0.0))
    bits = normal.bitcast(layout.signed)
    half_root = (layout.bias << mantissa) - (1 << mantissa) + math.isqrt(1 << (2 * mantissa + 1)) - (1 << mantissa)
    above = bits - half_root                                                # its exponent field is e
    power = (above >> mantissa).cast(x.dtype) + lift
    m = (bits - (above & (-1 << mantissa))).bitcast(x.dtype)
    f = m - number(1.0)                                                     # exact
    result = f.mulacc(horner(f, _LOG2[x.dtype], layout), power)
    finite = (x < number(math.inf)).where(result, x)                        # inf and nan are their own logarithms
    return (number(0.0) < x).where(finite, x.eq(number(0.0)).where(number(-math.inf), number(math.nan)))


POLYNOMIALS: dict[o.Op, Callable[..., UOp]] = {o.EXP2: _exp2, o.LOG2: _log2, o.SIN: sine}    # all `approximate` ops
