"""Numbers that follow a rule: 0, 1, 2, ... In: a length. Out: a node that needs no memory."""

from __future__ import annotations

from glassgrad.graph import ops as o
from glassgrad.graph.arguments import Iota
from glassgrad.graph.dtype import DType, dtypes
from glassgrad.graph.length import Size, most
from glassgrad.graph.uop import UOp

__all__ = ["counting"]


def counting(n: Size, dtype: DType = dtypes.int32) -> UOp:
    """0, 1, ..., n - 1.

    >>> counting(3).shape
    (3,)
    """
    return UOp(o.IOTA, dtype, (), Iota((most(n),))).shrink(((0, n),))
