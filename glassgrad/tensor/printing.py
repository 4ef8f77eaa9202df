"""Show a tensor as text. In: a tensor. Out: what `print` and a debugger show, for which only the shown values are
computed.

If there are more than 1000 elements, the first and last three along each axis are shown, as in NumPy. If there are so
many axes that these are more than 10,000, only their number is shown. A large tensor that is not in memory yet is not
computed as a whole, but as parts with three elements along each long axis, of parts of what it is computed from
(parts_of_expressions.py); the rest is never computed, and what the parts have in common is computed once. (A sum of
floats may then be added up in another order than in the whole tensor, and differ in the last digit.) If values cannot
be computed, the text says why and nothing is raised, except inside a jitted function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import JitError
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import Length, UOp, dtypes, ops as o, sizes_now, toposort
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.engine.in_place import with_known_values
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.memory.disk import on_disk
from glassgrad.tensor.parts_of_expressions import parts_of

MOST = 1000         # most elements that are all shown
ENDS = 3            # elements that are shown at each end of a long axis
TOO_MANY = 10_000   # above this only the number of elements is shown; with many axes, even the ends are more
FEW = 1 << 16       # up to this size the whole tensor is computed, not its ends in several kernels


def as_text(x: Any) -> str:
    """Return a tensor's values, type and device as text.

    >>> print(as_text(Tensor.ones(10**6, 10**7, device="CPU")[0]))
    Tensor([1., 1., 1., ..., 1., 1., 1.], dtype=float32, device=CPU)
    """
    try:
        body = _values(x)
    except JitError:                    # reading a value inside a jitted function is an error, also for showing it
        raise
    except Exception as problem:        # show any other problem, so that a debugger can go on
        body = f"<cannot be computed: {(str(problem) or type(problem).__name__).splitlines()[0]}>, shape={x.shape}"
    return f"Tensor({body}, dtype={x.dtype.name}, device={x.device})"


def _values(x: Any) -> str:
    from glassgrad.tensor.array_text import DECIMALS, array_text  # only when values are shown
    shape = sizes_now(x.shape)
    everything = math.prod(shape) <= FEW or any(isinstance(n, Length) for n in x.shape) or \
        on_disk(x.uop.device) or x.uop.op is o.BUFFER and x.is_cpu
    cut = [ENDS if math.prod(shape) > MOST and n > 2 * ENDS else 0 for n in shape]
    shown = [2 * ends or n for n, ends in zip(shape, cut)]
    if math.prod(shown) > TOO_MANY:
        return f"<{math.prod(shape):,} values>, shape={x.shape}"
    if 0 in shape:
        return "[]" if len(shape) == 1 else f"[], shape={x.shape}"
    if everything:
        numbers = _picked(_numbers(x), shape, [_shown(n, ends) for n, ends in zip(shape, cut)])
    else:
        numbers = _ends(x)
    dtype = x.dtype if x.dtype.kind != "f" or x.dtype in DECIMALS else dtypes.float32
    return array_text(numbers, shown, dtype, cut, indent=len("Tensor("))


def _numbers(x: Any) -> Any:
    """Return all values in row-major order."""
    x = x if x.dtype.kind != "f" or x.dtype.bits >= 32 else x.float()
    return running.numbers_of(x.uop, x.device)


def _shown(size: int, ends: int) -> Sequence[int]:
    """Return the indices that are shown along an axis."""
    return [*range(ends), *range(size - ends, size)] if ends else range(size)


def _picked(numbers: Any, shape: Sequence[int], chosen: Sequence[Sequence[int]]) -> list[Any]:
    """Return the numbers at the chosen indices of each axis."""
    if all(len(indices) == n for indices, n in zip(chosen, shape)):
        return list(numbers)
    places = [0]
    for n, indices in zip(shape, chosen):
        places = [place * n + i for place in places for i in indices]
    return [numbers[place] for place in places]


def _ends(x: Any) -> list[Any]:
    """Return the numbers at the ends of each long axis, row by row."""
    values: dict[tuple[int, ...], Any] = {}
    places = list(itertools.product(*((False, True) if n > 2 * ENDS else (False,) for n in x.shape)))
    pieces = _pieces(x, places)
    if _share_work(pieces, x.device):
        pieces = running.read_together(pieces, x.device)
    for last, piece in zip(places, pieces):
        sides = [range(ENDS, 2 * ENDS) if end else range(n) for end, n in zip(last, piece.shape)]
        values.update(zip(itertools.product(*sides), _numbers(x._with(piece))))
    return [values[place] for place in sorted(values)]


def _pieces(x: Any, places: Sequence[Sequence[bool]]) -> list[UOp]:
    """Return, for each place, the first or the last elements along each long axis."""
    [value] = written_out(with_known_values([x.uop], x.device))
    bounds = [tuple([(0, n) if n <= 2 * ENDS else (n - ENDS, n) if end else (0, ENDS)
                     for end, n in zip(last, x.shape)]) for last in places]
    with one_place():
        return parts_of(value, bounds)


def _share_work(pieces: Sequence[UOp], device: str) -> bool:
    """Return whether pieces should be computed together: if some need the same reduction, or store values of which
    others need the same ones. Otherwise each is computed by itself: together, they would share a kernel that computes
    all of a value of which they read parts."""
    needed = [{n for n in toposort([piece], lambda n: () if n.op is o.SHRINK else n.src) if n.op in o.REDUCE}
              for piece in pieces]
    if sum(map(len, needed)) > len(set().union(*needed)):
        return True
    alone = [running.stored_elements(pieces[:1], device)]
    if len(pieces) == 1 or alone[0] <= pieces[0].size:
        return False
    alone += [running.stored_elements([piece], device) for piece in pieces[1:]]
    return running.stored_elements(pieces, device) < sum(alone)
