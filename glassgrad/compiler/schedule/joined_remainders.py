"""Compute strided transposed convolutions as one contraction. In: sinks. Out: sinks, where remainders are its columns.

The gradient of a convolution of stride s by its image, and a transposed convolution, is a sum over taps k of g[(i - k)
/ s] * w[k], for those k where s divides i - k. Which taps these are depends on the remainder of i by s. Split by
remainders (compiler/optimize/moves/split_by_remainder.py), it is s contractions whose results are interleaved. But with
i = s q + r and k = s t + r, all of them read the same window of g, of ceil(taps / s) elements:

    y[s q + r] = SUM over t of g[q - t] * w[s t + r]           w is 0 past its last tap

So r can be one more axis of the weights: one contraction with s times as many columns, whose results are stored in
order. It multiplies the zeros of w too. That pays where it costs less than what it replaces: loop nests with so few
columns that they do not fill a vector, or so many nests that they would not be split; on a GPU, launches and the pass
that interleaves results. An infinite g gives NaN in results where it has no tap. With fewer taps than remainders, the
results of the other remainders are zero. The device is described only by how many products it computes in the time to
store a byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from glassgrad.compiler.graph import DType, UOp, ops as o
from glassgrad.compiler.graph.axis_dependence import AxisSet, carried, varies_along
from glassgrad.compiler.graph.rules.reductions import one_tap, padded
from glassgrad.compiler.schedule.winograd import base_of, movements, of_axes, rewritten, summed_part

LAUNCH_BYTES = 12 << 20          # bytes stored in the time of one kernel launch
REMAINDER_LAUNCHES = 2           # launches per remainder: for its weights, and its contraction
VECTOR = 16                      # columns in a vector
MOST_NESTS = 16  # the most loop nests into which remainders are split; above it, the nests multiply zeros too
Rate = Callable[[DType], int]    # products of a type in the time to store a byte


def with_joined_remainders(sinks: list[UOp], rate: Rate) -> list[UOp]:
    """Rewrite each strided transposed convolution to a single contraction, where that pays."""
    known: dict[UOp, AxisSet] = {}       # node -> axes along which its value changes

    def found(node: UOp) -> TransposedConvolution | None:
        made = TransposedConvolution.of(node, known) if node.op is o.SUM and node.src[0].op is o.MUL else None
        return made if made is not None and made.pays(rate) else None

    def cut(node: UOp, alone: list[bool]) -> UOp | None:
        part = summed_part(node) if alone == [True] else None
        return part.reshape(node.shape) if part is not None and found(part) is not None else None

    def rounded(node: UOp, alone: list[bool]) -> UOp | None:
        return _rounded_first(node, found) if _rounds(node) and alone == [True] else None

    def joined_and_rounded(node: UOp, alone: list[bool]) -> UOp | None:
        made = found(node.src[0]) if _rounds(node) and alone == [True] else None
        return None if made is None else made.computed(node.dtype, rate)

    def joined(node: UOp, alone: list[bool]) -> UOp | None:
        if _spreads_a_sum(node):
            return node.over((node.src[0].contiguous(),))
        made = found(node)
        return None if made is None else made.computed(node.dtype, rate)
    for rule in (cut, rounded, joined_and_rounded, joined):
        sinks = rewritten(sinks, rule)
    return sinks


def _rounds(node: UOp) -> bool:
    return node.op is o.CAST and node.dtype.itemsize < node.src[0].dtype.itemsize


def _rounded_first(node: UOp, found: Callable[[UOp], TransposedConvolution | None]) -> UOp | None:
    """cast(view(sum))  ->  view(cast(sum)), for a sum that is joined; a sum between whose results zeros are put is
    stored first."""
    moves, below = movements(node.src[0])
    spread = next((n for n, move in enumerate(reversed(moves)) if _spreads_a_sum(move)), None)
    if below.op is not o.SUM or spread is None and (any(m.op is not o.RESHAPE for m in moves) or found(below) is None):
        return None
    x = below if spread is not None else below.cast(node.dtype)
    for n, move in enumerate(reversed(moves)):
        if n == spread:
            x = x.cast(node.dtype).contiguous()
        x = UOp(move.op, x.dtype, (x,), move.arg)
    return x


def _spreads_a_sum(node: UOp) -> bool:
    """Whether a node puts zeros between the results of a contraction: the gradient of a strided window with one tap."""
    if not _has_stride(node) or node.shape[-1] != 1:
        return False
    below = node.src[0].below((o.RESHAPE, o.PERMUTE))
    return below.op is o.SUM and below.src[0].op is o.MUL


def _has_stride(node: UOp) -> bool:
    return node.op is o.UNWINDOW and node.arg.stride > 1 and not node.symbolic and \
        (node.arg.dilation == 1 or node.shape[-1] == 1)


@dataclass
class Strided:
    """One strided axis: `count` positions i from `first` on, each of which sums taps times elements of g."""
    node: UOp                    # the UNWINDOW
    position: int                # the axis of positions in the summed product
    tap: int                     # the axis of taps there; -1: a single tap, without an axis
    first: int
    count: int

    @property
    def stride(self) -> int:
        return self.node.arg.stride

    @property
    def taps(self) -> int:
        return self.node.shape[-1]

    @property
    def begin(self) -> int:
        """The offset of the blocks of s positions, at least 0 and below s: `first` modulo s, or 0 where that would make
        windows longer, or there are fewer taps than remainders."""
        aligned = self.first % self.stride
        return aligned if self.taps >= self.stride and self._window(aligned) == self._window(0) else 0

    def _window(self, begin: int) -> int:
        return (self.taps - 1 - begin) // self.stride + (2 if begin else 1)

    @property
    def window(self) -> int:
        """How many elements of g each block reads."""
        return self._window(self.begin)

    @property
    def start(self) -> int:
        """The first t: -1 where a block begins at a tap other than the first."""
        return -1 if self.begin else 0

    @property
    def remainders(self) -> int:
        """How many remainders have taps."""
        return min(self.stride, self.taps)

    @property
    def blocks(self) -> range:
        first, last = (self.first - self.begin) // self.stride, \
            (self.first + self.count - 1 - self.begin) // self.stride
        return range(first, last + 1)

    @property
    def read(self) -> range:
        """The elements of g that the windows of all blocks cover; those outside of g are zero."""
        return range(self.blocks.start - self.start - self.window + 1, self.blocks.stop - self.start)

    @property
    def cropped(self) -> tuple[int, int]:
        """The range of the blocks' positions that are part of the result."""
        begin = self.first - self.begin - self.stride * self.blocks.start
        return begin, begin + self.count

    def windows(self, g: UOp) -> UOp:
        """The elements of g for each block, on the axes of positions and taps."""
        axis = self.node.arg.axis
        g = one_tap(g)
        read, size = self.read, g.shape[axis]
        inside = max(read.start, 0), min(read.stop, size)
        g = g.shrink([inside if a == axis else (0, n) for a, n in enumerate(g.shape)])
        wide = padded(g, axis, inside[0] - read.start, read.stop - inside[1])
        return wide.window(axis, self.window, 1, 1).flip([len(g.shape)])

    def weights(self, w: UOp) -> UOp:
        """The weights with the axis of taps split into the window and the remainder, which becomes a new last axis."""
        if self.taps == 1:
            return w.reshape((*w.shape, 1))
        s, before = self.stride, -(self.stride * self.start + self.begin)
        zeros = [(before, s * self.window - before - self.taps) if a == self.tap else (0, 0)
                 for a in range(len(w.shape))]
        w = w.pad(zeros).reshape((*w.shape[:self.tap], self.window, s, *w.shape[self.tap + 1:]))
        w = w.permute([a for a in range(len(w.shape)) if a != self.tap + 1] + [self.tap + 1])
        return w.shrink([*[(0, n) for n in w.shape[:-1]], (0, self.remainders)])


