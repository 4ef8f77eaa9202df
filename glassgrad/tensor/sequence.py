"""Numbers that follow a rule: 0, 1, 2, ... In: a length. Out: a node that needs no memory.

A count is the running sum of ones, less one: the compiler knows that running sum as the index itself.
"""

from __future__ import annotations

from glassgrad.graph import ops as o
from glassgrad.graph.dtype import DType, dtypes
from glassgrad.graph.uop import Scan, UOp, full

__all__ = ["counting"]


def counting(n: int, dtype: DType = dtypes.int32) -> UOp:
    """0, 1, ..., n - 1.

    >>> counting(3).shape
    (3,)
    """
    return UOp(o.SCAN, dtype, (full((n,), 1, dtype),), Scan(0, o.ADD)) - 1
