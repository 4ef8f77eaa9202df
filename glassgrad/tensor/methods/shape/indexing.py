"""x[...] and x[...] = y. In: numbers, slices, None, ..., tensors, lists. Out: tensors.

Numbers, slices, None and ... only move: no copy. Tensors (and lists) of integers are one GATHER, whatever their
number: rows are looked up under one linear index. As in PyTorch, several index tensors broadcast together, and their
axes stand where the first of them stood if they are neighbours, else in front.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glassgrad.base.errors import IndexKindError, IndexRangeError, IndexShapeError, InputError, ShapeError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Scatter
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.symbolic import Length
from glassgrad.compiler.graph.uop import UOp, full
from glassgrad.tensor import evaluate as running, index_check
from glassgrad.tensor.broadcast import broadcast_shape, resolve_axis, shape_from, size_from, whole
from glassgrad.tensor.formulas.counting import counting
from glassgrad.tensor.memory.disk import no_place, on_disk, write
from glassgrad.tensor.methods.linalg.products import Linear

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Indexing"]


class Indexing(Linear):
    """x[...] and its kin."""
    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        parts = self._parts(key)
        view, picks = self._basic(parts)
        return self._with(_pick(view, picks)) if picks else self._with(view)

    def __setitem__(self, key: Any, value: Any) -> None:
        """x[key] = value gives this tensor a new value; tensors computed from the old one keep it."""
        parts = self._parts(key)
        there = None if on_disk(self.uop.device) else self.device
        new = value if isinstance(value, Indexing) else self.__class__(value, device=there, dtype=self.dtype)
        if there is None:
            view, picks = self._basic(parts)
            if picks:
                raise no_place(view)
            write(view, running.bytes_of(_fitted(new, view.shape, self), new.device))
            return
        held = self._rebind
        if len(parts) == 1 and isinstance(parts[0], Indexing) and parts[0].dtype is dtypes.bool and new.numel() == 1:
            mask = parts[0].reshape(parts[0].shape + (1,) * (self.ndim - parts[0].ndim))
            held(mask.where(new.cast(self.dtype).reshape(()), self))
            return
        view, picks = self._basic(parts)
        if not picks and _only_cuts(self.uop, view):
            held(self._with(_replaced(self.uop, view, _fitted(new, view.shape, self))))
            return
        # where each chosen element lives, by choosing from the count of all elements
        places = self._with(counting(self.numel(), dtypes.int64).reshape(self.shape))[key]
        held(self._with(_put(self.uop, places.uop, _fitted(new, places.shape, self))))

    # -- reading the key -------------------------------------------------------------------------------------
    def _parts(self, key: Any) -> list[Any]:
        """The key as one entry per axis (and per None), ... filled in; lists and masks as tensors of places."""
        keys = list(key) if isinstance(key, tuple) else [key]
        parts: list[Any] = []
        for k in keys:
            if isinstance(k, (bool, list, range, tuple)) \
                    or type(k).__module__ == "numpy" and getattr(k, "shape", ()) != ():
                k = self.__class__(k, device=self.device)
                if k.dtype.kind == "f" and k.numel() == 0:
                    k = k.cast(dtypes.int32)
            if k is None or k is Ellipsis or isinstance(k, slice):
                parts.append(k)
            elif isinstance(k, Indexing):
                if k.dtype.kind not in "iub":
                    raise IndexKindError("a tensor used as an index must hold integers or truth values",
                                         given=f"an index of {k.dtype.name}", expected="an integer or bool tensor",
                                         fix="cast it first: x[index.int()]")
                parts.append(k)
            elif isinstance(k, Length) or whole(k) is not None:
                parts.append(size_from(k))
            else:
                raise IndexKindError("cannot index a tensor with this", given=f"{k!r} of type {type(k).__name__}",
                                     expected="an int, a slice, None, ..., or an integer or bool tensor",
                                     fix="convert it to one of these")
        if len(parts) == 1 and isinstance(parts[0], Indexing) and parts[0].dtype is dtypes.bool:
            return parts
        return self._spread(parts)

    def _spread(self, parts: list[Any]) -> list[Any]:
        ellipses = sum(p is Ellipsis for p in parts)
        if ellipses > 1:
            raise IndexKindError("an index can hold only a single ellipsis (...)", given=f"{ellipses} of them",
                                 expected="at most one", fix="write out the other axes with :")
        expanded: list[Any] = []
        for p in parts:
            if isinstance(p, Indexing) and p.dtype is dtypes.bool:
                if not p.ndim:
                    raise IndexKindError("a single truth value stands alone in an index",
                                         given=f"it and {len(parts) - 1} more", expected="a mask with axes",
                                         fix="write x[mask][...]")
                expanded.extend(self._places_of(p))
            else:
                expanded.append(p)
        used = sum(p is not None and p is not Ellipsis for p in expanded)
        if used > self.ndim:
            raise IndexRangeError("too many indices for this tensor", given=f"{used} indices, shape {self.shape}",
                                  expected=f"at most {self.ndim}", fix="check the tensor's shape: print(x.shape)")
        rest = [slice(None)] * (self.ndim - used)
        if any(p is Ellipsis for p in expanded):
            at = next(i for i, p in enumerate(expanded) if p is Ellipsis)
            return expanded[:at] + rest + expanded[at + 1:]
        return expanded + rest

    def _places_of(self, mask: Indexing) -> list[Self]:
        """A mask as index tensors, one per axis of it; how many are true is known only by computing it."""
        found = running.array_of(mask.uop, mask.device).nonzero()
        return [self.__class__(axis.astype("int64"), device=self.device) for axis in found]

    def _basic(self, parts: list[Any]) -> tuple[UOp, list[tuple[int, Indexing]]]:
        """The view that numbers, slices and None give, and the tensors still to look up, by axis of the view."""
        if len(parts) == 1 and isinstance(parts[0], Indexing) and parts[0].dtype is dtypes.bool:
            mask = parts[0]
            if mask.shape != self.shape[:mask.ndim]:
                raise IndexShapeError("the mask does not fit the tensor",
                                      given=f"a mask of {mask.shape} for {self.shape}",
                                      expected=f"a mask of shape {self.shape[:max(mask.ndim, 1)]}",
                                      fix="compare along these axes")
            if not mask.ndim:           # one truth value: all of the tensor, or nothing, along a new axis
                some = int(running.array_of(mask.uop, mask.device).item())
                return self.uop.reshape((1, *self.shape)).shrink(((0, some), *((0, n) for n in self.shape))), []
            parts = self._spread(parts)
        x = self.uop
        bounds: list[tuple[Any, Any]] = []
        strides: list[int] = []
        shape: list[int] = []                       # of the result, before strides above 1 are applied
        picks: list[tuple[int, Indexing]] = []
        axis = 0
        for p in parts:
            if p is None:
                shape.append(1)
                continue
            n = x.shape[axis]
            if isinstance(p, (int, Length)):
                self._check_range(p, axis)
                place = p + n if p < 0 else p
                bounds.append((place, place + 1))
                strides.append(1)
            elif isinstance(p, slice):
                start, stop, step = self._slice(p, n)
                bounds.append((start, stop))
                strides.append(step)
                shape.append(-(-(stop - start) // abs(step)))
            else:
                if settings.CHECK_INDEX:
                    index_check.refuse_stored(p.uop, running.few_numbers(p.uop), axis, self.shape, from_end=True)
                picks.append((len(shape), p))
                bounds.append((0, n))
                strides.append(1)
                shape.append(n)
            axis += 1
        x = x.shrink(bounds).flip([i for i, s in enumerate(strides) if s < 0])
        for i, s in enumerate(strides):
            x = _every(x, i, abs(s))
        return x.reshape(tuple(shape)), picks

    def _check_range(self, index: Any, axis: int) -> None:
        n = self.shape[axis]
        if -n <= index < n:
            return
        raise IndexRangeError("the index is out of bounds", given=f"index {index} on axis {axis} of {self.shape}",
                              expected=f"an index from {-n} to {n - 1}" if n else "an axis that has elements",
                              fix="check the tensor's shape: print(x.shape)")

    def _slice(self, p: slice, n: int) -> tuple[int, int, int]:
        """A slice as (start, stop, step) with 0 <= start <= stop; a negative step reads that part backward."""
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
        count = len(range(start, stop, step))
        if count == 0:
            return 0, 0, 1
        if step > 0:
            return start, stop, step
        last = start + (count - 1) * step
        return last, start + 1, step

    def _symbolic_slice(self, p: slice, n: Any) -> tuple[Any, Any, int]:
        """A slice with a symbolic end, or of a symbolic axis."""
        start, stop = (default if end is None else size_from(end) for end, default in ((p.start, 0), (p.stop, n)))
        start, stop = (end + n if end < 0 else end for end in (start, stop))
        if p.step not in (None, 1) or not 0 <= start <= stop <= n:
            raise IndexRangeError("a symbolic slice does not fit its axis",
                                  given=f"[{start}:{stop}{'' if p.step is None else f':{p.step}'}] of an axis of {n}",
                                  expected="0 <= start <= stop <= size, and steps of 1",
                                  fix="check the bounds; flip(), or reshape and index, for other steps")
        return start, stop, 1

    # -- looking up by name ----------------------------------------------------------------------------------
    def gather(self, dim: int, index: Self) -> Self:
        """out[i, j] = x[index[i, j], j] for dim 0, and so on: along an axis, the elements an index of equal rank names.
        As in PyTorch, nothing is counted from the end here: -1 is no place.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[0], [1]])).tolist()
        [[1], [4]]
        """
        return self._gathered(dim, index, from_end=False)

    def _gathered(self, dim: int, index: Self, from_end: bool) -> Self:
        axis = resolve_axis(dim, self.ndim, "gather")
        if index.ndim != self.ndim or any(i > n for a, (i, n) in enumerate(zip(index.shape, self.shape)) if a != axis):
            raise ShapeError("the index does not fit the tensor",
                             given=f"index {index.shape} for {self.shape}, dim={dim}",
                             expected="as many axes, and sizes that are not larger except along dim",
                             fix="check the shapes")
        x = self.uop.shrink([(0, n if a == axis else i) for a, (n, i) in enumerate(zip(self.shape, index.shape))])
        picks: list[tuple[int, Indexing]] = []
        for a, n in enumerate(index.shape):
            count = counting(n, dtypes.int64).reshape((1,) * a + (n,) + (1,) * (index.ndim - a - 1))
            picks.append((a, index if a == axis else self._with(count.expand(index.shape))))
        return self._with(_pick(x, picks, from_end)) if self.ndim else self.reshape(index.shape)

    def take_along_dim(self, indices: Self, dim: int | None = None) -> Self:
        """`gather` with this and the places broadcast to each other; without an axis, of the flattened tensor. Along an
        axis -1 is the last place.

        >>> Tensor([[3, 1]]).take_along_dim(Tensor([[1], [0]]), 1).tolist()
        [[1], [3]]
        """
        if dim is None:
            return self.flatten().gather(0, indices.flatten())
        axis = resolve_axis(dim, self.ndim, "take_along_dim")
        if indices.ndim != self.ndim:
            raise ShapeError("the index of take_along_dim does not fit", given=f"{indices.shape} for {self.shape}",
                             expected=f"{self.ndim} axes", fix="insert axes of size 1 with unsqueeze")
        wide = [max(n, m) if 0 not in (n, m) else 0 for n, m in zip(self.shape, indices.shape)]
        own = [self.shape[a] if a == axis else n for a, n in enumerate(wide)]
        its = [indices.shape[a] if a == axis else n for a, n in enumerate(wide)]
        return self.expand(own)._gathered(axis, indices.expand(its), from_end=True)

    def index_select(self, dim: int, index: Self) -> Self:
        """The slices along one axis that a vector of places names.

        >>> Tensor([[1, 2], [3, 4]]).index_select(1, Tensor([1, 1])).tolist()
        [[2, 2], [4, 4]]
        """
        axis = resolve_axis(dim, self.ndim, "index_select")
        return self._slices_at(axis, index)

    def _slices_at(self, axis: int, index: Self) -> Self:
        """x[:, .., index], where -1 is no place: rows of a table, or of another axis."""
        if index.dtype.kind not in "iu":
            return self[(slice(None),) * axis + (index,)]
        if settings.CHECK_INDEX:
            index_check.refuse_stored(index.uop, running.few_numbers(index.uop), axis, self.shape, from_end=False)
        return self._with(_pick(self.uop, [(axis, index)], from_end=False))

    def repeat_interleave(self, repeats: Any, dim: int | None = None) -> Self:
        """Each element several times in a row, along one axis or flattened: as often as a number says, or as a vector
        says of each.

        >>> Tensor([1, 2]).repeat_interleave(2).tolist(), Tensor([1, 2]).repeat_interleave(Tensor([3, 1])).tolist()
        ([1, 1, 2, 2], [1, 1, 1, 2])
        """
        x = self if dim is not None and self.ndim else self.flatten()
        axis = resolve_axis(dim if dim is not None else 0, x.ndim, "repeat_interleave")
        if isinstance(repeats, (list, tuple)) or hasattr(repeats, "__array_interface__"):
            repeats = self.__class__(repeats, device=self.device)
        if isinstance(repeats, Indexing):
            return x.index_select(axis, x._in_a_row(repeats, x.shape[axis]))
        [times] = shape_from((repeats,), "repeat_interleave")
        if times < 0:
            raise _not_so_often(times)
        before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1:]
        y = x.uop.reshape((*before, n, 1, *after)).expand((*before, n, times, *after))
        return self._with(y.reshape((*before, n * times, *after)))

    def _in_a_row(self, repeats: Indexing, n: int) -> Self:
        """Each of n places as often as its number says. The numbers are computed: they say how much there will be."""
        if repeats.dtype.kind not in "iu" or repeats.ndim > 1 or repeats.numel() not in (1, n):
            raise InputError("the repeats do not fit the axis",
                             given=f"{repeats.dtype.name} of shape {repeats.shape} for {n} elements",
                             expected="one integer, or one for each element", fix="check the axis")
        counts = running.array_of(repeats.expand(n).uop, repeats.device)
        if (counts < 0).any():
            raise _not_so_often(counts.min())
        places = [place for place, count in enumerate(counts.tolist()) for _ in range(count)]
        return self.__class__(places, device=self.device, dtype=dtypes.int32)

    def take(self, index: Self) -> Self:
        """The elements of the flattened tensor that places name.

        >>> Tensor([[1, 2], [3, 4]]).take(Tensor([3, 0])).tolist()
        [4, 1]
        """
        return self.flatten()[index]

    def masked_fill(self, mask: Self, value: Any) -> Self:
        """This with `value` where a mask is true.

        >>> Tensor([1, 2, 3]).masked_fill(Tensor([True, False, True]), 9).tolist()
        [9, 2, 9]
        """
        return mask.where(value, self)


def _not_so_often(times: Any) -> InputError:
    return InputError("nothing can be repeated so often", given=f"repeats={times}", expected="0 or more",
                      fix="write x.repeat_interleave(2), for example")


# -- on nodes ------------------------------------------------------------------------------------------------
def _every(x: UOp, axis: int, step: int) -> UOp:
    """Each step-th element along an axis: pad to a multiple, split, keep the first of each."""
    if step == 1:
        return x
    n = x.shape[axis]
    count = -(-n // step)
    padded = x.pad([(0, count * step - n) if i == axis else (0, 0) for i in range(len(x.shape))])
    before, after = x.shape[:axis], x.shape[axis + 1:]
    split = padded.reshape((*before, count, step, *after))
    return split.shrink([(0, 1) if i == axis + 1 else (0, m) for i, m in enumerate(split.shape)]).reshape(
        (*before, count, *after))


def _pick(x: UOp, picks: list[tuple[int, Indexing]], from_end: bool = True) -> UOp:
    """Look up: one GATHER of the picked axes, brought to the front and made one, under the linear index. `from_end`: -1
    is the last place."""
    single = [(axis, index) for axis, index in picks if not index.shape]
    if 0 < len(single) < len(picks):        # a tensor of one number is a number: its axis goes, and parts no neighbours
        gone = [axis for axis, _ in single]
        others = [(axis - sum(g < axis for g in gone), index) for axis, index in picks if index.shape]
        return _pick(_pick(x, single, from_end), others, from_end)
    axes = [a for a, _ in picks]
    shape: tuple[int, ...] = ()
    for _, index in picks:
        shape = broadcast_shape(shape, index.shape)
    linear: UOp | None = None
    outside: UOp | None = None
    for axis, index in picks:
        n = x.shape[axis]
        place = index.uop.cast(dtypes.int64) if len(picks) > 1 or index.dtype.bits < 32 else index.uop
        if place.dtype.kind == "i" and from_end:
            place = (place < 0).where(place + n, place)
        place = place.broadcast(shape)
        if len(picks) > 1 and settings.CHECK_INDEX:     # a bad place stays bad in the linear index, for who looks there
            bad = index_check.outside(place, n)
            outside = bad if outside is None else outside | bad
        elif len(picks) > 1:
            place = index_check.nearest(place, n)
        linear = place if linear is None else linear * n + place
    assert linear is not None
    if outside is not None:
        linear = outside.where(-1, linear)
    rows_count = math.prod(x.shape[a] for a in axes)
    watched = [index_check.Pick(index.uop, x.shape[axis], axis, from_end) for axis, index in picks]
    index_check.watch(linear, watched, x.shape, rows_count)
    rest = [a for a in range(len(x.shape)) if a not in axes]
    rows = x.permute(axes + rest)
    tail = tuple(x.shape[a] for a in rest)
    rows = rows.reshape((rows_count, *tail))
    found = UOp(o.GATHER, x.dtype, (rows, linear))
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    lead = axes[0] if together else 0               # how many of the remaining axes stand before the looked-up ones
    order = [len(shape) + i for i in range(lead)] + list(range(len(shape))) + \
        [len(shape) + i for i in range(lead, len(rest))]
    return found.permute(order)


# -- writing -------------------------------------------------------------------------------------------------
VIEWS = frozenset((o.RESHAPE, o.PERMUTE, o.SHRINK, o.FLIP))     # movements that show each element once, and no others


def again(view: UOp, x: UOp, other: UOp) -> UOp:
    """The movements that lead from x to a view of it, over another node of x's shape."""
    return other if view is x else UOp(view.op, other.dtype, (again(view.src[0], x, other),), view.arg)


