"""Writing where an index says: scatter and its kin. In, out: tensors; the tensor itself stays as it is.

All stand on SCATTER (set, add, max) over the flattened tensor. The smallest is the greatest of the opposites; products
take the index in order and multiply neighbours of one place in doubling steps. Later writes to one place win over
earlier ones, on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import DTypeError, InputError, ShapeError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Scatter as How
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.uop import UOp, const, full
from glassgrad.tensor import index_check
from glassgrad.tensor.broadcast import resolve_axis, working_axis
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.formulas.order import order_of
from glassgrad.tensor.methods.sorting import Sorting

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Scattering"]

_REDUCES = ("sum", "prod", "mean", "amax", "amin")


class Scattering(Sorting):
    """Writing where an index says."""
    __slots__ = ()

    def _targets(self, dim: int, index: Self, what: str) -> tuple[int, UOp]:
        """The axis, and for each index element, row by row, the place in this tensor, flattened, that it names."""
        axis = resolve_axis(dim, self.ndim, what)
        if index.dtype.kind not in "iu":
            raise DTypeError(f"{what} needs an index of integers", given=f"an index of {index.dtype.name}",
                             expected="an integer tensor", fix="cast it first: index.int()")
        if index.ndim != self.ndim or any(i > n for a, (i, n) in enumerate(zip(index.shape, self.shape)) if a != axis):
            raise ShapeError(
                "the index does not fit the tensor",
                given=f"index {index.shape} for {self.shape}, dim={dim}",
                expected="as many axes, and sizes that are not larger except along dim",
                fix="check the shapes",
            )
        place = index.uop.cast(dtypes.int64)
        if not self.ndim:
            return axis, place.reshape((1,))
        n = self.shape[axis]
        outside = index_check.outside(place, n)
        if not settings.CHECK_INDEX:
            place = index_check.nearest(place, n)
        linear = full(index.shape, 0, dtypes.int64)
        for a, size in enumerate(self.shape):
            count = index.shape[a]
            spread = counting(count, dtypes.int64).reshape((1,) * a + (count,) + (1,) * (index.ndim - a - 1))
            linear = linear * size + (place if a == axis else spread.expand(index.shape))
        if settings.CHECK_INDEX:
            linear = outside.where(-1, linear)          # a bad place must stay bad, where it is looked for
        linear = linear.reshape((linear.elements,))
        index_check.watch(linear, [index_check.Pick(index.uop, n, axis, from_end=False)], self.shape, self.numel())
        return axis, linear

    def _source(self, src: Any, index: Self, what: str) -> UOp:
        """What is written: one value per index element."""
        if not isinstance(src, Scattering):
            return full(index.shape, src, self.dtype)
        if src.dtype is not self.dtype:
            raise DTypeError(f"{what} needs one type", given=f"{src.dtype.name} into {self.dtype.name}",
                             expected=f"a source of {self.dtype.name}", fix=f"cast it: src.cast({self.dtype!r})")
        if src.ndim != index.ndim or any(i > n for i, n in zip(index.shape, src.shape)):
            raise ShapeError("the source is smaller than the index", given=f"source {src.shape}, index {index.shape}",
                             expected="as many axes, and sizes that are not smaller", fix="check the shapes")
        return src.uop.shrink([(0, i) for i in index.shape])

    def _scattered(self, place: UOp, value: UOp, mode: str, base: UOp | None = None) -> UOp:
        """This tensor, or another of its size, with values written to places of its elements, row by row."""
        base = self.uop if base is None else base
        src = base.reshape((base.elements,)), place, value.reshape(place.shape)
        return UOp(o.SCATTER, base.dtype, src, How(mode)).reshape(base.shape)

    def scatter(self, dim: int, index: Self, src: Any, reduce: str | None = None) -> Self:
        """This tensor with src[i, j] written to [index[i, j], j] for dim 0, and so on; reduce "add" or "multiply"
        combines with what is there. As in PyTorch, nothing is counted from the end: -1 is no place.

        >>> Tensor([1, 2, 3]).scatter(0, Tensor([2, 0]), Tensor([7, 8])).tolist()
        [8, 2, 7]
        """
        if reduce not in (None, "add", "multiply"):
            raise InputError("there is no such way to combine", given=f"reduce={reduce!r}",
                             expected='None, "add" or "multiply"', fix="for others use scatter_reduce")
        axis, place = self._targets(dim, index, "scatter")
        value = self._source(src, index, "scatter")
        if not index.numel():
            return self
        if reduce == "multiply":
            return self * self._with(self._product_at(axis, index, place, value))
        return self._with(self._scattered(place, value, "add" if reduce == "add" else "set"))

    def scatter_add(self, dim: int, index: Self, src: Self) -> Self:
        """This tensor with src[i, j] added to [index[i, j], j] for dim 0, and so on.

        >>> Tensor([1, 2]).scatter_add(0, Tensor([0, 0]), Tensor([10, 20])).tolist()
        [31, 2]
        """
        return self.scatter(dim, index, src, "add")

    def scatter_reduce(self, dim: int, index: Self, src: Self, reduce: str, include_self: bool = True) -> Self:
        """The sum, prod, mean, amax or amin of everything written to a place, and of what was there (`include_self`).

        >>> Tensor([1, 2]).scatter_reduce(0, Tensor([0, 0]), Tensor([5, 9]), "amax").tolist()
        [9, 2]
        """
        if reduce not in _REDUCES:
            raise InputError(
                "there is no such way to combine",
                given=f"reduce={reduce!r}",
                expected=", ".join(_REDUCES),
                fix='write reduce="sum", for example',
            )
        axis, place = self._targets(dim, index, "scatter_reduce")
        value = self._source(src, index, "scatter_reduce")
        if not index.numel():
            return self
        dtype, base = self.dtype, self.uop
        if not include_self:
            touched = self._scattered(
                place, full(place.shape, True, dtypes.bool), "set", full(self.shape, False, dtypes.bool)
            )
            start = {"sum": 0, "mean": 0, "prod": 1, "amax": dtype.min, "amin": dtype.max}[reduce]
            base = touched.where(const(start, dtype), base)
        if reduce == "amax":
            return self._with(self._scattered(place, value, "max", base))
        if reduce == "amin":
            opposite = UOp.__neg__ if dtype.kind == "f" else UOp.logical_not     # ~x: no overflow at the smallest
            return self._with(opposite(self._scattered(place, opposite(value), "max", opposite(base))))
        if reduce == "prod":
            return self._with(base * self._product_at(axis, index, place, value))
        total = self._scattered(place, value, "add", base)
        if reduce == "sum":
            return self._with(total)
        count = self._scattered(place, full(place.shape, 1, dtype), "add", full(self.shape, int(include_self), dtype))
        count = count.maximum(const(1, dtype))
        return self._with(total / count if dtype.kind == "f" else total // count)

    def _product_at(self, axis: int, index: Self, place: UOp, value: UOp) -> UOp:
        """The product of all values written to each place, 1 where none is."""
        if not index.ndim:
            return value
        ones = full(self.shape, 1, self.dtype)
        key = index._rows(axis).uop.cast(dtypes.int64)
        n = self.shape[axis]
        order = self._with(order_of(key.cast(dtypes.uint32), max(1, (n - 1).bit_length())))
        rows, count = key.shape
        names = self._with(key)._known_places(-1, order)
        products = self._with(value)._rows(axis)._known_places(-1, order)
        step = 1
        while step < count:      # after it, each element holds the product of the last 2 * step of its place
            left = [(0, 0), (step, 0)]
            before = products.shrink(((0, rows), (0, count - step)))._pad_constant(left, 1)
            same = names.shrink(((0, rows), (0, count - step)))._pad_constant(left, -1) == names
            products = same.where(products * before, products)
            step *= 2
        targets = self._with(place.reshape(index.shape))._rows(axis)._known_places(-1, order)
        after = names.shrink(((0, rows), (1, count)))._pad_constant([(0, 0), (0, 1)], -1)
        last = (after != names).where(targets, self.numel())    # one more place, for those that are not the last
        flat = UOp(o.SCATTER, self.dtype, (full((self.numel() + 1,), 1, self.dtype), last.uop.reshape((last.numel(),)),
                                           products.uop.reshape((last.numel(),))), How("set"))
        index_check.watch_for(flat, place, self.numel())
        return flat.shrink(((0, self.numel()),)).reshape(ones.shape)

    # -- rows and elements -----------------------------------------------------------------------------------
    def index_add(self, dim: int, index: Self, source: Self, alpha: float = 1) -> Self:
        """This tensor with slices of `source`, times alpha, added along an axis at the places a vector names.

        >>> Tensor([[1, 1], [2, 2]]).index_add(0, Tensor([1]), Tensor([[5, 6]])).tolist()
        [[1, 1], [7, 8]]
        """
        return self._by_slices(dim, index, source if alpha == 1 else source * alpha, "add", "index_add")

    def index_copy(self, dim: int, index: Self, source: Self) -> Self:
        """This tensor with slices of `source` written along an axis at the places a vector names.

        >>> Tensor([[1, 1], [2, 2]]).index_copy(0, Tensor([1]), Tensor([[5, 6]])).tolist()
        [[1, 1], [5, 6]]
        """
        return self._by_slices(dim, index, source, "set", "index_copy")

    def index_fill(self, dim: int, index: Self, value: Any) -> Self:
        """This tensor with one value in the slices along an axis that a vector names.

        >>> Tensor([[1, 1], [2, 2]]).index_fill(1, Tensor([0]), 9).tolist()
        [[9, 1], [9, 2]]
        """
        axis = resolve_axis(dim, self.ndim, "index_fill")
        shape = tuple(index.numel() if a == axis else n for a, n in enumerate(self.shape))
        source = self.ufix(value).cast(self.dtype).expand(shape)
        return self._by_slices(dim, index, source, "set", "index_fill", from_end=True)

    def _by_slices(self, dim: int, index: Self, source: Self, mode: str, what: str, from_end: bool = False) -> Self:
        axis = working_axis(dim, self.ndim, what)
        expected = tuple(index.numel() if a == axis else n for a, n in enumerate(self.shape))
        if index.ndim > 1 or source.shape != expected:
            raise ShapeError(f"the slices of {what} do not fit", given=f"index {index.shape}, source {source.shape}",
                             expected=f"a vector as index and a source of shape {expected}", fix="check the shapes")
        x, slices = self.movedim(axis, 0), source.cast(self.dtype).movedim(axis, 0)
        place = index.uop.reshape((index.numel(),)).cast(dtypes.int64)
        if from_end:
            place = (place < 0).where(place + x.shape[0], place)
        index_check.watch(place, [index_check.Pick(index.uop, x.shape[0], axis, from_end)], self.shape, x.shape[0])
        node = UOp(o.SCATTER, self.dtype, (x.uop, place, slices.uop), How(mode))
        return self._with(node).movedim(0, axis)

    def put(self, index: Self, source: Self, accumulate: bool = False) -> Self:
        """This tensor, flattened, with values written (or added) at places; the opposite of `take`.

        >>> Tensor([[1, 2], [3, 4]]).put(Tensor([3, 0]), Tensor([9, 8])).tolist()
        [[8, 2], [3, 9]]
        """
        place = index.uop.reshape((index.numel(),)).cast(dtypes.int64)
        place = (place < 0).where(place + self.numel(), place)
        index_check.watch(place, [index_check.Pick(index.uop, self.numel(), 0)], (self.numel(),), self.numel())
        value = self._source(source.reshape(index.shape), index, "put")
        return self._with(self._scattered(place, value, "add" if accumulate else "set"))

    def index_put(self, indices: Sequence[Any], values: Self, accumulate: bool = False) -> Self:
        """A copy of this tensor with x[indices] = values, or += values for every naming of a place (`accumulate`).

        >>> Tensor([1, 2]).index_put((Tensor([0, 0]),), Tensor([10, 20]), accumulate=True).tolist()
        [31, 2]
        """
        places = self._with(counting(self.numel(), dtypes.int64).reshape(self.shape))[tuple(indices)]
        source = values.cast(self.dtype).expand(places.shape)
        place = places.uop.reshape((places.numel(),))
        return self._with(self._scattered(place, source.uop, "add" if accumulate else "set"))

    def __delitem__(self, indices: Any) -> None:
        raise InputError("elements of a tensor cannot be deleted", given=f"del x[{indices!r}]",
                         expected="tensors keep their shape", fix="choose what to keep: x = x[keep]")
