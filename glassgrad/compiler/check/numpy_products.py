"""A large sum of products, by NumPy's matrix product. In: arrays. Out: an array, or None. Does not know nodes.

The reference of large kernels: term by term, one convolution would be billions of elements. An axis along which an
array repeats itself (stride 0: it was expanded) is one that it does not see; so the arrays themselves tell which axes
one factor sees alone, which both see, and which are summed. Sums are made in float64, closer to the truth than any
order of float32 additions; where a product of float32 might be infinite it is left to those who go term by term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import le
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
    """The array with one element along every axis that is not among these; all of it where it has no axes."""
    return array[tuple(slice(None) if used else slice(1) for used in axes)] if array.shape else array


def sum_of_products(np: Any, factors: Sequence[Array], shape: tuple[int, ...], axes: Sequence[int]) -> Array | None:
    """The product of float arrays that broadcast to `shape`, summed over `axes`, which stay with size 1. None where
    more than two of them see axes that the others do not, or where it might overflow on the way.

    >>> import numpy as np
    >>> x, y = np.ones((2, 1, 3), np.float32), np.full((1, 4, 3), 0.5, np.float32)
    >>> sum_of_products(np, [x, y], (2, 4, 3), [2])[:, :, 0].tolist()
    [[1.5, 1.5, 1.5, 1.5], [1.5, 1.5, 1.5, 1.5]]
    """
    factors = [np.broadcast_to(f, shape) for f in factors]
    largest = math.prod(float(np.max(np.abs(once(f, seen(f))), initial=1.0)) for f in factors)
    if not largest * math.prod(shape[a] for a in axes) < np.finfo(factors[0].dtype).max:     # nor where it is NaN
        return None
    pair: list[Array] = []
    for factor in sorted(factors, key=lambda f: -sum(seen(f))):
        at = next((i for i, whole in enumerate(pair) if all(map(le, seen(factor), seen(whole)))), len(pair))
        pair[at:at + 1] = [_multiplied(np, pair[at], factor) if at < len(pair) else factor]
    if len(pair) > 2:
        return None
    left, right = pair if len(pair) == 2 else (pair[0], np.broadcast_to(1.0, shape))
    in_left, in_right = seen(left), seen(right)
    kept = [a for a in range(len(shape)) if a not in axes]
    batch = [a for a in kept if in_left[a] and in_right[a]]
    m, n = [a for a in kept if in_left[a] > in_right[a]], [a for a in kept if in_right[a] > in_left[a]]
    k = [a for a in axes if in_left[a] and in_right[a]]
    products = np.matmul(_matrices(np, left, batch, m, k), _matrices(np, right, batch, n, k).swapaxes(1, 2))
    products *= math.prod(shape[a] for a in axes if not in_left[a] and not in_right[a])
    order = [*batch, *m, *n]
    result = np.expand_dims(products.reshape([shape[a] for a in order]), tuple(range(len(order), len(shape))))
    order += [a for a in range(len(shape)) if a not in order]
    result = result.transpose([order.index(a) for a in range(len(shape))]).astype(factors[0].dtype)
    return np.broadcast_to(result, [1 if a in axes else n for a, n in enumerate(shape)])


def _multiplied(np: Any, whole: Array, factor: Array) -> Array:
    """The product of an array and one that sees no more axes, made once where both repeat themselves."""
    axes = seen(whole)
    return np.broadcast_to(np.multiply(once(whole, axes), once(factor, axes), dtype=np.float64), whole.shape)


def _matrices(np: Any, factor: Array, batch: list[int], kept: list[int], k: list[int]) -> Array:
    """A factor as (batch, kept, k) in float64; axes that it alone has and the result does not are summed."""
    order = [*batch, *kept, *k]
    axes = seen(factor)
    alone = [a for a, used in enumerate(axes) if used and a not in order]
    rest = [a for a, used in enumerate(axes) if not used and a not in order]
    matrix = once(factor, axes).transpose([*order, *rest, *alone]).astype(np.float64, order="C")
    shape = [math.prod(factor.shape[a] for a in group) for group in (batch, kept, k, alone)]
    return matrix.reshape(shape).sum(3) if alone else matrix.reshape(shape[:3])
