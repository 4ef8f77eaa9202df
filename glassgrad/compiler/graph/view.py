"""Memory layout of views: strides, offset and mask. In: movement nodes. Out: `View`, `ShapeTracker`.

Lowering does not use these (it pushes loop counters through the movement nodes). They are shown to users
(`tensor.uop.st`), and are used for zero-copy export and sub-buffers. A `View` is an affine map with a box of valid
indices; what one cannot express (a reshape of a transpose) is a stack of them. Integer arithmetic decides whether two
merge into one: write the upper view's addresses as a sum of strides, split it into indices of the lower view, and check
whether the result is such a sum again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from glassgrad.base.errors import ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.node import Node

Mask = tuple[tuple[int, int], ...]      # per axis, the valid indices: first <= i < last


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major array. Axes of size 1 have stride 0, and so do all axes of an array without elements.

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
    """Element (i, j) is at offset + i*strides[0] + j*strides[1]; outside the mask it is 0 and not in memory."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    mask: Mask | None = None

    @classmethod
    def create(cls, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0,
               mask: Mask | None = None) -> View:
        """The same as `of`, by tinygrad's name.

        >>> View.create((2, 3)).strides
        (3, 1)
        """
        return cls.of(shape, strides, offset, mask)

    @staticmethod
    def of(shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0,
           mask: Mask | None = None) -> View:
        """Make a view in canonical form: equal maps are equal views."""
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
        """The address of one element, or None where it is masked to 0."""
        if any(not first <= i < last for i, (first, last) in zip(indices, self._valid())):
            return None
        return self.offset + sum(i * s for i, s in zip(indices, self.strides))

    # -- movements of which the result is one view -----------------------------------------------------------
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


# -- merging two views, by the digits of addresses ------------------------------------------------------------
class _Sum(NamedTuple):
    """constant + sum of steps[a] * index[a] + a non-linear rest. The rest lies within `reach`, depends on the axes in
    `mixed` only, and is 0 where all indices are 0."""
    constant: int
    steps: tuple[int, ...]
    mixed: frozenset[int] = frozenset()
    reach: tuple[int, int] = (0, 0)

    def bounds(self, shape: Sequence[int]) -> tuple[int, int]:
        """The least and greatest possible value."""
        ends = [k * (n - 1) for k, n in zip(self.steps, shape)]
        low, high = self.reach
        return self.constant + low + sum(min(e, 0) for e in ends), self.constant + high + sum(max(e, 0) for e in ends)

    def along(self, axes: Iterable[int]) -> _Sum:
        """The sum restricted to some axes, without the constant."""
        return _Sum(0, tuple(k if a in axes else 0 for a, k in enumerate(self.steps)))


