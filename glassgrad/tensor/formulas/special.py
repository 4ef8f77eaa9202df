"""Special functions on nodes: the inverse of erf, the logarithm of gamma, its derivative. In: float UOps. Out: UOps."""

from __future__ import annotations

import math

from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.formulas.elementary import erf, exp, log, polynomial, tan

__all__ = ["digamma", "erfinv", "lgamma"]

# Giles (2012), "Approximating the erfinv function": two polynomials in w = -ln(1 - x^2)
_ERFINV_NEAR = (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
                3.43273939e-07, 2.81022636e-08)
_ERFINV_FAR = (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
               0.000100950558, -0.000200214257)


def erfinv(x: UOp) -> UOp:
    """erf's inverse: the polynomials, then Newton steps until the dtype's own precision."""
    w = -log((1.0 - x) * (x + 1.0))
    near, far = (
        polynomial(w - 2.5, _ERFINV_NEAR),
        polynomial(w.maximum(5.0).sqrt() - 3.0, _ERFINV_FAR),
    )
    y = (w < 5.0).where(near, far) * x
    for _ in range(2 if x.dtype is dtypes.float64 else 1):
        step = (erf(y) - x) * (math.sqrt(math.pi) / 2) * exp(y * y)
        y = (w < 10.0).where(y - step, y)        # close to 1 the difference has no digits left to give
    edge = x.abs().eq(1.0).where(x * math.inf, (x.abs() > 1.0).where(math.nan, y))
    return own_gradient(edge, (x,), _erfinv_backward)


def _erfinv_backward(g: UOp, y: UOp, x: UOp) -> tuple[UOp]:
    return (g * exp(y * y) * (math.sqrt(math.pi) / 2),)


# Lanczos (1964), g = 7 and nine coefficients: ln gamma to about 1e-15
_LANCZOS = (0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
            12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7)


def lgamma(x: UOp) -> UOp:
    """ln |gamma(x)|, by Lanczos' sum above 1/2 and by reflection below."""
    below = x < 0.5
    z = below.where(1.0 - x, x) - 1.0
    total = const(_LANCZOS[0], x.dtype)
    for k, c in enumerate(_LANCZOS[1:], 1):
        total = total + c / (z + float(k))
    t = z + 7.5
    value = log(t) * (z + 0.5) - t + log(total) + 0.5 * math.log(2 * math.pi)
    turn = x - x.trunc()  # sin(pi x) from the fraction, exactly 0 at integers
    reflected = math.log(math.pi) - log((turn * math.pi).sin().abs()) - value
    value = below.where(reflected, value)
    value = (x.eq(1.0) | x.eq(2.0)).where(0.0, value)
    pole = (x < 0.5) & x.eq(x.trunc())
    return own_gradient((x.abs().eq(math.inf) | pole).where(math.inf, value), (x,), _lgamma_backward)


def digamma(x: UOp) -> UOp:
    """The derivative of lgamma: pushed above 6 by psi(x) = psi(x + 1) - 1/x, then its asymptotic series."""
    below = x < 0.5
    z = below.where(1.0 - x, x)
    shift = const(0.0, x.dtype)
    for k in range(8):
        shift = shift + (z + float(k)).recip()
    t = z + 8.0
    r = (t * t).recip()
    series = polynomial(r, (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12))
    value = log(t) - 0.5 / t - r * series - shift
    turn = (x - x.trunc()) * math.pi
    value = below.where(value - math.pi / tan(turn), value)
    value = ((x < 0.0) & x.eq(x.trunc())).where(math.nan, value)
    return x.eq(0.0).where(-x.recip(), value)


def _lgamma_backward(g: UOp, y: UOp, x: UOp) -> tuple[UOp]: return (g * digamma(x),)
