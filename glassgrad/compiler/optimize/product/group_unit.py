"""A contraction on a matrix unit of a group of threads. In: a product, a `Target` with units. Out: phases, or None.

    phases     store a factor that no copy can bring as it lies (computed, masked, with rows that do not start at
               multiples of 16 bytes): [line][k or position], lines padded
    TASK tiles of M and N:
        start to copy the first steps of both factors into stages of memory that the group shares
        for steps of K (or of a part of it, where tiles are few):
            wait for its copies; one step of the unit; wait for the step before it; refill the stage that it read
        put the sums into that memory, line by line; the epilogue reads them there
    for all results, where columns are not neighbours in memory or K is in parts: the epilogue of sums stored so far

Copies bring zeros for what lies past the edges of M, N and K. What lies past those of M and N is dropped at the store.
All threads do the same: no roles. Does not know which unit it is: shapes, layouts and limits come from targets/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Union

from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType
from glassgrad.compiler.graph.index_algebra import (Terms, add, both, divide, index, less, linear, modulo, multiply,
                                                    substitute_index)
from glassgrad.compiler.graph.node import toposort
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.compiler.lower.loops import (LANE, LOOP, TASK, TILE, UNIT, Accumulate, Assign, AwaitCopies, AwaitSteps,
                                            Axis, Barrier, Box, CopyBoxes, For, If, Statement, Store, counter,
                                            expressions, load, local, ranges_of, register, walk)
from glassgrad.compiler.optimize.decisions import Decisions
from glassgrad.compiler.optimize.moves import loop_moves as moves
from glassgrad.compiler.optimize.moves.loop_moves import flat_index, left_of, loops_around, nested, one
from glassgrad.compiler.optimize.moves.read_ahead import read_ahead, read_next
from glassgrad.compiler.optimize.plain.transposed_copies import CopyAcross
from glassgrad.compiler.optimize.product.line_boxes import (LineAxis, ShiftedFactor, line_rows, line_windows,
                                                            shifted_rows)
from glassgrad.compiler.optimize.product.packing import narrowed
from glassgrad.compiler.optimize.product.recognize import (FlatAxis, Product, count, flat_axis, stride_along, swells,
                                                           to_neighbour)
from glassgrad.compiler.optimize.product.split_k import Parts
from glassgrad.compiler.optimize.product.tiling import Tiling
from glassgrad.compiler.optimize.product.window_boxes import MOST_PADDED, BoxFactor, row_factors, window_factor
from glassgrad.compiler.optimize.targets import gpu_costs as gpu
from glassgrad.compiler.optimize.targets.matrix_units import MatrixUnit
from glassgrad.compiler.optimize.targets.target import Target

ImageFactor = Union[BoxFactor, ShiftedFactor]  # noqa: UP007 - it is evaluated, on Python 3.10 too


def on_group_unit(product: Product, target: Target, decisions: Decisions) \
        -> tuple[list[list[Statement]], list[Statement]] | None:
    """The phases, and the loops that add up parts of K; refuses (None) what has no unit for its types, or is too small
    to repay it."""
    if not target.units or product.stops or not product.n:
        return None
    plan = GroupUnitPlan.of(product.with_neighbours_right(), target)
    if plan is None:
        return None
    return GroupUnitTile(plan, decisions.ask(plan.own(), plan.refuses, plan.others)).phases()


class Digit(NamedTuple):
    """A part of a flat counter with a stride of its own: counter // begin % size."""
    begin: int
    size: int
    stride: int


