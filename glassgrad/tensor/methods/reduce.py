"""Many values to one: sums, products, extremes, their places, running sums. In, out: tensors.

Integers narrower than 32 bits are summed as int32 or uint32, truth values as int32 (PyTorch makes all of them
int64); floats narrower than 32 bits are summed in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Scan
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.graph.symbolic import Length
from glassgrad.compiler.graph.uop import UOp, const, full
from glassgrad.tensor.autograd.autocast import exact
from glassgrad.tensor.broadcast import Axis, resolve_axes, resolve_axis
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.methods.trigonometry import Trigonometry

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Found", "Reduce"]


class Found(NamedTuple):
    """Values, and the places they came from."""
    values: Any
    indices: Any


def sum_dtype(dtype: DType) -> DType:
    """The type a sum comes out in."""
    if dtype.kind == "f" or dtype.bits >= 32:
        return dtype
    return dtypes.uint32 if dtype.kind == "u" else dtypes.int32


class Reduce(Trigonometry):
    """Many values to one."""
    __slots__ = ()

    def _reduce(self, op: Op, axis: Any, keepdim: bool, dtype: DType | None = None) -> Self:
        """Fold axes; the axes stay with size 1 if `keepdim`."""
        x = self.uop
        axes = resolve_axes(axis, len(x.shape), op.name.lower().replace("amax", "max").replace("amin", "min"))
        out = dtype or x.dtype
        wide = out.accumulator if op is o.SUM or op is o.PROD else out
        y = x.cast(wide).reduce(op, axes).cast(out)
        if not keepdim:
            y = y.reshape(tuple(n for i, n in enumerate(x.shape) if i not in axes))
        return self._with(y)

    def _count(self, axis: Any, what: str) -> Any:
        shape = self.uop.shape
        return math.prod(shape[a] for a in resolve_axes(axis, len(shape), what))

    def _nonempty(self, axis: Any, what: str) -> None:
        if self._count(axis, what) == 0:
            raise ShapeError(f"{what} of no values has no answer", given=f"shape {self.uop.shape}, axis={axis}",
                             expected="at least one value to choose from",
                             fix="check for empty tensors before this line")

    def _sum_dtype(self) -> DType:
        """The type that sums and products of these elements have. A subclass may say another."""
        return sum_dtype(self.uop.dtype)

    # -- sums ------------------------------------------------------------------------------------------------
    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """The sum over all axes, or over those given.

        >>> Tensor([[1, 2], [3, 4]]).sum().item(), Tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
        (10, [4, 6])
        """
        out = dtype_by_name(dtype) if dtype is not None else exact(self._sum_dtype())
        return self._reduce(o.SUM, axis, keepdim, out)

    def prod(self, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None) -> Self:
        """The product over all axes, or over those given.

        >>> Tensor([[1, 2], [3, 4]]).prod(axis=1).tolist()
        [2, 12]
        """
        out = dtype_by_name(dtype) if dtype is not None else exact(self._sum_dtype())
        return self._reduce(o.PROD, axis, keepdim, out)

    def mean(self, axis: Axis = None, keepdim: bool = False, *, dtype: DType | str | None = None) -> Self:
        """The average; of integers a float32, of no numbers NaN; of the values in another type, if one is given.

        >>> Tensor([[1.0, 2.0], [3.0, 4.0]]).mean(axis=0).tolist()
        [2.0, 3.0]
        """
        x = self if dtype is None else self.cast(dtype)
        x = x if x.uop.dtype.kind == "f" else x.cast(dtypes.default_float)
        wide = x.uop.dtype.accumulator
        return (x.cast(wide)._reduce(o.SUM, axis, keepdim) / x._count(axis, "mean")).cast(exact(x.dtype))

    def var(self, axis: Axis = None, keepdim: bool = False, correction: int = 1, *,
            unbiased: bool | None = None) -> Self:
        """The variance: the mean of squared distances from the mean, over n - correction (1, or 0 if not `unbiased`).

        >>> Tensor([1.0, 2.0, 3.0]).var().item()
        1.0
        """
        x = self if self.uop.dtype.kind == "f" else self.cast(dtypes.default_float)
        wide = x.cast(x.uop.dtype.accumulator)
        squares = (wide - wide.mean(axis, keepdim=True)).square().sum(axis, keepdim)
        left = x._count(axis, "var") - (correction if unbiased is None else int(unbiased))
        left = left if isinstance(left, Length) else max(0, left)      # one value less than none: nan, as for none
        return (squares / left).cast(x.dtype)

    def var_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> tuple[Self, Self]:
        """The variance and the mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).var_mean()]
        [1.0, 2.0]
        """
        return self.var(axis, keepdim, correction), self.mean(axis, keepdim)

    def std(self, axis: Axis = None, keepdim: bool = False, correction: int = 1, *,
            unbiased: bool | None = None) -> Self:
        """The standard deviation: the square root of the variance.

        >>> Tensor([1.0, 2.0, 3.0]).std().item()
        1.0
        """
        variance = self.var(axis, keepdim, correction, unbiased=unbiased)
        flat = variance.eq(0)              # equal values: the root is too steep there, and the gradient is 0
        return flat.where(0.0, flat.where(1.0, variance).sqrt())

    def std_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> tuple[Self, Self]:
        """The standard deviation and the mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).std_mean()]
        [1.0, 2.0]
        """
        return self.std(axis, keepdim, correction), self.mean(axis, keepdim)

    def norm(self, p: float | str = 2, dim: Axis = None, keepdim: bool = False) -> Self:
        """The length of a vector: (sum |x|^p)^(1/p); p may be infinite.

        >>> Tensor([3.0, 4.0]).norm().item()
        5.0
        """
        if isinstance(p, str):
            if p != "fro":
                raise InputError("there is no such norm", given=f"p={p!r}", expected='a number or "fro"',
                                 fix="write x.norm(2), for example")
            p = 2
        x = self.abs()
        if p == 2:
            return x.square().sum(dim, keepdim).sqrt()
        if p == math.inf or p == -math.inf:
            return x.amax(dim, keepdim) if p > 0 else x.amin(dim, keepdim)
        if p == 0:
            return x.ne(0).cast(self._float_node().dtype).sum(dim, keepdim)
        if p == 1:
            return x.sum(dim, keepdim)
        return (x ** p).sum(dim, keepdim) ** (1.0 / p)

    def logsumexp(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """ln of the sum of e^x, without overflow; of nothing it is -inf.

        >>> Tensor([1000.0, 1000.0]).logsumexp().item() - 1000 > 0.69
        True
        """
        x = self._with(self._float_node())
        if self._count(axis, "logsumexp") == 0:
            return x.sum(axis, keepdim).log()
        top = x.amax(axis, keepdim=True).detach()
        top = top.abs().eq(math.inf).where(0.0, top)
        total = (x - top).exp().sum(axis, keepdim).log()
        return total + (top if keepdim else top.reshape(total.shape))

    # -- extremes --------------------------------------------------------------------------------------------
    def amax(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """The largest value; NaN if there is one. Of equal ones each gets its share of the gradient.

        >>> Tensor([[1, 5], [7, 2]]).amax(1).tolist()
        [5, 7]
        """
        self._nonempty(dim, "max")
        return self._reduce(o.AMAX, dim, keepdim)

    def amin(self, dim: Axis = None, keepdim: bool = False) -> Self:
        """The smallest value; NaN if there is one. Of equal ones each gets its share of the gradient.

        >>> Tensor([[1, 5], [7, 2]]).amin(1).tolist()
        [1, 2]
        """
        self._nonempty(dim, "min")
        return self._reduce(o.AMIN, dim, keepdim)

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The place of the largest value, the first of equals; without an axis, in the flattened tensor.

        >>> Tensor([[1, 5], [7, 2]]).argmax(axis=1).tolist(), Tensor([[1, 5], [7, 2]]).argmax().item()
        ([1, 0], 2)
        """
        return self._place_of("argmax", o.AMAX, axis, keepdim)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The place of the smallest value, the first of equals; without an axis, in the flattened tensor.

        >>> Tensor([[1, 5], [7, 2]]).argmin(axis=1).tolist()
        [0, 1]
        """
        return self._place_of("argmin", o.AMIN, axis, keepdim)

    def _place_of(self, what: str, op: Op, axis: int | None, keepdim: bool) -> Self:
        if axis is None:
            found = self.flatten()._place_of(what, op, 0, False)
            return found.reshape((1,) * self.ndim) if keepdim else found
        x = self.uop
        at = resolve_axis(axis, len(x.shape), what)
        if not x.shape:
            return self._with(const(0, dtypes.default_int))
        self._nonempty(at, what)
        n = x.shape[at]
        extreme = x.reduce(op, (at,)).expand(x.shape)
        chosen = x.eq(extreme)
        if x.dtype.kind == "f":
            chosen = chosen | x.ne(x)   # a NaN is the extreme, and equals nothing
        places = counting(n, dtypes.default_int).reshape((n,) + (1,) * (len(x.shape) - at - 1)).broadcast(x.shape)
        first = chosen.where(places, n).reduce(o.AMIN, (at,))
        return self._with(first if keepdim else first.reshape(x.shape[:at] + x.shape[at + 1:]))

    # -- truth -----------------------------------------------------------------------------------------------
    def any(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether any value differs from zero.

        >>> Tensor([[0, 1], [0, 0]]).any(axis=1).tolist()
        [True, False]
        """
        return self.bool()._reduce(o.AMAX, axis, keepdim)

    def all(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether all values differ from zero.

        >>> Tensor([[1, 1], [0, 1]]).all(axis=1).tolist()
        [True, False]
        """
        return self.bool()._reduce(o.AMIN, axis, keepdim)

    def count_nonzero(self, axis: Axis = None) -> Self:
        """How many values differ from zero.

        >>> Tensor([0, 3, 5]).count_nonzero().item()
        2
        """
        return self.bool().sum(axis)

    # -- running ---------------------------------------------------------------------------------------------
    def _scan(self, op: Op, axis: int, dtype: DType) -> Self:
        x = self.uop.cast(dtype)
        at = resolve_axis(axis, len(x.shape), f"cum{ {o.ADD: 'sum', o.MUL: 'prod', o.MAX: 'max', o.MIN: 'min'}[op] }")
        if not x.shape:
            return self._with(x)
        return self._with(UOp(o.SCAN, dtype.accumulator, (x.cast(dtype.accumulator),), Scan(at, op)).cast(dtype))

    def cumsum(self, axis: int = 0, *, dtype: DType | str | None = None) -> Self:
        """The sum of each value and those before it; of the values in another type, if one is given.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        """
        x = self if dtype is None else self.cast(dtype)
        return x._scan(o.ADD, axis, x._sum_dtype())

    def cumprod(self, axis: int = 0, *, dtype: DType | str | None = None) -> Self:
        """The product of each value and those before it; of the values in another type, if one is given.

        >>> Tensor([1, 2, 3]).cumprod().tolist()
        [1, 2, 6]
        """
        x = self if dtype is None else self.cast(dtype)
        return x._scan(o.MUL, axis, x._sum_dtype())

    def cummax(self, axis: int = 0) -> Found:
        """The largest so far, and where it stands (of equal ones the latest).

        >>> [t.tolist() for t in Tensor([1, 3, 2]).cummax()]
        [[1, 3, 3], [0, 1, 1]]
        """
        return self._so_far(o.MAX, axis)

    def cummin(self, axis: int = 0) -> Found:
        """The smallest so far, and where it stands (of equal ones the latest).

        >>> [t.tolist() for t in Tensor([3, 1, 2]).cummin()]
        [[3, 1, 1], [0, 1, 1]]
        """
        return self._so_far(o.MIN, axis)

    def _so_far(self, op: Op, axis: int) -> Found:
        found = self._scan(op, axis, self.uop.dtype)
        if not self.ndim:
            return Found(found, self._with(full((), 0, dtypes.int32)))
        at = resolve_axis(axis, self.ndim, "cummax" if op is o.MAX else "cummin")
        tail = (1,) * (self.ndim - at - 1)
        place = self._with(counting(self.shape[at], dtypes.int32).reshape((self.shape[at], *tail)))
        reached = (self == found) | self.isnan() if self.uop.dtype.kind == "f" else self == found
        return Found(found, reached.where(place, 0)._scan(o.MAX, axis, dtypes.int32))
