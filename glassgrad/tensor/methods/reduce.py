"""Many values to one: sums, products, extremes, their indices, running sums. In, out: tensors.

Integers narrower than 32 bits are summed as int32 or uint32, bools as int32 (PyTorch makes all of them int64); floats
narrower than 32 bits are summed in float32 and rounded at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.graph.uop import UOp
from glassgrad.tensor import checks
from glassgrad.tensor.autograd.autocast import exact
from glassgrad.tensor.base import Found, Self, TensorBase
from glassgrad.tensor.broadcast import Axis
from glassgrad.tensor.formulas import reductions

__all__ = ["ReduceMixin"]


class ReduceMixin(TensorBase):
    """Many values to one."""
    __slots__ = ()

    def _reduced_by(self, formula: Callable[..., UOp], what: str, axis: Axis, keepdim: bool, spelling: dict[str, Any],
                    name: str = "axis") -> Self:
        """A reduction along axes, which may come under another library's name."""
        if spelling:
            axis, keepdim = checks.spelled(what, spelling, **{name: axis}, keepdim=keepdim)
        checks.flags(what, keepdim=keepdim)
        return self._with(formula(self.uop, axis, keepdim))

    def _sum_dtype(self, dtype: DType) -> DType:
        """The type that sums and products of elements of this type have. A subclass may say another."""
        return reductions.sum_dtype(dtype)

    # -- sums ------------------------------------------------------------------------------------------------
    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The sum over all axes, or over those given.

        >>> Tensor([[1, 2], [3, 4]]).sum().item(), Tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
        (10, [4, 6])
        """
        if spelling:
            axis, keepdim, dtype = checks.spelled("sum", spelling, axis=axis, keepdim=keepdim, dtype=dtype)
        checks.flags("sum", keepdim=keepdim)
        kind = checks.dtype_or_none(dtype) or exact(self._sum_dtype(self.dtype))
        return self._with(reductions.total(self.uop, axis, keepdim, kind))

    def prod(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The product over all axes, or over those given.

        >>> Tensor([[1, 2], [3, 4]]).prod(axis=1).tolist()
        [2, 12]
        """
        if spelling:
            axis, keepdim, dtype = checks.spelled("prod", spelling, axis=axis, keepdim=keepdim, dtype=dtype)
        checks.flags("prod", keepdim=keepdim)
        kind = checks.dtype_or_none(dtype) or exact(self._sum_dtype(self.dtype))
        return self._with(reductions.product(self.uop, axis, keepdim, kind))

    def mean(self, axis: Axis = None, keepdim: bool = False, *, dtype: DType | str | None = None,
             **spelling: Any) -> Self:
        """The average; of integers a float32, of no numbers NaN; of the values in another type, if one is given.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).mean(axis=0).tolist()
        [2.0, 3.0]
        """
        if spelling:
            axis, keepdim, dtype = checks.spelled("mean", spelling, axis=axis, keepdim=keepdim, dtype=dtype)
        checks.flags("mean", keepdim=keepdim)
        x = self.uop if dtype is None else self.uop.cast(dtype_by_name(dtype))
        return self._with(reductions.mean(x, axis, keepdim))

    def var(self, axis: Axis = None, keepdim: bool = False, correction: int = 1, *,
            unbiased: bool | None = None, **spelling: Any) -> Self:
        """The variance: the mean of squared distances from the mean, over n - correction (1, or 0 if not `unbiased`).

        >>> Tensor([1.0, 2.0, 3.0]).var().item()
        1.0
        """
        return self._deviation(reductions.variance, "var", axis, keepdim, correction, unbiased, spelling)

    def std(self, axis: Axis = None, keepdim: bool = False, correction: int = 1, *,
            unbiased: bool | None = None, **spelling: Any) -> Self:
        """The standard deviation: the square root of the variance.

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
        axis, keepdim = checks.spelled("var_mean", spelling, axis=axis, keepdim=keepdim)
        spread = self._deviation(reductions.variance, "var_mean", axis, keepdim, correction, None, {})
        return spread, self._with(reductions.mean(self.uop, axis, keepdim))

    def std_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1,
                 **spelling: Any) -> tuple[Self, Self]:
        """The standard deviation and the mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).std_mean()]
        [1.0, 2.0]
        """
        axis, keepdim = checks.spelled("std_mean", spelling, axis=axis, keepdim=keepdim)
        spread = self._deviation(reductions.standard_deviation, "std_mean", axis, keepdim, correction, None, {})
        return spread, self._with(reductions.mean(self.uop, axis, keepdim))

    def _deviation(self, formula: Callable[..., UOp], what: str, axis: Axis, keepdim: bool, correction: int,
                unbiased: bool | None, spelling: dict[str, Any]) -> Self:
        """A variance or a standard deviation."""
        axis, keepdim = checks.spelled(what, spelling, axis=axis, keepdim=keepdim)
        checks.flags(what, keepdim=keepdim)
        if unbiased is not None:
            checks.flags(what, unbiased=unbiased)
            correction = int(unbiased)
        return self._with(formula(self.uop, axis, keepdim, checks.integer(what, correction=correction)))

    def logsumexp(self, axis: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """ln of the sum of e^x, without overflow; of nothing it is -inf.

        >>> Tensor([1000.0, 1000.0]).logsumexp().item() - 1000 > 0.69
        True
        """
        return self._reduced_by(reductions.logsumexp, "logsumexp", axis, keepdim, spelling)

    # -- extremes --------------------------------------------------------------------------------------------
    def amax(self, dim: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The largest value; NaN if there is one. Of equal ones each gets its share of the gradient.

        >>> Tensor([[1, 5], [7, 2]]).amax(1).tolist()
        [5, 7]
        """
        return self._reduced_by(reductions.largest, "amax", dim, keepdim, spelling, "dim")

    def amin(self, dim: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The smallest value; NaN if there is one. Of equal ones each gets its share of the gradient.

        >>> Tensor([[1, 5], [7, 2]]).amin(1).tolist()
        [1, 2]
        """
        return self._reduced_by(reductions.smallest, "amin", dim, keepdim, spelling, "dim")

    def aminmax(self, dim: Axis = None, keepdim: bool = False, **spelling: Any) -> tuple[Self, Self]:
        """The smallest and the largest.

        >>> [t.item() for t in Tensor([3, 1, 2]).aminmax()]
        [1, 3]
        """
        return (self._reduced_by(reductions.smallest, "aminmax", dim, keepdim, spelling, "dim"),
                self._reduced_by(reductions.largest, "aminmax", dim, keepdim, spelling, "dim"))

    def argmax(self, axis: int | None = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The place of the largest value, the first of equals; without an axis, in the flattened tensor.

        >>> Tensor([[1, 5], [7, 2]]).argmax(axis=1).tolist(), Tensor([[1, 5], [7, 2]]).argmax().item()
        ([1, 0], 2)
        """
        axis, keepdim = checks.spelled("argmax", spelling, axis=axis, keepdim=keepdim)
        checks.flags("argmax", keepdim=keepdim)
        return self._with(reductions.arg_extreme(self.uop, o.AMAX, axis, keepdim, "argmax"))

    def argmin(self, axis: int | None = None, keepdim: bool = False, **spelling: Any) -> Self:
        """The place of the smallest value, the first of equals; without an axis, in the flattened tensor.

        >>> Tensor([[1, 5], [7, 2]]).argmin(axis=1).tolist()
        [0, 1]
        """
        axis, keepdim = checks.spelled("argmin", spelling, axis=axis, keepdim=keepdim)
        checks.flags("argmin", keepdim=keepdim)
        return self._with(reductions.arg_extreme(self.uop, o.AMIN, axis, keepdim, "argmin"))

    # -- truth -----------------------------------------------------------------------------------------------
    def any(self, axis: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """Whether any value differs from zero.

        >>> Tensor([[0, 1], [0, 0]]).any(axis=1).tolist()
        [True, False]
        """
        return self._reduced_by(reductions.any_true, "any", axis, keepdim, spelling)

    def all(self, axis: Axis = None, keepdim: bool = False, **spelling: Any) -> Self:
        """Whether all values differ from zero.

        >>> Tensor([[1, 1], [0, 1]]).all(axis=1).tolist()
        [True, False]
        """
        return self._reduced_by(reductions.all_true, "all", axis, keepdim, spelling)

    def count_nonzero(self, axis: Axis = None, **spelling: Any) -> Self:
        """How many values differ from zero.

        >>> Tensor([0, 3, 5]).count_nonzero().item()
        2
        """
        axis, = checks.spelled("count_nonzero", spelling, axis=axis)
        return self._with(reductions.total(self.uop.cast(dtypes.bool), axis))

    # -- running ---------------------------------------------------------------------------------------------
    def cumsum(self, axis: int = 0, *, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The sum of each value and those before it; of the values in another type, if one is given.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        """
        return self._running(o.ADD, "cumsum", axis, dtype, spelling)

    def cumprod(self, axis: int = 0, *, dtype: DType | str | None = None, **spelling: Any) -> Self:
        """The product of each value and those before it; of the values in another type, if one is given.

        >>> Tensor([1, 2, 3]).cumprod().tolist()
        [1, 2, 6]
        """
        return self._running(o.MUL, "cumprod", axis, dtype, spelling)

    def _running(self, op: Op, what: str, axis: int, dtype: DType | str | None, spelling: dict[str, Any]) -> Self:
        axis, = checks.spelled(what, spelling, axis=axis)
        x = self.uop if dtype is None else self.uop.cast(dtype_by_name(dtype))
        return self._with(reductions.running(op, x, axis, self._sum_dtype(x.dtype)))

    def cummax(self, axis: int = 0, **spelling: Any) -> Found:
        """The largest so far, and where it stands (of equal ones the latest).

        >>> [t.tolist() for t in Tensor([1, 3, 2]).cummax()]
        [[1, 3, 3], [0, 1, 1]]
        """
        axis, = checks.spelled("cummax", spelling, axis=axis)
        return Found(*map(self._with, reductions.running_extreme(o.MAX, self.uop, axis)))

    def cummin(self, axis: int = 0, **spelling: Any) -> Found:
        """The smallest so far, and where it stands (of equal ones the latest).

        >>> [t.tolist() for t in Tensor([3, 1, 2]).cummin()]
        [[3, 1, 1], [0, 1, 1]]
        """
        axis, = checks.spelled("cummin", spelling, axis=axis)
        return Found(*map(self._with, reductions.running_extreme(o.MIN, self.uop, axis)))
