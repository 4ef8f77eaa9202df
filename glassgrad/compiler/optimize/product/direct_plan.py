"""Windows read where they lie: how such a product is cut. In: a recognised product. Out: a `Plan`, or None.

Which factor is read in place, the register tile that takes the fewest steps, blocks of tiles for a task, blocks and
parts of K: direct.py makes the loops of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.index_algebra import add, index, less, multiply
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import counter
from glassgrad.compiler.optimize.decisions import Choice, settled
from glassgrad.compiler.optimize.moves.padding_bounds import Edges
from glassgrad.compiler.optimize.product import work_split as shares
from glassgrad.compiler.optimize.product.contraction_axes import FlatAxis, footprint, one, stride_along
from glassgrad.compiler.optimize.product.direct_tiles import cuts
from glassgrad.compiler.optimize.product.recognize import Product
from glassgrad.compiler.optimize.targets.target import Target

LEAST_WORK = 64 * 1024   # multiply-adds below which plain loops do as well
LEAST_K = 16             # products per result that repay turning the tile
LEAST_USE = 0.4          # share of the machine's multiply-adds that must be of use: else lanes belong elsewhere
LONG_K = 1024            # longer sums go in blocks: no register adds more, and the panel of a block stays near
K_BLOCK = 512
TASK_WORK = 512 * 1024   # multiply-adds worth a task of their own
MOST_TASKS = 16
MOST_VECTORS = 4         # of a tile
REREAD = 2               # times a window must read each number for it to be one
FEW_PANELS = 8           # up to so many, what is no window is read in place too: packing it would cost more
MOST_RESTING = 1 << 22   # sums that rest between blocks of K, for each worker
MOST_SPLIT = 1 << 17     # results of which each part of K keeps sums of its own
MOST_NEAR = 12           # tiles worth trying, where somebody measures them
MOST_WRITTEN = 2048      # multiply-adds that are written out, for all the edges a tile may lie at
PACK = 1.0               # steps to pack one number of the other factor
TURN = 1.0               # steps to bring one number of a finished tile to its place
APART = 8.0              # and so many more for each piece of memory that the tile's numbers for one column lie in

assert K_BLOCK <= LONG_K, "a block of K is a part of a sum that was too long"


@dataclass(frozen=True)
class Direct(Choice):
    """A tile of rows x (vectors x lanes); blocks of tiles, one to a task."""
    rows: str                     # neighbours along each loop of M, as in 1_2_7
    vectors: int
    block_m: int                  # tiles of M in one task
    block_n: int                  # panels of N in one task
    lanes: int = settled()
    k_block: int = settled(0)     # steps of a loop of K between which the sums rest in LOCAL memory; 0: none
    k_parts: int = settled(1)     # pieces of K, each summed by a task of its own


@dataclass
class Row:
    """How a loop of M is cut: `tile` neighbours belong to one register tile."""
    loop: UOp
    tile: int

    def __post_init__(self) -> None:
        size, name = self.loop.arg.size, self.loop.arg.name
        self.count = -(-size // self.tile)
        self.over, self.inside = counter(name + "o", self.count), counter(name + "i", self.tile)

    def place(self, inside: UOp) -> UOp:
        """The position in the loop; the last tile starts early, so that nothing past the end is read."""
        nominal = multiply(one(self.over), self.tile)
        ragged = self.loop.arg.size % self.tile
        return add(nominal.minimum(self.loop.arg.size - self.tile) if ragged else nominal, inside)

    def gate(self, inside: UOp) -> UOp | None:
        """What the tile before has stored already is not stored again."""
        if self.loop.arg.size % self.tile == 0:
            return None
        return less(multiply(self.over, self.tile), add(self.place(inside), index(1)))


@dataclass
class Plan:
    p: Product                   # its left factor is the one read in place
    edges: Edges                 # and these are where it ends
    rows: list[Row]             # loops of M, outermost first
    vectors: int
    lanes: int
    cost: float                  # estimated steps, for choosing
    registers: int               # of the target
    near: list[tuple[float, int, list[int]]]     # the cheapest tiles: estimated steps, vectors, rows along each loop
    block: tuple[int, int] = (0, 0)      # tiles of M and panels of N in one task; 0: as many as suit the shape

    @staticmethod
    def of(p: Product, target: Target) -> Plan | None:
        image = p.left
        if image.op is not o.LOAD or image.dtype is not p.total.dtype:
            return None
        edges = Edges.of(image.src[2], p.m, p.k) if len(image.src) == 3 else Edges([])
        steps = {r: stride_along(image.src[1], r) for r in (*p.m, *p.k)}
        if edges is None or None in steps.values():
            return None
        depth, wide = math.prod(r.arg.size for r in p.k), math.prod(r.arg.size for r in p.n)
        tall = math.prod(r.arg.size for r in p.m)
        lanes = target.lanes(p.total.dtype.itemsize)
        if depth < LEAST_K or depth * wide * tall < LEAST_WORK:
            return None
        window = REREAD * footprint(image, p.k + p.m) <= depth * tall
        along = len(p.k) > 1 and steps[p.k[-1]] == 1 and wide <= FEW_PANELS * lanes
        near = len(p.m) > 1 and 2 * footprint(image, p.k + p.m[1:]) * image.dtype.itemsize <= target.l2_bytes
        if not (window or along or near):
            return None                  # numbers far apart that are read but a few times are better packed
        p = replace(p, k=edges.taps_first(p.k, {r: step or 0 for r, step in steps.items()}))
        width = p.m[-1].arg.size
        ideal = depth * tall * wide / (2 * lanes) * math.prod(edges.share(k) for k in edges.bound)
        packed = ideal * (-(-width // lanes) * lanes / width) + depth * tall      # lanes along the image, and its copy
        found: list[tuple[float, int, list[int]]] = []
        all_cuts = cuts(p, edges, target.vector_registers - 2)
        for vectors in range(1, min(MOST_VECTORS, -(-wide // lanes)) + 1):
            panels = -(-wide // (vectors * lanes))
            most = (target.vector_registers - vectors - 1) // vectors
            for cut in all_cuts:
                if vectors > 1 and cut.rows > most or cut.written * cut.rows * vectors > MOST_WRITTEN:
                    continue
                halves = sum([times * (max(n * vectors, n + vectors, 8) + 1) for n, times in cut.steps.items()])
                turn = cut.count * (cut.rows + APART * cut.pieces) * TURN * vectors * lanes
                cost = panels * (halves / 2 + turn + PACK * depth * vectors * lanes)   # two of a kind in a cycle
                found.append((cost, vectors, cut.tiles))
        found.sort(key=lambda tile: tile[0])
        if not found or ideal < LEAST_USE * found[0][0] or not (window or along) and packed < found[0][0]:
            return None
        cost, vectors, tiles = found[0]
        return Plan(p, edges, [Row(r, t) for r, t in zip(p.m, tiles)], vectors, lanes, cost,
                     target.vector_registers, found[:MOST_NEAR])

    def with_tile(self, vectors: int, tiles: list[int]) -> Plan:
        """The same with another register tile, and the blocks that suit it."""
        return replace(self, rows=[Row(r, t) for r, t in zip(self.p.m, tiles)], vectors=vectors, block=(0, 0))

    def others(self) -> list[Direct]:
        """Tiles that should cost little more."""
        return [self.with_tile(vectors, tiles).choice() for _, vectors, tiles in self.near]

    def choice(self) -> Direct:
        return Direct("_".join(str(r.tile) for r in self.rows), self.vectors, *self.block, self.lanes, self.k_chunk,
                      self.parts)

    def refuses(self, c: Direct) -> str | None:
        """Why another way to cut it would not do."""
        parts, sizes = c.rows.split("_"), [r.loop.arg.size for r in self.rows]
        if len(parts) != len(sizes) or not all(t.isdigit() and 1 <= int(t) <= n for t, n in zip(parts, sizes)):
            return f"the rows are tiles of {' x '.join(map(str, sizes))}"
        other = self.with_tile(c.vectors, [int(t) for t in parts])
        if (other.height + 1) * c.vectors >= 2 * self.registers:
            return f"the tile takes {other.height * c.vectors} of {self.registers} registers"
        if c.block_m > other.tiles or c.block_n > other.panels:
            return "a block is larger than the product"
        if other.parts > 1 and (c.block_m, c.block_n) != other.block:
            return "a task that sums a part of K has all of the result"
        held = c.block_m * c.block_n * other.strip * other.height * c.vectors * self.lanes
        return "a block's sums would not rest in any cache" if c.k_block and held > MOST_RESTING else None

    # -- sizes ---------------------------------------------------------------------------------------------------
    def __post_init__(self) -> None:
        p = self.p
        self.columns = self.vectors * self.lanes
        self.n = FlatAxis(p.n, math.prod(r.arg.size for r in p.n))
        self.panels = -(-self.n.size // self.columns)
        self.height = math.prod(r.tile for r in self.rows)
        self.depth = math.prod(r.arg.size for r in p.k)
        cut = {m: k for k, m in self.edges.bound.items()}
        self.edged = [(r, self.edges.pieces(cut[r.loop], r.tile)) for r in self.rows if r.loop in cut and r.tile > 1]
        self.strips = [r for r, pieces in self.edged if len(pieces) > 1]      # along these, tiles are told apart
        self.flat = [r for r in self.rows if r not in self.strips]
        self.tiles = math.prod(r.count for r in self.flat)
        self.strip = math.prod(r.count for r in self.strips)
        self.k_loops, self.k_chunk = self.k_blocks()
        self.parts = self.parts_of_k()
        if not all(self.block):
            self.block = (self.tiles, self.panels) if self.parts > 1 else self.blocks()

    def wanted(self) -> int:
        """Tasks that are worth their while."""
        p = self.p
        work = self.depth * math.prod(r.arg.size for r in (*p.m, *p.n, *p.batch))
        return max(1, min(MOST_TASKS, work // TASK_WORK) // math.prod(r.arg.size for r in p.batch))

    def parts_of_k(self) -> int:
        """Into how many pieces K is cut, each for a task of its own: where the result is small, the factors are then
        read but once. Decided by the product's sizes alone, not by the tile, for it decides the order of the sums."""
        p = self.p
        if not self.k_chunk or p.batch:
            return 1
        rows, columns = math.prod(r.arg.size for r in p.m), math.prod(r.arg.size for r in p.n)
        image, weights, wanted = footprint(p.left, p.m + p.k), self.depth * columns, self.wanted()
        apart = min(-(-wanted // n) * weights + n * image for n in range(1, -(-columns // self.lanes) + 1))
        count = self.k_loops[0].arg.size
        count = -(-count // self.k_chunk) if len(self.k_loops) == 1 else count
        parts = -(-count // -(-count // max(1, min(wanted, count))))
        whole = rows * columns <= MOST_SPLIT and 2 * parts >= wanted
        return parts if whole and weights + image + 2 * parts * rows * columns < apart else 1

    def blocks(self) -> tuple[int, int]:
        """Tiles of M and panels of N in one task: enough tasks, and as little as can be read more than once."""
        p, wanted = self.p, self.wanted()
        image, weights = footprint(p.left, p.m + p.k), self.depth * self.panels * self.columns
        return shares.blocks(self.tiles, self.panels, wanted, lambda block_m, block_n:
                             -(-self.tiles // block_m) * weights + -(-self.panels // block_n) * image)

    def k_blocks(self) -> tuple[list[UOp], int]:
        """The loops of K outside a block, the last of them cut into chunks of the second result; 0: one block."""
        if self.depth <= LONG_K:
            return [], 0
        inner = self.depth
        for at, r in enumerate(self.p.k):
            inner //= r.arg.size
            if inner <= LONG_K:
                return self.p.k[:at + 1], max(1, K_BLOCK // inner)
        return self.p.k[:1], 1
