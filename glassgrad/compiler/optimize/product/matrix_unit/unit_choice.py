"""Choose the matrix unit for a product. In: a product, a `Target`. Out: a `MatrixUnit` and the factors in its types.

Loops often widen values that a unit takes narrow: the factors are then the values before widening.
"""

from __future__ import annotations

from collections.abc import Callable

from glassgrad.compiler.graph import DType, UOp, const, ops as o
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target


def narrowed(value: UOp, dtype: DType) -> UOp | None:
    """The value before it was widened from the narrower `dtype`; None if it was not."""
    if value.dtype is dtype:
        return value
    if value.op is o.CAST and value.src[0].dtype is dtype:
        return value.src[0]
    if value.op is o.WHERE:
        yes, no = narrowed(value.src[1], dtype), narrowed(value.src[2], dtype)
        return None if yes is None or no is None else value.src[0].where(yes, no)
    return const(0, dtype) if value.op is o.CONST and value.arg == 0 else None


def unit_for(p: Product, target: Target, suits: Callable[[MatrixUnit], bool] = lambda unit: True) \
        -> tuple[MatrixUnit, UOp, UOp] | None:
    """The first unit that multiplies a product's types and `suits`, and both factors in those types; or None."""
    for unit in target.units if p.pair is None else ():
        left, right = narrowed(p.left, unit.left), narrowed(p.right, unit.right)
        if p.total.dtype is unit.total and left is not None and right is not None and suits(unit):
            return unit, left, right
    return None
