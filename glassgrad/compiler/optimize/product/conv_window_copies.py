"""Copy windows of an image as boxes of the image. In: factors of a product. Out: `BoxFactor`s, or None.

A convolution reads image[c, h + kh - 1, w + kw - 1], and its gradient by the image reads the result's gradient with the
signs of taps reversed. For one tap (kh, kw), that is a shifted box of the image: some channels of some columns of some
rows. A copy may begin at any row and column, but along the innermost axis only at multiples of 16 bytes. So the image
is first stored with its channels innermost. Its windows are never stored, nor is its padding, which copies fill in.
With a stride s, rows h of each remainder h % s are stored one after another, and columns likewise, including the zeros:
then the elements that one tap reads are contiguous again.

If rows or images would leave much of a tile empty, zeros are stored after each row and image, and the positions of all
images are one axis: each tap reads at an offset of some positions, and a tile is one box.

    forward, and by the image     a step of K is one tap and some channels; positions are rows and columns
    by the weights                a step of K is rows and columns; positions are channels, of one tap

This is proven from the index and its gates: each axis of the image has a coordinate that is linear in the loops, and
the gates say exactly that all coordinates are inside the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import UOp, ops as o
from glassgrad.compiler.graph.index_algebra import (Terms, add, all_of, below_limit, both, build, divide, index, less,
                                                    linear, modulo, multiply, substitute_index)
from glassgrad.compiler.lower.group_statements import Axis, Box
from glassgrad.compiler.lower.loops import (LANE, TASK, TILE, Assign, For, Statement, Store, counter, current,
                                            flat_index, load, local, nested, register_over)
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.plain.transposed_copies import CopyAcross
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis
from glassgrad.compiler.optimize.product.recognize import count
from glassgrad.compiler.optimize.targets import gpu_costs as gpu

MOST_PADDED = 1.6          # padding may enlarge rows by at most this factor
ONE_AXIS = 0.85            # put all images on one axis if it has, with zeros, fewer than this share of the positions
MOST_EMPTY = 2             # padding to whole lines may enlarge channels by at most this factor
LEAST_COLUMNS = 8          # columns of a row in a box: lines of memory are swizzled in eights
SQUARE = 64                # channels and columns of a block that a group transposes to store an image;
MOST_CHANNELS = 256        # more channels if rows are short


@dataclass
class BoxFactor:
    """A factor of a product as boxes of an image with its channels innermost."""
    image: StoredImage
    axis: FlatAxis                         # the factor's own axis: rows and columns, padded; or taps, then channels
    k: FlatAxis                            # taps, then channels; or rows and columns, padded
    in_two_lines: bool = False             # whether a copied line may straddle two cache lines

    @property
    def along_k(self) -> bool:
        """Whether lines of memory, which are channels, go along K."""
        return self.image.channel is self.k.parts[-1]

    @property
    def before(self) -> list[Statement]:
        return self.image.stored()

    def boxes(self, line: int, to: UOp, position: UOp, size: int, k: UOp) -> list[Box]:
        """The boxes of `size` positions from `position` on, for one step of K, which is one line long."""
        pixels, pitch = (size, self.axis.pitch) if self.along_k else (line, self.k.pitch)
        columns, rows = (pitch, pixels // pitch) if pixels % pitch == 0 else (math.gcd(pixels, pitch), 1)
        if self.image.one_axis:
            columns, rows = pixels, 1
        step = columns * rows if self.along_k else line
        found = []
        for i in range(0, size, step):
            places = {**self.axis.indices(add(position, index(i))), **self.k.indices(k)}
            found.append(self.box(places, line, columns, rows, add(to, index(i * line))))
        return found

    def box(self, places: dict[UOp, UOp], line: int, columns: int, rows: int, to: UOp) -> Box:
        """The box of `columns` x `rows` lines, from the position given by `places`, the indices of all loops."""
        return self.image.box(places, line, columns, rows, to)


@dataclass
class StoredImage:
    """An image that a factor reads, stored with its channels innermost. Along each axis, the coordinates that are read
    are stored, from the least to the greatest; along axes with a step, including zeros outside the image."""
    name: str
    memory: UOp                            # of the original image,
    axes: list[Axis]                       # its axes except the channels', outermost first,
    coordinates: list[Coordinate]          # and the coordinates along them
    channel: UOp
    channels: Axis
    steps: list[int]                       # along each axis, from one position that is read to the next
    group: Terms                           # the first channel, if there are groups of channels
    one_axis: tuple[int, ...] = ()         # the padded sizes of axes that are flattened to one

    @staticmethod
    def of(name: str, value: UOp, loops: Sequence[UOp], rows: UOp, columns: UOp) -> StoredImage | None:
        """Recognize a factor that is an element of an image, or 0 outside: one of these loops is its channel, and
        `rows` and `columns` go along its two innermost axes and no others. None for others."""
        gates: list[UOp] = []
        if value.op is o.WHERE and value.src[2].op is o.CONST and value.src[2].arg == 0:
            gates, value = all_of(value.src[0]), value.src[1]
        if value.op is not o.LOAD or value.src[0].op is not o.PARAM:
            return None
        gates += all_of(value.src[2]) if len(value.src) == 3 else []
        shape = [size for size in value.src[0].arg.shape if size > 1]
        axes = [Axis(size, math.prod(shape[a + 1:])) for a, size in enumerate(shape)]
        coordinates = _coordinates(value.src[1], [axis.stride for axis in axes])
        if coordinates is None or not 3 <= len(shape) <= gpu.COPY_AXES or not _gated_inside(coordinates, shape, gates):
            return None
        found = [(at, r) for at, c in enumerate(coordinates) for r in loops
                 if {rows, columns}.isdisjoint(c[1]) and _goes_along(c, r, axes[at].size)]
        if not found:
            return None
        at, channel = max(found, key=lambda way: way[1].arg.size)         # a tap may have an axis of its own
        group = {r: step for r, step in coordinates.pop(at)[1].items() if r is not channel}
        steps = [1] * (len(axes) - 3) + [coordinates[a][1].get(r, 0) for a, r in ((-2, rows), (-1, columns))]
        spread = [a for a, (_, terms) in enumerate(coordinates) for r in (rows, columns) if r in terms]
        apart = max(steps) > 1 and (len(shape) == gpu.COPY_AXES or at == len(coordinates))
        if min(steps) < 1 or len(spread) != 2 or apart:
            return None
        others = [*axes[:at], *axes[at + 1:]]
        return StoredImage(name, value.src[0], others, coordinates, channel, axes[at], steps, group)

    @property
    def in_place(self) -> bool:
        """Whether its channels are innermost already, so that it need not be stored."""
        return self.channels.stride == 1 and max(self.steps) == 1 and not self.one_axis

    @property
    def reads(self) -> list[tuple[int, int]]:
        """The least and the greatest coordinate that is read along each axis."""
        found = []
        for constant, terms in self.coordinates:
            ends = [k * (r.arg.size - 1) for r, k in terms.items()]
            found.append((constant + sum(min(0, e) for e in ends), constant + sum(max(0, e) for e in ends)))
        return found

    @property
    def ends(self) -> list[tuple[int, int]]:
        """The least and the greatest coordinate that is stored along each axis."""
        if self.in_place or self.one_axis:
            return [(0, size - 1) for size in self.one_axis or [axis.size for axis in self.axes]]
        return [(least, last) if step > 1 else (max(0, least), min(last, axis.size - 1))
                for (least, last), axis, step in zip(self.reads, self.axes, self.steps)]

    @property
    def remainders(self) -> list[int]:
        """How many remainders of coordinates by the step are read along each axis; each is stored separately."""
        found = []
        for (constant, terms), (least, _), step in zip(self.coordinates, self.ends, self.steps):
            if step == 1:
                found.append(1)
                continue
            furthest = constant - least + sum(max(0, k * (r.arg.size - 1)) for r, k in terms.items() if k % step)
            found.append(step if any(k % step and k < 0 for k in terms.values()) else min(step, furthest + 1))
        return found

    @property
    def sizes(self) -> list[int]:
        """The sizes of the stored axes, except the channels': remainders, then the positions of each."""
        return [math.prod(self.remainders), *[(last - least) // step + 1
                                              for (least, last), step in zip(self.ends, self.steps)]]

    @property
    def to(self) -> UOp:
        """The memory that it is stored in."""
        if self.in_place:
            return self.memory
        return local(f"{self.name}_image", self.memory.dtype, math.prod(self.sizes) * self.channels.size, "shared")

    def taps(self, loops: Sequence[UOp], line: int) -> FlatAxis | None:
        """The axis of these loops, with channels last and padded to whole lines of `line` elements. Refuses (None)
        lines that would be mostly empty, or whose padding would be channels of the next group."""
        channels, taps = self.channel.arg.size, [r for r in loops if r is not self.channel]
        lines = -(-channels // line) * line
        if lines > MOST_EMPTY * channels or lines > channels and self.group or \
                self.channels.size * self.memory.dtype.itemsize % gpu.COPY_BYTES:
            return None
        size = math.prod(r.arg.size for r in taps) * lines
        return FlatAxis([*taps, self.channel], size, lines if lines > channels else 0)

    def ends_with(self, rows: UOp, columns: UOp) -> bool:
        """Whether it has exactly these rows and columns, so that copies fill in zeros past them."""
        whole = not self.in_place or [axis.size for axis in self.axes[-2:]] == [rows.arg.size, columns.arg.size]
        return whole and self.coordinates[-2:] == [(0, {rows: 1}), (0, {columns: 1})]

    def box(self, places: dict[UOp, UOp], channels: int, columns: int, rows: int, to: UOp) -> Box:
        """The box of `channels` x `columns` x `rows`, from the position given by `places`, the indices of all loops."""
        channel = substitute_index(build(0, {self.channel: 1, **self.group}), places, {})
        if self.one_axis:
            position = index(0)
            for (constant, terms), size in zip(self.coordinates, self.one_axis):
                position = add(multiply(position, size), substitute_index(build(constant, terms), places, {}))
            axes = [Axis(self.channels.size, 1), Axis(math.prod(self.one_axis), self.channels.size)]
            return Box(self.to, 0, tuple(axes), (channels, columns), (channel, position), to)
        first, remainder = [], index(0)
        for (constant, terms), (least, _), step, kinds in zip(self.coordinates, self.ends, self.steps, self.remainders):
            at = substitute_index(build(constant - least, terms), places, {})
            first.append(divide(at, step))
            remainder = add(multiply(remainder, kinds), modulo(at, step)) if kinds > 1 else remainder
        sizes, first = self.sizes, [remainder, *first]
        strides = [math.prod(sizes[a + 1:]) * self.channels.size for a in range(len(sizes))]
        if sizes[0] == 1:
            sizes, strides, first = sizes[1:], strides[1:], first[1:]
        axes = [Axis(self.channels.size, 1), *[Axis(*axis) for axis in zip(sizes[::-1], strides[::-1])]]
        counts = (channels, columns, rows, *[1] * (len(sizes) - 2))
        return Box(self.to, 0, tuple(axes), counts, (channel, *first[::-1]), to)

    def stored(self) -> list[Statement]:
        """The loops that store it."""
        if self.in_place:
            return []
        across = CopyAcross.of(self.transposed()) if max(self.steps) == 1 and not self.one_axis else None
        return self.in_squares() if across is None else across.blocks()

    def transposed(self) -> list[Statement]:
        """for all axes: for channels: store one element      (rows and columns are one loop if they are contiguous)"""
        *outer, rows, columns = [Axis(size, axis.stride) for size, axis in zip(self.sizes[1:], self.axes)]
        whole = columns.size == self.axes[-1].size and rows.stride == columns.size * columns.stride
        pixels = [Axis(rows.size * columns.size, columns.stride)] if whole else [rows, columns]
        axes = [*outer, *pixels, self.channels]
        loops = {counter(f"a{a}", axis.size): axis.stride for a, axis in enumerate(axes) if axis.size > 1}
        at = build(sum(low * axis.stride for (low, _), axis in zip(self.ends, self.axes)), loops)
        return nested([*loops], [Store(self.to, flat_index(loops), load(self.memory, at))], TASK)

    def in_squares(self) -> list[Statement]:
        """The loops in which groups transpose blocks of channels and columns in shared memory, so that both loads and
        stores go along lines."""
        *around, columns = [1, math.prod(self.one_axis)] if self.one_axis else self.sizes
        outer, channels = [counter(f"a{a}", size) for a, size in enumerate(around)], self.channels.size
        wide = min(SQUARE, 1 << (columns - 1).bit_length())
        tall = min(SQUARE * SQUARE // wide, MOST_CHANNELS, max(SQUARE, 1 << (channels - 1).bit_length()))
        block_c, block_x = counter("cb", -(-channels // tall)), counter("xb", -(-columns // wide))
        lane, times = counter("l", gpu.PACK_LANES), counter("u", -(-tall * wide // gpu.PACK_LANES))
        element = add(multiply(current(times), gpu.PACK_LANES), lane)
        square = local(f"{self.name}_square", self.memory.dtype, tall * (wide + 2))
        first_c, first_x = multiply(current(block_c), tall), multiply(current(block_x), wide)

        def for_all(*body: Statement) -> list[Statement]:
            return nested([times], [For(lane, LANE, list(body))], TILE)
        c, x = divide(element, wide), modulo(element, wide)
        at_c, at_x = add(first_c, c), add(first_x, x)
        gate, at = both(below(at_c, channels), below(at_x, columns)), multiply(at_c, self.channels.stride)
        apart: list[UOp] = []
        remainder = current(outer[0])
        for kinds in reversed(self.remainders):
            apart.insert(0, modulo(remainder, kinds))
            remainder = divide(remainder, kinds)
        places = [*[current(r) for r in outer[1:]], at_x]
        for size in reversed(self.one_axis[1:]):
            places[:1] = [divide(places[0], size), modulo(places[0], size)]
        for place, axis, (low, _), (_, last), step, other in zip(places, self.axes, self.ends, self.reads, self.steps,
                                                                 apart):
            position = add(add(multiply(place, step), other), index(low))
            at = add(at, multiply(position, axis.stride))
            gate = both(gate, both(less(index(-1), position), less(position, index(min(axis.size, last + 1)))))
        held = register_over(f"{self.name}_next", self.memory.dtype, (times, lane))
        read = [*for_all(Assign(held, load(self.memory, at, gate))),
                *for_all(Store(square, add(multiply(c, wide + 2), x), held))]
        x, c = divide(element, tall), modulo(element, tall)
        at_c, at_x = add(first_c, c), add(first_x, x)
        row = index(0)
        for r in outer:
            row = add(multiply(row, r.arg.size), current(r))
        to = add(multiply(add(multiply(row, columns), at_x), channels), at_c)
        gate = both(below(at_c, channels), below(at_x, columns))
        write = for_all(Store(self.to, to, load(square, add(multiply(c, wide + 2), x)), None, gate))
        return nested([*outer, block_x, block_c], [*read, *write], TASK)


def window_factors(name: str, value: UOp, n: Sequence[UOp], k: Sequence[UOp], line: int) -> list[BoxFactor]:
    """A factor as windows of an image, whose rows and columns are positions, with lines of `line` elements: with each
    image separate, and with all on one axis. Empty for other factors, or those that would be mostly padding."""
    image = StoredImage.of(name, value, k, n[-2], n[-1]) if len(n) >= 2 else None
    order = None if image is None else image.taps(k, line)
    if image is None or order is None:
        return []
    pitch = _row_pitch(n[-1].arg.size)
    each = FlatAxis([*n[-2:]], n[-2].arg.size * pitch, pitch) if pitch <= MOST_PADDED * n[-1].arg.size else None
    all_, [flat] = _one_axis([image], n, math.gcd(n[-1].arg.size, LEAST_COLUMNS))
    return [BoxFactor(of, axis, order) for of, axis in ((image, each), (flat, all_)) if axis is not None]


def row_factors(left: UOp, right: UOp, m: Sequence[UOp], n: Sequence[UOp], k: Sequence[UOp], line: int) \
        -> tuple[BoxFactor, BoxFactor] | None:
    """Both factors as images whose rows and columns are those of K, as in the gradient of a convolution by its weights.
    Refuses (None) others. Past the last row and column, one of them must have zeros."""
    if len(k) < 2:
        return None
    rows, columns = k[-2:]
    images = [StoredImage.of(name, value, loops, rows, columns) for name, value, loops in (("left", left, m),
                                                                                           ("right", right, n))]
    found = [image for image in images if image is not None]
    axes = [image.taps(loops, line) for image, loops in zip(found, (m, n))]
    if len(found) < 2 or None in axes or not any(image.ends_with(rows, columns) for image in found):
        return None
    pitch = _row_pitch(columns.arg.size)
    height = -(-rows.arg.size // max(1, line // pitch)) * max(1, line // pitch)            # whole steps of several rows
    pixels = FlatAxis([*k], count(k[:-2]) * height * pitch, pitch, height)
    uneven = line % pitch and pitch % line
    all_, flat = _one_axis(found, k)
    if all_ is not None and (uneven or all_.size < ONE_AXIS * pixels.size):
        pixels, found = all_, flat
    elif uneven or pitch * height > MOST_PADDED * columns.arg.size * rows.arg.size:
        return None
    one_, other = [BoxFactor(image, axis, pixels) for image, axis in zip(found, axes) if axis is not None]
    return one_, other


def _one_axis(images: list[StoredImage], loops: Sequence[UOp], whole: int = 1) \
        -> tuple[FlatAxis | None, list[StoredImage]]:
    """Put images, rows and columns on one axis: each row is followed by the zeros that windows read past its end or
    before the next one, and so is the last row of each image. Then each tap reads at a constant offset, and any range
    of positions is one box. Rows begin at multiples of `whole`. Refuses (None) steps, more axes, much padding."""
    parts = [*loops[-len(images[0].axes):]]
    for image in images:
        simple = [terms.get(r) == 1 for (_, terms), r in zip(image.coordinates, parts)]
        if len(image.axes) != len(parts) or len(parts) > 3 or max(image.steps) > 1 or not all(simple) or \
                image.coordinates[:-2] != [(0, {r: 1}) for r in parts[:-2]]:
            return None, images
    sizes = [r.arg.size for r in parts]
    for a in (-2, -1):
        past = [image.axes[a].size + max(0, -image.reads[a][0], image.reads[a][1] + 1 - image.axes[a].size)
                for image in images]
        sizes[a] = max(sizes[a], *past)
    sizes[-1] = -(-sizes[-1] // whole) * whole
    if math.prod(sizes) > MOST_PADDED * count(parts):
        return None, images
    axis = FlatAxis(parts, math.prod(sizes), sizes[-1], sizes[-2] if len(parts) > 2 else 0)
    return axis, [replace(image, one_axis=tuple(sizes)) for image in images]


def _row_pitch(columns: int) -> int:
    """Positions of a row in a tile: a power of two, so that a tile is whole rows; for long rows, a multiple of 16."""
    if columns > SQUARE:
        return -(-columns // 16) * 16
    return int(max(LEAST_COLUMNS, 1 << (columns - 1).bit_length()))


Coordinate = tuple[int, Terms]


def _coordinates(at: UOp, strides: Sequence[int]) -> list[Coordinate] | None:
    """An index as one linear expression for each axis; None if a loop goes along none of them."""
    constant, terms = linear(at)
    out: list[Coordinate] = []
    left = {r: step for r, step in terms.items() if r.op is o.RANGE}
    for stride in strides:
        own = {r: step // stride for r, step in left.items() if step % stride == 0}
        left = {r: step for r, step in left.items() if r not in own}
        moved = (2 * constant + stride) // (2 * stride)          # the nearest: padding is less than half an axis
        constant -= moved * stride
        out.append((moved, own))
    return out if sum(len(own) for _, own in out) == len(terms) else None


def _goes_along(coordinate: Coordinate, r: UOp, size: int) -> bool:
    """Whether a loop goes along an axis of this size: all of it, or a part of it that another loop selects."""
    constant, terms = coordinate
    others = [(other, step) for other, step in terms.items() if other is not r]
    wholes = all(step == r.arg.size and step * other.arg.size == size for other, step in others)
    return constant == 0 and terms.get(r) == 1 and wholes and (len(others) == 1 or r.arg.size == size)


def _gated_inside(coordinates: list[Coordinate], shape: Sequence[int], gates: list[UOp]) -> bool:
    """Whether the gates hold exactly where all coordinates are inside their axes."""
    wanted = set()
    for (constant, terms), size in zip(coordinates, shape):
        ends = [k * (r.arg.size - 1) for r, k in terms.items()]
        if constant + sum(min(0, end) for end in ends) < 0:
            wanted.add((-constant - 1, frozenset((r, -k) for r, k in terms.items())))
        if constant + sum(max(0, end) for end in ends) >= size:
            wanted.add((constant - size, frozenset(terms.items())))
    conditions = [below_limit(gate) for gate in gates]
    found = {(-limit, frozenset(terms.items())) for terms, limit in filter(None, conditions)}
    return None not in conditions and found == wanted
