"""PyTorch's second names: the same method, called otherwise. In, out: tensors."""

from __future__ import annotations

from glassgrad.tensor.methods.linalg.norms import Norms

__all__ = ["Synonyms"]


class Synonyms(Norms):
    """PyTorch's second names."""
    __slots__ = ()

    absolute = Norms.abs
    arccos = Norms.acos
    arccosh = Norms.acosh
    arcsin = Norms.asin
    arcsinh = Norms.asinh
    arctan = Norms.atan
    arctan2 = Norms.atan2
    arctanh = Norms.atanh
    multiply = Norms.mul
    subtract = Norms.sub
    divide = Norms.div
    true_divide = Norms.div
    greater = Norms.gt
    greater_equal = Norms.ge
    less = Norms.lt
    less_equal = Norms.le
    not_equal = Norms.ne
    bitwise_left_shift = Norms.lshift
    bitwise_right_shift = Norms.rshift
    sgn = Norms.sign
    fix = Norms.trunc
    moveaxis = Norms.movedim
    swapdims = Norms.transpose
    ger = Norms.outer
    nelement = Norms.numel
    ndimension = Norms.dim
    split_with_sizes = Norms.split
    pinverse = Norms.pinv
    concat = Norms.cat
    concatenate = Norms.cat
