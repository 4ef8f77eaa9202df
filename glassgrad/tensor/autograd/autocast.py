"""Choose the type in which products are computed. In: operands of a matrix product or a convolution. Out: the same in
that type.

Outside of mixed precision nothing changes. Within it, float32 operands of products become 16 bits wide, and what must
stay exact (sums, softmax, norms, losses) is computed in float32. `nn.optim.autocast` sets the type; each thread has its
own.
"""

from __future__ import annotations

import threading

from glassgrad.compiler.graph import DType, UOp, dtypes


class _Chosen(threading.local):
    dtype: DType | None = None


_chosen = _Chosen()


def change(dtype: DType | None) -> DType | None:
    """Compute products in this type from now on (None: in the type of the operands); return the type that was set
    before.

    >>> before = change(dtypes.bfloat16)
    >>> change(before)
    dtypes.bfloat16
    """
    before, _chosen.dtype = _chosen.dtype, dtype
    return before


def current() -> DType | None:
    """Return the type that products are computed in; None outside of mixed precision. It is part of the key of every
    cache of compiled work.

    >>> current() is None
    True
    """
    return _chosen.dtype


def in_autocast_dtype(node: UOp) -> UOp:
    """Cast an operand of a product to the type that products are computed in; only floats of 32 bits or fewer change.

    >>> from glassgrad.compiler.graph.uop import const
    >>> in_autocast_dtype(const(1.0)).dtype
    dtypes.float32
    """
    dtype = _chosen.dtype
    if dtype is None or node.dtype.kind != "f" or node.dtype is dtypes.float64:
        return node
    return node.cast(dtype)


def exact(dtype: DType) -> DType:
    """Return the type of the results of sums, softmax, norms and losses: float32 within mixed precision, else the given
    one.

    >>> exact(dtypes.float16)
    dtypes.float16
    """
    return dtypes.float32 if _chosen.dtype is not None and dtype.kind == "f" and dtype.bits < 32 else dtype
