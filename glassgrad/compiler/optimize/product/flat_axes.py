"""Flatten the loops of a product's M and N into one axis each. In: a `Product`. Out: `FlatAxis`, `FlatProduct`.

Tiles are cut from a single axis. Several loops become one axis if the output is linear in it; a position on it gives
the loops' indices (`indices`). A `FlatProduct` also knows along which axis a factor is contiguous, so that tiles
may read it in place. The target and its thresholds are used only for the number of tasks, and for what fits a cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgrad.base.cached_property import cached_property
from glassgrad.compiler.graph import UOp, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import (add, both, divide, divide_up, index, less, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.lower.loops import Statement, Store, counter, ranges_of
from glassgrad.compiler.optimize.moves.gates import below
from glassgrad.compiler.optimize.product.recognize import (Product, count, evenly_along, footprint, masked,
                                                           stride_along, usual_stride)
from glassgrad.compiler.optimize.targets import cpu_costs as cpu
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.compiler.optimize.targets.tiling_thresholds import TilingThresholds


@dataclass
class FlatAxis:
    """Several loops flattened into one axis of `size` positions; `indices` recovers the loop indices.

    With a pitch, each row of the last loop (columns of an image) takes `pitch` positions: those past its last column
    are padding, which `gate` masks off. With a height, the loop before it is padded to that many rows, likewise.
    """
    parts: list[UOp]
    size: int
    pitch: int = 0
    height: int = 0
    stop: UOp | None = None       # its run-time bound, if it has one
    most: int = 0                 # the upper bound of that; `size` is then a typical value
    any_length: bool = False      # whether one code serves all lengths, instead of versions for ranges

    @staticmethod
    def of(loops: list[UOp]) -> FlatAxis:
        return FlatAxis(loops, count(loops))

    def with_run_time_bound(self, stops: dict[UOp, UOp]) -> FlatAxis:
        """The same axis with the run-time bound of its outermost loop, if that has one."""
        first = self.parts[0]
        return self if first not in stops else \
            replace(self, stop=multiply(stops[first], self.size // first.arg.size))

    def inside(self, at: UOp) -> UOp | None:
        """The condition that a position is before the end; None if it always is."""
        return below(at, self.size) if self.stop is None else less(at, self.stop)

    def pieces(self, size: int) -> UOp | None:
        """How many pieces of `size` positions it has at run time; None without a run-time bound."""
        return None if self.stop is None else divide_up(self.stop, size)

    @property
    def balanced(self) -> bool:
        """Whether it is split into pieces whose lengths differ by at most one: if it is short, with a run-time
        bound."""
        return self.stop is not None and self.most <= cpu.BALANCED_ROWS and not self.any_length

    @property
    def row(self) -> int:
        """The length of a run of positions without padding: the last loop's size if there is a pitch, else `size`."""
        return int(self.parts[-1].arg.size) if self.pitch else self.size

    def gate(self, at: UOp) -> UOp | None:
        """The condition that a position is not padding; None if there is no padding."""
        places, gate = self.indices(at), None
        for r, size in reversed(self.sizes.items()):
            gate = both(gate, below(places[r], r.arg.size)) if size > r.arg.size else gate
        return gate

    @property
    def sizes(self) -> dict[UOp, int]:
        """The loops with their padded sizes."""
        sizes = [int(r.arg.size) for r in self.parts]
        sizes[-1:] = [self.pitch or n for n in sizes[-1:]]
        sizes[-2:-1] = [self.height or n for n in sizes[-2:-1]]
        return dict(zip(self.parts, sizes))

    def position(self) -> UOp:
        """The flat position of the current loop indices."""
        at = index(0)
        for r, size in self.sizes.items():
            at = add(multiply(at, size), r)
        return at

    def indices(self, at: UOp) -> dict[UOp, UOp]:
        """The index of each loop at a flat position."""
        out, step = {}, 1
        for r, size in reversed(self.sizes.items()):
            whole = divide(at, step)
            out[r] = whole if r is self.parts[0] else modulo(whole, size)
            step *= size
            if self.pitch and r is self.parts[-1] or self.height and r is self.parts[-2]:
                at, step = divide(at, step), 1                   # the loops around it are not padded
        return out