@dataclass
class TransposedConvolution:
    """A contraction of weights with elements that are `stride` positions apart."""
    total: UOp
    image: UOp
    other: UOp
    axes: list[Strided]
    along: AxisSet               # the axes along which `other` changes
    columns: int                 # elements of `other` that each element of the image is multiplied with

    @staticmethod
    def of(total: UOp, known: dict[UOp, AxisSet]) -> TransposedConvolution | None:
        """Recognize a sum as a transposed convolution. Refuses (None) weights that vary along positions."""
        summed, factors = frozenset(total.arg.axes), total.src[0].src
        if total.dtype.kind != "f" or any(f.shape != total.src[0].shape or f.symbolic for f in factors):
            return None
        for image, other in (factors, factors[::-1]):
            axes, along = strided_axes(image, known), varies_along(other, known)
            columns = along - summed - varies_along(image, known)
            if axes and all(a.position not in summed | along and (a.tap in summed or a.taps == 1)
                                        for a in axes):
                count = math.prod(other.shape[a] for a in columns)
                return TransposedConvolution(total, image, other, axes, along, count)
        return None

    @property
    def sizes(self) -> list[int]:
        """The sizes of the product's axes: blocks for positions, windows for taps, then remainders."""
        sizes = list(self.total.src[0].shape)
        for a in self.axes:
            sizes[a.position] = len(a.blocks)
            if a.taps > 1:
                sizes[a.tap] = a.window
        return [*sizes, *[a.remainders for a in self.axes]]

    def pays(self, rate: Rate) -> bool:
        """Whether one contraction takes no longer than a loop nest per remainder, with their launches and passes."""
        base = base_of(self.image)
        dtype = base.src[0].dtype if base.op is o.CAST else base.dtype
        remainders = math.prod(a.stride for a in self.axes)
        passes = 2 * self.total.size * dtype.itemsize if all(a.remainders == a.stride for a in self.axes) else 0
        saved = passes + LAUNCH_BYTES * REMAINDER_LAUNCHES * (remainders - 1)
        in_nests, joined = self.total.src[0].size / min(remainders, MOST_NESTS), math.prod(self.sizes)
        if rate(dtype):
            return joined - in_nests <= rate(dtype) * saved
        side_by_side = self.columns * math.prod(a.remainders for a in self.axes)
        return joined / share_of_lanes(side_by_side) <= in_nests / share_of_lanes(self.columns)

    def computed(self, dtype: DType, rate: Rate) -> UOp:
        """Compute the sums, rounded to a type. A CPU stores them first: its vectors need contiguous columns."""
        image, other = self.blocks_of(), of_axes(self.other, self.along)
        for axis in self.axes:
            other = axis.weights(other)
        more = (1,) * len(self.axes)
        image = image.reshape((*image.shape, *more)).expand(self.sizes)
        out = (image * other.expand(self.sizes)).sum(self.total.arg.axes).cast(dtype)
        if not rate(dtype):
            out = out.contiguous()
        rank = len(self.total.shape)
        behind = {axis.position: rank + n for n, axis in enumerate(self.axes)}
        out = out.permute([b for a in range(rank) for b in ((a, behind[a]) if a in behind else (a,))])
        out = self._with_zeros(out)
        at = {axis.position: axis for axis in self.axes}
        out = out.reshape([at[a].stride * len(at[a].blocks) if a in at else n for a, n in enumerate(self.total.shape)])
        return out.shrink([at[a].cropped if a in at else (0, n) for a, n in enumerate(self.total.shape)])

    def _with_zeros(self, out: UOp) -> UOp:
        """Insert zeros as the results of the remainders that have no taps."""
        zeros = [(0, 0)] * len(out.shape)
        for n, axis in enumerate(sorted(self.axes, key=lambda axis: axis.position)):
            zeros[axis.position + n + 1] = (0, axis.stride - axis.remainders)
        return out.pad(zeros) if any(z != (0, 0) for z in zeros) else out

    def blocks_of(self) -> UOp:
        """The image as a window for each block: its movements, on blocks and windows instead of positions and taps."""
        chain, x = movements(self.image)
        by_node = {axis.node: axis for axis in self.axes}
        tracked: dict[int, int] = {}         # axis -> its new size, where that differs
        for move in reversed(chain):
            axis = by_node.get(move)
            if axis is not None:
                x = axis.windows(x)
                tracked[move.arg.axis] = len(axis.blocks)
                if axis.taps > 1:
                    tracked[len(move.shape) - 1] = axis.window
                continue
            tracked = {_carried(move, a): n for a, n in tracked.items()}
            shape = tuple([tracked.get(a, n) for a, n in enumerate(move.shape)])
            if move.op in (o.RESHAPE, o.EXPAND):
                x = x.reshape(shape) if move.op is o.RESHAPE else x.expand(shape)
            elif move.op is o.SHRINK:
                x = x.shrink([(0, tracked[a]) if a in tracked else b for a, b in enumerate(move.arg.bounds)])
            else:
                x = UOp(move.op, x.dtype, (x,), move.arg)
        return x


