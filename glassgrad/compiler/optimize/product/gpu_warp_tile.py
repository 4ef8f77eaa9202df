"""Tile a contraction for a unit that reads factors from registers. In: a product, a `Target` with one. Out: phases.

    TASK blocks of M and N:
        read the first tile of each factor into registers     any view, mask, cast or prologue is applied here
        for steps of K:
            start to load the next tiles; meanwhile every warp multiplies its rows by all columns of the block
            store them to the other stage of shared memory
        store the sums to shared memory, line by line; the epilogue reads them there

For chips whose units do not read shared memory themselves, and where copies go through threads. A tile is stored in
lines, along k or across it, as the factor is in memory; the left one always along k. Lines are padded, so that
consecutive ones begin in different banks. Does not know which unit it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassgrad.compiler.graph import UOp, const, ops as o
from glassgrad.compiler.graph.index_algebra import add, both, divide, index, modulo, multiply, substitute_index
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, UNIT, Accumulate, Assign, For, Statement, Store,
                                            counter, current, in_loops, load, local, nested, register, register_over)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves.gates import below, zero_outside
from glassgrad.compiler.optimize.product.flat_axes import FlatAxis, flat_axis, lies_along_k
from glassgrad.compiler.optimize.product.gpu_matrix_unit.store_tile import tile_to_memory
from glassgrad.compiler.optimize.product.matrix_unit.unit_choice import unit_for
from glassgrad.compiler.optimize.product.recognize import Product, count
from glassgrad.compiler.optimize.product.tiling_parameters import Tiling
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target

PIECE = 8                # 16-bit elements that a thread copies at once
STAGES = ("0", "1")      # names of the stages of shared memory


def on_warps(product: Product, target: Target, decisions: Decisions) \
        -> tuple[list[list[Statement]], list[Statement]] | None:
    """The phases, and an empty list (K is not split); refuses (None) types without such a unit, and products too small
    to gain from one."""
    if product.k_stop is not None or not product.n:
        return None
    p = product.with_lanes_right()
    found = unit_for(p, target, lambda unit: unit.loads is not None)
    if found is None:
        return None
    unit, left, right = found
    m, outside_m = flat_axis(p.m, p.epilogue, "m")
    n, outside_n = flat_axis(p.n, p.epilogue, "n")
    m, n = (axis.with_run_time_bound(p.stops) for axis in (m, n))
    outer = [*p.batch, *outside_m, *outside_n]
    limits, few = gpu.UNIT_LIMITS, m.stop is not None and m.size == gpu.THIN_SIDE       # mostly fewer rows than that
    if few or min(m.size, n.size) < gpu.THIN_SIDE or p.depth < limits.least_k or p.work < limits.least_work:
        return None

    def time(tile: tuple[int, int], rows_: int) -> float:
        tiles = count(outer) * -(-rows_ // tile[0]) * -(-n.size // tile[1])
        return gpu.warp_tile_time(tiles, tile, target.few_tasks)
    numbers = [m.size] if m.stop is None else gpu.typical_rows(m.size, gpu.UNIT_ROWS)
    rows, columns = gpu.best_for(gpu.WARP_TILES, time, numbers)
    own = Tiling("warps", rows // unit.rows, columns // unit.columns, unit=unit.name, left="shared", right="shared",
                 k_block=gpu.WARP_STEP, stages=2)
    c = decisions.ask(own, _refuses)
    return product.set_run_time_bounds(WarpTile(p, unit, (left, right), m, n, FlatAxis.of(p.k), outer, c).phases()), []


def _refuses(c: Tiling) -> str | None:
    return None if c.rows in (4, 8) and c.vectors in (8, 16) else "a group has 4 or 8 warps, and 8 or 16 matrices each"


class WarpTile:
    """A product tiled as chosen: a block for each group, with `rows` warps along M, each of which has all columns."""

    def __init__(self, product: Product, unit: MatrixUnit, factors: tuple[UOp, UOp], m: FlatAxis, n: FlatAxis,
                 k: FlatAxis, outer: list[UOp], c: Tiling):
        self.product, self.unit, self.m, self.n, self.k, self.outer = product, unit, m, n, k, outer
        self.height, self.width, self.depth = c.rows * unit.rows, c.vectors * unit.columns, c.k_block
        self.threads = c.rows * unit.threads
        self.task_m, self.task_n = counter("mb", -(-m.size // self.height)), counter("nb", -(-n.size // self.width))
        self.first_m = multiply(current(self.task_m), self.height)
        self.first_n = multiply(current(self.task_n), self.width)
        self.row, self.column = counter("r", self.height), counter("c", self.width)
        self.total = register(product.total.arg, unit.total, (self.row, self.column))
        self.step = counter("ks", -(-k.size // (2 * self.depth)))
        self.left, self.right = (
            CopiedLines(name, value, axis, k, (row.arg.size, self.depth), self.threads, STAGES, first, along_k)
            for name, value, axis, row, first, along_k in (("left", factors[0], m, self.row, self.first_m, True),
                                                           ("right", factors[1], n, self.column, self.first_n, None)))

    def phases(self) -> list[list[Statement]]:
        begin = multiply(self.step, 2 * self.depth)
        first, body = copied_steps(self.left, self.right, index(0), begin, self.multiplied)
        start = nested([self.row, self.column], [Assign(self.total, const(0, self.unit.total))], UNIT)
        finish = tile_to_memory(self.product, self.total, (self.m, self.first_m), (self.n, self.first_n), self.threads,
                                over="")
        body = [*start, *first, For(self.step, LOOP, body), *finish]
        stops = {self.task_m: self.m.pieces(self.height), self.task_n: self.n.pieces(self.width)}
        loops = [For(r, TASK, [], stops.get(r)) for r in (*self.outer, self.task_m, self.task_n) if r.arg.size > 1]
        loops.sort(key=lambda loop: loop.stop is None)            # the outermost one bounds the number of tasks
        return [in_loops(loops, body)]

    def multiplied(self, stage: int) -> list[Statement]:
        k = counter("k", self.depth)
        a, b = (factor.at(at, k, stage).cast(self.unit.total) for factor, at in ((self.left, self.row),
                                                                                 (self.right, self.column)))
        return nested([self.row, self.column, k], [Accumulate(self.total, o.ADD, a * b)], UNIT)


class CopiedLines:
    """One factor's tile of a step, in shared memory. Its lines go along k if `along_k`, across it if False, and as the
    factor is in memory if None. `size` is its number of positions and of k, in whole pieces, each copied by one thread.
    Of several stages, one is read while another is filled."""

    def __init__(self, name: str, value: UOp, axis: FlatAxis, k: FlatAxis, size: tuple[int, int], threads: int,
                 stages: Sequence[str] = ("",), first: UOp | None = None, along_k: bool | None = None,
                 piece: int = PIECE, pad: int = PIECE):
        self.value, self.axis, self.k, self.first = value, axis, k, index(0) if first is None else first
        positions, self.depth = size
        self.reads_along_k = lies_along_k(value, axis, k)
        self.along_k = self.reads_along_k if along_k is None else along_k
        lines, length = (positions, self.depth) if self.along_k else (self.depth, positions)
        self.pitch = length + pad                         # neighbouring lines begin in different banks
        self.memories = [local(f"{name}{stage}", value.dtype, lines * self.pitch) for stage in stages]
        across = (self.depth if self.reads_along_k else positions) // piece      # pieces of a line that is read
        pieces = positions * self.depth // piece
        self.times, self.each = counter("u", -(-pieces // threads)), counter("e", piece)
        self.lane = counter("l", threads)
        number = add(multiply(current(self.times), threads), self.lane)
        self.inside = below(number, pieces)
        self.line, self.begin = divide(number, across), multiply(modulo(number, across), piece)
        self.next = register_over(f"{name}_next", value.dtype, (self.times, self.each, self.lane))

    def at(self, position: UOp, k: UOp, stage: int = 0) -> UOp:
        """The element that was copied."""
        return load(self.memories[stage], self.index_of(position, k))

    def index_of(self, position: UOp, k: UOp) -> UOp:
        line, inner = (position, k) if self.along_k else (k, position)
        return add(multiply(line, self.pitch), inner)

    def element(self, each: UOp) -> tuple[UOp, UOp]:
        """The position and the k of a thread's element number `each`."""
        inner = add(self.begin, each)
        return (self.line, inner) if self.reads_along_k else (inner, self.line)

    def number(self, begin_k: UOp, replace: dict[UOp, UOp]) -> UOp:
        """The value that a thread copies: zero past the edges."""
        position, k = self.element(current(self.each))
        at, at_k = add(self.first, position), add(begin_k, k)
        along = self.k if self.reads_along_k else self.axis
        whole = along.stop is None and along.size % self.each.arg.size == 0
        edge, edge_k = self.element(index(0)) if whole else (position, k)         # one test per piece if possible
        gate = both(self.axis.inside(add(self.first, edge)), self.k.inside(add(begin_k, edge_k)))
        value = substitute_index(self.value, {**replace, **self.axis.indices(at), **self.k.indices(at_k)}, {})
        return zero_outside(value, both(self.inside, gate))

    def read(self, begin_k: UOp, replace: dict[UOp, UOp] | None = None) -> list[Statement]:
        """Load the elements of a step into registers."""
        return self.for_all(Assign(self.next, self.number(begin_k, replace or {})))

    def kept(self, stage: int = 0) -> list[Statement]:
        """Store the registers to a stage's memory."""
        return self.for_all(self.store(self.next, stage))

    def copied(self) -> list[Statement]:
        """Load and store the elements of the only step."""
        return self.for_all(self.store(self.number(index(0), {})))

    def store(self, value: UOp, stage: int = 0) -> Store:
        return Store(self.memories[stage], self.index_of(*self.element(current(self.each))), value, None, self.inside)

    def for_all(self, statement: Statement) -> list[Statement]:
        return nested([self.times, self.each], [For(self.lane, LANE, [statement])], TILE)


def copied_steps(left: CopiedLines, right: CopiedLines, first_k: UOp, begin_k: UOp,
                 multiplied: Callable[[int], list[Statement]]) -> tuple[list[Statement], list[Statement]]:
    """The statements before a loop over K, and one round of the loop: a step for each stage, `multiplied(stage)`,
    during which the elements of the next step are loaded."""
    def read(at: UOp) -> list[Statement]:
        return [*left.read(at), *right.read(at)]

    def kept(stage: int) -> list[Statement]:
        return [*left.kept(stage), *right.kept(stage)]
    step, stages = left.depth, len(left.memories)
    if stages == 1:
        return read(first_k), [*kept(0), *read(add(begin_k, index(step))), *multiplied(0)]
    body: list[Statement] = []
    for stage in range(stages):
        later = add(begin_k, index((stage + 1) * step))
        body += [*read(later), *multiplied(stage), *kept((stage + 1) % stages)]
    return [*read(first_k), *kept(0)], body
