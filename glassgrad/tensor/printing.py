"""A tensor as text. In: a tensor. Out: what `print` and a debugger show, for which only the shown values are computed.

Of more than 1000 elements the first and last three along each axis are shown, as in NumPy. A large tensor that is not
in memory yet is not computed for that: a view with six elements along each long axis is; what lies between is dropped
before anything runs. (Sums of floats may then be added up in another order than in the whole tensor, and differ in the
last digit.) Where values cannot be computed, the text says why and nothing is raised, except inside a jitted function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.compiler.graph import Length, UOp, dtypes, ops as o, sizes_now
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas.movement import pad_axis, part
from glassgrad.tensor.memory.disk import on_disk

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
        body = f"<cannot be computed: {(str(problem) or type(problem).__name__).splitlines()[0]}>, shape={x.shape}"
    return f"Tensor({body}, dtype={x.dtype.name}, device={x.device})"


def _values(x: Any) -> str:
    from glassgrad.tensor.array_text import DECIMALS, array_text  # only when values are shown
    shape = sizes_now(x.shape)
    everything = math.prod(shape) <= FEW or any(isinstance(n, Length) for n in x.shape) or \
        on_disk(x.uop.device) or x.uop.op is o.BUFFER and x.is_cpu
    cut = [ENDS if math.prod(shape) > MOST and n > 2 * ENDS else 0 for n in shape]
    if 0 in shape:
        numbers: list[Any] = []
    elif everything:
        numbers = _picked(_numbers(x), shape, [_shown(n, ends) for n, ends in zip(shape, cut)])
    else:
        cut = [ENDS if n > 2 * ENDS else 0 for n in shape]
        numbers = _ends(x)
    dtype = x.dtype if x.dtype.kind != "f" or x.dtype in DECIMALS else dtypes.float32
    return array_text(numbers, [2 * ends or n for n, ends in zip(shape, cut)], dtype, cut, indent=len("Tensor("))


def _numbers(x: Any) -> Any:
    """All values in row-major order."""
    x = x if x.dtype.kind != "f" or x.dtype.bits >= 32 else x.float()
    return running.numbers_of(x.uop, x.device)


def _shown(size: int, ends: int) -> Sequence[int]:
    """The indices that are shown along an axis."""
    return [*range(ends), *range(size - ends, size)] if ends else range(size)


def _picked(numbers: Any, shape: Sequence[int], chosen: Sequence[Sequence[int]]) -> list[Any]:
    """The numbers at the chosen indices of each axis."""
    if all(len(indices) == n for indices, n in zip(chosen, shape)):
        return list(numbers)
    places = [0]
    for n, indices in zip(shape, chosen):
        places = [place * n + i for place in places for i in indices]
    return [numbers[place] for place in places]


def _ends(x: Any) -> list[Any]:
    """The values at the ends of long axes, in row-major order."""
    long = [axis for axis, n in enumerate(x.shape) if n > 2 * ENDS]
    view = x.uop
    for axis in long:
        view = _both_ends(view, axis)
    pieces = list(itertools.product(*((False, True) if axis in long else (False,) for axis in range(x.ndim))))
    if _is_one_kernel(view, x) or not _is_one_kernel(_piece(x.uop, pieces[0]), x):
        return list(_numbers(x._with(view)))
    # the ends of a sum are summed one by one; together they would share a sum that is computed everywhere
    values: dict[tuple[int, ...], Any] = {}
    for last in pieces:
        piece = _piece(x.uop, last)
        sides = [range(ENDS, 2 * ENDS) if end else range(n) for end, n in zip(last, piece.shape)]
        values.update(zip(itertools.product(*sides), _numbers(x._with(piece))))
    return [values[place] for place in itertools.product(*[range(n) for n in view.shape])]


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
