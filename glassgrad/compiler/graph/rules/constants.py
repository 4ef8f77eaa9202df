"""One op on plain numbers. In: an op, constants. Out: a constant, as the op's declaration has it. Loads no NumPy.

Python's floats are float64, which holds sums, products, quotients and square roots of float32 so exactly that rounding
them once more gives float32's own result; the smaller float types compute in float32 by definition.
"""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.ops import ELEMENTWISE, Ops
from glassgrad.compiler.graph.uop import UOp, const

_FOLDED = [op for op in Ops if op in ELEMENTWISE and op.constant is not None]
ROUNDED = tuple(op for op in _FOLDED if op.approximate)     # every device approximates these in its own way
EXACT = (*(op for op in _FOLDED if not op.approximate), o.CAST)


def fold(node: UOp) -> UOp | None:
    """The constant that an elementwise node of constants is, or None where it has no one exact result.

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
