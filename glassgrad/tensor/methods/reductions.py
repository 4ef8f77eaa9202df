"""Reduce many values to one: sums, products, extremes, running sums, counts in bins, covariances, areas. In, out:
tensors.

Sums and products of integers and bools, also running ones, are int64; those of uint64 are uint64, because int64 does
not hold them. `dtype` chooses another type: int32 is faster if it holds the result. Floats narrower than 32 bits are
summed in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import DType, UOp, dtypes, ops as o
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.autograd.autocast import exact
from glassgrad.tensor.formulas import (any_true, diagonal, equal, flatten, largest, reductions,
                                       running as running_total, smallest, stack, statistics, sum_dtype, total,
                                       unsqueeze)
from glassgrad.tensor.methods import (REQUIRED, Axis, Found, Self, TensorBase, arguments, computed, of_kind, two_axes,
                                      working_axis)


class ReductionsMixin(TensorBase):
    """Methods that reduce many values to one."""
    __slots__ = ()

    # -- sums ------------------------------------------------------------------------------------------------
    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The sum over all axes, or over those given; of integers and bools in int64 (uint64: in uint64), unless a type
        is given.

        >>> Tensor([[1, 2], [3, 4]]).sum().item(), Tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
        (10, [4, 6])
        >>> Tensor([1, 2]).sum().dtype, Tensor([1, 2]).sum(dtype=dtypes.int32).dtype
        (dtypes.int64, dtypes.int32)
        """
        axis, keepdim, kind = arguments("sum", spelling, axis=axis, keepdim=keepdim, dtype=dtype)
        return self._with(reductions.total(self.uop, axis, keepdim, kind or exact(self._sum_dtype(self.dtype))))

    def trace(self) -> Self:
        """The sum of a matrix' diagonal; its type is that of `sum`.

        >>> Tensor([[1, 2], [3, 4]]).trace().item()
        5
        """
        two_axes("trace", self.shape)
        return self._with(reductions.total(diagonal(self.uop), -1, dtype=exact(self._sum_dtype(self.dtype))))

    def prod(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The product over all axes, or over those given; its type is that of `sum`.

        >>> Tensor([[1, 2], [3, 4]]).prod(axis=1).tolist()
        [2, 12]
        """
        axis, keepdim, kind = arguments("prod", spelling, axis=axis, keepdim=keepdim, dtype=dtype)
        return self._with(reductions.product(self.uop, axis, keepdim, kind or exact(self._sum_dtype(self.dtype))))

    def mean(self, axis: Axis = None, keepdim: bool = False, *, dtype: DType | str | None = None,
             **spelling: Any) -> Self:
        """The average: a float32 for integers, NaN for no values; with `dtype`, of the values cast to that type.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).mean(axis=0).tolist()
        [2.0, 3.0]
        """
        axis, keepdim, kind = arguments("mean", spelling, axis=axis, keepdim=keepdim, dtype=dtype)
        return self._with(reductions.mean(self.uop.cast(kind or self.dtype), axis, keepdim))

    def var(self, axis: Axis = None, keepdim: bool = False, correction: int = 1, *,
            unbiased: bool | None = None, **spelling: Any) -> Self:
        """The variance: the mean of squared distances from the mean, over n - correction (1, or 0 if not `unbiased`).
        Squares of float32, and of 16 bits, are float32.

        >>> Tensor([1.0, 2.0, 3.0]).var().item()
        1.0
        """
        return self._deviation(reductions.variance, "var", axis, keepdim, correction, unbiased, spelling)

    def std(self, axis: Axis = None, keepdim: bool = False, correction: int = 1, *,
            unbiased: bool | None = None, **spelling: Any) -> Self:
        """The standard deviation: the square root of the variance. Where that is infinite (float32: of distances above
        1.8e19) or 0 (below 1e-23), so is this; PyTorch adds squares of float32 in float64.

        >>> Tensor([1.0, 2.0, 3.0]).std().item()
        1.0
        """
        return self._deviation(reductions.standard_deviation, "std", axis, keepdim, correction, unbiased, spelling)

    def var_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1,
                 **spelling: Any) -> tuple[Self, Self]:
        """The variance and the mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).var_mean()]
        [1.0, 2.0]
        """
        axis, keepdim = arguments("var_mean", spelling, axis=axis, keepdim=keepdim)
        return self.var(axis, keepdim, correction), self.mean(axis, keepdim)

    def std_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1,
                 **spelling: Any) -> tuple[Self, Self]:
        """The standard deviation and the mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).std_mean()]
        [1.0, 2.0]
        """
        axis, keepdim = arguments("std_mean", spelling, axis=axis, keepdim=keepdim)
        return self.std(axis, keepdim, correction), self.mean(axis, keepdim)

    def _deviation(self, formula: Callable[..., UOp], what: str, axis: Axis, keepdim: bool, correction: int,
                unbiased: bool | None, spelling: dict[str, Any]) -> Self:
        """Compute a variance or a standard deviation."""
        axis, keepdim, correction = arguments(what, spelling, axis=axis, keepdim=keepdim, correction=correction)
        if unbiased is not None:
            correction = int(of_kind("bool", what, unbiased=unbiased))
        return self._with(formula(self.uop, axis, keepdim, correction))

    def logsumexp(self, axis: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """ln of the sum of e^x, without overflow; -inf for no values.

        >>> Tensor([1000.0, 1000.0]).logsumexp().item() - 1000 > 0.69
        True
        """
        return computed(self, reductions.logsumexp, "logsumexp", spelling, axis=axis, keepdim=keepdim)

    # -- skipping NaN ----------------------------------------------------------------------------------------
    def nansum(self, axis: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The sum of all values that are not NaN.

        >>> Tensor([1.0, float("nan"), 2.0]).nansum().item()
        3.0
        """
        axis, keepdim = arguments("nansum", spelling, axis=axis, keepdim=keepdim)
        return self._with(reductions.nan_sum(self.uop.cast(self._sum_dtype(self.dtype)), axis, keepdim))

    def nanmean(self, axis: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The mean of all values that are not NaN.

        >>> Tensor([1.0, float("nan"), 2.0]).nanmean().item()
        1.5
        """
        return computed(self, reductions.nan_mean, "nanmean", spelling, axis=axis, keepdim=keepdim)

    # -- extremes --------------------------------------------------------------------------------------------
    def amax(self, dim: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The largest value; NaN if there is one. Equal largest values share the gradient.

        >>> Tensor([[1, 5], [7, 2]]).amax(1).tolist()
        [5, 7]
        """
        return computed(self, reductions.largest, "amax", spelling, dim=dim, keepdim=keepdim)

    def amin(self, dim: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The smallest value; NaN if there is one. Equal smallest values share the gradient.

        >>> Tensor([[1, 5], [7, 2]]).amin(1).tolist()
        [1, 2]
        """
        return computed(self, reductions.smallest, "amin", spelling, dim=dim, keepdim=keepdim)

    def aminmax(self, dim: Axis = None, keepdim: bool = False, **spelling: Any) -> tuple[Self, Self]:
        """The smallest and the largest value.

        >>> [t.item() for t in Tensor([3, 1, 2]).aminmax()]
        [1, 3]
        """
        dim, keepdim = arguments("aminmax", spelling, dim=dim, keepdim=keepdim)
        return self._with(smallest(self.uop, dim, keepdim)), self._with(largest(self.uop, dim, keepdim))

    def argmax(self, axis: int | None = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The index of the largest value, the first of equal ones; without an axis, in the flattened tensor.

        >>> Tensor([[1, 5], [7, 2]]).argmax(axis=1).tolist(), Tensor([[1, 5], [7, 2]]).argmax().item()
        ([1, 0], 2)
        """
        return computed(self, partial(reductions.arg_extreme, o.AMAX), "argmax", spelling, axis=axis, keepdim=keepdim)

    def argmin(self, axis: int | None = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The index of the smallest value, the first of equal ones; without an axis, in the flattened tensor.

        >>> Tensor([[1, 5], [7, 2]]).argmin(axis=1).tolist()
        [0, 1]
        """
        return computed(self, partial(reductions.arg_extreme, o.AMIN), "argmin", spelling, axis=axis, keepdim=keepdim)

    # -- truth -----------------------------------------------------------------------------------------------
    def any(self, axis: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """Whether any value differs from zero.

        >>> Tensor([[0, 1], [0, 0]]).any(axis=1).tolist()
        [True, False]
        """
        return computed(self, reductions.any_true, "any", spelling, axis=axis, keepdim=keepdim)

    def all(self, axis: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """Whether all values differ from zero.

        >>> Tensor([[1, 1], [0, 1]]).all(axis=1).tolist()
        [True, False]
        """
        return computed(self, reductions.all_true, "all", spelling, axis=axis, keepdim=keepdim)

    def count_nonzero(self, axis: Axis = None, **spelling: Any) -> Self:
        """The number of values that differ from zero.

        >>> Tensor([0, 3, 5]).count_nonzero().item()
        2
        """
        return computed(self, lambda x, axis: total(x.cast(dtypes.bool), axis), "count_nonzero", spelling, axis=axis)

    # -- running ---------------------------------------------------------------------------------------------
    def cumsum(self, axis: int = 0, *, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The sum of each value and all before it, in the type of `sum`, or in the given type.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        """
        return self._running(o.ADD, "cumsum", axis, dtype, spelling)

    def cumprod(self, axis: int = 0, *, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The product of each value and all before it, in the type of `sum`, or in the given type.

        >>> Tensor([1, 2, 3]).cumprod().tolist()
        [1, 2, 6]
        """
        return self._running(o.MUL, "cumprod", axis, dtype, spelling)

    def _running(self, op: o.Op, what: str, axis: int, dtype: DType | str | None, spelling: dict[str, Any]) -> Self:
        axis, kind = arguments(what, spelling, axis=axis, dtype=dtype)
        return self._with(reductions.running(op, self.uop, axis, kind or self._sum_dtype(self.dtype)))

    def cummax(self, axis: int = 0, **spelling: Any) -> Found:
        """The largest value so far, and its index (of equal values the latest).

        >>> [t.tolist() for t in Tensor([1, 3, 2]).cummax()]
        [[1, 3, 3], [0, 1, 1]]
        """
        return self._running_extreme(o.MAX, *arguments("cummax", spelling, axis=axis))

    def cummin(self, axis: int = 0, **spelling: Any) -> Found:
        """The smallest value so far, and its index (of equal values the latest).

        >>> [t.tolist() for t in Tensor([3, 1, 2]).cummin()]
        [[3, 1, 1], [0, 1, 1]]
        """
        return self._running_extreme(o.MIN, *arguments("cummin", spelling, axis=axis))

    def _running_extreme(self, op: o.Op, axis: int) -> Found:
        return Found(*map(self._with, reductions.running_extreme(op, self.uop, axis)))

    # -- counts and membership -------------------------------------------------------------------------------
    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """The number of values in each of `bins` equal parts of the range from min to max; if both are 0, of the whole
        range of values.

        >>> Tensor([1.0, 2.0, 1.0]).histc(4, 0, 3).tolist()
        [0.0, 2.0, 1.0, 0.0]
        """
        bins, low, high = arguments("histc", bins=bins, min=min, max=max)
        x = flatten(self.uop)
        if bins > 0 and low == high and self.numel():
            low, high = running.numbers_of(stack([smallest(x), largest(x)]).cast(dtypes.float64), self.device)
        if bins < 1 or not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise InputError("histc cannot make these bins", given=f"bins={bins}, min={low}, max={high}",
                             expected="at least 1 bin, and finite limits in order",
                             fix="write x.histc(10), for example")
        if low == high:
            low, high = low - 1, high + 1
        return self._with(statistics.histogram(x, bins, low, high))

    def isin(self, test_elements: Any, *, invert: bool = False) -> Self:
        """Whether each value is among others (with `invert`, whether it is not).

        >>> Tensor([1, 2, 3]).isin(Tensor([3, 1])).tolist()
        [True, False, True]
        """
        invert, = arguments("isin", invert=invert)
        others = test_elements if isinstance(test_elements, TensorBase) else \
            self._made_of(test_elements, device=self.device)
        found = any_true(equal(unsqueeze(self.uop, -1), flatten(others.uop)), -1)
        return self._with(~found if invert else found, others)

    # -- areas -----------------------------------------------------------------------------------------------
    def _trapezoids(self, what: str, spelling: dict[str, Any], **own: Any) -> tuple[UOp, int]:
        """Compute the area under the line between each two adjacent values along an axis; return it and the axis."""
        x, dx, dim = arguments(what, spelling, **own)
        axis = working_axis(dim, self.ndim, what)
        of_x = x.shape[axis if x.ndim == self.ndim else -1] if x is not None and x.ndim else None
        if x is not None and of_x != self.shape[axis]:
            raise ShapeError(f"{what} needs a position per value", given=f"x of shape {x.shape} for {self.shape}",
                             expected=f"{self.shape[axis]} positions along the axis", fix="leave x out, and pass dx")
        positions = None if x is None else x.uop
        return statistics.trapezoids(self.uop, positions, dx, axis), axis

    def trapezoid(self, x: Self | None = None, *, dx: float = 1.0, dim: int = -1, **spelling: Any) -> Self:
        """The integral along an axis, by straight lines between the values, which are dx apart, or at positions x.

        >>> Tensor([1.0, 2.0, 4.0]).trapezoid().item()
        4.5
        """
        areas, axis = self._trapezoids("trapezoid", spelling, x=x, dx=dx, dim=dim)
        return self._with(total(areas, axis), x)

    trapz = trapezoid

    def cumulative_trapezoid(self, x: Self | None = None, *, dx: float = 1.0, dim: int = -1, **spelling: Any) -> Self:
        """`trapezoid` up to each value except the first.

        >>> Tensor([1.0, 2.0, 4.0]).cumulative_trapezoid().tolist()
        [1.5, 4.5]
        """
        areas, axis = self._trapezoids("cumulative_trapezoid", spelling, x=x, dx=dx, dim=dim)
        return self._with(running_total(o.ADD, areas, axis, sum_dtype(areas.dtype)), x)

    def renorm(self, p: float = REQUIRED, dim: int = REQUIRED, maxnorm: float = REQUIRED, **spelling: Any) -> Self:
        """Every slice along an axis, scaled to a p-norm of maxnorm if its norm is larger.

        >>> Tensor([[3.0, 4.0], [0.0, 1.0]]).renorm(2, 0, 1.0).numpy().round(4)
        array([[0.6, 0.8],
               [0. , 1. ]], dtype=float32)
        """
        p, dim, limit = arguments("renorm", spelling, p=p, dim=dim, maxnorm=maxnorm)
        return self._formula(reductions.limited_norm, p, working_axis(dim, self.ndim, "renorm"), limit)

    def cov(self, correction: int = 1) -> Self:
        """The covariance of variables (rows) over their observations (columns).

        >>> Tensor([[1.0, 2.0, 3.0]]).cov().item()
        1.0
        """
        return self._with(statistics.covariance(self._variables("cov"), *arguments("cov", correction=correction)))

    def corrcoef(self) -> Self:
        """The correlation of variables (rows): their covariance divided by both standard deviations.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).corrcoef().numpy().round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
        """
        return self._with(statistics.correlation(self._variables("corrcoef")))

    def _variables(self, what: str) -> UOp:
        if self.ndim > 2:
            raise ShapeError(f"{what} is of a matrix of variables", given=f"shape {self.shape}",
                             expected="(variables, observations), or one row", fix="reshape it first")
        return self.uop
