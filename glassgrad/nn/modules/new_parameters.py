"""Parameters and buffers as a new layer has them, with PyTorch's numbers. In: shapes. Out: tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.tensor.tensor import Tensor


def uniform_within(bound: float, *shape: int) -> Tensor:
    """A parameter of numbers spread evenly over (-bound, bound).

    >>> uniform_within(0.5, 2, 3).abs().max().item() <= 0.5
    True
    """
    return Tensor.uniform(*shape, low=-bound, high=bound, requires_grad=True)


def fan_in_uniform(shape: Sequence[int], inputs: int) -> Tensor:
    """A parameter within 1 / sqrt(inputs): what `kaiming_uniform` with a = sqrt(5) gives.

    >>> fan_in_uniform((4, 3), 3).shape
    (4, 3)
    """
    return uniform_within(1 / math.sqrt(inputs) if inputs else 0.0, *shape)


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
    """The weight, ones, and the bias, zeros, of a layer that normalizes: both, the weight alone, or neither.

    >>> scale_and_shift(False, True, 3)
    (None, None)
    """
    return ones(*shape) if affine else None, zeros(*shape) if affine and bias else None


def buffer(value: float, size: int | None = None, dtype: DType = dtypes.float32) -> Tensor:
    """One value, or a vector of it, in memory: state of a layer that is not trained. (In memory from the start, so
    that the first step of a training has the structure of all others.)

    >>> state = buffer(1.0, 2)
    >>> state.tolist(), state.requires_grad
    ([1.0, 1.0], False)
    """
    made = Tensor.full(() if size is None else (size,), value, dtype=dtype).contiguous().realize()
    made.requires_grad = False
    return made
