"""Where a view's elements are in memory: strides, offset and mask. In: movement nodes. Out: `View`, `ShapeTracker`.

Lowering does not read these (it pushes loop counters through the movement nodes); they are shown to users
(`tensor.uop.st`), and serve zero-copy export and sub-buffers. One `View` is an affine map with a box of valid indices;
what one cannot say (a reshape of a transpose, say) becomes a stack of them. Whether two merge into one is decided by
index arithmetic: write the upper view's addresses, take them apart in the lower view's shape, and see whether what
comes out is affine again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.arguments import Range
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.compiler.graph.index_algebra import add, bounds, build, divide, index, linear, modulo, multiply
from glassgrad.compiler.graph.ops import Kind
from glassgrad.compiler.graph.uop import UOp

Mask = tuple[tuple[int, int], ...]      # per axis, the valid indices: first <= i < last


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a plain array; axes of size 1 have stride 0, and so has everything where there are no elements.

    >>> row_major((2, 3, 4)), row_major((2, 1, 4))
    ((12, 4, 1), (4, 0, 1))
    """
    if 0 in shape:
        return (0,) * len(shape)
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step if n != 1 else 0)
        step *= n
    return tuple(reversed(strides))


@dataclass(frozen=True)
class View:
    """Element (i, j) is at offset + i*strides[0] + j*strides[1]; outside the mask it is 0, and is not in memory."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    mask: Mask | None = None

    @staticmethod
    def of(shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0,
           mask: Mask | None = None) -> View:
        """A view in canonical form: equal maps are equal views."""
        shape = tuple(shape)
        if strides is None or 0 in shape:
            return View(shape, row_major(shape))
        if mask is not None and all(m == (0, n) for m, n in zip(mask, shape)):
            mask = None
        if mask is not None and any(first >= last for first, last in mask):
            return View(shape, (0,) * len(shape), 0, ((0, 0),) * len(shape))
        strides = list(strides)
        for axis, n in enumerate(shape):        # an axis with one valid index needs no stride
            first, last = mask[axis] if mask is not None else (0, n)
            if last - first == 1:
                offset += first * strides[axis]
                strides[axis] = 0
        return View(shape, tuple(strides), offset, mask)

    def __repr__(self) -> str:
        return (f"View(shape={self.shape}, strides={self.strides}, offset={self.offset}, mask={self.mask}, "
                f"contiguous={self.contiguous})")

    @property
    def contiguous(self) -> bool:
        return self.offset == 0 and self.mask is None and self.strides == row_major(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def _valid(self) -> Mask:
        return self.mask if self.mask is not None else tuple((0, n) for n in self.shape)

    def place(self, indices: Sequence[int]) -> int | None:
        """The address of one element, or None where the mask says it is 0."""
        if any(not first <= i < last for i, (first, last) in zip(indices, self._valid())):
            return None
        return self.offset + sum(i * s for i, s in zip(indices, self.strides))

    # -- moves that one view always can ----------------------------------------------------------------------
    def permute(self, order: Sequence[int]) -> View:
        mask = None if self.mask is None else tuple(self.mask[a] for a in order)
        return View.of([self.shape[a] for a in order], [self.strides[a] for a in order], self.offset, mask)

    def expand(self, shape: Sequence[int]) -> View:
        mask = tuple((0, n) if m == (0, old) else m for m, n, old in zip(self._valid(), shape, self.shape))
        strides = [s if n == old else 0 for s, n, old in zip(self.strides, shape, self.shape)]
        return View.of(shape, strides, self.offset, mask)

    def pad(self, padding: Sequence[tuple[int, int]]) -> View:
        mask = tuple((first + before, last + before) for (first, last), (before, _) in zip(self._valid(), padding))
        shape = [n + before + after for n, (before, after) in zip(self.shape, padding)]
        if self.size == 0:
            return View.of(shape, self.strides, 0, ((0, 0),) * len(shape))
        offset = self.offset - sum(before * s for (before, _), s in zip(padding, self.strides))
        return View.of(shape, self.strides, offset, mask)

    def shrink(self, ends: Sequence[tuple[int, int]]) -> View:
        shape = [stop - start for start, stop in ends]
        mask = tuple((min(max(first - start, 0), n), min(max(last - start, 0), n))
                     for (first, last), (start, _), n in zip(self._valid(), ends, shape))
        offset = self.offset + sum(start * s for (start, _), s in zip(ends, self.strides))
        return View.of(shape, self.strides, offset, mask)

    def flip(self, axes: Iterable[int]) -> View:
        axes = set(axes)
        mask = tuple((n - last, n - first) if a in axes else (first, last)
                     for a, (n, (first, last)) in enumerate(zip(self.shape, self._valid())))
        offset = self.offset + sum((self.shape[a] - 1) * self.strides[a] for a in axes)
        return View.of(self.shape, [-s if a in axes else s for a, s in enumerate(self.strides)], offset, mask)


# -- merging two views by index arithmetic -------------------------------------------------------------------
def _counters(shape: Sequence[int]) -> list[UOp]:
    return [index(0) if n == 1 else UOp(o.RANGE, dtypes.index, (), Range(f"i{axis}", n))
            for axis, n in enumerate(shape)]


def _address(view: View, indices: Sequence[UOp]) -> UOp:
    total = index(view.offset)
    for i, stride in zip(indices, view.strides):
        total = add(total, multiply(i, stride))
    return total


def _take_apart(address: UOp, shape: Sequence[int]) -> list[UOp]:
    """The indices, in a plain array of this shape, of the element at an address."""
    indices, step = [], 1
    for axis in reversed(range(len(shape))):
        i = divide(address, step)
        indices.append(i if axis == 0 else modulo(i, shape[axis]))
        step *= shape[axis]
    return indices[::-1]


def merge(lower: View, upper: View) -> View | None:
    """One view that does what `upper` over `lower` does, or None where no single view can.

    >>> merge(View.of((2, 3)).permute((1, 0)), View.of((3, 2, 1)))
    View(shape=(3, 2, 1), strides=(1, 3, 0), offset=0, mask=None, contiguous=False)
    >>> merge(View.of((2, 3)).permute((1, 0)), View.of((6,))) is None
    True
    """
    if upper.size == 0 or lower.contiguous:
        return upper
    if upper.mask is not None:                  # look at its valid part only, then put the rest back
        inside = merge(lower, upper.shrink(upper.mask))
        return inside and inside.pad([(first, n - last) for (first, last), n in zip(upper.mask, upper.shape)])
    lower = _collapse(lower)
    counters = _counters(upper.shape)
    indices = _take_apart(_address(upper, counters), lower.shape)
    box = {c: (0, n) for c, n in zip(counters, upper.shape)}
    for i, (first, last), n in zip(indices, lower._valid(), lower.shape):
        if last < n and not _below(i, last, box) or first > 0 and not _below(multiply(i, -1), 1 - first, box):
            return None
    constant, terms = linear(_address(lower, indices))
    if not terms.keys() <= box.keys():
        return None
    return View.of(upper.shape, [terms.get(c, 0) for c in counters], constant, tuple(box[c] for c in counters))


def _collapse(view: View) -> View:
    """The same elements in the same order with fewest axes: neighbours that step alike are one axis."""
    axes: list[tuple[int, int, int, int]] = []      # size, stride, first, last
    for n, stride, (first, last) in zip(view.shape, view.strides, view._valid()):
        if axes and (first, last) == (0, n):
            m, outer, start, stop = axes[-1]
            if outer == stride * n or m == 1:
                axes[-1] = (m * n, stride, start * n, stop * n)
                continue
        if n != 1 or (first, last) != (0, 1):
            axes.append((n, stride, first, last))
    return View.of([a[0] for a in axes], [a[1] for a in axes], view.offset, tuple((a[2], a[3]) for a in axes))


def _below(i: UOp, limit: int, box: dict[UOp, tuple[int, int]]) -> bool:
    """Shrinks the box of one counter so that exactly i < limit remains; False where that is not a box."""
    constant, terms = linear(i)
    limit -= constant
    if len(terms) == 1:
        (atom, k), = terms.items()
        if atom.op is o.IDIV and k == 1:        # x // d < limit  is  x < limit * d
            return _below(atom.src[0], limit * atom.src[1].arg, box)
        if atom.op is o.IDIV and k == -1:       # -(x // d) < limit  is  x >= (1 - limit) * d
            return _below(multiply(atom.src[0], -1), (limit - 1) * atom.src[1].arg + 1, box)
    if not terms:
        if limit <= 0:
            for counter in box:
                box[counter] = (0, 0)
        return True
    if not terms.keys() <= box.keys():
        return False
    for counter, k in terms.items():            # k * counter < limit - rest: does the rest make a difference?
        low, high = bounds(build(0, {a: n for a, n in terms.items() if a is not counter}))
        edges = {-((rest - limit) // k) if k > 0 else (rest - limit) // -k + 1 for rest in (low, high)}
        if len(edges) == 1:
            edge, = edges
            first, last = box[counter]
            box[counter] = (first, max(min(last, edge), first)) if k > 0 else (min(max(first, edge), last), last)
            return True
    return False


# -- a stack of views ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ShapeTracker:
    """A stack of views, the last one outermost: each indexes the row-major elements of the one before.

    >>> x = ShapeTracker.from_shape((2, 3)).permute((1, 0))
    >>> x.shape, x.strides(), x.contiguous
    ((3, 2), (1, 3), False)
    >>> len(x.reshape((6,)).views), x.reshape((6,)).offsets()
    (2, [0, 3, 1, 4, 2, 5])
    """
    views: tuple[View, ...]

    @staticmethod
    def from_shape(shape: Sequence[int]) -> ShapeTracker:
        return ShapeTracker((View.of(shape),))

    @staticmethod
    def of(node: UOp) -> ShapeTracker:
        """Where the elements of a chain of movement ops are, in the memory of the node below them."""
        chain = []
        while node.op.kind == Kind.MOVEMENT or node.op is o.DETACH:
            chain.append(node)
            node = node.src[0]
        tracker = ShapeTracker.from_shape(node.shape)
        for step in reversed(chain):
            if step.op is not o.DETACH:
                tracker = _MOVES[step.op](tracker, step.arg)
        return tracker

    # -- reading ---------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return self.views[-1].shape

    @property
    def size(self) -> int:
        return self.views[-1].size

    @property
    def contiguous(self) -> bool:
        return len(self.views) == 1 and self.views[0].contiguous

    def is_contiguous(self) -> bool:
        """Whether the elements are in memory one after another, in order, from the beginning."""
        return self.contiguous

    @property
    def offset(self) -> int:
        """The address of the first element (where it is not masked away)."""
        return self.views[0].offset if len(self.views) == 1 else linear(self._expression()[0])[0]

    def strides(self) -> tuple[int | None, ...]:
        """How far apart neighbours along each axis are; None where that is not one number."""
        return self.views[0].strides if len(self.views) == 1 else self.real_strides()

    def real_strides(self) -> tuple[int | None, ...]:
        """As `strides`, from the addresses themselves."""
        address, counters = self._expression()
        _, terms = linear(address)
        tangled = {r for atom in terms if atom.op is not o.RANGE for r in atom.toposort() if r.op is o.RANGE}
        return tuple(None if c in tangled else terms.get(c, 0) for c in counters)

    def _expression(self) -> tuple[UOp, list[UOp]]:
        counters = _counters(self.shape)
        address = _address(self.views[-1], counters)
        for view in reversed(self.views[:-1]):
            address = _address(view, _take_apart(address, view.shape))
        return address, counters

    def offsets(self) -> list[int | None]:
        """The address of every element in order, None where it is 0 by a mask."""
        return [self._place(indices) for indices in itertools.product(*map(range, self.shape))]

    def _place(self, indices: Sequence[int]) -> int | None:
        address = self.views[-1].place(indices)
        for view in reversed(self.views[:-1]):
            if address is None:
                return None
            inner = []
            for n in reversed(view.shape):
                address, i = divmod(address, n)
                inner.append(i)
            address = view.place(inner[::-1])
        return address

    # -- moves -----------------------------------------------------------------------------------------------
    def _top(self, view: View) -> ShapeTracker:
        return ShapeTracker((*self.views[:-1], view))

    def _push(self, upper: View) -> ShapeTracker:
        merged = merge(self.views[-1], upper)
        return self._top(merged) if merged is not None else ShapeTracker((*self.views, upper))

    def simplify(self) -> ShapeTracker:
        """The same map in fewer views, where the last two merge."""
        views = list(self.views)
        while len(views) > 1 and (merged := merge(views[-2], views[-1])) is not None:
            views[-2:] = [merged]
        return ShapeTracker(tuple(views))

    def permute(self, order: Sequence[int]) -> ShapeTracker: return self._top(self.views[-1].permute(order))
    def expand(self, shape: Sequence[int]) -> ShapeTracker: return self._top(self.views[-1].expand(shape))
    def pad(self, padding: Sequence[tuple[int, int]]) -> ShapeTracker: return self._top(self.views[-1].pad(padding))
    def shrink(self, ends: Sequence[tuple[int, int]]) -> ShapeTracker: return self._top(self.views[-1].shrink(ends))
    def flip(self, axes: Iterable[int]) -> ShapeTracker: return self._top(self.views[-1].flip(axes))

    def reshape(self, shape: Sequence[int]) -> ShapeTracker:
        shape = tuple(shape)
        if math.prod(shape) != self.size:
            raise ShapeError("cannot reshape: the number of elements changes",
                             given=f"{self.shape} ({self.size} elements) to {shape} ({math.prod(shape)} elements)",
                             expected=f"a shape with {self.size} elements", fix="correct one of the sizes")
        return self if shape == self.shape else self._push(View.of(shape)).simplify()

    def window(self, axis: int, size: int, stride: int = 1, dilation: int = 1) -> ShapeTracker:
        count = max((self.shape[axis] - dilation * (size - 1) - 1) // stride + 1, 0)
        plain = row_major(self.shape)
        strides = (*plain[:axis], plain[axis] * stride, *plain[axis + 1:], plain[axis] * dilation)
        return self._push(View.of((*self.shape[:axis], count, *self.shape[axis + 1:], size), strides)).simplify()

    def unwindow(self, axis: int, stride: int, dilation: int, length: int) -> ShapeTracker:
        """Rows of taps, each shifted right by `dilation` against the one before: written one after another with gaps of
        zeros long enough, they are an array whose rows are `dilation` shorter."""
        rank, count, taps = len(self.shape), self.shape[axis], self.shape[-1]
        others = [a for a in range(rank - 1) if a != axis]
        rest = [self.shape[a] for a in others]
        same: list[tuple[int, int]] = [(0, 0)] * len(rest)
        pitch = max(length + dilation, count * stride + (taps - 1) * dilation)
        rows = self.permute([*others, rank - 1, axis]).reshape([*rest, taps, count, 1])
        rows = rows.pad([*same, (0, 0), (0, 0), (0, stride - 1)]).reshape([*rest, taps, count * stride])
        rows = rows.pad([*same, (0, 0), (0, pitch - count * stride)]).reshape([*rest, taps * pitch])
        whole = [(0, n) for n in rest]
        rows = rows.shrink([*whole, (0, taps * (pitch - dilation))]).reshape([*rest, taps, pitch - dilation])
        rows = rows.shrink([*whole, (0, taps), (0, length)])
        order = [*others, rank - 1, axis]
        return rows.permute([order.index(a) for a in range(rank)])


_MOVES: dict[Any, Callable[[ShapeTracker, Any], ShapeTracker]] = {
    o.RESHAPE: lambda st, arg: st.reshape(arg.shape), o.PERMUTE: lambda st, arg: st.permute(arg.order),
    o.EXPAND: lambda st, arg: st.expand(arg.shape), o.PAD: lambda st, arg: st.pad(arg.padding),
    o.SHRINK: lambda st, arg: st.shrink(arg.bounds), o.FLIP: lambda st, arg: st.flip(arg.axes),
    o.WINDOW: lambda st, arg: st.window(*arg), o.UNWINDOW: lambda st, arg: st.unwindow(*arg),
}
