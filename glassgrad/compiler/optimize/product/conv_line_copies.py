"""Copy windows as lines along rows of an image. In: factors of a product. Out: `LineFactor`, `ShiftedFactor`.

A first layer reads three channels: too few for a line of memory that a matrix unit reads. But with channels innermost,
all taps of a window along one row are contiguous, and those of the next position begin one convolution stride later.
For a copy, that is a matrix with overlapping lines: taps times channels long, stride times channels apart. So only the
image is stored, not its windows: channels innermost, padded with zeros so that lines are aligned to 16 bytes. A copy
fills the rest of a line, and rows outside the image, with zeros.

    forward               a step of K is one row of taps; positions are rows and columns
    by the weights        a step of K is columns; positions are rows of taps

For the gradient by the weights, a unit that takes only lines along the sum (of float32, of bytes) needs columns
innermost, as images have them; but taps begin at any column, so they are not aligned. There the image is stored once
for each tap along a row, shifted by it; taps along columns are boxes that begin at another row (`ShiftedFactor`): with
3 x 3 taps, 3 copies instead of 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glassgrad.compiler.graph.index_algebra import (add, both, build, divide, index, less, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.group_statements import Axis, Box
from glassgrad.compiler.lower.loops import (LANE, TASK, TILE, Assign, For, Statement, Store, counter, current, load,
                                            local, nested, register_over)
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.product.conv_window_copies import BoxFactor, StoredImage
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.targets import gpu_costs as gpu

MOST_WASTE = 4             # a line may be at most this many times as long as its used part
AT_ONCE = 4                # pixels that a thread stores, or pieces of this many
BESIDE = 4                 # contiguous elements


def stored_by_threads(name: str, source: UOp, to: UOp, pieces: int, width: int,
                      read: Callable[[UOp, UOp], tuple[UOp, UOp | None]]) -> list[Statement]:
    """The loops that store pieces of `width` contiguous elements; a thread stores whole pieces, several at a time.
    `read` gives the index at which an element of a piece is read, and the gate outside of which it is 0."""
    each, lane, more = counter("e", width), counter("l", gpu.PACK_LANES), counter("u", AT_ONCE)
    block = counter("p", -(-pieces // (AT_ONCE * gpu.PACK_LANES)))
    piece = add(multiply(add(multiply(current(block), AT_ONCE), more), gpu.PACK_LANES), lane)
    inside = below(piece, pieces)
    at, gate = read(piece, current(each))
    held = register_over(f"{name}_next", source.dtype, (more, each, lane))
    body: list[Statement] = [Assign(held, load(source, at, both(inside, gate))),
                             Store(to, add(multiply(piece, width), current(each)), held, None, inside)]
    return nested([block], nested([more, each], [For(lane, LANE, body)], TILE), TASK)


@dataclass
class LineAxis(FlatAxis):
    """Rows of taps as lines of memory: [other loops][tap, padded][channel, padded], with `pitch` positions per tap.
    Those past the last tap, and past the last channel, are padding."""

    @property
    def row(self) -> int:
        return 1


@dataclass
class LineFactor(BoxFactor):
    """A factor of a product as lines of an image with its channels innermost; one of its axes is rows of taps."""

    @property
    def lines(self) -> LineAxis:
        lines = self.k if isinstance(self.k, LineAxis) else self.axis
        assert isinstance(lines, LineAxis)
        return lines

    @property
    def columns(self) -> UOp:
        """The loop over positions of a row."""
        return (self.axis if self.along_k else self.k).parts[-1]

    @property
    def rows(self) -> Axis:
        """The stored rows, and the step from one position to the next; rows past the image's last one are zeros."""
        step = self.image.steps[-2]
        return Axis(-(-self.image.axes[-2].size // step) * step, step)

    @property
    def row_size(self) -> int:
        """Stored columns of a row: all that are read, padded so that the next row is aligned to 16 bytes."""
        least, last = self.image.reads[-1]
        whole = max(1, gpu.COPY_BYTES // (self.lines.pitch * self.image.memory.dtype.itemsize))
        return -(-(last - least + 1) // whole) * whole

    @property
    def outer(self) -> list[int]:
        """The sizes of the axes around rows: images of a batch."""
        return [last - least + 1 for least, last in self.image.ends[:-2]]

    @property
    def to(self) -> UOp:
        size = math.prod(self.outer) * self.rows.size * self.row_size * self.lines.pitch
        return local(f"{self.image.name}_lines", self.image.memory.dtype, size, "shared")

    def box(self, places: dict[UOp, UOp], line: int, columns: int, rows: int, to: UOp) -> Box:
        """The box of `columns` x `rows` lines, from the position given by `places`, the indices of all loops."""
        channels, pitch = self.lines.pitch, self.row_size * self.lines.pitch
        height, step = self.rows.size, self.rows.stride
        constant, terms = self.image.coordinates[-2]
        before = -(min(0, self.image.reads[-2][0]) // step)                       # steps above the image
        at = substitute_index(build(constant + before * step, terms), places, {})
        axes = [Axis(self.lines.parts[-2].arg.size * channels, 1),
                Axis(self.columns.arg.size, self.image.steps[-1] * channels), Axis(height // step, step * pitch)]
        first = [index(0), places[self.columns], add(divide(at, step), index(-before))]
        if step > 1:
            axes.append(Axis(step, pitch))
            first.append(modulo(at, step))
        stride = height * pitch
        for a in reversed(range(len(self.outer))):
            (constant, terms), (least, _) = self.image.coordinates[a], self.image.ends[a]
            axes.append(Axis(self.outer[a], stride))
            first.append(substitute_index(build(constant - least, terms), places, {}))
            stride *= self.outer[a]
        counts = (line, columns, rows, *[1] * (len(axes) - 3))
        return Box(self.to, 0, tuple(axes), counts, tuple(first), to)

    @property
    def before(self) -> list[Statement]:
        """The loops that store the image: a thread reads and stores all channels of a pixel."""
        image, channels = self.image, self.lines.pitch
        sizes = [*self.outer, self.rows.size, self.row_size]
        pixels = FlatAxis.of([counter(f"a{a}", size) for a, size in enumerate(sizes)])

        def read(pixel: UOp, channel: UOp) -> tuple[UOp, UOp | None]:
            places, at, gate = pixels.indices(pixel), multiply(channel, image.channels.stride), None
            for number, (r, axis) in enumerate(zip(pixels.parts, image.axes)):
                low = {len(sizes) - 2: 0, len(sizes) - 1: image.reads[-1][0]}.get(number, image.ends[number][0])
                position = add(places[r], index(low))
                at = add(at, multiply(position, axis.stride))
                gate = both(gate, both(less(index(-1), position), less(position, index(axis.size))))
            return at, both(gate, below(channel, image.channels.size))
        return stored_by_threads(image.name, image.memory, self.to, pixels.size, channels, read)


def few_channels(value: UOp, loops: Sequence[UOp], rows: UOp, columns: UOp, line: int) \
        -> tuple[StoredImage, LineAxis] | None:
    """An image, with its taps and channels as lines; refuses (None) factors that are not windows, taps that are dilated
    or reversed, and lines that would be mostly unused."""
    image = StoredImage.of("right", value, loops, rows, columns)
    if image is None or image.group:
        return None
    step, itemsize = image.steps[-1], image.memory.dtype.itemsize
    taps = [r for r in image.coordinates[-1][1] if r is not columns]
    if len(taps) != 1 or taps[0] not in loops or image.coordinates[-1][1][taps[0]] != 1:
        return None
    channels = next(n for n in (1, 2, 4, 8, 16, 32, 64, 128)
                    if n >= min(image.channels.size, 128) and n * step * itemsize % gpu.COPY_BYTES == 0)
    used = taps[0].arg.size * image.channels.size
    axes = 3 + (image.steps[-2] > 1) + len(image.axes) - 2
    if taps[0].arg.size * channels > line or MOST_WASTE * used < line or axes > gpu.COPY_AXES:
        return None
    others = [r for r in loops if r not in (taps[0], image.channel)]
    size = math.prod(r.arg.size for r in others) * line
    return image, LineAxis([*others, taps[0], image.channel], size, channels, line // channels)


def line_windows(value: UOp, n: Sequence[UOp], k: Sequence[UOp], line: int, most_padded: float) -> LineFactor | None:
    """A factor whose rows and columns are positions, and whose lines go along K."""
    found = few_channels(value, k, n[-2], n[-1], line) if len(n) >= 2 else None
    if found is None:
        return None
    image, lines = found
    pitch = 1 << (n[-1].arg.size - 1).bit_length()
    pitch = pitch if pitch <= most_padded * n[-1].arg.size else -(-n[-1].arg.size // 16) * 16
    axis = FlatAxis([*n[-2:]], n[-2].arg.size * pitch, pitch)
    return LineFactor(image, axis, lines, in_two_lines=True)


def line_rows(value: UOp, n: Sequence[UOp], k: FlatAxis, line: int) -> LineFactor | None:
    """A factor whose rows and columns are those of K, padded; its lines are positions."""
    found = few_channels(value, n, k.parts[-2], k.parts[-1], line) if len(k.parts) >= 2 and k.pitch else None
    return None if found is None else LineFactor(found[0], found[1], k, in_two_lines=True)


# -- rows that are shifted by a tap ----------------------------------------------------------------------------------
@dataclass
class ShiftedFactor:
    """A factor of a product as boxes of an image that is stored once for each tap along a row."""
    image: StoredImage
    axis: FlatAxis                         # other taps, the tap along a row, channels
    k: FlatAxis                            # rows and columns, padded
    in_two_lines: bool = False
    along_k: bool = True

    @property
    def sizes(self) -> list[int]:
        """The sizes of the stored axes: taps along a row, images, channels, rows, columns."""
        outer = [last - least + 1 for least, last in self.image.ends[:-2]]
        least, last = self.image.ends[-2]
        return [self.axis.parts[-2].arg.size, *outer, self.image.channels.size, last - least + 1, self.k.pitch]

    @property
    def to(self) -> UOp:
        return local(f"{self.image.name}_shifted", self.image.memory.dtype, math.prod(self.sizes), "shared")

    def boxes(self, line: int, to: UOp, position: UOp, size: int, k: UOp) -> list[Box]:
        """The boxes of `size` positions from `position` on, for one step of K, which is one line long."""
        at_once, sizes = math.gcd(size, self.image.channels.size), self.sizes
        strides = [math.prod(sizes[a + 1:]) for a in range(len(sizes))]
        taps, *outer, channels, rows, columns = [Axis(*axis) for axis in zip(sizes, strides)]
        found = []
        for i in range(0, size, at_once):
            places = {**self.axis.indices(add(position, index(i))), **self.k.indices(k)}
            *around, row = [substitute_index(build(constant - least, terms), places, {})
                            for (constant, terms), (least, _) in zip(self.image.coordinates[:-1], self.image.ends)]
            first = (places[self.k.parts[-1]], places[self.image.channel], row, *around, places[self.axis.parts[-2]])
            axes = (columns, channels, rows, *outer, taps)
            counts = (line, at_once, *[1] * (len(axes) - 2))
            found.append(Box(self.to, 0, axes, counts, first, add(to, index(i * line))))
        return found

    @property
    def before(self) -> list[Statement]:
        """The loops that store the image for each tap: a thread stores several contiguous elements."""
        image, all_ = self.image, FlatAxis.of([counter(f"a{a}", size) for a, size in enumerate(self.sizes)])
        constant, terms = image.coordinates[-1]

        def read(piece: UOp, each: UOp) -> tuple[UOp, UOp | None]:
            places = all_.indices(multiply(piece, BESIDE))
            tap, *outer, channel, row, column = [places[r] for r in all_.parts]
            own = add(column, each)
            column = add(add(own, index(constant)), multiply(tap, terms[self.axis.parts[-2]]))
            at = add(multiply(channel, image.channels.stride), column)
            for position, axis, (least, _) in zip([*outer, row], image.axes, image.ends):
                at = add(at, multiply(add(position, index(least)), axis.stride))
            gate = both(less(index(-1), column), less(column, index(image.axes[-1].size)))
            return at, both(gate, below(own, self.k.parts[-1].arg.size))
        return stored_by_threads(image.name, image.memory, self.to, all_.size // BESIDE, BESIDE, read)


def shifted_rows(value: UOp, n: Sequence[UOp], k: FlatAxis) -> ShiftedFactor | None:
    """A factor whose rows and columns are those of K, padded, with stride 1; refuses (None) others."""
    image = StoredImage.of("right", value, n, k.parts[-2], k.parts[-1]) if len(k.parts) >= 2 and k.pitch else None
    if image is None or image.group or max(image.steps) > 1 or len(image.axes) != 3 or k.pitch % BESIDE or \
            image.axes[-1].stride > 1:
        return None
    taps = [r for r in image.coordinates[-1][1] if r is not k.parts[-1]]
    if len(taps) != 1 or taps[0] not in n:
        return None
    others = [r for r in n if r not in (taps[0], image.channel)]
    return ShiftedFactor(image, FlatAxis.of([*others, taps[0], image.channel]), k)
