"""Windows whose lines go along rows of an image. In: a factor of a product. Out: a `ShiftedFactor`, or None.

The gradient of a convolution by its weights sums over rows and columns. A unit that takes lines along the sum alone (of
float32, of bytes) wants columns innermost, as images have them; but a copy begins at multiples of 16 bytes, and a tap
begins at any column. So the image is stored once for each tap along a row, moved by it; taps across rows are boxes of
that, which begin at another row. Of nine taps that is a third of all windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glassgrad.compiler.graph.index_algebra import add, both, build, index, less, multiply, substitute_index
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import (LANE, TASK, TILE, Assign, Axis, Box, For, Statement, Store, counter, load,
                                            local, register)
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import nested, one
from glassgrad.compiler.optimize.product.recognize import FlatAxis
from glassgrad.compiler.optimize.product.window_boxes import StoredImage
from glassgrad.compiler.optimize.targets import gpu

AT_ONCE, BESIDE = 4, 4     # pieces that a thread stores, and elements of one


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
        """The axes as they are stored: taps along a row, images, channels, rows, columns."""
        outer = [last - least + 1 for least, last in self.image.ends[:-2]]
        least, last = self.image.ends[-2]
        return [self.axis.parts[-2].arg.size, *outer, self.image.channels.size, last - least + 1, self.k.pitch]

    @property
    def to(self) -> UOp:
        return local(f"{self.image.name}_shifted", self.image.memory.dtype, math.prod(self.sizes), "shared")

    def place(self, line: int, position: UOp, k: UOp) -> UOp:
        """Where the boxes have put a position and a k, both counted from their beginning."""
        return add(multiply(position, line), k)

    def boxes(self, line: int, to: UOp, position: UOp, size: int, k: UOp) -> list[Box]:
        """The boxes of `size` positions from `position` on, and of one step of K, which is a line long."""
        at_once, sizes = math.gcd(size, self.image.channels.size), self.sizes
        strides = [math.prod(sizes[a + 1:]) for a in range(len(sizes))]
        taps, *outer, channels, rows, columns = [Axis(*axis) for axis in zip(sizes, strides)]
        found = []
        for i in range(0, size, at_once):
            places = {**self.axis.apart(add(position, index(i))), **self.k.apart(k)}
            *around, row = [substitute_index(build(constant - least, terms), places, {})
                            for (constant, terms), (least, _) in zip(self.image.coordinates[:-1], self.image.ends)]
            first = (places[self.k.parts[-1]], places[self.image.channel], row, *around, places[self.axis.parts[-2]])
            axes = (columns, channels, rows, *outer, taps)
            counts = (line, at_once, *[1] * (len(axes) - 2))
            found.append(Box(self.to, 0, axes, counts, first, add(to, index(i * line))))
        return found

    @property
    def before(self) -> list[Statement]:
        """The loops that store the image for each tap: a thread stores neighbours at once."""
        image, all_ = self.image, FlatAxis.of([counter(f"a{a}", size) for a, size in enumerate(self.sizes)])
        each, lane, more = counter("e", BESIDE), counter("l", gpu.PACK_LANES), counter("u", AT_ONCE)
        block = counter("p", -(-all_.size // (AT_ONCE * BESIDE * gpu.PACK_LANES)))
        piece = add(multiply(add(multiply(one(block), AT_ONCE), more), gpu.PACK_LANES), lane)
        inside, places = moves.below(multiply(piece, BESIDE), all_.size), all_.apart(multiply(piece, BESIDE))
        tap, *outer, channel, row, column = [places[r] for r in all_.parts]
        constant, terms = image.coordinates[-1]
        own = add(column, each)
        column = add(add(own, index(constant)), multiply(tap, terms[self.axis.parts[-2]]))
        at = add(multiply(channel, image.channels.stride), column)
        for position, axis, (least, _) in zip([*outer, row], image.axes, image.ends):
            at = add(at, multiply(add(position, index(least)), axis.stride))
        gate = both(less(index(-1), column), less(column, index(image.axes[-1].size)))
        gate = both(both(gate, moves.below(own, self.k.parts[-1].arg.size)), inside)
        held = register(f"{image.name}_next", image.memory.dtype, (more, each, lane))
        body: list[Statement] = [Assign(held, load(image.memory, at, gate)),
                                 Store(self.to, add(multiply(piece, BESIDE), each), held, None, inside)]
        return nested([block], nested([more, each], [For(lane, LANE, body)], TILE), TASK)


def shifted_rows(value: UOp, n: Sequence[UOp], k: FlatAxis) -> ShiftedFactor | None:
    """A factor whose rows and columns are those of K, padded, without a step; refuses (None) anything else."""
    image = StoredImage.of("right", value, n, k.parts[-2], k.parts[-1]) if len(k.parts) >= 2 and k.pitch else None
    if image is None or max(image.steps) > 1 or len(image.axes) != 3 or k.pitch % BESIDE:
        return None
    taps = [r for r in image.coordinates[-1][1] if r is not k.parts[-1]]
    if len(taps) != 1 or taps[0] not in n:
        return None
    others = [r for r in n if r not in (taps[0], image.channel)]
    return ShiftedFactor(image, FlatAxis.of([*others, taps[0], image.channel]), k)