def replaced_part(x: UOp, view: UOp, value: UOp) -> UOp:
    """x with what a view of it shows replaced."""
    if _only_cuts(x, view):
        return _replaced(x, view, value)
    return _put(x, again(view, x, counting(math.prod(x.shape), dtypes.int64).reshape(x.shape)), value)


def _put(x: UOp, places: UOp, value: UOp) -> UOp:
    """x with values put to places, which count its elements row by row."""
    n = math.prod(places.shape)
    flat = (x.reshape((math.prod(x.shape),)), places.reshape((n,)), value.reshape((n,)))
    return UOp(o.SCATTER, x.dtype, flat, Scatter("set")).reshape(x.shape)


def _only_cuts(x: UOp, view: UOp) -> bool:
    """Whether a view is a plain part of x, perhaps with axes of size 1 dropped or added."""
    while view.op is o.RESHAPE:
        view = view.src[0]
    return view is x or view.op is o.SHRINK and view.src[0] is x


def _replaced(x: UOp, view: UOp, value: UOp) -> UOp:
    """x with the part that `view` shows replaced by `value`."""
    while view.op is o.RESHAPE:
        view = view.src[0]
    if view is x:
        return value.reshape(x.shape)
    around = [(start, n - stop) for n, (start, stop) in zip(x.shape, view.arg.bounds)]
    inside = full(view.shape, True, dtypes.bool).pad(around)
    return UOp(o.WHERE, x.dtype, (inside, value.reshape(view.shape).pad(around), x))


def _fitted(value: Indexing, shape: tuple[int, ...], target: Indexing) -> UOp:
    """A value broadcast to the part it replaces."""
    if value.dtype.kind == "f" and target.dtype.kind != "f":
        raise InputError("the value does not fit the tensor's type",
                         given=f"{value.dtype.name} into {target.dtype.name}",
                         expected=f"values of {target.dtype.name}", fix=f"cast it: value.cast({target.dtype!r})")
    node = value.uop.cast(target.dtype)
    extra = len(node.shape) - len(shape)
    if extra > 0 and all(n == 1 for n in node.shape[:extra]):
        node = node.reshape(node.shape[extra:])
    if len(node.shape) > len(shape) or any(n != m and n != 1 for n, m in zip(node.shape[::-1], shape[::-1])):
        raise ShapeError("the value does not fit the part it replaces", given=f"{value.shape} into {shape}",
                         expected="the same sizes, or sizes of 1", fix="reshape or expand the value")
    return node.broadcast(shape)