@dataclass
class Factor:
    """A factor as a matrix in memory with one contiguous axis: K, or its own axis (M or N). Both may be taken apart
    there, as heads are: then they are further axes of its boxes."""
    memory: UOp
    offset: int
    axis: FlatAxis
    k: FlatAxis
    along_k: bool
    own: list[Digit]                      # positions of its own axis, those of the least stride first;
    sum: list[Digit]                      # and those of K
    outer: list[tuple[UOp, int]]          # other loops that it depends on, with its stride along each: those around
                                          # everything, and of a padded K all but the last
    before: list[Statement]               # the loops that store it there, where it did not lie so

    @property
    def pitch(self) -> int:
        """Elements from line to line."""
        return (self.own if self.along_k else self.sum)[0].stride

    @property
    def in_two_lines(self) -> bool:
        """Whether lines that are copied may lie in two lines of the cache each."""
        strides = [self.pitch, *[d.stride for d in (*self.own[1:], *self.sum[1:])]]
        return any(s * self.memory.dtype.itemsize % gpu.CACHE_LINE for s in strides)

    def boxes(self, line: int, to: UOp, position: UOp, size: int, k: UOp) -> list[Box]:
        """The boxes of `size` positions from `position` on, and of one step of K, which is a line long."""
        padded = self.k.apart(k) if self.k.pitch else {}
        k = padded.get(self.k.parts[-1], k)
        outer = [(Axis(r.arg.size, stride), padded.get(r, r)) for r, stride in self.outer]
        at_once = math.gcd(size, self.own[0].size) if len(self.own) > 1 else size
        at_once = at_once if self.along_k else line
        found = []
        for i in range(0, size, at_once):
            own, sums = _along(self.own, add(position, index(i))), _along(self.sum, k)
            first, second = (sums, own) if self.along_k else (own, sums)
            sides = [first[0], second[0], *first[1:], *second[1:], *outer]
            counts = (line, at_once if self.along_k else line, *[1] * (len(sides) - 2))
            found.append(Box(self.memory, self.offset, tuple([axis for axis, _ in sides]), counts,
                             tuple([at for _, at in sides]), add(to, index(i * line))))
        return found

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
    images: tuple[BoxFactor | None, ImageFactor | None] = (None, None)     # factors that are read as boxes of an image

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
        if p.depth < gpu.UNIT_LIMITS.least_k or p.work < gpu.UNIT_LIMITS.least_work:
            return None
        plan = plan.with_images().with_columns_of_all()
        if min(plan.m.size, plan.n.size) < gpu.LEAST_SIDE:
            return None
        stored = any(image is None and swells(factor, loops + p.k)
                     for image, factor, loops in zip(plan.images, (left, right), (p.m, p.n)))
        return None if stored else plan

    def with_images(self) -> GroupUnitPlan:
        """The same, with windows of an image read from the image, where a factor is that."""
        p, line = self.product, self.line(self.units[0])
        left, right = self.placed()
        above = None if left else window_factor(self.left, p.m, p.k, line, "left")          # of results with channels innermost
        if above is not None and self.follows(self.right, self.n, above.k):
            outer = [r for r in (*p.batch, *p.m, *p.n) if r not in (*above.axis.parts, *self.n.parts)]
            return replace(self, m=above.axis, k=above.k, outer=outer, images=(above, None))
        if right is not None:
            return self
        padded = self.with_padded_sum(line)
        if None not in padded.placed():
            return padded
        found = window_factor(self.right, p.n, p.k, line)
        if found is not None and self.follows(self.left, self.m, found.k):
            outer = [r for r in (*p.batch, *p.m, *p.n) if r not in (*self.m.parts, *found.axis.parts)]
            return replace(self, n=found.axis, k=found.k, outer=outer, images=(None, found))
        lines = line_windows(self.right, p.n, p.k, line, MOST_PADDED)
        if lines is not None and self.follows(self.left, self.m, lines.k):
            outer = [r for r in (*p.batch, *p.m, *p.n) if r not in (*self.m.parts, *lines.axis.parts)]
            return replace(self, n=lines.axis, k=lines.k, outer=outer, images=(None, lines))
        both_ = row_factors(self.left, self.right, self.m.parts, self.n.parts, p.k, line) \
            if self.units[0].across and not self.outer else None          # its lines are channels: they lie across k
        if both_ is None:
            rows: ImageFactor | None = None
            if not self.outer:
                rows = line_rows(self.right, p.n, padded.k, line) if self.units[0].across else \
                    shifted_rows(self.right, p.n, padded.k)
            if rows is not None:
                return replace(padded, n=rows.axis, images=(None, rows))
            return padded if padded.placed() != [None, None] else self
        return replace(self, m=both_[0].axis, n=both_[1].axis, k=both_[0].k, images=both_)

    def with_columns_of_all(self) -> GroupUnitPlan:
        """The same, with columns of all images on one axis, where the right factor is stored first anyway: tiles end
        with the last image then, not with each."""
        images = [r for r in self.outer if r in self.product.n]
        if not images or self.placed()[1] is not None:
            return self
        return replace(self, n=FlatAxis.of(self.product.n), outer=[r for r in self.outer if r not in images])

    @staticmethod
    def follows(factor: UOp, axis: FlatAxis, k: FlatAxis) -> bool:
        """Whether a factor can be stored in this order of K: it lies so, or its memory is in the cache."""
        reads = [n.src[1] for n in toposort([factor]) if n.op is o.LOAD and ranges_of(n.src[1]) >= {*k.parts}]
        lies = any(stride_along(at, r) == 1 for at in reads for r in (axis.parts[-1], k.parts[-1]))
        return lies or axis.size * count(k.parts) * factor.dtype.itemsize <= gpu.CACHE_BYTES

    def with_padded_sum(self, line: int) -> GroupUnitPlan:
        """The same, with the last loop of K in whole lines: those before it, such as images of a batch, are further
        axes of the boxes, and what lies past its end is zero."""
        *around, last = self.product.k
        pitch = -(-last.arg.size // line) * line
        if not around or pitch > MOST_PADDED * last.arg.size:
            return self
        return replace(self, k=FlatAxis([*around, last], count(around) * pitch, pitch))

    def placed(self) -> list[Factor | ImageFactor | None]:
        """Both factors where copies can bring them as they lie; None where they are stored first."""
        found = [in_place(*of, self.line(self.units[0])) for of in self.factors()]
        readable = [f if f is not None and (f.along_k or self.units[0].across) else None for f in found]
        return [image or factor for image, factor in zip(self.images, readable)]

    def own(self) -> Tiling:
        """The recipe's own choice: the tile with which the whole product takes least time."""
        left, right = self.placed()
        in_two = (left is not None and left.in_two_lines, right is not None and right.in_two_lines)
        operations = epilogue_operations(self.product)

        def time(c: Tiling) -> tuple[float, int]:
            unit = self.unit(c)
            rows, columns = c.rows * unit.rows, unit.columns
            tile = max((rows, columns, n) for n in (1, 2, 4) if n == 1 or (rows, columns, n) in gpu.UNIT_RATES
                       and c.stages <= self.stages(c.rows, unit, n))
            steps = -(-self.k.size // (self.line(unit) * c.k_parts))
            tiles = self.tiles(c.rows, unit) * c.k_parts
            joined = gpu.unit_join_time(tiles * tile[0] * tile[1]) if c.k_parts > 1 else 0.0
            processors = self.target.few_tasks // 2
            joined += gpu.unit_epilogue_time(tiles, tile, c.rows * unit.threads, processors, operations)
            if c.stay:
                return gpu.unit_stay_time(tiles, steps, tile[:2], processors, in_two) + joined, -c.stages
            return gpu.unit_tile_time(tiles, steps, tile, processors, in_two, c.cluster) + joined, -c.stages
        return min([c for c in self.others() if c.cluster == 1 or in_two[1]], key=time)

    def others(self) -> list[Tiling]:
        """Every tile; groups that stay where a processor has one at once; and clusters."""
        found = dict.fromkeys([self.with_tile(rows // unit.rows, unit, at_once) for unit in self.units
                               for rows, columns, at_once in gpu.UNIT_RATES if columns == unit.columns])
        more = [way for c in found for way in (self.staying(c), replace(c, cluster=2))]
        return [*found, *[c for c in dict.fromkeys(more) if self.refuses(c) is None
                          and not (c.stay and c.stages < gpu.LEAST_STAY_STAGES)]]

    def staying(self, c: Tiling) -> Tiling:
        """The same tile in groups that stay, with as many stages as fit one group on a processor."""
        c = replace(c, stay=True)
        fit = gpu.SHARED_BYTES // (self.stage_size(c) * self.unit(c).left.itemsize)
        return replace(c, stages=min(fit, gpu.MOST_STAGES))

    def tiles(self, groups: int, unit: MatrixUnit) -> int:
        return count(self.outer) * -(-self.m.size // (groups * unit.rows)) * -(-self.n.size // unit.columns)

    def parts(self, groups: int, unit: MatrixUnit) -> int:
        """Parts of K, each of as many steps, where tiles alone would leave most processors idle. Steps past the end of
        K add zeros."""
        steps, processors = -(-self.k.size // self.line(unit)), self.target.few_tasks // 2
        most = min(processors // self.tiles(groups, unit), steps // gpu.UNIT_PART)
        return -(-steps // -(-steps // most)) if most >= gpu.UNIT_PARTS else 1

    def stages(self, groups: int, unit: MatrixUnit, at_once: int) -> int:
        """How many stages fit, where so many groups share a processor's memory; 0 where not even the sums do."""
        line, limit = self.line(unit), gpu.SHARED_BYTES // at_once
        stage = (groups * unit.rows + unit.columns) * line * unit.left.itemsize
        sums = groups * unit.rows * (unit.columns + gpu.UNIT_PAD) * unit.total.itemsize
        steps = -(-self.k.size // line)
        return max(min(2, steps), min(limit // stage, gpu.MOST_STAGES, steps)) if sums <= limit else 0

    def stage_size(self, c: Tiling) -> int:
        """Elements of a stage: a step of both factors, or a tile of rounded sums where it goes there."""
        unit = self.unit(c)
        step = (c.rows * unit.rows + unit.columns) * c.k_block
        tile = c.rows * unit.rows * (unit.columns + gpu.UNIT_PAD) if c.stay else 0
        whole = gpu.STAGE_BYTES // unit.left.itemsize
        return -(-max(step, tile) // whole) * whole

    def groups_at_once(self, elements: int) -> int:
        """Groups that run at once, where each has so many elements of memory."""
        bytes_ = elements * self.units[0].left.itemsize
        return self.target.few_tasks // 2 * (2 if bytes_ <= gpu.SHARED_BYTES // 2 else 1)

    def with_tile(self, groups: int, unit: MatrixUnit, at_once: int) -> Tiling:
        line, stages = self.line(unit), self.stages(groups, unit, at_once)
        left, right = ("shared" if factor else "packed" for factor in self.placed())
        return Tiling("boxes", groups, 1, unit=unit.name, left=left, right=right, k_block=line,
                      k_parts=self.parts(groups, unit), stages=stages)

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
            return "no tile has so many matrices of the unit's rows"
        most = gpu.MOST_STAGES if c.stay else self.stages(c.rows, unit, 1)
        if not min(2, -(-self.k.size // self.line(unit))) <= c.stages <= most:
            return "stages do not fit the memory of a group, or are more than the steps of K"
        if c.cluster > 1:
            return self.refuses_cluster(c)
        if not c.stay:
            return None
        if self.apart(c) or rounded_to(self.product) is not unit.left or self.images != (None, None):
            return "groups stay where sums are stored in the type of the factors: a stage holds a tile of them"
        if c.stages * self.stage_size(c) * unit.left.itemsize > gpu.SHARED_BYTES:
            return "stages that hold a tile each do not fit the memory of a group"
        return None

    def apart(self, c: Tiling) -> bool:
        """Whether a second phase stores the results: of parts of K, or of columns that do not lie side by side."""
        return c.k_parts > 1 or self.n.parts[-1].arg.size > 1 and neighbours_stored(self.product, self.n) == 1

    def refuses_cluster(self, c: Tiling) -> str | None:
        """Why groups cannot share the copies of this product's right factor."""
        if c.cluster != 2 or c.stay:
            return "clusters are two groups, of one tile each"
        if -(-self.m.size // (c.rows * self.unit(c).rows)) % c.cluster or self.images != (None, None):
            return "rows of tiles do not come out even, or a factor is an image"
        return None


class GroupUnitTile:
    """A product cut as chosen: a tile of `rows` matrices of the unit below each other, one for each of its groups."""

    def __init__(self, plan: GroupUnitPlan, c: Tiling):
        self.plan, self.product, self.stages, self.unit = plan, plan.product, c.stages, plan.unit(c)
        self.stay = c.stay
        self.m, self.n, self.outer, self.line = plan.m, plan.n, plan.outer, c.k_block
        self.threads = c.rows * self.unit.threads
        self.height, self.width = c.rows * self.unit.rows, self.unit.columns
        self.left, self.right = (factor or packed(name, *of, self.line, not self.unit.across)
                                 for name, of, factor in zip(("left", "right"), plan.factors(), plan.placed()))
        tiles_m = -(-self.m.size // self.height)
        together = -(-tiles_m // -(-tiles_m // gpu.TILES_TOGETHER))
        if c.stay or c.cluster > 1:                               # tiles are numbered: no group of them is shorter
            together = next(n for n in range(together, 0, -1) if tiles_m % n == 0 and n % c.cluster == 0)
        self.group, self.in_group = counter("mg", -(-tiles_m // together)), counter("mi", together // c.cluster)
        self.cluster = counter("mc", c.cluster)
        self.task_n, self.tiles_m = counter("nb", -(-self.n.size // self.width)), tiles_m
        tile = add(multiply(one(self.group), together), add(multiply(one(self.in_group), c.cluster), one(self.cluster)))
        self.first_m = multiply(tile, self.height)
        self.first_n = multiply(one(self.task_n), self.width)
        self.part, self.steps = counter("kp", c.k_parts), -(-plan.k.size // (self.line * c.k_parts))
        self.row, self.column = counter("r", self.height), counter("c", self.width)
        self.total = register(self.product.total.arg, self.unit.total, (self.row, self.column))
        self.left_size = self.height * self.line
        self.stage_size = plan.stage_size(c)
        self.memory = local("stages", self.unit.left, self.stages * self.stage_size)
        self.apart = plan.apart(c)
        small = rounded_to(self.product) if c.k_parts == 1 else None
        self.parts = Parts(small or self.unit.total, c.k_parts, self.outer, self.m, self.n, self.product)

    def phases(self) -> tuple[list[list[Statement]], list[Statement]]:
        """The phases, and the loops that add up the parts of K."""
        body: list[Statement] = [*self.in_unit([Assign(self.total, const(0, self.unit.total))]), *self.sums(),
                                 AwaitSteps(0), Barrier(), *self.epilogue()]
        stop = left_of(self.tiles_m, self.in_group.arg.size, self.group) if self.cluster.arg.size == 1 else None
        if self.stay:
            tasks = self.staying()
        else:
            body = nested([self.cluster], body, TASK)
            body = [For(self.in_group, TASK, body, stop)] if self.in_group.arg.size > 1 else body
            tasks = nested([*self.outer, self.part, self.group, self.task_n], body, TASK)
        joined = self.parts.joined() if self.apart else []
        return [*[f.before for f in (self.left, self.right) if f.before], tasks], joined

    def in_unit(self, body: list[Statement]) -> list[Statement]:
        return nested([self.row, self.column], body, UNIT)

    def sums(self) -> list[Statement]:
        """The steps of K, with copies on their way for the next ones."""
        ahead = max(1, self.stages - 1)
        first, step = counter("ka", ahead), counter("ks", self.steps)
        later = add(one(step), index(ahead))
        body = self.step(one(step))
        if self.steps > ahead:
            body.append(If(less(later, index(self.steps)), [self.copies(later, later)]))
        return [*nested([first], [self.copies(one(first), one(first))]),
                *([For(step, LOOP, body)] if self.steps > 1 else body)]

    def step(self, round_: UOp) -> list[Statement]:
        """A step of the unit on what a round has brought; after it the stage of the step before it is free."""
        depth = counter("k", self.line)
        begin = multiply(modulo(round_, self.stages), self.stage_size)
        a = load(self.memory, add(begin, self.left.place(self.line, self.row, depth)))
        b = load(self.memory, add(add(begin, index(self.left_size)), self.right.place(self.line, self.column, depth)))
        multiplied = Accumulate(self.total, o.ADD, a.cast(self.unit.total) * b.cast(self.unit.total))
        return [AwaitCopies(self.memory, round_, self.stages), *self.in_unit([For(depth, UNIT, [multiplied])]),
                AwaitSteps(1), Barrier()]

    def staying(self) -> list[Statement]:
        """TASK groups: for the tiles of a group: steps; epilogue      the next tile's copies are on their way meanwhile

        Sums go into the stage of the tile's last step: it is the one that no copy has begun to refill."""
        order = FlatAxis.of([*self.outer, self.group, self.task_n, self.in_group])
        groups = min(order.size, self.plan.groups_at_once(self.stages * self.stage_size))
        group, tile, step = counter("g", groups), counter("t", -(-order.size // groups)), counter("ks", self.steps)

        def copies(tile: UOp, later: UOp) -> Statement:
            """The copies of a step that may be one of a later tile; none past the last tile."""
            number = add(multiply(add(tile, divide(later, self.steps)), groups), one(group))
            round_ = add(multiply(tile, self.steps), later)
            begun = moves.rebuild([self.copies(modulo(later, self.steps), round_)], order.apart(number))
            inside = moves.below(number, order.size)
            return begun[0] if inside is None else If(inside, begun)
        number = add(multiply(one(tile), groups), one(group))
        round_ = add(multiply(one(tile), self.steps), one(step))
        steps = [*self.step(round_), copies(one(tile), add(one(step), index(self.stages - 1)))]
        last = add(multiply(one(tile), self.steps), index(self.steps - 1))
        into = self.memory, multiply(modulo(last, self.stages), self.stage_size)
        body = [*self.in_unit([Assign(self.total, const(0, self.unit.total))]),
                *([For(step, LOOP, steps)] if self.steps > 1 else steps), AwaitSteps(0), Barrier(),
                *moves.rebuild(self.epilogue(into), order.apart(number)), Barrier(copies=True)]
        stop = None if order.size % groups == 0 else \
            add(divide(add(index(order.size - 1), multiply(one(group), -1)), groups), index(1))
        first = counter("ka", self.stages - 1)
        tiles: list[Statement] = [For(tile, LOOP, body, stop)] if tile.arg.size > 1 else body
        return nested([group], [*nested([first], [copies(index(0), one(first))]), *tiles], TASK)

    def copies(self, step: UOp, round_: UOp) -> CopyBoxes:
        """The copies of both factors for a step of K, into the stage of its round."""
        to = multiply(modulo(round_, self.stages), self.stage_size)
        k = multiply(add(multiply(one(self.part), self.steps), step), self.line)
        return CopyBoxes(self.memory, round_, (
            *self.left.boxes(self.line, to, self.first_m, self.height, k),
            *self.right.boxes(self.line, add(to, index(self.left_size)), self.first_n, self.width, k)),
            cluster=self.cluster if self.cluster.arg.size > 1 else None)

    def epilogue(self, into: tuple[UOp, UOp] | None = None) -> list[Statement]:
        parts = (self.parts, one(self.part)) if self.apart else None
        return tile_to_memory(self.product, self.total, (self.m, self.first_m), (self.n, self.first_n), self.threads,
                              "stages", parts, into)


def tile_to_memory(product: Product, total: UOp, m: tuple[FlatAxis, UOp], n: tuple[FlatAxis, UOp], threads: int,
                   over: str, parts: tuple[Parts, UOp] | None = None, into: tuple[UOp, UOp] | None = None) \
        -> list[Statement]:
    """The sums to memory of the group, and what is stored of them: neighbouring threads store neighbouring pieces of a
    line. `m` and `n` are the axes, and where the tile begins along them. Sums that are rounded to a small type before
    anything else are so on their way to that memory: one `over` another, or `into` one that begins there. With `parts`
    they are stored as the sums of that part of K."""
    (axis_m, first_m), (axis_n, first_n) = m, n
    row, column = total.src
    height, width = row.arg.size, column.arg.size
    pitch = width + gpu.UNIT_PAD
    small = rounded_to(product) if parts is None or parts[0].part.arg.size == 1 else None
    tile, start = into or (local("tile", small or total.dtype, height * pitch, over=over), index(0))
    value = total if small is None else total.cast(small)
    keep = nested([row, column], [Store(tile, add(add(multiply(row, pitch), column), start), value)], UNIT)
    columns = axis_n.row if parts is not None else neighbours_stored(product, axis_n)
    piece = next(v for v in (8, 4, 2, 1) if columns % v == 0)               # neighbours that one thread stores
    along = width // piece
    each, further = counter("e", piece), counter("f", 8 // piece)
    times, lane = counter("i", height * width // (8 * threads)), counter("l", threads)
    at = add(multiply(add(multiply(one(times), 8 // piece), one(further)), threads), lane)
    line, begin = divide(at, along), multiply(modulo(at, along), piece)
    at_m, at_n = add(first_m, line), add(first_n, begin)
    gate = both(moves.below(at_m, axis_m.size) if axis_m.size % height else None,
                moves.below(at_n, axis_n.size) if axis_n.size % width else None)
    gate = both(gate, both(axis_m.gate(at_m), axis_n.gate(at_n)))
    result = load(tile, add(add(add(multiply(line, pitch), begin), one(each)), start))
    if parts is None:
        product = product if small is None else product.rounded(small)
        stores = product.stores(result, {**axis_m.apart(at_m), **axis_n.apart(add(at_n, one(each)))}, gate)
    else:
        stores = [parts[0].store(parts[1], at_m, add(at_n, one(each)), result, gate)]
    pieces = nested([times], nested([further, each], [For(lane, LANE, stores)], TILE))
    ahead = read_ahead(pieces, most=4)
    return [*keep, *(ahead if ahead is not pieces else read_next(pieces, most=4))]


def epilogue_operations(product: Product) -> int:
    """Operations on floats that an epilogue does for each sum."""
    nodes = toposort([e for s in walk(product.epilogue) for e in expressions(s)])
    return sum(n.op in o.ELEMENTWISE and n.op is not o.CAST and n.dtype.kind == "f" for n in nodes)


def neighbours_stored(product: Product, axis: FlatAxis) -> int:
    """How many positions of an axis lie side by side in what is stored: of all loops, or of the last ones."""
    stores = [s for s in walk(product.epilogue) if isinstance(s, Store)]
    run = 1
    for r in reversed(axis.parts[-1:] if axis.pitch else axis.parts):
        if any(stride_along(s.index, r) != run for s in stores):
            break
        run *= r.arg.size
    return run


def rounded_to(product: Product) -> DType | None:
    """The type of 16 bits that an epilogue rounds the sum to before it does anything else; None: it does not."""
    found: set[DType | None] = set()
    for node in toposort([e for s in walk(product.epilogue) for e in expressions(s)]):
        if product.total in node.src:
            found.add(node.dtype if node.op is o.CAST and node.dtype.itemsize == 2 and node.dtype.kind == "f" else None)
    return found.pop() if len(found) == 1 else None


# -- factors -----------------------------------------------------------------------------------------------------------
def in_place(value: UOp, axis: FlatAxis, k: FlatAxis, outer: Sequence[UOp], line: int) -> Factor | None:
    """A factor that copies can bring as it lies: a matrix with one contiguous axis whose other strides, and whose
    beginning, are multiples of 16 bytes; its axes in one piece, or in pieces of whole lines."""
    if value.op is not o.LOAD or len(value.src) != 2 or value.src[0].op is not o.PARAM or isinstance(k, LineAxis):
        return None
    position, step = counter("position", axis.size), counter("step", k.row)
    places = {**axis.apart(position), **({k.parts[-1]: step} if k.pitch else k.apart(step))}
    offset, terms = linear(substitute_index(value.src[1], places, {}))
    used = [r for r in (*outer, *(k.parts[:-1] if k.pitch else ())) if r in terms]
    own, sums = digits(terms, position, line), digits(terms, step, line)
    if not own or not sums or len(own) + len(sums) + len(used) < len(terms) or len(terms) > gpu.COPY_AXES:
        return None
    along_k = sums[0].stride == 1
    if not along_k and own[0].stride != 1:
        return None
    whole = gpu.COPY_BYTES // value.dtype.itemsize
    found = Factor(value.src[0], offset, axis, k, along_k, own, sums, [(r, terms[r]) for r in used], [])
    strides = [found.pitch, *[d.stride for d in (*own[1:], *sums[1:])], *[terms[r] for r in used]]
    return None if offset % whole or any(s <= 0 or s % whole for s in strides) else found


def digits(terms: Terms, whole: UOp, line: int) -> list[Digit]:
    """How an index goes along a counter: as it is, or by its quotient and its remainder where those of them that follow
    each other have pieces of whole lines; none where it is anything else."""
    found = []
    for atom, stride in terms.items():
        inner, begin, size = atom, 1, whole.arg.size
        if inner.op is o.MOD and inner.src[1].op is o.CONST:
            inner, size = inner.src[0], inner.src[1].arg
        if inner.op is o.IDIV and inner.src[1].op is o.CONST:
            inner, begin = inner.src[0], inner.src[1].arg
        if inner is whole:
            found.append(Digit(begin, min(size, -(-whole.arg.size // begin)), stride))
    found.sort()
    ends = [d.begin * d.size for d in found]
    follow = [d.begin for d in found] == [1, *ends[:-1]] and ends[-1] >= whole.arg.size if found else False
    return found if follow and all(end % line == 0 for end in ends[:-1]) else []


def _along(parts: list[Digit], at: UOp) -> list[tuple[Axis, UOp]]:
    """The axes of a box along a counter, and where it begins on each; the last one may lie past the end."""
    places = [divide(at, d.begin) for d in parts]
    inside = [modulo(place, d.size) for place, d in zip(places[:-1], parts)]
    return [(Axis(d.size, d.stride), place) for d, place in zip(parts, [*inside, places[-1]])]


def packed(name: str, value: UOp, axis: FlatAxis, k: FlatAxis, outer: Sequence[UOp], line: int, must_follow_k: bool) \
        -> Factor:
    """A factor that is stored first, lines padded: along what is contiguous in memory, or along k where that is asked
    for: then it goes across, in blocks."""
    dtype = value.dtype
    reads = [n.src[1] for n in toposort([value]) if n.op is o.LOAD and n.src[0].op is not o.LOCAL]
    whole = [at for at in reads if not ranges_of(at).isdisjoint(k.parts) and not ranges_of(at).isdisjoint(axis.parts)]
    reads = whole or reads                                        # not what is read for each line, or along one
    along_k = any(to_neighbour(at, k.parts[-1]) == 1 for at in reads) and \
        not any(to_neighbour(at, axis.parts[-1]) == 1 for at in reads)
    across = must_follow_k and not along_k                        # it is transposed on its way
    along_k = along_k or must_follow_k
    lines, inner = (axis, k) if along_k else (k, axis)
    used = [r for r in outer if r in ranges_of(value)]
    pitch = -(-inner.size // line) * line
    memory = local(name, dtype, count(used) * lines.size * pitch, "shared")

    def copy(at_line: UOp, at: UOp, gate: UOp | None) -> tuple[UOp, UOp]:
        """Where an element is stored, and the element; zero where the gate is false, and past the end of a padded K."""
        to = add(multiply(add(multiply(flat_index(used), lines.size), at_line), pitch), at)
        inside = both(gate, k.gate(at if along_k else at_line))
        return to, moves.zero_outside(substitute_index(value, {**lines.apart(at_line), **inner.apart(at)}, {}), inside)

    at_line, at = counter("pl", lines.size), counter("pk", inner.size)
    blocks = CopyAcross.of(loops_around([*used, at_line, at], [Store(memory, *copy(at_line, at, None))], TASK))
    strides = [count(used[i + 1:]) * lines.size * pitch for i in range(len(used))]
    stored_k = FlatAxis(k.parts, k.size)                          # a padded one is stored with its padding
    own, sums = ([Digit(1, of.size, pitch if of is lines else 1)] for of in (axis, k))
    stored = Factor(memory, 0, axis, stored_k, along_k, own, sums, list(zip(used, strides)), [])
    if blocks is not None:
        return replace(stored, before=blocks.blocks())
    plain = value.op is o.LOAD and len(value.src) == 2            # what is computed is loaded one by one
    most = 1 if across else gpu.COPY_BYTES // dtype.itemsize if plain else 2
    piece = next(n for n in (8, 4, 2, 1) if n <= most and inner.parts[-1].arg.size % n == 0)
    rows = gpu.SECTOR // dtype.itemsize if across else gpu.PACK_ROWS // max(1, piece // 2)
    before = _in_rows(memory, used, (lines.size, inner.size), rows, piece, copy)
    return replace(stored, before=before)


def _in_rows(memory: UOp, used: list[UOp], size: tuple[int, int], rows_at_once: int, piece: int,
             copy: Callable[[UOp, UOp, UOp | None], tuple[UOp, UOp]]) -> list[Statement]:
    """The loops that store lines: a thread stores a piece of each of several, a group several short ones at once."""
    lines, inner = size
    per_line = min(gpu.PACK_LANES, -(-inner // piece))            # threads
    at_once = rows_at_once * (gpu.PACK_LANES // per_line)
    some, block = counter("p", -(-lines // at_once)), counter("pb", -(-inner // (per_line * piece)))
    rows, each, lane = counter("pr", rows_at_once), counter("pe", piece), counter("l", gpu.PACK_LANES)
    in_group = add(multiply(divide(lane, per_line), rows_at_once), rows)
    at_line = add(multiply(one(some), at_once), in_group)
    begin = multiply(add(multiply(one(block), per_line), modulo(lane, per_line)), piece)
    gate = both(moves.below(at_line, lines), moves.below(begin, inner))
    gate = both(gate, moves.below(in_group, at_once))
    to, value = copy(at_line, add(begin, one(each)), gate)
    held = register(f"{memory.arg.name}_next", memory.dtype, tuple([r for r in (rows, each, lane) if r.arg.size > 1]))
    body: list[Statement] = [Assign(held, value), Store(memory, to, held, None, gate)]      # all are read before that
    return nested([*used, some, block], nested([rows, each], [For(lane, LANE, body)], TILE), TASK)
