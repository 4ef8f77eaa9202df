"""Order and choose elements: sort, topk, median, quantile, unique, nonzero. In, out: tensors; indices are int32.

As in PyTorch, NaN counts as greater than every number and equal values keep their order. How many elements `nonzero`,
`masked_select` and `unique` find is known only after computing it: they compute what they need at once, unless they are
given a `size`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import Scatter, UOp, dtypes, full, ops as o
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.formulas import (arg_extreme, argsort, both, cat, flatten, gather_known, largest, maximum,
                                       minimum, part, ranked, running as running_total, smallest, sort, squeeze, stack,
                                       take, topk, total, true_indices, where)
from glassgrad.tensor.formulas.statistics import median, mode, quantile, search_sorted
from glassgrad.tensor.methods import (Found, Self, TensorBase, arguments, broadcast_shape, choice, fraction, of_kind,
                                      plain_number, resolve_axis)


class SortingMixin(TensorBase):
    """Methods that order and choose elements."""
    __slots__ = ()

    def _row(self, dim: int, what: str) -> tuple[UOp, int]:
        """Return this tensor's node and one of its axes; a single number counts as a row of one."""
        axis = resolve_axis(dim, self.ndim, what)
        return (self.uop, axis) if self.ndim else (self.uop.reshape((1,)), 0)

    def _found(self, nodes: Iterable[UOp], axis: int, keepdim: bool) -> Found:
        """Return values and their indices without the reduced axis; with `keepdim` it stays, unless this tensor is a
        scalar."""
        return Found(*(self._with(node if keepdim and self.ndim else squeeze(node, axis)) for node in nodes))

    # -- order -----------------------------------------------------------------------------------------------
    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True, **spelling: Any) -> Self:
        """The indices that sort an axis; equal values keep their order, whatever `stable` says.

        >>> Tensor([3, 1, 2]).argsort().tolist(), Tensor([3, 1, 2]).argsort(descending=True).tolist()
        ([1, 2, 0], [0, 2, 1])
        """
        dim, descending = arguments("argsort", spelling, dim=dim, descending=descending)
        return self._with(argsort(self.uop, resolve_axis(dim, self.ndim, "argsort"), descending))

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True, **spelling: Any) -> Found:
        """An axis sorted, and the indices its values came from; equal values keep their order, whatever `stable` says.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).sort()]
        [[1, 2, 3], [1, 2, 0]]
        """
        dim, descending = arguments("sort", spelling, dim=dim, descending=descending)
        return Found(*map(self._with, sort(self.uop, resolve_axis(dim, self.ndim, "sort"), descending)))

    def msort(self) -> Self:
        """The first axis sorted.

        >>> Tensor([[2, 1], [1, 2]]).msort().tolist()
        [[1, 1], [2, 2]]
        """
        return self._with(sort(self.uop, resolve_axis(0, self.ndim, "msort"))[0])

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True, **spelling: Any) -> Found:
        """The k largest (or smallest) values along an axis, in order, and their indices.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).topk(2)]
        [[3, 2], [0, 2]]
        """
        k, dim, largest, _ = arguments("topk", spelling, k=k, dim=dim, largest=largest, sorted_=sorted_)
        x, axis = self._row(dim, "topk")
        n = x.shape[axis]
        if not 0 <= k <= n:
            raise InputError("topk cannot choose this many", given=f"k={k} of an axis of {n}",
                             expected=f"k from 0 to {n}", fix="choose a smaller k")
        return self._found(topk(x, k, axis, largest), axis, keepdim=True)

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False, **spelling: Any) -> Found:
        """The k-th smallest value along an axis (1 is the smallest), and its index.

        >>> [t.item() for t in Tensor([3, 1, 2]).kthvalue(2)]
        [2, 2]
        """
        k, dim, keepdim = arguments("kthvalue", spelling, k=k, dim=dim, keepdim=keepdim)
        x, axis = self._row(dim, "kthvalue")
        n = x.shape[axis]
        if not 1 <= k <= n:
            raise InputError("there is no such value", given=f"k={k} of an axis of {n}", expected=f"k from 1 to {n}",
                             fix="count from 1: k=1 is the smallest")
        return self._found(ranked(x, axis, k - 1), axis, keepdim)

    # -- extremes --------------------------------------------------------------------------------------------
    def max(self, axis: Any = None, keepdim: bool = False, *, dim: int | None = None, **spelling: Any) -> Any:
        """The largest value; NaN if there is one. With PyTorch's keyword `dim` it returns the index too, as in PyTorch;
        with another tensor, the larger of each pair.

        >>> x = Tensor([[1, 5], [7, 2]])
        >>> x.max(axis=1).tolist(), x.max(dim=1).indices.tolist(), x.max(Tensor(4)).tolist()
        ([5, 7], [1, 0], [[4, 5], [7, 4]])
        """
        return self._extreme("max", o.AMAX, axis, keepdim, dim, spelling)

    def min(self, axis: Any = None, keepdim: bool = False, *, dim: int | None = None, **spelling: Any) -> Any:
        """The smallest value; NaN if there is one. With PyTorch's keyword `dim` it returns the index too, as in
        PyTorch; with another tensor, the smaller of each pair.

        >>> x = Tensor([[1, 5], [7, 2]])
        >>> x.min(axis=1).tolist(), x.min(dim=1).indices.tolist(), x.min(Tensor(4)).tolist()
        ([1, 2], [0, 1], [[1, 4], [4, 2]])
        """
        return self._extreme("min", o.AMIN, axis, keepdim, dim, spelling)

    def _extreme(self, what: str, op: o.Op, axis: Any, keepdim: bool, dim: int | None, spelling: dict[str, Any]) -> Any:
        axis, keepdim = arguments(what, spelling, axis=axis, keepdim=keepdim)
        if isinstance(axis, TensorBase):
            return self._with((maximum if op is o.AMAX else minimum)(self.uop, axis.uop), axis)
        if dim is None:
            return self._with((largest if op is o.AMAX else smallest)(self.uop, axis, keepdim))
        x, at = self._row(dim, f"arg{what}")
        index = arg_extreme(op, x, at, True)     # the gradient goes to this element, and to no equal one
        return self._found((gather_known(x, at, index), index), at, keepdim)

    # -- middles ---------------------------------------------------------------------------------------------
    def median(self, dim: int | None = None, keepdim: bool = False, **spelling: Any) -> Any:
        """The lower of the middle values; along an axis also its index. NaN if there is a NaN.

        >>> Tensor([4.0, 1.0, 3.0, 2.0]).median().item()
        2.0
        """
        return self._median("median", dim, keepdim, False, spelling)

    def nanmedian(self, dim: int | None = None, keepdim: bool = False, **spelling: Any) -> Any:
        """The lower of the middle values that are not NaN; along an axis also its index.

        >>> Tensor([1.0, float("nan"), 3.0]).nanmedian().item()
        1.0
        """
        return self._median("nanmedian", dim, keepdim, True, spelling)

    def _median(self, what: str, dim: int | None, keepdim: bool, skip_nan: bool, spelling: dict[str, Any]) -> Any:
        dim, keepdim = arguments(what, spelling, dim=dim, keepdim=keepdim)
        x, axis = self._row(dim, what) if dim is not None else (flatten(self.uop), 0)
        if not x.shape[axis]:
            raise ShapeError("there is no median of nothing", given=f"shape {self.shape}",
                             expected="at least one element", fix="check where the elements went")
        found = self._found(median(x, axis, skip_nan), axis, keepdim and dim is not None)
        return found.values if dim is None else found

    def mode(self, dim: int = -1, keepdim: bool = False, **spelling: Any) -> Found:
        """The most frequent value along an axis (of equally frequent ones the smallest), and its last index.

        >>> [t.tolist() for t in Tensor([1, 3, 3, 2]).mode()]
        [3, 2]
        """
        dim, keepdim = arguments("mode", spelling, dim=dim, keepdim=keepdim)
        x, axis = self._row(dim, "mode")
        if not x.shape[axis]:
            raise ShapeError("there is no most frequent of nothing", given=f"shape {self.shape}",
                             expected="at least one element along the axis", fix="check where the elements went")
        return self._found(mode(x, axis), axis, keepdim)

    def quantile(self, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear",
                 **spelling: Any) -> Self:
        """The value below which a share q of an axis lies (for several shares, with a new first axis). Between two
        values: "linear", "lower", "higher", "midpoint" or "nearest". NaN if there is a NaN.

        >>> Tensor([1.0, 2.0, 3.0, 4.0]).quantile(0.5).item()
        2.5
        """
        return self._quantile("quantile", q, dim, keepdim, interpolation, spelling)

    def nanquantile(self, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear",
                    **spelling: Any) -> Self:
        """`quantile` of the values that are not NaN.

        >>> Tensor([1.0, float("nan"), 3.0]).nanquantile(0.5).item()
        2.0
        """
        return self._quantile("nanquantile", q, dim, keepdim, interpolation, spelling)

    def _quantile(self, what: str, q: Any, dim: int | None, keepdim: bool, interpolation: str,
                  spelling: dict[str, Any]) -> Self:
        dim, keepdim = arguments(what, spelling, dim=dim, keepdim=keepdim)
        choice("there is no such interpolation", "check the spelling", interpolation=interpolation,
               among=("linear", "lower", "higher", "midpoint", "nearest"))
        for value in q if isinstance(q, (list, tuple)) else (q,):
            if isinstance(value, (int, float)):
                fraction("quantile", "quantile needs shares", "write 0.5 for half", q=value)
        if self.dtype.kind != "f":
            raise InputError("quantile needs floats", given=f"{self.dtype.name} values", expected="a float tensor",
                             fix="cast first: x.float()")
        shares = full((), float(q), self.dtype) if isinstance(q, (int, float)) else self._beside(q).uop
        axis = None if dim is None else resolve_axis(dim, self.ndim, "quantile")
        if 0 in (self.shape if axis is None else self.shape[axis:axis + 1]):
            raise ShapeError("there is no quantile of nothing", given=f"shape {self.shape}",
                             expected="at least one element", fix="check where the elements went")
        return self._with(quantile(self.uop, shares, axis, keepdim, interpolation, what == "nanquantile"), q)

    # -- finding ---------------------------------------------------------------------------------------------
    def _true_indices(self, mask: UOp, size: int | None, what: str) -> UOp:
        """Return the indices where a mask is true, counted row by row; how many there are is computed, unless it is
        given."""
        if size is None:
            size = int(running.number_in(total(mask.cast(dtypes.int32)), self.device)) if mask.elements else 0
        return true_indices(mask, of_kind("int", what, size=size))

    def nonzero(self, size: int | None = None, fill_value: int = 0, as_tuple: bool = False) -> Any:
        """The indices of all values that are not zero, one row each; with `size`, exactly that many rows, padded with
        `fill_value`, and nothing is computed yet.

        >>> Tensor([[0, 5], [7, 0]]).nonzero().tolist()
        [[0, 1], [1, 0]]
        """
        fill_value, as_tuple = arguments("nonzero", fill_value=fill_value, as_tuple=as_tuple)
        flat = self._true_indices(self.uop.ne(0), size, "nonzero")
        columns: list[UOp] = []                          # one for each axis
        place = flat
        for n in reversed(self.shape):
            columns.insert(0, (flat < 0).where(fill_value, place % n))
            place = place // n
        columns = columns or [full((flat.shape[0], 0), 0, dtypes.int32)]
        if as_tuple:
            return tuple(self._with(column) for column in columns)
        return self._with(stack(columns, 1) if self.ndim else columns[0])

    def argwhere(self) -> Self:
        """The indices of all values that are not zero, one row each.

        >>> Tensor([0, 5, 7]).argwhere().tolist()
        [[1], [2]]
        """
        return self.nonzero()  # type: ignore[no-any-return]

    def masked_select(self, mask: Self, size: int | None = None, fill_value: Any = 0) -> Self:
        """The elements where a mask is true, as a vector; with `size`, exactly that many, padded with `fill_value`, and
        nothing is computed yet.

        >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True])).tolist()
        [1, 3]
        """
        of_kind("Self", "masked_select", mask=mask)
        fill_value = plain_number(fill_value, "to fill with", "a number")
        shape = broadcast_shape(self.shape, mask.shape)
        chosen = self._true_indices(mask.uop.broadcast(shape).cast(dtypes.bool), size, "masked_select")
        if not self.numel():
            return self._with(full(chosen.shape, fill_value, self.dtype), mask)
        found = take(flatten(self.uop.broadcast(shape)), 0, maximum(chosen, 0))
        return self._with(found if size is None else where(chosen < 0, fill_value, found), mask)

    def _stored(self, node: UOp) -> UOp:
        """Compute a node now; return its value."""
        return running.realize([node], self.device)[0]

    def unique(self, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The different values, sorted; with `return_inverse` also the index of each element's value among them, with
        `return_counts` also how often each occurs.

        >>> [t.tolist() for t in Tensor([3, 1, 3]).unique(return_counts=True)]
        [[1, 3], [1, 2]]
        """
        of_kind("bool", "unique", sorted=sorted, return_inverse=return_inverse, return_counts=return_counts)
        values, order = map(self._stored, sort(flatten(self.uop), 0))
        return self._runs(values, order, return_inverse, return_counts)

    def unique_consecutive(self, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The values without those equal to the one before; with `return_inverse` also the index of each element's
        value in the result, with `return_counts` also how many equal values became one.

        >>> Tensor([1, 1, 2, 1]).unique_consecutive().tolist()
        [1, 2, 1]
        """
        of_kind("bool", "unique_consecutive", return_inverse=return_inverse, return_counts=return_counts)
        return self._runs(flatten(self.uop), None, return_inverse, return_counts)

    def _runs(self, x: UOp, order: UOp | None, with_inverse: bool, with_counts: bool) -> Any:
        """Return the value of each run of equal values in a vector, which may be this tensor's elements in another
        order; the run that each element belongs to; and the length of each run."""
        count = x.shape[0]
        first = full((min(count, 1),), True, dtypes.bool)
        changes = self._stored(cat([first, part(x, 0, 1, count).ne(part(x, 0, 0, count - 1))]) if count > 1 else first)
        heads = self._stored(self._true_indices(changes, None, "unique"))
        ends = cat([part(heads, 0, 1, heads.shape[0]), full((1,), count, dtypes.int32)]) if count else heads
        group = running_total(o.ADD, changes.cast(dtypes.int32), 0) - 1
        if order is not None:
            group = UOp(o.SCATTER, dtypes.int32, (full((count,), 0, dtypes.int32), order, group), Scatter("permute"))
        found = take(x, 0, heads) if count else x, group.reshape(self.shape), ends - heads
        chosen = [self._with(node) for node, wanted in zip(found, (True, with_inverse, with_counts)) if wanted]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)

    def bincount(self, weights: Self | None = None, minlength: int = 0) -> Self:
        """How often each of 0, 1, 2, ... occurs in a vector of integers, or the sum of its weights.

        >>> Tensor([0, 2, 2]).bincount().tolist()
        [1, 0, 2]
        """
        weights, minlength = arguments("bincount", weights=weights, minlength=minlength)
        x = self.uop
        if self.ndim != 1 or self.dtype.kind not in "iu":
            raise InputError("bincount needs a vector of integers", given=f"{self.dtype.name}{list(self.shape)}",
                             expected="an integer tensor with 1 axis", fix="flatten and cast it: x.flatten().int()")
        least, most = running.numbers_of(stack([smallest(x), largest(x)]), self.device) if self.numel() else (0, -1)
        if least < 0:
            raise InputError("bincount counts numbers from 0 on", given=f"{least} among them", expected="0, 1, 2, ...",
                             fix="take the least away first: x - x.min()")
        value = weights.uop if weights is not None else full(self.shape, 1, dtypes.int32)
        if value.shape != self.shape:
            raise ShapeError("bincount needs one weight per element", given=f"{value.shape} for {self.shape}",
                             expected=f"shape {self.shape}", fix="check the weights")
        base = full((max(minlength, most + 1),), 0, value.dtype)
        return self._with(UOp(o.SCATTER, value.dtype, (base, x, value), Scatter("add")), weights)

    def searchsorted(self, values: Any, right: bool = False) -> Self:
        """Where each value would be inserted into this sorted vector: before equal values, or after them (`right`).
        With more axes, each row of values is compared with its own row.

        >>> Tensor([1, 3, 5]).searchsorted(Tensor([3, 4])).tolist(), Tensor([1, 3]).searchsorted(3, right=True).item()
        ([1, 2], 2)
        """
        right, = arguments("searchsorted", right=right)
        wanted = values if isinstance(values, TensorBase) else self._made_of(values, device=self.device)
        return self._with(self._search(self.uop, wanted.uop, right), wanted)

    def bucketize(self, boundaries: Self, *, right: bool = False) -> Self:
        """The index of the interval between sorted boundaries in which each value lies: the number of boundaries below
        it (with `right` also those equal to it).

        >>> Tensor([0, 3, 5]).bucketize(Tensor([1, 3])).tolist()
        [0, 1, 2]
        """
        boundaries, right = arguments("bucketize", boundaries=boundaries, right=right)
        return self._with(self._search(boundaries.uop, self.uop, right), boundaries)

    @staticmethod
    def _search(rows: UOp, wanted: UOp, right: bool) -> UOp:
        if len(rows.shape) != 1 and (not rows.shape or rows.shape[:-1] != wanted.shape[:-1]):
            raise ShapeError("searchsorted looks into one row, or a row each", given=f"{rows.shape} for {wanted.shape}",
                             expected="one axis, or the same sizes but for the last axis",
                             fix="take one row: x[0].searchsorted(values)")
        return search_sorted(*both(rows.detach(), wanted.detach()), right)
