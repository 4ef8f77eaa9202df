"""Index tensors: x[...] and x[...] = y. In: numbers, slices, None, ..., tensors, lists. Out: tensors.

Numbers, slices, None and ... only move elements, without a copy. Tensors (and lists) of integers are one GATHER,
whatever their number: rows are looked up under one linear index. As in PyTorch, several index tensors broadcast
together, and their axes come where the first of them was if they are adjacent, else in front.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from glassgrad.base.errors import IndexKindError, IndexRangeError, IndexShapeError, InputError, ShapeError
from glassgrad.compiler.graph import DType, Length, UOp, dtypes
from glassgrad.tensor import index_range_check, realize_and_read as running
from glassgrad.tensor.formulas import (every, flatten, gather, linear_indices, lookup, put, repeat_interleave,
                                       replace_part, where)
from glassgrad.tensor.memory.disk import no_place, on_disk, write
from glassgrad.tensor.memory.python_values import true_indices_by_axis
from glassgrad.tensor.memory.storage import applied, steps_between
from glassgrad.tensor.methods import (REQUIRED, Self, TensorBase, arguments, broadcast_to, broadcasts_to, index_fits,
                                      of_kind, resolve_axis, shape_from, size_from, spelled, whole)


class IndexingMixin(TensorBase):
    """Indexing, and methods like it."""
    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        view, picks = self._basic(self._parts(key))
        return self._with(lookup(view, picks)) if picks else self._view(view)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Give this tensor a new value by x[key] = value; tensors computed from the old value keep it."""
        parts = self._parts(key)
        there = None if on_disk(self.uop.device) else self.device
        new = value if isinstance(value, TensorBase) else self._made_of(value, device=there, dtype=self.dtype)
        if there is None:
            view, picks = self._basic(parts)
            if picks:
                raise no_place(view)
            write(view, running.bytes_of(_fitted(new.uop, view.shape, self.dtype), new.device))
            return
        x = self.uop
        if len(parts) == 1 and isinstance(parts[0], TensorBase) and parts[0].dtype is dtypes.bool and new.numel() == 1:
            mask = parts[0].uop.reshape(parts[0].shape + (1,) * (self.ndim - parts[0].ndim))
            self._rebind(self._with(where(mask, new.uop.cast(self.dtype).reshape(()), x)))
            return
        view, picks = self._basic(parts)
        if picks:
            numbers = self._element_numbers(view, picks)
            replaced = put(x, numbers, _fitted(new.uop, numbers.shape, self.dtype))
        else:
            replaced = replace_part(x, steps_between(x, view), _fitted(new.uop, view.shape, self.dtype))
        self._rebind(self._with(replaced), leaf=view is x and not picks)       # x[...] = value replaces all of x

    def _element_numbers(self, view: UOp, picks: list[tuple[int, UOp]]) -> UOp:
        """Return the linear indices of the elements that a key selects, given what `_basic` makes of the key."""
        numbers = applied(steps_between(self.uop, view), linear_indices(self.shape, dtypes.int64))
        return lookup(numbers, picks) if picks else numbers

    # -- reading the key -------------------------------------------------------------------------------------
    def _parts(self, key: Any) -> list[Any]:
        """Return the parts of a key, with lists and arrays as tensors."""
        keys = list(key) if isinstance(key, tuple) else [key]
        parts: list[Any] = []
        for k in keys:
            if isinstance(k, (bool, list, range, tuple)) \
                    or type(k).__module__ == "numpy" and getattr(k, "shape", ()) != ():
                k = self._made_of(k, device=self.device)
                if k.dtype.kind == "f" and k.numel() == 0:
                    k = k.cast(dtypes.int32)
            if isinstance(k, TensorBase):
                _integers(k, "x[index.int()]")
            elif isinstance(k, Length) or whole(k) is not None:
                k = size_from(k)
            elif not (k is None or k is Ellipsis or isinstance(k, slice)):
                raise IndexKindError("cannot index a tensor with this", given=f"{k!r} of type {type(k).__name__}",
                                     expected="an int, a slice, None, ..., or an integer or bool tensor",
                                     fix="convert it to one of these")
            parts.append(k)
        return parts

    def _spread(self, parts: list[Any]) -> list[Any]:
        """Return one part per axis (and per None), with ... expanded, and masks as tensors of indices."""
        ellipses = sum(p is Ellipsis for p in parts)
        if ellipses > 1:
            raise IndexKindError("an index can hold only a single ellipsis (...)", given=f"{ellipses} of them",
                                 expected="at most one", fix="write out the other axes with :")
        expanded: list[Any] = []
        for p in parts:
            if isinstance(p, TensorBase) and p.dtype is dtypes.bool:
                if not p.ndim:
                    raise IndexKindError("a single truth value stands alone in an index",
                                         given=f"it and {len(parts) - 1} more", expected="a mask with axes",
                                         fix="write x[mask][...]")
                found = true_indices_by_axis(running.bytes_of(p.uop, p.device), p.shape)
                expanded.extend(self._made_of(axis, device=self.device) for axis in found)
            else:
                expanded.append(p)
        used = sum(p is not None and p is not Ellipsis for p in expanded)
        if used > self.ndim:
            raise IndexRangeError("too many indices for this tensor", given=f"{used} indices, shape {self.shape}",
                                  expected=f"at most {self.ndim}", fix="check the tensor's shape: print(x.shape)")
        if not ellipses:
            expanded.append(Ellipsis)
        at = next(i for i, p in enumerate(expanded) if p is Ellipsis)
        return expanded[:at] + [slice(None)] * (self.ndim - used) + expanded[at + 1:]

    def _basic(self, parts: list[Any]) -> tuple[UOp, list[tuple[int, UOp]]]:
        """Return the view that numbers, slices and None select, and the tensors still to look up, by axis of
        the view."""
        if len(parts) == 1 and isinstance(parts[0], TensorBase) and parts[0].dtype is dtypes.bool:
            mask = parts[0]
            if mask.shape != self.shape[:mask.ndim]:
                raise IndexShapeError("the mask does not fit the tensor",
                                      given=f"a mask of {mask.shape} for {self.shape}",
                                      expected=f"a mask of shape {self.shape[:max(mask.ndim, 1)]}",
                                      fix="compare along these axes")
            if not mask.ndim:           # one boolean: all of the tensor, or nothing, along a new axis
                some = int(running.number_in(mask.uop, mask.device))
                return self.uop.reshape((1, *self.shape)).shrink(((0, some), *((0, n) for n in self.shape))), []
        x = self.uop
        bounds: list[tuple[Any, Any]] = []
        strides: list[int] = []
        shape: list[int] = []                       # of the result, before strides above 1 are applied
        picks: list[tuple[int, UOp]] = []
        axis = 0
        for p in self._spread(parts):
            if p is None:
                shape.append(1)
                continue
            n = x.shape[axis]
            start: Any = 0
            stop, step = n, 1
            if isinstance(p, (int, Length)):
                if not -n <= p < n:
                    raise IndexRangeError(
                        "the index is out of bounds", given=f"index {p} on axis {axis} of {self.shape}",
                        expected=f"an index from {-n} to {n - 1}" if n else "an axis that has elements",
                        fix="check the tensor's shape: print(x.shape)")
                start = p + n if p < 0 else p
                stop = start + 1
            elif isinstance(p, slice):
                start, stop, step = self._slice(p, n)
                shape.append(-(-(stop - start) // abs(step)))
            else:
                if index_range_check.checking():
                    index_range_check.refuse_stored(p.uop, running.host_values, axis, self.shape, from_end=True)
                picks.append((len(shape), p.uop))
                shape.append(n)
            bounds.append((start, stop))
            strides.append(step)
            axis += 1
        x = x.shrink(bounds).flip([i for i, s in enumerate(strides) if s < 0])
        for i, s in enumerate(strides):
            x = every(x, i, abs(s))
        return x.reshape(tuple(shape)), picks

    def _slice(self, p: slice, n: int) -> tuple[int, int, int]:
        """Return a slice as (start, stop, step) with 0 <= start <= stop; a negative step reads that part backward."""
        for end in (p.start, p.stop, p.step):
            if end is not None and not isinstance(end, (bool, Length)) and whole(end) is None:
                raise InputError("slices are made of integers", given=f"{end!r} of type {type(end).__name__}",
                                 expected="ints or nothing: x[1:3]", fix="convert it with int() or .item()")
        if p.step is not None and p.step.__index__() == 0:
            raise InputError("a slice needs steps that lead somewhere", given="step 0", expected="a step that is not 0",
                             fix="write x[::2], for example")
        if any(isinstance(end, Length) for end in (p.start, p.stop, n)):
            return self._symbolic_slice(p, n)
        start, stop, step = p.indices(n)
        if not range(start, stop, step):
            return 0, 0, 1
        return (start, stop, step) if step > 0 else (stop + 1, start + 1, step)

    def _symbolic_slice(self, p: slice, n: Any) -> tuple[Any, Any, int]:
        """Return a slice with a symbolic end, or of a symbolic axis."""
        start, stop = (default if end is None else size_from(end) for end, default in ((p.start, 0), (p.stop, n)))
        start, stop = (end + n if end < 0 else end for end in (start, stop))
        if p.step not in (None, 1) or not 0 <= start <= stop <= n:
            raise IndexRangeError("a symbolic slice does not fit its axis",
                                  given=f"[{start}:{stop}{'' if p.step is None else f':{p.step}'}] of an axis of {n}",
                                  expected="0 <= start <= stop <= size, and steps of 1",
                                  fix="check the bounds; flip(), or reshape and index, for other steps")
        return start, stop, 1

    def index_put(self, indices: Sequence[Any], values: Self, accumulate: bool = False) -> Self:
        """A copy of this tensor with x[indices] = values; or, with `accumulate`, += values, once per occurrence of an
        index.

        >>> Tensor([1, 2]).index_put((Tensor([0, 0]),), Tensor([10, 20]), accumulate=True).tolist()
        [31, 2]
        """
        values, accumulate = arguments("index_put", values=values, accumulate=accumulate)
        key = tuple(of_kind("list", "index_put", indices=indices))
        numbers = self._element_numbers(*self._basic(self._parts(key)))
        source = broadcast_to("index_put", values.uop.cast(self.dtype), numbers.shape)
        return self._with(put(self.uop, numbers, source, "add" if accumulate else "set"), values)

    # -- looking up by name ----------------------------------------------------------------------------------
    def gather(self, dim: int = REQUIRED, index: Self = REQUIRED, **spelling: Any) -> Self:
        """The elements along an axis that an index of the same rank names: out[i, j] = x[index[i, j], j] for dim 0, and
        so on. As in PyTorch, indices do not count from the end here: -1 is out of range.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[0], [1]])).tolist()
        [[1], [4]]
        """
        dim, index = arguments("gather", spelling, dim=dim, index=index)
        axis = resolve_axis(dim, self.ndim, "gather")
        index_fits(self, index, axis, dim)
        return self._with(gather(self.uop, axis, _integers(index)), index)

    def take_along_dim(self, indices: Self = REQUIRED, dim: int | None = None, **spelling: Any) -> Self:
        """`gather` with this tensor and the indices broadcast to each other; without an axis, from the flattened
        tensor. Along an axis, -1 is the last element.

        >>> Tensor([[3, 1]]).take_along_dim(Tensor([[1], [0]]), 1).tolist()
        [[1], [3]]
        """
        indices, dim = arguments("take_along_dim", spelling, indices=indices, dim=dim)
        index = _integers(indices)
        if dim is None:
            return self._with(gather(flatten(self.uop), 0, flatten(index)), indices)
        axis = resolve_axis(dim, self.ndim, "take_along_dim")
        wide = [max(n, m) if 0 not in (n, m) else 0 for n, m in zip(self.shape, indices.shape)]
        own, its = (tuple(shape[a] if a == axis else n for a, n in enumerate(wide))
                    for shape in (self.shape, indices.shape))
        if indices.ndim != self.ndim or not (broadcasts_to(self.shape, own) and broadcasts_to(indices.shape, its)):
            raise ShapeError("the index of take_along_dim does not fit", given=f"{indices.shape} for {self.shape}",
                             expected=f"{self.ndim} axes of sizes that are equal, or 1, except along dim",
                             fix="insert axes of size 1 with unsqueeze")
        return self._with(gather(self.uop.broadcast(own), axis, index.broadcast(its), from_end=True), indices)

    def index_select(self, dim: int = REQUIRED, index: Self = REQUIRED, **spelling: Any) -> Self:
        """The slices along one axis that a vector of indices names.

        >>> Tensor([[1, 2], [3, 4]]).index_select(1, Tensor([1, 1])).tolist()
        [[2, 2], [4, 4]]
        """
        dim, index = arguments("index_select", spelling, dim=dim, index=index)
        axis = resolve_axis(dim, self.ndim, "index_select")
        if index.dtype.kind not in "iu" or not self.ndim:
            return self[(slice(None),) * axis + (index,)]
        if index_range_check.checking():
            index_range_check.refuse_stored(index.uop, running.host_values, axis, self.shape, from_end=False)
        return self._with(lookup(self.uop, [(axis, index.uop)], from_end=False), index)

    def select(self, dim: int = REQUIRED, index: int = REQUIRED, **spelling: Any) -> Self:
        """One slice of an axis, without the axis.

        >>> Tensor([[1, 2], [3, 4]]).select(1, 0).tolist()
        [1, 3]
        """
        dim, index = spelled("select", spelling, dim=dim, index=index)
        return self[(slice(None),) * resolve_axis(dim, self.ndim, "select") + (index,)]

    def repeat_interleave(self, repeats: Any, dim: int | None = None, **spelling: Any) -> Self:
        """Each element repeated several times in a row, along one axis or flattened: the same number of times, or as
        often as a vector says for each element.

        >>> Tensor([1, 2]).repeat_interleave(2).tolist(), Tensor([1, 2]).repeat_interleave(Tensor([3, 1])).tolist()
        ([1, 1, 2, 2], [1, 1, 1, 2])
        """
        dim, = spelled("repeat_interleave", spelling, dim=dim)
        x = self.uop if dim is not None and self.ndim else flatten(self.uop)
        axis = resolve_axis(dim if dim is not None else 0, len(x.shape), "repeat_interleave")
        if isinstance(repeats, (list, tuple)) or hasattr(repeats, "__array_interface__"):
            repeats = self._made_of(repeats, device=self.device)
        if isinstance(repeats, TensorBase):
            return self._with(x).index_select(axis, self._repeated_indices(repeats, x.shape[axis]))
        [times] = shape_from((repeats,), "repeat_interleave")
        if times < 0:
            raise _negative_repeats(times)
        return self._with(repeat_interleave(x, times, axis))

    def _repeated_indices(self, repeats: TensorBase, n: int) -> Self:
        """Return the indices 0 .. n - 1, each repeated by its count. The counts are read now, because they decide the
        length."""
        if repeats.dtype.kind not in "iu" or repeats.ndim > 1 or repeats.numel() not in (1, n):
            raise InputError("the repeats do not fit the axis",
                             given=f"{repeats.dtype.name} of shape {repeats.shape} for {n} elements",
                             expected="one integer, or one for each element", fix="check the axis")
        counts = list(running.numbers_of(repeats.uop.broadcast((n,)), repeats.device)) if n else []
        if min(counts, default=0) < 0:
            raise _negative_repeats(min(counts))
        if sum(counts) > dtypes.int32.max:
            raise InputError("the repeats are too many", given=f"{sum(counts):,} elements along one axis",
                             expected=f"at most {dtypes.int32.max:,}", fix="check the counts: print(repeats.max())")
        indices = array("i")
        for index, count in enumerate(counts):
            indices.extend(array("i", (index,)) * count)
        return self._made_of(indices, device=self.device)

    def take(self, index: Self) -> Self:
        """The elements of the flattened tensor that indices name.

        >>> Tensor([[1, 2], [3, 4]]).take(Tensor([3, 0])).tolist()
        [4, 1]
        """
        return self._with(flatten(self.uop))[index]

    def masked_fill(self, mask: Self, value: Any = REQUIRED, **spelling: Any) -> Self:
        """This tensor with `value` where a mask is true.

        >>> Tensor([1, 2, 3]).masked_fill(Tensor([True, False, True]), 9).tolist()
        [9, 2, 9]
        """
        mask, value = arguments("masked_fill", spelling, mask=mask, value=value)
        return mask._with(where(mask.uop, self._operand(value, "in where"), self.uop), self, value)


def _integers(index: TensorBase, cast: str = "index.int()") -> UOp:
    """Return the node of an index tensor; `cast` is how to convert it if it holds floats, for the message."""
    if index.dtype.kind not in "iub":
        raise IndexKindError("a tensor used as an index must hold integers or truth values",
                             given=f"an index of {index.dtype.name}", expected="an integer or bool tensor",
                             fix=f"cast it first: {cast}")
    return index.uop


def _negative_repeats(times: Any) -> InputError:
    return InputError("nothing can be repeated so often", given=f"repeats={times}", expected="0 or more",
                      fix="write x.repeat_interleave(2), for example")


def _fitted(value: UOp, shape: tuple[int, ...], dtype: DType) -> UOp:
    """Return a value broadcast to the part that it replaces."""
    if value.dtype.kind == "f" and dtype.kind != "f":
        raise InputError("the value does not fit the tensor's type", given=f"{value.dtype.name} into {dtype.name}",
                         expected=f"values of {dtype.name}", fix=f"cast it: value.cast({dtype!r})")
    node = value.cast(dtype)
    extra = len(node.shape) - len(shape)
    if extra > 0 and all(n == 1 for n in node.shape[:extra]):
        node = node.reshape(node.shape[extra:])
    if not broadcasts_to(node.shape, shape):
        raise ShapeError("the value does not fit the part it replaces", given=f"{value.shape} into {shape}",
                         expected="the same sizes, or sizes of 1", fix="reshape or expand the value")
    return node.broadcast(shape)
