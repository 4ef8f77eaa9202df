"""Provide the pools of torch.nn.functional. In: (batch, channels, space...). Out: smaller space."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from glassgrad.nn.functional.fixed_arguments import for_each_rank, public_functions, with_fixed
from glassgrad.tensor.tensor import Tensor

Sizes = int | Sequence[int]


def _each(size: Sizes | None, rank: int) -> Any:
    return (size,) * rank if isinstance(size, int) else size


# -- means ---------------------------------------------------------------------------------------------------
def _avg_pool(input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
              ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None, *,
              rank: int) -> Tensor:
    """The mean of each window; `divisor_override` replaces the window's size as divisor.

    >>> avg_pool1d(Tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2).tolist()
    [[[2.0, 6.0]]]
    """
    return input.avg_pool2d(_each(kernel_size, rank), stride, 1, padding, ceil_mode, count_include_pad,
                            divisor_override)


avg_pool1d, avg_pool2d, avg_pool3d = for_each_rank("avg_pool", _avg_pool)
avg_pool1d = with_fixed(avg_pool1d, "avg_pool1d", "The mean of each window.", divisor_override=None)


def _lp_pool(input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
             ceil_mode: bool = False, *, rank: int) -> Tensor:
    """The p-norm of each window."""
    window = _each(kernel_size, rank)
    mean = input.pow(norm_type).avg_pool2d(window, stride, 1, 0, ceil_mode)
    return (mean.sign() * mean.abs().relu() * math.prod(window)).pow(1 / norm_type)


lp_pool1d, lp_pool2d, lp_pool3d = for_each_rank("lp_pool", _lp_pool)


# -- maxima --------------------------------------------------------------------------------------------------
def _max_pool(input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
              ceil_mode: bool = False, return_indices: bool = False, *, rank: int) -> Any:
    """The maximum of each window; with return_indices also its index.

    >>> max_pool1d(Tensor([[[1.0, 3.0, 5.0, 2.0]]]), 2).tolist()
    [[[3.0, 5.0]]]
    """
    return input.max_pool2d(_each(kernel_size, rank), stride, dilation, padding, ceil_mode, return_indices)


def _max_unpool(input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                output_size: Sequence[int] | None = None, *, rank: int) -> Tensor:
    """Put the values of a max pool back at their indices, zeros elsewhere."""
    return input.max_unpool2d(indices, _each(kernel_size, rank), stride, 1, padding, output_size)


max_pool1d, max_pool2d, max_pool3d = for_each_rank("max_pool", _max_pool)
max_unpool1d, max_unpool2d, max_unpool3d = for_each_rank("max_unpool", _max_unpool)


# -- to a given size -----------------------------------------------------------------------------------------
def _adaptive_avg_pool(input: Tensor, output_size: Any, *, rank: int) -> Tensor:
    """The mean of each of `output_size` nearly equal parts."""
    return getattr(input, f"adaptive_avg_pool{rank}d")(output_size)  # type: ignore[no-any-return]


def _adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False, *, rank: int) -> Any:
    """The maximum of each of `output_size` nearly equal parts; with return_indices also its index."""
    return getattr(input, f"adaptive_max_pool{rank}d")(output_size, return_indices)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = for_each_rank("adaptive_avg_pool", _adaptive_avg_pool)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = for_each_rank("adaptive_max_pool", _adaptive_max_pool)


# -- with return_indices=True --------------------------------------------------------------------------------
def _with_indices(pool: Any) -> Any:
    @functools.wraps(pool)
    def pooled(*args: Any, **kwargs: Any) -> Any:
        return pool(*args, **{**kwargs, "return_indices": True})
    pooled.__name__ = pooled.__qualname__ = f"{pool.__name__}_with_indices"
    pooled.__doc__ = f"`{pool.__name__}` with return_indices=True."
    return pooled


max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = \
    map(_with_indices, (max_pool1d, max_pool2d, max_pool3d))
adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices, adaptive_max_pool3d_with_indices = \
    map(_with_indices, (adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d))

__all__ = public_functions(globals())