@dataclass
class FlatProduct:
    """A product with its flat axes."""
    product: Product
    target: Target
    m: FlatAxis
    n: FlatAxis
    outer: list[UOp]              # loops around everything: the batch, and loops of M and N that do not flatten

    @cached_property
    def depth(self) -> int:
        """The size of K: how many products one sum has."""
        return self.product.depth

    @cached_property
    def work(self) -> int:
        """The total number of multiply-adds."""
        return self.product.work // count(self.m.parts) * self.m.size

    @cached_property
    def repetitions(self) -> int:
        """How often the outer loops repeat the product."""
        return count(self.outer)

    def tasks_wanted(self, limits: TilingThresholds) -> int:
        """How many tasks each repetition should be split into."""
        most = min(limits.most_tasks, self.target.most_tasks)
        return max(1, min(most, self.work // limits.task_work) // max(1, self.repetitions))

    def why_left_not_along_k(self, rows: int) -> str | None:
        """Why the left factor must be packed; None if its rows are contiguous along k and can be read in place."""
        left = self.product.left
        if left.op is not o.LOAD or len(left.src) != 2:
            return "the left factor is computed, not read"
        if len(self.product.k) != 1 or len(self.m.parts) != 1 or rows > self.m.size:
            return "the left factor is not a matrix"
        if not evenly_along(left.src[1], self.m.parts[0]) or stride_along(left.src[1], self.product.k[0]) != 1:
            return "the left factor does not lie along k"
        return None

    @cached_property
    def left_along_m(self) -> bool:
        """Whether the left factor is contiguous along M, and the cache lines and pages that a tile reads along k fit
        the first-level cache and the TLB."""
        left = self.product.left
        if left.op is not o.LOAD or len(left.src) != 2 or len(self.product.k) != 1 or len(self.m.parts) != 1:
            return False
        step = stride_along(left.src[1], self.product.k[0])
        if step is None or stride_along(left.src[1], self.m.parts[0]) != 1:
            return False
        pitch = step * left.dtype.itemsize
        return 4 * cpu.CACHE_LINE * self.depth <= self.target.l1_bytes and \
            abs(pitch) * self.depth <= cpu.NEAR_BYTES and cpu.fit_sets(self.depth, pitch, 8)

    @cached_property
    def why_right_not_along_n(self) -> str | None:
        """Why the right factor must be packed; None if it is contiguous along N and can be read in place."""
        right = self.product.right
        if right.op is not o.LOAD or len(right.src) != 2 or right.dtype is not self.product.total.dtype:
            return "the right factor is computed, not read"
        if self.n.pitch or len(self.product.k) != 1 or len(self.n.parts) != 1:
            return "the right factor is not a matrix"
        if stride_along(right.src[1], self.n.parts[0]) != 1 or not evenly_along(right.src[1], self.product.k[0]):
            return "the right factor does not lie along N"
        return None

    @cached_property
    def reads_windows(self) -> bool:
        """Whether vectors read the right factor in place, tap by tap, masked past its edges: an image with a run-time
        length whose elements several taps read, or every other element of a signal."""
        p, (_, right), longest = self.product, masked(self.product.right), cpu.LIMITS["contract"].long_k
        if not p.stops or not self.target.has_masks or self.depth > longest or p.k_stop is not None or \
                p.pair is not None or right.op is not o.LOAD or right.dtype is not p.total.dtype:
            return False
        *others, position = self.n.parts
        steps = [abs(usual_stride(right.src[1], r) or 0) for r in p.k]
        along = [stride_along(at, position) for at in (right.src[1], p.store.index)]
        is_window = all(evenly_along(right.src[1], r) for r in p.k) and 0 < min(steps) < position.arg.size
        return not others and is_window and (along == [1, 1] and len(steps) > 1 or along == [2, 1] and len(steps) == 2)

    def lines_apart(self, rows: int, ways: int) -> bool:
        """Whether one line from each of `rows` rows of the left factor fits a first-level cache without conflicts."""
        left = self.product.left
        step = stride_along(left.src[1], self.m.parts[0]) or 0
        return cpu.fit_sets(rows, step * left.dtype.itemsize, ways)


def flat_axis(loops: list[UOp], epilogue: list[Statement], name: str) -> tuple[FlatAxis, list[UOp]]:
    """Flatten the innermost loops into one axis in which the output index is linear; also return the other loops."""
    best = FlatAxis.of(loops[-1:])
    for start in range(len(loops) - 2, -1, -1):
        axis = FlatAxis.of(loops[start:])
        whole = counter(name, axis.size)
        split = axis.indices(whole)
        stores = [substitute_index(s.index, split, {}) for s in epilogue if isinstance(s, Store)]
        if any(n.op in (o.IDIV, o.MOD) for n in toposort(stores)):
            break
        best = axis
    if best.size < 8 and len(best.parts) < len(loops):
        return FlatAxis.of(loops), []
    return best, loops[:len(loops) - len(best.parts)]


def image_axis(p: Product, lanes: int = 1) -> tuple[FlatAxis, list[UOp]] | None:
    """Flatten the last two loops of N into one axis with the row pitch of the image that they go over, so that each tap
    of a window is a contiguous read at a constant offset. The pitch is whole vectors of `lanes` if the extra padding
    costs less than stores of vectors that span two rows. For images that are read many times; refuses (None) others."""
    if len(p.n) < 2 or p.right.op is not o.LOAD or len(p.right.src) != 2:
        return None
    rows, columns = p.n[-2:]
    at = p.right.src[1]
    steps = [stride_along(at, r) for r in (rows, columns, *p.k)]
    if None in steps or steps[1] != 1:
        return None
    pitch = steps[0]
    if pitch is None or not columns.arg.size <= pitch <= 2 * columns.arg.size:
        return None
    image = [*p.k, rows, columns]  # the loops within one image: in a batch, other channel groups are between images
    if 2 * footprint(p.right, image) > count(image):
        return None
    aligned = -(-columns.arg.size // lanes) * lanes
    stored = cpu.SCATTER_CYCLES * lanes if pitch % lanes else 0
    in_memory = aligned <= pitch + columns.arg.size  # whether reads past the row before the last stay in memory
    if lanes > 1 and in_memory and aligned * p.depth < pitch * (p.depth + 2 * stored):     # two multiply-adds per cycle
        pitch = aligned
    return FlatAxis([rows, columns], (rows.arg.size - 1) * pitch + columns.arg.size, pitch), p.n[:-2]


def taps_first(p: Product) -> list[UOp]:
    """Order the loops of K: outside, the taps that decide which rows of the image are inside its edges; inside, the
    taps along a row. The loops between them then repeat with the same masks."""
    gate, image = masked(p.right)
    gates = ranges_of(gate or (image.src[2] if len(image.src) == 3 else index(0)))
    along = min(p.k, key=lambda r: abs(usual_stride(image.src[1], r) or 0))
    return sorted(p.k, key=lambda r: 2 if r is along else 0 if r in gates else 1)


def lies_along_k(value: UOp, axis: FlatAxis, k: FlatAxis) -> bool:
    """Whether a factor is contiguous along K, and not along its own axis."""
    reads = [n.src[1] for n in toposort([value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
    return any(stride_along(at, k.parts[-1]) == 1 for at in reads) and \
        not any(stride_along(at, axis.parts[-1]) == 1 for at in reads)
