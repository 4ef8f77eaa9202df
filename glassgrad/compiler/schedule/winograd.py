"""Winograd convolutions, with fewer products. In: sinks. Out: sinks, where convolutions are computed tile by tile.

Along one axis, m consecutive sums over a window of r taps read m + r - 1 = 6 pixels. These sums are coefficients of a
product of polynomials, which is determined by its values at 6 points (five numbers, and infinity):

    y = A^T [(G g) * (B^T d)]       d: 6 pixels, g: r taps, y: m sums; 6 products instead of m * r

G and A evaluate polynomials at the points, B^T goes back from values to coefficients. Along two axes this is done
twice: 36 products for 4 x 4 sums of 3 x 3 taps, instead of 144. The gradient by the weights has 3 x 3 results, and its
long sum is split into tiles of 4 x 4: the same, with A and G exchanged. What remains is 36 matrix products,

    SUM over (channel, taps) of windows * weights   ->   A^T [SUM over channel of (B^T tiles B) * (G weights G^T)] A

whose factors and sums are stored; that has to cost less than the products that are saved. The device is described only
by how many products it computes in the time to store a byte.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glassgrad.compiler.graph import UOp, dtypes, ops as o, toposort
from glassgrad.compiler.graph.axis_dependence import AxisSet, carried, varies_along
from glassgrad.compiler.graph.node import rebuilt
from glassgrad.compiler.graph.op_arguments import Iota

# and infinity: errors are 2.5 times those of a direct sum (with 2 and -2: 4 times)
POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)
SIZE = len(POINTS) + 1                   # pixels per tile
MOST_TAPS = 3  # with 5 x 5 taps, a step of a small CNN took 1986 us with tiles, 1566 us without
LAUNCHES = 280_000_000                   # products in the time to launch the kernels of the transforms
Matrix = list[list[float]]


# -- the three matrices ------------------------------------------------------------------------------------------------
def values_at_points(terms: int) -> Matrix:
    """The matrices G and A: from the `terms` coefficients of a polynomial to its values at all points.

    >>> values_at_points(3)[3:]
    [[1.0, 0.5, 0.25], [1.0, -2.0, 4.0], [0.0, 0.0, 1.0]]
    """
    return [*[[point ** power for power in range(terms)] for point in POINTS], [0.0] * (terms - 1) + [1.0]]


def _coefficients(roots: Sequence[float]) -> list[float]:
    """The coefficients, that of x^0 first, of the monic polynomial with these roots."""
    out = [1.0]
    for root in roots:
        out = [low - root * high for low, high in zip([0.0, *out], [*out, 0.0])]
    return out


def to_coefficients() -> Matrix:
    """The matrix B^T: each row has the coefficients of the polynomial that is 1 at one point and 0 at the others."""
    rows = []
    for point in POINTS:
        others = [p for p in POINTS if p != point]
        rows.append([c / math.prod(point - p for p in others) for c in _coefficients(others)] + [0.0])
    return [*rows, _coefficients(POINTS)]


def _transposed(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix)]


# -- in a graph --------------------------------------------------------------------------------------------------------
def with_fewer_products(sinks: list[UOp], products_per_byte: int) -> list[UOp]:
    """Rewrite convolutions to use tiles where that pays; `products_per_byte`: products in the time to store a byte."""
    if not any(_is_large(node) for node in toposort(sinks)):
        return sinks
    known: dict[UOp, AxisSet] = {}       # node -> axes along which its value changes

    def tiled(node: UOp) -> Convolution | None:
        found = Convolution.of(node, known) if _is_large(node) else None
        return found if found is not None and found.pays(products_per_byte) else None

    def cut(node: UOp, alone: list[bool]) -> UOp | None:
        part = summed_part(node) if alone == [True] else None
        return part.reshape(node.shape) if part is not None and tiled(part) is not None else None

    def in_tiles(node: UOp, alone: list[bool]) -> UOp | None:
        found = tiled(node)
        return _stored_once(node, alone) if found is None else found.computed()
    return rewritten(rewritten(sinks, cut), in_tiles)


def _is_large(node: UOp) -> bool:
    """Whether a node is a sum of enough float32 products of windows, and no matrix unit would compute it."""
    if node.op is not o.SUM or node.dtype is not dtypes.float32 or node.src[0].op is not o.MUL:
        return False
    product = node.src[0]
    return all(f.dtype is dtypes.float32 and f.shape == product.shape and not f.symbolic and base_of(f).op is not o.CAST
               for f in product.src) and product.size >= LAUNCHES and any(windows_of(f) for f in product.src)


# (node, which of its sources no other node reads) -> replacement or None
Rewriting = Callable[[UOp, "list[bool]"], "UOp | None"]


def rewritten(sinks: list[UOp], rule: Rewriting) -> list[UOp]:
    """Apply a rule to each node under the sinks, sources first; a replacement keeps the user's line."""
    order = toposort(sinks)
    readers = Counter([*sinks, *[s for node in order for s in node.src]])
    alone: dict[UOp, bool] = {}          # node -> whether it, and what it is a view of, has one reader
    for node in order:
        alone[node] = readers[node] == 1 and (node.op not in o.MOVEMENT or alone[node.src[0]])
    return rebuilt(sinks, lambda node, over: rule(over, [alone[s] for s in node.src]))


