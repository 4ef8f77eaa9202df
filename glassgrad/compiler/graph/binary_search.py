"""Binary search as a graph. In: ordered rows, a test. Out: how many leading elements of a row pass, for each search.

Each step gathers one element for every search. Does not know kernels or tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.symbolic import upper_bound
from glassgrad.compiler.graph.uop import UOp, full


def passing_prefix(ordered: UOp, shape: tuple[Any, ...], passes: Callable[[UOp], UOp], row: UOp | None = None) -> UOp:
    """The length of the prefix of a row whose elements pass a test, for every element of `shape`; elements that pass
    precede all that do not. A binary search in steps of powers of two. `row`: the row of `ordered` that each search is
    in; without it, `ordered` is one row."""
    n = ordered.shape[-1]
    flat, found = ordered.reshape((ordered.elements,)), full(shape, 0, dtypes.int32 if row is None else row.dtype)
    for bit in range(upper_bound(n).bit_length() - 1, -1, -1):
        more = found + (1 << bit)
        at = more - 1 if row is None else row * n + more - 1
        read = UOp(o.GATHER, flat.dtype, (flat, at.reshape((found.elements,)))).reshape(shape)
        found = ((more < n + 1) & passes(read)).where(more, found)
    return found.cast(dtypes.int32)
