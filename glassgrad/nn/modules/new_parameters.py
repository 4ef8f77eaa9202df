"""Create parameters and buffers of a new layer, initialized as in PyTorch. In: shapes. Out: tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glassgrad.compiler.graph import dtypes
from glassgrad.tensor.tensor import Tensor


def uniform_within(bound: float, *shape: int) -> Tensor:
    """Return a parameter of uniform random numbers in (-bound, bound).

    >>> uniform_within(0.5, 2, 3).abs().max().item() <= 0.5
    True
    """
    return Tensor.uniform(*shape, low=-bound, high=bound, requires_grad=True)


def fan_in_uniform(shape: Sequence[int], inputs: int) -> Tensor:
    """Return a parameter within 1 / sqrt(inputs), as `kaiming_uniform` gives with a = sqrt(5).

    >>> fan_in_uniform((4, 3), 3).shape
    (4, 3)
    """
    return uniform_within(1 / math.sqrt(inputs) if inputs > 0 else 0.0, *shape)


def zeros(*shape: int) -> Tensor:
    """A parameter of zeros.

    >>> zeros(2).tolist()
    [0.0, 0.0]
    """
    return Tensor.zeros(*shape, requires_grad=True)


def ones(*shape: int) -> Tensor:
    """A parameter of ones.

    >>> ones(2).tolist()
    [1.0, 1.0]
    """
    return Tensor.ones(*shape, requires_grad=True)


def scale_and_shift(affine: bool, bias: bool, *shape: int) -> tuple[Tensor | None, Tensor | None]:
    """Return the weight (ones) and bias (zeros) of a normalization layer: both, the weight alone, or neither.

    >>> scale_and_shift(False, True, 3)
    (None, None)
    """
    return ones(*shape) if affine else None, zeros(*shape) if affine and bias else None


def running_statistics(size: int | None) -> tuple[Any, Any, Any]:
    """Return the initial running mean, running variance and number of batches; without a size, None for each. (They are
    realized at once, so that the graph of the first training step is that of all others.)

    >>> [(state.tolist(), state.requires_grad) for state in running_statistics(2)]
    [([0.0, 0.0], False), ([1.0, 1.0], False), (0, False)]
    """
    if size is None:
        return None, None, None
    made = Tensor.full((size,), 0.0), Tensor.full((size,), 1.0), Tensor.full((), 0, dtype=dtypes.int64)
    mean, variance, batches = (state.contiguous().realize().requires_grad_(False) for state in made)
    return mean, variance, batches