def summed_part(node: UOp) -> UOp | None:
    """Rewrite a SHRINK of a contraction to the contraction of that part: for example the gradient by a padded image.
    Refuses (None) other nodes, and reshapes that mix a shrunk axis with others."""
    if node.op is not o.SHRINK:
        return None
    below, bounds = node.src[0], node.arg.bounds
    while below.op is o.RESHAPE:
        source = below.src[0]
        axes = [carried(below, frozenset([a]), exact=True) for a in range(len(source.shape))]
        if any(b != (0, n) and frozenset([a]) not in axes for a, (b, n) in enumerate(zip(bounds, below.shape))):
            return None
        bounds = tuple([bounds[min(a)] if a and len(a) == 1 else (0, n) for a, n in zip(axes, source.shape)])
        below = source
    if below.op is not o.SUM or below.src[0].op is not o.MUL:
        return None
    summed = below.arg.axes
    ends = [(0, n) if a in summed else b for a, (b, n) in enumerate(zip(bounds, below.src[0].shape))]
    left, right = (factor.shrink(ends) for factor in below.src[0].src)
    return (left * right).sum(summed)


def _stored_once(node: UOp, alone: list[bool]) -> UOp | None:
    """contiguous(reshape(contiguous(x)))  ->  contiguous(reshape(x))"""
    below = node
    while node.op is o.CONTIGUOUS and alone[0] and (below is node or below.op is o.RESHAPE):
        below = below.src[0]
    return below.src[0].reshape(node.shape).contiguous() if below is not node and below.op is o.CONTIGUOUS else None


