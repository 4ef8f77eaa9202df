"""PyTorch's second names: the same method, called otherwise. In, out: tensors."""

from __future__ import annotations

from glassgrad.tensor.linalg import LinearAlgebra

__all__ = ["Synonyms"]


class Synonyms(LinearAlgebra):
    """PyTorch's second names."""
    __slots__ = ()

    absolute = LinearAlgebra.abs
    arccos = LinearAlgebra.acos
    arccosh = LinearAlgebra.acosh
    arcsin = LinearAlgebra.asin
    arcsinh = LinearAlgebra.asinh
    arctan = LinearAlgebra.atan
    arctan2 = LinearAlgebra.atan2
    arctanh = LinearAlgebra.atanh
    multiply = LinearAlgebra.mul
    subtract = LinearAlgebra.sub
    divide = LinearAlgebra.div
    true_divide = LinearAlgebra.div
    greater = LinearAlgebra.gt
    greater_equal = LinearAlgebra.ge
    less = LinearAlgebra.lt
    less_equal = LinearAlgebra.le
    not_equal = LinearAlgebra.ne
    bitwise_left_shift = LinearAlgebra.lshift
    bitwise_right_shift = LinearAlgebra.rshift
    sgn = LinearAlgebra.sign
    fix = LinearAlgebra.trunc
    moveaxis = LinearAlgebra.movedim
    swapdims = LinearAlgebra.transpose
    ger = LinearAlgebra.outer
    nelement = LinearAlgebra.numel
    ndimension = LinearAlgebra.dim
    split_with_sizes = LinearAlgebra.split
    pinverse = LinearAlgebra.pinv
