"""Write by index: scatter and similar methods. In, out: tensors; the tensor itself stays as it is.

All are made of SCATTER (set, add, max) over the flattened tensor. A minimum is the maximum of the negated values;
products sort the index and multiply the values of one index in doubling steps. Of several writes to one index the last
one wins, on every device.
"""

from __future__ import annotations

from typing import Any

from glassgrad.base.errors import DTypeError, InputError, ShapeError
from glassgrad.compiler.graph import UOp, full
from glassgrad.tensor.formulas import as_node, flatten, mul, scatter_reduce, scatter_slices, scatter_targets
from glassgrad.tensor.methods import (REQUIRED, Self, TensorBase, arguments, choice, index_fits, integer_index,
                                      plain_number, resolve_axis, working_axis)

_REDUCES = ("sum", "prod", "mean", "amax", "amin")


class ScatterMixin(TensorBase):
    """Methods that write by index."""
    __slots__ = ()

    def _source(self, src: Any, index: TensorBase, what: str) -> UOp:
        """Return the values to write: one for each index element."""
        if not isinstance(src, TensorBase):
            return full(index.shape, plain_number(src, f"as the source of {what}"), self.dtype)
        if src.dtype is not self.dtype:
            raise DTypeError(f"{what} needs one type", given=f"{src.dtype.name} into {self.dtype.name}",
                             expected=f"a source of {self.dtype.name}", fix=f"cast it: src.cast({self.dtype!r})")
        if src.ndim != index.ndim or any(i > n for i, n in zip(index.shape, src.shape)):
            raise ShapeError("the source is smaller than the index", given=f"source {src.shape}, index {index.shape}",
                             expected="as many axes, and sizes that are not smaller", fix="check the shapes")
        return src.uop.shrink([(0, i) for i in index.shape])

    def scatter(self, dim: int = REQUIRED, index: Self = REQUIRED, src: Any = REQUIRED, reduce: str | None = None,
                **spelling: Any) -> Self:
        """This tensor with src[i, j] written to [index[i, j], j] for dim 0, and so on; reduce "add" or "multiply"
        combines it with the value that is there. As in PyTorch, indices do not count from the end: -1 is out of range.

        >>> Tensor([1, 2, 3]).scatter(0, Tensor([2, 0]), Tensor([7, 8])).tolist()
        [8, 2, 7]
        """
        choice("there is no such way to combine", "for others use scatter_reduce", reduce=reduce,
               among=(None, "add", "multiply"))
        how = {None: "set", "add": "sum", "multiply": "prod"}[reduce]
        return self._scattered("scatter", how, True, *arguments("scatter", spelling, dim=dim, index=index, src=src))

    def _scattered(self, what: str, how: str, include_self: bool, dim: int, index: Self, src: Any) -> Self:
        axis = resolve_axis(dim, self.ndim, what)
        integer_index(what, index)
        index_fits(self, index, axis, dim)
        target, value = scatter_targets(self.shape, axis, index.uop), self._source(src, index, what)
        if not index.numel():
            return self
        return self._with(scatter_reduce(self.uop, axis, index.uop, target, value, how, include_self), index, src)

    def scatter_add(self, dim: int = REQUIRED, index: Self = REQUIRED, src: Any = REQUIRED, **spelling: Any) -> Self:
        """This tensor with src[i, j] added to [index[i, j], j] for dim 0, and so on.

        >>> Tensor([1, 2]).scatter_add(0, Tensor([0, 0]), Tensor([10, 20])).tolist()
        [31, 2]
        """
        return self._scattered("scatter_add", "sum", True,
                               *arguments("scatter_add", spelling, dim=dim, index=index, src=src))

    def scatter_reduce(self, dim: int = REQUIRED, index: Self = REQUIRED, src: Any = REQUIRED, reduce: Any = REQUIRED,
                       include_self: bool = True, **spelling: Any) -> Self:
        """The sum, prod, mean, amax or amin of all values written to an element, and of its old value if
        `include_self`.

        >>> Tensor([1, 2]).scatter_reduce(0, Tensor([0, 0]), Tensor([5, 9]), "amax").tolist()
        [9, 2]
        """
        *own, reduce, include_self = arguments("scatter_reduce", spelling, dim=dim, index=index, src=src, reduce=reduce,
                                               include_self=include_self)
        choice("there is no such way to combine", 'write reduce="sum", for example', reduce=reduce, among=_REDUCES)
        return self._scattered("scatter_reduce", reduce, include_self, *own)

    # -- rows and elements -----------------------------------------------------------------------------------
    def index_add(self, dim: int = REQUIRED, index: Self = REQUIRED, source: Self = REQUIRED, alpha: float = 1,
                  **spelling: Any) -> Self:
        """This tensor with slices of `source`, times alpha, added along an axis at the indices in a vector.

        >>> Tensor([[1, 1], [2, 2]]).index_add(0, Tensor([1]), Tensor([[5, 6]])).tolist()
        [[1, 1], [7, 8]]
        """
        dim, index, source, factor = arguments("index_add", spelling, dim=dim, index=index, source=source, alpha=alpha)
        value = source.uop if factor == 1 else mul(source.uop, factor)
        return self._by_slices(dim, index, value, "add", "index_add", source)

    def index_copy(self, dim: int = REQUIRED, index: Self = REQUIRED, source: Self = REQUIRED,
                   **spelling: Any) -> Self:
        """This tensor with slices of `source` written along an axis at the indices in a vector.

        >>> Tensor([[1, 1], [2, 2]]).index_copy(0, Tensor([1]), Tensor([[5, 6]])).tolist()
        [[1, 1], [5, 6]]
        """
        dim, index, source = arguments("index_copy", spelling, dim=dim, index=index, source=source)
        return self._by_slices(dim, index, source.uop, "set", "index_copy", source)

    def index_fill(self, dim: int = REQUIRED, index: Self = REQUIRED, value: Any = REQUIRED, **spelling: Any) -> Self:
        """This tensor with one value in the slices along an axis that a vector names.

        >>> Tensor([[1, 1], [2, 2]]).index_fill(1, Tensor([0]), 9).tolist()
        [[9, 1], [9, 2]]
        """
        dim, index, value = arguments("index_fill", spelling, dim=dim, index=index, value=value)
        axis = resolve_axis(dim, self.ndim, "index_fill")
        shape = tuple(index.numel() if a == axis else n for a, n in enumerate(self.shape))
        filler = as_node(self._operand(value), self.uop).cast(self.dtype)
        if filler.elements != 1:
            raise ShapeError("index_fill takes one value", given=f"a value of shape {filler.shape}",
                             expected="1 element", fix="use index_copy for slices")
        return self._by_slices(dim, index, filler.reshape(()).broadcast(shape), "set", "index_fill", value, True)

    def _by_slices(self, dim: int, index: Self, source: UOp, mode: str, what: str, other: Any,
                   from_end: bool = False) -> Self:
        axis = working_axis(dim, self.ndim, what)
        expected = tuple(index.numel() if a == axis else n for a, n in enumerate(self.shape))
        integer_index(what, index)
        if index.ndim > 1 or source.shape != expected:
            raise ShapeError(f"the slices of {what} do not fit", given=f"index {index.shape}, source {source.shape}",
                             expected=f"a vector as index and a source of shape {expected}", fix="check the shapes")
        return self._with(scatter_slices(self.uop, axis, index.uop, source, mode, from_end), index, other)

    def put(self, index: Self, source: Self, accumulate: bool = False) -> Self:
        """This tensor with values written (or added) at indices of its flattened elements; the inverse of `take`.

        >>> Tensor([[1, 2], [3, 4]]).put(Tensor([3, 0]), Tensor([9, 8])).tolist()
        [[8, 2], [3, 9]]
        """
        index, source, accumulate = arguments("put", index=index, source=source, accumulate=accumulate)
        integer_index("put", index)
        value = flatten(self._source(source._with(source.uop.reshape(index.shape)), index, "put"))
        mode = "add" if accumulate else "set"
        flat = scatter_slices(flatten(self.uop), 0, index.uop, value, mode, from_end=True)
        return self._with(flat.reshape(self.shape), index, source)

    def __delitem__(self, indices: Any) -> None:
        raise InputError("elements of a tensor cannot be deleted", given=f"del x[{indices!r}]",
                         expected="tensors keep their shape", fix="choose what to keep: x = x[keep]")
