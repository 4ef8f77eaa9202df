"""Normalize nodes along axes: subtract the mean and divide by the length, with gradients. In, out: UOps.

Does not know tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.compiler.graph import Shape, UOp
from glassgrad.tensor.autograd.autocast import exact
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.broadcast import Axis, resolve_axes
from glassgrad.tensor.formulas import add, as_float, count, divide, maximum, mean, mul, norm, powers
from glassgrad.tensor.formulas.deferred import one_node, same_shape


class NormGradient(NamedTuple):
    """The gradient of a norm along axes, y = c / sqrt(mean(c^2) + eps) with c = x - mean(x), or c = x. It is (g -
    mean(g) - y mean(g y)) / sqrt(..), with two means where the chain rule would have four."""
    axes: tuple[int, ...]
    eps: float
    centred: bool

    def __call__(self, g: UOp, y: UOp, x: UOp) -> tuple[UOp]:
        along = g - y * mean(g * y, self.axes, keepdim=True)
        along = along - mean(g, self.axes, keepdim=True) if self.centred else along
        return (along * self.scale(self.centre(x)),)

    def centre(self, x: UOp) -> UOp:
        """Return the value that is scaled, c."""
        return x - mean(x, self.axes, keepdim=True) if self.centred else x

    def scale(self, c: UOp) -> UOp:
        """Return the factor by which it is scaled."""
        return powers.rsqrt(mean(c * c, self.axes, keepdim=True) + self.eps)


@dataclass(frozen=True)
class ScaledNormGradient:
    """The gradients of y = n weight + bias, with n = (x - mean) / sqrt(variance + eps) along axes where weight and bias
    have one value. That of bias is the sum of g, that of weight the sum of g n, and that of x needs no other sums."""
    normed: NormGradient

    def __call__(self, g: UOp, y: UOp, x: UOp, weight: UOp, bias: UOp) -> tuple[UOp, UOp, UOp]:
        axes = self.normed.axes
        c = self.normed.centre(x)
        scale = self.normed.scale(c)
        n = c * scale
        of_bias, of_weight = g.sum(axes), (g * n).sum(axes)
        along = divide(of_bias + n * of_weight, count(x, axes, "batchnorm"))
        return (g - along) * (weight * scale), of_weight, of_bias


def scaled_norm(x: UOp, weight: UOp, bias: UOp, axes: tuple[int, ...], eps: float) -> UOp:
    """(x - mean) / sqrt(variance + eps) weight + bias; weight and bias have the shape of x, with 1 along the axes."""
    normed = NormGradient(axes, eps, centred=True)
    c = normed.centre(x)
    value = c * normed.scale(c) * weight.expand(x.shape) + bias.expand(x.shape)
    return own_gradient(value, (x, weight, bias), ScaledNormGradient(normed))


def layer_norm(x: UOp, axis: Axis, eps: float, centred: bool = True) -> UOp:
    """(x - mean) / sqrt(variance + eps), where the variance is over n; not centred, x / sqrt(mean(x^2) + eps)."""
    axes = resolve_axes(axis, len(x.shape), "layernorm" if centred else "rms_norm")
    return _layer_norm(as_float(x), NormGradient(axes, eps, centred))


@one_node(same_shape)
def _layer_norm(x: UOp, norm_of: NormGradient) -> UOp:
    wide = x.cast(x.dtype.accumulator)
    c = norm_of.centre(wide)
    value = own_gradient(c * norm_of.scale(c), (wide,), norm_of)  # type: ignore[arg-type]
    return value.cast(exact(x.dtype))


def _weighted_shape(x: UOp, *factors: UOp | None) -> Shape | None:
    own = all([f is None or f.shape == x.shape[len(x.shape) - len(f.shape):] for f in factors])
    return x.shape if own else None


@one_node(_weighted_shape)
def weighted(x: UOp, weight: UOp | None, bias: UOp | None) -> UOp:
    """x weight + bias, element by element, for what was normalized."""
    x = x if weight is None else mul(x, weight)
    return x if bias is None else add(x, bias)


def normalize(x: UOp, p: float, axis: Axis, eps: float) -> UOp:
    """x divided by its length along an axis, which counts as at least eps; float16 and bfloat16 are computed in
    float32."""
    if x.dtype.kind == "f" and x.dtype.accumulator is not x.dtype:
        return normalize(x.cast(x.dtype.accumulator), p, axis, eps).cast(x.dtype)
    return divide(x, maximum(norm(x, p, axis, keepdim=True), eps))
