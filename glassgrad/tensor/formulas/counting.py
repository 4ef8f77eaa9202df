"""Numbers that follow a rule: 0, 1, 2, ... In: a length. Out: a node that needs no memory."""

from __future__ import annotations

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Iota
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.symbolic import Size, most
from glassgrad.compiler.graph.uop import UOp


def counting(n: Size, dtype: DType = dtypes.int32) -> UOp:
    """0, 1, ..., n - 1.

    >>> counting(3).shape
    (3,)
    """
    return UOp(o.IOTA, dtype, (), Iota((most(n),))).shrink(((0, n),))
