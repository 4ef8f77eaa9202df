"""Order and choice: sort, topk, median, quantile, unique, nonzero. In, out: tensors; places are int32.

As in PyTorch, NaN counts as greater than every number and equal values keep their order. How many elements `nonzero`,
`masked_select` and `unique` find is known only by computing it: they run what they need at once, unless given a `size`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Scan, Scatter
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor import evaluate as running, index_check
from glassgrad.tensor.base import Core
from glassgrad.tensor.broadcast import broadcast_shape, resolve_axis, shape_from
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.formulas.order import SHORT, key_of, largest_of, order_of
from glassgrad.tensor.methods.neural.layer_ops import Functional
from glassgrad.tensor.methods.reduce import Found

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Sorting"]


class Sorting(Functional):
    """Order and choice."""
    __slots__ = ()

    # -- order -----------------------------------------------------------------------------------------------
    def _rows(self, axis: int) -> Self:
        """(rows, n): an axis last and the others made one."""
        n = self.shape[axis] if self.ndim else 1
        return (
            self.reshape(1, 1)
            if not self.ndim
            else self.movedim(axis, -1).reshape(math.prod(self.shape) // n if n else 0, n)
        )

    def _unrows(self, rows: Self, axis: int) -> Self:
        """The opposite: rows of any length back under this tensor's shape."""
        if not self.ndim:
            return rows.reshape(())
        others = self.shape[:axis] + self.shape[axis + 1:]
        return rows.reshape(*others, rows.shape[-1]).movedim(-1, axis)

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Self:
        """The places that put an axis in order; equal values keep theirs, whatever `stable` says.

        >>> Tensor([3, 1, 2]).argsort().tolist(), Tensor([3, 1, 2]).argsort(descending=True).tolist()
        ([1, 2, 0], [0, 2, 1])
        """
        axis = resolve_axis(dim, self.ndim, "argsort")
        rows = self.detach()._rows(axis)
        return self._unrows(self._with(order_of(key_of(rows.uop, descending))), axis) if self.numel() else \
            self._with(full(self.shape, 0, dtypes.int32))

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Found:
        """An axis in order, and the places its values came from; equal values keep theirs, whatever `stable` says.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).sort()]
        [[1, 2, 3], [1, 2, 0]]
        """
        order = self.argsort(dim, descending)
        return Found(self._known_places(dim, order) if self.ndim and self.numel() else self, order)

    def _known_places(self, dim: int, places: Self) -> Self:
        """`gather` for places that cannot be out of range."""
        with index_check.trusted():
            return self.gather(dim, places)

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> Found:
        """The k largest (or smallest) values along an axis, in order, and their places.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).topk(2)]
        [[3, 2], [0, 2]]
        """
        axis = resolve_axis(dim, self.ndim, "topk")
        n = self.shape[axis] if self.ndim else 1
        if not 0 <= k <= n:
            raise InputError(
                "topk cannot choose this many",
                given=f"k={k} of an axis of {n}",
                expected=f"k from 0 to {n}",
                fix="choose a smaller k",
            )
        if not self.ndim:
            return self.sort() if k else Found(self.reshape(1)[:0], self._with(full((0,), 0, dtypes.int32)))
        if n <= SHORT or 4 * k > n or not self.numel():
            places = self.argsort(dim, largest).shrink(
                [(0, k) if a == axis else (0, m) for a, m in enumerate(self.shape)]
            )
            return Found(self._known_places(dim, places), places)
        rows = self.detach()._rows(axis)
        chosen = self._unrows(self._with(largest_of(key_of(rows.uop, not largest), k)), axis)
        values = self._known_places(dim, chosen)
        order = values.argsort(dim, largest)
        return Found(values._known_places(dim, order), chosen._known_places(dim, order))

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> Found:
        """The k-th smallest value along an axis (1 is the smallest), and its place.

        >>> [t.item() for t in Tensor([3, 1, 2]).kthvalue(2)]
        [2, 2]
        """
        axis = resolve_axis(dim, self.ndim, "kthvalue")
        n = self.shape[axis] if self.ndim else 1
        if not 1 <= k <= n:
            raise InputError("there is no such value", given=f"k={k} of an axis of {n}", expected=f"k from 1 to {n}",
                             fix="count from 1: k=1 is the smallest")
        if not self.ndim:
            return self.sort()
        values, places = self.sort(dim)
        at = (slice(None),) * axis + (slice(k - 1, k) if keepdim else k - 1,)
        return Found(values[at], places[at])

    def msort(self) -> Self:
        """The first axis in order.

        >>> Tensor([[2, 1], [1, 2]]).msort().tolist()
        [[1, 1], [2, 2]]
        """
        return self.sort(0)[0]

    # -- extremes --------------------------------------------------------------------------------------------
    def max(self, axis: Any = None, keepdim: bool = False, *, dim: int | None = None) -> Any:
        """The largest value; NaN if there is one. Asked for by PyTorch's keyword, `dim`, it comes as in PyTorch with
        its place; beside another tensor it is the larger of each pair.

        >>> x = Tensor([[1, 5], [7, 2]])
        >>> x.max(axis=1).tolist(), x.max(dim=1).indices.tolist(), x.max(Tensor(4)).tolist()
        ([5, 7], [1, 0], [[4, 5], [7, 4]])
        """
        if dim is not None:
            return self._with_place(dim, keepdim, self.argmax(dim, True))
        return self.maximum(axis) if isinstance(axis, Core) else self.amax(axis, keepdim)

    def min(self, axis: Any = None, keepdim: bool = False, *, dim: int | None = None) -> Any:
        """The smallest value; NaN if there is one. Asked for by PyTorch's keyword, `dim`, it comes as in PyTorch with
        its place; beside another tensor it is the smaller of each pair.

        >>> x = Tensor([[1, 5], [7, 2]])
        >>> x.min(axis=1).tolist(), x.min(dim=1).indices.tolist(), x.min(Tensor(4)).tolist()
        ([1, 2], [0, 1], [[1, 4], [4, 2]])
        """
        if dim is not None:
            return self._with_place(dim, keepdim, self.argmin(dim, True))
        return self.minimum(axis) if isinstance(axis, Core) else self.amin(axis, keepdim)

    def _with_place(self, dim: int, keepdim: bool, places: Self) -> Found:
        """The values at these places: the gradient goes there, and to no equal one."""
        found = Found(self._known_places(dim, places) if self.ndim else self, places)
        return found if keepdim or not self.ndim else Found(*(t.squeeze(dim) for t in found))

    # -- middles ---------------------------------------------------------------------------------------------
    def median(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The lower of the middle values; along an axis also its place. NaN if there is one.

        >>> Tensor([4.0, 1.0, 3.0, 2.0]).median().item()
        2.0
        """
        axis = resolve_axis(0 if dim is None else dim, self.ndim, "median")
        n = self.numel() if dim is None or not self.ndim else self.shape[axis]
        if not n:
            raise ShapeError("there is no median of nothing", given=f"shape {self.shape}",
                             expected="at least one element", fix="check where the elements went")
        if dim is None:
            return self.flatten().median(0)[0]
        values, places = self.sort(dim)
        if not self.ndim:
            return Found(values, places)
        if self.dtype.kind != "f":
            at: Any = self._with(full((), (n - 1) // 2, dtypes.int32))
        else:   # NaN stand last: with one, the median is the first of them
            numbers = (~self.isnan()).cast(dtypes.int32).sum(axis, keepdim=True)
            at = (numbers < n).where(numbers, (n - 1) // 2)
        at = at.expand(tuple(1 if a == axis else m for a, m in enumerate(self.shape)))
        found = Found(values._known_places(dim, at), places._known_places(dim, at))
        return found if keepdim else Found(*(t.squeeze(axis) for t in found))

    def quantile(self, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear") -> Self:
        """The values below which a share q of an axis lies (q may be several shares: a new first axis). Between two
        values: "linear", "lower", "higher", "midpoint" or "nearest". NaN if there is one.

        >>> Tensor([1.0, 2.0, 3.0, 4.0]).quantile(0.5).item()
        2.5
        """
        return self._quantile(q, dim, keepdim, interpolation, False)

    def nanquantile(self, q: Any, dim: int | None = None, keepdim: bool = False,
                    interpolation: str = "linear") -> Self:
        """`quantile` of the values that are not NaN.

        >>> Tensor([1.0, float("nan"), 3.0]).nanquantile(0.5).item()
        2.0
        """
        return self._quantile(q, dim, keepdim, interpolation, True)

    def _quantile(self, q: Any, dim: int | None, keepdim: bool, interpolation: str, leave_out_nan: bool) -> Self:
        if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
            raise InputError("there is no such interpolation", given=repr(interpolation),
                             expected='"linear", "lower", "higher", "midpoint" or "nearest"', fix="check the spelling")
        shares: Any = q if isinstance(q, Sorting) else self._with(full((), float(q), self.dtype)) \
            if isinstance(q, (int, float)) else self.__class__(q, device=self.device)
        if isinstance(q, (int, float)) and not 0 <= q <= 1:
            raise InputError(
                "quantile needs shares", given=f"q={q}", expected="a number from 0 to 1", fix="write 0.5 for half"
            )
        if self.dtype.kind != "f":
            raise InputError("quantile needs floats", given=f"{self.dtype.name} values", expected="a float tensor",
                             fix="cast first: x.float()")
        rank = self.ndim
        x = self.flatten() if dim is None else self
        axis = 0 if dim is None else resolve_axis(dim, rank, "quantile")
        rows = x._rows(axis)
        ordered = rows.sort(-1)[0]                          # NaN comes last
        is_nan = rows.isnan()
        last: Any = (~is_nan).sum(-1, keepdim=True).cast(x.dtype) - 1 if leave_out_nan else rows.shape[-1] - 1
        at = shares.reshape(1, -1).cast(x.dtype) * (last.maximum(0) if leave_out_nan else last)
        low, high = at.floor(), at.ceil()
        if interpolation != "linear":
            part = {"lower": low, "higher": high, "midpoint": (low + high) / 2, "nearest": at.round()}[interpolation]
            at, low, high = (part, low, high) if interpolation == "midpoint" else (part, part, part)
        shape = (rows.shape[0], shares.numel())
        below, above = (ordered._known_places(-1, place.int().expand(shape)) for place in (low, high))
        found = below.lerp(above, at - low)
        found = (is_nan.all(-1, keepdim=True) if leave_out_nan else is_nan.any(-1, keepdim=True)).where(math.nan, found)
        lead = tuple(shares.shape)
        others = () if dim is None else x.shape[:axis] + x.shape[axis + 1:]
        kept = (1,) * rank if dim is None else x.shape[:axis] + (1,) + x.shape[axis + 1:]
        return found.transpose(0, 1).reshape(*lead, *(kept if keepdim else others))

    # -- finding ---------------------------------------------------------------------------------------------
    def _found(self, size: int | None) -> UOp:
        """The places (in row-major order) where a mask is true, as int32 (size,); -1 fills what is too much."""
        count = self.numel()
        if size is None:
            size = int(running.number_in(self.cast(dtypes.int32).sum().uop, self.device)) if count else 0
        size = shape_from((size,), "nonzero")[0]
        mask = self.uop.reshape((count,)).contiguous()
        running_count = UOp(o.SCAN, dtypes.int32, (mask.cast(dtypes.int32),), Scan(0, o.ADD))
        seat = mask.where((running_count - 1).minimum(size), size)
        base = full((size + 1,), -1, dtypes.int32)
        return UOp(o.SCATTER, dtypes.int32, (base, seat, counting(count)), Scatter("set")).shrink(((0, size),))

    def nonzero(self, size: int | None = None, fill_value: int = 0, as_tuple: bool = False) -> Any:
        """The places of all values that are not zero, one row each; with `size`, exactly that many rows, the missing
        ones `fill_value`, and nothing is computed yet.

        >>> Tensor([[0, 5], [7, 0]]).nonzero().tolist()
        [[0, 1], [1, 0]]
        """
        flat = (self != 0)._found(size)
        columns, place = [], flat
        for n in reversed(self.shape):
            columns.append((flat < 0).where(fill_value, place % n))
            place = place // n
        parts = [self._with(c) for c in reversed(columns)]
        if as_tuple:
            return tuple(parts)
        return parts[0].stack(*parts[1:], dim=1) if parts else self._with(full((flat.shape[0], 0), 0, dtypes.int32))

    def argwhere(self) -> Self:
        """The places of all values that are not zero, one row each.

        >>> Tensor([0, 5, 7]).argwhere().tolist()
        [[1], [2]]
        """
        return self.nonzero()  # type: ignore[no-any-return]

    def masked_select(self, mask: Self, size: int | None = None, fill_value: Any = 0) -> Self:
        """The elements where a mask is true, as a vector; with `size`, exactly that many, the missing ones
        `fill_value`, and nothing is computed yet.

        >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True])).tolist()
        [1, 3]
        """
        shape = broadcast_shape(self.shape, mask.shape)
        places = self._with(mask.expand(shape).bool()._found(size))
        if not self.numel():
            return self._with(full(places.shape, fill_value, self.dtype))
        with index_check.trusted():
            chosen = self.expand(shape).flatten()[places.maximum(0)]
        return chosen if size is None else (places < 0).where(fill_value, chosen)

    def _stored(self) -> Self:
        """This, computed now."""
        return self._with(running.realize([self.uop], self.device)[0])

    def unique(self, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The different values in order; with `return_inverse` also where each element is found among them, with
        `return_counts` also how often each occurs.

        >>> [t.tolist() for t in Tensor([3, 1, 3]).unique(return_counts=True)]
        [[1, 3], [1, 2]]
        """
        count = self.numel()
        if not count:
            found = [self.reshape(0), self._with(full((0,), 0, dtypes.int32)), self._with(full((0,), 0, dtypes.int32))]
        else:
            values, order = self.flatten().sort()
            values, order = values._stored(), order._stored()
            first = self._with(full((1,), True, dtypes.bool))
            changes = (first.cat(values[1:] != values[:-1]) if count > 1 else first)._stored()
            group = changes.cast(dtypes.int32).cumsum(0) - 1
            heads = self._with(changes._found(None))._stored()
            ends = heads[1:].cat(self._with(full((1,), count, dtypes.int32))) if heads.shape[0] > 1 else \
                self._with(full((1,), count, dtypes.int32))
            inverse = UOp(
                o.SCATTER, dtypes.int32, (full((count,), 0, dtypes.int32), order.uop, group.uop), Scatter("set")
            )
            with index_check.trusted():
                distinct = values[heads]
            found = [distinct, self._with(inverse).reshape(self.shape), ends - heads]
        wanted = [True, return_inverse, return_counts]
        chosen = [t for t, wish in zip(found, wanted) if wish]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)

    def bincount(self, weights: Self | None = None, minlength: int = 0) -> Self:
        """How often each of 0, 1, 2, ... occurs in a vector of integers, or the sum of its weights.

        >>> Tensor([0, 2, 2]).bincount().tolist()
        [1, 0, 2]
        """
        if self.ndim != 1 or self.dtype.kind not in "iu":
            raise InputError("bincount needs a vector of integers", given=f"{self.dtype.name}{list(self.shape)}",
                             expected="an integer tensor with 1 axis", fix="flatten and cast it: x.flatten().int()")
        ends = self.min().stack(self.max()) if self.numel() else None
        least, most = running.array_of(ends.uop, self.device).tolist() if ends is not None else (0, -1)
        if least < 0:
            raise InputError("bincount counts numbers from 0 on", given=f"{least} among them", expected="0, 1, 2, ...",
                             fix="take the least away first: x - x.min()")
        size = max(minlength, most + 1)
        value = weights.uop if weights is not None else full(self.shape, 1, dtypes.int32)
        base = full((size,), 0, value.dtype)
        return self._with(UOp(o.SCATTER, value.dtype, (base, self.uop, value), Scatter("add")))

    def searchsorted(self, values: Any, right: bool = False) -> Self:
        """Where each value would go into this vector, which is in order: before equal ones, or after (`right`). With
        more axes, each row of values looks into its own row.

        >>> Tensor([1, 3, 5]).searchsorted(Tensor([3, 4])).tolist(), Tensor([1, 3]).searchsorted(3, right=True).item()
        ([1, 2], 2)
        """
        wanted = values if isinstance(values, Sorting) else self.__class__(values, device=self.device)
        if self.ndim != 1 and (not self.ndim or self.shape[:-1] != wanted.shape[:-1]):
            raise ShapeError("searchsorted looks into one row, or a row each", given=f"{self.shape} for {wanted.shape}",
                             expected="one axis, or the same sizes but for the last axis",
                             fix="take one row: x[0].searchsorted(values)")
        n = self.shape[-1]
        x, y = self.detach()._both(wanted.detach())
        low, high = self._with(full(y.shape, 0, dtypes.int32)), self._with(full(y.shape, n, dtypes.int32))
        for _ in range(n.bit_length()):   # halve the range, for all values at once
            middle = (low + high) // 2
            with index_check.trusted():
                at = x[middle.minimum(n - 1)] if self.ndim == 1 else x.gather(-1, middle.minimum(n - 1))
            below = ((at <= y) if right else (at < y)) & (low < high)
            low, high = below.where(middle + 1, low), below.where(high, middle)
        return low
