"""The axes of a sum of products. In: its loops. Out: flat axes, with the loops that do not flatten left outside.

Knows nothing of tiles or memory: only which positions an axis has, and how far apart they lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import divide, index, linear, modulo, substitute_index
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Statement, Store, counter, ranges_of
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.targets.target import Target

MOST_PACKED = 1 << 28    # elements of a packed factor, where it is much larger than what it is made of


@dataclass
class FlatAxis:
    """Several loops as one: `size` positions, taken apart again by division where that is needed.

    With a pitch, two loops (rows and columns of an image) are laid out as the image is in memory: a row's positions
    past its last column stand for nothing, and `gate` says where.
    """
    parts: list[UOp]
    size: int
    pitch: int = 0

    def gate(self, at: UOp) -> UOp | None:
        """Where a position stands for something; None: everywhere."""
        if not self.pitch:
            return None
        return moves.below(modulo(at, self.pitch), self.parts[1].arg.size)

    def apart(self, at: UOp) -> dict[UOp, UOp]:
        if self.pitch:
            return {self.parts[0]: divide(at, self.pitch), self.parts[1]: modulo(at, self.pitch)}
        out, step = {}, 1
        for r in reversed(self.parts):
            whole = divide(at, step)
            out[r] = whole if r is self.parts[0] else modulo(whole, r.arg.size)
            step *= r.arg.size
        return out


@dataclass
class FlatProduct:
    """A product and its flat axes."""
    product: Product
    target: Target
    m: FlatAxis
    n: FlatAxis
    outer: list[UOp]              # loops around everything: batch, and parts of M and N that do not flatten

    @property
    def depth(self) -> int:
        """How many products one sum has."""
        return math.prod(r.arg.size for r in self.product.k)

    @property
    def around(self) -> int:
        """How often the loops around it repeat the product."""
        return math.prod(r.arg.size for r in self.outer)

    @property
    def work(self) -> int:
        """Multiply-adds of the whole."""
        p = self.product
        return self.depth * math.prod(r.arg.size for r in (*p.m, *p.n, *p.batch))

    def tasks_wanted(self, task_work: int, most: int) -> int:
        """Into how many tasks each repetition is best cut, for tasks that are worth waking someone."""
        return max(1, min(most, self.work // task_work) // max(1, self.around))

    def left_off_k(self, rows: int) -> str | None:
        """Why the left factor must be packed; None where it can be read where it lies, its rows along k."""
        left = self.product.left
        if left.op is not o.LOAD or len(left.src) != 2:
            return "the left factor is computed, not read"
        if len(self.product.k) != 1 or len(self.m.parts) != 1 or rows > self.m.size:
            return "the left factor is not a matrix"
        if stride_along(left.src[1], self.m.parts[0]) is None or stride_along(left.src[1], self.product.k[0]) != 1:
            return "the left factor does not lie along k"
        return None

    def lines_apart(self, rows: int, ways: int) -> bool:
        """Whether so many rows of the left factor leave room for each other."""
        left = self.product.left
        step = stride_along(left.src[1], self.m.parts[0]) or 0
        return leave_room(rows, step * left.dtype.itemsize, ways)


def leave_room(count: int, step: int, ways: int) -> bool:
    """Whether so many lines, `step` bytes apart, leave room for each other in a first-level cache, each of whose sets
    has so many ways to spare: lines that lie 4096 bytes apart share a set."""
    return count * math.gcd(step, 4096) <= ways * 4096


def flat_axis(loops: list[UOp], epilogue: list[Statement], name: str) -> tuple[FlatAxis, list[UOp]]:
    """The innermost loops that flatten to one axis linear in the output, and the loops left outside."""
    def joined(parts: list[UOp]) -> FlatAxis:
        return FlatAxis(parts, math.prod(r.arg.size for r in parts))

    best = joined(loops[-1:])
    for start in range(len(loops) - 2, -1, -1):
        axis = joined(loops[start:])
        whole = counter(name, axis.size)
        split = axis.apart(whole)
        stores = [substitute_index(s.index, split, {}) for s in epilogue if isinstance(s, Store)]
        if any(n.op in (o.IDIV, o.MOD) for n in toposort(stores)):
            break
        best = axis
    if best.size < 8 and len(best.parts) < len(loops):
        return joined(loops), []
    return best, loops[:len(loops) - len(best.parts)]


def image_axis(p: Product) -> tuple[FlatAxis, list[UOp]] | None:
    """The last two loops of N laid out with the pitch of the image they walk over: then each tap of a window is one
    contiguous read, at a constant distance. For images that are read many times over; refuses anything else."""
    if len(p.n) < 2 or p.right.op is not o.LOAD or len(p.right.src) != 2:
        return None
    rows, columns = p.n[-2:]
    at = p.right.src[1]
    steps = [stride_along(at, r) for r in (rows, columns, *p.k)]
    if None in steps or steps[1] != 1:
        return None
    pitch = steps[0]
    reads = math.prod(r.arg.size for r in p.k + p.n)
    if pitch is None or not columns.arg.size <= pitch <= 2 * columns.arg.size:
        return None
    if 2 * footprint(p.right, p.k + p.n) > reads:
        return None
    return FlatAxis([rows, columns], (rows.arg.size - 1) * pitch + columns.arg.size, pitch), p.n[:-2]


def swells(factor: UOp, loops: list[UOp]) -> bool:
    """Whether a packed factor would be huge, and much larger than the memory it is made of: a window, a repetition."""
    packed = math.prod(r.arg.size for r in dict.fromkeys([*loops, *ranges_of(factor)]))
    read = {n.src[0] for n in toposort([factor]) if n.op is o.LOAD and n.src[0].op is o.PARAM}
    return packed > max(MOST_PACKED, 4 * sum(math.prod(m.arg.shape) for m in read))


def stride_along(at: UOp, along: UOp) -> int | None:
    """The stride of an address along a counter; None where it is not a constant."""
    _, terms = linear(at)
    if any(along in ranges_of(atom) and atom is not along for atom in terms):
        return None
    return terms.get(along, 0)


def one(range_: UOp) -> UOp:
    return range_ if range_.arg.size > 1 else index(0)


def footprint(factor: UOp, loops: list[UOp]) -> int:
    """How many elements of memory a factor touches at most while these loops run."""
    steps = [(abs(stride_along(factor.src[1], r) or 0), r.arg.size) for r in loops]
    return 1 + sum(step * (size - 1) for step, size in steps)
