"""What a set of numbers is like: the most frequent, counts in bins, covariances, areas. In, out: tensors."""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor import checks, evaluate as running
from glassgrad.tensor.base import Found, Self, TensorBase
from glassgrad.tensor.broadcast import working_axis
from glassgrad.tensor.checks import REQUIRED, arguments
from glassgrad.tensor.formulas import statistics
from glassgrad.tensor.formulas.arithmetic import equal
from glassgrad.tensor.formulas.movement import flatten, squeeze, unsqueeze
from glassgrad.tensor.formulas.reductions import any_true, largest, running as running_total, smallest, sum_dtype, total


class StatisticsMixin(TensorBase):
    """What a set of numbers is like."""
    __slots__ = ()

    def mode(self, dim: int = -1, keepdim: bool = False, **spelling: Any) -> Found:
        """The most frequent value along an axis (of equally frequent ones the smallest), and its last index.

        >>> [t.tolist() for t in Tensor([1, 3, 3, 2]).mode()]
        [3, 2]
        """
        dim, keepdim = arguments("mode", spelling, dim=dim, keepdim=keepdim)
        if not self.ndim:
            return Found(self, self._with(full((), 0, dtypes.int32)))
        axis = working_axis(dim, self.ndim, "mode")
        if not self.shape[axis]:
            raise ShapeError("there is no most frequent of nothing", given=f"shape {self.shape}",
                             expected="at least one element along the axis", fix="check where the elements went")
        found = statistics.mode(self.uop, axis)
        return Found(*(self._with(node if keepdim else squeeze(node, axis)) for node in found))

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Self:
        """How many values fall into each of so many equal parts from min to max (both 0: the least to the greatest).

        >>> Tensor([1.0, 2.0, 1.0]).histc(4, 0, 3).tolist()
        [0.0, 2.0, 1.0, 0.0]
        """
        bins, low, high = arguments("histc", bins=bins, min=min, max=max)
        if bins < 1 or not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise InputError("histc cannot make these bins", given=f"bins={bins}, min={low}, max={high}",
                             expected="at least 1 bin, and finite limits in order",
                             fix="write x.histc(10), for example")
        x = flatten(self.uop)
        if low == high and self.numel():
            low, high = (float(running.number_in(node.cast(dtypes.float64), self.device))
                         for node in (smallest(x), largest(x)))
        if low == high:
            low, high = low - 1, high + 1
        return self._with(statistics.histogram(x, bins, low, high))

    def isin(self, test_elements: Any, *, invert: bool = False) -> Self:
        """Whether each value is among others (or is not, with `invert`).

        >>> Tensor([1, 2, 3]).isin(Tensor([3, 1])).tolist()
        [True, False, True]
        """
        invert, = arguments("isin", invert=invert)
        others = test_elements if isinstance(test_elements, TensorBase) else \
            self.__class__(test_elements, device=self.device)
        found = any_true(equal(unsqueeze(self.uop, -1), flatten(others.uop)), -1)
        return self._with(~found if invert else found, others)

    # -- areas -----------------------------------------------------------------------------------------------
    def _trapezoids(self, what: str, x: Self | None, dx: float, dim: int) -> tuple[UOp, int]:
        """The area between each two neighbours and 0 along an axis, and the axis."""
        x, dx = arguments(what, x=x, dx=dx)
        axis = working_axis(dim, self.ndim, what)
        if x is not None and not x.ndim:
            raise ShapeError(f"{what} needs a position per value", given="x of shape ()", expected="at least 1 axis",
                             fix="leave x out, and pass dx")
        positions = None if x is None else x.uop
        return statistics.trapezoids(self.uop, positions, dx, axis), axis

    def trapezoid(self, x: Self | None = None, *, dx: float = 1.0, dim: int = -1, **spelling: Any) -> Self:
        """The integral along an axis by straight lines between values, which are dx apart, or at positions x.

        >>> Tensor([1.0, 2.0, 4.0]).trapezoid().item()
        4.5
        """
        dim, = checks.spelled("trapezoid", spelling, dim=dim)
        areas, axis = self._trapezoids("trapezoid", x, dx, dim)
        return self._with(total(areas, axis), x)

    trapz = trapezoid

    def cumulative_trapezoid(self, x: Self | None = None, *, dx: float = 1.0, dim: int = -1, **spelling: Any) -> Self:
        """The same up to each value but the first.

        >>> Tensor([1.0, 2.0, 4.0]).cumulative_trapezoid().tolist()
        [1.5, 4.5]
        """
        dim, = checks.spelled("cumulative_trapezoid", spelling, dim=dim)
        areas, axis = self._trapezoids("cumulative_trapezoid", x, dx, dim)
        return self._with(running_total(o.ADD, areas, axis, sum_dtype(areas.dtype)), x)

    def renorm(self, p: float = REQUIRED, dim: int = REQUIRED, maxnorm: float = REQUIRED, **spelling: Any) -> Self:
        """Every slice along an axis with a p-norm above maxnorm made that long.

        >>> Tensor([[3.0, 4.0], [0.0, 1.0]]).renorm(2, 0, 1.0).numpy().round(4)
        array([[0.6, 0.8],
               [0. , 1. ]], dtype=float32)
        """
        p, dim, limit = arguments("renorm", spelling, p=p, dim=dim, maxnorm=maxnorm)
        return self._with(statistics.renorm(self.uop, p, working_axis(dim, self.ndim, "renorm"), limit))

    def cov(self, correction: int = 1) -> Self:
        """The covariance of variables (rows) over their observations (columns).

        >>> Tensor([[1.0, 2.0, 3.0]]).cov().item()
        1.0
        """
        return self._with(statistics.covariance(self._variables("cov"), *arguments("cov", correction=correction)))

    def corrcoef(self) -> Self:
        """The correlation of variables (rows): their covariance over both deviations.

        >>> Tensor([[1.0, 2.0], [2.0, 4.0]]).corrcoef().numpy().round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
        """
        return self._with(statistics.correlation(self._variables("corrcoef")))

    def _variables(self, what: str) -> UOp:
        if self.ndim > 2:
            raise ShapeError(f"{what} is of a matrix of variables", given=f"shape {self.shape}",
                             expected="(variables, observations), or one row", fix="reshape it first")
        return self.uop
