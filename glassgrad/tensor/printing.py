"""A tensor as text. In: a tensor. Out: what `print` and a debugger show, for which only the shown values are computed.

Of more than 1000 elements the first and last three along each axis are shown, as in NumPy. A large tensor that is not
in memory yet is not computed for that: a view with six elements along each long axis is; what lies between is dropped
before anything runs. (Sums of floats may then be added up in another order than in the whole tensor, and differ in the
last digit.) Where values cannot be computed, the text says why and nothing is raised, except inside a jitted function.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.symbolic import Length, sizes_now
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor import evaluate as running
from glassgrad.tensor.formulas.movement import pad_axis, part
from glassgrad.tensor.memory.disk import on_disk

__all__ = ["as_text"]

MOST = 1000         # elements that are shown without leaving some out
ENDS = 3            # elements at each end of a long axis
FEW = 1 << 16       # elements that are rather computed together than end by end, in several kernels


def as_text(x: Any) -> str:
    """A tensor's values, type and device.

    >>> print(as_text(Tensor.ones(10**6, 10**7, device="CPU")[0]))
    Tensor([1., 1., 1., ..., 1., 1., 1.], dtype=float32, device=CPU)
    """
    try:
        body = _values(x)
    except JitError:                    # a value that is read inside a jitted function is refused, shown ones too
        raise
    except Exception as problem:        # whatever else is wrong, a debugger can go on
        body = f"<cannot be computed: {str(problem).splitlines()[0]}>, shape={x.shape}"
    return f"Tensor({body}, dtype={x.dtype.name}, device={x.device})"


def _values(x: Any) -> str:
    import numpy  # only when values are shown
    everything = math.prod(sizes_now(x.shape)) <= FEW or any(isinstance(n, Length) for n in x.shape) or \
        on_disk(x.uop.device) or x.uop.op is o.BUFFER and x.is_cpu
    values = x.numpy() if everything else _ends(x)
    return numpy.array2string(values, separator=", ", prefix="Tensor(", threshold=MOST if everything else 0,
                              edgeitems=ENDS)


def _ends(x: Any) -> Any:
    """An array with the ends of long axes, one element between them (which is not shown) for the rest."""
    import numpy
    long = [axis for axis, n in enumerate(x.shape) if n > 2 * ENDS]
    view = x.uop
    for axis in long:
        view = _both_ends(view, axis)
    pieces = list(itertools.product(*((False, True) if axis in long else (False,) for axis in range(x.ndim))))
    if not _is_one_kernel(view, x) and _is_one_kernel(_piece(x.uop, pieces[0]), x):
        # the ends of a sum are summed one by one; together they would share a sum that is computed everywhere
        found = [x._with(_piece(x.uop, last)).numpy() for last in pieces]
        values = numpy.empty(view.shape, found[0].dtype)
        for last, piece in zip(pieces, found):
            values[tuple(slice(ENDS, None) if end else slice(n) for end, n in zip(last, piece.shape))] = piece
    else:
        values = x._with(view).numpy()
    for axis in long:
        values = numpy.insert(values, ENDS, values.take(0, axis), axis)
    return values


def _both_ends(x: UOp, axis: int) -> UOp:
    """The elements 0, 1, 2 and n - 3, n - 2, n - 1 along an axis: the starts of two rows of n - 3."""
    before, after = x.shape[:axis], x.shape[axis + 1:]
    row = x.shape[axis] - ENDS
    rows = pad_axis(x, axis, 0, row - ENDS).reshape((*before, 2, row, *after))
    return part(rows, axis + 1, 0, ENDS).reshape((*before, 2 * ENDS, *after))


def _piece(x: UOp, last: tuple[bool, ...]) -> UOp:
    """The first or last elements along each long axis."""
    for axis, end in enumerate(last):
        n = x.shape[axis]
        if n > 2 * ENDS:
            x = part(x, axis, n - ENDS, n) if end else part(x, axis, 0, ENDS)
    return x


def _is_one_kernel(node: UOp, x: Any) -> bool:
    return len(running.schedule([node], x.device)) <= 1