def _divide(x: _Sum, n: int, shape: Sequence[int]) -> tuple[_Sum, _Sum]:
    """x // n and x % n. Steps that n divides are divided exactly. Where the others may cross a multiple of n, their
    axes become `mixed`, except those that stay within a divisor of n that divides all other steps."""
    whole = tuple(k // n if k >= 0 else -(-k // n) for k in x.steps)
    rest = x._replace(steps=tuple(k - w * n for k, w in zip(x.steps, whole)))
    low, high = (bound // n for bound in rest.bounds(shape))
    if low == high:
        return _Sum(low, whole), rest._replace(constant=x.constant - low * n)
    quotient, remainder = divmod(x.constant, n)
    mixed, inside = x.mixed | {a for a, k in enumerate(rest.steps) if k}, rest.along(())
    for part in sorted({math.gcd(n, k) for k in rest.steps if k} if not x.mixed else (), reverse=True):
        within = rest.along([a for a, k in enumerate(rest.steps) if k % part])
        least, most = within.bounds(shape)
        if 0 <= remainder % part + least and remainder % part + most < part:
            mixed, inside = frozenset(a for a in mixed if not within.steps[a]), within
            break
    return (_Sum(quotient, whole, mixed, (low - quotient, high - quotient)),
            _Sum(remainder, inside.steps, mixed, (-remainder, n - 1 - remainder)))


def _take_apart(address: _Sum, below: Sequence[int], shape: Sequence[int]) -> list[_Sum]:
    """Split an address into indices of a row-major array of shape `below`. The address is a sum over the indices of a
    view of shape `shape`."""
    indices = []
    for n in reversed(below[1:]):
        address, index = _divide(address, n, shape)
        indices.append(index)
    return [address, *reversed(indices)] if below else []


def _address(view: View, indices: Sequence[_Sum], rank: int) -> _Sum:
    """The address of the element at these indices."""
    used = [(index, stride) for index, stride in zip(indices, view.strides) if stride]
    steps = tuple(sum(stride * index.steps[axis] for index, stride in used) for axis in range(rank))
    ends = [sorted(stride * bound for bound in index.reach) for index, stride in used]
    return _Sum(view.offset + sum(stride * index.constant for index, stride in used), steps,
                frozenset().union(*[index.mixed for index, _ in used]),
                (sum(low for low, _ in ends), sum(high for _, high in ends)))


def merge(lower: View, upper: View) -> View | None:
    """Merge `upper` over `lower` into one view, or return None where no single view can express it.

    >>> merge(View.of((2, 3)).permute((1, 0)), View.of((3, 2, 1)))
    View(shape=(3, 2, 1), strides=(1, 3, 0), offset=0, mask=None, contiguous=False)
    >>> merge(View.of((2, 3)).permute((1, 0)), View.of((6,))) is None
    True
    """
    if upper.size == 0 or lower.contiguous:
        return upper
    if upper.mask is not None:                  # merge its valid part, then add the mask again
        inside = merge(lower, upper.shrink(upper.mask))
        return inside and inside.pad([(first, n - last) for (first, last), n in zip(upper.mask, upper.shape)])
    lower = _collapse(lower)
    indices = _take_apart(_Sum(upper.offset, upper.strides), lower.shape, upper.shape)
    box = [(0, n) for n in upper.shape]
    for index, (first, last), n in zip(indices, lower._valid(), lower.shape):
        negative = _Sum(-index.constant, tuple(-k for k in index.steps), index.mixed)
        if last < n and not _below(index, last, upper.shape, box) or \
                first > 0 and not _below(negative, 1 - first, upper.shape, box):
            return None
    address = _address(lower, indices, len(upper.shape))
    return None if address.mixed else View.of(upper.shape, address.steps, address.constant, tuple(box))


def _collapse(view: View) -> View:
    """Merge adjacent axes with a common stride: the same elements in the same order with the fewest axes."""
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


def _below(x: _Sum, limit: int, shape: Sequence[int], box: list[tuple[int, int]]) -> bool:
    """Shrink the box along one axis so that exactly x < limit remains; return False where the result is not a box."""
    if x.mixed:
        return False
    limit -= x.constant
    along = [axis for axis, k in enumerate(x.steps) if k]
    if not along:
        if limit <= 0:
            box[:] = [(0, 0)] * len(box)
        return True
    for axis in along:                          # k * index < limit - rest: does the rest matter?
        k, others = x.steps[axis], x.along([a for a in along if a != axis])
        edges = {-((rest - limit) // k) if k > 0 else (rest - limit) // -k + 1 for rest in others.bounds(shape)}
        if len(edges) == 1:
            edge, = edges
            first, last = box[axis]
            box[axis] = (first, max(min(last, edge), first)) if k > 0 else (min(max(first, edge), last), last)
            return True
    return False


# -- a stack of views ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ShapeTracker:
    """A stack of views, the last one outermost: each indexes the row-major elements of the one before it.

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
    def of(node: Node) -> ShapeTracker:
        """Build the tracker of a chain of movement ops, over the memory of the node below them."""
        chain = []
        while node.op in o.MOVEMENT or node.op is o.DETACH:
            chain.append(node)
            node = node.src[0]
        tracker = ShapeTracker.from_shape(node.shape)
        for step in reversed(chain):
            if step.op is not o.DETACH:
                tracker = getattr(tracker, step.op.name.lower())(*step.arg)      # the method named after the op
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
        """Whether the elements lie in memory consecutively, in order, from the beginning."""
        return self.contiguous

    @property
    def offset(self) -> int:
        """The address of the first element (if it is not masked)."""
        return self._address().constant

    def strides(self) -> tuple[int | None, ...]:
        """The stride of each axis; None where it is not known to be constant."""
        return self.views[0].strides if len(self.views) == 1 else self.real_strides()

    def real_strides(self) -> tuple[int | None, ...]:
        """As `strides`, but always derived from the addresses."""
        address = self._address()
        return tuple(None if axis in address.mixed else k for axis, k in enumerate(address.steps))

    def _address(self) -> _Sum:
        top, *rest = reversed(self.views)
        address = _Sum(top.offset, top.strides)
        for view in rest:
            address = _address(view, _take_apart(address, view.shape, self.shape), len(self.shape))
        return address

    def offsets(self) -> list[int | None]:
        """The address of every element in order; None where it is masked to 0."""
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

    # -- movements -------------------------------------------------------------------------------------------
    def _top(self, view: View) -> ShapeTracker:
        return ShapeTracker((*self.views[:-1], view))

    def _push(self, upper: View) -> ShapeTracker:
        merged = merge(self.views[-1], upper)
        return self._top(merged) if merged is not None else ShapeTracker((*self.views, upper))

    def simplify(self) -> ShapeTracker:
        """The same map with fewer views, where the last two merge."""
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
        """Shift each row of taps right by `dilation` relative to the row before: pad rows with zeros to a common pitch,
        flatten, and read again with a pitch that is `dilation` shorter."""
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