def share_of_lanes(columns: int) -> float:
    """The share of vector lanes that a number of columns fills, on a CPU."""
    return columns / (-(-columns // VECTOR) * VECTOR)


def _carried(move: UOp, axis: int) -> int:
    """The axis of a movement's result that an axis of its source becomes; -1 where there is none."""
    if move.op is o.RESHAPE and move.src[0].shape[axis] == 1:
        return -1
    found = carried(move, frozenset([axis]), exact=True) or ()
    return min(found) if len(found) == 1 else -1


def strided_axes(image: UOp, known: dict[UOp, AxisSet]) -> list[Strided]:
    """The axes of a view along which elements are a stride apart; empty where a view mixes them with others."""
    found: list[Strided] = []
    for move in reversed(movements(image)[0]):
        if any(not _follow(each, move) for each in found):
            return []
        last = len(move.shape) - 1
        if _has_stride(move) and last not in varies_along(move.src[0], known):
            found.append(Strided(move, move.arg.axis, last if move.shape[last] > 1 else -1, 0, move.arg.length))
    reads = all(a.read.start < a.node.src[0].shape[a.node.arg.axis] and a.read.stop > 0 for a in found)
    return found if reads else []


def _follow(each: Strided, move: UOp) -> bool:
    """Update the axes of `each` for a movement; False where it does more than select a range of positions."""
    axes = {each.position, each.tap} - {-1}
    if move.op in (o.WINDOW, o.UNWINDOW) and move.arg.axis in axes or \
            move.op is o.FLIP and axes & set(move.arg.axes) or \
            move.op is o.PAD and any(move.arg.padding[a] != (0, 0) for a in axes):
        return False
    each.position = _carried(move, each.position)
    if each.tap >= 0:
        each.tap = _carried(move, each.tap)
        if each.tap < 0 or move.shape[each.tap] != each.taps:
            return False
    if move.op is o.SHRINK and each.position >= 0:
        begin, end = move.arg.bounds[each.position]
        each.first, each.count = each.first + begin, end - begin
    return each.position >= 0 and move.shape[each.position] == each.count > 0