@dataclass
class TapWindows:
    """Windows along one axis: the axes of positions and of taps, their sizes, and whether taps are reversed."""
    position: int
    tap: int
    count: int
    taps: int
    reversed: bool = False

    @property
    def step(self) -> int:
        """Positions per tile."""
        return SIZE + 1 - self.taps

    @property
    def tiles(self) -> int:
        return -(-self.count // self.step)

    def picked(self, x: UOp, offset: int) -> UOp:
        """The position at this offset in each tile; zero past the end."""
        at, zeros = self.position, [(0, 0)] * len(x.shape)
        zeros[at] = (0, self.tiles * self.step - self.count)
        front, back = x.shape[:at], x.shape[at + 1:]
        x = x.pad(zeros).reshape((*front, self.tiles, self.step, *back))
        return _only(x, at + 1, offset).reshape((*front, self.tiles, *back))

    def pixels(self, image: UOp) -> list[UOp]:
        """The pixels of each tile: all taps but the last at its first position, then the last tap at all positions."""
        last = self.taps - 1
        places = [*[(tap, 0) for tap in range(last)], *[(last, offset) for offset in range(self.step)]]
        return [self.picked(_only(image, self.tap, last - tap if self.reversed else tap), at) for tap, at in places]

    def numbers(self, other: UOp, summed: AxisSet) -> UOp:
        """The other factor evaluated at all points: from taps of weights, or from elements at positions of a tile."""
        if self.tap not in summed:
            return _times(values_at_points(self.step), [self.picked(other, n) for n in range(self.step)], self.tap)
        taps = [_only(other, self.tap, n) for n in range(self.taps)]
        return _times(values_at_points(self.taps), taps[::-1] if self.reversed else taps, self.tap)

    def sums(self, at_points: UOp, summed: AxisSet) -> UOp:
        """The sums at positions of a tile, or of taps, from the sums at all points."""
        rows = [_only(at_points, self.tap, n) for n in range(SIZE)]
        out = _times(_transposed(values_at_points(self.step if self.tap in summed else self.taps)), rows, self.tap)
        return out.flip([self.tap]) if self.reversed and self.tap not in summed else out


def _only(x: UOp, axis: int, at: int) -> UOp:
    return x.shrink([(at, at + 1) if a == axis else (0, n) for a, n in enumerate(x.shape)])


def _times(matrix: Matrix, column: list[UOp], axis: int) -> UOp:
    """Multiply a matrix by a column of values; the rows are one axis of the result."""
    shape = (*column[0].shape[:axis], len(matrix), *column[0].shape[axis + 1:])
    number = UOp(o.IOTA, dtypes.int32, (), Iota((len(matrix),)))
    number = number.reshape([n if a == axis else 1 for a, n in enumerate(shape)]).expand(shape)
    out: UOp | None = None
    for n, row in enumerate(matrix):
        terms = [value if c == 1 else value * c for c, value in zip(row, column) if c]
        total = sum(terms[1:], terms[0]).expand(shape)
        out = total if out is None else number.eq(n).where(total, out)
    assert out is not None
    return out


def windows_of(image: UOp) -> list[TapWindows]:
    """The windows of a view, by its own axes; empty if it mixes these axes with others, or a window is too large."""
    found: list[TapWindows] = []
    for move in reversed(movements(image)[0]):
        arg = move.arg
        for each in found:
            if move.op is o.UNWINDOW or move.op is o.WINDOW and arg.axis in (each.position, each.tap):
                return []
            positions, taps = (carried(move, frozenset([a]), exact=True) or () for a in (each.position, each.tap))
            if len(positions) != 1 or len(taps) != 1:
                return []
            each.position, each.tap = min(positions), min(taps)
            each.count = move.shape[each.position]
            if move.shape[each.tap] != each.taps or move.op is o.FLIP and each.position in arg.axes or \
                    move.op is o.PAD and any(arg.padding[a] != (0, 0) for a in (each.position, each.tap)):
                return []
            each.reversed ^= move.op is o.FLIP and each.tap in arg.axes
        if move.op is o.WINDOW and arg.stride == arg.dilation == 1 and arg.size > 1:
            if arg.size > MOST_TAPS:
                return []
            found.append(TapWindows(arg.axis, len(move.shape) - 1, move.shape[arg.axis], arg.size))
    return found


@dataclass
class Convolution:
    """A contraction of windows with another factor, computed in tiles."""
    total: UOp
    image: UOp
    other: UOp
    windows: list[TapWindows]
    summed: AxisSet

    @staticmethod
    def of(total: UOp, known: dict[UOp, AxisSet]) -> Convolution | None:
        """Recognize a sum as a convolution. Refuses (None) another factor that varies along both axes of a window, and
        windows along more than two axes, whose tiles are too large for a thread."""
        summed, factors = frozenset(total.arg.axes), total.src[0].src
        along = [varies_along(f, known) for f in factors]
        for image, other in ((0, 1), (1, 0)):
            windows = windows_of(factors[image])
            if len(windows) in (1, 2) and all(
                    (w.tap in summed) != (w.position in summed) and w.count > w.step and
                    (w.position if w.tap in summed else w.tap) not in along[other] for w in windows):
                return Convolution(total, of_axes(factors[image], along[image]),
                                   of_axes(factors[other], along[other]), windows, summed)
        return None

    @property
    def taps(self) -> list[int]:
        return [w.tap for w in self.windows]

    @property
    def sizes(self) -> list[int]:
        """The sizes of the product's axes, in tiles."""
        sizes = list(self.total.src[0].shape)
        for w in self.windows:
            sizes[w.position], sizes[w.tap] = w.tiles, SIZE
        return sizes

    def pays(self, products_per_byte: int) -> bool:
        """Whether the saved products are worth what the transforms read and store, and their launches."""
        sizes, taps = self.sizes, self.taps
        made = [math.prod(n for a, n in enumerate(sizes) if a in taps or is_stored(a)) for is_stored in
                (lambda a: self.image.shape[a] > 1, lambda a: self.other.shape[a] > 1, lambda a: a not in self.summed)]
        read = [base_of(self.image).size, base_of(self.other).size, self.total.size]
        moved = self.total.dtype.itemsize * sum([*made, *read])
        return self.total.src[0].size - math.prod(sizes) >= LAUNCHES + products_per_byte * moved

    def factors(self) -> tuple[UOp, UOp]:
        """Both factors, evaluated at all points."""
        image, other = self.image, self.other
        for w in self.windows:
            image = _times(to_coefficients(), w.pixels(image), w.tap)
            other = w.numbers(other, self.summed)
        return image, other

    def computed(self) -> UOp:
        """The sums, computed from their values at the points. Axes that vary with positions are innermost in memory."""
        tiled = {w.position in self.summed for w in self.windows}
        factors = self._order(lambda axis: (axis in self.summed) in tiled)
        image, other = (_stored(f, factors).expand(self.sizes) for f in self.factors())
        sums = (image * other).sum(self.summed - frozenset(self.taps))
        out = _stored(sums, self._order(lambda axis: self.image.shape[axis] > 1))
        for w in self.windows:
            out = w.sums(out, self.summed)
        return self._in_place(out)

    def _order(self, last: Callable[[int], bool]) -> list[int]:
        """The axes in storage order: points, then others, then those for which `last` holds."""
        others = [a for a in range(len(self.sizes)) if a not in self.taps]
        return [*self.taps, *sorted(others, key=last)]

    def _in_place(self, out: UOp) -> UOp:
        """Join the results of tiles along the axes of positions."""
        along = {w.position: w for w in self.windows if w.tap in self.summed}
        order = [b for a in range(len(self.sizes)) if a not in {w.tap for w in along.values()}
                 for b in ((a, along[a].tap) if a in along else (a,))]
        out = out.permute(order)
        shape = [along[a].tiles * along[a].step if a in along else n for a, n in enumerate(self.total.shape)]
        if tuple(shape) == self.total.shape:
            return out.reshape(shape).contiguous() if along else out
        return out.contiguous().reshape(shape).shrink([(0, n) for n in self.total.shape])


def movements(x: UOp) -> tuple[list[UOp], UOp]:
    """The movement ops of a view, the last one first, and the value below them."""
    chain: list[UOp] = []
    while x.op in o.MOVEMENT:
        chain.append(x)
        x = x.src[0]
    return chain, x


def base_of(x: UOp) -> UOp:
    return movements(x)[1]


def of_axes(x: UOp, axes: AxisSet) -> UOp:
    """A value without its repetitions along axes other than these."""
    return x.shrink([(0, n) if a in axes else (0, 1) for a, n in enumerate(x.shape)])


def _stored(x: UOp, order: list[int]) -> UOp:
    """Store the value in memory with its axes in this order."""
    return x.permute(order).contiguous().permute([order.index(a) for a in range(len(order))])
