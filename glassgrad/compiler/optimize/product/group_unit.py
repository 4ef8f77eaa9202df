"""A contraction on a matrix unit of a group of threads. In: a product, a `Target` with units. Out: phases, or None.

    phases     store a factor that no copy can bring as it lies (computed, masked, with rows that do not start at
               multiples of 16 bytes): [line][k or position], lines padded
    TASK tiles of M and N:
        start to copy the first steps of both factors into stages of memory that the group shares
        for steps of K:
            wait for its copies; one step of the unit; wait for the step before it; refill the stage that it read
        put the sums into that memory, line by line; the epilogue reads them there

Copies bring zeros for what lies past the edges of M, N and K. What lies past those of M and N is dropped at the store.
All threads do the same: no roles. Does not know which unit it is: shapes, layouts and limits come from targets/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.index_algebra import (add, both, divide, index, less, linear, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, UNIT, Accumulate, Assign, AwaitCopies, AwaitSteps,
                                            Axis, Barrier, Box, CopyBoxes, For, If, Statement, Store, counter, load,
                                            local, ranges_of, register)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import flat_index, left_of, nested, one
from glassgrad.compiler.optimize.product.packing import narrowed
from glassgrad.compiler.optimize.product.recognize import FlatAxis, Product, count, flat_axis, stride_along, swells
from glassgrad.compiler.optimize.product.tiling import Tiling
from glassgrad.compiler.optimize.product.window_boxes import WindowFactor, window_factor
from glassgrad.compiler.optimize.targets import gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target


def on_group_unit(product: Product, target: Target, decisions: Decisions) -> list[list[Statement]] | None:
    """The phases; refuses (None) what has no unit for its types, or is too small to repay it."""
    if not target.units or product.stops or not product.n:
        return None
    plan = GroupUnitPlan.of(product.with_lanes_right(), target)
    if plan is None:
        return None
    return GroupUnitTile(plan, decisions.ask(plan.own(), plan.refuses, plan.others)).phases()


@dataclass
class Factor:
    """A factor as a matrix in memory with one contiguous axis: K, or its own axis (M or N)."""
    memory: UOp
    offset: int
    axis: FlatAxis
    k: FlatAxis
    along_k: bool
    pitch: int                            # from line to line
    outer: list[tuple[UOp, int]]          # loops around everything that it depends on, with its stride along each
    before: list[Statement]               # the loops that store it there, where it did not lie so

    @property
    def in_two_lines(self) -> bool:
        """Whether lines that are copied may lie in two lines of the cache each."""
        return (self.pitch * self.memory.dtype.itemsize) % gpu.CACHE_LINE != 0

    def boxes(self, line: int, to: UOp, position: UOp, size: int, k: UOp) -> list[Box]:
        """The boxes of `size` positions from `position` on, and of one step of K, which is a line long."""
        around = tuple([Axis(r.arg.size, stride) for r, stride in self.outer])
        at = tuple([r for r, _ in self.outer])
        if self.along_k:
            axes = (Axis(self.k.size, 1), Axis(self.axis.size, self.pitch), *around)
            return [Box(self.memory, self.offset, axes, (line, size, *[1] * len(around)), (k, position, *at), to)]
        axes = (Axis(self.axis.size, 1), Axis(self.k.size, self.pitch), *around)
        return [Box(self.memory, self.offset, axes, (line, line, *[1] * len(around)),
                    (add(position, index(i)), k, *at), add(to, index(i * line)))
                for i in range(0, size, line)]

    def place(self, line: int, position: UOp, k: UOp) -> UOp:
        """Where the boxes have put a position and a k, both counted from their beginning."""
        if self.along_k:
            return add(multiply(position, line), k)
        column = add(multiply(k, line), modulo(position, line))
        return add(multiply(divide(position, line), line * line), column)


@dataclass
class GroupUnitPlan:
    """A product in a unit's types on flat axes, and how it would be cut."""
    product: Product
    target: Target
    units: list[MatrixUnit]               # for these types, of different shapes
    m: FlatAxis
    n: FlatAxis
    k: FlatAxis
    outer: list[UOp]
    left: UOp
    right: UOp
    windows: WindowFactor | None = None   # the right factor, where it is read as windows of an image

    @staticmethod
    def of(p: Product, target: Target) -> GroupUnitPlan | None:
        for unit in target.units:
            left, right = narrowed(p.left, unit.left), narrowed(p.right, unit.right)
            if p.total.dtype is unit.total and left is not None and right is not None and unit.lines is not None:
                break
        else:
            return None
        m, outside_m = flat_axis(p.m, p.epilogue, "m")
        n, outside_n = flat_axis(p.n, p.epilogue, "n")
        units = [u for u in target.units
                 if (u.left, u.right, u.total, u.lines) == (unit.left, unit.right, unit.total, unit.lines)]
        plan = GroupUnitPlan(p, target, units, m, n, FlatAxis.of(p.k), [*p.batch, *outside_m, *outside_n], left, right)
        small = min(m.size, n.size) < gpu.LEAST_SIDE or p.depth < gpu.UNIT_LIMITS.least_k
        if small or p.work < gpu.UNIT_LIMITS.least_work:
            return None
        plan = plan.with_windows()
        stored = swells(left, p.m + p.k) or plan.windows is None and swells(right, p.n + p.k)
        return None if stored else plan

    def with_windows(self) -> GroupUnitPlan:
        """The same, with windows of an image read from the image, where the right factor is that."""
        right = self.right
        found = window_factor(right, self.n.parts, self.product.k, self.line(self.units[0])) \
            if in_place(*self.factors()[1]) is None else None
        return self if found is None else replace(self, n=found.axis, k=found.k, windows=found)

    def placed(self) -> list[Factor | WindowFactor | None]:
        """Both factors where copies can bring them as they lie; None where they are stored first."""
        left, right = (in_place(*of) for of in self.factors())
        return [left, self.windows or right]

    def own(self) -> Tiling:
        """The recipe's own choice: the tile with which the whole product takes least time."""
        left, right = self.placed()
        in_two = (left is not None and left.in_two_lines, right is not None and right.in_two_lines)

        def time(c: Tiling) -> tuple[float, int]:
            unit = self.unit(c)
            tiles = count(self.outer) * -(-self.m.size // (c.rows * unit.rows)) * -(-self.n.size // unit.columns)
            tile = (c.rows * unit.rows, unit.columns, 2 if c.stages <= self.stages(c.rows, unit, 2) else 1)
            tile = tile if tile in gpu.UNIT_RATES else (*tile[:2], 1)
            steps = -(-self.k.size // self.line(unit))
            return gpu.unit_tile_time(tiles, steps, tile, self.target.few_tasks // 2, in_two), -c.stages
        return min(self.others(), key=time)

    def others(self) -> list[Tiling]:
        found = [self.with_tile(rows // unit.rows, unit, at_once) for unit in self.units
                 for rows, columns, at_once in gpu.UNIT_RATES if columns == unit.columns]
        return list(dict.fromkeys(found))

    def stages(self, groups: int, unit: MatrixUnit, at_once: int) -> int:
        """How many stages fit, where so many groups share a processor's memory; 0 where not even the sums do."""
        line, limit = self.line(unit), gpu.SHARED_BYTES // at_once
        stage = (groups * unit.rows + unit.columns) * line * unit.left.itemsize
        sums = groups * unit.rows * (unit.columns + gpu.UNIT_PAD) * unit.total.itemsize
        return max(2, min(limit // stage, gpu.MOST_STAGES, -(-self.k.size // line))) if sums <= limit else 0

    def with_tile(self, groups: int, unit: MatrixUnit, at_once: int) -> Tiling:
        line, stages = self.line(unit), self.stages(groups, unit, at_once)
        left, right = ("shared" if factor else "packed" for factor in self.placed())
        return Tiling("boxes", groups, 1, unit=unit.name, left=left, right=right, k_block=line, stages=stages)

    def factors(self) -> list[tuple[UOp, FlatAxis, FlatAxis, list[UOp]]]:
        return [(self.left, self.m, self.k, self.outer), (self.right, self.n, self.k, self.outer)]

    def unit(self, c: Tiling) -> MatrixUnit:
        return next(u for u in self.units if u.name == c.unit)

    @staticmethod
    def line(unit: MatrixUnit) -> int:
        """Elements of one line of memory that the unit reads: the step of K."""
        assert unit.lines is not None
        return unit.lines.line_bytes // unit.left.itemsize

    def refuses(self, c: Tiling) -> str | None:
        """Why this product cannot be cut so."""
        if c.unit not in [u.name for u in self.units]:
            return "no unit of that name multiplies these types"
        unit = self.unit(c)
        if (c.rows * unit.rows, unit.columns, 1) not in gpu.UNIT_RATES:
            return "a tile has one or two matrices of the unit's rows"
        if not 2 <= c.stages <= self.stages(c.rows, unit, 1):
            return "stages do not fit the memory of a group, or are more than the steps of K"
        return None


class GroupUnitTile:
    """A product cut as chosen: a tile of `rows` matrices of the unit below each other, one for each of its groups."""

    def __init__(self, plan: GroupUnitPlan, c: Tiling):
        self.plan, self.product, self.stages, self.unit = plan, plan.product, c.stages, plan.unit(c)
        self.m, self.n, self.outer, self.line = plan.m, plan.n, plan.outer, c.k_block
        self.threads = c.rows * self.unit.threads
        self.height, self.width = c.rows * self.unit.rows, self.unit.columns
        self.left, self.right = (factor or packed(name, *of, self.unit.left, self.line)
                                 for name, of, factor in zip(("left", "right"), plan.factors(), plan.placed()))
        tiles_m = -(-self.m.size // self.height)
        together = -(-tiles_m // -(-tiles_m // gpu.TILES_TOGETHER))
        self.group, self.in_group = counter("mg", -(-tiles_m // together)), counter("mi", together)
        self.task_n, self.tiles_m = counter("nb", -(-self.n.size // self.width)), tiles_m
        self.first_m = multiply(add(multiply(one(self.group), together), one(self.in_group)), self.height)
        self.first_n = multiply(one(self.task_n), self.width)
        self.steps = -(-plan.k.size // self.line)
        self.row, self.column = counter("r", self.height), counter("c", self.width)
        self.total = register(self.product.total.arg, self.unit.total, (self.row, self.column))
        self.left_size = self.height * self.line
        self.stage_size = self.left_size + self.width * self.line
        self.memory = local("stages", self.unit.left, self.stages * self.stage_size)
        self.pitch = self.width + gpu.UNIT_PAD
        self.tile = local("tile", self.unit.total, self.height * self.pitch, over="stages")

    def phases(self) -> list[list[Statement]]:
        body: list[Statement] = [*self.in_unit([Assign(self.total, const(0, self.unit.total))]), *self.sums(),
                                 AwaitSteps(0), Barrier(), *self.epilogue()]
        stop = left_of(self.tiles_m, self.in_group.arg.size, self.group)
        if self.in_group.arg.size > 1:
            body = [For(self.in_group, TASK, body, stop)]
        tasks = nested([*self.outer, self.group, self.task_n], body, TASK)
        return [*[f.before for f in (self.left, self.right) if f.before], tasks]

    def in_unit(self, body: list[Statement]) -> list[Statement]:
        return nested([self.row, self.column], body, UNIT)

    def sums(self) -> list[Statement]:
        """The steps of K, with copies on their way for the next ones."""
        first, step, ahead = counter("ka", self.stages - 1), counter("ks", self.steps), self.stages - 1
        depth = counter("k", self.line)
        begin = multiply(modulo(one(step), self.stages), self.stage_size)
        a = load(self.memory, add(begin, self.left.place(self.line, self.row, depth)))
        b = load(self.memory, add(add(begin, index(self.left_size)), self.right.place(self.line, self.column, depth)))
        multiplied = Accumulate(self.total, o.ADD, a.cast(self.unit.total) * b.cast(self.unit.total))
        later = add(one(step), index(ahead))
        body: list[Statement] = [AwaitCopies(self.memory, one(step), self.stages),
                                 *self.in_unit([For(depth, UNIT, [multiplied])]), AwaitSteps(1), Barrier()]
        if self.steps > ahead:
            body.append(If(less(later, index(self.steps)), [self.copies(later)]))
        return [*nested([first], [self.copies(one(first))]),
                *([For(step, LOOP, body)] if self.steps > 1 else body)]

    def copies(self, step: UOp) -> CopyBoxes:
        """The copies of both factors for a step of K, into its stage."""
        to, k = multiply(modulo(step, self.stages), self.stage_size), multiply(step, self.line)
        return CopyBoxes(self.memory, step, (
            *self.left.boxes(self.line, to, self.first_m, self.height, k),
            *self.right.boxes(self.line, add(to, index(self.left_size)), self.first_n, self.width, k)))

    def epilogue(self) -> list[Statement]:
        """The sums to memory, and what is stored of them: neighbouring threads store neighbouring pieces of a line."""
        keep = Store(self.tile, add(multiply(self.row, self.pitch), self.column), self.total)
        columns = self.n.parts[-1].arg.size if self.n.pitch else self.n.size
        piece = next(v for v in (8, 4, 2, 1) if columns % v == 0)           # neighbours that one thread stores
        along = self.width // piece
        each, further = counter("e", piece), counter("f", 8 // piece)
        times, lane = counter("i", self.height * self.width // (8 * self.threads)), counter("l", self.threads)
        at = add(multiply(add(multiply(one(times), 8 // piece), one(further)), self.threads), lane)
        row, begin = divide(at, along), multiply(modulo(at, along), piece)
        at_m, at_n = add(self.first_m, row), add(self.first_n, begin)
        gate = both(moves.below(at_m, self.m.size) if self.m.size % self.height else None,
                    moves.below(at_n, self.n.size) if self.n.size % self.width else None)
        gate = both(gate, self.n.gate(at_n))
        result = load(self.tile, add(add(multiply(row, self.pitch), begin), one(each)))
        stores = self.product.stores(result, {**self.m.apart(at_m), **self.n.apart(add(at_n, one(each)))}, gate)
        lines = nested([times], nested([further, each], [For(lane, LANE, stores)], TILE))
        return [*self.in_unit([keep]), *lines]


# -- factors -----------------------------------------------------------------------------------------------------------
def in_place(value: UOp, axis: FlatAxis, k: FlatAxis, outer: Sequence[UOp]) -> Factor | None:
    """A factor that copies can bring as it lies: a matrix with one contiguous axis whose other strides, and whose
    beginning, are multiples of 16 bytes."""
    if value.op is not o.LOAD or len(value.src) != 2 or value.src[0].op is not o.PARAM:
        return None
    position, step = counter("position", axis.size), counter("step", k.size)
    offset, terms = linear(substitute_index(value.src[1], {**axis.apart(position), **k.apart(step)}, {}))
    used = [r for r in outer if r in terms]
    if any(atom not in (position, step, *used) for atom in terms) or len(used) > gpu.COPY_AXES - 2:
        return None
    along_k = terms.get(step) == 1
    if not along_k and terms.get(position) != 1:
        return None
    pitch = terms.get(position if along_k else step, 0)
    whole = gpu.COPY_BYTES // value.dtype.itemsize
    if offset % whole or any(s <= 0 or s % whole for s in (pitch, *[terms[r] for r in used])):
        return None
    return Factor(value.src[0], offset, axis, k, along_k, pitch, [(r, terms[r]) for r in used], [])


def packed(name: str, value: UOp, axis: FlatAxis, k: FlatAxis, outer: Sequence[UOp], dtype: DType, line: int,
           along_k: bool = False) -> Factor:
    """A factor that is stored first, lines along what is contiguous in memory and padded, or along k."""
    reads = [n.src[1] for n in toposort([value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
    along_k = along_k or any(stride_along(at, k.parts[-1]) == 1 for at in reads) and \
        not any(stride_along(at, axis.parts[-1]) == 1 for at in reads)
    lines, inner = (axis, k) if along_k else (k, axis)
    used = [r for r in outer if r in ranges_of(value)]
    pitch = -(-inner.size // line) * line
    memory = local(name, dtype, count(used) * lines.size * pitch, "shared")
    block, rows, lane = counter("pb", -(-inner.size // gpu.PACK_LANES)), counter("pr", gpu.PACK_ROWS), \
        counter("l", gpu.PACK_LANES)
    some = counter("p", -(-lines.size // gpu.PACK_ROWS))
    at_line = add(multiply(one(some), gpu.PACK_ROWS), rows)
    at = add(multiply(one(block), gpu.PACK_LANES), lane)
    gate = both(moves.below(at_line, lines.size), moves.below(at, inner.size))
    new = substitute_index(value, {**lines.apart(at_line), **inner.apart(at)}, {})
    to = add(multiply(add(multiply(flat_index(used), lines.size), at_line), pitch), at)
    held = register(f"{name}_next", dtype, (rows, lane))          # all are read before one is stored
    copy: list[Statement] = [Assign(held, moves.zero_outside(new, gate)), Store(memory, to, held, None, gate)]
    before = nested([*used, some, block], [For(rows, TILE, [For(lane, LANE, copy)])], TASK)
    strides = [count(used[i + 1:]) * lines.size * pitch for i in range(len(used))]
    return Factor(memory, 0, axis, k, along_k, pitch, list(zip(used, strides)), before)
