"""A large sum of products, by NumPy's matrix product. In: arrays. Out: an array, or None. Does not know nodes.

The reference of large kernels: term by term, one convolution would be billions of elements. A factor
does not depend on an axis of stride 0, which was expanded; so the arrays themselves tell `numpy.einsum` which axes a
factor has. Sums are made in float64, closer to the truth than any order of float32
additions; where a product of float32 might be infinite it is left to those who go term by term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Array = Any    # numpy.ndarray; NumPy is not loaded with this file


def seen(array: Array) -> tuple[bool, ...]:
    """Which axes an array changes along, as far as its strides tell.

    >>> import numpy as np
    >>> seen(np.broadcast_to(np.arange(3.0)[:, None], (3, 4)))
    (True, False)
    """
    return tuple(stride != 0 and n > 1 for n, stride in zip(array.shape, array.strides))


def once(array: Array, axes: Sequence[bool]) -> Array:
    """The array cut to one element along every axis that is False in `axes`; a scalar as it is."""
    return array[tuple(slice(None) if used else slice(1) for used in axes)] if array.shape else array


def sum_of_products(np: Any, factors: Sequence[Array], shape: tuple[int, ...], axes: Sequence[int]) -> Array | None:
    """The product of float arrays that broadcast to `shape`, summed over `axes`, which stay with size 1. None where it
    might overflow on the way.

    >>> import numpy as np
    >>> x, y = np.ones((2, 1, 3), np.float32), np.full((1, 4, 3), 0.5, np.float32)
    >>> sum_of_products(np, [x, y], (2, 4, 3), [2])[:, :, 0].tolist()
    [[1.5, 1.5, 1.5, 1.5], [1.5, 1.5, 1.5, 1.5]]
    """
    factors = [np.broadcast_to(f, shape) for f in factors]
    largest = math.prod(float(np.max(np.abs(once(f, seen(f))), initial=1.0)) for f in factors)
    if not largest * math.prod(shape[a] for a in axes) < np.finfo(factors[0].dtype).max:     # nor where it is NaN
        return None
    operands: list[Any] = []                   # an array without repeated elements and its axes, for each factor
    for factor in factors:
        own = [a for a, used in enumerate(seen(factor)) if used]
        operands += [once(factor, seen(factor)).reshape([shape[a] for a in own]).astype(np.float64), own]
    found = {a for own in operands[1::2] for a in own}
    kept = [a for a in range(len(shape)) if a in found and a not in axes]
    total = np.einsum(*operands, kept, optimize=True) * math.prod(shape[a] for a in axes if a not in found)
    result = total.reshape([n if a in kept else 1 for a, n in enumerate(shape)]).astype(factors[0].dtype)
    return np.broadcast_to(result, [1 if a in axes else n for a, n in enumerate(shape)])
